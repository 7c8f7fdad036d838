//! The guest's RAM in this host: mapped here where QEMU's memory is a shared file, else through `/proc/PID/mem`.

use super::layout::Range;
use crate::error::{Error, Result};
use crate::qmp::Qmp;
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;

/// A range of guest-physical addresses and how this process reaches it.
struct Block {
    range: Range,
    /// Where it is in QEMU.
    host: u64,
    map: Option<Map>,
}

/// The blocks, ascending, and QEMU's memory.
pub struct Ram {
    blocks: Vec<Block>,
    process: File,
    may_write: bool,
}

impl Ram {
    /// Asks QEMU where each range is in its own memory. What cannot be placed is left out.
    pub fn open(qmp: &Qmp, pid: u32, ranges: &[Range]) -> Result<Ram> {
        let path = format!("/proc/{pid}/mem");
        let both = OpenOptions::new().read(true).write(true).open(&path);
        let may_write = both.is_ok();
        let process = both.or_else(|_| File::open(&path)).map_err(|e| match e.kind() {
            std::io::ErrorKind::PermissionDenied => Error::Unsupported(format!(
                "the memory of QEMU ({pid}) may not be read: be its user or root, with the right to trace it"
            )),
            _ => Error::Io { what: path, source: e },
        })?;
        let maps = Mapping::all(pid)?;
        let mut blocks = Vec::new();
        for r in ranges {
            let Some(host) = host_address(&qmp.monitor(&format!("gpa2hva {:#x}", r.physical))?) else {
                continue;
            };
            if !covered(&maps, host, r.len) {
                continue;
            }
            let map = maps
                .iter()
                .find(|m| m.from <= host && host.checked_add(r.len).is_some_and(|end| end <= m.to))
                .filter(|m| m.shared)
                .and_then(|m| Map::of(pid, m, host, r));
            blocks.push(Block { range: r.clone(), host, map });
        }
        if blocks.is_empty() {
            return Err(Error::Unsupported("QEMU does not tell where its guest's RAM is (gpa2hva)".into()));
        }
        Ok(Ram { blocks, process, may_write })
    }

    /// Of a copy of a guest's RAM that begins at zero.
    pub fn of_dump(bytes: &[u8]) -> Result<Ram> {
        let len = bytes.len() as u64;
        let range = Range { physical: 0, len, name: "dump".into(), offset: 0, writable: true };
        let map = Map::anonymous(bytes).ok_or(Error::NotRam(0))?;
        let process = File::open("/dev/null").map_err(Error::io("/dev/null"))?;
        Ok(Ram { blocks: vec![Block { range, host: 0, map: Some(map) }], process, may_write: true })
    }

    pub fn ranges(&self) -> impl Iterator<Item = &Range> {
        self.blocks.iter().map(|b| &b.range)
    }

    /// Bytes of RAM that are mapped here, and of all.
    pub fn mapped(&self) -> (u64, u64) {
        let sum = |f: &dyn Fn(&Block) -> bool| {
            self.blocks.iter().filter(|b| f(b)).map(|b| b.range.len).fold(0, u64::saturating_add)
        };
        (sum(&|b| b.map.is_some()), sum(&|_| true))
    }

    pub fn may_write(&self) -> bool {
        self.may_write
    }

    /// The block with `physical`, and how far in.
    fn find(&self, physical: u64) -> Result<(&Block, u64)> {
        let after = self.blocks.partition_point(|b| b.range.physical <= physical);
        let b = after.checked_sub(1).map(|i| &self.blocks[i]).ok_or(Error::NotRam(physical))?;
        let within = physical - b.range.physical;
        if within < b.range.len { Ok((b, within)) } else { Err(Error::NotRam(physical)) }
    }

    pub fn read(&self, mut physical: u64, mut to: &mut [u8]) -> Result<()> {
        while !to.is_empty() {
            let (b, within) = self.find(physical)?;
            let n = (b.range.len - within).min(to.len() as u64) as usize;
            let (now, rest) = to.split_at_mut(n);
            match &b.map {
                Some(m) => m.read(within, now),
                None => self.process.read_exact_at(now, b.host + within).map_err(lost)?,
            }
            physical += n as u64;
            to = rest;
        }
        Ok(())
    }

    pub fn write(&self, mut physical: u64, mut from: &[u8]) -> Result<()> {
        while !from.is_empty() {
            let (b, within) = self.find(physical)?;
            if !b.range.writable {
                return Err(Error::NotRam(physical));
            }
            let n = (b.range.len - within).min(from.len() as u64) as usize;
            let (now, rest) = from.split_at(n);
            match &b.map {
                Some(m) => m.write(within, now),
                None => self.process.write_all_at(now, b.host + within).map_err(lost)?,
            }
            physical += n as u64;
            from = rest;
        }
        Ok(())
    }

    /// Eight bytes of a page table.
    pub fn word(&self, physical: u64) -> Result<u64> {
        let (b, within) = self.find(physical)?;
        let mut bytes = [0; 8];
        match &b.map {
            // A walk is five of these.
            Some(m) if within + 8 <= b.range.len => m.read(within, &mut bytes),
            _ => self.read(physical, &mut bytes)?,
        }
        Ok(u64::from_le_bytes(bytes))
    }
}

fn lost(e: std::io::Error) -> Error {
    match e.raw_os_error() {
        Some(libc::ESRCH | 0) => Error::Gone("QEMU ended".into()),
        None => Error::Gone("QEMU ended".into()),
        _ => Error::Io { what: "the memory of QEMU".into(), source: e },
    }
}

/// `Host virtual address for 0x100000 (pc.ram) is 0x7f46f3f00000`
fn host_address(text: &str) -> Option<u64> {
    let number = text.trim().rsplit_once(" is 0x")?.1;
    u64::from_str_radix(number, 16).ok()
}

/// A line of `/proc/PID/maps`.
struct Mapping {
    from: u64,
    to: u64,
    shared: bool,
    offset: u64,
    inode: u64,
    path: String,
}

impl Mapping {
    fn all(pid: u32) -> Result<Vec<Mapping>> {
        let path = format!("/proc/{pid}/maps");
        let text = std::fs::read_to_string(&path).map_err(Error::io(path))?;
        Ok(text.lines().filter_map(Mapping::line).collect())
    }

    fn line(line: &str) -> Option<Mapping> {
        let mut words = line.splitn(6, ' ');
        let (from, to) = words.next()?.split_once('-')?;
        let hex = |t: &str| u64::from_str_radix(t, 16).ok();
        let (rights, offset, _device, inode) = (words.next()?, words.next()?, words.next()?, words.next()?);
        Some(Mapping {
            from: hex(from)?,
            to: hex(to)?,
            shared: rights.ends_with('s'),
            offset: hex(offset)?,
            inode: inode.parse().ok()?,
            path: words.next().unwrap_or("").trim().to_owned(),
        })
    }
}

/// Is every byte of `from..from + len` mapped in QEMU?
fn covered(maps: &[Mapping], from: u64, len: u64) -> bool {
    let Some(end) = from.checked_add(len) else { return false };
    let mut at = from;
    for m in maps {
        if m.from <= at && at < m.to {
            at = m.to;
        }
    }
    at >= end
}

/// A shared mapping of a part of QEMU's memory.
struct Map {
    at: *mut u8,
    len: usize,
}

// SAFETY: the mapping belongs to this value alone, is never moved, and is accessed by copies of bytes that other processes change
// at any time anyway.
unsafe impl Send for Map {}
// SAFETY: as above.
unsafe impl Sync for Map {}

impl Map {
    fn of(pid: u32, m: &Mapping, host: u64, r: &Range) -> Option<Map> {
        let file = open_shared(pid, m)?;
        let offset = m.offset.checked_add(host - m.from)?;
        // A mapping behind the end of its file would be a SIGBUS.
        if file.metadata().ok()?.len() < offset.checked_add(r.len)? {
            return None;
        }
        let len = usize::try_from(r.len).ok()?;
        // SAFETY: a new mapping at an address that the kernel chooses; the file is open.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                libc::off_t::try_from(offset).ok()?,
            )
        };
        (at != libc::MAP_FAILED).then(|| Map { at: at.cast(), len })
    }

    fn anonymous(bytes: &[u8]) -> Option<Map> {
        if bytes.is_empty() {
            return None;
        }
        let both = libc::PROT_READ | libc::PROT_WRITE;
        let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), bytes.len(), both, kind, -1, 0) };
        let map = (at != libc::MAP_FAILED).then_some(Map { at: at.cast(), len: bytes.len() })?;
        map.write(0, bytes);
        Some(map)
    }

    fn read(&self, from: u64, to: &mut [u8]) {
        let from = from as usize;
        assert!(from + to.len() <= self.len, "the block is as long as its mapping");
        // SAFETY: within the mapping, by the assertion; `to` is memory of this process alone.
        unsafe { std::ptr::copy_nonoverlapping(self.at.add(from), to.as_mut_ptr(), to.len()) }
    }

    fn write(&self, at: u64, from: &[u8]) {
        let at = at as usize;
        assert!(at + from.len() <= self.len, "the block is as long as its mapping");
        // SAFETY: within the mapping, by the assertion; `from` is memory of this process alone.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), self.at.add(at), from.len()) }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: mapped by `of`, and nobody has a pointer into it.
        unsafe { libc::munmap(self.at.cast(), self.len) };
    }
}

/// The file behind a mapping: one of QEMU's descriptors, or by its path if it is still that file.
fn open_shared(pid: u32, m: &Mapping) -> Option<File> {
    let fds = std::fs::read_dir(format!("/proc/{pid}/fd")).ok()?;
    let same = |p: &PathBuf| {
        let at = std::fs::metadata(p).ok()?;
        (at.is_file() && at.ino() == m.inode).then_some(())
    };
    let mut files = fds.flatten().map(|e| e.path()).chain([PathBuf::from(&m.path)]);
    let path = files.find(|p| same(p).is_some())?;
    OpenOptions::new().read(true).write(true).open(path).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_of_the_monitor() {
        let yes = "Host virtual address for 0x100000 (pc.ram) is 0x7f46f3f00000\n";
        assert_eq!(host_address(yes), Some(0x7f46_f3f0_0000));
        assert_eq!(host_address("Memory at address 0xfec00000 is not RAM\n"), None);
    }

    #[test]
    fn lines_of_maps() {
        let m = Mapping::line(
            "7f46d3e00000-7f46f3e00000 rw-s 00001000 00:01 4242                       /memfd:ram (deleted)",
        )
        .unwrap();
        assert_eq!(
            (m.from, m.to, m.shared, m.offset, m.inode),
            (0x7f46_d3e0_0000, 0x7f46_f3e0_0000, true, 0x1000, 4242)
        );
        assert_eq!(m.path, "/memfd:ram (deleted)");
        let at = |from, to| Mapping { from, to, shared: false, offset: 0, inode: 0, path: String::new() };
        let maps = [at(0x1000, 0x2000), at(0x2000, 0x5000), at(0x6000, 0x7000)];
        assert!(covered(&maps, 0x1800, 0x3800));
        assert!(!covered(&maps, 0x1800, 0x5000) && !covered(&maps, 0, 0x10) && !covered(&maps, u64::MAX, 2));
    }
}
