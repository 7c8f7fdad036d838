//! Sockets added up by what they have in common: of thousands of short connections no one is of interest.
//!
//! A pass over some columns, a row group at a time: memory is a few words for each socket, beside its row.

use super::Spread;
use super::names::{INTERRUPTED, end, protocol};
use super::opening::{Opens, Outcome};
use crate::abreast::Progress;
use crate::error::{Error, Result};
use crate::owners::Name;
use crate::store::Store;
use kpat_model::Crossing;
use kpat_model::hash::Map;
use kpat_store::NULL;
use kpat_store::tables::*;
use std::collections::BTreeMap;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// The name of the process.
    Process,
    /// The address of the other end.
    Peer,
    /// Protocol, address and port of the end that is asked.
    Service,
    Cgroup,
    User,
}

/// One value of each socket, and the socket with the greatest.
#[derive(Clone, Debug, Default)]
pub struct Worst {
    pub of: Spread,
    pub socket_id: Option<i64>,
}

impl Worst {
    fn add(&mut self, socket_id: i64, value: i64) {
        if self.socket_id.is_none() || value > self.of.max {
            self.socket_id = Some(socket_id);
        }
        self.of.add(value, 1);
    }
}

/// Sockets that have this in common.
#[derive(Clone, Debug, Default)]
pub struct Sums {
    /// `None`: they have no such thing, or it is not in the log.
    pub name: Option<String>,
    pub sockets: u64,
    /// Of those that began to connect while it was recorded, what became of them: one of [`super::OUTCOMES`] each.
    pub outcomes: BTreeMap<&'static str, u64>,
    pub sent_bytes: i64,
    pub received_bytes: i64,
    pub writes: u64,
    pub reads: u64,
    /// Calls that failed, and datagrams that a full socket refused.
    pub failed: u64,
    /// Frames sent again.
    pub again: u64,
    /// Of those that were connected, until they were.
    pub connect_ns: Worst,
    /// The mean of each socket's smoothed round trip.
    pub round_trip_ns: Worst,
    /// From its first record to its last.
    pub lasted_ns: Worst,
}

impl Sums {
    /// How many began to connect while it was recorded.
    pub fn connects(&self) -> u64 {
        self.outcomes.values().sum()
    }

    pub fn count(&self, outcome: &str) -> u64 {
        self.outcomes.get(outcome).copied().unwrap_or_default()
    }
}

/// What is kept of a socket.
#[derive(Default)]
struct One {
    opens: Opens,
    srtt_ns: i64,
    srtts: u32,
    writes: u32,
    reads: u32,
    failed: u32,
    again: u32,
}

/// All sockets of a log, in groups; those with most sockets first. Empty: the log has none of applications.
///
/// Errors: [`Error::Abandoned`].
pub fn sums(store: &Store, by: By, progress: Progress<'_>) -> Result<Vec<Sums>> {
    let sockets = store.sockets()?;
    let (events, states) = (store.table::<AppEventRow>()?, store.table::<TcpStateRow>()?);
    let parts = (events.groups() + states.groups()) as u64;
    let mut ones: Map<i64, One> = Map::default();
    let mut done = 0;
    let mut step = || {
        done += 1;
        if progress(done - 1, parts) { Ok(()) } else { Err(Error::Abandoned) }
    };
    for group in 0..states.groups() {
        step()?;
        let [at, of, state, srtt] = ["at_ns", "socket_id", "state", "srtt_ns"].map(|c| states.ints(group, c));
        let (at, of, state, srtt) = (at?, of?, state?, srtt?);
        for i in (0..at.len()).filter(|i| state[*i] != 0) {
            let o = ones.entry(of[i]).or_default();
            o.opens.state(at[i], state[i]);
            if srtt[i] > 0 {
                o.srtt_ns = o.srtt_ns.saturating_add(srtt[i]);
                o.srtts += 1;
            }
        }
    }
    for group in 0..events.groups() {
        step()?;
        let [at, of, what, size, frames] =
            ["at_ns", "socket_id", "crossing", "size_bytes", "segments"].map(|c| events.ints(group, c));
        let (at, of, what, size, frames) = (at?, of?, what?, size?, frames?);
        for i in 0..at.len() {
            let o = ones.entry(of[i]).or_default();
            o.opens.crossing(at[i]);
            let failed = u32::from(size[i] < 0 && size[i] != -i64::from(INTERRUPTED));
            match u8::try_from(what[i]).ok().and_then(Crossing::from_u8) {
                Some(Crossing::Send) => {
                    o.writes += 1;
                    o.failed += failed;
                }
                Some(Crossing::Recv) => {
                    o.reads += 1;
                    o.failed += failed;
                }
                Some(Crossing::ToSocket) => o.failed += failed,
                Some(Crossing::Retransmit) if frames[i] != NULL => {
                    o.again = o.again.saturating_add(u32::try_from(frames[i]).unwrap_or(0));
                }
                _ => {}
            }
        }
    }
    let complete = states.rows() > 0 && super::lost(store)? == 0;
    let mut out: BTreeMap<Option<String>, Sums> = BTreeMap::new();
    for s in &sockets.rows {
        let one = ones.remove(&s.socket_id).unwrap_or_default();
        let opening = one.opens.finish(s, complete);
        let name = match by {
            By::Process => process(store, s)?,
            By::Peer => s.peer_addr.clone().filter(|_| s.peer_port != 0),
            By::Service => served(s, opening.is_some(), sockets.listens(s)),
            By::Cgroup => store.owner_of_socket(s.socket_id).and_then(|o| o.path),
            By::User => {
                let [user, uid] = store.owner_of_socket(s.socket_id).unwrap_or_default().names(Name::User);
                user.or(uid)
            }
        };
        let sum = out.entry(name.clone()).or_insert_with(|| Sums { name, ..Sums::default() });
        sum.sockets += 1;
        if let Some(o) = opening {
            *sum.outcomes.entry(o.outcome.name()).or_default() += 1;
            if o.outcome == Outcome::Connected {
                sum.connect_ns.add(s.socket_id, o.took_ns);
            }
        }
        sum.sent_bytes = sum.sent_bytes.saturating_add(s.sent_bytes);
        sum.received_bytes = sum.received_bytes.saturating_add(s.received_bytes);
        sum.writes += u64::from(one.writes);
        sum.reads += u64::from(one.reads);
        sum.failed += u64::from(one.failed);
        sum.again += u64::from(one.again);
        if one.srtts > 0 {
            sum.round_trip_ns.add(s.socket_id, one.srtt_ns / i64::from(one.srtts));
        }
        sum.lasted_ns.add(s.socket_id, s.last_ns.saturating_sub(s.first_ns));
    }
    let mut out: Vec<Sums> = out.into_values().collect();
    out.sort_by(|a, b| b.sockets.cmp(&a.sockets).then_with(|| a.name.cmp(&b.name)));
    Ok(out)
}

/// Who used it, or who listens where it came to.
fn process(store: &Store, s: &SocketRow) -> Result<Option<String>> {
    let of = |s: &SocketRow| store.socket_process(s).map(str::to_owned);
    Ok(match of(s) {
        Some(name) => Some(name),
        None => store.listener_of(s)?.and_then(|l| of(&l)),
    })
}

/// The end that is asked: the one that did not begin, or on which something listens; where neither is known that with the lower port.
fn served(s: &SocketRow, connects: bool, listens: bool) -> Option<String> {
    let here = match s.peer_port {
        0 => true,
        _ if connects => false,
        _ => listens || s.local_port != 0 && s.local_port < s.peer_port,
    };
    let (addr, port) = if here { (&s.local_addr, s.local_port) } else { (&s.peer_addr, s.peer_port) };
    (port != 0).then(|| format!("{} {}", protocol(s.proto), end(addr.as_ref(), port)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_that_is_asked() {
        let s = |local_port, peer_port| SocketRow {
            proto: 6,
            local_addr: Some("10.0.0.1".into()),
            local_port,
            peer_addr: Some("fd00::2".into()),
            peer_port,
            ..SocketRow::default()
        };
        let of = |s: &SocketRow, connects, listens| served(s, connects, listens).unwrap_or_default();
        assert_eq!(of(&s(40_000, 443), true, false), "TCP [fd00::2]:443");
        assert_eq!(of(&s(400, 50_051), true, false), "TCP [fd00::2]:50051", "it began");
        assert_eq!(of(&s(50_051, 400), false, true), "TCP 10.0.0.1:50051", "there it listens");
        assert_eq!(of(&s(80, 40_000), false, false), "TCP 10.0.0.1:80");
        assert_eq!(of(&s(80, 0), false, false), "TCP 10.0.0.1:80");
        assert_eq!(of(&s(0, 443), false, false), "TCP [fd00::2]:443");
        assert_eq!(served(&s(0, 0), false, false), None);
    }

    #[test]
    fn the_worst_has_a_name() {
        let mut w = Worst::default();
        [(7, 0), (9, 30), (8, 30), (4, 20)].iter().for_each(|(id, ns)| w.add(*id, *ns));
        assert_eq!((w.socket_id, w.of.max, w.of.count), (Some(9), 30, 4));
    }
}
