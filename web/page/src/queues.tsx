// Queues: quota and what is used of it, cohorts, and who waits in which order, for what.
import type { JSX } from "preact";
import { type Cluster, age, called } from "./model";
import { Waits, useAsked } from "./parts";
import { link } from "./route";
import type { Source } from "./source";
import { amountOf } from "./quantity";

interface Quota {
  flavor: string;
  resource: string;
  nominal: string;
  used: string;
  borrowed: string;
  free: string;
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

interface Queue {
  name: string;
  cohort: string;
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
}

export interface Report {
  queues: Queue[];
  inactive: string[];
}

export function Queues({ source, cluster, version, query }: { source: Source; cluster: Cluster; version: number; query: Record<string, string> }): JSX.Element {
  const { found, error } = useAsked<Report>(source, "queues", {}, version, 5000);
  if (!found) return <Waits what="Reading the queues" error={error} />;
  if (!found.queues.length)
    return <p class="state">There is no ClusterQueue that you may see. Jobs without a queue are placed at once where there is room; <code>docs/queues.md</code> has how to share a cluster.</p>;
  const chosen = found.queues.filter((one) => !query["queue"] || one.name === query["queue"]);
  const shown = chosen.length ? chosen : found.queues;
  const cohorts = new Map<string, Queue[]>();
  for (const one of shown) cohorts.set(one.cohort, [...(cohorts.get(one.cohort) ?? []), one]);
  return (
    <section class="page" aria-label="Queues">
      {shown.length < found.queues.length && <p><a href={link("queues")}>All {found.queues.length} queues</a></p>}
      {[...cohorts].map(([cohort, queues]) => (
        <section key={cohort} aria-label={cohort ? `Cohort ${cohort}` : "Without a cohort"}>
          {cohorts.size > 1 || cohort ? <h2 class="cohort">{cohort ? `Cohort ${cohort}` : "Without a cohort"}</h2> : null}
          {queues.map((one) => <OneQueue key={one.name} queue={one} unit={cluster.resource} />)}
        </section>
      ))}
    </section>
  );
}

function OneQueue({ queue, unit }: { queue: Queue; unit: string }): JSX.Element {
  const first = queue.quotas.filter((one) => one.resource === unit), rest = queue.quotas.filter((one) => one.resource !== unit && one.resource !== "pods");
  return (
    <article class="queue">
      <header>
        <h3><a href={link("queues", { queue: queue.name })}>{queue.name}</a></h3>
        <p class="dim">{queue.admitted} admitted, {queue.pending} waiting · {queue.strategy}{queue.local_queues.length > 0 && ` · ${queue.local_queues.join(", ")}`} · <a href={link("map", { colour: "queue", queue: queue.name })}>on the map</a></p>
      </header>
      {!queue.active && <p class="wrong">{queue.reason}: {queue.message}</p>}
      <div class="bars">
        {(first.length ? first : rest).map((one) => <QuotaBar key={`${one.flavor}/${one.resource}`} quota={one} cohort={queue.cohort !== ""} />)}
      </div>
      {first.length > 0 && rest.length > 0 && (
        <details><summary>{rest.length} more {rest.length > 1 ? "quotas" : "quota"}</summary><div class="bars">{rest.map((one) => <QuotaBar key={`${one.flavor}/${one.resource}`} quota={one} cohort={queue.cohort !== ""} />)}</div></details>
      )}
      {queue.waiting.length > 0 ? <Line name={queue.name} waiting={queue.waiting} others={queue.others} unit={unit} /> : <p class="dim">{queue.others ? `${queue.others} of others wait.` : "Nobody waits."}</p>}
    </article>
  );
}

/** Used within the nominal quota, borrowed beyond it, and what is not used, which others may borrow. */
function QuotaBar({ quota, cohort }: { quota: Quota; cohort: boolean }): JSX.Element {
  const nominal = amountOf(quota.nominal), used = amountOf(quota.used), borrowed = amountOf(quota.borrowed), free = amountOf(quota.free);
  const whole = Math.max(nominal, used, 1e-9) * (borrowed > 0 ? 1.02 : 1);
  const own = (100 * Math.min(used, nominal)) / whole, over = (100 * Math.max(0, used - nominal)) / whole, line = (100 * nominal) / whole;
  const lent = cohort ? Math.max(0, nominal - used - free) : 0;
  return (
    <div class="quota">
      <div class="quota-head"><span>{called(quota.resource)} <span class="dim">of {quota.flavor}</span></span><span><b>{quota.used}</b> of {quota.nominal}{borrowed > 0 && `, ${quota.borrowed} borrowed`}{lent > 0 && `, about ${lent} lent`} <span class="dim">· {quota.free} may be taken now</span></span></div>
      <svg class="bar" role="img" aria-label={`${quota.used} of ${quota.nominal} used, ${quota.borrowed} borrowed`} viewBox="0 0 100 8" preserveAspectRatio="none">
        <rect width="100" height="8" class="b-free" />
        <rect width={own} height="8" class="b-used" />
        {over > 0 && <rect x={own} width={over} height="8" class="b-over" />}
        {lent > 0 && <rect x={own} width={Math.min(100 - own, (100 * lent) / whole)} height="8" class="b-lent" />}
        {over > 0 && <rect x={line - 0.2} width="0.4" height="8" class="b-line" />}
      </svg>
    </div>
  );
}

function Line({ name, waiting, others, unit }: { name: string; waiting: Waiting[]; others: number; unit: string }): JSX.Element {
  return (
    <div class="scroll-x" tabIndex={0} role="region" aria-label={`Who waits in ${name}`}>
    <table>
      <caption class="hidden">Who waits, in order</caption>
      <thead><tr><th scope="col" class="n">Place</th><th scope="col">Job</th><th scope="col" class="n">Priority</th><th scope="col">Since</th><th scope="col">Wants</th><th scope="col">Waits for</th></tr></thead>
      <tbody>
        {waiting.slice(0, 200).map((one) => (
          <tr key={one.workload}>
            <td class="n">{one.position ?? "–"}</td>
            <td><a href={link("workloads", { workload: one.workload })}>{one.workload.split("/")[0]}/{one.job.split("/").at(-1)}</a></td>
            <td class="n">{one.priority}</td><td>{age(one.age_seconds)}</td>
            <td>{one.wants[unit] ? `${one.wants[unit]} ${called(unit)}` : Object.entries(one.wants).map(([name, amount]) => `${amount} ${called(name)}`).join(", ")}</td>
            <td title={one.message}><span class="dim">{one.reason}</span> {one.short}</td>
          </tr>
        ))}
        {(waiting.length > 200 || others > 0) && <tr><td /><td colSpan={5} class="dim">and {Math.max(0, waiting.length - 200) + others} more</td></tr>}
      </tbody>
    </table>
    </div>
  );
}
