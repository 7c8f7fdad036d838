//! The router study's shares beside ours: the rows of the table and their caveats, for text and page.

use kpat_query::phases::study::{REMARK, SHARES, TOTAL_NS, estimate, forwarded, of_work, share_here};
use kpat_query::phases::{PassageTime, Phase, PhaseReport};
use kpat_text::duration;

fn theirs(percent: f64, elsewhere: Option<f64>) -> String {
    match elsewhere {
        Some(other) => format!("{percent:.0} % or {other:.0} %"),
        None => format!("{percent:.0} %"),
    }
}

/// Phase, share here, mean here, share there; share in the processor's work here and there.
pub fn rows(report: &PhaseReport) -> Vec<[String; 6]> {
    let p = forwarded(report);
    SHARES
        .iter()
        .map(|s| {
            let here = p.and_then(|p| share_here(p, s.phase));
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

/// Caveats of the comparison.
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

/// Mean of a phase over all passages of its kind, those without it included.
fn mean_of_all(p: &PassageTime, phase: Phase) -> Option<String> {
    let f = p.phases.iter().find(|f| f.phase == phase)?;
    Some(duration(f.time.sum() / (p.count.max(1) as i64)))
}
