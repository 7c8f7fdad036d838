//! Capture files in, frames out. Knows file formats and time resolutions; does not look into frames except for the
//! direction that a cooked header names.
//!
//! A frame is handed out only when all of it is there. Where the file ends in the middle of a record, a warning says
//! so and the reader is at its end; where it is corrupt, `next` gives one error and is at its end after that.

mod blocks;
mod pcap;
mod pcapng;
mod source;

use std::fs::File;
use std::io::{self, Cursor, Read};
use std::path::{Path, PathBuf};

use kpat_model::WallNs;

use crate::Error;
pub use blocks::{Block, Blocks, kind};
use source::Source;

/// Larger frames than this are not a capture but a misread length. Wireshark's own limit is 256 KiB for Ethernet.
const MAX_FRAME: u32 = 16 << 20;
/// Warnings beyond this number are counted, not kept.
const MAX_WARNINGS: usize = 100;

/// Where a frame was captured, as the file describes it; empty text where it does not say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interface {
    /// Position in [`Reader::interfaces`], counted through all sections of the file.
    pub index: u32,
    /// Section of the file, from 0.
    pub section: u32,
    pub name: String,
    pub description: String,
    /// LINKTYPE_* as in <https://www.tcpdump.org/linktypes.html>.
    pub link_type: u16,
    /// Bytes kept of each frame at most; 0: no limit.
    pub snaplen: u32,
    /// Capture filter, in libpcap's syntax.
    pub filter: String,
    /// Operating system of the interface, else of the section.
    pub os: String,
    /// Of a section that kpat's sniffer wrote: the boot of the kernel whose clock made the stamps (/proc/sys/kernel/random/boot_id).
    pub boot_id: String,
    /// Smallest step of the timestamps, rounded up to whole nanoseconds.
    pub ts_resolution_ns: u64,
    /// Seconds that were added to every timestamp (`if_tsoffset`).
    pub ts_offset_s: i64,
    /// Frames that the sniffer says it lost here (`isb_ifdrop` + `isb_osdrop`), known once its statistics are read;
    /// `None`: it does not say.
    pub drops: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    In,
    Out,
}

/// One captured frame; `data` is valid until the next call of [`Reader::next`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// From 1, as Wireshark's `frame.number`.
    pub number: u64,
    /// Index into [`Reader::interfaces`].
    pub interface: u32,
    /// That of the interface: what [`crate::decode::frame`] wants.
    pub link_type: u16,
    /// The sniffer's clock; 0 where the file has no time for it (simple packet blocks).
    pub at: WallNs,
    pub len_wire: u32,
    pub data: &'a [u8],
    pub direction: Option<Direction>,
    /// Of its record in the (decompressed) file.
    pub offset: u64,
}

/// Something the reader had to pass over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// In the decompressed file.
    pub offset: u64,
    pub text: String,
}

/// A frame whose bytes are still in the window: `len` bytes that begin `back` bytes before the window's position.
struct Found {
    interface: u32,
    at: WallNs,
    len_wire: u32,
    back: usize,
    len: usize,
    direction: Option<Direction>,
    offset: u64,
}

/// How a step through the file ended.
enum Step {
    Frame(Found),
    /// A record that Wireshark counts as a frame and that is none.
    Counted,
    /// Anything else; go on.
    Passed,
    End,
}

/// Why a step failed.
enum Fault {
    Io(io::Error),
    Corrupt { offset: u64, what: String },
}

impl From<io::Error> for Fault {
    fn from(e: io::Error) -> Fault {
        Fault::Io(e)
    }
}

fn corrupt<T>(offset: u64, what: impl Into<String>) -> Result<T, Fault> {
    Err(Fault::Corrupt { offset, what: what.into() })
}

enum Format {
    Pcap(pcap::Pcap),
    Pcapng(pcapng::Pcapng),
}

/// Shared by the formats: what the file stated about itself so far.
#[derive(Default)]
struct Notes {
    interfaces: Vec<Interface>,
    /// Bytes of text in them.
    words: usize,
    warnings: Vec<Warning>,
    /// Warnings not kept.
    more_warnings: u64,
}

impl Notes {
    fn warn(&mut self, offset: u64, text: impl Into<String>) {
        if self.warnings.len() < MAX_WARNINGS {
            self.warnings.push(Warning { offset, text: text.into() });
        } else {
            self.more_warnings += 1;
        }
    }
}

/// Reads a capture file frame by frame, in file order.
pub struct Reader {
    path: PathBuf,
    source: Source,
    format: Format,
    notes: Notes,
    number: u64,
    ended: bool,
    /// Found while looking for interfaces at opening, not yet handed out.
    ahead: Option<Step>,
}

impl Reader {
    /// Opens a capture; kind and compression are recognised by its first bytes.
    ///
    /// *Errors*: [`Error::Open`], [`Error::Foreign`], [`Error::Io`]; [`Error::Corrupt`] when not even the interface
    /// descriptions at its beginning are readable.
    pub fn open(path: &Path) -> Result<Reader, Error> {
        let file = File::open(path).map_err(|source| Error::Open { path: path.into(), source })?;
        Reader::from_read(file, path)
    }

    /// As [`Reader::open`], from any stream; `path` is for messages only.
    pub fn from_read(read: impl Read + Send + 'static, path: &Path) -> Result<Reader, Error> {
        let path = path.to_path_buf();
        let io_error = |source| Error::Io { path: path.clone(), offset: 0, source };
        let mut source = decompressed(Box::new(read)).map_err(io_error)?;
        source.fill(4).map_err(io_error)?;
        let foreign = |what: &str| Error::Foreign { path: path.clone(), what: what.into() };
        let mut notes = Notes::default();
        let Some(&magic) = source.bytes().first_chunk::<4>() else {
            return Err(foreign(if source.available() == 0 { "it is empty" } else { "it is too short" }));
        };
        let format = if magic == pcapng::SECTION_HEADER {
            Format::Pcapng(pcapng::Pcapng::default())
        } else if let Some(variant) = pcap::Variant::of(magic) {
            match pcap::Pcap::open(variant, &mut source, &mut notes).map_err(io_error)? {
                Some(pcap) => Format::Pcap(pcap),
                None => return Err(foreign("it ends within the file header")),
            }
        } else {
            return Err(foreign(&format!("it begins with {magic:02x?}")));
        };
        let mut reader = Reader { path, source, format, notes, number: 0, ended: false, ahead: None };
        if matches!(reader.format, Format::Pcapng(_)) {
            reader.look_ahead()?;
        }
        Ok(reader)
    }

    /// Reads up to the first packet, so that the interfaces described before it are known.
    fn look_ahead(&mut self) -> Result<(), Error> {
        loop {
            let at_packet = match &self.format {
                Format::Pcapng(f) => f.at_packet(&mut self.source),
                Format::Pcap(_) => Ok(true),
            };
            match at_packet {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(e) => return Err(self.fail(Fault::Io(e))),
            }
            match self.step()? {
                Step::Passed => {}
                Step::End => {
                    self.ended = true;
                    return Ok(());
                }
                other => {
                    self.ahead = Some(other);
                    return Ok(());
                }
            }
        }
    }

    /// The interfaces described so far; a pcapng file may describe more between frames, never fewer.
    pub fn interfaces(&self) -> &[Interface] {
        &self.notes.interfaces
    }

    /// What was passed over so far: a torn end, frames without time.
    pub fn warnings(&self) -> &[Warning] {
        &self.notes.warnings
    }

    /// Warnings that were only counted, because there were too many to keep.
    pub fn more_warnings(&self) -> u64 {
        self.notes.more_warnings
    }

    /// Frames handed out or counted so far.
    pub fn frames_read(&self) -> u64 {
        self.number
    }

    /// The next frame, `None` at the end of what can be read.
    ///
    /// *Errors*: [`Error::Io`], [`Error::Corrupt`]: once, then `None`; earlier frames stay valid.
    #[allow(clippy::should_implement_trait, reason = "an iterator cannot lend from itself")]
    pub fn next(&mut self) -> Result<Option<Frame<'_>>, Error> {
        loop {
            if self.ended {
                return Ok(None);
            }
            let step = match self.ahead.take() {
                Some(step) => step,
                None => self.step()?,
            };
            match step {
                Step::Frame(found) => {
                    self.number += 1;
                    return Ok(Some(self.lend(found)));
                }
                Step::Counted => self.number += 1,
                Step::Passed => {}
                Step::End => self.ended = true,
            }
        }
    }

    fn lend(&self, found: Found) -> Frame<'_> {
        let data = self.source.behind(found.back, found.len);
        let link_type = self.notes.interfaces.get(found.interface as usize).map_or(0, |i| i.link_type);
        Frame {
            number: self.number,
            interface: found.interface,
            link_type,
            at: found.at,
            len_wire: found.len_wire,
            data,
            direction: found.direction.or_else(|| cooked_direction(link_type, data)),
            offset: found.offset,
        }
    }

    #[inline]
    fn step(&mut self) -> Result<Step, Error> {
        let step = match &mut self.format {
            Format::Pcap(f) => f.step(&mut self.source, &mut self.notes),
            Format::Pcapng(f) => f.step(&mut self.source, &mut self.notes),
        };
        step.map_err(|fault| self.fail(fault))
    }

    #[cold]
    fn fail(&mut self, fault: Fault) -> Error {
        self.ended = true;
        let path = self.path.clone();
        match fault {
            // What a decompressor says of damaged data.
            Fault::Io(e) if matches!(e.kind(), io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput) => {
                Error::Corrupt { path, offset: self.source.offset(), what: e.to_string() }
            }
            Fault::Io(source) => Error::Io { path, offset: self.source.offset(), source },
            Fault::Corrupt { offset, what } => Error::Corrupt { path, offset, what },
        }
    }
}

/// Peels off gzip or zstd.
fn decompressed(mut read: Box<dyn Read + Send>) -> io::Result<Source> {
    let mut head = Vec::with_capacity(4);
    read.by_ref().take(4).read_to_end(&mut head)?;
    let gzip = head.starts_with(&[0x1f, 0x8b]);
    let zstd = head.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]);
    let whole = Cursor::new(head).chain(read);
    Ok(Source::new(if gzip {
        Box::new(flate2::read::MultiGzDecoder::new(whole))
    } else if zstd {
        Box::new(Damage(zstd::stream::read::Decoder::new(whole)?))
    } else {
        Box::new(whole)
    }))
}

/// Gives damage in zstd data the error kind that flate2 gives it.
struct Damage<R>(R);

impl<R: Read> Read for Damage<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.0.read(into).map_err(|e| match e.kind() {
            io::ErrorKind::Other => io::Error::new(io::ErrorKind::InvalidData, e),
            _ => e,
        })
    }
}

/// Packet type of a cooked header: 4 is "sent by us", the others came in.
#[inline]
fn cooked_direction(link_type: u16, data: &[u8]) -> Option<Direction> {
    let kind = match link_type {
        113 => u16::from_be_bytes(*data.first_chunk()?),
        276 => u16::from(*data.get(10)?),
        _ => return None,
    };
    Some(if kind == 4 { Direction::Out } else { Direction::In })
}

/// Byte order of a file or section.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Order {
    #[default]
    Little,
    Big,
}

impl Order {
    /// 0 beyond the end; callers have checked the length.
    #[inline]
    fn u16(self, d: &[u8], at: usize) -> u16 {
        match (d.get(at..).and_then(|d| d.first_chunk()), self) {
            (Some(&b), Order::Little) => u16::from_le_bytes(b),
            (Some(&b), Order::Big) => u16::from_be_bytes(b),
            (None, _) => 0,
        }
    }

    #[inline]
    fn u32(self, d: &[u8], at: usize) -> u32 {
        match (d.get(at..).and_then(|d| d.first_chunk()), self) {
            (Some(&b), Order::Little) => u32::from_le_bytes(b),
            (Some(&b), Order::Big) => u32::from_be_bytes(b),
            (None, _) => 0,
        }
    }

    fn u64(self, d: &[u8], at: usize) -> u64 {
        match (d.get(at..).and_then(|d| d.first_chunk()), self) {
            (Some(&b), Order::Little) => u64::from_le_bytes(b),
            (Some(&b), Order::Big) => u64::from_be_bytes(b),
            (None, _) => 0,
        }
    }
}
