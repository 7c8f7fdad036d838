// One socket at each layer: sizes with their distribution, spacing, where its bytes waited, what held it back.

import type { JSX } from "preact";
import type { SocketDetail, SocketLayer } from "../../api/types.ts";
import { count, many, seen, share, shortSpan, size, span } from "../../base/units.ts";
import { HELD } from "./model.ts";

const WIDE = 150;
const TALL = 20;

/** Events by size, over one logarithmic axis for all layers: what became of the sizes is seen at once. */
function Sizes({ layer, most }: { layer: SocketLayer; most: number }): JSX.Element {
  const step = WIDE / (Math.log2(Math.max(2, most)) + 1);
  const full = Math.max(1, ...layer.sizes.map(([, n]) => n));
  const words = layer.sizes.map(([from, n]) => `${count(n)} from ${size(from)}`).join(", ");
  return (
    <svg class="sizes" width={WIDE} height={TALL} role="img" aria-label={`Events by size: ${words || "none"}`}>
      <line x1={0} x2={WIDE} y1={TALL - 0.5} y2={TALL - 0.5} />
      {layer.sizes.map(([from, n]) => {
        const h = Math.max(1.5, Math.sqrt(n / full) * (TALL - 2));
        const x = from < 1 ? 0 : Math.log2(from) * step;
        return (
          <rect key={from} x={x + 0.5} y={TALL - h} width={Math.max(1, step - 1)} height={h}>
            <title>{`${many(n, "event")} from ${size(from)} to below ${size(Math.max(1, from * 2))}`}</title>
          </rect>
        );
      })}
    </svg>
  );
}

function Layers({ data }: { data: SocketDetail }): JSX.Element {
  const most = Math.max(...data.layers.map((l) => l.most), 1);
  const number = (n: number | null) => (n === null ? "–" : count(n));
  return (
    <div class="scroll-x" tabIndex={0} role="region" aria-label="Sizes at each layer">
      <table class="plain wide">
        <thead>
          <tr>
            <th>Crossing</th><th class="right">Events</th><th class="right">Bytes</th><th class="right">Frames</th><th class="right">Least</th><th class="right" title="Exact to 1 in 64">Median</th>
            <th class="right">Mean</th><th class="right">Most</th><th>Sizes, logarithmic</th><th class="right" title="From one event to the next">Apart, mean</th><th class="right">Apart, median</th><th class="right">Apart, 99 %</th><th class="right">Failed</th>
          </tr>
        </thead>
        <tbody>
          {data.layers.map((l) => (
            <tr key={l.crossing}>
              <td>{l.words}</td>
              <td class="right">{count(l.events)}</td>
              <td class="right">{count(l.bytes)}</td>
              <td class="right">{l.packets ? count(l.frames) : ""}</td>
              <td class="right">{number(l.mean === null ? null : l.least)}</td>
              <td class="right">{number(l.median)}</td>
              <td class="right">{number(l.mean)}</td>
              <td class="right">{number(l.mean === null ? null : l.most)}</td>
              <td><Sizes layer={l} most={most} /></td>
              <td class="right">{l.apart_mean === null ? "–" : shortSpan(l.apart_mean)}</td>
              <td class="right">{l.apart_median === null ? "–" : shortSpan(l.apart_median)}</td>
              <td class="right">{l.apart_p99 === null ? "–" : shortSpan(l.apart_p99)}</td>
              <td class={`right${l.failed ? " bad-number" : " zero"}`}>{count(l.failed)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function Limits({ data }: { data: SocketDetail }): JSX.Element | null {
  const l = data.limits;
  if (!l || !l.known) return null;
  return (
    <section>
      <h3>What held it back</h3>
      <div class="held-bar" aria-hidden="true">
        {l.held.filter(([, ns]) => ns > 0).map(([name, ns]) => <i key={name} style={{ width: `${(ns / l.known) * 100}%`, background: `var(--${HELD[name] ?? "muted"})` }} />)}
      </div>
      <dl class="pairs">
        {l.held.map(([name, ns]) => (
          <div key={name}><dt><i class="dot" style={{ background: `var(--${HELD[name] ?? "muted"})` }} aria-hidden="true" /> {seen(name)}</dt><dd>{share(ns / l.known)}, {span(ns)}</dd></div>
        ))}
        <div><dt>the application's calls</dt><dd>{share(l.in_call / l.known)} in calls that send, {share(l.refused / l.known)} refused</dd></div>
        <div><dt>repairing losses</dt><dd>{share(l.recovery / l.known)}; {many(l.total_retrans, "segment")} sent again</dd></div>
        <div><dt>of</dt><dd>{span(l.known)} in which its state is known</dd></div>
      </dl>
    </section>
  );
}

function Waits({ data }: { data: SocketDetail }): JSX.Element | null {
  if (!data.waits.length) return null;
  return (
    <section>
      <h3>Where bytes waited</h3>
      <div class="scroll-x" tabIndex={0} role="region" aria-label="Where bytes waited">
        <table class="plain">
          <thead><tr><th>On the way</th><th class="right">Bytes</th><th class="right">Least</th><th class="right" title="Exact to 1 in 64">Median</th><th class="right">Mean</th><th class="right">99 %</th><th class="right">Most</th></tr></thead>
          <tbody>
            {data.waits.map((w) => (
              <tr key={w.leg}>
                <td>{seen(w.leg)}</td><td class="right">{count(w.bytes)}</td><td class="right">{span(w.least)}</td><td class="right">{span(w.median)}</td><td class="right">{span(w.mean)}</td><td class="right">{span(w.p99)}</td><td class="right">{span(w.most)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </section>
  );
}

export function AtEachLayer({ data }: { data: SocketDetail }): JSX.Element {
  const to = data.layers.find((l) => l.crossing === "to-device");
  const facts = [
    `IPv${data.version}`,
    data.congestion && `congestion control ${data.congestion}`,
    data.line.pid !== null && `first used by thread ${data.line.pid}`,
    data.error && `ended: ${data.error}`,
    data.cgroup !== null && `cgroup ${data.cgroup}`,
    data.netns !== null && `network namespace ${data.netns}`,
  ].filter((f): f is string => !!f);
  return (
    <div class="scroll socket-layers" tabIndex={0} role="region" aria-label="This socket at each layer">
      <p class="muted">{seen(facts.join(", "))}</p>
      <Layers data={data} />
      {data.writes_per_packet !== null && to && (
        <p>A packet carries {data.writes_per_packet.toFixed(2)} writes in the mean and becomes {(to.frames / Math.max(1, to.events)).toFixed(2)} frames.</p>
      )}
      {data.failures && <p>{data.failures}</p>}
      <div class="socket-two"><Waits data={data} /><Limits data={data} /></div>
      <p class="muted">A size is that of the application's data, without headers, wherever it crosses. Medians and shares are exact to 1 in 64; apart is between calls that moved something.</p>
    </div>
  );
}
