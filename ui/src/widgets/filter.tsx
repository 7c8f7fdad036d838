// The filter bar: a line in the service's filter language, completed as it is typed, with what is wrong under the place
// where it is wrong. The service knows the language; this knows only keys.

import { useSignal } from "@preact/signals";
import type { JSX } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { Refused, ask, type Span } from "../api/ask.ts";
import type { Completion } from "../api/types.ts";
import { seen } from "../base/units.ts";

const CHECK_MS = 120;

interface Props {
  value: string;
  onApply: (where: string) => void;
  examples: string[];
  id: string;
}

export function FilterBar(p: Props): JSX.Element {
  const text = useSignal(p.value);
  const items = useSignal<Completion | null>(null);
  const at = useSignal(-1);
  const wrong = useSignal<{ words: string; span: Span | null; of: string } | null>(null);
  const open = useSignal(false);
  const field = useRef<HTMLInputElement>(null);
  /** Found right when it was last checked: Enter need not ask again. */
  const right = useRef<string | null>(null);
  const asking = useRef<AbortController | null>(null);
  const timer = useRef<ReturnType<typeof setTimeout> | undefined>(undefined);

  useEffect(() => {
    text.value = p.value;
    if (p.value) void check(p.value);
    else wrong.value = null;
  }, [p.value]);
  useEffect(() => () => asking.current?.abort(), []);

  async function check(where: string): Promise<boolean> {
    if (!where.trim()) {
      wrong.value = null;
      return true;
    }
    try {
      if (right.current !== where) await ask("check", { where });
      right.current = where;
      if (text.peek() === where) wrong.value = null;
      return true;
    } catch (e) {
      const refused = e instanceof Refused ? e : new Refused(String(e), null);
      if (text.peek() === where) wrong.value = { words: refused.message, span: refused.at, of: where };
      return false;
    }
  }

  /** After a pause: what could stand here, and is it right so far. */
  function later(): void {
    clearTimeout(timer.current);
    timer.current = setTimeout(() => {
      const el = field.current;
      if (!el) return;
      const typed = text.peek();
      asking.current?.abort();
      asking.current = new AbortController();
      void ask<Completion>("complete", { text: typed, at: el.selectionStart ?? typed.length }, { signal: asking.current.signal }).then(
        (found) => {
          items.value = found;
          at.value = -1;
          open.value = document.activeElement === el && found.items.length > 0;
        },
        () => (open.value = false),
      );
      void check(typed);
    }, CHECK_MS);
  }

  function take(i: number): void {
    const found = items.peek();
    const item = found?.items[i];
    const el = field.current;
    if (!found || !item || !el) return;
    const typed = text.peek();
    const before = typed.slice(0, found.from) + item.text;
    const after = typed.slice(found.to);
    text.value = `${before}${after.startsWith(" ") || after === "" ? "" : " "}${after}`;
    open.value = false;
    queueMicrotask(() => {
      el.focus();
      el.setSelectionRange(before.length, before.length);
      later();
    });
  }

  async function apply(where = text.peek()): Promise<void> {
    clearTimeout(timer.current);
    asking.current?.abort();
    open.value = false;
    if (await check(where)) p.onApply(where.trim());
  }

  const onKeyDown = (e: KeyboardEvent) => {
    const n = items.peek()?.items.length ?? 0;
    if (open.peek() && (e.key === "ArrowDown" || e.key === "ArrowUp")) {
      e.preventDefault();
      at.value = (at.peek() + (e.key === "ArrowDown" ? 1 : -1) + n + (at.peek() < 0 && e.key === "ArrowUp" ? 1 : 0)) % n;
    } else if (open.peek() && e.key === "Tab" && n > 0) {
      e.preventDefault();
      take(Math.max(0, at.peek()));
    } else if (e.key === "ArrowDown") {
      e.preventDefault();
      later();
    } else if (e.key === "Enter") {
      e.preventDefault();
      if (open.peek() && at.peek() >= 0) take(at.peek());
      else void apply();
    } else if (e.key === "Escape") {
      e.stopPropagation();
      if (open.peek()) open.value = false;
      else if (text.peek() !== p.value) text.value = p.value;
      else field.current?.blur();
    }
  };

  const fault = wrong.value;
  const dirty = text.value.trim() !== p.value;
  return (
    <div class="filter" role="search">
      <div class={`filter-field${fault ? " wrong" : p.value ? " on" : ""}`}>
        <span class="filter-mark" aria-hidden="true">
          ⌕
        </span>
        <input
          ref={field}
          id={p.id}
          type="text"
          role="combobox"
          aria-label="Filter packets"
          aria-expanded={open.value}
          aria-controls={`${p.id}-list`}
          aria-autocomplete="list"
          aria-activedescendant={open.value && at.value >= 0 ? `${p.id}-${at.value}` : undefined}
          aria-invalid={fault !== null}
          aria-describedby={fault ? `${p.id}-wrong` : undefined}
          autocomplete="off"
          spellcheck={false}
          placeholder={`Filter, e.g. ${p.examples[0] ?? "tcp"}`}
          value={text.value}
          onInput={(e) => {
            text.value = e.currentTarget.value;
            later();
          }}
          onKeyDown={onKeyDown}
          onBlur={() => (open.value = false)}
        />
        {dirty && !fault && <span class="filter-hint">Enter applies</span>}
        {(text.value || p.value) && (
          <button
            type="button"
            class="icon"
            aria-label="Clear the filter"
            title="Clear the filter"
            onMouseDown={(e) => e.preventDefault()}
            onClick={() => {
              text.value = "";
              void apply("");
            }}
          >
            ×
          </button>
        )}
        <kbd title="The key / goes to the filter">/</kbd>
      </div>
      {fault && (
        <div class="filter-wrong" id={`${p.id}-wrong`} role="alert">
          {fault.span && fault.of === text.value && (
            <span class="filter-caret" aria-hidden="true">
              <span>{fault.of.slice(0, fault.span.from)}</span>
              <b>{fault.of.slice(fault.span.from, Math.max(fault.span.from + 1, fault.span.to)) || " "}</b>
            </span>
          )}
          <span class="filter-words">{seen(fault.words)}</span>
        </div>
      )}
      <ul class="filter-list" id={`${p.id}-list`} role="listbox" aria-label="What can stand here" hidden={!open.value}>
        {open.value &&
          items.value?.items.slice(0, 12).map((item, i) => (
            <li
              key={item.text}
              id={`${p.id}-${i}`}
              role="option"
              aria-selected={i === at.value}
              onMouseDown={(e) => {
                e.preventDefault();
                take(i);
              }}
            >
              <code>{seen(item.text)}</code>
              <span>{seen(item.words)}</span>
            </li>
          ))}
      </ul>
    </div>
  );
}
