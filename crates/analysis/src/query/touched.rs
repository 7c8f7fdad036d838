//! What chosen packets went through: their functions with times, and their call paths, from one walk.

use super::flame::Flame;
use super::store::Store;
use super::types::PacketFilter;
use crate::Parts;
use crate::error::Result;
use crate::hash::Map;
use crate::lives::{Asked, walk};
use crate::paths::Paths;
use crate::time::Spread;
use std::cell::RefCell;

/// A function over the calls that count.
#[derive(Clone, Debug, Default)]
pub struct FunctionCount {
    pub func_id: i32,
    /// Calls and points.
    pub calls: u64,
    /// Different packets among the chosen ones.
    pub packets: u64,
    /// Durations of the timed calls.
    pub total: Spread,
    pub self_ns: i64,
    /// Packet of the longest call.
    pub max_packet: Option<i64>,
}

#[derive(Clone, Debug, Default)]
pub struct Touched {
    pub packets: u64,
    /// By `func_id`.
    pub functions: Vec<FunctionCount>,
    pub flame: Flame,
}

/// Thresholds of a call's duration.
type Within = (Option<i64>, Option<i64>);

impl Store {
    /// Counts the calls of the packets that fit. Only functions obey the thresholds `(at least, at most)`.
    ///
    /// Errors: [`crate::Error::Abandoned`].
    pub fn touched(&self, filter: &PacketFilter, within: Within, progress: Parts<'_>) -> Result<Touched> {
        let functions: RefCell<Map<i32, FunctionCount>> = RefCell::default();
        let mut paths = Paths::new();
        let mut packets = 0;
        let fits = |dur: Option<i64>| {
            within.0.is_none_or(|n| dur.is_some_and(|d| d >= n))
                && within.1.is_none_or(|n| dur.is_some_and(|d| d <= n))
        };
        let asked = Asked { filter, packet: None };
        let mut seen: Vec<i32> = Vec::new();
        walk(
            self,
            &asked,
            progress,
            &mut |_| 0,
            &mut |tree| {
                let mut functions = functions.borrow_mut();
                for (row, group) in tree.rows.iter().zip(tree.groups) {
                    paths.add(row, group.is_some());
                    if group.is_none() || !fits(row.dur_ns) {
                        continue;
                    }
                    let f = functions.entry(row.func_id).or_default();
                    f.calls += 1;
                    if let (Some(dur), Some(own)) = (row.dur_ns, row.self_ns) {
                        if f.total.max().is_none_or(|m| dur > m) {
                            f.max_packet = row.packet_id;
                        }
                        f.total.push(dur);
                        f.self_ns = f.self_ns.saturating_add(own);
                    }
                }
            },
            &mut |life| {
                packets += 1;
                seen.clear();
                seen.extend(life.rows.iter().filter(|r| fits(r.dur_ns)).map(|r| r.func_id));
                seen.sort_unstable();
                seen.dedup();
                let mut functions = functions.borrow_mut();
                seen.iter().for_each(|f| functions.entry(*f).or_default().packets += 1);
            },
        )?;
        let rows: Vec<_> = paths.rows().collect();
        let mut functions: Vec<FunctionCount> =
            functions.into_inner().into_iter().map(|(func_id, f)| FunctionCount { func_id, ..f }).collect();
        functions.sort_unstable_by_key(|f| f.func_id);
        Ok(Touched { packets, functions, flame: Flame::of(&rows) })
    }
}
