//! Header bytes in, footprint out. One decoder for wire frames and for packets as the kernel held them.
//!
//! It never fails: a layer whose fields are not all there is `None`, and `cut` says that bytes were missing. Lengths
//! are what the headers say, not what was captured. Bytes behind the IP length (Ethernet padding) are no header.

mod content;
mod link;
mod names;
mod network;
pub mod radio;
mod serial;
mod transport;
mod wifi;

pub use names::{is_decoded, link_type_name};

use kpat_model::{Footprint, FootprintRecord};

/// Tunnels within tunnels that are followed.
const MAX_DEPTH: u8 = 4;

const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_ARP: u16 = 0x0806;
const ETHERTYPE_RARP: u16 = 0x8035;
const ETHERTYPE_IPV6: u16 = 0x86dd;

/// Decodes a captured frame. `link_type` is a LINKTYPE_* number; of an unknown one nothing is decoded.
pub fn frame(link_type: u16, data: &[u8], len_wire: u32) -> Footprint {
    let mut out = Footprint::default();
    let d = Bytes { data, wire: len_wire, length: Length::Stated };
    match link_type {
        1 => link::ethernet(&mut out, d, 0),
        0 | 108 => link::loopback(&mut out, d, 0),
        12 | 14 | 101 => network::by_version(&mut out, d, 0),
        228 => network::ipv4(&mut out, d, 0),
        229 => network::ipv6(&mut out, d, 0),
        113 => link::cooked_v1(&mut out, d, 0),
        276 => link::cooked_v2(&mut out, d, 0),
        105 => wifi::plain(&mut out, d, false),
        119 => wifi::prism(&mut out, d),
        127 => wifi::radiotap(&mut out, d),
        163 => wifi::avs(&mut out, d),
        192 => wifi::ppi(&mut out, d),
        9 => serial::ppp(&mut out, d, 0),
        50 => serial::ppp_or_cisco(&mut out, d, 0),
        51 => link::pppoe(&mut out, d, 0),
        104 => serial::cisco_hdlc(&mut out, d, 0),
        166 | 204 => serial::ppp_with_direction(&mut out, d, 0),
        195 => serial::ieee802154(&mut out, d, true, 0),
        230 => serial::ieee802154(&mut out, d, false, 0),
        239 => serial::nflog(&mut out, d, 0),
        242 => serial::ipoib(&mut out, d, 0),
        _ => {}
    }
    out
}

/// Decodes the header bytes of a packet as the kernel held it.
///
/// The payload length is that of the whole packet: from `len_bytes` where the packet is one for segmentation, the IP header gives no length, or no link header
/// is before it, as its length may not be written yet then: `__ip_local_out` does that (net/ipv4/ip_output.c), in memory that may have been another packet's.
pub fn packet(r: &FootprintRecord) -> Footprint {
    let mut out = Footprint::default();
    let length = match (r.gso_size, r.start_layer) {
        (0, 3) => Length::Kernel,
        (0, _) => Length::Stated,
        _ => Length::Segments,
    };
    let d = Bytes { data: &r.header, wire: r.len_bytes, length };
    match r.start_layer {
        2 => match r.link_type {
            // ARPHRD_*: Ethernet, loopback.
            1 | 772 => link::ethernet(&mut out, d, 0),
            801 => wifi::plain(&mut out, d, false),
            802 => wifi::prism_or_avs(&mut out, d),
            803 => wifi::radiotap(&mut out, d),
            // TUNNEL, TUNNEL6, SIT, RAWIP, NONE: no link header.
            519 | 768 | 769 | 776 | 65534 => network::by_version(&mut out, d, 0),
            _ if r.protocol != 0 && d.u16(12) == Some(r.protocol) => link::ethernet(&mut out, d, 0),
            _ => {}
        },
        3 if r.protocol == 0 => network::by_version(&mut out, d, 0),
        3 => network::ethertype(&mut out, r.protocol, d, 0),
        4 => transport::decode(&mut out, r.ip_proto, d, 0),
        _ => {}
    }
    out
}

/// Decodes from the network header on; `len_wire` counts from there, too.
pub fn l3(ethertype: u16, data: &[u8], len_wire: u32) -> Footprint {
    let mut out = Footprint::default();
    network::ethertype(&mut out, ethertype, Bytes { data, wire: len_wire, length: Length::Stated }, 0);
    out
}

/// What is left of a frame from some header on.
#[derive(Clone, Copy)]
struct Bytes<'a> {
    /// What was captured of it.
    data: &'a [u8],
    /// Its length on the wire, or in the kernel.
    wire: u32,
    length: Length,
}

/// Which length an IP packet has, where its header and `wire` differ.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Length {
    /// What the header says: frames are padded.
    Stated,
    /// `wire` where it is that of a segmentation packet, of which the header speaks as of its first segment.
    Segments,
    /// `wire`; the header's may not be written yet.
    Kernel,
}

impl<'a> Bytes<'a> {
    /// The first eight of a header that is not decoded.
    fn start(self) -> [u8; 8] {
        let mut out = [0; 8];
        out.iter_mut().zip(self.data).for_each(|(to, from)| *to = *from);
        out
    }

    #[inline]
    fn array<const N: usize>(self, at: usize) -> Option<[u8; N]> {
        self.data.get(at..)?.first_chunk().copied()
    }

    #[inline]
    fn u8(self, at: usize) -> Option<u8> {
        self.data.get(at).copied()
    }

    #[inline]
    fn u16(self, at: usize) -> Option<u16> {
        self.array(at).map(u16::from_be_bytes)
    }

    /// Behind a header of `n` bytes; empty if fewer were captured.
    #[inline]
    fn behind(self, n: usize) -> Bytes<'a> {
        let data = self.data.get(n..).unwrap_or(&[]);
        Bytes { data, wire: self.wire.saturating_sub(n as u32), length: self.length }
    }
}

/// Decodes what a tunnel carries. Nothing captured of it means that the outer packet is cut.
fn carry(out: &mut Footprint, d: Bytes, depth: u8, decode: impl FnOnce(&mut Footprint, Bytes, u8)) {
    if d.data.is_empty() {
        out.cut |= d.wire > 0;
        return;
    }
    if depth >= MAX_DEPTH {
        return;
    }
    let mut inner = Footprint::default();
    decode(&mut inner, d, depth + 1);
    out.cut |= inner.cut;
    out.inner = Some(Box::new(inner));
}

#[cfg(test)]
mod tests;
