//! Lists of packets. What decides whether and where a packet stands in the list is read of all packets that come into
//! question, whole rows only of those that are given.

use super::top::Top;
use crate::choice::{Choice, PacketFilter};
use crate::error::Result;
use crate::store::Store;
use kpat_store::TableFile;
use kpat_store::tables::*;
use std::collections::{BTreeMap, BinaryHeap};

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

/// Rows fetched at a time for an order that the table does not have: first few, so that there is something to show.
const BLOCKS: [usize; 2] = [1 << 10, 1 << 17];

/// A packet that fits: its place in the order, then in the table.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    key: i64,
    packet_id: i64,
    group: usize,
    place: u32,
}

fn key_of(p: &PacketRow, sort: PacketSort) -> i64 {
    match sort {
        PacketSort::Time => p.first_ns,
        PacketSort::Path => -p.path_ns,
        PacketSort::Kernel => -p.kernel_ns,
        PacketSort::Length => -p.len_bytes,
        PacketSort::Calls => -i64::from(p.calls),
    }
}

/// Columns that filter and order need.
fn columns(f: &PacketFilter, sort: PacketSort) -> Vec<&'static str> {
    let mut wanted = vec!["packet_id"];
    wanted.push(match sort {
        PacketSort::Time => "first_ns",
        PacketSort::Path => "path_ns",
        PacketSort::Kernel => "kernel_ns",
        PacketSort::Length => "len_bytes",
        PacketSort::Calls => "calls",
    });
    let mut when = |asked: bool, names: &[&'static str]| {
        if asked {
            wanted.extend(names);
        }
    };
    when(f.proto.is_some(), &["proto", "ethertype"]);
    when(f.addr.is_some(), &["src_addr", "dst_addr"]);
    when(f.port.is_some(), &["sport", "dport"]);
    when(f.min_path_ns.is_some() || f.max_path_ns.is_some(), &["path_ns"]);
    when(f.verdict.is_some(), &["verdict"]);
    when(f.from_ns.is_some(), &["last_ns"]);
    when(f.to_ns.is_some(), &["first_ns"]);
    when(f.pid.is_some(), &["pid"]);
    when(f.on_wire.is_some(), &["frames"]);
    when(f.text.is_some(), &["src_addr", "dst_addr", "verdict", "drop_reason", "pid", "last_ns"]);
    wanted.extend(Choice::columns(f));
    wanted.sort_unstable();
    wanted.dedup();
    wanted
}

impl Store {
    /// Packets that fit, best `limit` by `sort` (0: all), in that order or, `reverse`, in the opposite one.
    pub fn packets(
        &self,
        filter: &PacketFilter,
        sort: PacketSort,
        reverse: bool,
        limit: usize,
    ) -> Result<PacketList> {
        let mut rows = Vec::new();
        let mut keep = |row| -> Result<bool> {
            rows.push(row);
            Ok(true)
        };
        let total = if limit == 0 {
            self.each_packet(filter, sort, reverse, &mut keep)?
        } else {
            let table = self.table::<PacketRow>()?;
            let (best, total) = self.candidates(&table, filter, sort, reverse, limit)?;
            give_rows(&table, &best, &mut keep)?;
            total
        };
        Ok(PacketList { rows, total })
    }

    /// Calls `give` with every packet that fits, in order, until it says false; says how many were given. In order of time
    /// packets are given as they are read, and few are held; another order must look at all packets first.
    pub fn each_packet<E: From<crate::Error>>(
        &self,
        filter: &PacketFilter,
        sort: PacketSort,
        reverse: bool,
        give: &mut dyn FnMut(PacketRow) -> std::result::Result<bool, E>,
    ) -> std::result::Result<u64, E> {
        let table = self.table::<PacketRow>()?;
        if sort == PacketSort::Time && !reverse {
            return self.in_time(&table, filter, give);
        }
        let (all, _) = self.candidates(&table, filter, sort, reverse, 0)?;
        let mut given = 0;
        while given < all.len() {
            let block = BLOCKS[usize::from(given > 0)].min(all.len() - given);
            if !give_rows(&table, &all[given..given + block], give)? {
                break;
            }
            given += block;
        }
        Ok(given as u64)
    }

    fn in_time<E: From<crate::Error>>(
        &self,
        table: &TableFile,
        filter: &PacketFilter,
        give: &mut dyn FnMut(PacketRow) -> std::result::Result<bool, E>,
    ) -> std::result::Result<u64, E> {
        let choice = Choice::new(self, filter, &mut |_, _| true)?;
        let mut given = 0;
        // Rows that a row group to come may precede.
        let mut waiting: BTreeMap<(i64, i64, u64), PacketRow> = BTreeMap::new();
        let mut number = 0;
        let order = by_first(table, &choice);
        for next in 0..=order.len() {
            let until = order.get(next).map_or(i64::MAX, |o| o.0);
            while let Some(first) = waiting.first_entry() {
                if first.key().0 >= until && next < order.len() {
                    break;
                }
                given += 1;
                if !give(first.remove())? {
                    return Ok(given);
                }
            }
            let Some((_, group)) = order.get(next) else { break };
            table
                .each(vec![*group], |row: PacketRow| {
                    if choice.fits(&row) {
                        number += 1;
                        waiting.insert((row.first_ns, row.packet_id, number), row);
                    }
                })
                .map_err(crate::Error::from)?;
        }
        Ok(given)
    }

    /// The best `limit` (0: all) packets that fit, in order; and how many fit.
    fn candidates(
        &self,
        table: &TableFile,
        filter: &PacketFilter,
        sort: PacketSort,
        reverse: bool,
        limit: usize,
    ) -> Result<(Vec<Candidate>, u64)> {
        let choice = Choice::new(self, filter, &mut |_, _| true)?;
        let columns = columns(filter, sort);
        // All fit, and the earliest are asked for: row groups that begin later than these need not be read.
        let earliest =
            *filter == PacketFilter::default() && sort == PacketSort::Time && !reverse && limit > 0;
        let order = by_first(table, &choice);
        let mut best: BinaryHeap<i64> = BinaryHeap::new();
        let sign = if reverse { -1 } else { 1 };
        let mut top = Top::new(limit, move |c: &Candidate| {
            (c.key.saturating_mul(sign), c.packet_id.saturating_mul(sign), c.group, c.place)
        });
        for (first, group) in order {
            if earliest && best.len() >= limit && best.peek().is_some_and(|worst| *worst < first) {
                break;
            }
            let mut place = 0u32;
            let mut reader = table.batches(vec![group], &columns)?;
            while let Some(batch) = reader.next(8192)? {
                for i in 0..batch.rows {
                    // Columns that were not read are null or zero, and not used.
                    let row = <PacketRow as kpat_store::Row>::get(&batch, i);
                    if choice.fits(&row) {
                        let key = key_of(&row, sort);
                        top.push(Candidate { key, packet_id: row.packet_id, group, place });
                        if earliest && (best.len() < limit || best.peek().is_some_and(|worst| key < *worst)) {
                            best.push(key);
                            if best.len() > limit {
                                best.pop();
                            }
                        }
                    }
                    place += 1;
                }
            }
        }
        let (rows, total) = top.finish();
        Ok((rows, if earliest { table.rows() } else { total }))
    }
}

/// Row groups that come into question, by their earliest packet.
fn by_first(table: &TableFile, choice: &Choice<'_>) -> Vec<(i64, usize)> {
    let first = |g: usize| table.range(g, "first_ns").map_or(i64::MIN, |r| *r.start());
    let groups = (0..table.groups()).filter(|g| choice.may(table, *g));
    let mut order: Vec<(i64, usize)> = groups.map(|g| (first(g), g)).collect();
    order.sort_unstable();
    order
}

/// Reads the rows of these packets and gives them in this order; false: enough.
fn give_rows<E: From<crate::Error>>(
    table: &TableFile,
    wanted: &[Candidate],
    give: &mut dyn FnMut(PacketRow) -> std::result::Result<bool, E>,
) -> std::result::Result<bool, E> {
    let mut by_group: BTreeMap<usize, Vec<(u32, usize)>> = BTreeMap::new();
    for (i, c) in wanted.iter().enumerate() {
        by_group.entry(c.group).or_default().push((c.place, i));
    }
    let mut rows: Vec<Option<PacketRow>> = vec![None; wanted.len()];
    for (group, mut places) in by_group {
        places.sort_unstable();
        let at: Vec<u32> = places.iter().map(|p| p.0).collect();
        let read = table.rows_at::<PacketRow>(group, &at).map_err(crate::Error::from)?;
        for ((_, i), row) in places.into_iter().zip(read) {
            rows[i] = Some(row);
        }
    }
    for row in rows.into_iter().flatten() {
        if !give(row)? {
            return Ok(false);
        }
    }
    Ok(true)
}
