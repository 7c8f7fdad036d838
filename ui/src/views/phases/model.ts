// Phases in sum and per packet, as shares of a bar. No drawing, no service.

import type { PhasePacket, PhaseRow } from "../../api/types.ts";

export interface Part {
  phase: string;
  ns: number;
  /** 0..1 of the bar. */
  part: number;
}

/** Parts of one packet, as wide as its time against the longest shown; pieces of one phase stay apart, in order. */
export function packetParts(row: PhasePacket, longest: number): Part[] {
  return row.parts.filter(([, ns]) => ns > 0).map(([phase, ns]) => ({ phase, ns, part: ns / (longest || 1) }));
}

/** Work and waiting, each in sum. */
export function sums(phases: PhaseRow[]): { work: number; wait: number } {
  let [work, wait] = [0, 0];
  for (const p of phases) p.wait ? (wait += p.total) : (work += p.total);
  return { work, wait };
}
