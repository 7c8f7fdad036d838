//! What order tells of packets that are alike.
//!
//! The clock may be known less well than alike packets are apart: segments of one IPv6 packet have neither identification nor, on a
//! virtual link, a checksum. Each frame then fits several packets in time. But a link keeps order, and every frame is of some packet:
//! where a burst has as many packets as frames there is one way to match them all. Another way needs one packet that is not in the log
//! *and* one frame that is not in the capture. How likely that is, the other bursts tell: how many of their frames are left over or
//! could be moved on by one. A single burst tells nothing of that.
//!
//! A packet may be known from several moments (given away at one end of a link, received at the other). Moments of one kind, at one
//! device, are in the packets' order; mixed ones are not.
//!
//! Rejected: comparing the distances between frames with those between packets. Interrupts and batches between the two moments make them
//! as different as neighbours are.

use super::exact::Bucket;
use super::{Match, Side};

/// Moments of one kind: the side, the device, and whether it is a queue's edge only.
type Kind = (Side, u64, bool);

/// More kinds than any way through one host has; each costs an alignment.
const MAX_KINDS: usize = 8;
/// How far a frame's match is moved on at most, to see what else fits.
const FAR: usize = 64;
/// Whatever the other bursts say: it is supposed that the link keeps order.
const MOST: i32 = 85;

/// Share of the packets that are missing where all frames are doubtful: as measured on bursts of 2 to 10 of which 10 to 40 % were.
const MISSING: f64 = 0.4;

/// One way to match the frames, with moments of one kind.
struct Way {
    /// The sightings, in order of time.
    ks: Vec<usize>,
    /// By frame, from the first on: its place in `ks`.
    of: Vec<Option<usize>>,
    matched: usize,
    cost: i64,
}

/// Changes the matches of frames `i0..i1`, which were aligned with sightings `k0..k1` as `pairs` say, where order tells more than time.
pub(super) fn settle(
    b: &Bucket<'_>,
    (i0, i1): (usize, usize),
    (k0, k1): (usize, usize),
    pairs: &[(usize, usize)],
    matches: &mut [Match],
) {
    if pairs.len() < 2 || matches.iter().all(|m| m.alternatives == 0) {
        return;
    }
    let mut kinds: Vec<Kind> = (k0..k1).map(|k| kind(b, k)).collect();
    kinds.sort_unstable();
    kinds.dedup();
    if kinds.len() > MAX_KINDS {
        return;
    }
    let mut ways: Vec<Way> = kinds.iter().map(|of| way(b, (i0, i1), (k0, k1), *of)).collect();
    ways.retain(|w| w.matched > 0);
    ways.sort_by_key(|w| (std::cmp::Reverse(w.matched), w.cost));
    let Some(best) = ways.first() else { return };
    let fits: Vec<Vec<Vec<u64>>> = ways.iter().map(|w| packets(b, w, i0)).collect();
    let open = open(b, best, (i0, i1), k0);
    // By frame: the packets that it may be of while all others keep one.
    let any: Vec<Vec<u64>> = (0..i1 - i0)
        .map(|j| {
            let mut all: Vec<u64> = fits.iter().flat_map(|w| &w[j]).copied().collect();
            all.sort_unstable();
            all.dedup();
            all
        })
        .collect();
    let doubtful = (0..i1 - i0).filter(|&j| any[j].len() != 1 || open[j].is_some()).count();
    for (m, &(i, _)) in matches.iter_mut().zip(pairs) {
        let j = i - i0;
        let Some(place) = best.of[j] else {
            // Where the clock has most of the others, rather its own packet is missing than that this one waited.
            if best.matched * 2 > best.of.len() {
                m.confidence = m.confidence.min(super::one_of(1, true));
            }
            continue;
        };
        if let Some(share) = open[j] {
            m.confidence = m.confidence.min(there(share, doubtful, i1 - i0));
            continue;
        }
        let (f, s) = (b.frame(i), b.sighting(best.ks[place]));
        // From a queue, which need not keep order; or its own packet is missing.
        if super::is_apart(f, s, b.windows) {
            continue;
        }
        let in_time = (0..best.ks.len()).filter(|o| fits_as_well(b, best, i, place, *o)).count();
        let others = sure(doubtful, i1 - i0, in_time);
        if m.alternatives == 0 {
            m.confidence = m.confidence.min(if doubtful > 0 { others } else { 100 });
            continue;
        }
        let moved = any[j].len() as i32 - 1;
        let by_order = (others * super::one_of(moved, false) / 100, moved);
        let near = (in_time as i32 - 1).max(1);
        let (percent, alternatives) =
            by_order.max((there(super::one_of(near, false), doubtful, i1 - i0), near));
        let confidence = b.by_key(f, s).min(MOST).min(percent);
        *m = Match { alternatives, confidence, ..b.matched(i, best.ks[place], k0, k1) };
    }
}

/// Percent. Of `all` frames of this stretch so many are `doubtful`, and `in_time` packets fit this one. Frames and packets that are missing
/// make others doubtful, so the share of those, this burst with them, is above the chance that either is missing here; both have to be.
fn sure(doubtful: usize, all: usize, in_time: usize) -> i32 {
    let share = (doubtful + in_time) as f64 / all as f64;
    (100.0 * (1.0 - share * share)).max(0.0) as i32
}

/// One of those that fit is the frame's only if its own packet is in the log at all. Where most frames are doubtful, so much is missing that it
/// often is not.
fn there(percent: i32, doubtful: usize, all: usize) -> i32 {
    let share = doubtful as f64 / all as f64;
    (f64::from(percent) * (1.0 - MISSING * share * share)) as i32
}

fn kind(b: &Bucket<'_>, k: usize) -> Kind {
    let s = b.sighting(k);
    (s.side, s.place, s.weak)
}

/// Costs that differ by less are equal, as far as the clock tells.
fn unsure(b: &Bucket<'_>, i: usize) -> i64 {
    b.frame(i).bound.saturating_mul(2).saturating_add(b.windows.scatter)
}

/// Within what the clock leaves open: what is further away has waited somewhere, and time tells more of that than order.
fn way(b: &Bucket<'_>, (i0, i1): (usize, usize), (k0, k1): (usize, usize), of: Kind) -> Way {
    let ks: Vec<usize> = (k0..k1).filter(|k| kind(b, *k) == of).collect();
    let (pairs, cost) = b.align((i0, i1), &ks, |i, k| b.cost(i, k).filter(|c| *c <= unsure(b, i)));
    let mut places = vec![None; i1 - i0];
    for &(i, k) in &pairs {
        places[i - i0] = ks.binary_search(&k).ok();
    }
    let waited = fill(b, i0, &ks, &mut places);
    Way { ks, of: places, matched: pairs.len() + waited, cost }
}

/// A frame that waited for longer than the clock leaves open, between two that did not: where as many moments are left between those of its
/// neighbours as frames, they are theirs. Gives how many.
fn fill(b: &Bucket<'_>, i0: usize, ks: &[usize], places: &mut [Option<usize>]) -> usize {
    let mut filled = 0;
    let mut from = 0;
    while let Some(gap) = places[from..].iter().position(Option::is_none).map(|n| from + n) {
        let end = places[gap..].iter().position(Option::is_some).map_or(places.len(), |n| gap + n);
        from = end;
        let before = if gap == 0 { None } else { places[gap - 1] };
        let Some((low, high)) = before.zip(places.get(end).copied().flatten()) else { continue };
        let fits = |n: usize| {
            let (f, s) = (b.frame(i0 + gap + n), b.sighting(ks[low + 1 + n]));
            b.cost(i0 + gap + n, ks[low + 1 + n]).is_some() && !super::is_apart(f, s, b.windows)
        };
        if high - low - 1 == end - gap && (0..end - gap).all(fits) {
            (gap..end).for_each(|j| places[j] = Some(low + 1 + j - gap));
            filled += end - gap;
        }
    }
    filled
}

/// Frame `i`, matched at `own`, may as well be at `other`, as far as its time tells.
fn fits_as_well(b: &Bucket<'_>, w: &Way, i: usize, own: usize, other: usize) -> bool {
    let cost = |o: usize| b.cost(i, w.ks[o]);
    own == other || cost(other).zip(cost(own)).is_some_and(|(o, c)| o.saturating_sub(c) <= unsure(b, i))
}

/// Of each frame the packets that it can be of while every matched frame keeps one, in order.
fn packets(b: &Bucket<'_>, w: &Way, i0: usize) -> Vec<Vec<u64>> {
    let n = w.of.len();
    let (mut lows, mut highs) = (vec![0; n], vec![0; n]);
    let mut next = 0;
    for (j, own) in w.of.iter().enumerate().filter_map(|(j, own)| Some((j, (*own)?))) {
        let from = own.saturating_sub(FAR).max(next);
        lows[j] = (from..=own).find(|o| fits_as_well(b, w, i0 + j, own, *o)).unwrap_or(own);
        next = lows[j] + 1;
    }
    let mut end = w.ks.len();
    for (j, own) in w.of.iter().enumerate().rev().filter_map(|(j, own)| Some((j, (*own)?))) {
        let to = (own + FAR + 1).min(end);
        highs[j] = (own..to).rev().find(|o| fits_as_well(b, w, i0 + j, own, *o)).unwrap_or(own);
        end = highs[j];
    }
    let of = |j: usize, own: usize| {
        let fit = (lows[j]..=highs[j]).filter(|o| fits_as_well(b, w, i0 + j, own, *o));
        let mut all: Vec<u64> = fit.map(|o| b.sighting(w.ks[o]).packet).collect();
        all.sort_unstable();
        all.dedup();
        all
    };
    w.of.iter().enumerate().map(|(j, own)| own.map_or_else(Vec::new, |own| of(j, own))).collect()
}

/// Frames of bursts in which order proves nothing, with the most confidence they may have in percent: one of their frames has no packet, so
/// each of them may be the one; or they go on beyond this stretch, and what is there was or will be decided by itself.
fn open(b: &Bucket<'_>, w: &Way, (i0, i1): (usize, usize), k0: usize) -> Vec<Option<i32>> {
    let mut out = vec![None; i1 - i0];
    let apart = |i: usize| b.frame(i + 1).boot.saturating_sub(b.frame(i).boot) > 2 * unsure(b, i);
    let mut from = i0;
    while from < i1 {
        let to = (from..i1 - 1).find(|i| apart(*i)).map_or(i1, |i| i + 1);
        let burst = from - i0..to - i0;
        let begins = from > i0 || !reaches_back(b, i0, k0);
        let ends = to < i1 || i1 == b.fs.len() || apart(i1 - 1);
        let matched = w.of[burst.clone()].iter().flatten().count();
        if !begins || !ends || matched < burst.len() {
            let share = (100 * matched / burst.len()) as i32;
            out[burst].fill(Some(share));
        }
        from = to;
    }
    out
}

/// Frame `i` may as well be of what frames before this stretch have taken.
fn reaches_back(b: &Bucket<'_>, i: usize, k0: usize) -> bool {
    let here = (k0..b.ss.len()).take(FAR).filter_map(|k| b.cost(i, k)).min();
    let before = (b.window(i).0..k0).rev().take(FAR).filter_map(|k| b.cost(i, k)).min();
    before.is_some_and(|t| here.is_none_or(|h| t.saturating_sub(h) <= unsure(b, i)))
}

#[cfg(test)]
mod tests {
    use super::super::keys::Keys;
    use super::super::stream::{self, Sink};
    use super::super::{Frame, Match, Side, Sighting, Windows, Wire};
    use crate::error::Result;
    use kpat_model::codes::match_key;
    use std::collections::BTreeMap;

    #[derive(Default)]
    struct Keep(Vec<(u64, u64, i32)>);

    impl Sink for Keep {
        fn matched(&mut self, f: &Frame, s: &Sighting, m: &Match) -> Result<()> {
            self.0.push((f.number, s.packet, m.confidence));
            Ok(())
        }

        fn decided(&mut self, _frames: u64) {}
    }

    /// Bursts of `size` segments without identification over a virtual link: each packet is given away by one end and received by the
    /// other a microsecond later, and captured there with a clock that is known worse than a burst is long. `missing` percent of the
    /// packets are not in the log, and of the frames not in the capture. Gives the frames, and the matches: number, packet, percent.
    fn segments(seed: u64, bursts: u64, size: u64, missing: u64) -> (usize, Vec<(u64, u64, i32)>) {
        world(seed, bursts, &|_| size, (missing, missing), (391_000, 5_000_000))
    }

    /// The same with bursts of any size, other losses of packets and of frames, and other clocks and times between bursts, ns.
    fn world(
        seed: u64,
        bursts: u64,
        size: &dyn Fn(u64) -> u64,
        (no_packet, no_frame): (u64, u64),
        (bound, gap): (i64, u64),
    ) -> (usize, Vec<(u64, u64, i32)>) {
        let mut below = kpat_model::random::below(seed);
        let keys = Keys { exact: 1, kind: match_key::TRANSPORT, checksum: 7, ttl: 63, ..Keys::default() };
        let (mut frames, mut sightings) = (Vec::new(), Vec::new());
        let off = (below(600_000) as i64 - 300_000) * bound / 391_000;
        let (mut at, mut packet) = (5_000_000_000i64, 0u64);
        for _ in 0..bursts {
            at += (gap + below(2 * gap)) as i64;
            let many = below(1 << 20);
            for _ in 0..size(many) {
                at += 5_000 + below(15_000) as i64;
                packet += 1;
                if below(100) >= no_packet {
                    for (later, side, place) in [(0, Side::Transmitted, 1), (1_400, Side::Received, 2)] {
                        sightings.push(Sighting {
                            keys,
                            packet,
                            at: at + later,
                            first: at,
                            last: at + 4_000_000,
                            side,
                            devices: 3,
                            weak: false,
                            lost: false,
                            tap: (0, 0),
                            place,
                        });
                    }
                }
                if below(100) >= no_frame {
                    let wall = at + 700 + below(1_500) as i64 + off;
                    frames.push(Frame {
                        keys,
                        wall,
                        boot: wall,
                        bound,
                        number: packet,
                        interface: 0,
                        side: Side::Unknown,
                        inside: true,
                        wire: Wire::default(),
                        device: 0,
                        place: 0,
                    });
                }
            }
        }
        let windows = Windows { own: false, scatter: 3_000, widest: bound, logs: false };
        let mut keep = Keep::default();
        let (mut f, mut s) = (frames.iter().copied(), sightings.iter().copied());
        stream::run(&mut || Ok(f.next()), &mut || Ok(s.next()), &windows, &mut keep).unwrap();
        (frames.len(), keep.0)
    }

    /// Nothing is missing: order tells them all, for 40 bursts of 10 and for 400 pairs.
    #[test]
    fn alike_segments_are_distinguished_by_their_order() {
        for (bursts, size) in [(40, 10), (400, 2), (30, 40)] {
            let (frames, matches) = segments(7, bursts, size, 0);
            assert_eq!(matches.len(), frames, "{bursts} bursts of {size}");
            let wrong = matches.iter().filter(|m| m.0 != m.1).count();
            let sure = matches.iter().filter(|m| m.2 >= 85).count();
            println!("{bursts} bursts of {size}: {sure} of {frames} sure");
            assert_eq!(wrong, 0, "{bursts} bursts of {size}");
            // A long flood is cut into stretches, and in the last one there may be too few bursts.
            assert!(sure * 100 >= frames * 90, "{bursts} bursts of {size}: {sure} of {frames}");
        }
    }

    /// Something is missing: each level of confidence from 50 % on holds by itself, for every share that is missing, and for a
    /// single burst.
    #[test]
    fn order_is_believed_as_far_as_other_bursts_say() {
        for (bursts, size) in [(30, 10), (60, 3), (60, 4), (40, 6), (1, 10), (2, 4)] {
            for missing in [0, 1, 3, 10, 30] {
                let mut levels: BTreeMap<i32, (usize, usize)> = BTreeMap::new();
                for seed in 1..=(1_500 / bursts / size).clamp(12, 200) {
                    for (number, packet, confidence) in segments(seed * 31 + missing, bursts, size, missing).1
                    {
                        let l = levels.entry(confidence / 5 * 5).or_default();
                        *l = (l.0 + 1, l.1 + usize::from(number == packet));
                    }
                }
                for (confidence, (all, right)) in levels.into_iter().filter(|l| l.0 >= 50 && l.1.0 >= 100) {
                    println!(
                        "{bursts} x {size}, {missing} % missing, called {confidence} %: {right} of {all}"
                    );
                    let (stated, n) = (f64::from(confidence) / 100.0, all as f64);
                    let chance = 3.0 * (stated * (1.0 - stated) / n).sqrt();
                    assert!(right as f64 / n >= stated - chance, "called {confidence} %: {right} of {all}");
                }
            }
        }
    }

    /// Random worlds: bursts of 1 to 12 or of single packets and pairs, 0.1 to 600 ms apart, clocks known well or badly, packets and frames
    /// missing alike or one of them only: each level holds by itself for each share that is missing.
    #[test]
    fn every_level_holds_in_random_worlds() {
        let mut levels: BTreeMap<(&str, i32), (usize, usize)> = BTreeMap::new();
        for (words, lost) in [
            ("none", (0, 0)),
            ("5 % of both", (5, 5)),
            ("10 % of both", (10, 10)),
            ("20 % of both", (20, 20)),
            ("30 % of both", (30, 30)),
            ("30 % of packets", (30, 0)),
            ("30 % of frames", (0, 30)),
        ] {
            for seed in 0..150u64 {
                let mut below = kpat_model::random::below(seed * 977 + lost.0 * 7 + lost.1 + 1);
                let (bursts, most) = (1 + below(60), [1, 2, 3, 12][below(4) as usize]);
                let bound = [5_000, 40_000, 391_000, 2_000_000][below(4) as usize];
                let gap = [100_000, 1_000_000, 5_000_000, 20_000_000, 200_000_000][below(5) as usize];
                let size = |many| 1 + many % most;
                for (number, packet, confidence) in world(below(1 << 40), bursts, &size, lost, (bound, gap)).1
                {
                    for of in [words, "all"] {
                        let l = levels.entry((of, confidence / 5 * 5)).or_default();
                        *l = (l.0 + 1, l.1 + usize::from(number == packet));
                    }
                }
            }
        }
        for ((words, confidence), (all, right)) in levels {
            let (stated, n) = (f64::from(confidence) / 100.0, all as f64);
            let share = right as f64 / n;
            println!("missing {words}, called {confidence} %: {right} of {all}, {:.1} %", 100.0 * share);
            let chance = 3.0 * (stated * (1.0 - stated) / n).sqrt();
            assert!(
                confidence < 50 || all < 30 || share >= stated - chance,
                "missing {words}, called {confidence} %: {right} of {all}"
            );
        }
    }
}
