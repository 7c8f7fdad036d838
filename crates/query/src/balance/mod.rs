//! Does the log tell of every packet where it came from and what became of it?
//!
//! received + made here + from others = forwarded + sent + delivered + dropped + became others + in flight + lost +
//! unexplained, in all, by interface and by CPU. What is unexplained is a packet whose end the log should have and has not,
//! with no counted loss that could be the reason.

mod rows;
mod unread;

use crate::codes::verdict;
use crate::error::Result;
use crate::store::Store;
use kpat_model::LineageKind;
use kpat_model::hash::Set;
use kpat_store::tables::*;
use kpat_store::{NULL, TableFile};
use std::collections::BTreeMap;
use std::path::Path;

pub use rows::rows;

/// A packet that did nothing for so long was not in flight when the log ended.
const IDLE_NS: i64 = 1_000_000_000;
/// Differences that are listed.
const LISTED: usize = 20;

/// Packets by what became of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fates {
    pub forwarded: u64,
    pub sent: u64,
    pub delivered: u64,
    pub dropped: u64,
    /// Merged into others, or cut into others.
    pub transformed: u64,
    pub in_flight: u64,
    /// Their end is not in the log, and a loss was counted then.
    pub lost: u64,
    pub unexplained: u64,
}

impl Fates {
    pub fn sum(&self) -> u64 {
        self.forwarded
            + self.sent
            + self.delivered
            + self.dropped
            + self.transformed
            + self.in_flight
            + self.lost
            + self.unexplained
    }
}

/// Packets of one interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OfInterface {
    /// What became of those that it received.
    pub received: Fates,
    /// Given to it last.
    pub given: u64,
}

/// Why a packet is unexplained.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Difference {
    /// Nothing tells what became of it.
    NoFate,
    /// It went its way, but its buffer was never freed.
    NoEnd,
}

impl Difference {
    pub fn name(self) -> &'static str {
        match self {
            Difference::NoFate => "nothing tells what became of it",
            Difference::NoEnd => "its end was not seen",
        }
    }
}

/// Unexplained packets of one kind at one place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unexplained {
    pub why: Difference,
    pub cpu: Option<i32>,
    /// Received by: namespace and ifindex.
    pub interface: Option<(i64, i64)>,
    pub packets: u64,
    /// One of them.
    pub packet_id: i64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conservation {
    pub received: u64,
    pub made_here: u64,
    /// Segments, fragments and copies of others.
    pub from_others: u64,
    pub fates: Fates,
    /// By namespace and ifindex.
    pub interfaces: BTreeMap<(i64, i64), OfInterface>,
    /// By CPU of the packet's first record; -1: unknown.
    pub cpus: BTreeMap<i64, Fates>,
    /// Most packets first; the first few.
    pub differences: Vec<Unexplained>,
    /// The recording could see buffers being freed. Else only the fate of a packet is judged.
    pub ends_recorded: bool,
    /// Of those that were delivered: what lay unread in a socket when the log ended.
    pub unread: u64,
    /// Packets by verdict.
    pub verdicts: BTreeMap<i32, u64>,
}

impl Conservation {
    pub fn packets(&self) -> u64 {
        self.fates.sum()
    }

    /// Share of packets that are explained, in parts per million, rounded down; of no packets all are.
    pub fn explained_ppm(&self) -> u64 {
        let all = u128::from(self.packets());
        let explained = all - u128::from(self.fates.unexplained);
        (explained * 1_000_000).checked_div(all).unwrap_or(1_000_000) as u64
    }
}

impl Store {
    /// The balance of all packets, and how many there are of each verdict: as it was counted while integrating.
    pub fn conservation(&self) -> Result<Conservation> {
        // Logs of earlier versions have no such table.
        match rows::read(&self.dir)? {
            Some(counted) => Ok(counted),
            None => count(&self.dir, &self.manifest.log.mechanism, self.manifest.last_ns),
        }
    }
}

/// Counts the packets of a log that ended at `log_end`. Reads the number columns of the packet table.
pub fn count(dir: &Path, mechanism: &str, log_end: i64) -> Result<Conservation> {
    let table = TableFile::open(dir, &PACKET)?;
    let children = children(&TableFile::open(dir, &LINEAGE)?)?;
    let losses: Vec<LossRow> = TableFile::open(dir, &LOSS)?.all()?;
    let mut out = Conservation {
        ends_recorded: mechanism != "tracepoint"
            && (0..table.groups()).any(|g| table.range(g, "end_ns").is_some()),
        ..Conservation::default()
    };
    let unread = if out.ends_recorded { unread::unread(&table, log_end)? } else { Set::default() };
    let mut found: BTreeMap<Cause, (u64, i64)> = BTreeMap::new();
    for group in 0..table.groups() {
        let rows = Group::read(&table, group)?;
        for i in 0..rows.id.len() {
            let (cpu, last) = (rows.cpu[i], rows.last[i]);
            let code = rows.verdict[i] as i32;
            *out.verdicts.entry(code).or_default() += 1;
            let idle = last < log_end.saturating_sub(IDLE_NS);
            let waits = unread.contains(&rows.id[i]);
            out.unread += u64::from(waits);
            let why = if code == verdict::UNKNOWN {
                Some(Difference::NoFate)
            } else if waits {
                None
            } else if out.ends_recorded && rows.end[i] == NULL && idle && code != verdict::TRANSFORMED {
                Some(Difference::NoEnd)
            } else {
                None
            };
            let could_be = |l: &LossRow| {
                l.to_ns >= last && (l.cpu.is_none() || cpu == NULL || l.cpu.map(i64::from) == Some(cpu))
            };
            let lost = why.is_some() && losses.iter().any(could_be);
            let add = |f: &mut Fates| {
                let place = match (why, code) {
                    (Some(_), _) if lost => &mut f.lost,
                    (Some(_), _) => &mut f.unexplained,
                    (None, verdict::FORWARDED) => &mut f.forwarded,
                    (None, verdict::SENT) => &mut f.sent,
                    (None, verdict::DELIVERED) => &mut f.delivered,
                    (None, verdict::DROPPED) => &mut f.dropped,
                    (None, verdict::TRANSFORMED) => &mut f.transformed,
                    (None, _) => &mut f.in_flight,
                };
                *place += 1;
            };
            let interface = (rows.in_netns[i], rows.if_in[i]);
            let received = interface.1 != NULL;
            if received {
                out.received += 1;
                add(&mut out.interfaces.entry(interface).or_default().received);
            } else if children.contains(&rows.id[i]) {
                out.from_others += 1;
            } else {
                out.made_here += 1;
            }
            if rows.if_out[i] != NULL {
                out.interfaces.entry((rows.out_netns[i], rows.if_out[i])).or_default().given += 1;
            }
            add(&mut out.fates);
            add(out.cpus.entry(if cpu == NULL { -1 } else { cpu }).or_default());
            if let (Some(why), false) = (why, lost) {
                found.entry((why, cpu, interface)).or_insert((0, rows.id[i])).0 += 1;
            }
        }
    }
    out.differences = found
        .into_iter()
        .map(|((why, cpu, interface), (packets, packet_id))| Unexplained {
            why,
            cpu: (cpu != NULL).then_some(cpu as i32),
            interface: (interface.1 != NULL).then_some(interface),
            packets,
            packet_id,
        })
        .collect();
    out.differences.sort_by_key(|d| (std::cmp::Reverse(d.packets), d.packet_id));
    out.differences.truncate(LISTED);
    Ok(out)
}

/// Packets that came of others.
fn children(table: &TableFile) -> Result<Set<i64>> {
    let mut out = Set::default();
    for group in 0..table.groups() {
        let parents = table.ints(group, "parent_id")?;
        let children = table.ints(group, "child_id")?;
        let kinds = table.ints(group, "kind")?;
        let rows = children.iter().zip(&parents).zip(&kinds);
        // What is put together has the buffer of a fragment, which was there before.
        let new = rows.filter(|((c, p), kind)| c != p && **kind != LineageKind::Reassembly as i64);
        out.extend(new.map(|((child, _), _)| *child));
    }
    Ok(out)
}

/// Why, CPU, and interface that it came in by.
type Cause = (Difference, i64, (i64, i64));

/// The number columns of one row group.
struct Group {
    id: Vec<i64>,
    last: Vec<i64>,
    end: Vec<i64>,
    verdict: Vec<i64>,
    cpu: Vec<i64>,
    if_in: Vec<i64>,
    in_netns: Vec<i64>,
    if_out: Vec<i64>,
    out_netns: Vec<i64>,
}

impl Group {
    fn read(table: &TableFile, group: usize) -> Result<Group> {
        let id = table.ints(group, "packet_id")?;
        let n = id.len();
        // Logs of earlier versions lack the newest columns.
        let newer = |name| -> Result<Vec<i64>> {
            let mut values = table.ints(group, name)?;
            values.resize(n, NULL);
            Ok(values)
        };
        Ok(Group {
            last: table.ints(group, "last_ns")?,
            end: newer("end_ns")?,
            verdict: table.ints(group, "verdict")?,
            cpu: newer("cpu")?,
            if_in: table.ints(group, "if_in")?,
            in_netns: table.ints(group, "if_in_netns")?,
            if_out: table.ints(group, "if_out")?,
            out_netns: table.ints(group, "if_out_netns")?,
            id,
        })
    }
}
