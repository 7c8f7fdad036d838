//! Packets whose phases are known from outside: what is cut must be what was made.

use crate::known;
use crate::world;

use kpat_model::meta::{ClockAnchor, Cost};
use kpat_model::*;
use kpat_query::phases::{Boundaries, Passage, Phase, PhaseReport, Segment, phases, way};
use kpat_query::{PacketFilter, PacketSort, Store};
use kpat_store::tables::{DEVICE, DeviceRow};
use kpat_store::{TableFile, TableWriter};
use std::collections::BTreeMap;
use world::*;

const SEC: i64 = 1_000_000_000;
const FUNCTIONS: &[&str] = &[
    "napi_gro_receive",
    "netif_receive_skb_list_internal",
    "__netif_receive_skb_core",
    "tpacket_rcv",
    "consume_skb",
    "ip_rcv",
    "ip_forward",
    "ip_local_deliver",
    "ip_output",
    "ip_send_skb",
    "neigh_resolve_output",
    "__neigh_event_send",
    "__dev_queue_xmit",
    "dev_qdisc_enqueue",
    "sch_direct_xmit",
    "dev_hard_start_xmit",
    "e1000_xmit_frame",
    "veth_xmit",
    "enqueue_to_backlog",
    "process_backlog",
    "napi_consume_skb",
    "udp_rcv",
    "__udp_enqueue_schedule_skb",
    "skb_copy_datagram_iter",
    "skb_consume_udp",
    "some_function",
];

fn log(dir: &Dir, functions: &[&'static str]) -> LogWriter {
    LogWriter::create(&dir.path("x.kbl"), functions, &[], ClockAnchor::default())
}

fn open(dir: &Dir) -> Store {
    known::open(dir, "x", &|_| "link", Cost::default())
}

fn report(store: &Store) -> PhaseReport {
    phases(store, &PacketFilter::default(), &Boundaries::default(), &mut |_, _| true, &mut |_| ()).unwrap()
}

fn soft(cpu: u16, packet: u64) -> At {
    At { cpu, ctx: Context::Softirq, pid: 0, packet }
}

fn named(segments: &[Segment]) -> Vec<(&'static str, u32, i64)> {
    segments.iter().map(|s| (s.phase.name(), s.hop, s.dur_ns())).collect()
}

/// Forwarded over cards, each phase of a length that is drawn and kept.
#[test]
fn a_forwarded_packet_is_cut_where_it_was_made() {
    let dir = Dir::new("phases-forwarded");
    let mut log = log(&dir, FUNCTIONS);
    let mut random = Random(3);
    let mut truth: BTreeMap<Phase, i64> = BTreeMap::new();
    let (mut own_rcv, mut own_xmit) = (0, 0);
    for n in 0..200u64 {
        let t = SEC + n as i64 * 1_000_000;
        let mut draw = |phase: Phase, most: i64| {
            let ns = 100 + random.below(most);
            *truth.entry(phase).or_default() += ns;
            ns
        };
        let link_rx = draw(Phase::LinkRx, 9_000);
        let net_rx = draw(Phase::NetworkRx, 8_000);
        let net_tx = draw(Phase::NetworkTx, 7_000);
        let link_tx = draw(Phase::LinkTx, 6_000);
        let dma_tx = draw(Phase::DmaTx, 90_000);
        let freeing = draw(Phase::Freeing, 900);
        let (rcv, out, queue) = (t + link_rx, t + link_rx + net_rx, t + link_rx + net_rx + net_tx);
        let sent = queue + link_tx;
        let at = soft(0, n + 1);
        // A sniffer's clone is freed on the way: not the end of the packet.
        log.call(at, "consume_skb", t + 30, t + 40);
        log.call(at, "tpacket_rcv", t + 20, t + 50);
        log.call(at, "e1000_xmit_frame", queue + 50, sent);
        log.call(at, "__dev_queue_xmit", queue, sent + 10);
        log.call(at, "ip_output", out, sent + 20);
        log.call(at, "ip_rcv", rcv, sent + 30);
        log.call(at, "napi_gro_receive", t, sent + 60);
        own_rcv += net_rx;
        own_xmit += link_tx - 50;
        log.call(soft(1, n + 1), "napi_consume_skb", sent + dma_tx, sent + dma_tx + freeing);
    }
    log.close();
    let store = open(&dir);
    let r = report(&store);
    assert_eq!((r.packets, r.open_sums, r.passages.len()), (200, 0, 1));
    let p = &r.passages[0];
    assert_eq!((p.passage, p.count), (Passage::Forwarded, 200));
    let found: BTreeMap<Phase, i64> = p.phases.iter().map(|f| (f.phase, f.time.sum())).collect();
    assert_eq!(found, truth);
    let shares: f64 = p.phases.iter().map(|f| f.share).sum();
    assert!((shares - 1.0).abs() < 1e-9);
    let own = |phase: Phase, name: &str| {
        let f = p.phases.iter().find(|f| f.phase == phase).unwrap();
        f.functions.iter().find(|g| g.name == name).map_or(0, |g| g.self_ns)
    };
    assert_eq!(
        (own(Phase::NetworkRx, "ip_rcv"), own(Phase::LinkTx, "e1000_xmit_frame")),
        (own_rcv, own_xmit)
    );
    assert_eq!(own(Phase::LinkRx, "tpacket_rcv"), 200 * 20);
    assert_eq!(own(Phase::LinkRx, "consume_skb"), 200 * 10);
    // Within a phase, functions and what none of them has make up the phase.
    for f in p.phases.iter().filter(|f| f.phase.is_work()) {
        let functions: i64 = f.functions.iter().map(|g| g.self_ns).sum();
        assert_eq!(functions + f.uncovered_ns, f.time.sum(), "{:?}", f.phase);
    }
    assert!(r.missing.iter().any(|m| m.phase == Phase::DmaRx));
    assert!(r.missing.iter().all(|m| m.phase != Phase::DmaTx));
}

/// Sent, forwarded and delivered over virtual pairs: one packet, three passages, waits in between.
#[test]
fn a_packet_over_virtual_devices_passes_three_times() {
    let dir = Dir::new("phases-veth");
    let mut log = log(&dir, FUNCTIONS);
    let t = SEC;
    let task = At { cpu: 0, ctx: Context::Task, pid: 9, packet: 1 };
    // Sent by a task: 400 network tx, 600 link tx until it lies in the backlog.
    log.call(task, "enqueue_to_backlog", t + 900, t + 1_000);
    log.call(task, "veth_xmit", t + 800, t + 1_100);
    log.call(task, "dev_hard_start_xmit", t + 700, t + 1_200);
    log.call(task, "__dev_queue_xmit", t + 400, t + 1_300);
    log.call(task, "ip_send_skb", t, t + 1_400);
    // 2000 in the backlog; forwarded: 100, 300, 500, 700.
    let at = soft(0, 1);
    log.call(at, "enqueue_to_backlog", t + 4_500, t + 4_600);
    log.call(at, "veth_xmit", t + 4_400, t + 4_700);
    log.call(at, "__dev_queue_xmit", t + 3_900, t + 4_800);
    log.call(at, "ip_output", t + 3_400, t + 4_900);
    log.call(at, "ip_rcv", t + 3_100, t + 4_950);
    log.call(at, "__netif_receive_skb_core", t + 3_000, t + 5_000);
    // 900 in the backlog; delivered, then 40 us in the socket's queue until the reader comes.
    log.call(at, "__udp_enqueue_schedule_skb", t + 6_000, t + 6_200);
    log.call(at, "udp_rcv", t + 5_800, t + 6_300);
    log.call(at, "ip_rcv", t + 5_600, t + 6_400);
    log.call(at, "__netif_receive_skb_core", t + 5_500, t + 6_500);
    log.call(At { pid: 10, ..task }, "skb_copy_datagram_iter", t + 46_200, t + 47_200);
    log.call(At { pid: 10, ..task }, "skb_consume_udp", t + 47_300, t + 47_400);
    log.close();
    let store = open(&dir);
    let w = way(&store, 1, &Boundaries::default()).unwrap();
    assert_eq!(w.passages, [Passage::Sent, Passage::Forwarded, Passage::Delivered]);
    assert_eq!(
        named(&w.segments),
        [
            ("network-tx", 0, 400),
            ("link-tx", 0, 600),
            ("backlog", 1, 2_000),
            ("link-rx", 1, 100),
            ("network-rx", 1, 300),
            ("network-tx", 1, 500),
            ("link-tx", 1, 700),
            ("backlog", 2, 900),
            ("link-rx", 2, 100),
            ("network-rx", 2, 200),
            ("transport-rx", 2, 200),
            ("socket-rx", 2, 200),
            ("socket-queue", 2, 40_000),
            ("copy-to-user", 2, 1_000),
            ("held", 2, 100),
            ("freeing", 2, 100),
        ]
    );
    // Without a card there is no DMA, and that is reported.
    let r = report(&store);
    let dma = r.missing.iter().find(|m| m.phase == Phase::DmaTx).unwrap();
    assert!(dma.why.contains("virtual"), "{}", dma.why);
}

/// In a queueing discipline; and put away for want of a neighbour's address, in a softirq that cut into a task that
/// still runs.
#[test]
fn queues_on_the_way_out() {
    let dir = Dir::new("phases-queues");
    let mut log = log(&dir, FUNCTIONS);
    let t = SEC;
    let at = soft(0, 1);
    log.call(at, "dev_qdisc_enqueue", t + 300, t + 400);
    log.call(at, "__dev_queue_xmit", t + 200, t + 500);
    log.call(at, "ip_output", t, t + 600);
    log.call(at, "e1000_xmit_frame", t + 9_200, t + 9_300);
    log.call(at, "sch_direct_xmit", t + 9_000, t + 9_400);
    log.call(at, "napi_consume_skb", t + 20_000, t + 20_100);
    let at = soft(0, 2);
    log.call(at, "__neigh_event_send", t + 30_200, t + 30_300);
    log.call(at, "neigh_resolve_output", t + 30_100, t + 30_400);
    log.call(at, "ip_output", t + 30_000, t + 30_500);
    log.call(at, "neigh_resolve_output", t + 40_000, t + 41_000);
    log.call(at, "__dev_queue_xmit", t + 40_200, t + 40_900);
    log.call(At { cpu: 0, ctx: Context::Task, pid: 5, packet: 2 }, "some_function", t + 29_000, t + 50_000);
    // Asked for, but it was known: no wait.
    let at = soft(0, 3);
    log.call(at, "__neigh_event_send", t + 60_200, t + 60_300);
    log.call(at, "__dev_queue_xmit", t + 60_400, t + 60_500);
    log.call(at, "neigh_resolve_output", t + 60_100, t + 60_600);
    log.close();
    let store = open(&dir);
    let of = |packet| named(&way(&store, packet, &Boundaries::default()).unwrap().segments);
    assert_eq!(
        of(1),
        [
            ("network-tx", 0, 200),
            ("link-tx", 0, 200),
            ("qdisc", 0, 8_600),
            ("link-tx", 0, 300),
            ("dma-tx", 0, 10_700),
            ("freeing", 0, 100)
        ]
    );
    let neighbour: Vec<_> = of(2).into_iter().filter(|s| s.0 == "neighbour").collect();
    assert_eq!(neighbour, [("neighbour", 0, 9_700)]);
    assert!(of(3).iter().all(|s| s.0 != "neighbour"), "{:?}", of(3));
}

#[test]
fn tracepoints_alone_tell_what_they_can() {
    let dir = Dir::new("phases-points");
    let points = &[
        "net:net_dev_queue",
        "net:net_dev_start_xmit",
        "net:netif_rx_entry",
        "net:netif_rx",
        "net:net_dev_xmit",
        "net:netif_receive_skb",
        "skb:consume_skb",
        "tcp:tcp_probe",
        "skb:skb_copy_datagram_iovec",
    ];
    let mut log = log(&dir, points);
    let t = SEC;
    let at = soft(0, 1);
    for (name, when) in [
        ("net:netif_receive_skb", 0),
        ("net:net_dev_queue", 700),
        ("net:net_dev_start_xmit", 800),
        ("net:netif_rx_entry", 850),
        ("net:netif_rx", 1_000),
        ("net:net_dev_xmit", 1_100),
        ("net:netif_receive_skb", 3_000),
        ("skb:consume_skb", 3_500),
    ] {
        known::point(&mut log, at, name, t + when);
    }
    // Over a card: started, sent, and freed when the card had it.
    for (name, when) in [
        ("net:netif_receive_skb", 10_000),
        ("net:net_dev_queue", 10_300),
        ("net:net_dev_start_xmit", 10_400),
        ("net:net_dev_xmit", 10_900),
        ("skb:consume_skb", 15_900),
    ] {
        known::point(&mut log, soft(1, 2), name, t + when);
    }
    // Read in two parts, by a task that was interrupted and one that came later. What a task receives itself does not wait.
    let task = |packet| At { cpu: 0, ctx: Context::Task, pid: 7, packet };
    known::point(&mut log, soft(0, 3), "net:netif_receive_skb", t + 20_000);
    known::point(&mut log, soft(0, 3), "tcp:tcp_probe", t + 20_400);
    known::point(&mut log, task(3), "skb:skb_copy_datagram_iovec", t + 28_400);
    known::point(&mut log, task(3), "skb:skb_copy_datagram_iovec", t + 29_000);
    known::point(&mut log, soft(0, 4), "net:netif_receive_skb", t + 30_000);
    known::point(&mut log, task(4), "tcp:tcp_probe", t + 30_400);
    known::point(&mut log, task(4), "skb:skb_copy_datagram_iovec", t + 30_500);
    log.close();
    let store = open(&dir);
    let of = |packet| named(&way(&store, packet, &Boundaries::default()).unwrap().segments);
    assert_eq!(of(3), [("above-link", 0, 400), ("socket-queue", 0, 8_000), ("held", 0, 600)]);
    assert_eq!(of(4), [("above-link", 0, 500)]);
    assert_eq!(
        of(1),
        [("above-link", 0, 700), ("link-tx", 0, 300), ("backlog", 1, 2_000), ("above-link", 1, 500)]
    );
    assert_eq!(of(2), [("above-link", 0, 300), ("link-tx", 0, 600), ("dma-tx", 0, 5_000)]);
    let r = report(&store);
    assert!(r.points_only);
    let missing: Vec<Phase> = r.missing.iter().map(|m| m.phase).collect();
    assert!(missing.contains(&Phase::NetworkRx) && missing.contains(&Phase::NetworkTx), "{missing:?}");
    let why = &r.missing.iter().find(|m| m.phase == Phase::NetworkRx).unwrap().why;
    assert!(why.contains("ip_rcv"), "{why}");
}

/// Whatever the calls of a packet are, its segments have neither gap nor overlap.
#[test]
fn segments_always_make_up_the_path() {
    let dir = Dir::new("phases-random");
    let mut log = log(&dir, FUNCTIONS);
    let mut random = Random(11);
    for packet in 1..=800u64 {
        let t = SEC + packet as i64 * 100_000;
        for _ in 0..1 + random.below(25) {
            let ctx = [Context::Task, Context::Softirq, Context::Hardirq][random.below(3) as usize];
            let at = At { cpu: random.below(3) as u16, ctx, pid: random.below(3) as u32, packet };
            let from = t + random.below(90_000);
            let name = FUNCTIONS[random.below(FUNCTIONS.len() as i64) as usize];
            log.call(
                at,
                name,
                from,
                from + [0, random.below(50), random.below(40_000)][random.below(3) as usize],
            );
        }
    }
    log.close();
    let store = open(&dir);
    let r = report(&store);
    assert_eq!((r.packets, r.open_sums), (800, 0));
    let mut seen = std::collections::BTreeSet::new();
    for p in store
        .packets(&PacketFilter::default(), PacketSort::Time, false, 0)
        .unwrap()
        .rows
        .into_iter()
        .step_by(4)
    {
        let w = way(&store, p.packet_id, &Boundaries::default()).unwrap();
        let mut at = p.first_ns;
        let mut hop = 0;
        for s in &w.segments {
            assert_eq!(s.from_ns, at);
            assert!(s.to_ns > s.from_ns && s.hop >= hop && s.hop as usize <= w.passages.len());
            (at, hop) = (s.to_ns, s.hop);
            seen.insert(s.phase);
        }
        assert_eq!(at, p.last_ns);
    }
    // Not by never cutting.
    assert!(seen.len() > 12, "{seen:?}");
}

#[test]
fn a_users_boundaries_go_first() {
    let dir = Dir::new("phases-own");
    let mut log = log(&dir, FUNCTIONS);
    let t = SEC;
    log.call(soft(0, 1), "ip_forward", t + 300, t + 900);
    log.call(soft(0, 1), "ip_rcv", t + 100, t + 1_000);
    log.call(soft(0, 1), "__netif_receive_skb_core", t, t + 1_100);
    log.close();
    let store = open(&dir);
    let mut own = Boundaries::default();
    own.read("[kernel 6.1 -]\nnetwork-tx entry ip_forward if network-rx\n").unwrap();
    let segments = way(&store, 1, &own).unwrap().segments;
    assert_eq!(named(&segments), [("link-rx", 0, 100), ("network-rx", 0, 200), ("network-tx", 0, 800)]);
    let segments = way(&store, 1, &Boundaries::default()).unwrap().segments;
    assert_eq!(named(&segments), [("link-rx", 0, 100), ("network-rx", 0, 1_000)]);
    assert!(way(&store, 7, &own).is_err());
}

/// A card's poll receives two packets, one of another poll follows some that are not in the log, and an answer is made in the
/// same softirq: what the driver did before each is known from outside.
#[test]
fn the_drivers_work_before_a_packet_is_seen_is_its_link_rx() {
    let dir = Dir::new("phases-driver");
    let mut log = log(&dir, FUNCTIONS);
    let header = |id: u16| {
        ether([2; 6], [4; 6], 0x0800, &ipv4([10, 0, 0, 1], [10, 0, 0, 2], id, 17, 64, 28, &udp(1, 2, 0)))
    };
    let seen = |log: &mut LogWriter, packet: u64, t: i64| {
        let at = soft(0, packet);
        log.print(at, t, 3, &header(packet as u16), 42, (0, 0));
        log.call(at, "udp_rcv", t + 300, t + 700);
        log.call(at, "ip_rcv", t + 200, t + 800);
        log.call(at, "napi_gro_receive", t, t + 900);
    };
    let poll = |log: &mut LogWriter, packet: u64, at: i64, since_ns, wait_ns| {
        let (at, packet) = (BootNs(at), PacketId(packet));
        log.push(0, Record::Poll(Poll { at, packet, since_ns, wait_ns }));
    };
    let t = SEC;
    // Raised at t, begun at t + 2000, seen at t + 2700; then 350 for the next, which gets an answer.
    poll(&mut log, 1, t + 2_700, Some(700), Some(2_000));
    seen(&mut log, 1, t + 2_700);
    seen(&mut log, 2, t + 2_700 + 900 + 350);
    let answer = t + 2_700 + 900 + 350 + 950;
    log.print(soft(0, 3), answer, 0, &header(3), 42, (0, 0));
    log.call(soft(0, 3), "__dev_queue_xmit", answer + 200, answer + 400);
    log.call(soft(0, 3), "ip_send_skb", answer + 10, answer + 500);
    poll(&mut log, 4, t + 90_000, None, None);
    seen(&mut log, 4, t + 90_000);
    log.close();
    let store = open(&dir);
    let before = |id: i64| {
        let row = store.packet(id).unwrap().packet;
        (row.driver_ns, row.softirq_ns)
    };
    assert_eq!(before(1), (Some(700), Some(2_000)));
    assert_eq!(before(2), (Some(350), None));
    assert_eq!(before(3), (None, None), "made here");
    // Behind the unknown one of the next poll nothing is known until a packet of its own is done with.
    assert_eq!(before(4), (None, None));
    let w = way(&store, 1, &Boundaries::default()).unwrap();
    assert_eq!(w.seen_ns, t + 2_700);
    assert_eq!(named(&w.segments)[..3], [("softirq", 0, 2_000), ("link-rx", 0, 700), ("link-rx", 0, 200)]);
    let r = report(&store);
    assert_eq!(r.open_sums, 0);
    let delivered = r.passages.iter().find(|p| p.passage == Passage::Delivered).unwrap();
    let link = delivered.phases.iter().find(|f| f.phase == Phase::LinkRx).unwrap();
    assert_eq!((link.unseen, link.time.count()), ((1_050, 2), 3));
    let functions: i64 = link.functions.iter().map(|g| g.self_ns).sum();
    assert_eq!(functions + link.uncovered_ns + link.unseen.0, link.time.sum());
    let sent = r.passages.iter().find(|p| p.passage == Passage::Sent).unwrap();
    assert!(sent.phases.iter().all(|f| f.phase != Phase::LinkRx));
}

/// A card whose queue is never empty for three softirqs, and polls after which it is: what a batch took is known from outside.
#[test]
fn back_to_back_batches_give_the_time_of_dma_and_others_do_not() {
    const TOOK: [u64; 9] = [4, 4, 4, 2, 1, 4, 4, 1, 3];
    let made = |name: &str, unseen: Option<usize>| {
        let dir = Dir::new(name);
        let cards: &[(u32, &str, Mac)] = &[(3, "eth0", [2; 6])];
        let mut log = LogWriter::create(&dir.path("x.kbl"), FUNCTIONS, cards, ClockAnchor::default());
        let mut packet = 0;
        for (poll, taken) in TOOK.into_iter().enumerate() {
            // The first of them is begun 100 us after the one before it, whatever it took.
            let t = SEC + poll as i64 * 100_000;
            let first = packet + 1;
            for n in 0..taken - u64::from(unseen == Some(poll)) {
                packet += 1;
                let at = soft(0, packet);
                if packet == first {
                    let (at, packet) = (BootNs(t + 2_000), PacketId(packet));
                    let (since_ns, wait_ns) = (Some(2_000), Some(500));
                    log.push(0, Record::Poll(Poll { at, packet, since_ns, wait_ns }));
                }
                let header = ipv4([10, 0, 0, 1], [10, 0, 0, 2], packet as u16, 17, 64, 28, &udp(1, 2, 0));
                let seen = t + 2_000 + n as i64 * 5_000;
                log.print(at, seen, 3, &ether([2; 6], [4; 6], 0x0800, &header), 42, (0, 0));
                log.call(at, "napi_gro_receive", seen, seen + 4_000);
            }
            // Four are the budget. Before the third there was a softirq that had no time left for this card.
            let round = 1 + poll as u64 + u64::from(poll > 1);
            let (at, packet, taken) = (BootNs(t + 50_000), PacketId(first), taken as u32);
            log.push(0, Record::PollEnd(PollEnd { at, packet, taken, budget: 4, round }));
        }
        log.close();
        drop(open(&dir));
        // The made-up world has no drivers.
        let out = dir.path("x.kpat");
        let mut rows: Vec<DeviceRow> = TableFile::open(&out, &DEVICE).unwrap().all().unwrap();
        let mut writer = TableWriter::<DeviceRow>::create(&out).unwrap();
        rows.iter_mut().for_each(|d| d.driver = "e1000e".to_owned());
        rows.iter().for_each(|d| writer.push(d).unwrap());
        writer.finish().unwrap();
        (report(&Store::open(&out).unwrap()), dir)
    };
    let (r, _dir) = made("phases-load", None);
    // Behind each of the first three a batch: of 4, 4 and 2 packets. Behind the sixth two more, of 4 and 1: too few in a row.
    let b = r.cards[0].dma.as_ref().unwrap();
    assert_eq!((r.cards[0].polls, b.runs, b.batches, b.packets), (9, 1, 3, 10));
    assert_eq!((b.mean_ns, b.low_ns, b.high_ns), (30_000.0, 25_000.0, 50_000.0));
    assert!(r.missing.iter().all(|m| m.phase != Phase::DmaRx), "{:?}", r.missing);
    // In no sum.
    assert_eq!(r.open_sums, 0);
    assert!(r.passages.iter().flat_map(|p| &p.phases).all(|f| f.phase != Phase::DmaRx));
    // A packet of the second poll is not in the log: its batch does not count, and three in a row are no more.
    let (r, _dir) = made("phases-load-partly", Some(1));
    assert!(r.cards[0].dma.is_err());
    let why = &r.missing.iter().find(|m| m.phase == Phase::DmaRx).unwrap().why;
    assert_eq!(
        why,
        "eth0: of 5 batches back to back 2 have, or follow others with, packets that are not in the log"
    );
}

/// A copy of the packet is worked on by another CPU at the same time: what a phase consists of is still no more than the phase.
#[test]
fn work_on_two_cpus_at_once_counts_once() {
    let dir = Dir::new("phases-abreast");
    let mut log = log(&dir, FUNCTIONS);
    for n in 0..20u64 {
        let t = SEC + n as i64 * 1_000_000;
        log.call(soft(0, n + 1), "ip_rcv", t, t + 1_000);
        log.call(soft(1, n + 1), "some_function", t + 200, t + 900);
        log.call(soft(1, n + 1), "udp_rcv", t + 700, t + 1_600);
    }
    log.close();
    let r = report(&open(&dir));
    let mut phases = 0;
    for f in r.passages.iter().flat_map(|p| &p.phases).filter(|f| f.phase.is_work()) {
        let functions: i64 = f.functions.iter().map(|g| g.self_ns).sum();
        assert_eq!(functions + f.unseen.0 + f.uncovered_ns, f.time.sum(), "{:?}", f.phase);
        phases += 1;
    }
    assert!(phases > 0);
}
