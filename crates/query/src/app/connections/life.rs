//! The life of each range of bytes in one direction of a connection, from the call that wrote it to the call that read it.
//!
//! A crossing only says "these bytes were here then", whichever end and in whatever order it is logged: what is asked of two
//! clocks' times is their bound, not their order. A range is cut where its bytes went on apart.

use super::pair::apart;
use super::{Leg, Spread};
use crate::app::given_on;
use kpat_model::Crossing;
use kpat_store::tables::AppEventRow;
use std::collections::BTreeMap;

/// In the order of the way. The end of the call that sends is not one of them: what it gave may be gone by then.
pub const STAGES: [Crossing; 9] = [
    Crossing::Ask,
    Crossing::ToTransport,
    Crossing::ToNetwork,
    Crossing::ToDevice,
    Crossing::ToDriver,
    Crossing::FromDevice,
    Crossing::FromNetwork,
    Crossing::ToSocket,
    Crossing::Recv,
];
/// Place of the first stage after writing, of the first at the other end, of reading.
const SENT: usize = 2;
const CAME: usize = 5;
const READ: usize = STAGES.len() - 1;

/// Does it happen at the end that receives?
pub fn is_received(c: Crossing) -> bool {
    matches!(c, Crossing::FromDevice | Crossing::FromNetwork | Crossing::ToSocket | Crossing::Recv)
}

/// After having been read a range waits so long for what is logged late.
const GRACE_NS: i64 = 100_000_000;
/// More ranges than this on their way are not a queue but an end that does not show its reads.
const MOST: usize = 1 << 16;

/// A range of bytes that went together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Life {
    /// In the sender's stream.
    pub offset: i64,
    pub bytes: i64,
    /// When it was at each of [`STAGES`], by the first end's clock; `None`: not seen there.
    pub at: [Option<i64>; STAGES.len()],
    /// A call that was over had given it to the socket.
    pub taken: bool,
    /// It was sent again before it came.
    pub again: bool,
}

impl Life {
    /// The last stage at which it was seen.
    pub fn reached(&self) -> Option<Crossing> {
        self.at.iter().rposition(Option::is_some).map(|i| STAGES[i])
    }

    /// Its bytes are the application's: a call gave them, or they were sent and so given.
    fn written(&self) -> bool {
        self.taken
            || (self.at[..SENT].iter().any(Option::is_some) && self.at[SENT..].iter().any(Option::is_some))
    }
}

#[derive(Clone, Copy, Default)]
struct Piece {
    to: i64,
    at: [Option<i64>; STAGES.len()],
    taken: bool,
    again: bool,
    /// The device's queue got it a second time before it came.
    twice: bool,
}

impl Piece {
    fn came(&self) -> bool {
        self.at[CAME..].iter().any(Option::is_some)
    }
}

/// What became of the bytes of one direction. `written` + `before` + `unseen_writes` = `read` + what is in `left` + `unseen_reads`.
#[derive(Clone, Debug, Default)]
pub struct Direction {
    /// Given by the application; `None`: this kernel shows no writes (or there were none).
    pub written: Option<i64>,
    /// Taken by the other; `None`: that kernel shows no reads (or there were none).
    pub read: Option<i64>,
    /// Not read when the log ends (or the connection did), by the crossing that they had reached; `None`: not even sent.
    pub left: BTreeMap<Option<Crossing>, i64>,
    /// Came, or were on their way, without having been written since the log began.
    pub before: i64,
    /// Came though nothing is known of the write behind writes that are known. Unexplained.
    pub unseen_writes: i64,
    /// Not read, but bytes behind them were. Unexplained.
    pub unseen_reads: i64,
    /// Bytes that came only after having been sent again.
    pub again: i64,
    /// Ranges.
    pub ranges: u64,
    /// From the write to the read, weighted by bytes.
    pub total_ns: Spread,
    pub legs: Vec<Leg>,
    /// Bytes that by these times were at the other end before they were sent, by more than the clocks' bound.
    pub impossible: i64,
}

impl Direction {
    pub fn bytes(&self) -> i64 {
        self.written.unwrap_or(0).max(self.read.unwrap_or(0))
    }

    pub fn unexplained(&self) -> i64 {
        self.unseen_writes + self.unseen_reads
    }
}

/// The ranges on their way in one direction.
pub(crate) struct Lives {
    pieces: BTreeMap<i64, Piece>,
    /// To be added to the receiver's offsets.
    shift: i64,
    /// Both ends have been seen, so whole turns of the sequence numbers are known.
    aligned: bool,
    top: [Option<i64>; 2],
    /// Everything before it is over.
    floor: i64,
    /// First byte written in this log.
    first_written: Option<i64>,
    read_to: i64,
    bound: i64,
    writes: bool,
    reads: bool,
    out: Direction,
    legs: BTreeMap<(Crossing, Crossing, bool), Spread>,
}

impl Lives {
    /// Sequence numbers of offset 0 at both ends; twice the clocks' bound.
    pub fn new(sent_seq: Option<i64>, received_seq: Option<i64>, bound: i64) -> Lives {
        Lives {
            pieces: BTreeMap::new(),
            shift: sent_seq.zip(received_seq).map_or(0, |(s, r)| apart(s, r)),
            aligned: false,
            top: [None; 2],
            floor: i64::MIN,
            first_written: None,
            read_to: i64::MIN,
            bound,
            writes: false,
            reads: false,
            out: Direction::default(),
            legs: BTreeMap::new(),
        }
    }

    /// A crossing at `at`, by the first end's clock.
    pub fn pass(&mut self, what: Crossing, e: &AppEventRow, at: i64, over: &mut dyn FnMut(&Life)) {
        let Some(offset) = e.offset.filter(|_| e.size_bytes > 0) else { return };
        let received = is_received(what);
        self.align(received, offset);
        let from = if received { offset + self.shift } else { offset };
        let to = from + e.size_bytes;
        match STAGES.iter().position(|s| *s == what) {
            Some(i) if i < SENT => self.mark(from, to, true, &mut |p| {
                // what a call did not get rid of the next one gives again
                if !p.taken && p.at[SENT..].iter().all(Option::is_none) || p.at[i].is_none() {
                    p.at[i] = Some(at);
                }
            }),
            Some(_) if what == Crossing::ToDevice && given_on(e) => return,
            // It has left the queue when the last device has it.
            Some(i) if given_on(e) => self.mark(from, to, true, &mut |p| {
                if !p.again && !p.came() {
                    p.at[i] = Some(at);
                }
            }),
            Some(i) => self.mark(from, to, true, &mut |p| {
                p.twice |= what == Crossing::ToDevice && p.at[i].is_some() && !p.came();
                p.at[i] = p.at[i].or(Some(at));
            }),
            None if what == Crossing::Send => self.mark(from, to, true, &mut |p| p.taken = true),
            None if what == Crossing::Retransmit => {
                // Told when it has been sent: over a virtual link it may have come by then.
                self.mark(from, to, false, &mut |p| p.again |= p.twice || !p.came());
            }
            None => return,
        }
        if matches!(what, Crossing::Send | Crossing::ToTransport) {
            self.writes = true;
            self.first_written = Some(self.first_written.map_or(from, |f| f.min(from)));
        }
        if what == Crossing::Recv {
            self.reads = true;
            self.read_to = self.read_to.max(to);
        }
        self.settle(at, over);
    }

    /// The other end may be whole turns of the sequence numbers away, if it was not seen from the beginning.
    fn align(&mut self, received: bool, offset: i64) {
        let side = usize::from(received);
        if self.aligned {
            return;
        }
        self.top[side] = Some(self.top[side].map_or(offset, |t| t.max(offset)));
        if let [Some(sent), Some(came)] = self.top {
            let turns = ((sent - came - self.shift) as f64 / (1u64 << 32) as f64).round() as i64;
            self.shift += turns << 32;
            self.aligned = true;
            // what came first was put down at a place that nobody knew
            if turns != 0 && !received {
                let moved = std::mem::take(&mut self.pieces);
                self.pieces = moved
                    .into_iter()
                    .map(|(from, p)| (from + (turns << 32), Piece { to: p.to + (turns << 32), ..p }))
                    .collect();
            }
        }
    }

    fn cut(&mut self, at: i64) {
        if let Some((&from, p)) = self.pieces.range_mut(..at).next_back()
            && p.to > at
        {
            let rest = *p;
            p.to = at;
            debug_assert!(from < at);
            self.pieces.insert(at, rest);
        }
    }

    fn mark(&mut self, from: i64, to: i64, make: bool, f: &mut dyn FnMut(&mut Piece)) {
        let mut at = from.max(self.floor);
        if at >= to {
            return;
        }
        self.cut(at);
        self.cut(to);
        while at < to {
            let next = self.pieces.range(at..to).next().map_or(to, |(start, _)| *start);
            if next > at {
                if make {
                    let mut p = Piece { to: next, ..Piece::default() };
                    f(&mut p);
                    self.pieces.insert(at, p);
                }
                at = next;
            } else if let Some(p) = self.pieces.get_mut(&at) {
                f(p);
                at = p.to;
            }
        }
    }

    fn settle(&mut self, now: i64, over: &mut dyn FnMut(&Life)) {
        while let Some((&from, p)) = self.pieces.first_key_value() {
            let read = p.at[READ];
            let passed = p.to <= self.read_to;
            let latest = p.at.iter().flatten().max().copied().unwrap_or(now);
            let done = (read.is_some() || passed) && latest + self.bound + GRACE_NS < now;
            if !done && self.pieces.len() <= MOST {
                return;
            }
            let Some(p) = self.pieces.remove(&from) else { return };
            self.floor = p.to;
            self.over(from, p, over);
        }
    }

    fn over(&mut self, from: i64, mut p: Piece, over: &mut dyn FnMut(&Life)) {
        let bytes = p.to - from;
        // A busy socket's backlog merges segments, and the whole is logged with the time of its first: not this one.
        let sent_at = p.at[SENT..CAME].iter().rev().flatten().next();
        if sent_at.zip(p.at[CAME]).is_some_and(|(sent, came)| came < sent - self.bound) {
            p.at[CAME] = None;
        }
        let life = Life { offset: from, bytes, at: p.at, taken: p.taken, again: p.again };
        let came = p.at[CAME..].iter().any(Option::is_some);
        let sent = p.at[SENT..].iter().any(Option::is_some);
        if !p.taken && !sent {
            return; // a call wanted to give it; no other has, and it went nowhere
        }
        let (written, read) = (life.written(), p.at[READ].is_some());
        let add = |to: &mut Option<i64>| *to = Some(to.unwrap_or(0) + bytes);
        let o = &mut self.out;
        if written {
            add(&mut o.written);
        } else if self.writes && self.first_written.is_some_and(|f| from >= f) {
            o.unseen_writes += bytes;
        } else {
            o.before += bytes;
        }
        if read {
            add(&mut o.read);
        } else if p.to <= self.read_to {
            o.unseen_reads += bytes;
        } else {
            *o.left.entry(life.reached().filter(|_| sent)).or_default() += bytes;
        }
        o.ranges += 1;
        if p.again && came {
            o.again += bytes;
        }
        let mut last: Option<(usize, i64)> = None;
        for (i, at) in p.at.iter().enumerate() {
            let Some(at) = *at else { continue };
            if let Some((before, since)) = last {
                let wire = before < CAME && i >= CAME;
                if wire && at - since < -self.bound {
                    o.impossible += bytes;
                }
                let leg = (STAGES[before], STAGES[i], wire && p.again);
                self.legs.entry(leg).or_default().add(at - since, bytes as u64);
            }
            last = Some((i, at));
        }
        if let (Some(written), Some(read)) = (p.at[..SENT].iter().flatten().next(), p.at[READ]) {
            o.total_ns.add(read - written, bytes as u64);
        }
        over(&life);
    }

    /// Something that can be read was read by no call in the log, though there are others.
    pub fn is_left(&self) -> bool {
        self.reads && self.pieces.values().any(|p| p.at[READ].is_none() && p.at[READ - 1].is_some())
    }

    /// By the receiver's state at last all before this number was taken, whichever way. `start`: the number of its offset 0.
    pub fn taken_to(&mut self, number: i64, start: i64) {
        let behind = number.wrapping_sub(start).wrapping_sub(self.read_to.wrapping_sub(self.shift)) as i32;
        let came = self.pieces.values().filter(|p| p.at[READ - 1].is_some()).map(|p| p.to).max();
        // The end of the stream has a number, too.
        let to = came.map_or(self.read_to, |came| came.min(self.read_to + i64::from(behind)));
        if behind > 0 && to > self.read_to {
            self.cut(to);
            self.read_to = to;
        }
    }

    /// The log is at its end. `related`: the clocks are.
    pub fn finish(mut self, related: bool, over: &mut dyn FnMut(&Life)) -> Direction {
        for (from, p) in std::mem::take(&mut self.pieces) {
            self.over(from, p, over);
        }
        if !related {
            self.legs.retain(|(a, b, _), _| is_received(*a) == is_received(*b));
            self.out.total_ns = Spread::default();
        }
        self.out.legs =
            self.legs.into_iter().map(|((from, to, again), ns)| Leg { from, to, again, ns }).collect();
        if !self.reads {
            self.out.read = None;
        }
        self.out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Crossing::*;

    fn logged(events: &[(Crossing, i64, i64, i64)], seqs: (i64, i64)) -> (Direction, Vec<Life>) {
        let mut l = Lives::new(Some(seqs.0), Some(seqs.1), 0);
        let mut lives = Vec::new();
        for &(what, at, offset, size_bytes) in events {
            let e = AppEventRow {
                at_ns: at,
                offset: Some(offset),
                size_bytes,
                segments: 1,
                ..Default::default()
            };
            l.pass(what, &e, at, &mut |life| lives.push(*life));
        }
        let d = l.finish(true, &mut |life| lives.push(*life));
        (d, lives)
    }

    #[test]
    fn what_was_taken_by_no_call_is_not_unread() {
        // The receiver counts from 7 bytes later; by its state all is taken up to there, and the end of the stream.
        let found = |number: i64| {
            let mut l = Lives::new(Some(1000), Some(1007), 0);
            let calls = [(ToTransport, 0, 3000), (ToDriver, 0, 3000), (ToSocket, 0, 2993), (Recv, 0, 493)];
            for (at, (what, offset, size_bytes)) in calls.into_iter().enumerate() {
                let e = AppEventRow { offset: Some(offset), size_bytes, segments: 1, ..Default::default() };
                l.pass(what, &e, at as i64, &mut |_| {});
            }
            assert!(l.is_left());
            l.taken_to(number, 1007);
            let d = l.finish(true, &mut |_| {});
            (d.read, d.unseen_reads, d.left.values().sum::<i64>())
        };
        assert_eq!(found(1007 + 493), (Some(493), 7, 2500));
        assert_eq!(found(1007 + 1493), (Some(493), 1007, 1500));
        assert_eq!(found(4001), (Some(493), 2507, 0));
        assert_eq!(found(1007), (Some(493), 7, 2500), "an older state");
    }

    #[test]
    fn what_is_sent_again_may_come_before_that_is_told() {
        let again = |events: &[(Crossing, i64, i64, i64)]| {
            let (d, lives) = logged(events, (0, 0));
            (d.again, lives.iter().map(|l| l.again).collect::<Vec<_>>())
        };
        let sent =
            [(ToTransport, 1, 0, 10), (ToDevice, 2, 0, 10), (ToDevice, 90, 0, 10), (FromDevice, 95, 0, 10)];
        let told = [&sent[..], &[(Retransmit, 97, 0, 10), (Recv, 99, 0, 10)]].concat();
        assert_eq!(again(&told), (10, vec![true]));
        // Twice in a device's queue, and never said to have been sent again.
        assert_eq!(again(&[&sent[..], &[(Recv, 99, 0, 10)]].concat()), (0, vec![false]));
        // It came, and was sent again in vain.
        let vain =
            [sent[0], sent[1], (FromDevice, 50, 0, 10), sent[2], (Retransmit, 97, 0, 10), (Recv, 99, 0, 10)];
        assert_eq!(again(&vain), (0, vec![false]));
    }

    /// 3000 bytes in one write, three packets; the second is lost and sent again; read in two calls, 500 not.
    const STORY: [(Crossing, i64, i64, i64); 16] = [
        (ToTransport, 10, 0, 3000),
        (ToDevice, 20, 0, 1000),
        (ToDriver, 21, 0, 1000),
        (ToDevice, 22, 1000, 1000),
        (ToDriver, 23, 1000, 1000),
        (Send, 24, 0, 3000),
        (ToDevice, 30, 2000, 1000),
        (ToDriver, 31, 2000, 1000),
        // the other end counts from 7 bytes later
        (FromDevice, 50, 0, 993),
        (FromDevice, 60, 1993, 1000),
        (Retransmit, 70, 1000, 1000),
        (ToDriver, 71, 1000, 1000),
        (FromDevice, 90, 993, 1000),
        (ToSocket, 95, 0, 2993),
        (Recv, 100, 0, 1500),
        (Recv, 200, 1500, 993),
    ];

    #[test]
    fn each_byte_has_its_life() {
        let (d, lives) = logged(&STORY, (u32::MAX as i64 - 1, 5));
        assert_eq!((d.written, d.before, d.unseen_writes), (Some(3000), 0, 0));
        // seven bytes came before the other end was looked at
        assert_eq!((d.read, d.unseen_reads, d.again), (Some(2493), 7, 1000));
        assert_eq!(d.left.into_iter().collect::<Vec<_>>(), [(Some(ToSocket), 500)]);
        let sum: i64 = lives.iter().map(|l| l.bytes).sum();
        assert_eq!(sum, 3000);
        let leg = |from, to, again| {
            d.legs
                .iter()
                .find(|l| (l.from, l.to, l.again) == (from, to, again))
                .map(|l| (l.ns.count, l.ns.sum))
        };
        assert_eq!(leg(ToTransport, ToDevice, false), Some((3000, 10_000 + 12_000 + 20_000)));
        assert_eq!(leg(ToDriver, FromDevice, false), Some((1993, 993 * 29 + 1000 * 29)));
        assert_eq!(leg(ToDriver, FromDevice, true), Some((1000, 1000 * 67)));
        assert_eq!(leg(ToSocket, Recv, false), Some((2493, 1500 * 5 + 993 * 105)));
        assert_eq!(d.total_ns.sum, 1500 * 90 + 993 * 190);
        assert_eq!(d.legs[0].name(), "send queue");
    }

    #[test]
    fn what_is_told_late_or_by_a_clock_that_is_ahead_changes_nothing() {
        let (d, _) = logged(&STORY, (0, 7));
        let mut other = STORY;
        other.reverse();
        let (e, _) = logged(&other, (0, 7));
        let legs = |d: &Direction| d.legs.iter().map(|l| (l.from, l.to, l.ns.sum)).collect::<Vec<_>>();
        assert_eq!(legs(&d)[0], legs(&e)[0]);
        assert_eq!((d.written, d.read, d.left), (e.written, e.read, e.left));
    }

    #[test]
    fn a_write_that_was_not_taken_is_given_again() {
        let (d, lives) = logged(
            &[
                (ToTransport, 10, 0, 5000),
                (Send, 11, 0, 2000),
                (ToTransport, 50, 2000, 3000),
                (Send, 51, 2000, 1000),
                (Recv, 70, 0, 3000),
            ],
            (9, 9),
        );
        assert_eq!((d.written, d.read, d.unexplained()), (Some(3000), Some(3000), 0));
        assert_eq!(d.total_ns.sum, 2000 * 60 + 1000 * 20);
        assert_eq!(lives.iter().map(|l| l.bytes).sum::<i64>(), 3000, "2000 went nowhere");
    }

    #[test]
    fn what_is_missing_is_said() {
        let (d, _) = logged(
            &[
                (Recv, 1, 0, 100),
                (ToTransport, 10, 100, 50),
                (Send, 11, 100, 50),
                (ToSocket, 12, 150, 30),
                (Recv, 13, 180, 20),
                (ToTransport, 14, 200, 10),
                (Send, 15, 200, 10),
            ],
            (0, 0),
        );
        assert_eq!((d.written, d.before, d.unseen_writes), (Some(60), 100, 50));
        assert_eq!((d.read, d.unseen_reads), (Some(120), 80));
        assert_eq!(d.left.into_iter().collect::<Vec<_>>(), [(None, 10)]);
    }

    #[test]
    fn a_segment_merged_with_one_that_came_before_it_was_sent_came_later() {
        let (d, lives) = logged(
            &[
                (ToTransport, 1, 0, 10),
                (ToDriver, 5, 0, 10),
                (FromDevice, 3, 0, 10),
                (FromNetwork, 8, 0, 10),
                (Recv, 9, 0, 10),
            ],
            (0, 0),
        );
        assert_eq!((d.impossible, lives[0].at[CAME]), (0, None));
        assert!(d.legs.iter().any(|l| (l.name().as_str(), l.ns.sum) == ("wire to from-network", 30)));
    }

    #[test]
    fn whole_turns_of_the_numbers_are_found() {
        let far = 3i64 << 32;
        let (d, _) = logged(
            &[(ToTransport, 1, far, 10), (Send, 2, far, 10), (ToDriver, 2, far, 10), (Recv, 5, 0, 10)],
            (0, 0),
        );
        assert_eq!((d.written, d.read, d.total_ns.sum), (Some(10), Some(10), 40));
    }
}
