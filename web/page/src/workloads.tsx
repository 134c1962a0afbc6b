// All workloads as a list that one sorts and narrows down.
import type { JSX } from "preact";
import { useMemo } from "preact/hooks";
import type { SetQuery } from "./map";
import { age, many, stuck, type Cluster, type Holder } from "./model";
import { When } from "./parts";
import { link } from "./route";

const STATES = ["all", "waiting", "starting", "running", "inactive", "foreign"] as const;
const MOST = 500;
type Sort = "name" | "queue" | "state" | "reason" | "since" | "wants" | "priority" | "created";
const ORDER: Record<string, number> = { waiting: 0, starting: 1, running: 2, inactive: 3, foreign: 4 };

const COLUMNS: { sort: Sort; label: string; numeric?: boolean }[] = [
  { sort: "name", label: "Workload" },
  { sort: "queue", label: "Queue" },
  { sort: "state", label: "State" },
  { sort: "reason", label: "Reason" },
  { sort: "since", label: "Waits for" },
  { sort: "wants", label: "", numeric: true },
  { sort: "priority", label: "Priority", numeric: true },
  { sort: "created", label: "Created" },
];

const text = (a: string, b: string): number => (a === b ? 0 : a === "" ? 1 : b === "" ? -1 : a < b ? -1 : 1);

const BY: Record<Sort, (a: Holder, b: Holder) => number> = {
  name: (a, b) => text(a.title, b.title),
  queue: (a, b) => text(a.clusterQueue || a.queue, b.clusterQueue || b.queue),
  state: (a, b) => (ORDER[a.state] ?? 9) - (ORDER[b.state] ?? 9) || a.created - b.created,
  reason: (a, b) => text(a.reason, b.reason) || a.since - b.since,
  since: (a, b) => (a.since || Infinity) - (b.since || Infinity) || 0, // who waits longest comes first
  wants: (a, b) => b.wants - a.wants,
  priority: (a, b) => b.priority - a.priority,
  created: (a, b) => b.created - a.created,
};

/** What an address asks for: those of a namespace, state and reason, in an order. */
export function chosen(holders: Iterable<Holder>, query: Record<string, string>): Holder[] {
  const { ns, state, reason } = query, [, turned, name] = /^(-?)(.*)$/.exec(query["sort"] ?? "state")!;
  const by = Object.hasOwn(BY, name!) ? BY[name as Sort] : BY.state, sign = turned ? -1 : 1;
  return [...holders]
    .filter((one) => (!ns || one.namespace === ns) && (!state || one.state === state) && (!reason || one.reason === reason) && (!query["stuck"] || stuck(one)))
    .sort((a, b) => sign * (by(a, b) || 0) || a.number - b.number);
}

function counts(holders: Holder[], of: (one: Holder) => string): Map<string, number> {
  const found = new Map<string, number>();
  for (const one of holders) found.set(of(one), (found.get(of(one)) ?? 0) + 1);
  return found;
}

const LABELS: Record<string, string> = { foreign: "not placed by Topogate" };

export function Workloads({ cluster, version, now, query, set }: { cluster: Cluster; version: number; now: number; query: Record<string, string>; set: SetQuery }): JSX.Element {
  const sort = query["sort"] ?? "state", state = STATES.find((one) => one === query["state"]) ?? "all";
  const { here, states, reasons, rows } = useMemo(() => {
    const here = chosen(cluster.holders.values(), { ns: query["ns"] ?? "" });
    const reasons = counts(here.filter((one) => one.state === "waiting"), (one) => one.reason);
    return { here, states: counts(here, (one) => one.state), reasons: [...reasons].sort((a, b) => b[1] - a[1]), rows: chosen(here, query) };
  }, [cluster, version, query["ns"], query["state"], query["reason"], query["stuck"], sort]);
  if (!cluster.holders.size) return <p class="state">There is no workload that you may see.</p>;
  const column = sort.replace("-", ""), order = sort.startsWith("-") ? "descending" : "ascending";
  return (
    <section class="page" aria-label="Workloads">
      <div class="toolbar">
        <div class="chips" role="group" aria-label="State">
          {STATES.map((one) => (one === "all" || states.get(one)) && (
            <button type="button" key={one} class={state === one ? "chip on" : "chip"} aria-pressed={state === one} onClick={() => set({ state: one === "all" ? undefined : one, reason: undefined, stuck: undefined }, true)}>
              {LABELS[one] ?? one} <span class="dim">{many(one === "all" ? here.length : (states.get(one) ?? 0))}</span>
            </button>
          ))}
          {here.some(stuck) && (
            <button type="button" class={query["stuck"] ? "chip on" : "chip"} aria-pressed={query["stuck"] !== undefined} onClick={() => set({ state: "waiting", reason: undefined, stuck: query["stuck"] ? undefined : "yes" }, true)}>
              can never start <span class="dim">{many(here.filter(stuck).length)}</span>
            </button>
          )}
        </div>
        {reasons.length > 0 && (
          <label class="pick">
            Waits because of
            <select value={query["reason"] ?? ""} onChange={(event) => set({ reason: event.currentTarget.value || undefined, state: event.currentTarget.value ? "waiting" : query["state"], stuck: undefined }, true)}>
              <option value="">any reason</option>
              {reasons.map(([one, count]) => <option value={one} key={one}>{one} ({count})</option>)}
            </select>
          </label>
        )}
        <label class="pick only-narrow">
          Order
          <select value={sort} onChange={(event) => set({ sort: event.currentTarget.value }, true)}>
            {COLUMNS.map((one) => <option value={one.sort} key={one.sort}>{one.label || cluster.unit}</option>)}
          </select>
        </label>
      </div>
      <div class="scroll-x" tabIndex={0} role="region" aria-label="List of workloads">
      <table class="list cards">
        <caption class="hidden">Workloads</caption>
        <thead>
          <tr>{COLUMNS.map((one) => (
            <th scope="col" key={one.sort} class={one.numeric ? "n" : ""} aria-sort={column === one.sort ? order : "none"}>
              <button type="button" class="link" onClick={() => set({ sort: sort === one.sort ? `-${one.sort}` : one.sort }, true)}>{one.label || cluster.unit}{column === one.sort ? (order === "ascending" ? " ↓" : " ↑") : ""}</button>
            </th>
          ))}<th scope="col" class="n">Pods</th></tr>
        </thead>
        <tbody>
          {rows.slice(0, MOST).map((one) => (
            <tr key={one.number} class={query["workload"] === one.key ? "lit" : ""}>
              <th scope="row"><a href={link("workloads", { ...query, workload: one.key })}>{one.title}</a> <span class="dim">{one.kind}</span></th>
              <td data-label="Queue">{one.clusterQueue || one.queue}</td>
              <td data-label="State">{LABELS[one.state] ?? one.state}</td>
              <td data-label="Reason" class={stuck(one) ? "bad" : ""}>{one.reason}</td>
              <td data-label="Waits for">{one.state === "waiting" && one.since > 0 && age(now - one.since)}</td>
              <td data-label={cluster.unit} class="n">{many(one.wants)}</td>
              <td data-label="Priority" class="n">{one.workload ? one.priority : ""}</td>
              <td data-label="Created"><When at={one.created} now={now} /></td>
              <td data-label="Pods" class="n">{many(one.running)}/{many(one.count)}</td>
            </tr>
          ))}
        </tbody>
      </table>
      </div>
      {!rows.length && <p class="state">None is like this{query["ns"] && ` in namespace ${query["ns"]}`}.</p>}
      {rows.length > MOST && <p class="dim">and {many(rows.length - MOST)} more: search finds each by its name.</p>}
    </section>
  );
}
