import assert from "node:assert/strict";
import { test } from "node:test";
import type { Event } from "../../api/types.ts";
import { marks } from "./model.ts";

const event = (t: number, kind: string, reason = "", place = ""): Event => ({ t, kind, packet: null, cpu: 0, words: "", place, reason, within: null, process: null, pid: null });

test("events near each other share a mark, kinds do not", () => {
  const found = marks([event(30, "drop"), event(0, "drop"), event(2, "drop"), event(1, "link"), event(9, "other")], ["drop", "link"], (t) => t, 5);
  assert.deepEqual(found.map((m) => [m.kind, m.lane, m.x, m.events.length]), [["drop", 0, 0, 2], ["link", 1, 1, 1], ["drop", 0, 30, 1]]);
});

