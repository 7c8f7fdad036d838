//! Which frame and which packet are the same data.
//!
//! A packet meets the wire at moments: received at its start, transmitted when it is given to a device, perhaps several
//! times (retransmission of the same skb, a way through several namespaces). Each such moment is a [`Sighting`] with the
//! header fields that the packet had then, so NAT needs nothing special: what came in has the old addresses, what went
//! out the new ones. A frame is matched to a sighting, never to a packet as such.
//!
//! Equal keys ([`keys`]) are brought together by sorting both sides; within a key, frames of one interface and sightings
//! are aligned in order within the clock window ([`exact`]). TCP payload without an equal is then matched by sequence
//! interval ([`interval`]).
//!
//! Memory: some 100 bytes per frame and per sighting, all at once. A log too long for that would be cut into windows of time
//! once the clock is known; nothing here needs more than one window.

pub(crate) mod exact;
pub(crate) mod interval;
pub(crate) mod keys;

use crate::clock::fit::{Place, Segment};
use keys::Keys;

/// Which way across the edge of the DUT.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Side {
    Unknown,
    Received,
    Transmitted,
}

impl Side {
    pub fn code(self) -> i32 {
        self as i32
    }
}

/// A packet at the edge of the DUT.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sighting {
    pub keys: Keys,
    pub packet: u64,
    /// First known (received) or given to the device (transmitted).
    pub at: i64,
    /// The packet's life.
    pub first: i64,
    pub last: i64,
    pub side: Side,
}

/// A frame as far as matching needs it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame {
    pub keys: Keys,
    pub wall: i64,
    pub number: u64,
    pub interface: u32,
    /// Its link addresses say that it went this way.
    pub side: Side,
    /// Between two devices of the DUT.
    pub inside: bool,
    /// Length as given, to tell segments that the sniffer's host merged from single ones.
    pub matched: bool,
}

/// One association, before it is numbered and stored.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Match {
    pub frame: u32,
    pub sighting: u32,
    pub key: i32,
    pub confidence: i32,
    pub alternatives: i32,
    pub side: Side,
    pub seq_offset: Option<i64>,
}

/// The frame may be long on its way in (interrupt moderation), and long in the device's queue on its way out.
const IN_NS: i64 = 50_000_000;
const OUT_NS: i64 = 1_000_000_000;
/// A frame and the packet that it was matched with are at most so far apart.
pub(crate) const MAX_APART_NS: i64 = IN_NS + OUT_NS;
/// Two taps on one host, one packet: the order of a few instructions.
const TAP_NS: i64 = 100_000;

/// Frame time less sighting time, if the two can be the same at all.
#[inline]
pub(crate) fn residual(f: &Frame, s: &Sighting, clock: &Segment) -> Option<i64> {
    if f.side != Side::Unknown && s.side != Side::Unknown && f.side != s.side {
        return None;
    }
    let r = clock.line.boot(f.wall).saturating_sub(s.at);
    let bound = clock.bound_at(f.wall);
    let stays = s.last.saturating_sub(s.at).clamp(0, OUT_NS);
    let (low, high) = match (clock.place, s.side) {
        // On the wire the order is known: no frame is received after the kernel had it, none sent before.
        (Place::Wire, Side::Received) => (-IN_NS - bound, bound),
        (Place::Wire, Side::Transmitted) => (-bound, OUT_NS + bound),
        (Place::Dut, Side::Received) => (-TAP_NS - bound, stays + TAP_NS + bound),
        (Place::Either, Side::Received) => (-IN_NS - bound, stays + TAP_NS + bound),
        (_, Side::Transmitted) => (-TAP_NS - bound, OUT_NS + bound),
        (_, Side::Unknown) => (-IN_NS - bound, OUT_NS + bound),
    };
    (low..=high).contains(&r).then_some(r)
}

/// How well the two fit: least is best, in nanoseconds.
#[inline]
pub(crate) fn cost(f: &Frame, s: &Sighting, residual: i64, bound: i64) -> i64 {
    let mut cost = residual.abs();
    // The wrong way round: within the clock's bound nothing can be said, beyond it hardly.
    let wrong_way = match s.side {
        Side::Received => residual,
        Side::Transmitted => -residual,
        Side::Unknown => 0,
    };
    if wrong_way > bound {
        cost += wrong_way - bound;
    }
    if f.keys.ttl != 0 && s.keys.ttl != 0 && f.keys.ttl != s.keys.ttl {
        cost += 20_000_000;
    }
    if f.keys.ident != 0 && s.keys.ident != 0 && f.keys.ident != s.keys.ident {
        cost += 5_000_000;
    }
    if f.keys.checksum != s.keys.checksum {
        // Left to the device on transmission.
        cost += if s.side == Side::Transmitted { 1_000 } else { 500_000 };
    }
    cost
}

/// All matches of one capture; `frames` and `sightings` in any order.
pub(crate) fn run(
    frames: &mut [Frame],
    sightings: &[Sighting],
    clock: &Segment,
    step: &mut dyn FnMut(u64),
) -> Vec<Match> {
    let mut out = exact::run(frames, sightings, clock, step);
    for m in &out {
        frames[m.frame as usize].matched = true;
    }
    out.extend(interval::run(frames, sightings, clock, step));
    out
}
