//! What can go wrong, by what the caller can do about it.

use std::io;
use std::path::{Path, PathBuf};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The far end cannot be reached or did not answer in time: try again later.
    #[error("{0}")]
    Away(String),
    /// The far end will not take this file: others may go.
    #[error("{name}: {why}")]
    Refused { name: String, why: String },
    /// The far end will not take anything from us: somebody has to see to it.
    #[error("{0}")]
    Denied(String),
    #[error("{}: cannot {doing}: {source}", path.display())]
    Io { path: PathBuf, doing: &'static str, source: io::Error },
    #[error("{0}")]
    Target(String),
    #[error(
        "{0:?} is no name for {1}: letters, digits, `.`, `_`, `-`, `~` and `+`, not first a `.`, at most 128 of them"
    )]
    Name(String, &'static str),
}

pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// For `map_err`.
    pub fn io(path: &Path, doing: &'static str) -> impl FnOnce(io::Error) -> Error {
        let path = path.to_owned();
        move |source| Error::Io { path, doing, source }
    }
}
