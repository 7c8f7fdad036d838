//! The loop that answers hits keeps off the processors on which the guests' own are emulated or run.
//!
//! A hit's processor spins until it is answered, and the loop spins until there is a hit: on one processor of the host each would use up its share of time while the other cannot run, and a hit would
//! take milliseconds. A scheduler that has other work for the second processor does put them on one.

use super::Probes;
use std::time::{Duration, Instant};

/// How often it is looked where the guests' processors are.
const LOOK: Duration = Duration::from_millis(10);

pub(super) struct Apart {
    /// What this thread may use by itself; `None`: nothing is known, and nothing is changed.
    allowed: Option<Set>,
    /// Files that say where the guests' processors are.
    threads: Vec<String>,
    /// In use now, where it is not all that is allowed.
    reduced: Option<Set>,
    looked: Option<Instant>,
}

impl Apart {
    pub fn of(all: &[&mut Probes]) -> Apart {
        let threads = all.iter().flat_map(|p| {
            let pid = p.guest.pid();
            p.guest.vcpu_threads().into_iter().map(move |tid| format!("/proc/{pid}/task/{tid}/stat"))
        });
        Apart { allowed: affinity(), threads: threads.collect(), reduced: None, looked: None }
    }

    /// A hit may come at any moment.
    pub fn keep(&mut self, now: Instant) {
        if self.looked.is_some_and(|l| now.duration_since(l) < LOOK) {
            return;
        }
        self.looked = Some(now);
        let Some(allowed) = self.allowed else { return };
        let mut rest = allowed;
        for file in &self.threads {
            if let Some(cpu) = processor_of(&std::fs::read_to_string(file).unwrap_or_default()) {
                rest.iter_mut().skip(cpu / 64).take(1).for_each(|word| *word &= !(1 << (cpu % 64)));
            }
        }
        // Where there is no other processor, sharing one is the only way.
        let wanted = (count(&rest) > 0 && count(&rest) < count(&allowed)).then_some(rest);
        if wanted != self.reduced && restrict(&wanted.unwrap_or(allowed)) {
            self.reduced = wanted;
        }
    }
}

impl Drop for Apart {
    fn drop(&mut self) {
        if let (Some(allowed), Some(_)) = (self.allowed, self.reduced) {
            restrict(&allowed);
        }
    }
}

/// Of `/proc/PID/task/TID/stat`: where the thread ran last. Behind the name, which may have anything in it.
fn processor_of(stat: &str) -> Option<usize> {
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_ascii_whitespace().nth(36)?.parse().ok()
}

/// A bit for each processor of the host.
type Set = [u64; 16];

fn affinity() -> Option<Set> {
    let mut set = [0; 16];
    // SAFETY: the kernel writes no more than the size that it is given; 0 is this thread.
    let rc = unsafe { libc::sched_getaffinity(0, size_of::<Set>(), set.as_mut_ptr().cast()) };
    (rc == 0).then_some(set)
}

fn restrict(to: &Set) -> bool {
    // SAFETY: a set of that size; 0 is this thread.
    unsafe { libc::sched_setaffinity(0, size_of::<Set>(), to.as_ptr().cast()) == 0 }
}

fn count(set: &Set) -> u32 {
    set.iter().map(|word| word.count_ones()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_a_thread_ran_last_is_behind_its_name() {
        let mut stat = String::from("12 (CPU 0/TCG) :) ) S");
        (4..=52).for_each(|n| stat.push_str(&format!(" {n}")));
        assert_eq!(processor_of(&stat), Some(39));
        assert_eq!((processor_of(""), processor_of("12 (x) S 1")), (None, None));
    }

    #[test]
    fn this_thread_keeps_off_a_processor_and_has_all_again() {
        let before = affinity().unwrap();
        let own = "/proc/thread-self/stat".to_owned();
        let mut apart = Apart { allowed: Some(before), threads: vec![own], reduced: None, looked: None };
        apart.keep(Instant::now());
        let expected = if count(&before) > 1 { count(&before) - 1 } else { 1 };
        assert_eq!(count(&affinity().unwrap()), expected);
        drop(apart);
        assert_eq!(affinity().unwrap(), before);
    }
}
