//! Parts of other packets that are packets themselves: segments that receive offload joined, as they came, and fragments of a datagram that was put
//! together. They are freed with the whole, each as what is dropped is, without a reason, also where the whole was read or sent; if it was dropped, it was
//! so right before, on the same CPU.
//!
//! A small fragment is copied behind the one before it where that one's buffer has room (`skb_try_coalesce()`), and freed without a tracepoint: it ends with
//! its datagram, of which another buffer's end is seen. Rejected: an end by its age alone, since a fragment may wait half a minute for the rest.

use super::live::Live;
use super::verdict::{Drop, NEVER};
use super::way::Way;
use kpat_model::hash::Map;

/// The kernel waits no longer for the rest of a datagram.
const WAIT_NS: i64 = 30_000_000_000;
const MOST: usize = 1 << 14;

/// The end of a datagram of which this host had fragments.
#[derive(Clone, Copy)]
struct Whole {
    at: i64,
    drop: Option<Drop>,
}

/// By datagram and the namespace where its fragments were.
#[derive(Default)]
pub(super) struct Wholes(Map<(u64, u32), Whole>);

impl Wholes {
    /// A packet is over: its datagram is, if it is a fragment whose end was seen.
    pub(super) fn ended(&mut self, p: &Live) {
        let at = p.gone_at();
        if at == NEVER || !p.is_fragment_here() {
            return;
        }
        if self.0.len() >= MOST {
            self.0.retain(|_, w| w.at >= at.saturating_sub(WAIT_NS));
        }
        if self.0.len() < MOST {
            let new = Whole { at, drop: p.own_drop() };
            let known = self.0.entry(p.datagram_here()).or_insert(new);
            if known.at < at {
                *known = new;
            }
        }
    }

    /// What is a fragment, and whose end was not seen, ends with its datagram.
    pub(super) fn end(&self, p: &mut Live) {
        if p.fate.free_at != NEVER || !p.is_fragment_here() {
            return;
        }
        let whole = self.0.get(&p.datagram_here());
        if let Some(w) = whole.filter(|w| (p.last..p.last.saturating_add(WAIT_NS)).contains(&w.at)) {
            (p.fate.free_at, p.fate.ended_at) = (w.at, w.at);
            w.drop.into_iter().for_each(|d| p.fate.dropped(d));
        }
    }
}

impl Way {
    /// Receive offload was the last that had it.
    fn ends_in_offload(&self) -> bool {
        self.gro_at != NEVER && self.gro_at == self.rx_last && self.gro_at > self.queue_at.max(self.xmit_at)
    }
}

impl Live {
    /// What frees parts frees other lists, too: of packets that wait in queues.
    pub(super) fn may_be_part(&self) -> bool {
        let out = self.way.queue_at.max(self.way.xmit_at);
        self.way.ends_in_offload() || (self.fragment.key != 0 && self.way.rx_last > out)
    }

    /// It is a fragment, and was not sent on.
    fn is_fragment_here(&self) -> bool {
        self.fragment.key != 0 && self.may_be_part() && !self.way.ends_in_offload()
    }

    /// When it, or a copy of it that no sniffer had, was last freed.
    fn gone_at(&self) -> i64 {
        match self.fate.ended_at {
            NEVER if self.way.in_taps(self.fate.free_at) => NEVER,
            NEVER => self.fate.free_at,
            at => at,
        }
    }

    /// Its end was seen.
    pub(super) fn is_gone(&self) -> bool {
        self.gone_at() != NEVER
    }

    fn datagram_here(&self) -> (u64, u32) {
        let netns = self.headers.all.iter().rev().map(|p| p.netns).find(|n| *n != 0);
        (self.fragment.key, netns.unwrap_or(0))
    }

    /// Receive offload joined it to another one, which nobody dropped. (Offload itself drops nothing, and gives to others all that it does not join.)
    pub(super) fn was_joined(&self) -> bool {
        self.fate.joined_at != NEVER && self.way.ends_in_offload()
    }
}

#[cfg(test)]
mod tests {
    use super::super::reason::Reason;
    use super::super::verdict::Knows;
    use super::super::{Packets, Terms, Touch};
    use kpat_model::codes::verdict::{DELIVERED, DROPPED, IN_FLIGHT, TRANSFORMED};
    use kpat_model::hash::Map;
    use kpat_model::{BootNs, Context, Event, EventKind, PacketId};
    use kpat_query::roles::*;

    const PART: u64 = 1;
    const WHOLE: u64 = 2;
    const OTHER: u64 = 3;
    const PLACE: u64 = 0xff01;
    const UNSAID: i32 = 2;

    /// `.2`: what is freed is a copy, whose buffer goes on.
    struct Seen(Packets, i64, bool);

    impl Seen {
        /// Both came over a virtual link.
        fn new() -> Seen {
            let terms = Terms {
                knows: Knows { local: false, driver: true, queue: true },
                reasons: Map::from_iter([(UNSAID, Reason::Unspecified), (9, Reason::Packet)]),
                droppers: Map::from_iter([(PLACE, Reason::Part)]),
                ..Terms::default()
            };
            let mut s = Seen(Packets::new(true, false, terms), 0, false);
            for packet in [WHOLE, PART] {
                s.at(packet, XMIT_QUEUE | QDISC_IN).at(packet, XMIT);
            }
            s
        }

        fn at(&mut self, packet: u64, roles: u32) -> &mut Seen {
            self.1 += 1_000;
            let t = Touch {
                packet,
                func: 1,
                cpu: 0,
                entry: self.1,
                end: self.1,
                self_ns: 0,
                ctx: Context::Softirq,
                pid: 0,
                skb_tag: 0,
                point_len: None,
                moment: true,
                ends: roles & FREE != 0 && !self.2,
                put_off: false,
            };
            self.0.touch(&t, Roles(roles));
            self
        }

        fn dropped(&mut self, packet: u64, at: u64, code: i32) -> &mut Seen {
            self.1 += 1_000;
            let drop = Event {
                kind: EventKind::Drop,
                ctx: Context::Softirq,
                pid: 0,
                at: BootNs(self.1),
                timed: Default::default(),
                packet: PacketId(packet),
                netns: 0,
                a: code as u64,
                b: at,
                text: String::new(),
            };
            self.0.event(0, &drop);
            self.at(packet, FREE)
        }

        fn fragment(&mut self, packet: u64, datagram: u64) -> &mut Seen {
            self.0.fragment(packet).expect("alive").key = datagram;
            self
        }

        fn of_part(&mut self) -> i32 {
            let mut of = 0;
            let give = |e: super::super::Ended| {
                of = if e.row.packet_id == PART as i64 { e.row.verdict } else { of };
                Ok::<(), ()>(())
            };
            self.0.end_all(self.1, &Default::default(), give).expect("nothing fails");
            of
        }
    }

    #[test]
    fn a_part_has_the_fate_of_the_whole() {
        let offload = || {
            let mut s = Seen::new();
            s.at(WHOLE, RX | GRO).at(PART, RX | GRO).at(WHOLE, RX);
            s
        };
        let fragments = || {
            let mut s = Seen::new();
            s.at(WHOLE, RX).at(PART, RX).fragment(WHOLE, 5).fragment(PART, 5);
            s
        };
        let part = |s: &mut Seen| s.dropped(PART, PLACE, UNSAID).of_part();
        // Read, sent on, or taken with no word of it.
        assert_eq!(part(offload().at(WHOLE, FREE | CONSUMED)), TRANSFORMED);
        assert_eq!(part(&mut offload()), TRANSFORMED);
        assert_eq!(part(fragments().at(WHOLE, FREE | CONSUMED)), DELIVERED);
        assert_eq!(part(&mut fragments()), DELIVERED);
        // Dropped, and others before it.
        assert_eq!(part(offload().dropped(WHOLE, 1, 9)), DROPPED);
        assert_eq!(part(fragments().dropped(WHOLE, 1, 9)), DROPPED);
        assert_eq!(part(fragments().dropped(WHOLE, 1, UNSAID)), DROPPED);
        assert_eq!(part(fragments().dropped(OTHER, 1, 9)), DELIVERED);
        assert_eq!(part(fragments().dropped(OTHER, 1, 9).at(WHOLE, FREE | CONSUMED)), DELIVERED);
        assert_eq!(part(offload().dropped(OTHER, 1, 9).at(OTHER, RX)), TRANSFORMED);
        let raw = LOCAL_IN | SOCK_QUEUE | OTHER_QUEUE;
        assert_eq!(
            part(fragments().at(WHOLE, raw).dropped(WHOLE, 1, 9)),
            DELIVERED,
            "with a raw socket's copy"
        );
        // A list of others than parts.
        assert_eq!(Seen::new().dropped(PART, PLACE, UNSAID).of_part(), DROPPED, "by a driver");
        let queued = |s: &mut Seen| s.at(PART, XMIT_QUEUE | QDISC_IN).dropped(PART, PLACE, UNSAID).of_part();
        assert_eq!(queued(&mut offload()), DROPPED);
        assert_eq!(queued(&mut fragments()), DROPPED);
        // Its own drop: elsewhere, or with a reason.
        assert_eq!(offload().dropped(PART, 1, UNSAID).of_part(), DROPPED);
        assert_eq!(fragments().dropped(PART, PLACE, 9).of_part(), DROPPED);
    }

    #[test]
    fn a_fragment_that_ends_unseen_ends_with_its_datagram() {
        let fragments = || {
            let mut s = Seen::new();
            s.at(WHOLE, RX).at(PART, RX).fragment(WHOLE, 5).fragment(PART, 5);
            s
        };
        assert_eq!(fragments().of_part(), IN_FLIGHT, "the rest may come");
        assert_eq!(fragments().at(WHOLE, FREE | CONSUMED).of_part(), DELIVERED);
        let copy = &mut fragments();
        copy.2 = true;
        assert_eq!(copy.at(WHOLE, FREE | CONSUMED).of_part(), DELIVERED, "in the last one's place");
        assert_eq!(fragments().dropped(WHOLE, 1, 9).of_part(), DROPPED);
        assert_eq!(fragments().fragment(WHOLE, 6).at(WHOLE, FREE | CONSUMED).of_part(), IN_FLIGHT);
        let mut before = Seen::new();
        before.at(WHOLE, RX).fragment(WHOLE, 5).dropped(WHOLE, 1, 9).at(PART, RX).fragment(PART, 5);
        assert_eq!(before.of_part(), IN_FLIGHT, "the other one was lost before this came");
        let mut on = fragments();
        on.at(PART, XMIT_QUEUE | QDISC_IN).at(WHOLE, FREE | CONSUMED);
        assert_ne!(on.of_part(), DELIVERED, "sent on as a fragment");
    }
}
