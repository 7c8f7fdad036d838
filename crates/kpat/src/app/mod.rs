//! `kpat app`: what applications asked of the network and what became of it, from a recording with `--profile app`.

mod by;
mod connections;
mod export;
pub mod json;
mod replay;
mod report;
mod said;
mod series;
mod table;
mod text;
mod writes;

use crate::listing::Listing;
use crate::open::{self, Integrated};
use crate::output::{Meter, Output, usage};
use crate::render::count;
use crate::times::{self, Clock};
use kpat_query::app::{self, Window};
use kpat_query::filter::When;
use kpat_store::tables::SocketRow;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    disable_help_subcommand = true
)]
pub struct Args {
    /// The integrated log
    #[arg(value_name = "X.kpat", required = true)]
    log: Option<PathBuf>,
    /// With --slow-writes: of which writes, in the filter language, for example: process == nc and acked > 10ms
    #[arg(value_name = "EXPRESSION", requires = "slow_writes")]
    expression: Vec<String>,
    #[command(subcommand)]
    then: Option<Then>,
    #[command(flatten)]
    device: open::Device,
    /// All that is known of this socket (its number is what `ss -e` shows as sk:, in decimal)
    #[arg(long, short, value_name = "ID")]
    socket: Option<i64>,
    /// Show at most so many sockets, those with the most bytes first, groups of --by, or writes; 0: all
    #[arg(long, short = 'n', value_name = "N", default_value_t = 100)]
    limit: usize,
    /// Add sockets up by what they have in common: how many, what was not connected, bytes, and times in the median and at worst
    #[arg(long, value_name = "WHAT", conflicts_with_all = ["socket", "series", "svg", "html", "format", "connections", "write", "slow_writes"])]
    by: Option<by::By>,
    /// Over time: bytes at each crossing, TCP's state, what held it back and what happened; of --socket, else of all in sum
    #[arg(long, conflicts_with = "format")]
    series: bool,
    /// Into so many pieces of time
    #[arg(long, value_name = "N", requires = "series", value_parser = clap::value_parser!(u16).range(1..=8192))]
    bins: Option<u16>,
    /// With --series, --svg or --html: from this time on, since the log's start (`1.5s`) or of day (`10:22:30`, UTC) [default: the beginning]
    #[arg(long, value_name = "TIME", value_parser = When::parse, conflicts_with_all = ["format", "connections"])]
    from: Option<When>,
    /// With --series, --svg or --html: up to this time, given likewise [default: the end]
    #[arg(long, value_name = "TIME", value_parser = When::parse, conflicts_with_all = ["format", "connections"])]
    until: Option<When>,
    /// With --series: times of day (UTC, by the device's clock) in place of time since the log's start
    #[arg(long, requires = "series")]
    utc: bool,
    /// Write a picture over time, of --socket, else of all in sum
    #[arg(long, value_name = "FILE", conflicts_with_all = ["format", "series"])]
    svg: Option<PathBuf>,
    /// Write a page with every socket that is shown: tables, and pictures over time
    #[arg(long, value_name = "FILE", visible_alias = "report", conflicts_with_all = ["format", "series"])]
    html: Option<PathBuf>,
    /// Every event a line in order of time instead, tab separated, with what is missing at its place
    #[arg(long = "to", short = 't', value_name = "FORMAT")]
    format: Option<table::Format>,
    /// Bytes from application to application, where both ends of a connection are in the log (or in the logs of several devices):
    /// every leg between write and read, and whether they add up; with --to every range's life; of --socket, else of all
    #[arg(long, conflicts_with_all = ["series", "svg", "html"])]
    connections: bool,
    /// One write by its number (see kpat packet, --slow-writes): the packets that carried its bytes, and when they were read
    #[arg(long, value_name = "ID", conflicts_with_all = ["socket", "series", "svg", "html", "format", "connections"])]
    write: Option<i64>,
    /// Writes to TCP by the time until all of each was acknowledged, the slowest first; of --socket, else of all; those that fit EXPRESSION
    #[arg(long, conflicts_with_all = ["write", "series", "svg", "html", "format", "connections"])]
    slow_writes: bool,
    /// With --to: the file to write [default: standard output]
    #[arg(long, short, value_name = "FILE", requires = "format")]
    output: Option<PathBuf>,
    #[command(flatten)]
    listing: Listing,
}

#[derive(clap::Subcommand)]
enum Then {
    /// Write the application trace: who sent how much when, free of what the protocol made of it
    Export(export::Args),
    /// Play an application trace over real sockets, or be the other end of it
    Replay(replay::Args),
}

/// What --from and --until ask for, by the log's clock.
fn window(log: &Integrated, args: &Args, bins: usize) -> anyhow::Result<Window> {
    let at = |t: Option<When>| t.map(|t| t.in_log(log)).transpose();
    let (from_ns, to_ns) = (at(args.from)?, at(args.until)?);
    if let Some((from, until)) = from_ns.zip(to_ns).filter(|(from, until)| from >= until) {
        let since = |ns: i64| crate::render::duration(ns.saturating_sub(log.start_ns()));
        return Err(usage(format!("--from {} is not before --until {}", since(from), since(until))));
    }
    if (args.from.or(args.until)).is_some() && !args.series && args.svg.is_none() && args.html.is_none() {
        return Err(usage("--from and --until choose a time of --series, --svg or --html"));
    }
    let window = Window { socket: args.socket, from_ns, to_ns, bins };
    if window.from_ns.or(window.to_ns).is_some() {
        overlaps(log, &window)?;
    }
    Ok(window)
}

/// Refuses a time in which the log, or the socket, has nothing: it would be an empty row.
fn overlaps(log: &Integrated, window: &Window) -> anyhow::Result<()> {
    let since = |ns: i64| crate::render::duration(ns.saturating_sub(log.start_ns()));
    let (who, first, last) = match window.socket {
        None => ("the log".to_owned(), log.start_ns(), log.end_ns()),
        Some(id) => {
            let sockets = log.table::<SocketRow>()?.all::<SocketRow>()?;
            let Some(s) = sockets.into_iter().find(|s| s.socket_id == id) else { return Ok(()) };
            (format!("socket {id}"), s.first_ns, s.last_ns)
        }
    };
    match (window.from_ns, window.to_ns) {
        (Some(from), _) if from > last => Err(usage(format!(
            "--from {} is behind the end of {who} ({} after the log's start)",
            since(from),
            since(last)
        ))),
        (_, Some(until)) if until <= first => Err(usage(format!(
            "--until {} is before the beginning of {who} ({} after the log's start)",
            since(until),
            since(first)
        ))),
        _ => Ok(()),
    }
}

/// The log may also stand behind the expression.
fn log_and_expression(args: &Args) -> (PathBuf, String) {
    let first = args.log.clone().unwrap_or_default();
    let is_log = |p: &Path| p.extension().is_some_and(|e| e == "kpat") || p.join("manifest.json").exists();
    let mut words = args.expression.clone();
    if !is_log(&first)
        && let Some(at) = words.iter().position(|w| is_log(Path::new(w)))
    {
        let path = words.remove(at);
        words.insert(0, first.to_string_lossy().into_owned());
        return (path.into(), words.join(" "));
    }
    (first, words.join(" "))
}

const NOTHING: &str =
    "this log has no application traffic; record it with `kpat record -p app`, or -p path,app beside packets";

fn no_socket(id: i64) -> String {
    format!("the log has no socket {id}; `kpat app` without --socket lists them")
}

pub fn run(args: &Args, out: &Output) -> anyhow::Result<ExitCode> {
    match &args.then {
        Some(Then::Export(args)) => return export::run(args, out),
        Some(Then::Replay(args)) => return replay::run(args, out),
        None => {}
    }
    let no_list = args.connections || args.series || args.format.is_some();
    if no_list && (args.listing.is_tsv() || args.listing.is_chosen() || !args.listing.has_header()) {
        return Err(usage(
            "--tsv, --columns and --no-header are of sockets, --write and --slow-writes; events and ranges are written by --to tsv",
        ));
    }
    if args.connections {
        return connections::run(args, out);
    }
    let (path, expression) = log_and_expression(args);
    let log = open::integrated(&path, &args.device)?;
    if !log.has_applications() {
        return Err(usage(NOTHING));
    }
    if let Some(id) = args.write {
        return writes::one(&log, id, &args.listing, out);
    }
    if args.slow_writes {
        return writes::slow(&log, args.socket, &expression, args.limit, &args.listing, out);
    }
    if let Some(by) = args.by {
        return by::run(&log, by, args.limit, &args.listing, out);
    }
    let only: Vec<i64> = args.socket.into_iter().collect();
    if args.format.is_some() {
        return table::run(&log, &only, args.output.as_deref(), out);
    }
    if args.series {
        return series::show(&log, &window(&log, args, 0)?, args.bins, &Clock { utc: args.utc }, out);
    }
    let window = window(&log, args, 0)?;
    let mut meter = Meter::default();
    let mut all = app::traffic(&log, &only, &mut |done, parts| {
        out.progress(&mut meter, "reading", done, parts);
        true
    })?;
    out.clear_progress();
    if all.is_empty() {
        return Err(none(args.socket));
    }
    all.sort_by_key(|t| std::cmp::Reverse(t.socket.sent_bytes + t.socket.received_bytes));
    let total = all.len();
    if args.limit > 0 {
        all.truncate(args.limit);
    }
    if let Some(path) = &args.svg {
        report::svg(&log, &window, args.socket.and(all.first()), path, out)?;
    }
    if let Some(path) = &args.html {
        report::html(&log, &window, &all, total, path, out)?;
    }
    if out.json {
        let sockets: Vec<Value> = all.iter().map(|t| json::socket(&log, t)).collect();
        out.value(&json!({"start_boot_ns": log.start_ns(), "start_wall_ns": times::wall(&log, log.start_ns()), "events_lost": app::lost(&log)?, "total": total, "shown": all.len(), "sockets": sockets, "programs": said::json(&log, args.socket)?}))?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(tsv) = args.listing.tsv(&json::FIELDS)? {
        tsv.rows(all.iter().map(|t| json::socket(&log, t)), out)?;
        return Ok(ExitCode::SUCCESS);
    }
    match (args.socket, &all[..]) {
        (Some(_), [one]) if !args.listing.is_chosen() => {
            text::detail(&log, one, out)?;
            said::print(&log, one.socket.socket_id, out)?;
        }
        _ => text::list(&all, &args.listing, out)?,
    }
    say_lost(&log, out)?;
    if all.len() < total {
        out.say(&format!("{} of {total} sockets shown; --limit 0 shows all", all.len()));
    }
    Ok(ExitCode::SUCCESS)
}

fn say_lost(log: &Integrated, out: &Output) -> anyhow::Result<()> {
    let lost = app::lost(log)?;
    if lost > 0 {
        let words = "events are missing in this log; sums are too small by what they held";
        out.say(&format!("{} {words}", count(lost)));
    }
    Ok(())
}

/// Why there is nothing to show.
fn none(socket: Option<i64>) -> anyhow::Error {
    usage(socket.map_or_else(|| NOTHING.to_owned(), no_socket))
}
