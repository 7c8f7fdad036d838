//! A probe's own code: is it enabled, do its conditions hold, then what its act is; and the way back.

use super::code::*;
use super::layout::*;
use super::values::*;
use crate::x86::{Displaced, Flow, Register, Unfit, jump};
use iced_x86::IcedError;
use iced_x86::code_asm::*;

/// What to make code for.
#[derive(Debug, Clone)]
pub struct Stub<'a> {
    pub id: usize,
    pub conditions: &'a [Condition],
    pub act: &'a Act,
    /// Flags and argument registers' contents are those at the entry of a function: nobody needs the flags afterwards.
    pub at_entry: bool,
}

/// Of a probe whose function's return is wanted: what is done at the entry.
#[derive(Debug, Clone)]
pub struct Returns<'a> {
    /// Ask the host at the entry too.
    pub call_at_entry: bool,
    /// Values at the entry that the return needs, at most [`SAVED_MAX`].
    pub saved: &'a [Value],
    /// Which open calls are its own: the first, and how many.
    pub first: usize,
    pub count: usize,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failed {
    #[error(transparent)]
    Unfit(#[from] Unfit),
    #[error("the probe's code cannot be made: {0}")]
    Code(String),
    #[error("the values of one entry take {0} bytes, and {1} is the most")]
    TooLong(usize, usize),
    #[error("one entry has {0} values, and {VALUES_MAX} is the most")]
    TooMany(usize),
}

/// As many as an entry has bits for values that could not be read.
const VALUES_MAX: usize = 16;

impl From<IcedError> for Failed {
    fn from(e: IcedError) -> Failed {
        Failed::Code(e.to_string())
    }
}

/// Code, and the address that the patched instruction jumps to.
#[derive(Debug, Clone)]
pub struct Made {
    pub code: Vec<u8>,
    pub entry: u64,
    /// Of one at a function's entry: the jump of five bytes by which all ways leave it.
    pub exit: Option<u64>,
}

pub struct Maker<'a> {
    pub place: &'a Place,
    pub shared: Shared,
}

impl Maker<'_> {
    pub(super) fn control(&self, id: usize, word: usize) -> u64 {
        self.place.base + (CONTROLS + id * CONTROL + word) as u64
    }

    /// The code of a probe at `displaced`, for the address `at`. `after`: another probe's act, when the instruction was executed.
    pub fn site(
        &self,
        at: u64,
        displaced: &Displaced,
        stub: &Stub,
        returns: Option<&Returns>,
        after: Option<&Stub>,
    ) -> Result<Made, Failed> {
        let mut code = Vec::new();
        let mut back = displaced.next();
        if let Some(after) = after {
            let made = self.part(at, after, None, back, back)?;
            back = made.entry;
            code = made.code;
        }
        if displaced.flow != Flow::Nothing {
            let here = at + code.len() as u64;
            code.extend(displaced.elsewhere(here, back)?);
            back = here;
        }
        code.resize(code.len().next_multiple_of(16), 0xcc);
        let main = self.part(at + code.len() as u64, stub, returns, displaced.address, back)?;
        code.extend(&main.code);
        Ok(Made { code, ..main })
    }

    /// The code that runs when a function returns whose entry was seen: `trampoline` jumps here.
    pub fn at_return(&self, at: u64, stub: &Stub) -> Result<Made, Failed> {
        let mut a = CodeAssembler::new(64)?;
        let mut done = a.create_label();
        self.begin_return(&mut a)?;
        a.cmp(dword_ptr(self.control(stub.id, ENABLED)), 0)?;
        a.je(done)?;
        self.act(&mut a, stub, None, done)?;
        a.set_label(&mut done)?;
        self.end_return(&mut a)?;
        Ok(Made { code: a.assemble(at)?, entry: at, exit: None })
    }

    /// The code that is assembled for `at` and, behind it, a jump to `back`.
    pub(super) fn leave(a: &mut CodeAssembler, at: u64, back: u64) -> Result<Made, Failed> {
        let mut code = a.assemble(at)?;
        let exit = at + code.len() as u64;
        code.extend(jump(exit, back).ok_or(Unfit::Far)?);
        Ok(Made { code, entry: at, exit: Some(exit) })
    }

    /// The number of the open call is on the stack, where the frame has the address to go to. Then the open call is in rax and in the frame.
    pub(super) fn begin_return(&self, a: &mut CodeAssembler) -> Result<(), IcedError> {
        self.push_frame(a)?;
        a.mov(eax, dword_ptr(rsp + AT_TARGET))?;
        a.and(eax, INSTANCE_COUNT as i32 - 1)?;
        a.shl(eax, INSTANCE_SIZE.trailing_zeros())?;
        a.add(rax, (self.place.base + INSTANCES as u64) as i32)?;
        a.mov(qword_ptr(rsp + OWN_INSTANCE), rax)?;
        a.mov(rcx, qword_ptr(rax + IN_RETURN))?;
        a.mov(qword_ptr(rsp + AT_TARGET), rcx)
    }

    pub(super) fn end_return(&self, a: &mut CodeAssembler) -> Result<(), IcedError> {
        a.mov(rax, qword_ptr(rsp + OWN_INSTANCE))?;
        a.mov(dword_ptr(rax + IN_STATE), IN_FREE as i32)?;
        self.pop_frame(a)?;
        // A caller does not look at flags, but goes where the address behind them says.
        a.lea(rsp, qword_ptr(rsp + 8))?;
        a.ret()
    }

    /// The code that stands for the return address of open call `n`.
    pub fn trampoline(&self, n: usize, target: u64) -> Result<Vec<u8>, Failed> {
        let at = self.place.base + (TRAMPOLINES + n * TRAMPOLINE) as u64;
        let mut a = CodeAssembler::new(64)?;
        a.push(n as i32)?;
        a.jmp(target)?;
        Ok(a.assemble(at)?)
    }

    pub(super) fn push_frame(&self, a: &mut CodeAssembler) -> Result<(), IcedError> {
        a.pushfq()?;
        self.push_registers(a)
    }

    pub(super) fn push_registers(&self, a: &mut CodeAssembler) -> Result<(), IcedError> {
        for (_, register) in SAVED.iter().rev() {
            a.push(*register)?;
        }
        a.lea(rsp, qword_ptr(rsp - OWN))
    }

    pub(super) fn pop_frame(&self, a: &mut CodeAssembler) -> Result<(), IcedError> {
        a.lea(rsp, qword_ptr(rsp + OWN))?;
        for (_, register) in SAVED {
            a.pop(register)?;
        }
        Ok(())
    }

    /// Code that acts and goes on at `back`; its address counts as `place`. Returns it and where it begins, which is at `at`.
    fn part(
        &self,
        at: u64,
        stub: &Stub,
        returns: Option<&Returns>,
        place: u64,
        back: u64,
    ) -> Result<Made, Failed> {
        let mut a = CodeAssembler::new(64)?;
        let enabled = dword_ptr(self.control(stub.id, ENABLED));
        // The shortest case needs no register, and at an entry no flags.
        if *stub.act == Act::Count && stub.conditions.is_empty() && returns.is_none() {
            let mut off = a.create_label();
            match (stub.at_entry, self.place.sahf) {
                (true, _) => {}
                (_, true) => {
                    a.push(rax)?;
                    a.lahf()?;
                    a.seto(al)?;
                }
                (_, false) => a.pushfq()?,
            }
            a.cmp(enabled, 0)?;
            a.je(off)?;
            a.lock().inc(qword_ptr(self.control(stub.id, HITS)))?;
            a.set_label(&mut off)?;
            match (stub.at_entry, self.place.sahf) {
                (true, _) => {}
                (_, true) => {
                    // Overflows if it had before.
                    a.add(al, 0x7f)?;
                    a.sahf()?;
                    a.pop(rax)?;
                }
                (_, false) => a.popfq()?,
            }
            a.zero_bytes()?;
            let made = Self::leave(&mut a, at, back)?;
            return Ok(Made { exit: made.exit.filter(|_| stub.at_entry), ..made });
        }
        let (mut off, mut out) = (a.create_label(), a.create_label());
        if stub.at_entry {
            a.cmp(enabled, 0)?;
            a.je(off)?;
        }
        // Nobody is shown the flags of who enters a function, unless a handler is called.
        let records = matches!(stub.act, Act::Count | Act::Record(_)) && returns.is_none()
            || returns.is_some_and(|r| !r.call_at_entry);
        if stub.at_entry && records {
            a.lea(rsp, qword_ptr(rsp - 16))?;
        } else {
            a.lea(rsp, qword_ptr(rsp - 8))?;
            a.pushfq()?;
        }
        let mut off_with_flags = a.create_label();
        if !stub.at_entry {
            a.cmp(enabled, 0)?;
            a.je(off_with_flags)?;
        }
        self.push_registers(&mut a)?;
        match returns {
            None => self.act(&mut a, stub, Some(place), out)?,
            Some(returns) => self.enter(&mut a, stub, returns, place, out)?,
        }
        a.set_label(&mut out)?;
        let by_sahf = !stub.at_entry && self.place.sahf;
        if by_sahf {
            restore_flags(&mut a)?;
        }
        self.pop_frame(&mut a)?;
        if stub.at_entry || by_sahf {
            a.lea(rsp, qword_ptr(rsp + 16))?;
        }
        if stub.at_entry {
            a.set_label(&mut off)?;
            a.zero_bytes()?;
            return Self::leave(&mut a, at, back);
        } else {
            if by_sahf {
                a.jmp(back)?;
            }
            a.set_label(&mut off_with_flags)?;
            a.popfq()?;
            a.lea(rsp, qword_ptr(rsp + 8))?;
            a.jmp(back)?;
            a.set_label(&mut off)?;
            a.int3()?;
        }
        Ok(Made { code: a.assemble(at)?, entry: at, exit: None })
    }

    /// The conditions, and what is done if they hold. Goes on at `out`, with the frame on the stack. `place`: the address of the hit; at a
    /// return it is what the frame has.
    fn act(
        &self,
        a: &mut CodeAssembler,
        stub: &Stub,
        place: Option<u64>,
        out: CodeLabel,
    ) -> Result<(), Failed> {
        for condition in stub.conditions {
            self.condition(a, condition, out)?;
        }
        match stub.act {
            Act::Count => a.lock().inc(qword_ptr(self.control(stub.id, HITS)))?,
            Act::Record(items) => self.record(a, stub.id, items, out)?,
            Act::Call => {
                let (mut answered, mut plain) = (a.create_label(), a.create_label());
                match place {
                    Some(place) => a.mov(r10, place)?,
                    None => a.mov(r10, qword_ptr(rsp + AT_TARGET))?,
                }
                a.mov(ecx, (stub.id as i32) << 8 | WAITING as i32)?;
                a.call(self.shared.call)?;
                a.test(eax, eax)?;
                a.jne(answered)?;
                a.lock().inc(qword_ptr(self.control(stub.id, MISSED)))?;
                a.jmp(out)?;
                a.set_label(&mut answered)?;
                a.lock().inc(qword_ptr(self.control(stub.id, HITS)))?;
                if place.is_some() {
                    a.cmp(eax, ELSEWHERE as i32)?;
                    a.jne(plain)?;
                    self.pop_frame(a)?;
                    a.popfq()?;
                    a.ret()?;
                    a.set_label(&mut plain)?;
                    if stub.at_entry {
                        a.zero_bytes()?;
                    } else {
                        a.jmp(out)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// At the entry of a function: take one of the probe's open calls, ask the host if it wants to be asked, replace the return address.
    fn enter(
        &self,
        a: &mut CodeAssembler,
        stub: &Stub,
        returns: &Returns,
        place: u64,
        out: CodeLabel,
    ) -> Result<(), Failed> {
        for condition in stub.conditions {
            self.condition(a, condition, out)?;
        }
        let (mut next, mut wrapped, mut got, mut full) =
            (a.create_label(), a.create_label(), a.create_label(), a.create_label());
        let hint = dword_ptr(self.control(stub.id, HINT));
        a.mov(r9d, returns.count as i32)?;
        a.mov(r8d, hint)?;
        a.set_label(&mut next)?;
        a.dec(r9d)?;
        a.js(full)?;
        a.inc(r8d)?;
        a.cmp(r8d, returns.count as i32)?;
        a.jb(wrapped)?;
        a.xor(r8d, r8d)?;
        a.set_label(&mut wrapped)?;
        a.lea(rdx, qword_ptr(r8 + returns.first as i32))?;
        a.shl(rdx, INSTANCE_SIZE.trailing_zeros())?;
        a.add(rdx, (self.place.base + INSTANCES as u64) as i32)?;
        a.xor(eax, eax)?;
        a.mov(ecx, IN_CLAIMED as i32)?;
        a.lock().cmpxchg(dword_ptr(rdx + IN_STATE), ecx)?;
        a.je(got)?;
        a.jmp(next)?;
        a.set_label(&mut full)?;
        a.lock().inc(qword_ptr(self.control(stub.id, NO_RETURN)))?;
        a.jmp(out)?;

        a.set_label(&mut got)?;
        a.mov(hint, r8d)?;
        a.mov(qword_ptr(rsp + OWN_INSTANCE), rdx)?;
        a.mov(dword_ptr(rdx + IN_PROBE), stub.id as i32)?;
        if !returns.saved.is_empty() {
            a.mov(dword_ptr(rdx + IN_UNREAD), 0)?;
        }
        for (n, value) in returns.saved.iter().enumerate() {
            let (mut unread, mut kept) = (a.create_label(), a.create_label());
            self.value(a, value, unread)?;
            a.jmp(kept)?;
            a.set_label(&mut unread)?;
            a.mov(rdx, qword_ptr(rsp + OWN_INSTANCE))?;
            a.or(dword_ptr(rdx + IN_UNREAD), 1 << n)?;
            a.set_label(&mut kept)?;
            a.mov(rdx, qword_ptr(rsp + OWN_INSTANCE))?;
            a.mov(qword_ptr(rdx + IN_SAVED + 8 * n), rax)?;
        }
        if returns.call_at_entry {
            let (mut asked, mut leave) = (a.create_label(), a.create_label());
            a.mov(r10, place)?;
            a.mov(ecx, (stub.id as i32) << 8 | WAITING as i32)?;
            a.call(self.shared.call)?;
            a.cmp(eax, NO_RETURN_WANTED as i32)?;
            a.je(leave)?;
            a.test(eax, eax)?;
            a.jne(asked)?;
            a.lock().inc(qword_ptr(self.control(stub.id, MISSED)))?;
            a.set_label(&mut leave)?;
            a.mov(rdx, qword_ptr(rsp + OWN_INSTANCE))?;
            a.mov(dword_ptr(rdx + IN_STATE), IN_FREE as i32)?;
            a.jmp(out)?;
            a.set_label(&mut asked)?;
            a.mov(rdx, qword_ptr(rsp + OWN_INSTANCE))?;
        }
        whose(a, self.place)?;
        a.lea(r8, qword_ptr(rsp + FRAME))?;
        a.mov(qword_ptr(rdx + IN_PLACE), r8)?;
        a.mov(rax, qword_ptr(r8))?;
        a.mov(qword_ptr(rdx + IN_RETURN), rax)?;
        a.mov(rcx, rdx)?;
        a.rdtsc()?;
        a.shl(rdx, 32)?;
        a.or(rax, rdx)?;
        a.mov(qword_ptr(rcx + IN_TSC), rax)?;
        a.mov(dword_ptr(rcx + IN_STATE), IN_ARMED as i32)?;
        // The trampoline has the number of the open call.
        a.sub(rcx, (self.place.base + INSTANCES as u64) as i32)?;
        a.shr(rcx, (INSTANCE_SIZE / TRAMPOLINE).trailing_zeros())?;
        a.add(rcx, (self.place.base + TRAMPOLINES as u64) as i32)?;
        a.mov(qword_ptr(r8), rcx)?;
        Ok(())
    }

    /// rax is the value, or 0 and on to `unread`. Changes all registers of the frame.
    fn value(&self, a: &mut CodeAssembler, value: &Value, unread: CodeLabel) -> Result<(), Failed> {
        match value.base {
            Base::Register(Register::Rsp) => a.lea(rsi, qword_ptr(rsp + FRAME))?,
            Base::Register(register) => match saved(register) {
                Some(offset) => a.mov(rsi, qword_ptr(rsp + offset))?,
                None => a.mov(rsi, live(register))?,
            },
            Base::Result => a.mov(rsi, qword_ptr(rsp + saved(Register::Rax).unwrap_or(0)))?,
            Base::Saved(n) => {
                let n = n % SAVED_MAX;
                a.mov(rsi, qword_ptr(rsp + OWN_INSTANCE))?;
                a.mov(eax, 0)?;
                a.test(dword_ptr(rsi + IN_UNREAD), 1 << n)?;
                a.jne(unread)?;
                a.mov(rsi, qword_ptr(rsi + IN_SAVED + 8 * n))?;
            }
            Base::Address(address) => a.mov(rsi, address)?,
            Base::Task => match self.place.kernel.as_ref().and_then(|k| k.task) {
                Some(task) => a.mov(rsi, qword_ptr(task.current).gs())?,
                None => a.xor(esi, esi)?,
            },
        }
        let mut readable = a.create_label();
        for (n, step) in value.steps.iter().enumerate() {
            let width = if n + 1 == value.steps.len() { value.width } else { 8 };
            let mut good = a.create_label();
            a.lea(rsi, qword_ptr(rsi + *step))?;
            a.mov(ecx, i32::from(width))?;
            a.call(self.shared.read)?;
            a.jnc(good)?;
            a.mov(eax, 0)?;
            a.jmp(unread)?;
            a.set_label(&mut good)?;
            if n + 1 < value.steps.len() {
                a.mov(rsi, qword_ptr(r11))?;
            } else {
                match width {
                    1 => a.movzx(esi, byte_ptr(r11))?,
                    2 => a.movzx(esi, word_ptr(r11))?,
                    4 => a.mov(esi, dword_ptr(r11))?,
                    _ => a.mov(rsi, qword_ptr(r11))?,
                }
            }
        }
        a.set_label(&mut readable)?;
        if value.plus != 0 {
            a.lea(rsi, qword_ptr(rsi + value.plus))?;
        }
        if value.bits > 0 {
            a.shr(rsi, u32::from(value.shift))?;
            a.mov(rax, value.mask())?;
            a.and(rsi, rax)?;
        }
        match (value.width, value.signed) {
            (1, false) => a.movzx(eax, sil)?,
            (2, false) => a.movzx(eax, si)?,
            (4, false) => a.mov(eax, esi)?,
            (1, true) => a.movsx(rax, sil)?,
            (2, true) => a.movsx(rax, si)?,
            (4, true) => a.movsxd(rax, esi)?,
            _ => a.mov(rax, rsi)?,
        }
        Ok(())
    }

    fn condition(&self, a: &mut CodeAssembler, condition: &Condition, out: CodeLabel) -> Result<(), Failed> {
        self.value(a, &condition.value, out)?;
        a.mov(rcx, condition.with)?;
        if condition.compare == Compare::AnyOf {
            a.test(rax, rcx)?;
            a.je(out)?;
            return Ok(());
        }
        a.cmp(rax, rcx)?;
        match (condition.compare, condition.value.signed) {
            (Compare::Equal, _) => a.jne(out)?,
            (Compare::NotEqual, _) => a.je(out)?,
            (Compare::Less, true) => a.jge(out)?,
            (Compare::AtMost, true) => a.jg(out)?,
            (Compare::Greater, true) => a.jle(out)?,
            (Compare::AtLeast, true) => a.jl(out)?,
            (Compare::Less, false) => a.jae(out)?,
            (Compare::AtMost, false) => a.ja(out)?,
            (Compare::Greater, false) => a.jbe(out)?,
            (Compare::AtLeast, false) => a.jb(out)?,
            (Compare::AnyOf, _) => {}
        }
        Ok(())
    }

    fn record(&self, a: &mut CodeAssembler, id: usize, items: &[Item], out: CodeLabel) -> Result<(), Failed> {
        let bytes: usize = items.iter().map(Item::room).sum();
        if items.len() > VALUES_MAX {
            return Err(Failed::TooMany(items.len()));
        }
        if bytes > (ENTRY_CELLS - 1) * CELL {
            return Err(Failed::TooLong(bytes, (ENTRY_CELLS - 1) * CELL));
        }
        let cells = 1 + bytes.div_ceil(CELL);
        a.mov(ecx, cells as i32)?;
        a.mov(r9d, id as i32)?;
        // In place: an emulator looks up where each return from a routine leads.
        reserve(a, self.place, out)?;
        a.mov(qword_ptr(rsp + OWN_TICKET), r8)?;
        a.mov(qword_ptr(rsp + OWN_CELL), rdx)?;
        if items.contains(&Item::Duration) {
            a.mov(rsi, qword_ptr(rsp + OWN_INSTANCE))?;
            a.mov(rdx, qword_ptr(rdx + EN_TSC))?;
            a.sub(rdx, qword_ptr(rsi + IN_TSC))?;
            a.mov(qword_ptr(rsp + OWN_TSC), rdx)?;
        }
        let mut offset = CELL;
        for (n, item) in items.iter().enumerate() {
            let (mut unread, mut read, mut next) = (a.create_label(), a.create_label(), a.create_label());
            match item {
                Item::Value(value) => {
                    self.value(a, value, unread)?;
                    a.mov(rdx, qword_ptr(rsp + OWN_CELL))?;
                    a.mov(qword_ptr(rdx + offset), rax)?;
                }
                Item::Duration => {
                    a.mov(rax, qword_ptr(rsp + OWN_TSC))?;
                    a.mov(rdx, qword_ptr(rsp + OWN_CELL))?;
                    a.mov(qword_ptr(rdx + offset), rax)?;
                }
                Item::Text { at, max } => {
                    self.value(a, at, unread)?;
                    a.mov(rsi, rax)?;
                    a.mov(rdi, qword_ptr(rsp + OWN_CELL))?;
                    a.add(rdi, offset as i32 + 8)?;
                    a.mov(ecx, (*max).min(TEXT_MAX) as i32)?;
                    a.call(self.shared.text)?;
                    a.mov(eax, edx)?;
                    a.and(eax, 0x7fff_ffff)?;
                    a.mov(rdi, qword_ptr(rsp + OWN_CELL))?;
                    a.mov(qword_ptr(rdi + offset), rax)?;
                    a.test(edx, edx)?;
                    a.js(unread)?;
                }
            }
            a.set_label(&mut read)?;
            a.jmp(next)?;
            a.set_label(&mut unread)?;
            a.mov(rdx, qword_ptr(rsp + OWN_CELL))?;
            a.or(word_ptr(rdx + EN_UNREAD), 1 << n)?;
            a.set_label(&mut next)?;
            if n + 1 < items.len() {
                a.zero_bytes()?;
            }
            offset += item.room();
        }
        a.mov(rdx, qword_ptr(rsp + OWN_CELL))?;
        a.mov(rax, qword_ptr(rsp + OWN_TICKET))?;
        a.mov(qword_ptr(rdx + EN_SEQUENCE), rax)?;
        a.lock().inc(qword_ptr(self.control(id, HITS)))?;
        Ok(())
    }
}
