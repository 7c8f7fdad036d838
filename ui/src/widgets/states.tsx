// What stands where an answer is not there yet, is empty, or cannot be had; and how long questions are followed and left.

import { useEffect, useState } from "preact/hooks";
import type { ComponentChildren, JSX } from "preact";
import type { Refused } from "../api/ask.ts";
import { log } from "../api/log.ts";
import type { Info } from "../api/types.ts";
import type { Asked, Question } from "../api/question.ts";
import { count, seen } from "../base/units.ts";

export function Empty(p: { title: string; children?: ComponentChildren }): JSX.Element {
  return (
    <div class="state" role="status">
      <p class="state-title">{p.title}</p>
      {p.children && <p class="state-words">{p.children}</p>}
    </div>
  );
}

/** Where a log without packets has what it is about. */
export function elsewhere(info: Info): { view: string; title: string; what: string; option: string } | null {
  const { packets, sockets } = info.counts;
  if (packets > 0) return null;
  if (sockets > 0) return { view: "apps", title: "Applications", what: "of applications, of what they ask of their sockets", option: "app" };
  if (/\bprofile\b/.test(info.profile)) return { view: "profile", title: "Profile", what: "of processes, and of whom the kernel works for", option: "profile" };
  if (/\bwifi\b/.test(info.profile)) return { view: "handover", title: "Handover", what: "of radios and links", option: "wifi" };
  return null;
}

/** Why a list of packets is empty: the log has none, whatever the filter, or the filter leaves none. */
export function NoPackets({ where }: { where: string }): JSX.Element {
  const info = log.value;
  const there = info && elsewhere(info);
  if (where && info && info.counts.packets + info.counts.frames > 0)
    return (
      <Empty title="No packet fits this filter">
        Nothing of {count(info.counts.packets)} packets. <kbd>/</kbd> goes to the filter.
      </Empty>
    );
  return (
    <Empty title="There is no packet in this log">
      {there ? (
        <>It is a recording {there.what} (<code>kpat record -p {there.option}</code>): see <a href={`#/${there.view}`}>{there.title}</a>.</>
      ) : info?.filter ? (
        <>Nothing that matched the recording's filter <code>{seen(info.filter)}</code> passed while it ran.</>
      ) : (
        "No packet passed while it ran, in the namespaces and at the interfaces that were recorded."
      )}
    </Empty>
  );
}

export function Failed(p: { error: Refused; again?: () => void }): JSX.Element {
  return (
    <div class="state" role="alert">
      <p class="state-title">
        <span class="glyph bad" aria-hidden="true">
          !
        </span>{" "}
        {seen(p.error.message)}
      </p>
      {p.again && (
        <button type="button" class="button" onClick={p.again}>
          Ask again
        </button>
      )}
    </div>
  );
}

/** Quick answers must not flash a progress bar. */
const PATIENCE_MS = 150;

export function Progress(p: { busy: Question<unknown>["busy"]; soFar: boolean; leave: () => void }): JSX.Element | null {
  const [long, setLong] = useState(false);
  const on = p.busy !== null;
  useEffect(() => {
    setLong(false);
    if (!on) return;
    const timer = setTimeout(() => setLong(true), PATIENCE_MS);
    return () => clearTimeout(timer);
  }, [on]);
  if (!p.busy || !long) return null;
  const percent = Math.round(p.busy.part * 100);
  return (
    <div class="progress">
      <div
        class={`progress-bar${p.busy.part > 0 ? "" : " unknown"}`}
        role="progressbar"
        aria-label={p.busy.words || "Asking"}
        aria-valuenow={p.busy.part > 0 ? percent : undefined}
        aria-valuemin={0}
        aria-valuemax={100}
      >
        <div style={{ width: p.busy.part > 0 ? `${percent}%` : "30%" }} />
      </div>
      <span class="progress-words">
        {seen(p.busy.words) || "Asking"}
        {p.busy.part > 0 ? ` ${percent} %` : " …"}
        {p.soFar && "; what is shown is of the first packets, so far"}
      </span>
      <button type="button" class="button small" onClick={p.leave}>
        Leave
      </button>
    </div>
  );
}

/** Draws an answer, or what stands in its place. */
export function Answer<T>(p: { asked: Asked<T>; children: (value: T) => ComponentChildren; what: string }): JSX.Element {
  const q = p.asked.state.value;
  return (
    <div class="answer">
      <Progress busy={q.busy} soFar={q.soFar} leave={p.asked.leave} />
      {q.left && q.soFar && (
        <div class="progress" role="status">
          <span class="progress-words">You left this question: what is shown is of the first packets only.</span>
          <button type="button" class="button small" onClick={p.asked.again}>Ask again</button>
        </div>
      )}
      {q.error ? (
        <Failed error={q.error} again={p.asked.again} />
      ) : q.value !== null ? (
        <div class={q.old ? "answer-body old" : "answer-body"}>{p.children(q.value)}</div>
      ) : q.left ? (
        <div class="state">
          <p class="state-title">You left this question.</p>
          <button type="button" class="button" onClick={p.asked.again}>
            Ask again
          </button>
        </div>
      ) : (
        <div class="state quiet" role="status">
          <p class="state-words">{p.what} …</p>
        </div>
      )}
    </div>
  );
}
