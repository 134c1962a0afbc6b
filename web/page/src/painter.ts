// The map on a canvas: data in, draw calls out. It knows no page and no network, so a test can draw it anywhere.
import { paintOf, type Mode, type Theme } from "./colours";
import type { Scene } from "./layout";
import { READY, type Cluster, type HostRow } from "./model";

export interface View {
  scale: number;
  x: number; // of the scene's left edge on the canvas, in CSS pixels
  y: number;
}

export interface Look {
  mode: Mode;
  theme: Theme;
  now: number;
  queues: Map<string, number>;
  lit: Set<number> | null; // holders that are lit up; the rest steps back
  ranks: Map<number, number[]> | null; // host -> ranks of the lit workload there, in order
  hover: number; // host, or -1
  chosen: number;
  free: number[]; // how much is free up to each host, in order: what a domain has is a difference
}

export type Context = Pick<
  CanvasRenderingContext2D,
  | "fillRect" | "strokeRect" | "fillText" | "beginPath" | "moveTo" | "lineTo" | "stroke" | "save" | "restore" | "clip" | "rect"
  | "setTransform" | "clearRect" | "measureText" | "createPattern"
> & { fillStyle: string | CanvasPattern | CanvasGradient; strokeStyle: string | CanvasPattern | CanvasGradient; lineWidth: number; font: string; textBaseline: CanvasTextBaseline; textAlign: CanvasTextAlign; globalAlpha: number };

export type Kind = "used" | "promised" | "out";

/** A fill of this kind with the marks of a texture upon it. */
export type Hatch = (colour: string, back: string, kind: Kind, texture: number) => CanvasPattern | string;

const FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Liberation Sans', sans-serif";
const TICKS = 21; // from this width on, in pixels, a host shows its devices one by one
const NAMED = { w: 52, h: 44 }; // from this size on it shows its name

const named = (w: number, h: number): boolean => w >= NAMED.w && h >= NAMED.h;

interface Run {
  fill: string | CanvasPattern;
  rects: number[];
}

/** Draws what of the scene is in view. `size`: of the canvas in CSS pixels; `ratio`: device pixels for each. */
export function paint(ctx: Context, scene: Scene, cluster: Cluster, view: View, look: Look, size: { width: number; height: number }, ratio: number, hatch: Hatch): void {
  const { theme } = look;
  ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
  ctx.globalAlpha = 1;
  ctx.fillStyle = theme.paper;
  ctx.fillRect(0, 0, size.width, size.height);
  paintFrames(ctx, scene, view, look, size);
  const runs = new Map<string, Run>();
  const put = (key: string, fill: () => string | CanvasPattern, x: number, y: number, w: number, h: number): void => {
    let run = runs.get(key);
    if (!run) runs.set(key, (run = { fill: fill(), rects: [] }));
    run.rects.push(x, y, w, h);
  };
  const near: number[] = [];
  for (let at = 0; at < scene.x.length; at++) {
    const x = view.x + scene.x[at]! * view.scale, y = view.y + scene.y[at]! * view.scale;
    const w = scene.w[at]! * view.scale, h = scene.h[at]! * view.scale;
    if (x + w < 0 || y + h < 0 || x > size.width || y > size.height) continue;
    paintHost(cluster, cluster.hosts[at]!, x, y, w, h, look, ratio, hatch, put);
    if (named(w, h)) near.push(at);
  }
  for (const { fill, rects } of runs.values()) {
    ctx.fillStyle = fill;
    for (let i = 0; i < rects.length; i += 4) ctx.fillRect(rects[i]!, rects[i + 1]!, rects[i + 2]!, rects[i + 3]!);
  }
  paintNames(ctx, scene, cluster, view, look, near);
  paintMarks(ctx, scene, cluster, view, look, size);
}

function paintFrames(ctx: Context, scene: Scene, view: View, look: Look, size: { width: number; height: number }): void {
  const { theme } = look;
  ctx.textBaseline = "middle";
  ctx.textAlign = "left";
  for (const one of scene.frames) {
    const x = view.x + one.x * view.scale, y = view.y + one.y * view.scale, w = one.w * view.scale, h = one.h * view.scale;
    if (x + w < 0 || y + h < 0 || x > size.width || y > size.height) continue;
    const depth = Math.min(one.depth, theme.frames.length - 1);
    ctx.fillStyle = theme.frames[depth]!;
    ctx.fillRect(x, y, w, h);
    ctx.strokeStyle = theme.lines[depth]!;
    ctx.lineWidth = 1;
    const left0 = Math.round(x), top0 = Math.round(y);
    ctx.strokeRect(left0 + 0.5, top0 + 0.5, Math.floor(x + w) - left0 - 1, Math.floor(y + h) - top0 - 1);
    const head = one.head * view.scale;
    if (head < 9 || y + head < 13) continue; // what is left of it is under the frames in it
    const points = Math.min(13, Math.max(9, head - 3.5));
    ctx.font = `${one.depth === 0 ? 600 : 400} ${points}px ${FONT}`;
    ctx.fillStyle = one.depth === 0 ? theme.ink : theme.muted;
    const left = Math.max(x, 0) + 4; // the name stays in sight while its frame does
    const text = fitted(ctx, one.label, x + w - left - 4);
    if (!text) continue;
    const middle = Math.min(Math.max(y, 0) + Math.min(head, 20) / 2 + 0.5, y + h - 6);
    ctx.fillText(text, left, middle);
    const free = (look.free[one.to] ?? 0) - (look.free[one.from] ?? 0), right = Math.min(x + w, size.width) - 4;
    ctx.font = `400 ${Math.min(12, points)}px ${FONT}`;
    ctx.fillStyle = theme.muted;
    const says = free ? `${free} free` : "full", wide = ctx.measureText(says).width;
    if (right - wide > left + ctx.measureText(text).width + 14) ctx.fillText(says, right - wide, middle);
  }
}

/** As much of a text as fits so many pixels; "" where less than three letters would be left. */
export function fitted(ctx: Pick<Context, "measureText">, text: string, room: number): string {
  if (room < 8) return "";
  if (ctx.measureText(text).width <= room) return text;
  let low = 0, high = text.length;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (ctx.measureText(text.slice(0, middle) + "…").width <= room) low = middle;
    else high = middle - 1;
  }
  return low >= 3 ? text.slice(0, low) + "…" : "";
}

type Put = (key: string, fill: () => string | CanvasPattern, x: number, y: number, w: number, h: number) => void;

interface Part {
  key: string;
  fill: () => string | CanvasPattern;
  count: number;
}

/** What fills a host, in order: used, promised, then what is free or out. */
function parts(cluster: Cluster, row: HostRow, look: Look, hatch: Hatch): Part[] {
  const { theme, mode } = look;
  const found: Part[] = [];
  let left = row[1] as number;
  const wrong = mode === "problem" && (row[3] as number) !== 0;
  for (const promised of [0, 1]) {
    for (let i = 4; i < row.length; i += 3) {
      const count = Math.min(left, row[i + 1 + promised] as number);
      if (count <= 0) continue;
      left -= count;
      const holder = row[i] as number;
      const back = look.lit !== null && !look.lit.has(holder);
      let { colour, texture } = paintOf(mode, theme, cluster.holders.get(holder), look.queues, cluster, look.now);
      if (wrong) colour = theme.wrong;
      else if (back) [colour, texture] = [theme.back, 0];
      else if (look.lit !== null && (mode === "occupancy" || mode === "problem")) colour = theme.used;
      if (promised) found.push({ key: `p${texture}${colour}`, fill: () => hatch(colour, theme.free, "promised", texture), count });
      else found.push({ key: `${texture}${colour}`, fill: () => (texture ? hatch(colour, theme.mark, "used", texture) : colour), count });
    }
  }
  if (left > 0) {
    const ready = row[2] === READY;
    if (ready) found.push({ key: "free", fill: () => theme.free, count: left });
    else {
      const line = wrong ? theme.wrong : theme.outLine;
      found.push({ key: `out${line}`, fill: () => hatch(line, theme.out, "out", 0), count: left });
    }
  }
  return found;
}

function paintHost(cluster: Cluster, row: HostRow, x: number, y: number, w: number, h: number, look: Look, ratio: number, hatch: Hatch, put: Put): void {
  const gap = w > 60 ? 3 : w > 30 ? 2 : w > 14 ? 1 : w > 6 ? 0.5 : 0.25;
  const snap = (value: number): number => Math.round(value * ratio) / ratio;
  const left = snap(x + gap), top = snap(y + gap), right = snap(x + w - gap), bottom = snap(y + h - gap);
  const width = right - left, height = bottom - top;
  if (width <= 0 || height <= 0) return;
  const found = parts(cluster, row, look, hatch);
  const amount = row[1] as number;
  if (w < TICKS || amount > 64) {
    let from = 0;
    for (const one of found) {
      const a = snap(left + (width * from) / amount), b = snap(left + (width * (from + one.count)) / amount);
      from += one.count;
      if (b > a) put(one.key, one.fill, a, top, b - a, height);
    }
    return;
  }
  const head = named(w, h) ? 15 : 0;
  const cells = ticks(amount, width, height - head);
  let at = 0;
  for (const one of found)
    for (let i = 0; i < one.count; i++, at++) {
      const cell = cells[at]!;
      const a = snap(left + cell[0]), b = snap(top + head + cell[1]);
      put(one.key, one.fill, a, b, Math.max(1 / ratio, snap(left + cell[0] + cell[2]) - a), Math.max(1 / ratio, snap(top + head + cell[1] + cell[3]) - b));
    }
}

/** Where the devices of a host stand inside of it: two rows where there are four or more. */
export function ticks(amount: number, width: number, height: number): [number, number, number, number][] {
  let rows = amount < 4 ? 1 : 2, columns = Math.ceil(amount / rows);
  const slim = (a: number, b: number): number => Math.abs(Math.log((width / a) / (height / b))); // 0: squares
  if (amount >= 4 && slim(rows, columns) < slim(columns, rows)) [rows, columns] = [columns, rows];
  const gap = width > 90 ? 3 : width > 40 ? 2 : 1;
  const w = (width - gap * (columns - 1)) / columns, h = (height - gap * (rows - 1)) / rows;
  const found: [number, number, number, number][] = [];
  for (let at = 0; at < amount; at++) found.push([(at % columns) * (w + gap), Math.floor(at / columns) * (h + gap), w, h]);
  return found;
}

/** Of each host its name, and, where there is room, of whom it is. */
function paintNames(ctx: Context, scene: Scene, cluster: Cluster, view: View, look: Look, near: number[]): void {
  ctx.textBaseline = "middle";
  ctx.textAlign = "left";
  ctx.font = `400 11px ${FONT}`;
  for (const at of near) {
    const w = scene.w[at]! * view.scale;
    const x = view.x + scene.x[at]! * view.scale, y = view.y + scene.y[at]! * view.scale;
    const row = cluster.hosts[at]!;
    ctx.fillStyle = row[2] === READY ? look.theme.ink : look.theme.muted;
    const text = fitted(ctx, String(row[0]), w - 8);
    if (!text) continue;
    ctx.fillText(text, x + 4, y + 10.5);
    const from = x + 4 + ctx.measureText(text).width + 8, who = row.length > 7 ? `${(row.length - 4) / 3} jobs` : cluster.holders.get(row[4] as number)?.name;
    if (!who || look.ranks) continue;
    ctx.fillStyle = look.theme.muted;
    const said = fitted(ctx, who, x + w - 5 - from);
    if (said) ctx.fillText(said, x + w - 5 - ctx.measureText(said).width, y + 10.5);
  }
}

function paintMarks(ctx: Context, scene: Scene, cluster: Cluster, view: View, look: Look, size: { width: number; height: number }): void {
  const outline = (at: number, colour: string, width: number): void => {
    const x = view.x + scene.x[at]! * view.scale, y = view.y + scene.y[at]! * view.scale;
    ctx.strokeStyle = colour;
    ctx.lineWidth = width;
    ctx.strokeRect(x + 0.5, y + 0.5, scene.w[at]! * view.scale - 1, scene.h[at]! * view.scale - 1);
  };
  const { theme } = look;
  if (look.ranks) {
    ctx.textAlign = "center";
    ctx.textBaseline = "middle";
    for (const [at, ranks] of look.ranks) {
      const x = view.x + scene.x[at]! * view.scale, y = view.y + scene.y[at]! * view.scale;
      const w = scene.w[at]! * view.scale, h = scene.h[at]! * view.scale;
      if (x + w < 0 || y + h < 0 || x > size.width || y > size.height) continue;
      outline(at, theme.ink, 1);
      if (w < 16 || !ranks.length) continue;
      ctx.font = `600 ${w > 40 ? 12 : 10}px ${FONT}`;
      const text = fitted(ctx, rangesOf(ranks), w - 4) || (w > 22 ? "…" : "");
      if (!text) continue;
      const room = ctx.measureText(text).width + 6, middle = y + h / 2 + (named(w, h) ? 7 : 0);
      ctx.fillStyle = theme.paper;
      ctx.fillRect(x + w / 2 - room / 2, middle - 7.5, room, 15);
      ctx.fillStyle = theme.ink;
      ctx.fillText(text, x + w / 2, middle + 0.5);
    }
  }
  if (look.mode === "problem")
    cluster.hosts.forEach((row, at) => {
      if (row[3] !== 0 && at < scene.x.length) outline(at, theme.wrong, 1.5);
    });
  if (look.chosen >= 0 && look.chosen < scene.x.length) outline(look.chosen, theme.focus, 3);
  if (look.hover >= 0 && look.hover < scene.x.length) outline(look.hover, theme.ink, 2);
}

/** Ranks in a few words: "0-3, 8". */
export function rangesOf(ranks: number[]): string {
  const found: string[] = [];
  for (let i = 0; i < ranks.length; ) {
    let j = i;
    while (j + 1 < ranks.length && ranks[j + 1] === ranks[j]! + 1) j++;
    found.push(i === j ? String(ranks[i]) : `${ranks[i]}–${ranks[j]}`);
    i = j + 1;
  }
  return found.join(", ");
}

/** Fills as patterns, each made once: stripes are promised, crosses are out, and a texture is marks upon either. */
export function patterns(make: (width: number, height: number) => HTMLCanvasElement | OffscreenCanvas, ratio: number): Hatch {
  const known = new Map<string, CanvasPattern | string>();
  return (colour, back, kind, texture) => {
    const key = `${kind}${texture}${colour}${back}`;
    let found = known.get(key);
    if (found === undefined) {
      const side = Math.max(4, Math.round((texture ? TILE : kind === "promised" ? 5 : 6) * ratio));
      const canvas = make(side, side);
      const ctx = canvas.getContext("2d") as CanvasRenderingContext2D | null;
      if (!ctx) return colour;
      ctx.fillStyle = kind === "used" ? colour : back;
      ctx.fillRect(0, 0, side, side);
      if (kind !== "used") stripes(ctx, side, colour, (kind === "promised" ? (texture ? 2.2 : 1.7) : 0.9) * ratio, kind === "out");
      if (texture) marks(ctx, side, kind === "used" ? back : colour, texture, ratio, kind);
      found = ctx.createPattern(canvas, "repeat") ?? colour;
      if (typeof found !== "string") found.setTransform(new DOMMatrix([1 / ratio, 0, 0, 1 / ratio, 0, 0]));
      known.set(key, found);
    }
    return found;
  };
}

/** Pixels of the side of a tile with marks, and how much of the ink these have. */
export const TILE = 8, SHADE = 0.38;

function stripes(ctx: CanvasRenderingContext2D, side: number, colour: string, width: number, crossed: boolean): void {
  ctx.strokeStyle = colour;
  ctx.lineWidth = width;
  ctx.beginPath();
  for (const shift of [-side, 0, side]) {
    ctx.moveTo(shift - 1, side + 1);
    ctx.lineTo(shift + side + 1, -1);
    if (crossed) {
      ctx.moveTo(shift - 1, -1);
      ctx.lineTo(shift + side + 1, side + 1);
    }
  }
  ctx.stroke();
}

/** The marks of a texture within one tile, in its own unit: [x, y, width, height]; the legend draws the same. */
export const MARKS: [number, number, number, number][][] = [
  [],
  [[0, 3, 8, 1.5], [0, 7, 8, 1]],
  [[1, 1, 2, 2], [5, 5, 2, 2]],
  [[3, 0, 1.5, 8], [7, 0, 1, 8]],
  [[0, 0, 2, 2], [2, 2, 2, 2], [4, 4, 2, 2], [6, 6, 2, 2]],
  [[0, 3, 8, 1], [3, 0, 1, 8]],
];

function marks(ctx: CanvasRenderingContext2D, side: number, colour: string, texture: number, ratio: number, kind: Kind): void {
  ctx.fillStyle = colour;
  ctx.globalAlpha = kind === "used" ? SHADE : 1;
  const unit = (value: number): number => Math.round((value * side) / TILE);
  for (const [x, y, w, h] of MARKS[texture] ?? []) ctx.fillRect(unit(x), unit(y), Math.max(ratio, unit(x + w) - unit(x)), Math.max(ratio, unit(y + h) - unit(y)));
  ctx.globalAlpha = 1;
}
