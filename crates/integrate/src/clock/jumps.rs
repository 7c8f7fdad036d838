//! Jumps of a sniffer's clock by milliseconds and more, seen before anything is matched: in the votes by order of the file.
//!
//! They only choose the votes that the estimate begins with; where a step was, and how sure that is, the estimate says itself.

use super::vote::{self, Rough, Vote};
use super::{Line, sample};
use crate::matching::Frame;

/// Frames in a row that show a jump.
const ROW: usize = 8;
/// In a file, frames of several interfaces, and packets that waited, may be so far out of order.
const DISORDER_NS: i64 = 100_000_000;
const MAX_PIECES: usize = 32;

/// Frames from this number on are read as if their clock had shown `add` more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Jump {
    pub number: u64,
    pub add: i64,
}

/// What is added to the wall time of a frame.
pub(crate) fn added(jumps: &[Jump], number: u64) -> i64 {
    let i = jumps.partition_point(|j| j.number <= number);
    i.checked_sub(1).map_or(0, |i| jumps[i].add)
}

/// What may have to be added: also what is before and behind.
pub(crate) fn beside(jumps: &[Jump], number: u64) -> [i64; 3] {
    let i = jumps.partition_point(|j| j.number <= number);
    let at = |k: Option<usize>| k.and_then(|k| jumps.get(k)).map_or(0, |j| j.add);
    let here = i.checked_sub(1);
    [
        at(here.and_then(|h| h.checked_sub(1)).or(here)),
        at(here),
        at(Some(i).filter(|i| *i < jumps.len()).or(here)),
    ]
}

/// Boot time of the sighting.
fn seen(v: &Vote) -> i64 {
    v.wall.wrapping_add(v.diff)
}

/// Where the votes, in the order of the file, leave one line for another. `main`: the line that most agree on. Empty: it
/// holds for all. Else the first is from the first frame on.
///
/// The order of a file is that of true time, whatever the clock showed: frames from behind the end of the log, which have the
/// identifications of earlier ones come round again, are no jump back by as long as a round.
pub(crate) fn jumps(votes: &[Vote], frames: &[Frame], main: &Line) -> Vec<Jump> {
    let mut by_number: Vec<(u64, bool, Vote)> = votes
        .iter()
        .map(|v| {
            let apart = main.boot(v.wall).wrapping_sub(seen(v)).saturating_abs();
            (frames[v.frame as usize].number, apart <= sample::SAME_NS, *v)
        })
        .collect();
    by_number.sort_unstable_by_key(|(number, ok, v)| (*number, !*ok, v.diff));
    // One vote per frame, one that agrees if there is one.
    let mut all = by_number.clone();
    all.dedup_by_key(|(number, ..)| *number);
    let mut out: Vec<Jump> = Vec::new();
    // When what was before in the file was seen.
    let mut reached = i64::MIN;
    let mut i = 0;
    while i < all.len() {
        let agrees = all[i].1;
        // A row lasts until several in a row say otherwise.
        let mut end = i + 1;
        while end < all.len() {
            let other = all[end..].iter().take(ROW / 2).filter(|v| v.1 != agrees).count();
            if all[end].1 != agrees && other * 2 > (all.len() - end).min(ROW / 2) {
                break;
            }
            end += 1;
        }
        let row = &all[i..end];
        let from = row[0].0;
        i = end;
        if agrees {
            out.push(Jump { number: from, add: 0 });
            reached = row.iter().filter(|v| v.1).map(|v| seen(&v.2)).fold(reached, i64::max);
            continue;
        }
        let then = all[end..].iter().find(|v| v.1).map_or(i64::MAX, |v| seen(&v.2));
        let mut part = Part { votes: &by_number, main, reached, then, out: &mut out };
        part.explain(row);
        reached = part.reached;
    }
    out.dedup_by_key(|j| j.add);
    if out.len() < 2 || out.len() > MAX_PIECES {
        return Vec::new();
    }
    out[0].number = 0;
    out
}

type Row = (u64, bool, Vote);

/// Frames in a row that do not agree with the main line: one other line, or several one behind the other.
struct Part<'a> {
    votes: &'a [Row],
    main: &'a Line,
    /// When what is before in the file was seen, and what is behind.
    reached: i64,
    then: i64,
    out: &'a mut Vec<Jump>,
}

impl Part<'_> {
    fn explain(&mut self, row: &[Row]) {
        if row.len() < ROW {
            return;
        }
        let (from, to) = (row[0].0, row[row.len() - 1].0);
        let here: Vec<Vote> =
            self.votes.iter().filter(|(n, ..)| (from..=to).contains(n)).map(|(_, _, v)| *v).collect();
        let Some(r) = vote::rough(here, None).filter(|r| self.holds(r, row.len())) else { return };
        let agrees =
            |v: &Row| r.line.boot(v.2.wall).wrapping_sub(seen(&v.2)).saturating_abs() <= sample::SAME_NS;
        let (Some(first), Some(last)) = (row.iter().position(agrees), row.iter().rposition(agrees)) else {
            return;
        };
        let then = std::mem::replace(&mut self.then, seen(&row[first].2));
        self.explain(&row[..first]);
        self.then = then;
        self.reached = r.votes.iter().map(seen).fold(self.reached, i64::max);
        let at = row[first].2.wall;
        let add = r.line.boot(at).wrapping_sub(self.main.boot(at));
        self.out.push(Jump { number: row[first].0, add });
        self.explain(&row[last + 1..]);
    }

    /// Enough of the frames, and in order with those around them.
    fn holds(&self, r: &Rough, row: usize) -> bool {
        let mut frames: Vec<u32> = r.votes.iter().map(|v| v.frame).collect();
        frames.sort_unstable();
        frames.dedup();
        let times = || r.votes.iter().map(seen);
        let in_order = times().min() >= Some(self.reached.saturating_sub(DISORDER_NS))
            && times().max() <= Some(self.then.saturating_add(DISORDER_NS));
        frames.len() >= ROW && frames.len() * 3 >= row && in_order
    }
}
