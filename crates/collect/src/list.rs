//! What was gathered: devices, their recordings, what is missing between, what was lost in them, how good their clocks
//! were. Everything is read from the logs themselves and the notices beside them; nothing is kept.

use crate::error::{Error, Result};
use crate::notice::{Notice, Span, Thrown};
use crate::shelf::is_name;
use kpat_klog::{EndState, Log};
use kpat_model::meta::{ClockAnchor, LossTotal, ROTATED};
use kpat_model::wall::set_between;
use serde::Serialize;
use std::fs;
use std::path::Path;

#[derive(Debug, Default, Serialize)]
pub struct Device {
    pub name: String,
    pub files: u64,
    pub bytes: u64,
    pub records: u64,
    /// By the device's own wall clock.
    pub from_wall_ns: Option<i64>,
    pub to_wall_ns: Option<i64>,
    pub recordings: Vec<Recording>,
    /// What is missing, in order of time.
    pub gaps: Vec<Gap>,
    /// Losses within the recordings.
    pub losses: Vec<LossTotal>,
    /// Files that are no logs, or damaged.
    pub unreadable: Vec<String>,
}

#[derive(Debug, Serialize)]
pub struct Recording {
    pub recording: String,
    pub boot_id: String,
    pub hostname: String,
    /// Of the files that are here: 0 where the recording is one file.
    pub first_file: u32,
    pub last_file: u32,
    pub files: u64,
    pub records: u64,
    pub from_boot_ns: i64,
    pub to_boot_ns: i64,
    pub from_wall_ns: i64,
    pub to_wall_ns: i64,
    /// Why it ended; `open`: it was not closed; `rotated`: it continues in the next file.
    pub end: String,
    pub clock: Clock,
}

/// The wall clock compared with the boot clock, which is never set.
#[derive(Debug, Default, PartialEq, Serialize)]
pub struct Clock {
    pub readings: u64,
    /// Each reading is true within this.
    pub uncertainty_ns: i64,
    /// Over the longest stretch without a step: how much faster it went, and how far that may be off.
    pub drift_ppm: Option<f64>,
    pub drift_bound_ppm: Option<f64>,
    pub steps: Vec<Step>,
}

/// The wall clock was set.
#[derive(Debug, PartialEq, Serialize)]
pub struct Step {
    /// Between these two readings.
    pub after_boot_ns: i64,
    pub before_boot_ns: i64,
    pub by_ns: i64,
}

#[derive(Debug, PartialEq, Serialize)]
pub struct Gap {
    /// `files`: of a recording; `killed`: the recorder was not closed, and what followed its last chunk is unknown;
    /// `between`: no recorder ran, or its files are not here.
    pub kind: &'static str,
    pub recording: String,
    pub first_file: u32,
    pub last_file: u32,
    pub from_wall_ns: i64,
    pub to_wall_ns: i64,
    /// By the clock that is never set; `None`: the device was started anew meanwhile.
    pub seconds: Option<f64>,
    /// Records that are missing, where that is known.
    pub records: Option<u64>,
    /// The device reported that it discarded them: its spool was full.
    pub thrown_away: bool,
}

struct File {
    recording: String,
    number: u32,
    before: u64,
    boot_id: String,
    hostname: String,
    span: Span,
    end: String,
    anchors: Vec<ClockAnchor>,
    losses: Vec<LossTotal>,
}

/// Devices in the order of their names.
pub fn list(root: &Path) -> Result<Vec<Device>> {
    let mut names: Vec<String> = fs::read_dir(root)
        .map_err(Error::io(root, "read"))?
        .flatten()
        .filter(|e| e.file_type().is_ok_and(|t| t.is_dir()))
        .filter_map(|e| e.file_name().into_string().ok())
        .filter(|n| is_name(n))
        .collect();
    names.sort();
    names.into_iter().map(|n| device(&root.join(&n), n)).collect()
}

fn device(dir: &Path, name: String) -> Result<Device> {
    let mut device = Device { name, ..Device::default() };
    let mut files = Vec::new();
    let mut thrown = Vec::new();
    for entry in fs::read_dir(dir).map_err(Error::io(dir, "read"))? {
        let entry = entry.map_err(Error::io(dir, "read"))?;
        let path = entry.path();
        let Some(name) = entry.file_name().to_str().map(str::to_owned) else { continue };
        if !entry.file_type().is_ok_and(|t| t.is_file()) || name.starts_with('.') {
            continue;
        }
        if name.ends_with(".kbl") {
            device.files += 1;
            device.bytes += entry.metadata().map(|m| m.len()).unwrap_or(0);
            match Log::open(&path) {
                Ok(log) => files.push(file(&log)),
                Err(e) => device.unreadable.push(format!("{name}: {e}")),
            }
        } else if name.starts_with("lost-") {
            match Notice::read(&path) {
                Ok(n) => thrown.extend(n.thrown),
                Err(e) => device.unreadable.push(e.to_string()),
            }
        }
    }
    device.unreadable.sort();
    files.sort_by(|a, b| {
        let key = |f: &File| (f.span.wall.0, f.span.boot.0);
        key(a).cmp(&key(b))
    });
    fill(&mut device, files, &thrown);
    Ok(device)
}

fn file(log: &Log) -> File {
    let meta = log.meta();
    let end = match (log.end_state(), log.summary()) {
        (EndState::Complete, Some(s)) => s.end_reason.clone(),
        _ => "open".to_owned(),
    };
    File {
        recording: meta.part.recording.clone(),
        number: meta.part.number,
        before: meta.part.records_before,
        boot_id: meta.boot_id.clone(),
        hostname: meta.hostname.clone(),
        span: Span::of(log),
        end,
        anchors: log.anchors().to_vec(),
        losses: log.summary().map(|s| s.losses.clone()).unwrap_or_default(),
    }
}

fn fill(device: &mut Device, files: Vec<File>, thrown: &[Thrown]) {
    // Files of one recording stay together, in their order, whatever their clock did.
    let mut recordings: Vec<Vec<File>> = Vec::new();
    for f in files {
        device.from_wall_ns = Some(device.from_wall_ns.map_or(f.span.wall.0, |w| w.min(f.span.wall.0)));
        device.to_wall_ns = Some(device.to_wall_ns.map_or(f.span.wall.1, |w| w.max(f.span.wall.1)));
        let same = |r: &&mut Vec<File>| f.number > 0 && r[0].number > 0 && r[0].recording == f.recording;
        match recordings.iter_mut().find(same) {
            Some(r) => r.push(f),
            None => recordings.push(vec![f]),
        }
    }
    for r in &mut recordings {
        r.sort_by_key(|f| f.number);
        // The same file, sent under two names.
        r.dedup_by_key(|f| f.number);
        within(r, thrown, &mut device.gaps);
        for l in r.iter().flat_map(|f| &f.losses) {
            match device.losses.iter_mut().find(|k| k.cause == l.cause && k.cpu == l.cpu) {
                Some(k) => k.count += l.count,
                None => device.losses.push(l.clone()),
            }
        }
    }
    for pair in recordings.windows(2) {
        if let ([.., a], [b, ..]) = (&pair[0][..], &pair[1][..]) {
            device.gaps.extend(between(a, b));
        }
    }
    // Recordings of which nothing arrived.
    for t in thrown {
        if !recordings.iter().any(|r| r[0].recording == t.recording && r[0].number > 0) {
            device.gaps.push(Gap {
                kind: "files",
                recording: t.recording.clone(),
                first_file: t.first,
                last_file: t.last,
                from_wall_ns: t.from_wall_ns,
                to_wall_ns: t.to_wall_ns,
                seconds: seconds(t.from_boot_ns, t.to_boot_ns),
                records: Some(t.records),
                thrown_away: true,
            });
        }
    }
    device.gaps.sort_by_key(|g| g.from_wall_ns);
    device.records = recordings.iter().flatten().map(|f| f.span.records).sum();
    device.recordings = recordings.into_iter().map(recording).collect();
}

fn seconds(from_boot_ns: i64, to_boot_ns: i64) -> Option<f64> {
    Some(to_boot_ns.saturating_sub(from_boot_ns) as f64 / 1e9)
}

/// Files that are missing within a recording.
fn within(files: &[File], thrown: &[Thrown], gaps: &mut Vec<Gap>) {
    let mut last: Option<&File> = None;
    for f in files.iter().filter(|f| f.number > 0) {
        let next = last.map_or(1, |l| l.number + 1);
        if f.number > next {
            let reported =
                thrown.iter().filter(|t| t.recording == f.recording && t.first < f.number && t.last >= next);
            let reported: u32 = reported.map(|t| t.last.min(f.number - 1) - t.first.max(next) + 1).sum();
            let known = |l: &File| (l.end != "open").then_some(l.before + l.span.records);
            let so_far = last.map_or(Some(0), known);
            let from_boot = last.map(|l| l.span.boot.1);
            gaps.push(Gap {
                kind: "files",
                recording: f.recording.clone(),
                first_file: next,
                last_file: f.number - 1,
                from_wall_ns: last
                    .map_or_else(|| thrown_from(thrown, f).unwrap_or(f.span.wall.0), |l| l.span.wall.1),
                to_wall_ns: f.span.wall.0,
                seconds: from_boot.and_then(|b| seconds(b, f.span.boot.0)),
                records: so_far.and_then(|n| f.before.checked_sub(n)),
                thrown_away: reported >= f.number - next,
            });
        }
        last = Some(f);
    }
}

fn thrown_from(thrown: &[Thrown], f: &File) -> Option<i64> {
    thrown.iter().filter(|t| t.recording == f.recording).map(|t| t.from_wall_ns).min()
}

/// From the end of one recording to the start of the next.
fn between(a: &File, b: &File) -> Option<Gap> {
    let same_boot = a.boot_id == b.boot_id;
    // Two recorders at the same time leave no gap.
    if same_boot && b.span.boot.0 <= a.span.boot.1 {
        return None;
    }
    Some(Gap {
        kind: if a.end == "open" { "killed" } else { "between" },
        recording: a.recording.clone(),
        first_file: a.number,
        last_file: a.number,
        from_wall_ns: a.span.wall.1,
        to_wall_ns: b.span.wall.0,
        seconds: if same_boot { seconds(a.span.boot.1, b.span.boot.0) } else { None },
        records: None,
        thrown_away: false,
    })
}

fn recording(files: Vec<File>) -> Recording {
    let mut anchors: Vec<ClockAnchor> = files.iter().flat_map(|f| f.anchors.iter().copied()).collect();
    anchors.sort_by_key(|a| a.boot);
    let records = files.iter().map(|f| f.span.records).sum();
    let (first, last) = (&files[0], &files[files.len() - 1]);
    Recording {
        recording: first.recording.clone(),
        boot_id: first.boot_id.clone(),
        hostname: first.hostname.clone(),
        first_file: first.number,
        last_file: last.number,
        files: files.len() as u64,
        records,
        from_boot_ns: first.span.boot.0,
        to_boot_ns: last.span.boot.1,
        from_wall_ns: first.span.wall.0,
        to_wall_ns: last.span.wall.1,
        end: if last.end == ROTATED { "goes on".to_owned() } else { last.end.clone() },
        clock: clock(&anchors),
    }
}

/// From readings in order of the boot clock.
pub fn clock(anchors: &[ClockAnchor]) -> Clock {
    let offset = |a: &ClockAnchor| a.wall.0.saturating_sub(a.boot.0);
    let mut clock = Clock { readings: anchors.len() as u64, ..Clock::default() };
    clock.uncertainty_ns = anchors.iter().map(|a| a.uncertainty_ns).max().unwrap_or(0);
    let mut longest: Option<(ClockAnchor, ClockAnchor)> = None;
    let mut start = anchors.first().copied();
    for pair in anchors.windows(2) {
        let (a, b) = (pair[0], pair[1]);
        if let Some(by) = set_between(&a, &b) {
            clock.steps.push(Step { after_boot_ns: a.boot.0, before_boot_ns: b.boot.0, by_ns: by });
            start = Some(b);
        } else if let Some(s) = start {
            let length = |(a, b): &(ClockAnchor, ClockAnchor)| b.boot.0 - a.boot.0;
            if longest.as_ref().is_none_or(|l| length(&(s, b)) > length(l)) {
                longest = Some((s, b));
            }
        }
    }
    if let Some((a, b)) = longest.filter(|(a, b)| b.boot > a.boot) {
        let passed = (b.boot.0 - a.boot.0) as f64;
        clock.drift_ppm = Some((offset(&b) - offset(&a)) as f64 / passed * 1e6);
        clock.drift_bound_ppm = Some((a.uncertainty_ns + b.uncertainty_ns) as f64 / passed * 1e6);
    }
    clock
}
