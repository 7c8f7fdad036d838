import assert from "node:assert/strict";
import { test } from "node:test";
import type { Packet } from "../../api/types.ts";
import { layTracks } from "./tracks.ts";
import { neighbours, whole } from "./whole.ts";

const call = (id: number, t: number, dur: number, parent: number | null = null) => ({ id, func: id, name: `f${id}`, layer: "", depth: parent === null ? 0 : 1, parent, t, dur, self: dur, irq: 0, cpu: 0, ctx: "task", pid: 1, comm: "", point: false, list: false });
const made = (id: number, t: number, calls: unknown[], crossings: unknown[]) =>
  ({ row: { id, t }, calls, segments: [{ phase: "a", label: "a", wait: false, from: t, to: t + 5 }], events: [], handovers: [], frames: [], crossings }) as unknown as Packet;
const to = (device: string, packet: number, shift_ns: number) => ({ device, packet, direction: "to", flight_ns: 1, bound_ns: 1, shift_ns });

test("one packet in three kernels is on one axis, the first of them first, with the way between", async () => {
  // The host's log began 1000 after the guest's, the second guest's 500 before the host's.
  const guest = made(7, 100, [call(1, 100, 20), call(2, 105, 5, 1)], [to("host", 3, 1000)]);
  const host = made(3, -850, [call(1, -850, 30)], [to("guest", 7, -1000), to("other", 9, -500)]);
  const other = made(9, -300, [call(1, -300, 10)], [to("host", 3, 500)]);
  const asked: string[] = [];
  const get = async (n: { device: string }) => (asked.push(n.device), n.device === "host" ? host : n.device === "other" ? other : guest);
  const found = await neighbours(guest, "guest", get);
  assert.deepEqual(asked, ["host", "other"]);
  assert.deepEqual(found.map(([n]) => n.shift), [1000, 500]);
  const all = whole(guest, "guest", found);
  assert.deepEqual(all.calls.map((c) => [c.device, c.t]), [["guest", 100], ["guest", 105], ["host", 150], ["other", 200]]);
  assert.equal(new Set(all.calls.map((c) => c.id)).size, 4);
  assert.equal(all.calls[1]!.parent, all.calls[0]!.id);
  assert.deepEqual(all.segments.filter((s) => s.wait).map((s) => [s.label, s.from, s.to]), [["guest → host", 120, 150], ["host → other", 180, 200]]);
  assert.equal(all.row.t, 100);
  // Seen from the host it is the same.
  const back = whole(host, "host", await neighbours(host, "host", get));
  assert.deepEqual(back.calls.map((c) => [c.device, c.t + 1000]), all.calls.map((c) => [c.device, c.t]));
  // Each kernel has tracks of its own.
  assert.deepEqual(layTracks(all.calls).tracks.map((t) => [t.device, t.row, t.headed]), [["guest", 1, true], ["host", 4, true], ["other", 6, true]]);
  assert.deepEqual(layTracks(guest.calls).tracks.map((t) => [t.row, t.headed]), [[0, false]]);
});
