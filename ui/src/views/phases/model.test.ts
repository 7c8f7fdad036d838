import assert from "node:assert/strict";
import { test } from "node:test";
import type { PhaseRow } from "../../api/types.ts";
import { dmaWords, packetParts, stampWords, sums } from "./model.ts";

test("a packet's parts stay in order and are measured against the longest", () => {
  const parts = packetParts({ id: 1, t: 0, path_ns: 100, parts: [["link-rx", 30], ["gro", 0], ["network-rx", 50], ["link-rx", 20]] }, 200);
  assert.deepEqual(parts.map((p) => [p.phase, p.part]), [["link-rx", 0.15], ["network-rx", 0.25], ["link-rx", 0.1]]);
});

test("work and waiting are summed apart", () => {
  const row = (total: number, wait: boolean): PhaseRow => ({ phase: "x", label: "", wait, meaning: "", packets: 1, total, share: 0, median: null, p99: null, functions: [] });
  assert.deepEqual(sums([row(5, false), row(7, true), row(1, false)]), { work: 6, wait: 7 });
});

test("the estimate of DMA rx has its batches, and of how many its range is", () => {
  const card = { interface: "r0", driver: "e1000e", mean: 5000, low: 4000, high: 6000, packets: 640, batches: 10, runs: 1 };
  assert.equal(dmaWords(card), "10 batches back to back in 1 run, of 64.0 packets on average, 4.000 µs to 6.000 µs in all");
  assert.match(dmaWords({ ...card, batches: 40, runs: 2 }), /^40 batches back to back in 2 runs, of 16.0 .* in 36 of them$/);
});

test("a measured DMA rx has its stamps and their bound", () => {
  const card = { interface: "r0", driver: "igb", received: 500, stamped: 480, known: 480, bound: 1_200 };
  assert.equal(stampWords(card), "480 of 500 packets have the card's own time stamp; each within ±1.200 µs");
  assert.match(stampWords({ ...card, known: 470 }), /; 470 of them have a time, each within ±1.200 µs$/);
  assert.match(stampWords({ ...card, known: 0 }), /; its clock is not known at any of them$/);
});
