// Path times on logarithmic axes: marks, places, what is near the mouse. No drawing, no service.

import type { HistogramStep, Latency, LatencyPoint, TimeRow } from "../../api/types.ts";

/** A logarithmic map from times to pixels and back; what is below its beginning stands at its beginning. */
export class LogScale {
  constructor(
    readonly from: number,
    readonly to: number,
    readonly left: number,
    readonly right: number,
  ) {}

  at(ns: number): number {
    const part = Math.log(Math.max(ns, this.from) / this.from) / Math.log(this.to / this.from);
    return this.left + part * (this.right - this.left);
  }

  back(pixel: number): number {
    const part = (pixel - this.left) / (this.right - this.left || 1);
    return this.from * (this.to / this.from) ** part;
  }
}

/** From below the least to above the greatest time; a time of 0 counts as 1 ns. */
export function reachOf(min: number | null, max: number | null): [from: number, to: number] {
  const from = Math.max(1, min ?? 1);
  const to = Math.max(from, max ?? from);
  return to < from * 4 ? [Math.max(1, from / 2), to * 2] : [Math.max(1, from / 1.1), to * 1.1];
}

/** Powers of ten within a range, with 2 and 5 of each where there is room for `wanted` marks. */
export function logTicks(from: number, to: number, wanted: number): number[] {
  const within = (of: number[]) => {
    const marks: number[] = [];
    for (let power = 10 ** Math.floor(Math.log10(from)); power <= to; power *= 10) for (const m of of) if (m * power >= from && m * power <= to) marks.push(m * power);
    return marks;
  };
  for (const of of [[1, 2, 5], [1, 3], [1]]) {
    const marks = within(of);
    if (marks.length <= wanted) return marks;
  }
  const all = within([1]);
  const each = Math.ceil(all.length / Math.max(1, wanted));
  return all.filter((_, i) => i % each === 0);
}

/** Bins that follow each other without one between them that has no packet: a line may be drawn through each run. */
export function runs(bins: number[]): [from: number, to: number][] {
  const found: [number, number][] = [];
  bins.forEach((b, i) => {
    const last = found[found.length - 1];
    if (last && bins[i - 1] === b - 1) last[1] = i;
    else found.push([i, i]);
  });
  return found;
}

/** The nearest of the points within `near` pixels. */
export function nearest(points: LatencyPoint[], x: (t: number) => number, y: (ns: number) => number, at: [number, number], near: number): LatencyPoint | null {
  let found: LatencyPoint | null = null;
  let least = near * near;
  for (const p of points) {
    const away = (x(p.t) - at[0]) ** 2 + (y(p.path_ns) - at[1]) ** 2;
    if (away <= least) [found, least] = [p, away];
  }
  return found;
}

/** The filter that leaves the packets of a step of the histogram. */
export function filterOf(step: HistogramStep, where: string): string {
  const piece = `path_time >= ${step.from}ns and path_time < ${step.below}ns`;
  return where.trim() ? `(${where}) and ${piece}` : piece;
}

/** Parts that make up the bar, with their share of all that is in it: they may be more than the path, or less. */
export function barOf(parts: TimeRow[]): { row: TimeRow; part: number }[] {
  const all = parts.reduce((sum, p) => sum + p.total, 0);
  return parts.filter((p) => p.total > 0).map((row) => ({ row, part: row.total / all }));
}

/** The chart in words, for whoever does not see it. */
export function latencyWords(l: Latency, words: (ns: number) => string): string {
  if (l.median === null || l.p99 === null || l.max === null) return "no packet";
  return `half of ${l.packets} packets took ${words(l.median)} or less, 99 % ${words(l.p99)} or less, the slowest ${words(l.max)}`;
}
