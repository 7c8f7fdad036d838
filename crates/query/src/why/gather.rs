//! One pass over what the log has of both ends: the writes with the way of their last bytes, and what held the sender back when.

use super::answer::Answers;
use super::fast::Fast;
use super::large::Sizes;
use super::owed::Open;
use super::path::Stays;
use super::queue::Queue;
use super::taken::Taken;
use super::threads::Did;
use crate::abreast::Progress;
use crate::app::connections::{Clock, Life, Lives, STAGES, is_received};
use crate::app::flight::Flight;
use crate::app::{Ending, Follow, Held, Moment, Span, WITHOUT_END, given_on, in_order};
use crate::error::{Error, Result};
use crate::store::Store;
use kpat_model::Crossing;
use kpat_store::tables::*;
use std::collections::VecDeque;

/// Writes that are looked at, from the first on.
pub(super) const MOST_WRITES: usize = 1 << 18;
/// Rows between two words of how far it has got.
const STEP: u64 = 1 << 16;
/// SK_PACING_FQ of include/net/sock.h.
const BY_FQ: i32 = 2;
const FROM_NETWORK: i32 = Crossing::FromNetwork as i32;
/// TCP_ESTABLISHED, TCP_SYN_SENT, TCP_SYN_RECV of include/net/tcp_states.h: neither end has closed it.
pub(super) const SYN_SENT: i32 = 2;
const SYN_RECV: i32 = 3;
const OPEN: [i32; 3] = [1, SYN_SENT, SYN_RECV];
/// TCP_SYN_SENT, TCP_SYN_RECV, TCP_CLOSE, TCP_LISTEN, TCP_NEW_SYN_RECV: it is not, or no more.
const UNCONNECTED: [i32; 5] = [SYN_SENT, SYN_RECV, 7, 10, 12];
/// Of the flags (RFC 9293, section 3.1).
const RST: i32 = 4;

#[derive(Clone, Debug)]
pub(super) struct Write {
    pub offset: i64,
    pub bytes: i64,
    /// When the application wanted to write: earlier than the call if others before it were refused.
    pub from_ns: i64,
    pub at_ns: i64,
    /// When its last byte was at each of [`STAGES`].
    pub at: [Option<i64>; STAGES.len()],
    pub again: bool,
}

impl Write {
    pub fn last(&self) -> i64 {
        self.offset + self.bytes - 1
    }

    pub fn at(&self, c: Crossing) -> Option<i64> {
        STAGES.iter().position(|s| *s == c).and_then(|i| self.at[i])
    }

    /// When its last byte left the transport.
    pub fn left_ns(&self) -> Option<i64> {
        [Crossing::ToNetwork, Crossing::ToDevice, Crossing::ToDriver].into_iter().find_map(|c| self.at(c))
    }
}

/// A piece of time in which one thing held the sender back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HeldBy {
    pub from_ns: i64,
    pub to_ns: i64,
    pub held: Held,
    /// In a call that sends, or refused.
    pub wants: bool,
    pub repairs: bool,
    /// Bytes of this socket were in the device's queue.
    pub queued: bool,
    /// The same of queues between the two ends ([`super::path`]).
    pub on_path: bool,
    /// Segments of it waited for the next hop's link address.
    pub asks: bool,
}

impl HeldBy {
    /// And nothing else was so meanwhile.
    pub fn of(from_ns: i64, to_ns: i64, held: Held) -> HeldBy {
        let no = false;
        HeldBy { from_ns, to_ns, held, wants: no, repairs: no, queued: no, on_path: no, asks: no }
    }
}

#[derive(Default)]
pub(super) struct Gathered {
    /// By offset.
    pub writes: Vec<Write>,
    /// What the threads of both ends did.
    pub threads: [Did; 2],
    pub left_out: u64,
    /// In order of time, without overlap.
    pub held: Vec<HeldBy>,
    /// When, and up to which byte; both rise.
    pub acks: Vec<(i64, i64)>,
    /// The same of what the peer's TCP has taken without a hole: from then on it can be read.
    pub taken: Vec<(i64, i64)>,
    /// When a segment came to the sender.
    pub heard: Vec<i64>,
    /// When the sender read something of the other direction, and the peer wrote it.
    pub reads: Vec<i64>,
    pub answers: Vec<i64>,
    /// When all that the peer had written was read: in order, without overlap.
    pub read_up: Vec<(i64, i64)>,
    /// Of datagrams: when questions were not answered yet.
    pub open: Open,
    /// When a datagram was dropped for which no answer could come.
    pub unanswered: Vec<i64>,
    /// Without overlap, with how many records are missing.
    pub gaps: Vec<(i64, i64)>,
    /// Bytes that came only after having been sent again: when, and which. In order of time.
    pub mended: Vec<(i64, i64)>,
    pub lost: u64,
    pub last_ns: i64,
    /// When either end reset the connection, or the sender's kernel gave it up without a word, and how it ended as the sender saw it.
    pub reset_ns: Option<i64>,
    pub given_up_ns: Option<i64>,
    pub ending: Ending,
    /// When either end was first seen to have closed it.
    pub closed_ns: Option<i64>,
    /// The peer read something in calls; took something in none (`splice`), as its state shows; connected, so that it is the one that asks.
    pub peer_reads: bool,
    pub peer_takes: bool,
    pub peer_connects: bool,
    /// When the peer's state last showed that it had taken nothing.
    pub untaken_ns: Option<i64>,
    pub states: u64,
    /// The handshake was over.
    pub connected: bool,
    /// What TCP had been given when its state was last logged, by its numbers.
    pub given_bytes: i64,
    /// When the last small segment that had been sent was acknowledged, and up to which byte all was then.
    pub small_acked: Vec<(i64, i64)>,
    pub again: u64,
    pub syns_again: u64,
    pub sizes: Sizes,
    pub fq_paces: bool,
    /// Of some writes only the end of the call is known.
    pub begins_unknown: bool,
    /// The largest segment, 0: not known.
    pub mss: i64,
    /// In queues between the two ends.
    pub stays: Stays,
    /// What went with its SYN.
    pub fast: Fast,
    /// Of what relates the two ends' clocks.
    pub bound_ns: i64,
}

/// An acknowledgement lets TCP send within this time.
const AT_ONCE_NS: i64 = 200_000;

impl Gathered {
    /// The time in which it connected, if that is what the log has of it first.
    pub fn handshake(&self) -> Option<(i64, i64)> {
        let first = self.held.first().filter(|h| h.held == Held::Handshake)?;
        let all = self.held.iter().take_while(|h| h.held == Held::Handshake);
        all.last().map(|last| (first.from_ns, last.to_ns))
    }

    /// The log has no state of it, and its packets show that nobody ever answered.
    pub fn never_connected(&mut self, socket: &SocketRow) {
        self.held.push(HeldBy::of(socket.first_ns, socket.last_ns, Held::Handshake));
    }

    /// Is this the end that asks? It connected, or, of a connection that is older than the log, it wrote first.
    pub fn asks(&self) -> bool {
        let wrote_first = || {
            let first = self.writes.iter().map(|w| w.at_ns).min();
            first.is_some_and(|at| self.answers.first().is_none_or(|answer| at <= *answer))
        };
        self.handshake().is_some() || !self.peer_connects && wrote_first()
    }

    /// Records are missing, of those that come in order of time.
    pub fn gap(&mut self, g: &GapRow) {
        self.lost += g.lost.max(0) as u64;
        match self.gaps.last_mut().filter(|last| last.1 >= g.from_ns) {
            Some(last) => last.1 = last.1.max(g.to_ns),
            None => self.gaps.push((g.from_ns, g.to_ns)),
        }
    }

    /// When what nobody has read ceases to wait.
    pub fn over_ns(&self) -> i64 {
        [self.reset_ns, self.given_up_ns].into_iter().flatten().fold(self.last_ns, i64::min)
    }

    /// Did bytes before this one come in this time, having been sent again?
    pub fn mended(&self, from_ns: i64, to_ns: i64, offset: i64) -> bool {
        let first = self.mended.partition_point(|m| m.0 <= from_ns);
        self.mended[first..].iter().take_while(|m| m.0 <= to_ns).any(|m| m.1 < offset)
    }

    /// When all up to this byte was acknowledged.
    pub fn acked_ns(&self, offset: i64) -> Option<i64> {
        self.acks.get(self.acks.partition_point(|a| a.1 <= offset)).map(|a| a.0)
    }

    /// When the peer's TCP had taken all up to this byte.
    pub fn taken_ns(&self, offset: i64) -> Option<i64> {
        self.taken.get(self.taken.partition_point(|t| t.1 <= offset)).map(|t| t.0)
    }

    /// Did the rest of this write, less than a segment, leave then because the last small segment that had been sent before was acknowledged? So Nagle's rule
    /// (RFC 9293, 3.7.4) makes it wait. `n`: its place.
    pub fn waited_for_an_ack(&self, n: usize, leaves_ns: i64) -> bool {
        let w = &self.writes[n];
        let i = self.small_acked.partition_point(|a| a.0 <= leaves_ns);
        let Some(&(at, to)) = i.checked_sub(1).map(|i| &self.small_acked[i]) else { return false };
        let rest = w.last() + 1 - to.max(w.offset);
        at > w.at_ns && leaves_ns - at < AT_ONCE_NS && rest > 0 && rest < self.mss
    }
}

/// What the sender's calls become.
#[derive(Default)]
struct Calls {
    /// A call that was refused, or of which a part was not taken: since when the application waits.
    wants_since: Option<i64>,
    /// Of the last call a part was not taken.
    part: bool,
    /// This kernel shows when calls begin.
    begin: bool,
    asked_ns: Option<i64>,
    /// Of a call that is at work a part went with the SYN then: the rest waits until it is connected.
    with_syn_ns: Option<i64>,
}

impl Calls {
    fn pass(&mut self, what: Crossing, e: &AppEventRow, connected: bool, out: &mut Gathered) {
        self.begin |= what == Crossing::ToTransport;
        match what {
            Crossing::Ask => self.asked_ns = Some(e.at_ns),
            Crossing::ToTransport if e.size_bytes > 0 => {
                self.wants_since = self.with_syn_ns.take().or(self.wants_since);
                self.with_syn_ns = Some(e.at_ns).filter(|_| !connected);
                self.part = e.asked_bytes.is_some_and(|asked| e.size_bytes < asked);
                self.write(e, e.at_ns, out);
            }
            Crossing::ToTransport => self.wants_since = self.wants_since.or(Some(e.at_ns)),
            Crossing::Send if !self.begin && e.size_bytes > 0 => {
                let asked = self.asked_ns.take();
                out.begins_unknown |= asked.is_none();
                self.write(e, asked.unwrap_or(e.at_ns), out);
            }
            Crossing::Send if std::mem::take(&mut self.part) => self.wants_since = Some(e.at_ns),
            _ => {}
        }
        self.with_syn_ns.take_if(|_| what == Crossing::Send);
    }

    fn write(&mut self, e: &AppEventRow, at_ns: i64, out: &mut Gathered) {
        let from_ns = self.wants_since.take().unwrap_or(at_ns).min(at_ns);
        let Some(offset) = e.offset else { return };
        if out.writes.len() == MOST_WRITES {
            out.left_out += 1;
            return;
        }
        let at = [None; STAGES.len()];
        // Two that wait for room at once are mixed, and their parts are found late.
        let place = out.writes.partition_point(|w| w.offset <= offset);
        out.writes.insert(place, Write { offset, bytes: e.size_bytes, from_ns, at_ns, at, again: false });
    }
}

/// The other end in the log of another device.
pub(super) struct Elsewhere<'a> {
    pub store: &'a Store,
    /// Its socket in that log.
    pub socket: i64,
    pub clock: &'a Clock,
}

/// `peer`: as the sender's log would have it; if it is elsewhere, with times by the sender's clock and a number that the sender's log does not have.
pub(super) fn gather(
    store: &Store,
    sender: &SocketRow,
    peer: Option<&SocketRow>,
    elsewhere: Option<&Elsewhere<'_>>,
    progress: Progress<'_>,
) -> Result<Gathered> {
    let both: Vec<SocketRow> = std::iter::once(sender).chain(peer).cloned().collect();
    let ids: Vec<i64> = match elsewhere {
        Some(_) => vec![sender.socket_id],
        None => both.iter().map(|s| s.socket_id).collect(),
    };
    let mut far = match (elsewhere, peer) {
        (Some(e), Some(p)) => brought_here(e, p.socket_id)?,
        _ => VecDeque::new(),
    };
    let mut follow = Follow::new(&both);
    let bound_ns = elsewhere.map_or(0, |e| e.clock.bound_ns);
    let mut lives = Lives::new(sender.sent_seq, peer.and_then(|p| p.received_seq), 2 * bound_ns);
    let (mut out, mut calls) = (Gathered { bound_ns, ..Gathered::default() }, Calls::default());
    let mut ways = Ways::default();
    let mut queue = Queue::default();
    let mut taken = Taken::default();
    let mut flight = Flight::default();
    let mut answers = Answers::new(sender, peer);
    // The streams of both ends begin with the same byte.
    let alike = peer.is_some_and(|p| p.received_seq == sender.sent_seq);
    let (mut connected, mut closed) = (false, false);
    let mut failed_ns = None;
    let mut untaken_from = peer.and_then(|p| p.received_seq).map(|seq| seq as u32);
    let all = store.table::<AppEventRow>()?.rows() + store.table::<TcpStateRow>()?.rows() + far.len() as u64;
    let mut done = 0;
    let mut pass = |moment: Moment<'_>, out: &mut Gathered| -> Result<()> {
        if done % STEP == 0 && !progress(done, all) {
            return Err(Error::Abandoned);
        }
        done += 1;
        match moment {
            Moment::Crossing(e) => {
                let Some(what) = u8::try_from(e.crossing).ok().and_then(Crossing::from_u8) else {
                    return Ok(());
                };
                let own = e.socket_id == sender.socket_id;
                let spans = follow.crossing(what, e);
                out.last_ns = out.last_ns.max(e.at_ns);
                spans.iter().filter(|_| own).for_each(|s| add(&mut out.held, s));
                let end = e.offset.map(|o| o + e.size_bytes).filter(|_| e.size_bytes > 0);
                if own {
                    let failed = sender.error.is_some_and(|error| e.size_bytes == -i64::from(error));
                    failed_ns = failed_ns.or(Some(e.at_ns).filter(|_| failed && connected));
                    calls.pass(what, e, connected, out);
                    out.sizes.pass(what, e);
                    match (what, end) {
                        // Into the queue of a further device.
                        (Crossing::ToDevice, Some(end)) if given_on(e) => {
                            queue.pass(e.at_ns, queue.entered, queue.left.min(end - e.size_bytes));
                        }
                        (Crossing::ToDevice, Some(end)) => {
                            queue.pass(e.at_ns, queue.entered.max(end), queue.left);
                            flight.leaves(e, out.mss);
                        }
                        (Crossing::ToDriver, Some(end)) => {
                            queue.pass(e.at_ns, queue.entered, queue.left.max(end));
                        }
                        (Crossing::Acked, Some(end)) => {
                            queue.pass(e.at_ns, queue.entered, queue.left.max(end));
                            out.heard.push(e.at_ns);
                            if out.acks.last().is_none_or(|a| a.1 < end) {
                                out.acks.push((e.at_ns, end));
                            }
                            out.small_acked.extend(flight.acknowledged(end).then_some((e.at_ns, end)));
                        }
                        (Crossing::Recv, Some(end)) => {
                            out.reads.push(e.at_ns);
                            answers.read(e.at_ns, end);
                        }
                        (Crossing::Retransmit, _) => {
                            // The kernel sends nothing again that lies in a queue of its own: one that is full has dropped it.
                            queue.pass(e.at_ns, queue.entered.min(queue.left), queue.left);
                            let segments = e.segments.max(1) as u64;
                            out.again += segments;
                            out.syns_again += if connected { 0 } else { segments };
                            out.fast.again(e.at_ns, e.offset);
                        }
                        _ => {}
                    }
                } else if e.size_bytes > 0 {
                    answers.wrote(what, e, out);
                    match (what, e.offset) {
                        (Crossing::Recv, _) => out.peer_reads = true,
                        (Crossing::FromNetwork, Some(from)) if alike => {
                            taken.pass(e.at_ns, from, from + e.size_bytes, &mut out.taken);
                        }
                        _ => {}
                    }
                }
                if own != is_received(what) {
                    lives.pass(what, e, e.at_ns, &mut |life| ways.keep(&out.writes, life));
                }
            }
            Moment::State(s) if s.state == 0 => {}
            Moment::State(s) => {
                let own = s.socket_id == sender.socket_id;
                let spans = follow.state(s);
                out.last_ns = out.last_ns.max(s.at_ns);
                if !OPEN.contains(&s.state) {
                    closed = true;
                    out.closed_ns = out.closed_ns.or(Some(s.at_ns)).filter(|_| out.connected);
                }
                if s.tcp_flags.is_some_and(|f| f & RST != 0) {
                    out.reset_ns = out.reset_ns.or(Some(s.at_ns));
                }
                if own {
                    out.states += 1;
                    out.ending.observe(s);
                    connected |= s.state != SYN_SENT;
                    out.fast.connected_ns = out.fast.connected_ns.or(connected.then_some(s.at_ns));
                    // What went with the SYN has no crossing of its acknowledgement.
                    let acked =
                        sender.sent_seq.map_or(0, |seq| (s.snd_una as u32).wrapping_sub(seq as u32) as i32);
                    let first = connected && out.acks.is_empty() && acked > 0;
                    out.acks.extend(first.then_some((s.at_ns, i64::from(acked))));
                    out.connected |= !UNCONNECTED.contains(&s.state);
                    if let Some(start) = sender.sent_seq.filter(|_| out.connected) {
                        let end = u32::from(!WITHOUT_END.contains(&s.state));
                        let given = (s.write_seq as u32).wrapping_sub(start as u32).wrapping_sub(end);
                        out.given_bytes = out.given_bytes.max(i64::from(given as i32));
                    }
                    out.mss = out.mss.max(s.mss);
                    out.fq_paces |= s.pacing == Some(BY_FQ) && s.pacing_bytes_s.is_some();
                    spans.iter().for_each(|s| add(&mut out.held, s));
                    if s.crossing == FROM_NETWORK {
                        out.heard.push(s.at_ns);
                    }
                } else if s.state == SYN_SENT {
                    out.peer_connects = true;
                } else if s.state == SYN_RECV {
                    out.fast.answers(s, sender.sent_seq.filter(|_| alike));
                } else if !UNCONNECTED.contains(&s.state) || s.tcp_flags.is_some_and(|f| f & RST != 0) {
                    let from = *untaken_from.get_or_insert(s.copied_seq as u32);
                    // The end of the stream has a number, too.
                    if (s.copied_seq as u32).wrapping_sub(from) as i32 > 1 {
                        out.peer_takes = true;
                    } else {
                        out.untaken_ns = Some(s.at_ns);
                    }
                }
            }
            Moment::Gap(g) => out.gap(g),
        }
        Ok(())
    };
    in_order(store, &ids, |moment| {
        while let Some(earlier) = far.pop_front_if(|m| m.at_ns() <= at_ns(&moment)) {
            pass(earlier.as_moment(), &mut out)?;
        }
        pass(moment, &mut out)
    })?;
    while let Some(rest) = far.pop_front() {
        pass(rest.as_moment(), &mut out)?;
    }
    // What nobody has read, and what was not sent, of a connection that goes on: until the log ends.
    // With a log at each end until the first of them ends: what the other would have had to tell is missing then.
    let there_ns = elsewhere.map_or(i64::MAX, |e| e.clock.first(e.store.end_ns()));
    let end_ns = store.end_ns().min(there_ns);
    // The last that is known of a socket that its kernel gave up is that, or a call that had the error, at once or later.
    let given_up = sender.error.is_some() && connected && out.reset_ns.is_none();
    out.given_up_ns = given_up.then(|| failed_ns.map_or(sender.last_ns, |at| sender.last_ns.min(at)));
    let end_ns = out.given_up_ns.unwrap_or(end_ns);
    if connected && (!closed || given_up) && end_ns > out.last_ns {
        out.last_ns = end_ns;
        let last = follow.until(sender.socket_id, out.last_ns);
        last.iter().for_each(|s| add(&mut out.held, s));
    }
    follow.finish(&mut |id, span| {
        if id == sender.socket_id {
            add(&mut out.held, &span);
        }
    });
    let queued = queue.over(out.last_ns);
    mark(&mut out.held, &queued, |h| h.queued = true);
    answers.over(&mut out);
    lives.finish(true, &mut |life| ways.keep(&out.writes, life));
    out.mended = ways.mended;
    out.mended.sort_unstable();
    for life in ways.last_bytes {
        if let Some(w) = whose(&out.writes, &life).map(|i| &mut out.writes[i]) {
            (w.at, w.again) = (life.at, life.again);
        }
    }
    out.writes.iter_mut().for_each(|w| out.fast.place(w));
    Ok(out)
}

fn at_ns(m: &Moment<'_>) -> i64 {
    match m {
        Moment::Crossing(e) => e.at_ns,
        Moment::State(s) => s.at_ns,
        Moment::Gap(g) => g.from_ns,
    }
}

/// A moment of another log, by this one's clock.
enum Brought {
    Crossing(AppEventRow),
    State(Box<TcpStateRow>),
    Gap(GapRow),
}

impl Brought {
    fn as_moment(&self) -> Moment<'_> {
        match self {
            Brought::Crossing(e) => Moment::Crossing(e),
            Brought::State(s) => Moment::State(s),
            Brought::Gap(g) => Moment::Gap(g),
        }
    }

    fn at_ns(&self) -> i64 {
        at_ns(&self.as_moment())
    }
}

/// What the other log has of the other end. In memory: it is one socket's.
fn brought_here(e: &Elsewhere<'_>, socket_id: i64) -> Result<VecDeque<Brought>> {
    let mut out = VecDeque::new();
    in_order(e.store, &[e.socket], |moment| {
        let here = |ns: i64| e.clock.first(ns);
        out.push_back(match moment {
            Moment::Crossing(r) => {
                Brought::Crossing(AppEventRow { at_ns: here(r.at_ns), socket_id, ..r.clone() })
            }
            Moment::State(r) => {
                Brought::State(Box::new(TcpStateRow { at_ns: here(r.at_ns), socket_id, ..r.clone() }))
            }
            Moment::Gap(r) => {
                Brought::Gap(GapRow { from_ns: here(r.from_ns), to_ns: here(r.to_ns), ..r.clone() })
            }
        });
        Ok::<(), Error>(())
    })?;
    Ok(out)
}

/// The write whose last byte it has. Writes are cut where they end, so there is one at most.
fn whose(writes: &[Write], life: &Life) -> Option<usize> {
    let i = writes.partition_point(|w| w.last() < life.offset);
    writes.get(i).filter(|w| w.last() < life.offset + life.bytes).map(|_| i)
}

/// Lives that are over, as far as they are of use.
#[derive(Default)]
struct Ways {
    last_bytes: Vec<Life>,
    mended: Vec<(i64, i64)>,
}

impl Ways {
    fn keep(&mut self, writes: &[Write], life: &Life) {
        if whose(writes, life).is_some() {
            self.last_bytes.push(*life);
        }
        let came = || STAGES.iter().zip(life.at).filter(|(s, _)| is_received(**s)).find_map(|(_, at)| at);
        if let Some(at) = life.again.then(came).flatten() {
            self.mended.push((at, life.offset));
        }
    }
}

/// Cuts what held the sender back where one of these times, in order and without overlap, begins or ends.
pub(super) fn mark(held: &mut Vec<HeldBy>, times: &[(i64, i64)], set: impl Fn(&mut HeldBy)) {
    let mut out = Vec::with_capacity(held.len());
    for h in held.drain(..) {
        let first = times.partition_point(|t| t.1 <= h.from_ns);
        let mut from_ns = h.from_ns;
        for t in times[first..].iter().take_while(|t| t.0 < h.to_ns) {
            if t.0 > from_ns {
                out.push(HeldBy { from_ns, to_ns: t.0, ..h });
            }
            let mut within = HeldBy { from_ns: t.0.max(from_ns), to_ns: t.1.min(h.to_ns), ..h };
            set(&mut within);
            from_ns = within.to_ns;
            out.push(within);
        }
        if from_ns < h.to_ns {
            out.push(HeldBy { from_ns, ..h });
        }
    }
    *held = out;
}

fn add(to: &mut Vec<HeldBy>, s: &Span) {
    let new = HeldBy {
        from_ns: s.from_ns,
        to_ns: s.to_ns,
        held: s.held,
        wants: s.wants(),
        repairs: s.repairs,
        queued: false,
        on_path: false,
        asks: false,
    };
    if new.from_ns >= new.to_ns {
        return;
    }
    match to.last_mut() {
        Some(last)
            if *last == (HeldBy { from_ns: last.from_ns, to_ns: last.to_ns, ..new })
                && last.to_ns == new.from_ns =>
        {
            last.to_ns = new.to_ns;
        }
        _ => to.push(new),
    }
}
