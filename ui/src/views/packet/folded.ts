// Time with its long silences folded: where nothing happened for much longer than anything took, the axis is cut and a
// narrow fold stands for the wait. Without that, microseconds of work vanish beside milliseconds in a queue.
// Values on the folded axis are called u, times t; both in ns, both rise together.

export interface Piece {
  t0: number;
  t1: number;
  u0: number;
  u1: number;
  fold: boolean;
}

export class Folded {
  constructor(readonly pieces: Piece[]) {}

  get length(): number {
    return this.pieces.at(-1)?.u1 ?? 0;
  }

  get folds(): Piece[] {
    return this.pieces.filter((p) => p.fold);
  }

  u(t: number): number {
    const p = this.pieces;
    if (!p.length) return 0;
    if (t <= p[0]!.t0) return t - p[0]!.t0;
    const in_ = p.find((x) => t <= x.t1);
    if (!in_) return this.length + (t - p.at(-1)!.t1);
    return in_.u0 + ((t - in_.t0) / (in_.t1 - in_.t0 || 1)) * (in_.u1 - in_.u0);
  }

  t(u: number): number {
    const p = this.pieces;
    if (!p.length) return 0;
    if (u <= 0) return p[0]!.t0 + u;
    const in_ = p.find((x) => u <= x.u1);
    if (!in_) return p.at(-1)!.t1 + (u - this.length);
    return in_.t0 + ((u - in_.u0) / (in_.u1 - in_.u0 || 1)) * (in_.t1 - in_.t0);
  }
}

/** A silence is folded when it is longer than all the busy time: only then it hides what happened. */
const SILENT = 0.35;
/** A fold's width, as a share of the busy time. */
const FOLD = 0.06;

/** Folds the silences between these intervals; `on` false gives the plain axis. */
export function fold(busy: [from: number, to: number][], from: number, to: number, on: boolean): Folded {
  if (!(to > from)) return new Folded([{ t0: from, t1: from + 1, u0: 0, u1: 1, fold: false }]);
  if (!on) return new Folded([{ t0: from, t1: to, u0: 0, u1: to - from, fold: false }]);
  const sorted = busy.map(([a, b]): [number, number] => [Math.max(from, a), Math.min(to, b)]).sort((a, b) => a[0] - b[0]);
  const gaps: [number, number][] = [];
  let reached = from;
  let worked = 0;
  for (const [a, b] of sorted) {
    if (a > reached) gaps.push([reached, a]);
    worked += Math.max(0, b - Math.max(a, reached));
    reached = Math.max(reached, b);
  }
  if (reached < to) gaps.push([reached, to]);
  const least = Math.max(1, worked * SILENT);
  const width = Math.max(1, worked * FOLD);
  const margin = width / 4;
  const pieces: Piece[] = [];
  let t = from;
  let u = 0;
  const add = (t1: number, du: number, isFold: boolean) => {
    if (t1 <= t) return;
    pieces.push({ t0: t, t1, u0: u, u1: u + du, fold: isFold });
    t = t1;
    u += du;
  };
  for (const [a, b] of gaps) {
    if (b - a <= least) continue;
    add(a + margin, a + margin - t, false);
    add(b - margin, width, true);
  }
  add(to, to - t, false);
  return new Folded(pieces);
}
