//! The traffic that applications asked for, free of what the protocol made of it: per connection and direction who wrote how
//! much when, and what had been read before, so that it can be played again over another network.
//!
//! A connection has two ends. Where the log has both, each one's writes are known. Where it has one, the other's are taken from
//! what was read here: their sizes are then those of the reads, their times what the network made of them, and the end says
//! so. [`As::Network`] gives instead what TCP handed to the network, for those who ask what becomes of such a trace.

use super::given_on;
use super::order::{Moment, Only, in_order};
use crate::error::Error;
use crate::store::Store;
use kpat_model::Crossing;
use kpat_store::tables::{GapRow, SocketRow};
use std::collections::{BTreeMap, HashMap, HashSet};

/// Which traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum As {
    /// Application to socket.
    Application,
    /// Device queue to driver, behind segmentation by the kernel: what a sniffer on that host sees. Each byte once: what is sent
    /// again is left out.
    Network,
}

/// One of a connection's ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Side {
    /// The end that most likely connected: the one with the higher port.
    A,
    B,
}

impl Side {
    pub fn other(self) -> Side {
        if self == Side::A { Side::B } else { Side::A }
    }
}

/// How an end's writes are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    Written,
    /// It is not in the log: from what the other end read.
    Read,
}

#[derive(Clone, Debug)]
pub struct End {
    pub socket_id: Option<i64>,
    pub addr: Option<String>,
    pub port: i32,
    pub process: Option<String>,
    pub seen: Seen,
}

#[derive(Clone, Debug)]
pub struct Connection {
    /// From 1, in the order of first writes.
    pub number: i64,
    /// First write, since the trace's first.
    pub at_ns: i64,
    pub proto: i32,
    pub version: i32,
    pub a: End,
    pub b: End,
}

/// Bytes that an end gave to its socket in one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write {
    pub connection: i64,
    pub side: Side,
    /// Since the connection's first write.
    pub at_ns: i64,
    pub size_bytes: i64,
    /// What this end had read by then, if that is more than before its last write.
    pub after: Option<After>,
}

/// An answer, and to what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct After {
    /// All bytes that this end had read of the connection.
    pub read_bytes: i64,
    /// From the last of these reads to the write.
    pub think_ns: i64,
}

/// What comes next.
#[derive(Clone, Copy, Debug)]
pub enum Item<'a> {
    Connection(&'a Connection),
    Write(Write),
    /// Events are missing; with its beginning since the trace's first write.
    Gap(&'a GapRow, i64),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    pub connections: i64,
    pub writes: i64,
    pub bytes: i64,
    /// Events that are missing while the trace went on.
    pub lost: i64,
}

/// What one end did so far.
#[derive(Default)]
struct Progress {
    read: i64,
    read_at: i64,
    /// Of `read`, what the last write comes after.
    reported: i64,
    /// What of TCP's stream was handed to the network, came from it.
    sent: Covered,
    came: Covered,
}

/// Which bytes of a stream have passed. Segments may come out of order (two CPUs that send, a reordering network), so that the
/// highest byte alone does not say which are missing below it.
#[derive(Default)]
struct Covered {
    top: i64,
    /// When something last passed.
    at_ns: i64,
    /// Below `top`, not passed yet: from; to, and when what lies before it passed.
    holes: BTreeMap<i64, (i64, i64)>,
}

impl Covered {
    /// How many of these bytes pass for the first time. What lies before offset 0, where the log began, does not count.
    fn fresh(&mut self, from: i64, to: i64, at_ns: i64) -> i64 {
        let mut new = 0;
        while let Some((&a, &(b, since))) = self.holes.range(..to).next_back().filter(|(_, (b, _))| *b > from)
        {
            self.holes.remove(&a);
            new += b.min(to) - a.max(from);
            if b > to {
                self.holes.insert(to, (b, since));
            }
            if a < from {
                self.holes.insert(a, (from, since));
            }
        }
        if to > self.top {
            if from > self.top {
                self.holes.insert(self.top, (from, self.at_ns));
            }
            new += to - from.max(self.top);
            self.top = to;
        }
        self.at_ns = at_ns;
        new
    }

    /// The peer has everything before `to`. What of it was never seen to pass, passed unseen; since when, if any: a kernel may
    /// run no probe in some task's context, and counts that nowhere. SYN and FIN take a number each and hold no byte.
    fn acknowledged(&mut self, to: i64) -> Option<i64> {
        let mut since = None;
        while let Some((&a, &(b, at))) = self.holes.first_key_value().filter(|(_, (b, _))| *b <= to) {
            self.holes.remove(&a);
            if (a, b) != (0, 1) {
                since.get_or_insert(at);
            }
        }
        if self.top > 0 && to > self.top + 1 {
            since.get_or_insert(self.at_ns);
            self.top = to;
        }
        since
    }
}

struct Open {
    /// The two sockets; the place of the other's progress where it is not in the log.
    a: Option<usize>,
    b: Option<usize>,
    /// 0: nothing was written yet.
    number: i64,
    first_ns: i64,
    ends: [Progress; 2],
}

const TCP: i32 = 6;

/// An end as others see it, to find its other end.
type Name<'a> = (i32, Option<&'a str>, i32, Option<&'a str>, i32);

/// Which sockets are one connection.
fn pairs(sockets: &[SocketRow]) -> Vec<Open> {
    fn own(s: &SocketRow) -> Name<'_> {
        (s.proto, s.local_addr.as_deref(), s.local_port, s.peer_addr.as_deref(), s.peer_port)
    }
    let mut by_name: HashMap<Name<'_>, Vec<usize>> = HashMap::new();
    for (i, s) in sockets.iter().enumerate() {
        by_name.entry(own(s)).or_default().push(i);
    }
    let asked: HashSet<(i32, i32)> =
        sockets.iter().filter(|s| s.peer_port != 0).map(|s| (s.proto, s.peer_port)).collect();
    let mut taken = vec![false; sockets.len()];
    let mut out = Vec::new();
    for (i, s) in sockets.iter().enumerate() {
        // nobody knows what protocol one speaks that was never announced
        if s.proto == 0 {
            continue;
        }
        // an unconnected socket whose traffic its partners tell
        if std::mem::replace(&mut taken[i], true)
            || s.peer_port == 0 && asked.contains(&(s.proto, s.local_port))
        {
            continue;
        }
        let mirror = (s.proto, s.peer_addr.as_deref(), s.peer_port, s.local_addr.as_deref(), s.local_port);
        let together =
            |k: &usize| !taken[*k] && sockets[*k].first_ns <= s.last_ns && sockets[*k].last_ns >= s.first_ns;
        let other = by_name.get(&mirror).filter(|_| s.peer_port != 0);
        let other = other.and_then(|k| k.iter().copied().find(together));
        if let Some(k) = other {
            taken[k] = true;
        }
        let (a, b) = if s.local_port >= s.peer_port { (Some(i), other) } else { (other, Some(i)) };
        out.push(Open { a, b, number: 0, first_ns: 0, ends: Default::default() });
    }
    out
}

/// The trace of these sockets' connections (empty: of all), in order of time.
pub fn trace<E: From<Error>>(
    store: &Store,
    only: &[i64],
    layer: As,
    mut each: impl FnMut(Item<'_>) -> std::result::Result<(), E>,
) -> std::result::Result<Totals, E> {
    let sockets: Vec<SocketRow> = store.all()?;
    let mut open = pairs(&sockets);
    let asked = Only::of(only);
    let wanted = |i: Option<usize>| i.is_some_and(|i| asked.has(sockets[i].socket_id));
    open.retain(|o| wanted(o.a) || wanted(o.b));
    let mut place: HashMap<i64, (usize, Side)> = HashMap::new();
    for (k, o) in open.iter().enumerate() {
        for (i, side) in [(o.a, Side::A), (o.b, Side::B)] {
            i.and_then(|i| place.insert(sockets[i].socket_id, (k, side)));
        }
    }
    let ids: Vec<i64> = if only.is_empty() { Vec::new() } else { place.keys().copied().collect() };
    let mut totals = Totals::default();
    let mut start = None;
    in_order(store, &ids, |moment| {
        let e = match moment {
            Moment::State(_) => return Ok(()),
            Moment::Gap(g) => {
                totals.lost += g.lost;
                return each(Item::Gap(g, start.map_or(0, |s| g.from_ns - s)));
            }
            Moment::Crossing(e) => e,
        };
        let Some(&(k, side)) = place.get(&e.socket_id) else { return Ok(()) };
        let o = &mut open[k];
        if let Some(since) = o.unseen(e, side, layer) {
            totals.lost += 1;
            let g = GapRow { from_ns: since, to_ns: e.at_ns, cpu: e.cpu, lost: 1 };
            each(Item::Gap(&g, start.map_or(0, |s| since - s)))?;
        }
        let alone = o.a.is_none() || o.b.is_none();
        let Some((by, size)) = o.written(e, side, alone, layer, &sockets) else { return Ok(()) };
        if o.number == 0 {
            let start = *start.get_or_insert(e.at_ns);
            totals.connections += 1;
            (o.number, o.first_ns) = (totals.connections, e.at_ns);
            each(Item::Connection(&o.described(store, &sockets, e.at_ns - start)))?;
        }
        totals.writes += 1;
        totals.bytes += size;
        let after = o.after(by, e.at_ns);
        each(Item::Write(Write {
            connection: o.number,
            side: by,
            at_ns: e.at_ns - o.first_ns,
            size_bytes: size,
            after,
        }))
    })?;
    Ok(totals)
}

impl Open {
    fn end(&mut self, side: Side) -> &mut Progress {
        &mut self.ends[side as usize]
    }

    /// Since when bytes have left unseen that this acknowledgement proves to have left.
    fn unseen(&mut self, e: &kpat_store::tables::AppEventRow, side: Side, layer: As) -> Option<i64> {
        let acked = layer == As::Network && e.crossing == Crossing::Acked as i32;
        let from = e.offset.filter(|_| acked)?;
        self.end(side).sent.acknowledged(from + e.size_bytes)
    }

    /// Which end wrote how much at this event, if any did; what was read is kept. `side`: whose event it is. `alone`: the other
    /// end is not in the log.
    fn written(
        &mut self,
        e: &kpat_store::tables::AppEventRow,
        side: Side,
        alone: bool,
        layer: As,
        sockets: &[SocketRow],
    ) -> Option<(Side, i64)> {
        let what = u8::try_from(e.crossing).ok().and_then(Crossing::from_u8)?;
        let of = self.a.or(self.b).map(|i| &sockets[i])?;
        let tcp = of.proto == TCP;
        // a stream has no empty write; a datagram may be empty
        if e.size_bytes < i64::from(tcp) {
            return None;
        }
        let connected = of.peer_port != 0;
        let fresh = |passed: &mut Covered| match e.offset {
            Some(from) => passed.fresh(from, from + e.size_bytes, e.at_ns),
            None => e.size_bytes,
        };
        match (layer, what) {
            (As::Application, Crossing::Send) => {
                if alone {
                    self.end(side.other()).reads(e.size_bytes, e.at_ns);
                }
                Some((side, e.size_bytes))
            }
            (As::Application, Crossing::Recv) => {
                self.end(side).reads(e.size_bytes, e.at_ns);
                (alone && connected).then_some((side.other(), e.size_bytes))
            }
            (As::Network, Crossing::ToDriver) if !given_on(e) => {
                let new = fresh(&mut self.end(side).sent);
                (new > 0 || !tcp).then_some((side, new))
            }
            (As::Network, Crossing::FromDevice) if alone && connected => {
                let new = fresh(&mut self.end(side).came);
                (new > 0 || !tcp).then_some((side.other(), new))
            }
            _ => None,
        }
    }

    fn after(&mut self, by: Side, at_ns: i64) -> Option<After> {
        let p = self.end(by);
        let more = p.read > p.reported;
        p.reported = p.read;
        more.then_some(After { read_bytes: p.read, think_ns: at_ns - p.read_at })
    }

    fn described(&self, store: &Store, sockets: &[SocketRow], at_ns: i64) -> Connection {
        let process = |s: &SocketRow| store.socket_process(s).map(str::to_owned);
        let end = |own: Option<usize>, other: Option<usize>| match (own, other) {
            (Some(i), _) => {
                let s = &sockets[i];
                let (addr, port) = (s.local_addr.clone(), s.local_port);
                End { socket_id: Some(s.socket_id), addr, port, process: process(s), seen: Seen::Written }
            }
            (None, other) => {
                let s = other.map(|i| &sockets[i]);
                End {
                    socket_id: None,
                    addr: s.and_then(|s| s.peer_addr.clone()),
                    port: s.map_or(0, |s| s.peer_port),
                    process: None,
                    seen: Seen::Read,
                }
            }
        };
        let of = self.a.or(self.b).map(|i| &sockets[i]);
        Connection {
            number: self.number,
            at_ns,
            proto: of.map_or(0, |s| s.proto),
            version: of.map_or(0, |s| s.version),
            a: end(self.a, self.b),
            b: end(self.b, self.a),
        }
    }
}

impl Progress {
    fn reads(&mut self, bytes: i64, at_ns: i64) {
        self.read += bytes;
        self.read_at = at_ns;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn socket(socket_id: i64, proto: i32, ports: (i32, i32), life: (i64, i64)) -> SocketRow {
        let addr =
            |mine: bool| Some(if mine == (ports.0 > ports.1) { "10.0.0.1" } else { "10.0.0.2" }.to_owned());
        SocketRow {
            socket_id,
            proto,
            local_addr: addr(true),
            local_port: ports.0,
            peer_addr: addr(false),
            peer_port: ports.1,
            first_ns: life.0,
            last_ns: life.1,
            ..Default::default()
        }
    }

    /// Whatever the order and however often a piece passes, each byte counts once.
    #[test]
    fn each_byte_counts_once() {
        let mut below = kpat_model::random::below(7);
        let mut random = |n: i64| below(n as u64) as i64;
        for _ in 0..2000 {
            let (mut covered, mut bytes) = (Covered::default(), [false; 60]);
            for _ in 0..30 {
                let from = random(60) - 5;
                let to = (from + 1 + random(12)).min(60);
                let of = &mut bytes[from.max(0) as usize..to.max(0) as usize];
                assert_eq!(
                    covered.fresh(from, to, 0),
                    of.iter().filter(|b| !**b).count() as i64,
                    "{from}..{to}"
                );
                of.fill(true);
            }
        }
    }

    /// What is acknowledged and was never seen to leave is a gap once; SYN and FIN are none.
    #[test]
    fn what_left_unseen_is_a_gap() {
        let mut c = Covered::default();
        c.fresh(1, 1449, 10);
        c.fresh(2897, 4345, 20);
        assert_eq!(c.acknowledged(1449), None);
        assert_eq!(c.acknowledged(4345), Some(10));
        assert_eq!((c.acknowledged(4346), c.fresh(1449, 2897, 30)), (None, 0));
        assert_eq!((c.acknowledged(6000), c.acknowledged(6000)), (Some(30), None));
    }

    /// Both ends of a port that is used twice belong to those of their time; a listener that its partners tell of is left out.
    #[test]
    fn two_sockets_are_one_connection() {
        let mut sockets = vec![
            socket(1, 6, (40000, 80), (0, 10)),
            socket(2, 6, (40000, 80), (20, 30)),
            socket(3, 6, (80, 40000), (21, 31)),
            socket(4, 6, (80, 40000), (1, 11)),
            socket(5, 17, (5000, 53), (0, 9)),
            socket(6, 17, (53, 0), (0, 9)),
            socket(7, 17, (99, 0), (0, 9)),
        ];
        sockets[5].peer_addr = None;
        let name = |i: Option<usize>| i.map(|i| sockets[i].socket_id);
        let got: Vec<_> = pairs(&sockets).iter().map(|o| (name(o.a), name(o.b))).collect();
        let want = [(Some(1), Some(4)), (Some(2), Some(3)), (Some(5), None), (Some(7), None)];
        assert_eq!(got, want);
    }
}
