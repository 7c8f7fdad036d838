//! What was lost, as far as it may have hidden what became of a packet.

use std::collections::VecDeque;

use kpat_model::Loss;
use kpat_model::codes::LossCause;

/// For so long after a packet's last record a lost one may have been its next: nothing but a fragment waits longer, and no queue.
const REACH_NS: i64 = 10_000_000_000;
/// And so long most wait for their next at the longest.
const NEAR_NS: i64 = 100_000_000;
/// Losses that are closer together than this are one stretch.
const APART_NS: i64 = 1_000_000_000;
/// Records are counted by stretches of this length.
const MARK_NS: i64 = 50_000_000;
/// Marks that are kept: ten minutes of a log in which something happens all the time.
const MARKS: usize = 12_000;
/// One record of so many is few.
const FEW: u64 = 100;

/// What was lost of the time in which a packet's next record would have been.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Lost {
    Nothing,
    /// Of 100 records of packets one at the most.
    Few,
    Many,
}

/// Stretches of time, in order, none near the next.
#[derive(Default)]
struct Stretches(Vec<(i64, i64)>);

impl Stretches {
    fn add(&mut self, mut from: i64, mut to: i64) {
        let first = self.0.partition_point(|s| s.1.saturating_add(APART_NS) < from);
        let last = self.0.partition_point(|s| s.0 <= to.saturating_add(APART_NS)).max(first);
        for &(f, t) in &self.0[first..last] {
            (from, to) = (from.min(f), to.max(t));
        }
        self.0.splice(first..last, [(from, to)]);
    }

    fn meets(&self, from: i64, to: i64) -> bool {
        let next = self.0.partition_point(|s| s.1 < from);
        self.0.get(next).is_some_and(|s| s.0 <= to)
    }
}

/// Losses of one sort.
#[derive(Default)]
struct Sort {
    few: Stretches,
    /// Many for what was last seen then or right before, few for what had been silent for longer, of which there was much.
    near: Stretches,
    many: Stretches,
}

impl Sort {
    /// What may have been lost of what came next of a packet whose last record is of `last`.
    fn after(&self, last: i64) -> Lost {
        let reach = last.saturating_add(REACH_NS);
        if self.many.meets(last, reach) || self.near.meets(last, last.saturating_add(NEAR_NS)) {
            Lost::Many
        } else if self.few.meets(last, reach) || self.near.meets(last, reach) {
            Lost::Few
        } else {
            Lost::Nothing
        }
    }
}

/// The losses of one log, and how many records of packets there were beside them.
#[derive(Default)]
pub(super) struct Losses {
    records: u64,
    /// A time, and how many records there had been by then.
    marks: VecDeque<(i64, u64)>,
    /// Records of any packet.
    any: Sort,
    /// Softirqs as a whole.
    softirqs: Sort,
}

impl Losses {
    /// A record of a packet that was logged.
    pub fn record(&mut self, at: i64) {
        if self.marks.back().is_none_or(|m| at >= m.0 + MARK_NS) {
            if self.marks.len() == MARKS {
                self.marks.pop_front();
            }
            self.marks.push_back((at, self.records));
        }
        self.records += 1;
    }

    pub fn add(&mut self, l: &Loss) {
        let (from, to) = (l.from.0, l.to.0);
        let few_since = |since: i64| l.count > 0 && l.count.saturating_mul(FEW) <= self.between(since, to);
        let hides = hides(l.cause);
        let stretches: fn(&mut Sort) -> &mut Stretches = match hides {
            Hides::Nothing => return,
            Hides::Anything => |sort| &mut sort.many,
            Hides::Records | Hides::Softirqs if few_since(from) => |sort| &mut sort.few,
            Hides::Records | Hides::Softirqs if few_since(from.saturating_sub(REACH_NS)) => {
                |sort| &mut sort.near
            }
            Hides::Records | Hides::Softirqs => |sort| &mut sort.many,
        };
        let sort = if hides == Hides::Softirqs { &mut self.softirqs } else { &mut self.any };
        stretches(sort).add(from, to);
    }

    /// Records of that time, rather too few than too many.
    fn between(&self, from: i64, to: i64) -> u64 {
        let first = self.marks.partition_point(|m| m.0 < from);
        // The newest mark's own stretch is not over: all records since then count if it began in time.
        let last = self.marks.partition_point(|m| m.0 <= to);
        let (Some(first), Some(last)) = (self.marks.get(first), last.checked_sub(1)) else { return 0 };
        let until = if last + 1 == self.marks.len() { self.records } else { self.marks[last].1 };
        until.saturating_sub(first.1)
    }

    /// What may have been lost of what came next of a packet whose last record is of `last`; `within`: it would have come in a softirq of which records
    /// were made.
    pub fn after(&self, last: i64, within: bool) -> Lost {
        let any = self.any.after(last);
        if within { any } else { any.max(self.softirqs.after(last)) }
    }
}

#[derive(PartialEq, Eq)]
enum Hides {
    Nothing,
    /// As many records as it counts, all of each softirq that it is about.
    Softirqs,
    /// As many records of packets as it counts, at the most.
    Records,
    /// It counts something else.
    Anything,
}

fn hides(cause: LossCause) -> Hides {
    match cause {
        LossCause::RingFull
        | LossCause::CallTableFull
        | LossCause::Recursion
        | LossCause::NoReturn
        | LossCause::ListCut
        | LossCause::ProbeMissed
        | LossCause::NoDevice => Hides::Records,
        LossCause::NotRun => Hides::Softirqs,
        LossCause::PacketTableFull
        | LossCause::Disk
        | LossCause::Evicted
        | LossCause::MissingPart
        | LossCause::Damaged => Hides::Anything,
        // Names, devices, sleeping tasks, frames, the calls of a module that packets meet no more: no record of a packet's way.
        LossCause::ReadFault
        | LossCause::TaskTableFull
        | LossCause::SnifferFull
        | LossCause::NetlinkOverrun
        | LossCause::NamespaceUnread
        | LossCause::UseTableFull
        | LossCause::TooOften
        | LossCause::ModuleUnloaded => Hides::Nothing,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kpat_model::BootNs;

    const S: i64 = 1_000_000_000;

    fn lost(cause: LossCause, from: i64, to: i64, count: u64) -> Loss {
        Loss { cause, cpu: -1, from: BootNs(from), to: BootNs(to), count }
    }

    /// 1,000 records a second for 40 s.
    fn busy() -> Losses {
        let mut l = Losses::default();
        (0..40_000).for_each(|i| l.record(i * 1_000_000));
        l
    }

    #[test]
    fn few_of_many_are_few() {
        let mut l = busy();
        l.add(&lost(LossCause::Recursion, 20 * S, 21 * S, 9));
        assert_eq!(l.after(20 * S, false), Lost::Few);
        assert_eq!(l.after(15 * S, false), Lost::Few, "a queue may have kept it");
        assert_eq!(l.after(9 * S, false), Lost::Nothing, "long before");
        assert_eq!(l.after(22 * S, false), Lost::Nothing, "after it");
        l.add(&lost(LossCause::RingFull, 20 * S, 21 * S, 11));
        assert_eq!(l.after(20 * S, false), Lost::Many, "more than one of 100");
    }

    #[test]
    fn a_burst_is_not_few() {
        let mut l = busy();
        l.add(&lost(LossCause::RingFull, 20 * S, 20 * S + 1_000_000, 5));
        assert_eq!(l.after(20 * S, false), Lost::Many);
        let mut before_all = Losses::default();
        before_all.add(&lost(LossCause::Recursion, 0, S, 1));
        assert_eq!(before_all.after(0, false), Lost::Many, "of nothing");
    }

    /// Two of a quiet second are many of its own few, and few of all that could have come then.
    #[test]
    fn what_was_long_silent_is_one_of_many() {
        let mut l = busy();
        for i in 0..10 {
            l.record(42 * S + i * 10_000_000);
        }
        l.add(&lost(LossCause::Recursion, 41 * S, 43 * S, 2));
        assert_eq!(l.after(35 * S, false), Lost::Few);
        assert_eq!(l.after(41 * S - NEAR_NS / 2, false), Lost::Many, "right before");
        assert_eq!(l.after(42 * S, false), Lost::Many);
        l.add(&lost(LossCause::Recursion, 41 * S, 43 * S, 200));
        assert_eq!(l.after(35 * S, false), Lost::Many, "more than one of 100 of ten seconds");
    }

    #[test]
    fn what_a_softirq_began_it_ends() {
        let mut l = busy();
        l.add(&lost(LossCause::NotRun, 20 * S, 21 * S, 500));
        assert_eq!([false, true].map(|within| l.after(20 * S, within)), [Lost::Many, Lost::Nothing]);
        l.add(&lost(LossCause::Recursion, 20 * S, 21 * S, 9));
        assert_eq!(
            [false, true].map(|within| l.after(20 * S, within)),
            [Lost::Many, Lost::Few],
            "it is of one record"
        );
    }

    #[test]
    fn what_hides_no_record_is_no_loss_of_one() {
        let mut l = busy();
        for cause in [LossCause::NamespaceUnread, LossCause::SnifferFull, LossCause::NetlinkOverrun] {
            l.add(&lost(cause, 0, 40 * S, 1 << 40));
        }
        assert_eq!(l.after(5 * S, false), Lost::Nothing);
        l.add(&lost(LossCause::Damaged, 0, 40 * S, 1));
        assert_eq!(l.after(5 * S, false), Lost::Many, "bytes, not records");
    }

    /// Against the list of all of them.
    #[test]
    fn stretches_are_met_as_the_list_of_all_losses() {
        let mut x = 7_u64;
        let mut draw = |n: u64| {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (x >> 33) % n
        };
        for _ in 0..200 {
            let (mut s, mut all) = (Stretches::default(), Vec::new());
            for _ in 0..draw(12) {
                let from = draw(60) as i64 * 3 * S;
                let to = from + draw(5) as i64 * S;
                s.add(from, to);
                all.push((from, to));
            }
            for _ in 0..20 {
                // Further from any loss than what is joined is from the next.
                let from = draw(180) as i64 * S + S / 2 * 3;
                let to = from + draw(8) as i64 * S;
                let near = |by: i64| all.iter().any(|&(f, t)| f - by <= to && from <= t + by);
                assert!(!near(0) || s.meets(from, to), "{all:?} {from} {to}");
                assert!(near(APART_NS) || !s.meets(from, to), "{all:?} {from} {to}");
            }
            assert!(s.0.windows(2).all(|w| w[0].1 + APART_NS < w[1].0), "{:?}", s.0);
        }
    }
}
