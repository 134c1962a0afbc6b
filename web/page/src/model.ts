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
  key: string;
  title: string;
}

export interface Held {
  holder: number;
  used: number;
  promised: number;
}

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
}

export function holderOf(row: unknown[]): Holder {
  const [number, namespace, kind, name, workload, queue, clusterQueue, priority, created, admitted, count, running, wants, state, reason] =
    row as [number, string, string, string, string, string, string, number, number, number, number, number, number, string, string];
  const key = workload ? `${namespace}/${workload}` : `${namespace}/${kind}/${name}`;
  return {
    number, namespace, kind, name, workload, queue, clusterQueue, priority, created, admitted, count, running, wants, state, reason, key,
    title: `${namespace}/${name}`,
  };
}

export const SHADES = 10;

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

/** A cluster as it is now. `version` grows with each change that is taken in. */
export class Cluster {
  readonly hosts: HostRow[];
  readonly holders = new Map<number, Holder>();
  readonly byKey = new Map<string, number>();
  readonly at = new Map<string, number>();
  readonly places: Place[] = [];
  /** A number for each workload that is on the map, other than its neighbours': its colour. It stays. */
  readonly shades = new Map<number, number>();
  version: number;
  time: number;

  constructor(readonly picture: Picture) {
    this.hosts = picture.hosts;
    this.version = picture.version;
    this.time = picture.at;
    for (const row of picture.holders) this.keep(holderOf(row));
    this.hosts.forEach((row, index) => this.at.set(row[0] as string, index));
    picture.groves.forEach((grove, number) => this.walk(grove.tree, [], number));
    this.shade();
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

  private shade(): void {
    let before = -1, last = -1;
    for (const row of this.hosts)
      for (let i = 4; i < row.length; i += 3) {
        const number = row[i] as number;
        let shade = this.shades.get(number);
        if (shade === undefined) {
          shade = hashed(this.holders.get(number)?.key ?? "") % SHADES;
          while (shade === last || shade === before) shade = (shade + 3) % SHADES;
          this.shades.set(number, shade);
        }
        if (shade !== last) [before, last] = [last, shade];
      }
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
    this.shade();
    this.version = changes.version;
    this.time = changes.at;
    return true;
  }

  holder(key: string): Holder | undefined {
    const number = this.byKey.get(key);
    return number === undefined ? undefined : this.holders.get(number);
  }

  totals(): Totals {
    const found: Totals = { amount: 0, used: 0, promised: 0, free: 0, out: 0, waiting: 0, wanted: 0 };
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
      if (one.state !== "waiting") continue;
      found.waiting += 1;
      found.wanted += one.wants;
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
  return name.replace(/^topology-/, "");
}

/** A resource as people call it: "GPU" of nvidia.com/gpu. */
export function called(resource: string): string {
  const last = resource.split("/").at(-1) ?? resource;
  return last === "cpu" || last === "gpu" || last === "xpu" ? `${last.toUpperCase()}s` : last;
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

export function exact(at: number): string {
  return at > 0 ? new Date(at * 1000).toISOString().replace("T", " ").slice(0, 19) + " UTC" : "";
}

export function many(n: number): string {
  return n.toLocaleString("en-US");
}
