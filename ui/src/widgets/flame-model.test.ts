import assert from "node:assert/strict";
import { test } from "node:test";
import type { Flame } from "../api/types.ts";
import { foundIn, layFlame, neighbour } from "./flame-model.ts";

// a(100) over b(60) and c(70, more than is left); d(50) beside a.
const flame: Flame = {
  total: 150,
  nodes: {
    rows: 4,
    columns: {
      func: [0, 1, 2, 3], name: ["a", "ab", "c", "d"], layer: ["", "", "", ""], depth: [0, 1, 1, 0], parent: [-1, 0, 0, -1],
      calls: [1, 1, 1, 1], total: [100, 60, 70, 50], self: [0, 60, 70, 50],
    },
  },
};

test("a node stands over its caller and never over a neighbour", () => {
  const laid = layFlame(flame);
  assert.deepEqual([...laid.x], [0, 0, 60, 100]);
  assert.deepEqual([...laid.width], [100, 60, 40, 50]);
  assert.equal(laid.total, 150);
  assert.equal(laid.levels, 2);
});

test("what was found is counted once", () => {
  const laid = layFlame(flame);
  const found = foundIn(flame, laid, "A");
  assert.deepEqual([...found.nodes], [0, 1]);
  assert.equal(found.time, 100);
  assert.equal(foundIn(flame, laid, " ").nodes.size, 0);
});

test("arrows go to neighbours, callers and what was called", () => {
  const laid = layFlame(flame);
  assert.equal(neighbour(flame, laid, 0, "ArrowDown"), 1);
  assert.equal(neighbour(flame, laid, 1, "ArrowRight"), 2);
  assert.equal(neighbour(flame, laid, 2, "ArrowUp"), 0);
  assert.equal(neighbour(flame, laid, 0, "ArrowRight"), 3);
  assert.equal(neighbour(flame, laid, 3, "ArrowRight"), 3);
});
