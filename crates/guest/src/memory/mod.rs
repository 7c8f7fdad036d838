//! A guest's memory, by guest-physical and by kernel-virtual addresses.
//!
//! Two readings of one structure of a running guest may be of two moments. Nothing here stops the guest.

pub mod layout;
mod ram;
pub mod walk;

use crate::error::{Error, Result};
use crate::qmp::Qmp;
use crate::registers::Registers;
pub use layout::Range;
use ram::Ram;
use std::sync::{PoisonError, RwLock, RwLockReadGuard};
pub use walk::{Page, Space};

/// A string in a guest that is longer than this is cut.
pub const LONGEST_STRING: usize = 64 << 10;

struct State {
    ram: Ram,
    kernel: Space,
    /// The kernel's half of the topmost table, as it was: a process's own goes with it, what it refers to stays.
    top: Option<Top>,
}

/// Entries of a topmost table from the middle on.
type Top = Box<[u8; HALF as usize]>;

const HALF: u64 = 2048;

pub struct Memory {
    pid: u32,
    state: RwLock<State>,
    isolated: bool,
}

impl Memory {
    /// Of the guest behind `qmp`, whose QEMU is `pid`; `registers` are those of any of its processors.
    pub fn open(qmp: &Qmp, pid: u32, registers: &Registers) -> Result<Memory> {
        let ranges = layout::parse(&qmp.monitor("info mtree -f")?)?;
        let ram = Ram::open(qmp, pid, &ranges)?;
        let (kernel, isolated, top) = kernel_space(&ram, registers)?;
        Ok(Memory { pid, state: RwLock::new(State { ram, kernel, top: Some(top) }), isolated })
    }

    /// Of a guest that is no more: `bytes` is a copy of its RAM, which began at zero.
    pub fn of_dump(bytes: &[u8], registers: &Registers) -> Result<Memory> {
        let ram = Ram::of_dump(bytes)?;
        let (kernel, isolated, top) = kernel_space(&ram, registers)?;
        Ok(Memory { pid: 0, state: RwLock::new(State { ram, kernel, top: Some(top) }), isolated })
    }

    /// Looks again where RAM is: after a device with memory came or went.
    pub fn refresh(&self, qmp: &Qmp) -> Result<()> {
        let ranges = layout::parse(&qmp.monitor("info mtree -f")?)?;
        let ram = Ram::open(qmp, self.pid, &ranges)?;
        self.state.write().unwrap_or_else(PoisonError::into_inner).ram = ram;
        Ok(())
    }

    /// The kernel's address space. Until [`Memory::set_kernel_space`] it is that of a process which ran while attaching; should that end, the kernel's
    /// half is read as it was.
    pub fn kernel_space(&self) -> Space {
        self.state().kernel
    }

    /// Takes the space of another process, which `registers` are of now.
    pub fn look_again(&self, registers: &Registers) -> Result<()> {
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        let (kernel, _, top) = kernel_space(&state.ram, registers)?;
        (state.kernel, state.top) = (kernel, Some(top));
        Ok(())
    }

    /// `root` is that of tables that live as long as the kernel (`init_top_pgt`).
    pub fn set_kernel_space(&self, space: Space) {
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        (state.kernel, state.top) = (space, None);
    }

    /// User processes have page tables of their own with little of the kernel in them (PTI).
    pub fn isolated(&self) -> bool {
        self.isolated
    }

    pub fn ranges(&self) -> Vec<Range> {
        self.state().ram.ranges().cloned().collect()
    }

    /// Bytes of RAM that are mapped into this process, and of all.
    pub fn mapped(&self) -> (u64, u64) {
        self.state().ram.mapped()
    }

    pub fn may_write(&self) -> bool {
        self.state().ram.may_write()
    }

    /// Of a kernel address.
    pub fn translate(&self, virt: u64) -> Result<Page> {
        let s = self.state();
        s.translate(s.kernel, virt)
    }

    /// Of an address of any space, such as a process's.
    pub fn translate_in(&self, space: Space, virt: u64) -> Result<Page> {
        self.state().translate(space, virt)
    }

    /// Fills `to` from a kernel address, or fails: nothing is read in part.
    pub fn read(&self, virt: u64, to: &mut [u8]) -> Result<()> {
        let s = self.state();
        s.read(s.kernel, virt, to)
    }

    pub fn read_in(&self, space: Space, virt: u64, to: &mut [u8]) -> Result<()> {
        self.state().read(space, virt, to)
    }

    /// All pages are looked at first: nothing is written in part, unless the guest changes its tables meanwhile. Page tables' rights are
    /// not asked. Of code under TCG see [`crate::Guest`]: translations of it stay.
    pub fn write(&self, virt: u64, from: &[u8]) -> Result<()> {
        let s = self.state();
        s.write(s.kernel, virt, from)
    }

    pub fn write_in(&self, space: Space, virt: u64, from: &[u8]) -> Result<()> {
        self.state().write(space, virt, from)
    }

    pub fn read_physical(&self, physical: u64, to: &mut [u8]) -> Result<()> {
        let s = self.state();
        match s.of_top(physical, to.len()) {
            Some(bytes) => to.copy_from_slice(bytes),
            None => s.ram.read(physical, to)?,
        }
        Ok(())
    }

    pub fn write_physical(&self, physical: u64, from: &[u8]) -> Result<()> {
        self.state().ram.write(physical, from)
    }

    pub fn u64_at(&self, virt: u64) -> Result<u64> {
        let mut b = [0; 8];
        self.read(virt, &mut b)?;
        Ok(u64::from_le_bytes(b))
    }

    pub fn u32_at(&self, virt: u64) -> Result<u32> {
        let mut b = [0; 4];
        self.read(virt, &mut b)?;
        Ok(u32::from_le_bytes(b))
    }

    /// The bytes of a C string, without its end; at most `most` of them.
    pub fn string_at(&self, virt: u64, most: usize) -> Result<Vec<u8>> {
        self.string_in(self.kernel_space(), virt, most)
    }

    pub fn string_in(&self, space: Space, virt: u64, most: usize) -> Result<Vec<u8>> {
        let most = most.min(LONGEST_STRING);
        let mut all = Vec::new();
        let mut piece = [0; 256];
        while all.len() < most {
            let at = virt.checked_add(all.len() as u64).ok_or(Error::NotMapped(virt))?;
            // Not beyond a page: what follows the string need not be mapped.
            let n = (4096 - (at & 4095) as usize).min(piece.len()).min(most - all.len());
            self.read_in(space, at, &mut piece[..n])?;
            match memchr::memchr(0, &piece[..n]) {
                Some(end) => {
                    all.extend_from_slice(&piece[..end]);
                    break;
                }
                None => all.extend_from_slice(&piece[..n]),
            }
        }
        Ok(all)
    }

    fn state(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn translate(&self, space: Space, virt: u64) -> Result<Page> {
        let word = |at: u64| match self.of_top(at, 8).and_then(|b| b.try_into().ok()) {
            Some(bytes) => Ok(u64::from_le_bytes(bytes)),
            None => self.ram.word(at),
        };
        space.walk(virt, word)
    }

    /// Bytes of the kernel's half of its topmost table, if these are.
    fn of_top(&self, physical: u64, len: usize) -> Option<&[u8]> {
        let from = usize::try_from(physical.checked_sub(self.kernel.root + HALF)?).ok()?;
        self.top.as_ref()?.get(from..from.checked_add(len)?)
    }

    fn read(&self, space: Space, mut virt: u64, to: &mut [u8]) -> Result<()> {
        if to.is_empty() {
            return Ok(());
        }
        let mut page = self.translate(space, virt)?;
        let left = |page: &Page, virt: u64| page.bytes - (virt & (page.bytes - 1));
        if to.len() as u64 <= left(&page, virt) {
            return self.ram.read(page.physical, to);
        }
        // In several pages: the last of them may not be there.
        let (mut whole, mut done) = (vec![0; to.len()], 0);
        loop {
            let n = left(&page, virt).min((whole.len() - done) as u64) as usize;
            self.ram.read(page.physical, &mut whole[done..done + n])?;
            done += n;
            if done == whole.len() {
                break;
            }
            virt = virt.checked_add(n as u64).ok_or(Error::NotMapped(virt))?;
            page = self.translate(space, virt)?;
        }
        to.copy_from_slice(&whole);
        Ok(())
    }

    fn write(&self, space: Space, virt: u64, from: &[u8]) -> Result<()> {
        let mut pieces = Vec::new();
        let (mut at, mut done) = (virt, 0);
        while done < from.len() {
            let page = self.translate(space, at)?;
            let n = (page.bytes - (at & (page.bytes - 1))).min((from.len() - done) as u64) as usize;
            pieces.push((page.physical, done..done + n));
            done += n;
            if done < from.len() {
                at = at.checked_add(n as u64).ok_or(Error::NotMapped(at))?;
            }
        }
        pieces.into_iter().try_for_each(|(physical, part)| self.ram.write(physical, &from[part]))
    }
}

/// The address space with the kernel in it, whether user processes have one without (PTI), and the kernel's half of its topmost table. With PTI a processor
/// that runs a user process has the process's second tables, 4096 bytes behind the first, in which there is little of the kernel.
fn kernel_space(ram: &Ram, r: &Registers) -> Result<(Space, bool, Top)> {
    let own = Space::new(r.cr3, r.levels()?);
    let place = |s: Space| s.walk(r.idt_base, |at| ram.word(at)).ok().map(|p| p.physical);
    let half = |s: Space| -> Result<Top> {
        let mut half = Box::new([0; HALF as usize]);
        ram.read(s.root + HALF, half.as_mut_slice())?;
        Ok(half)
    };
    let Some(idt) = place(own) else {
        return Err(Error::NoKernel("its processor has no interrupt table".into()));
    };
    let other = Space { root: own.root ^ 0x1000, ..own };
    let ours = half(own)?;
    // Without PTI the page beside is something else, or a process's table with all of the kernel in it.
    let (space, isolated, top) = match half(other) {
        Ok(beside) if place(other) == Some(idt) => {
            let present = |t: &Top| t.chunks_exact(8).filter(|e| e[0] & 1 != 0).count();
            match present(&beside).cmp(&present(&ours)) {
                std::cmp::Ordering::Greater => (other, true, beside),
                less_or_equal => (own, less_or_equal.is_lt(), ours),
            }
        }
        _ => (own, false, ours),
    };
    // Its process was there until then.
    if place(space) != Some(idt) || half(space)? != top {
        return Err(Error::NotMapped(r.idt_base));
    }
    Ok((space, isolated, top))
}
