//! Whom each CPU worked for: sums over the time since the sums before, by whose time it was and whom it was for. What a profile is made of.
//!
//! All three are written by the recorder, into chunks of the CPU that they are about.

use crate::codes::{Code, code_type};
use crate::ids::BootNs;
use std::fmt;

code_type! {
    /// What a CPU was busy with.
    Busy {
        User = 1, "user", "A process, in user mode.", "";
        Kernel = 2, "kernel", "A process, in a system call.", "";
        Idle = 3, "idle", "Nothing.", "";
        Thread = 4, "thread", "A kernel thread.", "";
        Softirq = 5, "softirq", "A softirq upon a process or an idle CPU.", "";
        Hardirq = 6, "hardirq", "A hard interrupt.", "";
        SoftirqThread = 7, "softirq in a thread", "A softirq in a kernel thread.", "";
        Fault = 8, "page fault", "A process, in a page fault.", "";
        Unseen = 9, "not seen", "Not seen: the kernel runs no programs upon some tasks, and this is the time from the switch to one of them to the first border after it.", "";
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
        Writeback = 6, "writeback", "The process that wrote to the file whose pages a kernel thread writes to disk.", "";
        Block = 7, "block", "The process that asked for the block request.", "";
        Client = 8, "client", "The task that ran, since it took a message of another process: that one.", "";
        Answer = 9, "answered", "A packet because of which the kernel sent another by itself: ping, ARP, a refused connection, a next hop's address that is not known yet.", "";
        Item = 10, "work item", "The process that queued the work item which a kernel thread executes, as those of loop devices.", "";
        Asker = 11, "client, if it is a server", "As client, if that process took an answer of it ([`UseKind::Answer`]), else as itself. In logs only: tables have one of the two.", "";
        Remote = 12, "client on another host", "The task that ran, since it took a message of another host ([`Peer`]); if it wrote to that socket, else as itself. In logs only: tables have client, without a process, or itself.", "";
        Handed = 13, "client, handed on", "The task that ran, handed work by another thread of its process, until it wrote to this client. In logs a part of itself, and subject to what is said of [`Purpose::Asker`].", "";
        HandedRemote = 14, "client on another host, handed on", "The same for a client as of [`Purpose::Remote`]. In logs only: tables have `Handed`, without a process.", "";
        HandedOn = 15, "handed on", "The task that ran, handed work by another thread of its process: in logs all of it, and a part of itself; in tables what is for no client that is known.", "";
    }
}

impl Purpose {
    /// A process is known for it without a socket.
    pub fn is_of_process(self) -> bool {
        matches!(
            self,
            Purpose::Writeback
                | Purpose::Block
                | Purpose::Client
                | Purpose::Item
                | Purpose::Asker
                | Purpose::Handed
        )
    }

    /// Charged to the task that ran.
    pub fn is_own(self) -> bool {
        matches!(self, Purpose::Itself | Purpose::HandedOn) || self.is_for_client()
    }

    /// In tables: its own time, for a client.
    pub fn is_for_client(self) -> bool {
        matches!(self, Purpose::Client | Purpose::Handed)
    }

    /// In logs: a part of [`Purpose::Itself`] that is counted separately, and not added to it.
    pub fn is_part(self) -> bool {
        matches!(self, Purpose::Handed | Purpose::HandedRemote | Purpose::HandedOn)
    }
}

code_type! {
    /// How a process used a socket.
    UseKind {
        Read = 1, "read", "It read from it.", "";
        Write = 2, "write", "It wrote to it.", "";
        Open = 3, "open", "It listens, or connects.", "";
        Take = 5, "take", "It took a datagram: all of it, and nobody else did.", "";
        Answer = 4, "answer", "It took an answer of the process whose number is in the place of the socket: that one is its server.", "";
        Made = 6, "made", "It made the process whose number is in the place of the socket while it worked for a client, which that one's work is for, too.", "";
    }
}

/// In the place of a process: all that were not chosen when it was recorded. Their sockets are one with this number.
pub const OTHERS: u32 = u32::MAX;

/// What a process is called in sums, samples and labels: its id, and above it how many processes that ran since recording began had that id before. The
/// first with an id, as nearly all are, has its id as its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProcessNumber(pub u32);

impl ProcessNumber {
    /// `KP_ID_BITS` of the kernel side.
    const ID_BITS: u32 = 22;

    /// Of [`OTHERS`] that.
    pub fn pid(self) -> u32 {
        if self.0 == OTHERS { OTHERS } else { self.0 & ((1 << Self::ID_BITS) - 1) }
    }

    /// 1 for the first process with its id.
    pub fn instance(self) -> u32 {
        if self.0 == OTHERS { 1 } else { (self.0 >> Self::ID_BITS) + 1 }
    }
}

impl From<i32> for ProcessNumber {
    fn from(n: i32) -> ProcessNumber {
        ProcessNumber(n as u32)
    }
}

/// `1234`, and `1234.2` for the second process with that id.
impl fmt::Display for ProcessNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.instance() {
            1 => write!(f, "{}", self.pid()),
            n => write!(f, "{}.{n}", self.pid()),
        }
    }
}

/// Time of one CPU that went to one purpose. Of one CPU all of them but parts of others ([`Purpose::is_part`]), and what found no place ([`CpuTime::unplaced_ns`]), add up to
/// the time that its account was open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// The sum is of the time before.
    pub at: BootNs,
    pub busy: Busy,
    pub purpose: Purpose,
    /// [`ProcessNumber`] of the process whose time it was; 0: the CPU was idle otherwise.
    pub victim: u32,
    /// Cookie of the socket, 0: none; of [`Purpose::Forward`] network namespace << 32 | interface of arrival << 16 | of departure; of [`Purpose::Drop`] of the one that would have had the packet. Of [`Purpose::Writeback`], [`Purpose::Block`], [`Purpose::Item`],
    /// [`Purpose::Client`], [`Purpose::Asker`] and [`Purpose::Handed`] that process; of [`Purpose::Remote`] and [`Purpose::HandedRemote`] the number of a [`Peer`].
    pub socket: u64,
    pub ns: u64,
    /// Of [`Busy::Kernel`] system calls, of [`Busy::Fault`] page faults, of [`Purpose::Block`] requests.
    pub packets: u64,
    /// Lengths of these packets; of [`Purpose::Handed`] and [`Purpose::HandedRemote`] how many of `ns` are so only if no other work came to where it was handed.
    pub bytes: u64,
}

/// The two ends of messages between this host and another one, logged when one of this host's processes took the first of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    pub at: BootNs,
    /// What [`Purpose::Remote`] calls it.
    pub number: u64,
    /// Cookie of the socket.
    pub socket: u64,
    /// Who took it.
    pub process: u32,
    pub datagrams: bool,
    /// Addresses as the log shows them, empty: not known, or left out.
    pub local: String,
    pub local_port: u16,
    pub peer: String,
    pub peer_port: u16,
}

/// A process used a socket: work that is done for the socket is done for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketUse {
    pub at: BootNs,
    pub how: UseKind,
    /// Of [`UseKind::Answer`] and [`UseKind::Made`] a process.
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

/// How many packets a CPU received, since recording began and as the kernel has it: whether the programs ran for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuPackets {
    pub at: BootNs,
    /// As in [`CpuTime`].
    pub opened: BootNs,
    pub counted: u64,
    /// /proc/net/softnet_stat, modulo 2^32.
    pub received: u64,
}

/// How many requests of disks were completed on all CPUs, since recording began and as the kernel has it: whether the programs ran for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockRequests {
    pub at: BootNs,
    /// As in [`CpuTime`], of the CPU in whose chunk it is.
    pub opened: BootNs,
    pub counted: u64,
    /// /proc/diskstats, since boot: reads, writes, discards and flushes of all disks that have queues of requests.
    pub completed: u64,
}

/// What a process belongs to, once for each process and again where that changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessLabel {
    pub at: BootNs,
    /// A [`ProcessNumber`]; 0: it says of a socket's user and cgroup what they are called.
    pub process: u32,
    /// When it began. 0: not known.
    pub started: BootNs,
    pub uid: u32,
    /// Its inode in cgroup2.
    pub cgroup: u64,
    /// Where the inode is; empty: not known.
    pub path: String,
    /// `comm` of the thread that it was seen by.
    pub name: String,
    /// What the device calls the user; empty: not known.
    pub user: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_processes() {
        let n = |n: u32| (ProcessNumber(n).to_string(), ProcessNumber(n).pid(), ProcessNumber(n).instance());
        assert_eq!(n(4_194_303), ("4194303".into(), 4_194_303, 1));
        assert_eq!(n(1234 | 2 << 22), ("1234.3".into(), 1234, 3));
        assert_eq!((ProcessNumber::from(-1).pid(), ProcessNumber::from(-1).instance()), (OTHERS, 1));
    }
}
