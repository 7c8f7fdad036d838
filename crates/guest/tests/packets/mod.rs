//! Packets that probes copy, in this process's memory.

use super::*;
use kpat_guest::mailbox::skb::{
    self, AtReturn, HEADERS, How, Packet, PacketCode, PacketHit, PacketMoment, Shape, packet_code,
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

#[test]
fn a_packet_is_copied_at_entry_and_return_and_each_of_a_list() {
    let mut b = Bench::new(9);
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
        start: 0x20,
        header: one.buffer[0x20..0x20 + HEADERS].to_vec(),
    };
    assert_eq!(**seen, want);
    let second = hits[6].packet.as_ref().unwrap();
    assert_eq!((second.start, &second.header[..8]), (0x30, &two.buffer[0x30..0x38]));
    assert_eq!(second.skb, two.skb.as_ptr() as u64);
    assert_eq!(host.counts(1).no_return, 0);
}
