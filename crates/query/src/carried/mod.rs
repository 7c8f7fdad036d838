//! The application's bytes that a packet carries: which calls wrote them, which read them, in a log that has packets and applications.
//!
//! TCP: a byte has one place in its stream for both: the sequence number of a segment, less that of the stream's first byte, is the offset that
//! the crossings of the socket have. So merging, splitting, offload and sending again change nothing. Sockets are found by the addresses and ports
//! that the packet had at some time, as it is translated on its way. Else: see `datagrams.rs`.

mod datagrams;

pub(crate) use datagrams::{AskedOf, Place, is_for_many, is_reassembled, payload_of};

use crate::error::Result;
use crate::packet::PacketDetail;
use crate::store::{Store, StreamCall};
use kpat_model::Crossing;
use kpat_store::NULL;
use kpat_store::tables::*;

/// A call that wrote or read some of a packet's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BytesOfCall {
    /// Number of the call: place of its row in `app_event`.
    pub id: i64,
    /// A write to TCP: when the socket gave it to TCP; else when the call was over. Boot clock.
    pub at_ns: i64,
    /// Bytes of the call, and how many of them this packet has.
    pub bytes: i64,
    pub carried_bytes: i64,
    /// Where in the packet's payload these begin.
    pub carried_from: i64,
    pub pid: Option<i32>,
    /// A datagram's write that the kernel refused with this error, though it had made packets of it: `bytes` are theirs.
    pub error: Option<i32>,
}

/// One end of the packet's connection.
#[derive(Clone, Debug)]
pub struct CarriedBy {
    pub socket: SocketRow,
    /// Name of the thread that used the socket first.
    pub process: Option<String>,
    /// Of the packet's first byte, from the stream's first that the log saw; `None`: it carries none, or is no stream's.
    pub offset: Option<i64>,
    /// In order of their bytes, all of them: one per byte at most.
    pub calls: Vec<BytesOfCall>,
    /// Of the packet's bytes those that no call in the log has: still unread, or from before the recording.
    pub missing_bytes: i64,
}

/// Both ends, as far as this log has them.
#[derive(Clone, Debug, Default)]
pub struct Carried {
    pub payload_bytes: i64,
    pub written: Option<CarriedBy>,
    pub read: Option<CarriedBy>,
    /// Further sockets that got a copy of it, as of a group's.
    pub also_read: Vec<CarriedBy>,
}

const TCP: i32 = 6;
/// A socket's last event may come before its last packet, and a listener's new socket comes after the first: until the handshake is over.
const APART_NS: i64 = 1_000_000_000;
/// The same for a packet whose number is one of the socket's stream: handshakes are tried for 127 s (`tcp_syn_retries` 6, RFC 6298), and
/// the end of a connection is sent again for about as long.
const APART_IN_STREAM_NS: i64 = 180_000_000_000;
/// How far from the numbers that the log saw a number still is the stream's: the handshake's, the end's, what was sent before the recording.
const BESIDE_STREAM: u32 = 1 << 20;

/// A packet of TCP as one end of its connection sees it.
#[derive(Clone, Copy)]
pub(crate) struct SegmentOf {
    pub first_ns: i64,
    pub last_ns: i64,
    pub seq: u32,
    /// This end sent it.
    pub sent: bool,
}

impl SegmentOf {
    /// Where the socket's stream of this direction begins, and its bytes.
    fn stream(&self, s: &SocketRow) -> (Option<i64>, i64) {
        if self.sent { (s.sent_seq, s.sent_bytes) } else { (s.received_seq, s.received_bytes) }
    }

    /// Has the socket all these bytes in its stream, and was it there?
    pub fn is_of(&self, s: &SocketRow, payload_bytes: i64) -> bool {
        let (start, all) = self.stream(s);
        let there = s.first_ns <= self.last_ns && s.last_ns >= self.first_ns;
        there
            && start
                .is_some_and(|start| i64::from(self.seq.wrapping_sub(start as u32)) + payload_bytes <= all)
    }

    /// Is its number one of the socket's stream? Those of another connection begin anywhere in 4 GiB.
    fn in_stream(&self, s: &SocketRow) -> bool {
        let (start, all) = self.stream(s);
        let reach = i64::from(BESIDE_STREAM) * 2 + all.max(0);
        start.is_some_and(|start| {
            i64::from(self.seq.wrapping_sub(start as u32).wrapping_add(BESIDE_STREAM)) <= reach
        })
    }
}

/// Of the sockets between two addresses and ports a packet's. A port that is used again has another socket: the one whose numbers the packet
/// has, else the one nearest to when the packet was first seen, of those the latest; of some packets the end is not seen.
pub(crate) fn nearest<'a>(
    sockets: impl Iterator<Item = &'a SocketRow>,
    packet: SegmentOf,
) -> Option<&'a SocketRow> {
    let apart = |s: &SocketRow, until_ns: i64| {
        s.first_ns.saturating_sub(until_ns).max(packet.first_ns.saturating_sub(s.last_ns)).max(0)
    };
    let rated = sockets.filter_map(|s| {
        let in_stream = packet.in_stream(s);
        let limit = if in_stream { APART_IN_STREAM_NS } else { APART_NS };
        let key = (!in_stream, apart(s, packet.first_ns), -s.first_ns);
        (apart(s, packet.last_ns) <= limit).then_some((key, s))
    });
    rated.min_by_key(|(key, _)| *key).map(|(_, s)| s)
}

/// Did a packet begin (`sent`) or end at a socket of this host?
pub(crate) fn ends_at_socket(sent: bool, was_received: bool, verdict: i32) -> bool {
    if sent { !was_received } else { verdict == crate::codes::verdict::DELIVERED }
}

/// Number of the first byte of a segment: a SYN has one of its own, before its data (TCP Fast Open, RFC 7413).
pub(crate) fn first_byte(seq: i64, flags: i64) -> i64 {
    const SYN: i64 = 2;
    if flags != NULL && flags & SYN != 0 { (seq + 1) & i64::from(u32::MAX) } else { seq }
}

/// Bytes of a stream, and the calls that have them.
#[derive(Debug)]
pub(crate) struct BytesOfStream {
    pub offset: i64,
    pub calls: Vec<BytesOfCall>,
    pub missing_bytes: i64,
}

/// Laps of 4 GiB of a stream in which a packet's numbers are looked for: 17 TB. A damaged log's may have any number.
const MOST_LAPS: i64 = 1 << 12;

/// Which of a stream's calls until `until_ns` have the bytes from number `seq` on. `start`: number of the stream's first byte; `all`: how
/// many it has.
pub(crate) fn bytes_of_stream(
    stream: &[StreamCall],
    (start, all): (i64, i64),
    (seq, bytes): (i64, i64),
    until_ns: i64,
) -> BytesOfStream {
    // Sequence numbers come again after 4 GiB: the last lap that was begun until then. The first number that the log saw need not be the lowest:
    // segments change their order, and one from before the recording may be sent again.
    let lap0 = i64::from((seq as u32).wrapping_sub(start as u32));
    let first = if lap0 > all.max(i64::from(i32::MAX)) { -1 } else { 0 };
    let offset = lap0 + (first << 32);
    let mut out = BytesOfStream { offset, calls: Vec::new(), missing_bytes: bytes };
    let reach = stream.last().map_or(0, |c| c.offset.saturating_add(c.bytes)).min(all);
    for lap in (first..=(reach.saturating_sub(lap0).max(0) >> 32).min(MOST_LAPS)).rev() {
        let from = lap0 + (lap << 32);
        let to = from + bytes;
        // Calls do not overlap, so there are no more than bytes; in a damaged log there may be.
        let first = stream.partition_point(|c| c.offset + c.bytes <= from);
        let within =
            stream[first..].iter().take_while(|c| c.offset < to).take(usize::try_from(bytes).unwrap_or(0));
        let found = within.filter(|c| c.at_ns <= until_ns).map(|c| BytesOfCall {
            id: c.id,
            at_ns: c.at_ns,
            bytes: c.bytes,
            carried_bytes: to.min(c.offset + c.bytes) - from.max(c.offset),
            carried_from: from.max(c.offset) - from,
            pid: c.pid,
            error: None,
        });
        out.calls.extend(found);
        if !out.calls.is_empty() {
            out.offset = from;
            break;
        }
    }
    out.missing_bytes -= out.calls.iter().map(|c| c.carried_bytes).sum::<i64>();
    out
}

impl Store {
    /// Whose bytes a packet carries. `None`: the log has no socket of it.
    pub fn carried(&self, d: &PacketDetail) -> Result<Option<Carried>> {
        if self.table::<SocketRow>()?.rows() == 0 {
            return Ok(None);
        }
        let sockets = self.sockets()?;
        let of_tcp = |f: &&FootprintRow| f.ip_proto == Some(TCP) && f.tcp_seq.is_some();
        let Some(first) = d.footprints.iter().find(of_tcp) else {
            return self.carried_datagram(d, &sockets);
        };
        let payload_bytes = first.payload_bytes.unwrap_or(0).max(0);
        let mut out = Carried { payload_bytes, ..Carried::default() };
        for f in d.footprints.iter().filter(of_tcp) {
            let (Some(sport), Some(dport), Some(seq)) = (f.sport, f.dport, f.tcp_seq) else { continue };
            let seq = first_byte(seq, f.tcp_flags.map_or(NULL, i64::from));
            let (first_ns, last_ns) = (d.packet.first_ns, d.packet.last_ns);
            let segment = |sent| SegmentOf { first_ns, last_ns, seq: seq as u32, sent };
            let (src, dst) = ((f.ip_src.clone(), sport), (f.ip_dst.clone(), dport));
            let translated = |own: &(Option<String>, i32), peer: &(Option<String>, i32), sent| {
                let (own, peer) = ((own.0.as_deref(), own.1), (peer.0.as_deref(), peer.1));
                let ended_here = ends_at_socket(sent, d.packet.if_in.is_some(), d.packet.verdict);
                let place =
                    sockets.translated(own, peer, ended_here, |s| segment(sent).is_of(s, payload_bytes))?;
                Some(&sockets.rows[place as usize])
            };
            if out.written.is_none()
                && let Some(s) = nearest(sockets.between(TCP, src.clone(), dst.clone()), segment(true))
                    .or_else(|| translated(&src, &dst, true))
            {
                out.written = Some(self.end(
                    s,
                    s.sent_seq,
                    seq,
                    payload_bytes,
                    Crossing::ToTransport,
                    d.packet.last_ns,
                )?);
            }
            if out.read.is_none()
                && let Some(s) = nearest(sockets.between(TCP, dst.clone(), src.clone()), segment(false))
                    .or_else(|| translated(&dst, &src, false))
            {
                out.read = Some(self.end(s, s.received_seq, seq, payload_bytes, Crossing::Recv, i64::MAX)?);
            }
        }
        Ok((out.written.is_some() || out.read.is_some()).then_some(out))
    }

    /// The calls of one end, those that were made until `until_ns`.
    fn end(
        &self,
        socket: &SocketRow,
        start: Option<i64>,
        seq: i64,
        payload_bytes: i64,
        what: Crossing,
        until_ns: i64,
    ) -> Result<CarriedBy> {
        let process = self.socket_process(socket).map(str::to_owned);
        let mut out = CarriedBy {
            socket: socket.clone(),
            process,
            offset: None,
            calls: Vec::new(),
            missing_bytes: payload_bytes,
        };
        let Some(start) = start.filter(|_| payload_bytes > 0) else { return Ok(out) };
        let all = match what {
            Crossing::Recv => socket.received_bytes,
            _ => socket.sent_bytes,
        };
        let stream = self.stream(socket.socket_id, what)?;
        let found = bytes_of_stream(&stream, (start, all), (seq, payload_bytes), until_ns);
        (out.offset, out.missing_bytes) = (Some(found.offset), found.missing_bytes);
        out.calls = found.calls;
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_of_a_syn_begin_behind_its_own_number() {
        assert_eq!(first_byte(1000, 0x02), 1001);
        assert_eq!(first_byte(0xffff_ffff, 0x12), 0);
        assert_eq!((first_byte(1000, 0x18), first_byte(1000, NULL)), (1000, 1000));
    }

    #[test]
    fn bytes_before_the_first_that_the_log_saw_have_their_calls() {
        let call = |id, offset, bytes| StreamCall { id, offset, bytes, at_ns: 0, pid: None };
        // The second segment came first, and the stream's number counts from there.
        let stream = [call(1, -1355, 100), call(2, -1255, 1255), call(3, 0, 500)];
        let of = |seq: i64, bytes, all| {
            let found = bytes_of_stream(&stream, (1000, all), (seq, bytes), i64::MAX);
            let calls: Vec<_> = found.calls.iter().map(|c| (c.id, c.carried_from, c.carried_bytes)).collect();
            (found.offset, calls, found.missing_bytes)
        };
        let wrapped = i64::from(1000u32.wrapping_sub(1355));
        assert_eq!(of(wrapped, 1355, 1855), (-1355, vec![(1, 0, 100), (2, 100, 1255)], 0));
        assert_eq!(of(wrapped, 1455, 1855), (-1355, vec![(1, 0, 100), (2, 100, 1255), (3, 1355, 100)], 0));
        // One from before the recording, sent again with what came after it.
        assert_eq!(of(i64::from(1000u32.wrapping_sub(2000)), 745, 1855), (-2000, vec![(1, 645, 100)], 645));
        // Not yet read.
        assert_eq!(of(1500, 100, 500), (500, vec![], 100));
        // As a damaged log has them: a stream without end, and many calls with the same bytes.
        assert_eq!(of(1000, 100, i64::MAX).1.len(), 1);
        let same: Vec<StreamCall> = (0..1000).map(|id| call(id, 0, 12)).collect();
        assert_eq!(bytes_of_stream(&same, (1000, 12), (1000, 12), i64::MAX).calls.len(), 12);
    }
}
