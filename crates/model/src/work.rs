//! Whom each CPU worked for: sums over the time since the sums before, by whose time it was and whom it was for. What a profile is made of.
//!
//! All three are written by the recorder, into chunks of the CPU that they are about.

use crate::codes::{Code, code_type};
use crate::ids::BootNs;

code_type! {
    /// What a CPU was busy with.
    Busy {
        User = 1, "user", "A process, in user mode. Page faults are in it: the kernel shows where one begins, and not where it ends.", "";
        Kernel = 2, "kernel", "A process, in a system call.", "";
        Idle = 3, "idle", "Nothing.", "";
        Thread = 4, "thread", "A kernel thread.", "";
        Softirq = 5, "softirq", "A softirq upon a process or an idle CPU.", "";
        Hardirq = 6, "hardirq", "A hard interrupt.", "";
        SoftirqThread = 7, "softirq in a thread", "A softirq in a kernel thread.", "";
    }
}

code_type! {
    /// For whom.
    Purpose {
        Itself = 0, "itself", "The task that ran.", "";
        Socket = 1, "socket", "Whoever uses the socket.", "";
        Forward = 2, "forwarded", "A packet that went on to another device.", "";
        Drop = 3, "dropped", "A packet that was dropped.", "";
        Unknown = 4, "unknown", "A packet of which nothing says whose it is.", "";
        Kernel = 5, "kernel", "Nobody but the kernel: timers, scheduling, its own bookkeeping, interrupts that brought no packet.", "";
    }
}

code_type! {
    /// How a process used a socket.
    UseKind {
        Read = 1, "read", "It read from it.", "";
        Write = 2, "write", "It wrote to it.", "";
        Open = 3, "open", "It listens, or connects.", "";
    }
}

/// Time of one CPU that went to one purpose. Of one CPU all of them, and what found no place ([`CpuTime::unplaced_ns`]), add up to
/// the time that its account was open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// The sum is of the time before.
    pub at: BootNs,
    pub busy: Busy,
    pub purpose: Purpose,
    /// Process whose time it was; 0: the CPU was idle otherwise.
    pub victim: u32,
    /// Cookie of the socket, 0: none.
    pub socket: u64,
    pub ns: u64,
    pub packets: u64,
    /// Lengths of these packets.
    pub bytes: u64,
}

/// A process used a socket: work that is done for the socket is done for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketUse {
    pub at: BootNs,
    pub how: UseKind,
    pub socket: u64,
    pub process: u32,
    pub bytes: u64,
    pub times: u64,
}

/// How far the account of a CPU reaches, and what the kernel's own (/proc/stat) says at that moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuTime {
    /// Everything up to here is charged.
    pub at: BootNs,
    /// From here on: when recording began, or went on after a pause.
    pub opened: BootNs,
    /// Time since recording began for which there was no room among the sums.
    pub unplaced_ns: u64,
    /// By the kernel's own account, since boot, in ticks of 10 ms: with `nice`, `iowait` with idle.
    pub user_ns: u64,
    pub system_ns: u64,
    pub idle_ns: u64,
    pub irq_ns: u64,
    pub softirq_ns: u64,
    pub steal_ns: u64,
}
