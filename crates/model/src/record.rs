//! What a kernel behaviour log is made of, as decoded values. The layout in the kernel's ring is
//! `bpf/include/wire.h`, the layout in the file is `docs/kbl-format.md`; this is neither, it is what they mean.
//!
//! The CPU is not a field: a record belongs to a chunk, and a chunk to one CPU (the CPU on which the record was
//! written; for a call that is the CPU of its return).

use crate::codes::{EventKind, LineageKind, LossCause, Sleep};
use crate::ids::{BootNs, FuncId, PacketId};
use crate::programs::ProgramRecord;
use crate::stacks::{CpuSample, Mapping, SampledStack};
use crate::wifi::{Exchange, LinkEvent, WifiEvent};
use crate::work::{BlockRequests, CpuPackets, CpuTime, Peer, ProcessLabel, SocketUse, Work};

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
    /// The function has no packet: it was called within a call of this one, on the same CPU. `skb_tag` is what it returned, see
    /// [`crate::functions::within`].
    pub const WITHIN: u8 = 16;
    /// With [`Call::NO_RETURN`]: only entries of the function are recorded, by choice.
    pub const ENTRY_ONLY: u8 = 32;
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
    /// It is freed by a CPU for others, who had put that off: it was done with before (skb_attempt_defer_free in net/core/skbuff.c).
    pub put_off: bool,
}

impl Point {
    /// Bit of a record of the kernel side (KP_F_PUT_OFF in bpf/include/wire.h); of a call's bits it has [`Call::ENDS`], too.
    pub const PUT_OFF: u8 = 1;
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lineage {
    pub kind: LineageKind,
    pub at: BootNs,
    pub parent: PacketId,
    pub child: PacketId,
}

/// A point in time without duration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    pub kind: EventKind,
    pub ctx: Context,
    pub pid: u32,
    pub at: BootNs,
    /// Who gave it its time.
    pub timed: Timed,
    /// [`PacketId::NONE`] where no packet is concerned.
    pub packet: PacketId,
    /// Inode number of the network namespace, 0: unknown.
    pub netns: u32,
    /// Meaning by kind. Of a drop its reason, and in the upper half in whose queue the packet lay ([`Owner`]).
    pub a: u64,
    /// Meaning by kind.
    pub b: u64,
    /// Meaning by kind; empty for events of the kernel side.
    pub text: String,
}

/// A socket that gets copies of what others take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    Raw = 1,
    /// A packet socket.
    Sniffer = 2,
}

impl Event {
    /// Of a drop: the reason's number (`enum skb_drop_reason`).
    pub fn drop_code(&self) -> i32 {
        self.a as i32
    }

    /// Of a drop: in whose queue it lay, if in that of a socket that gets copies.
    pub fn copy_of(&self) -> Option<Owner> {
        [Owner::Raw, Owner::Sniffer].into_iter().find(|o| *o as u64 == self.a >> 32)
    }

    /// The event's namespace came or went itself. Its announcements that another one was given a number in it (`link-netnsid`), or lost that,
    /// are of the same kind.
    pub fn is_namespaces_own(&self) -> bool {
        self.kind == EventKind::Namespace && self.netns != 0 && self.b == u64::from(self.netns)
    }
}

/// Who gave an event its time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Timed {
    /// The kernel, when it happened: CPU, context and task are those of what happened.
    #[default]
    Kernel,
    /// The recorder, of what it did itself.
    Recorder,
    /// The recorder, when it read the kernel's announcement: it happened at most `within_ns` before.
    Read { within_ns: u64 },
}

/// An off-CPU interval of a task. Logged when the task next handles a recorded packet; tasks that never handle one have none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OffCpu {
    /// Thread id.
    pub pid: u32,
    pub from: BootNs,
    pub to: BootNs,
    /// It was runnable and another task ran; otherwise it slept.
    pub preempted: bool,
    /// From being woken to running again; 0 if it was preempted (then it is the whole interval) or the wake-up was not seen.
    pub wait_ns: u32,
    /// Earlier off-CPU intervals of this task, after the last one that was logged, are not in the log.
    pub more: bool,
    pub cpu_out: u16,
    pub cpu_in: u16,
    /// `None`: it was preempted, or that is not known.
    pub sleep: Option<Sleep>,
}

impl OffCpu {
    /// As the kernel side has them; from the eighth bit on, for what it slept.
    pub const PREEMPTED: u16 = 1;
    pub const MORE: u16 = 2;
    const SLEEP_SHIFT: u32 = 8;

    /// What it slept for, of its flags.
    pub fn sleep_of(flags: u16) -> Option<Sleep> {
        Sleep::from_u8((flags >> Self::SLEEP_SHIFT) as u8)
    }

    /// All of them.
    pub fn flags(&self) -> u16 {
        let of = |is: bool, flag| if is { flag } else { 0 };
        let sleep = self.sleep.map_or(0, |s| (s as u16) << Self::SLEEP_SHIFT);
        of(self.preempted, Self::PREEMPTED) | of(self.more, Self::MORE) | sleep
    }
}

/// The first packet of a poll of received packets, or the first after packets that are not in the log. Stands before its footprint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Poll {
    pub at: BootNs,
    pub packet: PacketId,
    /// For how long the poll had lasted; `None`: not known, or in a poll that was logged before.
    pub since_ns: Option<u64>,
    /// From the raising of NET_RX to the poll's beginning.
    pub wait_ns: Option<u64>,
}

/// A poll of received packets is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PollEnd {
    pub at: BootNs,
    /// The poll's first packet in the log.
    pub packet: PacketId,
    /// Packets that the driver took.
    pub taken: u32,
    /// Packets that it might have taken.
    pub budget: u32,
    /// Softirqs of NET_RX that this CPU had had since recording began, this one included.
    pub round: u64,
}

/// A card's own stamp of a packet that it received. Stands before the packet's first footprint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CardStamp {
    pub at: BootNs,
    pub packet: PacketId,
    pub netns: u32,
    pub ifindex: u32,
    /// Nanoseconds of the card's clock.
    pub card_ns: i64,
}

/// What a card's clock showed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CardReading {
    /// Middle of the moments between which it was read.
    pub at: BootNs,
    pub netns: u32,
    pub ifindex: u32,
    pub card_ns: i64,
    /// How far `at` may be off the moment of reading.
    pub bound_ns: u32,
    /// The clock's device, as `/dev/ptp0`.
    pub clock: String,
}

/// Of a guest that was recorded from its host, whose boot clock such a log has: the guest's own boot clock beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuestClock {
    pub at: BootNs,
    pub guest: BootNs,
    /// How far the log's times around it may be off the host's clock.
    pub bound_ns: u32,
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
    OffCpu(OffCpu),
    Poll(Poll),
    PollEnd(PollEnd),
    CardStamp(CardStamp),
    CardReading(Box<CardReading>),
    Work(Box<Work>),
    SocketUse(Box<SocketUse>),
    CpuTime(Box<CpuTime>),
    CpuPackets(Box<CpuPackets>),
    BlockRequests(Box<BlockRequests>),
    ProcessLabel(Box<ProcessLabel>),
    Peer(Box<Peer>),
    Sample(Box<CpuSample>),
    Stack(Box<SampledStack>),
    Mapping(Box<Mapping>),
    Program(Box<ProgramRecord>),
    Wifi(Box<WifiEvent>),
    Link(Box<LinkEvent>),
    Exchange(Box<Exchange>),
    GuestClock(GuestClock),
}
