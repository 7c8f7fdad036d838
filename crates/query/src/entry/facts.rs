//! What other tables than its own say of packets, for their rows in lists.

use crate::error::Result;
use crate::store::Store;
use kpat_model::EventKind;
use kpat_model::hash::{Map, Set};
use kpat_store::NULL;
use kpat_store::tables::*;
use std::ops::RangeInclusive;

#[derive(Debug, Default)]
pub(crate) struct Facts {
    pub retransmitted: Set<i64>,
    /// First frame of each packet: capture and number.
    pub frames: Map<i64, (u16, u32)>,
}

/// What the tables of events and associations say of packets.
pub(crate) fn facts(store: &Store) -> Result<Facts> {
    facts_of(store, &(i64::MIN..=i64::MAX))
}

/// Of packets with these numbers.
pub(crate) fn facts_of(store: &Store, packets: &RangeInclusive<i64>) -> Result<Facts> {
    Ok(Facts { retransmitted: retransmitted(store, packets)?, frames: first_frames(store, packets)? })
}

fn retransmitted(store: &Store, of: &RangeInclusive<i64>) -> Result<Set<i64>> {
    let table = store.table::<EventRow>()?;
    let mut out = Set::default();
    for group in table.groups_where("packet_id", of) {
        let kinds = table.ints(group, "kind")?;
        let packets = table.ints(group, "packet_id")?;
        let again = EventKind::Retransmit as i64;
        out.extend(kinds.iter().zip(packets).filter(|(k, p)| **k == again && *p != NULL).map(|(_, p)| p));
    }
    Ok(out)
}

/// The frame that was first on the wire, of each packet.
fn first_frames(store: &Store, of: &RangeInclusive<i64>) -> Result<Map<i64, (u16, u32)>> {
    let table = store.table::<AssociationRow>()?;
    let mut first: Map<i64, (i64, u16, u32)> = Map::default();
    for group in table.groups_where("packet_id", of) {
        let column = |name| table.ints(group, name);
        let (packets, captures, numbers) = (column("packet_id")?, column("capture_id")?, column("number")?);
        let (kernel, residual) = (column("kernel_ns")?, column("residual_ns")?);
        for i in 0..packets.len() {
            let at = kernel[i].saturating_add(residual[i]);
            let here = (at, captures[i] as u16, numbers[i].clamp(0, i64::from(u32::MAX)) as u32);
            first.entry(packets[i]).and_modify(|f| *f = (*f).min(here)).or_insert(here);
        }
    }
    Ok(first.into_iter().map(|(p, (_, capture, number))| (p, (capture, number))).collect())
}
