//! The packet socket: everything here that needs `unsafe`.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::ptr;

use super::write::Seen;
use super::{ANY, Instruction};
use crate::Direction;

/// Frames asked of the kernel at once.
const BATCH: usize = 64;
const RECEIVE_BUFFER: libc::c_int = 32 << 20;
/// How long frames may stay unwritten while nothing comes.
const IDLE_MS: libc::c_int = 250;

const VLAN_VALID: u32 = 1 << 4;
const VLAN_TPID_VALID: u32 = 1 << 6;
const TPID_8021Q: u16 = 0x8100;

pub(super) const LINKTYPE_ETHERNET: u16 = 1;
pub(super) const LINKTYPE_RAW: u16 = 101;
pub(super) const LINKTYPE_LINUX_SLL2: u16 = 276;

/// What was being done, and the system's error.
pub(super) struct Refused {
    pub doing: &'static str,
    pub source: io::Error,
}

fn check(result: libc::c_int, doing: &'static str) -> Result<libc::c_int, Refused> {
    if result < 0 { Err(Refused { doing, source: io::Error::last_os_error() }) } else { Ok(result) }
}

fn refuse(doing: &'static str, kind: io::ErrorKind) -> Refused {
    Refused { doing, source: kind.into() }
}

/// Moves the calling thread, and no other, into the namespace `/run/netns/NAME`, or that of a whole path.
pub(super) fn enter_netns(name: &str) -> Result<(), Refused> {
    let doing = "opening the network namespace";
    let whole = name.starts_with('/');
    if name.is_empty() || !whole && name.contains('/') || name.starts_with('.') {
        return Err(refuse(doing, io::ErrorKind::InvalidInput));
    }
    let file = File::open(Path::new("/run/netns").join(name)).map_err(|source| Refused { doing, source })?;
    // SAFETY: setns takes no memory; the descriptor is open.
    check(unsafe { libc::setns(file.as_raw_fd(), libc::CLONE_NEWNET) }, "entering the network namespace")?;
    Ok(())
}

/// As in `uname -sr`.
pub(super) fn kernel_name() -> String {
    let read = |name: &str| std::fs::read_to_string(format!("/proc/sys/kernel/{name}")).unwrap_or_default();
    format!("{} {}", read("ostype").trim(), read("osrelease").trim()).trim().to_string()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ready {
    Frames,
    Idle,
    Stop,
}

pub(super) struct PacketSocket {
    fd: OwnedFd,
    link_type: u16,
    /// A loopback shows each frame going out and coming in; one of them is enough.
    loopback: bool,
}

impl PacketSocket {
    /// `program`: what frames of a link type have to pass; empty: all do.
    pub fn open(
        ifname: &str,
        snaplen: u32,
        program: impl FnOnce(u16) -> Result<Vec<Instruction>, Refused>,
    ) -> Result<PacketSocket, Refused> {
        let (ifindex, arphrd) = if ifname == ANY { (0, None) } else { interface(ifname)? };
        let link_type = match arphrd {
            Some(libc::ARPHRD_ETHER | libc::ARPHRD_LOOPBACK) => LINKTYPE_ETHERNET,
            Some(libc::ARPHRD_IEEE80211) => 105,
            Some(libc::ARPHRD_IEEE80211_PRISM) => 119,
            Some(libc::ARPHRD_IEEE80211_RADIOTAP) => 127,
            // These have no link header.
            Some(libc::ARPHRD_TUNNEL | libc::ARPHRD_TUNNEL6 | libc::ARPHRD_SIT | 519 | libc::ARPHRD_NONE) => {
                LINKTYPE_RAW
            }
            _ => LINKTYPE_LINUX_SLL2,
        };
        let kind = if link_type == LINKTYPE_LINUX_SLL2 { libc::SOCK_DGRAM } else { libc::SOCK_RAW };
        // SAFETY: socket takes no memory. Protocol 0: nothing is received before bind.
        let fd = unsafe { libc::socket(libc::AF_PACKET, kind | libc::SOCK_CLOEXEC, 0) };
        let fd = check(fd, "opening a packet socket")?;
        // SAFETY: the descriptor is new and has no other owner.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let socket = PacketSocket { fd, link_type, loopback: arphrd == Some(libc::ARPHRD_LOOPBACK) };
        if socket.set(libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, &RECEIVE_BUFFER, "").is_err() {
            socket.set(libc::SOL_SOCKET, libc::SO_RCVBUF, &RECEIVE_BUFFER, "sizing the receive buffer")?;
        }
        let on: libc::c_int = 1;
        socket.set(libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, &on, "asking for timestamps")?;
        socket.set(libc::SOL_PACKET, libc::PACKET_AUXDATA, &on, "asking for VLAN tags")?;
        let seen_as = if link_type == LINKTYPE_LINUX_SLL2 { LINKTYPE_RAW } else { link_type };
        let mut code: Vec<libc::sock_filter> = program(seen_as)?
            .into_iter()
            .map(|(code, jt, jf, k)| libc::sock_filter { code, jt, jf, k })
            .collect();
        const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
        if code.is_empty() {
            code.push(libc::sock_filter { code: RETURN, jt: 0, jf: 0, k: u32::MAX });
        }
        for leave in code.iter_mut().filter(|i| i.code == RETURN) {
            leave.k = leave.k.min(snaplen);
        }
        let filter = libc::sock_fprog { len: code.len() as u16, filter: code.as_mut_ptr() };
        socket.set(libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &filter, "attaching the filter")?;
        socket.bind(ifindex)?;
        if ifindex != 0 {
            // SAFETY: a plain C structure for which zero is valid.
            let mut member: libc::packet_mreq = unsafe { zeroed() };
            member.mr_ifindex = ifindex;
            member.mr_type = libc::PACKET_MR_PROMISC as u16;
            socket.set(
                libc::SOL_PACKET,
                libc::PACKET_ADD_MEMBERSHIP,
                &member,
                "entering promiscuous mode",
            )?;
        }
        Ok(socket)
    }

    pub fn link_type(&self) -> u16 {
        self.link_type
    }

    fn set<T>(&self, level: i32, option: i32, value: &T, doing: &'static str) -> Result<(), Refused> {
        let len = size_of::<T>() as libc::socklen_t;
        // SAFETY: the pointer and length are those of `value`, which the kernel only reads.
        let result =
            unsafe { libc::setsockopt(self.fd.as_raw_fd(), level, option, ptr::from_ref(value).cast(), len) };
        check(result, doing).map(|_| ())
    }

    fn bind(&self, ifindex: libc::c_int) -> Result<(), Refused> {
        // SAFETY: a plain C structure for which zero is valid.
        let mut address: libc::sockaddr_ll = unsafe { zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
        address.sll_ifindex = ifindex;
        let len = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        // SAFETY: the pointer and length are those of `address`, which the kernel only reads.
        let result = unsafe { libc::bind(self.fd.as_raw_fd(), ptr::from_ref(&address).cast(), len) };
        check(result, "binding to the interface").map(|_| ())
    }

    /// Until there are frames, or `stopped` is closed at its other end, or nothing has come for a while.
    pub fn wait(&self, stopped: BorrowedFd) -> Result<Ready, Refused> {
        let poll = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let mut fds = [poll(self.fd.as_raw_fd()), poll(stopped.as_raw_fd())];
        // SAFETY: the array is valid for its length.
        let ready = unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, IDLE_MS) };
        if ready < 0 && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted {
            return Ok(Ready::Frames);
        }
        check(ready, "waiting for frames")?;
        Ok(match fds.map(|p| p.revents) {
            [_, stop] if stop != 0 => Ready::Stop,
            [0, _] => Ready::Idle,
            _ => Ready::Frames,
        })
    }

    /// Lets nothing more into the queue: a filter that accepts no frame.
    pub fn close_tap(&self) -> Result<(), Refused> {
        let mut nothing =
            libc::sock_filter { code: (libc::BPF_RET | libc::BPF_K) as u16, jt: 0, jf: 0, k: 0 };
        let program = libc::sock_fprog { len: 1, filter: &raw mut nothing };
        self.set(libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program, "closing the tap")
    }

    /// Fills the batch; 0: nothing is waiting.
    pub fn receive(&self, batch: &mut Batch) -> Result<usize, Refused> {
        let heads = batch.prepare();
        // MSG_TRUNC: the length given is that of the frame, not of what was copied.
        let flags = libc::MSG_DONTWAIT | libc::MSG_TRUNC;
        // SAFETY: each header points to buffers of the batch that live and stay in place until `frames` has read them.
        let got = unsafe {
            libc::recvmmsg(
                self.fd.as_raw_fd(),
                heads.as_mut_ptr(),
                heads.len() as libc::c_uint,
                flags as _,
                ptr::null_mut(),
            )
        };
        if got < 0 {
            let source = io::Error::last_os_error();
            return match source.raw_os_error() {
                // An interface that goes down may come up again.
                Some(libc::EAGAIN | libc::EINTR | libc::ENETDOWN) => Ok(0),
                _ => Err(Refused { doing: "receiving frames", source }),
            };
        }
        Ok(got as usize)
    }

    /// Frames that found the queue full.
    pub fn drops(&self) -> Result<u64, Refused> {
        // SAFETY: a plain C structure for which zero is valid.
        let mut stats: libc::tpacket_stats = unsafe { zeroed() };
        let mut len = size_of::<libc::tpacket_stats>() as libc::socklen_t;
        // SAFETY: the pointer and length are those of `stats`, which the kernel fills at most.
        let result = unsafe {
            libc::getsockopt(
                self.fd.as_raw_fd(),
                libc::SOL_PACKET,
                libc::PACKET_STATISTICS,
                (&raw mut stats).cast(),
                &raw mut len,
            )
        };
        check(result, "reading the packet statistics")?;
        Ok(u64::from(stats.tp_drops))
    }
}

/// Index and ARPHRD_* of an interface.
fn interface(ifname: &str) -> Result<(libc::c_int, Option<u16>), Refused> {
    let doing = "looking up the interface";
    let name = CString::new(ifname).map_err(|_| refuse(doing, io::ErrorKind::InvalidInput))?;
    let bytes = name.as_bytes_with_nul();
    if bytes.len() > libc::IFNAMSIZ {
        return Err(refuse(doing, io::ErrorKind::InvalidInput));
    }
    // SAFETY: the name ends with a zero.
    let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
    if index == 0 {
        return Err(Refused { doing, source: io::Error::last_os_error() });
    }
    // SAFETY: socket takes no memory.
    let fd = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
    // SAFETY: the descriptor is new and has no other owner.
    let fd = unsafe { OwnedFd::from_raw_fd(check(fd, doing)?) };
    // SAFETY: a plain C structure for which zero is valid.
    let mut request: libc::ifreq = unsafe { zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(bytes) {
        *to = *from as libc::c_char;
    }
    // SAFETY: the request is valid, its name ends with a zero, and the kernel fills its address.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::SIOCGIFHWADDR as _, &raw mut request) }, doing)?;
    // SAFETY: the kernel has just filled this member of the union.
    let arphrd = unsafe { request.ifr_ifru.ifru_hwaddr.sa_family };
    Ok((index as libc::c_int, Some(arphrd)))
}

/// Room for a time stamp and the auxiliary data, aligned as control messages are.
#[repr(align(8))]
#[derive(Clone, Copy)]
struct Control([u8; 128]);

/// Buffers for one `recvmmsg`. None of the vectors changes its place after `new`.
pub(super) struct Batch {
    snaplen: usize,
    bytes: Vec<u8>,
    parts: Vec<libc::iovec>,
    senders: Vec<libc::sockaddr_ll>,
    controls: Vec<Control>,
    heads: Vec<libc::mmsghdr>,
}

impl Batch {
    pub fn new(snaplen: usize) -> Batch {
        // SAFETY: plain C structures for which zero is valid.
        let (sender, head): (libc::sockaddr_ll, libc::mmsghdr) = unsafe { (zeroed(), zeroed()) };
        Batch {
            snaplen,
            bytes: vec![0; snaplen * BATCH],
            parts: vec![libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 }; BATCH],
            senders: vec![sender; BATCH],
            controls: vec![Control([0; 128]); BATCH],
            heads: vec![head; BATCH],
        }
    }

    fn prepare(&mut self) -> &mut [libc::mmsghdr] {
        let slots = self.bytes.chunks_exact_mut(self.snaplen);
        let rest = self.parts.iter_mut().zip(&mut self.senders).zip(&mut self.controls);
        for ((head, slot), ((part, sender), control)) in self.heads.iter_mut().zip(slots).zip(rest) {
            *part = libc::iovec { iov_base: slot.as_mut_ptr().cast(), iov_len: slot.len() };
            let head = &mut head.msg_hdr;
            head.msg_name = ptr::from_mut(sender).cast();
            head.msg_namelen = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
            head.msg_iov = ptr::from_mut(part);
            head.msg_iovlen = 1;
            head.msg_control = control.0.as_mut_ptr().cast();
            head.msg_controllen = control.0.len() as _;
            head.msg_flags = 0;
        }
        &mut self.heads
    }

    /// The first `got` frames, as they were on the wire: with their VLAN tag put back.
    pub fn frames<'a>(&'a self, got: usize, socket: &PacketSocket) -> impl Iterator<Item = Seen<'a>> {
        let (link_type, loopback) = (socket.link_type, socket.loopback);
        let slots = self.bytes.chunks_exact(self.snaplen);
        let all = self.heads.iter().zip(slots).zip(&self.senders).take(got);
        all.filter_map(move |((head, slot), sender)| {
            let outgoing = sender.sll_pkttype == libc::PACKET_OUTGOING;
            if outgoing && loopback {
                return None;
            }
            let got = head.msg_len as usize;
            let (at_ns, len, tag) = ancillary(&head.msg_hdr);
            let len = len.map_or(got, |len| len as usize);
            let protocol = u16::from_be(sender.sll_protocol);
            let data = &slot[..got.min(self.snaplen)];
            let (prefix, split) = match link_type {
                LINKTYPE_LINUX_SLL2 => (cooked(sender, protocol, tag, data), 0),
                LINKTYPE_ETHERNET => match tag {
                    Some((tpid, tci)) => ([tpid.to_be_bytes(), tci.to_be_bytes()].concat(), 12),
                    None => (Vec::new(), 0),
                },
                _ => (Vec::new(), 0),
            };
            Some(Seen {
                at_ns,
                len_wire: (len + prefix.len()) as u32,
                data,
                inserted: prefix,
                split,
                direction: if outgoing { Direction::Out } else { Direction::In },
            })
        })
    }
}

/// A LINKTYPE_LINUX_SLL2 header, and a VLAN tag behind it.
///
/// Since Linux 6.10 `protocol` is what is behind all tags, although a second tag, or one that the kernel did not take
/// out, is still at the start of `data`.
fn cooked(sender: &libc::sockaddr_ll, protocol: u16, tag: Option<(u16, u16)>, data: &[u8]) -> Vec<u8> {
    let [t0, t1, p0, p1] = *data.first_chunk().unwrap_or(&[0; 4]);
    let is_network = matches!((protocol, t0 >> 4), (0x0800, 4) | (0x86dd, 6));
    let tag_in_data = u16::from_be_bytes([p0, p1]) == protocol && !is_network;
    let (first, behind) = match tag {
        None => (protocol, None),
        Some((tpid, tci)) if tag_in_data && tci == u16::from_be_bytes([t0, t1]) => (tpid, None),
        Some((tpid, tci)) if tag_in_data => (tpid, Some((tci, TPID_8021Q))),
        Some((tpid, tci)) => (tpid, Some((tci, protocol))),
    };
    let mut out = Vec::with_capacity(24);
    out.extend(first.to_be_bytes());
    out.extend([0, 0]);
    out.extend((sender.sll_ifindex as u32).to_be_bytes());
    out.extend(sender.sll_hatype.to_be_bytes());
    out.extend([sender.sll_pkttype, sender.sll_halen]);
    out.extend(sender.sll_addr);
    if let Some((tci, next)) = behind {
        out.extend(tci.to_be_bytes());
        out.extend(next.to_be_bytes());
    }
    out
}

/// Time of the frame, its length before the filter cut it, and tag protocol and control information of the tag that the
/// kernel took out of it.
fn ancillary(head: &libc::msghdr) -> (u64, Option<u32>, Option<(u16, u16)>) {
    let (mut at_ns, mut len, mut tag) = (0, None, None);
    // SAFETY: the kernel has filled the control buffer and its length.
    let mut message = unsafe { libc::CMSG_FIRSTHDR(head) };
    while !message.is_null() {
        // SAFETY: the macros give headers that are within the control buffer, or null.
        let (level, kind, data) =
            unsafe { ((*message).cmsg_level, (*message).cmsg_type, libc::CMSG_DATA(message)) };
        match (level, kind) {
            (libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS) => {
                // SAFETY: this message carries a timespec.
                let time = unsafe { data.cast::<libc::timespec>().read_unaligned() };
                at_ns = time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64;
            }
            (libc::SOL_PACKET, libc::PACKET_AUXDATA) => {
                // SAFETY: this message carries a tpacket_auxdata.
                let aux = unsafe { data.cast::<libc::tpacket_auxdata>().read_unaligned() };
                len = Some(aux.tp_len);
                if aux.tp_status & VLAN_VALID != 0 {
                    let known = aux.tp_status & VLAN_TPID_VALID != 0;
                    tag = Some((if known { aux.tp_vlan_tpid } else { TPID_8021Q }, aux.tp_vlan_tci));
                }
            }
            _ => {}
        }
        // SAFETY: `message` came from the same buffer.
        message = unsafe { libc::CMSG_NXTHDR(head, message) };
    }
    (at_ns, len, tag)
}
