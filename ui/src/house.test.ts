// Is the page's house as it says it is: who imports whom, no `any`, no markup made of strings.

import assert from "node:assert/strict";
import { readFileSync, readdirSync } from "node:fs";
import { dirname, join, normalize } from "node:path";
import { test } from "node:test";

const LAYERS = ["base", "api", "widgets", "views", "app"];

function sources(dir: string): string[] {
  return readdirSync(dir, { withFileTypes: true }).flatMap((e) => (e.isDirectory() ? sources(join(dir, e.name)) : /\.tsx?$/.test(e.name) ? [join(dir, e.name)] : []));
}

const files = sources("src").filter((f) => !f.endsWith(".test.ts"));
const text = (f: string) => readFileSync(f, "utf8");

test("arrows point down: base <- api <- widgets <- views <- app", () => {
  for (const f of files) {
    const room = LAYERS.indexOf(f.split("/")[1]!);
    for (const [, path] of text(f).matchAll(/from "(\.[^"]+)"/g)) {
      const target = normalize(join(dirname(f), path!)).split("/");
      const theirs = LAYERS.indexOf(target[1]!);
      assert.ok(theirs <= room, `${f} imports ${path}`);
      if (LAYERS[room] === "views" && target[1] === "views" && target.length > 3)
        assert.equal(target[2], f.split("/")[2], `${f} imports from another view: ${path}`);
    }
  }
});

test("every view is registered", () => {
  const registered = text("src/app/views.ts");
  for (const e of readdirSync("src/views", { withFileTypes: true })) {
    if (e.isDirectory()) assert.match(registered, new RegExp(`views/${e.name}/`), `${e.name} is in no list`);
  }
});

test("no any, no markup out of strings, no evaluated text", () => {
  for (const f of files) {
    const code = text(f).replace(/\/\/.*$|\/\*[\s\S]*?\*\//gm, "");
    assert.doesNotMatch(code, /:\s*any\b|<any>|as any\b/, f);
    assert.doesNotMatch(code, /innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function/, f);
  }
});

test("every file says what it is for", () => {
  for (const f of files) assert.match(text(f), /^(\/\/|declare module)/, f);
});
