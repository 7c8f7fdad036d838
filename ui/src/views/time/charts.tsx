// Path times of the chosen packets: over time, and how often each. Both axes of time in the kernel are logarithmic.

import { useSignal } from "@preact/signals";
import type { JSX } from "preact";
import { useMemo, useRef } from "preact/hooks";
import { listed, listedTitle, wholeLog } from "../../api/log.ts";
import { rowsOf } from "../../api/pages.ts";
import type { Latency, LatencyBin, LatencyPoint } from "../../api/types.ts";
import { at, go } from "../../base/place.ts";
import { ticks } from "../../base/scale.ts";
import { count, many, shortSpan, span } from "../../base/units.ts";
import { Canvas, type Pen } from "../../widgets/canvas.tsx";
import { drawTimes, useTimeAxis } from "../../widgets/timeaxis.tsx";
import { Tip, type Tipped } from "../../widgets/tip.tsx";
import { LogScale, filterOf, latencyWords, logTicks, nearest, reachOf, runs } from "./model.ts";

const GUTTER = 58;
const BELOW = 20;
const ABOVE = 8;
const NEAR = 10;
const LEAST_NS = 1000;

/** An empty picture, in the type that words on it have. */
function blank({ g, width, height, color }: Pen): void {
  g.clearRect(0, 0, width, height);
  g.font = `11px ${color("sans")}`;
  g.textBaseline = "middle";
}

/** A line across at `y`, and what it stands for beside it. */
function gridLine({ g, width, color }: Pen, y: number, word: string): void {
  g.strokeStyle = color("line");
  g.beginPath();
  g.moveTo(GUTTER, y);
  g.lineTo(width, y);
  g.stroke();
  g.fillStyle = color("muted");
  g.textAlign = "right";
  g.fillText(word, GUTTER - 6, y);
  g.textAlign = "left";
}

export function OverTime({ data }: { data: Latency }): JSX.Element {
  const size = useRef({ width: 1, height: 1 });
  const tip = useSignal<Tipped | null>(null);
  const points = useMemo(() => rowsOf<LatencyPoint>(data.points), [data]);
  const bins = useMemo(() => rowsOf<LatencyBin>(data.bins), [data]);
  const current = useSignal(-1);
  const HEIGHT = 240;
  // A few quick packets among very many must not take the axis: where there are bands it begins with them.
  const [low, high] = reachOf(data.all_points ? data.min : bins.reduce((least, b) => Math.min(least, b.p10), data.max ?? 1), data.max);
  const { pieces } = data;
  const axis = useTimeAxis({ whole: wholeLog(), least: LEAST_NS, chosen: at.time.value, onChoose: (time) => go({ time }), left: GUTTER + 4, right: 8, scrolls: true });
  const xs = axis.scale;
  const clicked = useRef(true);
  const ys = () => new LogScale(low, high, HEIGHT - BELOW, ABOVE);
  const chosen = at.packet.value;

  const paint = (pen: Pen) => {
    const { g, width, height, color } = pen;
    size.current = { width, height };
    const [x, y] = [axis.scaleOf(width), ys()];
    blank(pen);
    for (const ns of logTicks(y.from, y.to, (height - BELOW) / 22)) gridLine(pen, Math.round(y.at(ns)) + 0.5, shortSpan(ns));
    drawTimes(pen, (t) => x.at(t), axis.view.value, [GUTTER, width], { words: height - BELOW + 11, line: [height - BELOW, height - BELOW + 4], every: 110, end: width, moved: true });
    // On the way to another piece of time there may be what is beside this one.
    g.save();
    g.beginPath();
    g.rect(GUTTER, 0, width - GUTTER, height - BELOW + 4);
    g.clip();
    const middle = (b: LatencyBin) => x.at(data.from + ((b.bin + 0.5) * (data.to - data.from)) / pieces);
    const half = Math.max(1, (x.at(data.to) - x.at(data.from)) / pieces / 2);
    const band = (of: (b: LatencyBin) => [number, number], alpha: number) => {
      g.fillStyle = color("accent");
      g.globalAlpha = alpha;
      for (const b of bins) {
        const [from, to] = of(b);
        g.fillRect(middle(b) - half, y.at(to), 2 * half, Math.max(1.5, y.at(from) - y.at(to)));
      }
      g.globalAlpha = 1;
    };
    if (!data.all_points) {
      band((b) => [b.p90, b.p99], 0.14);
      band((b) => [b.p10, b.p90], 0.3);
      g.strokeStyle = color("accent");
      g.lineWidth = 2;
      for (const [from, to] of runs(bins.map((b) => b.bin))) {
        g.beginPath();
        g.moveTo(middle(bins[from]!) - half, y.at(bins[from]!.median));
        for (let i = from; i <= to; i++) g.lineTo(middle(bins[i]!), y.at(bins[i]!.median));
        g.lineTo(middle(bins[to]!) + half, y.at(bins[to]!.median));
        g.stroke();
      }
      g.lineWidth = 1;
    }
    for (const p of points) {
      const [px, py] = [x.at(p.t), y.at(p.path_ns)];
      if (p.dropped) {
        g.strokeStyle = color("drop");
        g.lineWidth = 1.5;
        g.beginPath();
        g.moveTo(px - 3, py - 3);
        g.lineTo(px + 3, py + 3);
        g.moveTo(px + 3, py - 3);
        g.lineTo(px - 3, py + 3);
        g.stroke();
      } else {
        g.fillStyle = color("density");
        g.beginPath();
        g.arc(px, py, points.length > 1000 ? 1.5 : 2.2, 0, 2 * Math.PI);
        g.fill();
      }
    }
    const marked = points.find((p) => p.packet === chosen);
    const focused = points[current.value];
    for (const p of [marked, focused]) {
      if (!p) continue;
      g.strokeStyle = color("accent");
      g.lineWidth = 2;
      g.beginPath();
      g.arc(x.at(p.t), y.at(p.path_ns), 6, 0, 2 * Math.PI);
      g.stroke();
    }
    axis.drawBrush(pen, 0, height - BELOW);
    g.restore();
    g.lineWidth = 1;
  };
  const linesOf = (p: LatencyPoint) => [`packet ${p.packet}: ${span(p.path_ns)}`, `${listed(p.t)} ${listedTitle().replace("Time ", "")}${p.dropped ? ", dropped" : ""}`];
  const tipAt = (px: number, py: number): Tipped | null => {
    const p = nearest(points, (t) => xs().at(t), (ns) => ys().at(ns), [px, py], NEAR);
    if (p) return { x: px, y: py, lines: linesOf(p) };
    if (data.all_points || px < GUTTER) return null;
    const bin = Math.floor(((xs().back(px) - data.from) / (data.to - data.from || 1)) * pieces);
    const b = bins.find((k) => k.bin === bin);
    return b ? { x: px, y: py, lines: [`${many(b.packets, "packet")} from ${listed(data.from + (bin * (data.to - data.from)) / pieces)}`, `median ${span(b.median)}`, `p10 ${span(b.p10)}, p90 ${span(b.p90)}, p99 ${span(b.p99)}`, `${span(b.min)} to ${span(b.max)}`] } : null;
  };
  return (
    <section aria-label="Path time over time">
      <h2>Path time over time</h2>
      <div class="chart" style={{ height: `${HEIGHT}px` }}>
        <Canvas paint={paint} height={HEIGHT} role="img" tabIndex={0}
          label={`Path times over time: ${latencyWords(data, span)}. Left and right go from packet to packet, Enter chooses one. W and S zoom, A and D move, 0 shows everything.`}
          attach={axis.attach}
          onPointerDown={axis.brushBegin}
          onPointerMove={(e) => (tip.value = axis.brushMove(e) ? null : tipAt(e.offsetX, e.offsetY))}
          onPointerUp={() => void (clicked.current = !axis.brushEnd())}
          onPointerLeave={() => (tip.value = null)}
          onDblClick={axis.fit}
          onClick={(e) => {
            if (!clicked.current) return;
            const p = nearest(points, (t) => xs().at(t), (ns) => ys().at(ns), [e.offsetX, e.offsetY], NEAR);
            if (p) go({ packet: p.packet });
          }}
          onBlur={() => ((current.value = -1), (tip.value = null))}
          onKeyDown={(e) => {
            const step = { ArrowLeft: -1, ArrowRight: 1 }[e.key];
            const p = points[current.value];
            if (e.key === "Enter" && p) go({ packet: p.packet });
            if (!step) axis.key(e);
            if (!step || !points.length) return;
            e.preventDefault();
            current.value = Math.max(0, Math.min(points.length - 1, current.value < 0 && step < 0 ? points.length - 1 : current.value + step));
            const next = points[current.value]!;
            tip.value = { x: xs().at(next.t), y: ys().at(next.path_ns), lines: linesOf(next) };
          }} />
        <Tip at={tip} width={() => size.current.width} />
      </div>
      <p class="chart-key">
        {data.all_points ? (
          <span><i class="key-point" />a packet</span>
        ) : (
          <>
            <span><i class="key-median" />median</span>
            <span><i class="key-most" />p10 to p90</span>
            <span><i class="key-rare" />to p99</span>
            <span><i class="key-point" />the {count(points.length)} slowest</span>
          </>
        )}
        {points.some((p) => p.dropped) && <span><i class="key-drop">✕</i>dropped</span>}
      </p>
    </section>
  );
}

export function Histogram({ data, where }: { data: Latency; where: string }): JSX.Element {
  const size = useRef({ width: 1, height: 1 });
  const tip = useSignal<Tipped | null>(null);
  const current = useSignal(-1);
  const HEIGHT = 150;
  const steps = data.histogram;
  const most = steps.reduce((n, s) => Math.max(n, s.packets), 1);
  const [low, high] = reachOf(steps[0]?.from ?? null, steps[steps.length - 1]?.below ?? null);
  const xs = () => new LogScale(low, high, GUTTER + 4, size.current.width - 8);
  const tall = HEIGHT - BELOW - ABOVE;

  const paint = (pen: Pen) => {
    const { g, width, height, color } = pen;
    size.current = { width, height };
    const x = xs();
    blank(pen);
    for (const n of ticks(0, most, 4).filter((n) => Number.isInteger(n))) {
      gridLine(pen, Math.round(height - BELOW - (n / most) * tall) + 0.5, count(n));
    }
    steps.forEach((s, i) => {
      const [a, b] = [x.at(s.from), x.at(s.below)];
      const h = Math.max(1.5, (s.packets / most) * tall);
      g.fillStyle = color(i === current.value ? "accent" : "density");
      g.fillRect(a + 0.5, height - BELOW - h, Math.max(1, b - a - 1), h);
    });
    g.fillStyle = color("muted");
    for (const ns of logTicks(low, high, (width - GUTTER) / 64)) {
      g.fillRect(Math.round(x.at(ns)), height - BELOW, 1, 4);
      g.fillText(shortSpan(ns), Math.min(x.at(ns) + 3, width - g.measureText(shortSpan(ns)).width), height - BELOW + 11);
    }
    g.strokeStyle = color("accent");
    for (const [ns, dash] of [[data.median, []], [data.p99, [3, 3]]] as [number | null, number[]][]) {
      if (ns === null) continue;
      g.setLineDash(dash);
      g.beginPath();
      g.moveTo(x.at(ns), ABOVE);
      g.lineTo(x.at(ns), height - BELOW);
      g.stroke();
    }
    g.setLineDash([]);
  };
  const under = (px: number) => steps.findIndex((s) => px >= xs().at(s.from) && px < xs().at(s.below));
  const choose = (i: number) => {
    const step = steps[i];
    if (step) go({ where: filterOf(step, where), view: "packets" });
  };
  const tell = (i: number, px: number, py: number) => {
    const s = steps[i];
    tip.value = s ? { x: px, y: py, lines: [many(s.packets, "packet"), `${span(s.from)} to below ${span(s.below)}`] } : null;
  };
  return (
    <section aria-label="How often each path time">
      <h2>How often each path time</h2>
      <div class="chart" style={{ height: `${HEIGHT}px` }}>
        <Canvas paint={paint} height={HEIGHT} role="img" tabIndex={0}
          label={`Histogram of path times: ${latencyWords(data, span)}. Left and right go from bar to bar, Enter lists its packets.`}
          onPointerMove={(e) => tell(under(e.offsetX), e.offsetX, e.offsetY)}
          onPointerLeave={() => (tip.value = null)}
          onClick={(e) => choose(under(e.offsetX))}
          onBlur={() => ((current.value = -1), (tip.value = null))}
          onKeyDown={(e) => {
            const step = { ArrowLeft: -1, ArrowRight: 1 }[e.key];
            if (e.key === "Enter") choose(current.value);
            if (!step || !steps.length) return;
            e.preventDefault();
            current.value = Math.max(0, Math.min(steps.length - 1, current.value < 0 && step < 0 ? steps.length - 1 : current.value + step));
            tell(current.value, xs().at(steps[current.value]!.from), HEIGHT / 2);
          }} />
        <Tip at={tip} width={() => size.current.width} />
      </div>
      <p class="chart-key">
        <span>median {data.median === null ? "–" : span(data.median)} (line)</span>
        <span>p99 {data.p99 === null ? "–" : span(data.p99)} (dashed)</span>
        <span>a bar lists its packets</span>
      </p>
    </section>
  );
}
