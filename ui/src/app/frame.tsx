// The frame around every view: what log this is, where one can go, the filter and the strip that all views share, the
// chosen packet beside them, and the line that says how far to trust it all.

import { useComputed, useSignal } from "@preact/signals";
import type { JSX } from "preact";
import { useEffect, useMemo, useRef } from "preact/hooks";
import { log, logError, openLog } from "../api/log.ts";
import { useQuestion } from "../api/question.ts";
import type { Info, Overview } from "../api/types.ts";
import { at, go } from "../base/place.ts";
import { choice, choose, type Choice } from "../base/theme.ts";
import { count, many, seen, share, shortSpan } from "../base/units.ts";
import { PacketPane } from "../views/packet/packet.tsx";
import { shownAt } from "../views/packet/shown.ts";
import { FilterBar } from "../widgets/filter.tsx";
import { Split } from "../widgets/split.tsx";
import { elsewhere, Empty, Failed } from "../widgets/states.tsx";
import { Strip } from "../widgets/strip.tsx";
import { Help } from "./help.tsx";
import type { View } from "../views/view.ts";
import { VIEWS } from "./views.ts";

const FILTER = "filter";
/** From this width on the packet stands beside the view, else below it. */
const BESIDE = 1800;
const BINS = 400;
/** The views that have a key of their own. */
const DIGITS = 9;

const NEXT: Record<Choice, Choice> = { system: "light", light: "dark", dark: "system" };
const LOOK: Record<Choice, string> = { system: "◐", light: "○", dark: "●" };

function Top({ info, help }: { info: Info; help: () => void }): JSX.Element {
  const nav = useRef<HTMLElement>(null);
  const id = here().id;
  // In a narrow window they are a strip that scrolls.
  useEffect(() => nav.current?.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest", inline: "nearest" }), [id]);
  return (
    <header class="top">
      <a class="brand" href="#/packets" title="kpat: what the kernel did with a packet">
        <svg width="18" height="18" viewBox="0 0 18 18" aria-hidden="true">
          <rect x="1" y="2" width="16" height="3" rx="1" />
          <rect x="4" y="7.5" width="10" height="3" rx="1" opacity=".75" />
          <rect x="7" y="13" width="6" height="3" rx="1" opacity=".5" />
        </svg>
        kpat
      </a>
      <span class="top-log" title={`${info.name} on ${info.host}`}>
        <b>{seen(info.name)}</b>
        <span class="muted">{seen(info.host)} · Linux {seen(info.kernel)}</span>
      </span>
      {info.live && (
        <span class="badge live" title="The recording goes on; the page follows it">
          <i aria-hidden="true" /> live
        </span>
      )}
      {info.device_names.length > 0 && (
        <label class="check">
          Device
          <select value={at.device.value ?? info.device ?? ""} onChange={(e) => go({ device: e.currentTarget.value, packet: null, func: null, socket: null, call: null, process: null, handover: null })}>
            {info.device_names.map((d) => <option key={d} value={d}>{seen(d)}</option>)}
          </select>
        </label>
      )}
      <nav class="views" ref={nav} aria-label="Views">
        {VIEWS.map((v, i) => (
          <a key={v.id} href={`#/${v.id}`} title={i < DIGITS ? `${v.words} (${i + 1})` : v.words} aria-current={id === v.id ? "page" : undefined}
            onClick={(e) => {
              if (e.ctrlKey || e.metaKey || e.shiftKey) return;
              e.preventDefault();
              go({ view: v.id });
            }}>
            {v.title}
          </a>
        ))}
      </nav>
      <span class="spring" />
      <button type="button" class="icon" onClick={help} aria-label="Keys" title="Keys (?)">?</button>
      <button type="button" class="icon" onClick={() => choose(NEXT[choice.value])} aria-label={`Colours: ${choice.value}. Change to ${NEXT[choice.value]}`} title={`Colours: ${choice.value}`}>
        <span aria-hidden="true">{LOOK[choice.value]}</span>
      </button>
    </header>
  );
}

/** What is shown first: packets, but for a recording that has none of them. */
function first(): View {
  const info = log.value;
  const id = info ? (elsewhere(info)?.view ?? "packets") : "packets";
  return VIEWS.find((v) => v.id === id) ?? VIEWS[0]!;
}

function here(): View {
  return VIEWS.find((v) => v.id === at.view.value) ?? first();
}

/** Filters that this log can answer, from its own fields. */
function examples(info: Info): string[] {
  return [info.fields.some((f) => f.name === "path_time") ? "tcp and path_time > 1ms" : "tcp"];
}

function Shared({ info }: { info: Info }): JSX.Element {
  const [where, time] = [at.where.value, at.time.value];
  const overview = useQuestion<Overview>("overview", { where, bins: BINS });
  const data = overview.state.value.value;
  return (
    <div class="shared">
      <FilterBar id={FILTER} value={where} onApply={(next) => go({ where: next })} examples={examples(info)} />
      <section class="shared-strip" aria-label="Overview">
        {data && data.bins.packets.length > 0 && <Strip data={data} chosen={time} onChoose={(next) => go({ time: next })} mark={shownAt.value} />}
        {time && (
          <button type="button" class="chip strip-chip" onClick={() => go({ time: null })} title="Show all of the time again">
            {shortSpan(time[1] - time[0])} chosen ×
          </button>
        )}
      </section>
    </div>
  );
}

function Bottom({ info }: { info: Info }): JSX.Element {
  const lost = info.losses.reduce((sum, l) => sum + l.count, 0);
  const c = info.counts;
  const matched = info.captures.reduce((sum, x) => sum + x.matched, 0);
  return (
    <footer class="bottom">
      <span>{many(c.packets, "packet")}</span>
      {info.sample && <span class="chip" title="Only this part of the packets was recorded, and all counts are of it; kpat info estimates how many there were">sample {info.sample}</span>}
      {info.only.length > 0 && <span class="chip" title="Only packets and sockets of these processes were recorded">only {info.only.join(", ")}</span>}
      {c.sockets > 0 && <span>{many(c.sockets, "socket")} of applications</span>}
      <span>{many(c.calls, "call")} of {many(c.functions, "function")}</span>
      <span title="Frames of the captures that belong to a packet">{c.frames ? `${count(matched)} of ${many(c.frames, "frame")} matched` : "no capture"}</span>
      <span>{shortSpan(info.length_ns)}, {info.cpus} CPUs, {seen(info.mechanism)}</span>
      {!info.loaded && <span role="status">reading the packets …</span>}
      <span class="spring" />
      <a href="#/trust" class={lost ? "bad-number" : undefined} onClick={(e) => (e.preventDefault(), go({ view: "trust" }))}>
        {lost ? <><span class="glyph bad" aria-hidden="true">!</span> {count(lost)} lost</> : "nothing lost"}
      </a>
      {info.trust_ppm !== null && <a href="#/trust" class={info.trust_ppm < 1e6 ? "bad-number" : undefined} title={`${share(info.trust_ppm / 1e6)} ${info.trust_words ?? ""}`} onClick={(e) => (e.preventDefault(), go({ view: "trust" }))}>trust {share(info.trust_ppm / 1e6)}</a>}
    </footer>
  );
}

function inField(e: KeyboardEvent): boolean {
  const el = e.target as HTMLElement | null;
  return !!el && (/^(INPUT|SELECT|TEXTAREA)$/.test(el.tagName) || el.isContentEditable);
}

export function Frame(): JSX.Element {
  const wide = useSignal(innerWidth >= BESIDE);
  const help = useSignal(false);
  const chosen = useComputed(() => at.packet.value !== null || at.frame.value !== null);
  const view = here();
  const docked = view.docked && chosen.value;
  const info = log.value;
  const title = useComputed(() => `${here().title} · ${log.value?.name ?? "kpat"}`);
  useEffect(() => title.subscribe((t) => (document.title = t)), []);
  useEffect(() => {
    const onResize = () => (wide.value = innerWidth >= BESIDE);
    const onKey = (e: KeyboardEvent) => {
      if (e.ctrlKey || e.metaKey || e.altKey || e.defaultPrevented) return;
      if (e.key === "Escape" && !inField(e)) {
        if (help.peek()) help.value = false;
        else if (here().docked) go({ packet: null, frame: null });
        return;
      }
      if (inField(e)) return;
      const nth = VIEWS[Number(e.key) - 1];
      if (e.key === "/") {
        e.preventDefault();
        if (!here().filtered) go({ view: VIEWS[0]!.id });
        const field = document.getElementById(FILTER);
        // Another view has to be drawn first; in this one the next key must already arrive there.
        if (field) field.focus();
        else requestAnimationFrame(() => document.getElementById(FILTER)?.focus());
      } else if (e.key === "?") help.value = !help.peek();
      else if (nth) go({ view: nth.id });
    };
    addEventListener("resize", onResize);
    addEventListener("keydown", onKey);
    return () => {
      removeEventListener("resize", onResize);
      removeEventListener("keydown", onKey);
    };
  }, []);

  const device = at.device.value;
  const Draw = view.draw;
  // They draw themselves again when what they show changes, not whenever the frame does.
  const main = useMemo(() => <Draw key={`${view.id} ${device}`} />, [view, device]);
  const pane = useMemo(() => <PacketPane dock />, []);

  if (!info)
    return logError.value ? (
      <main class="alone">
        <h1>kpat</h1>
        <Failed error={logError.value} again={() => void openLog()} />
      </main>
    ) : (
      <main class="alone" aria-busy="true">
        <h1>kpat</h1>
        <Empty title="Opening the log …" />
      </main>
    );
  return (
    <div class={`frame${view.filtered ? " filtered" : ""}`}>
      <Top info={info} help={() => (help.value = true)} />
      {view.filtered && <Shared info={info} />}
      <main aria-label={view.title}>
        <h1 class="hidden">{view.title}</h1>
        <Split
          key={wide.value ? "row" : "column"}
          name={`dock-${view.id}`}
          direction={wide.value ? "row" : "column"}
          start={wide.value ? 0.5 : 0.38}
          first={main}
          second={docked ? pane : null}
        />
      </main>
      <Bottom info={info} />
      {help.value && <Help close={() => (help.value = false)} />}
    </div>
  );
}
