//! Packets of the remote serial protocol: `$` payload `#` checksum, answered by `+`.

use crate::error::{Error, Result};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// A longer packet is not believed; QEMU's are at most 4096 bytes.
const LONGEST: usize = 1 << 20;

/// What came out of received bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Got {
    Packet(Vec<u8>),
    /// A packet whose checksum is wrong.
    Garbled,
    /// The other side asks for the last packet once more.
    Again,
}

/// Takes the first packet out of `bytes`, with all that stands before it. `None`: it is not whole yet.
pub fn take(bytes: &mut Vec<u8>) -> Result<Option<Got>> {
    let Some(start) = bytes.iter().position(|b| matches!(b, b'$' | b'-')) else {
        bytes.clear();
        return Ok(None);
    };
    if bytes[start] == b'-' {
        bytes.drain(..=start);
        return Ok(Some(Got::Again));
    }
    bytes.drain(..start);
    let Some(end) = bytes.iter().position(|b| *b == b'#') else {
        if bytes.len() > LONGEST {
            return Err(Error::damaged("a packet of the debugger's protocol", "it does not end"));
        }
        return Ok(None);
    };
    if bytes.len() < end + 3 {
        return Ok(None);
    }
    let sum = std::str::from_utf8(&bytes[end + 1..end + 3]).ok().and_then(|t| u8::from_str_radix(t, 16).ok());
    let right = sum == Some(checksum(&bytes[1..end]));
    let payload = right.then(|| unpack(&bytes[1..end])).transpose();
    bytes.drain(..end + 3);
    Ok(Some(payload?.map_or(Got::Garbled, Got::Packet)))
}

fn checksum(payload: &[u8]) -> u8 {
    payload.iter().fold(0, |sum: u8, b| sum.wrapping_add(*b))
}

/// Escapes (`}` and the byte with bit 5 turned) and runs (`*` and a count) undone.
fn unpack(raw: &[u8]) -> Result<Vec<u8>> {
    let mut out: Vec<u8> = Vec::with_capacity(raw.len());
    let mut bytes = raw.iter().copied();
    while let Some(b) = bytes.next() {
        let bad = || Error::damaged("a packet of the debugger's protocol", "it ends within an escape");
        match b {
            b'}' => out.push(bytes.next().ok_or_else(bad)? ^ 0x20),
            b'*' => {
                let n = bytes.next().ok_or_else(bad)?.saturating_sub(29);
                let last = *out.last().ok_or_else(bad)?;
                out.resize(out.len() + usize::from(n), last);
            }
            b => out.push(b),
        }
        if out.len() > LONGEST {
            return Err(Error::damaged("a packet of the debugger's protocol", "it is too long"));
        }
    }
    Ok(out)
}

/// A packet as it is sent.
pub fn framed(payload: &[u8]) -> Vec<u8> {
    let mut out = vec![b'$'];
    for b in payload {
        if matches!(b, b'$' | b'#' | b'}' | b'*') {
            out.extend_from_slice(&[b'}', b ^ 0x20]);
        } else {
            out.push(*b);
        }
    }
    let sum = checksum(&out[1..]);
    out.extend_from_slice(format!("#{sum:02x}").as_bytes());
    out
}

/// The connection: whole packets out and in.
pub struct Link {
    stream: UnixStream,
    rest: Vec<u8>,
    last: Vec<u8>,
}

impl Link {
    pub fn new(stream: UnixStream) -> Link {
        Link { stream, rest: Vec::new(), last: Vec::new() }
    }

    pub fn stream(&self) -> &UnixStream {
        &self.stream
    }

    pub fn send(&mut self, payload: &[u8]) -> Result<()> {
        self.last = framed(payload);
        self.stream.write_all(&self.last).map_err(gone)
    }

    /// One byte that is no packet: 0x03 stops the guest.
    pub fn send_byte(&mut self, byte: u8) -> Result<()> {
        self.stream.write_all(&[byte]).map_err(gone)
    }

    /// The next packet; `None`: none came by then. A packet is not acknowledged: the next command does it, and a byte that reaches QEMU
    /// while the guest runs would stop it.
    pub fn receive(&mut self, until: Instant) -> Result<Option<Vec<u8>>> {
        loop {
            match take(&mut self.rest)? {
                Some(Got::Packet(p)) => return Ok(Some(p)),
                // QEMU does not answer twice to what it has answered.
                Some(Got::Garbled) => self.send_byte(b'-')?,
                Some(Got::Again) => self.stream.write_all(&self.last).map_err(gone)?,
                None if !self.fill(until)? => return Ok(None),
                None => {}
            }
        }
    }

    fn fill(&mut self, until: Instant) -> Result<bool> {
        loop {
            let left = until.saturating_duration_since(Instant::now()).max(Duration::from_micros(50));
            self.stream.set_read_timeout(Some(left)).map_err(gone)?;
            let mut piece = [0; 8192];
            match self.stream.read(&mut piece) {
                Ok(0) => return Err(Error::Gone("QEMU closed the debugger's connection".into())),
                Ok(n) => {
                    self.rest.extend_from_slice(&piece[..n]);
                    return Ok(true);
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    if Instant::now() >= until {
                        return Ok(false);
                    }
                }
                Err(e) => return Err(gone(e)),
            }
        }
    }
}

fn gone(e: std::io::Error) -> Error {
    match e.kind() {
        ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => {
            Error::Gone("QEMU closed the debugger's connection".into())
        }
        _ => Error::Io { what: "the debugger's connection".into(), source: e },
    }
}

pub fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut s, b| {
        let _ = write!(s, "{b:02x}");
        s
    })
}

pub fn unhex(text: &[u8]) -> Option<Vec<u8>> {
    let digit = |b: u8| char::from(b).to_digit(16).map(|d| d as u8);
    let pair = |p: &[u8]| Some(digit(p[0])? << 4 | digit(p[1])?);
    text.len().is_multiple_of(2).then(|| text.chunks_exact(2).map(pair).collect())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_in_pieces_and_with_noise() {
        let mut b = b"+++x$OK#9a+$m0".to_vec();
        assert_eq!(take(&mut b).unwrap(), Some(Got::Packet(b"OK".to_vec())));
        assert_eq!(take(&mut b).unwrap(), None);
        b.extend_from_slice(b"*!#e8-");
        // 'm', '0' and four more: '!' is 33, less 29.
        assert_eq!(take(&mut b).unwrap(), Some(Got::Packet(b"m00000".to_vec())));
        assert_eq!(take(&mut b).unwrap(), Some(Got::Again));
        assert!(b.is_empty());
        let mut wrong = b"$OK#00$OK#9a".to_vec();
        assert_eq!(take(&mut wrong).unwrap(), Some(Got::Garbled));
        assert_eq!(take(&mut wrong).unwrap(), Some(Got::Packet(b"OK".to_vec())));
    }

    #[test]
    fn what_is_sent_can_be_read() {
        for payload in [&b""[..], b"g", b"a$b#c}d*e", &[0, 255, 3]] {
            let mut b = framed(payload);
            assert_eq!(take(&mut b).unwrap(), Some(Got::Packet(payload.to_vec())));
        }
        assert_eq!(unhex(hex(&[0, 0xab, 0xff]).as_bytes()), Some(vec![0, 0xab, 0xff]));
        assert_eq!((unhex(b"0"), unhex(b"xy")), (None, None));
    }
}
