//! When tasks were off the CPU: whose call that was in the midst of, and where a call ran in between.

use kpat_model::OffCpu;
use kpat_model::hash::Map;

/// Off-CPU intervals of a task that are kept however old they are: they may be logged together, and their call right after them.
const KEPT: usize = 8;

struct Span {
    from: i64,
    to: i64,
    cpu_out: u16,
    /// Pauses before it are not known.
    more: bool,
    /// A call has it; only that one counts it, but it was off the CPU for its callers too.
    taken: bool,
}

#[derive(Default)]
pub(super) struct Away {
    by_pid: Map<u32, Vec<Span>>,
    /// Calls in which their task was off the CPU more often than the log can say.
    pub unknown: u64,
}

impl Away {
    pub fn add(&mut self, p: &OffCpu) {
        let (from, to) = (p.from.0, p.to.0);
        let spans = self.by_pid.entry(p.pid).or_default();
        // Off-CPU intervals of a task do not overlap; records that do are damaged.
        if from <= to && spans.last().is_none_or(|last| last.to <= from) {
            spans.push(Span { from, to, cpu_out: p.cpu_out, more: p.more, taken: false });
        }
    }

    /// Pauses within a call that returned on `cpu`. Those that no callee has are added to `off_ns`; given back is on which CPU it ran
    /// from when to when, empty where it was never off.
    pub fn take(
        &mut self,
        off_ns: &mut i64,
        pid: u32,
        cpu: u16,
        (entry, end): (i64, i64),
    ) -> Vec<(u16, i64, i64)> {
        let Some(spans) = self.by_pid.get_mut(&pid) else { return Vec::new() };
        let within = |s: &Span| s.from >= entry && s.to <= end;
        let mut first = spans.len();
        while first > 0 && spans[first - 1].from >= entry {
            first -= 1;
        }
        let mut ran = Vec::new();
        let mut at = entry;
        for s in spans[first..].iter_mut().filter(|s| within(s)) {
            if !s.taken {
                s.taken = true;
                self.unknown += u64::from(s.more);
                *off_ns += s.to - s.from;
            }
            ran.push((s.cpu_out, at, s.from));
            at = s.to;
        }
        if let Some(last) = spans[first..].iter().rfind(|s| within(s)) {
            debug_assert!(last.to == at);
            ran.push((cpu, at, end));
        }
        ran
    }

    pub fn forget(&mut self, before: i64) {
        self.by_pid.retain(|_, spans| {
            let old = spans.partition_point(|s| s.to < before).min(spans.len().saturating_sub(KEPT));
            spans.drain(..old);
            !spans.is_empty()
        });
    }
}
