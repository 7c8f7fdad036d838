//! What kernels dropped of the segments that a socket sent once it was connected: why they had to be sent again. A listener whose accept queue is full
//! drops all that comes of connections whose other end takes them for opened.
//!
//! A dropped packet is the socket's if it has its ports and a number within what it sent. Rejected: its addresses, which are others where a packet was
//! translated, or hashes.

use super::opening::{RST, SYN};
use crate::app::connections::Host;
use crate::error::Result;
use crate::store::Store;
use kpat_model::EventKind;
use kpat_store::NULL;
use kpat_store::tables::{DeviceRow, EventRow, FootprintRow, SocketRow};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ops::RangeInclusive;

/// Of include/net/dropreason-core.h, from 6.14 on; before, the kernel does not say why.
const NO_ROOM: &str = "TCP_LISTEN_OVERFLOW";
/// Packets of a log beyond these are not looked at.
const MOST: usize = 1 << 18;

/// Drops of one reason at one place.
#[derive(Clone, Debug)]
pub struct Drops {
    /// Place of the host in whose log they are.
    pub host: usize,
    /// Empty: not known.
    pub reason: String,
    pub place: String,
    /// The device that they were at; `None`: not known.
    pub device: Option<DeviceRow>,
    pub drops: u64,
    /// The first such packet.
    pub packet: i64,
}

impl Drops {
    /// The listener had no room for the connection.
    pub fn no_room(&self) -> bool {
        self.reason == NO_ROOM
    }
}

/// What was dropped, by packet: each time with its reason, its place and when.
type Dropped = HashMap<i64, Vec<(i64, i64, i64)>>;

/// What a packet's headers say of TCP.
struct Segment {
    seq: i64,
    flags: i64,
    payload: i64,
}

fn is_no_room(store: &Store, reason: i64) -> bool {
    store.drop_reason(reason as i32) == Some(NO_ROOM)
}

/// What TCP drops of keepalives it has answered.
fn is_of_tcp(store: &Store, reason: i64) -> bool {
    store.drop_reason(reason as i32).is_some_and(|name| name.starts_with("TCP_"))
}

/// Of what the sender sent, `bytes` in all, within this time of its own host; most frequent first. `idle`: the number behind all that was sent, of a
/// connection that ended as nothing answered its keepalives, which have the number before.
pub(super) fn find(
    hosts: &[Host<'_>],
    at: usize,
    sender: &SocketRow,
    bytes: i64,
    idle: Option<i64>,
    within: RangeInclusive<i64>,
) -> Result<Vec<Drops>> {
    let Some(start) = sender.sent_seq else { return Ok(Vec::new()) };
    let mut out: Vec<Drops> = Vec::new();
    for (n, host) in hosts.iter().enumerate() {
        let window = if n == at { within.clone() } else { i64::MIN..=i64::MAX };
        let dropped = dropped(host.store, &window)?;
        let own = |packet: i64, s: &Segment| {
            let offset = i64::from((s.seq as u32).wrapping_sub(start as u32) as i32);
            // Of what carries nothing only that is lost which a listener should have taken: TCP frees acknowledgements as if it dropped them.
            let of = |is: fn(&Store, i64) -> bool| dropped[&packet].iter().any(|d| is(host.store, d.0));
            let keepalive = idle.is_some_and(|end| (end as u32).wrapping_sub(s.seq as u32) == 1);
            let counts = match s.payload > 0 || of(is_no_room) {
                true => (0..=bytes + 1).contains(&offset),
                false => keepalive && of(|store, reason| !is_of_tcp(store, reason)),
            };
            s.flags & (SYN | RST) == 0 && counts
        };
        let packets = of_ports(host.store, sender, &dropped, &window, own)?;
        by_cause(host.store, n, &packets, &dropped, &mut out)?;
    }
    out.sort_by_key(|d| std::cmp::Reverse(d.drops));
    Ok(out)
}

/// The same of these packets of the host at place `at`.
pub(super) fn of_packets(store: &Store, at: usize, packets: &BTreeSet<i64>) -> Result<Vec<Drops>> {
    let mut out = Vec::new();
    if !packets.is_empty() {
        let dropped = dropped(store, &(i64::MIN..=i64::MAX))?;
        let those: Vec<i64> = packets.iter().copied().filter(|p| dropped.contains_key(p)).collect();
        by_cause(store, at, &those, &dropped, &mut out)?;
    }
    out.sort_by_key(|d| std::cmp::Reverse(d.drops));
    Ok(out)
}

fn by_cause(
    store: &Store,
    at: usize,
    packets: &[i64],
    dropped: &Dropped,
    out: &mut Vec<Drops>,
) -> Result<()> {
    let devices = devices(store, packets, dropped)?;
    let mut by: BTreeMap<(i64, i64, Option<Device>), (u64, i64)> = BTreeMap::new();
    for packet in packets {
        for (reason, place, at) in &dropped[packet] {
            let device = devices.get(&(*packet, *at)).map(|seen| seen.1);
            let known = by.entry((*reason, *place, device)).or_insert((0, *packet));
            known.0 += 1;
            known.1 = known.1.min(*packet);
        }
    }
    out.extend(by.into_iter().map(|((reason, place, device), (drops, packet))| {
        let event = EventRow { kind: EventKind::Drop as i32, a: reason, b: place, ..EventRow::default() };
        let said = store.explain(event);
        let device = device.and_then(|d| store.device(Some(d.0), Some(d.1 as i32))).cloned();
        Drops { host: at, reason: said.reason, place: said.place, device, drops, packet }
    }));
    Ok(())
}

/// Namespace and number.
type Device = (i64, i64);

/// Where these packets were last seen before each of their drops, by packet and time, and when that was.
fn devices(store: &Store, packets: &[i64], dropped: &Dropped) -> Result<HashMap<(i64, i64), (i64, Device)>> {
    let wanted: HashSet<i64> = packets.iter().copied().collect();
    let all = || packets.iter().flat_map(|p| &dropped[p]).map(|d| d.2);
    let mut out: HashMap<(i64, i64), (i64, Device)> = HashMap::new();
    let Some(last) = all().max() else { return Ok(out) };
    let table = store.table::<FootprintRow>()?;
    for group in table.groups_where("at_ns", &(i64::MIN..=last)) {
        let [of, at, netns, ifindex] =
            ["packet_id", "at_ns", "netns", "ifindex"].map(|c| table.ints(group, c));
        let (of, at, netns, ifindex) = (of?, at?, netns?, ifindex?);
        for i in (0..of.len()).filter(|i| wanted.contains(&of[*i])) {
            for (_, _, dropped_ns) in dropped[&of[i]].iter().filter(|d| d.2 >= at[i]) {
                let seen = out.entry((of[i], *dropped_ns)).or_insert((i64::MIN, (NULL, NULL)));
                if seen.0 <= at[i] {
                    *seen = (at[i], (netns[i], ifindex[i]));
                }
            }
        }
    }
    Ok(out)
}

/// Once for each drop.
fn dropped(store: &Store, window: &RangeInclusive<i64>) -> Result<Dropped> {
    let table = store.table::<EventRow>()?;
    let mut out = Dropped::new();
    for group in table.groups_where("kind", &(EventKind::Drop as i64..=EventKind::Drop as i64)) {
        let [kinds, packets, at, a, b] =
            ["kind", "packet_id", "at_ns", "a", "b"].map(|c| table.ints(group, c));
        let (kinds, packets, at, a, b) = (kinds?, packets?, at?, a?, b?);
        for i in 0..kinds.len() {
            let is = kinds[i] == EventKind::Drop as i64 && packets[i] != NULL && window.contains(&at[i]);
            // A bridge's other copies are dropped by hosts that they are not for.
            if is && out.len() < MOST && store.drop_reason(a[i] as i32) != Some("OTHERHOST") {
                out.entry(packets[i]).or_default().push((a[i], b[i], at[i]));
            }
        }
    }
    Ok(out)
}

/// Which of these have the sender's ports, and a number and flags that fit; each once.
fn of_ports(
    store: &Store,
    sender: &SocketRow,
    those: &Dropped,
    window: &RangeInclusive<i64>,
    fits: impl Fn(i64, &Segment) -> bool,
) -> Result<Vec<i64>> {
    let ports = (i64::from(sender.local_port), i64::from(sender.peer_port));
    let mut out = Vec::new();
    if those.is_empty() {
        return Ok(out);
    }
    let table = store.table::<FootprintRow>()?;
    for group in table.groups_where("at_ns", window) {
        let [packets, sport, dport, seq, flags, payload] =
            ["packet_id", "sport", "dport", "tcp_seq", "tcp_flags", "payload_bytes"]
                .map(|c| table.ints(group, c));
        let (packets, sport, dport, seq, flags, payload) = (packets?, sport?, dport?, seq?, flags?, payload?);
        let segment = |i: usize| Segment { seq: seq[i], flags: flags[i], payload: payload[i] };
        let is = |i: &usize| {
            (sport[*i], dport[*i]) == ports && seq[*i] != NULL && those.contains_key(&packets[*i])
        };
        let fitting = (0..packets.len()).filter(is).filter(|i| fits(packets[*i], &segment(*i)));
        out.extend(fitting.map(|i| packets[i]));
    }
    out.sort_unstable();
    out.dedup();
    Ok(out)
}
