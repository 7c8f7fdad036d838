//! `kpat guest probe`: functions of a guest's kernel, called while it runs, with what they were given and what they returned.

use super::Which;
use super::spread::Spread;
use super::wall_clock::WallClock;
use crate::output::{Output, usage};
use crate::render::{Column, Line, Style, Table, count};
use crate::signals::Signals;
use kpat_guest::mailbox::host::Counts;
use kpat_guest::probe::spec::{Field, Shown, Spec};
use kpat_guest::probe::{Ended, Handle, Probes, Recorded, debugged, run_all};
use kpat_guest::symbols::Place;
use kpat_guest::{Guest, Life, Symbols, Target};
use kpat_text::{clean, duration, duration_aligned, time_of_day};
use serde_json::{Map, Value, json};
use std::cell::{Cell, RefCell};
use std::path::PathBuf;
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

#[derive(clap::Args)]
#[command(
    after_help = "A probe is PLACE [count] [VALUE...] [ret] [if VALUE COMPARE NUMBER [and ...]]. PLACE is a function, function+0x10, an address, or with --debug a source line: \
                        net/ipv4/ip_input.c:523 (the end of the path is enough), function@include/linux/skbuff.h:100 for a line that several functions have, \
                        with #2 behind it for the second of the places that it has in one; \
                        VALUE is arg1 to arg6, sys1 to sys6 (the arguments of a system call, at __x64_sys_*), a register, pid, tgid, task or @VARIABLE, followed by \
                        :STRUCT.MEMBER or :+OFFSET to follow a pointer and by a format: str, x, u8 to u64, s8 to s64. With ret an entry is written when the function returns, with how \
                        long it took. The guest is not stopped at a hit and does not wait; only putting probes in and taking them out stops it, for some milliseconds. \
                        With --by debugger, which is for guests that are no Linux, each hit stops it, for some milliseconds under emulation."
)]
pub struct Args {
    #[command(flatten)]
    which: Which,
    /// One guest more, with the same probes (may be repeated)
    #[arg(long, value_name = "GUEST")]
    also: Vec<String>,
    /// Probes, each in quotes
    #[arg(value_name = "PROBE", required = true)]
    probes: Vec<String>,
    /// Stop after this many entries
    #[arg(short = 'n', long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    number: Option<u64>,
    /// Stop after this many seconds
    #[arg(long = "for", value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..))]
    seconds: Option<u32>,
    /// Show histograms at the end, not each hit: of the values; of how long calls took, with ret or without a value
    #[arg(long)]
    hist: bool,
    /// How: mailbox (code in the guest, Linux only) or debugger (QEMU's debugger interface, any guest) [default: mailbox where Linux is found]
    #[arg(long, value_name = "WAY")]
    by: Option<Way>,
    /// Source lines from this file with debug information: the guest's vmlinux, or a module's (may be repeated)
    #[arg(long, value_name = "FILE")]
    debug: Vec<PathBuf>,
    /// With --by debugger: symbols from this ELF file or map
    #[arg(long, value_name = "FILE")]
    symbols: Option<PathBuf>,
    /// Calls of a function that can be open at the same time; of more the return is not seen
    #[arg(long, value_name = "COUNT", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=4096))]
    maxactive: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Way {
    Mailbox,
    Debugger,
}

/// Of one probe: its place and its values.
struct Probed {
    /// As it was written.
    place: String,
    /// Of a source line: the function and how far in it, and the line with its whole path.
    at: Option<String>,
    line: Option<String>,
    /// Where else that function has code of the line.
    further: Vec<String>,
    fields: Vec<Field>,
    /// The last value is how long the call took.
    timed: bool,
    /// Calls by the binary logarithm of their duration.
    durations: [u64; 64],
    spread: Vec<Spread>,
}

impl Probed {
    fn of(spec: &Spec, place: &Place, symbols: &Symbols, timed: bool) -> Rc<RefCell<Probed>> {
        let fields = spec.fields();
        let values = fields.len() - usize::from(spec.returns());
        Rc::new(RefCell::new(Probed {
            place: spec.place().to_owned(),
            at: place.line.is_some().then(|| symbols.name(place.address)),
            line: place.line.clone(),
            further: place.further.iter().map(|at| symbols.name(*at)).collect(),
            spread: vec![Spread::default(); values],
            fields,
            timed,
            durations: [0; 64],
        }))
    }

    /// As it was written, and what that is.
    fn name(&self) -> String {
        self.at.as_ref().map_or_else(|| self.place.clone(), |at| format!("{} ({at})", self.place))
    }

    /// That the line has several places, of which one is probed; `None` if nobody needs to be reminded of that.
    fn one_of_several(&self) -> Option<String> {
        const MOST: usize = 8;
        let unnumbered = !self.further.is_empty() && !self.place.contains('#');
        let more = self.further.len().saturating_sub(MOST);
        let more = if more == 0 { String::new() } else { format!(" and {more} more") };
        let places: Vec<_> =
            self.further.iter().take(MOST).enumerate().map(|(n, at)| format!("{at} (#{})", n + 2)).collect();
        unnumbered.then(|| {
            format!(
                "{} is the first of the line's {} places in that function; the others: {}{more}",
                self.name(),
                self.further.len() + 1,
                places.join(", ")
            )
        })
    }
}

/// What the entries of all probes have in common.
struct Printer<'a> {
    out: &'a Output,
    hist: bool,
    left: Rc<Cell<Option<u64>>>,
    tsc_hz: f64,
    clock: WallClock,
    /// Which process runs is known.
    processes: bool,
    /// Its name, where there are several.
    guest: Option<String>,
    stop: Arc<AtomicBool>,
    failed: Option<anyhow::Error>,
}

pub fn run(args: &Args, out: &Output) -> anyhow::Result<ExitCode> {
    let specs: Vec<Spec> = args
        .probes
        .iter()
        .map(|p| Spec::parse(p).map_err(|e| usage(e.to_string())))
        .collect::<Result<_, _>>()?;
    let signals = Signals::block()?;
    // Of what is no Linux nothing need be readable from here.
    let guest = Arc::new(Guest::connect(&args.which.target())?);
    let linux = guest.open_memory().and_then(|_| guest.symbols());
    let way = match (args.by, &linux) {
        (Some(way), _) => way,
        (None, _) if args.symbols.is_some() => Way::Debugger,
        (None, Err(e)) => {
            out.say(&format!(
                "no Linux was found in the guest ({e}): it is probed by QEMU's debugger interface, and stands at each hit"
            ));
            Way::Debugger
        }
        (None, Ok(_)) => Way::Mailbox,
    };
    match way {
        Way::Mailbox => {
            linux?;
            let timed = |s: Spec| if args.hist && s.is_bare() { s.with_duration() } else { s };
            let mut guests = vec![(guest.clone(), args.which.guest.clone())];
            for also in &args.also {
                guests.push((Arc::new(Guest::attach(&Target::parse(also))?), also.clone()));
            }
            within(guests, &specs.into_iter().map(timed).collect::<Vec<_>>(), signals, args, out)
        }
        Way::Debugger if !args.also.is_empty() => {
            Err(usage("several guests at once are probed by the mailbox only"))
        }
        Way::Debugger => outside(&guest, linux.ok(), &specs, signals, args, out),
    }
}

/// By QEMU's debugger interface.
fn outside(
    guest: &Guest,
    linux: Option<&Symbols>,
    specs: &[Spec],
    signals: Signals,
    args: &Args,
    out: &Output,
) -> anyhow::Result<ExitCode> {
    if args.hist && specs.iter().any(Spec::is_bare) {
        return Err(usage("durations are not measured by the debugger's interface: name a value for --hist"));
    }
    let given;
    let mut memory = None;
    let symbols = match &args.symbols {
        Some(path) => {
            given = Symbols::from_file(path, None)?;
            &given
        }
        None => match (linux, args.debug.first()) {
            (Some(symbols), _) => {
                memory = Some(guest.memory());
                symbols
            }
            (None, Some(path)) => {
                given = Symbols::from_file(path, None)?;
                &given
            }
            // Addresses need none.
            (None, None) => {
                given = Symbols::none();
                &given
            }
        },
    };
    for path in &args.debug {
        symbols.debug_file(path, memory)?;
    }
    let (specs, places) = placed(specs, symbols)?;
    let stop = Arc::new(AtomicBool::new(false));
    let shown = Rc::new(RefCell::new(Printer {
        out,
        hist: args.hist,
        left: Rc::new(Cell::new(args.number)),
        tsc_hz: 1e9,
        clock: WallClock::default(),
        processes: false,
        guest: None,
        stop: stop.clone(),
        failed: None,
    }));
    let all: Vec<_> = specs.iter().zip(&places).map(|(s, at)| Probed::of(s, at, symbols, false)).collect();
    all.iter().filter_map(|p| p.borrow().one_of_several()).for_each(|words| out.say(&words));
    let lines = specs.iter().zip(&places).zip(&all).map(|((spec, place), probed)| {
        let (shown, probed) = (shown.clone(), probed.clone());
        let to: kpat_guest::probe::Recorder =
            Box::new(move |e| shown.borrow_mut().entry(&mut probed.borrow_mut(), e));
        (spec, place.address, to)
    });
    let from_signals = stop.clone();
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        signals.wait();
        from_signals.store(true, Ordering::Relaxed);
    })?;
    let until = args.seconds.map(|s| Instant::now() + Duration::from_secs(s.into()));
    let ready = || out.say("the probes are in the guest");
    let (ended, counts) =
        debugged(guest, symbols, lines.collect(), args.maxactive as usize, &stop, ready, until)?;
    let mut rows = Vec::new();
    let lost = summary(None, &ended, &all, &counts, &mut rows, args, out)?;
    if out.json {
        out.json_text(&format!("{}\n", json!({"probes": rows})))?;
    }
    if let Some(words) = super::over("the guest", &ended) {
        out.say(&words);
    }
    if let Some(e) = shown.borrow_mut().failed.take() {
        return Err(e);
    }
    Ok(out.ended(lost))
}

/// A guest with the probes in it.
struct Probing<'a> {
    name: String,
    probes: Probes<'a>,
    handles: Vec<Handle>,
    all: Vec<Rc<RefCell<Probed>>>,
    shown: Rc<RefCell<Printer<'a>>>,
}

/// By code in the guests.
fn within(
    guests: Vec<(Arc<Guest>, String)>,
    specs: &[Spec],
    signals: Signals,
    args: &Args,
    out: &Output,
) -> anyhow::Result<ExitCode> {
    let several = guests.len() > 1;
    let left = Rc::new(Cell::new(args.number));
    let mut running = Vec::new();
    for (guest, name) in guests {
        let one = begin(guest, several.then_some(name), specs, &left, args, out)?;
        running.push(one);
    }
    let stops: Vec<_> = running.iter().map(|one| one.probes.stopper()).collect();
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        signals.wait();
        stops.iter().for_each(|s| s.store(true, Ordering::Relaxed));
    })?;
    let until = args.seconds.map(|s| Instant::now() + Duration::from_secs(s.into()));
    let mut lost = false;
    let mut rows = Vec::new();
    while !running.is_empty() {
        let mut all: Vec<&mut Probes> = running.iter_mut().map(|one| &mut one.probes).collect();
        let (n, ended) = run_all(&mut all, until)?;
        let over = match ended {
            Ended::Stopped | Ended::Time => std::mem::take(&mut running),
            _ => vec![running.remove(n)],
        };
        for one in over {
            lost |= finish(one, ended.clone(), &mut rows, args, out)?;
        }
    }
    if out.json {
        out.json_text(&format!("{}\n", json!({"probes": rows})))?;
    }
    Ok(out.ended(lost))
}

/// Where each probe goes in this guest, and what its types say of the probe's values.
fn placed(specs: &[Spec], symbols: &Symbols) -> kpat_guest::Result<(Vec<Spec>, Vec<Place>)> {
    let one = |s: &Spec| {
        let place = symbols.place(s.place())?;
        Ok((s.clone().typed(symbols, &place)?, place))
    };
    specs.iter().map(one).collect()
}

/// Puts the probes into one guest.
fn begin<'a>(
    guest: Arc<Guest>,
    several: Option<String>,
    specs: &[Spec],
    left: &Rc<Cell<Option<u64>>>,
    args: &Args,
    out: &'a Output,
) -> anyhow::Result<Probing<'a>> {
    for path in &args.debug {
        guest.debug_file(path)?;
    }
    let symbols = guest.symbols()?;
    let (specs, places) = placed(specs, symbols)?;
    let all: Vec<_> =
        specs.iter().zip(&places).map(|(s, at)| Probed::of(s, at, symbols, s.returns())).collect();
    all.iter().filter_map(|p| p.borrow().one_of_several()).for_each(|words| out.say(&words));
    let mut probes = Probes::of(guest.clone())?;
    let name = several.as_ref().map_or_else(|| "the guest".to_owned(), |n| format!("the guest {n}"));
    if probes.recovered.places > 0 {
        let recovered = &probes.recovered;
        out.say(&format!(
            "put back {} that a program which was killed had probed; {} went on without it",
            kpat_text::plural(recovered.places as u64, "place"),
            kpat_text::plural(recovered.missed, "hit")
        ));
    }
    let shown = Rc::new(RefCell::new(Printer {
        out,
        hist: args.hist,
        left: left.clone(),
        tsc_hz: probes.tsc_hz,
        clock: WallClock::default(),
        processes: true,
        guest: several,
        stop: probes.stopper(),
        failed: None,
    }));
    probes.hold();
    let mut handles = Vec::new();
    for ((spec, place), probed) in specs.iter().zip(&places).zip(&all) {
        let (shown, probed) = (shown.clone(), probed.clone());
        handles.push(spec.register(
            place,
            &mut probes,
            args.maxactive as usize,
            Box::new(move |e| shown.borrow_mut().entry(&mut probed.borrow_mut(), e)),
        )?);
    }
    probes.commit()?;
    out.say(&format!("the probes are in {name}"));
    let of = name.clone();
    probes.news = Some(Box::new(move |news| match news {
        Life::Stop => out.say(&format!("{of} was stopped")),
        Life::Resume => out.say(&format!("{of} goes on")),
        Life::Panicked => out.say(&format!("{of}'s kernel panicked")),
        Life::Migration { status } => out.say(&format!("{of} is being moved: {}", clean(status))),
        _ => {}
    }));
    Ok(Probing { name, probes, handles, all, shown })
}

/// Says what came of it and takes the probes out; whether anything was lost.
fn finish(
    one: Probing,
    ended: Ended,
    rows: &mut Vec<Value>,
    args: &Args,
    out: &Output,
) -> anyhow::Result<bool> {
    let Probing { name, probes, handles, all, shown } = one;
    let counts: Vec<Counts> = handles.iter().map(|h| probes.counts(*h)).collect();
    let guest = shown.borrow().guest.clone();
    let lost = summary(guest.as_deref(), &ended, &all, &counts, rows, args, out)?;
    if let Some(words) = super::over(&name, &ended) {
        out.say(&words);
    } else {
        for place in probes.changed() {
            out.say(&format!(
                "{name} has changed the code at {place} meanwhile, for a probe or tracer of its own: calls since may not be counted"
            ));
        }
        for module in probes.unloaded() {
            out.say(&format!(
                "{name} has unloaded the module {module} meanwhile, and its probes with it: calls since are not counted"
            ));
        }
    }
    let rest = probes.remove().or_else(|e| if matches!(ended, Ended::Gone) { Ok(None) } else { Err(e) })?;
    if let Some(rest) = rest {
        out.say(&rest);
    }
    if let Some(e) = shown.borrow_mut().failed.take() {
        return Err(e);
    }
    Ok(lost)
}

impl Printer<'_> {
    fn entry(&mut self, probed: &mut Probed, e: &Recorded) {
        let left = self.left.get();
        if self.failed.is_some() || left == Some(0) {
            return;
        }
        self.left.set(left.map(|n| n - 1));
        if left == Some(1) {
            self.stop.store(true, Ordering::Relaxed);
        }
        let ns = |ticks: u64| (ticks as f64 / self.tsc_hz * 1e9) as i64;
        let wall = |t: SystemTime| t.duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos() as i64);
        let wall_ns = self.clock.wall_ns(ns(e.tsc), wall(e.not_before), wall(SystemTime::now()));
        let values: Vec<(&Field, Shown)> =
            probed.fields.iter().zip(&e.values).map(|(f, v)| (f, f.show(v))).collect();
        let took = match values.last() {
            Some((_, Shown::Number(ticks))) if probed.timed => Some(ns(*ticks as u64)),
            _ => None,
        };
        if self.hist {
            for (spread, (_, value)) in probed.spread.iter_mut().zip(&values) {
                spread.add(value);
            }
            if let Some(took) = took {
                probed.durations[took.max(1).ilog2() as usize] += 1;
            }
            return;
        }
        let shown = &values[..probed.spread.len()];
        let comm = String::from_utf8_lossy(&e.comm).into_owned();
        let done = if self.out.json {
            let named: Map<String, Value> = shown.iter().map(|(f, s)| (f.name.clone(), to_json(s))).collect();
            let mut line = json!({"probe": probed.place, "at": probed.at, "line": probed.line, "ts_wall_ns": wall_ns, "vcpu": e.cpu, "pid": self.processes.then_some(e.tgid), "tid": self.processes.then_some(e.pid), "comm": self.processes.then_some(comm), "values": named, "dur_ns": took});
            if let Some(guest) = &self.guest {
                line["guest"] = guest.as_str().into();
            }
            self.out.json_text(&format!("{line}\n"))
        } else {
            let process =
                if self.processes { format!(" {:>6} {:<15}", e.tgid, clean(&comm)) } else { String::new() };
            let mut line = Line::new()
                .faint(time_of_day(wall_ns, false))
                .plain(self.guest.as_ref().map_or_else(String::new, |g| format!("  {}", clean(g))))
                .plain(format!("  {:>2}{process}  ", e.cpu))
                .put(probed.name(), Style::Strong);
            for (field, value) in shown {
                line.push(format!(" {}=", field.name), Style::Faint);
                line.push(to_text(value), Style::Plain);
            }
            if let Some(took) = took {
                line.push(format!("  {}", duration(took)), Style::Faint);
            }
            self.out.line(&line)
        };
        if let Err(e) = done.and_then(|()| self.out.flush()) {
            self.failed = Some(e);
            self.stop.store(true, Ordering::Relaxed);
        }
    }
}

fn to_json(shown: &Shown) -> Value {
    match shown {
        Shown::Number(n) => i64::try_from(*n).map_or_else(|_| Value::from(*n as u64), Value::from),
        Shown::Hex(n) => Value::from(format!("{n:#x}")),
        Shown::Text(t) => Value::from(t.clone()),
        Shown::Unread => Value::Null,
    }
}

fn to_text(shown: &Shown) -> String {
    match shown {
        Shown::Number(n) => n.to_string(),
        Shown::Hex(n) => format!("{n:#x}"),
        Shown::Text(t) => format!("\"{}\"", clean(t)),
        Shown::Unread => "?".into(),
    }
}

/// Counts and histograms; whether anything was lost.
fn summary(
    guest: Option<&str>,
    ended: &Ended,
    all: &[Rc<RefCell<Probed>>],
    counted: &[Counts],
    rows: &mut Vec<Value>,
    args: &Args,
    out: &Output,
) -> anyhow::Result<bool> {
    let mut any_lost = false;
    let mut table = Table::new(&[
        Column::left("probe", 0, 0),
        Column::right("hits", 0),
        Column::right("lost", 1),
        Column::right("returns not seen", 1),
    ]);
    let place = |p: &Probed| guest.map_or_else(|| p.name(), |g| format!("{g}: {}", p.name()));
    for (probed, counts) in all.iter().zip(counted) {
        let probed = probed.borrow();
        any_lost |= counts.lost + counts.no_return > 0;
        table.row(vec![
            (place(&probed), Style::Plain),
            (count(counts.hits), Style::Plain),
            (count(counts.lost), if counts.lost > 0 { Style::Warn } else { Style::Faint }),
            (count(counts.no_return), if counts.no_return > 0 { Style::Warn } else { Style::Faint }),
        ]);
        let buckets: Vec<Value> = probed
            .durations
            .iter()
            .enumerate()
            .filter(|(_, n)| **n > 0)
            .map(|(b, n)| json!({"from_ns": 1u64 << b, "calls": n}))
            .collect();
        rows.push(json!({"guest": guest, "probe": probed.place, "at": probed.at, "line": probed.line, "further_places": probed.further, "hits": counts.hits, "lost": counts.lost, "returns_not_seen": counts.no_return, "ended": ended.name(), "durations": if args.hist { Value::from(buckets) } else { Value::Null }, "values": if args.hist { spreads(&probed) } else { Value::Null }}));
        if args.hist && !out.json {
            for (field, spread) in probed.fields.iter().zip(&probed.spread) {
                out.lines(&spread.lines(&format!("{} {}", probed.place, field.name)))?;
            }
            histogram(&probed, out)?;
        }
    }
    if !out.json {
        out.lines(&table.render(out.width).0)?;
    }
    Ok(any_lost)
}

fn spreads(probed: &Probed) -> Value {
    let all = probed.fields.iter().zip(&probed.spread);
    all.map(|(f, s)| (f.name.clone(), s.value())).collect::<Map<_, _>>().into()
}

fn histogram(probed: &Probed, out: &Output) -> anyhow::Result<()> {
    let most = probed.durations.iter().max().copied().unwrap_or(0);
    if most == 0 {
        return Ok(());
    }
    out.line(&Line::new().put(&probed.place, Style::Strong))?;
    let (from, to) = (
        probed.durations.iter().position(|n| *n > 0).unwrap_or(0),
        probed.durations.iter().rposition(|n| *n > 0).unwrap_or(0),
    );
    for (bucket, n) in probed.durations.iter().enumerate().take(to + 1).skip(from) {
        let bar = "#".repeat((n * 40).div_ceil(most) as usize);
        out.line(
            &Line::new()
                .plain(format!("  {:>10} {:>10}  ", duration_aligned(1 << bucket), count(*n)))
                .put(bar, Style::Strong),
        )?;
    }
    Ok(())
}
