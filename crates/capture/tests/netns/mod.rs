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
            let quiet = [
                "net.ipv6.conf.default.addr_gen_mode=1",
                "net.ipv6.conf.default.mldv2_unsolicited_report_interval=100000",
            ];
            cable_command(ns, "sysctl").arg("-qw").args(quiet).status().expect("sysctl runs");
            ip(&["-n", ns, "link", "set", "lo", "up"]);
        }
        let (a, b) = (&cable.a, &cable.b);
        ip(&["link", "add", "va", "netns", a, "type", "veth", "peer", "name", "vb", "netns", b]);
        ip(&["-n", a, "link", "set", "va", "address", "02:00:00:00:00:a1", "up"]);
        ip(&["-n", b, "link", "set", "vb", "address", "02:00:00:00:00:b2", "up"]);
        cable
    }

    /// Puts frames on the cable at `dev` in `ns`, exactly as given.
    pub fn send(&self, ns: &str, dev: &str, frames: &[Vec<u8>]) {
        let (ns, dev) = (ns.to_string(), CString::new(dev).expect("a name"));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let file = File::open(format!("/run/netns/{ns}")).expect("the namespace is there");
                // SAFETY: setns takes no memory, and moves this thread only.
                check(unsafe { libc::setns(file.as_raw_fd(), libc::CLONE_NEWNET) });
                // SAFETY: the name ends with a zero.
                let index = unsafe { libc::if_nametoindex(dev.as_ptr()) };
                // SAFETY: socket takes no memory.
                let fd = check(unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW, 0) });
                // SAFETY: the descriptor is new.
                let fd = unsafe { OwnedFd::from_raw_fd(fd) };
                // SAFETY: a plain C structure for which zero is valid.
                let mut to: libc::sockaddr_ll = unsafe { zeroed() };
                to.sll_family = libc::AF_PACKET as u16;
                to.sll_ifindex = index as i32;
                for frame in frames {
                    // SAFETY: both pointers are valid for the lengths given.
                    let sent = unsafe {
                        libc::sendto(
                            fd.as_raw_fd(),
                            frame.as_ptr().cast(),
                            frame.len(),
                            0,
                            (&raw const to).cast(),
                            size_of::<libc::sockaddr_ll>() as u32,
                        )
                    };
                    assert_eq!(sent, frame.len() as isize, "{}", io::Error::last_os_error());
                }
            });
        });
    }
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

pub fn ip(args: &[&str]) {
    let out = match Command::new("ip").args(args).output() {
        Ok(out) => out,
        Err(e) => panic!("cannot run ip: {e}; run scripts/setup, which installs it"),
    };
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "ip {args:?}: {said} (these tests need root and CONFIG_VETH)");
}

fn check(result: i32) -> i32 {
    assert!(result >= 0, "{}", io::Error::last_os_error());
    result
}
