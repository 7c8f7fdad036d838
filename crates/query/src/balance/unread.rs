//! Delivered packets that nobody freed: do they lie unread in their sockets, or did the recording miss their end?
//!
//! A socket's queue is read in order, so a packet of whose flow a later one was read and freed is not waiting there any more:
//! its end was missed. Where nothing later of the flow was freed, the packet waits. Rejected: to take each delivered
//! packet without an end for a waiting one, which would hide whatever a recording misses.

use super::{Group, IDLE_NS};
use crate::codes::verdict;
use crate::error::Result;
use kpat_model::hash::{Map, Set};
use kpat_store::{NULL, TableFile};

/// Namespace it came in by, protocol, ports.
type Flow = [i64; 4];

/// Packets that waited in their sockets when the log ended.
pub fn unread(table: &TableFile, log_end: i64) -> Result<Set<i64>> {
    let mut waiting: Vec<(i64, i64, Flow)> = Vec::new();
    let mut freed: Map<Flow, i64> = Map::default();
    let delivered = |rows: &Group, i: usize| rows.verdict[i] == i64::from(verdict::DELIVERED);
    for group in 0..table.groups() {
        let rows = Group::read(table, group)?;
        let idle = |i: usize| rows.last[i] < log_end.saturating_sub(IDLE_NS);
        let open: Vec<usize> =
            (0..rows.id.len()).filter(|i| delivered(&rows, *i) && rows.end[*i] == NULL && idle(*i)).collect();
        if open.is_empty() {
            continue;
        }
        let flows = flows(table, group, &rows)?;
        for i in open {
            freed.insert(flows[i], i64::MIN);
            waiting.push((rows.id[i], rows.last[i], flows[i]));
        }
    }
    if waiting.is_empty() {
        return Ok(Set::default());
    }
    for group in 0..table.groups() {
        let rows = Group::read(table, group)?;
        let flows = flows(table, group, &rows)?;
        for i in (0..rows.id.len()).filter(|i| delivered(&rows, *i) && rows.end[*i] != NULL) {
            if let Some(latest) = freed.get_mut(&flows[i]) {
                *latest = rows.first[i].max(*latest);
            }
        }
    }
    let waits =
        waiting.into_iter().filter(|(_, last, flow)| freed.get(flow).is_none_or(|latest| latest <= last));
    Ok(waits.map(|(id, ..)| id).collect())
}

fn flows(table: &TableFile, group: usize, rows: &Group) -> Result<Vec<Flow>> {
    let (proto, sport, dport) =
        (table.ints(group, "proto")?, table.ints(group, "sport")?, table.ints(group, "dport")?);
    Ok((0..rows.id.len()).map(|i| [rows.in_netns[i], proto[i], sport[i], dport[i]]).collect())
}
