//! The part of HTTP/1.1 that collecting needs, over anything that carries bytes: heads with a body of known length. Both
//! ends. Header names in lower case.

use std::io::{self, ErrorKind, Read, Write};

const MOST_HEAD: usize = 16 << 10;
const MOST_HEADERS: usize = 32;

/// One end of a connection.
pub(crate) struct Wire<R, W> {
    from: R,
    to: W,
    /// Read and not used yet.
    ahead: Vec<u8>,
}

pub(crate) struct Head {
    /// `PUT /v1/NAME`, or a status.
    pub(crate) first: First,
    headers: Vec<(String, String)>,
}

#[derive(Debug, PartialEq)]
pub(crate) enum First {
    Request { method: String, path: String },
    Status(u16),
}

impl Head {
    /// `None` also if it is there twice.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        let mut found = self.headers.iter().filter(|h| h.0 == name);
        let first = found.next()?;
        found.next().is_none().then_some(first.1.as_str())
    }

    pub(crate) fn number(&self, name: &str) -> Option<u64> {
        // Not `+5`.
        self.get(name).filter(|t| t.bytes().all(|b| b.is_ascii_digit())).and_then(|t| t.parse().ok())
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.headers.iter().any(|h| h.0 == name)
    }
}

fn bad(why: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, why.to_owned())
}

impl<R: Read, W: Write> Wire<R, W> {
    pub(crate) fn new(from: R, to: W) -> Wire<R, W> {
        Wire { from, to, ahead: Vec::new() }
    }

    /// The next head; `None`: the other side has closed.
    pub(crate) fn head(&mut self, request: bool) -> io::Result<Option<Head>> {
        loop {
            if let Some((head, used)) = parse(&self.ahead, request)? {
                self.ahead.drain(..used);
                return Ok(Some(head));
            }
            if self.ahead.len() > MOST_HEAD {
                return Err(bad("the head is too long"));
            }
            let mut some = [0; 4096];
            match self.from.read(&mut some) {
                Ok(0) if self.ahead.is_empty() => return Ok(None),
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(n) => self.ahead.extend_from_slice(&some[..n]),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
    }

    /// The body of the head just read.
    pub(crate) fn body(&mut self, len: u64) -> Body<'_, R> {
        Body { ahead: &mut self.ahead, from: &mut self.from, left: len }
    }

    pub(crate) fn say(&mut self, first: &str, headers: &[(&str, &str)]) -> io::Result<()> {
        let lines: String = headers.iter().map(|(n, v)| format!("{n}: {v}\r\n")).collect();
        self.to.write_all(format!("{first}\r\n{lines}\r\n").as_bytes())?;
        self.to.flush()
    }

    /// A body's bytes, after a head that told how many.
    pub(crate) fn give(&mut self, body: &mut dyn Read, mut len: u64) -> io::Result<()> {
        let mut buf = vec![0; 1 << 16];
        while len > 0 {
            let want = buf.len().min(usize::try_from(len).unwrap_or(usize::MAX));
            match body.read(&mut buf[..want])? {
                0 => return Err(bad("the file became shorter while it was sent")),
                n => {
                    self.to.write_all(&buf[..n])?;
                    len -= n as u64;
                }
            }
        }
        self.to.flush()
    }
}

pub(crate) struct Body<'a, R> {
    ahead: &'a mut Vec<u8>,
    from: &'a mut R,
    left: u64,
}

impl<R: Read> Body<'_, R> {
    /// Reads what is left of it, if that is little.
    pub(crate) fn skip(mut self, most: u64) -> bool {
        self.left <= most && io::copy(&mut self, &mut io::sink()).is_ok() && self.left == 0
    }
}

impl<R: Read> Read for Body<'_, R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let want = buf.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        if want == 0 {
            return Ok(0);
        }
        let n = if self.ahead.is_empty() {
            self.from.read(&mut buf[..want])?
        } else {
            let n = want.min(self.ahead.len());
            buf[..n].copy_from_slice(&self.ahead[..n]);
            self.ahead.drain(..n);
            n
        };
        self.left -= n as u64;
        Ok(n)
    }
}

fn parse(bytes: &[u8], request: bool) -> io::Result<Option<(Head, usize)>> {
    let mut headers = [httparse::EMPTY_HEADER; MOST_HEADERS];
    let odd = |e: httparse::Error| bad(&format!("not HTTP: {e}"));
    let (first, used, headers) = if request {
        let mut r = httparse::Request::new(&mut headers);
        let httparse::Status::Complete(used) = r.parse(bytes).map_err(odd)? else { return Ok(None) };
        let word = |w: Option<&str>| w.unwrap_or_default().to_owned();
        (First::Request { method: word(r.method), path: word(r.path) }, used, r.headers)
    } else {
        let mut r = httparse::Response::new(&mut headers);
        let httparse::Status::Complete(used) = r.parse(bytes).map_err(odd)? else { return Ok(None) };
        (First::Status(r.code.unwrap_or(0)), used, r.headers)
    };
    let text = |h: &httparse::Header<'_>| {
        Some((h.name.to_ascii_lowercase(), std::str::from_utf8(h.value).ok()?.trim().to_owned()))
    };
    let headers =
        headers.iter().map(text).collect::<Option<Vec<_>>>().ok_or_else(|| bad("a header is no text"))?;
    Ok(Some((Head { first, headers }, used)))
}
