//! ARP, IPv4, IPv6 with its extension headers.

use std::net::{Ipv4Addr, Ipv6Addr};

use kpat_model::{Footprint, Network, Transport};

use super::{
    Bytes, ETHERTYPE_ARP, ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_RARP, Length, content, link, transport,
};

/// Extension headers that are walked; real packets have a few, hostile ones as many as fit.
const MAX_EXTENSIONS: usize = 16;

pub(super) const PROTO_IPV6: u8 = 41;
const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const AUTHENTICATION: u8 = 51;
const DESTINATION: u8 = 60;

#[inline]
pub(super) fn ethertype(out: &mut Footprint, ethertype: u16, d: Bytes, depth: u8) {
    match ethertype {
        ETHERTYPE_IPV4 => ipv4(out, d, depth),
        ETHERTYPE_IPV6 => ipv6(out, d, depth),
        ETHERTYPE_ARP => arp(out, d),
        ETHERTYPE_RARP => {
            out.network = Some(Network::Other(ETHERTYPE_RARP, d.start()));
            if is_ipv4_over_ethernet(d.array(0)) {
                out.message = content::of_arp(d.data);
            }
        }
        0x8847 | 0x8848 => link::mpls(out, d, depth),
        0x8864 => link::pppoe(out, d, depth),
        link::ETH_P_802_2 => link::llc(out, d, depth),
        other => out.network = Some(Network::Other(other, d.start())),
    }
}

/// Where no field says which IP it is.
pub(super) fn by_version(out: &mut Footprint, d: Bytes, depth: u8) {
    match d.u8(0).map(|first| first >> 4) {
        Some(4) => ipv4(out, d, depth),
        Some(6) => ipv6(out, d, depth),
        Some(_) => {}
        None => out.cut = true,
    }
}

#[inline]
pub(super) fn ipv4(out: &mut Footprint, d: Bytes, depth: u8) {
    let Some(h) = d.array::<20>(0) else {
        out.cut = true;
        return;
    };
    if h[0] >> 4 != 4 {
        out.network = Some(Network::Other(ETHERTYPE_IPV4, d.start()));
        return;
    }
    let total_len = u16::from_be_bytes([h[2], h[3]]);
    let fragment = u16::from_be_bytes([h[6], h[7]]);
    let frag_offset = (fragment & 0x1fff) << 3;
    let proto = h[9];
    out.network = Some(Network::V4 {
        src: Ipv4Addr::new(h[12], h[13], h[14], h[15]),
        dst: Ipv4Addr::new(h[16], h[17], h[18], h[19]),
        id: u16::from_be_bytes([h[4], h[5]]),
        proto,
        ttl: h[8],
        tos: h[1],
        frag_offset,
        more_frags: fragment & 0x2000 != 0,
        dont_frag: fragment & 0x4000 != 0,
        total_len,
    });
    let header = usize::from(h[0] & 15) * 4;
    if header < 20 {
        return;
    }
    if d.data.len() < header {
        out.cut = true;
    }
    if frag_offset != 0 {
        out.transport = Some(Transport::Other { proto });
        return;
    }
    let payload = bounded(d, u32::from(total_len)).behind(header);
    transport::decode(out, proto, payload, depth);
}

/// Limits `d` to the length that the IP header gives for it, if it gives one that goes before the length on the wire.
fn bounded(d: Bytes<'_>, reported: u32) -> Bytes<'_> {
    let by_wire = match d.length {
        Length::Stated => false,
        Length::Segments => d.wire > reported + MAX_LINK_HEADER,
        // Of what it carries the header was written long before.
        Length::Kernel => return Bytes { length: Length::Stated, ..d },
    };
    if reported == 0 || by_wire {
        return d;
    }
    let data = &d.data[..d.data.len().min(reported as usize)];
    Bytes { data, wire: reported, ..d }
}

/// By how much a segmentation packet's `skb->len` may exceed its IP length without contradicting it.
const MAX_LINK_HEADER: u32 = 64;

#[inline]
pub(super) fn ipv6(out: &mut Footprint, d: Bytes, depth: u8) {
    let Some(h) = d.array::<40>(0) else {
        out.cut = true;
        return;
    };
    if h[0] >> 4 != 6 {
        out.network = Some(Network::Other(ETHERTYPE_IPV6, d.start()));
        return;
    }
    let payload_len = u16::from_be_bytes([h[4], h[5]]);
    let address = |at: usize| {
        let mut octets = [0; 16];
        octets.copy_from_slice(&h[at..at + 16]);
        Ipv6Addr::from(octets)
    };
    let reported = if payload_len == 0 {
        jumbo(h[6], d).map_or(0, |n| n.saturating_add(40))
    } else {
        40 + u32::from(payload_len)
    };
    let walk = extensions(h[6], bounded(d, reported).behind(40));
    out.network = Some(Network::V6 {
        src: address(8),
        dst: address(24),
        proto: walk.proto,
        hop_limit: h[7],
        traffic_class: (h[0] << 4) | (h[1] >> 4),
        flow_label: u32::from_be_bytes([0, h[1] & 15, h[2], h[3]]),
        payload_len,
        fragment: walk.fragment,
    });
    if walk.cut {
        out.cut = true;
        return;
    }
    if walk.fragment.is_some_and(|(_, offset, _)| offset != 0) {
        out.transport = Some(Transport::Other { proto: walk.proto });
        return;
    }
    transport::decode(out, walk.proto, walk.payload, depth);
}

/// The length in a jumbo payload option (RFC 2675), which Linux puts first.
fn jumbo(next: u8, d: Bytes) -> Option<u32> {
    match d.array::<8>(40)? {
        [_, _, 0xc2, 4, a, b, c, e] if next == HOP_BY_HOP => Some(u32::from_be_bytes([a, b, c, e])),
        _ => None,
    }
}

struct Walk<'a> {
    proto: u8,
    fragment: Option<(u32, u16, bool)>,
    payload: Bytes<'a>,
    cut: bool,
}

/// Walks to the upper-layer protocol, or to the first header that is not there.
#[inline]
fn extensions(first: u8, d: Bytes<'_>) -> Walk<'_> {
    let mut walk = Walk { proto: first, fragment: None, payload: d, cut: false };
    for _ in 0..MAX_EXTENSIONS {
        let d = walk.payload;
        let len = match walk.proto {
            HOP_BY_HOP | ROUTING | DESTINATION => 8 + 8 * usize::from(d.u8(1).unwrap_or(0)),
            AUTHENTICATION => 8 + 4 * usize::from(d.u8(1).unwrap_or(0)),
            FRAGMENT => 8,
            _ => return walk,
        };
        let Some(h) = d.array::<8>(0) else {
            walk.cut = true;
            return walk;
        };
        if walk.proto == FRAGMENT {
            let place = u16::from_be_bytes([h[2], h[3]]);
            let id = u32::from_be_bytes([h[4], h[5], h[6], h[7]]);
            walk.fragment = Some((id, place & 0xfff8, place & 1 != 0));
        }
        walk.proto = h[0];
        // Behind a later fragment's header is the middle of something.
        if walk.fragment.is_some_and(|(_, offset, _)| offset != 0) {
            return walk;
        }
        if d.data.len() < len {
            walk.cut = true;
            return walk;
        }
        walk.payload = d.behind(len);
    }
    walk
}

/// Hardware, protocol and both lengths of ARP: Ethernet and 802 hardware.
fn is_ipv4_over_ethernet(header: Option<[u8; 8]>) -> bool {
    matches!(header, Some([0, 1 | 6, 8, 0, 6, 4, _, _]))
}

/// ARP for IPv4 over Ethernet; any other is named and not decoded.
fn arp(out: &mut Footprint, d: Bytes) {
    match d.array::<8>(0) {
        None => out.cut = true,
        Some(h @ [.., o0, o1]) if is_ipv4_over_ethernet(Some(h)) => {
            let (Some(sender_mac), Some(sender_ip), Some(target_mac), Some(target_ip)) =
                (d.array(8), d.array::<4>(14), d.array(18), d.array::<4>(24))
            else {
                out.cut = true;
                return;
            };
            out.network = Some(Network::Arp {
                op: u16::from_be_bytes([o0, o1]),
                sender_mac,
                sender_ip: sender_ip.into(),
                target_mac,
                target_ip: target_ip.into(),
            });
            out.message = content::of_arp(d.data);
        }
        Some(_) => out.network = Some(Network::Other(ETHERTYPE_ARP, d.start())),
    }
}
