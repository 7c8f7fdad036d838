//! Sockets that are in trouble beside the one that was looked at: never connected, connected late, ended by an error. Who asks of no socket in particular is told of these.

use crate::app::had_no_port;
use crate::error::Result;
use crate::store::Store;
use kpat_store::tables::{SocketRow, TcpStateRow};
use std::collections::{BTreeMap, HashMap};

use super::TCP;
use super::gather::SYN_SENT;

/// Not known, TCP_CLOSE of include/net/tcp_states.h.
const NO_CONNECTION: [i64; 2] = [0, 7];
/// Who gives up sooner need not have been in trouble: of two addresses that are tried at once one is given up.
const WAITS_NS: i64 = 250_000_000;
/// A SYN is sent again after a second.
const LATE_NS: i64 = 900_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Trouble {
    /// connect() found no port.
    NoPort,
    /// It was never connected; with which error, if the kernel gave one.
    NotConnected(Option<i32>),
    ConnectedLate,
    /// It was connected, and ended with this error.
    Ended(i32),
}

/// Sockets with the same trouble.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Beside {
    pub trouble: Trouble,
    pub sockets: u64,
    /// That which took longest.
    pub worst: i64,
    /// It, until it was connected, given up or ended.
    pub ns: i64,
}

/// When a socket sent its first SYN, and when it was connected.
#[derive(Clone, Copy)]
struct Opened {
    from_ns: i64,
    connected_ns: Option<i64>,
}

/// Of the sockets of a log that are none of these.
pub fn beside(store: &Store, leave_out: &[i64]) -> Result<Vec<Beside>> {
    let opened = opened(store)?;
    let mut out: BTreeMap<Trouble, Beside> = BTreeMap::new();
    let mut each = |s: &SocketRow| {
        let Some((trouble, ns)) = trouble(s, opened.get(&s.socket_id)) else { return };
        let of = out.entry(trouble).or_insert(Beside { trouble, sockets: 0, worst: s.socket_id, ns });
        of.sockets += 1;
        if ns > of.ns {
            (of.worst, of.ns) = (s.socket_id, ns);
        }
    };
    let sockets = store.sockets()?;
    let others = sockets.rows.iter().filter(|s| s.proto == TCP && s.peer_port != 0);
    others.filter(|s| !leave_out.contains(&s.socket_id)).for_each(&mut each);
    Ok(out.into_values().collect())
}

fn trouble(s: &SocketRow, opened: Option<&Opened>) -> Option<(Trouble, i64)> {
    if had_no_port(s) {
        return Some((Trouble::NoPort, s.last_ns - s.first_ns));
    }
    match (opened.map(|o| (o.from_ns, o.connected_ns)), s.error) {
        (Some((from, None)), error) => {
            let ns = s.last_ns - from;
            (error.is_some() || ns >= WAITS_NS).then_some((Trouble::NotConnected(error), ns))
        }
        (Some((from, Some(connected))), _) if connected - from >= LATE_NS => {
            Some((Trouble::ConnectedLate, connected - from))
        }
        (_, Some(error)) => Some((Trouble::Ended(error), s.last_ns - s.first_ns)),
        _ => None,
    }
}

/// Those that connect while it is recorded.
fn opened(store: &Store) -> Result<HashMap<i64, Opened>> {
    let table = store.table::<TcpStateRow>()?;
    let mut out: HashMap<i64, Opened> = HashMap::new();
    let syn_sent = i64::from(SYN_SENT);
    let Some(first) = table.groups_where("state", &(syn_sent..=syn_sent)).first().copied() else {
        return Ok(out);
    };
    for group in first..table.groups() {
        let [at, sockets, states] = ["at_ns", "socket_id", "state"].map(|c| table.ints(group, c));
        let (at, sockets, states) = (at?, sockets?, states?);
        for i in 0..at.len() {
            if states[i] == syn_sent {
                out.entry(sockets[i]).or_insert(Opened { from_ns: at[i], connected_ns: None });
            } else if !NO_CONNECTION.contains(&states[i])
                && let Some(o) = out.get_mut(&sockets[i])
            {
                o.connected_ns = o.connected_ns.or(Some(at[i]));
            }
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_trouble() {
        const MS: i64 = 1_000_000;
        let socket = |error, last_ms: i64| SocketRow {
            proto: TCP,
            local_port: 40_000,
            peer_port: 80,
            last_ns: last_ms * MS,
            error,
            ..SocketRow::default()
        };
        let of = |error, last_ms, connected_ms: Option<i64>| {
            let o = Opened { from_ns: 0, connected_ns: connected_ms.map(|ms| ms * MS) };
            trouble(&socket(error, last_ms), Some(&o)).map(|(trouble, ns)| (trouble, ns / MS))
        };
        assert_eq!(of(Some(111), 1, None), Some((Trouble::NotConnected(Some(111)), 1)));
        assert_eq!(of(None, 3000, None), Some((Trouble::NotConnected(None), 3000)));
        assert_eq!(of(None, 30, None), None, "given up as another address was quicker");
        assert_eq!(of(None, 5000, Some(1020)), Some((Trouble::ConnectedLate, 1020)));
        assert_eq!(of(Some(104), 5000, Some(2)), Some((Trouble::Ended(104), 5000)));
        assert_eq!(of(None, 5000, Some(620)), None, "over a satellite");
        // It was there before it was recorded, or it was taken from a listener.
        assert_eq!(trouble(&socket(None, 5000), None), None);
        assert_eq!(trouble(&socket(Some(110), 50), None), Some((Trouble::Ended(110), 50 * MS)));
    }
}
