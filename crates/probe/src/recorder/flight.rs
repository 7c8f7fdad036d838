//! The flight recorder: what is recorded stays in memory until it is asked for, by somebody or by what happened.

use super::disk::may_write;
use super::trigger::Triggers;
use super::{DumpWhen, Error, Note, Options, Recorder, Written};
use crate::sink::{Memory, Sink};
use crate::sys;
use kpat_klog::Chunk;
use kpat_model as model;
use kpat_model::meta::Json;
use kpat_model::{BootNs, LossCause};
use std::path::PathBuf;
use std::time::Duration;

pub(super) struct Flight {
    memory: Memory,
    /// Only what is so new is written; `None`: all there is.
    last: Option<Duration>,
    pub(super) triggers: Option<Triggers>,
    dumps: u32,
}

impl Flight {
    pub(super) fn new(bytes: usize, last: Option<Duration>, when: Option<&DumpWhen>) -> Flight {
        Flight { memory: Memory::new(bytes), last, triggers: when.cloned().map(Triggers::new), dumps: 0 }
    }

    pub(super) fn keep(&mut self, sink: &mut Sink) {
        sink.take_ready().into_iter().for_each(|c| self.memory.push(c));
    }

    pub(super) fn bytes(&self) -> usize {
        self.memory.bytes()
    }

    pub(super) fn suppressed(&self) -> u64 {
        self.triggers.as_ref().map_or(0, |t| t.suppressed)
    }

    /// What is to be written now, and how many records were evicted before; the memory is empty afterwards.
    fn take(&mut self, now: BootNs) -> (Vec<Chunk>, u64) {
        let since = self.last.map_or(BootNs(i64::MIN), |d| BootNs(now.0 - d.as_nanos() as i64));
        (self.memory.take(since), self.memory.evicted_records)
    }

    /// Of the next dump: the first name that is not taken.
    pub(super) fn path(&self, options: &Options) -> PathBuf {
        let p = &options.output;
        let name = |n: u32| if n == 0 { p.clone() } else { p.with_extension(format!("{n}.kbl")) };
        let free = |path: &PathBuf| may_write(path, options.replace).is_ok();
        (self.dumps..).map(name).find(free).unwrap_or_else(|| p.clone())
    }
}

impl Recorder {
    /// Dumps if something happened that was asked for, and not too often.
    pub(super) fn triggered(&mut self, tell: &mut dyn FnMut(Note)) -> Result<(), Error> {
        let Some(triggers) = self.flight.as_mut().and_then(|f| f.triggers.as_mut()) else { return Ok(()) };
        let Some(why) = triggers.due(&mut self.sink, &self.sources.first().decision) else { return Ok(()) };
        super::note(&mut self.sink, &why);
        let written = self.dump(tell)?;
        if let (Some(written), Some(triggers)) =
            (written, self.flight.as_mut().and_then(|f| f.triggers.as_mut()))
        {
            triggers.dumped(&written);
        }
        Ok(())
    }

    /// Writes what is in memory to a log of its own. `None`: there was nothing.
    pub(super) fn dump(&mut self, tell: &mut dyn FnMut(Note)) -> Result<Option<Written>, Error> {
        if self.flight.is_none() {
            return Ok(None);
        }
        let now = sys::boot_now();
        self.drain();
        self.sources.look(&mut self.sink, now, true);
        let Some(flight) = &mut self.flight else { return Ok(None) };
        flight.keep(&mut self.sink);
        let (chunks, evicted) = flight.take(now);
        let records: u64 = chunks.iter().map(|c| c.count as u64).sum();
        if records == 0 {
            tell(Note::NothingToDump);
            return Ok(None);
        }
        let path = flight.path(&self.options);
        let mut open = self.files.open_unplaced(&path, &self.head())?;
        let w = &mut open.writer;
        for read in &self.wall.kept {
            w.json(&Json::Anchor(*read))?;
        }
        for c in chunks {
            w.chunk(c)?;
        }
        if evicted > 0 {
            let mut e = kpat_klog::Encoder::new(0, self.options.codec);
            let (cause, from) = (LossCause::Evicted, self.meta.started.boot);
            e.loss(&model::Loss { cause, cpu: -1, from, to: now, count: evicted });
            if let Some(c) = e.finish() {
                w.chunk(c)?;
            }
        }
        let symbols = Json::Symbols(self.symbols());
        w.json(&self.sink.identity.json(symbols))?;
        let mut s = self.summary(true, "dumped", None);
        s.records = records;
        s.bytes = w.bytes_written();
        w.json(&self.sink.identity.json(Json::Summary(Box::new(s))))?;
        w.flush()?;
        let written = Written { path: path.clone(), records, bytes: w.bytes_written() };
        open.place()?;
        self.flight.iter_mut().for_each(|f| f.dumps += 1);
        self.files.remember(written.clone());
        tell(Note::Dumped { path, records });
        Ok(Some(written))
    }
}
