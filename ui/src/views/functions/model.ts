// The function table put in order, and the place of each distribution on one logarithmic axis. No drawing, no service.

import type { CompareRow, FunctionRow } from "../../api/types.ts";
import type { Sorting } from "../../widgets/table.tsx";

/** Rows whose name or module holds `search`, in order; what is not known comes last either way. */
export function arranged(rows: FunctionRow[], search: string, sort: Sorting): FunctionRow[] {
  const wanted = search.trim().toLowerCase();
  const found = rows.filter((r) => !wanted || r.name.toLowerCase().includes(wanted) || r.module.toLowerCase().includes(wanted));
  const key = sort.key as keyof FunctionRow;
  const sign = sort.desc ? -1 : 1;
  return found.sort((a, b) => {
    const [x, y] = [a[key], b[key]];
    if (x === y) return a.id - b.id;
    if (x === null || y === null) return x === null ? 1 : -1;
    return x < y ? -sign : sign;
  });
}

/** The powers of two that all distributions together reach over. */
export function reach(rows: FunctionRow[]): [low: number, high: number] {
  let [low, high] = [Infinity, -Infinity];
  for (const r of rows)
    for (const [ns, calls] of r.buckets) {
      if (!calls) continue;
      const power = Math.floor(Math.log2(Math.max(1, ns)));
      [low, high] = [Math.min(low, power), Math.max(high, power)];
    }
  return low <= high ? [low, high + 1] : [0, 1];
}

export interface Bucket {
  power: number;
  calls: number;
  /** 0..1 of the fullest. */
  part: number;
}

export function bucketsOf(row: FunctionRow): Bucket[] {
  const most = Math.max(1, ...row.buckets.map(([, calls]) => calls));
  return row.buckets.filter(([, calls]) => calls > 0).map(([ns, calls]) => ({ power: Math.floor(Math.log2(Math.max(1, ns))), calls, part: calls / most }));
}

/** Ratios within this of 1 are drawn in proportion, larger ones by their logarithm: 1 % and a factor of 10 can both be seen. */
const LINEAR = 0.01;

function stretched(ratio: number): number {
  const log = Math.log(ratio);
  return Math.sign(log) * Math.log1p(Math.abs(log) / LINEAR);
}

/** The ratio farthest from 1 of all that are drawn, as a ratio above 1. */
export function widest(rows: CompareRow[]): number {
  const all = rows.flatMap((r) => [r.ratio, r.tested, r.low, r.high]).filter((v): v is number => v !== null && v > 0);
  return Math.exp(Math.max(LINEAR, ...all.map((v) => Math.abs(Math.log(v)))));
}

/** -1..1: the place of a ratio on a symmetric axis that reaches to `most` and its inverse; 1 is in the middle. */
export function onAxis(ratio: number, most: number): number {
  if (!(ratio > 0)) return -1;
  return Math.max(-1, Math.min(1, stretched(ratio) / stretched(most)));
}

export function perCent(ratio: number): string {
  const value = (ratio - 1) * 100;
  return `${value > 0 ? "+" : ""}${Math.abs(value) < 100 ? value.toFixed(1) : value.toFixed(0)} %`;
}
