//! What can go wrong, by what a caller can do about it.

use std::io;

pub type Result<T> = std::result::Result<T, Error>;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// One processor, or all: wait until the kernel has started it.
    #[error("the guest does not run in 64-bit mode (firmware, or a 32-bit kernel)")]
    NotLongMode,
    /// Firmware, a loader, another kernel than Linux, or a Linux at its very beginning.
    #[error("no kernel is found in the guest: {0}")]
    NoKernel(String),
    /// Its kernel still writes its own code, and frees parts of it: wait until it runs processes.
    #[error("the guest's kernel is starting: probes can be put into it when it runs processes")]
    Starting,
    /// Its processors stand.
    #[error("the guest is stopped: probes can be put into it when it runs")]
    Stopped,
    /// Name another guest, or start it with a QMP socket.
    #[error("{0}")]
    NoGuest(String),
    #[error("{what}: {source}")]
    Io { what: String, source: io::Error },
    /// QEMU refused a command.
    #[error("QEMU refused {command}: {words}")]
    Refused { command: String, words: String },
    /// The guest's QEMU ended, or closed the connection.
    #[error("the guest is gone: {0}")]
    Gone(String),
    #[error("no answer from {0} in time")]
    Timeout(String),
    /// This guest, processor or QEMU cannot do it.
    #[error("{0}")]
    Unsupported(String),
    #[error("guest address {0:#x} is not mapped")]
    NotMapped(u64),
    #[error("guest-physical address {0:#x} is not RAM")]
    NotRam(u64),
    /// What was read makes no sense: the guest is not what it seems, or lies.
    #[error("{what}: {why}")]
    Damaged { what: &'static str, why: String },
}

impl Error {
    /// May be over when the guest has started: there is no QEMU yet, no kernel, or not all of it, or it stands.
    pub fn passes(&self) -> bool {
        use io::ErrorKind::{ConnectionRefused, NotFound};
        match self {
            Error::NotLongMode
            | Error::NoKernel(_)
            | Error::Starting
            | Error::Stopped
            | Error::NoGuest(_)
            | Error::Gone(_)
            | Error::Timeout(_)
            | Error::NotMapped(_)
            | Error::NotRam(_)
            | Error::Damaged { .. } => true,
            Error::Io { source, .. } => matches!(source.kind(), ConnectionRefused | NotFound),
            Error::Refused { .. } | Error::Unsupported(_) => false,
        }
    }

    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Error {
        let what = what.into();
        move |source| Error::Io { what, source }
    }

    pub(crate) fn damaged(what: &'static str, why: impl Into<String>) -> Error {
        Error::Damaged { what, why: why.into() }
    }
}
