//! Capabilities of this process: which are missing, and giving up those that are not needed any more. They belong to threads; each
//! gives up its own.

use std::io;

/// Numbers of linux/capability.h.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Cap {
    DacOverride = 1,
    Kill = 5,
    NetAdmin = 12,
    NetRaw = 13,
    SysPtrace = 19,
    SysAdmin = 21,
    SysNice = 23,
    Syslog = 34,
    Perfmon = 38,
    Bpf = 39,
}

impl Cap {
    pub fn name(self) -> &'static str {
        match self {
            Cap::DacOverride => "CAP_DAC_OVERRIDE",
            Cap::Kill => "CAP_KILL",
            Cap::NetAdmin => "CAP_NET_ADMIN",
            Cap::NetRaw => "CAP_NET_RAW",
            Cap::SysPtrace => "CAP_SYS_PTRACE",
            Cap::SysAdmin => "CAP_SYS_ADMIN",
            Cap::SysNice => "CAP_SYS_NICE",
            Cap::Syslog => "CAP_SYSLOG",
            Cap::Perfmon => "CAP_PERFMON",
            Cap::Bpf => "CAP_BPF",
        }
    }

    fn bit(self) -> u64 {
        1 << self as u8
    }
}

#[repr(C)]
struct Header {
    version: u32,
    pid: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Half {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// Of 64 bits.
const VERSION: u32 = 0x2008_0522;

fn halves() -> io::Result<[Half; 2]> {
    let mut header = Header { version: VERSION, pid: 0 };
    let mut halves = [Half::default(); 2];
    // SAFETY: both are ours and have the layout of that version.
    match unsafe { libc::syscall(libc::SYS_capget, &mut header, halves.as_mut_ptr()) } {
        0 => Ok(halves),
        _ => Err(io::Error::last_os_error()),
    }
}

/// This thread may use it now.
pub fn has(c: Cap) -> bool {
    halves().is_ok_and(|h| (u64::from(h[0].effective) | u64::from(h[1].effective) << 32) & c.bit() != 0)
}

/// This thread gives up all others, for good: what it does not have it does not get, nor by executing a program (no_new_privs, and
/// the bounding set, where CAP_SETPCAP allows). Programs that are to keep their rights have to be started before.
pub fn keep(only: &[Cap]) {
    let Ok(mut halves) = halves() else { return };
    let mask = only.iter().fold(0, |m, c| m | c.bit());
    // Numbers that the kernel does not know are refused.
    for c in (0..u64::from(u64::BITS)).filter(|c| mask & (1 << c) == 0) {
        prctl(libc::PR_CAPBSET_DROP, c);
    }
    prctl(libc::PR_SET_NO_NEW_PRIVS, 1);
    for (i, h) in halves.iter_mut().enumerate() {
        let half = (mask >> (32 * i)) as u32;
        (h.effective, h.permitted, h.inheritable) = (h.effective & half, h.permitted & half, 0);
    }
    set(&halves);
}

/// Does this take the capability? Without it for as long as `works` runs.
pub fn takes(c: Cap, works: impl FnOnce() -> bool) -> bool {
    let Ok(before) = halves() else { return false };
    if !has(c) {
        return false;
    }
    let mut less = before;
    less[usize::from(c as u8 / 32)].effective &= !(1 << (c as u8 % 32));
    set(&less);
    let worked = works();
    set(&before);
    !worked
}

/// One of those that take a number.
fn prctl(what: i32, value: u64) -> bool {
    // SAFETY: neither number is a pointer.
    unsafe { libc::prctl(what, value, 0u64, 0u64, 0u64) == 0 }
}

fn set(halves: &[Half; 2]) {
    let mut header = Header { version: VERSION, pid: 0 };
    // SAFETY: both are ours and have the layout of that version. To give up is never refused; if it were, everything still works.
    unsafe { libc::syscall(libc::SYS_capset, &mut header, halves.as_ptr()) };
}

/// What recording cannot do without and this process lacks: names, in one string; `None`: nothing. CAP_SYS_ADMIN includes both.
pub fn missing() -> Option<String> {
    if has(Cap::SysAdmin) {
        return None;
    }
    let lacks: Vec<&str> = [Cap::Bpf, Cap::Perfmon].into_iter().filter(|c| !has(*c)).map(Cap::name).collect();
    if lacks.is_empty() { None } else { Some(lacks.join(" and ")) }
}
