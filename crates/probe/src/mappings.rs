//! What the addresses of processes mean: which part of which file each executable range is, and what functions a compiler at run time made. A process
//! is looked at when the first stack of it is logged, and again when a stack has an address that it did not have then; who is gone by then, or has left its id to
//! another process, stays without names.
//!
//! Nothing is symbolised here: names cost time and memory, and can be found later, on another machine, by build id and offset.

use crate::netlink::processes::started;
use crate::sys;
use kpat_model::{BootNs, Mapping, MappingKind, ProcessNumber};
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::time::{Duration, Instant};

/// A process is not looked at more often.
const AGAIN: Duration = Duration::from_millis(500);
/// Processes that are remembered; then all are forgotten, and logged again.
const MOST: usize = 16384;
/// A map of a compiler is read up to here.
const MOST_OF_A_MAP: u64 = 64 << 20;

#[derive(Default)]
pub struct Mappings {
    /// By id: of processes that have the same the last one.
    known: HashMap<u32, Process>,
    /// By device and inode.
    build_ids: HashMap<String, Vec<u8>>,
}

struct Process {
    number: ProcessNumber,
    looked: Instant,
    /// Start, end, and whether it is a file's.
    ranges: Vec<(u64, u64, bool)>,
    /// Functions that were logged.
    functions: HashSet<u64>,
}

/// Addresses of a process at which it can run.
pub(crate) struct Range {
    start: u64,
    end: u64,
    offset: u64,
    /// Device and inode, as text.
    file: String,
    /// As the process sees it; empty: no file.
    pub path: String,
}

impl Mappings {
    /// What has to be logged so that the frames of a process's stack have names.
    pub fn of_stack(&mut self, process: ProcessNumber, frames: &[u64], at: BootNs) -> Vec<Mapping> {
        let mut new = Vec::new();
        let known = self.known.get(&process.pid()).filter(|p| p.number == process);
        let missing =
            |p: &Process| frames.iter().any(|f| !p.ranges.iter().any(|(s, e, _)| (*s..*e).contains(f)));
        if known.is_none_or(|p| missing(p) && p.looked.elapsed() >= AGAIN) {
            self.look(process, at, &mut new);
        }
        if let Some(p) = self.known.get_mut(&process.pid()) {
            functions(p, frames, at, &mut new);
        }
        new
    }

    /// That process has ended, or runs another program.
    pub fn forget(&mut self, process: ProcessNumber) {
        self.known.remove(&process.pid());
    }

    pub fn forget_all(&mut self) {
        self.known.clear();
    }

    fn look(&mut self, process: ProcessNumber, at: BootNs, new: &mut Vec<Mapping>) {
        if self.known.len() >= MOST {
            self.known.clear();
        }
        let pid = process.pid();
        let ranges = if is_there(pid, at) { of(pid) } else { Vec::new() };
        for r in ranges.iter().filter(|r| !r.path.is_empty()) {
            let build_id = if r.path.starts_with('/') { self.build_id(pid, r) } else { Vec::new() };
            new.push(Mapping {
                at,
                process: process.0,
                what: MappingKind::File,
                start: r.start,
                length: r.end - r.start,
                offset: r.offset,
                name: r.path.clone(),
                build_id,
            });
        }
        let ranges = ranges.iter().map(|r| (r.start, r.end, !r.path.is_empty())).collect();
        let known = self.known.remove(&pid).filter(|p| p.number == process);
        let functions = known.map(|p| p.functions).unwrap_or_default();
        self.known.insert(pid, Process { number: process, looked: Instant::now(), ranges, functions });
    }

    fn build_id(&mut self, process: u32, r: &Range) -> Vec<u8> {
        if let Some(id) = self.build_ids.get(&r.file) {
            return id.clone();
        }
        // The mapping itself, for the path may be another file by now, or of another root.
        let mapped = File::open(format!("/proc/{process}/map_files/{:x}-{:x}", r.start, r.end));
        let file = mapped.or_else(|_| sys::open_regular(&format!("/proc/{process}/root{}", r.path), 0));
        let id = file.and_then(|mut f| build_id(&mut f)).unwrap_or_default();
        if self.build_ids.len() >= MOST {
            self.build_ids.clear();
        }
        self.build_ids.insert(r.file.clone(), id.clone());
        id
    }
}

/// Did the process that has this id now run at that time, and not one that had it before?
fn is_there(pid: u32, at: BootNs) -> bool {
    started(pid).saturating_mul(sys::ns_per_tick()) <= at.0 as u64
}

/// None of a process that is gone.
pub(crate) fn of(process: u32) -> Vec<Range> {
    let text = std::fs::read(format!("/proc/{process}/maps")).unwrap_or_default();
    executable(&String::from_utf8_lossy(&text))
}

/// Executable ranges of /proc/PID/maps; those without a file have no path.
fn executable(text: &str) -> Vec<Range> {
    let hex = |t: &str| u64::from_str_radix(t, 16).ok();
    let range = |line: &str| {
        let mut words = line.splitn(6, ' ');
        let (start, end) = words.next()?.split_once('-')?;
        let access = words.next()?;
        let offset = hex(words.next()?)?;
        let (device, inode) = (words.next()?, words.next()?);
        let path = words.next().unwrap_or("").trim_start();
        let path = path.strip_suffix(" (deleted)").unwrap_or(path);
        let anonymous =
            path.starts_with("//anon") || path.starts_with("/memfd:") || path.starts_with("[anon");
        let path = if anonymous { String::new() } else { path.into() };
        let file = format!("{device} {inode}");
        access.contains('x').then_some(Range { start: hex(start)?, end: hex(end)?, offset, file, path })
    };
    text.lines().filter_map(range).collect()
}

/// The functions that frames are in, out of the map of the process's compiler.
fn functions(p: &mut Process, frames: &[u64], at: BootNs, new: &mut Vec<Mapping>) {
    let made = |f: &u64| p.ranges.iter().any(|(s, e, file)| !file && (*s..*e).contains(f));
    let wanted: Vec<u64> = frames.iter().copied().filter(|f| made(f) && !p.functions.contains(f)).collect();
    if wanted.is_empty() {
        return;
    }
    // What is not in it now will not be asked for again.
    p.functions.extend(&wanted);
    let process = p.number.0;
    let text = perf_map(p.number.pid()).unwrap_or_default();
    for (start, length, name) in text.lines().filter_map(function) {
        if wanted.iter().any(|f| (start..start.saturating_add(length)).contains(f)) {
            let (what, offset, build_id) = (MappingKind::Function, 0, Vec::new());
            new.push(Mapping { at, process, what, start, length, offset, name: name.into(), build_id });
        }
    }
}

/// `START SIZE name`, in hexadecimal.
fn function(line: &str) -> Option<(u64, u64, &str)> {
    let mut words = line.splitn(3, ' ');
    let mut number = || u64::from_str_radix(words.next()?.trim_start_matches("0x"), 16).ok();
    let (start, length) = (number()?, number()?);
    Some((start, length, words.next()?))
}

/// By the process's own root and by its number in its own namespace.
fn perf_map(process: u32) -> Option<String> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let own = status.lines().find_map(|l| l.strip_prefix("NSpid:"))?.split_whitespace().last()?;
    let path = format!("/proc/{process}/root/tmp/perf-{own}.map");
    let mut bytes = Vec::new();
    sys::open_regular(&path, libc::O_NOFOLLOW).ok()?.take(MOST_OF_A_MAP).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// The build id of an ELF file of 64 bits, by its program headers, which stay when a file is stripped.
fn build_id(file: &mut (impl Read + Seek)) -> io::Result<Vec<u8>> {
    const NOTE: u32 = 4;
    const GNU_BUILD_ID: u32 = 3;
    let mut head = [0; 64];
    file.read_exact(&mut head)?;
    if !head.starts_with(b"\x7fELF\x02\x01") {
        return Ok(Vec::new());
    }
    let half = |b: &[u8], i: usize| u16::from_le_bytes([b[i], b[i + 1]]);
    let word = |b: &[u8], i: usize| u32::from_le_bytes([b[i], b[i + 1], b[i + 2], b[i + 3]]);
    let long = |b: &[u8], i: usize| u64::from(word(b, i)) | u64::from(word(b, i + 4)) << 32;
    let (at, size, count) = (long(&head, 32), usize::from(half(&head, 54)), usize::from(half(&head, 56)));
    if size < 56 {
        return Ok(Vec::new());
    }
    let mut headers = vec![0; size * count];
    file.seek(SeekFrom::Start(at))?;
    file.read_exact(&mut headers)?;
    for h in headers.chunks_exact(size).filter(|h| word(h, 0) == NOTE) {
        let mut notes = vec![0; long(h, 32).min(4096) as usize];
        file.seek(SeekFrom::Start(long(h, 8)))?;
        file.read_exact(&mut notes)?;
        let mut rest = &notes[..];
        while rest.len() >= 12 {
            let (name, desc) = (word(rest, 0) as usize, word(rest, 4) as usize);
            let (from, kind) = (12 + name.next_multiple_of(4), word(rest, 8));
            let Some(id) = rest.get(from..from.saturating_add(desc)) else { break };
            if kind == GNU_BUILD_ID && rest[12..].starts_with(b"GNU\0") {
                return Ok(id.to_vec());
            }
            let Some(next) = rest.get(from + desc.next_multiple_of(4)..) else { break };
            rest = next;
        }
    }
    Ok(Vec::new())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_can_run() {
        let text = "5570c000-5570d000 r--p 00000000 fe:00 42 /usr/bin/a b\n\
            5570d000-5570f000 r-xp 00001000 fe:00 42                         /usr/bin/a b\n\
            7f000000-7f001000 rwxp 00000000 00:00 0 \n\
            7f002000-7f003000 r-xp 00003000 fe:00 43 /lib/x.so (deleted)\n\
            7ffd0000-7ffd2000 r-xp 00000000 00:00 0                          [vdso]\n";
        let found: Vec<_> =
            executable(text).into_iter().map(|r| (r.start, r.end, r.offset, r.path)).collect();
        let want = [
            (0x5570_d000, 0x5570_f000, 0x1000, "/usr/bin/a b"),
            (0x7f00_0000, 0x7f00_1000, 0, ""),
            (0x7f00_2000, 0x7f00_3000, 0x3000, "/lib/x.so"),
            (0x7ffd_0000, 0x7ffd_2000, 0, "[vdso]"),
        ];
        assert_eq!(found, want.map(|(s, e, o, p)| (s, e, o, p.to_string())));
    }

    #[test]
    fn functions_of_a_compiler() {
        assert_eq!(
            function("7f10 1a0 LazyCompile:*f /x.js:1"),
            Some((0x7f10, 0x1a0, "LazyCompile:*f /x.js:1"))
        );
        assert_eq!(function("7f10"), None);
    }

    /// The linker's own word for it: readelf reads what we read.
    #[test]
    fn the_build_id_is_what_readelf_says() {
        let file = "/usr/bin/readelf";
        let Ok(out) = std::process::Command::new(file).args(["-n", file]).output() else {
            eprintln!("skipped: no readelf here");
            return;
        };
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        let want = text.lines().find_map(|l| l.trim().strip_prefix("Build ID: ")).unwrap_or("").to_string();
        let id = build_id(&mut File::open(file).expect("it ran")).expect("it is an ELF file");
        assert_eq!(id.iter().map(|b| format!("{b:02x}")).collect::<String>(), want);
    }

    #[test]
    fn of_this_very_process() {
        let here = of_this_very_process as *const () as u64;
        let mut mappings = Mappings::default();
        let own = ProcessNumber(std::process::id());
        let now = sys::boot_now();
        assert!(mappings.of_stack(own, &[here], BootNs(1)).is_empty(), "another had its id then");
        mappings.forget(own);
        let new = mappings.of_stack(own, &[here], now);
        let m = new.iter().find(|m| (m.start..m.start + m.length).contains(&here)).expect("our own code");
        let exe = std::env::current_exe().expect("a path");
        assert_eq!((m.what, m.name.as_str()), (MappingKind::File, exe.to_str().expect("text")));
        assert!(mappings.of_stack(own, &[here], now).is_empty(), "logged once");
    }
}
