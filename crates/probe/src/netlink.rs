//! What the network's configuration did while packets were recorded: links, routes and neighbours of some network
//! namespaces, as the kernel announces them over rtnetlink. Also lists namespaces and the devices in them.
//!
//! A socket belongs to the namespace in which it was made, for good: a short-lived thread enters each namespace and opens
//! one there, so no lasting thread ever leaves its own. One thread then sleeps on all sockets and stamps each message
//! when it arrives, microseconds after the kernel sent it; [`Monitor::drain`] only hands over.
//!
//! What the messages mean is [`messages`]'s to know.

use crate::sys::boot_now;
use kpat_model::meta::Device;
use kpat_model::{BootNs, Event};
use messages::{Link, NLMSG_DONE, NLMSG_ERROR};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

mod messages;
mod names;
pub use messages::Decoder;

/// A network namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetnsRef {
    /// Inode number, as in the log.
    pub inum: u32,
    /// Its name under /run/netns, if it has one.
    pub name: Option<String>,
    pub path: PathBuf,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("no network namespace is called {name:?} (there are: {known})")]
    NoSuchName { name: String, known: String },
    #[error("cannot use the network namespace {path}: {source}")]
    Namespace { path: PathBuf, source: io::Error },
    #[error("cannot {what} (rtnetlink): {source}")]
    Socket { what: &'static str, source: io::Error },
}

fn failed(what: &'static str) -> impl FnOnce(io::Error) -> Error {
    move |source| Error::Socket { what, source }
}

const NAMED: &str = "/run/netns";

/// The namespace of this process. Its path holds only while the process lives.
pub fn current_netns() -> Result<NetnsRef, Error> {
    let path = PathBuf::from("/proc/self/ns/net");
    let meta = std::fs::metadata(&path).map_err(|source| Error::Namespace { path: path.clone(), source })?;
    let inum = meta.ino() as u32;
    let name = named_netns().into_iter().find(|n| n.inum == inum).and_then(|n| n.name);
    Ok(NetnsRef { inum, name, path })
}

/// All namespaces that have a name, in the order of their names. Names whose namespace is gone are left out.
pub fn named_netns() -> Vec<NetnsRef> {
    let Ok(entries) = std::fs::read_dir(NAMED) else { return Vec::new() };
    let mut out: Vec<NetnsRef> = entries
        .flatten()
        .filter(|e| is_namespace(&e.path()))
        .filter_map(|e| {
            let inum = std::fs::metadata(e.path()).ok()?.ino() as u32;
            Some(NetnsRef { inum, name: Some(e.file_name().into_string().ok()?), path: e.path() })
        })
        .collect();
    out.sort_by(|a, b| a.name.cmp(&b.name));
    out
}

pub fn by_name(name: &str) -> Result<NetnsRef, Error> {
    let all = named_netns();
    let known: Vec<&str> = all.iter().filter_map(|n| n.name.as_deref()).collect();
    let known = if known.is_empty() { "none".to_string() } else { known.join(", ") };
    all.into_iter()
        .find(|n| n.name.as_deref() == Some(name))
        .ok_or_else(|| Error::NoSuchName { name: name.to_string(), known })
}

/// A name is an ordinary empty file until the namespace is mounted over it.
fn is_namespace(path: &Path) -> bool {
    use std::os::unix::ffi::OsStrExt;
    const NSFS_MAGIC: i64 = 0x6e73_6673;
    let Ok(path) = std::ffi::CString::new(path.as_os_str().as_bytes()) else { return false };
    // SAFETY: statfs is plain data, for which zeros are a value.
    let mut s: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: the path is zero-terminated and s is ours to write to.
    unsafe { libc::statfs(path.as_ptr(), &mut s) == 0 && s.f_type as i64 == NSFS_MAGIC }
}

/// Runs `work` on a thread of its own inside the namespace.
fn inside<T: Send>(netns: &NetnsRef, work: impl FnOnce() -> Result<T, Error> + Send) -> Result<T, Error> {
    let fail = |source| Error::Namespace { path: netns.path.clone(), source };
    let file = std::fs::File::open(&netns.path).map_err(fail)?;
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("kpat-netns".into()).spawn_scoped(scope, || {
            // SAFETY: changes the namespace of this thread alone, which ends with this closure.
            if unsafe { libc::setns(file.as_raw_fd(), libc::CLONE_NEWNET) } != 0 {
                return Err(fail(io::Error::last_os_error()));
            }
            work()
        });
        let joined = thread.map_err(fail)?.join();
        joined.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Devices of a namespace, by index.
pub fn devices(netns: &NetnsRef) -> Result<Vec<Device>, Error> {
    let mut found = inside(netns, || {
        let socket = Socket::open(&[])?;
        let mut found = socket.links()?;
        for (link, driver) in &mut found {
            if let Some(name) = ethtool_driver(&socket, &link.name) {
                *driver = name;
            }
        }
        Ok(found)
    })?;
    found.sort_by_key(|(link, _)| link.ifindex);
    let device = |(link, driver): (Link, String)| Device {
        netns: netns.inum,
        netns_name: netns.name.clone().unwrap_or_default(),
        ifindex: link.ifindex,
        name: link.name,
        link_type: link.link_type,
        mac: link.mac,
        mtu: link.mtu,
        driver,
    };
    Ok(found.into_iter().map(device).collect())
}

/// Asks the driver itself: works in any namespace, where /sys shows that of whoever mounted it.
fn ethtool_driver(socket: &Socket, device: &str) -> Option<String> {
    const SIOCETHTOOL: libc::c_ulong = 0x8946;
    const ETHTOOL_GDRVINFO: u32 = 3;
    let mut info = [0u8; 196];
    info[..4].copy_from_slice(&ETHTOOL_GDRVINFO.to_ne_bytes());
    // SAFETY: ifreq is plain data, for which zeros are a value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if device.len() >= request.ifr_name.len() {
        return None;
    }
    for (to, from) in request.ifr_name.iter_mut().zip(device.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_data = info.as_mut_ptr().cast();
    // SAFETY: the request names a struct ethtool_drvinfo (196 bytes) that is ours and outlives the call.
    let r = unsafe { libc::ioctl(socket.0.as_raw_fd(), SIOCETHTOOL as _, &mut request) };
    let name = messages::string(&info[4..36]);
    (r == 0 && !name.is_empty()).then_some(name)
}

// ---- the monitor ----

/// Watches namespaces until it is dropped.
pub struct Monitor {
    events: Receiver<Seen>,
    overruns: Arc<AtomicU64>,
    /// Its being closed ends the thread.
    stop: Option<OwnedFd>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Monitor {
    /// `names`: namespaces that get or lose a name are events as well.
    pub fn start(netns: &[NetnsRef], names: bool) -> Result<Monitor, Error> {
        let mut names = names::Names::start(names);
        let mut watched = Vec::new();
        for n in netns {
            // Subscribed before the names are asked for, so that no change falls between.
            watched.push(inside(n, || {
                let empty = boot_now();
                let socket = Socket::open(&GROUPS)?;
                let mut decoder = Decoder::new(n.inum);
                for (link, _) in Socket::open(&[])?.links()? {
                    decoder.knows(link);
                }
                Ok(Watched { socket, decoder, empty })
            })?);
        }
        let mut ends = [-1; 2];
        // SAFETY: pipe2 fills in the two descriptors.
        if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
            return Err(failed("make a pipe")(io::Error::last_os_error()));
        }
        // SAFETY: both descriptors are new and nobody else has them.
        let (stopped, stop) = unsafe { (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])) };
        let overruns = Arc::new(AtomicU64::new(0));
        let (out, events) = channel();
        let count = Arc::clone(&overruns);
        let thread = std::thread::Builder::new()
            .name("kpat-netlink".into())
            .spawn(move || watch(&mut watched, &mut names, &stopped, &out, &count))
            .map_err(failed("start a thread"))?;
        Ok(Monitor { events, overruns, stop: Some(stop), thread: Some(thread) })
    }

    /// Hands over what has arrived since the last call, each with a moment after which it was announced. Does not wait.
    ///
    /// *Clock*: CLOCK_BOOTTIME; an event's own time is when it was read.
    pub fn drain(&self, sink: &mut dyn FnMut(Event, BootNs)) {
        self.events.try_iter().for_each(|(e, after)| sink(e, after));
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
    socket: Socket,
    decoder: Decoder,
    empty: BootNs,
}

/// Told how late it was read.
type Seen = (Event, BootNs);

/// Nothing came for so long: all that comes is younger. What is told of an event's moment is no coarser than this.
const HEARTBEAT_MS: i32 = 10;
/// More sockets are looked at more rarely.
const SOCKETS_A_BEAT: usize = 32;

fn watch(
    watched: &mut [Watched],
    names: &mut names::Names,
    stopped: &OwnedFd,
    out: &Sender<Seen>,
    overruns: &AtomicU64,
) {
    prefer_to_be_woken();
    let beat_ms = HEARTBEAT_MS * (1 + watched.len() / SOCKETS_A_BEAT) as i32;
    let entry = |fd: i32| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let mut polled: Vec<libc::pollfd> = watched.iter().map(|w| entry(w.socket.0.as_raw_fd())).collect();
    polled.push(entry(stopped.as_raw_fd()));
    polled.push(entry(names.as_raw_fd()));
    let mut buffer = vec![0u8; BUFFER];
    loop {
        let before = boot_now();
        // SAFETY: the entries are ours and their number is given.
        let r = unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, beat_ms) };
        if r < 0 {
            if io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
                return;
            }
            continue;
        }
        if polled[watched.len()].revents != 0 {
            return;
        }
        // With nothing to tell, poll looks at all of them once more when the time is over.
        let looked = if r == 0 { BootNs(before.0 + i64::from(beat_ms) * 1_000_000) } else { before };
        names.look(polled[watched.len() + 1].revents != 0, looked, &mut |e| drop(out.send(e)));
        for (w, p) in watched.iter_mut().zip(&polled) {
            if p.revents == 0 {
                w.empty = looked;
            } else {
                w.read(&mut buffer, out, overruns);
            }
        }
    }
}

impl Watched {
    fn read(&mut self, buffer: &mut [u8], out: &Sender<Seen>, overruns: &AtomicU64) {
        loop {
            let before = boot_now();
            match self.socket.receive(buffer) {
                Ok(b) => {
                    let after = self.empty;
                    self.decoder.decode(b, boot_now(), &mut |e| drop(out.send((e, after))));
                }
                Err(e) if e.raw_os_error() == Some(libc::ENOBUFS) => {
                    overruns.fetch_add(1, Ordering::Relaxed);
                    // Names may have been missed; the answers change the table without making events.
                    let _ = self.socket.ask_links();
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => {
                    self.empty = before;
                    return;
                }
            }
        }
    }
}

/// Others that want the CPU would make the upper bound later by their share of it. Refused: then it is later.
fn prefer_to_be_woken() {
    let lowest = libc::sched_param { sched_priority: 1 };
    // SAFETY: the parameters are ours and of the calling thread alone.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &lowest) };
}

// ---- sockets ----

/// RTNLGRP_LINK, NEIGH, TC, IPV4_IFADDR, IPV4_ROUTE, IPV6_IFADDR, IPV6_ROUTE, NSID.
const GROUPS: [u32; 8] = [1, 3, 4, 5, 7, 9, 11, 28];
/// More than the kernel puts into one answer (32 KiB).
const BUFFER: usize = 1 << 16;
const RECEIVE_BYTES: libc::c_int = 8 << 20;

struct Socket(OwnedFd);

impl Socket {
    /// Non-blocking when it is subscribed to groups.
    fn open(groups: &[u32]) -> Result<Socket, Error> {
        let wait = if groups.is_empty() { 0 } else { libc::SOCK_NONBLOCK };
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | wait;
        // SAFETY: plain system call.
        let fd = unsafe { libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_ROUTE) };
        if fd < 0 {
            return Err(failed("open a socket")(io::Error::last_os_error()));
        }
        // SAFETY: the descriptor is new and nobody else has it.
        let socket = Socket(unsafe { OwnedFd::from_raw_fd(fd) });
        if !groups.is_empty() && !socket.set(libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, RECEIVE_BYTES) {
            socket.set(libc::SOL_SOCKET, libc::SO_RCVBUF, RECEIVE_BYTES);
        }
        // Without an address of its own, a socket counts as the sender of all that the kernel sends, and gets none of it.
        // SAFETY: sockaddr_nl is plain data, for which zeros are a value.
        let mut own: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
        own.nl_family = libc::AF_NETLINK as libc::sa_family_t;
        let size = size_of::<libc::sockaddr_nl>() as libc::socklen_t;
        // SAFETY: the address is ours and its size is given.
        if unsafe { libc::bind(socket.0.as_raw_fd(), (&raw const own).cast(), size) } != 0 {
            return Err(failed("get an address")(io::Error::last_os_error()));
        }
        for g in groups {
            if !socket.set(libc::SOL_NETLINK, libc::NETLINK_ADD_MEMBERSHIP, *g as libc::c_int) {
                return Err(failed("subscribe")(io::Error::last_os_error()));
            }
        }
        Ok(socket)
    }

    fn set(&self, level: libc::c_int, option: libc::c_int, value: libc::c_int) -> bool {
        let size = size_of::<libc::c_int>() as libc::socklen_t;
        // SAFETY: the value outlives the call and its size is given.
        unsafe { libc::setsockopt(self.0.as_raw_fd(), level, option, (&raw const value).cast(), size) == 0 }
    }

    fn ask_links(&self) -> io::Result<()> {
        let mut b = [0u8; 32];
        b[..4].copy_from_slice(&32u32.to_ne_bytes());
        b[4..6].copy_from_slice(&libc::RTM_GETLINK.to_ne_bytes());
        b[6..8].copy_from_slice(&((libc::NLM_F_REQUEST | libc::NLM_F_DUMP) as u16).to_ne_bytes());
        b[8..12].copy_from_slice(&messages::QUESTION.to_ne_bytes());
        // SAFETY: the buffer is ours and its length is given.
        let n = unsafe { libc::send(self.0.as_raw_fd(), b.as_ptr().cast(), b.len(), 0) };
        if n < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// One datagram. Other senders than the kernel are read as nothing.
    fn receive<'a>(&self, buffer: &'a mut [u8]) -> io::Result<&'a [u8]> {
        // SAFETY: sockaddr_nl is plain data, for which zeros are a value.
        let mut from: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
        let mut size = size_of::<libc::sockaddr_nl>() as libc::socklen_t;
        let (fd, at, len) = (self.0.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len());
        // SAFETY: buffer and address are ours, their sizes are given.
        let n = unsafe { libc::recvfrom(fd, at, len, 0, (&raw mut from).cast(), &mut size) };
        match n {
            n if n < 0 => Err(io::Error::last_os_error()),
            _ if from.nl_pid != 0 => Ok(&[]),
            n => Ok(&buffer[..n as usize]),
        }
    }

    /// All links, each with its kind ("veth"), empty for hardware.
    fn links(&self) -> Result<Vec<(Link, String)>, Error> {
        self.ask_links().map_err(failed("ask for the devices"))?;
        let mut buffer = vec![0u8; BUFFER];
        let mut out = Vec::new();
        loop {
            for m in messages::messages(self.receive(&mut buffer).map_err(failed("list the devices"))?) {
                match m.kind {
                    NLMSG_ERROR => {
                        let code = messages::word(m.body, 0).unwrap_or(0) as i32;
                        let source = io::Error::from_raw_os_error(code.wrapping_neg());
                        return Err(failed("list the devices")(source));
                    }
                    NLMSG_DONE => return Ok(out),
                    libc::RTM_NEWLINK => out.extend(messages::link(m.body)),
                    _ => {}
                }
            }
        }
    }
}
