//! A recording: functions are chosen, probed, and what the probes copy is written, until somebody stops it.

use crate::clock::{Axis, Bounds, Rate, Reader, Reading};
use crate::error::{Error, Result};
use crate::filter::Filter;
use crate::track::{Drops, Tracked, Tracker};
use crate::types;
use crate::world::World;
use kpat_guest::mailbox::skb::{AtReturn, Function, How, PacketHit, PacketMoment};
use kpat_guest::probe::{Ended, Handle, Probes};
use kpat_guest::x86::Register;
use kpat_guest::{Guest, Symbols};
use kpat_klog::{Chunk, Codec, Encoder, Writer};
use kpat_model::meta::{self, Json, LossTotal, Meta, Summary};
use kpat_model::{BootNs, FuncId, GuestClock, Loss, LossCause, Record};
use kpat_probe::choose::{self, Chosen};
use kpat_probe::plan;
use kpat_probe::profile::Selection;
use kpat_probe::{kernel, reasons, sys};
use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// What is wanted.
#[derive(Clone, Debug, Default)]
pub struct Options {
    pub output: PathBuf,
    pub filter: String,
    pub selection: Selection,
    pub compress: bool,
    pub command: Vec<String>,
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub ended: Ended,
    pub records: u64,
    pub hits: u64,
    pub losses: Vec<LossTotal>,
    pub bytes: u64,
    /// How far the log's times may be off the host's clock, at worst.
    pub bound_ns: u32,
    /// Modules whose functions were probed and that the guest unloaded: none of their calls since is in the log.
    pub unloaded: Vec<String>,
    /// What had to stay in the guest.
    pub rest: Option<String>,
}

/// Functions that free packets for a reason: which register has the packet, or the first of a chain, and which the reason.
const DROPS: [(&str, Register, Register, Drops); 3] = [
    ("sk_skb_reason_drop", Register::Rsi, Register::Rdx, Drops::One),
    ("kfree_skb_reason", Register::Rdi, Register::Rsi, Drops::One),
    (CHAIN, Register::Rdi, Register::Rsi, Drops::Chain),
];
/// A fragment's or segment's end where the packet that it was joined to is dropped. Up to 6.2 it calls `kfree_skb_reason` for each.
const CHAIN: &str = "kfree_skb_list_reason";

/// Losses that are counted in the guest.
const COUNTED: [LossCause; 3] = [LossCause::RingFull, LossCause::ProbeMissed, LossCause::ListCut];
/// How long a chunk stays open, and how often what is not a hit is looked at.
const CHUNK_AGE: Duration = Duration::from_millis(500);
const LOOK: Duration = Duration::from_millis(100);
/// For so long the first hits wait, and so many at most.
const SETTLED_NS: u64 = 300_000_000;
const MOST_WAITING: usize = 20_000;
/// How often the host's clocks are compared.
const ANCHOR: Duration = Duration::from_secs(1);
/// Places of drops that are named.
const MOST_PLACES: usize = 4096;

/// What the handler of hits works on.
struct State {
    guest: Arc<Guest>,
    clock: Reader,
    /// `None`: the first hits wait until the clocks are known.
    axis: Option<Axis>,
    waiting: Vec<(PacketHit, u64)>,
    rate: Rate,
    guessed_hz: f64,
    worst_ns: u32,
    tracker: Tracker,
    log: Log,
    /// Reasons that are no drop.
    consumed: Option<u64>,
    places: BTreeSet<u64>,
    hits: u64,
}

/// The file, and what goes into it.
struct Log {
    writer: Writer<File>,
    encoders: Vec<Encoder>,
    records: u64,
    failed: Option<kpat_klog::Error>,
}

impl Log {
    fn put(&mut self, cpu: u16, record: &Record) {
        let cpu = usize::from(cpu).min(self.encoders.len() - 1);
        let encoder = &mut self.encoders[cpu];
        encoder.record(record);
        self.records += 1;
        if encoder.is_full() {
            let chunk = encoder.finish();
            self.write(chunk);
        }
    }

    fn write(&mut self, chunk: Option<Chunk>) {
        let Some(chunk) = chunk else { return };
        if let Err(e) = self.writer.chunk(chunk) {
            self.failed.get_or_insert(e);
        }
    }

    fn close_chunks(&mut self) {
        for n in 0..self.encoders.len() {
            let chunk = self.encoders[n].finish();
            self.write(chunk);
        }
    }

    fn json(&mut self, json: &Json) {
        if let Err(e) = self.writer.json(json) {
            self.failed.get_or_insert(e);
        }
    }
}

fn bounds(hit: &PacketHit, seen: u64) -> Bounds {
    // The host's word went through the guest: what is later than now was never written.
    let not_before = if hit.host_before <= seen { hit.host_before } else { 0 };
    Bounds { tsc: hit.tsc, not_before, not_after: seen }
}

pub struct Recording<'h> {
    probes: Probes<'h>,
    handles: Vec<Handle>,
    state: Rc<RefCell<State>>,
    left_out: usize,
    /// Ring full, no place for a return, lists that were cut: counted before.
    counted: [u64; COUNTED.len()],
    /// Modules that went, with the last record before that; and how far the log was when all others were there.
    unloaded: Vec<(String, BootNs)>,
    loaded_at: BootNs,
    closed: Instant,
    anchored: Instant,
    began: Instant,
}

impl State {
    /// The first hits wait, for their moments together say how the clocks stand.
    fn take(&mut self, hit: PacketHit, seen: u64) {
        self.hits += 1;
        if self.axis.is_some() {
            return self.hit(&hit, seen);
        }
        self.waiting.push((hit, seen));
        let first = self.waiting.first().map_or(seen, |(_, seen)| *seen);
        if seen - first > SETTLED_NS || self.waiting.len() >= MOST_WAITING {
            self.settle();
        }
    }

    fn settle(&mut self) {
        if self.axis.is_some() || self.waiting.is_empty() {
            return;
        }
        let hits = std::mem::take(&mut self.waiting);
        let first: Vec<Bounds> = hits.iter().map(|(h, seen)| bounds(h, *seen)).collect();
        self.axis = Some(Axis::new(&first, self.rate.measured().unwrap_or(self.guessed_hz)));
        hits.iter().for_each(|(hit, seen)| self.hit(hit, *seen));
    }

    fn read_clock(&mut self, reading: Option<Reading>) {
        if let Some(Reading { at, tsc, bound_ns }) = reading {
            self.worst_ns = self.worst_ns.max(bound_ns);
            let guest = self.clock.boot(&self.guest, tsc);
            self.log.put(0, &Record::GuestClock(GuestClock { at, guest, bound_ns }));
        }
    }

    /// Its drops are recorded where the freeing of the whole chain begins.
    fn of_chain(&self, place: u64) -> bool {
        let at = self.guest.symbols().ok().and_then(|symbols| symbols.at(place));
        at.is_some_and(|(symbol, _)| symbol.name == CHAIN)
    }

    fn hit(&mut self, hit: &PacketHit, seen: u64) {
        let Some(axis) = &mut self.axis else { return };
        let (at, reading) = axis.at(bounds(hit, seen));
        self.read_clock(reading);
        let tracked = self.tracker.functions.get(&hit.probe);
        let drops = tracked.is_some_and(|f| f.drops.is_some());
        if drops && matches!(hit.what, PacketMoment::Entry { .. }) {
            if Some(hit.value & 0xffff_ffff) == self.consumed || self.of_chain(hit.location) {
                return;
            }
            if self.places.len() < MOST_PLACES {
                self.places.insert(hit.location);
            }
        }
        let log = &mut self.log;
        self.tracker.hit(&self.guest, hit, at, &mut |cpu, record| log.put(cpu, &record));
    }
}

impl Recording<'static> {
    /// Puts the probes into the guest. Nothing of it is changed where that fails.
    pub fn start(guest: Arc<Guest>, options: &Options) -> Result<Recording<'static>> {
        options.selection.check()?;
        let filter = Filter::new(&options.filter)?;
        let symbols = guest.symbols()?;
        let (shape, bits) = types::shape(&guest, symbols)?;
        let btfs = types::all(&guest)?;
        let functions = types::functions(symbols);
        let found = choose::candidates(&btfs);
        let (chosen, logged) = choose::choose(&found, &options.selection, None, &functions);
        let reasons = reasons::drop_reasons(&btfs);
        let world = World::new(symbols)?;

        let rate = Rate::begin();
        let mut probes = Probes::of(guest.clone())?;
        let guessed_hz = probes.tsc_hz;
        let clock = Reader::new(&guest, symbols, probes.tsc_hz)?;
        probes.hold();
        let state: Rc<RefCell<Option<Rc<RefCell<State>>>>> = Rc::default();
        let to = state.clone();
        probes.take_packets(
            &shape,
            Box::new(move |hit, seen| {
                if let Some(state) = &*to.borrow() {
                    state.borrow_mut().take(hit, seen);
                }
            }),
        )?;
        let mut tracked = HashMap::new();
        let (handles, table, left_out) = register(&mut probes, &functions, chosen, &logged, &mut tracked)?;
        if table.is_empty() {
            return Err(Error::Unsupported(
                "none of the wanted functions is in the guest's kernel, or none can be probed".into(),
            ));
        }
        let meta = describe(&guest, symbols, options, table, &left_out, &reasons);
        let mut writer = Writer::create(&options.output)?;
        writer.json(&Json::Meta(Box::new(meta)))?;
        let codec = if options.compress { Codec::Zstd } else { Codec::None };
        let log = Log {
            writer,
            encoders: (0..guest.vcpus()).map(|n| Encoder::new(n as u16, codec)).collect(),
            records: 0,
            failed: None,
        };
        let consumed = reasons.iter().find(|(_, name)| name == "CONSUMED").map(|(n, _)| u64::from(*n));
        let shared = Rc::new(RefCell::new(State {
            guest: guest.clone(),
            clock,
            axis: None,
            waiting: Vec::new(),
            rate,
            guessed_hz,
            worst_ns: 0,
            tracker: Tracker::new(tracked, world, filter, bits),
            log,
            consumed,
            places: BTreeSet::new(),
            hits: 0,
        }));
        *state.borrow_mut() = Some(shared.clone());
        probes.commit()?;
        Ok(Recording {
            probes,
            handles,
            state: shared,
            left_out: left_out.len(),
            counted: [0; COUNTED.len()],
            unloaded: Vec::new(),
            loaded_at: BootNs(0),
            closed: Instant::now(),
            anchored: Instant::now(),
            began: Instant::now(),
        })
    }
}

impl Recording<'_> {
    /// Probed, and wanted but left out.
    pub fn functions(&self) -> (usize, usize) {
        (self.handles.len(), self.left_out)
    }

    /// What the guest keeps time by, and how far the log's times may be off its clock.
    pub fn clock(&self) -> (String, u64) {
        let state = self.state.borrow();
        (state.clock.source().to_owned(), state.clock.within_ns())
    }

    /// What ends [`Recording::run`].
    pub fn stopper(&self) -> Arc<AtomicBool> {
        self.probes.stopper()
    }

    /// Records until `until`, or until it is stopped.
    pub fn run(&mut self, until: Option<Instant>) -> Result<Ended> {
        loop {
            let look = Instant::now() + LOOK;
            let ended = self.probes.run(Some(until.map_or(look, |u| u.min(look))))?;
            self.look();
            if self.anchored.elapsed() > ANCHOR {
                self.anchored = Instant::now();
                self.state.borrow_mut().log.json(&Json::Anchor(sys::clock_anchor()));
                self.look_at_modules();
            }
            if let Some(e) = self.state.borrow_mut().log.failed.take() {
                return Err(e.into());
            }
            if ended != Ended::Time || until.is_some_and(|u| Instant::now() >= u) {
                return Ok(ended);
            }
        }
    }

    /// What is not a hit: losses, devices, chunks that have become old.
    fn look(&mut self) {
        let state = &mut *self.state.borrow_mut();
        let counts = self.handles.iter().map(|h| self.probes.counts(*h));
        let sums = counts
            .fold([0; 3], |[lost, missed, cut], c| [lost + c.lost, missed + c.no_return, cut + c.missed]);
        let to = state.tracker.last();
        for (n, cause) in COUNTED.into_iter().enumerate() {
            let count = sums[n].wrapping_sub(self.counted[n]);
            if count > 0 {
                state.log.put(
                    0,
                    &Record::Loss(Loss {
                        cause,
                        cpu: -1,
                        from: BootNs(to.0 - LOOK.as_nanos() as i64),
                        to,
                        count,
                    }),
                );
            }
        }
        self.counted = sums;
        let fresh = state.tracker.world.take_fresh();
        if !fresh.is_empty() {
            state.log.json(&Json::Devices(fresh));
        }
        // Hits that came alone wait no longer.
        if state.waiting.first().is_some_and(|(_, seen)| kpat_guest::probe::host_now() - seen > SETTLED_NS) {
            state.settle();
        }
        if self.closed.elapsed() > CHUNK_AGE {
            self.closed = Instant::now();
            state.log.close_chunks();
        }
    }

    /// Which of the modules with probes in them are there no more.
    fn look_at_modules(&mut self) {
        let now = self.state.borrow().tracker.last();
        for module in self.probes.unloaded() {
            if !self.unloaded.iter().any(|(known, _)| *known == module) {
                let from = if self.loaded_at == BootNs(0) { now } else { self.loaded_at };
                self.unloaded.push((module, from));
            }
        }
        self.loaded_at = now;
    }

    /// Takes everything out of the guest and closes the log.
    pub fn finish(mut self, ended: Ended) -> Result<Outcome> {
        // Open calls return, and what is in the ring is read.
        if matches!(ended, Ended::Stopped | Ended::Time) {
            self.handles.iter().for_each(|h| self.probes.disable_entries(*h));
            self.probes.run(Some(Instant::now() + Duration::from_millis(50)))?;
            self.look_at_modules();
        }
        self.look();
        let damaged = self.probes.damaged();
        let symbols = self.state.borrow().guest.clone();
        let rest = self.probes.remove().or_else(|e| if ended == Ended::Gone { Ok(None) } else { Err(e) });
        let state = &mut *self.state.borrow_mut();
        let guest = symbols;
        state.tracker.end();
        let to = state.tracker.last();
        let losses = [
            (LossCause::NoReturn, state.tracker.unreturned.saturating_sub(self.counted[1])),
            (LossCause::PacketTableFull, state.tracker.homeless),
            (LossCause::ReadFault, damaged),
        ];
        for (cause, count) in losses.into_iter().filter(|(_, n)| *n > 0) {
            state.log.put(0, &Record::Loss(Loss { cause, cpu: -1, from: to, to, count }));
        }
        for (_, from) in &self.unloaded {
            let cause = LossCause::ModuleUnloaded;
            state.log.put(0, &Record::Loss(Loss { cause, cpu: -1, from: *from, to, count: 1 }));
        }
        state.settle();
        let last = state.axis.as_mut().and_then(Axis::close);
        state.read_clock(last);
        state.log.json(&Json::Anchor(sys::clock_anchor()));
        state.log.close_chunks();
        let symbols = guest.symbols()?;
        let named = state.places.iter().filter_map(|at| {
            let (symbol, offset) = symbols.at(*at)?;
            Some(meta::Symbol { addr: *at, text: format!("{}+{offset:#x}", symbol.name) })
        });
        state.log.json(&Json::Symbols(named.collect()));
        let totals: Vec<LossTotal> = COUNTED
            .into_iter()
            .zip(self.counted)
            .chain(losses)
            .chain([(LossCause::ModuleUnloaded, self.unloaded.len() as u64)])
            .filter(|(_, n)| *n > 0)
            .map(|(cause, count)| LossTotal { cause: cause.code().name.into(), cpu: -1, count })
            .collect();
        let summary = Summary {
            complete: true,
            end_reason: match ended {
                Ended::Stopped => "stopped",
                Ended::Time => "time is up",
                Ended::Gone => "the guest is off",
                Ended::Reset => "the guest began anew",
                Ended::SetBack => "the guest was set back to a snapshot",
            }
            .into(),
            at: sys::clock_anchor(),
            records: state.log.records,
            bytes: state.log.writer.bytes_written(),
            cost: meta::Cost {
                probe_hits: state.hits,
                wall_ns: self.began.elapsed().as_nanos() as u64,
                cpus: guest.vcpus(),
                ..meta::Cost::default()
            },
            losses: totals.clone(),
            open_calls: Some(state.tracker.unreturned),
            drop_reasons: Vec::new(),
        };
        state.log.json(&Json::Summary(Box::new(summary)));
        state.log.writer.flush()?;
        if let Some(e) = state.log.failed.take() {
            return Err(e.into());
        }
        Ok(Outcome {
            ended,
            records: state.log.records,
            hits: state.hits,
            losses: totals,
            bytes: state.log.writer.bytes_written(),
            bound_ns: state.worst_ns,
            unloaded: self.unloaded.iter().map(|(module, _)| module.clone()).collect(),
            rest: rest?,
        })
    }
}

type Registered = (Vec<Handle>, Vec<meta::Function>, Vec<(String, String)>);

/// Probes what was chosen: handles, the log's table of functions, and what had to be left out.
fn register(
    probes: &mut Probes,
    symbols: &kernel::Symbols,
    chosen: Chosen,
    logged: &[bool],
    tracked: &mut HashMap<usize, Tracked>,
) -> Result<Registered> {
    let (mut handles, mut table, mut left_out) = (Vec::new(), Vec::new(), chosen.left_out);
    for (n, (c, logged)) in chosen.functions.iter().zip(logged).enumerate() {
        let address = symbols.address(&c.name);
        match probes.register_packets(address, &types::function(c, *logged)) {
            Err(kpat_guest::Error::Unsupported(why)) => left_out.push((c.name.clone(), why)),
            Err(e) => return Err(e.into()),
            Ok(handle) => {
                let func = plan::function_id(n);
                let hidden = !matches!(c.via, choose::Via::Argument(_));
                let one =
                    Tracked { func: FuncId(func), roles: c.roles, logged: *logged, hidden, drops: None };
                tracked.insert(handle.number() as usize, one);
                handles.push(handle);
                if *logged {
                    table.push(plan::function(func, c, address));
                }
            }
        }
    }
    for (name, argument, second, drops) in DROPS.into_iter().filter(|(name, ..)| symbols.count(name) == 1) {
        let how = How { chain: drops == Drops::Chain, at_return: AtReturn::Nothing, ..How::default() };
        match probes.register_packets(symbols.address(name), &Function { argument, second, how }) {
            Err(kpat_guest::Error::Unsupported(why)) => left_out.push((name.into(), why)),
            Err(e) => return Err(e.into()),
            Ok(handle) => {
                let one =
                    Tracked { func: FuncId(0), roles: 0, logged: false, hidden: false, drops: Some(drops) };
                tracked.insert(handle.number() as usize, one);
                handles.push(handle);
            }
        }
    }
    Ok((handles, table, left_out))
}

/// What the log says of the guest and of the recording.
fn describe(
    guest: &Guest,
    symbols: &Symbols,
    options: &Options,
    functions: Vec<meta::Function>,
    left_out: &[(String, String)],
    reasons: &[(u32, String)],
) -> Meta {
    let memory = guest.memory();
    let name = |member: &str| -> String {
        let at =
            symbols.address("init_uts_ns").zip(symbols.offset(&format!("uts_namespace.name.{member}")).ok());
        let text = at
            .and_then(|(at, offset)| memory.string_at(at.wrapping_add(offset), 64).ok())
            .unwrap_or_default();
        String::from_utf8_lossy(&text).into_owned()
    };
    let mut id = [0; 16];
    // Made when somebody asks for it first.
    let made =
        symbols.address("sysctl_bootid").is_some_and(|at| memory.read(at, &mut id).is_ok() && id != [0; 16]);
    let hex = |from: usize, to: usize| id[from..to].iter().map(|b| format!("{b:02x}")).collect::<String>();
    let started = sys::clock_anchor();
    Meta {
        writer: concat!("kpat ", env!("CARGO_PKG_VERSION")).into(),
        hostname: name("nodename"),
        kernel_release: symbols.release().into(),
        kernel_version: name("version"),
        arch: "x86_64".into(),
        endian: "little".into(),
        boot_id: kernel::read_line("/proc/sys/kernel/random/boot_id"),
        guest_boot_id: if made {
            [hex(0, 4), hex(4, 6), hex(6, 8), hex(8, 10), hex(10, 16)].join("-")
        } else {
            String::new()
        },
        cpus: guest.vcpus(),
        mechanism: "mailbox".into(),
        profile: options.selection.profile.clone(),
        detail: options.selection.detail.name().into(),
        filter: options.filter.clone(),
        command: options.command.clone(),
        functions,
        left_out: left_out
            .iter()
            .map(|(name, reason)| meta::LeftOut { name: name.clone(), reason: reason.clone() })
            .collect(),
        drop_reasons: reasons.to_vec(),
        started,
        part: meta::Part {
            recording: kernel::read_line("/proc/sys/kernel/random/uuid"),
            began: started,
            ..meta::Part::default()
        },
        ..Meta::default()
    }
}
