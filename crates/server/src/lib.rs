//! A local HTTP service over an integrated log, for the web page: named questions in, columns out.
//!
//! Listens on 127.0.0.1 only, answers GET only, reads only ([`guard`]). The contract with the page is [`answers`]; each
//! question is one function in [`ask`], and what it asks is asked of `kpat-query`: no truth is computed here. An answer
//! is lines of JSON, progress and what is known so far first, so that long work shows and can be left: closing the connection stops it.
//!
//! Must not know: the command line, how the page looks, the kernel.

pub mod answers;
mod ask;
mod background;
mod folder;
mod guard;
mod live;
mod open;
mod page;
mod question;
mod service;

pub use folder::own_folder;
pub use live::Growing;
pub use service::{Service, Start};

/// Why there is no service.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The integrated log cannot be read.
    #[error(transparent)]
    Log(#[from] kpat_query::Error),
    /// A recording cannot be integrated.
    #[error(transparent)]
    Integrate(#[from] kpat_integrate::Error),
    /// The port is taken, or the machine gives no socket.
    #[error("cannot listen on 127.0.0.1:{port}: {source}")]
    Listen { port: u16, source: std::io::Error },
    /// The second log is of several devices: one of them is to be given.
    #[error(
        "{path} is a log of several devices, and one log is compared with one: give one of them, as --compare {first}"
    )]
    CompareSeveral { path: std::path::PathBuf, first: String },
    #[error("no random numbers for the secret of the address: {0}")]
    Random(std::io::Error),
    #[error("cannot {doing}: {source}")]
    Io { doing: &'static str, source: std::io::Error },
}

pub type Result<T> = std::result::Result<T, Error>;

/// Was the page built into this program?
pub fn has_page() -> bool {
    page::is_built()
}
