//! A running recording: its log is integrated again and again into a separate folder, and the service is notified. At most a
//! third of the time is spent on it, so what a long recording costs is that its pictures come less often.

use crate::folder::own_folder;
use crate::service::Service;
use crate::{Error, Result};
use kpat_integrate::{Options, integrate};
use kpat_klog::{EndState, Log};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Soonest after the last one.
const SOON: Duration = Duration::from_secs(2);
/// Between two looks at the files.
const LOOK: Duration = Duration::from_millis(500);

/// A log that is being written, the captures beside it, and the folder for what comes of them. The folder goes with it.
pub struct Growing {
    kbl: PathBuf,
    captures: Vec<PathBuf>,
    folder: PathBuf,
    round: u64,
}

impl Growing {
    /// Integrates what there is.
    pub fn open(kbl: &Path, captures: &[PathBuf]) -> Result<Growing> {
        let io = |source| Error::Io { doing: "make a folder for what is seen so far", source };
        let folder = own_folder("kpat-view").map_err(io)?;
        let mut growing = Growing { kbl: kbl.to_owned(), captures: captures.to_vec(), folder, round: 0 };
        growing.integrate()?;
        Ok(growing)
    }

    /// The integrated log of the last round.
    pub fn log(&self) -> PathBuf {
        self.folder.join(format!("{}.kpat", self.round))
    }

    fn integrate(&mut self) -> Result<()> {
        let next = self.folder.join(format!("{}.kpat", self.round + 1));
        let options = Options { overwrite: true, ..Options::default() };
        integrate(&self.kbl, &self.captures, &next, &options, &mut |_| ())?;
        self.round += 1;
        Ok(())
    }

    fn bytes(&self) -> u64 {
        let len = |p: &PathBuf| fs::metadata(p).map_or(0, |m| m.len());
        std::iter::once(&self.kbl).chain(&self.captures).map(len).sum()
    }

    /// The recording was closed in order.
    pub fn is_over(&self) -> bool {
        Log::open(&self.kbl).is_ok_and(|log| *log.end_state() == EndState::Complete)
    }

    /// Follows the files until the recording is closed, or `leave` is set; the folder stays as long as this does.
    pub fn follow(&mut self, service: &Arc<Service>, leave: &AtomicBool) {
        service.set_live(true);
        if self.rounds(leave, &mut |log, _| service.replace(log).is_ok()) {
            service.set_live(false);
        }
    }

    /// The same for a caller that takes each round's log; `over`: it is the last. What a round did not take (false), the next one gives.
    /// Whether the recording was closed.
    pub fn rounds(&mut self, leave: &AtomicBool, take: &mut dyn FnMut(&Path, bool) -> bool) -> bool {
        let mut seen = self.bytes();
        let mut over = false;
        let mut took = Duration::ZERO;
        while !over {
            let rest = Instant::now() + (2 * took).max(SOON);
            let mut last = self.bytes();
            // Reading a long log's index is not for nothing: only asked while the files rest, once for each size.
            let mut asked = None;
            while !over && (Instant::now() < rest || last == seen) {
                std::thread::sleep(LOOK);
                if leave.load(Ordering::Relaxed) {
                    return false;
                }
                let now = self.bytes();
                if now == last && asked != Some(now) {
                    asked = Some(now);
                    over = self.is_over();
                }
                last = now;
            }
            seen = last;
            let started = Instant::now();
            // A file that is torn just now is whole the next time.
            if self.integrate().is_ok() && take(&self.log(), over) && self.round > 2 {
                let _ = fs::remove_dir_all(self.folder.join(format!("{}.kpat", self.round - 2)));
            }
            took = started.elapsed();
        }
        true
    }
}

impl Drop for Growing {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}
