// Where each domain and host is drawn, in the cluster's own order. The same tree gives the same places, so nothing jumps
// from update to update.
import { OUTSIDE, type Domain, type Grove, type HostRow } from "./model";

export interface Frame {
  x: number;
  y: number;
  w: number;
  h: number;
  depth: number; // 0: the widest
  head: number; // height of its label
  label: string;
  path: string; // "block-1/rack-2"
  from: number; // its hosts
  to: number;
}

export interface Scene {
  width: number;
  height: number;
  frames: Frame[];
  x: Float64Array;
  y: Float64Array;
  w: Float64Array;
  h: Float64Array;
}

interface Box {
  label: string;
  path: string;
  depth: number; // of a frame; -1: nothing is drawn of it
  wide: number; // of a host: its part of the width of a full one
  count: number; // of hosts, 1: a host
  kind: number; // the same for those that are laid out alike
  boxes: Box[];
}

/** How a cell of a host looks: somewhat wider than high, as there is a name upon its devices. */
const SHAPE = 1.45;
/** Shapes that domains are tried in: width by height. */
const NARROW = [0.45, 0.7, 1, 1.5, 2.2, 3.4], WIDE = [0.5, 0.8, 1.2, 1.8, 2.8, 5];

interface Sizes {
  cell: number; // width of a full host
  inner: number; // shape of the domains that hold hosts
  outer: number; // and of those around them
  down: boolean; // the widest domains stand below each other first, then beside
}

interface Placed {
  w: number;
  h: number;
  at: Float64Array; // x, y, w, h of each box within
  within: Placed[];
  head: number;
}

/** Every host of a size has one shape; where domains end, a line does. The order is the cluster's own. */
export function arrange(groves: Grove[], hosts: HostRow[], width: number, height: number): Scene {
  const roots = boxesOf(groves, hosts), next = roots.reduce((sum, one) => sum + one.count, 0);
  const scene: Scene = {
    width, height, frames: [],
    x: new Float64Array(next), y: new Float64Array(next), w: new Float64Array(next), h: new Float64Array(next),
  };
  if (!next) return scene;
  const root: Box = { label: "", path: "", depth: -1, wide: 0, count: next, kind: -1, boxes: roots };
  let best: { placed: Placed; cell: number } | null = null;
  for (const inner of NARROW)
    for (const outer of WIDE)
      for (const down of [false, true]) {
        const found = largest(root, { cell: 0, inner, outer, down }, width, height, best?.cell ?? 0);
        if (found) best = found;
      }
  const placed = best?.placed ?? flow(root, { cell: 1, inner: 1, outer: 1, down: false }, width, height);
  const sx = width / Math.max(placed.w, 1e-6), sy = height / Math.max(placed.h, 1e-6);
  draw(scene, root, placed, 0, 0, Math.min(sx, MOST_STRETCH * sy), Math.min(sy, MOST_STRETCH * sx), 0);
  return scene;
}

const MOST_STRETCH = 1.25;

/** With the widest cells by which all fits; null where they are no wider than `least`. */
function largest(root: Box, shapes: Sizes, width: number, height: number, least: number): { placed: Placed; cell: number } | null {
  const fits = (cell: number): Placed | null => {
    const placed = flow(root, { ...shapes, cell }, width, height);
    return placed.w <= width + 1e-6 && placed.h <= height + 1e-6 ? placed : null;
  };
  let low = least * 1.01 + 1e-3, found = fits(low);
  if (!found) return null;
  let high = Math.max(low * 2, Math.sqrt((width * height * SHAPE) / root.count) * 1.6);
  for (let step = 0; step < 9; step++) {
    const middle = (low + high) / 2, placed = fits(middle);
    if (placed) [low, found] = [middle, placed];
    else high = middle;
  }
  return { placed: found, cell: low };
}

function boxesOf(groves: Grove[], hosts: HostRow[]): Box[] {
  const most = hosts.reduce((found, row) => Math.max(found, Number(row[1])), 1), several = groves.length > 1;
  const kinds = new Map<string, number>();
  let next = 0;
  const kindOf = (text: string): number => {
    if (!kinds.has(text)) kinds.set(text, kinds.size);
    return kinds.get(text)!;
  };
  const made = (label: string, path: string, depth: number, boxes: Box[]): Box => ({
    label, path, depth, wide: 0, count: boxes.reduce((sum, one) => sum + one.count, 0), kind: kindOf(`${depth} ${boxes.map((one) => one.kind).join()}`), boxes,
  });
  const host = (path: string): Box => {
    const row = hosts[next++]!, wide = Math.max(0.3, Math.min(1, Number(row[1]) / most));
    return { label: String(row[0]), path, depth: -1, wide, count: 1, kind: kindOf(`host ${wide}`), boxes: [] };
  };
  const domain = ([label, below]: Domain, above: string, depth: number): Box => {
    const path = above && label ? `${above}/${label}` : above || label, framed = label !== "";
    const boxes = typeof below === "number" ? Array.from({ length: below }, () => host(path)) : below.map((one) => domain(one, path, framed ? depth + 1 : depth));
    return made(label, path, framed ? depth : -1, boxes);
  };
  return groves.flatMap((one) => {
    const name = one.flavor || OUTSIDE, boxes = one.tree.map((each) => domain(each, several ? name : "", several ? 1 : 0));
    return several ? [made(name, name, 0, boxes)] : boxes;
  });
}

const gapOf = (cell: number): number => Math.min(8, Math.max(1, cell / 8));

/** The boxes of one box in lines, as wide as its shape is. `most`: wider it may not be; `high`: nor higher, of the whole. */
function flow(box: Box, sizes: Sizes, most: number, high: number, known = new Map<number, Placed>()): Placed {
  if (!box.boxes.length) return { w: sizes.cell * box.wide, h: sizes.cell / SHAPE, at: EMPTY, within: [], head: 0 };
  const before = known.get(box.kind);
  if (before) return before;
  const top = box.depth < 0 && box.label === "" && !box.path, leaf = !box.boxes[0]!.boxes.length;
  const gap = gapOf(sizes.cell), side = top ? 0 : leaf ? gap / 2 : gap, between = leaf ? 0 : gap, head = box.depth < 0 ? 0 : headOf(box.depth, sizes.cell);
  const within = box.boxes.map((one) => flow(one, sizes, most - 2 * side, high, known));
  const room = top ? most : Math.min(most - 2 * side, widthFor(within, leaf ? sizes.inner : sizes.outer, between));
  const down = top && sizes.down, at = new Float64Array(within.length * 4);
  let along = 0, across = 0, thick = 0, longest = 0, first = 0;
  const close = (end: number): void => {
    for (let i = first; i < end; i++) at[4 * i + (down ? 2 : 3)] = thick; // of one line, all are as thick
    first = end;
  };
  within.forEach((one, i) => {
    const [long, wide] = down ? [one.h, one.w] : [one.w, one.h];
    if (along > 0 && along + long > (down ? high : room) + 1e-6) {
      close(i);
      [along, across, thick] = [0, across + thick + between, 0];
    }
    at.set(down ? [across, along, one.w, one.h] : [side + along, head + across, one.w, one.h], 4 * i);
    along += long;
    longest = Math.max(longest, along);
    along += between;
    thick = Math.max(thick, wide);
  });
  close(within.length);
  const [w, h] = down ? [across + thick, longest] : [longest, across + thick];
  const placed = { w: w + 2 * side, h: head + h + side, at, within, head };
  known.set(box.kind, placed);
  return placed;
}

const EMPTY = new Float64Array(0);

/** The width at which the lines of these end, for about this shape. */
function widthFor(within: Placed[], shape: number, between: number): number {
  let area = 0, widest = 0;
  for (const one of within) {
    area += (one.w + between) * (one.h + between);
    widest = Math.max(widest, one.w);
  }
  const wished = Math.max(widest, Math.sqrt(area * shape));
  const each = within[0]!.w + between, count = within.length;
  if (!within.every((one) => Math.abs(one.w - within[0]!.w) < 1e-6)) return wished;
  const columns = Math.max(1, Math.min(count, Math.round(wished / each)));
  const cost = (one: number): number => (Math.ceil(count / one) * one - count) / count + 0.1 * Math.abs(one - columns); // full lines are better
  const best = [columns, columns - 1, columns + 1].filter((one) => one >= 1 && one <= count).reduce((found, one) => (cost(one) < cost(found) ? one : found));
  return best * each - between;
}

function headOf(depth: number, cell: number): number {
  if (depth === 0) return 17;
  return cell > 22 ? 14 : Math.min(3, cell / 6);
}

function draw(scene: Scene, box: Box, placed: Placed, left: number, top: number, sx: number, sy: number, from: number): number {
  let next = from;
  box.boxes.forEach((one, i) => {
    const x = left + placed.at[4 * i]! * sx, y = top + placed.at[4 * i + 1]! * sy, w = placed.at[4 * i + 2]! * sx, h = placed.at[4 * i + 3]! * sy;
    if (!one.boxes.length) {
      [scene.x[next], scene.y[next], scene.w[next], scene.h[next]] = [x, y, w, h];
      next += 1;
      return;
    }
    const inner = placed.within[i]!;
    const frame: Frame | null = one.depth >= 0 ? { x, y, w, h, depth: one.depth, head: inner.head * sy, label: one.label, path: one.path, from: next, to: next } : null;
    if (frame) scene.frames.push(frame);
    next = draw(scene, one, inner, x, y, sx, sy, next);
    if (frame) frame.to = next;
  });
  return next;
}

/** The same, as wide as there is room beside a panel: nothing changes its place. */
export function squeezed(scene: Scene, width: number): Scene {
  const by = width / scene.width;
  if (by === 1) return scene;
  return { ...scene, width, frames: scene.frames.map((one) => ({ ...one, x: one.x * by, w: one.w * by })), x: scene.x.map((one) => one * by), w: scene.w.map((one) => one * by) };
}

export function hostAt(scene: Scene, x: number, y: number): number {
  for (let at = 0; at < scene.x.length; at++)
    if (x >= scene.x[at]! && y >= scene.y[at]! && x < scene.x[at]! + scene.w[at]! && y < scene.y[at]! + scene.h[at]!) return at;
  return -1;
}

export function frameAt(scene: Scene, x: number, y: number): Frame | null {
  let found: Frame | null = null;
  for (const one of scene.frames)
    if (x >= one.x && y >= one.y && x < one.x + one.w && y < one.y + one.h && (!found || one.depth > found.depth)) found = one;
  return found;
}
