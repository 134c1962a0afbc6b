// One workload: its way from creation to running, its pods by rank, and, while it waits, why and what would help.
import type { JSX } from "preact";
import { useEffect, useMemo } from "preact/hooks";
import { age, exact, holderOf, many, called, type Cluster } from "./model";
import { Name, Waits, When, useAsked } from "./parts";
import { link } from "./route";
import type { Source } from "./source";

type PodRow = [string, string, number | null, string, boolean, number, boolean, string];

interface Detail {
  row: unknown[];
  message: string;
  steps: [string, boolean, number, string, string][];
  slots: [string, number][];
  many: number;
  pods: PodRow[];
}

export interface Room {
  flavor: string;
  values: string[];
  fits: number;
  nodes: number;
  limit: string;
  missing: Record<string, string>;
  excluded: Record<string, number>;
  refusal: string;
}

interface View {
  name: string;
  namespace: string;
  workload: string;
  priority: number;
  pods: number;
  amounts: Record<string, string>;
}

export interface Relief {
  domain: string[];
  fits: number;
  count: number;
  missing: Record<string, string>;
  heldBy: View[];
  enough: View[];
  enoughIn: string[];
  preemption: string;
}

interface Explained {
  reason: string;
  message: string;
  queue: null | {
    cluster_queue: string;
    cohort: string;
    position: number | null;
    waiting: number;
    options: { flavors: string[]; borrows: boolean; quotas: { flavor: string; resource: string; wanted: string; free: string; lacking: string; used: string; nominal: string; most: string; never: boolean }[] }[];
    no_option: string;
    victims: { workload: string; priority: number | null; gone: boolean }[];
    history: string[];
  };
  room: Room[];
  relief: Relief | null;
  growth: null | { text: string; pods: number; room: Room[]; relief: Relief | null };
}

export function WorkloadDrawer({ source, cluster, name, version, now, close, told }: { source: Source; cluster: Cluster; name: string; version: number; now: number; close: () => void; told: (ranks: Map<number, number[]> | null) => void }): JSX.Element {
  const { found, error } = useAsked<Detail>(source, "workload", { key: name }, version, 2000);
  const ranks = useMemo(() => {
    if (!found) return null;
    const at = new Map<number, number[]>();
    for (const [, node, rank] of found.pods) {
      const host = cluster.at.get(node);
      if (host === undefined) continue;
      const here = at.get(host) ?? [];
      if (rank !== null) here.push(rank);
      at.set(host, here);
    }
    for (const here of at.values()) here.sort((a, b) => a - b);
    return at;
  }, [found, cluster]);
  useEffect(() => {
    told(ranks);
    return () => told(null);
  }, [ranks]);
  const holder = found ? holderOf(found.row) : cluster.holder(name);
  return (
    <aside class="drawer" aria-label={`Workload ${name}`}>
      <header>
        <h2><Name text={holder ? holder.name : name}>{holder ? holder.name : name}</Name></h2>
        <p class="dim">{holder ? `${holder.kind} in ${holder.namespace}` : ""}</p>
        <button type="button" class="close" onClick={close} aria-label="Close">×</button>
      </header>
      {!found || !holder ? <Waits what="Reading the workload" error={error} /> : (
        <>
          <dl class="facts">
            <dt>State</dt><dd>{stateText(holder.state, holder.reason)}</dd>
            <dt>Pods</dt><dd>{many(holder.running)} of {many(holder.count)} running</dd>
            <dt>{cluster.unit}</dt><dd>{many(holder.wants)}</dd>
            {holder.workload && <><dt>Queue</dt><dd>{holder.clusterQueue || holder.queue ? <a href={link("queues", { queue: holder.clusterQueue })}>{holder.clusterQueue || holder.queue}</a> : "none"}</dd>
            <dt>Priority</dt><dd>{holder.priority}</dd><dt>Created</dt><dd><When at={holder.created} now={now} /></dd></>}
          </dl>
          {holder.workload && <Way found={found} created={holder.created} state={holder.state} now={now} />}
          {holder.state === "waiting" && (source.live ? <Why source={source} name={name} message={found.message} now={now} /> : <p>{found.message}</p>)}
          {source.live && holder.workload && (holder.state === "running" || holder.state === "starting") && <Growth source={source} name={name} now={now} />}
          {source.live && <Events source={source} name={name} now={now} />}
          <Pods found={found} unit={cluster.unit} />
        </>
      )}
    </aside>
  );
}

export function stateText(state: string, reason: string): string {
  if (state === "foreign") return "runs; not placed by Topogate";
  if (state === "inactive") return "inactive (spec.active is false)";
  if (state === "waiting") return reason ? `waits: ${reason}` : "waits";
  return state === "starting" ? "admitted, pods are starting" : "running";
}

const WORDS: Record<string, string> = { QuotaReserved: "Reserved", Admitted: "Admitted", Ungated: "Pods ungated", PodsReady: "Pods ready", Evicted: "Evicted", Preempted: "Preempted", Requeued: "Requeued" };

const ORDER = ["Created", ...Object.values(WORDS)]; // of what happened in the same second

const STARTING = new Set(["", "WaitForStart", "PodsNotReady", "Suspended"]); // of PodsReady, where pods are just not all ready

/** Its way on a time line. */
function Way({ found, created, state, now }: { found: Detail; created: number; state: string; now: number }): JSX.Element {
  const steps = [{ name: "Created", at: created, reason: "", message: "" }, ...found.steps.filter((one) => one[1]).map(([name, , at, reason, message]) => ({ name: WORDS[name] ?? name, at, reason, message }))]
    .filter((one) => one.at > 0)
    .sort((a, b) => a.at - b.at || ORDER.indexOf(a.name) - ORDER.indexOf(b.name));
  const hangs = found.steps.find(([name, is, , reason]) => name === "PodsReady" && !is && !STARTING.has(reason));
  return (
    <section aria-label="Its way">
      <h3>Its way</h3>
      <ol class="way">
        {steps.map((one, at) => (
          <li key={one.name} class={one.name === "Evicted" || one.name === "Preempted" ? "bad" : "done"}>
            <b>{one.name}</b> <time title={exact(one.at)} class="dim">{age(now - one.at)} ago{at > 0 && `, after ${age(one.at - steps[at - 1]!.at)}`}</time>
            {one.name === WORDS.Ungated && one.message && <div class="small">{one.message}</div>}
            {(one.name === "Evicted" || one.name === "Preempted") && <div class="small">{one.reason}: {one.message}</div>}
          </li>
        ))}
        {state === "waiting" && <li class="next"><b>Waits</b> <span class="dim">for {age(now - (steps.at(-1)?.at ?? now))}</span></li>}
        {state === "starting" && <li class="next"><b>Pods are starting</b>{hangs && <div class="small wrong">{hangs[3]}: {hangs[4]}</div>}</li>}
      </ol>
    </section>
  );
}

type EventRow = [number, string, string, string, string, number, number, string, string];

/** What was told of it, its owner and its pods: what says the same is one row. */
function Events({ source, name, now }: { source: Source; name: string; now: number }): JSX.Element {
  const { found, error } = useAsked<{ rows: EventRow[]; why: string }>(source, "events", { key: name }, Math.floor(now / 15), 10_000);
  if (!found) return <section aria-label="Events"><h3>Events</h3><Waits what="Reading its events" error={error} /></section>;
  return (
    <section aria-label="Events">
      <h3>Events</h3>
      {found.rows.length > 0 && (
        <ol class="events">
          {found.rows.map(([last, type, reason, kind, object, objects, times, note, reporter]) => (
            <li key={`${kind}/${type}/${reason}/${object}/${note}`} class={type === "Normal" || type === "" ? "" : "warned"}>
              <b>{type !== "Normal" && type !== "" && `${type}: `}{reason}</b>{" "}
              <span class="dim">{kind === "Pod" && objects > 1 ? `${many(objects)} pods, last of ${object}` : `${kind} ${object}`}{times > objects && `, ${many(times)} times`}, <When at={last} now={now} /></span>
              <div class="small" title={reporter}>{note}</div>
            </li>
          ))}
        </ol>
      )}
      {!found.rows.length && !found.why && <p class="dim">None is kept. A cluster forgets events after an hour, unless it is told otherwise.</p>}
      {found.why && <p class="dim">{found.why[0]!.toUpperCase() + found.why.slice(1)}.</p>}
    </section>
  );
}

function Why({ source, name, message, now }: { source: Source; name: string; message: string; now: number }): JSX.Element {
  const { found, error } = useAsked<Explained>(source, "explain", { key: name }, Math.floor(now / 30), 15_000);
  return (
    <section aria-label="Why it waits">
      <h3>Why it waits</h3>
      <p>{found?.message || message || "Nobody has looked at it yet."}</p>
      {!found ? <Waits what="Asking what would help" error={error} /> : (
        <>
          {found.queue?.position != null && <p>Place {found.queue.position} of {found.queue.waiting} that wait in {found.queue.cluster_queue}.</p>}
          {found.queue?.no_option && <p class="wrong">No flavor of the queue can be given: {found.queue.no_option}</p>}
          {found.queue?.history.map((one) => <p key={one}>{one}</p>)}
          {found.queue && found.queue.options.length > 0 && <Quotas options={found.queue.options} />}
          <Victims queue={found.queue} />
          <RoomTable room={found.room} count={found.relief?.count} />
          {found.relief && <ReliefText relief={found.relief} only={found.room.length === 1} />}
        </>
      )}
    </section>
  );
}

/** What an admitted one lacks that wants more pods, and who makes room for them. */
function Growth({ source, name, now }: { source: Source; name: string; now: number }): JSX.Element | null {
  const { found } = useAsked<Explained>(source, "explain", { key: name }, Math.floor(now / 30), 15_000);
  if (!found || (!found.growth && !found.queue?.victims.length)) return null;
  return (
    <section aria-label="Growth">
      <h3>Growth</h3>
      <Victims queue={found.queue} />
      {found.growth && (
        <>
          <p>{found.growth.text}</p>
          <RoomTable room={found.growth.room} count={found.growth.pods || undefined} />
          {found.growth.relief && <ReliefText relief={found.growth.relief} only={found.growth.room.length === 1} />}
        </>
      )}
    </section>
  );
}

function Victims({ queue }: { queue: Explained["queue"] }): JSX.Element | null {
  if (!queue?.victims.length) return null;
  return <p>What it gets is kept for it until these have made room: {queue.victims.map((one, at) => <span key={at}>{at > 0 && ", "}<Linked workload={one.workload} text={one.workload || "somebody else's"} /></span>)}.</p>;
}

function Quotas({ options }: { options: NonNullable<Explained["queue"]>["options"] }): JSX.Element {
  return (
    <table>
      <caption>Quota</caption>
      <thead><tr><th scope="col">Flavor</th><th scope="col">Resource</th><th scope="col" class="n">Wants</th><th scope="col" class="n">Free</th><th scope="col" class="n">Lacks</th></tr></thead>
      <tbody>
        {options.flatMap((option, at) => option.quotas.map((one) => (
          <tr key={`${at}${one.flavor}${one.resource}`}>
            <td>{one.flavor}</td><td>{one.resource}</td><td class="n">{one.wanted}</td><td class="n">{one.free}</td>
            <td class="n">{one.lacking === "0" ? "" : <b>{one.lacking}{one.never && " (never)"}</b>}</td>
          </tr>
        )))}
      </tbody>
    </table>
  );
}

export function RoomTable({ room, count }: { room: Room[]; count?: number | undefined }): JSX.Element | null {
  if (!room.length) return null;
  return (
    <table>
      <caption>How many pods fit now</caption>
      <thead><tr><th scope="col">Domain</th><th scope="col" class="n">Fits{count ? ` of ${count}` : ""}</th><th scope="col">Limited by</th><th scope="col">Short of</th></tr></thead>
      <tbody>
        {room.slice(0, 12).map((one) => (
          <tr key={`${one.flavor}/${one.values.join("/")}`}>
            <th scope="row">{one.values.length ? <a href={link("map", { at: one.values.join("/") })}>{one.values.join(" / ")}</a> : one.flavor}</th>
            <td class="n">{one.fits}</td><td>{one.limit}{one.refusal && `: ${one.refusal}`}</td>
            <td>{Object.entries(one.missing).map(([name, amount]) => `${amount} ${called(name)}`).join(", ")}</td>
          </tr>
        ))}
        {room.length > 12 && <tr><td colSpan={4} class="dim">and {room.length - 12} more domains</td></tr>}
      </tbody>
    </table>
  );
}

/** ``only``: a table above says of the one domain what it lacks. */
export function ReliefText({ relief, only }: { relief: Relief; only?: boolean }): JSX.Element {
  const lacks = Object.entries(relief.missing).map(([name, amount]) => `${amount} ${called(name)}`).join(", ");
  return (
    <div class="relief">
      <h4>What would free it</h4>
      {!only && relief.domain.length > 0 && <p>Closest: <b>{relief.domain.join(" / ")}</b> takes {Math.min(relief.fits, relief.count) || "none"} of {pods(relief.count)}{lacks && `, and lacks ${lacks}${relief.fits ? " for the rest" : ""}`}.</p>}
      {relief.enough.length > 0 && <p>It would fit{relief.enoughIn.length > 0 && <> in <b>{relief.enoughIn.join(" / ")}</b></>} if {relief.enough.length > 1 ? "these were" : "this one was"} gone: <Holders found={relief.enough} />.</p>}
      {relief.preemption && <p class="dim">{relief.preemption[0]!.toUpperCase() + relief.preemption.slice(1)}.</p>}
    </div>
  );
}

function Holders({ found }: { found: View[] }): JSX.Element {
  return (
    <>
      {found.slice(0, 8).map((one, at) => (
        <span key={`${one.namespace}/${one.name}/${at}`}>{at > 0 && "; "}<Linked workload={one.workload} text={one.namespace ? `${one.namespace}/${one.name}` : one.name} /> ({pods(one.pods)}, priority {one.priority})</span>
      ))}
      {found.length > 8 && `; and ${found.length - 8} more`}
    </>
  );
}

function Linked({ workload, text }: { workload: string; text: string }): JSX.Element {
  return workload ? <a href={link("map", { workload })}>{text}</a> : <>{text}</>;
}

function pods(count: number): string {
  return `${many(count)} ${count === 1 ? "pod" : "pods"}`;
}

function Pods({ found, unit }: { found: Detail; unit: string }): JSX.Element | null {
  if (!found.pods.length) return null;
  return (
    <table class="pods">
      <caption>Pods by rank</caption>
      <thead><tr><th scope="col">Rank</th><th scope="col">Pod</th><th scope="col">Host</th><th scope="col" class="n">{unit}</th><th scope="col">Phase</th></tr></thead>
      <tbody>
        {found.pods.slice(0, 400).map(([name, node, rank, phase, gated, amount, crosses, reason]) => (
          <tr key={name}>
            <td>{rank ?? ""}</td><td>{name}</td><td>{node ? <a href={link("map", { host: node })}>{node}</a> : ""}</td><td class="n">{amount}</td>
            <td>{gated ? "gated" : reason ? <span class="wrong">{reason}</span> : phase}{crosses && <b class="wrong"> crosses sockets</b>}</td>
          </tr>
        ))}
        {found.many > Math.min(400, found.pods.length) && <tr><td colSpan={5} class="dim">and {many(found.many - Math.min(400, found.pods.length))} more</td></tr>}
      </tbody>
    </table>
  );
}
