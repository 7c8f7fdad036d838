//! Phases as JSON.

use crate::time::spread;
use kpat_query::phases::{CardRx, PhaseReport, Way};
use serde_json::{Value, json};

pub fn report(r: &PhaseReport, study: bool) -> Value {
    let mut value = json!({
        "packets": r.packets,
        "packets_with_open_sums": r.open_sums,
        "points_only": r.points_only,
        "emulator": r.emulator,
        "not_measurable": r.missing.iter().map(|m| json!({ "phase": m.phase.name(), "why": m.why })).collect::<Vec<_>>(),
        "dma_rx": r.cards.iter().map(card).collect::<Vec<_>>(),
        "passages": r.passages.iter().map(|p| json!({
            "passage": p.passage.name(),
            "count": p.count,
            "time": spread(&p.time),
            "phases": p.phases.iter().map(|f| json!({
                "phase": f.phase.name(),
                "is_wait": f.phase.is_wait(),
                "meaning": f.phase.meaning(),
                "share": f.share,
                "time": spread(&f.time),
                "in_no_recorded_function_ns": f.uncovered_ns,
                "driver_before_seen_ns": f.unseen.0,
                "passages_with_driver": f.unseen.1,
                "functions": f.functions.iter().map(|g| json!({
                    "function": g.name,
                    "layer": g.layer,
                    "self_ns": g.self_ns,
                    "passages": g.passages,
                })).collect::<Vec<_>>(),
            })).collect::<Vec<_>>(),
        })).collect::<Vec<_>>(),
    });
    if study {
        value["study"] = super::study::json(r);
    }
    value
}

/// An estimate, in no sum; without it `why`.
fn card(c: &CardRx) -> Value {
    let estimate = c.dma.as_ref().ok().map(|b| {
        json!({
            "method": "second: between back-to-back batches, divided by their packets",
            "runs": b.runs,
            "batches": b.batches,
            "packets": b.packets,
            "mean_ns": b.mean_ns,
            "low_ns": b.low_ns,
            "high_ns": b.high_ns,
        })
    });
    json!({
        "netns": c.netns,
        "ifindex": c.ifindex,
        "interface": c.name,
        "driver": c.driver,
        "polls": c.polls,
        "estimate": estimate,
        "why": c.dma.as_ref().err(),
        "stamps": (c.stamps.stamped > 0).then(|| json!({
            "received": c.stamps.received,
            "stamped": c.stamps.stamped,
            "known": c.stamps.known,
            "bound_ns": c.stamps.bound_ns,
        })),
    })
}

pub fn way(w: &Way) -> Value {
    json!({
        "packet_id": w.packet_id,
        "first_boot_ns": w.seen_ns,
        "passages": w.passages.iter().map(|p| p.name()).collect::<Vec<_>>(),
        "segments": w.segments.iter().map(|s| json!({
            "phase": s.phase.name(),
            "is_wait": s.phase.is_wait(),
            "hop": s.hop + 1,
            "from_boot_ns": s.from_ns,
            "to_boot_ns": s.to_ns,
            "dur_ns": s.dur_ns(),
        })).collect::<Vec<_>>(),
    })
}
