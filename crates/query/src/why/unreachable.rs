//! ICMP messages that came to a host while a connection opened: a firewall's, a router's. TCP ends a connection by one, but not while its own program holds the
//! socket: of what comes within connect() it only takes note, and tells the program (SO_ERROR). Which connection a message is of is not in the log.

use crate::error::Result;
use crate::protocol;
use crate::store::Store;
use kpat_store::tables::{FootprintRow, SocketRow};
use std::collections::BTreeSet;
use std::ops::RangeInclusive;

/// It says that something could not be delivered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreachable {
    pub packet: i64,
    /// As in a list of packets.
    pub what: String,
}

/// Protocol and type: unreachable, time exceeded.
const ERRORS: [(i64, i64); 4] = [(1, 3), (1, 11), (58, 1), (58, 3)];
/// More than anybody reads.
const MOST: usize = 64;

/// In order of their numbers.
pub(super) fn find(
    store: &Store,
    sender: &SocketRow,
    times: &RangeInclusive<i64>,
) -> Result<Vec<Unreachable>> {
    let table = store.table::<FootprintRow>()?;
    let mut packets = BTreeSet::new();
    for group in table.groups_where("at_ns", times) {
        let columns = ["icmp_kind", "ip_proto", "at_ns", "netns", "packet_id"];
        let [kind, proto, at, netns, packet] = columns.map(|c| table.ints(group, c));
        let (kind, proto, at, netns, packet) = (kind?, proto?, at?, netns?, packet?);
        let here = |i: &usize| sender.netns.is_none_or(|own| netns[*i] == own);
        let is = |i: &usize| ERRORS.contains(&(proto[*i], kind[*i])) && times.contains(&at[*i]) && here(i);
        packets.extend((0..kind.len()).filter(is).map(|i| packet[i]));
    }
    let mut out = Vec::new();
    for packet in packets.into_iter().take(MOST) {
        let p = store.packet(packet)?.packet;
        // An address may be there as a hash of it.
        if sender.local_addr.is_none() || sender.local_addr == p.dst_addr {
            out.push(Unreachable { packet, what: protocol::summary(&p) });
        }
    }
    Ok(out)
}
