//! What matching found: associations on their way into their table, and what a packet's row says of its frames.

use crate::clock::Clock;
use crate::error::Result;
use crate::matching::{self, Frame, Match, Side, Sighting};
use crate::spill::{Fixed, Put, Sorter, Take};
use kpat_model::hash::Map;
use kpat_query::SURE_PERCENT;
use kpat_store::TableWriter;
use kpat_store::tables::AssociationRow;
use std::path::Path;

/// Messages of frames that are kept for their packets; some 30 MiB.
const MOST_MESSAGES: usize = 1 << 18;

/// An association before the clock is known for good.
#[derive(Clone, Copy)]
struct Association {
    packet: u64,
    capture: u32,
    number: u64,
    side: u8,
    key: u8,
    confidence: u8,
    alternatives: u32,
    kernel: i64,
    wall: i64,
    seq_offset: Option<i64>,
}

impl Fixed for Association {
    const BYTES: usize = 8 + 4 + 8 + 3 + 4 + 8 + 8 + 9;
    type Key = (u64, u32, u64);

    fn key(&self) -> (u64, u32, u64) {
        (self.packet, self.capture, self.number)
    }

    fn write(&self, to: &mut Put<'_>) {
        to.u64(self.packet).u32(self.capture).u64(self.number);
        to.u8(self.side).u8(self.key).u8(self.confidence).u32(self.alternatives);
        to.i64(self.kernel).i64(self.wall);
        to.u8(u8::from(self.seq_offset.is_some())).i64(self.seq_offset.unwrap_or(0));
    }

    fn read(from: &mut Take<'_>) -> Self {
        Association {
            packet: from.u64(),
            capture: from.u32(),
            number: from.u64(),
            side: from.u8(),
            key: from.u8(),
            confidence: from.u8(),
            alternatives: from.u32(),
            kernel: from.i64(),
            wall: from.i64(),
            seq_offset: {
                let known = from.u8() != 0;
                Some(from.i64()).filter(|_| known)
            },
        }
    }
}

/// Frames and best confidence of each packet: five bytes per packet number, in pages.
#[derive(Default)]
struct OnWire {
    pages: Map<u64, Box<Page>>,
}

struct Page {
    frames: [u32; PAGE],
    confidence: [u8; PAGE],
}

const PAGE: usize = 1 << 12;

impl OnWire {
    fn add(&mut self, packet: u64, confidence: u8) {
        let page = self.pages.entry(packet / PAGE as u64);
        let page = page.or_insert_with(|| Box::new(Page { frames: [0; PAGE], confidence: [0; PAGE] }));
        let i = (packet % PAGE as u64) as usize;
        page.frames[i] = page.frames[i].saturating_add(1);
        page.confidence[i] = page.confidence[i].max(confidence);
    }

    fn get(&self, packet: u64) -> Option<(i32, i32)> {
        let page = self.pages.get(&(packet / PAGE as u64))?;
        let i = (packet % PAGE as u64) as usize;
        let frames = i32::try_from(page.frames[i]).unwrap_or(i32::MAX);
        (frames > 0).then_some((frames, i32::from(page.confidence[i])))
    }
}

/// Everything that was matched, over all captures.
pub(super) struct Found {
    associations: Sorter<Association>,
    on_wire: OnWire,
    /// By capture and number: what frames say behind their headers.
    of_frames: Map<(u32, u64), Box<str>>,
    /// The same by packet.
    messages: Map<u64, Box<str>>,
    /// By capture.
    clocks: Vec<Option<Clock>>,
}

impl Found {
    pub fn new(early: &Path) -> Found {
        let associations = Sorter::new(early, "associations", 1 << 18);
        Found {
            associations,
            on_wire: OnWire::default(),
            of_frames: Map::default(),
            messages: Map::default(),
            clocks: Vec::new(),
        }
    }

    pub fn add(&mut self, capture_id: i32, f: &Frame, s: &Sighting, m: &Match) -> Result<()> {
        let confidence = m.confidence.clamp(0, 100) as u8;
        self.on_wire.add(s.packet, confidence);
        self.associations.push(Association {
            packet: s.packet,
            capture: capture_id as u32,
            number: f.number,
            side: matching::way(f, m) as u8,
            key: m.key as u8,
            confidence,
            alternatives: m.alternatives.max(0) as u32,
            kernel: s.at,
            wall: f.wall,
            seq_offset: m.seq_offset,
        })
    }

    /// A frame says something that recordings do not keep.
    pub fn says(&mut self, capture_id: i32, number: u64, text: &str) {
        if self.of_frames.len() < MOST_MESSAGES {
            self.of_frames.insert((capture_id as u32, number), text.into());
        }
    }

    /// What a packet says, by its frame; once.
    pub fn message(&mut self, packet_id: i64) -> Option<String> {
        self.messages.remove(&(packet_id as u64)).map(String::from)
    }

    /// The clock of a capture, when all of it is matched.
    pub fn set_clock(&mut self, capture_id: i32, clock: Option<Clock>) {
        let i = capture_id as usize;
        if self.clocks.len() <= i {
            self.clocks.resize(i + 1, None);
        }
        self.clocks[i] = clock;
    }

    /// Frames of a packet, and the best confidence; `None`: it has none.
    pub fn on_wire(&self, packet_id: i64) -> Option<(i32, i32)> {
        self.on_wire.get(packet_id as u64)
    }

    /// Writes the associations, by packet.
    pub fn write(&mut self, dir: &Path) -> Result<()> {
        let none = Sorter::new(dir, "none", 1);
        let sorted = std::mem::replace(&mut self.associations, none).finish()?;
        let mut table = TableWriter::create_threaded(dir)?;
        let mut all = sorted.iter()?;
        while let Some(a) = all.next()? {
            if i32::from(a.confidence) >= SURE_PERCENT
                && let Some(text) = self.of_frames.get(&(a.capture, a.number))
            {
                self.messages.entry(a.packet).or_insert_with(|| text.clone());
            }
            let Some(Some(clock)) = self.clocks.get(a.capture as usize) else { continue };
            let (boot, bound) = clock.boot(a.number, a.wall);
            table.give(AssociationRow {
                packet_id: a.packet as i64,
                capture_id: a.capture as i32,
                number: a.number as i64,
                side: Side::of(a.side).code(),
                key: i32::from(a.key),
                confidence: i32::from(a.confidence),
                alternatives: a.alternatives as i32,
                kernel_ns: a.kernel,
                residual_ns: boot.wrapping_sub(a.kernel),
                bound_ns: bound,
                seq_offset: a.seq_offset,
            })?;
        }
        table.finish()?;
        Ok(())
    }
}
