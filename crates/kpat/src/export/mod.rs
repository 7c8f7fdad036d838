//! `kpat export`: an integrated log for other tools.

pub mod target;

use crate::open::{self, Integrated};
use crate::output::{Meter, Output, usage};
use crate::packets::Which;
use crate::render::{count, plural};
use anyhow::bail;
use clap::ValueEnum;
use kpat_formats::folded::Weight;
use kpat_formats::pcapng::{self, Sources, find_source};
use kpat_formats::{Counts, Error};
use kpat_query::trace::Chosen;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use target::Target;

#[derive(clap::Args)]
#[command(after_help = crate::packets::HELP)]
pub struct Args {
    /// The integrated log
    #[arg(value_name = "X.kpat")]
    log: PathBuf,
    #[command(flatten)]
    device: open::Device,
    /// The format
    #[arg(long = "to", short = 't', value_name = "FORMAT")]
    format: Format,
    /// The file to write [default: standard output]
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    #[command(flatten)]
    which: Which,
    /// Only this packet
    #[arg(long, value_name = "ID")]
    packet: Option<i64>,
    /// pcapng: path of a capture or a kernel behaviour log that is no longer in the folder of X.kpat (may be repeated)
    #[arg(long, value_name = "FILE")]
    capture: Vec<PathBuf>,
    /// pcapng: use only this capture (its name), if the log was made from several
    #[arg(long, value_name = "NAME")]
    only: Option<String>,
    /// pcapng: leave out the packets as the kernel held them; the .kbl file is then not needed
    #[arg(long)]
    wire_only: bool,
    /// pcapng: leave out the frames; captures are then not needed
    #[arg(long, conflicts_with_all = ["wire_only", "only"])]
    kernel_only: bool,
    /// pcapng: give the packets as the kernel held them the link type of their bytes. Wireshark then dissects them completely,
    /// but takes them for packets on a wire: its analysis of connections sees each packet several times
    #[arg(long, conflicts_with = "wire_only")]
    as_frames: bool,
    /// folded: the unit of the number after each stack
    #[arg(long, default_value = "self", value_name = "WHAT")]
    weight: WeightArg,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// The capture, each frame with what the kernel did with it; for Wireshark and tshark
    Pcapng,
    /// Calls, packets and events on tracks; for Perfetto's viewer
    Perfetto,
    /// Stacks of functions with times; for go tool pprof and compatible tools
    Pprof,
    /// Stacks of functions, one per line; for flame graphs
    Folded,
    /// Calls, one per line, tab-separated
    Tsv,
    /// Everything, one JSON object per line
    Json,
}

impl Format {
    fn is_text(self) -> bool {
        matches!(self, Format::Folded | Format::Tsv | Format::Json)
    }

    fn ending(self) -> &'static str {
        match self {
            Format::Pcapng => "pcapng",
            Format::Perfetto => "pftrace",
            Format::Pprof => "pb.gz",
            Format::Folded => "folded",
            Format::Tsv => "tsv",
            Format::Json => "jsonl",
        }
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum WeightArg {
    /// Nanoseconds of self time
    #[value(name = "self")]
    SelfTime,
    /// Calls
    Calls,
}

/// A capture that goes into a file, and the file.
struct Job {
    capture: Option<(PathBuf, i32)>,
    target: Option<PathBuf>,
}

pub fn run(args: &Args, out: &Output) -> anyhow::Result<ExitCode> {
    let store = open::integrated(&args.log, &args.device)?;
    let chosen = Chosen { filter: args.which.filter(&store)?, packet: args.packet };
    if let Some(id) = args.packet {
        store.packet(id)?;
    }
    let target = args.output.as_deref().filter(|p| *p != Path::new("-"));
    if target.is_none() && !args.format.is_text() && target::stdout_is_terminal() {
        return Err(usage(format!(
            "this format cannot be shown in a terminal; give a file: -o {}",
            args.log.with_extension(args.format.ending()).display()
        )));
    }
    if let Some(why) = store.no_packets() {
        out.say(&why);
    }
    let mut meter = Meter::default();
    let mut progress = |done, total| {
        out.progress(&mut meter, "export", done, total);
        true
    };
    if args.format != Format::Pcapng {
        let mut to = Target::open(target, &args.log)?;
        let w = to.writer();
        let counts = match args.format {
            Format::Perfetto => kpat_formats::perfetto::write(&store, &chosen, w, &mut progress),
            Format::Pprof => kpat_formats::pprof::write(&store, &chosen, w, &mut progress),
            Format::Tsv => kpat_formats::tsv::write(&store, &chosen, w, &mut progress),
            Format::Json | Format::Pcapng => kpat_formats::json::write(&store, &chosen, w, &mut progress),
            Format::Folded => {
                let weight = match args.weight {
                    WeightArg::SelfTime => Weight::SelfTime,
                    WeightArg::Calls => Weight::Calls,
                };
                kpat_formats::folded::write(&store, &chosen, weight, w, &mut progress)
            }
        };
        out.clear_progress();
        let counts = to.finish(counts)?;
        return reported(args, target, &counts, out);
    }
    let log = kernel_log(args, &store)?;
    for job in jobs(args, &store, target)? {
        let mut to = Target::open(job.target.as_deref(), &args.log)?;
        let sources = Sources {
            capture: job.capture,
            log: log.clone(),
            as_frames: args.as_frames,
            beside: to.folder().to_owned(),
        };
        let written = pcapng::write(&store, &chosen, &sources, to.writer(), &mut progress);
        out.clear_progress();
        let written = to.finish(written)?;
        written.warnings.iter().for_each(|w| out.say(w));
        reported(args, job.target.as_deref(), &written.counts, out)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The files of the kernel behaviour log, unless they are not wanted.
fn kernel_log(args: &Args, store: &Integrated) -> anyhow::Result<Vec<PathBuf>> {
    if args.wire_only {
        return Ok(Vec::new());
    }
    let else_do = "or leave out the kernel's packets with --wire-only";
    let files = store.manifest.sources.iter().filter(|s| s.role == "log");
    files.map(|source| located(find_source(source, &store.dir, &args.capture), else_do)).collect()
}

fn located(found: kpat_formats::Result<PathBuf>, else_do: &str) -> anyhow::Result<PathBuf> {
    found.map_err(|e| match e {
        Error::SourceMissing { .. } | Error::SourceChanged { .. } => {
            anyhow::anyhow!("{e}; give its path with --capture FILE, {else_do}")
        }
        e => e.into(),
    })
}

/// A file per capture: what they saw at one moment stands at different times by their clocks.
fn jobs(args: &Args, store: &Integrated, target: Option<&Path>) -> anyhow::Result<Vec<Job>> {
    let all: Vec<_> = store.manifest.sources.iter().filter(|s| s.role == "capture").collect();
    if all.is_empty() || args.kernel_only {
        if args.wire_only {
            bail!("{} has no capture, so --wire-only would write nothing", args.log.display());
        }
        return Ok(vec![Job { capture: None, target: target.map(Path::to_owned) }]);
    }
    let mut wanted = all.clone();
    if let Some(name) = &args.only {
        wanted.retain(|s| s.name == *name);
        if wanted.is_empty() {
            let names: Vec<&str> = all.iter().map(|s| s.name.as_str()).collect();
            return Err(usage(format!("no capture `{name}` in this log; there are: {}", names.join(", "))));
        }
    }
    if wanted.len() > 1 && target.is_none() {
        let names: Vec<&str> = wanted.iter().map(|s| s.name.as_str()).collect();
        return Err(usage(format!(
            "this log was made from {} captures, and each becomes a file: give -o FILE, or one of them: --only {}",
            names.len(),
            names.join(" or --only ")
        )));
    }
    let several = wanted.len() > 1;
    let mut jobs: Vec<Job> = Vec::new();
    for source in wanted {
        let path = located(
            find_source(source, &store.dir, &args.capture),
            "or leave out the frames with --kernel-only",
        )?;
        let target = target.map(|t| if several { with_stem(t, &source.name) } else { t.to_owned() });
        if jobs.iter().any(|j| j.target == target) {
            return Err(usage(format!(
                "two captures have the same name ({}); export one at a time: --only NAME -o FILE",
                source.name
            )));
        }
        if let Some(t) = &target
            && same_file(t, &path)
        {
            return Err(usage(format!("{} is the capture itself; choose another name with -o", t.display())));
        }
        jobs.push(Job { capture: Some((path, source.capture_id)), target });
    }
    Ok(jobs)
}

fn same_file(a: &Path, b: &Path) -> bool {
    matches!((std::fs::canonicalize(a), std::fs::canonicalize(b)), (Ok(a), Ok(b)) if a == b)
}

/// `out.pcapng` and `lan.pcap` make `out.lan.pcapng`; `a/lan.pcap` makes `out.a-lan.pcapng`.
fn with_stem(target: &Path, capture: &str) -> PathBuf {
    let stem = |p: &Path| p.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let capture = capture.replace('/', "-");
    let ending = target.extension().map_or("pcapng".into(), |e| e.to_string_lossy().into_owned());
    target.with_file_name(format!("{}.{}.{ending}", stem(target), stem(Path::new(&capture))))
}

fn reported(args: &Args, target: Option<&Path>, c: &Counts, out: &Output) -> anyhow::Result<ExitCode> {
    let Some(path) = target else { return Ok(ExitCode::SUCCESS) };
    if out.json {
        out.value(&json!({
            "file": path.display().to_string(),
            "calls": c.calls,
            "points": c.points,
            "self_ns": c.self_ns,
            "packets": c.packets,
            "frames": c.frames,
            "annotated_frames": c.annotated,
            "kernel_packets": c.sightings,
        }))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut words = Vec::new();
    if args.format == Format::Pcapng {
        words.push(format!("{}, {} of them annotated", plural(c.frames, "frame"), count(c.annotated)));
        if c.sightings > 0 {
            words.push(format!("{} as the kernel held them", plural(c.sightings, "packet")));
        }
    }
    if c.packets > 0 && args.format != Format::Pcapng {
        words.push(plural(c.packets, "packet"));
    }
    words.push(plural(c.calls, "call"));
    if c.points > 0 {
        words.push(plural(c.points, "point"));
    }
    out.say(&format!("{}: {}", path.display(), words.join(", ")));
    if c.self_ns == 0 && matches!(args.format, Format::Folded | Format::Pprof) {
        out.say("no call has a duration (tracepoints, or --entry-only): stacks are weighted by self time, so there is none in it");
    }
    Ok(ExitCode::SUCCESS)
}
