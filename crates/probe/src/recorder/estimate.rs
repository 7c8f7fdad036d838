//! How often programs ran in a whole recording, from short windows in which the kernel counted: a regression of the runs
//! in a window on its length and on what was put into the rings meanwhile, both of which are known exactly for the whole
//! recording.
//!
//! *Source*: S. L. Lohr, Sampling: Design and Analysis, 3rd ed., ch. 4 (ratio and regression estimation); the
//! variance is that of MacKinnon and White (1985), HC3, which holds where windows differ in how they vary.

use super::cost::{FIRST_HITS, MOST_FIRST_HITS};
use std::collections::VecDeque;

/// A time of which everything is known.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Window {
    pub(super) ns: f64,
    /// Slots of the rings that were taken, and records that found none.
    pub(super) slots: f64,
    /// So many slots may belong to the time before or behind.
    pub(super) unsure: f64,
    pub(super) hits: f64,
    pub(super) hit_ns: f64,
    pub(super) switches: f64,
    pub(super) switch_ns: f64,
}

impl Window {
    fn add(&mut self, w: &Window) {
        self.ns += w.ns;
        self.slots += w.slots;
        self.unsure += w.unsure;
        self.hits += w.hits;
        self.hit_ns += w.hit_ns;
        self.switches += w.switches;
        self.switch_ns += w.switch_ns;
    }
}

/// More are joined two by two.
const MOST_KEPT: usize = 256;
/// Windows of the files before that a file with few of its own is judged by.
const MOST_RECENT: usize = 32;
const LEAST: usize = 4;
/// No slot of a ring stands for more runs than this.
const MOST_PER_SLOT: f64 = 20.0;
/// An interval wider than this share of the figure to either side is no answer.
const WIDEST: f64 = 1.0;
/// Windows are samples of a finite number of moments; no interval is narrower than this share of what was not seen.
const NARROWEST: f64 = 0.01;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Estimate {
    pub(super) about: f64,
    pub(super) low: f64,
    pub(super) high: f64,
}

/// The windows of one file or recording.
#[derive(Clone, Debug, Default)]
pub(super) struct Windows {
    /// At chance moments: each stands for others like it.
    sample: Vec<Window>,
    /// The last of those one after the other at the beginning: they stand for what follows as long as there is nothing better.
    first: VecDeque<Window>,
    /// Sum of all that was seen, also of what stands for nothing else.
    pub(super) seen: Window,
    /// How many windows there were, before any were joined.
    pub(super) taken: u64,
}

impl Windows {
    /// `by_chance`: it began at a chance moment, so the time outside may have been like it.
    pub(super) fn add(&mut self, w: Window, by_chance: bool) {
        self.seen.add(&w);
        self.taken += 1;
        if !by_chance {
            if self.first.len() == 2 * LEAST {
                self.first.pop_front();
            }
            self.first.push_back(w);
            return;
        }
        self.sample.push(w);
        if self.sample.len() > MOST_KEPT {
            let pairs = self.sample.chunks(2).map(|p| {
                let mut sum = p[0];
                p[1..].iter().for_each(|w| sum.add(w));
                sum
            });
            self.sample = pairs.collect();
        }
    }

    /// Those at the beginning saw enough to stand for what follows.
    pub(super) fn first_is_over(&self) -> bool {
        let hits = self.seen.hits;
        hits >= MOST_FIRST_HITS
            || hits >= FIRST_HITS && carriers(self.first.iter().map(|w| w.slots)) >= LEAST as f64
    }

    fn used(&self) -> Vec<&Window> {
        let first = self.first.iter().filter(|_| self.sample.len() < 2 * LEAST);
        first.chain(&self.sample).collect()
    }
}

/// The last windows, of whatever file.
#[derive(Clone, Debug, Default)]
pub(super) struct Recent(VecDeque<Window>);

impl Recent {
    pub(super) fn add(&mut self, w: Window) {
        if self.0.len() == MOST_RECENT {
            self.0.pop_front();
        }
        self.0.push_back(w);
    }
}

/// The sum of `of` over a time of `ns` and `slots` in which `own` was seen. `None`: too little was seen.
pub(super) fn total(
    own: &Windows,
    recent: &Recent,
    (ns, slots): (f64, f64),
    of: impl Fn(&Window) -> f64,
) -> Option<Estimate> {
    let seen = of(&own.seen);
    let (ns_out, slots_out) = ((ns - own.seen.ns).max(0.0), (slots - own.seen.slots).max(0.0));
    if ns_out < 1e-3 * ns && slots_out <= own.seen.unsure.max(1e-3 * slots) {
        return Some(Estimate { about: seen, low: seen, high: seen });
    }
    let used = own.used();
    let (owned, borrowed) = (used.len(), used.len() < 2 * LEAST && recent.0.len() > used.len());
    let sample: Vec<&Window> = if borrowed { recent.0.iter().collect() } else { used };
    let rows: Vec<Row> = sample.iter().map(|w| Row { ns: w.ns, slots: w.slots, y: of(w) }).collect();
    let (about, mut variance, freedom) = predict(&rows, ns_out, slots_out)?;
    if borrowed {
        // The windows show how times differ; how this file does is as uncertain as one of them, or its few.
        let per_window = ns_out * rows.len() as f64 / rows.iter().map(|r| r.ns).sum::<f64>();
        variance += per_window.powi(2) * spread(&rows) / owned.max(1) as f64;
    }
    let unsure =
        sample.iter().map(|w| w.unsure).sum::<f64>() / sample.iter().map(|w| w.slots).sum::<f64>().max(1.0);
    let half = student(freedom) * variance.sqrt() + about * (NARROWEST + unsure);
    if !(half.is_finite() && about.is_finite()) || half > WIDEST * (seen + about) {
        return None;
    }
    Some(Estimate { about: seen + about, low: seen + (about - half).max(0.0), high: seen + about + half })
}

/// Mean of `of` per hit over what was seen, with its interval.
pub(super) fn mean(own: &Windows, recent: &Recent, of: fn(&Window) -> (f64, f64)) -> Option<Estimate> {
    let (sum, count) = of(&own.seen);
    if count <= 0.0 {
        return None;
    }
    let mean = sum / count;
    let mut sample = own.used();
    let borrowed = recent.0.iter().filter(|_| own.sample.len() < LEAST);
    sample.extend(borrowed);
    let sample: Vec<(f64, f64)> = sample.into_iter().map(of).collect();
    let n = sample.iter().filter(|(_, c)| *c > 0.0).count();
    if n < LEAST {
        return Some(Estimate { about: mean, low: 0.0, high: f64::INFINITY });
    }
    let total: f64 = sample.iter().map(|(_, c)| c).sum();
    let squares: f64 = sample.iter().map(|(s, c)| (s - mean * c).powi(2)).sum();
    let n = n as f64;
    let half = student(n - 1.0) * (squares * n / (n - 1.0)).sqrt() / total;
    Some(Estimate { about: mean, low: (mean - half).max(0.0), high: mean + half })
}

#[derive(Clone, Copy)]
struct Row {
    ns: f64,
    slots: f64,
    y: f64,
}

/// What `ns` and `slots` bring, its variance, and the degrees of freedom of that.
fn predict(rows: &[Row], ns: f64, slots: f64) -> Option<(f64, f64, f64)> {
    let sum = |f: &dyn Fn(&Row) -> f64| rows.iter().map(f).sum::<f64>();
    let (in_ns, in_slots) = (sum(&|r| r.ns), sum(&|r| r.slots));
    if rows.len() < LEAST || in_ns <= 0.0 {
        return None;
    }
    let carriers = carriers(rows.iter().map(|r| r.slots));
    if slots > 0.0 && carriers < LEAST as f64 - 1.0 {
        // Hardly any logged record fell into a window, so the estimate is by time; how large the rest may be is assumed.
        let (about, variance, freedom) = ratio(rows, ns, rows.len() as f64 - 1.0, |r| r.ns)?;
        return Some((about, variance + (MOST_PER_SLOT * slots / 2.0).powi(2), freedom));
    }
    let freedom =
        if slots > 0.0 { (carriers - 1.0).min(rows.len() as f64 - 2.0) } else { rows.len() as f64 - 1.0 };
    if in_slots <= 0.0 {
        return ratio(rows, ns, freedom, |r| r.ns);
    }
    // Weighted by 1 / ns, for twice as long a window varies by twice as much.
    let (aa, ab) = (in_ns, in_slots);
    let bb = sum(&|r| r.slots.powi(2) / r.ns);
    let det = aa * bb - ab * ab;
    if rows.len() < 2 * LEAST || det < 1e-6 * aa * bb {
        return ratio(rows, slots, freedom, |r| r.slots);
    }
    let (ra, rb) = (sum(&|r| r.y), sum(&|r| r.slots * r.y / r.ns));
    let (a, b) = ((bb * ra - ab * rb) / det, (aa * rb - ab * ra) / det);
    if b <= 0.0 {
        return ratio(rows, ns, freedom, |r| r.ns);
    }
    if a <= 0.0 {
        return ratio(rows, slots, freedom, |r| r.slots);
    }
    // The variance of a*ns + b*slots is the sum over windows of (its weight in the prediction times its error)^2.
    let variance = sum(&|r| {
        let pull = |u: f64, v: f64| ((bb * u - ab * v) * r.ns + (aa * v - ab * u) * r.slots) / det / r.ns;
        let leverage = pull(r.ns, r.slots).clamp(0.0, 0.95);
        let error = (r.y - a * r.ns - b * r.slots) / (1.0 - leverage);
        (pull(ns, slots) * error).powi(2)
    });
    Some((a * ns + b * slots, variance, freedom))
}

/// How many windows of equal weight these are worth.
fn carriers(slots: impl Iterator<Item = f64>) -> f64 {
    let (sum, squares) = slots.fold((0.0, 0.0), |(a, b), s| (a + s, b + s * s));
    sum * sum / f64::max(squares, 1e-9)
}

/// As [`predict`], in proportion to one quantity.
fn ratio(rows: &[Row], to: f64, freedom: f64, of: impl Fn(&Row) -> f64) -> Option<(f64, f64, f64)> {
    let all: f64 = rows.iter().map(&of).sum();
    let slope = rows.iter().map(|r| r.y).sum::<f64>() / all;
    let squares = rows.iter().map(|r| {
        let leverage = (of(r) / all).clamp(0.0, 0.95);
        ((r.y - slope * of(r)) / (1.0 - leverage)).powi(2)
    });
    (all > 0.0).then(|| (slope * to, squares.sum::<f64>() * (to / all).powi(2), freedom))
}

/// Variance of a window's error when it is predicted from its neighbours.
fn spread(rows: &[Row]) -> f64 {
    let (ns, slots, y) = rows.iter().fold((0.0, 0.0, 0.0), |s, r| (s.0 + r.ns, s.1 + r.slots, s.2 + r.y));
    let error = |r: &Row| if slots > 0.0 { r.y - y / slots * r.slots } else { r.y - y / ns * r.ns };
    rows.iter().map(|r| error(r).powi(2)).sum::<f64>() / (rows.len() as f64 - 1.0).max(1.0)
}

/// Two-sided 95 % point of Student's distribution.
fn student(freedom: f64) -> f64 {
    const FEW: [f64; 8] = [12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31];
    let n = freedom.max(1.0);
    FEW.get(n as usize - 1).copied().unwrap_or(1.96 + 2.4 / n + 3.0 / (n * n))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A generator of numbers that look random (Knuth's MMIX constants).
    struct Chance(u64);

    impl Chance {
        fn next(&mut self) -> f64 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 11) as f64 / (1u64 << 53) as f64
        }
    }

    const STEP_NS: f64 = 2e6;

    /// Hits and slots of each 2 ms of a recording.
    fn traffic(pattern: &str, seconds: usize, c: &mut Chance) -> Vec<(f64, f64)> {
        let steps = seconds * 500;
        let per_slot = 1.0 + 2.0 * c.next();
        let mut burst = 0;
        (0..steps)
            .map(|i| {
                let at = i as f64 / steps as f64;
                let slots = match pattern {
                    "steady" => 400.0 * (0.8 + 0.4 * c.next()),
                    "late" if at < 0.7 => 0.0,
                    "late" => 900.0 * (0.5 + c.next()),
                    "bursts" => {
                        if burst == 0 && c.next() < 0.002 {
                            burst = 20 + (c.next() * 200.0) as usize;
                        }
                        burst = burst.saturating_sub(1);
                        if burst > 0 { 3000.0 * c.next() } else { 2.0 * c.next() }
                    }
                    "idle" => {
                        if c.next() < 0.02 {
                            3.0
                        } else {
                            0.0
                        }
                    }
                    _ => 200.0 + 200.0 * (at * 30.0).sin(),
                };
                let unlogged = if pattern == "filtered" { 500.0 * (0.2 + c.next()) } else { 0.0 };
                (slots * per_slot * (0.9 + 0.2 * c.next()) + unlogged, slots)
            })
            .collect()
    }

    /// As the recorder samples: the beginning, then 10 ms of each stratum at a chance moment.
    fn sampled(all: &[(f64, f64)], c: &mut Chance) -> Windows {
        let mut w = Windows::default();
        let window = |from: usize, n: usize| {
            let (h, s) = all[from..from + n].iter().fold((0.0, 0.0), |t, x| (t.0 + x.0, t.1 + x.1));
            Window { ns: n as f64 * STEP_NS, slots: s, hits: h, hit_ns: h * 200.0, ..Default::default() }
        };
        let mut at = 0;
        while at < 50 || (!w.first_is_over() && at + 5 <= all.len()) {
            let piece = window(at, 5);
            w.add(piece, false);
            at += 5;
        }
        for n in 0.. {
            let stratum = (crate::recorder::cost::stratum(n).as_nanos() as f64 / STEP_NS) as usize;
            if at + stratum > all.len() {
                break;
            }
            w.add(window(at + (c.next() * (stratum - 5) as f64) as usize, 5), true);
            at += stratum;
        }
        w
    }

    #[test]
    fn intervals_hold_the_truth_in_95_of_100_recordings() {
        let mut c = Chance(7);
        for pattern in ["steady", "late", "bursts", "idle", "filtered", "waves"] {
            for seconds in [2, 10, 60] {
                let (mut logged, mut held, mut width) = (0, 0, 0.0);
                for _ in 0..400 {
                    let all = traffic(pattern, seconds, &mut c);
                    let truth: f64 = all.iter().map(|x| x.0).sum();
                    let slots: f64 = all.iter().map(|x| x.1).sum();
                    let w = sampled(&all, &mut c);
                    let whole = (all.len() as f64 * STEP_NS, slots);
                    if let Some(e) = total(&w, &Recent::default(), whole, |w| w.hits) {
                        logged += 1;
                        held += usize::from(e.low <= truth * (1.0 + 1e-9) && truth * (1.0 - 1e-9) <= e.high);
                        width += (e.high - e.low) / truth.max(1.0) / 2.0;
                    }
                }
                println!(
                    "{pattern} {seconds} s: {held} of {logged} held, {:.1} % wide",
                    100.0 * width / logged as f64
                );
                assert!(held as f64 >= 0.95 * logged as f64, "{pattern} {seconds} s: {held} of {logged}");
                assert!(
                    logged > 300 || pattern == "bursts" || seconds < 60,
                    "{pattern} {seconds} s: {logged} logged"
                );
            }
        }
    }

    #[test]
    fn traffic_that_no_window_met_is_not_known() {
        let mut w = Windows::default();
        (0..20).for_each(|_| w.add(Window { ns: 25e6, ..Default::default() }, true));
        assert_eq!(total(&w, &Recent::default(), (20e9, 1e6), |w| w.hits), None);
        assert_eq!(total(&w, &Recent::default(), (20e9, 0.0), |w| w.hits).map(|e| e.high), Some(0.0));
    }

    #[test]
    fn what_was_seen_whole_is_exact() {
        let mut w = Windows::default();
        let seen = Window { ns: 1e9, slots: 100.0, hits: 130.0, ..Default::default() };
        w.add(seen, false);
        let e = total(&w, &Recent::default(), (1e9, 100.0), |w| w.hits).unwrap();
        assert_eq!((e.low, e.about, e.high), (130.0, 130.0, 130.0));
    }
}
