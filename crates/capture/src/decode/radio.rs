//! Clocks of radios in a frame: the receiving radio's own stamp (radiotap TSFT), and the sender's clock in what an access point sends at regular intervals.

use super::{Bytes, Length};

/// What a frame says of radios' clocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RadioTime {
    /// Microseconds of the receiving radio when the frame began; `None`: not in the header, or 0, which drivers write where they do not know.
    pub tsft_us: Option<u64>,
    /// Of a beacon or an answer to a probe: its sender, and microseconds of the sender's radio.
    pub sender: Option<([u8; 6], u64)>,
}

/// Of frames with a radiotap header; of others only what is in the frame.
pub fn time(link_type: u16, data: &[u8]) -> RadioTime {
    let d = Bytes { data, wire: data.len() as u32, length: Length::Stated };
    match link_type {
        105 => RadioTime { tsft_us: None, sender: sender(d) },
        127 | 803 => behind_radiotap(d).unwrap_or_default(),
        _ => RadioTime::default(),
    }
}

fn behind_radiotap(d: Bytes) -> Option<RadioTime> {
    let len = usize::from(u16::from_le_bytes(d.array(2)?));
    if len < 8 || d.data.len() < len {
        return None;
    }
    let header = Bytes { data: &d.data[..len], ..d };
    Some(RadioTime { tsft_us: tsft(header).filter(|t| *t != 0), sender: sender(d.behind(len)) })
}

/// The first field there can be, at a multiple of eight behind the words of presence bits.
fn tsft(d: Bytes) -> Option<u64> {
    let first = u32::from_le_bytes(d.array(4)?);
    let (mut present, mut at) = (first, 8usize);
    while present & 1 << 31 != 0 {
        present = u32::from_le_bytes(d.array(at)?);
        at += 4;
    }
    if first & 1 == 0 {
        return None;
    }
    d.array(at.next_multiple_of(8)).map(u64::from_le_bytes)
}

fn sender(d: Bytes) -> Option<([u8; 6], u64)> {
    let fc = u16::from_le_bytes(d.array(0)?);
    // Management, a beacon or a probe response, without the field that would move the body.
    let regular = fc & 0x0c == 0 && matches!(fc >> 4 & 15, 5 | 8) && fc & 0xc000 == 0;
    if !regular {
        return None;
    }
    Some((d.array(10)?, u64::from_le_bytes(d.array(24)?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn beacon(at: u64) -> Vec<u8> {
        let mut f = vec![0x80, 0, 0, 0];
        f.extend([0xff; 6]);
        f.extend([2, 0, 0, 0, 1, 0]);
        f.extend([2, 0, 0, 0, 1, 0]);
        f.extend([0x10, 0x20]);
        f.extend(at.to_le_bytes());
        f
    }

    #[test]
    fn clocks_are_read_wherever_the_fields_are() {
        let plain = time(105, &beacon(77));
        assert_eq!(plain, RadioTime { tsft_us: None, sender: Some(([2, 0, 0, 0, 1, 0], 77)) });
        // One word of presence bits; two of them, so that the field is moved to a multiple of eight.
        let one = [&[0, 0, 16, 0, 1, 0, 0, 0][..], &5_000_000_000u64.to_le_bytes(), &beacon(78)].concat();
        let two = [
            &[0, 0, 24, 0, 1, 0, 0, 0x80, 0, 0, 0, 0, 9, 9, 9, 9][..],
            &5_000_000_000u64.to_le_bytes(),
            &beacon(78),
        ]
        .concat();
        for f in [&one, &two] {
            let t = time(127, f);
            assert_eq!((t.tsft_us, t.sender.unwrap().1), (Some(5_000_000_000), 78));
            for cut in 0..f.len() {
                let less = time(127, &f[..cut]);
                assert!(less.sender.is_none(), "{cut}");
            }
        }
        let none = [&[0, 0, 9, 0, 2, 0, 0, 0, 0][..], &beacon(79)].concat();
        assert_eq!(time(127, &none), RadioTime { tsft_us: None, sender: Some(([2, 0, 0, 0, 1, 0], 79)) });
        let zero = [&[0, 0, 16, 0, 1, 0, 0, 0][..], &0u64.to_le_bytes(), &beacon(80)].concat();
        assert_eq!(time(127, &zero).tsft_us, None);
        // Data, and a beacon with the flag of what is encrypted.
        let mut data = beacon(81);
        data[0] = 0x08;
        assert_eq!(time(105, &data), RadioTime::default());
        data[..2].copy_from_slice(&[0x80, 0x40]);
        assert_eq!(time(105, &data), RadioTime::default());
    }
}
