//! Where the time goes: per function, per layer, and in waiting; of one packet or of many.
//!
//! Self time is a call's duration less its callees, less recorded interrupts and less the time in which its task was off the CPU;
//! over a tree the sums close ([`closure`]). Waiting is not a function's time: it comes from cutting each packet's way
//! ([`crate::phases`]), and is a row of its own.

mod closure;
mod compare;
mod cost;
mod groups;

pub use crate::spread::{Bucket, Spread};
pub use closure::{Closure, closure};
pub use compare::{Change, Comparison, Control, Factor, Measured, Remark, Run, Statistic, Verdict, compare};
pub use cost::RunCost;
pub use groups::GroupBy;

use crate::abreast::Progress as Parts;
use crate::choice::PacketFilter;
use crate::error::Result;
use crate::phases::{Boundaries, Cutting, Phase};
use crate::store::Store;
use crate::walk::{Asked, Life, NO_PACKET, Tree, walk};
use groups::Groups;
use kpat_model::hash::Map;
use kpat_store::tables::{CallRow, PacketRow};
use std::collections::BTreeMap;

/// What is asked of [`time`].
#[derive(Clone, Debug, Default)]
pub struct TimeQuestion {
    pub filter: PacketFilter,
    /// Of this packet only.
    pub packet: Option<i64>,
    /// Only calls of at least this duration ...
    pub slower_ns: Option<i64>,
    /// ... and at most this. Layers, waits and sums per packet are of all calls.
    pub faster_ns: Option<i64>,
    /// Only functions that fit this glob; empty: all.
    pub glob: String,
    pub by: Option<GroupBy>,
    /// Take the estimate of the probes' own cost off.
    pub subtract_cost: bool,
    pub boundaries: Boundaries,
}

/// Times of one function over the calls that count.
#[derive(Clone, Debug)]
pub struct FunctionTime {
    pub func_id: i32,
    pub name: String,
    pub module: String,
    pub layer: String,
    /// Calls, whether their return was seen or not.
    pub calls: u64,
    /// Durations of the timed ones.
    pub total: Spread,
    pub own: Spread,
    pub irq_ns: i64,
    /// Its task was off the CPU.
    pub off_ns: i64,
    /// Estimated cost of the probes in own and in total time; 0 where the log has no times.
    pub cost_own_ns: i64,
    pub cost_total_ns: i64,
    /// Calls whose time was less than the estimate, when it was taken off.
    pub clamped: u64,
}

/// Own time of one layer's functions, per packet.
#[derive(Clone, Debug)]
pub struct LayerTime {
    pub layer: String,
    /// Sum per packet that has any.
    pub per_packet: Spread,
    /// Calls of its functions.
    pub calls: u64,
}

/// Waiting of one kind; with it what is not waiting and yet a hand-over: the card's sending, and copying to a reader.
#[derive(Clone, Debug)]
pub struct WaitTime {
    pub kind: Phase,
    /// Each time that a packet waited.
    pub time: Spread,
}

/// Times of a group of packets; without `by` there is one.
#[derive(Clone, Debug)]
pub struct GroupTime {
    pub label: String,
    pub packets: u64,
    /// Path time per packet.
    pub path: Spread,
    /// Own time of all recorded functions, per packet.
    pub processing: Spread,
    /// Waiting of all kinds, per packet.
    pub waiting: Spread,
    /// What is neither, nor the card's: callers that were not recorded, work on other packets; per packet.
    pub unrecorded: Spread,
    /// Most own time first.
    pub functions: Vec<FunctionTime>,
    /// In the order of the stack.
    pub layers: Vec<LayerTime>,
    pub waits: Vec<WaitTime>,
}

/// The answer of `kpat time`. Times in nanoseconds.
#[derive(Clone, Debug)]
pub struct TimeReport {
    pub groups: Vec<GroupTime>,
    pub closure: Closure,
    /// Estimated cost of one program run; `None`: the log has no times of its programs.
    pub run_cost: Option<RunCost>,
    /// It was taken off.
    pub subtracted: bool,
    /// No function was recorded, only tracepoints.
    pub points_only: bool,
    /// The log says when tasks were off the CPU; else that time is self time.
    pub pauses: bool,
}

/// Layers in the order in which a received packet meets them.
const LAYERS: [&str; 6] = ["driver", "link", "network", "transport", "socket", "other"];

#[derive(Default)]
struct FunctionSums {
    calls: u64,
    total: Spread,
    own: Spread,
    irq_ns: i64,
    off_ns: i64,
    cost: (f64, f64),
    clamped: u64,
}

#[derive(Default)]
struct Sums {
    packets: u64,
    path: Spread,
    processing: Spread,
    waiting: Spread,
    unrecorded: Spread,
    functions: Map<i32, FunctionSums>,
    layers: Map<usize, (Spread, u64)>,
    waits: BTreeMap<Phase, Spread>,
}

struct Counter<'a> {
    question: &'a TimeQuestion,
    /// By func_id: place in [`LAYERS`], and whether the glob fits.
    functions: Vec<(usize, bool)>,
    groups: Vec<Sums>,
    per_run: Option<f64>,
    closure: Closure,
    cutting: Cutting,
}

/// Counts the packets that fit.
///
/// Errors: [`crate::Error::NoSuchPacket`]. Loss: what the log lost is missing here too; see `info`.
pub fn time(store: &Store, question: &TimeQuestion, progress: Parts<'_>) -> Result<TimeReport> {
    let run_cost = cost::run_cost(store.manifest.summary.as_ref().map(|s| &s.cost), &store.functions);
    let per_run = run_cost.map(|c| c.ns);
    let layer = |name: &str| LAYERS.iter().position(|l| *l == name).unwrap_or(LAYERS.len() - 1);
    let glob = |name: &str| question.glob.is_empty() || crate::names::glob_fits(&question.glob, name);
    let mut counter = Counter {
        question,
        functions: store.functions.iter().map(|f| (layer(&f.layer), glob(&f.name))).collect(),
        groups: Vec::new(),
        per_run,
        closure: Closure::default(),
        cutting: Cutting::new(store, &question.boundaries)?,
    };
    let mut groups = Groups::new(store, question.by);
    let asked = Asked { filter: &question.filter, packet: question.packet };
    let shared = std::cell::RefCell::new(&mut counter);
    walk(
        store,
        &asked,
        progress,
        &mut |p: &PacketRow| groups.of(p),
        &mut |tree| shared.borrow_mut().tree(tree),
        &mut |life| shared.borrow_mut().life(&life),
    )?;
    if let Some(id) = question.packet
        && counter.groups.iter().all(|g| g.packets == 0)
    {
        return Err(crate::Error::NoSuchPacket { id, count: store.table::<PacketRow>()?.rows() });
    }
    let labels = groups.labels();
    let Counter { groups: sums, closure, .. } = counter;
    let mut out: Vec<GroupTime> = sums
        .into_iter()
        .enumerate()
        .map(|(i, s)| finish(store, labels.get(i).cloned().unwrap_or_default(), s))
        .collect();
    if question.by.is_some() {
        groups.sort(&mut out);
    }
    Ok(TimeReport {
        groups: out,
        closure,
        run_cost,
        subtracted: question.subtract_cost && per_run.is_some(),
        pauses: store.manifest.log.pauses,
        points_only: store.points_only(),
    })
}

impl Store {
    /// Estimated cost of one run of a probe's program; `None`: the log has no times of its programs.
    pub fn probe_cost_ns(&self) -> Option<f64> {
        cost::run_cost(self.manifest.summary.as_ref().map(|s| &s.cost), &self.functions).map(|c| c.ns)
    }
}

impl Counter<'_> {
    fn sums(groups: &mut Vec<Sums>, group: u32) -> &mut Sums {
        // Calls without a packet are the first group's: they only exist where all is asked for.
        let group = if group == NO_PACKET { 0 } else { group as usize };
        if groups.len() <= group {
            groups.resize_with(group + 1, Sums::default);
        }
        &mut groups[group]
    }

    fn tree(&mut self, tree: &Tree<'_>) {
        self.closure.add(tree);
        let runs = cost::runs(tree);
        for (i, row) in tree.rows.iter().enumerate() {
            let Some(group) = tree.groups[i] else { continue };
            // Grouped by what a packet is, a call without one is in no group.
            if group == NO_PACKET && self.question.by.is_some() {
                continue;
            }
            let (layer, wanted) = self.function(row);
            let sums = Self::sums(&mut self.groups, group);
            sums.layers.entry(layer).or_default().1 += 1;
            let fits = self.question.slower_ns.is_none_or(|n| row.dur_ns.is_some_and(|d| d >= n))
                && self.question.faster_ns.is_none_or(|n| row.dur_ns.is_some_and(|d| d <= n));
            if !wanted || !fits {
                continue;
            }
            let f = sums.functions.entry(row.func_id).or_default();
            f.calls += 1;
            if let (Some(dur), Some(own)) = (row.dur_ns, row.self_ns) {
                let (mut dur, mut own) = (dur, own);
                f.irq_ns = f.irq_ns.saturating_add(row.irq_ns.unwrap_or(0));
                f.off_ns = f.off_ns.saturating_add(row.off_ns.unwrap_or(0));
                if let Some(per_run) = self.per_run {
                    f.cost.0 += runs[i].0 as f64 * per_run;
                    f.cost.1 += runs[i].1 as f64 * per_run;
                    if self.question.subtract_cost {
                        let (d, o) =
                            (cost::less(dur, runs[i].1, per_run), cost::less(own, runs[i].0, per_run));
                        f.clamped += u64::from(d.1 || o.1);
                        (dur, own) = (d.0, o.0);
                    }
                }
                f.total.push(dur);
                f.own.push(own);
            }
        }
    }

    fn function(&self, row: &CallRow) -> (usize, bool) {
        let found = usize::try_from(row.func_id).ok().and_then(|f| self.functions.get(f));
        found.copied().unwrap_or((LAYERS.len() - 1, self.question.glob.is_empty()))
    }

    fn life(&mut self, life: &Life) {
        let mut own: BTreeMap<usize, i64> = BTreeMap::new();
        let mut processing = 0i64;
        for row in &life.rows {
            let Some(mut ns) = row.self_ns else { continue };
            if let Some(per_run) = self.per_run.filter(|_| self.question.subtract_cost) {
                ns = cost::less(ns, 1 + u64::from(life.below(row.call_id)), per_run).0;
            }
            processing = processing.saturating_add(ns);
            let sum = own.entry(self.function(row).0).or_default();
            *sum = sum.saturating_add(ns);
        }
        let segments = self.cutting.way(life);
        let path = life.brief.path_end_ns - life.brief.first_ns;
        let sums = Self::sums(&mut self.groups, life.brief.group);
        let mut waiting = 0;
        for s in &segments {
            if s.phase.is_wait() {
                waiting += s.dur_ns();
            }
            if s.phase.is_wait() || matches!(s.phase, Phase::DmaTx | Phase::CopyToUser) {
                sums.waits.entry(s.phase).or_default().push(s.dur_ns());
            }
        }
        sums.packets += 1;
        sums.path.push(path);
        sums.processing.push(processing);
        sums.waiting.push(waiting);
        for (layer, ns) in own {
            sums.layers.entry(layer).or_default().0.push(ns);
        }
        // Working time in which none of its recorded functions ran.
        let mut busy: Vec<(i64, i64)> = life
            .pieces
            .iter()
            .map(|p| (p.from, p.to.min(life.brief.path_end_ns)))
            .filter(|p| p.0 < p.1)
            .collect();
        busy.extend(
            segments
                .iter()
                .filter(|s| s.phase.is_wait() || s.phase == Phase::DmaTx)
                .map(|s| (s.from_ns, s.to_ns)),
        );
        sums.unrecorded.push((path - union(busy)).max(0));
    }
}

/// Length of what intervals cover together.
fn union(mut spans: Vec<(i64, i64)>) -> i64 {
    spans.sort_unstable();
    let (mut sum, mut at) = (0i64, i64::MIN);
    for (from, to) in spans {
        let from = from.max(at);
        if to > from {
            sum = sum.saturating_add(to - from);
            at = to;
        }
    }
    sum
}

fn finish(store: &Store, label: String, sums: Sums) -> GroupTime {
    let mut functions: Vec<FunctionTime> = sums
        .functions
        .into_iter()
        .map(|(func_id, s)| {
            let f = store.functions.get(func_id as usize);
            FunctionTime {
                func_id,
                name: store.function_name(func_id).to_owned(),
                module: f.map(|f| f.module.clone()).unwrap_or_default(),
                layer: f.map(|f| f.layer.clone()).unwrap_or_default(),
                calls: s.calls,
                total: s.total,
                own: s.own,
                irq_ns: s.irq_ns,
                off_ns: s.off_ns,
                cost_own_ns: s.cost.0.round() as i64,
                cost_total_ns: s.cost.1.round() as i64,
                clamped: s.clamped,
            }
        })
        .collect();
    functions.sort_by(|a, b| {
        b.own.sum().cmp(&a.own.sum()).then(b.calls.cmp(&a.calls)).then_with(|| a.name.cmp(&b.name))
    });
    let mut layers = sums.layers;
    let layers = (0..LAYERS.len())
        .filter_map(|i| layers.remove(&i).map(|(per_packet, calls)| (i, per_packet, calls)))
        .map(|(i, per_packet, calls)| LayerTime { layer: LAYERS[i].to_owned(), per_packet, calls })
        .collect();
    GroupTime {
        label,
        packets: sums.packets,
        path: sums.path,
        processing: sums.processing,
        waiting: sums.waiting,
        unrecorded: sums.unrecorded,
        functions,
        layers,
        waits: sums.waits.into_iter().map(|(kind, time)| WaitTime { kind, time }).collect(),
    }
}
