//! Several handovers in sum.

use super::machine::Handover;
use super::phase::Phase;

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
    pub count: u64,
    pub phases: Vec<PhaseSum>,
    /// All phases together: median, longest, sum.
    pub whole_ns: (i64, i64, i64),
    /// Without a data path.
    pub outage_ns: Option<(i64, i64, i64)>,
}

impl Statistics {
    pub fn of<'a>(all: impl Iterator<Item = &'a Handover> + Clone) -> Statistics {
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
            phases: Phase::ALL.iter().filter_map(|p| phase(*p)).collect(),
            whole_ns: of(all.clone().map(Handover::whole_ns).collect()).unwrap_or_default(),
            outage_ns: of(all.filter_map(Handover::outage_ns).collect()),
        }
    }
}

fn of(mut times: Vec<i64>) -> Option<(i64, i64, i64)> {
    times.sort_unstable();
    Some((*times.get((times.len().max(1) - 1) / 2)?, *times.last()?, times.iter().sum()))
}
