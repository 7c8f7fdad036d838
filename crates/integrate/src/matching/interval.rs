//! TCP payload by sequence interval: one packet for segmentation and its many frames, many frames and the one packet that
//! receive offload made of them, or frames that the sniffer's own host had merged.
//!
//! Sequence space is cut into blocks of 64 KiB; an interval is entered in each block that it touches, modulo 2^32, so the
//! wrap needs nothing special and turns of the sequence space are distinguished by the clock window alone.

use super::{Frame, Match, Sighting, Windows, cost, residual};
use kpat_model::codes::match_key;
use kpat_model::hash::{Fold, Map};

const BLOCK_BITS: u32 = 16;
/// Blocks of the longest interval that is entered: BIG TCP makes 512 KiB.
const MAX_BLOCKS: u32 = 9;

fn block_key(flow: u64, block: u32) -> u64 {
    Fold::default().with(flow).with(u64::from(block)).value()
}

fn blocks(seq: u32, len: u32) -> impl Iterator<Item = u32> {
    let first = seq >> BLOCK_BITS;
    let count = (((seq & 0xffff) + len.max(1) - 1) >> BLOCK_BITS) + 1;
    (0..count.min(MAX_BLOCKS)).map(move |i| (first + i) & 0xffff)
}

/// The places at which an interval is entered.
pub(super) fn entries(tcp: super::keys::Tcp) -> impl Iterator<Item = u64> {
    blocks(tcp.seq, tcp.len).map(move |b| block_key(tcp.flow, b))
}

/// Frames `left` (with TCP payload, without an equal) and the sightings within whose time they lie; all of these must be
/// here.
pub(super) fn run(
    frames: &[Frame],
    left: &[u32],
    sightings: &[Sighting],
    windows: &Windows,
    out: &mut Vec<Match>,
) {
    if left.is_empty() {
        return;
    }
    // Only flows that still have frames.
    let mut index: Map<u64, Vec<u32>> = Map::default();
    for &i in left {
        if let Some(tcp) = frames[i as usize].keys.tcp {
            index.extend(entries(tcp).map(|e| (e, Vec::new())));
        }
    }
    for (k, s) in sightings.iter().enumerate() {
        if let Some(tcp) = s.keys.tcp {
            for e in entries(tcp) {
                if let Some(list) = index.get_mut(&e) {
                    list.push(k as u32);
                }
            }
        }
    }
    index.values_mut().for_each(|list| list.sort_by_key(|k| sightings[*k as usize].at));
    let mut candidates: Vec<Candidate> = Vec::new();
    for &i in left {
        candidates.clear();
        let f = &frames[i as usize];
        let Some(tcp) = f.keys.tcp else { continue };
        let (low, high) = super::reach(f, windows);
        for e in entries(tcp) {
            let Some(list) = index.get(&e) else { continue };
            let from = list.partition_point(|k| sightings[*k as usize].at < low);
            for &k in &list[from..] {
                let s = &sightings[k as usize];
                if s.at > high {
                    break;
                }
                if let Some(c) = candidate(f, s, k, windows) {
                    candidates.push(c);
                }
            }
        }
        // Cut otherwise than the packet, and far from it, it is of another sending that is not in the log. What is known from a queue
        // alone may have waited there.
        candidates.retain(|c| {
            let s = &sightings[c.sighting as usize];
            c.relation == Relation::Within || s.weak || !super::is_apart(f, s, windows)
        });
        candidates.sort_unstable_by_key(|c| (c.sighting, c.cost));
        candidates.dedup_by_key(|c| c.sighting);
        let first = out.len();
        choose(i, &candidates, sightings, f.bound.saturating_mul(2).saturating_add(windows.scatter), out);
        for m in &mut out[first..] {
            let s = &sightings[m.sighting as usize];
            let others = entries(tcp).filter_map(|e| index.get(&e)).flatten();
            // Part of several sendings, and far from this one.
            if m.confidence <= OTHERS_CONFIDENCE && super::is_apart(f, s, windows) {
                m.confidence = m.confidence.min(65);
            }
            m.here = s.is_here(f) || s.is_received_here(f);
            m.either_end = others
                .map(|k| &sightings[*k as usize])
                .any(|o| overlap(f, o) && super::is_either_end(f, s, o, windows));
        }
    }
}

/// Of a part of several packets that were sent.
const OTHERS_CONFIDENCE: i32 = 80;

#[derive(Clone, Copy)]
struct Candidate {
    cost: i64,
    sighting: u32,
    /// Where the frame begins within the packet.
    offset: i64,
    relation: Relation,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Relation {
    /// The frame lies within the packet.
    Within,
    /// The packet lies within the frame.
    Around,
    Overlaps,
}

/// They have payload in common.
fn overlap(f: &Frame, s: &Sighting) -> bool {
    f.keys.tcp.zip(s.keys.tcp).is_some_and(|(f, s)| {
        let offset = i64::from(f.seq.wrapping_sub(s.seq) as i32);
        f.flow == s.flow && offset < i64::from(s.len) && offset + i64::from(f.len) > 0
    })
}

fn candidate(f: &Frame, s: &Sighting, k: u32, windows: &Windows) -> Option<Candidate> {
    let (ft, st) = (f.keys.tcp?, s.keys.tcp?);
    if ft.flow != st.flow {
        return None;
    }
    // Signed distance modulo 2^32.
    let offset = i64::from(ft.seq.wrapping_sub(st.seq) as i32);
    let (flen, slen) = (i64::from(ft.len), i64::from(st.len));
    if offset >= slen || offset + flen <= 0 {
        return None;
    }
    let relation = if offset >= 0 && offset + flen <= slen {
        Relation::Within
    } else if offset <= 0 && offset + flen >= slen {
        Relation::Around
    } else {
        Relation::Overlaps
    };
    // The same data, sent again.
    if windows.logs && (offset, flen) == (0, slen) && f.keys.contradict(&s.keys) {
        return None;
    }
    let r = residual(f, s, windows, false)?;
    // Segments count their identification up; its distance says nothing.
    let mut s = *s;
    s.keys.ident = 0;
    s.keys.checksum = f.keys.checksum;
    // Of two that fit in time the tighter one: a segment rather than the packet it was cut from.
    let cost = cost(f, &s, r, windows).saturating_add(slen.abs_diff(flen).min(1 << 20) as i64 / 16);
    Some(Candidate { cost, sighting: k, offset, relation })
}

fn choose(frame: u32, candidates: &[Candidate], sightings: &[Sighting], unsure: i64, out: &mut Vec<Match>) {
    let Some(best) = candidates.iter().min_by_key(|c| (c.relation, c.cost)).copied() else { return };
    let packet = |c: &Candidate| sightings[c.sighting as usize].packet;
    let as_well = |c: &Candidate, of: &Candidate| {
        c.sighting != of.sighting
            && packet(c) != packet(of)
            && c.relation == of.relation
            && c.cost - of.cost <= unsure
    };
    let mut give = |c: &Candidate, base: i32, alternatives: i32, others: bool| {
        let mut confidence = base;
        if alternatives > 0 {
            confidence = confidence.min(100 / (1 + alternatives));
        } else if others {
            confidence = confidence.min(OTHERS_CONFIDENCE);
        }
        out.push(Match {
            frame,
            sighting: c.sighting,
            key: match_key::TCP_INTERVAL,
            confidence,
            alternatives,
            side: sightings[c.sighting as usize].side,
            either_end: false,
            here: false,
            seq_offset: Some(c.offset),
            between: None,
        });
    };
    match best.relation {
        Relation::Within => {
            let alternatives = candidates.iter().filter(|c| as_well(c, &best)).count() as i32;
            let others =
                candidates.iter().any(|c| c.relation == Relation::Within && packet(c) != packet(&best));
            give(&best, 93, alternatives, others);
        }
        Relation::Around => {
            // The sniffer's host had merged them: each part is one association.
            for c in candidates.iter().filter(|c| c.relation == Relation::Around) {
                let same_part = |o: &&Candidate| {
                    o.sighting != c.sighting
                        && o.relation == Relation::Around
                        && o.offset == c.offset
                        && packet(o) != packet(c)
                };
                // Of several copies of one part the nearest in time.
                if candidates.iter().any(|o| same_part(&o) && (o.cost, o.sighting) < (c.cost, c.sighting)) {
                    continue;
                }
                let alternatives =
                    candidates.iter().filter(same_part).filter(|o| o.cost - c.cost <= unsure).count() as i32;
                give(c, 88, alternatives, candidates.iter().any(|o| same_part(&o)));
            }
        }
        Relation::Overlaps => {
            let alternatives = candidates.iter().filter(|c| as_well(c, &best)).count() as i32;
            give(&best, 70, alternatives, true);
        }
    }
}
