import assert from "node:assert/strict";
import { test } from "node:test";
import { TALLEST, lastTop, revealed, rowsAt, scrollFromTop, spread, topFromScroll, readWidths } from "./rows.ts";

test("short lists scroll pixel by pixel", () => {
  assert.equal(spread(1000, 20), 20_000);
  assert.equal(topFromScroll(50, 1000, 20, 400), 2.5);
  assert.deepEqual(rowsAt(2.5, 1000, 20, 400), { first: 2, last: 23, offset: 10 });
});

test("in long lists the bar reaches the last row and goes back to where it was", () => {
  const total = 50_000_000;
  assert.equal(spread(total, 20), TALLEST);
  assert.equal(topFromScroll(TALLEST - 400, total, 20, 400), total - 20);
  for (const top of [0, 1, 12_345_678, total - 20]) {
    assert.ok(Math.abs(topFromScroll(scrollFromTop(top, total, 20, 400), total, 20, 400) - top) < 1e-6);
  }
});

test("a row is revealed with the least movement", () => {
  assert.equal(revealed(100, 105, 1000, 20, 400), 100);
  assert.equal(revealed(100, 99, 1000, 20, 400), 99);
  assert.equal(revealed(100, 120, 1000, 20, 400), 101);
  assert.equal(revealed(0, 999, 1000, 20, 400), lastTop(1000, 20, 400));
  assert.equal(revealed(0, 3, 4, 20, 400), 0);
});

test("kept widths of columns", () => {
  assert.deepEqual(readWidths('{"id":90,"t":"x","src":-4,"dst":1e9}'), { id: 90 });
  assert.deepEqual(readWidths(null), {});
  assert.deepEqual(readWidths("[1"), {});
  assert.deepEqual(readWidths("null"), {});
});
