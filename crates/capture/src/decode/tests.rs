//! Small frames in hexadecimal, spaces between headers, and what they mean. The great mass of frames is compared with
//! tshark in `tests/tshark.rs`; here is what it does not show: cut headers, segmentation packets, kernel packets.

use kpat_model::{BootNs, HeaderBytes, Network, PacketId, Transport};

use super::*;

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u32> =
        hex.chars().filter(|c| !c.is_whitespace()).map(|c| c.to_digit(16).unwrap()).collect();
    digits.chunks(2).map(|pair| (pair[0] << 4 | pair[1]) as u8).collect()
}

const ETH4: &str = "0200000000b2 0200000000a1 0800";
const ETH6: &str = "0200000000b2 0200000000a1 86dd";
/// Total length 60: a TCP header of 32 bytes and a payload of 8.
const IP4_TCP: &str = "4500 003c 1234 4000 40 06 0000 0a000001 0a000002";
const IP4_ZERO: &str = "4500 0000 1234 4000 40 06 0000 0a000001 0a000002";
const TCP: &str = "9c40 1451 fedcba98 80000001 80 18 2010 abcd 0000 0101080a 00000001 00000002";

/// One line for each layer, so that a case can say in one text what it expects.
fn brief(f: &Footprint) -> String {
    let mut out = Vec::new();
    if let Some(l) = f.link {
        out.push(format!("link {:04x} {:?}", l.ethertype, l.vlan.map(|v| v as i16)));
    }
    if let Some(w) = f.wifi {
        out.push(format!(
            "wifi {:04x} {:x} {:x} {:x}",
            w.frame_control, w.receiver[5], w.transmitter[5], w.sequence_control
        ));
    }
    match f.network {
        Some(Network::V4 { proto, total_len, frag_offset, more_frags, .. }) => {
            out.push(format!("v4 {proto} len {total_len} frag {frag_offset} {more_frags}"));
        }
        Some(Network::V6 { proto, payload_len, fragment, .. }) => {
            out.push(format!("v6 {proto} len {payload_len} {fragment:?}"));
        }
        Some(Network::Arp { op, .. }) => out.push(format!("arp {op}")),
        Some(Network::Other(kind, _)) => out.push(format!("other {kind:04x}")),
        None => {}
    }
    match f.transport {
        Some(Transport::Tcp { seq, payload_len, .. }) => out.push(format!("tcp {seq:x} +{payload_len}")),
        Some(Transport::Udp { dport, len, .. }) => out.push(format!("udp {dport} {len}")),
        Some(Transport::Icmp { kind, id, seq, .. }) => out.push(format!("icmp {kind} {id:x} {seq}")),
        Some(Transport::Icmpv6 { kind, id, seq, .. }) => out.push(format!("icmp6 {kind} {id:x} {seq}")),
        Some(Transport::Other { proto }) => out.push(format!("proto {proto}")),
        None => {}
    }
    if let Some(inner) = &f.inner {
        out.push(format!("[{}]", brief(inner)));
    }
    if f.cut {
        out.push("cut".into());
    }
    out.join(", ")
}

/// Decodes with a length on the wire of `wire`, 0: as captured.
fn check(link_type: u16, parts: &[&str], wire: u32, expected: &str) {
    let data = bytes(&parts.concat());
    let wire = if wire == 0 { data.len() as u32 } else { wire };
    assert_eq!(brief(&frame(link_type, &data, wire)), expected, "{parts:?}");
}

#[test]
fn nothing_is_cut() {
    for link_type in [0, 1, 12, 101, 105, 108, 113, 119, 127, 163, 192, 228, 229, 276] {
        let found = frame(link_type, &[], 60);
        assert_eq!(found, Footprint { cut: true, ..Footprint::default() }, "link type {link_type}");
    }
    assert_eq!(l3(0x88cc, &[], 0).network, Some(Network::Other(0x88cc, [0; 8])));
    assert_eq!(frame(9999, &[1, 2, 3], 3), Footprint::default());
}

#[test]
fn tcp_lengths() {
    let link = "link 0800 [-1, -1]";
    let v4 = "v4 6 len 60 frag 0 false";
    check(1, &[ETH4, IP4_TCP, TCP, "0102030405060708"], 0, &format!("{link}, {v4}, tcp fedcba98 +8"));
    // Captured without payload.
    check(1, &[ETH4, IP4_TCP, TCP], 74, &format!("{link}, {v4}, tcp fedcba98 +8"));
    // Without all options, and without the urgent pointer.
    check(
        1,
        &[ETH4, IP4_TCP, "9c40 1451 fedcba98 80000001 80 18 2010 abcd"],
        74,
        &format!("{link}, {v4}, tcp fedcba98 +8, cut"),
    );
    // Without its checksum.
    check(
        1,
        &[ETH4, IP4_TCP, "9c40 1451 fedcba98 80000001 80 18 2010 ab"],
        74,
        &format!("{link}, {v4}, cut"),
    );
    // Segmentation offload: the IP length is not yet known.
    let zero = "v4 6 len 0 frag 0 false";
    check(1, &[ETH4, IP4_ZERO, TCP], 66 + 90_000, &format!("{link}, {zero}, tcp fedcba98 +90000"));
    let six = "6000 0000 0000 06 40 fd000000000000000000000000000001 fd000000000000000000000000000002";
    let v6 = "link 86dd [-1, -1], v6 6 len 0 None";
    check(1, &[ETH6, six, TCP], 86 + 90_000, &format!("{v6}, tcp fedcba98 +90000"));
    // The jumbo payload option says 8 + 32 + 70000.
    let jumbo = six.replacen("06 40", "00 40", 1);
    let option = "06 00 c204 00011198";
    check(1, &[ETH6, &jumbo, option, TCP], 100, &format!("{v6}, tcp fedcba98 +70000"));
}

#[test]
fn malformed_headers_end_the_walk() {
    let link = "link 0800 [-1, -1], ";
    check(
        1,
        &[ETH4, "4400 003c 1234 4000 40 06 0000 0a000001 0a000002"],
        0,
        &format!("{link}v4 6 len 60 frag 0 false"),
    );
    check(1, &[ETH4, "6500 003c 1234 4000 40 06 0000 0a000001 0a000002"], 0, &format!("{link}other 0800"));
    // Ethernet padding is no header: the IP length ends before it.
    let short = "4500 0018 1234 4000 40 06 0000 0a000001 0a000002";
    check(1, &[ETH4, short, TCP], 0, &format!("{link}v4 6 len 24 frag 0 false, cut"));
    // Labels without end, extension headers without end.
    check(1, &["0200000000b2 0200000000a1 8847", &"00010040".repeat(40)], 0, "link 8847 [-1, -1], cut");
    let six = "6000 0000 0190 00 40 fd000000000000000000000000000001 fd000000000000000000000000000002";
    let endless = frame(1, &bytes(&[ETH6, six, &"0000010400000000".repeat(50)].concat()), 454);
    assert_eq!(brief(&endless), "link 86dd [-1, -1], v6 0 len 400 None, proto 0");
}

#[test]
fn tags_are_read_as_far_as_they_go() {
    let start = "0200000000b2 0200000000a1";
    check(1, &[start, "8100 2005 0806"], 60, "link 0806 [5, -1], cut");
    check(1, &[start, "88a8 0064 8100 00c8"], 60, "link 8100 [100, 200], cut");
    check(1, &[start, "88a8 0064 8100 00c8 8100 0001 88cc"], 60, "link 88cc [100, 200], other 88cc");
    check(1, &[start, "0004 42420300"], 60, "link 0042 [-1, -1], other 0042, cut");
}

#[test]
fn tunnels_end_at_a_depth() {
    let ipip = "4500 0000 0000 0000 40 04 0000 0a000001 0a000002";
    let found = frame(101, &bytes(&ipip.repeat(20)), 400);
    let mut depth = 0;
    let mut next = found.inner.as_deref();
    while let Some(inner) = next {
        depth += 1;
        next = inner.inner.as_deref();
    }
    assert_eq!(depth, MAX_DEPTH);
    let vxlan = "4500 0060 0000 0000 40 11 0000 0a000001 0a000002  9c41 12b5 004c 0000  08000000 00002a00";
    check(101, &[vxlan], 96, "v4 17 len 96 frag 0 false, udp 4789 76, cut");
    let carried = "v4 17 len 96 frag 0 false, udp 4789 76, [link 0800 [-1, -1], cut], cut";
    check(101, &[vxlan, ETH4], 96, carried);
}

#[test]
fn wifi_bodies() {
    let addresses = "2c00 0200000000a1 0200000000b2 0200000000c3 5012";
    let snap = "aaaa03 000000 0806";
    let arp = "0001 0800 06 04 0001 0200000000a1 0a000001 000000000000 0a000002";
    let head = |fc: &str| format!("{fc} {addresses}");
    check(105, &[&head("0801"), snap, arp], 0, "wifi 0108 a1 b2 1250, arp 1");
    // An A-MSDU: the first subframe has addresses and a length of its own.
    let subframe = "0200000000b2 0200000000a1 0024";
    check(105, &[&head("8801"), "8000", subframe, snap, arp], 0, "wifi 0188 a1 b2 1250, arp 1");
    check(105, &[&head("0841"), snap, arp], 0, "wifi 4108 a1 b2 1250");
    check(105, &[&head("8801"), "80"], 80, "wifi 0188 a1 b2 1250, cut");
    check(105, &["d400 0000 0200000000a1"], 0, "wifi 00d4 a1 0 0");
    check(105, &["0801 2c00 0200000000a1 0200000000b2"], 60, "cut");
}

/// What the kernel held; `start` is (layer, ARPHRD_*, EtherType, IP protocol).
fn held(start: (u8, u16, u16, u8), len_bytes: u32, gso_size: u16, parts: &[&str]) -> String {
    let header = HeaderBytes::new(&bytes(&parts.concat()));
    brief(&packet(&FootprintRecord {
        packet: PacketId(1),
        at: BootNs(0),
        ifindex: 1,
        netns: 0,
        len_bytes,
        gso_size,
        gso_segs: 0,
        protocol: start.2,
        start_layer: start.0,
        ip_proto: start.3,
        link_type: start.1,
        skb_tag: 0,
        header,
    }))
}

#[test]
fn packets_of_the_kernel() {
    let v4 = "v4 6 len 60 frag 0 false, tcp fedcba98 +8";
    let linked = format!("link 0800 [-1, -1], {v4}");
    for arphrd in [1, 772, 0, 9999] {
        assert_eq!(held((2, arphrd, 0x0800, 0), 74, 0, &[ETH4, IP4_TCP, TCP]), linked, "{arphrd}");
    }
    assert_eq!(held((2, 65534, 0x0800, 0), 60, 0, &[IP4_TCP, TCP]), v4);
    assert_eq!(held((3, 1, 0x0800, 0), 60, 0, &[IP4_TCP, TCP]), v4);
    assert_eq!(held((3, 1, 0, 0), 60, 0, &[IP4_TCP, TCP]), v4);
    assert_eq!(held((4, 1, 0x0800, 6), 40, 0, &[TCP]), "tcp fedcba98 +8");
    assert_eq!(held((4, 0, 0, 0), 40, 0, &[TCP]), "proto 0");
    assert_eq!(held((9, 1, 0x0800, 6), 40, 0, &[TCP]), "");
    let mac = "0801 2c00 0200000000a1 0200000000b2 0200000000c3 5012 aaaa03 000000 88cc";
    assert_eq!(held((2, 801, 0, 0), 80, 0, &[mac]), "wifi 0108 a1 b2 1250, other 88cc");
    let avs = "80211001 00000008";
    assert_eq!(held((2, 802, 0, 0), 80, 0, &[avs, mac]), "wifi 0108 a1 b2 1250, other 88cc");
}

#[test]
fn frames_without_an_ethertype() {
    let frame =
        |rest: &str| held((2, 1, 4, 0), 60, 0, &["0180c2000000 0200000000a1 0026", rest, "0000000000"]);
    assert_eq!(frame("424203 0000 00 00 01"), "link 0042 [-1, -1], other 0042");
    assert_eq!(frame("fefe03 83 1b 01 00"), "link 0004 [-1, -1]");
    assert_eq!(frame("aaaa03 000000 88cc"), "link 88cc [-1, -1], other 88cc");
    assert_eq!(held((3, 1, 4, 0), 38, 0, &["424203 0000 00 00 00"]), "other 0042");
}

#[test]
fn segmentation_packets_of_the_kernel() {
    let zero = "v4 6 len 0 frag 0 false, tcp fedcba98";
    assert_eq!(held((3, 1, 0x0800, 0), 70_052, 1448, &[IP4_ZERO, TCP]), format!("{zero} +70000"));
    // The header still speaks of the first segment, the packet is whole: receive offload in progress.
    let first = "v4 6 len 60 frag 0 false, tcp fedcba98";
    assert_eq!(held((3, 1, 0x0800, 0), 5_052, 8, &[IP4_TCP, TCP]), format!("{first} +5000"));
    // `skb->len` with or without what is before `skb->data` does not contradict a whole header.
    for len in [74, 60, 28, 8] {
        assert_eq!(held((3, 1, 0x0800, 0), len, 8, &[IP4_TCP, TCP]), format!("{first} +8"), "{len}");
    }
    // Not a segmentation packet: behind a link header, the IP header's goes before.
    assert_eq!(
        held((2, 1, 0x0800, 0), 5_066, 0, &[ETH4, IP4_TCP, TCP]),
        format!("link 0800 [-1, -1], {first} +8")
    );
}

/// Before __ip_local_out the length of an IP header is what was in its place: nothing, or another packet's, a shorter one or a longer one.
#[test]
fn lengths_that_are_not_yet_written() {
    let stale = "v4 6 len 60 frag 0 false, tcp fedcba98";
    for (len, payload) in [(352, 300), (60, 8), (53, 1), (52, 0)] {
        assert_eq!(held((3, 1, 0x0800, 0), len, 0, &[IP4_TCP, TCP]), format!("{stale} +{payload}"), "{len}");
        assert_eq!(held((3, 1, 0, 0), len, 0, &[IP4_TCP, TCP]), format!("{stale} +{payload}"), "{len}");
    }
}

/// pppd's link type has the direction in the place of HDLC's address; tshark 4.0 does not know it. The other one has it in front; tshark
/// takes it off and shows one byte less, so it cannot be compared either.
#[test]
fn ppp_of_pppd() {
    let udp = [0x23, 0x28, 0x23, 0x29, 0, 8, 0, 0];
    let mut ip = vec![0x45, 0, 0, 28, 0, 7, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
    ip.extend(udp);
    for direction in [0, 1] {
        let data = [&[direction, 3, 0, 0x21][..], &ip].concat();
        let f = frame(166, &data, data.len() as u32);
        assert!(matches!(f.transport, Some(Transport::Udp { sport: 9000, dport: 9001, .. })), "{f:?}");
        assert!(!f.cut && f.link.is_none());
        let data = [&[direction, 0xff, 3, 0, 0x21][..], &ip].concat();
        assert_eq!(frame(204, &data, data.len() as u32), f);
    }
}

/// Every link type, every length: nothing panics, and what is short says so.
#[test]
fn any_length_of_any_link_type() {
    let data: Vec<u8> = (0..120u8).map(|i| i.wrapping_mul(37)).collect();
    for link_type in 0..300 {
        for len in 0..data.len() {
            frame(link_type, &data[..len], 120);
            frame(link_type, &vec![0xff; len], 120);
            frame(link_type, &vec![0; len], 120);
        }
    }
}
