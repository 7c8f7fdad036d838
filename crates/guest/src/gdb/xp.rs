//! Probes by breakpoints alone: any instruction of any guest. A hit stops all processors, the handler sees and changes the registers,
//! and the guest goes on. The instruction under a probe is not stepped if what it does can be done here.

use super::{BreakpointKind, Gdb, Stop};
use crate::error::Result;
use crate::registers::Registers;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// What a handler gets.
pub struct Hit<'a> {
    pub vcpu: u32,
    pub address: u64,
    /// A change is written back; of RIP, too: the guest goes on there, and the instruction under the probe is not executed.
    pub registers: Registers,
    pub gdb: &'a mut Gdb,
    /// Of the function that is entered here the return is wanted, which is at this address: it goes to the handler of [`Probes::at_returns`].
    pub returns_to: Option<u64>,
}

/// What is to happen after a hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    Continue,
    /// The probe is removed.
    Remove,
    /// [`Probes::run`] returns, the guest stays stopped at this instruction.
    Leave,
}

pub type Handler<'h> = Box<dyn FnMut(&mut Hit<'_>) -> Result<Then> + 'h>;

struct Probe<'h> {
    kind: BreakpointKind,
    skip: Option<Skip>,
    handler: Handler<'h>,
    hits: u64,
}

/// Probes of one session.
pub struct Probes<'h> {
    gdb: Gdb,
    probes: HashMap<u64, Probe<'h>>,
    returns: HashMap<u64, Option<Skip>>,
    at_returns: Option<Handler<'h>>,
    /// Hits whose instruction had to be stepped.
    stepped: u64,
}

impl<'h> Probes<'h> {
    pub fn new(gdb: Gdb) -> Probes<'h> {
        Probes { gdb, probes: HashMap::new(), returns: HashMap::new(), at_returns: None, stepped: 0 }
    }

    /// Puts a probe on the instruction that begins at `address`; the guest has to be stopped.
    pub fn add(&mut self, address: u64, kind: BreakpointKind, handler: Handler<'h>) -> Result<()> {
        // Before the breakpoint is there: under KVM it is an int3 that would be read.
        let skip = self.skip_at(address)?;
        self.gdb.insert(kind, address)?;
        self.probes.insert(address, Probe { kind, skip, handler, hits: 0 });
        Ok(())
    }

    fn skip_at(&mut self, address: u64) -> Result<Option<Skip>> {
        let mut code = [0; 15];
        let page_left = 4096 - (address & 4095) as usize;
        let n = page_left.min(code.len());
        self.gdb.read(address, &mut code[..n])?;
        Ok(Skip::of(&code[..n]))
    }

    /// What is called where functions return to whose handler wanted it; no more of them are awaited there if it says to remove it.
    pub fn at_returns(&mut self, handler: Handler<'h>) {
        self.at_returns = Some(handler);
    }

    pub fn remove(&mut self, address: u64) -> Result<()> {
        match self.probes.remove(&address) {
            Some(p) => self.gdb.remove(p.kind, address),
            None => Ok(()),
        }
    }

    pub fn hits(&self, address: u64) -> u64 {
        self.probes.get(&address).map_or(0, |p| p.hits)
    }

    pub fn stepped(&self) -> u64 {
        self.stepped
    }

    pub fn gdb(&mut self) -> &mut Gdb {
        &mut self.gdb
    }

    /// The session without its probes.
    pub fn into_gdb(mut self) -> Result<Gdb> {
        self.gdb.interrupt()?;
        for address in self.probes.keys().copied().collect::<Vec<_>>() {
            self.remove(address)?;
        }
        for address in self.returns.keys() {
            self.gdb.remove(BreakpointKind::Software, *address)?;
        }
        Ok(self.gdb)
    }

    /// Lets the guest run and serves its hits, for so long, or until a handler leaves or something else stops the guest.
    pub fn run(&mut self, patience: Duration) -> Result<Option<Stop>> {
        let until = Instant::now() + patience;
        self.gdb.resume()?;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let Some(stop) = self.gdb.wait(left)? else { return Ok(None) };
            let Stop::Trap { vcpu } = stop else { return Ok(Some(stop)) };
            if !self.serve(vcpu)? {
                return Ok(Some(stop));
            }
        }
    }

    /// False: not one of ours, or the handler wants to leave.
    fn serve(&mut self, vcpu: u32) -> Result<bool> {
        let mut block = self.gdb.block(vcpu)?;
        let registers = block.registers();
        let base = block.code_base();
        let address = registers.rip.wrapping_add(base);
        let mut hit = Hit { vcpu, address, registers, gdb: &mut self.gdb, returns_to: None };
        // A probe may be where a function returns to.
        let back = match (self.returns.get(&address).copied(), &mut self.at_returns) {
            (Some(skip), Some(handler)) => Some((handler(&mut hit)?, skip)),
            _ => None,
        };
        let here = match self.probes.get_mut(&address) {
            Some(probe) => {
                probe.hits += 1;
                Some(((probe.handler)(&mut hit)?, probe.kind, probe.skip))
            }
            None => None,
        };
        let (mut after, wanted) = (hit.registers, hit.returns_to);
        if let Some(to) = wanted
            && !self.returns.contains_key(&to)
        {
            let skip = match self.probes.get(&to) {
                Some(p) => p.skip,
                None => self.skip_at(to)?,
            };
            self.gdb.insert(BreakpointKind::Software, to)?;
            self.returns.insert(to, skip);
        }
        if matches!(back, Some((Then::Remove, _))) {
            self.returns.remove(&address);
            if here.is_none() {
                self.gdb.remove(BreakpointKind::Software, address)?;
            }
        }
        let (then, kind, skip) = match (here, back) {
            (Some((_, kind, skip)), Some((Then::Leave, _))) => (Then::Leave, kind, skip),
            (Some(here), _) => here,
            (None, Some((then, skip))) => (then, BreakpointKind::Software, skip),
            (None, None) => return Ok(false),
        };
        if then == Then::Leave {
            if after != registers {
                block.set(&after);
                self.gdb.set_block(vcpu, &block)?;
            }
            return Ok(false);
        }
        let stays = then != Then::Remove || self.returns.contains_key(&address);
        if then == Then::Remove && here.is_some() {
            self.probes.remove(&address);
            if !stays {
                self.gdb.remove(kind, address)?;
            }
        }
        if stays && after.rip == registers.rip {
            match skip {
                Some(s) => s.act(&mut after, &mut self.gdb)?,
                None => {
                    if after != registers {
                        block.set(&after);
                        self.gdb.set_block(vcpu, &block)?;
                    }
                    self.stepped += 1;
                    self.gdb.remove(kind, address)?;
                    self.gdb.step(vcpu)?;
                    self.gdb.insert(kind, address)?;
                    self.gdb.resume()?;
                    return Ok(true);
                }
            }
        }
        let elsewhere = after.rip;
        if (Registers { rip: registers.rip, ..after }) != registers {
            block.set(&after);
            self.gdb.set_block(vcpu, &block)?;
        }
        self.gdb.resume_at(elsewhere)?;
        Ok(true)
    }
}

/// An instruction that is executed here, in place of the guest's processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Skip {
    pub len: u8,
    /// The number of the register that is pushed.
    pub push: Option<u8>,
}

impl Skip {
    /// nop of any length, `endbr64`, and `push` of a register: how nearly all functions of Linux begin.
    pub fn of(code: &[u8]) -> Option<Skip> {
        let nop = |len: usize| Some(Skip { len: len as u8, push: None });
        if code.starts_with(&[0xf3, 0x0f, 0x1e, 0xfa]) {
            return nop(4);
        }
        let prefixes = code.iter().take_while(|b| matches!(b, 0x66 | 0x2e)).count();
        match *code.get(prefixes..)? {
            [0x90, ..] => nop(prefixes + 1),
            [0x0f, 0x1f, modrm, ref rest @ ..] => {
                let (mode, memory) = (modrm >> 6, modrm & 7);
                let sib = usize::from(mode != 3 && memory == 4);
                let displacement = match (mode, memory) {
                    (0, 5) => 4,
                    (0, 4) if rest.first().is_some_and(|s| s & 7 == 5) => 4,
                    (1, _) => 1,
                    (2, _) => 4,
                    _ => 0,
                };
                let len = prefixes + 3 + sib + displacement;
                if len <= code.len() { nop(len) } else { None }
            }
            [b @ 0x50..=0x57, ..] if prefixes == 0 => Some(Skip { len: 1, push: Some(b - 0x50) }),
            [0x41, b @ 0x50..=0x57, ..] if prefixes == 0 => Some(Skip { len: 2, push: Some(b - 0x50 + 8) }),
            _ => None,
        }
    }

    fn act(self, r: &mut Registers, gdb: &mut Gdb) -> Result<()> {
        if let Some(n) = self.push {
            let all = [
                r.rax, r.rcx, r.rdx, r.rbx, r.rsp, r.rbp, r.rsi, r.rdi, r.r8, r.r9, r.r10, r.r11, r.r12,
                r.r13, r.r14, r.r15,
            ];
            let value = all[usize::from(n & 15)];
            let top = r.rsp.wrapping_sub(8);
            gdb.write(top, &value.to_le_bytes())?;
            r.rsp = top;
        }
        r.rip = r.rip.wrapping_add(self.len.into());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_that_need_no_step() {
        let nop = |len| Some(Skip { len, push: None });
        for (code, want) in [
            (&[0x0f, 0x1f, 0x44, 0x00, 0x00, 0x55][..], nop(5)),
            (&[0x66, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0], nop(9)),
            (&[0x66, 0x2e, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0], nop(10)),
            (&[0x0f, 0x1f, 0x40, 0x00], nop(4)),
            (&[0x0f, 0x1f, 0x80, 0, 0, 0, 0], nop(7)),
            (&[0x0f, 0x1f, 0x00], nop(3)),
            (&[0x66, 0x90], nop(2)),
            (&[0x90], nop(1)),
            (&[0xf3, 0x0f, 0x1e, 0xfa], nop(4)),
            (&[0x55, 0x48], Some(Skip { len: 1, push: Some(5) })),
            (&[0x41, 0x57], Some(Skip { len: 2, push: Some(15) })),
            // pause, mov, cut short, nothing.
            (&[0xf3, 0x90], None),
            (&[0x48, 0x89, 0xe5], None),
            (&[0x0f, 0x1f, 0x44, 0x00], None),
            (&[0x0f, 0x1f], None),
            (&[], None),
        ] {
            assert_eq!(Skip::of(code), want, "{code:x?}");
        }
    }
}
