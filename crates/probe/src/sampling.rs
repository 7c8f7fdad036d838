//! The clocks that take a profile's samples (bpf/stacks.bpf.h): one on each CPU that is there when they are started.
//!
//! A program that does the same again and again in about the time of a clock's period would be sampled at the same place for a long time, and shares of samples
//! were not what their interval claims. So the period changes: each stretch of some samples has another one, and each sample stands for the period of its
//! stretch, a late one for as many as have passed. Rejected: to take some of a faster clock's interrupts at random, as an interrupt costs more than a sample, in virtual machines.

use crate::object::Loaded;
use crate::sys;
use kpat_model::BootNs;
use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;

pub const PROGRAM: &str = "sample_clock";

/// Samples of each CPU in a second, at most: then the kernel would slow us down (sysctl kernel.perf_event_max_sample_rate).
pub const MOST_RATE: u32 = 10_000;

/// Periods of the rate that a stretch has, at least.
const STRETCH: u64 = 64;

/// Stretches whose samples may still be in the rings.
const REMEMBERED: usize = 8;

#[derive(Default)]
pub struct Clocks {
    /// Of the rate.
    period_ns: u64,
    running: Vec<OwnedFd>,
    /// Where the kernel side reads the period of now.
    of_now: Option<sys::Mapping>,
    /// Stretches, the newest last: when each began, and what one of its samples stands for.
    stretches: VecDeque<(BootNs, u64)>,
    /// Moves on by the golden ratio, so that any few stretches in a row have periods far apart.
    lot: f64,
}

impl Clocks {
    /// `rate`: samples a second, 0: none are taken.
    pub fn new(rate: u32) -> Clocks {
        let lot = (sys::boot_now().0 % 1_000_003) as f64 / 1_000_003.0;
        Clocks { period_ns: period_ns(rate), lot, ..Clocks::default() }
    }

    pub fn takes_samples(&self) -> bool {
        self.period_ns > 0
    }

    /// What a sample of this time stands for.
    pub fn period_at(&self, at: BootNs) -> u64 {
        let of_then = self.stretches.iter().rev().find(|(from, _)| *from <= at);
        of_then.or(self.stretches.front()).map_or(self.period_ns, |(_, ns)| *ns)
    }

    /// *Errors*: no clock runs.
    pub fn start(&mut self, loaded: &Loaded) -> io::Result<()> {
        if self.period_ns == 0 || !self.running.is_empty() {
            return Ok(());
        }
        let program =
            loaded.program(PROGRAM).ok_or_else(|| io::Error::other(format!("no program {PROGRAM}")))?;
        let mut refused = None;
        if let Some(fd) = loaded.map_fd(".data.period") {
            self.of_now = Some(sys::Mapping::new(fd, size_of::<u64>())?);
        }
        let period = self.draw();
        for cpu in 0..loaded.cpus as u32 {
            match sys::cpu_clock(program, cpu, period) {
                Ok(clock) => self.running.push(clock),
                // A CPU that could be there and is not.
                Err(e) if e.raw_os_error() == Some(libc::ENODEV) => {}
                Err(e) => refused = Some(e),
            }
        }
        self.stretch(period);
        match refused {
            Some(e) => {
                self.stop();
                Err(e)
            }
            None => Ok(()),
        }
    }

    /// Gives all CPUs another period if it is time. A clock begins anew with each: the next sample stands for one or two, as much as has passed.
    pub fn vary(&mut self) {
        let began = self.stretches.back().map_or(0, |(from, _)| from.0);
        if self.running.is_empty() || (sys::boot_now().0 - began) < (STRETCH * self.period_ns) as i64 {
            return;
        }
        let period = self.draw();
        for clock in &self.running {
            // A CPU that is gone has no clock.
            let _ = sys::set_period(clock, period);
        }
        self.stretch(period);
    }

    fn stretch(&mut self, period: u64) {
        if let Some(of_now) = &self.of_now {
            // SAFETY: the mapping is of a page that begins with this word, which the kernel side only reads.
            unsafe { of_now.as_ptr().cast::<u64>().write_volatile(period) };
        }
        self.stretches.push_back((sys::boot_now(), period));
        if self.stretches.len() > REMEMBERED {
            self.stretches.pop_front();
        }
    }

    /// Another period: the rate times 0.5 to 1.5.
    fn draw(&mut self) -> u64 {
        self.lot = (self.lot + 0.618_033_988_749_895).fract();
        (self.period_ns as f64 / (0.5 + self.lot)) as u64
    }

    pub fn stop(&mut self) {
        self.running.clear();
    }
}

pub fn period_ns(rate: u32) -> u64 {
    1_000_000_000u64.checked_div(rate.into()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stretches_have_rates_evenly_about_the_one_that_was_asked_for() {
        let mut clocks = Clocks::new(100);
        let rates: Vec<f64> = (0..8).map(|_| 1e9 / clocks.draw() as f64).collect();
        let mean = rates.iter().sum::<f64>() / 8.0;
        assert!((90.0..110.0).contains(&mean), "{rates:?}");
        assert!(rates.iter().all(|r| (50.0..151.0).contains(r)), "{rates:?}");
        assert!(rates.windows(2).all(|w| (w[0] - w[1]).abs() > 30.0), "{rates:?}");
    }

    #[test]
    fn a_sample_stands_for_the_period_of_its_stretch() {
        let stretches = VecDeque::from([(BootNs(100), 7), (BootNs(200), 9)]);
        let clocks = Clocks { period_ns: 5, stretches, ..Clocks::default() };
        assert_eq!([50, 100, 199, 200].map(|at| clocks.period_at(BootNs(at))), [7, 7, 7, 9]);
    }
}
