// Generated from crates/server/src/answers by `UPDATE_TYPES=1 cargo test -p kpat-server --test types`. Do not edit.
//
// All questions are GET of the same origin, with the header `x-kpat-token`. Every answer is NDJSON: any number of lines
// Step or SoFar, then one line End. Whoever closes the connection leaves the question; the work for it stops.
// Parameters that every question takes: device=NAME (a log of several devices), where=FILTER (see docs/filter.md).

// Nanoseconds: since the log's start (times) or a duration.
export type Ns = number;
// A whole number that a double may not hold, as decimal text.
export type Big = string;
// Rows of T, column by column.
export interface Columns<T> { rows: number; columns: { [K in keyof T]: T[K][] } }
// While work is done, 0 to 1.
export interface Step { progress: number; words: string }
// The answer over the part of the packets that has been read until now.
export interface SoFar<T> { part: T }
// What is wrong, and where in the filter (UTF-16 units, as a text field counts) if it is the filter.
export interface Failure { words: string; at: { from: number; to: number } | null }
export type End<T> = { result: T } | { error: Failure };
// Server-sent events of /api/changes?token=: the log has grown, or its packets are all read; ask again.
export interface Change { generation: number }

// /api/info
export interface Info {
  // File name of the integrated log.
  name: string;
  // Counts up whenever answers may have changed.
  generation: number;
  // A recording goes on and the log grows.
  live: boolean;
  // All packets are in memory; before that only the first page of the plain list is answered at once.
  loaded: boolean;
  // This device; null: the log is of one device.
  device: string | null;
  // All devices of the log; empty: it is of one.
  device_names: string[];
  host: string;
  kernel: string;
  arch: string;
  mechanism: string;
  filter: string;
  // Only this part of the packets was recorded, as `1/8 of flows`.
  sample: string | null;
  // Only what is of processes that fit one of these; empty: of all.
  only: string[];
  profile: string;
  start_boot_ns: Big;
  start_wall_ns: Big | null;
  // When that clock was set, in order of time.
  wall_steps: WallStep[];
  length_ns: Ns;
  counts: Counts;
  captures: CaptureFile[];
  devices: Device[];
  cpus: number;
  losses: Loss[];
  cost: Words | null;
  // How far the log is to be trusted: the worst of its parts, in parts per million, and what it is of.
  trust_ppm: number | null;
  trust_words: string | null;
  // Name of the log that this one is compared with.
  compare: string | null;
  // Fields of the filter language.
  fields: Field[];
  // What is doubtful in the log, one sentence each.
  notes: string[];
}

// The device's wall clock was set.
export interface WallStep {
  // Since the start of the log.
  at_ns: Ns;
  // So much more than by its start it showed from then on.
  ahead_ns: Big;
}

export interface Counts {
  packets: number;
  frames: number;
  calls: number;
  events: number;
  functions: number;
  // Of applications, in a log of `record --profile app`.
  sockets: number;
  // Rows of the list of packets: packets and frames without a packet, as many as are held in memory.
  rows: number;
}

export interface CaptureFile {
  id: number;
  name: string;
  frames: number;
  matched: number;
}

export interface Device {
  netns: string;
  ifindex: number;
  name: string;
  driver: string;
}

export interface Loss {
  cause: string;
  cpu: number | null;
  from: Ns;
  to: Ns;
  count: number;
  advice: string;
}

export interface Words {
  words: string;
}

export interface Field {
  name: string;
  kind: 'number' | 'duration' | 'text' | 'address' | 'word' | 'flag';
  words: string;
  values: string[] | null;
}

// /api/trust
export interface Trust {
  clocks: Clock[];
  residuals: Residuals[];
  losses: Loss[];
  cost: Cost | null;
  closure: Words | null;
  parts: TrustPart[];
  conservation: Conservation;
}

// One way in which something can be missing: how much is there, of what should be.
export interface TrustPart {
  part: string;
  ppm: number;
  good: number;
  all: number;
  words: string;
}

// A stretch of a capture's clock: boot = wall + offset + drift * (wall - from), within plus or minus bound.
export interface Clock {
  capture: string;
  from: Ns | null;
  to: Ns | null;
  offset_ns: Big;
  drift_ppb: number;
  bound_ns: number;
  drift_bound_ppb: number;
  received: number;
  transmitted: number;
  rejected: number;
  method: string;
  words: string;
}

// Matches of one capture, evenly thinned to 4,000 at most: when, frame time less kernel time, and side (1 received,
// 2 transmitted, 0 cannot tell).
export interface Residuals {
  capture: string;
  t: Ns[];
  residual_ns: number[];
  side: number[];
  // How many there are without thinning.
  all: number;
}

export interface Cost {
  rows: [string, string][];
}

export interface Conservation {
  explained_ppm: number;
  words: string;
  interfaces: Balance[];
  unexplained: Unexplained[];
}

// came = out + delivered + dropped + merged + in_flight + lost + unexplained; given: handed to it for sending.
export interface Balance {
  name: string;
  came: number;
  out: number;
  delivered: number;
  dropped: number;
  merged: number;
  in_flight: number;
  lost: number;
  unexplained: number;
  given: number;
}

export interface Unexplained {
  packet: number;
  words: string;
}

// /api/events?kind=&from=&count=&where=
export interface Events {
  total: number;
  kinds: [string, number][];
  rows: Event[];
}

// /api/events/sums?bins=&from=&to=&where=
export interface EventSums {
  from: Ns;
  to: Ns;
  // Of each kind how many in each of equal parts of the time.
  bins: [string, number[]][];
  // All of them, by reason and place, most first.
  drops: DropPlace[];
}

export interface DropPlace {
  reason: string;
  place: string;
  count: number;
}

export interface Event {
  t: Ns;
  kind: string;
  packet: number | null;
  // Null: seen by user space, on whatever CPU that ran.
  cpu: number | null;
  words: string;
  place: string;
  reason: string;
  // So long before `t` it may have happened; null: `t` is the moment.
  within: Ns | null;
  // Whose task was current, and its number.
  process: string | null;
  pid: number | null;
}

// /api/complete?text=&at=
export interface Completion {
  from: number;
  to: number;
  items: CompletionItem[];
}

export interface CompletionItem {
  text: string;
  words: string;
}

// /api/check?where=
export interface Checked {
  // Rows that fit; null: the packets are not all read yet, or a function is asked for.
  rows: number | null;
}

// A row of the list: a packet, or a frame without one (id is null).
export interface PacketRow {
  id: number | null;
  // First wire frame: its number, with `capture:` before it where there are several captures.
  frame: string | null;
  // The same for /api/frame.
  frame_id: string | null;
  t: Ns;
  src: string;
  dst: string;
  proto: string;
  len: number;
  info: string;
  path_ns: Ns;
  kernel_ns: Ns;
  // Wire frames that were matched to it.
  frames: number;
  calls: number;
  points: number;
  // Empty: a frame without a packet.
  verdict: string;
  drop: string | null;
  process: string | null;
  pid: number | null;
  // Whose thread `pid` is.
  tgid: number | null;
  confidence: number | null;
  ambiguous: boolean;
  retransmission: boolean;
  if_in: string | null;
  if_out: string | null;
  // Network namespace first seen in: its inode number.
  netns: number | null;
  // Of the earliest call or point.
  cpu: number | null;
}

// /api/packets/at?where=&sort=&desc=&id=|frame=   row of a packet, or of a frame without one, in that list
export interface PacketAt {
  index: number | null;
}

// /api/overview?where=&bins=&from=&to=
export interface Overview {
  from: Ns;
  to: Ns;
  bins: Bins;
}

export interface Bins {
  packets: number[];
  drops: number[];
  retransmissions: number[];
  // A loss was counted in that time.
  lost: boolean[];
}

// /api/packet?id=
export interface Packet {
  row: PacketRow;
  layers: Layer[];
  frames: Frame[];
  // Preorder.
  calls: Call[];
  handovers: Handover[];
  segments: Segment[];
  events: PacketEvent[];
  lineage: Lineage;
  losses: Loss[];
  crossings: Crossing[];
  process: Process | null;
  // What its drop reason means, and what tells more.
  drop_means: string | null;
  drop_look_at: string | null;
  // Who wrote its bytes, and who read them; as far as the log has applications.
  ends: PacketEnd[];
}

export interface PacketEnd {
  // Else it read them.
  wrote: boolean;
  socket: Big;
  process: string | null;
  pid: number | null;
  payload: number;
  // Of the packet's first byte in its stream; null: it carries none, or is no stream's.
  offset: number | null;
  // Bytes that no call of the log has.
  missing: number;
  // The first of them.
  calls: PacketCall[];
  all_calls: number;
}

export interface PacketCall {
  id: number;
  // A write to TCP: when the socket gave it to TCP; else when the call was over.
  t: Ns;
  bytes: number;
  carried: number;
  // The kernel refused it: EPERM, for example. null: it did not.
  error: string | null;
}

// /api/frame?id=   a frame alone; id as in frame_id
export interface WireFrame {
  capture: string;
  number: number;
  interface: string;
  // null: its clock could not be related to the device's.
  t: Ns | null;
  bound_ns: Ns | null;
  wall_ns: Big;
  len: number;
  captured: number;
  proto: string;
  src: string;
  dst: string;
  info: string;
  layers: Layer[];
  packets: FramePacket[];
  // Why it has no packet, a sentence each, most telling first.
  why: string[];
  // Filter for what went between the same two.
  flow: string | null;
}

export interface FramePacket {
  id: number;
  key: string;
  confidence: number;
  alternatives: number;
  side: string;
}

export interface Layer {
  name: string;
  summary: string;
  fields: LayerField[];
}

export interface LayerField {
  name: string;
  value: string;
  // Equal in a wire frame's key.
  matched: boolean;
  // What it was later changed to, one after the other.
  changed: string | null;
}

export interface Frame {
  capture: string;
  number: number;
  t: Ns | null;
  wall_ns: Big;
  len: number;
  key: string;
  confidence: number;
  alternatives: number;
  bound_ns: Ns;
  residual_ns: Ns;
  side: string;
  via_packet: number;
}

export interface Call {
  id: number;
  func: number;
  name: string;
  layer: string;
  depth: number;
  // Id of the call above it among those shown.
  parent: number | null;
  t: Ns;
  dur: Ns | null;
  self: Ns | null;
  irq: Ns | null;
  cpu: number;
  ctx: 'task' | 'softirq' | 'hardirq' | 'nmi' | 'unknown';
  pid: number;
  comm: string;
  point: boolean;
  list: boolean;
}

export interface Handover {
  kind: string;
  from: Ns;
  to: Ns;
  wait: Ns;
  from_call: number | null;
  to_call: number | null;
}

export interface Segment {
  phase: string;
  label: string;
  wait: boolean;
  from: Ns;
  to: Ns;
}

export interface PacketEvent {
  t: Ns;
  kind: string;
  words: string;
}

export interface Lineage {
  nodes: LineageNode[];
  edges: LineageEdge[];
}

export interface LineageNode {
  kind: 'packet' | 'frame';
  id: string;
  words: string;
  t: Ns | null;
}

export interface LineageEdge {
  from: string;
  to: string;
  kind: string;
}

// The same data in another device's kernel.
export interface Crossing {
  device: string;
  packet: number;
  direction: 'from' | 'to';
  flight_ns: Ns;
  bound_ns: Ns;
  // Added to the other device's times they are on this one's axis, within the bound.
  shift_ns: Ns;
}

export interface Process {
  // The thread's.
  pid: number;
  tgid: number;
  comm: string;
}

// /api/phases/packets?where=&from=&count=
export interface PhasePackets {
  total: number;
  rows: PhasePacket[];
}

export interface PhasePacket {
  id: number;
  t: Ns;
  path_ns: Ns;
  // Phase and its time, in order.
  parts: [string, Ns][];
}

// /api/packets?where=&sort=&desc=&from=&count=   sort: a column of PacketRow; without it in order of time.
export interface Packets extends Columns<PacketRow> {
  // Rows that fit, and rows in all.
  total: number;
  all: number;
  from: number;
  // The packets are not all read yet: /api/changes tells when they are.
  partial: boolean;
}

// Columns of the list, by the first field of PacketRow that each shows.
export type PacketColumn = "id" | "t" | "path_ns" | "kernel_ns" | "proto" | "src" | "dst" | "info" | "len" | "frames" | "calls" | "points" | "verdict" | "drop" | "process" | "netns" | "confidence" | "if_in" | "cpu" | "frame" | "retransmission";

export type * from "./types-functions.ts";
export type * from "./types-apps.ts";
export type * from "./types-handover.ts";
export type * from "./types-profile.ts";
