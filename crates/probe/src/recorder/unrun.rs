//! Softirqs in which no program of ours ran.
//!
//! A kernel may run a tracepoint without its programs: while one of them runs on that CPU already, which it counts (`recursion_misses`), and uncounted where a
//! rule of its own forbids them, as in the context of a task that is protected. What such a softirq handled is missing in the log. The kernel counts
//! its softirqs (/proc/softirqs, by kstat_incr_softirqs_this_cpu() in kernel/softirq.c) and so does our program at their entry; the difference is what was missed.

use super::sources::Sources;
use crate::sink::Sink;
use crate::sys;
use kpat_model::{BootNs, Loss, LossCause};
use std::time::{Duration, Instant};

const EVERY: Duration = Duration::from_secs(1);
/// A softirq is counted by the kernel a moment before our program sees it.
const MOMENT: Duration = Duration::from_millis(1);

/// One CPU, since logging began.
#[derive(Clone, Copy)]
struct Compared {
    /// What the kernel had counted, which wraps, and what our program had.
    kernel: u32,
    seen: u64,
    told: u64,
    /// When it was last looked at: what was seen, and records that were made.
    last: (u64, u64),
}

impl Compared {
    /// At least so many, of these counts.
    fn missed(&self, kernel: u32, seen: u64) -> u64 {
        u64::from(kernel.wrapping_sub(self.kernel)).saturating_sub(seen - self.seen)
    }
}

/// By CPU: softirqs that our program saw, and records that were made.
type Seen = Vec<(u64, u64)>;

#[derive(Default)]
pub(super) struct Unrun {
    /// None: nothing is logged, or nothing is counted.
    cpus: Vec<Compared>,
    looked: Option<(Instant, BootNs)>,
}

impl Unrun {
    /// Logging began, or goes on.
    pub(super) fn begin(&mut self, sources: &Sources) {
        if self.looked.is_some() {
            return;
        }
        let at = sys::boot_now();
        // In this order a softirq in between is not one that was missed.
        let Some(seen) = sources.softirqs() else { return };
        let kernel = counted(&proc_softirqs());
        let begin = |(&(seen, records), kernel)| Compared { kernel, seen, told: 0, last: (seen, records) };
        self.cpus = seen.iter().zip(kernel).map(begin).collect();
        self.looked = Some((Instant::now(), at));
    }

    /// Nothing is logged from now on.
    pub(super) fn end(&mut self, sources: &Sources, sink: &mut Sink) {
        self.tell(sources, sink, true);
        *self = Unrun::default();
    }

    /// Tells what was missed, once a second or `now`.
    pub(super) fn tell(&mut self, sources: &Sources, sink: &mut Sink, now: bool) {
        let Some((looked, from)) = self.looked else { return };
        if !now && looked.elapsed() < EVERY {
            return;
        }
        let (mut missed, mut seen) = self.missed(sources);
        if missed.iter().zip(&self.cpus).any(|(missed, c)| *missed > c.told) {
            std::thread::sleep(MOMENT);
            let again = self.missed(sources);
            missed = missed.into_iter().zip(again.0).map(|(a, b)| a.min(b)).collect();
            seen = again.1;
        }
        let to = sys::boot_now();
        self.looked = Some((Instant::now(), to));
        for (cpu, ((c, missed), (seen, records))) in self.cpus.iter_mut().zip(missed).zip(seen).enumerate() {
            let each = (records - c.last.1).div_ceil((seen - c.last.0).max(1)).max(1);
            c.last = (seen, records);
            if missed > c.told {
                let count = (missed - c.told).saturating_mul(each);
                c.told = missed;
                sink.loss(&Loss { cause: LossCause::NotRun, cpu: cpu as i32, from, to, count });
            }
        }
    }

    /// By CPU, at least so many; and what was seen.
    fn missed(&self, sources: &Sources) -> (Vec<u64>, Seen) {
        let kernel = counted(&proc_softirqs());
        let seen = sources.softirqs().unwrap_or_default();
        let missed = |(c, (kernel, (seen, _))): (&Compared, (u32, &(u64, u64)))| c.missed(kernel, *seen);
        (self.cpus.iter().zip(kernel.into_iter().zip(&seen)).map(missed).collect(), seen)
    }
}

fn proc_softirqs() -> String {
    std::fs::read_to_string("/proc/softirqs").unwrap_or_default()
}

/// By CPU, from 0 on: softirqs that send and that receive. Empty where the text says nothing of them, or not of all CPUs up to its last.
fn counted(text: &str) -> Vec<u32> {
    let mut lines = text.lines();
    let in_order =
        |names: &str| names.split_whitespace().enumerate().all(|(i, name)| name == format!("CPU{i}"));
    if !lines.next().is_some_and(in_order) {
        return Vec::new();
    }
    let of = |kind: &str| -> Vec<u32> {
        let mut rest = lines.clone().filter_map(|l| l.trim_start().strip_prefix(kind));
        rest.next().map_or(Vec::new(), |l| l.split_whitespace().filter_map(|n| n.parse().ok()).collect())
    };
    of("NET_TX:").into_iter().zip(of("NET_RX:")).map(|(tx, rx)| tx.wrapping_add(rx)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_counted_and_no_program_saw_was_missed() {
        let c = Compared { kernel: u32::MAX - 1, seen: 7, told: 0, last: (7, 0) };
        assert_eq!([c.missed(u32::MAX - 1, 7), c.missed(u32::MAX, 8)], [0, 0]);
        assert_eq!([c.missed(2, 11), c.missed(2, 9)], [0, 2], "it wraps");
        assert_eq!(c.missed(u32::MAX, 9), 0, "one came between the two looks");
    }

    #[test]
    fn softirqs_of_the_network_are_counted_by_cpu() {
        let text = "                    CPU0       CPU1       \n      NET_TX:     226409 4294967295\n      NET_RX:   21584186          2\n       BLOCK:      31830    6221374\n";
        assert_eq!(counted(text), [21_810_595, 1]);
        assert!(counted(&text.replace("CPU1", "CPU3")).is_empty(), "one that is not there");
        assert!(counted("").is_empty() && counted(" CPU0\n BLOCK: 1\n").is_empty());
        assert!(!counted(&proc_softirqs()).is_empty(), "this kernel's own");
    }
}
