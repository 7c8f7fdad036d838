//! What became of a trace that was played, and how true to its times.

use crate::pace::Went;
use crate::part::{Outcome, Part};
use std::time::Duration;

/// What became of a trace.
pub struct Report {
    /// Of the trace.
    pub connections: usize,
    pub connected: usize,
    pub writes: u64,
    pub bytes: u64,
    pub planned_writes: u64,
    pub planned_bytes: u64,
    /// Datagrams that the kernel did not take.
    pub refused: u64,
    pub read_bytes: i64,
    /// How much later than it should have each write began. Sorted.
    pub late_ns: Vec<i64>,
    /// From the first write to the end of the last.
    pub wrote: Duration,
    pub took: Duration,
    /// Why connections ended before their last write.
    pub broke: Vec<String>,
}

impl Report {
    /// `took`: all of it, with connecting and waiting.
    pub fn of(outcomes: &[Outcome], parts: &[Part<'_>], took: Duration) -> Report {
        let went = |f: fn(&Went) -> u64| outcomes.iter().map(|o| f(&o.went)).sum::<u64>();
        let mut late_ns: Vec<i64> = outcomes.iter().flat_map(|o| &o.went.late_ns).copied().collect();
        late_ns.sort_unstable();
        let first = outcomes.iter().filter_map(|o| o.went.first).min();
        let last = outcomes.iter().filter_map(|o| o.went.last).max();
        let wrote = first.zip(last).map_or(Duration::ZERO, |(f, l)| l - f);
        let planned = parts.iter().flat_map(|p| p.own);
        Report {
            connections: parts.len(),
            connected: outcomes.iter().filter(|o| o.connected).count(),
            writes: went(|w| w.writes),
            bytes: went(|w| w.bytes),
            planned_writes: planned.clone().count() as u64,
            planned_bytes: planned.map(|w| w.size_bytes.max(0) as u64).sum(),
            refused: went(|w| w.refused),
            read_bytes: outcomes.iter().map(|o| o.read_bytes).sum(),
            late_ns,
            wrote,
            took,
            broke: outcomes.iter().filter_map(|o| o.went.broke.clone()).collect(),
        }
    }

    /// What this share of the writes was at most late.
    pub fn late(&self, share: f64) -> Option<i64> {
        let place = ((self.late_ns.len() as f64 * share).ceil() as usize).max(1) - 1;
        self.late_ns.get(place.min(self.late_ns.len().saturating_sub(1))).copied()
    }

    /// Bytes a second.
    pub fn rate(&self) -> Option<f64> {
        (!self.wrote.is_zero()).then(|| self.bytes as f64 / self.wrote.as_secs_f64())
    }

    /// All was written.
    pub fn is_whole(&self) -> bool {
        self.writes == self.planned_writes && self.broke.is_empty() && self.refused == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lateness_is_that_of_a_write() {
        let went = |late_ns: Vec<i64>| Went { writes: late_ns.len() as u64, late_ns, ..Default::default() };
        let outcome = |went| Outcome { went, connected: true, read_bytes: 1 };
        let outcomes = [outcome(went(vec![30, 10])), outcome(went(vec![20, 40]))];
        let report = Report::of(&outcomes, &[], Duration::ZERO);
        assert_eq!(
            [0.0, 0.25, 0.26, 0.5, 0.99, 1.0].map(|s| report.late(s)),
            [10, 10, 20, 20, 40, 40].map(Some)
        );
        assert_eq!((report.writes, report.connected, report.read_bytes, report.rate()), (4, 2, 2, None));
        assert!(!report.is_whole(), "four writes and none planned");
        assert_eq!(Report::of(&[], &[], Duration::ZERO).late(0.5), None);
    }
}
