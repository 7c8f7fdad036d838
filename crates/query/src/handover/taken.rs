//! An interface that is taken away, shut or removed: when that is why a link ended.
//!
//! The kernel leaves the access point first, in its own words: a farewell of this station (reason 3). So another
//! reason, or a station that left before by its supplicant, was not ended by it, however soon it was shut then.

use super::facts::Facts;
use super::mark::{Mark, What};
use super::open::Open;
use super::phase::Phase;

/// An interface that is shut or removed ends its link first, and is announced so soon after (80 ms were measured, 0.5 s on a busy machine).
const TAKEN_NS: i64 = 2_000_000_000;

/// WLAN_REASON_DEAUTH_LEAVING.
const LEAVING: i64 = 3;

impl Facts {
    /// That ended the link; `Some(true)`: removed.
    pub(super) fn taken_away(&self) -> Option<bool> {
        self.taken.filter(|_| !self.left && matches!(self.deauth, None | Some((true, LEAVING))))
    }
}

impl Open {
    /// The interface was shut or removed: that ended the link, or the attempt to get another, or came later.
    pub(super) fn taken(&mut self, mark: &Mark) {
        self.facts.removed |= mark.what == What::Removed;
        let soon = self.stop.as_ref().is_none_or(|stop| mark.at_ns - stop.at_ns <= TAKEN_NS);
        if soon && self.facts.attempts == 0 {
            self.facts.taken = self.facts.taken.max(Some(mark.what == What::Removed));
        } else if self.phase() == Phase::Retry
            && mark.at_ns - self.tiles.since_ns() <= TAKEN_NS
            && let Some(last) = self.facts.refusals.last_mut()
        {
            *last = mark.words();
        }
    }
}
