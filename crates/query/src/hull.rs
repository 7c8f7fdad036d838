//! All lines between two sets of points: at or above every lower point, at or below every upper one.

/// A bound on the line at `x` (seconds or any unit; relative, so that doubles keep the nanoseconds).
pub type Point = (f64, f64);

/// What is known of the line.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Band {
    pub slope: f64,
    /// Value at x = 0.
    pub value: f64,
    /// Slopes that occur.
    pub slope_min: f64,
    pub slope_max: f64,
    /// The true line is within this of the one given, over the range asked for.
    pub bound: f64,
}

fn turn(o: Point, a: Point, b: Point) -> f64 {
    (a.0 - o.0) * (b.1 - o.1) - (a.1 - o.1) * (b.0 - o.0)
}

/// The points of the convex hull on one side; `sign` 1: lower side, -1: upper side.
pub fn half_hull(points: &[Point], sign: f64) -> Vec<Point> {
    let mut sorted: Vec<Point> = points.to_vec();
    sorted.sort_by(|a, b| a.0.total_cmp(&b.0).then((sign * a.1).total_cmp(&(sign * b.1))));
    // Of points above each other only the outer one.
    sorted.dedup_by(|b, a| a.0 == b.0);
    let mut hull: Vec<Point> = Vec::new();
    for p in sorted {
        while hull.len() >= 2 && sign * turn(hull[hull.len() - 2], hull[hull.len() - 1], p) <= 0.0 {
            hull.pop();
        }
        hull.push(p);
    }
    hull
}

pub struct Hulls {
    /// Upper side of the lower points.
    below: Vec<Point>,
    /// Lower side of the upper points.
    above: Vec<Point>,
}

impl Hulls {
    pub fn new(lower: &[Point], upper: &[Point]) -> Hulls {
        Hulls { below: half_hull(lower, -1.0), above: half_hull(upper, 1.0) }
    }

    /// Highest lower point once the slope is taken away.
    fn floor(&self, slope: f64) -> f64 {
        self.below.iter().map(|p| p.1 - slope * p.0).fold(f64::NEG_INFINITY, f64::max)
    }

    fn ceiling(&self, slope: f64) -> f64 {
        self.above.iter().map(|p| p.1 - slope * p.0).fold(f64::INFINITY, f64::min)
    }

    /// Slope (within plus or minus `limit`) that leaves most room; and that room, negative if there is none.
    pub fn widest(&self, limit: f64) -> (f64, f64) {
        let (mut lo, mut hi) = (-limit, limit);
        for _ in 0..100 {
            let (a, b) = (lo + (hi - lo) / 3.0, hi - (hi - lo) / 3.0);
            // Room is concave in the slope.
            if self.room(a) < self.room(b) { lo = a } else { hi = b }
        }
        let slope = (lo + hi) / 2.0;
        (slope, self.room(slope))
    }

    fn room(&self, slope: f64) -> f64 {
        self.ceiling(slope) - self.floor(slope)
    }

    /// Slopes, of those within plus or minus `limit`, of all lines between once each hull is moved away by `pad`; `best` is one.
    pub fn slopes(&self, best: f64, pad: f64, limit: f64) -> (f64, f64) {
        let edge = |mut inside: f64, mut outside: f64| {
            let fits = |slope: f64| self.room(slope) + 2.0 * pad >= 0.0;
            if fits(outside) {
                return outside;
            }
            for _ in 0..70 {
                let middle = (inside + outside) / 2.0;
                if fits(middle) { inside = middle } else { outside = middle }
            }
            inside
        };
        (edge(best, -limit), edge(best, limit))
    }

    /// Least and greatest value at `x` of lines of these slopes that have only one of the hulls to heed, moved away by `pad`. Over
    /// `x` the one is concave, the other convex, so chords of them lie outside.
    pub fn reach(&self, x: f64, (from, to): (f64, f64), pad: f64) -> (f64, f64) {
        let high = extreme(from, to, |s| self.ceiling(s) + s * x);
        let low = -extreme(from, to, |s| -(self.floor(s) + s * x));
        (low - pad, high + pad)
    }

    /// Both hulls have a point.
    pub fn is_two_sided(&self) -> bool {
        !self.below.is_empty() && !self.above.is_empty()
    }

    /// Every line between, over `from..=to`; `None`: there is none.
    pub fn band(&self, limit: f64, from: f64, to: f64) -> Option<Band> {
        if self.below.is_empty() || self.above.is_empty() {
            return None;
        }
        let (best, room) = self.widest(limit);
        if room < 0.0 {
            return None;
        }
        let (slope_min, slope_max) = self.slopes(best, 0.0, limit);
        let at = |x: f64| self.reach(x, (slope_min, slope_max), 0.0);
        let ((low0, high0), (low1, high1)) = (at(from), at(to));
        let (middle0, middle1) = ((low0 + high0) / 2.0, (low1 + high1) / 2.0);
        let slope = if to > from { (middle1 - middle0) / (to - from) } else { best };
        // The width between the extreme lines is convex over x, so it is largest at an end.
        let bound = ((high0 - low0) / 2.0).max((high1 - low1) / 2.0);
        Some(Band { slope, value: middle0 - slope * from, slope_min, slope_max, bound })
    }
}

/// Greatest value of a concave function between.
fn extreme(mut lo: f64, mut hi: f64, f: impl Fn(f64) -> f64) -> f64 {
    let mut best = f(lo).max(f(hi));
    for _ in 0..100 {
        let (a, b) = (lo + (hi - lo) / 3.0, hi - (hi - lo) / 3.0);
        if f(a) < f(b) { lo = a } else { hi = b }
    }
    best = best.max(f((lo + hi) / 2.0));
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_true_line_is_inside() {
        let mut below = kpat_model::random::below(1);
        let mut random = || below(1 << 53) as f64 / (1u64 << 53) as f64;
        for _ in 0..50 {
            let (slope, value) = (random() * 1e-4 - 5e-5, random() * 1e9);
            let line = |t: f64| value + slope * t;
            let n = 200;
            let (mut lower, mut upper) = (Vec::new(), Vec::new());
            for _ in 0..n {
                let t = random() * 60e9;
                lower.push((t, line(t) - 1e4 - random() * 1e6));
                upper.push((t, line(t) + 2e4 + random() * 1e6));
            }
            let band = Hulls::new(&lower, &upper).band(5e-4, 0.0, 60e9).unwrap();
            for t in [0.0, 30e9, 60e9] {
                let err = (band.value + band.slope * t - line(t)).abs();
                assert!(err <= band.bound, "{err} > {}", band.bound);
            }
            assert!(band.bound < 3e5, "{}", band.bound);
            assert!((band.slope_min..=band.slope_max).contains(&slope));
        }
    }

    #[test]
    fn contradiction_has_no_line() {
        assert_eq!(Hulls::new(&[(0.0, 10.0), (1.0, 0.0)], &[(0.0, 5.0)]).band(1.0, 0.0, 1.0), None);
        assert_eq!(Hulls::new(&[], &[(0.0, 5.0)]).band(1.0, 0.0, 1.0), None);
    }
}
