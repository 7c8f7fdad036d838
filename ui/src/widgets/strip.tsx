// The whole log in one strip: how many packets when, where some were dropped or sent again, and where the log itself has
// holes (hatched). Brushing chooses a piece of time for every view.

import { useSignal } from "@preact/signals";
import type { JSX } from "preact";
import { Scale } from "../base/scale.ts";
import type { Overview } from "../api/types.ts";
import { count, shortSpan } from "../base/units.ts";
import { Canvas, type Pen } from "./canvas.tsx";
import { drawTimes } from "./timeaxis.tsx";

const LEAST_PIXELS = 4;
const AXIS = 14;
/** Room at both ends, so that no mark is cut. */
const END = 5;

/** Diagonal lines: time of which the log knows less than it should. */
export function hatch(g: CanvasRenderingContext2D, x: number, y: number, w: number, h: number, color: string): void {
  // Zoomed in, most of it may be beside the picture.
  const left = Math.max(0, x);
  const right = Math.min(g.canvas.width, x + w);
  g.save();
  g.beginPath();
  g.rect(x, y, w, h);
  g.clip();
  g.strokeStyle = color;
  g.lineWidth = 1;
  g.beginPath();
  for (let d = left - h; d < right; d += 5) {
    g.moveTo(d, y + h);
    g.lineTo(d + h, y);
  }
  g.stroke();
  g.restore();
}

interface Props {
  data: Overview;
  chosen: [number, number] | null;
  onChoose: (time: [number, number] | null) => void;
  /** Time of the chosen packet. */
  mark: number | null;
}

export function Strip({ data, chosen, onChoose, mark }: Props): JSX.Element {
  const drag = useSignal<[number, number] | null>(null);
  const hover = useSignal<number | null>(null);
  const width = useSignal(1);
  const n = data.bins.packets.length;
  const scale = () => new Scale(data.from, data.to, END, width.peek() - END);
  const binWidth = (data.to - data.from) / Math.max(1, n);

  const paint = (pen: Pen) => {
    const { g, width: w, height, color } = pen;
    width.value = w;
    const s = new Scale(data.from, data.to, END, w - END);
    const tall = height - AXIS;
    const most = Math.max(1, ...data.bins.packets);
    // A root scale: one packet is still seen beside a burst of thousands.
    const up = (v: number) => (v ? Math.max(2, Math.sqrt(v / most) * (tall - 6)) : 0);
    g.clearRect(0, 0, w, height);
    const step = (w - 2 * END) / n;
    for (let i = 0; i < n; i++) {
      if (data.bins.lost[i]) hatch(g, END + i * step, 0, step + 0.5, tall, color("loss"));
    }
    g.fillStyle = color("density");
    for (let i = 0; i < n; i++) {
      const h = up(data.bins.packets[i]!);
      if (h) g.fillRect(END + i * step, tall - h, Math.max(1, step - (step > 4 ? 1 : 0)), h);
    }
    // A mark stands for all within its own width.
    let [cross, again] = [-Infinity, -Infinity];
    for (let i = 0; i < n; i++) {
      const x = END + i * step + step / 2;
      if (data.bins.retransmissions[i] && x - again >= 4) {
        again = x;
        g.fillStyle = color("retransmission");
        g.fillRect(x - 1, 5, 2, 4);
      }
      if (data.bins.drops[i] && x - cross >= 7) {
        cross = x;
        g.strokeStyle = color("drop");
        g.lineWidth = 1.5;
        g.beginPath();
        g.moveTo(x - 2.5, 0.5);
        g.lineTo(x + 2.5, 5.5);
        g.moveTo(x + 2.5, 0.5);
        g.lineTo(x - 2.5, 5.5);
        g.stroke();
      }
    }
    g.fillStyle = color("muted");
    g.strokeStyle = color("line");
    g.lineWidth = 1;
    g.font = `10px ${color("sans")}`;
    g.textBaseline = "bottom";
    g.beginPath();
    g.moveTo(0, tall + 0.5);
    g.lineTo(w, tall + 0.5);
    g.stroke();
    drawTimes(pen, (t) => s.at(t), [data.from, data.to], [0, w], { words: height, line: [tall, tall + 3], end: w - 2, moved: true });
    const piece = drag.value ?? chosen;
    if (piece) {
      const [a, b] = [s.at(Math.min(...piece)), s.at(Math.max(...piece))];
      g.fillStyle = color("shade");
      g.fillRect(0, 0, a, tall);
      g.fillRect(b, 0, w - b, tall);
      g.strokeStyle = color("accent");
      g.strokeRect(a + 0.5, 0.5, Math.max(1, b - a - 1), tall - 1);
    }
    if (mark !== null) {
      g.fillStyle = color("accent");
      const x = s.at(mark);
      g.fillRect(x - 0.75, 0, 1.5, tall);
      g.beginPath();
      g.moveTo(x - 4, 0);
      g.lineTo(x + 4, 0);
      g.lineTo(x, 5);
      g.fill();
    }
  };

  const timeAt = (e: PointerEvent) => {
    const box = (e.currentTarget as HTMLElement).getBoundingClientRect();
    return Math.max(data.from, Math.min(data.to, scale().back(e.clientX - box.left)));
  };
  const bin = hover.value === null ? -1 : Math.min(n - 1, Math.floor((hover.value - data.from) / binWidth));
  const sum = (xs: number[]) => xs.reduce((a, b) => a + b, 0);
  const lost = data.bins.lost.filter(Boolean).length;
  const words =
    `${count(sum(data.bins.packets))} packets in ${shortSpan(data.to - data.from)}, ` +
    `${count(sum(data.bins.drops))} dropped, ${count(sum(data.bins.retransmissions))} retransmitted` +
    (lost ? `; something was lost in ${count(lost)} of ${count(n)} intervals` : "");
  const onKeyDown = (e: KeyboardEvent) => {
    const now = chosen ?? [data.from, data.to];
    const w = now[1] - now[0];
    const moves: Record<string, [number, number] | null> = {
      ArrowLeft: [now[0] - w / 4, now[1] - w / 4],
      ArrowRight: [now[0] + w / 4, now[1] + w / 4],
      "+": [now[0] + w / 4, now[1] - w / 4],
      "-": [now[0] - w / 2, now[1] + w / 2],
      Escape: null,
    };
    if (!(e.key in moves)) return;
    e.preventDefault();
    const next = moves[e.key] ?? null;
    const held: [number, number] | null = next && [Math.max(data.from, next[0]), Math.min(data.to, next[1])];
    onChoose(held && held[1] - held[0] < data.to - data.from && held[1] > held[0] ? held : null);
  };
  return (
    <div class="strip">
      <Canvas
        paint={paint}
        label={`Overview: ${words}. Arrows move the chosen piece of time, plus and minus change it, Escape takes it away.`}
        role="img"
        tabIndex={0}
        onKeyDown={onKeyDown}
        onPointerDown={(e) => {
          if (e.button !== 0) return;
          e.currentTarget.setPointerCapture(e.pointerId);
          const t = timeAt(e);
          drag.value = [t, t];
        }}
        onPointerMove={(e) => {
          hover.value = timeAt(e);
          if (drag.peek()) drag.value = [drag.peek()![0], timeAt(e)];
        }}
        onPointerLeave={() => (hover.value = null)}
        onPointerUp={() => {
          const d = drag.peek();
          drag.value = null;
          if (!d) return;
          const [a, b] = [Math.min(...d), Math.max(...d)];
          onChoose(((b - a) / (data.to - data.from)) * width.peek() < LEAST_PIXELS ? null : [a, b]);
        }}
      />
      <div class="strip-words" aria-hidden="true">
        {bin >= 0
          ? `${shortSpan(data.from + bin * binWidth)} + ${shortSpan(binWidth)}: ${count(data.bins.packets[bin]!)} packets` +
            (data.bins.drops[bin] ? `, ${count(data.bins.drops[bin]!)} dropped` : "") +
            (data.bins.retransmissions[bin] ? `, ${count(data.bins.retransmissions[bin]!)} retransmitted` : "") +
            (data.bins.lost[bin] ? ", something was lost here" : "")
          : ""}
      </div>
    </div>
  );
}
