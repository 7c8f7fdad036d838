//! The pcapng file that a sniffer writes: one section, one interface, nanoseconds, statistics at the end.

use std::fs::File;
use std::io::{self, BufWriter, Write};

use super::socket::{LINKTYPE_ETHERNET, LINKTYPE_LINUX_SLL2, LINKTYPE_RAW};
use crate::{BOOT_ID, Direction};

const BUFFER: usize = 1 << 20;

/// What the file says about its interface.
pub(super) struct Description<'a> {
    pub interface: &'a str,
    pub link_type: u16,
    pub snaplen: u32,
    pub os: &'a str,
    pub boot_id: &'a str,
    pub comment: Option<&'a str>,
}

/// One frame as it came from the socket.
pub(super) struct Seen<'a> {
    pub at_ns: u64,
    pub len_wire: u32,
    pub data: &'a [u8],
    /// Bytes that belong into `data` at `split`: a cooked header, or a VLAN tag.
    pub inserted: Vec<u8>,
    pub split: usize,
    pub direction: Direction,
}

impl<'a> Seen<'a> {
    /// From the network header on; empty where it is not known where that begins.
    pub fn network(&self, link_type: u16) -> &'a [u8] {
        let mut at = match link_type {
            LINKTYPE_ETHERNET => 14,
            LINKTYPE_RAW | LINKTYPE_LINUX_SLL2 => 0,
            _ => self.data.len(),
        };
        while at >= 14 && matches!(self.data.get(at - 2..at), Some([0x81, 0] | [0x88, 0xa8])) {
            at += 4;
        }
        self.data.get(at..).unwrap_or_default()
    }
}

pub(super) struct PcapngFile {
    file: BufWriter<File>,
    /// The block being made.
    block: Vec<u8>,
    written: u64,
}

impl PcapngFile {
    pub fn begin(file: File, d: &Description) -> io::Result<PcapngFile> {
        let mut out =
            PcapngFile { file: BufWriter::with_capacity(BUFFER, file), block: Vec::new(), written: 0 };
        out.start(0x0a0d_0d0a);
        out.put(&0x1a2b_3c4du32.to_le_bytes());
        out.put(&[1, 0, 0, 0]);
        out.put(&u64::MAX.to_le_bytes());
        out.option(1, format!("{BOOT_ID}{}", d.boot_id).as_bytes());
        out.option(3, d.os.as_bytes());
        out.option(4, concat!("kpat ", env!("CARGO_PKG_VERSION")).as_bytes());
        out.option(0, &[]);
        out.finish()?;
        out.start(1);
        out.put(&u32::from(d.link_type).to_le_bytes());
        out.put(&d.snaplen.to_le_bytes());
        if let Some(comment) = d.comment {
            out.option(1, comment.as_bytes());
        }
        out.option(2, d.interface.as_bytes());
        out.option(9, &[9]);
        out.option(12, d.os.as_bytes());
        out.option(0, &[]);
        out.finish()?;
        out.flush()?;
        Ok(out)
    }

    pub fn frame(&mut self, seen: &Seen, snaplen: u32) -> io::Result<()> {
        let split = seen.split.min(seen.data.len());
        let (before, behind) = seen.data.split_at(split);
        let len = (seen.data.len() + seen.inserted.len()).min(snaplen as usize);
        self.start(6);
        self.put(&0u32.to_le_bytes());
        self.time(seen.at_ns);
        self.put(&(len as u32).to_le_bytes());
        self.put(&seen.len_wire.to_le_bytes());
        let data_at = self.block.len();
        self.put(before);
        self.put(&seen.inserted);
        self.put(behind);
        self.block.truncate(data_at + len);
        self.pad();
        let flags: u32 = if seen.direction == Direction::Out { 2 } else { 1 };
        self.option(2, &flags.to_le_bytes());
        self.option(0, &[]);
        self.finish()
    }

    /// Interface statistics; nothing may follow them.
    pub fn end(&mut self, started_ns: u64, ended_ns: u64, received: u64, dropped: u64) -> io::Result<()> {
        self.start(5);
        self.put(&0u32.to_le_bytes());
        self.time(ended_ns);
        for (code, ns) in [(2u16, started_ns), (3, ended_ns)] {
            self.put(&code.to_le_bytes());
            self.put(&8u16.to_le_bytes());
            self.time(ns);
        }
        self.option(4, &received.to_le_bytes());
        self.option(5, &dropped.to_le_bytes());
        self.option(0, &[]);
        self.finish()?;
        self.flush()
    }

    pub fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }

    /// Bytes given to the file so far.
    pub fn offset(&self) -> u64 {
        self.written
    }

    fn start(&mut self, kind: u32) {
        self.block.clear();
        self.put(&kind.to_le_bytes());
        self.put(&[0; 4]);
    }

    fn put(&mut self, bytes: &[u8]) {
        self.block.extend_from_slice(bytes);
    }

    fn pad(&mut self) {
        self.block.resize(self.block.len().next_multiple_of(4), 0);
    }

    /// High half first, whatever the byte order.
    fn time(&mut self, ns: u64) {
        self.put(&((ns >> 32) as u32).to_le_bytes());
        self.put(&(ns as u32).to_le_bytes());
    }

    fn option(&mut self, code: u16, value: &[u8]) {
        self.put(&code.to_le_bytes());
        self.put(&(value.len() as u16).to_le_bytes());
        self.put(value);
        self.pad();
    }

    fn finish(&mut self) -> io::Result<()> {
        let len = (self.block.len() + 4) as u32;
        self.block[4..8].copy_from_slice(&len.to_le_bytes());
        self.put(&len.to_le_bytes());
        self.file.write_all(&self.block)?;
        self.written += u64::from(len);
        Ok(())
    }
}
