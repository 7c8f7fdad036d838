//! `kpat app` and what it writes, over tables made by hand.

use crate::fixture;

use fixture::{Folder, START};
use kpat_store::TableWriter;
use kpat_store::tables::*;
use std::path::Path;
use std::process::{Command, Output};

fn kpat(folder: &Folder, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kpat")).args(args).current_dir(&folder.0).output().unwrap()
}

fn words(o: &Output) -> String {
    String::from_utf8_lossy(&o.stderr).into_owned()
}

fn fill<R: kpat_store::Row>(dir: &Path, rows: impl IntoIterator<Item = R>) {
    let mut w = TableWriter::create(dir).unwrap();
    rows.into_iter().for_each(|r| w.push(&r).unwrap());
    w.finish().unwrap();
}

/// A thread of the fixture whose name has an escape sequence in it.
const HOSTILE: i32 = 900;

fn socket(id: i64, ports: (i32, i32)) -> SocketRow {
    SocketRow {
        socket_id: id,
        first_ns: START,
        last_ns: START + 1_000_000_000,
        proto: 6,
        version: 4,
        local_addr: Some("10.0.0.1".into()),
        local_port: ports.0,
        peer_addr: Some("10.0.0.2".into()),
        peer_port: ports.1,
        pid: Some(HOSTILE),
        ..Default::default()
    }
}

fn event(at: i64, socket_id: i64, crossing: i32, size_bytes: i64) -> AppEventRow {
    AppEventRow {
        at_ns: START + at,
        socket_id,
        crossing,
        size_bytes,
        segments: 1,
        pid: Some(HOSTILE),
        ..Default::default()
    }
}

/// A request and its answer, seen at both ends, cut by TCP into packets of which one is sent again.
fn both_ends(log: &Path) {
    let other = SocketRow {
        local_addr: Some("10.0.0.2".into()),
        peer_addr: Some("10.0.0.1".into()),
        ..socket(8, (80, 40000))
    };
    let unknown = SocketRow { socket_id: 9, ..SocketRow::default() };
    fill(log, [socket(7, (40000, 80)), other, unknown]);
    fill(log, Vec::<TcpStateRow>::new());
    fill(log, Vec::<GapRow>::new());
    let at = |at, id, crossing, size, offset| AppEventRow {
        offset: Some(offset),
        ..event(at, id, crossing, size)
    };
    fill(
        log,
        [
            event(100, 7, 2, -11),
            // of a socket that was never announced
            event(200, 9, 2, 166_220),
            at(1000, 7, 2, 300, 0),
            at(1100, 7, 6, 300, 0),
            at(2000, 8, 10, 200, 0),
            at(2100, 8, 10, 100, 200),
            at(2600, 8, 2, 5000, 0),
            at(2700, 8, 6, 2500, 0),
            at(2800, 8, 6, 2500, 0),
            at(2900, 8, 6, 3000, 2000),
            at(3500, 7, 10, 5000, 0),
            at(4500, 7, 2, 20, 300),
            at(5_004_600, 7, 2, 30, 320),
        ],
    );
}

fn lines(folder: &Folder, name: &str) -> Vec<serde_json::Value> {
    let text = std::fs::read_to_string(folder.0.join(name)).unwrap();
    text.lines().map(|l| serde_json::from_str(l).unwrap()).collect()
}

#[test]
fn a_trace_is_what_was_written_and_what_had_been_read_before() {
    let folder = Folder::new("app-trace");
    fixture::integrated(&folder);
    both_ends(&folder.0.join("x.kpat"));
    let done = kpat(&folder, &["app", "export", "x.kpat", "-o", "x.trace"]);
    assert!(done.status.success(), "{}", words(&done));
    let all = lines(&folder, "x.trace");
    assert_eq!((&all[0]["kpat_app_trace"], &all[0]["layer"]), (&1.into(), &"application".into()));
    assert_eq!((&all[1]["a"]["port"], &all[1]["a"]["seen"]), (&40000.into(), &"written".into()));
    assert_eq!((&all[1]["b"]["port"], &all[1]["b"]["seen"]), (&80.into(), &"written".into()));
    let writes: Vec<String> = all[2..all.len() - 1].iter().map(ToString::to_string).collect();
    assert_eq!(
        writes,
        [
            r#"{"c":1,"n":300,"s":"a","t":0}"#,
            r#"{"c":1,"n":5000,"r":300,"s":"b","t":1600,"w":500}"#,
            r#"{"c":1,"n":20,"r":5000,"s":"a","t":3500,"w":1000}"#,
            r#"{"c":1,"n":30,"s":"a","t":5003600}"#,
        ]
    );
    assert_eq!(all.last().unwrap()["end"]["bytes"], 5350);

    // as the network got it: what is sent again counts once
    let done =
        kpat(&folder, &["app", "export", "x.kpat", "-o", "n.trace", "--as", "network", "--socket", "8"]);
    assert!(done.status.success(), "{}", words(&done));
    let all = lines(&folder, "n.trace");
    let sizes: Vec<i64> = all.iter().filter_map(|l| l["n"].as_i64()).collect();
    assert_eq!(sizes, [300, 2500, 2500], "the other end belongs to the connection");

    // ns-3's form: from 1, no type B, no line end behind the last
    let done = kpat(&folder, &["app", "export", "x.kpat", "-o", "ns3", "--format", "ns3"]);
    assert!(done.status.success(), "{}", words(&done));
    let read = |name: &str| std::fs::read_to_string(folder.0.join("ns3").join(name)).unwrap();
    assert_eq!(
        (read("tcp-1a.dat"), read("tcp-1b.dat")),
        ("1 P 1 300\n2 P 1 20\n3 P 6 30".into(), "1 P 1 5000".into())
    );
    let again = kpat(&folder, &["app", "export", "x.kpat", "-o", "ns3", "--format", "ns3"]);
    assert_eq!(again.status.code(), Some(1));
    assert!(words(&again).contains("not empty"), "{}", words(&again));

    let table = kpat(&folder, &["app", "export", "x.kpat", "--format", "tsv"]);
    let text = String::from_utf8(table.stdout).unwrap();
    assert!(text.contains("1\tb\ttcp\t1600\t5000\t300\t500\n"), "{text}");
}

/// The other end was on another host: what was read here stands for what it wrote, and the trace says so.
#[test]
fn the_end_that_was_not_recorded_is_what_was_read() {
    let folder = Folder::new("app-alone");
    fixture::integrated(&folder);
    let log = folder.0.join("x.kpat");
    both_ends(&log);
    fill(&log, [socket(7, (40000, 80))]);
    let done = kpat(&folder, &["app", "export", "x.kpat", "-o", "x.trace"]);
    assert!(done.status.success(), "{}", words(&done));
    let all = lines(&folder, "x.trace");
    assert_eq!((&all[1]["a"]["seen"], &all[1]["b"]["seen"]), (&"written".into(), &"read".into()));
    assert_eq!(all[3].to_string(), r#"{"c":1,"n":5000,"r":300,"s":"b","t":2500,"w":2500}"#);
    assert_eq!(all[4].to_string(), r#"{"c":1,"n":20,"r":5000,"s":"a","t":3500,"w":1000}"#);
}

/// Receptions are logged late, here by more than a row group; a state; a gap between events. The table has all in order.
#[test]
fn every_event_is_a_line_in_order_of_time() {
    const EVENTS: i64 = 300_000;
    let folder = Folder::new("app-tsv");
    fixture::integrated(&folder);
    let log = folder.0.join("x.kpat");
    let late = |i: i64| if i % 1000 == 999 && i > 200_000 { (i - 200_000) * 10 + 5 } else { i * 10 };
    fill(&log, [socket(7, (40000, 80)), socket(8, (80, 40000))]);
    fill(&log, (0..EVENTS).map(|i| event(late(i), 7 + i % 2, if i % 3 == 0 { 2 } else { 7 }, i % 5 - 1)));
    fill(
        &log,
        [TcpStateRow {
            at_ns: START + 1_000_003,
            socket_id: 7,
            crossing: 5,
            snd_cwnd: 33,
            ..Default::default()
        }],
    );
    fill(&log, [GapRow { from_ns: START + 2_000_001, to_ns: START + 2_000_009, cpu: 1, lost: 12 }]);
    let done = kpat(&folder, &["app", "x.kpat", "--to", "tsv"]);
    assert!(done.status.success(), "{}", words(&done));
    assert!(words(&done).contains("12 events are missing"), "{}", words(&done));
    let text = String::from_utf8(done.stdout).unwrap();
    let mut lines = text.lines();
    let head: Vec<&str> = lines.next().unwrap().split('\t').collect();
    let rows: Vec<Vec<&str>> = lines.map(|l| l.split('\t').collect()).collect();
    assert!(rows.iter().all(|r| r.len() == head.len()));
    let times: Vec<i64> = rows.iter().map(|r| r[0].parse().unwrap()).collect();
    assert!(times.is_sorted(), "in order");
    let count = |event: &str| rows.iter().filter(|r| r[2] == event).count();
    assert_eq!((count("socket"), count("tcp-state"), count("gap")), (2, 1, 1));
    assert_eq!(count("send") + count("from-device"), EVENTS as usize);
    let gap = rows.iter().position(|r| r[2] == "gap").unwrap();
    assert!(times[gap - 1] <= START + 2_000_001 && times[gap + 1] > START + 2_000_001);
    let column = |name: &str| head.iter().position(|h| *h == name).unwrap();
    assert_eq!((rows[gap][column("lost")], rows[gap][column("cpu")]), ("12", "1"));
    let state = rows.iter().find(|r| r[2] == "tcp-state").unwrap();
    assert_eq!(state[column("snd_cwnd_segments")], "33");
    let of = rows.iter().find(|r| r[2] == "socket").unwrap();
    assert_eq!((of[column("local")], of[column("peer")]), ("10.0.0.1:40000", "10.0.0.2:80"));
    assert!(text.contains("\\x1b[31m") && !text.contains('\x1b'), "names cannot reach the terminal");

    let one = kpat(&folder, &["app", "x.kpat", "--to", "tsv", "--socket", "8", "-o", "one.tsv"]);
    assert!(one.status.success() && one.stdout.is_empty(), "{}", words(&one));
    let text = std::fs::read_to_string(folder.0.join("one.tsv")).unwrap();
    assert_eq!(text.lines().count() as i64, 1 + 1 + EVENTS / 2 + 1, "head, socket, its events, the gap");
    let none = kpat(&folder, &["app", "x.kpat", "--to", "tsv", "--socket", "9"]);
    assert_eq!(none.status.code(), Some(2));
    assert!(words(&none).contains("no socket 9"), "{}", words(&none));
    let strict = kpat(&folder, &["app", "x.kpat", "--to", "tsv", "-o", "all.tsv", "--strict"]);
    assert_eq!(strict.status.code(), Some(3));
}
