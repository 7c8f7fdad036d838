//! Files with the source lines of a guest's kernel and modules, which are no part of the guest: each is the one of what runs there, or it is refused.
//!
//! A file is recognised by its build id, which the guest has in memory. A module's file has no addresses yet: its sections are found by the
//! module's symbols, all of which have to agree, also where the guest does not keep a module's build id.

use super::elf::{self, Elf};
use super::lines::{Found, Lines, Search};
use super::{Place, Symbols};
use crate::error::{Error, Result};
use crate::memory::Memory;
use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;

const MOST_NOTES: u64 = 1 << 16;
/// Of an error's list.
const MOST_NAMED: usize = 8;
const FUNCTION: u8 = 2;
const LOCAL_OR_GLOBAL: u8 = 1;

pub struct Debug {
    name: String,
    lines: Lines,
    /// Code of the file, and how far behind that it is in the guest.
    moved: Vec<(Range<u64>, u64)>,
}

/// A function by its name and where it begins, if the guest has a symbol for it; and what is in it.
type Within<'a> = (Option<(&'a str, u64)>, Vec<u64>);

/// `function@folder/file.c:12#2`, of which the function and the number behind the line may be missing.
pub struct Written<'a> {
    function: Option<&'a str>,
    path: &'a str,
    line: u64,
    /// Which of the line's places in the function, from 1 on.
    which: Option<usize>,
}

impl<'a> Written<'a> {
    /// `None`: it is no line, but something else.
    pub fn parse(text: &'a str) -> Option<Written<'a>> {
        let (path, line) = text.rsplit_once(':')?;
        let (line, which) = match line.split_once('#') {
            Some((line, n)) => (line, Some(n.parse().ok().filter(|n| *n > 0)?)),
            None => (line, None),
        };
        let digits = line.bytes().all(|b| b.is_ascii_digit());
        let line = line.parse().ok().filter(|l| digits && *l > 0)?;
        let (function, path) = match path.split_once('@') {
            Some((f, p)) if !f.is_empty() && !f.contains('/') => (Some(f), p),
            _ => (None, path),
        };
        (!path.is_empty()).then_some(Written { function, path, line, which })
    }
}

impl Debug {
    /// `memory` is that of a guest of Linux; without it the file is believed to be the guest's.
    pub fn open(path: &Path, symbols: &Symbols, memory: Option<&Memory>) -> Result<Debug> {
        let name = path.display().to_string();
        let source = elf::open(path)?;
        Debug::read(&name, source.as_ref(), symbols, memory).map_err(elf::of(path))
    }

    pub fn read(
        name: &str,
        source: &dyn elf::Source,
        symbols: &Symbols,
        memory: Option<&Memory>,
    ) -> Result<Debug> {
        let elf = Elf::read(source)?;
        let module = elf.relocatable.then(|| module_name(&elf, name));
        if let Some(memory) = memory {
            same_build(&elf, symbols, memory, module.as_deref())?;
        }
        let lines = Lines::read(&elf)?.ok_or_else(|| {
            Error::Unsupported(
                "the file has no source lines (.debug_line): the one with debug information is needed".into(),
            )
        })?;
        let moved = match module {
            Some(module) => sections_of(&elf, &lines, &module, symbols)?,
            None => {
                let by = shift(&elf, symbols, memory.is_some())?;
                lines.code.iter().map(|(_, place)| (place.clone(), by)).collect()
            }
        };
        Ok(Debug { name: name.to_owned(), lines, moved })
    }

    fn moved(&self, address: u64) -> Option<u64> {
        let (_, by) = self.moved.iter().find(|(place, _)| place.contains(&address))?;
        Some(address.wrapping_add(*by))
    }
}

/// Where a line is in the guest.
pub fn place(files: &[Debug], symbols: &Symbols, text: &str, written: &Written) -> Result<Place> {
    let wrong = |why: String| Err(Error::Unsupported(format!("{text}: {why}")));
    if files.is_empty() {
        let release = symbols.release();
        let release = if release.is_empty() { "RELEASE" } else { release };
        return wrong(format!(
            "a source line needs the debug file of the guest's kernel or module (--debug, kpat_guest_debug_file): /usr/lib/debug/boot/vmlinux-{release} \
             of Debian's package linux-image-{release}-dbg, or vmlinux in the folder where the kernel was built"
        ));
    }
    let mut search = Search::new(written.path, written.line);
    for f in files {
        f.lines.search(&mut search, &|a| f.moved(a))?;
    }
    let unread = match search.unread {
        0 => String::new(),
        n => format!(" ({n} parts of the debug file cannot be read)"),
    };
    let (path, rows) = match search.found() {
        Found::Rows { path, rows } => (path, rows),
        Found::NoFile => {
            let mut like = Vec::new();
            for f in files {
                like.extend(f.lines.like(&search)?);
            }
            let names: Vec<&str> = files.iter().map(|f| f.name.as_str()).collect();
            let like = if like.is_empty() { String::new() } else { format!("; there is {}", listed(&like)) };
            return wrong(format!(
                "no code of a file {} is in {}{like}{unread}",
                written.path,
                names.join(", ")
            ));
        }
        Found::Files(all) => {
            return wrong(format!(
                "{} are several files; name more of the path: {}",
                written.path,
                listed(&all)
            ));
        }
        Found::NoCode { path, next, last } => {
            return wrong(match next {
                Some(next) => {
                    format!(
                        "{path} has no code at line {}; the next line with code is {next}{unread}",
                        written.line
                    )
                }
                None => format!(
                    "{path} has no code at line {}; the last line with code is {last}{unread}",
                    written.line
                ),
            });
        }
    };
    // Those in each function; those that the guest has no symbol for have nothing to be told apart by.
    let mut functions: Vec<Within> = Vec::new();
    for row in rows {
        let function = symbols.at(row).map(|(s, offset)| (s.name, row - offset));
        match functions.iter_mut().find(|(f, _)| *f == function) {
            Some((_, own)) => own.push(row),
            None => functions.push((function, vec![row])),
        }
    }
    if functions.iter().any(|(f, _)| f.is_some()) {
        functions.retain(|(f, _)| f.is_some());
    }
    // What a function seldom does the compiler puts elsewhere, and comes there by way of the function.
    let (cold, mut functions): (Vec<_>, Vec<_>) = {
        let names: Vec<&str> = functions.iter().filter_map(|(f, _)| f.map(|(name, _)| name)).collect();
        let elsewhere = |name: &str| name.split_once(".cold").is_some_and(|(hot, _)| names.contains(&hot));
        let cold: Vec<bool> =
            functions.iter().map(|(f, _)| f.is_some_and(|(name, _)| elsewhere(name))).collect();
        let mut cold = cold.into_iter();
        functions.into_iter().partition(|_| cold.next().unwrap_or(false))
    };
    for (part, rows) in cold {
        let hot = part.and_then(|(name, _)| name.split_once(".cold")).map(|(hot, _)| hot);
        if let Some((_, own)) = functions.iter_mut().find(|(f, _)| f.map(|(name, _)| name) == hot) {
            own.extend(rows);
        }
    }
    let all: Vec<String> = functions.iter().map(|(_, rows)| symbols.name(rows[0])).collect();
    if let Some(wanted) = written.function {
        // Several names may be of one function.
        let wanted_at: Vec<u64> = symbols.table().named(wanted).iter().map(|s| s.address).collect();
        functions.retain(|(f, _)| f.is_some_and(|(_, start)| wanted_at.contains(&start)));
        if functions.is_empty() {
            return wrong(format!("the line has no code in {wanted}; it has some at {}", listed(&all)));
        }
    }
    let [(function, rows)] = functions.as_mut_slice() else {
        return wrong(format!(
            "the line has code in {} functions; name one of these places: {}",
            all.len(),
            listed(&all)
        ));
    };
    let which = written.which.unwrap_or(1);
    if which > rows.len() {
        let own: Vec<String> = rows.iter().map(|row| symbols.name(*row)).collect();
        return wrong(format!("the line has fewer places there: {}", listed(&own)));
    }
    let address = rows.remove(which - 1);
    Ok(Place {
        address,
        begins: function.is_some_and(|(_, start)| start == address),
        line: Some(format!("{path}:{}", written.line)),
        further: std::mem::take(rows),
    })
}

/// `function+0x10`.
pub fn at(name: &str, offset: u64) -> String {
    if offset == 0 { name.to_owned() } else { format!("{name}+{offset:#x}") }
}

fn listed(all: &[String]) -> String {
    let more = all.len().saturating_sub(MOST_NAMED);
    let more = if more == 0 { String::new() } else { format!(" and {more} more") };
    format!("{}{more}", all[..all.len().min(MOST_NAMED)].join(", "))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// Is the kernel, or the module, in memory what the file is of?
fn same_build(elf: &Elf, symbols: &Symbols, memory: &Memory, module: Option<&str>) -> Result<()> {
    let (own, whose) = match module {
        None => (Some(kernels(symbols, memory)?), "the guest's kernel".to_owned()),
        Some(module) => (modules(symbols, memory, module), format!("the guest's module {module}")),
    };
    let Some(own) = own else { return Ok(()) };
    let theirs = elf.build_id().ok_or_else(|| {
        Error::Unsupported("the file has no build id, so that nothing says of which kernel it is".into())
    })?;
    if own != theirs {
        return Err(Error::Unsupported(format!(
            "the file is of another build: its build id is {}, {whose} has {}",
            hex(&theirs),
            hex(&own)
        )));
    }
    Ok(())
}

/// Between the kernel's own marks.
fn kernels(symbols: &Symbols, memory: &Memory) -> Result<Vec<u8>> {
    let (Some(from), Some(to)) = (symbols.address("__start_notes"), symbols.address("__stop_notes")) else {
        return Err(Error::Unsupported("the guest's kernel does not say where its build id is".into()));
    };
    let mut notes = vec![0; to.saturating_sub(from).min(MOST_NOTES) as usize];
    memory.read(from, &mut notes)?;
    elf::build_id(&notes)
        .ok_or_else(|| Error::Unsupported("the guest's kernel has no build id in its memory".into()))
}

/// Behind what `/sys/module/NAME/notes` shows. `None`: the guest keeps no such thing.
fn modules(symbols: &Symbols, memory: &Memory, module: &str) -> Option<Vec<u8>> {
    const MOST: u64 = 8;
    const NAME: &[u8] = b".note.gnu.build-id";
    let module = symbols.modules().iter().find(|m| m.name == module)?;
    let offset = |path: &str| symbols.offset(path).ok();
    let each = u64::from(symbols.btf()?.size_of(symbols.structure("bin_attribute")?));
    let all = memory.u64_at(module.at.wrapping_add(offset("module.notes_attrs")?)).ok()?;
    let first = all.wrapping_add(offset("module_notes_attrs.attrs")?);
    let (name, from, size) =
        (offset("bin_attribute.attr.name")?, offset("bin_attribute.private")?, offset("bin_attribute.size")?);
    // How many there are is kept in other ways by other kernels: the last is the one whose name cannot be read.
    (0..MOST).map(|n| first.wrapping_add(n * each)).find_map(|at| {
        let word = |offset: u64| memory.u64_at(at.wrapping_add(offset)).ok();
        if memory.string_at(word(name)?, NAME.len() + 1).ok()? != NAME {
            return None;
        }
        let mut notes = vec![0; word(size)?.min(MOST_NOTES) as usize];
        memory.read(word(from)?, &mut notes).ok()?;
        elf::build_id(&notes)
    })
}

/// How far behind the file's addresses the guest's kernel is.
fn shift(elf: &Elf, symbols: &Symbols, linux: bool) -> Result<u64> {
    let table = elf.symbols()?;
    let text =
        table.as_ref().and_then(|t| t.iter().find(|s| s.section != 0 && s.name == b"_text").map(|s| s.value));
    match (text, symbols.address("_text")) {
        (Some(file), Some(guest)) => Ok(guest.wrapping_sub(file)),
        _ if linux => Err(Error::Unsupported(
            "without a symbol _text nothing says where the file's code is in the guest".into(),
        )),
        _ => Ok(0),
    }
}

/// As the module says itself, else as its file is called.
fn module_name(elf: &Elf, file: &str) -> String {
    let facts = elf.named(".modinfo").and_then(|s| elf.content(s).ok()).unwrap_or_default();
    let own = facts.split(|b| *b == 0).find_map(|fact| fact.strip_prefix(b"name="));
    let file = file.rsplit('/').next().unwrap_or(file);
    let file = file.strip_suffix(".debug").unwrap_or(file);
    own.map_or_else(
        || file.strip_suffix(".ko").unwrap_or(file).replace('-', "_"),
        |name| String::from_utf8_lossy(name).into_owned(),
    )
}

/// Where a module's sections with code are in the guest, by its functions.
fn sections_of(elf: &Elf, lines: &Lines, module: &str, symbols: &Symbols) -> Result<Vec<(Range<u64>, u64)>> {
    if !symbols.modules().iter().any(|m| m.name == module) {
        return Err(Error::Unsupported(format!("the guest has no module {module} loaded")));
    }
    let table = elf.symbols()?.ok_or_else(|| Error::Unsupported("the file has no symbols".into()))?;
    // Names that several functions of the module have say nothing.
    let mut once: HashMap<&[u8], Option<(usize, u64)>> = HashMap::new();
    for s in table.iter().filter(|s| s.kind == FUNCTION && s.binding <= LOCAL_OR_GLOBAL && !s.name.is_empty())
    {
        once.entry(s.name).and_modify(|found| *found = None).or_insert(Some((s.section, s.value)));
    }
    let mut starts: HashMap<usize, (u64, &[u8])> = HashMap::new();
    let mut all: Vec<_> = once.iter().filter_map(|(name, found)| Some((*name, (*found)?))).collect();
    all.sort_unstable();
    for (name, (section, value)) in all {
        let Ok(text) = std::str::from_utf8(name) else { continue };
        let mut found = symbols.table().named(text);
        found.retain(|s| s.module == Some(module));
        let [symbol] = found.as_slice() else { continue };
        let start = symbol.address.wrapping_sub(value);
        let (known, by) = *starts.entry(section).or_insert((start, name));
        if known != start {
            return Err(Error::Unsupported(format!(
                "the file is of another build of the module {module}: {} and {text} are not as far from each other as in the guest",
                String::from_utf8_lossy(by)
            )));
        }
    }
    let moved: Vec<_> = lines
        .code
        .iter()
        .filter_map(|(n, place)| Some((place.clone(), starts.get(n)?.0.wrapping_sub(place.start))))
        .collect();
    if moved.is_empty() {
        return Err(Error::Unsupported(format!("no function of the file is in the guest's module {module}")));
    }
    Ok(moved)
}
