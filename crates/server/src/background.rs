//! Work that is done once, in a thread of its own, and that several may wait for.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Between two times that a waiting one is asked whether it still waits.
const STEP: Duration = Duration::from_millis(50);

/// A result that is there, or is being made.
pub struct Background<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
}

struct State<T> {
    begun: bool,
    done: u64,
    parts: u64,
    /// What there is so far.
    part: Option<Arc<T>>,
    result: Option<Result<Arc<T>, String>>,
}

impl<T> Default for Background<T> {
    fn default() -> Self {
        let state = State { begun: false, done: 0, parts: 0, part: None, result: None };
        Background { state: Mutex::new(state), changed: Condvar::new() }
    }
}

impl<T> Background<T> {
    fn locked(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True for one caller: it has to do the work and to finish it.
    pub fn begin(&self) -> bool {
        !std::mem::replace(&mut self.locked().begun, true)
    }

    pub fn step(&self, done: u64, parts: u64) {
        let mut state = self.locked();
        (state.done, state.parts) = (done, parts);
        drop(state);
        self.changed.notify_all();
    }

    /// What there is of the result so far.
    pub fn so_far(&self, part: T) {
        self.locked().part = Some(Arc::new(part));
        self.changed.notify_all();
    }

    pub fn end(&self, result: Result<T, String>) {
        let mut state = self.locked();
        state.part = None;
        state.result = Some(result.map(Arc::new));
        drop(state);
        self.changed.notify_all();
    }

    /// What is there now.
    pub fn get(&self) -> Option<Arc<T>> {
        self.locked().result.as_ref().and_then(|r| r.as_ref().ok().cloned())
    }

    /// Waits for it; `progress` says whether anybody still does.
    ///
    /// Errors: text; `None`: the client has gone.
    pub fn wait(&self, progress: &mut dyn FnMut(u64, u64) -> bool) -> Result<Arc<T>, Option<String>> {
        self.wait_and_see(progress, &mut |_| ())
    }

    /// As [`Background::wait`]; `so_far` is given every part of the result that it can be shown.
    pub fn wait_and_see(
        &self,
        progress: &mut dyn FnMut(u64, u64) -> bool,
        so_far: &mut dyn FnMut(&T),
    ) -> Result<Arc<T>, Option<String>> {
        let mut state = self.locked();
        let mut seen: Option<Arc<T>> = None;
        loop {
            match &state.result {
                Some(Ok(result)) => return Ok(Arc::clone(result)),
                Some(Err(words)) => return Err(Some(words.clone())),
                None => {}
            }
            let (done, parts) = (state.done, state.parts);
            let part = state.part.clone();
            drop(state);
            if let Some(part) = part
                && seen.as_ref().is_none_or(|s| !Arc::ptr_eq(s, &part))
            {
                so_far(&part);
                seen = Some(part);
            }
            if !progress(done, parts) {
                return Err(None);
            }
            // Once more under the lock: it may have ended in between.
            state = self.locked();
            if state.result.is_none() {
                state = self.changed.wait_timeout(state, STEP).unwrap_or_else(PoisonError::into_inner).0;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_works_and_all_get_it() {
        let shared: Arc<Background<u32>> = Arc::default();
        assert!(shared.begin() && !shared.begin());
        let waiting: Vec<_> = (0..4)
            .map(|_| {
                let shared = Arc::clone(&shared);
                std::thread::spawn(move || *shared.wait(&mut |_, _| true).unwrap())
            })
            .collect();
        assert_eq!(shared.wait(&mut |_, _| false), Err(None));
        shared.step(1, 2);
        shared.end(Ok(7));
        assert!(waiting.into_iter().all(|w| w.join().unwrap() == 7));
        assert_eq!(shared.get().as_deref(), Some(&7));
        let failed: Background<u32> = Background::default();
        failed.end(Err("no".to_owned()));
        assert_eq!(failed.wait(&mut |_, _| true), Err(Some("no".to_owned())));
    }
}
