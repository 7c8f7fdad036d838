//! The recorder where it is hindered: namespaces that come and go, few descriptors, no room and no rights for its files, other
//! recorders, slow clients. Truth comes from outside: what was made and sent, and what the kernel lets a process do. Needs root.

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

const KPAT: &str = env!("CARGO_BIN_EXE_kpat");

/// A folder of this test's own, and a prefix for its namespaces.
struct Place {
    dir: PathBuf,
    name: String,
}

impl Place {
    fn new(what: &str) -> Option<Place> {
        // SAFETY: geteuid has no preconditions.
        if unsafe { libc::geteuid() } != 0 {
            eprintln!("SKIPPED: recording needs root");
            return None;
        }
        let name = format!("kr-{what}-{}", std::process::id());
        let dir = std::env::temp_dir().join(&name);
        std::fs::create_dir(&dir).expect("a new folder");
        Some(Place { dir, name })
    }

    fn path(&self, name: &str) -> String {
        self.dir.join(name).display().to_string()
    }

    /// Names in the folder, hidden ones too.
    fn names(&self) -> Vec<String> {
        let read = std::fs::read_dir(&self.dir).expect("the folder");
        let mut all: Vec<String> =
            read.map(|e| e.expect("an entry").file_name().to_string_lossy().into_owned()).collect();
        all.sort();
        all
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

fn ip(words: &str) -> bool {
    Command::new("ip").args(words.split(' ')).stderr(Stdio::null()).status().is_ok_and(|s| s.success())
}

fn words(o: &Output) -> String {
    String::from_utf8_lossy(&o.stderr).into_owned()
}

fn kpat(args: &[&str]) -> Output {
    Command::new(KPAT).args(args).output().expect("kpat runs")
}

fn record(args: &[&str]) -> Output {
    kpat(&[&["record", "--mechanism", "tracepoint"], args].concat())
}

fn json(args: &[&str]) -> Value {
    let out = kpat(args);
    assert!(out.status.success(), "{}", words(&out));
    serde_json::from_slice(&out.stdout).expect("JSON")
}

/// Waits for something that others do.
fn until(what: &str, mut there: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !there() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A command that is ended whatever happens.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_recording_starts_where_namespaces_come_and_go() {
    let Some(p) = Place::new("storm") else { return };
    let (stop, made) = (AtomicBool::new(false), AtomicU32::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let n = made.fetch_add(1, Ordering::Relaxed);
                assert!(ip(&format!("netns add {}-{n}", p.name)));
                assert!(ip(&format!("netns del {}-{n}", p.name)));
            }
        });
        let outcomes: Vec<(Output, u32)> = (0..3)
            .map(|n| {
                let before = made.load(Ordering::Relaxed);
                let file = p.path(&format!("{n}.kbl"));
                let out = record(&["-o", &file, "--for", "300ms"]);
                (out, made.load(Ordering::Relaxed) - before)
            })
            .collect();
        stop.store(true, Ordering::Relaxed);
        for (out, made) in outcomes {
            assert!(out.status.success() && made > 0, "{made} {}", words(&out));
        }
    });
    // what was made while it was recorded is either read or counted
    let file = p.path("0.kbl");
    let info = json(&["info", &file, "--json"]);
    let unread =
        info["losses"].as_array().expect("losses").iter().filter(|l| l["cause"] == "namespace-unread");
    let unread: u64 = unread.filter_map(|l| l["count"].as_u64()).sum();
    let log = p.path("0.kpat");
    assert!(kpat(&["integrate", &file, "-o", &log]).status.success());
    let text = kpat(&["events", &log, "--limit", "0"]);
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    let found = text.lines().filter(|l| l.contains("lo down (found)")).count() as u64;
    assert!(unread + found > 0, "{info} {text}");
}
