//! Captures of the air, whose frames have clocks of radios in them: what these add to a capture's relation to the device's clock ([`radio`] says how).

use crate::captures::{Join, Outcome};
use crate::clock::{Clock, Given, Pair, estimate, radio};
use crate::error::Result;
use kpat_capture::Reader;
use std::path::Path;

impl Join<'_> {
    /// A sniffer that heard nothing of the device is related by beacons that another one heard, too; those of one that is related are kept for others.
    /// `stamps`: what was read of it for its own clock; `None`: nothing yet.
    pub(super) fn beacons(
        &mut self,
        path: &Path,
        stamps: Option<Vec<radio::Stamp>>,
        clock: Option<Clock>,
    ) -> Result<Option<Clock>> {
        let stamps = stamps.map_or_else(|| radio::read(path, &[]), Ok)?;
        if let Some(c @ Clock::Estimated(_)) = &clock {
            self.heard.add(&stamps, c);
            return Ok(clock);
        }
        let pairs = self.heard.pairs(&stamps);
        Ok(self.relate_with(pairs, &radio::radios(&stamps).runs, 1).or(clock))
    }

    /// The radios' clocks of the capture.
    pub(super) fn radios(
        &self,
        path: &Path,
        sure: &[Pair],
        outcome: &mut Outcome,
    ) -> Result<Vec<radio::Run>> {
        let mut numbers: Vec<u64> = sure.iter().map(|p| p.number).collect();
        numbers.sort_unstable();
        numbers.dedup();
        let stamps = radio::read(path, &numbers)?;
        let radios = radio::radios(&stamps);
        outcome.stamps = Some(stamps);
        let reader = Reader::open(path)?;
        let file = path.file_name().unwrap_or_default().to_string_lossy();
        for (interface, jumps) in &radios.refused {
            let name = reader.interfaces().get(*interface as usize).map_or("", |i| i.name.as_str());
            outcome.warnings.push(format!(
                "{file}: the radio's clock (TSFT) of interface {interface} {name} was not used: too few frames have it, or it does not run ({jumps} jumps)"
            ));
        }
        Ok(radios.runs)
    }

    /// The same with what radios' clocks say of frames without a match.
    pub(super) fn relate_with(
        &self,
        pairs: Vec<Pair>,
        radios: &[radio::Run],
        resolution_ns: i64,
    ) -> Option<Clock> {
        let given = Given { one_way_ns: self.options.one_way_ns, resolution_ns };
        let more = radio::more(radios, &pairs, given.one_way_ns);
        let noise_assumed = more.as_ref().is_some_and(|m| m.noise_assumed);
        let all = [pairs, more.map(|m| m.pairs).unwrap_or_default()].concat();
        let mut found = estimate::estimate(&all, &given)?;
        found.noise_assumed |= noise_assumed;
        Some(Clock::Estimated(Box::new(found)))
    }
}
