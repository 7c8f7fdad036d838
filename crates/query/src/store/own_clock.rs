//! The device's wall clock, as it stood at each moment: it may have been set while it was recorded.

use kpat_store::Manifest;

/// The device's wall clock by its boot clock: one relation, and another from each moment on at which it was set.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OwnClock {
    start_ns: i64,
    /// Boot time less wall time when the recording began.
    offset_ns: i64,
    set: Vec<Set>,
}

/// Boot time less wall time from a moment on.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Set {
    from_ns: i64,
    offset_ns: i64,
}

impl OwnClock {
    /// `None`: the log does not know it.
    pub(crate) fn of(manifest: &Manifest) -> Option<OwnClock> {
        let started = manifest.log.started;
        if started.wall.0 == 0 {
            return None;
        }
        let first = started.boot.0.wrapping_sub(started.wall.0);
        let mut offset_ns = first;
        let mut set = Vec::new();
        for step in &manifest.wall_steps {
            offset_ns = offset_ns.wrapping_sub(step.by_ns);
            set.push(Set { from_ns: step.before.0, offset_ns });
        }
        set.sort_by_key(|s| s.from_ns);
        Some(OwnClock { start_ns: manifest.first_ns, offset_ns: first, set })
    }

    /// From when on which boot time less wall time, for each time that it was set.
    pub(crate) fn set(&self) -> impl Iterator<Item = (i64, i64)> + '_ {
        self.set.iter().map(|s| (s.from_ns, s.offset_ns))
    }

    /// Boot time less wall time then.
    pub fn offset_ns(&self, boot_ns: i64) -> i64 {
        let set = self.set.partition_point(|s| s.from_ns <= boot_ns).checked_sub(1);
        set.map_or(self.offset_ns, |i| self.set[i].offset_ns)
    }

    /// What it showed then.
    pub fn wall(&self, boot_ns: i64) -> i64 {
        boot_ns.saturating_sub(self.offset_ns(boot_ns))
    }

    /// When it showed that. What it showed twice, because it was set back, is the first time; what it never showed, because it was set forward, is
    /// when it was set.
    pub fn boot(&self, wall_ns: i64) -> i64 {
        self.nearest(|_| wall_ns)
    }

    /// When it showed what is asked of a stretch that begins at a moment of the wall clock.
    pub(crate) fn nearest(&self, asked: impl Fn(i64) -> i64) -> i64 {
        let first = Set { from_ns: i64::MIN, offset_ns: self.offset_ns };
        let begins = [first].into_iter().chain(self.set.iter().copied());
        let ends = self.set.iter().map(|s| s.from_ns.saturating_sub(1)).chain([i64::MAX]);
        let found = begins.zip(ends).map(|(s, end)| {
            let wall = asked(s.from_ns.max(self.start_ns).saturating_sub(s.offset_ns));
            let at = wall.saturating_add(s.offset_ns);
            let within = at.min(end).max(s.from_ns);
            (at.abs_diff(within), within)
        });
        found.min_by_key(|(apart, _)| *apart).map_or(0, |(_, at)| at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Set forward by an hour after 100 s, and back by half a second after 200 s.
    #[test]
    fn the_own_clock_is_what_it_showed() {
        use kpat_model::wall::WallStep;
        use kpat_model::{BootNs, WallNs};
        const S: i64 = 1_000_000_000;
        const WALL: i64 = 1_763_700_000 * S;
        let step = |at: i64, by_ns| WallStep { after: BootNs(at - S / 20), before: BootNs(at), by_ns };
        let mut m = Manifest { first_ns: 10 * S, last_ns: 300 * S, ..Manifest::default() };
        assert_eq!(OwnClock::of(&m), None);
        (m.log.started.boot, m.log.started.wall) = (BootNs(10 * S), WallNs(WALL));
        m.wall_steps = vec![step(100 * S, 3600 * S), step(200 * S, -S / 2)];
        let c = OwnClock::of(&m).unwrap();
        for (boot, wall) in [
            (10 * S, WALL),
            (100 * S - 1, WALL + 90 * S - 1),
            (100 * S, WALL + 3690 * S),
            (199 * S, WALL + 3789 * S),
            (201 * S, WALL + 3790 * S + S / 2),
        ] {
            assert_eq!(c.wall(boot), wall);
            assert_eq!(c.boot(wall), boot, "{boot}");
        }
        // Shown twice, never, before and behind.
        assert_eq!(c.boot(WALL + 3789 * S + 3 * S / 4), 200 * S - S / 4);
        assert_eq!(c.boot(WALL + 1000 * S), 100 * S - 1);
        assert_eq!(c.boot(WALL + 3000 * S), 100 * S);
        assert_eq!((c.boot(WALL - S), c.boot(WALL + 4000 * S)), (9 * S, 410 * S + S / 2));
    }
}
