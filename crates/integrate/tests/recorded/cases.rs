//! Clocks that were thought of, and clocks drawn at random.

use super::recorded::{Case, Random, Recorded};

const US: f64 = 1e3;
const MS: f64 = 1e6;
const S: f64 = 1e9;
/// The sniffer's clock is off by this unless a case sets another.
const OFF: f64 = 12.0 * S;

struct Build {
    t: Vec<f64>,
    out: Vec<Case>,
}

impl Build {
    fn of(recorded: &Recorded) -> Build {
        let first = recorded.walls[0];
        Build { t: recorded.walls.iter().map(|w| (w - first) as f64).collect(), out: Vec::new() }
    }

    fn map(&self, f: impl FnMut(f64) -> f64) -> Vec<f64> {
        self.t.iter().copied().map(f).collect()
    }

    fn end(&self) -> f64 {
        self.t[self.t.len() - 1]
    }

    fn add(
        &mut self,
        group: &'static str,
        name: String,
        clock: Vec<f64>,
        error: Option<Vec<f64>>,
    ) -> &mut Case {
        let n = self.t.len();
        let seed = self.out.len() as u64 + 1_000;
        let error = error.unwrap_or_else(|| vec![0.0; n]);
        let keep = vec![true; n];
        self.out.push(Case {
            group,
            name,
            clock,
            error,
            keep,
            wrong: 0.0,
            swap: 0.0,
            only: None,
            resolution: 1,
            seed,
        });
        self.out.last_mut().expect("just added")
    }

    fn off(&self, f: impl Fn(f64) -> f64) -> Vec<f64> {
        self.map(|t| OFF + f(t))
    }

    fn noise(&self, mut f: impl FnMut() -> f64) -> Option<Vec<f64>> {
        Some(self.t.iter().map(|_| f()).collect())
    }
}

fn after(t: f64, at: f64, add: f64) -> f64 {
    if t > at { add } else { 0.0 }
}

/// Stamped when a batch is taken.
fn batch(t: f64, tick: f64, phase: f64) -> f64 {
    ((t + phase) / tick).ceil() * tick - phase - t
}

pub fn designed(recorded: &Recorded) -> Vec<Case> {
    let mut b = Build::of(recorded);
    clocks(&mut b);
    jitters(&mut b);
    captures(&mut b);
    b.out
}

fn clocks(b: &mut Build) {
    let (end, mid) = (b.end(), b.end() / 2.0);
    for o in [30.0 * US, -100.0 * US, 300.0 * US, 5.0 * MS, 12.0 * S, -3600.0 * S] {
        b.add("offset", format!("offset {} s", o / S), b.map(|_| o), None);
    }
    for p in [1.0, 20.0, 100.0, 500.0, -50.0, -500.0] {
        b.add("drift", format!("drift {p} ppm, 12 s"), b.off(|t| t * p * 1e-6), None);
    }
    for p in [5.0, -100.0] {
        b.add("drift", format!("drift {p} ppm, no offset"), b.map(|t| t * p * 1e-6), None);
    }
    for s in [0.05, 0.2, 1.0, 20.0, 300.0, 1000.0, -0.05, -1.0, -50.0, -1000.0] {
        b.add("step", format!("one step {s} ms"), b.off(|t| after(t, mid, s * MS)), None);
    }
    for s in [0.1, 2.0, -20.0] {
        b.add("step", format!("one step {s} ms, no offset"), b.map(|t| after(t, mid, s * MS)), None);
    }
    for (x, y) in [
        (300.0, 300.0),
        (50.0, 1000.0),
        (-300.0, -300.0),
        (-50.0, -1000.0),
        (1.0, 1.0),
        (0.2, 0.2),
        (2000.0, -2000.0),
    ] {
        let clock = b.off(|t| after(t, end / 3.0, x * MS) + after(t, 2.0 * end / 3.0, y * MS));
        b.add("two steps", format!("steps {x} and {y} ms"), clock, None);
    }
    for (seed, scale) in [(1, 50.0 * US), (2, MS), (3, 100.0 * MS)] {
        let mut r = Random(seed);
        let steps: Vec<(f64, f64)> = (0..10)
            .map(|_| (r.between(0.03, 0.97) * end, scale * r.between(0.0, 2.0).exp() * r.sign()))
            .collect();
        let clock = b.off(|t| steps.iter().map(|s| after(t, s.0, s.1)).sum());
        b.add("ten steps", format!("ten steps of {} ms and more", scale / MS), clock, None);
    }
    for p in [50.0, 200.0, 500.0, -500.0] {
        b.add(
            "slew",
            format!("slew {p} ppm from the middle"),
            b.off(|t| (t - mid).max(0.0) * p * 1e-6),
            None,
        );
    }
    for p in [100.0, -300.0] {
        let clock = b.off(|t| (t - end / 3.0).clamp(0.0, end / 3.0) * p * 1e-6);
        b.add("slew", format!("slew {p} ppm for a third"), clock, None);
    }
    b.add(
        "slew",
        "3 ms worked off exponentially".into(),
        b.off(|t| 3.0 * MS * (-t / (end / 5.0)).exp()),
        None,
    );
    b.add(
        "slew",
        "sine of 20 us".into(),
        b.off(|t| 20.0 * US * (std::f64::consts::TAU * t / end).sin()),
        None,
    );
    b.add("slew", "sawtooth of 1 us, 1 s".into(), b.off(|t| US * (t / S).fract()), None);
    for seed in [1, 2] {
        let mut r = Random(60 + seed);
        let mut at = 0.0;
        let walk: Vec<f64> = (0..200)
            .map(|_| {
                at += r.normal();
                at
            })
            .collect();
        let most = walk.iter().fold(1.0f64, |m, w| m.max(w.abs()));
        let wander = |t: f64| {
            let x = t / end * 199.0;
            let i = (x as usize).min(198);
            (walk[i] + (walk[i + 1] - walk[i]) * (x - i as f64)) / most * 200.0
        };
        let sign = if seed % 2 == 0 { 1.0 } else { -1.0 };
        let clock = |us: f64| b.map(|t| us * US * sign + wander(t));
        let (ten, three) = (clock(10.0), clock(3.0));
        let e = b.noise(|| r.normal() * 30.0);
        b.add("PTP host", format!("10 us off, 30 ns jitter, wander 0.2 us ({seed})"), ten.clone(), e);
        let e = b.noise(|| r.normal() * 300.0);
        b.add("PTP host", format!("3 us off, 0.3 us jitter ({seed})"), three, e);
        let e = b.noise(|| r.exponential() * 3000.0);
        b.add("PTP, software stamps", format!("10 us off, late 3 us ({seed})"), ten, e);
    }
}

fn jitters(b: &mut Build) {
    let flat = b.off(|_| 0.0);
    for j in [1.0, 3.0, 10.0, 40.0, 80.0, 200.0, 2000.0] {
        let mut r = Random(j as u64);
        let e = b.noise(|| r.between(-j, j) * US);
        b.add("jitter uniform", format!("uniform +-{j} us"), flat.clone(), e);
    }
    for j in [1.0, 5.0, 20.0, 100.0] {
        let mut r = Random(10 + j as u64);
        let e = b.noise(|| r.normal() * j * US);
        b.add("jitter gaussian", format!("gaussian {j} us"), flat.clone(), e);
    }
    for j in [2.0, 5.0, 20.0, 50.0, 200.0] {
        let mut r = Random(20 + j as u64);
        let e = b.noise(|| r.exponential() * j * US);
        b.add("jitter exponential", format!("late, exponential {j} us"), flat.clone(), e);
    }
    for j in [50.0, 100.0, 200.0] {
        let phase = Random(30 + j as u64).between(0.0, j * US);
        let e = b.map(|t| batch(t, j * US, phase));
        b.add("jitter batches", format!("stamped each {j} us"), flat.clone(), Some(e));
    }
    for j in [50.0, 200.0] {
        let mut r = Random(40 + j as u64);
        let e = b.noise(|| if r.unit() < 0.5 { (j + r.normal() * j / 20.0) * US } else { 0.0 });
        b.add("jitter batches", format!("half exact, half late by {j} us"), flat.clone(), e);
    }
    for share in [0.005, 0.03] {
        for ms in [0.3, 2.0] {
            let mut r = Random(50);
            let e = b.noise(|| if r.unit() < share { ms * MS } else { 0.0 });
            b.add("late outliers", format!("{} % late by {ms} ms", share * 100.0), flat.clone(), e);
        }
    }
    let mut r = Random(51);
    let e = b.noise(|| if r.unit() < 0.03 { r.exponential() * 5.0 * MS } else { 0.0 });
    b.add("late outliers", "3 % late by exponential 5 ms".into(), flat.clone(), e);
    for res in [1_000, 100_000, 1_000_000, 10_000_000] {
        b.add("resolution", format!("resolution {} us", res / 1000), flat.clone(), None).resolution = res;
    }
}

fn captures(b: &mut Build) {
    let (n, end) = (b.t.len(), b.end());
    let mid = end / 2.0;
    let flat = b.off(|_| 0.0);
    let gaussian = |b: &Build, seed, us: f64| {
        let mut r = Random(seed);
        b.noise(|| r.normal() * us * US)
    };
    let late = |b: &Build, seed, us: f64| {
        let mut r = Random(seed);
        b.noise(|| r.exponential() * us * US)
    };
    for wrong in [0.01, 0.03] {
        b.add("wrong matches", format!("{} % wrong", wrong * 100.0), flat.clone(), None).wrong = wrong;
        let e = gaussian(b, 70, 20.0);
        b.add("wrong matches", format!("{} % wrong, jitter 20 us", wrong * 100.0), flat.clone(), e).wrong =
            wrong;
    }
    let kept = |share: f64| {
        let mut r = Random(71);
        (0..n).map(|_| r.unit() >= share).collect::<Vec<bool>>()
    };
    for share in [0.5, 0.9] {
        b.add("missing", format!("{} % missing", share * 100.0), flat.clone(), None).keep = kept(share);
    }
    let (clock, e) = (b.off(|t| t * 5e-5), gaussian(b, 72, 20.0));
    b.add("missing", "90 % missing, jitter 20 us, drift 50".into(), clock, e).keep = kept(0.9);
    b.add("reordered", "5 % of stamps changed places".into(), flat.clone(), None).swap = 0.05;
    for only in [true, false] {
        let side = if only { "received" } else { "transmitted" };
        let step = |ms: f64| b.off(|t| after(t, mid, ms * MS));
        let all = [
            ("", flat.clone(), None),
            (", jitter 20 us", flat.clone(), gaussian(b, 73, 20.0)),
            (", late 20 us", flat.clone(), late(b, 74, 20.0)),
            (", step 100 ms", step(100.0), None),
            (", step -100 ms", step(-100.0), None),
            (", step 200 us", step(0.2), None),
            (", drift 100", b.off(|t| t * 1e-4), None),
        ];
        for (name, clock, e) in all {
            b.add("one way", format!("only {side}{name}"), clock, e).only = Some(only);
        }
    }
    for m in [1, 3, 20, 60] {
        let keep: Vec<bool> = (0..n).map(|i| i >= n / 4 && i < n / 4 + m).collect();
        b.add("few", format!("{m} frames"), flat.clone(), None).keep = keep.clone();
        let e = gaussian(b, 75, 20.0);
        b.add("few", format!("{m} frames, jitter 20 us"), flat.clone(), e).keep = keep;
    }
    let (clock, e) = (b.off(|t| t * 1e-4 + after(t, mid, 5.0 * MS)), gaussian(b, 76, 20.0));
    b.add("mixed", "drift 100, jitter 20 us, step 5 ms".into(), clock, e);
    let clock = b.off(|t| -t * 5e-5 + after(t, end / 4.0, MS) - after(t, 0.6 * end, 3.0 * MS));
    let e = late(b, 77, 10.0);
    b.add("mixed", "drift -50, late 10 us, steps 1, -3 ms, 1 % wrong".into(), clock, e).wrong = 0.01;
    let clock = b.off(|t| (t - mid).max(0.0) * 2e-4);
    let mut r = Random(78);
    let e = b.noise(|| r.exponential() * 5.0 * US + if r.unit() < 0.03 { 2.0 * MS } else { 0.0 });
    b.add("mixed", "slew 200, late 5 us, 3 % late 2 ms".into(), clock, e);
    let mut r = Random(80);
    let e = b.map(|t| r.normal() * US * if t < mid { 10.0 } else { 100.0 });
    b.add("mixed", "jitter 10 us in the first half, 100 us in the second".into(), flat.clone(), Some(e));
    let mut r = Random(81);
    let e = b.map(|t| r.between(-1.0, 1.0) * US * if (t / end * 20.0).fract() < 0.05 { 500.0 } else { 1.0 });
    b.add("mixed", "jitter bursts: 5 % of the time 500 us".into(), flat, Some(e));
}

/// What a first try gives: some frames in a row, by a clock drawn at random.
pub fn short(recorded: &Recorded, seed: u64, count: usize) -> Vec<Case> {
    let mut b = Build::of(recorded);
    let mut r = Random(seed);
    for i in 0..count {
        let len = 10 + r.below(71);
        let from = r.below(b.t.len() - len);
        let (first, last) = (b.t[from], b.t[from + len - 1]);
        let (offset, drift) = (r.sign() * r.scale(10.0 * US, 4e3 * S), r.normal() * 30e-6);
        let step = (r.unit() < 0.2).then(|| (r.between(first, last), r.sign() * r.scale(20.0 * US, 2.0 * S)));
        let clock = b.map(|t| offset + t * drift + step.map_or(0.0, |s| after(t, s.0, s.1)));
        let (kind, scale) = (r.below(6), r.scale(0.3 * US, 300.0 * US));
        let error = b.map(|_| match kind {
            1 => r.between(-scale, scale),
            2 => r.normal() * scale,
            3 => r.exponential() * scale,
            _ => 0.0,
        });
        let group = match (len, step) {
            (_, Some(_)) => "short: a step",
            (..20, _) => "short: 10 to 19 frames",
            (..40, _) => "short: 20 to 39 frames",
            _ => "short: 40 to 80 frames",
        };
        let kinds = ["exact", "uniform", "gaussian", "late", "exact", "exact"];
        let name =
            format!("{i}: {len} frames from {from}, {} {:.1} us, step {step:?}", kinds[kind], scale / US);
        let n = b.t.len();
        b.add(group, name, clock, Some(error)).keep =
            (0..n).map(|k| (from..from + len).contains(&k)).collect();
    }
    b.out
}

/// Compositions of everything, `count` of them.
pub fn random(recorded: &Recorded, seed: u64, count: usize) -> Vec<Case> {
    let mut b = Build::of(recorded);
    let mut r = Random(seed);
    for i in 0..count {
        compose(&mut b, &mut r, i);
    }
    b.out
}

fn compose(b: &mut Build, r: &mut Random, i: usize) {
    let (n, end) = (b.t.len(), b.end());
    let offset = r.sign() * r.scale(10.0 * US, 4e3 * S);
    let drift = if r.unit() < 0.5 { r.normal() * 50e-6 } else { r.normal() * 3e-6 };
    let one_way = r.unit() < 0.11;
    let count = if r.unit() < 0.6 { 1 + r.below(3) } else { 0 };
    let steps: Vec<(f64, f64)> =
        (0..count).map(|_| (r.between(0.0, 1.0) * end, r.sign() * r.scale(20.0 * US, 2.0 * S))).collect();
    let slewed = !one_way && r.unit() < 0.22;
    let (from, rate) = (r.between(0.05, 0.8) * end, r.sign() * r.scale(5e-6, 500e-6));
    let length = r.between(0.05, 0.6) * end;
    let clock = b.map(|t| {
        let slew = if slewed { (t - from).clamp(0.0, length) * rate } else { 0.0 };
        offset + t * drift + slew + steps.iter().map(|s| after(t, s.0, s.1)).sum::<f64>()
    });
    let scale = r.scale(0.3 * US, 300.0 * US);
    let (kind, phase) = (r.below(6), r.unit() * scale);
    let mut error = b.map(|t| match kind {
        1 => r.between(-scale, scale),
        2 => r.normal() * scale,
        3 => r.exponential() * scale,
        4 => batch(t, scale, phase),
        5 => f64::from(u8::from(r.unit() < 0.5)) * (scale + r.normal() * scale / 20.0),
        _ => 0.0,
    });
    let kinds = ["exact", "uniform", "gaussian", "late", "batches", "half late"];
    let mut name = format!("{i}: {} {:.1} us, drift {:.1} ppm", kinds[kind], scale / US, drift * 1e6);
    if r.unit() < 0.2 {
        let (share, late) = (r.scale(0.001, 0.03), r.scale(0.3 * MS, 5.0 * MS));
        error.iter_mut().for_each(|e| *e += if r.unit() < share { r.exponential() * late } else { 0.0 });
        name += &format!(", {:.1} % late {:.1} ms", share * 100.0, late / MS);
    }
    for s in &steps {
        name += &format!(", step {:.3} ms at {:.3}", s.1 / MS, s.0 / end);
    }
    if slewed {
        name += &format!(", slew {:.0} ppm {:.2} to {:.2}", rate * 1e6, from / end, (from + length) / end);
    }
    let group = match (one_way, count > 0, slewed) {
        (true, ..) => "random: one way",
        (_, false, false) => "random: no step",
        (_, false, true) => "random: slew",
        (_, true, false) => "random: steps",
        (_, true, true) => "random: steps, slew",
    };
    let (wrong, loss) = (r.unit() < 0.1, r.unit() < 0.3);
    let (wrong, loss) =
        (if wrong { r.between(0.003, 0.03) } else { 0.0 }, if loss { r.between(0.1, 0.9) } else { 0.0 });
    let keep = (0..n).map(|_| r.unit() >= loss).collect();
    let resolution = if r.unit() < 0.15 { 10i64.pow(3 + r.below(4) as u32) } else { 1 };
    let only = one_way.then(|| r.next() & 1 == 0);
    name += &format!(", wrong {wrong:.3}, loss {loss:.2}, resolution {resolution}, only {only:?}");
    let seed = r.next();
    let case = b.add(group, name, clock, Some(error));
    (case.wrong, case.keep, case.resolution, case.only, case.seed) = (wrong, keep, resolution, only, seed);
}
