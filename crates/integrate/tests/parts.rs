//! A recording in several files is one log: integrated together they give the tables of the same recording in one
//! file, byte for byte, in whatever order they are named; and what is not given is reported.

use crate::world;

use kpat_integrate::{Options, Report, integrate, integrate_parts};
use kpat_klog::{Codec, Encoder, Log, Writer, end_time};
use kpat_model::meta::{ClockAnchor, Json, Meta, Part, ROTATED, Summary, Task};
use kpat_model::*;
use kpat_query::*;
use std::path::{Path, PathBuf};
use world::*;

const MS: i64 = 1_000_000;
const FUNCTIONS: [&str; 4] = ["ip_rcv", "ip_rcv_finish", "ip_local_deliver", "icmp_rcv"];

fn anchor(boot: i64) -> ClockAnchor {
    ClockAnchor { boot: BootNs(boot), wall: WallNs(boot + 1_000_000 * MS), uncertainty_ns: 100 }
}

/// Pings on two CPUs, one packet a millisecond; some live for 40 ms, over the seams between the files.
fn record(dir: &Dir) -> PathBuf {
    let path = dir.path("x.kbl");
    let mut log = LogWriter::create(&path, &FUNCTIONS, &[(2, "eth0", [2; 6])], anchor(0));
    for i in 0..300i64 {
        let at =
            At { cpu: (i % 2) as u16, ctx: Context::Softirq, pid: 7 + (i / 50) as u32, packet: i as u64 + 1 };
        let t = i * MS + 1000;
        if i % 50 == 0 {
            let process = Process { at: BootNs(t), pid: at.pid, tgid: at.pid, comm: format!("task{i}") };
            log.push(at.cpu, Record::Process(Box::new(process)));
        }
        let long = if i % 10 == 0 { 40 * MS } else { MS / 2 };
        let header = ether(
            [2; 6],
            [4; 6],
            0x0800,
            &ipv4([10, 0, 0, 1], [10, 0, 0, 2], i as u16, 1, 64, 64, &icmp(8, 1, i as u16, 9)),
        );
        log.print(at, t, 2, &header, 98, (0, 0));
        log.call(at, "icmp_rcv", t + 400, t + 900);
        log.call(at, "ip_local_deliver", t + 300, t + long - 100);
        log.call(at, "ip_rcv", t + 100, t + long);
        log.free(At { cpu: at.cpu ^ 1, ..at }, t + long + 50);
    }
    log.close();
    path
}

/// The same records, ended and begun anew at two moments as the recorder does.
fn in_parts(dir: &Dir, whole: &Path) -> Vec<PathBuf> {
    let log = Log::open(whole).unwrap();
    let borders = [i64::MIN, 95 * MS, 201 * MS, i64::MAX];
    let mut paths = Vec::new();
    let mut tasks = Vec::new();
    let mut before = 0;
    for n in 1..borders.len() {
        let path = dir.path(&format!("p-{n:04}.kbl"));
        let mut w = Writer::create_part(&path).unwrap();
        let began = anchor(borders[n - 1].max(0));
        let part = Part { recording: "r".into(), number: n as u32, began, records_before: before };
        w.json(&Json::Meta(Box::new(Meta { part, ..log.meta().clone() }))).unwrap();
        w.json(&Json::Devices(log.devices().to_vec())).unwrap();
        if n > 1 {
            w.json(&Json::Tasks(tasks.clone())).unwrap();
        }
        let mut records = 0;
        for cpu in log.cpus() {
            let mut e = Encoder::new(cpu, Codec::Zstd);
            for r in log.records(cpu).filter(|r| (borders[n - 1]..borders[n]).contains(&end_time(r).0)) {
                if let Record::Process(p) = &r {
                    tasks.push(Task { at: p.at, pid: p.pid, tgid: p.tgid, comm: p.comm.clone() });
                }
                records += 1;
                e.record(&r);
            }
            w.chunk(e.finish().unwrap()).unwrap();
        }
        let last = n + 1 == borders.len();
        let end_reason = if last { "stopped" } else { ROTATED }.into();
        let summary = Summary { complete: true, end_reason, records, ..Summary::default() };
        w.json(&Json::Summary(Box::new(summary))).unwrap();
        before += records;
        paths.push(path);
    }
    paths
}

fn join(files: &[&PathBuf], out: &Path) -> Report {
    let files: Vec<PathBuf> = files.iter().map(|p| (*p).clone()).collect();
    integrate_parts(&files, &[], out, &Options::default(), &mut |_| ()).unwrap()
}

#[test]
fn files_of_a_recording_are_one_log() {
    let dir = Dir::new("parts-one");
    let whole = record(&dir);
    let parts = in_parts(&dir, &whole);
    integrate(&whole, &[], &dir.path("x.kpat"), &Options::default(), &mut |_| ()).unwrap();
    let report = join(&[&parts[2], &parts[0], &parts[1]], &dir.path("p.kpat"));
    assert_eq!(report.warnings, Vec::<String>::new());
    let mut tables = 0;
    for entry in std::fs::read_dir(dir.path("x.kpat")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if name.ends_with(".parquet") {
            let read = |log: &str| std::fs::read(dir.path(log).join(&name)).unwrap();
            assert!(read("x.kpat") == read("p.kpat"), "{name} differs");
            tables += 1;
        }
    }
    assert!(tables > 15, "{tables} tables");
}

#[test]
fn a_file_stands_alone_and_says_what_is_missing() {
    let dir = Dir::new("parts-alone");
    let parts = in_parts(&dir, &record(&dir));
    let records = |p: &Path| Log::open(p).unwrap().summary().unwrap().records;
    let report = join(&[&parts[1]], &dir.path("b.kpat"));
    assert_eq!(report.lost, records(&parts[0]));
    assert_eq!(report.warnings.len(), 2, "{:?}", report.warnings);
    let store = Store::open(&dir.path("b.kpat")).unwrap();
    // Named in the first file, and still known here.
    assert_eq!(store.process(7, 150 * MS).unwrap().comm, "task0");
    assert_eq!(store.info().unwrap().losses[0].cause, LossCause::MissingPart as i32);

    let report = join(&[&parts[2], &parts[0]], &dir.path("c.kpat"));
    assert_eq!(report.lost, records(&parts[1]));
    assert_eq!(report.warnings, [format!("file 2 of the recording was not given: {} records", report.lost)]);
    let store = Store::open(&dir.path("c.kpat")).unwrap();
    assert_eq!(store.process(9, 250 * MS).unwrap().comm, "task100");
}

#[test]
fn files_that_do_not_belong_together_are_refused() {
    let dir = Dir::new("parts-foreign");
    let whole = record(&dir);
    let parts = in_parts(&dir, &whole);
    let refused = |files: &[&PathBuf]| {
        let files: Vec<PathBuf> = files.iter().map(|p| (*p).clone()).collect();
        Log::open_parts(&files).err().unwrap().to_string()
    };
    assert!(refused(&[&parts[0], &whole]).contains("not files of one recording"));
    std::fs::copy(&parts[0], dir.path("copy.kbl")).unwrap();
    assert!(refused(&[&parts[0], &dir.path("copy.kbl")]).contains("both file 1"));
}
