//! Link headers of point-to-point lines, of netfilter's log, InfiniBand and IEEE 802.15.4: what is in front of an IP packet there.

use kpat_model::Footprint;

use super::{Bytes, link, network};

/// Address and control of HDLC-like framing (RFC 1662).
const HDLC: [u8; 2] = [0xff, 0x03];

/// PPP (RFC 1661), with or without HDLC's address and control, its protocol compressed to one byte or not.
pub(super) fn ppp(out: &mut Footprint, d: Bytes, depth: u8) {
    let d = if d.array(0) == Some(HDLC) { d.behind(2) } else { d };
    let Some(first) = d.u8(0) else {
        out.cut = true;
        return;
    };
    let (protocol, d) = if first & 1 != 0 {
        (u16::from(first), d.behind(1))
    } else {
        let Some(protocol) = d.u16(0) else {
            out.cut = true;
            return;
        };
        (protocol, d.behind(2))
    };
    carried(out, protocol, d, depth);
}

/// What PPP protocols carry; control protocols and others are not decoded.
pub(super) fn carried(out: &mut Footprint, protocol: u16, d: Bytes, depth: u8) {
    match protocol {
        0x0021 => network::ipv4(out, d, depth),
        0x0057 => network::ipv6(out, d, depth),
        0x0281 | 0x0283 => link::mpls(out, d, depth),
        _ => {}
    }
}

/// PPP in HDLC-like framing, or Cisco's HDLC: the address tells.
pub(super) fn ppp_or_cisco(out: &mut Footprint, d: Bytes, depth: u8) {
    match d.u8(0) {
        Some(0x0f | 0x8f) => cisco_hdlc(out, d, depth),
        Some(_) => ppp(out, d, depth),
        None => out.cut = true,
    }
}

/// Behind one byte that says which way the frame went.
pub(super) fn ppp_with_direction(out: &mut Footprint, d: Bytes, depth: u8) {
    match d.u8(0) {
        // pppd puts it in the place of the address: control and protocol follow.
        Some(0 | 1) if d.u8(1) == Some(HDLC[1]) => ppp(out, d.behind(2), depth),
        Some(_) => ppp(out, d.behind(1), depth),
        None => out.cut = true,
    }
}

/// Cisco HDLC: address, control, EtherType.
pub(super) fn cisco_hdlc(out: &mut Footprint, d: Bytes, depth: u8) {
    match d.u16(2) {
        // Its own keep-alive.
        Some(0x8035) => {}
        Some(ethertype) => network::ethertype(out, ethertype, d.behind(4), depth),
        None => out.cut = true,
    }
}

/// NFULA_PAYLOAD of include/uapi/linux/netfilter/nfnetlink_log.h.
const NFLOG_PAYLOAD: u16 = 9;
/// Attributes that are walked; the kernel writes some twenty kinds.
const MAX_ATTRIBUTES: usize = 64;

/// Netfilter's log: family, version, group; then attributes in the byte order of the host that wrote them, each padded to 4 bytes.
pub(super) fn nflog(out: &mut Footprint, d: Bytes, depth: u8) {
    let (Some(family), Some(version)) = (d.u8(0), d.u8(1)) else {
        out.cut = true;
        return;
    };
    if version != 0 {
        return;
    }
    let mut d = d.behind(4);
    // A first length of 256 and more is one in the other order: all kinds but the payload are small, and that is the last.
    let little = d.u8(0).is_some_and(|low| low != 0);
    let field = |d: Bytes, at: usize| d.u16(at).map(|v| if little { v.swap_bytes() } else { v });
    for _ in 0..MAX_ATTRIBUTES {
        let (Some(len), Some(kind)) = (field(d, 0), field(d, 2)) else {
            out.cut |= d.wire > 0;
            return;
        };
        if kind & 0x7fff == NFLOG_PAYLOAD {
            let payload = d.behind(4);
            let wire = payload.wire.min(u32::from(len).saturating_sub(4));
            let data = &payload.data[..payload.data.len().min(wire as usize)];
            let payload = Bytes { data, wire, ..payload };
            return match family {
                2 => network::ipv4(out, payload, depth),
                10 => network::ipv6(out, payload, depth),
                _ => {}
            };
        }
        if len < 4 {
            return;
        }
        d = d.behind(usize::from(len).next_multiple_of(4));
    }
}

/// IP over InfiniBand as libpcap has it: the global route header's 40 bytes, then EtherType and two reserved bytes (RFC 4391, section 6).
pub(super) fn ipoib(out: &mut Footprint, d: Bytes, depth: u8) {
    match d.u16(IPOIB_ADDRESSES) {
        Some(ethertype) => network::ethertype(out, ethertype, d.behind(IPOIB_ADDRESSES + 4), depth),
        None => out.cut = true,
    }
}

const IPOIB_ADDRESSES: usize = 40;

/// Bytes of the frame check sequence of 802.15.4 at 2.4 GHz.
const FCS: u32 = 2;

/// IEEE 802.15.4-2011 section 5.2: a data frame that is not encrypted, and of 6LoWPAN (RFC 4944) what is not compressed.
pub(super) fn ieee802154(out: &mut Footprint, d: Bytes, fcs: bool, depth: u8) {
    let wire = if fcs { d.wire.saturating_sub(FCS) } else { d.wire };
    let d = Bytes { data: &d.data[..d.data.len().min(wire as usize)], wire, ..d };
    let Some(control) = d.array(0).map(u16::from_le_bytes) else {
        out.cut = true;
        return;
    };
    let (kind, encrypted, version) = (control & 7, control & 8 != 0, control >> 12 & 3);
    if kind != 1 || encrypted || version > 1 {
        return;
    }
    let address = |mode: u16| match mode {
        2 => 2,
        3 => 8,
        _ => 0,
    };
    let (to, from) = (address(control >> 10 & 3), address(control >> 14 & 3));
    let mut header = 3 + to + from;
    header += if to > 0 { 2 } else { 0 };
    // The sender's network is that of the receiver and left out.
    header += if from > 0 && control & 0x40 == 0 { 2 } else { 0 };
    let d = d.behind(header);
    match d.u8(0) {
        Some(0x41) => network::ipv6(out, d.behind(1), depth),
        Some(_) => {}
        None => out.cut |= d.wire > 0,
    }
}
