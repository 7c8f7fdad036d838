//! Statistics of each function, and where its calls are. Quantiles come from a histogram with 32 steps per power of two:
//! the middle of a step is within 1/64 of every value in it.

use crate::error::Result;
use crate::spill::{Fixed, Put, Sorter, Take};
use kpat_store::TableWriter;
use kpat_store::tables::{CALL, CallIndexRow, CallRow, DurationRow, FunctionRow};
use std::path::Path;

const STEPS: u64 = 32;

#[derive(Clone, Debug, Default)]
pub(super) struct Stats {
    pub calls: u64,
    pub packets: u64,
    timed: u64,
    total_ns: i64,
    self_ns: i64,
    min_ns: i64,
    max_ns: i64,
    max_packet: u64,
    histogram: Vec<u32>,
}

fn step_of(v: u64) -> usize {
    if v < 2 * STEPS {
        return v as usize;
    }
    let power = 63 - u64::from(v.leading_zeros());
    // The five bits behind the highest one.
    let sub = (v >> (power - 5)) & (STEPS - 1);
    ((power - 5) * STEPS + STEPS + sub) as usize
}

fn middle_of(step: usize) -> i64 {
    let step = step as u64;
    if step < 2 * STEPS {
        return step as i64;
    }
    let power = (step - STEPS) / STEPS + 5;
    let low = (STEPS + (step - STEPS) % STEPS) << (power - 5);
    (low + ((1 << (power - 5)) >> 1)) as i64
}

impl Stats {
    pub fn timed(&mut self, dur_ns: i64, self_ns: i64, packet: u64) {
        if self.timed == 0 || dur_ns < self.min_ns {
            self.min_ns = dur_ns;
        }
        if self.timed == 0 || dur_ns > self.max_ns {
            self.max_ns = dur_ns;
            self.max_packet = packet;
        }
        self.timed += 1;
        self.total_ns = self.total_ns.saturating_add(dur_ns);
        self.self_ns = self.self_ns.saturating_add(self_ns);
        let step = step_of(dur_ns as u64);
        if self.histogram.len() <= step {
            self.histogram.resize(step + 1, 0);
        }
        self.histogram[step] = self.histogram[step].saturating_add(1);
    }

    fn quantile(&self, q: f64) -> i64 {
        let wanted = ((self.timed as f64 * q).ceil() as u64).max(1);
        let mut seen = 0;
        for (step, &n) in self.histogram.iter().enumerate() {
            seen += u64::from(n);
            if seen >= wanted {
                return middle_of(step).clamp(self.min_ns, self.max_ns);
            }
        }
        self.max_ns
    }

    pub fn fill(&self, row: &mut FunctionRow) {
        row.calls = self.calls as i64;
        row.timed = self.timed as i64;
        row.packets = self.packets as i64;
        row.total_ns = self.total_ns;
        row.self_ns = self.self_ns;
        if self.timed > 0 {
            row.min_ns = Some(self.min_ns);
            row.median_ns = Some(self.quantile(0.5));
            row.p99_ns = Some(self.quantile(0.99));
            row.max_ns = Some(self.max_ns);
            row.max_packet_id = (self.max_packet != 0).then_some(self.max_packet as i64);
        }
    }
}

impl Stats {
    /// Calls by the significant bits of their duration: class 0 is 0 ns, class i from 2^(i-1) to below 2^i.
    fn classes(&self) -> [u64; 64] {
        let mut classes = [0; 64];
        for (step, &n) in self.histogram.iter().enumerate() {
            // Steps do not cross a power of two.
            let bits = 64 - (middle_of(step) as u64).leading_zeros() as usize;
            classes[bits.min(63)] += u64::from(n);
        }
        classes
    }
}

/// Writes how durations are spread.
pub(super) fn write_durations(dir: &Path, stats: &[Stats]) -> Result<()> {
    let mut table = TableWriter::create(dir)?;
    for (func, stats) in stats.iter().enumerate() {
        for (class, &calls) in stats.classes().iter().enumerate().filter(|c| *c.1 > 0) {
            table.push(&DurationRow {
                func_id: func as i32,
                from_ns: if class == 0 { 0 } else { 1 << (class - 1) },
                below_ns: 1 << class.min(62),
                calls: calls as i64,
            })?;
        }
    }
    table.finish()?;
    Ok(())
}

/// One function in one row group of the call table.
#[derive(Clone, Copy)]
struct Occurrence {
    func: u16,
    group: u32,
    calls: u32,
    /// Shortest and longest of the timed calls.
    times: Option<(i64, i64)>,
}

impl Fixed for Occurrence {
    const BYTES: usize = 2 + 4 + 4 + 1 + 16;
    type Key = (u16, u32);

    fn key(&self) -> (u16, u32) {
        (self.func, self.group)
    }

    fn write(&self, to: &mut Put<'_>) {
        let (min, max) = self.times.unwrap_or((0, 0));
        to.u16(self.func).u32(self.group).u32(self.calls);
        to.u8(u8::from(self.times.is_some())).i64(min).i64(max);
    }

    fn read(from: &mut Take<'_>) -> Self {
        let (func, group, calls) = (from.u16(), from.u32(), from.u32());
        let timed = from.u8() != 0;
        let times = (from.i64(), from.i64());
        Occurrence { func, group, calls, times: timed.then_some(times) }
    }
}

/// Says where in the call table each function's calls are, as the table is written.
pub(super) struct CallIndex {
    group: u32,
    here: Vec<Occurrence>,
    done: Sorter<Occurrence>,
}

impl CallIndex {
    pub fn new(early: &Path) -> CallIndex {
        CallIndex { group: 0, here: Vec::new(), done: Sorter::new(early, "calls", 1 << 18) }
    }

    #[inline]
    pub fn add(&mut self, row: &CallRow) -> Result<()> {
        let group = (row.call_id as u64 / CALL.group_rows as u64) as u32;
        if group != self.group {
            self.next_group(group)?;
        }
        let i = row.func_id as usize;
        if self.here.len() <= i {
            let func = |i| Occurrence { func: i as u16, group, calls: 0, times: None };
            self.here.extend((self.here.len()..=i).map(func));
        }
        let here = &mut self.here[i];
        here.calls += 1;
        if let Some(dur) = row.dur_ns {
            let (min, max) = here.times.unwrap_or((dur, dur));
            here.times = Some((min.min(dur), max.max(dur)));
        }
        Ok(())
    }

    fn next_group(&mut self, group: u32) -> Result<()> {
        for place in &mut self.here {
            if place.calls > 0 {
                self.done.push(*place)?;
            }
            *place = Occurrence { group, calls: 0, times: None, ..*place };
        }
        self.group = group;
        Ok(())
    }

    pub fn write(mut self, dir: &Path) -> Result<()> {
        self.next_group(self.group)?;
        let sorted = self.done.finish()?;
        let mut table = TableWriter::create(dir)?;
        let mut all = sorted.iter()?;
        while let Some(p) = all.next()? {
            table.push(&CallIndexRow {
                func_id: i32::from(p.func),
                row_group: p.group as i32,
                calls: p.calls as i32,
                min_ns: p.times.map(|t| t.0),
                max_ns: p.times.map(|t| t.1),
            })?;
        }
        table.finish()?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_in_order_and_fine() {
        let mut last = 0;
        for v in (0..200_000u64).chain((18..62).map(|p| (1 << p) + (1 << p) / 3)) {
            let step = step_of(v);
            assert!(step >= last, "{v}");
            last = step;
            let middle = middle_of(step) as f64;
            assert!((middle - v as f64).abs() <= v as f64 / 64.0 + 0.5, "{v}: {middle}");
        }
    }

    #[test]
    fn quantiles() {
        let mut s = Stats::default();
        (1..=1000).for_each(|v| s.timed(v * 100, v, 1));
        let near = |got: i64, want: i64| (got - want).abs() * 60 <= want;
        assert!(near(s.quantile(0.5), 50_000) && near(s.quantile(0.99), 99_000));
        assert_eq!((s.min_ns, s.max_ns), (100, 100_000));
    }
}
