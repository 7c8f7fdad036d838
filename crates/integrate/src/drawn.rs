//! Matches for the clock in bounded memory: of very many, runs of neighbours drawn evenly.
//!
//! Any subset of the matches bounds the clock as truly as all; neighbours stay together, since the scatter of the stamps is measured
//! among them.

use crate::clock::Pair;

/// Matches that are kept at most, and neighbours that stay together.
const LIMIT: usize = 1 << 19;
const RUN: usize = 256;

#[derive(Default)]
pub(super) struct Drawn {
    pairs: Vec<(u64, Pair)>,
    seen: u64,
    /// Runs with so many low bits zero are kept.
    level: u32,
}

impl Drawn {
    pub fn push(&mut self, pair: Pair) {
        let run = self.seen / RUN as u64;
        self.seen += 1;
        if run.trailing_zeros() < self.level {
            return;
        }
        self.pairs.push((run, pair));
        while self.pairs.len() > LIMIT {
            self.level += 1;
            let level = self.level;
            self.pairs.retain(|(run, _)| run.trailing_zeros() >= level);
        }
    }

    pub fn finish(self) -> Vec<Pair> {
        self.pairs.into_iter().map(|(_, pair)| pair).collect()
    }
}
