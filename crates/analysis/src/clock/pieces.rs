//! A clock that was set, or steered to another speed, while the sniffer ran: one line per stretch of time.
//!
//! What the matches allow decides: a stretch is as long as some line agrees with all of its matches. Between the last
//! match that fits the one stretch and the first that fits the next nobody knows when the clock jumped, so that time is a
//! segment of its own, whose bound covers both lines.
//!
//! Jumps of milliseconds and more are seen before anything is matched, in the votes by order of the file ([`jumps`]):
//! frames behind one are moved by it, so that what follows sees a clock that runs on, and the pieces are fitted each for
//! itself.

use super::evidence::Evidence;
use super::fit::{self, Hints, Pair, Segment};
use super::vote::{self, Rough, Vote};
use super::{Line, sample};
use crate::matching::Frame;
use crate::query::clock_method;
use kpat_model::meta::ClockAnchor;

/// Matches that a stretch has at least: fewer are taken to be wrong ones.
const LEAST: usize = 4;
/// Frames in a row that show a jump.
const ROW: usize = 8;
/// In a file, frames of several interfaces, and packets that waited, may be so far out of order.
const DISORDER_NS: i64 = 100_000_000;
const MAX_PIECES: usize = 32;

/// The clock of one capture: segments in order of the sniffer's time.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Clock {
    pub segments: Vec<Segment>,
    /// Of each segment: the earliest boot time that a later one begins with, and the latest that an earlier one ends with.
    around: Vec<(i64, i64)>,
}

impl Clock {
    /// `None`: no segment.
    pub fn new(mut segments: Vec<Segment>) -> Option<Clock> {
        segments.sort_by_key(|s| s.from);
        let n = segments.len();
        let mut around = vec![(i64::MAX, i64::MIN); n];
        for i in (0..n.saturating_sub(1)).rev() {
            let next = &segments[i + 1];
            let begins = next.line.boot(next.from).saturating_sub(next.bound);
            around[i].0 = around[i + 1].0.min(begins);
        }
        for i in 1..n {
            let before = &segments[i - 1];
            let ends = before.line.boot(before.to).saturating_add(before.bound);
            around[i].1 = around[i - 1].1.max(ends);
        }
        (n > 0).then_some(Clock { segments, around })
    }

    #[inline]
    fn place_of(&self, wall: i64) -> usize {
        if self.segments.len() == 1 {
            return 0;
        }
        self.segments.partition_point(|s| s.from <= wall).saturating_sub(1)
    }

    #[inline]
    pub fn at(&self, wall: i64) -> &Segment {
        &self.segments[self.place_of(wall)]
    }

    #[inline]
    pub fn boot(&self, wall: i64) -> i64 {
        self.at(wall).line.boot(wall)
    }

    #[inline]
    pub fn bound_at(&self, wall: i64) -> i64 {
        self.at(wall).bound_at(wall)
    }

    /// Earliest and latest boot time of this wall time, such that a later wall time has both later.
    #[inline]
    pub fn between(&self, wall: i64) -> (i64, i64) {
        let i = self.place_of(wall);
        let s = &self.segments[i];
        let (boot, bound) = (s.line.boot(wall), s.bound_at(wall));
        let (low, high) = (boot.saturating_sub(bound), boot.saturating_add(bound));
        (low.min(self.around[i].0), high.max(self.around[i].1))
    }
}

/// Fits as few lines as agree with the matches. `cuts`: wall times at which the clock is known to have jumped.
pub(crate) fn fit(evidence: &Evidence, guess: &Line, hints: &Hints<'_>, cuts: &[i64]) -> Vec<Segment> {
    let whole = fit::fit(evidence, guess, hints);
    let agrees = |s: &[Segment]| s.iter().all(|s| s.method != clock_method::WIDENED && !s.is_wild());
    if cuts.is_empty() && agrees(&whole) {
        return whole;
    }
    // An anchor of another piece says nothing of this one.
    let near: Vec<ClockAnchor> = hints
        .anchors
        .iter()
        .filter(|a| guess.boot(a.wall.0).wrapping_sub(a.boot.0).saturating_abs() <= sample::SAME_NS)
        .copied()
        .collect();
    let hints = &Hints { anchors: &near, ..*hints };
    let mut pairs = evidence.pairs.clone();
    pairs.sort_by_key(|p| p.wall);
    let line_of = |part: &[Pair]| -> Option<Segment> {
        // The anchors are of one clock; they hold where it was not set.
        let mut found = fit::fit(&Evidence::of(part.to_vec()), guess, hints);
        if !agrees(&found) {
            found = fit::fit(&Evidence::of(part.to_vec()), guess, &Hints { anchors: &[], ..*hints });
        }
        found.into_iter().next().filter(|s| agrees(std::slice::from_ref(s)))
    };
    let mut out: Vec<Segment> = Vec::new();
    let mut from = 0;
    let mut edges: Vec<usize> = cuts.iter().map(|c| pairs.partition_point(|p| p.wall < *c)).collect();
    edges.push(pairs.len());
    edges.retain(|e| *e > 0);
    edges.sort_unstable();
    edges.dedup();
    for edge in edges {
        let part = &pairs[from..edge];
        from = edge;
        let found = stretches(part, &line_of);
        if found.is_empty() || out.len() + found.len() > MAX_PIECES {
            return whole;
        }
        out.extend(found);
    }
    if out.len() < 2 { whole } else { out }
}

/// The stretches of one run of matches, and the doubtful times between them.
fn stretches(pairs: &[Pair], line_of: &dyn Fn(&[Pair]) -> Option<Segment>) -> Vec<Segment> {
    let mut out: Vec<Segment> = Vec::new();
    let mut rest = pairs;
    while !rest.is_empty() {
        // As many from the front as one line fits ...
        let Some(n) = longest(rest.len(), |n| line_of(&rest[..n])) else {
            // Less than a stretch: the one before goes on.
            rest = &rest[LEAST.min(rest.len())..];
            continue;
        };
        // ... of which those at its end may already be behind the jump: what fits the next stretch from its end backwards.
        let behind = &rest[n..];
        let mut sure = n;
        if behind.len() >= LEAST {
            let reach = longest(behind.len(), |m| line_of(&behind[..m])).unwrap_or(LEAST).min(behind.len());
            let back = |k: usize| line_of(&rest[n - k..n + reach]);
            sure = n - longest_of(n.saturating_sub(LEAST), back).unwrap_or(0);
        }
        let Some(found) = line_of(&rest[..sure.max(LEAST).min(n)]) else { break };
        if let Some(before) = out.last().copied() {
            out.push(between(&before, &found));
        }
        out.push(found);
        rest = behind;
    }
    out
}

/// Greatest count, at least [`LEAST`], that has a line; more never fits where fewer do not.
fn longest(most: usize, line: impl Fn(usize) -> Option<Segment>) -> Option<usize> {
    (most >= LEAST && line(LEAST).is_some()).then_some(())?;
    longest_from(LEAST, most, line)
}

fn longest_of(most: usize, line: impl Fn(usize) -> Option<Segment>) -> Option<usize> {
    longest_from(0, most, line)
}

fn longest_from(least: usize, most: usize, line: impl Fn(usize) -> Option<Segment>) -> Option<usize> {
    let (mut low, mut high) = (least, most);
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        if line(middle).is_some() { low = middle } else { high = middle - 1 }
    }
    Some(low)
}

/// The time in which the clock jumped: either line may hold.
fn between(a: &Segment, b: &Segment) -> Segment {
    let (from, to) = (a.to, b.from.max(a.to));
    let edge = |wall: i64| {
        let (x, y) = (a.line.boot(wall), b.line.boot(wall));
        let low = x.saturating_sub(a.bound_at(wall)).min(y.saturating_sub(b.bound_at(wall)));
        let high = x.saturating_add(a.bound_at(wall)).max(y.saturating_add(b.bound_at(wall)));
        (low, high)
    };
    let (low0, high0) = edge(from);
    let (low1, high1) = edge(to);
    let middle = low0.saturating_add(high0.saturating_sub(low0) / 2);
    let offset = middle.wrapping_sub(from);
    let line = Line { origin: from, offset, drift: 0.0 };
    let at_end = line.boot(to);
    let bound = (high0.saturating_sub(middle))
        .max(high1.saturating_sub(at_end))
        .max(at_end.saturating_sub(low1))
        .saturating_add(1);
    Segment {
        line,
        bound,
        drift_bound: vote::MAX_DRIFT,
        from,
        to,
        received: 0,
        transmitted: 0,
        rejected: 0,
        method: clock_method::BETWEEN,
        place: fit::Place::Either,
    }
}

/// Frames from this number on are read as if their clock had shown `add` more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Jump {
    pub number: u64,
    pub add: i64,
}

/// What is added to the wall time of a frame.
pub(crate) fn added(jumps: &[Jump], number: u64) -> i64 {
    let i = jumps.partition_point(|j| j.number <= number);
    i.checked_sub(1).map_or(0, |i| jumps[i].add)
}

/// Boot time of the sighting.
fn seen(v: &Vote) -> i64 {
    v.wall.wrapping_add(v.diff)
}

/// Where the votes, in the order of the file, leave one line for another. `main`: the line that most agree on. Empty: it
/// holds for all. Else the first is from the first frame on.
///
/// The order of a file is that of true time, whatever the clock showed: frames from behind the end of the log, which have the
/// identifications of earlier ones come round again, are no jump back by as long as a round.
pub(crate) fn jumps(votes: &[Vote], frames: &[Frame], main: &Line) -> Vec<Jump> {
    let mut by_number: Vec<(u64, bool, Vote)> = votes
        .iter()
        .map(|v| {
            let apart = main.boot(v.wall).wrapping_sub(seen(v)).saturating_abs();
            (frames[v.frame as usize].number, apart <= sample::SAME_NS, *v)
        })
        .collect();
    by_number.sort_unstable_by_key(|(number, ok, v)| (*number, !*ok, v.diff));
    // One vote per frame, one that agrees if there is one.
    let mut all = by_number.clone();
    all.dedup_by_key(|(number, ..)| *number);
    let mut out: Vec<Jump> = Vec::new();
    // When what was before in the file was seen.
    let mut reached = i64::MIN;
    let mut i = 0;
    while i < all.len() {
        let agrees = all[i].1;
        // A row lasts until several in a row say otherwise.
        let mut end = i + 1;
        while end < all.len() {
            let other = all[end..].iter().take(ROW / 2).filter(|v| v.1 != agrees).count();
            if all[end].1 != agrees && other * 2 > (all.len() - end).min(ROW / 2) {
                break;
            }
            end += 1;
        }
        let row = &all[i..end];
        let (from, to) = (row[0].0, row[row.len() - 1].0);
        i = end;
        if agrees {
            out.push(Jump { number: from, add: 0 });
            reached = row.iter().filter(|v| v.1).map(|v| seen(&v.2)).fold(reached, i64::max);
            continue;
        }
        let then = all[end..].iter().find(|v| v.1).map_or(i64::MAX, |v| seen(&v.2));
        let in_order = |r: &Rough| {
            let times = || r.votes.iter().map(seen);
            times().min() >= Some(reached.saturating_sub(DISORDER_NS))
                && times().max() <= Some(then.saturating_add(DISORDER_NS))
        };
        let here: Vec<Vote> =
            by_number.iter().filter(|(n, ..)| (from..=to).contains(n)).map(|(_, _, v)| *v).collect();
        let found = vote::rough(here, None).filter(|r| {
            let mut frames: Vec<u32> = r.votes.iter().map(|v| v.frame).collect();
            frames.sort_unstable();
            frames.dedup();
            frames.len() >= ROW && frames.len() * 2 >= row.len() && in_order(r)
        });
        if let Some(r) = found {
            reached = r.votes.iter().map(seen).fold(reached, i64::max);
            let at = row[0].2.wall;
            let add = r.line.boot(at).wrapping_sub(main.boot(at));
            out.push(Jump { number: from, add });
        }
    }
    out.dedup_by_key(|j| j.add);
    if out.len() < 2 || out.len() > MAX_PIECES {
        return Vec::new();
    }
    out[0].number = 0;
    out
}
