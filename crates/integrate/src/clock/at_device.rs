//! At which device of the DUT was a capture made, if it was? Decided by the stamps alone; names play no part.
//!
//! A packet passes several devices of a host, and every one of them may have a sniffer: a router's packet is seen where it comes in and
//! where it goes out, on a virtual link at both ends. The windows of a device hold for stamps made there only, so each device that the
//! frames' packets were at is tried in turn, with its own edges and no others ([`estimate::own`]).

use super::estimate::{self, Estimate, Pair};
use super::vote::Vote;
use crate::matching::{Frame, Side, Sighting};
use kpat_model::hash::Map;
use kpat_model::meta::ClockAnchor;

/// Devices that are tried for an interface, those first at which most of its frames can be.
const TRIED: usize = 8;

/// A capture that is the DUT's own.
pub(crate) struct Here {
    pub clock: Estimate,
    /// By interface of the capture, the device as [`crate::matching::place`].
    pub places: Map<u32, u64>,
}

/// The matches of one interface's frames with what one device had.
struct At {
    place: u64,
    pairs: Vec<Pair>,
}

/// `votes`: of pairs that are the same data, as far as known yet. `resolution_ns`: as [`super::Given`] has it. `None`: not proved, or the frames of an interface deny it.
pub(crate) fn find(
    votes: &[Vote],
    frames: &[Frame],
    sightings: &[Sighting],
    anchors: &[ClockAnchor],
    resolution_ns: i64,
) -> Option<Here> {
    let mut by_interface: Map<u32, Vec<Vote>> = Map::default();
    for v in votes {
        by_interface.entry(frames[v.frame as usize].interface).or_default().push(*v);
    }
    let (mut places, mut pairs) = (Map::default(), Vec::new());
    for (interface, mut votes) in by_interface {
        votes.sort_unstable_by_key(|v| (v.frame, v.sighting));
        let mut tried = candidates(&votes, frames, sightings);
        let fits: Vec<usize> = (0..tried.len())
            .filter(|i| estimate::may_be_own(&tried[*i].pairs, anchors, resolution_ns))
            .collect();
        match fits[..] {
            [] if tried.iter().any(|at| estimate::can_be_judged(&at.pairs)) => return None,
            [] => pairs.extend(tried.drain(..).take(1).flat_map(|at| at.pairs)),
            [one] => {
                places.insert(interface, tried[one].place);
                pairs.append(&mut tried[one].pairs);
            }
            _ => pairs.extend(either(fits.into_iter().map(|i| &tried[i]))),
        }
    }
    // What each interface saw one way only is proved together, or not.
    estimate::own(&pairs, anchors, resolution_ns).map(|clock| Here { clock, places })
}

/// Devices that most frames can be recorded at, with the matches that this gives.
fn candidates(votes: &[Vote], frames: &[Frame], sightings: &[Sighting]) -> Vec<At> {
    let of_frame = || votes.chunk_by(|a, b| a.frame == b.frame);
    let mut at_place: Map<u64, u32> = Map::default();
    for v in votes {
        *at_place.entry(sightings[v.sighting as usize].place).or_default() += 1;
    }
    let mut places: Vec<(u32, u64)> =
        at_place.into_iter().filter(|p| p.0 != 0).map(|(p, n)| (n, p)).collect();
    places.sort_unstable_by(|a, b| b.cmp(a));
    // Of those above others only what is sent may be seen there.
    places.truncate(2 * TRIED);
    let mut times: Map<(u64, u64), u32> = Map::default();
    for of in of_frame() {
        let mut packets: Vec<u64> = of.iter().map(|v| sightings[v.sighting as usize].packet).collect();
        packets.sort_unstable();
        packets.dedup();
        for packet in packets {
            *times.entry((frames[of[0].frame as usize].keys.exact, packet)).or_default() += 1;
        }
    }
    let at = |place: u64| {
        let pairs = of_frame().filter_map(|of| {
            let all = || of.iter().map(|v| &sightings[v.sighting as usize]);
            let exact = all().filter(|s| s.place == place);
            let mut here: Vec<&Sighting> = exact.collect();
            if here.is_empty() {
                here = all().filter(|s| s.is_seen_at(place)).collect();
            }
            // A device above another one may show nothing of what it is given from there.
            if here.is_empty() {
                here = all().filter(|s| s.side == Side::Received).collect();
            }
            let [s] = here[..] else { return None };
            let f = &frames[of[0].frame as usize];
            (times.get(&(f.keys.exact, s.packet)) == Some(&1)).then_some(Pair {
                number: f.number,
                wall: f.wall,
                at: s.at,
                side: s.side,
                weak: s.weak,
                tap: s.tap,
            })
        });
        At { place, pairs: pairs.collect() }
    };
    let mut out: Vec<At> = places.into_iter().map(|p| at(p.1)).collect();
    out.sort_by_key(|at| std::cmp::Reverse(at.pairs.len()));
    let most = out.first().map_or(0, |at| at.pairs.len());
    // A device that has not seen half of them is not where they were recorded.
    out.retain(|at| at.pairs.len() * 2 >= most);
    out.truncate(TRIED);
    out
}

/// The windows of several devices of which each can be the one: all that either leaves.
fn either<'a>(all: impl Iterator<Item = &'a At>) -> Vec<Pair> {
    let mut by_number: Map<u64, Pair> = Map::default();
    for p in all.flat_map(|at| &at.pairs) {
        let merge = |q: &mut Pair| {
            let known = q.tap.0 != 0 && p.tap.0 != 0;
            q.tap = if known { (q.tap.0.min(p.tap.0), q.tap.1.max(p.tap.1)) } else { (0, 0) };
        };
        by_number.entry(p.number).and_modify(merge).or_insert(*p);
    }
    by_number.into_values().collect()
}
