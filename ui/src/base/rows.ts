// Which rows of a long list are on the screen, for lists longer than a browser can make a page tall.
// Up to TALLEST pixels a pixel scrolled is a pixel; above that the scroll bar's place says the share of the list, while
// wheel and keys still move by rows. So the bar reaches every part and the wheel reaches every row.

export const TALLEST = 6_000_000;

export interface Window {
  first: number;
  last: number;
  /** How far the first row is above the upper edge, in pixels. */
  offset: number;
}

/** The height that the browser is given. */
export function spread(total: number, rowHeight: number): number {
  return Math.min(TALLEST, total * rowHeight);
}

/** The row (with its fraction) at the upper edge when the bar is at `scrollTop`. */
export function topFromScroll(scrollTop: number, total: number, rowHeight: number, view: number): number {
  const height = spread(total, rowHeight);
  const most = lastTop(total, rowHeight, view);
  if (total * rowHeight <= TALLEST) return Math.min(most, scrollTop / rowHeight);
  return Math.min(most, (scrollTop / Math.max(1, height - view)) * most);
}

/** Where the bar stands when `top` is the row at the upper edge. */
export function scrollFromTop(top: number, total: number, rowHeight: number, view: number): number {
  const height = spread(total, rowHeight);
  if (total * rowHeight <= TALLEST) return top * rowHeight;
  return (top / Math.max(1, lastTop(total, rowHeight, view))) * (height - view);
}

export function lastTop(total: number, rowHeight: number, view: number): number {
  return Math.max(0, total - view / rowHeight);
}

export function rowsAt(top: number, total: number, rowHeight: number, view: number): Window {
  const first = Math.max(0, Math.min(total, Math.floor(top)));
  const last = Math.min(total, Math.ceil(top + view / rowHeight));
  return { first, last, offset: (top - first) * rowHeight };
}

/** The upper row that shows `row`, moving as little as possible. */
export function revealed(top: number, row: number, total: number, rowHeight: number, view: number): number {
  const whole = Math.max(1, Math.floor(view / rowHeight));
  const wanted = row < top ? row : row > top + whole - 1 ? row - whole + 1 : top;
  return Math.max(0, Math.min(lastTop(total, rowHeight, view), wanted));
}

/** Widths of columns as they were kept; what makes no sense is as if it were not there. */
export function readWidths(kept: string | null): Record<string, number> {
  try {
    const stored: unknown = JSON.parse(kept ?? "{}");
    if (typeof stored !== "object" || stored === null) return {};
    const sane = Object.entries(stored).filter(([, w]) => typeof w === "number" && w >= 20 && w <= 4000);
    return Object.fromEntries(sane) as Record<string, number>;
  } catch {
    return {};
  }
}
