//! What can go wrong with an integrated log, by what the caller can do about it.

use std::path::{Path, PathBuf};

pub type Result<T> = std::result::Result<T, Error>;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The directory is not an integrated log, or one whose writing did not end: integrate again.
    #[error("{path}: not an integrated log ({why}); make one with `kpat integrate`")]
    NotALog { path: PathBuf, why: String },
    /// The directory of an integrated log, but with something in it that is none of its own.
    #[error("{path}: {} in it is no part of an integrated log", .what.display())]
    Foreign { path: PathBuf, what: PathBuf },
    /// Written by a newer kpat.
    #[error("{path}: schema version {found}, this kpat reads up to {known}; use a newer kpat")]
    TooNew { path: PathBuf, found: u32, known: u32 },
    /// Written by an older kpat.
    #[error("{path}: schema version {found}, this kpat reads version {known}; integrate the log again")]
    TooOld { path: PathBuf, found: u32, known: u32 },
    /// A table lacks a column that cannot be null.
    #[error("{path}: column `{column}` is missing or has another type; integrate the log again")]
    Column { path: PathBuf, column: String },
    /// The file is damaged.
    #[error("{path}: damaged table file: {source}")]
    Parquet { path: PathBuf, source: parquet::errors::ParquetError },
    #[error("{path}: damaged manifest: {source}")]
    Manifest { path: PathBuf, source: serde_json::Error },
    #[error("{path}: cannot {doing}: {source}")]
    Io { path: PathBuf, doing: &'static str, source: std::io::Error },
    /// The thread that writes a table ended early; its own error is reported when the table is closed.
    #[error("{path}: the writer of this table has stopped")]
    WriterGone { path: PathBuf },
}

impl Error {
    pub(crate) fn parquet(path: &Path) -> impl FnOnce(parquet::errors::ParquetError) -> Error + '_ {
        move |source| Error::Parquet { path: path.to_owned(), source }
    }

    /// Of a table that is being written: what the file says of that is no damage.
    pub(crate) fn written(path: &Path) -> impl FnOnce(parquet::errors::ParquetError) -> Error + '_ {
        use parquet::errors::ParquetError;
        move |e| match e {
            ParquetError::External(inner) => match inner.downcast::<std::io::Error>() {
                Ok(source) => Error::Io { path: path.to_owned(), doing: "write", source: *source },
                Err(inner) => Error::parquet(path)(ParquetError::External(inner)),
            },
            e => Error::parquet(path)(e),
        }
    }

    pub(crate) fn io(path: &Path, doing: &'static str) -> impl FnOnce(std::io::Error) -> Error {
        let path = path.to_owned();
        move |source| Error::Io { path, doing, source }
    }
}
