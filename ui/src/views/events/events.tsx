// Moments: drops with reason and place, links, routes, states, retransmissions; on one axis and in a list.

import { useSignal } from "@preact/signals";
import type { JSX } from "preact";
import { useEffect, useMemo, useRef } from "preact/hooks";
import { ask } from "../../api/ask.ts";
import { clockAt, log, wholeLog } from "../../api/log.ts";
import { Pages } from "../../api/pages.ts";
import { generation, useQuestion } from "../../api/question.ts";
import type { Event, EventSums, Events, Overview } from "../../api/types.ts";
import { asked, go, at } from "../../base/place.ts";
import { Scale } from "../../base/scale.ts";
import { NONE, count, many, moment, seen, span } from "../../base/units.ts";
import { Canvas, type Pen } from "../../widgets/canvas.tsx";
import { Answer, Empty, Failed } from "../../widgets/states.tsx";
import { hatch } from "../../widgets/strip.tsx";
import { drawTimes, useTimeAxis } from "../../widgets/timeaxis.tsx";
import { Tip, type Tipped } from "../../widgets/tip.tsx";
import { Table, type Column } from "../../widgets/table.tsx";
import type { View } from "../view.ts";
import { marks, type Mark } from "./model.ts";
import "./events.css";

const LANE = 24;
const GUTTER = 132;
const RIGHT = 12;
const LEAST_NS = 1000;
/** So many are drawn one by one; more of them are drawn as how many there are. */
const DRAWN = 4000;
const BINS = 240;

/** As wide as this, a table has room for reason and words side by side. */
const BOTH = 1100;
const reasonAndWords = (r: Event): string => [...new Set([r.reason, r.words])].filter(Boolean).join(": ");

const COLUMNS: Column<Event>[] = [
  { key: "t", title: "Time s", width: 96, align: "right", draw: (r) => moment(r.t), hint: (r) => `${clockAt(r.t, true) ?? "time of day not known"} UTC` },
  { key: "kind", title: "Kind", width: 130, draw: (r) => seen(r.kind) },
  { key: "packet", title: "Packet", width: 72, align: "right", draw: (r) => (r.packet === null ? <span class="none">{NONE}</span> : <span class="link">{r.packet}</span>) },
  { key: "reason", title: "Reason", width: 150, from: BOTH, draw: (r) => seen(r.reason), hint: (r) => r.reason },
  { key: "place", title: "Place", words: "Function, or device", width: 170, from: 860, draw: (r) => <span class="mono">{seen(r.place)}</span>, hint: (r) => r.place },
  { key: "what", title: "What", below: BOTH, draw: (r) => seen(reasonAndWords(r)), hint: reasonAndWords },
  { key: "words", title: "What", from: BOTH, draw: (r) => (r.words === r.reason ? "" : seen(r.words)), hint: (r) => r.words },
  { key: "process", title: "Process", words: "Whose task was current", width: 130, from: 700, draw: (r) => (r.pid === null ? NONE : `${r.process === null ? "" : seen(r.process)} ${r.pid || ""}`), hint: (r) => r.process ?? undefined },
  { key: "cpu", title: "CPU", width: 52, align: "right", from: 600, draw: (r) => (r.cpu ?? NONE) },
  { key: "within", title: "Up to earlier", words: "Read at this time; it happened at most so long before", width: 104, align: "right", from: 900, draw: (r) => (r.within === null ? NONE : span(r.within)) },
];

/** At most so many events in a tooltip. */
const SHOWN = 4;

function tipLines(mark: Mark): string[] {
  const lines = mark.events.slice(0, SHOWN).map((e) => `${moment(e.t)} s ${seen(e.reason || e.words)}${e.packet === null ? "" : `, packet ${e.packet}`}`);
  return mark.events.length > SHOWN ? [...lines, `and ${count(mark.events.length - SHOWN)} more`] : lines;
}

function Axis({ events, sums, kinds, density, onChoose, chosen }: { events: Event[]; sums: EventSums | null; density: Overview | null; kinds: [string, number][]; onChoose: (e: Event) => void; chosen: number | null }): JSX.Element {
  const width = useRef(1);
  const drawn = useRef<Mark[]>([]);
  const tip = useSignal<Tipped | null>(null);
  const axis = useTimeAxis({ whole: wholeLog(), least: LEAST_NS, chosen: at.time.value, onChoose: (time) => go({ time }), left: GUTTER, right: RIGHT, scrolls: true });
  /** The pointer went up over a click, not at the end of a choice of time. */
  const clicked = useRef(true);
  const height = (kinds.length + 1) * LANE + 22;
  const laneY = (lane: number) => (lane + 1) * LANE;
  const paint = (pen: Pen) => {
    const { g, width: w, height: h, color } = pen;
    width.current = w;
    const s = axis.scaleOf(w);
    const [from, to] = axis.view.value;
    g.clearRect(0, 0, w, h);
    g.font = `11px ${color("sans")}`;
    g.textBaseline = "middle";
    for (const l of log.value?.losses ?? []) if (l.to >= from && l.from <= to) hatch(g, Math.max(GUTTER, s.at(l.from)), 0, Math.max(2, s.at(l.to) - s.at(l.from)), h - 22, color("loss"));
    drawTimes(pen, (t) => s.at(t), [from, to], [GUTTER, w - RIGHT], { words: h - 9, line: [0, h - 18], grid: true, end: w, moved: true });
    if (density) {
      const n = density.bins.packets.length;
      const most = Math.max(1, ...density.bins.packets);
      const d = new Scale(0, n, s.at(density.from), s.at(density.to));
      g.fillStyle = color("density");
      density.bins.packets.forEach((v, i) => {
        if (d.at(i + 1) <= GUTTER) return;
        const tall = v ? Math.max(2, Math.sqrt(v / most) * (LANE - 5)) : 0;
        g.fillRect(Math.max(GUTTER, d.at(i)), LANE - tall, Math.max(1, d.at(i + 1) - d.at(i) - 0.5), tall);
      });
      g.fillStyle = color("muted");
      g.fillText("packets", 12, LANE / 2);
    }
    kinds.forEach(([kind, n], i) => {
      const y = laneY(i);
      g.strokeStyle = color("line");
      g.beginPath();
      g.moveTo(0, y + 0.5);
      g.lineTo(w, y + 0.5);
      g.stroke();
      g.fillStyle = color("text");
      g.fillText(seen(kind), 12, y + LANE / 2);
      g.fillStyle = color("muted");
      g.textAlign = "right";
      g.fillText(count(n), GUTTER - 10, y + LANE / 2);
      g.textAlign = "left";
    });
    // Too many for a mark each: how many, of all of them.
    for (const [kind, counts] of sums?.bins ?? []) {
      const lane = kinds.findIndex(([k]) => k === kind);
      if (lane < 0 || !sums) continue;
      const most = Math.max(1, ...counts);
      const d = new Scale(0, counts.length, s.at(sums.from), s.at(sums.to));
      g.fillStyle = color(/drop/.test(kind) ? "drop" : /retrans/.test(kind) ? "retransmission" : "wire");
      counts.forEach((n, i) => {
        const tall = n ? Math.max(3, Math.sqrt(n / most) * (LANE - 6)) : 0;
        if (n && d.at(i + 1) > GUTTER) g.fillRect(Math.max(GUTTER, d.at(i)), laneY(lane) + LANE - 2 - tall, Math.max(1.5, d.at(i + 1) - d.at(i) - 0.5), tall);
      });
    }
    drawn.current = marks(sums ? [] : events, kinds.map(([k]) => k), (t) => s.at(t), 5);
    for (const m of drawn.current) {
      if (m.x < GUTTER) continue;
      const y = laneY(m.lane) + LANE / 2;
      g.fillStyle = g.strokeStyle = color(/drop/.test(m.kind) ? "drop" : /retrans/.test(m.kind) ? "retransmission" : "wire");
      const size = Math.min(9, 3 + Math.log2(m.events.length));
      if (/drop/.test(m.kind)) {
        g.lineWidth = 2;
        g.beginPath();
        g.moveTo(m.x - size, y - size);
        g.lineTo(m.x + size, y + size);
        g.moveTo(m.x + size, y - size);
        g.lineTo(m.x - size, y + size);
        g.stroke();
        g.lineWidth = 1;
      } else {
        g.beginPath();
        g.moveTo(m.x, y - size - 1);
        g.lineTo(m.x + size, y);
        g.lineTo(m.x, y + size + 1);
        g.lineTo(m.x - size, y);
        g.fill();
      }
    }
    axis.drawBrush(pen, 0, h - 22);
    if (chosen !== null) {
      g.fillStyle = color("accent");
      g.fillRect(s.at(chosen) - 0.75, 0, 1.5, h - 22);
    }
  };
  /** Of a crowded axis: the kind and the piece of time, with how many events of the kind are in it. */
  const counted = (x: number, y: number): { kind: string; n: number; time: [number, number] } | null => {
    const kind = kinds[Math.floor(y / LANE) - 1]?.[0];
    const counts = sums?.bins.find(([k]) => k === kind)?.[1];
    if (!sums || !kind || !counts || x < GUTTER) return null;
    const s = axis.scale();
    const piece = (sums.to - sums.from) / counts.length;
    const i = Math.floor((s.back(x) - sums.from) / piece);
    return counts[i] ? { kind, n: counts[i], time: [sums.from + i * piece, sums.from + (i + 1) * piece] } : null;
  };
  const under = (x: number, y: number) => drawn.current.find((m) => laneY(m.lane) === Math.floor(y / LANE) * LANE && Math.abs(m.x - x) < 8);
  return (
    <div class="events-axis" style={{ height: `${height}px` }}>
      <Canvas
        paint={paint}
        height={height}
        role="img"
        tabIndex={0}
        label={`Events over time: ${kinds.map(([k, n]) => `${count(n)} ${k}`).join(", ")}. Left and right go from event to event, W and S zoom, A and D move, 0 shows everything. The list below has each.`}
        attach={axis.attach}
        onKeyDown={(e) => {
          const step = (forth: boolean) => {
            const ordered = drawn.current.map((m) => m.events[0]!).sort((a, b) => a.t - b.t);
            const at = chosen ?? (forth ? -Infinity : Infinity);
            const next = forth ? ordered.find((x) => x.t > at) : ordered.findLast((x) => x.t < at);
            if (next) onChoose(next);
          };
          axis.key(e, { ArrowLeft: () => step(false), ArrowRight: () => step(true) });
        }}
        onPointerDown={axis.brushBegin}
        onPointerUp={() => void (clicked.current = !axis.brushEnd())}
        onDblClick={axis.fit}
        onPointerMove={(e) => {
          if (axis.brushMove(e)) return void (tip.value = null);
          const mark = under(e.offsetX, e.offsetY);
          const some = mark ? null : counted(e.offsetX, e.offsetY);
          const lines = mark ? tipLines(mark) : some && [`${count(some.n)} ${seen(some.kind)}`, `${moment(some.time[0])} s to ${moment(some.time[1])} s`, "a click shows this time only"];
          tip.value = lines ? { x: e.offsetX, y: e.offsetY, lines } : null;
        }}
        onPointerLeave={() => (tip.value = null)}
        onClick={(e) => {
          if (!clicked.current) return;
          const m = under(e.offsetX, e.offsetY);
          const some = m ? null : counted(e.offsetX, e.offsetY);
          if (m) onChoose(m.events[0]!);
          else if (some) go({ time: [Math.max(0, Math.floor(some.time[0])), Math.ceil(some.time[1])] });
        }}
      />
      <Tip at={tip} width={() => width.current} />
    </div>
  );
}

function List({ where, kind, jump }: { where: string; kind: string; jump: { value: Event | null } }): JSX.Element {
  const current = useSignal<number | null>(null);
  const key = JSON.stringify([where, kind, generation.value]);
  const pages = useMemo(() => new Pages<Event>((from, n, signal) => ask<Events>("events", { where, kind, from, count: n }, { signal })), [key]);
  useEffect(() => {
    current.value = null;
    return () => pages.end();
  }, [pages]);
  pages.version.value;
  const wanted = jump.value;
  useEffect(() => {
    if (!wanted) return;
    const i = Array.from({ length: pages.total.value ?? 0 }, (_, k) => k).findIndex((k) => pages.row(k)?.t === wanted.t && pages.row(k)?.kind === wanted.kind);
    if (i >= 0) current.value = i;
  }, [wanted]);
  if (pages.error.value) return <Failed error={pages.error.value} />;
  if (pages.total.value === 0) return <Empty title="No event">{where || kind ? "Nothing fits this filter." : "Neither drops nor changes of links, routes or states were recorded."}</Empty>;
  return (
    <Table id="events" label="Events" columns={COLUMNS} total={pages.total.value ?? 0} row={(i) => pages.row(i)} need={(a, b) => pages.need(a, b)} current={current.value}
      rowClass={(r) => (/drop/.test(r.kind) ? "e-drop" : /retrans/.test(r.kind) ? "e-retransmission" : "")}
      onCurrent={(i, pressed) => {
        current.value = i;
        const packet = pages.row(i)?.packet;
        if (packet !== null && packet !== undefined) go({ packet }, !pressed);
      }} />
  );
}

function Whole(): JSX.Element {
  const where = asked(at.where.value, at.time.value);
  const kind = useSignal("");
  const jump = useSignal<Event | null>(null);
  const question = useQuestion<Events>("events", { where, from: 0, count: DRAWN });
  const [from, to] = at.time.value ?? [null, null];
  const sums = useQuestion<EventSums>("events/sums", { where, bins: BINS, from, to });
  const density = useQuestion<Overview>("overview", { where: at.where.value, bins: BINS, from, to });
  return (
    <Answer asked={question} what="Reading the events">
      {(data) => {
        const all = sums.state.value.value;
        const drops = all?.drops ?? [];
        const crowded = data.total > data.rows.length;
        const kinds = [...data.kinds].sort((a, b) => b[1] - a[1]);
        const shown = kinds.filter(([k]) => !kind.value || k === kind.value);
        return (
          <div class="events">
            {kinds.length > 0 && (
              <>
                <div class="bar">
                  <label class="check">
                    Kind
                    <select value={kind.value} onChange={(e) => (kind.value = e.currentTarget.value)}>
                      <option value="">all</option>
                      {kinds.map(([k, n]) => <option key={k} value={k}>{`${seen(k)} (${count(n)})`}</option>)}
                    </select>
                  </label>
                  {drops.slice(0, 4).map((d) => (
                    <button key={`${d.reason} ${d.place}`} type="button" class="chip" title={`Packets dropped for this reason${d.place ? `, at ${d.place}` : ""}`} onClick={() => go({ view: "packets", where: `drop == "${d.reason}"` })}>
                      <span class="glyph drop" aria-hidden="true">✕</span> {count(d.count)} {seen(d.reason)}{d.place && <span class="muted"> {seen(d.place)}</span>}
                    </button>
                  ))}
                  <span class="spring" />
                  <span class="muted">{many(data.total, "event")}{crowded && ", as counts"}</span>
                </div>
                <Axis density={density.state.value.value} sums={crowded ? all : null} events={crowded ? [] : data.rows} kinds={shown.slice(0, 10)} chosen={jump.value?.t ?? null}
                  onChoose={(e) => {
                    jump.value = e;
                    if (e.packet !== null) go({ packet: e.packet });
                  }} />
              </>
            )}
            <div class="events-list"><List where={where} kind={kind.value} jump={jump} /></div>
          </div>
        );
      }}
    </Answer>
  );
}

export const events: View = {
  id: "events",
  title: "Events",
  words: "Drops, links, routes, states, retransmissions",
  filtered: true,
  docked: true,
  draw: Whole,
};
