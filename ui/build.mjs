// Builds the page, or builds and runs tests. Nothing here is shipped.
//   node build.mjs               src/app -> dist/{index.html,app.js,app.css}; a file that did not change is not touched
//   node build.mjs --test DIR [--only NAME]
//                                bundles every DIR/**/*.test.ts for node and runs them, or the one of that name, with node's own test runner
import { build } from "esbuild";
import { spawnSync } from "node:child_process";
import { existsSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";

const here = dirname(fileURLToPath(import.meta.url));
process.chdir(here);
const PAGE_LIMIT = 500_000; // compressed bytes; the page is inside the binary and comes over the loopback

function files(dir) {
  return readdirSync(dir, { withFileTypes: true }).flatMap((e) =>
    e.isDirectory() ? files(join(dir, e.name)) : [join(dir, e.name)],
  );
}

function keep(path, bytes) {
  if (existsSync(path) && readFileSync(path).equals(bytes)) return;
  mkdirSync(dirname(path), { recursive: true });
  writeFileSync(path, bytes);
}

async function page() {
  const made = await build({
    entryPoints: { app: "src/app/main.tsx" },
    outdir: "dist",
    bundle: true,
    minify: true,
    format: "iife",
    target: ["es2022"],
    jsx: "automatic",
    jsxImportSource: "preact",
    legalComments: "inline",
    write: false,
    logLevel: "warning",
  });
  const out = made.outputFiles.map((f) => [f.path, Buffer.from(f.contents)]);
  out.push([join(here, "dist/index.html"), readFileSync("index.html")]);
  for (const [path, bytes] of out) keep(path, bytes);
  const size = out.reduce((sum, [, bytes]) => sum + gzipSync(bytes, { level: 9 }).length, 0);
  console.log(`ui: ${(size / 1000).toFixed(1)} kB compressed`);
  if (size > PAGE_LIMIT) throw new Error(`the page has ${size} bytes compressed, ${PAGE_LIMIT} are the limit`);
}

async function tests(dir, only) {
  // Of one test its file alone: another one's world would be made for nothing, and newer Nodes do not end it where all of its tests are left out.
  const all = files(dir).filter((f) => /\.test\.tsx?$/.test(f));
  const named = all.filter((f) => only && readFileSync(f, "utf8").includes(JSON.stringify(only)));
  const found = named.length ? named : all; // a name may be made of parts
  if (!found.length) throw new Error(`no test in ${dir}`);
  // Not below node_modules, where newer ones look for no tests.
  const outdir = `.tests/${dir.replaceAll("/", "-")}`;
  rmSync(outdir, { recursive: true, force: true });
  await build({
    entryPoints: found,
    outdir,
    outbase: ".",
    bundle: true,
    platform: "node",
    format: "esm",
    target: ["node18"],
    jsx: "automatic",
    jsxImportSource: "preact",
    packages: "external",
    loader: { ".css": "empty" },
    sourcemap: "inline",
    outExtension: { ".js": ".mjs" },
    logLevel: "warning",
  });
  const pattern = only ? [`--test-name-pattern=^${only.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")}$`] : [];
  const run = spawnSync(process.execPath, ["--enable-source-maps", "--test-reporter=tap", ...pattern, "--test", ...files(outdir)], { stdio: "inherit" });
  process.exitCode = run.status ?? 1;
}

const [flag, dir, only, name] = process.argv.slice(2);
await (flag === "--test" ? tests(dir, only === "--only" ? name : "") : page());
