//! `kpat record`: what was typed becomes options; notes of the recorder become words on the terminal.

pub mod app;
mod dump;
mod print;
mod profile;
mod programs;
mod sniffers;

use crate::info::{cost_json, probe_words};
use crate::output::{Meter, Output, usage};
use crate::probes::Select;
use crate::render::{bytes, count, duration, parse_duration, plural};
use anyhow::Context;
use kpat_klog::Codec;
use kpat_model::Sample;
use kpat_probe::mechanism::Mechanism;
use kpat_probe::netlink::{self, NetnsRef};
use kpat_probe::profile::Selection;
use kpat_probe::recorder::{Mode, Note, Options, Outcome, Recorder, Rotate};
use print::Printer;
use serde_json::json;
use sniffers::Capture;
use std::collections::BTreeMap;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

#[derive(clap::Args)]
pub struct Args {
    /// The log to write
    #[arg(short, long, default_value = "kpat.kbl", value_name = "FILE.kbl")]
    output: PathBuf,
    /// Replace the log, and the captures beside it, if they exist
    #[arg(long)]
    force: bool,
    /// Record only packets that match (pcap-filter syntax); a packet that matched once is followed until it is freed
    #[arg(short, long, default_value = "", value_name = "FILTER", hide_default_value = true)]
    filter: String,
    /// Record one of N flows (addresses and ports) or one of N packets, each completely; every host chooses the same ones
    #[arg(long, value_name = "1/N[:packet]")]
    sample: Option<Sample>,
    #[command(flatten)]
    select: Select,
    #[command(flatten)]
    calls: Box<CallArgs>,
    /// fsession.multi, kprobe.session, kprobe.multi, fentry, kprobe or tracepoint [default: the cheapest that works here]
    #[arg(long, value_name = "NAME")]
    mechanism: Option<String>,
    /// Only packets first seen in this network namespace (a name of `ip netns`, `self`, a process in it as `1234` or `pid 1234 (nginx)`, or a file; may be repeated)
    #[arg(long, value_name = "NAME")]
    netns: Vec<String>,
    /// Only packets first seen on this interface (may be repeated)
    #[arg(short = 'i', long = "interface", value_name = "IF")]
    interfaces: Vec<String>,
    /// Also capture the wire at this interface (NAME or NETNS:NAME; may be repeated), as pcapng beside the log
    #[arg(long, value_name = "IF")]
    sniff: Vec<String>,
    /// Which frames these captures keep (pcap-filter syntax); `none`: all [default: the filter of -f, and fragments]
    #[arg(long, value_name = "FILTER", requires = "sniff")]
    sniff_filter: Option<String>,
    /// Bytes of each frame that these captures keep; 0: all
    #[arg(long, value_name = "N", requires = "sniff", default_value_t = 256)]
    snaplen: u32,
    /// Stop after this time (10s, 500ms, 2m; a number without unit is in seconds)
    #[arg(long = "for", value_name = "TIME", value_parser = seconds_or_duration)]
    duration_ns: Option<i64>,
    /// Create this file when everything is attached and logging
    #[arg(long, value_name = "FILE")]
    ready_file: Option<PathBuf>,
    /// Size of each CPU's ring: a power of two, at least 64K [default: 128M divided among the CPUs, 4M to 64M each]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    ring: Option<u64>,
    #[command(flatten)]
    profiled: Box<profile::ProfileArgs>,
    /// Maximum number of packets that are followed at the same time
    #[arg(long, default_value_t = 65536, value_name = "N", value_parser = clap::value_parser!(u32).range(64..=16_777_216))]
    packets: u32,
    /// Start the next file when this one reaches this size: NAME-TIME-0001.kbl, -0002 ... (FILE is NAME.kbl)
    #[arg(long, value_name = "SIZE", value_parser = parse_size, conflicts_with = "memory")]
    rotate_size: Option<u64>,
    /// Start the next file after this time
    #[arg(long, value_name = "TIME", value_parser = parse_duration, conflicts_with = "memory")]
    rotate_time: Option<i64>,
    /// Keep at most this many files of this recording; remove the oldest
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    rotate_keep: Option<u32>,
    /// Flight recorder: keep the newest records in this much memory; write them only on request (`kpat ctl dump`, SIGUSR1) and at the end
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    memory: Option<u64>,
    /// Write only the last part of this length in a dump of the flight recorder [default: all that is in memory]
    #[arg(long, value_name = "TIME", requires = "memory", value_parser = parse_duration)]
    last: Option<i64>,
    #[command(flatten)]
    dump: Box<dump::DumpArgs>,
    /// Start paused: attach, but log nothing until `kpat ctl resume`
    #[arg(long)]
    paused: bool,
    /// Compress the log (zstd): 20 % smaller, 50 % more CPU time to write it
    #[arg(long)]
    compress: bool,
    /// Print packets during the recording, one line each, some seconds after they were seen (like `kpat packets --follow`)
    #[arg(long, conflicts_with_all = ["json", "memory", "paused", "rotate_size", "rotate_time"])]
    print: bool,
    /// Serve state and losses for Prometheus at http://127.0.0.1:PORT/metrics; give ADDRESS:PORT for another address
    #[arg(long, value_name = "[ADDR:]PORT", value_parser = crate::metrics::address)]
    metrics: Option<std::net::SocketAddr>,
    /// With --profile programs: record these rows of a table of programs, too; may be repeated
    #[arg(long, value_name = "FILE")]
    programs: Vec<PathBuf>,
    /// With --profile programs: record so many calls of a function, or hits of another place, in a second at most, and count those left out; 0: all
    #[arg(long, value_name = "N", default_value_t = 20_000)]
    programs_limit: u32,
    /// Do not sample the kernel's statistics on our programs (the cost is then not known)
    #[arg(long)]
    no_cost: bool,
    #[command(flatten)]
    app: app::AppArgs,
    /// Store the arguments of CMD in the log; by default only the name of the program is stored
    #[arg(long, requires = "command", conflicts_with = "anonymise")]
    keep_command: bool,
    /// Record while this command runs, and exit with its exit status
    #[arg(last = true, value_name = "CMD")]
    command: Vec<String>,
}

/// Which calls beside those that profile and detail name, and what of them.
#[derive(clap::Args)]
struct CallArgs {
    /// Also record these functions, which have no packet (glob; may be repeated), where they are called within recorded calls of packets: allocation, locks,
    /// timers, polls, interrupts. Takes function probes
    #[arg(long, value_name = "GLOB")]
    also: Vec<String>,
    /// Also record, in the same way, all functions that take a structure in which a packet lies at most N structures deep: 1 to 3
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=3))]
    depth: Option<u8>,
    /// Of these functions record only when they are entered, not when they return (glob, `leaves`: those that do a short, fixed piece of work, or `all`;
    /// may be repeated): half the cost or less for each, and no durations
    #[arg(long, value_name = "GLOB")]
    entry_only: Vec<String>,
}

pub fn parse_size(text: &str) -> Result<u64, String> {
    let (digits, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
    let n: u64 = digits.parse().map_err(|_| format!("{text:?} is not a size; write 64K, 8M or 1G"))?;
    let factor = match unit.trim_end_matches(['i', 'B', 'b']) {
        "" => 1,
        "k" | "K" => 1 << 10,
        "m" | "M" => 1 << 20,
        "g" | "G" => 1 << 30,
        _ => return Err(format!("{unit:?} is not a unit of size; write 64K, 8M or 1G")),
    };
    n.checked_mul(factor).filter(|n| *n <= 1 << 36).ok_or_else(|| format!("{text} is too large"))
}

/// How long to record: as of other programs that run for a while, a bare number is seconds.
pub fn seconds_or_duration(text: &str) -> Result<i64, String> {
    let bare = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if bare { parse_duration(&format!("{text}s")) } else { parse_duration(text) }
}

/// Of each CPU, for each source.
fn default_ring(sources: usize) -> usize {
    let each = (128 << 20) / sources / kpat_probe::kernel::possible_cpus();
    each.next_power_of_two().clamp(4 << 20, 64 << 20)
}

fn ring_bytes(wanted: Option<u64>, sources: usize) -> anyhow::Result<usize> {
    match wanted {
        None => Ok(default_ring(sources)),
        Some(n) if n.is_power_of_two() && (1 << 16..=1 << 30).contains(&n) => Ok(n as usize),
        Some(n) => {
            Err(usage(format!("--ring {}: the size of a ring is a power of two from 64K to 1G", bytes(n))))
        }
    }
}

fn namespaces(names: &[String]) -> anyhow::Result<Vec<NetnsRef>> {
    names
        .iter()
        .map(|n| match n.as_str() {
            "self" => netlink::current_netns().context("this process's network namespace"),
            name => netlink::find(name).map_err(|e| match e {
                netlink::Error::NoSuchName { .. } if n.contains(',') => usage(format!(
                    "--netns has one namespace each time: {}",
                    n.split(',').map(|n| format!("--netns {n}")).collect::<Vec<_>>().join(" ")
                )),
                netlink::Error::NoSuchName { .. } => {
                    let named = netlink::named_netns().into_iter().chain(netlink::process_netns());
                    let known: Vec<String> = named.filter_map(|n| n.name).collect();
                    let list = if known.is_empty() {
                        "there are none".to_string()
                    } else {
                        format!("there are {}", known.join(", "))
                    };
                    usage(format!("there is no network namespace {name}; {list}"))
                }
                e => usage(format!("--netns {name}: {e}")),
            }),
        })
        .collect()
}

fn options(args: &Args) -> anyhow::Result<Options> {
    let mechanism = match &args.mechanism {
        None => None,
        Some(name) => Some(Mechanism::parse(name).ok_or_else(|| {
            let all: Vec<&str> = Mechanism::ALL.iter().map(|m| m.name()).collect();
            usage(format!("there is no mechanism {name}; use one of {}", all.join(", ")))
        })?),
    };
    let mode = match args.memory {
        None => Mode::Disk,
        Some(bytes) => {
            Mode::Memory { bytes: bytes as usize, last: args.last.map(|ns| Duration::from_nanos(ns as u64)) }
        }
    };
    let (selection, application) = (selection(args)?, args.app.application(&args.select)?);
    let (work, wifi, programs) = (args.select.work(), args.select.wifi(), programs::rows(args)?);
    let (only, resources) = args.profiled.profiled(&args.select, !args.command.is_empty())?;
    let sources = [selection.is_some(), application.is_some(), work, programs.is_some(), wifi];
    let sources = sources.iter().filter(|s| **s).count();
    Ok(Options {
        output: args.output.clone(),
        replace: args.force,
        rotate: rotate(args)?,
        mechanism,
        selection,
        filter: args.filter.clone(),
        sample: args.sample,
        netns: namespaces(&args.netns)?,
        interfaces: args.interfaces.clone(),
        ring_bytes: ring_bytes(args.ring, sources)?,
        packets: args.packets,
        codec: if args.compress { Codec::Zstd } else { Codec::None },
        mode,
        dump: args.dump.when()?,
        paused: args.paused,
        duration: args.duration_ns.map(|ns| Duration::from_nanos(ns.max(0) as u64)),
        command: args.command.clone(),
        ready_file: args.ready_file.clone(),
        measure_cost: !args.no_cost,
        own_packets: !args.sniff.is_empty(),
        words: words(args, std::env::args()),
        application,
        work,
        sample_rate: args.profiled.rate,
        only,
        resources,
        programs,
        wifi,
    })
}

/// What of packets; `None`: nothing.
fn selection(args: &Args) -> anyhow::Result<Option<Selection>> {
    let calls = &args.calls;
    let Some(selection) = args.select.selection() else {
        return match calls.also.is_empty() && calls.depth.is_none() && calls.entry_only.is_empty() {
            true => Ok(None),
            false => Err(usage(
                "--also, --depth and --entry-only are about calls of packets: they need a profile that records some",
            )),
        };
    };
    let (also, depth, entry_only) = (calls.also.clone(), calls.depth.unwrap_or(0), calls.entry_only.clone());
    Ok(Some(Selection { also, depth, entry_only, ..selection }))
}

/// The command line for the log. What a recorded command is given may be a password.
fn words(args: &Args, all: impl Iterator<Item = String>) -> Vec<String> {
    let mut words: Vec<String> = all.collect();
    // The last `--` before the command's own words is ours.
    let own = words.len().saturating_sub(args.command.len());
    if !args.keep_command && args.command.len() > 1 {
        words.truncate(own + 1);
        words.push("…".into());
    }
    words
}

fn rotate(args: &Args) -> anyhow::Result<Option<Rotate>> {
    let keep = args.rotate_keep.map(|n| n as usize);
    if args.rotate_size.is_none() && args.rotate_time.is_none() {
        return match keep {
            Some(_) => Err(usage("--rotate-keep needs --rotate-size or --rotate-time")),
            None => Ok(None),
        };
    }
    if let Some(n) = args.rotate_size.filter(|n| *n < 1 << 16) {
        return Err(usage(format!("--rotate-size {n}: at least 64K, because each file has a header")));
    }
    if args.rotate_time.is_some_and(|ns| ns < 1_000_000_000) {
        return Err(usage("--rotate-time: at least 1s"));
    }
    let every = args.rotate_time.map(|ns| Duration::from_nanos(ns.max(0) as u64));
    Ok(Some(Rotate { bytes: args.rotate_size, every, keep }))
}

pub fn run(args: &Args, out: &Output) -> anyhow::Result<ExitCode> {
    let options = options(args)?;
    check_output(&args.output)?;
    if args.sample.is_some() && options.application.is_some() {
        return Err(usage(
            "--sample is for packets; a recording of applications has everything that matches -f",
        ));
    }
    if let Some(selection) = &options.selection {
        selection.check().map_err(|e| usage(e.to_string()))?;
        if args.app.is_anonymous() {
            return Err(usage(
                "--anonymise does not go with packets (-p path), whose headers are recorded unchanged; it does with -p app, alone or beside profile, programs and wifi",
            ));
        }
    }
    if args.print && options.selection.is_none() {
        return Err(usage(
            "--print lists packets, and a recording of applications or of the profile alone has none; follow it with kpat view X.kbl",
        ));
    }
    if !args.sniff.is_empty() && args.app.is_anonymous() {
        return Err(usage("--sniff captures addresses unchanged; use either --sniff or --anonymise"));
    }
    sniffers::check(args)?;
    kpat_probe::recorder::check(&options).map_err(refused)?;
    out.say("preparing: reading the kernel's functions and tracepoints");
    let mut meter = Meter::default();
    let mut lost: BTreeMap<&'static str, u64> = BTreeMap::new();
    let mut logged = std::time::Instant::now() - Duration::from_secs(10);
    let mut printer: Option<anyhow::Result<Printer>> = None;
    let several = [
        options.selection.is_some(),
        options.application.is_some(),
        options.work,
        options.programs.is_some(),
        options.wifi,
    ];
    let several = several.iter().filter(|s| **s).count() > 1;
    let of = |source: &str| if several { format!("{source}: ") } else { String::new() };
    let mut tell = |note: Note| match note {
        Note::Decided {
            source,
            mechanism,
            by_fentry,
            detail,
            passed_over,
            functions,
            left_out,
            build,
            build_warning,
            unmet,
        } => {
            if source == "programs" {
                out.say(&format!(
                    "programs: {functions} places in them, {left_out} not found (kpat info --json lists them)"
                ));
            } else if source == "wifi" {
                out.say(&format!(
                    "wifi: {functions} tracepoints of radios, {left_out} not here (kpat info --json lists them)"
                ));
            } else if mechanism == Mechanism::Tracepoint {
                let why = if passed_over.is_empty() { "" } else { " (why: kpat doctor)" };
                out.say(&format!("{}mechanism tracepoint: {}{why}", of(source), mechanism.limits()));
            } else {
                let detail = detail.map_or(String::new(), |d| format!(", detail {}", d.name()));
                let often = match by_fentry {
                    0 => String::new(),
                    n => format!(", {n} of them by fentry"),
                };
                out.say(&format!(
                    "{}mechanism {}{detail}: {functions} functions{often}, {left_out} left out; BPF build {build}",
                    of(source),
                    mechanism.name()
                ));
            }
            if let Some(warning) = build_warning {
                out.say(&format!("warning: {warning}"));
            }
            for (what, why) in unmet {
                out.say(&format!("not recorded: {what}: {why}"));
            }
        }
        Note::Attaching { done, of } => out.progress(&mut meter, "attaching", done as u64, of as u64),
        Note::Attached { functions, seconds } => {
            out.clear_progress();
            let what = if functions > 0 { format!("{functions} ") } else { String::new() };
            out.say(&format!("{what}attached in {seconds:.2} s"));
        }
        Note::Ready => {
            out.say(if args.paused {
                "loaded, paused (kpat ctl resume)"
            } else {
                "recording; Ctrl-C ends it"
            });
            printer = args.print.then(|| Printer::start(&args.output, out));
        }
        Note::Lost { cause, cpu, count: n } => {
            *lost.entry(cause.name()).or_insert(0) += n;
            if logged.elapsed() > Duration::from_secs(2) {
                logged = std::time::Instant::now();
                let place = if cpu >= 0 { format!(" on CPU {cpu}") } else { String::new() };
                out.say(&format!("lost {} ({}){place}: {}", count(n), cause.name(), cause.advice()));
            }
        }
        Note::Dumped { path, records } => {
            out.say(&format!("dumped {} records to {}", count(records), path.display()))
        }
        Note::NothingToDump => out.say("nothing was recorded since the last dump: no file"),
        Note::Finished(w) => {
            out.say(&format!("{}: {} records, {}", w.path.display(), count(w.records), bytes(w.bytes)))
        }
        Note::Adopted(path) => {
            out.say(&format!("{}: left by a recorder that was killed, now finished", path.display()))
        }
        Note::Hindered(words) => out.say(&words),
        Note::Full(room) => {
            out.say(&format!("{room}: what was written is safe; new records are lost and counted"))
        }
        Note::SizeLimit(most) => out.say(&format!(
            "files of this process are limited (ulimit -f): records beyond {} of a log will be lost",
            bytes(most)
        )),
        Note::Detaching => {}
    };
    let listen = |at| TcpListener::bind(at).with_context(|| format!("cannot listen at {at}"));
    let listener = args.metrics.map(listen).transpose()?;
    let mut recorder = Recorder::start(options, &mut tell).map_err(refused)?;
    if let Some(listener) = listener {
        let at = crate::metrics::serve(listener, recorder.watch())?;
        out.say(&format!("metrics at http://{at}/metrics"));
    }
    let sniffers = sniffers::start(args)?;
    recorder.beside(Box::new(sniffers.clone()));
    let outcome = recorder.run(&mut tell)?;
    let captures = sniffers.ended()?;
    if let Some(printer) = printer {
        printer.and_then(Printer::end).unwrap_or_else(|e| out.say(&format!("{e:#}")));
    }
    report(args, &outcome, &captures, out)?;
    let any_lost = outcome.summary.losses.iter().any(|l| l.count > 0 && l.cause != "evicted");
    match outcome.command_code {
        Some(code) if code != 0 => Ok(ExitCode::from(code.clamp(0, 255) as u8)),
        _ => Ok(out.ended(any_lost)),
    }
}

/// What was asked for and cannot be is wrong usage.
fn refused(e: kpat_probe::recorder::Error) -> anyhow::Error {
    use kpat_probe::{plan, recorder::Error};
    match e {
        Error::Filter(_)
        | Error::NoSuchReason(_)
        | Error::NoInterface { .. }
        | Error::Chosen(_)
        | Error::Plan(plan::Error::Profile(_) | plan::Error::NothingToProbe { .. }) => usage(e.to_string()),
        e => e.into(),
    }
}

/// Refuses early what would fail after attaching.
fn check_output(path: &Path) -> anyhow::Result<()> {
    if path == Path::new("-") {
        return Err(usage("a log cannot be written to standard output; give -o a file name such as X.kbl"));
    }
    if path.is_dir() {
        return Err(usage(format!("{} is a folder; give -o a file name such as X.kbl", path.display())));
    }
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if !folder.is_dir() {
        return Err(usage(format!("there is no folder {}; create it first", folder.display())));
    }
    Ok(())
}

fn report(args: &Args, o: &Outcome, captures: &[Capture], out: &Output) -> anyhow::Result<()> {
    let (s, c) = (&o.summary, &o.summary.cost);
    let cpu_share = |ns: u64| 100.0 * ns as f64 / (c.wall_ns.max(1) as f64 * c.cpus.max(1) as f64);
    let records = s.written_records();
    let per_record = if records > 0 { s.bytes as f64 / records as f64 } else { 0.0 };
    if out.json {
        let mut cost = cost_json(c);
        cost["probe_cpu_percent"] = json!(cpu_share(c.probe_ns));
        cost["drain_cpu_percent"] = json!(cpu_share(c.drain_cpu_ns));
        return out.value(&json!({
            "outputs": o.outputs,
            "mechanism": o.mechanism.name(),
            "functions": o.functions,
            "by_fentry": o.by_fentry,
            "records": records,
            "bytes": s.bytes,
            "bytes_per_record": per_record,
            "end_reason": s.end_reason,
            "losses": s.losses,
            "left_out": o.left_out.len(),
            "not_recorded": o.unmet.iter().map(|(what, why)| json!({"name": what, "reason": why})).collect::<Vec<_>>(),
            "build": o.build,
            "build_passed_over": o.build_passed_over,
            "packets": o.packets,
            "refused_hits": o.refused_hits,
            "sockets_without_peer_left_out": o.peerless_sockets,
            "suppressed_dumps": o.suppressed,
            "cost": cost,
            "captures": captures.iter().map(|Capture { interface, path, stats: s }| json!({
                "interface": interface, "path": path, "frames": s.frames, "bytes": s.bytes, "kernel_drops": s.kernel_drops,
            })).collect::<Vec<_>>(),
        }));
    }
    // The files before were reported when they were finished.
    for w in o.outputs.iter().skip(if args.memory.is_none() { o.outputs.len().saturating_sub(1) } else { 0 })
    {
        let each = if w.records > 0 {
            format!(" ({:.1} bytes each)", w.bytes as f64 / w.records as f64)
        } else {
            String::new()
        };
        out.say(&format!(
            "{}: {} records, {}{each}; {}",
            w.path.display(),
            count(w.records),
            bytes(w.bytes),
            s.end_reason
        ));
    }
    for Capture { interface: spec, path, stats: s } in captures {
        let drops = if s.kernel_drops > 0 {
            format!(", {} dropped by the kernel", count(s.kernel_drops))
        } else {
            String::new()
        };
        out.say(&format!("{}: {} frames at {spec}{drops}", path.display(), count(s.frames)));
    }
    if c.bounds.is_some() {
        out.say(&format!(
            "cost: {}; reading the rings {:.2} %; detached in {}",
            probe_words(c).join(", "),
            cpu_share(c.drain_cpu_ns),
            duration(c.detach_ns as i64)
        ));
    }
    let mut causes: BTreeMap<&str, u64> = BTreeMap::new();
    for l in &s.losses {
        *causes.entry(&l.cause).or_insert(0) += l.count;
    }
    if o.suppressed > 0 {
        out.say(&format!(
            "{} triggers of a dump were suppressed (--dump-every, --dump-files, --dump-bytes)",
            count(o.suppressed)
        ));
    }
    if o.packets == 0 && args.select.selection().is_some() {
        out.say(&no_packet(o.refused_hits, causes.contains_key("no-device")));
    } else if causes.is_empty() {
        out.say("nothing was lost");
    }
    for (cause, n) in causes {
        let advice = kpat_model::LossCause::from_name(cause).map_or("", |c| c.advice());
        out.say(&format!("lost: {} by {cause} ({advice})", count(n)));
    }
    if o.peerless_sockets > 0 {
        out.say(&format!(
            "kpat app will lack {} of datagrams: not connected, so the filter is asked of their own addresses and ports only",
            plural(o.peerless_sockets, "socket")
        ));
    }
    if args.memory.is_none() {
        let next = args.output.with_extension("kpat");
        let captures: Vec<String> = captures.iter().map(|c| format!(" {}", c.path.display())).collect();
        let logs = match o.outputs.last() {
            Some(last) if last.path != args.output => all_parts(&last.path),
            _ => args.output.display().to_string(),
        };
        out.say(&format!("next: kpat integrate {logs}{} -o {}", captures.concat(), next.display()));
    }
    Ok(())
}

/// A recording without a packet: what the probes saw instead.
fn no_packet(refused_hits: u64, unreadable: bool) -> String {
    match (refused_hits, unreadable) {
        (_, true) => "no packet was recorded: probes saw packets whose device could not be read".into(),
        (0, false) => "no packet was recorded: no probe saw one".into(),
        (n, false) => format!(
            "no packet was recorded: no packet that was seen matches the filter, namespaces and interfaces ({} probe hits)",
            count(n)
        ),
    }
}

/// `NAME-TIME-*.kbl` of `NAME-TIME-0007.kbl`.
fn all_parts(last: &Path) -> String {
    let name = last.display().to_string();
    match name.rsplit_once('-') {
        Some((base, _)) => format!("{base}-*.{}", last.extension().unwrap_or_default().to_string_lossy()),
        None => name,
    }
}
