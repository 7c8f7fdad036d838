// One function: its times, who calls it and what it calls, and the reverse look-up: its calls, each with its packet.

import { useSignal } from "@preact/signals";
import type { JSX } from "preact";
import { useEffect, useMemo } from "preact/hooks";
import { ask } from "../../api/ask.ts";
import { Pages, rowsOf } from "../../api/pages.ts";
import { generation, useQuestion } from "../../api/question.ts";
import type { FunctionCall, FunctionDetail, Neighbour } from "../../api/types.ts";
import { asked, go, at } from "../../base/place.ts";
import { NONE, count, many, moment, seen } from "../../base/units.ts";
import { Layer, Share, Span } from "../../widgets/marks.tsx";
import { Answer, Failed } from "../../widgets/states.tsx";
import { Table, type Column } from "../../widgets/table.tsx";
import { reach } from "./model.ts";
import { Spark } from "./spark.tsx";

export interface Thresholds {
  /** In ns. */
  slower: number | null;
  faster: number | null;
}

const COLUMNS: Column<FunctionCall>[] = [
  { key: "t", title: "Entry s", width: 92, align: "right", draw: (r) => moment(r.t) },
  { key: "dur", title: "Duration", width: 100, align: "right", draw: (r) => <Span ns={r.dur} /> },
  { key: "self", title: "Self", width: 100, align: "right", draw: (r) => <Span ns={r.self} /> },
  { key: "packet", title: "Packet", width: 72, align: "right", draw: (r) => (r.packet === null ? <span class="none">{NONE}</span> : <span class="link">{r.packet}</span>) },
  { key: "cpu", title: "CPU", width: 44, align: "right", from: 420, draw: (r) => r.cpu },
  { key: "ctx", title: "Context", width: 70, from: 520, draw: (r) => r.ctx },
  { key: "comm", title: "Process", draw: (r) => seen(r.comm), hint: (r) => r.comm },
];

function CallList({ id, thresholds, where }: { id: number; thresholds: Thresholds; where: string }): JSX.Element {
  const key = JSON.stringify([id, thresholds, where, generation.value]);
  const current = useSignal<number | null>(null);
  const pages = useMemo(
    () =>
      new Pages<FunctionCall>(async (from, n, signal) => {
        const d = await ask<FunctionDetail>("function", { id, where, ...thresholds, from, count: n }, { signal });
        return { total: d.total, rows: rowsOf<FunctionCall>(d.calls) };
      }),
    [key],
  );
  useEffect(() => {
    current.value = null;
    return () => pages.end();
  }, [pages]);
  pages.version.value;
  if (pages.error.value) return <Failed error={pages.error.value} />;
  if (pages.total.value === 0) return <p class="pad muted">No call is within these limits.</p>;
  return (
    <Table
      id="function-calls"
      label="Calls of this function, longest first"
      columns={COLUMNS}
      total={pages.total.value ?? 0}
      row={(i) => pages.row(i)}
      need={(a, b) => pages.need(a, b)}
      current={current.value}
      onCurrent={(i, pressed) => {
        current.value = i;
        const packet = pages.row(i)?.packet;
        if (packet !== null && packet !== undefined) go({ packet }, !pressed);
      }}
    />
  );
}

function Neighbours({ title, rows, none }: { title: string; rows: Neighbour[]; none: string }): JSX.Element {
  const total = rows.reduce((sum, r) => sum + r.total, 0);
  return (
    <div class="neighbours">
      <h3>{title}</h3>
      {rows.length ? (
        <ul>
          {rows.slice(0, 12).map((r) => (
            <li key={r.id}>
              {r.id < 0 ? <span class="muted">{seen(r.name)}</span> : <button type="button" class="link name" onClick={() => go({ func: r.id })}>{seen(r.name)}</button>}
              <span class="muted">{count(r.calls)}×</span>
              <Share of={r.total / (total || 1)} />
            </li>
          ))}
        </ul>
      ) : (
        <p class="muted">{none}</p>
      )}
    </div>
  );
}

export function Detail({ id, thresholds }: { id: number; thresholds: Thresholds }): JSX.Element {
  const where = asked(at.where.value, at.time.value);
  const question = useQuestion<FunctionDetail>("function", { id, where, ...thresholds, from: 0, count: 1 });
  return (
    <Answer asked={question} what="Reading the calls of this function">
      {(d) => {
        const r = d.row;
        return (
          <section class="function" aria-label={`Function ${r.name}`}>
            <header class="function-head">
              <h2 class="name">{seen(r.name)}</h2>
              {r.module && <span class="tag">{seen(r.module)}</span>}
              <Layer name={r.layer} />
              <span class="spring" />
              <button type="button" class="button small" title="Only packets that this function handled" onClick={() => go({ where: `func == "${r.name}"`, view: "packets" })}>Its packets</button>
              <button type="button" class="icon" aria-label="Close the function" title="Close" onClick={() => go({ func: null })}>×</button>
            </header>
            <div class="function-top">
              {d.does && <p class="function-does">{d.does[0]?.toUpperCase() + d.does.slice(1)} <span class="muted">{d.slow}</span></p>}
              <dl class="facts">
                <div><dt>calls</dt><dd>{count(r.calls)}</dd></div>
                <div><dt>packets</dt><dd>{count(r.packets)}</dd></div>
                <div><dt>total</dt><dd><Span ns={r.total} /></dd></div>
                <div><dt>self</dt><dd><Span ns={r.self} /></dd></div>
                <div><dt>min</dt><dd><Span ns={r.min} /></dd></div>
                <div><dt>median</dt><dd><Span ns={r.median} /></dd></div>
                <div><dt>p99</dt><dd><Span ns={r.p99} /></dd></div>
                <div>
                  <dt>max</dt>
                  <dd>
                    <Span ns={r.max} />
                    {r.max_packet !== null && <> <button type="button" class="link" onClick={() => go({ packet: r.max_packet })}>packet {r.max_packet}</button></>}
                  </dd>
                </div>
              </dl>
              <div class="function-spark"><Spark row={r} range={reach([r])} width={300} height={64} large /></div>
              <div class="function-near">
                <Neighbours title="Called by" rows={d.callers} none="Nobody who was recorded." />
                <Neighbours title="Calls" rows={d.callees} none="Nothing that was recorded." />
              </div>
            </div>
            <div class="function-count muted">{many(d.total, "call")}{thresholds.slower !== null || thresholds.faster !== null || where ? " within filter and limits" : ""}, longest first</div>
            <div class="function-calls"><CallList id={id} thresholds={thresholds} where={where} /></div>
          </section>
        );
      }}
    </Answer>
  );
}
