// Where the page has its data from: a server that is asked with a token which stays in memory, or the page's own file.
import type { Changes, Picture } from "./model";

export class Refused extends Error {
  constructor(readonly status: number, text: string) {
    super(text);
  }
}

export interface Follower {
  whole: (picture: Picture) => void;
  changes: (changes: Changes) => boolean; // false: a whole picture is due
  heard: (seconds: number) => void;
  state: (state: "connected" | "lost" | "refused", text: string) => void;
}

export interface Source {
  readonly live: boolean; // whether what-if and explanations can be asked
  readonly times: number[]; // moments of a simulation, one after the other; none: it is as it is
  readonly first: number; // the moment that is shown first
  seek(moment: number): void;
  has(what: "queues" | "history" | "hosts"): boolean;
  follow(to: Follower): () => void;
  ask<T>(path: string, query?: Record<string, string>, body?: string): Promise<T>;
}

/** What is different from one moment of a simulation to the next. */
interface Moment {
  changes: Changes;
  workloads: Record<string, Told>; // those of which something is different
}

/** A workload, as far as the devices of a host are concerned. */
interface Told {
  row: unknown[];
  pods: [string, string, number | null, string, boolean, number, boolean, string][];
}

export interface Embedded {
  picture: Picture;
  workloads: Record<string, Told>;
  hosts: Record<string, object>;
  history: unknown;
  queues: unknown;
  film?: { times: number[]; first: number; moments: Moment[] } | null;
}

/** The data in the page's own file; null where it was served. */
export function embedded(): Embedded | null {
  const text = document.getElementById("data")?.textContent;
  return text ? (JSON.parse(text) as Embedded) : null;
}

export class FileSource implements Source {
  readonly live = false;
  readonly times: number[];
  readonly first: number;
  private to: Follower | null = null;
  private at = 0;
  private workloads: Record<string, Told>;

  constructor(private readonly data: Embedded) {
    this.times = data.film?.times ?? [];
    this.first = data.film?.first ?? 0;
    this.workloads = { ...data.workloads };
  }

  has(what: "queues" | "history" | "hosts"): boolean {
    if (what === "hosts") return Object.keys(this.data.hosts).length > 0;
    return this.data[what] !== null;
  }

  follow(to: Follower): () => void {
    this.to = to;
    this.at = 0;
    to.whole(this.data.picture);
    to.state("connected", "");
    return () => (this.to = null);
  }

  /** Show another moment: forward by what is different, backward from the beginning. */
  seek(moment: number): void {
    const film = this.data.film, to = this.to;
    const wanted = Math.max(0, Math.min(this.times.length - 1, moment));
    if (!film || !to || wanted === this.at) return;
    const back = wanted < this.at;
    if (back) {
      this.at = 0;
      this.workloads = { ...this.data.workloads };
      to.whole(this.data.picture);
    }
    while (this.at < wanted) {
      const { workloads, changes } = film.moments[++this.at]!, gone = new Set(changes.gone);
      for (const [key, one] of Object.entries(this.workloads)) if (gone.has(one.row[0] as number)) delete this.workloads[key];
      Object.assign(this.workloads, workloads);
      to.changes(changes);
    }
  }

  /** A host: of a simulation with the pods that are there at the time that is shown. */
  private host(name: string, found: object | null): object | null {
    if (!found || !this.times.length) return found;
    const pods = Object.values(this.workloads).flatMap(({ row, pods }) =>
      pods.filter((one) => one[1] === name).map(([pod, , rank, phase, , amount, crosses, reason]) => ({ name: `${String(row[1])}/${pod}`, holder: row[0], amount, rank, phase, reason, crosses, zones: [] })));
    return { ...found, pods };
  }

  ask<T>(path: string, query: Record<string, string> = {}): Promise<T> {
    const own = <V>(table: Record<string, V>, key: string): V | null => (Object.hasOwn(table, key) ? (table[key] ?? null) : null);
    const found =
      path === "host" ? this.host(query["name"] ?? "", own(this.data.hosts, query["name"] ?? ""))
      : path === "workload" ? own(this.workloads, query["key"] ?? "")
      : path === "queues" ? this.data.queues
      : path === "history" ? this.data.history
      : null;
    return found ? Promise.resolve(found as T) : Promise.reject(new Refused(404, this.times.length ? "it is not there at this time" : "this file does not have that"));
  }
}

const AGAIN = [500, 1000, 2000, 4000, 8000];

export class ServerSource implements Source {
  readonly live = true;
  readonly times: number[] = [];
  readonly first = 0;
  #token: string;

  constructor(token: string) {
    this.#token = token;
  }

  has(): boolean {
    return true;
  }

  seek(): void {
    // what is live is at one time: now
  }

  async ask<T>(path: string, query: Record<string, string> = {}, body?: string): Promise<T> {
    const answer = await this.fetch(path, query, body);
    return (await answer.json()) as T;
  }

  private async fetch(path: string, query: Record<string, string>, body?: string, signal?: AbortSignal): Promise<Response> {
    const search = new URLSearchParams(query).toString();
    const answer = await fetch(`api/${path}${search ? `?${search}` : ""}`, {
      method: body === undefined ? "GET" : "POST",
      headers: { Authorization: `Bearer ${this.#token}` },
      credentials: "omit",
      cache: "no-store",
      redirect: "error",
      ...(body === undefined ? {} : { body }),
      ...(signal ? { signal } : {}),
    });
    if (!answer.ok) throw new Refused(answer.status, (await answer.text()).slice(0, 4000));
    return answer;
  }

  follow(to: Follower): () => void {
    const stop = new AbortController();
    void this.run(to, stop.signal);
    return () => stop.abort();
  }

  private async run(to: Follower, signal: AbortSignal): Promise<void> {
    let failures = 0, epoch = "", version = -1;
    while (!signal.aborted) {
      try {
        if (version < 0) {
          const picture = (await (await this.fetch("picture", {}, undefined, signal)).json()) as Picture;
          epoch = picture.epoch;
          version = picture.version;
          to.whole(picture);
        }
        const answer = await this.fetch("changes", { since: String(version), epoch }, undefined, signal);
        to.state("connected", "");
        for await (const [event, data] of events(answer.body!)) {
          failures = 0;
          if (event === "beat") to.heard((JSON.parse(data) as { heard: number }).heard);
          else if (event === "whole") version = -1;
          else if (event === "changes") {
            const changes = JSON.parse(data) as Changes;
            version = to.changes(changes) ? changes.version : -1;
          }
          if (version < 0) break;
        }
        if (version < 0 && failures === 0) {
          await new Promise((go) => setTimeout(go, AGAIN[1])); // while hosts come and go, a whole picture a second will do
          continue;
        }
      } catch (error) {
        if (signal.aborted) return;
        if (error instanceof Refused && (error.status === 401 || error.status === 403)) {
          to.state("refused", error.message);
          return;
        }
        to.state("lost", error instanceof Refused ? error.message : "the server does not answer");
      }
      const pause = AGAIN[Math.min(failures++, AGAIN.length - 1)]!;
      await new Promise((go) => setTimeout(go, pause * (0.75 + Math.random() / 2)));
    }
  }
}

const LONGEST = 64 * 1024 * 1024;
const SILENT = 35_000; // milliseconds: the server says something every ten seconds

/** Server-sent events of a body, as they come. */
export async function* events(body: ReadableStream<Uint8Array>): AsyncGenerator<[string, string]> {
  const reader = body.getReader(), decoder = new TextDecoder();
  let text = "";
  try {
    for (;;) {
      let timer: ReturnType<typeof setTimeout> | undefined;
      const silence = new Promise<never>((_, fail) => (timer = setTimeout(() => fail(new Error("silent")), SILENT)));
      const { done, value } = await Promise.race([reader.read(), silence]).finally(() => clearTimeout(timer));
      if (done) return;
      text += decoder.decode(value, { stream: true });
      if (text.length > LONGEST) throw new Error("too long");
      for (let end = text.indexOf("\n\n"); end >= 0; end = text.indexOf("\n\n")) {
        const lines = text.slice(0, end).split("\n");
        text = text.slice(end + 2);
        const of = (name: string): string => lines.find((line) => line.startsWith(name))?.slice(name.length) ?? "";
        yield [of("event: "), of("data: ")];
      }
    }
  } finally {
    void reader.cancel().catch(() => undefined);
  }
}
