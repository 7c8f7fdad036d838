//! Two logs side by side: what became slower, what quicker, what is no longer called.
//!
//! Times of calls are skewed, with a long tail of a few very slow ones, so two questions are answered apart. The
//! *median* says what a usual call costs: its interval is a bootstrap, for which only the place of the median needs to
//! be drawn (the middle of n draws lies at a quantile that is Beta distributed), so a distribution is enough and no
//! sample is drawn again. The *mean* says what all of it costs: Welch's interval, which allows unequal variances.
//! Rejected: one test on logarithms, whose difference of geometric means is neither. The draws are seeded: the same
//! logs give the same answer. Calls close to each other are not independent, so intervals are rather too narrow.

use super::{FunctionTime, GroupTime, Spread, TimeReport};
use std::collections::BTreeMap;

/// Below this many on one side no distribution-free interval of 95 % of a median exists.
pub const LEAST: u64 = 6;
const DRAWS: usize = 2_000;

/// One side of a comparison.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    pub count: u64,
    pub median_ns: Option<i64>,
    pub mean_ns: Option<f64>,
    /// Sum per packet of the log: what it contributes to a packet's time.
    pub per_packet_ns: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The interval of the median's difference lies above 0.
    Slower,
    /// It lies below 0.
    Faster,
    /// It contains 0: this much data shows no difference.
    NotShown,
    /// Fewer than [`LEAST`] on one side.
    TooFew,
    /// Only called in the second log. `probed` of [`Change`] says whether it could have been seen in the first.
    Appeared,
    /// Only called in the first log.
    Vanished,
}

impl Verdict {
    pub fn name(self) -> &'static str {
        match self {
            Verdict::Slower => "slower",
            Verdict::Faster => "faster",
            Verdict::NotShown => "no difference shown",
            Verdict::TooFew => "too few",
            Verdict::Appeared => "appeared",
            Verdict::Vanished => "vanished",
        }
    }
}

/// A function, layer or wait in both logs.
#[derive(Clone, Debug)]
pub struct Change {
    pub name: String,
    pub layer: String,
    pub a: Measured,
    pub b: Measured,
    /// Second less first, with 95 % interval; `None`: too few.
    pub median_diff: Option<(i64, (i64, i64))>,
    pub mean_diff: Option<(f64, (f64, f64))>,
    pub verdict: Verdict,
    /// Was it probed in both logs? If not, it did not appear or vanish: it could not be seen.
    pub probed: bool,
}

impl Change {
    /// What it adds to the time of an average packet, in nanoseconds; what changes are sorted by.
    pub fn effect_ns(&self) -> f64 {
        self.b.per_packet_ns - self.a.per_packet_ns
    }
}

#[derive(Clone, Debug)]
pub struct Comparison {
    /// Path time per packet.
    pub path: Change,
    /// Own time per packet by layer; own time per call by function; each time waited.
    pub layers: Vec<Change>,
    pub waits: Vec<Change>,
    pub functions: Vec<Change>,
    pub packets: (u64, u64),
}

/// Name, layer, times.
type Named = (String, String, Spread);

/// Compares two reports that were asked the same; `probed`: was this function probed in the first and second log?
pub fn compare(a: &TimeReport, b: &TimeReport, probed: &dyn Fn(&str) -> (bool, bool)) -> Comparison {
    let none = Spread::default();
    let (ga, gb) = (a.groups.first(), b.groups.first());
    let packets = (ga.map_or(0, |g| g.packets), gb.map_or(0, |g| g.packets));
    let of = |name: &str, layer: &str, x: Option<&Spread>, y: Option<&Spread>| {
        change(name, layer, (x.unwrap_or(&none), y.unwrap_or(&none)), packets)
    };
    let path = of("path", "", ga.map(|g| &g.path), gb.map(|g| &g.path));
    let side = |f: &dyn Fn(&GroupTime) -> Vec<Named>| {
        let mut both: BTreeMap<String, (String, Option<Spread>, Option<Spread>)> = BTreeMap::new();
        for (i, g) in [ga, gb].into_iter().enumerate() {
            for (name, layer, spread) in g.map(f).unwrap_or_default() {
                let at = both.entry(name).or_default();
                at.0 = layer;
                *(if i == 0 { &mut at.1 } else { &mut at.2 }) = Some(spread);
            }
        }
        let all = both.into_iter().map(|(name, (layer, x, y))| of(&name, &layer, x.as_ref(), y.as_ref()));
        let mut all: Vec<Change> = all.collect();
        all.sort_by(|x, y| {
            y.effect_ns().abs().total_cmp(&x.effect_ns().abs()).then_with(|| x.name.cmp(&y.name))
        });
        all
    };
    let layers = side(&|g| {
        g.layers.iter().map(|l| (l.layer.clone(), l.layer.clone(), l.per_packet.clone())).collect()
    });
    let waits = side(&|g| {
        g.waits.iter().map(|w| (w.kind.label().to_owned(), "wait".to_owned(), w.time.clone())).collect()
    });
    let name_of = |f: &FunctionTime| f.name.split('.').next().unwrap_or(&f.name).to_owned();
    let mut functions = side(&|g| {
        let mut by_name: BTreeMap<String, (String, Spread)> = BTreeMap::new();
        for f in &g.functions {
            // A tracepoint has no time.
            if f.own.count() == 0 {
                continue;
            }
            by_name.entry(name_of(f)).or_insert_with(|| (f.layer.clone(), f.own.clone()));
        }
        by_name.into_iter().map(|(name, (layer, own))| (name, layer, own)).collect()
    });
    let calls = |g: Option<&GroupTime>, name: &str| {
        g.is_some_and(|g| g.functions.iter().any(|f| f.calls > 0 && name_of(f) == name))
    };
    for f in &mut functions {
        let (in_a, in_b) = probed(&f.name);
        f.probed = in_a && in_b;
        match (calls(ga, &f.name), calls(gb, &f.name)) {
            (true, false) => f.verdict = Verdict::Vanished,
            (false, true) => f.verdict = Verdict::Appeared,
            _ => {}
        }
    }
    Comparison { path, layers, waits, functions, packets }
}

fn change(name: &str, layer: &str, (x, y): (&Spread, &Spread), packets: (u64, u64)) -> Change {
    let measured = |s: &Spread, packets: u64| Measured {
        count: s.count(),
        median_ns: s.median(),
        mean_ns: s.mean(),
        per_packet_ns: s.sum() as f64 / packets.max(1) as f64,
    };
    let enough = x.count() >= LEAST && y.count() >= LEAST;
    let median_diff = if enough { median_interval(name, x, y) } else { None };
    let verdict = match median_diff {
        None => Verdict::TooFew,
        Some((_, (low, _))) if low > 0 => Verdict::Slower,
        Some((_, (_, high))) if high < 0 => Verdict::Faster,
        Some(_) => Verdict::NotShown,
    };
    Change {
        name: name.to_owned(),
        layer: layer.to_owned(),
        a: measured(x, packets.0),
        b: measured(y, packets.1),
        mean_diff: if enough { welch(x, y) } else { None },
        median_diff,
        verdict,
        probed: true,
    }
}

/// Difference of the medians and its 95 % bootstrap interval.
fn median_interval(name: &str, x: &Spread, y: &Spread) -> Option<(i64, (i64, i64))> {
    let diff = y.median()? - x.median()?;
    // The seed depends on nothing but what is compared.
    let seed =
        name.bytes().fold(0x9e37_79b9_7f4a_7c15u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3));
    let mut random = Random(seed | 1);
    let places = |random: &mut Random, n: u64| -> Vec<f64> { (0..DRAWS).map(|_| random.middle(n)).collect() };
    let (px, py) = (places(&mut random, x.count()), places(&mut random, y.count()));
    let (mx, my) = (x.quantiles(&px), y.quantiles(&py));
    let mut diffs: Vec<i64> = my.iter().zip(&mx).filter_map(|(b, a)| Some((*b)? - (*a)?)).collect();
    diffs.sort_unstable();
    let at =
        |q: f64| diffs.get(((diffs.len() as f64 * q) as usize).min(diffs.len().saturating_sub(1))).copied();
    Some((diff, (at(0.025)?, at(0.975)?)))
}

/// Welch's interval of the difference of the means.
fn welch(x: &Spread, y: &Spread) -> Option<(f64, (f64, f64))> {
    let diff = y.mean()? - x.mean()?;
    let (nx, ny) = (x.count() as f64, y.count() as f64);
    let (vx, vy) = (x.variance()? / nx, y.variance()? / ny);
    let all = vx + vy;
    if all <= 0.0 {
        return Some((diff, (diff, diff)));
    }
    let freedom = all * all / (vx * vx / (nx - 1.0) + vy * vy / (ny - 1.0));
    let half = student(freedom) * all.sqrt();
    Some((diff, (diff - half, diff + half)))
}

/// 97.5 % quantile of Student's t, by the expansion of Cornish and Fisher around the normal: within 0.5 % from 4 degrees
/// of freedom on.
fn student(freedom: f64) -> f64 {
    const Z: f64 = 1.959_963_984_540_054;
    let v = freedom.max(3.0);
    let (z3, z5, z7) = (Z.powi(3), Z.powi(5), Z.powi(7));
    Z + (z3 + Z) / (4.0 * v)
        + (5.0 * z5 + 16.0 * z3 + 3.0 * Z) / (96.0 * v * v)
        + (3.0 * z7 + 19.0 * z5 + 17.0 * z3 - 15.0 * Z) / (384.0 * v * v * v)
}

/// xorshift64*.
struct Random(u64);

impl Random {
    /// In (0, 1).
    fn unit(&mut self) -> f64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        ((self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) as f64 + 0.5) / (1u64 << 53) as f64
    }

    /// Where the median of n draws with replacement lies: Beta((n + 1) / 2, (n + 1) / 2), by two Gamma draws.
    fn middle(&mut self, n: u64) -> f64 {
        let shape = (n as f64 + 1.0) / 2.0;
        let (a, b) = (self.gamma(shape), self.gamma(shape));
        a / (a + b)
    }

    /// Marsaglia and Tsang; shape at least 1.
    fn gamma(&mut self, shape: f64) -> f64 {
        let d = shape - 1.0 / 3.0;
        let c = 1.0 / (9.0 * d).sqrt();
        loop {
            let x = (-2.0 * self.unit().ln()).sqrt() * (std::f64::consts::TAU * self.unit()).cos();
            let v = (1.0 + c * x).powi(3);
            if v > 0.0 && self.unit().ln() < 0.5 * x * x + d - d * v + d * v.ln() {
                return d * v;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn student_is_the_tables() {
        for (freedom, want) in [(4.0, 2.776), (5.0, 2.571), (10.0, 2.228), (30.0, 2.042), (1e6, 1.960)] {
            assert!((student(freedom) - want).abs() < 0.015, "{freedom}: {}", student(freedom));
        }
    }

    /// Many pairs of samples whose true difference is known: the intervals must contain it about 95 times in 100.
    #[test]
    fn intervals_contain_the_truth_as_often_as_they_say() {
        let mut random = Random(7);
        let (mut medians, mut means, runs) = (0, 0, 400);
        for run in 0..runs {
            let mut side = |shift: f64| {
                let mut s = Spread::default();
                // Skewed: exponential with mean 1000, median 693.
                (0..60).for_each(|_| s.push((shift - 1000.0 * random.unit().ln()) as i64));
                s
            };
            let (x, y) = (side(5_000.0), side(5_400.0));
            let c = change(&format!("f{run}"), "", (&x, &y), (60, 60));
            let (_, (low, high)) = c.median_diff.unwrap();
            medians += i32::from((low..=high).contains(&400));
            let (_, (low, high)) = c.mean_diff.unwrap();
            means += i32::from(low <= 400.0 && 400.0 <= high);
        }
        assert!((366..=400).contains(&medians), "{medians} of {runs}");
        assert!((366..=396).contains(&means), "{means} of {runs}");
    }

    #[test]
    fn few_samples_say_nothing() {
        let mut x = Spread::default();
        (0..5).for_each(|i| x.push(1_000 + i));
        let c = change("f", "", (&x, &x.clone()), (5, 5));
        assert_eq!((c.verdict, c.median_diff), (Verdict::TooFew, None));
        x.push(1_000);
        assert_eq!(change("f", "", (&x, &x.clone()), (6, 6)).verdict, Verdict::NotShown);
    }
}
