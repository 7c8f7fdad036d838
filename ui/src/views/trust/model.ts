// How much of the residuals an axis should show, and what a clock's bound is called. No drawing, no service.

import type { Clock, Residuals } from "../../api/types.ts";
import { bound } from "../../base/units.ts";

/** From the middle 98 % of the points and the bounds: a few late frames must not flatten the rest. */
export function range(r: Residuals, clocks: Clock[]): [number, number] {
  const sorted = [...r.residual_ns].sort((a, b) => a - b);
  const at = (part: number) => sorted[Math.min(sorted.length - 1, Math.floor(part * sorted.length))] ?? 0;
  const widest = Math.max(0, ...clocks.map((c) => c.bound_ns));
  const [lo, hi] = [Math.min(-widest, at(0.01), 0), Math.max(widest, at(0.99), 0)];
  const margin = Math.max(1, (hi - lo) * 0.08);
  return [lo - margin, hi + margin];
}

/** Stretches in order of time. */
export function band(clocks: Clock[]): Clock[] {
  return [...clocks].sort((a, b) => (a.from ?? -Infinity) - (b.from ?? -Infinity));
}

export function boundAt(c: Clock): string {
  return bound(c.bound_ns);
}
