import assert from "node:assert/strict";
import { test } from "node:test";
import type { LatencyPoint, TimeRow } from "../../api/types.ts";
import { LogScale, barOf, filterOf, logTicks, nearest, reachOf, runs } from "./model.ts";

test("a logarithmic scale goes there and back", () => {
  const s = new LogScale(1_000, 1_000_000, 10, 310);
  assert.equal(s.at(1_000), 10);
  assert.ok(Math.abs(s.at(10_000) - 110) < 1e-9);
  assert.ok(Math.abs(s.back(210) - 100_000) < 1e-6);
  assert.equal(s.at(0), 10, "what is below the axis stands at its end");
  assert.deepEqual(reachOf(null, null)[0], 1);
  const [from, to] = reachOf(5_000, 5_000);
  assert.ok(from < 5_000 && to > 5_000, "one time has room around it");
});

test("marks are round and not more than there is room for", () => {
  assert.deepEqual(logTicks(1_000, 10_000, 8), [1_000, 2_000, 5_000, 10_000]);
  assert.deepEqual(logTicks(900, 1_100_000, 5), [1_000, 10_000, 100_000, 1_000_000]);
  assert.ok(logTicks(1, 1e12, 4).length <= 4);
});

test("a line is not drawn over time without a packet", () => {
  assert.deepEqual(runs([0, 1, 2, 7, 9, 10]), [[0, 2], [3, 3], [4, 5]]);
  assert.deepEqual(runs([]), []);
});

test("the nearest point, if one is near", () => {
  const points: LatencyPoint[] = [{ packet: 1, t: 10, path_ns: 10, dropped: false }, { packet: 2, t: 20, path_ns: 10, dropped: false }];
  const same = (v: number) => v;
  assert.equal(nearest(points, same, same, [17, 11], 8)?.packet, 2);
  assert.equal(nearest(points, same, same, [40, 40], 8), null);
});

test("a step of the histogram is a filter", () => {
  assert.equal(filterOf({ from: 1024, below: 1280, packets: 3 }, ""), "path_time >= 1024ns and path_time < 1280ns");
  assert.equal(filterOf({ from: 0, below: 4, packets: 3 }, "tcp or udp"), "(tcp or udp) and path_time >= 0ns and path_time < 4ns");
});

test("the bar is full, whatever the parts are of the path", () => {
  const part = (name: string, total: number) => ({ name, total }) as TimeRow;
  const bar = barOf([part("link", 300), part("qdisc", 100), part("gro", 0)]);
  assert.deepEqual(bar.map((b) => [b.row.name, b.part]), [["link", 0.75], ["qdisc", 0.25]]);
});
