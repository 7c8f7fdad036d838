//! Where a packet ended, case by case: each of the table's cases is met, and by what it says.

use super::live::Reader;
use super::verdict::*;
use super::*;
use crate::matching::Side;
use kpat_model::codes::{match_key, verdict};
use std::collections::BTreeSet;

const END: i64 = 20_000_000_000;
const FUNCTIONS: Knows = Knows { local: true, driver: true, queue: true };
const POINTS: Knows = Knows { local: false, driver: true, queue: true };

fn touch(at: i64, end: i64, ctx: Context) -> Touch {
    Touch {
        packet: 1,
        func: 1,
        cpu: 0,
        entry: at,
        end,
        self_ns: 0,
        ctx,
        pid: 7,
        point_len: None,
        ends: false,
    }
}

/// A life in which functions of these roles ran: (roles, entry, end).
fn life(steps: &[(u32, i64, i64)]) -> Live {
    let mut p = Live::new(0);
    for &(roles, at, end) in steps {
        let ctx = if roles & SOCK_READ != 0 { Context::Task } else { Context::Softirq };
        p.play(&touch(at, end, ctx), Roles(roles));
        p.last = p.last.max(end);
    }
    p
}

fn dropped(mut p: Live, at: i64, reason: Reason) -> Live {
    p.drops.push(Drop { at, code: 3, reason, cpu: 0, ctx: Context::Softirq, within: Default::default() });
    p.last = p.last.max(at);
    p
}

fn ended(mut p: Live, at: i64) -> Live {
    (p.free_at, p.ended_at) = (at, at);
    p.ended_on = Some((0, Context::Softirq, Default::default()));
    p
}

const QUEUE: u32 = XMIT_QUEUE | QDISC_IN;
const SOCKET: u32 = LOCAL_IN | SOCK_QUEUE;

/// Cases that were met, for the test that all are.
struct Table(BTreeSet<&'static str>);

impl Table {
    fn is(&mut self, p: &Live, knows: Knows, want: i32, why: &str) {
        let e = p.evidence(knows, true, END, &[]);
        let (code, case) = judge(&e);
        assert_eq!(verdict::name(code), verdict::name(want), "{why}: {case}");
        self.0.insert(case);
    }
}

#[test]
fn each_case_is_met_by_what_it_says() {
    use verdict::*;
    let mut t = Table(BTreeSet::new());
    let came = (RX, 10, 90);
    let queued = life(&[came, (QUEUE, 40, 60)]);
    let given = life(&[came, (QUEUE, 40, 80), (XMIT, 50, 70)]);
    // Queues: at the end, long after, taken out and dropped, on a device below another.
    t.is(
        &dropped(life(&[came, (QUEUE, 40, 60)]), 55, Reason::Packet),
        FUNCTIONS,
        DROPPED,
        "at the queue's end",
    );
    t.is(&dropped(life(&[came, (QUEUE, 40, 60)]), 5_000_000, Reason::Packet), FUNCTIONS, DROPPED, "by CoDel");
    let requeued = life(&[came, (QUEUE, 40, 60), (QDISC_OUT | XMIT_QUEUE, 500, 510)]);
    t.is(&dropped(requeued, 520, Reason::Packet), FUNCTIONS, DROPPED, "taken out");
    let stacked = life(&[came, (QUEUE, 30, 36), (XMIT, 20, 40), (QUEUE, 15, 45)]);
    t.is(
        &dropped(stacked, 90_000, Reason::Packet),
        FUNCTIONS,
        DROPPED,
        "in the queue of the card below a bridge",
    );
    let again = life(&[
        (LOCAL_OUT, 5, 90),
        (QUEUE, 10, 80),
        (XMIT, 20, 70),
        (LOCAL_OUT, 500, 590),
        (QUEUE, 510, 580),
    ]);
    t.is(&dropped(again, 520, Reason::Packet), FUNCTIONS, DROPPED, "TCP's second try");
    let third =
        life(&[(QUEUE, 10, 80), (XMIT, 20, 70), (QUEUE, 510, 580), (QUEUE, 910, 980), (XMIT, 920, 970)]);
    t.is(&dropped(third, 520, Reason::Packet), FUNCTIONS, SENT, "the third try went out");
    t.is(&queued, FUNCTIONS, FORWARDED, "a long while ago");
    let mut waits = life(&[came, (QUEUE, 40, 60)]);
    waits.last = END - 400_000_000;
    t.is(&waits, FUNCTIONS, IN_FLIGHT, "in the queue at the end");
    // Drivers.
    t.is(
        &dropped(life(&[came, (QUEUE, 40, 80), (XMIT, 50, 70)]), 60, Reason::Packet),
        FUNCTIONS,
        DROPPED,
        "driver",
    );
    t.is(
        &dropped(life(&[came, (QUEUE, 40, 80), (XMIT, 50, 70)]), 75, Reason::Packet),
        FUNCTIONS,
        FORWARDED,
        "sent",
    );
    t.is(
        &dropped(life(&[came, (QUEUE, 40, 40), (XMIT, 50, 50)]), 60, Reason::Packet),
        POINTS,
        DROPPED,
        "driver",
    );
    let returned = life(&[came, (QUEUE, 40, 40), (XMIT, 50, 50), (XMIT_DONE, 70, 70)]);
    t.is(&dropped(returned, 75, Reason::Packet), POINTS, FORWARDED, "a copy, after the driver");
    t.is(&given, FUNCTIONS, FORWARDED, "sent on");
    // Copies of sniffers.
    t.is(
        &dropped(life(&[came, (QUEUE, 40, 60)]), 65, Reason::Sniffer),
        FUNCTIONS,
        FORWARDED,
        "a sniffer's copy",
    );
    let tapped = life(&[(TAP, 45, 48), came, (QUEUE, 40, 60)]);
    t.is(&dropped(tapped, 46, Reason::Packet), FUNCTIONS, FORWARDED, "a sniffer's copy");
    let mut read = life(&[came, (QUEUE, 40, 80), (XMIT, 50, 70), (SOCK_READ, 900, 910)]);
    t.is(&read, FUNCTIONS, FORWARDED, "read by a sniffer when it was gone");
    assert_eq!(read.reads_of_sniffers().collect::<Vec<_>>(), [7]);
    read.readers.push(Reader { pid: 8, from: 20, to: 20 });
    assert_eq!(read.reads_of_sniffers().collect::<Vec<_>>(), [7]);
    // Here.
    let arrived = |steps: &[(u32, i64, i64)]| {
        let mut all = vec![came];
        all.extend(steps);
        life(&all)
    };
    t.is(&dropped(arrived(&[(LOCAL_IN, 20, 80)]), 50, Reason::Packet), FUNCTIONS, DROPPED, "no socket");
    let pinged = dropped(arrived(&[(SOCK_READ, 90, 95)]), 50, Reason::Packet);
    t.is(&pinged, POINTS, DELIVERED, "a raw socket's copy was read after the protocol had dropped its own");
    t.is(&dropped(arrived(&[]), 50, Reason::Unspecified), FUNCTIONS, DROPPED, "no reason");
    t.is(
        &dropped(arrived(&[(SOCKET, 20, 80)]), 50, Reason::Refused),
        FUNCTIONS,
        DROPPED,
        "the socket is full",
    );
    t.is(
        &dropped(arrived(&[(SOCKET, 20, 80)]), 50, Reason::Unspecified),
        FUNCTIONS,
        DELIVERED,
        "another copy",
    );
    let read = arrived(&[(SOCKET, 20, 80), (SOCK_READ, 500, 510)]);
    t.is(&dropped(read, 520, Reason::Checksum), FUNCTIONS, DROPPED, "as it was read");
    let read = arrived(&[(SOCKET, 20, 80), (SOCK_READ, 500, 510)]);
    t.is(&dropped(read, 50, Reason::Refused), FUNCTIONS, DELIVERED, "another socket's reader had it");
    let closed = ended(arrived(&[(SOCKET, 20, 80)]), 900_050);
    t.is(
        &dropped(closed, 900_000, Reason::Unspecified),
        FUNCTIONS,
        DROPPED,
        "unread as the socket was closed",
    );
    let slow = ended(arrived(&[(SOCKET, 20, 80)]), 3_000_000_000);
    t.is(
        &dropped(slow, 900_000, Reason::Unspecified),
        FUNCTIONS,
        DROPPED,
        "so where the machine stood still",
    );
    let mut others = ended(arrived(&[(SOCKET, 20, 80)]), 900_050);
    others.ended_on = Some((1, Context::Softirq, Default::default()));
    t.is(
        &dropped(others, 900_000, Reason::Unspecified),
        FUNCTIONS,
        DELIVERED,
        "another copy's end, elsewhere",
    );
    let mut whole = arrived(&[(SOCKET, 20, 80), (SOCK_READ, 500, 510)]);
    whole.whole_again_at = 90;
    t.is(&whole, FUNCTIONS, TRANSFORMED, "read as a part of the whole");
    // Over a virtual link.
    let hop = [(LOCAL_OUT, 5, 60), (QUEUE, 10, 50), (XMIT, 20, 40), (RX, 30, 35)];
    t.is(&life(&hop), FUNCTIONS, SENT, "what the other end did is not known");
    t.is(&ended(life(&hop), 70), FUNCTIONS, DELIVERED, "gone at the other end");
    t.is(&dropped(life(&hop), 70, Reason::Packet), FUNCTIONS, DROPPED, "at the other end");
    t.is(&dropped(life(&hop), 7, Reason::Packet), FUNCTIONS, SENT, "a copy, before");
    let lossy = life(&[came, (QUEUE, 40, 60), (SOCK_READ | TRANSPORT, 900, 910)]);
    t.is(&lossy, FUNCTIONS, DELIVERED, "what received it at the other end was lost, its reader was not");
    assert_eq!(lossy.reads_of_sniffers().count(), 0);
    // Tracepoints alone.
    t.is(&life(&[(RX, 10, 10)]), POINTS, DELIVERED, "silent, as only this host's own protocols are");
    t.is(&life(&[(RX, 10, 10)]), FUNCTIONS, UNKNOWN, "they would have been seen");
    t.is(&life(&[(RX | GRO, 10, 10)]), POINTS, TRANSFORMED, "held by receive offload");
    let lossy = life(&[(RX, 10, 10)]).evidence(POINTS, false, END, &[]);
    assert_eq!(judge(&lossy).0, UNKNOWN, "what is silent may have been lost");
    let mut fragment = life(&[(RX, 10, 10)]);
    fragment.fragment.key = 5;
    t.is(&fragment, POINTS, IN_FLIGHT, "waits for the rest of its datagram");
    let mut now = life(&[(RX, 10, 10)]);
    now.last = END - 1_000_000;
    t.is(&now, POINTS, IN_FLIGHT, "just arrived");
    // In a queue before the recording began.
    t.is(&life(&[(QDISC_OUT | XMIT_QUEUE, 10, 10), (XMIT, 20, 20)]), POINTS, UNKNOWN, "from where?");
    let mut cut = arrived(&[]);
    cut.transformed_at = 60;
    t.is(&cut, FUNCTIONS, TRANSFORMED, "merged");
    let mut shaped = life(&[came, (QUEUE, 30, 60), (QDISC_IN, 40, 50)]);
    shaped.transformed_at = 45;
    t.is(&shaped, FUNCTIONS, TRANSFORMED, "too long for the bucket of tbf");
    shaped.transformed_at = 55;
    t.is(&shaped, FUNCTIONS, FORWARDED, "cut for the device");
    let mut shown = life(&[(TAP, 10, 30)]);
    shown.free_at = 20;
    t.is(&shown, FUNCTIONS, DELIVERED, "to a sniffer alone");
    let all: BTreeSet<&str> = CASES.iter().map(|c| c.0).collect();
    assert_eq!(t.0, all, "every case is met");
}

#[test]
fn reasons_say_who_dropped() {
    assert_eq!(Reason::of(Some("UDP_CSUM")), Reason::Checksum);
    assert_eq!(Reason::of(Some("SOCKET_RCVBUFF")), Reason::Refused);
    assert_eq!(Reason::of(Some("NETFILTER_DROP")), Reason::Packet);
    assert_eq!(Reason::of(None), Reason::Unspecified);
    assert_eq!(dropper("tpacket_rcv+0x1b2"), Some(Reason::Sniffer));
    assert_eq!(dropper("packet_rcv.constprop.0"), Some(Reason::Sniffer));
    assert_eq!(dropper("udp_recvmsg+0x2b6"), Some(Reason::Checksum));
    assert_eq!(dropper("udp_queue_rcv_one_skb+0x437"), None);
}

/// IPsec opens a packet on the device at which it came, which then shows what was in it with the stamp that the packet around it got.
/// Another datagram of the same kind and receive offload are no such thing.
#[test]
fn an_opened_packet_is_seen_once_more_on_its_device() {
    let keys = |exact, kind, ident| Keys { exact, tcp: None, kind, ident, checksum: 0, ttl: 64 };
    let outer = keys(1, match_key::NETWORK, 9);
    let seen = |inner: Keys| {
        let mut p = life(&[(RX | STAMPED, 100, 200), (RX | STAMPED, 24_000_000, 24_000_200)]);
        for (at, keys) in [(90, outer), (23_000_000, inner)] {
            p.prints.push(Print { at, ifindex: 2, netns: 5, keys: vec![keys] });
        }
        let mut out = Vec::new();
        p.sightings(1, &mut out);
        out.iter().map(|s| (s.keys.exact, s.at, s.side)).collect::<Vec<_>>()
    };
    let first = (1, 0, Side::Received);
    let again = (2, 24_000_000, Side::Received);
    assert_eq!(seen(keys(2, match_key::FULL, 7)), [first, again]);
    assert_eq!(seen(keys(2, match_key::TRANSPORT, 0)), [first, again]);
    assert_eq!(seen(keys(1, match_key::NETWORK, 9)), [first]);
    assert_eq!(seen(keys(2, match_key::NETWORK, 9)), [first]);
}

/// Opened later than a frame is looked for: what a sniffer has of it has the stamp that it came with, over a link of this host.
#[test]
fn what_was_long_in_opening_is_where_it_was_stamped() {
    let keys =
        |exact, ident| Keys { exact, tcp: None, kind: match_key::NETWORK, ident, checksum: 0, ttl: 64 };
    for (opened, shown) in [(24_000_000, 24_000_000), (900_000_000, 100)] {
        let mut p = life(&[(XMIT, 50, 80), (RX | STAMPED, 100, 200), (RX | STAMPED, opened, opened + 200)]);
        for (at, ifindex, netns, keys) in
            [(40, 3, 4, keys(1, 9)), (90, 2, 5, keys(1, 9)), (opened - 1_000, 2, 5, keys(2, 7))]
        {
            p.prints.push(Print { at, ifindex, netns, keys: vec![keys] });
        }
        let mut out = Vec::new();
        p.sightings(1, &mut out);
        let inner: Vec<_> = out.iter().filter(|s| s.keys.exact == 2).map(|s| (s.at, s.side, s.tap)).collect();
        assert_eq!(inner, [(shown, Side::Received, (50, 100))], "{opened}");
    }
}
