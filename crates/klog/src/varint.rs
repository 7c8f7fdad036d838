//! Unsigned numbers in 1 to 9 bytes; the zero bits at the low end of the first byte say how many follow. Against
//! LEB128: same size, but length and value come without a loop, so nothing is mispredicted.

/// Most bytes that one number takes.
pub const MAX_LEN: usize = 9;

/// Writes `v` at `out[pos..]` and gives the position after it. `out` must reach 9 bytes beyond `pos`; bytes after
/// the number are overwritten with zeros.
#[inline(always)]
pub fn put(out: &mut [u8], pos: usize, v: u64) -> usize {
    let bits = 64 - (v | 1).leading_zeros();
    if bits <= 56 {
        // (bits + 6) / 7 for 1..=56 without a division.
        let len = (bits * 9 + 64) >> 6;
        let word = (v << len) | (1 << (len - 1));
        out[pos..pos + 8].copy_from_slice(&word.to_le_bytes());
        pos + len as usize
    } else {
        out[pos] = 0;
        out[pos + 1..pos + 9].copy_from_slice(&v.to_le_bytes());
        pos + 9
    }
}

/// Reads a number at `buf[pos..]`: the value and the position after it. `None`: the bytes end first; the caller pads
/// its buffer with [`MAX_LEN`] bytes, since up to 9 are looked at whatever the number's length.
#[inline(always)]
pub fn get(buf: &[u8], pos: usize) -> Option<(u64, usize)> {
    let word = u64::from_le_bytes(*buf.get(pos..)?.first_chunk::<8>()?);
    let len = (word as u8).trailing_zeros() + 1;
    if len <= 8 {
        let value = (word >> len) & (u64::MAX >> (64 - 7 * len));
        Some((value, pos + len as usize))
    } else {
        let value = u64::from_le_bytes(*buf.get(pos + 1..)?.first_chunk::<8>()?);
        Some((value, pos + 9))
    }
}

/// Small numbers of either sign to small numbers.
#[inline(always)]
pub fn zigzag(v: i64) -> u64 {
    ((v << 1) ^ (v >> 63)) as u64
}

#[inline(always)]
pub fn unzigzag(v: u64) -> i64 {
    (v >> 1) as i64 ^ -((v & 1) as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_and_its_borders_come_back() {
        let mut values = vec![0, u64::MAX];
        for bit in 0..64 {
            let v = 1u64 << bit;
            values.extend([v - 1, v, v + 1]);
        }
        for v in values {
            let mut buf = [0xaa; 24];
            let end = put(&mut buf, 1, v);
            let bits = 64 - (v | 1).leading_zeros() as usize;
            assert_eq!(end - 1, if bits > 56 { 9 } else { bits.div_ceil(7) }, "length of {v}");
            assert_eq!(get(&buf, 1), Some((v, end)));
            let signed = v as i64;
            assert_eq!(unzigzag(zigzag(signed)), signed);
        }
    }

    #[test]
    fn examples_of_the_specification() {
        for (v, bytes) in
            [(0, &[0x01][..]), (5, &[0x0b]), (127, &[0xff]), (128, &[0x02, 0x02]), (300, &[0xb2, 0x04])]
        {
            let mut buf = [0; 16];
            let end = put(&mut buf, 0, v);
            assert_eq!(&buf[..end], bytes, "{v}");
        }
    }

    #[test]
    fn bytes_that_end_early_give_none() {
        assert_eq!(get(&[1; 7], 0), None);
        assert_eq!(get(&[0; 8], 0), None);
        assert_eq!(get(&[], 5), None);
    }
}
