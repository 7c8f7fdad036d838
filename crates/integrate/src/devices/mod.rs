//! Several devices under test and the captures between them: a packet followed from one kernel over the wire into the
//! other.
//!
//! Each log is integrated by itself with all captures, into a folder of the result: that is the whole of the matching,
//! and every question can be asked of each device as if it were alone. What is added is a join over frames ([`join`]):
//! the frame is the only thing that two kernels have in common. The clocks of two devices are related over the
//! capture's, each with its own bound; a second way to relate them would only be a second truth.
//!
//! The logs of a host and of its guests are of one clock. Where there is no capture they are joined by that ([`one_clock`]).

mod counted;
mod join;
mod one_clock;

use crate::error::{Error, Result};
use crate::report::{Options, Progress, Report};
use crate::work::{Kept, Work, integrate_keeping, is_free};
use kpat_klog::Log;
use kpat_model::meta::Meta;
use kpat_store::tables::{CROSSING, CrossingRow, SCHEMA_VERSION};
use kpat_store::{CrossingCounts, DeviceLog, Manifest, SourceFile, TableCount, TableWriter};
use std::fs;
use std::path::{Path, PathBuf};

/// What came of joining several devices.
#[derive(Clone, Debug, Default)]
pub struct DevicesReport {
    /// Each device and its own integration.
    pub devices: Vec<(DeviceLog, Report)>,
    pub crossings: CrossingCounts,
}

/// Joins several kernel behaviour logs with the captures between them into the directory `out`, with an integrated log
/// for each device in it; the files of one recording are one device's log. Nothing is left behind on failure. `progress` gets the log that is being worked at.
/// Without a capture only packets between guests and their host are followed ([`of_one_host`]).
///
/// Errors: as [`integrate`]; two of the logs are of one recording.
pub fn integrate_devices(
    logs: &[PathBuf],
    captures: &[PathBuf],
    out: &Path,
    options: &Options,
    progress: &mut dyn FnMut(&str, Progress),
) -> Result<DevicesReport> {
    is_free(out, options)?;
    // A wrong name is reported before the long work.
    let recordings = recordings(logs)?;
    let opened = recordings.iter().map(|r| Ok(Log::open_parts(r)?)).collect::<Result<Vec<_>>>()?;
    for (i, second) in recordings.iter().enumerate() {
        let first =
            (0..i).find(|&k| same_recording((&recordings[k][0], &opened[k]), (&second[0], &opened[i])));
        if let Some(first) = first {
            return Err(Error::SameLog { first: recordings[first][0].clone(), second: second[0].clone() });
        }
    }
    let work = Work::create(out)?;
    let early = work.dir.join("early");
    fs::remove_dir(&early).map_err(|source| Error::Io { path: early, doing: "remove", source })?;
    let mut sources = Vec::new();
    let mut devices: Vec<(DeviceLog, Report)> = Vec::new();
    let metas: Vec<Meta> = opened.iter().map(|l| l.meta().clone()).collect();
    let by_clock = captures.is_empty() && of_one_host(&metas);
    let mut all_kept = Vec::new();
    for (files, log) in recordings.iter().zip(opened) {
        for path in files {
            sources.push(SourceFile::describe("log", -1, path, &work.dir)?);
        }
        let path = log.path();
        let taken: Vec<&str> = devices.iter().map(|(d, _)| d.name.as_str()).collect();
        let name = name_of(path, &taken);
        let folder = format!("{name}.kpat");
        let mut kept = Kept { wanted: by_clock, ..Kept::default() };
        let (place, mut each) = (work.dir.join(&folder), |p| progress(&name, p));
        let report = integrate_keeping(&log, files, captures, &place, options, &mut kept, &mut each)?;
        let meta = log.meta();
        let worst = kept.guest_clock.iter().map(|r| i64::from(r.bound_ns)).max();
        let device = DeviceLog {
            log: path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default(),
            hostname: meta.hostname.clone(),
            boot_id: meta.boot_id.clone(),
            kernel_release: meta.kernel_release.clone(),
            packets: report.packets,
            host_bound_ns: worst.filter(|_| is_guest(meta)),
            name,
            folder,
        };
        devices.push((device, report));
        all_kept.push(kept);
    }
    sources.extend(SourceFile::captures(captures, &work.dir)?);
    let folders: Vec<PathBuf> = devices.iter().map(|(d, _)| work.dir.join(&d.folder)).collect();
    let mut writer = TableWriter::<CrossingRow>::create(&work.dir)?;
    let crossings = if by_clock {
        one_clock::join(&metas, &mut all_kept, &mut writer)?
    } else {
        join::join(&folders, &mut writer)?
    };
    let rows = writer.finish()?;
    let manifest = Manifest {
        schema: SCHEMA_VERSION,
        writer: format!("kpat {}", env!("CARGO_PKG_VERSION")),
        sources,
        tables: vec![TableCount { table: CROSSING.name.to_owned(), rows }],
        devices: devices.iter().map(|(d, _)| d.clone()).collect(),
        crossings: crossings.clone(),
        ..Manifest::default()
    };
    manifest.write(&work.dir)?;
    work.finish(out)?;
    Ok(DevicesReport { devices, crossings })
}

/// A guest's log that its host made, by the host's clock.
fn is_guest(meta: &Meta) -> bool {
    meta.mechanism == "mailbox" || !meta.guest_boot_id.is_empty()
}

/// Some of these are of one host's clock and not of one kernel: a guest's, recorded from its host, and its host's or another guest's.
pub fn of_one_host(metas: &[Meta]) -> bool {
    let pair = |a: &Meta, b: &Meta| !a.boot_id.is_empty() && a.boot_id == b.boot_id && is_guest(a);
    (0..metas.len()).any(|i| (0..metas.len()).any(|k| k != i && pair(&metas[i], &metas[k])))
}

/// The logs by recording, each with its files; in the order in which recordings were first named.
///
/// Errors: a log cannot be opened.
pub fn recordings(logs: &[PathBuf]) -> Result<Vec<Vec<PathBuf>>> {
    let mut all: Vec<(String, Vec<PathBuf>)> = Vec::new();
    for path in logs {
        let part = Log::open(path)?.meta().part.clone();
        // A whole recording in one file stands for itself, also when it is given twice.
        let name = if part.number > 0 { part.recording } else { String::new() };
        match all.iter_mut().find(|(n, _)| !name.is_empty() && *n == name) {
            Some((_, files)) => files.push(path.clone()),
            None => all.push((name, vec![path.clone()])),
        }
    }
    Ok(all.into_iter().map(|(_, files)| files).collect())
}

/// One file, or copies of one: two recordings on one host do not start in the same nanosecond.
fn same_recording(a: (&Path, &Log), b: (&Path, &Log)) -> bool {
    let file = |p: &Path| fs::canonicalize(p).ok();
    let (m, n) = (a.1.meta(), b.1.meta());
    (file(a.0).is_some() && file(a.0) == file(b.0)) || (m.started.boot.0 != 0 && m == n)
}

/// Stem of the log's name; with a number behind it where another log is called so, too.
fn name_of(path: &Path, taken: &[&str]) -> String {
    let stem = path.file_stem().map(|s| s.to_string_lossy().into_owned()).unwrap_or_default();
    let stem = if stem.is_empty() { "device".to_owned() } else { stem };
    let mut name = stem.clone();
    let mut n = 1;
    while taken.contains(&name.as_str()) {
        n += 1;
        name = format!("{stem}-{n}");
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique() {
        assert_eq!(name_of(Path::new("a/router.kbl"), &[]), "router");
        assert_eq!(name_of(Path::new("b/router.kbl"), &["router", "router-2"]), "router-3");
    }
}
