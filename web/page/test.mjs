// Units of the page that need no browser: layout, painter, changes put upon a picture, search. `npm test`.
import assert from "node:assert/strict";
import test from "node:test";
import { build } from "esbuild";

const parts = ["layout", "painter", "model", "colours", "quantity", "source", "claims"].map((one) => `export * from "./src/${one}";`).join("");
const made = await build({ stdin: { contents: parts, resolveDir: ".", loader: "ts" }, bundle: true, write: false, format: "esm", target: "es2022" });
const page = await import(`data:text/javascript;base64,${Buffer.from(made.outputFiles[0].contents).toString("base64")}`);

function picture(blocks, racks, hosts, held = () => []) {
  const rows = [], tree = [];
  for (let b = 0; b < blocks; b++) {
    const below = [];
    for (let r = 0; r < racks; r++) {
      below.push([`r${r}`, hosts]);
      for (let h = 0; h < hosts; h++) rows.push([`b${b}-r${r}-h${h}`, 8, 0, 0, ...held(rows.length)]);
    }
    tree.push([`b${b}`, below]);
  }
  const holders = [[1, "team", "Job", "train", "w", "q", "cq", 0, 10, 20, 2, 2, 16, "running", ""]];
  const sees = { hosts: true, queues: true, all: true, namespaces: [] };
  return { epoch: "e", version: 1, at: 100, cluster: "c", resource: "nvidia.com/gpu", sees, groves: [{ flavor: "tas", levels: ["x/block", "x/rack", "h"], tree }], hosts: rows, holders };
}

test("hosts lie in their frames, and none upon another", () => {
  const shown = picture(3, 4, 7), scene = page.arrange(shown.groves, shown.hosts, 900, 500);
  assert.equal(scene.x.length, 84);
  const inside = (at, f) => scene.x[at] >= f.x - 1e-6 && scene.y[at] >= f.y - 1e-6 && scene.x[at] + scene.w[at] <= f.x + f.w + 1e-6 && scene.y[at] + scene.h[at] <= f.y + f.h + 1e-6;
  for (const frame of scene.frames) for (let at = frame.from; at < frame.to; at++) assert.ok(inside(at, frame), frame.path);
  for (let a = 0; a < 84; a++) {
    assert.ok(scene.w[a] > 0 && scene.h[a] > 0);
    for (let b = a + 1; b < 84; b++) {
      const apart = scene.x[a] + scene.w[a] <= scene.x[b] + 1e-6 || scene.x[b] + scene.w[b] <= scene.x[a] + 1e-6 || scene.y[a] + scene.h[a] <= scene.y[b] + 1e-6 || scene.y[b] + scene.h[b] <= scene.y[a] + 1e-6;
      assert.ok(apart, `${a} and ${b}`);
    }
  }
  for (let at = 0; at < 84; at++) assert.equal(page.hostAt(scene, scene.x[at] + scene.w[at] / 2, scene.y[at] + scene.h[at] / 2), at);
});

test("who holds what moves nothing", () => {
  const idle = picture(2, 3, 5), busy = picture(2, 3, 5, () => [1, 8, 0]);
  assert.deepEqual(page.arrange(idle.groves, idle.hosts, 700, 400), page.arrange(busy.groves, busy.hosts, 700, 400));
});

test("a cluster without hosts, of one host, and of unequal ones is drawn", () => {
  assert.equal(page.arrange([], [], 300, 200).x.length, 0);
  assert.equal(page.arrange([{ flavor: "", levels: [], tree: [["", 1]] }], [["a", 8, 0, 0]], 300, 200).w[0] > 0, true);
  const odd = [["a", 8, 0, 0], ["b", 4, 0, 0], ["c", 1, 0, 0]];
  const scene = page.arrange([{ flavor: "t", levels: ["rack"], tree: [["r1", 2], ["r2", 1]] }], odd, 300, 200);
  const area = (at) => scene.w[at] * scene.h[at];
  assert.ok(area(0) > area(1) * 1.5 && area(1) > area(2));
});

function canvas() {
  const calls = [];
  const ctx = { calls, fillStyle: "", strokeStyle: "", lineWidth: 1, font: "", textBaseline: "", textAlign: "", globalAlpha: 1 };
  for (const name of ["strokeRect", "fillText", "beginPath", "moveTo", "lineTo", "stroke", "save", "restore", "clip", "rect", "setTransform", "clearRect", "createPattern"]) ctx[name] = (...given) => calls.push([name, ...given]);
  ctx.fillRect = (...given) => calls.push(["fillRect", ctx.fillStyle, ...given]);
  ctx.measureText = (text) => ({ width: text.length * 6 });
  return ctx;
}

function drawn(shown, more = {}, view = { scale: 1, x: 0, y: 0 }) {
  const cluster = new page.Cluster(shown), ctx = canvas(), size = { width: 900, height: 500 };
  const look = { mode: "occupancy", theme: page.LIGHT, now: 100, queues: new Map(), lit: null, ranks: null, hover: -1, chosen: -1, matches: null, ...more };
  page.paint(ctx, page.arrange(shown.groves, shown.hosts, 900, 500), cluster, view, look, size, 1, (colour, _, kind, texture) => `${kind}${texture}:${colour}`);
  return ctx.calls;
}

const filled = (calls, style) => calls.filter(([name, fill]) => name === "fillRect" && fill === style);

test("what is used, promised, free and out is drawn, each in its own way", () => {
  const shown = picture(1, 1, 4, (at) => (at === 0 ? [1, 8, 0] : at === 1 ? [1, 3, 5] : []));
  shown.hosts[3][2] = 1;
  const calls = drawn(shown);
  assert.equal(filled(calls, page.LIGHT.used).length, 8 + 3);
  assert.equal(filled(calls, `promised0:${page.LIGHT.used}`).length, 5);
  assert.equal(filled(calls, page.LIGHT.free).length, 8);
  assert.equal(filled(calls, `out0:${page.LIGHT.outLine}`).length, 8);
});

test("red is for what is wrong alone", () => {
  const shown = picture(1, 2, 4, () => [1, 8, 0]);
  for (const mode of ["occupancy", "queue", "workload", "age", "problem"]) assert.equal(drawn(shown, { mode }).some((call) => call.includes(page.LIGHT.wrong)), false, mode);
  shown.hosts[2][3] = 4;
  assert.ok(filled(drawn(shown, { mode: "problem" }), page.LIGHT.wrong).length > 0);
});

test("no two queues, workloads or ages are told apart by colour alone", () => {
  for (const theme of [page.LIGHT, page.DARK]) {
    const seen = new Set(), places = theme.kinds.length * page.TEXTURES;
    for (let at = 0; at < places; at++) {
      const { colour, texture } = page.kindOf(theme, at);
      seen.add(`${colour}${texture}`);
      if (at) assert.notEqual(texture, page.kindOf(theme, at - 1).texture);
    }
    assert.equal(seen.size, places);
    assert.ok(theme.ages.length <= page.TEXTURES);
  }
  assert.equal(page.MARKS.length, page.TEXTURES);
  assert.equal(new Set(page.MARKS.map((one) => JSON.stringify(one))).size, page.TEXTURES);
  const shown = picture(1, 1, 2, (at) => [at + 1, 4, 2]);
  shown.holders.push([2, "team", "Job", "other", "v", "q2", "other", 0, 10, 20, 1, 1, 8, "running", ""]);
  const calls = drawn(shown, { mode: "queue", queues: new Map([["cq", 0], ["other", 1]]) }), [first, second] = [page.kindOf(page.LIGHT, 0), page.kindOf(page.LIGHT, 1)];
  assert.deepEqual([filled(calls, first.colour).length, filled(calls, `used1:${second.colour}`).length], [4, 4]);
  assert.deepEqual([filled(calls, `promised0:${first.colour}`).length, filled(calls, `promised1:${second.colour}`).length], [2, 2]);
});

test("what is not lit up steps back", () => {
  const shown = picture(1, 1, 2, (at) => [at + 1, 8, 0]);
  shown.holders.push([2, "team", "Job", "other", "v", "", "", 0, 1, 1, 1, 1, 8, "running", ""]);
  const calls = drawn(shown, { lit: new Set([1]) });
  assert.deepEqual([filled(calls, page.LIGHT.used).length, filled(calls, page.LIGHT.back).length], [8, 8]);
});

test("nothing outside of the view is drawn, and little of what is very small", () => {
  const large = picture(10, 20, 25, () => [1, 4, 2]);
  assert.ok(drawn(large).filter(([name]) => name === "fillRect").length < 5000 * 3 + 400);
  assert.ok(drawn(large, {}, { scale: 40, x: -4000, y: -4000 }).filter(([name]) => name === "fillRect").length < 400);
});

test("more than there is fills a host and no more", () => {
  assert.equal(filled(drawn(picture(1, 1, 1, () => [1, 40, 40])), page.LIGHT.used).length, 8);
});

test("changes are put upon the picture, and others' versions are not", () => {
  const cluster = new page.Cluster(picture(1, 1, 2));
  assert.equal(cluster.apply({ since: 5, version: 6, at: 1, hosts: [], holders: [], gone: [] }), false);
  assert.equal(cluster.apply({ since: 1, version: 2, at: 1, hosts: [[1, 2, 0, 1, 3, 4]], holders: [], gone: [] }), true);
  assert.deepEqual(cluster.hosts[1], ["b0-r0-h1", 8, 2, 0, 1, 3, 4]);
  assert.deepEqual(cluster.totals(), { amount: 16, used: 3, promised: 4, free: 8, out: 1, waiting: 0, wanted: 0 });
  assert.equal(cluster.apply({ since: 2, version: 3, at: 1, hosts: [[9, 0, 0]], holders: [], gone: [] }), false);
  cluster.apply({ since: 2, version: 3, at: 1, hosts: [], holders: [], gone: [1] });
  assert.equal(cluster.holder("team/w"), undefined);
});

test("the largest gang is of whole hosts that are ready", () => {
  const shown = picture(2, 2, 3, (at) => (at === 0 ? [1, 1, 0] : []));
  shown.hosts[4][2] = 2;
  assert.deepEqual(new page.Cluster(shown).gangs(), [{ level: "block", amount: 48 }, { level: "rack", amount: 24 }]);
});

test("neighbours have different colours, which stay", () => {
  const shown = picture(1, 1, 30, (at) => [at + 1, 8, 0]);
  shown.holders = Array.from({ length: 30 }, (_, at) => [at + 1, "team", "Job", `j${at}`, `w${at}`, "", "", 0, 1, 1, 1, 1, 8, "running", ""]);
  const cluster = new page.Cluster(shown), before = new Map(cluster.shades);
  for (let at = 2; at <= 30; at++) assert.notEqual(before.get(at), before.get(at - 1));
  cluster.apply({ since: 1, version: 2, at: 1, hosts: [[3, 0, 0]], holders: [], gone: [] });
  assert.deepEqual(cluster.shades, before);
});

test("ranks, quantities and texts that are too long", () => {
  assert.equal(page.rangesOf([0, 1, 2, 5, 7, 8]), "0–2, 5, 7–8");
  assert.deepEqual(["1500m", "2Gi", "8", "x", "1e3", ""].map(page.amountOf), [1.5, 2 ** 31, 8, 0, 1000, 0]);
  const ctx = { measureText: (text) => ({ width: text.length * 10 }) };
  assert.deepEqual([page.fitted(ctx, "abcdefgh", 80), page.fitted(ctx, "abcdefgh", 50), page.fitted(ctx, "abcdefgh", 30)], ["abcdefgh", "abcd…", ""]);
});

test("events of a stream are read however they are cut", async () => {
  const text = 'event: beat\ndata: {"heard":0}\n\nevent: changes\ndata: {"a":"é"}\n\n', bytes = new TextEncoder().encode(text);
  for (const size of [1, 2, 7, 1000]) {
    const body = new ReadableStream({ start(to) { for (let i = 0; i < bytes.length; i += size) to.enqueue(bytes.slice(i, i + size)); to.close(); } });
    const found = [];
    for await (const one of page.events(body)) found.push(one);
    assert.deepEqual(found, [["beat", '{"heard":0}'], ["changes", '{"a":"é"}']]);
  }
});

const claimed = (name, zones, more) => ({ driver: "gpu.example.com", pool: "h1", name, zones, state: "free", taint: "", pods: [], claims: [], others: false, ...more });

test("devices of claims lie by zone, those without one last, and a pool that is called otherwise is named", () => {
  const found = page.grouped("h1", [claimed("nic", [], { pool: "rack" }), claimed("b", [1]), claimed("a", [0]), claimed("c", [1])]);
  assert.deepEqual(found.map((one) => [one.zones, one.title, one.devices.map((device) => device.name)]), [
    ["Zone 0", "gpu.example.com", ["a"]],
    ["Zone 1", "gpu.example.com", ["b", "c"]],
    ["No zone told", "gpu.example.com/rack", ["nic"]],
  ]);
});

test("a pod's zones are told beside those of its devices only where these are others", () => {
  const devices = [claimed("a", [1], { pods: [0] }), claimed("b", [0], { pods: [1] }), claimed("nic", [], { pods: [0], driver: "nic.example.com", pool: "rack" })];
  assert.deepEqual([page.zonesOf([0], devices, 0), page.zonesOf([0], devices, 1), page.zonesOf([], devices, 0), page.zonesOf([2], devices, 5)], ["0; devices 1", "0", "1", "2"]);
  assert.equal(page.devicesOf("h1", devices, 0), "gpu.example.com: a; nic.example.com/rack: nic");
});
