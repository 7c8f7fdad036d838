//! Why something cannot be written, in words: no room, or a file system that is read-only.

use std::error::Error;
use std::io::{self, ErrorKind};

/// What an error of a write says of it; `None`: something else is wrong.
pub fn why(e: &io::Error) -> Option<String> {
    match e.kind() {
        ErrorKind::ReadOnlyFilesystem => Some("the file system is read-only".into()),
        _ => kpat_klog::Room::of(e).map(|room| room.to_string()),
    }
}

/// The same, however deep it is in an error.
pub fn within(e: &(dyn Error + 'static)) -> Option<String> {
    let mut next = Some(e);
    while let Some(e) = next {
        if let Some(io) = e.downcast_ref::<io::Error>() {
            return why(io);
        }
        next = e.source();
    }
    None
}
