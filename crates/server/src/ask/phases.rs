//! Phases of packets, in sum and of each.

use super::{Answer, Ask, Progress};
use crate::answers::Ns;
use crate::answers::functions::{CardStamps, DmaRx, NotMeasurable, Passage, PhaseFunction, PhaseRow, Phases};
use crate::answers::packets::{PhasePacket, PhasePackets};
use kpat_query::phases::{Boundaries, CardRx, Phase, PhaseReport, phases as cut, ways};
use kpat_query::time::Spread;
use std::collections::HashMap;

pub fn phases(ask: &Ask<'_>, progress: Progress<'_>) -> Answer<Phases> {
    const WORDS: &str = "cutting packets into phases";
    if ask.filter()?.is_none() {
        let mut step = |done, parts| progress(WORDS, done, parts);
        let report = ask.log.phases_of_all(&mut step, &mut |part| ask.so_far(&answer(part)));
        return Ok(answer(&*report.map_err(|e| e.map_or(super::Failure::Left, super::Failure::words))?));
    }
    let filter = ask.packet_filter(progress)?;
    let report = ask.log.phases.get_or(ask.text_of_filter().to_owned(), || {
        let mut step = |done, parts| progress(WORDS, done, parts);
        let so_far = &mut |part| ask.so_far(&answer(&part));
        Ok::<_, super::Failure>(cut(&ask.log.store, &filter, &Boundaries::default(), &mut step, so_far)?)
    })?;
    Ok(answer(&report))
}

fn dma_rx(card: &CardRx) -> Option<DmaRx> {
    let b = card.dma.as_ref().ok()?;
    let ns = |x: f64| Ns(x.round() as i64);
    Some(DmaRx {
        interface: card.name.clone(),
        driver: card.driver.clone(),
        mean: ns(b.mean_ns),
        low: ns(b.low_ns),
        high: ns(b.high_ns),
        packets: b.packets,
        batches: b.batches,
        runs: b.runs,
    })
}

fn stamps(card: &CardRx) -> Option<CardStamps> {
    let s = &card.stamps;
    (s.stamped > 0).then(|| CardStamps {
        interface: card.name.clone(),
        driver: card.driver.clone(),
        received: s.received,
        stamped: s.stamped,
        known: s.known,
        bound: Ns(s.bound_ns),
    })
}

fn answer(report: &PhaseReport) -> Phases {
    let all: i64 = report.passages.iter().map(|p| p.time.sum()).sum();
    let of_phase = |phase: &Phase| {
        let mut time = Spread::default();
        let mut functions: HashMap<i32, (String, i64)> = HashMap::new();
        for p in report.passages.iter().flat_map(|p| &p.phases).filter(|p| p.phase == *phase) {
            time.merge(&p.time);
            for f in &p.functions {
                functions.entry(f.func_id).or_insert_with(|| (f.name.clone(), 0)).1 += f.self_ns;
            }
        }
        (time.count() > 0).then(|| {
            let total = time.sum();
            let share = |part: i64, whole: i64| part as f64 / whole.max(1) as f64;
            let mut functions: Vec<PhaseFunction> = functions
                .into_iter()
                .map(|(id, (name, own))| PhaseFunction { id, name, own: Ns(own), share: share(own, total) })
                .collect();
            functions.sort_by(|a, b| b.own.cmp(&a.own).then_with(|| a.name.cmp(&b.name)));
            let q = time.quantiles(&[0.5, 0.99]);
            PhaseRow {
                phase: phase.name().to_owned(),
                label: phase.label().to_owned(),
                wait: phase.is_wait(),
                meaning: phase.meaning().to_owned(),
                packets: time.count(),
                total: Ns(total),
                share: share(total, all),
                median: q[0].map(Ns),
                p99: q[1].map(Ns),
                functions,
            }
        })
    };
    Phases {
        packets: report.packets,
        phases: Phase::ALL.iter().filter_map(of_phase).collect(),
        dma_rx: report.cards.iter().filter_map(dma_rx).collect(),
        stamps: report.cards.iter().filter_map(stamps).collect(),
        not_measurable: report
            .missing
            .iter()
            .map(|m| NotMeasurable { phase: m.phase.label().to_owned(), words: m.why.clone() })
            .collect(),
        passages: report
            .passages
            .iter()
            .map(|p| Passage {
                name: p.passage.name().to_owned(),
                packets: p.count,
                median: p.time.median().map(Ns),
            })
            .collect(),
        points_only: report.points_only,
    }
}

pub fn packets(ask: &Ask<'_>, progress: Progress<'_>) -> Answer<PhasePackets> {
    let (from, count) = ask.page()?;
    let count = count.min(500);
    let catalog = ask.catalog(progress)?;
    let places = ask.places(&catalog, (None, false), progress)?;
    let chosen = || places.iter().map(|&i| &catalog.entries[i as usize]).filter(|e| e.is_packet());
    let page: Vec<_> = chosen().skip(from).take(count).collect();
    let mut ids: Vec<i64> = page.iter().map(|e| e.id).collect();
    ids.sort_unstable();
    let found = ways(&ask.log.store, &ids, &Boundaries::default(), &mut |done, parts| {
        progress("cutting packets into phases", done, parts)
    })?;
    let by_id: HashMap<i64, _> = found.into_iter().map(|w| (w.packet_id, w.segments)).collect();
    let rows = page.iter().map(|e| PhasePacket {
        id: e.id,
        t: Ns(e.first_ns.saturating_sub(ask.log.start_ns())),
        path_ns: Ns(e.path_ns),
        parts: by_id.get(&e.id).map_or_else(Vec::new, |segments| {
            segments.iter().map(|s| (s.phase.name().to_owned(), Ns(s.dur_ns()))).collect()
        }),
    });
    Ok(PhasePackets { total: chosen().count() as u64, rows: rows.collect() })
}
