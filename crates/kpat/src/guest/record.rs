//! `kpat guest record`: a guest's packets into a log, with nothing installed in the guest.

use super::Which;
use crate::output::{Output, usage};
use crate::probes::level;
use crate::record::seconds_or_duration;
use crate::render::{count, plural};
use crate::signals::Signals;
use anyhow::bail;
use kpat_guestlog::{Options, Recording};
use kpat_probe::profile::{Detail, Selection};
use kpat_text::duration;
use serde_json::json;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

#[derive(clap::Args)]
#[command(
    after_help = "The log has packets, calls and lineage as `kpat record` has them of its own kernel, by this host's clock, and what the guest's showed. \
                        kpat integrate X.kbl [WIRE.pcapng] [HOST.kbl] makes it an integrated log, alone, with a capture (of the guest's tap, for example), or with the host's own log."
)]
pub struct Args {
    #[command(flatten)]
    which: Which,
    /// Where the log is written
    #[arg(short, long, value_name = "X.kbl")]
    output: PathBuf,
    /// Only packets that match (pcap-filter syntax), by the first 112 bytes of their headers
    #[arg(short = 'f', long, default_value = "", value_name = "FILTER")]
    filter: String,
    /// path (functions that move a packet), router, tcp, socket, driver:NAME, all, none
    #[arg(short, long, default_value = "path", value_name = "PROFILE", conflicts_with = "functions")]
    profile: String,
    /// How many functions of the profile: steps, spine, full [default: steps for the profile path, full for others]
    #[arg(long, value_name = "LEVEL", value_parser = level())]
    detail: Option<Detail>,
    /// Only these functions (glob; may be repeated)
    #[arg(long, value_name = "GLOB")]
    functions: Vec<String>,
    /// Functions to leave out (glob; may be repeated)
    #[arg(long, value_name = "GLOB")]
    remove: Vec<String>,
    /// Stop after this time (10s, 500ms, 2m; a number without unit is in seconds)
    #[arg(long = "for", value_name = "TIME", value_parser = seconds_or_duration)]
    duration_ns: Option<i64>,
    /// Compress the log (zstd)
    #[arg(long)]
    compress: bool,
    /// Replace an existing file of that name
    #[arg(long)]
    force: bool,
}

pub fn run(args: &Args, out: &Output) -> anyhow::Result<ExitCode> {
    if args.output.exists() && !args.force {
        bail!("{} exists; use --force to replace it, or -o for another name", args.output.display());
    }
    let profile = if args.functions.is_empty() { args.profile.clone() } else { "none".into() };
    let selection = Selection {
        detail: args.detail.unwrap_or_else(|| Detail::of_profile(&profile)),
        profile,
        add: args.functions.clone(),
        remove: args.remove.clone(),
        ..Selection::default()
    };
    selection.check().map_err(|e| usage(e.to_string()))?;
    let signals = Signals::block()?;
    let guest = Arc::new(args.which.attach()?);
    let options = Options {
        output: args.output.clone(),
        filter: args.filter.clone(),
        selection,
        compress: args.compress,
        command: vec!["kpat guest record".into()],
    };
    let mut recording = Recording::start(guest, &options)?;
    let stop = recording.stopper();
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        signals.wait();
        stop.store(true, Ordering::Relaxed);
    })?;
    let (functions, left_out) = recording.functions();
    let (source, within_ns) = recording.clock();
    let off = if within_ns == 0 {
        String::new()
    } else {
        format!(
            ", of which readings may be off by {}, all by the same",
            duration(i64::try_from(within_ns).unwrap_or(i64::MAX))
        )
    };
    let left = if left_out == 0 { String::new() } else { format!(" ({} left out)", count(left_out as u64)) };
    out.say(&format!(
        "recording: {}{left}; the guest's clock is {source}{off}",
        plural(functions as u64, "function")
    ));
    let until = args.duration_ns.map(|ns| Instant::now() + Duration::from_nanos(ns.max(0) as u64));
    let ended = recording.run(until)?;
    let done = recording.finish(ended)?;
    if out.json {
        out.value(&json!({
            "log": args.output.display().to_string(),
            "records": done.records,
            "hits": done.hits,
            "bytes": done.bytes,
            "functions": functions,
            "left_out": left_out,
            "clock": {"source": source, "within_ns": within_ns, "host_bound_ns": done.bound_ns},
            "ended": done.ended.name(),
            "unloaded_modules": done.unloaded,
            "losses": done.losses.iter().map(|l| json!({"cause": l.cause, "count": l.count})).collect::<Vec<_>>(),
        }))?;
    } else {
        let losses: Vec<String> =
            done.losses.iter().map(|l| format!("{} {}", count(l.count), l.cause)).collect();
        let lost =
            if losses.is_empty() { "nothing lost".into() } else { format!("lost: {}", losses.join(", ")) };
        let clock = format!("; times within {} of this host's clock", duration(done.bound_ns.into()));
        out.say(&format!("{}: {}, {lost}{clock}", args.output.display(), plural(done.records, "record")));
    }
    if let Some(words) = super::over("the guest", &done.ended) {
        out.say(&words);
    }
    for module in &done.unloaded {
        out.say(&format!(
            "the guest has unloaded the module {module} meanwhile, and its probes with it: calls of its functions since are not in the log"
        ));
    }
    if let Some(rest) = &done.rest {
        out.say(rest);
    }
    Ok(out.ended(!done.losses.is_empty()))
}
