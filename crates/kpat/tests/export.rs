//! `kpat export` as it is typed: where things go, and the errors when they cannot.

use crate::fixture;

use fixture::Folder;
use std::process::{Command, Output};

fn kpat(folder: &Folder, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kpat")).args(args).current_dir(&folder.0).output().unwrap()
}

fn words(o: &Output) -> String {
    String::from_utf8_lossy(&o.stderr).into_owned()
}

#[test]
fn text_goes_to_standard_output() {
    let folder = Folder::new("export-text");
    fixture::integrated(&folder);
    let calls = kpat(&folder, &["export", "x.kpat", "--to", "tsv", "--packet", "2"]);
    assert!(calls.status.success(), "{}", words(&calls));
    let text = String::from_utf8(calls.stdout).unwrap();
    assert_eq!(text.lines().count(), 1 + 9);
    // The name has an escape sequence in it.
    assert!(text.contains("nc\\x1b[31m") && !text.contains('\x1b'), "{text}");
    let stacks = kpat(&folder, &["export", "x.kpat", "--to", "folded", "forwarded"]);
    let text = String::from_utf8(stacks.stdout).unwrap();
    let first = "[softirq];e1000_clean_rx_irq;napi_gro_receive;__netif_receive_skb_core;ip_rcv;ip_forward";
    assert!(text.lines().any(|l| l.starts_with(first)), "{text}");
    assert!(!text.contains("udp"), "{text}");
}

#[test]
fn a_file_is_named_when_it_is_whole() {
    let folder = Folder::new("export-file");
    fixture::integrated(&folder);
    for (format, name) in [("perfetto", "x.pftrace"), ("pprof", "x.pb.gz"), ("json", "x.jsonl")] {
        let done = kpat(&folder, &["export", "x.kpat", "--to", format, "-o", name]);
        assert!(done.status.success() && done.stdout.is_empty(), "{}", words(&done));
        assert!(words(&done).contains(name), "{}", words(&done));
        assert!(std::fs::metadata(folder.0.join(name)).unwrap().len() > 100);
    }
    let left: Vec<String> = std::fs::read_dir(&folder.0)
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .filter(|n| n.ends_with(".partial"))
        .collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn what_is_missing_is_said_with_a_remedy() {
    let folder = Folder::new("export-missing");
    fixture::integrated(&folder);
    let cases: [(&[&str], i32, &str); 5] = [
        (&["--to", "pcapng", "-o", "o.pcapng"], 1, "x.kbl, from which this log was made, is not beside it"),
        (
            &["--to", "pcapng", "-o", "o.pcapng", "--wire-only"],
            1,
            "--capture FILE, or leave out the frames with --kernel-only",
        ),
        (&["--to", "pcapng", "--wire-only"], 2, "each becomes a file"),
        (&["--to", "pcapng", "--only", "dmz.pcap", "--wire-only"], 2, "there are: lan.pcapng, wan.pcap"),
        (&["--to", "tsv", "--packet", "99"], 1, "no packet 99"),
    ];
    for (args, code, says) in cases {
        let mut all = vec!["export", "x.kpat"];
        all.extend(args);
        let done = kpat(&folder, &all);
        assert_eq!(done.status.code(), Some(code), "{args:?}: {}", words(&done));
        assert!(words(&done).contains(says), "{args:?}: {}", words(&done));
    }
    assert!(!folder.0.join("o.pcapng").exists());
    // One of that name is there, but it is another.
    fixture::recorded(&folder);
    let done = kpat(&folder, &["export", "x.kpat", "--to", "pcapng", "-o", "o.pcapng"]);
    assert!(words(&done).contains("x.kbl is not the file from which this log was made"), "{}", words(&done));
}

/// The page says every column.
#[test]
fn columns_are_documented() {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/export.md")).unwrap();
    for (name, meaning) in kpat_formats::tsv::COLUMNS {
        assert!(page.contains(&format!("| `{name}` | {meaning} |")), "{name}");
    }
}
