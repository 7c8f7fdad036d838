// Events by kind on one axis: lanes, and events so near to each other that one mark stands for them. No drawing.

import type { Event } from "../../api/types.ts";

export interface Mark {
  x: number;
  kind: string;
  lane: number;
  events: Event[];
}

/** One mark for all events of a kind within `near` pixels. */
export function marks(events: Event[], kinds: string[], at: (t: number) => number, near: number): Mark[] {
  const lane = new Map(kinds.map((k, i) => [k, i]));
  const open = new Map<string, Mark>();
  const found: Mark[] = [];
  for (const e of [...events].sort((a, b) => a.t - b.t)) {
    const i = lane.get(e.kind);
    if (i === undefined) continue;
    const x = at(e.t);
    const last = open.get(e.kind);
    if (last && x - last.x < near) {
      last.events.push(e);
      continue;
    }
    const mark: Mark = { x, kind: e.kind, lane: i, events: [e] };
    open.set(e.kind, mark);
    found.push(mark);
  }
  return found;
}
