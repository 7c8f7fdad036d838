//! Listeners of TCP that were there before the recording, and the processes that hold them: the kernel side sees a process only where one calls
//! the kernel, and a listener's own calls are over. `sock_diag` lists the listeners of a namespace without looking at connections, /proc/PID/fd has who holds
//! them. Asked once, when everything is attached: listeners that begin later are announced by the process that calls listen().
//!
//! Rejected: descriptors of other processes (pidfd_getfd), which keep a socket open that its process closes meanwhile; asking for each
//! socket that has no process, which on a busy host is each connection until it is first read.

use super::messages::{self, QUESTION};
use super::{NetnsRef, Socket, inside, processes};
use crate::kernel;
use crate::sys::boot_now;
use kpat_model::{Process, SocketRecord};
use std::collections::{BTreeSet, HashMap};
use std::time::Instant;

/// A listener, and the process that holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listener {
    pub socket: SocketRecord,
    pub process: Process,
}

/// Of include/uapi/linux/{sock_diag,inet_diag}.h.
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const REQUEST_BYTES: usize = 56;
/// TCP_LISTEN of include/net/tcp_states.h.
const LISTEN: u8 = 10;
const TCP: u8 = 6;
/// Descriptors between two looks at the clock.
const STEP: usize = 256;

/// Those in these namespaces of which the holder was found until then; one that several processes hold is the oldest one's, but process 1 (it opens
/// sockets for services) only if no other has it. Namespaces and processes that may not be looked at are left out.
pub fn listeners(all: &[NetnsRef], until: Instant) -> Vec<Listener> {
    let found: HashMap<u32, SocketRecord> = sockets(all, until).collect();
    if found.is_empty() {
        return Vec::new();
    }
    let mut holders: HashMap<u32, (bool, u64, u32)> = HashMap::new();
    'all: for pid in kernel::processes() {
        let mut started = None;
        let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        for (n, d) in descriptors.enumerate() {
            if n % STEP == 0 && Instant::now() >= until {
                break 'all;
            }
            let Some(inode) =
                std::fs::read_link(d.path()).ok().and_then(|to| processes::socket_inode(to.to_str()?))
            else {
                continue;
            };
            if found.contains_key(&inode) {
                let age = *started.get_or_insert_with(|| processes::started(pid));
                let this = (pid == 1, age, pid);
                holders.entry(inode).and_modify(|h| *h = this.min(*h)).or_insert(this);
            }
        }
    }
    let held = |(inode, socket): (u32, SocketRecord)| {
        let pid = holders.get(&inode)?.2;
        let process = Process { at: socket.at, pid, tgid: pid, comm: processes::name_of(pid)? };
        Some(Listener { socket: SocketRecord { pid, ..socket }, process })
    };
    found.into_iter().filter_map(held).collect()
}

/// The ports of those in these namespaces that were looked at until then.
pub fn listened_on(all: &[NetnsRef], until: Instant) -> BTreeSet<u16> {
    sockets(all, until).map(|(_, socket)| socket.port).collect()
}

fn sockets(all: &[NetnsRef], until: Instant) -> impl Iterator<Item = (u32, SocketRecord)> {
    let in_time = all.iter().take_while(move |_| Instant::now() < until);
    in_time.flat_map(|netns| inside(netns, || in_this(netns.inum)).unwrap_or_default())
}

/// Those in the namespace of this thread, by inode.
fn in_this(netns: u32) -> Result<Vec<(u32, SocketRecord)>, super::Error> {
    let socket = Socket::of(libc::NETLINK_SOCK_DIAG, &[])?;
    let mut out = Vec::new();
    for family in [libc::AF_INET, libc::AF_INET6] {
        let mut request = [0; REQUEST_BYTES];
        (request[0], request[1]) = (family as u8, TCP);
        request[4..8].copy_from_slice(&(1u32 << LISTEN).to_ne_bytes());
        let fail = super::failed("ask for listeners");
        socket.send(SOCK_DIAG_BY_FAMILY, libc::NLM_F_DUMP, QUESTION, &request).map_err(fail)?;
        let each = &mut |datagram: &[u8]| {
            let all = messages::messages(datagram).filter(|m| m.kind == SOCK_DIAG_BY_FAMILY);
            out.extend(all.filter_map(|m| listener(m.body, netns)));
        };
        socket.answers(each).map_err(super::failed("list listeners"))?;
    }
    Ok(out)
}

/// An `inet_diag_msg`. Any bytes may be given.
fn listener(b: &[u8], netns: u32) -> Option<(u32, SocketRecord)> {
    let word = |at: usize| messages::word(b, at);
    if *b.get(1)? != LISTEN {
        return None;
    }
    let version = if i32::from(*b.first()?) == libc::AF_INET6 { 6 } else { 4 };
    let mut addr = [0; 16];
    let bytes = if version == 6 { 16 } else { 4 };
    addr[..bytes].copy_from_slice(b.get(8..8 + bytes)?);
    let socket = SocketRecord {
        at: boot_now(),
        cookie: u64::from(word(44)?) | u64::from(word(48)?) << 32,
        netns,
        version,
        protocol: TCP.into(),
        state: LISTEN,
        port: u16::from_be_bytes(b.get(4..6)?.try_into().ok()?),
        addr,
        uid: word(64),
        ..SocketRecord::default()
    };
    Some((word(68)?, socket.unmapped()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::os::fd::AsRawFd;
    use std::time::Duration;

    /// As the kernel says by the descriptor.
    fn cookie(s: &TcpListener) -> u64 {
        let (mut cookie, mut size) = (0u64, 8);
        // SAFETY: the value is ours and its size is given.
        let r = unsafe {
            libc::getsockopt(
                s.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_COOKIE,
                (&raw mut cookie).cast(),
                &mut size,
            )
        };
        assert_eq!(r, 0);
        cookie
    }

    #[test]
    fn own_listeners_are_found_and_nothing_else() {
        let (v4, v6) = (TcpListener::bind("127.0.0.1:0").unwrap(), TcpListener::bind("[::]:0").unwrap());
        let connected = std::net::TcpStream::connect(v4.local_addr().unwrap()).unwrap();
        let own = crate::netlink::current_netns().unwrap();
        let found = listeners(std::slice::from_ref(&own), Instant::now() + Duration::from_secs(20));
        for (s, version) in [(&v4, 4), (&v6, 6)] {
            let l = found.iter().find(|l| l.socket.cookie == cookie(s)).expect("found");
            let port = s.local_addr().unwrap().port();
            assert_eq!((l.socket.version, l.socket.port, l.socket.netns), (version, port, own.inum));
            assert_eq!((l.socket.pid, l.process.tgid), (std::process::id(), std::process::id()));
            assert_eq!(l.process.comm, std::fs::read_to_string("/proc/self/comm").unwrap().trim_end());
        }
        let v4 = found.iter().find(|l| l.socket.cookie == cookie(&v4)).unwrap();
        assert_eq!(v4.socket.addr[..4], [127, 0, 0, 1]);
        let port = connected.local_addr().unwrap().port();
        assert!(found.iter().all(|l| l.socket.port != port), "a connection");
        assert_eq!(listeners(&[own], Instant::now()), [], "no time");
    }

    #[test]
    fn answers_are_bytes_of_anybody() {
        let mut b = vec![0; 72];
        (b[0], b[1], b[5]) = (libc::AF_INET as u8, LISTEN, 80);
        for n in 0..b.len() {
            assert_eq!(listener(&b[..n], 1), None, "{n}");
        }
        assert_eq!(listener(&b, 1).map(|l| l.1.port), Some(80));
        for (link, number) in
            [("socket:[17]", Some(17)), ("pipe:[17]", None), ("socket:[x]", None), ("/socket:[17]", None)]
        {
            assert_eq!(processes::socket_inode(link), number, "{link}");
        }
    }
}
