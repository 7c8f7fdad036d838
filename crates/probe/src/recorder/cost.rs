//! What our programs cost, by the kernel's own statistics, taken in windows; and the runs it refused.

use super::Recorder;
use crate::{plan, sys};
use kpat_model as model;
use kpat_model::{BootNs, LossCause};
use std::time::{Duration, Instant};

/// How long the kernel times our programs: from before they are attached until this long after they log. Its switch
/// patches kernel text, so it is thrown once while programs run, not again and again; and while it is on, each run pays
/// two clock reads.
const WINDOW: Duration = Duration::from_secs(2);

#[derive(Default)]
pub(super) struct Stats {
    /// Held while the kernel times.
    on: Option<std::os::fd::OwnedFd>,
    since: Option<Instant>,
    /// In the window.
    pub(super) runs: u64,
    pub(super) run_ns: u64,
    pub(super) records: u64,
    at_start: (u64, u64, u64),
    recursion: u64,
    looked: Option<(Instant, BootNs)>,
}

impl Stats {
    /// Before anything is attached. `measure` false, or a kernel that refuses: nothing is timed.
    pub(super) fn begin(measure: bool) -> Stats {
        Stats { on: measure.then(|| sys::enable_stats().ok()).flatten(), ..Default::default() }
    }
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

    pub(super) fn start_window(&mut self) {
        self.stats.since = self.stats.on.as_ref().map(|_| Instant::now());
        self.stats.at_start = self.program_totals();
        self.stats.recursion = self.stats.at_start.2;
        self.stats.looked = Some((Instant::now(), sys::boot_now()));
    }

    /// Ends the window when it is over (or `last`), and counts refused runs once a second: the kernel counts those all
    /// the time, but neither by CPU nor by function.
    pub(super) fn sample_cost(&mut self, now: BootNs, last: bool) {
        let Some((looked, from)) = self.stats.looked else { return };
        let over = self.stats.since.is_some_and(|t| last || t.elapsed() >= WINDOW);
        if !over && !last && looked.elapsed() < Duration::from_secs(1) {
            return;
        }
        self.stats.looked = Some((Instant::now(), now));
        let t = self.program_totals();
        if over {
            (self.stats.on, self.stats.since) = (None, None);
            self.stats.runs = t.0 - self.stats.at_start.0;
            self.stats.run_ns = t.1 - self.stats.at_start.1;
            self.stats.records = self.sink.records;
        }
        let missed = t.2.saturating_sub(self.stats.recursion);
        if missed > 0 {
            self.sink.loss(&model::Loss {
                cause: LossCause::Recursion,
                cpu: -1,
                from,
                to: now,
                count: missed,
            });
            self.stats.recursion = t.2;
        }
    }
}
