//! The kernel's image in a guest's memory: where it begins, with KASLR, and a copy of it.
//!
//! The handler of the first exception lies in the image. Linux maps its image by pages of 2 MB from one page table of level 2, of which
//! nothing before the image is present: the first present entry of that table's part for the image is `_text`.

use crate::error::{Error, Result};
use crate::memory::Memory;
use crate::memory::walk::{ADDRESS, LARGE, NO_EXECUTE, PRESENT, Space, WRITABLE};
use crate::registers::Registers;

/// Kernels are 20 to 90 MB with all that they reserve.
const LONGEST: u64 = 192 << 20;
const LARGE_PAGE: u64 = 2 << 20;

/// A copy of the part with tables; what is not mapped is zero.
pub struct Image {
    /// Of the first byte here.
    pub base: u64,
    pub bytes: Vec<u8>,
}

/// The address of `_text`, and the end of what is mapped behind it.
pub fn place(memory: &Memory, registers: &Registers) -> Result<(u64, u64)> {
    let mut gate = [0; 16];
    memory.read(registers.idt_base, &mut gate)?;
    let handler = handler(gate);
    let space = memory.kernel_space();
    let table = level_two(memory, space, handler)?;
    let mut bytes = [0; 4096];
    memory.read_physical(table, &mut bytes)?;
    let entries: Vec<u64> =
        bytes.chunks_exact(8).map(|e| e.try_into().map_or(0, u64::from_le_bytes)).collect();
    let own = (handler >> 21 & 0x1ff) as usize;
    let first = (0..=own).rev().take_while(|i| entries[*i] & PRESENT != 0).last();
    let Some(first) = first else {
        return Err(Error::damaged("the kernel's page tables", "the exception's handler is not mapped"));
    };
    // Init code that was given back leaves a hole; modules are another table's.
    let last = (own..512).rev().find(|i| entries[*i] & PRESENT != 0).unwrap_or(own);
    let start = handler & !((1 << 30) - 1);
    let base = start + first as u64 * LARGE_PAGE;
    let end = start + (last as u64 + 1) * LARGE_PAGE;
    Ok((base, end.min(base + LONGEST)))
}

/// The address in an interrupt gate.
pub fn handler(gate: [u8; 16]) -> u64 {
    let part = |at: usize, n: usize| gate[at..at + n].iter().rev().fold(0, |v, b| v << 8 | u64::from(*b));
    part(0, 2) | part(6, 2) << 16 | part(8, 4) << 32
}

/// Guest-physical address of the level-2 table that maps `virt`.
fn level_two(memory: &Memory, space: Space, virt: u64) -> Result<u64> {
    let mut table = space.root;
    for level in (3..=space.levels).rev() {
        let mut entry = [0; 8];
        memory.read_physical(Space::entry(table, level, virt), &mut entry)?;
        let entry = u64::from_le_bytes(entry);
        if entry & PRESENT == 0 || entry & LARGE != 0 {
            return Err(Error::NoKernel("what runs there is not mapped as Linux maps itself".into()));
        }
        table = entry & ADDRESS;
    }
    Ok(table)
}

/// A stretch of the image that is mapped, and whether it is neither code nor writable.
struct Run {
    from: u64,
    to: u64,
    constant: bool,
}

/// What is mapped between two addresses below one level-2 table, by whole tables: one by one, pages cost five readings each.
fn runs(memory: &Memory, base: u64, end: u64) -> Result<Vec<Run>> {
    let table_at = |at: u64| -> Result<[u8; 4096]> {
        let mut bytes = [0; 4096];
        memory.read_physical(at, &mut bytes)?;
        Ok(bytes)
    };
    let entry = |t: &[u8; 4096], i: u64| {
        t[i as usize * 8..i as usize * 8 + 8].try_into().map_or(0, u64::from_le_bytes)
    };
    let upper = table_at(level_two(memory, memory.kernel_space(), base)?)?;
    let mut all: Vec<Run> = Vec::new();
    let mut add = |from: u64, len: u64, e: u64| {
        if e & PRESENT == 0 {
            return;
        }
        let constant = e & WRITABLE == 0 && e & NO_EXECUTE != 0;
        match all.last_mut() {
            Some(r) if r.to == from && r.constant == constant => r.to += len,
            _ => all.push(Run { from, to: from + len, constant }),
        }
    };
    for at in (base..end).step_by(LARGE_PAGE as usize) {
        let e = entry(&upper, at >> 21 & 0x1ff);
        if e & PRESENT == 0 || e & LARGE != 0 {
            add(at, LARGE_PAGE, e);
            continue;
        }
        let lower = table_at(e & ADDRESS)?;
        for i in 0..512 {
            // What is forbidden above stays forbidden.
            let page = entry(&lower, i);
            let page = if e & WRITABLE == 0 { page & !WRITABLE } else { page } | (e & NO_EXECUTE);
            add(at + i * 4096, 4096, page);
        }
    }
    Ok(all)
}

impl Image {
    /// What is neither code nor writable: names, tables and types lie there. Of a kernel that has not protected it yet everything.
    pub fn read(memory: &Memory, base: u64, end: u64) -> Result<Image> {
        if end.checked_sub(base).is_none_or(|n| n > LONGEST) {
            return Err(Error::damaged("the kernel's image", "it has no sensible size"));
        }
        let mut parts = runs(memory, base, end)?;
        if parts.iter().any(|r| r.constant) {
            parts.retain(|r| r.constant);
        }
        let (Some(first), Some(last)) = (parts.first(), parts.last()) else {
            return Err(Error::NotMapped(base));
        };
        let from = first.from;
        let mut bytes = vec![0; (last.to - from) as usize];
        for r in &parts {
            let part = &mut bytes[(r.from - from) as usize..(r.to - from) as usize];
            for (i, piece) in part.chunks_mut(LARGE_PAGE as usize).enumerate() {
                let at = r.from + i as u64 * LARGE_PAGE;
                if memory.read(at, piece).is_ok() {
                    continue;
                }
                // A page that is mapped to no RAM, or is not mapped any more.
                for (k, page) in piece.chunks_mut(4096).enumerate() {
                    if memory.read(at + k as u64 * 4096, page).is_err() {
                        page.fill(0);
                    }
                }
            }
        }
        Ok(Image { base: from, bytes })
    }

    /// `len` bytes at a virtual address.
    pub fn at(&self, virt: u64, len: usize) -> Option<&[u8]> {
        let from = usize::try_from(virt.checked_sub(self.base)?).ok()?;
        self.bytes.get(from..from.checked_add(len)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_in_a_gate() {
        let gate = 0xffff_ffff_b440_08e0_u64;
        let mut b = [0; 16];
        b[..2].copy_from_slice(&gate.to_le_bytes()[..2]);
        b[2..6].copy_from_slice(&[0x10, 0, 0, 0x8e]);
        b[6..12].copy_from_slice(&gate.to_le_bytes()[2..]);
        assert_eq!(handler(b), gate);
    }
}
