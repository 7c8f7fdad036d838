//! Statistics of each function. Quantiles come from a histogram with 32 steps per power of two: the middle of a step is
//! within 1/64 of every value in it.

use kpat_store::tables::FunctionRow;

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
