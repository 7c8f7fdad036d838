// A socket over time: lanes over one axis, what happened above them, what held TCP back beneath. Mouse, wheel and keys choose
// the piece of time, which is the page's; the table beside says the same in words.

import { useSignal, type Signal } from "@preact/signals";
import type { JSX } from "preact";
import { useLayoutEffect, useMemo, useRef } from "preact/hooks";
import type { SocketSeries } from "../../api/types.ts";
import type { Scale } from "../../base/scale.ts";
import { many, shortSpan, span } from "../../base/units.ts";
import { Canvas, fitted, type Pen } from "../../widgets/canvas.tsx";
import { hatch } from "../../widgets/strip.tsx";
import { drawTimes, useTimeAxis } from "../../widgets/timeaxis.tsx";
import { Tip, type Tipped } from "../../widgets/tip.tsx";
import { HELD, MARKS, binAt, edge, lanes, up, wordsAt, type Curve, type Lane } from "./model.ts";

const GUTTER = 104;
const RIGHT = 10;
const AXIS = 20;
const MARK = 15;
const HEAD = 15;
const GAP = 9;
const STRIP = 16;
const LEAST_NS = 1000;

interface Props {
  series: SocketSeries;
  /** All of the socket's time. */
  whole: [number, number];
  chosen: [number, number] | null;
  onChoose: (time: [number, number] | null) => void;
  label: string;
}

/** A line at the pointer: its own component, so that the lanes are not drawn again when the mouse moves. */
function Cross({ at }: { at: Signal<Tipped | null> }): JSX.Element | null {
  return at.value ? <div class="plot-cross" style={{ left: `${at.value.x}px` }} /> : null;
}

export function Plot({ series, whole, chosen, onChoose, label }: Props): JSX.Element {
  const box = useRef<HTMLDivElement>(null);
  const pane = useSignal(0);
  useLayoutEffect(() => {
    const el = box.current;
    if (!el) return;
    const watch = new ResizeObserver(() => (pane.value = el.clientHeight));
    watch.observe(el);
    return () => watch.disconnect();
  }, []);
  const found = useMemo(() => lanes(series), [series]);
  const fixed = AXIS + series.marks.length * MARK + (series.tcp ? STRIP + 24 : 0) + 10 + found.length * GAP;
  // Where there is room, lanes are taller.
  const grown = Math.max(1, Math.min(2, (pane.value - fixed) / Math.max(1, found.reduce((sum, l) => sum + l.height, 0))));
  const all = useMemo(() => found.map((l) => ({ ...l, height: Math.floor(l.height * grown) })), [found, grown]);
  const marks = series.marks;
  const tcp = series.tcp;
  const axis = useTimeAxis({ whole, least: LEAST_NS, chosen, onChoose, left: GUTTER, right: RIGHT, scrolls: true });
  const { view, zoom, fit } = axis;
  const hover = useSignal<Tipped | null>(null);
  const width = useRef(1);

  const lanesTop = AXIS + marks.length * MARK + 6;
  const tops = all.reduce<number[]>((so, l) => [...so, so.at(-1)! + l.height + GAP], [lanesTop]);
  const stripTop = tops.at(-1)!;
  const height = stripTop + (tcp ? STRIP + 24 : 0) + 4;
  const paint = (pen: Pen) => {
    const { g, width: w, height: h, color } = pen;
    width.current = w;
    const s = axis.scaleOf(w);
    const right = w - RIGHT;
    g.clearRect(0, 0, w, h);
    g.font = `11px ${color("sans")}`;
    g.textBaseline = "middle";
    drawTimes(pen, (t) => s.at(t), view.value, [GUTTER, right], { words: AXIS / 2 - 1, line: [AXIS - 5, h], grid: true, end: w });
    g.save();
    g.beginPath();
    g.rect(GUTTER, 0, right - GUTTER, h);
    g.clip();
    for (const gap of series.gaps) {
      const [a, b] = [s.at(gap.from), s.at(gap.to)];
      if (b < GUTTER || a > right) continue;
      hatch(g, Math.max(GUTTER, a), AXIS - 4, Math.max(3, Math.min(right, b) - Math.max(GUTTER, a)), h - AXIS, color("loss"));
    }
    marks.forEach((m, i) => drawMarks(pen, s, m.mark, m.counts, AXIS + i * MARK));
    all.forEach((l, i) => drawLane(pen, s, l, tops[i]!, right));
    if (tcp) drawHeld(pen, s, stripTop, right);
    axis.drawBrush(pen, AXIS, h);
    g.restore();
    gutter(pen);
  };

  function gutter({ g, color, height: h }: Pen): void {
    g.textAlign = "left";
    marks.forEach((m, i) => {
      g.fillStyle = color("text");
      g.fillText(fitted(g, m.mark, GUTTER - 12), 8, AXIS + i * MARK + MARK / 2);
    });
    all.forEach((l, i) => {
      const top = tops[i]!;
      g.fillStyle = color("text");
      g.font = `600 11px ${color("sans")}`;
      g.fillText(l.title, 8, top + 7);
      g.font = `10px ${color("sans")}`;
      g.fillStyle = color("muted");
      g.textAlign = "right";
      const low = l.bars ? -l.low : l.low;
      g.fillText(l.show(l.high), GUTTER - 6, top + HEAD + 5);
      if (!l.bars || low > 0) g.fillText(l.show(low), GUTTER - 6, top + l.height - 5);
      g.textAlign = "left";
      g.font = `11px ${color("sans")}`;
    });
    if (tcp) {
      g.fillStyle = color("text");
      g.font = `600 11px ${color("sans")}`;
      g.fillText("Held back by", 8, stripTop + HEAD + STRIP / 2);
      g.font = `11px ${color("sans")}`;
    }
    g.strokeStyle = color("line");
    g.beginPath();
    g.moveTo(GUTTER - 0.5, AXIS - 4);
    g.lineTo(GUTTER - 0.5, h);
    g.stroke();
  }

  /** Which bins are on the screen. */
  function seenBins(): [number, number] {
    const [a, b] = view.peek();
    return [binAt(series, Math.max(series.from, a)) ?? series.bins, (binAt(series, Math.min(series.to - 1, b)) ?? -1) + 1];
  }

  function drawMarks({ g, color }: Pen, s: Scale, mark: string, counts: number[], top: number): void {
    const [name, shape] = MARKS[mark] ?? ["muted", "·"];
    g.fillStyle = color(name!);
    g.textAlign = "center";
    let last = -Infinity;
    const [first, end] = seenBins();
    for (let i = first; i < end; i++) {
      if (!counts[i]) continue;
      const x = (s.at(edge(series, i)) + s.at(edge(series, i + 1))) / 2;
      // A mark stands for all within its own width.
      if (x - last < 7) continue;
      last = x;
      g.fillText(shape!, x, top + MARK / 2);
    }
    g.textAlign = "left";
  }

  function drawLane(pen: Pen, s: Scale, l: Lane, top: number, right: number): void {
    const { g, color } = pen;
    const y = (v: number) => top + l.height - 1 - up(l, v) * (l.height - HEAD - 1);
    g.strokeStyle = color("line-strong");
    g.lineWidth = 1;
    g.beginPath();
    const zero = Math.round(y(l.bars ? 0 : l.low)) + 0.5;
    g.moveTo(GUTTER, zero);
    g.lineTo(right, zero);
    g.stroke();
    for (const c of l.curves) if (l.bars) drawBars(pen, s, c, y);
      else drawCurve(pen, s, c, y, zero);
    // The key, over all.
    let x = GUTTER + 6;
    for (const c of l.curves) {
      const wide = g.measureText(c.name).width + 20;
      g.fillStyle = color("bg");
      g.globalAlpha = 0.8;
      g.fillRect(x - 3, top, wide, HEAD - 1);
      g.globalAlpha = 1;
      g.fillStyle = g.strokeStyle = color(c.color);
      g.lineWidth = 2;
      g.setLineDash(c.dashed ? [4, 2] : []);
      if (c.last === null || c.filled) g.fillRect(x, top + 3, 9, 8);
      else (g.beginPath(), g.moveTo(x, top + 7), g.lineTo(x + 10, top + 7), g.stroke());
      g.setLineDash([]);
      g.lineWidth = 1;
      g.fillStyle = color("text");
      g.fillText(c.name, x + 13, top + 7);
      x += wide + 8;
    }
  }

  function drawBars({ g, color }: Pen, s: Scale, c: Curve, y: (v: number) => number): void {
    g.fillStyle = color(c.color);
    const [first, end] = seenBins();
    for (let i = first; i < end; i++) {
      const v = c.high[i] || c.low[i];
      if (!v) continue;
      const [a, b] = [s.at(edge(series, i)), s.at(edge(series, i + 1))];
      const [p, q] = [y(Math.max(0, v)), y(Math.min(0, v))];
      // What there is is seen, however little.
      const tall = Math.max(1, q - p);
      g.fillRect(a, v > 0 ? q - tall : p, Math.max(1, b - a - (b - a > 4 ? 1 : 0)), tall);
    }
  }

  function drawCurve({ g, color }: Pen, s: Scale, c: Curve, y: (v: number) => number, zero: number): void {
    g.fillStyle = g.strokeStyle = color(c.color);
    const [first, end] = seenBins();
    for (let i = first; i < end; i++) {
      const [low, high] = [c.low[i], c.high[i]];
      if (low === null || low === undefined || high === null || high === undefined) continue;
      const [a, b] = [s.at(edge(series, i)), s.at(edge(series, i + 1))];
      const [p, q] = [y(high), y(low)];
      if (c.last === null) {
        const wide = Math.max(1.5, b - a - (b - a > 4 ? 1 : 0));
        g.globalAlpha = 0.75;
        g.fillRect(a, p - 1, wide, Math.max(2, q - p + 2));
      } else if (c.filled) {
        g.globalAlpha = 0.25;
        g.fillRect(a, p, Math.max(1, b - a), zero - p);
      }
      // The extremes of a bin in which it moved.
      if (c.last !== null && low !== high) {
        g.globalAlpha = 0.35;
        g.fillRect(a, p, Math.max(1, b - a), Math.max(1, q - p));
      }
    }
    g.globalAlpha = 1;
    if (!c.last) return;
    g.lineWidth = 1.5;
    g.setLineDash(c.dashed ? [5, 3] : []);
    g.beginPath();
    let on = false;
    for (let i = first; i < end; i++) {
      const v = c.last[i];
      if (v === null || v === undefined) {
        on = false;
        continue;
      }
      const [a, b] = [s.at(edge(series, i)), s.at(edge(series, i + 1))];
      if (on) g.lineTo(a, y(v));
      else g.moveTo(a, y(v));
      g.lineTo(b, y(v));
      on = true;
    }
    g.stroke();
    g.setLineDash([]);
    g.lineWidth = 1;
  }

  function drawHeld({ g, color }: Pen, s: Scale, top: number, right: number): void {
    const held = tcp?.held ?? [];
    const [first, end] = seenBins();
    for (let i = first; i < end; i++) {
      const sum = held.reduce((n, h) => n + h.ns[i]!, 0);
      if (!sum) continue;
      const [a, b] = [s.at(edge(series, i)), s.at(edge(series, i + 1))];
      let y = top + HEAD;
      for (const h of held) {
        const tall = (h.ns[i]! / sum) * STRIP;
        if (!tall) continue;
        g.fillStyle = color(HELD[h.held] ?? "muted");
        g.fillRect(a, y, Math.max(1, b - a + 0.3), tall);
        y += tall;
      }
      if (tcp!.recovery[i]) {
        g.fillStyle = color("drop");
        g.fillRect(a, top + HEAD + STRIP + 2, Math.max(1.5, b - a), 3);
      }
    }
    let x = GUTTER + 6;
    const shown = held.filter((h) => h.ns.some((n) => n > 0)).map((h) => [h.held, HELD[h.held] ?? "muted"] as const);
    if (tcp!.recovery.some((n) => n > 0)) shown.push(["repairing losses (line)", "drop"]);
    for (const [name, c] of shown) {
      const wide = g.measureText(name).width + 24;
      if (x + wide > right) break;
      g.fillStyle = color(c);
      g.fillRect(x, top + 3, 9, 8);
      g.fillStyle = color("text");
      g.fillText(name, x + 13, top + 7);
      x += wide;
    }
  }

  return (
    <div class="plot">
      <div class="bar">
        <span class="bar-words">{shortSpan(view.value[1] - view.value[0])} shown, {many(series.bins, "piece")} of {shortSpan((series.to - series.from) / series.bins)}</span>
        <span class="spring" />
        <span class="muted plot-hint">drag: choose time; Ctrl and wheel: zoom</span>
        <button type="button" class="icon" title="Zoom out (s, −)" aria-label="Zoom out" onClick={() => zoom(1.6)}>−</button>
        <button type="button" class="icon" title="Zoom in (w, +)" aria-label="Zoom in" onClick={() => zoom(0.6)}>+</button>
        <button type="button" class="button small" title="All of the time (0)" onClick={fit}>Fit</button>
      </div>
      <div class="plot-box" ref={box}>
        <div class="plot-tall" style={{ height: `${height}px` }}>
          <Canvas
            key={all.map((l) => l.id).join(" ")}
            paint={paint}
            height={height}
            attach={axis.attach}
            tabIndex={0}
            role="img"
            label={`${label} over time: ${all.map((l) => `${l.title}, ${l.words}`).join("; ")}. W and S zoom, A and D or the arrows move, 0 shows everything. The table says the same in words.`}
            onKeyDown={(e) => axis.key(e)}
            onPointerDown={(e) => {
              axis.brushBegin(e);
              if (axis.brush.peek()) hover.value = null;
            }}
            onPointerMove={(e) => {
              if (axis.brushMove(e)) return;
              const t = axis.scale().back(e.offsetX);
              const bin = e.offsetX < GUTTER ? null : binAt(series, t);
              if (bin === null) return void (hover.value = null);
              const [a, b] = [edge(series, bin), edge(series, bin + 1)];
              hover.value = { x: e.offsetX, y: e.offsetY, lines: [`at ${span(a)}, ${shortSpan(b - a)} long`, ...wordsAt(series, all, bin)] };
            }}
            onPointerLeave={() => (hover.value = null)}
            onPointerUp={() => void axis.brushEnd()}
            onDblClick={fit}
          />
          <Cross at={hover} />
          <Tip at={hover} width={() => width.current} />
        </div>
      </div>
    </div>
  );
}
