//! An ELF file, section by section. A kernel's with its debug information has up to a gigabyte: nothing is read but the headers and the sections that are asked for.
//!
//! The file may be anybody's: what it says of its own sizes is believed as far as the file is long, and up to [`LONGEST`].

use crate::error::{Error, Result};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Of a section, also of one that was compressed: the lines of a kernel with everything built in take a tenth of it.
pub const LONGEST: u64 = 256 << 20;
const HEADER: usize = 64;
const SECTION: usize = 64;
const MOST_SECTIONS: u64 = 1 << 20;
const LONGEST_NAME: usize = 256;
pub const NOBITS: u32 = 8;
pub const NOTE: u32 = 7;
const SYMTAB: u32 = 2;
const DYNSYM: u32 = 11;
pub const WRITE: u64 = 1;
pub const ALLOC: u64 = 2;
pub const EXECUTE: u64 = 4;
const COMPRESSED: u64 = 1 << 11;

/// What a file is read from.
pub trait Source {
    fn len(&self) -> u64;
    fn read_at(&self, at: u64, to: &mut [u8]) -> io::Result<()>;

    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Source for &[u8] {
    fn len(&self) -> u64 {
        <[u8]>::len(self) as u64
    }

    fn read_at(&self, at: u64, to: &mut [u8]) -> io::Result<()> {
        let from = usize::try_from(at).ok().and_then(|at| self.get(at..)?.get(..to.len()));
        to.copy_from_slice(from.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

struct OnDisk {
    file: File,
    len: u64,
}

impl Source for OnDisk {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&self, at: u64, to: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(to, at)
    }
}

struct InMemory(Vec<u8>);

impl Source for InMemory {
    fn len(&self) -> u64 {
        self.0.len() as u64
    }

    fn read_at(&self, at: u64, to: &mut [u8]) -> io::Result<()> {
        self.0.as_slice().read_at(at, to)
    }
}

/// A file; what is no regular one (a pipe) is read as a whole.
pub fn open(path: &Path) -> Result<Box<dyn Source>> {
    let wrong = || Error::io(path.display().to_string());
    let file = File::open(path).map_err(wrong())?;
    let meta = file.metadata().map_err(wrong())?;
    if meta.is_file() {
        return Ok(Box::new(OnDisk { file, len: meta.len() }));
    }
    let mut bytes = Vec::new();
    file.take(LONGEST).read_to_end(&mut bytes).map_err(wrong())?;
    Ok(Box::new(InMemory(bytes)))
}

/// `len` bytes at `at`, of which the file must have all.
pub fn bytes(source: &dyn Source, at: u64, len: u64) -> Result<Vec<u8>> {
    if at.checked_add(len).is_none_or(|end| end > source.len()) {
        return Err(damaged("it is cut short"));
    }
    if len > LONGEST {
        return Err(Error::Unsupported(format!(
            "a part of the file has {len} bytes; at most {LONGEST} are read"
        )));
    }
    let mut to = vec![0; len as usize];
    source.read_at(at, &mut to).map_err(Error::io("the file"))?;
    Ok(to)
}

/// Of which file an error is.
pub fn of(path: &Path) -> impl Fn(Error) -> Error {
    move |e| Error::Unsupported(format!("{}: {e}", path.display()))
}

fn damaged(why: &str) -> Error {
    Error::damaged("an ELF file", why)
}

/// `len` bytes of `b` as a number; `None`: it has not so many.
pub fn number(b: &[u8], at: usize, len: usize) -> Option<u64> {
    Some(b.get(at..at.checked_add(len)?)?.iter().rev().fold(0, |v, b| v << 8 | u64::from(*b)))
}

#[derive(Debug, Clone)]
pub struct Section {
    pub name: String,
    pub kind: u32,
    pub flags: u64,
    pub address: u64,
    at: u64,
    pub size: u64,
    link: u32,
    pub info: u32,
}

pub struct Elf<'s> {
    source: &'s dyn Source,
    /// Its addresses are offsets in sections, and what names others is still to be filled in: a module, an object.
    pub relocatable: bool,
    pub sections: Vec<Section>,
}

pub struct Symbol<'t> {
    pub name: &'t [u8],
    pub value: u64,
    /// 1: data, 2: a function, 3: a section.
    pub kind: u8,
    pub binding: u8,
    /// 0: of another file.
    pub section: usize,
}

/// A file's table of symbols.
pub struct SymbolTable {
    entries: Vec<u8>,
    names: Vec<u8>,
}

impl SymbolTable {
    const ENTRY: usize = 24;

    pub fn get(&self, n: usize) -> Option<Symbol<'_>> {
        let e = self.entries.get(n.checked_mul(Self::ENTRY)?..)?.get(..Self::ENTRY)?;
        let name = self.names.get(number(e, 0, 4)? as usize..).unwrap_or_default();
        let end = memchr::memchr(0, name).unwrap_or(0);
        Some(Symbol {
            name: &name[..end],
            value: number(e, 8, 8)?,
            kind: e[4] & 15,
            binding: e[4] >> 4,
            section: number(e, 6, 2)? as usize,
        })
    }

    pub fn iter(&self) -> impl Iterator<Item = Symbol<'_>> {
        (0..self.entries.len() / Self::ENTRY).filter_map(|n| self.get(n))
    }
}

impl<'s> Elf<'s> {
    pub const MAGIC: &'static [u8] = b"\x7fELF";

    pub fn read(source: &'s dyn Source) -> Result<Elf<'s>> {
        let h = bytes(source, 0, HEADER as u64)?;
        if !h.starts_with(Self::MAGIC) || h[4..6] != [2, 1] {
            return Err(Error::Unsupported("the file is no ELF of 64 bits, little endian".into()));
        }
        let field = |at, len| number(&h, at, len).unwrap_or(0);
        let (kind, table, mut count, mut names) = (field(16, 2), field(40, 8), field(60, 2), field(62, 2));
        if table == 0 {
            return Ok(Elf { source, relocatable: kind == 1, sections: Vec::new() });
        }
        // Numbers that are too large for the header are in the first section's.
        let first = bytes(source, table, SECTION as u64)?;
        if count == 0 {
            count = number(&first, 32, 8).unwrap_or(0);
        }
        if names == 0xffff {
            names = number(&first, 40, 4).unwrap_or(0);
        }
        if count > MOST_SECTIONS {
            return Err(damaged("it has too many sections"));
        }
        let headers = bytes(source, table, count * SECTION as u64)?;
        let mut sections = Vec::new();
        let mut named = Vec::new();
        for h in headers.chunks_exact(SECTION) {
            let field = |at, len| number(h, at, len).unwrap_or(0);
            named.push(field(0, 4) as usize);
            sections.push(Section {
                name: String::new(),
                kind: field(4, 4) as u32,
                flags: field(8, 8),
                address: field(16, 8),
                at: field(24, 8),
                size: field(32, 8),
                link: field(40, 4) as u32,
                info: field(44, 4) as u32,
            });
        }
        let mut elf = Elf { source, relocatable: kind == 1, sections };
        if let Some(table) = elf.sections.get(names as usize)
            && let Ok(names) = elf.raw(table)
        {
            for (section, at) in elf.sections.iter_mut().zip(named) {
                let rest = names.get(at..).unwrap_or_default();
                let rest = &rest[..rest.len().min(LONGEST_NAME)];
                let end = memchr::memchr(0, rest).unwrap_or(rest.len());
                section.name = String::from_utf8_lossy(&rest[..end]).into_owned();
            }
        }
        Ok(elf)
    }

    pub fn named(&self, name: &str) -> Option<&Section> {
        self.sections.iter().find(|s| s.name == name && s.kind != NOBITS)
    }

    /// As it is in the file.
    fn raw(&self, section: &Section) -> Result<Vec<u8>> {
        if section.kind == NOBITS { Ok(Vec::new()) } else { bytes(self.source, section.at, section.size) }
    }

    /// What a section has, unpacked where it is compressed.
    pub fn content(&self, section: &Section) -> Result<Vec<u8>> {
        const ZLIB: u64 = 1;
        const ZSTD: u64 = 2;
        const HEADER: usize = 24;
        let raw = self.raw(section)?;
        if section.flags & COMPRESSED == 0 {
            return Ok(raw);
        }
        let cut = || damaged("a compressed section is cut short");
        let (kind, size) =
            (number(&raw, 0, 4).ok_or_else(cut)?, number(&raw, 8, 8).ok_or_else(cut)?.min(LONGEST));
        let packed = raw.get(HEADER..).ok_or_else(cut)?;
        let mut to = Vec::new();
        let unpacked = match kind {
            ZLIB => flate2::read::ZlibDecoder::new(packed).take(size).read_to_end(&mut to),
            ZSTD => {
                zstd::Decoder::with_buffer(packed).and_then(|packed| packed.take(size).read_to_end(&mut to))
            }
            _ => {
                return Err(Error::Unsupported(format!(
                    "{} is compressed in a way that is not known ({kind})",
                    section.name
                )));
            }
        };
        if unpacked.is_err() || to.len() as u64 != size {
            return Err(damaged("a compressed section cannot be unpacked"));
        }
        Ok(to)
    }

    /// The table of all symbols, else the one for the dynamic linker; `None`: it has neither.
    pub fn symbols(&self) -> Result<Option<SymbolTable>> {
        let of_kind = |k: u32| self.sections.iter().find(|s| s.kind == k);
        let Some(table) = of_kind(SYMTAB).or_else(|| of_kind(DYNSYM)) else { return Ok(None) };
        let names = self.sections.get(table.link as usize);
        let names = names.ok_or_else(|| damaged("its table of symbols is cut short"))?;
        Ok(Some(SymbolTable { entries: self.raw(table)?, names: self.raw(names)? }))
    }

    /// The build id, as the linker left it.
    pub fn build_id(&self) -> Option<Vec<u8>> {
        let notes = self.sections.iter().filter(|s| s.kind == NOTE);
        notes.filter_map(|s| self.content(s).ok()).find_map(|b| build_id(&b))
    }
}

/// The build id among notes.
pub fn build_id(mut notes: &[u8]) -> Option<Vec<u8>> {
    const HEADER: usize = 12;
    const BUILD_ID: u64 = 3;
    loop {
        let (name, len, kind) = (number(notes, 0, 4)?, number(notes, 4, 4)?, number(notes, 8, 4)?);
        let at = HEADER.checked_add(usize::try_from(name).ok()?.checked_next_multiple_of(4)?)?;
        let id = notes.get(at..at.checked_add(len as usize)?)?;
        if kind == BUILD_ID && notes[HEADER..].starts_with(b"GNU\0") && name == 4 && !id.is_empty() {
            return Some(id.to_vec());
        }
        notes = notes.get(at.checked_add(id.len().checked_next_multiple_of(4)?)?..)?;
    }
}
