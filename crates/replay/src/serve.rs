//! The end that is connected to: reads everything, and with a trace writes that end's part of it. Which connection of the
//! trace one is, follows from the order in which they come.

use crate::admit::Door;
use crate::pace::{Pace, Went, play, wake_on_time};
use crate::part::{Outcome, Part, zeros};
use crate::reads::{LOOK, Reads};
use crate::wire::{Until, Wire, drain_tcp, is_pause, is_ready};
use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Datagrams that have not come after so long are lost.
const SILENCE: Duration = Duration::from_secs(5);

/// The end that is connected to.
pub struct Server<'a> {
    /// Connections and datagrams of others are closed and left.
    pub door: Door,
    pub tcp: TcpListener,
    pub udp: UdpSocket,
    pub pace: Pace,
    pub nodelay: bool,
    /// Set by the caller to end it early.
    pub stop: &'a AtomicBool,
}

/// When it is over, besides `stop`.
#[derive(Clone, Copy, Default)]
pub struct Enough {
    /// So many TCP connections have ended.
    pub connections: Option<u64>,
    pub after: Option<Duration>,
}

/// What was read, and written where there was a trace.
#[derive(Default)]
pub struct Sunk {
    pub connections: u64,
    pub bytes: u64,
    pub reads: u64,
    pub udp_peers: u64,
    pub datagrams: u64,
    pub datagram_bytes: u64,
    /// Connections and datagrams from addresses that have not shown the secret.
    pub strangers: u64,
    pub outcomes: Vec<Outcome>,
}

struct Shared {
    sunk: Mutex<Sunk>,
    /// TCP connections that have ended, connections of the trace that have.
    tcp_ended: AtomicU64,
    trace_ended: AtomicU64,
    over: AtomicBool,
    zeros: Vec<u8>,
}

/// TCP and UDP of one port; without an address only this machine can reach them.
pub fn listen(place: &str) -> std::io::Result<(TcpListener, UdpSocket)> {
    let tcp = match place.parse::<u16>() {
        Ok(port) => TcpListener::bind((Ipv4Addr::LOCALHOST, port))?,
        Err(_) => TcpListener::bind(place)?,
    };
    let udp = UdpSocket::bind(tcp.local_addr()?)?;
    Ok((tcp, udp))
}

impl Server<'_> {
    /// `parts`: the connections of the trace in its order; empty: a sink.
    pub fn serve(&self, parts: &[Part<'_>], enough: Enough) -> std::io::Result<Sunk> {
        wake_on_time();
        let began = Instant::now();
        let (tcp, udp): (Vec<_>, Vec<_>) = parts.iter().partition(|p| p.about.about.proto != "udp");
        let shared = Shared {
            sunk: Mutex::default(),
            tcp_ended: AtomicU64::new(0),
            trace_ended: AtomicU64::new(0),
            over: AtomicBool::new(false),
            zeros: zeros(parts),
        };
        std::thread::scope(|scope| -> std::io::Result<()> {
            std::thread::Builder::new().spawn_scoped(scope, || self.datagrams(&udp, &shared))?;
            let mut next = 0;
            let done = || {
                let ended = shared.tcp_ended.load(Ordering::Relaxed);
                let played = shared.trace_ended.load(Ordering::Relaxed);
                self.stop.load(Ordering::Relaxed)
                    || enough.connections.is_some_and(|n| ended >= n)
                    || enough.after.is_some_and(|d| began.elapsed() >= d)
                    || (!parts.is_empty() && played >= parts.len() as u64)
            };
            while !done() {
                if !is_ready(&self.tcp) {
                    continue;
                }
                let Ok((s, from)) = self.tcp.accept() else {
                    // No descriptor is left, for example: later there may be one.
                    std::thread::sleep(LOOK);
                    continue;
                };
                let shared = &shared;
                let thread = || std::thread::Builder::new().stack_size(1 << 18);
                if !self.door.lets_in(from) {
                    // Where no thread can be started the connection is closed.
                    let _ = thread().spawn_scoped(scope, move || {
                        let shown = self.door.ask(s, from, self.until(shared));
                        lock(&shared.sunk).strangers += u64::from(!shown);
                    });
                    continue;
                }
                let _ = s.set_nodelay(self.nodelay);
                let part = tcp.get(next);
                next += 1;
                let sink = parts.is_empty();
                thread().spawn_scoped(scope, move || {
                    // Another replay from an address that was let in before.
                    if sink && Door::is_asked(&s, self.until(shared)) {
                        self.door.ask(s, from, self.until(shared));
                    } else {
                        self.stream(s, part.copied(), shared);
                    }
                })?;
            }
            shared.over.store(true, Ordering::Relaxed);
            Ok(())
        })?;
        Ok(shared.sunk.into_inner().unwrap_or_else(PoisonError::into_inner))
    }

    fn until<'s>(&'s self, shared: &'s Shared) -> Until<'s> {
        Until { over: &shared.over, stop: self.stop }
    }

    fn stream(&self, s: TcpStream, part: Option<&Part<'_>>, shared: &Shared) {
        let s = Arc::new(s);
        let reads = Reads::new(part.is_some());
        let until = self.until(shared);
        let went = std::thread::scope(|scope| {
            let writer = part.map(|part| {
                let (wire, reads) = (Wire::Tcp(Arc::clone(&s)), &reads);
                std::thread::Builder::new().stack_size(1 << 18).spawn_scoped(scope, move || {
                    let went = self.answer(part, &wire, reads, &shared.zeros);
                    wire.finish();
                    went
                })
            });
            drain_tcp(&s, &reads, until);
            writer.and_then(Result::ok).and_then(|w| w.join().ok())
        });
        {
            let mut sunk = lock(&shared.sunk);
            sunk.connections += 1;
            sunk.bytes += reads.bytes().max(0) as u64;
            sunk.reads += reads.calls();
            if let Some(went) = went {
                sunk.outcomes.push(Outcome { went, connected: true, read_bytes: reads.bytes() });
                shared.trace_ended.fetch_add(1, Ordering::Relaxed);
            }
        }
        drop(s);
        shared.tcp_ended.fetch_add(1, Ordering::Relaxed);
    }

    /// Times count from the connection's first write: ours, or the first that comes.
    fn answer(&self, part: &Part<'_>, wire: &Wire, reads: &Reads, zeros: &[u8]) -> Went {
        let first = part.own.first().is_none_or(|w| w.at_ns == 0);
        match if first { Some(Instant::now()) } else { reads.wait(1, self.stop) } {
            Some(zero) => play(part.own, wire, zero, self.pace, reads, self.stop, zeros),
            None => Went { broke: Some("nothing came to answer".into()), ..Default::default() },
        }
    }

    fn datagrams(&self, parts: &[&Part<'_>], shared: &Shared) {
        let mut peers: HashMap<SocketAddr, Arc<Reads>> = HashMap::new();
        let socket = match self.udp.try_clone() {
            Ok(s) => Arc::new(s),
            Err(_) => return,
        };
        let _ = socket.set_read_timeout(Some(LOOK));
        let mut bytes = vec![0; 1 << 16];
        std::thread::scope(|scope| {
            while !self.stop.load(Ordering::Relaxed) && !shared.over.load(Ordering::Relaxed) {
                let (n, from) = match socket.recv_from(&mut bytes) {
                    Ok(got) => got,
                    Err(e) if is_pause(&e) => continue,
                    Err(_) => continue,
                };
                if !self.door.lets_in(from) {
                    lock(&shared.sunk).strangers += 1;
                    continue;
                }
                let known = peers.len();
                let reads = peers.entry(from).or_insert_with(|| {
                    let reads = Arc::new(Reads::new(known < parts.len()));
                    if let Some(part) = parts.get(known) {
                        let (wire, reads) = (Wire::UdpTo(Arc::clone(&socket), from), Arc::clone(&reads));
                        scope.spawn(move || {
                            let went = self.answer(part, &wire, &reads, &shared.zeros);
                            self.rest(part, &reads);
                            let read_bytes = reads.bytes();
                            lock(&shared.sunk).outcomes.push(Outcome { went, connected: true, read_bytes });
                            shared.trace_ended.fetch_add(1, Ordering::Relaxed);
                        });
                    }
                    reads
                });
                reads.add(n);
                let mut sunk = lock(&shared.sunk);
                sunk.datagrams += 1;
                sunk.datagram_bytes += n as u64;
                sunk.udp_peers = peers.len() as u64;
            }
            peers.values().for_each(|r| r.end());
        });
    }

    /// Waits for the datagrams that are still to come.
    fn rest(&self, part: &Part<'_>, reads: &Reads) {
        let expected: i64 = part.others.iter().map(|w| w.size_bytes).sum();
        let last = part.others.last().map_or(Duration::ZERO, |w| self.pace.scaled(w.at_ns));
        let (since, limit) = (Instant::now(), last.saturating_add(SILENCE));
        let silent = || reads.last().is_some_and(|at| at.elapsed() > SILENCE) && since.elapsed() > limit;
        while reads.bytes() < expected && !silent() && !self.stop.load(Ordering::Relaxed) {
            std::thread::sleep(LOOK / 5);
        }
    }
}

fn lock(o: &Mutex<Sunk>) -> std::sync::MutexGuard<'_, Sunk> {
    o.lock().unwrap_or_else(PoisonError::into_inner)
}
