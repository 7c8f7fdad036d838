//! From a write to the packets that carried its bytes, and to the calls that read them: [`crate::carried`] the other way round.
//!
//! Packets that may have carried it are found by the numbers of their bytes (TCP), or by where and when the device's queue got them; which did is
//! then asked of each packet itself, so that both ways give one answer.

use crate::carried::{BytesOfCall, Carried, first_byte};
use crate::ends::Ends;
use crate::entry::{Entry, Names};
use crate::error::Result;
use crate::filter::Filter;
use crate::packet::PacketDetail;
use crate::store::{Store, StreamCall, Wanted};
use kpat_model::Crossing;
use kpat_store::NULL;
use kpat_store::tables::*;
use std::collections::HashSet;
use std::sync::Arc;

/// A call that wrote, and what became of it.
#[derive(Clone, Debug)]
pub struct Written {
    pub socket: SocketRow,
    /// Number of the call, as [`BytesOfCall::id`].
    pub id: i64,
    /// When the socket gave it to TCP; of a datagram: when the call was over. Boot clock.
    pub at_ns: i64,
    pub bytes: i64,
    pub pid: Option<i32>,
    /// A datagram that the kernel refused: with this error. `bytes` are those of its packets.
    pub error: Option<i32>,
    /// TCP: when its last byte was acknowledged.
    pub acked_ns: Option<i64>,
    /// In order of time.
    pub packets: Vec<PacketOfWrite>,
    /// More may have carried it, and were not looked at.
    pub cut: bool,
}

/// A packet with bytes of a write.
#[derive(Clone, Debug)]
pub struct PacketOfWrite {
    pub packet: PacketRow,
    /// Bytes of the write in it.
    pub carried_bytes: i64,
    /// Calls that read bytes of this packet.
    pub reads: Vec<BytesOfCall>,
}

/// A write of a stream with the time until all of it was acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlowWrite {
    pub id: i64,
    pub socket_id: i64,
    pub at_ns: i64,
    pub bytes: i64,
    pub pid: Option<i32>,
    pub acked_after_ns: i64,
}

const MOST_PACKETS: usize = 1024;
/// Of a datagram the packet log and the application's have the same moment, but for a long interrupt.
const APART_NS: i64 = 1_000_000;
/// Copies may be on their way for so long after another was acknowledged.
const LATE_NS: i64 = 10_000_000_000;
const TCP: i32 = 6;

impl Store {
    /// A write by its number. `None`: no call of that number wrote anything.
    pub fn written(&self, id: i64) -> Result<Option<Written>> {
        let table = self.table::<AppEventRow>()?;
        let Some((group, place)) = place_of(id, (0..table.groups()).map(|g| table.group_rows(g))) else {
            return Ok(None);
        };
        let Some(e) = table.rows_at::<AppEventRow>(group, &[place])?.pop() else { return Ok(None) };
        let sockets = self.sockets()?;
        let Some(socket) = sockets.rows.iter().find(|s| s.socket_id == e.socket_id).cloned() else {
            return Ok(None);
        };
        let tcp = socket.proto == TCP;
        let writes = if tcp { Crossing::ToTransport } else { Crossing::Send };
        if e.crossing != writes as i32 || tcp && e.size_bytes < 0 {
            return Ok(None);
        }
        let acked_ns = if tcp { self.acked(&socket, &e)? } else { None };
        let mut ids = if tcp { self.by_bytes(&socket, &e, acked_ns)? } else { self.by_call(&socket, id)? };
        ids.sort_unstable();
        ids.dedup();
        let cut = ids.len() > MOST_PACKETS;
        ids.truncate(MOST_PACKETS);
        let error = (e.size_bytes < 0).then_some(-e.size_bytes as i32);
        let mut bytes = e.size_bytes.max(0);
        let mut packets = Vec::new();
        for packet in ids {
            let detail: PacketDetail = self.packet(packet)?;
            let Some(Carried { written: Some(written), read, also_read, .. }) = self.carried(&detail)? else {
                continue;
            };
            let Some(own) = written.calls.iter().find(|c| c.id == id) else { continue };
            bytes = bytes.max(own.bytes);
            packets.push(PacketOfWrite {
                packet: detail.packet,
                carried_bytes: own.carried_bytes,
                reads: read.into_iter().chain(also_read).flat_map(|r| r.calls).collect(),
            });
        }
        packets.sort_by_key(|p| (p.packet.first_ns, p.packet.packet_id));
        Ok(Some(Written { socket, id, at_ns: e.at_ns, bytes, pid: e.pid, error, acked_ns, packets, cut }))
    }

    fn acked(&self, socket: &SocketRow, e: &AppEventRow) -> Result<Option<i64>> {
        let Some(last) = e.offset.filter(|_| e.size_bytes > 0).map(|o| o + e.size_bytes - 1) else {
            return Ok(None);
        };
        let acks = self.stream(socket.socket_id, Crossing::Acked)?;
        let first = acks.partition_point(|a| a.offset + a.bytes <= last);
        Ok(acks.get(first).filter(|a| a.offset <= last).map(|a| a.at_ns))
    }

    /// Packets between these ports with a number of these bytes.
    fn by_bytes(&self, socket: &SocketRow, e: &AppEventRow, acked_ns: Option<i64>) -> Result<Vec<i64>> {
        let mut out = Vec::new();
        let (Some(start), Some(offset)) = (socket.sent_seq, e.offset) else { return Ok(out) };
        let first = (start + offset) as u32;
        let ports = (i64::from(socket.local_port), i64::from(socket.peer_port));
        let times = e.at_ns..=acked_ns.map_or(i64::MAX, |at| at.saturating_add(LATE_NS));
        let table = self.table::<FootprintRow>()?;
        for group in table.groups_where("at_ns", &times) {
            let column = |name| table.ints(group, name);
            let (packets, at, seq) = (column("packet_id")?, column("at_ns")?, column("tcp_seq")?);
            let flags = column("tcp_flags")?;
            let (sport, dport, payload) = (column("sport")?, column("dport")?, column("payload_bytes")?);
            let fits = |i: &usize| {
                (sport[*i], dport[*i]) == ports
                    && seq[*i] != NULL
                    && payload[*i] > 0
                    && times.contains(&at[*i])
                    && {
                        let own = first_byte(seq[*i], flags[*i]) as u32;
                        let from = i64::from(own.wrapping_sub(first) as i32);
                        from < e.size_bytes && from + payload[*i] > 0
                    }
            };
            out.extend((0..packets.len()).filter(fits).map(|i| packets[i]));
        }
        Ok(out)
    }

    /// Packets that were where and when one of this call was.
    fn by_call(&self, socket: &SocketRow, id: i64) -> Result<Vec<i64>> {
        let known = self.datagrams(socket.socket_id)?;
        let mut out = Vec::new();
        let own = |calls: &[u32]| calls.iter().any(|c| known.calls[*c as usize].id == id);
        out.extend(known.sightings.iter().filter(|s| own(&s.calls)).filter_map(|s| s.unqueued));
        for s in known.sightings.iter().filter(|s| s.sent && s.unqueued.is_none() && own(&s.calls)) {
            let (from_ns, to_ns) = (s.at_ns - APART_NS, s.at_ns + APART_NS);
            let points = self.points_of_packets(Wanted { sent: true, cpu: Some(s.cpu), from_ns, to_ns })?;
            let fits = |p: &&crate::store::Passing| i64::from(p.tag & 0xffff) == s.tag & 0xffff;
            out.extend(points.iter().filter(fits).map(|p| p.of));
        }
        // One that waited for the neighbour's address is seen in its call, and where it went on.
        let mut known = HashSet::new();
        out.retain(|packet| known.insert(*packet));
        Ok(out)
    }

    /// The writes of streams that took longest to be acknowledged, the slowest first; `only`: of this socket; those that fit `filter`. Socket
    /// by socket, so memory is one socket's calls. Then how many writes there are, and how many of them were never acknowledged.
    pub fn slow_writes(
        &self,
        only: Option<i64>,
        filter: Option<&Filter>,
        most: usize,
    ) -> Result<(Vec<SlowWrite>, u64, u64)> {
        let names = Names::of(self)?;
        let mut out: Vec<SlowWrite> = Vec::new();
        let (mut all, mut open) = (0, 0);
        let sockets = self.sockets()?;
        for s in sockets.rows.iter().filter(|s| s.proto == TCP && only.is_none_or(|id| id == s.socket_id)) {
            let writes = self.stream(s.socket_id, Crossing::ToTransport)?;
            let acks = self.stream(s.socket_id, Crossing::Acked)?;
            let after = |w: &StreamCall| {
                let last = w.offset + w.bytes - 1;
                let first = acks.partition_point(|a| a.offset + a.bytes <= last);
                acks.get(first).filter(|a| a.offset <= last).map(|a| a.at_ns - w.at_ns)
            };
            let rows: Vec<(StreamCall, Option<i64>)> = writes.iter().map(|w| (*w, after(w))).collect();
            let condition = match filter {
                Some(f) => Some(f.prepare_for(self, Arc::new(Ends::of_writes(self, s, &rows)))?),
                None => None,
            };
            for (w, after) in &rows {
                let entry = || Entry::of_write(s, w, *after, &names);
                if condition.as_ref().is_some_and(|c| !c.fits(&entry(), &names)) {
                    continue;
                }
                all += 1;
                match *after {
                    Some(acked_after_ns) => out.push(SlowWrite {
                        id: w.id,
                        socket_id: s.socket_id,
                        at_ns: w.at_ns,
                        bytes: w.bytes,
                        pid: w.pid,
                        acked_after_ns,
                    }),
                    None => open += 1,
                }
            }
            out.sort_by_key(|w| (-w.acked_after_ns, w.id));
            out.truncate(most);
        }
        Ok((out, all, open))
    }
}

/// Row group and place in it of a table's row.
fn place_of(id: i64, groups: impl Iterator<Item = usize>) -> Option<(usize, u32)> {
    let mut left = usize::try_from(id).ok()?;
    for (group, rows) in groups.enumerate() {
        if left < rows {
            return Some((group, left as u32));
        }
        left -= rows;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::place_of;

    #[test]
    fn a_call_is_the_row_of_its_number() {
        let place = |id| place_of(id, [3, 2].into_iter());
        assert_eq!([0, 2, 3, 4].map(place), [Some((0, 0)), Some((0, 2)), Some((1, 0)), Some((1, 1))]);
        assert_eq!([-1, 5].map(place), [None, None]);
    }
}
