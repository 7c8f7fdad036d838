//! The log's file: what is written to it, and what a full disk costs.

use super::{Error, Note, Recorder};
use crate::sys;
use kpat_klog::{ChunkKind, PART_ENDING, Room, Writer};
use kpat_model as model;
use kpat_model::LossCause;
use kpat_model::meta::Json;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Disk blocks that are held until the log is closed. Their file has no name, so nothing is left of a recorder that is killed.
pub(super) struct Reserve(#[expect(dead_code, reason = "held, not used")] File);

impl Reserve {
    pub(super) fn take(log: &Path) -> io::Result<Reserve> {
        let stem = log.file_name().unwrap_or_default().to_string_lossy();
        let mut number = 0;
        loop {
            let path = log.with_file_name(format!(".{stem}.{}-{number}.reserve", std::process::id()));
            match File::options().write(true).create_new(true).mode(0o600).open(&path) {
                // Put there by somebody else.
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists && number < 100 => number += 1,
                Err(e) => return Err(e),
                Ok(mut file) => {
                    std::fs::remove_file(&path)?;
                    file.write_all(&[0u8; 64 << 10])?;
                    return Ok(Reserve(file));
                }
            }
        }
    }

    /// Before anything is attached: can a log be written there at all?
    pub(super) fn take_first(log: &Path) -> Result<Option<Reserve>, Error> {
        if is_stream(log) {
            return Ok(None);
        }
        Reserve::take(log).map(Some).map_err(|e| {
            let folder = log.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
            let why = match (e.kind(), Room::of(&e)) {
                (_, Some(room)) => room.to_string(),
                (io::ErrorKind::ReadOnlyFilesystem, _) => "the file system is read-only".into(),
                (io::ErrorKind::PermissionDenied, _) => "this user has no right to".into(),
                _ => e.to_string(),
            };
            Error::NoPlace { folder: folder.to_owned(), why: why + "; -o gives another place" }
        })
    }
}

/// A pipe or a device: it is written into, not replaced.
fn is_stream(path: &Path) -> bool {
    path.metadata().is_ok_and(|m| !m.is_file() && !m.is_dir())
}

/// A small file; one of that name is replaced, and what a link of that name leads to is left alone.
pub(super) fn write_anew(path: &Path, text: &str) -> Result<(), Error> {
    let removed = match is_stream(path) {
        true => Ok(()),
        false => std::fs::remove_file(path),
    };
    let mut how = File::options();
    let how = how.write(true).create_new(!is_stream(path));
    removed
        .or_else(|e| if e.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(e) })
        .and_then(|()| how.open(path)?.write_all(text.as_bytes()))
        .map_err(|source| Error::Io { path: path.display().to_string(), source })
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
    let failed = |source| Error::Io { path: part.display().to_string(), source };
    let recorded = || {
        let log = kpat_klog::Log::open(part);
        log.is_ok_and(|log| log.chunk_index().iter().any(|c| c.kind != ChunkKind::Json))
    };
    match kpat_klog::remove_abandoned(part, recorded).map_err(failed)? {
        true => Ok(()),
        false if kpat_klog::is_being_written(part) => Err(Error::Busy(part.to_owned())),
        false => Err(Error::Exists(part.to_owned())),
    }
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
        let mut w = if is_stream(path) {
            Writer::into_stream(path)?
        } else {
            let mut w = Writer::create_part(path)?;
            self.most_records.into_iter().for_each(|bytes| w.most_bytes(bytes));
            w
        };
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
                Ok(()) => self.full = None,
                Err(kpat_klog::Error::DiskFull { room, .. }) => {
                    self.is_full(room, tell);
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

    pub(super) fn is_full(&mut self, room: Room, tell: &mut dyn FnMut(Note)) {
        if self.full.replace(room) != Some(room) {
            tell(Note::Full(room));
        }
    }

    /// What was kept free for the end of a file is free for it.
    pub(super) fn room_for_the_end(&mut self) {
        self.reserve = None;
        if let Some(w) = &mut self.writer {
            w.most_bytes(u64::MAX);
        }
    }

    pub(super) fn write_json(&mut self, j: Json, tell: &mut dyn FnMut(Note)) -> Result<(), Error> {
        let j = self.sink.identity.json(j);
        let Some(w) = &mut self.writer else { return Ok(()) };
        match w.json(&j).and_then(|()| w.flush()) {
            Ok(()) => Ok(()),
            Err(kpat_klog::Error::DiskFull { room, .. }) => {
                self.is_full(room, tell);
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
            Err(kpat_klog::Error::DiskFull { room, .. }) => self.is_full(room, tell),
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
