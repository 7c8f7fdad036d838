//! What the network's configuration did while packets were recorded: links, routes and neighbours of some network
//! namespaces, as the kernel announces them over rtnetlink. Also lists namespaces and the devices in them.
//!
//! A socket belongs to the namespace in which it was made, for good: a short-lived thread enters each namespace and opens
//! one there, so no lasting thread ever leaves its own. Who watches them is [`monitor`], what their messages mean [`messages`]'s to know.

use crate::cards::{SIOCETHTOOL, ask_device, stamping_clock};
use kpat_model::meta::Device;
use messages::{Link, NLMSG_DONE, NLMSG_ERROR};
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

mod listeners;
mod messages;
mod monitor;
mod names;
pub(crate) mod processes;
mod radios;
mod stamps;
pub use listeners::{Listener, listened_on, listeners};
pub use messages::Decoder;
pub use monitor::{Monitor, Seen};
pub use processes::{labelled, process_netns};
pub use radios::{Radio, radios};
pub use stamps::Stamp;

/// A network namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetnsRef {
    /// Inode number, as in the log.
    pub inum: u32,
    /// Its name under /run/netns; of one without, the process that has been in it longest, as `pid 1234 (nginx)`; of this
    /// process's own, where that has no name, none.
    pub name: Option<String>,
    pub path: PathBuf,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("there is no network namespace {name:?} (there are: {known})")]
    NoSuchName { name: String, known: String },
    #[error("no process {pid} has an accessible network namespace: {source}")]
    NoSuchProcess { pid: u32, source: io::Error },
    #[error("cannot use the network namespace {path}: {source}")]
    Namespace { path: PathBuf, source: io::Error },
    #[error("using the network namespace {path} needs CAP_SYS_ADMIN, which this process lacks")]
    NotAllowed { path: PathBuf },
    #[error("cannot {what} (rtnetlink): {source}")]
    Socket { what: &'static str, source: io::Error },
}

fn failed(what: &'static str) -> impl FnOnce(io::Error) -> Error {
    move |source| Error::Socket { what, source }
}

const NAMED: &str = "/run/netns";

const OWN: &str = "/proc/self/ns/net";

fn current_inum() -> Result<u32, Error> {
    let meta = std::fs::metadata(OWN).map_err(|source| Error::Namespace { path: OWN.into(), source })?;
    Ok(meta.ino() as u32)
}

/// The namespace of this process. Its path holds only while the process lives.
pub fn current_netns() -> Result<NetnsRef, Error> {
    let inum = current_inum()?;
    let name = named_netns().into_iter().find(|n| n.inum == inum).and_then(|n| n.name);
    Ok(NetnsRef { inum, name, path: OWN.into() })
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

/// What people call a namespace: a name under /run/netns, `self`, a process in it (`1234`, or as kpat prints it: `pid 1234 (nginx)`),
/// or a file (`/run/docker/netns/1a2b`).
pub fn find(word: &str) -> Result<NetnsRef, Error> {
    if word == "self" {
        return current_netns();
    }
    let named = by_name(word);
    if named.is_ok() {
        return named;
    }
    let known = |inum| named_netns().into_iter().find(|n| n.inum == inum);
    let inum_of = |path: &Path| Ok(std::fs::metadata(path)?.ino() as u32);
    if word.starts_with('/') {
        let path = PathBuf::from(word);
        if !is_namespace(&path) {
            let source = io::Error::new(io::ErrorKind::NotFound, "there is no network namespace");
            return Err(Error::Namespace { path, source });
        }
        let inum = inum_of(&path).map_err(|source| Error::Namespace { path: path.clone(), source })?;
        return Ok(known(inum).unwrap_or(NetnsRef { inum, name: Some(word.to_owned()), path }));
    }
    let labelled = processes::labelled(word);
    let Some(pid) = labelled.or_else(|| word.parse().ok()) else { return named };
    let name = processes::label(pid);
    if labelled.is_some() && name != word {
        let source = io::Error::new(io::ErrorKind::NotFound, format!("it is {name} by now"));
        return Err(Error::NoSuchProcess { pid, source });
    }
    let path = processes::path_of(pid);
    let inum = inum_of(&path).map_err(|source| Error::NoSuchProcess { pid, source })?;
    Ok(known(inum).unwrap_or(NetnsRef { inum, name: Some(name), path }))
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

/// Runs `work` on a thread of its own inside the namespace; in this process's own on this one, which takes no capability.
fn inside<T: Send>(netns: &NetnsRef, work: impl FnOnce() -> Result<T, Error> + Send) -> Result<T, Error> {
    let file = std::fs::File::open(&netns.path)
        .map_err(|source| Error::Namespace { path: netns.path.clone(), source })?;
    inside_open(netns, &file, work)
}

/// The same of one that is open.
fn inside_open<T: Send>(
    netns: &NetnsRef,
    file: &std::fs::File,
    work: impl FnOnce() -> Result<T, Error> + Send,
) -> Result<T, Error> {
    let fail = |source| Error::Namespace { path: netns.path.clone(), source };
    if file.metadata().map_err(fail)?.ino() as u32 != netns.inum {
        return Err(fail(io::Error::new(
            io::ErrorKind::NotFound,
            "it is gone; its name is another's by now",
        )));
    }
    if current_inum()? == netns.inum {
        return work();
    }
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("kpat-netns".into()).spawn_scoped(scope, || {
            // SAFETY: changes the namespace of this thread alone, which ends with this closure.
            if unsafe { libc::setns(file.as_raw_fd(), libc::CLONE_NEWNET) } != 0 {
                let e = io::Error::last_os_error();
                return Err(match e.raw_os_error() {
                    Some(libc::EPERM) => Error::NotAllowed { path: netns.path.clone() },
                    _ => fail(e),
                });
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
        let with_clock = |(link, driver): (Link, String)| {
            let phc = stamping_clock(socket.0.as_fd(), &link.name);
            Device { phc, ..device(netns, link, driver) }
        };
        Ok(found.into_iter().map(with_clock).collect::<Vec<_>>())
    })?;
    found.sort_by_key(|d| d.ifindex);
    Ok(found)
}

fn device(netns: &NetnsRef, link: Link, driver: String) -> Device {
    Device {
        netns: netns.inum,
        netns_since: None,
        netns_name: netns.name.clone().unwrap_or_default(),
        ifindex: link.ifindex,
        name: link.name,
        link_type: link.link_type,
        mac: link.mac,
        mtu: link.mtu,
        driver,
        phc: None,
        above: link.above,
        master: Some(link.master).filter(|m| *m != 0),
    }
}

/// Asks the driver itself: works in any namespace, where /sys shows the namespace of the process that mounted it.
fn ethtool_driver(socket: &Socket, device: &str) -> Option<String> {
    const ETHTOOL_GDRVINFO: u32 = 3;
    let mut info = [0u32; 49]; // struct ethtool_drvinfo
    info[0] = ETHTOOL_GDRVINFO;
    ask_device(socket.0.as_fd(), SIOCETHTOOL, device, &mut info).ok()?;
    let bytes: Vec<u8> = info.iter().flat_map(|w| w.to_ne_bytes()).collect();
    Some(messages::string(&bytes[4..36])).filter(|name| !name.is_empty())
}

// ---- sockets ----

/// RTNLGRP_LINK, NEIGH, TC, IPV4_IFADDR, IPV4_ROUTE, IPV6_IFADDR, IPV6_ROUTE, NSID.
pub const GROUPS: [u32; 8] = [1, 3, 4, 5, 7, 9, 11, 28];
/// More than the kernel puts into one answer (32 KiB).
const BUFFER: usize = 1 << 16;
/// Bytes of a message's header.
const HEADER: usize = 16;
const RECEIVE_BYTES: libc::c_int = 8 << 20;

struct Socket(OwnedFd);

impl Socket {
    /// Of rtnetlink. Non-blocking when it is subscribed to groups.
    fn open(groups: &[u32]) -> Result<Socket, Error> {
        Socket::of(libc::NETLINK_ROUTE, groups)
    }

    fn of(protocol: libc::c_int, groups: &[u32]) -> Result<Socket, Error> {
        let wait = if groups.is_empty() { 0 } else { libc::SOCK_NONBLOCK };
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | wait;
        // SAFETY: plain system call.
        let fd = unsafe { libc::socket(libc::AF_NETLINK, kind, protocol) };
        if fd < 0 {
            return Err(failed("open a socket")(io::Error::last_os_error()));
        }
        // SAFETY: the descriptor is new and has no other owner.
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

    /// Asks for all of a kind: links, addresses or routes.
    fn ask(&self, kind: u16, sequence: u32) -> io::Result<()> {
        self.send(kind, libc::NLM_F_DUMP, sequence, &[0; 16])
    }

    /// A request; `body` is what follows its header.
    fn send(&self, kind: u16, flags: libc::c_int, sequence: u32, body: &[u8]) -> io::Result<()> {
        let mut b = ((HEADER + body.len()) as u32).to_ne_bytes().to_vec();
        b.extend(kind.to_ne_bytes());
        b.extend(((libc::NLM_F_REQUEST | flags) as u16).to_ne_bytes());
        b.extend(sequence.to_ne_bytes());
        b.extend([0; 4]);
        b.extend(body);
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

    /// Hands over the answers to [`Socket::ask`], datagram by datagram.
    fn dump(&self, kind: u16, sequence: u32, each: &mut dyn FnMut(&[u8])) -> Result<(), Error> {
        self.ask(kind, sequence).map_err(failed("ask for what is there"))?;
        self.answers(each).map_err(failed("list what is there"))
    }

    /// Hands over the answers to a request up to their end, datagram by datagram.
    fn answers(&self, each: &mut dyn FnMut(&[u8])) -> io::Result<()> {
        let mut buffer = vec![0u8; BUFFER];
        loop {
            let datagram = self.receive(&mut buffer)?;
            each(datagram);
            for m in messages::messages(datagram) {
                match (m.kind, messages::word(m.body, 0).unwrap_or(0) as i32) {
                    // An acknowledgement.
                    (NLMSG_ERROR, 0) | (NLMSG_DONE, _) => return Ok(()),
                    (NLMSG_ERROR, code) => return Err(io::Error::from_raw_os_error(code.wrapping_neg())),
                    _ => {}
                }
            }
        }
    }

    /// All links, each with its kind ("veth"), empty for hardware.
    fn links(&self) -> Result<Vec<(Link, String)>, Error> {
        let mut out = Vec::new();
        self.dump(libc::RTM_GETLINK, messages::QUESTION, &mut |datagram| {
            let links = messages::messages(datagram).filter(|m| m.kind == libc::RTM_NEWLINK);
            out.extend(links.filter_map(|m| messages::link(m.body)));
        })?;
        Ok(out)
    }
}
