import assert from "node:assert/strict";
import { test } from "node:test";
import type { CrossingSeries, SocketLine, SocketSeries, TrackSeries } from "../../api/types.ts";
import { arranged, binAt, edge, happened, heldAt, lanes, up, wordsAt } from "./model.ts";

const line = (id: string, written: number, more: Partial<SocketLine> = {}): SocketLine => ({
  id, process: "a", listener: null, pid: 1, tgid: 1, protocol: "TCP", local: "10.0.0.1:1", peer: null, not_connected: null, from: 0, to: 10, written, writes: 1, read: 0, reads: 0, packets: 0, frames: 0, retransmitted: 0, failed: 0, round_trip: null, held: null, ...more,
});

test("sockets by any column, unknown last, found by end or process", () => {
  const all = [line("1", 5, { round_trip: 9 }), line("2", 7), line("3", 6, { round_trip: 3, peer: "[fd00::1]:443", held: ["application", 0.5] })];
  const ids = (search: string, key: string, desc: boolean) => arranged([...all], search, { key, desc }).map((s) => s.id).join("");
  assert.equal(ids("", "written", true), "231");
  assert.equal(ids("", "round_trip", false), "312");
  assert.equal(ids("", "round_trip", true), "132");
  assert.equal(ids("", "held", true), "312");
  assert.equal(ids("FD00", "written", true), "3");
});

const crossing = (name: string, bytes: number[], most = bytes): CrossingSeries => ({ crossing: name, words: name, events: bytes.map((b) => (b ? 1 : 0)), bytes, frames: bytes, least: most, most });
const track = (metric: string, values: (number | null)[]): TrackSeries => ({ metric, unit: "", low: values, high: values, last: values });
const series = (more: Partial<SocketSeries> = {}): SocketSeries => ({
  from: 100, to: 110, bins: 4, crossings: [crossing("send", [10, 0, 0, 40]), crossing("to-device", [0, 10, 0, 40])], marks: [{ mark: "zero window", counts: [0, 2, 0, 0] }], tcp: null, gaps: [{ from: 108, to: 108, lost: 3 }], ...more,
});

test("bins are those of the service", () => {
  const s = series();
  assert.deepEqual([0, 1, 2, 3, 4].map((i) => edge(s, i)), [100, 103, 105, 108, 110]);
  for (let t = 100; t < 110; t++) {
    const bin = binAt(s, t)!;
    assert.ok(edge(s, bin) <= t && t < edge(s, bin + 1), `${t} in ${bin}`);
  }
  assert.deepEqual([binAt(s, 99), binAt(s, 110)], [null, null]);
});

test("application and network have one scale, and what a sniffer sees is the last layer that is known", () => {
  const [application, network, sizes] = lanes(series());
  assert.deepEqual([application!.high, application!.low], [network!.high, network!.low]);
  assert.equal(application!.high, (40 * 1e9) / 2);
  assert.deepEqual(network!.curves[0]!.high.map((v) => v! > 0), [false, true, false, true]);
  assert.equal(sizes!.id, "sizes");
  assert.ok(up(application!, application!.high / 100) > 0.09, "little is seen beside much");
});

test("what is infinite or not known is not drawn, and a lane without numbers is not there", () => {
  const tcp = { tracks: [track("cwnd", [10, 10, 20, 20]), track("ssthresh", [null, null, null, null]), track("srtt", [null, 5, 7, 7])], held: [{ held: "application", ns: [3, 0, 0, 1] }, { held: "congestion window", ns: [0, 2, 0, 1] }], recovery: [0, 0, 0, 0] };
  const all = lanes(series({ tcp }));
  assert.deepEqual(all.map((l) => l.id), ["application", "network", "sizes", "window", "time"]);
  assert.deepEqual(all[3]!.curves.map((c) => c.name), ["cwnd"]);
  assert.equal(all[4]!.low, 5);
  assert.deepEqual([0, 1, 2].map((i) => heldAt(series({ tcp }), i)), ["application", "congestion window", null]);
  assert.ok(wordsAt(series({ tcp }), all, 1).some((l) => l.includes("cwnd 10")));
});

test("what happened, and what is missing, in words", () => {
  assert.equal(happened(series(), 1), "2 × zero window");
  assert.equal(happened(series(), 3), "events are missing");
  assert.equal(happened(series(), 0), "");
});
