//! The table of what became of packets: what is seen, the verdict, and why.
//!
//! Each part of it answers one question and has exactly one row for whatever can be seen; a row gives the verdict or leads to the
//! next question. The order of rows means nothing, so each can be checked by itself. Rejected: one list of conditions of which the first
//! that holds counts; what a row of it means depends on all rows above.

use Says::{Ask, Is};
use kpat_model::codes::verdict::{DELIVERED, DROPPED, FORWARDED, IN_FLIGHT, SENT, TRANSFORMED, UNKNOWN};

/// What is seen of a packet: one sign of each of the [`SORTS`], a bit each.
pub(super) type Seen = u64;

/// What a row says.
#[derive(Clone, Copy)]
pub(super) enum Says {
    /// The code of `packet.verdict`.
    Is(i32),
    /// That depends on what this part asks.
    Ask(&'static [Row]),
}

pub(super) struct Row {
    /// One sign of each of these; `|` is "or".
    pub seen: &'static [Seen],
    pub says: Says,
    #[cfg_attr(not(test), expect(dead_code, reason = "for whoever reads the table, and for its tests"))]
    pub why: &'static str,
}

impl Row {
    pub fn fits(&self, seen: Seen) -> bool {
        self.seen.iter().all(|any| any & seen != 0)
    }
}

macro_rules! signs {
    ($($(#[$about:meta])* $SORT:ident { $($(#[$meaning:meta])* $SIGN:ident,)+ })+) => {
        #[allow(clippy::upper_case_acronyms, non_camel_case_types, reason = "named as the signs")]
        enum Bit { $($($SIGN,)+)+ }
        $($($(#[$meaning])* pub(super) const $SIGN: Seen = 1 << Bit::$SIGN as u32;)+)+
        $($(#[$about])* #[allow(dead_code, reason = "of some all signs are named")] pub(super) const $SORT: Seen = $($SIGN)|+;)+
        #[cfg(test)]
        pub(super) const SORTS: &[Seen] = &[$($SORT),+];
    };
}

signs! {
    /// Where the copy is that got furthest.
    PLACE {
        /// Made here and never on its way.
        MADE,
        /// In the queue above a device, or that was the last that is known of it.
        QUEUE,
        /// Given to a driver.
        DRIVER,
        /// Received over a link of this host, to which it had been given.
        LINK,
        /// Received.
        CAME,
    }
    /// A copy was dropped since it is there.
    DROP {
        NO_DROP,
        /// By the queue, by the driver's function that it was given to, or as the last copy by the driver at a link's other end.
        BY_DEVICE,
        /// Elsewhere, when a driver had it.
        BESIDE_DRIVER,
        /// Its checksum was wrong.
        CHECKSUM,
        /// One socket did not take it.
        REFUSED,
        /// For what it is.
        FOR_ITSELF,
        /// The kernel does not say why.
        UNSAID,
    }
    /// Was the copy that was dropped the last one?
    COPIES {
        LAST_COPY,
        COPIES_LEFT,
        /// No, and it went to a group or to all, so others' sockets may have the rest.
        GROUP_LEFT,
    }
    /// Who of this host took it, the furthest.
    TAKEN {
        NOBODY,
        PROTOCOLS,
        /// A socket's queue.
        SOCKET,
        /// Somebody read it before that drop, from no socket's queue that is known.
        READ_BEFORE,
        READ,
    }
    /// Were its fragments put together?
    FRAGMENTS {
        WHOLE,
        APART,
    }
    /// Did it go on as another packet, or as several?
    CHANGE {
        UNCHANGED,
        CHANGED,
        /// By a queueing discipline, which queued the parts.
        CUT_IN_QUEUE,
    }
    /// Did it last ask for its next hop's link address, or a process where to?
    ASKS {
        ASKS_NOTHING,
        ASKS_NEIGHBOUR,
        ASKS_SWITCH,
    }
    /// From where it came.
    ORIGIN {
        RECEIVED,
        OWN,
        /// A queue in which it had been before the recording began.
        FROM_BEFORE,
    }
    /// Was a copy freed since it is there?
    FREED_THERE {
        FREED,
        KEPT,
    }
    /// Are functions recorded that a packet for this host meets?
    LOCAL {
        LOCAL_SEEN,
        LOCAL_UNSEEN,
    }
    /// Is what gives packets to drivers recorded?
    DRIVERS {
        DRIVER_SEEN,
        DRIVER_UNSEEN,
    }
    /// Was anything lost since its last record?
    RECORD {
        COMPLETE,
        /// One of 100 at the most.
        FEW_LOST,
        LOSSY,
    }
    /// What it is.
    KIND {
        ANY_PACKET,
        FRAGMENT,
        /// Receive offload took it, and that was the last that was seen of it (for 100 ms, or until it was freed with another packet).
        OFFLOADED,
    }
    /// For at least so long it did nothing when the log ended.
    IDLE {
        IDLE_0,
        /// A receive path runs through at once: what is silent for longer has arrived, or waits for something.
        IDLE_100MS,
        /// What did nothing for so long was not under way when the log ended ...
        IDLE_1S,
        /// ... nor in a queue.
        IDLE_10S,
        /// The kernel waits no longer for the rest of a datagram, and then says that it drops.
        IDLE_30S,
    }
    /// How it ended.
    END {
        /// Within a sniffer's function.
        BY_SNIFFER,
        NO_END,
        ENDED,
    }
}

/// Of this host, not on its way out of it.
const HERE: Seen = MADE | LINK | CAME;
/// The driver may have dropped another copy, later, than the one that is on the wire.
const NOT_BY_DEVICE: Seen = NO_DROP | BESIDE_DRIVER;
const UNDER_1S: Seen = IDLE_0 | IDLE_100MS;
const UNDER_10S: Seen = UNDER_1S | IDLE_1S;
const UNDER_30S: Seen = UNDER_10S | IDLE_10S;
const FROM_100MS: Seen = IDLE - IDLE_0;
const FROM_1S: Seen = IDLE - UNDER_1S;
const FROM_10S: Seen = IDLE - UNDER_10S;

const fn row(seen: &'static [Seen], says: Says, why: &'static str) -> Row {
    Row { seen, says, why }
}

/// All parts, the first question first.
#[cfg(test)]
pub(super) const PARTS: &[&[Row]] = &[DROPS, PLACES, LEFT, OUT, WAITING, SILENT, FAR, LAST];

/// Was the copy that got furthest dropped? Whatever else was dropped was another one.
#[rustfmt::skip]
pub(super) const DROPS: &[Row] = &[
    row(&[NOT_BY_DEVICE], Ask(PLACES), "no copy was dropped there, or not by the driver that it was given to: a copy is freed later that is on the wire"),
    row(&[QUEUE, BY_DEVICE], Is(DROPPED), "dropped in the queue above a device: at its end, within, or as it was taken out"),
    row(&[DRIVER, BY_DEVICE], Is(DROPPED), "dropped by the driver's function that it was given to, or by the driver at the link's other end"),
    row(&[HERE, CHECKSUM], Is(DROPPED), "its checksum was wrong, found on the way or as it was read: it is no good for anybody"),
    row(&[HERE, REFUSED, NOBODY | PROTOCOLS | SOCKET, LAST_COPY | COPIES_LEFT], Is(DROPPED), "a socket refused it and no other socket's reader had it"),
    row(&[HERE, REFUSED, NOBODY | PROTOCOLS | SOCKET, GROUP_LEFT], Ask(PLACES), "one socket of a group refused it; the copies of the others are left"),
    row(&[HERE, REFUSED | UNSAID, READ_BEFORE | READ], Ask(PLACES), "a copy was dropped, and somebody read another"),
    // What a raw socket gets (ping's answers) is a copy, made before the protocol drops its own.
    row(&[HERE, FOR_ITSELF, NOBODY | PROTOCOLS | READ_BEFORE], Is(DROPPED), "dropped for what it is, in no socket's queue, and nobody read it after that"),
    row(&[HERE, FOR_ITSELF, READ], Ask(PLACES), "a copy was dropped for what it is, and somebody read another after that or out of a queue"),
    row(&[HERE, UNSAID, NOBODY | PROTOCOLS], Is(DROPPED), "dropped, and neither in a socket's queue nor read"),
    row(&[HERE, FOR_ITSELF | UNSAID, SOCKET, LAST_COPY], Is(DROPPED), "dropped unread in a socket's queue: no copy was left"),
    row(&[HERE, FOR_ITSELF | UNSAID, SOCKET, COPIES_LEFT | GROUP_LEFT], Ask(PLACES), "dropped on the way; the copy in a socket's queue was left"),
];

/// Where did it get?
#[rustfmt::skip]
const PLACES: &[Row] = &[
    // Fragments may be read one by one later: the datagram is what is delivered then.
    row(&[WHOLE], Is(TRANSFORMED), "put together with other fragments"),
    row(&[APART, QUEUE | DRIVER], Ask(LEFT), "it was on its way out"),
    row(&[APART, HERE, TAKEN - NOBODY], Is(DELIVERED), "taken by this host: by its protocols, a socket or a reader"),
    row(&[APART, HERE, NOBODY, UNCHANGED, ASKS_NOTHING], Ask(SILENT), "no record shows what became of it"),
    row(&[APART, HERE, NOBODY, UNCHANGED, ASKS_NEIGHBOUR], Ask(WAITING), "it was on its way to a neighbour"),
    row(&[APART, HERE, NOBODY, UNCHANGED, ASKS_SWITCH], Is(TRANSFORMED), "given to a switch's process, which sends it on as another packet, or drops it"),
    row(&[APART, MADE | CAME, NOBODY, CHANGED], Is(TRANSFORMED), "cut up, or merged into another"),
    row(&[APART, LINK, NOBODY, CHANGED, LOCAL_SEEN], Ask(FAR), "changed at the link's other end, where receivers would have been seen"),
    row(&[APART, LINK, NOBODY, CHANGED, LOCAL_UNSEEN, FROM_1S], Ask(FAR), "changed at the link's other end, and long gone"),
    row(&[APART, LINK, NOBODY, CHANGED, LOCAL_UNSEEN, UNDER_1S], Is(TRANSFORMED), "cut up, or merged into another, a moment before the log ended"),
];

/// On its way out: did it leave?
#[rustfmt::skip]
const LEFT: &[Row] = &[
    row(&[DRIVER], Ask(OUT), "given to a device"),
    row(&[QUEUE, CUT_IN_QUEUE], Is(TRANSFORMED), "cut up by a queueing discipline, which queued the parts"),
    row(&[QUEUE, CHANGED], Ask(OUT), "cut up for the device"),
    row(&[QUEUE, UNCHANGED, FREED], Ask(OUT), "freed after it was queued, and not dropped: it had left the queue"),
    row(&[QUEUE, UNCHANGED, KEPT, DRIVER_UNSEEN], Ask(OUT), "nothing would show that it left the queue"),
    row(&[QUEUE, UNCHANGED, KEPT, DRIVER_SEEN, LOSSY], Ask(OUT), "that it left the queue may have been lost"),
    row(&[QUEUE, UNCHANGED, KEPT, DRIVER_SEEN, COMPLETE | FEW_LOST, FROM_10S], Ask(OUT), "no queue keeps a packet so long"),
    row(&[QUEUE, UNCHANGED, KEPT, DRIVER_SEEN, COMPLETE | FEW_LOST, UNDER_10S], Is(IN_FLIGHT), "still in the queue above a device when the log ended"),
];

/// It left: what is that called?
#[rustfmt::skip]
const OUT: &[Row] = &[
    row(&[RECEIVED], Is(FORWARDED), "received, and given to a device or to the queue above it"),
    row(&[OWN], Is(SENT), "made here, and given to a device or to the queue above it"),
    row(&[FROM_BEFORE], Is(UNKNOWN), "left a queue in which it had been before the recording began"),
];

/// Its next hop's link address was asked for. It is sent when that is known, and dropped when nobody answers.
#[rustfmt::skip]
const WAITING: &[Row] = &[
    row(&[NO_END, COMPLETE | FEW_LOST, UNDER_10S], Is(IN_FLIGHT), "still waited for its next hop's link address when the log ended"),
    row(&[NO_END, COMPLETE | FEW_LOST, FROM_10S], Ask(LAST), "nobody is asked for so long"),
    row(&[NO_END, LOSSY], Ask(LAST), "that it went on may have been lost"),
    row(&[BY_SNIFFER | ENDED], Ask(SILENT), "it is gone"),
];

/// No receiver was seen, and nothing was made of it.
///
/// Without functions protocols are not seen. But drops are, and forwarding.
#[rustfmt::skip]
const SILENT: &[Row] = &[
    row(&[MADE], Ask(LAST), "it was never on its way"),
    row(&[LINK, FREED], Is(DELIVERED), "came over a link, was neither sent on nor dropped, and is gone: somebody there took it"),
    row(&[LINK, KEPT, LOCAL_SEEN], Ask(FAR), "whoever took it at the link's other end would have been seen"),
    row(&[CAME, LOCAL_SEEN], Ask(LAST), "whoever took it would have been seen"),
    row(&[CAME, LOCAL_UNSEEN, FREED], Is(DELIVERED), "received, neither sent on nor dropped, and is gone: somebody took it"),
    row(&[LINK | CAME, LOCAL_UNSEEN, KEPT, COMPLETE | FEW_LOST, OFFLOADED], Is(TRANSFORMED), "taken by receive offload and not seen again: a part of another packet"),
    row(&[LINK | CAME, LOCAL_UNSEEN, KEPT, COMPLETE | FEW_LOST, FRAGMENT, UNDER_30S], Is(IN_FLIGHT), "a fragment that waits for the rest of its datagram"),
    row(&[LINK, LOCAL_UNSEEN, KEPT, COMPLETE | FEW_LOST, FRAGMENT, IDLE_30S], Ask(FAR), "a fragment at the link's other end, for which the kernel waits no longer"),
    row(&[CAME, LOCAL_UNSEEN, KEPT, COMPLETE | FEW_LOST, FRAGMENT, IDLE_30S], Ask(LAST), "a fragment for which the kernel waits no longer"),
    row(&[LINK | CAME, LOCAL_UNSEEN, KEPT, COMPLETE, ANY_PACKET, FROM_100MS], Is(DELIVERED), "received, neither sent on nor dropped, and nothing was lost: it is this host's"),
    row(&[LINK | CAME, LOCAL_UNSEEN, KEPT, FEW_LOST, ANY_PACKET, FROM_100MS], Is(DELIVERED), "received, neither sent on nor dropped, unless that is of the few records that were lost: it is this host's"),
    row(&[LINK | CAME, LOCAL_UNSEEN, KEPT, COMPLETE | FEW_LOST, ANY_PACKET, IDLE_0], Ask(LAST), "it had only just come"),
    row(&[LINK, LOCAL_UNSEEN, KEPT, LOSSY, FROM_1S], Ask(FAR), "what became of it at the link's other end may have been lost"),
    row(&[LINK, LOCAL_UNSEEN, KEPT, LOSSY, UNDER_1S], Ask(LAST), "it was seen a moment before, and what came then may have been lost"),
    row(&[CAME, LOCAL_UNSEEN, KEPT, LOSSY], Ask(LAST), "what became of it may have been lost"),
];

/// It left for a link of this host, and nothing tells what the other end did with it.
#[rustfmt::skip]
const FAR: &[Row] = &[
    row(&[RECEIVED], Is(FORWARDED), "received, and given to a device; what the link's other end then did with it is not known"),
    row(&[OWN | FROM_BEFORE], Is(SENT), "given to a device; what the link's other end then did with it is not known"),
];

/// What does its end tell?
#[rustfmt::skip]
const LAST: &[Row] = &[
    row(&[BY_SNIFFER], Is(DELIVERED), "a sniffer was its only receiver"),
    row(&[NO_END, UNDER_1S], Is(IN_FLIGHT), "under way when the log ended"),
    row(&[NO_END, FROM_1S], Is(UNKNOWN), "nothing tells what became of it"),
    row(&[ENDED], Is(UNKNOWN), "it ended, and nothing tells where"),
];
