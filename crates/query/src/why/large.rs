//! Segments that are too large for the path. Where a router cannot pass one on and its ICMP (*fragmentation needed*, RFC 1191; *packet too big*, RFC 8201)
//! does not come, TCP sends the same segment again and again, while small ones come through (RFC 2923, section 2.1: a black hole).

use super::gather::MOST_WRITES;
use crate::app::given_on;
use kpat_model::Crossing;
use kpat_store::tables::AppEventRow;
use std::collections::VecDeque;

/// Loss alone seldom takes a segment and three that repeat it.
const TIMES: u64 = 3;

/// A segment that was sent again and again, larger than any that was acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLarge {
    /// Without headers.
    pub bytes: i64,
    /// How often it was sent again.
    pub times: u64,
    /// The largest that was acknowledged, 0: none that had data.
    pub acked_bytes: i64,
    /// Something came from the peer meanwhile: the path was there.
    pub heard: bool,
}

/// What is sent again, from its first repetition to its last.
#[derive(Clone, Copy, Debug)]
struct Repeated {
    offset: i64,
    bytes: i64,
    times: u64,
    from_ns: i64,
    to_ns: i64,
}

/// How large segments were, and what became of them.
#[derive(Default)]
pub(super) struct Sizes {
    /// Given to a device and not yet acknowledged: where they begin and end, and the largest segment of each.
    under_way: VecDeque<(i64, i64, i64)>,
    acked_bytes: i64,
    now: Option<Repeated>,
    found: Vec<Repeated>,
}

impl Sizes {
    /// A crossing of the sender's socket. A SYN has no bytes.
    pub fn pass(&mut self, what: Crossing, e: &AppEventRow) {
        let Some(from) = e.offset.filter(|_| e.size_bytes > 0) else { return };
        let (to, pieces) = (from + e.size_bytes, i64::from(e.segments).max(1));
        let bytes = (e.size_bytes + pieces - 1) / pieces;
        match what {
            // No window is as large; where acknowledgements are not recorded, it would grow with the log.
            Crossing::ToDevice if !given_on(e) && self.under_way.len() < MOST_WRITES => {
                self.under_way.push_back((from, to, bytes));
            }
            Crossing::Acked => self.acked(to),
            Crossing::Retransmit => {
                // What was sent of these bytes before is not what will be acknowledged, if they come in smaller segments now.
                self.under_way.retain(|u| u.1 <= from || to <= u.0);
                self.again(e.at_ns, from, bytes);
            }
            _ => {}
        }
    }

    fn acked(&mut self, to: i64) {
        while let Some((_, _, bytes)) = self.under_way.pop_front_if(|u| u.1 <= to) {
            self.acked_bytes = self.acked_bytes.max(bytes);
        }
        if self.now.is_some_and(|r| r.offset < to) {
            self.found.extend(self.now.take());
        }
    }

    fn again(&mut self, at_ns: i64, offset: i64, bytes: i64) {
        match &mut self.now {
            // Not the oldest: it may be one that was lost beside it.
            Some(r) if r.offset < offset => {}
            Some(r) if (r.offset, r.bytes) == (offset, bytes) => (r.times, r.to_ns) = (r.times + 1, at_ns),
            now => {
                let r = Repeated { offset, bytes, times: 1, from_ns: at_ns, to_ns: at_ns };
                self.found.extend(now.replace(r));
            }
        }
        self.found.retain(|r| r.times >= TIMES);
    }

    /// `heard`: when something came from the peer, in order.
    pub fn too_large(&self, heard: &[i64]) -> Option<TooLarge> {
        let large = |r: &&Repeated| r.times >= TIMES && r.bytes > self.acked_bytes;
        let r = self.found.iter().chain(&self.now).filter(large).max_by_key(|r| r.times)?;
        let meanwhile = heard.partition_point(|t| *t <= r.from_ns)..heard.partition_point(|t| *t <= r.to_ns);
        Some(TooLarge {
            bytes: r.bytes,
            times: r.times,
            acked_bytes: self.acked_bytes,
            heard: !meanwhile.is_empty(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(events: &[(i64, Crossing, i64, i64, i32)]) -> Sizes {
        let mut sizes = Sizes::default();
        for (at_ns, what, offset, size_bytes, segments) in events.iter().copied() {
            let e = AppEventRow { at_ns, offset: Some(offset), size_bytes, segments, ..Default::default() };
            sizes.pass(what, &e);
        }
        sizes
    }

    use Crossing::{Acked, Retransmit, ToDevice};

    #[test]
    fn large_ones_that_never_come_are_found_beside_small_ones_that_do() {
        let start = [(1, ToDevice, 0, 300, 1), (2, Acked, 0, 300, 1), (3, ToDevice, 300, 14_480, 10)];
        let again = |n: i64| (10 * n, Retransmit, 300, 1448, 1);
        let stuck = [&start[..], &[again(1), again(2), again(3)]].concat();
        let found = TooLarge { bytes: 1448, times: 3, acked_bytes: 300, heard: true };
        assert_eq!(of(&stuck).too_large(&[2, 15]), Some(found));
        assert_eq!(of(&stuck).too_large(&[2, 10, 31]), Some(TooLarge { heard: false, ..found }));
        assert_eq!(of(&stuck[..5]).too_large(&[]), None, "twice is loss");
        // TCP tries smaller ones, and they come (tcp_mtu_probing).
        let smaller = [(40, Retransmit, 300, 512, 1), (40, ToDevice, 300, 512, 1), (41, Acked, 300, 512, 1)];
        let mended = of(&[&stuck[..], &smaller[..]].concat());
        assert_eq!(mended.too_large(&[]), Some(TooLarge { acked_bytes: 512, heard: false, ..found }));
    }

    #[test]
    fn what_comes_in_the_end_was_not_too_large() {
        let again = |n: i64| [(10 * n, Retransmit, 0, 1448, 1), (10 * n, ToDevice, 0, 1448, 1)];
        let lost =
            [&[(1, ToDevice, 0, 1448, 1)][..], &again(1), &again(2), &again(3), &[(40, Acked, 0, 1448, 1)]];
        assert_eq!(of(&lost.concat()).too_large(&[]), None);
        let before = [(0, ToDevice, 0, 1448, 1), (1, Acked, 0, 1448, 1)];
        let again = |n: i64| (10 * n, Retransmit, 1448, 1448, 1);
        let broke = [&before[..], &[(2, ToDevice, 1448, 1448, 1), again(1), again(2), again(3)]];
        assert_eq!(of(&broke.concat()).too_large(&[]), None, "as large ones had come");
    }
}
