//! What the caller may choose, and what is reported during the work and after it.

use std::path::PathBuf;

/// A log file, and what its stamps do not say.
#[derive(Clone, Debug)]
pub struct LogFile {
    pub path: PathBuf,
    /// East of UTC, of stamps without a zone.
    pub zone_ns: i64,
}

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
    /// Files whose lines are events, too.
    pub logs: Vec<LogFile>,
    /// By which encrypted 802.11 frames are read.
    pub secrets: kpat_capture::Secrets,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            overwrite: false,
            clock_tolerance_ns: 2_000_000_000,
            one_way_ns: 1_000_000,
            horizon_ns: 250_000_000,
            logs: Vec::new(),
            secrets: kpat_capture::Secrets::default(),
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
