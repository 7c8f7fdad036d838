//! One source of a recording: its kernel side, loaded and attached, and its rings. What is common to all sources of a recording (files,
//! rotation, losses, control, pauses, cost) is the recorder's, which holds any number of them.

mod choice;
mod often;

use super::scope::interface_ids;
use super::types::Application;
use super::{Error, Note, Options};
use crate::attach::Attached;
use crate::cards::Clocks;
use crate::control::Reply;
use crate::mappings::SideBand;
use crate::mechanism::Mechanism;
use crate::object::{self, Loaded, MAX_FUNCS, Plan, Side};
use crate::plan::{self, Decision, Tracepoint};
use crate::profile::{Selection, glob};
use crate::ring::Rings;
use crate::roles::role;
use crate::sampling::{self, Clocks as SampleClocks};
use crate::sink::Sink;
use crate::whose::{self, Whose};
use crate::work::{self, Accounts};
use crate::{app, filter, kernel, programs, radios, sys};
use kpat_model::BootNs;
use kpat_model::meta;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::os::fd::OwnedFd;

struct Switches {
    mapping: sys::Mapping,
}

impl Switches {
    fn set(&self, index: usize, mode: u8) {
        assert!(index < MAX_FUNCS);
        // SAFETY: index lies inside the mapped array; the kernel reads single bytes, any value is valid.
        unsafe { self.mapping.as_ptr().add(index).write_volatile(mode) };
    }
}

const TRACK: u8 = 1;
const LOG: u8 = 2;

/// Entries of the kernel side's table of open calls (bpf/config.bpf.h).
const OPEN_CALLS: usize = 4096;

/// Tables of the kernel side whose entries are about a moment: packets and datagrams under way by their addresses, which are
/// used again, when tasks went off the CPU, what a CPU was interrupted by.
/// A function's address may be another's after its module was unloaded.
const OF_THE_MOMENT: [&str; 8] = [
    ".bss.arrivals",
    ".bss.firsts",
    ".bss.on_way",
    ".data.packets",
    ".data.tasks",
    ".data.ctx",
    ".data.cookies",
    "withins",
];

/// What is to be loaded: decided, and nothing done yet.
pub(super) struct Decided {
    side: Side,
    pub(super) decision: Decision,
    pub(super) tracepoints: Vec<Tracepoint>,
    constants: Vec<(&'static str, u64)>,
    application: Option<Application>,
    /// Places in programs.
    hooks: Vec<&'static programs::Hook>,
    /// Tracepoints of radios.
    radios: Vec<&'static radios::Point>,
}

/// Decides what each source that the options name is recorded with; packets come first.
///
/// *Errors*: nothing has changed.
pub(super) fn decide(options: &Options) -> Result<Vec<Decided>, Error> {
    let mut all = Vec::new();
    if let Some(selection) = &options.selection {
        all.push(packets(options.mechanism, selection)?);
    }
    if let Some(a) = &options.application {
        let (decision, tracepoints, chosen) = plan::decide_app()?;
        let mut constants = vec![
            ("datagrams_by_function", u64::from(chosen.datagrams_by_function)),
            ("reads_by_function", u64::from(chosen.reads_by_function)),
        ];
        constants.extend(&decision.point_constants);
        let application = Some(a.clone());
        all.push(Decided {
            side: Side::Application,
            decision,
            tracepoints,
            constants,
            application,
            hooks: Vec::new(),
            radios: Vec::new(),
        });
    }
    if options.work {
        let (decision, tracepoints, mut constants) = plan::decide_profile(options.resources)?;
        constants.push(("sample_period", sampling::period_ns(options.sample_rate)));
        let side = Side::Profile;
        let (hooks, radios) = (Vec::new(), Vec::new());
        all.push(Decided { side, decision, tracepoints, constants, application: None, hooks, radios });
    }
    if let Some(p) = &options.programs {
        let (decision, tracepoints, hooks) = plan::decide_programs(&p.built_in, &p.wanted)?;
        let (side, constants) = (Side::Programs, Vec::new());
        let radios = Vec::new();
        all.push(Decided { side, decision, tracepoints, constants, application: None, hooks, radios });
    }
    if options.wifi {
        let (decision, tracepoints, radios) = plan::decide_wifi()?;
        let (side, hooks) = (Side::Wifi, Vec::new());
        let constants = plan::wifi_constants(&tracepoints, &radios);
        all.push(Decided { side, decision, tracepoints, constants, application: None, hooks, radios });
    }
    Ok(all)
}

fn packets(mechanism: Option<Mechanism>, selection: &Selection) -> Result<Decided, Error> {
    let decision = plan::decide(mechanism, selection)?;
    let points = decision.mechanism == Mechanism::Tracepoint;
    let tracepoints = plan::tracepoints(decision.build, selection, points);
    if points && !tracepoints.iter().any(|t| t.func.is_some()) {
        let hint = selection.add.first().map_or(String::new(), |a| format!(" (no tracepoint matches {a})"));
        return Err(plan::Error::NothingToProbe { profile: selection.profile.clone(), hint }.into());
    }
    let air = decision.functions.iter().any(|c| !c.is_within() && c.roles & role::AIR != 0);
    let mut constants = plan::constants(selection);
    constants.push(("air_watch", u64::from(air)));
    constants.extend(&decision.point_constants);
    Ok(Decided {
        side: Side::Packets,
        decision,
        tracepoints,
        constants,
        application: None,
        hooks: Vec::new(),
        radios: Vec::new(),
    })
}

impl Decided {
    pub(super) fn is_packets(&self) -> bool {
        self.side == Side::Packets
    }

    /// What is reported of it before it is loaded.
    pub(super) fn note(&self) -> Note {
        let d = &self.decision;
        Note::Decided {
            source: self.side.name(),
            mechanism: d.mechanism,
            by_fentry: d.often.len(),
            detail: d.detail,
            passed_over: d.passed_over.clone(),
            functions: d.functions.len() + self.hooks.iter().filter(|h| h.first).count() + self.radios.len(),
            left_out: d.left_out.len(),
            build: d.build.name(),
            build_warning: d.build_warning.clone(),
            unmet: d.unmet.clone(),
        }
    }

    /// Loads the programs; nothing is attached yet.
    pub(super) fn load(
        self,
        options: &Options,
        devices: &[meta::Device],
        compiled: Option<&filter::Compiled>,
    ) -> Result<Source, Error> {
        let Decided { side, mut decision, mut tracepoints, mut constants, application, hooks, radios } = self;
        let by_process = matches!(side, Side::Packets | Side::Application) && options.by_process();
        if side == Side::Packets {
            constants.extend(filter::constants(compiled, options.sample.as_ref()));
            constants.push(("stamp_watch", u64::from(devices.iter().any(|d| d.phc.is_some()))));
            let other = by_process || !options.netns.is_empty() || !options.interfaces.is_empty();
            let alone = !other && compiled.is_some_and(|f| f.flow_decides);
            constants.push(("flow_alone", u64::from(alone)));
        }
        if matches!(side, Side::Packets | Side::Application) {
            constants.push(("by_process", u64::from(by_process)));
        }
        if !by_process {
            tracepoints.retain(|t| !t.program.starts_with(whose::PROGRAMS));
        }
        let cpus = kernel::possible_cpus();
        let mut object = Plan {
            build: decision.build,
            side,
            ring_bytes: match side {
                // names of tasks, nothing else
                Side::Profile if options.sample_rate == 0 => 1 << 16,
                // 2 kB for a sample whose two stacks are both new
                Side::Profile | Side::Programs | Side::Wifi => {
                    options.ring_bytes.next_power_of_two().clamp(1 << 16, 8 << 20)
                }
                _ => options.ring_bytes.next_power_of_two().max(1 << 16),
            },
            cpus,
            packet_buckets: (options.packets / 4).next_power_of_two().max(16),
            netns: options.netns.iter().map(|n| n.inum).collect(),
            ifindex: interface_ids(options, devices)?,
            filter: compiled.cloned(),
            guess_reuse: side == Side::Packets && decision.mechanism == Mechanism::Tracepoint,
            own_packets: options.own_packets,
            within: decision.functions.iter().any(|c| c.is_within()),
            by_process,
            clone_cookies: plan::clone_cookies(&decision),
            constants,
        };
        let mut loaded = plan::load(&object, &decision, &tracepoints);
        if loaded.is_err() && !decision.often.is_empty() {
            // a kernel without fentry, which nothing asked for by name
            decision.often.clear();
            object.clone_cookies.clear();
            loaded = plan::load(&object, &decision, &tracepoints);
        }
        for (better, next) in [(plan::MANY, plan::SLEEPS), (plan::SLEEPS, plan::DOES_NOT_SLEEP)] {
            let goes = loaded.as_ref().is_ok_and(|l| better != plan::MANY || programs::links_many(l));
            if side == Side::Programs && !goes {
                let those = tracepoints.iter_mut().filter(|t| t.program == better);
                those.for_each(|t| t.program = next.into());
                loaded = plan::load(&object, &decision, &tracepoints);
            }
        }
        let loaded = loaded?;
        if side == Side::Programs {
            let most = options.programs.as_ref().map_or(0, |p| p.most_a_second);
            programs::configure(&loaded, &hooks, most).map_err(Error::Map)?;
        }
        radios::configure(&loaded, &radios).map_err(Error::Map)?;
        let map = |name: &str| {
            loaded.map_fd(name).ok_or_else(|| Error::Map(std::io::Error::other(format!("no map {name}"))))
        };
        let rings = Rings::new(
            map("rings")?,
            map(".data.ids")?,
            map(".data.limit")?,
            object.ring_bytes,
            cpus,
            side.slot(),
        )
        .map_err(Error::Map)?;
        let switches =
            Switches { mapping: sys::Mapping::new(map(".data.modes")?, MAX_FUNCS).map_err(Error::Map)? };
        let points_off = match &application {
            Some(a) if a.states == app::States::Off => [plan::state_switch()].into(),
            _ => BTreeSet::new(),
        };
        Ok(Source {
            on: decision.logged.clone(),
            accounts: (side == Side::Profile)
                .then(|| Accounts::new(&loaded, cpus, &options.only, options.resources).map(RefCell::new))
                .transpose()
                .map_err(Error::Chosen)?,
            whose: by_process
                .then(|| Whose::new(&loaded, &options.only).map(RefCell::new))
                .transpose()
                .map_err(Error::Chosen)?,
            faults: Vec::new(),
            changes: None,
            clocks: SampleClocks::new(if side == Side::Profile { options.sample_rate } else { 0 }),
            settings: application
                .is_some()
                .then(|| app::Settings::new(&loaded))
                .transpose()
                .map_err(Error::Map)?,
            side,
            hooks,
            often: RefCell::new((BootNs(sys::boot_now().0), programs::Often::default())),
            radios,
            decision,
            tracepoints,
            points_off,
            loaded,
            attached: Attached::default(),
            rings,
            switches,
            points: 0,
        })
    }
}

/// Time stamps of cards, where packets are recorded.
pub(super) fn clocks(sources: &[Decided], devices: &[meta::Device], tell: &mut dyn FnMut(Note)) -> Clocks {
    if sources.iter().any(Decided::is_packets) {
        return Clocks::open(devices, &mut |why| tell(Note::Hindered(why)));
    }
    Clocks::default()
}

/// A source that is loaded.
pub(super) struct Source {
    side: Side,
    /// Places in programs, and of which of them how often that was too often.
    hooks: Vec<&'static programs::Hook>,
    often: RefCell<(BootNs, programs::Often)>,
    /// Of a recording of radios.
    pub(super) radios: Vec<&'static radios::Point>,
    pub(super) decision: Decision,
    pub(super) tracepoints: Vec<Tracepoint>,
    /// Of each function: does the user want its calls now?
    on: Vec<bool>,
    /// Tracepoints that were switched off.
    points_off: BTreeSet<u16>,
    /// Of applications.
    pub(super) settings: Option<app::Settings>,
    /// Of a profile.
    accounts: Option<RefCell<Accounts>>,
    /// Of packets and applications: whose are recorded, if not everybody's.
    whose: Option<RefCell<Whose>>,
    /// Of a profile: what runs at the end of page faults.
    faults: Vec<OwnedFd>,
    /// The same with samples.
    changes: Option<SideBand>,
    clocks: SampleClocks,
    loaded: Loaded,
    attached: Attached,
    pub(super) rings: Rings,
    switches: Switches,
    /// Programs with a fixed place, when they are on it.
    points: usize,
}

impl Source {
    /// Puts its programs on their places. They log nothing until they are switched on.
    pub(super) fn attach(&mut self, progress: &mut dyn FnMut(usize, usize)) -> Result<(), Error> {
        self.attached = plan::attach(&self.loaded, &mut self.decision, &self.tracepoints, progress)?;
        self.points = self.attached.points();
        if self.side == Side::Profile {
            match work::faults(&self.loaded) {
                Ok(held) => self.faults = held,
                Err(e) => self.decision.left_out.push(("ends of page faults".into(), e.to_string())),
            }
        }
        if self.clocks.takes_samples() {
            match SideBand::open(self.loaded.cpus) {
                Ok(changes) => self.changes = Some(changes),
                Err(e) => self
                    .decision
                    .left_out
                    .push(("programs of processes that are gone soon".into(), e.to_string())),
            }
        }
        self.clocks.start(&self.loaded).map_err(Error::Samples)
    }

    /// What tells the programs of processes, once.
    pub(super) fn take_changes(&mut self) -> Option<SideBand> {
        self.changes.take()
    }

    /// What applications are recorded with, and the sockets that are wanted.
    pub(super) fn sockets(&self, a: &Application, filter: &str) -> Result<Option<app::Sockets>, Error> {
        let Some(settings) = &self.settings else { return Ok(None) };
        settings.states(a.states);
        settings.empty(a.empty);
        app::Sockets::new(&self.loaded, self.decision.build, filter, a.addresses.clone())
            .map(Some)
            .map_err(Error::Map)
    }

    pub(super) fn is_packets(&self) -> bool {
        self.side == Side::Packets
    }

    /// Its program counts those of the network. Where only the context is kept, that of packets does not, whose switch is off.
    pub(super) fn counts_softirqs(&self) -> bool {
        let counts = |t: &Tracepoint| match self.side {
            Side::Packets => t.switch.is_some(),
            Side::Application => true,
            _ => false,
        };
        self.tracepoints.iter().any(|t| t.name == "softirq_entry" && counts(t))
    }

    /// About so many were made on a CPU.
    pub(super) fn records(&self, cpu: usize) -> u64 {
        self.rings.taken_slots(cpu) / self.side.slots_of_most()
    }

    /// What the log says of it.
    pub(super) fn describe(&self) -> meta::Source {
        meta::Source {
            name: self.side.name().into(),
            mechanism: match self.side {
                Side::Programs => "uprobe".into(),
                _ => self.decision.mechanism.name().into(),
            },
            build: self.decision.build.name().into(),
        }
    }

    /// Functions, or tracepoints where there are none, that are logged.
    pub(super) fn logged(&self) -> usize {
        if self.decision.functions.is_empty() {
            self.tracepoints.iter().filter(|t| t.func.is_some()).count()
        } else {
            self.decision.logged.iter().filter(|l| **l).count()
        }
    }

    /// Sets every switch to what is wanted now.
    pub(super) fn switch(&self, paused: bool) {
        if let Some(settings) = &self.settings {
            settings.pause(paused);
        }
        if let Some(accounts) = &self.accounts {
            accounts.borrow_mut().switch(&self.loaded, paused);
        }
        for (i, c) in self.decision.functions.iter().enumerate() {
            let track = if role::tracks(c.roles) { TRACK } else { 0 };
            let log = if self.on[i] { TRACK | LOG } else { 0 };
            self.switches.set(plan::function_id(i) as usize, if paused { 0 } else { track | log });
        }
        for t in &self.tracepoints {
            if let Some(s) = t.switch {
                let off = paused || t.func.is_some_and(|f| self.points_off.contains(&f));
                self.switches.set(s, if off { 0 } else { TRACK | LOG });
            }
        }
    }

    /// Takes what fits one of `globs` into the log, or leaves it out: how many fit, and how many of them changed.
    pub(super) fn turn(&mut self, globs: &[String], on: bool) -> (usize, usize) {
        let (mut fits, mut changed) = (0, 0);
        for t in &self.tracepoints {
            let name = plan::tracepoint_name(&t.name);
            let Some(func) = t.func.filter(|_| globs.iter().any(|g| glob(g, &name) || glob(g, &t.name)))
            else {
                continue;
            };
            fits += 1;
            changed +=
                usize::from(if on { self.points_off.remove(&func) } else { self.points_off.insert(func) });
        }
        for (i, c) in self.decision.functions.iter().enumerate() {
            if self.decision.logged[i] && globs.iter().any(|g| glob(g, &c.name)) {
                fits += 1;
                changed += usize::from(self.on[i] != on);
                self.on[i] = on;
            }
        }
        (fits, changed)
    }

    pub(super) fn turn_states(&mut self, on: bool) {
        let switch = plan::state_switch();
        if on {
            self.points_off.remove(&switch);
        } else {
            self.points_off.insert(switch);
        }
    }

    /// Functions (or tracepoints) that are logged now, and that could be.
    pub(super) fn counts(&self) -> (usize, usize) {
        let points = self.tracepoints.iter().filter(|t| t.func.is_some()).count();
        let on = self.on.iter().filter(|o| **o).count() + points - self.points_off.len();
        (on, self.decision.logged.iter().filter(|l| **l).count() + points)
    }

    pub(super) fn attached_points(&self) -> (usize, usize) {
        (self.attached.points(), self.points)
    }

    /// Empties one CPU's ring.
    pub(super) fn drain(&self, sink: &mut Sink, cpu: usize) {
        match self.side {
            Side::Packets => sink.drain_packets(&self.rings, cpu),
            Side::Application => sink.drain_applications(&self.rings, cpu),
            Side::Profile => sink.drain_profile(&self.rings, cpu, &self.clocks),
            Side::Programs => sink.drain_programs(&self.rings, cpu),
            Side::Wifi => sink.drain_wifi(&self.rings, cpu),
        }
    }

    /// The sums of a profile that are due; `all`: those that there are.
    pub(super) fn take_sums(&self, sink: &mut Sink, now: BootNs, all: bool) {
        let Some(accounts) = &self.accounts else { return };
        let mut accounts = accounts.borrow_mut();
        sink.label_all(now, |process| accounts.choice().has(&self.loaded, process));
        for (cpu, record) in accounts.take(&self.loaded, all) {
            sink.label_of(now, cpu, &record);
            sink.of_cpu(cpu, &record);
        }
        if all {
            // Names of those who came since the rings were emptied, and before the sums ended.
            (0..self.rings.cpus()).for_each(|cpu| self.drain(sink, cpu));
        }
        let count = accounts.lost_uses();
        if count > 0 {
            let cause = kpat_model::LossCause::UseTableFull;
            sink.loss(&kpat_model::Loss { cause, cpu: -1, from: now, to: now, count });
        }
    }

    /// A file begins, in which no stack may be missing.
    pub(super) fn new_file(&self) {
        if let Some(accounts) = &self.accounts {
            accounts.borrow_mut().log_stacks_again();
        }
    }

    /// Crossings that were lost at the end of what was recorded.
    pub(super) fn tell_gaps(&self, sink: &mut Sink, now: BootNs) {
        if self.side == Side::Application {
            sink.tell_gaps(&self.rings, now);
        }
    }

    /// Off its places, as far as it can be put on again in a moment. Returns functions on which programs stay.
    pub(super) fn take_off(&mut self) -> usize {
        self.clocks.stop();
        self.attached.take_off();
        self.attached.staying(self.decision.functions.len())
    }

    pub(super) fn vary_clock(&mut self) {
        self.clocks.vary();
    }

    /// On its places again, forgetting what was true before. Returns functions that are gone, and why.
    pub(super) fn put_on(&mut self) -> std::io::Result<Vec<(String, String)>> {
        OF_THE_MOMENT.iter().try_for_each(|map| object::clear(&self.loaded, map))?;
        // Who returned meanwhile met no program.
        if !self.decision.often.is_empty() {
            object::clear(&self.loaded, "open_calls")?;
        }
        self.rings.forget_polls();
        plan::put_on(&self.loaded, &self.tracepoints, &mut self.attached, self.points)?;
        self.clocks.start(&self.loaded)?;
        Ok(self.attached.put_back(&self.loaded))
    }

    pub(super) fn detach(&mut self) {
        self.clocks.stop();
        drop(std::mem::take(&mut self.attached));
        self.faults.clear();
    }

    /// Calls in the kernel side's table whose return did not come. Session mechanisms keep calls in the call itself:
    /// what is open there when recording ends is not known, and the log says so.
    pub(super) fn open_calls(&self) -> Option<u64> {
        const ENTRY: usize = 24;
        match self.decision.mechanism {
            _ if self.decision.functions.is_empty() => return Some(0),
            Mechanism::FsessionMulti | Mechanism::KprobeSession => return None,
            Mechanism::Tracepoint => return Some(0),
            _ => {}
        }
        let map = sys::Mapping::new(self.loaded.map_fd("open_calls")?, OPEN_CALLS * ENTRY).ok()?;
        let key = |i: usize| {
            // SAFETY: i is below the number of entries, the first word of each is its key; only counted.
            unsafe { map.as_ptr().add(i * ENTRY).cast::<u64>().read_volatile() }
        };
        Some((0..OPEN_CALLS).filter(|i| key(*i) != 0).count() as u64)
    }

    /// Its programs, each with its name, and whether it runs without a packet. Copies for functions have no name.
    pub(super) fn programs(&self) -> impl Iterator<Item = (&str, bool, std::os::fd::BorrowedFd<'_>)> {
        let names = plan::programs(&self.decision, &self.tracepoints).into_iter().map(|(n, _)| n);
        let own = names.filter(|n| !n.starts_with("fentry_") && !n.starts_with("fexit_")).filter_map(|n| {
            let of_no_packet = ["_sched_", "_softirq_", "_napi_poll"].iter().any(|part| n.contains(part));
            Some((n, of_no_packet, self.loaded.program(n)?))
        });
        own.chain(self.attached.clones().map(|fd| ("", false, fd)))
    }
}

/// What is reported when programs were detached; `staying`: functions on which they stay.
pub(super) fn taken_off(staying: usize) -> Reply {
    Reply::Done(match staying {
        0 => "paused: loaded, on no function and no tracepoint".into(),
        n => format!(
            "paused: no tracepoint attached; the programs of {n} functions stay attached and return immediately"
        ),
    })
}
