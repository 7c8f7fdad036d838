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
    /// From the start of the recording to the end of the window.
    pub(super) window: Duration,
    /// In the window.
    pub(super) runs: u64,
    pub(super) run_ns: u64,
    pub(super) switches: u64,
    pub(super) switch_ns: u64,
    pub(super) records: u64,
    at_start: Totals,
    recursion: u64,
    looked: Option<(Instant, BootNs)>,
}

#[derive(Clone, Copy, Default)]
struct Totals {
    runs: u64,
    run_ns: u64,
    /// At the scheduler's switches and wake-ups, at softirqs and polls: whatever is handled there.
    switches: u64,
    switch_ns: u64,
    recursion: u64,
}

impl Stats {
    /// Before anything is attached. `measure` false, or a kernel that refuses: nothing is timed.
    pub(super) fn begin(measure: bool) -> Stats {
        Stats { on: measure.then(|| sys::enable_stats().ok()).flatten(), ..Default::default() }
    }
}

impl Recorder {
    fn program_totals(&self) -> Totals {
        let names = plan::programs(&self.decision, &self.tracepoints);
        let own = names
            .iter()
            .filter(|(n, _)| !n.starts_with("fentry_one") && !n.starts_with("fexit_one"))
            .filter_map(|(n, _)| {
                let of_no_packet = ["_sched_", "_softirq_", "_napi_poll"].iter().any(|part| n.contains(part));
                Some((of_no_packet, self.loaded.program(n)?))
            });
        let mut t = Totals::default();
        let clones = self.attached.clones().map(|fd| (false, fd));
        for (of_no_packet, fd) in own.chain(clones) {
            let Ok(s) = sys::prog_stats(fd) else { continue };
            let (runs, ns) =
                if of_no_packet { (&mut t.switches, &mut t.switch_ns) } else { (&mut t.runs, &mut t.run_ns) };
            (*runs, *ns) = (*runs + s.runs, *ns + s.run_ns);
            t.recursion += s.recursion_misses;
        }
        t
    }

    pub(super) fn start_window(&mut self) {
        self.stats.since = self.stats.on.as_ref().map(|_| Instant::now());
        self.stats.at_start = self.program_totals();
        self.stats.recursion = self.stats.at_start.recursion;
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
            let start = self.stats.at_start;
            (self.stats.runs, self.stats.run_ns) = (t.runs - start.runs, t.run_ns - start.run_ns);
            (self.stats.switches, self.stats.switch_ns) =
                (t.switches - start.switches, t.switch_ns - start.switch_ns);
            self.stats.window = self.started.elapsed();
            self.stats.records = self.sink.records;
        }
        let missed = t.recursion.saturating_sub(self.stats.recursion);
        if missed > 0 {
            self.sink.loss(&model::Loss {
                cause: LossCause::Recursion,
                cpu: -1,
                from,
                to: now,
                count: missed,
            });
            self.stats.recursion = t.recursion;
        }
    }
}
