//! A hash for maps and match keys over our own small numbers: a few multiplications instead of SipHash's rounds. Not
//! for untrusted keys in general: an author of a log with collisions only slows down the analysis of that log.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};

const K: u64 = 0x9e37_79b9_7f4a_7c15;

#[derive(Clone, Copy, Debug, Default)]
pub struct Fold(u64);

impl Fold {
    #[inline]
    pub fn with(self, v: u64) -> Fold {
        let wide = u128::from(self.0 ^ v ^ K).wrapping_mul(0xa076_1d64_78bd_642f_e703_7ed1_a0b4_28db);
        Fold((wide as u64) ^ ((wide >> 64) as u64))
    }

    #[inline]
    pub fn value(self) -> u64 {
        self.with(K).0
    }
}

impl Hasher for Fold {
    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            *self = self.with(u64::from_le_bytes(word));
        }
    }

    #[inline]
    fn write_u64(&mut self, v: u64) {
        *self = self.with(v);
    }

    #[inline]
    fn write_i64(&mut self, v: i64) {
        *self = self.with(v as u64);
    }

    #[inline]
    fn write_u32(&mut self, v: u32) {
        *self = self.with(u64::from(v));
    }

    #[inline]
    fn write_i32(&mut self, v: i32) {
        self.write_u32(v.cast_unsigned());
    }

    #[inline]
    fn write_u16(&mut self, v: u16) {
        *self = self.with(u64::from(v));
    }

    #[inline]
    fn write_u8(&mut self, v: u8) {
        *self = self.with(u64::from(v));
    }
}

pub type Map<K, V> = HashMap<K, V, BuildHasherDefault<Fold>>;
pub type Set<K> = HashSet<K, BuildHasherDefault<Fold>>;

/// Many of the numbers from 0 on, such as those of packets: a bit each. Far numbers are kept one by one.
#[derive(Clone, Debug, Default)]
pub struct Numbers {
    bits: Vec<u64>,
    far: Set<i64>,
}

/// Numbers from here on have no bit: 32 MiB of them.
const FAR: i64 = 1 << 28;

impl Numbers {
    pub fn insert(&mut self, n: i64) {
        if !(0..FAR).contains(&n) {
            self.far.insert(n);
            return;
        }
        let word = (n / 64) as usize;
        if self.bits.len() <= word {
            self.bits.resize((word + 1).next_power_of_two(), 0);
        }
        self.bits[word] |= 1 << (n % 64);
    }

    /// Takes all of those, too.
    pub fn unite(&mut self, others: &Numbers) {
        self.bits.resize(self.bits.len().max(others.bits.len()), 0);
        self.bits.iter_mut().zip(&others.bits).for_each(|(mine, others)| *mine |= others);
        self.far.extend(&others.far);
    }

    pub fn contains(&self, n: i64) -> bool {
        match usize::try_from(n).ok().filter(|_| n < FAR) {
            Some(near) => self.bits.get(near / 64).is_some_and(|w| w >> (near % 64) & 1 == 1),
            None => self.far.contains(&n),
        }
    }
}

impl Extend<i64> for Numbers {
    fn extend<I: IntoIterator<Item = i64>>(&mut self, numbers: I) {
        numbers.into_iter().for_each(|n| self.insert(n));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_near_and_far() {
        let mut set = Numbers::default();
        let inside = [0, 1, 63, 64, 4_095, FAR - 1, FAR, i64::MAX, -1, i64::MIN];
        set.extend(inside);
        assert!(inside.iter().all(|n| set.contains(*n)));
        let mut other = Numbers::default();
        other.extend([7, 100_000, FAR + 5]);
        other.unite(&set);
        assert!(inside.iter().chain(&[7, 100_000, FAR + 5]).all(|n| other.contains(*n)));
        assert!(!other.contains(2) && !set.contains(7));
        assert!([2, 62, 65, 4_096, FAR - 2, FAR + 1, i64::MAX - 1, -2].iter().all(|n| !set.contains(*n)));
    }
}
