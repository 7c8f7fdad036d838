//! Symbols out of a file: a System.map (or what `nm` prints), or an ELF file's table of symbols.

use super::elf::{self, ALLOC, EXECUTE, Elf, NOBITS, Section, Source, WRITE};
use super::table::Builder;
use crate::error::{Error, Result};

/// Adds all symbols of the file, whichever of both it is.
pub fn read(source: &dyn Source, into: &mut Builder) -> Result<()> {
    let before = into.len();
    let magic = elf::bytes(source, 0, source.len().min(Elf::MAGIC.len() as u64))?;
    if magic == Elf::MAGIC {
        of_elf(&Elf::read(source)?, into)?;
    } else {
        map(&elf::bytes(source, 0, source.len())?, into);
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

fn of_elf(elf: &Elf, into: &mut Builder) -> Result<()> {
    let Some(table) = elf.symbols()? else { return Ok(()) };
    // Functions, data and what has no type; of this file.
    for s in table.iter().filter(|s| s.section != 0 && s.kind <= 2 && !s.name.is_empty()) {
        into.add(s.value, letter(elf.sections.get(s.section), s.binding), s.name, 0);
    }
    Ok(())
}

/// As `nm` names it, by the section: its type and flags.
fn letter(section: Option<&Section>, binding: u8) -> u8 {
    let lower = match section {
        Some(s) if s.flags & EXECUTE != 0 => b't',
        Some(s) if s.kind == NOBITS => b'b',
        Some(s) if s.flags & WRITE != 0 => b'd',
        Some(s) if s.flags & ALLOC != 0 => b'r',
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
    #[test]
    fn an_offset_leads_into_the_symbol_that_was_named() {
        let path = std::env::temp_dir().join(format!("kpat-map-{}", std::process::id()));
        std::fs::write(&path, "1000 t one\n1010 T two\n1010 T also_two\n1020 D table\n1028 D next\n")
            .unwrap();
        let symbols = crate::Symbols::from_file(&path, None).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(symbols.parse("one+0xf").unwrap(), 0x100f);
        assert_eq!(symbols.parse("also_two+0x5").unwrap(), 0x1015);
        let wrong = symbols.parse("one+0x11").unwrap_err().to_string();
        assert!(wrong.contains("one+0x11 is not in one, but in two+0x1"), "{wrong}");
        // Of variables the size is not known.
        assert_eq!(symbols.parse("table+8").unwrap(), 0x1028);
    }

    use super::*;

    #[test]
    fn lines_of_a_map() {
        let mut b = Builder::default();
        read(&&b"ffffffff81000000 T _text\n\nnonsense\nzz T x\n0xffffffff81000010 t inner [m]\n"[..], &mut b)
            .unwrap();
        let t = b.build(Vec::new());
        let all: Vec<_> = t.iter().map(|s| (s.address & 0xff, s.kind, s.name.to_owned())).collect();
        assert_eq!(all, [(0, 'T', "_text".to_owned()), (0x10, 't', "inner".to_owned())]);
        assert!(read(&&b""[..], &mut Builder::default()).is_err());
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
        read(&said.stdout.as_slice(), &mut theirs).unwrap();
        let mut ours = Builder::default();
        let bytes = std::fs::read(&path).unwrap();
        read(&bytes.as_slice(), &mut ours).unwrap();
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
            let _ = read(&&bytes[..cut], &mut Builder::default());
        }
    }
}
