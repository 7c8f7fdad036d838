//! The log's file: what is written to it, and what a full disk costs.

use super::{Error, Note, Recorder};
use crate::sys;
use kpat_klog::{ChunkKind, PART_ENDING, Writer};
use kpat_model as model;
use kpat_model::LossCause;
use kpat_model::meta::Json;
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};

/// A file beside the log that holds disk blocks until the log is closed.
pub(super) struct Reserve(PathBuf);

impl Reserve {
    pub(super) fn take(log: &Path) -> Option<Reserve> {
        let name = format!(".{}.reserve", log.file_name()?.to_string_lossy());
        let path = log.with_file_name(name);
        if path.symlink_metadata().is_ok_and(|m| m.is_file()) {
            // Of a recorder that was killed; the name is locked with the log.
            std::fs::remove_file(&path).ok()?;
        }
        let mut file = File::options().write(true).create_new(true).open(&path).ok()?;
        let reserve = Reserve(path);
        file.write_all(&[0u8; 64 << 10]).is_ok().then_some(reserve)
    }
}

impl Drop for Reserve {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A pipe or a device: it is written into, not replaced.
fn is_stream(path: &Path) -> bool {
    path.metadata().is_ok_and(|m| !m.is_file() && !m.is_dir())
}

/// Refuses a name that may not be written to: of a file that is there (unless it may be replaced), of one that is being written.
pub fn may_write(path: &Path, replace: bool) -> Result<(), Error> {
    if is_stream(path) || path.symlink_metadata().is_err() {
        return Ok(());
    }
    if kpat_klog::is_being_written(path) {
        return Err(Error::Busy(path.to_owned()));
    }
    if replace { Ok(()) } else { Err(Error::Exists(path.to_owned())) }
}

/// The name of a file until it has its own.
pub fn part_name(path: &Path) -> PathBuf {
    let mut name = path.to_owned().into_os_string();
    name.push(PART_ENDING);
    name.into()
}

/// Removes what a recorder left under a [`part_name`] that was killed before it recorded.
pub fn clear_part(part: &Path) -> Result<(), Error> {
    if part.symlink_metadata().is_err() {
        return Ok(());
    }
    if kpat_klog::is_being_written(part) {
        return Err(Error::Busy(part.to_owned()));
    }
    if kpat_klog::Log::open(part).is_ok_and(|log| log.chunk_index().iter().any(|c| c.kind != ChunkKind::Json))
    {
        return Err(Error::Exists(part.to_owned()));
    }
    std::fs::remove_file(part).map_err(|source| Error::Io { path: part.display().to_string(), source })
}

/// A file that goes again unless it is given its name.
pub(super) struct Unplaced {
    part: PathBuf,
    name: PathBuf,
    replace: bool,
}

impl Unplaced {
    pub(super) fn place(mut self) -> Result<(), Error> {
        let name = std::mem::take(&mut self.name);
        let placed = kpat_klog::place(&self.part, &name, self.replace);
        if placed.is_ok() {
            self.part = PathBuf::new();
        }
        placed.map_err(|source| match source.kind() {
            std::io::ErrorKind::AlreadyExists => Error::Exists(name),
            _ => Error::Io { path: name.display().to_string(), source },
        })
    }
}

impl Drop for Unplaced {
    fn drop(&mut self) {
        if !self.part.as_os_str().is_empty() {
            let _ = std::fs::remove_file(&self.part);
        }
    }
}

impl Recorder {
    /// A log under a name of its own until it is placed.
    pub(super) fn open_unplaced(&mut self, name: &Path) -> Result<(Writer<File>, Option<Unplaced>), Error> {
        if is_stream(name) {
            return Ok((self.open(name)?, None));
        }
        let replace = self.options.replace;
        may_write(name, replace)?;
        let part = part_name(name);
        clear_part(&part)?;
        let writer = self.open(&part)?;
        Ok((writer, Some(Unplaced { part, name: name.to_owned(), replace })))
    }

    pub(super) fn open(&mut self, path: &Path) -> Result<Writer<File>, Error> {
        let mut w = if is_stream(path) { Writer::create(path)? } else { Writer::create_part(path)? };
        let mut head = vec![Json::Meta(Box::new(self.meta.clone())), Json::Devices(self.devices.clone())];
        if let Some(tasks) = self.sink.tasks.as_ref().filter(|t| !t.is_empty()) {
            head.push(Json::Tasks(tasks.values().cloned().collect()));
        }
        for j in head {
            w.json(&self.sink.identity.json(j))?;
        }
        w.flush()?;
        Ok(w)
    }

    pub(super) fn write_ready(&mut self, tell: &mut dyn FnMut(Note)) -> Result<(), Error> {
        let chunks = self.sink.take_ready();
        if chunks.is_empty() {
            return Ok(());
        }
        let now = sys::boot_now();
        // Before anything that could take the room.
        self.write_disk_losses(tell)?;
        for c in chunks {
            let (count, first, cpu) = (c.count as u64 - c.losses.len() as u64, c.first, c.cpu);
            let losses = c.losses.clone();
            let Some(w) = &mut self.writer else { continue };
            match w.chunk(c) {
                Ok(()) => self.disk_full = false,
                Err(kpat_klog::Error::DiskFull { .. }) => {
                    self.disk_is_full(tell);
                    let own =
                        model::Loss { cause: LossCause::Disk, cpu: cpu as i32, from: first, to: now, count };
                    self.sink.count(&own);
                    // What the chunk reported as lost is lost all the same.
                    losses
                        .iter()
                        .chain((count > 0).then_some(&own))
                        .for_each(|l| carry(&mut self.disk_losses, l));
                }
                Err(e) => return Err(e.into()),
            }
        }
        if let Some(w) = &mut self.writer {
            match w.flush() {
                Ok(()) | Err(kpat_klog::Error::DiskFull { .. }) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }

    fn disk_is_full(&mut self, tell: &mut dyn FnMut(Note)) {
        if !self.disk_full {
            tell(Note::DiskFull);
        }
        self.disk_full = true;
    }

    pub(super) fn write_json(&mut self, j: Json, tell: &mut dyn FnMut(Note)) -> Result<(), Error> {
        let j = self.sink.identity.json(j);
        let Some(w) = &mut self.writer else { return Ok(()) };
        match w.json(&j).and_then(|()| w.flush()) {
            Ok(()) => Ok(()),
            Err(kpat_klog::Error::DiskFull { .. }) => {
                self.disk_is_full(tell);
                Ok(())
            }
            Err(e) => Err(e.into()),
        }
    }

    /// Reports the losses that could not be written yet, as a chunk of its own: they are carried until it is in the file.
    pub(super) fn write_disk_losses(&mut self, tell: &mut dyn FnMut(Note)) -> Result<(), Error> {
        if self.disk_losses.is_empty() {
            return Ok(());
        }
        let mut own = kpat_klog::Encoder::new(0, self.options.codec);
        self.disk_losses.iter().for_each(|l| own.loss(l));
        let (Some(w), Some(chunk)) = (&mut self.writer, own.finish()) else { return Ok(()) };
        match w.chunk(chunk) {
            Ok(()) => self.disk_losses.clear(),
            Err(kpat_klog::Error::DiskFull { .. }) => self.disk_is_full(tell),
            Err(e) => return Err(e.into()),
        }
        Ok(())
    }
}

/// Adds a loss to those that wait to be written: one row for each cause and CPU.
fn carry(waiting: &mut Vec<model::Loss>, l: &model::Loss) {
    match waiting.iter_mut().find(|w| (w.cause, w.cpu) == (l.cause, l.cpu)) {
        Some(w) => (w.from, w.to, w.count) = (w.from.min(l.from), w.to.max(l.to), w.count + l.count),
        None => waiting.push(*l),
    }
}
