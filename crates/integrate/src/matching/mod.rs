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
mod order;
pub(crate) mod segments;
pub(crate) mod stream;
#[cfg(test)]
mod wifi_test;

use crate::spill::{Fixed, Put, Take};
use keys::{Keys, Tcp};

/// Which way across the edge of the DUT.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Side {
    Unknown,
    Received,
    Transmitted,
}

impl Side {
    pub(crate) fn code(self) -> i32 {
        self as i32
    }

    pub(crate) fn of(code: u8) -> Side {
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
    /// `at` is a queue's edge, or, see [`Sighting::left_after`], when the packet was freed; when a driver had it is not known.
    pub weak: bool,
    /// Given to a driver that dropped it: sniffers of the device were shown it, nobody beyond it.
    pub lost: bool,
    /// Between which edges a tap of the device stamps it; zeros: not known.
    pub tap: (i64, i64),
    /// The device that it was at then, see [`place`]; 0: not known.
    pub place: u64,
}

impl Sighting {
    /// It left its queue between this and `at`, where nothing else is known of that.
    pub fn left_after(&self) -> Option<i64> {
        (self.weak && self.tap.0 != 0 && self.tap.1 == self.at).then_some(self.tap.0)
    }

    /// The frame's interface has the name of one device of the DUT, at which this packet never was.
    pub fn was_elsewhere(&self, f: &Frame) -> bool {
        self.devices != 0 && f.device & !self.devices != 0
    }

    /// Seen at the very device at which the frame is known to be recorded.
    pub fn is_here(&self, f: &Frame) -> bool {
        f.place != 0 && self.place == f.place
    }

    /// Received where the frame was recorded, or below that, as the frame's stamp tells, which is the device's own.
    pub fn is_received_here(&self, f: &Frame) -> bool {
        let (from, to) = (self.tap.0.saturating_sub(f.bound), self.tap.1.saturating_add(f.bound));
        f.place != 0 && self.side == Side::Received && self.tap.0 != 0 && (from..=to).contains(&f.boot)
    }

    /// A sniffer of that device stamps it as this sighting says: at the device itself, or received below it and then shown there, too,
    /// with the stamp that it had.
    pub fn is_seen_at(&self, place: u64) -> bool {
        self.place == place
            || self.side == Side::Received && self.devices & device((place >> 32) as u32, place as u32) != 0
    }
}

/// What a frame and its capture tell of its way, whatever packet it is of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wire {
    /// Source and destination are both addresses of the DUT's: it may be recorded at either end of the link.
    pub both_ours: bool,
    /// For a group, the source's own host included.
    pub group: bool,
    /// As seen from the device that the capture was made at, where that is known.
    pub way: Side,
    /// As the capture marks it: in or out of the host that captured.
    pub marked: Side,
}

impl Default for Wire {
    fn default() -> Self {
        Wire { both_ours: false, group: false, way: Side::Unknown, marked: Side::Unknown }
    }
}

/// A frame as far as matching needs it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame {
    pub keys: Keys,
    pub wall: i64,
    /// On the DUT's clock as far as that is known yet, and how far it may be off.
    pub boot: i64,
    pub bound: i64,
    pub number: u64,
    pub interface: u32,
    /// Its link addresses say that it went this way.
    pub side: Side,
    /// Between two devices of the DUT.
    pub inside: bool,
    pub wire: Wire,
    /// The one device of the DUT that has the name of the frame's interface; 0: none, or several.
    pub device: u64,
    /// The device at which the capture was made, by proof ([`crate::clock::own`]), see [`place`]; 0: not known.
    pub place: u64,
}

/// A device, index and namespace, as a bit in a set of devices. Two may share a bit; then they are not distinguished.
pub(crate) fn device(netns: u32, ifindex: u32) -> u64 {
    let both = u64::from(netns) << 32 | u64::from(ifindex);
    if ifindex == 0 { 0 } else { 1 << (both.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58) }
}

/// A device, index and namespace, and no other; 0: none.
pub(crate) fn place(netns: u32, ifindex: u32) -> u64 {
    if ifindex == 0 { 0 } else { u64::from(netns) << 32 | u64::from(ifindex) }
}

fn write_keys(k: &Keys, to: &mut Put<'_>) {
    let tcp = k.tcp.unwrap_or(Tcp { flow: 0, seq: 0, len: 0 });
    to.u64(k.exact).u64(tcp.flow).u32(tcp.seq).u32(tcp.len).u32(k.ident).u16(k.checksum);
    to.u16(k.mark).u8(k.ttl).u8(k.kind as u8).u8(u8::from(k.tcp.is_some())).u8(u8::from(k.part));
}

fn read_keys(from: &mut Take<'_>) -> Keys {
    let exact = from.u64();
    let tcp = Tcp { flow: from.u64(), seq: from.u32(), len: from.u32() };
    let (ident, checksum, mark) = (from.u32(), from.u16(), from.u16());
    let (ttl, kind) = (from.u8(), i32::from(from.u8()));
    let tcp = (from.u8() != 0).then_some(tcp);
    Keys { exact, tcp, kind, ident, checksum, ttl, mark, part: from.u8() != 0 }
}

const KEYS_BYTES: usize = 36;

impl Fixed for Sighting {
    const BYTES: usize = KEYS_BYTES + 67;
    type Key = i64;

    fn key(&self) -> i64 {
        self.at
    }

    fn write(&self, to: &mut Put<'_>) {
        write_keys(&self.keys, to);
        to.u64(self.packet).i64(self.at).i64(self.first).i64(self.last).u8(self.side as u8).u64(self.devices);
        to.u8(u8::from(self.lost)).u8(u8::from(self.weak)).i64(self.tap.0).i64(self.tap.1).u64(self.place);
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
            lost: from.u8() != 0,
            weak: from.u8() != 0,
            tap: (from.i64(), from.i64()),
            place: from.u64(),
        }
    }
}

impl Fixed for Frame {
    const BYTES: usize = KEYS_BYTES + 58;
    type Key = i64;

    fn key(&self) -> i64 {
        self.boot
    }

    fn write(&self, to: &mut Put<'_>) {
        write_keys(&self.keys, to);
        to.i64(self.wall).i64(self.boot).i64(self.bound).u64(self.number).u32(self.interface);
        to.u8(self.side as u8).u8(u8::from(self.inside));
        to.u8(u8::from(self.wire.both_ours)).u8(u8::from(self.wire.group));
        to.u8(self.wire.way as u8).u8(self.wire.marked as u8).u64(self.device).u64(self.place);
    }

    fn read(from: &mut Take<'_>) -> Self {
        Frame {
            keys: read_keys(from),
            wall: from.i64(),
            boot: from.i64(),
            bound: from.i64(),
            number: from.u64(),
            interface: from.u32(),
            side: Side::of(from.u8()),
            inside: from.u8() != 0,
            wire: Wire {
                both_ours: from.u8() != 0,
                group: from.u8() != 0,
                way: Side::of(from.u8()),
                marked: Side::of(from.u8()),
            },
            device: from.u64(),
            place: from.u64(),
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
    /// On which side of the frame's stamp the packet's is, as the clock needs it: on a link within the DUT either end bounds it, and
    /// this is no word about the end at which the frame was recorded.
    pub side: Side,
    /// The packet was given away and received again with these headers: the frame may be recorded at either end.
    pub either_end: bool,
    /// The sighting is of the device at which the frame is known to be recorded, or below it: the way is its.
    pub here: bool,
    pub seq_offset: Option<i64>,
    /// On a link within the DUT: when one end gave it away and the other end had it.
    pub between: Option<(i64, i64)>,
}

/// The frame may be long on its way in (interrupt moderation), and long in the device's queue on its way out.
pub(crate) const IN_NS: i64 = 50_000_000;
pub(crate) const OUT_NS: i64 = 1_000_000_000;
/// A frame and the packet that it was matched with are at most so far apart.
pub(crate) const MAX_APART_NS: i64 = IN_NS + OUT_NS;
/// Two taps on one host, one packet: the order of a few instructions.
const TAP_NS: i64 = 100_000;
/// But an interrupt, or work for others, may come between them.
const LATE_NS: i64 = 10_000_000;

/// What all frames of a capture have in common for matching.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Windows {
    /// Stamped by the DUT itself: near the packet's life, not beyond a wire.
    pub own: bool,
    /// Nearly every stamp is off by less than this, besides the clock.
    pub scatter: i64,
    /// The widest bound of a frame.
    pub widest: i64,
    /// Both sides are logs of kernels, which count what they miss: that a packet is missing there is no explanation for one that waited.
    pub logs: bool,
}

/// Frame time less sighting time, if the two can be the same at all. `alone`: nothing else has this key here, so a stamp far beyond the
/// usual scatter is more likely late than the frame another's.
#[inline]
pub(crate) fn residual(f: &Frame, s: &Sighting, w: &Windows, alone: bool) -> Option<i64> {
    // What this host sends to a group, its other namespaces may receive.
    let either = f.wire.group && (s.is_here(f) || s.is_received_here(f));
    if f.side != Side::Unknown && s.side != Side::Unknown && f.side != s.side && !either {
        return None;
    }
    let r = f.boot.saturating_sub(s.at);
    let bound = f.bound.saturating_add(w.scatter).saturating_add(if alone { LATE_NS } else { 0 });
    let stays = s.last.saturating_sub(s.at).clamp(0, OUT_NS);
    // A tap on the host is shown the packet before the driver has it, and an interrupt may come between.
    let waited = s.at.saturating_sub(s.first).clamp(0, LATE_NS);
    // Out of a tunnel it still has the stamp of the packet around it, as long as that took to open.
    let kept = if s.tap.0 != 0 { s.at.saturating_sub(s.tap.0).clamp(LATE_NS, IN_NS) } else { LATE_NS };
    let (low, high) = match (w.own, s.side) {
        // On the wire the order is known: no frame is received after the kernel had it, none sent before.
        (_, Side::Transmitted) if s.left_after().is_some() => (-IN_NS - bound, TAP_NS + bound),
        (false, Side::Received) => (-IN_NS - bound, bound),
        (false, Side::Transmitted) => (-bound, OUT_NS + bound),
        (true, Side::Received) => (-kept - bound, stays + TAP_NS + bound),
        (true, Side::Transmitted) => (-waited - TAP_NS - bound, OUT_NS + bound),
        (_, Side::Unknown) => (-IN_NS - bound, OUT_NS + bound),
    };
    (low..=high).contains(&r).then_some(r)
}

/// Frame and sighting are further apart than packets and their frames are unless they wait.
const APART_NS: i64 = 5_000_000;

/// So far apart that the frame's own packet may as well be missing from the log, and this one be alike.
fn is_apart(f: &Frame, s: &Sighting, w: &Windows) -> bool {
    let apart = f.boot.saturating_sub(s.at).saturating_abs();
    apart > APART_NS.saturating_add(f.bound).saturating_add(w.scatter)
}

/// Confidence of a match that so many others fit as well as, in percent. Where all of them are apart most often none is the
/// right one.
fn one_of(alternatives: i32, apart: bool) -> i32 {
    let n = 1 + alternatives;
    if apart { 80 / n.saturating_mul(n) } else { 100 / n }
}

/// Sniffed on the DUT at a device where this packet never was: more than any wait between a packet's first sight and the tap (receive
/// offload holds a list back for milliseconds on a busy host). Where every packet lacks the device it is the same for all.
const ELSEWHERE_NS: i64 = 50_000_000;
/// Received by a device below the one at which the frame was recorded.
const BELOW_NS: i64 = 1_000_000;

/// How well the two fit: least is best, in nanoseconds.
#[inline]
pub(crate) fn cost(f: &Frame, s: &Sighting, residual: i64, w: &Windows) -> i64 {
    let bound = f.bound.saturating_add(w.scatter);
    let mut cost = residual.abs();
    if f.place != 0 && s.place != 0 {
        cost += if s.is_here(f) {
            0
        } else if s.is_received_here(f) {
            BELOW_NS
        } else {
            ELSEWHERE_NS
        };
    } else if s.was_elsewhere(f) && (f.inside || w.own) {
        cost += ELSEWHERE_NS;
    }
    // The wrong way round: within the clock's bound nothing follows from it, beyond it hardly anything.
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

/// One packet given away and received again with the same headers: a link between two devices of the DUT. The other way round it was
/// bridged, and a frame may be of either link.
pub(crate) fn link(a: &Sighting, b: &Sighting) -> Option<(i64, i64)> {
    let (sent, got) = if a.side == Side::Transmitted { (a, b) } else { (b, a) };
    let is_link = sent.side == Side::Transmitted && got.side == Side::Received && sent.at <= got.at;
    is_link.then_some((sent.at, got.at))
}

/// One packet, given away and then received again, at times that both allow this frame, whatever its addresses are taken to mean. What is
/// sent to a group may be received as another packet, out of a tunnel.
pub(crate) fn is_either_end(f: &Frame, s: &Sighting, other: &Sighting, w: &Windows) -> bool {
    let ttls = [f.keys.ttl, other.keys.ttl];
    (s.packet == other.packet || f.wire.group)
        && (ttls.contains(&0) || ttls[0] == ttls[1])
        && link(s, other).is_some()
        && residual(&Frame { side: Side::Unknown, ..*f }, other, w, true).is_some()
}

/// Which way the frame went at the device that recorded it. Where both ends of its link are the DUT's, matching cannot tell: the capture
/// has to, or the way stays open.
pub(crate) fn way(f: &Frame, m: &Match) -> Side {
    if m.here {
        return m.side;
    }
    if f.wire.both_ours || m.either_end {
        return f.wire.way;
    }
    match (f.wire.way, m.side) {
        (Side::Unknown, way) => way,
        (way, side) if way == side => way,
        _ => Side::Unknown,
    }
}

/// Earliest and latest moment of a sighting that this frame can be; a frame that comes later reaches from later and to later.
#[inline]
pub(crate) fn reach(f: &Frame, w: &Windows) -> (i64, i64) {
    let wide = w.widest.saturating_add(w.scatter);
    (f.boot.saturating_sub(wide + OUT_NS + TAP_NS), f.boot.saturating_add(wide + IN_NS + TAP_NS))
}

#[cfg(test)]
mod tests {
    use super::*;
    use kpat_model::codes::match_key;

    /// A router sent it by r1 and a server got it by s0, both of this host over an emulated wire: what was sniffed at s0 is the
    /// server's packet although the router's is nearer in time. A sniffer elsewhere may call its interface s0, too; the link addresses
    /// say that it is not elsewhere.
    #[test]
    fn a_frame_is_of_the_packet_at_its_own_device() {
        let windows = |own| Windows { own, scatter: 0, widest: 1_000, logs: false };
        let keys = Keys { exact: 1, kind: match_key::FULL, ttl: 64, ..Keys::default() };
        let (r1, s0) = (device(4_026_532_196, 3), device(4_026_532_248, 3));
        assert_ne!(r1, s0, "an index alone is no device");
        let frame = Frame {
            keys,
            wall: 10_000,
            boot: 10_000,
            bound: 1_000,
            number: 1,
            interface: 0,
            side: Side::Unknown,
            inside: false,
            wire: Wire::default(),
            device: s0,
            place: 0,
        };
        let sighting = |packet, at, side, devices| Sighting {
            keys,
            packet,
            at,
            first: at,
            last: at + 50_000,
            side,
            devices,
            weak: false,
            lost: false,
            tap: (0, 0),
            place: 0,
        };
        let sent = sighting(1, 9_900, Side::Transmitted, r1);
        let got = sighting(2, 12_000, Side::Received, s0);
        let nearer = |inside, own| {
            let (w, frame) = (windows(own), Frame { inside, ..frame });
            let cost = |s: &Sighting| cost(&frame, s, residual(&frame, s, &w, true).unwrap(), &w);
            if cost(&sent) < cost(&got) { 1 } else { 2 }
        };
        assert_eq!((nearer(false, true), nearer(false, false), nearer(true, false)), (2, 1, 2));
    }

    /// Given away at one end of a link and received at the other: the nearer moment does not say at which end the frame was recorded,
    /// the capture does, or nobody. At a host that only sends, time and addresses suffice.
    #[test]
    fn the_way_on_a_link_within_the_host_is_the_captures_to_tell() {
        let windows = Windows { own: true, scatter: 0, widest: 100, logs: false };
        let keys = Keys { exact: 1, kind: match_key::FULL, ttl: 64, ..Keys::default() };
        let sighting = |packet, at, side| Sighting {
            keys,
            packet,
            at,
            first: 9_000,
            last: 60_000,
            side,
            devices: 0,
            weak: false,
            lost: false,
            tap: (0, 0),
            place: 0,
        };
        let (sent, got) = (sighting(1, 10_000, Side::Transmitted), sighting(1, 30_000, Side::Received));
        let frame = |wire| Frame {
            keys,
            wall: 10_100,
            boot: 10_100,
            bound: 100,
            number: 1,
            interface: 0,
            side: Side::Unknown,
            inside: false,
            wire,
            device: 0,
            place: 0,
        };
        let logged = |wire: Wire, sightings: &[Sighting]| {
            let (frame, mut matches) = (frame(wire), Vec::new());
            let ss: Vec<u32> = (0..sightings.len() as u32).collect();
            let frames = [frame];
            let bucket = exact::Bucket { frames: &frames, sightings, windows: &windows, fs: &[0], ss: &ss };
            bucket.run(None, |s| (sightings[s as usize].at, u64::from(s)), None, &mut matches);
            matches.iter().map(|m| way(&frame, m)).collect::<Vec<_>>()
        };
        let named = Wire { way: Side::Received, ..Wire::default() };
        let both_ours = Wire { both_ours: true, ..Wire::default() };
        assert_eq!(logged(Wire::default(), &[sent, got]), [Side::Unknown]);
        assert_eq!(logged(named, &[sent, got]), [Side::Received]);
        assert_eq!(logged(Wire::default(), &[sent]), [Side::Transmitted]);
        // The other end's is another packet's, or not in the log.
        assert_eq!(logged(both_ours, &[sent]), [Side::Unknown]);
        // Bridged: received first, sent then. The frame is behind both.
        let bridged = [sighting(1, 5_000, Side::Received), sent];
        assert_eq!(logged(Wire::default(), &bridged), [Side::Transmitted]);
    }
}
