//! The packets in which the last bytes of writes left, where packets are in the log, too.

use super::WriteLine;
use crate::carried::first_byte;
use crate::error::Result;
use crate::store::Store;
use kpat_store::NULL;
use kpat_store::tables::{FootprintRow, SocketRow};

/// Of each write the earliest with its last byte since the application wanted to write it: a number of a byte comes again after 4 GiB.
pub(super) fn find(store: &Store, sender: &SocketRow, writes: &mut [WriteLine]) -> Result<()> {
    let Some(start) = sender.sent_seq else { return Ok(()) };
    let table = store.table::<FootprintRow>()?;
    let within = |w: &WriteLine| w.from_ns..=w.to_ns;
    let from = writes.iter().map(|w| w.from_ns).min().unwrap_or(0);
    let to = writes.iter().map(|w| w.to_ns).max().unwrap_or(-1);
    let mut found = vec![i64::MAX; writes.len()];
    for group in table.groups_where("at_ns", &(from..=to)) {
        let [packets, at, sport, dport, seq, flags, payload] =
            ["packet_id", "at_ns", "sport", "dport", "tcp_seq", "tcp_flags", "payload_bytes"]
                .map(|column| table.ints(group, column));
        let (packets, at, sport, dport, seq, flags, payload) =
            (packets?, at?, sport?, dport?, seq?, flags?, payload?);
        let ports = (i64::from(sender.local_port), i64::from(sender.peer_port));
        for i in (0..packets.len()).filter(|i| (sport[*i], dport[*i]) == ports && seq[*i] != NULL) {
            for (w, first) in writes.iter_mut().zip(&mut found) {
                let last = start + w.offset + w.bytes - 1;
                let into = i64::from((last as u32).wrapping_sub(first_byte(seq[i], flags[i]) as u32));
                if into < payload[i] && within(w).contains(&at[i]) && at[i] < *first {
                    (*first, w.packet) = (at[i], Some(packets[i]));
                }
            }
        }
    }
    Ok(())
}
