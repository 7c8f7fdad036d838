//! A packet while it is alive: what is remembered of it, each concern by itself ([`Way`], [`Taken`], [`Prints`], [`Fate`], [`Counted`]), and
//! what takes several of them to say.

use super::super::arrivals::Arrival;
use super::super::stamps::Stamp;
use super::Touch;
use super::counted::Counted;
use super::fate::Fate;
use super::prints::{Print, Prints};
use super::taken::{Reader, Taken};
use super::way::Way;
use kpat_model::Context;
use kpat_query::roles::*;

/// See [`super::datagrams`].
#[derive(Clone, Copy, Default)]
pub(crate) struct Fragment {
    /// It was a whole datagram, or no IP at all, in some header before.
    pub whole: bool,
    /// Of the datagram that it is, or was, a fragment of; 0: never was.
    pub key: u64,
    /// What the whole of that has in common with it.
    pub same: u64,
    /// The kernel reported which packet it was cut from.
    pub logged: bool,
}

pub(super) struct Live {
    pub(super) first: i64,
    pub(super) last: i64,
    pub(super) done: Done,
    /// As it was first seen.
    pub(super) arrival: Option<Arrival>,
    pub(super) stamp: Option<Stamp>,
    pub(super) counted: Counted,
    pub(super) way: Way,
    pub(super) taken: Taken,
    pub(super) headers: Prints,
    /// What they showed of fragments so far.
    pub(super) fragment: Fragment,
    pub(super) fate: Fate,
}

/// When something was last done with a packet, before what remained was to free it. A reader on another CPU than that whose driver took it leaves the freeing
/// to that CPU's next softirq (skb_attempt_defer_free in net/core/skbuff.c), which can be whole milliseconds later, and is nothing that the packet waits for.
///
/// What TCP sends is a clone: the sender keeps its own `sk_buff` until the other side has acknowledged the data (`__tcp_transmit_skb` in
/// net/ipv4/tcp_output.c), and a sniffer has one of its own, too, until it reads. Neither is the way of what a device was given.
#[derive(Clone, Copy)]
pub(super) struct Done {
    /// Without what the log says to be freed late ([`Touch::put_off`]).
    in_time: i64,
    /// And without what others than its reader freed when that had read it.
    by_reader: i64,
    /// With both, but without what was done with others of its `sk_buff`s than those that devices were given.
    by_device: i64,
    /// Tags of the latest of those, 0 where there is none.
    given: [u16; GIVEN],
    /// When the last was given; `i64::MAX`: it is with no device.
    given_at: i64,
    /// When the first of those, or one that nothing tells from them, had let go of its data after that.
    let_go_at: i64,
}

const GIVEN: usize = 4;

impl Done {
    fn new(at: i64) -> Done {
        Done {
            in_time: at,
            by_reader: at,
            by_device: at,
            given: [0; GIVEN],
            given_at: i64::MAX,
            let_go_at: i64::MAX,
        }
    }

    pub(super) fn goes_on(&mut self, at: i64) {
        self.in_time = self.in_time.max(at);
        self.by_reader = self.by_reader.max(at);
        self.by_device = self.by_device.max(at);
    }

    /// A device, or the queue above it, was given this `sk_buff`: what was done until now was for that.
    fn give(&mut self, tag: u16, at: i64) {
        if at > self.let_go_at {
            self.let_go_at = i64::MAX;
        }
        self.given_at = if self.given_at == i64::MAX { at } else { self.given_at.max(at) };
        if tag != 0 && !self.given.contains(&tag) {
            self.given.rotate_right(1);
            self.given[0] = tag;
        }
    }

    /// It was not given to a device when that began, or was received since, or that `sk_buff` is one that a device was given. Where nothing says which one it
    /// is, it is the first that lets go: devices are quicker than acknowledgements.
    fn is_with_device(&mut self, t: &Touch, roles: Roles) -> bool {
        if t.entry <= self.given_at {
            return true;
        }
        let unknown = t.skb_tag == 0 || self.given == [0; GIVEN];
        let with_device = match unknown {
            true => t.entry <= self.let_go_at || !roles.has(FREE),
            false => self.given.contains(&t.skb_tag),
        };
        if with_device && roles.has(RELEASED) {
            self.let_go_at = self.let_go_at.min(t.end);
        }
        with_device
    }

    /// `taken`: as it was before.
    pub(super) fn touch(&mut self, t: &Touch, roles: Roles, taken: &Taken) {
        let only_frees = roles.has(FREE) && !roles.has(SOCK_READ);
        if roles.has(RX) && t.entry > self.given_at {
            (self.given, self.given_at) = ([0; GIVEN], i64::MAX);
        } else if roles.has(XMIT | XMIT_QUEUE) {
            self.give(t.skb_tag, t.entry);
        }
        if self.is_with_device(t, roles) {
            self.by_device = self.by_device.max(t.end);
        }
        if t.put_off {
            return;
        }
        self.in_time = self.in_time.max(t.end);
        let reader = |pid: u32| t.ctx == Context::Task && t.pid == pid;
        let read = |r: &Reader| r.pid != 0 && r.to <= t.entry;
        if !only_frees || !taken.readers.iter().any(read) || taken.readers.iter().any(|r| reader(r.pid)) {
            self.by_reader = self.by_reader.max(t.end);
        }
    }
}

/// The memory of one that is over.
pub(super) fn emptied<T>(of: &mut Vec<T>) -> Vec<T> {
    let mut all = std::mem::take(of);
    all.clear();
    all
}

impl Live {
    pub(super) fn new(at: i64) -> Live {
        Live {
            first: at,
            last: at,
            done: Done::new(at),
            arrival: None,
            stamp: None,
            counted: Counted::default(),
            way: Way::default(),
            taken: Taken::default(),
            headers: Prints::default(),
            fragment: Fragment::default(),
            fate: Fate::default(),
        }
    }

    /// Another packet, in the memory of one that is over.
    pub(super) fn renewed(mut self: Box<Self>, at: i64) -> Box<Live> {
        *self = Live {
            counted: self.counted.renewed(),
            way: self.way.renewed(),
            taken: self.taken.renewed(),
            headers: self.headers.renewed(),
            fate: self.fate.renewed(),
            ..Live::new(at)
        };
        self
    }

    /// What a function's roles tell.
    pub(super) fn play(&mut self, t: &Touch, roles: Roles) {
        self.headers.turn_to(t.point_tag(), t.entry);
        if roles.0 != 0 {
            self.way.play(t, roles);
            self.taken.play(t, roles);
            self.fate.play(t, roles);
        }
    }

    /// When its path ended. `reader`: somebody took it from a socket, who is no sniffer.
    pub(super) fn path_end(&self, delivered: bool, reader: bool) -> i64 {
        match (delivered, reader) {
            (true, true) => self.done.by_reader,
            (true, false) => self.done.in_time,
            (false, _) => self.done.by_device,
        }
    }

    /// The device that it was last given to. Within the call the other end of a virtual link may already have it.
    pub(super) fn out_by(&self) -> Option<&Print> {
        let (from, to) = self.way.sent()?;
        if let Some((_, there)) = self.taken_copy() {
            return self.headers.before(there);
        }
        let until = if self.way.hopped_at().is_some() { from } else { to };
        let with_device = || self.headers.all.iter().filter(|p| p.ifindex != 0);
        with_device().rev().find(|p| p.at <= until).or_else(|| with_device().find(|p| p.at <= to))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::touch;
    use super::*;

    /// Who touches it (0: a softirq), roles, when, and whether the log says that it was put off.
    fn ends(steps: &[(u32, u32, i64, bool)]) -> (i64, i64, i64) {
        let mut p = Live::new(0);
        for &(pid, roles, at, put_off) in steps {
            let ctx = if pid == 0 { Context::Softirq } else { Context::Task };
            let t = Touch { pid, put_off, ..touch(at, at, ctx) };
            p.done.touch(&t, Roles(roles), &p.taken);
            p.play(&t, Roles(roles));
            p.last = p.last.max(at);
        }
        (p.path_end(true, true), p.path_end(true, false), p.path_end(false, true))
    }

    #[test]
    fn a_path_ends_with_the_reader_and_not_with_the_freeing_that_was_put_off() {
        // read and freed by its reader
        assert_eq!(
            ends(&[(0, RX, 10, false), (7, SOCK_READ, 20, false), (7, FREE, 30, false)]),
            (30, 30, 30)
        );
        // freed by the next softirq of the CPU that received it, and the sender's reference with its acknowledgement
        let later =
            [(0, RX, 10, false), (7, SOCK_READ, 20, false), (0, FREE, 900, false), (0, FREE, 1_000, false)];
        assert_eq!(ends(&later), (20, 1_000, 1_000));
        // read in two parts, by two threads
        let parts = [(7, SOCK_READ, 20, false), (8, SOCK_READ, 40, false), (0, FREE, 900, false)];
        assert_eq!(ends(&parts), (40, 900, 900));
        // what frees an acknowledgement is what works on it; a sniffer read a copy
        assert_eq!(ends(&[(0, RX, 10, false), (9, SOCK_READ, 12, false), (0, FREE, 15, false)]).1, 15);
        // nobody is seen to read it, and the log says that it was freed late
        assert_eq!(ends(&[(0, RX, 10, false), (0, FREE, 900, true)]), (10, 10, 900));
        // it goes on behind a copy's end
        assert_eq!(
            ends(&[(7, SOCK_READ, 20, false), (0, FREE, 25, false), (0, RX, 30, false)]),
            (30, 30, 30)
        );
    }

    /// Which `sk_buff`, roles, entry and return: when the path of what a device was given ended.
    fn given(steps: &[(u16, u32, i64, i64)]) -> i64 {
        let mut p = Live::new(0);
        for &(skb_tag, roles, entry, end) in steps {
            let t = Touch { skb_tag, ..touch(entry, end, Context::Softirq) };
            p.done.touch(&t, Roles(roles), &p.taken);
            p.last = p.last.max(end);
        }
        p.path_end(false, false)
    }

    #[test]
    fn the_path_of_what_was_sent_ends_with_the_device_and_not_with_the_acknowledgement() {
        // the driver, the caller that had the sender's own, the driver's freeing, the acknowledgement
        let sent = [(2, XMIT, 10, 20), (1, LOCAL_OUT, 5, 25), (2, FREE, 60, 61), (1, FREE, 900, 901)];
        assert_eq!(given(&sent), 61);
        // acknowledged before the driver freed it
        assert_eq!(given(&[(2, XMIT, 10, 20), (1, FREE, 40, 41), (2, FREE, 60, 61)]), 61);
        // sent a second time
        let again = [(3, XMIT, 400, 410), (1, LOCAL_OUT, 390, 420), (3, FREE, 450, 451)];
        assert_eq!(given(&[&sent[..3], &again, &sent[3..]].concat()), 451);
        // nothing says which is freed: it is raised in an interrupt, freed in a softirq, and the other with the acknowledgement
        let unknown = [
            (0, XMIT, 10, 20),
            (0, LOCAL_OUT, 5, 25),
            (0, FREE, 50, 51),
            (0, FREE | RELEASED, 61, 62),
            (0, FREE, 60, 63),
            (0, FREE | RELEASED, 901, 902),
            (0, FREE, 900, 903),
        ];
        assert_eq!(given(&unknown), 63);
        // the callers do not say which
        let [xmit, calls @ ..] = unknown;
        let some = calls.map(|(_, roles, entry, end)| match (roles == FREE | RELEASED, end < 100) {
            (false, _) => (0, roles, entry, end),
            (true, device) => (if device { 2 } else { 1 }, roles, entry, end),
        });
        assert_eq!(given(&[&[(2, XMIT, 10, 20), xmit], &some[..]].concat()), 63);
        // what gave it to the device returns when another CPU has freed it
        let late = (0, XMIT_QUEUE, 8, 70);
        assert_eq!(given(&[&unknown[..5], &[late], &unknown[5..]].concat()), 70);
        // forwarded: what received it returns last
        assert_eq!(given(&[(2, XMIT, 10, 20), (2, RX, 5, 30), (7, FREE, 40, 41), (2, FREE, 50, 51)]), 51);
        // two copies to two devices, freed in their order; a third, to the host itself, in between
        let copies =
            [(1, XMIT, 10, 11), (2, XMIT, 12, 13), (3, FREE, 20, 21), (2, FREE, 30, 31), (1, FREE, 40, 41)];
        assert_eq!(given(&copies), 41);
        // over a virtual link
        assert_eq!(given(&[(2, XMIT, 10, 20), (2, RX, 30, 31), (5, FREE, 40, 41)]), 41);
    }
}
