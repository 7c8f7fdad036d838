//! A socket over time: bytes at each crossing, TCP's state, what held it back and what happened, in bins of one width.
//!
//! A bin keeps sums and extremes, so nothing that was there is missing from it, however wide it is. State is a step function:
//! what was logged last is in force until the next, also where a bin has no record. Memory is the bins, whatever is read.

use super::follow::{Follow, Span};
use super::given_on;
use super::limits::Held;
use super::order::{Moment, in_order_within};
use crate::abreast::Progress;
use crate::codes::EAGAIN;
use crate::error::{Error, Result};
use crate::store::Store;
use kpat_model::Crossing;
use kpat_store::Row;
use kpat_store::tables::*;
use std::collections::BTreeMap;

/// More bins than pixels of any screen.
pub const MOST_BINS: usize = 8192;

/// What is asked for.
#[derive(Clone, Debug)]
pub struct Window {
    /// `None`: all sockets in sum; no TCP state then.
    pub socket: Option<i64>,
    /// Boot clock; `None`: from the first that is known of the socket.
    pub from_ns: Option<i64>,
    /// The first moment behind it.
    pub to_ns: Option<i64>,
    pub bins: usize,
}

/// What crossed within one bin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Crossed {
    /// Failed calls left out.
    pub events: u64,
    pub bytes: i64,
    /// Where packets cross.
    pub frames: u64,
    /// Of one event's bytes; 0 where nothing crossed.
    pub least: i64,
    pub most: i64,
}

impl Crossed {
    fn add(&mut self, e: &AppEventRow) {
        self.least = if self.events == 0 { e.size_bytes } else { self.least.min(e.size_bytes) };
        self.most = self.most.max(e.size_bytes);
        self.events += 1;
        self.bytes += e.size_bytes;
        self.frames += super::frames(e);
    }
}

/// Something that happened at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mark {
    /// Counted in frames.
    Retransmission,
    /// TCP takes more segments for lost than before; counted in segments.
    Loss,
    /// Another state of congestion control.
    Congestion,
    /// The other side offers no room any more.
    ZeroWindow,
    /// A call found no room, or nothing to read, and would not wait.
    WouldBlock,
    /// A call failed otherwise.
    Failure,
}

impl Mark {
    pub const ALL: [Mark; 6] = [
        Mark::Retransmission,
        Mark::Loss,
        Mark::Congestion,
        Mark::ZeroWindow,
        Mark::WouldBlock,
        Mark::Failure,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Mark::Retransmission => "retransmission",
            Mark::Loss => "taken for lost",
            Mark::Congestion => "congestion state",
            Mark::ZeroWindow => "zero window",
            Mark::WouldBlock => "would block",
            Mark::Failure => "failed call",
        }
    }
}

/// A number out of TCP's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Metric {
    Cwnd,
    /// Nothing as long as it is infinite.
    Ssthresh,
    InFlight,
    Srtt,
    Rttvar,
    Rto,
    SndWnd,
    RcvWnd,
    Unacked,
    Pacing,
    Delivery,
}

impl Metric {
    pub const ALL: [Metric; 11] = [
        Metric::Cwnd,
        Metric::Ssthresh,
        Metric::InFlight,
        Metric::Srtt,
        Metric::Rttvar,
        Metric::Rto,
        Metric::SndWnd,
        Metric::RcvWnd,
        Metric::Unacked,
        Metric::Pacing,
        Metric::Delivery,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Metric::Cwnd => "cwnd",
            Metric::Ssthresh => "ssthresh",
            Metric::InFlight => "in_flight",
            Metric::Srtt => "srtt",
            Metric::Rttvar => "rttvar",
            Metric::Rto => "rto",
            Metric::SndWnd => "snd_wnd",
            Metric::RcvWnd => "rcv_wnd",
            Metric::Unacked => "unacked",
            Metric::Pacing => "pacing",
            Metric::Delivery => "delivery",
        }
    }

    pub fn unit(self) -> &'static str {
        match self {
            Metric::Cwnd | Metric::Ssthresh | Metric::InFlight => "segments",
            Metric::Srtt | Metric::Rttvar | Metric::Rto => "ns",
            Metric::SndWnd | Metric::RcvWnd | Metric::Unacked => "bytes",
            Metric::Pacing | Metric::Delivery => "bytes/s",
        }
    }

    fn of(self, s: &TcpStateRow) -> Option<i64> {
        // Sequence numbers wrap at 32 bits.
        let sequence = |to: i64, from: i64| (to - from).rem_euclid(1 << 32);
        match self {
            Metric::Cwnd => Some(s.snd_cwnd),
            Metric::Ssthresh => s.snd_ssthresh,
            Metric::InFlight => Some(s.in_flight),
            Metric::Srtt => Some(s.srtt_ns).filter(|t| *t > 0),
            Metric::Rttvar => Some(s.rttvar_ns).filter(|_| s.srtt_ns > 0),
            Metric::Rto => s.rto_ns,
            Metric::SndWnd => Some(s.snd_wnd),
            Metric::RcvWnd => Some(s.rcv_wnd),
            Metric::Unacked => Some(sequence(s.snd_nxt, s.snd_una)),
            Metric::Pacing => s.pacing_bytes_s,
            Metric::Delivery => s.rate_bytes_s,
        }
    }
}

/// A number over time: extremes within each bin, and what was in force at its end. `None`: not known, or infinite.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Track {
    pub low: Vec<Option<i64>>,
    pub high: Vec<Option<i64>>,
    pub last: Vec<Option<i64>>,
}

impl Track {
    fn new(bins: usize) -> Track {
        Track { low: vec![None; bins], high: vec![None; bins], last: vec![None; bins] }
    }

    fn add(&mut self, bin: usize, value: Option<i64>) {
        self.last[bin] = value;
        let Some(v) = value else { return };
        self.low[bin] = Some(self.low[bin].map_or(v, |l| l.min(v)));
        self.high[bin] = Some(self.high[bin].map_or(v, |h| h.max(v)));
    }
}

/// TCP's state over time.
#[derive(Clone, Debug)]
pub struct Tcp {
    /// In the order of [`Metric::ALL`].
    tracks: Vec<Track>,
    /// Nanoseconds of each bin, in the order of [`Held::ALL`].
    held_ns: Vec<Vec<i64>>,
    pub recovery_ns: Vec<i64>,
}

impl Tcp {
    pub fn track(&self, of: Metric) -> &Track {
        &self.tracks[of as usize]
    }

    /// Per bin; what is missing to its width is not known.
    pub fn held_ns(&self, by: Held) -> &[i64] {
        &self.held_ns[by as usize]
    }
}

/// A time in which crossings are missing from the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    pub from_ns: i64,
    pub to_ns: i64,
    pub lost: i64,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Series {
    pub from_ns: i64,
    pub to_ns: i64,
    pub bins: usize,
    pub crossings: BTreeMap<Crossing, Vec<Crossed>>,
    /// How many in each bin.
    pub marks: BTreeMap<Mark, Vec<u64>>,
    /// `None`: not TCP, or no state was recorded.
    pub tcp: Option<Tcp>,
    /// In order, and apart; those closer together than a bin is wide are one.
    pub gaps: Vec<Gap>,
}

impl Series {
    fn new(from_ns: i64, to_ns: i64, bins: usize) -> Series {
        let from_ns = from_ns.min(i64::MAX - 1);
        let to_ns = to_ns.max(from_ns + 1);
        // A damaged log's times may be further apart than a signed number can tell.
        let bins = bins.clamp(1, MOST_BINS).min(to_ns.abs_diff(from_ns) as usize);
        Series {
            from_ns,
            to_ns,
            bins,
            crossings: BTreeMap::new(),
            marks: BTreeMap::new(),
            tcp: None,
            gaps: Vec::new(),
        }
    }

    /// All of it, ns.
    fn wide(&self) -> i128 {
        i128::from(self.to_ns) - i128::from(self.from_ns)
    }

    /// The first moment of a bin; of the one behind the last: the end.
    pub fn edge(&self, bin: usize) -> i64 {
        let bins = self.bins as i128;
        (i128::from(self.from_ns) + (self.wide() * bin as i128 + bins - 1) / bins) as i64
    }

    fn bin(&self, at_ns: i64) -> Option<usize> {
        let inside = (self.from_ns..self.to_ns).contains(&at_ns);
        let place = i128::from(at_ns) - i128::from(self.from_ns);
        inside.then(|| (place * self.bins as i128 / self.wide()) as usize)
    }

    fn mark(&mut self, what: Mark, at_ns: i64, n: u64) {
        if let Some(bin) = self.bin(at_ns) {
            self.marks.entry(what).or_insert_with(|| vec![0; self.bins])[bin] += n;
        }
    }

    fn event(&mut self, e: &AppEventRow) {
        let Some(bin) = self.bin(e.at_ns).filter(|_| !given_on(e)) else { return };
        let Some(what) = u8::try_from(e.crossing).ok().and_then(Crossing::from_u8) else { return };
        if e.size_bytes < 0 {
            // One call that fails is seen at two crossings, and a datagram that a full socket refuses is no call.
            if matches!(what, Crossing::ToTransport | Crossing::ToSocket) {
                return;
            }
            let what = if e.size_bytes == EAGAIN { Mark::WouldBlock } else { Mark::Failure };
            return self.mark(what, e.at_ns, 1);
        }
        if what == Crossing::Retransmit {
            self.mark(Mark::Retransmission, e.at_ns, e.segments.max(1) as u64);
        }
        let bins = self.bins;
        self.crossings.entry(what).or_insert_with(|| vec![Crossed::default(); bins])[bin].add(e);
    }

    fn change(&mut self, b: &TcpStateRow, now: &TcpStateRow) {
        if now.lost_out > b.lost_out {
            self.mark(Mark::Loss, now.at_ns, (now.lost_out - b.lost_out) as u64);
        }
        if now.ca_state != b.ca_state {
            self.mark(Mark::Congestion, now.at_ns, 1);
        }
        // Before the connection is made there is none yet.
        if now.snd_wnd == 0 && b.snd_wnd > 0 {
            self.mark(Mark::ZeroWindow, now.at_ns, 1);
        }
    }

    fn tcp(&mut self) -> &mut Tcp {
        let bins = self.bins;
        self.tcp.get_or_insert_with(|| Tcp {
            tracks: vec![Track::new(bins); Metric::ALL.len()],
            held_ns: vec![vec![0; bins]; Held::ALL.len()],
            recovery_ns: vec![0; bins],
        })
    }

    /// `state` was in force until `until_ns`.
    fn in_force(&mut self, state: &TcpStateRow, until_ns: i64) {
        let (from, to) = (state.at_ns.max(self.from_ns), until_ns.min(self.to_ns));
        let (Some(first), Some(last)) = (self.bin(from), self.bin(to - 1)) else { return };
        // One that was replaced at the same moment is an extreme all the same.
        let last = last.max(first);
        let tcp = self.tcp();
        for bin in first..=last {
            for (track, metric) in tcp.tracks.iter_mut().zip(Metric::ALL) {
                track.add(bin, metric.of(state));
            }
        }
    }

    fn held(&mut self, span: &Span) {
        let (from, to) = (span.from_ns.max(self.from_ns), span.to_ns.min(self.to_ns));
        let (Some(first), Some(last)) = (self.bin(from), self.bin(to - 1)) else { return };
        for bin in first..=last {
            let ns = (self.edge(bin + 1).min(to) - self.edge(bin).max(from)).max(0);
            let tcp = self.tcp();
            tcp.held_ns[span.held as usize][bin] += ns;
            tcp.recovery_ns[bin] += if span.repairs { ns } else { 0 };
        }
    }

    fn gap(&mut self, g: &GapRow) {
        let (from_ns, to_ns) = (g.from_ns.max(self.from_ns), g.to_ns.min(self.to_ns));
        if from_ns > to_ns {
            return;
        }
        self.gaps.push(Gap { from_ns, to_ns, lost: g.lost.max(0) });
        if self.gaps.len() > 4 * MOST_BINS {
            self.join_gaps();
        }
    }

    fn join_gaps(&mut self) {
        let wide = self.wide() / self.bins as i128;
        self.gaps.sort_by_key(|g| g.from_ns);
        self.gaps.dedup_by(|g, before| {
            let one = i128::from(g.from_ns) - i128::from(before.to_ns) <= wide;
            if one {
                before.to_ns = before.to_ns.max(g.to_ns);
                before.lost += g.lost;
            }
            one
        });
    }
}

/// So long before a window begins it is looked what was given, left and was acknowledged.
const BEFORE_NS: i64 = 5_000_000_000;

/// Of the columns, what is read.
const EVENT: [&str; 5] = ["at_ns", "socket_id", "crossing", "size_bytes", "segments"];
const STATE: [&str; 22] = [
    "at_ns",
    "socket_id",
    "state",
    "ca_state",
    "snd_cwnd",
    "snd_ssthresh",
    "snd_wnd",
    "rcv_wnd",
    "srtt_ns",
    "rttvar_ns",
    "rto_ns",
    "in_flight",
    "lost_out",
    "write_seq",
    "snd_una",
    "snd_nxt",
    "app_limited",
    "busy",
    "cwnd_limited",
    "pacing",
    "rate_bytes_s",
    "pacing_bytes_s",
];

/// Reads what the window shows; `None`: there is no such socket.
///
/// Errors: [`Error::Abandoned`].
pub fn series(store: &Store, window: &Window, progress: Progress<'_>) -> Result<Option<Series>> {
    let mut sockets: Vec<SocketRow> = store.all()?;
    sockets.retain(|s| window.socket.is_none_or(|id| id == s.socket_id));
    let (Some(first), Some(last)) =
        (sockets.iter().map(|s| s.first_ns).min(), sockets.iter().map(|s| s.last_ns).max())
    else {
        return Ok(None);
    };
    let from_ns = window.from_ns.unwrap_or(first);
    let mut s = Series::new(from_ns, window.to_ns.unwrap_or(last.saturating_add(1)), window.bins);
    let wanted = |id: i64| window.socket.is_none_or(|w| w == id);
    let known = s.from_ns.max(first)..=s.to_ns.min(last.saturating_add(1));

    let (events, states) = (store.table::<AppEventRow>()?, store.table::<TcpStateRow>()?);
    let of_events = events.groups_where("at_ns", &known);
    let of_states = states.groups_where("at_ns", &known);
    let all = (of_events.len() + of_states.len()) as u64;
    let mut done = 0;
    let mut step = || {
        done += 1;
        progress(done - 1, all).then_some(()).ok_or(Error::Abandoned)
    };
    for group in of_events {
        step()?;
        read(&events, group, &EVENT, |e: AppEventRow| {
            if wanted(e.socket_id) {
                s.event(&e);
            }
        })?;
    }
    let earlier = |g: &usize| states.range(*g, "at_ns").is_some_and(|r| *r.end() < *known.start());
    let before_all = (0..states.groups()).take_while(earlier).count();
    let mut before: BTreeMap<i64, TcpStateRow> = BTreeMap::new();
    if let Some(id) = window.socket {
        before.extend(last_before(&states, before_all, id, first)?.map(|b| (id, b)));
    }
    for group in of_states {
        step()?;
        read(&states, group, &STATE, |now: TcpStateRow| {
            if !wanted(now.socket_id) || now.state == 0 {
                return;
            }
            if let Some(b) = before.get(&now.socket_id) {
                s.change(b, &now);
                if window.socket.is_some() {
                    s.in_force(b, now.at_ns);
                }
            }
            before.insert(now.socket_id, now);
        })?;
    }
    if let (Some(id), Some(b)) = (window.socket, before.values().next()) {
        s.in_force(b, last.saturating_add(1));
        holds(store, id, &mut s)?;
    }
    let gaps = store.table::<GapRow>()?;
    read_all(&gaps, |g: GapRow| s.gap(&g))?;
    s.join_gaps();
    Ok(Some(s))
}

/// What held it back.
fn holds(store: &Store, id: i64, s: &mut Series) -> Result<()> {
    let sockets: Vec<SocketRow> = store.all()?;
    let mut follow = Follow::new(&sockets);
    let from = s.from_ns.saturating_sub(BEFORE_NS);
    let states = store.table::<TcpStateRow>()?;
    let earlier = |g: &usize| states.range(*g, "at_ns").is_some_and(|r| *r.end() < from);
    let before_all = (0..states.groups()).take_while(earlier).count();
    if let Some(b) = last_before(&states, before_all, id, i64::MIN)? {
        follow.begin(b, from);
    }
    let only: Vec<i64> = [Some(id), follow.peer(id)].into_iter().flatten().collect();
    in_order_within(store, &only, from..=s.to_ns, |moment| {
        match moment {
            Moment::Crossing(e) => {
                let what = u8::try_from(e.crossing).ok().and_then(Crossing::from_u8);
                let spans = what.map(|what| follow.crossing(what, e)).unwrap_or_default();
                spans.iter().filter(|_| e.socket_id == id).for_each(|span| s.held(span));
            }
            Moment::State(now) => {
                let spans = follow.state(now);
                spans.iter().filter(|_| now.socket_id == id).for_each(|span| s.held(span));
            }
            Moment::Gap(_) => {}
        }
        Ok::<(), Error>(())
    })?;
    follow.finish(&mut |of, span| {
        if of == id {
            s.held(&span);
        }
    });
    Ok(())
}

/// The state of a socket that was logged last in the row groups before `end`.
fn last_before(
    states: &kpat_store::TableFile,
    end: usize,
    socket: i64,
    first_ns: i64,
) -> Result<Option<TcpStateRow>> {
    let mut found = None;
    for group in (0..end).rev() {
        if states.range(group, "at_ns").is_some_and(|r| *r.end() < first_ns) {
            break;
        }
        read(states, group, &STATE, |s: TcpStateRow| {
            if s.socket_id == socket {
                found = Some(s);
            }
        })?;
        if found.is_some() {
            break;
        }
    }
    Ok(found)
}

fn read<R: Row>(
    table: &kpat_store::TableFile,
    group: usize,
    columns: &[&str],
    mut f: impl FnMut(R),
) -> Result<()> {
    let mut reader = table.batches(vec![group], columns)?;
    while let Some(batch) = reader.next(8192)? {
        (0..batch.rows).for_each(|i| f(R::get(&batch, i)));
    }
    Ok(())
}

fn read_all<R: Row>(table: &kpat_store::TableFile, f: impl FnMut(R)) -> Result<()> {
    Ok(table.each((0..table.groups()).collect(), f)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As a damaged log has them.
    #[test]
    fn times_further_apart_than_a_signed_number_tells() {
        let s = Series::new(i64::MIN, i64::MAX, 400);
        for (at_ns, bin) in [(i64::MIN, 0), (0, 200), (i64::MAX - 1, 399)] {
            assert_eq!(s.bin(at_ns), Some(bin));
            assert!((s.edge(bin)..s.edge(bin + 1)).contains(&at_ns), "{at_ns}");
        }
        // A window that begins behind all time.
        let mut s = Series::new(i64::MAX, i64::MIN, 10);
        s.gap(&GapRow { from_ns: i64::MIN, to_ns: i64::MAX, ..GapRow::default() });
        s.join_gaps();
        assert_eq!((s.bins, s.gaps.len()), (1, 1));
    }
}
