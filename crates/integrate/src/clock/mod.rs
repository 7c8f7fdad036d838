//! Two clocks that saw the same packets, related: DUT boot time of every frame of a capture, with a bound.
//!
//! Equal keys vote for a first guess ([`vote`], on a bounded [`sample`]); the matches that agree with it bound the clock from both
//! sides, and [`mod@estimate`] makes of them a set that holds the true relation. A capture made on the device itself, as its matches
//! prove ([`estimate::own`]), is known by the device's own clock.

pub(crate) mod at_device;
pub(crate) mod card;
pub mod estimate;
pub(crate) mod jumps;
pub mod radio;
mod rows;
pub(crate) mod sample;
pub(crate) mod set;
pub(crate) mod vote;

pub use crate::matching::Side;
pub use estimate::{Estimate, Given, Pair, estimate, own, resolution};
use kpat_model::meta::ClockAnchor;
pub use kpat_query::clock::Line;

/// The DUT's own boot - wall, and how sure; the nearest anchor's.
pub(crate) fn dut_offset(anchors: &[ClockAnchor], wall: i64) -> Option<(i64, i64)> {
    let known = anchors.iter().filter(|a| a.wall.0 != 0);
    let a = known.min_by_key(|a| a.wall.0.saturating_sub(wall).saturating_abs())?;
    Some((a.boot.0.wrapping_sub(a.wall.0), a.uncertainty_ns.max(0)))
}

/// The clock of one capture.
#[derive(Clone, Debug)]
pub(crate) enum Clock {
    Estimated(Box<Estimate>),
    /// No match says on which side of the wire it was.
    Supposed {
        line: Line,
        bound_ns: i64,
        drift_bound: f64,
        from: i64,
        to: i64,
        method: i32,
    },
}

impl Clock {
    /// Earliest and latest boot time of a frame.
    pub fn between(&self, number: u64, wall: i64) -> (i64, i64) {
        match self {
            Clock::Estimated(e) => {
                let (low, high) = e.between(number, wall);
                (wall.saturating_add(low), wall.saturating_add(high))
            }
            Clock::Supposed { line, bound_ns, drift_bound, from, to, .. } => {
                let outside = from.saturating_sub(wall).max(wall.saturating_sub(*to)).max(0);
                let bound = bound_ns.saturating_add((outside as f64 * drift_bound) as i64);
                (line.boot(wall).saturating_sub(bound), line.boot(wall).saturating_add(bound))
            }
        }
    }

    /// The middle, and how far it may be off.
    pub fn boot(&self, number: u64, wall: i64) -> (i64, i64) {
        let (low, high) = self.between(number, wall);
        let half = high.saturating_sub(low) / 2;
        (low.saturating_add(half), high.saturating_sub(low).saturating_sub(half))
    }

    /// Where a frame most likely is, for matching: between two lines one of them, and how far it may be from there.
    pub fn likely(&self, number: u64, wall: i64) -> (i64, i64) {
        match self {
            Clock::Estimated(e) => {
                let (offset, bound) = e.likely(number, wall);
                (wall.saturating_add(offset), bound)
            }
            Clock::Supposed { .. } => self.boot(number, wall),
        }
    }

    /// Nearly every stamp is off by less than this, besides the clock.
    pub fn scatter_ns(&self) -> i64 {
        match self {
            Clock::Estimated(e) => e.scatter_ns(),
            Clock::Supposed { .. } => 0,
        }
    }

    /// The device's own, by proof.
    pub fn is_own(&self) -> bool {
        matches!(self, Clock::Estimated(e) if e.own)
    }
}
