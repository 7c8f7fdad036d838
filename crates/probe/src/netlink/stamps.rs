//! Which stamp of the kernel's belongs to which message that was read.
//!
//! The kernel writes a stamp before any socket has the message, so when a message has been read its stamp is there or there is none
//! (an interrupt cut in, the ring was full). They are the same bytes in the same order. Of messages that are alike the first has the
//! first stamp, but only where there are as many stamps: with one less it is not known whose is missing, and all of them keep their
//! bounds. Rejected: matching by namespace, index and order of messages, which fails in a burst.

use crate::announce::Announcements;
use crate::wire;
use kpat_model::{BootNs, Context};
use std::collections::{HashMap, HashSet, VecDeque};

/// Moment, place and task of an announcement, as the kernel saw them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stamp {
    pub at: BootNs,
    pub cpu: u16,
    pub ctx: Context,
    /// Thread id.
    pub pid: u32,
    pub tgid: u32,
    pub comm: String,
}

const HEAD: usize = 128;

/// What distinguishes messages: length and first bytes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Bytes {
    len: u32,
    head: [u8; HEAD],
}

impl Bytes {
    fn new(len: usize, from: &[u8]) -> Bytes {
        let n = len.min(HEAD).min(from.len());
        let mut head = [0; HEAD];
        head[..n].copy_from_slice(&from[..n]);
        Bytes { len: len as u32, head }
    }

    pub(super) fn of(message: &[u8]) -> Bytes {
        Bytes::new(message.len(), message)
    }
}

/// Stamps of one namespace whose messages have not been read.
pub(super) struct Pending {
    /// Whatever was announced before has no message here.
    subscribed: BootNs,
    stamps: VecDeque<(Bytes, Stamp)>,
}

/// More than what a socket's buffer holds of messages is not waited for.
const MOST: usize = 1 << 15;
/// A message that has not come so long after its stamp, with nothing to read, will not come.
const LATE_NS: i64 = 1_000_000_000;

impl Pending {
    fn new(subscribed: BootNs) -> Pending {
        Pending { subscribed, stamps: VecDeque::new() }
    }

    /// Takes the stamps of these messages, which were read in this order at these moments.
    fn pair(&mut self, messages: &[(Bytes, BootNs)]) -> Vec<Option<Stamp>> {
        let mut alike: HashMap<&Bytes, (Vec<usize>, Vec<usize>)> = HashMap::new();
        for (n, (bytes, _)) in messages.iter().enumerate() {
            alike.entry(bytes).or_default().0.push(n);
        }
        for (n, (bytes, _)) in self.stamps.iter().enumerate() {
            if let Some((_, stamps)) = alike.get_mut(bytes) {
                stamps.push(n);
            }
        }
        let mut out = vec![None; messages.len()];
        let mut taken = vec![false; self.stamps.len()];
        for (read, stamps) in alike.into_values() {
            let before = |(m, s): (&usize, &usize)| self.stamps[*s].1.at <= messages[*m].1;
            let sure = stamps.len() >= read.len() && read.iter().zip(&stamps).all(before);
            for (m, s) in read.iter().zip(&stamps) {
                taken[*s] = true;
                out[*m] = sure.then(|| self.stamps[*s].1.clone());
            }
        }
        let mut taken = taken.into_iter();
        self.stamps.retain(|_| !taken.next().unwrap_or_default());
        out
    }
}

/// So many namespaces that are not watched are remembered.
const MOST_STRANGERS: usize = 4096;

/// All namespaces' stamps.
pub(super) struct Stamps {
    announcements: Announcements,
    pending: HashMap<u32, Pending>,
    /// Namespaces of which there were stamps and in which no socket is, and whether one of them is new.
    strangers: HashSet<u32>,
    stranger: bool,
    lost: u64,
}

impl Stamps {
    pub(super) fn new(announcements: Announcements) -> Stamps {
        Stamps { announcements, pending: HashMap::new(), strangers: HashSet::new(), stranger: false, lost: 0 }
    }

    /// A socket in this namespace has all that is announced from now on.
    pub(super) fn subscribed(&mut self, netns: u32, at: BootNs) {
        self.strangers.remove(&netns);
        self.pending.insert(netns, Pending::new(at));
    }

    pub(super) fn left(&mut self, netns: u32) {
        self.pending.remove(&netns);
    }

    /// Empties the ring. Returns how many stamps were lost since the last time: it is not known whose, so none of the pending ones is used.
    pub(super) fn arrive(&mut self) -> u64 {
        for a in self.announcements.take() {
            let at = BootNs(a.ts as i64);
            let pending = self.pending.get_mut(&a.netns);
            if pending.is_none() {
                if self.strangers.len() >= MOST_STRANGERS {
                    self.strangers.clear();
                }
                self.stranger |= self.strangers.insert(a.netns);
            }
            if let Some(p) = pending.filter(|p| p.subscribed <= at) {
                p.stamps.push_back((Bytes::new(a.len as usize, &a.message), stamp(&a)));
            }
        }
        let lost = self.announcements.lost();
        let mut more = lost - self.lost;
        self.lost = lost;
        for p in self.pending.values_mut() {
            if p.stamps.len() > MOST || more > 0 {
                more += p.stamps.len() as u64;
                p.stamps.clear();
            }
        }
        more
    }

    /// Has one announced something since the last time that never had before?
    pub(super) fn take_strangers(&mut self) -> bool {
        std::mem::take(&mut self.stranger)
    }

    /// The stamp of each of these messages.
    pub(super) fn of(&mut self, netns: u32, messages: &[(Bytes, BootNs)]) -> Vec<Option<Stamp>> {
        match self.pending.get_mut(&netns) {
            Some(p) => p.pair(messages),
            None => vec![None; messages.len()],
        }
    }

    /// Messages were lost: of what waits some have none.
    pub(super) fn doubt(&mut self, netns: u32) {
        if let Some(p) = self.pending.get_mut(&netns) {
            p.stamps.clear();
        }
    }

    /// Nothing was to be read at that moment.
    pub(super) fn caught_up(&mut self, netns: u32, at: BootNs) {
        if let Some(p) = self.pending.get_mut(&netns) {
            while p.stamps.front().is_some_and(|(_, s)| s.at.0 < at.0 - LATE_NS) {
                p.stamps.pop_front();
            }
        }
    }
}

fn stamp(a: &wire::Announcement) -> Stamp {
    Stamp {
        at: BootNs(a.ts as i64),
        cpu: a.cpu as u16,
        ctx: Context::from_u8(a.ctx),
        pid: a.pid,
        tgid: a.tgid,
        comm: super::messages::string(&a.comm),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamp(at: i64) -> Stamp {
        Stamp { at: BootNs(at), cpu: 1, ctx: Context::Task, pid: 7, tgid: 7, comm: "ip".into() }
    }

    /// Stamps by moment and content, messages by content and moment of reading; expected: the time that is logged for each message.
    fn check(stamps: &[(i64, &str)], messages: &[(&str, i64)], expected: &[i64], left: usize) {
        let mut p = Pending::new(BootNs(0));
        p.stamps = stamps.iter().map(|(at, text)| (Bytes::of(text.as_bytes()), stamp(*at))).collect();
        let messages: Vec<(Bytes, BootNs)> =
            messages.iter().map(|(text, at)| (Bytes::of(text.as_bytes()), BootNs(*at))).collect();
        let logged: Vec<i64> = p.pair(&messages).into_iter().map(|s| s.map_or(0, |s| s.at.0)).collect();
        assert_eq!((logged.as_slice(), p.stamps.len()), (expected, left), "{stamps:?} {messages:?}");
    }

    #[test]
    fn each_message_has_the_stamp_of_its_own_bytes() {
        check(&[(1, "a"), (2, "b"), (3, "c")], &[("a", 9), ("c", 9)], &[1, 3], 1);
        // two CPUs stamped in another order than they delivered in
        check(&[(1, "a"), (2, "b")], &[("b", 9), ("a", 9)], &[2, 1], 0);
        check(&[(1, "a")], &[("b", 9), ("a", 9)], &[0, 1], 0);
    }

    #[test]
    fn of_those_that_are_alike_the_order_decides_and_a_missing_stamp_leaves_all_of_them_without() {
        check(&[(1, "a"), (2, "a")], &[("a", 9), ("a", 9)], &[1, 2], 0);
        check(&[(2, "a")], &[("a", 9), ("a", 9)], &[0, 0], 0);
        // the second is still on its way
        check(&[(1, "a"), (2, "a")], &[("a", 9)], &[1], 1);
        // the stamp is younger than the reading: it is another message's
        check(&[(5, "a"), (6, "a")], &[("a", 4)], &[0], 1);
    }

    #[test]
    fn what_lies_behind_the_first_bytes_counts_by_its_length() {
        let long = "x".repeat(HEAD);
        assert_eq!(Bytes::of((long.clone() + "y").as_bytes()), Bytes::of((long.clone() + "z").as_bytes()));
        assert_ne!(Bytes::of((long.clone() + "y").as_bytes()), Bytes::of(long.as_bytes()));
        // the kernel's buffer is not cleared behind a short message
        assert_eq!(Bytes::new(1, b"ab"), Bytes::of(b"a"));
    }
}
