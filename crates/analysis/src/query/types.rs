//! What is asked and what is answered.

use super::conservation::Conservation;
use crate::filter::Filter;
use kpat_store::Manifest;
use kpat_store::tables::*;
use std::sync::Arc;

pub use kpat_model::codes::{match_key, side, verdict};

pub mod clock_method {
    //! Codes of `clock.method`.
    use kpat_store::tables::ClockRow;

    pub use kpat_model::codes::clock_method::*;

    /// What the relation rests on: bounds, and no ways of frames. On a link within the device a frame gives one of each.
    pub fn basis(c: &ClockRow, number: impl Fn(i64) -> String) -> String {
        let (received, transmitted) = (number(c.received), number(c.transmitted));
        let carried = c.received + c.transmitted == 0 && (c.method == HULL || c.method == ONE_WAY);
        let from = if carried {
            return "no match of this time was used: carried on from those beside it".to_owned();
        } else if c.method == ON_DUT {
            format!("from {received} received and {transmitted} transmitted matches at one device")
        } else {
            format!("bounds: {received} from above, {transmitted} from below")
        };
        format!("{from}, {} rejected: {}", number(c.rejected), name(c.method))
    }
}

pub mod clock_assumed {
    //! Bits of `clock.assumed`.
    pub const NOISE: i32 = 1;
    pub const DELAY: i32 = 2;
    pub const CHANGE: i32 = 4;

    const WORDS: [(i32, &str); 3] = [
        (NOISE, "how much the sniffer's stamps scatter (too few matches show it)"),
        (DELAY, "how fast the fastest packet of one-way traffic was"),
        (CHANGE, "that the clock's speed changes no faster than it was seen to"),
    ];

    pub fn words(bits: i32) -> Vec<&'static str> {
        WORDS.iter().filter(|w| bits & w.0 != 0).map(|w| w.1).collect()
    }
}

/// What a capture's clock counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeScale {
    /// The device's own wall clock, within a second.
    Utc,
    /// Atomic time, 37 s ahead of UTC: a card's clock under PTP.
    Tai,
    /// GPS time, 18 s ahead of UTC.
    Gps,
    /// From some moment of its own: an adapter's clock, never set.
    Own,
    /// Another time of day.
    Other,
    /// The log does not say what time it was.
    Unknown,
}

impl TimeScale {
    pub fn name(self) -> &'static str {
        match self {
            TimeScale::Utc => "UTC",
            TimeScale::Tai => "TAI",
            TimeScale::Gps => "GPS",
            TimeScale::Own => "own epoch",
            TimeScale::Other => "other",
            TimeScale::Unknown => "unknown",
        }
    }
}

/// What a capture's clock counts. `dut_offset_ns`: the device's boot time less its wall time.
pub fn time_scale(c: &ClockRow, dut_offset_ns: Option<i64>) -> TimeScale {
    const SEC: i64 = 1_000_000_000;
    // Long before anybody captured packets with a clock that was set.
    const SET: i64 = 315_532_800 * SEC;
    // TAI less UTC, GPS less UTC, since 2017.
    const SCALES: [(i64, TimeScale); 3] = [(0, TimeScale::Utc), (37, TimeScale::Tai), (18, TimeScale::Gps)];
    if c.from_wall_ns < SET {
        return TimeScale::Own;
    }
    let Some(own) = dut_offset_ns else { return TimeScale::Unknown };
    let ahead = own.saturating_sub(c.offset_ns);
    let near = |s: &i64| ahead.saturating_sub(s * SEC).saturating_abs() < SEC;
    SCALES.iter().find(|(s, _)| near(s)).map_or(TimeScale::Other, |(_, scale)| *scale)
}

pub mod call_flag {
    //! Bits of `call.flags` beyond those of [`kpat_model::Call`].
    pub const LIST: i32 = 1;
    pub const NO_RETURN: i32 = 2;
    pub const RETURNED: i32 = 4;
    pub const ENDS: i32 = 8;
    pub const POINT: i32 = 256;
    pub const SELF_CLAMPED: i32 = 512;
}

/// What the log is, for `info`.
#[derive(Clone, Debug)]
pub struct Info {
    /// Sources, table counts, kernel, mechanism, filter, cost.
    pub manifest: Manifest,
    pub devices: Vec<DeviceRow>,
    pub interfaces: Vec<InterfaceRow>,
    pub clocks: Vec<ClockRow>,
    pub losses: Vec<LossRow>,
    pub provenance: Vec<ProvenanceRow>,
    /// Whether the packets add up.
    pub conservation: Conservation,
    /// Boot time less wall time of the DUT itself at the start of the recording, if the log knows.
    pub dut_offset_ns: Option<i64>,
    /// Functions with at least one call, and all that were probed.
    pub functions_hit: u64,
    pub functions: u64,
}

/// Which packets; every given condition must hold.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PacketFilter {
    /// "tcp", "udp", "icmp", "icmpv6", "arp", "ip", "ipv6", or an IP protocol number.
    pub proto: Option<String>,
    /// Source or destination address, as text.
    pub addr: Option<String>,
    /// Source or destination port.
    pub port: Option<u16>,
    pub min_path_ns: Option<i64>,
    pub max_path_ns: Option<i64>,
    /// Code, see [`verdict`].
    pub verdict: Option<i32>,
    /// Touched by a function that fits this glob.
    pub func: Option<String>,
    /// Alive at some time at or after this ...
    pub from_ns: Option<i64>,
    /// ... and at or before this.
    pub to_ns: Option<i64>,
    pub pid: Option<i32>,
    /// Only packets with (true) or without (false) a frame.
    pub on_wire: Option<bool>,
    /// Occurs in an address, the verdict's name, the drop reason's name or the process name.
    pub text: Option<String>,
    /// What the filter language says.
    pub expression: Option<Filter>,
    /// Only these, sorted.
    pub ids: Option<Arc<[i64]>>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PacketSort {
    /// First seen first.
    #[default]
    Time,
    /// Longest path first.
    Path,
    /// Most kernel time first.
    Kernel,
    /// Largest first.
    Length,
    /// Most calls first.
    Calls,
}

#[derive(Clone, Debug, Default)]
pub struct PacketList {
    pub rows: Vec<PacketRow>,
    /// How many fit, whatever the limit.
    pub total: u64,
}

/// A frame of a packet, with the time by both clocks.
#[derive(Clone, Debug)]
pub struct FrameOfPacket {
    pub frame: FrameRow,
    pub association: AssociationRow,
    /// File name of the capture.
    pub capture: String,
    /// Name of the interface in the capture; empty: it does not say.
    pub interface: String,
    /// The packet whose association this is: the one asked for, or a relative by lineage.
    pub via_packet: i64,
}

/// How a packet got from one call tree to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum HandoverKind {
    /// The device: between kernel and wire on one host, or between two namespaces over a virtual pair.
    Device,
    /// Raised softirq, same CPU.
    Softirq,
    /// Per-CPU backlog (`enqueue_to_backlog` to `process_backlog`).
    Backlog,
    /// Another CPU took over (receive packet steering or the like).
    OtherCpu,
    /// Queueing discipline.
    Qdisc,
    /// Waiting in GRO for more segments.
    Gro,
    /// Socket queue, until a reader came.
    SocketQueue,
    /// Retransmission queue, until sent again or acknowledged.
    SendQueue,
    /// The task was interrupted or scheduled; nothing says by whom.
    Scheduled,
    /// Same context, the caller in between was not recorded.
    Unrecorded,
}

impl HandoverKind {
    pub fn name(self) -> &'static str {
        match self {
            HandoverKind::Device => "device",
            HandoverKind::Softirq => "softirq",
            HandoverKind::Backlog => "backlog",
            HandoverKind::OtherCpu => "other CPU",
            HandoverKind::Qdisc => "qdisc",
            HandoverKind::Gro => "GRO",
            HandoverKind::SocketQueue => "socket queue",
            HandoverKind::SendQueue => "send queue",
            HandoverKind::Scheduled => "scheduled",
            HandoverKind::Unrecorded => "unrecorded caller",
        }
    }
}

/// An asynchronous edge between two call trees.
#[derive(Clone, Debug, PartialEq)]
pub struct Handover {
    pub kind: HandoverKind,
    /// End of the last call before, start of the first after.
    pub from_ns: i64,
    pub to_ns: i64,
    /// `to_ns - from_ns`.
    pub wait_ns: i64,
    /// Names of the calls on both sides that decided the kind.
    pub from: String,
    pub to: String,
}

/// A call or point in a packet's tree.
#[derive(Clone, Debug)]
pub struct CallNode {
    pub call: CallRow,
    pub name: String,
    pub module: String,
    pub layer: String,
    /// Depth among the calls shown (callers that did not touch this packet are not shown).
    pub depth: u32,
    /// Time since the previous entry, exit or point of this packet, whichever came last.
    pub gap_ns: i64,
    /// Set on a call of depth 0 that follows another one: how the packet got here.
    pub handover: Option<Handover>,
    pub children: Vec<CallNode>,
}

impl CallNode {
    pub fn is_point(&self) -> bool {
        self.call.flags & call_flag::POINT != 0
    }
}

#[derive(Clone, Debug)]
pub struct EventOfPacket {
    pub event: EventRow,
    /// Drop: name of the reason. Else empty.
    pub reason: String,
    /// Drop: the place in the kernel. Else empty.
    pub place: String,
}

/// Everything known of one packet.
#[derive(Clone, Debug)]
pub struct PacketDetail {
    pub packet: PacketRow,
    /// Name of the drop reason, if dropped.
    pub drop_reason: Option<String>,
    /// Name of the thread that sent or received it.
    pub process: Option<ProcessRow>,
    pub footprints: Vec<FootprintRow>,
    /// By DUT time; those of relatives included.
    pub frames: Vec<FrameOfPacket>,
    /// Top-level calls in order of entry.
    pub calls: Vec<CallNode>,
    pub lineage: Vec<LineageRow>,
    pub events: Vec<EventOfPacket>,
    /// Losses whose interval overlaps the packet's life: calls may be missing.
    pub losses: Vec<LossRow>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FunctionSort {
    /// Most self time first.
    #[default]
    SelfTime,
    Total,
    Calls,
    Packets,
    Median,
    P99,
    Max,
    Name,
}

#[derive(Clone, Debug, Default)]
pub struct FunctionFilter {
    /// Glob (`*`, `?`) over the name; empty: all.
    pub glob: String,
    /// Some call lasted at least this (by `max_ns`).
    pub slower_than_ns: Option<i64>,
    /// Some call lasted at most this (by `min_ns`).
    pub faster_than_ns: Option<i64>,
    /// Also those that were never called.
    pub unused: bool,
}

#[derive(Clone, Debug, Default)]
pub struct FunctionList {
    pub rows: Vec<FunctionRow>,
    pub total: u64,
}

/// Which calls of a function.
#[derive(Clone, Debug, Default)]
pub struct CallFilter {
    pub slower_than_ns: Option<i64>,
    pub faster_than_ns: Option<i64>,
    pub from_ns: Option<i64>,
    pub to_ns: Option<i64>,
    /// Calls given at most; 0: all.
    pub limit: usize,
    /// Longest first instead of earliest first.
    pub longest_first: bool,
    /// Only calls that touched these packets, sorted; on a list the first one counts.
    pub packets: Option<Arc<[i64]>>,
    /// Also count the different packets of all calls that fit, which takes as long again.
    pub count_packets: bool,
}

#[derive(Clone, Debug)]
pub struct CallOfFunction {
    pub call: CallRow,
    /// The packet, if the log knows it.
    pub packet: Option<PacketRow>,
}

#[derive(Clone, Debug)]
pub struct FunctionDetail {
    pub function: FunctionRow,
    /// How the durations of all its calls are spread, shortest first.
    pub durations: Vec<DurationRow>,
    pub calls: Vec<CallOfFunction>,
    /// Calls that fit, whatever the limit.
    pub total: u64,
    /// Different packets among them; `None`: not asked for.
    pub packets: Option<u64>,
}

#[derive(Clone, Debug, Default)]
pub struct EventFilter {
    /// Codes of [`kpat_model::EventKind`]; empty: all.
    pub kinds: Vec<i32>,
    pub packet: Option<i64>,
    pub from_ns: Option<i64>,
    pub to_ns: Option<i64>,
}

#[derive(Clone, Debug, Default)]
pub struct EventList {
    pub rows: Vec<EventOfPacket>,
    pub total: u64,
}
