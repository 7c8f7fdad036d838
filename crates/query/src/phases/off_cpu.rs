//! The time in which the task that works on a packet, or is about to, was off the CPU, as segments of the packet's way.
//!
//! A packet may have as many calls as off-CPU intervals, and as many segments: each interval is looked up among the calls, and each segment among the
//! intervals, by their order.

use super::cut::Segment;
use super::phase::Phase;
use crate::codes::call_flag;
use crate::walk::{Rest, end_ns};
use kpat_store::tables::CallRow;
use std::collections::HashMap;

/// Which task works in a call; `None`: an interrupt's.
fn task(r: &CallRow) -> Option<i32> {
    (r.ctx == 0).then_some(r.pid)
}

/// The latest ends of the calls of two tasks.
type Latest = [Option<(i64, Option<i32>)>; 2];

/// How far calls reach that have begun by a moment.
struct Reach {
    /// Of a task: when each began, and the latest end of it and those before.
    of_task: HashMap<i32, Vec<(i64, i64)>>,
    /// Of all that say where the packet is: when each began, and the latest ends of two tasks, by it and those before.
    all: Vec<(i64, Latest)>,
}

impl Reach {
    fn of(rows: &[CallRow]) -> Reach {
        let mut order: Vec<&CallRow> = rows.iter().collect();
        order.sort_by_key(|r| r.entry_ns);
        let mut reach = Reach { of_task: HashMap::new(), all: Vec::new() };
        let mut latest: Latest = [None; 2];
        for r in order {
            let end = end_ns(r);
            if let Some(pid) = task(r) {
                let own = reach.of_task.entry(pid).or_default();
                own.push((r.entry_ns, own.last().map_or(end, |l| l.1.max(end))));
            }
            if r.flags & call_flag::WITHIN == 0 {
                let [first, second] = latest;
                let own = (end, task(r));
                let is_of = |of: Option<(i64, Option<i32>)>| of.is_some_and(|l| l.1 == own.1);
                latest = match (is_of(first), first.is_none_or(|l| l.0 < end)) {
                    (true, true) => [Some(own), second],
                    (true, false) => latest,
                    (false, true) => [Some(own), first],
                    (false, false) => [first, second.max(Some(own))],
                };
                reach.all.push((r.entry_ns, latest));
            }
        }
        reach
    }

    /// Its task was in the midst of it, and no other worked on the packet meanwhile.
    fn is_of_packet(&self, rest: &Rest) -> bool {
        let own = self.of_task.get(&rest.pid).and_then(|own| {
            let begun = own.partition_point(|(entry, _)| *entry <= rest.from);
            own[..begun].last()
        });
        let begun = self.all.partition_point(|(entry, _)| *entry < rest.to);
        let others = self.all[..begun].last().map_or([None; 2], |(_, latest)| *latest);
        let meets = |(end, of): &(i64, Option<i32>)| *of != Some(rest.pid) && *end >= rest.from;
        own.is_some_and(|(_, end)| *end >= rest.to) && !others.iter().flatten().any(meets)
    }
}

/// Intervals in order of their beginning.
struct Rests {
    all: Vec<Rest>,
    /// The latest end of each and those before.
    latest: Vec<i64>,
}

impl Rests {
    fn new(all: Vec<Rest>) -> Rests {
        let mut latest = i64::MIN;
        let latest = all.iter().map(|r| {
            latest = latest.max(r.to);
            latest
        });
        Rests { latest: latest.collect(), all }
    }

    fn meet(&self, s: &Segment) -> impl Iterator<Item = &Rest> {
        let after = self.all.partition_point(|r| r.from < s.to_ns);
        let first = self.latest.partition_point(|to| *to <= s.from_ns).min(after);
        let from_ns = s.from_ns;
        self.all[first..after].iter().filter(move |r| r.to > from_ns)
    }
}

/// `rests`: in order of their beginning.
pub(super) fn overlay(rows: &[CallRow], rests: &[Rest], segments: &mut Vec<Segment>) {
    if rests.is_empty() {
        return;
    }
    let reach = Reach::of(rows);
    let inside = Rests::new(rests.iter().filter(|r| reach.is_of_packet(r)).copied().collect());
    let rests = Rests::new(rests.to_vec());
    let mut out = Vec::with_capacity(segments.len() + rests.all.len());
    for s in segments.iter() {
        let mut at = s.from_ns;
        let mut put = |from: i64, to: i64, phase: Phase| {
            let (from, to) = (from.max(at).min(s.to_ns), to.max(at).min(s.to_ns));
            if to > from {
                if from > at {
                    out.push(Segment { from_ns: at, to_ns: from, ..*s });
                }
                out.push(Segment { phase, from_ns: from, to_ns: to, ..*s });
                at = to;
            }
        };
        if s.phase.is_work() {
            for r in inside.meet(s) {
                put(r.from, r.woken, Phase::Asleep);
                put(r.woken, r.to, Phase::Scheduled);
            }
        } else if s.phase == Phase::SocketQueue {
            // The reader sleeps because nothing is there: what it waits for longer than that is the CPU.
            for r in rests.meet(s).filter(|r| r.to <= s.to_ns) {
                put(r.woken, r.to, Phase::Scheduled);
            }
        }
        if s.to_ns > at {
            out.push(Segment { from_ns: at, ..*s });
        }
    }
    *segments = out;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Against the search through all calls and all intervals.
    #[test]
    fn the_order_says_what_a_search_says() {
        let mut seed = 11u64;
        let mut below = |n: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((seed >> 33) % n) as i64
        };
        for _ in 0..2_000 {
            let rows: Vec<CallRow> = (0..below(9))
                .map(|_| CallRow {
                    entry_ns: below(40),
                    dur_ns: Some(below(25)).filter(|d| *d > 3),
                    ctx: i32::from(below(4) == 0),
                    pid: 1 + below(3) as i32,
                    flags: if below(6) == 0 { call_flag::WITHIN } else { 0 },
                    ..CallRow::default()
                })
                .collect();
            let mut rests: Vec<Rest> = (0..below(8))
                .map(|_| {
                    let from = below(40);
                    let to = from + below(12);
                    Rest { from, woken: to.min(from + below(5)), to, cpu_out: 0, pid: 1 + below(3) as i32 }
                })
                .collect();
            rests.sort_unstable();
            let reach = Reach::of(&rows);
            for rest in &rests {
                let own = |r: &CallRow| r.ctx == 0 && r.pid == rest.pid;
                let encloses = |r: &CallRow| r.entry_ns <= rest.from && end_ns(r) >= rest.to;
                let meets = |r: &CallRow| {
                    r.flags & call_flag::WITHIN == 0 && r.entry_ns < rest.to && end_ns(r) >= rest.from
                };
                let want =
                    rows.iter().any(|r| own(r) && encloses(r)) && !rows.iter().any(|r| !own(r) && meets(r));
                assert_eq!(reach.is_of_packet(rest), want, "{rest:?} {rows:?}");
            }
            let all = Rests::new(rests.clone());
            let from_ns = below(40);
            let s = Segment { phase: Phase::Asleep, hop: 0, from_ns, to_ns: from_ns + below(9) };
            let want: Vec<&Rest> = rests.iter().filter(|r| r.from < s.to_ns && r.to > s.from_ns).collect();
            assert_eq!(all.meet(&s).collect::<Vec<_>>(), want, "{s:?} {rests:?}");
        }
    }
}
