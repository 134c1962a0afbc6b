// The page: one line of facts, five views, and what is open beside them.
import { render, type JSX } from "preact";
import { useCallback, useEffect, useMemo, useRef, useState } from "preact/hooks";
import { History } from "./history";
import { Login } from "./login";
import { Machine } from "./machine";
import { MapView } from "./map";
import { age, amountText, Cluster, many } from "./model";
import { useNow, useTheme } from "./parts";
import { Queues } from "./queues";
import { go, link, useRoute, type View } from "./route";
import { Search } from "./search";
import { Slider } from "./slider";
import { FileSource, ServerSource, embedded, type Source } from "./source";
import { WhatIf } from "./whatif";
import { WorkloadDrawer } from "./workload";
import { Workloads } from "./workloads";
import "uplot/dist/uPlot.min.css";
import "./page.css";

type Link = { state: "connected" | "lost" | "refused"; text: string; since: number };
const LABELS: Record<View, string> = { map: "Map", queues: "Queues", workloads: "Workloads", history: "History", whatif: "What if" };
const NO_RANKS: Map<number, number[]> | null = null;
const STALE = 90; // seconds of silence of the API server, which says something every minute

function App({ source, refused }: { source: Source; refused: (text: string) => void }): JSX.Element {
  const cluster = useRef<Cluster | null>(null);
  const [version, bump] = useState(0), [connection, connect] = useState<Link>({ state: "connected", text: "", since: 0 });
  const ahead = useRef(0); // how far the server's clock is ahead of this one
  const [silent, hear] = useState(0), [ranks, setRanks] = useState(NO_RANKS);
  const theme = useTheme(), now = useNow(), route = useRoute();
  useEffect(() => source.follow({
    whole: (picture) => { ahead.current = picture.at - Date.now() / 1000; cluster.current = new Cluster(picture, cluster.current ?? undefined); bump((one) => one + 1); },
    changes: (changes) => { const good = cluster.current?.apply(changes) ?? false; bump((one) => one + 1); return good; },
    heard: hear,
    state: (state, text) => {
      if (state === "refused") refused(text);
      connect((old) => (old.state === state && old.text === text ? old : { state, text, since: old.state === state ? old.since : Date.now() / 1000 }));
    },
  }), [source]);
  const set = useCallback((query: Record<string, string | undefined>, replace = false) => {
    const here = location.hash.split("?")[1] ?? "";
    go(route.view, { ...Object.fromEntries(new URLSearchParams(here)), ...query }, replace);
  }, [route.view]);
  useEffect(() => source.seek(Number(route.query["t"] ?? source.first)), [source, route.query["t"]]);
  const known = cluster.current, name = known?.picture.cluster ?? "";
  useEffect(() => void (document.title = name ? `${name} · Topogate` : "Topogate"), [name]);
  if (!known) return <main class="login"><p class="state" role="status">{connection.state === "lost" ? `${connection.text}; trying again …` : "Reading the cluster …"}</p></main>;
  const lost = connection.state !== "connected", stale = lost || silent > STALE;
  // What a file shows is as old as the file; what is live is as old as its last word.
  const clock = source.live ? now + ahead.current : known.time;
  const { view, query } = route;
  const views = (Object.keys(LABELS) as View[]).filter((one) => shows(one, source, known));
  const shown = views.includes(view) ? view : views[0]!;
  const ns = query["ns"] ?? "", namespaces = known.namespaces();
  return (
    <div class={`app${stale ? " stale" : ""} on-${shown}`}>
      <a class="skip" href="#main" onClick={(event) => { event.preventDefault(); document.getElementById("main")?.focus(); }}>To the content</a>
      <header class="top">
        <h1>Topogate{name && <span class="cluster" title={`Cluster ${name}`}>{name}</span>}</h1>
        <nav aria-label="Views">
          {views.map((one) => <a key={one} href={link(one, one === shown ? query : {})} aria-current={one === shown ? "page" : undefined}>{LABELS[one]}</a>)}
        </nav>
        {namespaces.length > 1 && (
          <label class="pick">
            <span class="hidden">Namespace</span>
            <select value={ns} onChange={(event) => set({ ns: event.currentTarget.value || undefined })}>
              <option value="">All namespaces</option>
              {[...new Set([...namespaces, ...(ns ? [ns] : [])])].map((one) => <option value={one} key={one}>{one}</option>)}
            </select>
          </label>
        )}
        <Search cluster={known} version={version} colour={query["colour"]} />
      </header>
      {(lost || silent > STALE) && (
        <p class="banner" role="alert">
          {lost ? `Connection lost ${age(now - connection.since)} ago: ${connection.text}. ` : `The API server has said nothing for ${age(silent)}. `}
          This picture is {age(clock - known.time)} old; trying again.
        </p>
      )}
      {known.picture.sees.hosts && <Facts cluster={known} version={version} ns={ns} />}
      {source.times.length > 1 && <Slider times={source.times} at={known.version} set={set} />}
      <div class="body">
      <main id="main" tabIndex={-1}>
        {shown === "map" && (known.hosts.length ? <MapView cluster={known} version={version} theme={theme} now={clock} query={query} ranks={ranks} set={set} /> : <p class="state">No node has any {known.resource}.</p>)}
        {shown === "queues" && <Queues source={source} cluster={known} version={version} query={query} />}
        {shown === "workloads" && <Workloads cluster={known} version={version} now={clock} query={query} set={set} />}
        {shown === "history" && <History source={source} cluster={known} now={now} theme={theme} />}
        {shown === "whatif" && <WhatIf source={source} cluster={known} />}
      </main>
      {(shown === "map" || shown === "workloads") && query["workload"] && (
        <WorkloadDrawer key={query["workload"]} source={source} cluster={known} name={query["workload"]} version={version} now={clock} view={shown} close={() => set({ workload: undefined })} told={setRanks} />
      )}
      {shown === "map" && query["host"] && !query["workload"] && source.has("hosts") && (
        <Machine key={query["host"]} source={source} cluster={known} name={query["host"]} version={version} theme={theme} close={() => set({ host: undefined })} />
      )}
      </div>
    </div>
  );
}

/** A view stands in the page only where it has something to show. */
function shows(view: View, source: Source, cluster: Cluster): boolean {
  const { hosts } = cluster.picture.sees;
  if (view === "map") return hosts;
  if (view === "history") return hosts && source.has("history");
  if (view === "whatif") return hosts && source.live;
  if (view === "queues") return source.has("queues");
  return true;
}

/** The cluster in one line of plain words. */
function Facts({ cluster, version, ns }: { cluster: Cluster; version: number; ns: string }): JSX.Element {
  const totals = useMemo(() => cluster.totals(ns), [cluster, version, ns]);
  const gangs = useMemo(() => cluster.gangs().filter((one) => one.amount > 0), [cluster, version]);
  const { unit } = cluster, { waiting } = totals;
  return (
    <section class="line" aria-label="Facts">
      <span><b>{many(totals.used)}</b> of {amountText(totals.amount, unit)} used</span>
      {totals.promised > 0 && <span title="Kept for pods that do not run yet"><b>{many(totals.promised)}</b> reserved</span>}
      <span><b>{many(totals.free)}</b> free</span>
      {totals.out > 0 && <span title="On hosts that are not ready or cordoned"><b>{many(totals.out)}</b> out of service</span>}
      <a href={link("workloads", { state: "waiting", sort: "since" })}>
        {waiting === 0 ? "no job waits" : <><b>{many(waiting)}</b> {waiting === 1 ? "job waits" : "jobs wait"}{totals.wanted > 0 && ` for ${amountText(totals.wanted, unit)}`}</>}{ns && ` in ${ns}`}
      </a>
      {totals.stuck > 0 && <a class="bad" href={link("workloads", { state: "waiting", stuck: "yes" })}><b>{many(totals.stuck)}</b> of {waiting === 1 ? "it" : "them"} can never start</a>}
      <span title="The most that hosts which are wholly free have together in one domain">
        {gangs.length ? <>room for a job of {gangs.map((one, at) => <span key={one.level}>{at > 0 && " or "}<b>{amountText(one.amount, unit)}</b> in one {one.level}</span>)}</> : "no host is wholly free"}
      </span>
    </section>
  );
}

function Door(): JSX.Element {
  const file = useMemo(() => embedded(), []);
  const [token, setToken] = useState(takeKey), [error, setError] = useState(""), [keyed, setKeyed] = useState(false);
  useEffect(() => {
    if (!file) fetch("api/login").then((answer) => answer.json()).then((found: { keyed: boolean }) => setKeyed(found.keyed), () => undefined);
  }, []);
  const source = useMemo((): Source | null => (file ? new FileSource(file) : token ? new ServerSource(token) : null), [file, token]);
  if (!source) return <Login keyed={keyed} error={error} enter={(given) => { setError(""); setToken(given); }} />;
  return <App source={source} refused={(text) => { setError(text); setToken(""); }} />;
}

/** The key of a process at one's own machine stands behind the #, which no server is sent; it is taken out at once. */
function takeKey(): string {
  const found = /^#key=([\w-]+)$/.exec(location.hash);
  if (!found) return "";
  history.replaceState(null, "", location.pathname + "#/");
  return found[1]!;
}

render(<Door />, document.getElementById("page")!);
