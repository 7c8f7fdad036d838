//! Queues of the path: where a host between the two ends is in the sender's log (a router, a bridge, the host of a container), when which of the sender's packets
//! lay in the queue of which of its devices.
//!
//! A window that is full of what lies in such a queue is not what holds the sender back: more would only wait there, and the next acknowledgement comes as fast
//! as that queue is emptied. So of the time in which something of the socket lies in one, the queue is the cause, as of the sender's own
//! ([`super::line::stage`]). Rejected: the queue's share of the round trip, which is all of it for a window of one packet as well, where a wider
//! one would have helped.
//!
//! A stay begins where the packet is queued, and ends where the driver has it, or what a device cut it into. What the sender's own namespace queues is in
//! the crossings of its socket, and no part of this.

use super::line::{Line, Piece};
use super::{Stage, neighbour};
use crate::app::Spread;
use crate::carried::first_byte;
use crate::error::Result;
use crate::roles::{QDISC_IN, XMIT};
use crate::store::Store;
use kpat_store::NULL;
use kpat_store::tables::{CallRow, DeviceRow, FootprintRow, SocketRow};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Packets beyond these are not looked at.
const MOST: usize = 1 << 18;
/// Shorter ones are the way through a queue.
const SHORTEST_NS: i64 = 20_000;

/// Network namespace and interface.
type Device = (i64, i32);

/// A packet in a device's queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stay {
    /// The bytes of the stream that it carries; of what has no stream the packet's number, and one more.
    pub first: i64,
    pub end: i64,
    pub from_ns: i64,
    pub to_ns: i64,
    /// When the packet, or what it was cut from, was first seen.
    pub left_ns: i64,
    pub device: Device,
}

/// By where their bytes end.
#[derive(Debug, Default)]
pub(super) struct Stays {
    all: Vec<Stay>,
    /// Of the longest.
    bytes: i64,
}

/// The queue of the path in which most of the time was spent.
#[derive(Clone, Debug)]
pub struct PathQueue {
    /// `None`: the log does not name it.
    pub device: Option<DeviceRow>,
    /// Of packets that lay in it, how long.
    pub stays_ns: Spread,
    /// Of the time from when these were first seen until they were acknowledged, the share in this queue; `None`: not known.
    pub of_round_trip: Option<f64>,
}

/// Which packets are meant.
pub(super) enum Of<'a> {
    /// Those with bytes of its stream, of so many in all.
    Stream(&'a SocketRow, i64),
    Packets(&'a BTreeSet<i64>),
}

impl Of<'_> {
    /// What is known of a row of headers: the bytes that it carries, if it is one of these packets.
    fn bytes(
        &self,
        packet: i64,
        ports: (i64, i64),
        seq: i64,
        flags: i64,
        payload: i64,
    ) -> Option<(i64, i64)> {
        match self {
            Of::Packets(those) => those.contains(&packet).then_some((packet, packet + 1)),
            Of::Stream(socket, bytes) => {
                let start = socket.sent_seq?;
                let own = (i64::from(socket.local_port), i64::from(socket.peer_port));
                // The low 32 bits of a place; which of those it is tells nothing here but its distance to what lies in queues at the same time.
                let first = i64::from((first_byte(seq, flags) as u32).wrapping_sub(start as u32));
                (ports == own && seq != NULL && payload > 0 && first <= *bytes)
                    .then_some((first, first + payload))
            }
        }
    }
}

/// Where a packet was when.
#[derive(Default)]
struct Followed {
    bytes: (i64, i64),
    /// In order of time, with where its bytes end there: a device may cut it, and let it go on as its own first part.
    places: Vec<(i64, Device, i64)>,
    /// When it was queued, or its driver got it (`true`).
    passed: Vec<(i64, bool)>,
}

impl Followed {
    /// At which device, and where its bytes ended.
    fn place(&self, at_ns: i64) -> Option<(Device, i64)> {
        let i = self.places.partition_point(|p| p.0 <= at_ns).checked_sub(1)?;
        Some((self.places[i].1, self.places[i].2))
    }
}

/// Those in other namespaces than this one.
pub(super) fn stays(store: &Store, of: &Of<'_>, netns: Option<i64>, from_ns: i64) -> Result<Stays> {
    let Some(netns) = netns else { return Ok(Stays::default()) };
    let mut followed = followed(store, of, from_ns)?;
    followed.retain(|_, f| f.places.iter().any(|p| p.1.0 != netns));
    if followed.is_empty() {
        return Ok(Stays::default());
    }
    let table = store.table::<CallRow>()?;
    for group in table.groups_where("entry_ns", &(from_ns..=i64::MAX)) {
        let [packets, functions, at] = ["packet_id", "func_id", "entry_ns"].map(|c| table.ints(group, c));
        let (packets, functions, at) = (packets?, functions?, at?);
        for i in 0..packets.len() {
            let role = store.role_of(functions[i]);
            if !role.has(QDISC_IN | XMIT) {
                continue;
            }
            if let Some(f) = followed.get_mut(&packets[i]) {
                f.passed.push((at[i], role.has(XMIT)));
            }
        }
    }
    Ok(Stays::of(followed.into_values().collect(), netns))
}

fn followed(store: &Store, of: &Of<'_>, from_ns: i64) -> Result<HashMap<i64, Followed>> {
    let mut out: HashMap<i64, Followed> = HashMap::new();
    let table = store.table::<FootprintRow>()?;
    for group in table.groups_where("at_ns", &(from_ns..=i64::MAX)) {
        let columns = [
            "packet_id",
            "at_ns",
            "netns",
            "ifindex",
            "sport",
            "dport",
            "tcp_seq",
            "tcp_flags",
            "payload_bytes",
        ];
        let [packets, at, netns, ifindex, sport, dport, seq, flags, payload] =
            columns.map(|c| table.ints(group, c));
        let (packets, at, netns, ifindex) = (packets?, at?, netns?, ifindex?);
        let (sport, dport, seq, flags, payload) = (sport?, dport?, seq?, flags?, payload?);
        for i in (0..packets.len()).filter(|i| at[*i] >= from_ns) {
            let bytes = of.bytes(packets[i], (sport[i], dport[i]), seq[i], flags[i], payload[i]);
            let full = out.len() >= MOST;
            let f = match (out.get_mut(&packets[i]), bytes) {
                // What the way makes of its headers does not matter any more.
                (Some(f), _) => f,
                (None, Some(bytes)) if !full => {
                    out.entry(packets[i]).or_insert(Followed { bytes, ..Followed::default() })
                }
                _ => continue,
            };
            if let (true, Ok(ifindex)) = (netns[i] != NULL, i32::try_from(ifindex[i])) {
                f.places.push((at[i], (netns[i], ifindex), bytes.map_or(f.bytes.1, |b| b.1)));
            }
        }
    }
    Ok(out)
}

impl Stays {
    fn of(packets: Vec<Followed>, netns: i64) -> Stays {
        let mut all: Vec<Stay> = Vec::new();
        // Queued, and never the driver's as they were; and what the driver got that had not been queued: when, first seen, which bytes.
        type Open = BTreeMap<Device, Vec<(i64, i64, (i64, i64))>>;
        let (mut kept, mut parts) = (Open::new(), Open::new());
        for mut f in packets {
            f.passed.sort_unstable();
            let left_ns = f.places.first().map_or(i64::MAX, |p| p.0);
            let mut since: Option<(i64, Device)> = None;
            let mut queued = BTreeSet::new();
            for (at, leaves) in &f.passed {
                let Some((device, end)) = f.place(*at).filter(|(d, _)| d.0 != netns) else { continue };
                match (since, leaves) {
                    (Some((from_ns, from)), true) => {
                        let (first, all_of_it) = f.bytes;
                        all.push(Stay { first, end, from_ns, to_ns: *at, left_ns, device: from });
                        if end < all_of_it {
                            kept.entry(from).or_default().push((from_ns, left_ns, f.bytes));
                        }
                        since = None;
                    }
                    (None, false) => {
                        queued.insert(device);
                        since = Some((*at, device));
                    }
                    // A function of the driver's behind another.
                    (None, true) if queued.contains(&device) => {}
                    (None, true) => parts.entry(device).or_default().push((*at, left_ns, f.bytes)),
                    // One device gives it to the next function that queues it.
                    (Some(_), false) => {}
                }
            }
            if let Some((from_ns, device)) = since {
                kept.entry(device).or_default().push((from_ns, left_ns, f.bytes));
            }
        }
        for (device, parts) in parts {
            let Some(whole) = kept.get_mut(&device) else { continue };
            whole.sort_unstable();
            for (to_ns, _, (first, end)) in parts {
                // The last that was queued before and has its bytes.
                let before = &whole[..whole.partition_point(|w| w.0 <= to_ns)];
                let of = before.iter().rev().take(MOST_QUEUED).find(|w| w.2.0 <= first && end <= w.2.1);
                if let Some((from_ns, left_ns, _)) = of.copied() {
                    all.push(Stay { first, end, from_ns, to_ns, left_ns, device });
                }
            }
        }
        all.retain(|s| s.to_ns - s.from_ns >= SHORTEST_NS);
        all.sort_unstable_by_key(|s| (s.end, s.from_ns));
        let bytes = all.iter().map(|s| s.end - s.first).max().unwrap_or(0);
        Stays { all, bytes }
    }

    /// When something lay in a queue: in order, without overlap.
    pub fn times(&self) -> Vec<(i64, i64)> {
        neighbour::merged(self.all.iter().map(|s| (s.from_ns, s.to_ns)).collect())
    }

    /// Cuts from a line's time on its way what this byte spent in queues.
    pub fn cut(&self, line: &mut Line, byte: i64) {
        let from = self.all.partition_point(|s| s.end <= byte);
        let near = self.all[from..].iter().take_while(|s| s.end - byte <= self.bytes);
        let mut own: Vec<&Stay> = near.filter(|s| s.first <= byte).collect();
        own.sort_unstable_by_key(|s| s.from_ns);
        if own.is_empty() {
            return;
        }
        let pieces = std::mem::take(&mut line.pieces);
        for (piece, to_ns) in pieces {
            let on_way = matches!(piece, Piece::At(Stage::Wire | Stage::Beyond));
            for s in own.iter().filter(|_| on_way) {
                line.go_on(piece, Some(s.from_ns.min(to_ns)));
                line.go_on(Piece::At(Stage::Path), Some(s.to_ns.min(to_ns)));
            }
            line.go_on(piece, Some(to_ns));
        }
    }

    /// That in which most of the time was spent. `acked`: until when all up to a byte was acknowledged.
    pub fn longest(&self, store: &Store, acked: impl Fn(i64) -> Option<i64>) -> Option<PathQueue> {
        let mut by: BTreeMap<Device, (Spread, i128, i128)> = BTreeMap::new();
        for s in &self.all {
            let (spread, within, whole) = by.entry(s.device).or_default();
            let stay_ns = s.to_ns - s.from_ns;
            spread.add(stay_ns, 1);
            if let Some(at) = acked(s.end - 1).filter(|at| *at >= s.to_ns && s.left_ns <= s.from_ns) {
                *within += i128::from(stay_ns);
                *whole += i128::from(at - s.left_ns);
            }
        }
        let (device, (stays_ns, within, whole)) =
            by.into_iter().max_by_key(|(_, (spread, ..))| spread.sum)?;
        Some(PathQueue {
            device: store.device(Some(device.0), Some(device.1)).cloned(),
            stays_ns,
            of_round_trip: (whole > 0).then(|| within as f64 / whole as f64),
        })
    }
}

/// More than any queue holds.
const MOST_QUEUED: usize = 1 << 14;

#[cfg(test)]
mod tests {
    use super::super::End;
    use super::*;

    const US: i64 = 1_000;
    const HERE: Device = (1, 2);
    const ROUTER: Device = (7, 3);

    /// Of the sender's namespace, and of a router's, where it was queued and given to the driver.
    fn packet(bytes: (i64, i64), queued_us: i64, driver_us: Option<i64>) -> Followed {
        let places = vec![(queued_us * US - 9, HERE, bytes.1), (queued_us * US, ROUTER, bytes.1)];
        let own = [(queued_us * US - 9, false), (queued_us * US - 8, true), (queued_us * US, false)];
        let passed = own.into_iter().chain(driver_us.map(|at| (at * US, true))).collect();
        Followed { bytes, places, passed }
    }

    /// First seen where a device that cut it has it.
    fn part(bytes: (i64, i64), driver_us: i64) -> Followed {
        Followed {
            bytes,
            places: vec![(driver_us * US - 1, ROUTER, bytes.1)],
            passed: vec![(driver_us * US, true)],
        }
    }

    fn stays(packets: Vec<Followed>) -> Vec<(i64, i64, i64, i64)> {
        Stays::of(packets, HERE.0)
            .all
            .iter()
            .map(|s| (s.first, s.end, s.from_ns / US, s.to_ns / US))
            .collect()
    }

    #[test]
    fn a_packet_is_in_a_queue_until_the_driver_has_it() {
        let packets = vec![
            packet((0, 100), 10, Some(500)),
            packet((100, 200), 11, Some(15)),
            packet((200, 300), 12, None),
        ];
        // The way through it is no stay, and of one that never left it nothing is known.
        assert_eq!(stays(packets), [(0, 100, 10, 500)]);
    }

    #[test]
    fn what_a_device_cuts_waited_in_parts() {
        // The first goes on as what it was, with fewer bytes.
        let mut first = packet((0, 300), 10, Some(100));
        first.places.push((99 * US, ROUTER, 100));
        assert_eq!(
            stays(vec![first, part((100, 200), 200), part((200, 300), 300)]),
            [(0, 100, 10, 100), (100, 200, 10, 200), (200, 300, 10, 300)]
        );
        // Sent again, as the first had no room: it waited since then.
        let again = packet((100, 200), 900, None);
        let all = vec![packet((0, 300), 10, None), part((0, 100), 200), again, part((100, 200), 950)];
        assert_eq!(stays(all), [(0, 100, 10, 200), (100, 200, 900, 950)]);
    }

    #[test]
    fn a_line_has_the_queue_out_of_its_way() {
        let stays =
            Stays::of(vec![packet((0, 100), 10, Some(500)), packet((100, 200), 20, Some(700))], HERE.0);
        let cut = |byte: i64, to_us: i64| {
            let pieces = vec![(Piece::At(Stage::Transport), 5 * US), (Piece::At(Stage::Wire), to_us * US)];
            let mut line = Line { from_ns: 0, pieces, end: End::Read };
            stays.cut(&mut line, byte);
            line.pieces.into_iter().map(|(piece, to)| (piece, to / US)).collect::<Vec<_>>()
        };
        let at = |stage: Stage, us: i64| (Piece::At(stage), us);
        let start = [at(Stage::Transport, 5)];
        let with = |more: &[(Piece, i64)]| [&start[..], more].concat();
        assert_eq!(cut(99, 800), with(&[at(Stage::Wire, 10), at(Stage::Path, 500), at(Stage::Wire, 800)]));
        assert_eq!(cut(100, 800), with(&[at(Stage::Wire, 20), at(Stage::Path, 700), at(Stage::Wire, 800)]));
        // It was over before.
        assert_eq!(cut(100, 300), with(&[at(Stage::Wire, 20), at(Stage::Path, 300)]));
        assert_eq!(cut(200, 800), with(&[at(Stage::Wire, 800)]));
        assert_eq!(stays.times(), [(10 * US, 700 * US)]);
    }
}
