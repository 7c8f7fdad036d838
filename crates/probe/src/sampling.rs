//! The clocks that take a profile's samples (bpf/stacks.bpf.h): one on each CPU that is there when they are started.

use crate::object::Loaded;
use crate::sys;
use std::io;
use std::os::fd::OwnedFd;

pub const PROGRAM: &str = "sample_clock";

/// Samples of each CPU in a second, at most: then the kernel would slow us down (sysctl kernel.perf_event_max_sample_rate).
pub const MOST_RATE: u32 = 10_000;

#[derive(Default)]
pub struct Clocks {
    period_ns: u64,
    running: Vec<OwnedFd>,
}

impl Clocks {
    /// `rate`: samples a second, 0: none are taken.
    pub fn new(rate: u32) -> Clocks {
        Clocks { period_ns: period_ns(rate), running: Vec::new() }
    }

    pub fn period_ns(&self) -> u64 {
        self.period_ns
    }

    /// *Errors*: no clock runs.
    pub fn start(&mut self, loaded: &Loaded) -> io::Result<()> {
        if self.period_ns == 0 || !self.running.is_empty() {
            return Ok(());
        }
        let program =
            loaded.program(PROGRAM).ok_or_else(|| io::Error::other(format!("no program {PROGRAM}")))?;
        let mut refused = None;
        for cpu in 0..loaded.cpus as u32 {
            match sys::cpu_clock(program, cpu, self.period_ns) {
                Ok(clock) => self.running.push(clock),
                // A CPU that could be there and is not.
                Err(e) if e.raw_os_error() == Some(libc::ENODEV) => {}
                Err(e) => refused = Some(e),
            }
        }
        match refused {
            Some(e) => {
                self.stop();
                Err(e)
            }
            None => Ok(()),
        }
    }

    pub fn stop(&mut self) {
        self.running.clear();
    }
}

pub fn period_ns(rate: u32) -> u64 {
    1_000_000_000u64.checked_div(rate.into()).unwrap_or(0)
}
