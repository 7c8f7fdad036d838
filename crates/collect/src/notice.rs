//! What a device threw away because the far end was away too long, as a file that is sent like a log: which files of which
//! recording, how much, of what time. Repeating it does no harm: it is a set of file numbers.

use crate::error::{Error, Result};
use kpat_klog::{ChunkKind, EndState, Log};
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// Consecutive files of one recording that were deleted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Thrown {
    /// Empty: the file could not be read.
    pub recording: String,
    /// Numbers of the first and the last file; 0: the recording was one file.
    pub first: u32,
    pub last: u32,
    pub files: u32,
    pub bytes: u64,
    pub records: u64,
    /// What the files covered, by the device's clocks.
    pub from_boot_ns: i64,
    pub to_boot_ns: i64,
    pub from_wall_ns: i64,
    pub to_wall_ns: i64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Notice {
    /// Why: `spool-limit`.
    pub cause: String,
    pub thrown: Vec<Thrown>,
}

/// Moments and size of a log.
pub(crate) fn describe(path: &Path) -> Thrown {
    let bytes = fs::metadata(path).map(|m| m.len()).unwrap_or(0);
    let Ok(log) = Log::open(path) else {
        return Thrown { files: 1, bytes, ..Thrown::default() };
    };
    let part = &log.meta().part;
    let span = Span::of(&log);
    Thrown {
        recording: part.recording.clone(),
        first: part.number,
        last: part.number,
        files: 1,
        bytes,
        records: span.records,
        from_boot_ns: span.boot.0,
        to_boot_ns: span.boot.1,
        from_wall_ns: span.wall.0,
        to_wall_ns: span.wall.1,
    }
}

/// What a log covers.
pub(crate) struct Span {
    pub(crate) boot: (i64, i64),
    pub(crate) wall: (i64, i64),
    pub(crate) records: u64,
}

impl Span {
    /// From when the file was begun to its last clock reading or record.
    pub(crate) fn of(log: &Log) -> Span {
        let meta = log.meta();
        let began = if meta.part.number > 1 { meta.part.began } else { meta.started };
        let chunks = || log.chunk_index().iter().filter(|c| c.kind != ChunkKind::Json);
        let last = log.anchors().last().copied().unwrap_or(began);
        let to = chunks().map(|c| c.last.0).max().unwrap_or(last.boot.0).max(last.boot.0);
        let counted = chunks().map(|c| u64::from(c.count)).sum();
        let summary = log.summary().filter(|_| *log.end_state() == EndState::Complete);
        Span {
            boot: (began.boot.0, to),
            // By the clock as it was read last.
            wall: (began.wall.0, last.wall.0.saturating_add(to.saturating_sub(last.boot.0))),
            records: summary.map_or(counted, |s| s.records),
        }
    }
}

impl Notice {
    pub fn read(path: &Path) -> Result<Notice> {
        let text = fs::read(path).map_err(Error::io(path, "read"))?;
        serde_json::from_slice(&text).map_err(|e| Error::Refused {
            name: path.display().to_string(),
            why: format!("is no notice: {e}"),
        })
    }

    pub(crate) fn add(&mut self, more: Thrown) {
        let fits = |t: &&mut Thrown| {
            !more.recording.is_empty()
                && t.recording == more.recording
                && (t.last + 1 == more.first || (t.first..=t.last).contains(&more.first))
        };
        match self.thrown.iter_mut().find(fits) {
            // Reported already, before the device was stopped.
            Some(t) if (t.first..=t.last).contains(&more.first) => {}
            Some(t) => {
                (t.last, t.to_boot_ns, t.to_wall_ns) = (more.last, more.to_boot_ns, more.to_wall_ns);
                t.files += more.files;
                t.bytes += more.bytes;
                t.records += more.records;
            }
            None => self.thrown.push(more),
        }
    }

    /// Into a folder, under a name of its own, whole or not at all.
    pub(crate) fn write(&self, folder: &Path) -> Result<PathBuf> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        let path = folder.join(format!("lost-{now}.json"));
        let new = folder.join(format!(".lost-{now}.new"));
        let text = serde_json::to_vec_pretty(self).map_err(|e| Error::io(&path, "write")(e.into()))?;
        let done = File::options()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&new)
            .and_then(|mut f| f.write_all(&text).and_then(|()| f.sync_all()))
            .and_then(|()| fs::rename(&new, &path));
        if done.is_err() {
            let _ = fs::remove_file(&new);
        }
        done.map_err(Error::io(&path, "write"))?;
        Ok(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_one_and_nothing_counts_twice() {
        let file = |recording: &str, n: u32| Thrown {
            recording: recording.into(),
            first: n,
            last: n,
            files: 1,
            bytes: 10,
            records: 100,
            from_boot_ns: i64::from(n),
            to_boot_ns: i64::from(n) + 1,
            ..Thrown::default()
        };
        let mut notice = Notice::default();
        for (recording, n) in [("a", 1), ("a", 2), ("b", 7), ("a", 3), ("a", 2), ("", 0), ("", 0)] {
            notice.add(file(recording, n));
        }
        let found: Vec<_> =
            notice.thrown.iter().map(|t| (t.recording.as_str(), t.first, t.last, t.records)).collect();
        assert_eq!(found, [("a", 1, 3, 300), ("b", 7, 7, 100), ("", 0, 0, 100), ("", 0, 0, 100)]);
        assert_eq!((notice.thrown[0].from_boot_ns, notice.thrown[0].to_boot_ns), (1, 4));
    }
}
