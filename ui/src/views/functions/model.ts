// The function table put in order, and the place of each distribution on one logarithmic axis. No drawing, no service.

import type { FunctionRow } from "../../api/types.ts";
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
