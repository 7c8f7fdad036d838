//! Answers about packets: lists, density over time, and one packet.

use super::declare::{Big, Columns, Ns, answers, words};
use super::log::Loss;
use kpat_query::columns::{PACKET_COLUMNS, PacketColumn};
use serde::Serialize;

words! {
    /// In what a function ran.
    Ctx { Task "task", Softirq "softirq", Hardirq "hardirq", Nmi "nmi", Unknown "unknown", }
    NodeKind { Packet "packet", Frame "frame", }
    Direction { From "from", To "to", }
}

answers! {
    /// A row of the list: a packet, or a frame without one (id is null).
    PacketRow {
        id: Option<i64>,
        /// First wire frame: its number, with `capture:` before it where there are several captures.
        frame: Option<String>,
        /// The same for /api/frame.
        frame_id: Option<String>,
        t: Ns,
        src: String,
        dst: String,
        proto: String,
        len: u32,
        info: String,
        path_ns: Ns,
        kernel_ns: Ns,
        /// Wire frames that were matched to it.
        frames: u16,
        calls: u32,
        points: u32,
        /// Empty: a frame without a packet.
        verdict: String,
        drop: Option<String>,
        process: Option<String>,
        pid: Option<i32>,
        /// Whose thread `pid` is.
        tgid: Option<i32>,
        confidence: Option<u8>,
        ambiguous: bool,
        retransmission: bool,
        if_in: Option<String>,
        if_out: Option<String>,
        /// Network namespace first seen in: its inode number.
        netns: Option<u32>,
        /// Of the earliest call or point.
        cpu: Option<u16>,
    }
    /// /api/packets/at?where=&sort=&desc=&id=|frame=   row of a packet, or of a frame without one, in that list
    PacketAt {
        index: Option<u64>,
    }
    /// /api/overview?where=&bins=&from=&to=
    Overview {
        from: Ns,
        to: Ns,
        bins: Bins,
    }
    Bins {
        packets: Vec<u32>,
        drops: Vec<u32>,
        retransmissions: Vec<u32>,
        /// A loss was counted in that time.
        lost: Vec<bool>,
    }
    /// /api/packet?id=
    Packet {
        row: PacketRow,
        layers: Vec<Layer>,
        frames: Vec<Frame>,
        /// Preorder.
        calls: Vec<Call>,
        handovers: Vec<Handover>,
        segments: Vec<Segment>,
        events: Vec<PacketEvent>,
        lineage: Lineage,
        losses: Vec<Loss>,
        crossings: Vec<Crossing>,
        process: Option<Process>,
        /// What its drop reason means, and what tells more.
        drop_means: Option<String>,
        drop_look_at: Option<String>,
        /// Who wrote its bytes, and who read them; as far as the log has applications.
        ends: Vec<PacketEnd>,
    }
    PacketEnd {
        /// Else it read them.
        wrote: bool,
        socket: Big,
        process: Option<String>,
        pid: Option<i32>,
        payload: i64,
        /// Of the packet's first byte in its stream; null: it carries none, or is no stream's.
        offset: Option<i64>,
        /// Bytes that no call of the log has.
        missing: i64,
        /// The first of them.
        calls: Vec<PacketCall>,
        all_calls: usize,
    }
    PacketCall {
        id: i64,
        /// A write to TCP: when the socket gave it to TCP; else when the call was over.
        t: Ns,
        bytes: i64,
        carried: i64,
        /// The kernel refused it: EPERM, for example. null: it did not.
        error: Option<String>,
    }
    /// /api/frame?id=   a frame alone; id as in frame_id
    WireFrame {
        capture: String,
        number: i64,
        interface: String,
        /// null: its clock could not be related to the device's.
        t: Option<Ns>,
        bound_ns: Option<Ns>,
        wall_ns: Big,
        len: i32,
        captured: i32,
        proto: String,
        src: String,
        dst: String,
        info: String,
        layers: Vec<Layer>,
        packets: Vec<FramePacket>,
        /// Why it has no packet, a sentence each, most telling first.
        why: Vec<String>,
        /// Filter for what went between the same two.
        flow: Option<String>,
    }
    FramePacket {
        id: i64,
        key: String,
        confidence: i32,
        alternatives: i32,
        side: String,
    }
    Layer {
        name: String,
        summary: String,
        fields: Vec<LayerField>,
    }
    LayerField {
        name: String,
        value: String,
        /// Equal in a wire frame's key.
        matched: bool,
        /// What it was later changed to, one after the other.
        changed: Option<String>,
    }
    Frame {
        capture: String,
        number: i64,
        t: Option<Ns>,
        wall_ns: Big,
        len: i32,
        key: String,
        confidence: i32,
        alternatives: i32,
        bound_ns: Ns,
        residual_ns: Ns,
        side: String,
        via_packet: i64,
    }
    Call {
        id: i64,
        func: i32,
        name: String,
        layer: String,
        depth: u32,
        /// Id of the call above it among those shown.
        parent: Option<i64>,
        t: Ns,
        dur: Option<Ns>,
        own: Option<Ns>,
        irq: Option<Ns>,
        cpu: i32,
        ctx: Ctx,
        pid: i32,
        comm: String,
        point: bool,
        list: bool,
    }
    Handover {
        kind: String,
        from: Ns,
        to: Ns,
        wait: Ns,
        from_call: Option<i64>,
        to_call: Option<i64>,
    }
    Segment {
        phase: String,
        label: String,
        wait: bool,
        from: Ns,
        to: Ns,
    }
    PacketEvent {
        t: Ns,
        kind: String,
        words: String,
    }
    Lineage {
        nodes: Vec<LineageNode>,
        edges: Vec<LineageEdge>,
    }
    LineageNode {
        kind: NodeKind,
        id: String,
        words: String,
        t: Option<Ns>,
    }
    LineageEdge {
        from: String,
        to: String,
        kind: String,
    }
    /// The same data in another device's kernel.
    Crossing {
        device: String,
        packet: i64,
        direction: Direction,
        flight_ns: Ns,
        bound_ns: Ns,
        /// Added to the other device's times they are on this one's axis, within the bound.
        shift_ns: Ns,
    }
    Process {
        /// The thread's.
        pid: i32,
        tgid: i32,
        comm: String,
    }
    /// /api/phases/packets?where=&from=&count=
    PhasePackets {
        total: u64,
        rows: Vec<PhasePacket>,
    }
    PhasePacket {
        id: i64,
        t: Ns,
        path_ns: Ns,
        /// Phase and its time, in order.
        parts: Vec<(String, Ns)>,
    }
}

/// /api/packets?where=&sort=&desc=&from=&count=
#[derive(Clone, Debug, Serialize)]
pub struct Packets {
    #[serde(flatten)]
    pub page: Columns<PacketRow>,
    pub total: u64,
    pub all: u64,
    pub from: u64,
    pub partial: bool,
}

/// The columns of the list, which it must draw all.
pub fn columns() -> String {
    let first = |c: &PacketColumn| c.page.names().first().map(|n| format!("\"{n}\""));
    let names: Vec<String> = PACKET_COLUMNS.iter().filter_map(first).collect();
    format!(
        "// Columns of the list, by the first field of PacketRow that each shows.\nexport type PacketColumn = {};\n",
        names.join(" | ")
    )
}

pub const PACKETS: &str = "\
// /api/packets?where=&sort=&desc=&from=&count=   sort: a column of PacketRow; without it in order of time.
export interface Packets extends Columns<PacketRow> {
  // Rows that fit, and rows in all.
  total: number;
  all: number;
  from: number;
  // The packets are not all read yet: /api/changes tells when they are.
  partial: boolean;
}
";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answers::declare::Declared;
    use std::collections::BTreeSet;

    #[test]
    fn a_row_has_the_fields_of_its_columns() {
        let text = PacketRow::declaration();
        let fields: BTreeSet<&str> = text
            .lines()
            .filter(|l| l.starts_with("  ") && !l.trim_start().starts_with("//"))
            .filter_map(|l| l.trim().split(':').next())
            .collect();
        let columns: BTreeSet<&str> = PACKET_COLUMNS.iter().flat_map(|c| c.page.names()).copied().collect();
        assert_eq!(fields, columns);
    }
}
