//! Packets that had been in a queue before the recording began: whether they were forwarded or made here is in no record of
//! theirs. But a host's own address is not the source of what it forwards, so other packets from the same source tell.
//!
//! Their rows wait for the end of the log. Memory: [`MAX_WAITING`] rows and [`MAX_SOURCES`] addresses.

use super::verdict::{Evidence, LastSeen};
use kpat_model::codes::verdict;
use kpat_model::hash::Map;
use kpat_store::tables::PacketRow;

const MAX_WAITING: usize = 1 << 14;
const MAX_SOURCES: usize = 1 << 14;

/// Of a source address: packets that came in and were sent on, and packets that were made here.
#[derive(Clone, Copy, Default)]
struct Source {
    forwarded: u32,
    made: u32,
}

#[derive(Default)]
pub(super) struct Origins {
    sources: Map<String, Source>,
    waiting: Vec<PacketRow>,
}

impl Origins {
    /// Keeps the row back if the packet's origin is not known, else takes note of it.
    pub fn meet(&mut self, e: &Evidence, row: PacketRow) -> Option<PacketRow> {
        let out = matches!(e.place, LastSeen::Queue { .. } | LastSeen::Driver { .. });
        if e.unknown_origin
            && !e.received
            && row.verdict == verdict::UNKNOWN
            && self.waiting.len() < MAX_WAITING
        {
            self.waiting.push(row);
            return None;
        }
        if let Some(from) = row.src_addr.as_deref().filter(|_| out && !e.unknown_origin) {
            if self.sources.len() < MAX_SOURCES && !self.sources.contains_key(from) {
                self.sources.insert(from.to_owned(), Source::default());
            }
            if let Some(source) = self.sources.get_mut(from) {
                let n = if e.received { &mut source.forwarded } else { &mut source.made };
                *n = n.saturating_add(1);
            }
        }
        Some(row)
    }

    /// The rows that waited. Those of which nothing is known stay unknown.
    pub fn decide(&mut self) -> impl Iterator<Item = PacketRow> {
        let sources = std::mem::take(&mut self.sources);
        std::mem::take(&mut self.waiting).into_iter().map(move |mut row| {
            let source =
                row.src_addr.as_deref().and_then(|from| sources.get(from)).copied().unwrap_or_default();
            row.verdict = match (source.forwarded, source.made) {
                (0, 0) => verdict::UNKNOWN,
                (0, _) => verdict::SENT,
                (_, 0) => verdict::FORWARDED,
                // Both, as where a namespace sends what another one forwards: these cannot be distinguished.
                _ => verdict::UNKNOWN,
            };
            row
        })
    }
}
