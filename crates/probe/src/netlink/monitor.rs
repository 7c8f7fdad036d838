//! Watches namespaces: one thread sleeps on all sockets and notes when each message arrives, microseconds after the kernel sent
//! it, and the kernel's own stamp of it where there is one ([`super::stamps`]); [`Monitor::drain`] only hands over.
//!
//! A namespace that gets a name during the recording is entered, and what is found in it is announced as found; so is one without a name in
//! which a process is found ([`super::processes`]). One that loses its last name, or its last process, is left: a socket would keep it, its links and the far ends of its virtual cables alive for as long as the recording lasts.
//! One that was gone before it could be entered is counted.

use super::messages::{Decoder, FOUND};
use super::names::{Change, Names};
use super::processes::{self, Finder, Found};
use super::stamps::{Bytes, Stamp, Stamps};
use super::{BUFFER, NAMED};
use super::{Error, GROUPS, NetnsRef, Socket, device, ethtool_driver, failed, inside, inside_open};
use crate::announce::Announcements;
use crate::capability::{self, Cap};
use crate::sys::boot_now;
use kpat_model::meta::Device;
use kpat_model::{BootNs, Event};
use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

/// What a monitor hands over.
#[derive(Clone, Debug)]
pub enum Seen {
    /// A change, and a moment after which it was announced. *Clock*: CLOCK_BOOTTIME; the event's own time is when it was read.
    Event(Event, BootNs),
    /// A change that the kernel itself stamped: the event's time, context and task are its.
    Stamped(Event, Stamp),
    /// So many stamps were lost; the events have bounds.
    Unstamped(u64),
    /// An interface came, or what a log says of it changed.
    Device(Device),
    /// The namespace of a process is called otherwise now: the process started another program, or it got a name.
    Renamed { netns: u32, was: String, name: String },
    /// A namespace whose links could not be read, because it was gone, or there were no descriptors left.
    Unread { from: BootNs, to: BootNs, why: String },
}

/// Watches namespaces until it is dropped.
pub struct Monitor {
    seen: Receiver<Seen>,
    overruns: Arc<AtomicU64>,
    /// Asks for a look for namespaces without a name.
    ask: Option<UnixStream>,
    nameless: Nameless,
    /// Its being closed ends the thread.
    stop: Option<OwnedFd>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Monitor {
    /// `all`: `netns` are those that are there, those that come are watched as well, and what vanishes is passed over; else only
    /// `netns` are.
    ///
    /// `announcements`: the kernel stamps what it announces.
    ///
    /// *Errors*: of a namespace only if not `all`.
    pub fn start(
        netns: &[NetnsRef],
        all: bool,
        announcements: Option<Announcements>,
    ) -> Result<Monitor, Error> {
        let (out, seen) = channel();
        let overruns = Arc::new(AtomicU64::new(0));
        let mut ends = [-1; 2];
        // SAFETY: pipe2 fills in the two descriptors.
        if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
            return Err(failed("make a pipe")(io::Error::last_os_error()));
        }
        // SAFETY: both descriptors are new and have no other owner.
        let (stopped, stop) = unsafe { (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])) };
        let most = most_descriptors();
        let finder =
            if all { Some(Finder::start(netns, most).map_err(failed("start a thread"))?) } else { None };
        let ask = finder.as_ref().and_then(Finder::asker);
        let nameless = Nameless::default();
        let mut watcher = Watcher {
            watched: Vec::new(),
            stamps: announcements.map(Stamps::new),
            // Before the namespaces are entered, so that no name falls between.
            names: Names::start(),
            all,
            lasting: super::current_netns().map_or(0, |n| n.inum),
            most,
            finder,
            nameless: nameless.clone(),
            stopped,
            out,
            overruns: Arc::clone(&overruns),
        };
        for n in netns {
            let since = boot_now();
            match watcher.enter(n, None, None) {
                Err(e) if !all => return Err(e),
                Err(e) => {
                    watcher.unread(since, &e);
                    watcher.gone_already(n, since);
                }
                Ok(()) => {}
            }
        }
        let thread = std::thread::Builder::new()
            .name("kpat-netlink".into())
            .spawn(move || watcher.watch())
            .map_err(failed("start a thread"))?;
        Ok(Monitor { seen, overruns, ask, nameless, stop: Some(stop), thread: Some(thread) })
    }

    /// There is an unknown namespace: scan for it now.
    pub fn look(&self) {
        if let Some(ask) = &self.ask {
            processes::ask(ask);
        }
    }

    /// Watches this one, which has no name.
    pub fn has_nameless(&self, netns: u32) -> bool {
        self.nameless.lock().unwrap_or_else(PoisonError::into_inner).contains(&netns)
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
        self.ask = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Inode numbers of the namespaces that are watched and have no name.
type Nameless = Arc<Mutex<BTreeSet<u32>>>;

/// A socket that is read; whatever is in it came after `empty`.
struct Watched {
    netns: NetnsRef,
    socket: Socket,
    decoder: Decoder,
    empty: BootNs,
}

/// Nothing came for so long: all that comes is younger. The bound of an event's time is no wider than this.
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
    stamps: Option<Stamps>,
    names: Names,
    all: bool,
    /// Inode number of this process's namespace, which needs no name to be watched.
    lasting: u32,
    /// Descriptors from this on are not for sockets.
    most: RawFd,
    /// Of namespaces without a name, where all are watched.
    finder: Option<Finder>,
    nameless: Nameless,
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
            // Without data, poll checks all of them once more at the timeout.
            let looked = if r == 0 { BootNs(before.0 + i64::from(beat_ms) * 1_000_000) } else { before };
            // Also when there is nothing to read: the ring has other namespaces' stamps, too.
            arrive(&mut self.stamps, &self.out);
            if self.stamps.as_mut().is_some_and(Stamps::take_strangers)
                && let Some(ask) = self.finder.as_ref().and_then(|f| f.ask.as_ref())
            {
                processes::ask(ask);
            }
            for (w, p) in self.watched.iter_mut().zip(&polled) {
                if p.revents == 0 {
                    w.is_empty_at(looked, &mut self.stamps);
                } else {
                    w.read(&mut buffer, &mut self.stamps, &self.out, &self.overruns);
                }
            }
            for change in self.names.look(polled[sockets + 1].revents != 0, looked) {
                self.named(&change, &mut buffer);
            }
            let found: Vec<Found> = self.finder.iter().flat_map(|f| f.found.try_iter()).collect();
            found.into_iter().for_each(|f| self.found(f, &mut buffer));
        }
    }

    /// A namespace came or went, by its name.
    fn named(&mut self, c: &Change, buffer: &mut [u8]) {
        let at = self.watched.iter().position(|w| w.netns.inum == c.inum);
        if self.all || at.is_some() {
            let _ = self.out.send(Seen::Event(c.event(), c.after));
        }
        match (c.came, at) {
            (true, Some(at)) => self.renamed(at, &c.name),
            (true, None) if self.all => {
                let path = Path::new(NAMED).join(&c.name);
                let netns = NetnsRef { inum: c.inum, name: Some(c.name.clone()), path };
                if let Err(e) = self.enter(&netns, None, Some(c.after)) {
                    self.unread(c.after, &e);
                }
            }
            (false, Some(at)) if !self.names.has(c.inum) && c.inum != self.lasting => self.leave(at, buffer),
            _ => {}
        }
    }

    /// The same of one that has no name.
    fn found(&mut self, f: Found, buffer: &mut [u8]) {
        let at = |inum| self.watched.iter().position(|w| w.netns.inum == inum);
        match f {
            Found::Came(c, file) if at(c.inum).is_none() && !self.names.has(c.inum) => {
                let _ = self.out.send(Seen::Event(c.event(), c.after));
                let path = processes::labelled(&c.name).map(processes::path_of).unwrap_or_default();
                let netns = NetnsRef { inum: c.inum, name: Some(c.name), path };
                if let Err(e) = self.enter(&netns, Some(&file), Some(c.after)) {
                    self.unread(c.after, &e);
                }
            }
            Found::Came(..) => {}
            Found::Gone(c) => {
                let watched = at(c.inum).filter(|_| !self.names.has(c.inum) && c.inum != self.lasting);
                if let Some(at) = watched {
                    self.leave(at, buffer);
                    let _ = self.out.send(Seen::Event(c.event(), c.after));
                }
            }
            Found::Renamed { inum, name } => {
                if let Some(at) = at(inum) {
                    self.renamed(at, &name);
                }
            }
            Found::Unread { name, after } => {
                let source = io::Error::from_raw_os_error(libc::EMFILE);
                self.unread(after, &Error::Namespace { path: name.into(), source });
            }
        }
    }

    /// A process's label gives way to a name; of several names the first stays.
    fn renamed(&mut self, at: usize, name: &str) {
        let netns = &mut self.watched[at].netns;
        let Some(was) = netns.name.clone().filter(|was| was != name && processes::labelled(was).is_some())
        else {
            return;
        };
        netns.name = Some(name.to_owned());
        if processes::labelled(name).is_none() {
            self.nameless.lock().unwrap_or_else(PoisonError::into_inner).remove(&netns.inum);
        }
        let _ = self.out.send(Seen::Renamed { netns: netns.inum, was, name: name.to_owned() });
    }

    fn leave(&mut self, at: usize, buffer: &mut [u8]) {
        let mut last = self.watched.swap_remove(at);
        last.read(buffer, &mut self.stamps, &self.out, &self.overruns);
        self.nameless.lock().unwrap_or_else(PoisonError::into_inner).remove(&last.netns.inum);
        if let Some(stamps) = &mut self.stamps {
            stamps.left(last.netns.inum);
        }
    }

    /// Watches a namespace from now on. `open`: it, if it is open; `since`: it came after that, and what is found in it is news.
    fn enter(&mut self, n: &NetnsRef, open: Option<&File>, since: Option<BootNs>) -> Result<(), Error> {
        let (out, most) = (self.out.clone(), self.most);
        let work = move || {
            let empty = boot_now();
            // Subscribed before anything is asked for, so that no change falls between.
            let socket = Socket::open(&GROUPS)?;
            if socket.0.as_raw_fd() >= most {
                return Err(failed("open a socket")(io::Error::from_raw_os_error(libc::EMFILE)));
            }
            let subscribed = boot_now();
            let mut w = Watched { netns: n.clone(), socket, decoder: Decoder::new(n.inum), empty };
            let asked = Socket::open(&[])?;
            let Some(since) = since else {
                asked.links()?.into_iter().for_each(|(link, _)| w.decoder.knows(link));
                return Ok((w, subscribed));
            };
            for kind in [libc::RTM_GETLINK, libc::RTM_GETADDR, libc::RTM_GETROUTE] {
                asked.dump(kind, FOUND, &mut |datagram| {
                    w.decoder.decode(datagram, boot_now(), &mut |e| drop(out.send(Seen::Event(e, since))));
                    w.tell_devices(&out);
                })?;
            }
            Ok((w, subscribed))
        };
        let (watched, subscribed) = match open {
            Some(file) => inside_open(n, file, work)?,
            None => inside(n, work)?,
        };
        if n.name.as_deref().is_some_and(|name| processes::labelled(name).is_some()) {
            self.nameless.lock().unwrap_or_else(PoisonError::into_inner).insert(n.inum);
        }
        if let Some(stamps) = &mut self.stamps {
            stamps.subscribed(n.inum, subscribed);
        }
        self.watched.push(watched);
        Ok(())
    }

    /// One that was there when namespaces were listed and has ended since: nothing else will report that.
    fn gone_already(&self, n: &NetnsRef, after: BootNs) {
        let there = std::fs::metadata(&n.path).is_ok_and(|m| m.ino() as u32 == n.inum);
        if !there && !self.names.has(n.inum) {
            let name = n.name.clone().unwrap_or_default();
            let change = Change { name, inum: n.inum, came: false, after, at: boot_now() };
            let _ = self.out.send(Seen::Event(change.event(), after));
        }
    }

    fn unread(&self, from: BootNs, why: &Error) {
        let _ = self.out.send(Seen::Unread { from, to: boot_now(), why: why.to_string() });
    }
}

/// What was read and not handed over: messages, and events, each with the number of its message.
#[derive(Default)]
struct Batch {
    messages: Vec<(Bytes, BootNs)>,
    events: Vec<(usize, Event)>,
}

/// So many messages are handed over together: stamps are looked for among as many as can be, but a burst does not fill the memory.
const BATCH: usize = 1024;

/// Takes the kernel's stamps.
fn arrive(stamps: &mut Option<Stamps>, out: &Sender<Seen>) {
    let lost = stamps.as_mut().map_or(0, Stamps::arrive);
    if lost > 0 {
        let _ = out.send(Seen::Unstamped(lost));
    }
}

impl Watched {
    fn read(
        &mut self,
        buffer: &mut [u8],
        stamps: &mut Option<Stamps>,
        out: &Sender<Seen>,
        overruns: &AtomicU64,
    ) {
        let mut batch = Batch::default();
        loop {
            let before = boot_now();
            match self.socket.receive(buffer) {
                Ok(b) => {
                    let (n, at) = (batch.messages.len(), boot_now());
                    batch.messages.push((Bytes::of(b), at));
                    self.decoder.decode(b, at, &mut |e| batch.events.push((n, e)));
                    self.tell_devices(out);
                    if batch.messages.len() >= BATCH {
                        self.hand_over(std::mem::take(&mut batch), stamps, out);
                    }
                }
                Err(e) if e.raw_os_error() == Some(libc::ENOBUFS) => {
                    overruns.fetch_add(1, Ordering::Relaxed);
                    arrive(stamps, out);
                    if let Some(stamps) = stamps {
                        stamps.doubt(self.netns.inum);
                    }
                    // Names may have been missed; the answers change the table without making events.
                    let _ = self.socket.ask(libc::RTM_GETLINK, super::messages::QUESTION);
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => {
                    self.hand_over(batch, stamps, out);
                    self.is_empty_at(before, stamps);
                    self.decoder.caught_up();
                    return;
                }
            }
        }
    }

    fn is_empty_at(&mut self, at: BootNs, stamps: &mut Option<Stamps>) {
        self.empty = at;
        if let Some(stamps) = stamps {
            stamps.caught_up(self.netns.inum, at);
        }
    }

    /// Stamped by the kernel where that is known.
    fn hand_over(&self, batch: Batch, stamps: &mut Option<Stamps>, out: &Sender<Seen>) {
        arrive(stamps, out);
        let stamped = match stamps {
            Some(stamps) => stamps.of(self.netns.inum, &batch.messages),
            None => Vec::new(),
        };
        for (n, e) in batch.events {
            let _ = out.send(match stamped.get(n).cloned().flatten() {
                Some(s) => Seen::Stamped(Event { at: s.at, ctx: s.ctx, pid: s.pid, ..e }, s),
                None => Seen::Event(e, self.empty),
            });
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
