// Where the time goes by function: a table with distributions, one function in detail, the flame graph, two logs compared.

import { signal, useSignal, type Signal } from "@preact/signals";
import type { JSX } from "preact";
import { useMemo } from "preact/hooks";
import { log } from "../../api/log.ts";
import { useQuestion } from "../../api/question.ts";
import type { FunctionRow, Functions } from "../../api/types.ts";
import { asked, go, place } from "../../base/place.ts";
import { count, readSpan, seen, shortSpan, span } from "../../base/units.ts";
import { Layer, Span } from "../../widgets/marks.tsx";
import { Split } from "../../widgets/split.tsx";
import { Answer, Empty, NoPackets } from "../../widgets/states.tsx";
import { Table, type Column, type Sorting } from "../../widgets/table.tsx";
import { Tabs } from "../../widgets/tabs.tsx";
import type { View } from "../view.ts";
import { Comparison } from "./compare.tsx";
import { Detail, type Thresholds } from "./detail.tsx";
import { FlameGraph } from "./flame.tsx";
import { arranged, reach } from "./model.ts";
import { Spark } from "./spark.tsx";
import "./functions.css";

type Tab = "table" | "flame" | "compare";

/** Kept while other views are looked at. */
const tab = signal<Tab>("table");
const search = signal("");
/** In ns. */
const slower = signal<number | null>(null);
const faster = signal<number | null>(null);

/** Tracepoints are moments: columns of durations say nothing of them. */
const TIMED = new Set(["self", "total", "median", "p99", "max", "buckets"]);

function columns(range: [number, number], moments: boolean): Column<FunctionRow>[] {
  const all: Column<FunctionRow>[] = [
    { key: "name", title: "Function", sortable: true, draw: (r) => <code class="name">{seen(r.name)}</code>, hint: (r) => r.name },
    { key: "module", title: "Module", width: 96, sortable: true, from: 1220, draw: (r) => seen(r.module) },
    { key: "layer", title: "Layer", width: 92, sortable: true, from: 720, draw: (r) => <Layer name={r.layer} /> },
    { key: "calls", title: "Calls", width: 84, align: "right", sortable: true, draw: (r) => count(r.calls) },
    { key: "packets", title: "Packets", width: 80, align: "right", sortable: true, from: 1100, draw: (r) => count(r.packets) },
    { key: "self", title: "Self", words: "All its calls together, without what they called", width: 104, align: "right", sortable: true, draw: (r) => <Span ns={r.median === null ? null : r.self} /> },
    { key: "total", title: "Total", width: 104, align: "right", sortable: true, from: 920, draw: (r) => <Span ns={r.median === null ? null : r.total} /> },
    { key: "median", title: "Median", width: 100, align: "right", sortable: true, draw: (r) => <Span ns={r.median} /> },
    { key: "p99", title: "p99", width: 100, align: "right", sortable: true, from: 1020, draw: (r) => <Span ns={r.p99} /> },
    { key: "max", title: "Max", width: 100, align: "right", sortable: true, from: 820, draw: (r) => <Span ns={r.max} /> },
    { key: "buckets", title: "Distribution", words: "Calls by duration, one logarithmic axis for all rows; the line is the median", width: 136, from: 480, draw: (r) => <Spark row={r} range={range} width={120} height={18} /> },
  ];
  return moments ? all.filter((c) => !TIMED.has(c.key)) : all;
}

function List({ data }: { data: Functions }): JSX.Element {
  const moments = data.rows.length > 0 && data.rows.every((r) => r.median === null);
  const chosen = useSignal<Sorting>({ key: "self", desc: true });
  const sort = { value: moments && TIMED.has(chosen.value.key) ? { key: "calls", desc: true } : chosen.value };
  const rows = useMemo(() => arranged([...data.rows], search.value, sort.value), [data, search.value, sort.value.key, sort.value.desc]);
  const range = useMemo(() => reach(data.rows), [data]);
  const shown = useMemo(() => columns(range, moments), [range, moments]);
  const at = rows.findIndex((r) => r.id === place.value.func);
  if (!data.rows.length && !log.value?.counts.packets) return <NoPackets where={place.value.where} />;
  if (!data.rows.length) return <Empty title="No function has such calls">{place.value.where || slower.value !== null || faster.value !== null ? "Nothing is within filter and limits." : "Nothing in this log has a duration: only tracepoints, or entries alone, were recorded."}</Empty>;
  if (!rows.length) return <Empty title={`No function's name holds “${search.value}”`} />;
  return (
    <Table id="functions" label="Functions" columns={shown} total={rows.length} row={(i) => rows[i]} sort={sort.value} onSort={(s) => (chosen.value = s)}
      current={at >= 0 ? at : null} onCurrent={(i, pressed) => go({ func: rows[i]!.id }, !pressed)} />
  );
}

function Limit({ label, value }: { label: string; value: Signal<number | null> }): JSX.Element {
  const typed = useSignal(value.value === null ? "" : shortSpan(value.value));
  const wrong = typed.value.trim() !== "" && readSpan(typed.value) === null;
  const id = `limit-${label.replace(/\W/g, "")}`;
  const apply = () => {
    if (!wrong) value.value = readSpan(typed.peek());
  };
  return (
    <label class={`limit${wrong ? " wrong" : ""}`}>
      {label}
      <input type="text" size={7} placeholder="10us" value={typed.value} aria-invalid={wrong} aria-describedby={wrong ? id : undefined}
        onInput={(e) => (typed.value = e.currentTarget.value)} onChange={apply} onKeyDown={(e) => e.key === "Enter" && apply()} />
      {wrong && <span class="limit-wrong" id={id} role="alert">a time such as 250ns, 10us, 1.5ms</span>}
    </label>
  );
}

function Whole(): JSX.Element {
  const where = asked(place.value.where, place.value.time);
  const thresholds: Thresholds = { slower: slower.value, faster: faster.value };
  const question = useQuestion<Functions>(tab.value === "table" ? "functions" : null, { where, ...thresholds });
  const compare = log.value?.compare ?? null;
  const tabs: [Tab, string][] = [["table", "Table"], ["flame", "Flame graph"], ...(compare !== null ? [["compare", `Compared with ${compare}`] as [Tab, string]] : [])];
  const cost = question.state.value.value?.probe_cost_ns ?? null;
  const moments = !!question.state.value.value?.rows.length && question.state.value.value.rows.every((r) => r.median === null);
  const main = (
    <div class="functions-main">
      {tab.value === "table" ? (
        <Answer asked={question} what="Counting calls">{(data) => <List data={data} />}</Answer>
      ) : tab.value === "flame" && log.value?.mechanism === "tracepoint" ? (
        <Empty title="A flame graph needs durations">Only tracepoints were recorded: they are moments. <code>kpat doctor</code> on the device tells which mechanisms with functions work there, and why others do not.</Empty>
      ) : tab.value === "flame" ? (
        <FlameGraph search={search.value} />
      ) : (
        <Comparison />
      )}
    </div>
  );
  return (
    <div class="functions">
      <div class="bar">
        <Tabs label="Functions as" tabs={tabs} current={tab.value} choose={(to) => (tab.value = to)} />
        {tab.value !== "compare" && (
          <input class="search" type="search" aria-label="Search functions" placeholder="Search functions" value={search.value} onInput={(e) => (search.value = e.currentTarget.value)} />
        )}
        {tab.value === "table" && (
          <>
            <Limit label="slower than" value={slower} />
            <Limit label="faster than" value={faster} />
          </>
        )}
        <span class="spring" />
        {moments && tab.value === "table" && <span class="muted">{log.value?.mechanism === "tracepoint" ? "only tracepoints were recorded: moments, without a duration" : "only entries were recorded (--entry-only): no durations"}</span>}
        {cost !== null && !moments && tab.value === "table" && <span class="muted" title="Contained in all times here; kpat time --subtract-cost estimates without it">probes cost about {span(cost)} a run</span>}
      </div>
      <div class="functions-body">
        <Split name="function" direction="row" start={0.58} first={main} second={place.value.func !== null && tab.value !== "compare" ? <Detail id={place.value.func} thresholds={thresholds} /> : null} />
      </div>
    </div>
  );
}

export const functions: View = {
  id: "functions",
  title: "Functions",
  words: "Where the time goes, and in which calls",
  filtered: true,
  docked: true,
  draw: Whole,
};
