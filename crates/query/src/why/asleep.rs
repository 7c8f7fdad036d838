//! What threads slept for, by when each was off its CPU and why (table `pause`). It is in logs with packets only, and of a thread's last pauses before it handled a
//! packet: of what is longer nothing is said.

use super::threads::Pieces;
use crate::error::Result;
use crate::store::Store;
use kpat_model::Sleep;
use kpat_store::tables::{PauseRow, ThreadTimeRow};
use std::collections::HashMap;

/// A thread slept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Asleep {
    pub from_ns: i64,
    pub to_ns: i64,
    pub sleep: Sleep,
}

/// By thread, in order of time.
pub(super) type Sleepers = HashMap<i32, Vec<Asleep>>;

/// Nanoseconds by what was slept for, as far as that is known.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SleptFor([f64; Sleep::ALL.len()]);

impl SleptFor {
    /// Longest first; those with time only.
    pub fn longest(&self) -> Vec<(Sleep, f64)> {
        let all = Sleep::ALL.iter().copied().zip(self.0);
        let mut out: Vec<(Sleep, f64)> = all.filter(|(_, ns)| *ns > 0.0).collect();
        out.sort_by(|a, b| b.1.total_cmp(&a.1));
        out
    }

    pub(super) fn add(&mut self, other: &SleptFor) {
        self.0.iter_mut().zip(other.0).for_each(|(own, ns)| *own += ns);
    }
}

/// What a thread slept for, behind "slept".
pub fn slept_for(sleep: Sleep) -> &'static str {
    match sleep {
        Sleep::Stopped => "stopped by a signal or a debugger",
        Sleep::Frozen => "frozen by its cgroup",
        Sleep::Uninterruptible => "uninterruptibly, for a disk, a file system or memory",
        Sleep::Lock => "for a lock or another thread",
        Sleep::Timer => "for a time to be over",
        Sleep::Child => "for a child process",
        Sleep::Descriptors => "for any of several descriptors",
        Sleep::Data => "for data or a connection",
        Sleep::Room => "for room to write",
        Sleep::Other => "in another call",
    }
}

/// The sleep of these threads in the time of these rows. `here`: this log's clock of another's.
pub(super) fn of_threads(
    store: &Store,
    rows: &[ThreadTimeRow],
    here: impl Fn(i64) -> i64,
) -> Result<Sleepers> {
    let mut out: Sleepers = rows.iter().map(|r| (r.thread, Vec::new())).collect();
    let first = rows.iter().map(|r| r.from_ns).min();
    let Some((first, last)) = first.zip(rows.iter().map(|r| r.to_ns).max()) else { return Ok(out) };
    let table = store.table::<PauseRow>()?;
    table.each(table.groups_where("to_ns", &(first..=i64::MAX)), |p: PauseRow| {
        let sleep = p.slept_for.and_then(Sleep::from_number).filter(|_| p.from_ns < last && p.to_ns > first);
        if let Some((sleep, of)) = sleep.zip(out.get_mut(&p.pid)) {
            let to_ns = here(p.woken_ns.unwrap_or(p.to_ns));
            of.push(Asleep { from_ns: here(p.from_ns), to_ns, sleep });
        }
    })?;
    out.values_mut().for_each(|of| of.sort_unstable());
    Ok(out)
}

/// Of the time that a thread slept in pieces of a stage, in the time of one row.
pub(super) fn within(r: &ThreadTimeRow, slept_ns: f64, asleep: &[Asleep], pieces: &Pieces) -> SleptFor {
    let mut out = SleptFor::default();
    let first = asleep.partition_point(|a| a.to_ns <= r.from_ns);
    for a in asleep[first..].iter().take_while(|a| a.from_ns < r.to_ns) {
        let (from, to) = (a.from_ns.max(r.from_ns), a.to_ns.min(r.to_ns));
        let first = pieces.partition_point(|p| p.1 <= from);
        let common = |p: &(i64, i64, f64)| (p.1.min(to) - p.0.max(from)) as f64 * p.2;
        out.0[a.sleep as usize - 1] +=
            pieces[first..].iter().take_while(|p| p.0 < to).map(common).sum::<f64>();
    }
    // Two counts of one time.
    let all: f64 = out.0.iter().sum();
    if all > slept_ns {
        out.0.iter_mut().for_each(|ns| *ns *= slept_ns / all);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_slept_for_is_of_the_stages_time_only() {
        let row = ThreadTimeRow { from_ns: 0, to_ns: 100, ..ThreadTimeRow::default() };
        let asleep = |from_ns, to_ns, sleep| Asleep { from_ns, to_ns, sleep };
        // It waited for a question, then for a lock, then was stopped beyond the row.
        let slept = [
            asleep(-50, 20, Sleep::Data),
            asleep(30, 60, Sleep::Lock),
            asleep(60, 62, Sleep::Timer),
            asleep(90, 300, Sleep::Stopped),
        ];
        let of = |slept_ns, pieces: Pieces| within(&row, slept_ns, &slept, &pieces).longest();
        let all = vec![(Sleep::Lock, 30.0), (Sleep::Stopped, 10.0), (Sleep::Timer, 2.0)];
        assert_eq!(of(60.0, vec![(20, 400, 1.0)]), all);
        assert_eq!(
            of(60.0, vec![(20, 40, 0.5), (94, 200, 1.0)]),
            [(Sleep::Stopped, 6.0), (Sleep::Lock, 5.0)]
        );
        // No more than the thread slept by the kernel's own count.
        assert_eq!(
            of(20.0, vec![(30, 40, 1.0), (95, 100, 6.0)]),
            [(Sleep::Stopped, 15.0), (Sleep::Lock, 5.0)]
        );
        assert_eq!(of(60.0, vec![(300, 400, 1.0)]), []);
        assert!(Sleep::ALL.iter().all(|s| !slept_for(*s).is_empty()));
    }
}
