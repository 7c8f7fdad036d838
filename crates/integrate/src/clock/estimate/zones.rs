//! Frames of which no one line is known to hold: where the clock jumped, at the ends, and where matches refuse the line.

use super::Estimate;
use super::cells::Cells;
use super::cut::Cut;
use super::piece::Piece;
use super::points::{Point, Points};
use std::ops::Range;

/// Frames between two others, and what boot less wall may be there besides what the lines say.
#[derive(Clone, Copy, Debug)]
pub(super) struct Zone {
    pub after: u64,
    pub before: u64,
    pub low: f64,
    pub high: f64,
}

/// What the matches of these rows allow, whatever the line.
fn span(points: &Points, rows: Range<usize>, pad: f64, one_way: f64) -> Option<(f64, f64)> {
    let used: Vec<&Point> = points.all[rows].iter().filter(|p| p.is_strong()).collect();
    if used.is_empty() {
        return None;
    }
    let has = |received| used.iter().any(|p| p.received == received);
    let pad = pad + if has(true) && has(false) { 0.0 } else { one_way };
    let z = || used.iter().map(|p| p.z);
    Some((z().fold(f64::INFINITY, f64::min) - pad, z().fold(f64::NEG_INFINITY, f64::max) + pad))
}

pub(super) fn find(out: &mut Estimate, points: &Points, cells: &Cells, cut: &Cut, one_way: f64) {
    let mut zones = Vec::new();
    for i in 1..out.pieces.len() {
        let (left, right) = (&out.pieces[i - 1], &out.pieces[i]);
        let rows = cells.rows[cut.pieces[i - 1].end - 1].start..cells.rows[cut.pieces[i].start].end;
        let jump = Jump::find(points, rows, left, right);
        if let Some((low, high)) = span(points, jump.rows.clone(), left.pad.max(right.pad), one_way) {
            zones.push(Zone { after: jump.left, before: jump.right, low, high });
        }
        out.ends[i - 1].1 = jump.left;
        out.ends[i].0 = jump.right;
    }
    for i in 1..out.ends.len() {
        let before = out.ends[i - 1];
        out.ends[i] = (out.ends[i].0.max(before.0), out.ends[i].1.max(before.1));
    }
    let all = points.all.len();
    let (Some(first), Some(last)) = (out.pieces.first(), out.pieces.last()) else { return };
    let before = points.all.partition_point(|p| p.number < first.numbers.0);
    let after = points.all.partition_point(|p| p.number <= last.numbers.1);
    let mut ends = vec![(0..before, None, Some(first.numbers.0)), (after..all, Some(last.numbers.1), None)];
    ends.retain(|e| !e.0.is_empty());
    for (rows, from, to) in ends {
        if let Some((low, high)) = span(points, rows, first.pad.max(last.pad), one_way) {
            zones.push(Zone { after: from.unwrap_or(0), before: to.unwrap_or(u64::MAX), low, high });
        }
    }
    for s in &cut.skipped {
        let rows = cells.rows[s.start.saturating_sub(1)].start..cells.rows[s.end.min(cells.len() - 1)].end;
        let (a, b) = (points.all[rows.start].number, points.all[rows.end - 1].number);
        if let Some((low, high)) = span(points, rows, first.pad, 0.0) {
            zones.push(Zone { after: a.saturating_sub(1), before: b + 1, low, high });
        }
    }
    zones.extend(queued(out, points));
    zones.sort_by_key(|z| z.after);
    out.zones = zones;
}

/// Behind the last packet that was given to a driver, of those behind it only the queue's edge is known: nothing shows the clock
/// better than they waited.
fn queued(out: &Estimate, points: &Points) -> Option<Zone> {
    let last = points.all.iter().rposition(|p| p.is_strong())?;
    let behind = &points.all[last + 1..];
    let waited = |p: &Point| {
        let (low, high) = out.about(p.number, p.x);
        (low + high) / 2.0 - p.z
    };
    let depth = behind.iter().map(waited).reduce(f64::max)?.max(0.0);
    let ends = || behind.iter().map(|p| out.about(p.number, p.x));
    let low = ends().map(|e| e.0).fold(f64::INFINITY, f64::min) - depth;
    let high = ends().map(|e| e.1).fold(f64::NEG_INFINITY, f64::max) + depth;
    Some(Zone { after: points.all[last].number, before: u64::MAX, low, high })
}

/// The first and the last few matches, if each was slower than any near: the clock may have been set between them and the others, and no
/// match behind them shows that it was not. Both are inside of the bound.
pub(super) fn edges(out: &Estimate, points: &Points, width: f64) -> Vec<Zone> {
    const MOST: usize = 4;
    const NEAR: usize = 64;
    let slow = |p: &Point| {
        let (low, high) = out.about(p.number, p.x);
        let middle = (low + high) / 2.0;
        if p.received { p.z - middle } else { middle - p.z }
    };
    let strong: Vec<&Point> = points.all.iter().filter(|p| !p.weak).collect();
    let pad = out.pieces.iter().map(|p| p.pad).fold(0.0, f64::max);
    let mut zones = Vec::new();
    for first in [true, false] {
        let at = |i: usize| if first { strong[i] } else { strong[strong.len() - 1 - i] };
        // How slow others of its direction are, behind so many at the edge.
        let usual = |run: usize, received: bool| -> Option<f64> {
            let near = (run..strong.len()).map(at).filter(|p| p.received == received).take(NEAR);
            let slow: Vec<f64> = near.map(slow).collect();
            (slow.len() >= MOST).then(|| slow.into_iter().fold(0.0, f64::max))
        };
        let apart = |run: usize| {
            (0..run).map(at).all(|p| usual(run, p.received).is_some_and(|u| slow(p) > 1.25 * u + 4.0 * width))
        };
        let Some(run) = (1..=MOST.min(strong.len().saturating_sub(1))).rev().find(|run| apart(*run)) else {
            continue;
        };
        let z = || (0..run).map(|i| at(i).z);
        let (low, high) =
            (z().fold(f64::INFINITY, f64::min) - pad, z().fold(f64::NEG_INFINITY, f64::max) + pad);
        let next = at(run).number;
        let (after, before) = if first { (0, next) } else { (next, u64::MAX) };
        zones.push(Zone { after, before, low, high });
    }
    zones
}

/// Matches beside a doubtful place that are doubtful, too.
const BESIDE: usize = 4;

/// Several matches of one direction in a row that no line here allows: more is going on than was found.
pub(super) fn refused(out: &Estimate, points: &Points, one_way: f64) -> Vec<Zone> {
    const OF: usize = 4;
    const LEAST: usize = 3;
    let pad = out.pieces.iter().map(|p| p.pad).fold(0.0, f64::max);
    let mut zones = Vec::new();
    for received in [true, false] {
        let rows = points.of(received, |p| !p.weak);
        let refused = |i: &usize| {
            let p = &points.all[*i];
            let (low, high) = out.about(p.number, p.x);
            if received { p.z + pad < low } else { p.z - pad > high }
        };
        let bad: Vec<bool> = rows.iter().map(refused).collect();
        let mut k = 0;
        while k + LEAST <= bad.len() {
            let here = |k: usize| bad[k..bad.len().min(k + OF)].iter().filter(|b| **b).count() >= LEAST;
            if !(bad[k] && here(k)) {
                k += 1;
                continue;
            }
            let mut end = k;
            while end < bad.len() && here(end) {
                end += 1;
            }
            let end = (end + OF).min(rows.len());
            let from = rows[k].saturating_sub(BESIDE);
            let to = (rows[end - 1] + 1 + BESIDE).min(points.all.len());
            if let Some((low, high)) = span(points, from..to, pad, one_way) {
                let (after, before) = (points.all[from].number, points.all[to - 1].number);
                zones.push(Zone { after: after.saturating_sub(1), before: before + 1, low, high });
            }
            k = end;
        }
    }
    zones
}

/// Between two pieces: up to which frame the left one may hold, and from which the right one.
struct Jump {
    left: u64,
    right: u64,
    rows: Range<usize>,
}

impl Jump {
    /// All places with nearly the fewest matches that their line refuses.
    fn find(points: &Points, rows: Range<usize>, left: &Piece, right: &Piece) -> Jump {
        let of = &points.all[rows.clone()];
        let n = of.len();
        let refused = |piece: &Piece| -> Vec<usize> {
            of.iter().map(|p| usize::from(p.ok && piece.refuses(p))).collect()
        };
        let (by_left, by_right) = (refused(left), refused(right));
        // Refused if the jump is before row k.
        let mut counts = vec![0usize; n + 1];
        for k in 0..n {
            counts[k + 1] = counts[k] + by_left[k];
        }
        let mut behind = 0;
        for k in (0..n).rev() {
            behind += by_right[k];
            counts[k] += behind;
        }
        let least = counts.iter().copied().min().unwrap_or(0);
        if least > 3 {
            // More than one jump between: neither line holds.
            return Jump { left: left.numbers.1, right: right.numbers.0, rows };
        }
        let good = |c: &usize| *c <= least + 1 + n / 30;
        let first = counts.iter().position(good).unwrap_or(0).saturating_sub(BESIDE);
        let last = (counts.iter().rposition(good).unwrap_or(n) + BESIDE).min(n);
        let number = |k: usize| of[k.min(n - 1)].number;
        Jump {
            left: if first > 0 { number(first - 1) } else { number(0).saturating_sub(1) },
            right: if last < n { number(last) } else { number(n - 1) + 1 },
            rows: rows.start + first.saturating_sub(2)..rows.start + (last + 2).min(n),
        }
    }
}
