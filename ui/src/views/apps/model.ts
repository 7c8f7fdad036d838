// Sockets in order, and a series as lanes that can be drawn: which numbers belong together, on which axis, what they are
// called at a moment. No drawing, no service.

import type { CrossingSeries, SocketLine, SocketSeries, TrackSeries } from "../../api/types.ts";
import { largest } from "../../base/scale.ts";
import { count, share, shortSpan, size } from "../../base/units.ts";
import type { Sorting } from "../../widgets/table.tsx";

/** Whose a socket is, in words. */
export function user(s: SocketLine): string {
  return s.process ?? (s.listener === null ? "process not known" : `(${s.listener} listens)`);
}

/** What held it back longest, in words. */
export function heldFor(s: SocketLine): string {
  return s.held ? `${s.held[0]} ${share(s.held[1])}` : "";
}

/** Sockets whose process or ends hold `search`, in order; what is not known comes last either way. */
export function arranged(sockets: SocketLine[], search: string, sort: Sorting): SocketLine[] {
  const wanted = search.trim().toLowerCase();
  const text = (s: SocketLine) => `${s.process ?? s.listener ?? ""} ${s.protocol} ${s.local} ${s.peer ?? ""} ${s.not_connected ?? ""} ${s.id}`.toLowerCase();
  const found = sockets.filter((s) => !wanted || text(s).includes(wanted));
  const key = (s: SocketLine): number | string | null => {
    if (sort.key === "duration") return s.to - s.from;
    if (sort.key === "held") return s.not_connected === null ? s.held && `${s.held[0]} ${s.held[1].toFixed(6)}` : `not connected: ${s.not_connected}`;
    if (sort.key === "id") return Number(s.id);
    return s[sort.key as Exclude<keyof SocketLine, "held">];
  };
  const sign = sort.desc ? -1 : 1;
  return found.sort((a, b) => {
    const [x, y] = [key(a), key(b)];
    if (x === y) return Number(a.id) - Number(b.id);
    if (x === null || y === null) return x === null ? 1 : -1;
    return x < y ? -sign : sign;
  });
}

/** The first moment of a bin, as the service cut them. */
export function edge(s: SocketSeries, bin: number): number {
  return s.from + Math.ceil(((s.to - s.from) * bin) / s.bins);
}

export function binAt(s: SocketSeries, t: number): number | null {
  if (t < s.from || t >= s.to) return null;
  return Math.min(s.bins - 1, Math.floor(((t - s.from) * s.bins) / (s.to - s.from)));
}

export type Numbers = (number | null)[];

export interface Curve {
  name: string;
  /** One of the page's colours. */
  color: string;
  low: Numbers;
  high: Numbers;
  /** In force at the end of each bin; null: not a number that stays, but what was there in the bin. */
  last: Numbers | null;
  dashed?: boolean;
  filled?: boolean;
}

export interface Lane {
  id: string;
  title: string;
  words: string;
  height: number;
  /** bars: up and, as negative numbers, down from the middle. */
  bars: boolean;
  log: boolean;
  low: number;
  high: number;
  curves: Curve[];
  show: (v: number) => string;
}

/** Of these crossings the first that the log has. */
function crossing(s: SocketSeries, ...names: string[]): CrossingSeries | undefined {
  for (const n of names) {
    const found = s.crossings.find((c) => c.crossing === n);
    if (found) return found;
  }
  return undefined;
}

/** Where frames leave and come, as far as the log knows: what a sniffer would see. */
const OUT = ["to-driver", "to-device", "to-network"];
const IN = ["from-device", "from-network", "to-socket"];

const rate = (v: number) => `${size(Math.abs(v))}/s`;

/** Bytes of each bin as bytes a second. */
function perSecond(s: SocketSeries, c: CrossingSeries | undefined, sign: 1 | -1): Numbers {
  return Array.from({ length: s.bins }, (_, i) => {
    const wide = Math.max(1, edge(s, i + 1) - edge(s, i));
    return c?.bytes[i] ? (sign * c.bytes[i]! * 1e9) / wide : 0;
  });
}

function bars(s: SocketSeries): Lane[] {
  const zero = Array.from({ length: s.bins }, () => 0);
  const bar = (name: string, color: string, c: CrossingSeries | undefined, sign: 1 | -1): Curve => {
    const v = perSecond(s, c, sign);
    return sign > 0 ? { name, color, low: zero, high: v, last: null } : { name, color, low: v, high: zero, last: null };
  };
  const again = crossing(s, "retransmit");
  const application = [bar("written", "l-socket", crossing(s, "send", "to-transport"), 1), bar("read", "p-icmp", crossing(s, "recv"), -1)];
  const network = [bar("sent", "l-network", crossing(s, ...OUT), 1), bar("received", "p-tcp", crossing(s, ...IN), -1)];
  if (again) network.push(bar("sent again", "retransmission", again, 1));
  const all = [...application, ...network];
  // One scale for both, or they could not be compared.
  const high = largest(all.flatMap((c) => c.high as number[]), 0);
  const low = -largest(all.flatMap((c) => c.low.map((v) => -v!)), 0);
  const lane = (id: string, title: string, words: string, curves: Curve[]): Lane => ({ id, title, words, height: 74, bars: true, log: false, low, high: Math.max(high, low === 0 ? 1 : 0), curves, show: rate });
  return [
    lane("application", "Application", "bytes that applications write (up) and read (down), on a root scale", application),
    lane("network", "Network", "the same bytes as packets: what tcpdump would see", network),
  ];
}

function sizes(s: SocketSeries): Lane | null {
  const band = (name: string, color: string, c: CrossingSeries | undefined): Curve[] => {
    if (!c) return [];
    const of = (v: number[]) => v.map((n, i) => (c.events[i] && c.most[i] ? Math.max(1, n) : null));
    return [{ name, color, low: of(c.least), high: of(c.most), last: null }];
  };
  const sum = (c: CrossingSeries | undefined) => c?.bytes.reduce((a, b) => a + b, 0) ?? 0;
  const [out, into] = [crossing(s, "send", "to-transport"), crossing(s, "recv")];
  const sends = sum(out) >= sum(into);
  const curves = sends
    ? [...band("one write", "l-socket", out), ...band("one packet", "l-network", crossing(s, "to-device", ...OUT))]
    : [...band("one read", "p-icmp", into), ...band("one packet", "p-tcp", crossing(s, ...IN))];
  const high = largest(curves.flatMap((c) => c.high.map((v) => v ?? 0)), 0);
  if (!high) return null;
  return { id: "sizes", title: "Sizes", words: `of ${sends ? "writes and of the packets they become" : "reads and of the packets they come from"}`, height: 62, bars: false, log: true, low: 1, high, curves, show: size };
}

function lane(s: SocketSeries, id: string, title: string, words: string, height: number, log: boolean, show: (v: number) => string, of: [metric: string, name: string, color: string, look?: "dashed" | "filled"][]): Lane | null {
  const curves: Curve[] = [];
  for (const [metric, name, color, look] of of) {
    const t: TrackSeries | undefined = s.tcp?.tracks.find((x) => x.metric === metric);
    if (t?.high.some((v) => v !== null)) curves.push({ name, color, low: t.low, high: t.high, last: t.last, dashed: look === "dashed", filled: look === "filled" });
  }
  const high = largest(curves.flatMap((c) => c.high.map((v) => v ?? 0)), 0);
  if (!curves.length || !high) return null;
  let low = 0;
  if (log) {
    low = high;
    for (const c of curves) for (const v of c.low) if (v !== null && v > 0 && v < low) low = v;
  }
  return { id, title, words, height, bars: false, log, low, high, curves, show };
}

/** Everything that a series has to show, from above. */
export function lanes(s: SocketSeries): Lane[] {
  const found = [
    ...bars(s),
    sizes(s),
    lane(s, "window", "Window", "congestion window, threshold and what is in flight, in segments", 96, false, (v) => count(v), [["in_flight", "in flight", "p-udp", "filled"], ["cwnd", "cwnd", "accent"], ["ssthresh", "ssthresh", "retransmission", "dashed"]]),
    lane(s, "time", "Round trip", "smoothed round trip, its variation, retransmission timeout", 84, true, shortSpan, [["rttvar", "variation", "p-udp"], ["srtt", "round trip", "accent"], ["rto", "timeout", "retransmission", "dashed"]]),
    lane(s, "bytes", "Buffers", "window that the other side offers, that is offered to it, bytes not acknowledged", 84, false, size, [["unacked", "not acknowledged", "p-udp", "filled"], ["snd_wnd", "offered by the other side", "accent"], ["rcv_wnd", "offered to it", "p-icmp", "dashed"]]),
    lane(s, "rate", "Rates", "pacing and delivery as TCP estimates them", 72, true, rate, [["delivery", "delivery", "accent"], ["pacing", "pacing", "doubt", "dashed"]]),
  ];
  return found.filter((l): l is Lane => l !== null);
}

/** 0 at the lower end of a lane, 1 at its upper. */
export function up(l: Lane, v: number): number {
  // A root scale: one write is still seen beside a burst.
  const root = (x: number) => Math.sign(x) * Math.sqrt(Math.abs(x));
  if (l.bars) return (root(v) - root(l.low)) / (root(l.high) - root(l.low) || 1);
  if (!l.log) return (v - l.low) / (l.high - l.low || 1);
  const [a, b] = [Math.log(Math.max(1e-9, l.low)), Math.log(Math.max(1e-9, l.high))];
  return b > a ? (Math.log(Math.max(l.low, v)) - a) / (b - a) : 0.5;
}

/** The colours of what held TCP back, in the order of the service. */
export const HELD: Record<string, string> = {
  application: "wait-line",
  handshake: "wire",
  "congestion window": "accent",
  "receive window": "p-icmp",
  "reading application": "drop",
  "send buffer": "l-socket",
  cork: "l-transport",
  "Nagle's rule": "p-tcp",
  retransmission: "retransmission",
  pacing: "doubt",
  device: "p-udp",
  "pacing or device": "p-arp",
};

/** Colours of the stages from write to read. */
export const STAGES: Record<string, string> = {
  handshake: "p-tcp",
  application: "wait-line",
  "send buffer": "l-socket",
  "congestion window": "accent",
  "receive window": "p-icmp",
  pacing: "doubt",
  cork: "muted",
  "Nagle's rule": "p-udp",
  loss: "retransmission",
  transport: "l-transport",
  neighbour: "p-arp",
  queue: "l-link",
  "queue on the path": "l-driver",
  "driver and wire": "wire",
  "driver, wire and peer": "wire",
  "peer's stack": "l-network",
  "peer's application": "drop",
  answer: "p-arp",
  undecided: "p-other",
};

/** How a mark looks: a colour and a shape. */
export const MARKS: Record<string, [color: string, shape: string]> = {
  retransmission: ["retransmission", "▲"],
  "taken for lost": ["drop", "✕"],
  "congestion state": ["doubt", "◆"],
  "zero window": ["p-icmp", "■"],
  "would block": ["muted", "○"],
  "failed call": ["drop", "!"],
};

function range(c: Curve, i: number, show: (v: number) => string): string | null {
  const [a, b] = [c.low[i] ?? null, c.high[i] ?? null];
  if (a === null || b === null) return null;
  if (c.last === null && a <= 0 && b >= 0) return a === 0 && b === 0 ? null : show(a || b);
  return a === b ? show(a) : `${show(a)} to ${show(b)}`;
}

/** What is known of one bin, line by line. */
export function wordsAt(s: SocketSeries, all: Lane[], bin: number): string[] {
  const lines: string[] = [];
  for (const l of all) {
    const known = l.curves.map((c) => [c.name, range(c, bin, l.show)] as const).filter(([, v]) => v !== null);
    if (known.length) lines.push(known.map(([n, v]) => `${n} ${v}`).join(", "));
  }
  const held = heldAt(s, bin);
  if (held) lines.push(`held back by ${held}`);
  const marks = happened(s, bin);
  if (marks) lines.push(marks);
  return lines;
}

/** What held it back for most of what is known of a bin. */
export function heldAt(s: SocketSeries, bin: number): string | null {
  let [name, most] = ["", 0];
  for (const h of s.tcp?.held ?? []) if (h.ns[bin]! > most) [name, most] = [h.held, h.ns[bin]!];
  return most ? name : null;
}

export function happened(s: SocketSeries, bin: number): string {
  const marks = s.marks.filter((m) => m.counts[bin]).map((m) => `${count(m.counts[bin]!)} × ${m.mark}`);
  const [a, b] = [edge(s, bin), edge(s, bin + 1)];
  if (s.gaps.some((g) => g.from < b && g.to >= a)) marks.unshift("events are missing");
  return marks.join(", ");
}
