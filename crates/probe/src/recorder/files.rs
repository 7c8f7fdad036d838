//! The files of a recording: which one is written to, what goes into it, and what a full disk costs.

use super::astray::Astray;
use super::disk::{Reserve, Unplaced, is_stream};
use super::parts::{Parts, Whole};
use super::{Error, Note, Options, Written};
use crate::capability::Cap;
use crate::sink::Sink;
use crate::sys;
use kpat_klog::{Codec, Room, Writer};
use kpat_model as model;
use kpat_model::LossCause;
use kpat_model::meta::Json;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Files named one by one in the outcome.
const MOST_NAMED: usize = 1000;
/// Between two reports of a full disk: where others fill and free it, its state changes many times a second.
const REPORT: Duration = Duration::from_secs(60);
/// Chunks of devices and symbols that wait for room; where namespaces come and go, a full disk would take all memory else.
const MOST_UNWRITTEN: usize = 1000;

/// A log that is being written, and the file that it is in.
pub(super) struct Open {
    pub(super) writer: Writer<File>,
    /// `None`: it has its name.
    unplaced: Option<Unplaced>,
}

impl Open {
    pub(super) fn place(self) -> Result<(), Error> {
        self.unplaced.map_or(Ok(()), Unplaced::place)
    }
}

/// The file that comes after the one being written, which gets its name then.
pub(super) struct Next {
    writer: Writer<File>,
    part: PathBuf,
    /// Of the one before.
    pub(super) name: PathBuf,
}

pub(super) struct Files {
    output: PathBuf,
    replace: bool,
    codec: Codec,
    /// How far records fill a file.
    most_records: Option<u64>,
    /// Capabilities without which files cannot be made where they are to be.
    takes: Vec<Cap>,
    /// `None`: there is no file, as what is recorded stays in memory.
    writer: Option<Writer<File>>,
    /// The log, while it has another name.
    unplaced: Option<Unplaced>,
    /// The recording rotates its files.
    parts: Option<Parts>,
    /// Room that is given back when the disk was full, so that the end of the log can be written.
    reserve: Option<Reserve>,
    /// There is no room for what is recorded now.
    full: Option<Room>,
    /// When that was reported last.
    reported: Option<(Room, Instant)>,
    /// Devices and symbols that are not in the file yet, because there was no room.
    unwritten: Vec<Json>,
    /// Losses that are not in the file yet, because there was no room: its own, and those that lost chunks reported.
    waiting: Vec<model::Loss>,
    written: Vec<Written>,
    /// It was at its name when that was given. A file system may number one file in several ways: then nobody can tell.
    knows_its_name: bool,
    /// What was last reported of where the file is that is being written.
    astray: Option<Astray>,
}

impl Files {
    pub(super) fn new(
        options: &Options,
        most_records: Option<u64>,
        reserve: Option<Reserve>,
        takes: Vec<Cap>,
    ) -> Files {
        Files {
            output: options.output.clone(),
            replace: options.replace,
            codec: options.codec,
            most_records,
            takes,
            writer: None,
            unplaced: None,
            parts: None,
            reserve,
            full: None,
            reported: None,
            unwritten: Vec::new(),
            waiting: Vec::new(),
            written: Vec::new(),
            knows_its_name: false,
            astray: None,
        }
    }

    /// The recording rotates its files; what a killed recorder left in its folder is finished first.
    pub(super) fn go_on(&mut self, rotate: super::Rotate, tell: &mut dyn FnMut(Note)) -> Result<(), Error> {
        let failed = |source| Error::Io { path: self.output.display().to_string(), source };
        let folder = self.output.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let adopted = kpat_klog::adopt(folder).map_err(failed)?;
        adopted.names.into_iter().for_each(|p| tell(Note::Adopted(p)));
        for (path, e) in adopted.left {
            tell(Note::Hindered(format!(
                "{}, left by a recorder that was killed, keeps that name: {e}",
                path.display()
            )));
        }
        self.parts = Some(Parts::new(&self.output, rotate, self.takes.clone()).map_err(failed)?);
        Ok(())
    }

    /// Begins the first file.
    pub(super) fn begin(&mut self, head: &[Json]) -> Result<(), Error> {
        let open = match &self.parts {
            Some(parts) => Open { writer: self.open(&parts.part_name(), head)?, unplaced: None },
            None => self.open_unplaced(&self.output, head)?,
        };
        (self.writer, self.unplaced) = (Some(open.writer), open.unplaced);
        Ok(())
    }

    /// Everything runs: from now on the recording's file is there.
    pub(super) fn take_name(&mut self) -> Result<(), Error> {
        self.unplaced.take().map_or(Ok(()), Unplaced::place)?;
        let file = self.writer.as_ref().map(Writer::get_ref);
        self.knows_its_name = file.is_some_and(|file| Astray::of(file, &self.now_written()).is_none());
        Ok(())
    }

    /// A log under a name of its own until it is placed.
    pub(super) fn open_unplaced(&self, name: &Path, head: &[Json]) -> Result<Open, Error> {
        if is_stream(name) {
            return Ok(Open { writer: self.open(name, head)?, unplaced: None });
        }
        let unplaced = Unplaced::new(name, self.replace)?;
        Ok(Open { writer: self.open(unplaced.part(), head)?, unplaced: Some(unplaced) })
    }

    fn open(&self, path: &Path, head: &[Json]) -> Result<Writer<File>, Error> {
        let mut w = if is_stream(path) {
            Writer::into_stream(path)?
        } else {
            let mut w = Writer::create_part(path)?;
            self.most_records.into_iter().for_each(|bytes| w.most_bytes(bytes));
            w
        };
        for j in head {
            w.json(j)?;
        }
        w.flush()?;
        Ok(w)
    }

    /// Where what is recorded goes now.
    pub(super) fn now_written(&self) -> PathBuf {
        self.parts.as_ref().map_or_else(|| self.output.clone(), Parts::part_name)
    }

    /// The name that the file now being written will have.
    pub(super) fn name(&self) -> PathBuf {
        self.parts.as_ref().map_or_else(|| self.output.clone(), Parts::name)
    }

    /// Of the file that is being written.
    pub(super) fn bytes(&self) -> u64 {
        self.writer.as_ref().map_or(0, Writer::bytes_written)
    }

    pub(super) fn full(&self) -> Option<Room> {
        self.full
    }

    pub(super) fn takes(&self) -> &[Cap] {
        &self.takes
    }

    /// The file ends as soon as it can. `None`: there is only one.
    pub(super) fn ask_for_next(&mut self) -> Option<PathBuf> {
        let parts = self.parts.as_mut()?;
        parts.ask();
        Some(parts.name())
    }

    /// Errors: why not.
    pub(super) fn can_begin_anew(&self) -> Result<(), &'static str> {
        if self.parts.is_some() {
            Err("this recording rotates its files; `kpat ctl rotate` begins the next one")
        } else if self.writer.is_none() {
            Err("this recording stays in memory, and its oldest records are dropped for new ones")
        } else if is_stream(&self.output) {
            Err("what was written to a stream cannot be taken back")
        } else {
            Ok(())
        }
    }

    /// The only file begins anew, in the place of the one that is written.
    ///
    /// *Errors*: that one goes on.
    pub(super) fn begin_anew(&mut self, head: &[Json]) -> Result<(), Error> {
        let unplaced = Unplaced::in_place_of(&self.output)?;
        let writer = self.open(unplaced.part(), head)?;
        unplaced.place()?;
        (self.writer, self.unplaced) = (Some(writer), None);
        self.full = None;
        self.waiting.clear();
        Ok(())
    }

    /// Is it time for the next file?
    pub(super) fn is_next_due(&self, tell: &mut dyn FnMut(Note)) -> bool {
        let Some(parts) = &self.parts else { return false };
        parts.reported().for_each(|words| tell(Note::Hindered(words)));
        parts.due(self.bytes())
    }

    /// Begins the next file beside the one that is being written. `None`: there is no room for another, so the current one is kept open.
    pub(super) fn open_next(
        &mut self,
        head: &[Json],
        tell: &mut dyn FnMut(Note),
    ) -> Result<Option<Next>, Error> {
        let Some(parts) = &mut self.parts else { return Ok(None) };
        let (part, name) = (parts.part_name(), parts.name());
        parts.count_up();
        let next = parts.part_name();
        match self.open(&next, head) {
            Ok(writer) => Ok(Some(Next { writer, part, name })),
            Err(Error::Log(kpat_klog::Error::DiskFull { room, .. })) => {
                let _ = std::fs::remove_file(&next);
                self.parts.as_mut().into_iter().for_each(Parts::wait_with_next);
                self.is_full(room, tell);
                Ok(None)
            }
            Err(e) => Err(e),
        }
    }

    /// The file is whole, and `next` is written from now on.
    pub(super) fn change_to(&mut self, next: Next, written: Written) {
        let old = self.writer.replace(next.writer);
        self.astray = None;
        // The next file has all devices at its head.
        self.unwritten.clear();
        self.reserve = Reserve::take(&self.output).ok();
        if let (Some(parts), Some(old)) = (&mut self.parts, old) {
            parts.hand_over(Whole { file: old.into_inner(), part: next.part, name: next.name });
            parts.begun();
        }
        self.remember(written);
    }

    pub(super) fn rotates(&self) -> bool {
        self.parts.is_some()
    }

    /// Where the file is that is being written, if not at its name.
    pub(super) fn astray(&self) -> Option<Astray> {
        Astray::of(self.writer.as_ref()?.get_ref(), &self.now_written()).filter(|_| self.knows_its_name)
    }

    /// Says so once if it was moved or removed.
    pub(super) fn look_for(&mut self, tell: &mut dyn FnMut(Note)) {
        let astray = self.astray();
        if self.astray != astray {
            let name = self.now_written().display().to_string();
            match &astray {
                Some(Astray::Removed) => tell(Note::Hindered(format!(
                    "{name} was removed: what is recorded now is lost when the recording ends"
                ))),
                Some(Astray::Moved(to)) => {
                    let to = to.as_ref().map_or("it by its new name".into(), |to| to.display().to_string());
                    tell(Note::Hindered(format!("{name} was moved: recording goes on into {to}")));
                }
                None => {}
            }
            self.astray = astray;
        }
    }

    /// The last file of a recording that went from file to file.
    pub(super) fn end(&mut self, tell: &mut dyn FnMut(Note)) {
        let last = self.writer.take();
        let Some(mut parts) = self.parts.take() else { return };
        if let Some(w) = last {
            parts.hand_over(Whole { file: w.into_inner(), part: parts.part_name(), name: parts.name() });
        }
        parts.settle().into_iter().for_each(|words| tell(Note::Hindered(words)));
    }

    pub(super) fn remember(&mut self, written: Written) {
        if self.written.len() == MOST_NAMED {
            self.written.remove(0);
        }
        self.written.push(written);
    }

    pub(super) fn take_written(&mut self) -> Vec<Written> {
        std::mem::take(&mut self.written)
    }

    /// Writes the chunks that are ready.
    pub(super) fn write_ready(&mut self, sink: &mut Sink, tell: &mut dyn FnMut(Note)) -> Result<(), Error> {
        let chunks = sink.take_ready();
        if chunks.is_empty() {
            return Ok(());
        }
        let now = sys::boot_now();
        // Before anything that could take the room.
        self.write_waiting(tell)?;
        for c in chunks {
            let (count, first, cpu) = (c.count as u64 - c.losses.len() as u64, c.first, c.cpu);
            let losses = c.losses.clone();
            let Some(w) = &mut self.writer else { continue };
            match w.chunk(c) {
                Ok(()) => self.full = None,
                Err(kpat_klog::Error::DiskFull { room, .. }) => {
                    self.is_full(room, tell);
                    let own =
                        model::Loss { cause: LossCause::Disk, cpu: cpu as i32, from: first, to: now, count };
                    sink.count(&own);
                    // What the chunk reported as lost is lost all the same.
                    losses
                        .iter()
                        .chain((count > 0).then_some(&own))
                        .for_each(|l| carry(&mut self.waiting, l));
                }
                Err(e) => return Err(e.into()),
            }
        }
        if let Some(w) = &mut self.writer {
            match w.flush() {
                Ok(()) | Err(kpat_klog::Error::DiskFull { .. }) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }

    fn is_full(&mut self, room: Room, tell: &mut dyn FnMut(Note)) {
        self.full = Some(room);
        let now = Instant::now();
        if self.reported.is_none_or(|(what, at)| what != room || now - at >= REPORT) {
            self.reported = Some((room, now));
            tell(Note::Full(room));
        }
    }

    /// What was kept free for the end of a file is free for it.
    pub(super) fn room_for_the_end(&mut self) {
        self.reserve = None;
        if let Some(w) = &mut self.writer {
            w.most_bytes(u64::MAX);
        }
    }

    /// `j`: as it may be written, without what is to be treated.
    pub(super) fn write_json(&mut self, j: &Json, tell: &mut dyn FnMut(Note)) -> Result<(), Error> {
        let Some(w) = &mut self.writer else { return Ok(()) };
        match w.json(j).and_then(|()| w.flush()) {
            Ok(()) => Ok(()),
            Err(kpat_klog::Error::DiskFull { room, .. }) => {
                self.is_full(room, tell);
                // Without them packets would have no names of devices; readings of clocks and summaries come anew.
                if matches!(j, Json::Devices(_) | Json::Symbols(_)) && self.unwritten.len() < MOST_UNWRITTEN {
                    self.unwritten.push(j.clone());
                }
                Ok(())
            }
            Err(e) => Err(e.into()),
        }
    }

    /// Writes what there was no room for: devices and symbols, and the losses, as a chunk of its own. They are carried until it is in
    /// the file.
    pub(super) fn write_waiting(&mut self, tell: &mut dyn FnMut(Note)) -> Result<(), Error> {
        for j in std::mem::take(&mut self.unwritten) {
            self.write_json(&j, tell)?;
        }
        if self.waiting.is_empty() {
            return Ok(());
        }
        let mut own = kpat_klog::Encoder::new(0, self.codec);
        self.waiting.iter().for_each(|l| own.loss(l));
        let (Some(w), Some(chunk)) = (&mut self.writer, own.finish()) else { return Ok(()) };
        match w.chunk(chunk) {
            Ok(()) => self.waiting.clear(),
            Err(kpat_klog::Error::DiskFull { room, .. }) => self.is_full(room, tell),
            Err(e) => return Err(e.into()),
        }
        Ok(())
    }
}

/// Adds a loss to those that wait to be written: one row for each cause and CPU.
fn carry(waiting: &mut Vec<model::Loss>, l: &model::Loss) {
    match waiting.iter_mut().find(|w| (w.cause, w.cpu) == (l.cause, l.cpu)) {
        Some(w) => (w.from, w.to, w.count) = (w.from.min(l.from), w.to.max(l.to), w.count + l.count),
        None => waiting.push(*l),
    }
}
