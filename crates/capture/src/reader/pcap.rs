//! Classic pcap: one link type, one resolution, a row of records. Specification: draft-ietf-opsawg-pcap.

use std::io;

use kpat_model::WallNs;

use super::source::Source;
use super::{Fault, Found, Interface, MAX_FRAME, Notes, Order, Step, corrupt};

const FILE_HEADER: usize = 24;

/// What the magic number says.
#[derive(Clone, Copy, Debug)]
pub(super) struct Variant {
    order: Order,
    /// Length of one timestamp unit.
    unit_ns: i64,
    /// 24 in Kuznetzov's "modified" form, which has interface, protocol and packet type behind the lengths.
    record_header: usize,
}

impl Variant {
    pub fn of(magic: [u8; 4]) -> Option<Variant> {
        let known = |m: u32| match m {
            0xa1b2_c3d4 => Some((1_000, 16)),
            0xa1b2_3c4d => Some((1, 16)),
            0xa1b2_cd34 => Some((1_000, 24)),
            _ => None,
        };
        let (order, (unit_ns, record_header)) = match known(u32::from_le_bytes(magic)) {
            Some(found) => (Order::Little, found),
            None => (Order::Big, known(u32::from_be_bytes(magic))?),
        };
        Some(Variant { order, unit_ns, record_header })
    }
}

pub(super) struct Pcap {
    variant: Variant,
}

impl Pcap {
    /// `None` if the file ends within its header.
    pub fn open(variant: Variant, source: &mut Source, notes: &mut Notes) -> io::Result<Option<Pcap>> {
        if !source.fill(FILE_HEADER)? {
            return Ok(None);
        }
        let head = source.bytes();
        notes.interfaces.push(Interface {
            snaplen: variant.order.u32(head, 16),
            // The upper half may hold the length of the frame check sequence.
            link_type: (variant.order.u32(head, 20) & 0xffff) as u16,
            ts_resolution_ns: variant.unit_ns as u64,
            ..Interface::default()
        });
        source.consume(FILE_HEADER);
        Ok(Some(Pcap { variant }))
    }

    #[inline]
    pub fn step(&mut self, source: &mut Source, notes: &mut Notes) -> Result<Step, Fault> {
        let Variant { order, unit_ns, record_header } = self.variant;
        let offset = source.offset();
        if !source.fill(record_header)? {
            if source.available() > 0 {
                let had = source.available();
                notes.warn(offset, format!("the file ends {had} bytes into a record header"));
            }
            return Ok(Step::End);
        }
        let head = source.bytes();
        let (seconds, fraction) = (order.u32(head, 0), order.u32(head, 4));
        let (len, len_wire) = (order.u32(head, 8), order.u32(head, 12));
        if len > MAX_FRAME {
            return corrupt(offset, format!("a frame of {len} bytes"));
        }
        let whole = record_header + len as usize;
        if !source.fill(whole)? {
            let had = source.available();
            notes.warn(offset, format!("the file ends {had} bytes into a record of {whole}"));
            return Ok(Step::End);
        }
        source.consume(whole);
        let at = i64::from(seconds) * 1_000_000_000 + i64::from(fraction) * unit_ns;
        let (back, len) = (len as usize, len as usize);
        Ok(Step::Frame(Found { interface: 0, at: WallNs(at), len_wire, back, len, direction: None, offset }))
    }
}
