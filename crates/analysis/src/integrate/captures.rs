//! The captures: once for what matching needs, once more (when the clock is known) into the frame table.

use super::found::Found;
use super::{Progress, Stage, flatten};
use crate::clock::evidence::{Evidence, Gather};
use crate::clock::fit::{self, Hints, Pair, Place, Segment};
use crate::clock::pieces::{self, Clock, Jump};
use crate::clock::sample::{Sample, Seen};
use crate::clock::{Line, vote};
use crate::error::Result;
use crate::hash::{Map, Set};
use crate::matching::keys::Keys;
use crate::matching::{self, Frame, Match, Side, Sighting, stream};
use crate::query::{clock_method, match_key};
use crate::spill::{Sorted, Sorter};
use kpat_capture::{Direction, Reader, decode};
use kpat_klog::Log;
use kpat_store::TableWriter;
use kpat_store::tables::*;
use std::collections::HashMap;
use std::path::Path;

/// What came of one capture.
#[derive(Default)]
pub(super) struct Outcome {
    pub frames: u64,
    pub matched: u64,
    pub ambiguous: u64,
    pub clocks: Vec<ClockRow>,
    pub warnings: Vec<String>,
    /// Frames and sightings that were held at a time, at most.
    pub held: usize,
}

pub(super) struct Writers<'a> {
    pub frame: &'a mut TableWriter<FrameRow>,
    pub interface: &'a mut TableWriter<InterfaceRow>,
}

/// The DUT as a sniffer sees it.
pub(super) struct Dut<'a> {
    pub log: &'a Log,
    macs: Set<u64>,
    /// Devices by name; 0: several have it.
    names: HashMap<&'a str, u64>,
}

impl<'a> Dut<'a> {
    pub fn new(log: &'a Log) -> Dut<'a> {
        let devices = log.devices();
        let mut names: HashMap<&str, u64> = HashMap::new();
        for d in devices.iter().filter(|d| !d.name.is_empty()) {
            let device = matching::device(d.netns, d.ifindex);
            names.entry(&d.name).and_modify(|n| *n = if *n == device { device } else { 0 }).or_insert(device);
        }
        Dut {
            log,
            macs: devices.iter().filter_map(|d| mac(&d.mac)).map(number).filter(|m| *m != 0).collect(),
            names,
        }
    }

    /// Both ends of the link are the DUT's: a virtual link, or a cable from one port to another.
    fn inside(&self, f: &kpat_model::Footprint) -> bool {
        f.link
            .as_ref()
            // Nothing has the address 0 but the loopback device, which no frame leaves.
            .is_some_and(|l| [l.src, l.dst].map(number).iter().all(|m| *m == 0 || self.macs.contains(m)))
    }

    fn device(&self, name: &str) -> u64 {
        self.names.get(name).copied().unwrap_or(0)
    }

    /// Which way a frame went, if its link addresses say so.
    fn side(&self, f: &kpat_model::Footprint) -> Side {
        let (src, dst) = match (&f.link, &f.wifi) {
            (Some(l), _) => (l.src, l.dst),
            (None, Some(w)) => (w.transmitter, w.receiver),
            (None, None) => return Side::Unknown,
        };
        match (self.macs.contains(&number(src)), self.macs.contains(&number(dst))) {
            (true, false) => Side::Transmitted,
            (false, true) => Side::Received,
            // Both: a virtual link within the DUT. Neither: bridged, or flooded.
            _ => Side::Unknown,
        }
    }
}

fn number(mac: [u8; 6]) -> u64 {
    mac.iter().fold(0, |v, b| v << 8 | u64::from(*b))
}

fn mac(text: &str) -> Option<[u8; 6]> {
    let mut out = [0; 6];
    let mut parts = text.split(':');
    for b in &mut out {
        *b = u8::from_str_radix(parts.next()?, 16).ok()?;
    }
    parts.next().is_none().then_some(out)
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
}

/// What all captures have in common.
pub(super) struct Join<'a> {
    pub dut: Dut<'a>,
    pub met: &'a Met,
    pub options: &'a super::Options,
    /// For rows that wait.
    pub early: &'a Path,
    pub found: Found,
}

impl Join<'_> {
    pub fn integrate(
        &mut self,
        capture_id: i32,
        path: &Path,
        writers: &mut Writers<'_>,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Outcome> {
        let mut outcome = Outcome::default();
        let mut counts: Vec<Counts> = Vec::new();
        let read = self.read_keys(path, &mut outcome, progress)?;
        let clock = self.match_frames(capture_id, read, &mut outcome, &mut counts, progress)?;
        if let Some(c) = &clock {
            outcome.clocks.extend(c.rows(capture_id));
        }
        write_frames(capture_id, path, clock.as_ref(), writers.frame, &mut counts, &mut outcome, progress)?;
        self.found.set_clock(capture_id, clock.map(|c| c.clock));
        let reader = Reader::open(path)?;
        for (i, c) in counts.iter().enumerate() {
            let interface = reader.interfaces().get(i);
            writers.interface.push(&InterfaceRow {
                capture_id,
                interface: i as i32,
                name: interface.map(|f| f.name.clone()).unwrap_or_default(),
                link_type: interface.map_or(0, |f| i32::from(f.link_type)),
                frames: c.frames,
                matched: c.matched,
            })?;
        }
        Ok(outcome)
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

/// The clock of a capture, and by how much the times in the file were moved before it holds.
struct Moved {
    clock: Clock,
    jumps: Vec<Jump>,
    /// Where the jumps are, in moved time.
    cuts: Vec<i64>,
}

impl Moved {
    fn boot(&self, number: u64, wall: i64) -> i64 {
        self.clock.boot(wall.saturating_add(pieces::added(&self.jumps, number)))
    }

    /// The segments by the times in the file.
    fn rows(&self, capture_id: i32) -> Vec<ClockRow> {
        let row = |s: &Segment| {
            let piece = self.cuts.partition_point(|c| *c <= s.from);
            let add = self.jumps.get(piece).map_or(0, |j| j.add);
            let row = s.row(capture_id);
            ClockRow {
                from_wall_ns: row.from_wall_ns.saturating_sub(add),
                to_wall_ns: row.to_wall_ns.saturating_sub(add),
                offset_ns: row.offset_ns.saturating_add(add),
                ..row
            }
        };
        self.clock.segments.iter().map(row).collect()
    }
}

/// Frames that can be recognised.
struct Frames {
    sorted: Sorted<Frame>,
    sample: Sample,
    /// First and last wall time.
    span: Option<(i64, i64)>,
    /// The capture names interfaces that the DUT has.
    same_names: bool,
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
        let mut done = 0u64;
        loop {
            match reader.next() {
                Ok(Some(frame)) => {
                    done += 1;
                    let print = decode::frame(frame.link_type, frame.data, frame.len_wire);
                    if let Some(keys) = Keys::of(&print) {
                        let (wall, number, interface) = (frame.at.0, frame.number, frame.interface);
                        let own = reader.interfaces().get(interface as usize);
                        let frame = Frame {
                            keys,
                            wall,
                            number,
                            interface,
                            side: dut.side(&print),
                            inside: dut.inside(&print),
                            device: own.map_or(0, |i| dut.device(&i.name)),
                            matched: false,
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
        // Every name, so that a sniffer with an `eth0` of its own beside others is not taken for the DUT.
        let mut names =
            reader.interfaces().iter().map(|i| i.name.as_str()).filter(|n| !n.is_empty()).peekable();
        let same_names = names.peek().is_some() && names.all(|n| dut.names.contains_key(n));
        progress(Progress { stage: Stage::Captures, done, total: done });
        Ok(Frames { sorted: frames.finish()?, sample, span, same_names })
    }

    /// Matches the frames; gives the clock, `None` where nothing matches.
    fn match_frames(
        &mut self,
        capture_id: i32,
        read: Frames,
        outcome: &mut Outcome,
        counts: &mut Vec<Counts>,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Option<Moved>> {
        let Frames { mut sorted, sample, span, same_names } = read;
        let Some((mut from, mut to)) = span else { return Ok(None) };
        let options = self.options;
        let hints = Hints {
            anchors: self.dut.log.anchors(),
            same_names,
            late_first: !self.dut.log.meta().netns.is_empty(),
            one_way_ns: options.one_way_ns,
        };
        let near =
            fit::dut_offset(hints.anchors, from).map(|(offset, _)| (offset, options.clock_tolerance_ns));
        let (mut sampled, seen) = sample.finish(&self.met.sightings)?;
        let votes = vote::collect(&sampled, &seen);
        let Some(mut rough) = vote::rough(votes.clone(), near) else {
            if sorted.len() > 0 {
                outcome.warnings.push(
                    "no frame of the capture could be recognised in the log: another host's traffic, another time, or \
                     a profile without footprints"
                        .to_owned(),
                );
            }
            // The clock may be anything: to suppose that both hosts keep time would be no bound.
            return Ok(None);
        };
        let jumps = pieces::jumps(&votes, &sampled, &rough.line);
        let mut cuts = Vec::new();
        if !jumps.is_empty() {
            let mut votes = votes;
            for v in &mut votes {
                let add = pieces::added(&jumps, sampled[v.frame as usize].number);
                (v.wall, v.diff) = (v.wall.saturating_add(add), v.diff.saturating_sub(add));
            }
            for f in &mut sampled {
                f.wall = f.wall.saturating_add(pieces::added(&jumps, f.number));
            }
            let here = (rough.line.boot(from).wrapping_sub(from), 1_000_000_000);
            rough = vote::rough(votes, Some(here)).unwrap_or(rough);
            (sorted, cuts) = self.move_frames(&sorted, &jumps)?;
            (from, to) = (from.min(*cuts.first().unwrap_or(&from)), cuts[cuts.len() - 1]);
            cuts.pop();
            cuts.remove(0);
        }
        let pairs = Evidence::of(unique_pairs(&rough.votes, &sampled, &seen));
        drop((sampled, seen));
        let first = pieces::fit(&pairs, &rough.line, &hints, &cuts);
        drop(pairs);
        let unknown = Segment {
            line: rough.line,
            bound: 5_000_000,
            drift_bound: 0.0,
            from,
            to,
            received: 0,
            transmitted: 0,
            rejected: 0,
            method: clock_method::ANCHORS,
            place: Place::Either,
        };
        // A line from few packets may swing far outside of their time.
        let loose = |s: &Segment| Segment {
            bound: s.bound.clamp(1_000, 50_000_000),
            drift_bound: s.drift_bound.min(1e-4),
            ..*s
        };
        let main = first.first().copied().unwrap_or(unknown);
        let Some(guess) =
            Clock::new(if first.is_empty() { vec![unknown] } else { first.iter().map(loose).collect() })
        else {
            return Ok(None);
        };
        let mut sink = Matched {
            capture_id,
            found: &mut self.found,
            gather: Gather::new(main.line, from, to),
            outcome: &mut *outcome,
            counts,
            last: None,
            total: sorted.len(),
            progress,
        };
        let (mut frames, mut sightings) = (sorted.iter()?, self.met.sightings.iter()?);
        let held = stream::run(&mut || frames.next(), &mut || sightings.next(), &guess, &mut sink)?;
        let sure = sink.gather.finish();
        outcome.held = held;
        let second = pieces::fit(&sure, &main.line, &hints, &cuts);
        // Matched, but no match says on which side of the wire: the anchors where they agree with the matches, else
        // these, with the longest time that a frame and its packet may be apart.
        let agree = near.filter(|(offset, tolerance)| {
            let found = rough.line.boot(from).wrapping_sub(from);
            found.saturating_sub(*offset).saturating_abs() <= *tolerance
        });
        let fallback = match agree {
            Some((offset, tolerance)) => Segment {
                line: Line { origin: from, offset, drift: 0.0 },
                bound: tolerance,
                drift_bound: vote::MAX_DRIFT,
                ..unknown
            },
            None => Segment {
                bound: matching::MAX_APART_NS,
                drift_bound: vote::MAX_DRIFT,
                method: clock_method::ONE_WAY,
                line: rough.line,
                ..loose(&main)
            },
        };
        let segments = [second, first].into_iter().find(|s| !s.is_empty()).unwrap_or_else(|| vec![fallback]);
        if let Some(s) = segments.iter().filter(|s| s.method == clock_method::WIDENED).max_by_key(|s| s.bound)
        {
            outcome.warnings.push(format!(
                "the matches contradict every clock of few straight pieces (wrong matches?); its bound was widened to {} ns",
                s.bound
            ));
        }
        if segments.iter().any(|s| s.method == clock_method::ONE_WAY) {
            outcome.warnings.push(format!(
                "the matched traffic goes one way only; the shortest delay is assumed to be at most {} ns",
                options.one_way_ns
            ));
        }
        Ok(Clock::new(segments).map(|clock| Moved { clock, jumps, cuts }))
    }
}

impl Join<'_> {
    /// The frames once more, moved, and where each jump and the last frame then are.
    fn move_frames(&self, sorted: &Sorted<Frame>, jumps: &[Jump]) -> Result<(Sorted<Frame>, Vec<i64>)> {
        let mut moved = Sorter::new(self.early, "moved", 1 << 18);
        let mut firsts = vec![i64::MAX; jumps.len()];
        let mut last = i64::MIN;
        let mut all = sorted.iter()?;
        while let Some(mut f) = all.next()? {
            f.wall = f.wall.saturating_add(pieces::added(jumps, f.number));
            let i = jumps.partition_point(|j| j.number <= f.number).saturating_sub(1);
            firsts[i] = firsts[i].min(f.wall);
            last = last.max(f.wall);
            moved.push(f)?;
        }
        firsts.push(last);
        Ok((moved.finish()?, firsts))
    }
}

/// Takes the matches of one capture as they are made.
struct Matched<'a> {
    capture_id: i32,
    found: &'a mut Found,
    gather: Gather,
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
            self.gather.push(pair(f, s, m.side));
        }
        Ok(())
    }

    fn decided(&mut self, frames: u64) {
        (self.progress)(Progress { stage: Stage::Matching, done: frames, total: self.total });
    }
}

fn pair(f: &Frame, s: &Sighting, side: Side) -> Pair {
    Pair { wall: f.wall, at: s.at, first: s.first, last: s.last, side, inside: f.inside }
}

/// Frames that only one packet fits, and which on their interface are that packet's only frame of that key. Where the
/// packet met the wire more than once with these headers, the way is not known, but its life is.
fn unique_pairs(votes: &[vote::Vote], frames: &[Frame], sightings: &[Sighting]) -> Vec<Pair> {
    let mut votes = votes.to_vec();
    votes.sort_unstable_by_key(|v| (v.frame, v.sighting));
    let mut pairs: Vec<(u32, u64, Pair)> = Vec::new();
    let mut frames_of: Map<(u64, u64, u32), u8> = Map::default();
    for of_frame in votes.chunk_by(|a, b| a.frame == b.frame) {
        let (f, s) = (&frames[of_frame[0].frame as usize], &sightings[of_frame[0].sighting as usize]);
        if of_frame.iter().any(|v| sightings[v.sighting as usize].packet != s.packet) {
            continue;
        }
        let side = if of_frame.len() == 1 { s.side } else { Side::Unknown };
        let n = frames_of.entry((f.keys.exact, s.packet, f.interface)).or_default();
        *n = n.saturating_add(1);
        pairs.push((of_frame[0].frame, s.packet, pair(f, s, side)));
    }
    pairs.retain(|(frame, packet, _)| {
        let f = &frames[*frame as usize];
        frames_of.get(&(f.keys.exact, *packet, f.interface)) == Some(&1)
    });
    pairs.into_iter().map(|(_, _, pair)| pair).collect()
}

fn write_frames(
    capture_id: i32,
    path: &Path,
    clock: Option<&Moved>,
    table: &mut TableWriter<FrameRow>,
    counts: &mut Vec<Counts>,
    outcome: &mut Outcome,
    progress: &mut dyn FnMut(Progress),
) -> Result<()> {
    let mut reader = Reader::open(path)?;
    while let Ok(Some(frame)) = reader.next() {
        outcome.frames += 1;
        counts_of(counts, frame.interface).frames += 1;
        let mut row = FrameRow {
            capture_id,
            number: frame.number as i64,
            interface: frame.interface as i32,
            wall_ns: frame.at.0,
            boot_ns: clock.map(|c| c.boot(frame.number, frame.at.0)),
            len_bytes: frame.len_wire as i32,
            captured_bytes: frame.data.len() as i32,
            direction: frame.direction.map(|d| if d == Direction::In { 1 } else { 2 }),
            ..FrameRow::default()
        };
        flatten::frame(&mut row, &decode::frame(frame.link_type, frame.data, frame.len_wire));
        table.push(&row)?;
        if outcome.frames.is_multiple_of(1 << 17) {
            progress(Progress { stage: Stage::Writing, done: outcome.frames, total: 0 });
        }
    }
    Ok(())
}
