//! What can go wrong, by what the caller can do about it.

use std::path::PathBuf;

pub type Result<T> = std::result::Result<T, Error>;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The integrated log cannot be read.
    #[error(transparent)]
    Analysis(#[from] kpat_query::Error),
    #[error(transparent)]
    Store(#[from] kpat_store::Error),
    /// The capture cannot be read.
    #[error(transparent)]
    Capture(#[from] kpat_capture::Error),
    /// The kernel behaviour log cannot be read.
    #[error(transparent)]
    Log(#[from] kpat_klog::Error),
    /// A file that the integrated log was made from is not where it is looked for: say where it is.
    #[error("{name}, from which this log was made, is not beside it")]
    SourceMissing { role: &'static str, name: String },
    /// A file of that name is there, but is another: say where the right one is.
    #[error("{path} is not the file from which this log was made: {how}")]
    SourceChanged { role: &'static str, path: PathBuf, how: String },
    /// The result cannot be written.
    #[error("cannot write")]
    Write(#[from] std::io::Error),
}
