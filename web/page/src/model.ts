// What the server tells of a cluster, as the page keeps it; rows that changed are put in place. No drawing, no network.

export type HostRow = (string | number)[];

export interface Grove {
  flavor: string;
  levels: string[];
  tree: Domain[];
}
export type Domain = [string, number | Domain[]];

export interface Sees {
  hosts: boolean;
  queues: boolean;
  all: boolean;
  namespaces: string[];
}

export interface Picture {
  epoch: string;
  version: number;
  at: number;
  cluster: string;
  resource: string;
  sees: Sees;
  groves: Grove[];
  hosts: HostRow[];
  holders: unknown[][];
}

export interface Changes {
  since: number;
  version: number;
  at: number;
  hosts: (number | string)[][];
  holders: unknown[][];
  gone: number[];
}

export interface Holder {
  number: number;
  namespace: string;
  kind: string;
  name: string;
  workload: string;
  queue: string;
  clusterQueue: string;
  priority: number;
  created: number;
  admitted: number;
  count: number;
  running: number;
  wants: number;
  state: string;
  reason: string;
  since: number; // it waits
  key: string;
  title: string;
}

export interface Held {
  holder: number;
  used: number;
  promised: number;
}

export const OUTSIDE = "no flavor"; // what hosts are in that no flavor has
export const READY = 0, NOT_READY = 1, CORDONED = 2;
export const LOST = 1, OVER = 2, CROSSES = 4;

export interface Totals {
  amount: number;
  used: number;
  promised: number;
  free: number;
  out: number;
  waiting: number;
  wanted: number;
  stuck: number;
}

export function holderOf(row: unknown[]): Holder {
  const [number, namespace, kind, name, workload, queue, clusterQueue, priority, created, admitted, count, running, wants, state, reason, since] =
    row as [number, string, string, string, string, string, string, number, number, number, number, number, number, string, string, number];
  const key = workload ? `${namespace}/${workload}` : `${namespace}/${kind}/${name}`;
  return {
    number, namespace, kind, name, workload, queue, clusterQueue, priority, created, admitted, count, running, wants, state, reason, since, key,
    title: `${namespace}/${name}`,
  };
}

/** So many workloads have each a look of their own: colours, and for each of these so many textures. */
export const COLOURS = 10, LOOKS = 60;
/** Reasons that only a person can do something about: nothing that ends or comes makes such a Job fit. */
export const NEVER = new Set(["NeverFits", "ZonesUnknown", "ExceedsQuota", "CohortCycle", "NoQuota", "NoFlavor", "NoNodes", "NoQueue", "QueueRequired", "NamespaceNotSelected", "InvalidRequest", "TooLarge", "UnknownLevel", "ContradictingRequests", "UnknownPriorityClass", "UnsupportedConstraint"]);

export function stuck(one: Holder): boolean {
  return one.state === "waiting" && NEVER.has(one.reason);
}

/** The same number for the same text, whoever asks. */
export function hashed(text: string): number {
  let hash = 2166136261;
  for (let i = 0; i < text.length; i++) hash = Math.imul(hash ^ text.charCodeAt(i), 16777619);
  return (hash ^ (hash >>> 15)) >>> 0;
}

export interface Place {
  grove: number;
  path: string[]; // values of the levels above the host
}

const REMEMBERED = 10_000; // looks of workloads that are gone

/** The look that fewest have, of a colour that fewest have and no neighbour does. */
function freeLook(from: number, taken: number[], beside: number[]): number {
  const colours = new Array<number>(COLOURS).fill(0);
  taken.forEach((count, look) => (colours[look % COLOURS]! += count));
  let best = from, least = Infinity;
  for (let step = 0; step < LOOKS; step++) {
    const look = (from + step) % LOOKS, near = beside.some((one) => one >= 0 && one % COLOURS === look % COLOURS);
    const cost = 1e6 * taken[look]! + 100 * colours[look % COLOURS]! + (near ? 250 : 0) + Math.floor(look / COLOURS);
    if (cost < least) [best, least] = [look, cost];
  }
  return best;
}

/** A cluster as it is now. `version` grows with each change that is taken in. */
export class Cluster {
  readonly hosts: HostRow[];
  readonly holders = new Map<number, Holder>();
  readonly byKey = new Map<string, number>();
  readonly at = new Map<string, number>();
  readonly places: Place[] = [];
  /** A look for each who holds something, by key, other than all others' as far as there are looks: it stays. */
  readonly looks: Map<string, number>; // a tone, times LOOKS, and a look
  version: number;
  time: number;

  /** `before`: the cluster that this is a newer picture of. */
  constructor(readonly picture: Picture, before?: Cluster) {
    this.hosts = [...picture.hosts];
    this.looks = new Map(before?.looks);
    this.version = picture.version;
    this.time = picture.at;
    for (const row of picture.holders) this.keep(holderOf(row));
    this.hosts.forEach((row, index) => this.at.set(row[0] as string, index));
    picture.groves.forEach((grove, number) => this.walk(grove.tree, [], number));
    this.dress();
  }

  private walk(domains: Domain[], above: string[], grove: number): void {
    for (const [value, below] of domains) {
      const path = value === "" && above.length === 0 ? [] : [...above, value];
      if (typeof below === "number") for (let i = 0; i < below; i++) this.places.push({ grove, path });
      else this.walk(below, path, grove);
    }
  }

  private keep(holder: Holder): void {
    this.holders.set(holder.number, holder);
    this.byKey.set(holder.key, holder.number);
  }

  /** Give a look to whoever is new on the map; those of who is gone are free again. */
  private dress(): void {
    const taken = new Array<number>(LOOKS).fill(0);
    const full = this.looks.size > 2 * this.byKey.size + REMEMBERED;
    for (const [key, look] of this.looks)
      if (this.byKey.has(key)) taken[look % LOOKS]! += 1;
      else if (full) this.looks.delete(key); // it may come again: a simulation is looked at back and forth
    let before = -1, last = -1;
    for (const row of this.hosts)
      for (let i = 4; i < row.length; i += 3) {
        const key = this.holders.get(row[i] as number)?.key;
        if (key === undefined) continue;
        let look = this.looks.get(key);
        if (look === undefined) {
          const tone = [0, 1, 2].find((one) => one !== Math.floor(last / LOOKS) && one !== Math.floor(before / LOOKS)) ?? 0;
          const free = freeLook(hashed(key) % LOOKS, taken, [last % LOOKS, before % LOOKS]);
          taken[free]! += 1;
          this.looks.set(key, (look = tone * LOOKS + free));
        }
        if (look !== last) [before, last] = [last, look];
      }
  }

  /** Its look, and its tone where colours say something else. */
  lookOf(one: Holder): { look: number; tone: number } {
    const found = this.looks.get(one.key) ?? hashed(one.key) % LOOKS;
    return { look: found % LOOKS, tone: Math.floor(found / LOOKS) };
  }

  get resource(): string {
    return this.picture.resource;
  }

  /** How people call what is counted. */
  get unit(): string {
    return called(this.resource);
  }

  /** False where these changes are of another version: a whole picture is due. */
  apply(changes: Changes): boolean {
    if (changes.since > this.version) return false;
    for (const [index, ...rest] of changes.hosts) {
      const row = this.hosts[index as number];
      if (row === undefined) return false;
      this.hosts[index as number] = [row[0]!, row[1]!, ...rest];
    }
    for (const number of changes.gone) {
      const gone = this.holders.get(number);
      if (gone && this.byKey.get(gone.key) === number) this.byKey.delete(gone.key);
      this.holders.delete(number);
    }
    for (const row of changes.holders) this.keep(holderOf(row));
    this.dress();
    this.version = changes.version;
    this.time = changes.at;
    return true;
  }

  /** Several flavors may call their domains alike: those are named with their flavor. */
  get several(): boolean {
    return this.picture.groves.length > 1;
  }

  /** The address of a domain on the map. */
  domain(flavor: string, values: string[]): string {
    return [...(this.several ? [flavor || OUTSIDE] : []), ...values].join("/");
  }

  /** The domain that a host is in, as an address. */
  domainOf(host: number): string {
    const place = this.places[host];
    return place ? this.domain(this.picture.groves[place.grove]?.flavor ?? "", place.path) : "";
  }

  /** A workload by any of its names. */
  named(name: string): Holder | undefined {
    const known = this.holder(name);
    if (known) return known;
    const parts = name.split("/"), kind = parts.length === 3 ? parts[1]!.toLowerCase() : "";
    if (parts.length < 2 || parts.length > 3) return undefined;
    for (const one of this.holders.values())
      if (one.namespace === parts[0] && one.name === parts.at(-1) && (!kind || one.kind.toLowerCase() === kind)) return one;
    return undefined;
  }

  namespaces(): string[] {
    return [...new Set([...this.holders.values()].map((one) => one.namespace))].sort();
  }

  holder(key: string): Holder | undefined {
    const number = this.byKey.get(key);
    return number === undefined ? undefined : this.holders.get(number);
  }

  /** `namespace`: who waits there alone; "": all. */
  totals(namespace = ""): Totals {
    const found: Totals = { amount: 0, used: 0, promised: 0, free: 0, out: 0, waiting: 0, wanted: 0, stuck: 0 };
    for (const row of this.hosts) {
      const amount = row[1] as number;
      const { used, promised } = sums(row);
      const left = Math.max(0, amount - used - promised);
      found.amount += amount;
      found.used += used;
      found.promised += promised;
      if (row[2] === READY) found.free += left;
      else found.out += left;
    }
    for (const one of this.holders.values()) {
      if (one.state !== "waiting" || (namespace && one.namespace !== namespace)) continue;
      found.waiting += 1;
      found.wanted += one.wants;
      found.stuck += stuck(one) ? 1 : 0;
    }
    return found;
  }

  /** Of each level above the host: the most that whole free hosts of one domain have together. */
  gangs(): { level: string; amount: number }[] {
    const best: { level: string; amount: number }[] = [];
    let index = 0;
    const idle = (row: HostRow): number => (row[2] === READY && row.length === 4 ? (row[1] as number) : 0);
    const go = (domains: Domain[], rank: number, levels: string[]): number => {
      let all = 0;
      for (const [, below] of domains) {
        let sum = 0;
        if (typeof below === "number") for (let i = 0; i < below; i++) sum += idle(this.hosts[index++]!);
        else sum = go(below, rank + 1, levels);
        const level = levels[rank];
        if (level !== undefined) {
          const known = best.find((one) => one.level === level);
          if (!known) best.push({ level, amount: sum });
          else if (sum > known.amount) known.amount = sum;
        }
        all += sum;
      }
      return all;
    };
    for (const grove of this.picture.groves) go(grove.tree, 0, grove.levels.map(short));
    return best.reverse();
  }
}

export function sums(row: HostRow): { used: number; promised: number } {
  let used = 0, promised = 0;
  for (let i = 4; i < row.length; i += 3) {
    used += row[i + 1] as number;
    promised += row[i + 2] as number;
  }
  return { used, promised };
}

export function heldOf(row: HostRow): Held[] {
  const found: Held[] = [];
  for (let i = 4; i < row.length; i += 3)
    found.push({ holder: row[i] as number, used: row[i + 1] as number, promised: row[i + 2] as number });
  return found;
}

/** The last word of a label key: "rack" of cloud-provider.com/topology-rack. */
export function short(level: string): string {
  const name = level.split("/").at(-1) ?? level;
  return name === "hostname" ? "host" : name.replace(/^topology-/, "");
}

/** A resource as people call it: "GPU" of nvidia.com/gpu. */
export function called(resource: string): string {
  const last = resource.split("/").at(-1) ?? resource;
  return last === "cpu" || last === "gpu" || last === "xpu" ? `${last.toUpperCase()}s` : last;
}

/** "1 GPU", "32 GPUs". */
export function amountText(count: number, unit: string): string {
  return `${many(count)} ${count === 1 && unit.endsWith("s") ? unit.slice(0, -1) : unit}`;
}

export function counted(count: number, one: string, more = `${one}s`): string {
  return `${many(count)} ${count === 1 ? one : more}`;
}

export function stateName(state: number): string {
  return state === NOT_READY ? "not ready" : state === CORDONED ? "cordoned" : "ready";
}

export function age(seconds: number): string {
  const s = Math.max(0, Math.round(seconds));
  if (s < 60) return `${s}s`;
  if (s < 3600) return `${Math.floor(s / 60)}m`;
  if (s < 86400) return `${Math.floor(s / 3600)}h${String(Math.floor((s % 3600) / 60)).padStart(2, "0")}m`;
  return `${Math.floor(s / 86400)}d${Math.floor((s % 86400) / 3600)}h`;
}

/** A moment in the words of ISO 8601, in the time zone of whoever looks. */
export function iso(at: number): { day: string; time: string } {
  const date = new Date((at - new Date(at * 1000).getTimezoneOffset() * 60) * 1000).toISOString();
  return { day: date.slice(0, 10), time: date.slice(11, 16) };
}

/** Time since a beginning: "0", "6h", "1d 12h". */
export function elapsed(seconds: number): string {
  const s = Math.round(seconds), days = Math.floor(s / 86400), hours = Math.floor((s % 86400) / 3600), minutes = Math.floor((s % 3600) / 60);
  const found = [days && `${days}d`, hours && `${hours}h`, !days && minutes && `${minutes}m`].filter(Boolean).join(" ");
  return found || (s ? `${s}s` : "0");
}

const LONGEST_RUN = 1e9; // seconds: what is less is a time since a simulation began

export function exact(at: number): string {
  if (at > 0 && at < LONGEST_RUN) return `${elapsed(at)} after the beginning`;
  return at > 0 ? new Date(at * 1000).toISOString().replace("T", " ").slice(0, 19) + " UTC" : "";
}

export function many(n: number): string {
  return n.toLocaleString("en-US");
}
