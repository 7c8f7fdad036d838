//! Bytes from application to application: both ends of a TCP connection in one log, or in the logs of several devices.
//!
//! The two sockets are known by their addresses and by their sequence numbers ([`pair`]); a byte has one number at both
//! ends, so each range that was written is found in what was read, with the moment of every crossing between ([`life`]).
//! Two kernels' clocks are related by what cannot be otherwise: nothing comes before it was sent, nothing is acknowledged
//! before it came ([`clock`]). So no capture is needed, and each time has its bound.

mod clock;
mod life;
mod pair;

use super::{Spread, order::Ordered};
use crate::abreast::Progress;
use crate::error::{Error, Result};
use crate::store::Store;
pub use clock::Clock;
use kpat_model::Crossing;
use kpat_store::tables::*;
pub(crate) use life::Lives;
pub use life::{Direction, Life, STAGES, is_received};
pub(crate) use pair::apart;
pub use pair::{End, Found, Pair};
use std::collections::HashMap;

/// A kernel whose log takes part.
pub struct Host<'a> {
    pub store: &'a Store,
    /// Equal: one kernel, one clock. Empty: not known.
    pub boot_id: String,
}

/// A connection with both its ends.
#[derive(Clone, Debug)]
pub struct Connection {
    pub pair: Pair,
    /// How the second end's clock relates to the first's; `None`: not at all, so nothing is known of the way between.
    pub clock: Option<Clock>,
    /// What the first end sends to the second, and back.
    pub directions: [Direction; 2],
}

/// A leg of the way, of all bytes that took it.
#[derive(Clone, Debug)]
pub struct Leg {
    pub from: Crossing,
    pub to: Crossing,
    /// Over the wire only after having been sent again.
    pub again: bool,
    /// Weighted by bytes.
    pub ns: Spread,
}

impl Leg {
    pub fn name(&self) -> String {
        use Crossing::*;
        match (self.from, self.to) {
            (a, b) if !is_received(a) && is_received(b) => {
                let further = if b == FromDevice { String::new() } else { format!(" to {}", b.name()) };
                format!("wire{further}{}", if self.again { ", sent again" } else { "" })
            }
            (Ask, ToTransport) => "call to transport".into(),
            (Ask | ToTransport, ToNetwork | ToDevice) => "send queue".into(),
            (ToNetwork, ToDevice) => "network layer, sending".into(),
            (ToDevice, ToDriver) => "device queue".into(),
            (FromDevice, FromNetwork) => "network layer, receiving".into(),
            (FromDevice | FromNetwork, ToSocket) => "transport to socket".into(),
            (ToSocket, Recv) => "receive queue".into(),
            (a, b) => format!("{} to {}", a.name(), b.name()),
        }
    }
}

/// Everything that was found.
#[derive(Clone, Debug, Default)]
pub struct Connections {
    pub connections: Vec<Connection>,
    /// TCP sockets that were connected and whose other end is in none of the logs.
    pub alone: u64,
    /// Sockets that could as well be the end of another connection: not joined.
    pub ambiguous: u64,
}

/// Between which two hosts, and what of them.
type Group = ((usize, usize), Vec<Pair>);

/// All connections of which both ends are there; `only`: those with this socket. `each` is given every byte range's life
/// once it is over, or the log is.
///
/// Memory: the ranges on their way.
///
/// Errors: [`Error::Abandoned`].
pub fn connections(
    hosts: &[Host<'_>],
    only: Option<i64>,
    each: &mut dyn FnMut(&Pair, usize, &Life),
    progress: Progress<'_>,
) -> Result<Connections> {
    let sockets = hosts.iter().map(|h| h.store.all::<SocketRow>()).collect::<Result<Vec<_>>>()?;
    let Found { pairs, alone, ambiguous } = pair::pairs(&sockets);
    let mut groups: Vec<Group> = Vec::new();
    for p in
        pairs.into_iter().filter(|p| only.is_none_or(|id| p.ends.iter().any(|e| e.socket.socket_id == id)))
    {
        let key = (p.ends[0].host, p.ends[1].host);
        match groups.iter_mut().find(|(k, _)| *k == key) {
            Some((_, all)) => all.push(p),
            None => groups.push((key, vec![p])),
        }
    }
    let mut out = Connections { alone, ambiguous, ..Default::default() };
    let all = groups.len() as u64;
    for (n, ((a, b), pairs)) in groups.into_iter().enumerate() {
        progress(n as u64, all).then_some(()).ok_or(Error::Abandoned)?;
        let clock = match one_kernel(hosts, a, b) {
            true => Some(Clock::default()),
            false => clock::relate(hosts[a].store, hosts[b].store, &pairs)?,
        };
        out.connections.extend(follow(&hosts[a], &hosts[b], a == b, pairs, clock, each)?);
    }
    out.connections
        .sort_by_key(|c| std::cmp::Reverse(c.directions.iter().map(Direction::bytes).sum::<i64>()));
    Ok(out)
}

/// The other end of a host's socket, which host's it is, and how that one's clock relates; `None`: it is in none of the logs, or two kernels'
/// clocks cannot be related.
pub(crate) fn other_end(hosts: &[Host<'_>], at: usize, socket: &SocketRow) -> Result<Option<(End, Clock)>> {
    let sockets = hosts.iter().map(|h| h.store.all::<SocketRow>()).collect::<Result<Vec<_>>>()?;
    let found = pair::pairs(&sockets).pairs;
    let is = |e: &End| e.host == at && e.socket.socket_id == socket.socket_id;
    let Some(pair) = found.iter().find(|p| p.ends.iter().any(is)) else { return Ok(None) };
    let far = pair.ends.iter().find(|e| !is(e)).unwrap_or(&pair.ends[1]).clone();
    let (a, b) = (&hosts[at], &hosts[far.host]);
    if one_kernel(hosts, at, far.host) {
        return Ok(Some((far, Clock::default())));
    }
    // All that is between the two kernels, this host first.
    let between = found.iter().filter_map(|p| {
        let own = p.ends.iter().position(|e| e.host == at)?;
        let other = (p.ends[1 - own].host == far.host).then_some(1 - own)?;
        Some(Pair { ends: [p.ends[own].clone(), p.ends[other].clone()] })
    });
    let clock = clock::relate(a.store, b.store, &between.collect::<Vec<_>>())?;
    Ok(clock.map(|clock| (far, clock)))
}

fn one_kernel(hosts: &[Host<'_>], a: usize, b: usize) -> bool {
    a == b || (!hosts[a].boot_id.is_empty() && hosts[a].boot_id == hosts[b].boot_id)
}

/// By socket of one log, its other end.
pub(crate) fn pairs_of(sockets: &[SocketRow]) -> HashMap<i64, i64> {
    let found = pair::pairs(&[sockets.to_vec()]);
    let ids = found.pairs.into_iter().map(|p| p.ends.map(|e| e.socket.socket_id));
    ids.flat_map(|[a, b]| [(a, b), (b, a)]).collect()
}

pub(super) fn rows(store: &Store, sockets: Vec<i64>) -> Result<Ordered<AppEventRow>> {
    let wanted: std::collections::HashSet<i64> = sockets.into_iter().collect();
    Ordered::new(store, "at_ns", |e| e.at_ns, Box::new(move |e: &AppEventRow| wanted.contains(&e.socket_id)))
}

/// What no call took is not therefore unread: splice() and TCP_ZEROCOPY_RECEIVE are in no log, but TCP's state says up to where all was taken.
fn taken_unseen(
    stores: &[&Store; 2],
    one_log: bool,
    whose: &HashMap<(usize, i64), (usize, usize)>,
    lives: &mut [[Lives; 2]],
    pairs: &[Pair],
) -> Result<()> {
    for (log, store) in stores.iter().enumerate().take(if one_log { 1 } else { 2 }) {
        let left = |((l, _), (i, side)): &(&(usize, i64), &(usize, usize))| {
            *l == log && lives[*i][1 - *side].is_left()
        };
        let wanted: HashMap<i64, (usize, usize)> =
            whose.iter().filter(left).map(|((_, id), end)| (*id, *end)).collect();
        if wanted.is_empty() {
            continue;
        }
        let ids: std::collections::HashSet<i64> = wanted.keys().copied().collect();
        let wants = Box::new(move |s: &TcpStateRow| ids.contains(&s.socket_id));
        let mut states = Ordered::new(store, "at_ns", |s: &TcpStateRow| s.at_ns, wants)?;
        let mut last: HashMap<i64, i64> = HashMap::new();
        while states.peek()?.is_some() {
            let Some(s) = states.pop() else { break };
            last.insert(s.socket_id, s.copied_seq);
        }
        for (id, number) in last {
            let (i, side) = wanted[&id];
            if let Some(start) = pairs[i].ends[side].socket.received_seq {
                lives[i][1 - side].taken_to(number, start);
            }
        }
    }
    Ok(())
}

/// All connections between two hosts, in one pass over both their logs.
fn follow(
    a: &Host<'_>,
    b: &Host<'_>,
    one_log: bool,
    pairs: Vec<Pair>,
    clock: Option<Clock>,
    each: &mut dyn FnMut(&Pair, usize, &Life),
) -> Result<Vec<Connection>> {
    let to_first = clock.clone().unwrap_or_default();
    let grace = 2 * to_first.bound_ns;
    let mut lives: Vec<[Lives; 2]> = pairs
        .iter()
        .map(|p| {
            [0, 1].map(|d| Lives::new(p.ends[d].socket.sent_seq, p.ends[1 - d].socket.received_seq, grace))
        })
        .collect();
    // by log and socket: which connection, which end
    let mut whose: HashMap<(usize, i64), (usize, usize)> = HashMap::new();
    for (i, p) in pairs.iter().enumerate() {
        for (side, end) in p.ends.iter().enumerate() {
            whose.insert((if one_log { 0 } else { side }, end.socket.socket_id), (i, side));
        }
    }
    let of = |side: usize| pairs.iter().map(|p| p.ends[side].socket.socket_id).collect::<Vec<_>>();
    let mut logs = match one_log {
        true => vec![rows(a.store, [of(0), of(1)].concat())?],
        false => vec![rows(a.store, of(0))?, rows(b.store, of(1))?],
    };
    let at_first = |log: usize, ns: i64| if log == 1 { to_first.first(ns) } else { ns };
    loop {
        let mut next: Option<(i64, usize)> = None;
        for (n, log) in logs.iter_mut().enumerate() {
            if let Some(at) = log.peek()?.map(|at| at_first(n, at))
                && next.is_none_or(|(t, _)| at < t)
            {
                next = Some((at, n));
            }
        }
        let Some((at, n)) = next else { break };
        let Some(e) = logs[n].pop() else { break };
        let what = u8::try_from(e.crossing).ok().and_then(Crossing::from_u8);
        let (Some(what), Some(&(i, side))) = (what, whose.get(&(n, e.socket_id))) else { continue };
        let direction = if is_received(what) { 1 - side } else { side };
        let pair = &pairs[i];
        lives[i][direction].pass(what, &e, at, &mut |life| each(pair, direction, life));
    }
    taken_unseen(&[a.store, b.store], one_log, &whose, &mut lives, &pairs)?;
    let ended = pairs.into_iter().zip(lives).map(|(pair, both)| {
        let mut d = 0;
        let directions = both.map(|l| {
            d += 1;
            l.finish(clock.is_some(), &mut |life| each(&pair, d - 1, life))
        });
        Connection { pair, clock: clock.clone(), directions }
    });
    Ok(ended.collect())
}
