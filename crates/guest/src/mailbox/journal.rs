//! What was changed in a guest, in a file of the host's: who comes after a tool that was killed puts it back. The file's lock says
//! that somebody has probes in the guest.
//!
//! A change is written down before it is made. The file has nothing from the guest but the bytes that were at a probe's place.

use crate::error::{Error, Result};
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::PathBuf;

/// One line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// A device and its memory, by QEMU's names.
    Device { number: u32 },
    /// Entries of a page table that were empty: the first one's guest-physical address, and the virtual address that they map.
    Mapped { entries: u64, base: u64 },
    /// One entry more, and the address that it maps: the shared memory's first part, beside the interrupt table.
    Beside { entry: u64, address: u64 },
    /// Bytes at a virtual address.
    Patched { address: u64, was: Vec<u8>, is: Vec<u8> },
}

#[derive(Debug)]
pub struct Journal {
    file: File,
    qemu: String,
}

impl Journal {
    /// Of the guest whose QEMU is `pid`: locked, with the changes that an earlier tool left.
    pub fn open(pid: u32) -> Result<(Journal, Vec<Change>)> {
        let folder = folder()?;
        let path = folder.join(pid.to_string());
        let name = path.display().to_string();
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC)
            .open(&path)
            .map_err(Error::io(name.clone()))?;
        // SAFETY: a call on an open file.
        if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } != 0 {
            let mut text = String::new();
            let _ = (&file).take(4096).read_to_string(&mut text);
            let who = text.lines().find_map(|l| l.strip_prefix("tool ")).unwrap_or("?");
            return Err(Error::Unsupported(format!(
                "another program (process {who}) has probes in this guest; end it first"
            )));
        }
        let mut text = String::new();
        file.read_to_string(&mut text).map_err(Error::io(name))?;
        // A process number is used again: of another QEMU nothing is put back.
        let qemu = format!("qemu {pid} {}", started(pid)?);
        let left = if text.lines().any(|l| l == qemu) {
            text.lines().filter_map(parse).collect()
        } else {
            Vec::new()
        };
        Ok((Journal { file, qemu }, left))
    }

    /// Forgets all changes: they were undone. `still`: all but these.
    pub fn restart(&mut self, still: &[Change]) -> Result<()> {
        let mut text = format!("{}\ntool {}\n", self.qemu, std::process::id());
        still.iter().for_each(|c| text += &line(c));
        self.file
            .rewind()
            .and_then(|()| self.file.write_all(text.as_bytes()))
            .and_then(|()| self.file.set_len(text.len() as u64))
            .map_err(Error::io("the list of changes"))
    }

    pub fn add(&mut self, change: &Change) -> Result<()> {
        self.file.write_all(line(change).as_bytes()).map_err(Error::io("the list of changes"))
    }
}

/// A folder that is ours alone.
fn folder() -> Result<PathBuf> {
    // SAFETY: reads this process's user.
    let user = unsafe { libc::geteuid() };
    let base = if user == 0 {
        PathBuf::from("/run")
    } else {
        std::env::var_os("XDG_RUNTIME_DIR").map_or_else(std::env::temp_dir, PathBuf::from)
    };
    let folder = base.join(format!("kpat-guest-{user}"));
    let name = folder.display().to_string();
    match DirBuilder::new().mode(0o700).create(&folder) {
        Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => {
            return Err(Error::Io { what: name, source: e });
        }
        _ => {}
    }
    let found = std::fs::symlink_metadata(&folder).map_err(Error::io(name.clone()))?;
    if !found.is_dir() || found.uid() != user || found.mode() & 0o077 != 0 {
        return Err(Error::Unsupported(format!(
            "{name} is not a folder that only this user may use; remove it"
        )));
    }
    Ok(folder)
}

/// When a process started, in ticks since the host's boot.
fn started(pid: u32) -> Result<u64> {
    let path = format!("/proc/{pid}/stat");
    let text = std::fs::read_to_string(&path).map_err(Error::io(path))?;
    let after = text.rsplit_once(") ").map_or("", |(_, rest)| rest);
    after.split(' ').nth(19).and_then(|w| w.parse().ok()).ok_or_else(|| Error::Gone("QEMU ended".into()))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    (text.len() <= 64 && text.is_ascii()).then_some(())?;
    text.as_bytes().chunks(2).map(|c| u8::from_str_radix(std::str::from_utf8(c).ok()?, 16).ok()).collect()
}

fn line(change: &Change) -> String {
    match change {
        Change::Device { number } => format!("device {number}\n"),
        Change::Mapped { entries, base } => format!("mapped {entries:x} {base:x}\n"),
        Change::Beside { entry, address } => format!("beside {entry:x} {address:x}\n"),
        Change::Patched { address, was, is } => format!("patched {address:x} {} {}\n", hex(was), hex(is)),
    }
}

fn parse(line: &str) -> Option<Change> {
    let words: Vec<&str> = line.split(' ').collect();
    let number = |w: &str| u64::from_str_radix(w, 16).ok();
    match words[..] {
        ["device", n] => Some(Change::Device { number: n.parse().ok()? }),
        ["mapped", entries, base] => Some(Change::Mapped { entries: number(entries)?, base: number(base)? }),
        ["beside", entry, address] => {
            Some(Change::Beside { entry: number(entry)?, address: number(address)? })
        }
        ["patched", address, was, is] => {
            Some(Change::Patched { address: number(address)?, was: unhex(was)?, is: unhex(is)? })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_changed_is_found_by_who_comes_next_and_only_of_the_same_process() {
        let pid = std::process::id();
        let (mut journal, left) = Journal::open(pid).unwrap();
        assert_eq!(left, []);
        journal.restart(&[]).unwrap();
        let changes = [
            Change::Device { number: 3 },
            Change::Mapped { entries: 0x1234_5678, base: 0xffff_ffff_a000_0000 },
            Change::Beside { entry: 0x1234_5678, address: 0xffff_fe00_8000_0000 },
            Change::Patched {
                address: 0xffff_ffff_8123_4567,
                was: vec![0x0f, 0x1f, 0x44, 0, 0],
                is: vec![0xe9, 1, 2, 3, 4],
            },
        ];
        changes.iter().for_each(|c| journal.add(c).unwrap());
        let second = Journal::open(pid).unwrap_err().to_string();
        assert!(
            second.contains(&format!("another program (process {pid}) has probes in this guest")),
            "{second}"
        );
        drop(journal);
        let (mut journal, left) = Journal::open(pid).unwrap();
        assert_eq!(left, changes);
        journal.restart(&changes[..1]).unwrap();
        drop(journal);
        assert_eq!(Journal::open(pid).unwrap().1, changes[..1]);
        std::fs::remove_file(folder().unwrap().join(pid.to_string())).unwrap();
    }

    #[test]
    fn damaged_lines_are_passed_over() {
        for bad in [
            "",
            "patched",
            "patched x 00 00",
            "patched 10 0 zz",
            "device -1",
            "mapped 1",
            "mapped 1 2 3",
            "patched 1 é0 00",
        ] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }
}
