//! A file that is not complete yet: `X.kbl.part` until it is, then `X.kbl`. Its writer holds a lock on it, so
//! a `.part` file without a lock was left by a writer that died, and will not grow.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// What a file's name ends with while it is written.
pub const PART_ENDING: &str = ".part";

/// A new file for its owner alone, locked by this process as long as it is open. A link of that name is not followed.
pub(crate) fn create(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    // Whoever came between takes it for one that a killed recorder left, and has removed it.
    if file.try_lock().is_err() || !is_at(&file, path) {
        return Err(io::ErrorKind::AlreadyExists.into());
    }
    Ok(file)
}

/// Removes a file that has no living writer, unless somebody wants to keep it. False: it stays.
pub fn remove_abandoned(path: &Path, keep: impl FnOnce() -> bool) -> io::Result<bool> {
    if !fs::symlink_metadata(path)?.is_file() {
        return Ok(false);
    }
    let file = File::open(path)?;
    if file.try_lock().is_err() || keep() || !is_at(&file, path) {
        return Ok(false);
    }
    fs::remove_file(path).map(|()| true)
}

/// That name is still this file's.
fn is_at(file: &File, path: &Path) -> bool {
    let id = |m: fs::Metadata| (m.dev(), m.ino());
    matches!((file.metadata().map(id), fs::symlink_metadata(path).map(id)), (Ok(a), Ok(b)) if a == b)
}

/// Gives a file in the making its name before it is whole; it stays locked. `replace` false: nothing of that name is replaced.
pub fn place(part: &Path, name: &Path, replace: bool) -> io::Result<()> {
    if replace { fs::rename(part, name) } else { rename_new(part, name) }
}

/// Some process that writes logs has it open.
pub fn is_being_written(path: &Path) -> bool {
    // Opening a pipe would wait for its other end.
    fs::metadata(path).is_ok_and(|m| m.is_file())
        && File::open(path).is_ok_and(|f| matches!(f.try_lock(), Err(fs::TryLockError::WouldBlock)))
}

/// Syncs a file and gives it its name; an existing file is not replaced. The file stays locked meanwhile.
pub fn finish(file: &File, part: &Path, name: &Path) -> io::Result<()> {
    file.sync_all()?;
    rename_new(part, name)?;
    sync_folder(name)
}

/// As `rename`, but an error where `to` exists.
fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    match fs::hard_link(from, to) {
        Ok(()) => fs::remove_file(from),
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Err(e),
        // No links on this file system.
        Err(_) if to.exists() => Err(io::ErrorKind::AlreadyExists.into()),
        Err(_) => fs::rename(from, to),
    }
}

fn sync_folder(of: &Path) -> io::Result<()> {
    let folder = of.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    match File::open(folder)?.sync_all() {
        // Not every file system can.
        Err(e) if e.kind() == io::ErrorKind::InvalidInput => Ok(()),
        done => done,
    }
}

/// What came of the files that killed recorders left.
#[derive(Debug, Default)]
pub struct Adopted {
    pub names: Vec<PathBuf>,
    /// Those that could not be finished, and why.
    pub left: Vec<(PathBuf, io::Error)>,
}

/// Finishes what recorders left in a folder that were killed. A file in which nothing stands is removed.
pub fn adopt(folder: &Path) -> io::Result<Adopted> {
    let mut adopted = Adopted::default();
    for entry in fs::read_dir(folder)? {
        let part = entry?.path();
        let Some(name) = part.to_str().and_then(|p| p.strip_suffix(PART_ENDING)).map(PathBuf::from) else {
            continue;
        };
        if name.extension().is_none_or(|e| e != "kbl")
            || !fs::symlink_metadata(&part).is_ok_and(|m| m.is_file())
        {
            continue;
        }
        match adopt_one(&part, &name) {
            Ok(true) => adopted.names.push(name),
            Ok(false) => {}
            Err(e) => adopted.left.push((part, e)),
        }
    }
    adopted.names.sort();
    Ok(adopted)
}

/// False: its writer lives, or there was nothing in it.
fn adopt_one(part: &Path, name: &Path) -> io::Result<bool> {
    let file = File::open(part)?;
    if file.try_lock().is_err() {
        return Ok(false);
    }
    let meta = file.metadata()?;
    if meta.len() == 0 {
        // If it is young, its writer may be about to lock it.
        if meta.modified()?.elapsed().is_ok_and(|age| age.as_secs() > 60) {
            fs::remove_file(part)?;
        }
        return Ok(false);
    }
    match finish(&file, part, name) {
        Ok(()) => Ok(true),
        // Killed between the link and its removal.
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists && same_file(part, name) => {
            fs::remove_file(part)?;
            Ok(false)
        }
        Err(e) => Err(e),
    }
}

fn same_file(a: &Path, b: &Path) -> bool {
    let id = |p: &Path| fs::metadata(p).map(|m| (m.dev(), m.ino()));
    matches!((id(a), id(b)), (Ok(a), Ok(b)) if a == b)
}
