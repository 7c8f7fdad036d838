//! The captures: once for what matching needs, once more (when the clock is known) into the frame table.

use super::{Progress, Stage, flatten};
use crate::clock::fit::{self, Hints, Pair, Place, Segment};
use crate::clock::{Line, vote};
use crate::error::Result;
use crate::hash::Map;
use crate::matching::keys::Keys;
use crate::matching::{self, Frame, Match, Side, Sighting};
use crate::query::{clock_method, match_key};
use kpat_capture::{Direction, Reader, decode};
use kpat_klog::Log;
use kpat_store::TableWriter;
use kpat_store::tables::*;
use std::collections::HashSet;
use std::path::Path;

/// What the packets gained.
#[derive(Clone, Copy, Default)]
pub(super) struct Wire {
    pub frames: i32,
    pub confidence: i32,
}

/// What came of one capture.
#[derive(Default)]
pub(super) struct Outcome {
    pub frames: u64,
    pub matched: u64,
    pub ambiguous: u64,
    pub clocks: Vec<ClockRow>,
    pub warnings: Vec<String>,
}

pub(super) struct Writers<'a> {
    pub frame: &'a mut TableWriter<FrameRow>,
    pub interface: &'a mut TableWriter<InterfaceRow>,
}

/// The DUT as a sniffer sees it.
pub(super) struct Dut<'a> {
    pub log: &'a Log,
    macs: HashSet<[u8; 6]>,
    names: HashSet<&'a str>,
}

impl<'a> Dut<'a> {
    pub fn new(log: &'a Log) -> Dut<'a> {
        let devices = log.devices();
        Dut {
            log,
            macs: devices.iter().filter_map(|d| mac(&d.mac)).filter(|m| *m != [0; 6]).collect(),
            names: devices.iter().map(|d| d.name.as_str()).filter(|n| !n.is_empty()).collect(),
        }
    }

    /// Both ends of the link are the DUT's: a virtual link, or a cable from one port to another.
    fn inside(&self, f: &kpat_model::Footprint) -> bool {
        f.link.as_ref().is_some_and(|l| self.macs.contains(&l.src) && self.macs.contains(&l.dst))
    }

    /// Which way a frame went, if its link addresses say so.
    fn side(&self, f: &kpat_model::Footprint) -> Side {
        let (src, dst) = match (&f.link, &f.wifi) {
            (Some(l), _) => (l.src, l.dst),
            (None, Some(w)) => (w.transmitter, w.receiver),
            (None, None) => return Side::Unknown,
        };
        match (self.macs.contains(&src), self.macs.contains(&dst)) {
            (true, false) => Side::Transmitted,
            (false, true) => Side::Received,
            // Both: a virtual link within the DUT. Neither: bridged, or flooded.
            _ => Side::Unknown,
        }
    }
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

#[allow(clippy::too_many_arguments, reason = "one call, and each of them is another thing")]
pub(super) fn integrate(
    capture_id: i32,
    path: &Path,
    dut: &Dut<'_>,
    sightings: &[Sighting],
    options: &super::Options,
    writers: &mut Writers<'_>,
    on_wire: &mut Map<u64, Wire>,
    associations: &mut Vec<AssociationRow>,
    progress: &mut dyn FnMut(Progress),
) -> Result<Outcome> {
    let mut outcome = Outcome::default();
    let (mut frames, same_names) = read_keys(path, dut, &mut outcome, progress)?;
    let total = frames.len() as u64;
    let hints = Hints { anchors: dut.log.anchors(), same_names, one_way_ns: options.one_way_ns };
    let mut step = |done| progress(Progress { stage: Stage::Matching, done, total });
    let (segment, matches) = match_frames(&mut frames, sightings, &hints, options, &mut outcome, &mut step);
    let mut counts: Vec<Counts> = Vec::new();
    let mut matched: HashSet<u32> = HashSet::with_capacity(matches.len());
    if let Some(segment) = &segment {
        for m in &matches {
            let (f, s) = (&frames[m.frame as usize], &sightings[m.sighting as usize]);
            associations.push(AssociationRow {
                packet_id: s.packet as i64,
                capture_id,
                number: f.number as i64,
                side: m.side.code(),
                key: m.key,
                confidence: m.confidence,
                alternatives: m.alternatives,
                kernel_ns: s.at,
                residual_ns: segment.line.boot(f.wall).wrapping_sub(s.at),
                bound_ns: segment.bound_at(f.wall),
                seq_offset: m.seq_offset,
            });
            let wire = on_wire.entry(s.packet).or_default();
            wire.frames += 1;
            wire.confidence = wire.confidence.max(m.confidence);
            if matched.insert(m.frame) {
                outcome.matched += 1;
                outcome.ambiguous += u64::from(m.confidence < 60);
                counts_of(&mut counts, f.interface).matched += 1;
            }
        }
        outcome.clocks.push(segment.row(capture_id));
    }
    drop(frames);
    drop(matches);
    write_frames(
        capture_id,
        path,
        segment.map(|s| s.line),
        writers.frame,
        &mut counts,
        &mut outcome,
        progress,
    )?;
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

fn counts_of(counts: &mut Vec<Counts>, interface: u32) -> &mut Counts {
    // Interfaces are numbered by the reader, so there are no more than the file describes.
    let i = interface as usize;
    if counts.len() <= i {
        counts.resize(i + 1, Counts::default());
    }
    &mut counts[i]
}

/// Frames that can be recognised; and whether the capture names interfaces that the DUT has.
fn read_keys(
    path: &Path,
    dut: &Dut<'_>,
    outcome: &mut Outcome,
    progress: &mut dyn FnMut(Progress),
) -> Result<(Vec<Frame>, bool)> {
    let mut reader = Reader::open(path)?;
    let mut frames = Vec::new();
    let mut link_types: Vec<u16> = Vec::new();
    let mut done = 0u64;
    loop {
        if link_types.len() < reader.interfaces().len() {
            link_types = reader.interfaces().iter().map(|i| i.link_type).collect();
        }
        match reader.next() {
            Ok(Some(frame)) => {
                done += 1;
                let link_type = link_types.get(frame.interface as usize).copied().unwrap_or(1);
                let print = decode::frame(link_type, frame.data, frame.len_wire);
                if let Some(keys) = Keys::of(&print) {
                    frames.push(Frame {
                        keys,
                        wall: frame.at.0,
                        number: frame.number,
                        interface: frame.interface,
                        side: dut.side(&print),
                        inside: dut.inside(&print),
                        matched: false,
                    });
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
    let mut names = reader.interfaces().iter().map(|i| i.name.as_str()).filter(|n| !n.is_empty()).peekable();
    let same_names = names.peek().is_some() && names.all(|n| dut.names.contains(n));
    progress(Progress { stage: Stage::Captures, done, total: done });
    Ok((frames, same_names))
}

/// Clock and matches; the clock alone (from the DUT's own anchors) where nothing matches.
fn match_frames(
    frames: &mut [Frame],
    sightings: &[Sighting],
    hints: &Hints<'_>,
    options: &super::Options,
    outcome: &mut Outcome,
    step: &mut dyn FnMut(u64),
) -> (Option<Segment>, Vec<Match>) {
    let Some(from) = frames.iter().map(|f| f.wall).min() else { return (None, Vec::new()) };
    let to = frames.iter().map(|f| f.wall).max().unwrap_or(from);
    let near = fit::dut_offset(hints.anchors, from).map(|(offset, _)| (offset, options.clock_tolerance_ns));
    let fallback = near.map(|(offset, tolerance)| Segment {
        line: Line { origin: from, offset, drift: 0.0 },
        bound: tolerance,
        drift_bound: vote::MAX_DRIFT,
        from,
        to,
        received: 0,
        transmitted: 0,
        rejected: 0,
        method: clock_method::ANCHORS,
        place: Place::Either,
    });
    let votes = vote::collect(frames, sightings);
    let Some(rough) = vote::rough(votes, near) else {
        if !frames.is_empty() {
            outcome.warnings.push(
                "no frame of the capture could be recognised in the log: another host's traffic, another time, or a \
                 profile without footprints"
                    .to_owned(),
            );
        }
        // The clock may be anything: to suppose that both hosts keep time would be no bound.
        return (None, Vec::new());
    };
    let pairs = unique_pairs(&rough.votes, frames, sightings);
    let first = fit::fit(&pairs, &rough.line, hints).into_iter().next();
    let guess = match &first {
        // A line from few packets may swing far outside of their time.
        Some(s) => {
            Segment { bound: s.bound.clamp(1_000, 50_000_000), drift_bound: s.drift_bound.min(1e-4), ..*s }
        }
        None => Segment {
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
        },
    };
    let matches = matching::run(frames, sightings, &guess, step);
    let sure: Vec<Pair> = matches
        .iter()
        .filter(|m| m.confidence >= 85)
        .filter(|m| m.key != match_key::TCP_INTERVAL || m.side == Side::Transmitted)
        .map(|m| pair(&frames[m.frame as usize], &sightings[m.sighting as usize], m.side))
        .collect();
    let second = fit::fit(&sure, &guess.line, hints).into_iter().next();
    // Matched, but no match says on which side of the wire: the anchors where they agree with the matches, else these,
    // with the longest time that a frame and its packet may be apart.
    let far = near.is_none_or(|(offset, tolerance)| {
        let found = rough.line.boot(from).wrapping_sub(from);
        found.saturating_sub(offset).saturating_abs() > tolerance
    });
    let fallback = if far {
        Some(Segment {
            line: rough.line,
            bound: matching::MAX_APART_NS,
            drift_bound: vote::MAX_DRIFT,
            method: clock_method::ONE_WAY,
            ..guess
        })
    } else {
        fallback
    };
    let segment = second.or(first).or(fallback);
    if let Some(s) = &segment {
        match s.method {
            clock_method::WIDENED => outcome.warnings.push(format!(
                "the matches contradict one straight clock (a step, or wrong matches); its bound was widened to {} ns",
                s.bound
            )),
            clock_method::ONE_WAY => outcome.warnings.push(format!(
                "the matched traffic goes one way only; the shortest delay is assumed to be at most {} ns",
                options.one_way_ns
            )),
            _ => {}
        }
    }
    (segment, matches)
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
    line: Option<Line>,
    table: &mut TableWriter<FrameRow>,
    counts: &mut Vec<Counts>,
    outcome: &mut Outcome,
    progress: &mut dyn FnMut(Progress),
) -> Result<()> {
    let mut reader = Reader::open(path)?;
    let mut link_types: Vec<u16> = Vec::new();
    loop {
        if link_types.len() < reader.interfaces().len() {
            link_types = reader.interfaces().iter().map(|i| i.link_type).collect();
        }
        let Ok(Some(frame)) = reader.next() else { break };
        outcome.frames += 1;
        counts_of(counts, frame.interface).frames += 1;
        let link_type = link_types.get(frame.interface as usize).copied().unwrap_or(1);
        let mut row = FrameRow {
            capture_id,
            number: frame.number as i64,
            interface: frame.interface as i32,
            wall_ns: frame.at.0,
            boot_ns: line.map(|l| l.boot(frame.at.0)),
            len_bytes: frame.len_wire as i32,
            captured_bytes: frame.data.len() as i32,
            direction: frame.direction.map(|d| if d == Direction::In { 1 } else { 2 }),
            ..FrameRow::default()
        };
        flatten::frame(&mut row, &decode::frame(link_type, frame.data, frame.len_wire));
        table.push(&row)?;
        if outcome.frames.is_multiple_of(1 << 17) {
            progress(Progress { stage: Stage::Writing, done: outcome.frames, total: 0 });
        }
    }
    Ok(())
}
