//! What a CPU did right before it first saw a packet that it received: its driver's work on the packet, which has no packet yet, and the wait for the softirq before that.
//!
//! Within one poll of a device a packet's own time begins where the poll began, or where the packet before it was done with. The
//! log has a record for each poll's first packet (`kpat_model::Poll`); of the others the packet before them tells by its last
//! call, in the order in which one CPU wrote. Where that is not known to be so, there is no answer.

use kpat_model::hash::Map;
use kpat_model::{Call, Context, Loss, Poll};

/// Losses that are remembered of each CPU; of more, the oldest are taken as one with what lies between.
const MAX_LOSSES: usize = 256;

/// Before a packet was first seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Arrival {
    pub cpu: u16,
    /// When the driver began to work on it, boot clock.
    pub from: i64,
    /// When its softirq had been asked for; only of the first packet of a softirq.
    pub raised: Option<i64>,
}

/// Since when a poll lasts, and since when it had been asked for.
pub(super) fn began_raised(p: &Poll) -> Option<(i64, Option<i64>)> {
    let ago = |at: i64, ns: u64| at.checked_sub(i64::try_from(ns).ok()?);
    let began = ago(p.at.0, p.since_ns?)?;
    Some((began, p.wait_ns.and_then(|ns| ago(began, ns))))
}

#[derive(Default)]
struct Cpu {
    /// In a poll whose every packet is in the log: since when no packet was worked on, and, before the first one, since when
    /// the poll had been asked for.
    free: Option<(i64, Option<i64>)>,
    losses: Vec<(i64, i64)>,
}

#[derive(Default)]
pub(super) struct Arrivals {
    cpus: Map<u16, Cpu>,
}

impl Arrivals {
    /// A poll's first packet.
    pub fn poll(&mut self, cpu: u16, p: &Poll) {
        self.cpus.entry(cpu).or_default().free = began_raised(p);
    }

    /// A call is over.
    pub fn call(&mut self, cpu: u16, ctx: Context, c: &Call, end: i64) {
        match ctx {
            Context::Softirq if c.flags & Call::NO_RETURN == 0 => {
                if let Some(free) = self.cpus.get_mut(&cpu).and_then(|c| c.free.as_mut()) {
                    *free = (free.0.max(end), None);
                }
            }
            // A task runs: the poll is over. Without a return the time of the work is not known.
            Context::Softirq | Context::Task => self.unknown(cpu),
            _ => {}
        }
    }

    /// Work on a packet of unknown duration.
    pub fn unknown(&mut self, cpu: u16) {
        if let Some(c) = self.cpus.get_mut(&cpu) {
            c.free = None;
        }
    }

    pub fn loss(&mut self, l: &Loss) {
        let Ok(cpu) = u16::try_from(l.cpu) else { return };
        let c = self.cpus.entry(cpu).or_default();
        c.free = None;
        if c.losses.len() >= MAX_LOSSES {
            let (from, _) = c.losses.remove(0);
            c.losses[0].0 = c.losses[0].0.min(from);
        }
        c.losses.push((l.from.0, l.to.0));
    }

    /// A packet is seen for the first time.
    pub fn first(&self, cpu: u16, at: i64) -> Option<Arrival> {
        let (from, raised) = self.cpus.get(&cpu)?.free?;
        (from <= at).then_some(Arrival { cpu, from, raised })
    }

    /// Nothing is known to have been lost there meanwhile: asked when the packet is over, as losses are logged late.
    pub fn holds(&self, a: &Arrival, until: i64) -> bool {
        let lost = |c: &Cpu| c.losses.iter().any(|l| l.0 <= until && l.1 >= a.from);
        !self.cpus.get(&a.cpu).is_some_and(lost)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kpat_model::{BootNs, FuncId, LossCause, PacketId};

    fn poll(at: i64, began: i64, raised: i64) -> Poll {
        let ns = |from: i64, to: i64| (from != 0).then_some((to - from) as u64);
        Poll { at: BootNs(at), packet: PacketId(1), since_ns: ns(began, at), wait_ns: ns(raised, began) }
    }

    fn call(entry: i64, dur: u64) -> Call {
        Call {
            func: FuncId(1),
            ctx: Context::Softirq,
            pid: 0,
            entry: BootNs(entry),
            dur_ns: dur,
            packet: PacketId(1),
            skb_tag: 0,
            flags: 0,
        }
    }

    #[test]
    fn the_first_of_a_poll_begins_with_it_and_the_next_behind_the_one_before() {
        let mut a = Arrivals::default();
        assert_eq!(a.first(0, 5_000), None);
        a.poll(0, &poll(5_000, 4_000, 3_500));
        assert_eq!(a.first(0, 5_000), Some(Arrival { cpu: 0, from: 4_000, raised: Some(3_500) }));
        assert_eq!(a.first(1, 5_000), None);
        // The inner call returns first, the one around it last.
        a.call(0, Context::Softirq, &call(5_100, 100), 5_200);
        a.call(0, Context::Softirq, &call(5_000, 900), 5_900);
        // An interrupt that cuts in changes nothing.
        a.call(0, Context::Hardirq, &call(5_950, 10), 5_960);
        assert_eq!(a.first(0, 6_100), Some(Arrival { cpu: 0, from: 5_900, raised: None }));
    }

    #[test]
    fn what_is_not_known_is_not_answered() {
        let mut a = Arrivals::default();
        a.poll(0, &poll(5_000, 0, 0));
        assert_eq!(a.first(0, 5_000), None, "packets that are not in the log came before");
        a.poll(0, &poll(6_000, 5_500, 0));
        assert_eq!(a.first(0, 6_000), Some(Arrival { cpu: 0, from: 5_500, raised: None }));
        a.call(0, Context::Task, &call(6_100, 10), 6_110);
        assert_eq!(a.first(0, 6_200), None, "a task ran");
        a.poll(0, &poll(7_000, 6_500, 0));
        a.unknown(0);
        assert_eq!(a.first(0, 7_000), None);
    }

    #[test]
    fn losses_logged_late_take_the_answer_back() {
        let mut a = Arrivals::default();
        a.poll(0, &poll(5_000, 4_000, 0));
        let met = a.first(0, 5_000).unwrap();
        assert!(a.holds(&met, 5_000));
        let lost = |cpu, from, to| Loss {
            cause: LossCause::RingFull,
            cpu,
            from: BootNs(from),
            to: BootNs(to),
            count: 1,
        };
        a.loss(&lost(1, 4_500, 4_600));
        a.loss(&lost(0, 3_000, 3_900));
        assert!(a.holds(&met, 5_000));
        a.loss(&lost(0, 4_500, 4_600));
        assert!(!a.holds(&met, 5_000));
        for i in 0..1_000 {
            a.loss(&lost(0, 10_000 + 10 * i, 10_001 + 10 * i));
        }
        assert!(!a.holds(&met, 5_000), "many losses later still");
    }
}
