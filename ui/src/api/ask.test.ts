import assert from "node:assert/strict";
import { test } from "node:test";
import { Refused, address, ask, readLine } from "./ask.ts";

test("lines of an answer", () => {
  assert.deepEqual(readLine('{"progress":0.5,"words":"calls"}'), { kind: "progress", part: 0.5, words: "calls" });
  assert.deepEqual(readLine('{"part":{"a":1}}'), { kind: "so far", value: { a: 1 } });
  assert.deepEqual(readLine('{"result":[]}'), { kind: "result", value: [] });
  assert.deepEqual(readLine('{"error":{"words":"no","at":{"from":1,"to":2}}}'), { kind: "error", words: "no", at: { from: 1, to: 2 } });
});

test("an address leaves out what was not set", () => {
  assert.equal(address("packets", { where: "a & b", from: 0, sort: "", desc: false, id: null }), "api/packets?where=a%20%26%20b&from=0");
});

/** Answers the next question with these pieces. */
function answering(...pieces: string[]): void {
  const encoder = new TextEncoder();
  const body = new ReadableStream<Uint8Array>({
    start(c) {
      for (const p of pieces) c.enqueue(encoder.encode(p));
      c.close();
    },
  });
  globalThis.fetch = async () => new Response(body);
  Object.assign(globalThis, { sessionStorage: { getItem: () => null } });
}

test("an answer in pieces, with progress before it", async () => {
  const seen: number[] = [];
  answering('{"progress":0.1}\n{"prog', 'ress":0.9,"words":"x"}\n{"res', 'ult":{"a":"ü', '"}}\n');
  assert.deepEqual(await ask("x", {}, { progress: (p) => seen.push(p) }), { a: "ü" });
  assert.deepEqual(seen, [0.1, 0.9]);
  const parts: unknown[] = [];
  answering('{"part":1}\n{"progress":0.5}\n{"part":2}\n', '{"result":3}\n');
  assert.equal(await ask("x", {}, { soFar: (value) => parts.push(value) }), 3);
  assert.deepEqual(parts, [1, 2]);
});

test("a refusal has its words and its place; half an answer is none", async () => {
  answering('{"error":{"words":"no field \\"x\\"","at":{"from":0,"to":1}}}\n');
  await assert.rejects(ask("x"), (e: Refused) => e.message === 'no field "x"' && e.at?.to === 1);
  answering('{"progress":0.1}\n');
  await assert.rejects(ask("x"), /stopped in the middle/);
  answering("<html>\n");
  await assert.rejects(ask("x"), /cannot be read/);
});
