import assert from "node:assert/strict";
import { test } from "node:test";
import type { PacketRow } from "../../api/types.ts";
import { rowWords, signs } from "./model.ts";

const plain: PacketRow = {
  id: 7, frame: "r0.pcap:3", frame_id: "0.1", t: 1000, src: "10.0.0.1", dst: "10.0.0.2", proto: "TCP", len: 60, info: "", path_ns: 1, kernel_ns: 1, frames: 1, calls: 1, points: 0,
  verdict: "forwarded", drop: null, process: null, pid: null, tgid: null, confidence: 0.99, ambiguous: false, retransmission: false, if_in: null, if_out: null, netns: null, cpu: null,
};

test("a plain row has no sign, a bad one has the gravest first", () => {
  assert.deepEqual(signs(plain), []);
  const bad = { ...plain, drop: "NETFILTER_DROP", retransmission: true, ambiguous: true };
  assert.deepEqual(signs(bad).map((s) => s.key), ["drop", "retransmission", "ambiguous"]);
});

test("a frame that no packet was found for says so", () => {
  assert.equal(rowWords({ ...plain, id: null }), "frame r0.pcap:3, TCP from 10.0.0.1 to 10.0.0.2, frame without a packet");
});
