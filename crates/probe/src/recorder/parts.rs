//! A recording that goes on from file to file. Between two files nothing is lost: rings and open chunks are emptied
//! into the one, the next is begun, and only then is the one ended. What a file needs to stand alone is said again at
//! its head: functions, interfaces, tasks, the clock. Syncing and naming a finished file may take seconds on a slow disk;
//! a thread does that.

use super::disk::Reserve;
use super::scope::{devices, learn, named};
use super::{Error, Note, Recorder, Rotate, Written};
use crate::capability::{self, Cap};
use crate::sys;
use kpat_klog::{PART_ENDING, Writer};
use kpat_model::meta::{self, Json, ROTATED};
use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Files named one by one in the outcome.
const MOST_NAMED: usize = 1000;

/// A file that is whole and waits for its name.
struct Whole {
    file: File,
    part: PathBuf,
    name: PathBuf,
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
    said: Receiver<String>,
    namer: Option<JoinHandle<()>>,
}

/// What was counted when the file was begun.
#[derive(Default)]
pub(super) struct Before {
    pub(super) records: u64,
    pub(super) bytes: u64,
    pub(super) lost: BTreeMap<(u8, i32), u64>,
    pub(super) cost: meta::Cost,
}

impl Parts {
    pub(super) fn new(output: &Path, rotate: Rotate, files_take: Vec<Cap>) -> io::Result<Parts> {
        let ending = output.extension().unwrap_or_default().to_string_lossy().into_owned();
        let ending = if ending.is_empty() { "kbl".to_owned() } else { ending };
        let stem = output.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let base = output.with_file_name(format!("{stem}-{}", stamp(sys::clock_anchor().wall.0)));
        let (give, take) = channel::<Whole>();
        let (say, said) = channel();
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
            said,
            namer: Some(namer),
        })
    }

    pub(super) fn ask(&mut self) {
        self.asked = true;
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

    fn due(&self, bytes: u64) -> bool {
        if self.not_before.is_some_and(|t| Instant::now() < t) {
            return false;
        }
        self.asked
            || self.rotate.bytes.is_some_and(|b| bytes >= b)
            || self.rotate.every.is_some_and(|e| self.begun.elapsed() >= e)
    }

    fn hand_over(&self, whole: Whole) {
        if let Some(give) = &self.give {
            // Nobody takes it only if the thread is gone; then the lock goes with the file, and another adopts it.
            let _ = give.send(whole);
        }
    }

    /// Waits until all finished files have their names.
    fn settle(&mut self) -> Vec<String> {
        self.give = None;
        if let Some(namer) = self.namer.take() {
            let _ = namer.join();
        }
        self.said.try_iter().collect()
    }
}

impl Recorder {
    /// Begins the next file if it is time for it.
    pub(super) fn rotate(&mut self, tell: &mut dyn FnMut(Note)) -> Result<(), Error> {
        let bytes = self.writer.as_ref().map_or(0, Writer::bytes_written);
        let Some(parts) = &self.parts else { return Ok(()) };
        parts.said.try_iter().for_each(|words| tell(Note::Hindered(words)));
        if !parts.due(bytes) {
            return Ok(());
        }
        // The file has everything that happened before this moment.
        self.drain();
        self.housekeeping(tell, true)?;
        self.forget_the_dead();
        self.part_cost();
        let records_before = self.sink.records;
        let part = &mut self.meta.part;
        (part.number, part.began, part.records_before) =
            (part.number + 1, sys::clock_anchor(), records_before);
        let (old_part, old_name) = self.part_names();
        if let Some(p) = &mut self.parts {
            p.number += 1;
        }
        let (next_part, _) = self.part_names();
        let next = match self.open(&next_part) {
            Ok(next) => next,
            Err(Error::Log(kpat_klog::Error::DiskFull { room, .. })) => {
                // No room for another file: the one goes on, and so does the counting of what it loses.
                let _ = std::fs::remove_file(&next_part);
                self.meta.part.number -= 1;
                if let Some(p) = &mut self.parts {
                    p.number -= 1;
                    p.not_before = Some(Instant::now() + Duration::from_secs(1));
                }
                self.is_full(room, tell);
                return Ok(());
            }
            Err(e) => return Err(e),
        };
        // What the file's end needs was kept free for it.
        self.room_for_the_end();
        let written = self.end_file(ROTATED, None, &old_name, tell)?;
        let old = self.writer.replace(next);
        self.reserve = Reserve::take(&self.options.output).ok();
        self.before = self.counted(written.bytes);
        self.begin_file_cost();
        self.sink.addresses.clear();
        if let Some(sockets) = &mut self.sink.sockets {
            sockets.announce_again();
        }
        if let (Some(p), Some(old)) = (&mut self.parts, old) {
            p.hand_over(Whole { file: old.into_inner(), part: old_part, name: old_name });
            (p.begun, p.not_before, p.asked) = (Instant::now(), None, false);
        }
        self.remember(written.clone());
        tell(Note::Finished(written));
        Ok(())
    }

    /// The file to begin with; what a killed recorder left in its folder is finished first.
    pub(super) fn first_file(&mut self, tell: &mut dyn FnMut(Note)) -> Result<PathBuf, Error> {
        let output = self.options.output.clone();
        let Some(rotate) = self.options.rotate else { return Ok(output) };
        let failed = |source| Error::Io { path: output.display().to_string(), source };
        let folder = output.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let adopted = kpat_klog::adopt(folder).map_err(failed)?;
        adopted.names.into_iter().for_each(|p| tell(Note::Adopted(p)));
        for (path, e) in adopted.left {
            tell(Note::Hindered(format!(
                "{}, left by a recorder that was killed, keeps that name: {e}",
                path.display()
            )));
        }
        self.sink.tasks = Some(BTreeMap::new());
        let parts = Parts::new(&output, rotate, self.files_take.clone()).map_err(failed)?;
        let first = parts.part_name();
        self.parts = Some(parts);
        Ok(first)
    }

    /// Of the file that is being written; of a recording in one file that is all.
    pub(super) fn file_summary(
        &self,
        complete: bool,
        reason: &str,
        open_calls: Option<u64>,
    ) -> meta::Summary {
        let mut s = self.summary(complete, reason, open_calls);
        let (b, c) = (&self.before, &self.before.cost);
        s.records -= b.records;
        s.bytes -= b.bytes;
        s.losses = self.losses_since(&b.lost);
        self.estimated(true, &mut s.cost);
        s.cost.drain_cpu_ns = s.cost.drain_cpu_ns.saturating_sub(c.drain_cpu_ns);
        s.cost.wall_ns = s.cost.wall_ns.saturating_sub(c.wall_ns);
        s.cost.attach_ns = s.cost.attach_ns.saturating_sub(c.attach_ns);
        s
    }

    fn part_names(&self) -> (PathBuf, PathBuf) {
        self.parts.as_ref().map_or_else(Default::default, |p| (p.part_name(), p.name()))
    }

    /// Symbols and summary of the file that is being written: it is whole afterwards.
    pub(super) fn end_file(
        &mut self,
        reason: &str,
        open_calls: Option<u64>,
        name: &Path,
        tell: &mut dyn FnMut(Note),
    ) -> Result<Written, Error> {
        let there = devices(&self.options, &named(&self.options)).unwrap_or_default();
        // Drivers as they are asked for by name, and what the monitor missed.
        let fresh: Vec<_> = there.iter().filter_map(|d| learn(&mut self.devices, d.clone())).collect();
        if !fresh.is_empty() {
            self.write_json(Json::Devices(fresh), tell)?;
        }
        if reason == ROTATED {
            // The next file begins without those that have gone.
            let nameless = |d: &meta::Device| self.monitor.as_ref().is_some_and(|m| m.has_nameless(d.netns));
            let is = |d: &meta::Device| {
                nameless(d) || there.iter().any(|t| (t.netns, t.ifindex) == (d.netns, d.ifindex))
            };
            self.devices.retain(is);
        }
        let symbols = self.symbols();
        self.write_json(Json::Symbols(symbols), tell)?;
        let summary = self.file_summary(true, reason, open_calls);
        self.write_json(Json::Summary(Box::new(summary.clone())), tell)?;
        let bytes = self.writer.as_ref().map_or(0, Writer::bytes_written);
        Ok(Written { path: name.to_owned(), records: summary.records, bytes })
    }

    pub(super) fn remember(&mut self, written: Written) {
        if self.outputs.len() == MOST_NAMED {
            self.outputs.remove(0);
        }
        self.outputs.push(written);
    }

    /// The last file of a recording that went from file to file.
    pub(super) fn end_parts(&mut self, tell: &mut dyn FnMut(Note)) {
        let (part, name) = self.part_names();
        let last = self.writer.take();
        let Some(mut parts) = self.parts.take() else { return };
        if let Some(w) = last {
            parts.hand_over(Whole { file: w.into_inner(), part, name });
        }
        parts.settle().into_iter().for_each(|words| tell(Note::Hindered(words)));
    }

    /// Totals so far, with those of the file that just ended: what the next file does not count.
    fn counted(&self, bytes: u64) -> Before {
        let all = self.summary(false, "", None);
        let bytes = self.before.bytes + bytes;
        Before { records: all.records, bytes, lost: self.sink.lost.clone(), cost: all.cost }
    }

    /// Tasks that ended need not be named again.
    fn forget_the_dead(&mut self) {
        if let Some(tasks) = &mut self.sink.tasks {
            tasks.retain(|pid, t| Path::new(&format!("/proc/{}/task/{pid}", t.tgid)).exists());
        }
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
