//! What servers did for clients on other hosts, by the ends of their messages. A recording of the client's host has the same ends the other way around, and
//! says which process there it was; without one the address is all that is known. Where addresses are translated on the way the ends do not match.

use crate::error::Result;
use crate::store::Store;
use kpat_store::tables::PeerRow;
use std::collections::{BTreeMap, HashMap};

/// Own time of a server since it took messages of a client on another host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Across {
    /// Log and process.
    pub server: (usize, i32),
    /// `None`: in none of the logs.
    pub client: Option<(usize, i32)>,
    /// The client's, as the server's host sees it; `None`: left out.
    pub address: Option<String>,
    /// Connections, or ports from which datagrams came.
    pub ends: usize,
    pub ns: i64,
}

/// Between the first of these logs and hosts that it does not record; most time first.
pub fn across(logs: &[&Store]) -> Result<Vec<Across>> {
    let rows: Vec<Vec<PeerRow>> = logs.iter().map(|l| l.all()).collect::<Result<_>>()?;
    Ok(of(&rows))
}

/// Server, client if it is in a log, the client's address.
type Between = ((usize, i32), Option<(usize, i32)>, Option<String>);

/// Protocol, own port, the other's port.
type Ports = (i32, i32, i32);

fn of(rows: &[Vec<PeerRow>]) -> Vec<Across> {
    let ends = || rows.iter().enumerate().flat_map(|(log, of)| of.iter().map(move |r| (log, r)));
    let mut by_ports: HashMap<Ports, Vec<(usize, &PeerRow)>> = HashMap::new();
    for (log, r) in ends() {
        by_ports.entry((r.proto, r.local_port, r.peer_port)).or_default().push((log, r));
    }
    let mut sums: BTreeMap<Between, (usize, i64)> = BTreeMap::new();
    for (log, r) in ends() {
        let Some(ns) = r.served_ns.filter(|ns| *ns > 0) else { continue };
        let others = by_ports.get(&(r.proto, r.peer_port, r.local_port)).map_or(&[][..], Vec::as_slice);
        let client =
            others.iter().find(|(at, o)| *at != log && is_other_end(r, o)).map(|(at, o)| (*at, o.process));
        if log != 0 && client.is_none_or(|(at, _)| at != 0) {
            continue;
        }
        let sum = sums.entry(((log, r.process), client, r.peer_addr.clone())).or_default();
        *sum = (sum.0 + 1, sum.1 + ns);
    }
    let across = |((server, client, address), (ends, ns))| Across { server, client, address, ends, ns };
    let mut all: Vec<Across> = sums.into_iter().map(across).collect();
    all.sort_by_key(|a| std::cmp::Reverse(a.ns));
    all
}

/// An address that a log does not have is no contradiction.
fn is_other_end(r: &PeerRow, o: &PeerRow) -> bool {
    let agree = |a: &Option<String>, b: &Option<String>| a.is_none() || b.is_none() || a == b;
    agree(&r.peer_addr, &o.local_addr) && agree(&r.local_addr, &o.peer_addr)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(process: i32, local: &str, peer: &str, served_ns: Option<i64>) -> PeerRow {
        let split = |at: &str| {
            let (address, port) = at.split_once(' ').expect("address and port");
            (Some(address.to_owned()).filter(|a| a != "-"), port.parse().expect("a port"))
        };
        let ((local_addr, local_port), (peer_addr, peer_port)) = (split(local), split(peer));
        PeerRow {
            process,
            proto: 6,
            local_addr,
            local_port,
            peer_addr,
            peer_port,
            served_ns,
            ..PeerRow::default()
        }
    }

    #[test]
    fn a_client_is_who_has_the_other_end() {
        let server = vec![
            end(7, "10.0.0.1 80", "10.0.0.2 4001", Some(100)),
            end(7, "10.0.0.1 80", "10.0.0.2 4002", Some(20)),
            end(7, "10.0.0.1 80", "10.0.0.3 4001", Some(3)),
            end(8, "- 53", "10.0.0.2 4003", Some(4)),
            end(9, "10.0.0.1 4009", "10.0.0.2 99", None),
        ];
        let client = vec![
            end(31, "10.0.0.2 4001", "10.0.0.1 80", None),
            end(31, "10.0.0.2 4002", "10.0.0.1 80", None),
            end(32, "10.0.0.2 4003", "10.0.0.1 53", None),
            end(33, "10.0.0.2 99", "10.0.0.1 4009", Some(50)),
            end(33, "10.0.0.2 99", "10.0.0.9 4009", Some(1000)),
        ];
        let a = |server, client, address: &str, ends, ns| Across {
            server,
            client,
            address: Some(address.into()),
            ends,
            ns,
        };
        let both = [server, client];
        assert_eq!(
            of(&both),
            [
                a((0, 7), Some((1, 31)), "10.0.0.2", 2, 120),
                a((1, 33), Some((0, 9)), "10.0.0.1", 1, 50),
                a((0, 8), Some((1, 32)), "10.0.0.2", 1, 4),
                a((0, 7), None, "10.0.0.3", 1, 3),
            ]
        );
        let alone = of(&both[..1]);
        assert_eq!(
            alone.iter().map(|a| (a.client, a.ends, a.ns)).collect::<Vec<_>>(),
            [(None, 2, 120), (None, 1, 4), (None, 1, 3)]
        );
    }
}
