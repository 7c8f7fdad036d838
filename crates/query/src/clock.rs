//! From one clock to another, by the relations that were stored.

pub use crate::store::OwnClock;
use crate::store::Store;
use kpat_store::tables::ClockRow;

/// boot = wall + offset + drift * (wall - origin)
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Line {
    pub origin: i64,
    pub offset: i64,
    pub drift: f64,
}

impl Line {
    #[inline]
    pub fn boot(&self, wall: i64) -> i64 {
        let since = wall.wrapping_sub(self.origin);
        wall.wrapping_add(self.offset).wrapping_add((self.drift * since as f64) as i64)
    }
}

impl Store {
    /// Clock of a capture, the other way round; `None`: the two could not be related.
    pub fn wall_clock(&self, capture_id: i32) -> Option<WallClock> {
        let mut lines: Vec<ClockRow> =
            self.clocks.iter().filter(|c| c.capture_id == capture_id).cloned().collect();
        lines.sort_by_key(|c| c.from_wall_ns);
        (!lines.is_empty()).then_some(WallClock { lines })
    }

    /// The device's own wall clock, as it stood at each moment.
    pub fn own_wall_clock(&self) -> WallClock {
        let started = self.manifest.log.started;
        let line = |from_wall_ns, offset_ns| ClockRow {
            from_wall_ns,
            to_wall_ns: i64::MAX,
            offset_ns,
            bound_ns: started.uncertainty_ns,
            ..ClockRow::default()
        };
        let first = line(started.wall.0, started.boot.0.wrapping_sub(started.wall.0));
        let later = self.own_clock().into_iter().flat_map(OwnClock::set);
        let set = later.map(|(from, offset)| line(from.saturating_sub(offset), offset));
        WallClock { lines: [first].into_iter().chain(set).collect() }
    }

    /// Wall time of the device, ns since 1970, as its clock stood then; `None`: the log does not know it.
    #[inline]
    pub fn wall_ns(&self, boot_ns: i64) -> Option<i64> {
        self.own_clock().map(|c| c.wall(boot_ns))
    }
}

/// From the DUT's boot clock to a wall clock.
#[derive(Clone, Debug)]
pub struct WallClock {
    /// In order of time; at least one.
    lines: Vec<ClockRow>,
}

impl WallClock {
    /// The moment by the wall clock, and how far that may be off.
    pub fn wall(&self, boot_ns: i64) -> (i64, i64) {
        let begins = |c: &ClockRow| c.from_wall_ns.saturating_add(c.offset_ns);
        let i = self.lines.partition_point(|c| begins(c) <= boot_ns).saturating_sub(1);
        let c = &self.lines[i];
        let since = boot_ns.saturating_sub(begins(c));
        // since = x + drift * x
        let drift = c.drift_ppb as f64 / 1e9;
        let shrunk = (since as f64 * drift / (1.0 + drift)).round() as i64;
        (c.from_wall_ns.saturating_add(since).saturating_sub(shrunk), c.bound_ns)
    }

    /// The largest bound of all.
    pub fn bound_ns(&self) -> i64 {
        self.lines.iter().map(|c| c.bound_ns).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_and_back() {
        let line = |from_wall_ns, offset_ns, drift_ppb| ClockRow {
            from_wall_ns,
            offset_ns,
            drift_ppb,
            bound_ns: 7,
            ..ClockRow::default()
        };
        const WALL: i64 = 1_763_700_000_000_000_000;
        let clock = WallClock {
            lines: vec![
                line(WALL, -WALL + 5_000, 30_000),
                line(WALL + 1_000_000_000, -WALL + 900_000, -80_000),
            ],
        };
        for c in &clock.lines {
            let there = Line { origin: c.from_wall_ns, offset: c.offset_ns, drift: c.drift_ppb as f64 / 1e9 };
            for since in [0, 1, 17_000, 999_000_000] {
                let wall = c.from_wall_ns + since;
                let (back, bound) = clock.wall(there.boot(wall));
                assert!((back - wall).abs() <= 1, "{wall} {back}");
                assert_eq!(bound, 7);
            }
        }
    }
}
