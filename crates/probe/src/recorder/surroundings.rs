//! What is around packets and changes: interfaces, addresses, routes, names of namespaces, and the clocks of cards. What the monitor sees
//! becomes events; devices are kept, because each file of a log says at its head which there are.

use super::Options;
use super::numbers::{Numbers, Of};
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
    numbers: Numbers,
    monitor: Monitor,
    /// Messages that it missed and that were counted already.
    overruns: u64,
    clocks: Clocks,
    looked: BootNs,
}

/// With more, those of namespaces that ended are forgotten: they are in the file.
const MOST_DEVICES: usize = 4096;

impl Surroundings {
    pub(super) fn new(devices: Vec<meta::Device>, monitor: Monitor, clocks: Clocks) -> Surroundings {
        let looked = crate::sys::boot_now();
        Surroundings {
            devices,
            fresh: Vec::new(),
            numbers: Numbers::default(),
            monitor,
            overruns: 0,
            clocks,
            looked,
        }
    }

    pub(super) fn read_clocks(&mut self, now: bool, sink: &mut Sink) {
        self.clocks.read(now, &mut |r| sink.card_reading(r));
    }

    /// Puts what changed into the stream.
    pub(super) fn look(&mut self, sink: &mut Sink, now: BootNs) {
        let strangers = sink.strangers.take();
        for (netns, at) in &strangers {
            if !self.is_known(*netns) {
                self.numbers.first(*netns, *at);
            }
        }
        let mut unstamped = 0;
        self.monitor.drain(&mut |seen| match seen {
            Seen::Event(e, after) => {
                self.numbers.changed(&e, after);
                sink.event_within(e, after);
            }
            Seen::Stamped(e, by) => sink.event_stamped(e, &by),
            Seen::Unstamped(n) => unstamped += n,
            Seen::Device(d) => {
                let d = meta::Device { netns_since: self.numbers.since(d.netns), ..d };
                self.fresh.extend(learn(&mut self.devices, d));
            }
            Seen::Renamed { netns, was, name } => {
                let of = (netns, self.numbers.since(netns));
                self.fresh.extend(rename(&mut self.devices, of, &was, &name));
            }
            Seen::Unread { from, to, .. } => {
                let cause = LossCause::NamespaceUnread;
                sink.loss(&model::Loss { cause, cpu: -1, from, to, count: 1 });
            }
        });
        self.look_for_strangers(strangers, sink);
        if self.devices.len() > MOST_DEVICES {
            self.devices.retain(|d| has_its_number(&self.numbers, d));
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

    /// Namespaces of packets that nobody has announced.
    fn look_for_strangers(&mut self, strangers: Vec<(u32, BootNs)>, sink: &mut Sink) {
        let mut unknown = false;
        for (netns, at) in strangers {
            if self.numbers.used(netns, at) == Of::Unannounced {
                self.fresh.extend(learn(&mut self.devices, nameless(netns, self.numbers.since(netns))));
                unknown = true;
            } else if self.numbers.has_ended(netns) {
                // Its last packets, or the first ones of another.
                sink.strangers.gone(netns);
                unknown = true;
            }
            unknown |= !self.is_known(netns);
        }
        if unknown {
            self.monitor.look();
        }
    }

    fn is_known(&self, netns: u32) -> bool {
        self.devices.iter().any(|d| d.netns == netns)
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
        let since = |d: &meta::Device| self.numbers.since(d.netns);
        let there: Vec<meta::Device> =
            there.into_iter().map(|d| meta::Device { netns_since: since(&d), ..d }).collect();
        let fresh = there.iter().filter_map(|d| learn(&mut self.devices, d.clone())).collect();
        if goes_on {
            self.devices.retain(|d| {
                has_its_number(&self.numbers, d)
                    && (self.monitor.has_nameless(d.netns)
                        || there.iter().any(|t| (t.netns, t.ifindex) == (d.netns, d.ifindex)))
            });
        }
        fresh
    }
}

/// Its namespace has not ended.
fn has_its_number(numbers: &Numbers, d: &meta::Device) -> bool {
    d.netns_since == numbers.since(d.netns) && !numbers.has_ended(d.netns)
}

/// What is certain of a namespace that nobody has announced: it has a loopback device.
fn nameless(netns: u32, netns_since: Option<BootNs>) -> meta::Device {
    let (ifindex, name, link_type, mac) = (1, "lo".into(), libc::ARPHRD_LOOPBACK, "00:00:00:00:00:00".into());
    meta::Device { netns, netns_since, ifindex, name, link_type, mac, mtu: 65536, ..meta::Device::default() }
}
