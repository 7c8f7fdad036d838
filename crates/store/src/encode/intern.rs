//! Which values a column has, and where each of its values is among them.

use super::{Number, Place, text};

/// Entries of a dictionary at most, and bytes of its texts: decoding a page needs all of it.
const MOST_ENTRIES: usize = 1 << 16;
const MOST_BYTES: usize = 1 << 20;
const LEAST_SLOTS: usize = 1 << 8;
const FREE: u32 = u32::MAX;
const K: u64 = 0x9e37_79b9_7f4a_7c15;

/// An open hash table of entries' numbers. Entries themselves are beside it.
#[derive(Default)]
pub(super) struct Interner {
    slots: Vec<u32>,
    used: usize,
}

impl Interner {
    fn clear(&mut self) {
        self.slots.clear();
        self.slots.resize(LEAST_SLOTS, FREE);
        self.used = 0;
    }

    /// Where the search for a hash begins.
    #[inline]
    fn place(&self, hash: u64) -> usize {
        (hash >> (64 - self.slots.len().trailing_zeros())) as usize
    }

    /// The entry for which `is` says yes, else the slot for a new one.
    #[inline]
    fn find(&self, hash: u64, is: impl Fn(u32) -> bool) -> Result<u32, usize> {
        let mut at = self.place(hash);
        loop {
            match self.slots[at] {
                FREE => return Err(at),
                entry if is(entry) => return Ok(entry),
                _ => at = (at + 1) & (self.slots.len() - 1),
            }
        }
    }

    /// Puts the next entry there. At half full there is more room made.
    fn add(&mut self, slot: usize, hash: impl Fn(u32) -> u64) -> u32 {
        let entry = self.used as u32;
        self.slots[slot] = entry;
        self.used += 1;
        if self.used * 2 > self.slots.len() {
            let len = self.slots.len() * 4;
            self.slots.clear();
            self.slots.resize(len, FREE);
            for entry in 0..self.used as u32 {
                if let Err(slot) = self.find(hash(entry), |_| false) {
                    self.slots[slot] = entry;
                }
            }
        }
        entry
    }

    /// The different values in the order of their first, and the entry of each value; `None`: too many.
    pub fn numbers<T: Number>(&mut self, values: &[T], indices: &mut Vec<u32>) -> Option<Vec<T>> {
        let hash = |v: T| (v.wide() as u64).wrapping_mul(K);
        self.clear();
        indices.clear();
        let mut entries: Vec<T> = Vec::new();
        let mut rest = values;
        while let Some(v) = rest.first() {
            let run = rest.iter().position(|other| other != v).unwrap_or(rest.len());
            let entry = match self.find(hash(*v), |e| entries[e as usize] == *v) {
                Ok(entry) => entry,
                Err(_) if entries.len() >= MOST_ENTRIES => return None,
                Err(slot) => {
                    entries.push(*v);
                    self.add(slot, |e| hash(entries[e as usize]))
                }
            };
            indices.resize(indices.len() + run, entry);
            rest = &rest[run..];
        }
        Some(entries)
    }

    /// The same of texts.
    pub fn texts(&mut self, arena: &[u8], places: &[Place], indices: &mut Vec<u32>) -> Option<Vec<Place>> {
        let hash = |p: Place| hash_of(text(arena, p));
        self.clear();
        indices.clear();
        let mut entries: Vec<Place> = Vec::new();
        let (mut last, mut bytes) = (0, 0);
        for p in places {
            let wanted = text(arena, *p);
            if entries.get(last as usize).is_none_or(|e| text(arena, *e) != wanted) {
                last = match self.find(hash(*p), |e| text(arena, entries[e as usize]) == wanted) {
                    Ok(entry) => entry,
                    Err(_) if entries.len() >= MOST_ENTRIES || bytes > MOST_BYTES => return None,
                    Err(slot) => {
                        entries.push(*p);
                        bytes += 4 + wanted.len();
                        self.add(slot, |e| hash(entries[e as usize]))
                    }
                };
            }
            indices.push(last);
        }
        Some(entries)
    }
}

fn hash_of(text: &[u8]) -> u64 {
    let (words, rest) = text.as_chunks::<8>();
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    let mix = |h: u64, w: u64| (h ^ w).wrapping_mul(K).rotate_left(29);
    let all = words.iter().fold(text.len() as u64, |h, w| mix(h, u64::from_le_bytes(*w)));
    mix(all, u64::from_le_bytes(last)).wrapping_mul(K)
}
