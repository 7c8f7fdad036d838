//! What chosen packets went through: their functions with times, and their call paths, from one walk.

mod flame;

use crate::abreast::Progress as Parts;
use crate::choice::PacketFilter;
use crate::error::Result;
use crate::paths::Paths;
use crate::spread::Spread;
use crate::store::Store;
use crate::walk::{Asked, Life, MOST, Sum, Tree, numbers, walk, walk_slices};
pub use flame::{Flame, FlameNode, Neighbour};
use kpat_model::hash::Map;
use std::cell::RefCell;
use std::time::{Duration, Instant};

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

/// What is counted of packets.
struct Counts {
    within: Within,
    packets: u64,
    functions: Map<i32, FunctionCount>,
    paths: Paths,
    seen: Vec<i32>,
}

impl Counts {
    fn new(within: Within) -> Counts {
        Counts { within, packets: 0, functions: Map::default(), paths: Paths::default(), seen: Vec::new() }
    }

    fn join(&mut self, other: &Counts) {
        self.packets += other.packets;
        self.paths.join(&other.paths);
        for (func, theirs) in &other.functions {
            let ours = self.functions.entry(*func).or_default();
            ours.calls += theirs.calls;
            ours.packets += theirs.packets;
            if theirs.total.max() > ours.total.max() {
                ours.max_packet = theirs.max_packet;
            }
            ours.total.merge(&theirs.total);
            ours.self_ns = ours.self_ns.saturating_add(theirs.self_ns);
        }
    }

    fn result(&self) -> Touched {
        let rows: Vec<_> = self.paths.rows().collect();
        let of = |(func_id, f): (&i32, &FunctionCount)| FunctionCount { func_id: *func_id, ..f.clone() };
        let mut functions: Vec<FunctionCount> = self.functions.iter().map(of).collect();
        functions.sort_unstable_by_key(|f| f.func_id);
        Touched { packets: self.packets, functions, flame: Flame::of(&rows) }
    }
}

fn fits(within: Within, dur: Option<i64>) -> bool {
    within.0.is_none_or(|n| dur.is_some_and(|d| d >= n))
        && within.1.is_none_or(|n| dur.is_some_and(|d| d <= n))
}

impl Sum for Counts {
    fn tree(&mut self, tree: &Tree<'_>) {
        for (row, group) in tree.rows.iter().zip(tree.groups) {
            self.paths.add(row, group.is_some());
            if group.is_none() || !fits(self.within, row.dur_ns) {
                continue;
            }
            let f = self.functions.entry(row.func_id).or_default();
            f.calls += 1;
            if let (Some(dur), Some(own)) = (row.dur_ns, row.self_ns) {
                if f.total.max().is_none_or(|m| dur > m) {
                    f.max_packet = row.packet_id;
                }
                f.total.push(dur);
                f.self_ns = f.self_ns.saturating_add(own);
            }
        }
    }

    fn life(&mut self, life: Life) {
        self.packets += 1;
        self.seen.clear();
        self.seen.extend(life.rows.iter().filter(|r| fits(self.within, r.dur_ns)).map(|r| r.func_id));
        self.seen.sort_unstable();
        self.seen.dedup();
        for f in &self.seen {
            self.functions.entry(*f).or_default().packets += 1;
        }
    }
}

/// Between two accounts of what has been counted so far.
const SO_FAR: Duration = Duration::from_millis(250);

impl Store {
    /// Counts the calls of the packets that fit. Only functions obey the thresholds `(at least, at most)`. `so_far` is
    /// given what has been counted until then.
    ///
    /// Errors: [`crate::Error::Abandoned`].
    pub fn touched(
        &self,
        filter: &PacketFilter,
        within: Within,
        progress: Parts<'_>,
        so_far: &mut dyn FnMut(Touched),
    ) -> Result<Touched> {
        let mut counts = Counts::new(within);
        // Of all calls those without a packet count as well.
        match numbers(filter).flatten() {
            Some(ids) => {
                let mut logged: Option<Instant> = None;
                walk_slices(self, Some(ids), MOST, progress, &|| Counts::new(within), &mut |slice| {
                    counts.join(&slice);
                    if logged.is_none_or(|t| t.elapsed() >= SO_FAR) {
                        logged = Some(Instant::now());
                        so_far(counts.result());
                    }
                })?;
            }
            None => {
                let asked = Asked { filter, packet: None };
                let counts = RefCell::new(&mut counts);
                walk(
                    self,
                    &asked,
                    progress,
                    &mut |_| 0,
                    &mut |tree| counts.borrow_mut().tree(tree),
                    &mut |life| counts.borrow_mut().life(life),
                )?;
            }
        }
        Ok(counts.result())
    }
}
