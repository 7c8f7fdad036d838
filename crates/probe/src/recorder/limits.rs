//! What this process may use: descriptors, bytes of a file. Known before anything is attached, so that a recording that cannot work is
//! refused in words of its own.

use super::Error;
use crate::mechanism::Mechanism;
use crate::plan::Decision;
use std::sync::OnceLock;

/// A recording with tracepoints has about 100: a program and a link for each, maps, files.
const LEAST_DESCRIPTORS: u64 = 112;
/// A log's head and end take some tens of KiB.
const LEAST_FILE: u64 = 256 << 10;
/// Of a file's bytes: kept for the log's end.
const END_BYTES: u64 = 64 << 10;

/// As it was before [`raise`]: commands that are recorded get it back.
static DESCRIPTORS: OnceLock<libc::rlimit> = OnceLock::new();

fn limit(what: libc::__rlimit_resource_t) -> libc::rlimit {
    let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: the structure is ours to write to.
    unsafe { libc::getrlimit(what, &mut limit) };
    limit
}

/// As many descriptors as this process may have without asking anybody.
pub(super) fn raise() {
    let before = *DESCRIPTORS.get_or_init(|| limit(libc::RLIMIT_NOFILE));
    let all = libc::rlimit { rlim_cur: before.rlim_max, ..before };
    // SAFETY: the structure is ours. Refused: it stays as it is.
    unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &all) };
}

/// To be called in a child before it becomes another program.
pub(super) fn restore() {
    if let Some(before) = DESCRIPTORS.get() {
        // SAFETY: the structure is not changed any more.
        unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, before) };
    }
}

/// Refuses to look at what the kernel can do with so few descriptors that this would already fail, with another reason.
pub(super) fn some_descriptors() -> Result<(), Error> {
    let (has, needs) = (limit(libc::RLIMIT_NOFILE).rlim_cur, LEAST_DESCRIPTORS);
    if has < needs { Err(Error::Descriptors { has, needs }) } else { Ok(()) }
}

/// Refuses a recording for which there are too few descriptors.
pub(super) fn enough_descriptors<'a>(all: impl Iterator<Item = &'a Decision>) -> Result<(), Error> {
    let of = |d: &Decision| match d.mechanism {
        Mechanism::Fentry | Mechanism::Kprobe => LEAST_DESCRIPTORS + 4 * d.functions.len() as u64,
        _ => LEAST_DESCRIPTORS + 4 * d.often.len() as u64,
    };
    let (has, needs) = (limit(libc::RLIMIT_NOFILE).rlim_cur, all.map(of).sum());
    if has < needs { Err(Error::Descriptors { has, needs }) } else { Ok(()) }
}

/// How far records may fill a file whose size is limited; `None`: it is not.
///
/// *Errors*: a log would not fit at all.
pub(super) fn most_records() -> Result<Option<u64>, Error> {
    match limit(libc::RLIMIT_FSIZE).rlim_cur {
        libc::RLIM_INFINITY => Ok(None),
        bytes if bytes < LEAST_FILE => Err(Error::FileSize { has: bytes, needs: LEAST_FILE }),
        bytes => Ok(Some(bytes - END_BYTES)),
    }
}
