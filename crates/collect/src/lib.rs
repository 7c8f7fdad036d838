//! Finished logs from the devices that record to the machine that keeps them.
//!
//! On a device: [`spool`] is a folder of finished files, [`send`] brings them to a target and removes what has arrived. On the
//! gathering side: [`shelf`] is a folder per device to which that device can add and nothing else, [`receive`] the way in
//! over the network or ssh, [`list`] says what is there and what is not.
//!
//! The one idea: a file is named by its content's checksum beside its name, and to send it is a question before it
//! is a transfer ("have you this?"). So sending again costs nothing, an interrupted transfer is resumed, and two
//! files of one name are two files. Rejected: a protocol of our own below; the few requests are HTTP, which a proxy can
//! carry with TLS, and the same bytes go through ssh.
//!
//! This room must not know what a log is for: it opens them only to say what time and which files of a recording they
//! cover. It knows no probes and no analysis.

mod digest;
mod error;
pub mod list;
mod notice;
pub mod receive;
pub mod send;
pub mod shelf;
pub mod spool;
pub mod token;

pub use digest::{Digest, of_bytes, of_file};
pub use error::Error;
pub use notice::{Notice, Thrown};
