//! The two look-ups: one packet with everything known of it, one function with its calls.

use super::store::Store;
use super::tree::{Names, build};
use super::types::*;
use crate::abreast::abreast;
use crate::error::{Error, Result};
use crate::hash::Set;
use kpat_store::tables::*;
use kpat_store::{NULL, TableFile};
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
        Ok(PacketDetail {
            drop_reason: packet.drop_reason.and_then(|r| self.drop_reason(r)).map(str::to_owned),
            process: packet.pid.and_then(|p| self.process(p, packet.last_ns)).cloned(),
            calls: build(self.calls_of(&packet)?, &names),
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
        let mut rows = Vec::new();
        for group in calls.groups_where("entry_ns", &life) {
            if calls.range(group, "packet_id").is_some_and(|r| !r.contains(&id)) {
                continue;
            }
            let places: Vec<u32> = places(&calls, group, "packet_id", |p| p == id)?;
            rows.extend(calls.rows_at::<CallRow>(group, &places)?);
        }
        let members = self.table::<CallMemberRow>()?;
        let mut wanted: Vec<i64> = Vec::new();
        for group in members.groups_where("entry_ns", &life) {
            if members.range(group, "packet_id").is_none_or(|r| r.contains(&id)) {
                let places = places(&members, group, "packet_id", |p| p == id)?;
                wanted.extend(members.rows_at::<CallMemberRow>(group, &places)?.iter().map(|m| m.call_id));
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

    /// One function: its statistics, and its calls with their packets.
    ///
    /// Errors: [`Error::NoSuchFunction`] with the nearest name.
    pub fn function(&self, name: &str, filter: &CallFilter) -> Result<FunctionDetail> {
        self.calls_of_function(self.find_function(name)?.clone(), filter, &mut |_, _| true)
    }

    /// As [`Store::function`], by `func_id`; `progress` is told row groups of calls.
    ///
    /// Errors: [`Error::Abandoned`].
    pub fn function_by_id(
        &self,
        func_id: i32,
        filter: &CallFilter,
        progress: &mut dyn FnMut(u64, u64) -> bool,
    ) -> Result<FunctionDetail> {
        let known = usize::try_from(func_id).ok().and_then(|i| self.functions.get(i));
        let Some(function) = known.filter(|f| !f.name.is_empty()) else {
            return Err(Error::NoSuchFunction { name: format!("number {func_id}"), nearest: None });
        };
        self.calls_of_function(function.clone(), filter, progress)
    }

    fn calls_of_function(
        &self,
        function: FunctionRow,
        filter: &CallFilter,
        progress: &mut dyn FnMut(u64, u64) -> bool,
    ) -> Result<FunctionDetail> {
        let func = i64::from(function.func_id);
        let durations = self.table::<DurationRow>()?.rows_equal::<DurationRow>("func_id", &[func])?;
        let calls = self.table::<CallRow>()?;
        let range = filter.from_ns.unwrap_or(i64::MIN)..=filter.to_ns.unwrap_or(i64::MAX);
        let in_time = filter.from_ns.is_some() || filter.to_ns.is_some();
        let by_duration = filter.slower_than_ns.is_some() || filter.faster_than_ns.is_some();
        let longest = filter.longest_first;
        // Of all calls the number is stored, so the search may stop when the best are found.
        let all = !in_time && !by_duration && filter.packets.is_none();
        let mut index = self.table::<CallIndexRow>()?.rows_equal::<CallIndexRow>("func_id", &[func])?;
        index.retain(|i| {
            filter.slower_than_ns.is_none_or(|n| i.max_ns.is_some_and(|max| max >= n))
                && filter.faster_than_ns.is_none_or(|n| i.min_ns.is_some_and(|min| min <= n))
                && (i.row_group as usize) < calls.groups()
                && (!in_time
                    || calls
                        .range(i.row_group as usize, "entry_ns")
                        .is_none_or(|have| have.start() <= range.end() && have.end() >= range.start()))
        });
        if longest {
            index.sort_by_key(|i| (-i.max_ns.unwrap_or(-1), i.row_group));
        }
        // (duration if it matters, group, place), the latter two in order of time: the rows themselves are read only
        // for the winners, and columns only where the question needs them.
        let order = move |c: &(i64, usize, u32)| (if longest { -c.0 } else { 0 }, c.1, c.2);
        let keep = |best: &mut Vec<(i64, usize, u32)>| {
            if filter.limit > 0 && best.len() > filter.limit {
                best.select_nth_unstable_by_key(filter.limit, order);
                best.truncate(filter.limit);
            }
        };
        let scan = |i: &CallIndexRow| -> Result<Found> {
            let group = i.row_group as usize;
            let hits = places(&calls, group, "func_id", |f| f == func)?;
            let column = |wanted: bool, name| if wanted { calls.ints(group, name) } else { Ok(Vec::new()) };
            let entry = column(in_time, "entry_ns")?;
            let dur = column(by_duration || longest, "dur_ns")?;
            let packet = column(!all && (filter.count_packets || filter.packets.is_some()), "packet_id")?;
            let mut found = Found::default();
            for place in hits {
                let i = place as usize;
                let timed = dur.get(i).is_some_and(|d| *d != NULL);
                let fits = (!in_time || range.contains(&entry[i]))
                    && filter.slower_than_ns.is_none_or(|n| timed && dur[i] >= n)
                    && filter.faster_than_ns.is_none_or(|n| timed && dur[i] <= n)
                    && filter
                        .packets
                        .as_ref()
                        .is_none_or(|p| packet.get(i).is_some_and(|id| p.binary_search(id).is_ok()));
                if fits {
                    found.packets.extend(packet.get(i).filter(|p| **p != NULL));
                    found.total += 1;
                    found.best.push((if timed { dur[i] } else { -1 }, group, place));
                }
            }
            keep(&mut found.best);
            Ok(found)
        };
        let mut best: Vec<(i64, usize, u32)> = Vec::new();
        let mut packets: Set<i64> = Set::default();
        let mut total = 0;
        if all {
            for (done, i) in (0..).zip(&index) {
                if !progress(done, index.len() as u64) {
                    return Err(Error::Abandoned);
                }
                // Of equally long calls the earlier one stands first.
                let best_here = order(&(i.max_ns.unwrap_or(-1), i.row_group as usize, 0));
                let full = filter.limit > 0 && best.len() >= filter.limit;
                if full && best.iter().map(order).max().is_some_and(|least| least <= best_here) {
                    break;
                }
                best.extend(scan(i)?.best);
                keep(&mut best);
            }
        } else {
            abreast(&index, progress, &|i, _| scan(i), &mut |found| {
                total += found.total;
                if filter.count_packets {
                    packets.extend(found.packets);
                }
                best.extend(found.best);
                keep(&mut best);
            })?;
        }
        best.sort_unstable_by_key(order);
        let hits = best;
        let total = if all { function.calls as u64 } else { total };
        let packets = match all {
            true => Some(function.packets as u64),
            false => filter.count_packets.then_some(packets.len() as u64),
        };
        let mut by_group: BTreeMap<usize, Vec<u32>> = BTreeMap::new();
        for (_, group, place) in &hits {
            by_group.entry(*group).or_default().push(*place);
        }
        let mut rows: HashMap<(usize, u32), CallRow> = HashMap::new();
        for (group, mut places) in by_group {
            places.sort_unstable();
            let read = calls.rows_at::<CallRow>(group, &places)?;
            rows.extend(places.into_iter().map(|p| (group, p)).zip(read));
        }
        let mut ids: Vec<i64> = rows.values().filter_map(|c| c.packet_id).collect();
        ids.sort_unstable();
        ids.dedup();
        let known: HashMap<i64, PacketRow> = self
            .table::<PacketRow>()?
            .rows_equal::<PacketRow>("packet_id", &ids)?
            .into_iter()
            .map(|p| (p.packet_id, p))
            .collect();
        let calls = hits
            .iter()
            .filter_map(|(_, group, place)| {
                let call = rows.get(&(*group, *place))?.clone();
                let packet = call.packet_id.and_then(|p| known.get(&p)).cloned();
                Some(CallOfFunction { call, packet })
            })
            .collect();
        Ok(FunctionDetail { function, durations, calls, total, packets })
    }
}

/// Calls of a function in one row group.
#[derive(Default)]
struct Found {
    total: u64,
    best: Vec<(i64, usize, u32)>,
    /// Of all of them, if wanted.
    packets: Vec<i64>,
}

/// Places in a row group whose integer column fits.
fn places(table: &TableFile, group: usize, column: &str, fits: impl Fn(i64) -> bool) -> Result<Vec<u32>> {
    let values = table.ints(group, column)?;
    Ok(values.iter().enumerate().filter(|(_, v)| fits(**v)).map(|(i, _)| i as u32).collect())
}
