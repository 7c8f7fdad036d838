// A table of any length: only the rows on the screen exist. Moves by wheel, bar and keys; one row is the current one.
// Knows nothing of what a row means; columns draw it.

import { useSignal } from "@preact/signals";
import type { ComponentChildren, JSX } from "preact";
import { useEffect, useLayoutEffect, useMemo, useRef } from "preact/hooks";
import "./table.css";
import { readWidths, revealed, rowsAt, scrollFromTop, spread, topFromScroll } from "../base/rows.ts";

export const ROW = 22;

export interface Column<R> {
  key: string;
  title: string;
  /** What the column means, in a sentence. */
  words?: string;
  /** Pixels; the column without a width takes what is left. */
  width?: number;
  align?: "right";
  sortable?: boolean;
  /** Left out when the table is narrower than this. */
  from?: number;
  /** Left out when it is as wide as this, or wider. */
  below?: number;
  draw: (row: R, index: number) => ComponentChildren;
  /** The whole text, for a cell that may be cut. */
  hint?: (row: R) => string | undefined;
}

export interface Sorting {
  key: string;
  desc: boolean;
}

export interface TableProps<R> {
  label: string;
  columns: Column<R>[];
  total: number;
  row: (i: number) => R | undefined;
  need?: (first: number, last: number) => void;
  sort?: Sorting | null;
  onSort?: (sort: Sorting) => void;
  /** The current row; the table reveals it when it changes. */
  current?: number | null;
  /** `pressed`: by mouse or Enter, not by just passing over it with the arrows. */
  onCurrent?: (i: number, pressed: boolean) => void;
  onOpen?: (i: number) => void;
  rowClass?: (row: R) => string;
  old?: boolean;
  id?: string;
}

/** Quick answers must not make the table flash. */
const PATIENCE_MS = 150;

/** True when it has been so for a while. */
function useLate(now: boolean): boolean {
  const late = useSignal(false);
  useEffect(() => {
    late.value = false;
    if (!now) return;
    const timer = setTimeout(() => (late.value = true), PATIENCE_MS);
    return () => clearTimeout(timer);
  }, [now]);
  return now && late.value;
}

type Cells = <R>(columns: Column<R>[], row: R | undefined, index: number) => JSX.Element[];

/** The cells of a row, the same ones again while row and columns are the same: then nothing in them is compared. */
function useCells(all: unknown): Cells {
  const kept = useRef<{ all: unknown; shown: string; rows: WeakMap<object, JSX.Element[]> }>({ all: null, shown: "", rows: new WeakMap() });
  return (columns, row, index) => {
    const shown = columns.map((c) => c.key).join(" ");
    if (kept.current.all !== all || kept.current.shown !== shown) kept.current = { all, shown, rows: new WeakMap() };
    const known = typeof row === "object" && row !== null ? kept.current.rows.get(row) : undefined;
    if (known) return known;
    const drawn = columns.map((c) => (
      <div key={c.key} role="gridcell" class={c.align === "right" ? "right" : undefined} title={row && c.hint?.(row)}>
        {row ? c.draw(row, index) : <span class="blank" aria-hidden="true" />}
      </div>
    ));
    if (typeof row === "object" && row !== null) kept.current.rows.set(row, drawn);
    return drawn;
  };
}

/** Pixels that a column keeps, and that the flexible one does. */
const NARROWEST = 36;
const FLEXIBLE = 140;

interface Widths {
  of: (key: string, otherwise: number) => number;
  /** null: as it was made. */
  put: (key: string, width: number | null) => void;
}

/** Widths that the reader gave the columns of the table of this name, kept in this browser. */
function useWidths(table: string | undefined): Widths {
  const name = `kpat-columns-${table}`;
  const given = useSignal<Record<string, number>>(useMemo(() => readWidths(table ? localStorage.getItem(name) : null), [name]));
  return {
    of: (key, otherwise) => given.value[key] ?? otherwise,
    put: (key, width) => {
      const { [key]: _, ...rest } = given.peek();
      given.value = width === null ? rest : { ...rest, [key]: width };
      localStorage.setItem(name, JSON.stringify(given.value));
    },
  };
}

/** The edge of a title that is dragged: the right one, or the left one of what stands behind the flexible column. */
function Grip(p: { side: "left" | "right"; title: string; width: number; to: (width: number) => void; reset: () => void }): JSX.Element {
  const from = useRef<{ x: number; width: number } | null>(null);
  return (
    <span
      class={`grip ${p.side}-grip`}
      role="separator"
      aria-orientation="vertical"
      aria-label={`Width of ${p.title}`}
      aria-valuenow={p.width}
      aria-valuemin={NARROWEST}
      title="Drag: width of the column; double click: as it was"
      onPointerDown={(e) => {
        e.preventDefault();
        e.currentTarget.setPointerCapture(e.pointerId);
        from.current = { x: e.clientX, width: p.width };
      }}
      onPointerMove={(e) => {
        if (!from.current) return;
        const moved = e.clientX - from.current.x;
        p.to(from.current.width + (p.side === "left" ? -moved : moved));
      }}
      onPointerUp={() => (from.current = null)}
      onDblClick={p.reset}
    />
  );
}

export function Table<R>(p: TableProps<R>): JSX.Element {
  const old = useLate(p.old ?? false);
  const cells = useCells(p.columns);
  const top = useSignal(0);
  const size = useSignal({ height: 400, width: 1200 });
  const scroller = useRef<HTMLDivElement>(null);
  /** Where we put the bar ourselves: the scroll event that follows is no wish of the reader. */
  const put = useRef(-1);
  /** The current row as the last key left it: keys may come quicker than the table is drawn. */
  const newest = useRef<number | null>(null);
  newest.current = p.current ?? null;
  const view = size.value.height;
  const shownTop = Math.min(top.value, Math.max(0, p.total - view / ROW));
  const window = rowsAt(shownTop, p.total, ROW, view);
  const columns = p.columns.filter((c) => (c.from ?? 0) <= size.value.width && size.value.width < (c.below ?? Infinity));
  const widths = useWidths(p.id);
  const widthOf = (c: Column<R>) => (c.width === undefined ? undefined : widths.of(c.key, c.width));
  // Narrower than its columns it scrolls sideways, in its own place.
  const least = columns.reduce((sum, c) => sum + (widthOf(c) ?? FLEXIBLE), 0);
  const grid = columns.map((c) => (c.width ? `${widthOf(c)}px` : `minmax(${FLEXIBLE}px, 1fr)`)).join(" ");
  /** The flexible column gives what another takes, down to its least. */
  const resize = (c: Column<R>, to: number) => {
    const others = columns.reduce((sum, o) => sum + (o === c ? 0 : (widthOf(o) ?? FLEXIBLE)), 0);
    const most = Math.max(widthOf(c) ?? NARROWEST, size.peek().width - others);
    widths.put(c.key, Math.round(Math.max(NARROWEST, Math.min(most, to))));
  };
  const flexible = columns.findIndex((c) => c.width === undefined);

  const moveTo = (next: number) => {
    const el = scroller.current;
    const most = Math.max(0, p.total - view / ROW);
    top.value = Math.max(0, Math.min(most, next));
    if (!el) return;
    const at = scrollFromTop(top.value, p.total, ROW, view);
    put.current = Math.round(at);
    el.scrollTop = at;
  };

  useLayoutEffect(() => {
    const el = scroller.current;
    if (!el) return;
    const measure = () => (size.value = { height: Math.max(ROW, el.clientHeight - ROW - 4), width: el.clientWidth });
    const watch = new ResizeObserver(measure);
    watch.observe(el);
    measure();
    return () => watch.disconnect();
  }, []);

  useEffect(() => p.need?.(window.first, Math.max(window.last, window.first + 1)), [window.first, window.last, p.row, p.total]);
  useEffect(() => {
    if (p.current === null || p.current === undefined) return;
    const next = revealed(shownTop, p.current, p.total, ROW, view);
    if (next !== shownTop) moveTo(next);
  }, [p.current, p.total, view]);

  const onScroll = () => {
    const el = scroller.current;
    if (!el) return;
    if (Math.abs(el.scrollTop - put.current) <= 1) return;
    put.current = -1;
    top.value = topFromScroll(el.scrollTop, p.total, ROW, view);
  };

  useEffect(() => {
    const el = scroller.current;
    if (!el) return;
    // Only where a pixel of the bar is more than a pixel of rows: there the wheel has to go by rows.
    const onWheel = (e: WheelEvent) => {
      if (spread(p.total, ROW) === p.total * ROW || e.ctrlKey || e.deltaY === 0) return;
      e.preventDefault();
      const unit = e.deltaMode === 1 ? 1 : e.deltaMode === 2 ? view / ROW : 1 / ROW;
      moveTo(top.value + e.deltaY * unit);
    };
    el.addEventListener("wheel", onWheel, { passive: false });
    return () => el.removeEventListener("wheel", onWheel);
  }, [p.total, view]);

  const onKeyDown = (e: KeyboardEvent) => {
    if (!p.total || e.ctrlKey || e.metaKey || e.altKey) return;
    const head = (e.target as HTMLElement).closest(".table-head");
    if (head) {
      const titles = [...head.querySelectorAll<HTMLElement>("[data-title]")];
      const i = titles.indexOf(e.target as HTMLElement);
      const step = e.key === "ArrowLeft" ? -1 : e.key === "ArrowRight" ? 1 : 0;
      const column = columns[i];
      if (!step || !column) return;
      e.preventDefault();
      const width = widthOf(column);
      if (!e.shiftKey) titles[i + step]?.focus();
      else if (width !== undefined && p.id) resize(column, width + step * 8);
      return;
    }
    const page = Math.max(1, Math.floor(view / ROW) - 1);
    const now = newest.current ?? -1;
    const steps: Record<string, number> = {
      ArrowDown: now + 1,
      ArrowUp: Math.max(0, now - 1),
      PageDown: now + page,
      PageUp: now - page,
      Home: 0,
      End: p.total - 1,
    };
    if (e.key === "Enter" && now >= 0) {
      e.preventDefault();
      (p.onOpen ?? ((i: number) => p.onCurrent?.(i, true)))(now);
      return;
    }
    const next = steps[e.key];
    if (next === undefined) return;
    e.preventDefault();
    if (p.onCurrent) {
      newest.current = Math.max(0, Math.min(p.total - 1, next));
      p.onCurrent(newest.current, false);
    } else moveTo(e.key === "Home" ? 0 : e.key === "End" ? p.total : top.value + next - now);
  };

  const sorted = (c: Column<R>) => (p.sort?.key === c.key ? (p.sort.desc ? "descending" : "ascending") : "none");
  // One stop for Tab; the arrows go on from there.
  const tabStop = p.sort?.key ?? columns.find((c) => c.sortable)?.key;
  const id = p.id ?? `table-${p.label.replace(/\W+/g, "-")}`;
  const indices = Array.from({ length: window.last - window.first }, (_, i) => window.first + i);
  return (
    <div
      class={`table${old ? " old" : ""}`}
      aria-busy={p.old ?? false}
      ref={scroller}
      onScroll={onScroll}
      onKeyDown={onKeyDown}
      role="grid"
      aria-label={p.label}
      aria-rowcount={p.total + 1}
      aria-colcount={columns.length}
      aria-activedescendant={p.current !== null && p.current !== undefined && p.current >= window.first && p.current < window.last ? `${id}-${p.current}` : undefined}
      tabIndex={0}
    >
      <div class="table-head" role="row" aria-rowindex={1} style={{ gridTemplateColumns: grid, minWidth: `${least}px` }}>
        {columns.map((c, i) => (
          <div
            key={c.key}
            role="columnheader"
            class={c.align === "right" ? "right" : undefined}
            title={c.words}
            aria-sort={c.sortable ? sorted(c) : undefined}
          >
            {c.sortable && p.onSort ? (
              <button
                type="button"
                data-title
                tabIndex={c.key === tabStop ? 0 : -1}
                onClick={() => p.onSort?.({ key: c.key, desc: p.sort?.key === c.key ? !p.sort.desc : c.align === "right" && c.key !== "t" })}
              >
                {c.title}
                <span class="sort-mark" aria-hidden="true">
                  {sorted(c) === "none" ? "" : sorted(c) === "ascending" ? "▴" : "▾"}
                </span>
              </button>
            ) : (
              <span data-title tabIndex={-1}>{c.title}</span>
            )}
            {p.id && c.width !== undefined && (
              <Grip side={flexible >= 0 && i > flexible ? "left" : "right"} title={c.title} width={widthOf(c) ?? c.width} to={(w) => resize(c, w)} reset={() => widths.put(c.key, null)} />
            )}
          </div>
        ))}
      </div>
      <div class="table-space" role="rowgroup" style={{ height: `${spread(p.total, ROW)}px`, minWidth: `${least}px` }}>
        <div class="table-window" role="presentation" style={{ height: `${view}px` }}>
          {indices.map((i) => {
            const row = p.row(i);
            const current = i === p.current;
            return (
              <div
                key={i}
                id={`${id}-${i}`}
                role="row"
                aria-rowindex={i + 2}
                aria-selected={current}
                class={`row${i % 2 ? " odd" : ""}${current ? " current" : ""}${row ? ` ${p.rowClass?.(row) ?? ""}` : " coming"}`}
                style={{ gridTemplateColumns: grid, transform: `translateY(${(i - window.first) * ROW - window.offset}px)` }}
                onClick={() => row && p.onCurrent?.(i, true)}
                onDblClick={() => row && p.onOpen?.(i)}
              >
                {cells(columns, row, i)}
              </div>
            );
          })}
        </div>
      </div>
    </div>
  );
}
