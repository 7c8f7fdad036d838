//! Functions and USDT probes of an ELF file: 64 bits, little-endian. The file is a stranger's: every offset in it is checked.

use super::usdt;
use std::fs::File;
use std::io::Read;

/// Larger files are not read.
const MOST_BYTES: u64 = 512 << 20;
const MOST_SECTIONS: usize = 4096;

struct Section {
    name: String,
    kind: u32,
    address: u64,
    offset: usize,
    size: usize,
    link: usize,
}

/// Part of the file that is loaded: address, offset, length in the file, whether it is executed.
struct Segment {
    address: u64,
    offset: u64,
    len: u64,
    executed: bool,
}

const SYMTAB: u32 = 2;
pub(crate) const DYNSYM: u32 = 11;

/// A function that the file has.
pub(crate) struct Function<'a> {
    pub address: u64,
    pub length: u64,
    pub name: &'a str,
}

pub struct Elf {
    bytes: Vec<u8>,
    sections: Vec<Section>,
    segments: Vec<Segment>,
}

fn number<const N: usize>(b: &[u8], at: usize) -> Option<u64> {
    let part = b.get(at..at.checked_add(N)?)?;
    let mut all = [0; 8];
    all[..N].copy_from_slice(part);
    Some(u64::from_le_bytes(all))
}

fn text(b: &[u8], at: usize) -> Option<&str> {
    let rest = b.get(at..)?;
    let end = rest.iter().position(|c| *c == 0)?;
    std::str::from_utf8(&rest[..end]).ok()
}

impl Elf {
    pub fn read(file: &File) -> Result<Elf, String> {
        let words = |e: std::io::Error| format!("cannot be read: {e}");
        let len = file.metadata().map_err(words)?.len();
        if len > MOST_BYTES {
            return Err(format!("it has {len} bytes, more than are read for symbols"));
        }
        let mut bytes = Vec::new();
        file.take(MOST_BYTES).read_to_end(&mut bytes).map_err(words)?;
        Elf::parse(bytes).ok_or_else(|| "not an ELF file of 64 bits, little-endian".into())
    }

    pub fn parse(bytes: Vec<u8>) -> Option<Elf> {
        let b = &bytes[..];
        if b.get(..6)? != b"\x7fELF\x02\x01" {
            return None;
        }
        let place = |at| number::<8>(b, at).and_then(|v| usize::try_from(v).ok());
        let (phoff, shoff) = (place(0x20)?, place(0x28)?);
        let half = |at| number::<2>(b, at).map(|v| v as usize);
        let (phentsize, phnum, shentsize, shnum, names) =
            (half(0x36)?, half(0x38)?, half(0x3a)?, half(0x3c)?, half(0x3e)?);
        let mut segments = Vec::new();
        for i in 0..phnum {
            let at = phoff.checked_add(i * phentsize)?;
            if number::<4>(b, at)? == 1 {
                segments.push(Segment {
                    executed: number::<4>(b, at + 4)? & 1 != 0,
                    offset: number::<8>(b, at + 8)?,
                    address: number::<8>(b, at + 16)?,
                    len: number::<8>(b, at + 32)?,
                });
            }
        }
        let mut sections = Vec::new();
        for i in 0..shnum.min(MOST_SECTIONS) {
            let at = shoff.checked_add(i * shentsize)?;
            let field = |o| at.checked_add(o).and_then(place);
            sections.push((
                number::<4>(b, at)? as usize,
                Section {
                    name: String::new(),
                    kind: number::<4>(b, at.checked_add(4)?)? as u32,
                    address: number::<8>(b, at.checked_add(16)?)?,
                    offset: field(24)?,
                    size: field(32)?,
                    link: number::<4>(b, at.checked_add(40)?)? as usize,
                },
            ));
        }
        let strings = sections.get(names).map_or(0, |(_, s)| s.offset);
        let named = |(name, mut s): (usize, Section)| {
            s.name = strings.checked_add(name).and_then(|at| text(b, at)).unwrap_or("").into();
            s
        };
        let sections = sections.into_iter().map(named).collect();
        Some(Elf { bytes, sections, segments })
    }

    /// Offset in the file of what has this address.
    fn offset_of(&self, address: u64, executed: bool) -> Option<u64> {
        let s = self
            .segments
            .iter()
            .find(|s| (s.executed || !executed) && s.address <= address && address - s.address < s.len)?;
        (address - s.address).checked_add(s.offset)
    }

    /// Is what lies there in the file executed?
    pub fn is_code(&self, offset: u64) -> bool {
        let within = |s: &Segment| s.executed && s.offset <= offset && offset - s.offset < s.len;
        self.segments.iter().any(within)
    }

    /// All functions that tables of these kinds have, as they stand there.
    pub(crate) fn functions<'a>(&'a self, tables: &'a [u32]) -> impl Iterator<Item = Function<'a>> {
        const FUNC: u8 = 2;
        let wanted = self.sections.iter().filter(|s| tables.contains(&s.kind));
        let whole = wanted.map_while(|s| {
            let strings = self.sections.get(s.link)?.offset;
            Some((strings, self.bytes.get(s.offset..s.offset.checked_add(s.size)?)?))
        });
        let symbols = whole.flat_map(|(strings, table)| table.chunks_exact(24).map(move |s| (strings, s)));
        symbols.filter_map(|(strings, symbol)| {
            let defined = number::<2>(symbol, 6) != Some(0) && symbol[4] & 15 == FUNC;
            let at = strings.checked_add(number::<4>(symbol, 0)? as usize)?;
            let name = text(&self.bytes, at).filter(|_| defined)?;
            Some(Function { address: number::<8>(symbol, 8)?, length: number::<8>(symbol, 16)?, name })
        })
    }

    /// Offset in the file of a function's entry.
    pub fn function(&self, name: &str) -> Option<u64> {
        let found = self.functions(&[SYMTAB, DYNSYM]).find(|f| f.name == name)?;
        self.offset_of(found.address, true)
    }

    fn has(&self, section: &str) -> bool {
        self.sections.iter().any(|s| s.name == section)
    }

    /// Has the link editor of Go made it?
    pub fn is_go(&self) -> bool {
        self.sections.iter().any(|s| s.name.ends_with(".gopclntab") || s.name.ends_with(".go.buildinfo"))
    }

    /// In words, for a function that is not there.
    pub fn why_no(&self, name: &str) -> String {
        if self.has(".symtab") {
            return format!("the file has symbols, and no function {name}");
        }
        let compressed = if self.has(".gnu_debugdata") { "; its .gnu_debugdata is not read" } else { "" };
        format!("the file is stripped, and exports no function {name}{compressed}")
    }

    /// All USDT probes (`.note.stapsdt`).
    pub fn probes(&self) -> Vec<usdt::Probe> {
        self.sections.iter().filter(|s| s.name == ".note.stapsdt").flat_map(|s| self.probes_of(s)).collect()
    }

    fn probes_of(&self, section: &Section) -> Vec<usdt::Probe> {
        let base = self.sections.iter().find(|s| s.name == ".stapsdt.base").map_or(0, |s| s.address);
        let end = section.offset.saturating_add(section.size);
        let Some(mut notes) = self.bytes.get(section.offset..end) else { return Vec::new() };
        let mut out = Vec::new();
        while let Some(probe) = self.probe(&mut notes, base) {
            out.extend(probe);
        }
        out
    }

    /// The note that stands first; outer `None`: there is none any more.
    fn probe(&self, notes: &mut &[u8], base: u64) -> Option<Option<usdt::Probe>> {
        let b = *notes;
        let (owner, len, kind) = (number::<4>(b, 0)?, number::<4>(b, 4)? as usize, number::<4>(b, 8)?);
        let from = 12usize.checked_add((owner as usize).checked_next_multiple_of(4)?)?;
        let note = b.get(from..from.checked_add(len)?)?;
        *notes = b.get(from + len.checked_next_multiple_of(4)?..).unwrap_or(&[]);
        if b.get(12..20) != Some(b"stapsdt\0") || kind != 3 {
            return Some(None);
        }
        Some((|| {
            let (address, linked, semaphore) =
                (number::<8>(note, 0)?, number::<8>(note, 8)?, number::<8>(note, 16)?);
            // Prelinking moves the code, and the address of the base with it.
            let moved = if base == 0 { 0 } else { base.wrapping_sub(linked) };
            let provider = text(note, 24)?;
            let name = text(note, 24 + provider.len() + 1)?;
            let arguments = text(note, 24 + provider.len() + name.len() + 2).unwrap_or("");
            Some(usdt::Probe {
                provider: provider.into(),
                name: name.into(),
                arguments: arguments.into(),
                offset: self.offset_of(address.wrapping_add(moved), true)?,
                semaphore: match semaphore {
                    0 => 0,
                    at => self.offset_of(at.wrapping_add(moved), false)?,
                },
            })
        })())
    }
}
