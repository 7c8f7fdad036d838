//! Where the packets' time went, and their path times over time.

use super::{Answer, Ask, Failure, Progress};
use crate::answers::functions::{HistogramStep, Latency, LatencyBin, LatencyPoint, TimeRow, TimeSpent};
use crate::answers::{Columns, Ns};
use kpat_query::catalog::{Entry, bin};
use kpat_query::phases::Phase;
use kpat_query::time::{FunctionTime, GroupTime, Spread, TimeQuestion, TimeReport, time as times};
use kpat_query::verdict;
use std::collections::BTreeMap;

/// Functions in one answer.
const MOST_FUNCTIONS: usize = 200;
/// Packets that are points of their own.
const MOST_POINTS: usize = 4_000;
/// The slowest, where packets are more.
const SLOWEST: usize = 200;

pub fn time(ask: &Ask<'_>, progress: Progress<'_>) -> Answer<TimeSpent> {
    let filter = ask.packet_filter(progress)?;
    let question = TimeQuestion { filter, ..TimeQuestion::default() };
    let report = ask.log.times.get_or_once(
        ask.text_of_filter().to_owned(),
        progress,
        |p| if p("adding up times", 0, 1) { Ok(()) } else { Err(Failure::Left) },
        |p| {
            let mut step = |done, parts| p("adding up times", done, parts);
            Ok::<_, Failure>(times(&ask.log.store, &question, &mut step)?)
        },
    )?;
    Ok(answer(&report))
}

fn answer(report: &TimeReport) -> TimeSpent {
    let group = report.groups.first();
    let none = Spread::default();
    let path = group.map_or(&none, |g| &g.path);
    let own: i64 = group.map_or(0, |g| g.functions.iter().map(|f| f.own.sum()).sum());
    let functions = group.map_or(&[][..], |g| &g.functions);
    TimeSpent {
        packets: group.map_or(0, |g| g.packets),
        path: row("path", "path", "", path, path.sum()),
        parts: group.map_or_else(Vec::new, |g| parts(g, report.points_only)),
        functions: functions.iter().take(MOST_FUNCTIONS).map(|f| function(f, own)).collect(),
        points_only: report.points_only,
        pauses: report.pauses,
        probe_cost_ns: report.run_cost.map(|c| c.ns),
    }
}

/// As `kpat time` lists them; copying to a reader is in the socket layer's functions already.
fn parts(g: &GroupTime, points_only: bool) -> Vec<TimeRow> {
    let path = g.path.sum();
    let layers = g.layers.iter().filter(|l| l.per_packet.count() > 0);
    let mut rows: Vec<TimeRow> =
        layers.map(|l| row("layer", &l.layer, &l.layer, &l.per_packet, path)).collect();
    for (kind, fits) in [("wait", Phase::is_wait as fn(Phase) -> bool), ("card", |p| p == Phase::DmaTx)] {
        let found = g.waits.iter().filter(|w| fits(w.kind));
        rows.extend(found.map(|w| row(kind, w.kind.label(), w.kind.name(), &w.time, path)));
    }
    if !points_only && g.unrecorded.sum() > 0 {
        rows.push(row("unrecorded", "not recorded", "", &g.unrecorded, path));
    }
    rows
}

fn function(f: &FunctionTime, all: i64) -> TimeRow {
    TimeRow {
        id: Some(f.func_id),
        times: f.calls,
        off: Ns(f.off_ns),
        ..row("function", &f.name, &f.layer, &f.own, all)
    }
}

fn row(kind: &str, name: &str, layer: &str, s: &Spread, whole: i64) -> TimeRow {
    let q = s.quantiles(&[0.5, 0.9, 0.99]);
    TimeRow {
        id: None,
        kind: kind.to_owned(),
        name: name.to_owned(),
        layer: layer.to_owned(),
        times: s.count(),
        total: Ns(s.sum()),
        share: s.sum() as f64 / whole.max(1) as f64,
        off: Ns(0),
        min: s.min().map(Ns),
        median: q[0].map(Ns),
        p90: q[1].map(Ns),
        p99: q[2].map(Ns),
        max: s.max().map(Ns),
        buckets: s.buckets().iter().filter(|b| b.count > 0).map(|b| (Ns(b.from_ns), b.count)).collect(),
    }
}

pub fn latency(ask: &Ask<'_>, progress: Progress<'_>) -> Answer<Latency> {
    let bins = ask.number::<usize>("bins")?.unwrap_or(120).clamp(1, 4_000);
    let (from, to) = ask.stretch()?;
    let start = ask.log.start_ns();
    let catalog = ask.catalog(progress)?;
    let places = ask.places(&catalog, (None, false), progress)?;
    let all = places.iter().map(|&i| &catalog.entries[i as usize]);
    let mut chosen: Vec<&Entry> =
        all.filter(|e| e.is_packet() && (from..=to).contains(&e.first_ns)).collect();
    let mut spread = Spread::default();
    let mut by_bin: BTreeMap<usize, Spread> = BTreeMap::new();
    let mut histogram: BTreeMap<i64, (i64, u64)> = BTreeMap::new();
    for e in &chosen {
        spread.push(e.path_ns);
        if let Some(b) = bin(e.first_ns, from, to, bins) {
            by_bin.entry(b).or_default().push(e.path_ns);
        }
        let (low, below) = step_of(e.path_ns);
        histogram.entry(low).or_insert((below, 0)).1 += 1;
    }
    let all_points = chosen.len() <= MOST_POINTS;
    let packets = chosen.len() as u64;
    if !all_points {
        chosen.select_nth_unstable_by_key(SLOWEST, |e| std::cmp::Reverse(e.path_ns));
        chosen.truncate(SLOWEST);
        chosen.sort_by_key(|e| (e.first_ns, e.id));
    }
    let q = spread.quantiles(&[0.5, 0.9, 0.99]);
    Ok(Latency {
        from: Ns(from - start),
        to: Ns(to - start),
        pieces: u32::try_from(bins).unwrap_or(u32::MAX),
        packets,
        min: spread.min().map(Ns),
        median: q[0].map(Ns),
        p90: q[1].map(Ns),
        p99: q[2].map(Ns),
        max: spread.max().map(Ns),
        bins: Columns(by_bin.iter().map(|(b, s)| of_bin(*b, s)).collect()),
        points: Columns(chosen.iter().map(|e| point(e, start)).collect()),
        all_points,
        histogram: histogram
            .into_iter()
            .map(|(low, (below, n))| HistogramStep { from: Ns(low), below: Ns(below), packets: n })
            .collect(),
    })
}

fn of_bin(b: usize, s: &Spread) -> LatencyBin {
    let q = s.quantiles(&[0.0, 0.1, 0.5, 0.9, 0.99, 1.0]);
    let at = |i: usize| Ns(q[i].unwrap_or(0));
    LatencyBin {
        bin: u32::try_from(b).unwrap_or(u32::MAX),
        packets: s.count(),
        min: at(0),
        p10: at(1),
        median: at(2),
        p90: at(3),
        p99: at(4),
        max: at(5),
    }
}

fn point(e: &Entry, start: i64) -> LatencyPoint {
    LatencyPoint {
        packet: e.id,
        t: Ns(e.first_ns.saturating_sub(start)),
        path_ns: Ns(e.path_ns),
        dropped: verdict::name(i32::from(e.verdict)) == "dropped",
    }
}

/// A quarter of the power of two that a time is in, from and below; below 4 ns all in one.
fn step_of(ns: i64) -> (i64, i64) {
    let Some(power) = ns.checked_ilog2().filter(|p| *p >= 2) else { return (0, 4) };
    let low = (ns >> (power - 2)) << (power - 2);
    (low, low.saturating_add(1 << (power - 2)))
}

#[cfg(test)]
mod tests {
    use super::step_of;

    #[test]
    fn steps_of_the_histogram_meet() {
        let mut below = 0;
        for ns in 0..5_000 {
            let (low, high) = step_of(ns);
            assert!((low..high).contains(&ns), "{ns}: {low} {high}");
            assert!(low == below || high == below || below == 0, "{ns}: a gap before {low}");
            below = high;
        }
        assert_eq!(step_of(1 << 62), (1 << 62, (1 << 62) + (1 << 60)));
        assert_eq!((step_of(-5), step_of(i64::MAX).1), ((0, 4), i64::MAX));
    }
}
