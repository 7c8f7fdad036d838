//! What became of a packet: what is seen of it, as the table of cases asks for it ([`super::cases`]).
//!
//! A packet is its header buffer, so whatever happens to any of its copies (for sniffers, further ports and sockets, the
//! retransmission queue) is in one record. The verdict is of the copy that got furthest last: first where that is
//! ([`LastSeen`]), then what happened to it there. What happened before, or elsewhere, happened to another copy. Of copies that came to several
//! namespaces (a bridge floods, a port is mirrored) that one counts that was taken.

use super::cases::{self, Row, Says, Seen};
use super::control::At;
use super::live::Live;
use super::losses::Lost;
use super::reason::Reason;
use super::way::Way;
use kpat_model::{Context, Transport};
use kpat_query::roles::*;
use std::collections::BTreeSet;

/// It did not happen.
pub(super) const NEVER: i64 = i64::MIN;
/// Before all that happened.
const FIRST: i64 = i64::MIN + 1;

/// Where the packet was last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LastSeen {
    /// Made here and never on its way.
    Made,
    /// Given to the queue above a device.
    Queue { since: i64 },
    /// Given to a driver.
    Driver { since: i64 },
    /// Received: of the host, or of the next namespace behind a virtual link.
    Here { since: i64 },
}

/// A copy was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Drop {
    pub at: i64,
    /// `None`: its event is missing, and it was freed as what is dropped.
    pub code: Option<i32>,
    pub reason: Reason,
    pub cpu: u16,
    pub ctx: Context,
    /// What that CPU was at.
    pub within: At,
    /// When that copy was freed, where a record says so.
    pub freed_at: i64,
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

/// What is dropped is freed at once. Of a group, another copy may be later on that CPU: a reader leaves that to the CPU that made the buffer
/// (skb_attempt_defer_free in net/core/skbuff.c), whose next softirq does it. A function's record often does not say which of the two it was
/// ([`CONSUMED`]), a tracepoint's always.
pub(super) const DROP_FREES_NS: i64 = 500_000;

/// A packet's life, as far as the verdict needs it. Times: boot clock, [`NEVER`].
#[derive(Clone, Debug)]
pub(super) struct Evidence {
    pub place: LastSeen,
    pub knows: Knows,
    /// Of what there was from its last record on.
    pub lost: Lost,
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
    /// It went to a group or to all.
    pub for_many: bool,
    /// What was last seen of it is that receive offload took it.
    pub offload: bool,
    /// And then it was freed as a part of another packet.
    pub joined: bool,
    /// When it last asked for its next hop's link address.
    pub asked_at: i64,
    /// When it was last given to a process that switches packets.
    pub upcall_at: i64,
    /// It came in by a device.
    pub received: bool,
    /// Its way into the queue is not in the log, so neither is where it came from.
    pub unknown_origin: bool,
    /// A copy was freed last, or the last one; the latter, if the log says so.
    pub freed_at: i64,
    pub ended_at: i64,
    /// Where the last one was freed, and whether what freed it says that it was used.
    pub ended_on: Option<(u16, Context, At)>,
    pub consumed: bool,
    /// It was freed within a sniffer's function.
    pub freed_by_sniffer: bool,
    /// Between its last moment and the end of the log.
    pub idle_ns: i64,
}

impl Evidence {
    /// From where it is now on.
    fn since(&self) -> i64 {
        match self.place {
            LastSeen::Made => FIRST,
            LastSeen::Queue { since } | LastSeen::Driver { since } | LastSeen::Here { since } => since,
        }
    }

    fn after(&self, at: i64) -> bool {
        at >= self.since()
    }

    /// The last copy that there was is the one that was dropped: it was freed there before anything else went on.
    fn ended_by(&self, d: &Drop) -> bool {
        let Some((cpu, ctx, at)) = self.ended_on else { return false };
        (cpu, ctx) == (d.cpu, d.ctx) && (self.freed_as(d) || !self.for_many) && at.other < d.at
    }

    /// Its end is what that drop freed.
    fn freed_as(&self, d: &Drop) -> bool {
        let at_once = (d.at..d.at.saturating_add(DROP_FREES_NS)).contains(&self.ended_at);
        (at_once || d.freed_at == self.ended_at && d.freed_at != NEVER) && !self.consumed
    }

    /// One sign of each sort.
    pub(super) fn seen(&self) -> Seen {
        let drop = self.drop.as_ref().filter(|d| self.after(d.at));
        let sign = |holds, yes, no| if holds { yes } else { no };
        self.where_it_is()
            | self.dropped_how(drop)
            | self.copies(drop)
            | self.taken(drop)
            | sign(self.after(self.whole_at), cases::WHOLE, cases::APART)
            | self.changed()
            | self.asks()
            | self.origin()
            | sign(self.after(self.freed_at), cases::FREED, cases::KEPT)
            | sign(self.knows.local, cases::LOCAL_SEEN, cases::LOCAL_UNSEEN)
            | sign(self.knows.driver, cases::DRIVER_SEEN, cases::DRIVER_UNSEEN)
            | self.record()
            | self.kind()
            | self.idle()
            | self.end()
    }

    fn where_it_is(&self) -> Seen {
        match self.place {
            LastSeen::Made => cases::MADE,
            LastSeen::Queue { .. } => cases::QUEUE,
            LastSeen::Driver { .. } => cases::DRIVER,
            LastSeen::Here { since: FIRST } => cases::CAME,
            LastSeen::Here { .. } => cases::LINK,
        }
    }

    fn dropped_how(&self, drop: Option<&Drop>) -> Seen {
        let Some(drop) = drop else { return cases::NO_DROP };
        match (self.place, drop.reason) {
            (LastSeen::Queue { .. }, _) => cases::BY_DEVICE,
            (LastSeen::Driver { .. }, _) if self.drop_by_driver => cases::BY_DEVICE,
            (LastSeen::Driver { .. }, Reason::FarEnd) if self.ended_by(drop) && self.freed_as(drop) => {
                cases::BY_DEVICE
            }
            (LastSeen::Driver { .. }, _) => cases::BESIDE_DRIVER,
            (_, Reason::Checksum) => cases::CHECKSUM,
            (_, Reason::Refused) => cases::REFUSED,
            (_, Reason::Packet | Reason::OtherHost) => cases::FOR_ITSELF,
            (
                _,
                Reason::Unspecified
                | Reason::Unread
                | Reason::Sniffer
                | Reason::Raw
                | Reason::TimeWait
                | Reason::Closing
                | Reason::FarEnd
                | Reason::Copied
                | Reason::Handled
                | Reason::Port
                | Reason::Part,
            ) => cases::UNSAID,
        }
    }

    fn copies(&self, drop: Option<&Drop>) -> Seen {
        match drop {
            Some(d) if self.ended_by(d) => cases::LAST_COPY,
            Some(_) if self.for_many => cases::GROUP_LEFT,
            _ => cases::COPIES_LEFT,
        }
    }

    fn taken(&self, drop: Option<&Drop>) -> Seen {
        let queued = self.after(self.socket_at);
        if self.after(self.read_at) {
            let before = drop.is_some_and(|d| self.read_at < d.at);
            return if before && !queued { cases::READ_BEFORE } else { cases::READ };
        }
        match (queued, self.after(self.local_at)) {
            (true, _) => cases::SOCKET,
            (false, true) => cases::PROTOCOLS,
            (false, false) => cases::NOBODY,
        }
    }

    fn changed(&self) -> Seen {
        match (self.transformed, self.place) {
            (false, _) => cases::UNCHANGED,
            (true, LastSeen::Queue { .. }) if self.cut_in_queue => cases::CUT_IN_QUEUE,
            (true, _) => cases::CHANGED,
        }
    }

    fn asks(&self) -> Seen {
        match (self.after(self.upcall_at), self.after(self.asked_at)) {
            (true, _) => cases::ASKS_SWITCH,
            (false, true) => cases::ASKS_NEIGHBOUR,
            (false, false) => cases::ASKS_NOTHING,
        }
    }

    fn origin(&self) -> Seen {
        match (self.received, self.unknown_origin) {
            (true, _) => cases::RECEIVED,
            (false, true) => cases::FROM_BEFORE,
            (false, false) => cases::OWN,
        }
    }

    fn record(&self) -> Seen {
        match self.lost {
            Lost::Nothing => cases::COMPLETE,
            Lost::Few => cases::FEW_LOST,
            Lost::Many => cases::LOSSY,
        }
    }

    fn kind(&self) -> Seen {
        if self.joined || (self.offload && self.idle() != cases::IDLE_0) {
            cases::OFFLOADED
        } else if self.fragment {
            cases::FRAGMENT
        } else {
            cases::ANY_PACKET
        }
    }

    fn idle(&self) -> Seen {
        match self.idle_ns {
            ..100_000_000 => cases::IDLE_0,
            100_000_000..1_000_000_000 => cases::IDLE_100MS,
            1_000_000_000..10_000_000_000 => cases::IDLE_1S,
            10_000_000_000..30_000_000_000 => cases::IDLE_10S,
            _ => cases::IDLE_30S,
        }
    }

    fn end(&self) -> Seen {
        match self.ended_at {
            _ if self.freed_by_sniffer => cases::BY_SNIFFER,
            NEVER => cases::NO_END,
            _ => cases::ENDED,
        }
    }
}

/// The rows of the table that lead to the verdict, which is the last one's; in each part one fits.
pub(super) fn rows_for(seen: Seen) -> impl Iterator<Item = &'static Row> {
    let mut part = Some(cases::DROPS);
    std::iter::from_fn(move || {
        let row = part?.iter().find(|row| row.fits(seen))?;
        part = match row.says {
            Says::Ask(next) => Some(next),
            Says::Is(_) => None,
        };
        Some(row)
    })
}

/// The code of `packet.verdict`.
pub(super) fn judge(e: &Evidence) -> i32 {
    match rows_for(e.seen()).last().map(|row| row.says) {
        Some(Says::Is(code)) => code,
        _ => unreachable!("each part of the table has a row for whatever is seen"),
    }
}

impl Way {
    /// `beside`: what was received last is a copy that was shown beside.
    fn place(&self, beside: bool) -> LastSeen {
        let xmit = self.xmit_at;
        let out = self.queue_at.max(xmit);
        if self.rx_last > out && !beside {
            LastSeen::Here { since: out.max(FIRST) }
        } else if out == NEVER {
            if self.is_local() { LastSeen::Here { since: FIRST } } else { LastSeen::Made }
        } else if xmit >= self.queue_at {
            LastSeen::Driver { since: xmit }
        } else {
            LastSeen::Queue { since: self.queue_at }
        }
    }

    /// Received, though the functions that receive were not recorded.
    fn is_local(&self) -> bool {
        self.roles & (LOCAL_IN | FORWARD) != 0
    }

    /// Dropped by the driver's function that it was last given to.
    pub(super) fn by_driver(&self, d: &Drop) -> bool {
        let Some(&(from, to)) = self.xmits.last() else { return false };
        // Where nothing says when it returned, the order of what that CPU did does.
        let there = self.xmit_on == Some((d.cpu, d.ctx)) && d.at >= from;
        there
            && if to > from {
                d.at <= to
            } else {
                d.within.driver || d.within.other < from && !self.by_moments
            }
    }

    /// Received when the driver that it was last given to had returned, which itself gives it its new protocol.
    fn came_after_it_was_sent(&self) -> bool {
        let sent = self.xmits.last().map_or(NEVER, |x| x.1);
        self.rx_last > sent.max(self.queue_at).max(self.xmit_at)
    }

    pub(super) fn in_taps(&self, at: i64) -> bool {
        self.taps.iter().any(|t| (t.0..=t.1).contains(&at))
    }
}

impl Live {
    /// A segment of which nothing is left to read once the protocol had it, as a FIN: it stays in its socket's queue to mark the place (tcp_fin(), net/ipv4/tcp_input.c).
    fn has_nothing_to_read(&self) -> bool {
        matches!(self.headers.transport(), Some(Transport::Tcp { payload_len: 0, .. }))
    }

    /// Of what TCP and UDP take raw sockets have copies; of other protocols they may be all that take it.
    fn is_of_own_protocols(&self) -> bool {
        matches!(self.headers.transport(), Some(Transport::Tcp { .. } | Transport::Udp { .. }))
    }

    /// When it was put into the queue of a socket whose it is, last.
    fn queued_at(&self) -> i64 {
        self.taken.queued_at(self.is_of_own_protocols()).1
    }

    /// What lay unread in the queue of a socket that was closed was a raw socket's copy: its own protocol had no socket for it, or what that had was dropped before.
    fn lay_beside(&self) -> bool {
        let dropped_by_protocol = || {
            let other = |d: &Drop| !matches!(d.reason, Reason::Unread | Reason::Raw | Reason::Sniffer);
            self.fate.drops.iter().any(|d| other(d) && !self.way.in_taps(d.at))
        };
        self.is_of_own_protocols()
            && self.taken.by_others()
            && (self.queued_at() == NEVER || dropped_by_protocol())
    }

    /// Where it was last, copies were made of it before this moment.
    fn was_copied_away(&self, at: i64) -> bool {
        let came = self.way.rx_last.max(self.way.queue_at).max(self.way.xmit_at);
        self.fate.copied_at != NEVER && (came..=at).contains(&self.fate.copied_at)
    }

    fn went_on_in_copies(&self) -> bool {
        self.fate.drops.last().is_some_and(|d| d.reason == Reason::Copied && self.was_copied_away(d.at))
    }

    /// Of a sniffer's copy, or of one that lay in a queue beside: it tells nothing of the packet.
    fn is_of_copy(&self, d: &Drop) -> bool {
        let left_behind = match d.reason {
            Reason::Unread => self.has_nothing_to_read() || self.lay_beside(),
            Reason::Closing => self.has_nothing_to_read(),
            // What is for many comes to no connection.
            Reason::TimeWait => !self.headers.for_many,
            Reason::Raw => self.is_of_own_protocols(),
            // What came at last came elsewhere.
            Reason::FarEnd => self.way.came_after_it_was_sent(),
            Reason::Copied => self.was_copied_away(d.at),
            Reason::Handled | Reason::Sniffer => true,
            _ => false,
        };
        left_behind || self.way.in_taps(d.at)
    }

    fn drops(&self) -> impl Iterator<Item = &Drop> {
        self.fate.drops.iter().filter(|d| !self.is_of_copy(d))
    }

    /// The last drop of its own: what a device receives after that is another copy.
    pub(super) fn own_drop(&self) -> Option<Drop> {
        let all = || self.drops().filter(|d| !self.is_beside(d));
        let last = all().filter(|d| d.at >= self.way.came_at).max_by_key(|d| d.at)?;
        if self.taken_elsewhere(last).is_some() {
            return None;
        }
        // That a host refuses what is another's tells nothing where another dropped it, too.
        let out = self.way.queue_at.max(self.way.xmit_at);
        let of_whom_it_is =
            |d: &&Drop| d.reason != Reason::OtherHost && d.at >= out && self.elsewhere(d.at, last.at);
        let more =
            (last.reason == Reason::OtherHost).then(|| all().filter(of_whom_it_is).max_by_key(|d| d.at));
        Some(*more.flatten().unwrap_or(last))
    }

    /// At these moments it was in different namespaces.
    fn elsewhere(&self, a: i64, b: i64) -> bool {
        let netns = |at| self.headers.device_at(at).map(|d| d.0);
        netns(a).is_some_and(|a| netns(b).is_some_and(|b| a != b))
    }

    /// A copy came to another namespace than that of this drop, and was neither sent on from there nor dropped there. When it came, and
    /// to which device (namespace, index); `None`: there was none,
    /// or the copies cannot be told from each other.
    fn taken_elsewhere(&self, drop: &Drop) -> Option<(i64, (u32, u32))> {
        let way = &self.way;
        if way.received.len() < 2 {
            return None;
        }
        let (there, _) = self.headers.device_at(drop.at)?;
        let at_device = |at: i64| Some((at, self.headers.device_at(at)?));
        let begun = |spans: &[(i64, i64)]| spans.iter().filter_map(|s| at_device(s.0)).collect::<Vec<_>>();
        let mut came = begun(&way.received);
        // A call that sends may contain all of the way behind a virtual link, and its calls.
        let mut left = begun(&way.xmits);
        left.extend(way.drivers.iter().filter_map(|at| at_device(*at)));
        // A virtual link's driver itself gives what it sends its new protocol, as a card's does what it received. What comes in by the device later has come back,
        // or is a group's copy for the sender.
        let within = |at: i64| self.headers.for_many || way.xmits.iter().any(|x| (x.0..=x.1).contains(&at));
        came.retain(|(at, d)| !(within(*at) && left.iter().any(|(_, by)| by == d)));
        // To each namespace it came over a link, but the packet itself. Where that is not so, records are missing. (A bridge shows what its ports receive to its
        // own host without one.)
        let devices = left.iter().map(|(_, d)| *d).collect::<BTreeSet<_>>().len();
        let namespaces = came.iter().map(|(_, d)| d.0).collect::<BTreeSet<_>>().len();
        if namespaces > devices + usize::from(way.was_received()) {
            return None;
        }
        let out = [left, begun(&way.queued)].concat();
        let drops: Vec<(i64, u32)> =
            self.drops().filter_map(|d| Some((d.at, self.headers.device_at(d.at)?.0))).collect();
        let stayed = |at: i64, netns: u32| {
            netns != there
                && !out.iter().any(|(left, d)| d.0 == netns && *left > at)
                && !drops.iter().any(|(dropped, n)| *n == netns && *dropped >= at)
        };
        came.into_iter().filter(|(at, d)| stayed(*at, d.0)).min()
    }

    fn is_beside(&self, d: &Drop) -> bool {
        d.reason == Reason::OtherHost && self.way.shown_beside(d.at, (d.cpu, d.ctx))
    }

    /// Of several copies that one that was taken where others were dropped: when it came, and to which device.
    pub(super) fn taken_copy(&self) -> Option<(i64, (u32, u32))> {
        self.drops().max_by_key(|d| d.at).and_then(|d| self.taken_elsewhere(d))
    }

    fn place(&self) -> LastSeen {
        match self.taken_copy() {
            Some((since, _)) => LastSeen::Here { since },
            None => self.way.place(self.fate.drops.iter().any(|d| self.is_beside(d))),
        }
    }

    /// Read when it was already gone from here, which only a sniffer's copy can be.
    pub(super) fn reads_of_sniffers(&self) -> impl Iterator<Item = u32> {
        let place = self.place();
        let gone = move |at: i64| match place {
            LastSeen::Queue { since } | LastSeen::Driver { since } => at >= since,
            LastSeen::Here { .. } | LastSeen::Made => false,
        };
        let tapped = self.way.roles & TAP != 0;
        let queued_at = self.taken.queued_at(false).0;
        self.taken.readers.iter().filter(move |r| gone(r.to) || tapped && r.from < queued_at).map(|r| r.pid)
    }

    pub(super) fn evidence(&self, knows: Knows, lost: Lost, log_end: i64, sniffers: &[u32]) -> Evidence {
        let drop = self.own_drop();
        let joined = self.was_joined();
        let read_at = self
            .taken
            .readers
            .iter()
            .filter(|r| r.pid == 0 || !sniffers.contains(&r.pid))
            .map(|r| r.to)
            .max()
            .unwrap_or(NEVER);
        Evidence {
            place: self.place(),
            knows,
            lost,
            drop_by_driver: drop.as_ref().is_some_and(|d| self.way.by_driver(d)),
            drop,
            local_at: self.taken.local_in_at,
            socket_at: self.queued_at(),
            read_at,
            whole_at: self.fate.whole_again_at,
            transformed: self.fate.transformed_at != NEVER || self.went_on_in_copies(),
            cut_in_queue: (self.way.enqueued.0..=self.way.enqueued.1).contains(&self.fate.transformed_at)
                && self.fate.transformed_at != NEVER,
            fragment: self.fragment.key != 0,
            for_many: self.headers.for_many,
            offload: self.way.gro_at != NEVER && self.way.gro_at == self.way.rx_last,
            joined,
            asked_at: self.way.asked_at,
            upcall_at: self.way.upcall_at,
            received: self.way.was_received(),
            unknown_origin: knows.queue
                && self.way.dequeued_first < self.way.out_first
                && self.way.roles & LOCAL_OUT == 0,
            // The kernel frees it as what it drops.
            freed_at: if joined { NEVER } else { self.fate.free_at },
            ended_at: self.fate.ended_at,
            ended_on: self.fate.ended_on,
            consumed: self.fate.consumed,
            freed_by_sniffer: self.way.in_taps(self.fate.free_at),
            idle_ns: log_end.saturating_sub(self.last),
        }
    }
}
