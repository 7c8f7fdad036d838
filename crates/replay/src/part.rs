//! One end of one connection of a trace: what is to be played, and what came of it.

use crate::pace::Went;
use kpat_formats::app_trace::{Played, Trace, Written};

/// Why a trace cannot be played.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    #[error("the trace has no connection {wrong}; it has {of}")]
    NoSuchConnection { wrong: i64, of: i64 },
    #[error("connection {connection} is of protocol {proto}; tcp and udp can be played")]
    Protocol { connection: i64, proto: String },
    #[error("the trace has no connection")]
    Empty,
}

/// One connection to be played: what is known of it, our writes, theirs.
pub struct Part<'a> {
    pub about: &'a Played,
    pub own: &'a [Written],
    pub others: &'a [Written],
}

/// What came of one connection.
#[derive(Default)]
pub struct Outcome {
    pub went: Went,
    pub connected: bool,
    pub read_bytes: i64,
}

/// The end `b` or the end `a` of these connections of the trace (none: of all), in its order.
pub fn parts<'a>(trace: &'a Trace, own_is_b: bool, only: &[i64]) -> Result<Vec<Part<'a>>, Refused> {
    let of = trace.connections.len() as i64;
    if let Some(wrong) = only.iter().copied().find(|i| !(1..=of).contains(i)) {
        return Err(Refused::NoSuchConnection { wrong, of });
    }
    let chosen = trace.connections.iter().filter(|c| only.is_empty() || only.contains(&c.about.connection));
    let mut parts = Vec::new();
    for c in chosen {
        if !["tcp", "udp"].contains(&c.about.proto.as_str()) {
            return Err(Refused::Protocol { connection: c.about.connection, proto: c.about.proto.clone() });
        }
        let (own, others): (&[Written], &[Written]) = if own_is_b { (&c.b, &c.a) } else { (&c.a, &c.b) };
        parts.push(Part { about: c, own, others });
    }
    if parts.is_empty() { Err(Refused::Empty) } else { Ok(parts) }
}

/// What any of their writes is a piece of.
pub(crate) fn zeros(parts: &[Part<'_>]) -> Vec<u8> {
    let longest = parts.iter().flat_map(|p| p.own).map(|w| w.size_bytes).max().unwrap_or(0);
    vec![0; usize::try_from(longest).unwrap_or(0)]
}
