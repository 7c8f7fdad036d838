//! The relation of two clocks from matches, as a set that holds the true one: piecewise, with a bound by frame.
//!
//! A received frame was on the wire before the kernel knew it, a transmitted one after the kernel gave it away. Each match so bounds
//! boot less wall from one side, up to the error of its stamp (Duda, Haddad, Berthet and Nguyen 1987; Moon, Skelly and Towsley 1999;
//! Poirier, Roy and Dagenais 2010 draw the true line between the two hulls). With exact stamps that is all; with others the hulls
//! cross, and no line is left. Points must not be taken away until one is: the more contradiction, the less would be left of the bound.
//! Here the stamps' scatter is measured first ([`noise`]), the constraints are moved apart by it, and the bound is all that is then
//! possible.
//!
//! What is supposed: (H1) at least 90 % of the stamps have errors within one window that contains 0; a lateness that all stamps share
//! cannot be separated from the offset. (H2) The errors do not depend on delay and direction. (H3) In one-way traffic the fastest of 16
//! packets took no longer than the option `one_way_ns`. (H4) Where nothing is seen the frequency is steady to 0.1 ppm, or changes no
//! more than it was seen to.

mod cells;
mod cut;
mod noise;
mod one_way;
mod own;
mod piece;
mod points;
mod stretches;
mod trim;
mod zones;

use crate::matching::Side;
use cells::{Cells, MAX_SLOPE};
use noise::{ASSUMED_NS, FLOOR_NS, Noise};
use one_way::one_way;
pub(in crate::clock) use own::may_be_own;
pub use own::own;
pub(crate) use own::{can_be_judged, declared, denied};
use piece::{Envelope, Piece, Shape, WANDER};
pub use points::Pair;
use points::{Point, Points, quantile};
use std::ops::Range;
use std::sync::OnceLock;
pub(crate) use stretches::Stretch;
use trim::Trimmed;
use zones::Zone;

/// Residuals that one frame's own bound is to hold.
const STAMP_SHARE: f64 = 0.95;
/// Matches of one direction in a row of which the fastest is taken to be fast.
const FASTEST_OF: usize = 16;
/// Pieces of a clock whose speed was changed, and cells of one that is long enough to be a line by itself.
const FEW_LINES: usize = 3;
const LONG_LINE: usize = 16;
/// A step or a bend that the noise hides moves the fastest packets, but for the tenths at both ends.
const MOVED: f64 = 1.5;

/// What else the estimate depends on.
#[derive(Clone, Copy, Debug)]
pub struct Given {
    pub one_way_ns: i64,
    /// Power of ten of which all stamps of the file are multiples.
    pub resolution_ns: i64,
}

/// Boot less wall, by frame.
#[derive(Clone, Debug)]
pub struct Estimate {
    x0: i64,
    y0: i64,
    pieces: Vec<Piece>,
    /// Up to this number the one before may hold, from this number on the piece.
    ends: Vec<(u64, u64)>,
    zones: Vec<Zone>,
    /// Matches at doubtful places: number, boot less wall.
    near: Vec<(u64, f64)>,
    /// A window with 90 % of the stamps' errors is no wider.
    pub noise_ns: f64,
    /// Too few matches to measure it.
    pub noise_assumed: bool,
    /// A window with 95 % of the stamps' errors; `None`: too few matches.
    pub stamp_ns: Option<f64>,
    pub two_way: bool,
    /// Isolated outliers, used for nothing.
    pub rejected: usize,
    /// Straight lines of one frequency.
    pub rigid: bool,
    /// The device's own clock, by proof.
    pub own: bool,
    /// Its tap stamps what comes in up to so much behind the kernel's first sight of it.
    late_ns: i64,
    /// The device's own clock, where neither that nor the contrary is proved.
    maybe_own: Vec<own::Reading>,
}

/// `None`: no match that bounds anything.
pub fn estimate(pairs: &[Pair], given: &Given) -> Option<Estimate> {
    let mut points = Points::new(pairs, given.resolution_ns)?;
    let noise = Noise::of(&points, given.resolution_ns, noise::batch(pairs, given.resolution_ns));
    for p in &mut points.all {
        let extra = noise.extra(p.number);
        p.z += if p.received { extra } else { -extra };
    }
    let rejected = noise::mark_outliers(&mut points, noise.width);
    let (_, made) = one_way(&points, 0..points.all.len(), noise.width, given, FASTEST_OF);
    let mut cells = Cells::new(&points, &made);
    // What waits in a queue makes no piece, and so no step.
    let is_known = |c: &Range<usize>, rows: &[Range<usize>]| {
        let here = &points.all[rows[c.start].start..rows[c.end - 1].end];
        here.iter().filter(|p| p.is_strong()).count() >= 4
    };
    let rows = cells.rows.clone();
    let cut = cut::cut(&mut cells, noise.doubt, |c| is_known(c, &rows));
    let has = |received| points.all.iter().any(|p| p.received == received && p.ok);
    let two_way = has(true) && has(false);
    let build = Build {
        points: &points,
        cells: &cells,
        width: noise.width,
        noise: &noise,
        given,
        made,
        two_way,
        rejected,
    };
    let (pieces, rigid) = build.pieces(&cut);
    let mut out = Estimate {
        x0: points.x0,
        y0: points.y0,
        ends: pieces.iter().map(|p| p.numbers).collect(),
        pieces,
        zones: Vec::new(),
        near: Vec::new(),
        noise_ns: noise.width,
        noise_assumed: !noise.known,
        stamp_ns: None,
        two_way,
        rejected,
        rigid,
        own: false,
        late_ns: 0,
        maybe_own: Vec::new(),
    };
    zones::find(&mut out, &points, &cells, &cut, given.one_way_ns as f64);
    for i in 0..out.pieces.len() {
        let rows = out.held_by(i, &points);
        let (mut found, _) = one_way(&points, rows.clone(), noise.width, given, one_way::SEEN_OF);
        // Of a piece with enough matches how slow the fastest of so many was says how far the clock may be on the other side.
        if !two_way && rows.len() >= FASTEST_OF {
            found.iter_mut().for_each(|b| b.most = 0.0);
            found.extend(one_way(&points, rows, noise.width, given, FASTEST_OF).0);
            found.sort_by(|a, b| a.from.total_cmp(&b.from));
        }
        out.pieces[i].longest = found.iter().map(|b| b.to - b.from).fold(0.0, f64::max);
        out.pieces[i].one_way = found;
    }
    let refused = zones::refused(&out, &points, given.one_way_ns as f64);
    out.zones.extend(refused);
    let edges = zones::edges(&out, &points, noise.width);
    out.zones.extend(edges);
    out.zones.sort_by_key(|z| z.after);
    out.near = out.zones_matches(&points);
    out.stamp_ns = stamp(&out.pieces, &points);
    Some(out)
}

struct Build<'a> {
    points: &'a Points,
    cells: &'a Cells,
    width: f64,
    noise: &'a Noise,
    given: &'a Given,
    made: Vec<(f64, f64, bool)>,
    two_way: bool,
    rejected: usize,
}

/// What is known of a piece before its shape.
struct Draft {
    cells: Range<usize>,
    hulls: kpat_query::hull::Hulls,
    slope: f64,
    room: f64,
    pad: f64,
    /// Tighter lines than all matches give.
    narrow: Option<Trimmed>,
    /// No bend is known to be in it.
    straight: bool,
    /// A bend of the line can hide by so much where the fastest of both directions scatter.
    hidden: f64,
    /// How far the fastest of the steadier direction are from the line, which may be the clock and not they.
    moved: f64,
    slopes: (f64, f64),
    /// The same with no more room than the noise needs: for telling whether one frequency holds everywhere.
    likely: (f64, f64),
    span: (f64, f64),
    numbers: (u64, u64),
}

impl Build<'_> {
    fn rows(&self, cells: &Range<usize>) -> Range<usize> {
        self.cells.rows[cells.start].start..self.cells.rows[cells.end - 1].end
    }

    fn pieces(&self, cut: &cut::Cut) -> (Vec<Piece>, bool) {
        let mut drafts = self.drafts(&cut.pieces);
        for d in &mut drafts {
            let hidden = self.hidden(d);
            d.straight = hidden.is_some();
            let (hidden, moved) = hidden.unwrap_or_default();
            (d.hidden, d.moved) = (hidden, MOVED * moved);
        }
        let ranged: Vec<&Draft> = drafts.iter().filter(|d| d.hulls.is_two_sided()).collect();
        let common = |of: fn(&Draft) -> (f64, f64)| {
            let all = ranged.iter().map(|d| of(d));
            all.fold((-MAX_SLOPE, MAX_SLOPE), |c, s| (c.0.max(s.0), c.1.min(s.1)))
        };
        let (common, likely) = (common(|d| d.slopes), common(|d| d.likely));
        // A step does not change the frequency, and lines that meet between are no step but a bend.
        let bend = drafts.windows(2).any(|w| meet(&w[0], &w[1]));
        let rigid = likely.0 <= likely.1 && drafts.iter().all(|d| d.straight) && !bend;
        // A few bends leave long lines between them, each of its own frequency; what always bends does not.
        let lines = |d: &Draft| {
            let few = self.two_way && drafts.len() <= FEW_LINES && d.cells.len() >= LONG_LINE;
            d.hulls.is_two_sided() && (rigid || few && d.straight)
        };
        let change = if rigid { 0.0 } else { change(&ranged) };
        let slopes: Vec<f64> = ranged.iter().map(|d| d.slope).collect();
        let usual = if slopes.is_empty() { 0.0 } else { quantile(&mut slopes.clone(), 0.5) };
        let pieces = drafts.iter().map(|d| {
            if lines(d) {
                self.lines(d, if rigid { common } else { d.slopes }, cut)
            } else {
                self.tube(d, change, usual, cut)
            }
        });
        (pieces.collect(), rigid)
    }

    fn drafts(&self, pieces: &[Range<usize>]) -> Vec<Draft> {
        let mut out: Vec<Draft> = pieces
            .iter()
            .map(|cells| {
                let hulls = self.cells.hulls(cells.clone());
                let two = hulls.is_two_sided();
                let (slope, room) = if two { hulls.widest(MAX_SLOPE) } else { (0.0, f64::INFINITY) };
                let rows = &self.points.all[self.rows(cells)];
                let fold = |f: fn(f64, f64) -> f64, from| rows.iter().map(|p| p.x).fold(from, f);
                let span = (fold(f64::min, f64::INFINITY), fold(f64::max, f64::NEG_INFINITY));
                let numbers = (rows[0].number, rows[rows.len() - 1].number);
                let slopes = (-MAX_SLOPE, MAX_SLOPE);
                Draft {
                    cells: cells.clone(),
                    hulls,
                    slope,
                    room,
                    pad: 0.0,
                    narrow: None,
                    straight: true,
                    hidden: 0.0,
                    moved: 0.0,
                    slopes,
                    likely: slopes,
                    span,
                    numbers,
                }
            })
            .collect();
        let mut over: Vec<f64> =
            out.iter().filter(|d| d.room.is_finite()).map(|d| (-d.room).max(0.0)).collect();
        let usual = if over.is_empty() { 0.0 } else { quantile(&mut over, 0.5) };
        // Outliers that stay are likely where many went.
        let many = self.rejected as f64 > 0.005 * self.points.all.len() as f64 + 2.0;
        // One way, the tail of late stamps is behind the only constraints there are, and nothing contradicts it.
        let factor = if !self.two_way {
            3.5
        } else if many {
            3.0
        } else {
            1.25
        };
        for d in &mut out {
            let tail = if self.two_way { self.noise.tail(self.rows(&d.cells).len()) } else { 0.0 };
            // What few matches scatter is the stamps', or a step; which, they do not tell.
            let seen = if self.noise.known { 0.0 } else { self.noise.doubt };
            d.pad = (factor * self.width).max(tail).max(seen).max(1.5 * (-d.room).max(usual) + self.width)
                + FLOOR_NS;
            if d.hulls.is_two_sided() {
                d.slopes = d.hulls.slopes(d.slope, d.pad, MAX_SLOPE);
                let tight = (1.25 * self.width).max(-d.room + 0.35 * self.width) + FLOOR_NS;
                d.likely = d.hulls.slopes(d.slope, tight, MAX_SLOPE);
            }
            if self.two_way && d.hulls.is_two_sided() {
                let rows = self.rows(&d.cells);
                let trimmed = Trimmed::new(self.points, rows, &self.made, d.slope, self.width);
                d.narrow = trimmed.filter(|t| t.half < d.room / 2.0 + d.pad);
            }
        }
        out
    }

    /// The fastest of at least one direction lie on the line: then it is one, but for what can hide where they scatter. `None`: so much
    /// that a bend can. And how far they are from it.
    fn hidden(&self, d: &Draft) -> Option<(f64, f64)> {
        if !d.hulls.is_two_sided() || !self.two_way {
            return Some((0.0, 0.0));
        }
        let mut tested = false;
        let mut best = f64::INFINITY;
        for received in [true, false] {
            let sign = if received { 1.0 } else { -1.0 };
            let fastest = d.cells.clone().filter_map(|c| {
                let rows = &self.points.all[self.cells.rows[c].clone()];
                let of = || rows.iter().filter(|p| p.received == received && p.is_strong());
                (of().count() >= 4)
                    .then(|| of().map(|p| sign * (p.z - d.slope * p.x)).fold(f64::INFINITY, f64::min))
            });
            let mut v: Vec<f64> = fastest.collect();
            if v.len() < 5 {
                continue;
            }
            if v.len() >= 10 {
                v = v.chunks_exact(2).map(|c| c[0].min(c[1])).collect();
            }
            tested = true;
            best = best.min(quantile(&mut v.clone(), 0.9) - quantile(&mut v, 0.1));
        }
        let res = cut_of(self.given.resolution_ns);
        if !tested {
            return Some((0.0, 0.0));
        }
        let hidden = (best - (3.0 * self.width + 2.0 * FLOOR_NS + res)).max(0.0);
        // Little beside what the two directions leave open between them.
        (hidden <= 0.25 * d.room.max(0.0)).then_some((hidden, best))
    }

    fn piece(&self, d: &Draft, slope: f64, slopes: (f64, f64), rate: f64, shape: Shape) -> Piece {
        let supposed = !self.two_way;
        let one_way = Vec::new();
        let rows = &self.points.all[self.rows(&d.cells)];
        let step = rows.len().div_ceil(stretches::MARKS - 1);
        let mut marks: Vec<(f64, u64)> = rows.iter().step_by(step).map(|p| (p.x, p.number)).collect();
        marks.push((d.span.1, d.numbers.1));
        let mut counts = (0, 0);
        let mut before = Vec::new();
        for (i, p) in rows.iter().enumerate() {
            if i.is_multiple_of(step) {
                before.push(counts);
            }
            if p.received { counts.0 += 1 } else { counts.1 += 1 }
        }
        Piece {
            span: d.span,
            numbers: d.numbers,
            pad: d.pad,
            slope,
            slopes,
            wander: WANDER,
            rate,
            shape,
            one_way,
            supposed,
            longest: 0.0,
            marks,
            before,
            counts,
            centre: OnceLock::new(),
        }
    }

    fn lines(&self, d: &Draft, common: (f64, f64), cut: &cut::Cut) -> Piece {
        let mut shape = match &d.narrow {
            Some(n) => {
                let slopes = (n.slopes.0.max(common.0), n.slopes.1.min(common.1));
                let slopes = if slopes.0 <= slopes.1 { slopes } else { common };
                Piece::lines(&n.hulls, d.span, slopes, n.pad.max(d.moved) + d.hidden)
            }
            None => Piece::lines(&d.hulls, d.span, common, d.pad.max(d.moved) + d.hidden),
        };
        if let Shape::Lines { at, low, high } = &mut shape {
            let both: Vec<(f64, f64)> = d.cells.clone().filter_map(|c| self.both_ways(c, cut)).collect();
            for (i, x) in at.iter().enumerate() {
                let far = both.iter().map(|b| (b.0 - x).max(x - b.1).max(0.0)).fold(f64::INFINITY, f64::min);
                if far.is_finite() {
                    low[i] -= far * WANDER;
                    high[i] += far * WANDER;
                }
            }
        }
        self.piece(d, d.slope.clamp(common.0, common.1), common, 0.0, shape)
    }

    /// First and last time of a cell in which both directions bound the clock.
    fn both_ways(&self, cell: usize, cut: &cut::Cut) -> Option<(f64, f64)> {
        let rows = &self.points.all[self.cells.rows[cell].clone()];
        let has =
            |received: bool| rows.iter().any(|p| p.received == received && p.ok && (received || !p.weak));
        let here = has(true) && has(false) && !cut.skipped.iter().any(|s| s.contains(&cell));
        let x = || rows.iter().map(|p| p.x);
        here.then(|| (x().fold(f64::INFINITY, f64::min), x().fold(f64::NEG_INFINITY, f64::max)))
    }

    fn tube(&self, d: &Draft, change: f64, usual: f64, cut: &cut::Cut) -> Piece {
        let two = d.hulls.is_two_sided();
        let slope = if two { d.slope } else { usual };
        let own = if two { (d.slopes.1 - d.slope).max(d.slope - d.slopes.0) } else { 50e-6 };
        let rate = if two { change + own } else { change.max(own) };
        let skipped = |row: usize| {
            cut.skipped
                .iter()
                .any(|s| (self.cells.rows[s.start].start..self.cells.rows[s.end - 1].end).contains(&row))
        };
        let rows = self.rows(&d.cells);
        let mut used: Vec<&Point> = rows
            .clone()
            .filter(|i| self.points.all[*i].ok && !skipped(*i))
            .map(|i| &self.points.all[i])
            .collect();
        if used.is_empty() {
            used = self.points.all[rows].iter().collect();
        }
        let envelope = |received: bool| {
            let sign = if received { 1.0 } else { -1.0 };
            let value = |x: f64, z: f64| (x, sign * (z - slope * x));
            let seen = used.iter().filter(|p| p.received == received).map(|p| value(p.x, p.z));
            let supposed = self.made.iter().filter(|m| m.2 == received && m.0 >= d.span.0 && m.0 <= d.span.1);
            let mut all: Vec<(f64, f64)> = seen.chain(supposed.map(|m| value(m.0, m.1))).collect();
            if all.is_empty() {
                // Nothing at all on this side: what is supposed of few packets, from the other, or of the queue that they are in.
                let far = if used.iter().all(|p| p.weak) {
                    OUT_NS as f64
                } else {
                    20.0 * self.given.one_way_ns as f64
                };
                all = used.iter().map(|p| value(p.x, p.z + sign * far)).collect();
            }
            Envelope::new(all, rate)
        };
        let shape = Shape::Tube { above: envelope(true), below: envelope(false) };
        self.piece(d, slope, d.slopes, rate, shape)
    }
}

/// The two lines may meet in the time between.
fn meet(a: &Draft, b: &Draft) -> bool {
    if !a.hulls.is_two_sided() || !b.hulls.is_two_sided() {
        return false;
    }
    let x = (a.span.1 + b.span.0) / 2.0;
    let (low_a, high_a) = a.hulls.reach(x, a.slopes, a.pad);
    let (low_b, high_b) = b.hulls.reach(x, b.slopes, b.pad);
    low_a <= high_b && low_b <= high_a
}

/// How fast the frequency may change where nothing is seen: somewhat more than it did where something is.
fn change(ranged: &[&Draft]) -> f64 {
    let mut most = 0.0f64;
    for p in ranged {
        for q in ranged {
            most = most.max(1.5 * (p.slopes.0 - q.slopes.1)).max((p.slope - q.slope).abs().min(20e-6));
        }
    }
    (1e-6 + most).min(500e-6)
}

/// The steadier direction's window around the clock, with so many of the residuals.
fn stamp(pieces: &[Piece], points: &Points) -> Option<f64> {
    let mut best: Option<f64> = None;
    for received in [true, false] {
        let mut residuals: Vec<f64> = Vec::new();
        for piece in pieces {
            let here = |p: &Point| !p.weak && (piece.numbers.0..=piece.numbers.1).contains(&p.number);
            let rows = points.of(received, here);
            if rows.len() >= 40 {
                residuals.extend(rows.iter().map(|i| points.all[*i].z - piece.middle(points.all[*i].x)));
            }
        }
        if residuals.is_empty() {
            continue;
        }
        residuals.sort_unstable_by(f64::total_cmp);
        let width = noise::shortest(&residuals, (STAMP_SHARE * residuals.len() as f64).ceil() as usize);
        best = Some(best.map_or(width, |b| b.min(width)));
    }
    best
}

/// How long a frame may be on its way in (interrupt moderation), and in the device's queue on its way out.
const IN_NS: i64 = 50_000_000;
const OUT_NS: i64 = 1_000_000_000;

impl Estimate {
    /// The frame's stamp, scattered as the others are, lies within what matching allows this packet.
    pub fn allows(&self, p: &Pair) -> bool {
        let (low, high) = self.between(p.number, p.wall);
        let y = p.at.wrapping_sub(p.wall);
        let wide = self.scatter_ns();
        match p.side {
            Side::Received => y >= low - wide && y <= high + IN_NS,
            _ => y <= high + wide && y >= low - OUT_NS,
        }
    }

    /// Nearly every stamp is off by less.
    pub fn scatter_ns(&self) -> i64 {
        if self.own {
            self.late_ns + self.stamp_ns.unwrap_or(0.0) as i64
        } else {
            2 * self.stamp_ns.unwrap_or(ASSUMED_NS) as i64 + 10_000
        }
    }

    /// Lowest and highest boot less wall of a frame.
    pub fn between(&self, number: u64, wall: i64) -> (i64, i64) {
        let x = wall.wrapping_sub(self.x0).wrapping_add(self.y0) as f64;
        // Where in true time that is depends on the answer.
        let (low, high) =
            self.over(number, |piece| x + piece.line((x + piece.centre()).clamp(piece.span.0, piece.span.1)));
        (self.y0.saturating_add(low.floor() as i64), self.y0.saturating_add(high.ceil() as i64))
    }

    /// Boot less wall where a frame most likely is, and how far it may be from there: near a jump on one of the lines.
    pub(crate) fn likely(&self, number: u64, wall: i64) -> (i64, i64) {
        /// Above this the middle between two lines is on neither.
        const APART_NS: i64 = 1_000_000;
        let (low, high) = self.between(number, wall);
        let half = high.saturating_sub(low) / 2;
        if half <= APART_NS || self.near.is_empty() {
            return (low.saturating_add(half), half);
        }
        let i = self.near.partition_point(|n| n.0 < number);
        let apart = |k: &usize| self.near[*k].0.abs_diff(number);
        let beside = [i.checked_sub(1), Some(i).filter(|i| *i < self.near.len())];
        let nearest = beside.into_iter().flatten().min_by_key(apart);
        let z = nearest.map_or(low.saturating_add(half), |k| self.y0.saturating_add(self.near[k].1 as i64));
        (z.clamp(low, high), APART_NS)
    }

    fn zones_matches(&self, points: &Points) -> Vec<(u64, f64)> {
        let in_zone = |n: u64| self.zones.iter().any(|z| n > z.after && n < z.before);
        points.all.iter().filter(|p| p.is_strong() && in_zone(p.number)).map(|p| (p.number, p.z)).collect()
    }

    /// How fast packets of one-way traffic are was supposed.
    pub(crate) fn supposes_delay(&self) -> bool {
        self.pieces.iter().any(|p| !p.one_way.is_empty())
    }

    /// Matches of which the piece is known to hold, and those up to where it may hold.
    fn held_by(&self, i: usize, points: &Points) -> Range<usize> {
        let core = self.pieces[i].numbers;
        let (from, to) = (self.ends[i].0.min(core.0), self.ends[i].1.max(core.1));
        let first = if i == 0 { 0 } else { points.all.partition_point(|p| p.number < from) };
        let last = self.pieces.len() - 1;
        let end = if i == last { points.all.len() } else { points.all.partition_point(|p| p.number <= to) };
        first.min(end)..end
    }

    /// The same relative to the middle one, where the time is known.
    fn about(&self, number: u64, x: f64) -> (f64, f64) {
        self.over(number, |_| x)
    }

    fn over(&self, number: u64, x: impl Fn(&Piece) -> f64) -> (f64, f64) {
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        // Behind the end of the one before, before the start of the next one.
        let a = self.ends.partition_point(|e| e.0 <= number).saturating_sub(1);
        let b = self.ends.partition_point(|e| e.1 < number).min(self.pieces.len() - 1);
        for piece in &self.pieces[a.min(b)..=a.max(b)] {
            let (a, b) = piece.between(x(piece));
            (low, high) = (low.min(a), high.max(b));
        }
        // Zones begin in order.
        let end = self.zones.partition_point(|z| z.after < number);
        for z in self.zones[..end].iter().filter(|z| number < z.before) {
            (low, high) = (low.min(z.low), high.max(z.high));
        }
        own::reach(&self.maybe_own, x(&self.pieces[a.min(b)]), (low, high))
    }
}

/// By how much a stamp of this resolution may have been cut off.
fn cut_of(resolution_ns: i64) -> f64 {
    if resolution_ns > 1 { resolution_ns as f64 } else { 0.0 }
}

/// Power of ten of which all stamps are multiples: what the sniffer writes, in ns. Few stamps show nothing.
pub fn resolution(walls: impl Iterator<Item = i64>) -> i64 {
    let (mut count, mut res) = (0, 10_000_000);
    for w in walls {
        count += 1;
        while w % res != 0 {
            res /= 10;
        }
    }
    if count >= 8 { res } else { 1 }
}
