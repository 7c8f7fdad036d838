//! Every command of every document is run: each line of a code block that begins with `kpat`, by a shell, on a log made
//! here. What cannot run here is listed below by its beginning, with the reason; a line of that list that fits no command
//! of the documents is wrong, too.

#![allow(clippy::unwrap_used, reason = "a test")]

mod fixture;

use fixture::Folder;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const KPAT: &str = env!("CARGO_BIN_EXE_kpat");

/// Beginnings of commands, and why they are not run here.
const NOT_RUN: &[(&str, &str)] = &[
    ("kpat guest", "needs a guest: the lab has them"),
    ("kpat packet 60 ", "needs a guest's log: lab/tests/guest_record.py"),
    ("kpat integrate g.kbl host.kbl", "needs logs of a guest and its host: lab/tests/guest_record.py"),
    ("kpat integrate web1.kbl db1.kbl", "needs logs of guests and their host: lab/tests/guest_host.py"),
    ("kpat packet 6 all.kpat", "needs logs of guests and their host: lab/tests/guest_host.py"),
    ("kpat record", "records from the running kernel: lab and journeys do"),
    ("kpat doctor", "loads programs into the running kernel: the lab does"),
    ("kpat view", "serves until it is ended: ui/journeys"),
    ("kpat wireshark stream", "captures until it is ended: tests/wireshark.rs and the lab"),
    (
        "kpat wireshark install --system",
        "changes the machine's own folders: tests/wireshark.rs installs for one user",
    ),
    ("kpat app", "needs a recording of applications: tests/application.rs, tests/app.rs, tests/replay.rs"),
    ("kpat why", "needs a recording of applications: tests/why.rs, the lab"),
    ("kpat profile", "needs a recording of the profile: tests/command_line.rs, the lab"),
    ("kpat ctl only", "needs a recording of the profile that goes on: lab/tests/accounts.py"),
    ("kpat sql app.kpat", "needs a recording of applications: tests/application.rs"),
    ("kpat integrate client.kbl", "needs logs of several devices: tests/devices.rs and the lab"),
    ("kpat info way.kpat", "needs logs of several devices: tests/devices.rs"),
    ("kpat packets way.kpat", "needs logs of several devices: tests/devices.rs"),
    ("kpat packet 1017 way.kpat", "needs logs of several devices: tests/devices.rs"),
    ("kpat collect receive", "listens until it is ended: crates/collect tests"),
    ("kpat collect token /var/lib/kpat", "writes to a folder of the machine: crates/collect tests"),
    ("kpat integrate /var/lib/kpat", "reads a folder of the machine: crates/collect tests"),
];

/// Names that stand for any of their kind, and what they are in the log made here.
const STANDS_FOR: &[(&str, &str)] = &[
    ("kpat packet 42 ", "kpat packet 1 "),
    ("kpat packet 41 ", "kpat packet 3 "),
    ("kpat function sch_direct_xmit ", "kpat function ip_forward "),
    // Joined here from its own recording and captures, which this export reads again.
    ("export X.kpat --to pcapng", "export joined.kpat --to pcapng"),
    ("export guest.kpat --to pcapng", "export joined.kpat --to pcapng"),
];

/// The commands of the documents with the documents' names. A synopsis, with `[` or `|` between words, is none.
fn commands() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut pages: Vec<PathBuf> =
        std::fs::read_dir(root.join("docs")).unwrap().map(|e| e.unwrap().path()).collect();
    pages.retain(|p| p.extension().is_some_and(|e| e == "md"));
    pages.push(root.join("README.md"));
    pages.sort();
    let mut found = Vec::new();
    for page in pages {
        let name = page.file_name().unwrap().to_string_lossy().into_owned();
        let mut code = false;
        for line in std::fs::read_to_string(&page).unwrap().lines() {
            if line.starts_with("```") {
                code = !code;
                continue;
            }
            let line = line.trim_start_matches("$ ").trim_start_matches("sudo ");
            if !code || !line.starts_with("kpat ") {
                continue;
            }
            // What it is for stands behind a hash, or far to the right.
            let command = line.split("  #").next().unwrap().split("   ").next().unwrap().trim_end();
            let outside: String = command.split('\'').step_by(2).collect();
            let synopsis = outside.contains(['[', '>'])
                && !outside.contains(" > ")
                && !outside.contains(" < ")
                || outside.contains('[')
                || outside.split(' ').any(|w| w.contains('|') && w != "|")
                || outside.split(' ').skip(2).any(|w| ["ID", "NAME", "FILE", "SPOOL", "FOLDER"].contains(&w))
                || command.contains("...");
            if !synopsis {
                found.push((name.clone(), command.to_owned()));
            }
        }
    }
    found
}

fn copied(from: &Path, to: &Path) {
    assert!(Command::new("cp").arg("-r").args([from, to]).status().unwrap().success());
}

/// The folder in which they run: every log and capture that a command names is there.
fn prepared(commands: &[(String, String)]) -> Folder {
    let folder = Folder::new("documents");
    fixture::integrated(&folder);
    fixture::recorded(&folder);
    // A capture without a frame: header of the section, one interface.
    let words: [u32; 12] = [0x0a0d_0d0a, 28, 0x1a2b_3c4d, 1, u32::MAX, u32::MAX, 28, 1, 20, 1, 0, 20];
    let empty: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
    std::fs::write(folder.0.join("keys"), "net:a passphrase\n").unwrap();
    std::fs::write(folder.0.join("query.sql"), "select count(*) from packet").unwrap();
    symlink(KPAT, folder.0.join("kpat")).unwrap();
    let clean = |w: &str| w.trim_matches(['\'', '"']).to_owned();
    for word in commands.iter().flat_map(|(_, c)| c.split(' ')).map(clean) {
        let path = folder.0.join(&word);
        if word.starts_with('/') || path.exists() {
            continue;
        }
        if let Some(parent) = path.parent().filter(|_| word.contains('/') && word.contains('.')) {
            std::fs::create_dir_all(parent).unwrap();
        }
        if word.ends_with(".kpat") {
            copied(&folder.0.join("x.kpat"), &path);
        } else if word.ends_with(".kbl") {
            symlink(folder.0.join("x.kbl"), path).unwrap();
        } else if word.ends_with(".log") {
            std::fs::write(path, "1790000000.250000: a line of a program\n").unwrap();
        } else if word.ends_with(".pcap") || (word.ends_with(".pcapng") && !word.contains("annotated")) {
            std::fs::write(path, &empty).unwrap();
        }
    }
    let made = Command::new(KPAT)
        .args(["-q", "integrate", "x.kbl", "r1.pcap", "-o", "joined.kpat"])
        .current_dir(&folder.0)
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    folder
}

#[test]
fn each_command_does_what_it_is_there_for() {
    let commands = commands();
    assert!(commands.len() > 50, "{commands:?}");
    let folder = prepared(&commands);
    let home = folder.0.join("home");
    std::fs::create_dir(&home).unwrap();
    let mut run = 0;
    for (page, command) in &commands {
        if NOT_RUN.iter().any(|(begins, _)| command.starts_with(begins)) {
            continue;
        }
        let typed = STANDS_FOR.iter().fold(command.clone(), |c, (from, to)| c.replace(from, to));
        // The log that it makes is there from another command.
        let typed = if typed.starts_with("kpat integrate") {
            let bare = typed.split(" -o ").next().unwrap().to_owned();
            format!("{bare} -o made-{run}.kpat")
        } else {
            typed
        };
        let done = Command::new("bash")
            .args(["-o", "pipefail", "-c", &typed])
            .current_dir(&folder.0)
            .env("PATH", format!("{}:{}", folder.0.display(), std::env::var("PATH").unwrap()))
            .env("HOME", &home)
            .env_remove("XDG_CONFIG_HOME")
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let words = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "{page}: {typed}: {words}");
        run += 1;
    }
    assert!(run > 35, "only {run} commands were run");
    println!("{run} of {} commands were run", commands.len());
}

#[test]
fn what_is_not_run_is_in_the_documents() {
    let commands = commands();
    for (begins, _) in NOT_RUN {
        assert!(commands.iter().any(|(_, c)| c.starts_with(begins)), "no document has `{begins}`");
    }
}
