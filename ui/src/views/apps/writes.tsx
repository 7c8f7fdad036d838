// A socket's writes, those that took longest first, and one of them: the packets that carried its bytes, and when they were read.

import type { JSX } from "preact";
import { useQuestion } from "../../api/question.ts";
import type { SocketWrites, WriteDetail } from "../../api/types.ts";
import { at, go, START, writePlace } from "../../base/place.ts";
import { bytes, count, moment, seen, span } from "../../base/units.ts";
import { Answer, Empty } from "../../widgets/states.tsx";

/** A filter of more numbers is too long for an address. */
const LISTED = 200;

function One({ data }: { data: WriteDetail }): JSX.Element {
  const device = at.device.value;
  const many = data.packets.length > 1 && data.packets.length <= LISTED ? `packet in {${data.packets.map((p) => p.id).join(" ")}}` : null;
  return (
    <section aria-label={`Write ${data.id}`}>
      <h3>Write {data.id}: {data.packets.length > 0 || data.error === null ? `${bytes(data.bytes)} ` : ""}at {moment(data.t)} s{data.error === null ? "" : `, refused with ${data.error}`}{data.acked === null ? "" : `, acknowledged ${span(data.acked - data.t)} later`}</h3>
      {data.packets.length ? (
        <div class="scroll-x" tabIndex={0} role="region" aria-label="Packets of this write">
          <table class="plain">
            <thead><tr><th class="right">Packet</th><th class="right">Bytes of it</th><th class="right" title="Since the write">First seen</th><th class="right">Last</th><th>Verdict</th><th class="right">Read</th><th>Info</th></tr></thead>
            <tbody>
              {data.packets.map((p) => (
                <tr key={p.id}>
                  <td class="right"><a href={writePlace({ ...START, view: "packet", packet: p.id, device })}>{p.id}</a></td>
                  <td class="right">{count(p.carried)}</td>
                  <td class="right">{span(p.t - data.t)}</td>
                  <td class="right">{span(p.to - data.t)}</td>
                  <td>{p.verdict}</td>
                  <td class="right">{p.read === null ? <span class="none">not known</span> : span(p.read - data.t)}</td>
                  <td class="muted">{seen(p.info)}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      ) : (
        <p class="muted">{data.error === null ? "Which packets carried it is not known." : "No packet of it is known: the kernel mostly refuses before it makes one."}</p>
      )}
      {many && <p><a href={writePlace({ ...START, view: "packets", where: many, device })}>These packets in the list</a></p>}
      {data.cut && <p class="muted">More packets may have carried it than are shown.</p>}
    </section>
  );
}

export function Writes({ socket }: { socket: string }): JSX.Element {
  const chosen = at.call.value;
  const asked = useQuestion<SocketWrites>("app/writes", { socket });
  const one = useQuestion<WriteDetail>(chosen === null ? null : "app/write", { id: chosen });
  const device = at.device.value;
  return (
    <div class="scroll socket-layers" tabIndex={0} role="region" aria-label="Writes of this socket">
      <p><a href={writePlace({ ...START, view: "packets", where: `socket == ${socket}`, device })}>All packets of this socket</a></p>
      {chosen !== null && <Answer asked={one} what="Following the write">{(d) => <One data={d} />}</Answer>}
      <Answer asked={asked} what="Reading writes">
        {(data) =>
          data.writes.length ? (
            <>
              <table class="plain" aria-label="Writes">
                <thead><tr><th class="right">Write</th><th class="right">Acknowledged after</th><th class="right">Bytes</th><th class="right">At s</th><th>Process</th></tr></thead>
                <tbody>
                  {data.writes.map((w) => (
                    <tr key={w.id} class={w.id === chosen ? "current" : undefined}>
                      <td class="right"><button type="button" class="link" onClick={() => go({ call: w.id })}>{w.id}</button></td>
                      <td class="right">{span(w.acked_after)}</td>
                      <td class="right">{count(w.bytes)}</td>
                      <td class="right">{moment(w.t)}</td>
                      <td>{w.process === null ? <span class="none">not known</span> : seen(w.process)}</td>
                    </tr>
                  ))}
                </tbody>
              </table>
              <p class="muted">{count(data.writes.length)} of {count(data.total)} writes, those that took longest to be acknowledged; {count(data.open)} were not seen acknowledged.</p>
            </>
          ) : (
            <Empty title="No write of this socket was seen acknowledged" />
          )
        }
      </Answer>
    </div>
  );
}
