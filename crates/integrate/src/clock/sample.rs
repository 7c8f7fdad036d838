//! Frames and sightings enough for a first guess of the clock, in bounded memory.
//!
//! What is drawn is keys, not rows: of a key that is in the sample all frames and all sightings are, so pairs vote as they
//! would if all were there. Frames whose key no sighting has are left out first, so that a capture with few frames of
//! this log gives all of these. As long as the log is small the sample is everything.

use crate::error::Result;
use crate::matching::{Frame, Sighting};
use crate::spill::Sorted;
use kpat_model::hash::Map;

/// A packet may be so far from the clock's line and still vote for it: what waits in a queue.
pub(crate) const SAME_NS: i64 = 20_000_000;
/// Frames in a sample at most.
const LIMIT: usize = 1 << 17;
/// Of one key; as many have no vote.
const PER_KEY: u32 = 4097;
const FILTER_BITS: u32 = 26;

/// Which keys occurred; says yes now and then for one that did not.
pub(crate) struct Seen(Box<[u64]>);

impl Default for Seen {
    fn default() -> Self {
        Seen(vec![0; 1 << (FILTER_BITS - 6)].into())
    }
}

impl Seen {
    fn place(exact: u64) -> (usize, u64) {
        let bit = exact >> (64 - FILTER_BITS);
        ((bit >> 6) as usize, 1 << (bit & 63))
    }

    pub fn add(&mut self, exact: u64) {
        let (word, bit) = Self::place(exact);
        self.0[word] |= bit;
    }

    pub fn has(&self, exact: u64) -> bool {
        let (word, bit) = Self::place(exact);
        self.0[word] & bit != 0
    }
}

/// Frames drawn by key.
pub(crate) struct Sample {
    frames: Vec<Frame>,
    of_key: Map<u64, u32>,
    /// Keys with so many low bits zero are drawn.
    level: u32,
    limit: usize,
}

impl Default for Sample {
    fn default() -> Self {
        Sample { frames: Vec::new(), of_key: Map::default(), level: 0, limit: LIMIT }
    }
}

impl Sample {
    pub fn push(&mut self, frame: &Frame) {
        let exact = frame.keys.exact;
        if exact.trailing_zeros() < self.level {
            return;
        }
        let n = self.of_key.entry(exact).or_default();
        if *n >= PER_KEY {
            return;
        }
        *n += 1;
        self.frames.push(*frame);
        while self.frames.len() > self.limit && self.level < 60 {
            self.level += 1;
            let drawn = |exact: u64| exact.trailing_zeros() >= self.level;
            self.frames.retain(|f| drawn(f.keys.exact));
            self.of_key.retain(|exact, _| drawn(*exact));
        }
    }

    /// The frames, and the sightings of their keys.
    pub fn finish(mut self, sightings: &Sorted<Sighting>) -> Result<(Vec<Frame>, Vec<Sighting>)> {
        self.of_key.values_mut().for_each(|n| *n = 0);
        let mut found = Vec::new();
        let mut all = sightings.iter()?;
        while let Some(s) = all.next()? {
            if let Some(n) = self.of_key.get_mut(&s.keys.exact)
                && *n < PER_KEY
            {
                *n += 1;
                found.push(s);
            }
        }
        Ok((self.frames, found))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::matching::keys::Keys;
    use crate::matching::{Side, Wire};
    use kpat_model::hash::Fold;

    #[test]
    fn keys_are_drawn_whole() {
        let mut sample = Sample { limit: 1000, ..Sample::default() };
        let exact = |i: u64| Fold::default().with(i).value();
        for i in 0..30_000u64 {
            let keys = Keys { exact: exact(i % 10_000), kind: 1, ..Keys::default() };
            let side = Side::Unknown;
            sample.push(&Frame {
                keys,
                wall: 0,
                boot: 0,
                bound: 0,
                number: i,
                interface: 0,
                side,
                inside: false,
                wire: Wire::default(),
                device: 0,
                place: 0,
            });
        }
        let n = sample.frames.len();
        assert!((300..=1000).contains(&n), "{n}");
        assert!(sample.of_key.values().all(|n| *n == 3));
        assert_eq!(sample.of_key.len() * 3, n);
    }

    #[test]
    fn one_key_alone_stays_bounded() {
        let mut sample = Sample::default();
        let keys = Keys { kind: 1, ..Keys::default() };
        let side = Side::Unknown;
        let frame = Frame {
            keys,
            wall: 0,
            boot: 0,
            bound: 0,
            number: 1,
            interface: 0,
            side,
            inside: false,
            wire: Wire::default(),
            device: 0,
            place: 0,
        };
        (0..100_000).for_each(|_| sample.push(&frame));
        assert_eq!(sample.frames.len(), PER_KEY as usize);
    }
}
