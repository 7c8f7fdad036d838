//! Do the sums close? For every call with a known return, its direct children, its own time, the interrupts that cut
//! in and the time its task was off the CPU must make up its duration, to the nanosecond. Recomputed from entries and durations of the table, so it also holds
//! the table against whoever wrote it.

use crate::choice::PacketFilter;
use crate::codes::call_flag;
use crate::error::Result;
use crate::store::Store;
use crate::walk::{Tree, end_ns};
use kpat_model::Context;

/// What was checked. `violations` is 0 in every log that kpat wrote, however odd its records are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Closure {
    /// Trees with at least one timed call.
    pub trees: u64,
    /// Calls with a known duration.
    pub calls: u64,
    /// Calls whose return was not seen: no sum can be made of them.
    pub no_return: u64,
    /// Calls whose own time was set to 0 because their children overlap: their records contradict each other.
    pub clamped: u64,
    /// Calls whose sum does not close, or that reach out of their caller.
    pub violations: u64,
    /// Sum of the time of interrupts that cut in.
    pub irq_ns: i64,
    /// Sum of the time in which tasks were off the CPU.
    pub off_ns: i64,
    /// Own time of all calls, and of those made by tasks.
    pub own_ns: i64,
    pub task_own_ns: i64,
    /// The first few violations.
    pub examples: Vec<i64>,
}

impl Closure {
    pub(crate) fn add(&mut self, tree: &Tree<'_>) {
        if !tree.whole {
            return;
        }
        let rows = tree.rows;
        let mut children = vec![0i64; rows.len()];
        let mut wrong = vec![false; rows.len()];
        let mut timed = 0;
        for (i, row) in rows.iter().enumerate() {
            let (Some(dur), Some(p)) = (row.dur_ns, tree.parent(i)) else { continue };
            children[p] = children[p].saturating_add(dur);
            let parent = &rows[p];
            wrong[i] |= parent.dur_ns.is_some()
                && (row.entry_ns < parent.entry_ns || end_ns(row) > end_ns(parent) || row.ctx != parent.ctx);
        }
        for (i, row) in rows.iter().enumerate() {
            let Some(dur) = row.dur_ns else {
                self.no_return += u64::from(row.flags & call_flag::POINT == 0);
                continue;
            };
            timed += 1;
            let (own, irq) = (row.self_ns.unwrap_or(-1), row.irq_ns.unwrap_or(-1));
            self.irq_ns = self.irq_ns.saturating_add(irq.max(0));
            // Not in logs of earlier versions.
            let off = row.off_ns.unwrap_or(0);
            self.off_ns = self.off_ns.saturating_add(off.max(0));
            self.own_ns = self.own_ns.saturating_add(own.max(0));
            if row.ctx == Context::Task as i32 {
                self.task_own_ns = self.task_own_ns.saturating_add(own.max(0));
            }
            let sum = children[i].saturating_add(own).saturating_add(irq).saturating_add(off);
            if row.flags & call_flag::SELF_CLAMPED != 0 {
                self.clamped += 1;
                wrong[i] |= own != 0 || sum < dur;
            } else {
                wrong[i] |= sum != dur || own < 0 || irq < 0 || off < 0;
            }
            if wrong[i] {
                self.violations += 1;
                if self.examples.len() < 8 {
                    self.examples.push(row.call_id);
                }
            }
        }
        self.calls += timed;
        self.trees += u64::from(timed > 0);
    }
}

/// Checks every tree of a log.
pub fn closure(store: &Store) -> Result<Closure> {
    let mut closure = Closure::default();
    let filter = PacketFilter::default();
    let asked = crate::walk::Asked { filter: &filter, packet: None };
    crate::walk::walk(
        store,
        &asked,
        &mut |_, _| true,
        &mut |_| 0,
        &mut |tree| closure.add(tree),
        &mut |_| (),
    )?;
    Ok(closure)
}
