//! Tasks that sleep or are preempted in the midst of a call: that time is nobody's self time, and a row of its own.

use crate::known;
use crate::world;

use kpat_model::meta::{ClockAnchor, Cost};
use kpat_model::*;
use kpat_query::Store;
use kpat_query::phases::{Boundaries, Phase, way};
use kpat_query::time::{TimeQuestion, TimeReport, time};
use kpat_store::tables::{CallRow, PauseRow};
use world::*;

const SEC: i64 = 1_000_000_000;
const FUNCTIONS: &[&str] = &[
    "ip_rcv",
    "udp_rcv",
    "__udp_enqueue_schedule_skb",
    "skb_copy_datagram_iter",
    "ip_send_skb",
    "__dev_queue_xmit",
];

fn open(dir: &Dir) -> Store {
    known::open(dir, "x", &|_| "network", Cost::default())
}

fn pause(
    log: &mut LogWriter,
    pid: u32,
    (from, to): (i64, i64),
    preempted: bool,
    wait_ns: u32,
    cpus: (u16, u16),
) {
    let pause = OffCpu {
        pid,
        from: BootNs(from),
        to: BootNs(to),
        preempted,
        wait_ns,
        more: false,
        cpu_out: cpus.0,
        cpu_in: cpus.1,
        sleep: None,
    };
    log.push(cpus.1, Record::OffCpu(pause));
}

fn all(store: &Store) -> TimeReport {
    time(store, &TimeQuestion::default(), &mut |_, _| true).unwrap()
}

/// A sender is preempted in the midst of sending, and goes on on another CPU.
#[test]
fn preempted_while_sending() {
    let dir = Dir::new("pause-sender");
    let mut log = LogWriter::create(&dir.path("x.kbl"), FUNCTIONS, &[], ClockAnchor::default());
    for n in 0..50u64 {
        let t = SEC + n as i64 * 1_000_000;
        let task = At { cpu: 1, ctx: Context::Task, pid: 7, packet: n + 1 };
        // Before the call: nothing of the packet's.
        pause(&mut log, 7, (t - 50_000, t - 10_000), false, 3_000, (0, 0));
        pause(&mut log, 7, (t + 3_000, t + 40_000), true, 0, (0, 1));
        // Interrupts of both CPUs while it was on the other, or on none: not its. One while it was on the second.
        let soft = At { cpu: 0, ctx: Context::Softirq, pid: 9, packet: 1_000 + n };
        log.call(soft, "ip_rcv", t + 20_000, t + 21_000);
        log.call(At { cpu: 1, ..soft }, "udp_rcv", t + 41_000, t + 41_500);
        log.call(task, "__dev_queue_xmit", t + 2_000, t + 44_000);
        log.call(task, "ip_send_skb", t, t + 45_000);
    }
    log.close();
    let store = open(&dir);
    let r = all(&store);
    assert_eq!((r.closure.violations, r.closure.clamped), (0, 0));
    assert_eq!(r.closure.off_ns, 50 * 37_000);
    assert_eq!(r.closure.irq_ns, 50 * 500);
    let f = |name: &str| r.groups[0].functions.iter().find(|f| f.name == name).unwrap();
    assert_eq!((f("__dev_queue_xmit").off_ns, f("__dev_queue_xmit").own.sum()), (50 * 37_000, 50 * 4_500));
    assert_eq!((f("ip_send_skb").off_ns, f("ip_send_skb").own.sum()), (0, 50 * 3_000));
    let wait = r.groups[0].waits.iter().find(|w| w.kind == Phase::Scheduled).unwrap();
    assert_eq!((wait.time.count(), wait.time.sum()), (50, 50 * 37_000));
    // Own time, waits and interrupts are the path: nothing is counted twice.
    let packets = |of: i64| of / 50;
    let sent =
        time(&store, &TimeQuestion { packet: Some(1), ..TimeQuestion::default() }, &mut |_, _| true).unwrap();
    let g = &sent.groups[0];
    assert_eq!(g.path.sum(), g.processing.sum() + g.waiting.sum() + g.unrecorded.sum());
    assert_eq!((g.processing.sum(), g.waiting.sum(), g.unrecorded.sum()), (7_500, packets(50 * 37_000), 500));
    assert_eq!(store.table::<PauseRow>().unwrap().rows(), 100);
    let calls: Vec<CallRow> = store.table::<CallRow>().unwrap().all().unwrap();
    assert!(calls.iter().all(|c| c.off_ns.is_some()));
}

/// A reader sleeps until the packet comes, and then waits for its CPU; it faults while it copies.
#[test]
fn woken_and_not_yet_running() {
    let dir = Dir::new("pause-reader");
    let mut log = LogWriter::create(&dir.path("x.kbl"), FUNCTIONS, &[], ClockAnchor::default());
    let t = SEC;
    let soft = At { cpu: 0, ctx: Context::Softirq, pid: 0, packet: 1 };
    let task = At { cpu: 1, ctx: Context::Task, pid: 7, packet: 1 };
    log.call(soft, "__udp_enqueue_schedule_skb", t + 2_000, t + 3_000);
    log.call(soft, "udp_rcv", t + 1_000, t + 4_000);
    log.call(soft, "ip_rcv", t, t + 5_000);
    // Asleep since long, woken in the enqueueing, running 6 us later.
    pause(&mut log, 7, (t - 900_000, t + 10_000), false, 6_000, (1, 1));
    pause(&mut log, 7, (t + 13_000, t + 20_000), false, 2_000, (1, 1));
    log.call(task, "skb_copy_datagram_iter", t + 12_000, t + 22_000);
    log.close();
    let store = open(&dir);
    let way = way(&store, 1, &Boundaries::default()).unwrap();
    let got: Vec<(Phase, i64, i64)> =
        way.segments.iter().map(|s| (s.phase, s.from_ns - t, s.to_ns - t)).collect();
    assert_eq!(
        got,
        [
            (Phase::NetworkRx, 0, 1_000),
            (Phase::TransportRx, 1_000, 2_000),
            (Phase::SocketRx, 2_000, 3_000),
            (Phase::SocketQueue, 3_000, 4_000),
            (Phase::Scheduled, 4_000, 10_000),
            (Phase::SocketQueue, 10_000, 12_000),
            (Phase::CopyToUser, 12_000, 13_000),
            (Phase::Asleep, 13_000, 18_000),
            (Phase::Scheduled, 18_000, 20_000),
            (Phase::CopyToUser, 20_000, 22_000),
        ]
    );
    let r = all(&store);
    let f = r.groups[0].functions.iter().find(|f| f.name == "skb_copy_datagram_iter").unwrap();
    assert_eq!((f.own.sum(), f.off_ns), (3_000, 7_000));
}
