//! Link headers other than 802.11: Ethernet with its tags, cooked, loopback; LLC/SNAP; PPPoE and MPLS between link
//! and network.

use kpat_model::{Footprint, Link, Network};

use super::{Bytes, content, network};

const TAGGED: [u16; 3] = [0x8100, 0x88a8, 0x9100];
/// Smaller values of the type field are lengths (IEEE 802.3).
const FIRST_ETHERTYPE: u16 = 0x0600;
pub(super) const ETH_P_802_2: u16 = 0x0004;
/// No EtherType: the service access point of spanning tree (IEEE 802.1D).
const SPANNING_TREE: u16 = 0x0042;

pub(super) fn ethernet(out: &mut Footprint, d: Bytes, depth: u8) {
    let Some(head) = d.array::<14>(0) else {
        out.cut = true;
        return;
    };
    let [d0, d1, d2, d3, d4, d5, s0, s1, s2, s3, s4, s5, t0, t1] = head;
    let link = Link {
        dst: Some([d0, d1, d2, d3, d4, d5]),
        src: Some([s0, s1, s2, s3, s4, s5]),
        ethertype: u16::from_be_bytes([t0, t1]),
        vlan: [Link::NO_VLAN; 2],
    };
    tags(out, link, d.behind(14), depth);
}

/// VLAN tags, then whatever the EtherType says. Tags beyond the second are passed over.
fn tags(out: &mut Footprint, mut link: Link, mut d: Bytes, depth: u8) {
    let mut seen = 0;
    while TAGGED.contains(&link.ethertype) {
        if let (Some(tag), Some(place)) = (d.u16(0), link.vlan.get_mut(seen)) {
            *place = tag & 0x0fff;
        }
        let Some(next) = d.u16(2) else {
            out.cut = true;
            break;
        };
        seen += 1;
        link.ethertype = next;
        d = d.behind(4);
    }
    if out.cut {
        out.link = Some(link);
        return;
    }
    if link.ethertype >= FIRST_ETHERTYPE {
        out.link = Some(link);
        network::ethertype(out, link.ethertype, d, depth);
        return;
    }
    link.ethertype = snap(d).unwrap_or_else(|| of_llc(d));
    out.link = Some(link);
    llc(out, d, depth);
}

/// The EtherType in an LLC/SNAP header.
fn snap(d: Bytes) -> Option<u16> {
    match d.array::<8>(0)? {
        // Ethernet encapsulation (RFC 1042), or bridge tunnel encapsulation.
        [0xaa, 0xaa, 0x03, 0, 0, 0 | 0xf8, t0, t1] => Some(u16::from_be_bytes([t0, t1])),
        _ => None,
    }
}

/// What stands for the EtherType of a frame that has none: the kernel's ETH_P_802_2, or [`SPANNING_TREE`]. 0: it is cut before that.
fn of_llc(d: Bytes) -> u16 {
    match d.array::<3>(0) {
        Some([0x42, 0x42, 0x03]) => SPANNING_TREE,
        Some(_) => ETH_P_802_2,
        None => 0,
    }
}

/// What follows an 802.11 header or an 802.3 length.
pub(super) fn llc(out: &mut Footprint, d: Bytes, depth: u8) {
    match snap(d) {
        Some(ethertype) => network::ethertype(out, ethertype, d.behind(8), depth),
        None => {
            if of_llc(d) == SPANNING_TREE {
                out.network = Some(Network::Other(SPANNING_TREE, d.start()));
                out.message = content::of_spanning_tree(d.behind(3).data);
            }
            out.cut |= d.data.len() < 8 && d.wire as usize > d.data.len();
        }
    }
}

/// LINKTYPE_LINUX_SLL: packet type, ARPHRD, address length, 8 bytes of source address, protocol.
pub(super) fn cooked_v1(out: &mut Footprint, d: Bytes, depth: u8) {
    let (Some(address_len), Some(src), Some(protocol)) = (d.u16(4), d.array(6), d.u16(14)) else {
        out.cut = true;
        return;
    };
    cooked(out, address_len == 6, src, protocol, d.behind(16), depth);
}

/// LINKTYPE_LINUX_SLL2: protocol, 0, ifindex, ARPHRD, packet type, address length, 8 bytes of source address.
pub(super) fn cooked_v2(out: &mut Footprint, d: Bytes, depth: u8) {
    let (Some(protocol), Some(address_len), Some(src), 20..) =
        (d.u16(0), d.u8(11), d.array(12), d.data.len())
    else {
        out.cut = true;
        return;
    };
    cooked(out, address_len == 6, src, protocol, d.behind(20), depth);
}

/// A cooked header names the sender only, and that where it has an address of six bytes.
fn cooked(out: &mut Footprint, has_src: bool, src: [u8; 6], protocol: u16, d: Bytes, depth: u8) {
    let src = has_src.then_some(src);
    let link = Link { dst: None, src, ethertype: protocol, vlan: [Link::NO_VLAN; 2] };
    tags(out, link, d, depth);
}

/// LINKTYPE_NULL and LINKTYPE_LOOP: four bytes of address family, in the byte order of the host that wrote them.
pub(super) fn loopback(out: &mut Footprint, d: Bytes, depth: u8) {
    let Some(family) = d.array::<4>(0) else {
        out.cut = true;
        return;
    };
    let family = u32::from_be_bytes(family);
    let family = if family > 0xffff { family.swap_bytes() } else { family };
    match family {
        2 => network::ipv4(out, d.behind(4), depth),
        // AF_INET6 of Linux, NetBSD, FreeBSD and macOS.
        10 | 24 | 28 | 30 => network::ipv6(out, d.behind(4), depth),
        _ => {}
    }
}

/// PPPoE session (RFC 2516): six bytes, then the PPP protocol.
pub(super) fn pppoe(out: &mut Footprint, d: Bytes, depth: u8) {
    match d.u16(6) {
        Some(protocol) => super::serial::carried(out, protocol, d.behind(8), depth),
        None => out.cut = true,
    }
}

/// Passes over the label stack (RFC 3032). What is below is not stated; the IP version shows it.
pub(super) fn mpls(out: &mut Footprint, mut d: Bytes, depth: u8) {
    loop {
        let Some(last) = d.array::<4>(0).map(|label| label[2] & 1 != 0) else {
            out.cut = true;
            return;
        };
        d = d.behind(4);
        if last {
            return match d.u8(0).map(|first| first >> 4) {
                Some(4 | 6) => network::by_version(out, d, depth),
                Some(_) => {}
                None => out.cut |= d.wire > 0,
            };
        }
    }
}
