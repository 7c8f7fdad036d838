//! Where what is in the memory that guest and host share. The one place that has these numbers.
//!
//! The guest can write all of it. What the host reads there is a claim: indexes are masked, lengths bounded, nothing is an address of
//! the host's.

/// Bytes of the memory, and how many pages of 2 MB map it: the ring is mapped twice in a row, so that an entry that passes its end
/// is in one piece.
pub const SIZE: usize = 0x80_0000;
pub const PAGE: u64 = 0x20_0000;
/// Which page of the memory is at which place of the mapping.
pub const PAGES: [u64; 6] = [0, 1, 2, 3, 2, 3];

/// Words of the head, each that is written often in a line of its own.
pub const MAGIC: usize = 0x00;
pub const TICKET: usize = 0x40;
pub const RING_HEAD: usize = 0x80;
pub const RING_TAIL: usize = 0xc0;
/// Not 0: the host did not answer in time. Hits go on without asking it.
pub const GONE: usize = 0x100;
/// How long a hit waits, in ticks of the time stamp counter: for the host to begin, and for it to finish.
pub const WAIT_BEGIN: usize = 0x108;
pub const WAIT_END: usize = 0x110;
/// The host's clock, as often as the host looks: a hit that copies it was not before that moment.
pub const HOST_NOW: usize = 0x118;
/// Which hit the host works on: its slot's offset and its state as the guest wrote it. A line of its own, at which the guest looks only when it has waited long.
pub const HOST_SLOT: usize = 0x180;
pub const HOST_STATE: usize = 0x184;
/// Where the search for a free open call begins, of probes that share them.
pub const SHARED_HINT: usize = 0x140;

/// One for each probe.
pub const CONTROLS: usize = 0x1000;
pub const CONTROL: usize = 64;
pub const PROBES: usize = 2048;
pub const ENABLED: usize = 0;
/// In place of 1: no hit begins, calls that are open still return.
pub const RETURNS_ONLY: u32 = 2;
/// Where the search for a free return begins.
pub const HINT: usize = 4;
pub const HITS: usize = 8;
/// Entries for which the ring had no room.
pub const LOST: usize = 16;
/// Hits that went on without the host.
pub const MISSED: usize = 24;
/// Entries of functions whose return could not be taken, because as many calls as allowed were open.
pub const NO_RETURN: usize = 32;

/// Where breakpoints lead, and the table of places: address behind the breakpoint, and the probe's code. Sixteen bytes each, a power of two of them.
pub const GATE: usize = 0x2_2000;
pub const GATE_TABLE: usize = 0x2_3000;
pub const GATE_PLACES: usize = 2048;

/// One for each hit that waits for the host, in lines of 64 bytes. The host looks at the first line again and again: the guest writes to it only when all else is
/// there, since each look in between takes the line away from the guest's processor.
pub const SLOTS: usize = 0x3_0000;
pub const SLOT: usize = 256;
pub const SLOT_COUNT: usize = 256;
/// State in the lowest byte, the probe in the next 11 bits, in the others a count that tells hits of one slot apart.
pub const STATE: usize = 0;
pub const CPU: usize = 4;
pub const RSP: usize = 8;
pub const RDI: usize = 16;
pub const RSI: usize = 24;
pub const RDX: usize = 32;
pub const RCX: usize = 40;
pub const RAX: usize = 48;
pub const TASK: usize = 56;
pub const R8: usize = 64;
pub const R9: usize = 72;
pub const R10: usize = 80;
pub const R11: usize = 88;
pub const RBX: usize = 96;
pub const RBP: usize = 104;
pub const R12: usize = 112;
pub const R13: usize = 120;
pub const R14: usize = 128;
pub const R15: usize = 136;
pub const FLAGS: usize = 144;
pub const RIP: usize = 152;
pub const CR3: usize = 160;
pub const TSC: usize = 168;
pub const INSTANCE: usize = 176;
/// Not 0: the slot is in use.
pub const CLAIM: usize = 184;
pub const STATE_COUNT_SHIFT: u32 = 19;

/// States of a slot. The guest goes from any to waiting, the host from there to an answer; the guest takes that, and gives the slot up. Who waits no longer goes to free and gives it
/// up, too; or, if the host has begun, to abandoned, and the host gives it up.
pub const FREE: u32 = 0;
pub const WAITING: u32 = 2;
pub const ABANDONED: u32 = 4;
/// Answers: go on as if nothing had been; with other registers; with other registers and at another address; without looking at the return.
pub const GO_ON: u32 = 8;
pub const CHANGED: u32 = 9;
pub const ELSEWHERE: u32 = 10;
pub const NO_RETURN_WANTED: u32 = 11;

/// One for each open call of a function whose return is probed, and code beside it that its return address is replaced by.
pub const INSTANCES: usize = 0x4_0000;
pub const INSTANCE_SIZE: usize = 128;
pub const INSTANCE_COUNT: usize = 4096;
pub const IN_STATE: usize = 0;
pub const IN_PROBE: usize = 4;
pub const IN_RETURN: usize = 8;
/// Where on the stack the return address was.
pub const IN_PLACE: usize = 16;
pub const IN_TSC: usize = 24;
pub const IN_SAVED: usize = 32;
pub const SAVED_MAX: usize = 6;
/// A bit for each saved value that could not be read.
pub const IN_UNREAD: usize = IN_SAVED + 8 * SAVED_MAX;
/// Whose call it is: the task's structure, 0 where that is not known, and its number.
pub const IN_TASK: usize = IN_UNREAD + 8;
pub const IN_PID: usize = IN_TASK + 8;
/// Of them the ones that probes of packets share: a power of two.
pub const SHARED_FIRST: usize = 2048;
pub const SHARED_COUNT: usize = 2048;
/// States of an open call.
pub const IN_FREE: u32 = 0;
pub const IN_CLAIMED: u32 = 1;
pub const IN_ARMED: u32 = 2;

/// Code that all probes use, the code of returns, then that of each probe.
pub const SHARED_CODE: usize = 0x10_0000;
pub const TRAMPOLINES: usize = 0x10_1000;
pub const TRAMPOLINE: usize = 16;
pub const STUBS: usize = 0x12_0000;
pub const STUBS_END: usize = 0x40_0000;

/// Entries in cells of 64 bytes: one with the head below, then as many as the values take.
pub const RING: usize = 0x40_0000;
pub const CELL: usize = 64;
pub const CELLS: usize = 0x1_0000;
/// An entry's cells at most, and how many cells stay free for those that reserve at the same moment.
pub const ENTRY_CELLS: usize = 8;
pub const MARGIN: usize = 1024;
pub const EN_SEQUENCE: usize = 0;
pub const EN_PROBE: usize = 8;
pub const EN_CELLS: usize = 12;
/// A bit for each value that could not be read.
pub const EN_UNREAD: usize = 14;
pub const EN_TSC: usize = 16;
pub const EN_TASK: usize = 24;
pub const EN_PID: usize = 32;
pub const EN_TGID: usize = 36;
pub const EN_COMM: usize = 40;
pub const EN_CPU: usize = 56;
/// The kernel's count of contexts.
pub const EN_CONTEXT: usize = 60;

const _: () = assert!(PROBES == 1 << (STATE_COUNT_SHIFT - 8) && SLOT_COUNT == 1 << 8);
const _: () = assert!(CONTROLS + PROBES * CONTROL <= GATE);
const _: () = assert!(GATE_TABLE + 16 * GATE_PLACES <= SLOTS && GATE_PLACES.is_power_of_two());
const _: () = assert!(SLOTS + SLOT_COUNT * SLOT <= INSTANCES);
const _: () = assert!(INSTANCES + INSTANCE_COUNT * INSTANCE_SIZE <= SHARED_CODE);
const _: () = assert!(TRAMPOLINES + INSTANCE_COUNT * TRAMPOLINE <= STUBS);
const _: () = assert!(RING + CELLS * CELL == SIZE);
const _: () = assert!(SHARED_FIRST + SHARED_COUNT <= INSTANCE_COUNT);
const _: () = assert!(IN_PID + 8 <= INSTANCE_SIZE);
