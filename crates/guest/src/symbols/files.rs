//! Symbols out of a file: a System.map (or what `nm` prints), or an ELF file's table of symbols.

use super::table::Builder;
use crate::error::{Error, Result};

const SYMTAB: u32 = 2;
const DYNSYM: u32 = 11;
const HEADER: usize = 64;

/// Adds all symbols of `bytes`, whichever of both it is.
pub fn read(bytes: &[u8], into: &mut Builder) -> Result<()> {
    let before = into.len();
    if bytes.starts_with(b"\x7fELF") {
        elf(bytes, into).ok_or(Error::damaged("an ELF file", "its table of symbols is cut short"))?;
    } else {
        map(bytes, into);
    }
    if into.len() == before {
        return Err(Error::Unsupported(
            "the file has no symbols; a map has lines of address, kind and name".into(),
        ));
    }
    Ok(())
}

/// `ffffffff81000000 T _text`
fn map(bytes: &[u8], into: &mut Builder) {
    for line in bytes.split(|b| *b == b'\n') {
        let Ok(line) = std::str::from_utf8(line) else { continue };
        let mut words = line.split_ascii_whitespace();
        if let (Some(address), Some(kind), Some(name)) = (words.next(), words.next(), words.next())
            && let (Ok(address), [kind]) =
                (u64::from_str_radix(address.trim_start_matches("0x"), 16), kind.as_bytes())
        {
            into.add(address, *kind, name.as_bytes(), 0);
        }
    }
}

fn elf(b: &[u8], into: &mut Builder) -> Option<()> {
    let number = |at: usize, len: usize| -> Option<u64> {
        Some(b.get(at..at.checked_add(len)?)?.iter().rev().fold(0, |v, b| v << 8 | u64::from(*b)))
    };
    // Of 64 bits, little endian.
    if b.get(4..6)? != [2, 1] {
        return None;
    }
    let sections = usize::try_from(number(0x28, 8)?).ok()?;
    let count = number(0x3c, 2)? as usize;
    let section = |i: usize| sections.checked_add(i.checked_mul(HEADER)?);
    let part = |header: usize| -> Option<&[u8]> {
        let (at, len) =
            (usize::try_from(number(header + 24, 8)?).ok()?, usize::try_from(number(header + 32, 8)?).ok()?);
        b.get(at..at.checked_add(len)?)
    };
    let headers = || (0..count).filter_map(section);
    let of_kind = |k: u32| headers().find(|h| number(h + 4, 4) == Some(k.into()));
    let header = of_kind(SYMTAB).or_else(|| of_kind(DYNSYM));
    let Some(header) = header else { return Some(()) };
    let names = part(section(number(header + 40, 4)? as usize)?)?;
    let flags: Vec<(u32, u64)> =
        headers().map(|h| (number(h + 4, 4).unwrap_or(0) as u32, number(h + 8, 8).unwrap_or(0))).collect();
    for s in part(header)?.chunks_exact(24) {
        let field =
            |at: usize, len: usize| s[at..at + len].iter().rev().fold(0u64, |v, b| v << 8 | u64::from(*b));
        let (name, info, place) = (field(0, 4) as usize, s[4], field(6, 2) as usize);
        // Functions, data and what has no type; of this file.
        if place == 0 || info & 15 > 2 {
            continue;
        }
        let Some(len) = names.get(name..).and_then(|rest| memchr::memchr(0, rest)) else { continue };
        if len > 0 {
            into.add(field(8, 8), letter(flags.get(place).copied(), info >> 4), &names[name..name + len], 0);
        }
    }
    Some(())
}

/// As `nm` names it, by the section: its type and flags.
fn letter(section: Option<(u32, u64)>, binding: u8) -> u8 {
    const NOBITS: u32 = 8;
    let lower = match section {
        Some((_, f)) if f & 4 != 0 => b't',
        Some((NOBITS, _)) => b'b',
        Some((_, f)) if f & 1 != 0 => b'd',
        Some((_, f)) if f & 2 != 0 => b'r',
        Some(_) => b'n',
        None => b'a',
    };
    match binding {
        0 => lower,
        2 => b'W',
        _ => lower.to_ascii_uppercase(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_a_map() {
        let mut b = Builder::default();
        read(b"ffffffff81000000 T _text\n\nnonsense\nzz T x\n0xffffffff81000010 t inner [m]\n", &mut b)
            .unwrap();
        let t = b.build(Vec::new());
        let all: Vec<_> = t.iter().map(|s| (s.address & 0xff, s.kind, s.name.to_owned())).collect();
        assert_eq!(all, [(0, 'T', "_text".to_owned()), (0x10, 't', "inner".to_owned())]);
        assert!(read(b"", &mut Builder::default()).is_err());
    }

    /// Per-thread variables are counted from zero, and are no addresses.
    const PER_THREAD: u64 = 0x1000;

    /// Compared with what `nm` of this machine says of this very program.
    #[test]
    fn a_program_as_nm_sees_it() {
        let path = std::env::current_exe().unwrap();
        let Ok(said) = std::process::Command::new("nm").arg(&path).output() else {
            panic!("nm (binutils) is not installed");
        };
        let mut theirs = Builder::default();
        read(&said.stdout, &mut theirs).unwrap();
        let mut ours = Builder::default();
        let bytes = std::fs::read(&path).unwrap();
        read(&bytes, &mut ours).unwrap();
        let all = |b: Builder| -> std::collections::BTreeSet<(u64, String)> {
            b.build(Vec::new())
                .iter()
                .filter(|s| "tTdDbBrR".contains(s.kind) && s.address >= PER_THREAD)
                .map(|s| (s.address, s.name.to_owned()))
                .collect()
        };
        let (ours, theirs) = (all(ours), all(theirs));
        let missing: Vec<_> = theirs.difference(&ours).take(5).collect();
        assert!(
            missing.is_empty() && theirs.len() > 1000,
            "{} of {}: {missing:x?}",
            ours.len(),
            theirs.len()
        );
        for cut in (0..bytes.len()).step_by(bytes.len() / 50) {
            let _ = read(&bytes[..cut], &mut Builder::default());
        }
    }
}
