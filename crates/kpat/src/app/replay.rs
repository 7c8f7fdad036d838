//! `kpat app replay`: an application trace over real sockets, and how true to its times that was. No privilege.

use crate::output::{Output, usage};
use crate::render::{Pairs, bytes, clean, count, duration, parse_duration, plural};
use crate::signals::Signals;
use anyhow::{Context, anyhow, bail};
use kpat_formats::app_trace::{self, Played, Trace};
use kpat_replay::{
    Door, Enough, NotIn, Pace, Part, Player, Refused, Report, Secret, Server, knock, listen, parts,
};
use serde_json::{Value, json};
use std::fs::File;
use std::io::BufReader;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

#[derive(clap::Args)]
pub struct Args {
    /// The application trace that `kpat app export` wrote; with --serve it may be left out: then all is read and nothing written
    #[arg(value_name = "FILE", required_unless_present = "serve")]
    file: Option<PathBuf>,
    /// Connect to this host and write what the end `a` wrote
    #[arg(long, value_name = "HOST:PORT", required_unless_present = "serve", conflicts_with = "serve")]
    to: Option<String>,
    /// Wait there for connections and datagrams, and write what the end `b` wrote; port 0: any; without an address only this machine can
    /// connect
    #[arg(long, value_name = "[ADDR:]PORT")]
    serve: Option<String>,
    /// Times as long: 0.5 is twice as fast
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0, value_parser = factor)]
    scale: f64,
    /// A write that came after a read waits for that many bytes, then thinks as long as it did; both ends play the trace
    #[arg(long, requires = "file")]
    closed: bool,
    /// Write what this end wrote
    #[arg(long, value_name = "a|b", requires = "file")]
    end: Option<EndArg>,
    /// Only this connection of the trace (may be repeated; alike at both ends)
    #[arg(long, value_name = "N", requires = "file")]
    connection: Vec<i64>,
    /// TCP sends each write at once, without waiting for more (TCP_NODELAY)
    #[arg(long)]
    nodelay: bool,
    /// With --serve: end after so many TCP connections
    #[arg(long, value_name = "N", requires = "serve")]
    connections: Option<u64>,
    /// With --serve: end after so long
    #[arg(long = "for", value_name = "TIME", value_parser = parse_duration, requires = "serve")]
    duration_ns: Option<i64>,
    /// The secret that both ends have; --serve makes the file if there is none [default: ~/.config/kpat/replay.secret]
    #[arg(long, value_name = "FILE", conflicts_with = "anyone")]
    secret: Option<PathBuf>,
    /// With --serve: ask nobody for a secret; with --to: the other end is no kpat, and none is shown
    #[arg(long)]
    anyone: bool,
}

impl Args {
    fn secret(&self) -> anyhow::Result<PathBuf> {
        if let Some(file) = &self.secret {
            return Ok(file.clone());
        }
        let of = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
        let folder = of("XDG_CONFIG_HOME").or_else(|| of("HOME").map(|home| home.join(".config")));
        let folder = folder.ok_or_else(|| usage("no HOME to keep a secret in; give --secret FILE"))?;
        Ok(folder.join("kpat/replay.secret"))
    }
}

/// Shows the secret, where there is one: an end that asks nobody needs none.
fn introduce(args: &Args, to: SocketAddr) -> anyhow::Result<()> {
    if args.anyone {
        return Ok(());
    }
    let file = args.secret()?;
    let secret = match Secret::read(&file) {
        Ok(secret) => Some(secret),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound && args.secret.is_none() => None,
        Err(e) => return Err(e).with_context(|| format!("cannot read {}", file.display())),
    };
    match knock(to, secret.as_ref()) {
        Ok(()) => Ok(()),
        Err(NotIn::Wrong) if secret.is_some() => {
            bail!(
                "{to} has another secret than {}; copy the file that it has, or give --secret FILE",
                file.display()
            )
        }
        Err(NotIn::Wrong) => {
            bail!(
                "{to} asks for a secret; copy its file to {} (mode 600), or give --secret FILE",
                file.display()
            )
        }
        Err(why @ NotIn::Silent) => {
            bail!("cannot connect to {to}: {why}; with another program at that end add --anyone")
        }
        Err(NotIn::Io(e)) => Err(e).with_context(|| format!("cannot connect to {to}")),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum EndArg {
    A,
    B,
}

fn factor(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(f) if f.is_finite() && f >= 0.0 => Ok(f),
        _ => Err("not a number from 0 on".into()),
    }
}

pub fn run(args: &Args, out: &Output) -> anyhow::Result<ExitCode> {
    // Before any thread is made.
    let signals = Signals::block()?;
    let trace = args.file.as_deref().map(read).transpose()?;
    if let Some(t) = &trace {
        warn_of(t, args, out)?;
    }
    let stop = Arc::new(AtomicBool::new(false));
    let ended = Arc::clone(&stop);
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        signals.wait();
        ended.store(true, Ordering::Relaxed);
    })?;
    let own_is_b = args.end.map_or(args.serve.is_some(), |e| e == EndArg::B);
    let parts = match &trace {
        Some(t) => parts(t, own_is_b, &args.connection).map_err(refused)?,
        None => Vec::new(),
    };
    let pace = Pace { scale: args.scale, closed: args.closed };
    match (&args.serve, &args.to) {
        (Some(place), _) => serve(args, place, pace, &parts, &stop, out),
        (None, Some(to)) => {
            let to = resolve(to)?;
            introduce(args, to)?;
            let player = Player { to, pace, nodelay: args.nodelay, stop: &stop };
            let began = Instant::now();
            let outcomes = player.play(&parts).with_context(|| format!("cannot connect to {to}"))?;
            let report = Report::of(&outcomes, &parts, began.elapsed());
            show(&report, out, None)?;
            Ok(status(&report, &stop, out))
        }
        (None, None) => bail!("neither --to nor --serve"),
    }
}

fn read(path: &Path) -> anyhow::Result<Trace> {
    let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    app_trace::read(BufReader::with_capacity(1 << 18, file)).with_context(|| path.display().to_string())
}

/// What the trace says of itself that bears on the replay.
fn warn_of(t: &Trace, args: &Args, out: &Output) -> anyhow::Result<()> {
    if t.sums.lost > 0 {
        let lost = count(t.sums.lost as u64);
        out.say(&format!("{lost} events are missing in this trace; what was written then is not played"));
    }
    let answers = |c: &Played| c.a.iter().chain(&c.b).any(|w| w.read_bytes >= 0);
    if args.closed && !t.connections.iter().any(answers) {
        return Err(usage("nothing in this trace was written after something was read; leave --closed out"));
    }
    Ok(())
}

fn refused(why: Refused) -> anyhow::Error {
    match why {
        Refused::NoSuchConnection { .. } => usage(why.to_string()),
        Refused::Protocol { .. } => anyhow!("{}: choose with --connection", clean(&why.to_string())),
        Refused::Empty => why.into(),
    }
}

fn resolve(to: &str) -> anyhow::Result<SocketAddr> {
    let found = to.to_socket_addrs().with_context(|| format!("{to} is no HOST:PORT that can be found"))?;
    found.into_iter().next().with_context(|| format!("{to} has no address"))
}

fn serve(
    args: &Args,
    place: &str,
    pace: Pace,
    parts: &[Part<'_>],
    stop: &AtomicBool,
    out: &Output,
) -> anyhow::Result<ExitCode> {
    let file = if args.anyone { None } else { Some(args.secret()?) };
    let secret = |file: &PathBuf| {
        Secret::read_or_make(file).with_context(|| format!("cannot read or make {}", file.display()))
    };
    let door = Door::new(file.as_ref().map(secret).transpose()?);
    let (tcp, udp) = listen(place)
        .with_context(|| format!("cannot listen on {place} (write PORT, 0.0.0.0:PORT or [::]:PORT)"))?;
    out.say(&format!("listening on {}", tcp.local_addr()?));
    if let Some(file) = &file {
        out.say(&format!("who connects has to have the secret of {}", file.display()));
    }
    let server = Server { door, tcp, udp, pace, nodelay: args.nodelay, stop };
    let after = args.duration_ns.map(|ns| Duration::from_nanos(ns.max(0) as u64));
    let began = Instant::now();
    let sunk = server.serve(parts, Enough { connections: args.connections, after })?;
    let took = began.elapsed();
    if sunk.strangers > 0 {
        let n = count(sunk.strangers);
        out.say(&format!(
            "connections and datagrams of others, who did not show the secret: {n}, closed or left"
        ));
    }
    let report = (!parts.is_empty()).then(|| Report::of(&sunk.outcomes, parts, took));
    let read = json!({
        "connections": sunk.connections, "bytes": sunk.bytes, "reads": sunk.reads,
        "udp_peers": sunk.udp_peers, "datagrams": sunk.datagrams, "datagram_bytes": sunk.datagram_bytes, "strangers": sunk.strangers,
    });
    if let Some(report) = report {
        show(&report, out, Some(read))?;
        return Ok(status(&report, stop, out));
    }
    if out.json {
        out.value(&json!({ "received": read }))?;
    } else {
        let mut facts = Pairs::new();
        let of = |n: u64, what: &str, sum: u64| format!("{}, {}", plural(n, what), bytes(sum));
        facts.add("TCP", of(sunk.connections, "connection", sunk.bytes));
        facts.add("UDP", of(sunk.datagrams, "datagram", sunk.datagram_bytes));
        out.lines(&facts.render(out.width))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn status(report: &Report, stop: &AtomicBool, out: &Output) -> ExitCode {
    for why in report.broke.iter().take(5) {
        out.say(why);
    }
    if report.broke.len() > 5 {
        out.say(&format!("and {} more connections ended early", report.broke.len() - 5));
    }
    if stop.load(Ordering::Relaxed) && report.writes < report.planned_writes {
        out.say(&format!("ended early: {} of {} writes", count(report.writes), count(report.planned_writes)));
    }
    if report.is_whole() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// For people and programs.
fn show(report: &Report, out: &Output, received: Option<Value>) -> anyhow::Result<()> {
    if out.json {
        out.value(&json!({
            "connections": report.connections, "connected": report.connected, "writes": report.writes, "bytes": report.bytes,
            "planned_writes": report.planned_writes, "planned_bytes": report.planned_bytes, "refused_datagrams": report.refused,
            "read_bytes": report.read_bytes, "wrote_for_ns": report.wrote.as_nanos() as u64, "took_ns": report.took.as_nanos() as u64,
            "bytes_s": report.rate(), "ended_early": report.broke, "received": received,
            "late_ns": {
                "median": report.late(0.5), "p90": report.late(0.9), "p99": report.late(0.99), "p999": report.late(0.999),
                "max": report.late_ns.last(),
            },
        }))?;
        return Ok(());
    }
    let mut facts = Pairs::new();
    facts.add("connections", format!("{} of {}", report.connected, report.connections));
    let of = |n: u64, all: u64| if n == all { count(n) } else { format!("{} of {}", count(n), count(all)) };
    facts.add("writes", of(report.writes, report.planned_writes));
    let sum = bytes(report.bytes);
    let planned = if report.bytes == report.planned_bytes {
        String::new()
    } else {
        format!(" of {}", bytes(report.planned_bytes))
    };
    facts.add("written", format!("{sum}{planned} in {}", duration(report.wrote.as_nanos() as i64)));
    facts.add("rate", report.rate().map(|r| format!("{}/s", bytes(r as u64))).unwrap_or_default());
    facts.add("read", bytes(report.read_bytes.max(0) as u64));
    if let (Some(p50), Some(p90), Some(p99), Some(max)) =
        (report.late(0.5), report.late(0.9), report.late(0.99), report.late_ns.last())
    {
        let [p50, p90, p99, max] = [p50, p90, p99, *max].map(duration);
        facts.add("lateness", format!("median {p50}, 90 % {p90}, 99 % {p99}, most {max}"));
    }
    if report.refused > 0 {
        facts.add("not taken", plural(report.refused, "datagram"));
    }
    out.lines(&facts.render(out.width))
}
