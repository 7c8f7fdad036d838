//! The entries of the guest's page tables by which the shared memory is mapped: unused ones before, beside the kernel's code or its interrupt table.

use super::layout::*;
use crate::error::{Error, Result};
use crate::guest::Guest;
use crate::memory::Space;
use crate::memory::walk::{ADDRESS, LARGE, PRESENT};

/// Present, writable, accessed, dirty, large, global.
pub(super) const ENTRY: u64 = 0x1e3;

/// The kernel's code, from its interrupt table.
pub(super) fn kernel_code(guest: &Guest) -> Result<u64> {
    let registers = guest.registers(0)?;
    let mut gate = [0; 16];
    guest.memory().read(registers.idt_base, &mut gate)?;
    let part =
        |from: usize, n: usize| gate[from..from + n].iter().rev().fold(0u64, |v, b| v << 8 | u64::from(*b));
    Ok(part(0, 2) | part(6, 2) << 16 | part(8, 4) << 32)
}

/// Unused entries in a row in the table that maps what is beside `near` by pages of 2 MB: guest-physical address of the first, and what it maps.
pub(super) fn find_entries(guest: &Guest, near: u64, count: usize) -> Result<(u64, u64)> {
    let (table, first) = table_of(guest, near)?;
    let mut bytes = [0; 4096];
    guest.memory().read_physical(table, &mut bytes)?;
    let used: Vec<bool> = bytes.chunks_exact(8).map(|e| e.iter().any(|b| *b != 0)).collect();
    // One unused entry stays at each side. Not always the same ones: processors may remember for a while what was there before.
    let wanted = count + 2;
    let free: Vec<usize> = (0..=512 - wanted).filter(|n| used[*n..*n + wanted].iter().all(|u| !u)).collect();
    let moment = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |d| d.subsec_nanos() as usize / 1000);
    let at = *free.get(moment % free.len().max(1)).ok_or_else(|| {
        Error::Unsupported("the guest's kernel uses all of the addresses around its code".into())
    })? + 1;
    Ok((table + at as u64 * 8, first + at as u64 * PAGE))
}

/// The table of level 2 that `virt` is translated by, and the first address that it translates.
fn table_of(guest: &Guest, virt: u64) -> Result<(u64, u64)> {
    let space = guest.memory().kernel_space();
    let mut table = space.root;
    for level in (3..=space.levels).rev() {
        let mut entry = [0; 8];
        guest.memory().read_physical(Space::entry(table, level, virt), &mut entry)?;
        let entry = u64::from_le_bytes(entry);
        if entry & PRESENT == 0 || level == 3 && entry & LARGE != 0 {
            return Err(Error::Unsupported(
                "the kernel's code is not mapped by pages of 2 MB or less".into(),
            ));
        }
        table = entry & ADDRESS;
    }
    Ok((table, virt & !((1 << 30) - 1)))
}

/// All of the entries are what we wrote there, and what the kernel translates by: memory of a guest that began anew may still have them.
pub(super) fn is_mapped(guest: &Guest, entries: u64, base: u64) -> bool {
    let mut bytes = [0; 8 * PAGES.len()];
    if guest.memory().read_physical(entries, &mut bytes).is_err() {
        return false;
    }
    let entry = |b: &[u8]| b.iter().rev().fold(0u64, |v, b| v << 8 | u64::from(*b));
    let all: Vec<u64> = bytes.chunks_exact(8).map(entry).collect();
    let first = all[0] & ADDRESS & !(PAGE - 1);
    let ours = all.iter().zip(PAGES).all(|(e, page)| *e == (first + page * PAGE) | ENTRY);
    ours && guest.memory().translate(base).is_ok_and(|page| page.physical == first)
}

/// The same of the one beside the interrupt table.
pub(super) fn is_beside(guest: &Guest, entry: u64, address: u64) -> bool {
    let mut bytes = [0; 8];
    if guest.memory().read_physical(entry, &mut bytes).is_err() {
        return false;
    }
    let now = u64::from_le_bytes(bytes);
    let physical = now & ADDRESS & !(PAGE - 1);
    now == physical | ENTRY && guest.memory().translate(address).is_ok_and(|page| page.physical == physical)
}
