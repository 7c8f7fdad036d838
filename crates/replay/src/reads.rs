//! What was received from the other side, for writes that wait for it.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Without a byte for so long, who waits for one gives up.
const PATIENCE: Duration = Duration::from_secs(10);
/// Between looks at whether to stop.
pub const LOOK: Duration = Duration::from_millis(100);

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
    /// Bytes in all, and when; what is no longer needed is dropped.
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
}
