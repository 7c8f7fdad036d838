//! The clock of one capture from its matches.

use super::Line;
use super::evidence::Evidence;
use super::hull::{Band, Hulls, Point};
use super::sample::SAME_NS;
use super::vote::MAX_DRIFT;
use crate::matching::Side;
use crate::query::clock_method;
use kpat_model::meta::ClockAnchor;
use kpat_store::tables::ClockRow;

/// A match that says something about the clock: what the kernel knew, and when the wire did.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pair {
    pub wall: i64,
    /// Edge of the DUT: first known, or given to the device.
    pub at: i64,
    pub first: i64,
    pub last: i64,
    /// Unknown: only the packet's life says something, and only if the sniffer was on the DUT.
    pub side: Side,
    /// Seen on a link between two devices of the DUT: within the packet's life, wherever the sniffer's clock is.
    pub inside: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Segment {
    pub line: Line,
    pub bound: i64,
    pub drift_bound: f64,
    pub from: i64,
    pub to: i64,
    pub received: usize,
    pub transmitted: usize,
    pub rejected: usize,
    pub method: i32,
    pub place: Place,
}

impl Segment {
    /// How far a converted time may be off; beyond the segment the drift is not known better than its own bound.
    #[inline]
    pub fn bound_at(&self, wall: i64) -> i64 {
        let outside = self.from.saturating_sub(wall).max(wall.saturating_sub(self.to)).max(0);
        if outside == 0 {
            return self.bound;
        }
        self.bound.saturating_add((outside as f64 * self.drift_bound) as i64)
    }

    /// A line from few matches that swings more than any clock does.
    pub fn is_wild(&self) -> bool {
        self.line.drift.abs() >= MAX_DRIFT * 0.98
    }

    pub fn row(&self, capture_id: i32) -> ClockRow {
        ClockRow {
            capture_id,
            from_wall_ns: self.from,
            to_wall_ns: self.to,
            offset_ns: self.line.boot(self.from).wrapping_sub(self.from),
            drift_ppb: (self.line.drift * 1e9).round() as i64,
            bound_ns: self.bound,
            drift_bound_ppb: (self.drift_bound * 1e9).ceil() as i64,
            received: self.received as i64,
            transmitted: self.transmitted as i64,
            rejected: self.rejected as i64,
            method: self.method,
        }
    }
}

/// Drift that a host's wall clock may have against its own boot clock.
const STEADY: f64 = 2e-6;

/// What else is known.
pub(crate) struct Hints<'a> {
    pub anchors: &'a [ClockAnchor],
    /// The capture names interfaces as the DUT does.
    pub same_names: bool,
    /// The log is of some namespaces only: it knows a packet that comes into one of them over a virtual link only after a
    /// sniffer there has stamped it.
    pub late_first: bool,
    pub one_way_ns: i64,
}

/// Where the sniffer listened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// On the wire: receiving comes after it, transmitting before it.
    Wire,
    /// On the DUT: within the packet's life.
    Dut,
    /// Either: only what holds in both cases.
    Either,
}

/// Bounds on boot - wall, relative to a reference.
struct Bounds {
    lower: Vec<Point>,
    upper: Vec<Point>,
}

struct Frame {
    from: i64,
    to: i64,
    reference: i64,
}

impl Frame {
    fn point(&self, wall: i64, boot: i64) -> Point {
        let diff = boot.wrapping_sub(wall).wrapping_sub(self.reference);
        ((wall.wrapping_sub(self.from)) as f64, diff as f64)
    }
}

/// The DUT's own boot - wall, and how sure; the nearest anchor's.
pub(crate) fn dut_offset(anchors: &[ClockAnchor], wall: i64) -> Option<(i64, i64)> {
    let known = anchors.iter().filter(|a| a.wall.0 != 0);
    let a = known.min_by_key(|a| a.wall.0.saturating_sub(wall).saturating_abs())?;
    Some((a.boot.0.wrapping_sub(a.wall.0), a.uncertainty_ns.max(0)))
}

/// Relates the clocks; `guess` tells where to look. Empty: not a single usable pair.
pub(crate) fn fit(evidence: &Evidence, guess: &Line, hints: &Hints<'_>) -> Vec<Segment> {
    let Some((from, to)) = evidence.span else { return Vec::new() };
    let frame = Frame { from, to, reference: guess.boot(from).wrapping_sub(from) };
    let Evidence { pairs, received, transmitted, .. } = evidence;
    let (received, transmitted) = (*received, *transmitted);
    let finish = |band: Band, rejected: usize, (method, place): (i32, Place), widened: f64| {
        let offset = frame.reference.wrapping_add(band.value.round() as i64);
        let drift_bound = (band.slope_max - band.slope).max(band.slope - band.slope_min).max(0.0);
        vec![Segment {
            line: Line { origin: from, offset, drift: band.slope },
            bound: (band.bound + widened).ceil() as i64 + 1,
            drift_bound,
            from,
            to,
            received,
            transmitted,
            rejected,
            method,
            place,
        }]
    };
    let solve = |place: Place| {
        let bounds = bounds(pairs, place, &frame, hints);
        solve_bands(bounds, evidence.total, &frame)
    };
    let seen_inside = hints.same_names || evidence.inside > 0 || received + transmitted == 0;
    // A guess from packets that are all alike may be off by what they wait.
    let tolerance = if hints.same_names || evidence.inside > 0 { SAME_NS } else { 5_000_000 };
    let near = dut_offset(hints.anchors, from).is_some_and(|(offset, unsure)| {
        frame.reference.wrapping_sub(offset).saturating_abs() <= unsure.saturating_add(tolerance)
    });
    // Boot and wall clock of one host are steered alike: their difference changes in steps, it does not drift.
    let steady = |b: &Band| b.slope_min <= STEADY && b.slope_max >= -STEADY;
    let on_dut = if near { solve(Place::Dut).filter(|(band, _)| steady(band)) } else { None };
    let both_ways = received > 0 && transmitted > 0;
    if let (Some((band, rejected)), true) = (on_dut, seen_inside) {
        return finish(band, rejected, (clock_method::ON_DUT, Place::Dut), 0.0);
    }
    if on_dut.is_none() {
        let inside: Vec<Pair> = pairs.iter().filter(|p| p.inside).copied().collect();
        // The times of the capture were moved: the DUT's own anchors do not hold for them.
        let no_anchors = Hints { anchors: &[], ..*hints };
        let bounds = bounds(&inside, Place::Dut, &frame, &no_anchors);
        if let Some((band, rejected)) = solve_bands(bounds, evidence.inside, &frame) {
            return finish(band, rejected, (clock_method::ON_DUT, Place::Dut), 0.0);
        }
    }
    let on_wire = if both_ways { solve(Place::Wire) } else { None };
    match (on_wire, on_dut) {
        (Some((band, rejected)), None) => {
            return finish(band, rejected, (clock_method::HULL, Place::Wire), 0.0);
        }
        (None, Some((band, rejected))) if both_ways => {
            return finish(band, rejected, (clock_method::ON_DUT, Place::Dut), 0.0);
        }
        (Some(_), Some(_)) => {
            if let Some((band, rejected)) = solve(Place::Either) {
                return finish(band, rejected, (clock_method::HULL, Place::Either), 0.0);
            }
        }
        _ => {}
    }
    if received + transmitted == 0 {
        return Vec::new();
    }
    let mut all = bounds(pairs, if near { Place::Either } else { Place::Wire }, &frame, hints);
    let mut method = clock_method::WIDENED;
    if !both_ways {
        // What is assumed is of the kernel's edge, whatever holds of the packet's life.
        let edge = bounds(pairs, Place::Wire, &frame, hints);
        assume_other_side(&mut all, &edge, hints.one_way_ns as f64, &frame);
        method = clock_method::ONE_WAY;
        if let Some((band, rejected)) = solve_bounds(&all, 0, &frame) {
            return finish(band, rejected, (method, Place::Either), 0.0);
        }
    }
    // Push both sides apart until a line fits, and say by how much.
    let hulls = Hulls::new(&all.lower, &all.upper);
    let (_, room) = hulls.widest(MAX_DRIFT);
    let widen = (-room / 2.0).max(0.0) + 1.0;
    all.lower.iter_mut().for_each(|p| p.1 -= widen);
    all.upper.iter_mut().for_each(|p| p.1 += widen);
    let span = (to.wrapping_sub(from)) as f64;
    match Hulls::new(&all.lower, &all.upper).band(MAX_DRIFT, 0.0, span) {
        Some(band) => finish(band, 0, (method, Place::Either), widen),
        None => Vec::new(),
    }
}

fn bounds(pairs: &[Pair], place: Place, frame: &Frame, hints: &Hints<'_>) -> Bounds {
    let (mut lower, mut upper) = (Vec::new(), Vec::new());
    for p in pairs {
        match (place, p.side) {
            (Place::Dut, side) => {
                if !hints.late_first || p.inside || side != Side::Received {
                    lower.push(frame.point(p.wall, p.first));
                }
                upper.push(frame.point(p.wall, p.last));
            }
            (_, Side::Unknown) => {}
            (Place::Wire, Side::Received) => upper.push(frame.point(p.wall, p.at)),
            (Place::Either, Side::Received) => upper.push(frame.point(p.wall, p.last)),
            (Place::Wire, Side::Transmitted) => lower.push(frame.point(p.wall, p.at)),
            (Place::Either, Side::Transmitted) => lower.push(frame.point(p.wall, p.first)),
        }
    }
    if place == Place::Dut {
        for a in hints.anchors.iter().filter(|a| a.wall.0 != 0) {
            let unsure = a.uncertainty_ns.max(0);
            lower.push(frame.point(a.wall.0, a.boot.0.saturating_sub(unsure)));
            upper.push(frame.point(a.wall.0, a.boot.0.saturating_add(unsure)));
        }
    }
    Bounds { lower: extremes(lower, frame, -1.0), upper: extremes(upper, frame, 1.0) }
}

/// The few points of each stretch of time that can touch the hull, also after the outermost were rejected.
fn extremes(points: Vec<Point>, frame: &Frame, sign: f64) -> Vec<Point> {
    const STRETCHES: usize = 256;
    const KEEP: usize = 12;
    if points.len() <= STRETCHES * KEEP {
        return points;
    }
    let width = ((frame.to.wrapping_sub(frame.from)) as f64 / STRETCHES as f64).max(1.0);
    let mut bins: Vec<Vec<Point>> = vec![Vec::new(); STRETCHES];
    for p in points {
        let bin = &mut bins[((p.0 / width) as usize).min(STRETCHES - 1)];
        bin.push(p);
        if bin.len() >= 8 * KEEP {
            bin.select_nth_unstable_by(KEEP, |a, b| (sign * a.1).total_cmp(&(sign * b.1)));
            bin.truncate(KEEP);
        }
    }
    for bin in &mut bins {
        bin.sort_by(|a, b| (sign * a.1).total_cmp(&(sign * b.1)));
        bin.truncate(KEEP);
    }
    bins.concat()
}

fn solve_bands(bounds: Bounds, pairs: usize, frame: &Frame) -> Option<(Band, usize)> {
    solve_bounds(&bounds, (pairs / 100).clamp(usize::from(pairs >= 20), 100), frame)
}

/// A line between the hulls, after rejecting at most `spare` points that contradict the rest.
fn solve_bounds(bounds: &Bounds, spare: usize, frame: &Frame) -> Option<(Band, usize)> {
    let span = (frame.to.wrapping_sub(frame.from)) as f64;
    let (mut lower, mut upper) = (bounds.lower.clone(), bounds.upper.clone());
    for rejected in 0..=spare {
        if lower.is_empty() || upper.is_empty() {
            return None;
        }
        let hulls = Hulls::new(&lower, &upper);
        if let Some(band) = hulls.band(MAX_DRIFT, 0.0, span) {
            return Some((band, rejected));
        }
        let (low, high) = hulls.tightest(hulls.widest(MAX_DRIFT).0)?;
        // One of the two is wrong: the one without which there is more room.
        let without_low: Vec<Point> = lower.iter().copied().filter(|p| *p != low).collect();
        let without_high: Vec<Point> = upper.iter().copied().filter(|p| *p != high).collect();
        let room_low = Hulls::new(&without_low, &upper).widest(MAX_DRIFT).1;
        let room_high = Hulls::new(&lower, &without_high).widest(MAX_DRIFT).1;
        if room_low >= room_high { lower = without_low } else { upper = without_high }
    }
    None
}

/// Traffic in one direction: the shortest delay in a busy stretch of time is taken to be at most `most`.
fn assume_other_side(bounds: &mut Bounds, edge: &Bounds, most: f64, frame: &Frame) {
    const STRETCHES: f64 = 16.0;
    let (known, sign) = if bounds.lower.is_empty() { (&edge.upper, -1.0) } else { (&edge.lower, 1.0) };
    let width = ((frame.to.wrapping_sub(frame.from)) as f64 / STRETCHES).max(1.0);
    let mut made: Vec<Point> = Vec::new();
    for bin in 0..=STRETCHES as usize {
        let here = || known.iter().filter(|p| (p.0 / width) as usize == bin);
        let tightest = here().copied().max_by(|a, b| (sign * a.1).total_cmp(&(sign * b.1)));
        if let Some((x, y)) = tightest {
            // A few packets may all have been slow.
            let most = if here().count() >= 8 { most } else { 20.0 * most };
            made.push((x, y + sign * most));
        }
    }
    if bounds.lower.is_empty() { bounds.lower = made } else { bounds.upper = made }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kpat_model::{BootNs, WallNs};

    fn pairs(n: i64, both: bool, wrong: usize) -> (Vec<Pair>, i64, f64) {
        let (offset, drift) = (-1_700_000_000_000_000_000i64, 40e-6);
        let line = Line { origin: 1_700_000_100_000_000_000, offset, drift };
        let mut out = Vec::new();
        for i in 0..n {
            let wall = line.origin + i * 10_000_000;
            let boot = line.boot(wall);
            let delay = 20_000 + (i * 7919) % 300_000;
            let received = !both || i % 2 == 0;
            let at = if received { boot + delay } else { boot - delay };
            let side = if received { Side::Received } else { Side::Transmitted };
            out.push(Pair { wall, at, first: at, last: at + 50_000, side, inside: false });
        }
        for k in 0..wrong {
            out[k * 97 + 10].at -= 40_000_000;
        }
        (out, offset, drift)
    }

    fn check(n: i64, both: bool, wrong: usize, method: i32) {
        let (pairs, offset, drift) = pairs(n, both, wrong);
        let truth = Line { origin: pairs[0].wall, offset, drift };
        let guess = Line { origin: pairs[0].wall, offset: offset + 1_000_000, drift: 0.0 };
        let hints = Hints { anchors: &[], same_names: false, late_first: false, one_way_ns: 1_000_000 };
        let fit = fit(&Evidence::of(pairs.clone()), &guess, &hints);
        let s = &fit[0];
        assert_eq!(s.method, method);
        for wall in [s.from, (s.from + s.to) / 2, s.to] {
            let error = (s.line.boot(wall) - truth.boot(wall)).abs();
            assert!(error <= s.bound, "{error} > {}", s.bound);
        }
    }

    #[test]
    fn truth_is_within_the_bound() {
        check(1000, true, 0, clock_method::HULL);
        check(1000, true, 2, clock_method::HULL);
        check(1000, false, 0, clock_method::ONE_WAY);
        check(2, true, 0, clock_method::HULL);
        check(1, false, 0, clock_method::ONE_WAY);
    }

    /// One way, and the sniffer's host may be the DUT: how long packets live afterwards differs by milliseconds, which
    /// says nothing of their way in.
    #[test]
    fn one_way_does_not_depend_on_what_follows() {
        let truth =
            Line { origin: 1_700_000_000_000_000_000, offset: -1_699_999_000_000_000_000, drift: 0.0 };
        let pair = |i: i64, side: Side| {
            let wall = truth.origin + i * 10_000_000;
            let delay = 2_000 + (i * 7919) % 3_000;
            let at = truth.boot(wall) + if side == Side::Received { delay } else { -delay };
            let rest = if i > 300 { 4_000_000 } else { 20_000 };
            Pair { wall, at, first: at - 5_000, last: at + rest, side, inside: false }
        };
        let anchor = ClockAnchor {
            boot: BootNs(truth.boot(truth.origin) + 1_000),
            wall: WallNs(truth.origin),
            uncertainty_ns: 2_000,
        };
        for side in [Side::Received, Side::Transmitted] {
            let pairs: Vec<Pair> = (0..400).map(|i| pair(i, side)).collect();
            let hints =
                Hints { anchors: &[anchor], same_names: false, late_first: true, one_way_ns: 1_000_000 };
            let s = fit(&Evidence::of(pairs), &truth, &hints)[0];
            assert_eq!(s.method, clock_method::ONE_WAY);
            for wall in [s.from, (s.from + s.to) / 2, s.to] {
                let error = (s.line.boot(wall) - truth.boot(wall)).abs();
                assert!(error <= s.bound && s.bound < 4_000_000, "{side:?}: {error}, {s:?}");
            }
        }
    }

    #[test]
    fn many_contradictions_widen() {
        let (mut pairs, _, _) = pairs(100, true, 0);
        pairs.iter_mut().step_by(3).for_each(|p| p.at -= 3_000_000);
        let guess = Line { origin: pairs[0].wall, offset: -1_700_000_000_000_000_000, drift: 0.0 };
        let hints = Hints { anchors: &[], same_names: false, late_first: false, one_way_ns: 1_000_000 };
        let fit = fit(&Evidence::of(pairs.clone()), &guess, &hints);
        assert_eq!(fit[0].method, clock_method::WIDENED);
        assert!(fit[0].bound >= 1_400_000);
    }

    #[test]
    fn nothing_gives_nothing() {
        let hints = Hints { anchors: &[], same_names: false, late_first: false, one_way_ns: 1 };
        assert_eq!(fit(&Evidence::default(), &Line::default(), &hints), vec![]);
    }
}
