//! What the kernel says of address spaces when they change: what is mapped to run, and that a process was forked, executed another program
//! or ended. So a process has names that is gone before its stacks are read, and what it loaded last.
//!
//! Rejected: build ids from the kernel. One listener that asks for them has the kernel mark the records of all others as if they had them, too (6.18): a
//! `perf record` beside it reads device numbers for a build id, and 6.1's ends itself. So that mark says nothing here either.
//!
//! *Source*: perf_event_open(2), `PERF_RECORD_*`; a ring of 256 KiB for each CPU, read without a system call.

use crate::sys;
use kpat_model::BootNs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

/// Of one CPU's ring, a power of two.
const DATA: usize = 256 << 10;
/// In the page before the data (struct perf_event_mmap_page).
const HEAD: usize = 1024;
const TAIL: usize = 1032;

/// `PERF_RECORD_*`, and flags of their headers.
const LOST: u32 = 2;
const COMM: u32 = 3;
const EXIT: u32 = 4;
const FORK: u32 = 7;
const MMAP2: u32 = 10;
const COMM_EXEC: u16 = 1 << 13;

/// Executable memory of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapped {
    pub start: u64,
    pub end: u64,
    /// In the file, bytes.
    pub offset: u64,
    /// As the process sees it, a deleted one's with that word; of what is no file in brackets or behind two slashes.
    pub path: String,
    /// Device and inode as /proc/PID/maps has them.
    pub file: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    Mapped(Mapped),
    Executed,
    ForkedFrom(u32),
    Ended,
    /// Changes of any process are missing before this one.
    Lost,
}

/// At that time, of that process.
pub type Said = (BootNs, u32, Change);

#[derive(Default)]
pub struct SideBand {
    rings: Vec<Ring>,
    /// Records as they lay in a ring.
    bytes: Vec<u8>,
}

struct Ring {
    _event: OwnedFd,
    memory: sys::Mapping,
}

impl SideBand {
    /// Of these CPUs.
    ///
    /// *Errors*: the kernel refuses it.
    pub fn open(cpus: usize) -> io::Result<SideBand> {
        let mut rings = Vec::new();
        for cpu in 0..cpus as u32 {
            let event = match sys::address_spaces(cpu) {
                Ok(event) => event,
                // A CPU that could be there and is not.
                Err(e) if e.raw_os_error() == Some(libc::ENODEV) => continue,
                Err(e) => return Err(e),
            };
            let memory = sys::Mapping::new(event.as_fd(), sys::page_bytes() + DATA)?;
            rings.push(Ring { _event: event, memory });
        }
        Ok(SideBand { rings, bytes: Vec::new() })
    }

    /// Everything since it was last asked for, in order of time.
    pub fn take(&mut self) -> Vec<Said> {
        let mut all = Vec::new();
        for ring in &self.rings {
            self.bytes.clear();
            ring.take(&mut self.bytes);
            parse(&self.bytes, &mut all);
        }
        all.sort_by_key(|(at, ..)| *at);
        all
    }
}

impl Ring {
    fn word(&self, at: usize) -> &AtomicU64 {
        // SAFETY: an aligned field of the control page, which lives as long as self and is only accessed atomically.
        unsafe { AtomicU64::from_ptr(self.memory.as_ptr().add(at).cast()) }
    }

    /// Adds what waits, and frees its space.
    fn take(&self, to: &mut Vec<u8>) {
        let (head, tail) = (self.word(HEAD).load(Ordering::Acquire), self.word(TAIL).load(Ordering::Relaxed));
        let (from, waiting) = (tail as usize & (DATA - 1), head.wrapping_sub(tail) as usize);
        let first = waiting.min(DATA - from);
        for (from, bytes) in [(from, first), (0, waiting - first)] {
            let data = self.memory.as_ptr().wrapping_add(sys::page_bytes() + from);
            // SAFETY: the data area has DATA bytes, of which the kernel writes none between tail and head.
            to.extend_from_slice(unsafe { std::slice::from_raw_parts(data, bytes) });
        }
        self.word(TAIL).store(head, Ordering::Release);
    }
}

/// Whole records of a ring.
fn parse(mut bytes: &[u8], out: &mut Vec<Said>) {
    while let Some((header, rest)) = bytes.split_at_checked(8) {
        let kind = u32::from_ne_bytes(header[..4].try_into().expect("four bytes"));
        let [flags, size] = [4, 6].map(|at| u16::from_ne_bytes([header[at], header[at + 1]]));
        let Some(body) = usize::from(size).checked_sub(8).and_then(|n| rest.get(..n)) else { return };
        out.extend(change(kind, flags, body));
        bytes = &rest[body.len()..];
    }
}

/// A record behind its header. The last word is when it happened (`sample_id_all`).
fn change(kind: u32, flags: u16, body: &[u8]) -> Option<Said> {
    let half = |at: usize| Some(u32::from_ne_bytes(body.get(at..at + 4)?.try_into().ok()?));
    let word = |at: usize| Some(u64::from_ne_bytes(body.get(at..at + 8)?.try_into().ok()?));
    let ends = body.len().checked_sub(8)?;
    let at = BootNs(word(ends)? as i64);
    let (pid, second) = (half(0)?, half(4)?);
    let change = match kind {
        LOST => return Some((at, 0, Change::Lost)),
        COMM if flags & COMM_EXEC != 0 => Change::Executed,
        // Of threads their process is the same.
        FORK if pid != second => Change::ForkedFrom(second),
        EXIT if half(8)? == pid => Change::Ended,
        MMAP2 => {
            let (start, length) = (word(8)?, word(16)?);
            let named = body.get(64..ends)?;
            let path = named.split(|b| *b == 0).next().unwrap_or(named);
            let path = String::from_utf8_lossy(path).into_owned();
            let file = format!("{:02x}:{:02x} {}", half(32)?, half(36)?, word(40)?);
            let end = start.saturating_add(length);
            Change::Mapped(Mapped { start, end, offset: word(24)?, path, file })
        }
        _ => return None,
    };
    Some((at, pid, change))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;
    use std::process::Command;

    /// The kernel's own words of a program that has long ended when they are read.
    #[test]
    fn a_program_that_is_gone_has_said_what_it_was() {
        let opened = SideBand::open(crate::kernel::possible_cpus());
        let mut said = match opened {
            Ok(said) => said,
            Err(e) => return eprintln!("skipped: {e}"),
        };
        let before = sys::boot_now();
        let mut child = Command::new("/usr/bin/true").spawn().expect("it is there");
        let pid = child.id();
        child.wait().expect("it ends");
        let own: Vec<Said> = said.take().into_iter().filter(|(_, of, _)| *of == pid).collect();
        let after = sys::boot_now();
        assert!(own.iter().all(|(at, ..)| (before..=after).contains(at)), "{own:?}");
        let changes: Vec<Change> = own.into_iter().map(|(.., change)| change).collect();
        assert!(matches!(changes.first(), Some(Change::ForkedFrom(_))), "{changes:?}");
        assert_eq!(changes.last(), Some(&Change::Ended));
        let exec = changes.iter().position(|c| *c == Change::Executed).expect("it was executed");
        let program = changes[exec..].iter().find_map(|c| match c {
            Change::Mapped(m) if m.path.ends_with("/true") => Some(m),
            _ => None,
        });
        let program = program.expect("it was mapped to run");
        let inode = std::fs::metadata("/usr/bin/true").expect("it ran").ino();
        assert_eq!(program.file.split(' ').nth(1), Some(inode.to_string().as_str()));
        assert!(said.take().iter().all(|(_, of, _)| *of != pid), "said once");
    }

    #[test]
    fn what_is_cut_or_odd_is_no_change() {
        let record = |kind: u32, flags: u16, body: &[u8]| {
            let size = (8 + body.len()) as u16;
            [&kind.to_ne_bytes()[..], &flags.to_ne_bytes(), &size.to_ne_bytes(), body].concat()
        };
        let words = |of: &[u64]| of.iter().flat_map(|w| w.to_ne_bytes()).collect::<Vec<u8>>();
        // a thread of process 7 begins, another ends; a name without exec; then a full ring
        let (in_one, threads) = (7 | 7 << 32, 8 | 7 << 32);
        let all = [
            record(FORK, 0, &words(&[in_one, threads, 1, 1])),
            record(EXIT, 0, &words(&[in_one, threads, 2, 2])),
            record(COMM, 0, &words(&[in_one, 0, 3])),
            record(LOST, 0, &words(&[1, 5, 4])),
            record(FORK, 0, &[0; 4]),
        ]
        .concat();
        let parsed = |bytes: &[u8]| {
            let mut out = Vec::new();
            parse(bytes, &mut out);
            out
        };
        assert_eq!(parsed(&all), [(BootNs(4), 0, Change::Lost)]);
        // Wherever it is cut, and whatever its length says.
        let mapped =
            record(MMAP2, 0, &words(&[in_one, 0x1000, 0x2000, 3, 0x2a_0000_00fe, 43, 0, 0, 0x61_2f, 5]));
        (0..mapped.len()).for_each(|n| drop(parsed(&mapped[..n])));
        let (path, file) = ("/a".to_string(), "fe:2a 43".to_string());
        let want = Mapped { start: 0x1000, end: 0x3000, offset: 3, path, file };
        assert_eq!(parsed(&mapped), [(BootNs(5), 7, Change::Mapped(want))]);
        assert!(parsed(&record(0, 0, &[])).is_empty());
        assert!(parsed(&[0; 64]).is_empty());
    }
}
