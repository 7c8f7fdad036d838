//! What holds a TCP sender back, moment by moment: one rule, for the shares over a socket's life and for those of each bin of
//! a series.
//!
//! Three things are put together. What TCP waits for stands in its state (`enum tcp_chrono` and `is_cwnd_limited` of
//! include/linux/tcp.h), which is written when it changes. Whether there is anything to send is known from the bytes that
//! crossed: what was given, what left, what was acknowledged. Whether the application would give more is known from its calls:
//! one that is not over, or was refused (`EAGAIN`, or a part taken). TCP's own mark for that, `app_limited`, is no help: it
//! is also set where a full send buffer keeps the application from giving more.
//!
//! A state that comes with a segment from the network was in force before that segment, because it is read before TCP looks
//! at it; any other is in force from then on.

use super::connections::pairs_of;
use super::flight::Flight;
use super::given_on;
use super::limits::{Held, repairs, timed_out};
use super::nagle::{Kept, Leaving};
use crate::codes::EAGAIN;
use kpat_model::Crossing;
use kpat_store::tables::*;
use std::collections::HashMap;

/// TCP_SYN_SENT of include/net/tcp_states.h.
const SYN_SENT: i32 = 2;
/// States in which the end of the stream, which has a number of its own, was not given to TCP: TCP_ESTABLISHED, TCP_SYN_SENT, TCP_SYN_RECV, TCP_CLOSE_WAIT.
pub(crate) const WITHOUT_END: [i32; 4] = [1, SYN_SENT, 3, 8];
/// `enum tcp_chrono` of include/linux/tcp.h.
const RWND_LIMITED: i32 = 2;
const SNDBUF_LIMITED: i32 = 3;
/// SK_PACING_NEEDED of include/net/sock.h: TCP waits by its own timer.
const BY_TIMER: i32 = 1;
/// Of the contexts.
const IN_TASK: i32 = 0;
/// A state is written by the program that saw its segment, so soon behind it.
const SAME_PROGRAM_NS: i64 = 100_000;
/// A timer runs longer; a segment that is sent again sooner was asked for by one that came.
const SHORTEST_TIMER_NS: i64 = 1_000_000;
/// So late a timer, and what it starts, may come.
const LATE_NS: i64 = 500_000;
/// No segment is kept back for longer.
const LONGEST_NS: i64 = 3_600_000_000_000;

/// What the application is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Call {
    #[default]
    None,
    /// In a call that sends.
    Inside,
    /// Its last call was refused, or not all of it was taken.
    Refused,
}

/// A piece of time with one cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub from_ns: i64,
    pub to_ns: i64,
    pub held: Held,
    pub call: Call,
    pub repairs: bool,
}

impl Span {
    /// Would the application have given more, or is it in a call that does?
    pub fn wants(&self) -> bool {
        self.call != Call::None
    }
}

/// What keeps TCP from sending more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Window {
    Congestion,
    Peer,
}

/// A piece of time whose cause the next moment may still decide.
#[derive(Clone, Copy)]
struct Open {
    from_ns: i64,
    to_ns: i64,
    call: Call,
    /// Given, and not yet left; `None`: not known from what crossed.
    unsent: Option<bool>,
    unacked: Option<bool>,
    /// That is less than a segment.
    small: bool,
    /// Some of what has left is not acknowledged.
    in_flight: bool,
    /// It ended with a segment that was sent again.
    again: bool,
    /// What is in flight fills a window: which.
    full: Option<Window>,
    /// TCP's own timer, by its rate, had what was sent last keep back what follows for about as long.
    paced: bool,
    /// The other end had data to read all the time.
    unread: bool,
    /// In a call that sends: TCP has bytes to send, the application waits for room.
    inside: Option<(bool, bool)>,
}

/// One sender.
#[derive(Default)]
struct Sender {
    /// When its socket was first and last seen.
    life_ns: (i64, i64),
    state: Option<TcpStateRow>,
    /// From here on nothing is written yet.
    since_ns: Option<i64>,
    open: Option<Open>,
    call: Call,
    /// When its last call began.
    called_ns: Option<i64>,
    asked: Option<i64>,
    /// Number of the first byte of the stream that it sends, and of the one that it receives.
    start: Option<i64>,
    received_start: Option<i64>,
    /// Its writes are in no call of the log, as those of MPTCP's connections are not: what TCP was given its state says.
    unseen: Option<i64>,
    /// Offsets behind the last byte that was given, left, was acknowledged.
    given: Option<i64>,
    left: Option<i64>,
    acked: Option<i64>,
    flight: Flight,
    kept: Kept,
    /// The second by crossing.
    left_at: HashMap<Crossing, i64>,
    /// Until then TCP's own timer keeps back what follows the segments that left.
    paced_until_ns: i64,
    /// TCP had bytes to send, the application waited for room, when a segment last came; `None`: not known.
    unsent: Option<bool>,
    no_room: Option<bool>,
    /// What it receives: behind the last byte that can be read, that was read; since when there is something to read.
    readable: i64,
    read: i64,
    unread_since: Option<i64>,
}

/// All TCP sockets of a log, by what crosses in order of time.
#[derive(Default)]
pub(crate) struct Follow {
    senders: HashMap<i64, Sender>,
    peers: HashMap<i64, i64>,
}

impl Follow {
    pub fn new(sockets: &[SocketRow]) -> Follow {
        let sender = |s: &SocketRow| {
            let life_ns = (s.first_ns, s.last_ns);
            let (start, received_start) = (s.sent_seq, s.received_seq);
            (s.socket_id, Sender { life_ns, start, received_start, ..Sender::default() })
        };
        Follow { senders: sockets.iter().map(sender).collect(), peers: pairs_of(sockets) }
    }

    /// The socket's other end, if it is in this log.
    pub fn peer(&self, socket: i64) -> Option<i64> {
        self.peers.get(&socket).copied()
    }

    /// A state that was in force before all that is given.
    pub fn begin(&mut self, state: TcpStateRow, at_ns: i64) {
        let s = self.senders.entry(state.socket_id).or_default();
        (s.since_ns, s.state) = (Some(at_ns), Some(state));
    }

    /// What is known by then of the sender's time.
    pub fn crossing(&mut self, what: Crossing, e: &AppEventRow) -> Vec<Span> {
        let peer = self.peer(e.socket_id).and_then(|p| self.senders.get(&p));
        let unread_since = peer.and_then(|p| p.unread_since);
        let readable = peer.map(|p| (p.received_start, p.readable));
        let sender = self.senders.entry(e.socket_id).or_default();
        let came = readable.filter(|r| r.0.is_some() && r.0 == sender.start).map(|r| r.1);
        sender.crossing(what, e, unread_since, came)
    }

    pub fn state(&mut self, now: &TcpStateRow) -> Vec<Span> {
        let peer = self.peer(now.socket_id).and_then(|p| self.senders.get(&p));
        let unread_since = peer.and_then(|p| p.unread_since);
        self.senders.entry(now.socket_id).or_default().state(now, unread_since)
    }

    /// Nothing more is known of this socket until then: what held it back still does.
    pub fn until(&mut self, socket: i64, at_ns: i64) -> Vec<Span> {
        let unread_since = self.peer(socket).and_then(|p| self.senders.get(&p)).and_then(|p| p.unread_since);
        let mut done = Vec::new();
        if let Some(s) = self.senders.get_mut(&socket) {
            s.go_on(at_ns, false, unread_since, &mut done);
        }
        done
    }

    /// What is still open.
    pub fn finish(&mut self, each: &mut dyn FnMut(i64, Span)) {
        for (id, s) in &mut self.senders {
            // It was given up without a further state.
            let mut done = Vec::new();
            if s.state.as_ref().is_some_and(|s| s.state == SYN_SENT) {
                s.go_on(s.life_ns.1, false, None, &mut done);
            }
            s.settle(&mut done);
            s.kept.release(&mut done);
            done.into_iter().for_each(|span| each(*id, span));
        }
    }
}

impl Sender {
    /// Time has gone on to this moment.
    fn go_on(&mut self, at_ns: i64, again: bool, unread_since: Option<i64>, done: &mut Vec<Span>) {
        self.settle(done);
        let Some(from_ns) = self.since_ns.filter(|_| self.state.is_some()) else { return };
        if at_ns > from_ns {
            self.open = Some(Open {
                from_ns,
                to_ns: at_ns,
                call: self.call,
                unsent: self.given.or(self.unseen).zip(self.left).map(|(given, left)| given > left),
                small: self.small(),
                in_flight: self.left.is_some_and(|left| left > self.acked.unwrap_or(0)),
                unacked: self.given.zip(self.acked).map(|(given, acked)| given > acked),
                again: again && at_ns - from_ns > SHORTEST_TIMER_NS,
                inside: self.unsent.zip(self.no_room),
                full: self.full(),
                paced: at_ns - from_ns <= 2 * (self.paced_until_ns - from_ns).max(0) + LATE_NS,
                unread: unread_since.is_some_and(|t| t <= from_ns),
            });
            self.since_ns = Some(at_ns);
        }
    }

    /// TCP's mark for a full window is made when it has sent, and is seen with the next record of its state; what crossed tells before. What was lost is not in flight,
    /// and no matter of the bytes.
    fn full(&self) -> Option<Window> {
        let s =
            self.state.as_ref().filter(|s| s.mss > 0 && s.sacked_out + s.lost_out + s.retrans_out == 0)?;
        let acked = self.acked.or(self.start.map(|_| 0))?;
        let (given, left) = (self.given?, self.left?);
        let in_flight = left - acked;
        let next = s.mss.min(given - left);
        let of_path = s.snd_cwnd > 0 && self.flight.segments().max(in_flight / s.mss) >= s.snd_cwnd;
        let of_peer = s.snd_wnd > 0 && next > 0 && in_flight + next > s.snd_wnd;
        of_path.then_some(Window::Congestion).or(of_peer.then_some(Window::Peer))
    }

    /// Is less than a segment given, and not yet sent?
    fn small(&self) -> bool {
        let Some(s) = &self.state else { return false };
        let given = self.given.or(self.unseen).zip(self.left.or(self.start.map(|_| 0)));
        let rest = given.map_or((s.write_seq as u32).wrapping_sub(s.snd_nxt as u32) as i64, |(g, l)| g - l);
        (1..s.mss).contains(&rest)
    }

    fn settle(&mut self, done: &mut Vec<Span>) {
        let Some((o, state)) = self.open.take().zip(self.state.as_ref()) else { return };
        let span = Span {
            from_ns: o.from_ns,
            to_ns: o.to_ns,
            held: held(&o, state),
            call: o.call,
            repairs: repairs(state),
        };
        self.kept.next(span, o.small && o.unsent == Some(true), o.in_flight, done);
    }

    /// `unread_since`: the other end has data to read; `came`: behind the last byte that could be read there.
    fn crossing(
        &mut self,
        what: Crossing,
        e: &AppEventRow,
        unread_since: Option<i64>,
        came: Option<i64>,
    ) -> Vec<Span> {
        use Crossing::*;
        let mut done = Vec::new();
        if given_on(e) {
            return done;
        }
        if matches!(what, FromDevice | FromNetwork | ToSocket | Recv) {
            self.reception(what, e);
            return done;
        }
        // At one and the same crossing: a packet may leave the device's queue in pieces.
        let left = matches!(what, ToNetwork | ToDevice | ToDriver);
        let top = self.left_at.get(&what);
        let before = e.offset.zip(top).is_some_and(|(from, top)| from + e.size_bytes <= *top);
        // The segment leaves before the record that it is a retransmission.
        let again = what == Retransmit || left && before;
        // A timer may send again what was not lost, but is acknowledged late.
        let lost = || e.offset.zip(came).is_none_or(|(from, came)| from + e.size_bytes > came);
        let again = again && lost();
        self.go_on(e.at_ns, again, unread_since, &mut done);
        let further = |to: &mut Option<i64>| {
            if let Some(end) = e.offset.map(|o| o + e.size_bytes).filter(|_| e.size_bytes > 0) {
                *to = Some(to.map_or(end, |t| t.max(end)));
            }
        };
        match what {
            ToTransport => {
                further(&mut self.given);
                self.asked = e.asked_bytes;
                // A refused application that tries again is still refused.
                if e.size_bytes >= 0 {
                    (self.call, self.called_ns) = (Call::Inside, Some(e.at_ns));
                }
            }
            Send => {
                further(&mut self.given);
                let part = self.asked.take().is_some_and(|asked| (0..asked).contains(&e.size_bytes));
                self.call = if part || e.size_bytes == EAGAIN { Call::Refused } else { Call::None };
            }
            ToNetwork | ToDevice | ToDriver => {
                if what == ToDevice {
                    self.departs(e);
                }
                let mss = self.state.as_ref().map_or(0, |s| s.mss);
                let behind = self.flight.has_small();
                let fills = self.call == Call::Inside && behind && !self.small();
                if self.flight.leaves(e, mss) {
                    // No segment that came ended this piece of time, and none's state will tell of it.
                    let by_task = e.ctx == IN_TASK && self.called_ns.is_some();
                    if behind && self.call == Call::None && by_task {
                        self.settle(&mut done);
                    }
                    let leaving = Leaving {
                        at_ns: e.at_ns,
                        filled_ns: self.called_ns.filter(|_| fills),
                        second: behind && e.segments <= 1 && e.size_bytes < mss,
                        call: self.call,
                        by_task,
                    };
                    self.kept.leaves(leaving, &mut done);
                }
                further(&mut self.left);
                let mut top = self.left_at.get(&what).copied();
                further(&mut top);
                top.and_then(|top| self.left_at.insert(what, top));
            }
            Acked => {
                further(&mut self.acked);
                let small = self.flight.acknowledged(self.acked.unwrap_or(0));
                self.kept.acknowledged(e.at_ns, small);
                if self.call == Call::Refused && self.acked.zip(self.given).is_some_and(|(a, g)| a >= g) {
                    self.call = Call::None; // the buffer is empty: it could be written
                }
            }
            _ => {}
        }
        done
    }

    /// A segment has left (`tcp_update_skb_after_send` of net/ipv4/tcp_output.c).
    fn departs(&mut self, e: &AppEventRow) {
        let rate = self.state.as_ref().and_then(|s| s.pacing_bytes_s).filter(|r| *r > 0);
        let Some(rate) = rate.filter(|_| e.size_bytes > 0) else { return };
        let ns = i128::from(e.size_bytes) * 1_000_000_000 / i128::from(rate);
        let ns = i64::try_from(ns).unwrap_or(LONGEST_NS).min(LONGEST_NS);
        self.paced_until_ns = self.paced_until_ns.max(e.at_ns) + ns;
    }

    fn reception(&mut self, what: Crossing, e: &AppEventRow) {
        let Some(end) = e.offset.map(|o| o + e.size_bytes).filter(|_| e.size_bytes > 0) else { return };
        match what {
            Crossing::ToSocket => self.readable = self.readable.max(end),
            Crossing::Recv => self.read = self.read.max(end),
            _ => return,
        }
        let unread = self.readable > self.read;
        self.unread_since = self.unread_since.or(Some(e.at_ns)).filter(|_| unread);
    }

    fn state(&mut self, now: &TcpStateRow, unread_since: Option<i64>) -> Vec<Span> {
        let mut done = Vec::new();
        if now.crossing != Crossing::FromNetwork as i32 {
            self.go_on(now.at_ns, false, unread_since, &mut done);
            self.settle(&mut done);
            // A SYN that waits for its neighbour is not seen to leave: a socket is first seen when it begins to connect.
            let connects = now.state == SYN_SENT && self.life_ns.0 > 0;
            let begins = if connects { self.life_ns.0.min(now.at_ns) } else { now.at_ns };
            self.since_ns = self.since_ns.or(Some(begins));
            self.take(now);
            return done;
        }
        // The segment that it comes with may have ended a piece of time; if so, that is the one it was in force for.
        let near = self.open.is_some_and(|o| now.at_ns - o.to_ns < SAME_PROGRAM_NS);
        if !near {
            self.go_on(now.at_ns, false, unread_since, &mut done);
        }
        self.since_ns = self.since_ns.or(Some(now.at_ns));
        self.take(now);
        self.no_room = now.no_room.map(|n| n != 0);
        self.unsent = self.no_room.map(|_| now.write_seq != now.snd_nxt);
        if let Some(o) = &mut self.open {
            o.inside = self.unsent.zip(self.no_room);
        }
        self.settle(&mut done);
        done
    }

    fn take(&mut self, now: &TcpStateRow) {
        self.state = Some(now.clone());
        let (Some(start), None) = (self.start, self.given) else { return };
        let (left, end) = (self.left.unwrap_or(0), i64::from(!WITHOUT_END.contains(&now.state)));
        // Numbers come again after 4 GiB; what has not left yet is less.
        let more = (now.write_seq as u32).wrapping_sub((start + left) as u32) as i32;
        self.unseen = self.unseen.max(Some(left + i64::from(more) - end));
    }
}

fn held(o: &Open, state: &TcpStateRow) -> Held {
    // What a call gave is not all TCP's as long as it is not over; TCP's own numbers are.
    let inside = o.inside.filter(|_| o.call == Call::Inside);
    let unsent = inside.map(|i| i.0).or(o.unsent).unwrap_or(state.write_seq != state.snd_nxt);
    let unacked = o.unacked.unwrap_or(unsent || state.write_seq != state.snd_una);
    let wants = o.call != Call::None;
    match state.busy {
        _ if state.state == SYN_SENT => Held::Handshake,
        _ if o.again => Held::Retransmission,
        RWND_LIMITED if o.unread => Held::Reader,
        RWND_LIMITED => Held::ReceiveWindow,
        _ if !unacked && !wants => Held::Application,
        _ if timed_out(state) && unacked => Held::Retransmission,
        SNDBUF_LIMITED => Held::SendBuffer,
        _ if !unsent && state.lost_out == 0 => match o.call {
            Call::Refused => Held::SendBuffer,
            Call::Inside if inside.is_some_and(|i| i.1) => Held::SendBuffer,
            _ => Held::Application,
        },
        _ if state.cwnd_limited != 0 || o.full == Some(Window::Congestion) => Held::CongestionWindow,
        _ if o.full == Some(Window::Peer) => {
            if o.unread {
                Held::Reader
            } else {
                Held::ReceiveWindow
            }
        }
        // Within a call nothing is known of what it will leave unsent.
        _ if state.more == Some(1) && o.small && o.call != Call::Inside => Held::Cork,
        _ => match state.pacing {
            None => Held::PacingOrDevice,
            Some(BY_TIMER) if o.paced => Held::Pacing,
            Some(_) => Held::Device,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn last(s: &mut Sender) -> Option<Span> {
        let mut done = Vec::new();
        s.settle(&mut done);
        s.kept.release(&mut done);
        done.pop()
    }

    #[test]
    fn what_paces_is_known_by_its_rate() {
        const MS: i64 = 1_000_000;
        let state = TcpStateRow {
            state: 1,
            busy: 1,
            pacing: Some(BY_TIMER),
            pacing_bytes_s: Some(1_000_000),
            write_seq: 9_000,
            ..TcpStateRow::default()
        };
        let event = |at_ns, what: Crossing, offset, size_bytes| AppEventRow {
            at_ns,
            crossing: what as i32,
            size_bytes,
            offset: Some(offset),
            segments: 1,
            ..AppEventRow::default()
        };
        // A thousand bytes, then nothing for so long; the rest waits.
        let held = |bytes: i64, waits_ns: i64| {
            let mut s = Sender { start: Some(0), ..Sender::default() };
            s.state(&state, None);
            for e in [
                event(0, Crossing::ToTransport, 0, 9_000),
                event(MS, Crossing::ToDevice, 0, bytes),
                event(MS + waits_ns, Crossing::ToDevice, bytes, 1),
            ] {
                s.crossing(Crossing::from_u8(e.crossing as u8).unwrap(), &e, None, None);
            }
            last(&mut s).map(|span| (span.from_ns, span.held))
        };
        assert_eq!(held(1000, MS), Some((MS, Held::Pacing)));
        assert_eq!(held(1000, 2 * MS), Some((MS, Held::Pacing)), "its timer may be late");
        assert_eq!(held(1000, 40 * MS), Some((MS, Held::Device)));
        assert_eq!(held(100, 3 * MS), Some((MS, Held::Device)));
        assert_eq!(held(8000, 9 * MS), Some((MS, Held::Pacing)));
    }

    /// Of a connection that sends, with room in both windows.
    fn sending() -> TcpStateRow {
        TcpStateRow {
            state: 1,
            busy: 1,
            mss: 1000,
            pacing: Some(0),
            snd_cwnd: 10,
            snd_wnd: 60_000,
            ..TcpStateRow::default()
        }
    }

    /// Of a stream of 90,000 bytes in segments of 1000, so many have left since all before was acknowledged, and the last leaves again after so long.
    fn sends(cwnd: i64, snd_wnd: i64, segments: i64, came: Option<i64>) -> Option<Held> {
        const MS: i64 = 1_000_000;
        let crossing = Crossing::ToDevice as i32;
        let state =
            TcpStateRow { at_ns: MS, crossing, snd_cwnd: cwnd, snd_wnd, write_seq: 90_000, ..sending() };
        let mut s = Sender { start: Some(0), given: Some(90_000), acked: Some(0), ..Sender::default() };
        let event = |at_ns, from, size_bytes| AppEventRow {
            at_ns,
            size_bytes,
            offset: Some(from),
            segments: 1,
            ..AppEventRow::default()
        };
        s.state(&state, None);
        s.crossing(Crossing::ToDevice, &event(MS + 1, 0, segments * 1000), None, came);
        s.crossing(Crossing::ToDevice, &event(50 * MS, (segments - 1) * 1000, 1000), None, came);
        last(&mut s).map(|span| span.held)
    }

    #[test]
    fn what_has_left_since_the_last_state_fills_a_window() {
        assert_eq!(sends(9, 20_000, 9, Some(9000)), Some(Held::CongestionWindow));
        assert_eq!(sends(10, 20_000, 9, Some(9000)), Some(Held::Device));
        assert_eq!(sends(10, 9_999, 9, Some(9000)), Some(Held::ReceiveWindow));
        assert_eq!(sends(10, 10_000, 9, Some(9000)), Some(Held::Device));
    }

    #[test]
    fn small_segments_fill_the_congestion_window() {
        const MS: i64 = 1_000_000;
        let held = |snd_cwnd: i64| {
            let crossing = Crossing::ToDevice as i32;
            let state = TcpStateRow { crossing, snd_cwnd, write_seq: 90_000, ..sending() };
            let mut s = Sender { start: Some(0), given: Some(90_000), ..Sender::default() };
            s.state(&state, None);
            // Nine of 100 bytes; after 8 ms a timer sends one more.
            for i in 0..10 {
                let (at_ns, offset) = (MS + i + i / 9 * 8 * MS, Some(i * 100));
                let size_bytes = 100;
                let e = AppEventRow { at_ns, size_bytes, offset, segments: 1, ctx: 1, ..Default::default() };
                s.crossing(Crossing::ToDevice, &e, None, None);
            }
            last(&mut s).map(|span| span.held)
        };
        assert_eq!((held(9), held(10)), (Some(Held::CongestionWindow), Some(Held::Device)));
    }

    /// A head of so many bytes that waits for more, its body 40 ms later; both leave then.
    fn corked(more: Option<i32>, head: i64, call_over: bool) -> Option<(i64, Held)> {
        const MS: i64 = 1_000_000;
        let state = TcpStateRow { crossing: Crossing::Send as i32, more, ..sending() };
        let mut s = Sender { start: Some(0), ..Sender::default() };
        let event = |at_ns, what: Crossing, from, size_bytes| AppEventRow {
            at_ns,
            crossing: what as i32,
            size_bytes,
            offset: Some(from),
            segments: 1,
            ..AppEventRow::default()
        };
        s.crossing(Crossing::ToTransport, &event(MS, Crossing::ToTransport, 0, head), None, None);
        if call_over {
            s.crossing(Crossing::Send, &event(MS, Crossing::Send, 0, head), None, None);
        }
        s.state(&TcpStateRow { at_ns: MS, write_seq: head, ..state }, None);
        s.crossing(Crossing::ToTransport, &event(41 * MS, Crossing::ToTransport, head, 2), None, None);
        last(&mut s).map(|span| (span.to_ns - span.from_ns, span.held))
    }

    #[test]
    fn what_waits_for_more_is_held_by_the_application() {
        assert_eq!(corked(Some(1), 999, true), Some((40_000_000, Held::Cork)));
        assert_eq!(
            corked(Some(1), 1000, true),
            Some((40_000_000, Held::Device)),
            "a full segment does not wait"
        );
        assert_eq!(corked(None, 999, true), Some((40_000_000, Held::Device)));
        assert_eq!(corked(Some(1), 999, false), Some((40_000_000, Held::Device)), "the call is not over");
    }

    #[test]
    fn what_had_come_was_not_lost() {
        assert_eq!(sends(10, 20_000, 9, Some(9000)), Some(Held::Device));
        assert_eq!(sends(10, 20_000, 9, Some(8999)), Some(Held::Retransmission));
        assert_eq!(sends(10, 20_000, 9, None), Some(Held::Retransmission));
    }
}
