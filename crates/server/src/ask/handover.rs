//! Handovers, in sum and one by one.

use super::{Answer, Ask, Failure, Progress};
use crate::answers::Ns;
use crate::answers::handover::*;
use kpat_query::handover::{Asked, Found, Handover, Lane, Span, Statistics};
use std::sync::Arc;

/// Marks of a lane in one answer; the picture has no room for more.
const MOST_MARKS: usize = 1_000;

fn found(ask: &Ask<'_>, progress: Progress<'_>) -> Answer<Arc<Found>> {
    const WORDS: &str = "looking for handovers";
    ask.log.handovers.get_or_once(
        (),
        progress,
        |p| if p(WORDS, 0, 1) { Ok(()) } else { Err(Failure::Left) },
        |p| Ok(ask.log.store.handovers(&Asked::default(), &mut |done, of| p(WORDS, done, of))?),
    )
}

fn since(ask: &Ask<'_>, at_ns: i64) -> Ns {
    Ns(at_ns.saturating_sub(ask.log.start_ns()))
}

fn line(ask: &Ask<'_>, h: &Handover) -> HandoverLine {
    HandoverLine {
        number: h.number,
        from: since(ask, h.begin_ns),
        to: since(ask, h.end_ns),
        interface: h.interface.clone(),
        kind: h.kind.label().to_owned(),
        cause: h.cause.label(),
        old: h.from.words(),
        new: h.to.words(),
        without_data: h.outage_ns().map(Ns),
        link: h.link_ns().map(Ns),
        search: h.search_ns().map(Ns),
        longest: h.longest().map(|(p, ns)| (p.label().to_owned(), h.share(ns))),
        ended: h.ended.words().to_owned(),
    }
}

pub fn handovers(ask: &Ask<'_>, progress: Progress<'_>) -> Answer<Handovers> {
    let found = found(ask, progress)?;
    let sums = Statistics::of(found.handovers.iter());
    Ok(Handovers {
        none: found.handovers.is_empty().then(|| found.none().to_owned()),
        left_out: found.left_out,
        rows: found.handovers.iter().map(|h| line(ask, h)).collect(),
        together: sums.words(),
        sums: sums
            .phases
            .iter()
            .map(|p| HandoverSum {
                label: p.phase.label().to_owned(),
                group: p.phase.group().name().to_owned(),
                handovers: p.count,
                median: Ns(p.median_ns),
                max: Ns(p.max_ns),
                longest: p.longest,
            })
            .collect(),
    })
}

pub fn handover(ask: &Ask<'_>, progress: Progress<'_>) -> Answer<HandoverDetail> {
    let number: u32 = ask.needed("number")?;
    let found = found(ask, progress)?;
    let h = found.handovers.iter().find(|h| h.number == number);
    let h = h.ok_or_else(|| Failure::words(format!("the log has no handover {number}")))?;
    Ok(HandoverDetail {
        line: line(ask, h),
        attempts: h.attempts,
        refusals: h.refusals.clone(),
        phases: h.spans.iter().map(|s| phase(ask, h, s)).collect(),
        lanes: Lane::ALL.into_iter().filter_map(|lane| lane_of(ask, h, lane)).collect(),
        moments: h.moments().map(|(name, at)| (name.to_owned(), since(ask, at))).collect(),
        gap: h.flow.as_ref().map(|g| HandoverGap {
            from: since(ask, g.last_ns),
            to: g.first_ns.map(|at| since(ask, at)),
            words: g.sentence(),
        }),
        marks_left_out: h.marks_left_out,
        loss: h.loss_words(),
    })
}

fn phase(ask: &Ask<'_>, h: &Handover, s: &Span) -> HandoverPhase {
    HandoverPhase {
        phase: s.phase.name().to_owned(),
        label: s.phase.label().to_owned(),
        group: s.phase.group().name().to_owned(),
        meaning: s.phase.meaning().to_owned(),
        from: since(ask, s.from_ns),
        to: since(ask, s.to_ns),
        share: h.share(s.dur_ns()),
        begin: s.begin.words(),
        evidence: s.begin.evidence(),
        why: s.why.clone(),
        steps: s
            .steps
            .iter()
            .map(|x| HandoverStep {
                t: since(ask, x.from_ns),
                time: Ns(x.to_ns - x.from_ns),
                words: x.words.clone(),
            })
            .collect(),
    }
}

fn lane_of(ask: &Ask<'_>, h: &Handover, lane: Lane) -> Option<HandoverLane> {
    let marks: Vec<HandoverMark> = h
        .on_lane(lane)
        .take(MOST_MARKS)
        .map(|(at, m)| HandoverMark { t: since(ask, at), words: m.words(), evidence: m.evidence() })
        .collect();
    (!marks.is_empty()).then(|| HandoverLane { name: lane.name().to_owned(), marks })
}
