//! What time is counted for: by stage, and while nothing was under way.

use super::Stage;
use super::gather::Gathered;
use super::owed;
use super::threads::{PROGRAMS, Pieces};

/// Time by stage, and how much of it may be another stage's: while records were being lost, and as far as two clocks leave a pause open.
#[derive(Default)]
pub(super) struct Shares {
    pub ns: [f64; Stage::ALL.len()],
    pub unsure_ns: [f64; Stage::ALL.len()],
    /// When that was, of [`PROGRAMS`].
    pub pieces: [Pieces; 2],
    /// Of the peer's application, until it wrote back what it had read all of.
    pub answering_ns: i64,
    /// Of that, after it had begun to: what it had written was read.
    pub rest_ns: i64,
    /// Pauses in which nothing came, and how long they were.
    pub silent: (u64, i64),
}

impl Shares {
    /// A part of this time.
    pub fn add(&mut self, stage: Stage, from: i64, to: i64, part: f64, g: &Gathered) {
        self.ns[stage as usize] += (to - from) as f64 * part;
        self.unsure_ns[stage as usize] += lost_within(g, from, to) as f64 * part;
        if let Some(at) = PROGRAMS.iter().position(|s| *s == stage) {
            self.pieces[at].push((from, to, part));
        }
    }
}

/// Nothing was under way: the application's time, but for that in which an answer was, or was still to be written, if it read one. Did it?
pub(super) fn pause(from: i64, to: i64, g: &Gathered, shares: &mut Shares) -> bool {
    // `clocks`: it begins by one end's clock and is over by the other's.
    let mut add_all = |stage: Stage, a: i64, b: i64, clocks: bool| {
        if b <= a {
            return;
        }
        shares.add(stage, a, b, 1.0, g);
        if clocks {
            shares.unsure_ns[stage as usize] += (b - a).min(g.bound_ns) as f64;
        }
        if stage == Stage::PeerApplication {
            shares.answering_ns += b - a;
        }
    };
    // Who owes one an answer does not wait for another's next question, and who has one answer may wait for another.
    let mut add = |stage: Stage, a: i64, b: i64, clocks: bool| {
        for (awaits, a, b) in owed::parts(&g.open.awaited, a, b) {
            for (owes, a, b) in owed::parts(&g.open.owed, a, b) {
                let stage = match stage {
                    Stage::Application if awaits => Stage::PeerApplication,
                    Stage::PeerApplication | Stage::Answer if owes && !awaits => Stage::Application,
                    _ => stage,
                };
                add_all(stage, a, b, clocks);
            }
        }
    };
    let Some(read) =
        g.reads.partition_point(|t| *t <= to).checked_sub(1).map(|i| g.reads[i]).filter(|t| *t > from)
    else {
        let of_dropped = g.unanswered.binary_search(&from).is_ok();
        add(if of_dropped { Stage::Loss } else { Stage::Application }, from, to, true);
        return false;
    };
    let answer = g.answers.get(g.answers.partition_point(|t| *t < from)).copied().filter(|t| *t < read);
    let answer = answer.unwrap_or(from);
    add(Stage::PeerApplication, from, answer, false);
    let (mut at, mut rest_ns) = (answer, 0);
    let first = g.read_up.partition_point(|up| up.1 <= answer);
    for up in g.read_up[first..].iter().take_while(|up| up.0 < read) {
        let (from, to) = (up.0.max(at), up.1.min(read));
        add(Stage::Answer, at, from, true);
        add(Stage::PeerApplication, from, to, true);
        (at, rest_ns) = (to, rest_ns + to - from);
    }
    add(Stage::Answer, at, read, true);
    add(Stage::Application, read, to, false);
    shares.rest_ns += rest_ns;
    true
}

/// How much of this time lies in gaps.
pub(super) fn lost_within(g: &Gathered, from: i64, to: i64) -> i64 {
    let first = g.gaps.partition_point(|gap| gap.1 <= from);
    let all = g.gaps[first..].iter().take_while(|gap| gap.0 < to);
    all.map(|gap| gap.1.min(to) - gap.0.max(from)).sum()
}
