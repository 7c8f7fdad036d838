//! What became of a connection's SYNs and of the answers to them, where packets are in the logs, too: why it took long, or was not there at all.

use super::neighbour;
use crate::app::connections::Host;
use crate::codes::verdict;
use crate::error::Result;
use crate::store::Store;
use kpat_model::EventKind;
use kpat_store::NULL;
use kpat_store::tables::{DeviceRow, FootprintRow, SocketRow};
use std::collections::BTreeMap;
use std::ops::RangeInclusive;

/// Of the flags (RFC 9293, section 3.1).
pub(super) const SYN: i64 = 2;
pub(super) const RST: i64 = 4;
const ACK: i64 = 16;
/// A listener answers within this time. The same for the socket that connects: it
/// says so when its SYN is about to be made, and its last state may be older than what ended it.
const BESIDE_NS: i64 = 5_000_000;

/// Where TCP receives.
const RECEIVES: [&str; 2] = ["tcp_v4_rcv", "tcp_v6_rcv"];

/// A packet of the opening.
#[derive(Clone, Debug)]
pub struct Opener {
    /// Place of the host in whose log it is, and its number there.
    pub host: usize,
    pub packet: i64,
    /// First and last seen there. Boot clock of that host.
    pub first_ns: i64,
    pub last_ns: i64,
    pub verdict: i32,
    /// How often it was dropped, whatever became of it at last: what is sent again may lie in the same buffer, and is one packet then.
    pub drops: usize,
    /// How long it waited for the next hop's link address.
    pub asks_ns: i64,
    /// Why it was dropped, and where in the kernel; empty: not dropped, or not known.
    pub reason: String,
    pub place: String,
    /// The device that it was at then.
    pub device: Option<DeviceRow>,
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
            let lost = || all.iter().filter(|o| self.is_lost(o));
            let first = lost().next()?;
            Some((first, lost().filter(|o| o.host == first.host).map(|o| o.drops).sum()))
        })
    }

    pub fn is_syn_lost(&self) -> bool {
        self.syns.iter().any(|o| self.is_lost(o))
    }

    /// It was dropped, and not because the listener had answered that SYN before: TCP frees one that comes again as if it dropped it, and answers it again
    /// (`tcp_check_req()` of net/ipv4/tcp_minisocks.c).
    fn is_lost(&self, o: &Opener) -> bool {
        let by_tcp = o.reason == "NOT_SPECIFIED" && RECEIVES.iter().any(|f| o.place.starts_with(f));
        let answered = || self.answers.iter().any(|a| a.host == o.host && a.first_ns < o.last_ns);
        o.is_dropped() && !(by_tcp && answered())
    }

    pub fn is_empty(&self) -> bool {
        self.syns.is_empty() && self.answers.is_empty() && self.refusals.is_empty()
    }

    /// The first SYN that came to the other end's transport layer and of which nothing came back, and how many of them did: a listener whose queue is
    /// full does not answer. One that is sent again may be answered.
    pub fn unanswered(&self) -> Option<(&Opener, usize)> {
        let mut came: Vec<&Opener> = self.syns.iter().filter(|o| o.verdict == verdict::DELIVERED).collect();
        came.sort_by_key(|o| (o.host, o.last_ns));
        let replies = || self.answers.iter().chain(&self.refusals);
        let beside = |n: Option<usize>, host| n.and_then(|n| came.get(n)).filter(|o| o.host == host);
        let mut silent = came.iter().enumerate().filter(|(n, o)| {
            // An answer is made before its SYN is freed, or where that is not seen, soon after it came.
            let after = beside(n.checked_sub(1), o.host).map_or(i64::MIN, |before| before.last_ns);
            let until = beside(n.checked_add(1), o.host).map_or(i64::MAX, |_| o.last_ns + BESIDE_NS);
            !replies().any(|r| r.host == o.host && r.first_ns > after && r.first_ns <= until)
        });
        let first = silent.next()?;
        Some((first.1, 1 + silent.count()))
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
    // Without a port, which it is given after its first state: the SYN that its thread then made.
    let is_own = |h: &Header| match ports.0 {
        0 => h.dport == ports.1 && h.at_ns <= sender.first_ns + BESIDE_NS,
        _ => (h.sport, h.dport) == ports,
    };
    each(hosts[at].store, Some(&window), &mut |h| {
        if h.flags & (SYN | ACK) == SYN && is_own(&h) && own.len() < MOST {
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
            && (ports.0 != 0 || p.pid.is_some() && p.pid == sender.pid)
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
            first_ns: p.first_ns,
            last_ns: p.last_ns,
            verdict: p.verdict,
            asks_ns: neighbour::of_packet(hosts[host].store, &detail, None).iter().map(|w| w.1 - w.0).sum(),
            drops: drops().count().max(is_dropped.into()),
            reason: reason.unwrap_or_default(),
            place: first.map(|e| e.place.clone()).unwrap_or_default(),
            device: first
                .and_then(|e| detail.place(e.event.at_ns))
                .and_then(|f| hosts[host].store.device(f.netns, f.ifindex))
                .cloned(),
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
    at_ns: i64,
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
            take(Header { packet, at_ns: at[i], sport, dport, flags: flags[i], seq: seq[i], ack: ack[i] });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opener(host: usize, packet: i64, (first_ns, last_ns): (i64, i64)) -> Opener {
        let (reason, place) = (String::new(), String::new());
        Opener {
            host,
            packet,
            first_ns,
            last_ns,
            verdict: verdict::DELIVERED,
            drops: 0,
            asks_ns: 0,
            reason,
            place,
            device: None,
        }
    }

    #[test]
    fn a_syn_that_meets_an_answered_one_is_not_lost() {
        let freed = |host, packet, times, place: &str| Opener {
            drops: 1,
            reason: "NOT_SPECIFIED".to_owned(),
            place: place.to_owned(),
            ..opener(host, packet, times)
        };
        let answer = Opener { drops: 1, reason: "NETFILTER_DROP".to_owned(), ..opener(0, 2, (15, 20)) };
        let again = freed(0, 3, (100, 110), "tcp_v4_rcv+0x99");
        let lost = |second: &Opener| {
            let o = Opening {
                syns: vec![opener(0, 1, (10, 20)), second.clone()],
                answers: vec![answer.clone()],
                ..Opening::default()
            };
            (o.is_syn_lost(), o.dropped().map(|(first, of)| (first.packet, of)))
        };
        assert_eq!(lost(&again), (false, Some((2, 1))));
        // Elsewhere, before there was an answer, in another kernel than the answers, or for a reason.
        for other in [
            freed(0, 3, (100, 110), "ip_error+0x94"),
            freed(0, 3, (5, 10), "tcp_v4_rcv+0x99"),
            freed(1, 3, (100, 110), "tcp_v4_rcv+0x99"),
            Opener { reason: "TCP_MD5FAILURE".to_owned(), ..again.clone() },
        ] {
            assert_eq!(lost(&other), (true, Some((3, 1))), "{other:?}");
        }
    }

    fn unanswered(syns: &[(i64, i64)], answers: &[i64]) -> Option<(i64, usize)> {
        let number = |(n, times): (usize, &(i64, i64))| opener(1, n as i64, *times);
        let syns = syns.iter().enumerate().map(number).collect();
        let answers = answers.iter().map(|at| opener(1, 100, (*at, at + 5))).collect();
        Opening { syns, answers, refusals: Vec::new() }.unanswered().map(|(o, times)| (o.packet, times))
    }

    #[test]
    fn a_listener_may_answer_late() {
        assert_eq!(unanswered(&[(0, 20)], &[10]), None);
        assert_eq!(unanswered(&[(0, 20)], &[]), Some((0, 1)));
        const MS: i64 = 1_000_000;
        let four = [(0, 20), (1000 * MS, 1020 * MS), (3000 * MS, 3020 * MS), (7000 * MS, 7020 * MS)];
        assert_eq!(unanswered(&four, &[7010 * MS]), Some((0, 3)));
        // The end of the third was not seen.
        assert_eq!(unanswered(&four, &[3021 * MS, 7010 * MS]), Some((0, 2)));
        // A way so long that the SYN was sent again before the answer was made.
        assert_eq!(unanswered(&[(0, 2000 * MS), (1000 * MS, 3000 * MS)], &[1990 * MS, 2990 * MS]), None);
        // The first answer was lost.
        assert_eq!(unanswered(&[(0, 20), (1000 * MS, 1020 * MS)], &[10, 1010 * MS]), None);
    }
}
