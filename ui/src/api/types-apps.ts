// Generated from crates/server/src/answers as types.ts is. Do not edit.

import type { Big, Ns } from "./types.ts";

// /api/apps   All sockets, those with the most bytes first; 10,000 at most.
export interface Apps {
  total: number;
  // Events that are missing in the log.
  lost: number;
  sockets: SocketLine[];
}

export interface SocketLine {
  // The kernel's cookie.
  id: Big;
  process: string | null;
  // The process that listens where it came to, if none has used it.
  listener: string | null;
  pid: number | null;
  // Whose thread `pid` is.
  tgid: number | null;
  protocol: string;
  local: string;
  // null: not connected.
  peer: string | null;
  // What became of a connection that was not made: refused, unreachable, timed out, closed, no port, no answer yet, or an error's name.
  not_connected: string | null;
  from: Ns;
  to: Ns;
  written: number;
  writes: number;
  read: number;
  reads: number;
  packets: number;
  frames: number;
  // Frames sent again.
  retransmitted: number;
  // Calls that failed.
  failed: number;
  // Mean; null: not TCP, or not known.
  round_trip: Ns | null;
  // What held it back longest, and for which share of the known time.
  held: [string, number] | null;
}

// /api/app?socket=   One socket at each layer.
export interface SocketDetail {
  line: SocketLine;
  version: number;
  congestion: string | null;
  // TCP: how it ended, in words: the error, which end closed it first, which reset it; null: it did not, or that is not known.
  error: string | null;
  netns: Big | null;
  cgroup: Big | null;
  layers: SocketLayer[];
  waits: SocketWait[];
  // Of the time over which TCP's state is known; null: it is not.
  limits: SocketLimits | null;
  writes_per_packet: number | null;
  // Calls that failed, in words; null: none did.
  failures: string | null;
}

export interface SocketLayer {
  crossing: string;
  // From which layer to which.
  words: string;
  // Packets cross here.
  packets: boolean;
  events: number;
  failed: number;
  bytes: number;
  frames: number;
  least: number;
  most: number;
  mean: number | null;
  // Exact to 1 in 64, as the other medians and shares.
  median: number | null;
  // Of calls that moved something.
  apart_mean: Ns | null;
  apart_median: Ns | null;
  apart_p99: Ns | null;
  // Events by size: at least this, and how many; the next power of two ends it.
  sizes: [number, number][];
}

export interface SocketWait {
  leg: string;
  bytes: number;
  least: Ns;
  mean: Ns | null;
  median: Ns | null;
  p99: Ns | null;
  most: Ns;
}

export interface SocketLimits {
  known: Ns;
  held: [string, Ns][];
  recovery: Ns;
  // The application's calls: refused until one was taken again, and inside those that send.
  refused: Ns;
  in_call: Ns;
  total_retrans: number;
}

// /api/app/series?socket=&from=&to=&bins=   A socket, or without one all in sum, over time. Bin i is from
// from + ceil((to - from) * i / bins) on.
export interface SocketSeries {
  from: Ns;
  to: Ns;
  bins: number;
  crossings: CrossingSeries[];
  marks: MarkSeries[];
  // null: all sockets, not TCP, or no state was recorded.
  tcp: TcpSeries | null;
  gaps: GapSpan[];
}

export interface CrossingSeries {
  crossing: string;
  words: string;
  events: number[];
  bytes: number[];
  frames: number[];
  // Of one event's bytes; 0 where nothing crossed.
  least: number[];
  most: number[];
}

// Moments, counted in each bin.
export interface MarkSeries {
  mark: string;
  counts: number[];
}

export interface TcpSeries {
  tracks: TrackSeries[];
  // Nanoseconds of each bin.
  held: HeldSeries[];
  recovery: number[];
}

// Extremes within each bin, and what was in force at its end; null: not known, or infinite.
export interface TrackSeries {
  metric: string;
  unit: string;
  low: (number | null)[];
  high: (number | null)[];
  last: (number | null)[];
}

export interface HeldSeries {
  held: string;
  ns: number[];
}

// Events are missing here.
export interface GapSpan {
  from: Ns;
  to: Ns;
  lost: number;
}

// /api/app/why?socket=   Where the time of a connection goes, from write to read: of what this socket wrote, or, if it wrote nothing, its peer.
export interface SocketWhy {
  // null: neither end wrote anything that the log has.
  why: Reasons | null;
}

export interface Reasons {
  // Which wrote.
  socket: Big;
  // Its device; null: the log has one only.
  device: string | null;
  // null: in none of the devices' logs.
  peer: Big | null;
  peer_device: string | null;
  // How far the peer's clock may be off, where it is another kernel's.
  clock: Ns | null;
  // Divided among the stages.
  whole: Ns;
  // Whatever became of what is not known, the first stage stays the first.
  certain: boolean;
  // The stage that took longest; null: nothing is known.
  first: string | null;
  stages: WhyStage[];
  writes: number;
  // How long the slowest of them took; null: none is known.
  slowest: Ns | null;
  // The packet with its last byte, in the log of the device that wrote; null: not known, or no packets.
  slowest_packet: number | null;
  lost: number;
}

export interface WhyStage {
  stage: string;
  meaning: string;
  // What it is known by.
  evidence: string;
  ns: Ns;
  // Of the whole time, 0 to 1.
  share: number;
  low: Ns;
  high: Ns;
  // What the program's threads did in it; null: not known, or it is no program's.
  ran: Ns | null;
  // Ready, for a CPU.
  waited: Ns | null;
  slept: Ns | null;
  // Of that, as far as it is known, the longest first.
  slept_for: WhySleep[];
}

export interface WhySleep {
  // Behind "slept".
  what: string;
  ns: Ns;
}

// /api/app/writes?socket=   Writes of a TCP socket, those that took longest to be acknowledged first; 100 at most.
export interface SocketWrites {
  total: number;
  open: number;
  writes: SlowWriteLine[];
}

export interface SlowWriteLine {
  id: number;
  t: Ns;
  bytes: number;
  process: string | null;
  acked_after: Ns;
}

// /api/app/write?id=   A write, the packets that carried it, and when these were read.
export interface WriteDetail {
  id: number;
  socket: Big;
  t: Ns;
  bytes: number;
  // The kernel refused it: EPERM, for example; `bytes` are those of its packets. null: it did not.
  error: string | null;
  // null: not seen, or not TCP.
  acked: Ns | null;
  packets: WritePacket[];
  cut: boolean;
}

export interface WritePacket {
  id: number;
  t: Ns;
  to: Ns;
  carried: number;
  verdict: string;
  info: string;
  // null: not known.
  read: Ns | null;
}
