// One packet over CPUs and contexts: nested calls, where it was handed over and waited, when its frames were on the wire
// and how sure that time is. Long waits are folded. Mouse, wheel and keys move in it; the table beside says the same.

import { useComputed, useSignal, type Signal } from "@preact/signals";
import type { JSX } from "preact";
import { useMemo, useRef } from "preact/hooks";
import type { Call } from "../../api/types.ts";
import { largest, panned } from "../../base/scale.ts";
import { many, seen, shortSpan, span, sure } from "../../base/units.ts";
import { Canvas, fitted, type Pen } from "../../widgets/canvas.tsx";
import { layerClass, phaseLayer } from "../../widgets/marks.tsx";
import { hatch } from "../../widgets/strip.tsx";
import { drawTimes, useTimeAxis } from "../../widgets/timeaxis.tsx";
import { Tip, type Tipped } from "../../widgets/tip.tsx";
import { fold } from "./folded.ts";
import { CONTEXT, layTracks, type Bar } from "./tracks.ts";
import type { WholePacket } from "./whole.ts";

const GUTTER = 104;
const AXIS = 20;
const LANE = 20;
const WIRE = 16;
const WIRE_ROWS = 3;
const BAR = 17;
const GAP = 8;
const LEAST_NS = 20;

interface Props {
  packet: WholePacket;
  chosen: Signal<number | null>;
}

function extent(p: WholePacket): [number, number] {
  const ts: number[] = [];
  for (const c of p.calls) ts.push(c.t, c.t + (c.dur ?? 0));
  for (const s of p.segments) ts.push(s.from, s.to);
  for (const f of p.frames) if (f.t !== null) ts.push(f.t);
  for (const e of p.events) ts.push(e.t);
  if (!ts.length) ts.push(p.row.t, p.row.t + Math.max(1, p.row.path_ns));
  let [from, to] = [Infinity, -Infinity];
  for (const t of ts) [from, to] = [Math.min(from, t), Math.max(to, t)];
  const margin = Math.max(1, (to - from) * 0.01);
  return [from - margin, to + margin];
}

function busy(p: WholePacket): [number, number][] {
  const found: [number, number][] = p.calls.map((c) => [c.t, c.t + (c.dur ?? 0)]);
  for (const f of p.frames) if (f.t !== null) found.push([f.t, f.t]);
  for (const s of p.segments) if (!s.wait) found.push([s.from, s.to]);
  // Without functions the phases are moments apart: then work is what is left.
  return p.calls.some((c) => c.dur) ? found.filter(([a, b], i) => i < p.calls.length || b - a === 0) : found;
}

/** Pixels that the whole picture takes, with the bar above it. */
export function timelineHeight(packet: WholePacket): number {
  const { tracks } = layTracks(packet.calls);
  const rows = tracks.reduce((sum, t) => sum + t.levels + (t.headed ? 1 : 0), 0);
  return 36 + AXIS + LANE + Math.min(WIRE_ROWS, packet.frames.length) * WIRE + 26 + rows * BAR + tracks.length * GAP;
}

export function Timeline({ packet, chosen }: Props): JSX.Element {
  const folding = useSignal(true);
  const byHeat = useSignal(false);
  const { tracks, bars } = useMemo(() => layTracks(packet.calls), [packet]);
  const [from, to] = useMemo(() => extent(packet), [packet]);
  const folded = useMemo(() => fold(busy(packet), from, to, folding.value), [packet, folding.value]);
  const whole = useMemo((): [number, number] => [0, folded.length], [folded]);
  const axis = useTimeAxis({ whole, least: LEAST_NS, left: GUTTER, right: 8 });
  const { view, scale, zoom, fit, show } = axis;
  const width = useRef(1);
  const hover = useSignal<Tipped | null>(null);
  const drag = useRef<{ x: number; view: [number, number]; moved: boolean } | null>(null);
  const most = useMemo(() => largest(packet.calls.map((c) => c.self ?? 0), 1), [packet]);

  const wireTop = AXIS + (packet.segments.length ? LANE : 0);
  const wires = packet.frames.filter((f) => f.t !== null);
  const wireRows = Math.min(WIRE_ROWS, wires.length);
  const tracksTop = wireTop + wireRows * WIRE + 10;
  /** In which row each frame was drawn. */
  const wireRow = useRef<number[]>([]);
  const rowY = (track: number, level: number) => tracksTop + tracks[track]!.row * BAR + track * GAP + level * BAR;
  const last = tracks.at(-1);
  const height = Math.max(90, last ? rowY(tracks.length - 1, last.levels) + 8 : tracksTop + 24);
  const xOf = (t: number) => scale().at(folded.u(t));
  const folds = useComputed(() => folding.value);

  const paint = (pen: Pen) => {
    const { g, width: w, height: h, color } = pen;
    width.current = w;
    const s = axis.scaleOf(w);
    const x = (t: number) => s.at(folded.u(t));
    g.clearRect(0, 0, w, h);
    g.font = `11px ${color("sans")}`;
    g.textBaseline = "middle";
    g.save();
    g.beginPath();
    g.rect(GUTTER, 0, w - GUTTER, h);
    g.clip();
    // Folds: time that is not drawn to scale.
    for (const f of folded.folds) {
      const [a, b] = [s.at(f.u0), s.at(f.u1)];
      if (b < GUTTER || a > w) continue;
      g.fillStyle = color("fold");
      g.fillRect(a, AXIS, b - a, h - AXIS);
      g.strokeStyle = color("line-strong");
      g.setLineDash([2, 3]);
      g.strokeRect(Math.round(a) + 0.5, AXIS, Math.round(b - a), h);
      g.setLineDash([]);
      g.fillStyle = color("muted");
      const words = shortSpan(f.t1 - f.t0);
      g.save();
      g.translate((a + b) / 2, h - 6);
      g.rotate(-Math.PI / 2);
      if (b - a > 11) g.fillText(words, 0, 0);
      g.restore();
    }
    // Axis, relative to the first sight of the packet.
    for (const p of folded.pieces) {
      if (p.fold) continue;
      const [a, b] = [Math.max(GUTTER, s.at(p.u0)), Math.min(w, s.at(p.u1))];
      if (b - a < 30) continue;
      const [ta, tb] = [folded.t(s.back(a)) - packet.row.t, folded.t(s.back(b)) - packet.row.t];
      drawTimes(pen, (t) => x(t + packet.row.t), [ta, tb], [a, b], { words: AXIS / 2, line: [AXIS - 4, h], grid: true, every: 90, least: 1, end: b + 40 });
    }
    // Phases and waits.
    for (const seg of packet.segments) {
      const [a, b] = [x(seg.from), x(seg.to)];
      if (b < GUTTER || a > w) continue;
      const wide = Math.max(1, b - a - 1);
      g.fillStyle = seg.wait ? color("wait") : color(`l-${phaseLayer(seg.phase)}-soft`);
      g.fillRect(a, AXIS + 2, wide, LANE - 5);
      if (seg.wait) hatch(g, a, AXIS + 2, wide, LANE - 5, color("wait-line"));
      g.fillStyle = color("text");
      const left = Math.max(a, GUTTER);
      const label = fitted(g, seg.label, Math.min(b, w) - left - 8);
      if (label) {
        if (seg.wait) {
          g.fillStyle = color("wait");
          g.fillRect(left + 2, AXIS + 4, g.measureText(label).width + 4, LANE - 9);
          g.fillStyle = color("text");
        }
        g.fillText(label, left + 4, AXIS + LANE / 2);
      }
    }
    // Frames: when they were on the wire, as sure as the clocks allow.
    const free: number[] = Array.from({ length: wireRows }, () => -Infinity);
    wireRow.current = wires.map((f) => {
      const at = x(f.t!);
      const label = `${f.number} ${seen(f.capture)} ${seen(f.side)}`;
      const start = Math.min(at - 4, x(f.t! - f.bound_ns));
      const row = Math.max(0, free.findIndex((end) => end <= start));
      const y = wireTop + row * WIRE + 9;
      const [a, b] = [x(f.t! - f.bound_ns), x(f.t! + f.bound_ns)];
      g.strokeStyle = g.fillStyle = color("wire");
      g.lineWidth = 1.5;
      g.beginPath();
      g.moveTo(a, y);
      g.lineTo(b, y);
      for (const end of [a, b]) {
        g.moveTo(end, y - 4);
        g.lineTo(end, y + 4);
      }
      g.stroke();
      g.lineWidth = 1;
      g.globalAlpha = 0.12;
      g.fillRect(a, wireTop, Math.max(1, b - a), h - wireTop);
      g.globalAlpha = 1;
      g.beginPath();
      g.arc(at, y, 3.5, 0, 7);
      g.fill();
      g.fillStyle = color("text");
      const labelAt = Math.max(at + 7, b + 5);
      const words = fitted(g, label, 220);
      const wide = g.measureText(words).width;
      // To the right of the bar, else to its left; where the bound is wider than the picture, upon it.
      const beside = labelAt + wide > w - 4 ? start - wide - 6 : labelAt;
      const left = beside < GUTTER ? GUTTER + 6 : beside;
      if (free[row]! <= Math.max(GUTTER, Math.min(start, left))) {
        if (left !== beside) {
          g.fillStyle = color("bg");
          g.fillRect(left - 2, y - 7, wide + 4, 14);
          g.fillStyle = color("text");
        }
        g.fillText(words, left, y);
        free[row] = Math.max(b, left + wide) + 8;
      }
      return row;
    });
    // Calls.
    const lastPixel = new Map<number, number>();
    for (const bar of bars) drawBar(pen, bar, x, lastPixel);
    // Hand-overs: from the call that gave the packet away to the call that took it up.
    const at = new Map(bars.map((b) => [b.call.id, b]));
    const labels: [left: number, right: number, y: number][] = [];
    for (const o of packet.handovers) {
      const a = o.from_call === null ? undefined : at.get(o.from_call);
      const b = o.to_call === null ? undefined : at.get(o.to_call);
      const [x0, x1] = [x(o.from), x(o.to)];
      if (x1 < GUTTER || x0 > w) continue;
      const y0 = a ? rowY(a.track, a.level) + BAR / 2 : b ? rowY(b.track, b.level) + BAR / 2 : tracksTop;
      const y1 = b ? rowY(b.track, b.level) + BAR / 2 : y0;
      const bend = Math.max(8, Math.min(40, Math.abs(x1 - x0) / 2));
      g.strokeStyle = g.fillStyle = color("handover");
      g.lineWidth = 1.5;
      g.beginPath();
      g.moveTo(x0, y0);
      g.bezierCurveTo(x0 + bend, y0, x1 - bend, y1, x1 - 2, y1);
      g.stroke();
      g.beginPath();
      g.moveTo(x1, y1);
      g.lineTo(x1 - 6, y1 - 3.5);
      g.lineTo(x1 - 6, y1 + 3.5);
      g.fill();
      g.lineWidth = 1;
      const words = x1 - x0 < 24 ? "" : fitted(g, `${o.kind} ${shortSpan(o.wait)}`, Math.max(110, x1 - x0 - 16));
      const half = g.measureText(words).width / 2 + 2;
      const [middle, level] = [(x0 + x1) / 2, (y0 + y1) / 2];
      const free = !labels.some(([l, r, y]) => Math.abs(y - level) < 14 && middle - half < r && middle + half > l);
      // Within one track the words would cover what stands beside the arrow.
      const room = Math.abs(y1 - y0) > 20 || x1 - x0 >= half * 2 + 16;
      if (words && free && room && middle - half > GUTTER) {
        labels.push([middle - half, middle + half, level]);
        g.fillStyle = color("bg");
        g.fillRect(middle - half, level - 7, half * 2, 14);
        g.fillStyle = color("handover");
        g.fillText(words, middle - half + 2, level);
      }
    }
    // Events: a drop is where the packet's way ends.
    for (const e of packet.events) {
      const at = x(e.t);
      if (at < GUTTER || at > w) continue;
      const isDrop = /drop/.test(e.kind);
      g.strokeStyle = g.fillStyle = color(isDrop ? "drop" : "wire");
      g.setLineDash([3, 3]);
      g.beginPath();
      g.moveTo(at, AXIS);
      g.lineTo(at, h);
      g.stroke();
      g.setLineDash([]);
      g.lineWidth = 2;
      g.beginPath();
      if (isDrop) (g.moveTo(at - 4, AXIS - 9), g.lineTo(at + 4, AXIS - 1), g.moveTo(at + 4, AXIS - 9), g.lineTo(at - 4, AXIS - 1));
      else (g.moveTo(at, AXIS - 10), g.lineTo(at + 4, AXIS - 5), g.lineTo(at, AXIS), g.lineTo(at - 4, AXIS - 5), g.closePath());
      g.stroke();
      g.lineWidth = 1;
    }
    // Losses while the packet lived: over the axis, so that what is there can still be read.
    for (const l of packet.losses) hatch(g, Math.max(GUTTER, x(l.from)), 0, Math.max(2, Math.min(w, x(l.to)) - Math.max(GUTTER, x(l.from))), AXIS - 4, color("loss"));
    g.restore();
    // Gutter.
    g.fillStyle = color("muted");
    if (packet.segments.length) g.fillText("phases", 8, AXIS + LANE / 2);
    if (wires.length) g.fillText("wire", 8, wireTop + 9);
    tracks.forEach((t, i) => {
      const y = rowY(i, 0);
      g.fillStyle = color("text");
      const top = t.headed ? y - BAR : y;
      if (t.headed) {
        // Over its tracks, on what is there.
        const name = fitted(g, seen(t.device), w - 16);
        g.fillStyle = color("bg");
        g.fillRect(6, top + 1, g.measureText(name).width + 4, BAR - 2);
        g.fillStyle = color("accent");
        g.fillText(name, 8, top + BAR / 2);
        g.fillStyle = color("text");
      }
      g.fillText(`CPU ${t.cpu}`, 8, y + BAR / 2);
      g.fillStyle = color("muted");
      g.fillText(fitted(g, CONTEXT[t.ctx], GUTTER - 56), 50, y + BAR / 2);
      g.strokeStyle = color("line");
      g.beginPath();
      g.moveTo(0, top - GAP / 2 + 0.5);
      g.lineTo(w, top - GAP / 2 + 0.5);
      g.stroke();
    });
    g.strokeStyle = color("line");
    g.beginPath();
    g.moveTo(GUTTER - 0.5, 0);
    g.lineTo(GUTTER - 0.5, h);
    g.stroke();
  };

  function drawBar({ g, width: w, color }: Pen, bar: Bar, x: (t: number) => number, lastPixel: Map<number, number>): void {
    const { call, track, level } = bar;
    const a = x(call.t);
    const b = x(call.t + (call.dur ?? 0));
    if (b < GUTTER || a > w) return;
    const y = rowY(track, level);
    const layer = layerClass(call.layer);
    const isChosen = chosen.value === call.id;
    if (call.point || call.dur === null) {
      g.fillStyle = color(`l-${layer}`);
      g.beginPath();
      g.moveTo(a, y + 2);
      g.lineTo(a + 4.5, y + BAR / 2);
      g.lineTo(a, y + BAR - 2);
      g.lineTo(a - 4.5, y + BAR / 2);
      g.fill();
      if (isChosen) {
        g.strokeStyle = color("accent");
        g.lineWidth = 2;
        g.stroke();
        g.lineWidth = 1;
      }
      return;
    }
    const wide = Math.max(1, b - a);
    const row = Math.round(y);
    if (wide <= 1 && lastPixel.get(row) === Math.round(a) && !isChosen) return;
    lastPixel.set(row, Math.round(a));
    g.fillStyle = byHeat.value ? color("heat-0") : color(`l-${layer}-soft`);
    g.fillRect(a, y, wide, BAR - 1);
    if (byHeat.value) {
      g.globalAlpha = Math.sqrt((call.self ?? 0) / most);
      g.fillStyle = color("heat-1");
      g.fillRect(a, y, wide, BAR - 1);
      g.globalAlpha = 1;
    } else if (wide > 3) {
      g.fillStyle = color(`l-${layer}`);
      g.fillRect(a, y, 2, BAR - 1);
    }
    if (isChosen) {
      g.strokeStyle = color("accent");
      g.lineWidth = 2;
      g.strokeRect(a + 1, y + 0.5, Math.max(1, wide - 2), BAR - 2);
      g.lineWidth = 1;
    }
    const left = Math.max(a, GUTTER);
    const label = fitted(g, seen(call.name), Math.min(b, w) - left - 8);
    if (label) {
      g.fillStyle = color("text");
      g.fillText(label, left + 5, y + BAR / 2);
    }
  }

  function under(px: number, py: number): { call?: Call; lines: string[] } | null {
    const near = 3;
    for (let i = bars.length - 1; i >= 0; i--) {
      const { call, track, level } = bars[i]!;
      const y = rowY(track, level);
      if (py < y || py >= y + BAR) continue;
      const [a, b] = [xOf(call.t), xOf(call.t + (call.dur ?? 0))];
      if (px >= a - near && px <= Math.max(b, a + 1) + near) {
        const times = call.dur === null ? ["no return was recorded"] : [`${span(call.dur)}, of it itself ${span(call.self)}`];
        if (call.point) times.length = 0;
        return {
          call,
          lines: [seen(call.name) + (call.list ? " (list)" : ""), ...times, `at ${span(call.t - packet.row.t)}, ${CONTEXT[call.ctx]}, CPU ${call.cpu}${call.comm ? `, over ${seen(call.comm)} ${call.pid}` : ""}`],
        };
      }
    }
    if (py >= wireTop && py < wireTop + wireRows * WIRE)
      for (const [i, f] of wires.entries())
        if (wireRow.current[i] === Math.floor((py - wireTop) / WIRE) && (Math.abs(xOf(f.t!) - px) < 8 || (px >= xOf(f.t! - f.bound_ns) && px <= xOf(f.t! + f.bound_ns))))
          return { lines: [`frame ${f.number} of ${seen(f.capture)}, ${seen(f.side)}`, `at ${span(f.t! - packet.row.t)} ± ${span(f.bound_ns)}`, `${sure(f.confidence)} sure, by ${seen(f.key)}`] };
    if (py < AXIS)
      for (const e of packet.events) if (Math.abs(xOf(e.t) - px) < 6) return { lines: [seen(e.kind), seen(e.words), `at ${span(e.t - packet.row.t)}`] };
    if (py >= AXIS && py < AXIS + LANE)
      for (const s of packet.segments)
        if (px >= xOf(s.from) && px <= xOf(s.to)) return { lines: [s.label + (s.wait ? " (wait)" : ""), span(s.to - s.from)] };
    return null;
  }

  const onKeyDown = (e: KeyboardEvent) => {
    const step = (by: number) => {
      const i = packet.calls.findIndex((c) => c.id === chosen.peek());
      const next = packet.calls[Math.max(0, Math.min(packet.calls.length - 1, i + by))];
      if (!next) return;
      chosen.value = next.id;
      const [a, b] = view.peek();
      const u = folded.u(next.t);
      if (u < a || u > b) show(panned(a, b, u - (a + b) / 2, 0, folded.length));
    };
    axis.key(e, { ArrowDown: () => step(1), ArrowUp: () => step(-1) });
  };

  const shownNs = folded.t(view.value[1]) - folded.t(view.value[0]);
  const zoomedIn = view.value[0] > 0 || view.value[1] < folded.length;
  return (
    <div class="timeline">
      <div class="bar">
        <span class="bar-words">{zoomedIn ? `${shortSpan(shownNs)} of the picture's ${shortSpan(folded.t(folded.length) - folded.t(0))}` : "all of it"}</span>
        <span class="spring" />
        <label class="check">
          <input type="checkbox" checked={folds.value} onChange={(e) => (folding.value = e.currentTarget.checked)} /> fold long waits
        </label>
        <label class="check">
          <input type="checkbox" checked={byHeat.value} onChange={(e) => (byHeat.value = e.currentTarget.checked)} /> colour by self time
        </label>
        <button type="button" class="icon" title="Zoom out (s, −)" aria-label="Zoom out" onClick={() => zoom(1.6)}>−</button>
        <button type="button" class="icon" title="Zoom in (w, +)" aria-label="Zoom in" onClick={() => zoom(0.6)}>+</button>
        <button type="button" class="button small" title="The whole way (0)" onClick={fit}>Fit</button>
      </div>
      <div class="timeline-box">
        <div class="timeline-tall" style={{ height: `${height}px` }}>
          <Canvas
            key={folding.value ? "f" : "p"}
            paint={paint}
            height={height}
            attach={axis.attach}
            tabIndex={0}
            role="img"
            label={`Timeline of packet ${packet.row.id ?? ""}: ${many(packet.calls.length, "call")} on ${many(tracks.length, "track")}, ${many(wires.length, "wire frame")}. W and S zoom, A and D or the arrows move, up and down go from call to call. The table of calls says the same in words.`}
            onKeyDown={onKeyDown}
            onPointerDown={(e) => {
              if (e.button !== 0) return;
              e.currentTarget.setPointerCapture(e.pointerId);
              drag.current = { x: e.clientX, view: view.peek(), moved: false };
            }}
            onPointerMove={(e) => {
              const d = drag.current;
              if (d) {
                const by = e.clientX - d.x;
                if (Math.abs(by) > 3) d.moved = true;
                if (d.moved) axis.drag(d.view, by);
                hover.value = null;
                return;
              }
              const found = under(e.offsetX, e.offsetY);
              hover.value = found ? { x: e.offsetX, y: e.offsetY, lines: found.lines } : null;
            }}
            onPointerLeave={() => (hover.value = null)}
            onPointerUp={(e) => {
              if (drag.current && !drag.current.moved) chosen.value = under(e.offsetX, e.offsetY)?.call?.id ?? null;
              drag.current = null;
            }}
            onDblClick={(e) => {
              const call = under(e.offsetX, e.offsetY)?.call;
              if (!call?.dur) {
                fit();
                return;
              }
              const [a, b] = [folded.u(call.t), folded.u(call.t + call.dur)];
              const margin = Math.max(LEAST_NS, (b - a) * 0.05);
              show([Math.max(0, a - margin), Math.min(folded.length, b + margin)]);
            }}
          />
          <Tip at={hover} width={() => width.current} />
        </div>
      </div>
    </div>
  );
}
