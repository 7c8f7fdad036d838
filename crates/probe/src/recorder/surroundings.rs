//! What is around packets and changes: interfaces, addresses, routes, names of namespaces, and the clocks of cards. What the monitor sees
//! becomes events; devices are kept, because each file of a log says at its head which there are.

use super::Options;
use super::scope::{devices, learn, named, rename};
use crate::cards::Clocks;
use crate::netlink::{Monitor, Seen};
use crate::sink::Sink;
use kpat_model as model;
use kpat_model::meta;
use kpat_model::{BootNs, LossCause};

pub(super) struct Surroundings {
    devices: Vec<meta::Device>,
    /// Those of them that are not in the file yet.
    fresh: Vec<meta::Device>,
    monitor: Monitor,
    /// Messages that it missed and that were counted already.
    overruns: u64,
    clocks: Clocks,
    looked: BootNs,
}

impl Surroundings {
    pub(super) fn new(devices: Vec<meta::Device>, monitor: Monitor, clocks: Clocks) -> Surroundings {
        let looked = crate::sys::boot_now();
        Surroundings { devices, fresh: Vec::new(), monitor, overruns: 0, clocks, looked }
    }

    pub(super) fn read_clocks(&mut self, now: bool, sink: &mut Sink) {
        self.clocks.read(now, &mut |r| sink.card_reading(r));
    }

    /// Puts what changed into the stream.
    pub(super) fn look(&mut self, sink: &mut Sink, now: BootNs) {
        let mut unstamped = 0;
        self.monitor.drain(&mut |seen| match seen {
            Seen::Event(e, after) => sink.event_within(e, after),
            Seen::Stamped(e, by) => sink.event_stamped(e, &by),
            Seen::Unstamped(n) => unstamped += n,
            Seen::Device(d) => self.fresh.extend(learn(&mut self.devices, d)),
            Seen::Renamed { netns, was, name } => {
                self.fresh.extend(rename(&mut self.devices, netns, &was, &name));
            }
            Seen::Unread { from, to, .. } => {
                let cause = LossCause::NamespaceUnread;
                sink.loss(&model::Loss { cause, cpu: -1, from, to, count: 1 });
            }
        });
        if sink.strangers.take().iter().any(|n| !self.devices.iter().any(|d| d.netns == *n)) {
            self.monitor.look();
        }
        let missed = self.monitor.overruns() - self.overruns;
        if missed > 0 {
            self.overruns += missed;
            let cause = LossCause::NetlinkOverrun;
            sink.loss(&model::Loss { cause, cpu: -1, from: self.looked, to: now, count: missed });
        }
        self.looked = now;
        if unstamped > 0 {
            let words =
                format!("{unstamped} announcements lost their stamps: such system events have bounds");
            super::note(sink, &words);
        }
    }

    pub(super) fn devices(&self) -> &[meta::Device] {
        &self.devices
    }

    /// What the file does not have yet.
    pub(super) fn take_fresh(&mut self) -> Vec<meta::Device> {
        std::mem::take(&mut self.fresh)
    }

    /// As a file ends: drivers as they are asked for by name, and what the monitor missed. `goes_on`: there is a next one, which begins
    /// without devices that have gone.
    pub(super) fn ask_again(&mut self, options: &Options, goes_on: bool) -> Vec<meta::Device> {
        let there = devices(options, &named(options)).unwrap_or_default();
        let fresh = there.iter().filter_map(|d| learn(&mut self.devices, d.clone())).collect();
        if goes_on {
            let is = |d: &meta::Device| {
                self.monitor.has_nameless(d.netns)
                    || there.iter().any(|t| (t.netns, t.ifindex) == (d.netns, d.ifindex))
            };
            self.devices.retain(is);
        }
        fresh
    }
}
