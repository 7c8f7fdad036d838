//! The sockets: what is the same for TCP and UDP, for who connects and who is connected to.

use crate::reads::{LOOK, Reads};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Where an end writes to.
pub enum Wire {
    Tcp(Arc<TcpStream>),
    Udp(Arc<UdpSocket>),
    /// One of the partners of a socket that has many.
    UdpTo(Arc<UdpSocket>, SocketAddr),
}

impl Wire {
    /// All of it in one call, as far as the kernel takes it so.
    pub fn send(&self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Wire::Tcp(s) => (&**s).write_all(bytes),
            Wire::Udp(s) => again(|| s.send(bytes)).map(drop),
            Wire::UdpTo(s, to) => again(|| s.send_to(bytes, to)).map(drop),
        }
    }

    pub fn is_datagram(&self) -> bool {
        !matches!(self, Wire::Tcp(_))
    }

    /// No more will be written: the other side reads to the end.
    pub fn finish(&self) {
        if let Wire::Tcp(s) = self {
            let _ = s.shutdown(Shutdown::Write);
        }
    }
}

fn again<T>(mut f: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match f() {
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}

/// When a reader ends, if the other side does not before.
#[derive(Clone, Copy)]
pub struct Until<'a> {
    /// All that is wanted was read or written.
    pub over: &'a AtomicBool,
    /// Everything is to end, also a write that waits for the other side.
    pub stop: &'a AtomicBool,
}

impl Until<'_> {
    pub(crate) fn is_now(self) -> bool {
        self.over.load(Ordering::Relaxed) || self.stop.load(Ordering::Relaxed)
    }
}

/// Reads until the other side ends.
pub fn drain_tcp(s: &TcpStream, reads: &Reads, until: Until<'_>) {
    let _ = s.set_read_timeout(Some(LOOK));
    let mut bytes = vec![0; 1 << 18];
    while !until.is_now() {
        match (&*s).read(&mut bytes) {
            Ok(0) => break,
            Ok(n) => reads.add(n),
            Err(e) if is_pause(&e) => {}
            Err(_) => break,
        }
    }
    if until.is_now() {
        let _ = s.shutdown(Shutdown::Both);
    }
    reads.end();
}

/// A datagram has no end.
pub fn drain_udp(s: &UdpSocket, reads: &Reads, until: Until<'_>) {
    let _ = s.set_read_timeout(Some(LOOK));
    let mut bytes = vec![0; 1 << 16];
    while !until.is_now() {
        // a datagram that was refused is reported as an error of a later call
        if let Ok(n) = s.recv(&mut bytes) {
            reads.add(n);
        }
    }
    reads.end();
}

/// Nothing came, or a signal did: go on.
pub fn is_pause(e: &io::Error) -> bool {
    matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

/// Waits a moment for something to read or to accept.
pub fn is_ready(socket: &impl AsRawFd) -> bool {
    let mut wanted = libc::pollfd { fd: socket.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one pollfd, which lives through the call, and its descriptor is open as long as `socket` is.
    let n = unsafe { libc::poll(&raw mut wanted, 1, LOOK.as_millis() as libc::c_int) };
    n > 0
}
