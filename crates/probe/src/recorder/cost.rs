//! What our programs cost, by the kernel's own statistics, taken in windows; and the runs it refused.

use super::Recorder;
use crate::{plan, sys};
use kpat_model as model;
use kpat_model::{BootNs, LossCause};
use std::time::{Duration, Instant};

/// Program statistics, sampled: the kernel's switch for them costs two clock reads a run while it is on.
#[derive(Default)]
pub(super) struct Stats {
    pub(super) on: Option<std::os::fd::OwnedFd>,
    pub(super) since: Option<Instant>,
    pub(super) last: Option<Instant>,
    /// Sums over the windows.
    pub(super) runs: u64,
    pub(super) run_ns: u64,
    pub(super) records: u64,
    recursion: u64,
    at_start: (u64, u64, u64),
    records_at_start: u64,
    broken: bool,
}

impl Recorder {
    fn program_totals(&self) -> (u64, u64, u64) {
        let names = plan::programs(&self.decision, &self.tracepoints);
        let own = names
            .iter()
            .filter(|(n, _)| !n.starts_with("fentry_one") && !n.starts_with("fexit_one"))
            .filter_map(|(n, _)| self.loaded.program(n));
        let mut t = (0, 0, 0);
        for s in own.chain(self.attached.clones()).filter_map(|fd| sys::prog_stats(fd).ok()) {
            t = (t.0 + s.runs, t.1 + s.run_ns, t.2 + s.recursion_misses);
        }
        t
    }

    /// The first two seconds, then windows of a tenth of a second, one a second; recursion misses are counted by the kernel all the time.
    pub(super) fn sample_cost(&mut self, now: BootNs) {
        if self.stats.broken
            || (self.stats.on.is_none()
                && self.stats.last.is_some_and(|t| t.elapsed() < Duration::from_secs(1)))
        {
            return;
        }
        if let Some(since) = self.stats.since {
            let window = if self.stats.last.is_none() { 2000 } else { 100 };
            if since.elapsed() < Duration::from_millis(window) && !self.paused {
                return;
            }
            self.stats.on = None;
            let t = self.program_totals();
            self.stats.runs += t.0 - self.stats.at_start.0;
            self.stats.run_ns += t.1 - self.stats.at_start.1;
            self.stats.records += self.sink.records - self.stats.records_at_start;
            let missed = t.2.saturating_sub(self.stats.recursion);
            if missed > 0 {
                let from = BootNs(now.0 - 1_000_000_000);
                self.sink.loss(&model::Loss {
                    cause: LossCause::Recursion,
                    cpu: -1,
                    from,
                    to: now,
                    count: missed,
                });
                self.stats.recursion = t.2;
            }
            (self.stats.since, self.stats.last) = (None, Some(Instant::now()));
        } else if self.options.measure_cost {
            match sys::enable_stats() {
                Ok(fd) => {
                    self.stats.on = Some(fd);
                    self.stats.since = Some(Instant::now());
                    self.stats.at_start = self.program_totals();
                    self.stats.records_at_start = self.sink.records;
                }
                Err(_) => self.stats.broken = true,
            }
        }
    }
}
