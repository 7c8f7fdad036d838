//! As much HTTP/1.1 as a page on the same machine needs: GET without a body, answers of known or unknown length,
//! connections that stay. Knows nothing of logs. Rejected: a framework on an asynchronous runtime, a hundred crates for a
//! handful of connections whose work blocks on disk and CPU anyway; a thread each is simpler, and abandoning a question is
//! looking at its socket.

use std::collections::HashMap;
use std::io::{self, BufWriter, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

/// Longest head of a request.
const MOST_HEAD: usize = 16 << 10;
/// A connection without a request is closed after this.
const IDLE: Duration = Duration::from_secs(60);
/// Whoever takes nothing for so long is gone.
const STUCK: Duration = Duration::from_secs(20);

/// How long what is still sent is read, so that the answer is not lost.
const LINGER: Duration = Duration::from_millis(500);

/// A request; header names in lower case.
#[derive(Debug, Default, PartialEq)]
pub struct Request {
    pub method: String,
    /// Path without the question, decoded.
    pub path: String,
    pub query: HashMap<String, String>,
    pub headers: Vec<(String, String)>,
    /// Anything but `Connection: close`.
    pub stays: bool,
}

impl Request {
    /// A header's value; `None` also if it is there twice, which no browser does.
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut found = self.headers.iter().filter(|h| h.0 == name);
        let first = found.next()?;
        found.next().is_none().then_some(first.1.as_str())
    }

    pub fn has_header(&self, name: &str) -> bool {
        self.headers.iter().any(|h| h.0 == name)
    }

    pub fn get(&self, name: &str) -> Option<&str> {
        self.query.get(name).map(String::as_str)
    }
}

/// Why no request could be read.
#[derive(Debug)]
pub enum Unreadable {
    /// The other side has closed, or nothing came.
    Over,
    /// Status and reason to answer with.
    Bad(u16, &'static str),
}

/// One connection.
pub struct Connection {
    stream: TcpStream,
    /// Read and not used yet.
    ahead: Vec<u8>,
}

impl Connection {
    pub fn new(stream: TcpStream) -> io::Result<Connection> {
        stream.set_read_timeout(Some(IDLE))?;
        stream.set_write_timeout(Some(STUCK))?;
        stream.set_nodelay(true)?;
        Ok(Connection { stream, ahead: Vec::new() })
    }

    /// The next request.
    pub fn request(&mut self) -> Result<Request, Unreadable> {
        let started = Instant::now();
        loop {
            if let Some((request, used)) = parse(&self.ahead)? {
                self.ahead.drain(..used);
                return Ok(request);
            }
            if self.ahead.len() >= MOST_HEAD {
                return Err(Unreadable::Bad(431, "the head of the request is too long"));
            }
            // A head that comes byte by byte does not hold a thread for ever.
            if started.elapsed() > 2 * IDLE {
                return Err(Unreadable::Over);
            }
            let mut some = [0; 4096];
            match self.stream.read(&mut some) {
                Ok(0) | Err(_) => return Err(Unreadable::Over),
                Ok(n) => self.ahead.extend_from_slice(&some[..n]),
            }
        }
    }

    /// An answer of known length.
    pub fn answer(&mut self, status: u16, headers: &[(&str, &str)], body: &[u8]) -> io::Result<()> {
        let mut out = BufWriter::new(&self.stream);
        head(&mut out, status, headers)?;
        write!(out, "Content-Length: {}\r\n\r\n", body.len())?;
        out.write_all(body)?;
        out.flush()
    }

    /// Lets the other side read the last answer, though it may have sent more than was read.
    pub fn close(mut self) {
        let _ = self.stream.shutdown(Shutdown::Write);
        let _ = self.stream.set_read_timeout(Some(LINGER));
        let mut left = 1 << 20;
        let mut some = [0; 4096];
        while let Ok(n @ 1..) = self.stream.read(&mut some) {
            left -= n.min(left);
            if left == 0 {
                break;
            }
        }
    }

    /// Begins an answer whose length is not known yet; [`Connection::end`] ends it.
    pub fn begin(&mut self, headers: &[(&str, &str)]) -> io::Result<()> {
        let mut out = BufWriter::new(&self.stream);
        head(&mut out, 200, headers)?;
        out.write_all(b"Transfer-Encoding: chunked\r\n\r\n")?;
        out.flush()
    }

    /// A part of it, sent at once.
    pub fn piece(&mut self, bytes: &[u8]) -> io::Result<()> {
        if bytes.is_empty() {
            return Ok(()); // Would end it.
        }
        let mut out = BufWriter::with_capacity(bytes.len() + 32, &self.stream);
        write!(out, "{:x}\r\n", bytes.len())?;
        out.write_all(bytes)?;
        out.write_all(b"\r\n")?;
        out.flush()
    }

    pub fn end(&mut self) -> io::Result<()> {
        (&self.stream).write_all(b"0\r\n\r\n")
    }

    /// Does the other side still wait?
    pub fn is_awaited(&self) -> bool {
        if !self.ahead.is_empty() {
            return true; // The next question is here already.
        }
        if self.stream.set_nonblocking(true).is_err() {
            return false;
        }
        let mut byte = [0];
        let awaited = match self.stream.peek(&mut byte) {
            Ok(n) => n > 0,
            Err(e) => e.kind() == ErrorKind::WouldBlock,
        };
        self.stream.set_nonblocking(false).is_ok() && awaited
    }
}

fn head(out: &mut impl Write, status: u16, headers: &[(&str, &str)]) -> io::Result<()> {
    let reason = match status {
        200 => "OK",
        400 => "Bad Request",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        421 => "Misdirected Request",
        431 => "Request Header Fields Too Large",
        503 => "Service Unavailable",
        505 => "HTTP Version Not Supported",
        _ => "Error",
    };
    write!(out, "HTTP/1.1 {status} {reason}\r\n")?;
    headers.iter().try_for_each(|(name, value)| write!(out, "{name}: {value}\r\n"))
}

/// A request and how many bytes it took; `None`: more is needed.
fn parse(bytes: &[u8]) -> Result<Option<(Request, usize)>, Unreadable> {
    let mut headers = [httparse::EMPTY_HEADER; 64];
    let mut parsed = httparse::Request::new(&mut headers);
    let used = match parsed.parse(bytes) {
        Ok(httparse::Status::Complete(used)) => used,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(httparse::Error::Version) => return Err(Unreadable::Bad(505, "only HTTP/1.1 is spoken here")),
        Err(_) => return Err(Unreadable::Bad(400, "this is no request")),
    };
    if parsed.version != Some(1) {
        return Err(Unreadable::Bad(505, "only HTTP/1.1 is spoken here"));
    }
    let target = parsed.path.unwrap_or_default();
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let mut request = Request {
        method: parsed.method.unwrap_or_default().to_owned(),
        path: decode(path, false).ok_or(Unreadable::Bad(400, "the address is not UTF-8"))?,
        stays: true,
        ..Request::default()
    };
    for part in query.split('&').filter(|p| !p.is_empty()) {
        let (name, value) = part.split_once('=').unwrap_or((part, ""));
        let (Some(name), Some(value)) = (decode(name, true), decode(value, true)) else {
            return Err(Unreadable::Bad(400, "the address is not UTF-8"));
        };
        request.query.insert(name, value);
    }
    for h in parsed.headers.iter() {
        let value = String::from_utf8_lossy(h.value).trim().to_owned();
        request.headers.push((h.name.to_ascii_lowercase(), value));
    }
    // A body would be taken for the next request.
    let empty = request.header("content-length").is_none_or(|n| n == "0");
    if !empty || request.has_header("transfer-encoding") {
        return Err(Unreadable::Bad(400, "a request here has no body"));
    }
    request.stays = !request.header("connection").is_some_and(|c| c.eq_ignore_ascii_case("close"));
    Ok(Some((request, used)))
}

/// Percent signs undone; `plus`: `+` is a space.
fn decode(text: &str, plus: bool) -> Option<String> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(b) = bytes.next() {
        match b {
            b'%' => {
                let hex = [bytes.next()?, bytes.next()?];
                let hex =
                    std::str::from_utf8(&hex).ok().filter(|h| h.bytes().all(|b| b.is_ascii_hexdigit()))?;
                out.push(u8::from_str_radix(hex, 16).ok()?);
            }
            b'+' if plus => out.push(b' '),
            b => out.push(b),
        }
    }
    String::from_utf8(out).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(text: &str) -> Option<u16> {
        match parse(text.as_bytes()) {
            Err(Unreadable::Bad(status, _)) => Some(status),
            _ => None,
        }
    }

    #[test]
    fn requests() {
        let text = "GET /api/packets?where=ip.src+%3D%3D+10.0.0.1%2F8&x HTTP/1.1\r\nHost: a\r\nX-Kpat-Token:  t \r\n\r\nGET";
        let (r, used) = parse(text.as_bytes()).unwrap().unwrap();
        assert_eq!(
            (r.path.as_str(), r.get("where"), r.get("x")),
            ("/api/packets", Some("ip.src == 10.0.0.1/8"), Some(""))
        );
        assert_eq!((r.header("x-kpat-token"), used, r.stays), (Some("t"), text.len() - 3, true));
        assert!(parse(b"GET / HTTP/1.1\r\nHost").unwrap().is_none());
        let twice = parse(b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n").unwrap().unwrap().0;
        assert_eq!(twice.header("host"), None);
    }

    #[test]
    fn what_is_refused() {
        assert_eq!(status("GET / HTTP/1.0\r\n\r\n"), Some(505));
        assert_eq!(status("\x16\x03\x01\x02\r\n\r\n"), Some(400));
        assert_eq!(status("GET / HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc"), Some(400));
        assert_eq!(status("GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"), Some(400));
        assert_eq!(status("GET /%ff%fe HTTP/1.1\r\n\r\n"), Some(400));
        assert_eq!(status("GET /%zz HTTP/1.1\r\n\r\n"), Some(400));
    }
}
