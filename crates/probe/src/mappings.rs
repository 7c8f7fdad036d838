//! What the addresses of processes mean: which part of which file each executable range is, and what functions a compiler at run time made. It is logged
//! when the first stack of a process is, and again when a stack has an address that it did not have then. The kernel says what a process maps that was forked, or executed,
//! while we listen; one that is older is looked at in /proc, and has no names if it is gone by then, or has left its id to another. A compiler writes its map when its buffer is full or the process ends (node): what has no name yet is looked for
//! again when a file of the recording ends.
//!
//! Nothing is symbolised here: names cost time and memory, and can be found later, on another machine, by build id and offset.

mod sideband;
mod spaces;

use crate::netlink::processes::started;
use crate::sys;
use crate::vdso;
use kpat_model::build_id::build_id;
use kpat_model::{BootNs, Mapping, MappingKind, ProcessNumber};
pub use sideband::SideBand;
use spaces::{Space, Spaces};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::File;
use std::io::{Read, Seek};
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

/// A process is not looked at in /proc more often.
const AGAIN: Duration = Duration::from_millis(500);
/// Processes that are remembered; then all are forgotten, and logged again.
const MOST: usize = 16384;
/// Of processes that ended before all of their functions had names so many are remembered.
const MOST_ENDED: usize = 256;
/// Addresses without names of one process.
const MOST_UNNAMED: usize = 1 << 16;
/// A map of a compiler is read up to here.
const MOST_OF_A_MAP: u64 = 64 << 20;

#[derive(Default)]
pub struct Mappings {
    /// By id: of processes that have the same the last one.
    known: HashMap<u32, Process>,
    /// Those that have functions without names, and ended or run another program.
    ended: Vec<Process>,
    spaces: Spaces,
    /// By device and inode.
    build_ids: HashMap<String, Vec<u8>>,
}

struct Process {
    number: ProcessNumber,
    looked: Instant,
    /// Of what the kernel had said of it then, 0: nothing.
    version: u64,
    ranges: Vec<Range>,
    /// Addresses in functions that were logged, or asked for.
    functions: HashSet<u64>,
    /// Those that no map has yet, and when they were seen first.
    unnamed: BTreeMap<u64, BootNs>,
    /// What its compiler writes; it may be gone from its place when the process is.
    map: Option<File>,
    /// When that was read.
    read: Option<Instant>,
}

/// What is in a range of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holds {
    File,
    /// The kernel's functions for user mode.
    Vdso,
    /// Functions that were made at run time.
    Made,
}

/// Addresses of a process at which it can run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    start: u64,
    end: u64,
    offset: u64,
    /// Device and inode, as text.
    pub file: String,
    /// As the process sees it; empty: no file.
    pub path: String,
}

impl Mappings {
    /// What has to be logged so that the frames of a process's stack have names.
    pub fn of_stack(&mut self, process: ProcessNumber, frames: &[u64], at: BootNs) -> Vec<Mapping> {
        let mut new = Vec::new();
        let known = self.known.get(&process.pid()).filter(|p| p.number == process);
        let missing = |p: &Process| frames.iter().any(|f| !p.ranges.iter().any(|r| r.has(*f)));
        if known.is_none_or(missing) {
            self.spaces.follow();
            let space = self.spaces.at(process.pid(), at);
            // All that there is to know was known already, or it is too early to look again.
            let version = space.map_or(0, |s| s.version);
            let in_proc = space.is_none_or(|s| !s.is_whole);
            if known.is_none_or(|p| p.version != version || in_proc && p.looked.elapsed() >= AGAIN) {
                let space = space.cloned();
                self.look(process, at, space, &mut new);
            }
        }
        if let Some(p) = self.known.get_mut(&process.pid()) {
            functions(p, frames, at, &mut new);
        }
        new
    }

    /// What is no place in code becomes 0: where a program keeps no frame pointer the kernel takes for frames what lies where the register points to, so
    /// that these words may be anything that the program has in its memory. To be called after [`Mappings::of_stack`].
    pub fn leave_code(&self, process: ProcessNumber, frames: &mut [u64]) {
        let known = self.known.get(&process.pid()).filter(|p| p.number == process);
        let is_code = |f: u64| known.is_some_and(|p| p.ranges.iter().any(|r| r.has(f)));
        frames.iter_mut().filter(|f| !is_code(**f)).for_each(|f| *f = 0);
    }

    /// That process has ended, or runs another program.
    pub fn forget(&mut self, process: ProcessNumber) {
        let known = self.known.remove(&process.pid());
        if let Some(p) = known.filter(|p| p.map.is_some() && !p.unnamed.is_empty())
            && self.ended.len() < MOST_ENDED
        {
            self.ended.push(p);
        }
    }

    /// From now on the kernel's own words count.
    pub fn listen(&mut self, to: SideBand) {
        self.spaces.listen(to);
    }

    /// Takes in what the kernel has said.
    pub fn follow(&mut self) {
        self.spaces.follow();
    }

    pub fn forget_all(&mut self) {
        self.known.clear();
        self.ended.clear();
    }

    /// What compilers have written since it was asked for.
    pub fn late(&mut self) -> Vec<Mapping> {
        let mut new = Vec::new();
        for p in self.known.values_mut().chain(&mut self.ended).filter(|p| !p.unnamed.is_empty()) {
            name_made(p, &mut new);
        }
        new
    }

    fn look(&mut self, process: ProcessNumber, at: BootNs, space: Option<Space>, new: &mut Vec<Mapping>) {
        if self.known.len() >= MOST {
            self.known.clear();
        }
        let pid = process.pid();
        if self.known.get(&pid).is_some_and(|p| p.number != process) {
            self.forget(process);
        }
        let version = space.as_ref().map_or(0, |s| s.version);
        let line = self.spaces.line(pid, at);
        let ranges = ranges_at(&line, at, space);
        let before = self.known.get_mut(&pid).map_or_else(Vec::new, |p| std::mem::take(&mut p.ranges));
        for r in ranges.iter().filter(|r| !r.path.is_empty() && !before.contains(r)) {
            let build_id = if r.path.starts_with('/') { self.build_id(&line, r) } else { Vec::new() };
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
        let looked = Instant::now();
        let new = || Process {
            number: process,
            looked,
            version,
            ranges: Vec::new(),
            functions: HashSet::new(),
            unnamed: BTreeMap::new(),
            map: None,
            read: None,
        };
        let known = self.known.entry(pid).or_insert_with(new);
        (known.looked, known.version, known.ranges) = (looked, version, ranges);
    }

    /// `line`: the process and its parents.
    fn build_id(&mut self, line: &[u32], r: &Range) -> Vec<u8> {
        if let Some(id) = self.build_ids.get(&r.file) {
            return id.clone();
        }
        let Some(mut file) = file_of(line, r) else { return Vec::new() };
        let id = build_id(&mut file).unwrap_or_default();
        if self.build_ids.len() >= MOST {
            self.build_ids.clear();
        }
        self.build_ids.insert(r.file.clone(), id.clone());
        id
    }
}

/// What a process could run then, of which the kernel has said this.
fn ranges_at(line: &[u32], at: BootNs, space: Option<Space>) -> Vec<Range> {
    let Some(space) = space else {
        return line.first().filter(|p| is_there(**p, at)).map_or_else(Vec::new, |p| of(*p));
    };
    let said = space.ranges.iter().map(Range::of_said);
    if space.is_whole {
        return said.collect();
    }
    // A fork has its parent's, as long as it did not execute anything; of both only what is there now is known.
    let there = line.iter().take(2).find(|p| is_there(**p, at));
    let mut all = there.map_or_else(Vec::new, |p| of(*p));
    let missing = |r: &Range| !all.iter().any(|a| (a.start, a.end) == (r.start, r.end));
    let more: Vec<Range> = said.filter(missing).collect();
    all.extend(more);
    all
}

/// The mapping itself, for the path may be another file by now, or of another root; of a process that is gone its parents' roots have it, or this one.
/// The file that processes, of which the first is alive or was, have in this range.
pub(crate) fn file_of(line: &[u32], r: &Range) -> Option<File> {
    let mapped = line.first().map(|p| File::open(format!("/proc/{p}/map_files/{:x}-{:x}", r.start, r.end)));
    let roots = line.iter().map(|p| format!("/proc/{p}/root")).chain([String::new()]);
    let by_path = roots.map(|root| sys::open_regular(&format!("{root}{}", r.path), 0));
    // Layers of file systems have numbers of devices of their own: the path and the inode are enough.
    let inode = r.file.split(' ').nth(1);
    let is_it = |f: &File| f.metadata().is_ok_and(|m| Some(m.ino().to_string().as_str()) == inode);
    mapped.into_iter().chain(by_path).flatten().find(is_it)
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
        let path = of_file(path);
        let file = format!("{device} {inode}");
        access.contains('x').then_some(Range { start: hex(start)?, end: hex(end)?, offset, file, path })
    };
    text.lines().filter_map(range).collect()
}

/// As the kernel says it; empty if it is no file, but memory.
fn of_file(path: &str) -> String {
    let path = path.strip_suffix(" (deleted)").unwrap_or(path);
    let anonymous = path.starts_with("//anon") || path.starts_with("/memfd:") || path.starts_with("[anon");
    if anonymous { String::new() } else { path.into() }
}

impl Range {
    fn of_said(m: &sideband::Mapped) -> Range {
        let (file, path) = (m.file.clone(), of_file(&m.path));
        Range { start: m.start, end: m.end, offset: m.offset, file, path }
    }

    fn has(&self, address: u64) -> bool {
        (self.start..self.end).contains(&address)
    }

    fn holds(&self) -> Holds {
        match self.path.as_str() {
            "" => Holds::Made,
            // A program of 32 bits has another one.
            "[vdso]" if self.end > 1 << 32 => Holds::Vdso,
            _ => Holds::File,
        }
    }
}

/// The functions that frames are in, where no file has them.
fn functions(p: &mut Process, frames: &[u64], at: BootNs, new: &mut Vec<Mapping>) {
    let mut made = false;
    for frame in frames {
        let Some(range) = p.ranges.iter().rev().find(|r| r.has(*frame)) else { continue };
        let (start, holds) = (range.start, range.holds());
        if holds == Holds::File || !p.functions.insert(*frame) {
            continue;
        }
        if holds == Holds::Vdso {
            let found = vdso::function_at(frame - start);
            new.extend(found.map(|f| function_mapping(p.number, at, start + f.offset, f.length, &f.name)));
        } else if p.unnamed.len() < MOST_UNNAMED {
            p.unnamed.insert(*frame, at);
            made = true;
        }
    }
    // Maps are long: what comes sooner waits for the next reading.
    if made && p.read.is_none_or(|r| r.elapsed() >= AGAIN) {
        name_made(p, new);
    }
}

/// What has no name yet, out of the map of the process's compiler.
fn name_made(p: &mut Process, new: &mut Vec<Mapping>) {
    if p.map.is_none() {
        p.map = perf_map(p.number.pid()).filter(|_| {
            let first = p.unnamed.values().min().copied().unwrap_or(BootNs(i64::MAX));
            is_there(p.number.pid(), first)
        });
    }
    p.read = Some(Instant::now());
    let text = p.map.as_mut().and_then(|f| read_whole(f).ok()).unwrap_or_default();
    let mut named = Vec::new();
    for (start, length, name) in text.lines().filter_map(function) {
        let mut within = p.unnamed.range(start..start.saturating_add(length)).peekable();
        let Some((_, at)) = within.peek() else { continue };
        new.push(function_mapping(p.number, **at, start, length, name));
        named.extend(within.map(|(frame, _)| *frame));
    }
    for frame in named {
        p.unnamed.remove(&frame);
    }
}

fn function_mapping(process: ProcessNumber, at: BootNs, start: u64, length: u64, name: &str) -> Mapping {
    let (what, offset, build_id) = (MappingKind::Function, 0, Vec::new());
    Mapping { at, process: process.0, what, start, length, offset, name: name.into(), build_id }
}

/// `START SIZE name`, in hexadecimal.
fn function(line: &str) -> Option<(u64, u64, &str)> {
    let mut words = line.splitn(3, ' ');
    let mut number = || u64::from_str_radix(words.next()?.trim_start_matches("0x"), 16).ok();
    let (start, length) = (number()?, number()?);
    Some((start, length, words.next()?))
}

/// By the process's own root and by its number in its own namespace.
fn perf_map(process: u32) -> Option<File> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let own = status.lines().find_map(|l| l.strip_prefix("NSpid:"))?.split_whitespace().last()?;
    let path = format!("/proc/{process}/root/tmp/perf-{own}.map");
    sys::open_regular(&path, libc::O_NOFOLLOW).ok()
}

fn read_whole(file: &mut File) -> std::io::Result<String> {
    let mut bytes = Vec::new();
    file.rewind()?;
    file.take(MOST_OF_A_MAP).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
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

    /// As node does: nothing is in the map when its functions are seen first.
    #[test]
    fn what_a_compiler_writes_later_has_its_name_when_it_has_ended() {
        let map = std::env::temp_dir().join(format!("kpat-late-map-{}", std::process::id()));
        std::fs::write(&map, "").expect("written");
        let number = ProcessNumber(std::process::id());
        let mut p = Process {
            number,
            looked: Instant::now(),
            version: 0,
            ranges: executable("1000-9000 rwxp 00000000 00:00 0 \n"),
            functions: HashSet::new(),
            unnamed: BTreeMap::new(),
            map: File::open(&map).ok(),
            read: None,
        };
        let mut new = Vec::new();
        functions(&mut p, &[0x1010, 0x2010], BootNs(7), &mut new);
        assert!(new.is_empty());
        let mut mappings = Mappings::default();
        mappings.known.insert(number.pid(), p);
        let mut frames = [0x1010, u64::from_le_bytes(*b"hunter2!"), 0x9000, 0x8fff];
        mappings.leave_code(number, &mut frames);
        assert_eq!(frames, [0x1010, 0, 0, 0x8fff]);
        mappings.leave_code(ProcessNumber(number.0 | 1 << 22), &mut frames);
        assert_eq!(frames, [0; 4], "of another process with that id nothing is known");
        mappings.forget(number);
        std::fs::write(&map, "1000 100 first\n3000 100 other\n").expect("written");
        let late: Vec<_> = mappings.late().into_iter().map(|m| (m.at, m.start, m.name)).collect();
        assert_eq!(late, [(BootNs(7), 0x1000, "first".to_string())]);
        std::fs::write(&map, "1000 100 first\n2000 100 second\n").expect("written");
        let late: Vec<_> = mappings.late().into_iter().map(|m| m.name).collect();
        assert_eq!(late, ["second"], "what has a name is not logged again");
        std::fs::remove_file(&map).expect("it was there");
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
