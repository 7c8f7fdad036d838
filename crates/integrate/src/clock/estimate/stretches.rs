//! An estimate as straight stretches with a bound each: what a table can hold.

use super::Estimate;
use super::piece::{Piece, Shape};

/// Times of a piece that are looked at.
pub(super) const MARKS: usize = 65;
/// A straight stretch may be wrong by so much more than its frames' own bound, and these may differ so much among themselves.
const LOOSE: f64 = 1.3;
const UNLIKE: f64 = 2.0;

/// A time in which boot less wall is straight within a bound.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stretch {
    pub numbers: (u64, u64),
    pub from_wall: i64,
    pub to_wall: i64,
    /// Boot less wall at `from_wall`.
    pub offset: i64,
    pub drift: f64,
    pub bound: i64,
    pub drift_bound: f64,
    pub received: usize,
    pub transmitted: usize,
    pub rejected: usize,
    /// The clock was set in it.
    pub between: bool,
}

#[derive(Clone, Copy)]
struct Mark {
    x: f64,
    number: u64,
    low: f64,
    high: f64,
}

impl Mark {
    fn middle(&self) -> f64 {
        (self.low + self.high) / 2.0
    }

    fn half(&self) -> f64 {
        (self.high - self.low) / 2.0
    }
}

impl Estimate {
    /// From the first frame, by number and wall time, to the last.
    pub(crate) fn stretches(&self, first: (u64, i64), last: (u64, i64)) -> Vec<Stretch> {
        let mut out: Vec<Stretch> = Vec::new();
        let end = self.pieces.len() - 1;
        for (i, piece) in self.pieces.iter().enumerate() {
            let mut marks = self.marks(piece, i);
            if i == 0 {
                marks.insert(0, self.mark_at(first));
            }
            if i == end {
                marks.push(self.mark_at(last));
            }
            marks.sort_by(|a, b| a.x.total_cmp(&b.x));
            marks.dedup_by_key(|m| m.x);
            let mut mine = self.straight(piece, &marks);
            // Between two frames at the edge of a doubtful time no wall time passes, if the clock was set back.
            if mine.iter().any(|s| s.to_wall > s.from_wall) {
                mine.retain(|s| s.to_wall > s.from_wall);
            }
            if let (Some(before), Some(next)) = (out.last().copied(), mine.first()) {
                out.push(self.jump(&before, next, i));
            }
            let mut counted = (0, 0);
            let count = mine.len();
            for (k, s) in mine.iter_mut().enumerate() {
                let until = if k + 1 == count { piece.counts } else { piece.counts_before(s.numbers.1) };
                // What waited is further ahead in the order of the file than in time.
                (s.received, s.transmitted) =
                    (until.0.saturating_sub(counted.0), until.1.saturating_sub(counted.1));
                counted = (counted.0.max(until.0), counted.1.max(until.1));
            }
            out.extend(mine);
        }
        if let Some(most) = out.iter_mut().rev().max_by_key(|s| s.received + s.transmitted) {
            most.rejected = self.rejected;
        }
        out
    }

    fn mark(&self, x: f64, number: u64) -> Mark {
        let (low, high) = self.about(number, x);
        Mark { x, number, low, high }
    }

    fn mark_at(&self, (number, wall): (u64, i64)) -> Mark {
        let (low, high) = self.between(number, wall);
        let boot = wall.saturating_add(low).saturating_add(high.saturating_sub(low) / 2);
        self.mark(boot.wrapping_sub(self.x0) as f64, number)
    }

    fn marks(&self, piece: &Piece, i: usize) -> Vec<Mark> {
        let inside = |n: u64| {
            let after = i == 0 || n > self.ends[i - 1].1;
            let before = i + 1 == self.pieces.len() || n < self.ends[i + 1].0;
            after && before && (piece.numbers.0..=piece.numbers.1).contains(&n)
        };
        let mut at: Vec<(f64, u64)> = piece.marks.iter().copied().filter(|m| inside(m.1)).collect();
        let place = |n: u64| {
            let k = piece.marks.partition_point(|m| m.1 < n);
            let (a, b) = (piece.marks.get(k.saturating_sub(1))?, piece.marks.get(k)?);
            let share = if b.1 > a.1 { n.saturating_sub(a.1) as f64 / (b.1 - a.1) as f64 } else { 0.0 };
            Some(a.0 + (b.0 - a.0) * share.min(1.0))
        };
        for z in &self.zones {
            for n in [z.after, z.after.saturating_add(1), z.before.saturating_sub(1), z.before] {
                at.extend(place(n).filter(|_| inside(n)).map(|x| (x, n)));
            }
        }
        at.sort_by(|a, b| a.1.cmp(&b.1).then(a.0.total_cmp(&b.0)));
        at.iter().map(|m| self.mark(m.0, m.1)).collect()
    }

    /// As few straight stretches as the bounds bear.
    fn straight(&self, piece: &Piece, marks: &[Mark]) -> Vec<Stretch> {
        let mut out = Vec::new();
        let mut from = 0;
        while from < marks.len() {
            // A time of which two ends are known, however different their bounds.
            let mut to = (from + 1).min(marks.len() - 1);
            while to + 1 < marks.len() && needed(&marks[from..=to + 1]).1 {
                to += 1;
            }
            let part = &marks[from..=to];
            let (a, b) = (part[0], part[part.len() - 1]);
            let (bound, fits) = needed(part);
            // At one moment nothing is seen of it but by the piece; where the bounds of two differ much, neither between them.
            let drawn = b.x > a.x && fits;
            let slope = if drawn { slope(&a, &b) } else { piece.slope };
            let (middle, bound) = if drawn { (a.middle(), bound) } else { level(part, slope) };
            let wall = |m: &Mark| {
                self.x0.wrapping_add(m.x as i64).wrapping_sub(self.y0).wrapping_sub(m.middle() as i64)
            };
            let free = (piece.slopes.1 - piece.slope).max(piece.slope - piece.slopes.0) + piece.rate;
            let straight = matches!(piece.shape, Shape::Lines { .. });
            out.push(Stretch {
                numbers: (a.number.min(b.number), a.number.max(b.number)),
                from_wall: wall(&a),
                to_wall: wall(&b).max(wall(&a)),
                offset: self.y0.wrapping_add(middle.round() as i64),
                // By the sniffer's time, which runs by boot time less the offset's change.
                drift: slope / (1.0 - slope),
                bound: bound.ceil() as i64 + 1,
                drift_bound: if straight {
                    free
                } else {
                    free.max(2.0 * bound / (b.x - a.x).max(1e6)).min(1e-3)
                },
                received: 0,
                transmitted: 0,
                rejected: 0,
                between: false,
            });
            // The next goes on where this one ends.
            from = if to + 1 == marks.len() { marks.len() } else { to };
        }
        out
    }

    /// The time in which the clock jumped: either line may hold.
    fn jump(&self, before: &Stretch, next: &Stretch, i: usize) -> Stretch {
        let (after, until) = (before.numbers.1, next.numbers.0);
        let (mut low, mut high) = (i64::MAX, i64::MIN);
        let at = |s: &Stretch, wall: i64| {
            s.offset.saturating_add((s.drift * wall.wrapping_sub(s.from_wall) as f64) as i64)
        };
        for (s, wall) in [(before, before.to_wall), (next, next.from_wall)] {
            (low, high) =
                (low.min(at(s, wall).saturating_sub(s.bound)), high.max(at(s, wall).saturating_add(s.bound)));
        }
        let here = |z: &&super::zones::Zone| z.before > self.ends[i - 1].1 && z.after < self.ends[i].0;
        for z in self.zones.iter().filter(here) {
            low = low.min(self.y0.saturating_add(z.low as i64));
            high = high.max(self.y0.saturating_add(z.high as i64));
        }
        let half = high.saturating_sub(low) / 2;
        let (from, to) = (before.to_wall.min(next.from_wall), before.to_wall.max(next.from_wall));
        Stretch {
            numbers: (after, until),
            from_wall: from,
            to_wall: to,
            offset: low.saturating_add(half),
            drift: 0.0,
            bound: half.saturating_add(1),
            drift_bound: 1e-3,
            received: 0,
            transmitted: 0,
            rejected: 0,
            between: true,
        }
    }
}

fn slope(a: &Mark, b: &Mark) -> f64 {
    if b.x > a.x { (b.middle() - a.middle()) / (b.x - a.x) } else { 0.0 }
}

/// The bound that a line through the ends needs; and that it is not much more than the marks' own.
fn needed(part: &[Mark]) -> (f64, bool) {
    let (a, b) = (part[0], part[part.len() - 1]);
    let slope = slope(&a, &b);
    let mut most = 0.0f64;
    let (mut wide, mut narrow) = (0.0f64, f64::INFINITY);
    for m in part {
        let line = a.middle() + slope * (m.x - a.x);
        most = most.max(m.high - line).max(line - m.low);
        (wide, narrow) = (wide.max(m.half()), narrow.min(m.half()));
    }
    (most, most <= LOOSE * wide && wide <= UNLIKE * narrow.max(1.0))
}

/// Middle at the first mark, and bound, of all that the marks allow, on this slope.
fn level(part: &[Mark], slope: f64) -> (f64, f64) {
    let flat = |v: f64, m: &Mark| v - slope * (m.x - part[0].x);
    let low = part.iter().map(|m| flat(m.low, m)).fold(f64::INFINITY, f64::min);
    let high = part.iter().map(|m| flat(m.high, m)).fold(f64::NEG_INFINITY, f64::max);
    ((low + high) / 2.0, (high - low) / 2.0)
}
