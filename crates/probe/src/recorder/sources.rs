//! All sources of a recording, for what is done with each of them.

use super::Error;
use super::source::Source;
use crate::mappings::SideBand;
use crate::sink::Sink;
use crate::whose::Finder;
use crate::work::{ChangeChoice, Term};
use kpat_model::BootNs;

/// At least one; packets come first.
pub(super) struct Sources(Vec<Source>);

impl Sources {
    pub(super) fn new(all: Vec<Source>) -> Sources {
        assert!(!all.is_empty(), "a recording has a source");
        Sources(all)
    }

    /// The one that says for all what the kernel is like: names of places and reasons.
    pub(super) fn first(&self) -> &Source {
        &self.0[0]
    }

    pub(super) fn first_mut(&mut self) -> &mut Source {
        &mut self.0[0]
    }

    /// What tells the programs of processes.
    pub(super) fn take_changes(&mut self) -> Option<SideBand> {
        self.0.iter_mut().find_map(Source::take_changes)
    }

    pub(super) fn all(&self) -> &[Source] {
        &self.0
    }

    /// The one that has applications.
    pub(super) fn applications(&mut self) -> Option<&mut Source> {
        self.0.iter_mut().find(|s| s.settings.is_some())
    }

    pub(super) fn attach(&mut self, progress: &mut dyn FnMut(usize, usize)) -> Result<(), Error> {
        self.0.iter_mut().try_for_each(|s| s.attach(progress))
    }

    pub(super) fn detach(&mut self) {
        self.0.iter_mut().for_each(Source::detach);
    }

    /// Sets every switch to what is wanted now.
    pub(super) fn switch(&self, paused: bool) {
        self.0.iter().for_each(|s| s.switch(paused));
    }

    /// Who is chosen, from now on; `None`: no source has a choice.
    pub(super) fn change_choice(&self, change: &ChangeChoice) -> Option<std::io::Result<Vec<Term>>> {
        let mut last = None;
        for s in &self.0 {
            match s.change_choice(change) {
                None => {}
                Some(Err(e)) => return Some(Err(e)),
                done => last = done,
            }
        }
        last
    }

    /// What looks for what chosen processes have open; `None`: no source asks.
    pub(super) fn finder(&self, terms: &[Term]) -> std::io::Result<Option<Finder>> {
        let asking = || self.0.iter().filter_map(Source::asks_whose);
        if asking().next().is_none() { Ok(None) } else { Finder::start(asking(), terms.to_vec()).map(Some) }
    }

    /// Takes what fits one of `globs` into the log, or leaves it out: how many fit, and how many of them changed.
    pub(super) fn turn(&mut self, globs: &[String], on: bool) -> (usize, usize) {
        sum(self.0.iter_mut().map(|s| s.turn(globs, on)))
    }

    /// Functions (or tracepoints) that are logged now, and that could be.
    pub(super) fn counts(&self) -> (usize, usize) {
        sum(self.0.iter().map(Source::counts))
    }

    /// Programs with a fixed place that are on it, and all.
    pub(super) fn attached_points(&self) -> (usize, usize) {
        sum(self.0.iter().map(Source::attached_points))
    }

    /// Empties all rings once; returns how full the fullest was, 0 to 1. `waited`: bytes that were in a CPU's.
    pub(super) fn drain(&self, sink: &mut Sink, waited: &mut dyn FnMut(usize, u64)) -> f64 {
        let mut most = 0.0f64;
        for s in &self.0 {
            for cpu in 0..s.rings.cpus() {
                let bytes = s.rings.backlog(cpu);
                waited(cpu, bytes);
                most = most.max(bytes as f64 / s.rings.ring_bytes() as f64);
                s.drain(sink, cpu);
            }
        }
        most
    }

    /// Samples are taken at another rate from now on, if it is time for that.
    pub(super) fn vary_clocks(&mut self) {
        self.0.iter_mut().for_each(Source::vary_clock);
    }

    /// Looks at the loss counters of all rings, and closes chunks that have become old.
    pub(super) fn look(&self, sink: &mut Sink, now: BootNs, close: bool) {
        for (i, s) in self.0.iter().enumerate() {
            s.look_whose();
            s.take_sums(sink, now, close);
            s.count_often(sink, now, close);
            (0..s.rings.cpus()).for_each(|cpu| sink.count_losses(i, &s.rings, cpu, now));
        }
        sink.look(now, close);
    }

    /// A file begins.
    pub(super) fn new_file(&self) {
        self.0.iter().for_each(Source::new_file);
    }

    /// Crossings that were lost at the end of what was recorded.
    pub(super) fn tell_gaps(&self, sink: &mut Sink, now: BootNs) {
        self.0.iter().for_each(|s| s.tell_gaps(sink, now));
    }

    pub(super) fn resize_rings(&self, bytes: u64) {
        self.0.iter().for_each(|s| s.rings.resize(bytes));
    }

    pub(super) fn taken_slots(&self) -> u64 {
        self.0.iter().map(|s| (0..s.rings.cpus()).map(|cpu| s.rings.taken_slots(cpu)).sum::<u64>()).sum()
    }

    /// Off their places, as far as they can be put on again in a moment. Returns functions on which programs stay.
    pub(super) fn take_off(&mut self) -> usize {
        self.0.iter_mut().map(Source::take_off).sum()
    }

    /// On their places again, forgetting what was true before. Returns functions that are gone, and why.
    pub(super) fn put_on(&mut self) -> std::io::Result<Vec<(String, String)>> {
        let mut gone = Vec::new();
        for s in &mut self.0 {
            gone.extend(s.put_on()?);
        }
        Ok(gone)
    }

    /// Calls whose return did not come; `None`: not known.
    pub(super) fn open_calls(&self) -> Option<u64> {
        self.0.iter().map(Source::open_calls).sum()
    }

    fn packets(&self) -> impl Iterator<Item = &Source> {
        self.0.iter().filter(|s| s.is_packets())
    }

    /// Of each CPU: softirqs of the network that a program saw begin, and about how many records were made. `None`: none looks.
    pub(super) fn softirqs(&self) -> Option<Vec<(u64, u64)>> {
        let s = self.0.iter().find(|s| s.counts_softirqs())?;
        Some((0..s.rings.cpus()).map(|cpu| (s.rings.softirqs(cpu), s.records(cpu))).collect())
    }

    /// Packets that were admitted to the log.
    pub(super) fn admitted(&self) -> u64 {
        self.packets().map(|s| s.rings.packets()).sum()
    }

    /// Probe hits of packets that were not.
    pub(super) fn refused_hits(&self) -> u64 {
        self.packets().map(|s| (0..s.rings.cpus()).map(|cpu| s.rings.refused(cpu)).sum::<u64>()).sum()
    }
}

fn sum(pairs: impl Iterator<Item = (usize, usize)>) -> (usize, usize) {
    pairs.fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1))
}
