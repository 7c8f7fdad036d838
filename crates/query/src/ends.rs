//! Who wrote and who read the bytes of every packet, and how long these waited: what conditions over applications and packets ask. The same
//! answers as [`crate::carried`], for all packets from one pass over each table, kept as long as the log is open.
//!
//! Rejected: a look-up per packet, which reads the same row groups again for each; and columns of the table of packets, which most logs would
//! have for nothing.

use crate::carried::{
    AskedOf, BytesOfCall, Place, SegmentOf, bytes_of_stream, ends_at_socket, first_byte, is_for_many,
    is_reassembled, nearest, payload_of,
};
use crate::codes::call_flag;
use crate::error::{Error, Result};
use crate::roles::{QDISC_IN, XMIT};
pub(crate) use crate::store::{BothEnds, End, Ends};
use crate::store::{Store, StreamCall};
use kpat_model::Crossing;
use kpat_model::hash::Map;
use kpat_store::tables::*;
use kpat_store::{NULL, Row};
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, PoisonError};

const TCP: i32 = 6;

impl Ends {
    /// Writes of a socket, each with the time until all of it was acknowledged, by [`key_of_write`].
    pub(crate) fn of_writes(store: &Store, socket: &SocketRow, writes: &[(StreamCall, Option<i64>)]) -> Ends {
        let mut ends = Ends { sockets: vec![socket.clone()], names: vec![String::new()], ..Ends::default() };
        let mut known = HashMap::new();
        for (w, acked_ns) in writes {
            let writer = Some(ends.end(store, &mut known, 0, w.pid, w.at_ns));
            let both = BothEnds { writer, reader: None, acked_ns: *acked_ns };
            ends.of.insert(key_of_write(w.id), both);
        }
        ends
    }

    fn end(
        &mut self,
        store: &Store,
        known: &mut HashMap<String, u32>,
        socket: usize,
        pid: Option<i32>,
        at_ns: i64,
    ) -> End {
        let pid = pid.or(self.sockets[socket].pid);
        let comm = pid.and_then(|pid| store.process(pid, at_ns)).map(|p| p.comm.as_str());
        let process = comm.filter(|c| !c.is_empty()).map_or(0, |comm| {
            known.get(comm).copied().unwrap_or_else(|| {
                self.names.push(comm.to_owned());
                let place = self.names.len() as u32 - 1;
                known.insert(comm.to_owned(), place);
                place
            })
        });
        End { socket: socket as u32, pid, process, ..End::default() }
    }
}

/// A call that wrote or read bytes of a packet.
#[derive(Clone, Copy, Debug)]
pub struct CallOfPacket {
    pub packet_id: i64,
    pub is_read: bool,
    /// Place of its socket in [`Ends::sockets`].
    socket: u32,
    pub call: BytesOfCall,
}

/// Who wrote and who read the bytes of each packet, for what shows all of them.
#[derive(Debug, Default)]
pub struct CarriedByAll {
    ends: Ends,
    /// By packet, its writes first, and by socket.
    calls: Vec<CallOfPacket>,
}

/// A packet's writer or reader.
#[derive(Clone, Debug)]
pub struct EndOfPacket<'a> {
    pub socket_id: i64,
    pub pid: Option<i32>,
    pub process: Option<&'a str>,
    /// As the filter fields `write` and `read`.
    pub wait_ns: Option<i64>,
    /// Of a datagram: when it crossed to the device's queue, or from the device.
    pub crossed_ns: Option<i64>,
    /// It lies in this socket when the log ends, for sure.
    pub waits: bool,
    pub calls: &'a [CallOfPacket],
}

impl CarriedByAll {
    pub fn calls(&self) -> &[CallOfPacket] {
        &self.calls
    }

    /// Its writer, and its readers: several where several sockets got a copy.
    pub fn of(&self, packet: i64) -> (Option<EndOfPacket<'_>>, Vec<EndOfPacket<'_>>) {
        let writer = self.ends.of(packet).writer.and_then(|end| self.end(packet, false, &end));
        let readers = self.ends.all_of(packet).filter_map(|b| self.end(packet, true, &b.reader?));
        (writer, readers.collect())
    }

    /// Whose call it is.
    pub fn end_of(&self, c: &CallOfPacket) -> Option<EndOfPacket<'_>> {
        let ends = self.ends.all_of(c.packet_id).filter_map(|b| if c.is_read { b.reader } else { b.writer });
        let own = ends.into_iter().find(|e| e.socket == c.socket);
        own.and_then(|end| self.end(c.packet_id, c.is_read, &end))
    }

    fn end(&self, packet: i64, is_read: bool, end: &End) -> Option<EndOfPacket<'_>> {
        let key = (packet, is_read, end.socket);
        let of = |c: &CallOfPacket| (c.packet_id, c.is_read, c.socket);
        let from = self.calls.partition_point(|c| of(c) < key);
        let to = self.calls.partition_point(|c| of(c) <= key);
        Some(EndOfPacket {
            socket_id: self.ends.socket(end)?.socket_id,
            pid: end.pid,
            process: self.ends.process(end),
            wait_ns: end.wait_ns,
            crossed_ns: end.crossed_ns,
            waits: end.waits,
            calls: &self.calls[from..to],
        })
    }
}

/// Takes a packet's calls, whether they read, and the place of their socket.
type Give<'a> = dyn FnMut(i64, bool, u32, &[BytesOfCall]) + 'a;

/// What a packet's row tells of it.
#[derive(Clone, Copy)]
struct Life {
    first_ns: i64,
    last_ns: i64,
    proto: i64,
    /// It began, and it ended, at a socket of this host.
    at_socket: [bool; 2],
    /// Of UDP: the port it was sent to, and what it has to carry.
    port: Option<u16>,
    payload_bytes: i32,
}

/// What footprints tell of a TCP packet.
#[derive(Clone, Copy, Default)]
struct Segment {
    payload_bytes: i64,
    /// Socket and number of the first byte, of writer and reader.
    ends: [Option<(u32, u32)>; 2],
}

impl Store {
    /// Whose bytes all packets carry.
    ///
    /// Errors: [`Error::Abandoned`].
    pub(crate) fn ends(&self, progress: &mut dyn FnMut(u64, u64) -> bool) -> Result<Arc<Ends>> {
        let mut kept = self.known.ends.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(ends) = kept.as_ref() {
            return Ok(Arc::clone(ends));
        }
        let ends = self.follow_ends(progress, &mut |_, _, _, _| ())?;
        Ok(Arc::clone(kept.insert(Arc::new(ends))))
    }

    /// Writers and readers of all packets, with their calls.
    ///
    /// Errors: [`Error::Abandoned`].
    pub fn carried_by(&self, progress: &mut dyn FnMut(u64, u64) -> bool) -> Result<CarriedByAll> {
        let mut calls: Vec<CallOfPacket> = Vec::new();
        let ends = self.follow_ends(progress, &mut |packet_id, is_read, socket, of| {
            calls.extend(of.iter().map(|call| CallOfPacket { packet_id, is_read, socket, call: *call }));
        })?;
        calls.sort_by_key(|c| (c.packet_id, c.is_read, c.socket));
        Ok(CarriedByAll { ends, calls })
    }

    /// Finds both ends of all packets; `give` gets the calls that have a packet's bytes, of its writer and of its readers (true), and the place of their socket.
    fn follow_ends(&self, progress: &mut dyn FnMut(u64, u64) -> bool, give: &mut Give<'_>) -> Result<Ends> {
        let sockets = self.sockets()?.rows.clone();
        let mut ends = Ends { sockets, names: vec![String::new()], ..Ends::default() };
        if !ends.sockets.is_empty() {
            let lives = self.lives()?;
            let mut known = HashMap::new();
            self.of_streams(&mut ends, &mut known, &lives, progress, give)?;
            self.of_datagrams(&mut ends, &mut known, &lives, progress, give)?;
        }
        Ok(ends)
    }

    fn lives(&self) -> Result<Map<i64, Life>> {
        let table = self.table::<PacketRow>()?;
        let mut out: Map<i64, Life> = Map::default();
        for group in 0..table.groups() {
            let columns = ["packet_id", "first_ns", "last_ns", "proto", "if_in", "verdict"];
            let [ids, first, last, proto, if_in, verdict] = columns.map(|column| table.ints(group, column));
            let (ids, first, last, proto, if_in, verdict) = (ids?, first?, last?, proto?, if_in?, verdict?);
            let [port, ethertype, len] = ["dport", "ethertype", "len_bytes"].map(|c| table.ints(group, c));
            let (port, ethertype, len) = (port?, ethertype?, len?);
            out.extend((0..ids.len()).map(|i| {
                let at_socket = |sent| ends_at_socket(sent, if_in[i] != NULL, verdict[i] as i32);
                let life = Life {
                    first_ns: first[i],
                    last_ns: last[i],
                    proto: proto[i],
                    at_socket: [at_socket(true), at_socket(false)],
                    port: u16::try_from(port[i]).ok(),
                    payload_bytes: payload_of(i32::try_from(ethertype[i]).ok(), len[i]) as i32,
                };
                (ids[i], life)
            }));
        }
        Ok(out)
    }

    /// Packets that went to a group, or to all of a network.
    fn for_many(&self) -> Result<HashSet<i64>> {
        let table = self.table::<PacketRow>()?;
        let mut out = HashSet::new();
        for group in 0..table.groups() {
            let mut reader = table.batches(vec![group], &["packet_id", "dst_addr"])?;
            while let Some(batch) = reader.next(8192)? {
                let rows = (0..batch.rows).map(|i| <PacketRow as Row>::get(&batch, i));
                let fits = |p: &PacketRow| p.dst_addr.as_deref().is_some_and(is_for_many);
                out.extend(rows.filter(fits).map(|p| p.packet_id));
            }
        }
        Ok(out)
    }

    fn of_streams(
        &self,
        ends: &mut Ends,
        known: &mut HashMap<String, u32>,
        lives: &Map<i64, Life>,
        progress: &mut dyn FnMut(u64, u64) -> bool,
        give: &mut Give<'_>,
    ) -> Result<()> {
        type Address<'a> = (Option<&'a str>, i32);
        let mut between: HashMap<(Address<'_>, Address<'_>), Vec<u32>> = HashMap::new();
        for (place, s) in (0..).zip(&ends.sockets).filter(|(_, s)| s.proto == TCP) {
            let key = ((s.local_addr.as_deref(), s.local_port), (s.peer_addr.as_deref(), s.peer_port));
            between.entry(key).or_default().push(place);
        }
        if between.is_empty() {
            return Ok(());
        }
        let sockets = &ends.sockets;
        let all = self.sockets()?;
        let mut segments: Map<i64, Segment> = Map::default();
        let table = self.table::<FootprintRow>()?;
        for group in 0..table.groups() {
            if !progress(group as u64, table.groups() as u64) {
                return Err(Error::Abandoned);
            }
            let columns = [
                "packet_id",
                "ip_src",
                "ip_dst",
                "ip_proto",
                "sport",
                "dport",
                "tcp_seq",
                "tcp_flags",
                "payload_bytes",
            ];
            let mut reader = table.batches(vec![group], &columns)?;
            while let Some(batch) = reader.next(8192)? {
                for f in (0..batch.rows).map(|i| <FootprintRow as Row>::get(&batch, i)) {
                    let (Some(TCP), Some(seq)) = (f.ip_proto, f.tcp_seq) else { continue };
                    let seq = first_byte(seq, f.tcp_flags.map_or(NULL, i64::from));
                    let segment = segments.entry(f.packet_id).or_insert_with(|| Segment {
                        payload_bytes: f.payload_bytes.unwrap_or(0).max(0),
                        ..Segment::default()
                    });
                    let (Some(sport), Some(dport)) = (f.sport, f.dport) else { continue };
                    let (src, dst) = ((f.ip_src.as_deref(), sport), (f.ip_dst.as_deref(), dport));
                    let Some(life) = lives.get(&f.packet_id) else { continue };
                    for (end, (key, sent)) in
                        segment.ends.iter_mut().zip([((src, dst), true), ((dst, src), false)])
                    {
                        if end.is_some() {
                            continue;
                        }
                        let bytes = segment.payload_bytes;
                        let those = between.get(&key).map_or(&[][..], Vec::as_slice);
                        let of = those.iter().map(|place| &sockets[*place as usize]);
                        let of_end = SegmentOf {
                            first_ns: life.first_ns,
                            last_ns: life.last_ns,
                            seq: seq as u32,
                            sent,
                        };
                        let found = nearest(of, of_end).map(|s| s.socket_id);
                        let place = those.iter().find(|p| Some(sockets[**p as usize].socket_id) == found);
                        let ended_here = life.at_socket[usize::from(!sent)];
                        let translated =
                            || all.translated(key.0, key.1, ended_here, |s| of_end.is_of(s, bytes));
                        let place = place.copied().or_else(translated);
                        *end = place.map(|place| (place, seq as u32));
                    }
                }
            }
        }
        segments.retain(|_, s| s.ends.iter().any(Option::is_some));
        let tcp: HashSet<i64> = sockets.iter().filter(|s| s.proto == TCP).map(|s| s.socket_id).collect();
        let of_streams = [Crossing::ToTransport, Crossing::Recv, Crossing::Acked].map(|c| c as i64);
        let streams = self.all_streams(&|socket, c| of_streams.contains(&c) && tcp.contains(&socket))?;
        for (packet, s) in segments {
            let Life { first_ns, last_ns, .. } = lives[&packet];
            let mut both = BothEnds::default();
            for (i, end) in s.ends.into_iter().enumerate() {
                let Some((place, seq)) = end else { continue };
                let row = &ends.sockets[place as usize];
                let (start, all, until) = match i {
                    0 => (row.sent_seq, row.sent_bytes, last_ns),
                    _ => (row.received_seq, row.received_bytes, i64::MAX),
                };
                let id = row.socket_id;
                let found = start.filter(|_| s.payload_bytes > 0).map(|start| {
                    let stream = streams.get(&(id, of_streams[i])).map_or(&[][..], Vec::as_slice);
                    bytes_of_stream(stream, (start, all), (seq.into(), s.payload_bytes), until)
                });
                let calls = found.as_ref().map_or(&[][..], |f| &f.calls[..]);
                give(packet, i == 1, place, calls);
                let pid = calls.first().and_then(|c| c.pid);
                let mut end = ends.end(self, known, place as usize, pid, first_ns);
                if let Some(f) = &found {
                    end.wait_ns = match i {
                        0 => calls.first().filter(|c| c.carried_from == 0).map(|c| first_ns - c.at_ns),
                        _ => read_after(calls, f.missing_bytes, first_ns),
                    };
                    if i == 0 {
                        let acks = streams.get(&(id, of_streams[2])).map_or(&[][..], Vec::as_slice);
                        let to = f.offset + s.payload_bytes;
                        let ack = acks.get(acks.partition_point(|a| a.offset + a.bytes < to));
                        both.acked_ns = ack.filter(|a| a.offset < to).map(|a| a.at_ns - first_ns);
                    }
                }
                *(if i == 0 { &mut both.writer } else { &mut both.reader }) = Some(end);
            }
            ends.of.insert(packet, both);
        }
        Ok(())
    }

    /// Calls and points at which both recordings see a packet, of each packet that they had, in order of time.
    fn places_of_datagrams(
        &self,
        wanted: &dyn Fn(i64) -> bool,
        progress: &mut dyn FnMut(u64, u64) -> bool,
    ) -> Result<Vec<(i64, CallRow)>> {
        let probe = CallRow { dur_ns: Some(0), skb_tag: 1, ..CallRow::default() };
        let is_place = |f: &&FunctionRow| Place::of(&f.name, &probe, &[]).is_some();
        let functions: Vec<i64> =
            self.functions.iter().filter(is_place).map(|f| i64::from(f.func_id)).collect();
        let table = self.table::<CallRow>()?;
        let mut places: Vec<(i64, CallRow)> = Vec::new();
        let mut lists: HashMap<i64, CallRow> = HashMap::new();
        for group in 0..table.groups() {
            if !progress(group as u64, table.groups() as u64) {
                return Err(Error::Abandoned);
            }
            let (packets, called) = (table.ints(group, "packet_id")?, table.ints(group, "func_id")?);
            let flags = table.ints(group, "flags")?;
            let fits = |i: &u32| {
                let i = *i as usize;
                let listed = flags[i] & i64::from(call_flag::LIST) != 0;
                functions.contains(&called[i]) && (listed || wanted(packets[i]))
            };
            let at: Vec<u32> = (0..called.len() as u32).filter(fits).collect();
            for c in table.rows_at::<CallRow>(group, &at)? {
                if c.flags & call_flag::LIST != 0 {
                    lists.insert(c.call_id, c.clone());
                }
                places.extend(c.packet_id.filter(|p| wanted(*p)).map(|p| (p, c)));
            }
        }
        if !lists.is_empty() {
            let members = self.table::<CallMemberRow>()?;
            members.each((0..members.groups()).collect(), |m: CallMemberRow| {
                let call = lists.get(&m.call_id).filter(|_| wanted(m.packet_id));
                places.extend(call.map(|c| (m.packet_id, c.clone())));
            })?;
        }
        places.sort_by_key(|(_, c)| c.entry_ns);
        Ok(places)
    }

    /// The addresses that packets had which are on lists at these places.
    fn tags_of_listed(&self, places: &[(i64, CallRow)]) -> Result<HashMap<i64, Vec<i32>>> {
        let listed = |(p, c): &(i64, CallRow)| (c.flags & call_flag::LIST != 0).then_some((*p, Vec::new()));
        let mut tags: HashMap<i64, Vec<i32>> = places.iter().filter_map(listed).collect();
        let table = self.table::<CallRow>()?;
        let groups = if tags.is_empty() { 0 } else { table.groups() };
        for group in 0..groups {
            let (packets, all) = (table.ints(group, "packet_id")?, table.ints(group, "skb_tag")?);
            for (packet, tag) in packets.iter().zip(all).filter(|(_, tag)| *tag != 0) {
                let Some(known) = tags.get_mut(packet) else { continue };
                let tag = tag as i32;
                if !known.contains(&tag) {
                    known.push(tag);
                }
            }
        }
        Ok(tags)
    }

    fn of_datagrams(
        &self,
        ends: &mut Ends,
        known: &mut HashMap<String, u32>,
        lives: &Map<i64, Life>,
        progress: &mut dyn FnMut(u64, u64) -> bool,
        give: &mut Give<'_>,
    ) -> Result<()> {
        let others = ends.sockets.iter().enumerate().filter(|(_, s)| s.proto != TCP);
        let by_id: HashMap<i64, usize> = others.map(|(i, s)| (s.socket_id, i)).collect();
        if by_id.is_empty() {
            return Ok(());
        }
        let datagrams = self.all_datagrams(&|socket| by_id.contains_key(&socket))?;
        let sockets = self.sockets()?;
        let of_other = |p: i64| lives.get(&p).is_some_and(|l| l.proto != i64::from(TCP));
        let places = self.places_of_datagrams(&of_other, progress)?;
        let tags = self.tags_of_listed(&places)?;
        let many = self.for_many()?;
        // Of each packet that was put together: its fragments.
        let mut wholes: HashMap<i64, Vec<i64>> = HashMap::new();
        let lineage = self.table::<LineageRow>()?;
        lineage.each((0..lineage.groups()).collect(), |l: LineageRow| {
            if is_reassembled(l.kind, l.child_id, l.child_id) {
                wholes.entry(l.child_id).or_default().push(l.parent_id);
            }
        })?;
        // What reads of them is given, of those alone.
        let parts: HashMap<i64, i64> =
            wholes.iter().flat_map(|(whole, of)| of.iter().chain([whole]).map(|p| (*p, *whole))).collect();
        let mut reads: HashMap<i64, (End, Vec<BytesOfCall>)> = HashMap::new();
        for (n, (packet, call)) in places.iter().enumerate() {
            if n % 4096 == 0 && !progress(n as u64, places.len() as u64) {
                return Err(Error::Abandoned);
            }
            let tags = tags.get(packet).map_or(&[][..], Vec::as_slice);
            let Some(place) = Place::of(self.function_name(call.func_id), call, tags) else { continue };
            let Life { first_ns, proto, port, payload_bytes, .. } = lives[packet];
            let mut both = ends.of(*packet);
            let mut own: Vec<(u32, Vec<BytesOfCall>)> = Vec::new();
            if place.sent() && both.writer.is_some_and(|e| e.has_calls) {
                continue;
            }
            let proto = (proto != NULL).then_some(proto as i32);
            let of = AskedOf {
                proto,
                reassembled: wholes.contains_key(packet),
                many: many.contains(packet),
                port: port.map(i32::from),
                payload_bytes: payload_bytes.into(),
            };
            for found in self.both(of, &place, &sockets)? {
                let Some((_, of)) = by_id.get_key_value(&found.of) else { continue };
                let Some(known_of) = datagrams.get(&found.of) else { continue };
                let Some((bytes, calls)) = known_of.calls_of(&found) else { continue };
                let missing = bytes - calls.iter().map(|c| c.carried_bytes).sum::<i64>();
                let pid = calls.first().and_then(|c| c.pid);
                let mut end = ends.end(self, known, *of, pid, first_ns);
                (end.has_calls, end.crossed_ns) = (!calls.is_empty(), Some(found.at_ns));
                if !found.sent {
                    end.waits = known_of.waits(&found);
                    end.wait_ns = read_after(&calls, missing, first_ns);
                }
                let to = if found.sent { &mut both.writer } else { &mut both.reader };
                match to {
                    Some(t) if t.socket != end.socket && !found.sent => {
                        let also = ends.also.entry(*packet).or_default();
                        if also.iter().all(|e| e.socket != end.socket) {
                            // Several sockets get a copy: first comes one that reads it.
                            also.push(if t.has_calls { end } else { std::mem::replace(t, end) });
                            own.push((*of as u32, calls));
                        }
                    }
                    Some(t) if t.has_calls || !end.has_calls => {}
                    to => {
                        *to = Some(end);
                        own.push((*of as u32, calls));
                    }
                }
            }
            if let (Some(whole), Some(end)) = (parts.get(packet), both.reader.filter(|e| e.has_calls)) {
                let calls = own.iter().find(|(socket, _)| *socket == end.socket);
                reads.entry(*whole).or_insert_with(|| (end, calls.map_or_else(Vec::new, |c| c.1.clone())));
            }
            for (socket, calls) in &own {
                give(*packet, !place.sent(), *socket, calls);
            }
            if both != BothEnds::default() {
                ends.of.insert(*packet, both);
            }
        }
        for (socket, of) in &datagrams {
            let Some(place) = by_id.get(socket) else { continue };
            for (packet, at_ns, calls) in of.unqueued() {
                let queued = ends.of(packet).writer.filter(|e| e.socket == *place as u32);
                if queued.is_some_and(|e| e.has_calls) {
                    continue;
                }
                let first_ns = lives.get(&packet).map_or(at_ns, |l| l.first_ns);
                let mut end = ends.end(self, known, *place, calls.first().and_then(|c| c.pid), first_ns);
                (end.has_calls, end.crossed_ns) = (!calls.is_empty(), queued.and_then(|e| e.crossed_ns));
                give(packet, false, *place as u32, &calls);
                let both = BothEnds { writer: Some(end), ..ends.of(packet) };
                ends.of.insert(packet, both);
            }
        }
        // All fragments are read by the call that read the whole.
        for (part, whole) in parts {
            let Some((end, calls)) = reads.get(&whole) else { continue };
            let mut both = ends.of(part);
            if both.reader.is_none_or(|e| !e.has_calls) {
                let wait_ns = read_after(calls, 0, lives.get(&part).map_or(0, |l| l.first_ns));
                both.reader = Some(End { wait_ns, ..*end });
                give(part, true, end.socket, calls);
                ends.of.insert(part, both);
            }
        }
        Ok(())
    }

    /// How long packets were between the device's queue and its driver, those that were in both.
    ///
    /// Errors: [`Error::Abandoned`].
    pub(crate) fn queued(&self, progress: &mut dyn FnMut(u64, u64) -> bool) -> Result<Arc<Map<i64, i64>>> {
        let mut kept = self.known.queued.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(queued) = kept.as_ref() {
            return Ok(Arc::clone(queued));
        }
        let mut seen: Vec<(i64, i64, bool)> = Vec::new();
        let table = self.table::<CallRow>()?;
        for group in 0..table.groups() {
            if !progress(group as u64, table.groups() as u64) {
                return Err(Error::Abandoned);
            }
            let [packets, functions, at] =
                ["packet_id", "func_id", "entry_ns"].map(|column| table.ints(group, column));
            let (packets, functions, at) = (packets?, functions?, at?);
            seen.extend((0..packets.len()).filter(|i| packets[*i] != NULL).filter_map(|i| {
                let role = self.role_of(functions[i]);
                role.has(QDISC_IN | XMIT).then_some((packets[i], at[i], role.has(XMIT)))
            }));
        }
        seen.sort_unstable();
        let mut queued: Map<i64, i64> = Map::default();
        let mut since: Option<(i64, i64)> = None;
        for (packet, at, leaves) in seen {
            let own = since.filter(|s| s.0 == packet);
            since = match (own, leaves) {
                (Some((_, from)), true) => {
                    *queued.entry(packet).or_default() += at - from;
                    None
                }
                (None, false) => Some((packet, at)),
                // In the queue of one device it is given to the next function that does so.
                (own, _) => own,
            };
        }
        Ok(Arc::clone(kept.insert(Arc::new(queued))))
    }
}

/// Numbers of packets are positive, and frames without one have -1.
pub(crate) fn key_of_write(id: i64) -> i64 {
    -2 - id
}

/// Until all of it had been read.
fn read_after(calls: &[BytesOfCall], missing_bytes: i64, first_ns: i64) -> Option<i64> {
    let last = calls.iter().map(|c| c.at_ns).max();
    last.filter(|_| missing_bytes == 0).map(|at| at - first_ns)
}
