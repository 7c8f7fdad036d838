//! What the kernel itself counts by CPU: the time that it accounts for, the packets that it received, the requests of disks.

use crate::sys;
use kpat_model::BootNs;
use std::collections::HashMap;
use std::path::Path;

/// User, system, idle, interrupts, softirqs, stolen; in nanoseconds since the boot.
type Shares = [u64; 6];

/// What /proc/stat says of each CPU, and when.
#[derive(Default)]
pub struct Times {
    at: BootNs,
    of: Vec<Option<Shares>>,
}

impl Times {
    /// Where this thread had to wait for its CPU while it read, the moment would be known to that wait only: it reads again.
    pub fn read() -> Times {
        const TRIES: usize = 4;
        const NEAR_NS: i64 = 1_000_000;
        let once = || {
            let from = sys::boot_now();
            let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
            let took = sys::boot_now().0 - from.0;
            (took, Times { at: BootNs(from.0 + took / 2), of: times_of(&text, sys::ns_per_tick()) })
        };
        let mut best = once();
        for _ in 1..TRIES {
            if best.0 <= NEAR_NS {
                break;
            }
            let other = once();
            if other.0 < best.0 {
                best = other;
            }
        }
        best.1
    }

    /// What a CPU had at a moment between two readings, as if its time had been spread evenly between them.
    pub fn between([a, b]: &[Times; 2], cpu: usize, at: BootNs) -> Shares {
        let of = |t: &Times| t.of.get(cpu).copied().flatten();
        let (Some(from), Some(to)) = (of(a), of(b)) else { return of(a).or(of(b)).unwrap_or_default() };
        let (part, whole) = ((at.0 - a.at.0).max(0) as u128, (b.at.0 - a.at.0).max(1) as u128);
        // Idle time was seen to go back by a tick.
        let step = |i: usize| to[i].saturating_sub(from[i]) as u128 * part.min(whole) / whole;
        std::array::from_fn(|i| from[i] + step(i) as u64)
    }
}

fn times_of(text: &str, tick_ns: u64) -> Vec<Option<Shares>> {
    let mut out = Vec::new();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        let cpu = words.next().and_then(|w| w.strip_prefix("cpu")?.parse::<usize>().ok());
        let Some(cpu) = cpu.filter(|c| *c < 1 << 16) else { continue };
        let of: Vec<u64> = words.map_while(|w| w.parse::<u64>().ok()).map(|t| t * tick_ns).collect();
        let [user, nice, system, idle, iowait, irq, softirq, steal, ..] = of[..] else { continue };
        if out.len() <= cpu {
            out.resize(cpu + 1, None);
        }
        out[cpu] = Some([user + nice, system, idle + iowait, irq, softirq, steal]);
    }
    out
}

/// By CPU the packets that /proc/net/softnet_stat counts, modulo 2^32. The last column is the CPU, from 5.10 on.
pub fn packets() -> HashMap<usize, u64> {
    packets_of(&std::fs::read_to_string("/proc/net/softnet_stat").unwrap_or_default())
}

fn packets_of(text: &str) -> HashMap<usize, u64> {
    const CPU: usize = 12;
    let line = |line: &str| {
        let words: Vec<u64> =
            line.split_whitespace().filter_map(|w| u64::from_str_radix(w, 16).ok()).collect();
        Some((usize::try_from(*words.get(CPU)?).ok()?, *words.first()?))
    };
    text.lines().filter_map(line).collect()
}

/// Requests of disks that /proc/diskstats counts. Only disks that have queues of requests: others pass on what they are asked for, and count it, too.
pub fn requests() -> Option<u64> {
    let queues = |disk: &str| Path::new("/sys/block").join(disk).join("mq").exists();
    Some(requests_of(&std::fs::read_to_string("/proc/diskstats").ok()?, queues))
}

fn requests_of(text: &str, queues: impl Fn(&str) -> bool) -> u64 {
    const NAME: usize = 2;
    /// Reads, writes, discards, flushes; the last two came with 4.18 and 5.5.
    const COMPLETED: [usize; 4] = [3, 7, 14, 18];
    let of = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |column: usize| words.get(column)?.parse::<u64>().ok();
        words
            .get(NAME)
            .filter(|disk| queues(disk))
            .map_or(0, |_| COMPLETED.into_iter().filter_map(number).sum())
    };
    text.lines().map(of).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_packets_by_cpu() {
        let text = "0012812e 00000000 00000001 00000000 0 0 0 0 0 00000000 00000000 00000000 00000002 00000000 00000000\n00000003 00000000\n";
        assert_eq!(packets_of(text), [(2, 0x12812e)].into());
    }

    #[test]
    fn the_kernels_requests_are_those_of_disks_with_queues() {
        let text = " 254 0 vda 10 1 2 3 20 4 5 6 7 8 9 100 0 0 0 1000 0\n 254 1 vda1 9 1 2 3 9 4 5 6 7 8 9 9 0 0 0 9 0\n   8 0 sda 1 1 2 3 2\n";
        assert_eq!(requests_of(text, |disk| !disk.ends_with('1')), 10 + 20 + 100 + 1000 + 3);
    }

    #[test]
    fn the_kernels_times_by_cpu() {
        let text =
            "cpu  9 9 9 9 9 9 9 9 0 0\ncpu0 1 2 3 4 5 6 7 8 0 0\ncpu2 10 0 0 0 0 0 0 0 0 0\nintr 1 2 3\n";
        let times = times_of(text, 10);
        assert_eq!(times, [Some([30, 30, 90, 60, 70, 80]), None, Some([100, 0, 0, 0, 0, 0])]);
    }

    #[test]
    fn a_moment_between_two_readings() {
        let read = |at, user, idle| Times { at: BootNs(at), of: vec![Some([user, 0, idle, 0, 0, 0])] };
        let around = [read(100, 1000, 500), read(300, 1100, 600)];
        for (at, user, idle) in
            [(50, 1000, 500), (100, 1000, 500), (200, 1050, 550), (300, 1100, 600), (400, 1100, 600)]
        {
            assert_eq!(Times::between(&around, 0, BootNs(at)), [user, 0, idle, 0, 0, 0], "at {at}");
        }
        assert_eq!(Times::between(&around, 1, BootNs(200)), [0; 6], "no such CPU");
    }
}
