// Which frames and packets became which: laid out in columns, what came before to the left.

import type { Lineage, LineageNode } from "../../api/types.ts";

export interface Placed {
  node: LineageNode;
  column: number;
  row: number;
}

/** Columns by the longest way from a beginning; a circle, which no honest log has, ends after as many steps as there are nodes. */
export function layGraph(lineage: Lineage): Placed[] {
  const column = new Map(lineage.nodes.map((n) => [n.id, 0]));
  for (let round = 0; round < lineage.nodes.length; round++) {
    let moved = false;
    for (const e of lineage.edges) {
      const [a, b] = [column.get(e.from), column.get(e.to)];
      if (e.from !== e.to && a !== undefined && b !== undefined && b <= a && a + 1 < lineage.nodes.length) {
        column.set(e.to, a + 1);
        moved = true;
      }
    }
    if (!moved) break;
  }
  const next = new Map<number, number>();
  return lineage.nodes.map((node) => {
    const c = column.get(node.id) ?? 0;
    const row = next.get(c) ?? 0;
    next.set(c, row + 1);
    return { node, column: c, row };
  });
}
