//! Packets between guests and their host without a capture between them.
//!
//! A guest's log that its host made has the host's clock, within a bound that its `guest-clock` records state. So a packet that one
//! kernel gave to a device and one that another kernel received are compared directly: by the keys by which frames are recognised, and
//! with the same rules for those that repeat ([`stream`]), after those that are paired by their number ([`counted`]). What was received stands where a frame would, what was sent where a sighting
//! would: nothing is received before it was sent, and it may wait in a queue between.
//!
//! What guests send to each other goes through the host's kernel: with a log of the host, they are not compared with each other.

use super::counted::{self, Both};
use super::is_guest;
use crate::error::Result;
use crate::matching::{Frame, IN_NS, Match, Side, Sighting, Windows, Wire, stream};
use crate::work::Kept;
use kpat_model::GuestClock;
use kpat_model::hash::{Map, Set};
use kpat_model::meta::Meta;
use kpat_query::SURE_PERCENT;
use kpat_store::tables::CrossingRow;
use kpat_store::{CrossingCounts, TableWriter};

/// A capture's number where there is none.
const NO_CAPTURE: i32 = -1;
/// Percent, of alike packets that are paired by their number.
const BY_NUMBER: i32 = 85;
/// Of a guest's log without a reading of the clock.
const UNKNOWN_NS: i64 = IN_NS;

/// One that a packet may have come from.
#[derive(Clone, Copy)]
struct From {
    device: usize,
    packet: u64,
    left: i64,
    bound: i64,
    key: i32,
    confidence: i32,
}

/// How far times about `at` may be off the host's clock.
fn bound(readings: &[GuestClock], guest: bool, at: i64) -> i64 {
    if !guest {
        return 0;
    }
    // A reading is of what was before it.
    let i = readings.partition_point(|r| r.at.0 < at);
    let about = &readings[i.saturating_sub(1)..readings.len().min(i + 2)];
    about.iter().map(|r| i64::from(r.bound_ns)).max().unwrap_or(UNKNOWN_NS)
}

/// What a kernel received from outside: not what it gave away itself before, over a virtual link. Of a packet whose headers were not in reach of the functions
/// that receive (a fragment that a driver left in pages) it is not known that it was received; it may have been, if nothing with these headers was seen to be.
fn arrivals(all: &[Sighting]) -> impl Iterator<Item = &Sighting> {
    let seen: Set<u64> = all.iter().filter(|s| s.side == Side::Received).map(|s| s.keys.exact).collect();
    let mut left: Map<u64, i64> = Map::default();
    for s in all.iter().filter(|s| s.side == Side::Transmitted) {
        left.entry(s.packet).and_modify(|at| *at = s.at.min(*at)).or_insert(s.at);
    }
    let outside = move |s: &&Sighting| left.get(&s.packet).is_none_or(|at| s.at < *at);
    let may_be = move |s: &&Sighting| match s.side {
        Side::Received => true,
        Side::Unknown => !seen.contains(&s.keys.exact),
        Side::Transmitted => false,
    };
    all.iter().filter(may_be).filter(outside)
}

struct Found<'a> {
    arrived: &'a [&'a Sighting],
    from: Map<u64, Vec<From>>,
    device: usize,
    bound: &'a dyn Fn(i64) -> i64,
}

impl stream::Sink for Found<'_> {
    fn matched(&mut self, frame: &Frame, s: &Sighting, how: &Match) -> Result<()> {
        let from = From {
            device: self.device,
            packet: s.packet,
            left: s.at,
            bound: (self.bound)(s.at),
            key: how.key,
            confidence: how.confidence,
        };
        self.from.entry(self.arrived[frame.number as usize].packet).or_default().push(from);
        Ok(())
    }

    fn decided(&mut self, _: u64) {}
}

/// Which devices' packets a device may have received: of its own host's clock, and not of its own kernel.
fn senders(metas: &[Meta], to: usize) -> Vec<usize> {
    let same_host =
        |d: &usize| *d != to && !metas[to].boot_id.is_empty() && metas[*d].boot_id == metas[to].boot_id;
    let (guests, hosts): (Vec<usize>, Vec<usize>) =
        (0..metas.len()).filter(same_host).partition(|d| is_guest(&metas[*d]));
    match (is_guest(&metas[to]), hosts.is_empty()) {
        (true, false) => hosts,
        _ => guests,
    }
}

/// Writes the crossings of all packets.
///
/// Memory: the sightings of all devices (170 bytes each).
pub(super) fn join(
    metas: &[Meta],
    kept: &mut [Kept],
    out: &mut TableWriter<CrossingRow>,
) -> Result<CrossingCounts> {
    let mut counts = CrossingCounts { received: Some(0), ..CrossingCounts::default() };
    for k in kept.iter_mut() {
        k.sightings.iter_mut().for_each(|s| s.keys.exact = s.keys.named());
        // What a driver was given at once, it was given in the order in which it was made.
        k.sightings.sort_by_key(|s| (s.at, s.first, s.packet));
    }
    let kept = &*kept;
    let bounds: Vec<_> = (0..metas.len())
        .map(|d| move |at: i64| bound(&kept[d].guest_clock, is_guest(&metas[d]), at))
        .collect();
    let mut rows = Vec::new();
    for (to, of) in kept.iter().enumerate() {
        let senders = senders(metas, to);
        if senders.is_empty() {
            continue;
        }
        let arrived: Vec<&Sighting> = arrivals(&of.sightings).collect();
        let mut from: Map<u64, Vec<From>> = Map::default();
        for device in senders {
            let worst = kept[device].guest_clock.iter().map(|r| i64::from(r.bound_ns)).max();
            let worst = if is_guest(&metas[device]) { worst.unwrap_or(UNKNOWN_NS) } else { 0 };
            let mut frames = frames(&arrived, |at| bounds[to](at).saturating_add(worst));
            let widest = frames.iter().map(|f| f.bound).max().unwrap_or(0);
            let left = |s: &&Sighting| s.side == Side::Transmitted && !s.lost;
            let mut sent: Vec<&Sighting> = kept[device].sightings.iter().filter(left).collect();
            let numbered = match (kept[device].whole, of.whole) {
                (Some(a), Some(b)) => {
                    let bound = |at: i64| bounds[to](at).saturating_add(bounds[device](at));
                    let both = Both { from: a.0.max(b.0), to: a.1.min(b.1), bound: &bound };
                    counted::pairs(&sent, &arrived, &both)
                }
                _ => Vec::new(),
            };
            for &(s, r) in &numbered {
                let from_here = From {
                    device,
                    packet: sent[s].packet,
                    left: sent[s].at,
                    bound: bounds[device](sent[s].at),
                    key: arrived[r].keys.kind,
                    confidence: BY_NUMBER,
                };
                from.entry(arrived[r].packet).or_default().push(from_here);
            }
            // They are no other's.
            let known: Set<u64> = numbered.iter().map(|(_, r)| *r as u64).collect();
            frames.retain(|f| !known.contains(&f.number));
            let known: Set<(u64, u64)> =
                numbered.iter().map(|(s, _)| (sent[*s].packet, sent[*s].keys.exact)).collect();
            sent.retain(|s| !known.contains(&(s.packet, s.keys.exact)));
            let mut found = Found { arrived: &arrived, from, device, bound: &bounds[device] };
            let (mut f, mut s) = (frames.iter(), sent.into_iter());
            let windows = Windows { own: false, scatter: 0, widest, logs: true };
            stream::run(&mut || Ok(f.next().copied()), &mut || Ok(s.next().copied()), &windows, &mut found)?;
            from = found.from;
        }
        let mut done: Set<u64> = Set::default();
        for arrival in &arrived {
            if !done.insert(arrival.packet) {
                continue;
            }
            let nearest = from.get(&arrival.packet).map(|all| nearest(all));
            if nearest.is_none() && arrival.side == Side::Unknown {
                continue;
            }
            counts.received = counts.received.map(|n| n + 1);
            match nearest {
                None => counts.unmatched += 1,
                Some(Some(from)) if from.confidence >= SURE_PERCENT => {
                    counts.crossed += 1;
                    let wall = metas[from.device].started;
                    let ahead = if wall.wall.0 == 0 { 0 } else { wall.wall.0.saturating_sub(wall.boot.0) };
                    rows.push(row(from, (to, arrival, bounds[to](arrival.at)), ahead));
                }
                Some(_) => counts.ambiguous += 1,
            }
        }
    }
    // In order of time; each has a number of its own.
    rows.sort_by_key(|r| (r.left_ns, r.arrived_ns, r.from_device, r.to_device));
    for (number, row) in (1..).zip(&mut rows) {
        row.number = number;
        out.push(row)?;
    }
    counts.rows = rows.len() as u64;
    Ok(counts)
}

/// The packets that a device received, as frames: a packet for segmentation is one for each of its keys.
fn frames(arrived: &[&Sighting], bound: impl Fn(i64) -> i64) -> Vec<Frame> {
    let frame = |(number, s): (u64, &&Sighting)| Frame {
        keys: s.keys,
        wall: s.at,
        boot: s.at,
        bound: bound(s.at),
        number,
        interface: 0,
        side: Side::Unknown,
        inside: false,
        wire: Wire::default(),
        device: 0,
        place: 0,
    };
    (0..).zip(arrived).map(frame).collect()
}

/// The last one that had it; `None`: several fit equally well.
fn nearest(all: &[From]) -> Option<From> {
    let best = *all.iter().max_by_key(|f| (f.confidence >= SURE_PERCENT, f.left))?;
    let close = |f: &&From| best.left.saturating_sub(f.left) <= best.bound.saturating_add(f.bound);
    let other =
        |f: &From| (f.device, f.packet) != (best.device, best.packet) && f.confidence >= best.confidence;
    let tie = all.iter().filter(close).any(other);
    (!tie).then_some(best)
}

fn row(from: From, (to, arrival, to_bound): (usize, &Sighting, i64), ahead: i64) -> CrossingRow {
    let arrived_wall_ns = arrival.at.saturating_add(ahead);
    CrossingRow {
        from_device: from.device as i32,
        from_packet_id: from.packet as i64,
        to_device: to as i32,
        to_packet_id: arrival.packet as i64,
        capture_id: NO_CAPTURE,
        number: 0,
        left_ns: from.left,
        wall_ns: arrived_wall_ns,
        arrived_ns: arrival.at,
        left_wall_ns: from.left.saturating_add(ahead),
        left_bound_ns: from.bound,
        arrived_wall_ns,
        arrived_bound_ns: to_bound,
        flight_ns: arrival.at.saturating_sub(from.left),
        flight_bound_ns: from.bound.saturating_add(to_bound),
        key: from.key,
        confidence: from.confidence,
    }
}
