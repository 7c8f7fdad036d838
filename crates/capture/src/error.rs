//! What can go wrong, by what the caller can do about it.

use std::io;
use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file could not be opened or created: check name and permission.
    #[error("cannot open {}: {source}", path.display())]
    Open { path: PathBuf, source: io::Error },

    /// Reading or writing stopped half way: check the disk.
    #[error("{} at offset {offset}: {source}", path.display())]
    Io { path: PathBuf, offset: u64, source: io::Error },

    /// Not a capture file at all: give another file.
    #[error("{} is not a capture file: {what}; give a pcap or pcapng file (plain, gzip or zstd)", path.display())]
    Foreign { path: PathBuf, what: String },

    /// The file is a capture up to `offset` (in the decompressed data) and unreadable from there. Frames returned
    /// before are valid.
    #[error("{} is corrupt at offset {offset}: {what}; the frames before it are valid", path.display())]
    Corrupt { path: PathBuf, offset: u64, what: String },

    /// The sniffer could not start; nothing was changed.
    #[error("cannot sniff on {interface}: {doing}: {source}; {remedy}")]
    Sniff { interface: String, doing: &'static str, source: io::Error, remedy: &'static str },
}
