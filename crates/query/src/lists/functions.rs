//! Functions: the list of them, and one with its calls. `call_index` says which row groups of the call table can answer: for
//! the longest calls the few that hold them. A second copy sorted by function would double the store.

use crate::abreast::abreast;
use crate::error::{Error, Result};
use crate::names::glob_fits;
use crate::store::{Store, places};
use kpat_model::hash::Set;
use kpat_store::NULL;
use kpat_store::tables::*;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FunctionSort {
    /// Most self time first.
    #[default]
    SelfTime,
    Total,
    Calls,
    Packets,
    Median,
    P99,
    Max,
    Name,
}

#[derive(Clone, Debug, Default)]
pub struct FunctionFilter {
    /// Glob (`*`, `?`) over the name; empty: all.
    pub glob: String,
    /// Some call lasted at least this (by `max_ns`).
    pub slower_than_ns: Option<i64>,
    /// Some call lasted at most this (by `min_ns`).
    pub faster_than_ns: Option<i64>,
    /// Also those that were never called.
    pub unused: bool,
}

#[derive(Clone, Debug, Default)]
pub struct FunctionList {
    pub rows: Vec<FunctionRow>,
    pub total: u64,
}

/// Which calls of a function.
#[derive(Clone, Debug, Default)]
pub struct CallFilter {
    pub slower_than_ns: Option<i64>,
    pub faster_than_ns: Option<i64>,
    pub from_ns: Option<i64>,
    pub to_ns: Option<i64>,
    /// Calls given at most; 0: all.
    pub limit: usize,
    /// Longest first instead of earliest first.
    pub longest_first: bool,
    /// Only calls that touched these packets, sorted; on a list the first one counts.
    pub packets: Option<Arc<[i64]>>,
    /// Also count the different packets of all calls that fit, which takes as long again.
    pub count_packets: bool,
}

#[derive(Clone, Debug)]
pub struct CallOfFunction {
    pub call: CallRow,
    /// The packet, if the log knows it.
    pub packet: Option<PacketRow>,
}

#[derive(Clone, Debug)]
pub struct FunctionDetail {
    pub function: FunctionRow,
    /// How the durations of all its calls are spread, shortest first.
    pub durations: Vec<DurationRow>,
    pub calls: Vec<CallOfFunction>,
    /// Calls that fit, whatever the limit.
    pub total: u64,
    /// Different packets among them; `None`: not asked for.
    pub packets: Option<u64>,
}

impl Store {
    /// Functions that fit, best `limit` by `sort` (0: all).
    pub fn functions(&self, filter: &FunctionFilter, sort: FunctionSort, limit: usize) -> FunctionList {
        let mut rows: Vec<&FunctionRow> = self
            .functions
            .iter()
            .filter(|f| !f.name.is_empty() && (filter.unused || f.calls > 0))
            .filter(|f| filter.glob.is_empty() || glob_fits(&filter.glob, &f.name))
            .filter(|f| filter.slower_than_ns.is_none_or(|n| f.max_ns.is_some_and(|m| m >= n)))
            .filter(|f| filter.faster_than_ns.is_none_or(|n| f.min_ns.is_some_and(|m| m <= n)))
            .collect();
        let key = |f: &FunctionRow| match sort {
            FunctionSort::SelfTime => -f.self_ns,
            FunctionSort::Total => -f.total_ns,
            FunctionSort::Calls => -f.calls,
            FunctionSort::Packets => -f.packets,
            FunctionSort::Median => -f.median_ns.unwrap_or(-1),
            FunctionSort::P99 => -f.p99_ns.unwrap_or(-1),
            FunctionSort::Max => -f.max_ns.unwrap_or(-1),
            FunctionSort::Name => 0,
        };
        rows.sort_by(|a, b| key(a).cmp(&key(b)).then_with(|| a.name.cmp(&b.name)));
        let total = rows.len() as u64;
        if limit > 0 {
            rows.truncate(limit);
        }
        FunctionList { rows: rows.into_iter().cloned().collect(), total }
    }

    /// One function: its statistics, and its calls with their packets.
    ///
    /// Errors: [`Error::NoSuchFunction`] with the nearest name.
    pub fn function(&self, name: &str, filter: &CallFilter) -> Result<FunctionDetail> {
        self.calls_of_function(self.find_function(name)?.clone(), filter, &mut |_, _| true)
    }

    /// As [`Store::function`], by `func_id`; `progress` gets row groups of calls.
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
