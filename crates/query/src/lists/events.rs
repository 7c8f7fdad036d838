//! Events: a list of them, and by kind, a page at a time.

use super::top::Top;
use crate::error::{Error, Result};
use crate::packet::EventOfPacket;
use crate::store::Store;
use kpat_model::EventKind;
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

/// All events that fit, in sum.
#[derive(Clone, Debug, Default)]
pub struct MomentSums {
    /// Of each kind how many in each of equal parts of the time.
    pub bins: BTreeMap<i32, Vec<u32>>,
    /// Drops by reason and place, most first.
    pub drops: Vec<(String, String, u64)>,
}

#[derive(Clone, Debug, Default)]
pub struct EventFilter {
    /// Codes of [`kpat_model::EventKind`]; empty: all.
    pub kinds: Vec<i32>,
    pub packet: Option<i64>,
    /// What programs said of this socket.
    pub socket: Option<i64>,
    pub from_ns: Option<i64>,
    pub to_ns: Option<i64>,
}

#[derive(Clone, Debug, Default)]
pub struct EventList {
    pub rows: Vec<EventOfPacket>,
    pub total: u64,
}

impl Store {
    /// Events that fit, first `limit` in order of time (0: all).
    pub fn events(&self, filter: &EventFilter, limit: usize) -> Result<EventList> {
        let table = self.table::<EventRow>()?;
        let range = filter.from_ns.unwrap_or(i64::MIN)..=filter.to_ns.unwrap_or(i64::MAX);
        let mut place = 0u64;
        // The table is in the order in which the log was written, which events of other sources join late.
        let mut top = Top::new(limit, |e: &(u64, EventRow)| (e.1.at_ns, e.0));
        table.each(table.groups_where("at_ns", &range), |row: EventRow| {
            let kind_fits = filter.kinds.is_empty() || filter.kinds.contains(&row.kind);
            let packet_fits = filter.packet.is_none_or(|p| row.packet_id == Some(p));
            let socket_fits = filter.socket.is_none_or(|s| row.socket_id == Some(s));
            if kind_fits && packet_fits && socket_fits && range.contains(&row.at_ns) {
                place += 1;
                top.push((place, row));
            }
        })?;
        let (rows, total) = top.finish();
        let list = EventList { rows: rows.into_iter().map(|(_, row)| self.explain(row)).collect(), total };
        Ok(list)
    }

    /// Events in sum, those of `packets` (sorted) if given; `parts` equal parts of the time from `from_ns` to `to_ns`.
    ///
    /// Errors: [`Error::Abandoned`].
    pub fn moment_sums(
        &self,
        packets: Option<&[i64]>,
        (from_ns, to_ns): (i64, i64),
        parts: usize,
        progress: &mut dyn FnMut(u64, u64) -> bool,
    ) -> Result<MomentSums> {
        let table = self.table::<EventRow>()?;
        let mut bins: BTreeMap<i32, Vec<u32>> = BTreeMap::new();
        let mut drops: BTreeMap<(i64, i64), u64> = BTreeMap::new();
        let length = i128::from(to_ns.saturating_sub(from_ns).max(1));
        for group in 0..table.groups() {
            if !progress(group as u64, table.groups() as u64) {
                return Err(Error::Abandoned);
            }
            let (at, kind) = (table.ints(group, "at_ns")?, table.ints(group, "kind")?);
            let (a, b) = (table.ints(group, "a")?, table.ints(group, "b")?);
            let of = if packets.is_some() { table.ints(group, "packet_id")? } else { Vec::new() };
            for i in 0..at.len() {
                if packets.is_some_and(|p| p.binary_search(&of[i]).is_err()) {
                    continue;
                }
                if kind[i] == EventKind::Drop as i64 {
                    *drops.entry((a[i], b[i])).or_default() += 1;
                }
                if (from_ns..=to_ns).contains(&at[i]) {
                    let part = (i128::from(at[i] - from_ns) * parts as i128 / length) as usize;
                    let of_kind = bins.entry(kind[i] as i32).or_insert_with(|| vec![0; parts]);
                    of_kind[part.min(parts - 1)] += 1;
                }
            }
        }
        // Several addresses may be one place.
        let mut named: BTreeMap<(String, String), u64> = BTreeMap::new();
        for ((reason, place), n) in drops {
            let reason = self.drop_reason(reason as i32).unwrap_or_default().to_owned();
            *named.entry((reason, self.symbols.get(&place).cloned().unwrap_or_default())).or_default() += n;
        }
        let mut drops: Vec<_> = named.into_iter().map(|((reason, place), n)| (reason, place, n)).collect();
        drops.sort_by_key(|d| std::cmp::Reverse(d.2));
        Ok(MomentSums { bins, drops })
    }

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
