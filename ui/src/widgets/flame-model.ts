// A flame graph laid out: every node as wide as its time, above the one that called it. No drawing.

import type { Flame } from "../api/types.ts";

export interface Laid {
  /** In ns from the left, per node. */
  x: Float64Array;
  width: Float64Array;
  children: number[][];
  roots: number[];
  levels: number;
  total: number;
}

export function layFlame(flame: Flame): Laid {
  const { parent, total, depth } = flame.nodes.columns;
  const n = flame.nodes.rows;
  const x = new Float64Array(n);
  const width = new Float64Array(n);
  const children: number[][] = Array.from({ length: n }, () => []);
  const roots: number[] = [];
  const filled = new Float64Array(n);
  let reached = 0;
  let levels = 0;
  for (let i = 0; i < n; i++) {
    const up = parent[i]!;
    width[i] = total[i]!;
    levels = Math.max(levels, depth[i]! + 1);
    if (up < 0) {
      x[i] = reached;
      reached += width[i]!;
      roots.push(i);
    } else {
      // Time that lies partly after its caller's end (a list, an interrupt) must not stand over a neighbour.
      x[i] = x[up]! + filled[up]!;
      width[i] = Math.min(width[i]!, Math.max(0, x[up]! + width[up]! - x[i]!));
      filled[up]! += width[i]!;
      children[up]!.push(i);
    }
  }
  return { x, width, children, roots, levels, total: reached };
}

/** Nodes whose name holds `search`, and how much of the time they take together, none counted twice. */
export function foundIn(flame: Flame, laid: Laid, search: string): { nodes: Set<number>; time: number } {
  const wanted = search.trim().toLowerCase();
  const nodes = new Set<number>();
  let time = 0;
  if (!wanted) return { nodes, time };
  const { name, parent } = flame.nodes.columns;
  const under = new Uint8Array(flame.nodes.rows);
  for (let i = 0; i < flame.nodes.rows; i++) {
    const inside = parent[i]! >= 0 && under[parent[i]!] === 1;
    if (name[i]!.toLowerCase().includes(wanted)) {
      nodes.add(i);
      if (!inside) time += laid.width[i]!;
      under[i] = 1;
    } else under[i] = inside ? 1 : 0;
  }
  return { nodes, time };
}

/** The node that an arrow key leads to. */
export function neighbour(flame: Flame, laid: Laid, at: number, key: string): number {
  const { parent } = flame.nodes.columns;
  const up = parent[at]!;
  const siblings = up < 0 ? laid.roots : laid.children[up]!;
  const i = siblings.indexOf(at);
  switch (key) {
    case "ArrowLeft":
      return siblings[i - 1] ?? at;
    case "ArrowRight":
      return siblings[i + 1] ?? at;
    case "ArrowUp":
      return up < 0 ? at : up;
    case "ArrowDown":
      return laid.children[at]![0] ?? at;
    default:
      return at;
  }
}
