//! Other people's programs as judges of what we write. One that is not here is reported and counted, not passed over.

#![allow(dead_code, clippy::unwrap_used, reason = "each test needs some of them; a test may panic")]

use std::path::{Path, PathBuf};
use std::process::Command;

fn runs(program: &Path, arg: &str) -> bool {
    Command::new(program).arg(arg).output().is_ok_and(|o| o.status.success())
}

fn skipped(what: &str, remedy: &str) {
    println!("skipped: {what}: {remedy}");
}

/// Python with the packages that `scripts/setup test` installs for the tests.
pub fn python(module: &str) -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let python = target.join("judges/bin/python");
    let there = Command::new(&python)
        .args(["-c", &format!("import {module}")])
        .output()
        .is_ok_and(|o| o.status.success());
    if !there {
        skipped(&format!("Python's {module} as a judge"), "run scripts/setup test");
    }
    there.then_some(python)
}

/// Standard output of a program that must succeed; `None`: it is not here.
pub fn output(program: &str, version: &str, args: &[&str]) -> Option<String> {
    if !runs(Path::new(program), version) {
        skipped(&format!("{program} as a judge"), "it is not installed");
        return None;
    }
    Some(run(Path::new(program), args))
}

/// `go tool pprof` is here without a compilation of a minute (Go from 1.25 on compiles it when it is first asked for), or that is wanted.
pub fn has_pprof() -> bool {
    let compiled = || {
        let tools = Command::new("go").args(["env", "GOTOOLDIR"]).output().ok()?;
        Some(Path::new(String::from_utf8(tools.stdout).ok()?.trim()).join("pprof").exists())
    };
    let here = std::env::var_os("KPAT_JUDGE_PPROF").is_some() || compiled().unwrap_or(false);
    if !here {
        skipped("go tool pprof as a judge", "it is not compiled (KPAT_JUDGE_PPROF=1: where Go is installed)");
    }
    here
}

pub fn run(program: &Path, args: &[&str]) -> String {
    let done = Command::new(program).args(args).output().unwrap();
    assert!(
        done.status.success(),
        "{} {args:?}: {}",
        program.display(),
        String::from_utf8_lossy(&done.stderr)
    );
    String::from_utf8(done.stdout).unwrap()
}
