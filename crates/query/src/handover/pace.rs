//! What pace data has, and whether its absence says that a link was lost.

use super::mark::Mark;
use std::collections::VecDeque;

/// Packets that show what pace a flow has.
const PACE: usize = 16;
/// Rarer data says nothing about the link.
const RARE_NS: i64 = 500_000_000;
/// Who sent nothing for so many times what is usual has stopped.
pub(super) const STOPPED: i64 = 3;

/// The newest times of one direction.
#[derive(Debug, Default)]
struct Times(VecDeque<i64>);

impl Times {
    fn push(&mut self, at_ns: i64) {
        if self.0.len() == PACE {
            self.0.pop_front();
        }
        self.0.push_back(at_ns);
    }

    /// From one to the next, if they came regularly.
    fn usual_ns(&self) -> Option<i64> {
        let (first, last) = (self.0.front()?, self.0.back()?);
        let usual_ns = (last - first) / (PACE as i64 - 1);
        (self.0.len() == PACE && usual_ns <= RARE_NS).then_some(usual_ns)
    }
}

/// When data was received last, and at which pace; and when this host sent some.
#[derive(Debug, Default)]
pub(super) struct Pace {
    received: Times,
    sent: Times,
    last: Option<Mark>,
}

impl Pace {
    pub fn push(&mut self, mark: &Mark) {
        self.received.push(mark.at_ns);
        self.last = Some(mark.clone());
    }

    pub fn sent(&mut self, at_ns: i64) {
        self.sent.push(at_ns);
    }

    /// The last data before `at_ns`, if it came so regularly that its absence is one.
    pub fn absent_since(&self, at_ns: i64) -> Option<&Mark> {
        let usual_ns = self.received.usual_ns()?;
        self.awaited(at_ns).filter(|last| at_ns - last.at_ns > usual_ns)
    }

    /// The same, whether it is absent or not. What comes as an answer is not awaited when nobody asks.
    pub fn awaited(&self, at_ns: i64) -> Option<&Mark> {
        self.received.usual_ns()?;
        self.last.as_ref().filter(|m| m.at_ns <= at_ns && !self.stopped(m.at_ns, at_ns))
    }

    /// This host sent regularly, and nothing any more since the last data: its program stopped. One that lost its
    /// link asks, or acknowledges, at least once more.
    fn stopped(&self, last_ns: i64, at_ns: i64) -> bool {
        let (Some(usual_ns), Some(sent_ns)) = (self.sent.usual_ns(), self.sent.0.back()) else {
            return false;
        };
        *sent_ns <= last_ns && at_ns - last_ns > STOPPED * usual_ns
    }
}

#[cfg(test)]
mod tests {
    use super::super::mark::What;
    use super::super::tests::{AP1, AP2, at, join, of, run};
    use super::*;
    use crate::handover::Cause;

    const MS: i64 = 1_000_000;

    /// Questions each 200 ms and their answers, until 0; the last question has none if `asks`.
    fn roam(asks: bool) -> Vec<Mark> {
        let mut all = vec![of(-9_000, What::PortAuthorised, AP1)];
        for i in -40..=0 {
            all.push(at(i * 200 - 20, What::Sent));
            all.push(at(i * 200, What::Received));
        }
        if asks {
            all.push(at(180, What::Sent));
        }
        all.push(of(4_000, What::PortClosed, AP1));
        let joined = join(4_060, AP2);
        all.push(joined[0].clone());
        all.extend([
            of(4_065, What::Deauthenticated { own: true, reason: 1 }, AP1),
            at(4_070, What::CarrierOff),
        ]);
        all.extend(joined.into_iter().skip(1));
        all.push(at(5_000, What::Received));
        all
    }

    #[test]
    fn a_program_that_pauses_has_lost_nothing() {
        let h = &run(&roam(false))[0];
        assert_eq!((h.cause, h.begin_ns), (Cause::Chosen, 4_000 * MS));
        // One that asked and had no answer lost its link by then.
        assert_eq!(run(&roam(true))[0].begin_ns, 0);
    }
}
