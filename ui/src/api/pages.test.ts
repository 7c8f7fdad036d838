import assert from "node:assert/strict";
import { test } from "node:test";
import { PAGE, Pages, rowsOf } from "./pages.ts";

const settled = () => new Promise((done) => setTimeout(done, 0));

test("rows are fetched when they are looked at, and only then", async () => {
  const asked: number[] = [];
  const list = new Pages<number>(async (from, count) => {
    asked.push(from);
    return { total: 1000, rows: Array.from({ length: Math.min(count, 1000 - from) }, (_, i) => from + i) };
  });
  await settled();
  assert.equal(list.total.value, 1000);
  assert.equal(list.row(5), 5);
  assert.equal(list.row(PAGE), undefined);
  list.need(PAGE - 1, PAGE + 1);
  await settled();
  assert.equal(list.row(PAGE), PAGE);
  assert.deepEqual(asked, [0, PAGE]);
});

test("scrolling past leaves what is not looked at any more", async () => {
  const left: number[] = [];
  const list = new Pages<number>(
    (from, _count, signal) => new Promise(() => signal.addEventListener("abort", () => left.push(from))),
  );
  list.need(0, 10);
  list.need(100_000, 100_010);
  assert.deepEqual(left, [0]);
  list.end();
  assert.deepEqual(left, [0, 100_000]);
});

test("columns become rows", () => {
  assert.deepEqual(rowsOf<{ a: number; b: string }>({ rows: 2, columns: { a: [1, 2], b: ["x", "y"] } }), [{ a: 1, b: "x" }, { a: 2, b: "y" }]);
});
