//! `kpat handover` over a log whose marks are those that were measured in a guest: the access point is lost silently, and a full scan finds
//! another in another subnet.

mod recorded;

use crate::fixture::{self, Folder, START};
use kpat_model::{Exchanged, LinkWhat, WifiWhat};
use kpat_store::tables::*;
use kpat_store::{TableFile, TableWriter};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

const NETNS: i64 = 4_294_967_031;
const STATION: i32 = 3;
const OLD: &str = "02:00:00:00:00:00";
const NEW: &str = "02:00:00:00:01:00";

fn rows<R: kpat_store::Row>(dir: &Path, rows: &[R]) {
    let _ = std::fs::remove_file(dir.join(R::TABLE.file_name()));
    let mut w = TableWriter::create(dir).unwrap();
    rows.iter().for_each(|r| w.push(r).unwrap());
    w.finish().unwrap();
}

fn at(s: f64) -> i64 {
    START + (s * 1e9).round() as i64
}

fn radio(s: f64, what: WifiWhat, address: &str, numbers: [i64; 3], mhz: i32) -> WifiEventRow {
    WifiEventRow {
        at_ns: at(s),
        event: what as i32,
        point: "cfg80211:x".into(),
        netns: Some(NETNS),
        ifindex: Some(STATION),
        wiphy: Some("phy2".into()),
        address: Some(address.to_owned()).filter(|a| !a.is_empty()),
        frequency: (mhz > 0).then_some(mhz),
        a: numbers[0],
        b: numbers[1],
        c: numbers[2],
        ..WifiEventRow::default()
    }
}

fn exchange(s: f64, protocol: Exchanged, message: i32, sent: bool) -> ExchangeRow {
    ExchangeRow {
        at_ns: at(s),
        protocol: protocol as i32,
        message,
        sent: sent.into(),
        netns: Some(NETNS),
        ifindex: STATION,
        source: Some("10.2.0.57".into()),
        destination: Some("10.2.0.1".into()),
        ..ExchangeRow::default()
    }
}

/// Offsets in seconds as the research page has them for its first scenario.
pub fn log(folder: &Folder) -> PathBuf {
    let dir = fixture::integrated(folder);
    let mut wifi = vec![
        radio(1.018, WifiWhat::BeaconLoss, OLD, [0; 3], 0),
        radio(1.0205, WifiWhat::DeauthSent, OLD, [4, 0, 0], 0),
        radio(1.0209, WifiWhat::StationState, OLD, [4, 3, 0], 0),
        radio(1.4480, WifiWhat::ScanStart, "", [0; 3], 0),
    ];
    for i in 0..38 {
        wifi.push(radio(1.449 + f64::from(i) * 0.212, WifiWhat::Channel, "", [0x40, 0, 0], 2_412 + 5 * i));
    }
    wifi.extend([
        radio(9.5138, WifiWhat::ScanDone, "", [0; 3], 0),
        radio(9.5551, WifiWhat::AuthStart, NEW, [0; 3], 0),
        radio(9.5560, WifiWhat::Channel, "", [0x40, 0, 0], 2_437),
        radio(9.5802, WifiWhat::AuthFrame, NEW, [0, 2, 0], 0),
        radio(9.6085, WifiWhat::AssocStart, NEW, [0; 3], 0),
        radio(9.6214, WifiWhat::AssocFrame, NEW, [0, 0, 0], 0),
        radio(9.8400, WifiWhat::KeyAdded, NEW, [1, 0, 0], 0),
        radio(9.8500, WifiWhat::KeyAdded, NEW, [0, 1, 0], 0),
        radio(9.9234, WifiWhat::StationState, NEW, [3, 4, 0], 0),
    ]);
    rows(&dir, &wifi);
    let carrier = |s: f64, what: LinkWhat, function: i32| LinkEventRow {
        at_ns: at(s),
        event: what as i32,
        function,
        netns: Some(NETNS),
        ifindex: STATION,
        ..LinkEventRow::default()
    };
    rows(
        &dir,
        &[
            carrier(1.0208, LinkWhat::CarrierOff, 1),
            // What rtnetlink says of it comes later.
            carrier(1.0708, LinkWhat::CarrierOff, 0),
            carrier(9.6211, LinkWhat::CarrierOn, 1),
            carrier(9.6300, LinkWhat::CarrierOn, 0),
        ],
    );
    let (key, dhcp) = (Exchanged::Eapol, Exchanged::Dhcp4);
    rows(
        &dir,
        &[
            exchange(9.7283, key, 1, false),
            exchange(9.7607, key, 2, true),
            exchange(9.7811, key, 3, false),
            exchange(9.8028, key, 4, true),
            exchange(10.6745, dhcp, 3, true),
            exchange(10.6939, dhcp, 6, false),
            exchange(11.3968, dhcp, 1, true),
            exchange(11.4088, dhcp, 2, false),
            exchange(11.4149, dhcp, 3, true),
            exchange(11.4280, dhcp, 5, false),
            exchange(11.6600, Exchanged::Arp, 1, true),
            ExchangeRow {
                source: Some("10.2.0.1".into()),
                destination: Some("10.2.0.57".into()),
                ..exchange(11.6610, Exchanged::Arp, 2, false)
            },
        ],
    );
    let address = EventRow {
        at_ns: at(11.6569),
        kind: kpat_model::EventKind::Address as i32,
        netns: Some(NETNS),
        a: 1,
        b: STATION.into(),
        text: "10.2.0.57/24 dev wlan2".into(),
        ..EventRow::default()
    };
    rows(&dir, &[address]);
    // What a sniffer heard: probe requests, and both authentication frames, the second before the kernel had it.
    let mac = "02:00:00:00:00:03";
    let frame = |number: i64, s: f64, control: i32, from: &str, to: &str| FrameRow {
        number,
        wall_ns: at(s),
        boot_ns: Some(at(s)),
        len_bytes: 60,
        captured_bytes: 60,
        wifi_fc: Some(control),
        wifi_ta: Some(from.into()),
        wifi_ra: Some(to.into()),
        ..FrameRow::default()
    };
    rows(
        &dir,
        &[
            frame(1, 1.4600, 0x40, mac, "ff:ff:ff:ff:ff:ff"),
            frame(2, 9.5571, 0xb0, mac, NEW),
            frame(3, 9.5799, 0xb0, NEW, mac),
            frame(4, 9.5800, 0xb0, NEW, "02:00:00:00:00:77"),
        ],
    );
    // Echoes of a voice flow, and what was sent meanwhile.
    let voice = |n: i64, s: f64, received: bool| PacketRow {
        packet_id: n,
        first_ns: at(s),
        last_ns: at(s) + 20_000,
        path_ns: 20_000,
        proto: Some(17),
        ethertype: Some(0x0800),
        src_addr: Some(if received { "10.9.0.2" } else { "10.1.0.57" }.into()),
        dst_addr: Some(if received { "10.1.0.57" } else { "10.9.0.2" }.into()),
        sport: Some(if received { 5004 } else { 40_000 }),
        dport: Some(if received { 40_000 } else { 5004 }),
        verdict: if received { 1 } else { 3 },
        netns: Some(NETNS),
        if_in: received.then_some(STATION),
        if_in_netns: received.then_some(NETNS),
        if_out: (!received).then_some(STATION),
        len_bytes: 200,
        ..PacketRow::default()
    };
    let before = (0..100).map(|i| voice(i, f64::from(i as i32 - 99) * 0.02 + 0.001, true));
    let after = (0..50).map(|i| voice(1_000 + i, 11.7697 + f64::from(i as i32) * 0.02, true));
    let sent = (0..50).map(|i| voice(500 + i, 0.021 + f64::from(i as i32) * 0.02, false));
    rows(&dir, &before.chain(sent).chain(after).collect::<Vec<_>>());
    dir
}

fn kpat(folder: &Folder, args: &[&str]) -> String {
    let done = Command::new(env!("CARGO_BIN_EXE_kpat")).args(args).current_dir(&folder.0).output().unwrap();
    assert!(done.status.success(), "{args:?}: {}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).unwrap()
}

fn refused(folder: &Folder, args: &[&str]) -> String {
    let done = Command::new(env!("CARGO_BIN_EXE_kpat")).args(args).current_dir(&folder.0).output().unwrap();
    assert_eq!(done.status.code(), Some(2), "{args:?}");
    assert!(done.stdout.is_empty(), "{args:?}");
    String::from_utf8(done.stderr).unwrap()
}

/// What it says beside the answer, with nothing as its answer.
fn said(folder: &Folder, args: &[&str]) -> String {
    let done = Command::new(env!("CARGO_BIN_EXE_kpat")).args(args).current_dir(&folder.0).output().unwrap();
    assert!(done.status.success() && done.stdout.is_empty(), "{args:?}: {done:?}");
    String::from_utf8(done.stderr).unwrap()
}

#[test]
fn why_there_is_no_handover_is_what_the_log_has() {
    let folder = Folder::new("handover-none");
    let dir = fixture::integrated(&folder);
    // Its link that went down is not of this.
    rows::<EventRow>(&dir, &[]);
    rows::<LinkEventRow>(&dir, &[]);
    let reason = "the log has nothing of a radio (record with -p wifi), and no link that went down";
    assert_eq!(said(&folder, &["handover", "x.kpat"]), format!("kpat: no handover: {reason}\n"));
    let list: Value = serde_json::from_str(&kpat(&folder, &["handover", "x.kpat", "--json"])).unwrap();
    assert_eq!(list["handovers"], serde_json::json!([]));
    assert_eq!(list["none"], serde_json::json!([{ "log": "x.kpat", "why": reason }]));
    for args in [&["handover", "x.kpat", "1"][..], &["handover", "x.kpat", "0", "--json"]] {
        assert!(refused(&folder, args).ends_with("; the log has none\n"), "{args:?}");
    }
    assert_eq!(
        refused(&folder, &["handover", "x.kpat", "--svg", "x.svg"]),
        "kpat: there is no handover to draw\n"
    );
    assert!(!folder.0.join("x.svg").exists());
    // A radio that looked around, and joined nothing.
    rows(
        &dir,
        &[radio(1.0, WifiWhat::ScanStart, "", [0; 3], 0), radio(2.0, WifiWhat::ScanDone, "", [0; 3], 0)],
    );
    let reason = "in the log's time no network was joined or lost";
    assert_eq!(said(&folder, &["handover", "x.kpat"]), format!("kpat: no handover: {reason}\n"));
}

#[test]
fn what_is_asked_for_and_not_there_is_named() {
    let (folder, other) = (Folder::new("handover-asked"), Folder::new("handover-asked-beside"));
    log(&folder);
    let beside = fixture::integrated(&other);
    assert_eq!(
        refused(&folder, &["handover", "x.kpat", "9"]),
        "kpat: there is no handover 9; there is one, number 1\n"
    );
    assert_eq!(
        said(&folder, &["handover", "x.kpat", "-i", "eth9"]),
        "kpat: no handover of eth9; without --interface all others are shown\n"
    );
    let list: Value = serde_json::from_str(&kpat(&folder, &["handover", "x.kpat", "--json"])).unwrap();
    assert_eq!(list["none"], serde_json::json!([]));
    // A host that was elsewhere.
    let text = kpat(&folder, &["handover", "x.kpat", "1", "--beside", beside.to_str().unwrap()]);
    let line = text.lines().find(|l| l.starts_with("beside ")).unwrap();
    assert!(line.contains("its log has nothing of this handover's stations in its time"), "{line}");
}

#[test]
fn what_was_lost_at_another_time_is_not_of_it() {
    let folder = Folder::new("handover-loss");
    let dir = log(&folder);
    let (from_ns, to_ns) = (at(60.0), at(61.0));
    rows(&dir, &[LossRow { cause: 1, cpu: Some(0), from_ns, to_ns, count: 7 }]);
    let whole: Value = serde_json::from_str(&kpat(&folder, &["handover", "x.kpat", "1", "--json"])).unwrap();
    assert_eq!(whole["lost_records"], 0);
    assert!(!kpat(&folder, &["handover", "x.kpat", "1"]).contains("missing:"));
}

#[test]
fn a_silent_loss_is_taken_apart() {
    let folder = Folder::new("handover");
    log(&folder);
    let list: Value = serde_json::from_str(&kpat(&folder, &["handover", "x.kpat", "--json"])).unwrap();
    assert_eq!(list["handovers"].as_array().unwrap().len(), 1, "{list:#}");
    let whole: Value = serde_json::from_str(&kpat(&folder, &["handover", "x.kpat", "1", "--json"])).unwrap();
    // Those of the fixture, 9.4 to 9.8 ms after its beginning.
    assert_eq!(whole["lost_records"], 1_234);
    let text = kpat(&folder, &["handover", "x.kpat", "1"]);
    assert!(text.contains("1234 records of its time are missing"), "{text}");
    // As the research page has it, worked out by hand from the kernel's trace: ms.
    let expected = [
        ("detection", 1_019.8),
        ("reaction", 427.2),
        ("probing", 8_065.8),
        ("selection", 41.3),
        ("authentication", 25.1),
        ("pre-association", 28.3),
        ("association", 12.6),
        ("key-wait", 107.2),
        ("key-exchange", 74.5),
        ("key-install", 120.6),
        ("client-start", 751.1),
        ("dhcp", 753.5),
        ("address", 228.9),
        ("first-data", 3.1),
        ("neighbour", 1.0),
        ("first-data", 108.7),
    ];
    let phases = whole["phases"].as_array().unwrap();
    let found: Vec<(&str, f64)> =
        phases.iter().map(|p| (p["phase"].as_str().unwrap(), p["ns"].as_f64().unwrap() / 1e6)).collect();
    assert_eq!(found.iter().map(|f| f.0).collect::<Vec<_>>(), expected.map(|e| e.0), "{found:?}");
    for (f, e) in found.iter().zip(&expected) {
        assert!((f.1 - e.1).abs() < 0.2, "{f:?} is not {e:?}");
    }
    for pair in phases.windows(2) {
        assert_eq!(pair[0]["to_boot_ns"], pair[1]["from_boot_ns"]);
    }
    let ms = |v: &Value| v.as_f64().unwrap() / 1e6;
    assert!((ms(&whole["link_ns"]) - 8_902.6).abs() < 0.1, "{}", whole["link_ns"]);
    assert!((ms(&whole["without_data_ns"]) - 10_748.9).abs() < 0.1);
    assert!((ms(&whole["flow"]["gap_ns"]) - 11_768.7).abs() < 30.0, "{}", whole["flow"]);
    assert_eq!(whole["flow"]["sent"], 50);
    assert_eq!(
        (whole["kind"].as_str(), whole["cause"].as_str()),
        (Some("lost-and-joined"), Some("silent-loss"))
    );
    assert_eq!((&whole["from"]["bssid"], &whole["to"]["bssid"]), (&Value::from(OLD), &Value::from(NEW)));
    assert_eq!(whole["to"]["mhz"], 2_437);
    // Two of the four frames are the kernel's marks, one is another station's.
    let marks = whole["marks"].as_array().unwrap();
    let of_frame = |m: &&Value| m["lane"] == "air" || !m["frame"].is_null();
    let heard: Vec<(Option<i64>, f64)> = marks
        .iter()
        .filter(of_frame)
        .map(|m| {
            (
                m["frame"]["number"].as_i64().or(m["row"].as_i64()),
                m["frame"]["after_mark_ns"].as_f64().unwrap_or(0.0) / 1e6,
            )
        })
        .collect();
    assert_eq!(heard, [(Some(1), 0.0), (Some(2), 2.0), (Some(3), -0.3)]);
    assert_eq!(whole["first_authentication"]["frame"]["number"], 2);
}

/// As recorded of a VLAN above a radio's interface, with a filter that its tag does not fit: what comes while no packet socket is open is first seen at the VLAN.
#[test]
fn data_first_seen_above_an_interface_is_its_own() {
    const VLAN: i32 = 9;
    let folder = Folder::new("handover-vlan");
    let dir = log(&folder);
    let whole =
        || -> Value { serde_json::from_str(&kpat(&folder, &["handover", "x.kpat", "1", "--json"])).unwrap() };
    let asked = |whole: &Value| ["end_boot_ns", "ended", "flow", "phases"].map(|k| whole[k].clone());
    let plain = whole();
    let all = TableFile::open(&dir, PacketRow::TABLE).unwrap();
    let mut packets: Vec<PacketRow> = Vec::new();
    all.each((0..all.groups()).collect(), |p: PacketRow| packets.push(p)).unwrap();
    // The first echoes behind the gap.
    packets.iter_mut().filter(|p| (1_000..1_006).contains(&p.packet_id)).for_each(|p| p.if_in = Some(VLAN));
    rows(&dir, &packets);
    let device = |ifindex, name: &str, above| DeviceRow {
        netns: NETNS,
        ifindex,
        name: name.into(),
        link_type: 1,
        mac: format!("02:00:00:00:00:{ifindex:02}"),
        above,
        ..DeviceRow::default()
    };
    // Nobody knows what that interface is: its data is its own alone.
    rows(&dir, &[device(STATION, "w2", None), device(VLAN, "w2.5", None)]);
    assert_eq!(whole()["end_boot_ns"], at(11.7697 + 6.0 * 0.02));
    rows(&dir, &[device(STATION, "w2", None), device(VLAN, "w2.5", Some(STATION))]);
    assert_eq!(asked(&whole()), asked(&plain));
    // A log that says that each is above the other is no reason to go on for ever.
    rows(&dir, &[device(STATION, "w2", Some(VLAN)), device(VLAN, "w2.5", Some(STATION))]);
    assert_eq!(asked(&whole()), asked(&plain));
}

#[test]
fn text_says_what_made_it_long() {
    let folder = Folder::new("handover-text");
    log(&folder);
    for width in ["80", "200"] {
        for args in [
            &["handover", "x.kpat"][..],
            &["handover", "x.kpat", "1", "--steps"],
            &["handover", "x.kpat", "1", "--marks"],
        ] {
            let text = kpat(&folder, &[args, &["--width", width]].concat());
            let most: usize = width.parse().unwrap();
            assert!(text.lines().all(|l| l.chars().count() <= most), "{text}");
        }
    }
    let text = kpat(&folder, &["handover", "x.kpat", "1", "--width", "0"]);
    for words in [
        "full scan of 38 channels",
        "refused (NAK)",
        "DHCP OFFER",
        "carrier off",
        "silent loss",
        "wifi event",
    ] {
        assert!(text.contains(words), "no `{words}` in {text}");
    }
    // Twice the same log: statistics over both, numbered on.
    let two = kpat(&folder, &["handover", "x.kpat", "x.kpat"]);
    assert!(two.contains("2 handovers together"), "{two}");
    let tsv = kpat(&folder, &["handover", "x.kpat", "--tsv", "--columns", "handover,kind,link_ns"]);
    assert_eq!(tsv, "handover\tkind\tlink_ns\n1\tlost-and-joined\t8902600000\n");
}

#[test]
fn the_picture_and_the_page_need_nothing_else() {
    let folder = Folder::new("handover-picture");
    log(&folder);
    kpat(&folder, &["handover", "x.kpat", "--svg", "h.svg", "--html", "h.html"]);
    if let Some(keep) = std::env::var_os("KEEP_HANDOVER") {
        let _ = Command::new("cp").arg("-r").arg(&folder.0).arg(keep).status();
    }
    let read = |name: &str| std::fs::read_to_string(folder.0.join(name)).unwrap();
    for text in [read("h.svg"), read("h.html")] {
        assert!(!text.replace("http://www.w3.org/2000/svg", "").contains("://"), "something from elsewhere");
        assert!(text.contains("probing") && text.contains("application") && text.contains("data stops"));
    }
    crate::app::well_formed(&read("h.svg"));
}
