// The way through the host, phase by phase: in sum with the functions of each phase, and packet by packet.

import { useSignal, type Signal } from "@preact/signals";
import type { JSX } from "preact";
import { useEffect, useMemo } from "preact/hooks";
import { ask } from "../../api/ask.ts";
import { log } from "../../api/log.ts";
import { Pages } from "../../api/pages.ts";
import { generation, useQuestion } from "../../api/question.ts";
import type { DmaRx, PhasePacket, PhasePackets, PhaseRow, Phases } from "../../api/types.ts";
import { asked, go, at } from "../../base/place.ts";
import { count, many, moment, seen, share, span } from "../../base/units.ts";
import { Name, Share, Span, phaseLayer } from "../../widgets/marks.tsx";
import { Split } from "../../widgets/split.tsx";
import { Answer, Empty, Failed, NoPackets } from "../../widgets/states.tsx";
import { Table, type Column } from "../../widgets/table.tsx";
import type { View } from "../view.ts";
import { dmaWords, packetParts, stampWords, sums } from "./model.ts";
import "./phases.css";

function PhaseMark({ phase, wait }: { phase: string; wait: boolean }): JSX.Element {
  return <i class={wait ? "dot wait" : `dot l-${phaseLayer(phase)}`} aria-hidden="true" />;
}

function Functions({ row }: { row: PhaseRow }): JSX.Element {
  if (!row.functions.length) return <p class="muted">{row.wait ? "Nothing runs for the packet while it waits." : "No function of this phase was recorded."}</p>;
  return (
    <ul class="phase-functions">
      {row.functions.map((f) => (
        <li key={f.id}>
          <button type="button" class="link name" onClick={() => go({ view: "functions", func: f.id })}>{seen(f.name)}</button>
          <Span ns={f.self} />
          <Share of={f.share} />
        </li>
      ))}
    </ul>
  );
}

/** What no packet tells of, estimated of a card: beside the phases, as it is in no sum. */
function DmaRxRows({ card, open }: { card: DmaRx; open: Signal<string | null> }): JSX.Element {
  const key = `dma-rx ${card.interface}`;
  const here = open.value === key;
  return (
    <>
      <tr class={here ? "open" : undefined}>
        <td>
          <button type="button" class="phase-name" aria-expanded={here} onClick={() => (open.value = here ? null : key)}>
            <span class="twist">{here ? "▾" : "▸"}</span>
            <PhaseMark phase="dma-rx" wait={false} />
            DMA rx {seen(card.interface)}
            <span class="tag">estimate</span>
          </button>
        </td>
        <td class="right">{count(card.packets)}</td>
        <td class="right" title="Mean of a packet">mean <Span ns={card.mean} /></td>
        <td colSpan={2} />
        <td class="muted">in no sum</td>
      </tr>
      {here && (
        <tr class="phase-more">
          <td colSpan={6}>
            <p class="muted">{dmaWords(card)}. It is the router study's second method: the time between batches, divided by their packets ({seen(card.driver)}).</p>
          </td>
        </tr>
      )}
    </>
  );
}

function Sum({ data }: { data: Phases }): JSX.Element {
  const open = useSignal<string | null>(null);
  const total = data.phases.reduce((n, p) => n + p.total, 0);
  const { work, wait } = sums(data.phases);
  return (
    <div class="scroll phases-sum" tabIndex={0} role="region" aria-label="Phases in sum">
      <div class="phase-head">
        <span><b>{count(data.packets)}</b> packets</span>
        <span><b><Span ns={work} /></b> in phases, <b><Span ns={wait} /></b> waiting{total > 0 && ` (${share(wait / total)})`}</span>
        {data.points_only && <span class="tag" title="No function was recorded">tracepoints only</span>}
      </div>
      <div class="segments tall" aria-hidden="true">
        {data.phases.filter((p) => p.total > 0).map((p) => (
          <button key={p.phase} type="button" tabIndex={-1} class={`seg ${p.wait ? "wait" : `l-${phaseLayer(p.phase)}`}${open.value === p.phase ? " open" : ""}`}
            style={{ flexGrow: String(p.total) }} title={`${p.label}: ${span(p.total)}, ${share(p.share)}`} onClick={() => (open.value = open.value === p.phase ? null : p.phase)} />
        ))}
      </div>
      <table class="plain wide">
        <thead>
          <tr><th>Phase</th><th class="right" title="Passages that have it">Packets</th><th class="right">Median</th><th class="right">p99</th><th class="right">Sum</th><th>Of all</th></tr>
        </thead>
        <tbody>
          {data.dma_rx.map((d) => <DmaRxRows key={d.interface} card={d} open={open} />)}
          {data.phases.map((p) => (
            <>
              <tr key={p.phase} class={open.value === p.phase ? "open" : undefined}>
                <td>
                  <button type="button" class="phase-name" aria-expanded={open.value === p.phase} onClick={() => (open.value = open.value === p.phase ? null : p.phase)}>
                    <span class="twist">{open.value === p.phase ? "▾" : "▸"}</span>
                    <PhaseMark phase={p.phase} wait={p.wait} />
                    {seen(p.label)}
                    {p.wait && <span class="tag">wait</span>}
                    {p.phase === "dma-rx" && data.stamps.map((s) => <span key={s.interface} class="tag" title={stampWords(s)}>{seen(s.interface)} ±{span(s.bound)}</span>)}
                  </button>
                </td>
                <td class="right">{count(p.packets)}</td>
                <td class="right"><Span ns={p.median} /></td>
                <td class="right"><Span ns={p.p99} /></td>
                <td class="right"><Span ns={p.total} /></td>
                <td><Share of={p.share} /></td>
              </tr>
              {open.value === p.phase && (
                <tr class="phase-more">
                  <td colSpan={6}>
                    <p class="muted">{seen(p.meaning)}</p>
                    {p.phase === "dma-rx" && data.stamps.map((s) => <p key={s.interface} class="muted">{seen(s.interface)} ({seen(s.driver)}): {stampWords(s)}.</p>)}
                    <Functions row={p} />
                  </td>
                </tr>
              )}
            </>
          ))}
        </tbody>
      </table>
      {data.passages.length > 0 && (
        <>
          <h2>Ways through the host</h2>
          <table class="plain wide">
            <thead><tr><th>Way</th><th class="right">Packets</th><th class="right">Median</th></tr></thead>
            <tbody>
              {data.passages.map((p) => (
                <tr key={p.name}><td>{seen(p.name)}</td><td class="right">{count(p.packets)}</td><td class="right"><Span ns={p.median} /></td></tr>
              ))}
            </tbody>
          </table>
        </>
      )}
      {data.not_measurable.length > 0 && (
        <>
          <h2>What this log cannot tell</h2>
          <dl class="cannot">
            {data.not_measurable.map((n) => (
              <div key={n.phase}><dt><Name>{n.phase}</Name></dt><dd>{seen(n.words)}</dd></div>
            ))}
          </dl>
        </>
      )}
    </div>
  );
}

function PerPacket({ where, data }: { where: string; data: Phases }): JSX.Element {
  const current = useSignal<number | null>(null);
  const longest = useSignal(1);
  const key = JSON.stringify([where, generation.value]);
  const pages = useMemo(
    () =>
      new Pages<PhasePacket>(async (from, n, signal) => {
        const found = await ask<PhasePackets>("phases/packets", { where, from, count: n }, { signal });
        longest.value = Math.max(longest.peek(), ...found.rows.map((r) => r.parts.reduce((sum, [, ns]) => sum + ns, 0)));
        return found;
      }),
    [key],
  );
  useEffect(() => () => pages.end(), [pages]);
  pages.version.value;
  const info = useMemo(() => new Map(data.phases.map((p) => [p.phase, p])), [data]);
  const most = longest.value;
  const scaled = useSignal(true);
  const columns: Column<PhasePacket>[] = [
    { key: "id", title: "Packet", width: 72, align: "right", draw: (r) => <span class="link">{r.id}</span> },
    { key: "t", title: "Time s", width: 92, align: "right", from: 460, draw: (r) => moment(r.t) },
    { key: "path", title: "Path time", width: 100, align: "right", draw: (r) => <Span ns={r.path_ns} /> },
    {
      key: "parts",
      title: "Phases and waits",
      draw: (r) => {
        const parts = packetParts(r, scaled.value ? r.parts.reduce((sum, [, ns]) => sum + ns, 0) : most);
        const words = parts.map((p) => `${info.get(p.phase)?.label ?? p.phase} ${span(p.ns)}`).join(", ");
        return (
          <span class="parts" role="img" aria-label={words}>
            {parts.map((p, i) => (
              <i key={i} class={info.get(p.phase)?.wait ? "seg wait" : `seg l-${phaseLayer(p.phase)}`} style={{ width: `${(p.part * 100).toFixed(2)}%` }} title={`${info.get(p.phase)?.label ?? p.phase} ${span(p.ns)}`} />
            ))}
          </span>
        );
      },
    },
  ];
  if (pages.error.value) return <Failed error={pages.error.value} />;
  return (
    <div class="per-packet">
      <div class="bar">
        <span class="bar-words">{pages.total.value === null ? "" : many(pages.total.value, "packet")}</span>
        <span class="spring" />
        <label class="check"><input type="checkbox" checked={scaled.value} onChange={(e) => (scaled.value = e.currentTarget.checked)} /> every bar full width</label>
      </div>
      <div class="per-packet-table">
        <Table id="phase-packets" label="Phases packet by packet" columns={columns} total={pages.total.value ?? 0} row={(i) => pages.row(i)} need={(a, b) => pages.need(a, b)}
          current={current.value}
          onCurrent={(i, pressed) => {
            current.value = i;
            const row = pages.row(i);
            if (row) go({ packet: row.id }, !pressed);
          }} />
      </div>
    </div>
  );
}

function Whole(): JSX.Element {
  const where = asked(at.where.value, at.time.value);
  const question = useQuestion<Phases>("phases", { where });
  return (
    <Answer asked={question} what="Cutting the packets' ways into phases">
      {(data) =>
        data.packets ? (
          <Split name="phases" direction="row" start={0.5} first={<Sum data={data} />} second={<PerPacket where={where} data={data} />} />
        ) : (
          where || !log.value?.counts.packets ? <NoPackets where={where} /> : <Empty title="No packet has phases">No function or tracepoint that begins a phase was recorded.</Empty>
        )
      }
    </Answer>
  );
}

export const phases: View = {
  id: "phases",
  title: "Phases",
  words: "The way through the host, phase by phase",
  filtered: true,
  docked: true,
  draw: Whole,
};
