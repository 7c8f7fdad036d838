//! pcapng with annotations: the capture as it was, each frame with what the kernel did with it in its comments, and between
//! the frames the packets as the kernel held them, on interfaces of their own and as a protocol of their own: to whoever
//! analyses connections they are no packets.
//!
//! What stands in the capture is kept byte for byte: blocks are copied, options are put behind those that a packet block
//! has. A pcap file, which has no blocks, becomes pcapng. Times of the kernel are brought to the capture's clock. Custom
//! blocks and options were rejected: Wireshark shows none of them, comments and packet numbers it shows and filters in every
//! version from 4.0 on.

mod block;
mod held;
mod kernel;
mod live;
mod note;
mod sources;

pub use live::Live;
pub use note::VERSION as NOTE_VERSION;
pub use sources::find as find_source;

use crate::names::Names;
use crate::{Counts, Result};
use block::{BlockWriter, has_option, open_section, opt, with_options};
use kernel::{Port, Seen, Sightings, Way};
use kpat_capture::{Blocks, Reader, block_kind};
use kpat_klog::Log;
use kpat_query::Parts;
use kpat_query::Store;
use kpat_query::clock::WallClock;
use kpat_query::trace::Chosen;
use kpat_store::TableFile;
use kpat_store::tables::{AssociationRow, LossRow};
use note::{Notes, Sighting};
use std::collections::HashMap;
use std::io::Write;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Packets of one frame that get a note; a frame with more candidates says little of any.
const MAX_PACKETS: usize = 4;

/// What goes into the file.
#[derive(Clone, Debug)]
pub struct Sources {
    /// A capture and its number in the integrated log; `None`: only what the kernel held.
    pub capture: Option<(PathBuf, i32)>,
    /// The kernel behaviour log, all files of it; none: only the capture.
    pub log: Vec<PathBuf>,
    /// What the kernel held has the link types of its bytes: Wireshark dissects it whole, and takes it for packets on a wire.
    pub as_frames: bool,
    /// Folder for what must wait; it is gone at the end.
    pub beside: PathBuf,
}

/// What was written, and what was odd about it: one sentence each.
#[derive(Debug, Default)]
pub struct Written {
    pub counts: Counts,
    pub warnings: Vec<String>,
}

/// Writes one file. With a choice of packets only their frames and sightings.
pub fn write(
    store: &Store,
    chosen: &Chosen,
    sources: &Sources,
    out: &mut dyn Write,
    progress: Parts<'_>,
) -> Result<Written> {
    let names = Names::of(store)?;
    let mut counts = Counts::default();
    let mut notes = Notes::gather(store, chosen, &names, &sources.beside, &mut counts, progress)?;
    let capture_id = sources.capture.as_ref().map(|c| c.1);
    let frames = Frames::of(store, capture_id, &mut notes)?;
    let log = (!sources.log.is_empty()).then(|| Log::open_parts(&sources.log)).transpose()?;
    let mut file = PcapngFile {
        store,
        notes,
        clock: capture_id.and_then(|c| store.wall_clock(c)).unwrap_or_else(|| store.own_wall_clock()),
        names: &names,
        frames,
        all: chosen.is_all(),
        out,
        section: Section::default(),
        from_wall_ns: i64::MIN,
        logged: Vec::new(),
        done: Written { counts, warnings: Vec::new() },
    };
    let mut kernel = log.as_ref().map(|log| Kernel::new(log, sources));
    match &sources.capture {
        None => file.begin_own(None)?,
        Some((path, _)) => match Blocks::open(path)? {
            Some(blocks) => file.copy(path, blocks, &mut kernel)?,
            None => file.convert(path, &mut kernel)?,
        },
    }
    file.kernel_until(&mut kernel, i64::MAX)?;
    file.end_section()?;
    Ok(file.done)
}

/// Packets of the frames of one capture, by the frame's number. In memory is where each row is; rows are read as frames
/// come by.
struct Frames {
    capture_id: i64,
    table: Arc<TableFile>,
    /// (frame, row group, place), by frame.
    places: Vec<(i64, u32, u32)>,
    /// Rows of the frames that come next, most likely packet first.
    rows: Vec<AssociationRow>,
    /// What part of `places` they are.
    read: Range<usize>,
}

/// Rows read at a time.
const AHEAD: usize = 8_192;

impl Frames {
    /// Notes of packets with a frame there go with that frame.
    fn of(store: &Store, capture_id: Option<i32>, notes: &mut Notes) -> Result<Frames> {
        let table = store.table::<AssociationRow>()?;
        let capture_id = capture_id.map_or(-1, i64::from);
        let mut places = Vec::new();
        for group in 0..table.groups() {
            let captures = table.ints(group, "capture_id")?;
            let numbers = table.ints(group, "number")?;
            let packets = table.ints(group, "packet_id")?;
            for i in (0..captures.len()).filter(|i| captures[*i] == capture_id) {
                places.push((numbers[i], group as u32, i as u32));
                notes.tell(packets[i]);
            }
        }
        places.sort_unstable();
        Ok(Frames { capture_id, table, places, rows: Vec::new(), read: 0..0 })
    }

    fn of_frame(&mut self, number: u64) -> Result<&[AssociationRow]> {
        let number = i64::try_from(number).unwrap_or(i64::MAX);
        let from = self.places.partition_point(|p| p.0 < number);
        let to = from + self.places[from..].iter().take_while(|p| p.0 == number).count();
        if from < self.read.start || to > self.read.end {
            self.read_from(from, to.max((from + AHEAD).min(self.places.len())))?;
        }
        let first = self.rows.partition_point(|a| a.number < number);
        Ok(&self.rows[first..first + (to - from)])
    }

    fn read_from(&mut self, from: usize, to: usize) -> Result<()> {
        let mut wanted: Vec<(u32, u32)> = self.places[from..to].iter().map(|p| (p.1, p.2)).collect();
        wanted.sort_unstable();
        self.rows.clear();
        for of_group in wanted.chunk_by(|a, b| a.0 == b.0) {
            let places: Vec<u32> = of_group.iter().map(|p| p.1).collect();
            self.rows.extend(self.table.rows_at::<AssociationRow>(of_group[0].0 as usize, &places)?);
        }
        debug_assert!(self.rows.iter().all(|a| i64::from(a.capture_id) == self.capture_id));
        self.rows.sort_by_key(|a| (a.number, -a.confidence, a.packet_id));
        self.read = from..to;
        Ok(())
    }
}

/// The sightings, and the one that comes next.
struct Kernel<'a> {
    sightings: Sightings<'a>,
    next: Option<Seen>,
}

impl<'a> Kernel<'a> {
    fn new(log: &'a Log, sources: &Sources) -> Kernel<'a> {
        Kernel { sightings: Sightings::new(log, sources.as_frames), next: None }
    }
}

/// What is known of the section that is being written.
#[derive(Default)]
struct Section {
    big_endian: bool,
    begun: bool,
    /// Number of the next interface; those of the capture come first.
    next_id: u32,
    /// Ours: number in the section, packets written.
    ports: HashMap<Port, (u32, u64)>,
    /// In the order of their numbers.
    order: Vec<Port>,
}

struct PcapngFile<'a> {
    store: &'a Store,
    notes: Notes,
    clock: WallClock,
    names: &'a Names,
    frames: Frames,
    /// No packets were chosen in particular: frames without a packet belong to it.
    all: bool,
    out: &'a mut dyn Write,
    section: Section,
    /// Sightings before this moment of the capture's clock were written by somebody else.
    from_wall_ns: i64,
    /// Packets whose notes are at a sighting, not at a frame.
    logged: Vec<i64>,
    done: Written,
}

impl PcapngFile<'_> {
    /// The capture's blocks, with what is added.
    fn copy(&mut self, path: &Path, mut blocks: Blocks, kernel: &mut Option<Kernel<'_>>) -> Result<()> {
        let described = descriptions(path)?;
        let mut sections = 0;
        loop {
            let b = match blocks.next() {
                Ok(Some(b)) => b,
                Ok(None) => return Ok(()),
                // What stands before that place is a capture all the same.
                Err(e @ kpat_capture::Error::Corrupt { .. }) => {
                    self.done.warnings.push(e.to_string());
                    return Ok(());
                }
                Err(e) => return Err(e.into()),
            };
            match b.kind {
                block_kind::SECTION => {
                    self.end_section()?;
                    let mine = described.get(sections).map_or(&[][..], Vec::as_slice);
                    sections += 1;
                    self.section = Section {
                        big_endian: b.big_endian,
                        begun: true,
                        next_id: mine.len() as u32,
                        ..Section::default()
                    };
                    self.out.write_all(&open_section(b.bytes))?;
                    // Together at the front, so that the numbers behind them are ours.
                    for block in mine {
                        self.out.write_all(block)?;
                    }
                }
                block_kind::INTERFACE => {}
                _ => match b.number {
                    Some(number) => {
                        if b.at.0 != 0 {
                            self.kernel_until(kernel, b.at.0)?;
                        }
                        self.frame(b.kind, b.bytes, number)?;
                    }
                    None => self.out.write_all(b.bytes)?,
                },
            }
        }
    }

    /// A pcap file becomes a section.
    fn convert(&mut self, path: &Path, kernel: &mut Option<Kernel<'_>>) -> Result<()> {
        let mut reader = Reader::open(path)?;
        let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        let first = reader.interfaces().first().map(|i| (i.link_type, i.snaplen));
        self.begin_own(Some((&name, first.unwrap_or_default())))?;
        while let Some(f) = reader.next()? {
            let (at, number) = (f.at.0, f.number);
            let mut w = BlockWriter::block(block_kind::ENHANCED_PACKET, false);
            w.u32(0);
            w.time(at);
            w.u32(f.data.len() as u32);
            w.u32(f.len_wire);
            w.padded(f.data);
            self.kernel_until(kernel, at)?;
            self.frame(block_kind::ENHANCED_PACKET, &w.finish(), number)?;
        }
        Ok(())
    }

    /// A section that no capture had; with the interface of a pcap file if there is one.
    fn begin_own(&mut self, pcap: Option<(&str, (u16, u32))>) -> Result<()> {
        let mut w = BlockWriter::block(block_kind::SECTION, false);
        w.u32(0x1a2b_3c4d);
        w.u16(1);
        w.u16(0);
        w.u32(u32::MAX);
        w.u32(u32::MAX);
        let log = &self.store.manifest().log;
        if pcap.is_none() {
            w.option(opt::SHB_OS, format!("Linux {}", log.kernel_release).as_bytes());
        }
        w.option(opt::SHB_APPLICATION, concat!("kpat ", env!("CARGO_PKG_VERSION")).as_bytes());
        w.end_of_options();
        self.out.write_all(&w.finish())?;
        self.section = Section { begun: true, ..Section::default() };
        if let Some((name, (link_type, snaplen))) = pcap {
            let mut w = BlockWriter::block(block_kind::INTERFACE, false);
            w.u16(link_type);
            w.u16(0);
            w.u32(snaplen);
            w.option(opt::IF_DESCRIPTION, name.as_bytes());
            w.option(opt::IF_TSRESOL, &[9]);
            w.end_of_options();
            self.out.write_all(&w.finish())?;
            self.section.next_id = 1;
        }
        Ok(())
    }

    fn frame(&mut self, kind: u32, block: &[u8], number: u64) -> Result<()> {
        let big_endian = self.section.big_endian;
        let notes = &self.notes;
        let mine = self.frames.of_frame(number)?.iter().filter(|a| notes.has(a.packet_id));
        let mine: Vec<&AssociationRow> = mine.collect();
        if mine.is_empty() && !self.all {
            return Ok(());
        }
        self.done.counts.frames += 1;
        let mut add = BlockWriter::options(big_endian);
        for a in mine.iter().take(MAX_PACKETS) {
            for line in notes.of_frame(a)?.into_iter().flatten() {
                add.option(opt::COMMENT, line.as_bytes());
            }
        }
        if let Some(best) = mine.first()
            && kind == block_kind::ENHANCED_PACKET
            && !has_option(block, big_endian, opt::EPB_PACKETID)
        {
            add.option_u64(opt::EPB_PACKETID, best.packet_id as u64);
        }
        let can_have = matches!(kind, block_kind::ENHANCED_PACKET | block_kind::OLD_PACKET);
        let changed =
            if add.bytes.is_empty() || !can_have { None } else { with_options(block, big_endian, &add) };
        self.done.counts.annotated += u64::from(changed.is_some());
        Ok(self.out.write_all(changed.as_deref().unwrap_or(block))?)
    }

    /// Sightings up to this moment of the capture's clock.
    fn kernel_until(&mut self, kernel: &mut Option<Kernel<'_>>, wall_ns: i64) -> Result<()> {
        let Some(Kernel { sightings, next }) = kernel else { return Ok(()) };
        if !self.section.begun {
            return Ok(());
        }
        while let Some(seen) = next.take().or_else(|| sightings.next(&self.notes)) {
            let (at, bound) = self.clock.wall(seen.at_boot_ns());
            if at > wall_ns {
                *next = Some(seen);
                break;
            }
            if at >= self.from_wall_ns {
                self.sighting(&seen, at, bound)?;
            }
        }
        Ok(())
    }

    fn sighting(&mut self, seen: &Seen, at_ns: i64, bound_ns: i64) -> Result<()> {
        let big_endian = self.section.big_endian;
        let id = self.port(&seen.port)?;
        let device = seen.port.device(self.names);
        let (data, len) = seen.data(&device);
        let mut w = BlockWriter::block(block_kind::ENHANCED_PACKET, big_endian);
        w.u32(id);
        w.time(at_ns);
        w.u32(data.len() as u32);
        w.u32(len);
        w.padded(&data);
        match seen.port.way {
            Way::In => w.option_u32(opt::EPB_FLAGS, 1),
            Way::Out => w.option_u32(opt::EPB_FLAGS, 2),
            Way::Within => {}
        }
        // A packet without a frame in this capture gets its note here, once.
        let first = self.notes.tell(seen.packet);
        if first {
            self.logged.push(seen.packet);
        }
        let s = Sighting {
            packet: seen.packet,
            device: &device,
            layer: seen.port.layer,
            at_boot_ns: seen.at_boot_ns(),
            bound_ns,
        };
        for line in self.notes.of_sighting(&s, first)? {
            w.option(opt::COMMENT, line.as_bytes());
        }
        w.option_u64(opt::EPB_PACKETID, seen.packet as u64);
        w.end_of_options();
        self.out.write_all(&w.finish())?;
        self.done.counts.sightings += 1;
        Ok(())
    }

    /// Number of the interface for these sightings; described when it is first needed.
    fn port(&mut self, port: &Port) -> Result<u32> {
        if let Some((id, packets)) = self.section.ports.get_mut(port) {
            *packets += 1;
            return Ok(*id);
        }
        let id = self.section.next_id;
        self.section.next_id += 1;
        let log = &self.store.manifest().log;
        let mut w = BlockWriter::block(block_kind::INTERFACE, self.section.big_endian);
        w.u16(port.link_type);
        w.u16(0);
        w.u32(0);
        w.option(opt::IF_NAME, port.name(self.names).as_bytes());
        w.option(
            opt::IF_DESCRIPTION,
            format!(
                "packets as the kernel of {} held them, headers only; times within ±{}",
                log.hostname,
                note::duration(self.clock.bound_ns())
            )
            .as_bytes(),
        );
        w.option(opt::IF_TSRESOL, &[9]);
        w.option(opt::IF_OS, format!("Linux {}", log.kernel_release).as_bytes());
        w.end_of_options();
        self.out.write_all(&w.finish())?;
        self.section.ports.insert(*port, (id, 1));
        self.section.order.push(*port);
        Ok(id)
    }

    /// Statistics of our interfaces. What the log lost cannot be split by interface: it stands at the first of them.
    fn end_section(&mut self) -> Result<()> {
        let losses: Vec<LossRow> = self.store.table::<LossRow>()?.all()?;
        let lost: i64 = losses.iter().fold(0, |sum, l| sum.saturating_add(l.count));
        let section = std::mem::take(&mut self.section);
        let (at, _) = self.clock.wall(self.store.manifest().last_ns);
        for (i, port) in section.order.iter().enumerate() {
            let Some((id, packets)) = section.ports.get(port) else { continue };
            let mut w = BlockWriter::block(block_kind::STATISTICS, section.big_endian);
            w.u32(*id);
            w.time(at);
            if i == 0 && lost > 0 {
                let mut causes: HashMap<i32, i64> = HashMap::new();
                losses.iter().for_each(|l| *causes.entry(l.cause).or_default() += l.count);
                let mut causes: Vec<_> = causes.into_iter().collect();
                causes.sort_unstable();
                let list: Vec<String> =
                    causes.iter().map(|(c, n)| format!("{} {n}", crate::names::loss(*c))).collect();
                w.option(
                    opt::COMMENT,
                    format!("kpat: lost to the whole log, at whatever interface: {}", list.join(", "))
                        .as_bytes(),
                );
            }
            w.option_u64(opt::ISB_IFRECV, *packets);
            if i == 0 {
                w.option_u64(opt::ISB_IFDROP, lost.unsigned_abs());
            }
            w.end_of_options();
            self.out.write_all(&w.finish())?;
        }
        Ok(())
    }
}

/// The interface descriptions of each section, up to where the file can be read.
fn descriptions(path: &Path) -> Result<Vec<Vec<Vec<u8>>>> {
    let mut out: Vec<Vec<Vec<u8>>> = Vec::new();
    let Some(mut blocks) = Blocks::open(path)? else { return Ok(out) };
    while let Ok(Some(b)) = blocks.next() {
        match b.kind {
            block_kind::SECTION => out.push(Vec::new()),
            block_kind::INTERFACE => {
                if let Some(section) = out.last_mut() {
                    section.push(b.bytes.to_vec());
                }
            }
            _ => {}
        }
    }
    Ok(out)
}
