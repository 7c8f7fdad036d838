//! What people see, as text: every look-up at 80 and at 200 columns. `UPDATE_GOLDEN=1 cargo test -p kpat` writes the files
//! anew; review them as a diff.

use crate::fixture;

use fixture::Folder;
use std::path::Path;
use std::process::Command;

/// Standard output and standard error as one text.
fn run(folder: &Folder, args: &[&str]) -> String {
    let done = Command::new(env!("CARGO_BIN_EXE_kpat"))
        .args(args)
        .current_dir(&folder.0)
        .env_remove("NO_COLOR")
        .output()
        .unwrap();
    let mut text = String::from_utf8(done.stdout).unwrap();
    for line in String::from_utf8(done.stderr).unwrap().lines() {
        text += &format!("stderr| {line}\n");
    }
    if done.status.code() != Some(0) {
        text += &format!("exit {}\n", done.status.code().unwrap());
    }
    text
}

fn check(name: &str, found: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, found).unwrap();
        return;
    }
    let wanted = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        wanted == found,
        "{name} differs (UPDATE_GOLDEN=1 accepts):\n--- wanted\n{wanted}\n--- found\n{found}"
    );
}

#[test]
fn look_ups() {
    let folder = Folder::new("golden");
    fixture::integrated(&folder);
    fixture::recorded(&folder);
    let cases: [(&str, &[&str]); 19] = [
        ("info-kbl", &["info", "x.kbl"]),
        ("info-kpat", &["info", "x.kpat"]),
        ("packets", &["packets", "x.kpat"]),
        ("packet-forwarded", &["packet", "1", "x.kpat"]),
        ("packet-delivered", &["packet", "2", "x.kpat"]),
        ("packet-dropped", &["packet", "x.kpat", "3"]),
        ("packet-incomplete", &["packet", "4", "x.kpat"]),
        ("frames", &["frames", "x.kpat"]),
        ("functions", &["functions", "x.kpat"]),
        ("functions-slow", &["functions", "x.kpat", "*skb*", "--slower-than", "10us", "--sort", "max", "-r"]),
        ("function", &["function", "__dev_queue_xmit", "x.kpat"]),
        ("function-tracepoint", &["function", "skb:consume_skb", "x.kpat"]),
        ("events", &["events", "x.kpat"]),
        ("time", &["time", "x.kpat"]),
        ("time-packet", &["time", "x.kpat", "--packet", "1", "--of", "total", "--subtract-cost"]),
        (
            "time-by",
            &["time", "x.kpat", "--by", "proto", "--histogram", "--function", "ip_*", "--slower", "5us"],
        ),
        ("time-compare", &["time", "x.kpat", "forwarded", "--compare", "x.kpat"]),
        ("phases", &["phases", "x.kpat", "--study"]),
        ("phases-packet", &["phases", "x.kpat", "--packet", "2"]),
    ];
    for (name, args) in cases {
        for width in ["80", "200"] {
            let mut all = args.to_vec();
            all.extend(["--width", width]);
            let text = run(&folder, &all);
            let most: usize = width.parse().unwrap();
            for line in text.lines().filter(|l| !l.starts_with("stderr|")) {
                assert!(line.chars().count() <= most, "{name} at {width}: {line}");
            }
            check(&format!("{name}-{width}.txt"), &text);
        }
        let mut all = args.to_vec();
        all.push("--json");
        check(&format!("{name}.json"), &run(&folder, &all));
    }
}

/// `--limit 0` prints as it reads; a list that is whole is the same in both ways.
#[test]
fn all_packets_as_they_come() {
    let folder = Folder::new("all");
    fixture::integrated(&folder);
    let list: [&[&str]; 6] = [
        &["--width", "200"],
        &["--json"],
        &["--json", "port", "1"],
        &["--sort", "path", "--json"],
        &["--sort", "length", "-r", "--width", "80"],
        &["-r", "tcp"],
    ];
    for more in list {
        let with = |limit: &str| {
            let mut args = vec!["packets", "x.kpat", "--limit", limit];
            args.extend(more);
            run(&folder, &args)
        };
        assert_eq!(with("0"), with("1000"), "{more:?}");
    }
}

#[test]
fn colour_changes_no_word() {
    let folder = Folder::new("colour");
    fixture::integrated(&folder);
    let plain = run(&folder, &["packet", "1", "x.kpat", "--width", "80"]);
    let colour = run(&folder, &["packet", "1", "x.kpat", "--width", "80", "--color", "always"]);
    assert_ne!(plain, colour);
    let mut bare = String::new();
    let mut rest = colour.as_str();
    while let Some(at) = rest.find('\x1b') {
        bare += &rest[..at];
        rest = &rest[at + rest[at..].find('m').unwrap() + 1..];
    }
    assert_eq!(bare + rest, plain);
}
