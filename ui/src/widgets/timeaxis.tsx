// The one axis of time of all views: its marks, and how a piece of time is looked at and chosen, by wheel, keys and hand. A view says what there is
// and draws it; whether times are folded or straight is its own affair.

import { useSignal, type Signal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { Scale, panned, tickWords, ticks, zoomed } from "../base/scale.ts";
import type { Pen } from "./canvas.tsx";

export type Piece = [from: number, to: number];

interface Marks {
  /** Where the words stand, and from where to where a mark goes. */
  words: number;
  line: [number, number];
  /** A line through the picture, else a mark beside the words. */
  grid?: boolean;
  /** Pixels between marks, about. */
  every?: number;
  /** The least of them, however narrow. */
  least?: number;
  /** Where words end at the latest: those that do not fit are moved, or left out. */
  end: number;
  moved?: boolean;
}

/** Marks of the times from `from` to `to`, which take the pixels from `left` to `right`. */
export function drawTimes({ g, color }: Pen, at: (t: number) => number, [from, to]: Piece, [left, right]: [number, number], m: Marks): void {
  const marks = ticks(from, to, Math.max(m.least ?? 2, (right - left) / (m.every ?? 120)));
  const words = tickWords(marks);
  g.lineWidth = 1;
  g.strokeStyle = color(m.grid ? "line" : "muted");
  g.fillStyle = color("muted");
  marks.forEach((t, i) => {
    const x = Math.round(at(t)) + 0.5;
    g.beginPath();
    g.moveTo(x, m.line[0]);
    g.lineTo(x, m.line[1]);
    g.stroke();
    const room = m.end - g.measureText(words[i]!).width;
    if (m.moved || x + 4 < room) g.fillText(words[i]!, Math.min(x + 4, room), m.words);
  });
}

interface Props {
  /** All that can be shown. */
  whole: Piece;
  /** No closer than this. */
  least: number;
  /** The page's piece of time. */
  chosen?: Piece | null;
  /** Called once the hand rests; null: all of it. Without it what is shown is this view's alone. */
  onChoose?: (piece: Piece | null) => void;
  /** Pixels beside the axis. */
  left: number;
  right: number;
  /** The picture is taller than its pane: the wheel scrolls, with Ctrl it zooms. */
  scrolls?: boolean;
}

export interface TimeAxis {
  /** What is shown: of the page's choice, or coarsely on the way to the next one. */
  view: Signal<Piece>;
  /** What is being chosen by dragging. */
  brush: Signal<Piece | null>;
  /** Says how wide the picture is, and gives the map to its pixels. */
  scaleOf: (width: number) => Scale;
  scale: () => Scale;
  show: (piece: Piece) => void;
  zoom: (factor: number, pivot?: number) => void;
  pan: (part: number) => void;
  /** Moves what was shown by pixels. */
  drag: (from: Piece, pixels: number) => void;
  fit: () => void;
  /** Does what the key says; `more` comes first. */
  key: (e: KeyboardEvent, more?: Record<string, () => void>) => void;
  /** For a canvas, which must not listen passively. */
  attach: (el: HTMLCanvasElement) => () => void;
  brushBegin: (e: PointerEvent) => void;
  /** True while something is chosen. */
  brushMove: (e: PointerEvent) => boolean;
  /** True if something was chosen, and not just clicked at. */
  brushEnd: () => boolean;
  drawBrush: (pen: Pen, top: number, bottom: number) => void;
}

/** Narrower is a click. */
const LEAST_PIXELS = 4;
const REST_MS = 180;

export function useTimeAxis(p: Props): TimeAxis {
  const shown = p.chosen ?? p.whole;
  const view = useSignal<Piece>(shown);
  const brush = useSignal<Piece | null>(null);
  const width = useRef(1);
  /** What will choose once the hand rests; 0: it rests. */
  const asking = useRef(0);
  /** What was chosen here last. */
  const own = useRef("");
  const props = useRef(p);
  props.current = p;
  const key = `${p.chosen} ${p.whole}`;
  const known = useRef(key);
  useEffect(() => {
    if (known.current === key) return;
    known.current = key;
    // What was chosen here comes back after the hand may have gone on; else it comes from outside: the address, another picture.
    if (asking.current && own.current === `${p.chosen}`) return;
    clearTimeout(asking.current);
    asking.current = 0;
    view.value = shown;
  }, [key]);
  useEffect(() => () => clearTimeout(asking.current), []);

  const made = useRef<TimeAxis | null>(null);
  if (made.current) return made.current;

  const scale = () => new Scale(view.peek()[0], view.peek()[1], props.current.left, width.current - props.current.right);
  const show = (piece: Piece) => {
    const { whole, onChoose } = props.current;
    if (!onChoose) return void (view.value = piece);
    view.value = [Math.round(piece[0]), Math.round(piece[1])];
    clearTimeout(asking.current);
    asking.current = setTimeout(() => {
      const [a, b] = view.peek();
      const piece: Piece | null = a <= whole[0] && b >= whole[1] ? null : [Math.max(0, a), b];
      asking.current = 0;
      own.current = `${piece}`;
      onChoose(piece);
    }, REST_MS) as unknown as number;
  };
  const least = () => Math.min(props.current.least, props.current.whole[1] - props.current.whole[0]);
  const zoom = (factor: number, pivot = (view.peek()[0] + view.peek()[1]) / 2) => {
    const [a, b] = view.peek();
    show(zoomed(a, b, factor, pivot, ...props.current.whole, least()));
  };
  const by = ([a, b]: Piece, part: number) => show(panned(a, b, (b - a) * part, ...props.current.whole));
  const pan = (part: number) => by(view.peek(), part);
  const fit = () => show(props.current.whole);
  const timeAt = (e: PointerEvent) => Math.max(view.peek()[0], Math.min(view.peek()[1], scale().back(e.offsetX)));
  const keys: Record<string, () => void> = {
    w: () => zoom(0.7), s: () => zoom(1.4), a: () => pan(-0.15), d: () => pan(0.15),
    "+": () => zoom(0.7), "=": () => zoom(0.7), "-": () => zoom(1.4), ArrowLeft: () => pan(-0.1), ArrowRight: () => pan(0.1), "0": fit, Home: fit,
  };
  return (made.current = {
    view,
    brush,
    scale,
    scaleOf: (w) => {
      width.current = w;
      return new Scale(view.value[0], view.value[1], props.current.left, w - props.current.right);
    },
    show,
    zoom,
    pan,
    drag: (from, pixels) => by(from, -pixels / Math.max(1, width.current - props.current.left - props.current.right)),
    fit,
    key: (e, more = {}) => {
      if (e.ctrlKey || e.metaKey || e.altKey) return;
      const act = more[e.key] ?? keys[e.key];
      if (!act) return;
      e.preventDefault();
      act();
    },
    attach: (el) => {
      const onWheel = (e: WheelEvent) => {
        if (Math.abs(e.deltaX) > Math.abs(e.deltaY)) pan(e.deltaX / width.current);
        else if (e.ctrlKey || !props.current.scrolls) zoom(Math.exp(Math.max(-0.5, Math.min(0.5, e.deltaY * 0.0025))), scale().back(e.offsetX));
        else return;
        e.preventDefault();
      };
      el.addEventListener("wheel", onWheel, { passive: false });
      return () => el.removeEventListener("wheel", onWheel);
    },
    brushBegin: (e) => {
      if (e.button !== 0 || e.offsetX < props.current.left) return;
      (e.currentTarget as Element).setPointerCapture(e.pointerId);
      const t = timeAt(e);
      brush.value = [t, t];
    },
    brushMove: (e) => {
      const now = brush.peek();
      if (now) brush.value = [now[0], timeAt(e)];
      return now !== null;
    },
    brushEnd: () => {
      const d = brush.peek();
      brush.value = null;
      if (!d) return false;
      const [a, b] = [Math.min(...d), Math.max(...d)];
      const [from, to] = view.peek();
      if (((b - a) / (to - from)) * width.current < LEAST_PIXELS) return false;
      show([a, Math.max(b, a + least())]);
      return true;
    },
    drawBrush: ({ g, color }, top, bottom) => {
      const piece = brush.value;
      if (!piece) return;
      const s = scale();
      const [a, b] = [s.at(Math.min(...piece)), s.at(Math.max(...piece))];
      g.fillStyle = color("shade");
      g.fillRect(s.left, top, a - s.left, bottom - top);
      g.fillRect(b, top, s.right - b, bottom - top);
      g.strokeStyle = color("accent");
      g.strokeRect(a + 0.5, top, Math.max(1, b - a - 1), bottom - top - 1);
    },
  });
}
