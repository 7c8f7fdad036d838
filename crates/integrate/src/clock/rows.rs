//! A clock as rows of table `clock`: straight stretches that stand for it within their bounds.

use super::Clock;
use super::estimate::{Estimate, Stretch};
use kpat_query::{clock_assumed, clock_method};
use kpat_store::tables::ClockRow;

/// Share of such captures whose every frame was inside of its bound where that was measured, in percent.
const CONFIDENCE: i32 = 98;

impl Clock {
    /// `first`, `last`: number and wall time of the capture's first and last frame.
    pub fn rows(&self, capture_id: i32, first: (u64, i64), last: (u64, i64)) -> Vec<ClockRow> {
        match self {
            Clock::Estimated(e) => e.rows(capture_id, first, last),
            Clock::Supposed { line, bound_ns, drift_bound, from, to, method } => vec![ClockRow {
                capture_id,
                from_wall_ns: *from,
                to_wall_ns: *to,
                offset_ns: line.boot(*from).wrapping_sub(*from),
                drift_ppb: (line.drift * 1e9).round() as i64,
                bound_ns: *bound_ns,
                drift_bound_ppb: (drift_bound * 1e9).ceil() as i64,
                method: *method,
                from_number: Some(first.0 as i64),
                to_number: Some(last.0 as i64),
                ..ClockRow::default()
            }],
        }
    }
}

impl Estimate {
    fn rows(&self, capture_id: i32, first: (u64, i64), last: (u64, i64)) -> Vec<ClockRow> {
        let method = match (self.own, self.two_way) {
            (true, _) => clock_method::ON_DUT,
            (_, true) => clock_method::HULL,
            _ => clock_method::ONE_WAY,
        };
        let flag = |on: bool, bit: i32| if on { bit } else { 0 };
        let assumed = flag(self.noise_assumed, clock_assumed::NOISE)
            | flag(self.supposes_delay(), clock_assumed::DELAY)
            | flag(!self.own && !self.rigid, clock_assumed::CHANGE);
        let row = |s: &Stretch| ClockRow {
            capture_id,
            from_wall_ns: s.from_wall,
            to_wall_ns: s.to_wall,
            offset_ns: s.offset,
            drift_ppb: (s.drift * 1e9).round() as i64,
            bound_ns: s.bound,
            drift_bound_ppb: (s.drift_bound * 1e9).ceil() as i64,
            received: s.received as i64,
            transmitted: s.transmitted as i64,
            rejected: s.rejected as i64,
            method: if s.between { clock_method::BETWEEN } else { method },
            stamp_bound_ns: self.stamp_ns.map(|j| s.bound.saturating_add(j.ceil() as i64)),
            noise_ns: (!self.noise_assumed).then(|| self.noise_ns.ceil() as i64),
            assumed: Some(assumed),
            confidence: Some(CONFIDENCE),
            from_number: Some(s.numbers.0 as i64),
            to_number: Some(s.numbers.1 as i64),
        };
        self.stretches(first, last).iter().map(row).collect()
    }
}
