// Where the time of the chosen packets went: layers, waits, functions by self time; beside it their path times over time.

import type { JSX } from "preact";
import { useQuestion } from "../../api/question.ts";
import type { Latency, TimeRow, TimeSpent } from "../../api/types.ts";
import { asked, at, go } from "../../base/place.ts";
import { count, seen, share, shortSpan, span } from "../../base/units.ts";
import { Layer, Share, Span, layerClass } from "../../widgets/marks.tsx";
import { Split } from "../../widgets/split.tsx";
import { Answer, NoPackets } from "../../widgets/states.tsx";
import type { View } from "../view.ts";
import { Histogram, OverTime } from "./charts.tsx";
import { barOf } from "./model.ts";
import "./time.css";

const BINS = 120;
/** Functions shown; all are in the view Functions. */
const SHOWN = 40;

const MEANING: Record<string, string> = {
  layer: "Self time of this layer's functions, per packet",
  wait: "Nobody worked on the packet; the columns are of each time that one waited",
  card: "The card had it, until the driver freed it as sent",
  unrecorded: "Callers that were not recorded, interrupts, work on other packets",
};

function look(row: TimeRow): string {
  return row.kind === "layer" ? `l-${layerClass(row.layer)}` : row.kind === "card" ? "at-card" : row.kind;
}

function Numbers({ row }: { row: TimeRow }): JSX.Element {
  // Of calls without a known duration (entries alone) the sum is not nothing, but unknown.
  const known = row.median !== null;
  return (
    <>
      <td class="right"><Span ns={known ? row.total : null} /></td>
      <td>{known && <Share of={row.share} />}</td>
      <td class="right"><Span ns={row.median} /></td>
      <td class="right"><Span ns={row.p99} /></td>
      <td class="right less"><Span ns={row.max} /></td>
    </>
  );
}

function Parts({ data }: { data: TimeSpent }): JSX.Element {
  return (
    <table class="plain wide">
      <thead>
        <tr>
          <th>Part</th><th class="right less" title="Packets; of waits, times that one waited">Times</th><th class="right">Sum</th><th title="Of the path times' sum; work on two CPUs at once counts twice">Of path</th>
          <th class="right">Median</th><th class="right">p99</th><th class="right less">Max</th>
        </tr>
      </thead>
      <tbody>
        <tr><td><b>path</b></td><td class="right less">{count(data.path.times)}</td><Numbers row={data.path} /></tr>
        {[...data.parts].sort((a, b) => b.total - a.total).map((p) => (
          <tr key={`${p.kind} ${p.name}`} title={MEANING[p.kind]}>
            <td>
              <span class="time-part"><i class={`dot ${look(p)}`} aria-hidden="true" />{p.kind === "card" ? "at the card" : seen(p.name)}</span>
              {p.kind === "wait" && <span class="tag">wait</span>}
            </td>
            <td class="right less">{count(p.times)}</td>
            <Numbers row={p} />
          </tr>
        ))}
      </tbody>
    </table>
  );
}

function Functions({ data }: { data: TimeSpent }): JSX.Element {
  if (data.points_only) return <p class="muted">Only tracepoints were recorded: moments and waits, no function's time. <code>kpat doctor</code> on the device tells which mechanisms with functions work there.</p>;
  if (!data.functions.length) return <p class="muted">No call of these packets was recorded.</p>;
  const off = data.functions.some((f) => f.off > 0);
  return (
    <>
      <table class="plain wide">
        <thead>
          <tr>
            <th>Function</th><th class="less">Layer</th><th class="right least">Calls</th><th class="right" title="Without what it called, interrupts and the time off the CPU">Self</th><th title="Of all self time">Of self</th>
            <th class="right">Median</th><th class="right">p99</th><th class="right less">Max</th>{off && <th class="right less" title="Its task slept or was preempted">Off CPU</th>}
          </tr>
        </thead>
        <tbody>
          {data.functions.slice(0, SHOWN).map((f) => (
            <tr key={f.id}>
              <td><button type="button" class="link name" onClick={() => go({ view: "functions", func: f.id })}>{seen(f.name)}</button></td>
              <td class="less"><Layer name={f.layer} /></td>
              <td class="right least">{count(f.times)}</td>
              <Numbers row={f} />
              {off && <td class="right less">{f.off > 0 ? <Span ns={f.off} /> : ""}</td>}
            </tr>
          ))}
        </tbody>
      </table>
      {data.functions.length > SHOWN && <p class="muted">{count(data.functions.length - SHOWN)} more, with less. <button type="button" class="link" onClick={() => go({ view: "functions" })}>All functions</button></p>}
    </>
  );
}

function Spent({ data }: { data: TimeSpent }): JSX.Element {
  const of = (kind: string) => data.parts.filter((p) => p.kind === kind).reduce((sum, p) => sum + p.total, 0);
  const most = [...data.parts].sort((a, b) => b.total - a.total)[0];
  return (
    <div class="scroll time-main" tabIndex={0} role="region" aria-label="Where the time went">
      <div class="time-head">
        <span><b>{count(data.packets)}</b> packets, <b>{span(data.path.total)}</b> of path</span>
        {!data.points_only && <span><b>{span(of("layer"))}</b> in functions</span>}
        <span><b>{span(of("wait"))}</b> waiting</span>
        {most && <span>most: <b>{most.kind === "card" ? "at the card" : seen(most.name)}</b> {share(most.share)}</span>}
      </div>
      <div class="segments" aria-hidden="true">
        {barOf(data.parts).map(({ row, part }) => (
          <i key={`${row.kind} ${row.name}`} class={`seg ${look(row)}`} style={{ flex: `${part} 0 0` }} title={`${row.name}: ${span(row.total)}, ${share(row.share)} of the path`} />
        ))}
      </div>
      <Parts data={data} />
      <h2>Functions by self time</h2>
      <Functions data={data} />
      {data.probe_cost_ns !== null && !data.points_only && <p class="muted">Probes cost about {shortSpan(data.probe_cost_ns)} a run, contained in these times; kpat time --subtract-cost estimates without it.</p>}
      {!data.pauses && !data.points_only && <p class="muted">The log does not tell when tasks were off the CPU: that time is self time here.</p>}
    </div>
  );
}

function Charts(): JSX.Element {
  const [where, time] = [asked(at.where.value, at.time.value), at.time.value];
  const [from, to] = time ?? [null, null];
  const question = useQuestion<Latency>("latency", { where: at.where.value, bins: BINS, from: from && Math.round(from), to: to && Math.round(to) });
  return (
    <Answer asked={question} what="Reading the path times">
      {(data) =>
        data.packets ? (
          <div class="scroll charts" tabIndex={0} role="region" aria-label="Path times">
            <OverTime data={data} />
            <Histogram data={data} where={where} />
          </div>
        ) : (
          <NoPackets where={where} />
        )
      }
    </Answer>
  );
}

function Whole(): JSX.Element {
  const where = asked(at.where.value, at.time.value);
  const question = useQuestion<TimeSpent>("time", { where });
  const found = question.state.value.value;
  if (found && !found.packets && !question.state.value.old) return <NoPackets where={where} />;
  // Both are asked at once: the charts are there long before all calls are added up.
  const spent = <Answer asked={question} what="Adding up where the time went">{(data) => <Spent data={data} />}</Answer>;
  return <Split name="time" direction="row" start={0.6} first={spent} second={<Charts />} />;
}

export const time: View = {
  id: "time",
  title: "Time",
  words: "Where the time went: layers, waits, functions; latency over time",
  filtered: true,
  docked: true,
  draw: Whole,
};
