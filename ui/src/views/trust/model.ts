// How much of the residuals an axis should show, and what a clock's bound is called. No drawing, no service.

import type { Clock, Loss, Residuals } from "../../api/types.ts";
import { bound } from "../../base/units.ts";

/**
 * An axis that is straight within the bound and logarithmic beyond: the bound is microseconds, a frame that waited is
 * milliseconds late, and both have to be seen.
 */
export interface Bent {
  low: number;
  high: number;
  /** Where a value stands, in units of the bound. */
  bend: (ns: number) => number;
  /** Values to mark. */
  marks: number[];
}

export function bent(r: Residuals, clocks: Clock[]): Bent {
  // The best known stretch: what lies before or behind all matches may be known a thousand times worse.
  const unit = Math.max(1, clocks.reduce((least, c) => Math.min(least, c.bound_ns), clocks[0]?.bound_ns ?? 1));
  let [low, high] = [-2 * unit, 2 * unit];
  for (const v of r.residual_ns) [low, high] = [Math.min(low, v), Math.max(high, v)];
  const bend = (ns: number) => Math.asinh(ns / unit);
  const most = Math.max(high, -low);
  const first = 10 ** Math.min(Math.ceil(Math.log10(unit)), Math.floor(Math.log10(most)));
  const marks = [0];
  for (let m = first; m <= most; m *= 10) {
    if (m <= high) marks.push(m);
    if (-m >= low) marks.unshift(-m);
  }
  return { low, high, bend, marks };
}

/** Stretches in order of time. */
export function band(clocks: Clock[]): Clock[] {
  return [...clocks].sort((a, b) => (a.from ?? -Infinity) - (b.from ?? -Infinity));
}

export function boundAt(c: Clock): string {
  return bound(c.bound_ns);
}

export interface LossSum {
  cause: string;
  advice: string;
  count: number;
  from: number;
  to: number;
  losses: Loss[];
}

/** Losses by cause, the largest first: what was lost is one number, when it was lost are many. */
export function bySum(losses: Loss[]): LossSum[] {
  const found = new Map<string, LossSum>();
  for (const l of losses) {
    const sum = found.get(l.cause) ?? { cause: l.cause, advice: l.advice, count: 0, from: l.from, to: l.to, losses: [] };
    sum.count += l.count;
    sum.from = Math.min(sum.from, l.from);
    sum.to = Math.max(sum.to, l.to);
    sum.losses.push(l);
    found.set(l.cause, sum);
  }
  return [...found.values()].sort((a, b) => b.count - a.count);
}
