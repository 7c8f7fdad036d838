// Runs of this log's kind beside those that `kpat view --compare` was given: what became slower, and is that sure.

import type { JSX } from "preact";
import { useQuestion } from "../../api/question.ts";
import type { Compare, CompareRow } from "../../api/types.ts";
import { count, seen, shortSpan } from "../../base/units.ts";
import { Layer, Name, Span } from "../../widgets/marks.tsx";
import { Answer, Empty } from "../../widgets/states.tsx";
import { onAxis, perCent, widest } from "./model.ts";

const [WIDTH, HEIGHT] = [200, 16];

/** A row's ratio on an axis that all rows share, with its interval where runs give one; equal in the middle. */
function Ratio({ row, most, beside }: { row: CompareRow; most: number; beside: number }): JSX.Element {
  if (row.ratio === null) return <span class="none">on one side only</span>;
  const x = (ratio: number) => WIDTH / 2 + (onAxis(ratio, most) * (WIDTH - 8)) / 2;
  const verdict = row.verdict === "slower" || row.verdict === "faster" ? row.verdict : "unsure";
  const at = row.tested ?? row.ratio;
  const range = row.low !== null && row.high !== null ? `, 97 % between ${perCent(row.low)} and ${perCent(row.high)}` : ", one run or too few: no interval";
  const words = `${perCent(at)}${range}`;
  return (
    <svg class={`interval ${verdict}`} width={WIDTH} height={HEIGHT} role="img" aria-label={words}>
      <title>{words}</title>
      <line x1={WIDTH / 2} x2={WIDTH / 2} y1={1} y2={HEIGHT - 1} class="zero" />
      {row.tested === null && beside !== 1 && <line x1={x(beside)} x2={x(beside)} y1={1} y2={HEIGHT - 1} class="common" />}
      {row.low !== null && row.high !== null && (
        <>
          <line x1={x(row.low)} x2={x(row.high)} y1={HEIGHT / 2} y2={HEIGHT / 2} class="range" />
          {[row.low, row.high].map((v, i) => (
            <line key={i} x1={x(v)} x2={x(v)} y1={4} y2={HEIGHT - 4} class="range" />
          ))}
        </>
      )}
      <circle cx={x(at)} cy={HEIGHT / 2} r={3} class="at" />
    </svg>
  );
}

const TITLES: [kind: string, title: string][] = [["path", "Per packet"], ["layer", "Layers, per packet"], ["wait", "Waits"], ["function", "Functions, self time per call"]];

function Rows({ rows, most, beside, title }: { rows: CompareRow[]; most: number; beside: number; title: string }): JSX.Element | null {
  if (!rows.length) return null;
  return (
    <tbody>
      <tr><th colSpan={9} scope="rowgroup" class="group">{title}</th></tr>
      {rows.map((r) => (
        <tr key={r.name}>
          <td><Name>{r.name}</Name></td>
          <td><Layer name={r.layer} /></td>
          <td class="right">{r.a ? count(r.a.count) : "–"}</td>
          <td class="right"><Span ns={r.a?.mean ?? null} /></td>
          <td class="right"><Span ns={r.b?.mean ?? null} /></td>
          <td class="right">{r.b ? count(r.b.count) : "–"}</td>
          <td><Ratio row={r} most={most} beside={beside} /> <span class="muted">{r.ratio === null ? "" : perCent(r.ratio)}</span></td>
          <td class="right" title={`${shortSpan(r.by_count_ns)} because there are more or fewer`}>{r.by_time_ns > 0 ? "+" : ""}<Span ns={r.by_time_ns} /></td>
          <td>{seen(r.verdict)}{!r.probed && <span class="tag" title="Not probed in all runs: it may have been called where it was not seen">not probed</span>}</td>
        </tr>
      ))}
    </tbody>
  );
}

export function Comparison(): JSX.Element {
  const question = useQuestion<Compare>("compare");
  return (
    <Answer asked={question} what="Comparing the runs">
      {(c) => {
        if (!c.rows.length) return <Empty title="The logs have nothing in common" />;
        const most = widest(c.rows);
        return (
          <div class="scroll" tabIndex={0} role="region" aria-label="Comparison">
            <p class="pad muted">
              A is this log{c.runs[0] > 1 ? ` and ${c.runs[0] - 1} more` : ""}, B is {c.other.map(seen).join(", ")}. Means, over runs the geometric one; difference, sign and verdict all go by them.
              The axis is logarithmic from 1 % on, right is slower in B; functions and layers are drawn beside the common factor where runs tell it from chance.
            </p>
            <ul class="pad remarks">
              {c.remarks.map((r) => <li key={r.words} class={r.warning ? "warning" : "muted"}>{seen(r.words)}</li>)}
            </ul>
            <table class="plain wide">
              <thead>
                <tr>
                  <th>Row</th><th>Layer</th><th class="right">n A</th><th class="right">Mean A</th><th class="right">Mean B</th><th class="right">n B</th>
                  <th>Change</th><th class="right" title="What an average packet has more of it because each takes longer">Per packet</th><th>Verdict</th>
                </tr>
              </thead>
              {TITLES.map(([kind, title]) => <Rows key={kind} rows={c.rows.filter((r) => r.kind === kind)} most={most} beside={c.beside} title={title} />)}
            </table>
          </div>
        );
      }}
    </Answer>
  );
}
