import assert from "node:assert/strict";
import { test } from "node:test";
import type { FunctionRow } from "../../api/types.ts";
import { arranged, bucketsOf, reach } from "./model.ts";

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
