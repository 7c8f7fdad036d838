//! Places in programs that are hit too often.

use super::Source;
use crate::object::Side;
use crate::recorder::note;
use crate::sink::Sink;
use kpat_model::{BootNs, Loss, LossCause};

impl Source {
    /// Hits of places that were more than are recorded, since it was asked a second ago or earlier; `all`: in any case.
    pub(in crate::recorder) fn count_often(&self, sink: &mut Sink, now: BootNs, all: bool) {
        let (asked, often) = &mut *self.often.borrow_mut();
        if self.side != Side::Programs || !all && now.0 - asked.0 < 1_000_000_000 {
            return;
        }
        let from = std::mem::replace(asked, now);
        let (count, places) = often.left_out(&self.loaded, &self.hooks);
        if count == 0 {
            return;
        }
        let cause = LossCause::TooOften;
        sink.loss(&Loss { cause, cpu: -1, from, to: now, count });
        for place in places {
            note(sink, &format!("{place} is hit too often: not all is recorded"));
        }
    }
}
