//! A guest's symbols: of its kernel and modules out of its memory, or out of a file.

mod debug;
pub mod elf;
pub mod files;
pub mod image;
pub mod kallsyms;
pub mod lines;
mod modules;
pub mod table;
mod types;

use crate::error::{Error, Result};
use crate::memory::{Memory, Space};
use crate::registers::Registers;
use debug::{Debug, Written};
use image::Image;
pub use kallsyms::{Layout, Offsets};
use kpat_btf::{Btf, kind};
pub use modules::Module;
use std::collections::HashMap;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
pub use table::{Builder, Symbol, Table};
pub use types::{Function, Kind};

/// A banner that is longer is cut.
const BANNER: usize = 512;

/// A member of a structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// In bytes.
    pub at: u64,
    /// In bytes; 0: not known.
    pub size: u64,
    /// An array or a structure: it is there itself, not a number.
    pub inside: bool,
    /// Of a bit field: how many bits from there on, and which is the first. No bits: a whole number.
    pub shift: u8,
    pub bits: u8,
    pub kind: Kind,
}

/// Where something is that was named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub address: u64,
    /// It is where a function begins, and was not named by its address or an offset.
    pub begins: bool,
    /// `/src/net/ipv4/ip_input.c:523`, with the whole path, if a source line was named.
    pub line: Option<String>,
    /// Where else the function has code of that line: another copy of an inlined function, another way out of a branch.
    pub further: Vec<u64>,
}

/// How long each step took.
#[derive(Clone, Copy, Debug, Default)]
pub struct Times {
    pub place: Duration,
    pub image: Duration,
    pub kallsyms: Duration,
    pub btf: Duration,
    pub modules: Duration,
}

pub struct Symbols {
    table: Table,
    modules: Vec<Module>,
    base: u64,
    end: u64,
    layout: Option<Layout>,
    banner: String,
    btf: Option<Btf>,
    types: Mutex<HashMap<String, Option<u32>>>,
    debug: Mutex<Vec<Debug>>,
    times: Times,
}

impl Symbols {
    /// Out of the guest's memory. Also makes the kernel's own page tables those that `memory` reads by.
    pub fn read(memory: &Memory, registers: &Registers) -> Result<Symbols> {
        let mut times = Times::default();
        let mut clock = Instant::now();
        let mut lap = || std::mem::replace(&mut clock, Instant::now()).elapsed();
        let (base, end) = image::place(memory, registers)?;
        times.place = lap();
        let image = Image::read(memory, base, end)?;
        times.image = lap();
        let mut builder = Builder::default();
        let layout = kallsyms::read(&image.bytes, image.base, base, &mut builder)?;
        times.kallsyms = lap();
        let kernel = builder.build(Vec::new());
        let find = |name: &str| kernel.named(name).first().map(|s| s.address);
        if let Some(root) = find("init_top_pgt") {
            let levels = memory.kernel_space().levels;
            memory.set_kernel_space(Space::new(memory.translate(root)?.physical, levels));
        }
        let banner =
            find("linux_banner").and_then(|at| memory.string_at(at, BANNER).ok()).unwrap_or_default();
        let btf = read_btf(&image, find("__start_BTF"), find("__stop_BTF"));
        times.btf = lap();
        // Names are copied once more, into one table with those of modules.
        let mut all = Builder::default();
        kernel.iter().for_each(|s| all.add(s.address, s.kind as u8, s.name.as_bytes(), 0));
        let modules = match (&btf, find("modules")) {
            (Some(btf), Some(list)) => modules::read(memory, btf, list, Some(&mut all))?,
            _ => Vec::new(),
        };
        times.modules = lap();
        Ok(Symbols {
            table: all.build(modules.iter().map(|m| m.name.clone()).collect()),
            modules,
            base,
            end,
            layout: Some(layout),
            banner: String::from_utf8_lossy(&banner).trim().to_owned(),
            btf,
            types: Mutex::default(),
            debug: Mutex::default(),
            times,
        })
    }

    /// Out of a System.map, an `nm` list or an ELF file, for a kernel without a table of its own. `base` is where `_text` is in the
    /// guest; `None`: the file's addresses are right.
    pub fn from_file(path: &Path, base: Option<u64>) -> Result<Symbols> {
        let mut builder = Builder::default();
        files::read(elf::open(path)?.as_ref(), &mut builder).map_err(elf::of(path))?;
        let mut table = builder.build(Vec::new());
        let first = |t: &Table| t.named("_text").first().or(t.named("_stext").first()).map(|s| s.address);
        if let (Some(base), Some(text)) = (base, first(&table)) {
            let mut moved = Builder::default();
            let shift = base.wrapping_sub(text);
            // Per-CPU symbols of older kernels begin at zero, and stay.
            let place = |a: u64| if a >= text { a.wrapping_add(shift) } else { a };
            table.iter().for_each(|s| moved.add(place(s.address), s.kind as u8, s.name.as_bytes(), 0));
            table = moved.build(Vec::new());
        }
        let base = first(&table).or_else(|| table.iter().next().map(|s| s.address)).unwrap_or(0);
        let end = table.iter().last().map_or(base, |s| s.address);
        Ok(Symbols { table, base, end, ..Symbols::none() })
    }

    /// For a guest of which nothing is known but addresses.
    pub fn none() -> Symbols {
        Symbols {
            table: Builder::default().build(Vec::new()),
            modules: Vec::new(),
            base: 0,
            end: 0,
            layout: None,
            banner: String::new(),
            btf: None,
            types: Mutex::default(),
            debug: Mutex::default(),
            times: Times::default(),
        }
    }

    /// Where `_text` is.
    pub fn base(&self) -> u64 {
        self.base
    }

    /// Behind the image.
    pub fn end(&self) -> u64 {
        self.end
    }

    /// What was found of the kernel's table; `None`: the symbols are a file's.
    pub fn layout(&self) -> Option<Layout> {
        self.layout
    }

    /// `Linux version ...`.
    pub fn banner(&self) -> &str {
        &self.banner
    }

    /// `6.12.9-amd64`, out of the banner.
    pub fn release(&self) -> &str {
        self.banner.strip_prefix("Linux version ").and_then(|b| b.split(' ').next()).unwrap_or("")
    }

    pub fn times(&self) -> Times {
        self.times
    }

    pub fn table(&self) -> &Table {
        &self.table
    }

    pub fn modules(&self) -> &[Module] {
        &self.modules
    }

    /// The modules that are loaded at this moment. `None`: the guest's types do not say where they are.
    pub fn modules_now(&self, memory: &Memory) -> Option<Vec<Module>> {
        modules::read(memory, self.btf.as_ref()?, self.address("modules")?, None).ok()
    }

    /// The structure of the module whose code or data an address is.
    pub fn module_at(&self, address: u64) -> Option<u64> {
        self.modules.iter().find(|m| m.contains(address)).map(|m| m.at)
    }

    /// The code that was at an address outside the kernel's image is none of these modules': it went with its own.
    pub(crate) fn is_gone(&self, address: u64, now: &[Module]) -> bool {
        !(self.base..self.end).contains(&address) && !now.iter().any(|m| m.contains(address))
    }

    /// Of the modules that had one of these addresses when the symbols were read, those that are not there any more, or elsewhere, or are there and
    /// nothing `is_there` of what was put at those addresses: loaded again, to the same place.
    pub fn unloaded(&self, memory: &Memory, addresses: &[u64], is_there: impl Fn(u64) -> bool) -> Vec<&str> {
        let mut with: Vec<&Module> =
            self.modules.iter().filter(|m| addresses.iter().any(|a| m.contains(*a))).collect();
        let Some(now) = (!with.is_empty()).then(|| self.modules_now(memory)).flatten() else {
            return Vec::new();
        };
        let stays = |m: &Module| {
            now.iter().any(|n| n.name == m.name && n.base == m.base)
                && addresses.iter().any(|a| m.contains(*a) && is_there(*a))
        };
        with.retain(|m| !stays(m));
        with.into_iter().map(|m| m.name.as_str()).collect()
    }

    /// The address of the only symbol of that name, or of the first.
    pub fn address(&self, name: &str) -> Option<u64> {
        self.table.named(name).first().map(|s| s.address)
    }

    /// What is at an address: the symbol before it and how far behind that it is. `None`: it is in no known code or data.
    pub fn at(&self, address: u64) -> Option<(Symbol<'_>, u64)> {
        let module = self.modules.iter().find(|m| m.contains(address));
        if module.is_none() && !(self.base..self.end).contains(&address) {
            return None;
        }
        let s = self.table.before(address)?;
        (s.module == module.map(|m| m.name.as_str())).then(|| (s, address - s.address))
    }

    /// How the place is called: `function+0x1a`, or the address where none is known.
    pub fn name(&self, address: u64) -> String {
        self.at(address).map_or_else(|| format!("{address:#x}"), |(s, offset)| debug::at(s.name, offset))
    }

    /// Takes source lines from a file with debug information: the kernel's vmlinux, or a module. It has to be of what runs in the guest; without `memory`
    /// it is believed to be.
    pub fn debug_file(&self, path: &Path, memory: Option<&Memory>) -> Result<()> {
        let file = Debug::open(path, self, memory)?;
        self.debug.lock().unwrap_or_else(PoisonError::into_inner).push(file);
        Ok(())
    }

    /// The address of what [`Symbols::place`] takes.
    pub fn parse(&self, text: &str) -> Result<u64> {
        self.place(text).map(|p| p.address)
    }

    /// `function+0x1a`, `function`, an address in hexadecimal digits; `file.c:12`, with as much of the path as tells the file from others, or `function@file.c:12` for
    /// a line that several functions have; `#2` behind it is the second place of the line in the function.
    pub fn place(&self, text: &str) -> Result<Place> {
        let hex = |t: &str| t.strip_prefix("0x").and_then(|h| u64::from_str_radix(h, 16).ok());
        let exact = |address| Place { address, begins: false, line: None, further: Vec::new() };
        if let Some(a) = hex(text) {
            return Ok(exact(a));
        }
        if let Some(line) = Written::parse(text) {
            return debug::place(
                &self.debug.lock().unwrap_or_else(PoisonError::into_inner),
                self,
                text,
                &line,
            );
        }
        let (name, offset) = match text.rsplit_once('+') {
            Some((n, o)) => {
                let offset = hex(o).or_else(|| o.parse().ok());
                (n, Some(offset.ok_or_else(|| Error::Unsupported(format!("{text}: {o} is no number")))?))
            }
            None => (text, None),
        };
        let found = self.table.named(name);
        match found.as_slice() {
            [] => Err(Error::Unsupported(format!("the guest has no symbol {name}"))),
            [s] => {
                let address = s.address.wrapping_add(offset.unwrap_or(0));
                let code = |kind: char| matches!(kind, 't' | 'T' | 'w' | 'W');
                match self.table.before(address).filter(|other| code(s.kind) && other.address != s.address) {
                    Some(other) => Err(Error::Unsupported(format!(
                        "{text} is not in {name}, but in {}",
                        debug::at(other.name, address - other.address)
                    ))),
                    None => Ok(Place { begins: offset.is_none(), ..exact(address) }),
                }
            }
            several => Err(Error::Unsupported(format!(
                "the guest has {} symbols {name}; name an address, such as {:#x}",
                several.len(),
                several[0].address
            ))),
        }
    }

    /// The kernel's description of its types.
    pub fn btf(&self) -> Option<&Btf> {
        self.btf.as_ref()
    }

    fn structure(&self, name: &str) -> Option<u32> {
        let mut known = self.types.lock().unwrap_or_else(PoisonError::into_inner);
        *known.entry(name.to_owned()).or_insert_with(|| self.btf.as_ref()?.find(kind::STRUCT, name))
    }

    /// Byte offset and size of a member, such as `task_struct.comm` or `sk_buff.len`. Size 0: not known.
    pub fn member(&self, path: &str) -> Result<(u64, u64)> {
        self.field(path).map(|f| (f.at, f.size))
    }

    /// A member with what is known of its kind.
    pub fn field(&self, path: &str) -> Result<Field> {
        let missing = || {
            Error::Unsupported(format!("the guest's kernel has no {path}, or does not describe its types"))
        };
        let (name, members) = path.split_once('.').ok_or_else(missing)?;
        let btf = self.btf.as_ref().ok_or_else(missing)?;
        let field = btf.field(self.structure(name).ok_or_else(missing)?, members).ok_or_else(missing)?;
        let id = field.type_id;
        let kind = btf.get(btf.strip(id)).map_or(0, |t| t.kind);
        let size = match btf.array(btf.strip(id)) {
            Some((element, n)) if btf.get(btf.strip(id)).is_some_and(|t| t.kind == kind::ARRAY) => {
                u64::from(btf.size_of(element)) * u64::from(n)
            }
            _ => btf.size_of(id).into(),
        };
        Ok(Field {
            at: (field.bit_offset / 8).into(),
            size,
            inside: matches!(kind, kind::ARRAY | kind::STRUCT | kind::UNION),
            shift: (field.bit_offset % 8) as u8,
            bits: field.bits,
            kind: types::kind_of(btf, id),
        })
    }

    /// The offset alone.
    pub fn offset(&self, path: &str) -> Result<u64> {
        self.member(path).map(|(at, _)| at)
    }
}

/// Between the kernel's own marks, else where it looks like BTF with a `task_struct`.
fn read_btf(image: &Image, start: Option<u64>, stop: Option<u64>) -> Option<Btf> {
    if let (Some(start), Some(stop)) = (start, stop)
        && let Some(bytes) = image.at(start, usize::try_from(stop.checked_sub(start)?).ok()?)
        && let Ok(b) = Btf::parse("vmlinux", bytes, None)
    {
        return Some(b);
    }
    const MAGIC: &[u8] = &[0x9f, 0xeb, 1, 0];
    let mut found = memchr::memmem::find_iter(&image.bytes, MAGIC).filter_map(|at| {
        let b = Btf::parse("vmlinux", &image.bytes[at..], None).ok()?;
        b.find(kind::STRUCT, "task_struct").map(|_| b)
    });
    found.next()
}

#[cfg(test)]
mod debug_tests;
