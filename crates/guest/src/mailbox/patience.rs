//! How long to wait for a guest that gets too little of the host's processors.

use crate::guest::Guest;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// So many times as long, at most.
const SLOWEST: u32 = 6;

/// A time to wait, which stands still while the guest's processors wait for one of the host's.
pub struct Patience {
    begun: Instant,
    patience: Duration,
    /// `schedstat` of the threads of its processors, and what it had at first.
    vcpus: Vec<(PathBuf, Duration)>,
}

impl Patience {
    pub fn new(guest: &Guest, patience: Duration) -> Patience {
        let pid = guest.pid();
        let threads = guest.vcpu_threads().into_iter();
        let vcpus = threads.map(|t| PathBuf::from(format!("/proc/{pid}/task/{t}/schedstat"))).map(|path| {
            let before = waited(&path);
            (path, before)
        });
        Patience { begun: Instant::now(), patience, vcpus: vcpus.collect() }
    }

    pub fn is_over(&self) -> bool {
        let lost = self.vcpus.iter().map(|(path, before)| waited(path).saturating_sub(*before)).max();
        let passed = self.begun.elapsed();
        passed > self.patience * SLOWEST || passed.saturating_sub(lost.unwrap_or_default()) > self.patience
    }
}

/// How long a thread was ready to run, and did not (Documentation/scheduler/sched-stats.rst); 0 where the kernel does not say.
fn waited(schedstat: &PathBuf) -> Duration {
    let text = std::fs::read_to_string(schedstat).unwrap_or_default();
    Duration::from_nanos(text.split_whitespace().nth(1).and_then(|n| n.parse().ok()).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_processor_waited_does_not_count() {
        let path = std::env::temp_dir().join(format!("kpat-schedstat-{}", std::process::id()));
        let (patience, write) =
            (Duration::from_secs(10), |ns: u64| std::fs::write(&path, format!("7 {ns} 3\n")).unwrap());
        write(2_000_000_000);
        let since = |seconds| Patience {
            begun: Instant::now().checked_sub(Duration::from_secs(seconds)).unwrap(),
            patience,
            vcpus: vec![(path.clone(), waited(&path))],
        };
        let (all, some, long) = (since(11), since(11), since(61));
        assert!(all.is_over());
        write(4_000_000_000);
        assert!(!some.is_over(), "2 of 11 s it had no processor");
        write(4_000_000_000_000);
        assert!(long.is_over(), "however long it had none");
        std::fs::remove_file(&path).unwrap();
    }
}
