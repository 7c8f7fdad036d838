//! Frames and sightings with equal keys, aligned in order.
//!
//! Where a key occurs once on each side there is nothing to decide. Where it repeats (an identical ping, a retransmission,
//! IPv6 without identification, a wrapped one) frames and sightings of one key are two sequences in time; the best
//! alignment keeps their order, matches as many as the clock window allows and then has the least cost. Taking the
//! nearest in time instead fails as soon as the clock's bound exceeds the distance of the repetitions: it matches every
//! frame with its neighbour's packet.

use super::{Frame, Match, Side, Sighting, Windows, cost, order, residual};
use crate::ahead;
use kpat_model::codes::match_key;

/// Rows before one of which its memory is asked for.
pub(super) const AHEAD: usize = 12;
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
/// Where no identification tells packets apart, others with the same headers are usual: that this one waited is no likelier than that the frame's own
/// is missing.
const ALIKE_APART_CONFIDENCE: i32 = 50;
/// Of alike packets in pairs that lose a frame and a packet, a single frame beside a single packet is as often wrong as right: so
/// many times the chance that both are missing.
const ALIKE_WRONG: f64 = 3.0;

/// One side by key, then interface, then time.
struct Sorted {
    /// Key and interface of each.
    keys: Vec<(u64, u32)>,
    /// Its place among the rows.
    rows: Vec<u32>,
}

impl Sorted {
    fn by<T>(rows: &[T], key: impl Fn(&T) -> (u64, u32, i64)) -> Sorted {
        type Slot = (u64, u32, i64, u32);
        let unsorted: Vec<Slot> = (0..)
            .zip(rows)
            .map(|(i, r)| {
                let (k, interface, at) = key(r);
                (k, interface, at, i)
            })
            .collect();
        // Keys are hashes, so their first bits alone nearly sort them.
        let bits = rows.len().checked_ilog2().unwrap_or(0).clamp(1, 16);
        let first_bits = |p: &Slot| (p.0 >> (64 - bits)) as usize;
        let mut ends = vec![0u32; (1 << bits) + 1];
        unsorted.iter().for_each(|p| ends[first_bits(p) + 1] += 1);
        for i in 1..ends.len() {
            ends[i] += ends[i - 1];
        }
        let mut sorted = vec![(0, 0, 0, 0); unsorted.len()];
        for p in &unsorted {
            // Where the next of these bits goes; in the end, where they end.
            let to = &mut ends[first_bits(p)];
            sorted[*to as usize] = *p;
            *to += 1;
        }
        let mut from = 0;
        for end in ends {
            sorted[from..end as usize].sort_unstable();
            from = end as usize;
        }
        Sorted {
            keys: sorted.iter().map(|p| (p.0, p.1)).collect(),
            rows: sorted.iter().map(|p| p.3).collect(),
        }
    }

    /// How many from `i` on are alike.
    fn alike(&self, i: usize) -> usize {
        self.keys[i..].iter().take_while(|k| **k == self.keys[i]).count()
    }
}

/// Calls `f` with the frames of each key and interface, and the sightings of that key.
pub(crate) fn buckets(frames: &[Frame], sightings: &[Sighting], mut f: impl FnMut(&[u32], &[u32])) {
    let fs = Sorted::by(frames, |f| (f.keys.exact, f.interface, f.boot));
    let ss = Sorted::by(sightings, |s| (s.keys.exact, 0, s.at));
    let (mut i, mut k) = (0, 0);
    while i < fs.keys.len() {
        let key = fs.keys[i].0;
        let run = fs.alike(i);
        // Rows of one key lie anywhere.
        for row in fs.rows.iter().skip(i + AHEAD).take(run) {
            ahead::fetch_one(&frames[*row as usize]);
        }
        for row in ss.rows.iter().skip(k + AHEAD).take(2) {
            ahead::fetch_one(&sightings[*row as usize]);
        }
        while k < ss.keys.len() && ss.keys[k].0 < key {
            k += 1;
        }
        let end = if ss.keys.get(k).is_some_and(|s| s.0 == key) { k + ss.alike(k) } else { k };
        f(&fs.rows[i..i + run], &ss.rows[k..end]);
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
    pub(super) fn frame(&self, i: usize) -> &Frame {
        &self.frames[self.fs[i] as usize]
    }

    pub(super) fn sighting(&self, k: usize) -> &Sighting {
        &self.sightings[self.ss[k] as usize]
    }

    /// Between a guest and its host nothing gives a packet another identification.
    fn contradict(&self, f: &Frame, s: &Sighting) -> bool {
        self.windows.logs && f.keys.contradict(&s.keys)
    }

    pub(super) fn cost(&self, i: usize, k: usize) -> Option<i64> {
        let (f, s) = (self.frame(i), self.sighting(k));
        if self.contradict(f, s) {
            return None;
        }
        residual(f, s, self.windows, false).map(|r| cost(f, s, r, self.windows))
    }

    /// The one sighting that a single frame is of if its stamp is far later or earlier than stamps usually are.
    fn late(&self, i: usize, from: usize, to: usize) -> Option<usize> {
        let f = self.frame(i);
        let fits = |k: &usize| {
            let s = self.sighting(*k);
            let ttls = [f.keys.ttl, s.keys.ttl];
            let fits = (ttls.contains(&0) || ttls[0] == ttls[1]) && !self.contradict(f, s);
            fits && residual(f, s, self.windows, true).is_some()
        };
        let mut all = (from..to).filter(fits);
        all.next().filter(|_| all.next().is_none())
    }

    /// Sightings whose time allows frame `i`, as a range that may hold some that do not.
    pub(super) fn window(&self, i: usize) -> (usize, usize) {
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
            // A flood of equals is cut where it pauses longest, not in the midst of a burst.
            if end < self.fs.len() && end - i > 2 && self.window(end).0 < to {
                let gap = |e: &usize| self.frame(*e).boot.saturating_sub(self.frame(*e - 1).boot);
                end = (i + (end - i) / 2 + 1..=end).max_by_key(gap).unwrap_or(end);
                to = self.window(end - 1).1;
            }
            if end == self.fs.len()
                && open_from.is_some_and(|low| super::reach(self.frame(end - 1), self.windows).1 >= low)
            {
                break;
            }
            if from < to {
                if end - i == 1 {
                    if let Some(one) = self.single(i, from, to) {
                        free = one.1 + 1;
                        out.push(one.0);
                    }
                } else {
                    let all: Vec<usize> = (from..to).collect();
                    let (pairs, _) = self.align((i, end), &all, |i, k| self.cost(i, k));
                    if let Some(&(_, last)) = pairs.last() {
                        let begin = out.len();
                        out.extend(pairs.iter().map(|&(i, k)| self.matched(i, k, from, to)));
                        order::settle(self, (i, end), (from, to), &pairs, &mut out[begin..]);
                        self.doubt((i, end), (from, to), &mut out[begin..]);
                        free = last + 1;
                    }
                }
            }
            i = end;
        }
        (i, if free > 0 { Some(place(self.ss[free - 1])) } else { used })
    }

    /// The match of a frame that is decided by itself, and with which sighting: what [`Self::align`] gives of a single one.
    fn single(&self, i: usize, from: usize, to: usize) -> Option<(Match, usize)> {
        let fits = (from..to).filter_map(|k| Some((self.cost(i, k)?.min(LEFT_OUT - 1), k)));
        let best = fits.reduce(|best, next| if next.0 <= best.0 { next } else { best });
        if let Some((_, k)) = best {
            let mut one = [self.matched(i, k, from, to)];
            self.doubt((i, i + 1), (from, to), &mut one);
            return Some((one[0], k));
        }
        let k = self.late(i, from, to)?;
        let mut late = self.matched(i, k, from, to);
        late.confidence = late.confidence.min(LATE_CONFIDENCE);
        Some((late, k))
    }

    /// Where frames and packets that are alike are left over, one that fits may be another's whose own frame is missing: that takes one
    /// of each, and how often either is missing the stretch itself tells.
    fn doubt(&self, (i0, i1): (usize, usize), (k0, k1): (usize, usize), matches: &mut [Match]) {
        let packet = |k: usize| self.sighting(k).packet;
        if i1 - i0 == 1 && (k0 + 1..k1).all(|k| packet(k) == packet(k0)) {
            return;
        }
        let mut packets: Vec<u64> = (k0..k1).map(packet).collect();
        packets.sort_unstable();
        packets.dedup();
        if (i1 - i0) + packets.len() <= 2 {
            return;
        }
        let near = |m: &&mut Match| {
            let (f, s) = (&self.frames[m.frame as usize], &self.sightings[m.sighting as usize]);
            !super::is_apart(f, s, self.windows)
        };
        let matched = matches.iter_mut().filter(near).count();
        // With one more of either, for a few that all fit do not prove that none is missing.
        let missing = |of: usize| (of.saturating_sub(matched) as f64 + 1.0) / (of as f64 + 2.0);
        let wrong = ALIKE_WRONG * missing(i1 - i0) * missing(packets.len());
        let most = (100.0 * (1.0 - wrong)).max(0.0) as i32;
        let alike = |m: &&mut Match| {
            let keys = &self.frames[m.frame as usize].keys;
            keys.ident == 0 && keys.kind != match_key::WIFI
        };
        for m in matches.iter_mut().filter(alike) {
            m.confidence = m.confidence.min(most);
        }
    }

    /// Order-keeping alignment of frames `i0..i1` with sightings `ks`: most matches, then the least sum of `cost`. Gives the pairs in order,
    /// and that sum.
    pub(super) fn align(
        &self,
        (i0, i1): (usize, usize),
        ks: &[usize],
        cost: impl Fn(usize, usize) -> Option<i64>,
    ) -> (Vec<(usize, usize)>, i64) {
        let (n, m) = (i1 - i0, ks.len());
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
                if let Some(c) = cost(i0 + i, ks[k - 1])
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
        let mut pairs = Vec::new();
        while i > 0 {
            match choice[(i - 1) * (m + 1) + k] {
                2 => {
                    pairs.push((i0 + i - 1, ks[k - 1]));
                    i -= 1;
                    k -= 1;
                }
                1 => k -= 1,
                _ => i -= 1,
            }
        }
        pairs.reverse();
        let left_out = (n - pairs.len()) as i64;
        (pairs, best[m].saturating_sub(left_out.saturating_mul(LEFT_OUT)))
    }

    /// Those count that frames before have taken, too.
    fn is_either_end(&self, i: usize, k: usize) -> bool {
        let (f, s) = (self.frame(i), self.sighting(k));
        let near = k.saturating_sub(NEAREST)..(k + NEAREST + 1).min(self.ss.len());
        near.into_iter().any(|o| super::is_either_end(f, s, self.sighting(o), self.windows))
    }

    /// Percent, if nothing else fits.
    pub(super) fn by_key(&self, f: &Frame, s: &Sighting) -> i32 {
        let ttl_differs = f.keys.ttl != 0 && s.keys.ttl != 0 && f.keys.ttl != s.keys.ttl;
        let mut confidence = match f.keys.kind {
            match_key::FULL => 99,
            // Addresses, protocol and length alone are those of many.
            match_key::NETWORK if f.keys.ident == 0 => 70,
            match_key::NETWORK => 97,
            match_key::WIFI => 95,
            match_key::ARP | match_key::LINK => 92,
            _ => 95,
        };
        if f.keys.ident != s.keys.ident {
            confidence -= 10;
        }
        if ttl_differs {
            confidence -= 25;
        }
        // A segment with data is named by where they are in the stream; only the same data sent again are alike.
        let data = self.windows.logs && f.keys.tcp.is_some_and(|t| t.len > 0);
        let named = f.keys.ident != 0 || data;
        let apart = if named { APART_CONFIDENCE } else { ALIKE_APART_CONFIDENCE };
        if super::is_apart(f, s, self.windows) { confidence.min(apart) } else { confidence }
    }

    pub(super) fn matched(&self, i: usize, k: usize, from: usize, to: usize) -> Match {
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
        let apart = super::is_apart(f, s, self.windows);
        let mut confidence = self.by_key(f, s);
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
