//! A hash for maps and match keys over our own small numbers: a few multiplications instead of SipHash's rounds. Not
//! for untrusted keys in general: whoever makes a log that collides slows their own analysis down, nothing more.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};

const K: u64 = 0x9e37_79b9_7f4a_7c15;

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Fold(u64);

impl Fold {
    #[inline]
    pub(crate) fn add(self, v: u64) -> Fold {
        let wide = u128::from(self.0 ^ v ^ K).wrapping_mul(0xa076_1d64_78bd_642f_e703_7ed1_a0b4_28db);
        Fold((wide as u64) ^ ((wide >> 64) as u64))
    }

    #[inline]
    pub(crate) fn value(self) -> u64 {
        self.add(K).0
    }
}

impl Hasher for Fold {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            *self = self.add(u64::from_le_bytes(word));
        }
    }

    #[inline]
    fn write_u64(&mut self, v: u64) {
        *self = self.add(v);
    }

    #[inline]
    fn write_i64(&mut self, v: i64) {
        *self = self.add(v as u64);
    }

    #[inline]
    fn write_u32(&mut self, v: u32) {
        *self = self.add(u64::from(v));
    }
}

pub(crate) type Map<K, V> = HashMap<K, V, BuildHasherDefault<Fold>>;
pub(crate) type Set<K> = HashSet<K, BuildHasherDefault<Fold>>;
