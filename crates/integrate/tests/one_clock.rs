//! A host and its guests, recorded from the host, without a capture between them: which packet of one kernel is which of another is known.

use crate::world;

use kpat_integrate::devices::integrate_devices;
use kpat_integrate::{Error, Options};
use kpat_model::meta::{ClockAnchor, Meta};
use kpat_model::*;
use kpat_query::devices::Several;
use kpat_store::TableFile;
use kpat_store::tables::{CROSSING, CrossingRow};
use std::collections::BTreeSet;
use std::path::PathBuf;
use world::*;

const FUNCTIONS: &[&str] = &["napi_gro_receive", "netif_receive_skb", "dev_hard_start_xmit", "ip_defrag"];
/// Of the guests' times.
const BOUND: i64 = 70_000;
const HOST: usize = 2;
const NAMES: [&str; 3] = ["web", "db", "host"];

/// Device and packet that sent, device and packet that received.
type Hop = (i32, i64, i32, i64);

struct World {
    logs: Vec<LogWriter>,
    random: Random,
    truth: BTreeSet<Hop>,
    packets: [i64; 3],
}

impl World {
    fn new(dir: &Dir) -> World {
        let anchor =
            ClockAnchor { boot: BootNs(SEC), wall: WallNs(1_700_000_000 * SEC), uncertainty_ns: 100 };
        let log = |d: usize| {
            let host = Meta {
                started: anchor,
                boot_id: "one".into(),
                guest_boot_id: if d == HOST { String::new() } else { format!("guest {d}") },
                mechanism: if d == HOST { "fentry" } else { "mailbox" }.into(),
                ..Meta::default()
            };
            let mac = |n: u8| [2, 0, 0, 0, d as u8, n];
            let devices =
                [(2, "tap0", mac(0)), (3, "tap1", mac(1)), (4, "veth0", mac(2)), (5, "veth1", mac(3))];
            let path = dir.path(&format!("{}.kbl", NAMES[d]));
            LogWriter::create_of(&path, FUNCTIONS, if d == HOST { &devices } else { &devices[..1] }, host)
        };
        let logs = (0..3).map(log).collect();
        World { logs, random: Random(7), truth: BTreeSet::new(), packets: [0, 100_000, 200_000] }
    }

    /// What the device's log has as the time of a moment.
    fn logged(&mut self, device: usize, at: i64) -> i64 {
        if device == HOST { at } else { at + self.random.below(2 * BOUND) - BOUND }
    }

    fn packet(&mut self, device: usize, ctx: Context) -> At {
        self.packets[device] += 1;
        At { cpu: 0, ctx, pid: 0, packet: self.packets[device] as u64 }
    }

    fn send(&mut self, device: usize, at: i64, header: &[u8]) -> i64 {
        let p = self.packet(device, Context::Task);
        let t = self.logged(device, at);
        self.logs[device].print(p, t - 2_000, 2, header, 142, (0, 0));
        self.logs[device].call(p, "dev_hard_start_xmit", t, t + 2_000);
        self.logs[device].free(p, t + 3_000);
        p.packet as i64
    }

    fn receive(&mut self, device: usize, at: i64, header: &[u8]) -> i64 {
        let p = self.packet(device, Context::Softirq);
        let t = self.logged(device, at);
        self.logs[device].print(p, t, 2, header, 142, (0, 0));
        self.logs[device].call(p, "napi_gro_receive", t, t + 2_000);
        self.logs[device].free(p, t + 3_000);
        p.packet as i64
    }

    /// A driver left the headers in pages: what receives did not see them.
    fn first_in(&mut self, device: usize, function: &str, at: i64, header: &[u8]) -> i64 {
        let p = self.packet(device, Context::Softirq);
        let t = self.logged(device, at);
        self.logs[device].print(p, t, 2, header, 142, (0, 0));
        self.logs[device].call(p, function, t, t + 2_000);
        self.logs[device].free(p, t + 3_000);
        p.packet as i64
    }

    /// Received by a tap of the host's and bridged to another.
    fn bridge(&mut self, came: i64, went: i64, header: &[u8]) -> i64 {
        let p = self.packet(HOST, Context::Softirq);
        let log = &mut self.logs[HOST];
        log.print(p, came, 2, header, 142, (0, 0));
        log.call(p, "netif_receive_skb", came, went + 3_000);
        log.print(p, went - 500, 3, header, 142, (0, 0));
        log.call(p, "dev_hard_start_xmit", went, went + 2_000);
        log.free(p, went + 4_000);
        p.packet as i64
    }

    /// Made on the host, over a virtual link into another namespace, then to a tap.
    fn over_veth(&mut self, at: i64, header: &[u8]) -> i64 {
        let p = self.packet(HOST, Context::Task);
        let log = &mut self.logs[HOST];
        log.print(p, at - 30_000, 4, header, 142, (0, 0));
        log.call(p, "dev_hard_start_xmit", at - 29_000, at - 27_000);
        log.print(p, at - 20_000, 5, header, 142, (0, 0));
        log.call(p, "netif_receive_skb", at - 20_000, at - 19_000);
        log.print(p, at - 1_000, 2, header, 142, (0, 0));
        log.call(p, "dev_hard_start_xmit", at, at + 2_000);
        log.free(p, at + 4_000);
        p.packet as i64
    }

    fn close(mut self, dir: &Dir, devices: &[usize]) -> (Several, Vec<CrossingRow>, BTreeSet<Hop>) {
        for log in &mut self.logs[..HOST] {
            for n in 0..40 {
                let at = BootNs(SEC + n * SEC / 5);
                log.push(0, Record::GuestClock(GuestClock { at, guest: at, bound_ns: BOUND as u32 }));
            }
        }
        self.logs.into_iter().for_each(LogWriter::close);
        let logs: Vec<PathBuf> = devices.iter().map(|d| dir.path(&format!("{}.kbl", NAMES[*d]))).collect();
        let out = dir.path("out.kpat");
        let report = integrate_devices(&logs, &[], &out, &Options::default(), &mut |_, _| ()).unwrap();
        let rows: Vec<CrossingRow> = TableFile::open(&out, &CROSSING).unwrap().all().unwrap();
        let c = &report.crossings;
        println!("{c:?}");
        assert_eq!((c.frames, c.rows), (0, rows.len() as u64));
        assert_eq!(c.received, Some(c.unmatched + c.crossed + c.ambiguous));
        (Several::open(&out).unwrap(), rows, self.truth)
    }
}

fn hops(rows: &[CrossingRow]) -> BTreeSet<Hop> {
    let all: BTreeSet<Hop> =
        rows.iter().map(|r| (r.from_device, r.from_packet_id, r.to_device, r.to_packet_id)).collect();
    assert_eq!(all.len(), rows.len(), "a packet crossed twice");
    all
}

fn datagram(from: u8, to: u8, ident: u16) -> Vec<u8> {
    let mac = |n: u8| [2, 0, 0, 0, n, 0];
    let rest = udp(4_000, 53, 100);
    ether(mac(to), mac(from), 0x800, &ipv4([10, 0, 0, from], [10, 0, 0, to], ident, 17, 64, 108, &rest))
}

#[test]
fn a_packet_goes_from_one_guest_over_the_host_into_another() {
    let dir = Dir::new("one-clock");
    let mut w = World::new(&dir);
    for n in 0..400i64 {
        let at = 2 * SEC + n * 1_000_000;
        // Half of them without an identification: all alike, one each 2 ms.
        let ident = if n % 2 == 0 { 0 } else { n as u16 };
        let forth = datagram(0, 1, ident);
        let sent = w.send(0, at, &forth);
        if n % 10 == 3 {
            // The host's queue was full: nobody received it.
            continue;
        }
        let delay = w.random.below(100_000);
        let host = w.bridge(at + 150_000, at + 200_000 + delay, &forth);
        let got = w.receive(1, at + 400_000 + delay, &forth);
        w.truth.extend([(0, sent, 2, host), (2, host, 1, got)]);
        // From the host itself, over a virtual link, into the first.
        let back = datagram(9, 0, 1 + n as u16);
        let sent = w.over_veth(at + 500_000, &back);
        let got = w.receive(0, at + 700_000, &back);
        w.truth.insert((2, sent, 0, got));
        // And what has nothing to do with guests.
        let elsewhere = datagram(77, 9, 1 + n as u16);
        w.receive(HOST, at + 800_000, &elsewhere);
    }
    let (log, rows, truth) = w.close(&dir, &[0, 1, 2]);
    let found = hops(&rows);
    let wrong: Vec<&Hop> = found.difference(&truth).collect();
    assert!(wrong.is_empty(), "{wrong:?}");
    // Of those that are alike, with every twentieth missing, a few may be left open.
    assert!(found.len() * 100 >= truth.len() * 97, "{} of {}", found.len(), truth.len());
    for r in &rows {
        let guests = [r.from_device, r.to_device].iter().filter(|d| **d != 2).count() as i64;
        assert_eq!((r.capture_id, r.flight_bound_ns), (-1, guests * BOUND));
        assert!(r.flight_ns + r.flight_bound_ns >= 0 && r.flight_ns < 1_000_000, "{r:?}");
        assert_eq!(r.left_wall_ns - r.left_ns, 1_700_000_000 * SEC - SEC);
    }
    // The whole way, from its first kernel to its last.
    let first = rows.iter().find(|r| r.from_device == 0).unwrap();
    let chain = log.chain(0, first.from_packet_id).unwrap();
    assert_eq!(chain.packets.iter().map(|p| p.0).collect::<Vec<_>>(), [0, 2, 1]);
    let clocks = log.clocks().unwrap();
    let known: Vec<_> =
        clocks.iter().map(|c| (c.from_device, c.to_device, c.offset_ns, c.bound_ns)).collect();
    assert_eq!(known, [(0, 1, 0, 2 * BOUND), (0, 2, 0, BOUND), (1, 2, 0, BOUND)]);
}

/// Without a log of the host guests are compared with each other.
#[test]
fn two_guests_alone() {
    let dir = Dir::new("one-clock-guests");
    let mut w = World::new(&dir);
    for n in 0..100i64 {
        let at = 2 * SEC + n * 1_000_000;
        let header = datagram(0, 1, 1 + n as u16);
        let sent = w.send(0, at, &header);
        let got = w.receive(1, at + 400_000, &header);
        w.truth.insert((0, sent, 1, got));
    }
    let (_, rows, truth) = w.close(&dir, &[0, 1]);
    assert_eq!(hops(&rows), truth);
}

/// Acknowledgements of one place in the stream, closer together than the clock is known, of which some do not come: by the identification of IPv4, or
/// else by their windows.
#[test]
fn acknowledgements_that_differ_elsewhere() {
    for named in [true, false] {
        let dir = Dir::new(if named { "one-clock-ident" } else { "one-clock-window" });
        let mut w = World::new(&dir);
        for n in 0..300i64 {
            let at = 2 * SEC + n / 3 * 1_000_000 + n % 3 * 20_000;
            let mut segment = tcp(4_000, 80, 7, 9, 0x10);
            if !named {
                segment[14..16].copy_from_slice(&(1_000 + n as u16).to_be_bytes());
            }
            let ident = if named { 1 + n as u16 } else { 0 };
            let header =
                ether([2; 6], [4; 6], 0x800, &ipv4([10, 0, 0, 1], [10, 0, 0, 2], ident, 6, 64, 20, &segment));
            let sent = w.send(0, at, &header);
            if n % 7 != 3 {
                let got = w.receive(HOST, at + 60_000, &header);
                w.truth.insert((0, sent, 1, got));
            }
        }
        let (_, rows, truth) = w.close(&dir, &[0, HOST]);
        assert_eq!(hops(&rows), truth);
    }
}

/// What is first seen in a protocol came from where one with its headers was sent, unless another was seen to come.
#[test]
fn one_whose_coming_was_not_seen() {
    let dir = Dir::new("one-clock-pages");
    let mut w = World::new(&dir);
    for n in 0..100i64 {
        let at = 2 * SEC + n * 1_000_000;
        let header = datagram(9, 0, 1 + n as u16);
        let sent = w.over_veth(at, &header);
        let got = if n % 2 == 0 {
            w.first_in(0, "ip_defrag", at + 200_000, &header)
        } else {
            let got = w.receive(0, at + 200_000, &header);
            // A copy.
            w.first_in(0, "ip_defrag", at + 210_000, &header);
            got
        };
        w.truth.insert((1, sent, 0, got));
        // Made in the guest, or lost before: nobody's.
        w.first_in(0, "ip_defrag", at + 300_000, &datagram(9, 0, 1_000 + n as u16));
    }
    let (_, rows, truth) = w.close(&dir, &[0, HOST]);
    assert_eq!(hops(&rows), truth);
}

/// Where more were sent than received and all are alike, closer together than the clock is known, nothing is concluded.
#[test]
fn what_is_alike_within_the_bound_is_left_open() {
    let dir = Dir::new("one-clock-alike");
    let mut w = World::new(&dir);
    for n in 0..50i64 {
        let at = 2 * SEC + n * 3 * SEC;
        let header = datagram(0, 9, 0);
        let sent: Vec<i64> = (0..4).map(|i| w.send(0, at + i * 5_000, &header)).collect();
        let got = w.receive(HOST, at + 60_000, &header);
        // It was the last.
        w.truth.insert((0, sent[3], 1, got));
    }
    let (_, rows, _) = w.close(&dir, &[0, HOST]);
    assert_eq!(rows.len(), 0);
}

/// Without a capture, logs of different hosts have nothing in common, and two recordings of one kernel are no two devices.
#[test]
fn other_logs_are_not_joined() {
    let dir = Dir::new("one-clock-others");
    let anchor = ClockAnchor { boot: BootNs(SEC), wall: WallNs(SEC), uncertainty_ns: 100 };
    let metas = |guest: &str, boot: [&str; 2]| -> Vec<Meta> {
        let meta = |boot: &str, mechanism: &str| Meta {
            started: anchor,
            boot_id: boot.into(),
            mechanism: mechanism.into(),
            ..Meta::default()
        };
        vec![meta(boot[0], guest), meta(boot[1], "fentry")]
    };
    let joined = kpat_integrate::devices::of_one_host;
    assert!(joined(&metas("mailbox", ["a", "a"])));
    assert!(!joined(&metas("mailbox", ["a", "b"])));
    assert!(!joined(&metas("fentry", ["a", "a"])));
    assert!(!joined(&metas("mailbox", ["", ""])));
    let missing =
        integrate_devices(&[dir.path("no.kbl")], &[], &dir.path("x"), &Options::default(), &mut |_, _| ());
    assert!(!matches!(missing, Ok(_) | Err(Error::Exists { .. })));
}
