// Packets and frames in order of time: the list everything else starts from.

import { useSignal } from "@preact/signals";
import type { JSX } from "preact";
import { useEffect, useMemo, useRef } from "preact/hooks";
import { ask } from "../../api/ask.ts";
import { byClock, clockAt, listed, listedTitle, log } from "../../api/log.ts";
import { Pages, rowsOf } from "../../api/pages.ts";
import { generation } from "../../api/question.ts";
import type { PacketColumn, PacketRow, Packets } from "../../api/types.ts";
import { asked, at, go } from "../../base/place.ts";
import { NONE, count, seen, who } from "../../base/units.ts";
import { Protocol, Span, Sure, Verdict, protocolClass } from "../../widgets/marks.tsx";
import { Failed, NoPackets } from "../../widgets/states.tsx";
import { Table, type Column, type Sorting } from "../../widgets/table.tsx";
import type { View } from "../view.ts";
import { SIGNS, signs } from "./model.ts";
import "./packets.css";

/** A retransmission is a sign beside the number, the reason of a drop stands with the verdict. */
type Shown = Exclude<PacketColumn, "retransmission" | "drop">;

/** No window is as wide: the column is left out. */
const NEVER = 1e9;

/** Every column of the row has to be here: by the first of its fields. `captures`: how many were joined; `moments`: only tracepoints were recorded, nothing has calls. */
const shown = (captures: number, moments: boolean): Record<Shown, Omit<Column<PacketRow>, "key">> => ({
  id: { title: "No.", words: "Number of the packet in this log; ○ a frame for which no packet was found", width: 82, align: "right", sortable: true,
    draw: (r) => (
      <>
        {signs(r).map((s) => (
          <span key={s.key} class={`glyph ${s.key}`} title={s.words} role="img" aria-label={s.words}>
            {s.glyph}
          </span>
        ))}
        {r.id ?? ""}
      </>
    ) },
  t: { title: listedTitle(), words: "Seconds since the log's start, by the boot clock of the device under test; or time of day by its wall clock (below the list)", width: byClock.value ? 124 : 92, align: "right", sortable: true, draw: (r) => listed(r.t), hint: (r) => `${clockAt(r.t, true) ?? "time of day not known"} UTC` },
  frame: { title: "Frame", words: "First wire frame of the packet: capture and number", width: captures > 1 ? 168 : 104, from: captures ? 1100 : NEVER, draw: (r) => <span class={r.frame ? "" : "none"}>{r.frame ? seen(r.frame) : NONE}</span>, hint: (r) => r.frame ?? undefined },
  src: { title: "Source", width: 124, sortable: true, draw: (r) => <span class="mono">{seen(r.src)}</span>, hint: (r) => r.src },
  dst: { title: "Destination", width: 124, sortable: true, draw: (r) => <span class="mono">{seen(r.dst)}</span>, hint: (r) => r.dst },
  proto: { title: "Protocol", width: 70, sortable: true, draw: (r) => <Protocol name={r.proto} /> },
  len: { title: "Length", words: "Bytes", width: 62, align: "right", sortable: true, draw: (r) => count(r.len) },
  info: { title: "Info", draw: (r) => seen(r.info), hint: (r) => r.info },
  path_ns: { title: "Path time", words: "From the first sight of the packet in the kernel to the last, without what it waited to be freed when it had been read", width: 98, align: "right", sortable: true, draw: (r) => <Span ns={r.id === null ? null : r.path_ns} /> },
  kernel_ns: { title: "In functions", words: "Time in recorded functions", width: 98, align: "right", sortable: true, from: moments ? NEVER : 1500, draw: (r) => <Span ns={r.id === null ? null : r.kernel_ns} /> },
  frames: { title: "Frames", words: "Wire frames that were matched to it", width: 62, align: "right", sortable: true, from: captures ? 1800 : NEVER, draw: (r) => count(r.frames) },
  calls: { title: "Calls", width: 60, align: "right", sortable: true, from: moments ? NEVER : 1400, draw: (r) => (r.id === null ? NONE : count(r.calls)) },
  points: { title: "Points", words: "Tracepoints that it passed", width: 60, align: "right", sortable: true, from: moments ? 1400 : 1900, draw: (r) => (r.id === null ? NONE : count(r.points)) },
  verdict: { title: "Verdict", words: "What became of it; for a dropped packet the kernel's reason", width: 136, sortable: true, draw: (r) => <Verdict verdict={r.verdict} drop={r.drop} />, hint: (r) => r.drop ?? r.verdict },
  if_in: { title: "In → out", width: 110, from: 1300, draw: (r) => <span class="mono">{r.if_in || r.if_out ? `${seen(r.if_in ?? "·")} → ${seen(r.if_out ?? "·")}` : ""}</span> },
  netns: { title: "Namespace", words: "Network namespace first seen in: its inode number", width: 96, align: "right", sortable: true, from: 2000, draw: (r) => r.netns ?? NONE },
  cpu: { title: "CPU", words: "CPU of its earliest call or point", width: 50, align: "right", sortable: true, from: 1700, draw: (r) => r.cpu ?? NONE },
  process: { title: "Process", width: captures ? 136 : 168, sortable: true, from: 800, draw: (r) => (r.process ? who(r) : <span class="none">{NONE}</span>), hint: (r) => (r.process ? who(r) : undefined) },
  confidence: { title: "Match", words: "How sure it is that frame and packet are the same data", width: 62, align: "right", sortable: true, from: captures ? undefined : NEVER, draw: (r) => <Sure of={r.confidence} ambiguous={r.ambiguous} /> },
});

function columns(captures: number, moments: boolean): Column<PacketRow>[] {
  return Object.entries(shown(captures, moments)).map(([key, column]) => ({ key, ...column }));
}

/** Order of time needs no sorting: it is not asked for. */
function order(sort: Sorting): { sort?: string; desc?: number } {
  return sort.key === "t" && !sort.desc ? {} : { sort: sort.key, desc: sort.desc ? 1 : 0 };
}

/** The rows of the list, fetched as they are looked at. */
function useRows(where: string, sort: Sorting): { pages: Pages<PacketRow>; old: boolean } {
  const shown = useSignal<{ pages: Pages<PacketRow>; key: string } | null>(null);
  const key = JSON.stringify([where, sort, generation.value]);
  const pages = useMemo(
    () =>
      new Pages<PacketRow>(async (from, n, signal) => {
        const found = await ask<Packets>("packets", { where, ...order(sort), from, count: n }, { signal });
        return { total: found.total, rows: rowsOf<PacketRow>(found) };
      }),
    [key],
  );
  useEffect(() => () => pages.end(), [pages]);
  const ready = pages.total.value !== null || pages.error.value !== null;
  // The old list stays until the new one has its first page.
  if (ready && shown.peek()?.key !== key) shown.value = { pages, key };
  const drawn = ready || !shown.value ? pages : shown.value.pages;
  return { pages: drawn, old: drawn !== pages };
}

function List(): JSX.Element {
  const sort = useSignal<Sorting>({ key: "t", desc: false });
  const [packet, frame] = [at.packet.value, at.frame.value];
  const where = asked(at.where.value, at.time.value);
  const { pages, old } = useRows(where, sort.value);
  const current = useSignal<number | null>(null);
  /** A row that was chosen before it was there. */
  const awaited = useRef<number | null>(null);
  const captures = log.value?.captures.length ?? 0;
  const clock = byClock.value;
  const moments = log.value?.mechanism === "tracepoint";
  const shownColumns = useMemo(() => columns(captures, moments), [captures, moments, clock]);
  const version = pages.version.value;
  const total = pages.total.value;

  // A packet chosen elsewhere: which row is it?
  useEffect(() => {
    if (packet === null && frame === null) return;
    const here = current.peek() === null ? undefined : pages.row(current.peek()!);
    if (here && (packet === null ? here.id === null && here.frame_id === frame : here.id === packet)) return;
    const leaving = new AbortController();
    void ask<{ index: number | null }>("packets/at", { where, ...order(sort.value), id: packet, frame }, { signal: leaving.signal }).then(
      (found) => {
        if (!leaving.signal.aborted && awaited.current === null) current.value = found.index;
      },
      () => {
        if (!leaving.signal.aborted) current.value = null;
      },
    );
    return () => leaving.abort();
  }, [packet, frame, where, sort.value, pages]);

  const show = (i: number, pressed: boolean) => {
    const row = pages.row(i);
    awaited.current = row ? null : i;
    if (row) go(row.id === null ? { packet: null, frame: row.frame_id } : { packet: row.id }, !pressed);
  };
  useEffect(() => {
    if (awaited.current !== null) show(awaited.current, false);
  }, [version]);
  useEffect(() => {
    awaited.current = null;
  }, [pages]);

  if (pages.error.value) return <Failed error={pages.error.value} again={() => generation.value++} />;
  if (total === null) return <div class="state quiet" role="status"><p class="state-words">Reading the packets …</p></div>;
  if (total === 0) return <NoPackets where={where} />;
  const choose = (i: number, pressed: boolean) => {
    current.value = i;
    show(i, pressed);
  };
  return (
    <Table
      id="packets"
      label="Packets"
      columns={shownColumns}
      total={total}
      row={(i) => pages.row(i)}
      need={(a, b) => pages.need(a, b)}
      sort={sort.value}
      onSort={(s) => (sort.value = s)}
      current={current.value}
      onCurrent={choose}
      onOpen={(i) => {
        const row = pages.row(i);
        if (row) go({ view: "packet", ...(row.id === null ? { packet: null, frame: row.frame_id } : { packet: row.id }) });
      }}
      rowClass={(r) => `r-${protocolClass(r.proto)} ${signs(r)[0] ? `s-${signs(r)[0]!.key}` : ""}`}
      old={old}
    />
  );
}

function Legend(): JSX.Element {
  return (
    <div class="legend" aria-label="Legend">
      {["TCP", "UDP", "ICMP", "ARP", "other"].map((name) => (
        <span key={name}>
          <i class={`swatch r-${protocolClass(name)}`} aria-hidden="true" />
          {name}
        </span>
      ))}
      {Object.values(SIGNS).map((s) => (
        <span key={s.key}>
          <span class={`glyph ${s.key}`} aria-hidden="true">
            {s.glyph}
          </span>
          {s.words}
        </span>
      ))}
      <span class="spring" />
      {log.value?.start_wall_ns !== null && (
        <label class="check">
          <input type="checkbox" checked={byClock.value} onChange={(e) => (byClock.value = e.currentTarget.checked)} /> time of day (UTC)
        </label>
      )}
    </div>
  );
}

export const packets: View = {
  id: "packets",
  title: "Packets",
  words: "Packets and frames in order of time",
  filtered: true,
  docked: true,
  draw: () => (
    <div class="packets">
      <List />
      <Legend />
    </div>
  ),
};
