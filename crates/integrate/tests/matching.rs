//! Frames and packets whose truth is known: how many associations are right, how many are found, and whether the true
//! clock is within the bound that is claimed.

use crate::judge;
use crate::world;

use judge::*;
use kpat_integrate::Report;
use kpat_model::meta::ClockAnchor;
use kpat_model::*;
use kpat_query::{PacketFilter, PacketSort, Store, clock_method, verdict};
use kpat_store::tables::{ASSOCIATION, AssociationRow};
use std::path::PathBuf;
use world::*;

const FUNCTIONS: &[&str] = &[
    "napi_gro_receive",
    "__netif_receive_skb_core",
    "ip_rcv",
    "ip_forward",
    "ip_output",
    "__dev_queue_xmit",
    "dev_hard_start_xmit",
    "kfree_skb_reason",
    "__ip_queue_xmit",
    "__tcp_transmit_skb",
    "tcp_v4_rcv",
    "tcp_queue_rcv",
    "skb_copy_datagram_iter",
    "icmp_rcv",
];
const CLIENT: Mac = [2, 0, 0, 0, 0, 1];
const R0: Mac = [2, 0, 0, 0, 0, 2];
const R1: Mac = [2, 0, 0, 0, 0, 3];
const SERVER: Mac = [2, 0, 0, 0, 0, 4];
const SEC: i64 = 1_000_000_000;

fn soft(cpu: u16, packet: u64) -> At {
    At { cpu, ctx: Context::Softirq, pid: 0, packet }
}

/// The DUT forwards a packet: known from `at`, given to the device at the returned time.
fn forward(
    log: &mut LogWriter,
    cpu: u16,
    packet: u64,
    at: i64,
    before: (u32, &[u8]),
    after: (u32, &[u8]),
) -> i64 {
    let a = soft(cpu, packet);
    log.print(a, at + 100, before.0, before.1, before.1.len() as u32, (0, 0));
    log.call(a, "ip_rcv", at + 1_000, at + 3_000);
    log.call(a, "ip_forward", at + 4_000, at + 20_000);
    log.print(a, at + 16_000, after.0, after.1, after.1.len() as u32, (0, 0));
    log.call(a, "dev_hard_start_xmit", at + 15_000, at + 18_000);
    log.call(a, "__dev_queue_xmit", at + 14_000, at + 19_000);
    log.call(a, "__netif_receive_skb_core", at + 500, at + 25_000);
    log.call(a, "napi_gro_receive", at, at + 26_000);
    log.free(a, at + 60_000);
    at + 15_000
}

/// Ping through a router that masquerades; both links in one capture.
fn nat(name: &str, clock: Clock, anchor: ClockAnchor, pings: i64) -> (Report, PathBuf, Score, Dir) {
    let dir = Dir::new(name);
    let devices = [(2, "eth0", R0), (3, "eth1", R1)];
    let mut log = LogWriter::create(&dir.path("x.kbl"), FUNCTIONS, &devices, anchor);
    let mut cap = Capture::new(&dir.path("w.pcapng"), &["tap-in", "tap-out"]);
    let mut random = Random(7);
    let (c, r, s) = ([10, 0, 0, 2], [203, 0, 113, 1], [198, 51, 100, 7]);
    for i in 0..pings {
        let seq = i as u16;
        let ident = (i * 37) as u16 | 1;
        let mut at = 100 * SEC + i * 100_000_000 + random.below(1_000_000);
        for reply in [false, true] {
            let packet = (2 * i + 1 + i64::from(reply)) as u64;
            let body = |id| icmp(if reply { 0 } else { 8 }, id, seq, seq.wrapping_mul(31));
            let (inside, outside) = if reply {
                (
                    ether(CLIENT, R0, 0x800, &ipv4(s, c, ident ^ 0x5555, 1, 62, 8, &body(77))),
                    ether(R1, SERVER, 0x800, &ipv4(s, r, ident ^ 0x5555, 1, 63, 8, &body(1024))),
                )
            } else {
                (
                    ether(R0, CLIENT, 0x800, &ipv4(c, s, ident, 1, 64, 8, &body(77))),
                    ether(SERVER, R1, 0x800, &ipv4(r, s, ident, 1, 63, 8, &body(1024))),
                )
            };
            let (first, then) = if reply { (&outside, &inside) } else { (&inside, &outside) };
            let (link_in, link_out) = if reply { (1, 0) } else { (0, 1) };
            cap.frame(clock.wall(at), link_in, first.clone(), first.len() as u32, packet);
            let known = at + 15_000 + random.below(60_000);
            let (dev_in, dev_out) = (link_in + 2, link_out + 2);
            let given = forward(&mut log, (i % 2) as u16, packet, known, (dev_in, first), (dev_out, then));
            let sent = given + 4_000 + random.below(40_000);
            cap.frame(clock.wall(sent), link_out, then.clone(), then.len() as u32, packet);
            at += 3_000_000;
        }
    }
    log.close();
    let truth = cap.close();
    let (report, out) = run(&dir, &["w.pcapng"]);
    let score = score(&out, &[truth]);
    (report, out, score, dir)
}

#[test]
fn ping_through_nat_with_another_clock() {
    let anchor =
        ClockAnchor { boot: BootNs(99 * SEC), wall: WallNs(1_700_000_099 * SEC), uncertainty_ns: 1000 };
    for (name, offset, drift) in [
        ("near", 1_700_000_000 * SEC + 700_000, 12e-6),
        ("far", 1_700_000_000 * SEC - 5 * 3600 * SEC, 80e-6),
        ("slow", 1_700_000_000 * SEC + 86_400 * SEC, -150e-6),
    ] {
        let clock = Clock { offset, drift };
        let (report, out, score, _dir) = nat(name, clock, anchor, 300);
        println!(
            "nat {name}: precision {:.4} recall {:.4} of {} frames",
            score.precision, score.recall, score.frames
        );
        assert!(score.precision >= 0.999 && score.recall >= 0.999);
        assert_clock(&report, clock);
        assert_eq!(report.clocks[0].method, clock_method::HULL);
        assert!(report.clocks[0].bound_ns < 100_000);
        let store = Store::open(&out).unwrap();
        let detail = store.packet(1).unwrap();
        assert_eq!(detail.packet.verdict, verdict::FORWARDED);
        assert_eq!((detail.packet.if_in, detail.packet.if_out), (Some(2), Some(3)));
        assert_eq!(detail.frames.iter().map(|f| f.association.side).collect::<Vec<_>>(), [1, 2]);
        assert_eq!(detail.footprints.len(), 2);
        assert_eq!(detail.calls.len(), 2, "its way, and its end");
        assert_eq!(detail.calls[0].name, "napi_gro_receive");
        let func = store.function("ip_forward", &Default::default()).unwrap();
        assert_eq!((func.total, func.packets), (600, Some(600)));
        let filter =
            PacketFilter { proto: Some("icmp".into()), addr: Some("10.0.0.2".into()), ..Default::default() };
        assert_eq!(store.packets(&filter, PacketSort::Time, false, 10).unwrap().total, 300);
    }
}

#[test]
fn few_pings_of_a_far_clock() {
    let anchor =
        ClockAnchor { boot: BootNs(99 * SEC), wall: WallNs(1_700_000_099 * SEC), uncertainty_ns: 1000 };
    let clock = Clock { offset: 1_699_000_000 * SEC, drift: 0.0 };
    let (report, _, score, _dir) = nat("few", clock, anchor, 2);
    println!("few: precision {:.4} recall {:.4} of {} frames", score.precision, score.recall, score.frames);
    assert!(score.precision >= 0.999 && score.recall >= 0.999);
    assert_clock(&report, clock);
}

/// The DUT sends in packets for segmentation, over the wrap of the sequence space, and some segments again.
#[test]
fn tcp_segmentation_wrap_and_retransmission() {
    const MSS: u32 = 1448;
    let dir = Dir::new("tcp");
    let anchor =
        ClockAnchor { boot: BootNs(9 * SEC), wall: WallNs(1_700_000_009 * SEC), uncertainty_ns: 1000 };
    let clock = Clock { offset: 1_700_000_000 * SEC + 40_000_000, drift: 20e-6 };
    let mut log = LogWriter::create(&dir.path("x.kbl"), FUNCTIONS, &[(2, "eth0", R0)], anchor);
    let mut cap = Capture::new(&dir.path("w.pcapng"), &["tap"]);
    let mut random = Random(99);
    let (me, you) = ([10, 0, 0, 1], [10, 0, 0, 2]);
    let start = u32::MAX - 400 * MSS;
    let (mut seq, mut ident, mut packet) = (start, 1u16, 0u64);
    let data = |seq: u32, ident: u16, len: u32| {
        let rest = tcp(5001, 40000, seq, 7, 0x10);
        ether(CLIENT, R0, 0x800, &ipv4(me, you, ident, 6, 64, 20 + len as usize, &rest))
    };
    let send = |log: &mut LogWriter, packet: u64, at: i64, header: &[u8], len: u32, segs: u16| {
        let a = At { cpu: 0, ctx: Context::Task, pid: 500, packet };
        log.call(a, "__tcp_transmit_skb", at - 5_000, at + 9_000);
        log.call(a, "__ip_queue_xmit", at - 4_000, at + 8_000);
        log.print(a, at - 1_000, 2, header, len + 54, if segs > 1 { (MSS as u16, segs) } else { (0, 0) });
        log.call(a, "dev_hard_start_xmit", at, at + 3_000);
        log.free(At { ctx: Context::Softirq, ..a }, at + 3_000_000);
    };
    for i in 0..200i64 {
        let at = 10 * SEC + i * 5_000_000;
        let segs = 1 + random.below(20) as u32;
        packet += 1;
        let gso_packet = packet;
        // The IP length of a packet for segmentation is that of the whole.
        let header = data(seq, ident, segs * MSS);
        send(&mut log, packet, at, &header, segs * MSS, segs as u16);
        let mut wire = at + 5_000 + random.below(20_000);
        for k in 0..segs {
            let frame = data(seq.wrapping_add(k * MSS), ident.wrapping_add(k as u16), MSS);
            cap.frame(clock.wall(wire), 0, frame, MSS + 54, gso_packet);
            wire += 12_000;
        }
        if i % 10 == 3 {
            // Lost beyond the sniffer; sent again 40 ms later as a packet of its own.
            packet += 1;
            let k = random.below(i64::from(segs)) as u32;
            let again = data(seq.wrapping_add(k * MSS), ident.wrapping_add(500), MSS);
            let when = at + 42_000_000;
            send(&mut log, packet, when, &again, MSS, 1);
            cap.frame(clock.wall(when + 9_000 + random.below(9_000)), 0, again, MSS + 54, packet);
        }
        seq = seq.wrapping_add(segs * MSS);
        ident = ident.wrapping_add(segs as u16);
        // The answer: a pure acknowledgement, received and freed.
        packet += 1;
        let ack = ether(
            R0,
            CLIENT,
            0x800,
            &ipv4(you, me, i as u16 | 0x8000, 6, 64, 20, &tcp(40000, 5001, 7, seq, 0x10)),
        );
        let back = wire + 200_000;
        cap.frame(clock.wall(back), 0, ack.clone(), 54, packet);
        let a = soft(0, packet);
        let known = back + 10_000 + random.below(50_000);
        log.print(a, known + 200, 2, &ack, 54, (0, 0));
        log.call(a, "tcp_v4_rcv", known + 2_000, known + 4_000);
        log.call(a, "napi_gro_receive", known, known + 5_000);
        log.free(a, known + 4_500);
    }
    assert!(seq < start, "the sequence space wraps");
    log.close();
    let truth = cap.close();
    let (report, out) = run(&dir, &["w.pcapng"]);
    let score = score(&out, &[truth]);
    println!("tcp: precision {:.4} recall {:.4} of {} frames", score.precision, score.recall, score.frames);
    assert!(score.precision >= 0.995 && score.recall >= 0.995);
    assert_clock(&report, clock);
    let detail = Store::open(&out).unwrap().packet(1).unwrap();
    assert_eq!(detail.packet.verdict, verdict::SENT);
    assert_eq!(detail.packet.pid, Some(500));
    let offsets: Vec<_> = detail.frames.iter().map(|f| f.association.seq_offset.unwrap()).collect();
    assert_eq!(offsets, (0..offsets.len() as i64).map(|k| k * i64::from(MSS)).collect::<Vec<_>>());
}

/// The same ping over and over: no identification, one id and sequence. Order and time must tell them apart, and where
/// they cannot, that must be reported.
#[test]
fn identical_keys() {
    let dir = Dir::new("same");
    let anchor =
        ClockAnchor { boot: BootNs(9 * SEC), wall: WallNs(1_700_000_009 * SEC), uncertainty_ns: 1000 };
    let clock = Clock { offset: 1_700_000_000 * SEC - 300_000_000, drift: 5e-6 };
    let mut log =
        LogWriter::create(&dir.path("x.kbl"), FUNCTIONS, &[(2, "eth0", R0), (3, "eth1", R1)], anchor);
    let mut cap = Capture::new(&dir.path("w.pcapng"), &["tap"]);
    let mut random = Random(3);
    let body = icmp(8, 1, 1, 0x1111);
    let (c, s) = ([10, 0, 0, 2], [10, 9, 0, 7]);
    let before = ether(R0, CLIENT, 0x800, &ipv4(c, s, 0, 1, 64, 8, &body));
    let after = ether(SERVER, R1, 0x800, &ipv4(c, s, 0, 1, 63, 8, &body));
    let mut packet = 0;
    for i in 0..2000i64 {
        let at = 10 * SEC + i * 500_000;
        packet += 1;
        // Every seventh was not captured: the order alone would go wrong.
        if i % 7 != 0 {
            cap.frame(clock.wall(at), 0, before.clone(), 42, packet);
        }
        forward(&mut log, 0, packet, at + 20_000 + random.below(60_000), (2, &before), (3, &after));
        // A little traffic that is unmistakable, both ways.
        if i % 20 == 0 {
            let other =
                ether(R0, CLIENT, 0x800, &ipv4(c, s, i as u16 + 1, 17, 64, 108, &udp(1000, 2000, 100)));
            packet += 1;
            cap.frame(clock.wall(at + 200_000), 0, other.clone(), 142, packet);
            let known = at + 215_000 + random.below(20_000);
            let a = soft(1, packet);
            log.print(a, known, 2, &other, 142, (0, 0));
            log.call(a, "napi_gro_receive", known, known + 5_000);
            packet += 1;
            let back =
                ether(CLIENT, R0, 0x800, &ipv4(s, c, i as u16 + 1, 17, 64, 108, &udp(2000, 1000, 100)));
            let a = At { ctx: Context::Task, pid: 9, ..soft(1, packet) };
            log.print(a, at + 300_000, 2, &back, 142, (0, 0));
            log.call(a, "dev_hard_start_xmit", at + 300_000, at + 303_000);
            cap.frame(clock.wall(at + 306_000 + random.below(20_000)), 0, back, 142, packet);
        }
    }
    // Two at once: nobody can know.
    let at = 12 * SEC;
    for _ in 0..2 {
        packet += 1;
        cap.frame(clock.wall(at), 0, before.clone(), 42, 0);
        forward(&mut log, 0, packet, at + 30_000, (2, &before), (3, &after));
    }
    log.close();
    let truth = cap.close();
    let total = truth.len() as i64;
    let (report, out) = run(&dir, &["w.pcapng"]);
    let score = score(&out, std::slice::from_ref(&truth));
    println!("same: precision {:.4} recall {:.4} of {} frames", score.precision, score.recall, score.frames);
    assert!(score.precision >= 0.999 && score.recall >= 0.999);
    assert_clock(&report, clock);
    let rows: Vec<AssociationRow> = kpat_store::TableFile::open(&out, &ASSOCIATION).unwrap().all().unwrap();
    for r in rows.iter().filter(|r| r.number > total - 2) {
        assert!(r.confidence <= 50 && r.alternatives >= 1, "two at once cannot be sure: {r:?}");
    }
}

/// The sniffer is on the DUT: its times lie within the packets' lives, and the bound says so.
#[test]
fn captured_on_the_dut_itself() {
    let dir = Dir::new("local");
    let clock = Clock { offset: 1_700_000_000 * SEC, drift: 0.0 };
    let anchor =
        ClockAnchor { boot: BootNs(9 * SEC), wall: WallNs(clock.wall(9 * SEC)), uncertainty_ns: 500 };
    let mut log =
        LogWriter::create(&dir.path("x.kbl"), FUNCTIONS, &[(2, "eth0", R0), (3, "eth1", R1)], anchor);
    let mut cap = Capture::new(&dir.path("w.pcapng"), &["eth0", "eth1"]);
    let mut random = Random(5);
    let (c, s) = ([10, 0, 0, 2], [10, 9, 0, 7]);
    for i in 0..200i64 {
        let at = 10 * SEC + i * 1_000_000;
        let packet = i as u64 + 1;
        let body = udp(1000, 2000, 100);
        let before = ether(R0, CLIENT, 0x800, &ipv4(c, s, i as u16 + 1, 17, 64, 108, &body));
        let after = ether(SERVER, R1, 0x800, &ipv4(c, s, i as u16 + 1, 17, 63, 108, &body));
        let given = forward(&mut log, 0, packet, at, (2, &before), (3, &after));
        // The kernel stamps what comes in before __netif_receive_skb_core.
        cap.frame(clock.wall(at + 150 + random.below(300)), 0, before, 142, packet);
        cap.frame(clock.wall(given + 500 + random.below(500)), 1, after, 142, packet);
    }
    log.close();
    let truth = cap.close();
    let (report, out) = run(&dir, &["w.pcapng"]);
    let score = score(&out, &[truth]);
    println!("local: precision {:.4} recall {:.4} of {} frames", score.precision, score.recall, score.frames);
    assert!(score.precision >= 0.999 && score.recall >= 0.999);
    assert_eq!(report.clocks[0].method, clock_method::ON_DUT);
    assert_clock(&report, clock);
}

/// Client, router and server are namespaces of one kernel: one packet goes through all of them, and the sniffer sits on
/// the router's devices. Nothing outside says which way a frame went; its packet is known all the same.
#[test]
fn namespaces_of_one_kernel() {
    let dir = Dir::new("netns");
    let clock = Clock { offset: 1_700_000_000 * SEC, drift: 3e-6 };
    let anchor =
        |boot: i64| ClockAnchor { boot: BootNs(boot), wall: WallNs(clock.wall(boot)), uncertainty_ns: 800 };
    let devices = [(2, "eth0", CLIENT), (2, "veth0", R0), (3, "veth1", R1), (2, "eth0", SERVER)];
    let mut log = LogWriter::create(&dir.path("x.kbl"), FUNCTIONS, &devices, anchor(9 * SEC));
    let mut cap = Capture::new(&dir.path("w.pcapng"), &["veth0", "veth1"]);
    let (c, s) = ([10, 0, 0, 2], [10, 9, 0, 7]);
    for i in 0..300i64 {
        let at = 10 * SEC + i * 10_000_000;
        let packet = i as u64 + 1;
        let body = udp(1000, 2000, 100);
        let before = ether(R0, CLIENT, 0x800, &ipv4(c, s, i as u16 + 1, 17, 64, 108, &body));
        let after = ether(SERVER, R1, 0x800, &ipv4(c, s, i as u16 + 1, 17, 63, 108, &body));
        let task = At { cpu: 0, ctx: Context::Task, pid: 9, packet };
        log.print(task, at + 500, 2, &before, 142, (0, 0));
        log.call(task, "__ip_queue_xmit", at, at + 9_000);
        log.call(task, "dev_hard_start_xmit", at + 1_000, at + 8_000);
        forward(&mut log, 0, packet, at + 10_000, (2, &before), (3, &after));
        cap.frame(clock.wall(at + 6_000), 0, before, 142, packet);
        cap.frame(clock.wall(at + 26_000), 1, after, 142, packet);
        log.call(soft(0, packet), "__netif_receive_skb_core", at + 40_000, at + 50_000);
        log.call(soft(0, packet), "tcp_queue_rcv", at + 43_000, at + 45_000);
    }
    log.close();
    let truth = cap.close();
    let (report, out) = run(&dir, &["w.pcapng"]);
    let score = score(&out, &[truth]);
    println!("netns: precision {:.4} recall {:.4} of {} frames", score.precision, score.recall, score.frames);
    assert!(score.precision >= 0.999 && score.recall >= 0.999);
    // Each frame was between the two ends of its link, whatever the sniffer's clock: this one drifts, so it is not the kernel's own.
    assert_eq!(report.clocks[0].method, clock_method::HULL);
    assert_clock(&report, clock);
    assert!(report.clocks[0].bound_ns < 100_000);
    assert_eq!(Store::open(&out).unwrap().packet(1).unwrap().packet.verdict, verdict::DELIVERED);
}

/// Where only the queue's edge is in the log, a packet may wait behind it for longer than frames are looked for: it left before it was
/// freed. One that was dropped there is looked for no longer than before, though frames with its headers come.
#[test]
fn what_waits_in_a_queue_for_seconds() {
    let dir = Dir::new("waits");
    let clock = Clock { offset: 1_700_000_000 * SEC, drift: 3e-6 };
    let anchor =
        ClockAnchor { boot: BootNs(9 * SEC), wall: WallNs(clock.wall(9 * SEC)), uncertainty_ns: 800 };
    let mut log =
        LogWriter::create(&dir.path("x.kbl"), FUNCTIONS, &[(2, "eth0", R0), (3, "eth1", R1)], anchor);
    let mut cap = Capture::new(&dir.path("w.pcapng"), &["tap"]);
    let mut random = Random(21);
    let (c, s) = ([10, 0, 0, 2], [10, 9, 0, 7]);
    let frame = |i: i64, there: bool| match there {
        true => ether(R0, CLIENT, 0x800, &ipv4(c, s, i as u16 + 1, 17, 64, 108, &udp(1000, 2000, 100))),
        false => ether(CLIENT, R0, 0x800, &ipv4(s, c, i as u16 + 1, 17, 64, 108, &udp(2000, 1000, 100))),
    };
    for i in 0..400i64 {
        let at = 10 * SEC + i * 10_000_000;
        // Received, so that the clocks are known ...
        let (packet, here) = (2 * i as u64 + 1, frame(i, true));
        cap.frame(clock.wall(at), 0, here.clone(), 142, packet);
        log.print(soft(0, packet), at + 12_000, 2, &here, 142, (0, 0));
        log.call(soft(0, packet), "napi_gro_receive", at + 12_000, at + 14_000);
        log.free(soft(0, packet), at + 20_000);
        // ... and put into a queue: of 0 to 8 seconds, and freed when the card has sent it.
        let (packet, back) = (packet + 1, frame(i, false));
        let a = At { ctx: Context::Task, pid: 9, ..soft(1, packet) };
        log.print(a, at + 300, 2, &back, 142, (0, 0));
        log.call(a, "__dev_queue_xmit", at + 300, at + 900);
        let sent = at + 1_000_000 + i * 20_000_000 + random.below(1_000_000);
        let dropped = i % 10 == 7;
        if dropped {
            log.event(soft(1, packet), sent, EventKind::Drop, 2);
        }
        cap.frame(clock.wall(sent), 0, back, 142, if dropped { 0 } else { packet });
        log.free(soft(1, packet), sent + 30_000 + random.below(3_000_000));
    }
    log.close();
    let truth = cap.close();
    let (report, out) = run(&dir, &["w.pcapng"]);
    let score = score(&out, &[truth]);
    println!("waits: precision {:.4} recall {:.4} of {} frames", score.precision, score.recall, score.frames);
    assert!(score.precision >= 0.99 && score.recall >= 0.999);
    assert_clock(&report, clock);
}

/// A stream whose packets all look alike, faster than the clock is known: order is all there is, and the work must not
/// grow with the square.
#[test]
fn a_stream_of_equals() {
    let dir = Dir::new("equals");
    let anchor =
        ClockAnchor { boot: BootNs(9 * SEC), wall: WallNs(1_700_000_009 * SEC), uncertainty_ns: 1000 };
    let clock = Clock { offset: 1_700_000_000 * SEC + 5_000_000, drift: 5e-6 };
    let mut log =
        LogWriter::create(&dir.path("x.kbl"), FUNCTIONS, &[(2, "eth0", R0), (3, "eth1", R1)], anchor);
    let mut cap = Capture::new(&dir.path("w.pcapng"), &["tap"]);
    let mut random = Random(8);
    let (c, s) = ([10, 0, 0, 2], [10, 9, 0, 7]);
    let same = ether(R0, CLIENT, 0x800, &ipv4(c, s, 0, 17, 64, 108, &udp(5, 6, 100)));
    let mut packet = 0;
    for i in 0..60_000i64 {
        let at = 10 * SEC + i * 20_000;
        packet += 1;
        let a = soft(0, packet);
        cap.frame(clock.wall(at), 0, same.clone(), 142, packet);
        let known = at + 9_000 + random.below(8_000);
        log.print(a, known, 2, &same, 142, (0, 0));
        log.call(a, "napi_gro_receive", known, known + 2_000);
        log.free(a, known + 2_500);
        if i % 500 == 0 {
            packet += 1;
            let back =
                ether(CLIENT, R0, 0x800, &ipv4(s, c, i as u16 + 1, 17, 64, 108, &udp(2000, 1000, 100)));
            let a = At { ctx: Context::Task, pid: 9, ..soft(1, packet) };
            log.print(a, at + 300, 2, &back, 142, (0, 0));
            log.call(a, "dev_hard_start_xmit", at + 300, at + 3_300);
            cap.frame(clock.wall(at + 5_300), 0, back, 142, packet);
            packet += 1;
            let there =
                ether(R0, CLIENT, 0x800, &ipv4(c, s, i as u16 + 1, 17, 64, 108, &udp(1000, 2000, 100)));
            let a = soft(1, packet);
            cap.frame(clock.wall(at + 400), 0, there.clone(), 142, packet);
            log.print(a, at + 8_400, 2, &there, 142, (0, 0));
            log.call(a, "napi_gro_receive", at + 8_400, at + 9_300);
        }
    }
    log.close();
    let truth = cap.close();
    let started = std::time::Instant::now();
    let (report, out) = run(&dir, &["w.pcapng"]);
    let score = score(&out, &[truth]);
    println!(
        "equals: precision {:.4} recall {:.4} of {} frames, {} ambiguous, {:?}",
        score.precision,
        score.recall,
        score.frames,
        report.ambiguous,
        started.elapsed()
    );
    assert!(score.precision >= 0.99 && score.recall >= 0.95);
    assert_clock(&report, clock);
}

/// Receive offload: many frames, one packet. Either the packet is first known when it is whole, or it grows.
#[test]
fn tcp_receive_offload() {
    const MSS: u32 = 1448;
    let dir = Dir::new("gro");
    let anchor =
        ClockAnchor { boot: BootNs(9 * SEC), wall: WallNs(1_700_000_009 * SEC), uncertainty_ns: 1000 };
    let clock = Clock { offset: 1_700_000_000 * SEC - 90_000_000, drift: -20e-6 };
    let mut log = LogWriter::create(&dir.path("x.kbl"), FUNCTIONS, &[(2, "eth0", R0)], anchor);
    let mut cap = Capture::new(&dir.path("w.pcapng"), &["tap"]);
    let mut random = Random(17);
    let (me, you) = ([10, 0, 0, 1], [10, 0, 0, 2]);
    let data = |seq: u32, ident: u16, len: u32| {
        ether(
            R0,
            CLIENT,
            0x800,
            &ipv4(you, me, ident, 6, 64, 20 + len as usize, &tcp(40000, 5001, seq, 7, 0x10)),
        )
    };
    let (mut seq, mut ident, mut packet) = (1000u32, 1u16, 0u64);
    for i in 0..300i64 {
        let at = 10 * SEC + i * 3_000_000;
        let segs = 1 + random.below(15) as u32;
        packet += 1;
        for k in 0..segs {
            let when = clock.wall(at + i64::from(k) * 12_000);
            cap.frame(when, 0, data(seq + k * MSS, ident + k as u16, MSS), MSS + 54, packet);
        }
        let whole = at + i64::from(segs) * 12_000 + 15_000 + random.below(30_000);
        let a = soft(0, packet);
        let len = segs * MSS;
        let gso = if segs > 1 { (MSS as u16, segs as u16) } else { (0, 0) };
        if i % 2 == 0 {
            let first = at + 12_000;
            log.print(a, first, 2, &data(seq, ident, MSS), MSS + 54, (0, 0));
            log.call(a, "napi_gro_receive", first, first + 500);
        }
        log.print(a, whole, 2, &data(seq, ident, len), len + 54, gso);
        log.call(a, "tcp_queue_rcv", whole + 500, whole + 700);
        log.call(a, "tcp_v4_rcv", whole + 300, whole + 900);
        log.free(a, whole + 90_000);
        seq += len;
        ident += segs as u16;
        // The acknowledgement, sent.
        packet += 1;
        let ack = ether(
            CLIENT,
            R0,
            0x800,
            &ipv4(me, you, i as u16 | 0x8000, 6, 64, 20, &tcp(5001, 40000, 7, seq, 0x10)),
        );
        let a = soft(0, packet);
        log.print(a, whole + 2_000, 2, &ack, 54, (0, 0));
        log.call(a, "__tcp_transmit_skb", whole + 1_000, whole + 8_000);
        log.call(a, "dev_hard_start_xmit", whole + 3_000, whole + 6_000);
        log.free(a, whole + 80_000);
        cap.frame(clock.wall(whole + 8_000 + random.below(20_000)), 0, ack, 54, packet);
    }
    log.close();
    let truth = cap.close();
    let (report, out) = run(&dir, &["w.pcapng"]);
    let score = score(&out, &[truth]);
    println!("gro: precision {:.4} recall {:.4} of {} frames", score.precision, score.recall, score.frames);
    assert!(score.precision >= 0.995 && score.recall >= 0.995);
    assert_clock(&report, clock);
}
