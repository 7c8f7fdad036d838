//! Handovers as JSON.

use super::Read;
use crate::open::Integrated;
use crate::times;
use kpat_model::link_address;
use kpat_query::handover::{Cause, FlowGap, Handover, Lane, Mark, Peer, Span, Statistics};
use serde_json::{Value, json};

/// What [`line`] has, in the order of `--tsv`.
pub const FIELDS: [&str; 20] = [
    "handover",
    "begin_boot_ns",
    "begin_wall_ns",
    "end_boot_ns",
    "interface",
    "kind",
    "cause",
    "reason",
    "from",
    "to",
    "whole_ns",
    "without_data_ns",
    "link_ns",
    "search_ns",
    "longest_phase",
    "longest_ns",
    "attempts",
    "ended",
    "flow_gap_ns",
    "log",
];

pub fn line(log: &Integrated, h: &Handover) -> Value {
    let reason = match h.cause {
        Cause::SentAway { reason } | Cause::Left { reason } => Some(reason),
        _ => None,
    };
    let longest = h.longest();
    json!({
        "handover": h.number, "begin_boot_ns": h.begin_ns, "begin_wall_ns": times::wall(log, h.begin_ns), "end_boot_ns": h.end_ns,
        "interface": h.interface, "netns": h.netns, "ifindex": h.ifindex, "kind": h.kind.name(), "cause": h.cause.name(),
        "reason": reason, "from": h.from.bssid.map(link_address::text), "to": h.to.bssid.map(link_address::text),
        "whole_ns": h.whole_ns(), "without_data_ns": h.outage_ns(), "link_ns": h.link_ns(), "search_ns": h.search_ns(),
        "longest_phase": longest.map(|l| l.0.name()), "longest_ns": longest.map(|l| l.1), "attempts": h.attempts,
        "ended": h.ended.name(), "begin_recorded": h.begin_words().is_none(), "flow_gap_ns": h.flow.as_ref().and_then(FlowGap::gap_ns),
        "log": log.dir.file_name().map(|n| n.to_string_lossy().into_owned()),
    })
}

fn mark(m: &Mark) -> Value {
    json!({
        "at_boot_ns": m.at_ns, "within_ns": m.within_ns, "words": m.words(), "table": m.source.table(), "row": m.source.number(),
        "lane": Lane::of(m).name(), "bssid": m.bssid.map(link_address::text),
        "frame": m.frame.map(|(capture, number, at_ns)| json!({
            "capture_id": capture, "number": number, "at_boot_ns": at_ns, "after_mark_ns": at_ns - m.at_ns,
        })),
    })
}

fn peer(p: &Peer) -> Value {
    json!({ "bssid": p.bssid.map(link_address::text), "ssid": p.ssid, "mhz": (p.mhz > 0).then_some(p.mhz) })
}

fn span(h: &Handover, s: &Span) -> Value {
    let steps: Vec<Value> = s
        .steps
        .iter()
        .map(|x| json!({ "from_boot_ns": x.from_ns, "ns": x.to_ns - x.from_ns, "words": x.words }))
        .collect();
    json!({
        "phase": s.phase.name(), "label": s.phase.label(), "group": s.phase.group().name(), "meaning": s.phase.meaning(),
        "from_boot_ns": s.from_ns, "to_boot_ns": s.to_ns, "ns": s.dur_ns(), "share": h.share(s.dur_ns()),
        "begin": mark(&s.begin), "steps": steps, "times": s.times, "why": s.why,
    })
}

fn flow(g: &FlowGap) -> Value {
    json!({
        "flow": g.words, "last_boot_ns": g.last_ns, "first_boot_ns": g.first_ns, "gap_ns": g.gap_ns(), "pace_ns": g.pace_ns,
        "sent": g.sent, "dropped": g.refused, "missing": g.missing, "late": g.late, "elsewhere": g.elsewhere, "paused_ns": g.paused_ns,
        "sends_failed": g.failed, "send_error": (g.failed > 0).then_some(g.error), "sends_known": g.sends_known, "unaddressed_ns": g.unaddressed_ns,
    })
}

pub fn whole(log: &Integrated, h: &Handover) -> Value {
    let mut out = line(log, h);
    out["from"] = peer(&h.from);
    out["to"] = peer(&h.to);
    out["refusals"] = json!(h.refusals);
    for (name, m) in [
        ("begin", Some(&h.begin)),
        ("asked", h.asked.as_ref()),
        ("stop", h.stop.as_ref()),
        ("link_down", h.link_down.as_ref()),
        ("first_authentication", h.first_auth.as_ref()),
        ("link_up", h.link_up.as_ref()),
        ("first_data", h.first_data()),
        ("end", Some(&h.end)),
    ] {
        out[name] = m.map_or(Value::Null, mark);
    }
    out["phases"] = h.spans.iter().map(|s| span(h, s)).collect();
    out["marks"] = h.marks.iter().map(mark).collect();
    out["beside"] = h
        .beside
        .iter()
        .map(|b| {
            json!({
                "log": b.name, "offset_ns": b.offset_ns, "bound_ns": b.bound_ns, "messages": b.messages,
                "marks": b.marks.iter().map(mark).collect::<Vec<_>>(),
            })
        })
        .collect();
    out["lost_records"] = h.lost.into();
    out["marks_left_out"] = h.marks_left_out.into();
    out["flow"] = h.flow.as_ref().map_or(Value::Null, flow);
    out
}

/// `none`: of each log without a handover, why it has none.
pub fn list(logs: &[Read], all: &[(&Read, &Handover)], sums: &Statistics) -> Value {
    let phases: Vec<Value> = sums
        .phases
        .iter()
        .map(|p| {
            json!({
                "phase": p.phase.name(), "handovers": p.count, "median_ns": p.median_ns, "max_ns": p.max_ns, "total_ns": p.total_ns,
                "longest": p.longest,
            })
        })
        .collect();
    let none = logs.iter().filter(|l| l.found.handovers.is_empty());
    let three = |t: (i64, i64, i64)| json!({ "median_ns": t.0, "max_ns": t.1, "total_ns": t.2 });
    json!({
        "handovers": all.iter().map(|(read, h)| line(&read.log, h)).collect::<Vec<_>>(),
        "none": none.map(|l| json!({ "log": l.name, "why": l.found.none() })).collect::<Vec<_>>(),
        "statistics": {
            "handovers": sums.count, "gone": sums.gone, "going_on": sums.going_on, "under_way": sums.underway, "phases": phases, "whole": three(sums.whole_ns), "without_data": sums.outage_ns.map(three),
        },
    })
}
