//! From the tables to the list.

use super::{Catalog, MOST};
use crate::entry::{Entry, Facts, Names, facts, facts_of};
use crate::error::{Error, Result};
use crate::packet::{FrameOfPacket, PacketDetail};
use crate::store::Store;
use kpat_model::EventKind;
use kpat_store::tables::*;

impl Catalog {
    /// Reads all of it. `progress` gets parts and how many there are.
    ///
    /// Errors: [`Error::Abandoned`]; a damaged table.
    pub fn load(store: &Store, progress: &mut dyn FnMut(u64, u64) -> bool) -> Result<Catalog> {
        let mut catalog = Catalog { names: Names::of(store)?, ..Catalog::default() };
        let packets = store.table::<PacketRow>()?;
        let frames = store.table::<FrameRow>()?;
        let parts = (packets.groups() + frames.groups()) as u64 + 1;
        let mut part = 0;
        let mut step = |done: &mut u64| {
            *done += 1;
            if progress(*done, parts) { Ok(()) } else { Err(Error::Abandoned) }
        };
        let facts = facts(store)?;
        step(&mut part)?;
        catalog.entries.reserve_exact(usize::try_from(packets.rows()).unwrap_or(0).min(MOST));
        for group in 0..packets.groups() {
            packets.each(vec![group], |row: PacketRow| {
                let entry = Entry::of_packet(&row, &mut catalog.names, &facts);
                catalog.push(entry);
            })?;
            step(&mut part)?;
        }
        catalog.lone_frames(store, &mut || step(&mut part))?;
        catalog.in_order();
        Ok(catalog)
    }

    /// The first row group alone, in its order: something to show while the rest is read.
    pub fn beginning(store: &Store) -> Result<Catalog> {
        let mut catalog = Catalog { names: Names::of(store)?, ..Catalog::default() };
        let packets = store.table::<PacketRow>()?;
        let early = (0..packets.groups()).min_by_key(|g| packets.range(*g, "first_ns").map(|r| *r.start()));
        let numbers = early.and_then(|g| packets.range(g, "packet_id")).unwrap_or(i64::MIN..=i64::MAX);
        let facts = facts_of(store, &numbers)?;
        packets.each(early.into_iter().collect(), |row: PacketRow| {
            let entry = Entry::of_packet(&row, &mut catalog.names, &facts);
            catalog.push(entry);
        })?;
        catalog.in_order();
        Ok(catalog)
    }

    /// One packet alone, with what its own look-up found.
    pub fn of_packet(store: &Store, detail: &PacketDetail) -> Result<Catalog> {
        let mut catalog = Catalog { names: Names::of(store)?, ..Catalog::default() };
        let mut facts = Facts::default();
        let own = |f: &&FrameOfPacket| f.via_packet == detail.packet.packet_id;
        if let Some(f) = detail.frames.iter().find(own) {
            let number = f.frame.number.clamp(0, i64::from(u32::MAX)) as u32;
            facts.frames.insert(detail.packet.packet_id, (f.frame.capture_id as u16, number));
        }
        if detail.events.iter().any(|e| e.event.kind == EventKind::Retransmit as i32) {
            facts.retransmitted.insert(detail.packet.packet_id);
        }
        let entry = Entry::of_packet(&detail.packet, &mut catalog.names, &facts);
        catalog.push(entry);
        catalog.in_order();
        Ok(catalog)
    }

    fn push(&mut self, entry: Entry) {
        if self.entries.len() < MOST {
            self.entries.push(entry);
        } else {
            self.cut += 1;
        }
    }

    fn lone_frames(&mut self, store: &Store, step: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        let matched = matched_frames(store)?;
        // Of a capture whose clock is unknown only the device's own idea of the time of day is left.
        let guess = store.own_clock();
        let table = store.table::<FrameRow>()?;
        for group in 0..table.groups() {
            let (captures, numbers) = (table.ints(group, "capture_id")?, table.ints(group, "number")?);
            let lone = |i: &usize| matched.binary_search(&(captures[*i], numbers[*i])).is_err();
            let places: Vec<u32> = (0..numbers.len()).filter(lone).map(|i| i as u32).collect();
            for row in table.rows_at::<FrameRow>(group, &places)? {
                match row.boot_ns.or(guess.map(|own| own.boot(row.wall_ns))) {
                    Some(at) => {
                        let entry = Entry::of_frame(&row, &mut self.names, at);
                        self.push(entry);
                    }
                    None => self.unplaced += 1,
                }
            }
            step()?;
        }
        Ok(())
    }

    fn in_order(&mut self) {
        self.entries.sort_unstable_by_key(|e| (e.first_ns, e.id, e.capture, e.frame));
        self.by_id = (0..)
            .zip(&self.entries)
            .filter(|(_, e)| e.is_packet())
            .map(|(i, e): (u32, &Entry)| (e.id, i))
            .collect();
        self.by_id.sort_unstable();
    }
}

/// Capture and number of the frames that have a packet, sorted.
fn matched_frames(store: &Store) -> Result<Vec<(i64, i64)>> {
    let table = store.table::<AssociationRow>()?;
    let mut out = Vec::new();
    for group in 0..table.groups() {
        let captures = table.ints(group, "capture_id")?;
        out.extend(captures.into_iter().zip(table.ints(group, "number")?));
    }
    out.sort_unstable();
    out.dedup();
    Ok(out)
}
