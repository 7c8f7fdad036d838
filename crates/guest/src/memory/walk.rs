//! Page tables of x86-64: four or five levels, pages of 4 KB, 2 MB and 1 GB.

use crate::error::{Error, Result};

/// An address space: where its topmost table is, and how many levels there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// Guest-physical, a multiple of 4096.
    pub root: u64,
    /// 4 or 5.
    pub levels: u8,
}

/// What a virtual address is translated to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Page {
    /// Of the address itself, not of the page's beginning.
    pub physical: u64,
    /// Size of the page.
    pub bytes: u64,
    pub writable: bool,
    pub user: bool,
    pub executable: bool,
    /// Where the entry that maps the page is, guest-physical.
    pub entry_at: u64,
}

pub const PRESENT: u64 = 1;
pub const WRITABLE: u64 = 1 << 1;
const USER: u64 = 1 << 2;
pub const LARGE: u64 = 1 << 7;
pub const NO_EXECUTE: u64 = 1 << 63;
/// The physical address in an entry.
pub const ADDRESS: u64 = 0x000f_ffff_ffff_f000;

impl Space {
    /// Of a processor with this CR3, without the bits that are no address.
    pub fn new(cr3: u64, levels: u8) -> Space {
        Space { root: cr3 & ADDRESS, levels: levels.clamp(4, 5) }
    }

    /// Bits of an address that are translated.
    fn bits(self) -> u32 {
        12 + 9 * u32::from(self.levels)
    }

    pub fn canonical(self, virt: u64) -> bool {
        let unused = 64 - self.bits();
        ((virt << unused) as i64 >> unused) as u64 == virt
    }

    /// Where the entry for `virt` is in a table of `level` at `table`; 1 is the lowest.
    pub fn entry(table: u64, level: u8, virt: u64) -> u64 {
        table + (virt >> (12 + 9 * u32::from(level - 1)) & 0x1ff) * 8
    }

    /// Translates an address; `read` gets the eight bytes at a guest-physical address. At most five reads.
    pub fn walk(self, virt: u64, read: impl Fn(u64) -> Result<u64>) -> Result<Page> {
        if !self.canonical(virt) {
            return Err(Error::NotMapped(virt));
        }
        let mut table = self.root;
        let (mut writable, mut user, mut executable) = (true, true, true);
        for level in (1..=self.levels).rev() {
            let entry_at = Space::entry(table, level, virt);
            let entry = read(entry_at)?;
            if entry & PRESENT == 0 {
                return Err(Error::NotMapped(virt));
            }
            writable &= entry & WRITABLE != 0;
            user &= entry & USER != 0;
            executable &= entry & NO_EXECUTE == 0;
            if level == 1 || entry & LARGE != 0 {
                if level > 3 {
                    return Err(Error::damaged("a page table", format!("a page of level {level}")));
                }
                let bytes = 1u64 << (12 + 9 * u32::from(level - 1));
                let physical = (entry & ADDRESS & !(bytes - 1)) | (virt & (bytes - 1));
                return Ok(Page { physical, bytes, writable, user, executable, entry_at });
            }
            table = entry & ADDRESS;
        }
        Err(Error::NotMapped(virt))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    fn tables(entries: &[(u64, u64)]) -> impl Fn(u64) -> Result<u64> + use<> {
        let all: HashMap<u64, u64> = entries.iter().copied().collect();
        move |at| all.get(&at).copied().ok_or(Error::NotRam(at))
    }

    #[test]
    fn four_and_five_levels_and_three_sizes_of_pages() {
        let virt = 0xffff_8123_4567_89ab_u64;
        let at = |table, level| Space::entry(table, level, virt);
        let all = [
            (at(0x9000, 5), 0x1000 | 3),
            (at(0x1000, 4), 0x2000 | 3 | NO_EXECUTE),
            (at(0x2000, 3), 0x3000 | 7),
            (at(0x3000, 2), 0x4000 | 1),
            (at(0x4000, 1), 0xabcd_e000 | 3),
        ];
        let read = tables(&all);
        for (root, levels) in [(0x1000, 4), (0x9000, 5)] {
            let p = Space::new(root | 0x18, levels).walk(virt, &read).unwrap();
            assert_eq!((p.physical, p.bytes, p.entry_at), (0xabcd_e9ab, 4096, at(0x4000, 1)));
            assert_eq!((p.writable, p.user, p.executable), (false, false, false));
        }
        // Bit 12 of a large page's entry is no address.
        let two = tables(&[all[1], all[2], (at(0x3000, 2), 0x4020_1000 | LARGE | 3)]);
        let p = Space::new(0x1000, 4).walk(virt, two).unwrap();
        assert_eq!((p.physical, p.bytes), (0x4020_0000 | virt & 0x1f_ffff, 2 << 20));
        let one = tables(&[all[1], (at(0x2000, 3), 0x8000_0000 | LARGE | 3)]);
        let p = Space::new(0x1000, 4).walk(virt, one).unwrap();
        assert_eq!((p.physical, p.bytes), (0x8000_0000 | virt & 0x3fff_ffff, 1 << 30));
    }

    #[test]
    fn what_is_not_mapped_is_an_error() {
        let space = Space::new(0x1000, 4);
        let none = tables(&[]);
        assert!(matches!(space.walk(0x1234_0000_0000_0000, &none), Err(Error::NotMapped(_))));
        assert!(matches!(space.walk(0x1000, &none), Err(Error::NotRam(0x1000))));
        let absent = tables(&[(0x1000, 0x2000)]);
        assert!(matches!(space.walk(0x1000, absent), Err(Error::NotMapped(0x1000))));
        let huge = tables(&[(0x1000, 0x2000 | LARGE | 1)]);
        assert!(matches!(space.walk(0x1000, huge), Err(Error::Damaged { .. })));
        // A table that is its own entry ends after its levels.
        let own = tables(&[(0x1000, 0x1003)]);
        assert_eq!(space.walk(0, own).unwrap().physical, 0x1000);
    }
}
