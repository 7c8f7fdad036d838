//! The annotated capture of a running recording: one section, written bit by bit.
//!
//! What was recorded so far is joined anew for each piece by the caller; here only the frames and sightings of the piece are
//! taken from it. Interfaces are described when they are first met and keep their numbers.

use super::block::{BlockWriter, opt, u32_at};
use super::kernel::Port;
use super::note::Notes;
use super::{Frames, Kernel, PcapngFile, Section, Sources, Written};
use crate::names::Names;
use crate::{Counts, Result};
use kpat_capture::{Blocks, block_kind};
use kpat_klog::Log;
use kpat_query::trace::Chosen;
use kpat_query::{PacketFilter, Store};
use std::collections::HashMap;
use std::io::Write;

/// A packet that ended so long before a piece has no frame in it.
const REACH_NS: i64 = 1_000_000_000;

/// A stream in the making.
pub struct Live<'a> {
    out: &'a mut dyn Write,
    section: Section,
    /// Interfaces of the capture: name and link type, and number in the stream.
    wire: HashMap<(String, u16), u32>,
    /// Packets whose notes are at a sighting.
    logged: Vec<i64>,
    lost: u64,
}

impl<'a> Live<'a> {
    /// Writes the head of the stream.
    pub fn begin(out: &'a mut dyn Write, os: &str) -> Result<Live<'a>> {
        let mut w = BlockWriter::block(block_kind::SECTION, false);
        w.u32(0x1a2b_3c4d);
        w.u16(1);
        w.u16(0);
        w.u32(u32::MAX);
        w.u32(u32::MAX);
        w.option(opt::SHB_OS, os.as_bytes());
        w.option(opt::SHB_APPLICATION, concat!("kpat ", env!("CARGO_PKG_VERSION")).as_bytes());
        w.end_of_options();
        out.write_all(&w.finish())?;
        out.flush()?;
        Ok(Live {
            out,
            section: Section { begun: true, ..Section::default() },
            wire: HashMap::new(),
            logged: Vec::new(),
            lost: 0,
        })
    }

    /// Packets are numbered anew from here on: another recording.
    pub fn another_log(&mut self) {
        self.logged.clear();
    }

    /// Frames and sightings from `from_ns` on and before `to_ns`, by the capture's clock.
    pub fn piece(&mut self, store: &Store, sources: &Sources, from_ns: i64, to_ns: i64) -> Result<Counts> {
        let names = Names::of(store)?;
        let capture_id = sources.capture.as_ref().map(|c| c.1);
        let clock = capture_id.and_then(|c| store.wall_clock(c)).unwrap_or_else(|| store.own_wall_clock());
        let offset = {
            let at = store.manifest().last_ns;
            clock.wall(at).0.saturating_sub(at)
        };
        let since = from_ns.saturating_sub(offset).saturating_sub(REACH_NS).saturating_sub(clock.bound_ns());
        let filter = PacketFilter { from_ns: Some(since), ..PacketFilter::default() };
        let chosen = Chosen { filter, packet: None };
        let mut counts = Counts::default();
        let mut notes =
            Notes::gather(store, &chosen, &names, &sources.beside, &mut counts, &mut |_, _| true)?;
        let frames = Frames::of(store, capture_id, &mut notes)?;
        for packet in &self.logged {
            notes.tell(*packet);
        }
        let log = (!sources.log.is_empty()).then(|| Log::open_parts(&sources.log)).transpose()?;
        let mut kernel = log.as_ref().map(|log| Kernel::new(log, sources));
        let mut file = PcapngFile {
            store,
            notes,
            clock,
            names: &names,
            frames,
            all: true,
            out: &mut *self.out,
            section: std::mem::take(&mut self.section),
            from_wall_ns: from_ns,
            logged: Vec::new(),
            done: Written { counts, warnings: Vec::new() },
        };
        let done = frames_of(&mut file, &mut self.wire, sources, &mut kernel, from_ns, to_ns)
            .and_then(|()| file.kernel_until(&mut kernel, to_ns - 1));
        self.logged.append(&mut file.logged);
        self.section = std::mem::take(&mut file.section);
        let counts = file.done.counts;
        done?;
        self.out.flush()?;
        Ok(counts)
    }

    /// What a recording lost, written once it has ended.
    pub fn lost(&mut self, records: u64) {
        self.lost += records;
    }

    /// Statistics of the kernel's interfaces.
    pub fn end(self, at_ns: i64) -> Result<()> {
        for (i, port) in self.section.order.iter().enumerate() {
            let Some((id, packets)) = self.section.ports.get::<Port>(port) else { continue };
            let mut w = BlockWriter::block(block_kind::STATISTICS, false);
            w.u32(*id);
            w.time(at_ns);
            w.option_u64(opt::ISB_IFRECV, *packets);
            if i == 0 {
                w.option_u64(opt::ISB_IFDROP, self.lost);
            }
            w.end_of_options();
            self.out.write_all(&w.finish())?;
        }
        Ok(self.out.flush()?)
    }
}

/// The capture's frames of the piece. It is still being written: a torn end is its end.
fn frames_of(
    file: &mut PcapngFile<'_>,
    wire: &mut HashMap<(String, u16), u32>,
    sources: &Sources,
    kernel: &mut Option<Kernel<'_>>,
    from_ns: i64,
    to_ns: i64,
) -> Result<()> {
    let Some((path, _)) = &sources.capture else { return Ok(()) };
    let Some(mut blocks) = Blocks::open(path)? else { return Ok(()) };
    // Numbers of the stream by those of the capture.
    let mut ids: Vec<u32> = Vec::new();
    let mut described: Vec<(Vec<u8>, (String, u16))> = Vec::new();
    loop {
        let known = blocks.interfaces().len();
        let Some(b) = blocks.next()? else { return Ok(()) };
        match (b.kind, b.number) {
            (block_kind::INTERFACE, _) => {
                let bytes = b.bytes.to_vec();
                if let Some(i) = blocks.interfaces().get(known) {
                    described.push((bytes, (i.name.clone(), i.link_type)));
                }
            }
            (block_kind::ENHANCED_PACKET, Some(number)) => {
                if !(from_ns..to_ns).contains(&b.at.0) {
                    continue;
                }
                for (bytes, key) in described.drain(..) {
                    let id = *wire.entry(key).or_insert(file.section.next_id);
                    if id == file.section.next_id {
                        file.section.next_id += 1;
                        file.out.write_all(&bytes)?;
                    }
                    ids.push(id);
                }
                file.kernel_until(kernel, b.at.0)?;
                let local = u32_at(false, b.bytes, 8).unwrap_or(0) as usize;
                let mut bytes = b.bytes.to_vec();
                if let Some(id) = ids.get(local) {
                    bytes[8..12].copy_from_slice(&id.to_le_bytes());
                    file.frame(b.kind, &bytes, number)?;
                }
            }
            _ => {}
        }
    }
}
