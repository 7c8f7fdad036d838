//! `kpat integrate`: a kernel behaviour log and captures become an integrated log.

use crate::info::{self, LossSum};
use crate::open;
use crate::output::{Meter, Output, usage};
use crate::render::{Line, Pairs, Style, count, percent, plural};
use crate::room;
use crate::signals::leave_nothing;
use anyhow::{Context, bail};
use kpat_capture::Secrets;
use kpat_integrate::devices::{integrate_devices, of_one_host, recordings};
use kpat_integrate::{LogFile, Options, Report, Stage};
use kpat_query::devices::Several;
use kpat_query::{Store, Trust};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(clap::Args)]
pub struct Args {
    /// The kernel behaviour log, as written by `kpat record`
    #[arg(value_name = "X.kbl")]
    log: PathBuf,
    /// Captures of the wire from any sniffer on any machine (pcap or pcapng, plain, gzip or zstd); further files of the same
    /// recording, which are joined to one log; logs of further devices, to follow packets from one kernel over the wire
    /// to the other (guests' logs and that of their host need no capture)
    #[arg(value_name = "WIRE.pcapng|Y.kbl")]
    captures: Vec<PathBuf>,
    /// The integrated log to write, a directory [default: X.kpat]
    #[arg(long, short, value_name = "X.kpat")]
    output: Option<PathBuf>,
    /// Make the lines of this log file events (ISO 8601, syslog, access logs, JSON lines, seconds since 1970, `journalctl -o export` or `-o json`), as precise as their stamps; may be
    /// repeated
    #[arg(long = "log", value_name = "FILE")]
    logs: Vec<PathBuf>,
    /// Zone of stamps that have none, as +01:00 [default: UTC]
    #[arg(long, value_name = "ZONE", requires = "logs", allow_hyphen_values = true, value_parser = zone)]
    log_zone: Option<i64>,
    /// Keys of wireless networks, to read encrypted frames of captures of the air: lines of SSID:passphrase, or of a PMK in 64 hexadecimal digits. Needs the 4-way
    /// handshake in the capture; CCMP (WPA2, and WPA3 by its PMK)
    #[arg(long, value_name = "FILE")]
    wifi_keys: Option<PathBuf>,
    /// Replace an existing integrated log of that name
    #[arg(long)]
    force: bool,
}

fn zone(text: &str) -> Result<i64, String> {
    kpat_integrate::parse_zone(text).ok_or_else(|| format!("{text:?} is no zone; write +01:00, -03:30 or Z"))
}

pub fn run(args: &Args, out: &Output) -> anyhow::Result<ExitCode> {
    let given = std::iter::once(&args.log).chain(&args.captures);
    if given.into_iter().any(|p| p == Path::new("-") && !p.exists()) {
        return Err(usage(
            "logs and captures cannot be read from standard input, because they are read more than once; save them first: cat > wire.pcapng",
        ));
    }
    if open::kind(&args.log)? == open::Kind::Integrated {
        bail!(
            "{} is a directory; integrate takes the .kbl file that `kpat record` wrote",
            args.log.display()
        );
    }
    let mut logs = vec![args.log.clone()];
    let mut captures = Vec::new();
    for path in &args.captures {
        if open::kind(path)? == open::Kind::Log {
            logs.push(path.clone());
            continue;
        }
        let real = |p: &PathBuf| p.canonicalize().ok();
        if captures.iter().any(|p| real(p).is_some() && real(p) == real(path)) {
            return Err(usage(format!("{} is given twice", path.display())));
        }
        captures.push(path.clone());
    }
    let mut recordings = recordings(&logs)?;
    if recordings.len() > 1 && !args.logs.is_empty() {
        return Err(usage("--log is for the recording of one device: stamps of its clock"));
    }
    if recordings.len() > 1 {
        return several(args, &logs, &captures, out);
    }
    let logs = recordings.pop().unwrap_or_default();
    let target = args.output.clone().unwrap_or_else(|| default_name(&args.log, logs.len()));
    let zone_ns = args.log_zone.unwrap_or(0);
    let secrets = secrets(args)?;
    let lines = args.logs.iter().map(|path| LogFile { path: path.clone(), zone_ns });
    let options = Options { overwrite: args.force, logs: lines.collect(), secrets, ..Options::default() };
    leave_nothing(kpat_integrate::half_made(&target))?;
    let mut meter = Meter::default();
    let done = kpat_integrate::integrate_parts(&logs, &captures, &target, &options, &mut |p| {
        out.progress(&mut meter, stage(p.stage), p.done, p.total);
    });
    out.clear_progress();
    let report = unless_taken(done, &target)?;
    let info = Store::open(&target)?.info()?;
    let losses = LossSum::of(&info.losses);
    let trust = info.trust();
    if out.json {
        out.value(&as_json(&target, &report, &losses, &trust))?;
    } else {
        let next = next_step(&logs[0], &target)?;
        out.lines(&text(&captures, &target, &next, &report, &losses, &trust, out.width))?;
    }
    for warning in &report.warnings {
        out.say(warning);
    }
    Ok(out.ended(report.lost > 0 || !losses.is_empty() || !report.complete))
}

fn secrets(args: &Args) -> anyhow::Result<Secrets> {
    let Some(path) = &args.wifi_keys else { return Ok(Secrets::default()) };
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    Secrets::parse(&text).map_err(|why| usage(format!("{}: {why}", path.display())))
}

/// `a-20260131T120000Z.kpat` for several files `a-20260131T120000Z-0001.kbl`.
fn default_name(log: &Path, files: usize) -> PathBuf {
    let stem = log.file_stem().unwrap_or_default().to_string_lossy();
    match stem.rsplit_once('-') {
        Some((name, number)) if files > 1 && number.bytes().all(|b| b.is_ascii_digit()) => {
            log.with_file_name(format!("{name}.kpat"))
        }
        _ => open::integrated_name(log),
    }
}

fn stage(stage: Stage) -> &'static str {
    match stage {
        Stage::Log => "log",
        Stage::Captures => "captures",
        Stage::Matching => "matching",
        Stage::Writing => "writing",
    }
}

fn unless_taken<T>(done: kpat_integrate::Result<T>, target: &Path) -> anyhow::Result<T> {
    match done {
        Err(kpat_integrate::Error::Exists { path }) => {
            bail!("{} exists; use --force to replace it, or -o for another name", path.display())
        }
        Err(e @ kpat_integrate::Error::SameLog { .. }) => Err(usage(e.to_string())),
        Err(e) => match room::within(&e) {
            Some(why) => {
                bail!(
                    "cannot write {}: {why}; the partial result was removed; choose another place with -o",
                    target.display()
                )
            }
            None => Err(e.into()),
        },
        done => Ok(done?),
    }
}

/// Several devices, and the captures between them.
fn several(args: &Args, logs: &[PathBuf], captures: &[PathBuf], out: &Output) -> anyhow::Result<ExitCode> {
    if captures.is_empty() && !of_applications(logs)? && !of_one_host(&metas(logs)?) {
        return Err(usage(
            "these are several recordings: those of several devices are joined by the frames between them, so give a \
             capture, too (those of applications, and of guests and the host that recorded them, need none); those of \
             one device are integrated each by itself",
        ));
    }
    let target = args.output.clone().unwrap_or_else(|| open::integrated_name(&args.log));
    let options = Options { overwrite: args.force, secrets: secrets(args)?, ..Options::default() };
    leave_nothing(kpat_integrate::half_made(&target))?;
    let mut meter = Meter::default();
    let done = integrate_devices(logs, captures, &target, &options, &mut |device, p| {
        out.progress(&mut meter, &format!("{device}, {}", stage(p.stage)), p.done, p.total);
    });
    out.clear_progress();
    let report = unless_taken(done, &target)?;
    for (device, of) in &report.devices {
        of.warnings.iter().for_each(|w| out.say(&format!("{}: {w}", device.name)));
    }
    crate::devices::info(&target, &Several::open(&target)?, out)
}

fn metas(logs: &[PathBuf]) -> anyhow::Result<Vec<kpat_model::meta::Meta>> {
    logs.iter().map(|path| Ok(kpat_klog::Log::open(path)?.meta().clone())).collect()
}

/// Those are joined by their bytes.
fn of_applications(logs: &[PathBuf]) -> anyhow::Result<bool> {
    for path in logs {
        let log = kpat_klog::Log::open(path)?;
        if !log.meta().profile.split(',').any(|p| p == "app") {
            return Ok(false);
        }
    }
    Ok(true)
}

/// What to look at first, by what was recorded.
fn next_step(log: &Path, target: &Path) -> anyhow::Result<String> {
    let log = kpat_klog::Log::open(log)?;
    let has = |name: &str| log.meta().sources.iter().any(|s| s.name == name);
    let others = [("profile", "profile"), ("wifi", "handover")];
    let command = match others.iter().find(|(source, _)| has(source)) {
        Some((_, command)) if !has("packets") && !has("applications") => command,
        _ => "packets",
    };
    Ok(format!("kpat {command} {}", target.display()))
}

fn text(
    captures: &[PathBuf],
    target: &Path,
    next: &str,
    r: &Report,
    losses: &[LossSum],
    trust: &Trust,
    width: usize,
) -> Vec<Line> {
    let mut pairs = Pairs::new();
    pairs.line("written", Line::of(target.display().to_string(), Style::Strong));
    pairs.add(
        "kernel",
        format!(
            "{}, {}, {}",
            plural(r.packets, "packet"),
            plural(r.calls, "call"),
            plural(r.records, "record")
        ),
    );
    if captures.is_empty() {
        pairs.add("wire", "no capture given");
    } else {
        let mut line = Line::new().plain(format!(
            "{} frames, {} matched ({})",
            count(r.frames),
            count(r.matched),
            percent(r.matched, r.frames)
        ));
        if r.ambiguous > 0 {
            line = line.put(format!(", {} of them ambiguous", count(r.ambiguous)), Style::Warn);
        }
        pairs.line("wire", line);
    }
    for (id, capture) in captures.iter().enumerate() {
        let name = capture.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        let (clocks, left) = info::shown(&r.clocks, id as i32, info::FEW_STRETCHES);
        for clock in clocks {
            for (i, line) in info::clock_lines(&name, clock, None).into_iter().enumerate() {
                pairs.line(if i == 0 { "clock" } else { "" }, line);
            }
        }
        if let Some(left) = left {
            pairs.line("", left);
        }
    }
    info::add_losses(&mut pairs, losses, r.lost, r.complete);
    for line in info::balance::headline(trust) {
        pairs.line("trust", line);
    }
    pairs.line("next", Line::new().plain(next));
    pairs.render(width)
}

fn as_json(target: &Path, r: &Report, losses: &[LossSum], trust: &Trust) -> serde_json::Value {
    json!({
        "integrated_log": target.display().to_string(),
        "records": r.records,
        "packets": r.packets,
        "calls": r.calls,
        "frames": r.frames,
        "matched_frames": r.matched,
        "ambiguous_frames": r.ambiguous,
        "clocks": r.clocks.iter().map(|c| info::clock_json(c, None)).collect::<Vec<_>>(),
        "lost": r.lost,
        "damaged_bytes": r.damaged_bytes,
        "recording_complete": r.complete,
        "trust": info::balance::trust_json(trust),
        "losses": losses.iter().map(LossSum::as_json).collect::<Vec<_>>(),
        "warnings": r.warnings,
    })
}
