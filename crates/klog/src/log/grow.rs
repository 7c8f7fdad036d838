//! A log that is being written, read on: what came since, and no longer what is old. So whoever follows a recording
//! reads each chunk a bounded number of times, however long the recording is.

use super::{EndState, Log};
use crate::error::Error;
use crate::header::ChunkKind;
use crate::records::end_time;
use crate::walk::{Unread, walk_from};
use kpat_model::meta::Task;
use kpat_model::{BootNs, Loss, Record};
use std::collections::HashMap;

/// Names of so many tasks are kept, the newest.
const MAX_TASKS: usize = 1 << 16;

/// What is still known of records that were forgotten.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forgotten {
    pub records: u64,
    /// The earliest moment in them.
    pub first: BootNs,
    /// One for each cause and CPU: from the first to the last, and how many in all.
    pub losses: Vec<Loss>,
}

impl Default for Forgotten {
    fn default() -> Self {
        Forgotten { records: 0, first: BootNs(i64::MAX), losses: Vec::new() }
    }
}

impl Forgotten {
    fn take(&mut self, record: &Record) {
        self.records += 1;
        match record {
            Record::Loss(l) => match self.losses.iter_mut().find(|k| k.cause == l.cause && k.cpu == l.cpu) {
                Some(k) => {
                    (k.from, k.to) = (k.from.min(l.from), k.to.max(l.to));
                    k.count = k.count.saturating_add(l.count);
                }
                None => self.losses.push(*l),
            },
            // Its time is that of its call.
            Record::Member(_) => {}
            Record::Call(c) => self.first = self.first.min(c.entry),
            r => self.first = self.first.min(end_time(r)),
        }
    }
}

impl Log {
    /// Reads on behind what is known of a log of one file; false: nothing came.
    ///
    /// Errors: the file cannot be read any more.
    pub fn grow(&mut self) -> Result<bool, Error> {
        let Some(file) = self.files.last().filter(|_| self.files.len() == 1) else { return Ok(false) };
        let path = file.path.clone();
        let failed =
            |e: Unread| Error::Io { path: path.clone(), doing: "read", offset: e.offset, source: e.source };
        let size = file.source.len().map_err(|source| failed(Unread { offset: file.walked, source }))?;
        let found = walk_from(&file.source, file.walked, size.max(file.walked)).map_err(failed)?;
        if let EndState::Open { tail_bytes } = &mut self.end_state {
            *tail_bytes = found.tail_bytes;
        }
        self.files[0].walked = found.walked;
        self.issues.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner).extend(found.issues);
        if found.chunks.is_empty() {
            return Ok(false);
        }
        let first = self.chunks.len();
        self.chunks.extend(found.chunks);
        self.take_json(first, found.tail_bytes);
        Ok(true)
    }

    /// From now on there are no records in chunks that end before `before`. Names of tasks, losses and the first moment
    /// stay known: [`Log::tasks`], [`Log::forgotten`].
    pub fn forget(&mut self, before: BootNs) {
        let is_old = |c: &crate::ChunkInfo| c.kind == ChunkKind::Json || c.last < before;
        let (old, kept) = std::mem::take(&mut self.chunks).into_iter().partition(is_old);
        self.chunks = old;
        let mut forgotten = self.forgotten.take().unwrap_or_default();
        let mut named = Vec::new();
        for cpu in self.cpus() {
            for record in self.records(cpu) {
                forgotten.take(&record);
                if let Record::Process(p) = record {
                    named.push(Task { at: p.at, pid: p.pid, tgid: p.tgid, comm: p.comm });
                }
            }
        }
        self.forgotten = (forgotten.records > 0).then_some(forgotten);
        self.chunks = kept;
        if !named.is_empty() {
            let mut newest: HashMap<u32, Task> = HashMap::new();
            for t in std::mem::take(&mut self.tasks).into_iter().chain(named) {
                newest
                    .entry(t.pid)
                    .and_modify(|k| {
                        if k.at <= t.at {
                            k.clone_from(&t)
                        }
                    })
                    .or_insert(t);
            }
            self.tasks = newest.into_values().collect();
            self.tasks.sort_by_key(|t| (t.at, t.pid));
            self.tasks.drain(..self.tasks.len().saturating_sub(MAX_TASKS));
        }
    }

    /// What is still known of records that were forgotten, if any were.
    pub fn forgotten(&self) -> Option<&Forgotten> {
        self.forgotten.as_ref()
    }
}
