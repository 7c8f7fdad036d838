// Generated from crates/server/src/answers as types.ts is. Do not edit.

import type { Columns, Ns } from "./types.ts";

export interface FunctionRow {
  id: number;
  name: string;
  module: string;
  layer: string;
  calls: number;
  packets: number;
  total: Ns;
  self: Ns;
  min: Ns | null;
  median: Ns | null;
  p99: Ns | null;
  max: Ns | null;
  max_packet: number | null;
  // Calls by duration: at least this, and how many; the next power of two ends it.
  buckets: [Ns, number][];
}

// /api/functions?where=&slower=&faster=&sort=&desc=   Without where from the function table at once, and thresholds
// choose functions that have such a call; with where the calls of those packets are counted, and only calls within
// the thresholds.
export interface Functions {
  rows: FunctionRow[];
  // Estimated cost of one run of a probe.
  probe_cost_ns: number | null;
}

// /api/function?id=&slower=&faster=&where=&from=&count=&by_time=   longest calls first, with by_time=1 earliest
export interface FunctionDetail {
  row: FunctionRow;
  // What it does with a packet, and what its own time goes into; null where nothing is known of it.
  does: string | null;
  slow: string | null;
  total: number;
  calls: Columns<FunctionCall>;
  callers: Neighbour[];
  callees: Neighbour[];
}

export interface FunctionCall {
  call: number;
  packet: number | null;
  t: Ns;
  dur: Ns | null;
  self: Ns | null;
  cpu: number;
  ctx: 'task' | 'softirq' | 'hardirq' | 'nmi' | 'unknown';
  comm: string;
}

// Of a caller: the calls it made to the function, and their time. Of a callee: the calls that the function made.
// id -1: no recorded caller.
export interface Neighbour {
  id: number;
  name: string;
  calls: number;
  total: Ns;
}

// /api/profile/flame?number=&context=   the same of samples: whom they are charged to, the context where it is no task, the functions; calls are samples,
// layer is process, context, user or kernel, func -1. context: task, page fault, softirq or hardirq.
// /api/flame?where=   nodes in preorder, most time first among siblings; parent: index, -1: none
export interface Flame {
  total: Ns;
  nodes: Columns<FlameNode>;
}

export interface FlameNode {
  func: number;
  name: string;
  layer: string;
  depth: number;
  parent: number;
  calls: number;
  total: Ns;
  self: Ns;
}

// /api/compare   only where the view was opened with --compare OTHER ...
export interface Compare {
  // Names of the logs of B.
  other: string[];
  // Runs of A, the opened log among them, and of B.
  runs: [number, number];
  // Differences are larger than what runs of one side differ by, as far as the verdicts say so.
  enough: boolean;
  // By what all functions moved, B by A.
  beside: number;
  remarks: CompareRemark[];
  rows: CompareRow[];
}

export interface CompareRemark {
  words: string;
  warning: boolean;
}

// Means: of a packet's path and layers, of one wait, of a call's self time. ratio: B by A; tested: of layers and
// functions beside the common factor, and low to high its 97 % interval for all rows together, null: not known.
// by_time_ns: what an average packet has more of it because each takes longer; by_count_ns: because there are more.
export interface CompareRow {
  // path, layer, wait or function.
  kind: string;
  name: string;
  layer: string;
  verdict: string;
  a: Side | null;
  b: Side | null;
  ratio: number | null;
  tested: number | null;
  low: number | null;
  high: number | null;
  by_time_ns: number;
  by_count_ns: number;
  probed: boolean;
}

// Means of the runs, their geometric mean, the least and the largest.
export interface Side {
  count: number;
  mean: number | null;
  least: number | null;
  largest: number | null;
}

// /api/time?where=   where the packets' time went; sums of times of many packets may exceed the path's, as a call on a
// list counts in full for each packet of it
export interface TimeSpent {
  packets: number;
  path: TimeRow;
  // What the path is made of, in order: layers, waits, the card, what was not recorded.
  parts: TimeRow[];
  // Most self time first.
  functions: TimeRow[];
  // Only tracepoints were recorded: moments, no functions.
  points_only: boolean;
  // The log says when tasks were off the CPU; else that time is self time.
  pauses: boolean;
  // Estimated cost of one run of a probe.
  probe_cost_ns: number | null;
}

// Self time of a function's calls, of a layer per packet, of each wait; id: of a function.
export interface TimeRow {
  id: number | null;
  // path, layer, wait, card, unrecorded or function.
  kind: string;
  name: string;
  layer: string;
  // Calls, waits, or packets.
  times: number;
  total: Ns;
  // Of the path; of a function, of all self time.
  share: number;
  // Its task was off the CPU.
  off: Ns;
  min: Ns | null;
  median: Ns | null;
  p90: Ns | null;
  p99: Ns | null;
  max: Ns | null;
  // At least this, and how many; the next power of two ends it.
  buckets: [Ns, number][];
}

// /api/latency?where=&bins=&from=&to=   path times of the packets that fit and began in that time
export interface Latency {
  from: Ns;
  to: Ns;
  // Equal pieces of the time.
  pieces: number;
  packets: number;
  min: Ns | null;
  median: Ns | null;
  p90: Ns | null;
  p99: Ns | null;
  max: Ns | null;
  // Pieces without a packet are left out.
  bins: Columns<LatencyBin>;
  // Each packet, or where they are too many the slowest.
  points: Columns<LatencyPoint>;
  // Every packet is a point.
  all_points: boolean;
  // Path times from ... to below ..., and how many; four steps per power of two, empty ones left out.
  histogram: HistogramStep[];
}

export interface LatencyBin {
  bin: number;
  packets: number;
  min: Ns;
  p10: Ns;
  median: Ns;
  p90: Ns;
  p99: Ns;
  max: Ns;
}

export interface LatencyPoint {
  packet: number;
  t: Ns;
  path_ns: Ns;
  dropped: boolean;
}

export interface HistogramStep {
  from: Ns;
  below: Ns;
  packets: number;
}

// /api/phases?where=
export interface Phases {
  packets: number;
  phases: PhaseRow[];
  // Cards whose DMA rx can be estimated; in no sum.
  dma_rx: DmaRx[];
  // Cards that stamp what they receive: what the phase dma-rx rests on.
  stamps: CardStamps[];
  not_measurable: NotMeasurable[];
  passages: Passage[];
  // Only tracepoints were recorded: moments, no functions.
  points_only: boolean;
}

// Over all passages; packets counts passages that have the phase.
export interface PhaseRow {
  phase: string;
  label: string;
  wait: boolean;
  meaning: string;
  packets: number;
  total: Ns;
  share: number;
  median: Ns | null;
  p99: Ns | null;
  functions: PhaseFunction[];
}

export interface PhaseFunction {
  id: number;
  name: string;
  self: Ns;
  share: number;
}

// Time per packet over batches back to back. Of 20 batches and more nine of ten are from low to high, else all.
export interface DmaRx {
  interface: string;
  driver: string;
  mean: Ns;
  low: Ns;
  high: Ns;
  packets: number;
  batches: number;
  runs: number;
}

// Stamped ones of the packets that a card received, those whose stamp has a time here, and the largest bound of these.
export interface CardStamps {
  interface: string;
  driver: string;
  received: number;
  stamped: number;
  known: number;
  bound: Ns;
}

export interface NotMeasurable {
  phase: string;
  words: string;
}

export interface Passage {
  name: string;
  packets: number;
  median: Ns | null;
}
