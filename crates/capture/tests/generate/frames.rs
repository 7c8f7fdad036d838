//! Frames layer by layer: each function puts its header before a payload.

use super::files::Order;

pub const A: [u8; 6] = [2, 0, 0, 0, 0, 0xa1];
pub const B: [u8; 6] = [2, 0, 0, 0, 0, 0xb2];
pub const C: [u8; 6] = [2, 0, 0, 0, 0, 0xc3];
pub const D: [u8; 6] = [2, 0, 0, 0, 0, 0xd4];
pub const IPV4: u16 = 0x0800;
pub const IPV6: u16 = 0x86dd;

pub fn eth(kind: u16, payload: &[u8]) -> Vec<u8> {
    [&B[..], &A, &kind.to_be_bytes(), payload].concat()
}

pub fn tag(tci: u16, next: u16, payload: &[u8]) -> Vec<u8> {
    [&tci.to_be_bytes()[..], &next.to_be_bytes(), payload].concat()
}

pub fn snap(kind: u16, payload: &[u8]) -> Vec<u8> {
    [&[0xaa, 0xaa, 3, 0, 0, 0][..], &kind.to_be_bytes(), payload].concat()
}

pub fn arp(op: u16) -> Vec<u8> {
    [&[0, 1, 8, 0, 6, 4][..], &op.to_be_bytes(), &A, &[10, 0, 0, 1], &B, &[10, 0, 0, 2]].concat()
}

pub fn checksum(data: &[u8]) -> u16 {
    let mut sum = 0u32;
    for pair in data.chunks(2) {
        sum += u32::from(u16::from_be_bytes([pair[0], *pair.get(1).unwrap_or(&0)]));
    }
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

pub struct V4 {
    pub id: u16,
    /// Flags and offset as in the header.
    pub fragment: u16,
    pub options: &'static [u8],
    pub tos: u8,
    pub ttl: u8,
}

impl Default for V4 {
    fn default() -> V4 {
        V4 { id: 0x1234, fragment: 0x4000, options: &[], tos: 0, ttl: 64 }
    }
}

pub fn ipv4_with(with: &V4, proto: u8, payload: &[u8]) -> Vec<u8> {
    let header = 20 + with.options.len();
    let mut out = vec![0x40 | (header / 4) as u8, with.tos];
    out.extend(((header + payload.len()) as u16).to_be_bytes());
    out.extend([with.id.to_be_bytes(), with.fragment.to_be_bytes()].concat());
    out.extend([with.ttl, proto, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    out.extend(with.options);
    let sum = checksum(&out).to_be_bytes();
    out[10..12].copy_from_slice(&sum);
    out.extend(payload);
    out
}

pub fn ipv4(proto: u8, payload: &[u8]) -> Vec<u8> {
    ipv4_with(&V4::default(), proto, payload)
}

pub fn ipv6(next: u8, payload: &[u8]) -> Vec<u8> {
    let mut out = vec![0x6a, 0xb1, 0x23, 0x45];
    out.extend((payload.len() as u16).to_be_bytes());
    out.extend([next, 63]);
    out.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    out.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
    out.extend(payload);
    out
}

/// Hop-by-hop or destination options: padding only, `words` times eight bytes more than the least.
pub fn options6(next: u8, words: u8, payload: &[u8]) -> Vec<u8> {
    let pad = 4 + 8 * words;
    let mut out = vec![next, words, 1, pad];
    out.resize(8 + 8 * usize::from(words), 0);
    out.extend(payload);
    out
}

/// Segment routing header with one segment.
pub fn routing6(next: u8, payload: &[u8]) -> Vec<u8> {
    let mut out = vec![next, 2, 4, 0, 0, 0, 0, 0];
    out.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
    out.extend(payload);
    out
}

pub fn auth(next: u8, payload: &[u8]) -> Vec<u8> {
    let mut out = vec![next, 4, 0, 0, 0, 0, 0, 9, 0, 0, 0, 7];
    out.extend([0xee; 12]);
    out.extend(payload);
    out
}

pub fn fragment6(next: u8, offset: u16, more: bool, payload: &[u8]) -> Vec<u8> {
    let mut out = vec![next, 0];
    out.extend((offset | u16::from(more)).to_be_bytes());
    out.extend(0xdead_beefu32.to_be_bytes());
    out.extend(payload);
    out
}

pub fn tcp(seq: u32, flags: u8, options: &[u8], payload: &[u8]) -> Vec<u8> {
    let mut out = [40000u16.to_be_bytes(), 5201u16.to_be_bytes()].concat();
    out.extend([seq.to_be_bytes(), 0x8000_0001u32.to_be_bytes()].concat());
    out.extend([((20 + options.len()) * 4) as u8, flags]);
    out.extend([0x20, 0x10, 0xab, 0xcd, 0, 0]);
    out.extend(options);
    out.extend(payload);
    out
}

pub const TIMESTAMPS: [u8; 12] = [1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2];

pub fn udp(dport: u16, payload: &[u8]) -> Vec<u8> {
    let mut out = [40001u16.to_be_bytes(), dport.to_be_bytes()].concat();
    out.extend(((8 + payload.len()) as u16).to_be_bytes());
    out.extend([0x5a, 0x5b]);
    out.extend(payload);
    out
}

pub fn icmp(kind: u8, code: u8, rest: [u8; 4], payload: &[u8]) -> Vec<u8> {
    let mut out = [&[kind, code, 0, 0][..], &rest, payload].concat();
    let sum = checksum(&out).to_be_bytes();
    out[2..4].copy_from_slice(&sum);
    out
}

pub fn vxlan(vni: u32, inner: &[u8]) -> Vec<u8> {
    [&[8, 0, 0, 0][..], &(vni << 8).to_be_bytes(), inner].concat()
}

/// With checksum, key and sequence words as the flags say.
pub fn gre(flags: u16, protocol: u16, inner: &[u8]) -> Vec<u8> {
    let words = [0x8000, 0x2000, 0x1000].iter().filter(|&&bit| flags & bit != 0).count();
    let mut out = [flags.to_be_bytes(), protocol.to_be_bytes()].concat();
    out.extend(vec![0u8; 4 * words]);
    out.extend(inner);
    out
}

pub fn mpls(labels: &[u32], payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    for (i, label) in labels.iter().enumerate() {
        let last = u32::from(i + 1 == labels.len()) << 8;
        out.extend((label << 12 | last | 64).to_be_bytes());
    }
    out.extend(payload);
    out
}

pub fn pppoe(protocol: u16, payload: &[u8]) -> Vec<u8> {
    let len = (payload.len() as u16 + 2).to_be_bytes();
    [&[0x11, 0, 0, 7][..], &len, &protocol.to_be_bytes(), payload].concat()
}

/// Three-address data frame, from station to access point; `fc` is the frame control in wire order.
pub fn wifi(fc: [u8; 2], more_header: &[u8], body: &[u8]) -> Vec<u8> {
    [&fc[..], &[0x2c, 0], &A, &B, &C, &[0x50, 0x12], more_header, body].concat()
}

pub fn sll(protocol: u16, kind: u16, payload: &[u8]) -> Vec<u8> {
    [&kind.to_be_bytes()[..], &[0, 1, 0, 6], &A, &[0, 0], &protocol.to_be_bytes(), payload].concat()
}

pub fn sll2(protocol: u16, kind: u8, payload: &[u8]) -> Vec<u8> {
    [&protocol.to_be_bytes()[..], &[0, 0, 0, 0, 0, 3, 0, 1, kind, 6], &A, &[0, 0], payload].concat()
}

/// An echo request over IPv4.
pub fn ping(seq: u8) -> Vec<u8> {
    ipv4(1, &icmp(8, 0, [0x77, 0x01, 0, seq], b"abcdefghijklmnop"))
}

/// Ethernet frames with everything that the decoder knows.
pub fn ethernet_corpus() -> Vec<Vec<u8>> {
    let data = b"0123456789abcdefghijklmnopqrstuvwxyz";
    let t = || tcp(0xfedc_ba98, 0x18, &TIMESTAMPS, data);
    let u = || udp(9999, data);
    let echo6 = || icmp(128, 0, [0x31, 0x32, 0, 9], data);
    let v4 = |with: V4, proto, payload: &[u8]| eth(IPV4, &ipv4_with(&with, proto, payload));
    let mut padded = eth(IPV4, &ipv4(6, &tcp(1, 0x10, &[], b"")));
    padded.resize(60, 0);
    let mut ttl = ipv4(17, &u());
    ttl[1] = 0xb8;
    vec![
        eth(IPV4, &ipv4(6, &t())),
        padded,
        eth(IPV4, &ipv4(6, &tcp(7, 0x02, &TIMESTAMPS, b""))),
        eth(IPV4, &ipv4(17, &u())),
        eth(IPV4, &ttl),
        eth(IPV4, &ping(3)),
        eth(IPV4, &ipv4(1, &icmp(0, 0, [0x77, 1, 0, 3], data))),
        eth(IPV4, &ipv4(1, &icmp(3, 1, [0; 4], &ipv4(17, &u())[..28]))),
        v4(V4 { options: &[7, 7, 4, 0, 0, 0, 0, 0], ..V4::default() }, 6, &t()),
        v4(V4 { fragment: 0x2000, id: 77, ..V4::default() }, 17, &udp(9999, &[0x55; 1464])),
        v4(V4 { fragment: 0x2000 | 184, id: 77, ..V4::default() }, 17, &[0x55; 1472]),
        v4(V4 { fragment: 368, id: 77, ttl: 3, ..V4::default() }, 17, &[0x55; 20]),
        eth(IPV6, &ipv6(6, &t())),
        eth(IPV6, &ipv6(17, &u())),
        eth(IPV6, &ipv6(58, &echo6())),
        eth(IPV6, &ipv6(58, &icmp(135, 0, [0; 4], &[0xfd; 16]))),
        eth(IPV6, &ipv6(0, &options6(6, 0, &t()))),
        eth(IPV6, &ipv6(60, &options6(43, 1, &routing6(17, &u())))),
        eth(IPV6, &ipv6(51, &auth(6, &t()))),
        eth(IPV6, &ipv6(44, &fragment6(17, 0, true, &u()))),
        eth(IPV6, &ipv6(44, &fragment6(17, 1448, false, &[0x66; 40]))),
        eth(IPV6, &ipv6(0, &options6(44, 0, &fragment6(58, 0, true, &echo6())))),
        eth(0x0806, &arp(1)),
        eth(0x0806, &arp(2)),
        eth(0x8100, &tag(0x6005, IPV4, &ipv4(17, &u()))),
        eth(0x88a8, &tag(100, 0x8100, &tag(200, IPV6, &ipv6(58, &echo6())))),
        eth(0x8100, &tag(1, 0x0806, &arp(1))),
        eth(36, &snap(0x0806, &arp(1))),
        eth(38, &[0x42, 0x42, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
        eth(0x8847, &mpls(&[16, 17], &ipv4(6, &t()))),
        eth(0x8847, &mpls(&[100], &ipv6(17, &u()))),
        eth(0x8864, &pppoe(0x0021, &ipv4(6, &t()))),
        eth(0x8864, &pppoe(0x0057, &ipv6(17, &u()))),
        eth(IPV4, &ipv4(17, &udp(4789, &vxlan(42, &eth(IPV4, &ipv4(6, &t())))))),
        eth(IPV4, &ipv4(17, &udp(8472, &vxlan(42, &eth(0x8100, &tag(9, IPV6, &ipv6(58, &echo6()))))))),
        eth(IPV6, &ipv6(17, &udp(4789, &vxlan(1, &eth(0x0806, &arp(2)))))),
        eth(IPV4, &ipv4(47, &gre(0, IPV4, &ping(1)))),
        eth(IPV4, &ipv4(47, &gre(0xb000, IPV6, &ipv6(17, &u())))),
        eth(IPV4, &ipv4(47, &gre(0x2000, 0x6558, &eth(IPV4, &ipv4(17, &u()))))),
        eth(IPV4, &ipv4(4, &ipv4(6, &t()))),
        eth(IPV4, &ipv4(41, &ipv6(6, &t()))),
        eth(IPV6, &ipv6(4, &ping(5))),
        eth(IPV6, &ipv6(41, &ipv6(17, &u()))),
        eth(IPV4, &ipv4(132, &[0x12, 0x34, 0x56, 0x78, 0, 0, 0, 1, 0, 0, 0, 0])),
        eth(0x88cc, &[2, 7, 4, 2, 0, 0, 0, 0, 1, 0, 0]),
    ]
}

/// Frames of other link types.
pub fn other_corpus(order: Order) -> Vec<(u16, Vec<u8>)> {
    let t4 = || ipv4(6, &tcp(5, 0x11, &TIMESTAMPS, b"hello"));
    let u6 = || ipv6(17, &udp(9999, b"hello"));
    let radiotap: &[u8] = &[0, 0, 9, 0, 2, 0, 0, 0, 0];
    let stamped: &[u8] =
        &[0, 0, 26, 0, 3, 0, 0, 0xa0, 4, 0, 0, 0, 0, 0, 0, 0, 9, 9, 9, 9, 9, 9, 9, 9, 0x20, 0];
    let four = [&D[..]].concat();
    let mut all = vec![
        (101, t4()),
        (101, u6()),
        (12, t4()),
        (228, t4()),
        (229, u6()),
        (0, [&[2, 0, 0, 0][..], &t4()].concat()),
        (0, [&[0, 0, 0, 30][..], &u6()].concat()),
        (108, [&[0, 0, 0, 2][..], &t4()].concat()),
        (113, sll(IPV4, 0, &t4())),
        (113, sll(IPV6, 4, &u6())),
        (276, sll2(IPV4, 4, &t4())),
        (276, sll2(0x0806, 1, &arp(1))),
        (276, sll2(0x8100, 0, &tag(7, IPV6, &u6()))),
    ];
    let frames = vec![
        wifi([0x08, 0x01], &[], &snap(IPV4, &t4())),
        wifi([0x88, 0x01], &[5, 0], &snap(IPV6, &u6())),
        wifi([0x88, 0x03], &[&four[..], &[0, 0]].concat(), &snap(0x0806, &arp(1))),
        wifi([0x88, 0x81], &[0, 0, 0, 0, 0, 0], &snap(IPV4, &t4())),
        wifi([0x48, 0x11], &[], &[]),
        wifi([0xc8, 0x11], &[7, 0], &[]),
        wifi([0x88, 0x41], &[0, 0], &[0x5a; 40]),
        wifi([0x80, 0x00], &[], &[0, 0, 0, 0, 0, 0, 0, 0, 100, 0, 1, 0, 0, 2, b'h', b'i']),
        wifi([0xc0, 0x00], &[], &[7, 0]),
        [&[0xb4, 0, 0, 0][..], &A, &B].concat(),
        [&[0xc4, 0, 0, 0][..], &A].concat(),
        [&[0xd4, 0, 0, 0][..], &A].concat(),
        [&[0x94, 0, 0, 0][..], &A, &B, &[5, 0, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0]].concat(),
    ];
    for frame in &frames {
        all.push((105, frame.clone()));
        all.push((127, [radiotap, frame].concat()));
        all.push((192, [&[0, 0, 8, 0, 105, 0, 0, 0][..], frame].concat()));
    }
    // Padding behind the header, which is 26 bytes.
    all.push((127, [stamped, &wifi([0x88, 0x01], &[5, 0, 0, 0], &snap(IPV6, &u6()))].concat()));
    let before = |link_type: u16, head: &[u8], packet: Vec<u8>| (link_type, [head, &packet].concat());
    all.extend([
        before(9, &[0xff, 3, 0, 0x21], t4()),
        before(9, &[0, 0x21], t4()),
        before(9, &[0x57], u6()),
        // A control protocol: LCP configure request.
        before(9, &[0xff, 3, 0xc0, 0x21, 1, 1, 0, 4], Vec::new()),
        before(50, &[0xff, 3, 0, 0x57], u6()),
        before(50, &[0x0f, 0, 8, 0], t4()),
        before(51, &[0x11, 0, 0, 1, 0, t4().len() as u8 + 2, 0, 0x21], t4()),
        before(104, &[0x0f, 0, 8, 0], t4()),
        before(104, &[0x8f, 0, 0x86, 0xdd], u6()),
        before(242, &[&[0; 40][..], &[8, 0, 0, 0]].concat(), t4()),
        (239, nflog(2, &t4(), order)),
        (239, nflog(10, &u6(), order)),
    ]);
    // Short addresses and one network; long addresses and two.
    for head in [
        &[0x41, 0x88, 7, 0x34, 0x12, 1, 0, 2, 0][..],
        &[&[0x01, 0xcc, 8, 0x34, 0x12][..], &[3; 8], &[0x35, 0x12], &[4; 8]].concat(),
    ] {
        let frame = [head, &[0x41], &u6()].concat();
        all.push((195, [&frame[..], &fcs(&frame)].concat()));
        all.push((230, frame));
    }
    // An acknowledgement.
    all.push((230, vec![2, 0, 9]));
    all
}

/// A packet as `nflog:GROUP` gives it: packet header, prefix, time, payload; in the byte order of the host, and so of the file.
fn nflog(family: u8, packet: &[u8], order: Order) -> Vec<u8> {
    let mut out = vec![family, 0, 0, 5];
    for (kind, value) in [(1, &[8, 0, 3, 0][..]), (10, b"kpat\0"), (3, &[9; 16]), (9, packet)] {
        out.extend(order.u16(4 + value.len() as u16));
        out.extend(order.u16(kind));
        out.extend(value);
        out.resize(out.len().next_multiple_of(4), 0);
    }
    out
}

/// CRC of IEEE 802.15.4: polynomial x^16 + x^12 + x^5 + 1, bits as they are sent.
fn fcs(frame: &[u8]) -> [u8; 2] {
    let step = |crc: u16, _| if crc & 1 != 0 { crc >> 1 ^ 0x8408 } else { crc >> 1 };
    frame.iter().fold(0u16, |crc, b| (0..8).fold(crc ^ u16::from(*b), step)).to_le_bytes()
}
