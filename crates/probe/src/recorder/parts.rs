//! Names of the files of a recording that rotates them, and when the next one is due. Syncing and naming a finished
//! file may take seconds on a slow disk; a thread does that.

use super::Rotate;
use crate::capability::{self, Cap};
use crate::sys;
use kpat_klog::PART_ENDING;
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A file that is whole and waits for its name.
pub(super) struct Whole {
    pub(super) file: File,
    pub(super) part: PathBuf,
    pub(super) name: PathBuf,
}

pub(super) struct Parts {
    rotate: Rotate,
    /// `folder/stem-20260131T120000Z`.
    base: PathBuf,
    ending: String,
    number: u32,
    begun: Instant,
    /// Set while the disk has no room for another file.
    not_before: Option<Instant>,
    asked: bool,
    give: Option<Sender<Whole>>,
    reported: Receiver<String>,
    namer: Option<JoinHandle<()>>,
}

impl Parts {
    pub(super) fn new(output: &Path, rotate: Rotate, files_take: Vec<Cap>) -> io::Result<Parts> {
        let ending = output.extension().unwrap_or_default().to_string_lossy().into_owned();
        let ending = if ending.is_empty() { "kbl".to_owned() } else { ending };
        let stem = output.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let base = output.with_file_name(format!("{stem}-{}", stamp(sys::clock_anchor().wall.0)));
        let (give, take) = channel::<Whole>();
        let (say, reported) = channel();
        let keep = rotate.keep;
        let namer = std::thread::Builder::new().name("kpat-namer".into()).spawn(move || {
            capability::keep(&files_take);
            let mut finished = VecDeque::new();
            for whole in take {
                let done = kpat_klog::finish(&whole.file, &whole.part, &whole.name);
                match done {
                    Ok(()) => finished.push_back(whole.name),
                    Err(e) => {
                        let _ = say.send(format!("{} keeps that name: {e}", whole.part.display()));
                    }
                }
                while keep.is_some_and(|k| finished.len() > k) {
                    let Some(old) = finished.pop_front() else { break };
                    match std::fs::remove_file(&old) {
                        Err(e) if e.kind() != io::ErrorKind::NotFound => {
                            let _ = say.send(format!("cannot remove {}: {e}", old.display()));
                        }
                        _ => {}
                    }
                }
            }
        })?;
        Ok(Parts {
            rotate,
            base,
            ending,
            number: 1,
            begun: Instant::now(),
            not_before: None,
            asked: false,
            give: Some(give),
            reported,
            namer: Some(namer),
        })
    }

    pub(super) fn ask(&mut self) {
        self.asked = true;
    }

    /// What could not be done.
    pub(super) fn reported(&self) -> impl Iterator<Item = String> {
        self.reported.try_iter()
    }

    /// From now on names are those of the next file.
    pub(super) fn count_up(&mut self) {
        self.number += 1;
    }

    /// The disk has no room for it: names are those of the file before again.
    pub(super) fn wait_with_next(&mut self) {
        self.number -= 1;
        self.not_before = Some(Instant::now() + Duration::from_secs(1));
    }

    /// The next file is written from now on.
    pub(super) fn begun(&mut self) {
        (self.begun, self.not_before, self.asked) = (Instant::now(), None, false);
    }

    /// The name that the file now being written will have.
    pub(super) fn name(&self) -> PathBuf {
        let file = self.base.file_name().unwrap_or_default().to_string_lossy();
        self.base.with_file_name(format!("{file}-{:04}.{}", self.number, self.ending))
    }

    pub(super) fn part_name(&self) -> PathBuf {
        let mut name = self.name().into_os_string();
        name.push(PART_ENDING);
        name.into()
    }

    pub(super) fn due(&self, bytes: u64) -> bool {
        if self.not_before.is_some_and(|t| Instant::now() < t) {
            return false;
        }
        self.asked
            || self.rotate.bytes.is_some_and(|b| bytes >= b)
            || self.rotate.every.is_some_and(|e| self.begun.elapsed() >= e)
    }

    pub(super) fn hand_over(&self, whole: Whole) {
        if let Some(give) = &self.give {
            // Nobody takes it only if the thread is gone; then the lock goes with the file, and another adopts it.
            let _ = give.send(whole);
        }
    }

    /// Waits until all finished files have their names.
    pub(super) fn settle(&mut self) -> Vec<String> {
        self.give = None;
        if let Some(namer) = self.namer.take() {
            let _ = namer.join();
        }
        self.reported.try_iter().collect()
    }
}

/// `20260131T120000Z` of a wall time.
fn stamp(wall_ns: i64) -> String {
    let seconds = wall_ns.div_euclid(1_000_000_000);
    let (days, rest) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    // Civil date from days since 1970-01-01, counted in eras of 400 years that begin in March.
    let z = days + 719_468;
    let era = z.div_euclid(146_097);
    let day_of_era = z.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    format!("{year:04}{month:02}{day:02}T{:02}{:02}{:02}Z", rest / 3600, rest / 60 % 60, rest % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_are_dates() {
        for (seconds, text) in [
            (0, "19700101T000000Z"),
            (951_782_400, "20000229T000000Z"),
            (1_798_761_599, "20261231T235959Z"),
            (1_709_164_800, "20240229T000000Z"),
        ] {
            assert_eq!(stamp(seconds * 1_000_000_000), text);
        }
    }

    #[test]
    fn names_count_up_and_end_as_the_output_does() {
        let mut p = Parts::new(Path::new("/tmp/x.y.kbl"), Rotate::default(), Vec::new()).unwrap();
        p.base = "/tmp/x.y-S".into();
        assert_eq!(p.name(), Path::new("/tmp/x.y-S-0001.kbl"));
        p.number = 12_345;
        assert_eq!(p.part_name(), Path::new("/tmp/x.y-S-12345.kbl.part"));
    }
}
