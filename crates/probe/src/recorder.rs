//! One recording from start to end: decide, load, attach, read the rings until it is stopped, detach, report the cost.
//!
//! One thread does it all, at low priority: the rings need no wake-ups, and nothing on the packet's path waits for it.
//! The order at the end matters: functions off, rings emptied, losses and summary written, then detached (which can
//! take seconds on old kernels).

use crate::sink::Sink;
use crate::whose::Finder;
use crate::{filter, kernel, netlink, plan, radios, sys};
use kpat_model as model;
use kpat_model::LossCause;
use kpat_model::meta::{self, Json};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

mod astray;
mod captures;
mod command;
mod control;
mod cost;
mod disk;
mod drop_sites;
mod end;
mod estimate;
mod files;
mod flight;
mod limits;
mod numbers;
mod parts;
mod pause;
mod privileges;
mod rotate;
mod scope;
mod source;
mod sources;
mod surroundings;
mod trigger;
mod types;
mod unrun;
mod wall;

use captures::Captures;
use command::end_child;
use control::Control;
use cost::Costs;
use disk::Reserve;
pub use disk::{clear_part, may_write, part_name, write_anew};
use drop_sites::DropSites;
use files::Files;
use flight::Flight;
use pause::Pausing;
use rotate::Before;
pub use scope::check;
use scope::{describe, devices, watched};
use source::Source;
use sources::Sources;
use surroundings::Surroundings;
pub use trigger::{DumpWhen, Watch};
pub use types::{
    Application, Beside, BesideLoss, Error, Mode, Note, Options, Outcome, Programs, Rotate, Written,
};
use unrun::Unrun;
use wall::WallClock;

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

/// So long it is looked for who holds the listeners that are there.
const MOST_FOR_LISTENERS: Duration = Duration::from_millis(500);

/// A recording that is attached. Each part owns what one concern needs and is changed by its own functions; the recorder's say what is done
/// in which order.
pub struct Recorder {
    options: Options,
    /// What the log says of itself.
    meta: meta::Meta,
    sources: Sources,
    sink: Sink,
    files: Files,
    /// When the file that is being written was begun.
    before: Before,
    /// What is recorded stays in memory.
    flight: Option<Flight>,
    surroundings: Surroundings,
    captures: Captures,
    drop_sites: DropSites,
    control: Control,
    pausing: Pausing,
    costs: Costs,
    unrun: Unrun,
    wall: WallClock,
    /// What looks for what chosen processes have open.
    finder: Option<Finder>,
    /// When logging ended.
    ended: Option<meta::ClockAnchor>,
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
        limits::some_descriptors()?;
        let most_records = limits::most_records()?;
        let rotated = options.rotate.and_then(|r| r.bytes).unwrap_or(u64::MAX);
        most_records.filter(|most| *most < rotated).into_iter().for_each(|most| tell(Note::SizeLimit(most)));
        let mut reserve = Reserve::take_first(&options.output)?;
        if !matches!(options.mode, Mode::Disk) {
            reserve = None;
        }
        let compiled =
            filter::compile_sampled(&options.filter, options.sample.as_ref(), options.by_process())?;
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
        let mut sources = Sources::new(sources);
        let clock = Instant::now();
        let mut costs = Costs::begin(options.measure_cost, cpus);
        sources.attach(&mut |done, of| tell(Note::Attaching { done, of }))?;
        let announcements = plan::announcements(&mut sources.first_mut().decision);
        let took = clock.elapsed();
        costs.attached(took);
        let functions = sources.all().iter().map(Source::logged).sum();
        tell(Note::Attached { functions, seconds: took.as_nanos() as f64 / 1e9 });
        let mut sink = Sink::new(cpus, sources.all().len(), options.codec);
        if let Some(changes) = sources.take_changes() {
            sink.mappings.listen(changes);
        }
        if let Some(a) = &options.application {
            for s in sources.all() {
                sink.sockets = s.sockets(a, &options.filter)?.or(sink.sockets);
            }
            sink.identity = a.addresses.clone();
        }
        if options.wifi {
            let points: Vec<_> = sources.all().iter().flat_map(|s| s.radios.iter().copied()).collect();
            let (only, names) = (!options.netns.is_empty(), options.interfaces.clone());
            sink.radios = radios::Radios::new(&points, watched.clone(), only, names);
            sink.links = Some(Default::default());
        }
        if let Some(sockets) = &mut sink.sockets {
            sockets.listen(netlink::listeners(&watched, Instant::now() + MOST_FOR_LISTENERS));
        }
        let finder = sources.finder(&options.only).map_err(Error::Chosen)?;
        let control = Control::start(cpus, tell);
        privileges::lacking(tell);
        let meta = describe(&options, sources.all(), cpus);
        let files_take = privileges::of_files(&options.output);
        let flight = match options.mode {
            Mode::Disk => None,
            Mode::Memory { bytes, last } => Some(Flight::new(bytes, last, options.dump.as_ref())),
        };
        let monitor = netlink::Monitor::start(&watched, options.netns.is_empty(), announcements)?;
        let mut recorder = Recorder {
            wall: WallClock::new(meta.started),
            meta,
            sink,
            files: Files::new(&options, most_records, reserve, files_take),
            before: Before::default(),
            flight,
            surroundings: Surroundings::new(devices, monitor, clocks),
            captures: Captures::default(),
            drop_sites: DropSites::default(),
            control,
            pausing: Pausing::new(options.paused),
            costs,
            unrun: Unrun::default(),
            finder,
            ended: None,
            sources,
            options,
        };
        if let Some(when) = &recorder.options.dump {
            recorder.sink.watch = Some(trigger::watch(when, &recorder.sources.first().decision)?);
        }
        if recorder.flight.is_none() {
            if let Some(rotate) = recorder.options.rotate {
                recorder.files.go_on(rotate, tell)?;
                recorder.sink.tasks = Some(BTreeMap::new());
            }
            recorder.files.begin(&recorder.head())?;
        }
        Ok(recorder)
    }

    /// Runs until stopped by signal, request, time, or the end of the command.
    pub fn run(mut self, tell: &mut dyn FnMut(Note)) -> Result<Outcome, Error> {
        catch_signals();
        set_priority(CALM);
        let mut hurried = false;
        self.costs.start(&self.sources);
        self.surroundings.read_clocks(true, &mut self.sink);
        self.pausing.begin(&mut self.sources);
        if !self.pausing.paused {
            self.unrun.begin(&self.sources);
        }
        let mut child = command::spawn(&self.options.command)?;
        if let Err(e) = self.take_names() {
            child.as_mut().into_iter().for_each(end_child);
            return Err(e);
        }
        sys::give_back_memory();
        if let Some(path) = &self.options.ready_file {
            write_anew(path, &format!("{}\n", std::process::id()))?;
        }
        privileges::give_up(&self.options, self.files.takes());
        self.publish();
        tell(Note::Ready);
        let mut command_code = None;
        let mut housekeeping = Instant::now();
        let mut stop = false;
        let mut reason = String::from("stopped");
        while !stop {
            let fill = self.drain();
            self.costs.sample(&self.sources, false);
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
                if self.options.duration.is_some_and(|d| self.costs.elapsed() >= d) {
                    reason = "time is up".into();
                    stop = true;
                }
                stop |= STOP.load(Ordering::Relaxed);
                if DUMP.swap(false, Ordering::Relaxed) {
                    self.dump(tell)?;
                }
                if self.look_at_wall_clock(tell)? {
                    let summary = self.file_summary(false, "", None);
                    self.write_json(Json::Summary(Box::new(summary)), tell)?;
                    self.files.look_for(tell);
                }
            }
            // others may have the CPU, but not so long that records are lost
            let hurry = fill > 0.25 || (fill > 0.05 && hurried);
            if hurry != hurried {
                set_priority(if hurry { HURRIED } else { CALM });
                hurried = hurry;
            }
            self.sources.vary_clocks();
            if fill < 0.25 {
                let nap = Duration::from_millis(match fill {
                    ..0.005 => 40,
                    ..0.02 => 10,
                    _ => 2,
                });
                std::thread::sleep(nap.min(self.costs.patience()));
            }
        }
        if let Some(mut c) = child {
            end_child(&mut c);
        }
        self.finish(&reason, command_code, tell)
    }

    /// Captures of the wire that run with it.
    pub fn beside(&mut self, beside: Box<dyn Beside>) {
        self.captures.are(beside);
    }

    /// Everything runs: from now on the recording's files are there.
    fn take_names(&mut self) -> Result<(), Error> {
        self.files.take_name()?;
        self.captures.started()
    }

    /// Empties all rings once; returns how full the fullest was, 0 to 1.
    fn drain(&mut self) -> f64 {
        self.sources.drain(&mut self.sink, &mut |cpu, bytes| self.control.waited(cpu, bytes))
    }

    fn housekeeping(&mut self, tell: &mut dyn FnMut(Note), close: bool) -> Result<(), Error> {
        let now = sys::boot_now();
        let before = self.sink.lost.clone();
        self.sources.look(&mut self.sink, now, close);
        self.surroundings.read_clocks(close, &mut self.sink);
        self.surroundings.look(&mut self.sink, now);
        self.captures.look(&mut self.sink);
        self.drop_sites.name(&self.sources, &self.sink, close);
        self.costs.count_refused(&self.sources, &mut self.sink, close);
        self.unrun.tell(&self.sources, &mut self.sink, false);
        for (&(cause, cpu), &n) in &self.sink.lost {
            let more = n - before.get(&(cause, cpu)).copied().unwrap_or(0);
            if more > 0
                && let Some(cause) = LossCause::from_u8(cause)
            {
                tell(Note::Lost { cause, cpu, count: more });
            }
        }
        let fresh = self.surroundings.take_fresh();
        if let Some(flight) = &mut self.flight {
            flight.keep(&mut self.sink);
            return if close { Ok(()) } else { self.triggered(tell) };
        }
        if !fresh.is_empty() {
            self.write_json(Json::Devices(fresh), tell)?;
        }
        self.files.write_ready(&mut self.sink, tell)
    }

    fn write_json(&mut self, j: Json, tell: &mut dyn FnMut(Note)) -> Result<(), Error> {
        self.files.write_json(&self.sink.identity.json(j), tell)
    }
}

/// Something that the recorder did, as an event of the log.
fn note(sink: &mut Sink, text: &str) {
    sink.event(&model::Event {
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

/// Niceness of the drain: usually behind everybody, before everybody when a ring fills up.
const CALM: i32 = 10;
const HURRIED: i32 = -10;

fn set_priority(nice: i32) {
    // SAFETY: no memory is passed.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, nice) };
}
