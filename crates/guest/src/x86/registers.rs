//! The sixteen general registers, by name and by their place among the arguments of a C function.

/// A general register of 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Register {
    Rax,
    Rcx,
    Rdx,
    Rbx,
    Rsp,
    Rbp,
    Rsi,
    Rdi,
    R8,
    R9,
    R10,
    R11,
    R12,
    R13,
    R14,
    R15,
}

use Register::*;

impl Register {
    pub const ALL: [Register; 16] =
        [Rax, Rcx, Rdx, Rbx, Rsp, Rbp, Rsi, Rdi, R8, R9, R10, R11, R12, R13, R14, R15];
    const NAMES: [&str; 16] = [
        "rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13",
        "r14", "r15",
    ];

    /// The register that has argument `n` of a function, counted from 0, where it has one.
    pub fn argument(n: usize) -> Option<Register> {
        [Rdi, Rsi, Rdx, Rcx, R8, R9].get(n).copied()
    }

    pub fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }

    pub fn by_name(name: &str) -> Option<Register> {
        Self::ALL.into_iter().find(|r| r.name() == name)
    }
}
