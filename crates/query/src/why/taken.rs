//! What of a stream has come without a hole, and so can be read.

use std::collections::BTreeMap;

/// What has been taken of a stream.
#[derive(Default)]
pub(super) struct Taken {
    to: i64,
    /// Behind a hole.
    pending: BTreeMap<i64, i64>,
}

impl Taken {
    pub fn pass(&mut self, at_ns: i64, from: i64, to: i64, out: &mut Vec<(i64, i64)>) {
        let kept = self.pending.entry(from).or_insert(to);
        *kept = to.max(*kept);
        let before = self.to;
        while let Some(first) = self.pending.first_entry().filter(|f| *f.key() <= self.to) {
            self.to = self.to.max(first.remove());
        }
        if self.to > before {
            out.push((at_ns, self.to));
        }
    }
}
