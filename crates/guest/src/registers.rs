//! A processor's registers as QEMU's monitor prints them (`info registers`).
//!
//! Under KVM they are those of one moment. Under TCG a running processor is not stopped for it: control registers and bases are right,
//! RIP and general registers may be some instructions old.

use crate::error::{Error, Result};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Registers {
    pub rax: u64,
    pub rbx: u64,
    pub rcx: u64,
    pub rdx: u64,
    pub rsi: u64,
    pub rdi: u64,
    pub rbp: u64,
    pub rsp: u64,
    pub r8: u64,
    pub r9: u64,
    pub r10: u64,
    pub r11: u64,
    pub r12: u64,
    pub r13: u64,
    pub r14: u64,
    pub r15: u64,
    pub rip: u64,
    pub rflags: u64,
    pub cr0: u64,
    pub cr2: u64,
    pub cr3: u64,
    pub cr4: u64,
    pub efer: u64,
    pub fs_base: u64,
    pub gs_base: u64,
    pub tr_base: u64,
    pub gdt_base: u64,
    pub idt_base: u64,
    pub idt_limit: u32,
    pub cpl: u8,
    /// It waits for an interrupt.
    pub halted: bool,
}

const CR0_PG: u64 = 1 << 31;
const CR4_PAE: u64 = 1 << 5;
const CR4_LA57: u64 = 1 << 12;
const EFER_LMA: u64 = 1 << 10;

impl Registers {
    /// In 64-bit mode, as a kernel's processors are; not one that the kernel did not start (`maxcpus=1`).
    pub fn is_long(&self) -> bool {
        self.efer & EFER_LMA != 0
    }

    /// From the text of `info registers`.
    pub fn parse(text: &str) -> Result<Registers> {
        let mut r = Registers::default();
        let mut seen = 0;
        for line in text.lines() {
            if let Some((name, fields)) = table_line(line) {
                let at = |i: usize| fields.get(i).and_then(|f| u64::from_str_radix(f, 16).ok());
                match name {
                    "FS" => r.fs_base = at(1).unwrap_or(0),
                    "GS" => r.gs_base = at(1).unwrap_or(0),
                    "TR" => r.tr_base = at(1).unwrap_or(0),
                    "GDT" => r.gdt_base = at(0).unwrap_or(0),
                    "IDT" => {
                        r.idt_base = at(0).unwrap_or(0);
                        r.idt_limit = at(1).unwrap_or(0) as u32;
                    }
                    _ => {}
                }
                continue;
            }
            // `R8 =0` has its blank before the sign.
            for word in line.replace(" =", "=").split_ascii_whitespace() {
                let Some((name, value)) = word.split_once('=') else { continue };
                let Ok(v) = u64::from_str_radix(value, 16) else { continue };
                seen += u32::from(r.set(name, v));
            }
        }
        // 16 general ones, RIP, flags, CR0, 2, 3, 4.
        if seen < 22 && text.contains("EAX=") {
            return Err(Error::NotLongMode);
        }
        if seen < 22 {
            return Err(Error::Unsupported("the guest's processor is not an x86-64".into()));
        }
        Ok(r)
    }

    fn set(&mut self, name: &str, v: u64) -> bool {
        let place = match name {
            "RAX" => &mut self.rax,
            "RBX" => &mut self.rbx,
            "RCX" => &mut self.rcx,
            "RDX" => &mut self.rdx,
            "RSI" => &mut self.rsi,
            "RDI" => &mut self.rdi,
            "RBP" => &mut self.rbp,
            "RSP" => &mut self.rsp,
            "R8" => &mut self.r8,
            "R9" => &mut self.r9,
            "R10" => &mut self.r10,
            "R11" => &mut self.r11,
            "R12" => &mut self.r12,
            "R13" => &mut self.r13,
            "R14" => &mut self.r14,
            "R15" => &mut self.r15,
            "RIP" => &mut self.rip,
            "RFL" => &mut self.rflags,
            "CR0" => &mut self.cr0,
            "CR2" => &mut self.cr2,
            "CR3" => &mut self.cr3,
            "CR4" => &mut self.cr4,
            "EFER" => &mut self.efer,
            "CPL" => {
                self.cpl = (v & 3) as u8;
                return false;
            }
            "HLT" => {
                self.halted = v != 0;
                return false;
            }
            _ => return false,
        };
        *place = v;
        true
    }

    /// Levels of its page tables.
    pub fn levels(&self) -> Result<u8> {
        if self.cr0 & CR0_PG == 0 || self.cr4 & CR4_PAE == 0 || self.efer & EFER_LMA == 0 {
            return Err(Error::NotLongMode);
        }
        Ok(if self.cr4 & CR4_LA57 != 0 { 5 } else { 4 })
    }
}

/// `GS =0000 base limit flags`, `IDT=     base limit`: name and fields.
fn table_line(line: &str) -> Option<(&str, Vec<&str>)> {
    let (name, rest) = line.split_once('=')?;
    let name = name.trim();
    matches!(name, "ES" | "CS" | "SS" | "DS" | "FS" | "GS" | "LDT" | "TR" | "GDT" | "IDT")
        .then(|| (name, rest.split_ascii_whitespace().collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = include_str!("../tests/data/registers.txt");

    #[test]
    fn a_real_text_is_read() {
        let r = Registers::parse(TEXT).unwrap();
        assert_eq!((r.rdx, r.r8, r.r15), (0x4000_0000_0000_0000, 0xff2b_46d2_9ee2_1828, 0x147d0));
        assert_eq!((r.rip, r.rflags, r.cr3, r.cr4), (0xffff_ffff_b557_bf5f, 0x206, 0x2bca000, 0x751ef0));
        assert_eq!(
            (r.gs_base, r.idt_base, r.idt_limit),
            (0xff2b_46d2_e7ae_7000, 0xffff_fe00_0000_0000, 0xfff)
        );
        assert_eq!((r.tr_base, r.gdt_base), (0xffff_fe79_870c_a000, 0xffff_fe79_870c_8000));
        assert_eq!((r.cpl, r.halted, r.levels().unwrap()), (0, true, 5));
    }

    #[test]
    fn another_processor_is_refused() {
        assert!(Registers::parse("PC=00000000 X00=0000").is_err());
        assert!(Registers::parse("").is_err());
        let off = TEXT.replace("CR0=80050033", "CR0=00000033");
        assert!(Registers::parse(&off).unwrap().levels().is_err());
    }
}
