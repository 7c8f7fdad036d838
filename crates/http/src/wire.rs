//! Messages over anything that carries bytes: a socket, a pipe to `ssh` or `openssl`, the standard input of `kpat collect accept`.

use crate::head::{Refusal, Request, Response};
use std::io::{self, ErrorKind, Read, Write};
use std::time::{Duration, Instant};

/// A connection without a request is closed after this.
const IDLE: Duration = Duration::from_secs(60);
/// A head has so long from its first byte.
const HEAD: Duration = Duration::from_secs(10);
/// A body brings at least so many bytes in each such time, or ends.
const BODY: (Duration, u64) = (Duration::from_secs(60), 16 << 10);

/// A source of bytes that can stop waiting.
pub trait Deadline {
    /// Reads that would wait longer than this fail with [`ErrorKind::TimedOut`] or `WouldBlock`.
    fn until(&mut self, when: Instant);
}

/// A source whose time limit is set by its creator.
pub struct Untimed<R>(pub R);

impl<R: Read> Read for Untimed<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.0.read(buf)
    }
}

impl<R> Deadline for Untimed<R> {
    fn until(&mut self, _: Instant) {}
}

/// Why no message could be read.
#[derive(Debug)]
pub enum Unreadable {
    /// The other side has closed, or nothing came in time.
    Over,
    /// It is to be answered and the connection closed.
    Refused(Refusal),
}

/// What a head says and its bytes; `None`: more is needed.
type Parse<T> = fn(&[u8]) -> Result<Option<(T, usize)>, Refusal>;

/// One end of a connection.
pub struct Wire<R, W> {
    pub(crate) from: R,
    pub(crate) to: W,
    /// Read and not used yet.
    pub(crate) ahead: Vec<u8>,
}

impl<R: Read + Deadline, W: Write> Wire<R, W> {
    pub fn new(from: R, to: W) -> Wire<R, W> {
        Wire { from, to, ahead: Vec::new() }
    }

    /// The head of the next request. Its body has to be read, or the connection closed, before the next.
    pub fn request(&mut self) -> Result<Request, Unreadable> {
        self.head(Request::parse)
    }

    /// The head of the next response.
    ///
    /// Errors: also where what came cannot be read in one way only.
    pub fn response(&mut self) -> io::Result<Response> {
        self.head(Response::parse).map_err(|e| match e {
            Unreadable::Over => ErrorKind::UnexpectedEof.into(),
            Unreadable::Refused(Refusal(_, why)) => io::Error::new(ErrorKind::InvalidData, why),
        })
    }

    fn head<T>(&mut self, parse: Parse<T>) -> Result<T, Unreadable> {
        let mut until = Instant::now() + if self.ahead.is_empty() { IDLE } else { HEAD };
        loop {
            if let Some((head, used)) = parse(&self.ahead).map_err(Unreadable::Refused)? {
                self.ahead.drain(..used);
                return Ok(head);
            }
            self.from.until(until);
            let mut some = [0; 4096];
            match self.from.read(&mut some) {
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Ok(0) | Err(_) => return Err(Unreadable::Over),
                Ok(n) => {
                    if self.ahead.is_empty() {
                        until = Instant::now() + HEAD;
                    }
                    self.ahead.extend_from_slice(&some[..n]);
                }
            }
            if Instant::now() >= until {
                return Err(Unreadable::Over);
            }
        }
    }

    /// The body of the head just read.
    pub fn body(&mut self, bytes: u64) -> Body<'_, R> {
        Body { ahead: &mut self.ahead, from: &mut self.from, left: bytes, window: None }
    }

    /// A head; `first` is a request line or a status line.
    pub fn send(&mut self, first: &str, headers: &[(&str, &str)]) -> io::Result<()> {
        let lines: String = headers.iter().map(|(n, v)| format!("{n}: {v}\r\n")).collect();
        self.to.write_all(format!("{first}\r\n{lines}\r\n").as_bytes())?;
        self.to.flush()
    }

    /// A body's bytes, after a head that announced how many.
    pub fn send_body(&mut self, body: &mut dyn Read, bytes: u64) -> io::Result<()> {
        let sent = io::copy(&mut body.take(bytes), &mut self.to)?;
        if sent < bytes {
            return Err(io::Error::new(
                ErrorKind::UnexpectedEof,
                "the file became shorter while it was sent",
            ));
        }
        self.to.flush()
    }
}

/// A body that is being read: its bytes and no more.
pub struct Body<'a, R> {
    ahead: &'a mut Vec<u8>,
    from: &'a mut R,
    left: u64,
    /// End of the time in which it has to move, and what was left at its begin.
    window: Option<(Instant, u64)>,
}

impl<R: Read + Deadline> Body<'_, R> {
    /// Reads what is left of it if that is at most so much; whether the connection can go on.
    pub fn skip(mut self, most_bytes: u64) -> bool {
        self.left <= most_bytes && io::copy(&mut self, &mut io::sink()).is_ok() && self.left == 0
    }

    fn keep_moving(&mut self) -> io::Result<()> {
        let now = Instant::now();
        let (until, left) = *self.window.get_or_insert((now + BODY.0, self.left));
        if now >= until {
            if left - self.left < BODY.1 {
                return Err(ErrorKind::TimedOut.into());
            }
            self.window = Some((now + BODY.0, self.left));
        }
        self.from.until(self.window.map_or(until, |w| w.0));
        Ok(())
    }
}

impl<R: Read + Deadline> Read for Body<'_, R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let want = buf.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        if want == 0 {
            return Ok(0);
        }
        let n = if self.ahead.is_empty() {
            self.keep_moving()?;
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A body of one reader must not be a request of the other: what follows a message is its declared body and nothing else.
    #[test]
    fn the_next_request_begins_where_the_body_ends() {
        let inner = "PUT /hidden HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n";
        let text = format!(
            "HEAD /a HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n{inner}GET /b HTTP/1.1\r\nHost: a\r\n\r\n",
            inner.len()
        );
        let mut wire = Wire::new(Untimed(text.as_bytes()), Vec::new());
        let head = wire.request().unwrap();
        assert_eq!((head.method.as_str(), head.body_bytes), ("HEAD", inner.len() as u64));
        assert!(wire.body(head.body_bytes).skip(1 << 20));
        assert_eq!(wire.request().unwrap().target, "/b");
        assert!(matches!(wire.request(), Err(Unreadable::Over)));
    }

    #[test]
    fn a_body_ends_with_its_length() {
        let mut wire = Wire::new(
            Untimed(&b"PUT /a HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabcdef"[..]),
            Vec::new(),
        );
        let head = wire.request().unwrap();
        let mut got = Vec::new();
        wire.body(head.body_bytes).read_to_end(&mut got).unwrap();
        assert_eq!(got, b"abc");
        assert!(!wire.body(10).skip(5), "too long to be skipped");
        assert!(!wire.body(10).skip(20), "not all of it came");
    }
}
