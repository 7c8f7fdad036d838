//! Probes in a guest's kernel: at any instruction that has room for a jump, and at the return of functions.
//!
//! A probe counts, records, or calls a handler here for which the guest waits ([`Act`]). Handlers are closures; they may read and
//! write registers and memory, enable, disable and unregister probes, and stop the loop. [`Probes`] has all of one guest.

mod apart;
pub(crate) mod aside;
mod debugged;
mod facts;
mod packets;
mod places;
mod run;
pub mod spec;
mod tally;
mod typed;

use crate::error::{Error, Result};
use crate::guest::Guest;
use crate::mailbox::code::{Place, Shared, shared};
use crate::mailbox::host::{Counts, Host, Read, Registers};
use crate::mailbox::install::{BREAKPOINT, Installed, Recovered};
use crate::mailbox::journal::Change;
use crate::mailbox::layout::*;
use crate::mailbox::stub::{Failed, Maker, Returns, Stub};
use crate::mailbox::values::{Act, Condition, Item, Value};
use crate::memory::Memory;
use crate::x86::{Displaced, jump};
pub use debugged::debugged;
pub use facts::{Names, Own, ticks_per_second};
pub use packets::{Packets, host_now};
pub use run::{Ended, run_all};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};
pub use tally::Tally;

/// A probe, as long as its [`Probes`] lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Handle(u32);

impl Handle {
    pub fn number(self) -> u32 {
        self.0
    }

    pub fn from_number(number: u32) -> Handle {
        Handle(number)
    }
}

/// What a handler sees, and what it may do.
pub struct Hit<'a> {
    pub handle: Handle,
    /// Writable but for rsp.
    pub registers: &'a mut Registers,
    pub memory: &'a Memory,
    pub cpu: u32,
    /// Address of the running task's structure; 0 where it is not known.
    pub task: u64,
    /// Time stamp counter of the guest.
    pub tsc: u64,
    /// Of a return probe: kept from the entry to the return.
    pub data: &'a mut Vec<u8>,
    pub control: &'a mut Control,
}

/// What a handler may ask for. It happens when the handler returns, before the guest goes on.
#[derive(Debug, Default)]
pub struct Control {
    stop: bool,
    switched: Vec<(Handle, bool)>,
    unregistered: Vec<Handle>,
}

impl Control {
    /// Ends the loop.
    pub fn stop(&mut self) {
        self.stop = true;
    }

    pub fn enable(&mut self, probe: Handle) {
        self.switched.push((probe, true));
    }

    pub fn disable(&mut self, probe: Handle) {
        self.switched.push((probe, false));
    }

    pub fn unregister(&mut self, probe: Handle) {
        self.unregistered.push(probe);
    }
}

/// Before an instruction: not 0 if it is not to be executed, but what `rip` then says. After it and at returns: without meaning. At the
/// entry of a function whose return is probed: not 0 if this return is not wanted.
pub type Handler<'h> = Box<dyn FnMut(&mut Hit) -> i32 + 'h>;

/// An entry that a probe recorded.
#[derive(Debug, Clone)]
pub struct Recorded {
    pub handle: Handle,
    pub tsc: u64,
    pub cpu: u32,
    pub pid: u32,
    pub tgid: u32,
    pub comm: Vec<u8>,
    pub values: Vec<Read>,
    /// The host's clock when the ring did not have it yet: it was written after that, but for what one written before it may have held it up.
    pub not_before: SystemTime,
}

pub type Recorder<'h> = Box<dyn FnMut(&Recorded) + 'h>;
pub type News<'h> = Box<dyn FnMut(&crate::Life) + 'h>;

/// A probe at an instruction.
pub struct Xp<'h> {
    pub address: u64,
    pub conditions: Vec<Condition>,
    pub what: What<'h>,
}

pub enum What<'h> {
    Count,
    Record(Vec<Item>, Recorder<'h>),
    /// Before and after the instruction; either may be unset.
    Call(Option<Handler<'h>>, Option<Handler<'h>>),
}

/// A probe at the entry and return of a function.
pub struct Xrp<'h> {
    pub address: u64,
    /// At the entry.
    pub conditions: Vec<Condition>,
    /// At the return, of those whose entry was taken.
    pub at_return: Vec<Condition>,
    /// Calls that can be open at the same time; of more the return is not seen. 0: as many as is usual.
    pub maxactive: usize,
    pub what: WhatReturns<'h>,
}

pub enum WhatReturns<'h> {
    /// Values saved at the entry, and what the entry in the ring has at the return.
    Record(Vec<Value>, Vec<Item>, Recorder<'h>),
    /// At entry and return; either may be unset.
    Call(Option<Handler<'h>>, Option<Handler<'h>>),
}

/// How long a hit waits for the host. A handler's thread may not get a processor for long on a host that is busy; the
/// guest's watchdogs wait for ten seconds and more.
#[derive(Debug, Clone, Copy)]
pub struct Patience {
    pub begin: Duration,
    pub end: Duration,
}

impl Default for Patience {
    fn default() -> Patience {
        Patience { begin: Duration::from_secs(1), end: Duration::from_secs(2) }
    }
}

pub(crate) enum Does<'h> {
    Nothing,
    Handler(Handler<'h>),
    Recorder(Vec<Item>, Recorder<'h>),
    Packets,
    /// Nobody's but our own.
    Watch(aside::Watch),
}

pub(crate) struct Probe<'h> {
    does: Does<'h>,
    /// The one that is registered, of the several that one registration may need.
    of: Handle,
    address: u64,
    after: bool,
    entry: bool,
    /// Which open calls, of a return probe.
    instances: std::ops::Range<usize>,
    /// The jump by which its code leaves, of one that may take the place of the guest's tracer.
    exit: Option<u64>,
    live: bool,
}

/// All probes of one guest.
pub struct Probes<'h> {
    guest: Arc<Guest>,
    installed: Installed,
    host: Host,
    place: Place,
    shared: Shared,
    names: Arc<dyn Names>,
    probes: Vec<Probe<'h>>,
    data: Vec<Vec<u8>>,
    stubs: usize,
    instances: usize,
    hits: Option<packets::Hits<'h>>,
    /// When the ring was read last.
    read_at: SystemTime,
    waiting: Option<Vec<Change>>,
    stopped: Arc<AtomicBool>,
    stands: run::Stands,
    aside: aside::Aside,
    /// By number: calls beyond those that may be open, at the last look.
    beyond: std::collections::HashMap<usize, u64>,
    tally: Arc<Tally>,
    /// Called by the loop with what happens to the guest as a whole: it is stopped, goes on, is being moved. Not for stops of the probes' own.
    pub news: Option<News<'h>>,
    pub recovered: Recovered,
    /// Guest ticks in a second.
    pub tsc_hz: f64,
}

impl<'h> Probes<'h> {
    /// Brings the shared memory into the guest; no probe yet.
    pub fn of(guest: Arc<Guest>) -> Result<Probes<'h>> {
        // Read before anything is changed: a guest without symbols is refused here.
        guest.symbols()?;
        let names = Arc::new(Own(guest.clone()));
        Probes::new(guest, names, Patience::default())
    }

    /// The same with names from elsewhere. A kernel that is starting is refused.
    pub fn new(guest: Arc<Guest>, names: Arc<dyn Names>, patience: Patience) -> Result<Probes<'h>> {
        if facts::is_starting(&guest, names.as_ref()) {
            return Err(Error::Starting);
        }
        let (installed, recovered) = Installed::new(guest.clone())?;
        let place = Place {
            base: installed.base,
            kernel: Some(facts::kernel(&guest, names.as_ref())?),
            sahf: facts::has_sahf(&guest, names.as_ref()),
            emulated: guest.accelerator() == crate::guest::Accelerator::Tcg,
        };
        let (code, shared) = shared(&place)
            .map_err(|e| Error::Unsupported(format!("the probes' code cannot be made: {e}")))?;
        installed.write(SHARED_CODE, &code);
        let tsc_hz = facts::ticks_per_second(&guest, names.as_ref());
        installed.region.set64(WAIT_BEGIN, (patience.begin.as_secs_f64() * tsc_hz) as u64);
        installed.region.set64(WAIT_END, (patience.end.as_secs_f64() * tsc_hz) as u64);
        let host = Host::new(installed.region.clone());
        let installed_region = installed.region.clone();
        Ok(Probes {
            guest,
            installed,
            host,
            place,
            shared,
            names,
            // Number 0 stays unused: a slot that is all zero names no probe.
            probes: vec![Probe {
                does: Does::Nothing,
                of: Handle(0),
                address: 0,
                after: false,
                entry: false,
                instances: 0..0,
                exit: None,
                live: false,
            }],
            data: Vec::new(),
            stubs: STUBS,
            instances: 0,
            hits: None,
            read_at: SystemTime::now(),
            waiting: None,
            stopped: Arc::new(AtomicBool::new(false)),
            stands: run::Stands::default(),
            aside: aside::Aside::default(),
            beyond: Default::default(),
            tally: Arc::new(Tally::of(installed_region)),
            news: None,
            recovered,
            tsc_hz,
        })
    }

    pub fn guest(&self) -> &Arc<Guest> {
        &self.guest
    }

    pub fn names(&self) -> &Arc<dyn Names> {
        &self.names
    }

    /// Where a probe goes: the beginning of a function is where it begins to do something.
    pub fn address(&self, place: &crate::symbols::Place) -> Result<u64> {
        if place.begins { self.entry(place.address) } else { Ok(place.address) }
    }

    /// Where a probe for a function's entry goes: behind the mark of a branch's target.
    pub fn entry(&self, function: u64) -> Result<u64> {
        places::entry(&|from, to| self.installed.code(from, to), function)
    }

    pub fn register(&mut self, probe: Xp<'h>) -> Result<Handle> {
        self.watch()?;
        self.give_up_watching(probe.address)?;
        let (displaced, at_entry) = self.site(probe.address)?;
        self.has_none(probe.address)?;
        let id = self.room(2)?;
        let handle = Handle(id as u32);
        let (act, does, after) = match probe.what {
            What::Count => (Act::Count, Does::Nothing, None),
            What::Record(items, to) => (Act::Record(items.clone()), Does::Recorder(items, to), None),
            What::Call(before, after) => (Act::Call, before.map_or(Does::Nothing, Does::Handler), after),
        };
        // Where the instruction does nothing, before and after it are the same moment.
        if after.is_some()
            && displaced.flow != crate::x86::Flow::Next
            && displaced.flow != crate::x86::Flow::Nothing
        {
            return Err(Error::Unsupported(format!(
                "the instruction at {:#x} does not go on behind itself: a handler after it is not possible",
                probe.address
            )));
        }
        let call = Act::Call;
        let stub = Stub { id, conditions: &probe.conditions, act: &act, at_entry };
        let then = Stub { id: id + 1, conditions: &[], act: &call, at_entry: false };
        let maker = Maker { place: &self.place, shared: self.shared };
        let made = maker
            .site(self.place.base + self.stubs as u64, &displaced, &stub, None, after.as_ref().map(|_| &then))
            .map_err(failed)?;
        let has_after = after.is_some();
        self.probes.push(Probe {
            does,
            of: handle,
            address: probe.address,
            after: false,
            entry: false,
            instances: 0..0,
            exit: made.exit,
            live: true,
        });
        self.probes.push(Probe {
            does: after.map_or(Does::Nothing, Does::Handler),
            of: handle,
            address: probe.address,
            after: true,
            entry: false,
            instances: 0..0,
            exit: None,
            live: has_after,
        });
        self.put(handle, &displaced, made.code, made.entry)?;
        Ok(handle)
    }

    pub fn register_return(&mut self, probe: Xrp<'h>) -> Result<Handle> {
        self.watch()?;
        self.give_up_watching(probe.address)?;
        let (displaced, at_entry) = self.site(probe.address)?;
        self.is_free(probe.address, at_entry)?;
        let count =
            if probe.maxactive == 0 { (2 * self.guest.vcpus() as usize).max(32) } else { probe.maxactive };
        let most = if self.hits.is_some() { SHARED_FIRST } else { INSTANCE_COUNT };
        if self.instances + count > most {
            return Err(Error::Unsupported(format!(
                "{most} calls can be open at the same time in all; {} are asked for",
                self.instances + count
            )));
        }
        let id = self.room(2)?;
        let handle = Handle(id as u32);
        let (act, saved, entry, back) = match probe.what {
            WhatReturns::Record(saved, items, to) => {
                (Act::Record(items.clone()), saved, None, Does::Recorder(items, to))
            }
            WhatReturns::Call(entry, back) => {
                (Act::Call, Vec::new(), entry, back.map_or(Does::Nothing, Does::Handler))
            }
        };
        if saved.len() > SAVED_MAX {
            return Err(Error::Unsupported(format!(
                "at most {SAVED_MAX} values are kept from entry to return"
            )));
        }
        let maker = Maker { place: &self.place, shared: self.shared };
        let at_return = maker
            .at_return(
                self.place.base + self.stubs as u64,
                &Stub { id: id + 1, conditions: &probe.at_return, act: &act, at_entry: false },
            )
            .map_err(failed)?;
        for n in self.instances..self.instances + count {
            self.installed
                .write(TRAMPOLINES + n * TRAMPOLINE, &maker.trampoline(n, at_return.entry).map_err(failed)?);
        }
        let behind = self.stubs + at_return.code.len().next_multiple_of(64);
        let returns = Returns { call_at_entry: entry.is_some(), saved: &saved, first: self.instances, count };
        let stub = Stub { id, conditions: &probe.conditions, act: &Act::Call, at_entry: true };
        let made = maker
            .site(self.place.base + behind as u64, &displaced, &stub, Some(&returns), None)
            .map_err(failed)?;
        let mut code = at_return.code;
        code.resize(behind - self.stubs, 0xcc);
        code.extend(made.code);
        let instances = self.instances..self.instances + count;
        self.instances += count;
        self.data.resize_with(self.instances, Vec::new);
        self.probes.push(Probe {
            does: entry.map_or(Does::Nothing, Does::Handler),
            of: handle,
            address: probe.address,
            after: false,
            entry: true,
            instances: instances.clone(),
            exit: made.exit,
            live: true,
        });
        self.probes.push(Probe {
            does: back,
            of: handle,
            address: probe.address,
            after: true,
            entry: false,
            instances,
            exit: None,
            live: true,
        });
        self.put(handle, &displaced, code, made.entry)?;
        Ok(handle)
    }

    /// From here on registered probes wait for [`Probes::commit`]: then the guest is stopped once for all of them.
    pub fn hold(&mut self) {
        self.waiting.get_or_insert_default();
    }

    pub fn commit(&mut self) -> Result<()> {
        // The first hits come before the loop does: without this nothing would say what they were not before.
        if self.hits.is_some() {
            self.installed.region.set64(HOST_NOW, packets::host_now());
        }
        match self.waiting.take() {
            Some(changes) if !changes.is_empty() => self.installed.patch(changes),
            _ => Ok(()),
        }
    }

    /// Takes the probe out of the guest. Open calls of a return probe end without it.
    pub fn unregister(&mut self, probe: Handle) -> Result<()> {
        self.tally.has(probe)?;
        self.unregister_all(&[probe])
    }

    pub fn unregister_all(&mut self, probes: &[Handle]) -> Result<()> {
        let mut places = Vec::new();
        for probe in probes {
            self.switch(*probe, false);
            self.tally.ends(*probe);
            for p in self.probes.iter_mut().filter(|p| p.of == *probe && p.live) {
                p.live = false;
                places.push(p.address);
            }
        }
        self.forget_aside(&places);
        self.installed.unpatch(&places)
    }

    pub fn enable(&mut self, probe: Handle) {
        self.switch(probe, true);
    }

    pub fn disable(&mut self, probe: Handle) {
        self.switch(probe, false);
    }

    /// What became of a probe's hits.
    pub fn counts(&self, probe: Handle) -> Counts {
        self.tally.counts(probe)
    }

    /// The same for who has no hold of the probes, such as a handler.
    pub fn tally(&self) -> Arc<Tally> {
        self.tally.clone()
    }

    /// What ends the loop, from another thread or a signal's handler.
    pub fn stopper(&self) -> Arc<AtomicBool> {
        self.stopped.clone()
    }

    /// Takes everything out of the guest. What had to stay, if so.
    pub fn remove(self) -> Result<Option<String>> {
        self.installed.remove()
    }

    fn switch(&mut self, probe: Handle, on: bool) {
        for (id, p) in self.probes.iter().enumerate() {
            if p.of == probe && (p.live || !on) && id != 0 {
                self.installed.region.set32(CONTROLS + id * CONTROL + ENABLED, u32::from(on));
            }
        }
    }

    /// What is displaced at an address, and whether a function begins there.
    fn site(&self, address: u64) -> Result<(Displaced, bool)> {
        let own = |from, to: &mut [u8]| self.installed.code(from, to);
        places::site(self.guest.memory(), &own, self.names.as_ref(), address)
    }

    /// May the return of the function that begins here be probed?
    fn is_free(&self, address: u64, at_entry: bool) -> Result<()> {
        if !at_entry {
            return Err(Error::Unsupported(format!(
                "{address:#x} is not where a function begins: its return cannot be probed from there"
            )));
        }
        self.has_none(address)
    }

    /// A place has room for one probe.
    fn has_none(&self, address: u64) -> Result<()> {
        match self.probes.iter().any(|p| p.live && p.address == address) {
            true => Err(Error::Unsupported(format!(
                "there is a probe at {} already, and a place has room for one",
                places::name(self.names.as_ref(), address)
            ))),
            false => Ok(()),
        }
    }

    fn room(&self, count: usize) -> Result<usize> {
        let id = self.probes.len();
        if id + count > PROBES || self.stubs + 0x4000 > STUBS_END {
            return Err(Error::Unsupported("there is no room for more probes".into()));
        }
        Ok(id)
    }

    fn put(&mut self, handle: Handle, displaced: &Displaced, code: Vec<u8>, entry: u64) -> Result<()> {
        self.tally.begins(handle, self.probes.iter().skip(handle.0 as usize));
        self.installed.write(self.stubs, &code);
        self.stubs += code.len().next_multiple_of(64);
        self.switch(handle, true);
        let is = if displaced.takes_jump() {
            let jump = jump(displaced.address, entry).ok_or_else(|| {
                Error::Unsupported(format!("{:#x} is too far away from the probes' code", displaced.address))
            })?;
            jump.to_vec()
        } else {
            self.installed.lead(displaced.address, entry)?;
            BREAKPOINT.to_vec()
        };
        let was = displaced.bytes[..is.len()].to_vec();
        let change = Change::Patched { address: displaced.address, was, is };
        if self.put_aside(&change) {
            return Ok(());
        }
        match &mut self.waiting {
            Some(waiting) => {
                waiting.push(change);
                Ok(())
            }
            None => self.installed.patch(vec![change]).inspect_err(|_| {
                self.probes.iter_mut().filter(|p| p.of == handle).for_each(|p| p.live = false);
                self.tally.ends(handle);
                self.installed.leave(displaced.address);
            }),
        }
    }
}

fn failed(e: Failed) -> Error {
    Error::Unsupported(e.to_string())
}

fn is_set(flag: &AtomicBool) -> bool {
    flag.load(Ordering::Relaxed)
}
