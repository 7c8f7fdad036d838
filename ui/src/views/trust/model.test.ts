import assert from "node:assert/strict";
import { test } from "node:test";
import type { Clock } from "../../api/types.ts";
import { band, bent } from "./model.ts";

const clock = (from: number | null, bound_ns: number): Clock => ({
  capture: "a", from, to: null, offset_ns: "0", drift_ppb: 0, bound_ns, drift_bound_ppb: 0, received: 0, transmitted: 0, rejected: 0, method: "", words: "",
});

test("the axis shows both the bound and the frame that came late", () => {
  const residual_ns = [...Array.from({ length: 300 }, (_, i) => i * 10), 9e9];
  const axis = bent({ capture: "a", t: [], residual_ns, side: [], all: 301 }, [clock(0, 5000)]);
  assert.equal(axis.high, 9e9);
  assert.equal(axis.low, -10_000);
  assert.ok(axis.bend(5000) / axis.bend(9e9) > 0.05, "the bound is seen");
  assert.deepEqual(axis.marks, [-10_000, 0, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9]);
});

test("one stretch that is hardly known takes no other's scale away", () => {
  const axis = bent({ capture: "a", t: [], residual_ns: [-200_000, 90_000], side: [], all: 2 }, [clock(0, 1_800_000), clock(1, 95_000)]);
  assert.deepEqual(axis.marks, [-100_000, 0, 100_000]);
});

test("an axis without points has a width", () => {
  const axis = bent({ capture: "a", t: [], residual_ns: [], side: [], all: 0 }, []);
  assert.ok(axis.high > axis.low);
});

test("stretches are in order, the open one first", () => {
  assert.deepEqual(band([clock(5, 1), clock(null, 2), clock(1, 3)]).map((c) => c.bound_ns), [2, 3, 1]);
});
