import assert from "node:assert/strict";
import { test } from "node:test";
import { Scale, panned, tickWords, ticks, zoomed } from "./scale.ts";

test("a scale and its way back", () => {
  const s = new Scale(100, 300, 10, 410);
  assert.equal(s.at(200), 210);
  assert.equal(s.back(210), 200);
  assert.equal(new Scale(5, 5, 0, 100).at(5), 0);
});

test("marks are round and in one unit", () => {
  assert.deepEqual(ticks(0, 1_000_000, 5), [0, 200_000, 400_000, 600_000, 800_000, 1_000_000]);
  assert.deepEqual(tickWords([0, 200_000, 400_000]), ["0", "200 µs", "400 µs"]);
  assert.deepEqual(tickWords([1_000_000, 1_250_000, 1_500_000]), ["1.0 ms", "1.3 ms", "1.5 ms"]);
  assert.deepEqual(ticks(3, 3, 5), []);
});

test("zooming keeps the pivot and stays inside", () => {
  assert.deepEqual(zoomed(0, 100, 0.5, 50, 0, 100, 1), [25, 75]);
  assert.deepEqual(zoomed(0, 100, 0.5, 0, 0, 100, 1), [0, 50]);
  assert.deepEqual(zoomed(25, 75, 10, 50, 0, 100, 1), [0, 100]);
  assert.deepEqual(zoomed(0, 4, 0.01, 2, 0, 100, 1), [1.5, 2.5]);
  assert.deepEqual(panned(10, 20, 1000, 0, 100), [90, 100]);
});
