//! One packet as JSON. Calls are a flat list in order of entry with depth and parent: easier to filter than a nest,
//! and no log can make it too deep.

use super::layers::{footprint_json, frame_json};
use super::timeline::{Row, Timeline, What};
use crate::function::{context, flag_names};
use crate::open::Integrated;
use crate::{events, packets};
use kpat_model::{LineageKind, LossCause};
use kpat_query::{CallNode, Carried, CarriedBy, PacketDetail, app, match_key, side};
use serde_json::{Value, json};

pub fn value(log: &Integrated, d: &PacketDetail, carried: Option<&Carried>, no_calls: bool) -> Value {
    let calls = if no_calls { &[] } else { d.calls.as_slice() };
    json!({
        "start_boot_ns": log.start_ns(),
        "start_wall_ns": crate::times::wall(log, log.start_ns()),
        "packet": packets::as_json(log, &d.packet),
        "application": carried.map(application),
        "footprints": d.footprints.iter().map(|f| json!({
            "at_boot_ns": f.at_ns,
            "netns": f.netns,
            "ifindex": f.ifindex,
            "len_bytes": f.len_bytes,
            "gso_size_bytes": f.gso_size,
            "gso_segs": f.gso_segs,
            "fields": footprint_json(f),
        })).collect::<Vec<_>>(),
        "frames": d.frames.iter().map(|f| json!({
            "capture": f.capture,
            "capture_id": f.frame.capture_id,
            "number": f.frame.number,
            "interface": f.interface,
            "side": side::name(f.association.side),
            "wall_ns": f.frame.wall_ns,
            "boot_ns": f.frame.boot_ns,
            "bound_ns": f.association.bound_ns,
            "kernel_boot_ns": f.association.kernel_ns,
            "residual_ns": f.association.residual_ns,
            "key": match_key::name(f.association.key),
            "confidence_percent": f.association.confidence,
            "alternatives": f.association.alternatives,
            "seq_offset_bytes": f.association.seq_offset,
            "via_packet_id": f.via_packet,
            "len_bytes": f.frame.len_bytes,
            "captured_bytes": f.frame.captured_bytes,
            "fields": frame_json(&f.frame),
        })).collect::<Vec<_>>(),
        "calls": Timeline::new(calls).rows().iter().filter_map(|r| call(log, r)).collect::<Vec<_>>(),
        "events": d.events.iter().map(|e| events::as_json(log, e)).collect::<Vec<_>>(),
        "programs": d.programs.iter().map(|e| events::as_json(log, e)).collect::<Vec<_>>(),
        "lineage": d.lineage.iter().map(|l| json!({
            "at_boot_ns": l.at_ns,
            "kind": LineageKind::from_number(l.kind).map(LineageKind::name),
            "parent_id": l.parent_id,
            "child_id": l.child_id,
            "inferred": l.inferred.is_some(),
        })).collect::<Vec<_>>(),
        "drop_explained": d.drop_explained().map(|e| json!({"means": e.does, "look_at": e.slow, "source": e.source})),
        "losses": d.losses.iter().map(|l| json!({
            "cause": LossCause::from_number(l.cause).map(LossCause::name),
            "cpu": l.cpu,
            "from_boot_ns": l.from_ns,
            "to_boot_ns": l.to_ns,
            "count": l.count,
        })).collect::<Vec<_>>(),
    })
}

fn application(c: &Carried) -> Value {
    let end = |e: &CarriedBy| {
        json!({
            "socket_id": e.socket.socket_id,
            "process": e.process,
            "offset": e.offset,
            "missing_bytes": e.missing_bytes,
            "calls": e.calls.iter().map(|b| json!({
                "id": b.id,
                "at_boot_ns": b.at_ns,
                "bytes": b.bytes,
                "carried_bytes": b.carried_bytes,
                "carried_from": b.carried_from,
                "pid": b.pid,
                "error": b.error.map(app::errno),
            })).collect::<Vec<_>>(),
        })
    };
    json!({
        "payload_bytes": c.payload_bytes,
        "written": c.written.as_ref().map(end),
        "read": c.read.as_ref().map(end),
        "also_read": c.also_read.iter().map(end).collect::<Vec<_>>(),
    })
}

fn call(log: &Integrated, row: &Row<'_>) -> Option<Value> {
    let What::Call(node) = row.what else { return None };
    let CallNode { call, name, module, layer, gap_ns, handover, returned, .. } = node;
    Some(json!({
        "call_id": call.call_id,
        "parent_call_id": call.parent_id,
        "depth": node.depth,
        "cut_in": row.cut_in,
        "function": name,
        "module": if module.is_empty() { "vmlinux" } else { module },
        "layer": layer,
        "entry_boot_ns": call.entry_ns,
        "dur_ns": call.dur_ns,
        "self_ns": call.self_ns,
        "irq_ns": call.irq_ns,
        "off_ns": call.off_ns,
        "gap_ns": gap_ns,
        "cpu": call.cpu,
        "context": context(call.ctx),
        "pid": call.pid,
        "process": log.process(call.pid, call.entry_ns).map(|p| p.comm.as_str()),
        "flags": flag_names(call.flags),
        "skb_tag": call.skb_tag,
        "returned": returned,
        "len_bytes": call.len_bytes,
        "handover": handover.as_ref().map(|h| json!({
            "kind": h.kind.name(),
            "from_boot_ns": h.from_ns,
            "to_boot_ns": h.to_ns,
            "wait_ns": h.wait_ns,
            "from_function": h.from,
            "to_function": h.to,
        })),
    }))
}
