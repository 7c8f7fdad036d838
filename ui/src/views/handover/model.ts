// What the picture of a handover has: rows of phases, lanes and the gap of an application, each with its place. No drawing.

import type { HandoverDetail, HandoverPhase } from "../../api/types.ts";

/** A row of the picture. */
export interface PhaseLine {
  label: string;
  group: string;
  spans: HandoverPhase[];
  total: number;
}

/** All that can be shown: the handover, and the application's gap where that is longer. */
export function reach(h: HandoverDetail): [number, number] {
  const from = Math.min(h.line.from, h.gap?.from ?? h.line.from);
  const to = Math.max(h.line.to, h.gap?.to ?? h.line.to, from + 1);
  const room = Math.round((to - from) / 50);
  return [from - room, to + room];
}

/** Phases in the order in which they first come. */
export function phaseLines(phases: HandoverPhase[]): PhaseLine[] {
  const out: PhaseLine[] = [];
  for (const p of phases) {
    let line = out.find((l) => l.label === p.label);
    if (!line) out.push((line = { label: p.label, group: p.group, spans: [], total: 0 }));
    line.spans.push(p);
    line.total += p.to - p.from;
  }
  return out;
}

/** Colours of the page by what a phase is. */
export const COLORS: Record<string, string> = {
  decision: "l-driver", search: "l-socket", join: "l-link", keys: "l-transport", network: "l-network", unknown: "l-other",
};

export function phaseAt(phases: HandoverPhase[], t: number): HandoverPhase | null {
  return phases.find((p) => p.from <= t && t < p.to) ?? null;
}

/** The mark that is nearest to a time, if it is no farther than that. */
export function nearest<T extends { t: number }>(marks: T[], t: number, most: number): T | null {
  let best: T | null = null;
  for (const m of marks) if (Math.abs(m.t - t) <= most && (!best || Math.abs(m.t - t) < Math.abs(best.t - t))) best = m;
  return best;
}
