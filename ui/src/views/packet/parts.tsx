// What is known of a packet besides its calls: headers, frames on the wire, phases, lineage, where else it was seen.

import type { Signal } from "@preact/signals";
import type { JSX } from "preact";
import { useMemo } from "preact/hooks";
import type { Layer, Packet } from "../../api/types.ts";
import { at, go, START, writePlace } from "../../base/place.ts";
import { bytes, count, many, seen, span, timeOfDay } from "../../base/units.ts";
import { Bound, Name, Share, Span, Sure, phaseLayer } from "../../widgets/marks.tsx";
import { layGraph } from "./graph.ts";

export function Section(p: { title: string; aside?: string | undefined; children: preact.ComponentChildren; open?: boolean }): JSX.Element {
  return (
    <details class="section" open={p.open ?? true}>
      <summary>
        <span class="section-title">{p.title}</span>
        {p.aside && <span class="section-aside">{p.aside}</span>}
      </summary>
      {p.children}
    </details>
  );
}

export function Headers({ packet }: { packet: Packet }): JSX.Element {
  const ticks = packet.layers.some((l) => l.fields.some((f) => f.matched));
  return <Layers title="Headers" aside={ticks ? "✓ equal in a wire frame" : ""} layers={packet.layers} none="No header of this packet is in the log." />;
}

/** Protocol layers as a tree. */
export function Layers(p: { title: string; aside?: string; layers: Layer[]; none: string }): JSX.Element {
  return (
    <Section title={p.title} aside={p.aside}>
      <div class="layers">
        {p.layers.map((l, i) => (
          <details key={i} class="header" open>
            <summary>
              <b>{seen(l.name)}</b> <span class="muted">{seen(l.summary)}</span>
            </summary>
            <dl>
              {l.fields.map((f, k) => (
                <div key={k} class={f.matched ? "field matched" : "field"}>
                  <dt>{seen(f.name)}</dt>
                  <dd>
                    <span class="mono">{seen(f.value)}</span>
                    {f.changed && (
                      <span class="changed" title="Changed on its way">
                        {" → "}
                        <span class="mono">{seen(f.changed)}</span>
                      </span>
                    )}
                    {f.matched && (
                      <span class="tick" role="img" aria-label="equal in a wire frame" title="Equal in a wire frame, and what it was recognised by">
                        {" ✓"}
                      </span>
                    )}
                  </dd>
                </div>
              ))}
            </dl>
          </details>
        ))}
        {!p.layers.length && <p class="muted pad">{p.none}</p>}
      </div>
    </Section>
  );
}

export function Wire({ packet }: { packet: Packet }): JSX.Element {
  return (
    <Section title="On the wire" aside={many(packet.frames.length, "frame")}>
      {packet.frames.length ? (
        <div class="scroll-x" tabIndex={0} role="region" aria-label="Frames on the wire">
          <table class="plain">
            <thead>
              <tr>
                <th>Frame</th>
                <th>Way</th>
                <th class="right" title="On the device's clock, since the first sight of the packet">Time</th>
                <th class="right" title="How far wire and kernel time may be apart">±</th>
                <th class="right">Sure</th>
                <th class="right" title="Frame time less kernel time, by the estimated clock">Residual</th>
              </tr>
            </thead>
            <tbody>
              {packet.frames.map((f, i) => (
                <>
                <tr key={i} class="with-more">
                  <td>{seen(f.capture)}:{f.number}</td>
                  <td>{seen(f.side)}</td>
                  <td class="right">{f.t === null ? <span class="none">no clock</span> : <Span ns={f.t - packet.row.t} />}</td>
                  <td class="right"><Bound ns={f.t === null ? null : f.bound_ns} /></td>
                  <td class="right"><Sure of={f.confidence} ambiguous={f.alternatives > 0} /></td>
                  <td class="right"><Span ns={f.t === null ? null : f.residual_ns} /></td>
                </tr>
                <tr class="more">
                  <td colSpan={6}>{bytes(f.len)}, {timeOfDay(BigInt(f.wall_ns))} UTC by its clock, matched by {seen(f.key)}{f.alternatives > 0 && ` (${many(f.alternatives, "other")} possible)`}</td>
                </tr>
                </>
              ))}
            </tbody>
          </table>
        </div>
      ) : (
        <p class="muted pad">No frame in a capture was matched to it.</p>
      )}
    </Section>
  );
}

/** What its drop reason means, and where to look. */
export function Drop({ packet }: { packet: Packet }): JSX.Element | null {
  if (!packet.drop_means) return null;
  return (
    <Section title="Dropped" aside={packet.row.drop ?? undefined}>
      <p class="pad">{packet.drop_means}</p>
      <p class="pad muted">{packet.drop_look_at}</p>
    </Section>
  );
}

/** Who wrote its bytes and who read them. */
export function Ends({ packet }: { packet: Packet }): JSX.Element | null {
  if (!packet.ends.length) return null;
  const device = at.device.value;
  return (
    <Section title="Applications" aside="whose bytes it carries">
      {packet.ends.map((e) => {
        const to = (call: number | null) => writePlace({ ...START, view: "apps", socket: e.socket, call, device });
        return (
          <div key={`${e.wrote} ${e.socket}`}>
            <p class="pad">
              {e.wrote ? "Written by " : "Read by "}<b>{seen(e.process ?? "a process that is not known")}</b>{e.pid !== null && ` ${e.pid}`}, <a href={to(null)}>socket {e.socket}</a>
              {e.offset !== null ? `, from byte ${count(e.offset)} on` : e.payload ? "" : ", no bytes of an application"}
              {e.payload > 0 && e.missing > 0 && `; ${bytes(e.missing)} in no call of the log`}
            </p>
            {e.calls.length > 0 && (
              <table class="plain">
                <thead>
                  <tr><th>{e.wrote ? "Write" : "Read"}</th><th class="right" title="Since the packet was first seen">When</th><th class="right">Its bytes</th><th class="right">In this packet</th></tr>
                </thead>
                <tbody>
                  {e.calls.map((c) => (
                    <tr key={c.id}>
                      <td>{e.wrote ? <a href={to(c.id)}>{c.id}</a> : c.id}{c.error !== null && `, refused with ${c.error}`}</td>
                      <td class="right"><Span ns={c.t - packet.row.t} /></td>
                      <td class="right">{count(c.bytes)}</td>
                      <td class="right">{count(c.carried)}</td>
                    </tr>
                  ))}
                </tbody>
              </table>
            )}
            {e.all_calls > e.calls.length && <p class="muted pad">and {count(e.all_calls - e.calls.length)} more (kpat packet --json has them all)</p>}
          </div>
        );
      })}
    </Section>
  );
}

export function PhaseParts({ packet }: { packet: Packet }): JSX.Element | null {
  const total = packet.segments.reduce((sum, s) => sum + (s.to - s.from), 0);
  // Path time begins with the first sight of the packet; a phase may begin before it.
  const before = packet.segments.reduce((sum, s) => sum + Math.max(0, Math.min(s.to, packet.row.t) - s.from), 0);
  if (!packet.segments.length) return null;
  return (
    <Section title="Phases and waits" aside={before > 0 ? `${span(total)}: path time and ${span(before)} in the driver before it` : span(total)}>
      <div class="segments" aria-hidden="true">
        {packet.segments.map((s, i) => (
          <i key={i} class={s.wait ? "seg wait" : `seg l-${phaseLayer(s.phase)}`} style={{ flexGrow: String(Math.max(1, s.to - s.from)) }} title={`${s.label} ${span(s.to - s.from)}`} />
        ))}
      </div>
      <table class="plain">
        <thead>
          <tr><th>Phase</th><th class="right">Begins</th><th class="right">Time</th><th>Of the way</th></tr>
        </thead>
        <tbody>
          {packet.segments.map((s, i) => (
            <tr key={i}>
              <td><i class={s.wait ? "dot wait" : `dot l-${phaseLayer(s.phase)}`} aria-hidden="true" /> {seen(s.label)}{s.wait && <span class="tag">wait</span>}</td>
              <td class="right"><Span ns={s.from - packet.row.t} /></td>
              <td class="right"><Span ns={s.to - s.from} /></td>
              <td><Share of={(s.to - s.from) / (total || 1)} /></td>
            </tr>
          ))}
        </tbody>
      </table>
    </Section>
  );
}

const [CELL_W, CELL_H, BOX_W, BOX_H] = [206, 44, 128, 30];

export function LineageGraph({ packet }: { packet: Packet }): JSX.Element | null {
  const placed = useMemo(() => layGraph(packet.lineage), [packet]);
  if (placed.length < 2 && !packet.lineage.edges.length) return null;
  const at = new Map(placed.map((p) => [p.node.id, p]));
  const width = Math.max(...placed.map((p) => p.column)) * CELL_W + BOX_W + 8;
  const height = Math.max(...placed.map((p) => p.row)) * CELL_H + BOX_H + 8;
  const mine = `p${packet.row.id}`;
  const itself = packet.lineage.edges.filter((e) => e.from === e.to);
  const x = (c: number) => 4 + c * CELL_W;
  const y = (r: number) => 4 + r * CELL_H;
  const name = (id: string) => at.get(id)?.node.words ?? id;
  return (
    <Section title="Lineage" aside="what became of what">
      <div class="scroll-x" tabIndex={0} role="region" aria-label="Lineage">
        <svg class="graph" width={width} height={height} aria-hidden="true">
          {packet.lineage.edges.map((e, i) => {
            const [a, b] = [at.get(e.from), at.get(e.to)];
            if (!a || !b || a === b) return null;
            const [x0, y0, x1, y1] = [x(a.column) + BOX_W, y(a.row) + BOX_H / 2, x(b.column), y(b.row) + BOX_H / 2];
            return (
              <g key={i}>
                <path d={`M${x0},${y0} C${x0 + 20},${y0} ${x1 - 20},${y1} ${x1},${y1}`} />
                <text x={(x0 + x1) / 2} y={(y0 + y1) / 2 - 4}>{seen(e.kind)}</text>
              </g>
            );
          })}
          {placed.map(({ node, column, row }) => {
            const id = node.kind === "packet" ? Number(/\d+/.exec(node.id)?.[0] ?? NaN) : NaN;
            return (
              <g key={node.id} class={`node ${node.kind}${node.id === mine || id === packet.row.id ? " mine" : ""}`} onClick={() => Number.isFinite(id) && go({ packet: id })}>
                <title>{seen(node.words)}</title>
                <rect x={x(column)} y={y(row)} width={BOX_W} height={BOX_H} rx={node.kind === "frame" ? 16 : 4} />
                <text class="node-text" x={x(column) + BOX_W / 2} y={y(row) + BOX_H / 2 + 4}>{seen(node.words).slice(0, 22)}</text>
              </g>
            );
          })}
        </svg>
      </div>
      <ul class="hidden">
        {packet.lineage.edges.map((e, i) => (
          <li key={i}>{`${name(e.from)}, by ${e.kind}, became ${name(e.to)}`}</li>
        ))}
      </ul>
      {itself.length > 0 && <p class="muted pad">{itself.map((e) => `${name(e.from)}: ${seen(e.kind)}, followed under the same number`).join("; ")}</p>}
    </Section>
  );
}

export function Crossings({ packet, everywhere }: { packet: Packet; everywhere: Signal<boolean> }): JSX.Element | null {
  if (!packet.crossings.length) return null;
  return (
    <Section title="In other kernels">
      <label class="pad" title="Their calls on the same axis, as sure as the clocks allow">
        <input type="checkbox" checked={everywhere.value} onChange={(e) => (everywhere.value = e.currentTarget.checked)} /> on one axis with this one
      </label>
      <table class="plain">
        <thead>
          <tr><th>Device</th><th class="right">Packet</th><th class="right">Flight</th><th class="right">±</th></tr>
        </thead>
        <tbody>
          {packet.crossings.map((c, i) => (
            <tr key={i}>
              <td>{c.direction === "from" ? "from " : "to "}<Name>{c.device}</Name></td>
              <td class="right"><a href={`#/packet?device=${encodeURIComponent(c.device)}&packet=${c.packet}`}>{c.packet}</a></td>
              <td class="right"><Span ns={c.flight_ns} /></td>
              <td class="right"><Bound ns={c.bound_ns} /></td>
            </tr>
          ))}
        </tbody>
      </table>
    </Section>
  );
}
