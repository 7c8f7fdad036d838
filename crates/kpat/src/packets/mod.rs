//! `kpat packets`: a list of packets.

mod expression;
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
    if let Some(tsv) = args.listing.tsv(&FIELDS)? {
        tsv.rows(list.rows.iter().map(|p| as_json(&store, p)), out)?;
        return Ok(ExitCode::SUCCESS);
    }
    if list.rows.is_empty() {
        out.say("no packet matches");
        return Ok(ExitCode::SUCCESS);
    }
    let hidden = args.listing.print(table(&store, &times, &list.rows), out)?;
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
    if let Some(tsv) = args.listing.tsv(&FIELDS)? {
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
        let part = args.listing.choose(table(store, times, rows))?;
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
        out.say("no packet matches");
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
    if !hidden.is_empty() {
        out.say(&format!(
            "columns left out: {} (use a wider terminal, --width or --json)",
            hidden.iter().map(|h| h.trim()).collect::<Vec<_>>().join(", ")
        ));
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

pub fn table(store: &Integrated, times: &Times, rows: &[PacketRow]) -> Table {
    let mut table = Table::new(&[
        Column::right("id", 0),
        Column::right(times.heading(), 0),
        Column::left("source", 0, 13),
        Column::left("destination", 0, 13),
        Column::left("proto", 0, 0),
        Column::right("length", 6),
        Column::left("info", 5, 12),
        Column::right("frames", 8),
        Column::right("calls", 7),
        Column::right("path     ", 0),
        Column::left("verdict", 0, 0),
        Column::left("process", 9, 0),
        Column::right("match", 10),
        Column::left("drop reason", 4, 11),
    ]);
    for p in rows {
        let plain = |text: String| (text, Style::Plain);
        let process = p.pid.map(|pid| store.process_name(pid, p.last_ns));
        table.row(vec![
            plain(p.packet_id.to_string()),
            plain(times.show(p.first_ns)),
            plain(protocol::endpoint(p.src_addr.as_deref(), p.sport)),
            plain(protocol::endpoint(p.dst_addr.as_deref(), p.dport)),
            plain(protocol::name(p.ethertype, p.proto)),
            plain(if p.len_bytes == 0 { "?".to_owned() } else { p.len_bytes.to_string() }),
            plain(protocol::summary(p)),
            (p.frames.to_string(), if p.frames > 0 { Style::Wire } else { Style::Faint }),
            plain(p.calls.to_string()),
            plain(duration_aligned(p.path_ns)),
            (verdict::name(p.verdict).to_owned(), verdict_style(p.verdict)),
            plain(process.unwrap_or_default()),
            plain(p.confidence.map(|c| format!("{c} %")).unwrap_or_default()),
            (p.drop_reason.map(|r| store.drop_name(r)).unwrap_or_default(), Style::Bad),
        ]);
    }
    table
}

/// What [`as_json`] has, in the order of `--tsv`.
const FIELDS: [&str; 39] = [
    "packet_id",
    "first_boot_ns",
    "first_wall_ns",
    "last_boot_ns",
    "last_wall_ns",
    "path_ns",
    "kernel_ns",
    "driver_ns",
    "softirq_ns",
    "card_ns",
    "card_bound_ns",
    "stamp_ns",
    "protocol",
    "ethertype",
    "ip_proto",
    "src_addr",
    "src_port",
    "dst_addr",
    "dst_port",
    "tcp_flags",
    "tcp_seq",
    "icmp_type",
    "icmp_id",
    "icmp_seq",
    "arp_op",
    "len_bytes",
    "frames",
    "calls",
    "points",
    "verdict",
    "drop_reason",
    "pid",
    "process",
    "netns",
    "in_ifindex",
    "in_netns",
    "out_ifindex",
    "out_netns",
    "match_confidence_percent",
];

pub fn as_json(store: &Integrated, p: &PacketRow) -> Value {
    json!({
        "packet_id": p.packet_id,
        "first_boot_ns": p.first_ns,
        "first_wall_ns": times::wall(store, p.first_ns),
        "last_boot_ns": p.last_ns,
        "last_wall_ns": times::wall(store, p.last_ns),
        "path_ns": p.path_ns,
        "kernel_ns": p.kernel_ns,
        "driver_ns": p.driver_ns,
        "softirq_ns": p.softirq_ns,
        "card_ns": p.card_ns,
        "card_bound_ns": p.card_bound_ns,
        "stamp_ns": p.stamp_ns,
        "protocol": protocol::name(p.ethertype, p.proto),
        "ethertype": p.ethertype,
        "ip_proto": p.proto,
        "src_addr": p.src_addr,
        "dst_addr": p.dst_addr,
        "src_port": p.sport,
        "dst_port": p.dport,
        "tcp_flags": p.tcp_flags,
        "tcp_seq": p.tcp_seq,
        "icmp_type": p.icmp_kind,
        "icmp_id": p.icmp_id,
        "icmp_seq": p.icmp_seq,
        "arp_op": p.arp_op,
        "len_bytes": p.len_bytes,
        "frames": p.frames,
        "calls": p.calls,
        "points": p.points,
        "verdict": verdict::name(p.verdict),
        "drop_reason": p.drop_reason.map(|r| store.drop_name(r)),
        "pid": p.pid,
        "process": p.pid.and_then(|pid| store.process(pid, p.last_ns)).map(|q| q.comm.as_str()),
        "netns": p.netns,
        "in_ifindex": p.if_in,
        "in_netns": p.if_in_netns,
        "out_ifindex": p.if_out,
        "out_netns": p.if_out_netns,
        "match_confidence_percent": p.confidence,
    })
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
