//! Which instructions a source line became, by an ELF file's `.debug_line`: the programs of that section one after another, without the description of functions
//! and types, which is ten times as large and would be needed for nothing but the names of inlined functions.
//!
//! The file may be anybody's: sizes are bounded, damage is an error or a part that is left out and counted.

use super::elf::{self, ALLOC, EXECUTE, Elf};
use crate::error::{Error, Result};
use gimli::{AttributeValue, DebugLine, DebugLineOffset, LittleEndian};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

type Reader<'a> = gimli::EndianSlice<'a, LittleEndian>;
type Header<'a> = gimli::LineProgramHeader<Reader<'a>>;
type Name<'a> = AttributeValue<Reader<'a>>;

/// Of one program: its list of files. A kernel's largest has some ten kB.
const LONGEST_HEADER: u64 = 1 << 20;
const LONGEST_PATH: usize = 4096;
/// Files of one name, and instructions of one line, that are kept.
const MOST_FILES: usize = 1000;
const MOST_ROWS: usize = 1 << 20;
/// Names that are like the one that was not found.
const MOST_LIKE: usize = 3;

/// What `.debug_line` has, and what it refers to.
pub struct Lines {
    line: Vec<u8>,
    line_str: Vec<u8>,
    str: Vec<u8>,
    /// Sections with code, by their number, and where they are. Those of a file that has no addresses yet lie one behind the other here.
    pub code: Vec<(usize, Range<u64>)>,
}

/// A line that is looked for: in one file, or in several one after another.
pub struct Search {
    path: Vec<String>,
    line: u64,
    /// Which files it may be, by their whole path.
    found: BTreeMap<String, File>,
    /// Programs that could not be read.
    pub unread: usize,
}

/// What one source file's lines became.
#[derive(Default)]
struct File {
    /// Instructions that the line begins with.
    rows: BTreeSet<u64>,
    /// The first line behind it that has code, and the last of all.
    next: Option<u64>,
    last: u64,
}

/// What came of a search.
#[derive(Debug, PartialEq, Eq)]
pub enum Found {
    /// No file has that name, or none of that name has code.
    NoFile,
    /// The path is the end of several files' paths.
    Files(Vec<String>),
    /// The file has code, but not of that line: its whole path, the next line with code, the last one.
    NoCode { path: String, next: Option<u64>, last: u64 },
    /// Where the line's instructions begin.
    Rows { path: String, rows: Vec<u64> },
}

impl Lines {
    /// `None`: the file has no lines.
    pub fn read(elf: &Elf) -> Result<Option<Lines>> {
        let Some(section) = elf.named(".debug_line") else { return Ok(None) };
        let mut line = elf.content(section)?;
        let text = |name: &str| elf.named(name).map_or(Ok(Vec::new()), |s| elf.content(s));
        let code = code(elf)?;
        if elf.relocatable {
            relocate(elf, &code, &mut line)?;
        }
        Ok(Some(Lines { line, line_str: text(".debug_line_str")?, str: text(".debug_str")?, code }))
    }

    /// Adds what is here. `moved`: where an address of the file is in the guest; `None`: in no code of it.
    pub fn search(&self, search: &mut Search, moved: &dyn Fn(u64) -> Option<u64>) -> Result<()> {
        let wanted = search.path.last().cloned().unwrap_or_default();
        self.programs(&mut search.unread, |program| {
            let header = program.header();
            let mut files: BTreeMap<u64, String> = BTreeMap::new();
            for (n, file) in numbered(header) {
                if self.text(&file.path_name()).is_some_and(|name| last(name) == wanted.as_bytes())
                    && let Some(path) = self.path(header, file)
                    && ends_with(&path, &search.path)
                {
                    files.insert(n, joined(&path));
                }
            }
            if files.is_empty() {
                return Ok(());
            }
            let mut rows = program.rows();
            while let Ok(Some((_, row))) = rows.next_row() {
                let Some(line) = row.line().filter(|_| row.is_stmt() && !row.end_sequence()) else {
                    continue;
                };
                let (Some(path), Some(at)) = (files.get(&row.file_index()), moved(row.address())) else {
                    continue;
                };
                if !search.found.contains_key(path) && search.found.len() == MOST_FILES {
                    return Err(Error::damaged("the debug file", "too many files have one name"));
                }
                let file = search.found.entry(path.clone()).or_default();
                file.last = file.last.max(line.get());
                if line.get() > search.line {
                    file.next = Some(file.next.map_or(line.get(), |n| n.min(line.get())));
                } else if line.get() == search.line && file.rows.len() < MOST_ROWS {
                    file.rows.insert(at);
                }
            }
            Ok(())
        })
    }

    /// Files whose names are like the one that is looked for: of the same name in another folder, else with at most two letters that differ.
    pub fn like(&self, search: &Search) -> Result<Vec<String>> {
        let wanted = search.path.last().cloned().unwrap_or_default();
        let (mut same, mut close, mut seen) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        self.programs(&mut 0, |program| {
            let header = program.header();
            for (_, file) in numbered(header) {
                let Some(name) = self.text(&file.path_name()).map(last) else { continue };
                if name == wanted.as_bytes() {
                    if same.len() < MOST_LIKE {
                        same.extend(self.path(header, file).map(|p| joined(&p)));
                    }
                } else if close.len() < MOST_LIKE
                    && seen.insert(name.to_vec())
                    && near(name, wanted.as_bytes())
                {
                    close.insert(String::from_utf8_lossy(name).into_owned());
                }
            }
            Ok(())
        })?;
        Ok(if same.is_empty() { close } else { same }.into_iter().collect())
    }

    /// Each program of the section; those that are damaged are counted.
    fn programs<'a>(
        &'a self,
        unread: &mut usize,
        mut each: impl FnMut(gimli::IncompleteLineProgram<Reader<'a>>) -> Result<()>,
    ) -> Result<()> {
        let mut rest = self.line.as_slice();
        while !rest.is_empty() {
            let Some((len, own)) = unit(rest) else {
                *unread += 1;
                break;
            };
            let (program, behind) = rest.split_at(len);
            rest = behind;
            // A length of nothing is what fills the room between two.
            if own == 0 {
                continue;
            }
            let read = header_length(program).filter(|n| *n <= LONGEST_HEADER);
            match read.and_then(|_| {
                DebugLine::new(program, LittleEndian).program(DebugLineOffset(0), 8, None, None).ok()
            }) {
                Some(program) => each(program)?,
                None => *unread += 1,
            }
        }
        Ok(())
    }

    fn text<'a>(&'a self, name: &Name<'a>) -> Option<&'a [u8]> {
        let of = |section: &'a [u8], at: usize| {
            let rest = section.get(at..)?;
            rest.get(..memchr::memchr(0, &rest[..rest.len().min(LONGEST_PATH)])?)
        };
        match name {
            AttributeValue::String(text) => Some(text.slice()).filter(|t| t.len() < LONGEST_PATH),
            AttributeValue::DebugLineStrRef(at) => of(&self.line_str, at.0),
            AttributeValue::DebugStrRef(at) => of(&self.str, at.0),
            _ => None,
        }
    }

    /// All folders down to a file, without those that lead back up.
    fn path<'a>(&'a self, header: &Header<'a>, file: &gimli::FileEntry<Reader<'a>>) -> Option<Vec<String>> {
        let folder = file.directory(header);
        // Before DWARF 5 the folder of the compiler is not in this section.
        let compiler = header.directory(0).filter(|_| header.version() >= 5 && file.directory_index() != 0);
        let parts = [compiler, folder, Some(file.path_name())].into_iter().flatten();
        let parts: Vec<&[u8]> = parts.map(|p| self.text(&p)).collect::<Option<_>>()?;
        if parts.iter().map(|p| p.len()).sum::<usize>() > LONGEST_PATH {
            return None;
        }
        Some(plain(&parts.iter().map(|p| String::from_utf8_lossy(p)).collect::<Vec<_>>()))
    }
}

impl Search {
    pub fn new(path: &str, line: u64) -> Search {
        Search { path: plain(&[path.into()]), line, found: BTreeMap::new(), unread: 0 }
    }

    pub fn found(&self) -> Found {
        // A path of which only the end is known is that of any file that ends so.
        let split = |p: &str| p.split('/').map(str::to_owned).collect::<Vec<_>>();
        let paths: Vec<Vec<String>> = self.found.keys().map(|p| split(p)).collect();
        let whole = |p: &&Vec<String>| !paths.iter().any(|other| other.len() > p.len() && other.ends_with(p));
        let mut files: Vec<String> = paths.iter().filter(whole).map(|p| p.join("/")).collect();
        let path = match files.len() {
            0 => return Found::NoFile,
            1 => files.remove(0),
            _ => return Found::Files(files),
        };
        let all = || self.found.values();
        let rows: BTreeSet<u64> = all().flat_map(|f| f.rows.iter().copied()).collect();
        if rows.is_empty() {
            let last = all().map(|f| f.last).max().unwrap_or(0);
            return Found::NoCode { path, next: all().filter_map(|f| f.next).min(), last };
        }
        Found::Rows { path, rows: rows.into_iter().collect() }
    }
}

/// The bytes of the first program, and of those without its length.
fn unit(rest: &[u8]) -> Option<(usize, u64)> {
    let (own, at) = match elf::number(rest, 0, 4)? {
        0xffff_ffff => (elf::number(rest, 4, 8)?, 12),
        len => (len, 4),
    };
    let len = usize::try_from(own).ok()?.checked_add(at)?;
    (len <= rest.len()).then_some((len, own))
}

fn header_length(program: &[u8]) -> Option<u64> {
    let (at, width) = if elf::number(program, 0, 4)? == 0xffff_ffff { (12, 8) } else { (4, 4) };
    let version = elf::number(program, at, 2)?;
    elf::number(program, at + if version >= 5 { 4 } else { 2 }, width)
}

/// Files as rows number them.
fn numbered<'h, 'a>(header: &'h Header<'a>) -> impl Iterator<Item = (u64, &'h gimli::FileEntry<Reader<'a>>)> {
    let first = u64::from(header.version() < 5);
    header.file_names().iter().enumerate().map(move |(n, file)| (n as u64 + first, file))
}

fn last(path: &[u8]) -> &[u8] {
    path.rsplit(|b| *b == b'/').next().unwrap_or(path)
}

/// One path out of several, each relative to those before it; an absolute one begins with an empty name.
fn plain(parts: &[std::borrow::Cow<'_, str>]) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    for part in parts {
        if part.starts_with('/') {
            all = vec![String::new()];
        }
        for name in part.split('/').filter(|n| !n.is_empty() && *n != ".") {
            match all.last().map(String::as_str) {
                Some("") if name == ".." => {}
                Some(last) if name == ".." && last != ".." => drop(all.pop()),
                _ => all.push(name.to_owned()),
            }
        }
    }
    all
}

fn joined(path: &[String]) -> String {
    path.join("/")
}

/// Is it the path of the file? Of a file whose own path is not absolute only so much is compared as is known of it.
fn ends_with(path: &[String], wanted: &[String]) -> bool {
    path.ends_with(wanted) || (path.first().is_some_and(|p| !p.is_empty()) && wanted.ends_with(path))
}

/// Do they differ by two letters that are others, missing, too many, or by two neighbours in each other's place?
fn near(a: &[u8], b: &[u8]) -> bool {
    const FAR: usize = 2;
    const LONGEST: usize = 64;
    if a.len().abs_diff(b.len()) > FAR || a.len().max(b.len()) > LONGEST || a.len().min(b.len()) <= FAR {
        return false;
    }
    let (mut older, mut before) = (vec![0; b.len() + 1], (0..=b.len()).collect::<Vec<_>>());
    for i in 0..a.len() {
        let mut now = vec![i + 1];
        for j in 0..b.len() {
            let other = before[j] + usize::from(a[i] != b[j]);
            let mut least = other.min(before[j + 1] + 1).min(now[j] + 1);
            if i > 0 && j > 0 && a[i] == b[j - 1] && a[i - 1] == b[j] {
                least = least.min(older[j - 1] + 1);
            }
            now.push(least);
        }
        older = std::mem::replace(&mut before, now);
    }
    before[b.len()] <= FAR
}

/// Where each section with code is; in a file without addresses at one that is made up, so that an address says of which section it is.
fn code(elf: &Elf) -> Result<Vec<(usize, Range<u64>)>> {
    let mut next = 1 << 32;
    let mut all = Vec::new();
    for (n, s) in
        elf.sections.iter().enumerate().filter(|(_, s)| s.flags & (ALLOC | EXECUTE) == ALLOC | EXECUTE)
    {
        let at = if elf.relocatable { next } else { s.address };
        let end = at.checked_add(s.size).filter(|_| s.size < 1 << 32);
        all.push((n, at..end.ok_or(Error::damaged("the debug file", "a section is too large"))?));
        next += 1 << 32;
    }
    Ok(all)
}

/// Fills in what the linker would, of x86-64: addresses in sections at their made-up places, offsets in other sections.
fn relocate(elf: &Elf, code: &[(usize, Range<u64>)], line: &mut [u8]) -> Result<()> {
    const ENTRY: usize = 24;
    const WIDTHS: [(u64, usize); 3] = [(1, 8), (10, 4), (11, 4)];
    let Some(section) = elf.named(".rela.debug_line") else { return Ok(()) };
    let damaged = |why: &str| Error::damaged("the debug file", why);
    let symbols = elf.symbols()?.ok_or_else(|| damaged("it has no symbols"))?;
    for r in elf.content(section)?.chunks_exact(ENTRY) {
        let field = |at| elf::number(r, at, 8).unwrap_or(0);
        let (at, info, plus) = (field(0) as usize, field(8), field(16));
        let Some((_, width)) = WIDTHS.iter().find(|(kind, _)| *kind == info & 0xffff_ffff) else { continue };
        let symbol = symbols.get((info >> 32) as usize).ok_or_else(|| damaged("a symbol is missing"))?;
        let base = code.iter().find(|(n, _)| *n == symbol.section).map_or(0, |(_, place)| place.start);
        let value = base.wrapping_add(symbol.value).wrapping_add(plus).to_le_bytes();
        let to = at.checked_add(*width).and_then(|end| line.get_mut(at..end));
        to.ok_or_else(|| damaged("a place to fill in is behind the end"))?.copy_from_slice(&value[..*width]);
    }
    Ok(())
}
