// A frame for which no packet was found: why, as far as the log can tell, and its headers.

import type { JSX } from "preact";
import { useEffect } from "preact/hooks";
import { useQuestion } from "../../api/question.ts";
import type { WireFrame } from "../../api/types.ts";
import { go } from "../../base/place.ts";
import { NONE, bytes, moment, seen } from "../../base/units.ts";
import { Bound, Protocol, Sure } from "../../widgets/marks.tsx";
import { Answer } from "../../widgets/states.tsx";
import { Layers, Section } from "./parts.tsx";
import { shownAt } from "./shown.ts";

function wall(ns: string): string {
  const whole = BigInt(ns);
  const text = new Date(Number(whole / 1_000_000n)).toISOString().replace("T", " ").replace(/\.\d+Z$/, "");
  return `${text}.${String(whole % 1_000_000_000n).padStart(9, "0")} UTC`;
}

function Body({ frame, dock }: { frame: WireFrame; dock: boolean }): JSX.Element {
  useEffect(() => {
    shownAt.value = frame.t;
    return () => (shownAt.value = null);
  }, [frame]);
  const flow = frame.flow;
  return (
    <article class="packet" aria-label={`Frame ${frame.number}`}>
      <header class="packet-head">
        <h2>Frame {frame.number}</h2>
        <Protocol name={frame.proto} />
        <span class="mono">{seen(frame.src)} → {seen(frame.dst)}</span>
        <span class="packet-info" title={frame.info}>{seen(frame.info)}</span>
        <span class="spring" />
        <dl class="facts">
          <div><dt>capture</dt><dd>{seen(frame.capture)}</dd></div>
          <div><dt>length</dt><dd>{bytes(frame.len)}</dd></div>
        </dl>
        {dock && <button type="button" class="icon" title="Close (Escape)" aria-label="Close the frame" onClick={() => go({ frame: null })}>×</button>}
      </header>
      <div class="packet-body">
        <div class="sections" tabIndex={0} role="region" aria-label="Facts of the frame">
          {frame.packets.length > 0 ? (
            <Section title="Its packets">
              <ul class="why">
                {frame.packets.map((p) => (
                  <li key={p.id}>
                    <button type="button" class="link" onClick={() => go({ packet: p.id })}>packet {p.id}</button> {seen(p.side)}, by {seen(p.key)}, <Sure of={p.confidence} ambiguous={p.alternatives > 0} />
                  </li>
                ))}
              </ul>
            </Section>
          ) : (
            <Section title="Why it has no packet">
              <ul class="why">
                {frame.why.map((w) => <li key={w}>{seen(w)}</li>)}
              </ul>
              {flow && (
                <p class="pad">
                  <button type="button" class="button small" onClick={() => go({ view: "packets", where: flow })}>Packets between the same two</button>
                </p>
              )}
            </Section>
          )}
          <Section title="On the wire">
            <dl class="why">
              <div class="field"><dt>capture</dt><dd>{seen(frame.capture)}{frame.interface && `, interface ${seen(frame.interface)}`}</dd></div>
              <div class="field"><dt>sniffer's clock</dt><dd class="mono">{wall(frame.wall_ns)}</dd></div>
              <div class="field"><dt>since the log's start</dt><dd>{frame.t === null ? NONE : <><span class="mono">{moment(frame.t)} s</span> <Bound ns={frame.bound_ns} /></>}</dd></div>
              <div class="field"><dt>in the file</dt><dd>{frame.captured < frame.len ? `the first ${bytes(frame.captured)} of ${bytes(frame.len)}` : `all of its ${bytes(frame.len)}`}</dd></div>
            </dl>
          </Section>
          <Layers title="Headers" layers={frame.layers} none="It has no header that kpat reads." />
        </div>
      </div>
    </article>
  );
}

export function FramePane({ id, dock }: { id: string; dock: boolean }): JSX.Element {
  const asked = useQuestion<WireFrame>("frame", { frame: id });
  return (
    <Answer asked={asked} what="Reading the frame">
      {(frame) => <Body frame={frame} dock={dock} />}
    </Answer>
  );
}
