//! Stamps that cards gave to what they received, and their clocks: when that was by the boot clock, once all readings are known.

use crate::clock::card::{CardClocks, Reading};
use crate::error::Result;
use kpat_klog::Log;
use kpat_model::hash::Map;
use kpat_model::{CardReading, CardStamp, PacketId};
use kpat_store::TableWriter;
use kpat_store::tables::{CardClockRow, PacketRow};
use std::path::Path;

/// A card's stamp: by its own clock, and its namespace and index.
pub(super) type Stamp = (i64, u32, u32);

pub(super) struct Stamps {
    /// A card stamped when recording began: packet rows get what their stamps say at the end.
    pub expected: bool,
    clocks: CardClocks,
    table: TableWriter<CardClockRow>,
    /// By CPU, of the packet whose first footprint follows.
    logged: Map<u16, CardStamp>,
}

impl Stamps {
    pub fn new(log: &Log, dir: &Path) -> Result<Stamps> {
        let expected = log.devices().iter().any(|d| d.phc.is_some());
        let table = TableWriter::create(dir)?;
        Ok(Stamps { expected, clocks: CardClocks::new(), table, logged: Map::default() })
    }

    /// A packet will be seen for the first time.
    pub fn logged(&mut self, cpu: u16, s: CardStamp) {
        self.logged.insert(cpu, s);
    }

    /// The stamp of a packet that is seen for the first time.
    pub fn of(&mut self, cpu: u16, packet: PacketId) -> Option<Stamp> {
        let s = self.logged.remove(&cpu).filter(|s| s.packet == packet)?;
        Some((s.card_ns, s.netns, s.ifindex))
    }

    /// A card's clock was read.
    pub fn reading(&mut self, r: CardReading) -> Result<()> {
        let row = CardClockRow {
            netns: r.netns.into(),
            ifindex: r.ifindex as i32,
            at_ns: r.at.0,
            card_ns: r.card_ns,
            bound_ns: r.bound_ns.into(),
            clock: r.clock,
        };
        let clock = self.clocks.entry((row.netns, row.ifindex)).or_default();
        clock.add(Reading { at: row.at_ns, card: row.card_ns, bound: row.bound_ns });
        Ok(self.table.push(&row)?)
    }

    /// All readings are known.
    pub fn finish(self) -> Result<Clocks> {
        self.table.finish()?;
        Ok(Clocks { expected: self.expected, clocks: self.clocks })
    }
}

/// The clocks of all cards over the whole log.
pub(super) struct Clocks {
    pub expected: bool,
    clocks: CardClocks,
}

impl Clocks {
    /// When its card stamped it, where that is known. A stamp that is younger than the packet's first sight by more than the bound
    /// contradicts, and is no answer.
    pub fn fill(&self, row: &mut PacketRow) {
        let (Some(stamp), Some(ifindex)) = (row.stamp_ns, row.if_in) else { return };
        let clock = self.clocks.get(&(row.if_in_netns.unwrap_or(0), ifindex));
        if let Some(s) = clock.and_then(|c| c.stamped(stamp, row.first_ns)) {
            row.card_ns = Some(row.first_ns - s.at);
            row.card_bound_ns = Some(s.bound);
        }
    }
}
