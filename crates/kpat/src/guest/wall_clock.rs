//! What the guest's counter is by the host's wall clock, from entries that are read some time after they were written.

/// An entry is read so late at most after the look that did not have it, because one before it was not finished.
const HELD_UP_NS: i64 = 100_000_000;

/// Between the two the smallest distance that was seen since the counter stood last: it does while the guest is stopped.
#[derive(Default)]
pub struct WallClock {
    ahead_ns: Option<i64>,
}

impl WallClock {
    /// `counter_ns`: of the entry; it was written between `not_before_ns` and `now_ns`.
    pub fn wall_ns(&mut self, counter_ns: i64, not_before_ns: i64, now_ns: i64) -> i64 {
        let now = now_ns - counter_ns;
        let ahead = match self.ahead_ns {
            Some(known) if counter_ns + known >= not_before_ns - HELD_UP_NS => known.min(now),
            _ => now,
        };
        self.ahead_ns = Some(ahead);
        counter_ns + ahead
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: i64 = 1_000_000;

    #[test]
    fn the_entry_that_was_read_soonest_counts() {
        let mut clock = WallClock::default();
        let all: Vec<i64> = [(0, 3), (10, 10), (20, 22), (21, 22)]
            .map(|(counter, late)| clock.wall_ns(counter * MS, (900 + late - 1) * MS, (1000 + late) * MS))
            .to_vec();
        assert_eq!(all, [1003 * MS, 1010 * MS, 1020 * MS, 1021 * MS]);
    }

    #[test]
    fn a_guest_that_stood_is_as_late_as_it_stood() {
        let mut clock = WallClock::default();
        assert_eq!(clock.wall_ns(0, 0, MS), MS);
        // Four seconds of which the counter has nothing.
        assert_eq!(clock.wall_ns(10 * MS, 4010 * MS, 4011 * MS), 4011 * MS);
        assert_eq!(clock.wall_ns(11 * MS, 4011 * MS, 4012 * MS), 4012 * MS);
        // One that was held up by another is not later than it was.
        assert_eq!(clock.wall_ns(20 * MS, 4060 * MS, 4061 * MS), 4021 * MS);
    }

    #[test]
    fn a_clock_that_is_set_is_followed() {
        let mut clock = WallClock::default();
        assert_eq!(clock.wall_ns(0, 0, MS), MS);
        assert_eq!(clock.wall_ns(MS, 3_600_000 * MS, 3_600_001 * MS), 3_600_001 * MS);
        assert_eq!(clock.wall_ns(2 * MS, MS, 2 * MS), 2 * MS);
    }
}
