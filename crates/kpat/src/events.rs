//! `kpat events`: points in time without duration.

mod by;

use crate::function::context;
use crate::listing::Listing;
use crate::open::{self, Integrated};
use crate::output::{Output, usage};
use crate::packets::hint_hidden;
use crate::render::{Column, Style, Table, count, duration};
use crate::times::{self, Times};
use by::By;
use kpat_model::EventKind;
use kpat_query::filter::When;
use kpat_query::{EventFilter, EventOfPacket, event_kind};
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
    /// Only these kinds: drop, retransmit, tcp-state, link, route, neighbour, control, address, queueing, namespace, bridge-port, program, log-line [default: all]
    #[arg(long, short, value_name = "KIND", value_delimiter = ',')]
    kind: Vec<String>,
    /// Only events of this packet
    #[arg(long, value_name = "ID")]
    packet: Option<i64>,
    /// Only what programs said of this socket
    #[arg(long, value_name = "ID")]
    socket: Option<i64>,
    /// At or after this time: since the start (1.5s) or of day (10:22:30, UTC)
    #[arg(long, value_name = "TIME", value_parser = When::parse)]
    from: Option<When>,
    /// At or before this time since the start
    #[arg(long, value_name = "TIME", value_parser = When::parse)]
    until: Option<When>,
    /// Count events by this property instead of listing them
    #[arg(long, value_name = "WHAT")]
    by: Option<By>,
    #[command(flatten)]
    times: times::Clock,
    #[command(flatten)]
    listing: Listing,
    /// Show at most this many; 0: all
    #[arg(long, short = 'n', value_name = "N", default_value_t = 100)]
    limit: usize,
}

/// What `--kind` takes.
pub fn kinds() -> impl Iterator<Item = EventKind> {
    EventKind::ALL.iter().copied()
}

pub fn run(args: &Args, out: &Output) -> anyhow::Result<ExitCode> {
    let mut kinds = Vec::new();
    for name in &args.kind {
        let kind = EventKind::from_name(name).ok_or_else(|| {
            let known: Vec<&str> = self::kinds().map(EventKind::name).collect();
            usage(format!("there is no kind of event `{name}`; use {}", known.join(", ")))
        })?;
        kinds.push(kind as i32);
    }
    let log = open::integrated(&args.log, &args.device)?;
    let filter = EventFilter {
        kinds,
        packet: args.packet,
        socket: args.socket,
        from_ns: args.from.map(|t| t.in_log(&log)).transpose()?,
        to_ns: args.until.map(|t| t.in_log(&log)).transpose()?,
    };
    if let Some(by) = args.by {
        let all = log.events(&filter, 0)?.rows;
        by.print(&log, &all, &Times::of(&args.times, &log)?, &args.listing, args.limit, out)?;
        return Ok(ExitCode::SUCCESS);
    }
    let list = log.events(&filter, args.limit)?;
    if out.json {
        let events: Vec<Value> = list.rows.iter().map(|e| as_json(&log, e)).collect();
        out.value(&json!({
            "start_boot_ns": log.start_ns(),
            "start_wall_ns": times::wall(&log, log.start_ns()),
            "total": list.total,
            "shown": events.len(),
            "events": events,
        }))?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(tsv) = args.listing.tsv(&FIELDS)? {
        tsv.rows(list.rows.iter().map(|e| as_json(&log, e)), out)?;
        return Ok(ExitCode::SUCCESS);
    }
    if list.rows.is_empty() {
        out.say("no event matches");
        return Ok(ExitCode::SUCCESS);
    }
    let hidden = args.listing.print(table(&log, &Times::of(&args.times, &log)?, &list.rows), out)?;
    if (list.rows.len() as u64) < list.total {
        out.say(&format!("{} of {} events shown; --limit 0 shows all", list.rows.len(), count(list.total)));
    }
    hint_hidden(out, &hidden);
    Ok(ExitCode::SUCCESS)
}

fn table(log: &Integrated, times: &Times, rows: &[EventOfPacket]) -> Table {
    let mut table = Table::new(&[
        Column::right(times.heading(), 0),
        Column::left("event", 0, 0),
        Column::right("packet", 0),
        Column::left("what", 0, 20),
        Column::left("place", 3, 14),
        Column::right("CPU", 5),
        Column::left("context", 6, 0),
        Column::left("current process", 4, 0),
    ]);
    for e in rows {
        let plain = |text: String| (text, Style::Plain);
        table.row(vec![
            plain(times.show(e.event.at_ns)),
            (event_kind(e.event.kind), kind_style(e.event.kind)),
            plain(e.event.packet_id.map(|p| p.to_string()).unwrap_or_default()),
            plain(e.what() + &within(e)),
            plain(e.place.clone()),
            plain(e.event.cpu.map(|c| c.to_string()).unwrap_or_default()),
            plain(if e.event.cpu.is_some() { context(e.event.ctx).to_owned() } else { String::new() }),
            (e.event.pid.map(|pid| log.process_name(pid, e.event.at_ns)).unwrap_or_default(), Style::Faint),
        ]);
    }
    table
}

/// How long before its time it may have happened.
fn within(e: &EventOfPacket) -> String {
    match e.event.after_ns {
        Some(after) => format!(" (-{})", duration(e.event.at_ns.saturating_sub(after))),
        None => String::new(),
    }
}

pub fn kind_style(kind: i32) -> Style {
    match EventKind::from_number(kind) {
        Some(EventKind::Drop) => Style::Bad,
        Some(EventKind::Retransmit) => Style::Warn,
        None => Style::Faint,
        Some(_) => Style::Plain,
    }
}

/// What [`as_json`] has, in the order of `--tsv`.
const FIELDS: [&str; 19] = [
    "at_boot_ns",
    "at_wall_ns",
    "kind",
    "packet_id",
    "what",
    "reason",
    "place",
    "cpu",
    "context",
    "pid",
    "process",
    "after_boot_ns",
    "after_wall_ns",
    "stamped_by_kernel",
    "netns",
    "a",
    "b",
    "text",
    "socket_id",
];

pub fn as_json(log: &Integrated, e: &EventOfPacket) -> Value {
    json!({
        "at_boot_ns": e.event.at_ns,
        "at_wall_ns": times::wall(log, e.event.at_ns),
        "kind": event_kind(e.event.kind),
        "packet_id": e.event.packet_id,
        "what": e.what(),
        "reason": (!e.reason.is_empty()).then_some(&e.reason),
        "place": (!e.place.is_empty()).then_some(&e.place),
        "cpu": e.event.cpu,
        "context": context(e.event.ctx),
        "pid": e.event.pid,
        "process": e.event.pid.and_then(|pid| log.process(pid, e.event.at_ns)).map(|p| p.comm.as_str()),
        "after_boot_ns": e.event.after_ns,
        "after_wall_ns": e.event.after_ns.and_then(|at| times::wall(log, at)),
        // Otherwise by its reader: then `after_boot_ns` is the other bound.
        "stamped_by_kernel": e.event.cpu.is_some(),
        "netns": e.event.netns,
        "a": e.event.a,
        "b": e.event.b,
        "text": e.event.text,
        "socket_id": e.event.socket_id,
    })
}
