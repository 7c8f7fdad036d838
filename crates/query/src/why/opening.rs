//! What became of a connection's SYNs and of the answers to them, where packets are in the logs, too: why it took long, or was not there at all.

use crate::app::connections::Host;
use crate::codes::verdict;
use crate::error::Result;
use crate::store::Store;
use kpat_model::EventKind;
use kpat_store::NULL;
use kpat_store::tables::{FootprintRow, SocketRow};
use std::collections::BTreeMap;
use std::ops::RangeInclusive;

/// Of the flags (RFC 9293, section 3.1).
const SYN: i64 = 2;
const RST: i64 = 4;
const ACK: i64 = 16;
/// A socket says that it connects when its SYN is about to be made, and its last state may be older than what ended it.
const BESIDE_NS: i64 = 5_000_000;

/// A packet of the opening.
#[derive(Clone, Debug)]
pub struct Opener {
    /// Place of the host in whose log it is, and its number there.
    pub host: usize,
    pub packet: i64,
    pub verdict: i32,
    /// How often it was dropped, whatever became of it at last: what is sent again may lie in the same buffer, and is one packet then.
    pub drops: usize,
    /// Why it was dropped, and where in the kernel; empty: not dropped, or not known.
    pub reason: String,
    pub place: String,
}

impl Opener {
    pub fn is_dropped(&self) -> bool {
        self.drops > 0
    }
}

/// The packets with which a connection opens. Of each kind in order of the hosts, then of their numbers.
#[derive(Clone, Debug, Default)]
pub struct Opening {
    pub syns: Vec<Opener>,
    /// SYN and ACK, from the other end.
    pub answers: Vec<Opener>,
    /// Resets that say no to a SYN.
    pub refusals: Vec<Opener>,
}

impl Opening {
    /// The first SYN, or else answer, that a kernel dropped, and how often that kernel did so.
    pub fn dropped(&self) -> Option<(&Opener, usize)> {
        [&self.syns, &self.answers].into_iter().find_map(|all| {
            let first = all.iter().find(|o| o.is_dropped())?;
            let there = all.iter().filter(|o| o.host == first.host && o.is_dropped());
            Some((first, there.map(|o| o.drops).sum()))
        })
    }

    pub fn is_empty(&self) -> bool {
        self.syns.is_empty() && self.answers.is_empty() && self.refusals.is_empty()
    }

    /// A SYN that came to the other end's transport layer, of which nothing came back: a listener whose queue is full does not answer.
    pub fn unanswered(&self) -> Option<&Opener> {
        let nothing = self.answers.is_empty() && self.refusals.is_empty();
        self.syns.iter().find(|o| o.verdict == verdict::DELIVERED).filter(|_| nothing)
    }
}

/// Those of the socket's own kernel by its addresses in the time in which it connected; all that goes with them, and those of other kernels, by the
/// number of the SYN's byte.
pub(super) fn find(
    hosts: &[Host<'_>],
    at: usize,
    sender: &SocketRow,
    from_ns: i64,
    to_ns: i64,
) -> Result<Opening> {
    let window = from_ns - BESIDE_NS..=to_ns + BESIDE_NS;
    let ports = (i64::from(sender.local_port), i64::from(sender.peer_port));
    let mut own: Vec<(i64, i64)> = Vec::new();
    each(hosts[at].store, Some(&window), &mut |h| {
        if h.flags & (SYN | ACK) == SYN && (h.sport, h.dport) == ports && own.len() < MOST {
            own.push((h.packet, h.seq));
        }
    })?;
    own.sort_unstable();
    own.dedup_by_key(|o| o.0);
    let mut numbers = Vec::new();
    for (packet, seq) in own {
        let p = hosts[at].store.packet(packet)?.packet;
        let is = |a: &Option<String>, b: &Option<String>| a.is_none() || a == b;
        // An address may be there as a hash of it.
        if is(&sender.local_addr, &p.src_addr)
            && is(&sender.peer_addr, &p.dst_addr)
            && !numbers.contains(&seq)
        {
            numbers.push(seq);
        }
    }
    let mut found: BTreeMap<(usize, i64), Kind> = BTreeMap::new();
    for (n, host) in hosts.iter().enumerate().filter(|_| !numbers.is_empty()) {
        let window = (n == at).then_some(&window);
        each(host.store, window, &mut |h| {
            let of = |number: i64| numbers.contains(&(number & 0xffff_ffff));
            let kind = match (h.flags & SYN != 0, h.flags & ACK != 0) {
                (true, false) if of(h.seq) => Kind::Syn,
                (true, true) if of(h.ack - 1) => Kind::Answer,
                (false, true) if of(h.ack - 1) && h.flags & RST != 0 => Kind::Refusal,
                _ => return,
            };
            if found.len() < MOST {
                found.entry((n, h.packet)).or_insert(kind);
            }
        })?;
    }
    let mut out = Opening::default();
    for ((host, packet), kind) in found {
        let all = match kind {
            Kind::Syn => &mut out.syns,
            Kind::Answer => &mut out.answers,
            Kind::Refusal => &mut out.refusals,
        };
        let detail = hosts[host].store.packet(packet)?;
        let p = &detail.packet;
        // A bridge's other copies are dropped by hosts that they are not for.
        let drops = || {
            let all = detail.events.iter().filter(|e| e.event.kind == EventKind::Drop as i32);
            all.filter(|e| e.reason != "OTHERHOST")
        };
        let first = drops().next();
        let is_dropped = p.verdict == verdict::DROPPED;
        let reason = first.map(|e| e.reason.clone()).or(detail.drop_reason.clone().filter(|_| is_dropped));
        all.push(Opener {
            host,
            packet,
            verdict: p.verdict,
            drops: drops().count().max(is_dropped.into()),
            reason: reason.unwrap_or_default(),
            place: first.map(|e| e.place.clone()).unwrap_or_default(),
        });
    }
    Ok(out)
}

#[derive(Clone, Copy)]
enum Kind {
    Syn,
    Answer,
    Refusal,
}

/// What a packet's headers say of TCP.
struct Header {
    packet: i64,
    sport: i64,
    dport: i64,
    flags: i64,
    seq: i64,
    ack: i64,
}

/// More packets than any connection opens with.
const MOST: usize = 256;

/// The headers with SYN or RST.
fn each(store: &Store, window: Option<&RangeInclusive<i64>>, take: &mut impl FnMut(Header)) -> Result<()> {
    let table = store.table::<FootprintRow>()?;
    let groups = match window {
        Some(window) => table.groups_where("at_ns", window),
        None => (0..table.groups()).collect(),
    };
    for group in groups {
        let (flags, at) = (table.ints(group, "tcp_flags")?, table.ints(group, "at_ns")?);
        let opens = |i: &usize| flags[*i] != NULL && flags[*i] & (SYN | RST) != 0;
        let within = |i: &usize| window.is_none_or(|w| w.contains(&at[*i]));
        let these: Vec<usize> = (0..flags.len()).filter(opens).filter(within).collect();
        if these.is_empty() {
            continue;
        }
        let [packets, sport, dport, seq, ack] =
            ["packet_id", "sport", "dport", "tcp_seq", "tcp_ack"].map(|column| table.ints(group, column));
        let (packets, sport, dport, seq, ack) = (packets?, sport?, dport?, seq?, ack?);
        for i in these {
            let (packet, sport, dport) = (packets[i], sport[i], dport[i]);
            take(Header { packet, sport, dport, flags: flags[i], seq: seq[i], ack: ack[i] });
        }
    }
    Ok(())
}
