//! The captures: once for what matching needs, once more (when the clock is known) into the frame table.

use crate::clock::at_device;
use crate::clock::estimate::{self, Pair};
use crate::clock::jumps::{self, Jump};
use crate::clock::radio;
use crate::clock::sample::{SAME_NS, Sample, Seen};
use crate::clock::{Clock, Given, Line, dut_offset, vote};
use crate::drawn::Drawn;
use crate::dut::Dut;
use crate::error::Result;
use crate::flatten;
use crate::flows::Flows;
use crate::found::Found;
use crate::matching::keys::Keys;
use crate::matching::{self, Frame, Match, Side, Sighting, Windows, stream};
use crate::report::{Progress, Stage};
use crate::spill::{Sorted, Sorter};
use kpat_capture::decode::radio::RadioTime;
use kpat_capture::{Direction, Plain, Reader, decode};
use kpat_model::codes::{clock_method, match_key};
use kpat_model::hash::{Map, Set};
use kpat_store::tables::*;
use kpat_store::{TableWriter, rows_at_once};
use std::path::Path;

/// What came of one capture.
#[derive(Default)]
pub(super) struct Outcome {
    pub frames: u64,
    pub matched: u64,
    /// Frames that could have been.
    pub expected: u64,
    pub ambiguous: u64,
    pub clocks: Vec<ClockRow>,
    pub warnings: Vec<String>,
    /// Frames and sightings that were held at a time, at most.
    pub held: usize,
    /// Some could have been recognised.
    frames_known: bool,
    /// Frames with clocks of radios in them, once they were read.
    pub stamps: Option<Vec<radio::Stamp>>,
}

pub(super) struct Writers<'a> {
    pub frame: &'a mut TableWriter<FrameRow>,
    pub interface: &'a mut TableWriter<InterfaceRow>,
}

#[derive(Clone, Copy, Default)]
struct Counts {
    frames: i64,
    matched: i64,
}

/// Where packets of the log met the wire.
pub(super) struct Met {
    pub sightings: Sorted<Sighting>,
    pub keys: Seen,
    pub flows: Flows,
}

/// What all captures have in common.
pub(super) struct Join<'a> {
    pub dut: Dut<'a>,
    pub met: &'a Met,
    pub options: &'a crate::report::Options,
    /// For rows that wait.
    pub early: &'a Path,
    pub found: Found,
    /// What captures so far say of the time of beacons.
    pub heard: radio::Heard,
}

impl Join<'_> {
    /// `wait`: others follow, which may relate the clock of this one. `None`: they may, nothing was written.
    pub fn integrate(
        &mut self,
        capture_id: i32,
        path: &Path,
        wait: bool,
        writers: &mut Writers<'_>,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Option<Outcome>> {
        let mut outcome = Outcome::default();
        let mut counts: Vec<Counts> = Vec::new();
        let read = self.read_keys(path, &mut outcome, progress)?;
        let on_air = read.on_air;
        let mut clock = self.match_frames(capture_id, path, read, &mut outcome, &mut counts, progress)?;
        if on_air && clock.is_none() && wait {
            return Ok(None);
        }
        if on_air {
            clock = self.beacons(path, outcome.stamps.take(), clock)?;
        }
        if clock.is_none() && outcome.frames_known {
            outcome.warnings.push(
                "no frame of the capture could be recognised in the log: another host's traffic, another time, or \
                 a profile without footprints"
                    .to_owned(),
            );
        }
        let ends = write_frames(
            capture_id,
            path,
            Plain::new(self.options.secrets.clone()),
            clock.as_ref(),
            &self.met.flows,
            &mut self.found,
            writers.frame,
            &mut counts,
            &mut outcome,
            progress,
        )?;
        if let (Some(c), Some((first, last))) = (&clock, ends) {
            outcome.clocks.extend(c.rows(capture_id, first, last));
        }
        self.found.set_clock(capture_id, clock);
        let reader = Reader::open(path)?;
        for (i, c) in counts.iter().enumerate() {
            let interface = reader.interfaces().get(i);
            let link_type = interface.map_or(0, |f| f.link_type);
            if c.frames > 0 && !decode::is_decoded(link_type) {
                let what = decode::link_type_name(link_type).map(|n| format!(" ({n})")).unwrap_or_default();
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                let frames =
                    if c.frames == 1 { "1 frame".to_owned() } else { format!("{} frames", c.frames) };
                outcome
                    .warnings
                    .push(format!("{name}: link type {link_type}{what} is not decoded: {frames}"));
            }
            writers.interface.push(&InterfaceRow {
                capture_id,
                interface: i as i32,
                name: interface.map(|f| f.name.clone()).unwrap_or_default(),
                link_type: interface.map_or(0, |f| i32::from(f.link_type)),
                frames: c.frames,
                matched: c.matched,
            })?;
        }
        Ok(Some(outcome))
    }
}

fn counts_of(counts: &mut Vec<Counts>, interface: u32) -> &mut Counts {
    // Interfaces are numbered by the reader, so there are no more than the file describes.
    let i = interface as usize;
    if counts.len() <= i {
        counts.resize(i + 1, Counts::default());
    }
    &mut counts[i]
}

/// Frames that can be recognised.
struct Frames {
    sorted: Sorted<Frame>,
    sample: Sample,
    /// First and last wall time.
    span: Option<(i64, i64)>,
    /// Power of ten of which all stamps are multiples.
    resolution: i64,
    /// Interfaces of the DUT's own, as the marks of their frames prove.
    here: Set<u32>,
    /// Frames have clocks of radios in them.
    on_air: bool,
    /// The file says that the DUT's kernel made its stamps.
    own_stamps: bool,
}

impl Join<'_> {
    fn read_keys(
        &self,
        path: &Path,
        outcome: &mut Outcome,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Frames> {
        let dut = &self.dut;
        let mut reader = Reader::open(path)?;
        let mut frames = Sorter::new(self.early, "frames", 1 << 18);
        let mut sample = Sample::default();
        let mut span: Option<(i64, i64)> = None;
        let mut resolution = Resolution::default();
        let mut here: Set<u32> = Set::default();
        let mut on_air = false;
        let mut done = 0u64;
        loop {
            match reader.next() {
                Ok(Some(frame)) => {
                    done += 1;
                    resolution.see(frame.at.0);
                    on_air |= decode::radio::time(frame.link_type, frame.data) != RadioTime::default();
                    // What is on the air is known by its 802.11 header, better than by what is in it.
                    let print = decode::frame(frame.link_type, frame.data, frame.len_wire);
                    let marked = frame.direction;
                    if let Some(keys) = Keys::of(&print) {
                        let (wall, number, interface) = (frame.at.0, frame.number, frame.interface);
                        let own = reader.interfaces().get(interface as usize);
                        let name = own.map_or("", |i| i.name.as_str());
                        let wire = dut.wire(&print, name, marked);
                        if dut.captured_here(&print, &wire) {
                            here.insert(interface);
                        }
                        let frame = Frame {
                            keys,
                            wall,
                            boot: wall,
                            bound: 0,
                            number,
                            interface,
                            side: dut.side(&print),
                            inside: dut.inside(&print),
                            wire,
                            device: dut.device(name),
                            place: 0,
                        };
                        if self.met.keys.has(keys.exact) {
                            sample.push(&frame);
                        }
                        let (from, to) = span.unwrap_or((wall, wall));
                        span = Some((from.min(wall), to.max(wall)));
                        frames.push(frame)?;
                    }
                }
                Ok(None) => break,
                // What came before is valid, and analysed.
                Err(e @ kpat_capture::Error::Corrupt { .. }) => {
                    outcome.warnings.push(e.to_string());
                    break;
                }
                Err(e) => return Err(e.into()),
            }
            if done.is_multiple_of(1 << 17) {
                progress(Progress { stage: Stage::Captures, done, total: 0 });
            }
        }
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        outcome
            .warnings
            .extend(reader.warnings().iter().map(|w| format!("{name}, offset {}: {}", w.offset, w.text)));
        progress(Progress { stage: Stage::Captures, done, total: done });
        let (resolution, own_stamps) = (resolution.value(), dut.stamped(reader.interfaces()));
        Ok(Frames { sorted: frames.finish()?, sample, span, resolution, here, on_air, own_stamps })
    }

    /// Matches the frames; gives the clock, `None` where nothing matches.
    fn match_frames(
        &mut self,
        capture_id: i32,
        path: &Path,
        read: Frames,
        outcome: &mut Outcome,
        counts: &mut Vec<Counts>,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Option<Clock>> {
        let Frames { sorted, sample, span, resolution, here, on_air, own_stamps } = read;
        let Some((from, to)) = span else { return Ok(None) };
        let anchors = self.dut.log.anchors();
        let near = dut_offset(anchors, from).map(|(offset, _)| (offset, self.options.clock_tolerance_ns));
        let (sampled, seen) = sample.finish(&self.met.sightings)?;
        let votes = vote::collect(&sampled, &seen);
        let Some(rough) = vote::rough(votes.clone(), near) else {
            outcome.frames_known = sorted.len() > 0;
            // The clock may be anything: to suppose that both hosts keep time would be no bound.
            return Ok(None);
        };
        let agreeing = agreeing(&votes, &sampled, &rough.line);
        let here_at = at_device::find(&agreeing, &sampled, &seen, anchors, resolution);
        let places = here_at.as_ref().map(|h| h.places.clone()).unwrap_or_default();
        let is_own = here_at.is_some();
        let declared =
            own_stamps.then(|| estimate::declared(anchors, resolution, &rough.line, from)).flatten();
        let mut first = match (here_at, &declared) {
            (Some(h), _) => Some(Clock::Estimated(Box::new(h.clock))),
            (None, Some(e)) => Some(Clock::Estimated(Box::new(e.clone()))),
            (None, None) => self.relate(&unique_pairs(&agreeing, &sampled, &seen), resolution, false),
        };
        drop((sampled, seen, votes));
        let unknown = Clock::Supposed {
            line: rough.line,
            bound_ns: 5_000_000,
            drift_bound: 0.0,
            from,
            to,
            method: clock_method::ANCHORS,
        };
        let guess = first.as_ref().unwrap_or(&unknown);
        let (placed, windows) = self.place_frames(&sorted, guess, &here, &places)?;
        let mut sink = Matched {
            capture_id,
            found: &mut self.found,
            pairs: Drawn::default(),
            outcome: &mut *outcome,
            counts,
            last: None,
            total: sorted.len(),
            progress,
        };
        let (mut frames, mut sightings) = (placed.iter()?, self.met.sightings.iter()?);
        let held = stream::run(&mut || frames.next(), &mut || sightings.next(), &windows, &mut sink)?;
        let sure = sink.pairs.finish();
        outcome.held = held;
        // Where several devices fit, the matches have no device's edges: what was proved of all of them stays.
        let proved = first.take_if(|_| is_own && !estimate::can_be_judged(&sure));
        let mut related = proved.or_else(|| self.relate(&sure, resolution, is_own)).or(first);
        // Unless its matches deny it: somebody may have moved the file's times.
        let declared = declared.filter(|_| !estimate::denied(&sure, anchors, resolution));
        if let Some(e) = declared.filter(|_| related.as_ref().is_none_or(|c| !c.is_own())) {
            related = Some(Clock::Estimated(Box::new(e)));
        }
        if on_air && related.as_ref().is_some_and(|c| !c.is_own()) {
            let radios = self.radios(path, &sure, outcome)?;
            related = self.relate_with(sure, &radios, resolution).or(related);
        }
        let clock = match related {
            Some(clock) => clock,
            None => self.fallback(&rough.line, near, (from, to)),
        };
        outcome.warnings.extend(self.doubts(&clock));
        Ok(Some(clock))
    }

    /// The clock that these matches show; `None`: none of them bounds it. `own`: they are with what one device had.
    fn relate(&self, pairs: &[Pair], resolution_ns: i64, own: bool) -> Option<Clock> {
        let anchors = self.dut.log.anchors();
        let own = own.then(|| estimate::own(pairs, anchors, resolution_ns)).flatten();
        let given = Given { one_way_ns: self.options.one_way_ns, resolution_ns };
        let found =
            own.or_else(|| Some(estimate::estimate(pairs, &given)?.or_own(pairs, anchors, resolution_ns)))?;
        Some(Clock::Estimated(Box::new(found)))
    }

    /// Matched, but no match says on which side of the wire: the anchors where they agree with the matches, else these, with the
    /// longest time that a frame and its packet may be apart.
    fn fallback(&self, rough: &Line, near: Option<(i64, i64)>, (from, to): (i64, i64)) -> Clock {
        let agree = near.filter(|(offset, tolerance)| {
            let found = rough.boot(from).wrapping_sub(from);
            found.saturating_sub(*offset).saturating_abs() <= *tolerance
        });
        let drift_bound = vote::MAX_DRIFT;
        match agree {
            Some((offset, bound_ns)) => {
                let line = Line { origin: from, offset, drift: 0.0 };
                Clock::Supposed { line, bound_ns, drift_bound, from, to, method: clock_method::ANCHORS }
            }
            None => {
                let (bound_ns, method) = (matching::MAX_APART_NS, clock_method::ONE_WAY);
                Clock::Supposed { line: *rough, bound_ns, drift_bound, from, to, method }
            }
        }
    }

    fn doubts(&self, clock: &Clock) -> Vec<String> {
        let Clock::Estimated(e) = clock else { return Vec::new() };
        let mut out = Vec::new();
        if !e.own && !e.two_way {
            out.push(format!(
                "the matched traffic goes one way only; the shortest delay is assumed to be at most {} ns",
                self.options.one_way_ns
            ));
        }
        if e.noise_assumed {
            out.push(
                "too few matches show how much the sniffer's stamps scatter; 100 us are assumed for the clock's bound"
                    .to_owned(),
            );
        }
        out
    }

    /// The frames once more, by the DUT's time, and what they have in common.
    fn place_frames(
        &self,
        sorted: &Sorted<Frame>,
        clock: &Clock,
        here: &Set<u32>,
        places: &Map<u32, u64>,
    ) -> Result<(Sorted<Frame>, Windows)> {
        /// A bound from very few matches, and one that leaves nothing to see.
        const BOUNDS_NS: (i64, i64) = (1_000, 50_000_000);
        let scatter = clock.scatter_ns().min(BOUNDS_NS.1);
        let mut windows = Windows { own: clock.is_own(), scatter, widest: 0, logs: false };
        let mut placed = Sorter::new(self.early, "placed", 1 << 18);
        let mut all = sorted.iter()?;
        while let Some(mut f) = all.next()? {
            (f.boot, f.bound) = clock.likely(f.number, f.wall);
            f.bound = f.bound.clamp(BOUNDS_NS.0, BOUNDS_NS.1);
            windows.widest = windows.widest.max(f.bound);
            if f.wire.marked != Side::Unknown && (windows.own || here.contains(&f.interface)) {
                f.wire.way = f.wire.marked;
            }
            f.place = places.get(&f.interface).copied().unwrap_or(0);
            placed.push(f)?;
        }
        Ok((placed.finish()?, windows))
    }
}

/// Power of ten of which all stamps are multiples.
#[derive(Default)]
struct Resolution {
    count: u64,
    zeros: Option<i64>,
}

impl Resolution {
    fn see(&mut self, wall: i64) {
        self.count += 1;
        let mut res = self.zeros.unwrap_or(10_000_000);
        while wall % res != 0 {
            res /= 10;
        }
        self.zeros = Some(res);
    }

    fn value(&self) -> i64 {
        if self.count >= 8 { self.zeros.unwrap_or(1) } else { 1 }
    }
}

/// Votes near the line that most agree on, moved by the jumps of the sniffer's clock.
fn agreeing(votes: &[vote::Vote], frames: &[Frame], line: &Line) -> Vec<vote::Vote> {
    let jumps: Vec<Jump> = jumps::jumps(votes, frames, line);
    let added = |v: &vote::Vote| jumps::added(&jumps, frames[v.frame as usize].number);
    let moved: Vec<vote::Vote> = votes
        .iter()
        .map(|v| vote::Vote {
            wall: v.wall.saturating_add(added(v)),
            diff: v.diff.saturating_sub(added(v)),
            ..*v
        })
        .collect();
    let mut main = *line;
    if !jumps.is_empty() {
        let first = moved.iter().map(|v| v.wall).min().unwrap_or(0);
        let here = (line.boot(first).wrapping_sub(first), 1_000_000_000);
        main = vote::rough(moved.clone(), Some(here)).map_or(main, |r| r.line);
    }
    // Small steps, slews, and what waits in a queue.
    let span_ns = vote::span_ns(votes);
    let width = SAME_NS.saturating_add((span_ns as f64 * 200e-6) as i64);
    let agrees = |v: &vote::Vote, add: i64| {
        let (wall, diff) = (v.wall.saturating_add(add), v.diff.saturating_sub(add));
        main.boot(wall).wrapping_sub(wall.wrapping_add(diff)).saturating_abs() <= width
    };
    // Where exactly a jump was is not known yet: beside it either line may hold.
    let near = |v: &&vote::Vote| {
        let adds = jumps::beside(&jumps, frames[v.frame as usize].number);
        adds.into_iter().any(|add| agrees(v, add))
    };
    votes.iter().filter(near).copied().collect()
}

/// Takes the matches of one capture as they are made.
struct Matched<'a> {
    capture_id: i32,
    found: &'a mut Found,
    pairs: Drawn,
    outcome: &'a mut Outcome,
    counts: &'a mut Vec<Counts>,
    /// Number of the last frame that was matched.
    last: Option<u64>,
    total: u64,
    progress: &'a mut dyn FnMut(Progress),
}

impl stream::Sink for Matched<'_> {
    fn matched(&mut self, f: &Frame, s: &Sighting, m: &Match) -> Result<()> {
        self.found.add(self.capture_id, f, s, m)?;
        if self.last.replace(f.number) != Some(f.number) {
            self.outcome.matched += 1;
            self.outcome.ambiguous += u64::from(m.confidence < 60);
            counts_of(self.counts, f.interface).matched += 1;
        }
        let sure = m.confidence >= 85;
        if sure && (m.key != match_key::TCP_INTERVAL || m.side == Side::Transmitted) {
            pairs_of(f, s, m.side, m.between).for_each(|p| self.pairs.push(p));
        }
        Ok(())
    }

    fn decided(&mut self, frames: u64) {
        (self.progress)(Progress { stage: Stage::Matching, done: frames, total: self.total });
    }
}

/// What a match says of the clock. On a link within the DUT it was between both ends.
fn pairs_of(f: &Frame, s: &Sighting, side: Side, between: Option<(i64, i64)>) -> impl Iterator<Item = Pair> {
    let pair = |at, side, weak, tap| Pair { number: f.number, wall: f.wall, at, side, weak, tap };
    // Another device's edges say nothing of this one's stamps.
    let here = s.is_here(f) || s.is_received_here(f);
    // Freed behind the frame: what is known to be before it is the queue's edge.
    let at = s.left_after().unwrap_or(s.at);
    let tap = if here && s.left_after().is_none() { s.tap } else { (0, 0) };
    let one = between.is_none().then(|| pair(at, side, s.weak, tap));
    let two = between.map(|(sent, got)| {
        [pair(sent, Side::Transmitted, s.weak, (0, 0)), pair(got, Side::Received, false, (0, 0))]
    });
    one.into_iter().chain(two.into_iter().flatten())
}

/// Frame, packet, side, between which ends of a link, sighting.
type Unique = (u32, u64, Side, Option<(i64, i64)>, Sighting);

/// Frames that only one packet fits, and which on their interface are that packet's only frame of that key. Where the
/// packet met the wire more than once with these headers, the way is not known, but its life is.
fn unique_pairs(votes: &[vote::Vote], frames: &[Frame], sightings: &[Sighting]) -> Vec<Pair> {
    let mut votes = votes.to_vec();
    votes.sort_unstable_by_key(|v| (v.frame, v.sighting));
    let mut pairs: Vec<Unique> = Vec::new();
    let mut frames_of: Map<(u64, u64, u32), u8> = Map::default();
    for of_frame in votes.chunk_by(|a, b| a.frame == b.frame) {
        let (f, s) = (&frames[of_frame[0].frame as usize], &sightings[of_frame[0].sighting as usize]);
        if of_frame.iter().any(|v| sightings[v.sighting as usize].packet != s.packet) {
            continue;
        }
        let side = if of_frame.len() == 1 { s.side } else { Side::Unknown };
        let between = match of_frame {
            [_, other] => matching::link(s, &sightings[other.sighting as usize]),
            _ => None,
        };
        let n = frames_of.entry((f.keys.exact, s.packet, f.interface)).or_default();
        *n = n.saturating_add(1);
        pairs.push((of_frame[0].frame, s.packet, side, between, *s));
    }
    pairs.retain(|(frame, packet, ..)| {
        let f = &frames[*frame as usize];
        frames_of.get(&(f.keys.exact, *packet, f.interface)) == Some(&1)
    });
    let of = |(frame, _, side, between, s): Unique| {
        pairs_of(&frames[frame as usize], &s, side, between).collect::<Vec<_>>()
    };
    pairs.into_iter().flat_map(of).collect()
}

/// First and last frame: number and wall time.
type Ends = ((u64, i64), (u64, i64));

#[expect(clippy::too_many_arguments, reason = "one caller, and each is another thing")]
fn write_frames(
    capture_id: i32,
    path: &Path,
    mut plain: Plain,
    clock: Option<&Clock>,
    flows: &Flows,
    found: &mut Found,
    table: &mut TableWriter<FrameRow>,
    counts: &mut Vec<Counts>,
    outcome: &mut Outcome,
    progress: &mut dyn FnMut(Progress),
) -> Result<Option<Ends>> {
    let mut reader = Reader::open(path)?;
    let mut ends: Option<Ends> = None;
    let mut texts = flatten::Texts::default();
    let mut rows = Vec::with_capacity(rows_at_once::<FrameRow>());
    while let Ok(Some(frame)) = reader.next() {
        outcome.frames += 1;
        let this = (frame.number, frame.at.0);
        ends = Some((ends.map_or(this, |e| e.0), this));
        counts_of(counts, frame.interface).frames += 1;
        let mut row = FrameRow {
            capture_id,
            number: frame.number as i64,
            interface: frame.interface as i32,
            wall_ns: frame.at.0,
            boot_ns: clock.map(|c| c.boot(frame.number, frame.at.0).0),
            len_bytes: frame.len_wire as i32,
            captured_bytes: frame.data.len() as i32,
            direction: frame.direction.map(|d| if d == Direction::In { 1 } else { 2 }),
            ..FrameRow::default()
        };
        let print = plain.frame(frame.link_type, frame.data, frame.len_wire);
        outcome.expected += u64::from(flows.expects(&print, row.boot_ns));
        if let Some(m) = print.message.as_ref().filter(|m| m.behind_headers) {
            found.says(capture_id, frame.number, &m.text);
        }
        flatten::frame(&mut row, &print, &mut texts);
        rows.push(row);
        if rows.len() == rows_at_once::<FrameRow>() {
            table.push_all(&rows)?;
            rows.iter_mut().for_each(|row| texts.of_frame(row));
            rows.clear();
        }
        if outcome.frames.is_multiple_of(1 << 17) {
            progress(Progress { stage: Stage::Writing, done: outcome.frames, total: 0 });
        }
    }
    table.push_all(&rows)?;
    if plain.has_keys() {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        outcome.warnings.push(format!(
            "{name}: {} encrypted frames were read with the keys that were given, {} were not (their handshake is not in the capture, or by another \
             key or method)",
            plain.read, plain.unread
        ));
    }
    Ok(ends)
}
