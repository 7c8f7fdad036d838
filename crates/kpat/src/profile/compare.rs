//! Two profiles beside each other: what each program costs in both, and which functions take another share.

use crate::open::Integrated;
use crate::output::{Output, usage};
use crate::render::{Column, Line, Style, Table, count};
use kpat_query::profile::{OfProcess, Profile, Wanted, profile};
use kpat_query::sampled::difference::{Changed, difference};
use kpat_query::sampled::sampled;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;

/// Of processes of one name, in both profiles: what they are charged and what was taken from them.
type Costs = BTreeMap<String, [(i64, i64); 2]>;

fn costs(profiles: [&Profile; 2], wanted: &Wanted) -> Costs {
    let mut all = Costs::new();
    for (i, p) in profiles.into_iter().enumerate() {
        for x in p.processes.iter().filter(|x| wanted.has(x)) {
            let sum = &mut all.entry(x.name.clone().unwrap_or_else(|| "?".into())).or_default()[i];
            *sum = (sum.0 + x.charged_ns(), sum.1 + x.taken_ns);
        }
    }
    all
}

/// Whom samples must have served: `None` all.
fn served(p: &Profile, wanted: &Wanted) -> Option<BTreeSet<i32>> {
    let pids = |x: &OfProcess| wanted.has(x).then_some(x.number);
    (!wanted.all()).then(|| p.processes.iter().filter_map(pids).collect())
}

pub fn run(
    first: (&Integrated, &Profile),
    other: &Integrated,
    wanted: &Wanted,
    limit: usize,
    out: &Output,
) -> anyhow::Result<ExitCode> {
    let nothing =
        || usage(format!("{} has no profile; record it with `kpat record -p profile`", other.dir.display()));
    let second = profile(other, wanted)?.ok_or_else(nothing)?;
    let passed = [first.1.passed_ns, second.passed_ns];
    let all = costs([first.1, &second], wanted);
    let share = |ns: i64, i: usize| ns as f64 / passed[i].max(1) as f64;
    let mut programs: Vec<(&String, &[(i64, i64); 2])> = all.iter().collect();
    let changed = |c: &[(i64, i64); 2]| share(c[1].0, 1) - share(c[0].0, 0);
    programs.sort_by(|a, b| changed(b.1).abs().total_cmp(&changed(a.1).abs()));
    let samples = (
        sampled(first.0, served(first.1, wanted).as_ref())?,
        sampled(other, served(&second, wanted).as_ref())?,
    );
    let functions = match &samples {
        (Some(a), Some(b)) => difference(a, b),
        _ => Vec::new(),
    };
    if out.json {
        out.value(&json!({
            "passed_ns": passed,
            "programs": programs.iter().take(limit).map(|(name, c)| json!({
                "name": name, "charged_ns": [c[0].0, c[1].0], "charged_share": [share(c[0].0, 0), share(c[1].0, 1)],
                "taken_ns": [c[0].1, c[1].1],
            })).collect::<Vec<_>>(),
            "functions": functions.iter().take(limit).map(|f| json!({
                "process": f.process, "kernel": f.is_kernel, "function": f.function, "samples": f.samples,
                "shares": f.shares, "difference": f.difference(), "low": f.low, "high": f.high, "sure": f.is_sure(),
            })).collect::<Vec<_>>(),
        }))?;
        return Ok(ExitCode::SUCCESS);
    }
    let percent = |share: f64| format!("{:.3}", share * 100.0);
    let signed = |share: f64| format!("{:+.3}", share * 100.0);
    let plain = |text: String| (text, Style::Plain);
    let mut table = Table::new(&[
        Column::left("process", 0, 12),
        Column::right("charged s", 0),
        Column::right("compared", 0),
        Column::right("% of CPU time", 0),
        Column::right("compared", 0),
        Column::right("difference", 0),
    ]);
    for (name, c) in programs.iter().take(limit) {
        table.row(vec![
            plain(kpat_text::clean(name)),
            plain(super::s(c[0].0)),
            plain(super::s(c[1].0)),
            plain(percent(share(c[0].0, 0))),
            plain(percent(share(c[1].0, 1))),
            (signed(changed(c)), Style::Strong),
        ]);
    }
    out.lines(&table.render(out.width).0)?;
    out.line(&Line::new())?;
    if functions.is_empty() {
        out.say("one of the logs has no samples: functions are not compared");
        return Ok(ExitCode::SUCCESS);
    }
    out.lines(&functions_table(&functions, limit).render(out.width).0)?;
    let sure = functions.iter().filter(|f| f.is_sure()).count();
    out.say(&format!(
        "{} of {} functions differ by more than chance (95 %, for each alone: one of twenty would without any change)",
        count(sure as u64),
        count(functions.len() as u64)
    ));
    Ok(ExitCode::SUCCESS)
}

fn functions_table(functions: &[Changed], limit: usize) -> Table {
    let percent = |share: f64| format!("{:.3}", share * 100.0);
    let mut table = Table::new(&[
        Column::left("function", 0, 16),
        Column::right("% of samples", 0),
        Column::right("compared", 0),
        Column::right("difference", 0),
        Column::right("interval", 1),
    ]);
    for f in functions.iter().take(limit) {
        let plain = |text: String| (text, Style::Plain);
        let name = format!("{}{}:{}", f.process, if f.is_kernel { " k" } else { " u" }, f.function);
        let style = if f.is_sure() { Style::Strong } else { Style::Faint };
        table.row(vec![
            plain(kpat_text::clean(&name)),
            plain(percent(f.shares[0])),
            plain(percent(f.shares[1])),
            (format!("{:+.3}", f.difference() * 100.0), style),
            (format!("{:+.3} to {:+.3}", f.low * 100.0, f.high * 100.0), Style::Faint),
        ]);
    }
    table
}
