//! The line of one write: where its last byte was, from the moment at which the application wanted to write it until the peer had read it.

use super::gather::{Gathered, HeldBy, Write};
use super::{ByStage, End, Stage};
use crate::app::Held;
use kpat_model::Crossing;

/// What a piece of a line is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Piece {
    At(Stage),
    /// Not yet in a call that took it: what holds the sender back tells.
    Refused,
    /// Given, and not yet sent: likewise.
    Kept,
    /// The same, and sent when what was before it was acknowledged: what else does not tell is Nagle's rule.
    Small,
}

/// Sent within its call so soon, and with nothing heard from the peer in between, a segment did not wait.
const AT_ONCE_NS: i64 = 200_000;

/// Ends of the pieces of a line, each beginning where the one before it ends.
#[derive(Clone, Debug)]
pub(super) struct Line {
    pub from_ns: i64,
    pub pieces: Vec<(Piece, i64)>,
    pub end: End,
}

impl Line {
    pub fn to_ns(&self) -> i64 {
        self.pieces.last().map_or(self.from_ns, |p| p.1)
    }

    pub fn go_on(&mut self, piece: Piece, to_ns: Option<i64>) {
        let Some(to_ns) = to_ns else { return };
        let from = self.to_ns();
        if to_ns > from {
            self.pieces.push((piece, to_ns));
        }
    }

    /// How long at each stage.
    pub fn stages(&self, held: &HeldSums<'_>) -> ByStage {
        let mut out = ByStage::default();
        let mut from = self.from_ns;
        for (piece, to) in &self.pieces {
            match piece {
                Piece::At(stage) => out[*stage as usize] += to - from,
                Piece::Refused | Piece::Kept | Piece::Small => held.add(*piece, from, *to, &mut out),
            }
            from = *to;
        }
        out
    }
}

/// What the log can tell of the other end.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Far {
    pub is_there: bool,
    /// It has reads.
    pub reads: bool,
    /// It has neither reads nor anything that it could have read unseen.
    pub silent: bool,
    /// Behind the last byte that a read had, of those that writes end with.
    pub read_to: i64,
    /// Where the first write begins that was sent and never came, if it was sent again: what is behind it waits for it, wherever it is itself.
    pub lost_from: Option<i64>,
}

impl Far {
    pub fn of(g: &Gathered, is_there: bool) -> Far {
        let came = |w: &Write| {
            [Crossing::FromDevice, Crossing::FromNetwork, Crossing::ToSocket, Crossing::Recv]
                .into_iter()
                .any(|c| w.at(c).is_some())
        };
        let read = g.writes.iter().filter(|w| w.at(Crossing::Recv).is_some());
        let read_to = read.map(Write::last).max();
        let over = |w: &Write| match is_there {
            true => came(w) || read_to.is_some_and(|to| w.last() < to),
            false => g.acked_ns(w.last()).is_some(),
        };
        let first = g.writes.iter().find(|w| w.left_ns().is_some() && !over(w));
        Far {
            is_there,
            reads: g.peer_reads || read_to.is_some(),
            silent: g.is_silent(),
            read_to: read_to.unwrap_or(i64::MIN),
            lost_from: first.filter(|w| w.again).map(|w| w.offset),
        }
    }
}

/// Of the write at place `n`.
pub(super) fn line(n: usize, g: &Gathered, far: Far) -> Line {
    use Crossing::*;
    let w: &Write = &g.writes[n];
    let mut l = Line { from_ns: w.from_ns, pieces: Vec::new(), end: End::Read };
    l.go_on(Piece::Refused, Some(w.at_ns));
    let sent = [ToNetwork, ToDevice, ToDriver].map(|c| w.at(c));
    let came = [FromDevice, FromNetwork, ToSocket].map(|c| w.at(c));
    let (leaves, arrives, read) =
        (sent.into_iter().flatten().next(), came.into_iter().flatten().next(), w.at(Recv));
    if let Some(leaves) = leaves {
        let heard = g.heard.partition_point(|t| *t < w.at_ns);
        let alone = g.heard.get(heard).is_none_or(|t| *t > leaves);
        let at_once = alone && leaves - w.at_ns < AT_ONCE_NS;
        let kept = if g.waited_for_an_ack(n, leaves) { Piece::Small } else { Piece::Kept };
        l.go_on(if at_once { Piece::At(Stage::Transport) } else { kept }, Some(leaves));
        l.go_on(Piece::At(Stage::Transport), sent[1]);
        l.go_on(Piece::At(Stage::Queue), sent[2]);
    }
    let refused_ns = g.fast.refused_ns(w);
    l.go_on(Piece::At(Stage::Handshake), refused_ns);
    let wire = match (w.again && refused_ns.is_none(), far.is_there) {
        (true, _) => Stage::Loss,
        (false, true) => Stage::Wire,
        (false, false) => Stage::Beyond,
    };
    let astray = if far.lost_from.is_some_and(|from| from < w.offset) { Stage::Loss } else { wire };
    // Where nothing tells when it left, what lies before is not known.
    let on_its_way = if leaves.is_some() { Piece::At(wire) } else { Piece::At(Stage::Undecided) };
    if !far.is_there {
        let acked = g.acked_ns(w.last());
        l.go_on(on_its_way, acked);
        return match acked {
            Some(_) => Line { end: End::Acknowledged, ..l },
            None => open(l, leaves, sent[2], astray, g),
        };
    }
    if let Some(at) = arrives {
        l.go_on(on_its_way, Some(at));
        let waited = came[2].filter(|t| g.mended(at, *t, w.last()));
        // TCP wakes at once who may read what it has taken, but for the least that the application wants to be woken for (SO_RCVLOWAT).
        let taken =
            g.taken_ns(w.last()).filter(|t| !w.again && came[2].is_some_and(|woken| woken - t > AT_ONCE_NS));
        if waited.is_some() {
            l.go_on(Piece::At(Stage::Loss), came[2]);
        } else if taken.is_some() {
            l.go_on(Piece::At(Stage::PeerStack), taken);
            l.go_on(Piece::At(Stage::PeerApplication), came[2]);
        } else {
            l.go_on(Piece::At(Stage::PeerStack), came[2]);
        }
    }
    // Not every segment is announced to the socket. One that came in order can be read at once.
    let in_order = || arrives.is_some_and(|at| !g.mended(at, read.unwrap_or(at), w.last()));
    let readable = came[2].is_some() || in_order();
    l.go_on(Piece::At(if readable { Stage::PeerApplication } else { Stage::Undecided }), read);
    l.end = match (read, arrives) {
        (Some(_), _) => End::Read,
        _ if w.last() < far.read_to => End::Unseen,
        (None, Some(_)) if !far.reads && !far.silent => End::Readable,
        (None, Some(came)) => {
            let stage = if readable { Stage::PeerApplication } else { Stage::PeerStack };
            l.go_on(Piece::At(stage), Some(g.over_ns()));
            let shown = far.reads || g.reset_ns.is_some() || g.untaken_ns.is_some_and(|at| at > came);
            if shown { never(g) } else { End::Readable }
        }
        (None, None) => return open(l, leaves, sent[2], astray, g),
    };
    l
}

/// It did not come to the peer until the log ended, or the connection was reset or given up.
fn open(mut l: Line, leaves: Option<i64>, driven: Option<i64>, wire: Stage, g: &Gathered) -> Line {
    let piece = match (leaves, driven) {
        (None, _) => Piece::Kept,
        (Some(_), None) => Piece::At(Stage::Queue),
        (Some(_), Some(_)) => Piece::At(wire),
    };
    l.go_on(piece, Some(g.over_ns()));
    Line { end: never(g), ..l }
}

/// Why it has no end.
fn never(g: &Gathered) -> End {
    match (g.reset_ns, g.given_up_ns) {
        (Some(_), _) => End::Reset,
        (None, Some(_)) => End::GivenUp,
        (None, None) => End::Open,
    }
}

/// What a piece of the sender's time is for a write that waits in it.
pub(super) fn stage(h: &HeldBy, piece: Piece) -> Stage {
    match h.held {
        Held::Handshake => Stage::Handshake,
        Held::Reader => Stage::PeerApplication,
        // The rest TCP takes for sent, or what has no end for lost.
        Held::CongestionWindow
        | Held::SendBuffer
        | Held::Cork
        | Held::Nagle
        | Held::Retransmission
        | Held::Pacing
        | Held::Device
        | Held::PacingOrDevice
            if h.asks =>
        {
            Stage::Neighbour
        }
        // More would only wait in that queue.
        Held::CongestionWindow
        | Held::SendBuffer
        | Held::ReceiveWindow
        | Held::Nagle
        | Held::Pacing
        | Held::Device
            if h.queued =>
        {
            Stage::Queue
        }
        // Likewise.
        Held::CongestionWindow | Held::SendBuffer | Held::ReceiveWindow | Held::Pacing if h.on_path => {
            Stage::Path
        }
        Held::Application if piece == Piece::Refused => Stage::Application,
        // TCP had sent all that it had of the call: the call gives it more.
        Held::Application if h.wants => Stage::Transport,
        Held::Application if piece == Piece::Small => Stage::Nagle,
        Held::Application => Stage::Undecided,
        Held::SendBuffer => Stage::SendBuffer,
        Held::Cork if piece == Piece::Small => Stage::Nagle,
        Held::Cork => Stage::Cork,
        Held::Nagle => Stage::Nagle,
        Held::CongestionWindow => Stage::CongestionWindow,
        Held::ReceiveWindow => Stage::ReceiveWindow,
        Held::Retransmission => Stage::Loss,
        Held::Pacing => Stage::Pacing,
        Held::Device | Held::PacingOrDevice if piece == Piece::Small => Stage::Nagle,
        // as the device takes it, though nothing of it is in a queue: a cork, a busy processor
        Held::Device | Held::PacingOrDevice => Stage::Undecided,
    }
}

/// Sums over the pieces of the sender's time, so that a line costs a search.
pub(super) struct HeldSums<'a> {
    held: &'a [HeldBy],
    /// Before each piece, as each of [`KINDS`].
    before: [Vec<ByStage>; KINDS.len()],
}

/// What depends on what held the sender back.
pub(super) const KINDS: [Piece; 3] = [Piece::Refused, Piece::Kept, Piece::Small];

impl HeldSums<'_> {
    pub fn new(held: &[HeldBy]) -> HeldSums<'_> {
        let before = KINDS.map(|kind| {
            let mut sum = ByStage::default();
            let mut all = vec![sum];
            for h in held {
                sum[stage(h, kind) as usize] += h.to_ns - h.from_ns;
                all.push(sum);
            }
            all
        });
        HeldSums { held, before }
    }

    /// The time from the beginning to `t`, by stage.
    fn until(&self, piece: Piece, t: i64) -> ByStage {
        let before = &self.before[KINDS.iter().position(|k| *k == piece).unwrap_or(0)];
        let i = self.held.partition_point(|h| h.to_ns <= t);
        let mut out = before[i];
        if let Some(h) = self.held.get(i).filter(|h| h.from_ns < t) {
            out[stage(h, piece) as usize] += t - h.from_ns;
        }
        out
    }

    fn add(&self, piece: Piece, from: i64, to: i64, out: &mut ByStage) {
        let (a, b) = (self.until(piece, from), self.until(piece, to));
        let mut known = 0;
        for i in 0..out.len() {
            out[i] += b[i] - a[i];
            known += b[i] - a[i];
        }
        out[Stage::Undecided as usize] += to - from - known;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::app::connections::STAGES;

    #[test]
    fn what_was_lost_may_be_of_the_write_itself() {
        let when = |c| match c {
            Crossing::Ask => None,
            Crossing::FromDevice | Crossing::FromNetwork => Some(10),
            Crossing::ToSocket | Crossing::Recv => Some(30),
            _ => Some(0),
        };
        let w = Write { offset: 0, bytes: 9, from_ns: 0, at_ns: 0, at: STAGES.map(when), again: false };
        let far = Far { is_there: true, reads: true, silent: false, read_to: 8, lost_from: None };
        let stages = |mended: Vec<(i64, i64)>| {
            let g = Gathered { writes: vec![w.clone()], mended, last_ns: 50, ..Gathered::default() };
            line(0, &g, far).pieces
        };
        let wire = (Piece::At(Stage::Wire), 10);
        // Its first half came after its second.
        assert_eq!(stages(vec![(30, 0)]), [wire, (Piece::At(Stage::Loss), 30)]);
        assert_eq!(stages(vec![(30, 9)]), [wire, (Piece::At(Stage::PeerStack), 30)]);
    }

    /// Of three writes that were sent, the first of them read, at 20 a reset; the second sent again or not.
    #[test]
    fn what_is_behind_something_lost_waits_for_that() {
        let sent = |c| matches!(c, Crossing::ToDevice | Crossing::ToDriver);
        let write = |offset, again, came: bool| Write {
            offset,
            bytes: 5,
            from_ns: 0,
            at_ns: 0,
            at: STAGES.map(|c| (sent(c) || came && c != Crossing::Ask).then_some(4)),
            again,
        };
        let stages = |again, is_there| {
            let writes = vec![write(0, false, true), write(5, again, false), write(10, false, false)];
            let acks = vec![(6, 5)];
            let g = Gathered { writes, acks, reset_ns: Some(20), last_ns: 20, ..Gathered::default() };
            let l = line(2, &g, Far::of(&g, is_there));
            (l.pieces.last().copied(), l.end)
        };
        let until_reset = |stage| (Some((Piece::At(stage), 20)), End::Reset);
        assert_eq!(stages(true, true), until_reset(Stage::Loss));
        assert_eq!(stages(false, true), until_reset(Stage::Wire), "nothing shows that it was lost");
        assert_eq!(stages(true, false), until_reset(Stage::Loss));
        assert_eq!(stages(false, false), until_reset(Stage::Beyond));
    }

    #[test]
    fn what_nobody_reads_waits() {
        let at = STAGES.map(|c| (c != Crossing::Recv && c != Crossing::Ask).then_some(0));
        let w = Write { offset: 0, bytes: 5, from_ns: 0, at_ns: 0, at, again: false };
        let silent = || Gathered { writes: vec![w.clone()], last_ns: 50, ..Gathered::default() };
        let ended = |g: &Gathered| {
            let reads = g.peer_reads;
            let far =
                Far { is_there: true, reads, silent: g.is_silent(), read_to: i64::MIN, lost_from: None };
            let l = line(0, g, far);
            (l.end, l.to_ns())
        };
        // Nothing shows that it was read, nor, for certain, that it was not; a state does, or a reset, or that the peer's reads are in the log.
        assert_eq!(ended(&silent()), (End::Readable, 50));
        assert_eq!(ended(&Gathered { untaken_ns: Some(30), ..silent() }), (End::Open, 50));
        assert_eq!(ended(&Gathered { peer_reads: true, ..silent() }), (End::Open, 50));
        assert_eq!(ended(&Gathered { reset_ns: Some(20), ..silent() }), (End::Reset, 20));
        // What the sender gives up may still be read: the peer does not know.
        assert_eq!(ended(&Gathered { given_up_ns: Some(20), ..silent() }), (End::Readable, 20));
        assert_eq!(
            ended(&Gathered { given_up_ns: Some(20), peer_reads: true, ..silent() }),
            (End::GivenUp, 20)
        );
        // It takes bytes unseen, or answers: when, nothing tells.
        assert_eq!(ended(&Gathered { peer_takes: true, ..silent() }), (End::Readable, 0));
        assert_eq!(ended(&Gathered { answers: vec![40], ..silent() }), (End::Readable, 0));
    }
}
