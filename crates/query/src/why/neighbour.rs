//! When segments of a connection waited for the link address of the next hop, where packets are in the log, too. TCP takes them for sent, and nothing crossed into
//! the device's queue: its state then calls a full window, a timer, or pacing what is none of these.

use crate::error::Result;
use crate::packet::PacketDetail;
use crate::roles::{NEIGHBOUR, QDISC_IN, XMIT, XMIT_QUEUE};
use crate::store::Store;
use kpat_model::EventKind;
use kpat_store::tables::{CallRow, SocketRow};
use std::collections::BTreeSet;

/// A neighbour keeps some hundred packets at most (`unres_qlen`); each may be asked for again.
const MOST: usize = 4096;
/// Shorter ones are the work of asking: the address was there.
const ASKS_NS: i64 = 200_000;

/// Of what this socket sent: in order, without overlap.
pub(super) fn waits(store: &Store, sender: &SocketRow) -> Result<Vec<(i64, i64)>> {
    let mut asked = BTreeSet::new();
    if !store.roles.iter().any(|r| r.has(NEIGHBOUR)) {
        return Ok(Vec::new());
    }
    let window = sender.first_ns..=sender.last_ns;
    let table = store.table::<CallRow>()?;
    for group in table.groups_where("entry_ns", &window) {
        let [packets, functions, at] = ["packet_id", "func_id", "entry_ns"].map(|c| table.ints(group, c));
        let (packets, functions, at) = (packets?, functions?, at?);
        let these =
            (0..at.len()).filter(|i| window.contains(&at[*i]) && store.role_of(functions[*i]).has(NEIGHBOUR));
        asked.extend(these.map(|i| packets[i]).take(MOST.saturating_sub(asked.len())));
    }
    let mut out = Vec::new();
    for packet in asked {
        let detail = store.packet(packet)?;
        let p = &detail.packet;
        let is = |own: &Option<String>, seen: &Option<String>| own.is_none() || own == seen;
        if p.proto == Some(sender.proto)
            && (p.sport, p.dport) == (Some(sender.local_port), Some(sender.peer_port))
            && is(&sender.local_addr, &p.src_addr)
            && is(&sender.peer_addr, &p.dst_addr)
        {
            out.extend(of_packet(store, &detail, sender.netns));
        }
    }
    Ok(merged(out))
}

/// Those of one packet, in one network namespace: a router may ask, too.
pub(super) fn of_packet(store: &Store, detail: &PacketDetail, netns: Option<i64>) -> Vec<(i64, i64)> {
    let role = |c: &CallRow, which| store.role_of(c.func_id.into()).has(which);
    let within = |at: i64| {
        let place = detail.footprints.iter().rev().find(|f| f.at_ns <= at).or(detail.footprints.first());
        netns.is_none() || place.is_none_or(|f| f.netns.is_none() || f.netns == netns)
    };
    let calls = || detail.calls.iter().map(|c| &c.call);
    let asks = calls().filter(|c| role(c, NEIGHBOUR) && within(c.entry_ns));
    let wait = |from: i64| {
        let goes = calls().filter(|c| role(c, XMIT_QUEUE | QDISC_IN | XMIT)).map(|c| c.entry_ns);
        let drops =
            detail.events.iter().filter(|e| e.event.kind == EventKind::Drop as i32).map(|e| e.event.at_ns);
        let end = goes.chain(drops).filter(|at| *at > from).min();
        (from, end.or(detail.packet.end_ns).unwrap_or(store.end_ns()))
    };
    asks.map(|c| wait(c.entry_ns)).filter(|(from, to)| to - from > ASKS_NS).collect()
}

pub(super) fn merged(mut waits: Vec<(i64, i64)>) -> Vec<(i64, i64)> {
    waits.sort_unstable();
    let mut out: Vec<(i64, i64)> = Vec::new();
    for w in waits {
        match out.last_mut().filter(|last| last.1 >= w.0) {
            Some(last) => last.1 = last.1.max(w.1),
            None => out.push(w),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::Stage;
    use super::super::gather::{HeldBy, mark};
    use super::super::line::{Piece, stage};
    use super::*;
    use crate::app::Held;

    #[test]
    fn a_wait_may_begin_and_end_within_what_tcp_says() {
        let of = HeldBy::of;
        let mut held =
            vec![of(0, 10, Held::Application), of(10, 40, Held::Pacing), of(40, 90, Held::Retransmission)];
        mark(&mut held, &merged(vec![(50, 60), (20, 45), (30, 55)]), |h| h.asks = true);
        let all: Vec<_> = held.iter().map(|h| (h.from_ns, h.to_ns, stage(h, Piece::Kept))).collect();
        let wanted = [
            (0, 10, Stage::Undecided),
            (10, 20, Stage::Pacing),
            (20, 40, Stage::Neighbour),
            (40, 60, Stage::Neighbour),
            (60, 90, Stage::Loss),
        ];
        assert_eq!(all, wanted);
    }
}
