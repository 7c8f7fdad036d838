//! Pieces of work that do not need each other: done by as many threads as there are CPUs, joined in their order, so that
//! the outcome is that of one thread.

use crate::error::{Error, Result};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// Between two looks at whether somebody still waits.
const STEP: Duration = Duration::from_millis(50);
/// More do not make it quicker: they wait for the same disk.
const MOST_THREADS: usize = 8;

/// Called with how many parts of how many are done; false: the client no longer waits for the answer.
pub type Progress<'a> = &'a mut dyn FnMut(u64, u64) -> bool;

/// What is done with an item. It is given what tells whether anybody still waits, to look at in between.
pub(crate) type Work<'a, T, S> = &'a (dyn Fn(&T, &dyn Fn() -> bool) -> Result<S> + Sync);

/// Does `work` for every item. `join` gets the
/// outcomes in the order of the items, in the caller's thread, as soon as those before are there.
///
/// Errors: the first that `work` meets; [`Error::Abandoned`].
pub(crate) fn abreast<T: Sync, S: Send>(
    items: &[T],
    progress: Progress<'_>,
    work: Work<'_, T, S>,
    join: &mut dyn FnMut(S),
) -> Result<()> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(MOST_THREADS);
    let (next, left) = (AtomicUsize::new(0), AtomicBool::new(false));
    let awaited = || !left.load(Ordering::Relaxed);
    std::thread::scope(|scope| {
        let (send, outcomes) = channel();
        for _ in 0..threads.min(items.len()) {
            let (send, next, awaited) = (send.clone(), &next, &awaited);
            scope.spawn(move || {
                while awaited() {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some(item) = items.get(at) else { return };
                    // Nobody listens any more only after an error or when it was left.
                    let _ = send.send((at, work(item, awaited)));
                }
            });
        }
        drop(send);
        let (mut early, mut joined) = (BTreeMap::new(), 0);
        let ended = loop {
            if joined == items.len() {
                break Ok(());
            }
            if !progress(joined as u64, items.len() as u64) {
                break Err(Error::Abandoned);
            }
            match outcomes.recv_timeout(STEP) {
                Ok((at, Ok(outcome))) => _ = early.insert(at, outcome),
                Ok((_, Err(e))) => break Err(e),
                Err(RecvTimeoutError::Timeout) => {}
                // A thread has panicked, which leaving the scope tells.
                Err(RecvTimeoutError::Disconnected) => break Err(Error::Abandoned),
            }
            while let Some(outcome) = early.remove(&joined) {
                join(outcome);
                joined += 1;
            }
        };
        left.store(true, Ordering::Relaxed);
        ended
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_come_in_order() {
        let items: Vec<u64> = (0..500).collect();
        let mut seen = Vec::new();
        // The earlier, the longer it takes.
        let work = |n: &u64, _: &dyn Fn() -> bool| {
            std::thread::sleep(Duration::from_micros((500 - n) / 4));
            Ok(*n)
        };
        abreast(&items, &mut |_, _| true, &work, &mut |n| seen.push(n)).unwrap();
        assert_eq!(seen, items);
    }

    #[test]
    fn an_error_or_leaving_ends_it() {
        let items: Vec<u64> = (0..100).collect();
        let failing = |n: &u64, _: &dyn Fn() -> bool| if *n == 40 { Err(Error::Abandoned) } else { Ok(*n) };
        let mut joined = 0;
        assert!(abreast(&items, &mut |_, _| true, &failing, &mut |_| joined += 1).is_err());
        assert!(joined <= 40);
        let forever = |_: &u64, awaited: &dyn Fn() -> bool| {
            while awaited() {
                std::thread::yield_now();
            }
            Ok(())
        };
        let mut looks = 0;
        let mut twice = |_, _| {
            looks += 1;
            looks < 2
        };
        assert!(matches!(abreast(&items, &mut twice, &forever, &mut |()| ()), Err(Error::Abandoned)));
    }
}
