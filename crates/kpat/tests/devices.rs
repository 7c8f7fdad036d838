//! Two devices on the command line: from two logs and a capture to the packet's whole way.

use crate::world;

use kpat_model::meta::ClockAnchor;
use kpat_model::*;
use serde_json::Value;
use std::process::{Command, Output};
use world::*;

const SEC: i64 = 1_000_000_000;
const BOOT: [Clock; 2] =
    [Clock { offset: 500 * SEC, drift: 10e-6 }, Clock { offset: 40 * SEC, drift: -20e-6 }];
const SNIFFER: Clock = Clock { offset: 1_700_000_000 * SEC, drift: 0.0 };
const MACS: [Mac; 2] = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]];

/// `a.kbl`, `b.kbl`, `wire.pcapng`: 300 datagrams to and fro; packet n of the one is packet 1000 + n of the other.
fn make(dir: &Dir) {
    let mut logs: Vec<LogWriter> = (0..2)
        .map(|d| {
            let anchor =
                ClockAnchor { boot: BootNs(BOOT[d].wall(SEC)), wall: WallNs(SEC), uncertainty_ns: 1_000 };
            let path = dir.path(["a.kbl", "b.kbl"][d]);
            LogWriter::create(
                &path,
                &["napi_gro_receive", "dev_hard_start_xmit"],
                &[(2, "eth0", MACS[d])],
                anchor,
            )
        })
        .collect();
    let mut capture = Capture::new(&dir.path("wire.pcapng"), &[""]);
    for n in 0..300i64 {
        let from = (n % 2) as usize;
        let (left, tap, arrived) =
            (SEC + n * 1_000_000, SEC + n * 1_000_000 + 9_000, SEC + n * 1_000_000 + 30_000);
        let (src, dst) = ([10, 0, 0, 1 + from as u8], [10, 0, 0, 2 - from as u8]);
        let rest = udp(4_000, 53, 100);
        let header =
            ether(MACS[1 - from], MACS[from], 0x800, &ipv4(src, dst, n as u16 + 1, 17, 64, 108, &rest));
        let id = |device: usize| if device == 0 { 1 + n } else { 1_001 + n };
        let at = |device, ctx| At { cpu: 0, ctx, pid: 0, packet: id(device) as u64 };
        let (out, t) = (at(from, Context::Task), BOOT[from].wall(left));
        logs[from].print(out, t - 2_000, 2, &header, 142, (0, 0));
        logs[from].call(out, "dev_hard_start_xmit", t, t + 2_000);
        logs[from].free(out, t + 3_000);
        let (came, t) = (at(1 - from, Context::Softirq), BOOT[1 - from].wall(arrived));
        logs[1 - from].print(came, t, 2, &header, 142, (0, 0));
        logs[1 - from].call(came, "napi_gro_receive", t, t + 2_000);
        logs[1 - from].free(came, t + 3_000);
        capture.frame(SNIFFER.wall(tap), 0, header, 142, 0);
    }
    logs.into_iter().for_each(LogWriter::close);
    capture.close();
}

fn kpat(dir: &Dir, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kpat")).args(args).current_dir(&dir.0).output().unwrap()
}

fn text(dir: &Dir, args: &[&str]) -> String {
    let out = kpat(dir, args);
    assert!(out.status.success(), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

fn json(dir: &Dir, args: &[&str]) -> Value {
    serde_json::from_str(&text(dir, &[args, &["--json"]].concat())).unwrap()
}

/// Exit status 2 and one sentence that names the remedy.
fn refused(dir: &Dir, args: &[&str], remedy: &str) {
    let out = kpat(dir, args);
    let words = String::from_utf8(out.stderr).unwrap();
    assert_eq!((out.status.code(), out.stdout.len()), (Some(2), 0), "{args:?}: {words}");
    assert!(words.contains(remedy), "{args:?}: {words}");
}

#[test]
fn two_logs_become_one() {
    let dir = Dir::new("command-line-devices");
    make(&dir);
    refused(&dir, &["integrate", "a.kbl", "b.kbl"], "capture");
    std::fs::copy(dir.path("a.kbl"), dir.path("copy.kbl")).unwrap();
    for again in ["a.kbl", "copy.kbl"] {
        let words = format!("a.kbl and {again} are the same recording; give the log of each device once");
        refused(&dir, &["integrate", "a.kbl", "b.kbl", again, "wire.pcapng", "-o", "twice.kpat"], &words);
        assert!(!dir.path("twice.kpat").exists());
    }
    // The capture may stand between the logs.
    text(&dir, &["integrate", "a.kbl", "wire.pcapng", "b.kbl", "-o", "x.kpat"]);
    let info = json(&dir, &["info", "x.kpat"]);
    assert_eq!((&info["frames"]["crossed"], &info["frames"]["one_kernel"]), (&300.into(), &0.into()));
    assert_eq!(info["crossings"][1]["from"], "b");
    assert_eq!(
        (&info["crossings"][0]["packets"], &info["crossings"][1]["packets"]),
        (&150.into(), &150.into())
    );
    let clock = &info["clocks"][0];
    let error = clock["offset_ns"].as_i64().unwrap() + 460 * SEC;
    assert!(error.abs() < clock["bound_ns"].as_i64().unwrap() + 50_000, "{clock}");
    assert!(text(&dir, &["info", "x.kpat"]).contains("b → a: 150 packets in 150 frames"));

    for command in [
        &["packets"][..],
        &["functions"],
        &["frames", "--ambiguous"],
        &["events"],
        &["time"],
        &["phases"],
        &["packet", "7"],
    ] {
        refused(&dir, &[command, &["x.kpat"]].concat(), "--device a or --device b");
    }
    refused(&dir, &["packets", "x.kpat", "--device", "c"], "there are: a, b");
    refused(&dir, &["packets", "x.kpat/a.kpat", "--device", "a"], "remove --device a");
    assert_eq!(json(&dir, &["packets", "x.kpat", "--device", "b"])["total"], 300);

    // Frame n is of datagram n - 1, which is packet n of a and 1000 + n of b.
    let frames = json(&dir, &["frames", "x.kpat", "-n", "0"]);
    assert_eq!(frames["shown"], 300);
    for (i, f) in frames["frames"].as_array().unwrap().iter().enumerate() {
        let (a, b) = (i as i64 + 1, i as i64 + 1_001);
        let (from, to) = if i % 2 == 0 { (a, b) } else { (b, a) };
        let c = &f["crossings"][0];
        assert_eq!(
            (f["number"].as_i64(), c["from_packet_id"].as_i64(), c["to_packet_id"].as_i64()),
            (Some(a), Some(from), Some(to))
        );
    }
    let words = text(&dir, &["frames", "x.kpat", "-n", "2"]);
    assert!(words.contains("1001") && words.contains('±') && !words.contains("1003"), "{words}");
    assert_eq!(json(&dir, &["frames", "x.kpat", "--unmatched"])["shown"], 0);

    // Packet 7 is the seventh datagram, from a to b.
    let one = json(&dir, &["packet", "7", "x.kpat", "--device", "a"]);
    assert_eq!((&one["went"][0]["to"], &one["went"][0]["to_packet_id"]), (&"b".into(), &1_007.into()));
    assert_eq!(one["came"], Value::Array(Vec::new()));
    let flight = one["went"][0]["flight_ns"].as_i64().unwrap();
    assert!((flight - 30_000).abs() <= one["went"][0]["flight_bound_ns"].as_i64().unwrap() + 10);
    let words = text(&dir, &["packet", "7", "x.kpat", "--device", "a"]);
    assert!(words.contains("went on to") && words.contains("1007"), "{words}");
    for (device, packet) in [("a", "7"), ("b", "1007")] {
        let args = ["packet", packet, "x.kpat", "--device", device, "--follow"];
        let words = text(&dir, &args);
        // Each word somewhere behind the one before it.
        let mut rest = words.as_str();
        for word in
            ["Device a", "dev_hard_start_xmit", "to b, packet 1007", "flight", "Device b", "napi_gro_receive"]
        {
            let at = rest.find(word).unwrap_or_else(|| panic!("no {word} in its place in {words}"));
            rest = &rest[at + word.len()..];
        }
        let whole = json(&dir, &args);
        assert_eq!(
            (whole["packets"].as_array().unwrap().len(), whole["crossings"].as_array().unwrap().len()),
            (2, 1)
        );
    }
}
