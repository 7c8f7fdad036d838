//! `kpat guest record`: a guest's packets into a log, with nothing installed in the guest.

use super::Which;
use crate::output::{Output, usage};
use crate::probes::level;
use crate::record::seconds_or_duration;
use crate::render::{count, plural};
use crate::signals::{INTERRUPTED, Signals};
use anyhow::bail;
use kpat_guest::Guest;
use kpat_guestlog::{Options, Recording};
use kpat_probe::profile::{Detail, Selection};
use kpat_text::duration;
use serde_json::json;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
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
    /// Wait so long at most for a guest that has not started yet, or is starting: until its kernel runs processes
    #[arg(long, value_name = "TIME", value_parser = seconds_or_duration)]
    wait: Option<i64>,
    /// Create this file when the probes are in the guest
    #[arg(long, value_name = "FILE")]
    ready_file: Option<PathBuf>,
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
    let interrupt = Interrupt::begin()?;
    let options = Options {
        output: args.output.clone(),
        filter: args.filter.clone(),
        selection,
        compress: args.compress,
        command: vec!["kpat guest record".into()],
    };
    let began = Instant::now();
    let Some(mut recording) = start(args, &options, &interrupt, out)? else {
        out.say("interrupted while it waited: nothing was recorded");
        return Ok(ExitCode::from(INTERRUPTED));
    };
    let waited = began.elapsed();
    interrupt.stops(recording.stopper());
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
    if let Some(path) = &args.ready_file {
        kpat_probe::recorder::write_anew(path, &format!("{}\n", std::process::id()))?;
    }
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
            "waited_ns": args.wait.map(|_| u64::try_from(waited.as_nanos()).unwrap_or(u64::MAX)),
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

/// Between two attempts.
const AGAIN: Duration = Duration::from_millis(200);

/// With `--wait` again and again while the guest may be starting; `None`: interrupted meanwhile.
fn start(
    args: &Args,
    options: &Options,
    interrupt: &Interrupt,
    out: &Output,
) -> anyhow::Result<Option<Recording<'static>>> {
    let patience = args.wait.map(|ns| Duration::from_nanos(ns.max(0) as u64));
    let began = Instant::now();
    let mut said = false;
    loop {
        let guest = Guest::attach(&args.which.target()).map_err(kpat_guestlog::Error::from);
        let e = match guest.and_then(|guest| Recording::start(Arc::new(guest), options)) {
            Ok(recording) => return Ok(Some(recording)),
            Err(e) => e,
        };
        let passes = matches!(&e, kpat_guestlog::Error::Guest(e) if e.passes());
        match patience {
            None if passes => {
                bail!("{e}; if the guest is starting, --wait 60 waits for it");
            }
            Some(patience) if passes && began.elapsed() < patience => {}
            Some(_) if passes => {
                let so_long = duration(args.wait.unwrap_or(0));
                bail!("{e}; so it was for the {so_long} of --wait");
            }
            _ => return Err(e.into()),
        }
        if !std::mem::replace(&mut said, true) {
            out.say(&format!("waiting for the guest: {e}"));
        }
        std::thread::sleep(AGAIN);
        if interrupt.came() {
            return Ok(None);
        }
    }
}

/// What a signal stops: the waiting, and the recording once there is one.
#[derive(Clone, Default)]
struct Interrupt {
    came: Arc<AtomicBool>,
    stops: Arc<OnceLock<Arc<AtomicBool>>>,
}

impl Interrupt {
    fn begin() -> anyhow::Result<Interrupt> {
        let signals = Signals::block()?;
        let interrupt = Interrupt::default();
        let own = interrupt.clone();
        std::thread::Builder::new().name("signals".into()).spawn(move || {
            signals.wait();
            own.came.store(true, Ordering::SeqCst);
            own.stop();
        })?;
        Ok(interrupt)
    }

    fn came(&self) -> bool {
        self.came.load(Ordering::SeqCst)
    }

    fn stop(&self) {
        if let Some(stop) = self.stops.get() {
            stop.store(true, Ordering::SeqCst);
        }
    }

    /// From here on this, too, if the signal came before.
    fn stops(&self, recording: Arc<AtomicBool>) {
        let _ = self.stops.set(recording);
        if self.came() {
            self.stop();
        }
    }
}
