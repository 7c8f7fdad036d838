//! Two logs side by side.

use super::{Args, json, text};
use crate::open::Integrated;
use crate::output::Output;
use crate::packets::hint_hidden;
use crate::render::{Column, Line, Pairs, Style, Table, count, duration, duration_aligned, plural};
use kpat_analysis::time::{Change, Comparison, TimeReport, Verdict, compare};
use serde_json::{Value, json};

/// Is the function in the log's table, called or not?
fn probed(log: &Integrated, name: &str) -> bool {
    log.knows_function(name)
}

pub fn show(
    args: &Args,
    a: (&Integrated, &TimeReport),
    b: (&Integrated, &TimeReport),
    out: &Output,
) -> anyhow::Result<()> {
    let c = compare(a.1, b.1, &|name| (probed(a.0, name), probed(b.0, name)));
    if out.json {
        return out.value(&json!({
            "a": { "packets": c.packets.0, "sums": json::sums(&a.1.closure) },
            "b": { "packets": c.packets.1, "sums": json::sums(&b.1.closure) },
            "probe_cost_subtracted": [a.1.subtracted, b.1.subtracted],
            "path": change(&c.path),
            "layers": c.layers.iter().map(change).collect::<Vec<_>>(),
            "waits": c.waits.iter().map(change).collect::<Vec<_>>(),
            "functions": c.functions.iter().map(change).collect::<Vec<_>>(),
        }));
    }
    let mut pairs = Pairs::new();
    for (name, (log, report), packets) in [("A", a, c.packets.0), ("B", b, c.packets.1)] {
        let kernel = &log.manifest.log.kernel_release;
        pairs.add(name, format!("{}, {}, kernel {kernel}", log.dir.display(), plural(packets, "packet")));
        pairs.line("  sums", text::sums(&report.closure));
    }
    if a.1.subtracted || b.1.subtracted {
        pairs
            .line("probes", Line::of("times are estimates: the probes' own cost is subtracted", Style::Warn));
    } else if let (Some(x), Some(y)) = (a.1.run_cost.map(|c| c.ns), b.1.run_cost.map(|c| c.ns))
        && x.max(y) > 1.2 * x.min(y)
    {
        let words = format!(
            "a program run costs {x:.0} ns in A and {y:.0} ns in B: part of every difference; --subtract-cost takes an \
             estimate off"
        );
        pairs.line("probes", Line::of(words, Style::Warn));
    }
    pairs.add(
        "read",
        "B less A, 95 % interval; self time per call, layers per packet; most effect on a packet first",
    );
    out.lines(&pairs.render(out.width))?;
    let mut hidden = Vec::new();
    let mut section = |title: &'static str, changes: &[&Change]| -> anyhow::Result<()> {
        if changes.is_empty() {
            return Ok(());
        }
        out.line(&Line::new())?;
        let (lines, left) = table(title, changes).render(out.width);
        hidden.extend(left);
        out.lines(&lines)
    };
    let mut packets = vec![&c.path];
    packets.extend(&c.layers);
    section("per packet", &packets)?;
    section("wait", &c.waits.iter().collect::<Vec<_>>())?;
    let (moved, both): (Vec<&Change>, Vec<&Change>) =
        c.functions.iter().partition(|f| matches!(f.verdict, Verdict::Appeared | Verdict::Vanished));
    let shown = if args.limit == 0 { both.len() } else { both.len().min(args.limit) };
    section("function", &both[..shown])?;
    path_diff(&moved, out)?;
    if shown < both.len() {
        out.say(&format!("{shown} of {} functions shown; --limit 0 shows all", both.len()));
    }
    hidden.sort_unstable();
    hidden.dedup();
    hint_hidden(out, &hidden);
    too_few(&c, out);
    Ok(())
}

fn too_few(c: &Comparison, out: &Output) {
    let few = c.functions.iter().filter(|f| f.verdict == Verdict::TooFew).count();
    if few > 0 {
        out.say(&format!(
            "{} fewer than 6 times in one of the logs: too few for an interval of 95 %",
            if few == 1 {
                "1 function was called".to_owned()
            } else {
                format!("{few} functions were called")
            }
        ));
    }
}

fn table(title: &'static str, changes: &[&Change]) -> Table {
    let mut table = Table::new(&[
        Column::left(title, 0, 16),
        Column::left("layer", 8, 0),
        Column::right("n A", 6),
        Column::right("n B", 6),
        Column::right("median A", 3),
        Column::right("median B", 2),
        Column::right("difference", 0),
        Column::right("%", 4),
        Column::left("from … to", 0, 0),
        Column::right("mean diff.", 5),
        Column::left("from … to ", 7, 0),
        Column::right("per packet", 1),
        Column::left("verdict", 0, 0),
    ]);
    for c in changes {
        let time = |ns: Option<i64>| (ns.map(duration_aligned).unwrap_or_default(), Style::Plain);
        let signed = |ns: f64| (signed(ns), Style::Plain);
        let style = match c.verdict {
            Verdict::Slower => Style::Bad,
            Verdict::Faster => Style::Good,
            _ => Style::Faint,
        };
        let range =
            |low: f64, high: f64| (format!("{} … {}", self::signed(low), self::signed(high)), Style::Faint);
        let none = || (String::new(), Style::Plain);
        let percent = match (c.median_diff, c.a.median_ns) {
            (Some((d, _)), Some(m)) if m > 0 => format!("{:+.1}", d as f64 * 100.0 / m as f64),
            _ => String::new(),
        };
        table.row(vec![
            (c.name.clone(), Style::Plain),
            (c.layer.clone(), Style::Faint),
            (count(c.a.count), Style::Plain),
            (count(c.b.count), Style::Plain),
            time(c.a.median_ns),
            time(c.b.median_ns),
            c.median_diff.map_or_else(none, |(d, _)| signed(d as f64)),
            (percent, Style::Plain),
            c.median_diff.map_or_else(none, |(_, (l, h))| range(l as f64, h as f64)),
            c.mean_diff.map_or_else(none, |(d, _)| signed(d)),
            c.mean_diff.map_or_else(none, |(_, (l, h))| range(l, h)),
            signed(c.effect_ns()),
            (c.verdict.name().to_owned(), style),
        ]);
    }
    table
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
    out.line(&Line::of("Path", Style::Strong).faint(" functions called in one of the logs only"))?;
    for c in moved {
        let (sign, style, n) = match c.verdict {
            Verdict::Appeared => ("+", Style::Good, c.b.count),
            _ => ("-", Style::Bad, c.a.count),
        };
        let mut line = Line::of(sign, style).plain(format!(" {}", c.name)).faint(format!("  {}", c.layer));
        line = line.plain(format!("  {}, {} per packet", plural(n, "call"), signed(c.effect_ns())));
        if !c.probed {
            line = line.put("  (not probed in the other log: it may have been called)", Style::Warn);
        }
        out.line(&line)?;
    }
    Ok(())
}

fn change(c: &Change) -> Value {
    let measured = |m: &kpat_analysis::time::Measured| json!({ "count": m.count, "median_ns": m.median_ns, "mean_ns": m.mean_ns, "per_packet_ns": m.per_packet_ns });
    json!({
        "name": c.name,
        "layer": c.layer,
        "a": measured(&c.a),
        "b": measured(&c.b),
        "median_diff_ns": c.median_diff.map(|d| d.0),
        "median_diff_interval_ns": c.median_diff.map(|d| [d.1.0, d.1.1]),
        "mean_diff_ns": c.mean_diff.map(|d| d.0),
        "mean_diff_interval_ns": c.mean_diff.map(|d| [d.1.0, d.1.1]),
        "effect_per_packet_ns": c.effect_ns(),
        "verdict": c.verdict.name(),
        "probed_in_both": c.probed,
    })
}
