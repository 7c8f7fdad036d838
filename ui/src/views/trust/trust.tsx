// What a careful reader needs to trust the rest: how the clocks relate and how surely, what was lost, what measuring
// cost, whether the packets add up.

import type { JSX } from "preact";
import { useMemo } from "preact/hooks";
import { log } from "../../api/log.ts";
import { useQuestion } from "../../api/question.ts";
import type { Clock, Loss, Residuals, Trust } from "../../api/types.ts";
import { Scale } from "../../base/scale.ts";
import { count, many, moment, seen, share, shortSpan, span } from "../../base/units.ts";
import { go } from "../../base/place.ts";
import { Canvas, type Pen } from "../../widgets/canvas.tsx";
import { Warning } from "../../widgets/marks.tsx";
import { Answer } from "../../widgets/states.tsx";
import { hatch } from "../../widgets/strip.tsx";
import { drawTimes, useTimeAxis } from "../../widgets/timeaxis.tsx";
import type { View } from "../view.ts";
import { band, bent, boundAt, bySum } from "./model.ts";
import "./trust.css";

const GUTTER = 64;
const RIGHT = 12;
const LEAST_NS = 1000;
const SIDES = ["side not known", "received", "transmitted"];

function ResidualPlot({ residuals, clocks, losses, length }: { residuals: Residuals; clocks: Clock[]; losses: Loss[]; length: number }): JSX.Element {
  const mine = clocks.filter((c) => c.capture === residuals.capture);
  const axis = bent(residuals, mine);
  const whole = useMemo((): [number, number] => [0, length], [length]);
  const time = useTimeAxis({ whole, least: LEAST_NS, left: GUTTER, right: RIGHT, scrolls: true });
  const paint = (pen: Pen) => {
    const { g, width, height, color } = pen;
    const x = time.scaleOf(width);
    const bentY = new Scale(axis.bend(axis.low), axis.bend(axis.high), height - 26, 12);
    const y = (ns: number) => bentY.at(axis.bend(ns));
    g.clearRect(0, 0, width, height);
    g.font = `10px ${color("sans")}`;
    const inside = (draw: () => void) => {
      g.save();
      g.beginPath();
      g.rect(GUTTER, 0, width - GUTTER - RIGHT + 4, height);
      g.clip();
      draw();
      g.restore();
    };
    inside(() => losses.forEach((l) => hatch(g, x.at(l.from), 0, Math.max(2, x.at(l.to) - x.at(l.from)), 7, color("loss"))));
    // Within the bound, no order of wire and kernel is sure.
    g.fillStyle = color("bound-band");
    inside(() => {
      for (const c of mine) {
        const [a, b] = [x.at(c.from ?? 0), x.at(c.to ?? length)];
        g.fillRect(a, y(c.bound_ns), Math.max(1, b - a), y(-c.bound_ns) - y(c.bound_ns));
      }
    });
    g.textBaseline = "middle";
    axis.marks.forEach((v) => {
      g.strokeStyle = v === 0 ? color("line-strong") : color("line");
      g.beginPath();
      g.moveTo(GUTTER, Math.round(y(v)) + 0.5);
      g.lineTo(width - RIGHT, Math.round(y(v)) + 0.5);
      g.stroke();
      g.fillStyle = color("muted");
      g.textAlign = "right";
      g.fillText(v === 0 ? "0" : shortSpan(v), 58, y(v));
    });
    g.textAlign = "left";
    drawTimes(pen, (t) => x.at(t), time.view.value, [0, width], { words: height - 8, line: [height - 18, height - 15], every: 130, end: width, moved: true });
    inside(() => {
      for (let i = 0; i < residuals.t.length; i++) {
        const v = residuals.residual_ns[i]!;
        const side = residuals.side[i]!;
        const px = x.at(residuals.t[i]!);
        const py = y(v);
        g.fillStyle = g.strokeStyle = color(side === 1 ? "side-rx" : side === 2 ? "side-tx" : "muted");
        // Shape says the side as well: triangles point away from what cannot be.
        g.beginPath();
        if (side === 1) (g.moveTo(px - 3, py - 2.5), g.lineTo(px + 3, py - 2.5), g.lineTo(px, py + 3));
        else if (side === 2) (g.moveTo(px - 3, py + 2.5), g.lineTo(px + 3, py + 2.5), g.lineTo(px, py - 3));
        else g.arc(px, py, 2, 0, 7);
        g.closePath();
        g.globalAlpha = 0.75;
        g.fill();
        g.globalAlpha = 1;
      }
      time.drawBrush(pen, 0, height - 26);
    });
  };
  const bounds = mine.map((c) => boundAt(c)).join("; ");
  return (
    <figure class="residuals">
      <figcaption>
        <span><b>{seen(residuals.capture)}</b>: frame time less kernel time, {residuals.t.length < residuals.all ? `${count(residuals.t.length)} of ${many(residuals.all, "match", "matches")}` : many(residuals.all, "match", "matches")}</span>
        <span class="keys">
          <span><i class="key-rx" aria-hidden="true">▼</i> received</span>
          <span><i class="key-tx" aria-hidden="true">▲</i> transmitted</span>
          <span><i class="key-band" aria-hidden="true" /> within the bound</span>
        </span>
      </figcaption>
      <div class="residuals-box">
        <Canvas
          paint={paint}
          height={200}
          role="img"
          tabIndex={0}
          label={`Residuals of ${residuals.capture} over time: ${SIDES.map((s, i) => `${count(residuals.side.filter((x) => x === i).length)} ${s}`).join(", ")}; bound ${bounds}. W and S zoom, A and D or the arrows move, 0 shows everything.`}
          attach={time.attach}
          onKeyDown={(e) => time.key(e)}
          onPointerDown={time.brushBegin}
          onPointerMove={(e) => void time.brushMove(e)}
          onPointerUp={() => void time.brushEnd()}
          onDblClick={time.fit}
        />
      </div>
    </figure>
  );
}

function Clocks({ data, length }: { data: Trust; length: number }): JSX.Element {
  return (
    <section class="card wide-card">
      <h2>Clocks</h2>
      {data.clocks.length ? (
        <div class="scroll-x" tabIndex={0} role="region" aria-label="Clocks">
          <table class="plain wide">
            <thead>
              <tr>
                <th>Capture</th><th class="right">From s</th><th class="right">To s</th><th class="right" title="Added to the capture's clock it gives the device's boot clock">Offset</th>
                <th class="right" title="How far a converted time may be off">Bound</th><th class="right">Drift</th><th class="right">Matches</th><th class="right">Rejected</th><th>How</th>
              </tr>
            </thead>
            <tbody>
              {data.clocks.map((c, i) => (
                <tr key={i}>
                  <td>{seen(c.capture)}</td>
                  <td class="right">{c.from === null ? "–" : moment(c.from, 3)}</td>
                  <td class="right">{c.to === null ? "–" : moment(c.to, 3)}</td>
                  <td class="right">{(Number(BigInt(c.offset_ns) / 1000n) / 1e6).toFixed(6).replace("-", "−")} s</td>
                  <td class="right"><b>± {span(c.bound_ns)}</b></td>
                  <td class="right">{(c.drift_ppb / 1000).toFixed(3).replace("-", "−")} ± {(c.drift_bound_ppb / 1000).toFixed(3)} ppm</td>
                  <td class="right">{count(c.received)} rx, {count(c.transmitted)} tx</td>
                  <td class="right">{count(c.rejected)}</td>
                  <td class="words">{seen(c.words || c.method)}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      ) : (
        <p class="muted">No capture was joined to this log: there is one clock, the device's own.</p>
      )}
      {data.residuals.filter((r) => r.t.length).map((r) => (
        <ResidualPlot key={r.capture} residuals={r} clocks={band(data.clocks)} losses={data.losses} length={length} />
      ))}
    </section>
  );
}

function Losses({ losses }: { losses: Loss[] }): JSX.Element {
  return (
    <section class="card">
      <h2>Losses</h2>
      {losses.length ? (
        <div class="scroll-x" tabIndex={0} role="region" aria-label="Losses">
          <table class="plain">
            <thead><tr><th class="right">Lost</th><th>Cause</th><th class="right">CPU</th><th class="right">From s</th><th class="right">To s</th></tr></thead>
            <tbody>
              {bySum(losses).map((c) => (
                <>
                  {c.losses.length > 1 && (
                    <tr key={c.cause} title={c.advice}>
                      <td class="right"><b>{count(c.count)}</b></td><td><b>{seen(c.cause)}</b></td><td class="right">all</td><td class="right">{moment(c.from)}</td><td class="right">{moment(c.to)}</td>
                    </tr>
                  )}
                  {c.losses.map((l, i) => (
                    <tr key={`${c.cause} ${i}`} title={l.advice}>
                      <td class={`right${c.losses.length > 1 ? " muted" : ""}`}>{count(l.count)}</td><td>{seen(l.cause)}</td><td class="right">{l.cpu ?? "all"}</td><td class="right">{moment(l.from)}</td><td class="right">{moment(l.to)}</td>
                    </tr>
                  ))}
                </>
              ))}
            </tbody>
          </table>
          {[...new Set(losses.map((l) => l.advice).filter(Boolean))].map((a) => <p key={a} class="muted">{seen(a)}</p>)}
        </div>
      ) : (
        <p class="good-words"><span class="glyph good" aria-hidden="true">✓</span> Nothing was lost. Every way to lose a record is counted.</p>
      )}
    </section>
  );
}

function HowFar({ data }: { data: Trust }): JSX.Element | null {
  const worst = data.parts.reduce<Trust["parts"][number] | null>((w, p) => (w === null || p.ppm < w.ppm ? p : w), null);
  if (worst === null) return null;
  return (
    <section class="card wide-card">
      <h2>How far to trust this log</h2>
      <p class="figure-line">
        <b class={worst.good < worst.all ? "figure bad-number" : "figure"}>{share(worst.ppm / 1e6)}</b> <span>{seen(worst.words)}</span>
      </p>
      <p class="muted">The figure is the worst of these:</p>
      <ul class="unexplained">
        {data.parts.map((p) => (
          <li key={p.part}><b class={p.good < p.all ? "bad-number" : undefined}>{share(p.ppm / 1e6)}</b> {seen(p.words)}</li>
        ))}
      </ul>
    </section>
  );
}

function Conservation({ data }: { data: Trust }): JSX.Element {
  const c = data.conservation;
  return (
    <section class="card wide-card">
      <h2>Do the packets add up?</h2>
      <p>{share(c.explained_ppm / 1e6)} of the packets are explained.</p>
      {c.words && <p class="muted">{seen(c.words)}</p>}
      <div class="scroll-x" tabIndex={0} role="region" aria-label="Balance by interface">
        <table class="plain wide">
          <thead>
            <tr>
              <th>Interface</th><th class="right">Given to send</th><th class="right">Came in</th><th class="right">= sent on</th><th class="right">+ delivered</th><th class="right">+ dropped</th><th class="right">+ merged</th>
              <th class="right">+ in flight</th><th class="right">+ lost</th><th class="right">+ unexplained</th>
            </tr>
          </thead>
          <tbody>
            {c.interfaces.map((i) => (
              <tr key={i.name}>
                <td>{seen(i.name)}</td>
                {[i.given, i.came, i.out, i.delivered, i.dropped, i.merged, i.in_flight, i.lost].map((n, k) => <td key={k} class={`right${n ? "" : " zero"}`}>{count(n)}</td>)}
                <td class={`right${i.unexplained ? " bad-number" : " zero"}`}>{count(i.unexplained)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {c.unexplained.length > 0 && (
        <details>
          <summary>{many(c.unexplained.length, "packet")} that nothing explains</summary>
          <ul class="unexplained">
            {c.unexplained.slice(0, 200).map((u) => (
              <li key={u.packet}><button type="button" class="link" onClick={() => go({ packet: u.packet })}>packet {u.packet}</button> {seen(u.words)}</li>
            ))}
          </ul>
        </details>
      )}
    </section>
  );
}

function Cost({ data }: { data: Trust }): JSX.Element {
  return (
    <section class="card">
      <h2>What measuring cost</h2>
      {data.cost ? (
        <dl class="pairs">
          {data.cost.rows.map(([k, v]) => <div key={k}><dt>{seen(k)}</dt><dd>{seen(v)}</dd></div>)}
        </dl>
      ) : (
        <p class="muted">The log does not say: the recording ended before it could be counted, or the kernel does not count it.</p>
      )}
      {data.closure && <p><span class="glyph good" aria-hidden="true">Σ</span> {seen(data.closure.words)}</p>}
    </section>
  );
}

function Source(): JSX.Element | null {
  const i = log.value;
  if (!i) return null;
  const wall = i.start_wall_ns === null ? null : new Date(Number(BigInt(i.start_wall_ns) / 1000000n)).toISOString().replace("T", " ").replace("Z", " UTC");
  const rows: [string, string][] = [
    ["Host", i.host], ["Kernel", `${i.kernel} ${i.arch}`], ["Mechanism", i.mechanism], ["Profile", i.profile], ["Filter", i.filter || "none"], ["Began", wall ?? "not known"], ["Length", shortSpan(i.length_ns)], ["CPUs", String(i.cpus)],
    ["Captures", i.captures.map((c) => `${c.name}: ${count(c.matched)} of ${many(c.frames, "frame")} matched`).join("; ") || "none"],
  ];
  return (
    <section class="card">
      <h2>This log</h2>
      <dl class="pairs">{rows.map(([k, v]) => <div key={k}><dt>{k}</dt><dd>{seen(v)}</dd></div>)}</dl>
    </section>
  );
}

function Whole(): JSX.Element {
  const question = useQuestion<Trust>("trust");
  return (
    <Answer asked={question} what="Weighing the evidence">
      {(data) => (
        <div class="scroll trust" tabIndex={0} role="region" aria-label="What the log can be trusted with">
          {log.value?.notes.map((n) => <Warning key={n}>{n}</Warning>)}
          <div class="cards">
            <HowFar data={data} />
            <Clocks data={data} length={Math.max(1, log.value?.length_ns ?? 1)} />
            <Conservation data={data} />
            <Losses losses={data.losses} />
            <Cost data={data} />
            <Source />
          </div>
        </div>
      )}
    </Answer>
  );
}

export const trust: View = {
  id: "trust",
  title: "Trust",
  words: "Clocks, losses, cost: how far to trust the rest",
  filtered: false,
  docked: true,
  draw: Whole,
};
