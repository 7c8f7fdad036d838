// This log beside the one that `kpat view --compare` was given: which functions became slower, and is that sure.

import type { JSX } from "preact";
import { useQuestion } from "../../api/question.ts";
import type { Compare, CompareRow } from "../../api/types.ts";
import { count, seen, shortSpan } from "../../base/units.ts";
import { Layer, Name, Span } from "../../widgets/marks.tsx";
import { Answer, Empty } from "../../widgets/states.tsx";

/** The 95 % interval of a change on an axis that all rows share, zero in the middle. */
function Interval({ row, most }: { row: CompareRow; most: number }): JSX.Element {
  if (row.low_ns === null || row.high_ns === null) return <span class="none">too few calls</span>;
  const [w, h] = [180, 16];
  // A root scale keeps small changes visible beside large ones.
  const x = (ns: number) => w / 2 + (Math.sign(ns) * Math.sqrt(Math.abs(ns) / (most || 1)) * (w - 8)) / 2;
  const sure = row.low_ns > 0 || row.high_ns < 0;
  const words = `${shortSpan(row.low_ns)} to ${shortSpan(row.high_ns)}`;
  return (
    <svg class={`interval ${!sure ? "unsure" : row.low_ns > 0 ? "slower" : "faster"}`} width={w} height={h} role="img" aria-label={`95 % interval ${words}`}>
      <title>{words}</title>
      <line x1={w / 2} x2={w / 2} y1={1} y2={h - 1} class="zero" />
      <line x1={x(row.low_ns)} x2={x(row.high_ns)} y1={h / 2} y2={h / 2} class="range" />
      {[row.low_ns, row.high_ns].map((v, i) => (
        <line key={i} x1={x(v)} x2={x(v)} y1={4} y2={h - 4} class="range" />
      ))}
    </svg>
  );
}

function Names({ title, names }: { title: string; names: string[] }): JSX.Element | null {
  if (!names.length) return null;
  return (
    <p class="pad">
      <b>{title}</b>{" "}
      {names.map((n, i) => (
        <span key={n}>{i > 0 && ", "}<Name>{n}</Name></span>
      ))}
    </p>
  );
}

export function Comparison(): JSX.Element {
  const question = useQuestion<Compare>("compare");
  return (
    <Answer asked={question} what="Comparing the two logs">
      {(c) => {
        if (!c.rows.length && !c.appeared.length && !c.vanished.length) return <Empty title="The logs have no function in common" />;
        const most = Math.max(1, ...c.rows.flatMap((r) => [Math.abs(r.low_ns ?? 0), Math.abs(r.high_ns ?? 0)]));
        return (
          <div class="scroll" tabIndex={0} role="region" aria-label="Comparison">
            <p class="pad muted">A is this log, B is {seen(c.other)}. Self time per call; positive: slower in B. The bar is the 95 % interval of the difference of the medians; where it holds zero, nothing is shown.</p>
            <table class="plain wide">
              <thead>
                <tr>
                  <th>Function</th><th>Layer</th><th class="right">Calls A</th><th class="right">Median A</th><th class="right">Median B</th><th class="right">Calls B</th>
                  <th>Change, 95 % interval</th><th class="right" title="What it adds to an average packet">Per packet</th><th>Verdict</th>
                </tr>
              </thead>
              <tbody>
                {c.rows.map((r) => (
                  <tr key={r.name}>
                    <td><Name>{r.name}</Name></td>
                    <td><Layer name={r.layer} /></td>
                    <td class="right">{r.a ? count(r.a.calls) : "–"}</td>
                    <td class="right"><Span ns={r.a?.median} /></td>
                    <td class="right"><Span ns={r.b?.median} /></td>
                    <td class="right">{r.b ? count(r.b.calls) : "–"}</td>
                    <td><Interval row={r} most={most} /></td>
                    <td class="right">{r.effect_ns > 0 ? "+" : ""}<Span ns={r.effect_ns} /></td>
                    <td>{seen(r.verdict)}{!r.probed && <span class="tag" title="One of the logs did not probe it">not probed</span>}</td>
                  </tr>
                ))}
              </tbody>
            </table>
            <Names title="Only in B:" names={c.appeared} />
            <Names title="Only in A:" names={c.vanished} />
          </div>
        );
      }}
    </Answer>
  );
}
