//! Cards that stamp what they receive, by clocks whose truth is made here: when that was by the boot clock, and what the card had it for.

use crate::known;
use crate::world;

use kpat_model::meta::{ClockAnchor, Cost, Device};
use kpat_model::*;
use kpat_query::phases::{Boundaries, Phase, phases, way};
use kpat_query::{PacketFilter, Store};
use kpat_store::TableFile;
use kpat_store::tables::{CARD_CLOCK, CardClockRow, PACKET, PacketRow};
use world::*;

const FUNCTIONS: &[&str] = &["napi_gro_receive", "ip_rcv", "udp_rcv"];
const IFINDEX: u32 = 3;
const SECONDS: i64 = 10;
/// Weeks of uptime.
const UP: i64 = 4_000_000 * SEC;

/// A packet as it truly went, boot clock.
struct Truth {
    stamped: i64,
    raised: i64,
    began: i64,
    seen: i64,
}

/// One kind of clock, card or log.
struct World {
    name: &'static str,
    /// What the card's clock shows at a boot time.
    shows: fn(i64) -> i64,
    /// Is the clock read at this time after the beginning?
    read: fn(i64) -> bool,
    /// Interface in the stamp's record.
    stamped_by: u32,
    /// Least time from the stamp to the raising of the softirq.
    raised: i64,
    /// Share of packets of which the card's time must be known.
    known: f64,
}

const PLAIN: World = World {
    name: "an hour ahead, 50 ppm fast",
    shows: |t| t + 3_600 * SEC + (t - UP) / 20_000,
    read: |_| true,
    stamped_by: IFINDEX,
    raised: 1_000,
    known: 1.0,
};

fn make(world: &World, dir: &Dir, dice: &mut Random) -> Vec<Truth> {
    let mut log = LogWriter::create(&dir.path("x.kbl"), FUNCTIONS, &[], ClockAnchor::default());
    let device = |ifindex, name: &str| Device {
        ifindex,
        name: name.into(),
        driver: "igb".into(),
        ..Device::default()
    };
    log.devices(vec![Device { phc: Some(1), ..device(IFINDEX, "eth0") }, device(4, "eth1")]);
    let mut at = UP;
    while at < UP + SECONDS * SEC {
        // The truth lies anywhere in the bracket whose middle is reported.
        let half = 100 + dice.below(1_900);
        let read = at + dice.below(2 * half);
        if (world.read)(at - UP) {
            let reading = CardReading {
                at: BootNs(at + half),
                netns: 0,
                ifindex: IFINDEX,
                card_ns: (world.shows)(read),
                bound_ns: (half + 1) as u32,
                clock: String::new(),
            };
            log.push(0, Record::CardReading(Box::new(reading)));
        }
        at += SEC / 2 + dice.below(30_000_000);
    }
    let mut truths = Vec::new();
    let mut t = UP + SEC / 100;
    let last = at - SEC;
    while t < last {
        let packet = truths.len() as u64 + 1;
        let raised = t + world.raised + dice.below(60_000);
        let began = raised.max(t) + 1_000 + dice.below(5_000);
        let seen = began + 500 + dice.below(2_000);
        let (at, id) = (BootNs(seen), PacketId(packet));
        let (since_ns, wait_ns) = (Some((seen - began) as u64), Some((began - raised) as u64));
        log.push(1, Record::Poll(Poll { at, packet: id, since_ns, wait_ns }));
        let (ifindex, card_ns) = (world.stamped_by, (world.shows)(t));
        log.push(1, Record::CardStamp(CardStamp { at, packet: id, netns: 0, ifindex, card_ns }));
        let soft = At { cpu: 1, ctx: Context::Softirq, pid: 0, packet };
        let header = ipv4([10, 0, 0, 1], [10, 0, 0, 2], packet as u16, 17, 64, 28, &udp(1, 2, 0));
        log.print(soft, seen, IFINDEX, &ether([2; 6], [4; 6], 0x0800, &header), 42, (0, 0));
        log.call(soft, "udp_rcv", seen + 300, seen + 700);
        log.call(soft, "ip_rcv", seen + 200, seen + 800);
        log.call(soft, "napi_gro_receive", seen, seen + 900);
        log.free(soft, seen + 950);
        truths.push(Truth { stamped: t, raised, began, seen });
        t += 3_000_000 + dice.below(20_000_000);
    }
    log.close();
    truths
}

fn packets(dir: &Dir) -> Vec<PacketRow> {
    let mut rows: Vec<PacketRow> = TableFile::open(&dir.path("x.kpat"), &PACKET).unwrap().all().unwrap();
    rows.sort_by_key(|r| r.packet_id);
    rows
}

/// Card's times of all packets against the truth: how many are known, how many of these lie outside of their bound.
fn judge(world: &World, dice: &mut Random) -> (Dir, Store, usize) {
    let dir = Dir::new(&format!("stamps-{}", world.name.replace(|c: char| !c.is_alphanumeric(), "-")));
    let truths = make(world, &dir, dice);
    let store = known::open(&dir, "x", &|_| "link", Cost::default());
    let rows = packets(&dir);
    assert_eq!(rows.len(), truths.len());
    let (mut known, mut outside, mut widest) = (0, 0, 0);
    for (row, t) in rows.iter().zip(&truths) {
        assert_eq!(row.first_ns, t.seen);
        assert_eq!((row.driver_ns, row.softirq_ns), (Some(t.seen - t.began), Some(t.began - t.raised)));
        let own = (world.shows)(t.stamped);
        assert_eq!(row.stamp_ns, (world.stamped_by == IFINDEX).then_some(own));
        let Some(card) = row.card_ns else { continue };
        let bound = row.card_bound_ns.unwrap();
        known += 1;
        outside += usize::from((card - (t.seen - t.stamped)).abs() > bound);
        widest = widest.max(bound);
    }
    let all = truths.len();
    eprintln!(
        "{}: {known} of {all} known, {outside} outside of their bounds, the widest ±{widest} ns",
        world.name
    );
    assert!(known as f64 >= world.known * all as f64, "{}: {known} of {all}", world.name);
    assert!(outside * 1_000 <= known, "{}: {outside} of {known}", world.name);
    (dir, store, known)
}

#[test]
fn a_stamps_time_lies_within_its_bound_or_is_not_given() {
    let worlds = [
        PLAIN,
        World {
            name: "set back by two seconds",
            shows: |t| t - if t > UP + 5 * SEC { 2 * SEC } else { 0 },
            known: 0.8,
            ..PLAIN
        },
        World {
            name: "a step of 40 us",
            shows: |t| t + if t > UP + 4 * SEC + SEC / 3 { 40_000 } else { 0 },
            ..PLAIN
        },
        World { name: "not read for three seconds", read: |t| !(3 * SEC..6 * SEC).contains(&t), ..PLAIN },
        World { name: "read in the last seconds only", read: |t| t > 8 * SEC, known: 0.1, ..PLAIN },
    ];
    let mut dice = Random(0x5eed);
    for world in &worlds {
        for _ in 0..3 {
            judge(world, &mut dice);
        }
    }
}

#[test]
fn without_a_reading_or_of_another_card_there_is_no_time() {
    let mut dice = Random(0xd1ce);
    let (dir, _, known) =
        judge(&World { name: "never read", read: |_| false, known: 0.0, ..PLAIN }, &mut dice);
    assert_eq!(known, 0);
    assert_eq!(TableFile::open(&dir.path("x.kpat"), &CARD_CLOCK).unwrap().rows(), 0);
    let (dir, store, known) =
        judge(&World { name: "another card's", stamped_by: 4, known: 0.0, ..PLAIN }, &mut dice);
    assert_eq!(known, 0);
    let clocks: Vec<CardClockRow> = TableFile::open(&dir.path("x.kpat"), &CARD_CLOCK).unwrap().all().unwrap();
    assert!(
        clocks.len() > 15 && clocks.iter().all(|c| c.ifindex == 3 && (101..=2_001).contains(&c.bound_ns))
    );
    let report =
        phases(&store, &PacketFilter::default(), &Boundaries::default(), &mut |_, _| true, &mut |_| ())
            .unwrap();
    assert!(report.cards.iter().all(|c| c.stamps.stamped == 0));
    assert!(report.missing.iter().any(|m| m.phase == Phase::DmaRx));
}

/// The phase ends where the softirq was asked for, and with what follows it adds up to the time since the stamp.
#[test]
fn dma_rx_is_from_the_stamp_to_the_softirqs_raising() {
    let world = World { name: "phases", ..PLAIN };
    let (dir, store, _) = judge(&world, &mut Random(77));
    let report =
        phases(&store, &PacketFilter::default(), &Boundaries::default(), &mut |_, _| true, &mut |_| ())
            .unwrap();
    assert_eq!(report.open_sums, 0);
    let rows = packets(&dir);
    let stamps = report.cards[0].stamps;
    let all = rows.len() as u64;
    assert_eq!((stamps.received, stamps.stamped, stamps.known), (all, all, all));
    assert_eq!(Some(stamps.bound_ns), rows.iter().filter_map(|r| r.card_bound_ns).max());
    assert!(report.missing.iter().all(|m| m.phase != Phase::DmaRx));
    let dma: Vec<_> =
        report.passages.iter().flat_map(|p| &p.phases).filter(|p| p.phase == Phase::DmaRx).collect();
    let expected: i64 =
        rows.iter().map(|r| r.card_ns.unwrap() - r.driver_ns.unwrap() - r.softirq_ns.unwrap()).sum();
    assert_eq!(dma.iter().map(|p| p.time.sum()).sum::<i64>(), expected);
    assert_eq!(dma.iter().map(|p| p.time.count()).sum::<u64>(), all);
    let row = &rows[5];
    let w = way(&store, row.packet_id, &Boundaries::default()).unwrap();
    let names: Vec<_> = w.segments.iter().take(3).map(|s| s.phase.name()).collect();
    assert_eq!(names, ["dma-rx", "softirq", "link-rx"]);
    assert_eq!(w.segments[0].from_ns, row.first_ns - row.card_ns.unwrap());
    assert!(w.segments.windows(2).all(|s| s[0].to_ns == s[1].from_ns));
}

/// It came when the softirq had been asked for already, for another packet: it did not wait before it was there.
#[test]
fn a_packet_waits_from_its_stamp_on() {
    let world = World { name: "late", raised: -200_000, ..PLAIN };
    let (dir, store, _) = judge(&world, &mut Random(78));
    for row in packets(&dir).iter().take(20) {
        let w = way(&store, row.packet_id, &Boundaries::default()).unwrap();
        let names: Vec<_> = w.segments.iter().take(2).map(|s| s.phase.name()).collect();
        assert_eq!(names, ["softirq", "link-rx"]);
        assert_eq!(w.segments[0].from_ns, row.first_ns - row.card_ns.unwrap());
        assert_eq!(w.segments[1].from_ns, row.first_ns - row.driver_ns.unwrap());
    }
}
