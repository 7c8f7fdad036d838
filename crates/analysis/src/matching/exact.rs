//! Frames and sightings with equal keys, aligned in order.
//!
//! Where a key occurs once on each side there is nothing to decide. Where it repeats (an identical ping, a retransmission,
//! IPv6 without identification, a wrapped one) frames and sightings of one key are two sequences in time; the best
//! alignment keeps their order, matches as many as the clock window allows and then has the least cost. Taking the
//! nearest in time instead fails as soon as the clock's bound exceeds the distance of the repetitions: it matches every
//! frame with its neighbour's packet.

use super::{Frame, Match, Side, Sighting, Windows, cost, residual};
use crate::query::match_key;

/// Above every sum of costs.
const LEFT_OUT: i64 = 1 << 44;
/// Cells of the largest table that is aligned at once.
const MAX_CELLS: usize = 1 << 16;
/// Sightings on each side of a frame's time that come into question where a key repeats without end.
const NEAREST: usize = 64;

/// Of a match whose stamp is far beyond the usual scatter.
const LATE_CONFIDENCE: i32 = 85;
/// Of a match that is apart for so long: its own packet may be missing, and this one have the same headers.
const APART_CONFIDENCE: i32 = 95;

/// Indices of one side by key, then interface, then time.
fn by_key<T>(rows: &[T], key: impl Fn(&T) -> (u64, u32, i64)) -> Vec<u32> {
    let mut order: Vec<(u64, u32, i64, u32)> = rows
        .iter()
        .enumerate()
        .map(|(i, r)| {
            let (k, interface, at) = key(r);
            (k, interface, at, i as u32)
        })
        .collect();
    order.sort_unstable();
    order.into_iter().map(|(_, _, _, i)| i).collect()
}

/// Calls `f` with the frames of each key and interface, and the sightings of that key.
pub(crate) fn buckets(frames: &[Frame], sightings: &[Sighting], mut f: impl FnMut(&[u32], &[u32])) {
    let fs = by_key(frames, |f| (f.keys.exact, f.interface, f.boot));
    let ss = by_key(sightings, |s| (s.keys.exact, 0, s.at));
    let (mut i, mut k) = (0, 0);
    while i < fs.len() {
        let frame = &frames[fs[i] as usize];
        let key = frame.keys.exact;
        let same = |j: &u32| {
            let g = &frames[*j as usize];
            g.keys.exact == key && g.interface == frame.interface
        };
        let run = fs[i..].iter().take_while(|j| same(j)).count();
        while k < ss.len() && sightings[ss[k] as usize].keys.exact < key {
            k += 1;
        }
        let end = k + ss[k..].iter().take_while(|j| sightings[**j as usize].keys.exact == key).count();
        f(&fs[i..i + run], &ss[k..end]);
        i += run;
    }
}

/// How far the sightings of a bucket are used up: their time, and their place in the stream.
pub(super) type Used = (i64, u64);

/// The frames of one key and interface with the sightings of that key, both in order of time.
pub(super) struct Bucket<'a> {
    pub frames: &'a [Frame],
    pub sightings: &'a [Sighting],
    pub windows: &'a Windows,
    pub fs: &'a [u32],
    pub ss: &'a [u32],
}

impl Bucket<'_> {
    fn frame(&self, i: usize) -> &Frame {
        &self.frames[self.fs[i] as usize]
    }

    fn sighting(&self, k: usize) -> &Sighting {
        &self.sightings[self.ss[k] as usize]
    }

    fn cost(&self, i: usize, k: usize) -> Option<i64> {
        let (f, s) = (self.frame(i), self.sighting(k));
        residual(f, s, self.windows, false).map(|r| cost(f, s, r, self.windows))
    }

    /// The one sighting that a single frame is of if its stamp is far later or earlier than stamps usually are.
    fn late(&self, i: usize, from: usize, to: usize) -> Option<usize> {
        let f = self.frame(i);
        let fits = |k: &usize| {
            let s = self.sighting(*k);
            let ttls = [f.keys.ttl, s.keys.ttl];
            (ttls.contains(&0) || ttls[0] == ttls[1]) && residual(f, s, self.windows, true).is_some()
        };
        let mut all = (from..to).filter(fits);
        all.next().filter(|_| all.next().is_none())
    }

    /// Sightings whose time allows frame `i`, as a range that may hold some that do not.
    fn window(&self, i: usize) -> (usize, usize) {
        let (low, high) = super::reach(self.frame(i), self.windows);
        let from = self.ss.partition_point(|s| self.sightings[*s as usize].at < low);
        let to = self.ss.partition_point(|s| self.sightings[*s as usize].at <= high);
        if to - from > 4 * NEAREST {
            let boot = self.frame(i).boot;
            let here = self.ss.partition_point(|s| self.sightings[*s as usize].at < boot);
            return (from.max(here.saturating_sub(NEAREST)), to.min(here + NEAREST));
        }
        (from, to.max(from))
    }

    /// Decides frames in order as long as no later one can have a say. `used`: sightings up to this one are taken, or
    /// passed by frames before. `open_from`: what a later frame of this bucket, not yet here, could still reach; `None`:
    /// there is none. Gives how many frames are decided, and what is used up then.
    pub fn run(
        &self,
        used: Option<Used>,
        place: impl Fn(u32) -> Used,
        open_from: Option<i64>,
        out: &mut Vec<Match>,
    ) -> (usize, Option<Used>) {
        let mut i = 0;
        // Sightings before this one are taken, or passed by frames before.
        let mut free = used.map_or(0, |u| self.ss.partition_point(|s| place(*s) <= u));
        while i < self.fs.len() {
            let (from, mut to) = self.window(i);
            let from = from.max(free);
            // Frames whose windows overlap are decided together.
            let mut end = i + 1;
            while end < self.fs.len() {
                let (next_from, next_to) = self.window(end);
                if next_from >= to || (end - i + 1) * next_to.saturating_sub(from) > MAX_CELLS {
                    break;
                }
                to = next_to;
                end += 1;
            }
            if end == self.fs.len()
                && open_from.is_some_and(|low| super::reach(self.frame(end - 1), self.windows).1 >= low)
            {
                break;
            }
            if from < to {
                if end - i == 1 && !(from..to).any(|k| self.cost(i, k).is_some()) {
                    if let Some(k) = self.late(i, from, to) {
                        let mut late = self.matched(i, k, from, to);
                        late.confidence = late.confidence.min(LATE_CONFIDENCE);
                        out.push(late);
                        free = k + 1;
                    }
                } else if let Some(last) = self.align(i, end, from, to, out) {
                    free = last + 1;
                }
            }
            i = end;
        }
        (i, if free > 0 { Some(place(self.ss[free - 1])) } else { used })
    }

    /// Order-keeping alignment of frames `i0..i1` with sightings `k0..k1`: most matches, then least cost. Gives the last
    /// sighting that was matched.
    fn align(&self, i0: usize, i1: usize, k0: usize, k1: usize, out: &mut Vec<Match>) -> Option<usize> {
        let (n, m) = (i1 - i0, k1 - k0);
        let mut best = vec![0i64; m + 1];
        // 0 leave the frame, 1 leave the sighting, 2 match.
        let mut choice = vec![1u8; n * (m + 1)];
        for i in 0..n {
            let mut diagonal = best[0];
            best[0] += LEFT_OUT;
            choice[i * (m + 1)] = 0;
            for k in 1..=m {
                let left_frame = best[k] + LEFT_OUT;
                let left_sighting = best[k - 1];
                let (mut least, mut how) =
                    if left_frame < left_sighting { (left_frame, 0) } else { (left_sighting, 1) };
                if let Some(c) = self.cost(i0 + i, k0 + k - 1)
                    && diagonal + c.min(LEFT_OUT - 1) <= least
                {
                    (least, how) = (diagonal + c.min(LEFT_OUT - 1), 2);
                }
                diagonal = best[k];
                best[k] = least;
                choice[i * (m + 1) + k] = how;
            }
        }
        let (mut i, mut k) = (n, m);
        let mut last = None;
        while i > 0 {
            match choice[(i - 1) * (m + 1) + k] {
                2 => {
                    out.push(self.matched(i0 + i - 1, k0 + k - 1, k0, k1));
                    last = last.or(Some(k0 + k - 1));
                    i -= 1;
                    k -= 1;
                }
                1 => k -= 1,
                _ => i -= 1,
            }
        }
        last
    }

    /// Those count that frames before have taken, too.
    fn is_either_end(&self, i: usize, k: usize) -> bool {
        let (f, s) = (self.frame(i), self.sighting(k));
        let near = k.saturating_sub(NEAREST)..(k + NEAREST + 1).min(self.ss.len());
        near.into_iter().any(|o| super::is_either_end(f, s, self.sighting(o), self.windows))
    }

    fn matched(&self, i: usize, k: usize, from: usize, to: usize) -> Match {
        let (f, s) = (self.frame(i), self.sighting(k));
        let own_cost = self.cost(i, k).unwrap_or(0);
        // What fits as well: its cost differs by less than the clock can tell.
        let unsure = f.bound.saturating_mul(2).saturating_add(self.windows.scatter);
        let mut others = 0;
        let mut alternatives = 0;
        let mut side = s.side;
        // Of this packet on the other side.
        let mut across: Vec<&Sighting> = Vec::new();
        let near = |at: usize| (at.saturating_sub(64).max(from))..((at + 65).min(to));
        for o in near(k).filter(|&o| o != k) {
            let other = self.sighting(o);
            let Some(c) = self.cost(i, o) else { continue };
            let as_well = c.saturating_sub(own_cost) <= unsure;
            if other.packet != s.packet {
                others += 1;
                alternatives += i32::from(as_well);
            } else if as_well && other.side != s.side {
                side = Side::Unknown;
                across.push(other);
            }
        }
        let ttl_differs = f.keys.ttl != 0 && s.keys.ttl != 0 && f.keys.ttl != s.keys.ttl;
        let mut confidence = match f.keys.kind {
            match_key::FULL => 99,
            // Addresses, protocol and length alone are those of many.
            match_key::NETWORK if f.keys.ident == 0 => 70,
            match_key::NETWORK => 97,
            match_key::WIFI => 95,
            match_key::ARP => 92,
            _ => 95,
        };
        if f.keys.ident != s.keys.ident {
            confidence -= 10;
        }
        if ttl_differs {
            confidence -= 25;
        }
        let apart = super::is_apart(f, s, self.windows);
        if apart {
            confidence = confidence.min(APART_CONFIDENCE);
        }
        if alternatives > 0 {
            confidence = confidence.min(super::one_of(alternatives, apart));
        } else if others > 0 {
            confidence = confidence.min(85);
        }
        let key = if f.keys.kind == match_key::FULL && f.keys.ident != s.keys.ident {
            match_key::TRANSPORT
        } else {
            f.keys.kind
        };
        Match {
            frame: self.fs[i],
            sighting: self.ss[k],
            key,
            confidence,
            alternatives,
            // Sent to a group, the addresses name the sender only: a copy may be on its way in.
            side: if side == Side::Unknown && !f.wire.group { f.side } else { side },
            either_end: self.is_either_end(i, k),
            here: s.is_here(f) || s.is_received_here(f),
            seq_offset: f.keys.tcp.map(|_| 0),
            between: if let [other] = across[..] { super::link(s, other) } else { None },
        }
    }
}
