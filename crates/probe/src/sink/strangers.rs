//! Which network namespaces the packets and sockets of a recording are of.

use crate::ring::Raw;
use kpat_model::BootNs;
use std::collections::HashSet;

/// Network namespaces of packets and sockets, each reported once until it goes.
#[derive(Default)]
pub struct Strangers {
    last: u32,
    seen: HashSet<u32>,
    fresh: Vec<(u32, BootNs)>,
}

impl Strangers {
    pub(super) fn look(&mut self, raw: &Raw<'_>) {
        let (netns, at) = match raw {
            Raw::Footprint(r) => (r.netns, r.h.ts),
            Raw::Place(r) => (r.netns, r.h.ts),
            Raw::Socket(r) => (r.netns, r.ts),
            _ => return,
        };
        if netns != self.last && netns != 0 {
            self.last = netns;
            if self.seen.insert(netns) {
                self.fresh.push((netns, BootNs(at as i64)));
            }
        }
    }

    /// Those that came since the last call, each with the time of its first record.
    pub fn take(&mut self) -> Vec<(u32, BootNs)> {
        std::mem::take(&mut self.fresh)
    }

    /// Its next record is reported again.
    pub fn gone(&mut self, netns: u32) {
        self.seen.remove(&netns);
        self.last = 0;
    }
}
