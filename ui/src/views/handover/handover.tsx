// Why the host was without a network: all handovers, and one of them phase by phase, with what was heard, done and exchanged on lanes beneath.

import { useSignal } from "@preact/signals";
import type { JSX } from "preact";
import { log } from "../../api/log.ts";
import { useQuestion } from "../../api/question.ts";
import type { HandoverDetail, HandoverLine, Handovers } from "../../api/types.ts";
import { at, go } from "../../base/place.ts";
import { many, moment, seen, share, span } from "../../base/units.ts";
import { Share, Span } from "../../widgets/marks.tsx";
import { Split } from "../../widgets/split.tsx";
import { Answer, Empty } from "../../widgets/states.tsx";
import type { View } from "../view.ts";
import { COLORS } from "./model.ts";
import { Picture } from "./picture.tsx";
import "./handover.css";

function List({ data, current, choose }: { data: Handovers; current: number; choose: (n: number) => void }): JSX.Element {
  return (
    <div class="handover-list">
      <h2>{many(data.rows.length, "handover")}</h2>
      <table class="plain wide">
        <thead><tr><th class="right">#</th><th class="right">Time s</th><th>Kind</th><th>Cause</th><th class="right">In all</th><th class="right">Without data</th><th>Mostly</th></tr></thead>
        <tbody>
          {data.rows.map((h) => (
            <tr key={h.number} class={h.number === current ? "current" : undefined}>
              <td class="right"><button type="button" class="link" aria-current={h.number === current} onClick={() => choose(h.number)}>{h.number}</button></td>
              <td class="right">{moment(h.from, 3)}</td>
              <td>{seen(h.interface)} {h.kind}</td>
              <td>{h.cause}</td>
              <td class="right"><Span ns={h.to - h.from} /></td>
              <td class="right"><Span ns={h.without_data} /></td>
              <td>{h.longest ? `${h.longest[0]} ${share(h.longest[1])}` : ""}</td>
            </tr>
          ))}
        </tbody>
      </table>
      {data.left_out > 0 && <p class="muted">{many(data.left_out, "further one")} not shown</p>}
      {data.rows.length > 1 && (
        <>
          <h2>{data.together}</h2>
          {data.sums.length > 0 && <table class="plain wide">
            <thead><tr><th>Phase</th><th class="right">In</th><th class="right">Median</th><th class="right">Longest</th><th class="right">of #</th></tr></thead>
            <tbody>
              {data.sums.map((s) => (
                <tr key={s.label}>
                  <td><i class={`dot ${COLORS[s.group] ?? ""}`} aria-hidden="true" /> {s.label}</td>
                  <td class="right">{s.handovers}</td>
                  <td class="right"><Span ns={s.median} /></td>
                  <td class="right"><Span ns={s.max} /></td>
                  <td class="right"><button type="button" class="link" onClick={() => choose(s.longest)}>{s.longest}</button></td>
                </tr>
              ))}
            </tbody>
          </table>}
        </>
      )}
    </div>
  );
}

function Facts({ line }: { line: HandoverLine }): JSX.Element {
  const way = line.old && line.new && line.old !== line.new ? `${line.old} → ${line.new}` : line.new || line.old;
  return (
    <dl class="handover-facts">
      {way && <div><dt>Access point</dt><dd>{seen(way)}</dd></div>}
      <div><dt>In all</dt><dd>{span(line.to - line.from)}; {line.ended}</dd></div>
      {line.without_data !== null && <div><dt>Without data</dt><dd>{span(line.without_data)}</dd></div>}
      {line.link !== null && (
        <div>
          <dt>Link-down to link-up</dt>
          <dd>{span(line.link)}{line.search !== null && line.search <= line.link && `; until the authentication ${span(line.search)}, ${share(line.search / Math.max(1, line.link))} of it`}</dd>
        </div>
      )}
    </dl>
  );
}

function Detail({ h }: { h: HandoverDetail }): JSX.Element {
  const open = useSignal<number | null>(null);
  return (
    <div class="handover-detail">
      <h2>Handover {h.line.number}: {seen(h.line.interface)} {h.line.kind}, {h.line.cause}</h2>
      <Facts line={h.line} />
      {(log.value?.counts.packets ?? 0) > 0 && (
        <p><button type="button" class="button small" onClick={() => go({ view: "packets", time: [Math.max(0, h.line.from), Math.max(1, h.line.to)] })}>Packets in its time</button></p>
      )}
      {h.refusals.length > 0 && <p class="muted">Failed attempts: {h.refusals.map(seen).join("; ")}</p>}
      {h.loss !== null && <p class="warning" role="note">{h.loss}</p>}
      {h.marks_left_out > 0 && <p class="muted">{many(h.marks_left_out, "mark")} of its middle not shown</p>}
      {h.gap && <p>{seen(h.gap.words)}</p>}
      <Picture key={h.line.number} h={h} />
      <table class="plain wide">
        <thead><tr><th>Phase</th><th class="right">At s</th><th class="right">Time</th><th>Share</th><th>Began by</th><th>Known by</th></tr></thead>
        <tbody>
          {h.phases.map((p, i) => (
            <>
              <tr key={i} class={open.value === i ? "open" : undefined}>
                <td title={p.meaning}>
                  {p.steps.length > 1 ? (
                    <button type="button" class="phase-name" aria-expanded={open.value === i} onClick={() => (open.value = open.value === i ? null : i)}>
                      <span class="twist">{open.value === i ? "▾" : "▸"}</span>
                      <i class={`dot ${COLORS[p.group] ?? ""}`} aria-hidden="true" /> {p.label}
                    </button>
                  ) : (
                    <span class="handover-phase"><i class={`dot ${COLORS[p.group] ?? ""}`} aria-hidden="true" /> {p.label}</span>
                  )}
                </td>
                <td class="right">{moment(p.from - h.line.from, 3)}</td>
                <td class="right"><Span ns={p.to - p.from} /></td>
                <td><Share of={p.share} /></td>
                <td>{seen(p.begin)}</td>
                <td class="muted">{p.evidence}</td>
              </tr>
              {p.why && <tr key={`${i} why`}><td /><td colSpan={5} class="handover-why">{p.why}</td></tr>}
              {open.value === i && (
                <tr key={`${i} steps`}>
                  <td />
                  <td colSpan={5}>
                    <ul class="handover-steps">
                      {p.steps.map((x, n) => <li key={n}><span class="right">{moment(x.t - h.line.from, 3)}</span> <Span ns={x.time} /> {seen(x.words)}</li>)}
                    </ul>
                  </td>
                </tr>
              )}
            </>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function Chosen({ number }: { number: number }): JSX.Element {
  const question = useQuestion<HandoverDetail>("handover", { number });
  return <Answer asked={question} what="Reading the handover">{(h) => <Detail h={h} />}</Answer>;
}

function Whole(): JSX.Element {
  const question = useQuestion<Handovers>("handovers");
  return (
    <Answer asked={question} what="Looking for handovers">
      {(data) => {
        if (!data.rows.length)
          return (
            <Empty title="No handover">{(data.none ?? "").replace(/^./, (first) => first.toUpperCase())}.</Empty>
          );
        // The longest is what one looks for.
        const longest = data.rows.reduce((a, b) => (b.to - b.from > a.to - a.from ? b : a));
        const number = data.rows.some((h) => h.number === at.handover.value) ? at.handover.value! : longest.number;
        return (
          <Split name="handover" direction="row" start={0.42}
            first={<List data={data} current={number} choose={(n) => go({ handover: n })} />}
            second={<Chosen number={number} />} />
        );
      }}
    </Answer>
  );
}

export const handover: View = {
  id: "handover",
  title: "Handover",
  words: "Why the host was without a network, phase by phase",
  filtered: false,
  docked: false,
  draw: Whole,
};
