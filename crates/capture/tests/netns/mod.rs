//! Two network namespaces joined by a virtual cable, torn down whatever happens. All live traffic stays in them.

#![allow(dead_code, reason = "each test binary uses a part")]

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// `va` in namespace `a` is joined to `vb` in namespace `b`.
pub struct Cable {
    pub a: String,
    pub b: String,
}

pub const MAC_A: [u8; 6] = [2, 0, 0, 0, 0, 0xa1];
pub const MAC_B: [u8; 6] = [2, 0, 0, 0, 0, 0xb2];

impl Cable {
    /// With 10.7.0.1 and fd07::1 at `va`, 10.7.0.2 and fd07::2 at `vb`.
    pub fn with_addresses() -> Cable {
        let cable = Cable::bare();
        for (ns, dev, n) in [(&cable.a, "va", 1), (&cable.b, "vb", 2)] {
            sysctl(ns, &format!("net.ipv6.conf.{dev}.disable_ipv6=0"));
            ip(&["-n", ns, "addr", "add", &format!("10.7.0.{n}/24"), "dev", dev]);
            ip(&["-n", ns, "addr", "add", &format!("fd07::{n}/64"), "dev", dev, "nodad"]);
        }
        cable
    }

    /// Nothing sends by itself on this one.
    pub fn bare() -> Cable {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("kpc{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let cable = Cable { a: format!("{name}a"), b: format!("{name}b") };
        for ns in [&cable.a, &cable.b] {
            ip(&["netns", "add", ns]);
            sysctl(ns, "net.ipv6.conf.default.disable_ipv6=1");
            ip(&["-n", ns, "link", "set", "lo", "up"]);
        }
        let (a, b) = (&cable.a, &cable.b);
        ip(&["link", "add", "va", "netns", a, "type", "veth", "peer", "name", "vb", "netns", b]);
        ip(&["-n", a, "link", "set", "va", "address", "02:00:00:00:00:a1", "up"]);
        ip(&["-n", b, "link", "set", "vb", "address", "02:00:00:00:00:b2", "up"]);
        cable.wait_until_it_carries();
        cable
    }

    /// The kernel makes a device ready to send some time after it is set up and drops without a word before that; the
    /// one sign is a frame that arrives.
    fn wait_until_it_carries(&self) {
        self.within(|sender, received| {
            let arrived = (0..1000).any(|_| {
                send(sender, &sentinel());
                readable(received, 10)
            });
            assert!(arrived, "the cable does not carry frames");
        });
    }

    /// Puts frames on the cable at `va`, exactly as given, and one of [`LAST`] behind them; returns all that were sent,
    /// when `b` has received them and every sniffer there has them.
    pub fn send(&self, frames: &[Vec<u8>]) -> Vec<Vec<u8>> {
        let all: Vec<Vec<u8>> = frames.iter().cloned().chain([sentinel()]).collect();
        self.within(|sender, received| {
            all.iter().for_each(|frame| send(sender, frame));
            assert!(readable(received, 10_000), "the last frame did not arrive");
        });
        all
    }

    /// Runs with a socket that sends at `va` and one that receives [`LAST`] at `vb`. The kernel hands a frame to those
    /// who want all kinds before those who want one.
    fn within(&self, act: impl FnOnce(&OwnedFd, &OwnedFd) + Send) {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let received = packet_socket(&self.b, "vb", LAST);
                act(&packet_socket(&self.a, "va", 0), &received);
            });
        });
    }
}

fn sentinel() -> Vec<u8> {
    [&MAC_B[..], &MAC_A, &LAST.to_be_bytes(), &[0; 46]].concat()
}

fn send(socket: &OwnedFd, frame: &[u8]) {
    // SAFETY: the pointer is valid for the length.
    let sent = unsafe { libc::send(socket.as_raw_fd(), frame.as_ptr().cast(), frame.len(), 0) };
    assert_eq!(sent, frame.len() as isize, "{}", io::Error::last_os_error());
}

fn readable(socket: &OwnedFd, timeout_ms: i32) -> bool {
    let mut fds = [libc::pollfd { fd: socket.as_raw_fd(), events: libc::POLLIN, revents: 0 }];
    // SAFETY: the array is valid for its length.
    check(unsafe { libc::poll(fds.as_mut_ptr(), 1, timeout_ms) }) == 1
}

/// EtherType for local experiments (IEEE 802), which no other frame here has.
const LAST: u16 = 0x88b5;

/// Moves this thread into the namespace, and binds a socket there.
fn packet_socket(ns: &str, dev: &str, protocol: u16) -> OwnedFd {
    let file = File::open(format!("/run/netns/{ns}")).expect("the namespace is there");
    // SAFETY: setns takes no memory, and moves this thread only.
    check(unsafe { libc::setns(file.as_raw_fd(), libc::CLONE_NEWNET) });
    let dev = CString::new(dev).expect("a name");
    // SAFETY: the name ends with a zero.
    let index = unsafe { libc::if_nametoindex(dev.as_ptr()) };
    // SAFETY: socket takes no memory.
    let fd = check(unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW, 0) });
    // SAFETY: the descriptor is new.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: a plain C structure for which zero is valid.
    let mut to: libc::sockaddr_ll = unsafe { zeroed() };
    to.sll_family = libc::AF_PACKET as u16;
    to.sll_protocol = protocol.to_be();
    to.sll_ifindex = index as i32;
    let len = size_of::<libc::sockaddr_ll>() as u32;
    // SAFETY: the pointer is valid for the length.
    check(unsafe { libc::bind(fd.as_raw_fd(), (&raw const to).cast(), len) });
    fd
}

impl Drop for Cable {
    fn drop(&mut self) {
        for ns in [&self.a, &self.b] {
            let _ = Command::new("ip").args(["netns", "del", ns]).stderr(Stdio::null()).status();
        }
    }
}

/// A command that runs in a namespace.
pub fn cable_command(ns: &str, program: &str) -> Command {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", ns, program]);
    command
}

fn sysctl(ns: &str, setting: &str) {
    let done = cable_command(ns, "sysctl").args(["-qw", setting]).status();
    assert!(done.is_ok_and(|status| status.success()), "sysctl {setting} in {ns}; is procps installed?");
}

pub fn ip(args: &[&str]) {
    let out = match Command::new("ip").args(args).output() {
        Ok(out) => out,
        Err(e) => panic!("cannot run ip: {e}; run scripts/setup, which installs it"),
    };
    let reported = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "ip {args:?}: {reported} (these tests need root and CONFIG_VETH)");
}

fn check(result: i32) -> i32 {
    assert!(result >= 0, "{}", io::Error::last_os_error());
    result
}
