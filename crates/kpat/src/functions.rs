//! `kpat functions`: the probed functions with their times.

use crate::listing::Listing;
use crate::open;
use crate::output::Output;
use crate::packets::hint_hidden;
use crate::render::{Column, Style, Table, count, duration_aligned, parse_duration};
use clap::ValueEnum;
use kpat_query::{FunctionFilter, FunctionSort};
use kpat_store::tables::FunctionRow;
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
    /// Only functions whose name matches this glob, for example 'ip_*'
    #[arg(value_name = "GLOB")]
    glob: Option<String>,
    /// Sort order
    #[arg(long, default_value = "self")]
    sort: Sort,
    /// Reverse the order
    #[arg(long, short)]
    reverse: bool,
    /// Only functions with a call of at least this duration, for example 10us
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    slower_than: Option<i64>,
    /// Only functions with a call of at most this duration
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    faster_than: Option<i64>,
    /// List functions that were probed but never called, too
    #[arg(long)]
    unused: bool,
    #[command(flatten)]
    listing: Listing,
    /// Show at most this many; 0: all
    #[arg(long, short = 'n', value_name = "N", default_value_t = 100)]
    limit: usize,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Sort {
    /// Most time in the function itself first
    #[value(name = "self")]
    SelfTime,
    /// Most time including what it calls first
    Total,
    /// Most calls first
    Calls,
    /// Most packets first
    Packets,
    /// Largest median first
    Median,
    /// Largest 99th percentile first
    P99,
    /// Largest maximum first
    Max,
    /// By name
    Name,
}

pub fn run(args: &Args, out: &Output) -> anyhow::Result<ExitCode> {
    let log = open::integrated(&args.log, &args.device)?;
    let filter = FunctionFilter {
        glob: args.glob.clone().unwrap_or_default(),
        slower_than_ns: args.slower_than,
        faster_than_ns: args.faster_than,
        unused: args.unused,
    };
    let sort = match args.sort {
        Sort::SelfTime => FunctionSort::SelfTime,
        Sort::Total => FunctionSort::Total,
        Sort::Calls => FunctionSort::Calls,
        Sort::Packets => FunctionSort::Packets,
        Sort::Median => FunctionSort::Median,
        Sort::P99 => FunctionSort::P99,
        Sort::Max => FunctionSort::Max,
        Sort::Name => FunctionSort::Name,
    };
    let mut list = log.functions(&filter, sort, if args.reverse { 0 } else { args.limit });
    if args.reverse {
        list.rows.reverse();
        if args.limit > 0 {
            list.rows.truncate(args.limit);
        }
    }
    if out.json {
        let functions: Vec<Value> = list.rows.iter().map(as_json).collect();
        out.value(&json!({ "total": list.total, "shown": functions.len(), "functions": functions }))?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(tsv) = args.listing.tsv(&FIELDS)? {
        tsv.rows(list.rows.iter().map(as_json), out)?;
        return Ok(ExitCode::SUCCESS);
    }
    if list.rows.is_empty() {
        out.say(&log.nothing("function"));
        return Ok(ExitCode::SUCCESS);
    }
    let hidden = args.listing.print(table(&list.rows), out)?;
    if (list.rows.len() as u64) < list.total {
        out.say(&format!(
            "{} of {} functions shown; --limit 0 shows all",
            list.rows.len(),
            count(list.total)
        ));
    }
    hint_hidden(out, &hidden);
    Ok(ExitCode::SUCCESS)
}

fn table(rows: &[FunctionRow]) -> Table {
    let mut table = Table::new(&[
        Column::left("function", 0, 20),
        Column::left("layer", 6, 0),
        Column::left("module", 8, 0),
        Column::right("calls", 0),
        Column::right("packets", 5),
        Column::right("total   ", 3),
        Column::right("self    ", 0),
        Column::right("min     ", 7),
        Column::right("median  ", 0),
        Column::right("p99     ", 2),
        Column::right("max     ", 4),
        Column::right("max in packet", 9),
    ]);
    for f in rows {
        let plain = |text: String| (text, Style::Plain);
        let time = |ns: Option<i64>| plain(ns.map(duration_aligned).unwrap_or_default());
        let timed = |ns: i64| time((f.timed > 0).then_some(ns));
        table.row(vec![
            plain(f.name.clone()),
            (f.layer.clone(), Style::Faint),
            (f.module.clone(), Style::Faint),
            plain(count(f.calls.unsigned_abs())),
            plain(count(f.packets.unsigned_abs())),
            timed(f.total_ns),
            timed(f.self_ns),
            time(f.min_ns),
            time(f.median_ns),
            time(f.p99_ns),
            time(f.max_ns),
            (f.max_packet_id.map(|p| p.to_string()).unwrap_or_default(), Style::Faint),
        ]);
    }
    table
}

/// What [`as_json`] has, in the order of `--tsv`.
const FIELDS: [&str; 15] = [
    "function",
    "module",
    "kind",
    "layer",
    "via",
    "calls",
    "timed_calls",
    "packets",
    "total_ns",
    "self_ns",
    "min_ns",
    "median_ns",
    "p99_ns",
    "max_ns",
    "max_packet_id",
];

pub fn as_json(f: &FunctionRow) -> Value {
    json!({
        "function": f.name,
        "module": if f.module.is_empty() { "vmlinux" } else { &f.module },
        "kind": f.kind,
        "layer": f.layer,
        "via": f.via,
        "calls": f.calls,
        "timed_calls": f.timed,
        "packets": f.packets,
        "total_ns": f.total_ns,
        "self_ns": f.self_ns,
        "min_ns": f.min_ns,
        "median_ns": f.median_ns,
        "p99_ns": f.p99_ns,
        "max_ns": f.max_ns,
        "max_packet_id": f.max_packet_id,
    })
}
