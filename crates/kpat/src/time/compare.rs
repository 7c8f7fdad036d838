//! Runs of A beside runs of B.

use super::{Args, Stands, counted, json, question};
use crate::open::{self, Integrated};
use crate::output::{Output, usage};
use crate::packets::hint_hidden;
use crate::render::{Column, Line, Pairs, Style, Table, count, duration, duration_aligned, plural};
use kpat_query::time::{Change, Comparison, Measured, Run, Statistic, TimeReport, Verdict, compare};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// One run, open and counted.
type Counted = (Integrated, TimeReport);

pub fn run(args: &Args, out: &Output) -> anyhow::Result<ExitCode> {
    let is_log = |word: &&String| word.ends_with(".kpat") || Path::new(word).exists();
    let (logs, words): (Vec<&String>, Vec<&String>) = args.compare.iter().partition(is_log);
    let Some(_) = logs.first() else {
        return Err(usage(format!("--compare: {} is no integrated log", args.compare.join(" "))));
    };
    let (further, which) = args.which.split_logs(&words.into_iter().cloned().collect::<Vec<_>>());
    let mut of_a = vec![args.log.clone()];
    of_a.extend(further);
    let of_b: Vec<PathBuf> = logs.into_iter().map(PathBuf::from).collect();
    each_once(&of_a, &of_b)?;
    let side = |paths: &[PathBuf], device: &open::Device| -> anyhow::Result<Vec<Counted>> {
        let one = |path: &PathBuf| {
            let log = open::integrated(path, device)?;
            let report = counted(&log, &question(args, &which, &log)?, out)?;
            Ok((log, report))
        };
        paths.iter().map(one).collect()
    };
    let (a, b) = (side(&of_a, &args.device)?, side(&of_b, &open::Device::default())?);
    let statistic = match args.statistic {
        Stands::Mean => Statistic::Mean,
        Stands::Median => Statistic::Median,
    };
    fn runs(side: &[Counted]) -> Vec<Run<'_>> {
        side.iter().map(|(log, report)| Run { store: &log.store, report }).collect()
    }
    let found = compare(&runs(&a), &runs(&b), statistic)?;
    if out.json {
        out.value(&value(&found, &a, &b))?;
    } else {
        show(args, &found, &a, &b, out)?;
    }
    Ok(out.ended(a.iter().chain(&b).any(|(_, r)| r.closure.violations > 0)))
}

/// A run that is counted twice would look as if runs did not differ.
fn each_once(a: &[PathBuf], b: &[PathBuf]) -> anyhow::Result<()> {
    if a.len() == 1 && b.len() == 1 {
        return Ok(());
    }
    let mut seen = BTreeSet::new();
    for path in a.iter().chain(b) {
        if !seen.insert(path.canonicalize().unwrap_or_else(|_| path.clone())) {
            return Err(usage(format!("{} is given twice; each run counts once", path.display())));
        }
    }
    Ok(())
}

fn show(args: &Args, c: &Comparison, a: &[Counted], b: &[Counted], out: &Output) -> anyhow::Result<()> {
    out.lines(&head(c, a, b).render(out.width))?;
    let mut hidden = Vec::new();
    let mut section = |title: &'static str, changes: &[&Change]| -> anyhow::Result<()> {
        if changes.is_empty() {
            return Ok(());
        }
        out.line(&Line::new())?;
        let (lines, left) = table(title, c, changes).render(out.width);
        hidden.extend(left);
        out.lines(&lines)
    };
    let mut packets = vec![&c.path];
    packets.extend(&c.layers);
    section("per packet", &packets)?;
    section("wait", &c.waits.iter().collect::<Vec<_>>())?;
    let (moved, both): (Vec<&Change>, Vec<&Change>) =
        c.functions.iter().partition(|f| matches!(f.verdict, Verdict::OnlyA | Verdict::OnlyB));
    let shown = if args.limit == 0 { both.len() } else { both.len().min(args.limit) };
    section("function", &both[..shown])?;
    path_diff(&moved, out)?;
    if shown < both.len() {
        out.say(&format!("{shown} of {} functions shown; --limit 0 shows all", both.len()));
    }
    hidden.sort_unstable();
    hidden.dedup();
    hint_hidden(out, &hidden);
    Ok(())
}

fn head(c: &Comparison, a: &[Counted], b: &[Counted]) -> Pairs {
    let mut pairs = Pairs::new();
    for (name, runs, packets) in [("A", a, c.packets.0), ("B", b, c.packets.1)] {
        let kernels: BTreeSet<&str> =
            runs.iter().map(|(log, _)| log.manifest.log.kernel_release.as_str()).collect();
        let kernels: Vec<&str> = kernels.into_iter().collect();
        let names: Vec<String> = runs.iter().map(|(log, _)| log.dir.display().to_string()).collect();
        let words = format!(
            "{}, {}, kernel {}: {}",
            plural(runs.len() as u64, "run"),
            plural(packets, "packet"),
            kernels.join(" and "),
            names.join(" ")
        );
        pairs.add(name, words);
    }
    let violations: u64 = a.iter().chain(b).map(|(_, r)| r.closure.violations).sum();
    if violations > 0 {
        pairs.line("sums", Line::of(format!("do not close in {}", plural(violations, "call")), Style::Bad));
    }
    for (i, r) in c.remarks().into_iter().enumerate() {
        let style = if r.warning { Style::Warn } else { Style::Plain };
        pairs.line(if i == 0 { "runs" } else { "mind" }, Line::of(r.words, style));
    }
    pairs.add("read", read(c));
    pairs
}

fn read(c: &Comparison) -> String {
    let what = c.statistic.name();
    let mut words = format!(
        "B less A by the {what}: of a packet's path and layers, of one wait, of a call's self time{}",
        if c.runs == (1, 1) { "" } else { "; over runs the geometric mean" }
    );
    if c.enough {
        words.push_str("; `beside` is without the common factor (path and waits: with it), its 97 % interval holds for all rows together");
    }
    words.push_str("; most effect on a packet first");
    words
}

fn table(title: &'static str, c: &Comparison, changes: &[&Change]) -> Table {
    let (a, b) = match c.statistic {
        Statistic::Mean => ("mean A", "mean B"),
        Statistic::Median => ("median A", "median B"),
    };
    let mut table = Table::new(&[
        Column::left(title, 0, 16),
        Column::left("layer", 8, 0),
        Column::right("n A", 6),
        Column::right("n B", 6),
        Column::right(a, 3),
        Column::right(b, 2),
        Column::right("difference", 0),
        Column::right("%", 1),
        Column::right("beside %", 5),
        Column::left("from … to", 4, 0),
        Column::right("per packet", 3),
        Column::right("by count", 7),
        Column::left("verdict", 0, 0),
    ]);
    for change in changes {
        table.row(row(change));
    }
    table
}

fn row(c: &Change) -> Vec<(String, Style)> {
    let none = || (String::new(), Style::Plain);
    let time =
        |m: &Measured| m.ns.map_or_else(none, |ns| (duration_aligned(ns.round() as i64), Style::Plain));
    let style = match c.verdict {
        Verdict::Slower => Style::Bad,
        Verdict::Faster => Style::Good,
        _ => Style::Faint,
    };
    let by_count = c.by_count_ns();
    vec![
        (c.name.clone(), Style::Plain),
        (c.layer.clone(), Style::Faint),
        (count(c.a.count), Style::Plain),
        (count(c.b.count), Style::Plain),
        time(&c.a),
        time(&c.b),
        c.diff_ns().map_or_else(none, |d| (signed(d), Style::Plain)),
        c.ratio.map_or_else(none, |r| (per_cent(r), Style::Plain)),
        c.tested.map_or_else(none, |(r, _)| (per_cent(r), Style::Plain)),
        c.tested
            .map_or_else(none, |(_, (l, h))| (format!("{} … {}", per_cent(l), per_cent(h)), Style::Faint)),
        (if c.diff_ns().is_some() { signed(c.by_time_ns()) } else { String::new() }, Style::Plain),
        (if by_count.round() == 0.0 { String::new() } else { signed(by_count) }, Style::Plain),
        (c.verdict.name().to_owned(), style),
    ]
}

fn per_cent(ratio: f64) -> String {
    // Not -0.0.
    format!("{:+.1}", ((ratio - 1.0) * 1_000.0).round() / 10.0 + 0.0)
}

fn signed(ns: f64) -> String {
    let ns = ns.round() as i64;
    if ns > 0 { format!("+{}", duration(ns)) } else { duration(ns) }
}

fn path_diff(moved: &[&Change], out: &Output) -> anyhow::Result<()> {
    if moved.is_empty() {
        return Ok(());
    }
    out.line(&Line::new())?;
    out.line(&Line::of("Path", Style::Strong).faint(" functions called on one side only"))?;
    for c in moved {
        let (sign, style, side) = match c.verdict {
            Verdict::OnlyB => ("+", Style::Good, &c.b),
            _ => ("-", Style::Bad, &c.a),
        };
        let runs = side.each_ns.iter().flatten().count();
        let mut line = Line::of(sign, style).plain(format!(" {}", c.name)).faint(format!("  {}", c.layer));
        line = line.plain(format!("  {}, {} per packet", plural(side.count, "call"), signed(c.effect_ns())));
        if runs < side.each_ns.len() {
            line = line.plain(format!(", in {runs} of {} runs", side.each_ns.len()));
        }
        if !c.probed {
            line = line.put("  (not probed in the other: it may have been called)", Style::Warn);
        }
        out.line(&line)?;
    }
    Ok(())
}

fn value(c: &Comparison, a: &[Counted], b: &[Counted]) -> Value {
    let side = |runs: &[Counted], packets: u64| {
        json!({
            "runs": runs.iter().map(|(log, r)| json!({
                "log": log.dir.display().to_string(),
                "mechanism": log.manifest.log.mechanism,
                "packets": r.groups.first().map_or(0, |g| g.packets),
                "sums": json::sums(&r.closure),
                "probe_cost_subtracted": r.subtracted,
            })).collect::<Vec<_>>(),
            "packets": packets,
        })
    };
    let k = &c.control;
    let changes = |all: &[Change]| all.iter().map(change).collect::<Vec<_>>();
    json!({
        "statistic": c.statistic.name(),
        "a": side(a, c.packets.0),
        "b": side(b, c.packets.1),
        "differences_between_runs_known": c.runs.0 > 1 && c.runs.1 > 1,
        "enough_runs": c.enough,
        "least_ratio_seen": c.least_ratio,
        "control": {
            "common_factor": k.factor.map(|f| f.ratio),
            "common_factor_quartiles": k.factor.map(|f| [f.quartiles.0, f.quartiles.1]),
            "common_factor_functions": k.factor.map_or(0, |f| f.functions),
            "probe_ns_per_hit": k.ns_per_hit.map(|h| [h.0, h.1]),
            "beside": k.taken(),
            "recorded_one_side_after_the_other": k.one_after_other,
        },
        "remarks": c.remarks().into_iter().map(|r| json!({ "text": r.words, "warning": r.warning })).collect::<Vec<_>>(),
        "path": change(&c.path),
        "layers": changes(&c.layers),
        "waits": changes(&c.waits),
        "functions": changes(&c.functions),
    })
}

fn change(c: &Change) -> Value {
    let measured = |m: &Measured| json!({ "count": m.count, "ns": m.ns, "each_run_ns": m.each_ns, "per_packet": m.per_packet });
    json!({
        "name": c.name,
        "layer": c.layer,
        "a": measured(&c.a),
        "b": measured(&c.b),
        "diff_ns": c.diff_ns(),
        "ratio": c.ratio,
        "ratio_beside": c.tested.map(|t| t.0),
        "ratio_beside_interval": c.tested.map(|t| [t.1.0, t.1.1]),
        "effect_per_packet_ns": c.effect_ns(),
        "effect_by_time_ns": c.by_time_ns(),
        "effect_by_count_ns": c.by_count_ns(),
        "verdict": c.verdict.name(),
        "probed_in_all": c.probed,
    })
}
