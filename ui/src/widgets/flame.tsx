// A flame graph: time by name and by what it was called from. What its nodes are, whoever asks for it knows.

import { useSignal } from "@preact/signals";
import type { JSX } from "preact";
import { useMemo, useRef } from "preact/hooks";
import type { Flame } from "../api/types.ts";
import { go } from "../base/place.ts";
import { count, many, seen, share, shortSpan, span } from "../base/units.ts";
import { Canvas, fitted, type Pen } from "./canvas.tsx";
import { foundIn, layFlame, neighbour } from "./flame-model.ts";
import { Share, Span, layerClass } from "./marks.tsx";
import { Empty } from "./states.tsx";
import "./flame.css";

const LEVEL = 19;
const TWIN_ROWS = 60;

/** Its own component: the picture is not drawn again when the mouse moves. */
function BarWords(p: { of: () => number; words: (i: number) => string; rest: string }): JSX.Element {
  const i = p.of();
  return (
    <span class="bar-words" aria-live="polite">
      {i >= 0 ? p.words(i) : p.rest}
    </span>
  );
}

interface Props {
  flame: Flame;
  search: string;
  /** What a node counts. */
  unit?: string;
  /** The colour of a layer; without it the page's own of layers. */
  tint?: (layer: string) => string;
  /** What to say where there is nothing. */
  nothing: string;
}

export function FlamePicture({ flame, search, unit = "call", tint = layerClass, nothing }: Props): JSX.Element {
  const laid = useMemo(() => layFlame(flame), [flame]);
  const found = useMemo(() => foundIn(flame, laid, search), [flame, laid, search]);
  const root = useSignal(-1);
  const focus = useSignal(-1);
  const hover = useSignal<number | null>(null);
  const asTable = useSignal(false);
  const width = useRef(1);
  const c = flame.nodes.columns;
  const fromNs = () => (root.value < 0 ? 0 : laid.x[root.value]!);
  const lengthNs = () => Math.max(1, root.value < 0 ? laid.total : laid.width[root.value]!);
  const px = (ns: number) => ((ns - fromNs()) / lengthNs()) * width.current;
  const height = laid.levels * LEVEL + 4;
  const above = useMemo(() => {
    const set = new Set<number>();
    for (let i = root.value; i >= 0; i = c.parent[i]!) set.add(i);
    return set;
  }, [root.value, flame]);

  const paint = ({ g, width: w, height: h, color }: Pen) => {
    width.current = w;
    g.clearRect(0, 0, w, h);
    g.font = `11px ${color("sans")}`;
    g.textBaseline = "middle";
    for (let i = 0; i < flame.nodes.rows; i++) {
      const whole = above.has(i);
      const a = whole ? 0 : px(laid.x[i]!);
      const wide = whole ? w : px(laid.x[i]! + laid.width[i]!) - a;
      if (wide < 0.4 || a > w || a + wide < 0) continue;
      const y = c.depth[i]! * LEVEL;
      const dim = (search && !found.nodes.has(i)) || (whole && i !== root.value);
      g.globalAlpha = dim ? 0.4 : 1;
      g.fillStyle = found.nodes.has(i) ? color("found") : color(`l-${tint(c.layer[i]!)}-soft`);
      g.fillRect(a, y, Math.max(0.5, wide - 1), LEVEL - 1);
      g.globalAlpha = 1;
      if (focus.value === i) {
        g.strokeStyle = color("accent");
        g.lineWidth = 2;
        g.strokeRect(a + 1, y + 1, Math.max(1, wide - 3), LEVEL - 3);
        g.lineWidth = 1;
      }
      const left = Math.max(0, a);
      const label = fitted(g, seen(c.name[i]!), Math.min(w, a + wide) - left - 8);
      if (label) {
        g.fillStyle = dim ? color("muted") : color("text");
        g.fillText(label, left + 4, y + LEVEL / 2);
      }
    }
  };
  const under = (x: number, y: number): number => {
    const level = Math.floor(y / LEVEL);
    for (let i = 0; i < flame.nodes.rows; i++) {
      if (c.depth[i] !== level) continue;
      if (above.has(i)) return i;
      const a = px(laid.x[i]!);
      if (x >= a && x < Math.max(a + 1, px(laid.x[i]! + laid.width[i]!))) return i;
    }
    return -1;
  };
  const words = (i: number) => `${seen(c.name[i]!)}: ${span(c.total[i]!)}, ${share(c.total[i]! / (flame.total || 1))} of all; itself ${span(c.self[i]!)}; ${many(c.calls[i]!, unit)}`;
  const onKeyDown = (e: KeyboardEvent) => {
    if (e.key.startsWith("Arrow")) {
      e.preventDefault();
      focus.value = focus.peek() < 0 ? (laid.roots[0] ?? -1) : neighbour(flame, laid, focus.peek(), e.key);
      // Where the focus leaves the picture, the picture follows.
      const up = root.peek();
      if (up >= 0 && (laid.x[focus.peek()]! < laid.x[up]! || laid.x[focus.peek()]! >= laid.x[up]! + laid.width[up]!)) root.value = -1;
    } else if (e.key === "Enter" && focus.peek() >= 0) root.value = root.peek() === focus.peek() ? -1 : focus.peek();
    else if (e.key === "Escape" && root.peek() >= 0) {
      e.stopPropagation();
      root.value = -1;
    }
  };
  const heaviest = useMemo(() => Array.from({ length: flame.nodes.rows }, (_, i) => i).sort((a, b) => c.self[b]! - c.self[a]!).slice(0, TWIN_ROWS), [flame]);
  const rest = `${shortSpan(flame.total)} in ${count(flame.nodes.rows)} places${search ? `; “${search}” has ${share(found.time / (laid.total || 1))}` : ""}`;
  if (!flame.nodes.rows) return <Empty title="There is no time to show">{nothing}</Empty>;
  return (
    <div class="flame">
      <div class="bar">
        <BarWords of={() => hover.value ?? (focus.value >= 0 ? focus.value : root.value)} words={words} rest={rest} />
        <span class="spring" />
        {root.value >= 0 && (
          <>
            {c.func[root.value]! >= 0 && <button type="button" class="button small" onClick={() => go({ func: c.func[root.value]! })}>Show this function</button>}
            <button type="button" class="button small" onClick={() => (root.value = -1)}>Whole picture</button>
          </>
        )}
        <label class="check">
          <input type="checkbox" checked={asTable.value} onChange={(e) => (asTable.value = e.currentTarget.checked)} /> as table
        </label>
      </div>
      {asTable.value ? (
        <div class="scroll" tabIndex={0} role="region" aria-label="Places by self time">
          <table class="plain">
            <thead>
              <tr><th>Function</th><th>Called by</th><th class="right">{unit === "call" ? "Calls" : "Samples"}</th><th class="right">Total</th><th class="right">Self</th><th>Of all</th></tr>
            </thead>
            <tbody>
              {heaviest.map((i) => (
                <tr key={i}>
                  <td class="name">{seen(c.name[i]!)}</td>
                  <td class="name muted">{c.parent[i]! >= 0 ? seen(c.name[c.parent[i]!]!) : ""}</td>
                  <td class="right">{count(c.calls[i]!)}</td>
                  <td class="right"><Span ns={c.total[i]!} /></td>
                  <td class="right"><Span ns={c.self[i]!} /></td>
                  <td><Share of={c.self[i]! / (flame.total || 1)} /></td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      ) : (
        <div class="scroll">
          <div class="flame-tall" style={{ height: `${height}px` }}>
            <Canvas
              paint={paint}
              height={height}
              tabIndex={0}
              role="img"
              label="Flame graph: the caller above what it called. Arrows go from function to function, Enter makes one as wide as the picture, Escape shows all. As table says the same in words."
              onKeyDown={onKeyDown}
              onPointerMove={(e) => {
                const i = under(e.offsetX, e.offsetY);
                hover.value = i >= 0 ? i : null;
              }}
              onPointerLeave={() => (hover.value = null)}
              onClick={(e) => {
                const i = under(e.offsetX, e.offsetY);
                if (i < 0) return;
                focus.value = i;
                root.value = root.peek() === i ? c.parent[i]! : i;
              }}
            />
          </div>
        </div>
      )}
    </div>
  );
}
