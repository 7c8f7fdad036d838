//! Writing at the right moments, and how well that went. One end of one connection; knows of its peer only what it read.

use crate::reads::{LOOK, Reads};
use crate::wire::Wire;
use kpat_formats::app_trace::Written;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Longer than anybody waits, and short enough to be added to any time.
const FOREVER: Duration = Duration::from_secs(1 << 36);

/// How the trace's times are taken.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    pub scale: f64,
    /// A write that comes after a read waits for that read.
    pub closed: bool,
}

impl Pace {
    pub fn scaled(&self, ns: i64) -> Duration {
        let seconds = ns.max(0) as f64 * 1e-9 * self.scale;
        Duration::try_from_secs_f64(seconds).unwrap_or(FOREVER).min(FOREVER)
    }
}

/// How one end's writes went.
#[derive(Default)]
pub struct Went {
    pub writes: u64,
    pub bytes: u64,
    /// How much later than it should have each write began.
    pub late_ns: Vec<i64>,
    /// The first write's beginning, the last one's end.
    pub first: Option<Instant>,
    pub last: Option<Instant>,
    /// Datagrams that the kernel did not take.
    pub refused: u64,
    /// Why it ended before its last write.
    pub broke: Option<String>,
}

/// Writes all of it, or until `stop`. `zero`: the moment from which its times count.
pub fn play(
    writes: &[Written],
    wire: &Wire,
    zero: Instant,
    pace: Pace,
    reads: &Reads,
    stop: &AtomicBool,
    zeros: &[u8],
) -> Went {
    let mut went = Went { late_ns: Vec::with_capacity(writes.len()), ..Default::default() };
    let mut before: Option<(i64, Instant)> = None;
    for w in writes {
        let due = match before {
            _ if !pace.closed => zero + pace.scaled(w.at_ns),
            _ if w.read_bytes >= 0 => match reads.wait(w.read_bytes, stop) {
                Some(at) => at + pace.scaled(w.think_ns),
                None if stop.load(Ordering::Relaxed) => return went,
                None => {
                    let have = reads.bytes();
                    went.broke = Some(format!("expected {} bytes, received {have}", w.read_bytes));
                    return went;
                }
            },
            Some((at_ns, due)) => due + pace.scaled(w.at_ns - at_ns),
            None => zero + pace.scaled(w.at_ns),
        };
        before = Some((w.at_ns, due));
        if !sleep_until(due, stop) {
            return went;
        }
        let began = Instant::now();
        let bytes = &zeros[..usize::try_from(w.size_bytes).unwrap_or(0).min(zeros.len())];
        match wire.send(bytes) {
            Ok(()) => {}
            Err(e) if wire.is_datagram() && e.kind() != io::ErrorKind::BrokenPipe => went.refused += 1,
            Err(_) if stop.load(Ordering::Relaxed) => return went,
            Err(e) => {
                went.broke = Some(format!("cannot write: {e}"));
                return went;
            }
        }
        went.first.get_or_insert(began);
        went.last = Some(Instant::now());
        went.writes += 1;
        went.bytes += bytes.len() as u64;
        let late = i64::try_from(began.saturating_duration_since(due).as_nanos());
        went.late_ns.push(late.unwrap_or(i64::MAX));
    }
    went
}

/// False: to be stopped.
pub fn sleep_until(due: Instant, stop: &AtomicBool) -> bool {
    loop {
        if stop.load(Ordering::Relaxed) {
            return false;
        }
        let left = due.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return true;
        }
        std::thread::sleep(left.min(LOOK));
    }
}

/// The kernel may let sleepers oversleep by 50 µs to wake several at once; here that would be lateness. Threads made later have it, too.
pub fn wake_on_time() {
    // SAFETY: this option takes a number and touches no memory; that it may fail is no harm.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1usize, 0usize, 0usize, 0usize) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_scaled() {
        let pace = |scale| Pace { scale, closed: false };
        assert_eq!(pace(0.5).scaled(2_000_000), Duration::from_millis(1));
        assert_eq!(pace(1.0).scaled(-7), Duration::ZERO);
        assert_eq!(pace(f64::MAX).scaled(i64::MAX), FOREVER);
    }
}
