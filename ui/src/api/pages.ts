// A long list that is fetched as it is looked at: pages of rows, the ones looked at last are kept.

import { signal, type Signal } from "@preact/signals";
import { Refused } from "./ask.ts";

export const PAGE = 200;
const KEPT = 60;
const AT_ONCE = 3;

export interface PageOf<R> {
  total: number;
  rows: R[];
}

export type Load<R> = (from: number, count: number, signal: AbortSignal) => Promise<PageOf<R>>;

export class Pages<R> {
  /** Rises with everything that arrives: who draws rows reads it. */
  readonly version: Signal<number> = signal(0);
  readonly total: Signal<number | null> = signal(null);
  readonly error: Signal<Refused | null> = signal(null);
  private pages = new Map<number, R[]>();
  private asked = new Map<number, AbortController>();
  private wanted: number[] = [];

  constructor(private readonly load: Load<R>) {
    this.need(0, 1);
  }

  row(i: number): R | undefined {
    return this.pages.get(Math.floor(i / PAGE))?.[i % PAGE];
  }

  /** These rows are on the screen: what is missing is fetched, what is fetched for rows far away is left. */
  need(first: number, last: number): void {
    const from = Math.floor(first / PAGE);
    const to = Math.max(from, Math.ceil(last / PAGE) - 1);
    this.wanted = [];
    for (let p = from; p <= to; p++) {
      const there = this.pages.get(p);
      if (!there) this.wanted.push(p);
      else {
        this.pages.delete(p);
        this.pages.set(p, there);
      }
    }
    for (const [p, running] of this.asked) {
      if (p < from - 1 || p > to + 1) {
        running.abort();
        this.asked.delete(p);
      }
    }
    this.fetchNext();
  }

  end(): void {
    for (const running of this.asked.values()) running.abort();
    this.asked.clear();
    this.wanted = [];
  }

  private fetchNext(): void {
    for (const p of this.wanted) {
      if (this.asked.size >= AT_ONCE) return;
      if (!this.asked.has(p) && !this.pages.has(p)) this.fetch(p);
    }
  }

  private fetch(p: number): void {
    const running = new AbortController();
    this.asked.set(p, running);
    const done = () => {
      if (this.asked.get(p) === running) this.asked.delete(p);
    };
    this.load(p * PAGE, PAGE, running.signal).then(
      (page) => {
        if (running.signal.aborted) return;
        done();
        this.pages.set(p, page.rows);
        const oldest = this.pages.keys().next();
        if (this.pages.size > KEPT && !oldest.done) this.pages.delete(oldest.value);
        this.total.value = page.total;
        this.error.value = null;
        this.version.value++;
        this.fetchNext();
      },
      (e: unknown) => {
        if (running.signal.aborted) return;
        done();
        this.error.value = e instanceof Refused ? e : new Refused(String(e), null);
      },
    );
  }
}

/** Rows out of columns. */
export function rowsOf<T>(table: { rows: number; columns: { [K in keyof T]: T[K][] } }): T[] {
  const names = Object.keys(table.columns) as (keyof T)[];
  return Array.from({ length: table.rows }, (_, i) => {
    const row = {} as T;
    for (const name of names) row[name] = table.columns[name][i] as T[keyof T];
    return row;
  });
}
