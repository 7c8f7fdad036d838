//! What programs reported of their work while a packet was under way in their threads.

use super::EventOfPacket;
use crate::error::Result;
use crate::store::{Store, places};
use kpat_model::{Context, EventKind, Stage};
use kpat_store::tables::{CallRow, EventRow, PacketRow, SocketRow};
use std::collections::{BTreeMap, BTreeSet};

impl Store {
    /// Of the threads that handled the packet, or sent or received it: what happened in its life, what lasted over a part of it, each by its end,
    /// and what had begun and did not end in the log. By time of the beginning. What a call asked of another connection's socket is left out; a request whose descriptor
    /// is of another, only where some say that they are about the packet's (a proxy's packets to a server behind it are the request's, too).
    pub(super) fn programs_of(&self, packet: &PacketRow, calls: &[CallRow]) -> Result<Vec<EventOfPacket>> {
        let table = self.table::<EventRow>()?;
        let program = i64::from(EventKind::Program as i32);
        // A row group's kinds lie on both sides of this one, and most have none of it.
        let mut those: Vec<(usize, Vec<u32>)> = Vec::new();
        for group in table.groups_where("kind", &(program..=program)) {
            let places = places(&table, group, "kind", |kind| kind == program)?;
            if !places.is_empty() {
                those.push((group, places));
            }
        }
        if those.is_empty() {
            return Ok(Vec::new());
        }
        let of_task = calls.iter().filter(|c| c.ctx == Context::Task as i32);
        let threads: BTreeSet<i32> = of_task.map(|c| c.pid).chain(packet.pid).collect();
        let (mut found, mut begun) = (Vec::new(), Vec::new());
        // By thread and beginning, as what ends does not say it again.
        let mut connections: BTreeMap<(i32, i64), i64> = BTreeMap::new();
        let mut ended: BTreeSet<(i32, i64)> = BTreeSet::new();
        let mut take = |row: EventRow| {
            let Some(pid) = row.pid.filter(|p| threads.contains(p)) else {
                return;
            };
            let end = row.a == Stage::End as i64;
            if !end && row.b != 0 {
                connections.insert((pid, row.at_ns), row.b);
            }
            let from = if end { began(&row) } else { row.at_ns };
            if end {
                ended.insert((pid, from));
            }
            if from <= packet.last_ns && (row.at_ns >= packet.first_ns || row.a == Stage::Begin as i64) {
                if row.a == Stage::Begin as i64 { &mut begun } else { &mut found }.push(row);
            }
        };
        for (group, places) in those {
            table.rows_at::<EventRow>(group, &places)?.into_iter().for_each(&mut take);
        }
        begun.retain(|b| b.pid.is_some_and(|pid| !ended.contains(&(pid, b.at_ns))));
        found.append(&mut begun);
        let ports = (packet.sport, packet.dport);
        let sockets: BTreeSet<i64> = found.iter().filter_map(|row| row.socket_id).collect();
        // Of sockets that it may be from or to. One without ports of its own (bound to none) may be anybody's.
        let mut fitting: BTreeSet<i64> = BTreeSet::new();
        if !sockets.is_empty() {
            for s in self.all::<SocketRow>()?.into_iter().filter(|s| sockets.contains(&s.socket_id)) {
                let port = |port: i32, of: Option<i32>| port == 0 || of == Some(port);
                let [out, back] = [ports, (ports.1, ports.0)]
                    .map(|(local, peer)| port(s.local_port, local) && port(s.peer_port, peer));
                if out || back {
                    fitting.insert(s.socket_id);
                }
            }
        }
        let of_call = |row: &EventRow| {
            let named = row.pid.is_some_and(|pid| connections.contains_key(&(pid, began(row))));
            row.socket_id.filter(|_| !named)
        };
        found.retain(|row| of_call(row).is_none_or(|socket| fitting.contains(&socket)));
        let own = |row: &EventRow| {
            if let Some(socket) = of_call(row) {
                return Some(fitting.contains(&socket));
            }
            let (local, peer) =
                connections.get(&(row.pid?, began(row))).map(|b| ((b >> 16) as i32, (b & 0xffff) as i32))?;
            let ports = (ports.0?, ports.1?);
            Some(ports == (local, peer) || ports == (peer, local))
        };
        if found.iter().any(|row| own(row) == Some(true)) {
            found.retain(|row| own(row) != Some(false));
        }
        found.sort_by_key(|row| (began(row), row.at_ns));
        Ok(found.into_iter().map(|row| self.explain(row)).collect())
    }
}

/// When what an event says began.
fn began(row: &EventRow) -> i64 {
    let took = if row.a == Stage::End as i64 { row.b.max(0) } else { 0 };
    row.at_ns.saturating_sub(took)
}
