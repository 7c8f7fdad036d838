//! Perfetto's protobuf trace: calls on a track per thread and per CPU and interrupt context, packets on lanes above them,
//! flow arrows along each packet, from the write of its bytes to their read, counters, drops and losses.
//!
//! A thread's calls stand on the thread's track and not on its CPU's: it may be scheduled away within a call, and slices of
//! a track must nest. Packets share lanes, as many as are alive at once: a track per packet would be more tracks than any
//! viewer shows. Perfetto sorts by time itself, so calls are written as they are read.

mod messages;
mod outside;

use crate::names::{Names, clean, context, fate, loss, packet, process};
use crate::{Counts, Result};
use kpat_model::EventKind;
use kpat_query::Parts;
use kpat_query::trace::{Chosen, TreeOfCalls};
use kpat_query::{EventFilter, Store, call_flag, event_kind};
use kpat_store::tables::{CallRow, LossRow, PacketRow};
use messages::*;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet};
use std::io::Write;

/// All packets of ours are one sequence.
const SEQUENCE: u32 = 1;

/// Tracks that are always there; the others are numbered from [`FIRST_TRACK`] on.
const PACKETS: u64 = 1;
const EVENTS: u64 = 2;
const LOSSES: u64 = 3;
const ALIVE: u64 = 4;
const DROPS: u64 = 5;
const CPUS: u64 = 6;
const THREADS: u64 = 7;
const APPLICATIONS: u64 = 8;
const WIRE: u64 = 9;
const FIRST_TRACK: u64 = 16;

/// Interned categories.
const CATEGORIES: [&str; 7] = ["packet", "call", "point", "event", "loss", "application", "frame"];
const OF_PACKET: u64 = 1;
const OF_CALL: u64 = 2;
const OF_POINT: u64 = 3;
const OF_EVENT: u64 = 4;
const OF_LOSS: u64 = 5;
const OF_APPLICATION: u64 = 6;
const OF_FRAME: u64 = 7;

/// Names of what slices say of themselves, interned.
const NOTES: [&str; 19] = [
    "packet",
    "self_ns",
    "irq_ns",
    "off_ns",
    "call",
    "cpu",
    "len_bytes",
    "verdict",
    "process",
    "frames",
    "match_percent",
    "place",
    "count",
    "until_ns",
    "pid",
    "return",
    "layer",
    "socket",
    "frame",
];

fn note_id(name: &str) -> u64 {
    NOTES.iter().position(|n| *n == name).map_or(0, |i| i as u64 + 1)
}

fn number(name: &str, value: i64) -> DebugAnnotation {
    DebugAnnotation { name_iid: Some(note_id(name)), int_value: Some(value), string_value: None }
}

fn text(name: &str, value: &str) -> DebugAnnotation {
    DebugAnnotation { name_iid: Some(note_id(name)), int_value: None, string_value: Some(clean(value)) }
}

/// Which track a call stands on.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Track {
    Thread(i32),
    Cpu(i32, i32),
}

fn track_of(row: &CallRow) -> Track {
    // Thread 0 is every CPU's idle task.
    if row.ctx == 0 && row.pid != 0 { Track::Thread(row.pid) } else { Track::Cpu(row.cpu, row.ctx) }
}

struct Writer<'a> {
    out: &'a mut dyn Write,
    tracks: HashMap<Track, u64>,
    next_track: u64,
    buffer: Vec<u8>,
}

impl Writer<'_> {
    /// A trace is a sequence of packets, each as field 1.
    fn put(&mut self, packet: &TracePacket) -> Result<()> {
        self.buffer.clear();
        prost::encoding::message::encode(1, packet, &mut self.buffer);
        Ok(self.out.write_all(&self.buffer)?)
    }

    fn event(&mut self, at_ns: i64, event: TrackEvent) -> Result<()> {
        self.put(&TracePacket {
            timestamp: Some(u64::try_from(at_ns).unwrap_or(0)),
            trusted_packet_sequence_id: Some(SEQUENCE),
            sequence_flags: Some(NEEDS_INCREMENTAL_STATE),
            track_event: Some(event),
            ..TracePacket::default()
        })
    }

    fn track(&mut self, descriptor: TrackDescriptor) -> Result<()> {
        self.put(&TracePacket {
            trusted_packet_sequence_id: Some(SEQUENCE),
            track_descriptor: Some(descriptor),
            ..TracePacket::default()
        })
    }

    fn new_track(&mut self, parent: u64, name: String, rank: i32) -> Result<u64> {
        let uuid = self.next_track;
        self.next_track += 1;
        self.track(TrackDescriptor {
            uuid: Some(uuid),
            name: Some(name),
            parent_uuid: Some(parent),
            sibling_order_rank: Some(rank),
            ..TrackDescriptor::default()
        })?;
        Ok(uuid)
    }

    fn track_of(&mut self, store: &Store, row: &CallRow) -> Result<u64> {
        let track = track_of(row);
        if let Some(uuid) = self.tracks.get(&track) {
            return Ok(*uuid);
        }
        let uuid = match track {
            Track::Thread(pid) => {
                let comm = store.process(pid, row.entry_ns).map_or(String::new(), |p| clean(&p.comm));
                self.new_track(THREADS, format!("{comm} {pid}").trim_start().to_owned(), pid)?
            }
            Track::Cpu(cpu, ctx) => {
                let ctx_name = if ctx == 0 { "idle" } else { context(ctx) };
                self.new_track(
                    CPUS,
                    format!("CPU {cpu} {ctx_name}"),
                    cpu.saturating_mul(8).saturating_add(ctx),
                )?
            }
        };
        self.tracks.insert(track, uuid);
        Ok(uuid)
    }

    fn counter(&mut self, track: u64, at_ns: i64, value: i64) -> Result<()> {
        self.event(
            at_ns,
            TrackEvent {
                r#type: Some(COUNTER),
                track_uuid: Some(track),
                counter_value: Some(value),
                ..TrackEvent::default()
            },
        )
    }
}

pub fn write(store: &Store, chosen: &Chosen, out: &mut dyn Write, progress: Parts<'_>) -> Result<Counts> {
    let names = Names::of(store)?;
    let mut w = Writer { out, tracks: HashMap::new(), next_track: FIRST_TRACK, buffer: Vec::new() };
    begin(store, &names, &mut w)?;
    let mut counts = Counts::default();
    let ids = packets(store, chosen, &mut w, &mut counts)?;
    calls(store, chosen, &names, &mut w, &mut counts, progress)?;
    outside::calls(store, ids.as_ref(), &mut w, progress)?;
    outside::frames(store, ids.as_ref(), &mut w)?;
    events(store, ids.as_ref(), &mut w)?;
    losses(store, &mut w)?;
    Ok(counts)
}

fn begin(store: &Store, names: &Names, w: &mut Writer<'_>) -> Result<()> {
    let started = store.manifest().log.started;
    let clock = |id, ns: i64| Clock { clock_id: Some(id), timestamp: Some(u64::try_from(ns).unwrap_or(0)) };
    let read_at = |boot, wall| ClockSnapshot {
        clocks: vec![clock(CLOCK_BOOTTIME, boot), clock(CLOCK_REALTIME, wall)],
        primary_trace_clock: Some(CLOCK_BOOTTIME as i32),
    };
    let interned = |list: &[&str]| -> Vec<Interned> {
        list.iter().zip(1..).map(|(n, i)| Interned { iid: Some(i), name: Some((*n).to_owned()) }).collect()
    };
    let functions =
        names.functions().map(|f| Interned { iid: Some(name_id(f.func_id)), name: Some(clean(&f.name)) });
    w.put(&TracePacket {
        trusted_packet_sequence_id: Some(SEQUENCE),
        sequence_flags: Some(INCREMENTAL_STATE_CLEARED),
        trace_packet_defaults: Some(TracePacketDefaults { timestamp_clock_id: Some(CLOCK_BOOTTIME) }),
        clock_snapshot: Some(read_at(started.boot.0, started.wall.0)),
        interned_data: Some(InternedData {
            event_categories: interned(&CATEGORIES),
            event_names: functions.collect(),
            debug_annotation_names: interned(&NOTES),
        }),
        ..TracePacket::default()
    })?;
    for at in store.manifest().wall_steps.iter().map(|s| s.before.0) {
        w.put(&TracePacket {
            trusted_packet_sequence_id: Some(SEQUENCE),
            clock_snapshot: store.wall_ns(at).map(|wall| read_at(at, wall)),
            ..TracePacket::default()
        })?;
    }
    let groups = [
        (APPLICATIONS, "applications", None),
        (PACKETS, "packets", None),
        (WIRE, "wire", None),
        (ALIVE, "packets in flight", Some("packets")),
        (DROPS, "packets dropped", Some("packets")),
        (EVENTS, "events", None),
        (LOSSES, "losses of the log", None),
        (CPUS, "interrupts", None),
        (THREADS, "threads", None),
    ];
    for ((uuid, name, unit), rank) in groups.into_iter().zip(0..) {
        w.track(TrackDescriptor {
            uuid: Some(uuid),
            name: Some(name.to_owned()),
            counter: unit.map(|u| CounterDescriptor { unit_name: Some(u.to_owned()) }),
            child_ordering: Some(ORDER_EXPLICIT),
            sibling_order_rank: Some(rank),
            ..TrackDescriptor::default()
        })?;
    }
    Ok(())
}

/// Interned names of functions; ids begin at 1.
fn name_id(func_id: i32) -> u64 {
    u64::try_from(func_id).unwrap_or(0) + 1
}

/// A slice per packet from its first to its last moment, and how many there are. Gives their numbers where not all were
/// asked for.
fn packets(
    store: &Store,
    chosen: &Chosen,
    w: &mut Writer<'_>,
    counts: &mut Counts,
) -> Result<Option<HashSet<i64>>> {
    // Lanes by the moment from which they are free.
    let mut busy: BinaryHeap<Reverse<(i64, u64)>> = BinaryHeap::new();
    let mut lanes = 0;
    let mut alive = 0;
    let mut ids = (!chosen.is_all()).then(HashSet::new);
    // Those that are alive, by their end.
    let mut ends: BinaryHeap<Reverse<i64>> = BinaryHeap::new();
    counts.packets = store.each_chosen(chosen, &mut |p: PacketRow| -> Result<()> {
        if let Some(ids) = &mut ids {
            ids.insert(p.packet_id);
        }
        let lane = match busy.peek() {
            Some(Reverse((free, lane))) if *free < p.first_ns => {
                let lane = *lane;
                busy.pop();
                lane
            }
            _ => {
                lanes += 1;
                w.new_track(PACKETS, format!("lane {lanes}"), lanes)?
            }
        };
        busy.push(Reverse((p.last_ns, lane)));
        while let Some(Reverse(end)) = ends.peek().copied().filter(|e| e.0 < p.first_ns) {
            ends.pop();
            alive -= 1;
            w.counter(ALIVE, end, alive)?;
        }
        ends.push(Reverse(p.last_ns));
        alive += 1;
        w.counter(ALIVE, p.first_ns, alive)?;
        let mut notes = vec![
            number("packet", p.packet_id),
            number("len_bytes", p.len_bytes),
            text("verdict", &fate(store, &p)),
            number("frames", i64::from(p.frames)),
        ];
        if let Some((pid, comm)) = process(store, &p) {
            notes.push(text("process", comm));
            notes.push(number("pid", i64::from(pid)));
        }
        if let Some(confidence) = p.confidence {
            notes.push(number("match_percent", i64::from(confidence)));
        }
        w.event(
            p.first_ns,
            TrackEvent {
                category_iids: vec![OF_PACKET],
                r#type: Some(SLICE_BEGIN),
                track_uuid: Some(lane),
                name: Some(format!("{} {}", p.packet_id, clean(&packet(&p)))),
                flow_ids: vec![flow(p.packet_id)],
                debug_annotations: notes,
                ..TrackEvent::default()
            },
        )?;
        w.event(
            p.last_ns,
            TrackEvent { r#type: Some(SLICE_END), track_uuid: Some(lane), ..TrackEvent::default() },
        )
    })?;
    while let Some(Reverse(end)) = ends.pop() {
        alive -= 1;
        w.counter(ALIVE, end, alive)?;
    }
    Ok(ids)
}

fn flow(packet_id: i64) -> u64 {
    packet_id as u64
}

fn calls(
    store: &Store,
    chosen: &Chosen,
    names: &Names,
    w: &mut Writer<'_>,
    counts: &mut Counts,
    progress: Parts<'_>,
) -> Result<()> {
    // Slices that are open, outermost first: place in the tree, end, track.
    let mut open: Vec<(usize, i64, u64)> = Vec::new();
    // By place in the tree: chosen packets, and the innermost slice that it is within or is itself.
    let mut flows: Vec<Vec<u64>> = Vec::new();
    let mut within: Vec<Option<usize>> = Vec::new();
    store.each_tree(chosen, progress, &mut |tree: &TreeOfCalls<'_>| -> Result<()> {
        flows.clear();
        within.clear();
        for (i, row) in tree.rows().iter().enumerate() {
            let caller = tree.parent(i);
            let mine: Vec<u64> = tree.packets(i).map(flow).collect();
            // The arrow goes to the outermost call of each packet.
            let above: &[u64] = caller.map_or(&[], |p| &flows[p]);
            let outermost: Vec<u64> = mine.iter().copied().filter(|f| !above.contains(f)).collect();
            flows.push(mine);
            let around = caller.and_then(|p| within[p]);
            let is_slice = tree.is_chosen(i) && row.dur_ns.is_some();
            within.push(if is_slice { Some(i) } else { around });
            if !tree.is_chosen(i) {
                continue;
            }
            counts.call(row);
            while let Some((_, end, track)) = open.pop_if(|o| Some(o.0) != around) {
                end_slice(w, end, track)?;
            }
            let track = w.track_of(store, row)?;
            if let Some(dur) = row.dur_ns {
                open.push((i, row.entry_ns.saturating_add(dur.max(0)), track));
            }
            one_call(names, w, row, track, outermost)?;
        }
        while let Some((_, end, track)) = open.pop() {
            end_slice(w, end, track)?;
        }
        Ok(())
    })
}

fn one_call(names: &Names, w: &mut Writer<'_>, row: &CallRow, track: u64, flow_ids: Vec<u64>) -> Result<()> {
    let is_point = row.flags & call_flag::POINT != 0;
    let mut notes = vec![number("call", row.call_id), number("cpu", i64::from(row.cpu))];
    notes.extend(row.packet_id.map(|p| number("packet", p)));
    notes.extend(row.self_ns.map(|ns| number("self_ns", ns)));
    notes.extend(row.irq_ns.filter(|ns| *ns > 0).map(|ns| number("irq_ns", ns)));
    notes.extend(row.off_ns.filter(|ns| *ns > 0).map(|ns| number("off_ns", ns)));
    notes.extend(row.len_bytes.map(|n| number("len_bytes", i64::from(n))));
    notes.push(text("layer", names.layer(row.func_id)));
    if !is_point && row.dur_ns.is_none() {
        notes.push(text("return", "not seen"));
    }
    let known = names.function(row.func_id).is_some();
    w.event(
        row.entry_ns,
        TrackEvent {
            category_iids: vec![if is_point { OF_POINT } else { OF_CALL }],
            r#type: Some(if row.dur_ns.is_some() { SLICE_BEGIN } else { INSTANT }),
            track_uuid: Some(track),
            name_iid: known.then(|| name_id(row.func_id)),
            name: (!known).then(|| "?".to_owned()),
            flow_ids,
            debug_annotations: notes,
            ..TrackEvent::default()
        },
    )
}

fn end_slice(w: &mut Writer<'_>, at_ns: i64, track: u64) -> Result<()> {
    w.event(at_ns, TrackEvent { r#type: Some(SLICE_END), track_uuid: Some(track), ..TrackEvent::default() })
}

/// Events of the chosen packets, or all; drops are counted up.
fn events(store: &Store, ids: Option<&HashSet<i64>>, w: &mut Writer<'_>) -> Result<()> {
    let mut dropped = 0;
    for e in store.events(&EventFilter::default(), 0)?.rows {
        let row = &e.event;
        if ids.is_some_and(|ids| row.packet_id.is_none_or(|p| !ids.contains(&p))) {
            continue;
        }
        let mut notes: Vec<DebugAnnotation> =
            row.packet_id.map(|p| number("packet", p)).into_iter().collect();
        notes.extend(row.cpu.map(|cpu| number("cpu", i64::from(cpu))));
        notes.extend(row.after_ns.map(|after| number("up_to_earlier_ns", row.at_ns.saturating_sub(after))));
        if !e.place.is_empty() {
            notes.push(text("place", &e.place));
        }
        let what = e.what();
        w.event(
            row.at_ns,
            TrackEvent {
                category_iids: vec![OF_EVENT],
                r#type: Some(INSTANT),
                track_uuid: Some(EVENTS),
                name: Some(clean(format!("{} {what}", event_kind(row.kind)).trim_end())),
                flow_ids: row.packet_id.map(flow).into_iter().collect(),
                debug_annotations: notes,
                ..TrackEvent::default()
            },
        )?;
        if row.kind == EventKind::Drop as i32 {
            dropped += 1;
            w.counter(DROPS, row.at_ns, dropped)?;
        }
    }
    Ok(())
}

fn losses(store: &Store, w: &mut Writer<'_>) -> Result<()> {
    let losses: Vec<LossRow> = store.table::<LossRow>()?.all()?;
    for l in losses {
        let mut notes = vec![number("count", l.count), number("until_ns", l.to_ns)];
        notes.extend(l.cpu.map(|c| number("cpu", i64::from(c))));
        w.event(
            l.from_ns,
            TrackEvent {
                category_iids: vec![OF_LOSS],
                r#type: Some(INSTANT),
                track_uuid: Some(LOSSES),
                name: Some(format!("{} lost: {}", l.count, loss(l.cause))),
                debug_annotations: notes,
                ..TrackEvent::default()
            },
        )?;
    }
    Ok(())
}
