import assert from "node:assert/strict";
import { test } from "node:test";
import { count, many, moment, readSpan, seen, share, shortSpan, size, span, sure, who } from "./units.ts";

test("durations carry a unit and never show a thousand of it", () => {
  const cases: [number, string][] = [
    [0, "0 ns"],
    [812, "812 ns"],
    [999.6, "1.000 µs"],
    [985_006, "985.006 µs"],
    [999_999.9, "1.000 ms"],
    [1_147_000, "1.147 ms"],
    [60e9, "60.000 s"],
    [-4_500, "−4.500 µs"],
  ];
  for (const [ns, want] of cases) assert.equal(span(ns), want);
  assert.equal(span(null), "–");
});

test("short durations have three digits", () => {
  assert.deepEqual([1, 999.9, 1234, 56_780, 1e9].map(shortSpan), ["1 ns", "1 µs", "1.23 µs", "56.8 µs", "1 s"]);
});

test("shares are not rounded to all or nothing", () => {
  assert.deepEqual([0, 0.00001, 0.5, 0.99999, 1].map(share), ["0.0 %", "< 0.1 %", "50.0 %", "> 99.9 %", "100.0 %"]);
  assert.deepEqual([null, 40, 99.9, 100].map(sure), ["–", "40 %", "99 %", "100 %"]);
});

test("typed durations", () => {
  assert.deepEqual(["250ns", "10us", " 1.5 ms ", "2s", "2", "x"].map(readSpan), [250, 10_000, 1_500_000, 2e9, null, null]);
});

test("sizes never show a thousand of a unit", () => {
  assert.deepEqual([0, 1023, 1024, 1048570, 21747984].map(size), ["0 B", "1023 B", "1.0 KiB", "1.0 MiB", "20.7 MiB"]);
});

test("counts and moments", () => {
  assert.equal(count(1234567), "1,234,567");
  assert.equal(many(1, "packet"), "1 packet");
  assert.equal(many(2, "packet"), "2 packets");
  assert.equal(moment(4_597_000), "0.004597");
});

test("names from a log cannot turn or hide text", () => {
  assert.equal(seen("a\u001b[31mb\u202ec"), "a\u241b[31mb\\u{202e}c");
  assert.equal(seen("<b>ü</b>"), "<b>ü</b>");
});

test("a thread is of a process", () => {
  assert.equal(who({ process: "python3", pid: 18445, tgid: 17706 }), "python3 17706/18445");
  assert.equal(who({ process: "python3", pid: 17706, tgid: 17706 }), "python3 17706");
  assert.equal(who({ process: null, pid: 3, tgid: null }), "3");
});
