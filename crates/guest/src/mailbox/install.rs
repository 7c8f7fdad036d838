//! The shared memory brought into a guest and out of it again: a device, entries of a page table, bytes of code.
//!
//! The device is an `ivshmem-plain`, plugged while the guest runs; its memory is QEMU's own anonymous file, opened here through
//! `/proc`. The guest gives it an address and needs no driver. The kernel then reaches it through entries, unused before, of the table
//! that maps the kernel's code: within the reach of a jump. Code is written through QEMU's debugger interface with the guest stopped, because only that
//! makes an emulator forget what it made of the bytes before.

use super::entries::{ENTRY, find_entries, is_beside, is_mapped, kernel_code};
use super::gate::{self, Descriptor, Places};
use super::journal::{Change, Journal};
use super::layout::*;
use super::patience::Patience;
use super::region::Region;
use crate::error::{Error, Result};
use crate::gdb::Gdb;
use crate::guest::Guest;
use crate::symbols::Symbols;
use serde_json::json;
use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::time::Duration;

/// How long a guest may take, of its own time, to give a new device an address, or to let one go.
const PLUG: Duration = Duration::from_secs(5);

pub struct Installed {
    pub guest: Arc<Guest>,
    pub region: Arc<Region>,
    pub base: u64,
    journal: Journal,
    number: u32,
    entries: u64,
    patched: Vec<Change>,
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
            return Err(Error::Unsupported(
                "the guest is stopped: probes can be put into it when it runs".into(),
            ));
        }
        let (mut journal, mut left) = Journal::open(guest.pid())?;
        let mut recovered = Recovered::default();
        if !left.is_empty() {
            guest.memory().refresh(guest.qmp())?;
            recovered = undo(&guest, &left)?;
            let code = |c: &Change| matches!(c, Change::Patched { .. });
            let rest = remove(&guest, &left);
            left.retain(|c| rest.is_some() && !code(c));
        }
        journal.restart(&left)?;
        let number = unused();
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
        for change in &changes {
            self.journal.add(change)?;
        }
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
        if !back.is_empty() {
            let known = known(&self.guest, &back);
            let mut gdb = self.guest.gdb()?;
            restore(&self.guest, &mut gdb, known, &back)?;
            gdb.detach()?;
        }
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
            still.extend(all.into_iter().filter(|c| !matches!(c, Change::Patched { .. })));
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

fn names(number: u32) -> (String, String) {
    (format!("kpat-memory-{number}"), format!("kpat-device-{number}"))
}

/// A number that no device of ours in this guest ever had. QEMU remembers the names of memory whose device is gone, and aborts,
/// guest and all, when a name comes again at the same place.
fn unused() -> u32 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    // Changes every 4 ms, comes again after half a year.
    (now.as_millis() / 4) as u32
}

/// Adds memory and device to QEMU and maps the memory here.
fn plug(guest: &Guest, number: u32) -> Result<Region> {
    let files = || -> HashSet<(u64, u64)> { anonymous(guest.pid()).into_iter().map(|(_, id)| id).collect() };
    let before = files();
    let (memory, device) = names(number);
    guest.qmp().command(
        "object-add",
        json!({"qom-type": "memory-backend-memfd", "id": memory, "size": SIZE, "share": true}),
    )?;
    let unplug = |e: Error| {
        let _ = guest.qmp().command("object-del", json!({"id": memory}));
        e
    };
    let (path, _) =
        anonymous(guest.pid()).into_iter().find(|(_, id)| !before.contains(id)).ok_or_else(|| {
            unplug(Error::Unsupported(
                "the shared memory cannot be found in QEMU's open files: be its user or root".into(),
            ))
        })?;
    let file: File =
        OpenOptions::new().read(true).write(true).open(&path).map_err(Error::io(path)).map_err(unplug)?;
    let region = Region::map(&file).map_err(Error::io("the shared memory")).map_err(unplug)?;
    guest
        .qmp()
        .command("device_add", json!({"driver": "ivshmem-plain", "id": device, "memdev": memory}))
        .map_err(unplug)?;
    Ok(region)
}

/// Open anonymous files of the right size: path and identity.
fn anonymous(pid: u32) -> Vec<(String, (u64, u64))> {
    let Ok(all) = std::fs::read_dir(format!("/proc/{pid}/fd")) else { return Vec::new() };
    all.flatten()
        .filter(|e| std::fs::read_link(e.path()).is_ok_and(|to| to.to_string_lossy().starts_with("/memfd:")))
        .filter_map(|e| {
            let data = std::fs::metadata(e.path()).ok()?;
            (data.len() == SIZE as u64).then(|| (e.path().display().to_string(), (data.dev(), data.ino())))
        })
        .collect()
}

/// Where the guest put the device's memory.
fn wait_for_address(guest: &Guest, number: u32) -> Result<u64> {
    let (memory, _) = names(number);
    let patience = Patience::new(guest, PLUG);
    let mut last = None;
    loop {
        let text = guest.qmp().monitor("info mtree -f")?;
        let found = crate::memory::layout::parse(&text)?
            .into_iter()
            .find(|r| r.name.ends_with(&memory) && r.len == SIZE as u64 && r.physical & (PAGE - 1) == 0)
            .map(|r| r.physical);
        // Seen twice: while it looks how large the memory is, a guest writes other addresses.
        if found.is_some() && found == last {
            guest.memory().refresh(guest.qmp())?;
            return Ok(found.unwrap_or_default());
        }
        last = found;
        if patience.is_over() {
            let (_, device) = names(number);
            let _ = guest.qmp().command("device_del", json!({"id": device}));
            return Err(Error::Unsupported("the guest gave the shared memory no address: its kernel has no hot plugging for PCI, or ignores it (QEMU's -device ivshmem-plain at start would do)".into()));
        }
        std::thread::sleep(Duration::from_millis(10));
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
fn restore(guest: &Guest, gdb: &mut Gdb, known: Option<&Symbols>, changes: &[Change]) -> Result<usize> {
    let now = known.and_then(|symbols| Some((symbols, symbols.modules_now(guest.memory())?)));
    let is_gone = |address| now.as_ref().is_some_and(|(symbols, modules)| symbols.is_gone(address, modules));
    let mut count = 0;
    for change in changes.iter().rev() {
        if let Change::Patched { address, was, is } = change
            && holds(guest, *address, is)
            && !(is_breakpoint(change) && is_gone(*address))
        {
            write_code(guest, gdb, *address, was)?;
            // The interrupt table is no place of a probe.
            count += usize::from(was.len() < 16);
        }
    }
    Ok(count)
}

/// Code and return addresses as they were. The guest is stopped meanwhile.
fn undo(guest: &Guest, changes: &[Change]) -> Result<Recovered> {
    let known = known(guest, changes);
    let mut gdb = guest.gdb()?;
    let mut recovered =
        Recovered { places: restore(guest, &mut gdb, known, changes)?, ..Recovered::default() };
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

/// A guest that is stopped gives nothing an address, and lets nothing go.
fn runs(guest: &Guest) -> Result<bool> {
    Ok(guest.qmp().command("query-status", json!({}))?["running"].as_bool() == Some(true))
}

fn unplug(guest: &Guest, number: u32) -> Result<()> {
    let (memory, device) = names(number);
    let gone = |command: &str, id: &str| match guest.qmp().command(command, json!({"id": id})) {
        Err(Error::Refused { words, .. }) if words.contains("not found") => Ok(true),
        Err(e) => Err(e),
        Ok(_) => Ok(false),
    };
    let patience = Patience::new(guest, PLUG);
    gone("device_del", &device)?;
    // The device is gone when the guest has let it go; only then its memory can be.
    loop {
        let listed = guest.qmp().command("qom-list", json!({"path": "/machine/peripheral"}))?;
        if !listed.as_array().is_some_and(|a| a.iter().any(|d| d["name"].as_str() == Some(&device))) {
            break;
        }
        if !runs(guest)? {
            return Err(Error::Unsupported(
                "the guest is stopped and cannot let the shared memory's device go; it stays plugged, unused"
                    .into(),
            ));
        }
        if patience.is_over() {
            return Err(Error::Unsupported(
                "the guest does not let the shared memory's device go; it stays plugged, unused".into(),
            ));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    guest.memory().refresh(guest.qmp())?;
    gone("object-del", &memory).map(drop)
}
