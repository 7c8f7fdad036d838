//! Calls, packets and their sums through the whole way: log in, tables out, questions answered.

use crate::known;
use crate::world;

use kpat_integrate::{Error, Options, Report, integrate};
use kpat_model::meta::ClockAnchor;
use kpat_model::*;
use kpat_query::*;
use kpat_store::TableFile;
use kpat_store::tables::{
    CALL, CallRow, FOOTPRINT, FUNCTION, FootprintRow, FunctionRow, PACKET, PacketRow, SCHEMA_VERSION,
};
use std::collections::HashMap;
use std::path::Path;
use world::*;

const FUNCTIONS: &[&str] = &[
    "f0",
    "f1",
    "f2",
    "f3",
    "napi_gro_receive",
    "netif_receive_skb_list_internal",
    "ip_rcv",
    "tcp_v4_rcv",
    "tcp_queue_rcv",
    "skb_copy_datagram_iter",
    "enqueue_to_backlog",
    "process_backlog",
    "net:netif_receive_skb",
];
const SEC: i64 = 1_000_000_000;

fn log(dir: &Dir) -> LogWriter {
    LogWriter::create(
        &dir.path("x.kbl"),
        FUNCTIONS,
        &[(2, "eth0", [2, 0, 0, 0, 0, 9])],
        ClockAnchor::default(),
    )
}

fn run(dir: &Dir) -> (Report, Store) {
    let out = dir.path("x.kpat");
    let report = integrate(&dir.path("x.kbl"), &[], &out, &Options::default(), &mut |_| ()).unwrap();
    (report, Store::open(&out).unwrap())
}

fn calls(dir: &Dir) -> Vec<CallRow> {
    TableFile::open(&dir.path("x.kpat"), &CALL).unwrap().all().unwrap()
}

/// A tree of calls within `from..to`; what it costs is known to the caller only as its duration.
fn tree(log: &mut LogWriter, random: &mut Random, at: At, from: i64, to: i64, depth: i64) {
    let mut t = from + 1 + random.below(20);
    while depth < 5 && random.below(3) > 0 {
        let end = t + 10 + random.below((to - t) / 2 + 1);
        if end >= to - 1 {
            break;
        }
        if at.ctx == Context::Task && random.below(4) == 0 {
            // An interrupt cuts in here; it has callees of its own, and may itself be interrupted.
            let soft = At { ctx: Context::Softirq, packet: at.packet + 1000, ..at };
            tree(log, random, soft, t, end, 3);
        } else if at.ctx == Context::Softirq && random.below(4) == 0 {
            let hard = At { ctx: Context::Hardirq, packet: 0, ..at };
            tree(log, random, hard, t, end, 5);
        } else {
            tree(log, random, at, t, end, depth + 1);
        }
        t = end + 1 + random.below(30);
    }
    log.call(at, FUNCTIONS[random.below(4) as usize], from, to);
}

#[test]
fn sums_close() {
    let dir = Dir::new("close");
    let mut log = log(&dir);
    let mut random = Random(42);
    for i in 0..3000i64 {
        for cpu in 0..3u16 {
            let pid = if i % 5 == 0 { 0 } else { 100 + u32::from(cpu) };
            let at = At { cpu, ctx: Context::Task, pid, packet: 1 + (i % 900) as u64 };
            tree(&mut log, &mut random, at, SEC + i * 20_000, SEC + i * 20_000 + 15_000, 0);
        }
    }
    let pushed = log.calls;
    log.close();
    let (report, _) = run(&dir);
    assert_eq!(report.calls, pushed);
    let rows = calls(&dir);
    // Sum of self and interrupt time over each tree, by its root.
    let mut root_of: HashMap<i64, i64> = HashMap::new();
    let mut sum: HashMap<i64, i64> = HashMap::new();
    let (mut irq_taken, mut irq_there) = (0, 0);
    for (i, c) in rows.iter().enumerate() {
        assert_eq!(c.call_id, i as i64);
        let root = c.parent_id.map_or(c.call_id, |p| root_of[&p]);
        assert_eq!(c.depth == 0, c.parent_id.is_none());
        root_of.insert(c.call_id, root);
        *sum.entry(root).or_default() += c.self_ns.unwrap() + c.irq_ns.unwrap();
        irq_taken += c.irq_ns.unwrap();
        if c.ctx != 0 && c.parent_id.is_none() {
            irq_there += c.dur_ns.unwrap();
        }
        if let Some(p) = c.parent_id.map(|p| &rows[p as usize]) {
            assert!(p.entry_ns <= c.entry_ns && p.ctx == c.ctx);
            assert!(p.entry_ns + p.dur_ns.unwrap() >= c.entry_ns + c.dur_ns.unwrap());
        }
    }
    for c in rows.iter().filter(|c| c.parent_id.is_none()) {
        assert_eq!(sum[&c.call_id], c.dur_ns.unwrap(), "root {}", c.call_id);
    }
    // Each interrupt is taken off once, from one call.
    assert_eq!(irq_taken, irq_there);
    let functions: Vec<FunctionRow> = TableFile::open(&dir.path("x.kpat"), &FUNCTION).unwrap().all().unwrap();
    for f in &functions {
        let of = || rows.iter().filter(|c| c.func_id == f.func_id);
        assert_eq!(f.calls, of().count() as i64);
        assert_eq!(f.self_ns, of().map(|c| c.self_ns.unwrap()).sum::<i64>());
        assert_eq!(f.total_ns, of().map(|c| c.dur_ns.unwrap()).sum::<i64>());
        let mut packets: Vec<_> = of().filter_map(|c| c.packet_id).collect();
        packets.sort_unstable();
        packets.dedup();
        assert_eq!(f.packets, packets.len() as i64);
        let mut durations: Vec<i64> = of().map(|c| c.dur_ns.unwrap()).collect();
        durations.sort_unstable();
        if let Some(median) = f.median_ns {
            let exact = durations[(durations.len() - 1) / 2];
            assert!((median - exact).abs() as f64 <= exact as f64 / 60.0 + 1.0);
        }
    }
    let packets: Vec<PacketRow> = TableFile::open(&dir.path("x.kpat"), &PACKET).unwrap().all().unwrap();
    let self_of_packets: i64 = packets.iter().map(|p| p.kernel_ns).sum();
    let with_packet: i64 = rows.iter().filter(|c| c.packet_id.is_some()).map(|c| c.self_ns.unwrap()).sum();
    assert_eq!(self_of_packets, with_packet);
}

#[test]
fn a_list_counts_once_and_belongs_to_each() {
    let dir = Dir::new("list");
    let mut log = log(&dir);
    let at = At { cpu: 0, ctx: Context::Softirq, pid: 0, packet: 1 };
    let func = log.func("netif_receive_skb_list_internal");
    for packet in [2, 3] {
        log.push(0, Record::Member(Member { func, packet: PacketId(packet), entry: BootNs(1000) }));
        log.call(At { packet, ..at }, "ip_rcv", 1000 + 100 * packet as i64, 1050 + 100 * packet as i64);
    }
    let list = Call {
        func,
        ctx: Context::Softirq,
        flags: Call::LIST,
        skb_tag: 0,
        pid: 0,
        packet: PacketId(1),
        entry: BootNs(1000),
        dur_ns: 1000,
    };
    log.push(0, Record::Call(list));
    let point = log.func("net:netif_receive_skb");
    let point = Point {
        func: point,
        ctx: Context::Softirq,
        skb_tag: 0,
        pid: 0,
        packet: PacketId(3),
        at: BootNs(1320),
        len_bytes: 99,
        ends: false,
        put_off: false,
    };
    log.push(0, Record::Point(point));
    log.close();
    let (_, store) = run(&dir);
    let f = store.function("netif_receive_skb_list_internal", &CallFilter::default()).unwrap();
    assert_eq!(
        (f.function.calls, f.function.total_ns, f.function.self_ns, f.function.packets),
        (1, 1000, 900, 3)
    );
    // The same through a filter that all fit, and through one that none does.
    let slow = CallFilter {
        slower_than_ns: Some(1000),
        longest_first: true,
        limit: 5,
        count_packets: true,
        ..CallFilter::default()
    };
    let slow = store.function("netif_receive_skb_list_internal", &slow).unwrap();
    assert_eq!((slow.total, slow.packets, slow.calls.len()), (1, Some(1), 1));
    let none = CallFilter { from_ns: Some(5000), ..CallFilter::default() };
    assert_eq!(store.function("ip_rcv", &none).unwrap().total, 0);
    assert_eq!(store.function("ip_rcv", &CallFilter::default()).unwrap().calls[1].call.packet_id, Some(3));
    let p = store.packet(3).unwrap();
    assert_eq!((p.packet.calls, p.packet.points, p.packet.len_bytes), (2, 1, 99));
    assert_eq!(p.calls.len(), 1);
    assert_eq!(p.calls[0].name, "netif_receive_skb_list_internal");
    let inner = &p.calls[0].children[0];
    assert_eq!((inner.name.as_str(), inner.depth, inner.gap_ns), ("ip_rcv", 1, 300));
    assert!(inner.children[0].is_point());
    assert_eq!(inner.children[0].call.dur_ns, None);
    let touched = PacketFilter { func: Some("netif_receive_skb_list*".into()), ..Default::default() };
    assert_eq!(store.packets(&touched, PacketSort::Time, false, 0).unwrap().total, 3);
}

#[test]
fn handovers_and_verdicts() {
    let dir = Dir::new("hand");
    let mut log = log(&dir);
    let soft = |cpu, packet| At { cpu, ctx: Context::Softirq, pid: 0, packet };
    // 1: receive on CPU 0, backlog of CPU 1, socket queue, reader.
    log.call(soft(0, 1), "enqueue_to_backlog", 1_000, 2_000);
    log.call(soft(1, 1), "tcp_queue_rcv", 7_000, 8_000);
    log.call(soft(1, 1), "tcp_v4_rcv", 6_000, 9_000);
    log.call(soft(1, 1), "process_backlog", 5_000, 10_000);
    log.call(At { cpu: 1, ctx: Context::Task, pid: 77, packet: 1 }, "skb_copy_datagram_iter", 50_000, 60_000);
    log.push(
        1,
        Record::Process(Box::new(Process { at: BootNs(1), pid: 77, tgid: 70, comm: "reader".into() })),
    );
    // 2: dropped.
    log.call(soft(0, 2), "ip_rcv", 100_000, 101_000);
    log.event(soft(0, 2), 100_500, EventKind::Drop, 2);
    log.free(soft(0, 2), 100_600);
    // 3: still there at the end.
    log.call(soft(0, 3), "napi_gro_receive", 200_000, 201_000);
    log.close();
    let (report, store) = run(&dir);
    assert_eq!(report.packets, 3);
    let p = store.packet(1).unwrap();
    assert_eq!((p.packet.verdict, p.packet.pid), (verdict::DELIVERED, Some(77)));
    assert_eq!(p.process.unwrap().comm, "reader");
    let hand: Vec<_> =
        p.calls.iter().filter_map(|c| c.handover.as_ref()).map(|h| (h.kind, h.wait_ns)).collect();
    assert_eq!(hand, [(HandoverKind::Backlog, 3_000), (HandoverKind::SocketQueue, 40_000)]);
    let p = store.packet(2).unwrap();
    assert_eq!((p.packet.verdict, p.drop_reason.as_deref()), (verdict::DROPPED, Some("NOT_SPECIFIED")));
    assert_eq!(p.events.len(), 1);
    assert_eq!(store.packet(3).unwrap().packet.verdict, verdict::IN_FLIGHT);
    let dropped = PacketFilter { text: Some("not_spec".into()), ..Default::default() };
    assert_eq!(store.packets(&dropped, PacketSort::Time, false, 5).unwrap().rows[0].packet_id, 2);
    assert_eq!(store.events(&EventFilter::default(), 0).unwrap().rows[0].reason, "NOT_SPECIFIED");
    assert!(matches!(store.packet(9), Err(kpat_query::Error::NoSuchPacket { .. })));
    match store.function("ip_rvc", &CallFilter::default()) {
        Err(kpat_query::Error::NoSuchFunction { nearest, .. }) => {
            assert_eq!(nearest.as_deref(), Some("ip_rcv"))
        }
        other => panic!("{other:?}"),
    }
}

/// `netif_rx` passes two tracepoints in one call: nothing is handed over between them, but between the second and the
/// softirq, whatever else the sender's flow of control passes in the meantime.
#[test]
fn the_backlog_lies_between_queueing_and_receiving() {
    let dir = Dir::new("backlog");
    const POINTS: &[&str] = &[
        "net:net_dev_start_xmit",
        "net:netif_rx_entry",
        "net:netif_rx",
        "net:net_dev_xmit",
        "net:netif_receive_skb",
    ];
    let mut log = LogWriter::create(&dir.path("x.kbl"), POINTS, &[], ClockAnchor::default());
    let task = At { cpu: 1, ctx: Context::Task, pid: 7, packet: 1 };
    for (i, name) in POINTS[..4].iter().enumerate() {
        known::point(&mut log, task, name, 1_000 + 100 * i as i64);
    }
    known::point(&mut log, At { ctx: Context::Softirq, ..task }, POINTS[4], 5_000);
    log.close();
    let (_, store) = run(&dir);
    let p = store.packet(1).unwrap();
    let hand: Vec<_> = p.calls.iter().filter_map(|c| c.handover.as_ref()).collect();
    let backlog: Vec<_> = hand.iter().filter(|h| h.kind == HandoverKind::Backlog).collect();
    assert_eq!(backlog.len(), 1, "{hand:?}");
    assert_eq!((backlog[0].from.as_str(), backlog[0].to.as_str()), (POINTS[2], POINTS[4]));
    assert_eq!((backlog[0].from_ns, backlog[0].wait_ns), (1_300, 3_700));
}

/// With points alone: which driver's function a drop was in is decided by the order of what its CPU did, however long that took.
#[test]
fn a_drivers_drops_are_matched_by_order() {
    let dir = Dir::new("driver-drops");
    const POINTS: &[&str] = &[
        "net:net_dev_queue",
        "net:net_dev_start_xmit",
        "net:net_dev_xmit",
        "net:netif_receive_skb",
        "skb:kfree_skb",
    ];
    let mut log = LogWriter::create(&dir.path("x.kbl"), POINTS, &[], ClockAnchor::default());
    let mut now = SEC;
    let mut go = |packet: u64, ctx: Context, steps: &[(&str, u64, i64)]| {
        for &(step, of, later) in steps {
            now += later;
            let at = At { cpu: 1, ctx, pid: 7, packet: if of == 0 { packet } else { of } };
            match step {
                "drop" => log.event(at, now, EventKind::Drop, 2),
                name => known::point(&mut log, at, name, now),
            }
        }
        now += SEC / 10;
    };
    let [queue, give, back, receive, _] = [0, 1, 2, 3, 4].map(|n| POINTS[n]);
    let (soft, task) = (Context::Softirq, Context::Task);
    // The machine stands still for two seconds while the driver is at it.
    go(1, task, &[(queue, 0, 100), (give, 0, 100), ("drop", 0, 2 * SEC)]);
    // It has returned before a copy is dropped: it says so, or the CPU does something else, which takes no time at all.
    go(2, task, &[(queue, 0, 100), (give, 0, 100), (back, 0, 100), ("drop", 0, 100)]);
    go(3, soft, &[(queue, 0, 100), (give, 0, 100), (receive, 30, 50), ("drop", 0, 50)]);
    go(4, task, &[(queue, 0, 100), (give, 0, 100), (queue, 40, 50), ("drop", 0, 50)]);
    // A tunnel's function sends an answer before it drops what was too long.
    let answer = [(queue, 50, 50), (give, 50, 50), (back, 50, 50)];
    let whole = [&[(receive, 0, 100), (queue, 0, 100), (give, 0, 100)], &answer[..], &[("drop", 0, SEC)]];
    go(5, soft, &whole.concat());
    log.close();
    let (_, store) = run(&dir);
    let verdict = |id| verdict::name(store.packet(id).unwrap().packet.verdict);
    assert_eq!([1, 2, 3, 4, 5].map(verdict), ["dropped", "sent", "sent", "sent", "dropped"]);
}

fn try_it(dir: &Dir, captures: &[&str], out: &Path) -> kpat_integrate::Result<Report> {
    let captures: Vec<_> = captures.iter().map(|c| dir.path(c)).collect();
    integrate(&dir.path("x.kbl"), &captures, out, &Options::default(), &mut |_| ())
}

#[test]
fn empty_and_hostile_inputs() {
    let dir = Dir::new("hostile");
    let out = dir.path("x.kpat");
    std::fs::write(dir.path("x.kbl"), b"not a log at all, only text").unwrap();
    assert!(matches!(try_it(&dir, &[], &out), Err(Error::Log(_))));
    // A log without a record, a capture without a match.
    log(&dir).close();
    std::fs::write(dir.path("junk.pcap"), b"garbage garbage garbage").unwrap();
    assert!(matches!(try_it(&dir, &["junk.pcap"], &out), Err(Error::Capture(_))));
    assert!(matches!(try_it(&dir, &["missing.pcap"], &out), Err(Error::Capture(_))));
    let left: Vec<_> = std::fs::read_dir(&dir.0).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert!(left.iter().all(|n| !n.to_string_lossy().contains("kpat")), "{left:?}");
    let mut cap = Capture::new(&dir.path("w.pcapng"), &["a"]);
    let frame = ether([1; 6], [2; 6], 0x800, &ipv4([1, 2, 3, 4], [5, 6, 7, 8], 1, 17, 64, 8, &udp(1, 2, 0)));
    cap.frame(5 * SEC, 0, frame.clone(), 42, 0);
    cap.frame(i64::MAX - 5, 0, frame, 42, 0);
    cap.close();
    let report = try_it(&dir, &["w.pcapng"], &out).unwrap();
    assert_eq!((report.packets, report.frames, report.matched), (0, 2, 0));
    assert!(!report.warnings.is_empty());
    let store = Store::open(&out).unwrap();
    assert!(store.info().unwrap().clocks.is_empty());
    assert_eq!(store.packets(&PacketFilter::default(), PacketSort::Path, false, 3).unwrap().total, 0);
    // Never over something else.
    assert!(matches!(try_it(&dir, &[], &out), Err(Error::Exists { .. })));
    let other = dir.path("precious");
    std::fs::create_dir_all(&other).unwrap();
    let options = Options { overwrite: true, ..Options::default() };
    let refused = |out: &Path| match integrate(&dir.path("x.kbl"), &[], out, &options, &mut |_| ()) {
        Err(Error::NotReplaced { why, .. }) => why,
        other => panic!("{other:?}"),
    };
    assert!(refused(&other).contains("no manifest.json"));
    assert!(other.exists());
    let nowhere = dir.path("nowhere");
    std::os::unix::fs::symlink("gone", &nowhere).unwrap();
    assert!(refused(&nowhere).contains("no integrated log"));
    let note = out.join("notes.txt");
    std::fs::write(&note, "mine").unwrap();
    assert_eq!(refused(&out), "notes.txt in it is no part of an integrated log");
    assert_eq!(std::fs::read_to_string(&note).unwrap(), "mine");
    Store::open(&out).unwrap();
    std::fs::remove_file(note).unwrap();
    // A link gives way to the log; what it led to stays.
    let link = dir.path("link.kpat");
    std::os::unix::fs::symlink(&out, &link).unwrap();
    integrate(&dir.path("x.kbl"), &[], &link, &options, &mut |_| ()).unwrap();
    assert!(!link.is_symlink());
    Store::open(&link).unwrap();
    Store::open(&out).unwrap();
    let left = std::fs::read_dir(dir.path("")).unwrap().map(|e| e.unwrap().file_name());
    assert!(left.into_iter().all(|n| !n.to_string_lossy().contains(".old-")));
    integrate(&dir.path("x.kbl"), &[], &out, &options, &mut |_| ()).unwrap();
    // One of an older schema is refused by name, and replaced when that is asked for.
    let manifest = out.join("manifest.json");
    let text = std::fs::read_to_string(&manifest).unwrap();
    std::fs::write(&manifest, text.replace(&format!("\"schema\": {SCHEMA_VERSION}"), "\"schema\": 4"))
        .unwrap();
    assert!(matches!(
        Store::open(&out),
        Err(kpat_query::Error::Store(kpat_store::Error::TooOld { found: 4, .. }))
    ));
    integrate(&dir.path("x.kbl"), &[], &out, &options, &mut |_| ()).unwrap();
    Store::open(&out).unwrap();
}

/// Records that no kernel would write: absurd times and numbers, contradictions. Nothing panics, every call is kept.
#[test]
fn absurd_records() {
    let dir = Dir::new("absurd");
    let mut log = log(&dir);
    let mut random = Random(1);
    let mut n = 0;
    for i in 0..4000u64 {
        let extreme = [0, 1, -1, i64::MIN, i64::MAX, 1 << 40, random.below(1 << 30)];
        let pick = |r: &mut Random| extreme[r.below(7) as usize];
        let call = Call {
            func: FuncId(random.below(20) as u16),
            ctx: Context::from_u8(random.below(6) as u8),
            flags: random.below(8) as u8,
            skb_tag: 0,
            pid: random.below(3) as u32,
            packet: PacketId(pick(&mut random) as u64 | i & 3),
            entry: BootNs(pick(&mut random)),
            dur_ns: pick(&mut random) as u64,
        };
        log.push((i % 3) as u16, Record::Call(call));
        n += 1;
        let lineage = Lineage {
            kind: LineageKind::Segment,
            at: BootNs(pick(&mut random)),
            parent: PacketId(random.below(9) as u64),
            child: PacketId(random.below(9) as u64),
        };
        log.push(0, Record::Lineage(lineage));
        let header: Vec<u8> = (0..random.below(96)).map(|_| random.below(256) as u8).collect();
        let at = At { cpu: 0, ctx: Context::Task, pid: 1, packet: random.below(5) as u64 };
        log.print(
            at,
            pick(&mut random),
            2,
            &header,
            random.below(1 << 31) as u32,
            (random.below(9) as u16, 3),
        );
        log.free(at, pick(&mut random));
        n += 1;
    }
    log.close();
    let (report, store) = run(&dir);
    assert_eq!(report.calls, n);
    for p in store.packets(&PacketFilter::default(), PacketSort::Time, false, 0).unwrap().rows {
        store.packet(p.packet_id).unwrap();
    }
    let mut quiet = |_, _| true;
    let times = kpat_query::time::time(&store, &Default::default(), &mut quiet).unwrap();
    assert_eq!(times.closure.violations, 0, "{:?}", times.closure);
    let all = PacketFilter::default();
    let phases =
        kpat_query::phases::phases(&store, &all, &Default::default(), &mut quiet, &mut |_| ()).unwrap();
    assert_eq!(phases.open_sums, 0);
}

#[test]
fn a_cut_log_gives_what_is_there() {
    let dir = Dir::new("cut");
    let mut log = log(&dir);
    for i in 0..50_000i64 {
        let at = At { cpu: (i % 2) as u16, ctx: Context::Softirq, pid: 0, packet: 1 + i as u64 / 10 };
        log.call(at, "ip_rcv", SEC + i * 1000, SEC + i * 1000 + 500);
    }
    log.close();
    let bytes = std::fs::read(dir.path("x.kbl")).unwrap();
    std::fs::write(dir.path("x.kbl"), &bytes[..bytes.len() * 2 / 3]).unwrap();
    let (report, _) = run(&dir);
    assert!(report.calls > 10_000 && report.calls < 50_000);
    assert!(report.warnings.iter().any(|w| w.contains("not closed in order")));
}

#[test]
fn a_packet_at_another_device_has_the_headers_of_its_last_footprint() {
    let dir = Dir::new("place");
    let mut log = log(&dir);
    let at = At { cpu: 0, ctx: Context::Softirq, pid: 0, packet: 1 };
    let frame =
        ether([2; 6], [4; 6], 0x0800, &ipv4([10, 0, 0, 1], [10, 0, 0, 2], 77, 17, 64, 36, &udp(5, 6, 8)));
    log.call(at, "napi_gro_receive", SEC, SEC + 100);
    log.print(at, SEC, 2, &frame, frame.len() as u32, (0, 0));
    log.place(at, SEC + 50, 3, 0xf000_0001);
    // one whose footprint was lost has no headers to show
    log.place(At { packet: 2, ..at }, SEC + 60, 3, 0xf000_0001);
    log.close();
    run(&dir);
    let rows: Vec<FootprintRow> = TableFile::open(&dir.path("x.kpat"), &FOOTPRINT).unwrap().all().unwrap();
    let seen: Vec<_> = rows.iter().map(|r| (r.packet_id, r.at_ns, r.ifindex, r.netns)).collect();
    assert_eq!(seen, [(1, SEC, Some(2), None), (1, SEC + 50, Some(3), Some(0xf000_0001))]);
    assert_eq!((rows[1].ip_id, rows[1].dport), (Some(77), Some(6)));
}

/// A system event's stamp is its own though records of other CPUs come between, and one that was stamped is in its CPU's log late.
#[test]
fn system_events_have_the_kernels_stamp_or_bounds() {
    let dir = Dir::new("integrate-stamps");
    let mut log = log(&dir);
    let event = |kind, at: i64, timed, pid| {
        let (ctx, packet, text) = (Context::Task, PacketId::NONE, String::new());
        let at = BootNs(SEC + at);
        Record::Event(Box::new(Event { kind, ctx, pid, at, timed, packet, netns: 9, a: 2, b: 1, text }))
    };
    log.push(1, event(EventKind::Control, 100, Timed::Recorder, 1));
    log.flush();
    log.push(0, event(EventKind::Link, 100, Timed::Read { within_ns: 30 }, 0));
    log.push(1, event(EventKind::Link, 50, Timed::Kernel, 77));
    log.push(0, event(EventKind::Link, 200, Timed::Read { within_ns: 40 }, 0));
    log.push(2, event(EventKind::Link, 200, Timed::Kernel, 78));
    log.close();
    let (_, store) = run(&dir);
    let links = EventFilter { kinds: vec![EventKind::Link as i32], ..EventFilter::default() };
    let mut logged: Vec<_> = store
        .events(&links, 0)
        .unwrap()
        .rows
        .iter()
        .map(|e| (e.event.at_ns - SEC, e.event.cpu, e.event.pid, e.event.after_ns.map(|t| t - SEC)))
        .collect();
    logged.sort_unstable();
    assert_eq!(
        logged,
        [
            (50, Some(1), Some(77), None),
            (100, None, None, Some(70)),
            (200, None, None, Some(160)),
            (200, Some(2), Some(78), None),
        ]
    );
}
