//! The connection as a whole: each moment of it divided equally among the writes that were under way.

use super::gather::Gathered;
use super::line::{self, Far, HeldSums, Piece};
use super::{ByStage, End, SLOWEST, Stage, Sum, Why, WriteLine};
use crate::app::{Held, Spread};
use kpat_model::Crossing;
use kpat_store::tables::SocketRow;

const STAGES: usize = Stage::ALL.len();
/// Places behind the stages: writes that are refused, and kept.
const REFUSED: usize = STAGES;
const KEPT: usize = STAGES + 1;

/// Time by stage, and how much of it records were being lost.
#[derive(Default)]
struct Shares {
    ns: [f64; STAGES],
    unsure_ns: [f64; STAGES],
}

impl Shares {
    fn add(&mut self, stage: Stage, ns: f64, unsure_ns: f64) {
        self.ns[stage as usize] += ns;
        self.unsure_ns[stage as usize] += unsure_ns;
    }
}

pub(super) fn sums(sender: &SocketRow, peer: Option<&SocketRow>, g: &Gathered) -> Why {
    let read = |w: &&super::gather::Write| w.at(Crossing::Recv).is_some();
    let read_to = g.writes.iter().filter(read).map(|w| w.last()).max();
    let far = Far {
        is_there: peer.is_some(),
        reads: read_to.is_some(),
        read_to: read_to.unwrap_or(i64::MIN),
    };
    let held = HeldSums::new(&g.held);
    let mut of_writes: Vec<(Spread, Option<(i64, u64)>)> = vec![Default::default(); STAGES];
    let (mut write_bytes, mut took_ns) = (Spread::default(), Spread::default());
    let mut ends = [0; End::ALL.len()];
    let mut slowest: Vec<WriteLine> = Vec::new();
    // when, which place, one more or one less
    let mut changes: Vec<(i64, usize, i32)> = Vec::new();
    for (n, w) in g.writes.iter().enumerate() {
        let (number, l) = (n as u64 + 1, line::line(w, g, far));
        let stages = l.stages(&held);
        for (i, ns) in stages.iter().enumerate().filter(|(_, ns)| **ns > 0) {
            let (spread, longest) = &mut of_writes[i];
            spread.add(*ns, 1);
            *longest = (*longest).max(Some((*ns, number)));
        }
        write_bytes.add(w.bytes, 1);
        took_ns.add(l.to_ns() - l.from_ns, 1);
        ends[l.end as usize] += 1;
        let mut from = l.from_ns;
        for (piece, to) in &l.pieces {
            let place = match piece {
                Piece::At(stage) => *stage as usize,
                Piece::Refused => REFUSED,
                Piece::Kept => KEPT,
            };
            changes.extend([(from, place, 1), (*to, place, -1)]);
            from = *to;
        }
        rank(&mut slowest, w, &l, number, stages);
    }
    changes.sort_unstable();
    let from_ns = changes.first().map_or(0, |c| c.0);
    let to_ns = changes.last().map_or(0, |c| c.0);
    let (shares, pauses, answered) = divide(&changes, g);
    let sum = |(i, (spread, longest)): (usize, (Spread, Option<(i64, u64)>))| Sum {
        stage: Stage::ALL[i],
        ns: shares.ns[i],
        unsure_ns: shares.unsure_ns[i],
        of_writes: spread,
        longest: longest.map(|l| l.1),
    };
    let within = |from: i64, to: i64| (to.min(to_ns) - from.max(from_ns)).max(0);
    let repairs = g.held.iter().filter(|h| h.repairs && h.held == Held::CongestionWindow);
    Why {
        sender: sender.clone(),
        peer: peer.cloned(),
        from_ns,
        to_ns,
        stages: of_writes.into_iter().enumerate().map(sum).filter(|s| s.ns > 0.0).collect(),
        write_bytes,
        took_ns,
        ends,
        left_out: g.left_out,
        slowest,
        pauses,
        answered,
        states: g.states,
        repairs_ns: repairs.map(|h| within(h.from_ns, h.to_ns)).sum(),
        again: g.again,
        fq_paces: g.fq_paces,
        pacing_unknown: g.held.iter().any(|h| h.held == Held::PacingOrDevice),
        lost: if g.gaps.iter().any(|gap| within(gap.0, gap.1.max(gap.0 + 1)) > 0) { g.lost } else { 0 },
    }
}

fn rank(slowest: &mut Vec<WriteLine>, w: &super::gather::Write, l: &line::Line, number: u64, stages: ByStage) {
    let took = |w: &WriteLine| w.to_ns - w.from_ns;
    if slowest.len() == SLOWEST && slowest.last().is_some_and(|s| took(s) >= l.to_ns() - l.from_ns) {
        return;
    }
    let new = WriteLine {
        number,
        offset: w.offset,
        bytes: w.bytes,
        from_ns: l.from_ns,
        to_ns: l.to_ns(),
        stages,
        end: l.end,
    };
    let at = slowest.partition_point(|s| took(s) >= took(&new));
    slowest.insert(at, new);
    slowest.truncate(SLOWEST);
}

/// The time of `changes`, which are in order; how often nothing was under way, and how often the application then read before it wrote.
fn divide(changes: &[(i64, usize, i32)], g: &Gathered) -> (Shares, u64, u64) {
    let mut shares = Shares::default();
    let mut count = [0i32; STAGES + 2];
    let (mut under_way, mut pauses, mut answered) = (0i32, 0, 0);
    let mut i = 0;
    while i < changes.len() {
        let at = changes[i].0;
        while let Some(c) = changes.get(i).filter(|c| c.0 == at) {
            count[c.1] += c.2;
            under_way += c.2;
            i += 1;
        }
        let Some(next) = changes.get(i).map(|c| c.0) else { break };
        if under_way == 0 {
            pauses += 1;
            answered += u64::from(pause(at, next, g, &mut shares));
            continue;
        }
        let part = |n: i32| f64::from(n) / f64::from(under_way);
        let unsure = lost_within(g, at, next) as f64;
        for stage in Stage::ALL.into_iter().filter(|s| count[*s as usize] > 0) {
            let part = part(count[stage as usize]);
            shares.add(stage, (next - at) as f64 * part, unsure * part);
        }
        for (place, piece) in [(REFUSED, Piece::Refused), (KEPT, Piece::Kept)] {
            if count[place] > 0 {
                kept(at, next, piece, part(count[place]), g, &mut shares);
            }
        }
    }
    (shares, pauses, answered)
}

/// Time in which writes waited in the sender: what held it back.
fn kept(from: i64, to: i64, piece: Piece, part: f64, g: &Gathered, shares: &mut Shares) {
    let mut at = from;
    let mut add = |stage: Stage, a: i64, b: i64| {
        if b > a {
            shares.add(stage, (b - a) as f64 * part, lost_within(g, a, b) as f64 * part);
        }
    };
    let first = g.held.partition_point(|h| h.to_ns <= from);
    for h in g.held[first..].iter().take_while(|h| h.from_ns < to) {
        let (a, b) = (h.from_ns.max(at), h.to_ns.min(to));
        add(Stage::Undecided, at, a);
        add(line::stage(h, piece), a, b);
        at = b.max(at);
    }
    add(Stage::Undecided, at, to);
}

/// Nothing was under way: the application's time, but for that in which an answer was, if it read one. Did it?
fn pause(from: i64, to: i64, g: &Gathered, shares: &mut Shares) -> bool {
    let mut add = |stage: Stage, a: i64, b: i64| {
        if b > a {
            shares.add(stage, (b - a) as f64, lost_within(g, a, b) as f64);
        }
    };
    let Some(read) = g.reads.partition_point(|t| *t <= to).checked_sub(1).map(|i| g.reads[i]).filter(|t| *t > from)
    else {
        add(Stage::Application, from, to);
        return false;
    };
    let answer = g.answers.get(g.answers.partition_point(|t| *t < from)).copied().filter(|t| *t < read);
    let answer = answer.unwrap_or(from);
    add(Stage::PeerApplication, from, answer);
    add(Stage::Answer, answer, read);
    add(Stage::Application, read, to);
    true
}

/// How much of this time lies in gaps.
fn lost_within(g: &Gathered, from: i64, to: i64) -> i64 {
    let first = g.gaps.partition_point(|gap| gap.1 <= from);
    let all = g.gaps[first..].iter().take_while(|gap| gap.0 < to);
    all.map(|gap| gap.1.min(to) - gap.0.max(from)).sum()
}
