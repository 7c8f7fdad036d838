//! What the instructions of classic BPF do (include/uapi/linux/filter.h, bpf_common.h): for [`super::translate`], which makes eBPF of them, and
//! [`super::possible`], which runs them.

use super::VISIBLE;
use super::pcap::Instruction;
use super::translate::Error;

// Registers, by the number that eBPF code has them in.
pub(super) const A: u8 = 0;
pub(super) const X: u8 = 4;

// Operations.
pub(super) const ADD: u8 = 0x00;
pub(super) const SUB: u8 = 0x10;
pub(super) const MUL: u8 = 0x20;
pub(super) const DIV: u8 = 0x30;
pub(super) const OR: u8 = 0x40;
pub(super) const AND: u8 = 0x50;
pub(super) const LSH: u8 = 0x60;
pub(super) const RSH: u8 = 0x70;
pub(super) const NEG: u8 = 0x80;
pub(super) const MOD: u8 = 0x90;
pub(super) const XOR: u8 = 0xa0;
pub(super) const JEQ: u8 = 0x10;
pub(super) const JGT: u8 = 0x20;
pub(super) const JGE: u8 = 0x30;
pub(super) const JSET: u8 = 0x40;

/// Words of memory.
pub(super) const PLACES: usize = 16;

/// Linux's negative offsets start here (`SKF_LL_OFF`).
const NEGATIVE: u32 = 0xffe0_0000;

/// What an instruction does, with its operands decoded.
#[derive(Clone, Copy)]
pub(super) enum Step {
    Load {
        size: u8,
        at: Address,
    },
    LoadImmediate {
        to: u8,
        k: u32,
    },
    LoadMemory {
        to: u8,
        slot: u8,
    },
    LoadLength {
        to: u8,
    },
    HeaderLength {
        k: u32,
    },
    Store {
        from: u8,
        slot: u8,
    },
    Arithmetic {
        op: u8,
        operand: Operand,
    },
    Copy {
        to: u8,
        from: u8,
    },
    Jump {
        to: usize,
    },
    Branch {
        op: u8,
        operand: Operand,
        yes: usize,
        no: usize,
    },
    ReturnConstant {
        matches: bool,
    },
    ReturnA,
    /// Ends in "no match" whatever the packet is.
    Never,
}

#[derive(Clone, Copy)]
pub(super) enum Address {
    Absolute(u32),
    Relative(u32),
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Operand {
    K(u32),
    X,
}

pub(super) fn decode(at: usize, i: Instruction) -> Result<Step, Error> {
    let unknown = Err(Error::Unknown { at, code: i.code });
    let operand = if i.code & 0x08 == 0 { Operand::K(i.k) } else { Operand::X };
    let memory = |make: fn(u8, u8) -> Step, r: u8| match i.k {
        k @ 0..16 => Ok(make(r, k as u8)),
        _ => Err(Error::Unknown { at, code: i.code }),
    };
    let op = (i.code & 0xf0) as u8;
    Ok(match (i.code & 0x07, i.code & 0xf8) {
        (0, rest @ (0x20 | 0x28 | 0x30 | 0x40 | 0x48 | 0x50)) => {
            let size = [4, 2, 1][(rest >> 3 & 3) as usize];
            match rest & 0xe0 {
                0x20 if i.k >= NEGATIVE => return Err(Error::Metadata),
                _ if i.k > VISIBLE - u32::from(size) => Step::Never,
                0x20 => Step::Load { size, at: Address::Absolute(i.k) },
                _ => Step::Load { size, at: Address::Relative(i.k) },
            }
        }
        (0, 0x00) => Step::LoadImmediate { to: A, k: i.k },
        (1, 0x00) => Step::LoadImmediate { to: X, k: i.k },
        (0, 0x60) => memory(|to, slot| Step::LoadMemory { to, slot }, A)?,
        (1, 0x60) => memory(|to, slot| Step::LoadMemory { to, slot }, X)?,
        (0, 0x80) => Step::LoadLength { to: A },
        (1, 0x80) => Step::LoadLength { to: X },
        (1, 0xb0) if i.k >= NEGATIVE => return Err(Error::Metadata),
        (1, 0xb0) if i.k >= VISIBLE => Step::Never,
        (1, 0xb0) => Step::HeaderLength { k: i.k },
        (2, 0) => memory(|from, slot| Step::Store { from, slot }, A)?,
        (3, 0) => memory(|from, slot| Step::Store { from, slot }, X)?,
        (4, _) if op > XOR => return unknown,
        (4, _) if matches!(op, DIV | MOD) && operand == Operand::K(0) => Step::Never,
        (4, _) => Step::Arithmetic { op, operand },
        (5, 0) if i.k > i32::MAX as u32 => return Err(Error::Loop),
        (5, 0) => Step::Jump { to: (at + 1).saturating_add(i.k as usize) },
        (5, _) if matches!(op, JEQ | JGT | JGE | JSET) => {
            Step::Branch { op, operand, yes: at + 1 + i.jt as usize, no: at + 1 + i.jf as usize }
        }
        (6, 0x00) => Step::ReturnConstant { matches: i.k != 0 },
        (6, 0x08) => return unknown,
        (6, 0x10) => Step::ReturnA,
        (7, 0x00) => Step::Copy { to: X, from: A },
        (7, 0x80) => Step::Copy { to: A, from: X },
        _ => return unknown,
    })
}
