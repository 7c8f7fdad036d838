//! A packet that its own kernel cut up, beside the segments that it became.
//!
//! What a packet for segmentation would be on the wire is known beforehand, so it is looked for by the keys of its segments, too: a card may cut it. Where the kernel
//! did, before the driver, the segments are packets of their own with the same headers, and they are what left. The packet itself was given to no driver there: it was
//! seen in the queue above the device, or at a device before it (a bridge, a tunnel).

use super::{OUT_NS, Side, Sighting};

/// Places of which the next segment is remembered.
const MOST_PLACES: usize = 16;

/// Which of `count` sightings of one key, in order of time, another packet stands for: a segment that was given to a device later. Where all stand for themselves the
/// answer is empty.
pub(crate) fn superseded<'a>(count: usize, of: impl Fn(usize) -> &'a Sighting) -> Vec<bool> {
    let sent = |s: &Sighting| s.side == Side::Transmitted;
    if count < 2 || !(0..count).any(|i| of(i).keys.part && sent(of(i))) {
        return Vec::new();
    }
    let mut cut = vec![false; count];
    // Of each place the next one.
    let mut next: Vec<&Sighting> = Vec::new();
    for i in (0..count).rev().filter(|i| sent(of(*i))) {
        let s = of(i);
        if s.keys.part {
            let until = s.at.saturating_add(OUT_NS);
            let beyond = |n: &Sighting| s.weak || n.place != s.place;
            cut[i] = next.iter().any(|n| beyond(n) && n.at <= until && n.packet != s.packet);
        } else if let Some(known) = next.iter_mut().find(|n| n.place == s.place) {
            *known = s;
        } else if next.len() < MOST_PLACES {
            next.push(s);
        }
    }
    cut
}

#[cfg(test)]
mod tests {
    use super::super::keys::Keys;
    use super::*;

    const SEC: i64 = 1_000_000_000;

    fn sighting(packet: u64, at: i64, part: bool, place: u64, weak: bool) -> Sighting {
        Sighting {
            keys: Keys { exact: 7, part, ..Keys::default() },
            packet,
            at,
            first: at,
            last: at,
            side: Side::Transmitted,
            devices: 0,
            weak,
            lost: false,
            tap: (0, 0),
            place,
        }
    }

    fn check(all: &[Sighting], want: &[bool]) {
        assert_eq!(superseded(all.len(), |i| &all[i]), want);
    }

    #[test]
    fn the_segments_stand_for_what_was_cut_into_them() {
        let queued = |at| sighting(1, at, true, 5, true);
        let segment = |at| sighting(2, at, false, 5, false);
        check(&[queued(10), segment(20)], &[true, false]);
        // Through a bridge whole, cut for its port.
        check(&[sighting(1, 10, true, 4, false), segment(20)], &[true, false]);
        // Nothing else is known to have left, or not for long after.
        check(&[queued(10)], &[]);
        check(&[queued(10), segment(20 + SEC)], &[false, false]);
        check(&[segment(5), queued(10)], &[false, false]);
        // The card cut it; another datagram of the same length went by itself.
        check(&[sighting(1, 10, true, 5, false), segment(20)], &[false, false]);
        // A packet's own second sighting, and what came in, are nothing that it became.
        check(&[queued(10), sighting(1, 20, false, 6, false)], &[false, false]);
        check(&[queued(10), Sighting { side: Side::Received, ..segment(20) }], &[false, false]);
        // None is for segmentation.
        check(&[segment(10), segment(20)], &[]);
    }
}
