//! The instruction at a probe's place: may it be displaced, by what, and what does its work elsewhere.
//!
//! One instruction is displaced, never two: then no thread can be between the bytes that change, and no branch leads there. So a
//! jump (five bytes) fits where the instruction has five bytes or more, as the room that ftrace has in every function does.
//! Calls are taken apart into a push of the true return address and a jump: nothing that sleeps has an address
//! of the displaced code on its stack.

use iced_x86::{
    BlockEncoder, BlockEncoderOptions, Code, Decoder, DecoderOptions, FlowControl, Instruction,
    InstructionBlock, Mnemonic, OpKind, Register,
};

/// Why no probe can be at an address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    #[error("the bytes there are no instruction")]
    NoInstruction,
    #[error("the address is inside of an instruction that starts {0} bytes before it")]
    Inside(u64),
    #[error("the instruction there ({0}) cannot be executed at another address")]
    Immovable(String),
    #[error("what the instruction there refers to is too far away from the probe's code")]
    Far,
}

/// Where execution goes after an instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flow {
    /// It does nothing: there is nothing to execute elsewhere.
    Nothing,
    /// To the next one.
    Next,
    /// To the next one or elsewhere.
    Either,
    /// Elsewhere.
    Away,
}

/// An instruction that a probe takes the place of.
#[derive(Debug, Clone)]
pub struct Displaced {
    pub address: u64,
    pub bytes: Vec<u8>,
    pub flow: Flow,
    instruction: Instruction,
}

impl Displaced {
    /// Decodes the instruction at `address`, whose bytes are the first of `code`. Up to 15 bytes are looked at.
    pub fn decode(address: u64, code: &[u8]) -> Result<Displaced, Unfit> {
        let instruction = Decoder::with_ip(64, code, address, DecoderOptions::NONE).decode();
        if instruction.is_invalid() {
            return Err(Unfit::NoInstruction);
        }
        let flow = match instruction.flow_control() {
            FlowControl::Next if is_nop(&instruction) => Flow::Nothing,
            FlowControl::Next => Flow::Next,
            FlowControl::ConditionalBranch => Flow::Either,
            FlowControl::UnconditionalBranch
            | FlowControl::IndirectBranch
            | FlowControl::Call
            | FlowControl::IndirectCall
            | FlowControl::Return => Flow::Away,
            _ => return Err(Unfit::Immovable(name(&instruction))),
        };
        let by_stack = instruction.op_count() > 0
            && instruction.op0_kind() == OpKind::Memory
            && instruction.memory_base() == Register::RSP;
        // Far transfers, returns from interrupts and of system calls change more than the address; so do those that look at their own. No
        // interrupt comes between some and the next one, which would no longer be the next.
        let odd = instruction.flow_control() == FlowControl::Return
            && !matches!(instruction.code(), Code::Retnq | Code::Retnq_imm16)
            || instruction.is_call_far()
            || instruction.is_call_far_indirect()
            || instruction.is_jmp_far_indirect()
            || (instruction.is_call_near_indirect()
                && (by_stack || instruction.op0_register() == Register::RSP))
            || instruction.is_loop()
            || instruction.is_loopcc()
            || instruction.is_jcx_short()
            || instruction.mnemonic() == Mnemonic::Sti
            || instruction.op_count() > 0 && instruction.op0_register() == Register::SS;
        if odd
            || instruction.is_privileged()
                && matches!(instruction.code(), Code::Sysretq | Code::Iretq | Code::Swapgs | Code::Hlt)
            // Behind `sti`, whose interrupt must not come before it.
            || matches!(instruction.mnemonic(), Mnemonic::Mwait | Mnemonic::Mwaitx)
        {
            return Err(Unfit::Immovable(name(&instruction)));
        }
        Ok(Displaced { address, bytes: code[..instruction.len()].to_vec(), flow, instruction })
    }

    /// The address behind it.
    pub fn next(&self) -> u64 {
        self.address + self.bytes.len() as u64
    }

    /// Whether a jump fits into its bytes.
    pub fn takes_jump(&self) -> bool {
        self.bytes.len() >= 5
    }

    /// Code for the address `at` that does what the instruction did and, where execution goes on behind it, jumps to `then`.
    pub fn elsewhere(&self, at: u64, then: u64) -> Result<Vec<u8>, Unfit> {
        let mut code = Vec::new();
        if self.instruction.is_call_near() || self.instruction.is_call_near_indirect() {
            code.push(0x68);
            code.extend((self.next() as u32).to_le_bytes());
            if self.next() as i32 as u64 != self.next() {
                code.extend([0xc7, 0x44, 0x24, 0x04]);
                code.extend(((self.next() >> 32) as u32).to_le_bytes());
            }
            let ip = at + code.len() as u64;
            if self.instruction.is_call_near() {
                code.extend(jump(ip, self.instruction.near_branch_target()).ok_or(Unfit::Far)?);
            } else {
                let mut jump = self.instruction;
                jump.set_code(Code::Jmp_rm64);
                code.extend(encode(&[jump], ip)?);
            }
            return Ok(code);
        }
        if self.flow != Flow::Nothing {
            code.extend(encode(&[self.instruction], at)?);
        }
        if self.flow != Flow::Away {
            code.extend(jump(at + code.len() as u64, then).ok_or(Unfit::Far)?);
        }
        Ok(code)
    }
}

fn encode(block: &[Instruction], ip: u64) -> Result<Vec<u8>, Unfit> {
    BlockEncoder::encode(64, InstructionBlock::new(block, ip), BlockEncoderOptions::NONE)
        .map(|r| r.code_buffer)
        .map_err(|_| Unfit::Far)
}

fn name(i: &Instruction) -> String {
    format!("{:?}", i.mnemonic()).to_lowercase()
}

fn is_nop(i: &Instruction) -> bool {
    matches!(i.mnemonic(), Mnemonic::Nop | Mnemonic::Endbr64)
}

/// A jump of five bytes from `at` to `to`; none where that is more than 2 GB away.
pub fn jump(at: u64, to: u64) -> Option<[u8; 5]> {
    let distance = i32::try_from(to.wrapping_sub(at.wrapping_add(5)) as i64).ok()?.to_le_bytes();
    Some([0xe9, distance[0], distance[1], distance[2], distance[3]])
}

/// Is there an instruction that starts at `address`, when `code` is decoded from `from`, where one is known to start?
pub fn starts_at(from: u64, code: &[u8], address: u64) -> Result<(), Unfit> {
    let mut decoder = Decoder::with_ip(64, code, from, DecoderOptions::NONE);
    while decoder.ip() < address {
        let start = decoder.ip();
        if !decoder.can_decode() || decoder.decode().is_invalid() {
            return Err(Unfit::NoInstruction);
        }
        if decoder.ip() > address {
            return Err(Unfit::Inside(address - start));
        }
    }
    Ok(())
}

/// How many bytes before `address` the guest has a breakpoint of its own in the function that begins at `from`, if that is so near that the kernel may put a jump
/// in its place that reaches as far (`arch_optimize_kprobes`), or that where instructions begin behind it is not sure. Compilers put breakpoints where nothing
/// comes: behind what goes elsewhere.
pub fn own_breakpoint(from: u64, code: &[u8], address: u64) -> Option<u64> {
    const NEAR: u64 = 20;
    let mut decoder = Decoder::with_ip(64, code, from, DecoderOptions::NONE);
    let (mut goes_on, mut found) = (true, None);
    while decoder.ip() < address && decoder.can_decode() {
        let at = decoder.ip();
        let instruction = decoder.decode();
        match instruction.flow_control() {
            FlowControl::Interrupt if instruction.code() == Code::Int3 => {
                found = goes_on.then_some(address - at).or(found);
                continue;
            }
            FlowControl::Return
            | FlowControl::UnconditionalBranch
            | FlowControl::IndirectBranch
            | FlowControl::Exception => goes_on = false,
            _ => goes_on = true,
        }
    }
    found.filter(|n| *n < NEAR)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_breakpoint_of_the_guests_own_shortly_before_is_seen_and_a_compilers_is_none() {
        // push rbp; int3; mov edi, eax; mov ecx, 0xcc; ret; int3; int3; nop
        let code = [0x55, 0xcc, 0x89, 0xc7, 0xb9, 0xcc, 0, 0, 0, 0xc3, 0xcc, 0xcc, 0x90];
        let before = |at| own_breakpoint(0x1000, &code, at);
        assert_eq!(
            [before(0x1001), before(0x1002), before(0x1004), before(0x100c)],
            [None, Some(1), Some(3), Some(11)]
        );
        assert_eq!(own_breakpoint(0x1000, &code[2..], 0x100a), None);
        let far: Vec<u8> = code.into_iter().take(2).chain([0x90; 40]).collect();
        assert_eq!(own_breakpoint(0x1000, &far, 0x1020), None);
    }

    const HERE: u64 = 0xffff_ffff_8100_0000;
    const THERE: u64 = 0xffff_ffff_a000_0000;

    fn again(code: &[u8], at: u64) -> Vec<Instruction> {
        Decoder::with_ip(64, code, at, DecoderOptions::NONE).into_iter().collect()
    }

    #[test]
    fn the_room_of_ftrace_takes_a_jump_and_leaves_nothing_to_do() {
        let d = Displaced::decode(HERE, &[0x0f, 0x1f, 0x44, 0x00, 0x00, 0x55]).unwrap();
        assert!(d.takes_jump());
        assert_eq!(d.flow, Flow::Nothing);
        assert_eq!(d.elsewhere(THERE, d.next()).unwrap(), jump(THERE, HERE + 5).unwrap());
    }

    #[test]
    fn a_relative_address_stays_what_it_was() {
        // mov rax, [rip+0x100]
        let d = Displaced::decode(HERE, &[0x48, 0x8b, 0x05, 0x00, 0x01, 0x00, 0x00]).unwrap();
        let code = again(&d.elsewhere(THERE, d.next()).unwrap(), THERE);
        assert_eq!(code[0].ip_rel_memory_address(), HERE + 7 + 0x100);
        assert_eq!(code[1].near_branch_target(), HERE + 7);
    }

    #[test]
    fn a_short_branch_becomes_a_near_one_with_the_same_target() {
        // je +0x10
        let d = Displaced::decode(HERE, &[0x74, 0x10]).unwrap();
        assert!(!d.takes_jump());
        let code = again(&d.elsewhere(THERE, d.next()).unwrap(), THERE);
        assert_eq!(code[0].near_branch_target(), HERE + 0x12);
        assert_eq!(code[1].near_branch_target(), HERE + 2);
    }

    #[test]
    fn a_call_returns_to_where_it_stood() {
        let d = Displaced::decode(HERE, &[0xe8, 0x00, 0x10, 0x00, 0x00]).unwrap();
        let code = again(&d.elsewhere(THERE, d.next()).unwrap(), THERE);
        assert_eq!(code[0].immediate(0), HERE + 5);
        assert_eq!(code[1].near_branch_target(), HERE + 0x1005);
        // call [rax+0x20]
        let d = Displaced::decode(HERE, &[0xff, 0x50, 0x20]).unwrap();
        let code = again(&d.elsewhere(THERE, d.next()).unwrap(), THERE);
        assert_eq!(code[0].immediate(0), HERE + 3);
        assert_eq!(
            (code[1].code(), code[1].memory_base(), code[1].memory_displacement64()),
            (Code::Jmp_rm64, Register::RAX, 0x20)
        );
    }

    #[test]
    fn what_cannot_move_is_refused_by_name() {
        for (bytes, what) in [
            (&[0x48, 0xcf][..], "iretq"),
            (&[0x0f, 0x0b], "ud2"),
            (&[0xcc], "int3"),
            (&[0x48, 0x0f, 0x07], "sysretq"),
            (&[0xff, 0x54, 0x24, 0x08], "call"),
            (&[0xe2, 0x10], "loop"),
            (&[0xfb], "sti"),
            (&[0x0f, 0x01, 0xc9], "mwait"),
            (&[0x8e, 0xd0], "mov"),
        ] {
            assert_eq!(
                Displaced::decode(HERE, bytes).unwrap_err(),
                Unfit::Immovable(what.into()),
                "{bytes:x?}"
            );
        }
        assert_eq!(Displaced::decode(HERE, &[0x06]).unwrap_err(), Unfit::NoInstruction);
        assert_eq!(Displaced::decode(HERE, &[]).unwrap_err(), Unfit::NoInstruction);
    }

    #[test]
    fn the_middle_of_an_instruction_is_recognised() {
        let code = [0x48, 0x89, 0xe5, 0x0f, 0x1f, 0x44, 0x00, 0x00, 0xc3];
        assert_eq!(starts_at(HERE, &code, HERE + 3), Ok(()));
        assert_eq!(starts_at(HERE, &code, HERE + 8), Ok(()));
        assert_eq!(starts_at(HERE, &code, HERE + 5), Err(Unfit::Inside(2)));
        assert_eq!(starts_at(HERE, &code, HERE + 40), Err(Unfit::NoInstruction));
    }
}
