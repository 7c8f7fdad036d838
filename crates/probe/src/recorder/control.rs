//! While it runs: requests are answered, and how it goes is published.

use super::flight::Flight;
use super::rotate::losses_since;
use super::sources::Sources;
use super::{Note, Recorder, note};
use crate::control::{Change, Reply, Request, Server, Status};
use crate::ring::LEAST_RING;
use crate::sink::Sink;
use crate::whose::Finder;
use crate::work::ChangeChoice;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Counts of one second.
struct Pace {
    since: Instant,
    records: u64,
    bytes: u64,
    records_per_second: f64,
    bytes_per_second: f64,
    /// Most bytes that waited in each CPU's ring: in the last whole second, and in this one.
    rings: Vec<(u64, u64)>,
}

impl Pace {
    fn new(cpus: usize) -> Pace {
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

    fn waited(&mut self, cpu: usize, bytes: u64) {
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

/// Who asks, and who wants to know.
pub(super) struct Control {
    /// Taken out while it answers; `None`: there is no control socket.
    server: Option<Server>,
    pace: Pace,
    /// Somebody of this process wants to know how it goes.
    watch: Option<Arc<Mutex<Status>>>,
}

impl Control {
    pub(super) fn start(cpus: usize, tell: &mut dyn FnMut(Note)) -> Control {
        let server = Server::start();
        let server =
            server.map_err(|e| tell(Note::Hindered(format!("no `kpat ctl` for this recording: {e}")))).ok();
        Control { server, pace: Pace::new(cpus), watch: None }
    }

    /// Bytes that waited in the ring of this CPU.
    pub(super) fn waited(&mut self, cpu: usize, bytes: u64) {
        self.pace.waited(cpu, bytes);
    }

    /// Has a second gone by? Then rates are those of it.
    fn turn(&mut self, records: u64, bytes: u64) -> bool {
        let over = self.pace.since.elapsed() >= Duration::from_secs(1);
        if over {
            self.pace.turn(records, bytes);
        }
        over
    }

    fn publish(&self, status: &Status) {
        if let Some(server) = &self.server {
            server.publish(status);
        }
        if let Some(watch) = &self.watch {
            *watch.lock().unwrap_or_else(PoisonError::into_inner) = status.clone();
        }
    }
}

impl Recorder {
    /// Answers who asks; true: the recording is to end.
    pub(super) fn serve(&mut self, tell: &mut dyn FnMut(Note)) -> bool {
        let (mut dump, mut reset, mut stop) = (false, false, false);
        let Some(mut server) = self.control.server.take() else { return false };
        server.serve(&mut |r| match r {
            Request::Status => Reply::Status(Box::new(self.status())),
            Request::On(globs) => turn(&mut self.sources, self.pausing.paused, &mut self.sink, &globs, true),
            Request::Off(globs) => {
                turn(&mut self.sources, self.pausing.paused, &mut self.sink, &globs, false)
            }
            Request::Pause => {
                self.unrun.end(&self.sources, &mut self.sink);
                self.pausing.pause(&mut self.sources, &mut self.sink)
            }
            Request::Resume => {
                let reply = self.pausing.resume(&mut self.sources, &mut self.sink);
                if !self.pausing.paused {
                    self.unrun.begin(&self.sources);
                }
                reply
            }
            Request::Set(c) => change(&mut self.sources, self.pausing.paused, &mut self.sink, &c),
            Request::Choose(c) => choose(&self.sources, self.finder.as_ref(), &mut self.sink, &c),
            Request::Dump => match &self.flight {
                Some(flight) => {
                    dump = true;
                    Reply::Done(format!("dumping to {}", flight.path(&self.options).display()))
                }
                None => {
                    Reply::Refused("this recording writes to disk all the time; dump is for --memory".into())
                }
            },
            Request::Rotate => match self.files.ask_for_next() {
                Some(name) => Reply::Done(format!("{} ends here", name.display())),
                None => {
                    Reply::Refused("this recording is one file; see --rotate-size and --rotate-time".into())
                }
            },
            Request::Reset => match self.files.can_begin_anew() {
                Ok(()) => {
                    reset = true;
                    Reply::Done(format!("{} begins anew", self.files.name().display()))
                }
                Err(why) => Reply::Refused(why.into()),
            },
            Request::Stop => {
                stop = true;
                Reply::Done("stopping".into())
            }
        });
        self.control.server = Some(server);
        if dump
            && !stop
            && let Err(e) = self.dump(tell)
        {
            tell(Note::Hindered(format!("not dumped: {e}")));
        }
        if reset
            && !stop
            && let Err(e) = self.reset(tell)
        {
            tell(Note::Hindered(format!("the file goes on as it was: {e}")));
        }
        stop
    }

    pub(super) fn status(&self) -> Status {
        let first = &self.sources.first().rings;
        let ring = first.ring_bytes() as f64;
        let (points_attached, points) = self.sources.attached_points();
        let pace = &self.control.pace;
        let rings: Vec<f64> = pace.fill().map(|bytes| bytes as f64 * 100.0 / ring).collect();
        let in_memory = self.flight.is_some();
        let file = if in_memory { String::new() } else { self.files.now_written().display().to_string() };
        let (functions_on, functions) = self.sources.counts();
        Status {
            pid: std::process::id(),
            output: self.options.output.display().to_string(),
            file,
            file_number: self.meta.part.number,
            file_bytes: self.files.bytes(),
            started_wall_ns: self.meta.started.wall.0,
            mode: if in_memory { "memory" } else { "disk" }.into(),
            mechanism: self.sources.first().decision.mechanism.name().into(),
            paused: self.pausing.paused,
            points_attached,
            points,
            resume_ns: self.pausing.resume_ns,
            seconds: self.costs.elapsed().as_secs_f64(),
            functions,
            functions_on,
            records: self.sink.records,
            records_per_second: pace.records_per_second,
            bytes: self.bytes(),
            bytes_per_second: pace.bytes_per_second,
            disk_full: self.files.full().is_some(),
            drain_cpu_seconds: self.costs.drain_cpu_ns() as f64 / 1e9,
            memory_bytes: self.flight.as_ref().map_or(0, |f| f.bytes() as u64),
            suppressed_dumps: self.flight.as_ref().map_or(0, Flight::suppressed),
            cost: self.costs.so_far(&self.sources),
            losses: losses_since(&self.sink.lost, &Default::default()),
            ring_fill_percent: rings.iter().copied().fold(0.0, f64::max),
            rings_fill_percent: rings,
            ring_bytes: first.ring_bytes() as u64,
            ring_allocated_bytes: first.allocated_bytes() as u64,
        }
    }

    pub(super) fn publish(&self) {
        self.control.publish(&self.status());
    }

    /// Once a second: rates, and the state for `kpat ctl status` and metrics.
    pub(super) fn beat(&mut self) {
        let bytes = self.bytes();
        if self.control.turn(self.sink.records, bytes) {
            self.publish();
        }
    }

    /// The state of this recording, renewed every second while it runs.
    pub fn watch(&mut self) -> Arc<Mutex<Status>> {
        let now = self.status();
        self.control.watch.get_or_insert_with(|| Arc::new(Mutex::new(now))).clone()
    }
}

fn turn(sources: &mut Sources, paused: bool, sink: &mut Sink, globs: &[String], on: bool) -> Reply {
    let word = if on { "on" } else { "off" };
    let (fits, n) = sources.turn(globs, on);
    if fits == 0 {
        return Reply::Refused(format!("no probed function matches {}", globs.join(" ")));
    }
    sources.switch(paused);
    note(sink, &format!("{n} functions {word}: {}", globs.join(" ")));
    let (now_on, all) = sources.counts();
    Reply::Done(format!("{n} functions switched {word}; {now_on} of {all} are logged"))
}

fn choose(sources: &Sources, finder: Option<&Finder>, sink: &mut Sink, change: &ChangeChoice) -> Reply {
    match sources.change_choice(change) {
        None => Reply::Refused(
            "this recording has everybody's packets and sockets; it would have to begin with --only".into(),
        ),
        Some(Err(e)) => Reply::Refused(e.to_string()),
        Some(Ok(terms)) => {
            let words: Vec<String> = terms.iter().map(ToString::to_string).collect();
            let words = format!(
                "chosen: {}",
                if words.is_empty() { "every process".into() } else { words.join(" ") }
            );
            if let Some(finder) = finder {
                finder.change(terms);
            }
            note(sink, &words);
            Reply::Done(words)
        }
    }
}

fn change(sources: &mut Sources, paused: bool, sink: &mut Sink, c: &Change) -> Reply {
    let mut reported = Vec::new();
    if let Some(why) = c.ring_bytes.and_then(|bytes| no_such_ring(sources, bytes)) {
        return Reply::Refused(why);
    }
    if c.of_applications()
        && let Err(why) = change_applications(sources, paused, sink, c, &mut reported)
    {
        return Reply::Refused(why);
    }
    if let Some(bytes) = c.ring_bytes {
        sources.resize_rings(bytes);
        reported.push(format!("rings of {} KiB", bytes as f64 / 1024.0));
    }
    let text = reported.join(", ");
    note(sink, &text);
    Reply::Done(text)
}

fn no_such_ring(sources: &Sources, bytes: u64) -> Option<String> {
    let most = sources.first().rings.allocated_bytes() as u64;
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

fn change_applications(
    sources: &mut Sources,
    paused: bool,
    sink: &mut Sink,
    c: &Change,
    reported: &mut Vec<String>,
) -> Result<(), String> {
    let (Some(source), Some(sockets)) = (sources.applications(), &mut sink.sockets) else {
        return Err("this recording is not of applications (--profile app)".into());
    };
    let mut fresh = Vec::new();
    if let Some(text) = &c.filter {
        match sockets.refilter(text) {
            Ok(sockets) => fresh = sockets,
            Err(e) => return Err(e.to_string()),
        }
        reported.push(if text.is_empty() { "no filter".into() } else { format!("filter {text}") });
    }
    if let (Some(ns), Some(settings)) = (c.state_every_ns, &source.settings) {
        settings.state_every_ns(ns);
    }
    if let (Some(acks), Some(settings)) = (c.acks, &source.settings) {
        settings.empty(acks);
        reported.push(format!("acknowledgements {}", if acks { "on" } else { "off" }));
    }
    if let Some(on) = c.states {
        source.turn_states(on);
        sources.switch(paused);
    }
    reported.extend(state_words(c.states, c.state_every_ns));
    fresh.iter().for_each(|r| sink.socket(r));
    Ok(())
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
