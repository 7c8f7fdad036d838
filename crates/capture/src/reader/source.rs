//! Bytes of a file through one growing window. The window never grows beyond twice of what has really been read, so
//! a length that lies costs nothing.

use std::io::{self, Read};

const START: usize = 256 << 10;

pub(super) struct Source {
    read: Box<dyn Read + Send>,
    window: Vec<u8>,
    /// `window[at..end]` is read and not consumed.
    at: usize,
    end: usize,
    /// File offset of `window[at]`.
    offset: u64,
    eof: bool,
}

impl Source {
    pub fn new(read: Box<dyn Read + Send>) -> Source {
        Source { read, window: vec![0; START], at: 0, end: 0, offset: 0, eof: false }
    }

    /// Offset in the decompressed data of the next unconsumed byte.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    pub fn available(&self) -> usize {
        self.end - self.at
    }

    /// Makes `n` bytes available, or as many as there are before the end of the file.
    #[inline]
    pub fn fill(&mut self, n: usize) -> io::Result<bool> {
        if self.end - self.at >= n {
            return Ok(true);
        }
        self.fill_slow(n)
    }

    #[cold]
    fn fill_slow(&mut self, n: usize) -> io::Result<bool> {
        if self.at > 0 {
            self.window.copy_within(self.at..self.end, 0);
            self.end -= self.at;
            self.at = 0;
        }
        while self.end < n && !self.eof {
            if self.end == self.window.len() {
                let grown = self.window.len().saturating_mul(2);
                self.window.resize(grown, 0);
            }
            match self.read.read(&mut self.window[self.end..]) {
                Ok(0) => self.eof = true,
                Ok(got) => self.end += got,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                // A compressed file that was torn off: what could be decompressed is the file.
                Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => self.eof = true,
                Err(e) => return Err(e),
            }
        }
        Ok(self.end >= n)
    }

    /// The available bytes, at least those of the last successful [`Source::fill`].
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        &self.window[self.at..self.end]
    }

    /// Bytes consumed last, still in the window until the next `fill`.
    #[inline]
    pub fn behind(&self, back: usize, len: usize) -> &[u8] {
        let start = self.at.saturating_sub(back);
        &self.window[start..(start + len).min(self.end)]
    }

    #[inline]
    pub fn consume(&mut self, n: usize) {
        let n = n.min(self.end - self.at);
        self.at += n;
        self.offset += n as u64;
    }

    /// Passes over `n` bytes without keeping them; false if the file ends before.
    pub fn skip(&mut self, mut n: u64) -> io::Result<bool> {
        while n > 0 {
            if self.available() == 0 && !self.fill(1)? {
                return Ok(false);
            }
            let step = n.min(self.available() as u64);
            self.consume(step as usize);
            n -= step;
        }
        Ok(true)
    }
}
