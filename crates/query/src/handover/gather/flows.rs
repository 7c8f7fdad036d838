//! The gap of a flow beside a handover.

use super::tables::is_data;
use crate::codes::verdict;
use crate::error::Result;
use crate::handover::flow::{FlowGap, Received, no_way};
use crate::handover::machine::Handover;
use crate::store::Store;
use kpat_model::{Crossing, EventKind};
use kpat_store::tables::{AppEventRow, EventRow, PacketRow, SocketRow};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::RangeInclusive;

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
    /// When, also before that.
    asked: Received,
    /// Of the other side: the first seen.
    address: String,
    /// This side's, as last seen.
    own: String,
    /// By other interfaces of this host, with the other side's address.
    elsewhere: Vec<(i64, Way, String)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Received,
    Sent,
}

impl Near {
    /// Of the same two ends by another interface, as where a wire is there while the radio has no network: its application missed nothing then. How many were received so.
    fn add_elsewhere(&mut self, (begin_ns, end_ns): (i64, i64)) -> u64 {
        let mut came = 0;
        for (at, way, address) in std::mem::take(&mut self.elsewhere) {
            match way {
                _ if address != self.address => {}
                Way::Received => {
                    came += u64::from((begin_ns..=end_ns).contains(&at));
                    self.received.times.push(at);
                }
                Way::Sent => self.sent.push((at, false)),
            }
        }
        came
    }
}

/// Of the flow with that port, or of the one that received most before the handover. `before`: what was found of the handover of this interface before it, whose gap may go on.
pub(super) fn gap(
    store: &Store,
    h: &Handover,
    port: Option<i32>,
    before: Option<&FlowGap>,
) -> Result<Option<FlowGap>> {
    let own = found(store, h, port)?.map(|own| own.without_pause(before));
    let gone_on = before.filter(|g| g.first_ns.is_none_or(|at| at > h.begin_ns));
    // One that never came again had ended, if another goes on.
    let goes_on = own.as_ref().is_some_and(|own| own.first_ns.is_some());
    let gone_on = gone_on.filter(|g| g.first_ns.is_some() || !goes_on);
    let longer = |g: &&FlowGap| {
        own.as_ref().is_none_or(|own| g.gap_ns().unwrap_or(i64::MAX) > own.gap_ns().unwrap_or(i64::MAX))
    };
    Ok(gone_on.filter(longer).cloned().or(own))
}

fn found(store: &Store, h: &Handover, port: Option<i32>) -> Result<Option<FlowGap>> {
    let until_ns = h.end_ns.saturating_add(AROUND_NS);
    let Some((flow, gap)) = within(store, h, port, until_ns)? else { return Ok(None) };
    if gap.first_ns.is_some() {
        return Ok(Some(gap));
    }
    // What came later, as behind another handover, ends it.
    Ok(match again(store, h, flow, until_ns)? {
        Some(at) => within(store, h, port, at.saturating_add(AROUND_NS))?.map(|(_, gap)| gap),
        None => Some(gap),
    })
}

/// When a flow received something for the first time after that.
fn again(store: &Store, h: &Handover, (proto, sport, dport): Flow, after_ns: i64) -> Result<Option<i64>> {
    let table = store.table::<PacketRow>()?;
    let later = after_ns..=i64::MAX;
    let same = |netns: Option<i64>| h.netns.is_none() || netns.is_none() || netns == h.netns;
    let mut first: Option<i64> = None;
    for group in table.groups_where("first_ns", &later) {
        table.each(vec![group], |p: PacketRow| {
            let flow = (p.proto, p.sport, p.dport) == (Some(proto), Some(sport), Some(dport));
            let received =
                p.if_in.is_some_and(|i| h.carries(i)) && same(p.if_in_netns) && p.verdict != verdict::DROPPED;
            if flow && received && p.first_ns > after_ns {
                first = Some(first.map_or(p.first_ns, |at| at.min(p.first_ns)));
            }
        })?;
        if first.is_some() {
            break;
        }
    }
    Ok(first)
}

/// Sends of that flow which found no way to the other side, each with its error. `None`: the log has nothing of applications.
fn failed(
    store: &Store,
    h: &Handover,
    (proto, peer_port, own_port): Flow,
    range: &RangeInclusive<i64>,
) -> Result<Option<Vec<(i64, i32)>>> {
    if !store.manifest.log.sources.iter().any(|s| s.name == "applications") {
        return Ok(None);
    }
    let sockets: Vec<SocketRow> = store.all()?;
    let is_it = |s: &&SocketRow| {
        let peer = s.peer_port == peer_port || s.peer_port == 0;
        let here = h.netns.is_none() || s.netns.is_none() || s.netns == h.netns;
        (s.proto, s.local_port) == (proto, own_port) && peer && here
    };
    let sockets: HashSet<i64> = sockets.iter().filter(is_it).map(|s| s.socket_id).collect();
    let table = store.table::<AppEventRow>()?;
    let mut out = Vec::new();
    table.each(table.groups_where("at_ns", range), |e: AppEventRow| {
        let error = i32::try_from(-e.size_bytes).unwrap_or(0);
        let given = e.crossing == Crossing::ToTransport as i32;
        if given && !no_way(error).is_empty() && sockets.contains(&e.socket_id) && range.contains(&e.at_ns) {
            out.push((e.at_ns, error));
        }
    })?;
    Ok(Some(out))
}

/// How long after the beginning of that time the interface's address was removed.
fn unaddressed(store: &Store, h: &Handover, own: &str, time: RangeInclusive<i64>) -> Result<Option<i64>> {
    let table = store.table::<EventRow>()?;
    let mut first: Option<i64> = None;
    table.each(table.groups_where("at_ns", &time), |e: EventRow| {
        let removed =
            e.kind == EventKind::Address as i32 && e.a == 0 && h.is_of(i32::try_from(e.b).unwrap_or(0));
        let address = e.text.split([' ', '/']).next().unwrap_or_default();
        if removed && address == own && time.contains(&e.at_ns) {
            first = Some(first.map_or(e.at_ns, |at| at.min(e.at_ns)));
        }
    })?;
    Ok(first.map(|at| at - time.start()))
}

fn within(store: &Store, h: &Handover, port: Option<i32>, until_ns: i64) -> Result<Option<(Flow, FlowGap)>> {
    let range = h.begin_ns.saturating_sub(AROUND_NS)..=until_ns;
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
        if p.if_in.is_some_and(|i| h.carries(i)) && same(p.if_in_netns) && !dropped {
            let near = flows.entry((proto, sport, dport)).or_default();
            if early {
                near.received.earlier(p.first_ns);
                return;
            }
            near.received.times.push(p.first_ns);
            near.own = p.dst_addr.unwrap_or_default();
            if near.address.is_empty() {
                near.address = p.src_addr.unwrap_or_default();
            }
            taken += 1;
        } else if p.if_in.is_none() && (p.if_out.is_some_and(|i| h.carries(i)) || dropped) && same(p.netns) {
            let near = flows.entry((proto, dport, sport)).or_default();
            if early {
                near.asked.earlier(p.first_ns);
                return;
            }
            near.sent.push((p.first_ns, dropped));
            taken += 1;
        } else if !early && sport > 0 && dport > 0 && !dropped {
            // What goes on to other hosts is none of an application here.
            let (flow, way, address) = match (p.if_in, p.if_out) {
                (Some(_), None) if same(p.if_in_netns) => ((proto, sport, dport), Way::Received, p.src_addr),
                (None, Some(_)) if same(p.netns) => ((proto, dport, sport), Way::Sent, p.dst_addr),
                _ => return,
            };
            flows.entry(flow).or_default().elsewhere.push((p.first_ns, way, address.unwrap_or_default()));
            taken += 1;
        }
    })?;
    let stop_ns = h.stop.as_ref().map_or(h.begin_ns, |m| m.at_ns);
    let most = flows
        .into_iter()
        .map(|(flow, near)| (near.received.times.iter().filter(|t| **t < stop_ns).count(), flow, near))
        // Its program may have paused.
        .filter(|(.., near)| near.received.before(stop_ns) > 2)
        .max_by_key(|(n, flow, near)| (*n, near.received.before(stop_ns), *flow));
    let Some((_, (proto, sport, dport), mut near)) = most else { return Ok(None) };
    let elsewhere = near.add_elsewhere((h.begin_ns, h.end_ns));
    let Near { mut received, sent, mut asked, address, own, .. } = near;
    received.sort();
    let words = format!("{} from {address} port {sport} to port {dport}", crate::app::protocol(proto));
    asked.times.extend(sent.iter().map(|(at, _)| *at));
    // What failed was asked for, too.
    let failed = failed(store, h, (proto, sport, dport), &range)?;
    asked.times.extend(failed.iter().flatten().map(|(at, _)| *at));
    asked.sort();
    let mut gap = received.gap((h.begin_ns, h.end_ns), words);
    if let Some(g) = &mut gap {
        g.elsewhere = elsewhere;
        g.pauses(&received.times, &asked.times, stop_ns);
        let end_ns = g.first_ns.unwrap_or(*range.end());
        g.sends_known = failed.is_some();
        let all = failed.unwrap_or_default();
        let within_gap = all.iter().filter(|(at, _)| (g.last_ns..end_ns).contains(at));
        let mut errors: BTreeMap<i32, u64> = BTreeMap::new();
        within_gap.for_each(|(_, error)| *errors.entry(*error).or_default() += 1);
        g.failed = errors.values().sum();
        g.error = errors.iter().max_by_key(|(_, n)| **n).map_or(0, |(error, _)| *error);
        if g.paused_ns > 0 && !g.sends_known {
            g.unaddressed_ns = unaddressed(store, h, &own, g.last_ns..=g.last_ns + g.paused_ns)?;
        }
        let within = || sent.iter().filter(|(at, _)| (g.last_ns..end_ns).contains(at));
        (g.sent, g.refused) =
            (within().count() as u64, within().filter(|(_, dropped)| *dropped).count() as u64);
    }
    Ok(gap.map(|g| ((proto, sport, dport), g)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: i64 = 1_000_000;

    /// As recorded of a wire that was there while the radio had no network, of a flow of 200 ms: it went by the wire from 1.4 to 3.4 s.
    #[test]
    fn what_came_by_another_interface_is_not_missing() {
        let near = |address: &str| {
            let mut near = Near { address: "10.9.0.2".into(), ..Near::default() };
            near.received.times = (-40..=0).chain(17..40).map(|i| i * 200 * MS).collect();
            near.elsewhere = (7..17).map(|i| (i * 200 * MS, Way::Received, address.to_owned())).collect();
            let elsewhere = near.add_elsewhere((0, 3_400 * MS));
            near.received.sort();
            let gap = near.received.gap((0, 3_400 * MS), "UDP".into()).expect("it has one");
            (elsewhere, gap.gap_ns().map(|ns| ns / MS))
        };
        assert_eq!(near("10.9.0.2"), (10, Some(1_400)));
        // Of another host.
        assert_eq!(near("10.9.0.3"), (0, Some(3_400)));
    }
}
