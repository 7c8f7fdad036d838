// Phases in sum and per packet, as shares of a bar. No drawing, no service.

import type { CardStamps, DmaRx, PhasePacket, PhaseRow } from "../../api/types.ts";
import { count, many, span } from "../../base/units.ts";

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

/** What the estimate of a card's DMA rests on, and how far it varies: in all batches, or in nine of ten. */
export function dmaWords(d: DmaRx): string {
  const beside = Math.floor(d.batches / 20);
  const within = beside ? `${count(d.batches - 2 * beside)} of them` : "all";
  return `${many(d.batches, "batch", "batches")} back to back in ${many(d.runs, "run")}, of ${(d.packets / d.batches).toFixed(1)} packets on average, ${span(d.low)} to ${span(d.high)} in ${within}`;
}

/** What a measured DMA rx rests on: the card's own stamps, and how sure their times are. */
export function stampWords(s: CardStamps): string {
  const known = s.known === 0 ? "its clock is not known at any of them" : `${s.known === s.stamped ? "each" : `${count(s.known)} of them have a time, each`} within ±${span(s.bound)}`;
  return `${count(s.stamped)} of ${many(s.received, "packet")} have the card's own time stamp; ${known}`;
}
