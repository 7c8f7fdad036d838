//! What became of each probe's hits, for all who ask: a handler runs while the loop has the probes.

use super::{Handle, Probe};
use crate::error::{Error, Result};
use crate::mailbox::host::{Counts, counts};
use crate::mailbox::region::Region;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub struct Tally {
    region: Arc<Region>,
    known: Mutex<HashMap<Handle, Known>>,
}

#[derive(Default)]
struct Known {
    live: bool,
    /// Numbers of its parts, each with whether its hits are counted: before and after an instruction is one hit.
    parts: Vec<(usize, bool)>,
    /// Calls whose threads ended within them.
    never_returned: u64,
}

impl Tally {
    pub(super) fn of(region: Arc<Region>) -> Tally {
        Tally { region, known: Mutex::default() }
    }

    /// `parts`: from its first one on.
    pub(super) fn begins<'p, 'h: 'p>(&self, probe: Handle, parts: impl Iterator<Item = &'p Probe<'h>>) {
        let own = parts.take_while(|p| p.of == probe).enumerate();
        let parts =
            own.map(|(n, p)| (probe.number() as usize + n, !p.after || !p.instances.is_empty())).collect();
        self.known().insert(probe, Known { live: true, parts, never_returned: 0 });
    }

    pub(super) fn ends(&self, probe: Handle) {
        self.known().entry(probe).and_modify(|k| k.live = false);
    }

    pub(super) fn never_return(&self, probe: Handle, calls: u64) {
        self.known().entry(probe).and_modify(|k| k.never_returned += calls);
    }

    /// An error: none that is registered has this number.
    pub fn has(&self, probe: Handle) -> Result<()> {
        match self.known().get(&probe).is_some_and(|k| k.live) {
            true => Ok(()),
            false => Err(Error::Unsupported(format!("there is no probe {}", probe.number() as i32))),
        }
    }

    /// Of one with two parts both together, each of which may be missed. Of one that was unregistered what there was.
    pub fn counts(&self, probe: Handle) -> Counts {
        let known = self.known();
        let Some(known) = known.get(&probe) else { return Counts::default() };
        let begun = Counts { no_return: known.never_returned, ..Counts::default() };
        known.parts.iter().fold(begun, |a, (part, counted)| {
            let b = counts(&self.region, *part);
            Counts {
                hits: a.hits + if *counted { b.hits } else { 0 },
                lost: a.lost + b.lost,
                missed: a.missed + b.missed,
                no_return: a.no_return + b.no_return,
            }
        })
    }

    fn known(&self) -> MutexGuard<'_, HashMap<Handle, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
