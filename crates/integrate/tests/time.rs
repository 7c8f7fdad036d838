//! Times whose truth is known: sums, self times, interrupts, waits, groups, the probes' cost, comparisons.

use crate::known;
use crate::world;

use kpat_model::meta::{ClockAnchor, Cost};
use kpat_model::*;
use kpat_query::Error;
use kpat_query::phases::Phase;
use kpat_query::time::{FunctionTime, GroupBy, TimeQuestion, TimeReport, closure, time};
use kpat_query::{PacketFilter, Store};
use kpat_store::tables::{CALL, CallRow};
use kpat_store::{TableFile, TableWriter};
use world::*;

const SEC: i64 = 1_000_000_000;
const FUNCTIONS: &[&str] = &[
    "f0",
    "f1",
    "f2",
    "f3",
    "ip_rcv",
    "ip_forward",
    "ip_rcv_list",
    "tcp_v4_rcv",
    "enqueue_to_backlog",
    "__netif_receive_skb_core",
    "skb:consume_skb",
];

fn log(dir: &Dir, name: &str) -> LogWriter {
    LogWriter::create(&dir.path(&format!("{name}.kbl")), FUNCTIONS, &[], ClockAnchor::default())
}

fn layer(name: &str) -> &'static str {
    match name {
        n if n.starts_with("ip_") => "network",
        "tcp_v4_rcv" => "transport",
        n if n.starts_with('f') => "driver",
        _ => "link",
    }
}

fn open(dir: &Dir, name: &str) -> Store {
    known::open(dir, name, &layer, Cost::default())
}

fn soft(packet: u64) -> At {
    At { cpu: 0, ctx: Context::Softirq, pid: 0, packet }
}

fn all(store: &Store) -> TimeReport {
    time(store, &TimeQuestion::default(), &mut |_, _| true).unwrap()
}

fn function<'a>(r: &'a TimeReport, name: &str) -> &'a FunctionTime {
    r.groups[0].functions.iter().find(|f| f.name == name).unwrap()
}

/// Trees with interrupts of interrupts: every sum closes, and the checker sees it when one does not.
#[test]
fn sums_close_and_the_checker_can_tell() {
    let dir = Dir::new("time-close");
    let mut log = log(&dir, "x");
    let mut random = Random(5);
    let mut made = 0u64;
    for i in 0..400i64 {
        let t = SEC + i * 20_000;
        let task = At { cpu: (i % 2) as u16, ctx: Context::Task, pid: 7, packet: 1 + (i % 90) as u64 };
        let cut = random.below(3_000);
        let hard = At { ctx: Context::Hardirq, packet: 0, ..task };
        let irq = At { ctx: Context::Softirq, packet: 500 + i as u64, ..task };
        log.call(hard, "f3", t + 5_100 + cut, t + 5_200 + cut);
        log.call(irq, "f2", t + 5_050 + cut, t + 5_300 + cut);
        log.call(irq, "f1", t + 5_000 + cut, t + 5_400 + cut);
        log.call(task, "f1", t + 4_000, t + 9_000);
        log.call(task, "f0", t, t + 10_000);
        made += 5;
    }
    log.close();
    let store = open(&dir, "x");
    let c = closure(&store).unwrap();
    assert_eq!((c.calls, c.violations, c.clamped), (made, 0, 0));
    assert_eq!(c.irq_ns, 400 * (400 + 100));
    let r = all(&store);
    assert_eq!(r.closure, c);
    assert_eq!(function(&r, "f0").own.sum(), 400 * 5_000);
    assert_eq!(function(&r, "f1").own.sum(), 400 * (4_600 + 150));
    assert_eq!(function(&r, "f1").irq_ns, 400 * 400);
    assert_eq!((function(&r, "f2").own.sum(), function(&r, "f2").irq_ns), (400 * 150, 400 * 100));
    // What is between the pieces of packet 1's calls is the interrupts': not its functions', not a wait.
    let one =
        time(&store, &TimeQuestion { packet: Some(1), ..TimeQuestion::default() }, &mut |_, _| true).unwrap();
    let g = &one.groups[0];
    assert_eq!(g.processing.sum(), 9_600 * 5);
    assert_eq!(g.path.sum(), g.processing.sum() + g.unrecorded.sum() + g.waiting.sum());
    // One nanosecond too much in one call.
    let path = dir.path("x.kpat");
    let mut rows: Vec<CallRow> = TableFile::open(&path, &CALL).unwrap().all().unwrap();
    let wrong = rows.iter().position(|r| r.depth == 1).unwrap();
    rows[wrong].self_ns = rows[wrong].self_ns.map(|s| s + 1);
    let mut writer = TableWriter::<CallRow>::create(&path).unwrap();
    rows.iter().for_each(|r| writer.push(r).unwrap());
    writer.finish().unwrap();
    let c = closure(&Store::open(&path).unwrap()).unwrap();
    assert_eq!((c.violations, c.examples), (1, vec![wrong as i64]));
}

/// A call of which only the entry is known lies in its caller, takes nothing from its time, and what follows in the caller is beside it.
#[test]
fn entries_alone_lie_within_their_callers() {
    let dir = Dir::new("time-entries");
    let mut log = log(&dir, "x");
    let entry = |log: &mut LogWriter, name: &str, at: i64| {
        let call = Call {
            func: log.func(name),
            ctx: Context::Softirq,
            flags: Call::NO_RETURN | Call::ENTRY_ONLY,
            skb_tag: 0,
            pid: 0,
            packet: PacketId(1),
            entry: BootNs(at),
            dur_ns: 0,
        };
        log.push(0, Record::Call(call));
    };
    entry(&mut log, "f1", SEC + 10);
    log.call(soft(1), "f2", SEC + 20, SEC + 50);
    entry(&mut log, "f1", SEC + 50);
    log.call(soft(1), "f0", SEC, SEC + 100);
    entry(&mut log, "f1", SEC + 200);
    log.close();
    let c = closure(&open(&dir, "x")).unwrap();
    assert_eq!((c.violations, c.no_return, c.calls, c.clamped), (0, 3, 2, 0));
    let rows: Vec<CallRow> = TableFile::open(&dir.path("x.kpat"), &CALL).unwrap().all().unwrap();
    let mut seen: Vec<_> = rows.iter().map(|r| (r.entry_ns - SEC, r.depth, r.dur_ns, r.self_ns)).collect();
    seen.sort_unstable();
    assert_eq!(
        seen,
        [
            (0, 0, Some(100), Some(70)),
            (10, 1, None, None),
            (20, 1, Some(30), Some(30)),
            (50, 1, None, None),
            (200, 0, None, None)
        ]
    );
}

/// Siblings that overlap cannot be: their caller is flagged and counted, and is no violation.
#[test]
fn contradictions_are_counted() {
    let dir = Dir::new("time-odd");
    let mut log = log(&dir, "x");
    log.call(soft(1), "f1", SEC + 10, SEC + 90);
    log.call(soft(1), "f2", SEC + 5, SEC + 95);
    log.call(soft(1), "f3", SEC + 20, SEC + 99);
    log.call(soft(1), "f0", SEC, SEC + 100);
    let call = Call {
        func: log.func("f3"),
        ctx: Context::Softirq,
        flags: Call::NO_RETURN,
        skb_tag: 0,
        pid: 0,
        packet: PacketId(1),
        entry: BootNs(SEC + 200),
        dur_ns: 0,
    };
    log.push(0, Record::Call(call));
    log.close();
    let c = closure(&open(&dir, "x")).unwrap();
    assert_eq!((c.violations, c.no_return), (0, 1));
    assert_eq!(c.calls, 4);
    assert!(c.clamped > 0);
}

#[test]
fn functions_layers_waits_and_groups() {
    let dir = Dir::new("time-sums");
    let mut log = log(&dir, "x");
    for n in 0..100u64 {
        let t = SEC + n as i64 * 1_000_000;
        let packet = n + 1;
        let (dur, proto) = (1_000 + n as i64 * 10, if n < 40 { 6 } else { 17 });
        let rest = if proto == 6 { tcp(5_000, 80, 1, 1, 16) } else { udp(53, 9_000, 20) };
        let header =
            ether([1; 6], [2; 6], 0x800, &ipv4([1, 1, 1, 1], [2, 2, 2, 2], 7, proto, 64, rest.len(), &rest));
        log.print(soft(packet), t, 2, &header, header.len() as u32, (0, 0));
        log.call(soft(packet), "enqueue_to_backlog", t, t + 100);
        log.call(soft(packet), "tcp_v4_rcv", t + 2_500, t + 2_500 + dur);
        log.call(soft(packet), "ip_rcv", t + 2_300, t + 2_700 + dur);
        log.call(soft(packet), "__netif_receive_skb_core", t + 2_100, t + 2_800 + dur);
    }
    log.close();
    let store = open(&dir, "x");
    let r = all(&store);
    let g = &r.groups[0];
    let tcp = function(&r, "tcp_v4_rcv");
    assert_eq!((tcp.calls, tcp.own.min(), tcp.own.max()), (100, Some(1_000), Some(1_990)));
    let q = tcp.own.quantiles(&[0.5, 0.9, 0.99]);
    assert_eq!(q, [Some(1_490), Some(1_890), Some(1_980)]);
    assert_eq!((function(&r, "ip_rcv").own.sum(), function(&r, "ip_rcv").total.min()), (40_000, Some(1_400)));
    let layers: Vec<(&str, i64)> = g.layers.iter().map(|l| (l.layer.as_str(), l.per_packet.sum())).collect();
    assert_eq!(layers, [("link", 100 * 400), ("network", 40_000), ("transport", tcp.own.sum())]);
    assert_eq!(g.waits.len(), 1);
    assert_eq!(
        (g.waits[0].kind, g.waits[0].time.count(), g.waits[0].time.sum()),
        (Phase::Backlog, 100, 200_000)
    );
    // Path = functions + waiting, and nothing is left over.
    assert_eq!(g.path.sum(), g.processing.sum() + g.waiting.sum());
    assert_eq!(g.unrecorded.sum(), 0);
    // Thresholds choose calls; the packet's own sums stay.
    let slow = TimeQuestion {
        slower_ns: Some(1_900),
        faster_ns: Some(1_950),
        glob: "tcp*".into(),
        ..TimeQuestion::default()
    };
    let slow = time(&store, &slow, &mut |_, _| true).unwrap();
    assert_eq!(slow.groups[0].functions.len(), 1);
    assert_eq!(function(&slow, "tcp_v4_rcv").calls, 6);
    assert_eq!(slow.groups[0].processing.sum(), g.processing.sum());
    // By profile of packet.
    let by = |by: GroupBy| {
        let q = TimeQuestion { by: Some(by), ..TimeQuestion::default() };
        let r = time(&store, &q, &mut |_, _| true).unwrap();
        r.groups.iter().map(|g| (g.label.clone(), g.packets)).collect::<Vec<_>>()
    };
    assert_eq!(by(GroupBy::Proto), [("UDP".to_owned(), 60), ("TCP".to_owned(), 40)]);
    assert_eq!(by(GroupBy::Port), [("port 53".to_owned(), 60), ("port 80".to_owned(), 40)]);
    assert_eq!(by(GroupBy::Size).iter().map(|g| g.1).sum::<u64>(), 100);
    assert_eq!(by(GroupBy::Verdict).iter().map(|g| g.1).sum::<u64>(), 100);
    // A filter counts its packets only, and so does a number.
    let tcp_only = PacketFilter { proto: Some("tcp".into()), ..PacketFilter::default() };
    let q = TimeQuestion { filter: tcp_only, ..TimeQuestion::default() };
    assert_eq!(function(&time(&store, &q, &mut |_, _| true).unwrap(), "ip_rcv").calls, 40);
    let q = TimeQuestion { packet: Some(100), ..TimeQuestion::default() };
    assert_eq!(function(&time(&store, &q, &mut |_, _| true).unwrap(), "tcp_v4_rcv").own.sum(), 1_990);
    let q = TimeQuestion { packet: Some(101), ..TimeQuestion::default() };
    assert!(matches!(time(&store, &q, &mut |_, _| true), Err(Error::NoSuchPacket { .. })));
}

/// A call on a list happened once, and each packet on the list lived through it.
#[test]
fn a_list_counts_once_for_the_function_and_in_full_for_each_packet() {
    let dir = Dir::new("time-list");
    let mut log = log(&dir, "x");
    let func = log.func("ip_rcv_list");
    for packet in [2, 3] {
        log.push(0, Record::Member(Member { func, packet: PacketId(packet), entry: BootNs(SEC) }));
        let t = SEC + 200 * packet as i64;
        log.call(soft(packet), "ip_forward", t, t + 100);
    }
    let list = Call {
        func,
        ctx: Context::Softirq,
        flags: Call::LIST,
        skb_tag: 0,
        pid: 0,
        packet: PacketId(1),
        entry: BootNs(SEC),
        dur_ns: 1_000,
    };
    log.push(0, Record::Call(list));
    log.close();
    let r = all(&open(&dir, "x"));
    let f = function(&r, "ip_rcv_list");
    assert_eq!((f.calls, f.own.sum(), f.total.sum()), (1, 800, 1_000));
    assert_eq!((r.groups[0].packets, r.groups[0].processing.sum()), (3, 3 * 800 + 2 * 100));
    // Packet 2 waits while packet 3 is worked on.
    let g = &r.groups[0];
    assert_eq!(g.unrecorded.sum(), 3_000 - (800 + 900 + 900));
}

/// What probes cost is put into a log call by call; taken off again, the true times are left.
#[test]
fn the_probes_cost_comes_off_again() {
    const RUN: i64 = 120;
    let dir = Dir::new("time-cost");
    let mut log = log(&dir, "x");
    let (mut own, mut small) = (0, 0);
    let mut t = SEC;
    for n in 0..300i64 {
        let at = soft(n as u64 + 1);
        // True times: f0 500 itself, f1 300 + n itself, f2 (in f1) 200; a point in f1. A run before each entry's stamp
        // lies in the caller, one behind it in the callee, and so for the return: half each, so one run in both.
        let half = RUN / 2;
        let start = t;
        let f1 = start + half + 100 + half;
        let f2 = f1 + half + 100 + half;
        let f2_end = f2 + half + 200 + half;
        log.call(at, "f2", f2, f2_end);
        let f1_end = f2_end + half + (200 + n) + RUN + half;
        known::point(&mut log, at, "skb:consume_skb", f2_end + half + 50);
        log.call(at, "f1", f1, f1_end);
        let end = f1_end + half + 400 + half;
        log.call(at, "f0", start, end);
        // Shorter than the estimate of itself and a point in it: cannot be, counts as 0.
        known::point(&mut log, at, "skb:consume_skb", end + 1_050);
        log.call(at, "f3", end + 1_000, end + 1_000 + RUN + RUN / 2);
        small += 1;
        own += 300 + n;
        t = end + 5_000;
    }
    log.close();
    let cost = Cost { probe_hits: 1_000, probe_ns: 1_000 * RUN as u64, ..Cost::default() };
    let store = known::open(&dir, "x", &layer, cost);
    let with = all(&store);
    let cost = with.run_cost.unwrap();
    assert_eq!((cost.ns, cost.mean_ns, cost.shortest_ns), (RUN as f64, RUN as f64, RUN + RUN / 2));
    let f1 = function(&with, "f1");
    assert_eq!((f1.own.sum(), f1.cost_own_ns), (own + 300 * 3 * RUN, 300 * 3 * RUN));
    // One for f1, two for f2, one for the point; and one of f0 and two for f1 more in f0.
    assert_eq!(f1.cost_total_ns, 300 * 4 * RUN);
    assert_eq!(function(&with, "f0").cost_total_ns, 300 * 6 * RUN);
    let less =
        time(&store, &TimeQuestion { subtract_cost: true, ..TimeQuestion::default() }, &mut |_, _| true)
            .unwrap();
    assert!(less.subtracted && !with.subtracted);
    assert_eq!(function(&less, "f0").own.sum(), 300 * 500);
    assert_eq!(function(&less, "f1").own.sum(), own);
    assert_eq!(function(&less, "f2").own.sum(), 300 * 200);
    assert_eq!(function(&less, "f0").total.sum(), 300 * (500 + 200) + own);
    let f3 = function(&less, "f3");
    assert_eq!((f3.own.sum(), f3.clamped), (0, small));
    assert_eq!(function(&less, "f1").clamped, 0);
    assert_eq!(less.groups[0].processing.sum(), 300 * 700 + own);
    // An average above the shortest call is not that call's cost.
    let dear = Cost { probe_hits: 10, probe_ns: 50_000, ..Cost::default() };
    let store = known::say(&dir, "x", &layer, dear);
    let cost = all(&store).run_cost.unwrap();
    assert_eq!((cost.ns, cost.mean_ns), ((RUN + RUN / 2) as f64, 5_000.0));
}
