//! `kpat app --by`: sockets added up by process, other end, service, cgroup or user.

use super::json::spread;
use super::text::{number, size};
use crate::listing::Listing;
use crate::open::Integrated;
use crate::output::{Meter, Output};
use crate::render::{Column, Style, Table, count, duration};
use crate::times;
use kpat_query::app::{self, OUTCOMES, Sums, Worst};
use serde_json::{Value, json};
use std::process::ExitCode;

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum By {
    /// The name of the process that used it, or that listens where it came to
    Process,
    /// The address of the other end
    Peer,
    /// Address and port of the end that is asked
    Service,
    Cgroup,
    User,
}

impl By {
    fn word(self) -> &'static str {
        match self {
            By::Process => "process",
            By::Peer => "peer",
            By::Service => "service",
            By::Cgroup => "cgroup",
            By::User => "user",
        }
    }

    fn of(self) -> app::By {
        match self {
            By::Process => app::By::Process,
            By::Peer => app::By::Peer,
            By::Service => app::By::Service,
            By::Cgroup => app::By::Cgroup,
            By::User => app::By::User,
        }
    }
}

pub fn run(
    log: &Integrated,
    by: By,
    limit: usize,
    listing: &Listing,
    out: &Output,
) -> anyhow::Result<ExitCode> {
    let mut meter = Meter::default();
    let mut all = app::sums(log, by.of(), &mut |done, parts| {
        out.progress(&mut meter, "reading", done, parts);
        true
    })?;
    out.clear_progress();
    if all.is_empty() {
        return Err(super::none(None));
    }
    let (total, sockets) = (all.len(), all.iter().map(|s| s.sockets).sum::<u64>());
    if limit > 0 {
        all.truncate(limit);
    }
    if out.json {
        let groups: Vec<Value> = all.iter().map(as_json).collect();
        out.value(&json!({
            "start_boot_ns": log.start_ns(), "start_wall_ns": times::wall(log, log.start_ns()), "by": by.word(), "sockets": sockets,
            "events_lost": app::lost(log)?, "total": total, "shown": all.len(), "groups": groups,
        }))?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(tsv) = listing.tsv(&FIELDS)? {
        tsv.rows(all.iter().map(as_json), out)?;
        return Ok(ExitCode::SUCCESS);
    }
    text(by, &all, listing, out)?;
    super::say_lost(log, out)?;
    if all.len() < total {
        out.say(&format!("{} of {total} shown; --limit 0 shows all", all.len()));
    }
    Ok(ExitCode::SUCCESS)
}

fn text(by: By, all: &[Sums], listing: &Listing, out: &Output) -> anyhow::Result<()> {
    let mut table = Table::new(&[
        Column::right("sockets", 0),
        Column::left(by.word(), 0, 14),
        Column::left("not connected", 0, 24),
        Column::right("sent", 0),
        Column::right("writes", 6),
        Column::right("received", 0),
        Column::right("reads", 7),
        Column::right("failed", 5),
        Column::right("again", 8),
        Column::right("connect", 1),
        Column::right("slowest", 2),
        Column::right("round trip", 3),
        Column::right("worst", 4),
        Column::right("lasted", 9),
        Column::right("longest", 10),
    ]);
    let plain = |text: String| (text, Style::Plain);
    for s in all {
        let median = |w: &Worst| plain(w.of.quantile(0.5).map(duration).unwrap_or_default());
        let worst = |w: &Worst| plain(w.socket_id.map(|_| duration(w.of.max)).unwrap_or_default());
        table.row(vec![
            plain(count(s.sockets)),
            plain(s.name.clone().unwrap_or_else(|| "–".to_owned())),
            (not_connected(s), Style::Warn),
            (size(s.sent_bytes), Style::Strong),
            plain(number(s.writes)),
            (size(s.received_bytes), Style::Strong),
            plain(number(s.reads)),
            (number(s.failed), Style::Warn),
            (number(s.again), Style::Warn),
            median(&s.connect_ns),
            worst(&s.connect_ns),
            median(&s.round_trip_ns),
            worst(&s.round_trip_ns),
            median(&s.lasted_ns),
            worst(&s.lasted_ns),
        ]);
    }
    let hidden = listing.print(table, out)?;
    crate::packets::hint_hidden(out, &hidden);
    Ok(())
}

/// How many were not, by what became of them.
fn not_connected(s: &Sums) -> String {
    let by = |name: &&str| match s.count(name) {
        0 => None,
        n => Some(format!("{} {}", count(n), name.replace('-', " "))),
    };
    OUTCOMES[1..].iter().filter_map(by).collect::<Vec<_>>().join(", ")
}

fn as_json(s: &Sums) -> Value {
    let results: serde_json::Map<String, Value> =
        OUTCOMES.iter().map(|name| ((*name).to_owned(), json!(s.count(name)))).collect();
    let with_worst = |w: &Worst| {
        let mut value = spread(&w.of);
        value["worst_socket_id"] = json!(w.socket_id);
        value
    };
    json!({
        "name": s.name, "sockets": s.sockets, "connects": s.connects(), "results": results, "sent_bytes": s.sent_bytes,
        "received_bytes": s.received_bytes, "writes": s.writes, "reads": s.reads, "failed_calls": s.failed, "frames_again": s.again,
        "connect_ns": with_worst(&s.connect_ns), "round_trip_ns": with_worst(&s.round_trip_ns), "lasted_ns": with_worst(&s.lasted_ns),
    })
}

/// What [`as_json`] has, in the order of `--tsv`.
const FIELDS: [&str; 26] = [
    "name",
    "sockets",
    "connects",
    "results.connected",
    "results.refused",
    "results.unreachable",
    "results.timed-out",
    "results.failed",
    "results.closed",
    "results.no-port",
    "results.waiting",
    "sent_bytes",
    "received_bytes",
    "writes",
    "reads",
    "failed_calls",
    "frames_again",
    "connect_ns.median",
    "connect_ns.max",
    "connect_ns.worst_socket_id",
    "round_trip_ns.median",
    "round_trip_ns.max",
    "round_trip_ns.worst_socket_id",
    "lasted_ns.median",
    "lasted_ns.max",
    "lasted_ns.worst_socket_id",
];
