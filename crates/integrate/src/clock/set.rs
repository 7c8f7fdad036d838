//! The device's wall clock where it was set while it was recorded: from a moment that it showed to when that was. What it showed twice may be either time.

use super::dut_offset;
use kpat_model::meta::ClockAnchor;
use kpat_model::wall::set_between;

/// By what the log has of both clocks.
pub(crate) struct Shown(Vec<Stretch>);

/// Readings between which it was not set, in order.
struct Stretch {
    readings: Vec<ClockAnchor>,
    /// Boot time: it was set after the first and before the second of these.
    from_ns: i64,
    to_ns: i64,
}

impl Shown {
    pub fn of(anchors: &[ClockAnchor]) -> Shown {
        let mut known: Vec<ClockAnchor> = anchors.iter().filter(|a| a.wall.0 != 0).copied().collect();
        known.sort_by_key(|a| a.boot);
        let mut all: Vec<Stretch> = Vec::new();
        for readings in known.chunk_by(|a, b| set_between(a, b).is_none()) {
            let mut from_ns = i64::MIN;
            if let Some(before) = all.last_mut() {
                before.to_ns = readings[0].boot.0;
                from_ns = before.readings.last().map_or(from_ns, |a| a.boot.0);
            }
            all.push(Stretch { readings: readings.to_vec(), from_ns, to_ns: i64::MAX });
        }
        Shown(all)
    }

    /// The earliest and the latest boot time at which it may have shown that, of those in a time in which it was looked at, else of all; where it never
    /// did, when it was set. `None`: no reading knows it.
    pub fn at(&self, wall: i64, within: (i64, i64)) -> Option<(i64, i64)> {
        let mut found: Option<(bool, (i64, i64))> = None;
        let mut nearest = None;
        for s in &self.0 {
            let (offset, unsure) = dut_offset(&s.readings, wall)?;
            let at = wall.saturating_add(offset);
            let (low, high) = (at.saturating_sub(unsure), at.saturating_add(unsure));
            if high >= s.from_ns && low <= s.to_ns {
                let inside = high >= within.0 && low <= within.1;
                found = match found {
                    Some((i, (l, h))) if i == inside => Some((i, (l.min(low), h.max(high)))),
                    Some((true, _)) => found,
                    _ => Some((inside, (low, high))),
                };
            }
            let (apart, set) = match at > s.to_ns {
                true => (at.abs_diff(s.to_ns), (s.readings.last()?.boot.0, s.to_ns)),
                false => (at.abs_diff(s.from_ns), (s.from_ns, s.readings.first()?.boot.0)),
            };
            if nearest.is_none_or(|(least, _)| apart < least) {
                nearest = Some((apart, set));
            }
        }
        found.map(|(_, at)| at).or(nearest.map(|(_, set)| set))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kpat_model::{BootNs, WallNs};

    const S: i64 = 1_000_000_000;
    const WALL: i64 = 1_763_700_000 * S;

    fn reading(boot: i64, wall: i64) -> ClockAnchor {
        ClockAnchor { boot: BootNs(boot), wall: WallNs(WALL + wall), uncertainty_ns: 200 }
    }

    /// Forward by an hour between 99 and 100 s, back by half a second between 199 and 200 s; read every five seconds besides.
    #[test]
    fn what_was_shown_twice_is_either_time() {
        let (hour, half) = (3600 * S, S / 2);
        let by = |at: i64| match at {
            ..100 => 0,
            100..200 => hour,
            _ => hour - half,
        };
        let mut readings: Vec<ClockAnchor> =
            (0..60).map(|i| i * 5).chain([99, 199]).map(|at| reading(at * S, at * S + by(at))).collect();
        readings.sort_by_key(|a| a.wall.0);
        let shown = Shown::of(&readings);
        let at = |wall: i64| shown.at(WALL + wall, (0, 300 * S)).unwrap();
        let is = |at: i64| (at - 200, at + 200);
        assert_eq!(at(50 * S + 7), is(50 * S + 7));
        assert_eq!(at(-50 * S), is(-50 * S));
        assert_eq!(at(150 * S + hour), is(150 * S));
        assert_eq!(at(198 * S + hour), is(198 * S), "near where it was set, and not behind");
        assert_eq!(at(201 * S + hour), is(201 * S + half));
        assert_eq!(at(400 * S + hour), is(400 * S + half));
        // 199.2 s, or half a second later.
        assert_eq!(at(199 * S + S / 5 + hour), (199 * S + S / 5 - 200, 199 * S + S / 5 + half + 200));
        assert_eq!(at(1000 * S), (99 * S, 100 * S), "never");
        assert_eq!(at(3000 * S), (99 * S, 100 * S), "never");
        assert_eq!(Shown::of(&[ClockAnchor::default()]).at(WALL, (0, 300 * S)), None);
        // Set back by an hour, what it shows then it showed an hour before, when nobody recorded, too.
        let shown = Shown::of(&[reading(0, 0), reading(99 * S, 99 * S), reading(100 * S, 100 * S - hour)]);
        assert_eq!(shown.at(WALL + 150 * S - hour, (0, 300 * S)), Some(is(150 * S)));
        assert_eq!(shown.at(WALL + 50 * S, (0, 300 * S)), Some(is(50 * S)));
    }
}
