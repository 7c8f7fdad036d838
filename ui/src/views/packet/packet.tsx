// Everything known of one packet: its way in time, its calls, its headers, its frames. Stands alone or beside a list.

import { signal, useSignal } from "@preact/signals";
import type { JSX } from "preact";
import { useEffect, useMemo } from "preact/hooks";
import { ask, device } from "../../api/ask.ts";
import { clockAt, log } from "../../api/log.ts";
import { useQuestion } from "../../api/question.ts";
import type { Packet } from "../../api/types.ts";
import { at, go } from "../../base/place.ts";
import { many, seen } from "../../base/units.ts";
import { Protocol, Span, Verdict, Warning } from "../../widgets/marks.tsx";
import { Split } from "../../widgets/split.tsx";
import { Answer, Empty, NoPackets } from "../../widgets/states.tsx";
import type { View } from "../view.ts";
import { Calls } from "./calls.tsx";
import { FramePane } from "./frame.tsx";
import { Crossings, Drop, Ends, Headers, LineageGraph, PhaseParts, Wire } from "./parts.tsx";
import { shownAt } from "./shown.ts";
import { Timeline, timelineHeight } from "./timeline.tsx";
import { neighbours, whole, type Neighbour } from "./whole.ts";
import "./packet.css";

function Head({ packet, dock }: { packet: Packet; dock: boolean }): JSX.Element {
  const r = packet.row;
  return (
    <header class="packet-head">
      <h2>Packet {r.id}</h2>
      <Protocol name={r.proto} />
      <span class="mono">{seen(r.src)} → {seen(r.dst)}</span>
      <span class="packet-info" title={r.info}>{seen(r.info)}</span>
      <span class="spring" />
      <dl class="facts">
        <div><dt>verdict</dt><dd><Verdict verdict={r.verdict} drop={r.drop} /></dd></div>
        {(r.if_in || r.if_out) && <div><dt>in → out</dt><dd class="mono">{seen(r.if_in ?? "·")} → {seen(r.if_out ?? "·")}</dd></div>}
        {clockAt(r.t) && <div><dt>seen</dt><dd title={`${clockAt(r.t, true)} UTC`}>{clockAt(r.t)} UTC</dd></div>}
        <div><dt>path</dt><dd><Span ns={r.path_ns} /></dd></div>
        {r.calls === 0 && r.points > 0 ? (
          <div><dt>tracepoints</dt><dd>{r.points}</dd></div>
        ) : (
          <>
            <div><dt>in functions</dt><dd><Span ns={r.kernel_ns} /></dd></div>
            <div><dt>calls</dt><dd>{r.calls}</dd></div>
          </>
        )}
        {packet.process && <div><dt>process</dt><dd>{seen(packet.process.comm)} {packet.process.tgid !== packet.process.pid && `${packet.process.tgid}/`}{packet.process.pid}</dd></div>}
      </dl>
      {dock && (
        <>
          <button type="button" class="icon" title="Open alone (Enter in the list)" aria-label="Open the packet alone" onClick={() => go({ view: "packet" })}>⤢</button>
          <button type="button" class="icon" title="Close (Escape)" aria-label="Close the packet" onClick={() => go({ packet: null })}>×</button>
        </>
      )}
    </header>
  );
}

/** Are other kernels' parts of the way shown, too? */
const everywhere = signal(true);

/** The packet with what it was in other kernels, once that is known. */
function useWhole(packet: Packet): Packet {
  const others = useSignal<{ of: Packet; found: [Neighbour, Packet][] } | null>(null);
  const name = device.value ?? log.value?.device ?? "";
  useEffect(() => {
    if (!packet.crossings.length || !everywhere.value) return;
    let left = false;
    neighbours(packet, name, (n) => ask<Packet>("packet", { id: n.packet, device: n.device })).then(
      (found) => left || (others.value = { of: packet, found }),
      // What another kernel has is missing then; the packet is there.
      () => undefined,
    );
    return () => void (left = true);
  }, [packet, everywhere.value]);
  const found = everywhere.value && others.value?.of === packet ? others.value.found : null;
  return useMemo(() => (found ? whole(packet, name, found) : packet), [packet, found]);
}

function Body({ packet, dock }: { packet: Packet; dock: boolean }): JSX.Element {
  const func = at.func.value;
  const chosen = useSignal<number | null>(null);
  useEffect(() => {
    shownAt.value = packet.row.t;
    return () => (shownAt.value = null);
  }, [packet]);
  useEffect(() => {
    chosen.value = (func !== null ? packet.calls.find((c) => c.func === func)?.id : undefined) ?? null;
  }, [packet, func]);
  const way = useWhole(packet);
  const lost = packet.losses.reduce((sum, l) => sum + l.count, 0);
  return (
    <article class="packet" aria-label={`Packet ${packet.row.id}`}>
      <Head packet={packet} dock={dock} />
      {lost > 0 && <Warning>{`${many(lost, "record")} of the log ${lost === 1 ? "was" : "were"} lost while this packet lived (${packet.losses.map((l) => l.cause).join(", ")}): calls may be missing.`}</Warning>}
      <div class="packet-body">
        <Split
          name={dock ? "dock" : "packet"}
          direction="row"
          start={0.64}
          first={
            <Split name={dock ? "dock-time" : "packet-time"} direction="column" start={0.46} most={Math.max(150, timelineHeight(way))} first={<Timeline packet={way} chosen={chosen} />} second={<Calls packet={way} chosen={chosen} func={func} />} />
          }
          second={
            <div class="sections" tabIndex={0} role="region" aria-label="Facts of the packet">
              <Drop packet={packet} />
              <Ends packet={packet} />
              <Wire packet={packet} />
              <Headers packet={packet} />
              <PhaseParts packet={packet} />
              <LineageGraph packet={packet} />
              <Crossings packet={packet} everywhere={everywhere} />
            </div>
          }
        />
      </div>
    </article>
  );
}

export function PacketPane({ dock }: { dock: boolean }): JSX.Element {
  const id = at.packet.value;
  const asked = useQuestion<Packet>(id === null ? null : "packet", { id });
  const packet = asked.state.value.value;
  // Drawn anew with another packet only, not with each step of the question.
  const body = useMemo(() => packet && <Body packet={packet} dock={dock} />, [packet, dock]);
  const frame = at.frame.value;
  if (id === null && frame !== null) return <FramePane id={frame} dock={dock} />;
  if (id === null && log.value?.counts.packets === 0) return <NoPackets where="" />;
  if (id === null)
    return (
      <Empty title="No packet is chosen">
        Choose one in <a href="#/packets">Packets</a>, or anywhere else a packet's number stands.
      </Empty>
    );
  return (
    <Answer asked={asked} what="Reading the packet">
      {() => body}
    </Answer>
  );
}

export const packet: View = {
  id: "packet",
  title: "Packet",
  words: "One packet's way through the kernel",
  filtered: false,
  docked: false,
  draw: () => <PacketPane dock={false} />,
};
