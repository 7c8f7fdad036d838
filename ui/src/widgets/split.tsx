// Two panes and a bar between them that can be dragged, or moved by the arrow keys.

import { signal, useSignal } from "@preact/signals";
import type { ComponentChildren, JSX } from "preact";
import { useRef } from "preact/hooks";

interface Props {
  direction: "row" | "column";
  /** Share of the first pane, 0..1, remembered under this name. */
  name: string;
  start: number;
  /** The first pane needs no more than that many pixels. */
  most?: number;
  first: ComponentChildren;
  second: ComponentChildren | null;
}

/** In so narrow a window panes stand one below the other. */
const narrow = matchMedia("(max-width: 760px)");
const isNarrow = signal(narrow.matches);
narrow.addEventListener("change", () => (isNarrow.value = narrow.matches));

export function Split(asked: Props): JSX.Element {
  const direction = isNarrow.value ? "column" : asked.direction;
  return <Panes key={direction} {...asked} direction={direction} />;
}

function Panes(p: Props): JSX.Element {
  const key = `kpat-split-${p.name}-${p.direction}`;
  const kept = Number(localStorage.getItem(key));
  const part = useSignal(kept > 0.1 && kept < 0.9 ? kept : p.start);
  const moved = useSignal(kept > 0.1 && kept < 0.9);
  const box = useRef<HTMLDivElement>(null);
  const set = (x: number) => {
    moved.value = true;
    part.value = Math.max(0.15, Math.min(0.85, x));
    localStorage.setItem(key, part.value.toFixed(3));
  };
  const onMove = (e: PointerEvent) => {
    if (!(e.currentTarget as HTMLElement).hasPointerCapture(e.pointerId) || !box.current) return;
    const r = box.current.getBoundingClientRect();
    set(p.direction === "row" ? (e.clientX - r.left) / r.width : (e.clientY - r.top) / r.height);
  };
  const onKeyDown = (e: KeyboardEvent) => {
    const less = p.direction === "row" ? "ArrowLeft" : "ArrowUp";
    const more = p.direction === "row" ? "ArrowRight" : "ArrowDown";
    if (e.key !== less && e.key !== more) return;
    e.preventDefault();
    set(part.peek() + (e.key === less ? -0.03 : 0.03));
  };
  const share = `${(part.value * 100).toFixed(2)}% - 3px`;
  const basis = p.most && !moved.value ? `min(${p.most}px, ${share})` : `calc(${share})`;
  return (
    <div class={`split ${p.direction === "row" ? "across" : "down"}`} ref={box}>
      <div class="pane" style={p.second ? { flex: `0 0 ${basis}` } : { flex: "1 1 auto" }}>
        {p.first}
      </div>
      {p.second && (
        <>
          <div
            class="split-bar"
            role="separator"
            aria-label="Size of the panes"
            aria-orientation={p.direction === "row" ? "vertical" : "horizontal"}
            aria-valuenow={Math.round(part.value * 100)}
            aria-valuemin={15}
            aria-valuemax={85}
            tabIndex={0}
            onPointerDown={(e) => e.currentTarget.setPointerCapture(e.pointerId)}
            onPointerMove={onMove}
            onKeyDown={onKeyDown}
          />
          <div class="pane">{p.second}</div>
        </>
      )}
    </div>
  );
}
