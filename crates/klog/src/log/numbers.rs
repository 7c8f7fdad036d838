//! Numbers of network namespaces that were given to more than one. In the records of a log each has one of its own: that of the kernel the
//! first, small ones those that follow.

use kpat_model::meta::Device;
use kpat_model::{AppRecord, BootNs, Record};
use std::collections::HashMap;

/// Who had which number since when.
#[derive(Default)]
pub(crate) struct Numbers {
    /// By the kernel's number: since when it has been another's, ascending, and that one's own number.
    since: HashMap<u32, Vec<(BootNs, u32)>>,
    /// The kernel's, by own number less one.
    kernels: Vec<u32>,
}

impl Numbers {
    /// The kernel's numbers are above (`PROC_DYNAMIC_FIRST`, fs/proc/generic.c, and what nsfs has below it since 6.18).
    const MOST: usize = 0xe000_0000;

    /// A device as the log has it, with its namespace's own number.
    pub(super) fn device(&mut self, mut d: Device) -> Device {
        let Some(since) = d.netns_since else { return d };
        let all = self.since.entry(d.netns).or_default();
        let place = all.partition_point(|(at, _)| *at < since);
        if all.get(place).is_none_or(|(at, _)| *at != since) && self.kernels.len() < Numbers::MOST {
            self.kernels.push(d.netns);
            all.insert(place, (since, self.kernels.len() as u32));
        }
        if let Some((_, own)) = all.get(place) {
            if d.netns_name.is_empty() {
                d.netns_name = format!("{} (given again)", d.netns);
            }
            d.netns = *own;
        }
        d
    }

    /// The same backwards.
    pub(super) fn as_logged(&self, mut d: Device) -> Device {
        let kernels = d.netns_since.and_then(|_| self.kernels.get(d.netns.wrapping_sub(1) as usize));
        d.netns = *kernels.unwrap_or(&d.netns);
        d
    }

    fn own(&self, netns: &mut u32, at: BootNs) {
        let Some(all) = self.since.get(netns) else { return };
        if let Some((_, own)) = all[..all.partition_point(|(since, _)| *since <= at)].last() {
            *netns = *own;
        }
    }

    #[inline]
    pub(crate) fn assign(&self, record: &mut Record) {
        if !self.since.is_empty() {
            self.assign_own(record);
        }
    }

    #[cold]
    fn assign_own(&self, record: &mut Record) {
        match record {
            Record::Footprint(r) => self.own(&mut r.netns, r.at),
            Record::Place(r) => self.own(&mut r.netns, r.at),
            Record::Event(r) => self.own(&mut r.netns, r.at),
            Record::CardStamp(r) => self.own(&mut r.netns, r.at),
            Record::CardReading(r) => self.own(&mut r.netns, r.at),
            Record::Wifi(r) => self.own(&mut r.netns, r.at),
            Record::Link(r) => self.own(&mut r.netns, r.at),
            Record::Exchange(r) => self.own(&mut r.netns, r.at),
            _ => {}
        }
    }

    pub(crate) fn assign_application(&self, record: &mut AppRecord) {
        if let AppRecord::Socket(r) = record {
            self.own(&mut r.netns, r.at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kpat_model::{PacketId, Place};

    #[test]
    fn each_namespace_has_a_number_of_its_own() {
        let device = |since: Option<i64>, name: &str| Device {
            netns: 0xf000_0007,
            netns_since: since.map(BootNs),
            netns_name: name.into(),
            ..Device::default()
        };
        let mut n = Numbers::default();
        let mut logged = |since, name| {
            let d = n.device(device(since, name));
            (d.netns, d.netns_name)
        };
        assert_eq!(logged(None, "a"), (0xf000_0007, "a".into()));
        assert_eq!(logged(Some(100), "b"), (1, "b".into()));
        assert_eq!(logged(Some(300), ""), (2, "4026531847 (given again)".into()));
        assert_eq!(logged(Some(100), "b"), (1, "b".into()));
        // That of a file before.
        assert_eq!(logged(Some(50), "x"), (3, "x".into()));
        let at = |at: i64, netns: u32| {
            let place =
                Place { packet: PacketId(1), at: BootNs(at), ifindex: 1, netns, link_type: 1, skb_tag: 0 };
            let mut r = Record::Place(place);
            n.assign(&mut r);
            let Record::Place(p) = r else { unreachable!() };
            p.netns
        };
        let found = [49, 50, 99, 100, 299, 300, 900].map(|t| at(t, 0xf000_0007));
        assert_eq!(found, [0xf000_0007, 3, 3, 1, 1, 2, 2]);
        assert_eq!(at(900, 0xf000_0008), 0xf000_0008);
        let back = n.as_logged(Device { netns: 3, ..device(Some(50), "x") });
        assert_eq!(back, device(Some(50), "x"));
        assert_eq!(n.as_logged(device(None, "a")), device(None, "a"));
    }
}
