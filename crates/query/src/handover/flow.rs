//! A handover as an application saw it: the gap in what it received, and what was lost or late of it.

use std::collections::VecDeque;

/// The gap of one flow, by its packets or its application's reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowGap {
    /// Which flow.
    pub words: String,
    /// The last received before, and the first after.
    pub last_ns: i64,
    pub first_ns: Option<i64>,
    /// Usual time between two, before the gap.
    pub pace_ns: i64,
    /// Sent by this host in the gap, and of these dropped by its kernel or refused.
    pub sent: u64,
    pub refused: u64,
    /// By the pace, as many should have come in the gap.
    pub missing: u64,
    /// Came close behind each other after the gap: they had been held somewhere.
    pub late: u64,
}

impl FlowGap {
    pub fn gap_ns(&self) -> Option<i64> {
        Some(self.first_ns? - self.last_ns)
    }

    /// The application's loss, in a sentence.
    pub fn sentence(&self) -> String {
        let ms = |ns: i64| format!("{:.1} ms", ns as f64 / 1e6);
        let gap = match self.gap_ns() {
            Some(ns) => format!("nothing received for {}", ms(ns)),
            None => "nothing received any more".to_owned(),
        };
        let mut words = format!("{}, one packet every {}: {gap}", self.words, ms(self.pace_ns));
        if self.missing > 0 {
            let packets = if self.missing == 1 { "packet" } else { "packets" };
            words += &format!(", about {} {packets} missing by that pace", self.missing);
        }
        if self.late > 0 {
            words += &format!(", {} came late and together", self.late);
        }
        if self.sent > 0 {
            let were = if self.sent == 1 { "was" } else { "were" };
            words += &format!("; {} {were} sent meanwhile", self.sent);
            if self.refused > 0 {
                words += &format!(", {} of them dropped by this kernel", self.refused);
            }
        }
        words
    }
}

/// What comes between as many packets is a flow's pace.
const PACE: usize = 64;

/// Times at which one flow received, from before a handover to after it.
#[derive(Clone, Debug, Default)]
pub(super) struct Received {
    pub times: Vec<i64>,
    /// Of what is farther back the last ones, for its pace: shortly after another handover there is little else than the burst that it held.
    earlier: VecDeque<i64>,
}

/// From one packet to the next: the average of the middle half of averages over some of them, which neither an earlier gap changes nor that a busy host has them in bursts.
fn pace(times: &[i64]) -> i64 {
    let each = (times.len() / 8).max(1);
    let ends: Vec<i64> = times.iter().rev().step_by(each).copied().collect();
    let mut averages: Vec<i64> = ends.windows(2).map(|w| (w[0] - w[1]) / each as i64).collect();
    averages.sort_unstable();
    let middle = &averages[averages.len() / 4..averages.len() - averages.len() / 4];
    middle.iter().sum::<i64>() / middle.len().max(1) as i64
}

impl Received {
    pub fn earlier(&mut self, at_ns: i64) {
        if self.earlier.len() == PACE {
            self.earlier.pop_front();
        }
        self.earlier.push_back(at_ns);
    }

    /// All that came is known.
    pub fn sort(&mut self) {
        self.times.extend(self.earlier.drain(..));
        self.times.sort_unstable();
    }

    /// The longest time without data that touches `from_ns..=to_ns`.
    pub fn gap(&self, (from_ns, to_ns): (i64, i64), words: String) -> Option<FlowGap> {
        let t = &self.times;
        let touches = |i: &usize| t[i + 1] >= from_ns && t[*i] <= to_ns;
        let i = (0..t.len().saturating_sub(1)).filter(touches).max_by_key(|i| t[i + 1] - t[*i]);
        // It never came again, and that is longer.
        let open_ns = t.last().filter(|at| **at <= to_ns).map_or(0, |at| to_ns - at);
        let i = i.filter(|i| t[i + 1] - t[*i] >= open_ns);
        let (last, first) = match i {
            Some(i) => (i, Some(t[i + 1])),
            None => (t.iter().rposition(|at| *at <= to_ns)?, None),
        };
        let before = &t[last.saturating_sub(PACE)..=last];
        let pace_ns = pace(before);
        // Held packets arrive in a burst: far closer than the pace, right behind the gap.
        let burst = |w: &&[i64]| w[1] - w[0] < pace_ns / 4;
        let late = match i {
            Some(i) => t[i + 1..].windows(2).take_while(burst).count() as u64,
            None => 0,
        };
        let end = first.unwrap_or(to_ns);
        let due = if pace_ns > 0 { ((end - t[last]) / pace_ns - 1).max(0) as u64 } else { 0 };
        Some(FlowGap {
            words,
            last_ns: t[last],
            first_ns: first,
            pace_ns,
            sent: 0,
            refused: 0,
            missing: due.saturating_sub(late),
            late,
        })
    }
}
