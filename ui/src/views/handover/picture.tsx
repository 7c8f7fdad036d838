// One handover over time: a row for each phase, then lanes of marks and the gap that an application saw.

import { useSignal } from "@preact/signals";
import type { JSX } from "preact";
import { useMemo, useRef } from "preact/hooks";
import type { HandoverDetail } from "../../api/types.ts";
import { seen, shortSpan, span } from "../../base/units.ts";
import { Canvas, fitted, type Pen } from "../../widgets/canvas.tsx";
import { drawTimes, useTimeAxis } from "../../widgets/timeaxis.tsx";
import { Tip, type Tipped } from "../../widgets/tip.tsx";
import { COLORS, nearest, phaseAt, phaseLines, reach } from "./model.ts";

const GUTTER = 138;
const RIGHT = 74;
const AXIS = 20;
const NAMES = 16;
const ROW = 19;
const LANE = 24;
const LEAST_NS = 100_000;
/** Pixels from a mark at which it is meant. */
const NEAR = 5;

export function Picture({ h }: { h: HandoverDetail }): JSX.Element {
  const lines = useMemo(() => phaseLines(h.phases), [h]);
  const whole = useMemo(() => reach(h), [h]);
  const axis = useTimeAxis({ whole, least: LEAST_NS, left: GUTTER, right: RIGHT, scrolls: true });
  const tip = useSignal<Tipped | null>(null);
  const width = useRef(1);
  const top = AXIS + NAMES;
  const lanesTop = top + ROW * (lines.length + 1) + 6;
  const gapTop = lanesTop + LANE * h.lanes.length;
  const height = gapTop + (h.gap ? LANE : 0) + 6;

  const paint = (pen: Pen) => {
    const { g, width: w, color } = pen;
    width.current = w;
    const s = axis.scaleOf(w);
    const right = w - RIGHT;
    g.clearRect(0, 0, w, height);
    g.font = `11px ${color("sans")}`;
    g.textBaseline = "middle";
    // Times count from the beginning of the handover.
    const [from, to] = axis.view.value;
    const zero = h.line.from;
    drawTimes(pen, (t) => s.at(t + zero), [from - zero, to - zero], [GUTTER, right], { words: AXIS / 2 - 1, line: [AXIS - 5, height], grid: true, end: w });
    const bar = (a: number, b: number, y: number, tall: number, name: string) => {
      g.fillStyle = color(name);
      g.fillRect(s.at(a), y, Math.max(1.5, s.at(b) - s.at(a)), tall);
    };
    g.save();
    g.beginPath();
    g.rect(GUTTER, 0, right - GUTTER, height);
    g.clip();
    for (const p of h.phases) bar(p.from, p.to, top + 2, ROW - 5, COLORS[p.group] ?? "l-other");
    lines.forEach((l, i) => {
      for (const p of l.spans) bar(p.from, p.to, top + ROW * (i + 1) + 2, ROW - 5, COLORS[l.group] ?? "l-other");
    });
    h.lanes.forEach((lane, i) => {
      const y = lanesTop + LANE * i;
      g.fillStyle = color("line-strong");
      g.fillRect(GUTTER, y + LANE - 5, right - GUTTER, 1);
      g.fillStyle = color("text");
      let last = -Infinity;
      for (const m of lane.marks) {
        const x = s.at(m.t);
        if (x - last < 0.7) continue;
        last = x;
        g.fillRect(x - 0.7, y + 5, 1.4, LANE - 10);
      }
    });
    if (h.gap) bar(h.gap.from, h.gap.to ?? to, gapTop + 4, LANE - 10, "drop");
    let last = -Infinity;
    for (const [name, t] of h.moments) {
      if (t < from || t > to) continue;
      const x = Math.round(s.at(t)) + 0.5;
      g.strokeStyle = color("muted");
      g.setLineDash([3, 3]);
      g.beginPath();
      g.moveTo(x, AXIS + NAMES - 2);
      g.lineTo(x, height);
      g.stroke();
      g.setLineDash([]);
      const wide = g.measureText(name).width;
      if (x < last) continue;
      g.fillStyle = color("text");
      g.fillText(name, Math.min(x + 3, right - wide), AXIS + NAMES / 2 - 1);
      last = x + wide + 8;
    }
    axis.drawBrush(pen, AXIS, height);
    g.restore();
    names(pen, right);
  };

  function names({ g, color }: Pen, right: number): void {
    const row = (name: string, words: string, y: number, strong: boolean) => {
      g.textAlign = "left";
      g.font = `${strong ? "600 " : ""}11px ${color("sans")}`;
      g.fillStyle = color("text");
      g.fillText(fitted(g, name, GUTTER - 14), 8, y);
      g.textAlign = "right";
      g.fillStyle = color(strong ? "text" : "muted");
      g.fillText(words, right + RIGHT - 6, y);
      g.textAlign = "left";
    };
    row("all phases", shortSpan(h.line.to - h.line.from), top + ROW / 2, true);
    lines.forEach((l, i) => row(l.label, shortSpan(l.total), top + ROW * (i + 1) + ROW / 2, false));
    h.lanes.forEach((lane, i) => row(lane.name, `${lane.marks.length}`, lanesTop + LANE * i + LANE / 2, false));
    if (h.gap) row("application", h.gap.to === null ? "" : shortSpan(h.gap.to - h.gap.from), gapTop + LANE / 2, false);
  }

  /** What is at a place of the picture, in words. */
  function wordsAt(x: number, y: number): string[] | null {
    if (x < GUTTER || x > width.current - RIGHT) return null;
    const s = axis.scale();
    const t = s.back(x);
    const lane = h.lanes[Math.floor((y - lanesTop) / LANE)];
    if (y >= lanesTop && lane) {
      const m = nearest(lane.marks, t, s.back(x + NEAR) - t);
      return m ? [`at ${span(m.t - h.line.from)}`, seen(m.words), m.evidence] : null;
    }
    if (y >= gapTop) return h.gap ? [seen(h.gap.words)] : null;
    const p = phaseAt(h.phases, t);
    return p && [`${p.label}, ${span(p.to - p.from)}`, `began by ${seen(p.begin)}`, p.meaning];
  }

  return (
    <div class="handover-picture">
      <div class="bar">
        <span class="bar-words">{shortSpan(axis.view.value[1] - axis.view.value[0])} shown</span>
        <span class="spring" />
        <span class="muted">drag: a piece of time; Ctrl and wheel: zoom</span>
        <button type="button" class="icon" title="Zoom out (s, −)" aria-label="Zoom out" onClick={() => axis.zoom(1.6)}>−</button>
        <button type="button" class="icon" title="Zoom in (w, +)" aria-label="Zoom in" onClick={() => axis.zoom(0.6)}>+</button>
        <button type="button" class="button small" title="All of it (0)" onClick={axis.fit}>Fit</button>
      </div>
      <div class="handover-canvas" style={{ height: `${height}px` }}>
        <Canvas
          key={height}
          paint={paint}
          height={height}
          attach={axis.attach}
          tabIndex={0}
          role="img"
          label={`Handover ${h.line.number} over time: ${h.phases.map((p) => `${p.label} ${span(p.to - p.from)}`).join(", ")}. W and S zoom, A and D or the arrows move, 0 shows everything. The table says the same in words.`}
          onKeyDown={(e) => axis.key(e)}
          onPointerDown={(e) => {
            axis.brushBegin(e);
            if (axis.brush.peek()) tip.value = null;
          }}
          onPointerMove={(e) => {
            if (axis.brushMove(e)) return;
            const words = wordsAt(e.offsetX, e.offsetY);
            tip.value = words && { x: e.offsetX, y: e.offsetY, lines: words };
          }}
          onPointerLeave={() => (tip.value = null)}
          onPointerUp={() => void axis.brushEnd()}
          onDblClick={axis.fit}
        />
        <Tip at={tip} width={() => width.current} />
      </div>
    </div>
  );
}
