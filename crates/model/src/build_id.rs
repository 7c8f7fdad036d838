//! Which program file it is, whatever its path: by the build id that its linker gave it. Some linkers give none (Alpine's by default, Go's before 1.24); then by its size, its beginning
//! and its end, where the headers, the symbols and the sections' places are, which another build has otherwise.
//!
//! The same of a file when it is recorded and when its symbols are read, perhaps under another path.

use crate::hash::Fold;
use std::hash::Hasher;
use std::io::{self, Read, Seek, SeekFrom};

/// Of each end of a file that has no build id.
const ENDS: u64 = 64 << 10;
/// Of headers and notes no more is read.
const MOST: u64 = 1 << 20;

fn half(b: &[u8], i: usize) -> u64 {
    b.get(i..i + 2).map_or(0, |b| u16::from_le_bytes([b[0], b[1]]).into())
}

fn word(b: &[u8], i: usize) -> u64 {
    b.get(i..i + 4).map_or(0, |b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]).into())
}

fn long(b: &[u8], i: usize) -> u64 {
    word(b, i) | word(b, i + 4) << 32
}

/// Of an ELF file of 64 bits; empty: it is none.
pub fn build_id(file: &mut (impl Read + Seek)) -> io::Result<Vec<u8>> {
    let head = part(file, 0, 64)?;
    if head.len() < 64 || !head.starts_with(b"\x7fELF\x02\x01") {
        return Ok(Vec::new());
    }
    // Segments stay when a file is stripped; Go's linker has its notes in sections alone.
    const NOTE_SEGMENT: u64 = 4;
    const NOTE_SECTION: u64 = 7;
    let segments = (long(&head, 32), half(&head, 54), half(&head, 56), 0, 8, 32, NOTE_SEGMENT);
    let sections = (long(&head, 40), half(&head, 58), half(&head, 60), 4, 24, 32, NOTE_SECTION);
    for (at, size, count, kind_at, offset_at, bytes_at, kind) in [segments, sections] {
        if size < 56 {
            continue;
        }
        let headers = part(file, at, size * count)?;
        for h in headers.chunks_exact(size as usize).filter(|h| word(h, kind_at) == kind) {
            let notes = part(file, long(h, offset_at), long(h, bytes_at).min(4096))?;
            if let Some(id) = gnu_build_id(&notes) {
                return Ok(id.to_vec());
            }
        }
    }
    by_its_ends(file)
}

fn gnu_build_id(notes: &[u8]) -> Option<&[u8]> {
    const GNU_BUILD_ID: u64 = 3;
    let mut rest = notes;
    while rest.len() >= 12 {
        let (name, bytes) = (word(rest, 0) as usize, word(rest, 4) as usize);
        let from = name.checked_next_multiple_of(4)?.checked_add(12)?;
        let id = rest.get(from..from.checked_add(bytes)?)?;
        if word(rest, 8) == GNU_BUILD_ID && rest[12..].starts_with(b"GNU\0") {
            return Some(id);
        }
        rest = rest.get(from + bytes.next_multiple_of(4)..)?;
    }
    None
}

/// 16 bytes, where linkers give 20 or 8.
fn by_its_ends(file: &mut (impl Read + Seek)) -> io::Result<Vec<u8>> {
    let bytes = file.seek(SeekFrom::End(0))?;
    let mut id = Vec::new();
    for at in [0, bytes.saturating_sub(ENDS)] {
        let mut hash = Fold::default().with(bytes);
        hash.write(&part(file, at, ENDS)?);
        id.extend(hash.value().to_le_bytes());
    }
    Ok(id)
}

/// As much of it as is there.
fn part(file: &mut (impl Read + Seek), at: u64, bytes: u64) -> io::Result<Vec<u8>> {
    let mut read = Vec::new();
    file.seek(SeekFrom::Start(at))?;
    file.take(bytes.min(MOST)).read_to_end(&mut read)?;
    Ok(read)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Cursor;

    /// An ELF file with one note, in a segment or a section of its own, and code behind it.
    fn elf(in_section: bool, name: &[u8; 4], code: &[u8]) -> Cursor<Vec<u8>> {
        let mut f = vec![0; 64];
        f[..6].copy_from_slice(b"\x7fELF\x02\x01");
        let mut header = vec![0; if in_section { 64 } else { 56 }];
        let (place, size_at, kind_at, offset_at) = if in_section { (40, 58, 4, 24) } else { (32, 54, 0, 8) };
        f[place] = 64;
        f[size_at] = header.len() as u8;
        f[size_at + 2] = 1;
        header[kind_at] = if in_section { 7 } else { 4 };
        header[offset_at] = 64 + header.len() as u8;
        header[32] = 20;
        f.extend(header);
        f.extend([4, 0, 0, 0, 4, 0, 0, 0, 3, 0, 0, 0]);
        f.extend(name);
        f.extend([1, 2, 3, 4]);
        f.extend(code);
        Cursor::new(f)
    }

    #[test]
    fn in_a_segment_or_in_a_section() {
        for in_section in [false, true] {
            assert_eq!(build_id(&mut elf(in_section, b"GNU\0", b"code")).expect("read"), [1, 2, 3, 4]);
        }
    }

    #[test]
    fn without_one_another_build_is_another_file_and_a_copy_the_same() {
        let of = |code: &[u8]| build_id(&mut elf(false, b"Go\0\0", code)).expect("read");
        assert_eq!((of(b"code").len(), of(b"code")), (16, of(b"code")));
        assert_ne!(of(b"code"), of(b"core"));
        assert_ne!(of(b"code"), of(b"code\0"));
    }

    #[test]
    fn what_is_no_elf_file_or_a_cut_or_hostile_one_has_none_or_its_ends() {
        assert!(build_id(&mut Cursor::new(b"#!/bin/sh".to_vec())).expect("read").is_empty());
        let whole = elf(true, b"GNU\0", b"code").into_inner();
        for len in 0..whole.len() {
            let _ = build_id(&mut Cursor::new(whole[..len].to_vec())).expect("read");
        }
        for i in 6..whole.len() {
            let mut bad = whole.clone();
            bad[i] = 0xff;
            let _ = build_id(&mut Cursor::new(bad)).expect("read");
        }
    }
}
