//! From file to file. Between two files nothing is lost: rings and open chunks are emptied into the one, the next is begun, and only
//! then is the one ended. What makes a file self-contained is repeated at its beginning: functions, interfaces, tasks, the clock. At its end
//! stands what was counted since.
//!
//! A recording in one file can begin anew in the same way: then what was before is in no file.

use super::{Error, Note, Recorder, Written};
use crate::sink::{Drops, Sink};
use crate::sys;
use kpat_model::LossCause;
use kpat_model::meta::{self, Json, ROTATED};
use std::collections::BTreeMap;
use std::path::Path;

/// What was counted when the file was begun.
#[derive(Default)]
pub(super) struct Before {
    records: u64,
    bytes: u64,
    lost: BTreeMap<(u8, i32), u64>,
    cost: meta::Cost,
}

impl Recorder {
    /// Begins the next file if it is time for it.
    pub(super) fn rotate(&mut self, tell: &mut dyn FnMut(Note)) -> Result<(), Error> {
        if !self.files.is_next_due(tell) {
            return Ok(());
        }
        // The file has everything that happened before this moment.
        self.drain();
        self.sink.name_late();
        self.housekeeping(tell, true)?;
        forget_the_dead(&mut self.sink);
        self.costs.end_file(&self.sources);
        let records_before = self.sink.records;
        let part = &mut self.meta.part;
        (part.number, part.began, part.records_before) =
            (part.number + 1, sys::clock_anchor(), records_before);
        let Some(next) = self.files.open_next(&self.head(), tell)? else {
            // The current file is kept open, and the counting of its losses continues.
            self.meta.part.number -= 1;
            return Ok(());
        };
        // What the file's end needs was kept free for it.
        self.files.room_for_the_end();
        let written = self.end_file(ROTATED, None, &next.name, tell)?;
        self.before = self.counted(written.bytes);
        self.files.change_to(next, written.clone());
        self.new_file();
        tell(Note::Finished(written));
        Ok(())
    }

    /// Begins the recording's only file anew.
    ///
    /// *Errors*: it goes on as it was.
    pub(super) fn reset(&mut self, tell: &mut dyn FnMut(Note)) -> Result<(), Error> {
        self.drain();
        self.housekeeping(tell, true)?;
        forget_the_dead(&mut self.sink);
        self.costs.end_file(&self.sources);
        let started = std::mem::replace(&mut self.meta.started, sys::clock_anchor());
        if let Err(e) = self.files.begin_anew(&self.head()) {
            self.meta.started = started;
            return Err(e);
        }
        self.before = self.counted(0);
        self.new_file();
        Ok(())
    }

    /// What is written once for each file is written again.
    fn new_file(&mut self) {
        self.costs.begin_file(&self.sources);
        self.sink.drops = Drops::default();
        self.sink.labels.again();
        self.sink.frames.clear();
        self.sources.new_file();
        self.sink.mappings.forget_all();
        if let Some(sockets) = &mut self.sink.sockets {
            sockets.announce_again();
        }
        sys::give_back_memory();
    }

    /// What stands at the head of each file.
    pub(super) fn head(&self) -> Vec<Json> {
        let devices = Json::Devices(self.surroundings.devices().to_vec());
        let mut head = vec![Json::Meta(Box::new(self.meta.clone())), devices];
        if let Some(tasks) = self.sink.tasks.as_ref().filter(|t| !t.is_empty()) {
            head.push(Json::Tasks(tasks.values().cloned().collect()));
        }
        head.into_iter().map(|j| self.sink.identity.json(j)).collect()
    }

    /// Symbols and summary of the file that is being written: it is whole afterwards.
    pub(super) fn end_file(
        &mut self,
        reason: &str,
        open_calls: Option<u64>,
        name: &Path,
        tell: &mut dyn FnMut(Note),
    ) -> Result<Written, Error> {
        let fresh = self.surroundings.ask_again(&self.options, reason == ROTATED);
        if !fresh.is_empty() {
            self.write_json(Json::Devices(fresh), tell)?;
        }
        let symbols = self.symbols();
        self.write_json(Json::Symbols(symbols), tell)?;
        let summary = self.file_summary(true, reason, open_calls);
        self.write_json(Json::Summary(Box::new(summary.clone())), tell)?;
        Ok(Written { path: name.to_owned(), records: summary.written_records(), bytes: self.files.bytes() })
    }

    pub(super) fn symbols(&mut self) -> Vec<meta::Symbol> {
        self.drop_sites.name(&self.sources, &self.sink, true);
        self.drop_sites.symbols()
    }

    /// Of the whole recording, in all its files.
    pub(super) fn bytes(&self) -> u64 {
        self.before.bytes + self.files.bytes()
    }

    pub(super) fn summary(&self, complete: bool, reason: &str, open_calls: Option<u64>) -> meta::Summary {
        meta::Summary {
            complete,
            end_reason: reason.into(),
            // What comes after is bookkeeping; to detach alone may take half a second.
            at: self.ended.unwrap_or_else(sys::clock_anchor),
            records: self.sink.records,
            bytes: self.bytes(),
            cost: self.costs.so_far(&self.sources),
            losses: losses_since(&self.sink.lost, &BTreeMap::new()),
            open_calls,
            drop_reasons: self.drop_sites.reasons(),
        }
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
        s.losses = losses_since(&self.sink.lost, &b.lost);
        self.costs.estimated(&self.sources, true, &mut s.cost);
        s.cost.drain_cpu_ns = s.cost.drain_cpu_ns.saturating_sub(c.drain_cpu_ns);
        s.cost.wall_ns = s.cost.wall_ns.saturating_sub(c.wall_ns);
        s.cost.attach_ns = s.cost.attach_ns.saturating_sub(c.attach_ns);
        s
    }

    /// Totals so far, with those of the file that just ended: what the next file does not count.
    fn counted(&self, bytes: u64) -> Before {
        let all = self.summary(false, "", None);
        let bytes = self.before.bytes + bytes;
        Before { records: all.records, bytes, lost: self.sink.lost.clone(), cost: all.cost }
    }
}

/// Tasks that ended need not be named again.
fn forget_the_dead(sink: &mut Sink) {
    if let Some(tasks) = &mut sink.tasks {
        tasks.retain(|pid, t| Path::new(&format!("/proc/{}/task/{pid}", t.tgid)).exists());
    }
}

/// What was lost beyond what had been `before`, by cause and CPU.
pub(super) fn losses_since(
    lost: &BTreeMap<(u8, i32), u64>,
    before: &BTreeMap<(u8, i32), u64>,
) -> Vec<meta::LossTotal> {
    let lost = lost.iter().filter_map(|(key, n)| {
        let count = n - before.get(key).copied().unwrap_or(0);
        let cause = LossCause::from_u8(key.0)?.name().into();
        (count > 0).then_some(meta::LossTotal { cause, cpu: key.1, count })
    });
    lost.collect()
}
