//! From a function of the samples to the packets that it worked on.
//!
//! A sample has its CPU and its time, and so have the calls and points of a log of packets that was recorded with it. The packet is that of the innermost call
//! in which the sample was taken, in the same context; where only points are recorded, that of the last point before, if that was a moment ago.

use super::timed::{Moment, Timed, timed};
use super::tree;
use crate::error::Result;
use crate::store::Store;
use kpat_model::{Busy, Context};
use kpat_store::tables::CallRow;
use std::collections::BTreeMap;

/// What follows a point of a packet for so long is taken for work on it, unless a point of another comes.
pub const MOMENT_NS: i64 = 50_000;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Part {
    pub samples: i64,
    pub ns: i64,
}

impl Part {
    fn add(&mut self, ns: i64) {
        self.samples += 1;
        self.ns += ns;
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Worked {
    /// With the function on their stack.
    pub all: Part,
    /// Of these, with no packet at hand.
    pub without: Part,
    pub packets: BTreeMap<i64, Part>,
}

/// A call or a point of a packet, as far as it bears on a sample.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Met {
    is_call: bool,
    entry_ns: i64,
    packet: i64,
}

/// By CPU and code of the context, in order of time.
type ByContext = BTreeMap<(i32, i32), Vec<(Moment, Option<Met>)>>;

/// `function`: its name, or with the process (`1234k:name`). `None`: the log has no samples.
pub fn worked(log: &Store, function: &str) -> Result<Option<Worked>> {
    let Some(t) = timed(log)? else { return Ok(None) };
    let mut by_cpu = ByContext::new();
    for m in moments(&t, function) {
        by_cpu.entry((m.cpu, context(m.busy) as i32)).or_default().push((*m, None));
    }
    let table = log.table::<CallRow>()?;
    table.each((0..table.groups()).collect(), |r: CallRow| meet(&mut by_cpu, &r))?;
    Ok(Some(added_up(by_cpu.into_values().flatten())))
}

/// In order of time.
fn moments<'a>(t: &'a Timed, function: &str) -> impl Iterator<Item = &'a Moment> {
    let named: Vec<bool> = t.functions.iter().map(|f| f.name == function || f.label() == function).collect();
    let fits: Vec<bool> = t.stacks.iter().map(|s| s.iter().any(|f| named[*f as usize])).collect();
    t.moments.iter().filter(move |m| fits[m.stack as usize])
}

fn context(busy: Busy) -> Context {
    match tree::Context::of(busy) {
        tree::Context::Softirq => Context::Softirq,
        tree::Context::Hardirq => Context::Hardirq,
        tree::Context::Task | tree::Context::Fault => Context::Task,
    }
}

fn meet(by_cpu: &mut ByContext, r: &CallRow) {
    let Some(packet) = r.packet_id else { return };
    let Some(samples) = by_cpu.get_mut(&(r.cpu, r.ctx)) else { return };
    let until = r.entry_ns.saturating_add(r.dur_ns.unwrap_or(MOMENT_NS));
    let first = samples.partition_point(|(m, _)| m.at_ns < r.entry_ns);
    let met = Met { is_call: r.dur_ns.is_some(), entry_ns: r.entry_ns, packet };
    for (_, best) in samples[first..].iter_mut().take_while(|(m, _)| m.at_ns <= until) {
        *best = (*best).max(Some(met));
    }
}

fn added_up(samples: impl Iterator<Item = (Moment, Option<Met>)>) -> Worked {
    let mut found = Worked::default();
    for (m, met) in samples {
        found.all.add(m.ns);
        match met {
            Some(met) => found.packets.entry(met.packet).or_default().add(m.ns),
            None => found.without.add(m.ns),
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use kpat_model::Purpose;

    fn sample(at_ns: i64) -> (Moment, Option<Met>) {
        let (busy, purpose) = (Busy::Softirq, Purpose::Socket);
        (Moment { at_ns, cpu: 1, busy, purpose, served: None, victim: None, stack: 0, ns: 5 }, None)
    }

    fn row(packet: i64, entry_ns: i64, dur_ns: Option<i64>, ctx: i32, cpu: i32) -> CallRow {
        CallRow { packet_id: Some(packet), entry_ns, dur_ns, ctx, cpu, ..CallRow::default() }
    }

    #[test]
    fn a_samples_packet_is_that_of_the_innermost_call_and_else_of_the_last_point() {
        let mut by_cpu = ByContext::new();
        let samples = [100, 205, 300, 400, 500, MOMENT_NS + 700].map(sample).to_vec();
        by_cpu.insert((1, Context::Softirq as i32), samples);
        let softirq = Context::Softirq as i32;
        for r in [
            row(1, 90, Some(200), softirq, 1),
            row(2, 200, Some(10), softirq, 1),
            row(3, 204, None, softirq, 1), // a point within the call
            row(4, 299, Some(10), softirq, 0),
            row(4, 299, Some(10), Context::Task as i32, 1),
            row(5, 390, None, softirq, 1),
            row(6, 395, None, softirq, 1),
        ] {
            meet(&mut by_cpu, &r);
        }
        let found: Vec<Option<i64>> =
            by_cpu[&(1, Context::Softirq as i32)].iter().map(|(_, m)| m.map(|m| m.packet)).collect();
        assert_eq!(found, [Some(1), Some(2), Some(3), Some(6), Some(6), None]);
        let sums = added_up(by_cpu.into_values().flatten());
        assert_eq!((sums.all.samples, sums.without.samples), (6, 1));
        assert_eq!(sums.packets[&6], Part { samples: 2, ns: 10 });
    }
}
