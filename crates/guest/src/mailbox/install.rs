//! The shared memory brought into a guest and out of it again: a device, entries of a page table, bytes of code.
//!
//! The device is an `ivshmem-plain`, plugged while the guest runs; its memory is QEMU's own anonymous file, opened here through
//! `/proc`. The guest gives it an address and needs no driver. The kernel then reaches it through entries, unused before, of the table
//! that maps the kernel's code: within the reach of a jump. Code is written through QEMU's debugger interface with the guest stopped, because only that
//! makes an emulator forget what it made of the bytes before.

use super::device::{number, plug, runs, unplug, wait_for_address};
use super::entries::{ENTRY, find_entries, is_beside, is_mapped, kernel_code};
use super::gate::{self, Descriptor, Places};
use super::journal::{Change, Journal};
use super::layout::*;
use super::region::Region;
use crate::error::{Error, Result};
use crate::gdb::Gdb;
use crate::guest::Guest;
use crate::probe::aside::WATCHED;
use crate::symbols::Symbols;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

pub struct Installed {
    pub guest: Arc<Guest>,
    pub region: Arc<Region>,
    pub base: u64,
    journal: Journal,
    number: u32,
    entries: u64,
    patched: Vec<Change>,
    /// What the list of changes has last of each address.
    listed: HashMap<u64, Change>,
    physical: u64,
    gate: Option<Gate>,
    /// Of an earlier tool, what could not be undone.
    left: Vec<Change>,
    undone: bool,
    forgotten: bool,
}

/// The way of breakpoints, once a probe needs it.
struct Gate {
    descriptor: Descriptor,
    is: [u8; 16],
    entry: u64,
    address: u64,
    places: Places,
}

/// What takes the place of an instruction without room for a jump.
pub const BREAKPOINT: [u8; 1] = [0xcc];

/// What was found of a tool that was killed, and put back.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Recovered {
    pub places: usize,
    pub returns: usize,
    /// Hits that went on without it: those that waited when it was killed, and all of handlers since.
    pub missed: u64,
}

impl Installed {
    /// Brings the memory into the guest. What an earlier tool left is undone first.
    pub fn new(guest: Arc<Guest>) -> Result<(Installed, Recovered)> {
        if !runs(&guest)? {
            return Err(Error::Stopped);
        }
        let (mut journal, mut left) = Journal::open(guest.pid())?;
        let mut recovered = Recovered::default();
        if !left.is_empty() {
            guest.memory().refresh(guest.qmp())?;
            recovered = undo(&guest, &left)?;
            let rest = remove(&guest, &left);
            left.retain(|c| rest.is_some() && stays(&guest, c));
        }
        journal.restart(&left)?;
        let number = number(&guest)?;
        journal.add(&Change::Device { number })?;
        let region = Arc::new(plug(&guest, number)?);
        region.clear();
        let physical = wait_for_address(&guest, number)?;
        let (entries, base) = find_entries(&guest, kernel_code(&guest)?, PAGES.len())?;
        journal.add(&Change::Mapped { entries, base })?;
        let bytes: Vec<u8> =
            PAGES.iter().flat_map(|page| ((physical + page * PAGE) | ENTRY).to_le_bytes()).collect();
        let mut gdb = guest.gdb()?;
        guest.memory().write_physical(entries, &bytes)?;
        forget_translations(&guest, &mut gdb)?;
        gdb.detach()?;
        Ok((
            Installed {
                guest,
                region,
                base,
                journal,
                number,
                entries,
                patched: Vec::new(),
                listed: HashMap::new(),
                physical,
                gate: None,
                left,
                undone: false,
                forgotten: false,
            },
            recovered,
        ))
    }

    /// Hits of a breakpoint at `address` will go to `target`, once [`Installed::patch`] has put it there.
    pub fn lead(&mut self, address: u64, target: u64) -> Result<()> {
        if self.gate.is_none() {
            self.gate = Some(self.new_gate()?);
        }
        match &mut self.gate {
            Some(gate) => gate.places.lead(&self.region, address, target),
            None => Ok(()),
        }
    }

    fn new_gate(&mut self) -> Result<Gate> {
        let descriptor = Descriptor::of(&self.guest)?;
        let (entry, address) = find_entries(&self.guest, descriptor.address, 1)?;
        let code = gate::code(address, descriptor.handler())
            .map_err(|e| Error::Unsupported(format!("the code for breakpoints cannot be made: {e}")))?;
        self.region.write(GATE, &code);
        self.journal.add(&Change::Beside { entry, address })?;
        let mut gdb = self.guest.gdb()?;
        self.guest.memory().write_physical(entry, &(self.physical | ENTRY).to_le_bytes())?;
        forget_translations(&self.guest, &mut gdb)?;
        gdb.detach()?;
        let is = descriptor.leading_to(address + GATE as u64);
        Ok(Gate { descriptor, is, entry, address, places: Places::default() })
    }

    /// The change of the guest's interrupt table that breakpoints among these changes need and that was not made yet.
    fn gate_for(&self, changes: &[Change]) -> Option<Change> {
        let gate = self.gate.as_ref()?;
        let at =
            |c: &Change| matches!(c, Change::Patched { address, .. } if *address == gate.descriptor.address);
        (changes.iter().any(is_breakpoint) && !self.patched.iter().any(at)).then(|| Change::Patched {
            address: gate.descriptor.address,
            was: gate.descriptor.was.to_vec(),
            is: gate.is.to_vec(),
        })
    }

    /// Replaces code at several places, all in one stop of the guest. Nothing is written if one of them is not as it was.
    pub fn patch(&mut self, mut changes: Vec<Change>) -> Result<()> {
        if let Some(gate) = self.gate_for(&changes) {
            changes.insert(0, gate);
        }
        self.list(&changes)?;
        let mut gdb = self.guest.gdb()?;
        for change in &changes {
            if let Change::Patched { address, was, .. } = change
                && !holds(&self.guest, *address, was)
            {
                gdb.detach()?;
                return Err(Error::Unsupported(format!(
                    "the code at {address:#x} changed meanwhile: the guest probes it itself"
                )));
            }
        }
        for change in &changes {
            if let Change::Patched { address, is, .. } = change {
                write_code(&self.guest, &mut gdb, *address, is)?;
            }
        }
        gdb.detach()?;
        self.patched.extend(changes);
        Ok(())
    }

    /// Writes changes down, before they are made.
    fn list(&mut self, changes: &[Change]) -> Result<()> {
        for change in changes {
            match change {
                Change::Patched { address, .. } if self.listed.get(address) == Some(change) => {}
                Change::Patched { address, .. } => {
                    self.journal.add(change)?;
                    self.listed.insert(*address, change.clone());
                }
                _ => self.journal.add(change)?,
            }
        }
        Ok(())
    }

    /// Gives the guest its own code back for a while, but for places that stay: what was taken out.
    pub fn aside(&mut self, stays: impl Fn(u64) -> bool) -> Result<Vec<Change>> {
        let gate = self.gate.as_ref().map(|g| g.descriptor.address);
        let (back, stay): (Vec<Change>, Vec<Change>) = std::mem::take(&mut self.patched).into_iter().partition(
            |c| matches!(c, Change::Patched { address, is, .. } if Some(*address) != gate && !stays(*address) && holds(&self.guest, *address, is)),
        );
        self.patched = stay;
        self.give_back(&back)?;
        Ok(back)
    }

    fn give_back(&self, changes: &[Change]) -> Result<()> {
        if changes.is_empty() {
            return Ok(());
        }
        let known = known(&self.guest, changes);
        let mut gdb = self.guest.gdb()?;
        restore(&self.guest, &mut gdb, known, changes)?;
        gdb.detach()
    }

    /// Puts in again what was aside, and writes into the probes' own code. Places at which the guest now has something else are left to it.
    pub fn again(&mut self, changes: Vec<Change>, own: &[(u64, [u8; 5])]) -> Result<Vec<u64>> {
        if changes.is_empty() {
            return Ok(Vec::new());
        }
        self.list(&changes)?;
        let mut left = Vec::new();
        let mut gdb = self.guest.gdb()?;
        for (address, code) in own {
            write_code(&self.guest, &mut gdb, *address, code)?;
        }
        for change in changes {
            let Change::Patched { address, was, is } = &change else { continue };
            if holds(&self.guest, *address, was) {
                write_code(&self.guest, &mut gdb, *address, is)?;
                self.patched.push(change);
            } else {
                left.push(*address);
            }
        }
        gdb.detach()?;
        Ok(left)
    }

    /// The guest's own code, also where probes are in it.
    pub fn code(&self, from: u64, to: &mut [u8]) -> Result<()> {
        self.guest.memory().read(from, to)?;
        for change in &self.patched {
            if let Change::Patched { address, was, is } = change {
                lay_over(from, to, *address, was, is);
            }
        }
        Ok(())
    }

    /// Of these places those at which the guest has put something else since.
    pub fn changed(&self) -> Vec<u64> {
        let changed = |c: &Change| match c {
            Change::Patched { address, is, .. } => (!holds(&self.guest, *address, is)).then_some(*address),
            _ => None,
        };
        self.patched.iter().filter_map(changed).collect()
    }

    /// What was put at this address is there still.
    pub fn has_at(&self, place: u64) -> bool {
        self.patched.iter().any(|c| {
            matches!(c, Change::Patched { address, is, .. } if *address == place && holds(&self.guest, place, is))
        })
    }

    /// Puts back what was at these addresses.
    pub fn unpatch(&mut self, addresses: &[u64]) -> Result<()> {
        let (back, stay): (Vec<Change>, Vec<Change>) = std::mem::take(&mut self.patched)
            .into_iter()
            .partition(|c| matches!(c, Change::Patched { address, .. } if addresses.contains(address)));
        self.patched = stay;
        self.give_back(&back)?;
        addresses.iter().for_each(|a| self.leave(*a));
        Ok(())
    }

    /// Hits of a breakpoint at `address` are the guest's own again.
    pub fn leave(&mut self, address: u64) {
        if let Some(gate) = &mut self.gate {
            gate.places.leave(&self.region, address);
        }
    }

    /// Code that is not executed yet.
    pub fn write(&self, offset: usize, code: &[u8]) {
        self.region.write(offset, code);
    }

    /// The guest still has the shared memory: it was not set back to a snapshot from before.
    pub fn is_there(&self) -> bool {
        is_mapped(&self.guest, self.entries, self.base)
    }

    /// The guest began anew, or was set back: there is nothing in its memory to be undone.
    pub fn forget(&mut self) {
        self.forgotten = true;
    }

    /// Undoes everything. What could not be: threads may still be in the probes' code, or the guest keeps the device.
    pub fn remove(mut self) -> Result<Option<String>> {
        self.take_out()
    }

    fn take_out(&mut self) -> Result<Option<String>> {
        if std::mem::replace(&mut self.undone, true) {
            return Ok(None);
        }
        let mut all = std::mem::take(&mut self.patched);
        if self.forgotten {
            all.clear();
        } else {
            all.push(Change::Mapped { entries: self.entries, base: self.base });
            all.extend(self.gate.iter().map(|g| Change::Beside { entry: g.entry, address: g.address }));
        }
        all.push(Change::Device { number: self.number });
        // Whoever waits for the host goes on.
        self.region.set32(GONE, 1);
        if !self.forgotten {
            undo(&self.guest, &all)?;
        }
        let rest = remove(&self.guest, &all);
        let mut still = std::mem::take(&mut self.left);
        if rest.is_none() {
            self.region.discard();
        } else {
            still.extend(all.into_iter().filter(|c| stays(&self.guest, c)));
        }
        self.journal.restart(&still)?;
        Ok(rest)
    }
}

impl Drop for Installed {
    fn drop(&mut self) {
        // Who wants to know of an error calls `remove`.
        let _ = self.take_out();
    }
}

/// Under emulation writing a processor's registers makes it forget translated addresses.
fn forget_translations(guest: &Guest, gdb: &mut Gdb) -> Result<()> {
    for vcpu in 0..guest.vcpus() {
        let block = gdb.block(vcpu)?;
        gdb.set_block(vcpu, &block)?;
    }
    Ok(())
}

/// Puts `was` into the bytes from `from` on, where they have `is` at `address`.
fn lay_over(from: u64, to: &mut [u8], address: u64, was: &[u8], is: &[u8]) {
    for (n, (was, is)) in was.iter().zip(is).enumerate() {
        let at = (address + n as u64).checked_sub(from).and_then(|at| to.get_mut(at as usize));
        if let Some(byte) = at.filter(|byte| **byte == *is) {
            *byte = *was;
        }
    }
}

fn holds(guest: &Guest, address: u64, bytes: &[u8]) -> bool {
    let mut now = vec![0; bytes.len()];
    guest.memory().read(address, &mut now).is_ok() && now == bytes
}

/// By physical address: a processor may be in a process whose tables have nothing of the kernel.
fn write_code(guest: &Guest, gdb: &mut Gdb, address: u64, bytes: &[u8]) -> Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        let page = guest.memory().translate(address + done as u64)?;
        let n = (page.bytes - (page.physical & (page.bytes - 1))).min((bytes.len() - done) as u64) as usize;
        gdb.write_physical(page.physical, &bytes[done..done + n])?;
        done += n;
    }
    Ok(())
}

/// What says whose code an address is, where a change needs that; read before the guest is stopped.
fn known<'g>(guest: &'g Guest, changes: &[Change]) -> Option<&'g Symbols> {
    changes.iter().any(is_breakpoint).then(|| guest.symbols().ok()).flatten()
}

fn is_breakpoint(change: &Change) -> bool {
    matches!(change, Change::Patched { is, .. } if is[..] == BREAKPOINT)
}

/// Puts the bytes back where they still are what we wrote: not where the guest has changed them since. A breakpoint is one byte, and what kernels
/// fill code with that is free again (`execmem_fill_trapping_insns`): where a module's was, that has to be loaded still.
fn restore(guest: &Guest, gdb: &mut Gdb, known: Option<&Symbols>, changes: &[Change]) -> Result<Vec<u64>> {
    let now = known.and_then(|symbols| Some((symbols, symbols.modules_now(guest.memory())?)));
    let is_gone = |address| now.as_ref().is_some_and(|(symbols, modules)| symbols.is_gone(address, modules));
    let mut places = Vec::new();
    for change in changes.iter().rev() {
        if let Change::Patched { address, was, is } = change
            && holds(guest, *address, is)
            && !(is_breakpoint(change) && is_gone(*address))
        {
            write_code(guest, gdb, *address, was)?;
            // The interrupt table is no place of a probe.
            places.extend((was.len() < 16).then_some(*address));
        }
    }
    Ok(places)
}

/// The guest has a breakpoint of its own upon a jump of ours: it keeps a copy of that, executes it and will put it back, so where it leads has to stay.
fn is_below_a_breakpoint(guest: &Guest, change: &Change) -> bool {
    let Change::Patched { address, is, .. } = change else { return false };
    is.len() == 5 && holds(guest, *address, &BREAKPOINT) && holds(guest, *address + 1, &is[1..])
}

/// What remains written down where not all could be taken out.
fn stays(guest: &Guest, change: &Change) -> bool {
    !matches!(change, Change::Patched { .. }) || is_below_a_breakpoint(guest, change)
}

/// Code and return addresses as they were. The guest is stopped meanwhile.
fn undo(guest: &Guest, changes: &[Change]) -> Result<Recovered> {
    let known = known(guest, changes);
    // Those that were ours alone are nobody's probes.
    let watched: Vec<u64> = guest
        .symbols()
        .map_or_else(|_| Vec::new(), |s| WATCHED.iter().filter_map(|name| s.address(name)).collect());
    let of_watched = |address: u64| watched.iter().any(|from| (*from..from + 8).contains(&address));
    let mut gdb = guest.gdb()?;
    let places = restore(guest, &mut gdb, known, changes)?;
    let places = places.into_iter().filter(|a| !of_watched(*a)).count();
    let mut recovered = Recovered { places, ..Recovered::default() };
    for change in changes {
        if let Change::Mapped { entries, base } = change
            && is_mapped(guest, *entries, *base)
        {
            recovered.returns += super::returns::restore(guest, *base)?.back;
            recovered.missed += missed(guest, *base)?;
        }
    }
    gdb.detach()?;
    Ok(recovered)
}

/// As the probes counted it in the shared memory.
fn missed(guest: &Guest, base: u64) -> Result<u64> {
    let mut all = vec![0; PROBES * CONTROL];
    guest.memory().read(base + CONTROLS as u64, &mut all)?;
    let word = |c: &[u8]| c[MISSED..MISSED + 8].iter().rev().fold(0u64, |v, b| v << 8 | u64::from(*b));
    Ok(all.chunks_exact(CONTROL).fold(0, |sum, c| sum.saturating_add(word(c))))
}

/// Unmaps the memory and unplugs the device, once no thread can be in the probes' code. Why not, if so.
fn remove(guest: &Guest, changes: &[Change]) -> Option<String> {
    let mut rest = None;
    if let Some(Change::Patched { address, .. }) = changes.iter().find(|c| is_below_a_breakpoint(guest, c)) {
        return Some(format!(
            "the guest has a breakpoint of its own upon the probe at {address:#x}: the probes' code stays mapped until the next command finds that gone"
        ));
    }
    for change in changes {
        if let Change::Mapped { entries, base } = change
            && is_mapped(guest, *entries, *base)
        {
            let beside: Vec<(u64, u64)> = changes
                .iter()
                .filter_map(|c| match c {
                    Change::Beside { entry, address } if is_beside(guest, *entry, *address) => {
                        Some((*entry, *address))
                    }
                    _ => None,
                })
                .collect();
            let code: Vec<_> = std::iter::once(*base..*base + PAGES.len() as u64 * PAGE)
                .chain(beside.iter().map(|(_, address)| *address..*address + PAGE))
                .collect();
            // Calls whose return was about to be taken may have become open after the first look.
            let cleared = super::quiet::wait(guest, &code, Duration::from_secs(3), |gdb| {
                let open = super::returns::restore(guest, *base)?;
                if open.kept > 0 {
                    return Err(Error::Unsupported(format!(
                        "{} calls are open whose return is not found: the guest traces or probes them itself; the probes' code stays mapped",
                        open.kept
                    )));
                }
                guest.memory().write_physical(*entries, &[0; 8 * PAGES.len()])?;
                for (entry, _) in &beside {
                    guest.memory().write_physical(*entry, &[0; 8])?;
                }
                forget_translations(guest, gdb)
            });
            if let Err(e) = cleared {
                return Some(e.to_string());
            }
        }
    }
    for change in changes {
        if let Change::Device { number } = change
            && let Err(e) = unplug(guest, *number)
        {
            rest = Some(e.to_string());
        }
    }
    rest
}
