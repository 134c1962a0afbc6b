// The first view: the cluster as a map that one zooms into, and the same as a table.
import type { JSX, RefObject } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { MODES, WRONG, queuesOf, type Mode, type Theme } from "./colours";
import { arrange, frameAt, hostAt, squeezed, type Scene } from "./layout";
import { Legend } from "./legend";
import { NOT_READY, OUTSIDE, READY, age, amountText, counted, heldOf, many, short, stateName, stuck, sums, type Cluster } from "./model";
import { paint, patterns, rangesOf, type Look, type View } from "./painter";
import { link } from "./route";

export type SetQuery = (query: Record<string, string | undefined>, replace?: boolean) => void;

interface Props {
  cluster: Cluster;
  version: number;
  theme: Theme;
  now: number;
  query: Record<string, string>;
  ranks: Map<number, number[]> | null;
  set: SetQuery;
}

/** What the buttons beside the map do with it. */
interface Controls {
  zoom: (factor: number) => void;
  all: () => void;
}

const MOST_OF_VIEW = 0.6; // that one host fills: more zoom shows nothing more
const MARGIN = 20; // pixels of the page beside the map

export function MapView(props: Props): JSX.Element {
  const { cluster, query, set, theme, version } = props;
  const mode = MODES.find((one) => one.mode === query["colour"])?.mode ?? "occupancy";
  const table = query["as"] === "table";
  const controls = useRef<Controls | null>(null);
  const [where, see] = useState<string | null>(null); // which part of the map is in view, null: all of it
  return (
    <section class="map" aria-label="Map">
      <div class="toolbar">
        <label class="pick">
          Colour
          <select value={mode} onChange={(event) => set({ colour: event.currentTarget.value, queue: undefined })}>
            {MODES.map((one) => <option value={one.mode} key={one.mode}>{one.label}</option>)}
          </select>
        </label>
        {mode === "problem" && <Problems cluster={cluster} version={version} />}
        <Legend cluster={cluster} mode={mode} theme={theme} version={version} query={query} set={set} />
        {!table && (
          <div class="zoom" role="group" aria-label="Zoom">
            {where !== null && <span class="where" role="status">{where || "zoomed in"}</span>}
            <button type="button" onClick={() => controls.current?.zoom(1.6)} aria-label="Zoom in">+</button>
            <button type="button" onClick={() => controls.current?.zoom(1 / 1.6)} aria-label="Zoom out" disabled={where === null}>−</button>
            <button type="button" onClick={() => controls.current?.all()} disabled={where === null}>Show all</button>
          </div>
        )}
        <button type="button" class="plain" aria-pressed={table} onClick={() => set({ as: table ? undefined : "table" })}>{table ? "Map" : "Table"}</button>
      </div>
      {table ? <MapTable cluster={cluster} version={version} set={set} /> : <Canvas {...props} mode={mode} controls={controls} see={see} />}
    </section>
  );
}

/** What is wrong, in words; that nothing is, too. */
function Problems({ cluster, version }: { cluster: Cluster; version: number }): JSX.Element {
  const found = useMemo(() => {
    const hosts = WRONG.map((one) => ({ ...one, count: cluster.hosts.reduce((sum, row) => sum + ((row[3] as number) & one.bit ? 1 : 0), 0) })).filter((one) => one.count);
    const idle = cluster.hosts.reduce((sum, row) => sum + (row[2] === NOT_READY && !row[3] ? 1 : 0), 0);
    return { hosts, idle, jobs: [...cluster.holders.values()].filter(stuck).length };
  }, [cluster, version]);
  if (!found.hosts.length && !found.idle && !found.jobs) return <p class="good" role="status">No problems: every host is in order, and every job that waits can fit.</p>;
  return (
    <ul class="problems" aria-label="Problems">
      {found.hosts.map((one) => <li class="bad" key={one.bit}><b>{many(one.count)}</b> {one.count === 1 ? one.one : one.more}</li>)}
      {found.idle > 0 && <li class="bad">{counted(found.idle, "host is", "hosts are")} not ready</li>}
      {found.jobs > 0 && <li><a class="bad" href={link("workloads", { state: "waiting", stuck: "yes" })}><b>{many(found.jobs)}</b> {found.jobs === 1 ? "job waits that can" : "jobs wait that can"} never start as {found.jobs === 1 ? "it is" : "they are"}</a></li>}
    </ul>
  );
}

function Canvas({ cluster, version, theme, now, query, ranks, set, mode, controls, see }: Props & { mode: Mode; controls: RefObject<Controls | null>; see: (where: string | null) => void }): JSX.Element {
  const box = useRef<HTMLDivElement>(null), canvas = useRef<HTMLCanvasElement>(null);
  const view = useRef<View>({ scale: 1, x: 0, y: 0 });
  const frame = useRef(0), before = useRef(0);
  const [size, setSize] = useState({ width: 0, height: 0, whole: 0 });
  const [hover, setHover] = useState<{ host: number; x: number; y: number } | null>(null);
  const [said, say] = useState("");
  const ratio = Math.min(3, devicePixelRatio || 1);
  const arranged = useMemo(() => (size.width ? arrange(cluster.picture.groves, cluster.hosts, size.whole, size.height) : null), [cluster.picture, size.whole, size.height]);
  const scene = useMemo(() => arranged && squeezed(arranged, size.width), [arranged, size.width]);
  const hatch = useMemo(() => patterns((w, h) => Object.assign(document.createElement("canvas"), { width: w, height: h }), ratio), [ratio]);
  const chosen = cluster.at.get(query["host"] ?? "") ?? -1;
  const look = useMemo((): Look => {
    const queues = new Map(queuesOf(cluster).map((name, at) => [name, at]));
    return { mode, theme, now, queues, lit: litOf(cluster, query), ranks, hover: -1, chosen, free: freeOf(cluster) };
  }, [cluster, version, mode, theme, query["workload"], query["queue"], query["ns"], ranks, chosen, Math.floor(now / 60)]);
  const focus = useRef(-1);

  const draw = (): void => {
    cancelAnimationFrame(frame.current);
    frame.current = requestAnimationFrame(() => {
      const ctx = canvas.current?.getContext("2d", { alpha: false });
      if (!ctx || !scene) return;
      const began = performance.now();
      paint(ctx, scene, cluster, view.current, { ...look, hover: hover?.host ?? focus.current }, size, ratio, hatch);
      performance.clearMeasures("paint"); // for whoever measures: the last one, and of which version
      performance.measure("paint", { start: began, detail: cluster.version });
      const v = view.current, middle = v.scale > 1.02 ? frameAt(scene, (size.width / 2 - v.x) / v.scale, (size.height / 2 - v.y) / v.scale) : null;
      see(v.scale > 1.02 ? (middle?.path.split("/").join(" / ") ?? "") : null);
    });
  };

  useEffect(() => {
    const watch = new ResizeObserver(([entry]) => {
      const { width, height } = entry!.contentRect;
      const whole = document.querySelector(".app")?.clientWidth ?? 0; // with what a panel has of it
      setSize({ width: Math.max(100, Math.floor(width)), height: Math.max(100, Math.floor(height)), whole: Math.max(100, Math.floor(width), whole - MARGIN) });
    });
    watch.observe(box.current!);
    return () => watch.disconnect();
  }, []);
  useEffect(() => {
    if (!canvas.current || !size.width) return;
    canvas.current.width = Math.round(size.width * ratio);
    canvas.current.height = Math.round(size.height * ratio);
  }, [size, ratio]);
  useEffect(() => {
    if (before.current && size.width) view.current.x *= size.width / before.current;
    before.current = size.width;
  }, [size.width]);
  useEffect(() => {
    if (scene) zoomTo(scene, query["at"] ?? "", view.current, size, chosen);
  }, [scene, query["at"]]);
  useEffect(() => {
    if (scene) follow(scene, ranks ? [...ranks.keys()] : [chosen], view.current, size);
  }, [scene, chosen, ranks]);
  useEffect(() => {
    // What the mouse was upon says nothing once somebody goes on elsewhere.
    const leave = (): void => setHover(null);
    addEventListener("keydown", leave);
    addEventListener("focusin", leave);
    return () => {
      removeEventListener("keydown", leave);
      removeEventListener("focusin", leave);
    };
  }, []);
  useEffect(() => setHover(null), [query["host"], query["workload"], query["at"]]);
  useEffect(draw);
  useEffect(() => () => cancelAnimationFrame(frame.current), []);

  const inside = (event: MouseEvent): { x: number; y: number; px: number; py: number } => {
    const at = canvas.current!.getBoundingClientRect();
    const px = event.clientX - at.left, py = event.clientY - at.top;
    return { px, py, x: (px - view.current.x) / view.current.scale, y: (py - view.current.y) / view.current.scale };
  };
  const zoom = (factor: number, px = size.width / 2, py = size.height / 2): void => {
    const v = view.current, scale = Math.min(scene ? mostScale(scene, size) : 1, Math.max(1, v.scale * factor)), by = scale / v.scale;
    v.x = px - (px - v.x) * by;
    v.y = py - (py - v.y) * by;
    v.scale = scale;
    keep(v, size);
    draw();
  };
  const all = (): void => {
    set({ at: undefined }, true);
    zoom(0);
  };
  controls.current = { zoom, all };
  useEffect(() => {
    const element = canvas.current!;
    const wheel = (event: WheelEvent): void => {
      event.preventDefault();
      setHover(null);
      const { px, py } = inside(event);
      zoom(Math.exp(-event.deltaY * (event.deltaMode === 1 ? 0.05 : 0.0022)), px, py);
    };
    element.addEventListener("wheel", wheel, { passive: false });
    return () => element.removeEventListener("wheel", wheel);
  });

  const pointers = useRef(new Map<number, { x: number; y: number }>());
  const moved = useRef(0);
  const down = (event: PointerEvent): void => {
    canvas.current!.setPointerCapture(event.pointerId);
    pointers.current.set(event.pointerId, { x: event.clientX, y: event.clientY });
    if (pointers.current.size === 1) moved.current = 0;
  };
  const move = (event: PointerEvent): void => {
    const from = pointers.current.get(event.pointerId), v = view.current;
    if (!from) {
      const { x, y, px, py } = inside(event);
      const host = scene ? hostAt(scene, x, y) : -1;
      setHover(host >= 0 ? { host, x: px, y: py } : null);
      return;
    }
    const others = [...pointers.current].filter(([id]) => id !== event.pointerId);
    const dx = event.clientX - from.x, dy = event.clientY - from.y;
    pointers.current.set(event.pointerId, { x: event.clientX, y: event.clientY });
    moved.current += Math.abs(dx) + Math.abs(dy);
    if (others[0]) {
      const other = others[0][1], at = canvas.current!.getBoundingClientRect();
      const before = Math.hypot(from.x - other.x, from.y - other.y), after = Math.hypot(event.clientX - other.x, event.clientY - other.y);
      if (before > 0) zoom(after / before, (event.clientX + other.x) / 2 - at.left, (event.clientY + other.y) / 2 - at.top);
    } else if (moved.current > 4) {
      v.x += dx;
      v.y += dy;
      keep(v, size);
      setHover(null);
      draw();
    }
  };
  const up = (event: PointerEvent): void => {
    const had = pointers.current.delete(event.pointerId);
    if (!had || moved.current > 4 || pointers.current.size || !scene) return;
    const { x, y } = inside(event), host = hostAt(scene, x, y);
    if (host >= 0) set({ host: String(cluster.hosts[host]![0]) });
    else {
      const found = frameAt(scene, x, y);
      set({ host: undefined, workload: undefined, at: found && found.path !== query["at"] ? found.path : undefined });
    }
  };
  const key = (event: KeyboardEvent): void => {
    const step: Record<string, [number, number]> = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    const way = step[event.key];
    if (way && scene) {
      focus.current = next(scene, focus.current, way);
      say(scene.x.length ? describe(cluster, focus.current) : "");
      follow(scene, [focus.current], view.current, size);
      draw();
    } else if (event.key === "+" || event.key === "=") zoom(1.5);
    else if (event.key === "-") zoom(1 / 1.5);
    else if (event.key === "0") all();
    else if ((event.key === "Enter" || event.key === " ") && focus.current >= 0) set({ host: String(cluster.hosts[focus.current]![0]) });
    else if (event.key === "Escape") set({ host: undefined, workload: undefined, at: undefined });
    else return;
    event.preventDefault();
  };
  return (
    <div class="canvas" ref={box}>
      <canvas
        ref={canvas} tabIndex={0} role="application" aria-roledescription="map" aria-describedby="map-keys"
        aria-label={`Map of ${many(cluster.hosts.length)} hosts`}
        onPointerDown={down} onPointerMove={move} onPointerUp={up} onPointerCancel={(event) => pointers.current.delete(event.pointerId)}
        onPointerLeave={() => setHover(null)} onKeyDown={key}
        onBlur={() => { focus.current = -1; draw(); }}
      />
      <p id="map-keys" class="hidden">Arrow keys go from host to host, Enter opens one, plus and minus zoom, zero shows all. The table has the same.</p>
      <p class="hidden" role="status">{said}</p>
      {hover && <Tip cluster={cluster} host={hover.host} x={hover.x} y={hover.y} size={size} now={now} theme={theme} ranks={ranks} />}
    </div>
  );
}

function litOf(cluster: Cluster, query: Record<string, string>): Set<number> | null {
  const workload = query["workload"];
  if (workload) {
    const found = cluster.holder(workload);
    return found?.state === "waiting" ? null : new Set(found ? [found.number] : []); // who has nothing yet lights nothing up
  }
  const { queue, ns } = query;
  if (!queue && !ns) return null;
  const shown = [...cluster.holders.values()].filter((one) => (!queue || (one.clusterQueue || `${one.namespace}/${one.queue}`) === queue) && (!ns || one.namespace === ns));
  return new Set(shown.map((one) => one.number));
}

function freeOf(cluster: Cluster): number[] {
  const found = [0];
  for (const row of cluster.hosts) {
    const { used, promised } = sums(row);
    found.push(found.at(-1)! + (row[2] === READY ? Math.max(0, (row[1] as number) - used - promised) : 0));
  }
  return found;
}

/** Until one host fills most of the view. */
function mostScale(scene: Scene, size: { width: number; height: number }): number {
  const wide = scene.w.reduce((most, one) => Math.max(most, one), 1), high = scene.h.reduce((most, one) => Math.max(most, one), 1);
  return Math.max(1, Math.min((MOST_OF_VIEW * size.width) / wide, (MOST_OF_VIEW * size.height) / high));
}

/** The scene stays over the canvas. */
function keep(v: View, size: { width: number; height: number }): void {
  v.x = Math.min(0, Math.max(size.width - size.width * v.scale, v.x));
  v.y = Math.min(0, Math.max(size.height - size.height * v.scale, v.y));
}

function zoomTo(scene: Scene, path: string, v: View, size: { width: number; height: number }, chosen: number): void {
  const found = path ? scene.frames.find((one) => one.path === path) : undefined;
  if (!found) {
    if (!path && chosen < 0) [v.scale, v.x, v.y] = [1, 0, 0];
    keep(v, size);
    return;
  }
  const scale = Math.min(mostScale(scene, size), 0.97 * Math.min(size.width / found.w, size.height / found.h));
  v.scale = Math.max(1, scale);
  v.x = size.width / 2 - (found.x + found.w / 2) * v.scale;
  v.y = size.height / 2 - (found.y + found.h / 2) * v.scale;
  keep(v, size);
}

/** Slide so that these hosts are in sight, as far as they fit. */
function follow(scene: Scene, hosts: number[], v: View, size: { width: number; height: number }): void {
  const there = hosts.filter((at) => at >= 0 && at < scene.x.length);
  keep(v, size);
  if (!there.length) return;
  const least = (of: (at: number) => number): number => there.reduce((found, at) => Math.min(found, of(at)), Infinity);
  const most = (of: (at: number) => number): number => there.reduce((found, at) => Math.max(found, of(at)), -Infinity);
  const left = v.x + least((at) => scene.x[at]!) * v.scale, right = v.x + most((at) => scene.x[at]! + scene.w[at]!) * v.scale;
  const top = v.y + least((at) => scene.y[at]!) * v.scale, bottom = v.y + most((at) => scene.y[at]! + scene.h[at]!) * v.scale;
  const { width } = size;
  if (right > width) v.x -= Math.min(right - width + 8, left - 8);
  else if (left < 0) v.x -= left - 8;
  if (bottom > size.height) v.y -= Math.min(bottom - size.height + 8, top - 8);
  else if (top < 0) v.y -= top - 8;
  keep(v, size);
}

/** The nearest host that way. */
function next(scene: Scene, from: number, [dx, dy]: [number, number]): number {
  if (from < 0) return scene.x.length ? 0 : -1;
  const cx = scene.x[from]! + scene.w[from]! / 2, cy = scene.y[from]! + scene.h[from]! / 2;
  let best = from, least = Infinity;
  for (let at = 0; at < scene.x.length; at++) {
    const x = scene.x[at]! + scene.w[at]! / 2 - cx, y = scene.y[at]! + scene.h[at]! / 2 - cy;
    const along = x * dx + y * dy, aside = Math.abs(x * dy) + Math.abs(y * dx);
    if (along <= 0.01 || aside > along * 1.5) continue;
    const cost = along + 2 * aside;
    if (cost < least) [best, least] = [at, cost];
  }
  return best;
}

function describe(cluster: Cluster, host: number): string {
  const row = cluster.hosts[host]!, { used, promised } = sums(row), amount = row[1] as number;
  const place = cluster.places[host]?.path.join(", ") ?? "";
  const who = heldOf(row).map((one) => cluster.holders.get(one.holder)?.title ?? "others").join(", ");
  return `${row[0]}, ${place}: ${used} of ${amount} used${promised ? `, ${promised} reserved` : ""}, ${stateName(row[2] as number)}${who ? `; ${who}` : ""}`;
}

function Tip({ cluster, host, x, y, size, now, theme, ranks }: { cluster: Cluster; host: number; x: number; y: number; size: { width: number; height: number }; now: number; theme: Theme; ranks: Map<number, number[]> | null }): JSX.Element {
  const row = cluster.hosts[host]!, place = cluster.places[host];
  const { used, promised } = sums(row), amount = row[1] as number, held = heldOf(row);
  const left = x > size.width - 330, above = y > size.height - 60 - 22 * held.length;
  const style = { [left ? "right" : "left"]: `${left ? size.width - x + 14 : x + 14}px`, [above ? "bottom" : "top"]: `${above ? size.height - y + 10 : y + 14}px` };
  const wrong = WRONG.filter((one) => (row[3] as number) & one.bit);
  return (
    <div class="tip" style={style} aria-hidden="true">
      <b>{row[0]}</b> <span class="dim">{place && cluster.domainOf(host).split("/").join(" / ")}</span>
      <div>{used} used{promised > 0 && `, ${promised} reserved`}, {Math.max(0, amount - used - promised)} {row[2] === READY ? "free" : "out of service"} of {amountText(amount, cluster.unit)}{row[2] !== 0 && <b> · {stateName(row[2] as number)}</b>}</div>
      {held.slice(0, 8).map((one) => {
        const who = cluster.holders.get(one.holder);
        return (
          <div class="held" key={one.holder}>
            <span class="count">{one.used + one.promised}</span> {who ? who.title : "others"}
            {who && <span class="dim"> {who.clusterQueue || who.queue || (who.workload ? "no queue" : "not placed by Topogate")}{who.admitted > 0 && `, ${age(now - who.admitted)}`}</span>}
          </div>
        );
      })}
      {held.length > 8 && <div class="dim">and {held.length - 8} more</div>}
      {ranks?.get(host)?.length ? <div class="dim">ranks {rangesOf(ranks.get(host)!)}</div> : null}
      {wrong.map((one) => <div key={one.bit} style={{ color: theme.wrong }}>{one.one}</div>)}
    </div>
  );
}

interface Line {
  path: string;
  label: string;
  depth: number;
  hosts: number;
  amount: number;
  used: number;
  promised: number;
  free: number;
  out: number;
}

/** The map in numbers: each domain with its hosts below it. */
function MapTable({ cluster, version, set }: { cluster: Cluster; version: number; set: Props["set"] }): JSX.Element {
  const [open, setOpen] = useState("");
  const lines = useMemo(() => {
    const found: Line[] = [], at = new Map<string, Line>();
    cluster.places.forEach((place, host) => {
      const row = cluster.hosts[host]!, { used, promised } = sums(row), amount = row[1] as number;
      const left = Math.max(0, amount - used - promised);
      const flavor = cluster.picture.groves[place.grove]?.flavor || OUTSIDE;
      const values = [flavor, ...place.path];
      values.forEach((label, depth) => {
        const path = values.slice(0, depth + 1).join("/");
        let line = at.get(path);
        if (!line) {
          line = { path, label, depth, hosts: 0, amount: 0, used: 0, promised: 0, free: 0, out: 0 };
          at.set(path, line);
          found.push(line);
        }
        line.hosts += 1;
        line.amount += amount;
        line.used += used;
        line.promised += promised;
        if (row[2] === 0) line.free += left;
        else line.out += left;
      });
    });
    return found;
  }, [cluster, version]);
  const level = (line: Line): string => (line.depth === 0 ? "flavor" : short(cluster.picture.groves.find((one) => (one.flavor || OUTSIDE) === line.path.split("/")[0])?.levels[line.depth - 1] ?? ""));
  const hosts = useMemo(() => {
    if (!open) return [];
    return cluster.places.flatMap((place, host) => {
      const flavor = cluster.picture.groves[place.grove]?.flavor || OUTSIDE;
      return [flavor, ...place.path].join("/") === open ? [host] : [];
    });
  }, [cluster, open]);
  const narrowest = (line: Line): boolean => !lines.some((one) => one.path.startsWith(`${line.path}/`));
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label="Domains and hosts">
      <table>
        <caption class="hidden">Domains and hosts</caption>
        <thead><tr><th scope="col">Domain</th><th scope="col">Level</th><th scope="col" class="n">Hosts</th><th scope="col" class="n">{cluster.unit}</th><th scope="col" class="n">Used</th><th scope="col" class="n">Reserved</th><th scope="col" class="n">Free</th><th scope="col" class="n">Out of service</th></tr></thead>
        <tbody>
          {lines.flatMap((line) => {
            const last = narrowest(line);
            const rows = [
              <tr key={line.path} class={line.depth === 0 ? "first" : ""}>
                <th scope="row" class={`indent-${Math.min(3, line.depth)}`}>
                  {last ? <button type="button" class="link" aria-expanded={open === line.path} onClick={() => setOpen(open === line.path ? "" : line.path)}>{line.label}</button> : line.label}
                </th>
                <td>{level(line)}</td><td class="n">{many(line.hosts)}</td><td class="n">{many(line.amount)}</td><td class="n">{many(line.used)}</td><td class="n">{many(line.promised)}</td><td class="n">{many(line.free)}</td><td class="n">{many(line.out)}</td>
              </tr>,
            ];
            if (open === line.path)
              for (const host of hosts) {
                const row = cluster.hosts[host]!, { used, promised } = sums(row), left = Math.max(0, (row[1] as number) - used - promised);
                rows.push(
                  <tr key={`h${host}`} class="sub">
                    <td class={`indent-${Math.min(3, line.depth + 1)}`}><button type="button" class="link" onClick={() => set({ host: String(row[0]), as: "table" })}>{row[0]}</button></td>
                    <td>{stateName(row[2] as number)}</td><td class="n">1</td><td class="n">{row[1]}</td><td class="n">{used}</td><td class="n">{promised}</td><td class="n">{row[2] === 0 ? left : 0}</td><td class="n">{row[2] === 0 ? 0 : left}</td>
                  </tr>,
                );
              }
            return rows;
          })}
        </tbody>
      </table>
    </div>
  );
}
