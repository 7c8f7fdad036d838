import assert from "node:assert/strict";
import { test } from "node:test";
import type { ProfilePair } from "../../api/types.ts";
import { called, idOf, matrix } from "./model.ts";

const pair = (victim: number | null, beneficiary: number | null, time: number, name = "x"): ProfilePair => ({
  victim,
  victim_name: victim === null ? "idle" : `v${victim}`,
  beneficiary,
  beneficiary_name: beneficiary === null ? name : `b${beneficiary}`,
  time,
  packets: 1,
});

test("time of two purposes between the same two is one cell, and every nanosecond is in a cell or in the rest", () => {
  const m = matrix([pair(1, 2, 10), pair(1, 2, 5), pair(null, 2, 7), pair(1, null, 3, "dropped"), pair(1, null, 4, "kernel"), pair(9, 8, 1)], 2);
  assert.deepEqual(m.victims.map(called), ["v1 1", "(idle)"]);
  assert.deepEqual(m.beneficiaries.map(called), ["b2 2", "(kernel)"]);
  assert.deepEqual(m.time, [[15, 4], [7, 0]]);
  assert.equal(m.most, 15);
  assert.equal(m.time.flat().reduce((a, b) => a + b, 0) + m.rest, m.total);
  assert.equal(m.rest, 4);
});

test("a second process with an id is another one", () => {
  assert.deepEqual([idOf(1234), idOf(1234 + 2 ** 22), idOf(-1)], ["1234", "1234.2", "-1"]);
  const m = matrix([pair(7, 1, 5), pair(7 + 2 ** 22, 1, 6)], 5);
  assert.equal(m.victims.length, 2);
});
