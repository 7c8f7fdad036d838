//! An integrated log, open for questions, with what is kept between them: the list of packets, orders of it, and the
//! answers that took long.

use crate::background::Background;
use kpat_query::app::Traffic;
use kpat_query::catalog::{Catalog, Column};
use kpat_query::devices::Several;
use kpat_query::handover::Found;
use kpat_query::phases::{Boundaries, PhaseReport, phases};
use kpat_query::sampled::Sampled;
use kpat_query::time::{Comparison, TimeReport};
use kpat_query::{Conservation, Flame, Info, PacketFilter, Residuals, Store, Touched};
use kpat_store::Manifest;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

/// Logs of so many calls at most are cut into phases before anybody asks: some ten seconds of one CPU.
const CUT_AHEAD: u64 = 20_000_000;

/// Points of a capture that are drawn.
const MOST_POINTS: usize = 4_000;

/// What stands at a path: one log, or those of several devices.
pub struct Opened {
    /// As it was given, without its folder.
    pub name: String,
    pub devices: Vec<Arc<Log>>,
    /// Further runs of what this is, for comparisons.
    pub beside: Vec<Arc<Log>>,
    /// Runs to compare with.
    pub other: Vec<Arc<Log>>,
}

impl Opened {
    /// Errors: not an integrated log, or a damaged one.
    pub fn open(path: &Path, beside: Vec<Arc<Log>>, other: Vec<Arc<Log>>) -> kpat_query::Result<Opened> {
        let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        let manifest = Manifest::read(path)?;
        let mut devices = Vec::new();
        if manifest.devices.is_empty() {
            devices.push(Arc::new(Log::open(path, None)?));
        } else {
            for (place, d) in (0..).zip(&manifest.devices) {
                let among = Among { dir: path.to_owned(), place, name: d.name.clone() };
                devices.push(Arc::new(Log::open(&Several::open(path)?.folder(place), Some(among))?));
            }
        }
        Ok(Opened { name, devices, beside, other })
    }

    /// By name; without one the first.
    pub fn device(&self, name: Option<&str>) -> Option<&Arc<Log>> {
        match name.filter(|n| !n.is_empty()) {
            None => self.devices.first(),
            Some(name) => self.devices.iter().find(|d| d.among.as_ref().is_some_and(|a| a.name == name)),
        }
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        self.devices.iter().for_each(|d| d.stop.store(true, Ordering::Relaxed));
    }
}

/// The log of several devices that a log is part of.
pub struct Among {
    pub dir: PathBuf,
    pub place: i32,
    pub name: String,
}

/// One device's log.
pub struct Log {
    pub store: Store,
    pub info: Info,
    pub among: Option<Among>,
    pub dir: PathBuf,
    beginning: OnceLock<Arc<Catalog>>,
    list: Background<Catalog>,
    /// Of all packets.
    phases_of_all: Background<PhaseReport>,
    stop: AtomicBool,
    pub orders: Kept<(String, Option<Column>, bool), Vec<u32>>,
    pub ids: Kept<String, Arc<[i64]>>,
    pub touched: Kept<(String, Option<i64>, Option<i64>), Touched>,
    pub phases: Kept<String, PhaseReport>,
    pub times: Kept<String, TimeReport>,
    pub comparison: Kept<(), Comparison>,
    pub handovers: Kept<(), Found>,
    /// `None`: the log has no samples.
    pub sampled: Kept<(), Option<Sampled>>,
    /// Of all sockets, those with the most bytes first.
    pub traffic: Kept<(), Vec<Traffic>>,
    pub conservation: OnceLock<Conservation>,
    flame: OnceLock<Flame>,
    residuals: OnceLock<Vec<Residuals>>,
}

impl Log {
    pub fn open(dir: &Path, among: Option<Among>) -> kpat_query::Result<Log> {
        let store = Store::open(dir)?;
        let info = store.info()?;
        Ok(Log {
            store,
            info,
            among,
            dir: dir.to_owned(),
            beginning: OnceLock::new(),
            list: Background::default(),
            phases_of_all: Background::default(),
            stop: AtomicBool::new(false),
            orders: Kept::new(12),
            ids: Kept::new(4),
            touched: Kept::new(4),
            phases: Kept::new(4),
            times: Kept::new(4),
            comparison: Kept::new(1),
            handovers: Kept::new(1),
            sampled: Kept::new(1),
            traffic: Kept::new(1),
            conservation: OnceLock::new(),
            flame: OnceLock::new(),
            residuals: OnceLock::new(),
        })
    }

    /// What times count from.
    pub fn start_ns(&self) -> i64 {
        self.info.manifest.first_ns
    }

    pub fn capture(&self, capture_id: i32) -> &str {
        let mut sources = self.info.manifest.sources.iter();
        sources.find(|s| s.role == "capture" && s.capture_id == capture_id).map_or("?", |s| &s.name)
    }

    /// Name of the thread at that time; empty: unknown.
    pub fn comm(&self, pid: i32, at_ns: i64) -> String {
        self.store.process(pid, at_ns).map(|p| p.comm.clone()).unwrap_or_default()
    }

    /// Reads the list of packets in a thread of its own, once; `ready` is called when it is there. `ahead`: what takes long
    /// and will be asked for comes after it.
    pub fn load(self: &Arc<Log>, ahead: bool, ready: impl FnOnce() + Send + 'static) {
        if !self.list.begin() {
            return;
        }
        let log = Arc::clone(self);
        let work = move || {
            let read = Catalog::load(&log.store, &mut |done, parts| {
                log.list.step(done, parts);
                !log.stop.load(Ordering::Relaxed)
            });
            log.list.end(read.map_err(|e| e.to_string()));
            if let Ok(conservation) = log.store.conservation() {
                let _ = log.conservation.set(conservation);
            }
            ready();
            // Asked for by the next view, and kept.
            let _ = log.residuals();
            let calls = log.info.manifest.tables.iter().find(|t| t.table == "call").map_or(0, |t| t.rows);
            if ahead && calls <= CUT_AHEAD {
                // If it fails, filters by function read the calls.
                let _ = log.store.keep_touching(&mut |_, _| !log.stop.load(Ordering::Relaxed));
                log.cut_all();
            }
        };
        if let Err(e) = std::thread::Builder::new().name("packets".into()).spawn(work) {
            self.list.end(Err(format!("no thread to read the packets: {e}")));
        }
    }

    /// Cuts all packets into phases, if that was not done yet, in this thread.
    fn cut_all(&self) {
        if !self.phases_of_all.begin() {
            return;
        }
        step_back();
        let all = PacketFilter::default();
        let mut step = |done, parts| {
            self.phases_of_all.step(done, parts);
            !self.stop.load(Ordering::Relaxed)
        };
        let so_far = &mut |report| self.phases_of_all.so_far(report);
        let cut = phases(&self.store, &all, &Boundaries::default(), &mut step, so_far);
        self.phases_of_all.end(cut.map_err(|e| e.to_string()));
    }

    /// Phases of all packets, waited for; `so_far` is given those of the packets cut until then.
    ///
    /// Errors: text; `None`: the client has gone.
    pub fn phases_of_all(
        self: &Arc<Log>,
        progress: &mut dyn FnMut(u64, u64) -> bool,
        so_far: &mut dyn FnMut(&PhaseReport),
    ) -> Result<Arc<PhaseReport>, Option<String>> {
        let log = Arc::clone(self);
        let spawned = std::thread::Builder::new().name("phases".into()).spawn(move || log.cut_all());
        spawned.map_err(|e| Some(format!("no thread to cut packets into phases: {e}")))?;
        self.phases_of_all.wait_and_see(progress, so_far)
    }

    /// The list, if it is there.
    pub fn loaded(&self) -> Option<Arc<Catalog>> {
        self.list.get()
    }

    /// The list, waited for.
    ///
    /// Errors: text; `None`: the client has gone.
    pub fn catalog(
        &self,
        progress: &mut dyn FnMut(u64, u64) -> bool,
    ) -> Result<Arc<Catalog>, Option<String>> {
        self.list.wait(progress)
    }

    /// The beginning of the list, read at once.
    pub fn beginning(&self) -> kpat_query::Result<Arc<Catalog>> {
        if let Some(catalog) = self.beginning.get() {
            return Ok(Arc::clone(catalog));
        }
        let read = Arc::new(Catalog::beginning(&self.store)?);
        Ok(Arc::clone(self.beginning.get_or_init(|| read)))
    }

    /// Of every capture, thinned for drawing.
    pub fn residuals(&self) -> kpat_query::Result<&[Residuals]> {
        if let Some(residuals) = self.residuals.get() {
            return Ok(residuals);
        }
        let read = self.store.residuals(MOST_POINTS)?;
        Ok(self.residuals.get_or_init(|| read))
    }

    /// Of all calls.
    pub fn flame(&self) -> kpat_query::Result<&Flame> {
        if let Some(flame) = self.flame.get() {
            return Ok(flame);
        }
        let read = self.store.flame()?;
        Ok(self.flame.get_or_init(|| read))
    }
}

/// This thread runs at the lowest priority: questions come first.
fn step_back() {
    // SAFETY: takes numbers only; 0 is the calling thread, as Linux counts. If it is refused, all goes on as before.
    unsafe {
        libc::setpriority(libc::PRIO_PROCESS, 0, 19);
    }
}

/// Between two times that one who waits for another's answer is asked whether it still does.
const STILL: Duration = Duration::from_millis(50);

/// The last few answers to one kind of question.
pub struct Kept<K, V> {
    most: usize,
    /// Last used last.
    answers: Mutex<Vec<(K, Arc<V>)>>,
    /// Questions whose answer is being made and waited for.
    making: Mutex<Vec<K>>,
    made: Condvar,
}

impl<K: PartialEq, V> Kept<K, V> {
    fn new(most: usize) -> Kept<K, V> {
        Kept { most, answers: Mutex::default(), making: Mutex::default(), made: Condvar::new() }
    }

    pub fn get(&self, key: &K) -> Option<Arc<V>> {
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        let at = answers.iter().position(|a| a.0 == *key)?;
        let answer = answers.remove(at);
        let value = Arc::clone(&answer.1);
        answers.push(answer);
        Some(value)
    }

    /// The kept answer, or a new one. Two that ask the same at once both work.
    pub fn get_or<E>(&self, key: K, make: impl FnOnce() -> Result<V, E>) -> Result<Arc<V>, E> {
        if let Some(value) = self.get(&key) {
            return Ok(value);
        }
        let value = Arc::new(make()?);
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        answers.retain(|a| a.0 != key);
        if answers.len() >= self.most {
            answers.remove(0);
        }
        answers.push((key, Arc::clone(&value)));
        Ok(value)
    }

    /// The kept answer, or a new one. Of those that ask the same at once one works and the others wait, as long as `still` says;
    /// when it fails, the next one tries. Both are given `with`.
    pub fn get_or_once<C: ?Sized, E>(
        &self,
        key: K,
        with: &mut C,
        still: impl Fn(&mut C) -> Result<(), E>,
        make: impl FnOnce(&mut C) -> Result<V, E>,
    ) -> Result<Arc<V>, E>
    where
        K: Clone,
    {
        let mut making = self.making();
        while making.contains(&key) {
            drop(self.made.wait_timeout(making, STILL).unwrap_or_else(PoisonError::into_inner));
            still(with)?;
            making = self.making();
        }
        if let Some(value) = self.get(&key) {
            return Ok(value);
        }
        making.push(key.clone());
        drop(making);
        let _made = Made { kept: self, key: &key };
        self.get_or(key.clone(), || make(with))
    }

    fn making(&self) -> MutexGuard<'_, Vec<K>> {
        self.making.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ends the waiting for an answer, whatever became of it.
struct Made<'a, K: PartialEq, V> {
    kept: &'a Kept<K, V>,
    key: &'a K,
}

impl<K: PartialEq, V> Drop for Made<'_, K, V> {
    fn drop(&mut self) {
        self.kept.making.lock().unwrap_or_else(PoisonError::into_inner).retain(|k| k != self.key);
        self.kept.made.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_used_longest_goes() {
        let kept: Kept<u8, u8> = Kept::new(2);
        for key in [1, 2, 1, 3] {
            kept.get_or::<()>(key, || Ok(key * 10)).unwrap();
        }
        assert_eq!([1, 2, 3].map(|k| kept.get(&k).map(|v| *v)), [Some(10), None, Some(30)]);
        assert_eq!(kept.get_or(9, || Err("no")), Err("no"));
    }

    #[test]
    fn one_works_and_those_that_ask_meanwhile_wait() {
        let kept: Kept<u8, u8> = Kept::new(2);
        let worked = std::sync::atomic::AtomicU32::new(0);
        let ask = |key, good: bool| {
            kept.get_or_once(
                key,
                &mut (),
                |()| Ok(()),
                |()| {
                    worked.fetch_add(1, Ordering::Relaxed);
                    std::thread::sleep(Duration::from_millis(100));
                    if good { Ok(key) } else { Err(()) }
                },
            )
        };
        std::thread::scope(|s| {
            let all: Vec<_> = (0..4).map(|_| s.spawn(|| ask(1, true))).collect();
            assert!(all.into_iter().all(|a| *a.join().unwrap().unwrap() == 1));
        });
        assert_eq!(worked.swap(0, Ordering::Relaxed), 1);
        // Each of those who wait for one that fails tries for itself.
        std::thread::scope(|s| {
            let all = [s.spawn(|| ask(2, false)), s.spawn(|| ask(2, false))];
            assert!(all.into_iter().all(|a| a.join().unwrap().is_err()));
        });
        assert_eq!(worked.load(Ordering::Relaxed), 2);
        // A client that has gone stops waiting immediately.
        std::thread::scope(|s| {
            let one = s.spawn(|| ask(3, true));
            while kept.making.lock().unwrap().is_empty() {
                std::thread::yield_now();
            }
            assert_eq!(kept.get_or_once(3, &mut (), |()| Err(()), |()| Ok(4)), Err(()));
            assert_eq!(*one.join().unwrap().unwrap(), 3);
        });
    }
}
