//! A card's clock beside the device's boot clock: when was it, by the boot clock, that the card stamped a packet?
//!
//! The recorder reads both some times a second, each reading with a bound. Between two readings the clock is taken to run evenly. How far
//! from that it ran shows where the readings before and behind go on: both straight lines are looked at, and the answer's bound reaches as
//! far as they do, with all that the errors of the readings leave open of their rates. So an adjustment or a small step between two readings is within the bound. Where the clock was set, so that it ran slower or
//! faster than any oscillator, it is not known on which side of that a stamp is, and there is no answer. Nor is there one before the first reading or
//! after the last.

use std::collections::BTreeMap;

/// What a card's clock showed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reading {
    /// Boot clock, ns.
    pub at: i64,
    /// The card's clock, ns.
    pub card: i64,
    /// How far `at` may be off, ns.
    pub bound: i64,
}

/// A stamp by the boot clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamped {
    /// Boot clock, ns.
    pub at: i64,
    /// ns.
    pub bound: i64,
}

/// Faster or slower than the boot clock by more than this is no clock that runs, it was set: a thousandth.
const MOST_RATE: f64 = 1e-3;
/// A card's stamp is not older than this when a function first has its packet.
const OLDEST_NS: i64 = 5_000_000_000;

/// Readings of one card's clock, in order of the boot clock.
#[derive(Clone, Debug, Default)]
pub(crate) struct CardClock {
    readings: Vec<Reading>,
}

impl CardClock {
    pub fn add(&mut self, r: Reading) {
        // Of one thread, in order; what is not is damaged.
        if self.readings.last().is_none_or(|l| l.at < r.at) {
            self.readings.push(r);
        }
    }

    /// How far the boot clock runs ahead of the card's, from reading `i` to the next, per nanosecond of the card's; `None`: it was set.
    fn rate(&self, i: usize) -> Option<f64> {
        let (a, b) = (self.readings.get(i)?, self.readings.get(i + 1)?);
        let card = b.card.checked_sub(a.card).filter(|c| *c > 0)? as f64;
        let rate = ((b.at - a.at) as f64 - card) / card;
        (rate.abs() <= MOST_RATE).then_some(rate)
    }

    /// How far that rate may be off for the errors of its two readings.
    fn unsure(&self, i: usize) -> f64 {
        let (a, b) = (self.readings[i], self.readings[i + 1]);
        (a.bound + b.bound) as f64 / (b.at - a.at) as f64
    }

    /// A stamp between reading `i` and the next.
    fn between(&self, i: usize, stamp: i64) -> Option<Stamped> {
        let (a, b) = (self.readings[i], self.readings[i + 1]);
        let rate = self.rate(i)?;
        let (since, until) = (stamp.checked_sub(a.card)?, b.card.checked_sub(stamp)?);
        if since < 0 || until < 0 {
            return None;
        }
        let from_a = |rate: f64| a.at + since + (since as f64 * rate).round() as i64;
        let from_b = |rate: f64| b.at - until - (until as f64 * rate).round() as i64;
        let even = from_a(rate);
        // Straight on from the readings before, or back from those behind, for `way`: what that differs by, and what the errors of the readings
        // that the other rate is taken from can add until there.
        let beside = |k: usize, differs: &dyn Fn(f64) -> i64, way: i64| {
            Some(differs(self.rate(k)?) + (self.unsure(k) * way as f64).ceil() as i64)
        };
        let before = |differs: &dyn Fn(f64) -> i64, way| beside(i.checked_sub(1)?, differs, way);
        let behind = |differs: &dyn Fn(f64) -> i64, way| beside(i + 1, differs, way);
        let span = b.card - a.card;
        // One line only: it and the even one are furthest apart where the other one would begin.
        let alone = |other: f64| (span as f64 * (other - rate).abs()).round() as i64;
        let apart = match (
            before(&|rate| (from_a(rate) - even).abs(), since),
            behind(&|rate| (from_b(rate) - even).abs(), until),
        ) {
            (Some(before), Some(behind)) => before.max(behind),
            (Some(_), None) => before(&alone, span)?,
            (None, Some(_)) => behind(&alone, span)?,
            (None, None) => 0,
        };
        Some(Stamped { at: even, bound: a.bound.max(b.bound) + apart + 1 })
    }

    /// When the card stamped a packet that a function first had at `first` (boot clock, ns).
    pub fn stamped(&self, stamp: i64, first: i64) -> Option<Stamped> {
        let last = self.readings.partition_point(|r| r.at <= first).min(self.readings.len().checked_sub(1)?);
        // Beyond where it was set it may have shown the same.
        let logged =
            |i: &usize| self.readings[i + 1].at >= first.saturating_sub(OLDEST_NS) && self.rate(*i).is_some();
        (0..last)
            .rev()
            .take_while(logged)
            .find_map(|i| self.between(i, stamp))
            .filter(|s| s.at <= first + s.bound)
    }
}

/// By namespace and interface.
pub(crate) type CardClocks = BTreeMap<(i64, i32), CardClock>;

#[cfg(test)]
mod tests {
    use super::*;

    const S: i64 = 1_000_000_000;

    /// Numbers that look random, the same each time.
    struct Dice(u64);

    impl Dice {
        fn roll(&mut self, below: i64) -> i64 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((self.0 >> 33) as i64).rem_euclid(below.max(1))
        }
    }

    /// A card's clock as it truly ran, in steps of a millisecond of the boot clock: what it showed at the beginning of each.
    struct Truth(Vec<f64>);

    const STEP: i64 = 1_000_000;

    impl Truth {
        /// `rate(step)`: parts per million that it runs fast; `jump(step)`: ns by which it is set.
        fn new(
            steps: usize,
            from: i64,
            mut rate: impl FnMut(usize) -> f64,
            jump: impl Fn(usize) -> i64,
        ) -> Truth {
            let mut shows = from as f64;
            Truth(
                (0..steps)
                    .map(|i| {
                        shows += jump(i) as f64;
                        let here = shows;
                        shows += STEP as f64 * (1.0 + rate(i) * 1e-6);
                        here
                    })
                    .collect(),
            )
        }

        fn at(&self, boot: i64) -> i64 {
            let i = (boot / STEP) as usize;
            let rate = self.0.get(i + 1).map_or(1.0, |n| (n - self.0[i]) / STEP as f64);
            // A step that ends in a jump runs at its own rate up to it.
            let rate = if (rate - 1.0).abs() > 2e-3 { 1.0 } else { rate };
            (self.0[i] + (boot % STEP) as f64 * rate).round() as i64
        }
    }

    /// Reads as a recorder does: the truth lies anywhere in a bracket, whose middle is reported.
    fn readings(truth: &Truth, seconds: i64, dice: &mut Dice) -> CardClock {
        let mut clock = CardClock::default();
        let mut at = 0;
        while at < seconds * S - 2 * STEP {
            let (half, now) = (200 + dice.roll(3_000), at + dice.roll(40) * STEP);
            let read = now + half + dice.roll(2 * half + 1) - half;
            clock.add(Reading { at: now + half, card: truth.at(read), bound: half + 1 });
            at = now + S / 2;
        }
        clock
    }

    #[derive(Debug, Default)]
    struct Covered {
        asked: u64,
        answered: u64,
        inside: u64,
        widest: i64,
        sum: i64,
    }

    fn cover(truth: &Truth, seconds: i64, dice: &mut Dice, to: &mut Covered) {
        let clock = readings(truth, seconds, dice);
        let (from, until) = (clock.readings[0].at, clock.readings.last().unwrap().at);
        for _ in 0..200 {
            let at = from + dice.roll(until - from - STEP);
            let first = at + 5_000 + dice.roll(3_000_000);
            to.asked += 1;
            if let Some(s) = clock.stamped(truth.at(at), first) {
                to.answered += 1;
                to.inside += u64::from((s.at - at).abs() <= s.bound);
                to.widest = to.widest.max(s.bound);
                to.sum += s.bound;
            }
        }
    }

    /// Clocks that a card may have, each hundreds of times and with several seeds (`SEEDS=n` of them): any offset, drift, a servo, steps. The truth is made here,
    /// and prints its coverage.
    #[test]
    fn stamps_lie_within_their_bounds() {
        type Make = fn(&mut Dice, usize) -> Truth;
        let kinds: [(&str, f64, Make); 5] = [
            ("offset of up to an hour, drift of 50 ppm", 1.0, |d, n| {
                let (from, ppm) = (d.roll(3_600 * S), d.roll(101) as f64 - 50.0);
                Truth::new(n, from, |_| ppm, |_| 0)
            }),
            ("a servo: a new rate within 1 ppm four times a second", 0.9999, |d, n| {
                let rates: Vec<f64> = (0..n / 250 + 1).map(|_| d.roll(2_001) as f64 / 1e3 - 1.0).collect();
                Truth::new(n, S, |i| rates[i / 250], |_| 0)
            }),
            ("a servo that searches: within 50 ppm once a second", 0.9999, |d, n| {
                let rates: Vec<f64> = (0..n / 1_000 + 1).map(|_| d.roll(101) as f64 - 50.0).collect();
                Truth::new(n, S, |i| rates[i / 1_000], |_| 0)
            }),
            ("one step of up to 100 us", 0.9999, |d, n| {
                let (when, by) = (d.roll(n as i64) as usize, d.roll(200_001) - 100_000);
                Truth::new(n, S, |_| 20.0, |i| if i == when { by } else { 0 })
            }),
            ("set by 1 ms to 10 s, forwards", 0.9999, |d, n| {
                let (when, by) = (d.roll(n as i64) as usize, 1_000_000 + d.roll(10 * S));
                Truth::new(n, S, |_| -20.0, |i| if i == when { by } else { 0 })
            }),
        ];
        let seeds: u64 = std::env::var("SEEDS").ok().and_then(|v| v.parse().ok()).unwrap_or(5);
        for (words, least, make) in kinds {
            let mut covered = Covered::default();
            for seed in 1..=seeds {
                let mut dice = Dice(seed * 7_919);
                for _ in 0..100 {
                    let truth = make(&mut dice, 10_100);
                    cover(&truth, 10, &mut dice, &mut covered);
                }
            }
            let share = covered.inside as f64 / covered.answered as f64;
            let mean = covered.sum / covered.answered as i64;
            eprintln!("{words}: {:.4} % inside, {mean} ns on average, {covered:?}", 100.0 * share);
            assert!(share >= least, "{words}: {covered:?}");
            assert!(covered.answered * 10 >= covered.asked * 8, "{words}: {covered:?}");
        }
    }

    #[test]
    fn what_is_not_known_has_no_answer() {
        let mut clock = CardClock::default();
        assert_eq!(clock.stamped(5, 5), None);
        for (at, card) in [(0, 100 * S), (S, 101 * S), (2 * S, 50 * S), (3 * S, 51 * S)] {
            clock.add(Reading { at, card, bound: 10 });
        }
        let logged = |stamp, first| clock.stamped(stamp, first).map(|s| (s.at, s.bound));
        assert_eq!(logged(100 * S + 5_000, 6_000), Some((5_000, 11)));
        assert_eq!(logged(50 * S + 5_000, 2 * S + 6_000), Some((2 * S + 5_000, 11)));
        assert_eq!(logged(101 * S + 5_000, S + 6_000), None, "it was set before the next reading");
        assert_eq!(logged(100 * S + 9_000, 6_000), None, "stamped after it was seen");
        assert_eq!(logged(100 * S - 5_000, 6_000), None, "before the first reading");
        assert_eq!(logged(51 * S + 5_000, 3 * S + 6_000), None, "after the last");
    }
}
