//! The figures of the router study of 2009, to be set beside ours. They are its authors', from one machine with Intel
//! e100 cards and 56-byte ICMP echo requests; where the study names two numbers for one phase, both stand here. Ours are
//! computed as theirs are: without waits, and for the processor's work alone.

use super::cut::Passage;
use super::phase::Phase;
use super::{PassageTime, PhaseReport};

/// What the study says a packet takes in all.
pub const TOTAL_NS: i64 = 29_120;

/// Share of a phase in percent; a second number where the study gives another one elsewhere.
pub struct StudyShare {
    pub phase: Phase,
    pub percent: f64,
    pub elsewhere: Option<f64>,
}

const fn share(phase: Phase, percent: f64, elsewhere: Option<f64>) -> StudyShare {
    StudyShare { phase, percent, elsewhere }
}

pub const SHARES: [StudyShare; 6] = [
    share(Phase::DmaRx, 3.0, None),
    share(Phase::LinkRx, 37.0, None),
    share(Phase::NetworkRx, 25.0, None),
    share(Phase::NetworkTx, 5.0, Some(14.0)),
    share(Phase::LinkTx, 27.0, Some(18.0)),
    share(Phase::DmaTx, 3.0, None),
];

/// Their caveats.
pub const REMARK: &str = "the study's own numbers disagree: link tx is 27 % in one place and 18 % in another, network \
                          tx 5 % and 14 %. Either pair adds up to 100 % with the rest, so 9 % moves across the boundary \
                          between the two";

/// Share of a phase in the sum of the six, waits left out, in percent: what the study's shares are of.
pub fn share_here(p: &PassageTime, phase: Phase) -> Option<f64> {
    let six: i64 = p.phases.iter().filter(|f| Phase::ROUTER.contains(&f.phase)).map(|f| f.time.sum()).sum();
    let f = p.phases.iter().find(|f| f.phase == phase)?;
    (six > 0).then(|| f.time.sum() as f64 * 100.0 / six as f64)
}

/// Of what was forwarded: what the study measured.
pub fn forwarded(report: &PhaseReport) -> Option<&PassageTime> {
    report.passages.iter().find(|p| p.passage == Passage::Forwarded)
}

/// The four that are the processor's work: what can be compared where the card is an emulator's.
const WORK: [Phase; 4] = [Phase::LinkRx, Phase::NetworkRx, Phase::NetworkTx, Phase::LinkTx];

/// Share of a phase in these four, in percent: here, there, and what the study has elsewhere. `None`: it is none of them.
pub fn of_work(p: Option<&PassageTime>, s: &StudyShare) -> Option<(Option<f64>, f64, Option<f64>)> {
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
pub fn estimate(report: &PhaseReport) -> Option<i64> {
    let found = report.cards.iter().filter_map(|c| c.dma.as_ref().ok());
    let (ns, packets) = found.fold((0.0, 0), |(ns, n), b| (ns + b.mean_ns * b.packets as f64, n + b.packets));
    (packets > 0).then(|| (ns / packets as f64).round() as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_readings_add_up() {
        let sum = |f: &dyn Fn(&StudyShare) -> f64| SHARES.iter().map(f).sum::<f64>();
        assert_eq!(sum(&|s| s.percent), 100.0);
        assert_eq!(sum(&|s| s.elsewhere.unwrap_or(s.percent)), 100.0);
    }
}
