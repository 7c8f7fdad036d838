//! Connections of TCP below one of MPTCP: no process has them. Whose they are says the socket above, whichever thread, or worker of the kernel's, was at hand
//! when they were first seen.

use super::{MPTCP, TCP};
use kpat_model::hash::Map;
use kpat_store::tables::SocketRow;

/// `rows`: in the order of their ids.
pub(super) fn name_owners(rows: &mut [SocketRow]) {
    let mut by_ends: Map<Ends, Vec<usize>> = Map::default();
    for (i, r) in rows.iter().enumerate().filter(|(_, r)| r.proto == MPTCP && r.peer_port != 0) {
        by_ends.entry(ends(r)).or_default().push(i);
    }
    if by_ends.is_empty() && rows.iter().all(|r| r.mptcp_socket.is_none()) {
        return;
    }
    for i in 0..rows.len() {
        if let Some((id, pid)) = above(rows, &rows[i], &by_ends).filter(|_| rows[i].proto == TCP) {
            (rows[i].mptcp_socket, rows[i].pid) = (Some(id), pid);
        }
    }
}

/// The number of the socket above a connection, and whose it is.
fn above(rows: &[SocketRow], r: &SocketRow, by_ends: &Map<Ends, Vec<usize>>) -> Option<(i64, Option<i32>)> {
    let known = r.mptcp_socket.and_then(|id| rows.binary_search_by_key(&id, |r| r.socket_id).ok());
    // The first connection has the ends of the socket above. That has its number later than the connection is described.
    let together = |j: &&usize| rows[**j].first_ns <= r.last_ns && r.first_ns <= rows[**j].last_ns;
    let alike = || by_ends.get(&ends(r))?.iter().find(together).copied();
    known.or_else(alike).map(|i| (rows[i].socket_id, rows[i].pid))
}

type Ends = (Option<i64>, Option<String>, i32, Option<String>, i32);

fn ends(r: &SocketRow) -> Ends {
    (r.netns, r.local_addr.clone(), r.local_port, r.peer_addr.clone(), r.peer_port)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn socket(socket_id: i64, proto: i32, port: i32, life: (i64, i64), pid: i32) -> SocketRow {
        SocketRow {
            socket_id,
            proto,
            local_port: port,
            peer_port: 80,
            first_ns: life.0,
            last_ns: life.1,
            pid: Some(pid),
            ..SocketRow::default()
        }
    }

    #[test]
    fn a_connection_below_is_whose_the_socket_above_is() {
        let mut rows = [
            socket(1, TCP, 5000, (0, 9), 100),
            socket(2, MPTCP, 5000, (20, 90), 7),
            socket(3, TCP, 5000, (15, 90), 100),
            SocketRow { mptcp_socket: Some(2), ..socket(4, TCP, 5001, (30, 90), 100) },
            socket(5, TCP, 5002, (30, 90), 8),
        ];
        name_owners(&mut rows);
        let found: Vec<_> = rows.iter().map(|r| (r.mptcp_socket, r.pid)).collect();
        let of = |pid| (Some(2), Some(pid));
        assert_eq!(found, [(None, Some(100)), (None, Some(7)), of(7), of(7), (None, Some(8))]);
    }
}
