//! A first guess of the clock from nothing but equal keys: every pair of frame and sighting with the same key votes for
//! a difference of the clocks; true pairs agree, chance pairs do not. So a capture that is hours off is found as well
//! as one that is right. Where all keys are alike, the rhythm of the times votes.

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

/// Votes of all keys that occur a few times; where there are none, of keys that repeat without end, by order.
pub(crate) fn collect(frames: &[Frame], sightings: &[Sighting]) -> Vec<Vote> {
    let mut votes = Vec::new();
    exact::buckets(frames, sightings, |fs, ss| {
        if fs.len() * ss.len() <= MAX_PAIRS {
            all_pairs(frames, sightings, fs, ss, &mut votes);
        }
    });
    if votes.len() >= 2 {
        return votes;
    }
    exact::buckets(frames, sightings, |fs, ss| {
        if fs.len() * ss.len() <= MAX_PAIRS {
        } else if fs.len().min(ss.len()) < RUN / 4 {
            if fs.len() * ss.len() <= 4096 {
                all_pairs(frames, sightings, fs, ss, &mut votes);
            }
        } else {
            by_order(frames, sightings, fs, ss, &mut votes);
        }
    });
    votes
}

/// Their headers allow that the two are the same.
fn may_be(f: &Frame, s: &Sighting) -> bool {
    let ttls = [f.keys.ttl, s.keys.ttl];
    (f.side == Side::Unknown || s.side == Side::Unknown || f.side == s.side)
        && (ttls.contains(&0) || ttls[0] == ttls[1])
}

fn all_pairs(frames: &[Frame], sightings: &[Sighting], fs: &[u32], ss: &[u32], votes: &mut Vec<Vote>) {
    for &frame in fs {
        let f = &frames[frame as usize];
        // Over a cable from one port of the host to another two packets have one key: the frame is of the one at its device.
        let here = f.inside && ss.iter().any(|s| sightings[*s as usize].devices & f.device != 0);
        for &sighting in ss {
            let s = &sightings[sighting as usize];
            if may_be(f, s) && !(here && s.was_elsewhere(f)) {
                votes.push(Vote { frame, sighting, wall: f.wall, diff: s.at.wrapping_sub(f.wall) });
            }
        }
    }
}

/// Frames in a row whose rhythm is looked for among the sightings.
const RUN: usize = 32;

/// One key without end, as a stream of equal datagrams over IPv6: nothing but the times tells which is which. Frames in a
/// row are laid beside sightings in a row; where the differences of their times are the most alike, they are the same.
fn by_order(frames: &[Frame], sightings: &[Sighting], fs: &[u32], ss: &[u32], votes: &mut Vec<Vote>) {
    let first = &frames[fs[0] as usize];
    for side in [Side::Received, Side::Transmitted, Side::Unknown] {
        let wanted = |s: &Sighting| s.side == side && may_be(first, s);
        let row: Vec<u32> = ss.iter().copied().filter(|s| wanted(&sightings[*s as usize])).collect();
        let run = RUN.min(fs.len()).min(row.len());
        if run < RUN / 4 {
            continue;
        }
        for start in [0, (fs.len() - run) / 4, (fs.len() - run) / 2, fs.len() - run] {
            let of = &fs[start..start + run];
            let diff = |at: usize, i: usize| {
                sightings[row[at + i] as usize].at.wrapping_sub(frames[of[i] as usize].wall)
            };
            let spread = |at: usize| {
                let base = diff(at, 0);
                let mut all: Vec<i64> = (0..run).map(|i| diff(at, i).wrapping_sub(base)).collect();
                let median = *all.select_nth_unstable(run / 2).1;
                // A frame or a packet that is missing shifts those behind it: the better half counts.
                all.iter_mut().for_each(|d| *d = d.saturating_sub(median).saturating_abs());
                all.sort_unstable();
                all[..run.div_ceil(2)].iter().fold(0i64, |sum, d| sum.saturating_add(*d))
            };
            let Some(best) = (0..=row.len() - run).min_by_key(|at| spread(*at)) else { continue };
            votes.extend((0..run).map(|i| Vote {
                frame: of[i],
                sighting: row[best + i],
                wall: frames[of[i] as usize].wall,
                diff: diff(best, i),
            }));
        }
    }
}

/// The longest time that what agrees can be apart. A clock that was set by an hour has not drifted for an hour: the other one knows.
pub(crate) fn span_ns(votes: &[Vote]) -> i64 {
    let length = |at: fn(&Vote) -> i64| {
        let ends = votes.iter().map(at).max().zip(votes.iter().map(at).min());
        ends.map_or(0, |(last, first)| last.saturating_sub(first))
    };
    length(|v| v.wall).min(length(|v| v.wall.wrapping_add(v.diff)))
}

/// The line that most votes agree on. `near`: where the clock should be if both hosts keep time, and how far off it may
/// be before a better supported guess far away is believed.
pub(crate) fn rough(mut votes: Vec<Vote>, near: Option<(i64, i64)>) -> Option<Rough> {
    let first = votes.iter().map(|v| v.wall).min()?;
    let span = span_ns(&votes);
    let width = 20_000_000 + (span as f64 * 200e-6) as i64;
    votes.sort_unstable_by_key(|v| v.diff);
    // (votes, start, end) of the densest window, anywhere and near.
    let mut best = (0usize, 0usize, 0usize);
    let mut near_ones: Vec<(i64, (usize, usize, usize))> = Vec::new();
    let mut start = 0;
    for end in 0..votes.len() {
        while votes[end].diff.saturating_sub(votes[start].diff) > width {
            start += 1;
        }
        let count = end + 1 - start;
        if count > best.0 {
            best = (count, start, end + 1);
        }
        if let Some((at, tolerance)) = near {
            let apart = votes[end].diff.saturating_sub(at).saturating_abs();
            if apart <= tolerance + width {
                near_ones.push((apart, (count, start, end + 1)));
            }
        }
    }
    // Of near ones with some support, as when identifications come round again, the nearest, and of its kind the densest.
    let most = near_ones.iter().map(|(_, w)| w.0).max().unwrap_or(0);
    let enough = near_ones.iter().filter(|(_, w)| w.0 * 3 >= most);
    let nearest = enough.min_by_key(|(apart, _)| *apart).map_or((0, 0, 0), |(_, w)| *w);
    let same = |w: &&(usize, usize, usize)| w.1 < nearest.2 && nearest.1 < w.2;
    let best_near =
        near_ones.iter().map(|(_, w)| w).filter(same).max_by_key(|w| w.0).copied().unwrap_or(nearest);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::matching::Wire;
    use crate::matching::keys::Keys;

    /// Seven seconds each: an hour forward, half a second back, an hour back. What was set by half a second an hour apart is not one line, as it would be
    /// with the drift of an hour.
    #[test]
    fn a_clock_that_was_set_by_an_hour_has_not_drifted_for_one() {
        const S: i64 = 1_000_000_000;
        let (hour, half) = (3600 * S, S / 2);
        let ahead = [0, hour, hour - half, -half];
        let vote = |i: i64| {
            let (at, ahead) = (i * S / 30, ahead[(i / 210) as usize]);
            Vote { frame: i as u32, sighting: i as u32, wall: at + ahead, diff: -ahead }
        };
        let votes: Vec<Vote> = (0..840).map(vote).collect();
        assert_eq!(span_ns(&votes), 839 * S / 30);
        let found = rough(votes, None).unwrap();
        let diffs: std::collections::BTreeSet<i64> = found.votes.iter().map(|v| v.diff).collect();
        assert_eq!((diffs.len(), found.votes.len()), (1, 210), "{diffs:?}");
    }

    /// A stream in which all packets are alike, sent in an uneven rhythm, hours off; some frames are missing. The clock is
    /// found to within what the packets need.
    #[test]
    fn a_rhythm_is_found() {
        let keys = Keys { exact: 7, kind: 1, ttl: 64, ..Keys::default() };
        let offset = -7_200_000_000_000i64;
        let mut x = 88_172_645_463_325_252u64;
        let mut below = move |n: u64| {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            ((x >> 11) % n) as i64
        };
        let (mut frames, mut sightings) = (Vec::new(), Vec::new());
        let mut wall = 1_700_000_000_000_000_000i64;
        for i in 0..600u64 {
            wall += 1_000_000 + below(200_000);
            let at = wall + offset - 2_000 - below(3_000);
            let side = Side::Transmitted;
            sightings.push(Sighting {
                keys,
                packet: i,
                at,
                first: at,
                last: at + 50_000,
                side,
                devices: 0,
                weak: false,
                lost: false,
                tap: (0, 0),
                place: 0,
            });
            if i >= 40 && i != 300 {
                let side = Side::Unknown;
                frames.push(Frame {
                    keys,
                    wall,
                    boot: wall,
                    bound: 0,
                    number: i,
                    interface: 0,
                    side,
                    inside: false,
                    wire: Wire::default(),
                    device: 0,
                    place: 0,
                });
            }
        }
        let votes = collect(&frames, &sightings);
        let right =
            votes.iter().filter(|v| frames[v.frame as usize].number == sightings[v.sighting as usize].packet);
        assert!(right.count() * 10 > votes.len() * 7, "{} votes", votes.len());
        let found = rough(votes, None).unwrap().line;
        let error = found.boot(wall) - (wall + offset - 3_500);
        assert!(error.abs() < 10_000, "{error} ns");
    }
}
