//! What the shell has of kpat: completion as bash asks for it, manual pages as man shows them, Ctrl-C.

use crate::fixture;

use fixture::Folder;
use kpat_store::tables::{ProcessLabelRow, SocketRow};
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
    let cases: [(&[&str], &[&str]); 15] = [
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
        (&["kpat", "packets", "x.kpat", "--columns", "drop"], &["drop-reason"]),
        (&["kpat", "packets", "x.kpat", "--columns", "id,ver"], &["id,verdict"]),
        (&["kpat", "export", "x.kpat", "--only", "pid"], &[]),
    ];
    for (words, wanted) in cases {
        assert_eq!(offered(&folder, words, words[words.len() - 1]), wanted, "{words:?}");
    }
    // What is in the log that is named: a handover (recorded in a guest), processes and their names.
    let log = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/handover/s5/record.kbl");
    assert!(kpat(&folder, &["integrate", log.to_str().unwrap(), "-o", "w.kpat", "-q"]).status.success());
    assert_eq!(offered(&folder, &["kpat", "handover", "w.kpat", "1"], "1"), ["1"]);
    let names = offered(&folder, &["kpat", "profile", "w.kpat", "--comm", "wpa"], "wpa");
    assert_eq!(names, ["wpa_supplicant"]);
    let numbers = offered(&folder, &["kpat", "profile", "w.kpat", "--pid", ""], "");
    assert!(numbers.len() > 1 && numbers.iter().all(|n| n.parse::<u32>().is_ok()), "{numbers:?}");
    // Users by name, or number where the device had none, and cgroups.
    std::fs::remove_file(folder.0.join("w.kpat/process_label.parquet")).unwrap();
    let mut labels = kpat_store::TableWriter::create(&folder.0.join("w.kpat")).unwrap();
    for (at_ns, uid, user, path) in [
        (1, 33, "www-data", "/web"),
        (2, 0, "root", ""),
        (3, 5_001, "", "/jobs"),
        (4, 33, "www-data", "/web"),
    ] {
        let (user, path) = (user.to_owned(), path.to_owned());
        labels.push(&ProcessLabelRow { at_ns, uid, user, path, ..Default::default() }).unwrap();
    }
    labels.finish().unwrap();
    let of = |flag: &str| offered(&folder, &["kpat", "profile", "w.kpat", flag, ""], "");
    assert_eq!(of("--user"), ["root", "www-data", "5001"]);
    assert_eq!(of("--cgroup"), ["/jobs", "/web"]);
    // Sockets: those that moved most first.
    std::fs::remove_file(folder.0.join("w.kpat/socket.parquet")).unwrap();
    let mut sockets = kpat_store::TableWriter::create(&folder.0.join("w.kpat")).unwrap();
    for (socket_id, sent_bytes) in [(4_391, 10), (4_392, 1_000), (507, 90)] {
        let row = SocketRow { socket_id, sent_bytes, ..Default::default() };
        sockets.push(&row).unwrap();
    }
    sockets.finish().unwrap();
    assert_eq!(offered(&folder, &["kpat", "why", "w.kpat", "4"], "4"), ["4392", "4391"]);
    assert_eq!(offered(&folder, &["kpat", "app", "w.kpat", "--socket", ""], ""), ["4392", "507", "4391"]);
    assert!(offered(&folder, &["kpat", "record", "--only", ""], "").contains(&"comm=".to_owned()));
    // Whatever takes an integrated log, be it behind something else.
    let help = |words: &[&str]| String::from_utf8(kpat(&folder, words).stdout).unwrap();
    let commands = help(&["--help"]);
    let named = commands
        .lines()
        .filter_map(|l| l.strip_prefix("  "))
        .filter(|l| l.starts_with(|c: char| c.is_ascii_lowercase()));
    let mut of_logs = 0;
    for name in named.filter_map(|l| l.split(' ').next()) {
        let usage = help(&[name, "--help"]);
        if usage.lines().any(|l| l.contains("kpat ") && l.contains("<X.kpat>")) {
            of_logs += 1;
            assert!(offered(&folder, &["kpat", name, ""], "").contains(&"x.kpat".to_owned()), "kpat {name}");
        }
    }
    assert!(of_logs > 10, "{of_logs} commands take a log");
    // Every machine has this one; `ip link` says so, too.
    assert!(offered(&folder, &["kpat", "record", "-i", "l"], "l").contains(&"lo".to_owned()));
    assert!(offered(&folder, &["kpat", "record", "--sniff", ""], "").contains(&"lo".to_owned()));
    assert!(offered(&folder, &["kpat", "record", "--netns", ""], "").contains(&"self".to_owned()));
    let points = offered(&folder, &["kpat", "record", "--add", "qdisc", ":"], "");
    assert_eq!(points, ["dequeue", "enqueue"].map(|n| format!("qdisc_{n}")), "as tracefs names them");
    // Readline cuts at a colon: what stands before it is not offered again, and nothing of another place.
    let behind = offered(&folder, &["kpat", "record", "--sniff", "nowhere", ":", "l"], "l");
    assert_eq!(behind, Vec::<String>::new());
}

/// Whether there is such a shell; says so where it is not.
fn has(shell: &str) -> bool {
    let there = Command::new(shell).arg("--version").output().is_ok_and(|o| o.status.success());
    if !there {
        eprintln!("SKIPPED: no {shell} here; apt-get install {shell}");
    }
    there
}

/// Runs a script of this shell with the words, where kpat is found by its name and its completion is the file `complete`.
fn run_shell(folder: &Folder, shell: &[&str], script: &str, words: &[&str]) -> String {
    let completion = kpat(folder, &["completion", shell[0]]).stdout;
    std::fs::write(folder.0.join("complete"), completion).unwrap();
    std::fs::write(folder.0.join("script"), script).unwrap();
    let path = format!(
        "{}:{}",
        std::path::Path::new(KPAT).parent().unwrap().display(),
        std::env::var("PATH").unwrap()
    );
    let done = Command::new("timeout")
        .arg("120")
        .args(shell)
        .arg("script")
        .args(words)
        .env("PATH", path)
        .env("HOME", &folder.0)
        .current_dir(&folder.0)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(done.status.success(), "{shell:?}: {}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).unwrap()
}

/// What was typed before TAB, and what stands there behind it.
const TYPED: [(&str, &str); 7] = [
    ("kpat pha", "kpat phases"),
    ("kpat packets x.", "kpat packets x.kpat"),
    ("kpat events x.kpat --kind dr", "kpat events x.kpat --kind drop"),
    ("kpat packets --ut", "kpat packets --utc"),
    ("kpat function x.kpat ip_l", "kpat function x.kpat ip_local_deliver"),
    ("kpat record --profile ro", "kpat record --profile router"),
    ("kpat packets old", "kpat packets older/"),
];

fn with_logs(name: &str) -> Folder {
    let folder = Folder::new(name);
    fixture::integrated(&folder);
    std::fs::create_dir_all(folder.0.join("older/y.kpat")).unwrap();
    folder
}

/// Keys into a zsh at a terminal of its own; a key of the test's prints the line.
#[test]
fn tab_in_zsh() {
    if !has("zsh") {
        return;
    }
    let folder = with_logs("zsh");
    let script = r#"
        zmodload zsh/zpty
        zpty z zsh -f -i
        zpty -w z 'PS1= PS2= RPS1=; unsetopt zle_bracketed_paste prompt_cr prompt_sp beep; autoload -Uz compinit; compinit -D -u; source ./complete; shown() { print -r -- "<<$BUFFER>>"; BUFFER= }; zle -N shown; bindkey "^X" shown; print -r "re""ady"'
        zpty -r z out '*ready*'
        for line in "$@"; do
            zpty -n -w z "$line"$'\t\x18'
            zpty -r z out '*>>*'
            print -r -- "${${out##*<<}%%>>*}"
        done
        zpty -d z
    "#;
    let shown = run_shell(&folder, &["zsh", "-f"], script, &TYPED.map(|t| t.0));
    assert_eq!(shown.lines().map(str::trim_end).collect::<Vec<_>>(), TYPED.map(|t| t.1));
}

#[test]
fn tab_in_fish() {
    if !has("fish") {
        return;
    }
    let folder = with_logs("fish");
    let script = r"
        source complete
        for line in $argv
            for offered in (complete -C $line)
                string split -f1 \t -- $offered
            end
        end
        true
    ";
    let shown = run_shell(&folder, &["fish", "--no-config"], script, &TYPED.map(|t| t.0));
    let last = TYPED.map(|(_, whole)| whole.rsplit(' ').next().unwrap());
    assert_eq!(shown.lines().collect::<Vec<_>>(), last);
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
    assert_eq!(words, "kpat: interrupted; partial results were removed\n");
    assert_eq!(made(), Vec::<String>::new());
}
