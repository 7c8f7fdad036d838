//! A connection of a service on a socket.

use crate::head::Request;
use crate::pool::Seat;
use crate::wire::{Deadline, Unreadable, Wire};
use std::io::{self, BufWriter, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

/// A peer that takes nothing for so long is dropped.
const STUCK: Duration = Duration::from_secs(20);
/// How long what is still being sent is read, so that the last answer is not lost by a reset.
const LINGER: Duration = Duration::from_millis(500);

impl Deadline for TcpStream {
    fn until(&mut self, when: Instant) {
        let left = when.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        // Fails for a length of zero only.
        let _ = self.set_read_timeout(Some(left));
    }
}

/// One connection.
pub struct Connection {
    wire: Wire<TcpStream, TcpStream>,
}

impl Connection {
    pub fn new(stream: TcpStream) -> io::Result<Connection> {
        stream.set_write_timeout(Some(STUCK))?;
        stream.set_nodelay(true)?;
        Ok(Connection { wire: Wire::new(stream.try_clone()?, stream) })
    }

    /// For messages with bodies.
    pub fn wire(&mut self) -> &mut Wire<TcpStream, TcpStream> {
        &mut self.wire
    }

    /// The next request.
    pub fn request(&mut self) -> Result<Request, Unreadable> {
        self.wire.request()
    }

    /// An answer of known length.
    pub fn answer(&mut self, status: u16, headers: &[(&str, &str)], body: &[u8]) -> io::Result<()> {
        let mut out = BufWriter::new(&self.wire.to);
        head(&mut out, status, headers)?;
        write!(out, "Content-Length: {}\r\n\r\n", body.len())?;
        out.write_all(body)?;
        out.flush()
    }

    /// Begins an answer whose length is not known yet; [`Connection::end`] ends it.
    pub fn begin(&mut self, headers: &[(&str, &str)]) -> io::Result<()> {
        let mut out = BufWriter::new(&self.wire.to);
        head(&mut out, 200, headers)?;
        out.write_all(b"Transfer-Encoding: chunked\r\n\r\n")?;
        out.flush()
    }

    /// A part of it, sent at once.
    pub fn piece(&mut self, bytes: &[u8]) -> io::Result<()> {
        if bytes.is_empty() {
            return Ok(()); // Would end it.
        }
        let mut out = BufWriter::with_capacity(bytes.len() + 32, &self.wire.to);
        write!(out, "{:x}\r\n", bytes.len())?;
        out.write_all(bytes)?;
        out.write_all(b"\r\n")?;
        out.flush()
    }

    pub fn end(&mut self) -> io::Result<()> {
        self.wire.to.write_all(b"0\r\n\r\n")
    }

    /// Does the other side still wait?
    pub fn is_awaited(&self) -> bool {
        if !self.wire.ahead.is_empty() {
            return true; // The next question is here already.
        }
        let stream = &self.wire.from;
        if stream.set_nonblocking(true).is_err() {
            return false;
        }
        let awaited = match stream.peek(&mut [0]) {
            Ok(n) => n > 0,
            Err(e) => e.kind() == ErrorKind::WouldBlock,
        };
        stream.set_nonblocking(false).is_ok() && awaited
    }

    /// Lets the other side read the last answer, though it may have sent more than was read. No longer at work, its place is free for
    /// others from now on.
    pub fn close(mut self, seat: &Seat) {
        seat.waits();
        let _ = self.wire.to.shutdown(Shutdown::Write);
        let until = Instant::now() + LINGER;
        let mut left = 1 << 20;
        let mut some = [0; 4096];
        while left > 0 && Instant::now() < until {
            self.wire.from.until(until);
            match self.wire.from.read(&mut some) {
                Ok(n @ 1..) => left -= n.min(left),
                _ => break,
            }
        }
    }
}

fn head(out: &mut impl Write, status: u16, headers: &[(&str, &str)]) -> io::Result<()> {
    write!(out, "HTTP/1.1 {status} {}\r\n", reason(status))?;
    headers.iter().try_for_each(|(name, value)| write!(out, "{name}: {value}\r\n"))
}

/// The phrase beside a status; readers go by the number.
fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        201 => "Created",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        409 => "Conflict",
        417 => "Expectation Failed",
        421 => "Misdirected Request",
        422 => "Unprocessable Content",
        431 => "Request Header Fields Too Large",
        500 => "Internal Server Error",
        503 => "Service Unavailable",
        505 => "HTTP Version Not Supported",
        507 => "Insufficient Storage",
        _ => "Error",
    }
}
