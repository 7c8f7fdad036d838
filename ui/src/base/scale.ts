// Positions on an axis and the marks beside it. No drawing.

/** A straight map from values to pixels and back. */
export class Scale {
  constructor(
    readonly from: number,
    readonly to: number,
    readonly left: number,
    readonly right: number,
  ) {}

  at(value: number): number {
    return this.left + ((value - this.from) / (this.to - this.from || 1)) * (this.right - this.left);
  }

  back(pixel: number): number {
    return this.from + ((pixel - this.left) / (this.right - this.left || 1)) * (this.to - this.from);
  }
}

/** The largest of any number of values; a call with each as an argument ends at some ten thousands. */
export function largest(values: Iterable<number>, least: number): number {
  let found = least;
  for (const v of values) if (v > found) found = v;
  return found;
}

/** Round numbers from `from` to `to`, at most about `wanted` of them: steps of 1, 2 or 5 times a power of ten. */
export function ticks(from: number, to: number, wanted: number): number[] {
  const range = to - from;
  if (!(range > 0) || !(wanted > 0)) return [];
  const rough = range / wanted;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * ([1, 2, 5, 10].find((m) => m * power >= rough) ?? 10);
  const marks: number[] = [];
  for (let k = Math.ceil(from / step); k * step <= to; k++) marks.push(k * step);
  return marks;
}

const UNITS: [number, string][] = [
  [1e9, "s"],
  [1e6, "ms"],
  [1e3, "µs"],
  [1, "ns"],
];

/** Words for marks in ns: all in one unit, with as many decimals as tell neighbours apart. */
export function tickWords(marks: number[]): string[] {
  if (!marks.length) return [];
  const largest = Math.max(...marks.map(Math.abs));
  const [divisor, unit] = UNITS.find(([d]) => largest >= d) ?? UNITS[3]!;
  const step = marks.length > 1 ? marks[1]! - marks[0]! : largest || 1;
  const decimals = Math.max(0, Math.min(9, Math.ceil(-Math.log10(step / divisor) - 1e-9)));
  return marks.map((m) => (m === 0 ? "0" : `${(m / divisor).toFixed(decimals)} ${unit}`));
}

/** Zooms `[from, to]` by `factor` around `pivot`, inside `[lo, hi]`, never below `least` wide. */
export function zoomed(from: number, to: number, factor: number, pivot: number, lo: number, hi: number, least: number): [number, number] {
  const width = Math.min(hi - lo, Math.max(least, (to - from) * factor));
  const part = (pivot - from) / (to - from || 1);
  return held(pivot - part * width, width, lo, hi);
}

/** Moves `[from, to]` by `by`, not beyond `[lo, hi]`. */
export function panned(from: number, to: number, by: number, lo: number, hi: number): [number, number] {
  return held(from + by, to - from, lo, hi);
}

function held(from: number, width: number, lo: number, hi: number): [number, number] {
  const start = Math.max(lo, Math.min(hi - width, from));
  return [start, start + width];
}
