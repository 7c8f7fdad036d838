//! `kpat view`: the service for the page, and a browser opened on it.

mod door;

use crate::open::{self, Kind};
use crate::output::{Output, usage};
use crate::signals::Signals;
use anyhow::{Context, bail};
use door::Door;
use kpat_server::{Growing, Service, Start};
use serde_json::json;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

#[derive(clap::Args)]
pub struct Args {
    /// An integrated log; for a running recording its .kbl file or the folder it is written to
    #[arg(value_name = "X.kpat|X.kbl")]
    log: PathBuf,
    /// For a running recording: captures that are being written at the same time
    #[arg(value_name = "WIRE.pcapng")]
    captures: Vec<PathBuf>,
    /// Integrated logs to compare with, each one run
    #[arg(long, value_name = "OTHER.kpat", num_args = 1..)]
    compare: Vec<PathBuf>,
    /// Further runs on the side of the log itself, for the comparison
    #[arg(long, value_name = "X2.kpat", num_args = 1.., requires = "compare")]
    runs: Vec<PathBuf>,
    /// Do not open a browser, only print the address
    #[arg(long)]
    no_open: bool,
    /// Port to listen on, at 127.0.0.1 [default: any free port]
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    port: u16,
}

pub fn run(args: &Args, out: &Output) -> anyhow::Result<ExitCode> {
    // Before any thread is made, so that all of them leave these signals to the one that waits.
    let signals = Signals::block()?;
    let recording = recording(&args.log, &args.captures)?;
    let mut growing = match &recording {
        Some((kbl, captures)) => Some(
            Growing::open(kbl, captures).with_context(|| format!("cannot integrate {}", kbl.display()))?,
        ),
        None => None,
    };
    if growing.is_none() && !args.captures.is_empty() {
        return Err(usage("captures can be given only with a recording; an integrated log has its own"));
    }
    let log = growing.as_ref().map_or_else(|| args.log.clone(), Growing::log);
    let service = Service::start(&Start {
        log,
        compare: args.compare.clone(),
        beside: args.runs.clone(),
        port: args.port,
    })?;
    if let Some((kbl, _)) = &recording {
        service.rename(&kbl.file_name().unwrap_or(kbl.as_os_str()).to_string_lossy());
    }
    let address = service.address();
    if out.json {
        out.value(&json!({ "address": address, "live": growing.is_some() }))?;
    } else {
        out.raw(format!("{address}\n").as_bytes())?;
    }
    out.flush()?;
    if !kpat_server::has_page() {
        out.say("this kpat was built without its page: `make ui`, then build it again");
    }
    let answering = Arc::clone(&service);
    std::thread::Builder::new().name("answering".into()).spawn(move || answering.run())?;
    // It stays until the end: a browser may take its time.
    let door = if args.no_open { None } else { Door::to(&address).ok() };
    if !args.no_open && !door.as_ref().is_some_and(Door::open) {
        out.say("no browser could be opened; open the address above");
    }
    if std::io::stderr().is_terminal() {
        out.say("Ctrl-C ends it");
    }
    let over = Arc::new(AtomicBool::new(false));
    let following = growing.take().map(|mut growing| {
        let (service, over) = (Arc::clone(&service), Arc::clone(&over));
        std::thread::spawn(move || {
            growing.follow(&service, &over);
            growing
        })
    });
    signals.wait();
    over.store(true, Ordering::Relaxed);
    // The folder of what was integrated goes with it.
    if let Some(thread) = following {
        let _ = thread.join();
    }
    Ok(ExitCode::SUCCESS)
}

/// A recording and its captures, if it is one that was given.
pub fn recording(log: &Path, captures: &[PathBuf]) -> anyhow::Result<Option<(PathBuf, Vec<PathBuf>)>> {
    let kbl = match open::kind(log)? {
        Kind::Log => log.to_owned(),
        Kind::Integrated if !log.join("manifest.json").exists() => match in_folder(log)? {
            Some(kbl) => kbl,
            None => return Ok(None),
        },
        Kind::Capture => bail!(
            "{} is a capture of the wire; integrate it first: kpat integrate X.kbl {}",
            log.display(),
            log.display()
        ),
        _ => return Ok(None),
    };
    let mut captures = captures.to_vec();
    if captures.is_empty() {
        // What `record --sniff` writes beside it.
        for extension in ["pcapng", "pcap"] {
            let beside = kbl.with_extension(extension);
            if beside.exists() {
                captures.push(beside);
            }
        }
    }
    Ok(Some((kbl, captures)))
}

/// The newest log of a folder.
fn in_folder(folder: &Path) -> anyhow::Result<Option<PathBuf>> {
    let entries = std::fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    let logs = entries.filter_map(|e| e.ok().map(|e| e.path()));
    let logs = logs.filter(|p| p.extension().is_some_and(|e| e == "kbl"));
    Ok(logs.max_by_key(|p| std::fs::metadata(p).and_then(|m| m.modified()).ok()))
}
