//! Probes of the same lines by QEMU's debugger interface, for a guest of any operating system or of none: each hit stops it.
//!
//! Nothing is known of the guest but its processor and the symbols that the caller has. Values are read while it stands, through the
//! page tables of the processor that was hit.

use super::spec::Spec;
use super::{Counts, Ended, Handle, Recorded, Recorder, host_now};
use crate::error::Result;
use crate::gdb::xp::{Hit, Probes, Then};
use crate::gdb::{BreakpointKind, Gdb, Stop};
use crate::guest::Guest;
use crate::mailbox::host::Read;
use crate::mailbox::values::{Base, Condition, Item, TEXT_MAX};
use crate::registers::Registers;
use crate::symbols::Symbols;
use crate::x86::Register;
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

/// How often it is looked whether somebody wants to stop.
const LOOK: Duration = Duration::from_millis(50);
const CR0_PE: u64 = 1;
const EFER_LMA: u64 = 1 << 10;

/// One probe: what it reads, and what became of its hits.
struct One<'h> {
    items: Vec<(Item, bool)>,
    at_entry: Vec<Condition>,
    at_return: Vec<Condition>,
    returns: bool,
    counts_only: bool,
    handle: Handle,
    counts: Counts,
    to: Recorder<'h>,
}

/// A call that has not returned: where its return address was, and what was read at its entry.
struct Open {
    probe: usize,
    stack: u64,
    values: Vec<Read>,
}

struct Shared<'h> {
    all: Vec<One<'h>>,
    /// By the address that they return to.
    open: HashMap<u64, Vec<Open>>,
    most: usize,
}

/// Puts the probes in at their addresses, serves them until `until` or `stop`, and takes them out. What became of each.
pub fn debugged<'h>(
    guest: &Guest,
    symbols: &Symbols,
    specs: Vec<(&Spec, u64, Recorder<'h>)>,
    maxactive: usize,
    stop: &'h AtomicBool,
    ready: impl FnOnce(),
    until: Option<Instant>,
) -> Result<(Ended, Vec<Counts>)> {
    let mut wanted = Vec::new();
    let mut all = Vec::new();
    for (n, (spec, address, to)) in specs.into_iter().enumerate() {
        let o = spec.outside(symbols)?;
        wanted.push(address);
        all.push(One {
            items: o.items,
            at_entry: o.at_entry,
            at_return: o.at_return,
            returns: spec.returns(),
            counts_only: spec.counts(),
            handle: Handle(n as u32 + 1),
            counts: Counts::default(),
            to,
        });
    }
    let shared = Rc::new(RefCell::new(Shared { all, open: HashMap::new(), most: maxactive }));
    let mut probes = Probes::new(guest.gdb()?);
    for (n, address) in wanted.iter().enumerate() {
        // Several lines may be about one place.
        if !wanted[..n].contains(address) {
            let these: Vec<usize> = (0..wanted.len()).filter(|i| wanted[*i] == *address).collect();
            let shared = shared.clone();
            let handler = Box::new(move |hit: &mut Hit<'_>| {
                these.iter().for_each(|i| shared.borrow_mut().entry(*i, hit));
                Ok(if stop.load(Ordering::Relaxed) { Then::Leave } else { Then::Continue })
            });
            probes.add(*address, BreakpointKind::Software, handler)?;
        }
    }
    let back = shared.clone();
    probes.at_returns(Box::new(move |hit| {
        let then = back.borrow_mut().back(hit);
        Ok(if stop.load(Ordering::Relaxed) { Then::Leave } else { then })
    }));
    ready();
    let ended = loop {
        let left = until.map_or(LOOK, |u| u.saturating_duration_since(Instant::now()).min(LOOK));
        match probes.run(left)? {
            Some(Stop::Ended) => break Ended::Gone,
            // It stopped for another reason, and goes on.
            Some(_) | None if stop.load(Ordering::Relaxed) => break Ended::Stopped,
            Some(_) | None if until.is_some_and(|u| Instant::now() >= u) => break Ended::Time,
            _ => {}
        }
    };
    if ended != Ended::Gone {
        probes.into_gdb()?.detach()?;
    } else {
        drop(probes);
    }
    let shared = shared.borrow();
    let mut counts: Vec<Counts> = shared.all.iter().map(|o| o.counts).collect();
    for open in shared.open.values().flatten() {
        counts[open.probe].no_return += 1;
    }
    Ok((ended, counts))
}

impl Shared<'_> {
    fn entry(&mut self, n: usize, hit: &mut Hit<'_>) {
        let one = &mut self.all[n];
        let r = hit.registers;
        if !hold(&one.at_entry, &r, hit.gdb) {
            return;
        }
        if !one.returns {
            one.counts.hits += 1;
            if !one.counts_only {
                let values = one.items.iter().map(|(item, _)| read(item, &r, hit.gdb)).collect();
                one.emit(hit.vcpu, values);
            }
            return;
        }
        // The return address, by how wide the processor's code is.
        let width = if r.efer & EFER_LMA != 0 { 8 } else { 4 };
        let mut to = [0; 8];
        if r.cr0 & CR0_PE == 0 || hit.gdb.read(r.rsp, &mut to[..width]).is_err() {
            one.counts.no_return += 1;
            return;
        }
        let to = u64::from_le_bytes(to);
        if self.open.values().flatten().filter(|o| o.probe == n).count() >= self.most {
            one.counts.no_return += 1;
            return;
        }
        let values = one
            .items
            .iter()
            .map(|(item, of_return)| match item {
                _ if *of_return => Read::Unread,
                // Read at the return, when what it is in is there.
                Item::Text { at, .. } => value(at, &r, hit.gdb).map_or(Read::Unread, Read::Number),
                item => read(item, &r, hit.gdb),
            })
            .collect();
        let open = Open { probe: n, stack: r.rsp.wrapping_add(width as u64), values };
        self.open.entry(to).or_default().push(open);
        hit.returns_to = Some(to);
    }

    fn back(&mut self, hit: &mut Hit<'_>) -> Then {
        let r = hit.registers;
        let Some(open) = self.open.get_mut(&hit.address) else { return Then::Remove };
        // The innermost first: all of one address that end here have this stack.
        while let Some(at) = open.iter().rposition(|o| o.stack == r.rsp) {
            let Open { probe, mut values, .. } = open.remove(at);
            let one = &mut self.all[probe];
            if !hold(&one.at_return, &r, hit.gdb) {
                continue;
            }
            for (value, (item, of_return)) in values.iter_mut().zip(&one.items) {
                match (item, &value) {
                    _ if *of_return => *value = read(item, &r, hit.gdb),
                    (Item::Text { max, .. }, Read::Number(at)) => *value = text(*at, *max, hit.gdb),
                    _ => {}
                }
            }
            one.counts.hits += 1;
            one.emit(hit.vcpu, values);
        }
        if open.is_empty() {
            self.open.remove(&hit.address);
            return Then::Remove;
        }
        Then::Continue
    }
}

impl One<'_> {
    fn emit(&mut self, vcpu: u32, values: Vec<Read>) {
        (self.to)(&Recorded {
            handle: self.handle,
            tsc: host_now(),
            cpu: vcpu,
            pid: 0,
            tgid: 0,
            comm: Vec::new(),
            values,
            not_before: SystemTime::now(),
        });
    }
}

fn hold(conditions: &[Condition], r: &Registers, gdb: &mut Gdb) -> bool {
    conditions.iter().all(|c| value(&c.value, r, gdb).is_some_and(|v| c.holds(v)))
}

fn value(v: &crate::mailbox::values::Value, r: &Registers, gdb: &mut Gdb) -> Option<u64> {
    let base = |base| match base {
        Base::Register(register) => Some(general(r, register)),
        Base::Result => Some(r.rax),
        Base::Address(a) => Some(a),
        Base::Saved(_) | Base::Task => None,
    };
    v.read_outside(base, &mut |at, to| gdb.read(at, to).is_ok())
}

fn read(item: &Item, r: &Registers, gdb: &mut Gdb) -> Read {
    match item {
        Item::Value(v) => value(v, r, gdb).map_or(Read::Unread, Read::Number),
        Item::Text { at, max } => match value(at, r, gdb) {
            Some(at) => text(at, *max, gdb),
            None => Read::Unread,
        },
        Item::Duration => Read::Unread,
    }
}

fn text(at: u64, max: usize, gdb: &mut Gdb) -> Read {
    let mut bytes = Vec::new();
    while bytes.len() < max.min(TEXT_MAX) {
        let from = at.wrapping_add(bytes.len() as u64);
        let mut piece = [0; 32];
        let n = piece.len().min(4096 - (from & 4095) as usize).min(max - bytes.len());
        if gdb.read(from, &mut piece[..n]).is_err() {
            break;
        }
        bytes.extend_from_slice(&piece[..n]);
        if let Some(end) = bytes.iter().position(|b| *b == 0) {
            bytes.truncate(end);
            return Read::Text(bytes);
        }
    }
    if bytes.is_empty() { Read::Unread } else { Read::Text(bytes) }
}

fn general(r: &Registers, register: Register) -> u64 {
    use Register::*;
    match register {
        Rax => r.rax,
        Rcx => r.rcx,
        Rdx => r.rdx,
        Rbx => r.rbx,
        Rsp => r.rsp,
        Rbp => r.rbp,
        Rsi => r.rsi,
        Rdi => r.rdi,
        R8 => r.r8,
        R9 => r.r9,
        R10 => r.r10,
        R11 => r.r11,
        R12 => r.r12,
        R13 => r.r13,
        R14 => r.r14,
        R15 => r.r15,
    }
}
