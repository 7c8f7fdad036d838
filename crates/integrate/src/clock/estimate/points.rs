//! Matches as the estimator sees them: in the order of the file, relative to their own middle so that doubles keep the
//! nanoseconds, and on a time axis that no setting of the sniffer's clock moves.

use crate::matching::Side;

/// A match that bounds the clock: when the sniffer stamped the frame, and when the kernel had the packet at its edge.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pair {
    pub number: u64,
    pub wall: i64,
    pub at: i64,
    /// Received or transmitted; others say nothing.
    pub side: Side,
    /// The edge is a queue's, not the driver's: the packet waited an unknown time behind it.
    pub weak: bool,
    /// Between which edges a tap of the device itself stamps it; empty where unknown.
    pub tap: (i64, i64),
}

/// Boot time less wall time of one match, over the kernel's time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Point {
    pub number: u64,
    /// The kernel's edge, ns from the first.
    pub x: f64,
    /// Boot less wall, ns from the middle one. Received: at least the clock's, less the stamp's error; transmitted: at most.
    pub z: f64,
    pub received: bool,
    pub weak: bool,
    /// No isolated outlier.
    pub ok: bool,
}

impl Point {
    /// `z` such that more is later than the wire allows, whichever way.
    pub fn outward(&self) -> f64 {
        if self.received { self.z } else { -self.z }
    }

    pub fn is_strong(&self) -> bool {
        self.ok && !self.weak
    }
}

#[derive(Clone, Debug)]
pub(super) struct Points {
    pub x0: i64,
    pub y0: i64,
    pub all: Vec<Point>,
}

impl Points {
    /// `None`: no match with a side. `resolution`: stamps are cut off to this, so the true reading is up to so much later.
    pub fn new(pairs: &[Pair], resolution: i64) -> Option<Points> {
        let mut sorted: Vec<&Pair> = pairs.iter().filter(|p| p.side != Side::Unknown).collect();
        sorted.sort_by_key(|p| (p.number, p.at));
        let x0 = sorted.iter().map(|p| p.at).min()?;
        let mut offsets: Vec<i64> = sorted.iter().map(|p| p.at.wrapping_sub(p.wall)).collect();
        let middle = offsets.len() / 2;
        let y0 = *offsets.select_nth_unstable(middle).1;
        let early = super::cut_of(resolution);
        let point = |p: &&Pair| {
            let received = p.side == Side::Received;
            let z = p.at.wrapping_sub(p.wall).wrapping_sub(y0) as f64;
            Point {
                number: p.number,
                x: p.at.wrapping_sub(x0) as f64,
                z: if received { z } else { z - early },
                received,
                weak: p.weak,
                ok: true,
            }
        };
        Some(Points { x0, y0, all: sorted.iter().map(point).collect() })
    }

    /// Indices of one direction.
    pub fn of(&self, received: bool, keep: impl Fn(&Point) -> bool) -> Vec<usize> {
        (0..self.all.len()).filter(|i| self.all[*i].received == received && keep(&self.all[*i])).collect()
    }
}

/// Value at a share of the sorted values, between neighbours linearly.
pub(super) fn quantile(values: &mut [f64], share: f64) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    let at = share * (values.len() - 1) as f64;
    let (low, rest) = (at as usize, at.fract());
    let high = (low + 1).min(values.len() - 1);
    values[low] + (values[high] - values[low]) * rest
}
