// A tooltip over a canvas. Its own component: what it stands over is not drawn again when the mouse moves.

import type { Signal } from "@preact/signals";
import type { JSX } from "preact";

export interface Tipped {
  x: number;
  y: number;
  lines: string[];
}

const AWAY = 12;

export function Tip({ at, width }: { at: Signal<Tipped | null>; width: () => number }): JSX.Element | null {
  const tip = at.value;
  if (!tip) return null;
  const top = `${tip.y + AWAY}px`;
  const side = tip.x > width() / 2 ? { right: `${width() - tip.x + AWAY}px`, top } : { left: `${tip.x + AWAY}px`, top };
  return (
    <div class="tip" style={side}>
      {tip.lines.map((l, i) => (
        <div key={i}>{l}</div>
      ))}
    </div>
  );
}
