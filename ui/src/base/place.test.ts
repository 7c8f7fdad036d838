import assert from "node:assert/strict";
import { test } from "node:test";
import { START, asked, readPlace, writePlace } from "./place.ts";

test("an address says what it was made of", () => {
  const there = { view: "functions", where: 'func == "ip_rcv" & <b>', time: [1000, 2500] as [number, number], packet: 12, frame: null, func: 0, socket: "9007199254740993", call: 7, process: 4194305, handover: 3, device: "a b" };
  assert.deepEqual(readPlace(writePlace(there)), there);
  assert.equal(writePlace({ ...START, view: "events" }), "#/events");
  const frame = { ...START, view: "packets", frame: "1.207" };
  assert.deepEqual(readPlace(writePlace(frame)), frame);
});

test("nonsense in an address is ignored", () => {
  assert.deepEqual(readPlace("#token=abc"), START);
  assert.deepEqual(readPlace("#/packets?packet=-1&func=x&time=9-3&frame=x&socket=-4&process=a&handover=-1"), { ...START, view: "packets" });
});

test("filter and brushed time are asked together", () => {
  assert.equal(asked("", null), "");
  assert.equal(asked("tcp or udp", [5, 10]), "(tcp or udp) and time >= 5ns and time <= 10ns");
  assert.equal(asked("", [5, 10]), "time >= 5ns and time <= 10ns");
});
