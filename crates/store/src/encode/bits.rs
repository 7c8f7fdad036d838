//! Numbers in few bits: Parquet's hybrid of runs and packed numbers, and differences (DELTA_BINARY_PACKED).

use super::Number;

/// Groups of numbers with a width of their own that have a least difference in common.
const MINIS: usize = 4;
/// Numbers of such a group, at most.
const MOST_MINI: usize = 64;
/// Equal ones in a row from which on a run is shorter.
pub(super) const RUN: usize = 8;

/// Bits that a number needs.
pub(super) fn width_of(v: u64) -> u8 {
    (64 - v.leading_zeros()) as u8
}

fn varint(mut v: u64, out: &mut Vec<u8>) {
    while v >= 0x80 {
        out.push(v as u8 | 0x80);
        v >>= 7;
    }
    out.push(v as u8);
}

fn zigzag(v: i64, out: &mut Vec<u8>) {
    varint((v << 1 ^ v >> 63).cast_unsigned(), out);
}

/// Appends numbers of `width` bits each, the lowest bits first; what is left of the last byte is 0.
fn pack(values: impl Iterator<Item = u64>, width: u8, out: &mut Vec<u8>) {
    let (mut bits, mut have, width) = (0u64, 0, u32::from(width));
    for v in values {
        bits |= v << have;
        have += width;
        if have >= 64 {
            out.extend_from_slice(&bits.to_le_bytes());
            have -= 64;
            bits = v.checked_shr(width - have).unwrap_or(0);
        }
    }
    out.extend_from_slice(&bits.to_le_bytes()[..have.div_ceil(8) as usize]);
}

/// The same number so many times.
pub(super) fn run(value: u32, count: usize, width: u8, out: &mut Vec<u8>) {
    varint((count as u64) << 1, out);
    out.extend_from_slice(&value.to_le_bytes()[..usize::from(width.div_ceil(8))]);
}

/// Runs of equal numbers, and others packed, of `width` bits each.
pub(super) fn hybrid(values: &[u32], width: u8, out: &mut Vec<u8>) {
    let packed = |values: &[u32], out: &mut Vec<u8>| {
        if !values.is_empty() {
            let groups = values.len().div_ceil(8);
            varint((groups as u64) << 1 | 1, out);
            let padding = std::iter::repeat_n(0, groups * 8 - values.len());
            pack(values.iter().map(|v| u64::from(*v)).chain(padding), width, out);
        }
    };
    let (mut done, mut at) = (0, 0);
    while at < values.len() {
        let first = values[at];
        let after = values[at..].iter().position(|v| *v != first);
        let run = after.unwrap_or(values.len() - at);
        // Only whole groups of eight can be packed before something else.
        if run >= RUN {
            packed(&values[done..at], out);
            self::run(first, run, width, out);
            at += run;
            done = at;
        } else {
            at += RUN;
        }
    }
    packed(&values[done..], out);
}

/// Each number by its difference from the one before.
pub(super) fn delta<T: Number>(values: &[T], out: &mut Vec<u8>) {
    let block_len = T::MINI * MINIS;
    varint(block_len as u64, out);
    varint(MINIS as u64, out);
    varint(values.len() as u64, out);
    let Some(first) = values.first() else { return varint(0, out) };
    zigzag(first.wide(), out);
    let mut differences = [0i64; MOST_MINI * MINIS];
    let mut before = *first;
    for block in values[1..].chunks(block_len) {
        let mut least = i64::MAX;
        for (to, v) in differences.iter_mut().zip(block) {
            *to = v.since(before);
            least = least.min(*to);
            before = *v;
        }
        differences[..block.len()].iter_mut().for_each(|d| *d = d.wrapping_sub(least));
        // Of a group that is not full the rest counts as nothing.
        differences[block.len()..].fill(0);
        zigzag(least, out);
        let minis = differences[..block_len].chunks_exact(T::MINI);
        let mut widths = [0u8; MINIS];
        for (width, mini) in widths.iter_mut().zip(minis.clone()) {
            *width = width_of(mini.iter().fold(0, |all, d| all | d.cast_unsigned()));
        }
        out.extend_from_slice(&widths);
        let used = widths.iter().zip(minis).take(block.len().div_ceil(T::MINI));
        for (width, mini) in used.filter(|(width, _)| **width > 0) {
            pack(mini.iter().map(|d| d.cast_unsigned()), *width, out);
        }
    }
}
