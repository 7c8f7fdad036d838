//! One stretch of a clock: all lines that its matches allow, or, where the clock's speed changes, a tube.

use super::points::Point;
use kpat_query::hull::Hulls;
use std::sync::OnceLock;

/// A free oscillator's wander, beyond what was seen.
pub(super) const WANDER: f64 = 0.1e-6;
const KNOTS: usize = 33;

/// Matches of one direction in a row with none of the other near: the line through them is only supposed, and what they say holds.
#[derive(Clone, Copy, Debug)]
pub(super) struct OneWay {
    pub from: f64,
    pub to: f64,
    /// Of the fastest match.
    pub z: f64,
    pub received: bool,
    /// How much later the fastest tenth is.
    pub depth: f64,
    /// The fastest is taken to have been no slower.
    pub most: f64,
}

#[derive(Clone, Debug)]
pub(super) enum Shape {
    /// Knots and least and greatest values there; chords are safe.
    Lines { at: Vec<f64>, low: Vec<f64>, high: Vec<f64> },
    /// Every match bounds what is near it, less so with distance.
    Tube { above: Envelope, below: Envelope },
}

/// Least of cones over points: `z + rate * |x - at|`, on a slope.
#[derive(Clone, Debug)]
pub(super) struct Envelope {
    at: Vec<f64>,
    before: Vec<f64>,
    after: Vec<f64>,
    /// How many points are before each of as many equal parts of the time as there are points, and parts in a unit of it: a look-up
    /// searches one part.
    parts: Vec<u32>,
    density: f64,
}

impl Envelope {
    /// `rows`: (x, z) with the slope taken away, lower is tighter.
    pub fn new(mut rows: Vec<(f64, f64)>, rate: f64) -> Envelope {
        rows.sort_by(|a, b| a.0.total_cmp(&b.0));
        let at: Vec<f64> = rows.iter().map(|r| r.0).collect();
        let span = at.last().zip(at.first()).map_or(0.0, |(last, first)| last - first);
        let density = if span > 0.0 { at.len() as f64 / span } else { 0.0 };
        let mut least = f64::INFINITY;
        let before = rows.iter().map(|r| {
            least = least.min(r.1 - rate * r.0);
            least
        });
        let before = before.collect();
        let mut least = f64::INFINITY;
        let mut after: Vec<f64> = rows
            .iter()
            .rev()
            .map(|r| {
                least = least.min(r.1 + rate * r.0);
                least
            })
            .collect();
        after.reverse();
        let mut envelope = Envelope { parts: vec![0; at.len() + 2], at, before, after, density };
        for i in 0..envelope.at.len() {
            let part = envelope.part(envelope.at[i]);
            envelope.parts[part + 1] += 1;
        }
        for i in 1..envelope.parts.len() {
            envelope.parts[i] += envelope.parts[i - 1];
        }
        envelope
    }

    /// In which part of the time it is. Never in an earlier one than what is before it, whatever is rounded.
    fn part(&self, x: f64) -> usize {
        let first = self.at.first().copied().unwrap_or(0.0);
        (((x - first) * self.density) as usize).min(self.at.len())
    }

    fn value(&self, x: f64, rate: f64) -> f64 {
        let part = self.part(x);
        let (from, to) = (self.parts[part] as usize, self.parts[part + 1] as usize);
        let i = from + self.at[from..to].partition_point(|a| *a <= x);
        let left = i.checked_sub(1).map_or(f64::INFINITY, |i| self.before[i] + rate * x);
        let right = self.after.get(i).map_or(f64::INFINITY, |a| a - rate * x);
        left.min(right)
    }
}

#[derive(Clone, Debug)]
pub(super) struct Piece {
    /// First and last match: time, number.
    pub span: (f64, f64),
    pub numbers: (u64, u64),
    /// The constraints are moved apart by this.
    pub pad: f64,
    pub slope: f64,
    pub slopes: (f64, f64),
    /// What the frequency may wander where nothing is seen.
    pub wander: f64,
    /// Change of the frequency that is allowed, on top of the slope.
    pub rate: f64,
    pub shape: Shape,
    /// In order of time.
    pub one_way: Vec<OneWay>,
    /// Nothing at all went the other way.
    pub supposed: bool,
    /// Longest `to - from` of `one_way`.
    pub longest: f64,
    /// Times and frames all over it.
    pub marks: Vec<(f64, u64)>,
    /// Received and transmitted matches before each of them but the last.
    pub before: Vec<(usize, usize)>,
    /// Received and transmitted matches.
    pub counts: (usize, usize),
    /// The line's value in the middle of its time, once it was asked for.
    pub centre: OnceLock<f64>,
}

impl Piece {
    /// All lines of these slopes that the matches allow.
    pub fn lines(hulls: &Hulls, span: (f64, f64), slopes: (f64, f64), pad: f64) -> Shape {
        let count = if span.1 > span.0 { KNOTS } else { 1 };
        let step = (span.1 - span.0) / (KNOTS - 1) as f64;
        let at: Vec<f64> = (0..count).map(|i| span.0 + step * i as f64).collect();
        let (mut low, mut high) = (Vec::new(), Vec::new());
        for x in &at {
            let (a, b) = hulls.reach(*x, slopes, pad);
            low.push(a.min(b));
            high.push(a.max(b));
        }
        Shape::Lines { at, low, high }
    }

    /// Received and transmitted matches before a frame, as far as the marks tell.
    pub fn counts_before(&self, number: u64) -> (usize, usize) {
        let known = &self.marks[..self.marks.len().min(self.before.len())];
        let i = known.partition_point(|m| m.1 <= number);
        i.checked_sub(1).map_or((0, 0), |i| self.before[i])
    }

    /// Lowest and highest boot less wall.
    pub fn between(&self, x: f64) -> (f64, f64) {
        let (low, high) = self.shape_at(x);
        self.seen(x, low, high)
    }

    /// In the middle of the shape: good enough to say which moment it is.
    pub fn line(&self, x: f64) -> f64 {
        let (low, high) = self.shape_at(x);
        (low + high) / 2.0
    }

    /// The line in the middle of its time.
    pub fn centre(&self) -> f64 {
        *self.centre.get_or_init(|| self.line((self.span.0 + self.span.1) / 2.0))
    }

    fn shape_at(&self, x: f64) -> (f64, f64) {
        match &self.shape {
            Shape::Lines { at, low, high } => {
                let inside = x.clamp(self.span.0, self.span.1);
                let value = |v: &[f64]| {
                    let step = if at.len() > 1 { at[1] - at[0] } else { 1.0 };
                    let place = ((inside - at[0]) / step).max(0.0);
                    let i = (place as usize).min(at.len() - 1);
                    let j = (i + 1).min(at.len() - 1);
                    v[i] + (v[j] - v[i]) * (place - i as f64)
                };
                let (over, under) = ((x - self.span.1).max(0.0), (self.span.0 - x).max(0.0));
                let (least, most) = (self.slopes.0 - self.wander, self.slopes.1 + self.wander);
                (value(low) + over * least - under * most, value(high) + over * most - under * least)
            }
            Shape::Tube { above, below } => {
                let high = above.value(x, self.rate) + self.pad + self.slope * x;
                let low = -below.value(x, self.rate) - self.pad + self.slope * x;
                (low.min(high), low.max(high))
            }
        }
    }

    pub fn middle(&self, x: f64) -> f64 {
        let (low, high) = self.between(x);
        (low + high) / 2.0
    }

    /// In one-way traffic what was seen there, and beside it, holds whatever the line is.
    fn seen(&self, x: f64, mut low: f64, mut high: f64) -> (f64, f64) {
        let end = self.one_way.partition_point(|b| b.from <= x);
        for b in self.one_way[..end].iter().rev() {
            if b.from + self.longest < x {
                break;
            }
            if b.to < x {
                continue;
            }
            let depth = if self.supposed { b.depth } else { 0.0 };
            match (b.received, self.supposed) {
                (true, supposed) => {
                    high = high.max(b.z + self.pad + depth);
                    if supposed {
                        low = low.min(b.z - b.most);
                    }
                }
                (false, supposed) => {
                    low = low.min(b.z - self.pad - depth);
                    if supposed {
                        high = high.max(b.z + b.most);
                    }
                }
            }
        }
        (low, high)
    }

    /// The wire's order does not allow this match here.
    pub fn refuses(&self, p: &Point) -> bool {
        let (low, high) = self.between(p.x);
        if p.received { p.z + self.pad < low } else { p.z - self.pad > high }
    }
}
