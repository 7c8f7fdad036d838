//! Do packets add up? A made-up router's log from which records are taken away: what is missing is found, and nothing else.

use crate::judge;
use crate::world;

use judge::run;
use kpat_model::meta::ClockAnchor;
use kpat_model::*;
use kpat_query::{Conservation, Difference, Store};
use kpat_store::TableWriter;
use kpat_store::tables::LossRow;
use world::*;

const PACKETS: u64 = 300;

/// 100 forwarded, 100 delivered, 100 dropped, over ten seconds and two CPUs; `take` says what of a packet is left out.
fn world(name: &str, take: impl Fn(u64) -> Option<&'static str>) -> (Store, Dir) {
    let dir = Dir::new(&format!("conservation-{name}"));
    let anchor =
        ClockAnchor { boot: BootNs(99 * SEC), wall: WallNs(1_700_000_099 * SEC), uncertainty_ns: 500 };
    let mut log = LogWriter::create(&dir.path("x.kbl"), ROUTER, &[(2, "eth0", R0), (3, "eth1", R1)], anchor);
    let (c, s) = ([10, 0, 0, 2], [198, 51, 100, 7]);
    for packet in 1..=PACKETS {
        let at = 100 * SEC + packet as i64 * 30_000_000;
        let cpu = (packet % 2) as u16;
        let body = icmp(8, 77, packet as u16, 5);
        let before = ether(R0, CLIENT, 0x800, &ipv4(c, s, packet as u16, 1, 64, 8, &body));
        let after = ether(SERVER, R1, 0x800, &ipv4(c, s, packet as u16, 1, 63, 8, &body));
        let a = At { cpu, ctx: Context::Softirq, pid: 0, packet };
        let left_out = take(packet);
        log.print(a, at + 100, 2, &before, 42, (0, 0));
        log.call(a, "ip_rcv", at + 1_000, at + 3_000);
        log.call(a, "napi_gro_receive", at, at + 26_000);
        match packet % 3 {
            0 if left_out != Some("fate") => {
                log.call(a, "ip_forward", at + 4_000, at + 20_000);
                log.print(a, at + 14_500, 3, &after, 42, (0, 0));
                log.call(a, "dev_hard_start_xmit", at + 15_000, at + 18_000);
                log.call(a, "__dev_queue_xmit", at + 14_000, at + 19_000);
            }
            1 if left_out != Some("fate") => log.call(a, "ip_local_deliver", at + 4_000, at + 9_000),
            2 if left_out != Some("fate") => log.event(a, at + 5_000, EventKind::Drop, 2),
            _ => {}
        }
        if left_out != Some("end") {
            log.free(a, at + 60_000);
        }
    }
    log.close();
    let (_, out) = run(&dir, &[]);
    (Store::open(&out).unwrap(), dir)
}

fn of(store: &Store) -> Conservation {
    let c = store.conservation().unwrap();
    assert_eq!(c.packets(), PACKETS, "none is counted twice or forgotten");
    assert_eq!(c.received + c.made_here + c.from_others, c.fates.sum());
    assert_eq!(c.cpus.values().map(|f| f.sum()).sum::<u64>(), PACKETS);
    assert_eq!(c.interfaces.values().map(|i| i.received.sum()).sum::<u64>(), c.received);
    c
}

#[test]
fn all_is_explained() {
    let (store, _dir) = world("whole", |_| None);
    let c = of(&store);
    assert_eq!(
        (c.fates.forwarded, c.fates.delivered, c.fates.dropped, c.fates.unexplained),
        (100, 100, 100, 0)
    );
    assert_eq!((c.explained_ppm(), c.differences.len()), (1_000_000, 0));
    let eth0 = c.interfaces.iter().find(|(i, _)| i.1 == 2).unwrap().1;
    let eth1 = c.interfaces.iter().find(|(i, _)| i.1 == 3).unwrap().1;
    assert_eq!((eth0.received.sum(), eth0.given, eth1.received.sum(), eth1.given), (300, 0, 0, 100));
    assert_eq!(c.cpus.iter().map(|(cpu, f)| (*cpu, f.sum())).collect::<Vec<_>>(), [(0, 150), (1, 150)]);
}

/// What was counted while integrating is what counting again gives.
#[test]
fn the_stored_balance_is_the_balance() {
    let (stored, dir) = world("stored", |p| match p {
        31 | 32 => Some("fate"),
        120 | PACKETS => Some("end"),
        _ => None,
    });
    let counted = of(&stored);
    assert_eq!((counted.verdicts.values().sum::<u64>(), counted.differences.len()), (PACKETS, 3));
    let out = dir.path("out.kpat");
    std::fs::remove_file(out.join("balance.parquet")).unwrap();
    assert_eq!(of(&Store::open(&out).unwrap()), counted);
}

#[test]
fn a_missing_end_is_found() {
    let (store, _dir) = world("end", |p| (p == 120).then_some("end"));
    let c = of(&store);
    assert_eq!((c.fates.forwarded, c.fates.unexplained, c.explained_ppm()), (99, 1, 996_666));
    let d = &c.differences[0];
    assert_eq!((d.why, d.packets, d.packet_id, d.cpu), (Difference::NoEnd, 1, 120, Some(0)));
    assert_eq!(d.interface.map(|i| i.1), Some(2));
}

#[test]
fn a_missing_fate_is_found_and_a_packet_in_flight_is_none() {
    let (store, _dir) = world("fate", |p| match p {
        31 | 32 => Some("fate"),
        // The log ends while it is on its way.
        PACKETS => Some("end"),
        _ => None,
    });
    let c = of(&store);
    assert_eq!((c.fates.unexplained, c.fates.forwarded), (2, 100));
    assert!(c.differences.iter().all(|d| d.why == Difference::NoFate));
}

#[test]
fn a_counted_loss_explains_what_it_can() {
    let (store, dir) = world("loss", |p| (p == 60 || p == 61).then_some("end"));
    assert_eq!(of(&store).fates.unexplained, 2);
    // The ring of CPU 0 was full when packet 60 was freed; that of CPU 1 was not.
    let at = 100 * SEC + 60 * 30_000_000;
    let out = dir.path("out.kpat");
    let mut losses = TableWriter::<LossRow>::create(&out).unwrap();
    losses.push(&LossRow { cause: 1, cpu: Some(0), from_ns: at, to_ns: at + SEC, count: 3 }).unwrap();
    losses.finish().unwrap();
    // Without the table of what was counted before, it is counted again.
    std::fs::remove_file(out.join("balance.parquet")).unwrap();
    let c = of(&Store::open(&out).unwrap());
    assert_eq!((c.fates.lost, c.fates.unexplained), (1, 1));
    assert_eq!(c.differences[0].packet_id, 61);
}

#[test]
fn what_lies_unread_is_no_missing_end_unless_a_later_one_was_read() {
    let unread = |p: u64| p % 3 == 1 && p >= 200;
    let (store, _dir) = world("unread", |p| unread(p).then_some("end"));
    let c = of(&store);
    // 33 ms apart, and idle for a second when the log ended
    let idle = (200..=PACKETS).filter(|p| unread(*p) && (PACKETS - p) * 30 > 1_000).count() as u64;
    assert!(idle > 20, "{idle}");
    assert_eq!((c.unread, c.fates.unexplained, c.fates.delivered), (idle, 0, 100));
    let (store, _dir) = world("read", |p| (unread(p) && p != 250).then_some("end"));
    let c = of(&store);
    let before = (200..250).filter(|p| unread(*p)).count() as u64;
    assert_eq!((c.unread, c.fates.unexplained), (idle - before - 1, before));
    assert!(c.differences.iter().all(|d| d.why == Difference::NoEnd));
}
