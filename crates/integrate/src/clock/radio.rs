//! The clocks of radios as further witnesses of a sniffer's clock: its own radio's stamp in each frame (radiotap TSFT), and frames that another sniffer heard, too.
//!
//! Matches relate a sniffer's clock to the device's only while the device is heard. In a handover it is not for a minute: the time in which the station is without a
//! network is the one in which the sniffer's clock may drift, be steered or be set without anything that shows it. Its radio counts microseconds meanwhile and is set by
//! nobody. So the matches relate the radio's clock to the device's by the same estimate as the sniffer's, and what that leaves open of the time of a frame bounds the
//! sniffer's clock like a match in and a match out. Rejected: the radio's clock instead of the sniffer's. Tables, exports and the frames' own times are by the file's stamps, and a
//! radio's clock may end at any moment.
//!
//! A radio's clock is no oscillator to rely on: drivers write nothing, a constant, 32 bits that wrap, or start again when the radio changes its channel or joins a network.
//! So it is cut wherever it and the sniffer's clock differ by a jump, unless an access point that was heard on both sides says, by the clock in its beacons, that the sniffer's
//! was set. What is cut is a clock of its own, of its own matches. Where no access point vouches for it back to a match, a smaller jump would not be seen, and it is not used.
//!
//! Beacons also tie sniffers to one another: the sender's clock in them, with its address, is one moment for all who hear it. So a sniffer that heard nothing of the device is
//! related over one that did.

use super::estimate::{self, Given};
use super::{Clock, Pair, Side};
use crate::error::Result;
use kpat_capture::{Reader, decode};
use kpat_model::hash::Map;
use std::path::Path;

/// The sniffer's stamps may be later than others by so much without having been set.
const LATE_US: i64 = 20_000;
/// A beacon bears the time at which it was to begin, or began: how far that may scatter, at least and at most, and how many of its sender show it.
const BEACON_US: (i64, i64) = (20, 2_000);
const BEACONS: usize = 8;
/// Clocks differ in speed by less: two of 0.5 per mille.
const MOST_DRIFT_PER_MILLE: i64 = 1;
/// An access point that was not heard for longer says nothing of what happened meanwhile.
const HEARD_US: i64 = 10_000_000;
/// Frames that bound the clock are no closer than this, and no more than so many.
const APART_NS: i64 = 50_000_000;
const MOST: usize = 1 << 14;
/// Access points of a capture that are followed.
const SENDERS: usize = 64;
/// A radio's clock of fewer stamps, or with more cuts for each of them, is none.
const FEWEST: usize = 8;
const STAMPS_PER_CUT: usize = 16;
/// What bounds a frame no better than this says nothing.
const WIDEST_NS: i64 = 50_000_000;
/// Beacons of one capture, and of several together, that are held.
const HEARD: usize = 1 << 16;

/// What a sniffer wrote of one frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    pub number: u64,
    pub interface: u32,
    /// Of the file, ns.
    pub wall: i64,
    /// Of the sniffer's radio.
    pub tsft_us: Option<i64>,
    /// Of a beacon: its sender, and the sender's radio.
    pub sender: Option<([u8; 6], i64)>,
    /// One of those that bound the clock, not only one that has a match.
    pub drawn: bool,
}

/// A radio's clock without a jump.
pub struct Run {
    /// Of one interface, in order of the file.
    stamps: Vec<Stamp>,
    /// Of each stamp, how many places before it no access point vouches for.
    doubts: Vec<usize>,
}

/// The radios' clocks of a capture.
#[derive(Default)]
pub struct Radios {
    pub runs: Vec<Run>,
    /// Interfaces whose radio's clock is none, with the number of places at which it jumps.
    pub refused: Vec<(u32, usize)>,
}

/// Frames of a capture with a radio's clock in them: those with a match (`matched`, in order) and others, drawn evenly.
pub(crate) fn read(path: &Path, matched: &[u64]) -> Result<Vec<Stamp>> {
    let mut reader = Reader::open(path)?;
    let mut out: Vec<Stamp> = Vec::new();
    let mut apart_ns = APART_NS;
    let mut last: Map<u32, i64> = Map::default();
    let mut seconds: Map<[u8; 6], i64> = Map::default();
    let (mut at, mut drawn, mut beacons) = (0, 0, 0);
    // What comes before a damage is valid.
    while let Ok(Some(f)) = reader.next() {
        let t = decode::radio::time(f.link_type, f.data);
        let tsft_us = t.tsft_us.and_then(|t| i64::try_from(t).ok());
        let mut sender = t.sender.and_then(|(a, t)| Some((a, i64::try_from(t).ok()?)));
        // The first in each second of the sender's clock: whoever hears it, chooses the same.
        if let Some((a, t)) = sender {
            let full = beacons >= HEARD || seconds.len() >= SENDERS && !seconds.contains_key(&a);
            if full || seconds.insert(a, t / 1_000_000) == Some(t / 1_000_000) {
                sender = None;
            }
        }
        beacons += usize::from(sender.is_some());
        while matched.get(at).is_some_and(|n| *n < f.number) {
            at += 1;
        }
        let has_match = matched.get(at) == Some(&f.number);
        let before = last.get(&f.interface);
        let due = tsft_us.is_some() && before.is_none_or(|b| (f.at.0 - b).abs() >= apart_ns);
        if due {
            last.insert(f.interface, f.at.0);
            drawn += 1;
        }
        if due || sender.is_some() || has_match && tsft_us.is_some() {
            let (number, interface, wall) = (f.number, f.interface, f.at.0);
            out.push(Stamp { number, interface, wall, tsft_us, sender, drawn: due });
        }
        if drawn > MOST {
            apart_ns *= 2;
            let mut every = 0;
            out.iter_mut().filter(|s| s.drawn).for_each(|s| {
                every += 1;
                s.drawn = every % 2 == 0;
            });
            drawn = out.iter().filter(|s| s.drawn).count();
            let kept = |s: &Stamp| s.drawn || s.sender.is_some() || matched.binary_search(&s.number).is_ok();
            out.retain(kept);
        }
    }
    Ok(out)
}

/// `stamps`: in order of the file.
pub fn radios(stamps: &[Stamp]) -> Radios {
    let mut of: Vec<(u32, Vec<Stamp>)> = Vec::new();
    for s in stamps.iter().filter(|s| s.tsft_us.is_some()) {
        match of.iter_mut().find(|(i, _)| *i == s.interface) {
            Some((_, all)) => all.push(*s),
            None => of.push((s.interface, vec![*s])),
        }
    }
    let mut out = Radios::default();
    for (interface, all) in of {
        let all = without_glitches(all);
        let spans = Spans::of(&all);
        let cuts = spans.cuts(&all);
        if all.len() < FEWEST || cuts.len() * STAMPS_PER_CUT > all.len() {
            out.refused.push((interface, cuts.len()));
            continue;
        }
        let doubts = spans.doubts(all.len());
        let mut from = 0;
        for to in cuts.into_iter().chain([all.len()]) {
            if to - from >= FEWEST {
                out.runs.push(Run { stamps: all[from..to].to_vec(), doubts: doubts[from..to].to_vec() });
            }
            from = to;
        }
    }
    out
}

/// Two clocks, in microseconds, went on alike.
fn alike(a: i64, b: i64, room_us: i64) -> bool {
    let slow = a.saturating_abs().max(b.saturating_abs()) / 1_000 * MOST_DRIFT_PER_MILLE;
    a.saturating_sub(b).saturating_abs() <= room_us.saturating_add(slow)
}

/// How far the sniffer's clock and the radio's went from one stamp to the other.
fn went(a: &Stamp, b: &Stamp) -> (i64, i64) {
    let tsft = |s: &Stamp| s.tsft_us.unwrap_or(0);
    (b.wall.saturating_sub(a.wall) / 1_000, tsft(b).saturating_sub(tsft(a)))
}

fn jumps(a: &Stamp, b: &Stamp) -> bool {
    let (wall, tsft) = went(a, b);
    !alike(wall, tsft, LATE_US)
}

/// One that agrees with neither neighbour, which agree with each other, is damaged.
fn without_glitches(all: Vec<Stamp>) -> Vec<Stamp> {
    let odd = |i: usize| {
        let (a, s, b) = (&all[i - 1], &all[i], &all[i + 1]);
        jumps(a, s) && jumps(s, b) && !jumps(a, b)
    };
    (0..all.len()).filter(|i| *i == 0 || i + 1 == all.len() || !odd(*i)).map(|i| all[i]).collect()
}

/// From one beacon of an access point to its next.
struct Span {
    from: usize,
    to: usize,
    /// How its clock went, microseconds.
    sender: i64,
    /// The radio's went alike.
    steady: bool,
}

struct Spans(Vec<Span>);

impl Spans {
    fn of(all: &[Stamp]) -> Spans {
        let mut by_sender: Map<[u8; 6], Vec<(usize, i64)>> = Map::default();
        for (i, s) in all.iter().enumerate() {
            if let Some((sender, at)) = s.sender {
                by_sender.entry(sender).or_default().push((i, at));
            }
        }
        let mut out = Vec::new();
        for beacons in by_sender.into_values() {
            let both = beacons.windows(2).map(|w| (w[0].0, w[1].0, w[1].1.saturating_sub(w[0].1)));
            let spans: Vec<_> = both.filter(|s| (1..=HEARD_US).contains(&s.2)).collect();
            let apart = |s: &(usize, usize, i64)| went(&all[s.0], &all[s.1]).1.saturating_sub(s.2) as f64;
            let middle = |mut v: Vec<f64>, share: f64| {
                v.sort_unstable_by(f64::total_cmp);
                v.get((v.len() as f64 * share) as usize).copied().unwrap_or(0.0)
            };
            // By how much one clock is slower than the other, and how far beacons are from that.
            let drift = middle(spans.iter().map(|s| apart(s) / s.2 as f64).collect(), 0.5);
            let drift = drift.clamp(-1e-3, 1e-3);
            let off = |s: &(usize, usize, i64)| (apart(s) - drift * s.2 as f64).abs();
            let usual = middle(spans.iter().map(off).collect(), 0.9);
            let known = spans.len() >= BEACONS;
            let room = if known { 4.0 * usual } else { f64::INFINITY };
            let room = room.clamp(BEACON_US.0 as f64, BEACON_US.1 as f64);
            out.extend(spans.iter().map(|s| Span {
                from: s.0,
                to: s.1,
                sender: s.2,
                steady: off(s) <= room,
            }));
        }
        Spans(out)
    }

    /// Of each of `count` stamps, whether an access point vouches for the way to it from the one before.
    fn vouched(&self, count: usize) -> Vec<bool> {
        let mut over = vec![0i32; count + 1];
        for s in self.0.iter().filter(|s| s.steady) {
            over[s.from + 1] += 1;
            over[s.to + 1] -= 1;
        }
        let mut now = 0;
        let by = over[..count].iter().map(|step| {
            now += step;
            now > 0
        });
        by.collect()
    }

    /// Indices of the first stamps behind a jump of the radio's clock, and of what may be one.
    fn cuts(&self, all: &[Stamp]) -> Vec<usize> {
        // A sender that says otherwise was set itself, or it was the radio.
        let vouched = self.vouched(all.len());
        let mut out: Vec<usize> =
            (1..all.len()).filter(|i| jumps(&all[i - 1], &all[*i]) && !vouched[*i]).collect();
        // How far those reach that are steady and begin at a stamp or before.
        let mut reach = vec![0; all.len()];
        for s in self.0.iter().filter(|s| s.steady) {
            reach[s.from] = s.to.max(reach[s.from]);
        }
        for i in 1..reach.len() {
            reach[i] = reach[i - 1].max(reach[i]);
        }
        // Smaller jumps than the sniffer's clock shows: where a sender agrees with that and not with the radio, unless another agrees with the radio.
        for s in self.0.iter().filter(|s| !s.steady) {
            let (wall, _) = went(&all[s.from], &all[s.to]);
            if alike(s.sender, wall, LATE_US) && reach[s.from] < s.to {
                // Somewhere between the two: neither side's clock has what is between.
                out.extend([s.from + 1, s.to]);
            }
        }
        out.sort_unstable();
        out.dedup();
        out
    }

    /// Of each of `count` stamps, how many before it have no access point that vouches for the way to them.
    fn doubts(&self, count: usize) -> Vec<usize> {
        let mut doubts = 0;
        let before = |sure: bool| {
            doubts += usize::from(!sure);
            doubts
        };
        self.vouched(count).into_iter().map(before).collect()
    }
}

/// What the radios' clocks say of the sniffer's: for frames between the matches, and beyond them, the earliest and the latest boot time, each as a match.
pub struct More {
    pub pairs: Vec<Pair>,
    /// Frames.
    pub frames: usize,
    /// As in [`estimate::Estimate`].
    pub noise_assumed: bool,
}

/// `matches`: of the whole capture. `None`: no radio's clock is related to the device's.
pub fn more(runs: &[Run], matches: &[Pair], one_way_ns: i64) -> Option<More> {
    let mut by_number: Vec<&Pair> = matches.iter().collect();
    by_number.sort_by_key(|p| p.number);
    let mut out = More { pairs: Vec::new(), frames: 0, noise_assumed: false };
    for run in runs {
        let mut own: Vec<Pair> = Vec::new();
        // Doubts at stamps with a match.
        let mut sure: Vec<usize> = Vec::new();
        for (s, doubts) in run.stamps.iter().zip(&run.doubts) {
            let from = by_number.partition_point(|p| p.number < s.number);
            let before = own.len();
            let of = by_number[from..].iter().take_while(|p| p.number == s.number);
            own.extend(of.map(|p| Pair { wall: radio_ns(s), tap: (0, 0), ..**p }));
            if own.len() > before {
                sure.push(*doubts);
            }
        }
        let Some(e) = estimate::estimate(&own, &Given { one_way_ns, resolution_ns: 1_000 }) else { continue };
        // Where all went one way one side is supposed: that is nothing to bound another clock with.
        if !e.two_way {
            continue;
        }
        out.noise_assumed |= e.noise_assumed;
        for (s, doubts) in run.stamps.iter().zip(&run.doubts).filter(|s| s.0.drawn) {
            let (low, high) = e.between(s.number, radio_ns(s));
            // The frame's own stamp scatters, too.
            let own = radio_ns(s);
            let scatter = e.noise_ns.ceil() as i64;
            let low = own.saturating_add(low).saturating_sub(scatter);
            let high = own.saturating_add(high).saturating_add(scatter);
            let vouched = sure.binary_search(doubts).is_ok();
            if vouched && high.saturating_sub(low) <= 2 * WIDEST_NS {
                out.frames += 1;
                out.pairs.extend(bounds(s, low, high));
            }
        }
    }
    (out.frames > 0).then_some(out)
}

fn radio_ns(s: &Stamp) -> i64 {
    s.tsft_us.unwrap_or(0).saturating_mul(1_000)
}

/// That a frame was between two boot times, as two matches.
fn bounds(s: &Stamp, low: i64, high: i64) -> [Pair; 2] {
    let pair = |at, side| Pair { number: s.number, wall: s.wall, at, side, weak: false, tap: (0, 0) };
    [pair(low, Side::Transmitted), pair(high, Side::Received)]
}

/// When beacons were on the air, as captures know whose clock is related to the device's: earliest and latest boot time.
#[derive(Default)]
pub(crate) struct Heard(Map<([u8; 6], i64), (i64, i64)>);

impl Heard {
    pub fn add(&mut self, stamps: &[Stamp], clock: &Clock) {
        for s in stamps {
            let Some(key) = s.sender else { continue };
            let (low, high) = clock.between(s.number, s.wall);
            if high.saturating_sub(low) > 2 * WIDEST_NS || self.0.len() >= HEARD {
                continue;
            }
            // An access point that started again repeats its times: then neither is known.
            let known = self.0.entry(key).or_insert((low, high));
            *known = (known.0.min(low), known.1.max(high));
        }
    }

    /// The same beacons in another capture.
    pub fn pairs(&self, stamps: &[Stamp]) -> Vec<Pair> {
        let of = |s: &Stamp| {
            let (low, high) = *self.0.get(&s.sender?)?;
            (high.saturating_sub(low) <= 2 * WIDEST_NS).then(|| bounds(s, low, high))
        };
        stamps.iter().filter_map(of).flatten().collect()
    }
}
