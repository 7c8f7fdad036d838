//! `kpat phases`: the phases of packets through this host.

mod json;
mod study;

use crate::open;
use crate::output::{Meter, Output};
use crate::packets::{HELP, Which, hint_hidden};
use crate::page;
use crate::render::{
    Column, Line, Pairs, Style, Table, TimeAxis, capital, count, duration_aligned, percent, plural, wrap,
};
use kpat_draw::phases::{self as draw, rows};
use kpat_query::phases::{Boundaries, PassageTime, Phase, PhaseReport, Way, phases, way};
use kpat_query::{PacketFilter, verdict};
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    /// The integrated log
    #[arg(value_name = "X.kpat", required_unless_present = "show_boundaries")]
    log: Option<PathBuf>,
    #[command(flatten)]
    which: Which,
    /// Show the path of this packet, segment by segment
    #[arg(long, value_name = "ID")]
    packet: Option<i64>,
    /// File with further phase boundaries, in addition to the built-in ones
    #[arg(long, value_name = "FILE")]
    boundaries: Option<PathBuf>,
    /// Print the built-in boundaries in the format of --boundaries
    #[arg(long)]
    show_boundaries: bool,
    #[command(flatten)]
    device: open::Device,
    /// Show the shares of the router study of 2009 for comparison
    #[arg(long)]
    study: bool,
    /// Show at most this many functions of each phase; 0: all
    #[arg(long, short = 'n', value_name = "N", default_value_t = 5)]
    limit: usize,
    /// Write a picture to this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Write a page with picture and tables to this file
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

pub fn run(args: &Args, out: &Output) -> anyhow::Result<ExitCode> {
    let (false, Some(path)) = (args.show_boundaries, &args.log) else {
        out.raw(Boundaries::built_in().as_bytes())?;
        return Ok(ExitCode::SUCCESS);
    };
    let log = open::integrated(path, &args.device)?;
    let boundaries = crate::time::boundaries(args.boundaries.as_deref())?;
    if let Some(id) = args.packet {
        let way = way(&log, id, &boundaries)?;
        if out.json {
            out.value(&json::way(&way))?;
        } else {
            out.lines(&draw_way(&way))?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let mut meter = Meter::default();
    let mut progress = |done, total| {
        out.progress(&mut meter, "reading", done, total);
        true
    };
    let report = phases(&log, &args.which.filter(&log)?, &boundaries, &mut progress, &mut |_| ());
    out.clear_progress();
    let report = report?;
    let about = page::about(&log);
    if let Some(path) = &args.svg {
        page::write(path, &draw::svg(&report, &about), out)?;
    }
    if let Some(path) = &args.html {
        let figures = if args.study { Some(study_figures(args, &log, &report, out)?) } else { None };
        page::write(path, &draw::html(&report, &about, figures.as_deref()), out)?;
    }
    if out.json {
        out.value(&json::report(&report, args.study))?;
    } else if report.packets == 0 {
        out.say(&log.nothing("packet"));
    } else {
        text(args, &report, out)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Figures 4 to 7 of the study; the first is of the calls of what was forwarded, or of all packets if nothing left this kernel.
fn study_figures(
    args: &Args,
    log: &open::Integrated,
    report: &PhaseReport,
    out: &Output,
) -> anyhow::Result<String> {
    let touched = |filter: &PacketFilter| {
        let mut meter = Meter::default();
        let mut progress = |done, total| {
            out.progress(&mut meter, "reading calls", done, total);
            true
        };
        let touched = log.store.touched(filter, (None, None), &mut progress, &mut |_| ());
        out.clear_progress();
        touched
    };
    let all = args.which.filter(log)?;
    let forwarded = PacketFilter { verdict: Some(verdict::FORWARDED), ..all.clone() };
    let mut flame = touched(&forwarded)?.flame;
    // Where the receiver is a namespace of this kernel, what passes a router of it is delivered in the end.
    if flame.nodes.is_empty() {
        flame = touched(&all)?.flame;
    }
    Ok(draw::figures(report, &log.store, &flame))
}

fn text(args: &Args, report: &PhaseReport, out: &Output) -> anyhow::Result<()> {
    out.lines(&head(report).render(out.width))?;
    let mut hidden = Vec::new();
    for p in &report.passages {
        out.line(&Line::new())?;
        let title = Line::of(capital(p.passage.name()), Style::Strong);
        out.line(&title.faint(format!("  {}", plural(p.count, "passage"))))?;
        let (lines, left) = phase_table(p, out.width).render(out.width);
        hidden.extend(left);
        out.lines(&lines)?;
        if p.phases.iter().any(rows::has) {
            out.line(&Line::new())?;
            let (lines, left) = function_table(p, args.limit).render(out.width);
            hidden.extend(left);
            out.lines(&lines)?;
        }
    }
    if args.study {
        out.line(&Line::new())?;
        study::show(report, out)?;
    }
    hidden.sort_unstable();
    hidden.dedup();
    hint_hidden(out, &hidden);
    Ok(())
}

fn head(report: &PhaseReport) -> Pairs {
    let mut pairs = Pairs::new();
    pairs.add("packets", count(report.packets));
    let sums = if report.open_sums == 0 {
        Line::of("close", Style::Good).plain(": phases and waits of every packet add up to its path time")
    } else {
        Line::of(format!("do not close in {}", plural(report.open_sums, "packet")), Style::Bad)
    };
    pairs.line("sums", sums);
    let link = || report.passages.iter().flat_map(|p| &p.phases).filter(|f| f.phase == Phase::LinkRx);
    let (known, all) = link().fold((0, 0), |(known, all), f| (known + f.unseen.1, all + f.time.count()));
    if all > 0 {
        let words = format!("of {} of {}", count(known), plural(all, "received passage"));
        let words = if known == all {
            words
        } else {
            format!("{words}; for the others link rx begins at the first function that handled the packet")
        };
        pairs.add("driver", format!("its work before the first function is known {words}"));
    }
    for words in rows::measured(report).into_iter().chain(rows::estimates(report)) {
        pairs.add(Phase::DmaRx.label(), words);
    }
    for m in &report.missing {
        let words = Line::of(m.phase.label(), Style::Warn).plain(format!(" not measurable here: {}", m.why));
        pairs.line("missing", words);
    }
    if report.points_only {
        pairs.add("functions", "none recorded, only tracepoints: phases without the functions in them");
    }
    if let Some(emulator) = &report.emulator {
        let words = format!(
            "virtual ({emulator}): times are not those of a real computer; at best their proportions are"
        );
        pairs.line("machine", Line::of(words, Style::Warn));
    }
    pairs
}

/// Phases in order; then waits; then the sum.
fn phase_table(p: &PassageTime, width: usize) -> Table {
    let mut table = Table::new(&[
        Column::left("phase", 0, 0),
        Column::right("passages", 5),
        Column::right("share", 0),
        Column::right("mean    ", 0),
        Column::right("median  ", 1),
        Column::right("p99     ", 2),
        Column::right("max     ", 4),
        Column::left("share of the passage", 3, 0),
    ]);
    let bar = if width == 0 || width >= 120 { 40 } else { 12 };
    let time = |ns: Option<i64>| (ns.map(duration_aligned).unwrap_or_default(), Style::Plain);
    for f in &p.phases {
        let style = if f.phase.is_wait() { Style::Warn } else { Style::Plain };
        let label =
            if f.phase.is_wait() { format!("wait: {}", f.phase.label()) } else { f.phase.label().to_owned() };
        table.row(vec![
            (label, style),
            (count(f.time.count()), Style::Faint),
            (rows::share(f, p), Style::Plain),
            time(f.time.mean().map(|m| m.round() as i64)),
            time(f.time.median()),
            time(f.time.quantile(0.99)),
            time(f.time.max()),
            (crate::function::bar_of((f.share * 10_000.0) as u64, 10_000, bar), style),
        ]);
    }
    table.row(vec![
        ("in all".to_owned(), Style::Strong),
        (count(p.count), Style::Faint),
        (String::new(), Style::Plain),
        time(p.time.mean().map(|m| m.round() as i64)),
        time(p.time.median()),
        time(p.time.quantile(0.99)),
        time(p.time.max()),
        (String::new(), Style::Plain),
    ]);
    table
}

fn function_table(p: &PassageTime, limit: usize) -> Table {
    let mut table = Table::new(&[
        Column::left("phase", 0, 0),
        Column::left("function", 0, 18),
        Column::left("layer", 4, 0),
        Column::right("passages", 3),
        Column::right("self, mean", 0),
        Column::right("of phase", 0),
    ]);
    for f in p.phases.iter().filter(|f| rows::has(f)) {
        let all = f.time.sum().max(0).unsigned_abs();
        let mean = |ns: i64| (duration_aligned(ns / (f.time.count().max(1) as i64)), Style::Plain);
        let mut label = f.phase.label();
        for row in rows::of(f, limit) {
            let style = if row.passages.is_some() { Style::Plain } else { Style::Faint };
            table.row(vec![
                (std::mem::take(&mut label).to_owned(), Style::Strong),
                (row.name, style),
                (row.layer, Style::Faint),
                (row.passages.map(count).unwrap_or_default(), Style::Faint),
                mean(row.ns),
                (percent(row.ns.max(0).unsigned_abs(), all), Style::Plain),
            ]);
        }
    }
    table
}

fn draw_way(way: &Way) -> Vec<Line> {
    let (Some(first), Some(last)) = (way.segments.first(), way.segments.last()) else {
        return vec![Line::of("this packet was seen only once", Style::Faint)];
    };
    let zero = first.from_ns;
    let axis = TimeAxis::for_range(0, last.to_ns - zero);
    let width = axis.width().max(8);
    let mut lines = vec![Line::of(
        format!("{:>width$}  {:>10}  phase", format!("at {}", axis.unit), "duration"),
        Style::Faint,
    )];
    let mut hop = None;
    for s in &way.segments {
        if hop != Some(s.hop) {
            hop = Some(s.hop);
            let passage = way.passages.get(s.hop as usize).map_or("", |p| p.name());
            lines.push(Line::of(
                format!("{:w$}hop {}: {passage}", "", s.hop + 1, w = width + 14),
                Style::Strong,
            ));
        }
        let wait = s.phase.is_wait();
        let style = if wait { Style::Warn } else { Style::Plain };
        let mut label = if wait { format!("⇢ {}", s.phase.label()) } else { s.phase.label().to_owned() };
        if s.to_ns <= way.seen_ns && !wait {
            label += ", the driver before the first function";
        }
        lines.push(
            Line::new()
                .plain(format!("{:>width$}  ", axis.show(s.from_ns - zero)))
                .put(duration_aligned(s.dur_ns()), style)
                .plain("  ")
                .put(label, style),
        );
    }
    lines.push(
        Line::new()
            .plain(format!(
                "{:>width$}  {}  ",
                axis.show(last.to_ns - zero),
                duration_aligned(last.to_ns - zero)
            ))
            .put("in all", Style::Strong),
    );
    lines
}

/// Sentences under each other.
fn sentence(text: &str, width: usize) -> Vec<Line> {
    wrap(&Line::of(text, Style::Faint), if width == 0 { usize::MAX } else { width })
}
