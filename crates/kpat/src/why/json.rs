//! Why a connection is slow, as JSON.

use crate::app::json::{ending, spread};
use crate::open::OfDevice;
use kpat_model::Sleep;
use kpat_query::app;
use kpat_query::verdict;
use kpat_query::why::{Beside, ByStage, Drops, End, Opener, PathQueue, Stage, Sum, Threads, Trouble, Why};
use kpat_store::tables::{DeviceRow, SocketRow};
use serde_json::{Map, Value, json};

fn end(of: &OfDevice, s: &SocketRow) -> Value {
    let process = s.pid.and_then(|p| of.log.process(p, s.last_ns));
    json!({
        "device": if of.name.is_empty() { None } else { Some(&of.name) },
        "socket_id": s.socket_id, "local_addr": s.local_addr, "local_port": s.local_port, "peer_addr": s.peer_addr,
        "peer_port": s.peer_port, "pid": s.pid, "tgid": process.map(|p| p.tgid),
        "process": of.log.socket_process(s),
    })
}

fn stages(of: &ByStage) -> Map<String, Value> {
    let all = Stage::ALL.into_iter().filter(|s| of[*s as usize] > 0);
    all.map(|s| (s.name().to_owned(), json!(of[s as usize]))).collect()
}

/// What a stage has, in the order of `--tsv`.
pub const FIELDS: [&str; 12] = [
    "stage",
    "ns",
    "share",
    "low_ns",
    "high_ns",
    "writes",
    "longest_write",
    "known_by",
    "meaning",
    "ran_ns",
    "waited_ns",
    "slept_ns",
];

/// The stages, as the table has them.
pub fn stages_of(w: &Why) -> Vec<Value> {
    let stage = |s: &Sum| {
        let (low, high) = w.bounds_ns(s);
        let of_threads = |ns: fn(&Threads) -> f64| s.threads.as_ref().map(|t| ns(t).round() as i64);
        json!({
            "stage": s.stage.name(), "ns": s.ns.round() as i64, "share": w.share(s), "low_ns": low.round() as i64, "high_ns": high.round() as i64,
            "writes": s.of_writes.count, "of_writes_ns": spread(&s.of_writes), "longest_write": s.longest,
            "known_by": w.records(s.stage), "meaning": w.meaning(s.stage),
            "ran_ns": of_threads(|t| t.ran_ns), "waited_ns": of_threads(|t| t.waited_ns), "slept_ns": of_threads(|t| t.slept_ns),
            "slept_for_ns": s.threads.as_ref().map(slept_for),
        })
    };
    w.stages.iter().map(stage).collect()
}

/// What threads slept for, as far as it is known.
fn slept_for(t: &Threads) -> Value {
    let of = |(sleep, ns): (Sleep, f64)| (sleep.name().to_owned(), json!(ns.round() as i64));
    Value::Object(t.slept_for.longest().into_iter().map(of).collect())
}

/// The packets with which it opened.
fn opening(logs: &[OfDevice], w: &Why) -> Value {
    let packet = |o: &Opener| {
        json!({
            "device": if logs[o.host].name.is_empty() { None } else { Some(&logs[o.host].name) },
            "packet_id": o.packet, "verdict": verdict::name(o.verdict), "drops": o.drops,
            "drop_reason": if o.reason.is_empty() { None } else { Some(&o.reason) },
            "drop_place": if o.place.is_empty() { None } else { Some(&o.place) },
            "drop_device": device(o.device.as_ref()),
        })
    };
    let all = |those: &[Opener]| those.iter().map(packet).collect::<Vec<_>>();
    let unreachable = w.unreachable.iter().map(|u| json!({"packet_id": u.packet, "what": u.what}));
    json!({"syns": all(&w.opening.syns), "answers": all(&w.opening.answers), "refusals": all(&w.opening.refusals), "unreachable": unreachable.collect::<Vec<_>>(), "data_refused": w.refused_with_syn})
}

fn drops(logs: &[OfDevice], d: &Drops) -> Value {
    let text = |t: &str| (!t.is_empty()).then(|| t.to_owned());
    json!({
        "device": text(&logs[d.host].name), "drops": d.drops, "drop_reason": text(&d.reason), "drop_place": text(&d.place),
        "drop_device": device(d.device.as_ref()), "packet_id": d.packet,
    })
}

/// Where something was dropped.
fn device(d: Option<&DeviceRow>) -> Value {
    d.map_or(
        Value::Null,
        |d| json!({"name": d.name, "netns": d.netns, "netns_name": d.netns_name, "ifindex": d.ifindex}),
    )
}

/// Whose turn it was while nothing was under way.
fn turns(w: &Why) -> Value {
    json!({
        "asks": w.asks, "answering_ns": w.answering_ns, "rest_ns": w.rest_ns, "silent_pauses": w.silent.0, "silent_ns": w.silent.1,
        "silent_after_ns": w.silent_after.map(|s| s.ns),
    })
}

/// The queue of the path in which most of the time was.
fn path(p: &PathQueue) -> Value {
    json!({
        "device": p.device.as_ref().map(|d| &d.name), "netns": p.device.as_ref().map(|d| d.netns),
        "ifindex": p.device.as_ref().map(|d| d.ifindex), "stays_ns": spread(&p.stays_ns), "of_round_trip": p.of_round_trip,
    })
}

/// Other sockets in trouble.
fn in_trouble(logs: &[OfDevice], (at, b): &(usize, Beside)) -> Value {
    let (what, error) = match b.trouble {
        Trouble::NoPort => ("no-port", None),
        Trouble::NotConnected(error) => ("not-connected", error),
        Trouble::ConnectedLate => ("connected-late", None),
        Trouble::Ended(error) => ("ended", Some(error)),
    };
    let device = &logs[*at].name;
    json!({
        "trouble": what, "error": error.map(app::errno), "sockets": b.sockets, "worst": b.worst, "ns": b.ns,
        "device": if device.is_empty() { None } else { Some(device) },
    })
}

pub fn value(logs: &[OfDevice], w: &Why, beside: &[(usize, Beside)]) -> Value {
    let log = &logs[w.host].log;
    let first = w.first().map(|s| s.stage.name());
    let rows = stages_of(w);
    let line = |l: &kpat_query::why::WriteLine| {
        json!({
            "number": l.number, "offset": l.offset, "bytes": l.bytes, "from_ns": l.from_ns, "to_ns": l.to_ns,
            "took_ns": l.to_ns - l.from_ns, "stages_ns": stages(&l.stages), "end": l.end.name(), "packet_id": l.packet,
        })
    };
    let ends: Map<String, Value> =
        End::ALL.into_iter().map(|e| (e.name().to_owned(), json!(w.ends[e as usize]))).collect();
    let mut value = json!({
        "first": first, "certain": w.is_certain(),
        "sender": end(&logs[w.host], &w.sender), "peer": w.peer.as_ref().map(|p| end(&logs[w.peer_host], p)),
        "clock": w.clock.as_ref().map(|c| json!({"offset_ns": c.offset_ns, "bound_ns": c.bound_ns})),
        "start_boot_ns": log.start_ns(), "from_ns": w.from_ns, "to_ns": w.to_ns, "whole_ns": w.whole_ns(),
        "stages": rows, "writes": w.writes(), "left_out": w.left_out, "ends": ends, "write_bytes": spread(&w.write_bytes),
        "took_ns": spread(&w.took_ns), "slowest": w.slowest.iter().map(line).collect::<Vec<_>>(), "asked": w.asked.as_ref().map(line), "peers": w.peers,
        "pauses": w.pauses, "answered": w.answered, "tcp_states": w.states, "repairs_ns": w.repairs_ns, "sent_again": w.again, "too_large": w.too_large.map(|t| json!({"bytes": t.bytes, "times": t.times, "acked_bytes": t.acked_bytes, "heard": t.heard})), "turns": turns(w),
        "syns_again": w.syns_again, "refused": w.refused, "connected": w.connected, "unwritten_bytes": w.unwritten_bytes, "opening": opening(logs, w), "error": w.sender.error.map(app::errno),
        "ending": ending(&w.ending), "until_answer": w.until_answer,
        "waited": w.waited.as_ref().map(|w| json!({"packet_id": w.packet, "ns": w.ns, "of_ns": w.of_ns, "device": w.device.as_ref().map(|d| &d.name), "netns": w.device.as_ref().map(|d| d.netns), "ifindex": w.device.as_ref().map(|d| d.ifindex)})),
        "path": w.path.as_ref().map(path),
        "meanwhile": w.meanwhile.as_ref().map(|m| json!({"socket": end(&logs[w.peer_host], &m.socket), "ns": m.ns, "of_ns": m.of_ns})),
        "drops": w.drops.iter().map(|d| drops(logs, d)).collect::<Vec<_>>(),
        "fq_paces": w.fq_paces, "pacing_unknown": w.pacing_unknown, "begins_unknown": w.begins_unknown, "events_lost": w.lost,
    });
    value["beside"] = beside.iter().map(|b| in_trouble(logs, b)).collect();
    value
}
