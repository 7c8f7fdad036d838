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
//! Both sides are streams in order of time, and a window goes over them ([`stream`]): the clock must be known well enough
//! to say what a frame can reach.

pub(crate) mod exact;
mod interval;
pub(crate) mod keys;
pub(crate) mod stream;
#[cfg(test)]
mod wifi_test;

use crate::clock::fit::Place;
use crate::clock::pieces::Clock;
use crate::spill::{Fixed, Put, Take};
use keys::{Keys, Tcp};

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

    pub fn of(code: u8) -> Side {
        match code {
            1 => Side::Received,
            2 => Side::Transmitted,
            _ => Side::Unknown,
        }
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
    /// All devices that the packet was at, see [`device`]; 0: not known.
    pub devices: u64,
}

impl Sighting {
    /// The frame's interface has the name of one device of the DUT, at which this packet never was.
    pub fn was_elsewhere(&self, f: &Frame) -> bool {
        self.devices != 0 && f.device & !self.devices != 0
    }
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
    /// The one device of the DUT that has the name of the frame's interface; 0: none, or several.
    pub device: u64,
    /// Found an equal.
    pub matched: bool,
}

/// A device, index and namespace, as a bit in a set of devices. Two may share a bit; then they are not told apart.
pub(crate) fn device(netns: u32, ifindex: u32) -> u64 {
    let both = u64::from(netns) << 32 | u64::from(ifindex);
    if ifindex == 0 { 0 } else { 1 << (both.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58) }
}

fn write_keys(k: &Keys, to: &mut Put<'_>) {
    let tcp = k.tcp.unwrap_or(Tcp { flow: 0, seq: 0, len: 0 });
    to.u64(k.exact).u64(tcp.flow).u32(tcp.seq).u32(tcp.len).u32(k.ident).u16(k.checksum);
    to.u8(k.ttl).u8(k.kind as u8).u8(u8::from(k.tcp.is_some()));
}

fn read_keys(from: &mut Take<'_>) -> Keys {
    let exact = from.u64();
    let tcp = Tcp { flow: from.u64(), seq: from.u32(), len: from.u32() };
    let (ident, checksum, ttl, kind) = (from.u32(), from.u16(), from.u8(), i32::from(from.u8()));
    let tcp = (from.u8() != 0).then_some(tcp);
    Keys { exact, tcp, kind, ident, checksum, ttl }
}

const KEYS_BYTES: usize = 33;

impl Fixed for Sighting {
    const BYTES: usize = KEYS_BYTES + 41;
    type Key = i64;

    fn key(&self) -> i64 {
        self.at
    }

    fn write(&self, to: &mut Put<'_>) {
        write_keys(&self.keys, to);
        to.u64(self.packet).i64(self.at).i64(self.first).i64(self.last).u8(self.side as u8).u64(self.devices);
    }

    fn read(from: &mut Take<'_>) -> Self {
        Sighting {
            keys: read_keys(from),
            packet: from.u64(),
            at: from.i64(),
            first: from.i64(),
            last: from.i64(),
            side: Side::of(from.u8()),
            devices: from.u64(),
        }
    }
}

impl Fixed for Frame {
    const BYTES: usize = KEYS_BYTES + 30;
    type Key = i64;

    fn key(&self) -> i64 {
        self.wall
    }

    fn write(&self, to: &mut Put<'_>) {
        write_keys(&self.keys, to);
        to.i64(self.wall).u64(self.number).u32(self.interface);
        to.u8(self.side as u8).u8(u8::from(self.inside)).u64(self.device);
    }

    fn read(from: &mut Take<'_>) -> Self {
        Frame {
            keys: read_keys(from),
            wall: from.i64(),
            number: from.u64(),
            interface: from.u32(),
            side: Side::of(from.u8()),
            inside: from.u8() != 0,
            device: from.u64(),
            matched: false,
        }
    }
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
/// But an interrupt, or work for others, may come between them.
const LATE_NS: i64 = 10_000_000;

/// Frame time less sighting time, if the two can be the same at all.
#[inline]
pub(crate) fn residual(f: &Frame, s: &Sighting, clock: &Clock) -> Option<i64> {
    if f.side != Side::Unknown && s.side != Side::Unknown && f.side != s.side {
        return None;
    }
    let r = clock.boot(f.wall).saturating_sub(s.at);
    let bound = clock.bound_at(f.wall);
    let stays = s.last.saturating_sub(s.at).clamp(0, OUT_NS);
    // A tap on the host is shown the packet before the driver has it, and an interrupt may come between.
    let waited = s.at.saturating_sub(s.first).clamp(0, LATE_NS);
    let (low, high) = match (clock.at(f.wall).place, s.side) {
        // On the wire the order is known: no frame is received after the kernel had it, none sent before.
        (Place::Wire, Side::Received) => (-IN_NS - bound, bound),
        (Place::Wire, Side::Transmitted) => (-bound, OUT_NS + bound),
        (Place::Dut, Side::Received) => (-LATE_NS - bound, stays + TAP_NS + bound),
        (Place::Either, Side::Received) => (-IN_NS - bound, stays + TAP_NS + bound),
        (_, Side::Transmitted) => (-waited - TAP_NS - bound, OUT_NS + bound),
        (_, Side::Unknown) => (-IN_NS - bound, OUT_NS + bound),
    };
    (low..=high).contains(&r).then_some(r)
}

/// Sniffed on the DUT at a device where this packet never was: more than any wait between a packet's first sight and the tap (receive
/// offload holds a list back for milliseconds on a busy host). Where every packet lacks the device it is the same for all.
const ELSEWHERE_NS: i64 = 50_000_000;

/// How well the two fit: least is best, in nanoseconds.
#[inline]
pub(crate) fn cost(f: &Frame, s: &Sighting, residual: i64, clock: &Clock) -> i64 {
    let bound = clock.bound_at(f.wall);
    let mut cost = residual.abs();
    if s.was_elsewhere(f) && (f.inside || clock.at(f.wall).place != Place::Wire) {
        cost += ELSEWHERE_NS;
    }
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

/// Earliest and latest moment of a sighting that a frame of this wall time can be; a frame that comes later reaches from
/// later and to later.
#[inline]
pub(crate) fn reach(clock: &Clock, wall: i64) -> (i64, i64) {
    let (low, high) = clock.between(wall);
    (low.saturating_sub(OUT_NS + TAP_NS), high.saturating_add(IN_NS + TAP_NS))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Line;
    use crate::clock::fit::Segment;
    use crate::query::{clock_method, match_key};

    /// A router sent it by r1 and a server got it by s0, both of this host over an emulated wire: what was sniffed at s0 is the
    /// server's packet although the router's is nearer in time. A sniffer elsewhere may call its interface s0, too; the link addresses
    /// say that it is not elsewhere.
    #[test]
    fn a_frame_is_of_the_packet_at_its_own_device() {
        let clock = |place| {
            let (from, to) = (i64::MIN / 2, i64::MAX / 2);
            let (line, method) = (Line::default(), clock_method::HULL);
            let one = Segment {
                line,
                bound: 1_000,
                drift_bound: 0.0,
                from,
                to,
                received: 0,
                transmitted: 0,
                rejected: 0,
                method,
                place,
            };
            Clock::new(vec![one]).unwrap()
        };
        let keys = Keys { exact: 1, tcp: None, kind: match_key::FULL, ident: 0, checksum: 0, ttl: 64 };
        let (r1, s0) = (device(4_026_532_196, 3), device(4_026_532_248, 3));
        assert_ne!(r1, s0, "an index alone is no device");
        let frame = Frame {
            keys,
            wall: 10_000,
            number: 1,
            interface: 0,
            side: Side::Unknown,
            inside: false,
            device: s0,
            matched: false,
        };
        let sighting = |packet, at, side, devices| Sighting {
            keys,
            packet,
            at,
            first: at,
            last: at + 50_000,
            side,
            devices,
        };
        let sent = sighting(1, 9_900, Side::Transmitted, r1);
        let got = sighting(2, 12_000, Side::Received, s0);
        let nearer = |inside, place| {
            let (clock, frame) = (clock(place), Frame { inside, ..frame });
            let cost = |s: &Sighting| cost(&frame, s, residual(&frame, s, &clock).unwrap(), &clock);
            if cost(&sent) < cost(&got) { 1 } else { 2 }
        };
        assert_eq!(
            (nearer(false, Place::Dut), nearer(false, Place::Wire), nearer(true, Place::Wire)),
            (2, 1, 2)
        );
    }
}
