// All workloads as a list that one sorts and narrows down.
import type { JSX } from "preact";
import { useMemo, useState } from "preact/hooks";
import { many, type Cluster, type Holder } from "./model";
import { When } from "./parts";
import { link } from "./route";
import { stateText } from "./workload";

const STATES = ["all", "waiting", "starting", "running", "inactive", "foreign"] as const;
const MOST = 500;
type Sort = "name" | "queue" | "state" | "wants" | "priority" | "created";
const ORDER: Record<string, number> = { waiting: 0, starting: 1, running: 2, inactive: 3, foreign: 4 };

const COLUMNS: { sort: Sort; label: string; numeric?: boolean }[] = [
  { sort: "name", label: "Workload" },
  { sort: "queue", label: "Queue" },
  { sort: "state", label: "State" },
  { sort: "wants", label: "", numeric: true },
  { sort: "priority", label: "Priority", numeric: true },
  { sort: "created", label: "Created" },
];

const BY: Record<Sort, (a: Holder, b: Holder) => number> = {
  name: (a, b) => (a.title < b.title ? -1 : 1),
  queue: (a, b) => ((a.clusterQueue || a.queue) < (b.clusterQueue || b.queue) ? -1 : 1),
  state: (a, b) => (ORDER[a.state] ?? 9) - (ORDER[b.state] ?? 9) || a.created - b.created,
  wants: (a, b) => b.wants - a.wants,
  priority: (a, b) => b.priority - a.priority,
  created: (a, b) => b.created - a.created,
};

export function Workloads({ cluster, version, now, query, set }: { cluster: Cluster; version: number; now: number; query: Record<string, string>; set: (query: Record<string, string | undefined>, replace?: boolean) => void }): JSX.Element {
  const [sort, setSort] = useState<Sort>("state");
  const state = STATES.find((one) => one === query["state"]) ?? "all";
  const counts = useMemo(() => {
    const found = new Map<string, number>();
    for (const one of cluster.holders.values()) found.set(one.state, (found.get(one.state) ?? 0) + 1);
    return found;
  }, [cluster, version]);
  const rows = useMemo(() => [...cluster.holders.values()].filter((one) => state === "all" || one.state === state).sort((a, b) => BY[sort](a, b) || a.number - b.number), [cluster, version, state, sort]);
  const label = (name: string): string => (name === "foreign" ? "not ours" : name);
  if (!cluster.holders.size) return <p class="state">There is no workload that you may see.</p>;
  return (
    <section class="page" aria-label="Workloads">
      <div class="toolbar" role="group" aria-label="State">
        {STATES.map((one) => (one === "all" || counts.get(one)) && (
          <button type="button" key={one} class={state === one ? "chip on" : "chip"} aria-pressed={state === one} onClick={() => set({ state: one === "all" ? undefined : one }, true)}>
            {label(one)} <span class="dim">{many(one === "all" ? cluster.holders.size : (counts.get(one) ?? 0))}</span>
          </button>
        ))}
      </div>
      <div class="scroll-x" tabIndex={0} role="region" aria-label="List of workloads">
      <table class="list">
        <caption class="hidden">Workloads</caption>
        <thead>
          <tr>{COLUMNS.map((one) => (
            <th scope="col" key={one.sort} class={one.numeric ? "n" : ""} aria-sort={sort === one.sort ? (one.sort === "name" || one.sort === "queue" ? "ascending" : "descending") : "none"}>
              <button type="button" class="link" onClick={() => setSort(one.sort)}>{one.label || cluster.unit}{sort === one.sort ? " ↓" : ""}</button>
            </th>
          ))}<th scope="col" class="n">Pods</th></tr>
        </thead>
        <tbody>
          {rows.slice(0, MOST).map((one) => (
            <tr key={one.number} class={query["workload"] === one.key ? "lit" : ""}>
              <td><a href={link("workloads", { ...query, workload: one.key })}>{one.title}</a> <span class="dim">{one.kind}</span></td>
              <td>{one.clusterQueue || one.queue}</td>
              <td class={one.state === "waiting" ? "waits" : ""}>{stateText(one.state, one.reason)}</td>
              <td class="n">{many(one.wants)}</td>
              <td class="n">{one.workload ? one.priority : ""}</td>
              <td><When at={one.created} now={now} /></td>
              <td class="n">{many(one.running)}/{many(one.count)}</td>
            </tr>
          ))}
        </tbody>
      </table>
      </div>
      {rows.length > MOST && <p class="dim">and {many(rows.length - MOST)} more: search finds each by its name.</p>}
    </section>
  );
}
