//! The registers of a `g` packet: x86-64 as QEMU lays it out.

use super::packet::{hex, unhex};
use crate::error::{Error, Result};
use crate::registers::Registers;

/// All registers of a processor that is stopped. What is not in [`Registers`] is kept as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    bytes: Vec<u8>,
}

/// Sixteen general ones, RIP, flags, six selectors.
const BASES: usize = 17 * 8 + 7 * 4;
/// FS, GS and the other GS base, CR0, 2, 3, 4, 8, EFER.
const LEAST: usize = BASES + 9 * 8;

impl Block {
    pub fn parse(text: &[u8]) -> Result<Block> {
        let bytes = unhex(text).unwrap_or_default();
        if bytes.len() < LEAST {
            return Err(Error::Unsupported("the guest's processor is not an x86-64".into()));
        }
        Ok(Block { bytes })
    }

    pub fn text(&self) -> String {
        hex(&self.bytes)
    }

    fn word(&self, at: usize) -> u64 {
        self.bytes[at..at + 8].try_into().map_or(0, u64::from_le_bytes)
    }

    /// What is added to RIP for an address: in real mode, the code segment times 16.
    pub fn code_base(&self) -> u64 {
        let cs = self.word(17 * 8 + 4) as u32 & 0xffff;
        if self.registers().cr0 & 1 == 0 { u64::from(cs) << 4 } else { 0 }
    }

    /// Descriptor tables are not in it, and stay zero.
    pub fn registers(&self) -> Registers {
        let g = |i: usize| self.word(i * 8);
        let control = |i: usize| self.word(BASES + i * 8);
        let flags = self.word(17 * 8) as u32;
        let cs = self.word(17 * 8 + 4) as u32;
        Registers {
            rax: g(0),
            rbx: g(1),
            rcx: g(2),
            rdx: g(3),
            rsi: g(4),
            rdi: g(5),
            rbp: g(6),
            rsp: g(7),
            r8: g(8),
            r9: g(9),
            r10: g(10),
            r11: g(11),
            r12: g(12),
            r13: g(13),
            r14: g(14),
            r15: g(15),
            rip: g(16),
            rflags: flags.into(),
            fs_base: control(0),
            gs_base: control(1),
            cr0: control(3),
            cr2: control(4),
            cr3: control(5),
            cr4: control(6),
            efer: control(8),
            cpl: (cs & 3) as u8,
            ..Registers::default()
        }
    }

    /// The GS base that `swapgs` would bring.
    pub fn other_gs_base(&self) -> u64 {
        self.word(BASES + 16)
    }

    /// Changes general registers, RIP and flags.
    pub fn set(&mut self, r: &Registers) {
        let all = [
            r.rax, r.rbx, r.rcx, r.rdx, r.rsi, r.rdi, r.rbp, r.rsp, r.r8, r.r9, r.r10, r.r11, r.r12, r.r13,
            r.r14, r.r15, r.rip,
        ];
        for (i, v) in all.into_iter().enumerate() {
            self.bytes[i * 8..i * 8 + 8].copy_from_slice(&v.to_le_bytes());
        }
        self.bytes[17 * 8..17 * 8 + 4].copy_from_slice(&(r.rflags as u32).to_le_bytes());
    }
}
