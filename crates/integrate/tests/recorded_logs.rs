//! Logs that a recorder wrote, with what the generators, tc and nstat counted beside them: made-up worlds say what
//! integration does with records, these say which records there are.
//!
//! Each is the record of a scenario of the lab (`lab/scenarios/queue-drops.toml`, `socket-drops.toml`), by functions or by
//! tracepoints, written anew by `examples/repeat.rs`, which leaves out the machine's name. Those that name no kernel are of Linux
//! 7.2 (functions) and 6.18 (points). Each says itself what it is of.

use crate::repeat;
use crate::world;

use kpat_integrate::{Options, Report, integrate};
use kpat_klog::Log;
use kpat_model::*;
use kpat_query::{PacketFilter, PacketSort, Store, verdict};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use world::Dir;

fn fixtures() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/recorded_logs");
    let files = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path());
    let mut logs: Vec<PathBuf> = files.filter(|p| p.extension().is_some_and(|e| e == "kbl")).collect();
    logs.sort();
    assert!(logs.len() >= 2);
    logs
}

fn run(log: &Path, dir: &Dir) -> (Report, Store) {
    let out = dir.path("x.kpat");
    let report = integrate(log, &[], &out, &Options::default(), &mut |_| ()).unwrap();
    let store = Store::open(&out).unwrap();
    (report, store)
}

/// Kernel, and whether by tracepoints.
const KINDS: &[(&str, bool)] = &[
    ("6.1", false),
    ("6.1", true),
    ("6.12", false),
    ("6.12", true),
    ("6.18", true),
    ("7.2", false),
    ("7.2", true),
];

/// A log of each kernel that is supported, by both ways to record.
#[test]
fn there_is_one_of_each_kernel_and_mechanism() {
    let mut found = BTreeSet::new();
    for path in fixtures() {
        let log = Log::open(&path).unwrap();
        let meta = log.meta();
        assert!(meta.hostname.is_empty() && meta.boot_id.is_empty(), "{} names its machine", path.display());
        let series = meta.kernel_release.splitn(3, '.').take(2).collect::<Vec<_>>().join(".");
        found.insert((series, meta.mechanism == "tracepoint"));
    }
    for (series, points) in KINDS {
        assert!(found.contains(&((*series).to_owned(), *points)), "{series}, {points}: {found:?}");
    }
}

/// `truth.txt`: by log and destination port, how many of each verdict, as others than kpat counted.
#[test]
fn verdicts_are_as_the_kernel_counted() {
    let truth = include_str!("recorded_logs/truth.txt");
    let truth: Vec<Vec<&str>> =
        truth.lines().filter(|l| !l.starts_with('#')).map(|l| l.split_whitespace().collect()).collect();
    for log in fixtures() {
        let name = log.file_stem().unwrap().to_str().unwrap();
        let dir = Dir::new(&format!("recorded-{name}"));
        let (_, store) = run(&log, &dir);
        let packets = store.packets(&PacketFilter::default(), PacketSort::Time, false, 0).unwrap().rows;
        let of_log = || truth.iter().filter(|t| t[0] == name);
        assert!(of_log().count() > 0, "no truth for {name}");
        for t in of_log() {
            let (port, code): (i32, _) = (t[1].parse().unwrap(), verdict::from_name(t[2]).unwrap());
            let n = packets.iter().filter(|p| p.dport == Some(port) && p.verdict == code).count();
            assert_eq!(n, t[3].parse::<usize>().unwrap(), "{t:?}");
        }
        let c = store.conservation().unwrap();
        assert_eq!(c.differences, [], "{name}");
    }
}

/// What a made-up world may write: ends of packets where recorders say them, and headers of the length that they have.
#[test]
fn made_up_worlds_write_what_recorders_write() {
    let (mut ends, mut longest) = (BTreeSet::new(), 0);
    for path in fixtures() {
        let log = Log::open(&path).unwrap();
        let name = |f: FuncId| log.meta().functions.iter().find(|m| m.id == f.0).unwrap().name.clone();
        let mut ended = 0;
        for (_, r) in log.all_merged() {
            let end = match &r {
                Record::Call(c) if c.flags & Call::ENDS != 0 => Some(c.func),
                Record::Point(p) if p.ends => Some(p.func),
                Record::Footprint(f) => {
                    longest = longest.max(f.header.len());
                    None
                }
                _ => None,
            };
            if let Some(func) = end {
                ends.insert(name(func));
                ended += 1;
            }
        }
        assert!(ended > 0, "{} says of no packet that it is over", path.display());
    }
    assert!(ends.contains("skb:kfree_skb") || ends.contains("skb:consume_skb"), "{ends:?}");
    assert!(
        ends.iter().all(|e| [world::ENDS, "skb:kfree_skb", "skb:consume_skb"].contains(&e.as_str())),
        "{ends:?}"
    );
    assert!((1..=FootprintRecord::MAX_HEADER).contains(&longest));
}

/// Packets that wait on however idle they are (`FEW` in src/packets.rs).
const FEW: u64 = 4096;

/// Memory is what is open at a time: a recorded log ten times as long takes no more.
#[test]
fn what_is_held_of_a_recorded_log_does_not_grow() {
    for path in fixtures() {
        let held = |times| {
            let dir = Dir::new(&format!("repeat-{times}"));
            let long = dir.path("long.kbl");
            repeat::repeat(&path, &long, times);
            let (report, store) = run(&long, &dir);
            let late =
                store.info().unwrap().provenance.into_iter().find(|p| p.key == "packets.late").unwrap();
            assert_eq!(late.value, "0", "no packet is ended before its last record");
            println!("{}: {} packets, held {:?}", path.display(), report.packets, report.held);
            report.held.packets
        };
        // Longer than an idle packet is waited for where many are.
        let (short, long) = (held(12), held(60));
        assert!(long <= (short + short / 4).max(FEW + FEW / 4), "{}: {short} {long}", path.display());
    }
}

/// Who follows a recording reads on, and forgets what is old: of packets that begin later everything is as in the whole log.
#[test]
fn a_log_that_grew_and_forgot_its_beginning_tells_the_same_of_what_comes_later() {
    let mut forgotten = 0;
    for path in fixtures() {
        let name = path.file_stem().unwrap().to_str().unwrap();
        let dir = Dir::new(&format!("grown-{name}"));
        let (whole, growing) = (dir.path("whole.kbl"), dir.path("growing.kbl"));
        repeat::repeat(&path, &whole, 40);
        let bytes = std::fs::read(&whole).unwrap();
        // In steps that end within chunks, which are not read before they are whole.
        std::fs::write(&growing, &bytes[..bytes.len() / 3]).unwrap();
        let mut log = Log::open(&growing).unwrap();
        for end in (bytes.len() / 3..bytes.len()).step_by(10_007).chain([bytes.len()]) {
            std::fs::write(&growing, &bytes[..end]).unwrap();
            log.grow().unwrap();
        }
        assert!(!log.grow().unwrap() && log.issues().is_empty(), "{:?}", log.issues());
        assert_eq!(*log.end_state(), kpat_klog::EndState::Complete);
        let opened = Log::open(&whole).unwrap();
        assert_eq!((log.chunk_index(), log.devices()), (opened.chunk_index(), opened.devices()));
        let (_, first, last) = repeat::extent(&log);
        let at = |tenths: i64| first + (last - first) / 10 * tenths;
        // Twice, as it goes on.
        log.forget(BootNs(at(2)));
        log.forget(BootNs(at(4)));
        let kept: u64 = log.chunk_index().iter().map(|c| u64::from(c.count)).sum();
        let gone = log.forgotten().map_or(0, |f| f.records);
        assert_eq!(gone + kept, log.summary().unwrap().records);
        forgotten += gone;
        let (_, all) = run(&whole, &dir);
        let out = dir.path("rest.kpat");
        kpat_integrate::integrate_opened(&log, &[growing], &[], &out, &Options::default(), &mut |_| ())
            .unwrap();
        let rest = Store::open(&out).unwrap();
        let list = |s: &Store| {
            let rows = s.packets(&PacketFilter::default(), PacketSort::Time, false, 0).unwrap().rows;
            rows.into_iter().filter(|p| p.first_ns > at(6)).collect::<Vec<_>>()
        };
        let (expected, found) = (list(&all), list(&rest));
        assert!(expected.len() > 100, "{name}: {}", expected.len());
        assert_eq!(expected.len(), found.len(), "{name}");
        for (e, f) in expected.iter().zip(&found) {
            assert_eq!(e, f, "{name}");
            let task = |s: &Store| e.pid.and_then(|pid| s.process(pid, e.last_ns).map(|p| p.comm.clone()));
            assert_eq!(task(&all), task(&rest), "{name}");
        }
        let losses = |s: &Store| s.info().unwrap().losses.iter().map(|l| l.count).sum::<i64>();
        assert_eq!((losses(&all), all.start_ns()), (losses(&rest), rest.start_ns()), "{name}");
    }
    assert!(forgotten > 10_000, "{forgotten}");
}
