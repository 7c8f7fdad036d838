// A packet together with what it was in other kernels, on one axis: their calls, phases and events with their times moved by what the
// crossings say. One kernel's packet stays what it is; this is for drawing.

import type { Call, Packet, Segment } from "../../api/types.ts";

/** A call in one of several kernels; `device` names the others'. */
export type Placed = Call & { device?: string };
export type WholePacket = Omit<Packet, "calls"> & { calls: Placed[] };

export interface Neighbour {
  device: string;
  packet: number;
  /** Added to its times they are on the axis. */
  shift: number;
}

/** Kernels on one way that are looked at: a guest, its host, another guest, and some more. */
export const MOST = 8;

/** Asks for what is connected with `own` over wires, nearest first. */
export async function neighbours(own: Packet, device: string, get: (of: Neighbour) => Promise<Packet>): Promise<[Neighbour, Packet][]> {
  const known = new Set([`${device} ${own.row.id}`]);
  const found: [Neighbour, Packet][] = [];
  const todo: [Packet, number][] = [[own, 0]];
  for (let next = todo.shift(); next; next = todo.shift()) {
    const [from, shift] = next;
    for (const c of from.crossings) {
      const one = { device: c.device, packet: c.packet, shift: shift + c.shift_ns };
      if (known.has(`${one.device} ${one.packet}`) || found.length + 1 >= MOST) continue;
      known.add(`${one.device} ${one.packet}`);
      const packet = await get(one);
      found.push([one, packet]);
      todo.push([packet, one.shift]);
    }
  }
  return found;
}

/** All of them as one, in order of time. */
export function whole(own: Packet, device: string, others: [Neighbour, Packet][]): WholePacket {
  if (!others.length) return own;
  let next = 0;
  const parts: [string, number, Packet][] = [[device, 0, own], ...others.map(([n, p]): [string, number, Packet] => [n.device, n.shift, p])];
  parts.sort(([, a, p], [, b, q]) => p.row.t + a - (q.row.t + b));
  const calls: Placed[] = [];
  const all: Omit<WholePacket, "calls" | "row"> = { ...own, segments: [], events: [], handovers: [], frames: [...own.frames] };
  parts.forEach(([name, shift, p], place) => {
    // Numbers of calls are a packet's own.
    const first = next;
    for (const c of p.calls) {
      calls.push({ ...c, id: c.id + first, parent: c.parent === null ? null : c.parent + first, t: c.t + shift, device: name });
      next = Math.max(next, c.id + first + 1);
    }
    const from = p.row.t + shift;
    const before = parts[place - 1];
    if (before) {
      const left = Math.max(...ends(before[2]).map((t) => t + before[1]));
      if (left < from) all.segments.push({ phase: "wire", label: `${before[0]} → ${name}`, wait: true, from: left, to: from } satisfies Segment);
    }
    all.segments.push(...p.segments.map((s) => ({ ...s, from: s.from + shift, to: s.to + shift })));
    all.events.push(...p.events.map((e) => ({ ...e, t: e.t + shift, words: p === own ? e.words : `${e.words} (${name})` })));
    const moved = (call: number | null) => (call === null ? null : call + first);
    all.handovers.push(...p.handovers.map((h) => ({ ...h, from: h.from + shift, to: h.to + shift, from_call: moved(h.from_call), to_call: moved(h.to_call) })));
  });
  all.segments.sort((a, b) => a.from - b.from);
  const start = parts[0]!;
  return { ...all, row: { ...own.row, t: start[2].row.t + start[1] }, calls };
}

function ends(p: Packet): number[] {
  return [p.row.t, ...p.calls.map((c) => c.t + (c.dur ?? 0)), ...p.segments.map((s) => s.to)];
}
