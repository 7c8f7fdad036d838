// Where each call stands in the timeline: a track for every CPU and context in which something ran, calls nested in it.

import type { Call } from "../../api/types.ts";
import { largest } from "../../base/scale.ts";
import type { Placed } from "./whole.ts";

export interface Bar {
  call: Call;
  track: number;
  level: number;
}

export interface Track {
  /** Of several kernels. */
  device: string;
  cpu: number;
  ctx: Call["ctx"];
  levels: number;
  /** First row of this track, counted in levels over all tracks. */
  row: number;
  /** The first of its kernel, whose name stands over it. */
  headed: boolean;
}

/** From what interrupts to what is interrupted. */
const ORDER: Call["ctx"][] = ["nmi", "hardirq", "softirq", "task", "unknown"];

export const CONTEXT: Record<Call["ctx"], string> = {
  nmi: "NMI",
  hardirq: "hard irq",
  softirq: "softirq",
  task: "task",
  unknown: "context unknown",
};

export function layTracks(calls: Placed[]): { tracks: Track[]; bars: Bar[] } {
  // Kernels in the order in which they had the packet.
  const devices = [...new Set(calls.map((c) => c.device ?? ""))];
  const key = (c: Placed) => `${devices.indexOf(c.device ?? "")} ${c.cpu} ${ORDER.indexOf(c.ctx)}`;
  const keys = [...new Set(calls.map(key))].sort((a, b) => {
    const [x, y] = [a.split(" ").map(Number), b.split(" ").map(Number)];
    return x[0]! - y[0]! || x[1]! - y[1]! || x[2]! - y[2]!;
  });
  const tracks: Track[] = keys.map((k) => {
    const [device, cpu, ctx] = k.split(" ").map(Number);
    return { device: devices[device!]!, cpu: cpu!, ctx: ORDER[ctx!]!, levels: 1, row: 0, headed: false };
  });
  tracks.forEach((t, i) => (t.headed = t.device !== "" && tracks[i - 1]?.device !== t.device));
  const index = new Map(keys.map((k, i) => [k, i]));
  const levels = new Map<number, { track: number; level: number }>();
  const bars = calls.map((call) => {
    const track = index.get(key(call))!;
    const above = call.parent === null ? undefined : levels.get(call.parent);
    const level = above && above.track === track ? above.level + 1 : 0;
    levels.set(call.id, { track, level });
    const t = tracks[track]!;
    t.levels = Math.max(t.levels, level + 1);
    return { call, track, level };
  });
  let row = 0;
  for (const t of tracks) {
    if (t.headed) row++;
    t.row = row;
    row += t.levels;
  }
  return { tracks, bars };
}

/** A line of the call table: a call, or what stands between calls. */
export type Line =
  | { kind: "call"; call: Placed; heat: number; shut: boolean; inside: boolean }
  | { kind: "note"; t: number; glyph: string; words: string; span: number | null; depth: number };

export interface Note {
  t: number;
  glyph: string;
  words: string;
  span: number | null;
}

/** The calls in preorder with the notes where they belong in time, without what is inside shut calls. */
export function layLines(calls: Placed[], notes: Note[], shut: ReadonlySet<number>): Line[] {
  const most = largest(calls.map((c) => c.self ?? 0), 1);
  const waiting = [...notes].sort((a, b) => a.t - b.t || Number(!!a.span) - Number(!!b.span));
  const lines: Line[] = [];
  let hiddenBelow = Infinity;
  let next = 0;
  const put = (until: number, depth: number) => {
    // What begins when a call of no length has been stands behind it.
    const before = (n: Note) => n.t < until || (n.t === until && !n.span);
    for (; next < waiting.length && before(waiting[next]!); next++) lines.push({ kind: "note", depth, ...waiting[next]! });
  };
  calls.forEach((call, i) => {
    if (call.depth > hiddenBelow) return;
    hiddenBelow = Infinity;
    put(call.t, call.depth);
    const inside = (calls[i + 1]?.depth ?? -1) > call.depth;
    const isShut = shut.has(call.id);
    lines.push({ kind: "call", call, heat: (call.self ?? 0) / most, shut: isShut, inside });
    if (isShut && inside) hiddenBelow = call.depth;
  });
  put(Infinity, 0);
  return lines;
}
