//! `kpat function NAME`: one function's times, how they are spread, and the packets it handled.

use crate::functions;
use crate::listing::Listing;
use crate::open::{self, Integrated};
use crate::output::{Output, usage};
use crate::packets::hint_hidden;
use crate::render::{
    Column, Line, Pairs, Style, Table, count, duration, duration_aligned, parse_duration, percent, plural,
};
use crate::times::{self, Times};
use kpat_model::Context;
use kpat_model::explained::{Explained, explained};
use kpat_query::filter::When;
use kpat_query::protocol;
use kpat_query::{CallFilter, CallOfFunction, call_flag, verdict};
use kpat_store::tables::{DurationRow, FunctionRow};
use serde_json::{Value, json};
use std::process::ExitCode;

#[derive(clap::Args)]
#[command(override_usage = "kpat function [OPTIONS] <NAME> <X.kpat>")]
pub struct Args {
    /// The name of the function and the integrated log
    #[arg(value_names = ["NAME", "X.kpat"], num_args = 2, required = true)]
    words: Vec<String>,
    /// Only calls of at least this duration, for example 10us
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    slower_than: Option<i64>,
    /// Only calls of at most this duration
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    faster_than: Option<i64>,
    /// Only calls entered at or after this time since the start
    #[arg(long, value_name = "TIME", value_parser = When::parse)]
    from: Option<When>,
    /// Only calls entered at or before this time since the start
    #[arg(long, value_name = "TIME", value_parser = When::parse)]
    to: Option<When>,
    /// Earliest calls first instead of the longest first
    #[arg(long)]
    by_time: bool,
    #[command(flatten)]
    device: open::Device,
    #[command(flatten)]
    times: times::Clock,
    #[command(flatten)]
    listing: Listing,
    /// Show at most this many calls; 0: all
    #[arg(long, short = 'n', value_name = "N", default_value_t = 20)]
    limit: usize,
}

pub fn run(args: &Args, out: &Output) -> anyhow::Result<ExitCode> {
    let (name, path) = open::thing_and_log(&args.words, "function NAME")?;
    if name.contains(['*', '?']) {
        return Err(usage(format!(
            "`{name}` matches several functions, of which one is shown; list them with: kpat functions {} '{name}'",
            path.display()
        )));
    }
    let log = open::integrated(path, &args.device)?;
    let filter = CallFilter {
        slower_than_ns: args.slower_than,
        faster_than_ns: args.faster_than,
        from_ns: args.from.map(|t| t.in_log(&log)).transpose()?,
        to_ns: args.to.map(|t| t.in_log(&log)).transpose()?,
        limit: args.limit,
        longest_first: !args.by_time,
        packets: None,
        count_packets: true,
    };
    let detail = log.function(name, &filter)?;
    let histogram = Histogram::of(&detail.durations);
    if out.json {
        let calls: Vec<Value> = detail.calls.iter().map(|c| call_json(&log, c)).collect();
        out.value(&json!({
            "start_boot_ns": log.start_ns(),
            "start_wall_ns": times::wall(&log, log.start_ns()),
            "function": functions::as_json(&detail.function),
            "explained": explained(name).map(|e| json!({"does": e.does, "slow": e.slow, "source": e.source})),
            "histogram": histogram.as_json(),
            "total": detail.total,
            "packets": detail.packets,
            "shown": calls.len(),
            "calls": calls,
        }))?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(tsv) = args.listing.tsv(&FIELDS)? {
        tsv.rows(detail.calls.iter().map(|c| call_json(&log, c)), out)?;
        return Ok(ExitCode::SUCCESS);
    }
    out.lines(&head(&log, &detail.function))?;
    if let Some(e) = explained(&detail.function.name) {
        out.line(&Line::new())?;
        out.lines(&sentences(&e, &detail.function.kind).render(out.width))?;
    }
    if histogram.total() > 0 {
        out.line(&Line::new())?;
        out.lines(&histogram.render(out.width))?;
    }
    if detail.calls.is_empty() {
        let why = if detail.function.calls == 0 { "was never called" } else { "has no matching call" };
        out.say(&format!("{} {why}", detail.function.name));
        return Ok(ExitCode::SUCCESS);
    }
    out.line(&Line::new())?;
    let order = if args.by_time || detail.function.timed == 0 { "in order of time" } else { "longest first" };
    let what = if detail.function.kind == "tracepoint" { "Passings" } else { "Calls" };
    out.line(&Line::of(what, Style::Strong).faint(format!(", {order}")))?;
    let hidden = args.listing.print(calls_table(&log, &Times::of(&args.times, &log)?, &detail.calls), out)?;
    if let Some(packets) = detail.packets
        && (detail.calls.len() as u64) < detail.total
    {
        out.say(&format!(
            "{} of {} calls shown, with {} packets in all; --limit 0 shows all",
            detail.calls.len(),
            count(detail.total),
            count(packets)
        ));
    }
    hint_hidden(out, &hidden);
    Ok(ExitCode::SUCCESS)
}

/// What it does with a packet, and where its time goes.
fn sentences(e: &Explained, kind: &str) -> Pairs {
    let mut p = Pairs::new();
    let source = if e.source.is_empty() { String::new() } else { format!(" ({})", e.source) };
    p.line("does", Line::new().plain(e.does).faint(source));
    p.add(if kind == "tracepoint" { "means" } else { "time" }, e.slow);
    p
}

fn head(log: &Integrated, f: &FunctionRow) -> Vec<Line> {
    let mut title = Line::of(&f.name, Style::Strong);
    let module = if f.module.is_empty() { "vmlinux" } else { &f.module };
    for note in [f.kind.as_str(), &f.layer, module] {
        if !note.is_empty() {
            title = title.faint(format!("  {note}"));
        }
    }
    let mut lines = vec![title];
    if !f.via.is_empty() {
        lines.push(Line::new().faint("packet by ").plain(&f.via));
    }
    let mut counts = Line::new().plain(format!(
        "{}, {}",
        plural(f.calls.unsigned_abs(), "call"),
        plural(f.packets.unsigned_abs(), "packet")
    ));
    if f.timed < f.calls && f.timed > 0 {
        counts = counts.plain(format!(", {} timed", count(f.timed.unsigned_abs())));
    }
    lines.push(counts);
    if f.timed > 0 {
        let span = log.manifest.last_ns.saturating_sub(log.manifest.first_ns).max(0);
        lines.push(Line::new().plain(format!(
            "total {}, self {} ({} of the recording)",
            duration(f.total_ns),
            duration(f.self_ns),
            percent(f.self_ns.unsigned_abs().min(span.unsigned_abs()), span.unsigned_abs())
        )));
        let time = |ns: Option<i64>| ns.map_or("?".to_owned(), duration);
        let mut line = Line::new().plain(format!(
            "min {}, median {}, p99 {}, max {}",
            time(f.min_ns),
            time(f.median_ns),
            time(f.p99_ns),
            time(f.max_ns)
        ));
        if let Some(packet) = f.max_packet_id {
            line = line.plain(format!(" (packet {packet})"));
        }
        lines.push(line);
    }
    lines
}

/// Durations by powers of two.
struct Histogram {
    /// Bucket i holds durations of i significant bits: 0, 1, 2..4, 4..8 ...
    buckets: [u64; 64],
}

impl Histogram {
    fn of(durations: &[DurationRow]) -> Histogram {
        let mut buckets = [0; 64];
        for d in durations {
            buckets[(64 - d.from_ns.max(0).leading_zeros() as usize).min(63)] += d.calls.unsigned_abs();
        }
        Histogram { buckets }
    }

    fn total(&self) -> u64 {
        self.buckets.iter().sum()
    }

    fn span(&self) -> std::ops::RangeInclusive<usize> {
        let first = self.buckets.iter().position(|n| *n > 0).unwrap_or(0);
        let last = self.buckets.iter().rposition(|n| *n > 0).unwrap_or(0);
        first..=last
    }

    fn from_ns(bucket: usize) -> i64 {
        if bucket == 0 { 0 } else { 1 << (bucket - 1) }
    }

    fn render(&self, width: usize) -> Vec<Line> {
        let most = self.buckets.iter().copied().max().unwrap_or(0).max(1);
        let digits = count(most).len().max(5);
        let fixed = 10 + 3 + 11 + 2 + digits + 2 + 6 + 2;
        let bar = match width {
            0 => 50,
            w => w.saturating_sub(fixed).clamp(8, 80),
        };
        let mut lines = vec![Line::of("Duration", Style::Strong)];
        for bucket in self.span() {
            let n = self.buckets[bucket];
            lines.push(
                Line::new()
                    .plain(duration_aligned(Self::from_ns(bucket)))
                    .faint(" … ")
                    .plain(duration_aligned(1 << bucket.min(62)))
                    .plain(format!("  {:>digits$}  {:>6}  ", count(n), percent(n, self.total())))
                    .put(bar_of(n, most, bar), Style::Wire),
            );
        }
        lines
    }

    fn as_json(&self) -> Vec<Value> {
        self.span()
            .filter(|_| self.total() > 0)
            .map(|b| json!({ "from_ns": Self::from_ns(b), "below_ns": 1_i64 << b.min(62), "calls": self.buckets[b] }))
            .collect()
    }
}

/// A bar in eighths of a column; what is not nothing shows.
pub fn bar_of(n: u64, most: u64, width: usize) -> String {
    // A damaged log's sums may say more than the most.
    let most = most.max(1);
    let eighths = (u128::from(n.min(most)) * width as u128 * 8 / u128::from(most)) as usize;
    let eighths = if n > 0 { eighths.max(1) } else { 0 };
    const PARTS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    format!("{}{}", "█".repeat(eighths / 8), PARTS[eighths % 8])
}

fn calls_table(log: &Integrated, times: &Times, calls: &[CallOfFunction]) -> Table {
    let mut table = Table::new(&[
        Column::right(times.heading_of("entry s", "entry UTC"), 0),
        Column::right("duration", 0),
        Column::right("self    ", 3),
        Column::right("CPU", 5),
        Column::left("context", 6, 0),
        Column::right("packet", 0),
        Column::left("proto", 2, 0),
        Column::left("source", 0, 11),
        Column::left("destination", 0, 11),
        Column::left("verdict", 7, 0),
        Column::left("current process", 8, 0),
        Column::left("note", 4, 0),
    ]);
    for CallOfFunction { call, packet } in calls {
        let plain = |text: String| (text, Style::Plain);
        let time = |ns: Option<i64>| plain(ns.map(duration_aligned).unwrap_or_default());
        let p = packet.as_ref();
        table.row(vec![
            plain(times.show(call.entry_ns)),
            time(call.dur_ns),
            time(call.self_ns),
            plain(call.cpu.to_string()),
            plain(context(call.ctx).to_owned()),
            plain(call.packet_id.map(|p| p.to_string()).unwrap_or_default()),
            plain(p.map(|p| protocol::name(p.ethertype, p.proto)).unwrap_or_default()),
            plain(p.map(|p| protocol::endpoint(p.src_addr.as_deref(), p.sport)).unwrap_or_default()),
            plain(p.map(|p| protocol::endpoint(p.dst_addr.as_deref(), p.dport)).unwrap_or_default()),
            plain(p.map(|p| verdict::name(p.verdict).to_owned()).unwrap_or_default()),
            (log.process_name(call.pid, call.entry_ns), Style::Faint),
            (flag_notes(call.flags).join(", "), Style::Warn),
        ]);
    }
    table
}

pub fn context(code: i32) -> &'static str {
    Context::from_u8(u8::try_from(code).unwrap_or(u8::MAX)).name()
}

/// What is odd about a call.
pub fn flag_notes(flags: i32) -> Vec<&'static str> {
    let returns = if flags & call_flag::ENTRY_ONLY != 0 { "entry only" } else { "return not seen" };
    [
        (call_flag::LIST, "list"),
        (call_flag::NO_RETURN, returns),
        (call_flag::RETURNED, "returned the packet"),
        (call_flag::SELF_CLAMPED, "self time uncertain"),
    ]
    .into_iter()
    .filter(|(bit, _)| flags & bit != 0)
    .map(|(_, note)| note)
    .collect()
}

/// What [`call_json`] has, in the order of `--tsv`.
const FIELDS: [&str; 14] = [
    "call_id",
    "packet_id",
    "entry_boot_ns",
    "entry_wall_ns",
    "dur_ns",
    "self_ns",
    "irq_ns",
    "off_ns",
    "parent_call_id",
    "cpu",
    "context",
    "pid",
    "process",
    "flags",
];

fn call_json(log: &Integrated, c: &CallOfFunction) -> Value {
    let call = &c.call;
    json!({
        "call_id": call.call_id,
        "packet_id": call.packet_id,
        "entry_boot_ns": call.entry_ns,
        "entry_wall_ns": times::wall(log, call.entry_ns),
        "dur_ns": call.dur_ns,
        "self_ns": call.self_ns,
        "irq_ns": call.irq_ns,
        "off_ns": call.off_ns,
        "parent_call_id": call.parent_id,
        "cpu": call.cpu,
        "context": context(call.ctx),
        "pid": call.pid,
        "process": log.process(call.pid, call.entry_ns).map(|p| p.comm.as_str()),
        "flags": flag_names(call.flags),
        "packet": c.packet.as_ref().map(|p| crate::packets::as_json(log, p)),
    })
}

/// As JSON says them.
pub fn flag_names(flags: i32) -> Vec<&'static str> {
    [
        (call_flag::LIST, "list"),
        (call_flag::NO_RETURN, "no_return"),
        (call_flag::RETURNED, "returned"),
        (call_flag::ENDS, "ends"),
        (call_flag::WITHIN, "within"),
        (call_flag::ENTRY_ONLY, "entry_only"),
        (call_flag::POINT, "point"),
        (call_flag::SELF_CLAMPED, "self_clamped"),
    ]
    .into_iter()
    .filter(|(bit, _)| flags & bit != 0)
    .map(|(_, name)| name)
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_histogram_shows_every_bucket_between_and_the_smallest() {
        let mut buckets = [0; 64];
        (buckets[0], buckets[10], buckets[12]) = (1, 100_000, 5);
        let h = Histogram { buckets };
        let lines = h.render(60);
        assert_eq!(lines.len(), 14);
        assert!(lines[1].paint(false).ends_with('▏'));
        assert!(lines.iter().all(|l| l.width() <= 60));
        assert_eq!(bar_of(5, 10, 4), "██");
        assert_eq!((bar_of(u64::MAX, 10, 4), bar_of(1, 0, 2)), ("████".into(), "██".into()));
    }
}
