//! The report as text.

use super::{Args, Of, Sort};
use crate::function::bar_of;
use crate::output::Output;
use crate::packets::hint_hidden;
use crate::render::{Column, Line, Pairs, Style, Table, count, duration, duration_aligned, percent, plural};
use kpat_query::phases::Phase;
use kpat_query::time::{Closure, FunctionTime, GroupTime, RunCost, Spread, TimeReport};

pub fn show(args: &Args, report: &TimeReport, out: &Output) -> anyhow::Result<()> {
    out.lines(&head(report).render(out.width))?;
    let mut all_hidden: Vec<&'static str> = Vec::new();
    if args.by.is_some() {
        out.line(&Line::new())?;
        let (lines, hidden) = groups(report).render(out.width);
        out.lines(&lines)?;
        all_hidden.extend(hidden);
    }
    for g in &report.groups {
        out.line(&Line::new())?;
        if args.by.is_some() {
            let packets = plural(g.packets, "packet");
            out.line(&Line::of(&g.label, Style::Strong).faint(format!("  {packets}")))?;
        }
        let (lines, hidden) = per_packet(g, report.points_only).render(out.width);
        out.lines(&lines)?;
        all_hidden.extend(hidden);
        // Grouped, the functions of every group would bury the groups.
        if !report.points_only && (args.by.is_none() || !args.function.is_empty()) {
            out.line(&Line::new())?;
            let functions = chosen(args, g);
            if functions.is_empty() {
                out.line(&Line::of("no call matches", Style::Faint))?;
                continue;
            }
            let (lines, hidden) = function_table(args, g, &functions).render(out.width);
            out.lines(&lines)?;
            all_hidden.extend(hidden);
            if functions.len() < g.functions.len() {
                out.say(&format!(
                    "{} of {} functions shown; --limit 0 shows all",
                    functions.len(),
                    g.functions.len()
                ));
            }
        }
        if args.histogram {
            histograms(args, g, out)?;
        }
    }
    all_hidden.sort_unstable();
    all_hidden.dedup();
    hint_hidden(out, &all_hidden);
    Ok(())
}

fn head(report: &TimeReport) -> Pairs {
    let mut pairs = Pairs::new();
    pairs.add("packets", count(report.groups.iter().map(|g| g.packets).sum()));
    pairs.line("sums", sums(&report.closure));
    let c = &report.closure;
    if report.pauses && c.off_ns > 0 {
        pairs.add(
            "off the CPU",
            format!("{} within calls: tasks slept or were preempted", duration(c.off_ns)),
        );
    } else if !report.pauses && c.task_own_ns > 0 {
        let share = percent(c.task_own_ns.unsigned_abs(), c.own_ns.unsigned_abs());
        let words = format!("not recorded; {share} of the self time is of tasks, which may have slept in it");
        pairs.add("preemption", words);
    }
    let own: i64 = report.groups.iter().flat_map(|g| &g.functions).map(|f| f.own.sum()).sum();
    let cost: i64 = report.groups.iter().flat_map(|g| &g.functions).map(|f| f.cost_own_ns).sum();
    let clamped: u64 = report.groups.iter().flat_map(|g| &g.functions).map(|f| f.clamped).sum();
    match report.run_cost {
        _ if report.points_only => {
            pairs.add("functions", "none recorded, only tracepoints: waits, but no times of functions");
        }
        Some(run) if report.subtracted => pairs.line(
            "probes",
            Line::of("times are estimates: ", Style::Warn).plain(format!(
                "{} subtracted, {} in all; {} would have been negative and count as 0",
                per_run(run),
                duration(cost),
                plural(clamped, "call")
            )),
        ),
        Some(run) => pairs.add(
            "probes",
            format!(
                "an estimate: {}, two runs per call, {} of the self time below (--subtract-cost subtracts it)",
                per_run(run),
                percent(cost.max(0).unsigned_abs(), own.max(cost).max(0).unsigned_abs())
            ),
        ),
        None => pairs.add("probes", "their own cost is not in the log"),
    }
    pairs
}

fn per_run(run: RunCost) -> String {
    if run.ns < run.mean_ns {
        format!(
            "{:.0} ns per program run (as short as the shortest call; {:.0} ns on average)",
            run.ns, run.mean_ns
        )
    } else {
        format!("{:.0} ns per program run", run.ns)
    }
}

pub fn sums(c: &Closure) -> Line {
    if c.calls == 0 {
        return Line::of("no call with a known duration", Style::Faint);
    }
    let what = format!("{}, {}", plural(c.trees, "tree"), plural(c.calls, "call"));
    let mut line = if c.violations == 0 {
        Line::of("close", Style::Good).plain(format!(
            " to the nanosecond: children + self + interrupts + off the CPU = duration in {what}"
        ))
    } else {
        Line::of("do not close", Style::Bad).plain(format!(
            " in {} of {what}; first at call {}",
            plural(c.violations, "call"),
            c.examples[0]
        ))
    };
    let mut odd = Vec::new();
    if c.clamped > 0 {
        odd.push(format!("{} with contradicting records have self time 0", plural(c.clamped, "call")));
    }
    if c.no_return > 0 {
        odd.push(format!("{} without a return are in no sum", plural(c.no_return, "call")));
    }
    if !odd.is_empty() {
        line = line.put(format!("; {}", odd.join(", ")), Style::Warn);
    }
    line
}

const HEADS: [Column; 6] = [
    Column::right("min     ", 5),
    Column::right("median  ", 0),
    Column::right("p90     ", 4),
    Column::right("p99     ", 1),
    Column::right("max     ", 3),
    Column::left("distribution", 6, 0),
];

fn spread_cells(s: &Spread) -> Vec<(String, Style)> {
    let q = s.quantiles(&[0.5, 0.9, 0.99]);
    let mut cells: Vec<(String, Style)> = [s.min(), q[0], q[1], q[2], s.max()]
        .map(|ns| (ns.map(duration_aligned).unwrap_or_default(), Style::Plain))
        .into();
    cells.push((spark(s), Style::Wire));
    cells
}

/// One sign per power of two, from the least to the greatest.
fn spark(s: &Spread) -> String {
    let buckets = s.buckets();
    if s.count() < 2 || buckets.len() < 2 {
        return String::new();
    }
    let most = buckets.iter().map(|b| b.count).max().unwrap_or(1);
    let signs = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let sign = |n: u64| match n {
        0 => ' ',
        n => signs[((u128::from(n) * 8).div_ceil(u128::from(most)) as usize).clamp(1, 8) - 1],
    };
    let text: String = buckets.iter().map(|b| sign(b.count)).collect();
    format!("{}┊{text}┊", duration(buckets[0].from_ns).replace(".000", ""))
}

fn per_packet(g: &GroupTime, points_only: bool) -> Table {
    let mut columns = vec![
        Column::left("per packet", 0, 0),
        Column::right("packets", 2),
        Column::right("times", 7),
        Column::right("sum     ", 0),
        Column::right("of path", 1),
    ];
    columns.extend(HEADS);
    let mut table = Table::new(&columns);
    let path = g.path.sum().max(0).unsigned_abs();
    let mut row = |name: &str, style: Style, packets: Option<u64>, times: Option<u64>, s: &Spread| {
        let mut cells = vec![
            (name.to_owned(), style),
            (packets.map(count).unwrap_or_default(), Style::Plain),
            (times.map(count).unwrap_or_default(), Style::Faint),
            (duration_aligned(s.sum()), Style::Plain),
            // Lists and work on two CPUs at once count in full, so this may exceed the whole.
            (share(s.sum().max(0).unsigned_abs(), path), Style::Plain),
        ];
        cells.extend(spread_cells(s));
        table.row(cells);
    };
    row("path", Style::Strong, Some(g.path.count()), None, &g.path);
    if !points_only {
        row("in functions", Style::Strong, Some(g.processing.count()), None, &g.processing);
    }
    for l in g.layers.iter().filter(|l| l.per_packet.count() > 0) {
        row(
            &format!("  {}", l.layer),
            Style::Plain,
            Some(l.per_packet.count()),
            Some(l.calls),
            &l.per_packet,
        );
    }
    let copied = || g.waits.iter().filter(|w| w.kind == Phase::CopyToUser);
    // In the socket layer's functions, and a hand-over as well; without functions it is of what is not recorded.
    let in_functions = g.processing.sum() > 0;
    for w in copied().filter(|_| in_functions) {
        row("    copy to user", Style::Faint, None, Some(w.time.count()), &w.time);
    }
    row("waiting", Style::Strong, Some(g.waiting.count()), None, &g.waiting);
    for w in g.waits.iter().filter(|w| w.kind.is_wait()) {
        row(&format!("  {}", w.kind.label()), Style::Warn, None, Some(w.time.count()), &w.time);
    }
    for w in g.waits.iter().filter(|w| w.kind == Phase::DmaTx) {
        row("at the card (DMA tx)", Style::Strong, None, Some(w.time.count()), &w.time);
    }
    if !points_only {
        row("not recorded", Style::Strong, Some(g.unrecorded.count()), None, &g.unrecorded);
    }
    for w in copied().filter(|_| !in_functions) {
        let name = if points_only { "copy to user" } else { "  copy to user" };
        row(name, Style::Faint, None, Some(w.time.count()), &w.time);
    }
    table
}

/// A share that may be above one.
fn share(part: u64, whole: u64) -> String {
    if part <= whole {
        return percent(part, whole);
    }
    format!("{:.0} %", part as f64 * 100.0 / whole.max(1) as f64)
}

fn groups(report: &TimeReport) -> Table {
    let mut table = Table::new(&[
        Column::left("group", 0, 12),
        Column::right("packets", 0),
        Column::right("path, median", 0),
        Column::right("path, p99", 4),
        Column::right("functions, median", 0),
        Column::right("functions, p99", 3),
        Column::right("waiting, median", 1),
        Column::right("waiting, p99", 5),
    ]);
    for g in &report.groups {
        let mut cells = vec![(g.label.clone(), Style::Plain), (count(g.packets), Style::Plain)];
        for s in [&g.path, &g.processing, &g.waiting] {
            for q in s.quantiles(&[0.5, 0.99]) {
                cells.push((q.map(duration_aligned).unwrap_or_default(), Style::Plain));
            }
        }
        table.row(cells);
    }
    table
}

fn measure<'a>(args: &Args, f: &'a FunctionTime) -> &'a Spread {
    if args.of == Of::Total { &f.total } else { &f.own }
}

fn chosen<'a>(args: &Args, g: &'a GroupTime) -> Vec<&'a FunctionTime> {
    let mut all: Vec<&FunctionTime> = g.functions.iter().collect();
    let quantile = |f: &FunctionTime, q: f64| measure(args, f).quantile(q).unwrap_or(-1);
    all.sort_by_cached_key(|f| -match args.sort {
        Sort::Own => f.own.sum(),
        Sort::Total => f.total.sum(),
        Sort::Calls => f.calls.min(i64::MAX as u64) as i64,
        Sort::Median => quantile(f, 0.5),
        Sort::P99 => quantile(f, 0.99),
        Sort::Max => quantile(f, 1.0),
    });
    if args.limit > 0 {
        all.truncate(args.limit);
    }
    all
}

fn function_table(args: &Args, g: &GroupTime, functions: &[&FunctionTime]) -> Table {
    let mut columns = vec![
        Column::left(
            if args.of == Of::Own { "function (self time)" } else { "function (total time)" },
            0,
            18,
        ),
        Column::left("layer", 7, 0),
        Column::right("calls", 0),
        Column::right("total   ", 6),
        Column::right("self    ", 0),
        Column::right("of self", 2),
        Column::right("interrupts", 8),
        Column::right("off CPU", 9),
        Column::right("probes", 5),
    ];
    columns.extend(HEADS);
    let mut table = Table::new(&columns);
    let all: i64 = g.functions.iter().map(|f| f.own.sum()).sum();
    for f in functions {
        let time = |ns: i64| (duration_aligned(ns), Style::Plain);
        let timed = f.own.count() > 0;
        let cost = (f.cost_own_ns > 0).then(|| {
            let before = f.own.sum() + if f.clamped > 0 { f.cost_own_ns } else { 0 };
            share(f.cost_own_ns.unsigned_abs(), before.max(1).unsigned_abs())
        });
        let mut cells = vec![
            (f.name.clone(), Style::Plain),
            (f.layer.clone(), Style::Faint),
            (count(f.calls), Style::Plain),
            if timed { time(f.total.sum()) } else { (String::new(), Style::Plain) },
            if timed { time(f.own.sum()) } else { (String::new(), Style::Plain) },
            (percent(f.own.sum().max(0).unsigned_abs(), all.max(0).unsigned_abs()), Style::Plain),
            (if f.irq_ns > 0 { duration_aligned(f.irq_ns) } else { String::new() }, Style::Warn),
            (if f.off_ns > 0 { duration_aligned(f.off_ns) } else { String::new() }, Style::Warn),
            (cost.unwrap_or_default(), Style::Faint),
        ];
        cells.extend(spread_cells(measure(args, f)));
        table.row(cells);
    }
    table
}

fn histograms(args: &Args, g: &GroupTime, out: &Output) -> anyhow::Result<()> {
    let mut all: Vec<(String, &Spread)> = vec![
        ("path, per packet".to_owned(), &g.path),
        ("in functions, per packet".to_owned(), &g.processing),
    ];
    all.extend(g.waits.iter().map(|w| {
        (
            if w.kind.is_wait() { format!("waiting: {}", w.kind.label()) } else { w.kind.label().to_owned() },
            &w.time,
        )
    }));
    all.extend(chosen(args, g).into_iter().map(|f| (f.name.clone(), measure(args, f))));
    for (name, spread) in all.into_iter().filter(|(_, s)| s.count() > 0) {
        out.line(&Line::new())?;
        out.line(&Line::of(name, Style::Strong).faint(format!("  {}", plural(spread.count(), "time"))))?;
        let buckets = spread.buckets();
        let most = buckets.iter().map(|b| b.count).max().unwrap_or(1);
        let digits = buckets.iter().map(|b| count(b.count).len()).max().unwrap_or(1);
        let room = if out.width == 0 { 60 } else { out.width.saturating_sub(36 + digits).clamp(8, 80) };
        for b in &buckets {
            let line = Line::new()
                .plain(duration_aligned(b.from_ns))
                .faint(" … ")
                .plain(duration_aligned(b.below_ns))
                .plain(format!("  {:>digits$}  {:>6}  ", count(b.count), percent(b.count, spread.count())))
                .put(bar_of(b.count, most, room), Style::Wire);
            out.line(&line)?;
        }
    }
    Ok(())
}
