//! Matching as a window that goes over the time of both logs.
//!
//! Frames and sightings come in order of time, each from its own stream. A frame can be one with sightings within its
//! *reach* only, so what lies before the reach of every frame to come is forgotten. Frames of one key whose reaches
//! overlap are decided together; they wait until no frame to come can join them. What waits, and what it can reach, is
//! all that is held, so the matches are those that the whole logs at once would give, with memory for some seconds.

use super::exact::{AHEAD, Bucket, Used, buckets};
use super::segments::superseded;
use super::{Frame, Match, Sighting, Windows, interval, reach};
use crate::ahead;
use crate::error::Result;
use kpat_model::hash::{Map, Set};

/// Frames and sightings taken at a time, unless more are held: sorting what is held again must not cost more than what
/// is new.
const BATCH: usize = 1 << 17;

/// What goes out of the window.
pub(crate) trait Sink {
    /// The frame and the packet are the same data. A frame's matches come one after another.
    fn matched(&mut self, frame: &Frame, sighting: &Sighting, how: &Match) -> Result<()>;
    /// So many frames are decided.
    fn decided(&mut self, frames: u64);
}

#[derive(Default)]
struct Window {
    frames: Vec<Frame>,
    sightings: Vec<Sighting>,
    /// Number of each sighting in its stream.
    order: Vec<u64>,
    /// Per key and interface, as far as something to come may reach it.
    used: Map<(u64, u32), Used>,
    matches: Vec<Match>,
}

/// Matches all frames of one capture. `frames`: in order of their boot time; `sightings`: in order of boot time. Gives how many
/// frames and sightings were held at most.
pub(crate) fn run(
    frames: &mut dyn FnMut() -> Result<Option<Frame>>,
    sightings: &mut dyn FnMut() -> Result<Option<Sighting>>,
    windows: &Windows,
    sink: &mut dyn Sink,
) -> Result<usize> {
    run_by(BATCH, frames, sightings, windows, sink)
}

fn run_by(
    batch: usize,
    frames: &mut dyn FnMut() -> Result<Option<Frame>>,
    sightings: &mut dyn FnMut() -> Result<Option<Sighting>>,
    windows: &Windows,
    sink: &mut dyn Sink,
) -> Result<usize> {
    let mut window = Window::default();
    let (mut frame, mut sighting) = (frames()?, sightings()?);
    let (mut order, mut done, mut most) = (0u64, 0u64, 0);
    while frame.is_some() {
        let room = batch.max(window.frames.len() + window.sightings.len());
        let before = window.frames.len() + window.sightings.len();
        while window.frames.len() + window.sightings.len() - before < room {
            let Some(next) = frame else { break };
            let (low, high) = reach(&next, windows);
            while let Some(s) = sighting.filter(|s| s.at <= high) {
                if s.at >= low {
                    window.sightings.push(s);
                    window.order.push(order);
                }
                order += 1;
                sighting = sightings()?;
            }
            window.frames.push(next);
            frame = frames()?;
        }
        most = most.max(window.frames.len() + window.sightings.len());
        done += window.frames.len() as u64;
        let edge = frame.map(|f| reach(&f, windows).0);
        window.decide(windows, edge, sink)?;
        done -= window.frames.len() as u64;
        sink.decided(done);
    }
    Ok(most)
}

impl Window {
    /// Decides what no frame to come can have a say in. `edge`: the earliest that such a frame can reach; `None`: there
    /// is none.
    fn decide(&mut self, windows: &Windows, edge: Option<i64>, sink: &mut dyn Sink) -> Result<()> {
        let Window { frames, sightings, order, used, matches } = self;
        let mut waiting: Vec<u32> = Vec::new();
        let mut used_now: Map<(u64, u32), Used> = Map::default();
        buckets(frames, sightings, |fs, ss| {
            if ss.is_empty() {
                return;
            }
            let first = &frames[fs[0] as usize];
            let key = (first.keys.exact, first.interface);
            let place = |s: u32| (sightings[s as usize].at, order[s as usize]);
            let cut = superseded(ss.len(), |i| &sightings[ss[i] as usize]);
            let whole: Vec<u32> = ss.iter().zip(&cut).filter(|(_, cut)| !**cut).map(|(s, _)| *s).collect();
            let ss = if cut.is_empty() { ss } else { &whole };
            let bucket = Bucket { frames, sightings, windows, fs, ss };
            let (decided, now) = bucket.run(used.get(&key).copied(), place, edge, matches);
            waiting.extend(&fs[decided..]);
            if let Some(now) = now
                && (decided < fs.len() || edge.is_some_and(|edge| now.0 >= edge))
            {
                used_now.insert(key, now);
            }
        });
        // A key that no frame came with keeps what it knows.
        if let Some(edge) = edge {
            used.retain(|_, u| u.0 >= edge);
            used.extend(used_now);
        }
        waiting.sort_unstable();
        let mut matched = vec![false; frames.len()];
        matches.iter().for_each(|m| matched[m.frame as usize] = true);
        let mut waits = waiting.iter().peekable();
        let left: Vec<u32> = (0..frames.len() as u32)
            .filter(|i| waits.next_if_eq(&i).is_none())
            .filter(|i| !matched[*i as usize] && frames[*i as usize].keys.tcp.is_some())
            .collect();
        interval::run(frames, &left, sightings, windows, matches);
        for (i, m) in matches.iter().enumerate() {
            if let Some(next) = matches.get(i + AHEAD) {
                ahead::fetch_one(&frames[next.frame as usize]);
                ahead::fetch_one(&sightings[next.sighting as usize]);
            }
            sink.matched(&frames[m.frame as usize], &sightings[m.sighting as usize], m)?;
        }
        matches.clear();
        self.forget(windows, edge, &waiting);
        Ok(())
    }

    /// Keeps what waits and what can still be reached.
    fn forget(&mut self, windows: &Windows, edge: Option<i64>, waiting: &[u32]) {
        let mut keys: Map<u64, i64> = Map::default();
        let mut entries: Set<u64> = Set::default();
        for (to, &i) in waiting.iter().enumerate() {
            let frame = self.frames[i as usize];
            let low = reach(&frame, windows).0;
            keys.entry(frame.keys.exact).and_modify(|l| *l = low.min(*l)).or_insert(low);
            // Should it find no equal, it is matched by interval.
            entries.extend(frame.keys.tcp.into_iter().flat_map(interval::entries));
            self.frames[to] = frame;
        }
        self.frames.truncate(waiting.len());
        let reached = |s: &Sighting| {
            edge.is_some_and(|edge| s.at >= edge)
                || keys.get(&s.keys.exact).is_some_and(|low| s.at >= *low)
                || (!entries.is_empty()
                    && s.keys.tcp.is_some_and(|t| interval::entries(t).any(|e| entries.contains(&e))))
        };
        let mut kept = 0;
        for i in 0..self.sightings.len() {
            if reached(&self.sightings[i]) {
                self.sightings[kept] = self.sightings[i];
                self.order[kept] = self.order[i];
                kept += 1;
            }
        }
        self.sightings.truncate(kept);
        self.order.truncate(kept);
    }
}

#[cfg(test)]
mod tests {
    use super::super::keys::{Keys, Tcp};
    use super::super::{MAX_APART_NS, Side, Wire};
    use super::*;
    use kpat_model::codes::match_key;

    #[derive(Default)]
    struct Keep {
        matches: Vec<(u64, u64, i32, i32, i32)>,
        decided: u64,
    }

    impl Sink for Keep {
        fn matched(&mut self, f: &Frame, s: &Sighting, m: &Match) -> Result<()> {
            self.matches.push((f.number, s.packet, m.key, m.confidence, m.alternatives));
            Ok(())
        }

        fn decided(&mut self, frames: u64) {
            self.decided = frames;
        }
    }

    /// Few keys that repeat at all distances, parts of a TCP stream, frames long in a queue, frames and packets without
    /// the other.
    fn world(seed: u64) -> (Vec<Frame>, Vec<Sighting>) {
        let mut below = kpat_model::random::below(seed);
        let (mut frames, mut sightings) = (Vec::new(), Vec::new());
        let mut at = 0i64;
        for packet in 1..=1_500u64 {
            // Bursts, and gaps that no frame can be held over.
            at += if below(40) == 0 { below(3_000_000_000) } else { below(60_000_000) } as i64;
            let tcp = below(3) == 0;
            let (seq, len) = (below(60) as u32 * 1000, 1000 + below(3) as u32 * 1000);
            let tcp = tcp.then_some(Tcp { flow: below(2), seq, len });
            let exact = tcp.map_or(below(30), |t| 1000 + u64::from(t.seq) * 10 + u64::from(t.len / 1000));
            let keys = Keys { exact, tcp, kind: match_key::FULL, ttl: 64, ..Keys::default() };
            let side = if below(2) == 0 { Side::Received } else { Side::Transmitted };
            if below(5) > 0 {
                sightings.push(Sighting {
                    keys,
                    packet,
                    at,
                    first: at,
                    last: at + 1_000_000,
                    side,
                    devices: 0,
                    weak: false,
                    lost: false,
                    tap: (0, 0),
                    place: 0,
                });
            }
            if below(5) > 0 {
                let delay = match (side, below(4)) {
                    (Side::Received, _) => -(below(40_000_000) as i64),
                    (_, 0) => below(900_000_000) as i64,
                    (..) => below(1_000_000) as i64,
                };
                let side = if below(3) == 0 { Side::Unknown } else { side };
                let cut = tcp.filter(|_| below(3) == 0).map(|t| Tcp { len: 1000, ..t });
                let keys = match cut {
                    Some(t) => Keys { exact: 1000 + u64::from(t.seq) * 10 + 1, tcp: cut, ..keys },
                    None => keys,
                };
                let (wall, interface) = (at + delay, below(2) as u32);
                frames.push(Frame {
                    keys,
                    wall,
                    boot: wall,
                    bound: 5_000,
                    number: packet,
                    interface,
                    side,
                    inside: false,
                    wire: Wire::default(),
                    device: 0,
                    place: 0,
                });
            }
        }
        frames.sort_by_key(|f| f.wall);
        (frames, sightings)
    }

    fn run_world(batch: usize, frames: &[Frame], sightings: &[Sighting]) -> (Keep, usize) {
        let windows = Windows { own: false, scatter: 0, widest: 5_000, logs: false };
        let mut keep = Keep::default();
        let (mut f, mut s) = (frames.iter().copied(), sightings.iter().copied());
        let held = run_by(batch, &mut || Ok(f.next()), &mut || Ok(s.next()), &windows, &mut keep).unwrap();
        keep.matches.sort_unstable();
        (keep, held)
    }

    /// However little is taken at a time, the matches are those of everything at once.
    #[test]
    fn seams_change_nothing() {
        for seed in 1..=30 {
            let (frames, sightings) = world(seed);
            let (whole, all) = run_world(usize::MAX, &frames, &sightings);
            assert!(whole.matches.len() > 500 && whole.decided == frames.len() as u64);
            assert!(whole.matches.iter().any(|m| m.2 == match_key::TCP_INTERVAL));
            for batch in [1, 7, 50, 400] {
                let (parts, held) = run_world(batch, &frames, &sightings);
                assert_eq!(parts.matches, whole.matches, "seed {seed}, {batch} at a time");
                assert_eq!(parts.decided, frames.len() as u64);
                assert!(held < all / 2, "{held} of {all} held, {batch} at a time");
            }
        }
    }

    /// Bursts of alike packets, closer than the clock is known, over a wire that keeps their order; a share of the frames and of the
    /// packets is missing.
    fn bursts(seed: u64, missing: u64) -> (Vec<Frame>, Vec<Sighting>) {
        let mut below = kpat_model::random::below(seed);
        let (mut frames, mut sightings) = (Vec::new(), Vec::new());
        let (mut at, mut packet) = (0i64, 0u64);
        for burst in 0..400u64 {
            at += 1_100_000_000 + below(100_000_000) as i64;
            let side = if below(2) == 0 { Side::Received } else { Side::Transmitted };
            let off = below(60_000) as i64 - 30_000;
            for _ in 0..2 + below(4) {
                at += 1_000 + below(40_000) as i64;
                packet += 1;
                let kind = match_key::TRANSPORT;
                let keys = Keys { exact: burst % 7, kind, ttl: 64, ..Keys::default() };
                if below(100) >= missing {
                    sightings.push(Sighting {
                        keys,
                        packet,
                        at,
                        first: at,
                        last: at + 1_000_000,
                        side,
                        devices: 0,
                        weak: false,
                        lost: false,
                        tap: (0, 0),
                        place: 0,
                    });
                }
                if below(100) >= missing {
                    let delay = 500 + below(1_000) as i64;
                    let wall = at + off + if side == Side::Received { -delay } else { delay };
                    frames.push(Frame {
                        keys,
                        wall,
                        boot: wall,
                        bound: 31_000,
                        number: packet,
                        interface: 0,
                        side: Side::Unknown,
                        inside: false,
                        wire: Wire::default(),
                        device: 0,
                        place: 0,
                    });
                }
            }
        }
        frames.sort_by_key(|f| f.wall);
        (frames, sightings)
    }

    /// Of the matches called 99 % at least 99 of 100 are right, of those called 85 and more at least 85, and of each level by itself no
    /// fewer than it says; a fifth of the frames and a fifth of the packets are missing, and keys repeat at all distances, or in bursts.
    #[test]
    fn confidence_is_calibrated() {
        let mut counts: std::collections::BTreeMap<i32, (usize, usize)> = Default::default();
        for seed in 100..220 {
            let (frames, sightings) = world(seed);
            let (whole, _) = run_world(usize::MAX, &frames, &sightings);
            for (number, packet, _, confidence, _) in whole.matches {
                let c = counts.entry(confidence).or_default();
                *c = (c.0 + 1, c.1 + usize::from(number == packet));
            }
        }
        let mut in_bursts: std::collections::BTreeMap<i32, (usize, usize)> = Default::default();
        for seed in 200..212 {
            for missing in [0, 2, 10] {
                let (frames, sightings) = bursts(seed, missing);
                let (whole, _) = run_world(usize::MAX, &frames, &sightings);
                for (number, packet, _, confidence, _) in whole.matches {
                    let c = in_bursts.entry(confidence).or_default();
                    *c = (c.0 + 1, c.1 + usize::from(number == packet));
                }
            }
        }
        for (confidence, (all, right)) in &in_bursts {
            println!(
                "bursts, called {confidence} %: {right} of {all}, {:.2} %",
                100.0 * *right as f64 / *all as f64
            );
        }
        for (confidence, (all, right)) in &counts {
            println!("called {confidence} %: {right} of {all}, {:.2} %", 100.0 * *right as f64 / *all as f64);
        }
        for least in [85, 90, 99] {
            let (all, right) = counts.range(least..).fold((0, 0), |s, (_, c)| (s.0 + c.0, s.1 + c.1));
            assert!(right * 100 >= all * least as usize, "called {least} % and more: {right} of {all}");
        }
        // Each level by itself, as far as there are enough of it to tell.
        for (confidence, (all, right)) in counts.iter().chain(&in_bursts).filter(|c| c.1.0 >= 100) {
            let (stated, all) = (f64::from(*confidence) / 100.0, *all as f64);
            let chance = 2.0 * (stated * (1.0 - stated) / all).sqrt();
            let share = *right as f64 / all;
            assert!(share >= stated - chance, "called {confidence} %: {right} of {all}");
        }
    }

    /// A key that repeats without end is cut into pieces that share what they can reach: what one piece took is not the
    /// next one's to take, across seams too.
    #[test]
    fn a_flood_of_equals_is_not_taken_twice() {
        let keys = Keys { exact: 5, kind: match_key::NETWORK, ttl: 64, ..Keys::default() };
        let (side, last) = (Side::Transmitted, i64::MAX);
        let at = |i: u64| i as i64 * 1_000_000;
        let sightings: Vec<Sighting> = (0..3_000u64)
            .filter(|i| i % 7 != 3)
            .map(|i| Sighting {
                keys,
                packet: i,
                at: at(i),
                first: at(i),
                last,
                side,
                devices: 0,
                weak: false,
                lost: false,
                tap: (0, 0),
                place: 0,
            })
            .collect();
        let frames: Vec<Frame> = (0..3_000u64)
            .filter(|i| i % 11 != 5)
            .map(|i| {
                let wall = at(i) + 400_000;
                Frame {
                    keys,
                    wall,
                    boot: wall,
                    bound: 5_000,
                    number: i,
                    interface: 0,
                    side,
                    inside: false,
                    wire: Wire::default(),
                    device: 0,
                    place: 0,
                }
            })
            .collect();
        let (whole, _) = run_world(usize::MAX, &frames, &sightings);
        for batch in [60, 500] {
            let (parts, _) = run_world(batch, &frames, &sightings);
            assert_eq!(parts.matches, whole.matches, "{batch} at a time");
        }
        let mut packets: Vec<u64> = whole.matches.iter().map(|m| m.1).collect();
        packets.sort_unstable();
        assert!(packets.len() > 2_000 && packets.windows(2).all(|w| w[0] != w[1]));
    }

    /// What no frame can reach any more is not held, however much of it there is.
    #[test]
    fn little_is_held() {
        let (frames, sightings) = world(99);
        let span = frames[frames.len() - 1].wall;
        let (_, held) = run_world(10, &frames, &sightings);
        let per_reach = (frames.len() + sightings.len()) as i64 * 2 * MAX_APART_NS / span;
        assert!((held as i64) < 8 * per_reach, "{held} held, {per_reach} in reach");
    }
}
