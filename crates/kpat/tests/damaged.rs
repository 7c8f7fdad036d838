//! Logs and tables with numbers that no kernel writes: calls deeper than any stack, times that no clock shows, ids of nothing. Each command ends in time, with
//! the memory that it has otherwise. Found by logs and tables whose fields were changed one by one.

use crate::fixture::{self, Folder};
use crate::hostile::change_rows;
use crate::world::{At, LogWriter};

use kpat_klog::{AppEncoder, Codec, Writer};
use kpat_model::meta::{ClockAnchor, Json};
use kpat_model::*;
use kpat_store::tables::*;
use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// With little address space and 20 seconds of CPU: status, what it printed, its errors.
fn kpat(folder: &Folder, args: &[&str]) -> (Option<i32>, String, String) {
    let done = Command::new("bash")
        .args(["-c", "ulimit -v 921600; ulimit -t 20; exec \"$@\"", "-", env!("CARGO_BIN_EXE_kpat")])
        .args(args)
        .current_dir(&folder.0)
        .env("MALLOC_ARENA_MAX", "1")
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (done.status.code(), text(&done.stdout), text(&done.stderr))
}

fn works(folder: &Folder, args: &[&str]) -> String {
    let (code, said, words) = kpat(folder, args);
    assert_eq!(code, Some(0), "{args:?}: {words}");
    said
}

/// The numbers of this name, wherever they are.
fn all(v: &Value, name: &str, out: &mut Vec<i64>) {
    match v {
        Value::Array(rows) => rows.iter().for_each(|v| all(v, name, out)),
        Value::Object(fields) => {
            out.extend(fields.get(name).and_then(Value::as_i64));
            fields.values().for_each(|v| all(v, name, out));
        }
        _ => {}
    }
}

/// Of 60,000 calls each within the one before it: what takes a step for each level, or writes each stack whole, would take minutes and gigabytes.
#[test]
fn calls_are_no_deeper_than_a_stack() {
    let folder = Folder::new("deep");
    let mut log = LogWriter::create(
        &folder.0.join("x.kbl"),
        &["ip_rcv", "ip_forward"],
        &[(2, "eth0", [2; 6])],
        ClockAnchor::default(),
    );
    const DEEP: i64 = 60_000;
    let at = At { cpu: 0, ctx: Context::Softirq, pid: 0, packet: 1 };
    log.print(at, 1_000_000, 2, &[0x45; 34], 60, (0, 0));
    for i in 0..DEEP {
        let name = if i % 2 == 0 { "ip_rcv" } else { "ip_forward" };
        log.call(at, name, 2_000_000 - i, 2_000_010 + i);
    }
    log.free(at, 4_000_000);
    log.close();
    works(&folder, &["integrate", "x.kbl", "-o", "x.kpat"]);
    let shown: Value = serde_json::from_str(&works(&folder, &["packet", "1", "x.kpat", "--json"])).unwrap();
    let mut depths = Vec::new();
    all(&shown, "depth", &mut depths);
    assert!(depths.len() as i64 >= DEEP, "{} calls", depths.len());
    assert!(depths.iter().max().is_some_and(|d| (500..520).contains(d)), "{:?}", depths.iter().max());
    works(&folder, &["packet", "1", "x.kpat"]);
    for to in ["folded", "pprof"] {
        works(&folder, &["export", "--to", to, "x.kpat", "-o", "out"]);
    }
    let folded = works(&folder, &["export", "--to", "folded", "x.kpat"]);
    let most = folded.lines().map(|l| l.matches(';').count()).max().unwrap();
    assert!((500..520).contains(&most), "{most} functions in one stack");
}

/// A recording of one connection, each of its times as `time` says.
fn connection(path: &Path, time: impl Fn(usize) -> i64) {
    let mut w = Writer::create(path).unwrap();
    w.json(&Json::Meta(Box::default())).unwrap();
    let mut e = AppEncoder::new(0, Codec::None);
    let mut n = 0;
    let mut next = || {
        n += 1;
        BootNs(time(n - 1))
    };
    let socket = SocketRecord {
        at: next(),
        cookie: 5,
        version: 4,
        protocol: 6,
        port: 1,
        peer_port: 80,
        ..Default::default()
    };
    e.record(&AppRecord::Socket(Box::new(socket)));
    for i in 0..40u32 {
        for what in
            [Crossing::Ask, Crossing::Send, Crossing::ToTransport, Crossing::ToNetwork, Crossing::Acked]
        {
            e.record(&AppRecord::Crossing(CrossingRecord {
                at: next(),
                what,
                sock: 5,
                size: 10,
                segments: 1,
                seq: i * 10,
                pid: 7,
                ctx: Context::Task,
            }));
        }
        let state = TcpRecord { at: next(), sock: 5, state: 1, snd_cwnd: 10, ..Default::default() };
        e.record(&AppRecord::Tcp(Box::new(state)));
    }
    let (since, until) = (next(), next());
    e.record(&AppRecord::Gap(Gap { since, until, lost: 1 }));
    let (since, until, huge) = (next(), next(), u64::MAX - 1);
    e.record(&AppRecord::ThreadTime(ThreadTime {
        since,
        until,
        sock: 5,
        thread: 7,
        ran_ns: huge,
        waited_ns: huge,
        slept: 1,
    }));
    w.chunk(e.finish().unwrap()).unwrap();
    w.flush().unwrap();
}

#[test]
fn times_that_no_clock_shows() {
    let folder = Folder::new("no-clock");
    let odd = [i64::MIN, i64::MAX, -1, 0, 1 << 62, -(1 << 62), 1_000_000_000];
    for turn in 0..odd.len() {
        connection(&folder.0.join("x.kbl"), |i| odd[(i * 3 + i / 7 + turn) % odd.len()]);
        works(&folder, &["integrate", "x.kbl", "-o", "x.kpat", "--force"]);
        let info: Value = serde_json::from_str(&works(&folder, &["info", "x.kpat", "--json"])).unwrap();
        assert!(info.to_string().contains("times.absurd"), "{info}");
        for args in [
            &["why", "5", "x.kpat"][..],
            &["why", "5", "x.kpat", "--json"],
            &["app", "x.kpat", "-s", "5"],
            &["app", "x.kpat", "--series"],
            &["app", "x.kpat", "--slow-writes"],
            &["app", "x.kpat", "--series", "-s", "5", "--from", "9223372036s"],
        ] {
            let (code, _, words) = kpat(&folder, args);
            assert!(matches!(code, Some(0..=2)) && !words.contains("panicked"), "{args:?}: {code:?} {words}");
        }
    }
}

/// A number of a function or a capture is no length of a list.
#[test]
fn ids_of_nothing() {
    let folder = Folder::new("ids");
    let dir = fixture::integrated(&folder);
    change_rows(&dir, |i, r: &mut FunctionRow| {
        if i % 3 == 0 {
            r.func_id = i32::MAX - i as i32;
        }
    });
    let manifest = dir.join("manifest.json");
    let mut m: Value = serde_json::from_slice(&std::fs::read(&manifest).unwrap()).unwrap();
    for s in m["sources"].as_array_mut().unwrap() {
        if s["role"] == "capture" {
            s["capture_id"] = i32::MAX.into();
        }
    }
    std::fs::write(&manifest, m.to_string()).unwrap();
    for args in [
        &["export", "--to", "json", "x.kpat"][..],
        &["export", "--to", "pcapng", "x.kpat", "-o", "out"],
        &["export", "--to", "folded", "x.kpat"],
        &["packets", "x.kpat", "tcp"],
        &["functions", "x.kpat"],
        &["frames", "x.kpat"],
    ] {
        let (code, _, words) = kpat(&folder, args);
        assert!(matches!(code, Some(0..=1)) && !words.contains("panicked"), "{args:?}: {code:?} {words}");
    }
}
