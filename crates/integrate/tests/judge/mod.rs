//! How much of an integrated log is true.

#![allow(dead_code, clippy::unwrap_used, reason = "each user needs a part; a test may panic")]

use crate::world::{Clock, Dir};
use kpat_integrate::{Options, Report, integrate};
use kpat_store::tables::{ASSOCIATION, AssociationRow};
use std::collections::HashMap;
use std::path::PathBuf;

pub struct Score {
    pub precision: f64,
    pub recall: f64,
    pub frames: usize,
}

/// Of the associations that count as sure: how many are right; and how many of all frames got the right packet.
pub fn score(dir: &std::path::Path, truth: &[Vec<(i64, u64)>]) -> Score {
    let rows: Vec<AssociationRow> = kpat_store::TableFile::open(dir, &ASSOCIATION).unwrap().all().unwrap();
    let mut want: HashMap<(i32, i64), u64> = HashMap::new();
    for (capture, frames) in truth.iter().enumerate() {
        want.extend(frames.iter().map(|(n, p)| ((capture as i32, *n), *p)));
    }
    let sure: Vec<_> = rows.iter().filter(|r| r.confidence >= 60).collect();
    let right = |r: &AssociationRow| want[&(r.capture_id, r.number)] == r.packet_id as u64;
    let mut found: Vec<_> = rows.iter().filter(|r| right(r)).map(|r| (r.capture_id, r.number)).collect();
    found.sort_unstable();
    found.dedup();
    let real = want.values().filter(|p| **p != 0).count();
    Score {
        precision: sure.iter().filter(|r| right(r)).count() as f64 / sure.len().max(1) as f64,
        recall: found.len() as f64 / real.max(1) as f64,
        frames: want.len(),
    }
}

pub fn run(dir: &Dir, captures: &[&str]) -> (Report, PathBuf) {
    let out = dir.path("out.kpat");
    let captures: Vec<PathBuf> = captures.iter().map(|c| dir.path(c)).collect();
    let report = integrate(&dir.path("x.kbl"), &captures, &out, &Options::default(), &mut |_| ()).unwrap();
    (report, out)
}

pub fn assert_clock(report: &Report, clock: Clock) {
    let c = &report.clocks[0];
    for wall in [c.from_wall_ns, (c.from_wall_ns + c.to_wall_ns) / 2, c.to_wall_ns] {
        let since = wall - c.from_wall_ns;
        let got = wall + c.offset_ns + (c.drift_ppb as f64 * since as f64 / 1e9) as i64;
        let error = (got as f64 - clock.boot(wall)).abs();
        println!("clock error {error:.0} ns, bound {} ns, drift {} ppb", c.bound_ns, c.drift_ppb);
        assert!(error <= c.bound_ns as f64 + 64.0, "true clock outside of the bound");
    }
}
