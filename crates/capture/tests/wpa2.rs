//! Encrypted 802.11 frames with their key: a station's handshake with a WPA2 access point, DHCP and what followed, heard in a guest with emulated radios; by tshark's
//! reading of the same file.
#![allow(clippy::unwrap_used)]

use kpat_capture::{Plain, Reader, Secrets};
use kpat_model::{Network, Transport};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

fn file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/wpa2/air.pcapng")
}

/// Of each frame that was read with the keys: EtherType, addresses and ports, as far as it has them. And how many were not.
fn read(keys: &str, cut: usize) -> (BTreeMap<u64, String>, u64) {
    let mut reader = Reader::open(&file()).unwrap();
    let mut plain = Plain::new(Secrets::parse(keys).unwrap());
    let mut out = BTreeMap::new();
    while let Some(f) = reader.next().unwrap() {
        let before = plain.read;
        let print = plain.frame(f.link_type, &f.data[..f.data.len().min(cut)], f.len_wire);
        if plain.read == before {
            continue;
        }
        let kind = match &print.network {
            Some(Network::V4 { .. }) => 0x0800,
            Some(Network::V6 { .. }) => 0x86dd,
            Some(Network::Arp { .. }) => 0x0806,
            Some(Network::Other(kind, _)) => *kind,
            None => 0,
        };
        let ports = match print.transport {
            Some(Transport::Udp { sport, dport, .. }) => format!(" {sport} {dport}"),
            _ => String::new(),
        };
        out.insert(f.number, format!("{kind:#06x}{ports}"));
        assert!(print.wifi.is_some_and(|w| w.frame_control & 0x4000 != 0), "what was encrypted says so");
    }
    (out, plain.unread)
}

fn tshark(filter: &str) -> BTreeMap<u64, String> {
    let mut tshark = Command::new("tshark");
    tshark.arg("-r").arg(file()).args(["-o", "wlan.enable_decryption:TRUE"]);
    tshark.args(["-o", "uat:80211_keys:\"wpa-pwd\",\"kpat-secret:kpat\"", "-Y", filter]);
    tshark.args([
        "-T",
        "fields",
        "-e",
        "frame.number",
        "-e",
        "llc.type",
        "-e",
        "udp.srcport",
        "-e",
        "udp.dstport",
    ]);
    let done = tshark.output().expect("tshark is installed");
    let text = String::from_utf8(done.stdout).unwrap();
    let of = |line: &str| {
        let mut words: Vec<&str> = line.split('\t').filter(|w| !w.is_empty()).collect();
        let number = words.remove(0).parse().unwrap();
        (number, words.join(" "))
    };
    text.lines().map(of).collect()
}

#[test]
fn frames_are_read_as_tshark_reads_them() {
    let (ours, unread) = read("other:not the passphrase\nkpat:kpat-secret\n", usize::MAX);
    let theirs = tshark("wlan.fc.protected == 1 && llc.type");
    assert!(theirs.len() >= 45 && theirs.values().any(|w| w == "0x0800 68 67"), "{theirs:?}");
    assert_eq!(ours, theirs);
    // Of the access point that it left: that handshake was before.
    assert_eq!(unread, tshark("wlan.fc.protected == 1 && !llc.type").len() as u64);
    // By the key that the passphrase makes, and where the end of the frames was not captured.
    let pmk = "d279f5aaa83e53334f6d42815f98727bf4a1dbba5430f349a6d4d6cc56b4e5ca";
    assert_eq!(read(pmk, usize::MAX).0, theirs);
    assert_eq!(read("kpat:kpat-secret", 250).0.keys().collect::<Vec<_>>(), theirs.keys().collect::<Vec<_>>());
}

#[test]
fn another_key_reads_nothing() {
    let (ours, unread) = read("kpat:kpat-secreT", usize::MAX);
    assert!(ours.is_empty() && unread > 40, "{ours:?}");
}
