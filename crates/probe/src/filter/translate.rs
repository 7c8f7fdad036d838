//! Classic BPF to eBPF, instruction by instruction. Keeps the meaning that libpcap's own interpreter gives: unsigned 32-bit
//! arithmetic, big-endian loads, and "no match" for a load behind the packet or a division by zero.
//!
//! The verifier wants proof that memory accesses stay in bounds and refuses instructions that no path reaches. Loads at
//! fixed offsets need no proof (the area is [`super::VISIBLE`] bytes whatever is valid in it), loads relative to X get an explicit
//! bound; what can never run (behind a load out of bounds) is left out.

use super::VISIBLE;
use super::pcap::Instruction;
use super::steps::*;

/// `r0 = r0`, what the placeholder is made of.
pub const NOP: u64 = 0xbf;

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Error {
    /// A load at one of Linux's negative offsets (`SKF_AD_OFF`).
    #[error("it asks for packet metadata")]
    Metadata,
    /// A jump backwards: libpcap has one use for it, `protochain`.
    #[error("it has a loop")]
    Loop,
    #[error("libpcap made an instruction that classic BPF does not have: {code:#06x} at {at}")]
    Unknown { at: usize, code: u16 },
    #[error("libpcap made code that runs past its end (instruction {at})")]
    Open { at: usize },
    /// More instructions than a jump can go over.
    #[error("its code is too long ({0} instructions)")]
    TooFar(usize),
}

// Registers: bytes, valid and length are given; r6 to r9 belong to the code around.
const BYTES: u8 = 1;
const VALID: u8 = 2;
const LENGTH: u8 = 3;
const TMP: u8 = 5;
const FRAME: u8 = 10;
/// Where M[0] lies; sixteen words up to the frame's end.
const MEMORY: i16 = -64;

// eBPF classes, modes and operations (include/uapi/linux/bpf.h); those that classic BPF has, too, have the same codes there ([`super::steps`]).
const LDX: u8 = 0x01;
const ST: u8 = 0x02;
const STX: u8 = 0x03;
const ALU32: u8 = 0x04;
const JMP: u8 = 0x05;
const JMP32: u8 = 0x06;
const ALU64: u8 = 0x07;
const MEM: u8 = 0x60;
const REG: u8 = 0x08;
const MOV: u8 = 0xb0;
const END_BE: u8 = 0xd8;
const JA: u8 = 0x00;
const JNE: u8 = 0x50;
const JLT: u8 = 0xa0;
const JLE: u8 = 0xb0;

const fn instruction(code: u8, dst: u8, src: u8, off: i16, imm: u32) -> u64 {
    code as u64 | (dst as u64) << 8 | (src as u64) << 12 | (off as u16 as u64) << 16 | (imm as u64) << 32
}

/// Code that only answers.
pub const fn answer(matches: bool) -> u64 {
    instruction(ALU32 | MOV, A, 0, 0, matches as u32)
}

/// Goes over the next `distance` instructions, in a way that does not make them unreachable by form alone.
pub const fn skip(distance: i16) -> [u64; 2] {
    [instruction(ALU32 | MOV, TMP, 0, 0, 0), instruction(JMP | JEQ, TMP, 0, distance, 0)]
}

/// Where a jump goes, until all places are known.
#[derive(Clone, Copy)]
enum Target {
    Classic(usize),
    /// No match.
    Fail,
    /// Behind the last instruction.
    Done,
}

/// The code leaves by running to its end, with the answer (0: no match) in r0.
pub fn translate(classic: &[Instruction]) -> Result<Vec<u64>, Error> {
    let steps = classic.iter().enumerate().map(|(at, i)| decode(at, *i)).collect::<Result<Vec<_>, _>>()?;
    let reached = reached(&steps)?;
    let mut w = Writer::default();
    w.put(instruction(ALU32 | MOV, A, 0, 0, 0));
    w.put(instruction(ALU32 | MOV, X, 0, 0, 0));
    for slot in 0..16 {
        let read = |(s, r): (&Step, &bool)| *r && matches!(s, Step::LoadMemory { slot: x, .. } if *x == slot);
        if steps.iter().zip(&reached).any(read) {
            w.put(instruction(ST | MEM, FRAME, 0, place(slot), 0));
        }
    }
    for (at, step) in steps.iter().enumerate() {
        w.starts.push(w.code.len());
        if reached[at] {
            w.step(at, *step);
        }
    }
    w.finish()
}

/// Which instructions some path reaches. Classic BPF jumps forward only, so one pass does.
fn reached(steps: &[Step]) -> Result<Vec<bool>, Error> {
    let mut reached = vec![false; steps.len()];
    if let Some(first) = reached.first_mut() {
        *first = true;
    }
    for (at, step) in steps.iter().enumerate() {
        if !reached[at] {
            continue;
        }
        let next = match *step {
            Step::Jump { to } => [to, to],
            Step::Branch { yes, no, .. } => [yes, no],
            Step::ReturnConstant { .. } | Step::ReturnA | Step::Never => continue,
            _ => [at + 1, at + 1],
        };
        for n in next {
            *reached.get_mut(n).ok_or(Error::Open { at })? = true;
        }
    }
    if steps.is_empty() { Err(Error::Open { at: 0 }) } else { Ok(reached) }
}

fn place(slot: u8) -> i16 {
    MEMORY + 4 * i16::from(slot)
}

#[derive(Default)]
struct Writer {
    code: Vec<u64>,
    /// Index of the first eBPF instruction of each classic one.
    starts: Vec<usize>,
    jumps: Vec<(usize, Target)>,
}

impl Writer {
    fn put(&mut self, i: u64) {
        self.code.push(i);
    }

    fn jump(&mut self, i: u64, to: Target) {
        self.jumps.push((self.code.len(), to));
        self.code.push(i);
    }

    fn goto(&mut self, to: Target) {
        self.jump(instruction(JMP | JA, 0, 0, 0, 0), to);
    }

    fn load(&mut self, to: u8, size: u8, base: u8, off: i16) {
        let width = match size {
            4 => 0x00,
            2 => 0x08,
            _ => 0x10,
        };
        self.put(instruction(LDX | MEM | width, to, base, off, 0));
        if size > 1 {
            self.put(instruction(ALU32 | END_BE, to, 0, 0, u32::from(size) * 8));
        }
    }

    fn step(&mut self, at: usize, step: Step) {
        match step {
            Step::Load { size, at: Address::Absolute(k) } => {
                self.jump(instruction(JMP | JLT, VALID, 0, 0, k + u32::from(size)), Target::Fail);
                self.load(A, size, BYTES, k as i16);
            }
            Step::Load { size, at: Address::Relative(k) } => {
                // TMP is where the load ends, in 64 bits: X + k cannot wrap.
                self.put(instruction(ALU32 | MOV | REG, TMP, X, 0, 0));
                self.put(instruction(ALU64 | ADD, TMP, 0, 0, k + u32::from(size)));
                self.jump(instruction(JMP | JGT, TMP, 0, 0, VISIBLE), Target::Fail);
                self.jump(instruction(JMP | JGT | REG, TMP, VALID, 0, 0), Target::Fail);
                self.put(instruction(ALU64 | ADD | REG, TMP, BYTES, 0, 0));
                self.load(A, size, TMP, -i16::from(size));
            }
            Step::LoadImmediate { to, k } => self.put(instruction(ALU32 | MOV, to, 0, 0, k)),
            Step::LoadMemory { to, slot } => self.put(instruction(LDX | MEM, to, FRAME, place(slot), 0)),
            Step::LoadLength { to } => self.put(instruction(ALU32 | MOV | REG, to, LENGTH, 0, 0)),
            Step::HeaderLength { k } => {
                self.jump(instruction(JMP | JLT, VALID, 0, 0, k + 1), Target::Fail);
                self.load(X, 1, BYTES, k as i16);
                self.put(instruction(ALU32 | AND, X, 0, 0, 0x0f));
                self.put(instruction(ALU32 | LSH, X, 0, 0, 2));
            }
            Step::Store { from, slot } => self.put(instruction(STX | MEM, FRAME, from, place(slot), 0)),
            Step::Arithmetic { op, operand } => self.arithmetic(op, operand),
            Step::Copy { to, from } => self.put(instruction(ALU32 | MOV | REG, to, from, 0, 0)),
            Step::Jump { to } => self.goto_unless_next(at, to),
            Step::Branch { op, operand, yes, no } => self.branch(at, op, operand, yes, no),
            Step::ReturnConstant { matches: true } => {
                self.put(answer(true));
                self.goto(Target::Done);
            }
            Step::ReturnA => self.goto(Target::Done),
            Step::ReturnConstant { matches: false } | Step::Never => self.goto(Target::Fail),
        }
    }

    fn arithmetic(&mut self, op: u8, operand: Operand) {
        match (op, operand) {
            (NEG, _) => self.put(instruction(ALU32 | NEG, A, 0, 0, 0)),
            // A shift by the width or more gives 0 in classic BPF and is refused or masked in eBPF.
            (LSH | RSH, Operand::K(k)) if k > 31 => self.put(instruction(ALU32 | MOV, A, 0, 0, 0)),
            (LSH | RSH, Operand::X) => {
                self.put(instruction(JMP32 | JLT, X, 0, 1, 32));
                self.put(instruction(ALU32 | MOV, A, 0, 0, 0));
                self.put(instruction(ALU32 | op | REG, A, X, 0, 0));
            }
            (_, Operand::K(k)) => self.put(instruction(ALU32 | op, A, 0, 0, k)),
            (_, Operand::X) => {
                if matches!(op, DIV | MOD) {
                    self.jump(instruction(JMP32 | JEQ, X, 0, 0, 0), Target::Fail);
                }
                self.put(instruction(ALU32 | op | REG, A, X, 0, 0));
            }
        }
    }

    fn goto_unless_next(&mut self, at: usize, to: usize) {
        if to != at + 1 {
            self.goto(Target::Classic(to));
        }
    }

    fn branch(&mut self, at: usize, op: u8, operand: Operand, yes: usize, no: usize) {
        let test = |op: u8| match operand {
            Operand::K(k) => instruction(JMP32 | op, A, 0, 0, k),
            Operand::X => instruction(JMP32 | op | REG, A, X, 0, 0),
        };
        let opposite = match op {
            JEQ => Some(JNE),
            JGT => Some(JLE),
            JGE => Some(JLT),
            _ => None,
        };
        match opposite {
            _ if yes == no => self.goto_unless_next(at, yes),
            Some(op) if yes == at + 1 => self.jump(test(op), Target::Classic(no)),
            _ => {
                self.jump(test(op), Target::Classic(yes));
                self.goto_unless_next(at, no);
            }
        }
    }

    fn finish(mut self) -> Result<Vec<u64>, Error> {
        let fail = self.code.len();
        if self.jumps.iter().any(|(_, t)| matches!(t, Target::Fail)) {
            self.put(answer(false));
        }
        let length = self.code.len();
        for (at, target) in self.jumps {
            let to = match target {
                Target::Classic(i) => self.starts[i],
                Target::Fail => fail,
                Target::Done => length,
            };
            let off = i16::try_from(to - at - 1).map_err(|_| Error::TooFar(length))?;
            self.code[at] |= u64::from(off as u16) << 16;
        }
        Ok(self.code)
    }
}
