// A few ways of looking at the same thing, one at a time. One stop for Tab; the arrows go on from there.

import type { JSX } from "preact";
import { seen } from "../base/units.ts";

export function Tabs<T extends string>(p: { label: string; tabs: [T, string][]; current: T; choose: (to: T) => void }): JSX.Element {
  return (
    <div class="tabs" role="tablist" aria-label={p.label}>
      {p.tabs.map(([id, title], i) => (
        <button key={id} type="button" role="tab" aria-selected={p.current === id} tabIndex={p.current === id ? 0 : -1} onClick={() => p.choose(id)}
          onKeyDown={(e) => {
            const n = p.tabs.length;
            const next = e.key === "ArrowRight" ? p.tabs[(i + 1) % n] : e.key === "ArrowLeft" ? p.tabs[(i + n - 1) % n] : undefined;
            if (!next) return;
            p.choose(next[0]);
            const bar = e.currentTarget.parentElement;
            requestAnimationFrame(() => bar?.querySelector<HTMLElement>('[aria-selected="true"]')?.focus());
          }}>
          {seen(title)}
        </button>
      ))}
    </div>
  );
}
