//! Code that runs inside of the guest: what all probes have in common. `stub.rs` has each probe's own.
//!
//! Every register that is used is saved on the stack of whoever was hit, flags too; vector registers are not touched. Nothing here
//! faults: memory whose address comes from the guest's data is read after a walk through the guest's own page tables.

use super::layout::*;
use crate::x86::Register;
use iced_x86::IcedError;
use iced_x86::code_asm::*;

/// What the code must know about where it runs.
#[derive(Debug, Clone, Default)]
pub struct Place {
    /// Where the shared memory is mapped: in the highest or the lowest 2 GB.
    pub base: u64,
    /// In a kernel, with the right to read CR3. Without: addresses are used as they are (a process of the host's, in tests).
    pub kernel: Option<Kernel>,
    /// The processor has `sahf` in 64-bit code.
    pub sahf: bool,
    /// An emulator executes it: there `pause` is no hint but leaves the emulated code, which takes longer than most answers.
    pub emulated: bool,
}

#[derive(Debug, Clone, Default)]
pub struct Kernel {
    /// Where all memory is mapped, by physical address.
    pub direct_map: u64,
    /// 4 or 5 levels of page tables.
    pub levels: u32,
    /// Offset of the pointer to the running task in the processor's own data, and in the task of pid, tgid, and comm.
    pub task: Option<Task>,
    /// Offset of the processor's number in its own data, and of its count of contexts.
    pub cpu: Option<i32>,
    pub contexts: Option<i32>,
}

#[derive(Debug, Clone, Copy)]
pub struct Task {
    pub current: i32,
    pub pid: i32,
    pub tgid: i32,
    pub comm: i32,
}

/// The frame on the stack, from its lowest word: words of its own, nine registers, flags, the address to go to; then what
/// the stack was.
pub(super) const OWN_TSC: i32 = 0;
pub(super) const OWN_INSTANCE: i32 = 8;
pub(super) const OWN_CELL: i32 = 16;
pub(super) const OWN_TICKET: i32 = 24;
pub(super) const SAVED: [(Register, AsmRegister64); 9] = [
    (Register::R11, r11),
    (Register::R10, r10),
    (Register::R9, r9),
    (Register::R8, r8),
    (Register::Rdi, rdi),
    (Register::Rsi, rsi),
    (Register::Rdx, rdx),
    (Register::Rcx, rcx),
    (Register::Rax, rax),
];
const KEPT: [(usize, AsmRegister64); 6] =
    [(RBX, rbx), (RBP, rbp), (R12, r12), (R13, r13), (R14, r14), (R15, r15)];
pub(super) const OWN_PROBE: i32 = 32;
pub(super) const OWN_HOW: i32 = 40;
pub(super) const OWN_ARGUMENT: i32 = 48;
/// Of probes without packets: a number that lies in two pages, put together.
const OWN_NUMBER: i32 = OWN_ARGUMENT;
pub(super) const OWN_SECOND: i32 = 56;
pub(super) const OWN_NEXT: i32 = 64;
pub(super) const OWN_END: i32 = 72;
pub(super) const OWN_LEFT: i32 = 80;
pub(super) const OWN: i32 = 88;
pub(super) const AT_FLAGS: i32 = OWN + 72;
pub(super) const AT_TARGET: i32 = AT_FLAGS + 8;
pub(super) const FRAME: i32 = AT_TARGET + 8;

/// The flags that arithmetic sets: overflow, sign, zero, adjust, parity, carry. The probes' code changes no other.
const COMPUTED: i32 = 0x8d5;

/// Those flags as the frame has them, without `popfq`, for which an emulator leaves the emulated code and a processor takes long. Changes rax and rcx.
pub(super) fn restore_flags(a: &mut CodeAssembler) -> Result<(), IcedError> {
    a.mov(ecx, dword_ptr(rsp + AT_FLAGS))?;
    a.mov(eax, ecx)?;
    a.shl(eax, 8)?;
    a.shr(ecx, 11)?;
    a.and(ecx, 1)?;
    a.mov(al, cl)?;
    // Overflows if that flag was set.
    a.add(al, 0x7f)?;
    a.sahf()
}

/// Where in the frame a register is, if it is there.
pub(super) fn saved(register: Register) -> Option<i32> {
    SAVED.iter().position(|(r, _)| *r == register).map(|n| OWN + 8 * n as i32)
}

pub(super) fn live(register: Register) -> AsmRegister64 {
    use Register::*;
    match register {
        Rax => rax,
        Rcx => rcx,
        Rdx => rdx,
        Rbx => rbx,
        Rsp => rsp,
        Rbp => rbp,
        Rsi => rsi,
        Rdi => rdi,
        R8 => r8,
        R9 => r9,
        R10 => r10,
        R11 => r11,
        R12 => r12,
        R13 => r13,
        R14 => r14,
        R15 => r15,
    }
}

/// The open call in rdx is the running task's. Changes rax and rcx.
pub(super) fn whose(a: &mut CodeAssembler, place: &Place) -> Result<(), IcedError> {
    match place.kernel.as_ref().and_then(|k| k.task) {
        Some(task) => {
            a.mov(rax, qword_ptr(task.current).gs())?;
            a.mov(ecx, dword_ptr(rax + task.pid))?;
            a.mov(qword_ptr(rdx + IN_TASK), rax)?;
            a.mov(dword_ptr(rdx + IN_PID), ecx)
        }
        None => a.mov(qword_ptr(rdx + IN_TASK), 0),
    }
}

/// Addresses of the code that all probes use.
#[derive(Debug, Clone, Copy, Default)]
pub struct Shared {
    pub call: u64,
    pub read: u64,
    pub text: u64,
    pub open: u64,
    pub walk: u64,
}

/// The shared code as bytes for `place.base + SHARED_CODE`, and where its parts are.
pub fn shared(place: &Place) -> Result<(Vec<u8>, Shared), IcedError> {
    let start = place.base + SHARED_CODE as u64;
    let (mut code, mut parts) = (Vec::new(), Shared::default());
    let mut part = |make: &mut dyn FnMut(&mut CodeAssembler, u64) -> Result<(), IcedError>,
                    known: u64|
     -> Result<u64, IcedError> {
        let at = start + code.len() as u64;
        let mut a = CodeAssembler::new(64)?;
        make(&mut a, known)?;
        code.extend(a.assemble(at)?);
        code.resize(code.len().next_multiple_of(16), 0xcc);
        Ok(at)
    };
    let walk = part(&mut |a, _| walk(a, place), 0)?;
    parts.walk = walk;
    parts.read = part(&mut |a, walk| read(a, walk), walk)?;
    parts.text = part(&mut |a, walk| text(a, walk), walk)?;
    parts.call = part(&mut |a, _| call(a, place), 0)?;
    parts.open = part(&mut |a, _| open(a, place), 0)?;
    debug_assert!(code.len() <= TRAMPOLINES - SHARED_CODE);
    Ok((code, parts))
}

/// In: rsi, an address. Out: r11, where the same byte can be read without a fault; carry set if nowhere. Changes rax, r8 to r10.
///
/// A page of a process is read through the map of all memory, which neither SMAP nor a concurrent unmapping stands in the way of.
fn walk(a: &mut CodeAssembler, place: &Place) -> Result<(), IcedError> {
    let Some(kernel) = &place.kernel else {
        let mut none = a.create_label();
        a.mov(r11, rsi)?;
        a.cmp(r11, 4096)?;
        a.jb(none)?;
        a.clc()?;
        a.ret()?;
        a.set_label(&mut none)?;
        a.stc()?;
        return a.ret();
    };
    let (mut tables, mut direct, mut found, mut none) =
        (a.create_label(), a.create_label(), a.create_label(), a.create_label());
    a.mov(r10, kernel.direct_map)?;
    a.mov(r11, rsi)?;
    a.call(tables)?;
    a.jc(none)?;
    a.test(rsi, rsi)?;
    a.js(found)?;
    a.set_label(&mut direct)?;
    a.lea(r11, qword_ptr(rax + r10))?;
    a.call(tables)?;
    a.jc(none)?;
    a.set_label(&mut found)?;
    a.clc()?;
    a.ret()?;
    a.set_label(&mut none)?;
    a.stc()?;
    a.ret()?;

    // r11: an address. rax: its physical one, or carry. Changes r8, r9.
    let (mut bad, mut large, mut done) = (a.create_label(), a.create_label(), a.create_label());
    a.set_label(&mut tables)?;
    // Bits above those that are translated must all be equal.
    let bits = 12 + 9 * kernel.levels;
    a.mov(rax, r11)?;
    a.sar(rax, bits - 1)?;
    a.inc(rax)?;
    a.cmp(rax, 1)?;
    a.ja(bad)?;
    a.mov(r8, cr3)?;
    for level in (0..kernel.levels).rev() {
        let shift = 12 + 9 * level;
        a.mov(rax, 0x000f_ffff_ffff_f000u64)?;
        a.and(r8, rax)?;
        a.mov(r9, r11)?;
        a.shr(r9, shift)?;
        a.and(r9d, 511)?;
        a.lea(r9, qword_ptr(r8 + r9 * 8))?;
        a.mov(r8, qword_ptr(r9 + r10))?;
        a.test(r8b, 1)?;
        a.je(bad)?;
        if level == 1 || level == 2 {
            let mut table = a.create_label();
            a.mov(r9, (1u64 << shift) - 1)?;
            a.test(r8b, 0x80)?;
            a.jne(large)?;
            a.set_label(&mut table)?;
        }
    }
    a.mov(r9, 4095u64)?;
    a.set_label(&mut large)?;
    // r9: the bits of the offset.
    a.mov(rax, 0x000f_ffff_ffff_f000u64)?;
    a.and(rax, r8)?;
    a.mov(r8, r9)?;
    a.not(r8)?;
    a.and(rax, r8)?;
    a.and(r9, r11)?;
    a.or(rax, r9)?;
    a.jmp(done)?;
    a.set_label(&mut bad)?;
    a.stc()?;
    a.ret()?;
    a.set_label(&mut done)?;
    a.clc()?;
    a.ret()
}

/// In: rsi, an address; ecx, how many bytes, up to 8. Out: r11, where they can be read; carry set if they cannot. Changes rax, rcx, rdx, rdi, r8 to r10.
///
/// What lies in two pages is put together in the frame, above which this is called.
fn read(a: &mut CodeAssembler, walk: u64) -> Result<(), IcedError> {
    let (mut two, mut bad) = (a.create_label(), a.create_label());
    a.mov(eax, esi)?;
    a.and(eax, 4095)?;
    a.add(eax, ecx)?;
    a.cmp(eax, 4096)?;
    a.ja(two)?;
    a.jmp(walk)?;
    a.set_label(&mut two)?;
    // How many bits are in the first page.
    a.mov(edi, 4096)?;
    a.mov(eax, esi)?;
    a.and(eax, 4095)?;
    a.sub(edi, eax)?;
    a.shl(edi, 3)?;
    a.call(walk)?;
    a.jc(bad)?;
    // The last eight bytes of that page: its own are the highest.
    a.mov(rax, r11)?;
    a.or(rax, 4095)?;
    a.mov(rdx, qword_ptr(rax - 7))?;
    a.mov(ecx, 64)?;
    a.sub(ecx, edi)?;
    a.shr(rdx, cl)?;
    a.or(rsi, 4095)?;
    a.inc(rsi)?;
    a.call(walk)?;
    a.jc(bad)?;
    a.mov(rax, qword_ptr(r11))?;
    a.mov(ecx, edi)?;
    a.shl(rax, cl)?;
    a.or(rax, rdx)?;
    a.mov(qword_ptr(rsp + OWN_NUMBER + 8), rax)?;
    a.lea(r11, qword_ptr(rsp + OWN_NUMBER + 8))?;
    a.clc()?;
    a.ret()?;
    a.set_label(&mut bad)?;
    a.stc()?;
    a.ret()
}

/// In: rsi, an address; rdi, where to; ecx, how many bytes at most. Out: edx, how many there were before the zero; its highest bit is set if
/// the rest cannot be read.
fn text(a: &mut CodeAssembler, walk: u64) -> Result<(), IcedError> {
    let (mut page, mut byte, mut unread, mut done) =
        (a.create_label(), a.create_label(), a.create_label(), a.create_label());
    a.xor(edx, edx)?;
    a.set_label(&mut page)?;
    a.call(walk)?;
    a.jc(unread)?;
    a.set_label(&mut byte)?;
    a.test(ecx, ecx)?;
    a.je(done)?;
    a.mov(al, byte_ptr(r11))?;
    a.test(al, al)?;
    a.je(done)?;
    a.mov(byte_ptr(rdi), al)?;
    a.inc(rdi)?;
    a.inc(rsi)?;
    a.inc(r11)?;
    a.inc(edx)?;
    a.dec(ecx)?;
    a.test(esi, 4095)?;
    a.je(page)?;
    a.jmp(byte)?;
    a.set_label(&mut unread)?;
    a.or(edx, 0x8000_0000u32 as i32)?;
    a.set_label(&mut done)?;
    a.ret()
}

/// In: ecx, cells; r9d, the probe. Out: rdx, an entry with its head but for the sequence number; r8, which that is; rsi, the host's clock as
/// it was before the hit's time; or carry, and the entry counted as lost: there was no room. Changes rax, rcx.
fn open(a: &mut CodeAssembler, place: &Place) -> Result<(), IcedError> {
    let mut full = a.create_label();
    a.mov(rsi, qword_ptr(place.base + HOST_NOW as u64))?;
    reserve(a, place, full)?;
    a.clc()?;
    a.ret()?;
    a.set_label(&mut full)?;
    a.stc()?;
    a.ret()
}

/// The same in place, without the host's clock; on to `full` where there was no room.
pub(super) fn reserve(a: &mut CodeAssembler, place: &Place, full: CodeLabel) -> Result<(), IcedError> {
    let at = |offset: usize| place.base + offset as u64;
    let (mut moment, mut room) = (a.create_label(), a.create_label());
    let kernel = place.kernel.as_ref();
    // The thread may be moved to another processor at any instruction: the counter and the processor are of one moment.
    a.set_label(&mut moment)?;
    if let Some(cpu) = kernel.and_then(|k| k.cpu) {
        a.mov(r10d, dword_ptr(cpu).gs())?;
    }
    a.rdtsc()?;
    if let Some(cpu) = kernel.and_then(|k| k.cpu) {
        a.cmp(r10d, dword_ptr(cpu).gs())?;
        a.jne(moment)?;
    }
    a.shl(rdx, 32)?;
    a.or(rdx, rax)?;
    a.mov(rax, qword_ptr(at(RING_HEAD)))?;
    a.sub(rax, qword_ptr(at(RING_TAIL)))?;
    a.cmp(rax, (CELLS - MARGIN) as i32)?;
    a.jb(room)?;
    a.shl(r9d, CONTROL.trailing_zeros())?;
    a.lock().inc(qword_ptr(r9 + at(CONTROLS + LOST) as i32))?;
    a.jmp(full)?;
    a.set_label(&mut room)?;
    a.mov(eax, ecx)?;
    a.lock().xadd(qword_ptr(at(RING_HEAD)), rcx)?;
    a.lea(r8, qword_ptr(rcx + 1))?;
    a.and(ecx, CELLS as i32 - 1)?;
    a.shl(ecx, CELL.trailing_zeros())?;
    a.add(rcx, at(RING) as i32)?;
    a.mov(qword_ptr(rcx + EN_TSC), rdx)?;
    a.mov(dword_ptr(rcx + EN_PROBE), r9d)?;
    a.mov(dword_ptr(rcx + EN_CELLS), eax)?;
    a.mov(rdx, rcx)?;
    if let Some(task) = kernel.and_then(|k| k.task) {
        a.mov(rcx, qword_ptr(task.current).gs())?;
        a.mov(qword_ptr(rdx + EN_TASK), rcx)?;
        for (to, from) in [(EN_PID, task.pid), (EN_TGID, task.tgid)] {
            a.mov(eax, dword_ptr(rcx + from))?;
            a.mov(dword_ptr(rdx + to), eax)?;
        }
        for half in [0, 8] {
            a.mov(rax, qword_ptr(rcx + task.comm + half))?;
            a.mov(qword_ptr(rdx + EN_COMM + half), rax)?;
        }
    }
    if kernel.is_some_and(|k| k.cpu.is_some()) {
        a.mov(dword_ptr(rdx + EN_CPU), r10d)?;
    }
    if let Some(contexts) = kernel.and_then(|k| k.contexts) {
        a.mov(eax, dword_ptr(contexts).gs())?;
        a.mov(dword_ptr(rdx + EN_CONTEXT), eax)?;
    }
    Ok(())
}

/// In: ecx, the probe above a byte that is WAITING; r10, the address that counts as the hit's. Out: eax, the answer, 0 if there was none.
///
/// With an answer that changes registers, they are those of the answer: in the frame, or at once.
fn call(a: &mut CodeAssembler, place: &Place) -> Result<(), IcedError> {
    // This is called: the frame is 8 bytes further up.
    let up = 8;
    let at = |offset: usize| place.base + offset as u64;
    let (mut missed, mut another, mut got, mut wait, mut look, mut end) = (
        a.create_label(),
        a.create_label(),
        a.create_label(),
        a.create_label(),
        a.create_label(),
        a.create_label(),
    );
    let (mut answered, mut waiting, mut begun, mut gone, mut keep) =
        (a.create_label(), a.create_label(), a.create_label(), a.create_label(), a.create_label());
    a.cmp(dword_ptr(at(GONE)), 0)?;
    a.jne(missed)?;
    a.rdtsc()?;
    a.shl(rdx, 32)?;
    a.or(rax, rdx)?;
    a.mov(r8, rax)?;
    // A free slot: the next one, or one of the next few.
    a.mov(r9d, 64)?;
    a.mov(esi, 1)?;
    a.set_label(&mut another)?;
    a.dec(r9d)?;
    a.js(missed)?;
    a.mov(edx, 1)?;
    a.lock().xadd(dword_ptr(at(TICKET)), edx)?;
    // Of each slot another count at each turn.
    a.mov(r11d, edx)?;
    a.shr(r11d, 8)?;
    a.shl(r11d, STATE_COUNT_SHIFT)?;
    a.or(r11d, ecx)?;
    a.and(edx, SLOT_COUNT as i32 - 1)?;
    a.shl(edx, SLOT.trailing_zeros())?;
    a.add(rdx, at(SLOTS) as i32)?;
    a.xor(eax, eax)?;
    a.lock().cmpxchg(dword_ptr(rdx + CLAIM), esi)?;
    a.je(got)?;
    a.jmp(another)?;
    a.set_label(&mut got)?;

    for (offset, register) in KEPT {
        a.mov(qword_ptr(rdx + offset), register)?;
    }
    for (offset, from) in [(R8, Register::R8), (R9, Register::R9), (R10, Register::R10), (R11, Register::R11)]
    {
        a.mov(rax, qword_ptr(rsp + saved(from).unwrap_or(0) + up))?;
        a.mov(qword_ptr(rdx + offset), rax)?;
    }
    a.mov(rax, qword_ptr(rsp + AT_FLAGS + up))?;
    a.mov(qword_ptr(rdx + FLAGS), rax)?;
    a.mov(qword_ptr(rdx + RIP), r10)?;
    a.mov(qword_ptr(rdx + TSC), r8)?;
    a.mov(rax, qword_ptr(rsp + OWN_INSTANCE + up))?;
    a.mov(qword_ptr(rdx + INSTANCE), rax)?;
    if let Some(kernel) = &place.kernel {
        a.mov(rax, cr3)?;
        a.mov(qword_ptr(rdx + CR3), rax)?;
        if let Some(cpu) = kernel.cpu {
            a.mov(r9d, dword_ptr(cpu).gs())?;
        }
        if let Some(task) = kernel.task {
            a.mov(r10, qword_ptr(task.current).gs())?;
        }
        a.mov(dword_ptr(rdx + CPU), r9d)?;
        a.mov(qword_ptr(rdx + TASK), r10)?;
    }
    for (offset, from) in [
        (RDI, Register::Rdi),
        (RSI, Register::Rsi),
        (RDX, Register::Rdx),
        (RCX, Register::Rcx),
        (RAX, Register::Rax),
    ] {
        a.mov(rax, qword_ptr(rsp + saved(from).unwrap_or(0) + up))?;
        a.mov(qword_ptr(rdx + offset), rax)?;
    }
    a.lea(rax, qword_ptr(rsp + FRAME + up))?;
    a.mov(qword_ptr(rdx + RSP), rax)?;
    a.mov(dword_ptr(rdx + STATE), r11d)?;

    // Under emulation the usual answer comes while this spins without a pause: some 10 us.
    let spin = if place.emulated { 4096 } else { 0 };
    if spin > 0 {
        let mut quick = a.create_label();
        a.mov(ecx, spin)?;
        a.set_label(&mut quick)?;
        a.mov(eax, dword_ptr(rdx + STATE))?;
        a.cmp(al, GO_ON as i32)?;
        a.jae(answered)?;
        a.dec(ecx)?;
        a.jne(quick)?;
    }
    a.set_label(&mut wait)?;
    a.mov(ecx, 128)?;
    a.set_label(&mut look)?;
    a.mov(eax, dword_ptr(rdx + STATE))?;
    a.cmp(al, GO_ON as i32)?;
    a.jae(answered)?;
    a.pause()?;
    a.dec(ecx)?;
    a.jne(look)?;
    a.mov(r9, rdx)?;
    a.rdtsc()?;
    a.shl(rdx, 32)?;
    a.or(rax, rdx)?;
    a.mov(rdx, r9)?;
    a.sub(rax, r8)?;
    a.mov(r9, rax)?;
    a.cmp(r9, qword_ptr(at(WAIT_BEGIN)))?;
    a.jb(wait)?;
    a.cmp(dword_ptr(at(HOST_STATE)), r11d)?;
    a.jne(waiting)?;
    a.mov(eax, edx)?;
    a.sub(eax, place.base as i32)?;
    a.cmp(dword_ptr(at(HOST_SLOT)), eax)?;
    a.je(begun)?;
    a.set_label(&mut waiting)?;
    a.mov(eax, r11d)?;
    a.xor(ecx, ecx)?;
    a.lock().cmpxchg(dword_ptr(rdx + STATE), ecx)?;
    a.jne(wait)?;
    a.mov(dword_ptr(rdx + CLAIM), 0)?;
    a.jmp(gone)?;
    a.set_label(&mut begun)?;
    a.cmp(r9, qword_ptr(at(WAIT_END)))?;
    a.jb(wait)?;
    a.mov(eax, r11d)?;
    a.mov(ecx, r11d)?;
    a.mov(cl, ABANDONED as i32)?;
    a.lock().cmpxchg(dword_ptr(rdx + STATE), ecx)?;
    a.jne(wait)?;
    a.set_label(&mut gone)?;
    a.mov(dword_ptr(at(GONE)), 1)?;
    a.set_label(&mut missed)?;
    a.xor(eax, eax)?;
    a.ret()?;

    a.set_label(&mut answered)?;
    a.movzx(eax, al)?;
    a.cmp(eax, CHANGED as i32)?;
    a.je(keep)?;
    a.cmp(eax, ELSEWHERE as i32)?;
    a.jne(end)?;
    a.mov(rcx, qword_ptr(rdx + RIP))?;
    a.mov(qword_ptr(rsp + AT_TARGET + up), rcx)?;
    a.set_label(&mut keep)?;
    for (offset, register) in KEPT {
        a.mov(register, qword_ptr(rdx + offset))?;
    }
    for (offset, to) in [
        (RAX, Register::Rax),
        (RCX, Register::Rcx),
        (RDX, Register::Rdx),
        (RSI, Register::Rsi),
        (RDI, Register::Rdi),
        (R8, Register::R8),
        (R9, Register::R9),
        (R10, Register::R10),
        (R11, Register::R11),
    ] {
        a.mov(rcx, qword_ptr(rdx + offset))?;
        a.mov(qword_ptr(rsp + saved(to).unwrap_or(0) + up), rcx)?;
    }
    a.mov(rcx, qword_ptr(rdx + FLAGS))?;
    // Only what programs compute with: the rest of the flags is the kernel's.
    a.and(ecx, COMPUTED)?;
    a.and(qword_ptr(rsp + AT_FLAGS + up), !COMPUTED)?;
    a.or(qword_ptr(rsp + AT_FLAGS + up), rcx)?;
    a.set_label(&mut end)?;
    a.mov(dword_ptr(rdx + CLAIM), 0)?;
    a.ret()
}
