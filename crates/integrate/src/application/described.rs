//! What a log says of a socket, several times over, as one row.

use super::TCP;
use kpat_model::{Privacy, SocketRecord};
use kpat_store::tables::SocketRow;
use std::net::{Ipv4Addr, Ipv6Addr};

/// TCP_CLOSE of include/net/tcp_states.h.
const CLOSE: u8 = 7;

pub(super) fn describe(row: &mut SocketRow, r: &SocketRecord) {
    row.socket_id = r.cookie as i64;
    if row.first_ns == 0 {
        row.first_ns = r.at.0;
    }
    row.first_ns = row.first_ns.min(r.at.0);
    if row.last_ns == 0 || !is_of_what_was_seen(row, r) {
        row.last_ns = row.last_ns.max(r.at.0);
    }
    row.proto = i32::from(r.protocol);
    row.version = i32::from(r.version);
    row.netns = (r.netns != 0).then_some(i64::from(r.netns));
    row.cgroup = (r.cgroup != 0).then_some(r.cgroup as i64);
    row.uid = r.uid.map(i64::from).or(row.uid);
    // what a socket forgets when it closes is still what it had
    let address = |a: &[u8; 16]| (*a != [0; 16]).then(|| address(r, a));
    row.local_addr = address(&r.addr).or(row.local_addr.take());
    row.peer_addr = address(&r.peer).or(row.peer_addr.take());
    if r.port != 0 {
        row.local_port = i32::from(r.port);
    }
    if r.peer_port != 0 {
        row.peer_port = i32::from(r.peer_port);
    }
    let end = r.congestion.iter().position(|c| *c == 0).unwrap_or(r.congestion.len());
    if end > 0 {
        row.congestion = Some(String::from_utf8_lossy(&r.congestion[..end]).into_owned());
    }
    row.kernels |= i32::from(r.kernels);
    if row.pid.is_none() && r.pid != 0 {
        row.pid = Some(r.pid as i32);
    }
    if r.above != 0 {
        row.mptcp_socket = Some(r.above as i64);
    }
    // Of the last change of its state: one that was dealt with is not there any more.
    row.error = (row.proto == TCP && r.error != 0).then_some(r.error.into());
}

/// Has this record nothing new of how long the socket was there? One is written when it begins (a state is logged as it was before it changed), and one with the
/// first segment that shows a port which connect() has found.
fn is_of_what_was_seen(row: &SocketRow, r: &SocketRecord) -> bool {
    let new_port = r.port != 0 && i32::from(r.port) != row.local_port;
    i32::from(r.protocol) == TCP && (r.state == CLOSE || new_port)
}

fn address(r: &SocketRecord, a: &[u8; 16]) -> String {
    match r.privacy {
        Privacy::Hashed => format!("h:{:032x}", u128::from_be_bytes(*a)),
        _ if r.version == 6 => Ipv6Addr::from(*a).to_string(),
        _ => Ipv4Addr::new(a[0], a[1], a[2], a[3]).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kpat_model::BootNs;

    #[test]
    fn it_lasts_until_it_is_seen_to_end() {
        const SYN_SENT: u8 = 2;
        let row = |records: &[(i64, u8, u16)]| {
            let mut row = SocketRow::default();
            for (at, state, port) in records {
                let r = SocketRecord {
                    at: BootNs(*at),
                    state: *state,
                    port: *port,
                    peer_port: 80,
                    protocol: TCP as u16,
                    version: 4,
                    ..SocketRecord::default()
                };
                describe(&mut row, &r);
            }
            (row.first_ns, row.last_ns, row.local_port)
        };
        let begins = [(10, CLOSE, 0), (12, CLOSE, 0)];
        assert_eq!(row(&begins), (10, 10, 0));
        // Its SYN left at 30.
        let asks = [begins[0], begins[1], (31, SYN_SENT, 4000)];
        assert_eq!(row(&asks), (10, 10, 4000));
        assert_eq!(row(&[asks[0], asks[2], (90, SYN_SENT, 0)]), (10, 90, 4000), "closed");
        assert_eq!(row(&[asks[0], asks[2], (90, SYN_SENT, 4000)]), (10, 90, 4000), "and was bound");
        assert_eq!(row(&[(70, 1, 4000)]), (70, 70, 4000), "there before");
    }
}
