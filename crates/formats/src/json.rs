//! JSON lines: one object a line, each says in `kind` what it is. For one's own programs, and to read a log without knowing
//! Parquet.
//!
//! Order: `log`, then `function`, `packet` (by first moment), `call` (as in the call table), `event`, `frame`, `loss`. With a
//! choice of packets only what belongs to them.

use crate::names::{Names, context, drop_reason, loss, packet, process};
use crate::{Counts, Result};
use kpat_model::wall::WallStep;
use kpat_query::Parts;
use kpat_query::trace::{Chosen, TreeOfCalls};
use kpat_query::{
    EventFilter, FrameFilter, FrameWithPackets, Store, call_flag, event_kind, match_key, side, verdict,
};
use kpat_store::tables::{LossRow, PacketRow};
use serde::Serialize;
use std::collections::HashSet;
use std::io::Write;

/// Version of what the lines mean; a new field does not change it.
pub const VERSION: u32 = 1;

#[derive(Serialize)]
struct LogLine<'a> {
    kind: &'static str,
    version: u32,
    writer: &'a str,
    hostname: &'a str,
    kernel: &'a str,
    mechanism: &'a str,
    first_boot_ns: i64,
    last_boot_ns: i64,
    wall_at_start_ns: i64,
    boot_at_start_ns: i64,
    /// When that clock was set, and by how much.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    wall_steps: &'a [WallStep],
}

#[derive(Serialize)]
struct FunctionLine<'a> {
    kind: &'static str,
    func_id: i32,
    name: &'a str,
    module: &'a str,
    layer: &'a str,
    is_tracepoint: bool,
}

#[derive(Serialize)]
struct PacketLine<'a> {
    kind: &'static str,
    packet_id: i64,
    what: String,
    first_boot_ns: i64,
    last_boot_ns: i64,
    path_ns: i64,
    kernel_ns: i64,
    driver_ns: Option<i64>,
    softirq_ns: Option<i64>,
    card_ns: Option<i64>,
    card_bound_ns: Option<i64>,
    stamp_ns: Option<i64>,
    ethertype: Option<i32>,
    ip_proto: Option<i32>,
    src_addr: &'a Option<String>,
    dst_addr: &'a Option<String>,
    src_port: Option<i32>,
    dst_port: Option<i32>,
    len_bytes: i64,
    calls: i32,
    points: i32,
    frames: i32,
    verdict: &'static str,
    drop_reason: Option<String>,
    pid: Option<i32>,
    process: Option<&'a str>,
    match_confidence_percent: Option<i32>,
}

#[derive(Serialize)]
struct CallLine<'a> {
    kind: &'static str,
    call_id: i64,
    packet_ids: &'a [i64],
    function: &'a str,
    entry_boot_ns: i64,
    dur_ns: Option<i64>,
    self_ns: Option<i64>,
    irq_ns: Option<i64>,
    off_ns: Option<i64>,
    parent_id: Option<i64>,
    depth: i32,
    cpu: i32,
    context: &'static str,
    pid: i32,
    flags: i32,
}

#[derive(Serialize)]
struct EventLine<'a> {
    kind: &'static str,
    event: String,
    what: String,
    at_boot_ns: i64,
    packet_id: Option<i64>,
    place: &'a str,
    cpu: Option<i32>,
    context: &'static str,
    pid: Option<i32>,
    a: i64,
    b: i64,
    text: &'a str,
    after_boot_ns: Option<i64>,
}

#[derive(Serialize)]
struct FrameLine {
    kind: &'static str,
    capture_id: i32,
    number: i64,
    wall_ns: i64,
    boot_ns: Option<i64>,
    len_bytes: i32,
    captured_bytes: i32,
    packets: Vec<OfFrame>,
}

#[derive(Serialize)]
struct OfFrame {
    packet_id: i64,
    side: &'static str,
    key: &'static str,
    confidence_percent: i32,
    alternatives: i32,
    residual_ns: i64,
    bound_ns: i64,
}

#[derive(Serialize)]
struct LossLine {
    kind: &'static str,
    cause: String,
    cpu: Option<i32>,
    from_boot_ns: i64,
    to_boot_ns: i64,
    count: i64,
}

fn line(out: &mut dyn Write, value: &impl Serialize) -> Result<()> {
    serde_json::to_writer(crate::text::PlainJson(&mut *out), value).map_err(std::io::Error::from)?;
    Ok(out.write_all(b"\n")?)
}

pub fn write(store: &Store, chosen: &Chosen, out: &mut dyn Write, progress: Parts<'_>) -> Result<Counts> {
    let names = Names::of(store)?;
    let m = store.manifest();
    line(
        out,
        &LogLine {
            kind: "log",
            version: VERSION,
            writer: &m.writer,
            hostname: &m.log.hostname,
            kernel: &m.log.kernel_release,
            mechanism: &m.log.mechanism,
            first_boot_ns: m.first_ns,
            last_boot_ns: m.last_ns,
            wall_at_start_ns: m.log.started.wall.0,
            boot_at_start_ns: m.log.started.boot.0,
            wall_steps: &m.wall_steps,
        },
    )?;
    for f in names.functions() {
        line(
            out,
            &FunctionLine {
                kind: "function",
                func_id: f.func_id,
                name: &f.name,
                module: names.module(f.func_id),
                layer: &f.layer,
                is_tracepoint: f.kind == "tracepoint",
            },
        )?;
    }
    let mut counts = Counts::default();
    // Only where a choice was made must be known which they are.
    let all = chosen.is_all();
    let mut ids: HashSet<i64> = HashSet::new();
    counts.packets = store.each_chosen(chosen, &mut |p: PacketRow| -> Result<()> {
        if !all {
            ids.insert(p.packet_id);
        }
        one_packet(store, &p, out)
    })?;
    calls(store, chosen, &names, &mut counts, out, progress)?;
    for e in store.events(&EventFilter::default(), 0)?.rows {
        if all || e.event.packet_id.is_some_and(|p| ids.contains(&p)) {
            line(
                out,
                &EventLine {
                    kind: "event",
                    event: event_kind(e.event.kind),
                    what: e.what(),
                    at_boot_ns: e.event.at_ns,
                    packet_id: e.event.packet_id,
                    place: &e.place,
                    cpu: e.event.cpu,
                    context: context(e.event.ctx),
                    pid: e.event.pid,
                    a: e.event.a,
                    b: e.event.b,
                    text: &e.event.text,
                    after_boot_ns: e.event.after_ns,
                },
            )?;
        }
    }
    store.each_frame(&FrameFilter::default(), &mut |f: FrameWithPackets| -> Result<bool> {
        if all || f.packets.iter().any(|p| ids.contains(&p.association.packet_id)) {
            counts.frames += 1;
            counts.annotated += u64::from(!f.packets.is_empty());
            one_frame(&f, out)?;
        }
        Ok(true)
    })?;
    let losses: Vec<LossRow> = store.table::<LossRow>()?.all()?;
    for l in losses {
        let (cause, cpu) = (loss(l.cause), l.cpu);
        let (from_boot_ns, to_boot_ns, count) = (l.from_ns, l.to_ns, l.count);
        line(out, &LossLine { kind: "loss", cause, cpu, from_boot_ns, to_boot_ns, count })?;
    }
    Ok(counts)
}

fn one_packet(store: &Store, p: &PacketRow, out: &mut dyn Write) -> Result<()> {
    line(
        out,
        &PacketLine {
            kind: "packet",
            packet_id: p.packet_id,
            what: packet(p),
            first_boot_ns: p.first_ns,
            last_boot_ns: p.last_ns,
            path_ns: p.path_ns,
            kernel_ns: p.kernel_ns,
            driver_ns: p.driver_ns,
            softirq_ns: p.softirq_ns,
            card_ns: p.card_ns,
            card_bound_ns: p.card_bound_ns,
            stamp_ns: p.stamp_ns,
            ethertype: p.ethertype,
            ip_proto: p.proto,
            src_addr: &p.src_addr,
            dst_addr: &p.dst_addr,
            src_port: p.sport,
            dst_port: p.dport,
            len_bytes: p.len_bytes,
            calls: p.calls,
            points: p.points,
            frames: p.frames,
            verdict: verdict::name(p.verdict),
            drop_reason: drop_reason(store, p),
            pid: p.pid,
            process: process(store, p).map(|q| q.1),
            match_confidence_percent: p.confidence,
        },
    )
}

fn calls(
    store: &Store,
    chosen: &Chosen,
    names: &Names,
    counts: &mut Counts,
    out: &mut dyn Write,
    progress: Parts<'_>,
) -> Result<()> {
    let mut packets: Vec<i64> = Vec::new();
    store.each_tree(chosen, progress, &mut |tree: &TreeOfCalls<'_>| -> Result<()> {
        for (i, row) in tree.rows().iter().enumerate().filter(|(i, _)| tree.is_chosen(*i)) {
            counts.call(row);
            packets.clear();
            packets.extend(tree.packets(i));
            let is_point = row.flags & call_flag::POINT != 0;
            line(
                out,
                &CallLine {
                    kind: if is_point { "point" } else { "call" },
                    call_id: row.call_id,
                    packet_ids: &packets,
                    function: names.name(row.func_id),
                    entry_boot_ns: row.entry_ns,
                    dur_ns: row.dur_ns,
                    self_ns: row.self_ns,
                    irq_ns: row.irq_ns,
                    off_ns: row.off_ns,
                    parent_id: row.parent_id,
                    depth: row.depth,
                    cpu: row.cpu,
                    context: context(row.ctx),
                    pid: row.pid,
                    flags: row.flags,
                },
            )?;
        }
        Ok(())
    })
}

fn one_frame(f: &FrameWithPackets, out: &mut dyn Write) -> Result<()> {
    let packets = f
        .packets
        .iter()
        .map(|p| OfFrame {
            packet_id: p.association.packet_id,
            side: side::name(p.association.side),
            key: match_key::name(p.association.key),
            confidence_percent: p.association.confidence,
            alternatives: p.association.alternatives,
            residual_ns: p.association.residual_ns,
            bound_ns: p.association.bound_ns,
        })
        .collect();
    let f = &f.frame;
    line(
        out,
        &FrameLine {
            kind: "frame",
            capture_id: f.capture_id,
            number: f.number,
            wall_ns: f.wall_ns,
            boot_ns: f.boot_ns,
            len_bytes: f.len_bytes,
            captured_bytes: f.captured_bytes,
            packets,
        },
    )
}
