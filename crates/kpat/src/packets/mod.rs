//! `kpat packets`: a list of packets.

pub mod expression;
mod follow;
mod recent;
mod tail;
mod which;

use crate::listing::Listing;
use crate::open::{self, Integrated};
use crate::output::Output;
use crate::render::{Column, Layout, Line, Style, Table, count, duration_aligned};
use crate::times::{self, Times};
use clap::ValueEnum;
pub use expression::HELP;
use kpat_query::columns::{self, PACKET_COLUMNS, PacketColumn, Unit};
use kpat_query::protocol;
use kpat_query::{PacketFilter, PacketSort, verdict};
use kpat_store::tables::PacketRow;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::ExitCode;
pub use which::Which;

#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    /// The integrated log; with --follow a running recording (X.kbl, or its folder)
    #[arg(value_name = "X.kpat")]
    log: PathBuf,
    #[command(flatten)]
    device: open::Device,
    #[command(flatten)]
    which: Which,
    /// Sort order
    #[arg(long, default_value = "time")]
    sort: Sort,
    /// Reverse the order
    #[arg(long, short)]
    reverse: bool,
    #[command(flatten)]
    times: times::Clock,
    #[command(flatten)]
    listing: Listing,
    /// Follow a running recording: print each packet within a second or two, until the recording ends; with --json one object per line
    #[arg(long, conflicts_with_all = ["sort", "reverse", "limit", "name"])]
    follow: bool,
    /// Show at most this many; 0: all
    #[arg(long, short = 'n', value_name = "N", default_value_t = 100)]
    limit: usize,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Sort {
    /// First seen first
    Time,
    /// Longest path first
    Path,
    /// Most time in functions first
    Kernel,
    /// Largest first
    Length,
    /// Most calls first
    Calls,
}

pub fn run(args: &Args, out: &Output) -> anyhow::Result<ExitCode> {
    if args.follow {
        return follow::run(args, out);
    }
    let store = open::integrated(&args.log, &args.device)?;
    let filter = args.which.filter(&store)?;
    let times = Times::of(&args.times, &store)?;
    let sort = match args.sort {
        Sort::Time => PacketSort::Time,
        Sort::Path => PacketSort::Path,
        Sort::Kernel => PacketSort::Kernel,
        Sort::Length => PacketSort::Length,
        Sort::Calls => PacketSort::Calls,
    };
    if args.limit == 0 {
        return all(args, &store, &times, &filter, sort, out);
    }
    let list = store.packets(&filter, sort, args.reverse, args.limit)?;
    if out.json {
        let packets: Vec<Value> = list.rows.iter().map(|p| as_json(&store, p)).collect();
        out.value(&json!({
            "start_boot_ns": store.start_ns(),
            "start_wall_ns": times::wall(&store, store.start_ns()),
            "total": list.total,
            "shown": packets.len(),
            "packets": packets,
        }))?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(tsv) = args.listing.tsv(&fields())? {
        tsv.rows(list.rows.iter().map(|p| as_json(&store, p)), out)?;
        return Ok(ExitCode::SUCCESS);
    }
    if list.rows.is_empty() {
        out.say(&store.nothing("packet"));
        return Ok(ExitCode::SUCCESS);
    }
    let hidden = args.listing.print(table(&store, &times, &list.rows, args.listing.is_chosen()), out)?;
    if (list.rows.len() as u64) < list.total {
        out.say(&format!(
            "{} of {} packets shown; --limit 0 shows all",
            count(list.rows.len() as u64),
            count(list.total)
        ));
    }
    hint_hidden(out, &hidden);
    foot(&store, out)?;
    Ok(ExitCode::SUCCESS)
}

/// How far to trust the list, where that is not all the way.
fn foot(store: &Integrated, out: &Output) -> anyhow::Result<()> {
    let trust = store.info()?.trust();
    if let Some(p) = trust.worst().filter(|p| p.good < p.all) {
        out.say(&format!("trust {}.{:04} % {}", p.ppm() / 10_000, p.ppm() % 10_000, p.words));
    }
    Ok(())
}

/// All packets that fit, printed as they are read.
fn all(
    args: &Args,
    store: &Integrated,
    times: &Times,
    filter: &PacketFilter,
    sort: PacketSort,
    out: &Output,
) -> anyhow::Result<ExitCode> {
    let reverse = args.reverse;
    if let Some(tsv) = args.listing.tsv(&fields())? {
        tsv.head(out)?;
        store.each_packet(filter, sort, reverse, &mut |p| -> anyhow::Result<bool> {
            tsv.row(&as_json(store, &p), out)?;
            Ok(true)
        })?;
        return Ok(ExitCode::SUCCESS);
    }
    if out.json {
        let mut json = JsonList { out, items: 0 };
        let total = store.each_packet(filter, sort, reverse, &mut |p| -> anyhow::Result<bool> {
            json.item(&as_json(store, &p))?;
            Ok(true)
        })?;
        json.end(&[
            ("shown", total.into()),
            ("start_boot_ns", store.start_ns().into()),
            ("start_wall_ns", times::wall(store, store.start_ns()).into()),
            ("total", total.into()),
        ])?;
        return Ok(ExitCode::SUCCESS);
    }
    /// The widths of the columns are those of so many packets, until one needs more.
    const SAMPLE: usize = 1000;
    let mut rows: Vec<PacketRow> = Vec::with_capacity(SAMPLE);
    let mut layout: Option<Layout> = None;
    let mut print = |rows: &mut Vec<PacketRow>, more: bool| -> anyhow::Result<()> {
        let part = args.listing.choose(table(store, times, rows, args.listing.is_chosen()))?;
        rows.clear();
        if layout.is_none() {
            let made = part.layout(out.width, more);
            if args.listing.has_header() {
                out.line(&part.head(&made))?;
            }
            layout = Some(made);
        }
        if let Some(layout) = &mut layout {
            out.lines(&part.body(layout))?;
        }
        // Whoever waits for the first line has it.
        out.flush()
    };
    let total = store.each_packet(filter, sort, reverse, &mut |p| -> anyhow::Result<bool> {
        rows.push(p);
        if rows.len() >= SAMPLE {
            print(&mut rows, true)?;
        }
        Ok(true)
    })?;
    if total == 0 {
        out.say(&store.nothing("packet"));
        return Ok(ExitCode::SUCCESS);
    }
    if !rows.is_empty() {
        print(&mut rows, false)?;
    }
    hint_hidden(out, &layout.map(|l| l.hidden).unwrap_or_default());
    foot(store, out)?;
    Ok(ExitCode::SUCCESS)
}

/// A JSON object whose list `packets` is written as it is made.
struct JsonList<'a> {
    out: &'a Output,
    items: u64,
}

impl JsonList<'_> {
    fn item(&mut self, value: &Value) -> anyhow::Result<()> {
        let head = if self.items == 0 { "{\n  \"packets\": [\n" } else { ",\n" };
        self.items += 1;
        let text = serde_json::to_string_pretty(value)?.replace('\n', "\n    ");
        self.out.json_text(&format!("{head}    {text}"))
    }

    fn end(self, rest: &[(&str, Value)]) -> anyhow::Result<()> {
        let mut text = if self.items == 0 { "{\n  \"packets\": []" } else { "\n  ]" }.to_owned();
        for (name, value) in rest {
            text += &format!(",\n  \"{name}\": {value}");
        }
        self.out.json_text(&(text + "\n}\n"))
    }
}

/// Names the columns that a narrow terminal left out.
pub fn hint_hidden(out: &Output, hidden: &[&str]) {
    // A column of bars has no heading.
    let named: Vec<&str> = hidden.iter().map(|h| h.trim()).filter(|h| !h.is_empty()).collect();
    if !named.is_empty() {
        out.say(&format!("columns left out: {} (use a wider terminal, --width or --json)", named.join(", ")));
    }
}

/// Styles say nothing that the word does not.
pub fn verdict_style(code: i32) -> Style {
    match code {
        verdict::DELIVERED | verdict::FORWARDED | verdict::SENT => Style::Good,
        verdict::DROPPED => Style::Bad,
        verdict::UNKNOWN => Style::Faint,
        _ => Style::Warn,
    }
}

/// The columns that are shown if none are chosen: what each is called in [`PACKET_COLUMNS`], and how it gives way in a narrow terminal.
fn shown(times: &Times) -> [(&'static str, Column); 14] {
    [
        ("id", Column::right("id", 0)),
        ("time", Column::right(times.heading(), 0)),
        ("source", Column::left("source", 0, 13)),
        ("destination", Column::left("destination", 0, 13)),
        ("proto", Column::left("proto", 0, 0)),
        ("length", Column::right("length", 6)),
        ("info", Column::left("info", 5, 12)),
        ("frames", Column::right("frames", 8)),
        ("calls", Column::right("calls", 7)),
        ("path", Column::right("path     ", 0)),
        ("verdict", Column::left("verdict", 0, 0)),
        ("process", Column::left("process", 9, 0)),
        ("match", Column::right("match", 10)),
        ("drop reason", Column::left("drop reason", 4, 11)),
    ]
}

/// `chosen`: of columns that are chosen by name, so it has all.
fn table(store: &Integrated, times: &Times, rows: &[PacketRow], chosen: bool) -> Table {
    let mut heads = shown(times).to_vec();
    for name in PACKET_COLUMNS.iter().flat_map(|c| c.head.names()).filter(|_| chosen) {
        if heads.iter().all(|(shown, _)| shown != name) {
            heads.push((*name, Column::right(name, 0)));
        }
    }
    let columns: Vec<(&str, Column, &PacketColumn)> = heads
        .into_iter()
        .filter_map(|(name, head)| PacketColumn::with_head(name).map(|column| (name, head, column)))
        .collect();
    let mut table = Table::new(&columns.iter().map(|c| c.1).collect::<Vec<_>>());
    for p in rows {
        table.row(columns.iter().map(|(name, _, column)| cell(store, times, name, column, p)).collect());
    }
    table
}

/// Of a column that nobody says more of here: its first field, in its unit.
fn cell(
    store: &Integrated,
    times: &Times,
    name: &str,
    column: &PacketColumn,
    p: &PacketRow,
) -> (String, Style) {
    let pair = |[a, b]: [Option<String>; 2]| match (a, b) {
        (None, None) => String::new(),
        (a, b) => format!("{} → {}", a.as_deref().unwrap_or("·"), b.as_deref().unwrap_or("·")),
    };
    let text = match name {
        "source" => protocol::endpoint(p.src_addr.as_deref(), p.sport),
        "destination" => protocol::endpoint(p.dst_addr.as_deref(), p.dport),
        "length" if p.len_bytes == 0 => "?".to_owned(),
        "info" => protocol::summary(p),
        "process" => p.pid.map(|pid| store.process_name(pid, p.last_ns)).unwrap_or_default(),
        "ifindex" => pair([p.if_in, p.if_out].map(|i| i.map(|i| i.to_string()))),
        "interfaces" => {
            let named = |i: Option<i32>, netns| i.map(|i| store.interface(i, netns));
            pair([named(p.if_in, p.if_in_netns), named(p.if_out, p.if_out_netns)])
        }
        _ => match (column.fields.first().map(|f| (f.get)(store, p)), column.unit) {
            (None | Some(columns::Value::Null), _) => String::new(),
            (Some(columns::Value::Text(text)), _) => text,
            (Some(columns::Value::Number(n)), Unit::Plain) => n.to_string(),
            (Some(columns::Value::Number(n)), Unit::Moment) => times.show(n),
            (Some(columns::Value::Number(n)), Unit::Duration) => duration_aligned(n),
            (Some(columns::Value::Number(n)), Unit::Percent) => format!("{n} %"),
        },
    };
    let style = match name {
        "frames" if p.frames > 0 => Style::Wire,
        "frames" => Style::Faint,
        "verdict" => verdict_style(p.verdict),
        "drop reason" => Style::Bad,
        _ => Style::Plain,
    };
    (text, style)
}

/// What [`as_json`] has, in the order of `--tsv`.
fn fields() -> Vec<&'static str> {
    columns::packet_fields().map(|f| f.name).collect()
}

pub fn as_json(store: &Integrated, p: &PacketRow) -> Value {
    let value = |v: columns::Value| match v {
        columns::Value::Null => Value::Null,
        columns::Value::Number(n) => n.into(),
        columns::Value::Text(text) => text.into(),
    };
    columns::packet_fields().map(|f| (f.name.to_owned(), value((f.get)(store, p)))).collect()
}

/// Heading of one packet, as `kpat packet` begins.
pub fn title(p: &PacketRow) -> Line {
    let addresses = [
        protocol::endpoint(p.src_addr.as_deref(), p.sport),
        protocol::endpoint(p.dst_addr.as_deref(), p.dport),
    ];
    let mut line = Line::of(format!("Packet {}", p.packet_id), Style::Strong)
        .plain(format!("  {}", protocol::name(p.ethertype, p.proto)));
    let info = protocol::summary(p);
    if !info.is_empty() {
        line = line.plain(format!(" {info}"));
    }
    if addresses.iter().any(|a| !a.is_empty()) {
        line = line.plain(format!("  {} → {}", addresses[0], addresses[1]));
    }
    if p.len_bytes > 0 {
        line = line.plain(format!("  {} B", count(p.len_bytes.unsigned_abs())));
    }
    line
}
