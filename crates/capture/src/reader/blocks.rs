//! A pcapng capture block by block, unchanged: for code that copies a capture and adds something.
//!
//! The same walk as that of [`super::Reader`], so frames have the same numbers and times; the blocks' bytes are held one
//! at a time.

use super::pcapng::Pcapng;
use super::source::Source;
use super::{Fault, Format, Interface, Notes, Order, Reader, Step};
use crate::Error;
use kpat_model::WallNs;
use std::io;
use std::path::{Path, PathBuf};

/// Kinds of blocks that matter when something is added.
pub mod kind {
    pub const SECTION: u32 = 0x0a0d_0d0a;
    pub const INTERFACE: u32 = 1;
    pub const OLD_PACKET: u32 = 2;
    pub const SIMPLE_PACKET: u32 = 3;
    pub const STATISTICS: u32 = 5;
    pub const ENHANCED_PACKET: u32 = 6;
}

/// Longest block that is held.
const MAX_BLOCK: usize = 64 << 20;

/// One block; its bytes are valid until the next call of [`Blocks::next`].
#[derive(Clone, Copy, Debug)]
pub struct Block<'a> {
    /// See [`kind`].
    pub kind: u32,
    /// All of it, both lengths included, padded to a multiple of four.
    pub bytes: &'a [u8],
    /// Byte order of its section.
    pub big_endian: bool,
    /// Number of the frame in the capture, as [`super::Frame::number`]; `None`: it carries no frame.
    pub number: Option<u64>,
    /// Time of the frame by the sniffer's clock; 0: it has none.
    pub at: WallNs,
}

/// A pcapng file, block by block.
pub struct Blocks {
    path: PathBuf,
    source: Source,
    format: Pcapng,
    notes: Notes,
    number: u64,
    held: Vec<u8>,
    ended: bool,
}

impl Blocks {
    /// Opens a capture; `None`: it is a pcap file, which has no blocks.
    ///
    /// *Errors*: as [`Reader::open`].
    pub fn open(path: &Path) -> Result<Option<Blocks>, Error> {
        let reader = Reader::open(path)?;
        if matches!(reader.format, Format::Pcap(_)) {
            return Ok(None);
        }
        let file = std::fs::File::open(path).map_err(|source| Error::Open { path: path.into(), source })?;
        let io_error = |source| Error::Io { path: path.into(), offset: 0, source };
        Ok(Some(Blocks {
            path: path.into(),
            source: super::decompressed(Box::new(file)).map_err(io_error)?,
            format: Pcapng::default(),
            notes: Notes::default(),
            number: 0,
            held: Vec::new(),
            ended: false,
        }))
    }

    /// The interfaces described so far.
    pub fn interfaces(&self) -> &[Interface] {
        &self.notes.interfaces
    }

    /// The next block, `None` at the end of what can be read.
    ///
    /// *Errors*: [`Error::Io`], [`Error::Corrupt`]: once, then `None`.
    #[allow(clippy::should_implement_trait, reason = "an iterator cannot lend from itself")]
    pub fn next(&mut self) -> Result<Option<Block<'_>>, Error> {
        if self.ended {
            return Ok(None);
        }
        match self.step() {
            Ok(Some((kind, number, at))) => Ok(Some(Block {
                kind,
                bytes: &self.held,
                big_endian: self.format.order() == Order::Big,
                number,
                at,
            })),
            Ok(None) => {
                self.ended = true;
                Ok(None)
            }
            Err(fault) => {
                self.ended = true;
                let path = self.path.clone();
                Err(match fault {
                    Fault::Io(e) if e.kind() == io::ErrorKind::InvalidData => {
                        Error::Corrupt { path, offset: self.source.offset(), what: e.to_string() }
                    }
                    Fault::Io(source) => Error::Io { path, offset: self.source.offset(), source },
                    Fault::Corrupt { offset, what } => Error::Corrupt { path, offset, what },
                })
            }
        }
    }

    fn step(&mut self) -> Result<Option<(u32, Option<u64>, WallNs)>, Fault> {
        self.held.clear();
        if !self.source.fill(12)? {
            return Ok(None);
        }
        let (kind, len) = self.format.head(self.source.bytes());
        let size = len.next_multiple_of(4);
        if size > MAX_BLOCK {
            return super::corrupt(self.source.offset(), format!("a block of {len} bytes"));
        }
        if self.source.fill(size)? {
            self.held.extend_from_slice(&self.source.bytes()[..size]);
        }
        let step = self.format.step(&mut self.source, &mut self.notes)?;
        Ok(match step {
            Step::Frame(found) => {
                self.number += 1;
                Some((kind, Some(self.number), found.at))
            }
            Step::Counted => {
                self.number += 1;
                Some((kind, None, WallNs(0)))
            }
            Step::Passed => Some((kind, None, WallNs(0))),
            Step::End => None,
        })
    }
}
