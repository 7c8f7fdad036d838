//! Probes step aside while the guest's kernel changes its code at places of theirs: for its tracer, for programs of BPF at functions, for breakpoints of
//! its own. It compares what is there with what it wrote before and gives its tracer up where that differs; and it keeps a copy of what a
//! breakpoint of its own replaces, which must not be ours.
//!
//! Functions that begin and end such a change are watched by probes of our own. Between them hits are not seen, for milliseconds. Afterwards each probe is put in again, before
//! the call that the tracer now has there, if it has one; a place with a breakpoint of the guest's is left to it.

use super::*;
use crate::x86::Flow;

/// Begins and ends a change for the tracer; registers a breakpoint; writes one into the code.
const TRACER: [&str; 2] = ["ftrace_arch_code_modify_prepare", "ftrace_arch_code_modify_post_process"];
const REGISTERS: &str = "register_kprobe";
const ARMS: &str = "arch_arm_kprobe";
/// All that are watched.
pub(crate) const WATCHED: [&str; 4] = [TRACER[0], TRACER[1], REGISTERS, ARMS];
/// Changes the code of a module that is being loaded, and none else.
const OF_MODULE: &str = "ftrace_module_enable";
/// Calls that change the code at the same time.
const MOST: usize = 8;
/// So long a change takes at most: of all functions at once, seconds in an emulated guest.
const LONGEST: Duration = Duration::from_secs(300);
/// Bytes before and behind a breakpoint of the guest's in which a jump may come in its place, and what it jumps over.
const BEFORE: u64 = 4;
const BEHIND: u64 = 20;

/// What a probe of our own watches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Watch {
    Tracer,
    Registers,
    Arms,
}

/// Where a probe's own code leaves it, and the jump that is to be there.
type Exit = (u64, [u8; 5]);

/// Probes that are not in the guest's code for a while, or not any more.
#[derive(Default)]
pub(super) struct Aside {
    /// The guest is watched.
    pub watched: bool,
    changes: Vec<Change>,
    since: Option<Instant>,
    /// Ends of changes that were missed when this one began.
    missed: u64,
    tracer: bool,
    registers: u32,
    /// Places that the guest has breakpoints of its own at.
    left: Vec<u64>,
}

impl<'h> Probes<'h> {
    /// From here on the guest's changes of its code are seen. A kernel that has none of the functions does not make them.
    pub(super) fn watch(&mut self) -> Result<()> {
        if std::mem::replace(&mut self.aside.watched, true) {
            return Ok(());
        }
        let held = self.waiting.is_some();
        self.hold();
        for (name, what) in [
            (TRACER[0], Watch::Tracer),
            (TRACER[1], Watch::Tracer),
            (REGISTERS, Watch::Registers),
            (ARMS, Watch::Arms),
        ] {
            let Some(Ok(address)) = self.names.address(name).map(|function| self.entry(function)) else {
                continue;
            };
            let nothing = || -> Option<Handler<'h>> { Some(Box::new(|_| 0)) };
            let probe = if name == TRACER[1] || name == REGISTERS {
                let entry = if name == REGISTERS { nothing() } else { None };
                self.register_return(Xrp {
                    address,
                    conditions: Vec::new(),
                    at_return: Vec::new(),
                    maxactive: MOST,
                    what: WhatReturns::Call(entry, nothing()),
                })
            } else {
                self.register(Xp { address, conditions: Vec::new(), what: What::Call(nothing(), None) })
            };
            // Where a probe cannot be the guest is not watched, as it is with none.
            let Ok(handle) = probe else { continue };
            for p in self.probes.iter_mut().filter(|p| p.of == handle && matches!(p.does, Does::Handler(_))) {
                p.does = Does::Watch(what);
            }
        }
        if held { Ok(()) } else { self.commit() }
    }

    /// Nobody's but our own may be at this address: who wants it gets it.
    pub(super) fn give_up_watching(&mut self, address: u64) -> Result<()> {
        let own =
            self.probes.iter().find(|p| p.live && p.address == address && matches!(p.does, Does::Watch(_)));
        let Some(handle) = own.map(|p| p.of) else { return Ok(()) };
        if let Some(waiting) = &mut self.waiting {
            waiting.retain(|c| !matches!(c, Change::Patched { address: at, .. } if *at == address));
        }
        self.unregister_all(&[handle])
    }

    /// A hit of what is watched.
    pub(super) fn seen(
        &mut self,
        what: Watch,
        after: bool,
        taken: &crate::mailbox::host::Taken,
    ) -> Result<()> {
        let argument = taken.registers.get(crate::x86::Register::Rdi);
        match (what, after) {
            (Watch::Tracer, false) => {
                let caller =
                    self.guest.memory().u64_at(taken.registers.get(crate::x86::Register::Rsp)).unwrap_or(0);
                if self.names.at(caller).is_some_and(|(name, _)| name == OF_MODULE) {
                    return Ok(());
                }
                self.aside.tracer = true;
                self.step_aside()
            }
            (Watch::Tracer, true) => {
                self.aside.tracer = false;
                self.come_back()
            }
            (Watch::Registers, false) => {
                self.aside.registers += 1;
                self.step_aside()
            }
            (Watch::Registers, true) => {
                self.aside.registers = self.aside.registers.saturating_sub(1);
                self.come_back()
            }
            (Watch::Arms, _) => {
                let at = self
                    .names
                    .offset("kprobe.addr")
                    .and_then(|o| self.guest.memory().u64_at(argument.wrapping_add(o)).ok());
                at.map_or(Ok(()), |at| self.give_way(at))
            }
        }
    }

    /// The end of a change may have been missed, as any hit that this process was too late for. To come back while the change goes on would be wrong.
    pub(super) fn look_aside(&mut self) -> Result<()> {
        let Some(since) = self.aside.since else { return Ok(()) };
        if self.missed_ends() > self.aside.missed || since.elapsed() > LONGEST {
            (self.aside.tracer, self.aside.registers) = (false, 0);
            self.come_back()?;
        }
        Ok(())
    }

    fn missed_ends(&self) -> u64 {
        let watched = self.probes.iter().enumerate().filter(|(_, p)| matches!(p.does, Does::Watch(_)));
        watched.map(|(id, _)| self.host.counts(id)).map(|c| c.missed + c.no_return).sum()
    }

    /// Is the guest changing its code now? Then what is to be put in is put in behind that.
    pub(super) fn put_aside(&mut self, change: &Change) -> bool {
        let now = self.aside.since.is_some();
        if now {
            self.aside.changes.push(change.clone());
        }
        now
    }

    /// Of these places nothing is put in again.
    pub(super) fn forget_aside(&mut self, places: &[u64]) {
        let other = |c: &Change| !matches!(c, Change::Patched { address, .. } if places.contains(address));
        self.aside.changes.retain(other);
        self.aside.left.retain(|a| !places.contains(a));
    }

    /// What says that the change is over stays: no tracer can be there.
    fn step_aside(&mut self) -> Result<()> {
        self.aside.since = Some(Instant::now());
        self.aside.missed = self.missed_ends();
        let tracer: Vec<u64> = self
            .probes
            .iter()
            .filter(|p| p.live && matches!(p.does, Does::Watch(Watch::Tracer)) && p.exit.is_none())
            .map(|p| p.address)
            .collect();
        let out = self.installed.aside(|address| tracer.contains(&address))?;
        self.aside.changes.extend(out);
        Ok(())
    }

    fn come_back(&mut self) -> Result<()> {
        if self.aside.tracer || self.aside.registers > 0 || self.aside.since.take().is_none() {
            return Ok(());
        }
        let (mut changes, mut own) = (Vec::new(), Vec::new());
        for change in std::mem::take(&mut self.aside.changes) {
            let Change::Patched { address, was, is } = change else { continue };
            match self.once_more(address, &was, is) {
                Some((change, exit)) => {
                    changes.push(change);
                    own.extend(exit);
                }
                None => self.aside.left.push(address),
            }
        }
        let left = self.installed.again(changes, &own)?;
        self.aside.left.extend(left);
        Ok(())
    }

    /// What to put in where the guest may have changed its code, and how the probe's own code then goes on. `None`: the place is the guest's.
    fn once_more(&mut self, address: u64, was: &[u8], is: Vec<u8>) -> Option<(Change, Option<Exit>)> {
        let mut now = vec![0; was.len()];
        self.guest.memory().read(address, &mut now).ok()?;
        if now == was {
            let own = |from, to: &mut [u8]| self.installed.code(from, to);
            let near = places::has_breakpoint_before(&own, self.names.as_ref(), address);
            return (!near).then_some((Change::Patched { address, was: now, is }, None));
        }
        let exit = self.probes.iter().find(|p| p.live && p.address == address)?.exit?;
        let (displaced, at_entry) = self.site(address).ok()?;
        if !at_entry || displaced.bytes.len() != is.len() {
            return None;
        }
        let to = match displaced.flow {
            Flow::Nothing => displaced.next(),
            // Threads may still be in what was before: it stays as it is.
            _ => {
                let at = self.place.base + self.stubs as u64;
                let code = displaced.elsewhere(at, displaced.next()).ok()?;
                (self.stubs + 0x4000 < STUBS_END).then_some(())?;
                self.installed.write(self.stubs, &code);
                self.stubs += code.len().next_multiple_of(64);
                at
            }
        };
        Some((Change::Patched { address, was: displaced.bytes, is }, Some((exit, jump(exit, to)?))))
    }

    /// The guest writes a breakpoint of its own into its code.
    fn give_way(&mut self, at: u64) -> Result<()> {
        let near = at.saturating_sub(BEFORE)..at.saturating_add(BEHIND);
        let places: Vec<u64> =
            self.probes.iter().filter(|p| p.live && near.contains(&p.address)).map(|p| p.address).collect();
        if places.is_empty() {
            return Ok(());
        }
        self.forget_aside(&places);
        self.aside.left.extend(&places);
        self.installed.unpatch(&places)
    }

    /// Modules with probes in them that the guest has unloaded meanwhile, whether it has loaded them again or not: no call since is a hit.
    pub fn unloaded(&self) -> Vec<String> {
        let Ok(symbols) = self.guest().symbols() else { return Vec::new() };
        let live: Vec<u64> = self.probes.iter().filter(|p| p.live).map(|p| p.address).collect();
        let is_there = |address| self.installed.has_at(address);
        symbols.unloaded(self.guest().memory(), &live, is_there).into_iter().map(str::to_owned).collect()
    }

    /// Places of probes at which the guest has put code of its own since, as its own probes and its tracer do, and that are in no module that it unloaded: calls
    /// since are no hits.
    pub fn changed(&self) -> Vec<String> {
        let Ok(symbols) = self.guest().symbols() else { return Vec::new() };
        let mut changed = self.installed.changed();
        changed.extend(&self.aside.left);
        changed.retain(|a| !self.probes.iter().any(|p| p.address == *a && matches!(p.does, Does::Watch(_))));
        changed.sort_unstable();
        changed.dedup();
        let unloaded = symbols.unloaded(self.guest().memory(), &changed, |_| false);
        let of_kernel =
            |a: &u64| symbols.at(*a).is_none_or(|(s, _)| s.module.is_none_or(|m| !unloaded.contains(&m)));
        changed.into_iter().filter(of_kernel).map(|a| symbols.name(a)).collect()
    }
}
