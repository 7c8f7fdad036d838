//! `kpat app replay`: an application trace over real sockets, and how true to its times that was. No privilege.

mod pace;
mod play;
mod serve;
mod wire;

use crate::output::{Output, usage};
use crate::render::{Pairs, bytes, count, duration, parse_duration, plural};
use crate::signals::Signals;
use anyhow::{Context, bail};
use kpat_formats::app_trace::{self, Played, Trace, Written};
use pace::{Pace, Went};
use play::{Outcome, Part, Player};
use serde_json::{Value, json};
use serve::{Enough, Server};
use std::fs::File;
use std::io::BufReader;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, ToSocketAddrs, UdpSocket};
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
        told(t, args, out)?;
    }
    let stop = Arc::new(AtomicBool::new(false));
    let ended = Arc::clone(&stop);
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        signals.wait();
        ended.store(true, Ordering::Relaxed);
    })?;
    pace::wake_on_time();
    let own_is_b = args.end.map_or(args.serve.is_some(), |e| e == EndArg::B);
    let parts = match &trace {
        Some(t) => parts(t, own_is_b, &args.connection)?,
        None => Vec::new(),
    };
    let longest = parts.iter().flat_map(|p| p.own).map(|w| w.size_bytes).max().unwrap_or(0);
    let zeros = vec![0; usize::try_from(longest).unwrap_or(0)];
    let pace = Pace { scale: args.scale, closed: args.closed };
    match (&args.serve, &args.to) {
        (Some(place), _) => serve(args, place, pace, &parts, &zeros, &stop, out),
        (None, Some(to)) => {
            let to = resolve(to)?;
            let player = Player { to, pace, nodelay: args.nodelay, stop: &stop, zeros: &zeros };
            let began = Instant::now();
            let outcomes = player.play(&parts).with_context(|| format!("cannot connect to {to}"))?;
            let report = Report::of(&outcomes, &parts, began.elapsed());
            report.show(out, None)?;
            Ok(report.status(&stop, out))
        }
        (None, None) => bail!("neither --to nor --serve"),
    }
}

fn read(path: &Path) -> anyhow::Result<Trace> {
    let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    app_trace::read(BufReader::with_capacity(1 << 18, file)).with_context(|| path.display().to_string())
}

/// What the trace says of itself that bears on the replay.
fn told(t: &Trace, args: &Args, out: &Output) -> anyhow::Result<()> {
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

fn parts<'a>(t: &'a Trace, own_is_b: bool, only: &[i64]) -> anyhow::Result<Vec<Part<'a>>> {
    let n = t.connections.len() as i64;
    if let Some(wrong) = only.iter().find(|i| !(1..=n).contains(i)) {
        return Err(usage(format!("the trace has no connection {wrong}; it has {n}")));
    }
    let chosen = t.connections.iter().filter(|c| only.is_empty() || only.contains(&c.about.connection));
    let mut parts = Vec::new();
    for c in chosen {
        if !["tcp", "udp"].contains(&c.about.proto.as_str()) {
            bail!(
                "connection {} is of protocol {}; tcp and udp can be played: choose with --connection",
                c.about.connection,
                crate::render::clean(&c.about.proto)
            );
        }
        let (own, others): (&[Written], &[Written]) = if own_is_b { (&c.b, &c.a) } else { (&c.a, &c.b) };
        parts.push(Part { about: c, own, others });
    }
    if parts.is_empty() {
        bail!("the trace has no connection");
    }
    Ok(parts)
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
    zeros: &[u8],
    stop: &AtomicBool,
    out: &Output,
) -> anyhow::Result<ExitCode> {
    let (tcp, udp) = listen(place).with_context(|| format!("cannot listen on {place}"))?;
    out.say(&format!("listening on {}", tcp.local_addr()?));
    let server = Server { tcp, udp, pace, nodelay: args.nodelay, stop, zeros };
    let after = args.duration_ns.map(|ns| Duration::from_nanos(ns.max(0) as u64));
    let began = Instant::now();
    let sunk = server.serve(parts, Enough { connections: args.connections, after })?;
    let took = began.elapsed();
    let report = (!parts.is_empty()).then(|| Report::of(&sunk.outcomes, parts, took));
    let read = json!({
        "connections": sunk.connections, "bytes": sunk.bytes, "reads": sunk.reads,
        "udp_peers": sunk.udp_peers, "datagrams": sunk.datagrams, "datagram_bytes": sunk.datagram_bytes,
    });
    if let Some(report) = report {
        report.show(out, Some(read))?;
        return Ok(report.status(stop, out));
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

/// TCP and UDP of one port; without an address only this machine can reach them.
fn listen(place: &str) -> anyhow::Result<(TcpListener, UdpSocket)> {
    let tcp = match place.parse::<u16>() {
        Ok(port) => TcpListener::bind((Ipv4Addr::LOCALHOST, port))?,
        Err(_) => TcpListener::bind(place)?,
    };
    let udp = UdpSocket::bind(tcp.local_addr()?)?;
    Ok((tcp, udp))
}

/// What became of the trace, for people and programs.
struct Report {
    connections: usize,
    connected: usize,
    writes: u64,
    bytes: u64,
    planned_writes: u64,
    planned_bytes: u64,
    refused: u64,
    read_bytes: i64,
    /// Sorted.
    late_ns: Vec<i64>,
    /// From the first write to the end of the last.
    wrote: Duration,
    took: Duration,
    broke: Vec<String>,
}

impl Report {
    fn of(outcomes: &[Outcome], parts: &[Part<'_>], took: Duration) -> Report {
        let went = |f: fn(&Went) -> u64| outcomes.iter().map(|o| f(&o.went)).sum::<u64>();
        let mut late_ns: Vec<i64> = outcomes.iter().flat_map(|o| &o.went.late_ns).copied().collect();
        late_ns.sort_unstable();
        let first = outcomes.iter().filter_map(|o| o.went.first).min();
        let last = outcomes.iter().filter_map(|o| o.went.last).max();
        let wrote = first.zip(last).map_or(Duration::ZERO, |(f, l)| l - f);
        let planned = parts.iter().flat_map(|p| p.own);
        Report {
            connections: parts.len(),
            connected: outcomes.iter().filter(|o| o.connected).count(),
            writes: went(|w| w.writes),
            bytes: went(|w| w.bytes),
            planned_writes: planned.clone().count() as u64,
            planned_bytes: planned.map(|w| w.size_bytes.max(0) as u64).sum(),
            refused: went(|w| w.refused),
            read_bytes: outcomes.iter().map(|o| o.read_bytes).sum(),
            late_ns,
            wrote,
            took,
            broke: outcomes.iter().filter_map(|o| o.went.broke.clone()).collect(),
        }
    }

    fn late(&self, share: f64) -> Option<i64> {
        let place = ((self.late_ns.len() as f64 * share).ceil() as usize).max(1) - 1;
        self.late_ns.get(place.min(self.late_ns.len().saturating_sub(1))).copied()
    }

    fn rate(&self) -> Option<f64> {
        (!self.wrote.is_zero()).then(|| self.bytes as f64 / self.wrote.as_secs_f64())
    }

    fn is_whole(&self) -> bool {
        self.writes == self.planned_writes && self.broke.is_empty() && self.refused == 0
    }

    fn status(&self, stop: &AtomicBool, out: &Output) -> ExitCode {
        for why in self.broke.iter().take(5) {
            out.say(why);
        }
        if self.broke.len() > 5 {
            out.say(&format!("and {} more connections ended early", self.broke.len() - 5));
        }
        if stop.load(Ordering::Relaxed) && self.writes < self.planned_writes {
            out.say(&format!("ended early: {} of {} writes", count(self.writes), count(self.planned_writes)));
        }
        if self.is_whole() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }

    fn show(&self, out: &Output, received: Option<Value>) -> anyhow::Result<()> {
        if out.json {
            out.value(&json!({
                "connections": self.connections, "connected": self.connected, "writes": self.writes, "bytes": self.bytes,
                "planned_writes": self.planned_writes, "planned_bytes": self.planned_bytes, "refused_datagrams": self.refused,
                "read_bytes": self.read_bytes, "wrote_for_ns": self.wrote.as_nanos() as u64, "took_ns": self.took.as_nanos() as u64,
                "bytes_s": self.rate(), "ended_early": self.broke, "received": received,
                "late_ns": {
                    "median": self.late(0.5), "p90": self.late(0.9), "p99": self.late(0.99), "p999": self.late(0.999),
                    "max": self.late_ns.last(),
                },
            }))?;
            return Ok(());
        }
        let mut facts = Pairs::new();
        facts.add("connections", format!("{} of {}", self.connected, self.connections));
        let of =
            |n: u64, all: u64| if n == all { count(n) } else { format!("{} of {}", count(n), count(all)) };
        facts.add("writes", of(self.writes, self.planned_writes));
        let sum = bytes(self.bytes);
        let planned = if self.bytes == self.planned_bytes {
            String::new()
        } else {
            format!(" of {}", bytes(self.planned_bytes))
        };
        facts.add("written", format!("{sum}{planned} in {}", duration(self.wrote.as_nanos() as i64)));
        facts.add("rate", self.rate().map(|r| format!("{}/s", bytes(r as u64))).unwrap_or_default());
        facts.add("read", bytes(self.read_bytes.max(0) as u64));
        if let (Some(p50), Some(p90), Some(p99), Some(max)) =
            (self.late(0.5), self.late(0.9), self.late(0.99), self.late_ns.last())
        {
            let [p50, p90, p99, max] = [p50, p90, p99, *max].map(duration);
            facts.add("lateness", format!("median {p50}, 90 % {p90}, 99 % {p99}, most {max}"));
        }
        if self.refused > 0 {
            facts.add("not taken", plural(self.refused, "datagram"));
        }
        out.lines(&facts.render(out.width))
    }
}
