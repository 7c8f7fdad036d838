//! Who of this host took a packet: its protocols, sockets' queues, those who read.

use super::Touch;
use super::live::emptied;
use kpat_model::Context;
use kpat_query::roles::*;

const MAX_READERS: usize = 4;
const NOT_QUEUED: (i64, i64) = (i64::MAX, i64::MIN);

/// Who took it from a socket, first and last.
pub(super) struct Reader {
    /// Thread id; 0: not a task.
    pub(super) pid: u32,
    pub(super) from: i64,
    pub(super) to: i64,
}

pub(super) struct Taken {
    pub(super) local_in_at: i64,
    /// First and last entry with a role that queues to a socket, of TCP and UDP ...
    queued_at: (i64, i64),
    /// ... and of all others: raw ones have copies of what those take.
    other_at: (i64, i64),
    /// The first few.
    pub(super) readers: Vec<Reader>,
}

impl Default for Taken {
    fn default() -> Taken {
        Taken { local_in_at: i64::MIN, queued_at: NOT_QUEUED, other_at: NOT_QUEUED, readers: Vec::new() }
    }
}

impl Taken {
    pub(super) fn renewed(&mut self) -> Taken {
        Taken { readers: emptied(&mut self.readers), ..Taken::default() }
    }

    pub(super) fn play(&mut self, t: &Touch, roles: Roles) {
        if roles.has(LOCAL_IN) {
            self.by_protocol(t.entry);
        }
        if roles.has(SOCK_QUEUE) {
            let at = if roles.has(OTHER_QUEUE) { &mut self.other_at } else { &mut self.queued_at };
            *at = (at.0.min(t.entry), at.1.max(t.entry));
        }
        if roles.has(SOCK_READ) {
            self.read(t);
        }
    }

    pub(super) fn by_protocol(&mut self, at: i64) {
        self.local_in_at = self.local_in_at.max(at);
    }

    fn read(&mut self, t: &Touch) {
        let pid = if t.ctx == Context::Task { t.pid } else { 0 };
        if let Some(r) = self.readers.iter_mut().find(|r| r.pid == pid) {
            (r.from, r.to) = (r.from.min(t.entry), r.to.max(t.entry));
        } else if self.readers.len() < MAX_READERS {
            self.readers.push(Reader { pid, from: t.entry, to: t.entry });
        }
    }

    /// When it was put into a socket's queue, first and last. `protocols`: it is one of TCP's or UDP's, and what other sockets got were copies.
    pub(super) fn queued_at(&self, protocols: bool) -> (i64, i64) {
        let other = if protocols { NOT_QUEUED } else { self.other_at };
        (self.queued_at.0.min(other.0), self.queued_at.1.max(other.1))
    }

    /// A raw socket, or another that is not of TCP or UDP, had it in its queue.
    pub(super) fn by_others(&self) -> bool {
        self.other_at != NOT_QUEUED
    }

    /// The task that took it as its receiver: not a sniffer, who can read it before, or without, its being queued to a
    /// socket of its own. `tapped`: it was shown to sniffers.
    pub(super) fn reader(&self, tapped: bool, sniffers: &[u32]) -> Option<u32> {
        let early = |at: i64| tapped && at < self.queued_at(false).0;
        let fits = |r: &&Reader| r.pid != 0 && !early(r.from) && !sniffers.contains(&r.pid);
        self.readers.iter().find(fits).map(|r| r.pid)
    }
}
