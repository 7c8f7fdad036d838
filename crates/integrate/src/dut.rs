//! The device under test as a sniffer sees it: link addresses, and names of devices.

use crate::matching::{self, Side, Wire};
use kpat_capture::{Direction, Interface};
use kpat_klog::Log;
use kpat_model::hash::Set;
use kpat_model::link_address::parse;
use std::collections::HashMap;

/// The DUT as a sniffer sees it.
pub(super) struct Dut<'a> {
    pub log: &'a Log,
    macs: Set<u64>,
    /// Devices by name; `None`: several have it.
    names: HashMap<&'a str, Option<Named>>,
}

/// The one device of a name.
#[derive(Clone, Copy, PartialEq)]
struct Named {
    device: u64,
    mac: u64,
}

impl<'a> Dut<'a> {
    pub fn new(log: &'a Log) -> Dut<'a> {
        let devices = log.devices();
        let mut names: HashMap<&str, Option<Named>> = HashMap::new();
        let mut ids: HashMap<&str, (u32, u32)> = HashMap::new();
        for d in devices.iter().filter(|d| !d.name.is_empty()) {
            let id = (d.netns, d.ifindex);
            let device = matching::device(d.netns, d.ifindex);
            let this = Named { device, mac: parse(&d.mac).map_or(0, number) };
            if *ids.entry(&d.name).or_insert(id) == id {
                // Listed again with another address: no frame's direction follows from it.
                let same = |n: Named| Named { mac: if n.mac == this.mac { n.mac } else { 0 }, ..n };
                names.entry(&d.name).and_modify(|n| *n = n.map(same)).or_insert(Some(this));
            } else {
                names.insert(&d.name, None);
            }
        }
        Dut {
            log,
            macs: devices.iter().filter_map(|d| parse(&d.mac)).map(number).filter(|m| *m != 0).collect(),
            names,
        }
    }

    /// The file with these interfaces says that the DUT's kernel made its stamps, as the recorder's own sniffer does. What was recorded in a guest has the guest's time.
    pub fn stamped(&self, interfaces: &[Interface]) -> bool {
        let meta = self.log.meta();
        let is_own = |i: &Interface| i.boot_id == meta.boot_id;
        !interfaces.is_empty()
            && !meta.boot_id.is_empty()
            && meta.guest_boot_id.is_empty()
            && interfaces.iter().all(is_own)
    }

    /// Both ends of the link are the DUT's: a virtual link, or a cable from one port to another.
    pub fn inside(&self, f: &kpat_model::Footprint) -> bool {
        f.link
            .as_ref()
            // Nothing has the address 0 but the loopback device, which no frame leaves.
            .is_some_and(|l| {
                [l.src, l.dst]
                    .map(|m| number(m.unwrap_or_default()))
                    .iter()
                    .all(|m| *m == 0 || self.macs.contains(m))
            })
    }

    pub fn device(&self, name: &str) -> u64 {
        self.named(name).map_or(0, |n| n.device)
    }

    fn named(&self, name: &str) -> Option<Named> {
        self.names.get(name).copied().flatten()
    }

    /// What the frame and the name of its interface tell of its way. A name is believed only if one device has it.
    pub fn wire(&self, f: &kpat_model::Footprint, name: &str, marked: Option<Direction>) -> Wire {
        let (src, dst) = match (&f.link, &f.wifi) {
            (Some(l), _) => (l.src, l.dst),
            (None, Some(w)) => (Some(w.transmitter), Some(w.receiver)),
            (None, None) => (None, None),
        };
        let group = dst.is_some_and(|d| d[0] & 1 == 1);
        let (src, dst) = (src.map_or(0, number), dst.map_or(0, number));
        let own = self.named(name).map_or(0, |n| n.mac);
        let way = match (own != 0 && src == own, own != 0 && dst == own) {
            (true, false) => Side::Transmitted,
            (false, true) => Side::Received,
            _ => Side::Unknown,
        };
        let marked = match marked {
            Some(Direction::In) => Side::Received,
            Some(Direction::Out) => Side::Transmitted,
            None => Side::Unknown,
        };
        Wire { both_ours: self.macs.contains(&src) && self.macs.contains(&dst), group, way, marked }
    }

    /// Only the DUT itself marks a frame as going out that has one of its addresses as source.
    pub fn captured_here(&self, f: &kpat_model::Footprint, w: &Wire) -> bool {
        let src = f.link.as_ref().and_then(|l| l.src).map_or(0, number);
        w.marked == Side::Transmitted && self.macs.contains(&src)
    }

    /// Which way a frame went, if its link addresses say so.
    pub fn side(&self, f: &kpat_model::Footprint) -> Side {
        let (src, dst) = match (&f.link, &f.wifi) {
            (Some(l), _) => (l.src.unwrap_or_default(), l.dst.unwrap_or_default()),
            (None, Some(w)) => (w.transmitter, w.receiver),
            (None, None) => return Side::Unknown,
        };
        match (self.macs.contains(&number(src)), self.macs.contains(&number(dst))) {
            (true, false) => Side::Transmitted,
            (false, true) => Side::Received,
            // Both: a virtual link within the DUT. Neither: bridged, or flooded.
            _ => Side::Unknown,
        }
    }
}

fn number(mac: [u8; 6]) -> u64 {
    mac.iter().fold(0, |v, b| v << 8 | u64::from(*b))
}
