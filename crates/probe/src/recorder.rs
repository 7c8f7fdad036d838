//! One recording from start to end: decide, load, attach, drain until told to stop, detach, say what it cost.
//!
//! One thread does it all, at low priority: the rings need no wake-ups, and nothing on the packet's path waits for it.
//! The order at the end matters: functions off, rings emptied, losses and summary written, then detached (which can
//! take seconds on old kernels).

use crate::capability::Cap;
use crate::cards::Clocks;
use crate::control;
use crate::netlink::Seen;
use crate::sink::{Memory, Sink};
use crate::{filter, kernel, netlink, plan, sys};
use kpat_klog::{Room, Writer};
use kpat_model as model;
use kpat_model::meta::{self, Json};
use kpat_model::{BootNs, LossCause};
use std::fs::File;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

mod command;
mod cost;
mod disk;
mod end;
mod estimate;
mod limits;
mod live;
mod parts;
mod pause;
mod places;
mod privileges;
mod scope;
mod source;
mod trigger;
mod types;

use command::end_child;
use cost::Stats;
use disk::{Reserve, Unplaced};
pub use disk::{clear_part, may_write, part_name};
use live::Pace;
use parts::{Before, Parts};
use pause::Pausing;
use places::Places;
pub use scope::check;
use scope::{describe, devices, learn, rename, watched};
use source::Source;
pub use trigger::{DumpWhen, Watch};
pub use types::{Application, Beside, BesideLoss, Error, Mode, Note, Options, Outcome, Rotate, Written};

static STOP: AtomicBool = AtomicBool::new(false);
static DUMP: AtomicBool = AtomicBool::new(false);

extern "C" fn on_signal(signal: libc::c_int) {
    if signal == libc::SIGUSR1 { &DUMP } else { &STOP }.store(true, Ordering::Relaxed);
}

fn catch_signals() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGUSR1] {
        // SAFETY: the handler only stores to an atomic.
        unsafe { libc::signal(signal, on_signal as *const () as libc::sighandler_t) };
    }
}

/// A recording that is attached.
pub struct Recorder {
    options: Options,
    /// At least one; packets come first.
    sources: Vec<Source>,
    sink: Sink,
    places: Places,
    writer: Option<Writer<File>>,
    /// The log, while it has another name.
    unplaced: Option<Unplaced>,
    /// When what runs beside was last asked for its losses.
    looked_beside: BootNs,
    /// Captures of the wire.
    beside: Option<Box<dyn Beside>>,
    /// The recording goes on from file to file.
    parts: Option<Parts>,
    before: Before,
    memory: Option<Memory>,
    meta: meta::Meta,
    devices: Vec<meta::Device>,
    /// Those of them that are not in the file yet.
    fresh_devices: Vec<meta::Device>,
    monitor: Option<netlink::Monitor>,
    clocks: Clocks,
    /// Taken out while it answers.
    server: Option<control::Server>,
    pausing: Pausing,
    started: Instant,
    cpu_at_start: u64,
    cost: meta::Cost,
    stats: Stats,
    /// When logging ended, and slots of the rings taken by then.
    ended: Option<(Instant, u64)>,
    dumps: u32,
    dumped: trigger::Dumped,
    outputs: Vec<Written>,
    /// There is no room for what is recorded now.
    full: Option<Room>,
    /// How far records fill a file.
    most_records: Option<u64>,
    /// Netlink messages that the monitor missed and that were counted already.
    overruns: u64,
    /// Room that is given back when the disk was full, so that the end of the log can be written.
    reserve: Option<Reserve>,
    /// Capabilities without which files cannot be made where they are to be.
    files_take: Vec<Cap>,
    /// Losses that are not in the file yet, because there was no room: its own, and those that lost chunks reported.
    disk_losses: Vec<model::Loss>,
    pace: Pace,
    /// Somebody wants to know how it goes.
    watch: Option<Arc<Mutex<control::Status>>>,
}

impl Recorder {
    /// Decides, loads and attaches.
    ///
    /// *Errors*: nothing has changed then, and no file was made.
    pub fn start(options: Options, tell: &mut dyn FnMut(Note)) -> Result<Recorder, Error> {
        if options.rotate.is_none() {
            may_write(&options.output, options.replace)?;
        }
        limits::raise();
        let most_records = limits::most_records()?;
        let rotated = options.rotate.and_then(|r| r.bytes).unwrap_or(u64::MAX);
        most_records.filter(|most| *most < rotated).into_iter().for_each(|most| tell(Note::SizeLimit(most)));
        let mut reserve = Reserve::take_first(&options.output)?;
        if !matches!(options.mode, Mode::Disk) {
            reserve = None;
        }
        let compiled = filter::compile_sampled(&options.filter, options.sample.as_ref())?;
        let decided = source::decide(&options)?;
        limits::enough_descriptors(decided.iter().map(|d| &d.decision))?;
        decided.iter().for_each(|d| tell(d.note()));
        let watched = watched(&options);
        let devices = devices(&options, &watched)?;
        let clocks = source::clocks(&decided, &devices, tell);
        let cpus = kernel::possible_cpus();
        let mut sources = Vec::new();
        for d in decided {
            sources.push(d.load(&options, &devices, compiled.as_ref())?);
        }
        let clock = Instant::now();
        let stats = Stats::begin(options.measure_cost);
        for s in &mut sources {
            s.attach(&mut |done, of| tell(Note::Attaching { done, of }))?;
        }
        let announcements = plan::announcements(&mut sources[0].decision);
        let attach_ns = clock.elapsed().as_nanos() as u64;
        let functions = sources.iter().map(Source::logged).sum();
        tell(Note::Attached { functions, seconds: attach_ns as f64 / 1e9 });
        let mut sink = Sink::new(cpus, sources.len(), options.codec);
        if let Some(a) = &options.application {
            for s in &sources {
                sink.sockets = s.sockets(a, &options.filter)?.or(sink.sockets);
            }
            sink.identity = a.addresses.clone();
        }
        let server = control::Server::start();
        let server =
            server.map_err(|e| tell(Note::Hindered(format!("no `kpat ctl` for this recording: {e}")))).ok();
        privileges::lacking(tell);
        let meta = describe(&options, &sources, cpus);
        let files_take = privileges::of_files(&options.output);
        let memory = match options.mode {
            Mode::Disk => None,
            Mode::Memory { bytes, .. } => Some(Memory::new(bytes)),
        };
        let mut recorder = Recorder {
            sink,
            places: Places::default(),
            monitor: Some(netlink::Monitor::start(&watched, options.netns.is_empty(), announcements)?),
            clocks,
            server,
            pausing: Pausing::new(options.paused),
            started: Instant::now(),
            cpu_at_start: own_cpu_ns(),
            cost: meta::Cost { attach_ns, cpus: cpus as u32, ..Default::default() },
            stats,
            ended: None,
            pace: Pace::new(cpus),
            watch: None,
            writer: None,
            unplaced: None,
            looked_beside: sys::boot_now(),
            beside: None,
            parts: None,
            before: Before::default(),
            dumps: 0,
            dumped: trigger::Dumped::default(),
            outputs: Vec::new(),
            full: None,
            most_records,
            overruns: 0,
            reserve,
            files_take,
            disk_losses: Vec::new(),
            options,
            sources,
            memory,
            meta,
            devices,
            fresh_devices: Vec::new(),
        };
        recorder.watch_for_dumps()?;
        if recorder.memory.is_none() {
            let path = recorder.first_file(tell)?;
            if recorder.parts.is_some() {
                recorder.writer = Some(recorder.open(&path)?);
            } else {
                let (writer, unplaced) = recorder.open_unplaced(&path)?;
                (recorder.writer, recorder.unplaced) = (Some(writer), unplaced);
            }
        }
        Ok(recorder)
    }

    /// Runs until stopped by signal, request, time, or the end of the command.
    pub fn run(mut self, tell: &mut dyn FnMut(Note)) -> Result<Outcome, Error> {
        catch_signals();
        set_priority(CALM);
        let mut hurried = false;
        self.started = Instant::now();
        self.cpu_at_start = own_cpu_ns();
        self.start_window();
        self.clocks.read(true, &mut |r| self.sink.card_reading(r));
        self.begin();
        let mut child = self.spawn()?;
        if let Err(e) = self.take_names() {
            child.as_mut().into_iter().for_each(end_child);
            return Err(e);
        }
        if let Some(path) = &self.options.ready_file {
            disk::write_anew(path, &format!("{}\n", std::process::id()))?;
        }
        self.give_up_privileges();
        if let Some(server) = &self.server {
            server.publish(&self.status());
        }
        tell(Note::Ready);
        let mut command_code = None;
        let mut housekeeping = Instant::now();
        let mut anchored = Instant::now();
        let mut stop = false;
        let mut reason = String::from("stopped");
        while !stop {
            let fill = self.drain();
            self.sample_cost(false);
            if housekeeping.elapsed() > Duration::from_millis(50) {
                housekeeping = Instant::now();
                self.housekeeping(tell, false)?;
                stop |= self.serve(tell);
                self.rotate(tell)?;
                self.beat();
                if let Some(c) = &mut child
                    && let Ok(Some(status)) = c.try_wait()
                {
                    use std::os::unix::process::ExitStatusExt;
                    command_code = Some(status.code().unwrap_or(128 + status.signal().unwrap_or(0)));
                    reason = "command ended".into();
                    stop = true;
                }
                if self.options.duration.is_some_and(|d| self.started.elapsed() >= d) {
                    reason = "time is up".into();
                    stop = true;
                }
                stop |= STOP.load(Ordering::Relaxed);
                if DUMP.swap(false, Ordering::Relaxed) {
                    self.dump(tell)?;
                }
                if anchored.elapsed() > Duration::from_secs(5) {
                    anchored = Instant::now();
                    self.write_json(Json::Anchor(sys::clock_anchor()), tell)?;
                    let summary = self.file_summary(false, "", None);
                    self.write_json(Json::Summary(Box::new(summary)), tell)?;
                }
            }
            // others may have the CPU, but not so long that records are lost
            let hurry = fill > 0.25 || (fill > 0.05 && hurried);
            if hurry != hurried {
                set_priority(if hurry { HURRIED } else { CALM });
                hurried = hurry;
            }
            if fill < 0.25 {
                let nap = Duration::from_millis(match fill {
                    ..0.005 => 40,
                    ..0.02 => 10,
                    _ => 2,
                });
                std::thread::sleep(nap.min(self.stats.patience()));
            }
        }
        if let Some(mut c) = child {
            end_child(&mut c);
        }
        self.finish(&reason, command_code, tell)
    }

    /// Captures of the wire that run with it.
    pub fn beside(&mut self, beside: Box<dyn Beside>) {
        self.beside = Some(beside);
    }

    /// Everything runs: from now on the recording's files are there.
    fn take_names(&mut self) -> Result<(), Error> {
        if let Some(unplaced) = self.unplaced.take() {
            unplaced.place()?;
        }
        self.beside.as_mut().map_or(Ok(()), |b| b.started()).map_err(Error::Beside)
    }

    /// Sets every switch to what is wanted now.
    fn switch(&self) {
        self.sources.iter().for_each(|s| s.switch(self.pausing.paused));
    }

    /// The source that says for all what the kernel is like: names of places and reasons.
    fn first(&self) -> &Source {
        &self.sources[0]
    }

    /// Empties all rings once; returns how full the fullest was, 0 to 1.
    fn drain(&mut self) -> f64 {
        let mut most = 0.0f64;
        for s in &self.sources {
            for cpu in 0..s.rings.cpus() {
                let waited = s.rings.backlog(cpu);
                self.pace.waited(cpu, waited);
                most = most.max(waited as f64 / s.rings.ring_bytes() as f64);
                s.drain(&mut self.sink, cpu);
            }
        }
        most
    }

    /// Looks at the loss counters of all rings, and closes chunks that have become old.
    fn look(&mut self, now: BootNs, close: bool) {
        for (i, s) in self.sources.iter().enumerate() {
            (0..s.rings.cpus()).for_each(|cpu| self.sink.count_losses(i, &s.rings, cpu, now));
        }
        self.sink.look(now, close);
    }

    fn housekeeping(&mut self, tell: &mut dyn FnMut(Note), close: bool) -> Result<(), Error> {
        let now = sys::boot_now();
        let before = self.sink.lost.clone();
        self.look(now, close);
        let sink = &mut self.sink;
        self.clocks.read(close, &mut |r| sink.card_reading(r));
        let mut unstamped = 0;
        if let Some(m) = &mut self.monitor {
            m.drain(&mut |seen| match seen {
                Seen::Event(e, after) => sink.event_within(e, after),
                Seen::Stamped(e, by) => sink.event_stamped(e, &by),
                Seen::Unstamped(n) => unstamped += n,
                Seen::Device(d) => self.fresh_devices.extend(learn(&mut self.devices, d)),
                Seen::Renamed { netns, was, name } => {
                    self.fresh_devices.extend(rename(&mut self.devices, netns, &was, &name));
                }
                Seen::Unread { from, to, .. } => {
                    let cause = LossCause::NamespaceUnread;
                    sink.loss(&model::Loss { cause, cpu: -1, from, to, count: 1 });
                }
            });
            if sink.strangers.take().iter().any(|n| !self.devices.iter().any(|d| d.netns == *n)) {
                m.look();
            }
            let missed = m.overruns() - self.overruns;
            if missed > 0 {
                self.overruns += missed;
                let cause = LossCause::NetlinkOverrun;
                sink.loss(&model::Loss { cause, cpu: -1, from: self.looked_beside, to: now, count: missed });
            }
        }
        if unstamped > 0 {
            self.note(&format!(
                "{unstamped} announcements lost their stamps: such system events have bounds"
            ));
        }
        self.look_beside(now);
        self.name_places(close);
        self.count_refused(now, close);
        for (&(cause, cpu), &n) in &self.sink.lost {
            let more = n - before.get(&(cause, cpu)).copied().unwrap_or(0);
            if more > 0
                && let Some(cause) = LossCause::from_u8(cause)
            {
                tell(Note::Lost { cause, cpu, count: more });
            }
        }
        if let Some(m) = &mut self.memory {
            self.sink.take_ready().into_iter().for_each(|c| m.push(c));
            self.fresh_devices.clear();
            return if close { Ok(()) } else { self.triggered(tell) };
        }
        if !self.fresh_devices.is_empty() {
            let fresh = std::mem::take(&mut self.fresh_devices);
            self.write_json(Json::Devices(fresh), tell)?;
        }
        self.write_ready(tell)
    }

    /// Frames that captures lost, by interface as events, together as a loss.
    fn look_beside(&mut self, now: BootNs) {
        self.looked_beside = now;
        for l in self.beside.as_mut().map_or_else(Vec::new, |b| b.losses()) {
            let (cause, cpu) = (LossCause::SnifferFull, -1);
            self.sink.loss(&model::Loss { cause, cpu, from: l.from, to: l.to, count: l.count });
            self.note(&format!("the sniffer at {} lost {} frames", l.place, l.count));
        }
    }

    fn cost_so_far(&self) -> meta::Cost {
        let mut cost = self.cost.clone();
        cost.wall_ns = self.started.elapsed().as_nanos() as u64;
        cost.drain_cpu_ns = own_cpu_ns() - self.cpu_at_start;
        self.estimated(false, &mut cost);
        cost
    }

    fn summary(&self, complete: bool, reason: &str, open_calls: Option<u64>) -> meta::Summary {
        let cost = self.cost_so_far();
        meta::Summary {
            complete,
            end_reason: reason.into(),
            at: sys::clock_anchor(),
            records: self.sink.records,
            bytes: self.before.bytes + self.writer.as_ref().map_or(0, Writer::bytes_written),
            cost,
            losses: self.loss_totals(),
            open_calls,
        }
    }

    fn loss_totals(&self) -> Vec<meta::LossTotal> {
        self.losses_since(&Default::default())
    }

    fn losses_since(&self, before: &std::collections::BTreeMap<(u8, i32), u64>) -> Vec<meta::LossTotal> {
        let lost = self.sink.lost.iter().filter_map(|(key, n)| {
            let count = n - before.get(key).copied().unwrap_or(0);
            let cause = LossCause::from_u8(key.0)?.name().into();
            (count > 0).then_some(meta::LossTotal { cause, cpu: key.1, count })
        });
        lost.collect()
    }
}

/// Niceness of the drain: usually behind everybody, before everybody when a ring fills up.
const CALM: i32 = 10;
const HURRIED: i32 = -10;

fn set_priority(nice: i32) {
    // SAFETY: no memory is passed.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, nice) };
}

fn own_cpu_ns() -> u64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: t is a valid timespec to write to.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut t) };
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}
