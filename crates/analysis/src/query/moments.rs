//! Events by kind, a page at a time.

use super::store::Store;
use super::types::EventOfPacket;
use crate::error::{Error, Result};
use kpat_store::tables::EventRow;
use std::collections::BTreeMap;

/// A page of events, in order of time.
#[derive(Clone, Debug, Default)]
pub struct Moments {
    pub rows: Vec<EventOfPacket>,
    /// Events that fit, and how many of each kind fit but for the kind.
    pub total: u64,
    pub kinds: Vec<(i32, u64)>,
}

impl Store {
    /// Events of these kinds (empty: all) and, if given, packets (sorted); `count` of them from place `from`.
    ///
    /// Errors: [`Error::Abandoned`].
    pub fn moments(
        &self,
        kinds: &[i32],
        packets: Option<&[i64]>,
        from: usize,
        count: usize,
        progress: &mut dyn FnMut(u64, u64) -> bool,
    ) -> Result<Moments> {
        let table = self.table::<EventRow>()?;
        let mut by_kind: BTreeMap<i32, u64> = BTreeMap::new();
        let mut found: Vec<(i64, usize, u32)> = Vec::new();
        for group in 0..table.groups() {
            if !progress(group as u64, table.groups() as u64) {
                return Err(Error::Abandoned);
            }
            let (at, kind) = (table.ints(group, "at_ns")?, table.ints(group, "kind")?);
            let of = if packets.is_some() { table.ints(group, "packet_id")? } else { Vec::new() };
            for i in 0..at.len() {
                if packets.is_some_and(|p| p.binary_search(&of[i]).is_err()) {
                    continue;
                }
                let kind = kind[i] as i32;
                *by_kind.entry(kind).or_default() += 1;
                if kinds.is_empty() || kinds.contains(&kind) {
                    found.push((at[i], group, i as u32));
                }
            }
        }
        // The table is in the order in which the log was written, which events of other sources join late.
        found.sort_unstable();
        let page: Vec<_> = found.iter().skip(from).take(count).copied().collect();
        let mut by_group: BTreeMap<usize, Vec<(u32, usize)>> = BTreeMap::new();
        for (place, (_, group, row)) in page.iter().enumerate() {
            by_group.entry(*group).or_default().push((*row, place));
        }
        let mut rows: Vec<Option<EventOfPacket>> = vec![None; page.len()];
        for (group, mut places) in by_group {
            places.sort_unstable();
            let at: Vec<u32> = places.iter().map(|p| p.0).collect();
            for ((_, place), row) in places.into_iter().zip(table.rows_at::<EventRow>(group, &at)?) {
                rows[place] = Some(self.explain(row));
            }
        }
        Ok(Moments {
            rows: rows.into_iter().flatten().collect(),
            total: found.len() as u64,
            kinds: by_kind.into_iter().collect(),
        })
    }
}
