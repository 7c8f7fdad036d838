// Where the time of a connection went, from write to read: stages as one bar, and each with its evidence and bounds.

import type { JSX } from "preact";
import type { Reasons, SocketWhy, WhyStage } from "../../api/types.ts";
import { many, seen, share, span } from "../../base/units.ts";
import { Warning } from "../../widgets/marks.tsx";
import { Empty } from "../../widgets/states.tsx";
import { START, writePlace } from "../../base/place.ts";
import { STAGES } from "./model.ts";

function Bar({ of }: { of: Reasons }): JSX.Element {
  const words = of.stages.map((s) => `${s.stage} ${share(s.share)}`).join(", ");
  return (
    <div class="why-bar" role="img" aria-label={`Stages: ${words}`}>
      {of.stages.filter((s) => s.share > 0).map((s) => (
        <i key={s.stage} title={`${s.stage} ${share(s.share)}, ${span(s.ns)}`} style={{ width: `${s.share * 100}%`, background: `var(--${STAGES[s.stage] ?? "muted"})` }} />
      ))}
    </div>
  );
}

/** What the threads of a stage's program did. */
function Threads({ of }: { of: WhyStage }): JSX.Element | null {
  if (of.ran === null || of.waited === null || of.slept === null) return null;
  const did = ([["ran", of.ran], ["waited for a CPU", of.waited], ["slept", of.slept]] as const).filter(([, ns]) => ns > 0);
  const slept = of.slept_for.map(({ what, ns }) => `${what} ${span(ns)}`).join(", ");
  return <div class="muted">its threads {did.map(([what, ns]) => `${what} ${span(ns)}`).join(", ")}{slept !== "" && `: ${slept}`}</div>;
}

/** A socket of this device or of another one. */
function End({ socket, device }: { socket: string; device: string | null }): JSX.Element {
  return (
    <>
      <a href={writePlace({ ...START, view: "apps", socket, device })}>socket {socket}</a>
      {device !== null && <> on {seen(device)}</>}
    </>
  );
}

/** `stream`: of TCP, so that writes are acknowledged and their bytes are in order; else each is a datagram. */
export function WhySlow({ data, stream }: { data: SocketWhy; stream: boolean }): JSX.Element {
  const of = data.why;
  if (!of && !stream) return <Empty title="No write of this socket is in the log">Why a socket of datagrams is slow is asked where it sent something.</Empty>;
  if (!of) return <Empty title="No write of this connection is in the log">Why a connection is slow is asked where the socket or its peer wrote something.</Empty>;
  const first = of.stages.find((s) => s.stage === of.first);
  return (
    <div class="scroll socket-layers" tabIndex={0} role="region" aria-label="Where the time went">
      <p>
        {first ? <><b>{seen(first.stage)} {share(first.share)}</b>: {first.meaning}.</> : "Nothing is known of where the time went."}
        {!of.certain && " With what is not known, another stage could be the first."}
      </p>
      <Bar of={of} />
      {of.lost > 0 && <Warning>{`${many(of.lost, "record")} are missing in this time: each stage's time is somewhere between its bounds.`}</Warning>}
      <div class="scroll-x" tabIndex={0} role="region" aria-label="Stages">
        <table class="plain">
          <thead><tr><th>Stage</th><th class="right">Time</th><th class="right">Share</th><th class="right" title="Least and most that the missing records allow">Between</th><th>What it is</th><th>Known by</th></tr></thead>
          <tbody>
            {of.stages.map((s) => (
              <tr key={s.stage}>
                <td><i class="dot" style={{ background: `var(--${STAGES[s.stage] ?? "muted"})` }} aria-hidden="true" /> {seen(s.stage)}</td>
                <td class="right">{span(s.ns)}</td>
                <td class="right">{share(s.share)}</td>
                <td class="right">{s.low === s.high ? "" : `${span(s.low)} – ${span(s.high)}`}</td>
                <td>{s.meaning}<Threads of={s} /></td>
                <td class="muted">{s.evidence}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      <p class="muted">
        {span(of.whole)} from {of.stages.some((s) => s.stage === "handshake") ? "when it began to connect" : "the first write"} until the last of {many(of.writes, "write")} of <End socket={of.socket} device={of.device} /> was over; each moment counts once, divided among the writes then under way.
        {of.peer !== null && <> What it wrote was read by <End socket={of.peer} device={of.peer_device} />.</>}
        {of.slowest !== null && ` The slowest took ${span(of.slowest)}`}
        {of.slowest !== null && of.slowest_packet !== null && <>; {stream ? "its last byte is in" : "it is"} <a href={writePlace({ ...START, view: "packet", packet: of.slowest_packet, device: of.device })}>packet {of.slowest_packet}</a></>}
        {of.slowest !== null && "."}
        {of.clock !== null && ` The peer's clock is another kernel's: related by what the two sent each other, ± ${span(of.clock)}, by which the way between them may be shorter or longer.`}
        {of.peer === null && stream && " The other end is not in this log: driver, wire, the peer's stack and its application are one, until the acknowledgement."}
        {of.peer === null && !stream && " No socket of this log is known to have read it."}
      </p>
    </div>
  );
}
