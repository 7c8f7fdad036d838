//! Just enough ELF to find and patch variables and code in our own BPF object before libbpf sees it: 64-bit, little
//! endian, made by our own build. Not a reader for foreign files.

use std::collections::HashMap;

/// Where a symbol lies in the file.
#[derive(Clone, Copy, Debug)]
pub struct Symbol {
    pub offset: usize,
    pub size: usize,
}

pub struct Section {
    pub name: String,
    pub offset: usize,
    pub size: usize,
}

/// Sections and symbols of an object, by name.
pub struct Map {
    pub sections: Vec<Section>,
    pub symbols: HashMap<String, Symbol>,
}

fn le<const N: usize>(b: &[u8], at: usize) -> Option<[u8; N]> {
    b.get(at..at + N)?.try_into().ok()
}

fn u16_at(b: &[u8], at: usize) -> Option<usize> {
    le(b, at).map(|v| u16::from_le_bytes(v) as usize)
}

fn u32_at(b: &[u8], at: usize) -> Option<usize> {
    le(b, at).map(|v| u32::from_le_bytes(v) as usize)
}

fn u64_at(b: &[u8], at: usize) -> Option<usize> {
    le(b, at).map(|v| u64::from_le_bytes(v) as usize)
}

fn text(b: &[u8], at: usize) -> Option<String> {
    let rest = b.get(at..)?;
    let end = rest.iter().position(|c| *c == 0)?;
    Some(String::from_utf8_lossy(&rest[..end]).into_owned())
}

/// `None`: not an object of the expected kind.
pub fn map(b: &[u8]) -> Option<Map> {
    if b.get(..4)? != b"\x7fELF" {
        return None;
    }
    let (shoff, shentsize, shnum, shstrndx) =
        (u64_at(b, 0x28)?, u16_at(b, 0x3a)?, u16_at(b, 0x3c)?, u16_at(b, 0x3e)?);
    let field = |i: usize, at: usize| u64_at(b, shoff + i * shentsize + at);
    let strings = field(shstrndx, 0x18)?;
    let mut out = Map { sections: Vec::new(), symbols: HashMap::new() };
    for i in 0..shnum {
        let name = text(b, strings + u32_at(b, shoff + i * shentsize)?)?;
        out.sections.push(Section { name, offset: field(i, 0x18)?, size: field(i, 0x20)? });
    }
    for i in 0..shnum {
        if u32_at(b, shoff + i * shentsize + 4)? != 2 {
            continue;
        }
        let (start, size) = (field(i, 0x18)?, field(i, 0x20)?);
        let names = field(u32_at(b, shoff + i * shentsize + 0x28)?, 0x18)?;
        for s in (start..start + size).step_by(24) {
            let section = u16_at(b, s + 6)?;
            if section == 0 || section >= shnum {
                continue;
            }
            let name = text(b, names + u32_at(b, s)?)?;
            let offset = out.sections[section].offset + u64_at(b, s + 8)?;
            out.symbols.insert(name, Symbol { offset, size: u64_at(b, s + 16)? });
        }
    }
    Some(out)
}
