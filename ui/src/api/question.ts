// A question that a view keeps asking: again when its parameters or the log change, left when the view goes.
// The last answer stays until the next one is there, so that nothing flickers.

import { signal, type Signal } from "@preact/signals";
import { useLayoutEffect, useMemo } from "preact/hooks";
import { Refused, ask, device, type Params } from "./ask.ts";

export interface Question<T> {
  value: T | null;
  error: Refused | null;
  /** null: nothing is under way. */
  busy: { part: number; words: string } | null;
  /** Answers of another question than the one asked now are shown, but marked old. */
  old: boolean;
  left: boolean;
  /** The value is over a part of what was asked about. */
  soFar: boolean;
}

export interface Asked<T> {
  state: Signal<Question<T>>;
  leave: () => void;
  again: () => void;
}

/** Rises when the log has grown: everything is asked again. */
export const generation = signal(0);

/** Asks `path` while the component lives; `null` asks nothing. */
export function useQuestion<T>(path: string | null, params: Params = {}): Asked<T> {
  const asked = useMemo(() => new Asking<T>(), []);
  const key = path === null ? null : `${device.value ?? ""} ${path} ${JSON.stringify(params)}`;
  const now = generation.value;
  // Before the page is painted: the question is on its way meanwhile.
  useLayoutEffect(() => {
    asked.start(path, params, key);
  }, [key, now]);
  useLayoutEffect(() => () => asked.end(), []);
  return asked;
}

class Asking<T> implements Asked<T> {
  readonly state = signal<Question<T>>({ value: null, error: null, busy: null, old: false, left: false, soFar: false });
  private running: AbortController | null = null;
  private last: { path: string | null; params: Params; key: string | null } = { path: null, params: {}, key: null };

  start(path: string | null, params: Params, key: string | null): void {
    this.end();
    const same = key === this.last.key;
    this.last = { path, params, key };
    if (path === null) {
      this.state.value = { value: null, error: null, busy: null, old: false, left: false, soFar: false };
      return;
    }
    const running = new AbortController();
    this.running = running;
    const mine = () => this.running === running;
    this.state.value = { ...this.state.value, error: null, busy: { part: 0, words: "" }, old: !same, left: false };
    ask<T>(path, params, {
      signal: running.signal,
      progress: (part, words) => {
        if (mine()) this.state.value = { ...this.state.value, busy: { part, words } };
      },
      soFar: (value) => {
        if (mine()) this.state.value = { ...this.state.value, value: value as T, old: false, soFar: true };
      },
    }).then(
      (value) => {
        if (mine()) this.state.value = { value, error: null, busy: null, old: false, left: false, soFar: false };
      },
      (e: unknown) => {
        if (!mine() || running.signal.aborted) return;
        const error = e instanceof Refused ? e : new Refused(String(e), null);
        this.state.value = { ...this.state.value, error, busy: null };
      },
    );
  }

  end(): void {
    this.running?.abort();
    this.running = null;
  }

  leave = (): void => {
    this.end();
    this.state.value = { ...this.state.value, busy: null, left: true };
  };

  again = (): void => this.start(this.last.path, this.last.params, this.last.key);
}
