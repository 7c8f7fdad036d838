//! Was a capture made with the device's own clock? Proved by its matches; names and likeness play no part.
//!
//! A tap of the device stamps what it transmits between the queue's edge and the driver's, some hundred ns apart (Linux
//! `net/core/dev.c`, `xmit_one`: `dev_queue_xmit_nit` runs before `netdev_start_xmit`; both edges are within `dev_hard_start_xmit`),
//! and what comes over a virtual link between the other end's driver and the first point behind `net_timestamp_check`. So every such
//! match is a window on the clock from both sides, and the device's own, known from the anchors of the log, must be in all of them at
//! once. A sniffer elsewhere is behind a wire: what it sees coming in is too early for one clock, and what it sees going out too late.
//! So both ways are needed.
//!
//! Where the edges are far apart (an emulated processor, probes on every function) a clock that is nearly right is in all windows, too.
//! Then the order proves it, whatever the widths: of a frame that came in and the next that went out the kernel's first sight of the one
//! is before the tap and the driver's edge of the other behind it. Of any other clock at the wire, the same or not, each is the other way
//! round by the delays, up to the stamps' errors, and as these do not depend on the direction no more than half can look like that.
//!
//! What comes in is stamped before that first point only while somebody asks the kernel for time stamps of packets (`netstamp_needed_key`: a socket
//! with `SO_TIMESTAMP`, as ping's). Else the capturing socket reads the clock itself, when it is given the packet behind that point
//! (`net/packet/af_packet.c`, `tpacket_rcv`), some hundred ns later: what tcpdump does. Where the edges are narrow both are within the window.
//!
//! Stamps of whole microseconds (a `.pcap`, unless it says nanoseconds) are cut off: the tap's reading was up to so much later, and each window
//! is open by so much more on its early side.

use super::noise::FLOOR_NS;
use super::piece::{Piece, Shape};
use super::points::{Pair, quantile};
use super::zones::Zone;
use super::{Estimate, cut_of};
use crate::clock::Line;
use crate::matching::Side;
use kpat_model::meta::ClockAnchor;
use std::sync::OnceLock;

/// Windows and received matches that a proof needs.
const LEAST: usize = 30;
/// Windows in a row that are looked at together; one of them may be wrong.
const CELL: usize = 32;
/// The narrower windows are taken if there are enough.
const WIDTHS_NS: [i64; 4] = [5_000, 20_000, WIDE_NS, i64::MAX];
/// A clock that is nearly right may be in such windows.
const WIDE_NS: i64 = 50_000;
/// What the windows may leave open for nothing else to be needed; with more, the order has to prove it.
const OPEN_NS: f64 = 3_000.0;
/// Of neighbours in both directions those that are in the order of a tap of the device, in percent.
const ORDER_PERCENT: usize = 95;
/// More often a clock is not set.
const MAX_PIECES: usize = 16;
/// By less a clock is not set: windows so near each other contradict.
const LEAST_STEP_NS: f64 = 1_000_000.0;
/// Behind the first point what comes in is given to the taps at once: 0.2 us on an idle host, 2 to 9 us where all CPUs are busy.
const LATE_NS: i64 = 12_000;
/// Windows that may be wrong, in percent: those that no stretch is made of.
const WRONG_PERCENT: usize = 5;

/// Windows in a row that have a moment in common.
struct Run {
    numbers: (u64, u64),
    boots: (i64, i64),
    windows: usize,
    low: f64,
    high: f64,
}

/// Of fewer windows in a row no stretch is made: wrong matches.
const FEW: usize = 6;

impl Run {
    /// `None`: these windows have nothing in common, the clock was set between them.
    fn of(cell: &[&Pair], y0: i64, cut: f64) -> Option<Run> {
        let spare = usize::from(cell.len() >= CELL);
        let mut low: Vec<f64> = cell.iter().map(|p| offset(p.tap.0, p, y0) - cut).collect();
        let mut high: Vec<f64> = cell.iter().map(|p| offset(p.tap.1, p, y0)).collect();
        low.sort_unstable_by(f64::total_cmp);
        high.sort_unstable_by(f64::total_cmp);
        let (low, high) = (low[low.len() - 1 - spare], high[spare]);
        // One that does not fit at an end may be the first behind the moment at which the clock was set.
        let fits = |p: &&&Pair| {
            offset(p.tap.0, p, y0) - cut <= high + FLOOR_NS && offset(p.tap.1, p, y0) >= low - FLOOR_NS
        };
        let (first, last) = (cell.iter().find(fits)?, cell.iter().rfind(fits)?);
        (low <= high + FLOOR_NS).then_some(Run {
            numbers: (first.number, last.number),
            boots: (first.at, last.at),
            windows: cell.len(),
            low,
            high,
        })
    }

    /// Halved where the windows have nothing in common, so that the moment at which the clock was set is narrowed down.
    fn all_of(cell: &[&Pair], y0: i64, cut: f64, out: &mut Vec<Run>) {
        match Run::of(cell, y0, cut) {
            Some(run) => push(out, run),
            None if cell.len() > 1 => {
                let (a, b) = cell.split_at(cell.len() / 2);
                Run::all_of(a, y0, cut, out);
                Run::all_of(b, y0, cut, out);
            }
            None => {}
        }
    }

    fn joined(&self, next: &Run) -> Option<Run> {
        let (low, high) = (self.low.max(next.low), self.high.min(next.high));
        (low <= high + FLOOR_NS).then_some(Run {
            numbers: (self.numbers.0, next.numbers.1),
            boots: (self.boots.0, next.boots.1),
            windows: self.windows + next.windows,
            low,
            high,
        })
    }
}

/// Goes on with the last, or begins another.
fn push(runs: &mut Vec<Run>, next: Run) {
    match runs.last().and_then(|last| last.joined(&next)) {
        Some(both) => {
            runs.pop();
            runs.push(both);
        }
        None => runs.push(next),
    }
}

fn offset(boot: i64, p: &Pair, y0: i64) -> f64 {
    boot.wrapping_sub(p.wall).wrapping_sub(y0) as f64
}

/// Windows on one clock: those that are narrow enough, and the stretches in which they have a moment in common.
struct Windows<'a> {
    all: Vec<&'a Pair>,
    y0: i64,
    /// Stamps may be so much earlier than the tap's reading.
    cut: f64,
    runs: Vec<Run>,
}

impl<'a> Windows<'a> {
    /// `None`: too few, they contradict, or the device's own clock is not in them. `counts`: those of which a proof needs enough.
    fn of(
        pairs: &'a [Pair],
        anchors: &[ClockAnchor],
        cut: f64,
        is_late: bool,
        counts: impl Fn(&Pair) -> bool,
    ) -> Option<Windows<'a>> {
        let edges = |p: &&Pair| p.side != Side::Unknown && !p.weak && p.tap.0 != 0 && p.tap.1 > p.tap.0;
        let narrow = |most: i64| -> Vec<&Pair> {
            pairs.iter().filter(edges).filter(|p| p.tap.1.saturating_sub(p.tap.0) < most).collect()
        };
        let enough = |w: &Vec<&Pair>| w.iter().filter(|p| counts(p)).count() >= LEAST;
        // What comes in tells devices apart, so its windows are never left out.
        let widths = if is_late { &WIDTHS_NS[1..2] } else { &WIDTHS_NS[..] };
        let mut all = widths.iter().map(|w| narrow(*w)).find(enough)?;
        all.sort_by_key(|p| (p.number, p.at));
        let middle = all[all.len() / 2];
        let y0 = middle.tap.1.wrapping_sub(middle.wall);
        let mut parts: Vec<Run> = Vec::new();
        all.chunks(CELL).for_each(|cell| Run::all_of(cell, y0, cut, &mut parts));
        let mut runs: Vec<Run> = Vec::new();
        parts.into_iter().filter(|r| r.windows >= FEW).for_each(|r| push(&mut runs, r));
        let logged: usize = runs.iter().map(|r| r.windows).sum();
        let apart = |w: &[Run]| w[0].high + LEAST_STEP_NS < w[1].low || w[1].high + LEAST_STEP_NS < w[0].low;
        let agree = runs.len() <= MAX_PIECES
            && (all.len() - logged) * 100 <= all.len() * WRONG_PERCENT
            && runs.windows(2).all(apart)
            && is_anchored(&runs, anchors, y0);
        agree.then_some(Windows { all, y0, cut, runs })
    }

    /// A clock that is nearly right may be in them.
    fn are_wide(&self) -> bool {
        let is_wide = |p: &&Pair| p.tap.1.saturating_sub(p.tap.0) >= WIDE_NS;
        self.all.iter().any(is_wide) || self.runs.iter().any(|r| r.high - r.low > OPEN_NS + self.cut)
    }

    /// What comes in where it was seen to go out, on the other side of a bridge, is in order as well: but in no common window.
    fn are_both_ways(&self) -> bool {
        let of = |side| self.all.iter().filter(|p| p.side == side).count();
        of(Side::Received).min(of(Side::Transmitted)) >= LEAST
    }
}

/// The device's own clock, if the matches prove that it made the stamps: constant between the moments at which it was set. `resolution_ns`:
/// power of ten of which all stamps of the file are multiples.
pub fn own(pairs: &[Pair], anchors: &[ClockAnchor], resolution_ns: i64) -> Option<Estimate> {
    let late = || Some(Estimate { late_ns: LATE_NS, ..proved(&late(pairs), anchors, resolution_ns, true)? });
    proved(pairs, anchors, resolution_ns, false).or_else(late)
}

/// The windows of a tap that reads the clock itself, or does so at times: until behind the first point of what comes in.
fn late(pairs: &[Pair]) -> Vec<Pair> {
    let moved = |p: &Pair| {
        let first = p.tap.1.max(p.at);
        let is_window = p.side == Side::Received && p.tap.0 != 0;
        Pair { tap: if is_window { (p.tap.0, first.saturating_add(LATE_NS)) } else { p.tap }, ..*p }
    };
    pairs.iter().map(moved).collect()
}

/// The device's own clock, where the capture says itself that the device's kernel made its stamps. `None`: it was set meanwhile, and nobody knows when, or equal keys
/// are a second from it at `wall`; nearer they need not be where all packets are alike. Stamps may be as late as a capturing socket's.
pub(crate) fn declared(
    anchors: &[ClockAnchor],
    resolution_ns: i64,
    rough: &Line,
    wall: i64,
) -> Option<Estimate> {
    let known = || anchors.iter().filter(|a| a.wall.0 != 0);
    let y0 = known().map(|a| a.boot.0.wrapping_sub(a.wall.0)).next()?;
    let apart = |a: &ClockAnchor| a.boot.0.wrapping_sub(a.wall.0).wrapping_sub(y0) as f64;
    let unsure = |a: &ClockAnchor| a.uncertainty_ns.max(0) as f64 + FLOOR_NS;
    let low = known().map(|a| apart(a) - unsure(a)).fold(f64::NEG_INFINITY, f64::max);
    let high = known().map(|a| apart(a) + unsure(a)).fold(f64::INFINITY, f64::min);
    let boots = (known().map(|a| a.boot.0).min()?, known().map(|a| a.boot.0).max()?);
    if low > high || boots.0 == boots.1 {
        return None;
    }
    let run = Run { numbers: (0, u64::MAX), boots, windows: 0, low, high };
    let of_all = Windows { all: Vec::new(), y0, cut: cut_of(resolution_ns), runs: vec![run] };
    let apart = rough.boot(wall).wrapping_sub(wall).wrapping_sub(y0).saturating_abs();
    (apart < 1_000_000_000).then(|| Estimate { late_ns: LATE_NS, ..estimate(&of_all, &[], 0.0) })
}

/// These matches cannot be of stamps of the device's own clock.
pub(crate) fn denied(pairs: &[Pair], anchors: &[ClockAnchor], resolution_ns: i64) -> bool {
    can_be_judged(pairs) && !may_be_own(pairs, anchors, resolution_ns)
}

/// `is_late`: by narrow windows alone. Where the edges are far apart a tap that is late and stamps that are wrong by as much look alike.
fn proved(pairs: &[Pair], anchors: &[ClockAnchor], resolution_ns: i64, is_late: bool) -> Option<Estimate> {
    let cut = cut_of(resolution_ns);
    let found = Windows::of(pairs, anchors, cut, is_late, |p| p.side == Side::Transmitted)?;
    let unsure = unsure(anchors);
    let wide = found.are_wide();
    let is_own = !has_room(&found, pairs, unsure)
        && (!wide || found.are_both_ways() && is_in_order(pairs, found.y0, cut));
    is_own.then(|| estimate(&found, pairs, unsure))
}

/// Enough of them say when a tap of the device would have made the stamp.
pub(crate) fn can_be_judged(pairs: &[Pair]) -> bool {
    pairs.iter().filter(|p| p.tap.0 != 0).count() >= LEAST
}

/// Nothing in these matches denies that the device's own clock made the stamps, and there are enough to tell. No proof: what goes one
/// way only may be any clock's that is as much off as the way takes.
pub(in crate::clock) fn may_be_own(pairs: &[Pair], anchors: &[ClockAnchor], resolution_ns: i64) -> bool {
    let cut = cut_of(resolution_ns);
    let fits = |pairs: &[Pair], is_late| Windows::of(pairs, anchors, cut, is_late, |_| true).is_some();
    fits(pairs, false) || fits(&late(pairs), true)
}

/// Of neighbours in the file of which one came in and one went out, nearly all are as at a tap within the kernel.
fn is_in_order(pairs: &[Pair], y0: i64, cut: f64) -> bool {
    let edge = |p: &Pair| match p.side {
        Side::Received if p.tap.0 != 0 => Some(offset(p.at.min(p.tap.0), p, y0)),
        Side::Received => Some(offset(p.at, p, y0)),
        Side::Transmitted if p.tap.0 != 0 && !p.weak => Some(offset(p.tap.1, p, y0)),
        _ => None,
    };
    let mut known: Vec<(u64, bool, f64)> =
        pairs.iter().filter_map(|p| Some((p.number, p.side == Side::Received, edge(p)?))).collect();
    known.sort_by_key(|k| k.0);
    let (mut count, mut ordered, mut i) = (0, 0, 0);
    while i + 1 < known.len() {
        let (a, b) = (known[i], known[i + 1]);
        if a.1 == b.1 {
            i += 1;
            continue;
        }
        let (received, sent) = if a.1 { (a.2, b.2) } else { (b.2, a.2) };
        count += 1;
        ordered += usize::from(received - cut < sent);
        // Each counts once.
        i += 2;
    }
    count >= LEAST && ordered * 100 >= count * ORDER_PERCENT
}

fn unsure(anchors: &[ClockAnchor]) -> f64 {
    let known = anchors.iter().filter(|a| a.wall.0 != 0);
    known.map(|a| a.uncertainty_ns.max(0)).min().unwrap_or(0) as f64 + FLOOR_NS
}

/// At least one stretch holds an anchor's relation, and no stretch with an anchor in its time denies it.
fn is_anchored(runs: &[Run], anchors: &[ClockAnchor], y0: i64) -> bool {
    let mut holds = false;
    for a in anchors.iter().filter(|a| a.wall.0 != 0) {
        let at = a.boot.0.wrapping_sub(a.wall.0).wrapping_sub(y0) as f64;
        let unsure = a.uncertainty_ns.max(0) as f64 + FLOOR_NS;
        let fits = |r: &Run| r.low <= at + unsure && r.high >= at - unsure;
        holds |= runs.iter().any(fits);
        if runs.iter().any(|r| r.boots.0 <= a.boot.0 && a.boot.0 <= r.boots.1 && !fits(r)) {
            return false;
        }
    }
    holds
}

/// Room for a wire between the fastest in and the fastest out.
fn has_room(Windows { all, y0, cut, runs }: &Windows<'_>, pairs: &[Pair], unsure: f64) -> bool {
    let y0 = *y0;
    let relative = |number: u64, v: f64| {
        let run = runs.iter().find(|r| r.numbers.0 <= number && number <= r.numbers.1);
        run.map(|r| v - (r.low + r.high) / 2.0)
    };
    let received = pairs.iter().filter(|p| p.side == Side::Received);
    // Of a tunnel's inside the edge is behind the time stamp, which is the outside's.
    let edge = |p: &Pair| if p.tap.0 != 0 { p.at.min(p.tap.1) } else { p.at };
    let mut inward: Vec<f64> = received.filter_map(|p| relative(p.number, offset(edge(p), p, y0))).collect();
    let sent = all.iter().filter(|p| p.side == Side::Transmitted);
    let mut outward: Vec<f64> = sent.filter_map(|p| relative(p.number, offset(p.tap.1, p, y0))).collect();
    if inward.len() < LEAST || outward.len() < LEAST {
        return true;
    }
    quantile(&mut inward, 0.01) - quantile(&mut outward, 0.99) > unsure + cut
}

fn estimate(Windows { y0, cut, runs, .. }: &Windows<'_>, pairs: &[Pair], unsure: f64) -> Estimate {
    let x0 = pairs.iter().map(|p| p.at).min().unwrap_or(0);
    let piece = |r: &Run| {
        let ends = |v: &[f64]| v.to_vec();
        let at = vec![r.boots.0.wrapping_sub(x0) as f64];
        let (low, high) = (r.low.min(r.high) - unsure, r.low.max(r.high) + unsure);
        Piece {
            span: (at[0], r.boots.1.wrapping_sub(x0) as f64),
            numbers: r.numbers,
            pad: 0.0,
            slope: 0.0,
            slopes: (0.0, 0.0),
            wander: 0.0,
            rate: 0.0,
            shape: Shape::Lines { at, low: ends(&[low]), high: ends(&[high]) },
            one_way: Vec::new(),
            supposed: false,
            longest: 0.0,
            marks: vec![
                (r.boots.0.wrapping_sub(x0) as f64, r.numbers.0),
                (r.boots.1.wrapping_sub(x0) as f64, r.numbers.1),
            ],
            before: vec![(0, 0)],
            counts: counts(pairs, r.numbers),
            centre: OnceLock::new(),
        }
    };
    let zones = runs.windows(2).map(|w| Zone {
        after: w[0].numbers.1,
        before: w[1].numbers.0,
        low: w[0].low.min(w[1].low) - unsure,
        high: w[0].high.max(w[1].high) + unsure,
    });
    Estimate {
        x0,
        y0: *y0,
        pieces: runs.iter().map(piece).collect(),
        ends: runs.iter().map(|r| r.numbers).collect(),
        zones: zones.collect(),
        near: Vec::new(),
        noise_ns: FLOOR_NS,
        noise_assumed: false,
        stamp_ns: Some(*cut),
        two_way: true,
        rejected: 0,
        rigid: true,
        own: true,
        late_ns: 0,
        maybe_own: Vec::new(),
    }
}

/// A reading of the device's own clock, in the estimate's terms: when, and from where to where boot less wall was then.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reading {
    x: f64,
    low: f64,
    high: f64,
}

/// A tap stands at most so far on the wrong side of the edges that the log has of a packet, on a busy host.
const REACH_NS: f64 = 100_000.0;

impl Estimate {
    /// Takes into account that the capture may be the device's own though its matches do not prove it: on a busy host its windows are
    /// wide, and a tap lies before the driver's edge and behind the receiver's first, which no wire does. So where the device's clock
    /// is near what the matches say, the bound holds both.
    pub fn or_own(mut self, pairs: &[Pair], anchors: &[ClockAnchor], resolution_ns: i64) -> Estimate {
        let known = anchors.iter().filter(|a| a.wall.0 != 0);
        let unsure = unsure(anchors) + cut_of(resolution_ns);
        if !self.own && !is_behind_a_wire(pairs, self.y0, unsure) {
            self.maybe_own = known
                .map(|a| {
                    let at = a.boot.0.wrapping_sub(a.wall.0).wrapping_sub(self.y0) as f64;
                    let unsure = a.uncertainty_ns.max(0) as f64 + FLOOR_NS;
                    Reading { x: a.boot.0.wrapping_sub(self.x0) as f64, low: at - unsure, high: at + unsure }
                })
                .collect();
        }
        self
    }
}

/// One clock for all, and room between the fastest in and the fastest out.
fn is_behind_a_wire(pairs: &[Pair], y0: i64, unsure: f64) -> bool {
    let of =
        |side| pairs.iter().filter(move |p: &&Pair| p.side == side && !p.weak).map(|p| offset(p.at, p, y0));
    let (mut inward, mut outward): (Vec<f64>, Vec<f64>) =
        (of(Side::Received).collect(), of(Side::Transmitted).collect());
    inward.len() >= LEAST
        && outward.len() >= LEAST
        && quantile(&mut inward, 0.01) - quantile(&mut outward, 0.99) > unsure
}

/// The bound, with the nearest reading in it if that is near.
pub(super) fn reach(readings: &[Reading], x: f64, (low, high): (f64, f64)) -> (f64, f64) {
    let Some(r) = readings.iter().min_by(|a, b| (a.x - x).abs().total_cmp(&(b.x - x).abs())) else {
        return (low, high);
    };
    if r.low < low - REACH_NS || r.high > high + REACH_NS {
        return (low, high);
    }
    (low.min(r.low), high.max(r.high))
}

/// Received and transmitted matches between two frames.
pub(super) fn counts(pairs: &[Pair], numbers: (u64, u64)) -> (usize, usize) {
    let of = |side| {
        let here = |p: &&Pair| p.side == side && (numbers.0..=numbers.1).contains(&p.number);
        pairs.iter().filter(here).count()
    };
    (of(Side::Received), of(Side::Transmitted))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn anchor(boot: i64, wall: i64) -> ClockAnchor {
        ClockAnchor { boot: kpat_model::BootNs(boot), wall: kpat_model::WallNs(wall), uncertainty_ns: 200 }
    }

    /// An hour of a log whose clock was off by some ns at each anchor, as a reading of two clocks is, and a capture of the same kernel.
    #[test]
    fn a_clock_that_was_not_set_is_known_without_a_match() {
        let (boot, wall) = (5_000_000_000_000i64, 1_700_000_000_000_000_000i64);
        let hour = 3_600_000_000_000;
        let rough = Line { origin: wall, offset: boot - wall + 300_000_000, drift: 0.0 };
        let anchors = [anchor(boot, wall), anchor(boot + hour, wall + hour + 150)];
        let e = declared(&anchors, 1, &rough, wall).unwrap();
        for at in [wall, wall + hour / 2, wall + hour] {
            let (low, high) = e.between(7, at);
            assert!(low <= boot - wall && high >= boot - wall - 150 && high - low < 2_000, "{low} {high}");
        }
        assert!(e.own);
        // Nobody knows when it was set.
        let set = [anchor(boot, wall), anchor(boot + hour, wall + hour + 1_000_000)];
        assert!(declared(&set, 1, &rough, wall).is_none());
        // A single reading says nothing of what came later, and equal keys that are seconds away say that the times were moved.
        assert!(declared(&anchors[..1], 1, &rough, wall).is_none());
        let moved = Line { offset: boot - wall + 5_000_000_000, ..rough };
        assert!(declared(&anchors, 1, &moved, wall).is_none());
    }
}
