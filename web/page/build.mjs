// Makes web/static from src, byte for byte the same each time; `--check` compares with what is committed.
import { build } from "esbuild";
import { readFile, writeFile } from "node:fs/promises";
import { gzipSync } from "node:zlib";

const STATIC = new URL("../static/", import.meta.url);
const LIMIT = 100_000; // bytes of all files together, packed

const made = await build({
  entryPoints: { "page": "src/main.tsx" },
  bundle: true,
  minify: true,
  write: false,
  outdir: "out",
  format: "iife",
  target: ["es2022"],
  jsx: "automatic",
  jsxImportSource: "preact",
  charset: "utf8",
  legalComments: "none",
  banner: { js: "/* Topogate's page, with Preact (MIT) and uPlot (MIT). Made by web/page/build.mjs. */" },
});
const files = new Map(made.outputFiles.map((one) => [one.path.split("/").at(-1), Buffer.from(one.contents)]));
for (const name of ["index.html", "icon.svg"]) files.set(name, await readFile(new URL(`src/${name}`, import.meta.url)));
const texts = [];
for (const name of ["preact", "uplot"]) {
  const own = JSON.parse(await readFile(`node_modules/${name}/package.json`, "utf8"));
  texts.push(`${name} ${own.version}\n\n${(await readFile(`node_modules/${name}/LICENSE`, "utf8")).trim()}\n`);
}
const licences = "LICENSES.txt"; // goes with the page, and is not served
files.set(licences, Buffer.from(texts.join(`\n${"-".repeat(80)}\n\n`)));

let total = 0;
const stale = [];
for (const [name, bytes] of [...files].sort()) {
  const packed = gzipSync(bytes, { level: 9 }).length;
  if (name !== licences) total += packed;
  console.log(`${name}: ${bytes.length} bytes, ${packed} packed`);
  const there = await readFile(new URL(name, STATIC)).catch(() => null);
  if (there === null || !there.equals(bytes)) stale.push(name);
  if (!process.argv.includes("--check")) await writeFile(new URL(name, STATIC), bytes);
}
console.log(`all: ${total} packed`);
if (total > LIMIT) throw new Error(`more than ${LIMIT} bytes`);
if (process.argv.includes("--check") && stale.length) throw new Error(`not what src makes: ${stale.join(", ")}; run make page`);
