//! Network namespaces that have no name under /run/netns: those of containers, of services with a network of their own, of
//! `unshare -n`. They are named after the process that has been in them longest, `pid 1234 (nginx)`, and last as long as any process
//! is in them.
//!
//! The kernel reports none of them when they come. A thread lists /proc once a second, and immediately if something is known to be
//! new: a packet or an announcement of an unknown namespace, the end of a process after which one was named. It alone may look at
//! other users' processes (CAP_SYS_PTRACE), and hands over descriptors. Rejected: tracepoints at clone() and unshare(), which slow down each system call of the host.

use super::names::Change;
use super::{NetnsRef, current_inum, named_netns};
use crate::capability::{self, Cap};
use crate::kernel;
use crate::sys::boot_now;
use kpat_model::BootNs;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};

/// What a process is called; `None`: it has ended.
pub(crate) fn name_of(pid: u32) -> Option<String> {
    let comm = std::fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    Some(comm.trim_end_matches('\n').to_owned())
}

/// The number of the socket that a descriptor is a link to.
pub(crate) fn socket_inode(link: &str) -> Option<u32> {
    link.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

/// `pid 1234 (nginx)`.
pub(super) fn label(pid: u32) -> String {
    format!("pid {pid} ({})", name_of(pid).unwrap_or_default())
}

/// The process that a label of [`label`]'s stands for.
pub fn labelled(name: &str) -> Option<u32> {
    let (pid, comm) = name.strip_prefix("pid ")?.split_once(' ')?;
    (comm.starts_with('(') && comm.ends_with(')')).then(|| pid.parse().ok()).flatten()
}

pub(super) fn path_of(pid: u32) -> PathBuf {
    format!("/proc/{pid}/ns/net").into()
}

/// Inode number of the namespace that a process is in. What may not be looked at, and what has ended, has none.
pub(crate) fn inum_of(pid: u32) -> Option<u32> {
    Some(std::fs::metadata(path_of(pid)).ok()?.ino() as u32)
}

/// Ticks since boot.
pub(crate) fn started(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name may contain anything; 22nd of all, 20th behind it.
    let behind = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
    behind.split(' ').nth(19).and_then(|t| t.parse().ok()).unwrap_or(u64::MAX)
}

/// Processes by namespace, without those that have a name and this process's own.
fn nameless() -> BTreeMap<u32, Vec<u32>> {
    let mut others: BTreeSet<u32> = named_netns().into_iter().map(|n| n.inum).collect();
    others.extend(current_inum());
    let mut out: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for pid in kernel::processes() {
        if let Some(inum) = inum_of(pid).filter(|i| !others.contains(i)) {
            out.entry(inum).or_default().push(pid);
        }
    }
    out
}

fn oldest(pids: &[u32]) -> Option<u32> {
    pids.iter().copied().min_by_key(|pid| (started(*pid), *pid))
}

/// All namespaces that processes are in and that have no name, by the oldest process in each. Those of processes that this one may
/// not look at are left out.
pub fn process_netns() -> Vec<NetnsRef> {
    let of = |(inum, pids): (u32, Vec<u32>)| {
        let pid = oldest(&pids)?;
        Some(NetnsRef { inum, name: Some(label(pid)), path: path_of(pid) })
    };
    nameless().into_iter().filter_map(of).collect()
}

/// What was found of namespaces without a name.
pub(super) enum Found {
    /// Open, for a thread that may enter it.
    Came(Change, File),
    /// No process is in it any more.
    Gone(Change),
    /// The process that stands for it is called otherwise now, or it got a name.
    Renamed { inum: u32, name: String },
    /// There were no descriptors left for it.
    Unread { name: String, after: BootNs },
}

/// Looks for them until it is dropped.
pub(super) struct Finder {
    pub(super) found: Receiver<Found>,
    /// A byte asks for a look, closing ends the thread.
    pub(super) ask: Option<UnixStream>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Finder {
    /// `known` is watched already. Descriptors from `most` on are not for namespaces.
    pub(super) fn start(known: &[NetnsRef], most: RawFd) -> io::Result<Finder> {
        let (ask, asked) = UnixStream::pair()?;
        ask.set_nonblocking(true)?;
        asked.set_nonblocking(true)?;
        let (out, found) = channel();
        let mut search = Search {
            held: BTreeMap::new(),
            candidates: BTreeMap::new(),
            looked: boot_now(),
            most,
            asked,
            out,
        };
        for n in known {
            if let Some(name) = &n.name
                && let Some(pid) = labelled(name)
            {
                let end = search.end_of(pid);
                search.held.insert(n.inum, Held { pid, name: name.clone(), end });
            }
        }
        let thread = std::thread::Builder::new().name("kpat-netns".into()).spawn(move || search.run())?;
        Ok(Finder { found, ask: Some(ask), thread: Some(thread) })
    }

    pub(super) fn asker(&self) -> Option<UnixStream> {
        self.ask.as_ref()?.try_clone().ok()
    }
}

/// Asks for a look now. One that was asked for and did not begin is enough.
pub(super) fn ask(to: &UnixStream) {
    let mut to = to;
    let _ = to.write(&[1]);
}

impl Drop for Finder {
    fn drop(&mut self) {
        if let Some(ask) = self.ask.take() {
            let _ = ask.shutdown(std::net::Shutdown::Both);
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A namespace and the process that stands for it.
struct Held {
    pid: u32,
    name: String,
    /// Readable when the process has ended. Without it that is seen at the next look.
    end: Option<OwnedFd>,
}

struct Search {
    held: BTreeMap<u32, Held>,
    /// Seen once, and when it was not there: `ip netns add` is in its namespace for a moment before that has its name.
    candidates: BTreeMap<u32, BootNs>,
    looked: BootNs,
    most: RawFd,
    asked: UnixStream,
    out: Sender<Found>,
}

/// A second look follows after so long.
const CONFIRM_MS: i64 = 20;
/// Interval of periodic scans; longer where a scan takes long: scans use at most 0.5 % of a CPU.
const PERIOD_MS: i64 = 1000;
const SHARE: i64 = 200;
/// Looks that are asked for take one CPU in 20 at most.
const ASKED_SHARE: i64 = 20;
/// So many processes' ends are waited for; those of more are seen at the next look.
const MOST_ENDS: usize = 64;

impl Search {
    fn run(mut self) {
        capability::keep(&[Cap::SysPtrace]);
        let (mut next, mut not_before) = (boot_now(), boot_now());
        loop {
            let entry = |fd: RawFd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
            let mut polled = vec![entry(self.asked.as_raw_fd())];
            polled.extend(self.held.values().filter_map(|h| h.end.as_ref()).map(|e| entry(e.as_raw_fd())));
            let wait_ms = (next.0 - boot_now().0).max(0).div_euclid(1_000_000) + 1;
            // SAFETY: the entries are ours and their number is given.
            let r = unsafe {
                libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, wait_ms.min(60_000) as i32)
            };
            if r < 0 && io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
                return;
            }
            if r > 0 {
                if polled[0].revents & (libc::POLLHUP | libc::POLLERR) != 0 {
                    return;
                }
                // Whoever asks again and again gets a look now and then.
                let rest_ns = not_before.0 - boot_now().0;
                if rest_ns > 0 {
                    std::thread::sleep(std::time::Duration::from_nanos(rest_ns as u64));
                }
                let mut asked = [0u8; 64];
                while matches!(io::Read::read(&mut &self.asked, &mut asked), Ok(n) if n > 0) {}
            } else if boot_now() < next {
                continue;
            }
            let begun = boot_now();
            self.look();
            let took_ns = boot_now().0 - begun.0;
            let period_ns = if self.candidates.is_empty() {
                (PERIOD_MS * 1_000_000).max(took_ns * SHARE)
            } else {
                (CONFIRM_MS * 1_000_000).max(took_ns * ASKED_SHARE)
            };
            next = BootNs(boot_now().0 + period_ns);
            not_before = BootNs(boot_now().0 + (took_ns * ASKED_SHARE).min(period_ns));
        }
    }

    fn look(&mut self) {
        let before = boot_now();
        let there = nameless();
        let at = boot_now();
        let after = self.looked;
        let change = |name: &str, inum, came, after| Change { name: name.into(), inum, came, after, at };
        // What went, and what has another process or another name.
        let named: BTreeMap<u32, String> =
            named_netns().into_iter().filter_map(|n| Some((n.inum, n.name?))).collect();
        let mut held = std::mem::take(&mut self.held);
        held.retain(|inum, h| {
            let Some(pids) = there.get(inum) else {
                let _ = self.out.send(match named.get(inum) {
                    Some(name) => Found::Renamed { inum: *inum, name: name.clone() },
                    None => Found::Gone(change(&h.name, *inum, false, after)),
                });
                return false;
            };
            if !pids.contains(&h.pid) {
                // Another holds it now; it is called what it was called.
                (h.pid, h.end) = (oldest(pids).unwrap_or(h.pid), None);
            } else if labelled(&h.name) == Some(h.pid) {
                let name = label(h.pid);
                if name != h.name {
                    h.name.clone_from(&name);
                    let _ = self.out.send(Found::Renamed { inum: *inum, name });
                }
            }
            true
        });
        self.held = held;
        let waiting: Vec<(u32, u32)> =
            self.held.iter().filter(|(_, h)| h.end.is_none()).map(|(i, h)| (*i, h.pid)).collect();
        for (inum, pid) in waiting {
            let end = self.end_of(pid);
            if let Some(h) = self.held.get_mut(&inum) {
                h.end = end;
            }
        }
        let seen = std::mem::take(&mut self.candidates);
        for (inum, pids) in &there {
            if self.held.contains_key(inum) {
                continue;
            }
            let since = seen.get(inum).copied();
            match (since, oldest(pids)) {
                (Some(since), Some(pid)) => self.came(*inum, pid, since, at),
                _ => drop(self.candidates.insert(*inum, since.unwrap_or(after))),
            }
        }
        self.looked = before;
    }

    fn came(&mut self, inum: u32, pid: u32, after: BootNs, at: BootNs) {
        let name = label(pid);
        let file = File::open(path_of(pid));
        if file.as_ref().is_ok_and(|f| f.metadata().map_or(0, |m| m.ino() as u32) != inum) {
            // The process moved on; the next look says who is left.
            return;
        }
        let found = match file {
            Ok(file) if file.as_raw_fd() < self.most => {
                let change = Change { name: name.clone(), inum, came: true, after, at };
                Found::Came(change, file)
            }
            // It ended.
            Err(e) if e.kind() == io::ErrorKind::NotFound => return,
            _ => Found::Unread { name: name.clone(), after },
        };
        let _ = self.out.send(found);
        let end = self.end_of(pid);
        self.held.insert(inum, Held { pid, name, end });
    }

    fn end_of(&self, pid: u32) -> Option<OwnedFd> {
        if self.held.values().filter(|h| h.end.is_some()).count() >= MOST_ENDS {
            return None;
        }
        // SAFETY: plain system call.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid as libc::pid_t, 0) };
        let fd = RawFd::try_from(fd).ok().filter(|fd| *fd >= 0)?;
        // SAFETY: the descriptor is new and has no other owner.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        (fd.as_raw_fd() < self.most).then_some(fd)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_say_their_process_and_names_of_people_are_none() {
        let own = std::process::id();
        assert_eq!(labelled(&label(own)), Some(own));
        for (name, pid) in [
            ("pid 12 (a b) c)", Some(12)),
            ("pid 12", None),
            ("pid x (y)", None),
            ("blue", None),
            ("pid 7 (x) or b", None),
        ] {
            assert_eq!(labelled(name), pid, "{name}");
        }
        assert!(started(own) > 0 && started(own) < u64::MAX);
    }
}
