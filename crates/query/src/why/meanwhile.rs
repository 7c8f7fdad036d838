//! Which other connection the peer's process waited for while it owed an answer: a proxy is slow because somebody behind it is. Told only if the log leaves
//! no choice: of all sockets of that process one alone had an answer to wait for in that time, and no record is missing.
//!
//! Rejected: the wait with the longest common time. A process that serves several waits for several, and for which of them this answer had to wait is
//! not in the log.

use super::gather::SYN_SENT;
use crate::app::{Moment, in_order};
use crate::error::{Error, Result};
use crate::store::Store;
use kpat_model::Crossing;
use kpat_store::NULL;
use kpat_store::tables::{AppEventRow, SocketRow};
use std::collections::{HashMap, HashSet};

/// A process with more sockets in that time serves many.
const MOST: usize = 256;

/// The other connection.
#[derive(Clone, Debug)]
pub struct Meanwhile {
    pub socket: SocketRow,
    /// So long its process waited there for an answer,
    pub ns: i64,
    /// of the longest time in which it owed one itself.
    pub of_ns: i64,
}

/// What one socket's process does on it.
#[derive(Default)]
struct Side {
    connects: bool,
    reads_first: bool,
    writes: bool,
    /// Since when what it wrote has no answer.
    since: Option<i64>,
    waits: Vec<(i64, i64)>,
}

impl Side {
    fn write(&mut self, at_ns: i64) {
        self.writes = true;
        self.since = self.since.or(Some(at_ns));
    }

    fn read(&mut self, at_ns: i64) {
        self.reads_first |= !self.writes;
        self.waits.extend(self.since.take().map(|since| (since, at_ns)));
    }

    /// How much of this time it waited, if it is the end that asks.
    fn waited(&self, (from, to): (i64, i64), last_ns: i64) -> i64 {
        if self.reads_first && !self.connects {
            return 0;
        }
        // What is never answered may be told, and not asked: records, counters, a log.
        let asks = self.connects || !self.waits.is_empty();
        let open = self.since.filter(|_| asks).map(|since| (since, last_ns.max(to)));
        let common = |w: &(i64, i64)| (w.1.min(to) - w.0.max(from)).max(0);
        self.waits.iter().chain(&open).map(common).sum()
    }
}

/// While `peer`, of this log, had read something and not yet written, for the longest such time. `asks`: the other end of its connection, if it is in this log;
/// where both are one process's, that one waits for nobody else there.
pub(super) fn find(store: &Store, peer: &SocketRow, asks: Option<i64>) -> Result<Option<Meanwhile>> {
    let process = |s: &SocketRow| s.pid.map(|pid| store.process(pid, s.last_ns).map_or(pid, |p| p.tgid));
    let Some(own) = process(peer) else { return Ok(None) };
    let Some(owed) = owed(store, peer)? else { return Ok(None) };
    let sockets = store.sockets()?;
    let used = used(store, own, owed)?;
    let of_connection = |s: &SocketRow| [Some(peer.socket_id), asks].contains(&Some(s.socket_id));
    let is = |s: &&SocketRow| !of_connection(s) && s.first_ns < owed.1 && s.last_ns > owed.0;
    let is_own = |s: &&SocketRow| process(s) == Some(own) || used.contains(&s.socket_id);
    let others: Vec<&SocketRow> = sockets.rows.iter().filter(is).filter(is_own).collect();
    if others.is_empty() || others.len() > MOST {
        return Ok(None);
    }
    let ids: Vec<i64> = others.iter().map(|s| s.socket_id).collect();
    let wanted: HashSet<i64> = ids.iter().copied().collect();
    let mut sides: HashMap<i64, Side> = HashMap::new();
    let mut lost = false;
    in_order(store, &ids, |moment| {
        match moment {
            Moment::Crossing(e) if wanted.contains(&e.socket_id) && e.size_bytes > 0 => {
                let side = sides.entry(e.socket_id).or_default();
                match u8::try_from(e.crossing).ok().and_then(Crossing::from_u8) {
                    Some(Crossing::ToTransport | Crossing::Send) => side.write(e.at_ns),
                    Some(Crossing::Recv) => side.read(e.at_ns),
                    _ => {}
                }
            }
            Moment::State(s) if s.state == SYN_SENT => sides.entry(s.socket_id).or_default().connects = true,
            Moment::Gap(g) => lost |= g.lost > 0 && g.from_ns <= owed.1 && g.to_ns >= owed.0,
            _ => {}
        }
        Ok::<(), Error>(())
    })?;
    if lost {
        return Ok(None);
    }
    // A connection that was taken from a listener is another's question.
    let listens = |s: &SocketRow| sockets.listens(s);
    let waited = |s: &&SocketRow| {
        let side = sides.get(&s.socket_id)?;
        let ns = side.waited(owed, s.last_ns);
        (ns > 0 && (side.connects || !listens(s))).then(|| Meanwhile {
            socket: (*s).clone(),
            ns,
            of_ns: owed.1 - owed.0,
        })
    };
    let mut waiting = others.iter().filter_map(waited);
    let one = waiting.next();
    Ok(if waiting.next().is_some() { None } else { one })
}

/// The sockets that a process used in this time: another may have used them first.
fn used(store: &Store, process: i32, (from, to): (i64, i64)) -> Result<HashSet<i64>> {
    let table = store.table::<AppEventRow>()?;
    let mut out = HashSet::new();
    for group in table.groups_where("at_ns", &(from..=to)) {
        let [at, pids, sockets] = ["at_ns", "pid", "socket_id"].map(|c| table.ints(group, c));
        let (at, pids, sockets) = (at?, pids?, sockets?);
        for i in (0..at.len()).filter(|i| (from..=to).contains(&at[*i]) && pids[*i] != NULL) {
            let pid = pids[i] as i32;
            if !out.contains(&sockets[i]) && store.process(pid, at[i]).map_or(pid, |p| p.tgid) == process {
                out.insert(sockets[i]);
            }
        }
    }
    Ok(out)
}

/// From a read to the write that answers it, or to the socket's end: the longest.
fn owed(store: &Store, peer: &SocketRow) -> Result<Option<(i64, i64)>> {
    let (mut since, mut longest): (Option<i64>, Option<(i64, i64)>) = (None, None);
    let mut over = |from: Option<i64>, to: i64| {
        longest = longest.into_iter().chain(from.map(|from| (from, to))).max_by_key(|(from, to)| to - from);
    };
    in_order(store, &[peer.socket_id], |moment| {
        if let Moment::Crossing(e) = moment
            && e.socket_id == peer.socket_id
            && e.size_bytes > 0
        {
            match u8::try_from(e.crossing).ok().and_then(Crossing::from_u8) {
                Some(Crossing::ToTransport | Crossing::Send) => over(since.take(), e.at_ns),
                Some(Crossing::Recv) => since = Some(e.at_ns),
                _ => {}
            }
        }
        Ok::<(), Error>(())
    })?;
    over(since.take(), peer.last_ns);
    Ok(longest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_asks_waits() {
        let side = |events: &[(char, i64)], connects| {
            let mut side = Side { connects, ..Side::default() };
            events.iter().for_each(|(what, at)| if *what == 'w' { side.write(*at) } else { side.read(*at) });
            side
        };
        let asks = side(&[('w', 10), ('w', 12), ('r', 50), ('r', 52), ('w', 60)], false);
        assert_eq!(asks.waited((0, 100), 90), 40 + 40, "the last has no answer");
        assert_eq!(asks.waited((20, 55), 90), 30);
        assert_eq!(asks.waited((51, 59), 90), 0);
        assert_eq!(side(&[('w', 10), ('w', 20)], false).waited((0, 100), 90), 0, "nobody answers");
        assert_eq!(
            side(&[('w', 10), ('w', 20)], true).waited((0, 100), 90),
            90,
            "nobody answers yet who was called"
        );
        // Another's question: what follows an answer is the next one.
        let serves = [('r', 10), ('w', 20), ('r', 50)];
        assert_eq!(side(&serves, false).waited((0, 100), 90), 0);
        assert_eq!(side(&serves, true).waited((0, 100), 90), 30, "who connects may be told something first");
    }
}
