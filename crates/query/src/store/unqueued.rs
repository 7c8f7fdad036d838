//! Datagrams that no device's queue had within the call that sent them: what was dropped there, as by a firewall's output rules, a route that forbids
//! what they were marked with, or a program on the way out; and what waited for the next hop's link address, to be sent later or never. No crossing shows
//! them there, but the drop, or the question for that address, is by the thread in whose call it happened.
//!
//! The call is the first that the thread ended after that, and all of the packet until then is within it: it began in this thread, after the call
//! before. The socket has the packet's protocol and port, in its namespace. What happened in an interrupt is of whatever packet was there, and not
//! taken; nor is a received packet, nor one of several that fit, nor one at a time when crossings were lost or probes skipped.
//! Rejected: the nearest call in time. Another thread may be in one at the same moment.

use super::Store;
use crate::codes::verdict;
use crate::error::Result;
use crate::roles::NEIGHBOUR;
use kpat_model::{Context, Crossing, EventKind, LossCause};
use kpat_store::NULL;
use kpat_store::tables::*;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, PoisonError};

/// A packet that no device's queue had within its call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unqueued {
    pub packet_id: i64,
    /// When it was dropped there, or the address was asked for.
    pub at_ns: i64,
    pub pid: i32,
    pub cpu: i32,
    /// Application's bytes in it.
    pub bytes: i64,
    /// It waits for the next hop's address.
    pub waits: Option<Waits>,
}

/// Of a packet that waits for the next hop's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Waits {
    /// Low bits of its own address in memory, which it keeps as long as it lives.
    pub tag: i32,
    /// It was last seen.
    pub until_ns: i64,
}

/// By socket.
pub(crate) type UnqueuedOfSockets = HashMap<i64, Vec<Unqueued>>;

const TCP: i64 = 6;
const UDP: [i32; 2] = [17, 136];
/// A raw socket that writes its packets' headers itself (IPPROTO_RAW), of whatever protocol they are.
const ANY: i32 = 255;
/// A call is over soon after the drop; what ends later may have another before it that is not in the log.
const SOON_NS: i64 = 1_000_000_000;

/// A time within which probes were skipped. The end of a call may be among them; the thread's next call then seems to be its packet's.
#[derive(Clone, Copy, Debug)]
pub(super) struct Skipped {
    from_ns: i64,
    to_ns: i64,
}

impl Skipped {
    pub fn meets(&self, from_ns: i64, to_ns: i64) -> bool {
        self.from_ns <= to_ns && self.to_ns >= from_ns
    }
}

/// Where that is in the log.
#[derive(Clone, Copy, Debug)]
struct Place {
    at_ns: i64,
    pid: i32,
    cpu: i32,
    /// It asked for an address, for the packet with this tag.
    asks: Option<i32>,
}

/// What a thread did next to it. Nothing: `i64::MIN` before it, `i64::MAX` after it.
#[derive(Debug)]
struct Found {
    of: Unqueued,
    packet: PacketRow,
    /// The last call that was over before, and the first after with its socket.
    over_before: i64,
    over_after: (i64, i64),
    /// The same of packets that the thread gave to a device's queue.
    queued_before: i64,
    queued_after: i64,
}

/// Has this socket sent such a packet, as far as headers show it?
fn fits(s: &SocketRow, p: &PacketRow) -> bool {
    let same = match UDP.contains(&s.proto) {
        true => p.proto == Some(s.proto) && p.sport == Some(s.local_port) && s.local_port != 0,
        false => s.proto == ANY || p.proto == Some(s.proto),
    };
    let netns = s.netns.zip(p.netns).is_none_or(|(a, b)| a == b);
    let own = s.local_addr.as_deref().zip(p.src_addr.as_deref());
    same && netns
        && own.is_none_or(|(own, src)| {
            let parsed = |a: &str| a.parse::<IpAddr>().map(|a| a.to_canonical()).ok();
            own == src
                || parsed(own).is_some_and(|a| a.is_unspecified())
                || parsed(own).is_some() && parsed(own) == parsed(src)
        })
}

/// Is it this packet, or a further fragment, which has no port? Both of one call; whether they are all of its bytes is asked later.
fn is_of_one(first: &PacketRow, p: &PacketRow) -> bool {
    let key = |p: &PacketRow| (p.proto, p.netns, p.src_addr.clone(), p.dst_addr.clone());
    p.packet_id == first.packet_id || p.sport.is_none() && key(p) == key(first)
}

/// Moves what threads did from one to those beside it. All of one thread, in order of time.
fn spread(found: &mut [Found]) {
    for i in 1..found.len() {
        let (over, queued) = (found[i - 1].over_before, found[i - 1].queued_before);
        found[i].over_before = found[i].over_before.max(over);
        found[i].queued_before = found[i].queued_before.max(queued);
    }
    for i in (1..found.len()).rev() {
        let (over, queued) = (found[i].over_after, found[i].queued_after);
        found[i - 1].over_after = found[i - 1].over_after.min(over);
        found[i - 1].queued_after = found[i - 1].queued_after.min(queued);
    }
}

impl Found {
    /// Is all of it within the call that was over next, and nothing of that call in a device's queue?
    fn is_within(&self) -> bool {
        let over = self.over_after.0;
        over != i64::MAX
            && over - self.of.at_ns <= SOON_NS
            && self.packet.first_ns > self.over_before
            && self.queued_before <= self.over_before
            && self.queued_after > over
    }
}

impl Store {
    /// Packets that no device's queue had within the calls that sent them, by the calls' sockets; of TCP none.
    pub(crate) fn unqueued(&self) -> Result<Arc<UnqueuedOfSockets>> {
        let mut kept = self.known.unqueued.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = kept.as_ref() {
            return Ok(Arc::clone(known));
        }
        let found = self.find_unqueued()?;
        Ok(Arc::clone(kept.insert(Arc::new(found))))
    }

    fn find_unqueued(&self) -> Result<UnqueuedOfSockets> {
        let mut out = UnqueuedOfSockets::new();
        let sockets = self.sockets()?;
        let others = sockets.rows.iter().filter(|s| i64::from(s.proto) != TCP);
        let by_id: HashMap<i64, &SocketRow> = others.map(|s| (s.socket_id, s)).collect();
        let mut threads = if by_id.is_empty() { HashMap::new() } else { self.unqueued_by_threads()? };
        if threads.is_empty() {
            return Ok(out);
        }
        self.look_beside(&mut threads)?;
        let gaps = self.all::<GapRow>()?;
        let skipped = self.skipped()?;
        // Of each call what is within it, of which one has its socket's port.
        let mut of_calls: HashMap<(i32, i64), Vec<&Found>> = HashMap::new();
        for found in threads.values().flatten().filter(|f| f.is_within()) {
            let over = found.over_after.0;
            let first = found.packet.first_ns;
            let lost = gaps.iter().any(|g| g.from_ns <= over && g.to_ns >= first)
                || skipped.iter().any(|s| s.meets(first, over));
            if !lost {
                let of = of_calls.entry((found.of.pid, over)).or_default();
                // Waited, and dropped in the same call: the drop counts.
                of.retain(|before| before.of.packet_id != found.of.packet_id);
                of.push(found);
            }
        }
        for call in of_calls.into_values() {
            let Some(socket) = by_id.get(&call[0].over_after.1) else { continue };
            let mut whole = call.iter().filter(|f| fits(socket, &f.packet));
            if let (Some(first), None) = (whole.next(), whole.next()) {
                let of_it = call.iter().filter(|f| is_of_one(&first.packet, &f.packet));
                out.entry(socket.socket_id).or_default().extend(of_it.map(|f| f.of));
            }
        }
        Ok(out)
    }

    /// When the kernel skipped probes.
    pub(super) fn skipped(&self) -> Result<Vec<Skipped>> {
        let losses = self.all::<LossRow>()?.into_iter();
        let skipped =
            losses.filter(|l| [LossCause::Recursion as i32, LossCause::NotRun as i32].contains(&l.cause));
        Ok(skipped.map(|l| Skipped { from_ns: l.from_ns, to_ns: l.to_ns }).collect())
    }

    /// Where a task dropped packets, the last of each.
    fn drops_in_tasks(&self, places: &mut HashMap<i64, Vec<Place>>) -> Result<()> {
        let table = self.table::<EventRow>()?;
        let mut last: HashMap<i64, Place> = HashMap::new();
        for group in table.groups_where("kind", &(EventKind::Drop as i64..=EventKind::Drop as i64)) {
            let [kinds, packets, contexts] = ["kind", "packet_id", "ctx"].map(|c| table.ints(group, c));
            let (kinds, packets, contexts) = (kinds?, packets?, contexts?);
            let [pids, cpus, at] = ["pid", "cpu", "at_ns"].map(|c| table.ints(group, c));
            let (pids, cpus, at) = (pids?, cpus?, at?);
            for i in 0..kinds.len() {
                if kinds[i] == EventKind::Drop as i64 && packets[i] != NULL {
                    let in_task = contexts[i] == Context::Task as i64 && pids[i] > 0;
                    let pid = if in_task { pids[i] as i32 } else { 0 };
                    last.insert(packets[i], Place { at_ns: at[i], pid, cpu: cpus[i] as i32, asks: None });
                }
            }
        }
        last.retain(|_, place| place.pid != 0);
        last.into_iter().for_each(|(packet, place)| places.entry(packet).or_default().push(place));
        Ok(())
    }

    /// Where a task first asked for the link address of packets' next hop.
    fn asks_in_tasks(&self, places: &mut HashMap<i64, Vec<Place>>) -> Result<()> {
        if !self.roles.iter().any(|r| r.has(NEIGHBOUR)) {
            return Ok(());
        }
        let table = self.table::<CallRow>()?;
        let mut first: HashMap<i64, Place> = HashMap::new();
        for group in 0..table.groups() {
            let functions = table.ints(group, "func_id")?;
            let asks = |i: &u32| self.role_of(functions[*i as usize]).has(NEIGHBOUR);
            let these: Vec<u32> = (0..functions.len() as u32).filter(asks).collect();
            if these.is_empty() {
                continue;
            }
            for c in table.rows_at::<CallRow>(group, &these)? {
                let (Some(packet), true) = (c.packet_id, c.ctx == Context::Task as i32 && c.pid > 0) else {
                    continue;
                };
                let place = Place { at_ns: c.entry_ns, pid: c.pid, cpu: c.cpu, asks: Some(c.skb_tag) };
                let known = first.entry(packet).or_insert(place);
                if place.at_ns < known.at_ns {
                    *known = place;
                }
            }
        }
        first.into_iter().for_each(|(packet, place)| places.entry(packet).or_default().push(place));
        Ok(())
    }

    /// Packets that began in the thread that dropped them, or asked for an address for them, by thread, in order of time.
    fn unqueued_by_threads(&self) -> Result<HashMap<i32, Vec<Found>>> {
        let mut wanted: HashMap<i64, Vec<Place>> = HashMap::new();
        self.asks_in_tasks(&mut wanted)?;
        self.drops_in_tasks(&mut wanted)?;
        let mut out: HashMap<i32, Vec<Found>> = HashMap::new();
        let table = self.table::<PacketRow>()?;
        let groups = if wanted.is_empty() { 0 } else { table.groups() };
        for group in 0..groups {
            let [ids, protos] = ["packet_id", "proto"].map(|c| table.ints(group, c));
            let (ids, protos) = (ids?, protos?);
            let rows: Vec<u32> = (0..ids.len() as u32)
                .filter(|i| protos[*i as usize] != TCP && wanted.contains_key(&ids[*i as usize]))
                .collect();
            for packet in table.rows_at::<PacketRow>(group, &rows)? {
                if packet.if_in.is_some() {
                    continue;
                }
                let own = |p: &&Place| match p.asks {
                    Some(_) => true,
                    None => packet.verdict == verdict::DROPPED && packet.pid == Some(p.pid),
                };
                let bytes = carried_bytes(&packet);
                for &Place { at_ns, pid, cpu, asks } in wanted[&packet.packet_id].iter().filter(own) {
                    let waits = asks.map(|tag| Waits { tag, until_ns: packet.last_ns });
                    out.entry(pid).or_default().push(Found {
                        of: Unqueued { packet_id: packet.packet_id, at_ns, pid, cpu, bytes, waits },
                        packet: packet.clone(),
                        over_before: i64::MIN,
                        over_after: (i64::MAX, -1),
                        queued_before: i64::MIN,
                        queued_after: i64::MAX,
                    });
                }
            }
        }
        for found in out.values_mut() {
            found.sort_by_key(|d| d.of.at_ns);
        }
        Ok(out)
    }

    /// What these threads did before and after: calls that were over, and packets that came to a device's queue.
    fn look_beside(&self, threads: &mut HashMap<i32, Vec<Found>>) -> Result<()> {
        let table = self.table::<AppEventRow>()?;
        let over = [Crossing::Send, Crossing::Recv].map(|c| c as i64);
        for group in 0..table.groups() {
            let [what, at, pids] = ["crossing", "at_ns", "pid"].map(|c| table.ints(group, c));
            let (what, at, pids) = (what?, at?, pids?);
            let (contexts, sockets) = (table.ints(group, "ctx")?, table.ints(group, "socket_id")?);
            for i in 0..what.len() {
                let queued = what[i] == Crossing::ToDevice as i64;
                if pids[i] == NULL
                    || contexts[i] != Context::Task as i64
                    || !(queued || over.contains(&what[i]))
                {
                    continue;
                }
                let Some(found) = threads.get_mut(&(pids[i] as i32)) else { continue };
                let place = found.partition_point(|d| d.of.at_ns <= at[i]);
                let (before, after) = found.split_at_mut(place);
                if let Some(d) = before.last_mut() {
                    match queued {
                        true => d.queued_after = d.queued_after.min(at[i]),
                        false => d.over_after = d.over_after.min((at[i], sockets[i])),
                    }
                }
                if let Some(d) = after.first_mut() {
                    match queued {
                        true => d.queued_before = d.queued_before.max(at[i]),
                        false => d.over_before = d.over_before.max(at[i]),
                    }
                }
            }
        }
        threads.values_mut().for_each(|found| spread(found));
        Ok(())
    }
}

/// What an application gave of it: behind the header of UDP, which further fragments have not; of other protocols behind that of IP, which raw sockets give or are given.
fn carried_bytes(p: &PacketRow) -> i64 {
    let v6 = p.src_addr.as_deref().is_some_and(|a| a.contains(':'));
    let udp = p.sport.is_some() && p.proto.is_some_and(|p| UDP.contains(&p));
    (p.len_bytes - if v6 { 40 } else { 20 } - if udp { 8 } else { 0 }).max(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drop(at_ns: i64, first_ns: i64) -> Found {
        Found {
            of: Unqueued { packet_id: at_ns, at_ns, pid: 7, cpu: 0, bytes: 10, waits: None },
            packet: PacketRow { first_ns, ..PacketRow::default() },
            over_before: i64::MIN,
            over_after: (i64::MAX, -1),
            queued_before: i64::MIN,
            queued_after: i64::MAX,
        }
    }

    #[test]
    fn what_a_thread_did_is_known_of_drops_further_on() {
        // Two drops, then one call: of the first the call after it is the same.
        let mut drops = [drop(100, 90), drop(200, 190), drop(300, 290)];
        drops[0].over_before = 50;
        drops[1].over_after = (250, 4);
        drops[2].over_before = 250;
        spread(&mut drops);
        assert_eq!(drops.each_ref().map(|d| d.over_before), [50, 50, 250]);
        assert_eq!(drops.each_ref().map(|d| d.over_after.0), [250, 250, i64::MAX]);
        assert_eq!(drops.each_ref().map(Found::is_within), [true, true, false]);
    }

    #[test]
    fn a_packet_of_an_earlier_call_or_of_a_queue_is_not_taken() {
        let within = |change: fn(&mut Found)| {
            let mut d = drop(100, 90);
            (d.over_before, d.over_after) = (50, (150, 4));
            change(&mut d);
            d.is_within()
        };
        assert!(within(|_| ()));
        assert!(!within(|d| d.over_before = 95), "it was there before the call");
        assert!(!within(|d| d.over_after.0 = 100 + SOON_NS + 1), "long after it");
        assert!(!within(|d| d.queued_before = 95), "its device's queue had it");
        assert!(!within(|d| d.queued_after = 120));
        assert!(within(|d| (d.queued_before, d.queued_after) = (40, 160)), "those of the calls beside it");
    }

    #[test]
    fn a_socket_has_sent_what_has_its_port_and_namespace() {
        let s = |proto, port, addr: Option<&str>| SocketRow {
            proto,
            local_port: port,
            local_addr: addr.map(str::to_owned),
            netns: Some(1),
            ..SocketRow::default()
        };
        let p = |proto, sport| PacketRow {
            proto: Some(proto),
            sport,
            src_addr: Some("10.0.0.1".to_owned()),
            netns: Some(1),
            ..PacketRow::default()
        };
        assert!(fits(&s(17, 5000, None), &p(17, Some(5000))));
        assert!(fits(&s(17, 5000, Some("0.0.0.0")), &p(17, Some(5000))));
        assert!(fits(&s(17, 5000, Some("::ffff:10.0.0.1")), &p(17, Some(5000))));
        assert!(!fits(&s(17, 5000, Some("10.0.0.2")), &p(17, Some(5000))));
        assert!(!fits(&s(17, 5000, None), &p(17, Some(5001))));
        assert!(!fits(&s(17, 5000, None), &p(1, None)));
        assert!(!fits(&s(17, 5000, None), &PacketRow { netns: Some(2), ..p(17, Some(5000)) }));
        assert!(fits(&s(1, 77, None), &p(1, None)));
        assert!(fits(&s(255, 255, None), &p(17, Some(9))));
        assert!(!fits(&s(253, 253, None), &p(1, None)));
    }
}
