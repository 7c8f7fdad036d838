//! Names for addresses of processes, out of the files that were mapped there: here, where the log is integrated, so the files must be here, too. Which file
//! it is its build id says; a file of the same path and another build id is another file. A container's files have another root, and a program that was
//! replaced while it runs has no path: as long as a process has the file mapped, it is there.
//!
//! A separate debug file (/usr/lib/debug/.build-id) is preferred to the file itself. The library that reads symbols, DWARF and inlined functions
//! is blazesym.

use blazesym::symbolize::source::{Elf, Source};
use blazesym::symbolize::{Input, Sym, Symbolizer};
use kpat_model::build_id::build_id;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// A part of a file that was mapped.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Mapped {
    pub path: String,
    pub build_id: Vec<u8>,
}

/// Where a process had it: addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    pub pid: u32,
    pub start: u64,
    pub length: u64,
}

/// What is asked of a file.
#[derive(Default)]
pub(crate) struct Wanted {
    pub offsets: BTreeSet<u64>,
    pub places: BTreeSet<Place>,
}

/// Of the processes that had a file mapped so many are asked for it, the latest numbers first.
const ASKED: usize = 16;

/// One function at an address; several where functions are inlined.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Named {
    pub function: String,
    /// `file.c:12`, empty: not known.
    pub line: String,
    pub inlined: bool,
}

/// Where debug files are, by build id.
const DEBUG: &str = "/usr/lib/debug/.build-id";

/// Of each offset in each file its functions, innermost first. What is not found is not in it.
pub(crate) fn names(wanted: &BTreeMap<Mapped, Wanted>) -> BTreeMap<(Mapped, u64), Vec<Named>> {
    let symbolizer = Symbolizer::new();
    let mut found = BTreeMap::new();
    for (file, Wanted { offsets, places }) in wanted {
        let offsets: Vec<u64> = offsets.iter().copied().collect();
        let own = own_file(file, places);
        let debug = debug_file(&file.build_id).filter(|p| is_file(p, &file.build_id));
        let result = match (&own, &debug) {
            // A debug file has the addresses of its program, and not always its offsets.
            (Some(own), Some(debug)) => {
                let segments = segments(own).unwrap_or_default();
                let virt: Vec<u64> = offsets.iter().map(|o| address_of(&segments, *o).unwrap_or(0)).collect();
                symbolizer.symbolize(&Source::Elf(Elf::new(debug)), Input::VirtOffset(&virt))
            }
            (Some(own), None) => {
                symbolizer.symbolize(&Source::Elf(Elf::new(own)), Input::FileOffset(&offsets))
            }
            _ => continue,
        };
        let Ok(all) = result else { continue };
        for (offset, sym) in offsets.iter().zip(&all) {
            if let Some(sym) = sym.as_sym() {
                found.insert((file.clone(), *offset), functions(sym));
            }
        }
    }
    found
}

fn own_file(file: &Mapped, places: &BTreeSet<Place>) -> Option<PathBuf> {
    let mapped = |p: &Place| {
        PathBuf::from(format!(
            "/proc/{}/map_files/{:x}-{:x}",
            p.pid,
            p.start,
            p.start.saturating_add(p.length)
        ))
    };
    let in_processes = places.iter().rev().take(ASKED).map(mapped);
    [PathBuf::from(&file.path)].into_iter().chain(in_processes).find(|p| is_file(p, &file.build_id))
}

/// A regular file with that build id: the path comes out of a log, and may be anything.
fn is_file(path: &Path, wanted: &[u8]) -> bool {
    !wanted.is_empty()
        && std::fs::metadata(path).is_ok_and(|m| m.is_file())
        && File::open(path).and_then(|mut f| build_id(&mut f)).is_ok_and(|id| id == wanted)
}

fn debug_file(build_id: &[u8]) -> Option<PathBuf> {
    let hex = |b: &[u8]| b.iter().map(|b| format!("{b:02x}")).collect::<String>();
    let (first, rest) = build_id.split_first()?;
    Some(Path::new(DEBUG).join(hex(&[*first])).join(hex(rest) + ".debug"))
}

fn functions(sym: &Sym<'_>) -> Vec<Named> {
    let line = |code: Option<&blazesym::symbolize::CodeInfo<'_>>| {
        let text = |c: &blazesym::symbolize::CodeInfo<'_>| {
            let file = c.file.to_string_lossy();
            c.line.map_or_else(|| file.to_string(), |l| format!("{file}:{l}"))
        };
        code.map(text).unwrap_or_default()
    };
    let inlined = sym.inlined.iter().rev().map(|f| Named {
        function: f.name.to_string(),
        line: line(f.code_info.as_ref()),
        inlined: true,
    });
    let own = Named { function: sym.name.to_string(), line: line(sym.code_info.as_deref()), inlined: false };
    inlined.chain([own]).collect()
}

/// Of each loaded segment: offset in the file, bytes, address.
fn segments(path: &Path) -> Option<Vec<(u64, u64, u64)>> {
    const LOAD: u32 = 1;
    let mut bytes = Vec::new();
    // The headers are at the beginning of what linkers write.
    File::open(path).ok()?.take(1 << 16).read_to_end(&mut bytes).ok()?;
    let half = |i: usize| Some(u16::from_le_bytes(bytes.get(i..i + 2)?.try_into().ok()?));
    let word = |i: usize| Some(u32::from_le_bytes(bytes.get(i..i + 4)?.try_into().ok()?));
    let long = |i: usize| Some(u64::from_le_bytes(bytes.get(i..i + 8)?.try_into().ok()?));
    let (at, size, count) = (long(32)? as usize, usize::from(half(54)?), usize::from(half(56)?));
    let mut all = Vec::new();
    for i in 0..count {
        let h = at.checked_add(i * size)?;
        if word(h)? == LOAD {
            all.push((long(h + 8)?, long(h + 32)?, long(h + 16)?));
        }
    }
    Some(all)
}

fn address_of(segments: &[(u64, u64, u64)], offset: u64) -> Option<u64> {
    let s = segments.iter().find(|(at, bytes, _)| (*at..at.saturating_add(*bytes)).contains(&offset))?;
    Some(s.2.wrapping_add(offset - s.0))
}
