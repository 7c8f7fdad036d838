//! One packet with everything known of it.

use super::functions::ctx;
use super::info::losses;
use super::packets::row;
use super::{Answer, Ask};
use crate::answers::packets::{
    Call, Crossing, Direction, Frame, Handover, Layer, LayerField, Lineage, LineageEdge, LineageNode,
    NodeKind, Packet, PacketCall, PacketEnd, PacketEvent, Process, Segment,
};
use crate::answers::{Big, Ns};
use crate::open::Log;
use kpat_model::LineageKind;
use kpat_query::catalog::Catalog;
use kpat_query::devices::Several;
use kpat_query::layers::{Layer as Fields, matched, of_footprint, of_frame};
use kpat_query::phases::{Boundaries, Phase, way_of};
use kpat_query::{
    BytesOfCall, CallNode, CarriedBy, PacketDetail, app, call_flag, event_kind, match_key, side,
};
use kpat_store::tables::CrossingRow;
use std::collections::BTreeMap;

pub fn packet(ask: &Ask<'_>) -> Answer<Packet> {
    let id: i64 = ask.needed("id")?;
    let log = ask.log;
    let start = log.start_ns();
    let detail = log.store.packet(id)?;
    let shown = match log.loaded() {
        Some(catalog) => catalog.place(id).map(|i| row(ask, &catalog, &catalog.entries[i])),
        None => None,
    };
    let shown = match shown {
        Some(shown) => shown,
        None => {
            let alone = Catalog::of_packet(&log.store, &detail)?;
            row(ask, &alone, &alone.entries[0])
        }
    };
    let (calls, handovers) = calls(log, &detail.calls);
    let way = way_of(&log.store, &detail, &Boundaries::default())?;
    let explained = detail.drop_explained().map(|e| (e.does.to_owned(), e.slow.to_owned()));
    let (drop_means, drop_look_at) = explained.unzip();
    Ok(Packet {
        row: shown,
        layers: layers(&detail),
        frames: frames(log, &detail),
        calls,
        handovers,
        segments: way
            .segments
            .iter()
            .map(|s| Segment {
                phase: s.phase.name().to_owned(),
                label: match s.phase {
                    Phase::LinkRx if s.to_ns <= way.seen_ns => "driver's poll".to_owned(),
                    phase => phase.label().to_owned(),
                },
                wait: s.phase.is_wait(),
                from: Ns(s.from_ns.saturating_sub(start)),
                to: Ns(s.to_ns.saturating_sub(start)),
            })
            .collect(),
        events: detail
            .events
            .iter()
            .map(|e| PacketEvent {
                t: Ns(e.event.at_ns.saturating_sub(start)),
                kind: event_kind(e.event.kind),
                words: if e.place.is_empty() { e.what() } else { format!("{} at {}", e.what(), e.place) },
            })
            .collect(),
        lineage: lineage(log, &detail),
        losses: losses(log, &detail.losses),
        crossings: crossings(log, id)?,
        process: detail.process.as_ref().map(|p| Process { pid: p.pid, tgid: p.tgid, comm: p.comm.clone() }),
        drop_means,
        drop_look_at,
        ends: ends(log, &detail)?,
    })
}

/// Of the calls that have bytes of a packet; a segment of 64 KiB read byte by byte has as many.
const LISTED_CALLS: usize = 100;

fn ends(log: &Log, d: &PacketDetail) -> Answer<Vec<PacketEnd>> {
    let Some(carried) = log.store.carried(d)? else { return Ok(Vec::new()) };
    let end = |wrote: bool, e: &CarriedBy| {
        let pid = e.calls.first().and_then(|c| c.pid).or(e.socket.pid);
        let call = |c: &BytesOfCall| PacketCall {
            id: c.id,
            t: Ns(c.at_ns.saturating_sub(log.start_ns())),
            bytes: c.bytes,
            carried: c.carried_bytes,
            error: c.error.map(app::errno),
        };
        PacketEnd {
            wrote,
            socket: Big(e.socket.socket_id),
            process: pid.and_then(|p| log.store.process(p, d.packet.first_ns)).map(|p| p.comm.clone()),
            pid,
            payload: carried.payload_bytes,
            offset: e.offset,
            missing: e.missing_bytes,
            calls: e.calls.iter().take(LISTED_CALLS).map(call).collect(),
            all_calls: e.calls.len(),
        }
    };
    let written = carried.written.as_ref().map(|e| end(true, e));
    let read = carried.read.iter().chain(&carried.also_read).map(|e| end(false, e));
    Ok(written.into_iter().chain(read).collect())
}

fn layers(d: &PacketDetail) -> Vec<Layer> {
    let Some(first) = d.footprints.first() else {
        // Never seen by its headers: those of a frame are as good.
        return d.frames.first().map(|f| shown(&of_frame(&f.frame), &[], &[])).unwrap_or_default();
    };
    let layers = of_footprint(first);
    let later: Vec<Vec<Fields>> = d.footprints[1..].iter().map(of_footprint).collect();
    shown(&layers, &matched(&layers, &d.frames), &later)
}

pub fn shown(layers: &[Fields], matched: &[&str], later: &[Vec<Fields>]) -> Vec<Layer> {
    let changed = |id: &str, first: &str| {
        let mut values: Vec<&str> = vec![first];
        for f in later.iter().flat_map(|l| l.iter().flat_map(|l| &l.fields)).filter(|f| f.id == id) {
            if values.last() != Some(&f.text.as_str()) {
                values.push(&f.text);
            }
        }
        (values.len() > 1).then(|| values[1..].join(", then "))
    };
    layers
        .iter()
        .map(|l| {
            let text = |id: &str| l.fields.iter().find(|f| f.id == id).map(|f| f.text.as_str());
            let pair = |a: &str, b: &str| match (text(a), text(b)) {
                (Some(a), Some(b)) => Some(format!("{a} → {b}")),
                _ => None,
            };
            let named = l.fields.iter().filter(|f| f.label.is_empty()).map(|f| f.text.as_str());
            let ends = pair("ip_src", "ip_dst")
                .or_else(|| pair("sport", "dport"))
                .or_else(|| pair("mac_src", "mac_dst"))
                .or_else(|| pair("wifi_ta", "wifi_ra"));
            let summary: Vec<&str> = named.chain(ends.as_deref()).collect();
            Layer {
                name: l.name.clone(),
                summary: summary.join(", "),
                fields: l
                    .fields
                    .iter()
                    .map(|f| LayerField {
                        name: if f.label.is_empty() { f.id.replace('_', " ") } else { f.label.to_owned() },
                        value: f.text.clone(),
                        matched: matched.contains(&f.id),
                        changed: changed(f.id, &f.text),
                    })
                    .collect(),
            }
        })
        .collect()
}

fn frames(log: &Log, d: &PacketDetail) -> Vec<Frame> {
    let start = log.start_ns();
    d.frames
        .iter()
        .map(|f| Frame {
            capture: f.capture.clone(),
            number: f.frame.number,
            t: f.frame.boot_ns.map(|t| Ns(t.saturating_sub(start))),
            wall_ns: Big(f.frame.wall_ns),
            len: f.frame.len_bytes,
            key: match_key::name(f.association.key).to_owned(),
            confidence: f.association.confidence,
            alternatives: f.association.alternatives,
            bound_ns: Ns(f.association.bound_ns),
            residual_ns: Ns(f.association.residual_ns),
            side: side::name(f.association.side).to_owned(),
            via_packet: f.via_packet,
        })
        .collect()
}

/// Calls in preorder, and the edges between their trees.
fn calls(log: &Log, roots: &[CallNode]) -> (Vec<Call>, Vec<Handover>) {
    let start = log.start_ns();
    let mut calls: Vec<Call> = Vec::new();
    let mut handovers: Vec<Handover> = Vec::new();
    // (end, id) of trees so far: a hand-over begins where one ended.
    let mut ends: Vec<(i64, i64)> = Vec::new();
    for root in roots {
        if let Some(h) = &root.handover {
            handovers.push(Handover {
                kind: h.kind.name().to_owned(),
                from: Ns(h.from_ns.saturating_sub(start)),
                to: Ns(h.to_ns.saturating_sub(start)),
                wait: Ns(h.wait_ns),
                from_call: ends.iter().rev().find(|e| e.0 == h.from_ns).map(|e| e.1),
                to_call: Some(root.call.call_id),
            });
        }
        ends.push((root.call.entry_ns.saturating_add(root.call.dur_ns.unwrap_or(0)), root.call.call_id));
        let mut todo: Vec<(&CallNode, Option<i64>)> = vec![(root, None)];
        while let Some((node, parent)) = todo.pop() {
            let c = &node.call;
            todo.extend(node.children.iter().rev().map(|n| (n, Some(c.call_id))));
            calls.push(Call {
                id: c.call_id,
                func: c.func_id,
                name: node.name.clone(),
                layer: node.layer.clone(),
                depth: node.depth,
                parent,
                t: Ns(c.entry_ns.saturating_sub(start)),
                dur: c.dur_ns.map(Ns),
                own: c.self_ns.map(Ns),
                irq: c.irq_ns.map(Ns),
                cpu: c.cpu,
                ctx: ctx(c.ctx),
                pid: c.pid,
                comm: log.comm(c.pid, c.entry_ns),
                point: node.is_point(),
                list: c.flags & call_flag::LIST != 0,
            });
        }
    }
    (calls, handovers)
}

/// Relatives that are drawn.
const MOST_RELATIVES: usize = 200;

fn lineage(log: &Log, d: &PacketDetail) -> Lineage {
    let start = log.start_ns();
    let me = d.packet.packet_id;
    let packet = |id: i64| format!("p{id}");
    let mut nodes: BTreeMap<String, LineageNode> = BTreeMap::new();
    let mut edges = Vec::new();
    let mut add_packet = |id: i64, t: Option<i64>| {
        nodes.entry(packet(id)).or_insert_with(|| LineageNode {
            kind: NodeKind::Packet,
            id: packet(id),
            words: format!("packet {id}"),
            t: t.map(|t| Ns(t.saturating_sub(start))),
        });
    };
    add_packet(me, Some(d.packet.first_ns));
    for l in d.lineage.iter().take(MOST_RELATIVES) {
        add_packet(l.parent_id, None);
        add_packet(l.child_id, Some(l.at_ns));
        let kind = LineageKind::from_number(l.kind).map_or("?", LineageKind::name);
        edges.push(LineageEdge { from: packet(l.parent_id), to: packet(l.child_id), kind: kind.to_owned() });
    }
    for f in d.frames.iter().take(MOST_RELATIVES) {
        let id = format!("f{}:{}", f.frame.capture_id, f.frame.number);
        let t = f.frame.boot_ns.map(|t| Ns(t.saturating_sub(start)));
        let words = format!("frame {} {}", f.frame.number, f.capture);
        nodes.entry(id.clone()).or_insert(LineageNode { kind: NodeKind::Frame, id: id.clone(), words, t });
        let via = packet(f.via_packet);
        let name = side::name(f.association.side).to_owned();
        edges.push(if f.association.side == side::TRANSMITTED {
            LineageEdge { from: via, to: id, kind: name }
        } else {
            LineageEdge { from: id, to: via, kind: name }
        });
    }
    edges.dedup_by(|a, b| (&a.from, &a.to, &a.kind) == (&b.from, &b.to, &b.kind));
    Lineage { nodes: nodes.into_values().collect(), edges }
}

fn crossings(log: &Log, id: i64) -> Answer<Vec<Crossing>> {
    let Some(among) = &log.among else { return Ok(Vec::new()) };
    let several = Several::open(&among.dir)?;
    let way = several.way(among.place, id)?;
    let here = log.start_ns();
    // Where the frame left plus its flight is where it arrived.
    let apart = |c: &CrossingRow| c.left_ns.saturating_add(c.flight_ns).saturating_sub(c.arrived_ns);
    let one = |c: &CrossingRow, direction: Direction| -> Answer<Crossing> {
        let (device, packet, shift) = match direction {
            Direction::From => (c.from_device, c.from_packet_id, apart(c).saturating_neg()),
            Direction::To => (c.to_device, c.to_packet_id, apart(c)),
        };
        let start = several.start_ns(device)?;
        Ok(Crossing {
            device: several.name(device).to_owned(),
            packet,
            direction,
            flight_ns: Ns(c.flight_ns),
            bound_ns: Ns(c.flight_bound_ns),
            shift_ns: Ns(start.saturating_add(shift).saturating_sub(here)),
        })
    };
    let came = way.came.iter().map(|c| one(c, Direction::From));
    came.chain(way.went.iter().map(|c| one(c, Direction::To))).collect()
}
