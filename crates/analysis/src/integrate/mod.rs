//! From a kernel behaviour log and captures to the integrated log.
//!
//! One pass over the log ([`log`]) writes calls, footprints and events and collects where packets met the wire; each
//! capture is read for its keys, matched, and read again into the frame table, now with the DUT's time. Packet rows
//! wait in a table beside until matching has told how many frames they have.
//!
//! Memory is what is open: calls within the horizon, packets alive, frames and meetings of packets with the wire within the
//! reach of matching ([`Held`] counts them). What must wait longer (meetings with the wire, frames' keys, associations)
//! waits sorted on disk, beside the result. Per packet of the log five bytes and a bit stay.

mod application;
mod arrivals;
mod away;
mod captures;
mod cut;
mod datagrams;
mod drawn;
mod dut;
mod flatten;
mod flows;
mod found;
mod functions;
mod headers;
mod log;
mod nesting;
mod over;
mod packets;
mod polls;
mod stamps;
mod work;

use crate::error::{Error, Result};
use kpat_klog::Log;
use kpat_store::Manifest;
use std::path::{Path, PathBuf};
pub(crate) use work::Work;
pub use work::half_made;

/// What the caller may choose.
#[derive(Clone, Debug)]
pub struct Options {
    /// Replace an integrated log of that name.
    pub overwrite: bool,
    /// How far a sniffer's clock may be from the DUT's before the offset is looked for far away.
    pub clock_tolerance_ns: i64,
    /// One-way traffic bounds the clock from one side only; the other side is taken to be at most this far.
    pub one_way_ns: i64,
    /// A caller that returns later than this after its callee is not joined to it any more.
    pub horizon_ns: i64,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            overwrite: false,
            clock_tolerance_ns: 2_000_000_000,
            one_way_ns: 1_000_000,
            horizon_ns: 250_000_000,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    Log,
    Captures,
    Matching,
    Writing,
}

#[derive(Clone, Copy, Debug)]
pub struct Progress {
    pub stage: Stage,
    pub done: u64,
    /// 0: not known.
    pub total: u64,
}

/// What came of it.
#[derive(Clone, Debug, Default)]
pub struct Report {
    pub records: u64,
    pub calls: u64,
    pub packets: u64,
    pub frames: u64,
    /// Frames with an association.
    pub matched: u64,
    /// Of these, frames that others fit as well (confidence below 60).
    pub ambiguous: u64,
    pub clocks: Vec<kpat_store::tables::ClockRow>,
    /// Frames that could have one: of flows that were recorded.
    pub expected: u64,
    /// Records that the log says are missing.
    pub lost: u64,
    /// Bytes of the log that could not be read.
    pub damaged_bytes: u64,
    /// The recording was closed in order.
    pub complete: bool,
    pub held: Held,
    /// Of a recording of applications.
    pub sockets: u64,
    pub app_events: u64,
    /// One sentence each: damaged stretches, contradictions, assumptions.
    pub warnings: Vec<String>,
}

/// How much was held in memory at a time, at most: it depends on how much happens at once, not on how long the log is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Calls and points whose caller may still come.
    pub calls: u64,
    /// Packets that are not over.
    pub packets: u64,
    /// Frames and sightings in the window of matching.
    pub matching: u64,
}

/// Joins a kernel behaviour log with captures into the directory `out`. Nothing is left behind on failure.
///
/// Errors: the log or a capture cannot be read, `out` exists, the disk is full. Damaged stretches are warnings.
pub fn integrate(
    kbl: &Path,
    captures: &[PathBuf],
    out: &Path,
    options: &Options,
    progress: &mut dyn FnMut(Progress),
) -> Result<Report> {
    integrate_parts(&[kbl.to_owned()], captures, out, options, progress)
}

/// As [`integrate`], from the files of one recording, in any order.
///
/// Errors: also where they are not of one recording. Files that are not given are a loss and a warning.
pub fn integrate_parts(
    kbls: &[PathBuf],
    captures: &[PathBuf],
    out: &Path,
    options: &Options,
    progress: &mut dyn FnMut(Progress),
) -> Result<Report> {
    is_free(out, options)?;
    let log = Log::open_parts(kbls)?;
    integrate_opened(&log, kbls, captures, out, options, progress)
}

/// As [`integrate_parts`], of a log that is open, as far as it was read: it may grow, and have forgotten its beginning
/// ([`Log::grow`], [`Log::forget`]). `kbls` are named as its sources.
///
/// Errors: as [`integrate_parts`], but for those of opening.
pub fn integrate_opened(
    log: &Log,
    kbls: &[PathBuf],
    captures: &[PathBuf],
    out: &Path,
    options: &Options,
    progress: &mut dyn FnMut(Progress),
) -> Result<Report> {
    is_free(out, options)?;
    let work = Work::create(out)?;
    let report = work::run(log, kbls, captures, &work, options, progress)?;
    work.finish(out)?;
    Ok(report)
}

/// Errors: the place for the result is taken, and may not be replaced.
pub(crate) fn is_free(out: &Path, options: &Options) -> Result<()> {
    // One that only an older kpat could read is an integrated log all the same.
    let ours = || matches!(Manifest::read(out), Ok(_) | Err(kpat_store::Error::TooOld { .. }));
    if out.exists() && !(options.overwrite && ours()) {
        return Err(Error::Exists { path: out.to_owned() });
    }
    Ok(())
}
