//! The control of a comparison: what moved everything at once, and whether the runs were recorded in turn.

use super::{Kind, Row, Run, between};

/// Fewer functions in all runs have no common factor: it would be one of them.
const LEAST_FUNCTIONS: usize = 8;
/// Calls in each run from which on a function has a say in the common factor.
const LEAST_CALLS: u64 = 10;

/// By what everything moved from A to B.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Factor {
    /// B by A: the middle one of the functions' ratios.
    pub ratio: f64,
    /// Half of the functions' ratios lie between these.
    pub quartiles: (f64, f64),
    /// Functions that it is from.
    pub functions: usize,
}

/// What tells a machine that was slower from a function that is.
#[derive(Clone, Debug)]
pub struct Control {
    /// `None`: fewer than 8 functions are in all runs, as of tracepoints only.
    pub factor: Option<Factor>,
    /// Time in a probe's program per run of it, of A and of B, by the kernel's statistics: our own program, on both sides the same.
    pub ns_per_hit: Option<(f64, f64)>,
    /// Runs of the two sides were recorded one side after the other; `None`: there is one run a side.
    pub one_after_other: Option<bool>,
    /// The sides' factors differ by more than those of runs of one side: it was not the same machine, and functions
    /// may have followed it by more or less.
    pub machine_differs: bool,
    /// Logarithm of each run's factor, against the middle of all runs; those of A first.
    pub(super) of_runs: Vec<f64>,
}

impl Control {
    /// The factor beside which differences are read: that of the functions, else that of the probes' own cost, else 1.
    pub fn taken(&self) -> f64 {
        match (self.factor, self.ns_per_hit) {
            (Some(f), _) => f.ratio,
            (None, Some((a, b))) => b / a,
            (None, None) => 1.0,
        }
    }

    pub(super) fn log_factor(&self) -> f64 {
        self.taken().ln()
    }

    /// What a difference has to be larger than to count, as a logarithm.
    pub(super) fn least(&self) -> f64 {
        if self.machine_differs { self.log_factor().abs() } else { 0.0 }
    }
}

pub(super) fn control(rows: &[Row], all: &[Run<'_>], a: usize) -> Control {
    let of_runs = of_runs(rows, all.len());
    let factor = of_runs.as_ref().map(|_| {
        let mut ratios: Vec<f64> = speaking(rows).map(|logs| mean(&logs[a..]) - mean(&logs[..a])).collect();
        ratios.sort_by(f64::total_cmp);
        let at = |q: f64| ratios[((ratios.len() - 1) as f64 * q).round() as usize].exp();
        Factor {
            ratio: middle(&mut ratios.clone()).exp(),
            quartiles: (at(0.25), at(0.75)),
            functions: ratios.len(),
        }
    });
    let hits: Option<Vec<f64>> = all.iter().map(hit).collect();
    let differs = |logs: &Vec<f64>| {
        between::test(std::slice::from_ref(logs), a).is_some_and(|t| t[0].diff.abs() > t[0].half)
    };
    let machine_differs = of_runs.as_ref().or(hits.as_ref()).is_some_and(differs);
    let (side_a, side_b) = all.split_at(a);
    Control {
        factor,
        ns_per_hit: hits.as_ref().map(|h| (mean(&h[..a]).exp(), mean(&h[a..]).exp())),
        machine_differs,
        one_after_other: (side_a.len() > 1 && side_b.len() > 1).then(|| one_after_other(side_a, side_b)),
        of_runs: of_runs.unwrap_or_else(|| vec![0.0; all.len()]),
    }
}

/// Logarithm of the time of one run of a probe's program.
fn hit(r: &Run<'_>) -> Option<f64> {
    let cost = &r.store.manifest.summary.as_ref()?.cost;
    (cost.probe_hits > 0 && cost.probe_ns > 0).then(|| (cost.probe_ns as f64 / cost.probe_hits as f64).ln())
}

/// Logarithms of the functions that are in all runs, often enough.
fn speaking(rows: &[Row]) -> impl Iterator<Item = Vec<f64>> {
    rows.iter()
        .filter(|r| r.kind == Kind::Function && r.runs.iter().all(|s| s.count >= LEAST_CALLS))
        .filter_map(Row::logs)
}

/// Each run's factor: the middle of its functions' distances from their means over all runs.
fn of_runs(rows: &[Row], runs: usize) -> Option<Vec<f64>> {
    let mut distances: Vec<Vec<f64>> = vec![Vec::new(); runs];
    for logs in speaking(rows) {
        let mean = mean(&logs);
        logs.iter().zip(&mut distances).for_each(|(v, d)| d.push(v - mean));
    }
    let enough = distances.first().is_some_and(|d| d.len() >= LEAST_FUNCTIONS);
    enough.then(|| distances.iter_mut().map(|d| middle(d)).collect())
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

fn middle(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    let half = values.len() / 2;
    if values.len() % 2 == 1 { values[half] } else { (values[half - 1] + values[half]) / 2.0 }
}

fn one_after_other(a: &[Run<'_>], b: &[Run<'_>]) -> bool {
    let began = |r: &Run<'_>| r.store.manifest.log.started.wall.0;
    let ends = |runs: &[Run<'_>]| {
        let all = || runs.iter().map(began);
        (all().min().unwrap_or(0), all().max().unwrap_or(0))
    };
    let ((a0, a1), (b0, b1)) = (ends(a), ends(b));
    a1 < b0 || b1 < a0
}
