// Small parts that several views share.
import type { ComponentChildren, JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { DARK, LIGHT, type Theme } from "./colours";
import { age, exact, type Cluster } from "./model";
import { MARKS, SHADE, TILE } from "./painter";
import { link } from "./route";
import type { Source } from "./source";

export function useTheme(): Theme {
  const query = matchMedia("(prefers-color-scheme: dark)");
  const [dark, set] = useState(query.matches);
  useEffect(() => {
    const changed = (): void => set(query.matches);
    query.addEventListener("change", changed);
    return () => query.removeEventListener("change", changed);
  }, []);
  return dark ? DARK : LIGHT;
}

/** The time, which goes on while nothing else does. */
export function useNow(milliseconds = 5000): number {
  const [now, set] = useState(() => Date.now() / 1000);
  useEffect(() => {
    const timer = setInterval(() => set(Date.now() / 1000), milliseconds);
    return () => clearInterval(timer);
  }, [milliseconds]);
  return now;
}

export interface Asked<T> {
  found: T | null;
  error: string;
  busy: boolean;
}

/** What the source says of something; asked again, at most every few seconds, when `again` changes. */
export function useAsked<T>(source: Source, path: string, query: Record<string, string>, again: unknown = 0, pause = 2000): Asked<T> {
  const key = `${path}?${new URLSearchParams(query).toString()}`;
  const [state, set] = useState<Asked<T> & { key: string; at: number }>({ found: null, error: "", busy: true, key, at: 0 });
  useEffect(() => {
    let gone = false;
    const wait = state.key === key ? Math.max(0, state.at + pause - Date.now()) : 0;
    if (state.key !== key) set({ found: null, error: "", busy: true, key, at: 0 });
    const timer = setTimeout(() => {
      source.ask<T>(path, query).then(
        (found) => { if (!gone) set({ found, error: "", busy: false, key, at: Date.now() }); },
        (error: unknown) => { if (!gone) set((old) => ({ ...old, error: error instanceof Error ? error.message : String(error), busy: false, key, at: Date.now() })); },
      );
    }, wait);
    return () => {
      gone = true;
      clearTimeout(timer);
    };
  }, [key, again, source]);
  return state.key === key ? state : { found: null, error: "", busy: true };
}

export function When({ at, now, past = " ago" }: { at: number; now: number; past?: string }): JSX.Element {
  if (!at) return <></>;
  return <time dateTime={new Date(at * 1000).toISOString()} title={exact(at)}>{age(now - at)}{past}</time>;
}

const NAMES = /([a-z0-9][\w.-]*(?:\/[a-z0-9][\w.-]*)+)/;

/** A sentence in which the workloads that are named are called by their owners, and lead to them. */
export function Text({ text, cluster }: { text: string; cluster: Cluster }): JSX.Element {
  return <>{text.split(NAMES).map((part, at) => (at % 2 ? <Named name={part} cluster={cluster} key={at} /> : part))}</>;
}

/** A workload by whatever name it was told of: NAMESPACE/WORKLOAD, NAMESPACE/KIND/NAME, NAMESPACE/NAME. */
export function Named({ name, cluster, text }: { name: string; cluster: Cluster; text?: string }): JSX.Element {
  const whole = name.replace(/[.,:]+$/, ""), found = cluster.named(whole);
  return found ? <><a href={link("map", { workload: found.key })}>{found.title}</a>{name.slice(whole.length)}</> : <>{text ?? name}</>;
}

/** A domain, as a link to its place on the map. */
export function InMap({ cluster, flavor, values, workload }: { cluster: Cluster; flavor: string; values: string[]; workload?: string }): JSX.Element {
  return <a href={link("map", { at: cluster.domain(flavor, values), workload })}>{values.join(" / ") || flavor}</a>;
}

/** A name or command that one click copies. */
export function Name({ text, children }: { text: string; children?: ComponentChildren }): JSX.Element {
  const [done, set] = useState(false);
  const copy = (): void => {
    void navigator.clipboard?.writeText(text).then(() => {
      set(true);
      setTimeout(() => set(false), 1200);
    }, () => undefined);
  };
  return (
    <span class="name">
      {children ?? text}
      <button type="button" class="copy" onClick={copy} aria-label={`Copy ${text}`} title="Copy">{done ? "✓" : <svg width="13" height="13" viewBox="0 0 13 13" aria-hidden="true"><rect x="4.5" y="4.5" width="8" height="8" rx="1.5" fill="none" stroke="currentColor" /><path d="M8.5 2.5V2a1.5 1.5 0 0 0-1.5-1.5H2A1.5 1.5 0 0 0 .5 2v5A1.5 1.5 0 0 0 2 8.5h.5" fill="none" stroke="currentColor" /></svg>}</button>
    </span>
  );
}

export function Waits({ what, error }: { what: string; error: string }): JSX.Element {
  return error ? <p class="state wrong" role="alert">{error}</p> : <p class="state" role="status">{what} …</p>;
}

export function Swatch({ colour, kind, texture = 0, theme }: { colour: string; kind?: "promised" | "out" | undefined; texture?: number; theme: Theme }): JSX.Element {
  return (
    <svg class="swatch" width="16" height="12" aria-hidden="true">
      <rect width="16" height="12" rx="2" fill={kind === "promised" ? theme.free : kind === "out" ? theme.out : colour} />
      {kind === "promised" && <path d="M0 12L12 0M-3 6L6 -3M6 15L18 3" stroke={colour} stroke-width="2" />}
      {kind === "out" && <path d="M0 12L12 0M0 0L12 12M8 12L18 2M8 0L18 10" stroke={colour} stroke-width="1.2" />}
      <Texture texture={texture} width={16} height={12} colour={kind ? colour : theme.mark} />
    </svg>
  );
}

/** The marks that go with a colour, over so many pixels. */
export function Texture({ texture, width, height, colour }: { texture: number; width: number; height: number; colour: string }): JSX.Element | null {
  const found = MARKS[texture] ?? [];
  if (!found.length) return null;
  let path = "";
  for (let left = 0; left < width; left += TILE)
    for (let top = 0; top < height; top += TILE)
      for (const [a, b, w, h] of found) {
        const wide = Math.min(w, width - left - a), high = Math.min(h, height - top - b);
        if (wide > 0 && high > 0) path += `M${left + a} ${top + b}h${wide}v${high}h${-wide}z`;
      }
  return <path d={path} fill={colour} opacity={SHADE} />;
}
