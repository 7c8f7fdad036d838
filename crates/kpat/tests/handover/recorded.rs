//! A handover that was recorded in a guest with emulated radios (Linux 6.1; the access point is stopped, its neighbour is in the scan table), beside what
//! others have of it: the kernel's own trace, and tshark's reading of the capture of the air.

use super::kpat;
use crate::fixture::Folder;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/handover/s5").join(name)
}

fn taken_apart(folder: &Folder) -> Value {
    let (log, air) = (file("record.kbl"), file("air.pcapng"));
    kpat(folder, &["integrate", log.to_str().unwrap(), air.to_str().unwrap(), "-o", "s5.kpat", "-q"]);
    serde_json::from_str(&kpat(folder, &["handover", "s5.kpat", "1", "--json"])).unwrap()
}

#[test]
fn phases_begin_when_the_kernels_trace_says() {
    let folder = Folder::new("handover-s5");
    let found = taken_apart(&folder);
    let trace = std::fs::read_to_string(file("trace.txt")).unwrap();
    // TASK-PID [CPU] FLAGS SECONDS: TRACEPOINT: ...
    let seconds = |words: &[&str]| -> f64 {
        let line = trace.lines().find(|l| words.iter().all(|w| l.contains(w))).unwrap();
        let at = line.split_whitespace().find_map(|w| w.strip_suffix(':')?.parse().ok());
        at.unwrap()
    };
    let new = "sta:02:00:00:00:00:00";
    let truth = [
        ("probing", seconds(&["rdev_scan:"])),
        ("selection", seconds(&["drv_sw_scan_complete:"])),
        ("authentication", seconds(&["rdev_auth:"])),
        ("association", seconds(&["rdev_assoc:"])),
        ("dhcp-or-data", seconds(&["drv_sta_state", new, "3->4"])),
    ];
    let phases = found["phases"].as_array().unwrap();
    let mut apart = Vec::new();
    for (name, at) in truth {
        let fits = |p: &&Value| {
            p["phase"] == name || name == "dhcp-or-data" && p["begin"]["words"] == "port authorised"
        };
        let phase = phases.iter().find(fits).unwrap_or_else(|| panic!("no {name} in {phases:#?}"));
        apart.push((phase["from_boot_ns"].as_f64().unwrap() / 1e9 - at).abs() * 1e3);
    }
    apart.sort_by(f64::total_cmp);
    // Both are programs at one tracepoint, one after the other, on an emulated processor: an interrupt may be between.
    assert!(apart[2] < 1.0 && apart[4] < 10.0, "ms: {apart:?}");
    let names: Vec<&str> = phases.iter().map(|p| p["phase"].as_str().unwrap()).collect();
    assert_eq!(
        names,
        [
            "reaction",
            "probing",
            "selection",
            "authentication",
            "pre-association",
            "association",
            "key-wait",
            "key-exchange",
            "key-install",
            "client-start",
            "dhcp"
        ]
    );
    for pair in phases.windows(2) {
        assert_eq!(pair[0]["to_boot_ns"], pair[1]["from_boot_ns"]);
    }
    assert_eq!((&found["cause"], &found["reason"]), (&Value::from("deauthenticated"), &Value::from(3)));
    let why =
        |name: &str| phases.iter().find(|p| p["phase"] == name).unwrap()["why"].as_str().unwrap_or_default();
    // The supplicant's log: "Scan included frequencies: 2412"; dhclient's: REQUEST, NAK, DISCOVER, OFFER, REQUEST, ACK.
    assert!(why("probing").contains("only what the supplicant expects"), "{}", why("probing"));
    assert!(why("dhcp").contains("NAK"), "{}", why("dhcp"));
}

#[test]
fn frames_are_those_that_tshark_names() {
    let folder = Folder::new("handover-s5-air");
    let found = taken_apart(&folder);
    let fields = ["frame.number", "wlan.fc.type_subtype", "wlan.ta", "wlan_rsna_eapol.keydes.msgnr"];
    let mut tshark = Command::new("tshark");
    tshark.arg("-r").arg(file("air.pcapng")).args(["-T", "fields"]);
    tshark.args(fields.iter().flat_map(|f| ["-e", *f]));
    let done = tshark.output().unwrap();
    let text = String::from_utf8(done.stdout).unwrap();
    let frames: Vec<Vec<&str>> = text.lines().map(|l| l.split('\t').collect()).collect();
    let of = |number: i64| frames.iter().find(|f| f[0] == number.to_string()).unwrap();
    let station = "02:00:00:00:02:00";
    let mut checked = 0;
    for m in found["marks"].as_array().unwrap() {
        let Some(number) = m["frame"]["number"].as_i64() else { continue };
        let (f, words) = (of(number), m["words"].as_str().unwrap());
        let expected = match words {
            "authentication request (open)" => ("0x000b", true, ""),
            "authentication accepted" => ("0x000b", false, ""),
            "association request" => ("0x0000", true, ""),
            "association accepted" => ("0x0001", false, ""),
            "EAPOL-Key message 1" => (f[1], false, "1"),
            "EAPOL-Key message 2" => (f[1], true, "2"),
            "EAPOL-Key message 3" => (f[1], false, "3"),
            "EAPOL-Key message 4" => (f[1], true, "4"),
            _ => continue,
        };
        assert_eq!((f[1], f[2] == station, f[3]), expected, "{words} is frame {number}");
        checked += 1;
    }
    // Four management frames and ten or more of the handshake, whose first messages were sent again and again.
    assert!(checked >= 14, "{checked} marks have a frame");
}

/// The longest time between two echoes, by the flow's own clock.
fn longest_gap(name: &str) -> f64 {
    let text = std::fs::read_to_string(wired(&format!("{name}.echoes"))).unwrap();
    let times: Vec<f64> = text.lines().map(|l| l.parse().unwrap()).collect();
    times.windows(2).map(|w| w[1] - w[0]).fold(0.0, f64::max)
}

fn wired(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/handover/wired").join(name)
}

/// Recorded with tracepoints alone, on Linux 6.18: an interface that was removed and made anew, and the port of a bridge with a forward delay of 2 s whose wire was pulled. A
/// flow of 20 ms went over both, and says itself how long it had nothing.
#[test]
fn wires_as_their_flow_had_them() {
    for (name, cause, phase) in [("remove", "removed", "link-down"), ("bridge", "carrier", "bridge-port")] {
        let folder = Folder::new(&format!("handover-{name}"));
        let log = wired(&format!("{name}.kbl"));
        kpat(&folder, &["integrate", log.to_str().unwrap(), "-o", "x.kpat", "-q"]);
        let list: Value =
            serde_json::from_str(&kpat(&folder, &["handover", "x.kpat", "-i", "e0", "--json"])).unwrap();
        assert_eq!(list["handovers"].as_array().unwrap().len(), 1, "{name}: {list:#}");
        let h: Value = serde_json::from_str(&kpat(&folder, &["handover", "x.kpat", "1", "--json"])).unwrap();
        assert_eq!(
            (&h["cause"], &h["ended"], &h["longest_phase"]),
            (&cause.into(), &"data".into(), &phase.into())
        );
        let apart = h["flow_gap_ns"].as_f64().unwrap() / 1e9 - longest_gap(name);
        assert!(apart.abs() < 0.02, "{name}: {apart} s");
        let of: f64 = h["phases"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|p| p["phase"] == phase)
            .map(|p| p["ns"].as_f64().unwrap())
            .sum();
        if phase == "bridge-port" {
            // Listening and learning, 2 s each.
            assert!((of / 1e9 - 4.0).abs() < 0.1, "{of}");
        }
    }
}
