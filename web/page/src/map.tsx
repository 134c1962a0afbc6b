// The first view: the cluster as a tree map that one zooms into, and the same as a table.
import type { JSX } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { AGES, MODES, WRONG, kindOf, queuesOf, type Mode, type Theme } from "./colours";
import { arrange, frameAt, hostAt, type Scene } from "./layout";
import { age, heldOf, many, short, stateName, sums, type Cluster } from "./model";
import { paint, patterns, rangesOf, type Look, type View } from "./painter";
import { Swatch } from "./parts";

interface Props {
  cluster: Cluster;
  version: number;
  theme: Theme;
  now: number;
  query: Record<string, string>;
  ranks: Map<number, number[]> | null;
  cover: number; // pixels of the right side that stand behind a drawer
  set: (query: Record<string, string | undefined>, replace?: boolean) => void;
}

const MOST_SCALE = 400;

export function MapView(props: Props): JSX.Element {
  const { cluster, query, set, theme } = props;
  const mode = MODES.find((one) => one.mode === query["colour"])?.mode ?? "occupancy";
  const table = query["as"] === "table";
  return (
    <section class="map" aria-label="Map">
      <Toolbar cluster={cluster} mode={mode} theme={theme} version={props.version} table={table} set={set} queue={query["queue"] ?? ""} />
      {table ? <MapTable cluster={cluster} version={props.version} set={set} /> : <Canvas {...props} mode={mode} />}
    </section>
  );
}

function Toolbar({ cluster, mode, theme, version, table, set, queue }: { cluster: Cluster; mode: Mode; theme: Theme; version: number; table: boolean; set: Props["set"]; queue: string }): JSX.Element {
  const queues = useMemo(() => (mode === "queue" ? queuesOf(cluster) : []), [cluster, mode, version]);
  return (
    <div class="toolbar">
      <label class="pick">
        Colour
        <select value={mode} onChange={(event) => set({ colour: event.currentTarget.value, queue: undefined })}>
          {MODES.map((one) => <option value={one.mode} key={one.mode}>{one.label}</option>)}
        </select>
      </label>
      <ul class="legend" aria-label="Legend">
        {mode === "queue" && queues.slice(0, 14).map((name, at) => (
          <li key={name}>
            <button type="button" class={queue === name && name !== "" ? "chip on" : "chip"} aria-pressed={queue === name && name !== ""} onClick={() => set({ queue: queue === name ? undefined : name }, true)} disabled={name === ""}>
              <Swatch {...(name === "" ? { colour: theme.other } : kindOf(theme, at))} theme={theme} /> {name || "no queue"}
            </button>
          </li>
        ))}
        {mode === "queue" && queues.length > 14 && <li class="dim">and {queues.length - 14} more</li>}
        {mode === "occupancy" && <li><Swatch colour={theme.used} theme={theme} /> used</li>}
        {mode === "workload" && <li class="dim">each workload has a colour and marks; click one to light it up</li>}
        {mode === "age" && AGES.map((one, at) => <li key={one.label}><Swatch colour={theme.ages[at]!} texture={at} theme={theme} /> {one.label}</li>)}
        {mode === "problem" && WRONG.map((one) => {
          const count = cluster.hosts.reduce((sum, row) => sum + ((row[3] as number) & one.bit ? 1 : 0), 0);
          return <li key={one.bit} class={count ? "bad" : "dim"}><Swatch colour={count ? theme.wrong : theme.back} theme={theme} /> {one.label}: {count}</li>;
        })}
        {mode !== "problem" && <li><Swatch colour={mode === "occupancy" ? theme.used : theme.muted} kind="promised" theme={theme} /> promised</li>}
        <li><Swatch colour={theme.free} theme={theme} /> free</li>
        <li><Swatch colour={theme.outLine} kind="out" theme={theme} /> out</li>
      </ul>
      <button type="button" class="plain" aria-pressed={table} onClick={() => set({ as: table ? undefined : "table" })}>{table ? "Map" : "Table"}</button>
    </div>
  );
}

function Canvas({ cluster, version, theme, now, query, ranks, cover, set, mode }: Props & { mode: Mode }): JSX.Element {
  const box = useRef<HTMLDivElement>(null), canvas = useRef<HTMLCanvasElement>(null);
  const view = useRef<View>({ scale: 1, x: 0, y: 0 });
  const frame = useRef(0);
  const [size, setSize] = useState({ width: 0, height: 0 });
  const [hover, setHover] = useState<{ host: number; x: number; y: number } | null>(null);
  const [said, say] = useState("");
  const ratio = Math.min(3, devicePixelRatio || 1);
  const scene = useMemo(() => (size.width ? arrange(cluster.picture.groves, cluster.hosts, size.width, size.height) : null), [cluster, size.width, size.height]);
  const hatch = useMemo(() => patterns((w, h) => Object.assign(document.createElement("canvas"), { width: w, height: h }), ratio), [ratio]);
  const chosen = cluster.at.get(query["host"] ?? "") ?? -1;
  const look = useMemo((): Look => {
    const queues = new Map(queuesOf(cluster).map((name, at) => [name, at]));
    const lit = litOf(cluster, query);
    return { mode, theme, now, queues, lit, ranks, hover: -1, chosen, matches: null };
  }, [cluster, version, mode, theme, query["workload"], query["queue"], ranks, chosen, Math.floor(now / 60)]);
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
    });
  };

  useEffect(() => {
    const watch = new ResizeObserver(([entry]) => {
      const { width, height } = entry!.contentRect;
      setSize({ width: Math.max(100, Math.floor(width)), height: Math.max(100, Math.floor(height)) });
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
    if (scene) zoomTo(scene, query["at"] ?? "", view.current, size, cover, chosen);
  }, [scene, query["at"]]);
  useEffect(() => {
    // A drawer that opens hides nothing of what it tells of.
    if (scene) follow(scene, ranks ? [...ranks.keys()] : [chosen], view.current, size, cover);
  }, [scene, cover, chosen, ranks]);
  useEffect(draw);
  useEffect(() => () => cancelAnimationFrame(frame.current), []);

  const inside = (event: MouseEvent): { x: number; y: number; px: number; py: number } => {
    const at = canvas.current!.getBoundingClientRect();
    const px = event.clientX - at.left, py = event.clientY - at.top;
    return { px, py, x: (px - view.current.x) / view.current.scale, y: (py - view.current.y) / view.current.scale };
  };
  const zoom = (factor: number, px = size.width / 2, py = size.height / 2): void => {
    const v = view.current, scale = Math.min(MOST_SCALE, Math.max(1, v.scale * factor)), by = scale / v.scale;
    v.x = px - (px - v.x) * by;
    v.y = py - (py - v.y) * by;
    v.scale = scale;
    keep(v, size, cover);
    draw();
  };
  useEffect(() => {
    const element = canvas.current!;
    const wheel = (event: WheelEvent): void => {
      event.preventDefault();
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
      keep(v, size, cover);
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
      follow(scene, [focus.current], view.current, size, cover);
      draw();
    } else if (event.key === "+" || event.key === "=") zoom(1.5);
    else if (event.key === "-") zoom(1 / 1.5);
    else if (event.key === "0") {
      set({ at: undefined }, true);
      zoom(1 / MOST_SCALE);
    } else if ((event.key === "Enter" || event.key === " ") && focus.current >= 0) set({ host: String(cluster.hosts[focus.current]![0]) });
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
      <div class="zoom" role="group" aria-label="Zoom">
        <button type="button" onClick={() => zoom(1.6)} aria-label="Zoom in">+</button>
        <button type="button" onClick={() => zoom(1 / 1.6)} aria-label="Zoom out">−</button>
        <button type="button" onClick={() => { set({ at: undefined }, true); zoom(1 / MOST_SCALE); }} aria-label="Show all">⤢</button>
      </div>
      {hover && <Tip cluster={cluster} host={hover.host} x={hover.x} y={hover.y} size={size} now={now} theme={theme} ranks={ranks} />}
    </div>
  );
}

function litOf(cluster: Cluster, query: Record<string, string>): Set<number> | null {
  const workload = query["workload"];
  if (workload) {
    const number = cluster.byKey.get(workload);
    return new Set(number === undefined ? [] : [number]);
  }
  const queue = query["queue"];
  if (!queue) return null;
  return new Set([...cluster.holders.values()].filter((one) => (one.clusterQueue || `${one.namespace}/${one.queue}`) === queue).map((one) => one.number));
}

/** The scene stays over the canvas. */
function keep(v: View, size: { width: number; height: number }, cover: number): void {
  v.x = Math.min(0, Math.max(size.width - cover - size.width * v.scale, v.x));
  v.y = Math.min(0, Math.max(size.height - size.height * v.scale, v.y));
}

function zoomTo(scene: Scene, path: string, v: View, size: { width: number; height: number }, cover: number, chosen: number): void {
  const found = path ? scene.frames.find((one) => one.path === path) : undefined;
  if (!found) {
    if (!path && chosen < 0) [v.scale, v.x, v.y] = [1, 0, 0];
    keep(v, size, cover);
    return;
  }
  const scale = Math.min(MOST_SCALE, 0.97 * Math.min((size.width - cover) / found.w, size.height / found.h));
  v.scale = Math.max(1, scale);
  v.x = (size.width - cover) / 2 - (found.x + found.w / 2) * v.scale;
  v.y = size.height / 2 - (found.y + found.h / 2) * v.scale;
  keep(v, size, cover);
}

/** Slide so that these hosts are in sight, as far as they fit. */
function follow(scene: Scene, hosts: number[], v: View, size: { width: number; height: number }, cover: number): void {
  const there = hosts.filter((at) => at >= 0 && at < scene.x.length);
  keep(v, size, cover);
  if (!there.length) return;
  const least = (of: (at: number) => number): number => there.reduce((found, at) => Math.min(found, of(at)), Infinity);
  const most = (of: (at: number) => number): number => there.reduce((found, at) => Math.max(found, of(at)), -Infinity);
  const left = v.x + least((at) => scene.x[at]!) * v.scale, right = v.x + most((at) => scene.x[at]! + scene.w[at]!) * v.scale;
  const top = v.y + least((at) => scene.y[at]!) * v.scale, bottom = v.y + most((at) => scene.y[at]! + scene.h[at]!) * v.scale;
  const width = size.width - cover;
  if (right > width) v.x -= Math.min(right - width + 8, left - 8);
  else if (left < 0) v.x -= left - 8;
  if (bottom > size.height) v.y -= Math.min(bottom - size.height + 8, top - 8);
  else if (top < 0) v.y -= top - 8;
  keep(v, size, cover);
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
  return `${row[0]}, ${place}: ${used} of ${amount} used${promised ? `, ${promised} promised` : ""}, ${stateName(row[2] as number)}${who ? `; ${who}` : ""}`;
}

function Tip({ cluster, host, x, y, size, now, theme, ranks }: { cluster: Cluster; host: number; x: number; y: number; size: { width: number; height: number }; now: number; theme: Theme; ranks: Map<number, number[]> | null }): JSX.Element {
  const row = cluster.hosts[host]!, place = cluster.places[host];
  const { used, promised } = sums(row), amount = row[1] as number, held = heldOf(row);
  const left = x > size.width - 330, above = y > size.height - 60 - 22 * held.length;
  const style = { [left ? "right" : "left"]: `${left ? size.width - x + 14 : x + 14}px`, [above ? "bottom" : "top"]: `${above ? size.height - y + 10 : y + 14}px` };
  const wrong = WRONG.filter((one) => (row[3] as number) & one.bit);
  return (
    <div class="tip" style={style} aria-hidden="true">
      <b>{row[0]}</b> <span class="dim">{place?.path.join(" / ")}</span>
      <div>{used} used{promised > 0 && `, ${promised} promised`}, {Math.max(0, amount - used - promised)} {row[2] === 0 ? "free" : "out"} of {amount} {cluster.unit}{row[2] !== 0 && <b> · {stateName(row[2] as number)}</b>}</div>
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
      {wrong.map((one) => <div key={one.bit} style={{ color: theme.wrong }}>{one.label}</div>)}
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
      const flavor = cluster.picture.groves[place.grove]?.flavor || "no flavor";
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
  const level = (line: Line): string => (line.depth === 0 ? "flavor" : short(cluster.picture.groves.find((one) => (one.flavor || "no flavor") === line.path.split("/")[0])?.levels[line.depth - 1] ?? ""));
  const hosts = useMemo(() => {
    if (!open) return [];
    return cluster.places.flatMap((place, host) => {
      const flavor = cluster.picture.groves[place.grove]?.flavor || "no flavor";
      return [flavor, ...place.path].join("/") === open ? [host] : [];
    });
  }, [cluster, open]);
  const narrowest = (line: Line): boolean => !lines.some((one) => one.path.startsWith(`${line.path}/`));
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label="Domains and hosts">
      <table>
        <caption class="hidden">Domains and hosts</caption>
        <thead><tr><th scope="col">Domain</th><th scope="col">Level</th><th scope="col" class="n">Hosts</th><th scope="col" class="n">{cluster.unit}</th><th scope="col" class="n">Used</th><th scope="col" class="n">Promised</th><th scope="col" class="n">Free</th><th scope="col" class="n">Out</th></tr></thead>
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
