//! TCP, UDP, ICMP, and the tunnels that look like a transport from outside.

use kpat_model::{Footprint, Message, Transport};

use super::{Bytes, carry, content, link, network};

const ICMP: u8 = 1;
const IPIP: u8 = 4;
const TCP: u8 = 6;
const UDP: u8 = 17;
const GRE: u8 = 47;
const ICMPV6: u8 = 58;

/// IANA's port, and the one Linux used before there was one.
const VXLAN_PORTS: [u16; 2] = [4789, 8472];

/// `d.wire` is the length of what the IP header says is behind it.
#[inline]
pub(super) fn decode(out: &mut Footprint, proto: u8, d: Bytes, depth: u8) {
    match proto {
        TCP => tcp(out, d),
        UDP => udp(out, d, depth),
        ICMP => icmp(out, d),
        ICMPV6 => icmpv6(out, d),
        _ => {
            out.transport = Some(Transport::Other { proto });
            match proto {
                IPIP => carry(out, d, depth, network::ipv4),
                network::PROTO_IPV6 => carry(out, d, depth, network::ipv6),
                GRE => gre(out, d, depth),
                _ => {}
            }
        }
    }
}

/// All fields up to the checksum make a TCP header readable; options may be missing.
#[inline]
fn tcp(out: &mut Footprint, d: Bytes) {
    let Some(h) = d.array::<18>(0) else {
        out.cut = true;
        return;
    };
    let header = usize::from(h[12] >> 4) * 4;
    let (sport, dport) = (u16::from_be_bytes([h[0], h[1]]), u16::from_be_bytes([h[2], h[3]]));
    let payload_len = d.wire.saturating_sub(header as u32);
    out.transport = Some(Transport::Tcp {
        sport,
        dport,
        seq: u32::from_be_bytes([h[4], h[5], h[6], h[7]]),
        ack: u32::from_be_bytes([h[8], h[9], h[10], h[11]]),
        flags: h[13],
        window: u16::from_be_bytes([h[14], h[15]]),
        checksum: u16::from_be_bytes([h[16], h[17]]),
        payload_len,
    });
    out.cut |= d.data.len() < header;
    let options = d.data.get(20..header.min(d.data.len())).unwrap_or(&[]);
    let (mut text, stamps) = match header {
        0..=20 => (String::new(), None),
        _ => content::of_tcp(options, d.data.len() >= header),
    };
    out.tcp_stamps = stamps;
    let data = content::of_tcp_data(sport, dport, d.behind(header).data, payload_len);
    let behind_headers = data.is_some();
    if let Some(data) = data {
        text = if text.is_empty() { data } else { text + " " + &data };
    }
    if !text.is_empty() {
        out.message = Some(Message { text: text.into(), behind_headers });
    }
}

#[inline]
fn udp(out: &mut Footprint, d: Bytes, depth: u8) {
    let Some(h) = d.array::<8>(0) else {
        out.cut = true;
        return;
    };
    let (sport, dport) = (u16::from_be_bytes([h[0], h[1]]), u16::from_be_bytes([h[2], h[3]]));
    out.transport = Some(Transport::Udp {
        sport,
        dport,
        len: u16::from_be_bytes([h[4], h[5]]),
        checksum: u16::from_be_bytes([h[6], h[7]]),
    });
    if VXLAN_PORTS.contains(&dport) {
        vxlan(out, d.behind(8), depth);
    }
    out.message = content::of_udp(sport, dport, d.behind(8).data);
}

fn icmp(out: &mut Footprint, d: Bytes) {
    let Some((kind, code, checksum, id, seq)) = message(d, |kind| matches!(kind, 0 | 8)) else {
        out.cut = true;
        return;
    };
    out.transport = Some(Transport::Icmp { kind, code, id, seq, checksum });
    out.message = content::of_icmp(kind, code, d.data);
    out.cut |= d.data.len() < 8;
}

fn icmpv6(out: &mut Footprint, d: Bytes) {
    let Some((kind, code, checksum, id, seq)) = message(d, |kind| matches!(kind, 128 | 129)) else {
        out.cut = true;
        return;
    };
    out.transport = Some(Transport::Icmpv6 { kind, code, id, seq, checksum });
    out.message = content::of_icmpv6(kind, d.data);
}

/// Type, code, checksum; identification and sequence of an echo.
fn message(d: Bytes, is_echo: impl Fn(u8) -> bool) -> Option<(u8, u8, u16, u16, u16)> {
    let [kind, code, c0, c1] = d.array(0)?;
    let (id, seq) = if is_echo(kind) { (d.u16(4)?, d.u16(6)?) } else { (0, 0) };
    Some((kind, code, u16::from_be_bytes([c0, c1]), id, seq))
}

/// RFC 7348: eight bytes, of which one flag says that there is a network identifier, as there must be.
fn vxlan(out: &mut Footprint, d: Bytes, depth: u8) {
    match d.array::<8>(0) {
        Some(h) if h[0] & 0x08 != 0 => carry(out, d.behind(8), depth, link::ethernet),
        Some(_) => {}
        None => out.cut |= d.wire >= 8,
    }
}

/// RFC 2784 and 2890. Version 1 (PPTP) and source routes are not followed.
fn gre(out: &mut Footprint, d: Bytes, depth: u8) {
    let (Some(flags), Some(protocol)) = (d.u16(0), d.u16(2)) else {
        out.cut = true;
        return;
    };
    if flags & 0x4007 != 0 {
        return;
    }
    let words = [0x8000, 0x2000, 0x1000].iter().filter(|&&bit| flags & bit != 0).count();
    let payload = d.behind(4 + 4 * words);
    match protocol {
        // Transparent Ethernet bridging.
        0x6558 => carry(out, payload, depth, link::ethernet),
        _ => carry(out, payload, depth, |inner, d, depth| network::ethertype(inner, protocol, d, depth)),
    }
}
