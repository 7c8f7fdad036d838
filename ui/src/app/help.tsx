// The keys, all of them.

import type { JSX } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { VIEWS } from "./views.ts";

const KEYS: [string, [string, string][]][] = [
  ["Everywhere", [["/", "go to the filter"], ["1 – 9", VIEWS.slice(0, 9).map((v) => v.title).join(", ")], ["Esc", "close the packet beside the view"], ["Alt ←", "back to where you were"], ["?", "these keys"]]],
  ["Lists", [["↑ ↓", "row by row"], ["Page ↑ ↓", "screen by screen"], ["Home End", "first, last"], ["Enter", "open; in calls: fold"], ["Tab, then ← →", "titles: Enter sorts"], ["Shift ← →", "at a title: its column narrower, wider"]]],
  ["Pictures over time", [["w s, + −", "zoom"], ["a d, or ← →", "move; arrows go from mark to mark where they can be chosen"], ["drag", "choose a piece of time"], ["Ctrl and wheel", "zoom"], ["0", "everything"]]],
  ["Timeline", [["w s, + −", "zoom"], ["a d, ← →", "move"], ["↑ ↓", "call by call"], ["0", "everything"], ["double click", "as wide as this call"]]],
  ["Flame graph", [["← → ↑ ↓", "neighbours, caller, called"], ["Enter", "as wide as the picture"], ["Esc", "everything"]]],
  ["Overview strip", [["drag", "choose a piece of time"], ["← → + −", "move, change it"], ["Esc", "all of the time"]]],
];

export function Help({ close }: { close: () => void }): JSX.Element {
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    const d = dialog.current;
    d?.showModal();
    d?.addEventListener("close", close);
    return () => d?.removeEventListener("close", close);
  }, []);
  return (
    <dialog class="help" ref={dialog} aria-label="Keys" onClick={(e) => e.target === dialog.current && dialog.current?.close()}>
      <div class="help-head">
        <h2>Keys</h2>
        <button type="button" class="icon" aria-label="Close" onClick={() => dialog.current?.close()}>×</button>
      </div>
      <div class="help-body">
        {KEYS.map(([title, keys]) => (
          <section key={title}>
            <h3>{title}</h3>
            <dl>
              {keys.map(([k, words]) => (
                <div key={k}><dt><kbd>{k}</kbd></dt><dd>{words}</dd></div>
              ))}
            </dl>
          </section>
        ))}
      </div>
    </dialog>
  );
}
