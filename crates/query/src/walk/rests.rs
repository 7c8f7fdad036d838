//! When tasks were off the CPU, out of the table `pause`, held in memory: a few numbers each, and a task has one per turn
//! at the CPU at most.

use crate::error::Result;
use crate::store::Store;
use kpat_model::hash::Map;
use kpat_store::tables::{CallRow, PauseRow};

/// A task was off the CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rest {
    pub from: i64,
    /// Runnable from here on: it waited for the CPU.
    pub woken: i64,
    pub to: i64,
    pub cpu_out: i32,
    pub pid: i32,
}

#[derive(Default)]
pub(crate) struct Rests {
    by_pid: Map<i32, Vec<Rest>>,
}

impl Rests {
    /// Those that ended from `first` to `last`, at least.
    pub fn open(store: &Store, first: i64, last: i64) -> Result<Rests> {
        let mut rests = Rests::default();
        let table = store.table::<PauseRow>()?;
        let near = |g: &usize| {
            table.range(*g, "to_ns").is_none_or(|have| *have.start() <= last && *have.end() >= first)
        };
        table.each((0..table.groups()).filter(near).collect(), |p: PauseRow| {
            if p.to_ns < p.from_ns {
                return; // a damaged table
            }
            let woken = if p.preempted != 0 { p.from_ns } else { p.woken_ns.unwrap_or(p.to_ns) };
            rests.by_pid.entry(p.pid).or_default().push(Rest {
                from: p.from_ns,
                woken: woken.clamp(p.from_ns, p.to_ns),
                to: p.to_ns,
                cpu_out: p.cpu_out,
                pid: p.pid,
            });
        })?;
        rests.by_pid.values_mut().for_each(|rests| rests.sort_unstable());
        Ok(rests)
    }

    /// Those of a task within a call of it.
    pub fn within(&self, call: &CallRow) -> &[Rest] {
        let Some(rests) = self.by_pid.get(&call.pid).filter(|_| call.ctx == 0) else { return &[] };
        let end = super::end_ns(call);
        let first = rests.partition_point(|r| r.from < call.entry_ns);
        let after = first + rests[first..].partition_point(|r| r.to <= end);
        &rests[first..after]
    }

    /// The last one of the task before the call.
    pub fn before(&self, call: &CallRow) -> Option<Rest> {
        let rests = self.by_pid.get(&call.pid).filter(|_| call.ctx == 0)?;
        let after = rests.partition_point(|r| r.to <= call.entry_ns);
        rests[..after].last().copied()
    }

    /// What is left of a stretch of a call when its task ran, and on which CPU.
    pub fn running(&self, call: &CallRow, from: i64, to: i64, put: &mut dyn FnMut(i64, i64, i32)) {
        let mut at = from;
        let within = self.within(call);
        // A call has a stretch for each call within it.
        let first = within.partition_point(|r| r.to <= from);
        for r in &within[first..] {
            if r.to <= from || r.from >= to {
                // Before or behind; the one behind still says where the stretch ended.
                if r.from >= to {
                    put(at, to, r.cpu_out);
                    return;
                }
                continue;
            }
            put(at, r.from, r.cpu_out);
            at = r.to;
        }
        put(at, to, call.cpu);
    }
}
