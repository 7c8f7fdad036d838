//! `kpat why` over tables made by hand: a request, its answer after a while, and a second request behind a full window.

use crate::fixture;

use fixture::{Folder, START};
use kpat_model::Crossing::{self, *};
use kpat_store::TableWriter;
use kpat_store::tables::*;
use serde_json::Value;
use std::path::Path;
use std::process::Command;

fn kpat(folder: &Folder, args: &[&str]) -> (i32, String, String) {
    let done = Command::new(env!("CARGO_BIN_EXE_kpat")).args(args).current_dir(&folder.0).output().unwrap();
    let text = |b: &[u8]| String::from_utf8(b.to_vec()).unwrap();
    (done.status.code().unwrap(), text(&done.stdout), text(&done.stderr))
}

fn fill<R: kpat_store::Row>(dir: &Path, rows: impl IntoIterator<Item = R>) {
    let mut w = TableWriter::create(dir).unwrap();
    rows.into_iter().for_each(|r| w.push(&r).unwrap());
    w.finish().unwrap();
}

fn socket(id: i64, own: (&str, i32), peer: (&str, i32), bytes: (i64, i64)) -> SocketRow {
    SocketRow {
        socket_id: id,
        first_ns: START,
        last_ns: START + 1_000_000_000,
        proto: 6,
        version: 4,
        local_addr: Some(own.0.into()),
        local_port: own.1,
        peer_addr: Some(peer.0.into()),
        peer_port: peer.1,
        sent_bytes: bytes.0,
        received_bytes: bytes.1,
        sent_seq: Some(if own.1 == 80 { 5000 } else { 900 }),
        received_seq: Some(if own.1 == 80 { 900 } else { 5000 }),
        ..Default::default()
    }
}

/// At this microsecond.
fn at(us: i64, socket_id: i64, what: Crossing, offset: i64, size_bytes: i64) -> AppEventRow {
    AppEventRow {
        at_ns: START + us * 1000,
        socket_id,
        crossing: what as i32,
        size_bytes,
        segments: 1,
        offset: Some(offset),
        asked_bytes: (what == ToTransport).then_some(size_bytes),
        ..Default::default()
    }
}

fn state(us: i64, what: Crossing, busy: i32) -> TcpStateRow {
    TcpStateRow {
        at_ns: START + us * 1000,
        socket_id: 7,
        crossing: what as i32,
        state: 1,
        busy,
        ..Default::default()
    }
}

fn connection(log: &Path, gaps: Vec<GapRow>) {
    let (a, b) = (("10.0.0.1", 40000), ("10.0.0.2", 80));
    let datagrams = SocketRow { socket_id: 9, proto: 17, ..socket(9, a, b, (10, 0)) };
    fill(log, [socket(7, a, b, (3000, 200)), socket(8, b, a, (200, 3000)), datagrams]);
    fill(
        log,
        [
            state(0, ToDevice, 1),
            state(60_000, FromNetwork, 1),
            state(60_200, ToTransport, 2),
            state(95_000, FromNetwork, 2),
        ],
    );
    fill(log, gaps);
    // What their threads did between reading and writing, us: from, to, ran, waited for a CPU; the sender's slept once.
    let did = |id: i64, from: i64, to: i64, ran: i64, waited: i64, slept: i64| ThreadTimeRow {
        from_ns: START + from * 1000,
        to_ns: START + to * 1000,
        socket_id: id,
        thread: 1,
        ran_ns: ran * 1000,
        waited_ns: waited * 1000,
        slept,
    };
    fill(log, [did(8, 15_100, 40_000, 0, 20_000, 0), did(7, 52_000, 60_200, 1_200, 0, 1)]);
    let way = |us: i64, id: i64, to: i64, offset: i64, n: i64, read: i64| {
        vec![
            at(us, id, ToDevice, offset, n),
            at(us + 1000, id, ToDriver, offset, n),
            at(us + 11_000, to, FromDevice, offset, n),
            at(us + 11_000, to, ToSocket, offset, n),
            at(read, to, Recv, offset, n),
        ]
    };
    let mut all = vec![at(0, 7, ToTransport, 0, 1000), at(200, 7, Send, 0, 1000)];
    all.extend(way(100, 7, 8, 0, 1000, 15_100));
    // the answer, 24.9 ms later
    all.push(at(40_000, 8, ToTransport, 0, 200));
    all.extend(way(40_100, 8, 7, 0, 200, 52_000));
    all.extend([at(60_200, 7, ToTransport, 1000, 2000), at(60_300, 7, Send, 1000, 2000)]);
    all.extend(way(95_200, 7, 8, 1000, 2000, 110_200));
    all.sort_by_key(|e| e.at_ns);
    fill(log, all);
}

#[test]
fn a_connection_adds_up_in_text_and_in_json() {
    let folder = Folder::new("why");
    fixture::integrated(&folder);
    connection(&folder.0.join("x.kpat"), Vec::new());
    let (code, text, words) = kpat(&folder, &["why", "7", "x.kpat"]);
    assert_eq!((code, words.as_str()), (0, ""));
    let v: Value = serde_json::from_str(&kpat(&folder, &["why", "7", "x.kpat", "--json"]).1).unwrap();
    let ns = |stage: &str| {
        let all = v["stages"].as_array().unwrap();
        all.iter().find(|s| s["stage"] == stage).map_or(0, |s| s["ns"].as_i64().unwrap())
    };
    // from 0 to 110.2 ms
    assert_eq!(v["whole_ns"], 110_200_000);
    for (stage, us) in [
        ("transport", 100),
        ("queue", 2_000),
        ("driver and wire", 20_000),
        // two writes lay unread, and the peer thought about its answer
        ("peer's application", 4_000 + 24_900 + 4_000),
        ("answer", 12_000),
        ("application", 8_200),
        ("receive window", 35_000),
    ] {
        assert_eq!(ns(stage), us * 1000, "{stage}: {text}");
    }
    let threads = |stage: &str| {
        let s = v["stages"].as_array().unwrap().iter().find(|s| s["stage"] == stage).unwrap();
        ["ran_ns", "waited_ns", "slept_ns"].map(|k| s[k].as_i64())
    };
    // Who never slept ran all the rest; of what lay unread nothing is known.
    assert_eq!(threads("peer's application"), [4_900_000, 20_000_000, 0].map(Some));
    assert_eq!(threads("application"), [1_200_000, 0, 7_000_000].map(Some));
    assert_eq!(threads("queue"), [None; 3]);
    assert!(
        text.contains("peer's application: they ran 4.900 ms (19.7 %), waited for a CPU 20.000 ms"),
        "{text}"
    );
    assert!(text.contains("of the other 8.000 ms it is not known"), "{text}");
    assert!(text.contains("application: they ran 1.200 ms (14.6 %), slept 7.000 ms (85.4 %)"), "{text}");
    assert_eq!((&v["first"], &v["certain"]), (&"receive window".into(), &true.into()));
    assert_eq!((&v["writes"], &v["answered"], &v["pauses"]), (&2.into(), &1.into(), &1.into()));
    assert!(text.contains("receive window 31.8 %"), "{text}");
    assert!(text.contains("whether the application had to wait"), "{text}");
    // the log may stand first, and be alone: the socket that wrote most
    assert_eq!(kpat(&folder, &["why", "x.kpat", "7"]).1, text);
    assert_eq!(kpat(&folder, &["why", "x.kpat"]).1, text);
    let narrow = kpat(&folder, &["why", "7", "x.kpat", "--width", "80"]).1;
    assert!(narrow.lines().all(|l| l.chars().count() <= 80), "{narrow}");
    // the other direction is a connection of its own
    let (_, back, _) = kpat(&folder, &["why", "8", "x.kpat", "--json"]);
    let back: Value = serde_json::from_str(&back).unwrap();
    assert_eq!(
        (&back["sender"]["socket_id"], &back["writes"], &back["tcp_states"]),
        (&8.into(), &1.into(), &0.into())
    );
}

#[test]
fn what_a_program_slept_for_is_said() {
    let folder = Folder::new("why-slept");
    fixture::integrated(&folder);
    connection(&folder.0.join("x.kpat"), Vec::new());
    let pause = |pid, from: i64, to: i64, slept_for| PauseRow {
        pid,
        from_ns: START + from * 1000,
        to_ns: START + to * 1000,
        slept_for,
        ..PauseRow::default()
    };
    // Of the thread of socket 7 between 52.0 and 60.2 ms: in an answer's time, for a lock, and not known; another thread's.
    let (data, lock, stopped) = (Some(8), Some(4), Some(1));
    fill(
        &folder.0.join("x.kpat"),
        [
            pause(1, 42_000, 51_900, data),
            pause(1, 53_000, 58_000, lock),
            pause(1, 58_500, 60_000, None),
            pause(2, 53_000, 60_000, stopped),
        ],
    );
    let v: Value = serde_json::from_str(&kpat(&folder, &["why", "7", "x.kpat", "--json"]).1).unwrap();
    let of = |stage: &str| {
        let s = v["stages"].as_array().unwrap().iter().find(|s| s["stage"] == stage).unwrap();
        s["slept_for_ns"].clone()
    };
    assert_eq!(of("application"), serde_json::json!({"lock": 5_000_000}));
    assert_eq!(of("peer's application"), serde_json::json!({}), "its thread never slept");
    assert!(of("queue").is_null());
    let text = kpat(&folder, &["why", "7", "x.kpat"]).1;
    assert!(text.contains("slept 7.000 ms (85.4 %): for a lock or another thread 5.000 ms"), "{text}");
}

#[test]
fn without_a_number_it_is_the_end_that_asks_and_others_in_trouble_are_named() {
    let folder = Folder::new("why-beside");
    fixture::integrated(&folder);
    let log = folder.0.join("x.kpat");
    connection(&log, Vec::new());
    let (a, b) = (("10.0.0.1", 40000), ("10.0.0.2", 80));
    let failed = |id, error| SocketRow { error, ..socket(id, ("10.0.0.1", 40_000 + id as i32), b, (0, 0)) };
    // The end that answers wrote more; one was refused, another never answered, and one reset later.
    fill(
        &log,
        [
            socket(7, a, b, (3000, 9000)),
            socket(8, b, a, (9000, 3000)),
            failed(11, Some(111)),
            failed(12, None),
            failed(13, Some(104)),
        ],
    );
    let syn = |us, socket_id, state| TcpStateRow { socket_id, state, ..self::state(us, ToDevice, 0) };
    fill(
        &log,
        [
            state(0, ToDevice, 1),
            syn(100, 11, 2),
            syn(200, 12, 2),
            syn(300, 13, 2),
            syn(400, 13, 1),
            state(60_000, FromNetwork, 1),
        ],
    );
    let v: Value = serde_json::from_str(&kpat(&folder, &["why", "x.kpat", "--json"]).1).unwrap();
    assert_eq!(v["sender"]["socket_id"], 7);
    let beside: Vec<(&str, Option<&str>, i64)> = v["beside"]
        .as_array()
        .unwrap()
        .iter()
        .map(|b| (b["trouble"].as_str().unwrap(), b["error"].as_str(), b["worst"].as_i64().unwrap()))
        .collect();
    let want = [("not-connected", None, 12), ("not-connected", Some("ECONNREFUSED"), 11)];
    assert_eq!(beside, [want[0], want[1], ("ended", Some("ECONNRESET"), 13)]);
    let text = kpat(&folder, &["why", "x.kpat"]).1;
    assert!(text.contains("1 socket was not connected, 999.800 ms: kpat why 12"), "{text}");
    // Who asks of one socket is answered of that.
    let (_, back, _) = kpat(&folder, &["why", "8", "x.kpat", "--json"]);
    let back: Value = serde_json::from_str(&back).unwrap();
    assert_eq!((&back["sender"]["socket_id"], &back["beside"]), (&8.into(), &serde_json::json!([])));
}

#[test]
fn stages_and_writes_are_tables_for_programs() {
    let folder = Folder::new("why-tsv");
    fixture::integrated(&folder);
    connection(&folder.0.join("x.kpat"), Vec::new());
    let rows = |args: &[&str]| -> Vec<Vec<String>> {
        let (code, text, words) = kpat(&folder, args);
        assert_eq!(code, 0, "{words}");
        text.lines().map(|l| l.split('\t').map(str::to_owned).collect()).collect()
    };
    let v: Value = serde_json::from_str(&kpat(&folder, &["why", "7", "x.kpat", "--json"]).1).unwrap();
    let stages = rows(&["why", "7", "x.kpat", "--tsv", "--columns", "stage,ns"]);
    assert_eq!(stages[0], ["stage", "ns"]);
    let want: Vec<Vec<String>> = v["stages"]
        .as_array()
        .unwrap()
        .iter()
        .map(|s| vec![s["stage"].as_str().unwrap().to_owned(), s["ns"].to_string()])
        .collect();
    assert_eq!(stages[1..], want);
    let sockets = rows(&[
        "app",
        "x.kpat",
        "--tsv",
        "--columns",
        "socket_id,sent_bytes,crossings.send.events",
        "--no-header",
    ]);
    let mut sockets: Vec<String> = sockets.iter().map(|r| r.join(" ")).collect();
    sockets.sort();
    assert_eq!(sockets, ["7 3000 2", "8 200 ", "9 10 "]);
    let (code, _, words) = kpat(&folder, &["app", "x.kpat", "--series", "--tsv"]);
    assert!(code == 2 && words.contains("--to tsv"), "{words}");
    assert!(kpat(&folder, &["why", "7", "x.kpat"]).1.contains("kpat app --socket 7"));
    assert!(kpat(&folder, &["app", "--socket", "7", "x.kpat"]).1.contains("kpat why 7"));

    // Writes are chosen in the language of packets, and nothing else is asked of them.
    let writes = |expression: &str| {
        let (code, text, words) = kpat(&folder, &["app", "x.kpat", "--slow-writes", "--json", expression]);
        assert_eq!(code, 0, "{words}");
        serde_json::from_str::<Value>(&text).unwrap()["total"].as_u64().unwrap()
    };
    for (expression, fit) in [
        ("tcp", 3),
        ("socket == 7", 2),
        ("port.src == 80 and len == 200", 1),
        ("len > 999 and not ip.src == 10.0.0.2", 2),
        ("time > 50ms", 1),
        ("not tcp", 0),
    ] {
        assert_eq!(writes(expression), fit, "{expression}");
    }
    let (_, behind, _) = kpat(&folder, &["app", "--slow-writes", "socket == 7", "x.kpat", "--tsv"]);
    assert_eq!(behind, kpat(&folder, &["app", "x.kpat", "--slow-writes", "socket == 7", "--tsv"]).1);
    let (code, out, words) = kpat(&folder, &["app", "x.kpat", "--slow-writes", "process == nc and dropped"]);
    assert_eq!((code, out.as_str()), (2, ""));
    assert!(words.contains("`dropped` is of packets; a write has tcp, ip,"), "{words}");
    let (code, _, words) = kpat(&folder, &["app", "x.kpat", "port 80"]);
    assert!(code == 2 && words.contains("--slow-writes"), "{words}");
}

#[test]
fn what_cannot_be_answered_is_one_sentence() {
    let folder = Folder::new("why-faults");
    fixture::integrated(&folder);
    let (code, out, words) = kpat(&folder, &["why", "x.kpat"]);
    assert_eq!((code, out.as_str()), (2, ""));
    assert!(words.contains("no application that wrote to a socket"), "{words}");
    connection(&folder.0.join("x.kpat"), Vec::new());
    let cases: [(&[&str], i32, &str); 7] = [
        (&["why", "4", "x.kpat"], 2, "the log has no socket 4; kpat app x.kpat lists them"),
        (&["why", "9", "x.kpat"], 1, "no call of socket 9 has a write"),
        (&["why", "abc", "x.kpat"], 2, "not the number of a socket"),
        (&["why", "7", "x.kpat", "--packet", "1"], 2, "give only the log"),
        (&["why", "--packet", "1", "x.kpat"], 1, "no socket in the log wrote or read packet 1"),
        (&["why", "--packet", "99", "x.kpat"], 1, "no packet 99"),
        (&["why", "7", "nothing.kpat"], 1, "nothing.kpat"),
    ];
    for (args, status, says) in cases {
        let (code, out, words) = kpat(&folder, args);
        assert_eq!((code, out.as_str()), (status, ""), "{args:?}: {words}");
        assert!(words.contains(says) && words.lines().count() == 1, "{args:?}: {words}");
    }
}

#[test]
fn lost_records_widen_the_bounds() {
    let folder = Folder::new("why-lost");
    fixture::integrated(&folder);
    let gap = GapRow { from_ns: START + 70_000_000, to_ns: START + 90_000_000, lost: 5, ..GapRow::default() };
    connection(&folder.0.join("x.kpat"), vec![gap]);
    let (code, out, _) = kpat(&folder, &["why", "7", "x.kpat", "--json", "--strict"]);
    assert_eq!(code, 3);
    let v: Value = serde_json::from_str(&out).unwrap();
    let all = v["stages"].as_array().unwrap();
    let of = |stage: &str| all.iter().find(|s| s["stage"] == stage).unwrap();
    assert_eq!(
        (&of("receive window")["low_ns"], &of("receive window")["high_ns"]),
        (&15_000_000.into(), &35_000_000.into())
    );
    assert_eq!(of("driver and wire")["high_ns"], 40_000_000);
    assert_eq!(v["certain"], false);
    let text = kpat(&folder, &["why", "7", "x.kpat"]).1;
    assert!(text.contains("5 records are missing") && text.contains("13.6 % and 31.8 %"), "{text}");
    assert!(text.contains("another stage could be the first"), "{text}");
}
