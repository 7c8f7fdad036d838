//! Two profiles: which functions take another share of the samples, and whether more than chance would make it.
//!
//! Processes have other numbers in another run, so functions are the same where the process's name, the side of the border and their own name are. A share is of the
//! samples that were taken for processes; the interval of the difference is Newcombe's, out of Wilson's of each (confidence of 95 %), and takes samples
//! for independent: those of a program that does things in phases are not, and its true interval is wider.

use super::{Sampled, Weighted, wilson};
use std::collections::BTreeMap;

/// A function in both profiles.
#[derive(Clone, Debug, PartialEq)]
pub struct Changed {
    pub process: String,
    pub is_kernel: bool,
    pub function: String,
    /// Samples with it innermost, in the first profile and in the second.
    pub samples: [i64; 2],
    pub shares: [f64; 2],
    /// Of the second share less the first.
    pub low: f64,
    pub high: f64,
}

impl Changed {
    pub fn difference(&self) -> f64 {
        self.shares[1] - self.shares[0]
    }

    /// More than chance.
    pub fn is_sure(&self) -> bool {
        self.low > 0.0 || self.high < 0.0
    }
}

/// Where the difference of two shares is, with a confidence of 95 %.
pub fn interval([a, b]: [f64; 2], of: [f64; 2]) -> (f64, f64) {
    let ((low_a, high_a), (low_b, high_b)) = (wilson(a, of[0]), wilson(b, of[1]));
    let difference = b - a;
    (difference - (b - low_b).hypot(high_a - a), difference + (high_b - b).hypot(a - low_a))
}

/// What changed most first.
pub fn difference(first: &Sampled, second: &Sampled) -> Vec<Changed> {
    let mut counts: BTreeMap<(String, bool, String), [(i64, i64); 2]> = BTreeMap::new();
    let mut of = [(0, 0); 2];
    let more = |sum: &mut (i64, i64), w: &Weighted| *sum = (sum.0 + w.samples, sum.1 + w.ns);
    let both = [first, second];
    for (i, s) in both.into_iter().enumerate() {
        for w in &s.stacks {
            more(&mut of[i], w);
            let Some(f) = w.functions.last().map(|f| s.function(*f)) else { continue };
            let process = s.process_name(f.process).to_owned();
            more(&mut counts.entry((process, f.is_kernel, f.name.clone())).or_default()[i], w);
        }
    }
    let worth = [0, 1].map(|i: usize| of[i].0 as f64 * both[i].worth / both[i].samples.max(1) as f64);
    let changed = |((process, is_kernel, function), sums): (_, [(i64, i64); 2])| {
        let shares = [0, 1].map(|i: usize| sums[i].1 as f64 / of[i].1.max(1) as f64);
        let (low, high) = interval(shares, worth);
        let samples = sums.map(|(samples, _)| samples);
        Changed { process, is_kernel, function, samples, shares, low, high }
    };
    let mut all: Vec<Changed> = counts.into_iter().map(changed).collect();
    all.sort_by(|a, b| b.difference().abs().total_cmp(&a.difference().abs()));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers that look like chance, the same in each run.
    struct Dice(u64);

    impl Dice {
        /// From 0 to 1.
        fn share(&mut self) -> f64 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 11) as f64 / (1u64 << 53) as f64
        }

        fn hits(&mut self, of: i64, share: f64) -> i64 {
            (0..of).filter(|_| self.share() < share).count() as i64
        }

        /// Does the interval hold the difference of two shares, out of so many samples with weights?
        fn is_inside(&mut self, shares: [f64; 2], samples: [i64; 2]) -> bool {
            let found = [0, 1].map(|i: usize| {
                let (mut hit, mut all, mut squares) = (0.0, 0.0, 0.0);
                for _ in 0..samples[i] {
                    let weight = 1.0 / (0.5 + self.share());
                    all += weight;
                    squares += weight * weight;
                    hit += weight * self.hits(1, shares[i]) as f64;
                }
                (hit / all, all * all / squares)
            });
            let (low, high) = interval(found.map(|f| f.0), found.map(|f| f.1));
            (low..=high).contains(&(shares[1] - shares[0]))
        }
    }

    #[test]
    fn the_interval_holds_the_true_difference_as_often_as_it_claims() {
        let mut dice = Dice(7);
        for (shares, of) in [([0.3, 0.3], [400, 300]), ([0.02, 0.05], [500, 900]), ([0.5, 0.9], [100, 80])] {
            let runs = 2000;
            let held = (0..runs)
                .filter(|_| {
                    let found = [0, 1].map(|i: usize| dice.hits(of[i], shares[i]) as f64 / of[i] as f64);
                    let (low, high) = interval(found, of.map(|n| n as f64));
                    (low..=high).contains(&(shares[1] - shares[0]))
                })
                .count();
            let coverage = held as f64 / f64::from(runs);
            assert!((0.935..0.985).contains(&coverage), "{shares:?}: {coverage}");
        }
    }

    /// Samples as the recorder's clock takes them, each for the time between two of its stretch, from half to one and a half times the average rate.
    #[test]
    fn intervals_hold_what_they_claim_over_many_cases_of_weighted_samples() {
        let mut dice = Dice(11);
        let (mut held, mut of, mut worst) = (0, 0, 1.0f64);
        for share in [0.004f64, 0.02, 0.1, 0.35, 0.5, 0.8, 0.97] {
            for change in [0.0, 0.02, -0.15] {
                for samples in [(60, 60), (150, 900), (1200, 400)] {
                    let shares = [share, (share + change).clamp(0.002, 0.998)];
                    let runs = 150;
                    let inside = (0..runs).filter(|_| dice.is_inside(shares, [samples.0, samples.1])).count();
                    (held, of) = (held + inside, of + runs);
                    worst = worst.min(inside as f64 / f64::from(runs as u32));
                }
            }
        }
        let coverage = held as f64 / f64::from(of as u32);
        println!("{held} of {of} differences inside, {coverage:.4}; the worst of 63 cases {worst:.3}");
        assert!((0.94..0.985).contains(&coverage), "{coverage}");
        // One case of 150 runs at 95 % has fewer than 133 inside once in ten thousand times.
        assert!(worst > 0.88, "{worst}");
    }

    #[test]
    fn what_is_only_in_one_has_no_share_in_the_other() {
        let (low, high) = interval([0.0, 0.05], [1000.0, 1000.0]);
        assert!(low > 0.03 && high < 0.07, "{low} {high}");
        let (low, high) = interval([0.0, 0.0], [0.0, 100.0]);
        assert!(low < 0.0 && high > 0.0, "no samples say nothing: {low} {high}");
    }
}
