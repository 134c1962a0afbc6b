// One workload: in words first what it asked for, where it is, and, while it waits, why and what would help; then its way
// from creation to running, its events and its pods.
import type { JSX } from "preact";
import { useEffect, useMemo } from "preact/hooks";
import { age, amountText, counted, exact, holderOf, many, called, short, type Cluster, type Holder } from "./model";
import { InMap, Name, Named, Text, Waits, When, useAsked } from "./parts";
import { link } from "./route";
import type { Source } from "./source";

type PodRow = [string, string, number | null, string, boolean, number, boolean, string];

/** Name, pods, amount of each, policy, level. */
type Asked = [string, number, number, string, string];

interface Detail {
  row: unknown[];
  message: string;
  asked: Asked[];
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
    options: { flavors: string[]; lender: string; level: number; quotas: { flavor: string; resource: string; wanted: string; free: string; lacking: string; used: string; nominal: string; most: string; never: boolean }[] }[];
    no_option: string;
    victims: { workload: string; priority: number | null; gone: boolean }[];
    history: string[];
  };
  room: Room[];
  relief: Relief | null;
  growth: null | { text: string; pods: number; room: Room[]; relief: Relief | null };
}

const MOST_NODES = 8;

interface Props {
  source: Source;
  cluster: Cluster;
  name: string;
  version: number;
  now: number;
  view: "map" | "workloads";
  close: () => void;
  told: (ranks: Map<number, number[]> | null) => void;
}

export function WorkloadDrawer({ source, cluster, name, version, now, view, close, told }: Props): JSX.Element {
  const { found, error } = useAsked<Detail>(source, "workload", { key: name }, version, source.live ? 2000 : 0);
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
  const hosts = found ? hostsOf(found, cluster) : [];
  const nodes = found ? [...new Set(found.pods.map((one) => one[1]).filter(Boolean))] : []; // for who may not see the hosts
  return (
    <aside class="drawer" aria-label={`Workload ${holder?.title ?? name}`} tabIndex={0}>
      <header>
        <h2><Name text={holder ? holder.name : name}>{holder ? holder.name : name}</Name></h2>
        <p class="dim">
          {holder ? `${holder.kind} in namespace ${holder.namespace}` : ""}
          {holder && view === "map" && <> · <a href={link("workloads", { workload: name })}>show in the list</a></>}
          {holder && view === "workloads" && hosts.length > 0 && <> · <a href={link("map", { workload: name, at: commonDomain(hosts, cluster) })}>show on the map</a></>}
        </p>
        <button type="button" class="close" onClick={close} aria-label="Close">×</button>
      </header>
      {!found || !holder ? <Waits what="Reading the workload" error={error} /> : (
        <>
          <p class={`lead ${holder.state}`}><Lead holder={holder} now={now} /></p>
          <dl class="facts">
            {found.asked.length > 0 && <><dt>Asked for</dt><dd>{found.asked.map((one) => <div key={one[0]}>{found.asked.length > 1 && `${one[0]}: `}{askedText(one, cluster.unit)}</div>)}</dd></>}
            {hosts.length > 0 && <><dt>Placed in</dt><dd><Places hosts={hosts} cluster={cluster} workload={name} /></dd></>}
            {!hosts.length && nodes.length > 0 && <><dt>Placed on</dt><dd>{nodes.slice(0, MOST_NODES).join(", ")}{nodes.length > MOST_NODES && ` and ${counted(nodes.length - MOST_NODES, "more node")}`}</dd></>}
          </dl>
          {holder.state === "waiting" && <Why source={source} cluster={cluster} name={name} found={found} now={now} />}
          <dl class="facts">
            <dt>Holds</dt><dd>{holder.state === "waiting" || holder.state === "inactive" ? `nothing; asks for ${amountText(holder.wants, cluster.unit)}` : amountText(holder.wants, cluster.unit)}</dd>
            {holder.workload && <><dt>Queue</dt><dd>{holder.clusterQueue || holder.queue ? <a href={link("queues", { queue: holder.clusterQueue })}>{holder.clusterQueue || holder.queue}</a> : "none"}, priority {holder.priority}</dd>
            <dt>Created</dt><dd><When at={holder.created} now={now} /></dd></>}
            {source.live && holder.workload && <><dt>Command</dt><dd class="command"><Name text={`${explainCommand(holder)} -n ${holder.namespace}`}><code>{explainCommand(holder)} <span>-n</span> {holder.namespace}</code></Name></dd></>}
          </dl>
          {source.live && holder.workload && (holder.state === "running" || holder.state === "starting") && <Growth source={source} cluster={cluster} name={name} now={now} />}
          {holder.workload && <Way found={found} cluster={cluster} created={holder.created} state={holder.state} now={now} />}
          {source.live && <Events source={source} cluster={cluster} name={name} now={now} told={found.steps.map((one) => one[4])} />}
          <Pods found={found} unit={cluster.unit} />
        </>
      )}
    </aside>
  );
}

/** How it is with it, in one sentence. */
function Lead({ holder, now }: { holder: Holder; now: number }): JSX.Element {
  const { state, running, count } = holder;
  const pods = `${many(running)} of ${counted(count, "pod")}`, since = holder.admitted > 0 ? ` for ${age(now - holder.admitted)}` : "";
  if (state === "waiting") return <><b>Waits</b>{holder.since > 0 && ` for ${age(now - holder.since)}`}: <b>{holder.reason}</b></>;
  if (state === "inactive") return <><b>Inactive</b>: spec.active of its Workload is false</>;
  if (state === "foreign") return <><b>Runs</b>, not placed by Topogate: {counted(count, "pod")}</>;
  return state === "starting" ? <><b>Starting</b>{since}: {pods} run</> : <><b>Running</b>{since}: {pods}</>;
}

function askedText([, count, amount, policy, level]: Asked, unit: string): string {
  const what = `${counted(count, "pod")}${amount ? `, ${amountText(amount, unit)} each` : ""}`, where = level === "kubernetes.io/hostname" ? "on one host" : `in one ${short(level)}`;
  if (policy === "Required") return `${what}, all ${where} (required)`;
  if (policy === "Preferred") return `${what}, ${where} if possible (preferred)`;
  return policy === "Unconstrained" ? `${what}, anywhere (unconstrained)` : what;
}

/** The command line that says the same, without the namespace. */
function explainCommand(one: Holder): string {
  return `kubectl topogate explain ${one.kind === "Job" ? "" : `${one.kind.toLowerCase()}/`}${one.name}`;
}

/** The hosts that it has pods or promises on. */
function hostsOf(found: Detail, cluster: Cluster): number[] {
  const names = [...found.pods.map((one) => one[1]), ...found.slots.map((one) => one[0])];
  return [...new Set(names.flatMap((one) => cluster.at.get(one) ?? []))].sort((a, b) => a - b);
}

/** The narrowest domain that all of these are in, as an address. */
function commonDomain(hosts: number[], cluster: Cluster): string | undefined {
  const paths = hosts.map((one) => cluster.domainOf(one).split("/"));
  const common = paths.reduce((found, one) => found.slice(0, found.findIndex((value, at) => value !== one[at]) >>> 0));
  return common.join("/") || undefined;
}

const MOST_DOMAINS = 6;

function Places({ hosts, cluster, workload }: { hosts: number[]; cluster: Cluster; workload: string }): JSX.Element {
  const domains = new Map<string, number>();
  for (const host of hosts) domains.set(cluster.domainOf(host), (domains.get(cluster.domainOf(host)) ?? 0) + 1);
  const level = short(cluster.picture.groves[cluster.places[hosts[0]!]?.grove ?? 0]?.levels[(cluster.places[hosts[0]!]?.path.length ?? 1) - 1] ?? "domain");
  const shown = [...domains].slice(0, MOST_DOMAINS);
  return (
    <>
      {domains.size > 1 && `${many(domains.size)} ${level}s: `}
      {shown.map(([path, count], at) => <span key={path}>{at > 0 && ", "}<a href={link("map", { workload, at: path })}>{path.split("/").join(" / ") || "no domain"}</a>{domains.size > 1 && ` (${count})`}</span>)}
      {domains.size > shown.length && ` and ${domains.size - shown.length} more`}, on {counted(hosts.length, "host")}
    </>
  );
}

const WORDS: Record<string, string> = { QuotaReserved: "Reserved", Admitted: "Admitted", Ungated: "Pods ungated", PodsReady: "Pods ready", Evicted: "Evicted", Preempted: "Preempted", Requeued: "Requeued" };

const ORDER = ["Created", ...Object.values(WORDS)]; // of what happened in the same second

const STARTING = new Set(["", "WaitForStart", "PodsNotReady", "Suspended"]); // of PodsReady, where pods are just not all ready

/** Its way on a time line. */
function Way({ found, cluster, created, state, now }: { found: Detail; cluster: Cluster; created: number; state: string; now: number }): JSX.Element {
  const same = new Set(found.steps.filter((one) => one[0] === "Preempted" && one[1]).map((one) => one[4])); // Evicted says so too
  const steps = [{ name: "Created", at: created, reason: "", message: "" }, ...found.steps.filter((one) => one[1] && !(one[0] === "Evicted" && same.has(one[4]))).map(([name, , at, reason, message]) => ({ name: WORDS[name] ?? name, at, reason, message }))]
    .filter((one) => one.at > 0)
    .sort((a, b) => a.at - b.at || ORDER.indexOf(a.name) - ORDER.indexOf(b.name));
  const hangs = found.steps.find(([name, is, , reason]) => name === "PodsReady" && !is && !STARTING.has(reason));
  return (
    <section aria-label="Timeline">
      <h3>Timeline</h3>
      <ol class="way">
        {steps.map((one, at) => (
          <li key={one.name} class={one.name === "Evicted" || one.name === "Preempted" ? "bad" : "done"}>
            <b>{one.name}</b> <time title={exact(one.at)} class="dim">{age(now - one.at)} ago{at > 0 && `, after ${age(one.at - steps[at - 1]!.at)}`}</time>
            {one.name === WORDS.Ungated && one.message && <div class="small">{one.message}</div>}
            {(one.name === "Evicted" || one.name === "Preempted") && <div class="small"><Text text={one.message || one.reason} cluster={cluster} /></div>}
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
function Events({ source, cluster, name, now, told }: { source: Source; cluster: Cluster; name: string; now: number; told: string[] }): JSX.Element {
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
              {!told.includes(note) && <div class="small" title={reporter}><Text text={note} cluster={cluster} /></div>}
            </li>
          ))}
        </ol>
      )}
      {!found.rows.length && !found.why && <p class="dim">None is kept. A cluster forgets events after an hour, unless it is told otherwise.</p>}
      {found.why && <p class="dim">{found.why[0]!.toUpperCase() + found.why.slice(1)}.</p>}
    </section>
  );
}

function Why({ source, cluster, name, found: stored, now }: { source: Source; cluster: Cluster; name: string; found: Detail; now: number }): JSX.Element {
  const told = new Set(stored.steps.map((one) => one[4])); // the timeline has it
  const { found, error } = useAsked<Explained>(source, source.live ? "explain" : "", { key: name }, Math.floor(now / 30), 15_000);
  return (
    <section aria-label="Why it waits" class="why">
      <p><Text text={found?.message || stored.message || "The controller has not looked at it yet."} cluster={cluster} /></p>
      {!source.live ? null : !found ? <Waits what="Asking what would help" error={error} /> : (
        <>
          {found.queue?.position != null && <p>It is number {found.queue.position} of {found.queue.waiting} in queue {found.queue.cluster_queue}.</p>}
          {found.queue?.no_option && <p class="wrong">No flavor of the queue can be given: <Text text={found.queue.no_option} cluster={cluster} /></p>}
          <Victims queue={found.queue} cluster={cluster} />
          {found.relief && <ReliefText relief={found.relief} cluster={cluster} only={found.room.length === 1} />}
          {found.queue && found.queue.options.length > 0 && <Quotas options={found.queue.options} />}
          <RoomTable room={found.room} cluster={cluster} count={found.relief?.count ?? stored.asked.reduce((sum, one) => sum + one[1], 0)} />
          {found.queue?.history.filter((one) => ![...told].some((text) => text && one.includes(text))).map((one) => <p key={one} class="small dim"><Text text={one} cluster={cluster} /></p>)}
        </>
      )}
    </section>
  );
}

/** What an admitted one lacks that wants more pods, and who makes room for them. */
function Growth({ source, cluster, name, now }: { source: Source; cluster: Cluster; name: string; now: number }): JSX.Element | null {
  const { found } = useAsked<Explained>(source, "explain", { key: name }, Math.floor(now / 30), 15_000);
  if (!found || (!found.growth && !found.queue?.victims.length)) return null;
  return (
    <section aria-label="Growth">
      <h3>Growth</h3>
      <Victims queue={found.queue} cluster={cluster} />
      {found.growth && (
        <>
          <p><Text text={found.growth.text} cluster={cluster} /></p>
          {found.growth.relief && <ReliefText relief={found.growth.relief} cluster={cluster} only={found.growth.room.length === 1} />}
          <RoomTable room={found.growth.room} cluster={cluster} count={found.growth.pods || undefined} />
        </>
      )}
    </section>
  );
}

function Victims({ queue, cluster }: { queue: Explained["queue"]; cluster: Cluster }): JSX.Element | null {
  if (!queue?.victims.length) return null;
  return <p>What it gets is kept for it until these have made room: {queue.victims.map((one, at) => <span key={at}>{at > 0 && ", "}{one.workload ? <Named name={one.workload.replace(/^pod /, "")} text={one.workload} cluster={cluster} /> : "somebody else's"}</span>)}.</p>;
}

function Quotas({ options }: { options: NonNullable<Explained["queue"]>["options"] }): JSX.Element {
  return (
    <table>
      <caption>Quota</caption>
      <thead><tr><th scope="col">Flavor</th><th scope="col">Resource</th><th scope="col" class="n">Wants</th><th scope="col" class="n">Free</th><th scope="col" class="n">Lacks</th></tr></thead>
      <tbody>
        {options.flatMap((option, at) => option.quotas.map((one) => (
          <tr key={`${at}${one.flavor}${one.resource}`}>
            <td>{one.flavor}{option.lender && <span class="dim">, borrowing from cohort {option.lender}</span>}</td><td>{one.resource}</td><td class="n">{one.wanted}</td><td class="n">{one.free}</td>
            <td class="n">{one.lacking === "0" ? "" : <b>{one.lacking}{one.never && " (never)"}</b>}</td>
          </tr>
        )))}
      </tbody>
    </table>
  );
}

const MOST_ROOMS = 12;

/** How near each domain comes, the nearest first; which flavor it is of, where there are several. */
export function RoomTable({ room, cluster, count }: { room: Room[]; cluster: Cluster; count?: number | undefined }): JSX.Element | null {
  if (!room.length) return null;
  const flavors = [...new Set(room.map((one) => one.flavor))], several = flavors.length > 1;
  const sorted = [...room].sort((a, b) => b.fits - a.fits);
  return (
    <div class="scroll-x" tabIndex={0} role="region" aria-label="How many pods fit">
    <table>
      <caption>How many pods fit now, in {counted(room.length, "domain")}{several && `: ${flavors.map((one) => `${room.filter((each) => each.flavor === one).length} of ${one}`).join(", ")}`}</caption>
      <thead><tr>{several && <th scope="col">Flavor</th>}<th scope="col">Domain</th><th scope="col" class="n">Fits{count ? ` of ${count}` : ""}</th><th scope="col">Limited by</th><th scope="col">Short of</th></tr></thead>
      <tbody>
        {sorted.slice(0, MOST_ROOMS).map((one) => (
          <tr key={`${one.flavor}/${one.values.join("/")}`}>
            {several && <td>{one.flavor}</td>}
            <th scope="row"><InMap cluster={cluster} flavor={one.flavor} values={one.values} /></th>
            <td class="n">{one.fits}</td><td>{called(one.limit)}{one.refusal && `: ${one.refusal}`}</td>
            <td>{Object.entries(one.missing).map(([name, amount]) => `${amount} ${called(name)}`).join(", ")}</td>
          </tr>
        ))}
        {sorted.length > MOST_ROOMS && <tr><td colSpan={several ? 5 : 4} class="dim">and {counted(sorted.length - MOST_ROOMS, "more domain")}</td></tr>}
      </tbody>
    </table>
    </div>
  );
}

/** ``only``: a table says of the one domain what it lacks. */
export function ReliefText({ relief, cluster, only }: { relief: Relief; cluster: Cluster; only?: boolean }): JSX.Element {
  const lacks = Object.entries(relief.missing).map(([name, amount]) => `${amount} ${called(name)}`).join(", ");
  return (
    <div class="relief">
      <h3>What would help</h3>
      {!only && relief.fits > 0 && <p>Closest: <b>{relief.domain.join(" / ")}</b> has room for {Math.min(relief.fits, relief.count)} of {pods(relief.count)}{lacks && `, and lacks ${lacks} for the rest`}.</p>}
      {relief.enough.length > 0 && <p>It would fit{relief.enoughIn.length > 0 && <> in <b>{relief.enoughIn.join(" / ")}</b></>} if {relief.enough.length > 1 ? "these were" : "this one was"} gone: <Holders found={relief.enough} cluster={cluster} />.</p>}
      {relief.preemption && <p class="dim"><Text text={`${relief.preemption[0]!.toUpperCase()}${relief.preemption.slice(1)}.`} cluster={cluster} /></p>}
    </div>
  );
}

function Holders({ found, cluster }: { found: View[]; cluster: Cluster }): JSX.Element {
  return (
    <>
      {found.slice(0, 8).map((one, at) => (
        <span key={`${one.namespace}/${one.name}/${at}`}>{at > 0 && "; "}{one.workload ? <Named name={one.workload} text={one.namespace ? `${one.namespace}/${one.name}` : one.name} cluster={cluster} /> : one.namespace ? `${one.namespace}/${one.name}` : one.name} ({pods(one.pods)}, priority {one.priority})</span>
      ))}
      {found.length > 8 && `; and ${found.length - 8} more`}
    </>
  );
}

function pods(count: number): string {
  return `${many(count)} ${count === 1 ? "pod" : "pods"}`;
}

function Pods({ found, unit }: { found: Detail; unit: string }): JSX.Element | null {
  if (!found.pods.length) return null;
  const ranked = found.pods.some((one) => one[2] !== null), shown = found.pods.slice(0, 400);
  return (
    <table class="pods">
      <caption>{ranked ? "Pods by rank" : "Pods"}</caption>
      <thead><tr>{ranked && <th scope="col">Rank</th>}<th scope="col">Pod</th><th scope="col">Host</th><th scope="col" class="n">{unit}</th><th scope="col">Phase</th></tr></thead>
      <tbody>
        {shown.map(([name, node, rank, phase, gated, amount, crosses, reason]) => (
          <tr key={name}>
            {ranked && <td>{rank ?? ""}</td>}<td>{name}</td><td>{node ? <a href={link("map", { host: node })}>{node}</a> : ""}</td><td class="n">{amount}</td>
            <td>{gated ? "gated" : reason ? <span class="wrong">{reason}</span> : phase}{crosses && <b class="wrong"> crosses sockets</b>}</td>
          </tr>
        ))}
        {found.many > shown.length && <tr><td colSpan={5} class="dim">and {many(found.many - shown.length)} more</td></tr>}
      </tbody>
    </table>
  );
}
