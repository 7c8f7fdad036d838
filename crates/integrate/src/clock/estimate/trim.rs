//! What of a piece's matches holds though a tenth of the stamps may be off by anything.
//!
//! At least 90 % of the stamps have errors within one window that contains 0, and how wide it can be is known from the data
//! ([`super::noise`]). So of received matches no more than a tenth lie further below the clock than that window is wide, of transmitted ones
//! no more than a tenth above. In a block of matches the one that is so far inside that a tenth, with what chance adds, cannot reach it bounds
//! the clock, once it is moved away by the window. The most extreme match needs more: the more stamps scatter, and the more of them there
//! are, the further out it is.
//!
//! Where blocks contradict each other the piece is no line (a step or a bend below what is reported as one). By as much as they do the
//! constraints are moved apart: what contradicts widens.

use super::cells::MAX_SLOPE;
use super::noise::FLOOR_NS;
use super::points::{Points, quantile};
use kpat_query::hull::Hulls;
use std::ops::Range;

/// Share of the stamps that may be off by anything.
const FREE: f64 = 0.1;
/// Standard deviations of chance.
const CHANCE: f64 = 3.0;
/// The window is estimated from the narrower blocks of 64, whose own are some 10 % too short.
const WINDOW: f64 = 1.1;
/// Of the blocks' contradiction.
const CONTRADICTION: f64 = 1.2;
/// Matches that make a block, about; blocks of a piece.
const BLOCK: usize = 96;
const BLOCKS: std::ops::RangeInclusive<usize> = 4..=16;
/// Fewer matches of a piece, or of one direction of a block, tell nothing of a tenth.
const LEAST: usize = 128;
const LEAST_SIDE: usize = 5;

/// Constraints of blocks, and how far they are to be moved apart.
pub(super) struct Trimmed {
    pub hulls: Hulls,
    pub slopes: (f64, f64),
    pub pad: f64,
    /// Half of what is then open in the middle.
    pub half: f64,
}

impl Trimmed {
    /// `None`: too few matches of a direction, or the blocks contradict each other by more than is borne with. `made`: points that are
    /// supposed, (x, z, from above); `slope`: about the line's.
    pub fn new(
        points: &Points,
        rows: Range<usize>,
        made: &[(f64, f64, bool)],
        slope: f64,
        width: f64,
    ) -> Option<Trimmed> {
        let blocks = Blocks::new(points, rows, made, slope)?;
        let hulls = blocks.hulls;
        let (best, room) = hulls.widest(MAX_SLOPE);
        let mut pad = WINDOW * width + FLOOR_NS + CONTRADICTION * (blocks.open - room).max(0.0);
        if room + 2.0 * pad < 0.0 {
            return None;
        }
        // Within a block the slope was taken to be the given one.
        let (least, most) = hulls.slopes(best, pad, MAX_SLOPE);
        pad += (most - slope).max(slope - least) * blocks.half_time;
        let slopes = hulls.slopes(best, pad, MAX_SLOPE);
        Some(Trimmed { hulls, slopes, pad, half: room / 2.0 + pad })
    }
}

struct Blocks {
    hulls: Hulls,
    /// Longest time from a block's middle to its end.
    half_time: f64,
    /// What the two directions of a block leave open between them by themselves.
    open: f64,
}

/// How many of so many the tenth may be at most.
fn free(of: usize) -> usize {
    let n = of as f64;
    (FREE * n + CHANCE * (FREE * (1.0 - FREE) * n).sqrt()).ceil() as usize
}

impl Blocks {
    fn new(points: &Points, rows: Range<usize>, made: &[(f64, f64, bool)], slope: f64) -> Option<Blocks> {
        if rows.len() < LEAST {
            return None;
        }
        let (mut above, mut below, mut open) = (Vec::new(), Vec::new(), Vec::new());
        let (mut first, mut last, mut half_time) = (f64::INFINITY, f64::NEG_INFINITY, 0.0f64);
        let count = (rows.len() / BLOCK).clamp(*BLOCKS.start(), *BLOCKS.end());
        for b in 0..count {
            let at = |b: usize| rows.start + b * rows.len() / count;
            let block = &points.all[at(b)..at(b + 1)];
            let x = || block.iter().map(|p| p.x);
            let (from, to) = (x().fold(f64::INFINITY, f64::min), x().fold(f64::NEG_INFINITY, f64::max));
            (first, last) = (first.min(from), last.max(to));
            half_time = half_time.max((to - from) / 2.0);
            let middle = (from + to) / 2.0;
            let side = |received: bool| {
                let sign = if received { 1.0 } else { -1.0 };
                let of = block.iter().filter(|p| p.received == received && p.is_strong());
                let mut v: Vec<f64> = of.map(|p| sign * (p.z - slope * (p.x - middle))).collect();
                v.sort_unstable_by(f64::total_cmp);
                let within = free(v.len()).min(v.len().saturating_sub(1));
                (v.len() >= LEAST_SIDE).then(|| v[within])
            };
            let (high, low) = (side(true), side(false));
            above.extend(high.map(|v| (middle, v)));
            below.extend(low.map(|v| (middle, -v)));
            open.extend(high.zip(low).map(|(high, low)| high + low));
        }
        if open.is_empty() {
            return None;
        }
        for m in made.iter().filter(|m| m.0 >= first && m.0 <= last) {
            if m.2 { above.push((m.0, m.1)) } else { below.push((m.0, m.1)) }
        }
        Some(Blocks { hulls: Hulls::new(&below, &above), half_time, open: quantile(&mut open, 0.25) })
    }
}
