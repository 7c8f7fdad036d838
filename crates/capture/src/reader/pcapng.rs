//! pcapng: sections, interfaces, blocks. Specification: draft-ietf-opsawg-pcapng.
//!
//! Blocks that carry no frame and no interface are passed over without being held in memory.

use std::io;

use crate::BOOT_ID;
use kpat_model::WallNs;

use super::source::Source;
use super::{Direction, Fault, Found, Interface, MAX_FRAME, Notes, Order, Step, corrupt};

/// The same in both byte orders.
pub(super) const SECTION_HEADER: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];
const BYTE_ORDER_MAGIC: u32 = 0x1a2b_3c4d;

const SECTION: u32 = 0x0a0d_0d0a;
const INTERFACE: u32 = 1;
const OLD_PACKET: u32 = 2;
const SIMPLE_PACKET: u32 = 3;
const STATISTICS: u32 = 5;
const ENHANCED_PACKET: u32 = 6;
/// systemd journal, sysdig events, custom blocks: Wireshark gives them frame numbers.
const COUNTED: [u32; 7] = [9, 0x204, 0x208, 0x216, 0x221, 0xbad, 0x4000_0bad];

/// Longest description block that is looked into.
const MAX_DESCRIPTION: u32 = 1 << 20;

/// How an interface counts time.
#[derive(Clone, Copy, Debug)]
enum Units {
    /// So many nanoseconds each.
    Ns(u64),
    /// So many to the second: 10^n.
    PerSecond(u128),
    /// 2^n to the second.
    Binary(u32),
}

impl Units {
    fn of(tsresol: u8) -> Units {
        let n = u32::from(tsresol & 0x7f);
        match (tsresol & 0x80 != 0, n) {
            (true, n) => Units::Binary(n),
            (false, 0..=9) => Units::Ns(10u64.pow(9 - n)),
            (false, n) => Units::PerSecond(10u128.checked_pow(n).unwrap_or(u128::MAX)),
        }
    }

    #[inline]
    fn ns(self, ts: u64) -> i128 {
        match self {
            Units::Ns(each) => i128::from(ts) * i128::from(each),
            Units::PerSecond(per_s) => (u128::from(ts) * 1_000_000_000 / per_s) as i128,
            Units::Binary(n) => (u128::from(ts) * 1_000_000_000).checked_shr(n).unwrap_or(0) as i128,
        }
    }

    fn resolution_ns(self) -> u64 {
        match self {
            Units::Ns(each) => each,
            Units::PerSecond(_) => 1,
            Units::Binary(n) => 1_000_000_000u64.div_ceil(1u64.checked_shl(n).unwrap_or(u64::MAX)),
        }
    }
}

/// Interfaces of a file that are remembered, and their options in all: few bytes of gzip can stand for many.
const MOST_INTERFACES: usize = 1 << 16;
const MOST_WORDS: usize = 16 << 20;

/// What decoding a frame needs of its interface.
#[derive(Clone, Copy, Debug)]
struct Port {
    units: Units,
    offset_ns: i128,
    snaplen: u32,
}

#[derive(Default)]
pub(super) struct Pcapng {
    order: Order,
    sections: u32,
    /// File-global index of the section's first interface.
    base: u32,
    ports: Vec<Port>,
    os: String,
    boot_id: String,
    said_timeless: bool,
    said_beyond: bool,
}

impl Pcapng {
    /// Whether the next block carries a frame, or there is none.
    pub fn at_packet(&self, source: &mut Source) -> io::Result<bool> {
        if !source.fill(4)? {
            return Ok(source.available() == 0);
        }
        let kind = self.order.u32(source.bytes(), 0);
        Ok(self.sections > 0 && matches!(kind, OLD_PACKET | SIMPLE_PACKET | ENHANCED_PACKET))
    }

    /// Byte order of the section.
    pub fn order(&self) -> Order {
        self.order
    }

    /// Kind and stated length of the block that begins with these bytes (at least 12); of a section header by its own order.
    pub fn head(&self, d: &[u8]) -> (u32, usize) {
        let kind = self.order.u32(d, 0);
        let order = match (kind, Order::Little.u32(d, 8)) {
            (SECTION, BYTE_ORDER_MAGIC) => Order::Little,
            (SECTION, _) => Order::Big,
            _ => self.order,
        };
        (kind, order.u32(d, 4) as usize)
    }

    #[inline]
    pub fn step(&mut self, source: &mut Source, notes: &mut Notes) -> Result<Step, Fault> {
        let offset = source.offset();
        if !source.fill(12)? {
            return Ok(torn(source, notes, "a block header"));
        }
        let head = source.bytes();
        let kind = self.order.u32(head, 0);
        if kind == SECTION {
            self.order = match u32::from_le_bytes([head[8], head[9], head[10], head[11]]) {
                BYTE_ORDER_MAGIC => Order::Little,
                m if m.swap_bytes() == BYTE_ORDER_MAGIC => Order::Big,
                m => return corrupt(offset, format!("byte-order magic {m:#010x} in a section header")),
            };
        }
        let order = self.order;
        let reported = order.u32(head, 4);
        if reported < 12 {
            return corrupt(offset, format!("block length {reported}"));
        }
        // Some writers forget the padding in the length; libpcap and Wireshark round up, too.
        let Some(whole) = reported.checked_next_multiple_of(4) else {
            return corrupt(offset, format!("block length {reported}"));
        };
        let held = match kind {
            ENHANCED_PACKET | SIMPLE_PACKET | OLD_PACKET if whole <= MAX_FRAME => true,
            SECTION | INTERFACE | STATISTICS if whole <= MAX_DESCRIPTION => true,
            ENHANCED_PACKET | SIMPLE_PACKET | OLD_PACKET | SECTION | INTERFACE => {
                return corrupt(offset, format!("a block of {reported} bytes"));
            }
            _ => false,
        };
        if !held {
            return self.pass(source, notes, kind, whole);
        }
        let size = whole as usize;
        if !source.fill(size)? {
            return Ok(torn(source, notes, "a block"));
        }
        let block = &source.bytes()[..size];
        let again = order.u32(block, size - 4);
        if again != reported {
            return corrupt(offset, format!("block length {reported} at its start and {again} at its end"));
        }
        let body = &block[8..size - 4];
        let step = match kind {
            SECTION => self.section(body, offset)?,
            _ if self.sections == 0 => return corrupt(offset, "a block before the section header"),
            INTERFACE => self.interface(body, offset, notes)?,
            STATISTICS => self.statistics(body, notes),
            _ => self.packet(kind, body, offset, notes)?,
        };
        source.consume(size);
        Ok(step)
    }

    /// Passes over a block that is not looked into, but checks that it ends as it began.
    fn pass(&mut self, source: &mut Source, notes: &mut Notes, kind: u32, whole: u32) -> Result<Step, Fault> {
        let offset = source.offset();
        if !source.skip(u64::from(whole) - 4)? || !source.fill(4)? {
            notes.warn(offset, format!("the file ends within a block of {whole} bytes"));
            return Ok(Step::End);
        }
        let again = self.order.u32(source.bytes(), 0);
        if again.checked_next_multiple_of(4) != Some(whole) {
            return corrupt(offset, format!("block length {whole} at its start and {again} at its end"));
        }
        source.consume(4);
        Ok(if COUNTED.contains(&kind) { Step::Counted } else { Step::Passed })
    }

    fn section(&mut self, body: &[u8], offset: u64) -> Result<Step, Fault> {
        if body.len() < 16 {
            return corrupt(offset, format!("a section header of {} bytes", body.len() + 12));
        }
        let (major, minor) = (self.order.u16(body, 4), self.order.u16(body, 6));
        if major != 1 {
            return corrupt(offset, format!("pcapng version {major}.{minor}, which is not defined"));
        }
        self.sections += 1;
        self.base += self.ports.len() as u32;
        self.ports.clear();
        self.os.clear();
        self.boot_id.clear();
        for (code, value) in options(self.order, &body[16..]) {
            match code {
                1 => {
                    if let Some(id) = text(value).strip_prefix(BOOT_ID) {
                        id.clone_into(&mut self.boot_id);
                    }
                }
                3 => self.os = text(value),
                _ => {}
            }
        }
        Ok(Step::Passed)
    }

    fn interface(&mut self, body: &[u8], offset: u64, notes: &mut Notes) -> Result<Step, Fault> {
        let order = self.order;
        if body.len() < 8 {
            return corrupt(offset, format!("an interface description of {} bytes", body.len() + 12));
        }
        let snaplen = order.u32(body, 4);
        let mut port = Port { units: Units::Ns(1_000), offset_ns: 0, snaplen };
        let mut found = Interface {
            index: notes.interfaces.len() as u32,
            section: self.sections - 1,
            link_type: order.u16(body, 0),
            snaplen,
            os: self.os.clone(),
            boot_id: self.boot_id.clone(),
            ..Interface::default()
        };
        for (code, value) in options(order, &body[8..]) {
            match (code, value) {
                (2, v) => found.name = text(v),
                (3, v) => found.description = text(v),
                (9, [resolution, ..]) => port.units = Units::of(*resolution),
                // 0: in libpcap's syntax; 1 would be BPF code.
                (11, [0, expression @ ..]) => found.filter = text(expression),
                (12, v) => found.os = text(v),
                (14, v) if v.len() >= 8 => found.ts_offset_s = order.u64(v, 0) as i64,
                _ => {}
            }
        }
        port.offset_ns = i128::from(found.ts_offset_s) * 1_000_000_000;
        found.ts_resolution_ns = port.units.resolution_ns();
        notes.words += [&found.name, &found.description, &found.filter, &found.os, &found.boot_id]
            .map(String::len)
            .iter()
            .sum::<usize>();
        if notes.interfaces.len() == MOST_INTERFACES || notes.words > MOST_WORDS {
            return corrupt(
                offset,
                format!("more than {MOST_INTERFACES} interfaces, or {MOST_WORDS} bytes of text about them"),
            );
        }
        notes.interfaces.push(found);
        self.ports.push(port);
        Ok(Step::Passed)
    }

    fn statistics(&mut self, body: &[u8], notes: &mut Notes) -> Step {
        let order = self.order;
        if body.len() >= 12 && order.u32(body, 0) < self.ports.len() as u32 {
            let mut drops = None;
            for (code, value) in options(order, &body[12..]) {
                if matches!(code, 5 | 7) && value.len() >= 8 {
                    drops = Some(order.u64(value, 0).saturating_add(drops.unwrap_or(0)));
                }
            }
            let index = (self.base + order.u32(body, 0)) as usize;
            if let (Some(interface), Some(_)) = (notes.interfaces.get_mut(index), drops) {
                interface.drops = drops;
            }
        }
        Step::Passed
    }

    /// `body` ends 4 bytes before the place that the source will be at.
    #[inline]
    fn packet(&mut self, kind: u32, body: &[u8], offset: u64, notes: &mut Notes) -> Result<Step, Fault> {
        let order = self.order;
        let fixed = if kind == SIMPLE_PACKET { 4 } else { 20 };
        if body.len() < fixed {
            return corrupt(offset, format!("a packet block of {} bytes", body.len() + 12));
        }
        let local = match kind {
            ENHANCED_PACKET => order.u32(body, 0),
            OLD_PACKET => u32::from(order.u16(body, 0)),
            _ => 0,
        };
        let Some(&port) = self.ports.get(local as usize) else {
            return corrupt(
                offset,
                format!("a frame of interface {local}, which the section does not describe"),
            );
        };
        let room = body.len() - fixed;
        let interface = self.base + local;
        let back = room + 4;
        if kind == SIMPLE_PACKET {
            if !self.said_timeless {
                self.said_timeless = true;
                notes.warn(offset, "simple packet blocks carry no time; their frames are given time 0");
            }
            let len_wire = order.u32(body, 0);
            let limit = if port.snaplen == 0 { u32::MAX } else { port.snaplen };
            let len = len_wire.min(limit) as usize;
            if len > room {
                return corrupt(offset, format!("a frame of {len} bytes in a block with room for {room}"));
            }
            let (at, direction) = (WallNs(0), None);
            return Ok(Step::Frame(Found { interface, at, len_wire, back, len, direction, offset }));
        }
        let ts = u64::from(order.u32(body, 4)) << 32 | u64::from(order.u32(body, 8));
        let (len, len_wire) = (order.u32(body, 12) as usize, order.u32(body, 16));
        if len > room {
            return corrupt(offset, format!("a frame of {len} bytes in a block with room for {room}"));
        }
        let ns = port.units.ns(ts) + port.offset_ns;
        let held = ns.clamp(i128::from(i64::MIN), i128::from(i64::MAX));
        if held != ns && !self.said_beyond {
            self.said_beyond = true;
            notes.warn(
                offset,
                "times after the year 2262 or before 1677 are given the last or first moment of that span",
            );
        }
        let at = WallNs(held as i64);
        let mut direction = None;
        let trailing = &body[fixed + len.next_multiple_of(4).min(room)..];
        if !trailing.is_empty() {
            for (code, value) in options(order, trailing) {
                if code == 2 && value.len() >= 4 {
                    direction = match order.u32(value, 0) & 3 {
                        1 => Some(Direction::In),
                        2 => Some(Direction::Out),
                        _ => None,
                    };
                }
            }
        }
        Ok(Step::Frame(Found { interface, at, len_wire, back, len, direction, offset }))
    }
}

#[cold]
fn torn(source: &Source, notes: &mut Notes, within: &str) -> Step {
    let had = source.available();
    if had > 0 {
        notes.warn(source.offset(), format!("the file ends {had} bytes into {within}"));
    }
    Step::End
}

/// Walks an option list; ends at its end mark or at the first option that does not fit.
fn options(order: Order, mut d: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let (code, len) = (order.u16(d, 0), usize::from(order.u16(d, 2)));
        let value = d.get(4..4 + len)?;
        if code == 0 {
            return None;
        }
        d = d.get(4 + len.next_multiple_of(4)..).unwrap_or(&[]);
        Some((code, value))
    })
}

fn text(value: &[u8]) -> String {
    String::from_utf8_lossy(value).trim_end_matches('\0').to_string()
}
