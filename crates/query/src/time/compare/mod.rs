//! Runs of A beside runs of B: what became slower, what quicker, what is in one of them only.
//!
//! One number stands for each row of each run ([`Statistic`]), and everything goes by it: the difference, its sign, its
//! interval, the word. Numbers are compared as ratios, so the mean over runs is the geometric one. What one run differs from the next of the same kind is the only
//! measure of chance ([`between`]); so with one run a side there are numbers and no verdict. Beside it stands a control
//! ([`control`]): a machine that was slower as a whole moves all functions by about one factor, and that is no
//! difference of any of them. Own times are tested beside the factor of their run, which takes most of the machine's ups
//! and downs out; paths and waits, in which the machine has a part only, are tested as they are. And
//! where the machine itself was another on the two sides, a difference counts only if it is larger than the common factor:
//! what moved not at all, or twice as much as the others, may have done so for the same reason.

mod between;
mod control;
mod words;

pub use control::{Control, Factor};
pub use words::Remark;

use super::{GroupTime, Spread, TimeReport};
use crate::error::{Error, Result};
use crate::store::Store;
use std::collections::BTreeMap;

/// What stands for a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Statistic {
    /// What all of it costs.
    #[default]
    Mean,
    /// What a usual one costs.
    Median,
}

impl Statistic {
    pub fn name(self) -> &'static str {
        match self {
            Statistic::Mean => "mean",
            Statistic::Median => "median",
        }
    }

    fn of(self, s: &Spread) -> Option<f64> {
        match self {
            Statistic::Mean => s.mean(),
            Statistic::Median => s.median().map(|m| m as f64),
        }
    }
}

/// A recording and its report; all were asked the same.
#[derive(Clone, Copy)]
pub struct Run<'a> {
    pub store: &'a Store,
    pub report: &'a TimeReport,
}

impl Run<'_> {
    fn group(&self) -> Option<&GroupTime> {
        self.report.groups.first()
    }

    fn packets(&self) -> u64 {
        self.group().map_or(0, |g| g.packets)
    }
}

/// One side of a row.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measured {
    /// Calls, packets or waits, of all runs.
    pub count: u64,
    /// The statistic of each run; `None`: the run has no such row.
    pub each_ns: Vec<Option<f64>>,
    /// Their geometric mean.
    pub ns: Option<f64>,
    /// How often per packet.
    pub per_packet: f64,
}

impl Measured {
    /// The least and the largest of the runs.
    pub fn range_ns(&self) -> Option<(f64, f64)> {
        let all = || self.each_ns.iter().flatten().copied();
        Some((all().reduce(f64::min)?, all().reduce(f64::max)?))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Beyond what runs of one side differ by; and beyond the common factor, where that is another on the two sides.
    Slower,
    Faster,
    /// Runs of one side differ as much.
    NotShown,
    /// Beyond what runs differ by, and no more than what all functions moved by, or against it.
    WithAll,
    /// One run on a side: differences between runs are not known.
    OneRun,
    /// Fewer runs than can show any difference with 3 % of false alarms.
    TooFewRuns,
    /// In some runs of a side only.
    NotInEvery,
    /// `probed` of [`Change`] says whether it could have been seen in the other.
    OnlyA,
    OnlyB,
}

impl Verdict {
    pub fn name(self) -> &'static str {
        match self {
            Verdict::Slower => "slower",
            Verdict::Faster => "faster",
            Verdict::NotShown => "no difference shown",
            Verdict::WithAll => "with all others",
            Verdict::OneRun => "not known",
            Verdict::TooFewRuns => "too few runs",
            Verdict::NotInEvery => "not in every run",
            Verdict::OnlyA => "only in A",
            Verdict::OnlyB => "only in B",
        }
    }
}

/// A function, layer or wait on both sides.
#[derive(Clone, Debug)]
pub struct Change {
    pub name: String,
    pub layer: String,
    pub a: Measured,
    pub b: Measured,
    /// B by A.
    pub ratio: Option<f64>,
    /// Of own times beside the common factor, else as it is; with the 97 % interval that holds for all rows together.
    pub tested: Option<(f64, (f64, f64))>,
    pub verdict: Verdict,
    /// Was it probed in all runs? If not, it may have been called where it was not seen.
    pub probed: bool,
}

impl Change {
    /// B less A, nanoseconds.
    pub fn diff_ns(&self) -> Option<f64> {
        Some(self.b.ns? - self.a.ns?)
    }

    /// What an average packet has more of it because each takes longer; of the sign of the difference.
    pub fn by_time_ns(&self) -> f64 {
        self.diff_ns().map_or(0.0, |d| d * self.b.per_packet)
    }

    /// What an average packet has more of it because it comes more often.
    pub fn by_count_ns(&self) -> f64 {
        match (self.a.ns, self.b.ns) {
            (Some(a), _) => a * (self.b.per_packet - self.a.per_packet),
            (None, Some(b)) => b * self.b.per_packet,
            (None, None) => 0.0,
        }
    }

    /// What it adds to an average packet in nanoseconds, by both; what changes are sorted by.
    pub fn effect_ns(&self) -> f64 {
        self.by_time_ns() + self.by_count_ns()
    }
}

#[derive(Clone, Debug)]
pub struct Comparison {
    pub statistic: Statistic,
    pub runs: (usize, usize),
    pub packets: (u64, u64),
    /// Enough runs to show differences.
    pub enough: bool,
    pub control: Control,
    /// The ratio from which on a difference would have been seen, in the middle one of the functions, or of all rows without any.
    pub least_ratio: Option<f64>,
    /// What the logs themselves give to mind.
    minded: Vec<String>,
    /// Path time per packet.
    pub path: Change,
    /// Own time per packet by layer; each time waited; own time per call by function.
    pub layers: Vec<Change>,
    pub waits: Vec<Change>,
    pub functions: Vec<Change>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Path,
    Layer,
    Wait,
    Function,
}

impl Kind {
    /// Does the machine's speed move all of it?
    fn own_time(self) -> bool {
        matches!(self, Kind::Layer | Kind::Function)
    }
}

#[derive(Clone, Default)]
struct Seen {
    count: u64,
    calls: u64,
    ns: Option<f64>,
}

struct Row {
    kind: Kind,
    name: String,
    layer: String,
    /// By run, those of A first.
    runs: Vec<Seen>,
}

impl Row {
    /// Logarithms of the runs' times, if all have one.
    fn logs(&self) -> Option<Vec<f64>> {
        self.runs.iter().map(|r| r.ns.map(|ns| ns.max(1.0).ln())).collect()
    }
}

/// Compares runs that were asked the same.
///
/// Errors: [`Error::Incomparable`]: some were recorded by functions and some by tracepoints only.
pub fn compare(a: &[Run<'_>], b: &[Run<'_>], statistic: Statistic) -> Result<Comparison> {
    comparable(a, b)?;
    let all: Vec<Run<'_>> = a.iter().chain(b).copied().collect();
    let rows = rows(&all, statistic);
    let control = control::control(&rows, &all, a.len());
    let tested = tested(&rows, a.len(), &control);
    let enough = between::enough(a.len(), b.len());
    let least_ratio = least_ratio(&rows, &tested);
    let packets = (a.iter().map(Run::packets).sum::<u64>(), b.iter().map(Run::packets).sum::<u64>());
    let mut by_kind: BTreeMap<Kind, Vec<Change>> = BTreeMap::new();
    for (row, tested) in rows.iter().zip(tested) {
        let mut change = change(row, tested, a.len(), packets, &control);
        if row.kind == Kind::Function {
            change.probed = all.iter().all(|r| r.store.knows_function(&row.name));
        }
        by_kind.entry(row.kind).or_default().push(change);
    }
    for changes in by_kind.values_mut() {
        changes.sort_by(|x, y| {
            y.effect_ns().abs().total_cmp(&x.effect_ns().abs()).then_with(|| x.name.cmp(&y.name))
        });
    }
    let mut take = |kind| by_kind.remove(&kind).unwrap_or_default();
    let path = take(Kind::Path).pop().unwrap_or_else(|| nothing(a.len(), b.len()));
    Ok(Comparison {
        statistic,
        runs: (a.len(), b.len()),
        packets,
        enough,
        least_ratio,
        minded: words::minded(a, b),
        path,
        layers: take(Kind::Layer),
        waits: take(Kind::Wait),
        functions: take(Kind::Function),
        control,
    })
}

/// Without function probes a path begins and ends at other places, and no caller or layer has a time.
fn comparable(a: &[Run<'_>], b: &[Run<'_>]) -> Result<()> {
    let first = a.iter().chain(b).next();
    let Some(first) = first else { return Ok(()) };
    let other = a.iter().chain(b).find(|r| r.report.points_only != first.report.points_only);
    let Some(other) = other else { return Ok(()) };
    let mechanism = |r: &Run<'_>| match r.store.manifest.log.mechanism.as_str() {
        "" => if r.report.points_only { "tracepoint" } else { "function probes" }.to_owned(),
        name => name.to_owned(),
    };
    Err(Error::Incomparable { first: mechanism(first), other: mechanism(other) })
}

/// A row of no packets.
fn nothing(a: usize, b: usize) -> Change {
    let none = |n| Measured { each_ns: vec![None; n], ..Measured::default() };
    Change {
        name: "path".to_owned(),
        layer: String::new(),
        a: none(a),
        b: none(b),
        ratio: None,
        tested: None,
        verdict: Verdict::NotInEvery,
        probed: true,
    }
}

fn rows(all: &[Run<'_>], statistic: Statistic) -> Vec<Row> {
    let mut rows: BTreeMap<(Kind, String), Row> = BTreeMap::new();
    for (i, run) in all.iter().enumerate() {
        let Some(g) = run.group() else { continue };
        let mut add = |kind: Kind, name: &str, layer: &str, calls: u64, times: &Spread| {
            if calls == 0 {
                return;
            }
            let row = rows.entry((kind, name.to_owned())).or_insert_with(|| Row {
                kind,
                name: name.to_owned(),
                layer: layer.to_owned(),
                runs: vec![Seen::default(); all.len()],
            });
            row.runs[i] = Seen { count: times.count(), calls, ns: statistic.of(times) };
        };
        add(Kind::Path, "path", "", g.path.count(), &g.path);
        for l in &g.layers {
            add(Kind::Layer, &l.layer, &l.layer, l.per_packet.count(), &l.per_packet);
        }
        for w in &g.waits {
            add(Kind::Wait, w.kind.label(), "wait", w.time.count(), &w.time);
        }
        for (name, f) in by_name(g) {
            add(Kind::Function, &name, &f.0, f.1, &f.2);
        }
    }
    rows.into_values().collect()
}

/// Layer, calls and own times of each function that has times, clones of the compiler together.
fn by_name(g: &GroupTime) -> BTreeMap<String, (String, u64, Spread)> {
    let mut out: BTreeMap<String, (String, u64, Spread)> = BTreeMap::new();
    for f in g.functions.iter().filter(|f| f.own.count() > 0) {
        let name = f.name.split('.').next().unwrap_or(&f.name);
        let at = out.entry(name.to_owned()).or_insert_with(|| (f.layer.clone(), 0, Spread::default()));
        at.1 += f.calls;
        at.2.merge(&f.own);
    }
    out
}

/// Logarithm of the ratio of each row that all runs have, and half of its interval.
fn tested(rows: &[Row], a: usize, control: &Control) -> Vec<Option<between::Tested>> {
    let mut values = Vec::new();
    let mut at = Vec::new();
    for (i, row) in rows.iter().enumerate() {
        let Some(mut logs) = row.logs() else { continue };
        if row.kind.own_time() {
            logs.iter_mut().zip(&control.of_runs).for_each(|(v, c)| *v -= c);
        }
        values.push(logs);
        at.push(i);
    }
    let mut out = vec![None; rows.len()];
    for (i, t) in at.into_iter().zip(between::test(&values, a).unwrap_or_default()) {
        out[i] = Some(t);
    }
    out
}

fn least_ratio(rows: &[Row], tested: &[Option<between::Tested>]) -> Option<f64> {
    let halves = |functions: bool| {
        let chosen = rows.iter().zip(tested).filter(|(r, _)| !functions || r.kind == Kind::Function);
        let mut halves: Vec<f64> = chosen.filter_map(|(_, t)| Some(t.as_ref()?.half)).collect();
        halves.sort_by(f64::total_cmp);
        halves.get(halves.len() / 2).copied()
    };
    halves(true).or_else(|| halves(false)).map(f64::exp)
}

fn change(
    row: &Row,
    tested: Option<between::Tested>,
    runs_a: usize,
    packets: (u64, u64),
    control: &Control,
) -> Change {
    let measured = |runs: &[Seen], packets: u64| {
        let logs: Vec<f64> = runs.iter().filter_map(|r| Some(r.ns?.max(1.0).ln())).collect();
        Measured {
            count: runs.iter().map(|r| r.count).sum(),
            each_ns: runs.iter().map(|r| r.ns).collect(),
            ns: (!logs.is_empty()).then(|| (logs.iter().sum::<f64>() / logs.len() as f64).exp()),
            per_packet: runs.iter().map(|r| r.count).sum::<u64>() as f64 / packets.max(1) as f64,
        }
    };
    let (a, b) = row.runs.split_at(runs_a);
    let (ma, mb) = (measured(a, packets.0), measured(b, packets.1));
    let ratio = ma.ns.zip(mb.ns).map(|(a, b)| b / a);
    let none = |runs: &[Seen]| runs.iter().all(|r| r.calls == 0);
    let verdict = match tested {
        _ if none(a) => Verdict::OnlyB,
        _ if none(b) => Verdict::OnlyA,
        _ if row.runs.iter().any(|r| r.ns.is_none()) => Verdict::NotInEvery,
        _ if a.len() == 1 || b.len() == 1 => Verdict::OneRun,
        None => Verdict::TooFewRuns,
        Some(t) if t.diff.abs() <= t.half => Verdict::NotShown,
        Some(t) => {
            let beside = if row.kind.own_time() { t.diff } else { t.diff - control.log_factor() };
            // Beside the factor quicker and yet slower than it was: one word would be wrong for one of the two columns.
            let as_measured = ratio.map_or(0.0, f64::ln);
            if beside.abs() <= control.least() || beside * as_measured <= 0.0 {
                Verdict::WithAll
            } else if as_measured > 0.0 {
                Verdict::Slower
            } else {
                Verdict::Faster
            }
        }
    };
    Change {
        name: row.name.clone(),
        layer: row.layer.clone(),
        a: ma,
        b: mb,
        ratio,
        tested: tested.map(|t| (t.diff.exp(), ((t.diff - t.half).exp(), (t.diff + t.half).exp()))),
        verdict,
        probed: true,
    }
}
