//! Sockets as JSON.

use crate::open::Integrated;
use kpat_analysis::app::{Held, Spread, Traffic};
use serde_json::{Value, json};

pub fn spread(s: &Spread) -> Value {
    json!({
        "count": s.count, "min": s.min, "max": s.max, "mean": s.mean(),
        "median_below": s.quantile(0.5), "p99_below": s.quantile(0.99), "by_power_of_two": s.classes,
    })
}

pub fn socket(log: &Integrated, t: &Traffic) -> Value {
    let s = &t.socket;
    let layers: serde_json::Map<String, Value> = t
        .layers
        .iter()
        .map(|(c, l)| {
            let v = json!({
                "events": l.events, "errors": l.errors, "bytes": l.bytes, "frames": l.segments,
                "size_bytes": spread(&l.size_bytes), "spacing_ns": spread(&l.spacing_ns),
                "first_ns": l.first_ns - log.start_ns(), "last_ns": l.last_ns - log.start_ns(),
            });
            (c.name().to_owned(), v)
        })
        .collect();
    json!({
        "socket_id": s.socket_id, "proto": s.proto, "version": s.version, "process": t.process, "pid": s.pid,
        "netns": s.netns, "cgroup": s.cgroup, "congestion": s.congestion,
        "local_addr": s.local_addr, "local_port": s.local_port, "peer_addr": s.peer_addr, "peer_port": s.peer_port,
        "sent_bytes": s.sent_bytes, "received_bytes": s.received_bytes,
        "crossings": layers,
        "writes_per_packet": t.writes_per_packet(),
        "waits": t.waits.iter().map(|w| json!({"leg": w.leg.name(), "ns": spread(&w.ns)})).collect::<Vec<_>>(),
        "tcp": t.limits.as_ref().map(|l| json!({
            "known_ns": l.known_ns, "application_ns": l.held_ns(Held::Application), "congestion_window_ns": l.held_ns(Held::CongestionWindow),
            "receive_window_ns": l.held_ns(Held::ReceiveWindow), "send_buffer_ns": l.held_ns(Held::SendBuffer),
            "pacing_ns": l.held_ns(Held::Pacing), "device_ns": l.held_ns(Held::Device), "pacing_or_device_ns": l.held_ns(Held::PacingOrDevice),
            "recovery_ns": l.recovery_ns,
            "srtt_ns": spread(&l.srtt_ns), "snd_cwnd": spread(&l.snd_cwnd), "total_retrans": l.total_retrans,
        })),
    })
}
