//! Which namespace has which number: the kernel gives the number of one that ended to one that comes, mostly to the very next.
//!
//! A namespace that is watched keeps its number until the monitor leaves it, which is when its end is reported. So a number stands for
//! another namespace from that end on, or from a later moment at which the new one was not there yet.

use kpat_model::{BootNs, Event};
use std::collections::BTreeMap;

/// The kernel takes a namespace apart after its end; its timers may still send. What is not newer than this is its own.
const LATE_NS: i64 = 50_000_000;

/// What a packet's namespace is to the recorder.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Of {
    /// The one that has the number, or the end of the one that had it.
    Known,
    /// One that nobody has announced: of this number from now on.
    Unannounced,
}

#[derive(Default)]
pub(super) struct Numbers {
    /// Numbers whose namespace ended, and when.
    ended: BTreeMap<u32, BootNs>,
    /// Since when a number is that of the namespace that has it; one that is not here has had one namespace only.
    since: BTreeMap<u32, BootNs>,
    /// Of those that nobody has announced yet: their first packet.
    unannounced: BTreeMap<u32, BootNs>,
}

impl Numbers {
    /// A namespace came, which was not there at `after`, or ended. *Clock*: CLOCK_BOOTTIME.
    pub(super) fn changed(&mut self, e: &Event, after: BootNs) {
        if !e.is_namespaces_own() {
            return;
        }
        if e.a == 0 {
            self.ended.insert(e.netns, e.at);
            self.unannounced.remove(&e.netns);
            return;
        }
        let ended = self.ended.remove(&e.netns);
        let first = self.unannounced.remove(&e.netns);
        match (ended, first) {
            (Some(ended), _) => drop(self.since.insert(e.netns, BootNs(after.0.max(ended.0 + 1)))),
            // At `after` that one had gone.
            (None, Some(first)) if first < after => drop(self.since.insert(e.netns, after)),
            _ => {}
        }
    }

    /// The first packet of a number that nobody is known to have, at `at`: of a namespace that is announced soon, or came and went
    /// before anyone looked.
    pub(super) fn first(&mut self, netns: u32, at: BootNs) {
        if !self.ended.contains_key(&netns) {
            self.unannounced.entry(netns).or_insert(at);
        }
    }

    /// A packet of this namespace, at `at`.
    pub(super) fn used(&mut self, netns: u32, at: BootNs) -> Of {
        match self.ended.get(&netns).copied() {
            Some(ended) if at.0 > ended.0 + LATE_NS => {
                self.ended.remove(&netns);
                self.since.insert(netns, BootNs(ended.0 + LATE_NS));
                self.unannounced.insert(netns, at);
                Of::Unannounced
            }
            _ => Of::Known,
        }
    }

    /// The number's namespace ended, and no other has come.
    pub(super) fn has_ended(&self, netns: u32) -> bool {
        self.ended.contains_key(&netns)
    }

    /// Since when the number is that of the namespace that has it, or had it last; `None`: there was no other.
    pub(super) fn since(&self, netns: u32) -> Option<BootNs> {
        self.since.get(&netns).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kpat_model::{Context, EventKind, PacketId, Timed};

    const N: u32 = 7;

    fn event(came: bool, at: i64) -> Event {
        let (kind, ctx, packet) = (EventKind::Namespace, Context::Unknown, PacketId::NONE);
        let (timed, at, text) = (Timed::Read { within_ns: 0 }, BootNs(at), String::new());
        Event { kind, ctx, pid: 0, at, timed, packet, netns: N, a: came.into(), b: N.into(), text }
    }

    #[test]
    fn a_number_is_anothers_from_the_end_of_the_one_before() {
        let mut n = Numbers::default();
        n.changed(&event(true, 100), BootNs(90));
        assert_eq!((n.since(N), n.has_ended(N)), (None, false));
        n.changed(&event(false, 500), BootNs(400));
        assert_eq!((n.since(N), n.has_ended(N)), (None, true));
        // Seen at 900, not there at 700; then one that was seen as the one before ended.
        n.changed(&event(true, 900), BootNs(700));
        assert_eq!((n.since(N), n.has_ended(N)), (Some(BootNs(700)), false));
        n.changed(&event(false, 1000), BootNs(950));
        n.changed(&event(true, 1100), BootNs(950));
        assert_eq!(n.since(N), Some(BootNs(1001)));
    }

    #[test]
    fn a_peer_that_ends_is_not_the_end() {
        let mut n = Numbers::default();
        n.changed(&event(true, 100), BootNs(90));
        n.changed(&Event { b: 0, text: "link-netnsid 1".into(), ..event(false, 500) }, BootNs(400));
        assert_eq!((n.since(N), n.has_ended(N)), (None, false));
    }

    #[test]
    fn one_that_was_never_announced_has_the_number_too() {
        let end = 1_000_000;
        let ended = || {
            let mut n = Numbers::default();
            n.changed(&event(false, end), BootNs(0));
            assert_eq!(n.used(N, BootNs(end + LATE_NS)), Of::Known);
            assert_eq!(n.used(N, BootNs(end + LATE_NS + 5)), Of::Unannounced);
            assert_eq!(n.used(N, BootNs(end + LATE_NS + 6)), Of::Known);
            assert_eq!((n.since(N), n.has_ended(N)), (Some(BootNs(end + LATE_NS)), false));
            n
        };
        // It is the one that is found then.
        let mut n = ended();
        n.changed(&event(true, end + LATE_NS + 100), BootNs(end + LATE_NS + 1));
        assert_eq!(n.since(N), Some(BootNs(end + LATE_NS)));
        // It had gone before the next came.
        let mut n = ended();
        n.changed(&event(true, end + LATE_NS + 100), BootNs(end + LATE_NS + 50));
        assert_eq!(n.since(N), Some(BootNs(end + LATE_NS + 50)));
    }

    #[test]
    fn the_first_that_had_a_number_may_be_one_that_nobody_announced() {
        let seen_at = |first: i64| {
            let mut n = Numbers::default();
            n.first(N, BootNs(first));
            n.first(N, BootNs(first + 1));
            n.changed(&event(true, 900), BootNs(700));
            n.since(N)
        };
        assert_eq!(seen_at(600), Some(BootNs(700)));
        assert_eq!(seen_at(800), None);
    }
}
