//! Stretches in which nothing went the other way.

use super::Given;
use super::piece::OneWay;
use super::points::{Point, Points, quantile};
use std::ops::Range;

/// Of so many the fastest holds of the clock there whatever the line: a step that looks like delay is behind at most so many.
pub(super) const SEEN_OF: usize = 4;

/// Stretches of one-way traffic, and what is supposed of the other direction there: (x, z, from above).
pub(super) fn one_way(
    points: &Points,
    within: Range<usize>,
    width: f64,
    given: &Given,
    of: usize,
) -> (Vec<OneWay>, Vec<(f64, f64, bool)>) {
    let res = super::cut_of(given.resolution_ns);
    let (mut found, mut made) = (Vec::new(), Vec::new());
    for received in [true, false] {
        let sign = if received { 1.0 } else { -1.0 };
        let here = &points.all[within.clone()];
        let rows: Vec<usize> = within
            .clone()
            .filter(|i| points.all[*i].received == received && points.all[*i].is_strong())
            .collect();
        let other = |p: &&Point| p.received != received && p.ok && (!received || !p.weak);
        let mut others: Vec<f64> = here.iter().filter(other).map(|p| p.x).collect();
        others.sort_unstable_by(f64::total_cmp);
        let size = of.min(rows.len().max(1));
        let span = |c: &[usize]| {
            let x = || c.iter().map(|i| points.all[*i].x);
            (x().fold(f64::INFINITY, f64::min), x().fold(f64::NEG_INFINITY, f64::max))
        };
        let mut chunks: Vec<&[usize]> = rows.chunks(size).collect();
        if chunks.len() > 1 && !rows.len().is_multiple_of(size) {
            // The last as long as the others.
            let last = chunks.len() - 1;
            chunks[last] = &rows[rows.len() - size..];
        }
        if rows.len() > SEEN_OF && size > SEEN_OF {
            chunks.push(&rows[rows.len() - SEEN_OF..]);
        }
        for (k, chunk) in chunks.iter().enumerate() {
            let (first, last) = span(chunk);
            let room = (last - first) / 2.0;
            let from = others.partition_point(|x| *x < first - room);
            if others.get(from).is_some_and(|x| *x <= last + room) {
                continue;
            }
            let mut out: Vec<f64> = chunk.iter().map(|i| points.all[*i].outward()).collect();
            let tenth = quantile(&mut out, 0.1);
            let Some(fastest) = chunk.iter().find(|i| points.all[**i].outward() == out[0]) else { continue };
            let p = &points.all[*fastest];
            // A few packets may all have been slow.
            let most = given.one_way_ns as f64 * if chunk.len() >= 8 { 1.0 } else { 20.0 };
            made.push((p.x, p.z - sign * (most + res + 2.0 * width), !received));
            let from = if k == 0 { f64::NEG_INFINITY } else { span(chunks[k - 1]).0 };
            let to = chunks.get(k + 1).map_or(f64::INFINITY, |c| span(c).1);
            found.push(OneWay { from, to, z: p.z, received, depth: tenth - out[0], most });
        }
    }
    found.sort_by(|a, b| a.from.total_cmp(&b.from));
    (found, made)
}
