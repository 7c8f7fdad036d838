//! When has the last thread left the probes' code? Only then may the code be unmapped.

use super::layout::*;
use crate::error::{Error, Result};
use crate::guest::Guest;
use std::time::{Duration, Instant};

/// Waits until no processor executes there and no thread's stack leads there.
pub fn wait(guest: &Guest, base: u64, patience: Duration) -> Result<()> {
    let until = Instant::now() + patience;
    let within = |address: u64| (base..base + PAGES.len() as u64 * PAGE).contains(&address);
    loop {
        let mut gdb = guest.gdb()?;
        let mut inside = false;
        for vcpu in 0..guest.vcpus() {
            inside |= within(gdb.registers(vcpu)?.rip);
        }
        let stacks = if inside { None } else { Some(stacks_lead_there(guest, &within)) };
        gdb.detach()?;
        match stacks {
            Some(Ok(false)) => return Ok(()),
            Some(Err(e)) => return Err(e),
            _ if Instant::now() > until => {
                return Err(Error::Unsupported("a thread of the guest is still in the code of a probe; the code stays mapped".into()));
            }
            _ => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}

fn stacks_lead_there(_guest: &Guest, _within: &dyn Fn(u64) -> bool) -> Result<bool> {
    Err(Error::Unsupported("the guest's threads are not known; the probes' code stays mapped".into()))
}
