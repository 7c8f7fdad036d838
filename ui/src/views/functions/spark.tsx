// A distribution as small bars over a logarithmic axis that all rows share: shifts between functions are seen at once.

import type { JSX } from "preact";
import type { FunctionRow } from "../../api/types.ts";
import { count, shortSpan } from "../../base/units.ts";
import { bucketsOf } from "./model.ts";

/** Room for a label under the axis, in pixels. */
const LABEL = 52;

interface Props {
  row: FunctionRow;
  range: [number, number];
  width: number;
  height: number;
  /** With marks and words under it. */
  large?: boolean;
}

export function Spark({ row, range, width, height, large }: Props): JSX.Element {
  const [low, high] = range;
  const step = width / Math.max(1, high - low);
  const buckets = bucketsOf(row);
  const words = buckets.map((b) => `${count(b.calls)} from ${shortSpan(2 ** b.power)}`).join(", ");
  const tall = large ? height - 16 : height;
  const at = (ns: number) => (Math.log2(Math.max(1, ns)) - low) * step;
  return (
    <svg class="spark" width={width} height={height} role="img" aria-label={`Calls by duration: ${words || "none"}`}>
      <line x1={0} x2={width} y1={tall - 0.5} y2={tall - 0.5} class="spark-base" />
      {buckets.map((b) => {
        const h = Math.max(1.5, Math.sqrt(b.part) * (tall - 2));
        return (
          <rect key={b.power} x={(b.power - low) * step + 0.5} y={tall - h} width={Math.max(1, step - 1)} height={h}>
            {large && <title>{`${count(b.calls)} calls from ${shortSpan(2 ** b.power)} to ${shortSpan(2 ** (b.power + 1))}`}</title>}
          </rect>
        );
      })}
      {row.median !== null && <line x1={at(row.median)} x2={at(row.median)} y1={0} y2={tall} class="spark-median" />}
      {large &&
        Array.from({ length: high - low + 1 }, (_, i) => low + i)
          .filter((p) => (p - low) % Math.ceil(LABEL / step) === 0)
          .map((p) => (
            <text key={p} x={(p - low) * step} y={height - 3} text-anchor={p === low ? "start" : (high - p) * step < LABEL / 2 ? "end" : "middle"}>
              {shortSpan(2 ** p)}
            </text>
          ))}
    </svg>
  );
}
