//! A first guess of the clock from nothing but equal keys: every pair of frame and sighting with the same key votes for
//! a difference of the clocks; true pairs agree, chance pairs do not. So a capture that is hours off is found as well
//! as one that is right.

use super::Line;
use crate::matching::{Frame, Side, Sighting, exact};

/// Pairs of one key that may vote: beyond that, most are wrong.
const MAX_PAIRS: usize = 16;
const BINS: usize = 16;
/// Oscillators and slewed clocks stay within this.
pub(crate) const MAX_DRIFT: f64 = 500e-6;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Vote {
    pub frame: u32,
    pub sighting: u32,
    pub wall: i64,
    /// Boot less wall.
    pub diff: i64,
}

pub(crate) struct Rough {
    pub line: Line,
    /// The votes that agree with it.
    pub votes: Vec<Vote>,
}

pub(crate) fn collect(frames: &[Frame], sightings: &[Sighting]) -> Vec<Vote> {
    for limit in [MAX_PAIRS, 4096] {
        let mut votes = Vec::new();
        exact::buckets(frames, sightings, |fs, ss| {
            if fs.len() * ss.len() > limit {
                return;
            }
            for &f in fs {
                for &s in ss {
                    let (frame, sighting) = (&frames[f as usize], &sightings[s as usize]);
                    let sides = [frame.side, sighting.side];
                    let ttls = [frame.keys.ttl, sighting.keys.ttl];
                    let against = (!sides.contains(&Side::Unknown) && sides[0] != sides[1])
                        || (!ttls.contains(&0) && ttls[0] != ttls[1]);
                    if !against {
                        let diff = sighting.at.wrapping_sub(frame.wall);
                        votes.push(Vote { frame: f, sighting: s, wall: frame.wall, diff });
                    }
                }
            }
        });
        if votes.len() >= 2 || limit == 4096 {
            return votes;
        }
    }
    Vec::new()
}

/// The line that most votes agree on. `near`: where the clock should be if both hosts keep time, and how far off it may
/// be before a better supported guess far away is believed.
pub(crate) fn rough(mut votes: Vec<Vote>, near: Option<(i64, i64)>) -> Option<Rough> {
    let first = votes.iter().map(|v| v.wall).min()?;
    let span = votes.iter().map(|v| v.wall).max()?.saturating_sub(first);
    let width = 20_000_000 + (span as f64 * 200e-6) as i64;
    votes.sort_unstable_by_key(|v| v.diff);
    // (votes, start, end) of the densest window, anywhere and near.
    let mut best = (0usize, 0usize, 0usize);
    let mut best_near = best;
    let mut start = 0;
    for end in 0..votes.len() {
        while votes[end].diff.saturating_sub(votes[start].diff) > width {
            start += 1;
        }
        let count = end + 1 - start;
        if count > best.0 {
            best = (count, start, end + 1);
        }
        let is_near = near.is_some_and(|(at, tolerance)| {
            votes[end].diff.saturating_sub(at).saturating_abs() <= tolerance + width
        });
        if is_near && count > best_near.0 {
            best_near = (count, start, end + 1);
        }
    }
    // One vote far away is chance; and near ones need less support.
    let chosen = if best_near.0 > 0 && best_near.0 * 3 >= best.0 { best_near } else { best };
    if chosen.0 < 2 && chosen != best_near && near.is_some() {
        return None;
    }
    let mut agreed: Vec<Vote> = votes[chosen.1..chosen.2].to_vec();
    agreed.sort_unstable_by_key(|v| v.wall);
    let mut line = median_line(&agreed, first);
    for _ in 0..2 {
        let distance =
            |v: &Vote| line.boot(v.wall).wrapping_sub(v.wall.wrapping_add(v.diff)).saturating_abs();
        let mut all: Vec<i64> = agreed.iter().map(distance).collect();
        let middle = all.len() / 2;
        let median = *all.select_nth_unstable(middle).1;
        let limit = (median * 8).max(2_000_000);
        agreed.retain(|v| distance(v) <= limit);
        line = median_line(&agreed, first);
    }
    Some(Rough { line, votes: agreed })
}

/// Least squares over the medians of stretches of time: a minority of wrong votes does not move it.
fn median_line(votes: &[Vote], origin: i64) -> Line {
    let mut points: Vec<(f64, i64)> = Vec::new();
    for bin in votes.chunks(votes.len().div_ceil(BINS).max(1)) {
        let mut diffs: Vec<i64> = bin.iter().map(|v| v.diff).collect();
        let middle = diffs.len() / 2;
        let diff = *diffs.select_nth_unstable(middle).1;
        points.push(((bin[bin.len() / 2].wall.wrapping_sub(origin)) as f64, diff));
    }
    let Some(&(_, base)) = points.first() else { return Line::default() };
    let n = points.len() as f64;
    let (mx, my) =
        points.iter().fold((0.0, 0.0), |(x, y), p| (x + p.0 / n, y + (p.1.wrapping_sub(base)) as f64 / n));
    let (mut sxx, mut sxy) = (0.0, 0.0);
    for (x, y) in &points {
        sxx += (x - mx) * (x - mx);
        sxy += (x - mx) * ((y.wrapping_sub(base)) as f64 - my);
    }
    // Over less than a second the noise is more than any drift.
    let drift = if sxx / n > 1e17 { (sxy / sxx).clamp(-MAX_DRIFT, MAX_DRIFT) } else { 0.0 };
    Line { origin, offset: base.wrapping_add((my - drift * mx) as i64), drift }
}
