//! The packets in which the last bytes of writes left, where packets are in the log, too.

use super::{Stage, WriteLine};
use crate::carried::first_byte;
use crate::error::Result;
use crate::packet::{Handover, HandoverKind};
use crate::store::Store;
use kpat_store::NULL;
use kpat_store::tables::{DeviceRow, FootprintRow, SocketRow};

/// A wait of a packet for the next hop's link address between the sender's driver and the peer's device, on a host that is in the log.
#[derive(Clone, Debug)]
pub struct Waited {
    pub packet: i64,
    pub ns: i64,
    /// Of this, all of the time between.
    pub of_ns: i64,
    /// The device at which it waited, `None`: not known.
    pub device: Option<DeviceRow>,
}

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

/// Where the packet waited for a link address that was between the driver and the peer's device longest: a host that forwards it may be in the log. `None`: it did not,
/// or not for half of that time.
pub(super) fn waited(store: &Store, writes: &[WriteLine]) -> Result<Option<Waited>> {
    let wire = |w: &WriteLine| w.stages[Stage::Wire as usize];
    let seen = writes.iter().filter_map(|w| Some((wire(w), w.packet?, w))).filter(|(ns, ..)| *ns > 0);
    let Some((wire_ns, packet, line)) = seen.max_by_key(|(ns, ..)| *ns) else { return Ok(None) };
    let detail = store.packet(packet)?;
    // What comes before on the way is the sender's own.
    let left_ns = line.from_ns + line.stages[..Stage::Wire as usize].iter().sum::<i64>();
    let waits = detail.calls.iter().filter_map(|c| c.handover.as_ref());
    let longest: Option<&Handover> =
        waits.filter(|h| h.kind == HandoverKind::Neighbour && h.from_ns >= left_ns).max_by_key(|h| h.wait_ns);
    let Some(h) = longest.filter(|h| h.wait_ns * 2 > wire_ns) else { return Ok(None) };
    let at = detail.footprints.iter().rev().find(|f| f.at_ns <= h.from_ns && f.ifindex.is_some());
    let device = at.and_then(|f| store.device(f.netns, f.ifindex)).cloned();
    Ok(Some(Waited { packet, ns: h.wait_ns, of_ns: wire_ns, device }))
}
