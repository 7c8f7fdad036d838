//! The files of one recording as one log. Ids, clock and functions are the same in all of them, and a CPU's records go
//! on from file to file, so joining is putting the lists of chunks one behind the other.

use super::{EndState, Log};
use crate::error::Error;
use kpat_model::BootNs;
use kpat_model::meta::{LossTotal, ROTATED, Summary};
use std::path::PathBuf;
use std::sync::PoisonError;

/// Files of a recording that were not opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// Numbers of the first and the last; last 0: all that come after, however many.
    pub first: u32,
    pub last: u32,
    /// What they cover.
    pub from: BootNs,
    pub to: BootNs,
    /// Records in them, where the files around them tell.
    pub records: Option<u64>,
}

impl Log {
    /// Opens the files of one recording as one log, whatever order they are given in. One file alone is
    /// [`Log::open`].
    ///
    /// Errors: as [`Log::open`]; two files are of different recordings, or are the same part of it.
    pub fn open_parts(paths: &[PathBuf]) -> Result<Log, Error> {
        let mut parts = paths.iter().map(|p| Log::open(p)).collect::<Result<Vec<_>, _>>()?;
        parts.sort_by_key(|l| l.meta.part.number);
        for pair in parts.windows(2) {
            let (a, b) = (&pair[0].meta.part, &pair[1].meta.part);
            let (first, second) = (pair[0].path().to_owned(), pair[1].path().to_owned());
            if a.recording.is_empty() || a.recording != b.recording || a.number == 0 {
                return Err(Error::NotOneRecording { first, second });
            }
            if a.number == b.number {
                return Err(Error::SamePart { first, second, number: a.number });
            }
        }
        let mut parts = parts.into_iter();
        let Some(mut log) = parts.next() else {
            return Err(Error::Empty { path: PathBuf::new() });
        };
        let part = &log.meta.part;
        if part.number > 1 {
            let (from, to) = (log.meta.started.boot, part.began.boot);
            let records = Some(part.records_before);
            log.missing.push(Missing { first: 1, last: part.number - 1, from, to, records });
        }
        let mut at = (part.number, log.records_to_its_end(), log.end());
        for next in parts {
            let number = next.meta.part.number;
            if number > at.0 + 1 {
                log.missing.push(Missing {
                    first: at.0 + 1,
                    last: number - 1,
                    from: at.2,
                    to: next.meta.part.began.boot,
                    records: at.1.and_then(|n| next.meta.part.records_before.checked_sub(n)),
                });
                // Whom the missing ones named is known from the first after them only.
                log.tasks.extend(next.tasks.iter().cloned());
            }
            at = (number, next.records_to_its_end(), next.end());
            log.append(next);
        }
        if log.summary.as_ref().is_some_and(|s| s.complete && s.end_reason == ROTATED) {
            let (from, first) = (at.2, at.0 + 1);
            log.missing.push(Missing { first, last: 0, from, to: from, records: None });
        }
        Ok(log)
    }

    /// The last moment that the file tells of.
    fn end(&self) -> BootNs {
        let chunks = self.chunks.iter().filter(|c| c.count > 0 && c.kind != crate::ChunkKind::Json);
        let last = chunks.map(|c| c.last).max().unwrap_or_default();
        last.max(self.anchors.last().map_or(last, |a| a.boot))
    }

    /// Records of the recording up to the end of this file; `None`: it was not closed, so the count is not known.
    fn records_to_its_end(&self) -> Option<u64> {
        let summary = self.summary.as_ref().filter(|_| self.end_state == EndState::Complete)?;
        self.meta.part.records_before.checked_add(summary.records)
    }

    fn append(&mut self, next: Log) {
        let shift = self.files.len() as u32;
        self.files.extend(next.files);
        self.chunks.extend(next.chunks.into_iter().map(|mut c| {
            c.file += shift;
            c
        }));
        for device in next.devices {
            let device = self.numbers.device(next.numbers.as_logged(device));
            if !self.devices.contains(&device) {
                self.devices.push(device);
            }
        }
        for symbol in next.symbols {
            if !self.symbols.contains(&symbol) {
                self.symbols.push(symbol);
            }
        }
        self.anchors.extend(next.anchors);
        let issues = next.issues.into_inner().unwrap_or_else(PoisonError::into_inner);
        self.issues.lock().unwrap_or_else(PoisonError::into_inner).extend(issues.into_iter().map(|mut i| {
            i.file += shift;
            i
        }));
        self.summary = match (self.summary.take(), next.summary) {
            (Some(a), Some(b)) => Some(sum(a, b)),
            (a, b) => b.or(a),
        };
        self.end_state = next.end_state;
    }
}

/// What two neighbouring files say together.
fn sum(a: Summary, b: Summary) -> Summary {
    let mut losses = a.losses;
    for l in b.losses {
        match losses.iter_mut().find(|k| k.cause == l.cause && k.cpu == l.cpu) {
            Some(LossTotal { count, .. }) => *count += l.count,
            None => losses.push(l),
        }
    }
    Summary {
        complete: b.complete,
        end_reason: b.end_reason,
        at: b.at,
        records: a.records + b.records,
        bytes: a.bytes + b.bytes,
        cost: a.cost.plus(b.cost),
        losses,
        open_calls: b.open_calls,
        // What was found of a recording is in all of its later files.
        drop_reasons: if b.drop_reasons.is_empty() { a.drop_reasons } else { b.drop_reasons },
    }
}
