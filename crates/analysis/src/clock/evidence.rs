//! What the matches say about the clock, in bounded memory: few of many matches touch the hulls, and which could is known
//! from a first guess of the clock.

use super::Line;
use super::fit::Pair;
use crate::matching::Side;

/// Pairs that are kept all; of more, the tightest of each stretch of time.
const ALL: usize = 1 << 16;
const STRETCHES: usize = 256;
const KEEP: usize = 32;

/// The pairs, or those of them that can bound the line, and the counts of all.
#[derive(Clone, Debug, Default)]
pub(crate) struct Evidence {
    pub pairs: Vec<Pair>,
    pub total: usize,
    pub received: usize,
    pub transmitted: usize,
    /// Seen between two devices of the DUT.
    pub inside: usize,
    /// First and last wall time.
    pub span: Option<(i64, i64)>,
}

impl Evidence {
    pub fn of(pairs: Vec<Pair>) -> Evidence {
        let mut e = Evidence::default();
        pairs.iter().for_each(|p| e.count(p));
        Evidence { pairs, ..e }
    }

    fn count(&mut self, p: &Pair) {
        self.total += 1;
        self.received += usize::from(p.side == Side::Received);
        self.transmitted += usize::from(p.side == Side::Transmitted);
        self.inside += usize::from(p.inside);
        let (from, to) = self.span.unwrap_or((p.wall, p.wall));
        self.span = Some((from.min(p.wall), to.max(p.wall)));
    }
}

/// Takes pairs one by one.
pub(crate) struct Gather {
    guess: Line,
    from: i64,
    width: i64,
    found: Evidence,
    /// By stretch, then by what is bounded; empty as long as all are kept.
    least: Vec<[Least; WAYS]>,
}

/// Each side of the line by edge, and by the packet's life for all and for those seen inside.
const WAYS: usize = 6;

#[derive(Clone, Default)]
struct Least {
    rows: Vec<(i64, Pair)>,
    full: bool,
}

impl Least {
    fn push(&mut self, value: i64, pair: &Pair) {
        // After a cut the last kept is the largest of them.
        if self.full && value >= self.rows[KEEP - 1].0 {
            return;
        }
        self.rows.push((value, *pair));
        if self.rows.len() >= 4 * KEEP {
            self.cut();
        }
    }

    fn cut(&mut self) {
        self.rows.sort_by_key(|r| r.0);
        self.rows.truncate(KEEP);
        self.full = self.rows.len() == KEEP;
    }
}

impl Gather {
    /// `from..=to`: wall times that occur.
    pub fn new(guess: Line, from: i64, to: i64) -> Gather {
        let width = to.saturating_sub(from) / STRETCHES as i64 + 1;
        Gather { guess, from, width, found: Evidence::default(), least: Vec::new() }
    }

    pub fn push(&mut self, pair: Pair) {
        self.found.count(&pair);
        if self.least.is_empty() {
            self.found.pairs.push(pair);
            if self.found.pairs.len() > ALL {
                self.least.resize_with(STRETCHES, Default::default);
                for pair in std::mem::take(&mut self.found.pairs) {
                    self.sieve(&pair);
                }
            }
        } else {
            self.sieve(&pair);
        }
    }

    fn sieve(&mut self, p: &Pair) {
        let stretch = (p.wall.saturating_sub(self.from).max(0) / self.width) as usize;
        let least = &mut self.least[stretch.min(STRETCHES - 1)];
        let guess = self.guess.boot(p.wall);
        // Of upper bounds the lowest is the tightest, of lower bounds the highest.
        let (at, first, last) =
            (p.at.wrapping_sub(guess), p.first.wrapping_sub(guess), p.last.wrapping_sub(guess));
        match p.side {
            Side::Received => least[0].push(at, p),
            Side::Transmitted => least[1].push(at.saturating_neg(), p),
            Side::Unknown => {}
        }
        least[2].push(last, p);
        least[3].push(first.saturating_neg(), p);
        if p.inside {
            least[4].push(last, p);
            least[5].push(first.saturating_neg(), p);
        }
    }

    pub fn finish(mut self) -> Evidence {
        for least in self.least.iter_mut().flatten() {
            least.cut();
            self.found.pairs.extend(least.rows.iter().map(|r| r.1));
        }
        self.found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The tightest pairs of every stretch are there, in few, and all are counted.
    #[test]
    fn the_tightest_stay() {
        let line = Line { origin: 0, offset: -5_000, drift: 1e-5 };
        let n = 400_000i64;
        let mut gather = Gather::new(line, 0, n * 1000);
        let mut tightest = vec![(i64::MAX, i64::MAX); STRETCHES];
        for i in 0..=n {
            let wall = i * 1000;
            let delay = 1_000 + (i * 7919) % 100_003;
            let received = i % 2 == 0;
            let at = line.boot(wall) + if received { delay } else { -delay };
            let side = if received { Side::Received } else { Side::Transmitted };
            gather.push(Pair { wall, at, first: at, last: at, side, inside: false });
            let t = &mut tightest[(wall / (n * 1000 / 256 + 1)) as usize];
            if received { t.0 = t.0.min(delay) } else { t.1 = t.1.min(delay) }
        }
        let e = gather.finish();
        assert_eq!((e.total, e.received, e.span), (400_001, 200_001, Some((0, n * 1000))));
        assert!(e.pairs.len() <= STRETCHES * WAYS * KEEP);
        for (i, want) in tightest.iter().enumerate() {
            let here = |side| {
                let of = e
                    .pairs
                    .iter()
                    .filter(move |p| p.side == side && (p.wall / (n * 1000 / 256 + 1)) as usize == i);
                of.map(|p| (p.at - line.boot(p.wall)).abs()).min().unwrap()
            };
            assert_eq!((here(Side::Received), here(Side::Transmitted)), *want);
        }
    }
}
