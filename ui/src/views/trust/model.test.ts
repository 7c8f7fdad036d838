import assert from "node:assert/strict";
import { test } from "node:test";
import type { Clock } from "../../api/types.ts";
import { band, range } from "./model.ts";

const clock = (from: number | null, bound_ns: number): Clock => ({
  capture: "a", from, to: null, offset_ns: "0", drift_ppb: 0, bound_ns, drift_bound_ppb: 0, received: 0, transmitted: 0, rejected: 0, method: "", words: "",
});

test("the axis shows the bound and nearly all points, not the one that came late", () => {
  const residual_ns = [...Array.from({ length: 300 }, (_, i) => i * 10), 9e9];
  const [lo, hi] = range({ capture: "a", t: [], residual_ns, side: [], all: 301 }, [clock(0, 5000)]);
  assert.ok(lo < -5000 && lo > -7000 && hi > 5000 && hi < 7000, `${lo} ${hi}`);
});

test("an axis without points has a width", () => {
  const [lo, hi] = range({ capture: "a", t: [], residual_ns: [], side: [], all: 0 }, []);
  assert.ok(hi > lo);
});

test("stretches are in order, the open one first", () => {
  assert.deepEqual(band([clock(5, 1), clock(null, 2), clock(1, 3)]).map((c) => c.bound_ns), [2, 3, 1]);
});
