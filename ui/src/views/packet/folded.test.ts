import assert from "node:assert/strict";
import { test } from "node:test";
import { fold } from "./folded.ts";

test("a long silence between two short works is folded, and times come back", () => {
  const f = fold([[0, 1000], [1_000_000, 1_001_000]], 0, 1_001_000, true);
  assert.equal(f.folds.length, 1);
  assert.ok(f.length < 3000, `${f.length}`);
  for (const t of [0, 500, 1000, 5000, 999_999, 1_000_500, 1_001_000, -50, 1_002_000]) assert.ok(Math.abs(f.t(f.u(t)) - t) < 1e-6);
  const us = [0, 500, 1000, 5000, 999_999, 1_000_500, 1_001_000].map((t) => f.u(t));
  assert.deepEqual(us, [...us].sort((a, b) => a - b));
});

test("short silences stay, and without folding time is time", () => {
  assert.equal(fold([[0, 1000], [1100, 2000]], 0, 2000, true).folds.length, 0);
  const plain = fold([[0, 10], [1_000_000, 1_000_010]], 0, 1_000_010, false);
  assert.equal(plain.u(777), 777);
});

test("a packet of one moment has an axis", () => {
  assert.equal(fold([], 5, 5, true).length, 1);
});
