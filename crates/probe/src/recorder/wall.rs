//! The device's wall clock while it is recorded: looked at with the housekeeping, so that where it was set is known as well as that, and read every five
//! seconds in any case.

use super::{Error, Note, Recorder, note};
use crate::sys;
use kpat_model::meta::{ClockAnchor, Json};
use kpat_model::wall::set_between;
use std::time::{Duration, Instant};

/// Longest time between two readings in the log.
const EVERY: Duration = Duration::from_secs(5);
/// Of a flight recorder that many are kept for its dumps: the first.
const MOST_KEPT: usize = 1024;

pub(super) struct WallClock {
    last: ClockAnchor,
    logged: Instant,
    /// Before and after it was set, where no file is written all the time.
    pub(super) kept: Vec<ClockAnchor>,
}

impl WallClock {
    pub(super) fn new(started: ClockAnchor) -> WallClock {
        WallClock { last: started, logged: Instant::now(), kept: Vec::new() }
    }
}

impl Recorder {
    /// Logs where it was set. Returns whether it is time for a summary.
    pub(super) fn look_at_wall_clock(&mut self, tell: &mut dyn FnMut(Note)) -> Result<bool, Error> {
        let now = sys::clock_anchor();
        let before = std::mem::replace(&mut self.wall.last, now);
        if let Some(by) = set_between(&before, &now) {
            note(&mut self.sink, &format!("the wall clock was set by {:+.6} s", by as f64 / 1e9));
            if self.flight.is_none() {
                self.write_json(Json::Anchor(before), tell)?;
                self.write_json(Json::Anchor(now), tell)?;
            } else if self.wall.kept.len() < MOST_KEPT {
                self.wall.kept.extend([before, now]);
            }
        }
        let due = self.wall.logged.elapsed() > EVERY;
        if due {
            self.wall.logged = Instant::now();
            self.write_json(Json::Anchor(now), tell)?;
        }
        Ok(due)
    }
}
