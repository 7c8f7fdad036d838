//! Packets as the kernel held them, out of the kernel behaviour log: header bytes as logged, with the original length.
//!
//! The integrated log has their fields, not their bytes, so the log is read again. A sighting is a footprint: when the
//! packet was first seen, and whenever its headers or its device changed.

use crate::names::Names;
use crate::pcapng::block::BlockWriter;
use crate::pcapng::held;
use crate::pcapng::note::Notes;
use kpat_klog::{Log, Merged};
use kpat_model::{Call, FootprintRecord, PacketId, Record};
use std::collections::{HashMap, HashSet};

/// Ethernet, IP without a link header, 802.11 without and with radiotap.
const LINKTYPE_ETHERNET: u16 = 1;
const LINKTYPE_RAW: u16 = 101;
const LINKTYPE_IEEE802_11: u16 = 105;
const LINKTYPE_RADIOTAP: u16 = 127;
/// A protocol named in the data, as Wireshark's "Export PDUs" writes it.
const LINKTYPE_UPPER_PDU: u16 = 252;
/// Something without a number.
const LINKTYPE_USER0: u16 = 147;

/// Packets that are remembered at most. Of those whose end the log does not have, the longest idle ones are forgotten.
const MAX_LAST: usize = 1 << 17;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Way {
    In,
    Out,
    /// Neither the device that it came in by nor the one it left by.
    Within,
}

/// Sightings that are alike stand on one interface of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Port {
    pub netns: u32,
    /// 0: no device.
    pub ifindex: u32,
    pub way: Way,
    pub layer: u8,
    pub link_type: u16,
}

pub(super) struct Seen {
    pub packet: i64,
    pub port: Port,
    pub held: FootprintRecord,
    as_frame: bool,
}

/// Devices of a packet, in and out, each with its namespace.
pub(super) type Devices = [Option<(i32, Option<i64>)>; 2];

fn is_at(device: Option<(i32, Option<i64>)>, f: &FootprintRecord) -> bool {
    device.is_some_and(|(ifindex, netns)| {
        f.ifindex as i32 == ifindex && netns.is_none_or(|n| f.netns == 0 || n == i64::from(f.netns))
    })
}

/// All sightings of the chosen packets, in order of time.
pub(super) struct Sightings<'a> {
    records: Merged<'a>,
    /// With the link type of their bytes.
    as_frames: bool,
    /// What is still at work; its last footprint, for changes of the device alone.
    last: HashMap<u64, FootprintRecord>,
    /// Packets that were seen at their first device.
    came_in: HashSet<u64>,
}

impl<'a> Sightings<'a> {
    pub fn new(log: &'a Log, as_frames: bool) -> Sightings<'a> {
        Sightings { records: log.all_merged(), as_frames, last: HashMap::new(), came_in: HashSet::new() }
    }

    fn seen(&mut self, f: &FootprintRecord, notes: &Notes) -> Option<Seen> {
        let packet = f.packet.0 as i64;
        let [came_in, went_out] = notes.devices(packet)?;
        let way = if is_at(came_in, f) && self.came_in.insert(f.packet.0) {
            Way::In
        } else if is_at(went_out, f) {
            Way::Out
        } else if is_at(came_in, f) {
            Way::In
        } else {
            Way::Within
        };
        let link_type = if self.as_frames { link(f).0 } else { held::LINKTYPE };
        let port = Port { netns: f.netns, ifindex: f.ifindex, way, layer: f.start_layer, link_type };
        Some(Seen { packet, port, held: *f, as_frame: self.as_frames })
    }
}

impl Sightings<'_> {
    fn over(&mut self, packet: PacketId) -> Option<Seen> {
        self.last.remove(&packet.0);
        self.came_in.remove(&packet.0);
        None
    }

    fn remember(&mut self, f: FootprintRecord) {
        self.last.insert(f.packet.0, f);
        if self.last.len() > MAX_LAST {
            let mut idle: Vec<(i64, u64)> = self.last.iter().map(|(id, f)| (f.at.0, *id)).collect();
            let (oldest, ..) = idle.select_nth_unstable(MAX_LAST / 4);
            for (_, packet) in oldest {
                self.over(PacketId(*packet));
            }
        }
    }

    /// The next one of a packet that there is a note of.
    pub fn next(&mut self, notes: &Notes) -> Option<Seen> {
        loop {
            let found = match self.records.next()?.1 {
                Record::Footprint(f) => {
                    let seen = self.seen(&f, notes);
                    self.remember(*f);
                    seen
                }
                Record::Place(p) => match self.last.get_mut(&p.packet.0) {
                    Some(f) => {
                        (f.at, f.ifindex, f.netns, f.link_type) = (p.at, p.ifindex, p.netns, p.link_type);
                        let f = *f;
                        self.seen(&f, notes)
                    }
                    None => None,
                },
                Record::Point(p) if p.ends => self.over(p.packet),
                Record::Call(c) if c.flags & Call::ENDS != 0 => self.over(c.packet),
                _ => None,
            };
            if found.is_some() {
                return found;
            }
        }
    }
}

impl Seen {
    pub fn at_boot_ns(&self) -> i64 {
        self.held.at.0
    }

    /// Bytes of the packet block, and the packet's own length with what stands before it.
    pub fn data(&self, device: &str) -> (Vec<u8>, u32) {
        let f = &self.held;
        let mut data = if self.as_frame { link(f).1 } else { held::front(f, device) };
        let head = data.len() as u32;
        data.extend_from_slice(&f.header);
        (data, f.len_bytes.max(f.header.len() as u32).saturating_add(head))
    }
}

/// Link type, and what must stand before the bytes so that a dissector knows what they are.
fn link(f: &FootprintRecord) -> (u16, Vec<u8>) {
    match (f.start_layer, f.link_type, f.protocol) {
        (2, 1 | 772, _) => (LINKTYPE_ETHERNET, Vec::new()),
        (2, 801, _) => (LINKTYPE_IEEE802_11, Vec::new()),
        (2, 803, _) => (LINKTYPE_RADIOTAP, Vec::new()),
        (3, _, 0x0800 | 0x86dd) => (LINKTYPE_RAW, Vec::new()),
        (3, _, protocol) if protocol != 0 => (LINKTYPE_UPPER_PDU, named("ethertype", u32::from(protocol))),
        (4, _, _) if f.ip_proto != 0 => (LINKTYPE_UPPER_PDU, named("ip.proto", u32::from(f.ip_proto))),
        _ => (LINKTYPE_USER0, Vec::new()),
    }
}

/// The tags of an exported PDU: a dissector table and the number in it. Always big-endian.
fn named(table: &str, number: u32) -> Vec<u8> {
    const TABLE_NAME: u16 = 14;
    const TABLE_NUMBER: u16 = 32;
    let mut w = BlockWriter::options(true);
    w.option(TABLE_NAME, table.as_bytes());
    w.option_u32(TABLE_NUMBER, number);
    w.end_of_options();
    w.bytes
}

impl Port {
    /// `kernel lan in`, `kernel router/lan in, network`.
    pub fn name(&self, names: &Names) -> String {
        let device = self.device(names);
        let way = match self.way {
            Way::In => " in",
            Way::Out => " out",
            Way::Within => "",
        };
        let layer = match self.layer {
            2 => "",
            3 => ", network layer",
            _ => ", transport layer",
        };
        let device = if device.is_empty() { "without a device".to_owned() } else { device };
        format!("kernel {device}{way}{layer}")
    }

    pub fn device(&self, names: &Names) -> String {
        if self.ifindex == 0 {
            return String::new();
        }
        let netns = (self.netns != 0).then_some(i64::from(self.netns));
        match names.device(netns, self.ifindex as i32) {
            Some(d) if d.netns_name.is_empty() => d.name.clone(),
            Some(d) => format!("{}/{}", d.netns_name, d.name),
            None if self.netns == 0 => format!("ifindex {}", self.ifindex),
            None => format!("netns {} ifindex {}", self.netns, self.ifindex),
        }
    }
}
