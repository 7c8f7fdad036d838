//! What can stop a writer or a reader. Damage inside a log is no error: it is an [`crate::Issue`].

use std::io;
use std::path::{Path, PathBuf};

/// Why there is no room for more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    Disk,
    Quota,
    /// Of a file of this process: `ulimit -f`, or what the file system can hold.
    FileSize,
}

impl Room {
    /// What an error of a write says of it; `None`: something else is wrong.
    pub fn of(e: &io::Error) -> Option<Room> {
        match e.kind() {
            io::ErrorKind::StorageFull => Some(Room::Disk),
            io::ErrorKind::QuotaExceeded => Some(Room::Quota),
            io::ErrorKind::FileTooLarge => Some(Room::FileSize),
            _ => None,
        }
    }
}

impl std::fmt::Display for Room {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Room::Disk => "the disk is full",
            Room::Quota => "the disk quota is used up",
            Room::FileSize => "the limit of a file's size (ulimit -f) is reached",
        })
    }
}

/// Nothing of the log is there if it could not be made, or its head not be written.
fn not_written(path: &Path, offset: u64) -> String {
    let at = if offset > 0 { format!(" at offset {offset}") } else { String::new() };
    format!("cannot write {}{at}", path.display())
}

fn before(offset: u64) -> &'static str {
    if offset > 0 { "; everything before it is in the log" } else { "" }
}

/// One variant per thing a caller can do about it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{} is not a kernel behaviour log: at offset 0 there is {found}; give a .kbl file written by `kpat record`", path.display())]
    NotALog { path: PathBuf, found: String },
    #[error("{} is empty (0 bytes): nothing was recorded into it; record again, or give another file", path.display())]
    Empty { path: PathBuf },
    #[error("cannot {doing} {} at offset {offset}: {source}", path.display())]
    Io { path: PathBuf, doing: &'static str, offset: u64, source: io::Error },
    #[error("{} is in version {version} of the log format (offset 7), this kpat reads version {}; use a newer kpat", path.display(), crate::VERSION)]
    TooNew { path: PathBuf, version: u8 },
    #[error("{} is in version {version} of the log format (offset 7), this kpat reads version {} only; read it with the kpat that wrote it, or record again", path.display(), crate::VERSION)]
    TooOld { path: PathBuf, version: u8 },
    #[error("{} has no readable description of the recording (the first chunk, at offset {offset}, is {why}), so its records cannot be named; fetch the file again from where it was recorded", path.display())]
    NoMeta { path: PathBuf, offset: u64, why: String },
    #[error("{}: {room}{}", not_written(path, *offset), before(*offset))]
    DiskFull { path: PathBuf, offset: u64, room: Room },
    #[error("{}: {source}{}", not_written(path, *offset), before(*offset))]
    Write { path: PathBuf, offset: u64, source: io::Error },
    #[error("a JSON chunk for {} at offset {offset} would be {len} bytes, a chunk holds at most {}; split the list", path.display(), crate::MAX_RAW_LEN)]
    TooLarge { path: PathBuf, offset: u64, len: usize },
    #[error("{} and {} are not files of one recording", first.display(), second.display())]
    NotOneRecording { first: PathBuf, second: PathBuf },
    #[error("{} and {} are both file {number} of one recording; give each once", first.display(), second.display())]
    SamePart { first: PathBuf, second: PathBuf, number: u32 },
}
