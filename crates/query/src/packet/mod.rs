//! One packet with everything known of it.
//!
//! It goes over the call table, which is in order of time, and reads the few row groups that its life touches.

mod detail;
mod happened;
mod programs;
mod tree;

use crate::codes::{call_flag, verdict};
use kpat_model::explained::{Explained, drop_reason};
use kpat_store::tables::*;
pub(crate) use tree::same_context;

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
    /// Until the next hop's link address was known.
    Neighbour,
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
    /// The path is over: what remained is to free it.
    Freed,
}

impl HandoverKind {
    pub fn name(self) -> &'static str {
        match self {
            HandoverKind::Device => "device",
            HandoverKind::Softirq => "softirq",
            HandoverKind::Backlog => "backlog",
            HandoverKind::OtherCpu => "other CPU",
            HandoverKind::Qdisc => "qdisc",
            HandoverKind::Neighbour => "neighbour",
            HandoverKind::Gro => "GRO",
            HandoverKind::SocketQueue => "socket queue",
            HandoverKind::SendQueue => "send queue",
            HandoverKind::Scheduled => "scheduled",
            HandoverKind::Unrecorded => "unrecorded caller",
            HandoverKind::Freed => "freed later",
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
    /// What a function without a packet of its own returned, as far as the log has it.
    pub returned: Option<String>,
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

    /// Its return was not recorded, by choice.
    pub fn entry_only(&self) -> bool {
        self.call.flags & call_flag::ENTRY_ONLY != 0
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

/// Of a packet that was dropped by what freed it alone.
const UNSAID_DROP: Explained = Explained {
    source: "",
    does: "The kernel freed it as dropped; the record that says why and where is not in the log.",
    slow: "`kpat info`: what the log has lost, and why.",
};

impl PacketDetail {
    /// Where it was then, as it was last seen.
    pub fn place(&self, at_ns: i64) -> Option<&FootprintRow> {
        self.footprints.iter().rev().find(|f| f.at_ns <= at_ns)
    }
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
    /// What programs reported of their work meanwhile, in the threads that handled it.
    pub programs: Vec<EventOfPacket>,
    /// Losses whose interval overlaps the packet's life: calls may be missing.
    pub losses: Vec<LossRow>,
}

impl PacketDetail {
    /// What its drop reason means, and where to look.
    pub fn drop_explained(&self) -> Option<Explained> {
        if self.packet.verdict == verdict::DROPPED && self.packet.drop_reason.is_none() {
            return Some(UNSAID_DROP);
        }
        drop_reason(self.drop_reason.as_deref()?, self.dropped_at().map_or("", |e| e.place.as_str()))
    }

    /// The drop that its reason is of: copies may have been dropped elsewhere, for other reasons.
    pub fn dropped_at(&self) -> Option<&EventOfPacket> {
        let reason = self.packet.drop_reason?;
        self.events.iter().rev().find(|e| !e.place.is_empty() && e.event.a as i32 == reason)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drop_without_its_record_is_explained_by_that() {
        let explained = |verdict: i32, reason: Option<i32>| {
            let detail = PacketDetail {
                packet: PacketRow { verdict, drop_reason: reason, ..PacketRow::default() },
                drop_reason: reason.map(|_| "NO_SOCKET".to_owned()),
                process: None,
                footprints: Vec::new(),
                frames: Vec::new(),
                calls: Vec::new(),
                lineage: Vec::new(),
                events: Vec::new(),
                programs: Vec::new(),
                losses: Vec::new(),
            };
            detail.drop_explained()
        };
        assert_eq!(explained(verdict::DROPPED, None), Some(UNSAID_DROP));
        assert_eq!(explained(verdict::DROPPED, Some(3)), drop_reason("NO_SOCKET", ""));
        assert!(explained(verdict::DROPPED, Some(3)).is_some());
        assert_eq!(explained(verdict::SENT, None), None);
    }
}
