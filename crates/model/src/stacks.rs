//! Samples: what a CPU was doing when its clock interrupted it, with the stacks that it had. They say which functions the time of a profile went
//! to; whose time it was, and how much, the sums say exactly ([`crate::Work`]).
//!
//! A stack is logged once in a file and named by a number; what the addresses of a process mean is in mappings.

use crate::codes::{Code, code_type};
use crate::ids::BootNs;
use crate::work::{Busy, Purpose};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuSample {
    pub at: BootNs,
    /// The task that was interrupted, 0: the CPU was idle otherwise.
    pub thread: u32,
    /// Its process.
    pub process: u32,
    pub busy: Busy,
    /// For whom, as far as it was known then.
    pub purpose: Purpose,
    /// See [`CpuSample::USER_MODE`] and its neighbour.
    pub flags: u8,
    /// Cookie of the socket that was served, 0: none. Of [`Purpose::Writeback`], [`Purpose::Block`], [`Purpose::Item`], [`Purpose::Client`] and [`Purpose::Asker`] that process.
    pub socket: u64,
    /// Numbers of stacks, 0: none.
    pub kernel: u64,
    pub user: u64,
    /// Time between two samples of a CPU: what one stands for.
    pub period_ns: u64,
}

impl CpuSample {
    /// The CPU was in user mode.
    pub const USER_MODE: u8 = 1;
    /// A packet was handled whose owner was not known yet.
    pub const OPEN: u8 = 2;
    /// It came before a softirq's first packet, and is given to one of those whose packets that softirq brought, by lot.
    pub const DRAWN: u8 = 4;
}

/// Return addresses, innermost first; the first is where the CPU was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SampledStack {
    pub at: BootNs,
    pub number: u64,
    /// Whose addresses they are, by the process's number; 0: the kernel's, which the log's symbols name.
    pub process: u32,
    pub frames: Vec<u8>,
}

impl SampledStack {
    pub fn new(at: BootNs, number: u64, process: u32, frames: &[u64]) -> SampledStack {
        let frames = frames.iter().flat_map(|f| f.to_le_bytes()).collect();
        SampledStack { at, number, process, frames }
    }

    /// The addresses: of bytes that are not whole the last are left out.
    pub fn addresses(&self) -> impl Iterator<Item = u64> {
        self.frames.chunks_exact(8).map(|b| u64::from_le_bytes(b.try_into().unwrap_or_default()))
    }
}

code_type! {
    /// What a range of addresses of a process is.
    MappingKind {
        File = 1, "file", "A part of a file.", "";
        Function = 2, "function", "A function that the process made (a compiler at run time), by its own map in /tmp/perf-PID.map.", "";
    }
}

/// What a range of executable addresses of a process was when it was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    pub at: BootNs,
    pub process: u32,
    pub what: MappingKind,
    pub start: u64,
    pub length: u64,
    /// Of `start` in the file.
    pub offset: u64,
    /// Path of the file as the process has it, or name of the function.
    pub name: String,
    /// Of the file; empty: it has none, or it could not be read.
    pub build_id: Vec<u8>,
}
