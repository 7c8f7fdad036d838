//! The router study's shares beside ours.

use super::{mean_of_all, sentence};
use crate::output::Output;
use crate::render::{Column, Style, Table, duration};
use kpat_query::phases::study::{REMARK, SHARES, StudyShare, TOTAL_NS};
use kpat_query::phases::{Passage, PassageTime, Phase, PhaseReport};
use serde_json::{Value, json};

/// Share of a phase in the sum of the six, waits left out, in percent: what the study's shares are of.
pub fn ours(p: &PassageTime, phase: Phase) -> Option<f64> {
    let six: i64 = p.phases.iter().filter(|f| Phase::ROUTER.contains(&f.phase)).map(|f| f.time.sum()).sum();
    let f = p.phases.iter().find(|f| f.phase == phase)?;
    (six > 0).then(|| f.time.sum() as f64 * 100.0 / six as f64)
}

fn forwarded(report: &PhaseReport) -> Option<&PassageTime> {
    report.passages.iter().find(|p| p.passage == Passage::Forwarded)
}

fn theirs(percent: f64, elsewhere: Option<f64>) -> String {
    match elsewhere {
        Some(other) => format!("{percent:.0} % or {other:.0} %"),
        None => format!("{percent:.0} %"),
    }
}

/// The four that are the processor's work: what can be compared where the card is an emulator's.
const WORK: [Phase; 4] = [Phase::LinkRx, Phase::NetworkRx, Phase::NetworkTx, Phase::LinkTx];

/// Share of a phase in these four, here and there, in percent.
fn of_work(p: Option<&PassageTime>, s: &StudyShare) -> Option<(Option<f64>, f64, Option<f64>)> {
    let four = |f: &dyn Fn(&StudyShare) -> f64| -> f64 {
        SHARES.iter().filter(|s| WORK.contains(&s.phase)).map(f).sum()
    };
    let here = || -> Option<f64> {
        let times = |phase| p?.phases.iter().find(|f| f.phase == phase).map(|f| f.time.sum());
        let all: i64 = WORK.iter().filter_map(|phase| times(*phase)).sum();
        (all > 0).then(|| times(s.phase).map(|t| t as f64 * 100.0 / all as f64))?
    };
    WORK.contains(&s.phase).then(|| {
        let there = s.percent * 100.0 / four(&|s| s.percent);
        let elsewhere = s.elsewhere.map(|e| e * 100.0 / four(&|s| s.elsewhere.unwrap_or(s.percent)));
        (here(), there, elsewhere)
    })
}

/// DMA rx by the study's second method: the mean of all cards' batches.
fn estimate(report: &PhaseReport) -> Option<i64> {
    let found = report.cards.iter().filter_map(|c| c.dma.as_ref().ok());
    let (ns, packets) = found.fold((0.0, 0), |(ns, n), b| (ns + b.mean_ns * b.packets as f64, n + b.packets));
    (packets > 0).then(|| (ns / packets as f64).round() as i64)
}

/// Phase, share here, mean here, share there; share in the processor's work here and there.
pub fn rows(report: &PhaseReport) -> Vec<[String; 6]> {
    let p = forwarded(report);
    SHARES
        .iter()
        .map(|s| {
            let here = p.and_then(|p| ours(p, s.phase));
            let estimate = estimate(report).filter(|_| s.phase == Phase::DmaRx && here.is_none());
            let work = of_work(p, s);
            [
                s.phase.label().to_owned(),
                match (here, estimate) {
                    (Some(v), _) => format!("{v:.1} %"),
                    (None, Some(_)) => "estimate".to_owned(),
                    (None, None) => "not measurable".to_owned(),
                },
                p.and_then(|p| mean_of_all(p, s.phase)).or(estimate.map(duration)).unwrap_or_default(),
                theirs(s.percent, s.elsewhere),
                work.and_then(|w| w.0).map_or(String::new(), |v| format!("{v:.1} %")),
                work.map_or(String::new(), |w| theirs(w.1, w.2)),
            ]
        })
        .collect()
}

pub fn remarks(report: &PhaseReport) -> Vec<String> {
    let mut out = vec![
        format!("Study of 2009: {} in all, a real machine with e100 cards, 56-byte ICMP; {REMARK}.", duration(TOTAL_NS)),
        "The CPU's four: both link and both network phases, without what the card does.".to_owned(),
        "Here: shares of the phases that could be measured, waiting left out; the boundaries are those of `kpat phases \
         --show-boundaries`, which need not be the study's."
            .to_owned(),
    ];
    if let Some(emulator) = &report.emulator {
        out.push(format!(
            "This log is of a virtual machine ({emulator}): its times are not those of a real one."
        ));
    }
    if forwarded(report).is_none() {
        out.push("No packet was forwarded here, so there is nothing to set beside the study.".to_owned());
    }
    out
}

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
            "here_percent": p.and_then(|p| ours(p, s.phase)),
            "study_percent": s.percent,
            "study_percent_elsewhere": s.elsewhere,
            "here_percent_of_work": of_work(p, s).and_then(|w| w.0),
            "study_percent_of_work": of_work(p, s).map(|w| w.1),
        })).collect::<Vec<_>>(),
        "remarks": remarks(report),
    })
}
