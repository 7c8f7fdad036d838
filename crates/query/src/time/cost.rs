//! How much of a call's time is that of the probes themselves: an estimate, and marked as one.
//!
//! The log knows how long one run of our program takes on average, from the kernel's own BPF statistics. A recorded
//! call runs it twice: the entry's second half and the return's first half lie between the call's two time stamps, the
//! other two halves in its caller. So a call bears one run itself, two for each call below it, and one for each
//! tracepoint. The average holds the dear runs too (a packet's first sight, a full cache), which few calls have; so no
//! more is assumed than the shortest call lasted, since that had a run in it as well. Not in the figure: what the kernel needs to reach the program, and runs for functions that were probed
//! and belonged to no recorded packet.

use crate::walk::Tree;
use kpat_model::meta::Cost;
use kpat_store::tables::FunctionRow;

/// What one program run costs a call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RunCost {
    /// What is taken: the lesser of the two below.
    pub ns: f64,
    /// Average over all runs, by the kernel's statistics.
    pub mean_ns: f64,
    /// Shortest duration of any call; a run lies within each, so the usual run costs no more.
    pub shortest_ns: i64,
}

/// `None`: the log has no times of its programs, or of calls.
pub(crate) fn run_cost(cost: Option<&Cost>, functions: &[FunctionRow]) -> Option<RunCost> {
    let cost = cost?;
    let shortest_ns = functions.iter().filter_map(|f| f.min_ns).min()?;
    let mean_ns = cost.ns_per_hit()?;
    Some(RunCost { ns: mean_ns.min(shortest_ns.max(0) as f64), mean_ns, shortest_ns })
}

/// Program runs within each call of a tree: in its own time, and in all of its time.
pub(crate) fn runs(tree: &Tree<'_>) -> Vec<(u64, u64)> {
    let rows = tree.rows;
    let mut runs: Vec<(u64, u64)> =
        rows.iter().map(|r| if r.dur_ns.is_some() { (1, 1) } else { (0, 0) }).collect();
    // Children come after their callers.
    for i in (1..rows.len()).rev() {
        if let Some(p) = tree.parent(i) {
            // A point's or unfinished call's one run is its caller's; of a call's two, one is, the other its own.
            let all = if rows[i].dur_ns.is_some() { runs[i].1 + 1 } else { 1 };
            runs[p].0 += 1;
            runs[p].1 += all;
        }
    }
    runs
}

/// A time less its estimate; true: it would have been negative.
pub(crate) fn less(ns: i64, runs: u64, per_run: f64) -> (i64, bool) {
    let left = ns - (runs as f64 * per_run).round() as i64;
    (left.max(0), left < 0)
}
