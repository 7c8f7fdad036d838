//! Packets that probes copy, in this process's memory.

use super::*;
use kpat_guest::mailbox::skb::{
    self, AtReturn, HEADERS, How, Packet, PacketCode, PacketHit, PacketMoment, Pages, Shape, packet_code,
};

/// What a packet's structures look like where the test makes them.
const SKB: Shape = Shape {
    size: 120,
    next: 0,
    dev: 8,
    sk: 16,
    head: 24,
    data: 32,
    len: 40,
    data_len: 44,
    end: 48,
    protocol: 52,
    transport: 54,
    network: 56,
    mac: 58,
    users: 60,
    vlan: 64,
    bits: [68, 69, 70],
    sk_family: 2,
    sk_protocol: 4,
    sk_net: 8,
    dataref: 4,
    gso_size: 8,
    gso_segs: 10,
    pages: Some(Pages { count: 2, page: 16, offset: 24, len: 28, first: 0 }),
};

/// A packet in this process's memory: its `sk_buff`, its buffer of 512 bytes with a shared part at 256, its socket.
struct InMemory {
    skb: Box<[u64; 16]>,
    buffer: Vec<u8>,
    sock: Box<[u64; 2]>,
}

fn packet(number: u8, mac: u16, network: u16) -> InMemory {
    let mut buffer: Vec<u8> = (0..512).map(|n| (n as u8).wrapping_mul(3) ^ number).collect();
    buffer[256..268].copy_from_slice(&[0, 0, 0, 0, 1, 0, 0, 0, 200, 5, 3, 0]);
    let mut skb = Box::new([0u64; 16]);
    let sock = Box::new([0x0011_0002_0000, 0xffff_8880_1234_5678]);
    skb[1] = 0xffff_8880_0000_1000;
    skb[2] = sock.as_ptr() as u64;
    skb[3] = buffer.as_ptr() as u64;
    skb[4] = skb[3] + u64::from(network);
    skb[5] = 60;
    skb[6] = 256 | 0x0008 << 32 | 0x40 << 48;
    skb[7] = u64::from(network) | u64::from(mac) << 16 | 1 << 32;
    skb[8] = 7 | 0x01 << 32;
    InMemory { skb, buffer, sock }
}

impl Bench {
    fn probe_packets(&mut self, id: usize, at: u64, how: How, code: PacketCode) {
        let displaced = self.decode(at);
        let which = skb::Function { argument: Register::Rdi, second: Register::Rsi, how };
        let entry = self.put(|m, to| m.packet_site(to, &displaced, id, &which, code).unwrap());
        self.enable(id, true);
        self.patch(at, entry);
    }
}

/// The code that all share is in place.
fn bench(n: u64) -> (Bench, PacketCode) {
    let mut b = Bench::new(n);
    let (code, parts) = packet_code(&b.place, b.shared, &SKB, b.place.base + b.stubs as u64).unwrap();
    b.region.write(b.stubs, &code);
    b.stubs += code.len().next_multiple_of(64);
    let back = b.put(|m, to| kpat_guest::mailbox::stub::Made {
        code: m.packet_return(to, parts).unwrap(),
        entry: to,
        exit: None,
    });
    for n in SHARED_FIRST..SHARED_FIRST + SHARED_COUNT {
        b.region.write(TRAMPOLINES + n * TRAMPOLINE, &b.maker().trampoline(n, back).unwrap());
    }
    (b, parts)
}

#[test]
fn a_packet_is_copied_at_entry_and_return_and_each_of_a_list() {
    let (mut b, parts) = bench(9);
    let mut functions = Vec::new();
    for (id, at_return, list, chain) in [
        (1, AtReturn::Time, false, false),
        (2, AtReturn::Argument, false, false),
        (3, AtReturn::Nothing, true, false),
        (4, AtReturn::Nothing, false, true),
    ] {
        let (at, f) = b.function(SUM);
        b.probe_packets(id, at, How { at_return, list, chain, ..How::default() }, parts);
        functions.push(f);
    }
    let (mut one, two) = (packet(1, 0x20, 0x2e), packet(2, 0xffff, 0x30));
    let mut host = Host::new(b.region.clone());
    b.region.set64(HOST_NOW, 77);
    let at = one.skb.as_ptr() as u64;
    let sum = |a: u64, b: u64| a.wrapping_add(b.wrapping_mul(2)).wrapping_add(7);
    assert_eq!(functions[0](at, 5), sum(at, 5));
    assert_eq!(functions[1](at, 6), sum(at, 6));
    // A list's head points to the first packet, the last back to it.
    let mut head = Box::new([0u64; 2]);
    let mut two = two;
    head[0] = at;
    one.skb[0] = two.skb.as_ptr() as u64;
    two.skb[0] = head.as_ptr() as u64;
    let list = head.as_ptr() as u64;
    assert_eq!(functions[2](list, 0), sum(list, 0));
    // A chain has no head, and ends with nothing.
    two.skb[0] = 0;
    assert_eq!(functions[3](at, 9), sum(at, 9));
    assert_eq!(functions[0](8, 0), sum(8, 0));
    let mut hits = Vec::new();
    host.entries(|e| hits.push(PacketHit::of(&e).unwrap()));
    let kinds: Vec<(usize, bool, bool)> = hits
        .iter()
        .map(|h| (h.probe, matches!(h.what, PacketMoment::Entry { .. }), h.packet.is_some()))
        .collect();
    assert_eq!(
        kinds,
        [
            (1, true, true),
            (1, false, false),
            (2, true, true),
            (2, false, true),
            (3, true, false),
            (3, false, true),
            (3, false, true),
            (4, true, true),
            (4, false, true),
            // What is no address is no packet.
            (1, true, false),
            (1, false, false)
        ]
    );
    assert_eq!((hits[0].value, hits[1].value, hits[0].host_before), (5, sum(at, 5), 77));
    let PacketMoment::Entry { number, returns: true } = hits[0].what else { panic!("{:?}", hits[0].what) };
    assert_eq!(hits[1].what, PacketMoment::Return { entry: number });
    let PacketMoment::Entry { number, returns: false } = hits[4].what else { panic!("{:?}", hits[4].what) };
    assert_eq!(hits[6].what, PacketMoment::Member { entry: number });
    let PacketMoment::Entry { number, returns: false } = hits[7].what else { panic!("{:?}", hits[7].what) };
    let chained = |h: &PacketHit| h.packet.as_ref().map(|p| p.skb);
    assert_eq!((hits[7].value, chained(&hits[7])), (9, Some(at)));
    assert_eq!(
        (hits[8].what, chained(&hits[8])),
        (PacketMoment::Member { entry: number }, Some(two.skb.as_ptr() as u64))
    );
    let seen = hits[0].packet.as_ref().unwrap();
    let want = Packet {
        skb: at,
        head: one.buffer.as_ptr() as u64,
        data: one.buffer.as_ptr() as u64 + 0x2e,
        dev: 0xffff_8880_0000_1000,
        sk: one.sock.as_ptr() as u64,
        len: 60,
        data_len: 0,
        end: 256,
        bits: [1, 0, 0],
        protocol: 8,
        transport: 0x40,
        network: 0x2e,
        mac: 0x20,
        vlan: 7,
        users: 1,
        sk_family: 2,
        sk_protocol: 17,
        sk_net: 0xffff_8880_1234_5678,
        dataref: 1,
        gso_size: 1480,
        gso_segs: 3,
        next: 0,
        start: 0x20,
        paged: 0,
        header: one.buffer[0x20..0x20 + HEADERS].to_vec(),
    };
    assert_eq!(**seen, want);
    let second = hits[6].packet.as_ref().unwrap();
    assert_eq!((second.start, &second.header[..8]), (0x30, &two.buffer[0x30..0x38]));
    assert_eq!(second.skb, two.skb.as_ptr() as u64);
    assert_eq!(host.counts(1).no_return, 0);
}

/// One hit of the function with this packet.
fn hit(host: &mut Host, f: Function, skb: u64) -> PacketHit {
    f(skb, 0);
    let mut hits = Vec::new();
    host.entries(|e| hits.push(PacketHit::of(&e).unwrap()));
    assert_eq!(hits.len(), 1);
    hits.remove(0)
}

/// What a driver leaves in a page is behind what is in the header area.
#[test]
fn headers_go_on_in_the_first_page() {
    let (mut b, parts) = bench(12);
    let (at, f) = b.function(SUM);
    b.probe_packets(1, at, How { at_return: AtReturn::Nothing, ..How::default() }, parts);
    let mut host = Host::new(b.region.clone());
    let memory: Vec<u8> = (0..4 * 4096usize).map(|n| (n * 7 / 5) as u8).collect();
    let from = (memory.as_ptr() as usize).next_multiple_of(4096) - memory.as_ptr() as usize;
    // Each page of 4096 bytes is described by 64, the first from 0 on.
    let page = (memory.as_ptr() as u64 + from as u64) >> 6;
    const MAC: u16 = 0x20;
    struct Case {
        transport: u16,
        /// Bytes of the packet in the header area, from the link header on.
        linear: u32,
        page: (u8, u64, u32, u32),
        end: u32,
        paged: u16,
    }
    let usual = Case { transport: 0xffff, linear: 14, page: (1, page, 40, 1000), end: 256, paged: 98 };
    let cases = [
        Case { ..usual },
        // Its network header was looked at, as that of a fragment is; the transport header's place is known.
        Case { transport: MAC + 54, linear: 54, paged: 58, ..usual },
        // With its transport header all is there, as far as the card's buffer had it.
        Case { transport: MAC + 54, linear: 62, paged: 0, ..usual },
        Case { linear: 112, paged: 0, ..usual },
        Case { linear: 111, paged: 1, ..usual },
        // A short one, over the end of a page, beyond it.
        Case { page: (1, page, 40, 10), paged: 10, ..usual },
        Case { page: (3, page, 4090, 500), paged: 98, ..usual },
        Case { page: (1, page, 4096 + 5, 500), paged: 98, ..usual },
        // None, no page of the kernel's, none that can be read, nothing in it.
        Case { page: (0, page, 40, 1000), paged: 0, ..usual },
        Case { page: (1, page + 1, 40, 1000), paged: 0, ..usual },
        Case { page: (1, 0, 40, 1000), paged: 0, ..usual },
        Case { page: (1, page, 40, 0), paged: 0, ..usual },
        // No header area is so long.
        Case { linear: 0x8000_0000, paged: 0, ..usual },
        // A header area that ends with the link header.
        Case { end: 0x2e, ..usual },
    ];
    for (n, case) in cases.iter().enumerate() {
        let mut one = packet(n as u8, MAC, MAC + 14);
        let shared = case.end as usize;
        one.buffer[shared..shared + 32].fill(0);
        one.buffer[shared + 2] = case.page.0;
        one.buffer[shared + 16..shared + 24].copy_from_slice(&case.page.1.to_le_bytes());
        one.buffer[shared + 24..shared + 28].copy_from_slice(&case.page.2.to_le_bytes());
        one.buffer[shared + 28..shared + 32].copy_from_slice(&case.page.3.to_le_bytes());
        // Length with and without what is in pages; the data begin at the link header.
        one.skb[4] = one.skb[3] + u64::from(MAC);
        one.skb[5] = u64::from(case.linear.wrapping_add(900)) | 900 << 32;
        one.skb[6] = u64::from(case.end) | 0x0008 << 32 | u64::from(case.transport) << 48;
        let p = hit(&mut host, f, one.skb.as_ptr() as u64).packet.unwrap();
        assert_eq!((p.start, p.paged), (MAC, case.paged), "case {n}");
        let linear = if case.paged == 0 { HEADERS } else { case.linear as usize };
        let place = from + case.page.2 as usize;
        let mut want = one.buffer[usize::from(MAC)..][..linear].to_vec();
        want.extend(&memory[place..place + usize::from(case.paged)]);
        let rest = usize::from(MAC) + want.len();
        want.extend(&one.buffer[rest..usize::from(MAC) + HEADERS]);
        want.truncate(p.header.len());
        assert_eq!(p.header, want, "case {n}");
        assert!(
            p.header.len() >= linear.min(shared - usize::from(MAC)) + usize::from(case.paged),
            "case {n}"
        );
    }
}

/// A chain of as many as one datagram is cut into at most; one that is longer, or leads back into itself, ends and is counted.
#[test]
fn a_chain_has_an_end() {
    let (mut b, parts) = bench(11);
    let (at, f) = b.function(SUM);
    b.probe_packets(1, at, How { at_return: AtReturn::Nothing, chain: true, ..How::default() }, parts);
    let mut host = Host::new(b.region.clone());
    let mut all: Vec<InMemory> = (0..200).map(|n| packet(n, 0x20, 0x2e)).collect();
    let places: Vec<u64> = all.iter().map(|p| p.skb.as_ptr() as u64).collect();
    let mut members = |count: usize, last: u64| {
        for n in 0..count {
            all[n].skb[0] = if n + 1 < count { places[n + 1] } else { last };
        }
        f(places[0], 0);
        let mut hits = Vec::new();
        host.entries(|e| hits.push(PacketHit::of(&e).unwrap()));
        let entry = hits.remove(0);
        let PacketMoment::Entry { number, .. } = entry.what else { panic!("{:?}", entry.what) };
        assert!(hits.iter().all(|h| h.what == PacketMoment::Member { entry: number }));
        // What cannot be read is none.
        let got: Vec<u64> = hits.iter().map(|h| h.packet.as_ref().map_or(0, |p| p.skb)).collect();
        (entry.packet.unwrap().next, got, host.counts(1).missed)
    };
    assert_eq!(members(1, 0), (0, vec![], 0));
    assert_eq!(members(3, 0), (places[1], places[1..3].to_vec(), 0));
    assert_eq!(members(128, 0), (places[1], places[1..128].to_vec(), 0));
    assert_eq!(members(200, 0), (places[1], places[1..129].to_vec(), 1));
    let (_, circle, cut) = members(2, places[0]);
    assert_eq!((circle.len(), cut), (128, 2));
    assert_eq!(members(2, 64), (places[1], vec![places[1], 0], 2));
}

/// What a guest writes into the ring itself is a packet of any form, or none.
#[test]
fn any_entry_is_read() {
    let (b, _) = bench(13);
    let mut host = Host::new(b.region.clone());
    let mut state = 5u64;
    let mut below = |n: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) % n
    };
    let (mut tail, mut packets) = (0u64, 0);
    for _ in 0..20_000 {
        let cells = 1 + below(ENTRY_CELLS as u64) as usize;
        let at = RING + tail as usize % CELLS * CELL;
        for cell in 0..cells {
            let from = RING + (tail as usize + cell) % CELLS * CELL;
            (0..CELL)
                .step_by(8)
                .for_each(|n| b.region.set64(from + n, below(1 << 31) << 33 | below(1 << 31)));
        }
        if cells > 1 {
            let next = RING + (tail as usize + 1) % CELLS * CELL;
            b.region.set32(next, below(4) as u32);
        }
        b.region.set32(at + EN_CELLS, cells as u32);
        b.region.set32(at + EN_PROBE, below(PROBES as u64) as u32);
        b.region.set64(at + EN_SEQUENCE, tail + 1);
        let count = host.entries(|e| {
            if let Some(p) = PacketHit::of(&e).and_then(|h| h.packet) {
                assert!(p.header.len() <= HEADERS);
                packets += 1;
            }
        });
        assert_eq!(count, 1);
        tail += cells as u64;
    }
    assert!(packets > 1_000, "{packets}");
}
