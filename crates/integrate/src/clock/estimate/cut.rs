//! Where one line holds: as few stretches as contradict no more than the stamps' noise explains.
//!
//! A stretch that contradicts itself does so in every longer one, so the longest from the front, and again behind it, are fewest.
//! Only hard constraints contradict: a queue makes a packet late and never early, so queueing is no step.

use super::cells::Cells;
use std::ops::Range;

/// Half a contradiction that is still noise, in noise windows: steps are found from twice that on.
const NOISE: f64 = 2.0;

pub(super) struct Cut {
    /// Cells of each piece that surely are of it, without those at a jump.
    pub pieces: Vec<Range<usize>>,
    /// Cells behind which the same line goes on.
    pub skipped: Vec<Range<usize>>,
}

/// Cuts at the jumps of the clock; `width`: noise window.
pub(super) fn cut(cells: &mut Cells, width: f64, is_known: impl Fn(&Range<usize>) -> bool) -> Cut {
    let count = cells.len();
    let limit = NOISE * width;
    let skipped = skip(cells, limit);
    let most = 1 + (count / 5).min(64);
    let (parts, limit) = parts(cells, limit, most);
    // How far each piece reaches back into the one before: in between the jump may be anywhere.
    let mut sure = parts.clone();
    for i in 1..parts.len() {
        let back = cells.longest(parts[i].end, false, limit).min(parts[i].start);
        sure[i - 1].end = back.min(parts[i - 1].end).max(sure[i - 1].start);
    }
    for i in 1..parts.len() {
        if sure[i - 1].len() > 1 {
            sure[i - 1].end -= 1;
        }
        if sure[i].len() > 1 {
            sure[i].start += 1;
        }
    }
    let last = parts.len().saturating_sub(1);
    let pieces = parts.iter().zip(sure).enumerate().filter_map(|(i, (part, sure))| {
        // Too little between two jumps to say anything.
        let doubtful = sure.len() <= 1 && i > 0 && i < last;
        (!doubtful).then(|| if sure.is_empty() { part.clone() } else { sure })
    });
    let pieces: Vec<Range<usize>> = pieces.collect();
    let mut logged = pieces.clone();
    logged.retain(is_known);
    Cut { pieces: if logged.is_empty() { pieces } else { logged }, skipped }
}

/// Takes away cells (up to three in a row) that fit no line though the line before goes on behind them.
fn skip(cells: &mut Cells, limit: f64) -> Vec<Range<usize>> {
    let count = cells.len();
    let (mut a, mut skipped) = (0, Vec::new());
    'next: while a < count && skipped.len() <= count / 4 {
        let end = cells.longest(a, true, limit);
        if end >= count {
            break;
        }
        for n in 1..=3 {
            if end + n + 3 > count {
                break;
            }
            let kept = cells.swap(end..end + n, None);
            if cells.contradiction(a..count.min(end + n + 6)) <= limit {
                skipped.push(end..end + n);
                continue 'next;
            }
            cells.swap(end..end + n, Some(kept));
        }
        a = end;
    }
    skipped
}

/// The pieces, and the contradiction that was borne with: more where there would be too many.
fn parts(cells: &Cells, mut limit: f64, most: usize) -> (Vec<Range<usize>>, f64) {
    let count = cells.len();
    loop {
        let mut parts: Vec<Range<usize>> = Vec::new();
        let mut a = 0;
        while a < count && parts.len() <= most {
            // The jump is within this one cell.
            if cells.contradiction(a..a + 1) > limit {
                a += 1;
                continue;
            }
            let end = cells.longest(a, true, limit);
            parts.push(a..end);
            a = end;
        }
        let last = parts.len().saturating_sub(1);
        if parts.len() > 2 {
            let mut i = 0;
            parts.retain(|p| {
                i += 1;
                p.len() > 1 || i == 1 || i == last + 1
            });
        }
        if a >= count && !parts.is_empty() && parts.len() <= most {
            return (parts, limit);
        }
        if limit > 1e12 {
            return (std::iter::once(0..count).collect(), limit);
        }
        limit *= 2.0;
    }
}
