import assert from "node:assert/strict";
import { test } from "node:test";
import type { Call } from "../../api/types.ts";
import { layLines, layTracks } from "./tracks.ts";

const call = (id: number, t: number, depth: number, parent: number | null, more: Partial<Call> = {}): Call => ({
  id, func: id, name: `f${id}`, layer: "network", depth, parent, t, dur: 10, self: id, irq: 0, cpu: 0, ctx: "softirq", pid: 0, comm: "", point: false, list: false, ...more,
});

test("calls nest in the track of their CPU and context, interrupts above what they interrupt", () => {
  const { tracks, bars } = layTracks([
    call(1, 0, 0, null),
    call(2, 1, 1, 1),
    call(3, 2, 2, 2, { ctx: "hardirq" }),
    call(4, 20, 0, null, { cpu: 1, ctx: "task" }),
  ]);
  assert.deepEqual(tracks.map((t) => [t.cpu, t.ctx, t.levels, t.row]), [[0, "hardirq", 1, 0], [0, "softirq", 2, 1], [1, "task", 1, 3]]);
  assert.deepEqual(bars.map((b) => [b.track, b.level]), [[1, 0], [1, 1], [0, 0], [2, 0]]);
});

test("notes stand where they belong in time; a shut call hides what is inside", () => {
  const calls = [call(1, 0, 0, null), call(2, 1, 1, 1), call(3, 2, 2, 2), call(4, 20, 0, null)];
  const notes = [{ t: 15, glyph: "⇢", words: "other CPU", span: 5 }, { t: -3, glyph: "●", words: "wire", span: null }];
  const words = (shut: number[]) => layLines(calls, notes, new Set(shut)).map((l) => (l.kind === "call" ? l.call.id : l.words));
  assert.deepEqual(words([]), ["wire", 1, 2, 3, "other CPU", 4]);
  assert.deepEqual(words([1]), ["wire", 1, "other CPU", 4]);
  const points = [call(1, 0, 0, null), call(2, 7, 0, null)];
  const waits = [{ t: 0, glyph: "⇢", words: "qdisc", span: 7 }, { t: 7, glyph: "⇢", words: "backlog", span: 2 }, { t: 0, glyph: "~", words: "headers", span: null }];
  assert.deepEqual(layLines(points, waits, new Set()).map((l) => (l.kind === "call" ? l.call.id : l.words)), ["headers", 1, "qdisc", 2, "backlog"]);
  const lines = layLines(calls, [], new Set());
  assert.deepEqual(lines.map((l) => l.kind === "call" && l.heat), [0.25, 0.5, 0.75, 1]);
});
