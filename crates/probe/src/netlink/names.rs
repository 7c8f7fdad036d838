//! Namespaces that get a name under /run/netns, or lose it.

use super::{NAMED, is_namespace};
use crate::sys::boot_now;
use kpat_model::{BootNs, Context, Event, EventKind, PacketId, Timed};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Watches the folder; without inotify, or before the folder is there, it is listed at every look.
pub(super) struct Names {
    inotify: Option<OwnedFd>,
    watching: bool,
    known: BTreeMap<String, u32>,
    /// Names that were made and whose namespaces are not there yet, and a moment before that.
    waiting: BTreeMap<String, BootNs>,
    looked: BootNs,
}

impl Names {
    /// What is there now is no change.
    pub(super) fn start() -> Names {
        // SAFETY: plain system call.
        let fd = unsafe { libc::inotify_init1(libc::IN_NONBLOCK | libc::IN_CLOEXEC) };
        // SAFETY: the descriptor is new and has no other owner.
        let inotify = (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) });
        let mut names = Names {
            inotify,
            watching: false,
            known: BTreeMap::new(),
            waiting: BTreeMap::new(),
            looked: boot_now(),
        };
        names.watch();
        names.known = listed().unwrap_or_default().0;
        names
    }

    pub(super) fn as_raw_fd(&self) -> RawFd {
        self.inotify.as_ref().map_or(-1, AsRawFd::as_raw_fd)
    }

    fn watch(&mut self) {
        const WHAT: u32 = libc::IN_CREATE | libc::IN_DELETE | libc::IN_MOVE;
        let path = c"/run/netns";
        if let Some(fd) = &self.inotify {
            // SAFETY: the path ends with a zero.
            self.watching = unsafe { libc::inotify_add_watch(fd.as_raw_fd(), path.as_ptr(), WHAT) } >= 0;
        }
    }

    /// Names that were removed since the last look. The rest is seen by listing.
    fn read(&self, fd: RawFd) -> Vec<String> {
        const HEAD: usize = 16;
        let mut gone = Vec::new();
        let mut buffer = [0u8; 4096];
        loop {
            // SAFETY: the buffer is ours and its length is given.
            let n = unsafe { libc::read(fd, buffer.as_mut_ptr().cast(), buffer.len()) };
            let Some(mut rest) = usize::try_from(n).ok().filter(|n| *n > 0).map(|n| &buffer[..n]) else {
                return gone;
            };
            // struct inotify_event: watch, mask, cookie, length of the name, name with zeros behind.
            let word = |b: &[u8], at: usize| {
                b.get(at..at + 4).map_or(0, |w| u32::from_ne_bytes([w[0], w[1], w[2], w[3]]))
            };
            while rest.len() >= HEAD {
                let (mask, len) = (word(rest, 4), word(rest, 12) as usize);
                let name = rest.get(HEAD..HEAD + len).unwrap_or_default();
                if mask & (libc::IN_DELETE | libc::IN_MOVED_FROM) != 0 {
                    gone.push(super::messages::string(name));
                }
                rest = rest.get(HEAD + len..).unwrap_or_default();
            }
        }
    }

    /// What changed since the last look, in its order: what went before what came. `ready`: the folder changed; `at`: a moment at
    /// which it was found unchanged, if it is not.
    pub(super) fn look(&mut self, ready: bool, at: BootNs) -> Vec<Change> {
        let Some(fd) = self.inotify.as_ref().map(AsRawFd::as_raw_fd) else { return Vec::new() };
        if !self.watching {
            self.watch();
        }
        if !ready && self.waiting.is_empty() && self.watching {
            self.looked = at;
            return Vec::new();
        }
        let gone = self.read(fd);
        let before = boot_now();
        let Ok((now, waiting)) = listed() else { return Vec::new() };
        let (after, at) = (self.looked, boot_now());
        let mut changes = Vec::new();
        let since = |name: &String| self.waiting.get(name).copied().unwrap_or(after);
        let mut say = |name: &String, inum: u32, came: bool| {
            let after = if came { since(name) } else { after };
            changes.push(Change { name: name.clone(), inum, came, after, at });
        };
        for name in gone.iter().filter(|n| !self.known.contains_key(*n) && !now.contains_key(*n)) {
            // It came and went between two looks.
            say(name, 0, true);
            say(name, 0, false);
        }
        for (name, inum) in self.known.iter().filter(|(name, inum)| now.get(*name) != Some(inum)) {
            say(name, *inum, false);
        }
        for (name, inum) in now.iter().filter(|(name, inum)| self.known.get(*name) != Some(inum)) {
            say(name, *inum, true);
        }
        let waiting = waiting.into_iter().map(|name| (name.clone(), since(&name))).collect();
        (self.known, self.waiting, self.looked) = (now, waiting, before);
        changes
    }

    /// Some name stands for it.
    pub(super) fn has(&self, inum: u32) -> bool {
        self.known.values().any(|n| *n == inum)
    }
}

/// A namespace got a name, or lost it.
pub(super) struct Change {
    pub(super) name: String,
    /// Inode number; 0: it went before it could be read.
    pub(super) inum: u32,
    pub(super) came: bool,
    /// It happened after the one and not after the other.
    pub(super) after: BootNs,
    pub(super) at: BootNs,
}

impl Change {
    pub(super) fn event(&self) -> Event {
        let (kind, ctx, packet) = (EventKind::Namespace, Context::Unknown, PacketId::NONE);
        let (a, b, text) = (self.came.into(), self.inum.into(), self.name.clone());
        let timed = Timed::Read { within_ns: (self.at.0 - self.after.0).max(0) as u64 };
        Event { kind, ctx, pid: 0, at: self.at, timed, packet, netns: self.inum, a, b, text }
    }
}

/// Named namespaces, and names whose namespaces have yet to come.
fn listed() -> io::Result<(BTreeMap<String, u32>, Vec<String>)> {
    let mut found = BTreeMap::new();
    let mut waiting = Vec::new();
    let folder = match std::fs::read_dir(Path::new(NAMED)) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok((found, waiting)),
        folder => folder?,
    };
    for entry in folder.flatten() {
        let Ok(name) = entry.file_name().into_string() else { continue };
        match std::fs::metadata(entry.path()) {
            Ok(m) if is_namespace(&entry.path()) => {
                found.insert(name, m.ino() as u32);
            }
            // A name of which the namespace went without it is left for good: only a young one is waited for.
            Ok(m) if m.modified().is_ok_and(|t| t.elapsed().is_ok_and(|age| age.as_secs() < 2)) => {
                waiting.push(name);
            }
            Ok(_) => {}
            Err(_) => {}
        }
    }
    Ok((found, waiting))
}
