// Queues: quota and what is used of it, cohorts, and who waits in which order, for what.
import type { JSX } from "preact";
import { heldOf, age, called, counted, type Cluster } from "./model";
import { Text, Waits, useAsked } from "./parts";
import { link } from "./route";
import type { Source } from "./source";
import { amountOf } from "./quantity";

interface Quota {
  flavor: string;
  resource: string;
  nominal: string;
  used: string;
  borrowed: string;
  free?: string; // of a cohort nobody says it
  borrowing_limit: string | null;
  lending_limit: string | null;
}

interface Waiting {
  position: number | null;
  workload: string;
  job: string;
  local_queue: string;
  priority: number;
  age_seconds: number;
  wants: Record<string, string>;
  reason: string;
  message: string;
  short: string;
}

interface Use {
  name: string;
  pending: number;
  used: Record<string, string>;
  weight: string | null;
  score: number | null;
  consumed: Record<string, string> | null;
}

interface Queue {
  name: string;
  path: string[]; // the cohorts above it, the root first, as far as one may see them
  strategy: string;
  active: boolean;
  reason: string;
  message: string;
  pending: number;
  admitted: number;
  local_queues: string[];
  quotas: Quota[];
  waiting: Waiting[];
  others: number;
  uses: Use[];
  by_use: boolean;
  over_time: number | null;
}

interface Cohort {
  name: string;
  path: string[];
  exists: boolean;
  active: boolean;
  reason: string;
  message: string;
  pending: number;
  admitted: number;
  weighted_share: number | null;
  over_time: number | null;
  quotas: (Quota & { own: string })[];
}

export interface Report {
  queues: Queue[];
  cohorts: Cohort[];
  inactive: string[];
}

/** How the queues of a simulation are at the time that is shown: what is used and who waits is on the map. */
export function reportAt(told: Report, cluster: Cluster): Report {
  const used = new Map<string, number>(), waiting = new Map<string, Waiting[]>();
  cluster.hosts.forEach((row, host) => {
    const flavor = cluster.picture.groves[cluster.places[host]?.grove ?? 0]?.flavor ?? "";
    for (const one of heldOf(row)) {
      const key = `${cluster.holders.get(one.holder)?.clusterQueue}/${flavor}`;
      used.set(key, (used.get(key) ?? 0) + one.used + one.promised);
    }
  });
  const holders = [...cluster.holders.values()].sort((a, b) => b.priority - a.priority || a.created - b.created);
  for (const one of holders.filter((each) => each.state === "waiting")) {
    const line = waiting.get(one.clusterQueue) ?? [];
    waiting.set(one.clusterQueue, line);
    line.push({
      position: line.length + 1, workload: one.key, job: one.name, local_queue: one.queue, priority: one.priority, age_seconds: cluster.time - one.since,
      wants: { [cluster.resource]: String(one.wants) }, reason: one.reason, message: "", short: "",
    });
  }
  const queues = told.queues.map((one): Queue => {
    const quotas = one.quotas.filter((each) => each.resource === cluster.resource).map((each): Quota => {
      const has = used.get(`${one.name}/${each.flavor}`) ?? 0, nominal = amountOf(each.nominal);
      const cohort = told.queues.filter((other) => other.name === one.name || (one.path.length > 0 && other.path[0] === one.path[0]));
      const all = cohort.reduce((sum, other) => sum + other.quotas.filter((each2) => each2.flavor === each.flavor && each2.resource === each.resource).reduce((s, each2) => s + amountOf(each2.nominal), 0), 0);
      const free = all - cohort.reduce((sum, other) => sum + (used.get(`${other.name}/${each.flavor}`) ?? 0), 0);
      return { ...each, used: String(has), borrowed: String(Math.max(0, has - nominal)), free: String(Math.max(0, free)) };
    });
    const line = waiting.get(one.name) ?? [];
    return { ...one, quotas, waiting: line, pending: line.length, admitted: holders.filter((each) => each.clusterQueue === one.name && each.admitted > 0).length };
  });
  return { ...told, queues };
}

export function Queues({ source, cluster, version, query }: { source: Source; cluster: Cluster; version: number; query: Record<string, string> }): JSX.Element {
  const { found: told, error } = useAsked<Report>(source, "queues", {}, source.live ? version : 0, 5000);
  if (!told) return <Waits what="Reading the queues" error={error} />;
  const found = source.times.length ? reportAt(told, cluster) : told;
  if (!found.queues.length)
    return <p class="state">There is no ClusterQueue that you may see. Jobs without a queue are placed at once where there is room; <code>docs/queues.md</code> has how to share a cluster.</p>;
  const chosen = found.queues.filter((one) => !query["queue"] || one.name === query["queue"]);
  const { ns } = query, mine = ns ? chosen.filter((one) => one.local_queues.some((local) => local.startsWith(`${ns}/`))) : chosen;
  const shown = mine.length ? mine : chosen.length ? chosen : found.queues;
  const all = shown.length === found.queues.length, above = new Set(shown.flatMap((one) => one.path));
  const cohorts = found.cohorts.filter((one) => all || above.has(one.name)), alone = shown.filter((one) => !one.path.length);
  const roots = [...new Set([...shown.flatMap((one) => one.path.slice(0, 1)), ...cohorts.map((one) => [...one.path, one.name][0]!)])].sort();
  return (
    <section class="page" aria-label="Queues">
      <ul class="legend" aria-label="Legend">
        <li><span class="key k-used" /> used, of its own quota</li><li><span class="key k-over" /> borrowed</li><li><span class="key k-lent" /> lent to others</li><li><span class="key k-free" /> not used</li><li><span class="key k-line" /> its quota ends here</li>
      </ul>
      {shown.length < found.queues.length && <p><a href={link("queues")}>All {found.queues.length} queues</a></p>}
      {roots.map((one) => <Tree key={one} path={[one]} queues={shown} cohorts={cohorts} cluster={cluster} ns={ns ?? ""} />)}
      {alone.length > 0 && (
        <section aria-label="Without a cohort">
          {roots.length > 0 && <h2 class="cohort">Without a cohort</h2>}
          {alone.map((one) => <OneQueue key={one.name} queue={one} cluster={cluster} ns={ns ?? ""} />)}
        </section>
      )}
    </section>
  );
}

/** A cohort at the end of this path, its queues, and the cohorts below it. */
function Tree({ path, queues, cohorts, cluster, ns }: { path: string[]; queues: Queue[]; cohorts: Cohort[]; cluster: Cluster; ns: string }): JSX.Element {
  const name = path[path.length - 1]!, depth = path.length, within = (way: string[]): boolean => path.every((one, at) => way[at] === one);
  const found = cohorts.find((one) => one.name === name && one.path.length === depth - 1);
  const ways = [...queues.map((one) => one.path), ...cohorts.map((one) => [...one.path, one.name])].filter((way) => way.length > depth && within(way));
  const below = [...new Set(ways.map((way) => way[depth]!))].sort();
  return (
    <section class={depth > 1 ? "below" : ""} aria-label={`Cohort ${name}`}>
      <h2 class="cohort">Cohort {name}{found && found.weighted_share !== null && ` · share ${found.weighted_share}`}{overTime(found?.over_time)}</h2>
      {found && <CohortFacts cohort={found} cluster={cluster} tree={depth > 1 || below.length > 0 || found.exists} />}
      {queues.filter((one) => one.path.length === depth && within(one.path)).map((one) => <OneQueue key={one.name} queue={one} cluster={cluster} ns={ns} />)}
      {below.map((one) => <Tree key={one} path={[...path, one]} queues={queues} cohorts={cohorts} cluster={cluster} ns={ns} />)}
    </section>
  );
}

/** What is wrong with a cohort, and in a tree what it has with all that is below it. */
function CohortFacts({ cohort, cluster, tree }: { cohort: Cohort; cluster: Cluster; tree: boolean }): JSX.Element {
  const quotas = tree ? cohort.quotas.filter((one) => one.resource !== "pods") : [];
  const told = !cohort.active ? `${cohort.reason}: ${cohort.message}` : cohort.message.startsWith("there is no Cohort") ? cohort.message : "";
  return (
    <>
      {told && <p class="wrong"><Text text={told} cluster={cluster} /></p>}
      {quotas.length > 0 && <div class="bars">{quotas.map((one) => <QuotaBar key={`${one.flavor}/${one.resource}`} quota={one} cohort={false} own={one.own} />)}</div>}
    </>
  );
}

const MANY = 6; // quotas that are shown without a click

function OneQueue({ queue, cluster, ns }: { queue: Queue; cluster: Cluster; ns: string }): JSX.Element {
  const unit = cluster.resource, main = (one: Quota): number => (one.resource === unit ? 0 : 1);
  const quotas = queue.quotas.filter((one) => one.resource !== "pods").sort((a, b) => main(a) - main(b)), rest = quotas.slice(MANY);
  const bar = (one: Quota): JSX.Element => <QuotaBar key={`${one.flavor}/${one.resource}`} quota={one} cohort={queue.path.length > 0 && queue.reason !== "CohortCycle"} />;
  const waiting = queue.waiting.filter((one) => !ns || one.workload.startsWith(`${ns}/`));
  return (
    <article class="queue">
      <header>
        <h3><a href={link("queues", { queue: queue.name })}>{queue.name}</a></h3>
        <p class="dim">{queue.admitted} admitted, {queue.pending} waiting · {queue.strategy}{overTime(queue.over_time)}{queue.local_queues.length > 0 && ` · ${queue.local_queues.join(", ")}`} · <a href={link("map", { colour: "queue", queue: queue.name })}>on the map</a></p>
      </header>
      {!queue.active && <p class="wrong">{queue.reason}: <Text text={queue.message} cluster={cluster} /></p>}
      <div class="bars">{quotas.slice(0, MANY).map(bar)}</div>
      {rest.length > 0 && <details><summary>{counted(rest.length, "more quota", "more quotas")}</summary><div class="bars">{rest.map(bar)}</div></details>}
      {queue.by_use && queue.uses.length > 0 && <OverTime name={queue.name} uses={queue.uses} cluster={cluster} />}
      {waiting.length > 0 ? <Line name={queue.name} waiting={waiting} others={queue.others + queue.waiting.length - waiting.length} cluster={cluster} /> : <p class="dim">{queue.others + queue.waiting.length ? `${counted(queue.others + queue.waiting.length, "job of others waits", "jobs of others wait")}.` : "No job waits."}</p>}
    </article>
  );
}

/** What a queue or cohort used over time beyond its own, in thousandths of what its parent may use. */
const overTime = (share: number | null | undefined): string => (share == null ? "" : ` · share over time ${Math.round(share)}`);

/** What LocalQueues used over time, for their weight: the one with the lowest score is next. */
function OverTime({ name, uses, cluster }: { name: string; uses: Use[]; cluster: Cluster }): JSX.Element {
  const unit = cluster.resource, rounded = (amount: string | undefined): string => amountOf(amount ?? "0").toFixed(1);
  return (
    <div class="scroll-x" tabIndex={0} role="region" aria-label={`What the LocalQueues of ${name} used over time`}>
    <table class="cards">
      <caption class="hidden">LocalQueues, the next one first</caption>
      <thead><tr><th scope="col">LocalQueue</th><th scope="col" class="n">Score</th><th scope="col" class="n">Weight</th><th scope="col" class="n">Used over time</th><th scope="col" class="n">Uses now</th><th scope="col" class="n">Waiting</th></tr></thead>
      <tbody>
        {uses.slice(0, 50).map((one) => (
          <tr key={one.name}>
            <th scope="row">{one.name}</th>
            <td class="n" data-label="Score">{one.score === null ? "last" : one.score.toFixed(1)}</td><td class="n" data-label="Weight">{one.weight ?? "1"}</td>
            <td class="n" data-label="Used over time">{rounded(one.consumed?.[unit])} {called(unit)}</td><td class="n" data-label="Uses now">{one.used[unit] ?? "0"}</td><td class="n" data-label="Waiting">{one.pending}</td>
          </tr>
        ))}
        {uses.length > 50 && <tr><td colSpan={6} class="dim">and {uses.length - 50} more</td></tr>}
      </tbody>
    </table>
    </div>
  );
}

const BEYOND = 1.06; // the bar goes on a little after the quota, so that one sees where it ends

/** Used within the nominal quota, borrowed beyond it, and what is not used, which others may borrow. */
function QuotaBar({ quota, cohort, own: itself = "0" }: { quota: Quota; cohort: boolean; own?: string }): JSX.Element {
  const nominal = amountOf(quota.nominal), used = amountOf(quota.used), borrowed = amountOf(quota.borrowed), free = amountOf(quota.free ?? "0");
  const whole = Math.max(nominal, used, 1e-9) * BEYOND, part = (amount: number): number => (100 * amount) / whole;
  const own = Math.min(used, nominal), lent = cohort ? Math.max(0, nominal - used - free) : 0;
  const says = `${quota.used} of ${quota.nominal} used${borrowed > 0 ? `, of these ${quota.borrowed} borrowed` : ""}${lent > 0 ? `, about ${lent} lent` : ""}`;
  return (
    <div class="quota">
      <div class="quota-head">
        <span>{called(quota.resource)} <span class="dim">in flavor {quota.flavor}{itself !== "0" && `, ${itself} of it the cohort's own`}{quota.borrowing_limit !== null && `, may borrow ${quota.borrowing_limit}`}{quota.lending_limit !== null && `, may lend ${quota.lending_limit}`}</span></span>
        <span><b>{quota.used}</b> of {quota.nominal} used{borrowed > 0 && <>, <b>{quota.borrowed}</b> of these borrowed</>}{lent > 0 && <>, about <b>{lent}</b> lent</>} {quota.free !== undefined && <span class="dim">· {quota.free} may be taken now</span>}</span>
      </div>
      <div class="bar" role="img" aria-label={says}>
        <Part kind="free" from={0} to={part(nominal)} />
        <Part kind="used" from={0} to={part(own)} />
        {used > nominal && <Part kind="over" from={part(nominal)} to={part(used)} />}
        {lent > 0 && <Part kind="lent" from={part(own)} to={part(Math.min(own + lent, nominal))} />}
        <Part kind="line" from={part(nominal)} to={part(nominal)} />
      </div>
    </div>
  );
}

/** A part of a bar, in the look that the legend has for it; from and to in percent. */
function Part({ kind, from, to }: { kind: "free" | "used" | "over" | "lent" | "line"; from: number; to: number }): JSX.Element {
  return <span class={`key k-${kind}`} style={{ left: `${from}%`, ...(kind === "line" ? {} : { width: `${to - from}%` }) }} />;
}

function Line({ name, waiting, others, cluster }: { name: string; waiting: Waiting[]; others: number; cluster: Cluster }): JSX.Element {
  const unit = cluster.resource;
  return (
    <div class="scroll-x" tabIndex={0} role="region" aria-label={`What waits in ${name}`}>
    <table class="cards">
      <caption class="hidden">What waits, in order</caption>
      <thead><tr><th scope="col" class="n">Place</th><th scope="col">Job</th><th scope="col" class="n">Priority</th><th scope="col">Waits for</th><th scope="col">Wants</th><th scope="col">Why</th></tr></thead>
      <tbody>
        {waiting.slice(0, 200).map((one) => (
          <tr key={one.workload}>
            <td class="n" data-label="Place">{one.position ?? ""}</td>
            <th scope="row"><a href={link("workloads", { workload: one.workload })}>{cluster.named(one.workload)?.title ?? one.job}</a></th>
            <td class="n" data-label="Priority">{one.priority}</td><td data-label="Waits for">{age(one.age_seconds)}</td>
            <td data-label="Wants">{one.wants[unit] ? `${one.wants[unit]} ${called(unit)}` : Object.entries(one.wants).map(([resource, amount]) => `${amount} ${called(resource)}`).join(", ")}</td>
            <td data-label="Why" title={one.message}><b>{one.reason}</b> <Text text={one.short} cluster={cluster} /></td>
          </tr>
        ))}
        {(waiting.length > 200 || others > 0) && <tr><td /><td colSpan={5} class="dim">and {Math.max(0, waiting.length - 200) + others} more</td></tr>}
      </tbody>
    </table>
    </div>
  );
}
