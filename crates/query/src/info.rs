//! What the log is.

use crate::balance::Conservation;
use crate::error::Result;
use crate::store::{Store, meets_packets};
use kpat_store::Manifest;
use kpat_store::tables::*;

/// What the log is, for `info`.
#[derive(Clone, Debug)]
pub struct Info {
    /// Sources, table counts, kernel, mechanism, filter, cost.
    pub manifest: Manifest,
    pub devices: Vec<DeviceRow>,
    pub interfaces: Vec<InterfaceRow>,
    pub clocks: Vec<ClockRow>,
    pub losses: Vec<LossRow>,
    pub provenance: Vec<ProvenanceRow>,
    /// Whether the packets add up.
    pub conservation: Conservation,
    /// Boot time less wall time of the DUT itself at the start of the recording, if the log knows.
    pub dut_offset_ns: Option<i64>,
    /// Functions with at least one call, and all that were probed.
    pub functions_hit: u64,
    pub functions: u64,
}

impl Store {
    pub fn info(&self) -> Result<Info> {
        Ok(Info {
            manifest: self.manifest.clone(),
            devices: self.all()?,
            interfaces: self.all()?,
            clocks: self.clocks.clone(),
            losses: self.all()?,
            provenance: self.all()?,
            conservation: self.conservation()?,
            dut_offset_ns: self.own_clock().map(|c| c.offset_ns(i64::MIN)),
            functions_hit: self.functions.iter().filter(|f| f.calls > 0).count() as u64,
            functions: self.functions.iter().filter(|f| meets_packets(f)).count() as u64,
        })
    }
}
