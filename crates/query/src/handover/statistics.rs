//! Several handovers in sum. Those that did not come to an end say nothing of how long handovers take: how long they are is when their interface was removed, or the log ended.

use super::machine::Handover;
use super::phase::Phase;
use super::words::{Ended, Kind};

/// Of one phase; times are sums per handover, of those that have it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PhaseSum {
    pub phase: Phase,
    pub count: u64,
    pub median_ns: i64,
    pub max_ns: i64,
    pub total_ns: i64,
    /// Of the one with the longest.
    pub longest: u32,
}

#[derive(Clone, Debug, Default)]
pub struct Statistics {
    /// Those that the sums are of.
    pub count: u64,
    /// Apart: their interface was removed and did not come again.
    pub gone: u64,
    /// Apart: they go on when the log ends.
    pub going_on: u64,
    /// Apart: they had begun when the log began.
    pub underway: u64,
    pub phases: Vec<PhaseSum>,
    /// All phases together: median, longest, sum.
    pub whole_ns: (i64, i64, i64),
    /// Without a data path.
    pub outage_ns: Option<(i64, i64, i64)>,
}

impl Statistics {
    pub fn of<'a>(found: impl Iterator<Item = &'a Handover> + Clone) -> Statistics {
        let ended = |how: Ended| found.clone().filter(|h| h.ended == how).count() as u64;
        let over = found.clone().filter(|h| !matches!(h.ended, Ended::Gone | Ended::LogEnd));
        let all = over.clone().filter(|h| h.kind != Kind::Underway);
        let phase = |phase: Phase| {
            let mut times: Vec<(i64, u32)> = all
                .clone()
                .filter(|h| h.spans.iter().any(|s| s.phase == phase))
                .map(|h| (h.of(phase), h.number))
                .collect();
            times.sort_unstable();
            let last = times.last()?;
            Some(PhaseSum {
                phase,
                count: times.len() as u64,
                median_ns: times[(times.len() - 1) / 2].0,
                max_ns: last.0,
                total_ns: times.iter().map(|t| t.0).sum(),
                longest: last.1,
            })
        };
        Statistics {
            count: all.clone().count() as u64,
            gone: ended(Ended::Gone),
            going_on: ended(Ended::LogEnd),
            underway: over.filter(|h| h.kind == Kind::Underway).count() as u64,
            phases: Phase::ALL.iter().filter_map(|p| phase(*p)).collect(),
            whole_ns: of(all.clone().map(Handover::whole_ns).collect()).unwrap_or_default(),
            outage_ns: of(all.filter_map(Handover::outage_ns).collect()),
        }
    }

    /// How many they are, and which are none of them.
    pub fn words(&self) -> String {
        let together = format!("{} handover{} together", self.count, if self.count == 1 { "" } else { "s" });
        let gone = (self.gone > 0).then(|| format!("{} of an interface that was removed", self.gone));
        let going_on = (self.going_on > 0).then(|| format!("{} not over when the log ends", self.going_on));
        let underway = (self.underway > 0).then(|| format!("{} begun before the log", self.underway));
        let apart: Vec<String> = [gone, going_on, underway].into_iter().flatten().collect();
        if apart.is_empty() { together } else { format!("{together}, without {}", apart.join(" and ")) }
    }
}

fn of(mut times: Vec<i64>) -> Option<(i64, i64, i64)> {
    times.sort_unstable();
    Some((*times.get((times.len().max(1) - 1) / 2)?, *times.last()?, times.iter().sum()))
}
