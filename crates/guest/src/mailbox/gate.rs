//! Probes of one byte, for instructions that have no room for a jump: a breakpoint (int3), and the guest's gate for breakpoints pointing at
//! code of ours, which sends hits of our places on to their probe's code and everything else to the kernel's own handler.
//!
//! The gate's code returns from the exception to the probe's code: that runs as if a jump had been at the place, with the flags, the stack and
//! the interrupts of whoever was hit. With page table isolation a breakpoint of a process comes with the process's tables, where nothing of
//! the kernel is but its entry area. So the shared memory is mapped there once more, and the gate leads to that mapping.

use super::layout::*;
use super::region::Region;
use crate::error::{Error, Result};
use crate::guest::Guest;
use iced_x86::IcedError;
use iced_x86::code_asm::*;
use std::collections::HashMap;

/// Bytes of an entry of the interrupt table, and the one for breakpoints.
const DESCRIPTOR: u64 = 16;
const BREAKPOINT: u64 = 3;
/// From the address of a place: which entry of the table is looked at first.
const MULTIPLIER: u32 = 0x9e37_79b1;
const SHIFT: u32 = 32 - GATE_PLACES.trailing_zeros();
/// In place of an address: another one's entry was here.
const LEFT: u64 = 1;
/// The table is searched until an unused entry: half of it stays unused.
const MOST: usize = GATE_PLACES / 2;

/// The guest's entry for breakpoints: where it is, and what was in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Descriptor {
    pub address: u64,
    pub was: [u8; 16],
}

impl Descriptor {
    /// All processors have to have one table.
    pub fn of(guest: &Guest) -> Result<Descriptor> {
        let base = guest.registers(0)?.idt_base;
        for vcpu in 1..guest.vcpus() {
            let own = match guest.registers(vcpu) {
                // The kernel did not start it.
                Err(Error::NotLongMode) => continue,
                own => own?.idt_base,
            };
            if own != base {
                return Err(Error::Unsupported(
                    "the guest's processors have different interrupt tables: breakpoints cannot be taken"
                        .into(),
                ));
            }
        }
        let mut was = [0; 16];
        guest.memory().read(base + BREAKPOINT * DESCRIPTOR, &mut was)?;
        if was[5] & 0x80 == 0 {
            return Err(Error::Unsupported("the guest's kernel takes no breakpoints".into()));
        }
        Ok(Descriptor { address: base + BREAKPOINT * DESCRIPTOR, was })
    }

    pub fn handler(&self) -> u64 {
        let part = |from: usize, n: usize| {
            self.was[from..from + n].iter().rev().fold(0u64, |v, b| v << 8 | u64::from(*b))
        };
        part(0, 2) | part(6, 2) << 16 | part(8, 4) << 32
    }

    /// The same with another handler.
    pub fn leading_to(&self, handler: u64) -> [u8; 16] {
        let mut is = self.was;
        let b = handler.to_le_bytes();
        is[..2].copy_from_slice(&b[..2]);
        is[6..8].copy_from_slice(&b[2..4]);
        is[8..12].copy_from_slice(&b[4..8]);
        is
    }
}

/// Which places have a breakpoint of ours, and where their hits go.
#[derive(Debug, Default)]
pub struct Places {
    /// By the address behind the breakpoint, which is what a hit has.
    entries: HashMap<u64, usize>,
}

impl Places {
    /// From now on a hit of the place at `address` goes to `target`.
    pub fn lead(&mut self, region: &Region, address: u64, target: u64) -> Result<()> {
        let key = address + 1;
        let entry = match self.entries.get(&key) {
            Some(entry) => *entry,
            None if self.entries.len() == MOST => {
                return Err(Error::Unsupported(format!(
                    "at most {MOST} probes can be at instructions without room for a jump"
                )));
            }
            None => {
                let mut entry = first(key);
                while self.entries.values().any(|e| *e == entry) {
                    entry = (entry + 1) % GATE_PLACES;
                }
                entry
            }
        };
        region.set64(GATE_TABLE + entry * 16 + 8, target);
        region.set64(GATE_TABLE + entry * 16, key);
        self.entries.insert(key, entry);
        Ok(())
    }

    /// Nothing of ours is at `address` any more: what the guest puts there is its own. The table's entry stays used, as others may lie behind it.
    pub fn leave(&mut self, region: &Region, address: u64) {
        if let Some(entry) = self.entries.remove(&(address + 1)) {
            region.set64(GATE_TABLE + entry * 16, LEFT);
        }
    }
}

fn first(key: u64) -> usize {
    ((key as u32).wrapping_mul(MULTIPLIER) >> SHIFT) as usize
}

/// The gate's code, for [`GATE`] of the shared memory as it is mapped at `base`. `original`: the kernel's own handler.
pub fn code(base: u64, original: u64) -> std::result::Result<Vec<u8>, IcedError> {
    let mut a = CodeAssembler::new(64)?;
    let (mut theirs, mut next, mut none, mut again) =
        (a.create_label(), a.create_label(), a.create_label(), a.create_label());
    let (mut found, mut handler) = (a.create_label(), a.create_label());
    // The frame that the processor pushed: address, code segment, flags, stack, its segment.
    a.endbr64()?;
    a.test(byte_ptr(rsp + 8), 3)?;
    a.jne(theirs)?;
    a.push(rax)?;
    a.push(rbx)?;
    a.push(rcx)?;
    a.mov(rax, qword_ptr(rsp + 24))?;
    a.mov(rbx, base + GATE_TABLE as u64)?;
    a.imul_3(ecx, eax, MULTIPLIER as i32)?;
    a.shr(ecx, SHIFT)?;
    a.shl(ecx, 4)?;
    a.set_label(&mut next)?;
    a.cmp(qword_ptr(rbx + rcx), rax)?;
    a.je(found)?;
    a.cmp(qword_ptr(rbx + rcx), 0)?;
    a.je(none)?;
    a.add(ecx, 16)?;
    a.and(ecx, (GATE_PLACES * 16 - 1) as i32)?;
    a.jmp(next)?;
    a.set_label(&mut found)?;
    a.mov(rax, qword_ptr(rbx + rcx + 8))?;
    a.mov(qword_ptr(rsp + 24), rax)?;
    // What is returned by lies below the stack afterwards, maybe in the room of a function's variables, and looks like the frame of an interrupt that
    // came in the probe's code (`quiet.rs`). Bits of the segment that no processor looks at tell it apart.
    a.mov(dword_ptr(rsp + 36), 1)?;
    a.pop(rcx)?;
    a.pop(rbx)?;
    a.pop(rax)?;
    a.iretq()?;
    a.set_label(&mut none)?;
    // Taken out since: there is an instruction again, which was not executed.
    a.cmp(byte_ptr(rax - 1), 0xcc)?;
    a.jne(again)?;
    a.pop(rcx)?;
    a.pop(rbx)?;
    a.pop(rax)?;
    a.set_label(&mut theirs)?;
    a.jmp(qword_ptr(handler))?;
    a.set_label(&mut again)?;
    a.dec(qword_ptr(rsp + 24))?;
    a.pop(rcx)?;
    a.pop(rbx)?;
    a.pop(rax)?;
    a.iretq()?;
    a.set_label(&mut handler)?;
    a.dq(&[original])?;
    a.assemble(base + GATE as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use iced_x86::{Code, Decoder, DecoderOptions};

    #[test]
    fn a_descriptor_leads_elsewhere_and_is_otherwise_the_same() {
        let was = [0x34, 0x12, 0x10, 0, 0, 0xee, 0x78, 0x56, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0];
        let d = Descriptor { address: 0, was };
        assert_eq!(d.handler(), 0xffff_ffff_5678_1234);
        let to = 0xffff_fe00_8002_1000;
        let is = d.leading_to(to);
        assert_eq!(Descriptor { address: 0, was: is }.handler(), to);
        assert_eq!((&is[2..6], &is[12..]), (&was[2..6], &was[12..]));
    }

    #[test]
    fn the_code_is_in_its_page_and_refers_to_nothing_outside_of_its_mapping() {
        let base = 0xffff_fe00_8000_0000;
        let code = code(base, 0xffff_ffff_8123_4560).unwrap();
        assert!(code.len() < GATE_TABLE - GATE);
        let at = base + GATE as u64;
        let all: Vec<_> = Decoder::with_ip(64, &code, at, DecoderOptions::NONE).into_iter().collect();
        assert_eq!(all[0].code(), Code::Endbr64);
        for i in all.iter().filter(|i| i.is_ip_rel_memory_operand()) {
            let to = i.ip_rel_memory_address();
            assert!((at..base + PAGE).contains(&to), "{i:?}");
        }
        assert_eq!(code[code.len() - 8..], 0xffff_ffff_8123_4560u64.to_le_bytes());
    }

    #[test]
    fn places_that_meet_in_the_table_lie_behind_each_other_and_are_found_from_the_first() {
        // SAFETY: a new file in memory.
        let file = unsafe {
            use std::os::fd::FromRawFd;
            std::fs::File::from_raw_fd(libc::memfd_create(c"gate".as_ptr(), 0))
        };
        let region = Region::map(&file).unwrap();
        let mut places = Places::default();
        let addresses: Vec<u64> = (0..MOST as u64).map(|n| 0xffff_ffff_8100_0000 + n * 3).collect();
        for a in &addresses {
            places.lead(&region, *a, a ^ 1).unwrap();
        }
        assert!(places.lead(&region, 1, 1).unwrap_err().to_string().contains("at most"));
        // One goes, and another takes its room; those behind it are found as before.
        places.leave(&region, addresses[1]);
        places.lead(&region, addresses[1], addresses[1] ^ 1).unwrap();
        places.lead(&region, addresses[0], 77).unwrap();
        for a in &addresses {
            let mut at = first(a + 1);
            while region.get64(GATE_TABLE + at * 16) != a + 1 {
                assert_ne!(region.get64(GATE_TABLE + at * 16), 0, "{a:#x}");
                at = (at + 1) % GATE_PLACES;
            }
            let want = if *a == addresses[0] { 77 } else { a ^ 1 };
            assert_eq!(region.get64(GATE_TABLE + at * 16 + 8), want);
        }
    }
}
