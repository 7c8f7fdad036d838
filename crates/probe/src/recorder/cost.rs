//! What our programs cost, by the kernel's own statistics, which it keeps in short windows only, since keeping them costs
//! a third of the programs again; and the runs it refused, which it counts all the time.

use super::estimate::{self, Estimate, Recent, Window, Windows};
use super::source::Source;
use super::sources::Sources;
use crate::sink::Sink;
use crate::{plan, sys};
use kpat_model as model;
use kpat_model::meta::{self, CostBounds, Interval};
use kpat_model::{BootNs, LossCause};
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

/// The kernel counts from before anything is attached until it has counted so many runs, so that a recording of little
/// traffic is counted whole: its statistics cost some 100 ns a run, these 5 ms ...
pub(super) const FIRST_HITS: f64 = 50_000.0;
/// ... and at least so long; and not in the middle of a burst that no other window has met, as long as it has not become ...
const FIRST: Duration = Duration::from_millis(100);
/// ... so many.
pub(super) const MOST_FIRST_HITS: f64 = 6.0 * FIRST_HITS;
/// A window; where the recorder gets the CPU late it is longer.
const WINDOW: Duration = Duration::from_millis(10);
/// So many strata, 5.6 s, and fewer windows do: the statistics double what a run costs, and may cost a fiftieth of that.
const MANY: usize = 27;

/// Where windows become longer, they come more rarely: at most so small a part of the time is in them.
fn one_of(n: usize) -> u32 {
    if n < MANY { 25 } else { 50 }
}

/// One window at a chance moment of each: short ones first, so that short recordings have some.
pub(super) fn stratum(n: usize) -> Duration {
    const FIRST_MS: [u64; 7] = [50, 50, 50, 100, 100, 100, 150];
    Duration::from_millis(FIRST_MS.get(n).copied().unwrap_or(if n < MANY { 250 } else { 500 }))
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

/// Where a window begins or ends.
#[derive(Clone, Copy)]
struct Edge {
    at: Instant,
    slots: f64,
    /// Slots that were taken while it was looked.
    unsure: f64,
    totals: Totals,
}

#[derive(Default)]
struct Stats {
    measure: bool,
    /// Held while the kernel counts.
    on: Option<std::os::fd::OwnedFd>,
    since: Option<Edge>,
    /// The first windows, one after the other, are over.
    sampling: bool,
    strata: usize,
    stratum: Duration,
    last_window: Duration,
    stratum_began: Option<Instant>,
    /// Of this stratum; `None`: it was.
    window_at: Option<Instant>,
    chance: RandomState,
    all: Windows,
    file: Windows,
    recent: Recent,
    /// When the file now written began, and slots taken then.
    file_began: Option<(Instant, f64)>,
    began: Option<(Instant, f64)>,
    recursion: u64,
    looked: Option<(Instant, BootNs)>,
}

impl Stats {
    /// Before anything is attached. `measure` false, or a kernel that refuses: nothing is counted.
    fn begin(measure: bool) -> Stats {
        let on = measure.then(|| sys::enable_stats().ok()).flatten();
        Stats { measure: on.is_some(), on, ..Default::default() }
    }

    fn patience(&self) -> Duration {
        if self.on.is_some() && self.sampling { Duration::from_millis(3) } else { Duration::MAX }
    }

    fn take(&mut self, w: Window, by_chance: bool) {
        self.all.add(w, by_chance);
        self.file.add(w, by_chance);
        if by_chance {
            self.recent.add(w);
        }
    }

    fn next_stratum(&mut self, now: Instant) {
        let mut length = stratum(self.strata);
        let one_of = one_of(self.strata);
        if length >= one_of * WINDOW {
            length = length.max(self.last_window * one_of);
        }
        self.stratum = length;
        let chance = self.chance.hash_one(self.strata) as f64 / u64::MAX as f64;
        self.window_at = Some(now + length.saturating_sub(WINDOW).mul_f64(chance));
        self.stratum_began = Some(now);
        self.strata += 1;
    }
}

/// What a recording costs: its programs, by the kernel's statistics, and the recorder.
pub(super) struct Costs {
    /// What is measured once.
    once: meta::Cost,
    started: Instant,
    cpu_at_start: u64,
    /// When logging ended, and slots of the rings taken by then.
    ended: Option<(Instant, u64)>,
    stats: Stats,
}

fn program_totals(sources: &Sources) -> Totals {
    let mut t = Totals::default();
    let (mut firsts, mut seconds) = (HashMap::new(), Vec::new());
    for (name, of_no_packet, fd) in sources.all().iter().flat_map(Source::programs) {
        let Ok(s) = sys::prog_stats(fd) else { continue };
        let (runs, ns) =
            if of_no_packet { (&mut t.switches, &mut t.switch_ns) } else { (&mut t.runs, &mut t.run_ns) };
        (*runs, *ns) = (*runs + s.runs, *ns + s.run_ns);
        match plan::first_of_pair(name) {
            Some(first) => seconds.push((first, s.recursion_misses)),
            None => *firsts.entry(name).or_insert(0) += s.recursion_misses,
        }
    }
    t.recursion = missed_by_both(firsts, &seconds);
    t
}

/// What of a pair's first program was not run, its second one did, unless that was not run either (bpf/pairs.bpf.h): at most so often.
fn missed_by_both<'a>(mut firsts: HashMap<&'a str, u64>, seconds: &[(&'a str, u64)]) -> u64 {
    for (first, missed) in seconds {
        firsts.entry(first).and_modify(|n| *n = (*n).min(*missed));
    }
    firsts.values().sum()
}

/// Looks at rings and clock around `doing`, at whose end the window's edge is.
fn edge<T>(sources: &Sources, doing: impl FnOnce() -> T) -> (Edge, T) {
    let before = (Instant::now(), sources.taken_slots());
    let done = doing();
    let after = (Instant::now(), sources.taken_slots());
    let at = Edge {
        at: before.0 + (after.0 - before.0) / 2,
        slots: (before.1 + after.1) as f64 / 2.0,
        unsure: (after.1 - before.1) as f64 / 2.0,
        totals: Totals::default(),
    };
    (at, done)
}

/// An edge between two windows, or at the end of one.
fn edge_now(sources: &Sources) -> Edge {
    let (mut edge, totals) = edge(sources, || program_totals(sources));
    edge.totals = totals;
    edge
}

impl Costs {
    /// Before anything is attached. `measure` false, or a kernel that refuses: its programs are not measured.
    pub(super) fn begin(measure: bool, cpus: usize) -> Costs {
        Costs {
            once: meta::Cost { cpus: cpus as u32, ..Default::default() },
            started: Instant::now(),
            cpu_at_start: own_cpu_ns(),
            ended: None,
            stats: Stats::begin(measure),
        }
    }

    pub(super) fn attached(&mut self, took: Duration) {
        self.once.attach_ns = took.as_nanos() as u64;
        (self.started, self.cpu_at_start) = (Instant::now(), own_cpu_ns());
    }

    pub(super) fn detached(&mut self, took: Duration) {
        self.once.detach_ns = took.as_nanos() as u64;
    }

    /// The recording runs from now on.
    pub(super) fn start(&mut self, sources: &Sources) {
        (self.started, self.cpu_at_start) = (Instant::now(), own_cpu_ns());
        self.start_window(sources);
    }

    /// Logging ended.
    pub(super) fn end(&mut self, sources: &Sources) {
        self.ended = Some((Instant::now(), sources.taken_slots()));
        self.sample(sources, true);
    }

    /// Since it runs.
    pub(super) fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    pub(super) fn drain_cpu_ns(&self) -> u64 {
        own_cpu_ns() - self.cpu_at_start
    }

    /// How long the recorder may sleep without making a window much longer.
    pub(super) fn patience(&self) -> Duration {
        self.stats.patience()
    }

    /// Of the whole recording.
    pub(super) fn so_far(&self, sources: &Sources) -> meta::Cost {
        let mut cost = self.once.clone();
        cost.wall_ns = self.started.elapsed().as_nanos() as u64;
        cost.drain_cpu_ns = self.drain_cpu_ns();
        self.estimated(sources, false, &mut cost);
        cost
    }

    fn start_window(&mut self, sources: &Sources) {
        let began = sys::boot_now();
        let edge = edge_now(sources);
        self.stats.since = self.stats.measure.then_some(edge);
        self.stats.recursion = edge.totals.recursion;
        self.stats.looked = Some((Instant::now(), began));
        self.stats.began = Some((edge.at, edge.slots));
        self.stats.file_began = self.stats.began;
    }

    /// Begins and ends windows when it is time for it; `last`: nothing comes any more.
    pub(super) fn sample(&mut self, sources: &Sources, last: bool) {
        if !self.stats.measure {
            return;
        }
        if self.stats.on.is_none() {
            if !last && self.stats.window_at.is_some_and(|at| Instant::now() >= at) {
                self.open_window(sources);
            }
            let length = self.stats.stratum;
            if self.stats.on.is_none()
                && self.stats.stratum_began.is_some_and(|began| began.elapsed() >= length)
            {
                self.stats.next_stratum(Instant::now());
            }
            return;
        }
        let Some(since) = self.stats.since else { return };
        if !last && since.at.elapsed() < WINDOW {
            return;
        }
        if self.stats.sampling || last {
            return self.close_window(sources);
        }
        let edge = edge_now(sources);
        let window = between(&since, &edge);
        self.stats.take(window, false);
        self.stats.since = Some(edge);
        if self.started.elapsed() >= FIRST && self.stats.all.first_is_over() {
            (self.stats.sampling, self.stats.on, self.stats.since) = (true, None, None);
            self.stats.next_stratum(Instant::now());
        }
    }

    fn open_window(&mut self, sources: &Sources) {
        self.stats.window_at = None;
        let totals = program_totals(sources);
        let (mut edge, on) = edge(sources, || sys::enable_stats().ok());
        edge.totals = totals;
        self.stats.since = on.is_some().then_some(edge);
        self.stats.on = on;
    }

    fn close_window(&mut self, sources: &Sources) {
        let on = self.stats.on.take();
        let (mut edge, ()) = edge(sources, || drop(on));
        edge.totals = program_totals(sources);
        if let Some(since) = self.stats.since.take() {
            self.stats.last_window = edge.at - since.at;
            self.stats.take(between(&since, &edge), self.stats.sampling);
        }
    }

    /// A file is about to end.
    pub(super) fn end_file(&mut self, sources: &Sources) {
        // A window that lies over the edge belongs to the file in which it began.
        if self.stats.on.is_some() {
            let edge = edge_now(sources);
            if let Some(since) = self.stats.since.replace(edge) {
                let window = between(&since, &edge);
                self.stats.take(window, self.stats.sampling);
            }
        }
    }

    /// What the next file's figures begin with.
    pub(super) fn begin_file(&mut self, sources: &Sources) {
        self.stats.file = Windows::default();
        self.stats.file_began = Some((Instant::now(), sources.taken_slots() as f64));
    }

    /// Runs and their times, of the whole recording or of the file being written.
    pub(super) fn estimated(&self, sources: &Sources, of_file: bool, cost: &mut meta::Cost) {
        let (windows, began) = if of_file {
            (&self.stats.file, self.stats.file_began)
        } else {
            (&self.stats.all, self.stats.began)
        };
        let Some((since, slots)) = began.filter(|_| self.stats.measure) else { return };
        let until = self.ended.map_or_else(Instant::now, |(at, _)| at);
        let taken = self.ended.map_or_else(|| sources.taken_slots(), |(_, slots)| slots);
        let whole = ((until - since).as_nanos() as f64, (taken as f64 - slots).max(0.0));
        let total = |of: fn(&Window) -> f64| estimate::total(windows, &self.stats.recent, whole, of);
        let about = |e: Option<Estimate>| e.map_or(0, |e| e.about.round() as u64);
        let (hits, ns) = (total(|w| w.hits), total(|w| w.hit_ns));
        let (switches, switch_ns) = (total(|w| w.switches), total(|w| w.switch_ns));
        (cost.probe_hits, cost.probe_ns) = (about(hits), about(ns));
        (cost.switch_hits, cost.switch_ns) = (about(switches), about(switch_ns));
        let each = estimate::mean(windows, &self.stats.recent, |w| (w.hit_ns, w.hits));
        cost.bounds = Some(CostBounds {
            windows: windows.taken,
            sampled_ns: windows.seen.ns as u64,
            sampled_hits: windows.seen.hits as u64,
            sampled_probe_ns: windows.seen.hit_ns as u64,
            sampled_switches: windows.seen.switches as u64,
            sampled_switch_ns: windows.seen.switch_ns as u64,
            probe_hits: hits.map(interval),
            probe_ns: ns.map(interval),
            switch_hits: switches.map(interval),
            switch_ns: switch_ns.map(interval),
            ns_per_hit: each.filter(|e| e.high.is_finite()).map(interval),
        });
    }

    /// Counts refused runs once a second (or `last`): the kernel counts those all the time, but neither by CPU nor by function.
    pub(super) fn count_refused(&mut self, sources: &Sources, sink: &mut Sink, last: bool) {
        let Some((looked, from)) = self.stats.looked else { return };
        if !last && looked.elapsed() < Duration::from_secs(1) {
            return;
        }
        // Programs are read one after the other, and on a busy machine that takes time: what comes meanwhile may be counted now or the next time.
        let began = sys::boot_now();
        let recursion = program_totals(sources).recursion;
        let to = sys::boot_now();
        self.stats.looked = Some((Instant::now(), began));
        let missed = recursion.saturating_sub(self.stats.recursion);
        if missed > 0 {
            sink.loss(&model::Loss { cause: LossCause::Recursion, cpu: -1, from, to, count: missed });
            self.stats.recursion = recursion;
        }
    }
}

fn interval(e: Estimate) -> Interval {
    Interval { low: e.low.floor() as u64, high: e.high.ceil() as u64 }
}

fn between(from: &Edge, to: &Edge) -> Window {
    let less = |a: u64, b: u64| a.saturating_sub(b) as f64;
    let (a, b) = (&from.totals, &to.totals);
    Window {
        ns: (to.at - from.at).as_nanos() as f64,
        slots: (to.slots - from.slots).max(0.0),
        unsure: from.unsure + to.unsure,
        hits: less(b.runs, a.runs),
        hit_ns: less(b.run_ns, a.run_ns),
        switches: less(b.switches, a.switches),
        switch_ns: less(b.switch_ns, a.switch_ns),
    }
}

fn own_cpu_ns() -> u64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: t is a valid timespec to write to.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut t) };
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_second_of_a_pair_makes_up_for_is_not_missed() {
        let firsts = || HashMap::from([("enter", 4000), ("exit", 7), ("switch", 2)]);
        assert_eq!(missed_by_both(firsts(), &[]), 4009);
        assert_eq!(missed_by_both(firsts(), &[("enter", 3), ("exit", 0)]), 5);
        assert_eq!(
            missed_by_both(firsts(), &[("enter", 3), ("exit", 9)]),
            12,
            "what only the second missed the first saw"
        );
    }
}
