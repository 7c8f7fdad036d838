//! `kpat collect send`: rounds over a spool, and patience where the far end is away.

use super::logged;
use crate::output::{Output, usage};
use crate::record::parse_size;
use crate::render::{bytes, parse_duration, plural};
use anyhow::Context;
use kpat_collect::Error;
use kpat_collect::send::{Access, Event, Sender, look_after, round};
use kpat_collect::shelf::is_name;
use kpat_collect::spool::Spool;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

#[derive(clap::Args)]
pub struct Args {
    /// The folder to which `kpat record --rotate-size ...` writes
    #[arg(value_name = "SPOOL")]
    spool: PathBuf,
    /// A folder; http://HOST:PORT or https://HOST (kpat collect receive); ssh://[USER@]HOST[:PORT]/FOLDER (kpat collect accept);
    /// rsync:[USER@]HOST:FOLDER or rsync://HOST/MODULE; s3://BUCKET/PREFIX
    #[arg(value_name = "TARGET")]
    target: String,
    /// Name under which the files are collected [default: host name]
    #[arg(long, value_name = "NAME")]
    device: Option<String>,
    /// File with the secret that `kpat collect token` printed
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Limit of the folder's size: beyond it the oldest logs are deleted, and a notice with their names is sent
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    spool_limit: Option<u64>,
    /// Send what is there, then exit
    #[arg(long)]
    once: bool,
    /// Interval between checks for finished files
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "2s")]
    every: i64,
    /// The ssh command to use, with its options
    #[arg(long, value_name = "COMMAND")]
    ssh: Option<String>,
    /// File with the certificates to trust for https, instead of the system's
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// URL of the S3 storage, if it is not AWS
    #[arg(long, value_name = "URL")]
    endpoint: Option<String>,
    /// Rate limit in bytes per second (rsync and S3 only)
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    rate: Option<u64>,
}

/// How long a far end that was away is left alone, at most.
const LONGEST: Duration = Duration::from_secs(300);

pub fn run(args: &Args, out: &Output) -> anyhow::Result<ExitCode> {
    if args.spool.to_string_lossy().contains("://") && !args.spool.exists() {
        return Err(usage(format!(
            "{} is a target; the folder stands first: kpat collect send {} {}",
            args.spool.display(),
            args.target,
            args.spool.display()
        )));
    }
    let spool = Spool::open(&args.spool, args.spool_limit).map_err(logged)?;
    let mut sender = Sender::new(&args.target, &access(args)?).map_err(logged)?;
    let every = Duration::from_nanos(args.every.max(100_000_000) as u64);
    let mut wait = Duration::from_secs(1);
    let mut thrown = 0;
    // With --json and without --once each thing that happens is a line.
    let mut tell = |e: Event| {
        if let Event::Thrown(names) = &e {
            thrown += names.len();
        }
        if out.json && !args.once { line(&e, out) } else { say(&e, out) }
    };
    loop {
        match round(&spool, &mut sender, &mut tell) {
            Ok(done) if args.once => {
                if out.json {
                    out.value(&json!({
                        "sent": done.sent, "bytes": done.bytes, "refused": done.refused, "thrown_away": thrown,
                    }))?;
                } else {
                    out.say(&format!("{} sent, {}", plural(done.sent, "file"), bytes(done.bytes)));
                }
                let failed = !done.refused.is_empty();
                return Ok(if failed { ExitCode::FAILURE } else { out.ended(thrown > 0) });
            }
            Ok(_) => {
                wait = Duration::from_secs(1);
                std::thread::sleep(every);
            }
            Err(e @ (Error::Away(_) | Error::Denied(_))) if !args.once => {
                out.say(&format!("{e}; next attempt in {} s", wait.as_secs()));
                let until = Instant::now() + wait;
                while Instant::now() < until {
                    let left = until.saturating_duration_since(Instant::now());
                    std::thread::sleep(left.min(Duration::from_secs(5)));
                    look_after(&spool, &mut tell)?;
                }
                wait = (wait * 2).min(LONGEST);
            }
            Err(e) => return Err(logged(e)),
        }
    }
}

fn access(args: &Args) -> anyhow::Result<Access> {
    let device = match &args.device {
        Some(name) => name.clone(),
        None => {
            let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
            let host = host.trim().to_owned();
            if !is_name(&host) {
                return Err(usage(format!(
                    "the host name {host:?} cannot be used as the name of a device; give --device"
                )));
            }
            host
        }
    };
    let token = match &args.token_file {
        None => None,
        Some(path) => Some(secret(path)?),
    };
    Ok(Access {
        device,
        token,
        ssh: args.ssh.iter().flat_map(|s| s.split_whitespace().map(str::to_owned)).collect(),
        ca: args.ca.clone(),
        endpoint: args.endpoint.clone(),
        rate: args.rate,
    })
}

fn secret(path: &Path) -> anyhow::Result<String> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("cannot read the token in {}", path.display()))?;
    let token = text.trim().to_owned();
    if token.is_empty() || !token.bytes().all(|b| b.is_ascii_graphic()) {
        return Err(usage(format!("{} holds no token", path.display())));
    }
    Ok(token)
}

fn say(e: &Event, out: &Output) {
    match e {
        Event::Adopted(path) => {
            out.say(&format!("{}: left by a recorder that was killed, now finished", path.display()))
        }
        Event::Thrown(names) => out.say(&format!(
            "the spool is full: the oldest {} deleted ({}); the target is notified",
            plural(names.len() as u64, "log"),
            names.join(", ")
        )),
        Event::Sent { name, there: true, .. } => out.say(&format!("{name}: the target already had it")),
        Event::Sent { name, bytes: n, .. } => out.say(&format!("{name}: sent, {}", bytes(*n))),
        Event::Refused { name, why } => out.say(&format!("{name}: not sent: {why}")),
        Event::Odd(words) => out.say(words),
    }
}

fn line(e: &Event, out: &Output) {
    let value = match e {
        Event::Adopted(path) => json!({ "event": "adopted", "file": path }),
        Event::Thrown(names) => json!({ "event": "thrown_away", "files": names }),
        Event::Sent { name, bytes, there } => {
            json!({ "event": "sent", "file": name, "bytes": bytes, "was_there": there })
        }
        Event::Refused { name, why } => json!({ "event": "refused", "file": name, "why": why }),
        Event::Odd(words) => json!({ "event": "odd", "why": words }),
    };
    // Nobody reads it any more: the files go on.
    let _ = out.raw(format!("{value}\n").as_bytes()).and_then(|()| out.flush());
}
