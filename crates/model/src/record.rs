//! What a kernel behaviour log is made of, as decoded values. The layout in the kernel's ring is
//! `bpf/include/wire.h`, the layout in the file is `docs/kbl-format.md`; this is neither, it is what they mean.
//!
//! The CPU is not a field: a record belongs to a chunk, and a chunk to one CPU (the CPU on which the record was
//! written; for a call that is the CPU of its return).

use crate::ids::{BootNs, FuncId, PacketId};

/// In what context the CPU was. Where an interrupt cuts in, the task's pid is still given, but it is whoever was
/// running, not who asked for the work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Context {
    #[default]
    Task = 0,
    Softirq = 1,
    Hardirq = 2,
    Nmi = 3,
    /// The kernel gave no way to tell.
    Unknown = 4,
}

impl Context {
    pub fn from_u8(v: u8) -> Context {
        match v {
            0 => Context::Task,
            1 => Context::Softirq,
            2 => Context::Hardirq,
            3 => Context::Nmi,
            _ => Context::Unknown,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Context::Task => "task",
            Context::Softirq => "softirq",
            Context::Hardirq => "hardirq",
            Context::Nmi => "nmi",
            Context::Unknown => "?",
        }
    }
}

/// One execution of one function that touched a packet; entry and return met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    pub func: FuncId,
    pub ctx: Context,
    /// See [`Call::LIST`] and its neighbours.
    pub flags: u8,
    /// Low bits of the `sk_buff`'s address: tells clones of one packet apart, nothing else. 0: not known (kprobes do not have the argument
    /// at the return, and a packet behind a pointer may be another one by then).
    pub skb_tag: u16,
    /// Thread id of the current task at return.
    pub pid: u32,
    pub packet: PacketId,
    pub entry: BootNs,
    pub dur_ns: u64,
}

impl Call {
    /// The call handled a list; [`Member`] records with the same function and entry time name the further packets.
    pub const LIST: u8 = 1;
    /// The return was not seen (the function never returned while recording, or its record was lost): `dur_ns` is 0.
    pub const NO_RETURN: u8 = 2;
    /// The packet came out of the call (return value), it did not go in.
    pub const RETURNED: u8 = 4;
    /// The packet's header buffer was freed in it: its last holder let go.
    pub const ENDS: u8 = 8;
}

/// A moment at a tracepoint: the packet was here. No duration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Point {
    pub func: FuncId,
    pub ctx: Context,
    pub skb_tag: u16,
    pub pid: u32,
    pub packet: PacketId,
    pub at: BootNs,
    /// `skb->len` at that moment, bytes.
    pub len_bytes: u32,
    /// The packet's header buffer is freed there: its last holder lets go.
    pub ends: bool,
}

/// A further packet of a call that handled several (see [`Call::LIST`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    pub func: FuncId,
    pub packet: PacketId,
    /// Entry time of the call it belongs to.
    pub entry: BootNs,
}

/// The header bytes of a packet as the kernel held them at a moment: logged when the packet is first seen and again
/// when its headers or its device changed. Parsed with the same decoder as a wire frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FootprintRecord {
    pub packet: PacketId,
    pub at: BootNs,
    /// 0: no device known.
    pub ifindex: u32,
    /// Inode number of the network namespace, 0: unknown.
    pub netns: u32,
    /// Bytes from the start of `header` to the end of the data unit, which may be more than one frame (GSO, GRO).
    pub len_bytes: u32,
    /// `skb_shared_info.gso_size`, 0: not a segmentation packet.
    pub gso_size: u16,
    /// `skb_shared_info.gso_segs`.
    pub gso_segs: u16,
    /// EtherType of `skb->protocol`, host order; 0 when not yet set.
    pub protocol: u16,
    /// Layer at which `header` starts: 2 link, 3 network, 4 transport.
    pub start_layer: u8,
    /// IP protocol when `start_layer` is 4, else 0.
    pub ip_proto: u8,
    /// ARPHRD_* of the device (`include/uapi/linux/if_arp.h`), 1 Ethernet; 0 unknown.
    pub link_type: u16,
    /// Low bits of the skb's address.
    pub skb_tag: u16,
    pub header: HeaderBytes,
}

impl FootprintRecord {
    pub const MAX_HEADER: usize = 112;
}

/// Header bytes, in place: at most [`FootprintRecord::MAX_HEADER`].
#[derive(Clone, Copy)]
pub struct HeaderBytes {
    len: u8,
    bytes: [u8; FootprintRecord::MAX_HEADER],
}

impl HeaderBytes {
    /// What is beyond the room is not kept.
    pub fn new(from: &[u8]) -> HeaderBytes {
        let len = from.len().min(FootprintRecord::MAX_HEADER);
        let mut bytes = [0; FootprintRecord::MAX_HEADER];
        bytes[..len].copy_from_slice(&from[..len]);
        HeaderBytes { len: len as u8, bytes }
    }

    /// With zeros behind the end.
    pub fn padded(&self) -> &[u8; FootprintRecord::MAX_HEADER] {
        &self.bytes
    }
}

impl std::ops::Deref for HeaderBytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl PartialEq for HeaderBytes {
    fn eq(&self, other: &HeaderBytes) -> bool {
        **self == **other
    }
}

impl Eq for HeaderBytes {}

impl std::fmt::Debug for HeaderBytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        (**self).fmt(f)
    }
}

/// The packet is at another device; its headers are those of its last footprint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub packet: PacketId,
    pub at: BootNs,
    pub ifindex: u32,
    /// Inode number of the network namespace.
    pub netns: u32,
    /// ARPHRD_* of the device.
    pub link_type: u16,
    /// Low bits of the skb's address.
    pub skb_tag: u16,
}

/// How one packet came from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum LineageKind {
    /// Second skb over the same data: `child` equals `parent`, told apart by `skb_tag`.
    Clone = 1,
    /// Data copied: `skb_copy`, `__pskb_copy_fclone`.
    Copy = 2,
    /// `skb_segment`: child is one segment of parent.
    Segment = 3,
    /// Receive offload: parent was merged into child.
    GroMerge = 4,
    /// IP fragmentation: child is one fragment of parent.
    Fragment = 5,
    /// IP reassembly: parent is one fragment of child.
    Reassembly = 6,
    /// `pskb_expand_head`: same packet, new header buffer (`child` equals `parent`).
    Realloc = 7,
}

impl LineageKind {
    pub fn from_u8(v: u8) -> Option<LineageKind> {
        use LineageKind::*;
        [Clone, Copy, Segment, GroMerge, Fragment, Reassembly, Realloc].into_iter().find(|k| *k as u8 == v)
    }

    pub fn name(self) -> &'static str {
        match self {
            LineageKind::Clone => "clone",
            LineageKind::Copy => "copy",
            LineageKind::Segment => "segment",
            LineageKind::GroMerge => "gro-merge",
            LineageKind::Fragment => "fragment",
            LineageKind::Reassembly => "reassembly",
            LineageKind::Realloc => "realloc",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lineage {
    pub kind: LineageKind,
    pub at: BootNs,
    pub parent: PacketId,
    pub child: PacketId,
}

/// What sort of event. Codes 1..=15 come from the kernel side (`wire.h`), from 32 on from user space (netlink).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum EventKind {
    /// `a` drop reason number (name in the log's metadata), `b` kernel address of the place.
    Drop = 1,
    /// `a` source port << 16 | destination port (host order), `b` TCP state.
    Retransmit = 2,
    /// `a` ports as above, `b` old state << 8 | new state.
    TcpState = 3,
    // 4 is reserved: formats of old name it, no recorder wrote it.
    /// The task `pid` was off the CPU until now. `a` for how many nanoseconds, `b` why and where, see [`Pause`].
    Pause = 5,
    /// `packet` is the first of a poll of received packets that is in the log, or the first after some that are not. `a` nanoseconds
    /// since the poll began, and 1; `b` nanoseconds since NET_RX had been raised for it, and 1. 0: not known.
    Poll = 6,
    /// The poll of which `packet` was the first in the log is over. `a` packets that the driver took | those that it might have
    /// taken << 32; `b` how many softirqs of NET_RX this CPU had had, this one included.
    Polled = 7,
    /// `a` ifindex, `b` flags (IFF_*, as rtnetlink gives them). Text: interface name.
    Link = 32,
    /// `a` 1 added, 0 removed. Text: the route.
    Route = 33,
    /// `a` NUD_* state, `b` ifindex. Text: address and link address.
    Neighbour = 34,
    /// Text: what the recorder did (dump, functions on or off, trigger).
    Control = 35,
    /// `a` 1 added or changed, 0 removed, `b` ifindex. Text: the address and its state.
    Address = 36,
    /// A queueing discipline, class or filter: `a` 1 added or changed, 0 removed, `b` ifindex. Text: which, where.
    Queueing = 37,
    /// A network namespace: `a` 1 came, 0 went, `b` its inode number, 0: unknown. Text: its name or number.
    Namespace = 38,
    /// Stands before an event of user space: that one happened at most `a` nanoseconds before its time, which is when it was read.
    Within = 39,
}

impl EventKind {
    /// Seen by user space: CPU and task of such an event are not those of what happened.
    pub fn is_of_user_space(self) -> bool {
        self as u8 >= EventKind::Link as u8
    }

    pub fn from_u8(v: u8) -> Option<EventKind> {
        use EventKind::*;
        [
            Drop, Retransmit, TcpState, Pause, Poll, Polled, Link, Route, Neighbour, Control, Address,
            Queueing, Namespace, Within,
        ]
        .into_iter()
        .find(|k| *k as u8 == v)
    }

    pub fn name(self) -> &'static str {
        match self {
            EventKind::Drop => "drop",
            EventKind::Retransmit => "retransmit",
            EventKind::TcpState => "tcp-state",
            EventKind::Pause => "pause",
            EventKind::Poll => "poll",
            EventKind::Polled => "polled",
            EventKind::Link => "link",
            EventKind::Route => "route",
            EventKind::Neighbour => "neighbour",
            EventKind::Control => "control",
            EventKind::Address => "address",
            EventKind::Queueing => "queueing",
            EventKind::Namespace => "namespace",
            EventKind::Within => "within",
        }
    }
}

/// A point in time without duration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    pub kind: EventKind,
    pub ctx: Context,
    pub pid: u32,
    pub at: BootNs,
    /// [`PacketId::NONE`] where no packet is concerned.
    pub packet: PacketId,
    /// Inode number of the network namespace, 0: unknown.
    pub netns: u32,
    /// Meaning by kind.
    pub a: u64,
    /// Meaning by kind.
    pub b: u64,
    /// Meaning by kind; empty for events of the kernel side.
    pub text: String,
}

/// A task was off the CPU: an [`Event`] of kind [`EventKind::Pause`], unpacked. Logged when the task next handles a recorded packet,
/// so what tasks do that never handle one is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pause {
    /// Thread id.
    pub pid: u32,
    pub from: BootNs,
    pub to: BootNs,
    /// It could have gone on and was not let; else it waited for something (slept).
    pub preempted: bool,
    /// From being woken to running again; 0 where it was preempted (the whole pause is that) or the waking was not seen.
    pub wait_ns: u32,
    /// Earlier pauses of this task, after the one that was logged before, are not in the log.
    pub more: bool,
    pub cpu_out: u16,
    pub cpu_in: u16,
}

impl Pause {
    pub const PREEMPTED: u64 = 1;
    pub const MORE: u64 = 2;

    /// `b`: bits 0 and 1 preempted and more, 2 to 15 the CPU it was taken off, 16 to 31 the one it came back on, the rest `wait_ns`.
    pub fn to_event(self) -> Event {
        let flags =
            if self.preempted { Pause::PREEMPTED } else { 0 } | if self.more { Pause::MORE } else { 0 };
        Event {
            kind: EventKind::Pause,
            ctx: Context::Task,
            pid: self.pid,
            at: self.to,
            packet: PacketId::NONE,
            netns: 0,
            a: self.to.0.wrapping_sub(self.from.0) as u64,
            b: flags
                | u64::from(self.cpu_out & 0x3fff) << 2
                | u64::from(self.cpu_in) << 16
                | u64::from(self.wait_ns) << 32,
            text: String::new(),
        }
    }

    /// `None`: another kind of event, or one of impossible length.
    pub fn of_event(e: &Event) -> Option<Pause> {
        let dur = i64::try_from(e.a).ok().filter(|_| e.kind == EventKind::Pause)?;
        Some(Pause {
            pid: e.pid,
            from: BootNs(e.at.0.checked_sub(dur)?),
            to: e.at,
            preempted: e.b & Pause::PREEMPTED != 0,
            wait_ns: (e.b >> 32) as u32,
            more: e.b & Pause::MORE != 0,
            cpu_out: (e.b >> 2 & 0x3fff) as u16,
            cpu_in: (e.b >> 16 & 0xffff) as u16,
        })
    }
}

/// A task was seen for the first time, or took another name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    pub at: BootNs,
    /// Thread id.
    pub pid: u32,
    /// Thread group id (what user space calls the process).
    pub tgid: u32,
    /// `comm`, at most 15 bytes, lossily decoded.
    pub comm: String,
}

/// Why something is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum LossCause {
    /// The CPU's ring was full.
    RingFull = 1,
    /// The table of open calls had no place.
    CallTableFull = 2,
    /// The table of packets had no place: calls of that packet are not recorded. Counted once for each packet.
    PacketTableFull = 3,
    /// The kernel skipped the program because one was already running on that CPU (`recursion_misses`).
    Recursion = 4,
    /// An entry whose return was never seen.
    NoReturn = 5,
    /// A list was longer than the program walks.
    ListCut = 6,
    /// The file could not be written (disk full).
    Disk = 7,
    /// Older chunks left the memory of the flight recorder (not an error: that is its job).
    Evicted = 8,
    /// A kretprobe or fprobe instance was not to be had (`nmissed`).
    ProbeMissed = 9,
    /// A header could not be read.
    ReadFault = 10,
    /// A file of the recording is not here.
    MissingPart = 11,
    /// Two tasks shared a place in the table of tasks: a pause of the one is not known.
    TaskTableFull = 12,
    /// The capture of the wire beside the log had no room for frames (`PACKET_STATISTICS`).
    SnifferFull = 13,
    /// The kernel dropped announcements of links, addresses, routes or neighbours; how many each time is not known.
    NetlinkOverrun = 14,
    /// A packet's device could not be read: whether it was asked for is not known, and it is not recorded. Counted once for each probe
    /// that it passed.
    NoDevice = 15,
    /// Bytes of the log's file that are damaged, or the beginning of what was never written: found by the reader, counted in bytes.
    Damaged = 16,
    /// A network namespace was gone before its links could be read, or there was no descriptor left for it. Its packets are recorded.
    NamespaceUnread = 17,
}

impl LossCause {
    pub const ALL: [LossCause; 17] = [
        LossCause::RingFull,
        LossCause::CallTableFull,
        LossCause::PacketTableFull,
        LossCause::Recursion,
        LossCause::NoReturn,
        LossCause::ListCut,
        LossCause::Disk,
        LossCause::Evicted,
        LossCause::ProbeMissed,
        LossCause::ReadFault,
        LossCause::MissingPart,
        LossCause::TaskTableFull,
        LossCause::SnifferFull,
        LossCause::NetlinkOverrun,
        LossCause::NoDevice,
        LossCause::Damaged,
        LossCause::NamespaceUnread,
    ];

    pub fn from_u8(v: u8) -> Option<LossCause> {
        LossCause::ALL.into_iter().find(|c| *c as u8 == v)
    }

    pub fn name(self) -> &'static str {
        match self {
            LossCause::RingFull => "ring-full",
            LossCause::CallTableFull => "call-table-full",
            LossCause::PacketTableFull => "packet-table-full",
            LossCause::Recursion => "recursion",
            LossCause::NoReturn => "no-return",
            LossCause::ListCut => "list-cut",
            LossCause::Disk => "disk",
            LossCause::Evicted => "evicted",
            LossCause::ProbeMissed => "probe-missed",
            LossCause::ReadFault => "read-fault",
            LossCause::MissingPart => "missing-part",
            LossCause::TaskTableFull => "task-table-full",
            LossCause::SnifferFull => "sniffer-full",
            LossCause::NetlinkOverrun => "netlink-overrun",
            LossCause::NoDevice => "no-device",
            LossCause::Damaged => "damaged-bytes",
            LossCause::NamespaceUnread => "namespace-unread",
        }
    }

    /// What the reader of a log can do about it.
    pub fn advice(self) -> &'static str {
        match self {
            LossCause::RingFull => "give a larger --ring, a narrower filter or profile",
            LossCause::CallTableFull => {
                "more calls were open at once than the table holds; narrow the profile"
            }
            LossCause::PacketTableFull => {
                "more packets were alive at once than the table holds; give --packets or a filter"
            }
            LossCause::Recursion => {
                "a probe was hit inside a probe; usually harmless, the inner call is missing"
            }
            LossCause::NoReturn => "calls that were still open at the end, or whose return probe was missed",
            LossCause::ListCut => "packets beyond the first of a very long list are not named in that call",
            LossCause::Disk => {
                "free disk space, or raise the limit of files (ulimit -f); everything before is in the log"
            }
            LossCause::Evicted => "the flight recorder keeps the last seconds only; give a larger --memory",
            LossCause::ProbeMissed => "the kernel ran out of return instances; prefer another --mechanism",
            LossCause::MissingPart => {
                "a file of the recording was not given; `kpat collect list` says what became of it"
            }
            LossCause::ReadFault => "a pointer was stale when read; the record has no header bytes",
            LossCause::TaskTableFull => {
                "when some task slept or was preempted is not known; that time stands as self time"
            }
            LossCause::SnifferFull => {
                "frames are missing in the capture beside the log, not in the log; give a filter or a smaller --snaplen"
            }
            LossCause::NetlinkOverrun => {
                "changes of links, addresses, routes or neighbours are missing; record fewer namespaces (--netns)"
            }
            LossCause::NoDevice => {
                "probe hits of packets whose device could not be read, which are not in the log; `kpat doctor` proves that devices are found on this kernel"
            }
            LossCause::Damaged => {
                "the file was changed or cut after it was written; copy it again from where it was recorded"
            }
            LossCause::NamespaceUnread => {
                "network namespaces whose links and devices' names are not known: they came and went too fast, or descriptors (ulimit -n) or CAP_SYS_ADMIN were lacking"
            }
        }
    }
}

/// Something that should be in the log and is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loss {
    pub cause: LossCause,
    /// -1: not tied to one CPU.
    pub cpu: i32,
    /// The loss happened after `from` and not after `to`.
    pub from: BootNs,
    pub to: BootNs,
    pub count: u64,
}

/// Any record of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    Call(Call),
    Point(Point),
    Member(Member),
    Footprint(Box<FootprintRecord>),
    Lineage(Lineage),
    Event(Box<Event>),
    Process(Box<Process>),
    Loss(Loss),
    Place(Place),
}
