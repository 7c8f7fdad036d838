//! What the shell has of kpat: completion as bash asks for it, manual pages as man shows them, Ctrl-C.

#![allow(clippy::unwrap_used, reason = "a test")]

mod fixture;

use fixture::Folder;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

const KPAT: &str = env!("CARGO_BIN_EXE_kpat");

fn kpat(folder: &Folder, args: &[&str]) -> Output {
    Command::new(KPAT).args(args).current_dir(&folder.0).output().unwrap()
}

/// What bash would offer, its words cut as readline cuts them.
fn offered(folder: &Folder, words: &[&str], begun: &str) -> Vec<String> {
    let script = r#"
        source <("$KPAT" completion bash)
        COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMP_LINE=$LINE; COMP_POINT=${#COMP_LINE}; COMP_TYPE=9
        _kpat "$KPAT" "$BEGUN" "" 2>/dev/null
        printf '%s\n' "${COMPREPLY[@]}"
    "#;
    let line = words.join(" ").replace(" : ", ":").replace(" :", ":");
    let done = Command::new("bash")
        .args(["--norc", "-c", script, "bash"])
        .args(words)
        .envs([("KPAT", KPAT), ("LINE", &line), ("BEGUN", begun)])
        .current_dir(&folder.0)
        .output()
        .unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).unwrap().lines().filter(|l| !l.is_empty()).map(str::to_owned).collect()
}

#[test]
fn tab_offers_what_there_is() {
    let folder = Folder::new("tab");
    fixture::integrated(&folder);
    fixture::recorded(&folder);
    std::fs::write(folder.0.join("wire.pcapng"), b"").unwrap();
    std::fs::write(folder.0.join("notes.txt"), b"").unwrap();
    std::fs::create_dir_all(folder.0.join("older/y.kpat")).unwrap();
    let cases: [(&[&str], &[&str]); 12] = [
        (&["kpat", "packets", ""], &["x.kpat", "older/"]),
        (&["kpat", "packets", "older/"], &["older/y.kpat"]),
        (&["kpat", "integrate", ""], &["x.kbl", "older/"]),
        (&["kpat", "integrate", "x.kbl", ""], &["wire.pcapng", "x.kbl", "older/"]),
        (&["kpat", "info", "x."], &["x.kbl", "x.kpat"]),
        (&["kpat", "function", "x.kpat", "ip_l"], &["ip_local_deliver"]),
        (&["kpat", "events", "x.kpat", "--kind", "dr"], &["drop"]),
        (&["kpat", "packets", "x.kpat", "--verdict", "for"], &["forwarded"]),
        (&["kpat", "packets", "x.kpat", "forw"], &["forwarded"]),
        (&["kpat", "record", "--profile", "ro"], &["router"]),
        (&["kpat", "record", "--mechanism", "trace"], &["tracepoint"]),
        (&["kpat", "packets", "--ut"], &["--utc"]),
    ];
    for (words, wanted) in cases {
        assert_eq!(offered(&folder, words, words[words.len() - 1]), wanted, "{words:?}");
    }
    // Every machine has this one; `ip link` says so, too.
    assert!(offered(&folder, &["kpat", "record", "-i", "l"], "l").contains(&"lo".to_owned()));
    assert!(offered(&folder, &["kpat", "record", "--sniff", ""], "").contains(&"lo".to_owned()));
    assert!(offered(&folder, &["kpat", "record", "--netns", ""], "").contains(&"self".to_owned()));
    // Readline cuts at a colon: what stands before it is not offered again, and nothing of another place.
    let behind = offered(&folder, &["kpat", "record", "--sniff", "nowhere", ":", "l"], "l");
    assert_eq!(behind, Vec::<String>::new());
}

#[test]
fn the_scripts_are_what_their_shells_read() {
    let folder = Folder::new("scripts");
    for shell in ["bash", "zsh", "fish"] {
        let done = kpat(&folder, &["completion", shell]);
        let script = folder.0.join(shell);
        std::fs::write(&script, &done.stdout).unwrap();
        match Command::new(shell).arg("-n").arg(&script).output() {
            Ok(read) => assert!(read.status.success(), "{shell}: {}", String::from_utf8_lossy(&read.stderr)),
            Err(e) => eprintln!("not tried: no {shell} here ({e})"),
        }
        assert!(String::from_utf8(done.stdout).unwrap().contains("KPAT_COMPLETE"));
    }
}

#[test]
fn each_manual_page_has_examples_and_statuses() {
    let folder = Folder::new("man");
    assert!(kpat(&folder, &["man", "--all", "man"]).status.success());
    let pages: Vec<_> = std::fs::read_dir(folder.0.join("man")).unwrap().map(|e| e.unwrap().path()).collect();
    assert!(pages.len() > 30, "{pages:?}");
    for page in pages {
        let text = std::fs::read_to_string(&page).unwrap();
        for section in ["SYNOPSIS", "EXAMPLES", "EXIT STATUS", "SEE ALSO"] {
            assert!(
                text.contains(&format!(".SH {section}\n")) || text.contains(&format!(".SH \"{section}\"")),
                "{page:?} has no {section}"
            );
        }
        assert!(!text.contains("EXTRA"), "{page:?}");
    }
}

/// The capture is a pipe into which nobody writes, so that it waits in the middle of its work.
#[test]
fn what_is_interrupted_leaves_nothing() {
    let folder = Folder::new("interrupted");
    fixture::recorded(&folder);
    assert!(Command::new("mkfifo").arg(folder.0.join("w.pcap")).status().unwrap().success());
    let mut child = Command::new(KPAT)
        .args(["integrate", "x.kbl", "w.pcap", "-o", "made.kpat"])
        .current_dir(&folder.0)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let made = || {
        let names =
            std::fs::read_dir(&folder.0).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
        names.filter(|n| n.starts_with("made.kpat")).collect::<Vec<_>>()
    };
    let begun = Instant::now();
    while made().is_empty() {
        assert!(child.try_wait().unwrap().is_none() && begun.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let done = child.wait_with_output().unwrap();
    let words = String::from_utf8(done.stderr).unwrap();
    assert_eq!(done.status.code(), Some(130), "{words}");
    assert_eq!(words, "kpat: interrupted; nothing half made is left\n");
    assert_eq!(made(), Vec::<String>::new());
}
