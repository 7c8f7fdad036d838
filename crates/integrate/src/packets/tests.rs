//! Where a packet ended, row by row: each row of the table is met by what it says, and nothing meets two.

use super::cases::{self, PARTS, Row, SORTS, Says, Seen};
use super::losses::Lost;
use super::prints::Print;
use super::taken::Reader;
use super::verdict::*;
use super::*;
use crate::matching::Side;
use kpat_model::Transport;
use kpat_model::codes::{match_key, verdict};
use std::collections::BTreeSet;

const END: i64 = 20_000_000_000;
const FUNCTIONS: Knows = Knows { local: true, driver: true, queue: true };
const POINTS: Knows = Knows { local: false, driver: true, queue: true };

pub(super) fn touch(at: i64, end: i64, ctx: Context) -> Touch {
    Touch {
        packet: 1,
        func: 1,
        cpu: 0,
        entry: at,
        end,
        self_ns: 0,
        ctx,
        pid: 7,
        skb_tag: 0,
        point_len: None,
        moment: false,
        ends: false,
        put_off: false,
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
    let (code, ctx, within) = (Some(3), Context::Softirq, Default::default());
    p.fate.drops.push(Drop { at, code, reason, cpu: 0, ctx, within, freed_at: NEVER });
    p.last = p.last.max(at);
    p
}

fn ended(mut p: Live, at: i64) -> Live {
    (p.fate.free_at, p.fate.ended_at) = (at, at);
    p.fate.ended_on = Some((0, Context::Softirq, Default::default()));
    p
}

fn of_udp(mut p: Live) -> Live {
    let transport = Some(Transport::Udp { sport: 1, dport: 2, len: 9, checksum: 0 });
    p.headers.shown = Some(Box::new(Footprint { transport, ..Footprint::default() }));
    p
}

const QUEUE: u32 = XMIT_QUEUE | QDISC_IN;
const SOCKET: u32 = LOCAL_IN | SOCK_QUEUE;
const OTHERS: u32 = SOCKET | OTHER_QUEUE;

/// Rows that were met, for the test that all are.
struct Table(BTreeSet<&'static str>);

impl Table {
    fn is(&mut self, p: &Live, knows: Knows, want: i32, why: &str) {
        self.seen(&p.evidence(knows, Lost::Nothing, END, &[]), want, why);
    }

    fn seen(&mut self, e: &Evidence, want: i32, why: &str) {
        let way: Vec<&str> = rows_for(e.seen()).map(|row| row.why).collect();
        assert_eq!(verdict::name(judge(e)), verdict::name(want), "{why}: {way:?}");
        self.0.extend(way);
    }
}

#[test]
fn each_row_is_met_by_what_it_says() {
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
    let beyond = || dropped(life(&[came, (QUEUE, 40, 80), (XMIT, 50, 70)]), 90, Reason::FarEnd);
    t.is(&ended(beyond(), 91), FUNCTIONS, DROPPED, "by XDP at the link's other end");
    let typed = dropped(life(&[came, (QUEUE, 40, 80), (XMIT, 50, 70), (RX, 55, 60)]), 90, Reason::FarEnd);
    t.is(
        &ended(typed, 91),
        FUNCTIONS,
        DROPPED,
        "so where the driver that sends is seen to give it its protocol",
    );
    t.is(
        &ended(beyond(), 9_000_000),
        FUNCTIONS,
        FORWARDED,
        "a mirror's copy, by XDP; the packet is on the wire",
    );
    let mirrored = dropped(life(&[came, (XMIT, 20, 30), (XMIT, 40, 50), (RX, 60, 90)]), 95, Reason::FarEnd);
    t.is(
        &ended(mirrored, 96),
        POINTS,
        DELIVERED,
        "a mirror's copy, by XDP; the packet is at another link's end",
    );
    // HSR: the copies are on the way, and a duplicate is not copied.
    for (copied, verdict) in [(55, FORWARDED), (45, DROPPED), (NEVER, DROPPED)] {
        let mut p = dropped(life(&[came, (QUEUE, 40, 80), (XMIT, 50, 70)]), 60, Reason::Copied);
        p.fate.copied_at = copied;
        t.is(&ended(p, 62), FUNCTIONS, verdict, "copied by the driver that let it go, elsewhere, for nobody");
    }
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
    read.taken.readers.push(Reader { pid: 8, from: 20, to: 20 });
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
    others.fate.ended_on = Some((1, Context::Softirq, Default::default()));
    t.is(
        &dropped(others, 900_000, Reason::Unspecified),
        FUNCTIONS,
        DELIVERED,
        "another copy's end, elsewhere",
    );
    let mut whole = arrived(&[(SOCKET, 20, 80), (SOCK_READ, 500, 510)]);
    whole.fate.whole_again_at = 90;
    t.is(&whole, FUNCTIONS, TRANSFORMED, "read as a part of the whole");
    // Over a virtual link.
    let hop = [(LOCAL_OUT, 5, 60), (QUEUE, 10, 50), (XMIT, 20, 40), (RX, 30, 35)];
    t.is(&life(&hop), FUNCTIONS, SENT, "what the other end did is not known");
    t.is(&ended(life(&hop), 70), FUNCTIONS, DELIVERED, "gone at the other end");
    t.is(&dropped(life(&hop), 70, Reason::Packet), FUNCTIONS, DROPPED, "at the other end");
    t.is(&dropped(life(&hop), 7, Reason::Packet), FUNCTIONS, SENT, "a copy, before");
    // A bridge that is promiscuous shows its own host a copy of what it forwards.
    let bridged = [(RX, 10, 15), (QUEUE, 20, 40), (XMIT, 25, 35)];
    let shown = life(&[&bridged[..], &[(RX, 50, 60)]].concat());
    t.is(&dropped(shown, 55, Reason::OtherHost), FUNCTIONS, FORWARDED, "the bridge's own host's copy");
    let link = [&bridged[..], &[(RX | BACKLOG_IN, 30, 32), (RX, 50, 60)]].concat();
    t.is(&dropped(life(&link), 55, Reason::OtherHost), FUNCTIONS, DROPPED, "by the other end's host");
    let both = |at| dropped(ended(life(&[&link[..], &[(RX, 70, 75)]].concat()), 90), at, Reason::OtherHost);
    t.is(&both(55), POINTS, DELIVERED, "the other copy came after that");
    t.is(&both(80), POINTS, DROPPED, "and was dropped");
    // Several sockets of a group, of which one is full.
    let group = |mut p: Live| {
        p.headers.for_many = true;
        p
    };
    let full = || dropped(arrived(&[(SOCKET, 20, 80)]), 50, Reason::Refused);
    t.is(&group(full()), FUNCTIONS, DELIVERED, "another has it, and has not read it yet");
    t.is(&group(ended(full(), 51)), FUNCTIONS, DROPPED, "no other has it");
    let mut read = group(ended(full(), 51));
    read.fate.consumed = true;
    t.is(&read, POINTS, DELIVERED, "another's reader had it, and left it to this CPU to free");
    // Raw sockets have copies of what UDP takes.
    let copied = || dropped(arrived(&[(OTHERS, 20, 30)]), 50, Reason::Packet);
    t.is(&of_udp(copied()), FUNCTIONS, DROPPED, "no socket but a raw one");
    t.is(&copied(), FUNCTIONS, DELIVERED, "it is of a protocol that the kernel itself does not have");
    let closed = || dropped(ended(copied(), 900_050), 900_000, Reason::Unread);
    t.is(&of_udp(closed()), FUNCTIONS, DROPPED, "the raw one was closed later");
    assert_eq!(
        of_udp(closed()).own_drop().map(|d| d.at),
        Some(50),
        "and that is not what it was dropped for"
    );
    let late =
        || dropped(ended(arrived(&[(OTHERS, 20, 30), (SOCKET, 40, 80)]), 900_050), 900_000, Reason::Unread);
    t.is(&of_udp(late()), FUNCTIONS, DROPPED, "nobody read it in either");
    let lossy = life(&[came, (QUEUE, 40, 60), (SOCK_READ | TRANSPORT, 900, 910)]);
    t.is(&lossy, FUNCTIONS, DELIVERED, "what received it at the other end was lost, its reader was not");
    assert_eq!(lossy.reads_of_sniffers().count(), 0);
    // Tracepoints alone.
    t.is(&life(&[(RX, 10, 10)]), POINTS, DELIVERED, "silent, as only this host's own protocols are");
    t.is(&life(&[(RX, 10, 10)]), FUNCTIONS, UNKNOWN, "they would have been seen");
    t.is(&life(&[(RX | GRO, 10, 10)]), POINTS, TRANSFORMED, "held by receive offload");
    let lossy = life(&[(RX, 10, 10)]).evidence(POINTS, Lost::Many, END, &[]);
    t.seen(&lossy, UNKNOWN, "what is silent may have been lost");
    let few = life(&[(RX, 10, 10)]).evidence(POINTS, Lost::Few, END, &[]);
    t.seen(&few, DELIVERED, "one of 100 at the most is not what it seems");
    t.is(&ended(life(&[(RX, 10, 10)]), 20), POINTS, DELIVERED, "silent, and freed by whoever took it");
    t.is(&ended(life(&[(RX, 10, 10)]), 20), FUNCTIONS, UNKNOWN, "freed by nobody who was seen");
    let mut fragment = life(&[(RX, 10, 10)]);
    fragment.fragment.key = 5;
    t.is(&fragment, POINTS, IN_FLIGHT, "waits for the rest of its datagram");
    let mut now = life(&[(RX, 10, 10)]);
    now.last = END - 1_000_000;
    t.is(&now, POINTS, IN_FLIGHT, "just arrived");
    // Its next hop's link address is asked for.
    let mut asks = life(&[(RX, 10, 10), (NEIGHBOUR, 20, 20)]);
    asks.last = END - 3_000_000_000;
    t.is(&asks, POINTS, IN_FLIGHT, "nobody has answered");
    t.seen(&asks.evidence(POINTS, Lost::Many, END, &[]), UNKNOWN, "that somebody did may have been lost");
    asks.last = END - 15_000_000_000;
    t.is(&asks, FUNCTIONS, UNKNOWN, "it would have been dropped");
    t.is(&ended(asks, END), POINTS, DELIVERED, "as what is freed and was not dropped");
    t.is(
        &life(&[(RX, 10, 10), (NEIGHBOUR, 20, 20), (QUEUE, 30, 30), (XMIT, 31, 31)]),
        POINTS,
        FORWARDED,
        "answered",
    );
    let asked = dropped(life(&[(NEIGHBOUR, 20, 20)]), 3_000_000_000, Reason::Packet);
    t.is(&asked, POINTS, DROPPED, "nobody answered");
    // A process switches it.
    t.is(&ended(life(&[(RX, 10, 10), (UPCALL, 20, 20)]), 30), POINTS, TRANSFORMED, "it may go on");
    let shown_to_it = life(&[came, (UPCALL, 20, 20), (QUEUE, 30, 30), (XMIT, 31, 31)]);
    t.is(&shown_to_it, FUNCTIONS, FORWARDED, "a sample of the flow");
    // In a queue before the recording began.
    t.is(&life(&[(QDISC_OUT | XMIT_QUEUE, 10, 10), (XMIT, 20, 20)]), POINTS, UNKNOWN, "from where?");
    let mut cut = arrived(&[]);
    cut.fate.transformed_at = 60;
    t.is(&cut, FUNCTIONS, TRANSFORMED, "merged");
    let mut shaped = life(&[came, (QUEUE, 30, 60), (QDISC_IN, 40, 50)]);
    shaped.fate.transformed_at = 45;
    t.is(&shaped, FUNCTIONS, TRANSFORMED, "too long for the bucket of tbf");
    shaped.fate.transformed_at = 55;
    t.is(&shaped, FUNCTIONS, FORWARDED, "cut for the device");
    let mut shown = life(&[(TAP, 10, 30)]);
    shown.fate.free_at = 20;
    t.is(&shown, FUNCTIONS, DELIVERED, "to a sniffer alone");
    // What would have shown that it left the queue is not recorded, or lost; or it is shown by its end.
    let blind = Knows { driver: false, ..FUNCTIONS };
    t.is(&waits, blind, FORWARDED, "as most that is queued");
    t.seen(&waits.evidence(FUNCTIONS, Lost::Many, END, &[]), FORWARDED, "as most that is queued");
    t.is(&ended(waits, END - 400_000_000), FUNCTIONS, FORWARDED, "freed after the driver was done");
    // At the other end of a virtual link.
    let passed = life(&[came, (QUEUE, 40, 80), (XMIT, 50, 70), (RX, 60, 65)]);
    t.is(&passed, FUNCTIONS, FORWARDED, "what the other end did is not known");
    let mut merged = life(&hop);
    merged.fate.transformed_at = 33;
    t.is(&merged, FUNCTIONS, SENT, "as what became of it was sent");
    t.is(&merged, POINTS, SENT, "as what became of it was sent");
    merged.last = END - 1_000_000;
    t.is(&merged, POINTS, TRANSFORMED, "what became of it is under way");
    t.seen(&life(&hop).evidence(POINTS, Lost::Many, END, &[]), SENT, "what came then may have been lost");
    let mut moment = life(&hop);
    moment.last = END - 1_000_000;
    t.seen(&moment.evidence(POINTS, Lost::Many, END, &[]), IN_FLIGHT, "no time for more");
    let late = END + 30_000_000_000;
    t.seen(
        &fragment.evidence(POINTS, Lost::Nothing, late, &[]),
        UNKNOWN,
        "no drop was seen, and nothing waits so long",
    );
    let mut far = life(&hop);
    far.fragment.key = 5;
    t.seen(&far.evidence(POINTS, Lost::Nothing, late, &[]), SENT, "so at the other end");
    let all: BTreeSet<&str> = PARTS.iter().copied().flatten().map(|row| row.why).collect();
    assert_eq!(t.0, all, "every row is met");
}

#[test]
fn the_table_is_well_formed() {
    let rows: Vec<&Row> = PARTS.iter().copied().flatten().collect();
    let whys: BTreeSet<&str> = rows.iter().map(|row| row.why).collect();
    assert_eq!(whys.len(), rows.len(), "two rows with one reason");
    for row in rows {
        let sort = |any: &Seen| SORTS.iter().position(|sort| any & sort != 0 && any & !sort == 0);
        let sorts: Vec<usize> =
            row.seen.iter().map(|any| sort(any).unwrap_or_else(|| panic!("{}", row.why))).collect();
        assert_eq!(sorts.iter().collect::<BTreeSet<_>>().len(), sorts.len(), "{}: a sort twice", row.why);
    }
}

/// Signs of which a packet cannot have one of the first with one of the second.
const NEVER_TOGETHER: &[(Seen, Seen)] = {
    use super::cases::*;
    &[
        (QUEUE, DROP & !(NO_DROP | BY_DEVICE)),
        (DRIVER, CHECKSUM | REFUSED | FOR_ITSELF | UNSAID),
        (MADE | LINK | CAME, BY_DEVICE | BESIDE_DRIVER),
        (NO_DROP, LAST_COPY | GROUP_LEFT | READ_BEFORE),
        (CUT_IN_QUEUE, PLACE & !QUEUE),
        (OFFLOADED, IDLE_0),
    ]
};

fn each_observable(chosen: Seen, sorts: &[Seen], check: &mut impl FnMut(Seen)) {
    if NEVER_TOGETHER.iter().any(|(a, b)| chosen & a != 0 && chosen & b != 0) {
        return;
    }
    let Some((sort, others)) = sorts.split_first() else { return check(chosen) };
    let signs = (0..Seen::BITS).map(|bit| 1 << bit).filter(|sign| sign & sort != 0);
    signs.for_each(|sign| each_observable(chosen | sign, others, check));
}

#[test]
fn whatever_can_be_seen_meets_one_row_of_each_part() {
    let mut met = BTreeSet::new();
    let mut combinations = 0u64;
    each_observable(0, SORTS, &mut |seen| {
        combinations += 1;
        let mut part = cases::DROPS;
        loop {
            let mut fits = part.iter().filter(|row| row.fits(seen));
            let row = fits.next().unwrap_or_else(|| panic!("{seen:#x} meets no row"));
            if let Some(other) = fits.next() {
                panic!("{seen:#x} meets two rows: {} and {}", row.why, other.why);
            }
            met.insert(row.why);
            match row.says {
                Says::Ask(next) => part = next,
                Says::Is(_) => break,
            }
        }
    });
    assert!(combinations > 1_000_000, "{combinations}");
    assert_eq!(met.len(), PARTS.iter().map(|part| part.len()).sum::<usize>(), "a row that nothing meets");
}

/// Lives drawn at random have one sign of each sort, and none that cannot be together.
#[test]
fn signs_are_one_of_each_sort() {
    let mut state = 1u64;
    let mut draw = |n: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % n
    };
    let reasons = [Reason::Checksum, Reason::Refused, Reason::Unspecified, Reason::Packet, Reason::OtherHost];
    for _ in 0..20_000 {
        let roles = [
            RX,
            RX | GRO,
            NEIGHBOUR,
            QUEUE,
            XMIT,
            XMIT_QUEUE | QDISC_OUT,
            LOCAL_IN,
            SOCKET,
            SOCK_READ,
            TAP,
            LOCAL_OUT,
        ];
        let mut steps: Vec<(u32, i64, i64)> = Vec::new();
        for _ in 0..draw(6) {
            let at = draw(100) as i64;
            steps.push((roles[draw(11) as usize], at, at + draw(30) as i64));
        }
        let mut p = life(&steps);
        if draw(2) == 0 {
            p = dropped(p, draw(150) as i64, reasons[draw(5) as usize]);
        }
        if draw(2) == 0 {
            p = ended(p, draw(150) as i64);
        }
        if draw(4) == 0 {
            p.fate.transformed_at = draw(150) as i64;
        }
        let knows = [FUNCTIONS, POINTS][draw(2) as usize];
        let idle = [0, 200_000_000, 2_000_000_000, 40_000_000_000][draw(4) as usize];
        let e =
            p.evidence(knows, [Lost::Nothing, Lost::Few, Lost::Many][draw(3) as usize], p.last + idle, &[]);
        let seen = e.seen();
        assert!(SORTS.iter().all(|sort| (seen & sort).count_ones() == 1), "{e:?}");
        assert!(NEVER_TOGETHER.iter().all(|(a, b)| seen & a == 0 || seen & b == 0), "{e:?}");
    }
}

#[test]
fn reasons_say_who_dropped() {
    assert_eq!(Reason::of(Some("UDP_CSUM")), Reason::Checksum);
    assert_eq!(Reason::of(Some("SOCKET_RCVBUFF")), Reason::Refused);
    assert_eq!(Reason::of(Some("NETFILTER_DROP")), Reason::Packet);
    assert_eq!(Reason::of(Some("OTHERHOST")), Reason::OtherHost);
    assert_eq!(Reason::of(None), Reason::Unspecified);
    assert_eq!(dropper("tpacket_rcv+0x1b2"), Some(Reason::Sniffer));
    assert_eq!(dropper("packet_rcv.constprop.0"), Some(Reason::Sniffer));
    assert_eq!(dropper("udp_recvmsg+0x2b6"), Some(Reason::Checksum));
    assert_eq!(dropper("udp_queue_rcv_one_skb+0x437"), None);
    assert_eq!(dropper("sk_stream_kill_queues+0x57"), Some(Reason::Unread));
    assert_eq!(dropper("tcp_v4_rcv+0x99"), Some(Reason::TimeWait));
    assert_eq!(dropper("tcp_v4_rcv_filter+0x99"), None);
}

/// IPsec opens a packet on the device at which it came, which then shows what was in it with the stamp that the packet around it got.
/// Another datagram of the same kind and receive offload are no such thing.
#[test]
fn an_opened_packet_is_seen_once_more_on_its_device() {
    let keys = |exact, kind, ident| Keys { exact, kind, ident, ttl: 64, ..Keys::default() };
    let outer = keys(1, match_key::NETWORK, 9);
    let seen = |inner: Keys| {
        let mut p = life(&[(RX | STAMPED, 100, 200), (RX | STAMPED, 24_000_000, 24_000_200)]);
        for (at, keys) in [(90, outer), (23_000_000, inner)] {
            p.headers.all.push(Print { at, ifindex: 2, netns: 5, keys: KeyList::of(keys) });
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
    let keys = |exact, ident| Keys { exact, kind: match_key::NETWORK, ident, ttl: 64, ..Keys::default() };
    for (opened, shown) in [(24_000_000, 24_000_000), (900_000_000, 100)] {
        let mut p = life(&[(XMIT, 50, 80), (RX | STAMPED, 100, 200), (RX | STAMPED, opened, opened + 200)]);
        for (at, ifindex, netns, keys) in
            [(40, 3, 4, keys(1, 9)), (90, 2, 5, keys(1, 9)), (opened - 1_000, 2, 5, keys(2, 7))]
        {
            p.headers.all.push(Print { at, ifindex, netns, keys: KeyList::of(keys) });
        }
        let mut out = Vec::new();
        p.sightings(1, &mut out);
        let inner: Vec<_> = out.iter().filter(|s| s.keys.exact == 2).map(|s| (s.at, s.side, s.tap)).collect();
        assert_eq!(inner, [(shown, Side::Received, (50, 100))], "{opened}");
    }
}

/// A bridge floods to the hosts 6 and 7; the copies' ways are in one record. Whichever came last, what counts is whether one of them took it.
#[test]
fn of_copies_in_several_namespaces_that_one_counts_that_was_taken() {
    const SENDER: u32 = 4;
    const BRIDGE: u32 = 5;
    let at = |mut p: Live, places: &[(i64, u32, u32)]| {
        for &(at, netns, ifindex) in places {
            p.headers.all.push(Print { at, ifindex, netns, keys: KeyList::default() });
        }
        p
    };
    // Moments: sent (device 2 of the sender), received by the bridge's port 2, sent by its ports 3 and 4, each to a host's backlog, received by both.
    let steps = [
        (LOCAL_OUT, 5, 5),
        (XMIT, 10, 10),
        (RX, 20, 20),
        (XMIT, 30, 30),
        (BACKLOG_IN, 33, 33),
        (XMIT, 40, 40),
        (BACKLOG_IN, 43, 43),
        (RX, 50, 50),
        (RX, 60, 60),
    ];
    let places = [
        (5, SENDER, 2),
        (20, BRIDGE, 2),
        (30, BRIDGE, 3),
        (33, 6, 2),
        (40, BRIDGE, 4),
        (43, 7, 2),
        (50, 6, 2),
        (60, 7, 2),
    ];
    let flooded = |drops: &[(i64, Reason)]| {
        let p = at(life(&steps), &places);
        drops.iter().fold(p, |p, (at, reason)| dropped(p, *at, *reason))
    };
    let verdict_of = |p: &Live| verdict::name(judge(&p.evidence(POINTS, Lost::Nothing, END, &[])));
    let delivered = verdict::name(verdict::DELIVERED);
    assert_eq!(verdict_of(&flooded(&[(62, Reason::OtherHost)])), delivered);
    assert_eq!(verdict_of(&flooded(&[(52, Reason::OtherHost)])), delivered);
    assert_eq!(verdict_of(&flooded(&[(62, Reason::Packet)])), delivered);
    let out_by = |p: &Live| p.out_by().map(|p| p.ifindex);
    assert_eq!(out_by(&flooded(&[(62, Reason::OtherHost)])), Some(3));
    assert_eq!(out_by(&flooded(&[(52, Reason::OtherHost)])), Some(4));
    let neither = ended(flooded(&[(52, Reason::Packet), (62, Reason::OtherHost)]), 63);
    assert_eq!(verdict_of(&neither), verdict::name(verdict::DROPPED));
    assert_eq!(neither.own_drop().map(|d| (d.at, d.reason)), Some((52, Reason::Packet)));

    // One way, and the wrong host at its end.
    let straight = at(
        life(&[
            (LOCAL_OUT, 5, 5),
            (XMIT, 10, 10),
            (RX, 20, 20),
            (XMIT, 30, 30),
            (BACKLOG_IN, 33, 33),
            (RX, 50, 50),
        ]),
        &[(5, SENDER, 2), (20, BRIDGE, 2), (30, BRIDGE, 3), (33, 6, 2)],
    );
    assert_eq!(
        verdict_of(&ended(dropped(straight, 52, Reason::OtherHost), 53)),
        verdict::name(verdict::DROPPED)
    );
    // A device of another namespace is on top of the one that received it: no copy.
    let on_top = at(life(&[(RX, 20, 20), (RX, 30, 30)]), &[(20, BRIDGE, 2), (30, 6, 9)]);
    assert_eq!(verdict_of(&ended(dropped(on_top, 35, Reason::Packet), 36)), verdict::name(verdict::DROPPED));
}
