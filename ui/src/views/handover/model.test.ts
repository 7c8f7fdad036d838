import assert from "node:assert/strict";
import { test } from "node:test";
import type { HandoverDetail, HandoverPhase } from "../../api/types.ts";
import { nearest, phaseAt, phaseLines, reach } from "./model.ts";

const phase = (label: string, from: number, to: number): HandoverPhase => ({
  phase: label, label, group: "search", meaning: "", from, to, share: 0, begin: "", evidence: "", why: null, steps: [],
});

test("phases of one name are one row, in the order in which they first come", () => {
  const lines = phaseLines([phase("probing", 0, 10), phase("pause", 10, 15), phase("probing", 15, 20)]);
  assert.deepEqual(lines.map((l) => [l.label, l.spans.length, l.total]), [["probing", 2, 15], ["pause", 1, 5]]);
});

test("the picture reaches as far as the gap of the application", () => {
  const line = { from: 100, to: 200 } as HandoverDetail["line"];
  const of = (gap: HandoverDetail["gap"]) => reach({ line, gap } as HandoverDetail);
  assert.deepEqual(of(null), [98, 202]);
  assert.deepEqual(of({ from: 50, to: 250, words: "" }), [46, 254]);
  assert.deepEqual(of({ from: 50, to: null, words: "" }), [47, 203]);
});

test("what is at a time: the phase, and the nearest mark within reach", () => {
  const all = [phase("a", 0, 10), phase("b", 10, 20)];
  assert.equal(phaseAt(all, 10)?.label, "b");
  assert.equal(phaseAt(all, 20), null);
  const marks = [{ t: 5 }, { t: 9 }];
  assert.equal(nearest(marks, 8, 2)?.t, 9);
  assert.equal(nearest(marks, 20, 2), null);
});
