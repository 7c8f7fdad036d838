//! Foreign formats out: what kpat knows, written for the tools that people already use.
//!
//! A format is a module with one function: an open log and a choice of packets in, bytes out, [`Counts`] back. Everything
//! comes from one pass over the stored tables ([`kpat_query::trace`]), so that no format can know another truth than
//! the commands, and memory does not grow with the log beyond a few bytes per packet. This room computes no times and
//! matches nothing; it knows no command line.

pub mod app_trace;
pub mod app_tsv;
mod error;
pub mod folded;
pub mod json;
mod names;
pub mod pcapng;
pub mod perfetto;
pub mod pprof;
pub mod sampled;
mod stacks;
pub mod text;
pub mod tsv;

pub use error::{Error, Result};

/// What was written, so that one can see that formats agree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Calls, those whose return was not seen included.
    pub calls: u64,
    /// Tracepoints passed.
    pub points: u64,
    /// Sum of the self times of the calls.
    pub self_ns: i64,
    /// Packets written; 0 where the format has no place for them.
    pub packets: u64,
    /// Frames of captures written.
    pub frames: u64,
    /// Of these, frames with an annotation.
    pub annotated: u64,
    /// Sightings of packets in the kernel, written as packets of their own.
    pub sightings: u64,
}

impl Counts {
    fn add(&mut self, of: &Counts) {
        self.calls += of.calls;
        self.points += of.points;
        self.self_ns = self.self_ns.saturating_add(of.self_ns);
    }

    fn call(&mut self, row: &kpat_store::tables::CallRow) {
        if row.flags & kpat_query::call_flag::POINT != 0 {
            self.points += 1;
        } else {
            self.calls += 1;
            self.self_ns = self.self_ns.saturating_add(row.self_ns.unwrap_or(0));
        }
    }
}
