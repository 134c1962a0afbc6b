// Units of the page that need no browser: layout, painter, changes put upon a picture, search. `npm test`.
import assert from "node:assert/strict";
import test from "node:test";
import { build } from "esbuild";

globalThis.location = { hash: "" };
globalThis.matchMedia = () => ({ matches: false });

const parts = ["layout", "painter", "model", "colours", "quantity", "source", "claims", "workloads", "queues", "route"].map((one) => `export * from "./src/${one}";`).join("");
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
  const holders = [[1, "team", "Job", "train", "w", "q", "cq", 0, 10, 20, 2, 2, 16, "running", "", 0]];
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

test("hosts of a size have one shape, whatever they stand beside, and none is a line", () => {
  for (const [width, height] of [[1420, 760], [800, 1000], [370, 550], [1400, 300]]) {
    const shown = uneven(), { w, h } = page.arrange(shown.groves, shown.hosts, width, height);
    for (let at = 1; at < w.length; at++) assert.ok(Math.abs(w[at] - w[0]) < 0.01 && Math.abs(h[at] - h[0]) < 0.01, `${at} of ${width}`);
    assert.ok(w[0] / h[0] > 0.9 && w[0] / h[0] < 2.4, `${w[0]} by ${h[0]}`);
    assert.ok(w[0] * h[0] * w.length > 0.3 * width * height, `${Math.round((100 * w[0] * h[0] * w.length) / width / height)} % of ${width} by ${height}`);
  }
});

/** Three flavors of very different sizes, whose domains are called alike. */
function uneven() {
  const sizes = [[3, 4, 4], [2, 2, 3], [1, 1, 3]], shown = picture(1, 1, 1);
  shown.hosts = [];
  shown.groves = sizes.map(([blocks, racks, hosts], at) => {
    const one = picture(blocks, racks, hosts);
    shown.hosts.push(...one.hosts.map((row) => [`${at}-${row[0]}`, ...row.slice(1)]));
    return { ...one.groves[0], flavor: `f${at}` };
  });
  return shown;
}

test("beside a panel everything keeps its place, and is narrower", () => {
  const shown = uneven(), whole = page.arrange(shown.groves, shown.hosts, 1400, 700), half = page.squeezed(whole, 700);
  for (let at = 0; at < whole.x.length; at++) assert.deepEqual([half.x[at], half.y[at], half.w[at]], [whole.x[at] / 2, whole.y[at], whole.w[at] / 2]);
});

test("domains that are called alike are told apart by their flavor", () => {
  const shown = uneven(), cluster = new page.Cluster(shown), frames = page.arrange(shown.groves, shown.hosts, 900, 500).frames.map((one) => one.path);
  assert.equal(new Set(frames).size, frames.length);
  assert.equal(cluster.domainOf(0), "f0/b0/r0");
  assert.ok(frames.includes(cluster.domain("f2", ["b0", "r0"])));
  assert.equal(new page.Cluster(picture(2, 2, 2)).domainOf(7), "b1/r1");
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
  const look = { mode: "occupancy", theme: page.LIGHT, now: 100, queues: new Map(), lit: null, ranks: null, hover: -1, chosen: -1, free: [], ...more };
  page.paint(ctx, page.arrange(shown.groves, shown.hosts, 900, 500), cluster, view, look, size, 1, (colour, _, kind, texture) => `${kind}${texture}:${colour}`);
  return ctx.calls;
}

const toneOf = (shown, number) => {
  const cluster = new page.Cluster(shown);
  return page.LIGHT.tones[cluster.lookOf(cluster.holders.get(number)).tone];
};
const filled = (calls, style) => calls.filter(([name, fill]) => name === "fillRect" && fill === style);

test("what is used, promised, free and out is drawn, each in its own way", () => {
  const shown = picture(1, 1, 4, (at) => (at === 0 ? [1, 8, 0] : at === 1 ? [1, 3, 5] : []));
  shown.hosts[3][2] = 1;
  const calls = drawn(shown), tone = toneOf(shown, 1);
  assert.equal(filled(calls, tone).length, 8 + 3);
  assert.equal(filled(calls, `promised0:${tone}`).length, 5);
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
  shown.holders.push([2, "team", "Job", "other", "v", "q2", "other", 0, 10, 20, 1, 1, 8, "running", "", 0]);
  const calls = drawn(shown, { mode: "queue", queues: new Map([["cq", 0], ["other", 1]]) }), [first, second] = [page.kindOf(page.LIGHT, 0), page.kindOf(page.LIGHT, 1)];
  assert.deepEqual([filled(calls, first.colour).length, filled(calls, `used1:${second.colour}`).length], [4, 4]);
  assert.deepEqual([filled(calls, `promised0:${first.colour}`).length, filled(calls, `promised1:${second.colour}`).length], [2, 2]);
});

test("devices in a host are as near to squares as two lines of them can be", () => {
  for (const [width, height] of [[100, 50], [60, 60], [40, 80]])
    for (const [, , w, h] of page.ticks(8, width, height)) assert.ok(w / h > 0.45 && w / h < 2.2, `${w} by ${h}`);
});

test("letters on a colour are read", () => {
  const luminance = (colour) => [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16) / 255).map((one) => (one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4)).reduce((sum, one, at) => sum + one * [0.2126, 0.7152, 0.0722][at], 0);
  for (const colour of [...page.LIGHT.kinds, ...page.DARK.kinds]) {
    const [low, high] = [luminance(colour), luminance(page.inkOn(colour))].sort((a, b) => a - b);
    assert.ok((high + 0.05) / (low + 0.05) >= 4.5, colour);
  }
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
  const shown = picture(1, 1, 1, () => [1, 40, 40]);
  assert.equal(filled(drawn(shown), toneOf(shown, 1)).length, 8);
});

test("changes are put upon the picture, and others' versions are not", () => {
  const cluster = new page.Cluster(picture(1, 1, 2));
  assert.equal(cluster.apply({ since: 5, version: 6, at: 1, hosts: [], holders: [], gone: [] }), false);
  assert.equal(cluster.apply({ since: 1, version: 2, at: 1, hosts: [[1, 2, 0, 1, 3, 4]], holders: [], gone: [] }), true);
  assert.deepEqual(cluster.hosts[1], ["b0-r0-h1", 8, 2, 0, 1, 3, 4]);
  assert.deepEqual(cluster.totals(), { amount: 16, used: 3, promised: 4, free: 8, out: 1, waiting: 0, wanted: 0, stuck: 0 });
  assert.equal(cluster.apply({ since: 2, version: 3, at: 1, hosts: [[9, 0, 0]], holders: [], gone: [] }), false);
  cluster.apply({ since: 2, version: 3, at: 1, hosts: [], holders: [], gone: [1] });
  assert.equal(cluster.holder("team/w"), undefined);
});

test("the largest gang is of whole hosts that are ready", () => {
  const shown = picture(2, 2, 3, (at) => (at === 0 ? [1, 1, 0] : []));
  shown.hosts[4][2] = 2;
  assert.deepEqual(new page.Cluster(shown).gangs(), [{ level: "block", amount: 48 }, { level: "rack", amount: 24 }]);
});

function crowd(count) {
  const shown = picture(1, 1, count, (at) => [at + 1, 8, 0]);
  shown.holders = Array.from({ length: count }, (_, at) => [at + 1, "team", "Job", `j${at}`, `w${at}`, "", "", 0, 1, 1, 1, 1, 8, "running", "", 0]);
  return shown;
}

const looks = (cluster) => new Map([...cluster.holders.values()].map((one) => [one.number, cluster.lookOf(one).look]));

test("sixty workloads all look different, ten have ten colours, and neighbours never have the same", () => {
  for (const count of [10, 30, 60]) {
    const found = looks(new page.Cluster(crowd(count))), values = [...found.values()];
    assert.equal(new Set(values).size, count);
    assert.equal(new Set(values.map((one) => one % page.COLOURS)).size, 10);
    for (let at = 2; at <= count; at++) assert.notEqual(found.get(at) % page.COLOURS, found.get(at - 1) % page.COLOURS);
  }
});

test("a look stays while others come and go, and when the whole picture comes again", () => {
  const cluster = new page.Cluster(crowd(30)), before = looks(cluster);
  cluster.apply({ since: 1, version: 2, at: 1, hosts: [[3, 0, 0], [4, 0, 0, 99, 8, 0]], holders: [[99, "team", "Job", "new", "new", "", "", 0, 1, 1, 1, 1, 8, "running", "", 0]], gone: [4] });
  before.delete(4);
  const after = looks(cluster), fresh = after.get(99);
  after.delete(99);
  assert.deepEqual(after, before);
  assert.ok(![...before.values()].includes(fresh));
  const again = new page.Cluster({ ...crowd(30), holders: crowd(30).holders.map((row) => [row[0] + 100, ...row.slice(1)]) }, cluster);
  assert.equal(again.lookOf(again.holder("team/w7")).look, before.get(8));
});

test("in the colours of occupancy neighbours have other tones", () => {
  const cluster = new page.Cluster(crowd(40)), tones = [...cluster.holders.values()].map((one) => cluster.lookOf(one).tone);
  for (let at = 1; at < tones.length; at++) assert.notEqual(tones[at], tones[at - 1]);
});

const waiter = (number, name, reason, since, more = {}) => page.holderOf([number, more.ns ?? "a", "Job", name, `job-${name}-5f0c`, "q", "cq", more.priority ?? 0, since, 0, 2, 0, 8, "waiting", reason, since]);

test("workloads are chosen by namespace, state and reason, and the longest wait comes first", () => {
  const all = [waiter(1, "late", "DoesNotFit", 50), waiter(2, "never", "NeverFits", 30), waiter(3, "early", "DoesNotFit", 10), waiter(4, "theirs", "DoesNotFit", 5, { ns: "b" })];
  const names = (query) => page.chosen(all, query).map((one) => one.name);
  assert.deepEqual(names({ sort: "since" }), ["theirs", "early", "never", "late"]);
  assert.deepEqual(names({ sort: "-since", ns: "a" }), ["late", "never", "early"]);
  assert.deepEqual(names({ reason: "DoesNotFit", ns: "a", sort: "since" }), ["early", "late"]);
  assert.deepEqual(names({ stuck: "yes" }), ["never"]);
  assert.deepEqual(names({ sort: "reason" }), ["theirs", "early", "late", "never"]);
  assert.deepEqual(names({ sort: "__proto__" }).length, 4);
});

test("a workload is found by the name of its Workload, of its owner with and without the kind", () => {
  const shown = picture(1, 1, 1);
  shown.holders = [[7, "a", "JobSet", "train", "jobset-train-5f0c", "", "", 0, 1, 1, 1, 1, 8, "running", "", 0]];
  const cluster = new page.Cluster(shown);
  for (const name of ["a/jobset-train-5f0c", "a/jobset/train", "a/train"]) assert.equal(cluster.named(name)?.number, 7, name);
  for (const name of ["a/job/train", "b/train", "train", "a/b/c/d"]) assert.equal(cluster.named(name), undefined, name);
});

test("who can never start is counted, and who waits in a namespace alone", () => {
  const shown = picture(1, 1, 1);
  shown.holders = [[1, "a", "Job", "x", "x", "", "", 0, 1, 0, 1, 0, 8, "waiting", "NeverFits", 1], [2, "b", "Job", "y", "y", "", "", 0, 1, 0, 1, 0, 4, "waiting", "DoesNotFit", 1]];
  const cluster = new page.Cluster(shown), of = (ns) => (({ waiting, wanted, stuck }) => [waiting, wanted, stuck])(cluster.totals(ns));
  assert.deepEqual([of(""), of("a"), of("b")], [[2, 12, 1], [1, 8, 1], [1, 4, 0]]);
});

test("times of a simulation and amounts are told as people say them", () => {
  assert.deepEqual([0, 30, 900, 3600, 129600, 86400 * 3].map(page.elapsed), ["0", "30s", "15m", "1h", "1d 12h", "3d"]);
  assert.deepEqual([page.amountText(1, "GPUs"), page.amountText(3200, "GPUs"), page.short("kubernetes.io/hostname")], ["1 GPU", "3,200 GPUs", "host"]);
  assert.match(page.iso(1_795_000_000).day, /^2026-11-\d\d$/);
});

test("an address keeps the namespace and the time that somebody looks at", () => {
  location.hash = "#/map?ns=team-a&t=7&colour=queue";
  assert.equal(page.link("queues"), "#/queues?ns=team-a&t=7");
  assert.equal(page.link("map", { ns: undefined, workload: "a/b" }), "#/map?t=7&workload=a%2Fb");
  location.hash = "";
  assert.equal(page.parse("").view, "map");
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
