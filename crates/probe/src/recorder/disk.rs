//! Names and paths of files before they are written: which may be written to, and room that is kept for a log's end.

use super::Error;
use kpat_klog::{ChunkKind, PART_ENDING, Room};
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
pub(super) fn is_stream(path: &Path) -> bool {
    path.metadata().is_ok_and(|m| !m.is_file() && !m.is_dir())
}

/// A small file; one of that name is replaced, and what a link of that name leads to is left alone.
pub fn write_anew(path: &Path, text: &str) -> Result<(), Error> {
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
        // A recording that can be integrated is not thrown away.
        false if part.symlink_metadata().is_ok_and(|m| m.is_file()) => Err(Error::Exists(part.to_owned())),
        false => Err(Error::InTheWay(part.to_owned())),
    }
}

/// A file that goes again unless it is given its name.
pub(super) struct Unplaced {
    part: PathBuf,
    name: PathBuf,
    replace: bool,
}

impl Unplaced {
    /// *Errors*: the name may not be written to, or another recorder is at it.
    pub(super) fn new(name: &Path, replace: bool) -> Result<Unplaced, Error> {
        may_write(name, replace)?;
        Unplaced::beside(name, replace)
    }

    /// In the place of a log that this recorder writes itself.
    pub(super) fn in_place_of(own: &Path) -> Result<Unplaced, Error> {
        Unplaced::beside(own, true)
    }

    fn beside(name: &Path, replace: bool) -> Result<Unplaced, Error> {
        let part = part_name(name);
        clear_part(&part)?;
        Ok(Unplaced { part, name: name.to_owned(), replace })
    }

    /// Where it is now.
    pub(super) fn part(&self) -> &Path {
        &self.part
    }

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
