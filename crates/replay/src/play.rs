//! The end that connects: each connection of the trace at its time.
//!
//! Connections are made one after the other, in the order of the trace, so that the other end can tell which one it accepts
//! without a word that is not in the trace; a little ahead of their time, so that the handshake is over by then.

use crate::pace::{Pace, Went, play, sleep_until, wake_on_time};
use crate::part::{Outcome, Part, zeros};
use crate::reads::{LOOK, Reads};
use crate::wire::{Until, Wire, drain_tcp, drain_udp};
use std::io;
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long ahead of its first write a connection is made.
const AHEAD: Duration = Duration::from_millis(500);
/// How long the other end may take to end after our last write.
const LINGER: Duration = Duration::from_secs(10);
/// How long a peer that has sent no datagram is waited for: it may be a sink.
const SINK_LINGER: Duration = Duration::from_secs(2);

/// The end that connects.
pub struct Player<'a> {
    pub to: SocketAddr,
    pub pace: Pace,
    pub nodelay: bool,
    /// Set by the caller to end it early.
    pub stop: &'a AtomicBool,
}

impl Player<'_> {
    /// Plays all, in the order of `parts`. The clock starts when the first connection is there.
    ///
    /// *Errors*: the first connection cannot be made.
    pub fn play(&self, parts: &[Part<'_>]) -> io::Result<Vec<Outcome>> {
        wake_on_time();
        let zeros = zeros(parts);
        let outcomes: Vec<Mutex<Outcome>> = parts.iter().map(|_| Mutex::default()).collect();
        let first_at = parts.iter().map(|p| p.about.about.at).min().unwrap_or(0);
        let mut start = None;
        std::thread::scope(|scope| -> io::Result<()> {
            for (part, outcome) in parts.iter().zip(&outcomes) {
                let at = self.pace.scaled(part.about.about.at - first_at);
                // who is spoken to first must not be there before its time
                let ahead =
                    if part.own.first().is_some_and(|w| w.at_ns == 0) { AHEAD } else { Duration::ZERO };
                if let Some(start) = start {
                    let due: Instant = start + at;
                    if !sleep_until(due.checked_sub(ahead).unwrap_or(start), self.stop) {
                        break;
                    }
                }
                let wire = match self.connect(part) {
                    Ok(wire) => wire,
                    // the first that fails means that there is no server
                    Err(e) if start.is_none() => return Err(e),
                    Err(e) => {
                        lock(outcome).went.broke = Some(format!("cannot connect: {e}"));
                        continue;
                    }
                };
                let zero = *start.get_or_insert_with(Instant::now) + at;
                lock(outcome).connected = true;
                let zeros = &zeros;
                std::thread::Builder::new().stack_size(1 << 18).spawn_scoped(scope, move || {
                    let done = self.connection(part, &wire, zero, zeros);
                    *lock(outcome) = done;
                })?;
            }
            Ok(())
        })?;
        Ok(outcomes.into_iter().map(|o| o.into_inner().unwrap_or_else(PoisonError::into_inner)).collect())
    }

    fn connect(&self, part: &Part<'_>) -> io::Result<Wire> {
        if part.about.about.proto == "udp" {
            let any: SocketAddr =
                if self.to.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { ([0u16; 8], 0).into() };
            let s = UdpSocket::bind(any)?;
            s.connect(self.to)?;
            return Ok(Wire::Udp(Arc::new(s)));
        }
        let s = TcpStream::connect_timeout(&self.to, Duration::from_secs(10))?;
        s.set_nodelay(self.nodelay)?;
        Ok(Wire::Tcp(Arc::new(s)))
    }

    fn connection(&self, part: &Part<'_>, wire: &Wire, zero: Instant, zeros: &[u8]) -> Outcome {
        let reads = Reads::new(self.pace.closed);
        let over = AtomicBool::new(false);
        let until = Until { over: &over, stop: self.stop };
        let went = std::thread::scope(|scope| {
            let reader = std::thread::Builder::new().stack_size(1 << 18).spawn_scoped(scope, || match wire {
                Wire::Tcp(s) => drain_tcp(s, &reads, until),
                Wire::Udp(s) | Wire::UdpTo(s, _) => drain_udp(s, &reads, until),
            });
            let Ok(reader) = reader else {
                return Went { broke: Some("cannot make a thread".into()), ..Default::default() };
            };
            let went = play(part.own, wire, zero, self.pace, &reads, self.stop, zeros);
            wire.finish();
            let expected: i64 = part.others.iter().map(|w| w.size_bytes).sum();
            let theirs = part.others.last().map_or(zero, |w| zero + self.pace.scaled(w.at_ns));
            let ended = theirs.max(Instant::now());
            let open = || match wire {
                Wire::Tcp(_) => !reader.is_finished(),
                _ => reads.bytes() < expected,
            };
            // a stream says when it is over; of datagrams a sink sends none, and a busy peer its first one late
            let silent = wire.is_datagram() && reads.bytes() == 0;
            let linger = if silent { SINK_LINGER } else { LINGER };
            let patient = || reads.last().map_or(ended, |at| at.max(ended)).elapsed() < linger;
            while open() && patient() && !self.stop.load(Ordering::Relaxed) {
                std::thread::sleep(LOOK / 20);
            }
            over.store(true, Ordering::Relaxed);
            went
        });
        Outcome { went, connected: true, read_bytes: reads.bytes() }
    }
}

fn lock(o: &Mutex<Outcome>) -> std::sync::MutexGuard<'_, Outcome> {
    o.lock().unwrap_or_else(PoisonError::into_inner)
}
