import assert from "node:assert/strict";
import { test } from "node:test";
import type { CompareRow, FunctionRow } from "../../api/types.ts";
import { arranged, bucketsOf, onAxis, perCent, reach, widest } from "./model.ts";

const row = (id: number, name: string, median: number | null, buckets: [number, number][] = []): FunctionRow => ({
  id, name, module: id === 2 ? "e1000e" : "", layer: "network", calls: id, packets: 1, total: 1, self: 1, min: 1, median, p99: 1, max: 1, max_packet: null, buckets,
});
const rows = [row(1, "ip_rcv", 20), row(2, "xmit_frame", null), row(3, "ip_output", 10)];

test("in order, what is not known last both ways", () => {
  const ids = (desc: boolean) => arranged([...rows], "", { key: "median", desc }).map((r) => r.id);
  assert.deepEqual(ids(false), [3, 1, 2]);
  assert.deepEqual(ids(true), [1, 3, 2]);
});

test("searched in names and modules", () => {
  assert.deepEqual(arranged([...rows], "IP_", { key: "calls", desc: true }).map((r) => r.id), [3, 1]);
  assert.deepEqual(arranged([...rows], "e1000", { key: "calls", desc: true }).map((r) => r.id), [2]);
});

test("distributions share one axis", () => {
  const a = row(1, "a", 1, [[1024, 5], [4096, 10]]);
  const b = row(2, "b", 1, [[64, 1], [1 << 20, 0]]);
  assert.deepEqual(reach([a, b]), [6, 13]);
  assert.deepEqual(bucketsOf(a), [{ power: 10, calls: 5, part: 0.5 }, { power: 12, calls: 10, part: 1 }]);
  assert.deepEqual(reach([]), [0, 1]);
});

test("a change of 1 % can be seen beside one of a factor of 100", () => {
  const change = (ratio: number, low: number | null, high: number | null): CompareRow => ({
    kind: "function", name: "f", layer: "link", verdict: "", a: null, b: null, ratio, tested: null, low, high, by_time_ns: 0, by_count_ns: 0, probed: true,
  });
  const most = widest([change(1.01, null, null), change(2, 0.01, 4), change(1, null, null)]);
  assert.ok(Math.abs(most - 100) < 1e-9);
  assert.equal(onAxis(1, most), 0);
  assert.ok(Math.abs(onAxis(100, most) - 1) < 1e-9 && Math.abs(onAxis(0.01, most) + 1) < 1e-9);
  // A tenth of half the axis: nine pixels of 92.
  assert.ok(onAxis(1.01, most) > 0.1, `${onAxis(1.01, most)}`);
  assert.equal(onAxis(1e9, most), 1);
  assert.ok(widest([]) > 1);
  assert.deepEqual([perCent(1.1), perCent(0.5), perCent(3.83)], ["+10.0 %", "-50.0 %", "+283 %"]);
});
