//! The host's end: hits that wait are taken, answered, and entries of the ring are read.
//!
//! A hit costs what it takes to move lines of memory between two processors, so each goes over once in each direction: the host looks, reads, and answers by one
//! exchange, which fails if the guest has given up. That the host has begun it says in a line of its own, at which a guest looks that waits long. If the
//! guest gives up within the nanoseconds in which the host begins, the hit is handled and counted as missed; nothing is lost by it.

use super::layout::*;
use super::region::Region;
use super::values::{Item, TEXT_MAX};
use crate::x86::Register;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The registers of a hit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Registers {
    /// By [`Register`]'s number.
    pub general: [u64; 16],
    pub flags: u64,
    pub rip: u64,
    pub cr3: u64,
}

impl Registers {
    pub fn get(&self, register: Register) -> u64 {
        self.general[register as usize]
    }

    pub fn set(&mut self, register: Register, value: u64) {
        self.general[register as usize] = value;
    }
}

const OFFSETS: [(Register, usize); 16] = [
    (Register::Rax, RAX),
    (Register::Rcx, RCX),
    (Register::Rdx, RDX),
    (Register::Rbx, RBX),
    (Register::Rsp, RSP),
    (Register::Rbp, RBP),
    (Register::Rsi, RSI),
    (Register::Rdi, RDI),
    (Register::R8, R8),
    (Register::R9, R9),
    (Register::R10, R10),
    (Register::R11, R11),
    (Register::R12, R12),
    (Register::R13, R13),
    (Register::R14, R14),
    (Register::R15, R15),
];

/// A hit that was taken and waits for its answer.
#[derive(Debug)]
pub struct Taken {
    slot: usize,
    state: u32,
    pub probe: usize,
    pub cpu: u32,
    pub task: u64,
    pub tsc: u64,
    /// Which open call, at the entry or return of a function whose return is probed.
    pub instance: usize,
    pub registers: Registers,
}

/// What becomes of a hit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    GoOn,
    /// With the registers that are given; rsp stays.
    Changed,
    /// At another address, `rip` of the registers that are given.
    Elsewhere,
    /// At an entry: the return is not wanted.
    NoReturn,
}

/// One value of an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Read {
    Number(u64),
    Text(Vec<u8>),
    /// Its memory was not there.
    Unread,
}

/// An entry of the ring.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub probe: usize,
    pub tsc: u64,
    pub cpu: u32,
    pub task: u64,
    pub pid: u32,
    pub tgid: u32,
    pub comm: Vec<u8>,
    /// The kernel's count of contexts.
    pub contexts: u32,
    /// By which other entries refer to it.
    pub number: u64,
    pub(super) payload: Vec<u8>,
    unread: u16,
}

impl Entry {
    /// The values, as the probe's `items` say.
    pub fn values(&self, items: &[Item]) -> Vec<Read> {
        let mut offset = 0;
        items
            .iter()
            .enumerate()
            .map(|(n, item)| {
                let at = offset;
                offset += item.room();
                let number =
                    self.payload.get(at..at + 8).and_then(|b| b.try_into().ok()).map(u64::from_le_bytes);
                match (item, number) {
                    (_, None) => Read::Unread,
                    (Item::Text { max, .. }, Some(len)) if self.unread & 1 << n == 0 || len > 0 => {
                        let len = (len as usize).min(*max).min(TEXT_MAX);
                        self.payload
                            .get(at + 8..at + 8 + len)
                            .map_or(Read::Unread, |b| Read::Text(b.to_vec()))
                    }
                    _ if self.unread & 1 << n != 0 => Read::Unread,
                    (_, Some(number)) => Read::Number(number),
                }
            })
            .collect()
    }
}

/// Counters of one probe, since it was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    pub hits: u64,
    pub lost: u64,
    pub missed: u64,
    pub no_return: u64,
}

pub struct Host {
    region: Arc<Region>,
    next: usize,
    empty: u32,
    tail: u64,
    /// Hits that were given up while their handler ran.
    pub late: u64,
    /// Entries that were not as code of the host's writes them.
    pub damaged: u64,
}

impl Host {
    pub fn new(region: Arc<Region>) -> Host {
        let next = region.get32(TICKET) as usize;
        let tail = region.get64(RING_TAIL);
        Host { region, next, empty: 0, tail, late: 0, damaged: 0 }
    }

    /// The next hit that waits, if there is one. Most looks are at one word: where the next ticket's will be.
    pub fn take(&mut self) -> Option<Taken> {
        if self.region.get32(GONE) != 0 {
            self.region.set32(GONE, 0);
        }
        if let Some(taken) = self.take_at(self.next % SLOT_COUNT) {
            self.next = self.next.wrapping_add(1);
            self.empty = 0;
            return Some(taken);
        }
        self.empty += 1;
        if !self.empty.is_multiple_of(64) {
            return None;
        }
        // A ticket may have found its slot in use, and hits end out of order.
        let head = self.region.get32(TICKET) as usize;
        let found =
            (0..SLOT_COUNT).map(|n| head.wrapping_add(n) % SLOT_COUNT).find_map(|slot| self.take_at(slot));
        self.next = head;
        found
    }

    fn take_at(&self, slot: usize) -> Option<Taken> {
        let at = SLOTS + slot * SLOT;
        let state = self.region.get32(at + STATE);
        if state & 0xff != WAITING {
            return None;
        }
        // Seen by a hit that gives up waiting.
        self.region.set32(HOST_SLOT, at as u32);
        self.region.set32(HOST_STATE, state);
        if self.region.get32(at + STATE) != state {
            return None;
        }
        let mut registers = Registers {
            flags: self.region.get64(at + FLAGS),
            rip: self.region.get64(at + RIP),
            cr3: self.region.get64(at + CR3),
            ..Registers::default()
        };
        for (register, offset) in OFFSETS {
            registers.set(register, self.region.get64(at + offset));
        }
        let instance = (self.region.get64(at + INSTANCE) as usize & (SHARED_CODE - 1))
            .saturating_sub(INSTANCES)
            / INSTANCE_SIZE
            % INSTANCE_COUNT;
        Some(Taken {
            slot,
            state,
            probe: (state >> 8) as usize % PROBES,
            cpu: self.region.get32(at + CPU),
            task: self.region.get64(at + TASK),
            tsc: self.region.get64(at + TSC),
            instance,
            registers,
        })
    }

    /// Lets the hit go on. Whether it still waited.
    pub fn answer(&mut self, taken: &Taken, answer: Answer, registers: &Registers) -> bool {
        let at = SLOTS + taken.slot * SLOT;
        let code = match answer {
            Answer::GoOn => GO_ON,
            Answer::NoReturn => NO_RETURN_WANTED,
            Answer::Changed => CHANGED,
            Answer::Elsewhere => ELSEWHERE,
        };
        let word = self.region.word32(at + STATE);
        if word.load(Ordering::Acquire) == taken.state
            && matches!(answer, Answer::Changed | Answer::Elsewhere)
        {
            for (register, offset) in OFFSETS {
                self.region.set64(at + offset, registers.get(register));
            }
            self.region.set64(at + FLAGS, registers.flags);
            self.region.set64(at + RIP, registers.rip);
        }
        if word
            .compare_exchange(taken.state, taken.state & !0xff | code, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
        {
            return true;
        }
        self.late += 1;
        let left = taken.state & !0xff | ABANDONED;
        if word.compare_exchange(left, FREE, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            self.region.set32(at + CLAIM, 0);
        }
        false
    }

    /// The entries that came into the ring, in their order. At most what it holds.
    pub fn entries(&mut self, mut each: impl FnMut(Entry)) -> usize {
        let mut count = 0;
        for _ in 0..CELLS {
            let at = RING + (self.tail as usize % CELLS) * CELL;
            if self.region.get64(at + EN_SEQUENCE) != self.tail.wrapping_add(1) {
                break;
            }
            let cells = usize::from(self.region.get32(at + EN_CELLS) as u16).clamp(1, ENTRY_CELLS);
            let unread = (self.region.get32(at + EN_CELLS) >> 16) as u16;
            let probe = self.region.get32(at + EN_PROBE) as usize;
            let pids = self.region.get64(at + EN_PID);
            let mut payload = Vec::with_capacity((cells - 1) * CELL);
            for cell in 1..cells {
                let from = RING + ((self.tail as usize + cell) % CELLS) * CELL;
                payload.extend((0..CELL).step_by(8).flat_map(|n| self.region.get64(from + n).to_le_bytes()));
            }
            let mut comm: Vec<u8> =
                (0..16).step_by(8).flat_map(|n| self.region.get64(at + EN_COMM + n).to_le_bytes()).collect();
            comm.truncate(comm.iter().position(|b| *b == 0).unwrap_or(comm.len()));
            let entry = Entry {
                probe,
                tsc: self.region.get64(at + EN_TSC),
                cpu: self.region.get32(at + EN_CPU),
                task: self.region.get64(at + EN_TASK),
                pid: pids as u32,
                tgid: (pids >> 32) as u32,
                comm,
                contexts: self.region.get32(at + EN_CONTEXT),
                number: self.tail.wrapping_add(1),
                payload,
                unread,
            };
            // The next round's entries must not find a sequence number in what this one left.
            for cell in 0..cells {
                let from = RING + ((self.tail as usize + cell) % CELLS) * CELL;
                for n in (0..CELL).step_by(8) {
                    self.region.word64(from + n).store(0, Ordering::Relaxed);
                }
            }
            self.tail = self.tail.wrapping_add(cells as u64);
            self.region.set64(RING_TAIL, self.tail);
            if probe < PROBES {
                count += 1;
                each(entry);
            } else {
                self.damaged += 1;
            }
        }
        count
    }

    /// The same of a guest that writes no more. A processor that ended in the midst of an entry never finished it: it counts as damaged, and what is behind
    /// it is read.
    pub fn rest(&mut self, mut each: impl FnMut(Entry)) -> usize {
        let mut count = 0;
        loop {
            count += self.entries(&mut each);
            let left = self.region.get64(RING_HEAD).wrapping_sub(self.tail);
            if left == 0 || left > CELLS as u64 {
                return count;
            }
            self.damaged += 1;
            let cell = |n: u64| RING + (n as usize % CELLS) * CELL;
            let begins = |n: &u64| self.region.get64(cell(*n) + EN_SEQUENCE) == n.wrapping_add(1);
            let next = (1..left).map(|n| self.tail.wrapping_add(n)).find(begins);
            self.tail = next.unwrap_or(self.tail.wrapping_add(left));
            self.region.set64(RING_TAIL, self.tail);
        }
    }

    pub fn counts(&self, probe: usize) -> Counts {
        counts(&self.region, probe)
    }
}

/// Of a probe's one part.
pub fn counts(region: &Region, probe: usize) -> Counts {
    let at = CONTROLS + probe % PROBES * CONTROL;
    Counts {
        hits: region.get64(at + HITS),
        lost: region.get64(at + LOST),
        missed: region.get64(at + MISSED),
        no_return: region.get64(at + NO_RETURN),
    }
}
