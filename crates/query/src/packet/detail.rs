//! The look-up of one packet.

use super::tree::{Names, build};
use super::*;
use crate::error::{Error, Result};
use crate::store::{Store, places};
use kpat_store::Budget;
use kpat_store::tables::*;
use std::collections::{BTreeMap, HashMap};

impl Store {
    /// Everything known of one packet.
    ///
    /// Errors: [`Error::NoSuchPacket`].
    pub fn packet(&self, id: i64) -> Result<PacketDetail> {
        let packets = self.table::<PacketRow>()?;
        let Some(packet) = packets.rows_equal::<PacketRow>("packet_id", &[id])?.into_iter().next() else {
            return Err(Error::NoSuchPacket { id, count: packets.rows() });
        };
        let mut footprints = self.table::<FootprintRow>()?.rows_equal::<FootprintRow>("packet_id", &[id])?;
        footprints.sort_by_key(|f| f.at_ns);
        let mut events = self.table::<EventRow>()?.rows_equal::<EventRow>("packet_id", &[id])?;
        events.sort_by_key(|e| e.at_ns);
        let lineage = self.lineage(id)?;
        let frames = self.frames_of(id, &lineage)?;
        let names = Names { functions: &self.functions, roles: &self.roles };
        let life = packet.first_ns..=packet.last_ns;
        let losses = self
            .all::<LossRow>()?
            .into_iter()
            .filter(|l| l.from_ns <= *life.end() && l.to_ns >= *life.start())
            .collect();
        let calls = self.calls_of(&packet)?;
        Ok(PacketDetail {
            programs: self.programs_of(&packet, &calls)?,
            drop_reason: packet.drop_reason.and_then(|r| self.drop_reason(r)).map(str::to_owned),
            process: packet.pid.and_then(|p| self.process(p, packet.last_ns)).cloned(),
            calls: build(calls, &names, packet.first_ns.saturating_add(packet.path_ns)),
            events: events.into_iter().map(|e| self.explain(e)).collect(),
            packet,
            footprints,
            frames,
            lineage,
            losses,
        })
    }

    /// Calls and points of one packet; those of lists included.
    pub fn calls_of(&self, packet: &PacketRow) -> Result<Vec<CallRow>> {
        let calls = self.table::<CallRow>()?;
        let life = packet.first_ns..=packet.last_ns;
        let id = packet.packet_id;
        let mut budget = Budget::of_few();
        let mut rows = Vec::new();
        for group in calls.groups_where("entry_ns", &life) {
            if calls.range(group, "packet_id").is_some_and(|r| !r.contains(&id)) {
                continue;
            }
            let places: Vec<u32> = places(&calls, group, "packet_id", |p| p == id)?;
            rows.extend(calls.rows_within::<CallRow>(group, &places, &mut budget)?);
        }
        let members = self.table::<CallMemberRow>()?;
        let mut wanted: Vec<i64> = Vec::new();
        for group in members.groups_where("entry_ns", &life) {
            if members.range(group, "packet_id").is_none_or(|r| r.contains(&id)) {
                let places = places(&members, group, "packet_id", |p| p == id)?;
                let of_lists = members.rows_within::<CallMemberRow>(group, &places, &mut budget)?;
                wanted.extend(of_lists.iter().map(|m| m.call_id));
            }
        }
        wanted.sort_unstable();
        wanted.dedup();
        rows.extend(calls.rows_equal::<CallRow>("call_id", &wanted)?);
        rows.sort_by_key(|c| c.call_id);
        rows.dedup_by_key(|c| c.call_id);
        Ok(rows)
    }

    pub(crate) fn lineage(&self, id: i64) -> Result<Vec<LineageRow>> {
        let table = self.table::<LineageRow>()?;
        let mut rows = table.rows_equal::<LineageRow>("parent_id", &[id])?;
        let born = table.rows_equal::<LineageRow>("child_id", &[id])?;
        rows.extend(born.into_iter().filter(|l| l.parent_id != l.child_id));
        rows.sort_by_key(|l| l.at_ns);
        Ok(rows)
    }

    /// Frames of the packet and of its nearest relatives (segments, merged packets, fragments), by DUT time.
    fn frames_of(&self, id: i64, lineage: &[LineageRow]) -> Result<Vec<FrameOfPacket>> {
        const MAX_RELATIVES: usize = 256;
        let mut ids: Vec<i64> = vec![id];
        ids.extend(lineage.iter().flat_map(|l| [l.parent_id, l.child_id]).take(MAX_RELATIVES));
        ids.sort_unstable();
        ids.dedup();
        let associations = self.table::<AssociationRow>()?.rows_equal::<AssociationRow>("packet_id", &ids)?;
        let mut by_capture: BTreeMap<i32, Vec<i64>> = BTreeMap::new();
        for a in &associations {
            by_capture.entry(a.capture_id).or_default().push(a.number);
        }
        let table = self.table::<FrameRow>()?;
        let mut frames: HashMap<(i32, i64), FrameRow> = HashMap::new();
        for (capture, mut numbers) in by_capture {
            numbers.sort_unstable();
            numbers.dedup();
            for row in table.rows_equal::<FrameRow>("number", &numbers)? {
                if row.capture_id == capture {
                    frames.insert((capture, row.number), row);
                }
            }
        }
        let interfaces: HashMap<(i32, i32), String> =
            self.all::<InterfaceRow>()?.into_iter().map(|i| ((i.capture_id, i.interface), i.name)).collect();
        let mut out: Vec<FrameOfPacket> = associations
            .into_iter()
            .filter_map(|association| {
                let frame = frames.get(&(association.capture_id, association.number))?.clone();
                let capture = self.manifest.sources.iter().find(|s| s.capture_id == frame.capture_id);
                Some(FrameOfPacket {
                    capture: capture.map(|c| c.name.clone()).unwrap_or_default(),
                    interface: interfaces
                        .get(&(frame.capture_id, frame.interface))
                        .cloned()
                        .unwrap_or_default(),
                    via_packet: association.packet_id,
                    frame,
                    association,
                })
            })
            .collect();
        out.sort_by_key(|f| (f.frame.boot_ns, f.frame.capture_id, f.frame.number));
        Ok(out)
    }

    /// Packets that a frame was associated with, most likely first.
    pub fn packets_of_frame(&self, capture_id: i32, number: i64) -> Result<Vec<AssociationRow>> {
        let mut rows = self.table::<AssociationRow>()?.rows_equal::<AssociationRow>("number", &[number])?;
        rows.retain(|a| a.capture_id == capture_id);
        rows.sort_by_key(|a| -a.confidence);
        Ok(rows)
    }
}
