//! Watches namespaces: one thread sleeps on all sockets and stamps each message when it arrives, microseconds after the kernel sent
//! it; [`Monitor::drain`] only hands over.
//!
//! A namespace that gets a name while this goes on is entered, and what is found in it is announced as that. One that loses its last
//! name is left: a socket would keep it, its links and the far ends of its virtual cables alive for as long as the recording lasts.
//! One that was gone before it could be entered is counted.

use super::messages::{Decoder, FOUND};
use super::names::{Change, Names};
use super::{BUFFER, NAMED};
use super::{Error, GROUPS, NetnsRef, Socket, device, ethtool_driver, failed, inside};
use crate::capability::{self, Cap};
use crate::sys::boot_now;
use kpat_model::meta::Device;
use kpat_model::{BootNs, Event};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

/// What a monitor hands over.
#[derive(Clone, Debug)]
pub enum Seen {
    /// A change, and a moment after which it was announced. *Clock*: CLOCK_BOOTTIME; the event's own time is when it was read.
    Event(Event, BootNs),
    /// An interface came, or what a log says of it changed.
    Device(Device),
    /// A namespace whose links could not be read, because it was gone, or there were no descriptors left.
    Unread { from: BootNs, to: BootNs, why: String },
}

/// Watches namespaces until it is dropped.
pub struct Monitor {
    seen: Receiver<Seen>,
    overruns: Arc<AtomicU64>,
    /// Its being closed ends the thread.
    stop: Option<OwnedFd>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Monitor {
    /// `all`: `netns` are those that are there, those that come are watched as well, and what vanishes is passed over; else only
    /// `netns` are.
    ///
    /// *Errors*: of a namespace only if not `all`.
    pub fn start(netns: &[NetnsRef], all: bool) -> Result<Monitor, Error> {
        let (out, seen) = channel();
        let overruns = Arc::new(AtomicU64::new(0));
        let mut ends = [-1; 2];
        // SAFETY: pipe2 fills in the two descriptors.
        if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
            return Err(failed("make a pipe")(io::Error::last_os_error()));
        }
        // SAFETY: both descriptors are new and nobody else has them.
        let (stopped, stop) = unsafe { (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])) };
        let mut watcher = Watcher {
            watched: Vec::new(),
            // Before the namespaces are entered, so that no name falls between.
            names: Names::start(),
            all,
            lasting: super::current_netns().map_or(0, |n| n.inum),
            most: most_descriptors(),
            stopped,
            out,
            overruns: Arc::clone(&overruns),
        };
        for n in netns {
            let since = boot_now();
            match watcher.enter(n, None) {
                Err(e) if !all => return Err(e),
                Err(e) => watcher.unread(since, &e),
                Ok(()) => {}
            }
        }
        let thread = std::thread::Builder::new()
            .name("kpat-netlink".into())
            .spawn(move || watcher.watch())
            .map_err(failed("start a thread"))?;
        Ok(Monitor { seen, overruns, stop: Some(stop), thread: Some(thread) })
    }

    /// Hands over what has arrived since the last call. Does not wait.
    pub fn drain(&self, sink: &mut dyn FnMut(Seen)) {
        self.seen.try_iter().for_each(sink);
    }

    /// How often the kernel had to drop messages because we were too slow; each time an unknown number of them.
    pub fn overruns(&self) -> u64 {
        self.overruns.load(Ordering::Relaxed)
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A socket that is read; whatever is in it came after `empty`.
struct Watched {
    netns: NetnsRef,
    socket: Socket,
    decoder: Decoder,
    empty: BootNs,
}

/// Nothing came for so long: all that comes is younger. What is told of an event's moment is no coarser than this.
const HEARTBEAT_MS: i32 = 10;
/// More sockets are looked at more rarely.
const SOCKETS_A_BEAT: usize = 32;
/// Descriptors that are left to the rest of the recorder: files, the control socket, a look at /proc.
const SPARE: u64 = 24;

fn most_descriptors() -> RawFd {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the structure is ours to write to.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) };
    RawFd::try_from(limit.rlim_cur.saturating_sub(SPARE)).unwrap_or(RawFd::MAX)
}

struct Watcher {
    watched: Vec<Watched>,
    names: Names,
    all: bool,
    /// Inode number of this process's namespace, which needs no name to be watched.
    lasting: u32,
    /// Descriptors from this on are not for sockets.
    most: RawFd,
    stopped: OwnedFd,
    out: Sender<Seen>,
    overruns: Arc<AtomicU64>,
}

impl Watcher {
    fn watch(mut self) {
        prefer_to_be_woken();
        // To enter namespaces, and for buffers that hold a burst.
        capability::keep(&[Cap::SysAdmin, Cap::NetAdmin]);
        let entry = |fd: RawFd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let mut buffer = vec![0u8; BUFFER];
        loop {
            let sockets = self.watched.len();
            let beat_ms = HEARTBEAT_MS * (1 + sockets / SOCKETS_A_BEAT) as i32;
            let mut polled: Vec<libc::pollfd> =
                self.watched.iter().map(|w| entry(w.socket.0.as_raw_fd())).collect();
            polled.extend([entry(self.stopped.as_raw_fd()), entry(self.names.as_raw_fd())]);
            let before = boot_now();
            // SAFETY: the entries are ours and their number is given.
            let r = unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, beat_ms) };
            if r < 0 {
                if io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
                    return;
                }
                continue;
            }
            if polled[sockets].revents != 0 {
                return;
            }
            // With nothing to tell, poll looks at all of them once more when the time is over.
            let looked = if r == 0 { BootNs(before.0 + i64::from(beat_ms) * 1_000_000) } else { before };
            for (w, p) in self.watched.iter_mut().zip(&polled) {
                if p.revents == 0 {
                    w.empty = looked;
                } else {
                    w.read(&mut buffer, &self.out, &self.overruns);
                }
            }
            for change in self.names.look(polled[sockets + 1].revents != 0, looked) {
                self.named(&change, &mut buffer);
            }
        }
    }

    /// A namespace came or went, by its name.
    fn named(&mut self, c: &Change, buffer: &mut [u8]) {
        let at = self.watched.iter().position(|w| w.netns.inum == c.inum);
        if self.all || at.is_some() {
            let _ = self.out.send(Seen::Event(c.event(), c.after));
        }
        match (c.came, at) {
            (true, None) if self.all => {
                let path = Path::new(NAMED).join(&c.name);
                let netns = NetnsRef { inum: c.inum, name: Some(c.name.clone()), path };
                if let Err(e) = self.enter(&netns, Some(c.after)) {
                    self.unread(c.after, &e);
                }
            }
            (false, Some(at)) if !self.names.has(c.inum) && c.inum != self.lasting => {
                let mut last = self.watched.swap_remove(at);
                last.read(buffer, &self.out, &self.overruns);
            }
            _ => {}
        }
    }

    /// Watches a namespace from now on. `since`: it came after that, and what is found in it is news.
    fn enter(&mut self, n: &NetnsRef, since: Option<BootNs>) -> Result<(), Error> {
        let (out, most) = (self.out.clone(), self.most);
        let watched = inside(n, move || {
            let empty = boot_now();
            // Subscribed before anything is asked for, so that no change falls between.
            let socket = Socket::open(&GROUPS)?;
            if socket.0.as_raw_fd() >= most {
                return Err(failed("open a socket")(io::Error::from_raw_os_error(libc::EMFILE)));
            }
            let mut w = Watched { netns: n.clone(), socket, decoder: Decoder::new(n.inum), empty };
            let asked = Socket::open(&[])?;
            let Some(since) = since else {
                asked.links()?.into_iter().for_each(|(link, _)| w.decoder.knows(link));
                return Ok(w);
            };
            for kind in [libc::RTM_GETLINK, libc::RTM_GETADDR, libc::RTM_GETROUTE] {
                asked.dump(kind, FOUND, &mut |datagram| {
                    w.decoder.decode(datagram, boot_now(), &mut |e| drop(out.send(Seen::Event(e, since))));
                    w.tell_devices(&out);
                })?;
            }
            Ok(w)
        })?;
        self.watched.push(watched);
        Ok(())
    }

    fn unread(&self, from: BootNs, why: &Error) {
        let _ = self.out.send(Seen::Unread { from, to: boot_now(), why: why.to_string() });
    }
}

impl Watched {
    fn read(&mut self, buffer: &mut [u8], out: &Sender<Seen>, overruns: &AtomicU64) {
        loop {
            let before = boot_now();
            match self.socket.receive(buffer) {
                Ok(b) => {
                    let after = self.empty;
                    self.decoder.decode(b, boot_now(), &mut |e| drop(out.send(Seen::Event(e, after))));
                    self.tell_devices(out);
                }
                Err(e) if e.raw_os_error() == Some(libc::ENOBUFS) => {
                    overruns.fetch_add(1, Ordering::Relaxed);
                    // Names may have been missed; the answers change the table without making events.
                    let _ = self.socket.ask(libc::RTM_GETLINK, super::messages::QUESTION);
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => {
                    self.empty = before;
                    self.decoder.caught_up();
                    return;
                }
            }
        }
    }

    fn tell_devices(&mut self, out: &Sender<Seen>) {
        for (link, kind) in self.decoder.take_changed() {
            let driver = ethtool_driver(&self.socket, &link.name).unwrap_or(kind);
            let _ = out.send(Seen::Device(device(&self.netns, link, driver)));
        }
    }
}

/// Others that want the CPU would make the upper bound later by their share of it. Refused: then it is later.
fn prefer_to_be_woken() {
    let lowest = libc::sched_param { sched_priority: 1 };
    // SAFETY: the parameters are ours and of the calling thread alone.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &lowest) };
}
