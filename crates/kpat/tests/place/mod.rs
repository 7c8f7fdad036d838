//! Where a recorder is tried: a folder of the test's own, and kpat run in it.

use super::KPAT;
use serde_json::Value;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// A folder of this test's own, and a prefix for its namespaces.
pub struct Place {
    pub dir: PathBuf,
    pub name: String,
}

impl Place {
    pub fn new(what: &str) -> Option<Place> {
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

    pub fn path(&self, name: &str) -> String {
        self.dir.join(name).display().to_string()
    }

    /// Names in the folder, hidden ones too.
    pub fn names(&self) -> Vec<String> {
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

pub fn ip(words: &str) -> bool {
    Command::new("ip").args(words.split(' ')).stderr(Stdio::null()).status().is_ok_and(|s| s.success())
}

pub fn words(o: &Output) -> String {
    String::from_utf8_lossy(&o.stderr).into_owned()
}

pub fn kpat(args: &[&str]) -> Output {
    Command::new(KPAT).args(args).output().expect("kpat runs")
}

pub fn record(args: &[&str]) -> Output {
    kpat(&[&["record", "--mechanism", "tracepoint"], args].concat())
}

pub fn json(args: &[&str]) -> Value {
    let out = kpat(args);
    assert!(out.status.success(), "{}", words(&out));
    serde_json::from_slice(&out.stdout).expect("JSON")
}

/// Waits for something that others do.
pub fn until(what: &str, mut there: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !there() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
