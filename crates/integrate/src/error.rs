//! What can go wrong, by what the caller can do about it.

use std::path::PathBuf;

pub type Result<T> = std::result::Result<T, Error>;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel behaviour log cannot be read: give another file.
    #[error(transparent)]
    Log(#[from] kpat_klog::Error),
    /// A capture cannot be read at all: give another file.
    #[error(transparent)]
    Capture(#[from] kpat_capture::Error),
    /// The integrated log cannot be written.
    #[error(transparent)]
    Store(#[from] kpat_store::Error),
    /// What was written cannot be asked.
    #[error(transparent)]
    Query(#[from] kpat_query::Error),
    /// The place for the result is taken: give another name, or ask to overwrite.
    #[error("{path}: exists; give another name or remove it")]
    Exists { path: PathBuf },
    /// What is there is not to be lost by overwriting it: give another name, or take it away.
    #[error("{path} is not replaced: {why}; take that away, or give another name")]
    NotReplaced { path: PathBuf, why: String },
    /// One recording was given as two devices: leave one of them out.
    #[error("{first} and {second} are the same recording; give the log of each device once")]
    SameLog { first: PathBuf, second: PathBuf },
    #[error("{path}: cannot {doing}: {source}")]
    Io { path: PathBuf, doing: &'static str, source: std::io::Error },
}
