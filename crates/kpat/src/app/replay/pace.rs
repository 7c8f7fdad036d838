//! Writing at the right moments, and how well that went. One end of one connection; knows of its peer only what it read.

use super::wire::Wire;
use kpat_formats::app_trace::Written;
use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Without a byte for so long, who waits for one gives up.
const PATIENCE: Duration = Duration::from_secs(10);
/// Between looks at whether to stop.
const LOOK: Duration = Duration::from_millis(100);

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

/// What an end has read so far, and when each much of it was there.
#[derive(Default)]
pub struct Reads {
    state: Mutex<Counted>,
    more: Condvar,
}

#[derive(Default)]
struct Counted {
    bytes: i64,
    reads: u64,
    last: Option<Instant>,
    /// Bytes in all, and when; what nobody can ask for any more is dropped.
    when: VecDeque<(i64, Instant)>,
    /// Nothing will come any more.
    ended: bool,
    /// Somebody asks for times.
    timed: bool,
}

impl Reads {
    /// `timed`: somebody will [`wait`](Self::wait).
    pub fn new(timed: bool) -> Reads {
        Reads { state: Mutex::new(Counted { timed, ..Default::default() }), more: Condvar::new() }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Counted> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn add(&self, bytes: usize) {
        let now = Instant::now();
        let mut s = self.lock();
        s.bytes += i64::try_from(bytes).unwrap_or(i64::MAX);
        s.reads += 1;
        s.last = Some(now);
        if s.timed {
            let all = s.bytes;
            s.when.push_back((all, now));
            drop(s);
            self.more.notify_all();
        }
    }

    pub fn end(&self) {
        self.lock().ended = true;
        self.more.notify_all();
    }

    pub fn bytes(&self) -> i64 {
        self.lock().bytes
    }

    /// When anything was read last; `None`: nothing was.
    pub fn last(&self) -> Option<Instant> {
        self.lock().last
    }

    pub fn calls(&self) -> u64 {
        self.lock().reads
    }

    /// When `bytes` in all had been read; `None`: they will not come, or the end is near.
    pub fn wait(&self, bytes: i64, stop: &AtomicBool) -> Option<Instant> {
        let mut s = self.lock();
        let mut last = (s.bytes, Instant::now());
        loop {
            while s.when.front().is_some_and(|w| w.0 < bytes) {
                s.when.pop_front();
            }
            if let Some(&(_, at)) = s.when.front() {
                return Some(at);
            }
            if s.bytes > last.0 {
                last = (s.bytes, Instant::now());
            }
            if s.ended || stop.load(Ordering::Relaxed) || last.1.elapsed() > PATIENCE {
                return None;
            }
            s = self.more.wait_timeout(s, LOOK).unwrap_or_else(PoisonError::into_inner).0;
        }
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
                    went.broke = Some(format!("waited in vain for {} bytes, {have} came", w.read_bytes));
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
    fn a_wait_ends_at_the_read_that_was_asked_for() {
        let reads = Reads::new(true);
        let stop = AtomicBool::new(false);
        reads.add(10);
        let between = Instant::now();
        reads.add(10);
        reads.add(10);
        assert!(reads.wait(5, &stop).unwrap() <= between);
        let at = reads.wait(15, &stop).unwrap();
        assert!(at >= between);
        assert_eq!(reads.wait(20, &stop), Some(at), "the same read");
        assert_eq!((reads.bytes(), reads.calls()), (30, 3));
        reads.end();
        assert_eq!(reads.wait(31, &stop), None);
    }

    #[test]
    fn times_are_scaled() {
        let pace = |scale| Pace { scale, closed: false };
        assert_eq!(pace(0.5).scaled(2_000_000), Duration::from_millis(1));
        assert_eq!(pace(1.0).scaled(-7), Duration::ZERO);
        assert_eq!(pace(f64::MAX).scaled(i64::MAX), FOREVER);
    }
}
