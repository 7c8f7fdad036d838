//! Delivered packets that nobody freed: do they lie unread in their sockets, or did the recording miss their end?
//!
//! A socket's queue is read in order, so a packet of whose flow a later one was read and freed is not waiting there any more:
//! its end was missed. Where nothing later of the flow was freed, the packet waits. Rejected: to take each delivered
//! packet without an end for a waiting one, which would hide whatever a recording misses.

use super::IDLE_NS;
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
    let delivered = i64::from(verdict::DELIVERED);
    for group in 0..table.groups() {
        let (fates, ends, last) =
            (table.ints(group, "verdict")?, table.ints(group, "end_ns")?, table.ints(group, "last_ns")?);
        let idle = |i: usize| last[i] < log_end.saturating_sub(IDLE_NS);
        let open: Vec<usize> =
            (0..last.len()).filter(|i| fates[*i] == delivered && ends[*i] == NULL && idle(*i)).collect();
        if open.is_empty() {
            continue;
        }
        let (ids, flows) = (table.ints(group, "packet_id")?, flows(table, group)?);
        for i in open {
            freed.insert(flows[i], i64::MIN);
            waiting.push((ids[i], last[i], flows[i]));
        }
    }
    if waiting.is_empty() {
        return Ok(Set::default());
    }
    for group in 0..table.groups() {
        let (fates, ends, first) =
            (table.ints(group, "verdict")?, table.ints(group, "end_ns")?, table.ints(group, "first_ns")?);
        let flows = flows(table, group)?;
        for i in (0..first.len()).filter(|i| fates[*i] == delivered && ends[*i] != NULL) {
            if let Some(latest) = freed.get_mut(&flows[i]) {
                *latest = first[i].max(*latest);
            }
        }
    }
    let waits =
        waiting.into_iter().filter(|(_, last, flow)| freed.get(flow).is_none_or(|latest| latest <= last));
    Ok(waits.map(|(id, ..)| id).collect())
}

fn flows(table: &TableFile, group: usize) -> Result<Vec<Flow>> {
    let [netns, proto, sport, dport] =
        ["if_in_netns", "proto", "sport", "dport"].map(|column| table.ints(group, column));
    let (netns, proto, sport, dport) = (netns?, proto?, sport?, dport?);
    Ok((0..netns.len()).map(|i| [netns[i], proto[i], sport[i], dport[i]]).collect())
}
