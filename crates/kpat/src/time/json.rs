//! The report as JSON.

use kpat_query::time::{Closure, FunctionTime, GroupTime, Spread, TimeReport};
use serde_json::{Value, json};

pub fn value(report: &TimeReport) -> Value {
    json!({
        "sums": sums(&report.closure),
        "points_only": report.points_only,
        "pauses_recorded": report.pauses,
        "probe_ns_per_run_estimate": report.run_cost.map(|c| c.ns),
        "probe_mean_ns_per_run": report.run_cost.map(|c| c.mean_ns),
        "shortest_call_ns": report.run_cost.map(|c| c.shortest_ns),
        "probe_cost_subtracted": report.subtracted,
        "groups": report.groups.iter().map(group).collect::<Vec<_>>(),
    })
}

pub fn sums(c: &Closure) -> Value {
    json!({
        "trees": c.trees,
        "calls": c.calls,
        "violations": c.violations,
        "clamped": c.clamped,
        "without_return": c.no_return,
        "interrupts_ns": c.irq_ns,
        "off_cpu_ns": c.off_ns,
        "self_ns": c.own_ns,
        "self_in_tasks_ns": c.task_own_ns,
        "first_violations": c.examples,
    })
}

pub fn spread(s: &Spread) -> Value {
    let q = s.quantiles(&[0.5, 0.9, 0.99]);
    json!({
        "count": s.count(),
        "sum_ns": s.sum(),
        "mean_ns": s.mean(),
        "min_ns": s.min(),
        "median_ns": q[0],
        "p90_ns": q[1],
        "p99_ns": q[2],
        "max_ns": s.max(),
        "buckets": s.buckets().iter().map(|b| {
            json!({ "from_ns": b.from_ns, "below_ns": b.below_ns, "count": b.count })
        }).collect::<Vec<_>>(),
    })
}

fn group(g: &GroupTime) -> Value {
    json!({
        "group": if g.label.is_empty() { "all" } else { &g.label },
        "packets": g.packets,
        "path": spread(&g.path),
        "in_functions": spread(&g.processing),
        "waiting": spread(&g.waiting),
        "not_recorded": spread(&g.unrecorded),
        "layers": g.layers.iter().map(|l| {
            json!({ "layer": l.layer, "calls": l.calls, "self_per_packet": spread(&l.per_packet) })
        }).collect::<Vec<_>>(),
        "waits": g.waits.iter().map(|w| {
            json!({ "wait": w.kind.name(), "time": spread(&w.time) })
        }).collect::<Vec<_>>(),
        "functions": g.functions.iter().map(function).collect::<Vec<_>>(),
    })
}

fn function(f: &FunctionTime) -> Value {
    json!({
        "function": f.name,
        "module": if f.module.is_empty() { "vmlinux" } else { &f.module },
        "layer": f.layer,
        "calls": f.calls,
        "self": spread(&f.own),
        "total": spread(&f.total),
        "interrupts_ns": f.irq_ns,
        "off_cpu_ns": f.off_ns,
        "probe_cost_self_ns_estimate": f.cost_own_ns,
        "probe_cost_total_ns_estimate": f.cost_total_ns,
        "clamped_by_subtraction": f.clamped,
    })
}
