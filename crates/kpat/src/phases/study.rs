//! The router study's shares beside ours, as text and JSON.

use super::sentence;
use crate::output::Output;
use crate::render::{Column, Style, Table};
use kpat_draw::phases::study::{remarks, rows};
use kpat_query::phases::PhaseReport;
use kpat_query::phases::study::{SHARES, TOTAL_NS, forwarded, of_work, share_here};
use serde_json::{Value, json};

pub fn show(report: &PhaseReport, out: &Output) -> anyhow::Result<()> {
    let mut table = Table::new(&[
        Column::left("phase of a router", 0, 0),
        Column::right("share here", 0),
        Column::right("mean here", 1),
        Column::right("share in the study", 0),
        Column::right("of the CPU's four here", 2),
        Column::right("in the study", 3),
    ]);
    for row in rows(report) {
        table.row(row.map(|cell| (cell, Style::Plain)).into());
    }
    out.lines(&table.render(out.width).0)?;
    for remark in remarks(report) {
        out.lines(&sentence(&remark, out.width))?;
    }
    Ok(())
}

pub fn json(report: &PhaseReport) -> Value {
    let p = forwarded(report);
    json!({
        "study_total_ns": TOTAL_NS,
        "shares": SHARES.iter().map(|s| json!({
            "phase": s.phase.name(),
            "here_percent": p.and_then(|p| share_here(p, s.phase)),
            "study_percent": s.percent,
            "study_percent_elsewhere": s.elsewhere,
            "here_percent_of_work": of_work(p, s).and_then(|w| w.0),
            "study_percent_of_work": of_work(p, s).map(|w| w.1),
        })).collect::<Vec<_>>(),
        "remarks": remarks(report),
    })
}
