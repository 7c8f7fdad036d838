//! While it runs: requests are answered, functions switched, the flight recorder dumped.

use super::disk::{Unplaced, may_write};
use super::parts::Parts;
use super::source::Source;
use super::{Error, Mode, Note, Recorder, Written};
use crate::control::{Change, Reply, Request, Status};
use crate::ring::LEAST_RING;
use crate::sys;
use kpat_klog::Writer;
use kpat_model as model;
use kpat_model::meta::Json;
use kpat_model::{BootNs, LossCause};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// What a second brought.
pub(super) struct Pace {
    since: Instant,
    records: u64,
    bytes: u64,
    records_per_second: f64,
    bytes_per_second: f64,
    /// Most bytes that waited in each CPU's ring: in the last whole second, and in this one.
    rings: Vec<(u64, u64)>,
}

impl Pace {
    pub(super) fn new(cpus: usize) -> Pace {
        let rings = vec![(0, 0); cpus];
        Pace {
            since: Instant::now(),
            records: 0,
            bytes: 0,
            records_per_second: 0.0,
            bytes_per_second: 0.0,
            rings,
        }
    }

    pub(super) fn waited(&mut self, cpu: usize, bytes: u64) {
        if let Some((_, now)) = self.rings.get_mut(cpu) {
            *now = bytes.max(*now);
        }
    }

    fn fill(&self) -> impl Iterator<Item = u64> {
        self.rings.iter().map(|(last, now)| *last.max(now))
    }

    fn turn(&mut self, records: u64, bytes: u64) {
        let seconds = self.since.elapsed().as_secs_f64().max(1e-3);
        self.records_per_second = records.saturating_sub(self.records) as f64 / seconds;
        self.bytes_per_second = bytes.saturating_sub(self.bytes) as f64 / seconds;
        (self.since, self.records, self.bytes) = (Instant::now(), records, bytes);
        self.rings.iter_mut().for_each(|(last, now)| *last = std::mem::take(now));
    }
}

impl Recorder {
    pub(super) fn serve(&mut self, tell: &mut dyn FnMut(Note)) -> bool {
        let mut asked = None;
        let Some(mut server) = self.server.take() else { return false };
        server.serve(&mut |r| match r {
            Request::Status => Reply::Status(Box::new(self.status())),
            Request::On(globs) => self.turn(&globs, true),
            Request::Off(globs) => self.turn(&globs, false),
            Request::Pause => self.pause(),
            Request::Resume => self.resume(),
            Request::Set(change) => self.change(&change),
            Request::Dump if self.memory.is_none() => {
                Reply::Refused("this recording writes to disk all the time; dump is for --memory".into())
            }
            Request::Dump => {
                asked = Some(Request::Dump);
                Reply::Done(format!("dumping to {}", self.dump_path().display()))
            }
            Request::Rotate => match &mut self.parts {
                Some(parts) => {
                    parts.ask();
                    Reply::Done(format!("{} ends here", parts.name().display()))
                }
                None => {
                    Reply::Refused("this recording is one file; see --rotate-size and --rotate-time".into())
                }
            },
            Request::Stop => {
                asked = Some(Request::Stop);
                Reply::Done("stopping".into())
            }
        });
        self.server = Some(server);
        match asked {
            Some(Request::Dump) => {
                if let Err(e) = self.dump(tell) {
                    tell(Note::Hindered(format!("not dumped: {e}")));
                }
                false
            }
            Some(_) => true,
            None => false,
        }
    }

    fn turn(&mut self, globs: &[String], on: bool) -> Reply {
        let word = if on { "on" } else { "off" };
        let turned = self.sources.iter_mut().map(|s| s.turn(globs, on));
        let (fits, n) = turned.fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1));
        if fits == 0 {
            return Reply::Refused(format!("no probed function fits {}", globs.join(" ")));
        }
        self.switch();
        self.note(&format!("{n} functions {word}: {}", globs.join(" ")));
        let (now_on, all) = self.counts();
        Reply::Done(format!("{n} functions switched {word}, {now_on} of {all} are on"))
    }

    fn change(&mut self, c: &Change) -> Reply {
        let mut said = Vec::new();
        if let Some(why) = c.ring_bytes.and_then(|bytes| self.no_such_ring(bytes)) {
            return Reply::Refused(why);
        }
        if c.of_applications()
            && let Err(why) = self.change_applications(c, &mut said)
        {
            return Reply::Refused(why);
        }
        if let Some(bytes) = c.ring_bytes {
            self.sources.iter().for_each(|s| s.rings.resize(bytes));
            said.push(format!("rings of {} KiB", bytes as f64 / 1024.0));
        }
        let text = said.join(", ");
        self.note(&text);
        Reply::Done(text)
    }

    fn no_such_ring(&self, bytes: u64) -> Option<String> {
        let most = self.first().rings.allocated_bytes() as u64;
        if bytes < LEAST_RING {
            return Some(format!("a ring of {bytes} bytes is too small; at least {LEAST_RING}"));
        }
        (bytes > most).then(|| {
            format!(
                "each ring has {most} bytes ({} KiB), so {bytes} are too many; larger ones are made by `kpat record --ring` when a recording starts",
                most >> 10
            )
        })
    }

    fn change_applications(&mut self, c: &Change, said: &mut Vec<String>) -> Result<(), String> {
        let source = self.sources.iter_mut().find(|s| s.settings.is_some());
        let (Some(source), Some(sockets)) = (source, &mut self.sink.sockets) else {
            return Err("this recording is not of applications (--profile app)".into());
        };
        let mut fresh = Vec::new();
        if let Some(text) = &c.filter {
            match sockets.refilter(text) {
                Ok(sockets) => fresh = sockets,
                Err(e) => return Err(e.to_string()),
            }
            said.push(if text.is_empty() { "no filter".into() } else { format!("filter {text}") });
        }
        if let (Some(ns), Some(settings)) = (c.state_every_ns, &source.settings) {
            settings.state_every_ns(ns);
        }
        if let (Some(acks), Some(settings)) = (c.acks, &source.settings) {
            settings.empty(acks);
            said.push(format!("acknowledgements {}", if acks { "on" } else { "off" }));
        }
        if let Some(on) = c.states {
            source.turn_states(on);
            self.switch();
        }
        said.extend(state_words(c.states, c.state_every_ns));
        fresh.iter().for_each(|r| self.sink.socket(r));
        Ok(())
    }

    /// Functions (or tracepoints) that are logged now, and that could be.
    fn counts(&self) -> (usize, usize) {
        self.sources.iter().map(Source::counts).fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1))
    }

    pub(super) fn note(&mut self, text: &str) {
        self.sink.event(&model::Event {
            kind: model::EventKind::Control,
            ctx: model::Context::Task,
            pid: std::process::id(),
            at: sys::boot_now(),
            timed: model::Timed::Recorder,
            packet: model::PacketId::NONE,
            netns: 0,
            a: 0,
            b: 0,
            text: text.into(),
        });
    }

    pub(super) fn status(&self) -> Status {
        let first = &self.first().rings;
        let ring = first.ring_bytes() as f64;
        let attached = self.sources.iter().map(Source::attached_points);
        let (points_attached, points) = attached.fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1));
        let rings: Vec<f64> = self.pace.fill().map(|bytes| bytes as f64 * 100.0 / ring).collect();
        let file_bytes = self.writer.as_ref().map_or(0, Writer::bytes_written);
        let file = self.parts.as_ref().map_or_else(|| self.options.output.clone(), Parts::part_name);
        Status {
            pid: std::process::id(),
            output: self.options.output.display().to_string(),
            file: if self.memory.is_some() { String::new() } else { file.display().to_string() },
            file_number: self.meta.part.number,
            file_bytes,
            started_wall_ns: self.meta.started.wall.0,
            mode: if self.memory.is_some() { "memory" } else { "disk" }.into(),
            mechanism: self.first().decision.mechanism.name().into(),
            paused: self.pausing.paused,
            points_attached,
            points,
            resume_ns: self.pausing.resume_ns,
            seconds: self.started.elapsed().as_secs_f64(),
            functions: self.counts().1,
            functions_on: self.counts().0,
            records: self.sink.records,
            records_per_second: self.pace.records_per_second,
            bytes: self.before.bytes + file_bytes,
            bytes_per_second: self.pace.bytes_per_second,
            disk_full: self.full.is_some(),
            drain_cpu_seconds: (super::own_cpu_ns() - self.cpu_at_start) as f64 / 1e9,
            memory_bytes: self.memory.as_ref().map_or(0, |m| m.bytes() as u64),
            suppressed_dumps: self.dumped.suppressed,
            cost: self.cost_so_far(),
            losses: self.loss_totals(),
            ring_fill_percent: rings.iter().copied().fold(0.0, f64::max),
            rings_fill_percent: rings,
            ring_bytes: first.ring_bytes() as u64,
            ring_allocated_bytes: first.allocated_bytes() as u64,
        }
    }

    /// Once a second: rates, and the state for whoever watches.
    pub(super) fn beat(&mut self) {
        if self.pace.since.elapsed() < Duration::from_secs(1) {
            return;
        }
        let bytes = self.before.bytes + self.writer.as_ref().map_or(0, Writer::bytes_written);
        self.pace.turn(self.sink.records, bytes);
        let status = self.status();
        if let Some(server) = &self.server {
            server.publish(&status);
        }
        if let Some(watch) = &self.watch {
            *watch.lock().unwrap_or_else(PoisonError::into_inner) = status;
        }
    }

    /// The state of this recording, renewed every second while it runs.
    pub fn watch(&mut self) -> Arc<Mutex<Status>> {
        let now = self.status();
        self.watch.get_or_insert_with(|| Arc::new(Mutex::new(now))).clone()
    }

    /// The first name that is not taken.
    fn dump_path(&self) -> PathBuf {
        let p = &self.options.output;
        let name = |n: u32| if n == 0 { p.clone() } else { p.with_extension(format!("{n}.kbl")) };
        let free = |path: &PathBuf| may_write(path, self.options.replace).is_ok();
        (self.dumps..).map(name).find(free).unwrap_or_else(|| p.clone())
    }

    /// Flight recorder: writes what is in memory to a log of its own.
    pub(super) fn dump(&mut self, tell: &mut dyn FnMut(Note)) -> Result<(), Error> {
        let Mode::Memory { last, .. } = self.options.mode else { return Ok(()) };
        let now = sys::boot_now();
        self.drain();
        self.look(now, true);
        let Some(m) = &mut self.memory else { return Ok(()) };
        self.sink.take_ready().into_iter().for_each(|c| m.push(c));
        let since = last.map_or(BootNs(i64::MIN), |d| BootNs(now.0 - d.as_nanos() as i64));
        let (chunks, evicted) = (m.take(since), m.evicted_records);
        let records: u64 = chunks.iter().map(|c| c.count as u64).sum();
        if records == 0 {
            tell(Note::NothingToDump);
            return Ok(());
        }
        let path = self.dump_path();
        let (mut w, unplaced) = self.open_unplaced(&path)?;
        for c in chunks {
            w.chunk(c)?;
        }
        if evicted > 0 {
            let mut e = kpat_klog::Encoder::new(0, self.options.codec);
            e.loss(&model::Loss {
                cause: LossCause::Evicted,
                cpu: -1,
                from: self.meta.started.boot,
                to: now,
                count: evicted,
            });
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
        unplaced.map_or(Ok(()), Unplaced::place)?;
        self.dumps += 1;
        self.remember(Written { path: path.clone(), records, bytes: w.bytes_written() });
        tell(Note::Dumped { path, records });
        Ok(())
    }
}

/// How often TCP's state is written from now on, in one word: off goes before how often.
fn state_words(on: Option<bool>, every_ns: Option<u64>) -> Option<String> {
    match (on, every_ns) {
        (Some(false), _) => Some("TCP's state off".into()),
        (_, Some(0)) => Some("TCP's state with each event".into()),
        (_, Some(ns)) => Some(format!("TCP's state at least every {} ms", ns as f64 / 1e6)),
        (Some(true), None) => Some("TCP's state on".into()),
        (None, None) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_off_is_not_written_every_second() {
        let words = |on, every| state_words(on, every).unwrap_or_default();
        assert_eq!(words(Some(false), Some(1_000_000_000)), "TCP's state off");
        assert_eq!(words(Some(true), Some(0)), "TCP's state with each event");
        assert_eq!(words(Some(true), Some(1_000_000_000)), "TCP's state at least every 1000 ms");
        assert_eq!(words(None, None), "");
    }
}
