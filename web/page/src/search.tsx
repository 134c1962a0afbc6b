// One field that finds hosts, domains, workloads and queues by a part of their names.
import type { JSX } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { queuesOf } from "./colours";
import type { Cluster } from "./model";
import { go } from "./route";

interface Hit {
  kind: string;
  text: string;
  open: () => void;
}

const MOST = 12;

export function find(cluster: Cluster, text: string, colour: string | undefined): Hit[] {
  const wanted = text.trim().toLowerCase();
  if (!wanted) return [];
  const found: [number, Hit][] = [];
  const see = (name: string, kind: string, open: () => void): void => {
    const at = name.toLowerCase().indexOf(wanted);
    if (at < 0) return;
    found.push([at === 0 ? 0 : at + 1, { kind, text: name, open }]);
  };
  const paths = new Set<string>();
  cluster.places.forEach((_, host) => {
    const values = cluster.domainOf(host).split("/");
    for (let depth = 1; depth <= values.length; depth++) paths.add(values.slice(0, depth).join("/"));
  });
  for (const path of paths) see(path, "domain", () => go("map", { colour, at: path }));
  for (const one of cluster.holders.values()) see(one.title, one.kind, () => go("map", { colour, workload: one.key }));
  for (const name of queuesOf(cluster)) if (name) see(name, "queue", () => go("map", { colour: "queue", queue: name }));
  for (const row of cluster.hosts) see(String(row[0]), "host", () => go("map", { colour, host: String(row[0]), at: cluster.domainOf(cluster.at.get(String(row[0]))!) }));
  return found.sort((a, b) => a[0] - b[0] || a[1].text.length - b[1].text.length || (a[1].text < b[1].text ? -1 : 1)).slice(0, MOST).map(([, hit]) => hit);
}

export function Search({ cluster, version, colour }: { cluster: Cluster; version: number; colour: string | undefined }): JSX.Element {
  const [text, setText] = useState(""), [at, setAt] = useState(0), [open, setOpen] = useState(false);
  const input = useRef<HTMLInputElement>(null);
  const hits = useMemo(() => (open ? find(cluster, text, colour) : []), [cluster, version, text, open, colour]);
  useEffect(() => {
    const slash = (event: KeyboardEvent): void => {
      const inside = event.target instanceof HTMLElement && /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName);
      if (event.key !== "/" || inside || event.ctrlKey || event.metaKey) return;
      event.preventDefault();
      input.current?.focus();
    };
    addEventListener("keydown", slash);
    return () => removeEventListener("keydown", slash);
  }, []);
  const choose = (hit: Hit | undefined): void => {
    if (!hit) return;
    hit.open();
    setOpen(false);
    setText("");
    input.current?.blur();
  };
  const key = (event: KeyboardEvent): void => {
    if (event.key === "ArrowDown") setAt(Math.min(hits.length - 1, at + 1));
    else if (event.key === "ArrowUp") setAt(Math.max(0, at - 1));
    else if (event.key === "Enter") choose(hits[at]);
    else if (event.key === "Escape") setOpen(false);
    else return;
    event.preventDefault();
  };
  const shown = open && text.trim() !== "";
  return (
    <div class="search">
      <input
        ref={input} type="search" placeholder="Search  /" aria-label="Search hosts, domains, workloads and queues" role="combobox" aria-expanded={shown && hits.length > 0} aria-controls="hits" aria-autocomplete="list" list={undefined}
        {...(shown && hits.length ? { "aria-activedescendant": `hit-${at}` } : {})}
        value={text} onInput={(event) => { setText(event.currentTarget.value); setAt(0); setOpen(true); }} onFocus={() => setOpen(true)} onBlur={() => setTimeout(() => setOpen(false), 150)} onKeyDown={key} autocomplete="off" spellcheck={false}
      />
      <ul id="hits" role="listbox" aria-label="Found" hidden={!shown || !hits.length}>
        {hits.map((one, number) => (
          <li key={`${one.kind}/${one.text}`} id={`hit-${number}`} role="option" aria-selected={number === at} onMouseDown={(event) => { event.preventDefault(); choose(one); }}>
            {one.text} <span class="dim">{one.kind}</span>
          </li>
        ))}
      </ul>
      {shown && !hits.length && <p class="nothing" role="status">Nothing by that name.</p>}
    </div>
  );
}
