//! Sockets as JSON.

use crate::open::Integrated;
use kpat_query::app::{self, Ending, Held, Layer, Limits, Spread, Traffic, Which};
use kpat_query::owners::Name;
use serde_json::{Value, json};

pub fn spread(s: &Spread) -> Value {
    json!({
        "count": s.count, "min": s.min, "max": s.max, "mean": s.mean(),
        "median": s.quantile(0.5), "p90": s.quantile(0.9), "p99": s.quantile(0.99), "by_power_of_two": s.powers(),
    })
}

fn errors(l: &Layer) -> Value {
    let by: serde_json::Map<String, Value> =
        l.by_errno.iter().map(|(e, n)| (app::errno(*e), json!(n))).collect();
    Value::Object(by)
}

/// Which end closed it first, which one reset it: `this` is the socket's own.
pub fn ending(e: &Ending) -> Value {
    json!({"closed_first": e.closed_first.map(Which::name), "reset_by": e.reset_by.map(Which::name), "unread_bytes": e.unread_bytes})
}

/// What held it back, in nanoseconds.
pub fn limits(l: &Limits) -> Value {
    let by = |of: &dyn Fn(Held) -> i64| -> serde_json::Map<String, Value> {
        Held::ALL.into_iter().map(|h| (h.field(), json!(of(h)))).collect()
    };
    let mut all = by(&|h| l.held_ns(h));
    all.insert("known_ns".into(), json!(l.known_ns));
    all.insert("recovery_ns".into(), json!(l.recovery_ns));
    all.insert("refused_ns".into(), json!(l.refused_ns));
    all.insert("in_call_ns".into(), json!(l.in_call_ns));
    all.insert("while_refused_or_in_call".into(), Value::Object(by(&|h| l.wanting_ns(h))));
    all.insert("srtt_ns".into(), spread(&l.srtt_ns));
    all.insert("snd_cwnd".into(), spread(&l.snd_cwnd));
    all.insert("total_retrans".into(), json!(l.total_retrans));
    all.insert("ending".into(), ending(&l.ending));
    Value::Object(all)
}

/// What [`socket`] has, in the order of `--tsv`.
pub const FIELDS: [&str; 28] = [
    "socket_id",
    "proto",
    "version",
    "process",
    "pid",
    "netns",
    "cgroup",
    "cgroup_path",
    "uid",
    "user",
    "congestion",
    "error",
    "opening.result",
    "opening.took_ns",
    "local_addr",
    "local_port",
    "peer_addr",
    "peer_port",
    "sent_bytes",
    "received_bytes",
    "crossings.send.events",
    "crossings.to-device.events",
    "crossings.to-device.frames",
    "crossings.recv.events",
    "crossings.retransmit.frames",
    "writes_per_packet",
    "tcp.srtt_ns.mean",
    "tcp.total_retrans",
];

fn questions(log: &Integrated, q: &app::Questions) -> Value {
    json!({
        "sent": q.sent, "read": q.read, "waits": q.wait_ns.count, "wait_ns": spread(&q.wait_ns), "leaving_ns": spread(&q.leaving_ns),
        "away_ns": spread(&q.away_ns), "reading_ns": spread(&q.reading_ns), "longest_asked": q.longest_asked,
        "open_since_ns": q.open_since_ns.map(|at| at - log.start_ns()),
    })
}

pub fn socket(log: &Integrated, t: &Traffic) -> Value {
    let s = &t.socket;
    let owner = log.owner_of_socket(s.socket_id).unwrap_or_default();
    let name = |what| owner.names(what)[0].clone();
    let layers: serde_json::Map<String, Value> = t
        .layers
        .iter()
        .map(|(c, l)| {
            let v = json!({
                "events": l.events, "errors": l.errors, "errors_by_errno": errors(l), "bytes": l.bytes, "frames": l.segments,
                "size_bytes": spread(&l.size_bytes), "spacing_ns": spread(&l.spacing_ns),
                "first_ns": l.first_ns - log.start_ns(), "last_ns": l.last_ns - log.start_ns(),
            });
            (c.name().to_owned(), v)
        })
        .collect();
    json!({
        "socket_id": s.socket_id, "proto": s.proto, "version": s.version, "process": t.process, "pid": s.pid,
        "listener": t.listener.as_ref().map(|(l, process)| json!({"socket_id": l.socket_id, "pid": l.pid, "process": process})),
        "netns": s.netns, "cgroup": s.cgroup, "cgroup_path": owner.path, "unit": name(Name::Unit),
        "container": name(Name::Container), "pod": name(Name::Pod), "uid": s.uid, "user": owner.user, "congestion": s.congestion,
        "error": s.error.map(app::errno),
        "opening": t.opening.map(|o| json!({"result": o.outcome.name(), "took_ns": o.took_ns})),
        "local_addr": s.local_addr, "local_port": s.local_port, "peer_addr": s.peer_addr, "peer_port": s.peer_port,
        "sent_bytes": s.sent_bytes, "received_bytes": s.received_bytes,
        "crossings": layers,
        "writes_per_packet": t.writes_per_packet(),
        "questions": t.questions.as_ref().map(|q| questions(log, q)),
        "waits": t.waits.iter().map(|w| json!({"leg": w.leg.name(), "ns": spread(&w.ns)})).collect::<Vec<_>>(),
        "tcp": t.limits.as_ref().map(limits),
    })
}
