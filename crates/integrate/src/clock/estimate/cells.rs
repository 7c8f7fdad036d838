//! Matches in a row, of which only the hulls are kept: exact for every line over them.

use super::points::{Point, Points};
use kpat_query::hull::{self, Hulls};
use std::ops::Range;

/// No oscillator and no slewing kernel is beyond this.
pub(super) const MAX_SLOPE: f64 = 1000e-6;
/// Matches of a cell, unless that would make too few cells or too many.
const USUAL: usize = 16;
const FEWEST: usize = 16;
const MOST: usize = 512;
/// Matches of a cell at least.
const LEAST: usize = 4;

/// The points below the clock and those above it.
type Sides = (Vec<hull::Point>, Vec<hull::Point>);

pub(super) struct Cells {
    /// Of the matches.
    pub rows: Vec<Range<usize>>,
    sides: Vec<Sides>,
}

impl Cells {
    /// `made`: points that are supposed, (x, z, from above).
    pub fn new(points: &Points, made: &[(f64, f64, bool)]) -> Cells {
        let n = points.all.len();
        let size = (n / FEWEST).clamp(LEAST, USUAL).max(n / MOST);
        let rows: Vec<Range<usize>> = (0..n).step_by(size).map(|a| a..n.min(a + size)).collect();
        let sides = rows.iter().map(|r| sides(&points.all[r.clone()], made)).collect();
        Cells { rows, sides }
    }

    pub fn len(&self) -> usize {
        self.rows.len()
    }

    pub fn hulls(&self, cells: Range<usize>) -> Hulls {
        let all = |pick: fn(&Sides) -> &Vec<hull::Point>| -> Vec<hull::Point> {
            self.sides[cells.clone()].iter().flat_map(|s| pick(s).iter().copied()).collect()
        };
        Hulls::new(&all(|s| &s.0), &all(|s| &s.1))
    }

    /// Half of what the two sides overlap by, at the slope where that is least; negative: a line fits between.
    pub fn contradiction(&self, cells: Range<usize>) -> f64 {
        let hulls = self.hulls(cells);
        if hulls.is_two_sided() { -hulls.widest(MAX_SLOPE).1 / 2.0 } else { f64::NEG_INFINITY }
    }

    /// Takes the points of cells away, and gives them back.
    pub fn swap(&mut self, cells: Range<usize>, with: Option<Vec<Sides>>) -> Vec<Sides> {
        let with = with.unwrap_or_else(|| vec![Default::default(); cells.len()]);
        cells.zip(with).map(|(c, new)| std::mem::replace(&mut self.sides[c], new)).collect()
    }

    /// How far from `a` on (or, backwards, before `a`) one line contradicts its points no more than `limit`.
    pub fn longest(&self, a: usize, forward: bool, limit: f64) -> usize {
        let most = if forward { self.len() - a } else { a };
        let range = |n: usize| if forward { a..a + n } else { a - n..a };
        let fits = |n: usize| self.contradiction(range(n)) <= limit;
        // What fits as a whole fits in part: galloping finds the end.
        let (mut good, mut next) = (1.min(most), 1);
        let mut bad = loop {
            next = next.min(most);
            if !fits(next) {
                break next;
            }
            good = next;
            if next == most {
                return if forward { a + most } else { a - most };
            }
            next *= 2;
        };
        while bad - good > 1 {
            let middle = (bad + good) / 2;
            if fits(middle) { good = middle } else { bad = middle }
        }
        if forward { a + good } else { a - good }
    }
}

fn sides(rows: &[Point], made: &[(f64, f64, bool)]) -> Sides {
    let first = rows.iter().map(|p| p.x).fold(f64::INFINITY, f64::min);
    let last = rows.iter().map(|p| p.x).fold(f64::NEG_INFINITY, f64::max);
    let of = |received: bool, sign: f64| {
        let seen = rows.iter().filter(|p| p.received == received && p.ok).map(|p| (p.x, p.z));
        let supposed = made.iter().filter(|m| m.2 == received && m.0 >= first && m.0 <= last);
        hull::half_hull(&seen.chain(supposed.map(|m| (m.0, m.1))).collect::<Vec<_>>(), sign)
    };
    (of(false, -1.0), of(true, 1.0))
}
