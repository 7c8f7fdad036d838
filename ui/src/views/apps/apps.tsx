// What applications asked of the network and what became of it: sockets, one of them or all in sum over time, and at each layer.

import { signal, useSignal } from "@preact/signals";
import type { JSX } from "preact";
import { useEffect, useMemo } from "preact/hooks";
import { log } from "../../api/log.ts";
import { useQuestion } from "../../api/question.ts";
import type { Apps, SocketDetail, SocketLine, SocketSeries, SocketWhy } from "../../api/types.ts";
import { at, go } from "../../base/place.ts";
import { count, many, moment, seen, shortSpan, size } from "../../base/units.ts";
import { Span, Warning } from "../../widgets/marks.tsx";
import { Split } from "../../widgets/split.tsx";
import { Answer, Empty } from "../../widgets/states.tsx";
import { Table, type Column, type Sorting } from "../../widgets/table.tsx";
import { Tabs } from "../../widgets/tabs.tsx";
import type { View } from "../view.ts";
import { AtEachLayer } from "./layers.tsx";
import { arranged, edge, happened, heldAt, heldFor, user } from "./model.ts";
import { Plot } from "./plot.tsx";
import { WhySlow } from "./why.tsx";
import { Writes } from "./writes.tsx";
import "./apps.css";

type Tab = "plots" | "table" | "layers" | "why" | "writes";

/** Kept while other views are looked at. */
const tab = signal<Tab>("plots");
const search = signal("");

/** From this width on the list stands beside the plots, else above them. */
const BESIDE = 1800;
const ROWS = 60;

const amount = (n: number) => (n ? size(n) : <span class="zero">0</span>);
const number = (n: number) => (n ? count(n) : <span class="zero">0</span>);

const COLUMNS: Column<SocketLine>[] = [
  { key: "process", title: "Process", sortable: true, draw: (s) => (s.process === null ? <span class="none">{s.listener === null ? "not known" : seen(user(s))}</span> : `${seen(s.process)}${s.pid === null ? "" : ` ${s.tgid ?? s.pid}`}`), hint: (s) => `${user(s)} (thread ${s.pid ?? "?"}), socket ${s.id}` },
  { key: "protocol", title: "Proto", words: "Protocol", width: 54, sortable: true, draw: (s) => <span class={`proto p-${s.protocol.toLowerCase().split(" ")[0]}`}>{s.protocol}</span> },
  { key: "local", title: "Own end", width: 148, sortable: true, draw: (s) => <code class="name">{seen(s.local)}</code>, hint: (s) => s.local },
  { key: "peer", title: "Other end", width: 148, sortable: true, draw: (s) => <code class="name">{s.peer === null ? "" : seen(s.peer)}</code>, hint: (s) => s.peer ?? "not connected" },
  { key: "from", title: "From s", width: 78, align: "right", sortable: true, from: 1400, draw: (s) => moment(s.from, 3) },
  { key: "duration", title: "Known for", width: 78, align: "right", sortable: true, from: 1200, draw: (s) => shortSpan(s.to - s.from) },
  { key: "written", title: "Written", words: "Bytes that the application gave to it", width: 84, align: "right", sortable: true, draw: (s) => amount(s.written) },
  { key: "writes", title: "Writes", width: 66, align: "right", sortable: true, from: 1000, draw: (s) => number(s.writes) },
  { key: "read", title: "Read", words: "Bytes that it gave to the application", width: 84, align: "right", sortable: true, draw: (s) => amount(s.read) },
  { key: "packets", title: "Packets", words: "Into the device's queue", width: 70, align: "right", sortable: true, from: 1120, draw: (s) => number(s.packets) },
  { key: "frames", title: "Frames", words: "That these packets become", width: 70, align: "right", sortable: true, from: 1320, draw: (s) => number(s.frames) },
  { key: "retransmitted", title: "Again", words: "Frames sent again", width: 66, align: "right", sortable: true, draw: (s) => (s.retransmitted ? <b class="again">{count(s.retransmitted)}</b> : <span class="zero">0</span>) },
  { key: "round_trip", title: "Round trip", words: "Mean of the smoothed round trip", width: 92, align: "right", sortable: true, from: 980, draw: (s) => <Span ns={s.round_trip} /> },
  { key: "held", title: "Held back by", words: "What held it back longest, and for which share of the time; or what became of a connection that was not made", width: 176, sortable: true, draw: (s) => (s.not_connected === null ? heldFor(s) : <b class="again">{`not connected: ${seen(s.not_connected)}`}</b>), hint: (s) => heldFor(s) || undefined },
];

function List({ data }: { data: Apps }): JSX.Element {
  const sort = useSignal<Sorting>({ key: "written", desc: true });
  const rows = useMemo(() => arranged([...data.sockets], search.value, sort.value), [data, search.value, sort.value]);
  const chosen = rows.findIndex((s) => s.id === at.socket.value);
  return (
    <div class="sockets">
      <div class="bar">
        <input class="search" type="search" aria-label="Search sockets" placeholder="Process, address, port" value={search.value} onInput={(e) => (search.value = e.currentTarget.value)} />
        <span class="bar-words muted">{many(data.total, "socket")}{data.total > data.sockets.length ? `, ${count(data.sockets.length)} with the most bytes listed` : ""}</span>
        <span class="spring" />
        <button type="button" class="button small" aria-pressed={at.socket.value === null} onClick={() => go({ socket: null, call: null })}>All in sum</button>
      </div>
      {data.lost > 0 && <Warning>{`${count(data.lost)} events are missing in this log; sums are too small by what they held.`}</Warning>}
      {rows.length ? (
        <Table id="sockets" label="Sockets" columns={COLUMNS} total={rows.length} row={(i) => rows[i]} sort={sort.value} onSort={(s) => (sort.value = s)}
          current={chosen >= 0 ? chosen : null} onCurrent={(i, pressed) => go({ socket: rows[i]!.id, call: null }, !pressed)} />
      ) : (
        <Empty title={`No socket has “${search.value}”`} />
      )}
    </div>
  );
}

function name(s: SocketLine): string {
  return `${user(s)}, ${s.protocol} ${s.local}${s.peer === null ? "" : ` to ${s.peer}`}`;
}

/** The series in words: a row for each piece of time. */
function AsTable({ data }: { data: SocketSeries }): JSX.Element {
  const bytes = (crossing: string, i: number) => {
    const n = data.crossings.find((c) => c.crossing === crossing)?.bytes[i];
    return n === undefined ? "" : size(n);
  };
  const range = (metric: string, i: number, show: (v: number) => string) => {
    const t = data.tcp?.tracks.find((x) => x.metric === metric);
    const [low, high] = [t?.low[i] ?? null, t?.high[i] ?? null];
    return low === null || high === null ? "" : low === high ? show(low) : `${show(low)} – ${show(high)}`;
  };
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label="Over time, as a table">
      <table class="plain wide">
        <thead>
          <tr>
            <th class="right">From s</th><th class="right">Written</th><th class="right">Sent</th><th class="right">Acknowledged</th><th class="right">Received</th><th class="right">Read</th>
            {data.tcp && <><th class="right">cwnd</th><th class="right">ssthresh</th><th class="right">In flight</th><th class="right">Round trip</th><th class="right">Timeout</th><th class="right">Offered</th><th>Held back by</th></>}
            <th>What happened</th>
          </tr>
        </thead>
        <tbody>
          {Array.from({ length: data.bins }, (_, i) => (
            <tr key={i}>
              <td class="right">{moment(edge(data, i))}</td>
              {["send", "to-device", "acked", "to-socket", "recv"].map((c) => <td key={c} class="right">{bytes(c, i)}</td>)}
              {data.tcp && (
                <>
                  <td class="right">{range("cwnd", i, count)}</td><td class="right">{range("ssthresh", i, count)}</td><td class="right">{range("in_flight", i, count)}</td>
                  <td class="right">{range("srtt", i, shortSpan)}</td><td class="right">{range("rto", i, shortSpan)}</td><td class="right">{range("snd_wnd", i, size)}</td><td>{heldAt(data, i) ?? ""}</td>
                </>
              )}
              <td>{happened(data, i)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function Chosen({ data, bins }: { data: Apps; bins: number }): JSX.Element {
  const socket = at.socket.value;
  const line = data.sockets.find((s) => s.id === socket) ?? null;
  const time = at.time.value;
  const tcp = socket !== null && line?.protocol === "TCP";
  const packets = (log.value?.counts.packets ?? 0) > 0;
  const offered = (t: Tab) => (t === "layers" ? socket !== null : t === "why" ? tcp || (socket !== null && packets) : t === "writes" ? tcp || at.call.value !== null : true);
  const shown: Tab = offered(tab.value) ? tab.value : "plots";
  useEffect(() => {
    if (at.call.value !== null) tab.value = "writes";
  }, [at.call.value]);
  const piece = { socket, from: time ? time[0] : null, to: time ? time[1] : null };
  const series = useQuestion<SocketSeries>(shown === "plots" || shown === "table" ? "app/series" : null, { ...piece, bins: shown === "table" ? ROWS : bins });
  const detail = useQuestion<SocketDetail>(shown === "layers" && socket !== null ? "app" : null, { socket });
  const why = useQuestion<SocketWhy>(shown === "why" ? "app/why" : null, { socket });
  const title = line ? name(line) : socket === null ? "All sockets in sum" : `Socket ${socket}`;
  const of = line ? [line] : data.sockets;
  const whole = useMemo<[number, number]>(() => {
    let [from, to] = [Infinity, -Infinity];
    for (const s of of) [from, to] = [Math.min(from, s.from), Math.max(to, s.to + 1)];
    return [from, to];
  }, [data, socket]);
  const tabs: [Tab, string][] = [["plots", "Over time"], ["table", "As a table"], ...([["layers", "At each layer"], ["why", "Why slow"], ["writes", packets ? "Writes and packets" : "Writes"]] as [Tab, string][]).filter(([t]) => offered(t))];
  return (
    <section class="socket" aria-label={seen(title)}>
      <div class="socket-head">
        <h2 title={title}>{seen(title)}</h2>
        <Tabs label="The socket" tabs={tabs} current={shown} choose={(to) => (tab.value = to)} />
        <span class="spring" />
        {time && <button type="button" class="chip" onClick={() => go({ time: null })} title="Show all of the time again">{shortSpan(time[1] - time[0])} chosen ×</button>}
      </div>
      <div class="socket-body">
        {shown === "writes" && socket !== null ? (
          <Writes socket={socket} />
        ) : shown === "why" ? (
          <Answer asked={why} what="Following writes">{(w) => <WhySlow data={w} stream={tcp} />}</Answer>
        ) : shown === "layers" ? (
          <Answer asked={detail} what="Following bytes">{(d) => <AtEachLayer data={d} />}</Answer>
        ) : (
          <Answer asked={series} what="Reading what crossed">
            {(s) => (shown === "table" ? <AsTable data={s} /> : <Plot key={socket ?? ""} series={s} whole={whole} chosen={time} onChoose={(t) => go({ time: t }, true)} label={seen(title)} />)}
          </Answer>
        )}
      </div>
    </section>
  );
}

function Whole(): JSX.Element {
  const info = log.value;
  const none = info !== null && info.counts.sockets === 0;
  const question = useQuestion<Apps>(none ? null : "apps");
  const wide = useSignal(innerWidth >= BESIDE);
  const bins = useSignal(innerWidth);
  useEffect(() => {
    const onResize = () => {
      wide.value = innerWidth >= BESIDE;
      bins.value = innerWidth;
    };
    addEventListener("resize", onResize);
    return () => removeEventListener("resize", onResize);
  }, []);
  if (none)
    return (
      <Empty title="This log has nothing of applications">
        What they ask of the network, and what becomes of it, is recorded with <code>kpat record --profile app --for 1m -o app.kbl</code>.
      </Empty>
    );
  return (
    <Answer asked={question} what="Reading what crossed">
      {(data) => (
        <Split key={wide.value ? "row" : "column"} name="apps" direction={wide.value ? "row" : "column"} start={wide.value ? 0.42 : 0.3}
          first={<List data={data} />} second={<Chosen data={data} bins={bins.value > 1400 ? 1200 : 600} />} />
      )}
    </Answer>
  );
}

export const apps: View = {
  id: "apps",
  title: "Applications",
  words: "What applications asked of the network, and what became of it",
  filtered: false,
  docked: false,
  draw: Whole,
};
