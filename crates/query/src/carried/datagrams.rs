//! The datagram that a packet is: by which socket it went or came, and in which call.
//!
//! Both recordings look at one tracepoint, where the device's queue gets a packet and where it comes from a device. Their programs run one
//! after the other on the CPU that is there, always in the same order, so to a packet belongs what the other saw before this CPU's next
//! packet was there. Which of both is first is seen from how near they are. Where functions are recorded in place of the tracepoint, it lies
//! within the function's call. The address of the packet's `sk_buff` has to agree; a raw socket gets a
//! clone. What no device's queue had within its call: see `store/unqueued.rs`. Rejected: ports and nearness in time alone. Many datagrams of one size within a burst look the same, and one in a thousand times an
//! interrupt comes between the two programs.

use super::{BytesOfCall, Carried, CarriedBy};
use crate::codes::call_flag;
use crate::error::Result;
use crate::packet::{CallNode, PacketDetail};
use crate::protocol::ETH_IPV6;
use crate::store::{Datagrams, Passing, Sighting, Sockets, Store, Unqueued, Wanted};
use kpat_store::tables::*;

/// Two programs of one moment are not further apart, but for a long interrupt.
const APART_NS: i64 = 1_000_000;
/// So many packets before one, and so many behind it, are asked for its address.
const NEAR: usize = 64;
/// So many of what the other recording saw before it, and so many behind it, are asked which of both programs is first: that is the same for all.
const VOTES: usize = 16;
const UDP: [i32; 2] = [17, 136];
/// Functions with one of the tracepoints in them: what sends, and what receives (net/core/dev.c).
const CALLS: [&str; 5] = [
    "__dev_queue_xmit",
    "__netif_receive_skb_core",
    "netif_receive_skb_core",
    "__netif_receive_skb_one_core",
    "__netif_receive_skb_list_core",
];

impl Store {
    /// As [`Store::carried`], of a packet without a stream.
    pub(super) fn carried_datagram(&self, d: &PacketDetail, sockets: &Sockets) -> Result<Option<Carried>> {
        let mut out = self.unqueued_in_call(d.packet.packet_id, sockets)?;
        let whole = whole_of(&d.lineage, d.packet.packet_id);
        let mut places = Vec::new();
        self.places(&d.calls, &mut places);
        let p = &d.packet;
        let of = AskedOf {
            proto: p.proto,
            reassembled: whole == Some(p.packet_id),
            many: p.dst_addr.as_deref().is_some_and(is_for_many),
            port: p.dport,
            payload_bytes: payload_of(p.ethertype, p.len_bytes),
        };
        self.ends_at(&places, of, sockets, &mut out)?;
        // What is put together of fragments came from the device with one of them: which depends on their order.
        let Some(whole) = whole.filter(|_| out.read.as_ref().is_none_or(|e| e.calls.is_empty())) else {
            return Ok((out.written.is_some() || out.read.is_some()).then_some(out));
        };
        let lineage = self.lineage(whole)?;
        let parts = lineage.iter().filter(|l| is_reassembled(l.kind, l.child_id, whole)).map(|l| l.parent_id);
        places.clear();
        for part in parts.chain([whole]).take(MOST_PARTS) {
            self.places(&self.packet(part)?.calls, &mut places);
        }
        places.retain(|p| !p.sent());
        self.ends_at(&places, AskedOf { reassembled: true, ..of }, sockets, &mut out)?;
        Ok((out.written.is_some() || out.read.is_some()).then_some(out))
    }

    /// The writer of a packet that no device's queue had within the call that sent it.
    fn unqueued_in_call(&self, packet: i64, sockets: &Sockets) -> Result<Carried> {
        let mut out = Carried::default();
        let all = self.unqueued()?;
        let own = |of: &[Unqueued]| of.iter().any(|d| d.packet_id == packet);
        let Some((id, _)) = all.iter().find(|(_, of)| own(of)) else { return Ok(out) };
        let Some(socket) = sockets.get(*id) else { return Ok(out) };
        let Some((bytes, calls)) = self.datagrams(*id)?.calls_of_unqueued(packet) else { return Ok(out) };
        out.payload_bytes = bytes;
        out.written = Some(self.end_of(socket, bytes, calls));
        Ok(out)
    }

    /// The end of a datagram of so many bytes.
    fn end_of(&self, socket: &SocketRow, bytes: i64, calls: Vec<BytesOfCall>) -> CarriedBy {
        let process = self.socket_process(socket).map(str::to_owned);
        let missing_bytes = bytes - calls.iter().map(|c| c.carried_bytes).sum::<i64>();
        CarriedBy { socket: socket.clone(), process, offset: None, calls, missing_bytes }
    }

    /// Both ends of what was at these places.
    fn ends_at(&self, places: &[Place], of: AskedOf, sockets: &Sockets, out: &mut Carried) -> Result<()> {
        for place in places {
            if place.sent() && out.written.as_ref().is_some_and(|e| !e.calls.is_empty()) {
                continue;
            }
            for found in self.both(of, place, sockets)? {
                let Some(socket) = sockets.get(found.of) else { continue };
                let Some((bytes, calls)) = self.datagrams(found.of)?.calls_of(&found) else { continue };
                out.payload_bytes = out.payload_bytes.max(bytes);
                let end = self.end_of(socket, bytes, calls);
                let of = |e: &CarriedBy| e.socket.socket_id;
                let to = if found.sent { &mut out.written } else { &mut out.read };
                match to {
                    Some(t) if of(t) != of(&end) && !found.sent => {
                        // Several sockets get a copy: first comes one that reads it.
                        let further = if t.calls.is_empty() { std::mem::replace(t, end) } else { end };
                        if out.also_read.iter().all(|e| of(e) != of(&further)) {
                            out.also_read.push(further);
                        }
                    }
                    Some(t) if !t.calls.is_empty() || end.calls.is_empty() => {}
                    to => *to = Some(end),
                }
            }
        }
        Ok(())
    }

    fn places(&self, calls: &[CallNode], out: &mut Vec<Place>) {
        let mut tags = Vec::new();
        tags_of(calls, &mut tags);
        places_in(calls, &tags, out);
    }

    /// What the recording of applications saw of a packet of this protocol there: one crossing, or one for each socket that got a copy.
    pub(crate) fn both(&self, asked: AskedOf, place: &Place, sockets: &Sockets) -> Result<Vec<Passing>> {
        let AskedOf { proto, reassembled, many, .. } = asked;
        let tags = match place {
            Place::Point(p) => std::slice::from_ref(&p.tag),
            Place::Call { tags, .. } => tags.as_slice(),
        };
        let mut seen = self.crossings_of_datagrams(match place {
            Place::Point(p) => {
                let (from_ns, to_ns) = self.moments_of(p)?;
                Wanted { sent: p.sent, cpu: Some(p.cpu), from_ns, to_ns }
            }
            // A call is of the CPU that it returned on: a task may have been moved since.
            Place::Call { from_ns, to_ns, cpu, task, sent, .. } => {
                let cpu = (!sent || !task).then_some(*cpu);
                Wanted { sent: *sent, cpu, from_ns: *from_ns, to_ns: *to_ns }
            }
        })?;
        if seen.iter().any(|s| s.claimed.is_some()) {
            seen.retain(|s| sockets.get(s.of).is_none_or(|socket| asked.fits(s, socket)));
            seen = without_false_claims(seen);
        }
        // A clone's address says nothing, nor that of what several fragments were put together in: another than the first's.
        let raw = |s: &Passing| {
            let own = sockets.get(s.of).map_or(17, |x| x.proto);
            !s.sent && !UDP.contains(&own) && proto == Some(own)
        };
        // Several sockets of a group get clones, which came when the packet did; where its own sk_buff was for a socket that has no room, clones alone.
        let own = seen.iter().find(|s| tags.contains(&s.tag)).map(|s| s.at_ns);
        let clone = |s: &Passing| !s.sent && own.map_or(many, |at| s.at_ns == at);
        seen.retain(|s| tags.contains(&s.tag) || raw(s) || reassembled && !s.sent || clone(s));
        let Some(first) = seen.first().copied() else { return Ok(seen) };
        // What gives it to a device may contain the call that gives it to the next.
        if place.sent() && matches!(place, Place::Call { .. }) {
            seen.retain(|s| s.at_ns == first.at_ns);
        }
        let one = seen.iter().all(|s| s.at_ns == first.at_ns) && (!first.sent || seen.len() == 1);
        Ok(if one { seen } else { Vec::new() })
    }

    /// From when to when the other recording's program ran for the packet of this point.
    fn moments_of(&self, p: &Passing) -> Result<(i64, i64)> {
        let points = self.points_beside(p, APART_NS, NEAR)?;
        let mut seen = self.crossings_beside(p, APART_NS, VOTES)?.all;
        seen.retain(|s| (points.from_ns..=points.to_ns).contains(&s.at_ns));
        let (from_ns, to_ns) = between(p.at_ns, &points.all, &seen);
        Ok((from_ns.max(p.at_ns - APART_NS), to_ns.min(p.at_ns + APART_NS)))
    }
}

/// The last of a list of packets is claimed for each before it that was taken early. It is reported itself, or the last claim is right.
fn without_false_claims(seen: Vec<Passing>) -> Vec<Passing> {
    let right = |(n, s): &(usize, &Passing)| {
        let same = |l: &&Passing| (l.at_ns, l.tag) == (s.at_ns, s.tag);
        let reported = || seen.iter().filter(same).any(|l| l.claimed.is_none());
        s.claimed.is_none() || !(reported() || seen[n + 1..].iter().any(|l| same(&l)))
    };
    seen.iter().enumerate().filter(right).map(|(_, s)| *s).collect()
}

/// What is known of the packet that a place is asked about.
#[derive(Clone, Copy)]
pub(crate) struct AskedOf {
    pub proto: Option<i32>,
    pub reassembled: bool,
    /// It went to a group, or to all of a network.
    pub many: bool,
    /// As it was first seen: where it was sent, and what UDP has to carry of it.
    pub port: Option<i32>,
    pub payload_bytes: i64,
}

impl AskedOf {
    /// Can it be what a read of that socket had, which could not tell of it any more?
    fn fits(&self, seen: &Passing, socket: &SocketRow) -> bool {
        let port = !UDP.contains(&socket.proto) || self.port == Some(socket.local_port);
        seen.claimed.is_none_or(|bytes| port && !self.reassembled && bytes == self.payload_bytes)
    }
}

/// What UDP has to carry in a packet of so many bytes, by its EtherType.
pub(crate) fn payload_of(ethertype: Option<i32>, len_bytes: i64) -> i64 {
    len_bytes - if ethertype == Some(ETH_IPV6) { 48 } else { 28 }
}

/// Is an address one of a group, or of all? A network's own broadcast address ends as it mostly does.
pub(crate) fn is_for_many(addr: &str) -> bool {
    match addr.parse() {
        Ok(std::net::IpAddr::V4(a)) => a.is_multicast() || a.octets()[3] == 255,
        Ok(std::net::IpAddr::V6(a)) => a.is_multicast(),
        Err(_) => false,
    }
}

/// A datagram of 64 KiB in fragments of an MTU of 1,280 has as many.
const MOST_PARTS: usize = 64;

/// The packet that a fragment was put together into, or that was put together itself.
fn whole_of(lineage: &[LineageRow], packet: i64) -> Option<i64> {
    let found = lineage.iter().find(|l| {
        is_reassembled(l.kind, l.child_id, l.child_id) && [l.parent_id, l.child_id].contains(&packet)
    });
    found.map(|l| l.child_id)
}

/// Does this row of `lineage` say that a packet is the whole of fragments?
pub(crate) fn is_reassembled(kind: i32, child: i64, packet: i64) -> bool {
    kind == kpat_model::LineageKind::Reassembly as i32 && child == packet
}

/// Where both recordings see a packet.
pub(crate) enum Place {
    Point(Passing),
    /// `tags`: addresses of which it had one there. `task`: not in an interrupt.
    Call {
        from_ns: i64,
        to_ns: i64,
        cpu: i32,
        task: bool,
        tags: Vec<i32>,
        sent: bool,
    },
}

/// A packet and its copies have fewer addresses; a damaged log's calls may each have another, and each place on a list has all.
const MOST_TAGS: usize = 256;

/// The addresses that a packet and its copies had, as far as calls have them.
fn tags_of(calls: &[CallNode], out: &mut Vec<i32>) {
    for n in calls {
        if n.call.skb_tag != 0 && out.len() < MOST_TAGS && !out.contains(&n.call.skb_tag) {
            out.push(n.call.skb_tag);
        }
        tags_of(&n.children, out);
    }
}

fn places_in(calls: &[CallNode], tags: &[i32], out: &mut Vec<Place>) {
    for n in calls {
        out.extend(Place::of(&n.name, &n.call, tags));
        places_in(&n.children, tags, out);
    }
}

impl Place {
    /// A call of this function, if that is such a place. `tags`: the addresses that the packet had in any call; one on a list says none.
    pub fn of(function: &str, c: &CallRow, tags: &[i32]) -> Option<Place> {
        let base = function.split('.').next().unwrap_or_default();
        let own = std::slice::from_ref(&c.skb_tag);
        let tags = if c.flags & call_flag::LIST != 0 { tags } else { own };
        // Without its address (kprobes) another packet within the call might be taken for it, so 0 is that of one whose low bits are.
        let dur_ns = c.dur_ns.filter(|_| !tags.is_empty());
        match (base, dur_ns) {
            ("net:net_dev_queue" | "net:netif_receive_skb", _) => Some(Place::Point(Passing {
                at_ns: c.entry_ns,
                cpu: c.cpu,
                tag: c.skb_tag,
                sent: base == "net:net_dev_queue",
                of: c.packet_id.unwrap_or(-1),
                claimed: None,
            })),
            (_, Some(dur)) if CALLS.contains(&base) => Some(Place::Call {
                from_ns: c.entry_ns,
                to_ns: c.entry_ns.saturating_add(dur),
                cpu: c.cpu,
                task: c.ctx == kpat_model::Context::Task as i32,
                tags: tags.to_vec(),
                sent: base == CALLS[0],
            }),
            _ => None,
        }
    }

    pub fn sent(&self) -> bool {
        match self {
            Place::Point(p) => p.sent,
            Place::Call { sent, .. } => *sent,
        }
    }
}

impl Datagrams {
    /// Application's bytes of the packet that passed there, and the calls that have them. `None`: its socket has no such packet.
    pub(crate) fn calls_of(&self, found: &Passing) -> Option<(i64, Vec<BytesOfCall>)> {
        self.place_of(found).map(|place| self.calls_at(&self.sightings[place]))
    }

    /// It came, and lies in the socket when the log ends.
    pub(crate) fn waits(&self, found: &Passing) -> bool {
        self.place_of(found).is_some_and(|place| self.waiting.contains(&(place as u32)))
    }

    fn place_of(&self, found: &Passing) -> Option<usize> {
        let same = |s: &&Sighting| {
            s.unqueued.is_none()
                && (s.at_ns, s.cpu, s.sent) == (found.at_ns, found.cpu, found.sent)
                && s.tag & 0xffff == i64::from(found.tag)
        };
        let first = self.sightings.partition_point(|s| s.at_ns < found.at_ns);
        let seen = self.sightings[first..].iter().take_while(|s| s.at_ns == found.at_ns);
        seen.clone().position(|s| same(&s)).map(|n| first + n)
    }

    /// The same of a packet that no device's queue had within its call.
    fn calls_of_unqueued(&self, packet: i64) -> Option<(i64, Vec<BytesOfCall>)> {
        self.sightings.iter().find(|s| s.unqueued == Some(packet)).map(|seen| self.calls_at(seen))
    }

    /// All packets that no device's queue had within their calls: their numbers, when they were dropped or began to wait there, and the calls.
    pub(crate) fn unqueued(&self) -> impl Iterator<Item = (i64, i64, Vec<BytesOfCall>)> {
        self.sightings.iter().filter_map(|s| Some((s.unqueued?, s.at_ns, self.calls_at(s).1)))
    }

    /// Packets that waited for the next hop's link address from their calls on, and since when.
    pub(crate) fn asked(&self) -> impl Iterator<Item = (i64, i64)> {
        self.sightings.iter().filter(|s| s.asks).filter_map(|s| Some((s.unqueued?, s.at_ns)))
    }

    fn calls_at(&self, seen: &Sighting) -> (i64, Vec<BytesOfCall>) {
        let mut left = seen.bytes;
        let calls = seen.calls.iter().map(|i| {
            let c = self.calls[*i as usize];
            let (carried_bytes, carried_from) = (c.bytes.min(left), seen.bytes - left);
            left -= carried_bytes;
            BytesOfCall {
                id: c.id,
                at_ns: c.at_ns,
                bytes: c.bytes,
                carried_bytes,
                carried_from,
                pid: c.pid,
                error: c.error,
            }
        });
        (seen.bytes, calls.collect())
    }
}

/// When the other recording's program ran for the packet that this CPU had at `at_ns`. All in order of time.
fn between(at_ns: i64, points: &[Passing], seen: &[Passing]) -> (i64, i64) {
    // One that came late is nearer to the next packet; where few are seen it is the most of them. The next has another address, mostly.
    let later = |s: &Passing, own: bool| {
        let (before, behind) = points.split_at(points.partition_point(|p| p.at_ns <= s.at_ns));
        let same = |p: &&Passing| !own || p.tag == s.tag;
        let last = before.iter().rev().take(NEAR).find(same).map(|p| s.at_ns - p.at_ns);
        let nearer = |p: &&Passing| last.is_none_or(|last| p.at_ns - s.at_ns < last);
        let next = behind.iter().take(NEAR).take_while(nearer).find(same).map(|p| p.at_ns - s.at_ns);
        (last.is_some() || next.is_some()).then(|| last.unwrap_or(i64::MAX) <= next.unwrap_or(i64::MAX))
    };
    let votes = |own: bool| {
        let of_each = seen.iter().filter_map(|s| later(s, own));
        of_each.fold((0, 0), |(later, all), l| (later + usize::from(l), all + 1))
    };
    let (later, all) = match votes(true) {
        (_, 0) => votes(false),
        own => own,
    };
    if 2 * later >= all {
        let behind = points.partition_point(|p| p.at_ns <= at_ns);
        (at_ns, points.get(behind).map_or(i64::MAX, |p| p.at_ns - 1))
    } else {
        let here = points.partition_point(|p| p.at_ns < at_ns);
        (here.checked_sub(1).map_or(i64::MIN, |i| points[i].at_ns + 1), at_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(at_ns: i64) -> Passing {
        Passing { at_ns, cpu: 0, tag: 1, sent: true, of: 1, claimed: None }
    }

    #[test]
    fn the_last_of_a_list_is_claimed_once_and_only_if_it_is_not_reported() {
        let claim = |at_ns, of| Passing { sent: false, claimed: Some(9), of, ..at(at_ns) };
        let seen = |at_ns, of| Passing { sent: false, of, ..at(at_ns) };
        let all = vec![claim(1, 1), seen(1, 2), seen(1, 3), claim(2, 4), claim(2, 5), claim(3, 6)];
        let of: Vec<i64> = without_false_claims(all).iter().map(|s| s.of).collect();
        assert_eq!(of, [2, 3, 5, 6]);
    }

    #[test]
    fn what_came_late_is_still_of_its_own_packet() {
        let points = [at(1000), at(2000), at(3000)];
        // an interrupt came between the two programs: nearer to the next packet
        let seen = [at(1003), at(2990), at(3003)];
        assert_eq!(between(2000, &points, &seen), (2000, 2999));
        assert_eq!(between(3000, &points, &seen), (3000, i64::MAX));
        // the other way round
        let seen = [at(997), at(1100), at(2997)];
        assert_eq!(between(2000, &points, &seen), (1001, 2000));
        // the only one that was seen, and late: it has the address of the one before
        let of = |at_ns, tag| Passing { tag, ..at(at_ns) };
        let points = [of(1000, 1), of(2000, 2)];
        assert_eq!(between(1000, &points, &[of(1900, 1)]), (1000, 1999));
        assert_eq!(between(2000, &points, &[of(1100, 2)]), (1001, 2000));
        // the address says nothing of a clone
        assert_eq!(between(1000, &points, &[of(1100, 3)]), (1000, 1999));
    }
}
