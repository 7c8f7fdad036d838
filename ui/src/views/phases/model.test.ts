import assert from "node:assert/strict";
import { test } from "node:test";
import type { PhaseRow } from "../../api/types.ts";
import { packetParts, sums } from "./model.ts";

test("a packet's parts stay in order and are measured against the longest", () => {
  const parts = packetParts({ id: 1, t: 0, path_ns: 100, parts: [["link-rx", 30], ["gro", 0], ["network-rx", 50], ["link-rx", 20]] }, 200);
  assert.deepEqual(parts.map((p) => [p.phase, p.part]), [["link-rx", 0.15], ["network-rx", 0.25], ["link-rx", 0.1]]);
});

test("work and waiting are summed apart", () => {
  const row = (total: number, wait: boolean): PhaseRow => ({ phase: "x", label: "", wait, meaning: "", packets: 1, total, share: 0, median: null, p99: null, functions: [] });
  assert.deepEqual(sums([row(5, false), row(7, true), row(1, false)]), { work: 6, wait: 7 });
});
