//! What the network's configuration did while packets were recorded: links, routes and neighbours of some network
//! namespaces, as the kernel announces them over rtnetlink. Also lists namespaces and the devices in them.
//!
//! A socket belongs to the namespace in which it was made, for good: a short-lived thread enters each namespace and opens
//! one there, so no lasting thread ever leaves its own. One thread then sleeps on all sockets and stamps each message
//! when it arrives, microseconds after the kernel sent it; [`Monitor::drain`] only hands over.
//!
//! Layouts are those of include/uapi/linux/{netlink,rtnetlink,if_link,neighbour}.h. What is malformed ends the message.

use crate::sys::boot_now;
use kpat_model::meta::Device;
use kpat_model::{BootNs, Context, Event, EventKind, PacketId};
use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

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
    let name = string(&info[4..36]);
    (r == 0 && !name.is_empty()).then_some(name)
}

// ---- the monitor ----

/// Watches namespaces until it is dropped.
pub struct Monitor {
    events: Receiver<Event>,
    overruns: Arc<AtomicU64>,
    /// Its being closed ends the thread.
    stop: Option<OwnedFd>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Monitor {
    pub fn start(netns: &[NetnsRef]) -> Result<Monitor, Error> {
        let mut watched = Vec::new();
        for n in netns {
            // Subscribed before the names are asked for, so that no change falls between.
            watched.push(inside(n, || {
                let socket = Socket::open(&GROUPS)?;
                let mut decoder = Decoder::new(n.inum);
                for (link, _) in Socket::open(&[])?.links()? {
                    decoder.links.insert(link.ifindex, link);
                }
                Ok((socket, decoder))
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
            .spawn(move || watch(&mut watched, &stopped, &out, &count))
            .map_err(failed("start a thread"))?;
        Ok(Monitor { events, overruns, stop: Some(stop), thread: Some(thread) })
    }

    /// Hands over what has arrived since the last call. Does not wait.
    ///
    /// *Clock*: CLOCK_BOOTTIME when the message was received, which is after the change itself.
    pub fn drain(&self, sink: &mut dyn FnMut(Event)) {
        self.events.try_iter().for_each(sink);
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

fn watch(watched: &mut [(Socket, Decoder)], stopped: &OwnedFd, out: &Sender<Event>, overruns: &AtomicU64) {
    let entry = |fd: i32| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let mut polled: Vec<libc::pollfd> = watched.iter().map(|(s, _)| entry(s.0.as_raw_fd())).collect();
    polled.push(entry(stopped.as_raw_fd()));
    let mut buffer = vec![0u8; BUFFER];
    loop {
        // SAFETY: the entries are ours and their number is given.
        let r = unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, -1) };
        if r < 0 && io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            return;
        }
        if r > 0 && polled[watched.len()].revents != 0 {
            return;
        }
        for ((socket, decoder), _) in watched.iter_mut().zip(&polled).filter(|(_, p)| p.revents != 0) {
            loop {
                match socket.receive(&mut buffer) {
                    Ok(b) => decoder.decode(b, boot_now(), &mut |e| {
                        let _ = out.send(e);
                    }),
                    Err(e) if e.raw_os_error() == Some(libc::ENOBUFS) => {
                        overruns.fetch_add(1, Ordering::Relaxed);
                        // Names may have been missed; the answers change the table without making events.
                        let _ = socket.ask_links();
                    }
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                    Err(_) => break,
                }
            }
        }
    }
}

// ---- sockets ----

/// RTNLGRP_LINK, NEIGH, IPV4_ROUTE, IPV6_ROUTE.
const GROUPS: [u32; 4] = [1, 3, 7, 11];
/// More than the kernel puts into one answer (32 KiB).
const BUFFER: usize = 1 << 16;
const RECEIVE_BYTES: libc::c_int = 8 << 20;
/// Sequence number of our questions; announcements have 0 or that of whoever asked for the change.
const QUESTION: u32 = 0x6b70_6174;

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
        b[8..12].copy_from_slice(&QUESTION.to_ne_bytes());
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
            for m in messages(self.receive(&mut buffer).map_err(failed("list the devices"))?) {
                match m.kind {
                    NLMSG_ERROR => {
                        let code = word(m.body, 0).unwrap_or(0) as i32;
                        let source = io::Error::from_raw_os_error(code.wrapping_neg());
                        return Err(failed("list the devices")(source));
                    }
                    NLMSG_DONE => return Ok(out),
                    libc::RTM_NEWLINK => out.extend(link(m.body)),
                    _ => {}
                }
            }
        }
    }
}

// ---- messages ----

const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;

struct Message<'a> {
    kind: u16,
    sequence: u32,
    body: &'a [u8],
}

fn half(b: &[u8], at: usize) -> Option<u16> {
    b.get(at..at + 2)?.try_into().ok().map(u16::from_ne_bytes)
}

fn word(b: &[u8], at: usize) -> Option<u32> {
    b.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes)
}

fn aligned(n: usize) -> usize {
    n.div_ceil(4) * 4
}

/// Takes one length-prefixed piece off the front; `None` at the end or where the length cannot be true.
fn take<'a>(rest: &mut &'a [u8], len: usize, header: usize) -> Option<&'a [u8]> {
    let piece = rest.get(..len).filter(|p| p.len() >= header)?;
    *rest = rest.get(aligned(len)..).unwrap_or_default();
    Some(piece)
}

fn messages(mut rest: &[u8]) -> impl Iterator<Item = Message<'_>> {
    std::iter::from_fn(move || {
        let len = word(rest, 0)? as usize;
        let m = take(&mut rest, len, 16)?;
        Some(Message { kind: half(m, 4)?, sequence: word(m, 8)?, body: &m[16..] })
    })
}

/// Attributes from `at` on, without the flags in their types.
fn attributes(b: &[u8], at: usize) -> impl Iterator<Item = (u16, &[u8])> {
    let mut rest = b.get(at..).unwrap_or_default();
    std::iter::from_fn(move || {
        let len = half(rest, 0)?.into();
        let a = take(&mut rest, len, 4)?;
        Some((half(a, 2)? & 0x3fff, &a[4..]))
    })
}

fn string(b: &[u8]) -> String {
    let end = b.iter().position(|c| *c == 0).unwrap_or(b.len());
    String::from_utf8_lossy(&b[..end]).into_owned()
}

fn link_address(b: &[u8]) -> String {
    b.iter().map(|x| format!("{x:02x}")).collect::<Vec<_>>().join(":")
}

/// By length: 4 IPv4, 16 IPv6, else a link-layer address.
fn address(b: &[u8]) -> String {
    if let Ok(v4) = <[u8; 4]>::try_from(b) {
        Ipv4Addr::from(v4).to_string()
    } else if let Ok(v6) = <[u8; 16]>::try_from(b) {
        Ipv6Addr::from(v6).to_string()
    } else {
        link_address(b)
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Link {
    ifindex: u32,
    flags: u32,
    carrier: bool,
    name: String,
    link_type: u16,
    mac: String,
    mtu: u32,
    /// Index of the bridge or bond it belongs to, 0: none.
    master: u32,
}

impl Link {
    fn up(&self) -> bool {
        self.flags & libc::IFF_UP as u32 != 0
    }
}

/// A link and its kind, from the body of RTM_NEWLINK or RTM_DELLINK.
fn link(body: &[u8]) -> Option<(Link, String)> {
    let (mut l, mut kind) = (Link::default(), String::new());
    (l.link_type, l.ifindex, l.flags) = (half(body, 2)?, word(body, 4)?, word(body, 8)?);
    l.carrier = l.flags & libc::IFF_LOWER_UP as u32 != 0;
    for (t, v) in attributes(body, 16) {
        match t {
            libc::IFLA_ADDRESS => l.mac = link_address(v),
            libc::IFLA_IFNAME => l.name = string(v),
            libc::IFLA_MTU => l.mtu = word(v, 0)?,
            libc::IFLA_MASTER => l.master = word(v, 0)?,
            libc::IFLA_CARRIER => l.carrier = *v.first()? != 0,
            libc::IFLA_LINKINFO => {
                kind = attributes(v, 0).find(|a| a.0 == 1).map(|a| string(a.1)).unwrap_or_default();
            }
            _ => {}
        }
    }
    // What a link that is down says of its carrier depends on driver and version.
    l.carrier &= l.up();
    Some((l, kind))
}

/// Turns rtnetlink messages of one namespace into events; remembers the links, because other messages only name an index.
/// Any bytes may be given.
#[derive(Default)]
pub struct Decoder {
    netns: u32,
    links: HashMap<u32, Link>,
}

impl Decoder {
    pub fn new(netns: u32) -> Decoder {
        Decoder { netns, links: HashMap::new() }
    }

    /// Decodes one datagram. Messages that say nothing new (statistics, a repeated state of a link) make no event.
    pub fn decode(&mut self, datagram: &[u8], at: BootNs, sink: &mut dyn FnMut(Event)) {
        for m in messages(datagram) {
            let said = match m.kind {
                libc::RTM_NEWLINK => self.link_is(m.body).filter(|_| m.sequence != QUESTION),
                libc::RTM_DELLINK => self.link_gone(m.body),
                libc::RTM_NEWROUTE => self.route(m.body).map(|t| (EventKind::Route, 1, 0, t)),
                libc::RTM_DELROUTE => self.route(m.body).map(|t| (EventKind::Route, 0, 0, t)),
                libc::RTM_NEWNEIGH => self.neighbour(m.body, false),
                libc::RTM_DELNEIGH => self.neighbour(m.body, true),
                _ => None,
            };
            if let Some((kind, a, b, text)) = said {
                let (ctx, packet, netns) = (Context::Unknown, PacketId::NONE, self.netns);
                sink(Event { kind, ctx, pid: 0, at, packet, netns, a, b, text });
            }
        }
    }

    fn name(&self, ifindex: u32) -> String {
        self.links.get(&ifindex).map_or_else(|| format!("if{ifindex}"), |l| l.name.clone())
    }

    fn link_is(&mut self, body: &[u8]) -> Option<Said> {
        if of_bridge(body) {
            return None;
        }
        let (new, _) = link(body)?;
        let old = self.links.insert(new.ifindex, new.clone());
        if old.as_ref() == Some(&new) {
            return None;
        }
        let state = match (new.up(), new.carrier) {
            (false, _) => "down",
            (true, true) => "up carrier",
            (true, false) => "up no-carrier",
        };
        let mut text = format!("{} {state}", new.name);
        match old {
            None => text += " (new)",
            Some(old) => {
                if old.mtu != new.mtu {
                    text += &format!(" mtu {}", new.mtu);
                }
                if old.mac != new.mac {
                    text += &format!(" address {}", new.mac);
                }
                match new.master {
                    m if m == old.master => {}
                    0 => text += &format!(" left {}", self.name(old.master)),
                    m => text += &format!(" master {}", self.name(m)),
                }
                if old.name != new.name {
                    text += &format!(" (was {})", old.name);
                }
            }
        }
        Some((EventKind::Link, new.ifindex.into(), new.flags.into(), text))
    }

    fn link_gone(&mut self, body: &[u8]) -> Option<Said> {
        if of_bridge(body) {
            return None;
        }
        let (gone, _) = link(body)?;
        let name = if gone.name.is_empty() { self.name(gone.ifindex) } else { gone.name };
        self.links.remove(&gone.ifindex);
        Some((EventKind::Link, gone.ifindex.into(), gone.flags.into(), format!("{name} removed")))
    }

    fn route(&self, body: &[u8]) -> Option<String> {
        const CLONED: u32 = 0x200;
        let (prefix, kind) = (*body.get(1)?, *body.get(7)?);
        if word(body, 8)? & CLONED != 0 {
            return None;
        }
        let full = if body[0] as i32 == libc::AF_INET6 { 128 } else { 32 };
        let mut table = u32::from(body[4]);
        let (mut to, mut how, mut tail) = ("default".to_string(), String::new(), String::new());
        for (t, v) in attributes(body, 12) {
            match t {
                libc::RTA_DST if prefix == full => to = address(v),
                libc::RTA_DST => to = format!("{}/{prefix}", address(v)),
                libc::RTA_TABLE => table = word(v, 0)?,
                libc::RTA_PREFSRC => tail += &format!(" src {}", address(v)),
                libc::RTA_PRIORITY => tail += &format!(" metric {}", word(v, 0)?),
                RTA_NH_ID => tail += &format!(" nhid {}", word(v, 0)?),
                libc::RTA_MULTIPATH => {
                    let mut rest = v;
                    while let Some(hop) = half(rest, 0).and_then(|len| take(&mut rest, len.into(), 8)) {
                        how += &format!(" nexthop{} dev {}", via(hop, 8), self.name(word(hop, 4)?));
                        how += &format!(" weight {}", u32::from(hop[3]) + 1);
                    }
                }
                _ => {}
            }
        }
        let mut text = match KINDS.split(' ').nth(kind.into()) {
            Some("unicast") | None => String::new(),
            Some(name) => format!("{name} "),
        };
        text += &to;
        text += &via(body, 12);
        if let Some(ifindex) = attributes(body, 12).find(|a| a.0 == libc::RTA_OIF).and_then(|a| word(a.1, 0))
        {
            text += &format!(" dev {}", self.name(ifindex));
        }
        text += &how;
        match table {
            254 => {}
            255 => text += " table local",
            n => text += &format!(" table {n}"),
        }
        Some(text + &tail)
    }

    fn neighbour(&self, body: &[u8], gone: bool) -> Option<Said> {
        let (family, ifindex, state) = (*body.first()?, word(body, 4)?, half(body, 8)?);
        let find = |t| attributes(body, 12).find(move |a| a.0 == t).map(|a| a.1);
        let (to, at) = (find(libc::NDA_DST), find(libc::NDA_LLADDR));
        let mut text = if family as i32 == libc::AF_BRIDGE {
            format!("{} dev {} fdb", link_address(at?), self.name(ifindex))
        } else {
            let lladdr = at.map(|a| format!(" lladdr {}", link_address(a))).unwrap_or_default();
            format!("{}{lladdr} dev {}", address(to?), self.name(ifindex))
        };
        let names = STATES.split(' ').enumerate().filter(|(bit, _)| state >> bit & 1 != 0).map(|(_, s)| s);
        for word in if gone { vec!["removed"] } else { names.collect() } {
            text += " ";
            text += word;
        }
        Some((EventKind::Neighbour, if gone { 0 } else { state.into() }, ifindex.into(), text))
    }
}

/// Kind, a, b, text.
type Said = (EventKind, u64, u64, String);

const RTA_NH_ID: u16 = 30;

/// RTN_*, from 0 on.
const KINDS: &str = "unspec unicast local broadcast anycast multicast blackhole unreachable prohibit throw";

/// NUD_*, from bit 0 on.
const STATES: &str = "INCOMPLETE REACHABLE STALE DELAY PROBE FAILED NOARP PERMANENT";

/// A bridge says of its ports what changed in the bridge; a port that "goes" has only left it.
fn of_bridge(body: &[u8]) -> bool {
    body.first().is_some_and(|family| i32::from(*family) == libc::AF_BRIDGE)
}

/// The gateway among the attributes, of either family.
fn via(b: &[u8], at: usize) -> String {
    let gateway = attributes(b, at).find_map(|(t, v)| match t {
        libc::RTA_GATEWAY => Some(v),
        libc::RTA_VIA => v.get(2..),
        _ => None,
    });
    gateway.map(|g| format!(" via {}", address(g))).unwrap_or_default()
}
