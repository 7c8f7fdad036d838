//! What became of a packet: a table of cases, of which the first that holds counts.
//!
//! A packet is its header buffer, so whatever happens to any of its copies (for sniffers, further ports and sockets, the
//! retransmission queue) is in one record. The verdict is of the copy that got furthest last: first where that is
//! ([`Place`]), then what happened to it there. What happened before, or elsewhere, happened to another copy.

use super::control::At;
use super::live::Live;
use kpat_model::Context;
use kpat_model::codes::verdict::*;
use kpat_model::functions::{self, Drops};
use kpat_query::roles::*;

/// A receive path runs through at once: what is silent for longer has arrived, or waits for something.
const ARRIVED_NS: i64 = 100_000_000;
/// What did nothing for so long was not under way when the log ended ...
const IDLE_NS: i64 = 1_000_000_000;
/// ... nor in a queue.
const QUEUED_NS: i64 = 10_000_000_000;
/// The kernel waits no longer for the rest of a datagram, and then says that it drops.
const REASSEMBLY_NS: i64 = 30_000_000_000;

/// It did not happen.
pub(super) const NEVER: i64 = i64::MIN;
/// Before all that happened.
const FIRST: i64 = i64::MIN + 1;

/// Where the packet was last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// Made here and never on its way.
    Made,
    /// Given to the queue above a device.
    Queue { since: i64 },
    /// Given to a driver.
    Driver { since: i64 },
    /// Received: of the host, or of the next namespace behind a virtual link.
    Here { since: i64 },
}

/// What a drop's reason says of who dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// The checksum was found wrong, or the data could not be read: it is no good for anybody.
    Checksum,
    /// One socket did not take it.
    Refused,
    /// Shown to a sniffer, which did not take it.
    Sniffer,
    /// The kernel does not say why.
    Unspecified,
    /// Anything else: the packet itself was the reason.
    Packet,
}

impl Reason {
    /// By the name in the log's metadata; `None`: it has none.
    pub(crate) fn of(name: Option<&str>) -> Reason {
        match name {
            Some(n) if n.ends_with("_CSUM") => Reason::Checksum,
            Some("SOCKET_RCVBUFF" | "SOCKET_BACKLOG" | "SOCKET_FILTER" | "PROTO_MEM") => Reason::Refused,
            Some("PACKET_SOCK_ERROR") => Reason::Sniffer,
            Some("NOT_SPECIFIED" | "QUEUE_PURGE" | "SOCKET_CLOSE") | None => Reason::Unspecified,
            Some(_) => Reason::Packet,
        }
    }
}

/// Who dropped, where the function that did tells more than the reason.
pub(crate) fn dropper(place: &str) -> Option<Reason> {
    let function = place.split(['+', '.', ' ']).next().unwrap_or(place);
    match functions::of(function)?.drops? {
        // What shows packets to sniffers drops the sniffer's copy.
        Drops::Sniffer => Some(Reason::Sniffer),
        // Older kernels (6.12) give no reason where the reader finds the checksum wrong. What was read well is consumed.
        Drops::Checksum => Some(Reason::Checksum),
    }
}

/// A copy was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Drop {
    pub at: i64,
    pub code: i32,
    pub reason: Reason,
    pub cpu: u16,
    pub ctx: Context,
    /// What that CPU was at.
    pub within: At,
}

/// What the recording could have seen: what is missing tells something only then.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Knows {
    /// Functions that a packet for this host meets are recorded.
    pub local: bool,
    /// What gives packets to drivers is recorded.
    pub driver: bool,
    /// What puts packets into queues is recorded.
    pub queue: bool,
}

/// A packet's life, as far as the verdict needs it. Times: boot clock, [`NEVER`].
#[derive(Clone, Debug)]
pub(super) struct Evidence {
    pub place: Place,
    pub knows: Knows,
    /// Nothing was lost from its last record on.
    pub complete: bool,
    /// Its last drop that was not of a sniffer's copy.
    pub drop: Option<Drop>,
    /// That drop was within the last driver's function, in the same flow of control.
    pub drop_by_driver: bool,
    /// Given to this host's protocols, put into a socket's queue, read by somebody who is not a sniffer.
    pub local_at: i64,
    pub socket_at: i64,
    pub read_at: i64,
    /// Its fragments were put together.
    pub whole_at: i64,
    /// It went on as another packet, or as several.
    pub transformed: bool,
    /// So within a queueing discipline that put its parts into the queue in its place.
    pub cut_in_queue: bool,
    /// It is a fragment.
    pub fragment: bool,
    /// What was last seen of it is that receive offload took it.
    pub offload: bool,
    /// It came in by a device.
    pub received: bool,
    /// Its way into the queue is not in the log, so neither is where it came from.
    pub unknown_origin: bool,
    /// A copy was freed last, or the last one; the latter, if the log says so.
    pub freed_at: i64,
    pub ended_at: i64,
    /// Where the last one was freed.
    pub ended_on: Option<(u16, Context, At)>,
    /// It was freed within a sniffer's function.
    pub freed_by_sniffer: bool,
    /// Between its last moment and the end of the log.
    pub idle_ns: i64,
}

impl Evidence {
    /// From where it is now on.
    fn since(&self) -> i64 {
        match self.place {
            Place::Made => FIRST,
            Place::Queue { since } | Place::Driver { since } | Place::Here { since } => since,
        }
    }

    /// Received over a link from where it was sent before.
    fn hopped(&self) -> bool {
        matches!(self.place, Place::Here { since } if since != FIRST)
    }

    fn is_here(&self) -> bool {
        matches!(self.place, Place::Here { .. } | Place::Made)
    }

    fn after(&self, at: i64) -> bool {
        at >= self.since()
    }

    /// The last copy that there was is the one that was dropped: it was freed there before anything else went on.
    fn ended_by(&self, d: &Drop) -> bool {
        let Some((cpu, ctx, at)) = self.ended_on else { return false };
        (cpu, ctx) == (d.cpu, d.ctx) && self.ended_at >= d.at && at.other < d.at
    }

    fn drop_where(&self, holds: impl Fn(&Drop) -> bool) -> bool {
        self.drop.as_ref().is_some_and(|d| self.after(d.at) && holds(d))
    }

    fn out(&self) -> i32 {
        if self.received { FORWARDED } else { SENT }
    }

    /// Received, and no record shows what then became of it.
    fn silent(&self) -> bool {
        matches!(self.place, Place::Here { .. })
            && self.drop.is_none_or(|d| !self.after(d.at))
            && !self.transformed
    }
}

/// A case: what holds, its verdict, and whether it holds.
pub(super) type Case = (&'static str, fn(&Evidence) -> i32, fn(&Evidence) -> bool);

/// In this order; the first that holds is the packet's.
pub(super) const CASES: &[Case] = &[
    // Dropped.
    (
        "dropped in the queue above a device: at its end, within, or as it was taken out",
        |_| DROPPED,
        |e| matches!(e.place, Place::Queue { .. }) && e.drop_where(|_| true),
    ),
    (
        "dropped by the driver's function that it was given to; later a copy is freed that is on the wire",
        |_| DROPPED,
        |e| matches!(e.place, Place::Driver { .. }) && e.drop_by_driver && e.drop_where(|_| true),
    ),
    (
        "its checksum was wrong: found on the way, or as it was read",
        |_| DROPPED,
        |e| e.is_here() && e.drop_where(|d| d.reason == Reason::Checksum),
    ),
    (
        "a socket refused it and no other socket's reader had it",
        |_| DROPPED,
        |e| e.is_here() && !e.after(e.read_at) && e.drop_where(|d| d.reason == Reason::Refused),
    ),
    (
        // What a raw socket gets (ping's answers) is a copy, made before the protocol drops its own.
        "it was dropped for what it is, in no socket's queue, and nobody read it after that",
        |_| DROPPED,
        |e| {
            let alone = |d: &Drop| d.reason == Reason::Packet && e.read_at < d.at;
            e.is_here() && !e.after(e.socket_at) && e.drop_where(alone)
        },
    ),
    (
        "it was dropped, and was neither in a socket's queue nor read",
        |_| DROPPED,
        |e| e.is_here() && !e.after(e.socket_at) && !e.after(e.read_at) && e.drop_where(|_| true),
    ),
    (
        "it was dropped unread in a socket's queue: no copy was left",
        |_| DROPPED,
        |e| e.is_here() && !e.after(e.read_at) && e.drop_where(|d| e.ended_by(d)),
    ),
    // Arrived. Fragments may be read one by one later: the datagram is what is delivered then.
    ("put together with other fragments", |_| TRANSFORMED, |e| e.after(e.whole_at)),
    (
        "taken by this host: by its protocols, a socket or a reader",
        |_| DELIVERED,
        |e| e.is_here() && [e.local_at, e.socket_at, e.read_at].iter().any(|at| e.after(*at)),
    ),
    (
        "came over a link, was neither sent on nor dropped, and is gone: somebody there took it",
        |_| DELIVERED,
        |e| (e.hopped() || !e.knows.local) && e.silent() && e.after(e.freed_at),
    ),
    // Without functions nobody tells of the protocols. But whoever drops tells, and who sends on.
    (
        "taken by receive offload and not seen again: a part of another packet",
        |_| TRANSFORMED,
        |e| !e.knows.local && e.complete && e.silent() && e.offload && e.idle_ns >= ARRIVED_NS,
    ),
    (
        "a fragment that waits for the rest of its datagram",
        |_| IN_FLIGHT,
        |e| !e.knows.local && e.complete && e.silent() && e.fragment && e.idle_ns < REASSEMBLY_NS,
    ),
    (
        "received, neither sent on nor dropped, and nothing was lost: it is this host's",
        |_| DELIVERED,
        |e| {
            !e.knows.local && e.complete && e.silent() && !e.fragment && !e.offload && e.idle_ns >= ARRIVED_NS
        },
    ),
    // Left.
    (
        "cut up by a queueing discipline, which queued the parts",
        |_| TRANSFORMED,
        |e| matches!(e.place, Place::Queue { .. }) && e.cut_in_queue,
    ),
    (
        "still in the queue above a device when the log ended",
        |_| IN_FLIGHT,
        |e| {
            let waits = matches!(e.place, Place::Queue { .. }) && e.knows.driver && e.complete;
            waits && !e.after(e.freed_at) && !e.transformed && e.idle_ns < QUEUED_NS
        },
    ),
    (
        "left a queue in which it had been before the recording began",
        |_| UNKNOWN,
        |e| matches!(e.place, Place::Queue { .. } | Place::Driver { .. }) && e.unknown_origin && !e.received,
    ),
    ("given to a device, or to the queue above it", Evidence::out, |e| {
        matches!(e.place, Place::Queue { .. } | Place::Driver { .. })
    }),
    ("given to a device; what the link's other end then did with it is not known", Evidence::out, |e| {
        e.hopped() && (e.idle_ns >= IDLE_NS || e.knows.local)
    }),
    ("cut up, or merged into another", |_| TRANSFORMED, |e| e.transformed),
    ("a sniffer was its only receiver", |_| DELIVERED, |e| e.freed_by_sniffer),
    ("under way when the log ended", |_| IN_FLIGHT, |e| e.ended_at == NEVER && e.idle_ns < IDLE_NS),
    ("nothing tells", |_| UNKNOWN, |_| true),
];

/// The code of `packet.verdict`, and the case.
pub(super) fn judge(e: &Evidence) -> (i32, &'static str) {
    let case = CASES.iter().find(|(_, _, holds)| holds(e)).expect("the last case always holds");
    (case.1(e), case.0)
}

impl Live {
    fn place(&self) -> Place {
        let xmit = self.xmit_at;
        let out = self.queue_at.max(xmit);
        if self.rx_last > out {
            Place::Here { since: out.max(FIRST) }
        } else if out == NEVER {
            if self.is_local() { Place::Here { since: FIRST } } else { Place::Made }
        } else if xmit >= self.queue_at {
            Place::Driver { since: xmit }
        } else {
            Place::Queue { since: self.queue_at }
        }
    }

    /// Received, though the functions that receive were not recorded.
    fn is_local(&self) -> bool {
        self.roles & (LOCAL_IN | FORWARD) != 0
    }

    /// Dropped by the driver's function that it was last given to.
    fn by_driver(&self, d: &Drop) -> bool {
        let Some(&(from, to)) = self.xmits.last() else { return false };
        // Where nothing says when it returned, the order of what that CPU did does.
        let there = self.xmit_on == Some((d.cpu, d.ctx)) && d.at >= from;
        there
            && if to > from {
                d.at <= to
            } else {
                d.within.driver || d.within.other < from && !self.by_points
            }
    }

    fn in_taps(&self, at: i64) -> bool {
        self.taps.iter().any(|t| (t.0..=t.1).contains(&at))
    }

    /// The last drop of a copy that was not a sniffer's.
    pub(super) fn own_drop(&self) -> Option<Drop> {
        let own = |d: &&Drop| d.reason != Reason::Sniffer && !self.in_taps(d.at);
        self.drops.iter().filter(own).max_by_key(|d| d.at).copied()
    }

    /// Read when it was already gone from here, which only a sniffer's copy can be.
    pub(super) fn reads_of_sniffers(&self) -> impl Iterator<Item = u32> {
        let place = self.place();
        let gone = move |at: i64| match place {
            Place::Queue { since } | Place::Driver { since } => at >= since,
            Place::Here { .. } | Place::Made => false,
        };
        let tapped = self.roles & TAP != 0;
        let queued_at = self.queued_at.0;
        self.readers.iter().filter(move |r| gone(r.to) || tapped && r.from < queued_at).map(|r| r.pid)
    }

    pub(super) fn evidence(&self, knows: Knows, complete: bool, log_end: i64, sniffers: &[u32]) -> Evidence {
        let drop = self.own_drop();
        let read_at = self
            .readers
            .iter()
            .filter(|r| r.pid == 0 || !sniffers.contains(&r.pid))
            .map(|r| r.to)
            .max()
            .unwrap_or(NEVER);
        Evidence {
            place: self.place(),
            knows,
            complete,
            drop_by_driver: drop.as_ref().is_some_and(|d| self.by_driver(d)),
            drop,
            local_at: self.local_in_at,
            socket_at: self.queued_at.1,
            read_at,
            whole_at: self.whole_again_at,
            transformed: self.transformed_at != NEVER,
            cut_in_queue: (self.enqueued.0..=self.enqueued.1).contains(&self.transformed_at)
                && self.transformed_at != NEVER,
            fragment: self.fragment.key != 0,
            offload: self.gro_at != NEVER && self.gro_at == self.rx_last,
            received: self.was_received(),
            unknown_origin: knows.queue
                && self.dequeued_first < self.out_first
                && self.roles & LOCAL_OUT == 0,
            freed_at: self.free_at,
            ended_at: self.ended_at,
            ended_on: self.ended_on,
            freed_by_sniffer: self.in_taps(self.free_at),
            idle_ns: log_end.saturating_sub(self.last),
        }
    }
}
