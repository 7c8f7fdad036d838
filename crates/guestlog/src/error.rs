//! What goes wrong, by what the caller can do.

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The guest, or the way to it.
    #[error(transparent)]
    Guest(#[from] kpat_guest::Error),
    /// The log's file.
    #[error(transparent)]
    Log(#[from] kpat_klog::Error),
    #[error(transparent)]
    Filter(#[from] kpat_probe::filter::Error),
    #[error(transparent)]
    Profile(#[from] kpat_probe::profile::UnknownProfile),
    /// This cannot be recorded: why, and what else to do.
    #[error("{0}")]
    Unsupported(String),
}

pub type Result<T> = std::result::Result<T, Error>;
