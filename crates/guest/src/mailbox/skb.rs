//! What is copied of a packet out of an `sk_buff` when a function has it: at the entry, at the return, and of each packet of a list. And the entry of
//! the ring that comes of it, as the host reads it. The code is in `skb_code.rs`.
//!
//! Everything is copied by the code of the probe, at the hit: a packet's buffer is somebody else's a microsecond later. Only what
//! lives long (devices, namespaces) is left to the host, by its address.
//!
//! All functions share one piece of code for entries and one for returns; what a function needs of them is in one word.

use super::host::Entry;
use super::layout::*;
pub use super::skb_code::{PacketCode, packet_code};
pub use super::skb_pages::Pages;
use crate::x86::Register;

/// Where members are, by the kernel's description of its types: in `sk_buff`, `sock`, `skb_shared_info`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Shape {
    /// Bytes of an `sk_buff` that are read.
    pub size: u32,
    pub next: u32,
    pub dev: u32,
    pub sk: u32,
    pub head: u32,
    pub data: u32,
    pub len: u32,
    pub data_len: u32,
    pub end: u32,
    pub protocol: u32,
    pub transport: u32,
    pub network: u32,
    pub mac: u32,
    pub users: u32,
    /// Protocol and tag in four bytes where a kernel has them so, else the tag.
    pub vlan: u32,
    /// The bytes with the bits `cloned`, `nohdr` and, up to 6.1, `vlan_present`.
    pub bits: [u32; 3],
    /// Of a `sock`; family and protocol have two bytes.
    pub sk_family: u32,
    pub sk_protocol: u32,
    pub sk_net: u32,
    /// Of a `skb_shared_info`.
    pub dataref: u32,
    pub gso_size: u32,
    pub gso_segs: u32,
    /// `None`: headers are read in the header area alone.
    pub pages: Option<Pages>,
}

/// How a function has its packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct How {
    /// The argument points to the packet's address, so far behind it.
    pub behind: Option<u16>,
    /// The argument is the head of a list of packets.
    pub list: bool,
    /// The argument is the first packet of a chain: those behind it are copied, too.
    pub chain: bool,
    /// There is no packet at the entry.
    pub none: bool,
    /// The second value is a packet: its buffer's address is copied in place of its own.
    pub second_is_packet: bool,
    pub at_return: AtReturn,
}

/// What the return is wanted for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AtReturn {
    /// It is not.
    Nothing,
    /// Its time and value.
    #[default]
    Time,
    /// The packet of the entry is copied once more.
    Argument,
    /// The packet that is returned.
    Result,
    /// And those behind it.
    Results,
}

pub(super) const BEHIND: u64 = 1;
pub(super) const LIST: u64 = 2;
pub(super) const NONE: u64 = 4;
pub(super) const SECOND: u64 = 8;
pub(super) const CHAIN: u64 = 16;
pub(super) const RETURN_SHIFT: u32 = 8;
pub(super) const OFFSET_SHIFT: u32 = 16;

impl How {
    pub(super) fn word(self) -> u64 {
        let bit = |is: bool, bit: u64| if is { bit } else { 0 };
        bit(self.behind.is_some(), BEHIND)
            | bit(self.list, LIST)
            | bit(self.chain, CHAIN)
            | bit(self.none, NONE)
            | bit(self.second_is_packet, SECOND)
            | (self.at_return as u64) << RETURN_SHIFT
            | u64::from(self.behind.unwrap_or(0)) << OFFSET_SHIFT
    }
}

/// At a function's entry: of which the packet is an argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Function {
    pub argument: Register,
    pub second: Register,
    pub how: How,
}

/// What an entry of the ring is of.
pub(super) const KIND: usize = 64;
pub(super) const OF_ENTRY: u32 = 0;
pub(super) const OF_RETURN: u32 = 1;
pub(super) const OF_MEMBER: u32 = 2;
/// Bytes of headers that are of a page, not of the header area.
pub(super) const PAGED: usize = 68;
/// At the entry: not 0 if the return will come. Else the number of the entry that it belongs to.
pub(super) const CALL: usize = 72;
pub(super) const SKB: usize = 80;
pub(super) const VALUE: usize = 88;
pub(super) const HOST: usize = 96;
pub(super) const HEAD: usize = 104;
pub(super) const DATA: usize = 112;
pub(super) const LOCATION: usize = 120;
pub(super) const DEV: usize = 128;
pub(super) const SK: usize = 136;
pub(super) const LEN: usize = 144;
pub(super) const DATA_LEN: usize = 148;
pub(super) const END: usize = 152;
pub(super) const BITS: usize = 156;
pub(super) const OFFSETS: usize = 160;
pub(super) const VLAN: usize = 168;
pub(super) const USERS: usize = 172;
pub(super) const SK_FAMILY: usize = 176;
pub(super) const SK_PROTOCOL: usize = 178;
pub(super) const DATAREF: usize = 180;
pub(super) const SK_NET: usize = 184;
pub(super) const GSO_SIZE: usize = 192;
pub(super) const GSO_SEGS: usize = 194;
pub(super) const START: usize = 196;
pub(super) const HEADER_LEN: usize = 198;
/// Of a chain: the next packet.
pub(super) const NEXT: usize = 200;
pub(super) const HEADER: usize = 208;
/// Bytes of headers.
pub const HEADERS: usize = 112;
/// An offset of a header that is not set.
pub(super) const UNSET: i32 = 0xffff;
/// An entry with a packet, and one without.
pub(super) const WHOLE: i32 = 5;
pub(super) const SHORT: i32 = 2;
const _: () = assert!(HEADER + HEADERS == WHOLE as usize * CELL && DATA + 16 == SHORT as usize * CELL);

/// What came of one hit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PacketHit {
    pub probe: usize,
    pub what: PacketMoment,
    pub tsc: u64,
    /// The host's clock: the hit was not before.
    pub host_before: u64,
    pub cpu: u32,
    /// The kernel's count of contexts.
    pub contexts: u32,
    pub pid: u32,
    pub tgid: u32,
    pub comm: Vec<u8>,
    /// At the entry the second argument, or the buffer of the packet that it is; at the return what was returned.
    pub value: u64,
    /// At the entry: where the function returns to.
    pub location: u64,
    /// `None`: there is none, or its memory was not there.
    pub packet: Option<Box<Packet>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PacketMoment {
    /// `number` comes again in what belongs to this call.
    Entry {
        number: u64,
        returns: bool,
    },
    Return {
        entry: u64,
    },
    /// One of a list's packets, at the entry, or of those returned.
    Member {
        entry: u64,
    },
}

/// An `sk_buff` at a moment. Everything in it is as the guest had it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Packet {
    pub skb: u64,
    pub head: u64,
    pub data: u64,
    pub dev: u64,
    pub sk: u64,
    pub len: u32,
    pub data_len: u32,
    pub end: u32,
    /// In the order of [`Shape::bits`].
    pub bits: [u8; 3],
    /// As in memory: in the network's order.
    pub protocol: u16,
    pub transport: u16,
    pub network: u16,
    pub mac: u16,
    pub vlan: u32,
    pub users: u32,
    pub sk_family: u16,
    pub sk_protocol: u16,
    pub sk_net: u64,
    pub dataref: u32,
    pub gso_size: u16,
    pub gso_segs: u16,
    /// The next one of a chain or list that it is in; 0: there is none.
    pub next: u64,
    /// Offset of `header` from `head`.
    pub start: u16,
    /// Behind the bytes of the packet that are in its header area, so many of its first page.
    pub paged: u16,
    pub header: Vec<u8>,
}

impl PacketHit {
    /// `None`: no code of ours wrote it.
    pub fn of(entry: &Entry) -> Option<PacketHit> {
        let bytes = |at: usize, n: usize| entry.payload.get(at - CELL..at - CELL + n);
        let u64_at = |at: usize| bytes(at, 8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_le_bytes);
        let u32_at = |at: usize| u64_at(at & !7).wrapping_shr(8 * (at as u32 & 7)) as u32;
        let u16_at = |at: usize| u32_at(at & !3).wrapping_shr(8 * (at as u32 & 3)) as u16;
        let call = u64_at(CALL);
        let what = match u32_at(KIND) {
            OF_ENTRY => PacketMoment::Entry { number: entry.number, returns: call != 0 },
            OF_RETURN => PacketMoment::Return { entry: call },
            OF_MEMBER => PacketMoment::Member { entry: call },
            _ => return None,
        };
        let head = u64_at(HEAD);
        let header = bytes(HEADER, HEADERS).unwrap_or_default();
        let packet = (head != 0 && !header.is_empty()).then(|| {
            Box::new(Packet {
                skb: u64_at(SKB),
                head,
                data: u64_at(DATA),
                dev: u64_at(DEV),
                sk: u64_at(SK),
                len: u32_at(LEN),
                data_len: u32_at(DATA_LEN),
                end: u32_at(END),
                bits: [0, 1, 2].map(|n| u16_at((BITS + n) & !1).wrapping_shr(8 * (n as u32 & 1)) as u8),
                protocol: u16_at(OFFSETS),
                transport: u16_at(OFFSETS + 2),
                network: u16_at(OFFSETS + 4),
                mac: u16_at(OFFSETS + 6),
                vlan: u32_at(VLAN),
                users: u32_at(USERS),
                sk_family: u16_at(SK_FAMILY),
                sk_protocol: u16_at(SK_PROTOCOL),
                sk_net: u64_at(SK_NET),
                dataref: u32_at(DATAREF),
                gso_size: u16_at(GSO_SIZE),
                gso_segs: u16_at(GSO_SEGS),
                next: u64_at(NEXT),
                start: u16_at(START),
                paged: u16_at(PAGED),
                header: header[..usize::from(u16_at(HEADER_LEN)).min(HEADERS)].to_vec(),
            })
        });
        Some(PacketHit {
            probe: entry.probe,
            what,
            tsc: entry.tsc,
            host_before: u64_at(HOST),
            cpu: entry.cpu,
            contexts: entry.contexts,
            pid: entry.pid,
            tgid: entry.tgid,
            comm: entry.comm.clone(),
            value: u64_at(VALUE),
            location: u64_at(LOCATION),
            packet,
        })
    }
}
