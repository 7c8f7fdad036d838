import assert from "node:assert/strict";
import { test } from "node:test";
import { layGraph } from "./graph.ts";

const node = (id: string) => ({ kind: "packet" as const, id, words: id, t: null });
const edge = (from: string, to: string) => ({ from, to, kind: "clone" });

test("what came before stands to the left", () => {
  const placed = layGraph({ nodes: ["a", "b", "c", "d"].map(node), edges: [edge("a", "b"), edge("a", "c"), edge("b", "d"), edge("a", "d")] });
  assert.deepEqual(placed.map((p) => [p.node.id, p.column, p.row]), [["a", 0, 0], ["b", 1, 0], ["c", 1, 1], ["d", 2, 0]]);
});

test("what became of itself stays where it is", () => {
  const placed = layGraph({ nodes: ["a", "b"].map(node), edges: [edge("a", "a"), edge("a", "b")] });
  assert.deepEqual(placed.map((p) => p.column), [0, 1]);
});

test("a circle ends", () => {
  assert.equal(layGraph({ nodes: ["a", "b"].map(node), edges: [edge("a", "b"), edge("b", "a")] }).length, 2);
});
