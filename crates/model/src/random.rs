//! Numbers for unit tests that look random and are the same in every run.

/// Numbers below what is asked for. Source: Marsaglia, Xorshift RNGs, 2003.
pub fn below(seed: u64) -> impl FnMut(u64) -> u64 {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    move |n| {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        (x >> 11) % n
    }
}
