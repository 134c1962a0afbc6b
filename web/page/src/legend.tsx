// What the colours of the map mean, with the names of who has them.
import type { JSX } from "preact";
import { useMemo, useState } from "preact/hooks";
import { AGES, kindOf, queuesOf, type Mode, type Theme } from "./colours";
import type { SetQuery } from "./map";
import { heldOf, many, type Cluster, type Holder } from "./model";
import { Swatch } from "./parts";

const FEW = 10; // of many names, where nobody asked for all

interface Entry {
  key: string;
  text: string;
  on: boolean;
  swatch: { colour: string; texture?: number };
  choose: (() => void) | null;
}

export function Legend({ cluster, mode, theme, version, query, set }: { cluster: Cluster; mode: Mode; theme: Theme; version: number; query: Record<string, string>; set: SetQuery }): JSX.Element {
  const [all, show] = useState(false);
  const entries = useMemo((): Entry[] => {
    if (mode === "queue")
      return queuesOf(cluster).map((name, at) => ({
        key: name, text: name || "no queue", on: query["queue"] === name && name !== "", swatch: name === "" ? { colour: theme.other } : kindOf(theme, at),
        choose: name === "" ? null : () => set({ queue: query["queue"] === name ? undefined : name }, true),
      }));
    if (mode === "workload")
      return onMap(cluster).map((one) => ({
        key: one.key, text: one.title, on: query["workload"] === one.key, swatch: kindOf(theme, cluster.lookOf(one).look),
        choose: () => set({ workload: query["workload"] === one.key ? undefined : one.key, host: undefined }),
      }));
    if (mode === "age") return AGES.map((one, at) => ({ key: one.label, text: one.label, on: false, swatch: { colour: theme.ages[at]!, texture: at }, choose: null }));
    return [];
  }, [cluster, version, mode, theme, query["queue"], query["workload"]]);
  const few = entries.length > FEW + 1 && !all, shown = few ? entries.slice(0, FEW) : entries;
  return (
    <ul class={`legend${all ? " all" : ""}`} aria-label="Legend">
      {mode === "occupancy" && <li title="Each job has another shade than those beside it"><svg class="swatch" width="24" height="12" aria-hidden="true">{theme.tones.map((tone, at) => <rect x={at * 8} width="8" height="12" fill={tone} key={tone} />)}</svg> used</li>}
      {shown.map((one) => (
        <li key={one.key}>
          {one.choose
            ? <button type="button" class={one.on ? "chip on" : "chip"} aria-pressed={one.on} onClick={one.choose}><Swatch {...one.swatch} theme={theme} /> {one.text}</button>
            : <><Swatch {...one.swatch} theme={theme} /> {one.text}</>}
        </li>
      ))}
      {(few || all) && <li><button type="button" class="link" aria-expanded={all} onClick={() => show(!all)}>{all ? "show fewer" : `and ${many(entries.length - FEW)} more`}</button></li>}
      {mode !== "problem" && <li><Swatch colour={mode === "occupancy" ? theme.used : theme.muted} kind="promised" theme={theme} /> reserved</li>}
      <li><Swatch colour={theme.free} theme={theme} /> free</li>
      <li><Swatch colour={theme.outLine} kind="out" theme={theme} /> out of service</li>
    </ul>
  );
}

/** Who has something there, those with most first. */
function onMap(cluster: Cluster): Holder[] {
  const found = new Map<number, number>();
  for (const row of cluster.hosts) for (const one of heldOf(row)) found.set(one.holder, (found.get(one.holder) ?? 0) + one.used + one.promised);
  return [...found].sort((a, b) => b[1] - a[1] || a[0] - b[0]).flatMap(([number]) => cluster.holders.get(number) ?? []);
}
