//! Where the chunks of a file are: a walk from header to header that reads no payload as long as all is well, and
//! looks for the next magic where it is not.

use crate::header::{ChunkKind, Codec, Fault, HEADER_LEN, Header, MAGIC, MAX_PAYLOAD_LEN, chunk_crc};
use crate::log::Issue;
use kpat_model::BootNs;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Bytes looked through at a time for a magic.
const WINDOW: usize = 256 * 1024;
/// Corrupt stretches that are listed one by one; a hostile file could have one per 64 bytes.
const MAX_ISSUES: usize = 10_000;

/// What a log is read from.
pub enum Source {
    File(File),
    Bytes(Vec<u8>),
}

/// A read failed, and where.
#[derive(Debug)]
pub struct Unread {
    pub offset: u64,
    pub source: io::Error,
}

impl Source {
    /// Fills `buf` from `offset` on; an error if the source ends before.
    pub fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> Result<(), Unread> {
        let done = match self {
            Source::File(file) => file.read_exact_at(buf, offset),
            Source::Bytes(bytes) => {
                let start = usize::try_from(offset).unwrap_or(usize::MAX);
                match bytes.get(start..).and_then(|b| b.get(..buf.len())) {
                    Some(found) => {
                        buf.copy_from_slice(found);
                        Ok(())
                    }
                    None => Err(io::ErrorKind::UnexpectedEof.into()),
                }
            }
        };
        done.map_err(|source| Unread { offset, source })
    }

    pub fn len(&self) -> io::Result<u64> {
        match self {
            Source::File(file) => Ok(file.metadata()?.len()),
            Source::Bytes(bytes) => Ok(bytes.len() as u64),
        }
    }
}

/// One chunk of a log, from its header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkInfo {
    /// Which of the log's files it stands in, from 0.
    pub file: u32,
    /// Where its header starts in the file.
    pub offset: u64,
    pub kind: ChunkKind,
    /// 0 in JSON chunks.
    pub cpu: u16,
    pub count: u32,
    pub first: BootNs,
    pub last: BootNs,
    /// Bytes of the payload in the file.
    pub stored_len: u32,
    /// Bytes of the payload decoded.
    pub raw_len: u32,
    pub(crate) codec: Codec,
    pub(crate) seq: u32,
    pub(crate) packet_base: u64,
}

impl ChunkInfo {
    fn new(file: u32, offset: u64, h: &Header) -> ChunkInfo {
        ChunkInfo {
            file,
            offset,
            kind: h.kind,
            cpu: h.cpu,
            count: h.count,
            first: BootNs(h.first_ts),
            last: BootNs(h.last_ts),
            stored_len: h.payload_len,
            raw_len: h.raw_len,
            codec: h.codec,
            seq: h.seq,
            packet_base: h.packet_base,
        }
    }

    pub(crate) fn end(&self) -> u64 {
        self.offset + HEADER_LEN as u64 + u64::from(self.stored_len)
    }
}

#[derive(Default)]
pub struct Walk {
    pub chunks: Vec<ChunkInfo>,
    pub issues: Vec<Issue>,
    /// Bytes at the end that are the beginning of a chunk.
    pub tail_bytes: u64,
    /// Where they begin, or the end.
    pub walked: u64,
    /// What was found at offset 0 when that is no chunk.
    pub first_fault: Option<Fault>,
}

/// A header somewhere, whether or not its payload lies within the file.
pub fn header_at(source: &Source, offset: u64, size: u64) -> Result<Result<Header, Fault>, Unread> {
    if size.saturating_sub(offset) < HEADER_LEN as u64 {
        return Ok(Err(Fault::NoMagic));
    }
    let mut bytes = [0; HEADER_LEN];
    source.read_exact_at(&mut bytes, offset)?;
    Ok(Header::parse(&bytes))
}

/// Reads a chunk whole into `buf` and checks header and checksum; the error says what is wrong.
pub fn read_chunk(source: &Source, info: &ChunkInfo, buf: &mut Vec<u8>) -> Result<(), String> {
    // Bounded by the file's length, which the walk checked, and by the cap on payloads.
    buf.resize(HEADER_LEN + info.stored_len as usize, 0);
    source.read_exact_at(buf, info.offset).map_err(|e| format!("the chunk cannot be read: {}", e.source))?;
    let head = buf.first_chunk::<HEADER_LEN>().expect("at least a header long");
    let header = Header::parse(head).map_err(Fault::text)?;
    if ChunkInfo::new(info.file, info.offset, &header) != *info {
        return Err("the chunk changed while the log was open".into());
    }
    if chunk_crc(buf) != header.crc {
        return Err("the chunk fails its checksum".into());
    }
    Ok(())
}

/// Finds all chunks in the first `size` bytes.
pub fn walk(source: &Source, size: u64) -> Result<Walk, Unread> {
    walk_from(source, 0, size)
}

/// The same behind an offset, where a chunk begins.
pub fn walk_from(source: &Source, from: u64, size: u64) -> Result<Walk, Unread> {
    let mut w = Walk::default();
    let mut buf = Vec::new();
    // Reading payloads to tell a cut chunk from garbage behind a whole one is bounded, so that a hostile file does
    // not cost more than reading it a few times; past that the records' own check must do.
    let mut budget = (size - from.min(size)).saturating_mul(2).saturating_add(u64::from(MAX_PAYLOAD_LEN));
    let mut checked_to = from;
    let mut pos = from;
    while pos < size {
        let found = header_at(source, pos, size)?;
        let fault = match found {
            Ok(h) if h.chunk_len() <= size - pos => {
                w.chunks.push(ChunkInfo::new(0, pos, &h));
                pos += h.chunk_len();
                continue;
            }
            Ok(_) => None,
            Err(fault) => Some(fault),
        };
        if pos == 0 {
            w.first_fault = fault;
        }
        let mut start = pos;
        let mut reason = match fault {
            None => "the chunk is cut off".to_string(),
            Some(fault) => fault.text(),
        };
        if let Some(last) = w.chunks.last().copied()
            && last.end() == pos
            && last.offset >= checked_to
            && u64::from(last.stored_len) <= budget
        {
            budget -= u64::from(last.stored_len);
            if let Err(why) = read_chunk(source, &last, &mut buf) {
                w.chunks.pop();
                (start, reason) = (last.offset, why);
            }
        }
        checked_to = start + 1;
        match next_whole(source, start + 1, size)? {
            Some(next) => {
                w.add_issue(start, next - start, reason);
                pos = next;
            }
            None if start == pos && is_tail(source, pos, size, fault)? => {
                w.tail_bytes = size - pos;
                break;
            }
            None => {
                w.add_issue(start, size - start, reason);
                break;
            }
        }
    }
    w.walked = size.max(from) - w.tail_bytes;
    w.check_order();
    Ok(w)
}

/// The first offset from `from` on where a header stands whose payload lies within the file.
fn next_whole(source: &Source, from: u64, size: u64) -> Result<Option<u64>, Unread> {
    let mut buf = vec![0; WINDOW + HEADER_LEN];
    let mut base = from;
    while size.saturating_sub(base) >= HEADER_LEN as u64 {
        let len = usize::try_from(size - base).unwrap_or(usize::MAX).min(buf.len());
        let window = &mut buf[..len];
        source.read_exact_at(window, base)?;
        let mut i = 0;
        while let Some(step) = window[i..].iter().position(|b| *b == MAGIC[0]) {
            i += step;
            let Some(head) = window[i..].first_chunk::<HEADER_LEN>() else { break };
            let at = base + i as u64;
            if matches!(Header::parse(head), Ok(h) if h.chunk_len() <= size - at) {
                return Ok(Some(at));
            }
            i += 1;
        }
        // The last 63 bytes are looked at again with what follows them.
        base += (len - HEADER_LEN + 1) as u64;
    }
    Ok(None)
}

/// Whether what stands at `pos` up to the end is a chunk in the making.
fn is_tail(source: &Source, pos: u64, size: u64, fault: Option<Fault>) -> Result<bool, Unread> {
    let left = size - pos;
    if left >= HEADER_LEN as u64 {
        return Ok(fault.is_none());
    }
    let mut bytes = [0; MAGIC.len()];
    let len = MAGIC.len().min(left as usize);
    source.read_exact_at(&mut bytes[..len], pos)?;
    Ok(bytes[..len] == MAGIC[..len])
}

impl Walk {
    fn add_issue(&mut self, offset: u64, len: u64, reason: String) {
        if self.issues.len() < MAX_ISSUES {
            self.issues.push(Issue { file: 0, offset, len, reason });
        }
    }

    /// Chunks are numbered: a gap that no corrupt stretch explains is an issue of its own.
    fn check_order(&mut self) {
        let mut found = Vec::new();
        for pair in self.chunks.windows(2) {
            let expected = pair[0].seq.wrapping_add(1);
            let adjacent = pair[0].end() == pair[1].offset;
            let gap = pair[1].seq.wrapping_sub(expected);
            if gap != 0 && adjacent {
                let reason = if gap < u32::MAX / 2 {
                    format!("{gap} chunks are missing here")
                } else {
                    "chunks are out of order here: the file was put together from parts".into()
                };
                found.push(Issue { file: 0, offset: pair[1].offset, len: 0, reason });
            }
        }
        for issue in found {
            self.add_issue(issue.offset, issue.len, issue.reason);
        }
        self.issues.sort_by_key(|i| i.offset);
    }
}
