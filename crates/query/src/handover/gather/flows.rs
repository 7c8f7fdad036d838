//! The gap of a flow beside a handover.

use super::tables::is_data;
use crate::codes::verdict;
use crate::error::Result;
use crate::handover::flow::{FlowGap, Received};
use crate::handover::machine::Handover;
use crate::store::Store;
use kpat_store::tables::PacketRow;
use std::collections::HashMap;

/// How long before and after it a flow is looked at.
const AROUND_NS: i64 = 5_000_000_000;
/// How long before that for its pace.
const EARLIER_NS: i64 = 30_000_000_000;
/// Packets of all flows.
const MOST: usize = 500_000;

/// Protocol and ports of the other side and of this one: with another network both addresses may be others.
type Flow = (i32, i32, i32);

/// What of a flow is near the handover.
#[derive(Default)]
struct Near {
    received: Received,
    /// When, and whether it was dropped.
    sent: Vec<(i64, bool)>,
    /// Of the other side: the first seen.
    address: String,
}

/// Of the flow with that port, or of the one that received most before the handover.
pub(super) fn gap(store: &Store, h: &Handover, port: Option<i32>) -> Result<Option<FlowGap>> {
    let range = h.begin_ns.saturating_sub(AROUND_NS)..=h.end_ns.saturating_add(AROUND_NS);
    let table = store.table::<PacketRow>()?;
    let mut flows: HashMap<Flow, Near> = HashMap::new();
    let mut taken = 0usize;
    let earlier = range.start().saturating_sub(EARLIER_NS)..=*range.end();
    table.each(table.groups_where("first_ns", &earlier), |p: PacketRow| {
        if !earlier.contains(&p.first_ns) || taken >= MOST {
            return;
        }
        let early = p.first_ns < *range.start();
        if early && flows.len() >= MOST {
            return;
        }
        let wide = |n: Option<i32>| n.map_or(-1, i64::from);
        if !is_data(wide(p.proto), wide(p.sport), wide(p.dport), wide(p.icmp_kind)) {
            return;
        }
        let (proto, sport, dport) = (p.proto.unwrap_or(0), p.sport.unwrap_or(0), p.dport.unwrap_or(0));
        if port.is_some_and(|n| n != sport && n != dport) {
            return;
        }
        let same = |netns: Option<i64>| h.netns.is_none() || netns.is_none() || netns == h.netns;
        let dropped = p.verdict == verdict::DROPPED;
        if p.if_in.is_some_and(|i| h.is_of(i)) && same(p.if_in_netns) && !dropped {
            let near = flows.entry((proto, sport, dport)).or_default();
            if early {
                near.received.earlier(p.first_ns);
                return;
            }
            near.received.times.push(p.first_ns);
            if near.address.is_empty() {
                near.address = p.src_addr.unwrap_or_default();
            }
            taken += 1;
        } else if !early
            && p.if_in.is_none()
            && (p.if_out.is_some_and(|i| h.is_of(i)) || dropped)
            && same(p.netns)
        {
            flows.entry((proto, dport, sport)).or_default().sent.push((p.first_ns, dropped));
            taken += 1;
        }
    })?;
    let stop_ns = h.stop.as_ref().map_or(h.begin_ns, |m| m.at_ns);
    let most = flows
        .into_iter()
        .map(|(flow, near)| (near.received.times.iter().filter(|t| **t < stop_ns).count(), flow, near))
        .filter(|(n, ..)| *n > 2)
        .max_by_key(|(n, flow, _)| (*n, *flow));
    let Some((_, (proto, sport, dport), Near { mut received, sent, address })) = most else {
        return Ok(None);
    };
    received.sort();
    let words = format!("{} from {address} port {sport} to port {dport}", crate::app::protocol(proto));
    let mut gap = received.gap((h.begin_ns, h.end_ns), words);
    if let Some(g) = &mut gap {
        let end_ns = g.first_ns.unwrap_or(*range.end());
        let within = || sent.iter().filter(|(at, _)| (g.last_ns..end_ns).contains(at));
        (g.sent, g.refused) =
            (within().count() as u64, within().filter(|(_, dropped)| *dropped).count() as u64);
    }
    Ok(gap)
}
