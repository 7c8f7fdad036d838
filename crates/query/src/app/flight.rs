//! What has left a sender and is not acknowledged, in segments: TCP's congestion window is a number of these, and small ones fill it with few bytes. And when the last
//! one that was less than a full segment was acknowledged: until then Nagle's rule keeps a further one back. (Linux has Minshall's form of it, tcp_minshall_check() of
//! net/ipv4/tcp_output.c: full segments in flight do not matter.)

use kpat_store::tables::AppEventRow;
use std::collections::VecDeque;

/// Segments that left together: their bytes, and how many they are.
struct Left {
    from: i64,
    end: i64,
    segments: i64,
}

#[derive(Default)]
pub(crate) struct Flight {
    left: VecDeque<Left>,
    segments: i64,
    /// Behind the last byte that left.
    end: i64,
    /// Behind the last byte of the last that was less than a full segment, if it is not acknowledged.
    small: Option<i64>,
}

impl Flight {
    /// Segments leave. False: they had before, and are left out. `mss`: of a full one.
    pub fn leaves(&mut self, e: &AppEventRow, mss: i64) -> bool {
        let Some(from) = e.offset.filter(|from| from + e.size_bytes > self.end) else { return false };
        let (end, segments) = (from + e.size_bytes, i64::from(e.segments.max(1)));
        self.end = end;
        if e.size_bytes < segments * mss {
            self.small = Some(end);
        }
        self.segments += segments;
        self.left.push_back(Left { from, end, segments });
        true
    }

    /// All up to this byte is. True: and so is what Nagle's rule waited for.
    pub fn acknowledged(&mut self, to: i64) -> bool {
        while self.left.front().is_some_and(|l| l.end <= to) {
            self.segments -= self.left.pop_front().map_or(0, |l| l.segments);
        }
        if let Some(l) = self.left.front_mut().filter(|l| l.from < to) {
            let each = (l.end - l.from + l.segments - 1) / l.segments;
            let rest = (l.end - to + each - 1) / each;
            self.segments -= l.segments - rest;
            (l.from, l.segments) = (to, rest);
        }
        self.small.take_if(|end| *end <= to).is_some()
    }

    /// Is one in flight that is less than a full segment?
    pub fn has_small(&self) -> bool {
        self.small.is_some()
    }

    pub fn segments(&self) -> i64 {
        self.segments
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left(from: i64, size_bytes: i64, segments: i32) -> AppEventRow {
        AppEventRow { offset: Some(from), size_bytes, segments, ..AppEventRow::default() }
    }

    #[test]
    fn small_segments_count_like_full_ones() {
        let mut f = Flight::default();
        f.leaves(&left(0, 10, 1), 1000);
        f.leaves(&left(10, 3500, 4), 1000);
        f.leaves(&left(3510, 1, 1), 1000);
        assert_eq!(f.segments(), 6);
        f.acknowledged(10);
        assert_eq!(f.segments(), 5);
        // Two of the four, which are of 875 bytes as far as the log says.
        f.acknowledged(1760);
        assert_eq!(f.segments(), 3);
        f.acknowledged(3510);
        assert_eq!(f.segments(), 1);
        f.acknowledged(3511);
        assert_eq!(f.segments(), 0);
    }

    #[test]
    fn the_last_small_one_is_what_is_waited_for() {
        let mut f = Flight::default();
        f.leaves(&left(0, 10, 1), 1000);
        f.leaves(&left(10, 2000, 2), 1000);
        assert!(!f.acknowledged(9));
        assert!(f.acknowledged(10));
        assert!(!f.acknowledged(2010), "full ones do not matter");
        f.leaves(&left(2010, 1500, 2), 1000);
        f.leaves(&left(3510, 5, 1), 1000);
        assert!(!f.acknowledged(3510));
        assert!(f.acknowledged(3515));
    }
}
