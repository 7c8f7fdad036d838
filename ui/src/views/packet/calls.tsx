// The packet's calls as an indented table, with what stood between them: hand-overs, frames on the wire, events.

import { useSignal, type Signal } from "@preact/signals";
import type { JSX } from "preact";
import { useMemo } from "preact/hooks";
import type { WholePacket } from "./whole.ts";
import { go } from "../../base/place.ts";
import { NONE, bound, seen, spanParts } from "../../base/units.ts";
import { Empty } from "../../widgets/states.tsx";
import { Span, layerClass } from "../../widgets/marks.tsx";
import { Table, type Column } from "../../widgets/table.tsx";
import { CONTEXT, layLines, type Line, type Note } from "./tracks.ts";

function notes(p: WholePacket): Note[] {
  return [
    ...p.frames.filter((f) => f.t !== null).map((f) => ({ t: f.t!, glyph: "●", words: `wire: frame ${f.number} ${seen(f.side)} ${seen(f.capture)}, ${bound(f.bound_ns)}`, span: null })),
    ...p.handovers.map((h) => ({ t: h.from, glyph: "⇢", words: seen(h.kind), span: h.wait })),
    ...p.events.map((e) => ({ t: e.t, glyph: "◆", words: `${seen(e.kind)}: ${seen(e.words)}`, span: null })),
  ];
}

function Entry({ ns }: { ns: number }): JSX.Element {
  const q = spanParts(ns);
  return <span>{`${q.number} ${q.unit}`}</span>;
}

export function Calls({ packet, chosen, func }: { packet: WholePacket; chosen: Signal<number | null>; func: number | null }): JSX.Element {
  const shut = useSignal<ReadonlySet<number>>(new Set());
  const lines = useMemo(() => layLines(packet.calls, notes(packet), shut.value), [packet, shut.value]);
  const current = lines.findIndex((l) => l.kind === "call" && l.call.id === chosen.value);
  const passing = useSignal<number | null>(null);
  const toggle = (id: number) => {
    const next = new Set(shut.peek());
    if (!next.delete(id)) next.add(id);
    shut.value = next;
  };
  const columns: Column<Line>[] = [
    { key: "t", title: "Entry", words: "Since the first sight of the packet", width: 88, align: "right", draw: (l) => <Entry ns={(l.kind === "call" ? l.call.t : l.t) - packet.row.t} /> },
    {
      key: "name",
      title: "Function",
      draw: (l) =>
        l.kind === "note" ? (
          <span class="note" style={{ paddingLeft: `${l.depth * 9 + 16}px` }}>
            <span class="glyph" aria-hidden="true">{l.glyph}</span> {l.words}
          </span>
        ) : (
          <span class="call" style={{ paddingLeft: `${l.call.depth * 9}px` }}>
            {l.inside ? (
              <button type="button" class="twist" tabIndex={-1} aria-label={l.shut ? "Show what it called" : "Hide what it called"} onClick={(e) => (e.stopPropagation(), toggle(l.call.id))}>
                {l.shut ? "▸" : "▾"}
              </button>
            ) : (
              <span class="twist" />
            )}
            <i class={`dot l-${layerClass(l.call.layer)}`} title={l.call.layer} />
            <a
              class={`name${l.call.func === func ? " here" : ""}`}
              href={`#/functions?func=${l.call.func}`}
              tabIndex={-1}
              onClick={(e) => {
                e.preventDefault();
                e.stopPropagation();
                go({ view: "functions", func: l.call.func });
              }}
            >
              {seen(l.call.name)}
            </a>
            {l.call.list && <span class="tag" title="Handles a list of packets">list</span>}
            {l.call.point && <span class="tag" title="A tracepoint: a moment, no duration">point</span>}
          </span>
        ),
      hint: (l) => (l.kind === "call" ? l.call.name : l.words),
    },
    { key: "dur", title: "Duration", width: 96, align: "right", draw: (l) => (l.kind === "call" ? l.call.point ? "" : <Span ns={l.call.dur} /> : l.span === null ? "" : <Span ns={l.span} />) },
    {
      key: "self",
      title: "Self",
      words: "Without what it called and the interrupts that stopped it",
      width: 124,
      align: "right",
      draw: (l) =>
        l.kind === "call" && !l.call.point ? (
          <span class="heat">
            <i style={{ "--part": `${Math.round(l.heat * 100)}%` }} aria-hidden="true" />
            <span>{l.call.self === null ? NONE : <Span ns={l.call.self} />}</span>
          </span>
        ) : (
          ""
        ),
    },
    { key: "irq", title: "Interrupted", words: "Time of interrupts inside", width: 92, align: "right", from: 1100, draw: (l) => (l.kind === "call" && l.call.irq ? <Span ns={l.call.irq} /> : "") },
    ...(packet.calls.some((c) => c.device) ? [{ key: "device", title: "Kernel", words: "Whose call it is", width: 110, draw: (l: Line) => (l.kind === "call" ? seen(l.call.device ?? "") : "") }] : []),
    { key: "ctx", title: "CPU, context", width: 96, from: 480, draw: (l) => (l.kind === "call" ? `${l.call.cpu} ${CONTEXT[l.call.ctx]}` : "") },
    { key: "comm", title: "Process", words: "What the CPU was running", width: 110, from: 960, draw: (l) => (l.kind === "call" && l.call.comm ? `${seen(l.call.comm)} ${l.call.pid}` : "") },
  ];
  if (!lines.length) return <Empty title="No call was recorded for this packet" />;
  return (
    <Table
      id="calls"
      label="Calls of this packet"
      columns={columns}
      total={lines.length}
      row={(i) => lines[i]}
      current={passing.value ?? (current >= 0 ? current : null)}
      onCurrent={(i, pressed) => {
        const l = lines[i];
        passing.value = i;
        if (l?.kind === "call") chosen.value = l.call.id;
        if (l?.kind === "call") passing.value = null;
        void pressed;
      }}
      onOpen={(i) => {
        const l = lines[i];
        if (l?.kind === "call" && l.inside) toggle(l.call.id);
      }}
      rowClass={(l) => (l.kind === "note" ? "is-note" : l.call.func === func ? "is-here" : "")}
    />
  );
}
