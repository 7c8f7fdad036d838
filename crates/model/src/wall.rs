//! The device's wall clock beside its boot clock, which is never set: where readings of both say that the former was, and by how much.

use crate::ids::BootNs;
use crate::meta::ClockAnchor;
use serde::{Deserialize, Serialize};

/// Faster than this no clock is slewed (500 parts in a million): a larger change is a step.
const MOST_SLEW_PPM: i64 = 500;

/// The wall clock was set, between two readings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct WallStep {
    pub after: BootNs,
    pub before: BootNs,
    /// So much more it showed then.
    pub by_ns: i64,
}

/// How much more the wall clock showed at the second of two readings than it would have by the first, if it was set between them.
pub fn set_between(a: &ClockAnchor, b: &ClockAnchor) -> Option<i64> {
    let ahead = |r: &ClockAnchor| r.wall.0.saturating_sub(r.boot.0);
    let by = ahead(b).saturating_sub(ahead(a));
    let slewed = b.boot.0.saturating_sub(a.boot.0).saturating_abs() / 1_000_000;
    let unsure = a.uncertainty_ns.saturating_add(b.uncertainty_ns);
    let may = unsure.saturating_add(slewed.saturating_mul(MOST_SLEW_PPM));
    (by.saturating_abs() > may).then_some(by)
}

/// In order of time, whatever the order of the readings. Those that have no wall clock say nothing.
pub fn steps(readings: impl IntoIterator<Item = ClockAnchor>) -> Vec<WallStep> {
    let mut known: Vec<ClockAnchor> = readings.into_iter().filter(|r| r.wall.0 != 0).collect();
    known.sort_by_key(|r| r.boot);
    let step = |pair: &[ClockAnchor]| {
        let by_ns = set_between(&pair[0], &pair[1])?;
        Some(WallStep { after: pair[0].boot, before: pair[1].boot, by_ns })
    };
    known.windows(2).filter_map(step).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::WallNs;

    const SECOND: i64 = 1_000_000_000;

    fn reading(boot_s: i64, ahead: i64) -> ClockAnchor {
        let boot = boot_s * SECOND;
        ClockAnchor { boot: BootNs(boot), wall: WallNs(boot.saturating_add(ahead)), uncertainty_ns: 200 }
    }

    #[test]
    fn a_clock_that_was_set_is_told_from_one_that_is_slewed() {
        let (hour, half) = (3600 * SECOND, SECOND / 2);
        // 500 us in 5 s is slewed, 0.5 s and an hour are not.
        let all = [(1, 7), (6, 500_007), (11, hour), (16, hour - half), (21, hour - half), (26, -half)];
        let mut readings: Vec<ClockAnchor> =
            all.iter().map(|(s, ahead)| reading(*s, SECOND + ahead)).collect();
        let step = |after: i64, before: i64, by_ns| WallStep {
            after: BootNs(after * SECOND),
            before: BootNs(before * SECOND),
            by_ns,
        };
        let found = [step(6, 11, hour - 500_007), step(11, 16, -half), step(21, 26, -hour)];
        assert_eq!(steps(readings.clone()), found);
        readings.reverse();
        readings.push(ClockAnchor { wall: WallNs(0), ..reading(13, 0) });
        assert_eq!(steps(readings), found);
        assert_eq!(steps([reading(5, 3)]), []);
        // As a damaged log may have them.
        let worst = [reading(1, i64::MIN / 2), reading(2, i64::MAX), reading(3, i64::MAX)];
        assert_eq!(steps(worst).len(), 2);
    }
}
