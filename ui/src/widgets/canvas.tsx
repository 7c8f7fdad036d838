// A canvas that is as sharp as the screen, as large as its box, drawn again when anything it read has changed, and
// coloured by the page's own colours. Whoever draws on it also gives the same in words (see `twin` in each view).

import { useComputed, useSignal, useSignalEffect } from "@preact/signals";
import type { CanvasHTMLAttributes, JSX } from "preact";
import { useLayoutEffect, useRef } from "preact/hooks";
import { theme } from "../base/theme.ts";

export interface Pen {
  g: CanvasRenderingContext2D;
  width: number;
  height: number;
  color: (name: string) => string;
}

interface CanvasProps extends Omit<CanvasHTMLAttributes<HTMLCanvasElement>, "ref"> {
  /** Reads signals; runs again when one changes. */
  paint: (pen: Pen) => void;
  label: string;
  /** Gets the element once, for listeners that must not be passive. */
  attach?: (el: HTMLCanvasElement) => (() => void) | void;
  height?: number;
}

export function Canvas({ paint, label, attach, height, ...rest }: CanvasProps): JSX.Element {
  const el = useRef<HTMLCanvasElement>(null);
  const size = useSignal({ width: 0, height: 0, ratio: 1 });
  const latest = useSignal(paint);
  latest.value = paint;
  const attached = useRef(attach);
  attached.current = attach;

  useLayoutEffect(() => {
    const canvas = el.current;
    const box = canvas?.parentElement;
    if (!canvas || !box) return;
    const measure = () => {
      const r = box.getBoundingClientRect();
      const next = { width: Math.floor(r.width), height: height ?? Math.floor(r.height), ratio: devicePixelRatio || 1 };
      const now = size.peek();
      if (next.width !== now.width || next.height !== now.height || next.ratio !== now.ratio) size.value = next;
    };
    const watch = new ResizeObserver(measure);
    watch.observe(box);
    measure();
    const detach = attached.current?.(canvas);
    return () => {
      watch.disconnect();
      detach?.();
    };
  }, [height]);

  const styles = useComputed(() => {
    theme.value;
    return el.current ? getComputedStyle(el.current) : null;
  });
  useSignalEffect(() => {
    const canvas = el.current;
    const { width, height: tall, ratio } = size.value;
    theme.value;
    const draw = latest.value;
    if (!canvas || !width || !tall) return;
    const g = canvas.getContext("2d");
    if (!g) return;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(tall * ratio);
    canvas.style.width = `${width}px`;
    canvas.style.height = `${tall}px`;
    g.setTransform(ratio, 0, 0, ratio, 0, 0);
    const style = styles.value ?? getComputedStyle(canvas);
    const known = new Map<string, string>();
    draw({
      g,
      width,
      height: tall,
      color: (name) => {
        let c = known.get(name);
        if (c === undefined) known.set(name, (c = style.getPropertyValue(`--${name}`).trim() || "#888"));
        return c;
      },
    });
  });
  return <canvas ref={el} aria-label={label} {...rest} />;
}

/** Text that is cut to fit, with an ellipsis; nothing where not even two letters fit. */
export function fitted(g: CanvasRenderingContext2D, text: string, room: number): string {
  if (room < 14) return "";
  if (g.measureText(text).width <= room) return text;
  const each = g.measureText("m").width || 7;
  let n = Math.max(0, Math.min(text.length, Math.floor((room / each) * 1.2)));
  while (n > 1 && g.measureText(`${text.slice(0, n)}…`).width > room) n--;
  return n > 1 ? `${text.slice(0, n)}…` : "";
}
