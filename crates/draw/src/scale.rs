//! Where a value stands, and which marks an axis has.

/// How values become heights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    Plain,
    /// Little is seen beside much; the same up and down.
    Root,
    Logarithmic,
}

/// Of values, from its lower end to its upper.
#[derive(Clone, Copy, Debug)]
pub struct Axis {
    pub scale: Scale,
    pub low: f64,
    pub high: f64,
}

impl Axis {
    /// 0 at the lower end, 1 at the upper.
    pub fn up(&self, v: f64) -> f64 {
        let bend = |v: f64| match self.scale {
            Scale::Plain => v,
            Scale::Root => v.abs().sqrt().copysign(v),
            Scale::Logarithmic => v.max(self.low).max(1e-9).ln(),
        };
        let (low, high) = (bend(self.low), bend(self.high));
        if high > low { (bend(v) - low) / (high - low) } else { 0.5 }
    }

    /// What a bar stands on.
    pub fn base(&self) -> f64 {
        if self.scale == Scale::Root { 0.0 } else { self.low }
    }
}

/// Round marks of an axis of time.
#[derive(Debug, PartialEq)]
pub struct Ticks {
    from_ns: i64,
    to_ns: i64,
    step_ns: i64,
    per_unit: f64,
    pub unit: &'static str,
    /// As many as tell them apart.
    decimals: usize,
}

impl Ticks {
    /// About ten of them.
    pub fn between(from_ns: i64, to_ns: i64) -> Ticks {
        // A damaged log's times may be further apart than a signed number can tell.
        let rough = if to_ns < from_ns { 1 } else { (to_ns.abs_diff(from_ns) / 10).max(1) as i64 };
        let power = 10i64.pow(rough.ilog10());
        let steps = [1, 2, 5, 10].into_iter().filter_map(|m| power.checked_mul(m));
        let step_ns = steps.into_iter().find(|s| *s >= rough).unwrap_or(i64::MAX);
        let units = [(1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1.0, "ns")];
        let far = from_ns.unsigned_abs().max(to_ns.unsigned_abs()) as f64;
        let (per_unit, unit) = units.into_iter().find(|(u, _)| far >= *u).unwrap_or((1.0, "ns"));
        let decimals = (-(step_ns as f64 / per_unit).log10() - 1e-9).ceil().max(0.0) as usize;
        Ticks { from_ns, to_ns, step_ns, per_unit, unit, decimals }
    }

    /// Each one's moment, and what stands at it.
    pub fn marks(&self) -> impl Iterator<Item = (i64, String)> {
        let first =
            self.from_ns.div_euclid(self.step_ns) + i64::from(self.from_ns.rem_euclid(self.step_ns) > 0);
        (first..=self.to_ns.div_euclid(self.step_ns)).map(|n| {
            let at_ns = n * self.step_ns;
            (at_ns, format!("{:.*}", self.decimals, at_ns as f64 / self.per_unit))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_of_an_axis_are_round_and_told_apart() {
        let ms = 1_000_000;
        let of = |from, to| {
            let t = Ticks::between(from, to);
            (t.step_ns, t.per_unit, t.unit, t.decimals)
        };
        assert_eq!(of(0, 9_514 * ms), (1_000 * ms, 1e9, "s", 0));
        assert_eq!(of(2_000 * ms, 2_400 * ms), (50 * ms, 1e9, "s", 2));
        assert_eq!(of(0, 1000), (100, 1e3, "µs", 1));
        assert_eq!(of(0, 1), (1, 1.0, "ns", 0));
        assert_eq!(of(-5_000, 5_000), (1_000, 1e3, "µs", 0));
        let all = Ticks::between(i64::MIN, i64::MAX);
        assert!((1..30).contains(&all.marks().count()), "{all:?}");
        assert!(Ticks::between(5, i64::MIN).marks().count() == 0);
    }

    #[test]
    fn marks_lie_within_the_axis() {
        let marks: Vec<_> = Ticks::between(-1_500, 8_500).marks().collect();
        let at: Vec<i64> = marks.iter().map(|m| m.0).collect();
        assert_eq!(at, [-1_000, 0, 1_000, 2_000, 3_000, 4_000, 5_000, 6_000, 7_000, 8_000]);
        assert_eq!((marks[0].1.as_str(), marks[9].1.as_str()), ("-1", "8"));
    }

    #[test]
    fn a_root_scale_is_the_same_up_and_down() {
        let r = Axis { scale: Scale::Root, low: -4.0, high: 16.0 };
        let near = |a: f64, b: f64| (a - b).abs() < 1e-9;
        assert!(near(r.up(-4.0), 0.0) && near(r.up(16.0), 1.0) && near(r.up(0.0), 1.0 / 3.0));
        assert!(near(r.up(1.0) - r.up(0.0), r.up(0.0) - r.up(-1.0)));
    }
}
