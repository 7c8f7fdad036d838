//! Functions, their calls, call paths, and two logs compared.

use super::{Answer, Ask, Failure, Progress};
use crate::answers::functions::{
    Compare, CompareRemark, CompareRow, Flame, FlameNode, FunctionCall, FunctionDetail, FunctionRow,
    Functions, Neighbour, Side,
};
use crate::answers::packets::Ctx;
use crate::answers::{Columns, Ns};
use crate::open::{Log, Opened};
use kpat_model::Context;
use kpat_query::time::{Change, Measured, Run, Statistic, TimeQuestion, compare as compare_times, time};
use kpat_query::{self as query, CallFilter, FunctionCount, FunctionFilter, FunctionSort, Touched};
use kpat_store::tables::{DurationRow, FunctionRow as Stored};
use std::collections::HashMap;
use std::sync::Arc;

/// Calls of a function that can be turned over.
const MOST_CALLS: usize = 100_000;

pub fn ctx(code: i32) -> Ctx {
    match Context::from_u8(u8::try_from(code).unwrap_or(u8::MAX)) {
        Context::Task => Ctx::Task,
        Context::Softirq => Ctx::Softirq,
        Context::Hardirq => Ctx::Hardirq,
        Context::Nmi => Ctx::Nmi,
        Context::Unknown => Ctx::Unknown,
    }
}

type Buckets = HashMap<i32, Vec<(Ns, u64)>>;

fn buckets(log: &Log) -> Answer<Buckets> {
    let mut out: Buckets = HashMap::new();
    for d in log.store.table::<DurationRow>()?.all::<DurationRow>().map_err(kpat_query::Error::from)? {
        out.entry(d.func_id).or_default().push((Ns(d.from_ns), d.calls.unsigned_abs()));
    }
    Ok(out)
}

fn stored(f: &Stored, buckets: &mut Buckets) -> FunctionRow {
    FunctionRow {
        id: f.func_id,
        name: f.name.clone(),
        module: f.module.clone(),
        layer: f.layer.clone(),
        calls: f.calls.unsigned_abs(),
        packets: f.packets.unsigned_abs(),
        total: Ns(f.total_ns),
        own: Ns(f.self_ns),
        min: f.min_ns.map(Ns),
        median: f.median_ns.map(Ns),
        p99: f.p99_ns.map(Ns),
        max: f.max_ns.map(Ns),
        max_packet: f.max_packet_id,
        buckets: buckets.remove(&f.func_id).unwrap_or_default(),
    }
}

fn counted(log: &Log, f: &FunctionCount) -> FunctionRow {
    let (module, layer) = log.store.function_place(f.func_id);
    let q = f.total.quantiles(&[0.5, 0.99]);
    FunctionRow {
        id: f.func_id,
        name: log.store.function_name(f.func_id).to_owned(),
        module: module.to_owned(),
        layer: layer.to_owned(),
        calls: f.calls,
        packets: f.packets,
        total: Ns(f.total.sum()),
        own: Ns(f.self_ns),
        min: f.total.min().map(Ns),
        median: q[0].map(Ns),
        p99: q[1].map(Ns),
        max: f.total.max().map(Ns),
        max_packet: f.max_packet,
        buckets: f.total.buckets().iter().filter(|b| b.count > 0).map(|b| (Ns(b.from_ns), b.count)).collect(),
    }
}

/// What the chosen packets went through.
fn touched(
    ask: &Ask<'_>,
    within: (Option<i64>, Option<i64>),
    progress: Progress<'_>,
    so_far: &mut dyn FnMut(Touched),
) -> Answer<Arc<Touched>> {
    let key = (ask.text_of_filter().to_owned(), within.0, within.1);
    let filter = ask.packet_filter(progress)?;
    ask.log.touched.get_or(key, || {
        let mut step = |done, parts| progress("reading calls", done, parts);
        Ok(ask.log.store.touched(&filter, within, &mut step, so_far)?)
    })
}

pub fn functions(ask: &Ask<'_>, progress: Progress<'_>) -> Answer<Functions> {
    let within = (ask.number("slower")?, ask.number("faster")?);
    let log = ask.log;
    let rows: Vec<FunctionRow> = if ask.filter()?.is_none() {
        let filter = FunctionFilter {
            slower_than_ns: within.0,
            faster_than_ns: within.1,
            ..FunctionFilter::default()
        };
        let mut buckets = buckets(log)?;
        let list = log.store.functions(&filter, FunctionSort::SelfTime, 0);
        list.rows.iter().map(|f| stored(f, &mut buckets)).collect()
    } else {
        let rows = |found: &Touched| {
            found.functions.iter().filter(|f| f.calls > 0).map(|f| counted(log, f)).collect::<Vec<_>>()
        };
        let so_far = &mut |part: Touched| {
            if let Ok(rows) = sorted(ask, rows(&part)) {
                ask.so_far(&Functions { rows, probe_cost_ns: log.store.probe_cost_ns() });
            }
        };
        rows(&*touched(ask, within, progress, so_far)?)
    };
    Ok(Functions { rows: sorted(ask, rows)?, probe_cost_ns: log.store.probe_cost_ns() })
}

fn sorted(ask: &Ask<'_>, mut rows: Vec<FunctionRow>) -> Answer<Vec<FunctionRow>> {
    let most = |n: Option<Ns>| std::cmp::Reverse(n.map_or(i64::MIN, |n| n.0));
    match ask.request.get("sort").unwrap_or_default() {
        "" | "self" => rows.sort_by_key(|f| most(Some(f.own))),
        "total" => rows.sort_by_key(|f| most(Some(f.total))),
        "calls" => rows.sort_by_key(|f| std::cmp::Reverse(f.calls)),
        "packets" => rows.sort_by_key(|f| std::cmp::Reverse(f.packets)),
        "min" => rows.sort_by_key(|f| most(f.min)),
        "median" => rows.sort_by_key(|f| most(f.median)),
        "p99" => rows.sort_by_key(|f| most(f.p99)),
        "max" => rows.sort_by_key(|f| most(f.max)),
        "name" => rows.sort_by(|a, b| b.name.cmp(&a.name)),
        "layer" => rows.sort_by(|a, b| (&b.layer, &b.name).cmp(&(&a.layer, &a.name))),
        "module" => rows.sort_by(|a, b| (&b.module, &b.name).cmp(&(&a.module, &a.name))),
        other => return Err(Failure::words(format!("no column `{other}` to sort by"))),
    }
    // All of these are descending.
    if ask.request.get("sort").is_some_and(|s| !s.is_empty()) && !ask.flag("desc") {
        rows.reverse();
    }
    Ok(rows)
}

pub fn function(ask: &Ask<'_>, progress: Progress<'_>) -> Answer<FunctionDetail> {
    let id: i32 = ask.needed("id")?;
    let (from, count) = ask.page()?;
    let log = ask.log;
    let start = log.start_ns();
    if from + count > MOST_CALLS {
        return Err(Failure::words(format!(
            "only the first {MOST_CALLS} calls can be listed; narrow the thresholds"
        )));
    }
    let filter = CallFilter {
        slower_than_ns: ask.number("slower")?,
        faster_than_ns: ask.number("faster")?,
        from_ns: None,
        to_ns: None,
        limit: (from + count).max(1),
        longest_first: !ask.flag("by_time"),
        packets: ask.ids(progress)?,
        count_packets: false,
    };
    let detail =
        log.store.function_by_id(id, &filter, &mut |done, parts| progress("reading calls", done, parts))?;
    let flame = log.flame()?;
    let (callers, callees) = flame.neighbours(id);
    let mut of = HashMap::from([(
        id,
        detail.durations.iter().map(|d| (Ns(d.from_ns), d.calls.unsigned_abs())).collect::<Vec<_>>(),
    )]);
    let calls = detail.calls.iter().skip(from).take(count).map(|c| FunctionCall {
        call: c.call.call_id,
        packet: c.call.packet_id,
        t: Ns(c.call.entry_ns.saturating_sub(start)),
        dur: c.call.dur_ns.map(Ns),
        own: c.call.self_ns.map(Ns),
        cpu: c.call.cpu,
        ctx: ctx(c.call.ctx),
        comm: log.comm(c.call.pid, c.call.entry_ns),
    });
    let known = kpat_model::explained::explained(&detail.function.name);
    Ok(FunctionDetail {
        does: known.map(|e| e.does.to_owned()),
        slow: known.map(|e| e.slow.to_owned()),
        calls: Columns(calls.collect()),
        row: stored(&detail.function, &mut of),
        total: detail.total,
        callers: neighbours(log, callers),
        callees: neighbours(log, callees),
    })
}

fn neighbours(log: &Log, of: Vec<query::Neighbour>) -> Vec<Neighbour> {
    of.into_iter()
        .map(|n| Neighbour {
            id: n.func_id.unwrap_or(-1),
            name: n.func_id.map_or("no recorded caller", |f| name(log, f)).to_owned(),
            calls: n.calls,
            total: Ns(n.total_ns),
        })
        .collect()
}

fn name(log: &Log, func_id: i32) -> &str {
    if func_id < 0 { "others" } else { log.store.function_name(func_id) }
}

pub fn flame(ask: &Ask<'_>, progress: Progress<'_>) -> Answer<Flame> {
    let log = ask.log;
    if ask.filter()?.is_none() {
        return Ok(drawn(log, log.flame()?));
    }
    let so_far = &mut |part: Touched| ask.so_far(&drawn(log, &part.flame));
    Ok(drawn(log, &touched(ask, (None, None), progress, so_far)?.flame))
}

/// Nodes that are drawn; smaller ones are left out, deepest first.
const MOST_NODES: usize = 50_000;

fn drawn(log: &Log, flame: &query::Flame) -> Flame {
    let mut least = 0;
    if flame.nodes.len() > MOST_NODES {
        let mut totals: Vec<i64> = flame.nodes.iter().map(|n| n.total_ns).collect();
        let (_, nth, _) = totals.select_nth_unstable_by_key(MOST_NODES, |t| std::cmp::Reverse(*t));
        least = *nth + 1;
    }
    // A caller lasts at least as long as its callees, so what is left is a tree.
    let mut place: Vec<i64> = vec![-1; flame.nodes.len()];
    let mut nodes = Vec::new();
    for (i, n) in flame.nodes.iter().enumerate().filter(|(_, n)| n.total_ns >= least) {
        place[i] = nodes.len() as i64;
        let layer = if n.func_id < 0 { "" } else { log.store.function_place(n.func_id).1 };
        nodes.push(FlameNode {
            func: n.func_id,
            name: name(log, n.func_id).to_owned(),
            layer: layer.to_owned(),
            depth: n.depth,
            parent: n.parent.map_or(-1, |p| place[p]),
            calls: n.calls,
            total: Ns(n.total_ns),
            own: Ns(n.self_ns),
        });
    }
    Flame { total: Ns(flame.total_ns), nodes: Columns(nodes) }
}

pub fn compare(ask: &Ask<'_>, progress: Progress<'_>) -> Answer<Compare> {
    let opened = ask.opened;
    if opened.other.is_empty() {
        return Err(Failure::words("there is no second log; open the view with --compare OTHER.kpat"));
    }
    let log = ask.log;
    let found = log.comparison.get_or((), || {
        let a: Vec<&Log> = std::iter::once(&**log).chain(opened.beside.iter().map(|l| &**l)).collect();
        let b: Vec<&Log> = opened.other.iter().map(|l| &**l).collect();
        let question = TimeQuestion::default();
        let all = (a.len() + b.len()) as u64;
        let mut reports = Vec::new();
        for (i, l) in a.iter().chain(&b).enumerate() {
            let before = i as u64;
            let mut step = |done, parts| progress("reading the runs", before * parts + done, all * parts);
            reports.push(time(&l.store, &question, &mut step)?);
        }
        let runs: Vec<Run<'_>> =
            a.iter().chain(&b).zip(&reports).map(|(l, report)| Run { store: &l.store, report }).collect();
        let (a, b) = runs.split_at(a.len());
        Ok::<_, Failure>(compare_times(a, b, Statistic::Mean)?)
    })?;
    let kinds = [
        ("path", std::slice::from_ref(&found.path)),
        ("layer", &found.layers),
        ("wait", &found.waits),
        ("function", &found.functions),
    ];
    Ok(Compare {
        other: opened.other.iter().map(|l| super::info::name(l)).collect(),
        runs: (found.runs.0 as u64, found.runs.1 as u64),
        enough: found.enough,
        beside: found.control.taken(),
        remarks: found
            .remarks()
            .into_iter()
            .map(|r| CompareRemark { words: r.words, warning: r.warning })
            .collect(),
        rows: kinds.into_iter().flat_map(|(kind, rows)| rows.iter().map(|c| change(kind, c))).collect(),
    })
}

/// The log to compare with, or how many.
pub fn compared_with(opened: &Opened) -> Option<String> {
    let first = super::info::name(opened.other.first()?);
    Some(match opened.other.len() {
        1 => first,
        n => format!("{first} and {} more", n - 1),
    })
}

fn change(kind: &str, c: &Change) -> CompareRow {
    let side = |m: &Measured| {
        let range = m.range_ns();
        (m.count > 0).then(|| Side {
            count: m.count,
            mean: m.ns,
            least: range.map(|r| r.0),
            largest: range.map(|r| r.1),
        })
    };
    CompareRow {
        kind: kind.to_owned(),
        name: c.name.clone(),
        layer: c.layer.clone(),
        verdict: c.verdict.name().to_owned(),
        a: side(&c.a),
        b: side(&c.b),
        ratio: c.ratio,
        tested: c.tested.map(|t| t.0),
        low: c.tested.map(|t| t.1.0),
        high: c.tested.map(|t| t.1.1),
        by_time_ns: c.by_time_ns(),
        by_count_ns: c.by_count_ns(),
        probed: c.probed,
    }
}
