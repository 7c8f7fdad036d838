//! `kpat app`: what applications asked of the network and what became of it, from a recording with `--profile app`.

use crate::open::{self, Integrated};
use crate::output::{Output, usage};
use crate::render::{Column, Line, Pairs, Style, Table, bytes, count, duration};
use kpat_analysis::app::{self, Limits, Spread, Traffic};
use kpat_model::Crossing;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(clap::Args)]
pub struct Args {
    /// The integrated log
    #[arg(value_name = "X.kpat")]
    log: PathBuf,
    #[command(flatten)]
    device: open::Device,
    /// All that is known of this socket (its number is what `ss -e` shows as sk:, in decimal)
    #[arg(long, short, value_name = "ID")]
    socket: Option<i64>,
    /// Show at most so many sockets, those with the most bytes first; 0: all
    #[arg(long, short = 'n', value_name = "N", default_value_t = 20)]
    limit: usize,
}

pub fn run(args: &Args, out: &Output) -> anyhow::Result<ExitCode> {
    let log = open::integrated(&args.log, &args.device)?;
    let only: Vec<i64> = args.socket.into_iter().collect();
    let mut all = app::traffic(&log, &only)?;
    if all.is_empty() {
        return Err(usage(match args.socket {
            Some(id) => format!("the log has no socket {id}; `kpat app` without --socket lists them"),
            None => "this log has no application traffic; record it with `kpat record --profile app`".into(),
        }));
    }
    all.sort_by_key(|t| std::cmp::Reverse(t.socket.sent_bytes + t.socket.received_bytes));
    let total = all.len();
    if args.limit > 0 {
        all.truncate(args.limit);
    }
    if out.json {
        let sockets: Vec<Value> = all.iter().map(|t| as_json(&log, t)).collect();
        out.value(&json!({"start_boot_ns": log.start_ns(), "events_lost": app::lost(&log)?, "total": total, "shown": all.len(), "sockets": sockets}))?;
        return Ok(ExitCode::SUCCESS);
    }
    match (args.socket, &all[..]) {
        (Some(_), [one]) => detail(one, out)?,
        _ => list(&all, out)?,
    }
    let lost = app::lost(&log)?;
    if lost > 0 {
        out.say(&format!(
            "{} events are missing in this log; sums are too small by what they held",
            count(lost)
        ));
    }
    if all.len() < total {
        out.say(&format!("{} of {total} sockets shown; --limit 0 shows all", all.len()));
    }
    Ok(ExitCode::SUCCESS)
}

fn protocol(proto: i32) -> String {
    match proto {
        6 => "TCP".into(),
        17 => "UDP".into(),
        1 | 58 => "ping".into(),
        other => format!("proto {other}"),
    }
}

fn end(addr: Option<&String>, port: i32) -> String {
    let addr = addr.map_or("*", String::as_str);
    let shown =
        if addr.contains(':') && !addr.starts_with("h:") { format!("[{addr}]") } else { addr.to_owned() };
    if port == 0 { shown } else { format!("{shown}:{port}") }
}

fn ends(t: &Traffic) -> String {
    let s = &t.socket;
    let (own, far) = (end(s.local_addr.as_ref(), s.local_port), end(s.peer_addr.as_ref(), s.peer_port));
    if s.peer_port == 0 { own } else { format!("{own} > {far}") }
}

/// The greatest share of the known time, and of what.
fn held_by(l: &Limits) -> Option<(&'static str, f64)> {
    let share = |ns: i64| ns as f64 / l.known_ns.max(1) as f64;
    [
        ("application", l.application_ns),
        ("congestion window", l.congestion_window_ns),
        ("receive window", l.receive_window_ns),
        ("send buffer", l.send_buffer_ns),
    ]
    .into_iter()
    .map(|(name, ns)| (name, share(ns)))
    .filter(|(_, s)| *s > 0.0)
    .max_by(|a, b| a.1.total_cmp(&b.1))
}

fn mean(s: &Spread) -> String {
    s.mean().map(|m| bytes(m.round() as u64)).unwrap_or_default()
}

fn list(all: &[Traffic], out: &Output) -> anyhow::Result<()> {
    let mut table = Table::new(&[
        Column::right("socket", 0),
        Column::left("process", 1, 8),
        Column::left("", 0, 0),
        Column::left("ends", 0, 20),
        Column::right("sent", 0),
        Column::right("writes", 2),
        Column::right("mean", 4),
        Column::right("packets", 3),
        Column::right("frames", 5),
        Column::right("received", 0),
        Column::right("reads", 6),
        Column::right("again", 7),
        Column::right("round trip", 8),
        Column::left("held back by", 9, 10),
    ]);
    let number = |n: u64| if n == 0 { String::new() } else { count(n) };
    let size = |n: i64| if n <= 0 { String::new() } else { bytes(n as u64) };
    for t in all {
        let (send, device, recv) =
            (t.layer(Crossing::Send), t.layer(Crossing::ToDevice), t.layer(Crossing::Recv));
        let l = t.limits.as_ref();
        let held = l.and_then(held_by).map(|(n, s)| format!("{n} {:.0} %", s * 100.0));
        let plain = |text: String| (text, Style::Plain);
        table.row(vec![
            plain(t.socket.socket_id.to_string()),
            plain(t.process.clone().unwrap_or_default()),
            (protocol(t.socket.proto), Style::Faint),
            plain(ends(t)),
            (size(t.socket.sent_bytes), Style::Strong),
            plain(number(send.events)),
            plain(mean(&send.size_bytes)),
            plain(number(device.events)),
            plain(number(device.segments)),
            (size(t.socket.received_bytes), Style::Strong),
            plain(number(recv.events)),
            (number(t.layer(Crossing::Retransmit).segments), Style::Warn),
            plain(l.and_then(|l| l.srtt_ns.mean()).map(|m| duration(m as i64)).unwrap_or_default()),
            plain(held.unwrap_or_default()),
        ]);
    }
    let (lines, hidden) = table.render(out.width);
    out.lines(&lines)?;
    crate::packets::hint_hidden(out, &hidden);
    Ok(())
}

fn detail(t: &Traffic, out: &Output) -> anyhow::Result<()> {
    let s = &t.socket;
    let mut facts = Pairs::new();
    let version = if s.version == 6 { "IPv6" } else { "IPv4" };
    facts.add(
        "socket",
        format!("{} (sk:{:x}), {} over {version}", s.socket_id, s.socket_id, protocol(s.proto)),
    );
    facts.add("ends", ends(t));
    let thread = s.pid.map(|p| format!(" (thread {p})")).unwrap_or_default();
    facts.add("process", format!("{}{thread}", t.process.as_deref().unwrap_or("not known")));
    if let Some(c) = &s.congestion {
        facts.add("congestion", c);
    }
    facts.add("seen for", duration(s.last_ns - s.first_ns));
    out.lines(&facts.render(out.width))?;
    out.line(&Line::new())?;
    layers(t, out)?;
    if let Some(n) = t.writes_per_packet() {
        let send = t.layer(Crossing::ToTransport).events.max(1);
        let packets = t.layer(Crossing::ToDevice);
        out.line(&Line::of(
            format!(
                "A packet carries {n:.2} writes in the mean, a write is in {:.2} packets; {:.2} frames a packet.",
                t.writes_in_packets as f64 / send as f64,
                packets.segments as f64 / packets.events.max(1) as f64,
            ),
            Style::Plain,
        ))?;
    }
    if !t.waits.is_empty() {
        out.line(&Line::new())?;
        waits(t, out)?;
    }
    if let Some(l) = &t.limits {
        out.line(&Line::new())?;
        limits(l, out)?;
    }
    Ok(())
}

fn layers(t: &Traffic, out: &Output) -> anyhow::Result<()> {
    let mut table = Table::new(&[
        Column::left("layer crossing", 0, 12),
        Column::right("events", 0),
        Column::right("bytes", 0),
        Column::right("frames", 2),
        Column::right("least", 5),
        Column::right("median", 3),
        Column::right("mean", 1),
        Column::right("most", 4),
        Column::right("apart", 6),
        Column::right("apart 99 %", 7),
        Column::right("failed", 8),
    ]);
    for (c, l) in &t.layers {
        let plain = |text: String| (text, Style::Plain);
        let size = |n: Option<i64>| plain(n.map(|n| count(n.max(0) as u64)).unwrap_or_default());
        let time = |n: Option<i64>| plain(n.map(duration).unwrap_or_default());
        table.row(vec![
            (c.layers().into(), Style::Strong),
            plain(count(l.events)),
            plain(count(l.bytes.max(0) as u64)),
            plain(if c.is_packet() { count(l.segments) } else { String::new() }),
            size((l.size_bytes.count > 0).then_some(l.size_bytes.min)),
            size(l.size_bytes.quantile(0.5)),
            plain(l.size_bytes.mean().map(|m| format!("{m:.0}")).unwrap_or_default()),
            size((l.size_bytes.count > 0).then_some(l.size_bytes.max)),
            time(l.spacing_ns.quantile(0.5)),
            time(l.spacing_ns.quantile(0.99)),
            (if l.errors > 0 { count(l.errors) } else { String::new() }, Style::Warn),
        ]);
    }
    out.lines(&table.render(out.width).0)
}

fn waits(t: &Traffic, out: &Output) -> anyhow::Result<()> {
    let mut table = Table::new(&[
        Column::left("where bytes waited", 0, 12),
        Column::right("bytes", 1),
        Column::right("least", 3),
        Column::right("median", 0),
        Column::right("mean", 0),
        Column::right("99 %", 2),
        Column::right("most", 0),
    ]);
    for w in &t.waits {
        let plain = |text: String| (text, Style::Plain);
        let time = |n: Option<i64>| plain(n.map(duration).unwrap_or_default());
        table.row(vec![
            (w.leg.name().into(), Style::Strong),
            plain(count(w.ns.count)),
            time(Some(w.ns.min)),
            time(w.ns.quantile(0.5)),
            time(w.ns.mean().map(|m| m as i64)),
            time(w.ns.quantile(0.99)),
            time(Some(w.ns.max)),
        ]);
    }
    out.lines(&table.render(out.width).0)?;
    out.line(&Line::of("Medians and shares are exact to a power of two.", Style::Faint))
}

fn limits(l: &Limits, out: &Output) -> anyhow::Result<()> {
    let mut facts = Pairs::new();
    let share = |ns: i64| format!("{:.1} %", 100.0 * ns as f64 / l.known_ns.max(1) as f64);
    facts.add("state known", duration(l.known_ns));
    facts.add("application", format!("{} of it had nothing to send", share(l.application_ns)));
    facts.add("congestion", format!("{} held by the congestion window", share(l.congestion_window_ns)));
    facts.add("receiver", format!("{} held by the receiver's window", share(l.receive_window_ns)));
    facts.add("send buffer", format!("{} held by the send buffer", share(l.send_buffer_ns)));
    facts.add(
        "recovery",
        format!("{} repairing losses; {} segments sent again", share(l.recovery_ns), l.total_retrans),
    );
    if let (Some(low), Some(mid), Some(high)) =
        (Some(l.srtt_ns.min), l.srtt_ns.quantile(0.5), Some(l.srtt_ns.max))
    {
        facts.add("round trip", format!("{} to {}, median {}", duration(low), duration(high), duration(mid)));
    }
    facts.add("window", format!("{} to {} segments", l.snd_cwnd.min, l.snd_cwnd.max));
    out.lines(&facts.render(out.width))
}

fn spread(s: &Spread) -> Value {
    json!({
        "count": s.count, "min": s.min, "max": s.max, "mean": s.mean(),
        "median_below": s.quantile(0.5), "p99_below": s.quantile(0.99), "by_power_of_two": s.classes,
    })
}

fn as_json(log: &Integrated, t: &Traffic) -> Value {
    let s = &t.socket;
    let layers: serde_json::Map<String, Value> = t
        .layers
        .iter()
        .map(|(c, l)| {
            let v = json!({
                "events": l.events, "errors": l.errors, "bytes": l.bytes, "frames": l.segments,
                "size_bytes": spread(&l.size_bytes), "spacing_ns": spread(&l.spacing_ns),
                "first_ns": l.first_ns - log.start_ns(), "last_ns": l.last_ns - log.start_ns(),
            });
            (c.name().to_owned(), v)
        })
        .collect();
    json!({
        "socket_id": s.socket_id, "proto": s.proto, "version": s.version, "process": t.process, "pid": s.pid,
        "netns": s.netns, "cgroup": s.cgroup, "congestion": s.congestion,
        "local_addr": s.local_addr, "local_port": s.local_port, "peer_addr": s.peer_addr, "peer_port": s.peer_port,
        "sent_bytes": s.sent_bytes, "received_bytes": s.received_bytes,
        "crossings": layers,
        "writes_per_packet": t.writes_per_packet(),
        "waits": t.waits.iter().map(|w| json!({"leg": w.leg.name(), "ns": spread(&w.ns)})).collect::<Vec<_>>(),
        "tcp": t.limits.as_ref().map(|l| json!({
            "known_ns": l.known_ns, "application_ns": l.application_ns, "congestion_window_ns": l.congestion_window_ns,
            "receive_window_ns": l.receive_window_ns, "send_buffer_ns": l.send_buffer_ns, "recovery_ns": l.recovery_ns,
            "srtt_ns": spread(&l.srtt_ns), "snd_cwnd": spread(&l.snd_cwnd), "total_retrans": l.total_retrans,
        })),
    })
}
