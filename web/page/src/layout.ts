// Where each domain and host is drawn: a tree map in the cluster's own order. The same tree gives the same places, so
// nothing jumps from update to update.
import { hierarchy, treemap, treemapSquarify, type HierarchyRectangularNode } from "d3-hierarchy";
import type { Domain, Grove, HostRow } from "./model";

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

interface Item {
  label: string;
  path: string;
  host: number; // -1: a domain
  value: number;
  children?: Item[];
}

type Cell = HierarchyRectangularNode<Item>;

/** Equal children stand in a grid, others as a squarified tree map in their own order. */
export function tile(node: Cell, x0: number, y0: number, x1: number, y1: number): void {
  const cells = node.children ?? [];
  const first = cells[0];
  if (!first) return;
  const equal = cells.every((one) => one.value === first.value);
  if (!equal) {
    treemapSquarify(node, x0, y0, x1, y1);
    return;
  }
  const [columns, rows] = grid(cells.length, x1 - x0, y1 - y0, first.children ? 1.35 : 1.5);
  const w = (x1 - x0) / columns, h = (y1 - y0) / rows;
  cells.forEach((one, at) => {
    const column = at % columns, row = Math.floor(at / columns);
    one.x0 = x0 + column * w;
    one.x1 = one.x0 + w;
    one.y0 = y0 + row * h;
    one.y1 = one.y0 + h;
  });
}

/** Columns and rows for so many equal cells: near a shape, with few places left empty. */
export function grid(count: number, width: number, height: number, shape: number): [number, number] {
  let best: [number, number] = [count, 1], least = Infinity;
  for (let columns = 1; columns <= count; columns++) {
    const rows = Math.ceil(count / columns);
    const aspect = width / columns / Math.max(1e-6, height / rows) / shape;
    const cost = Math.abs(Math.log(aspect)) + 5 * ((columns * rows - count) / count);
    if (cost < least) [best, least] = [[columns, rows], cost];
  }
  return best;
}

export function arrange(groves: Grove[], hosts: HostRow[], width: number, height: number): Scene {
  let next = 0;
  const leaf = (path: string): Item => {
    const host = next++;
    return { label: String(hosts[host]![0]), path, host, value: Math.max(1, Number(hosts[host]![1])) };
  };
  const domain = ([label, below]: Domain, above: string): Item => {
    const path = above && label ? `${above}/${label}` : above || label;
    const children = typeof below === "number" ? Array.from({ length: below }, () => leaf(path)) : below.map((one) => domain(one, path));
    return { label, path, host: -1, value: 0, children };
  };
  const several = groves.length > 1;
  const tops = groves.map((one) => {
    const children = one.tree.map((each) => domain(each, ""));
    return { label: several ? one.flavor || "no flavor" : "", path: "", host: -1, value: 0, children };
  });
  const root: Item = several ? { label: "", path: "", host: -1, value: 0, children: tops } : (tops[0] ?? { label: "", path: "", host: -1, value: 0, children: [] });
  const scene: Scene = {
    width, height, frames: [],
    x: new Float64Array(next), y: new Float64Array(next), w: new Float64Array(next), h: new Float64Array(next),
  };
  if (!next) return scene;
  const tree = hierarchy<Item>(root, (one) => one.children).sum((one) => (one.host >= 0 ? one.value : 0));
  const crowd = Math.sqrt((width * height) / next); // about the side of a host
  const gap = (d: number): number => (d === 0 ? 0 : Math.min(6, Math.max(1, crowd / (6 + 4 * (d - 1)))));
  const head = (one: Cell): number => headOf(one, several, crowd);
  const map = treemap<Item>()
    .size([width, height])
    .tile(tile as never)
    .paddingInner((one) => (one.children?.[0]?.children ? Math.min(8, Math.max(2, crowd / 3)) : 0))
    .paddingTop((one) => head(one as Cell))
    .paddingLeft((one) => gap(one.depth))
    .paddingRight((one) => gap(one.depth))
    .paddingBottom((one) => gap(one.depth));
  const placed = map(tree);
  let host = 0;
  const visit = (one: Cell): [number, number] => {
    if (one.data.host >= 0) {
      const at = one.data.host;
      scene.x[at] = one.x0;
      scene.y[at] = one.y0;
      scene.w[at] = one.x1 - one.x0;
      scene.h[at] = one.y1 - one.y0;
      host = at + 1;
      return [at, at + 1];
    }
    const from = host;
    const frame: Frame | null =
      one.depth > 0 && one.data.label
        ? { x: one.x0, y: one.y0, w: one.x1 - one.x0, h: one.y1 - one.y0, depth: one.depth - 1, head: head(one), label: one.data.label, path: one.data.path, from, to: from }
        : null;
    if (frame) scene.frames.push(frame);
    for (const each of one.children ?? []) visit(each);
    if (frame) frame.to = host;
    return [from, host];
  };
  visit(placed);
  return scene;
}

function headOf(one: Cell, several: boolean, crowd: number): number {
  if (one.depth === 0) return 0;
  const top = one.depth === 1;
  const room = one.x1 - one.x0;
  if (top || (several && one.depth === 2)) return 17;
  return room > 56 && crowd > 11 ? 13 : Math.min(3, crowd / 6);
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
