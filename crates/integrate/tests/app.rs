//! `app` against tables made by hand: what an application wrote, how TCP's state went, and where the log has a hole are known.

use crate::sockets;

use kpat_model::Crossing;
use kpat_query::Store;
use kpat_query::app::{Crossed, Held, Mark, Metric, Series, Window, series, traffic};
use kpat_store::tables::*;
use sockets::{START, events, log, sockets, states};

fn asked(store: &Store, socket: Option<i64>, from: Option<i64>, to: Option<i64>, bins: usize) -> Series {
    let at = |t: Option<i64>| t.map(|t| START + t);
    let window = Window { socket, from_ns: at(from), to_ns: at(to), bins };
    series(store, &window, &mut |_, _| true).unwrap().unwrap()
}

fn of(s: &Series, what: Crossing) -> Vec<(u64, i64)> {
    s.crossings[&what].iter().map(|c: &Crossed| (c.events, c.bytes)).collect()
}

#[test]
fn bytes_and_what_happened_stand_in_their_bins() {
    let log = log("bytes", &sockets(), &events(), &states());
    let store = Store::open(&log.0).unwrap();
    let s = asked(&store, Some(1), None, None, 10);
    assert_eq!((s.from_ns, s.to_ns, s.bins), (START, START + 1000, 10));
    let sent = |i| if i == 4 || i == 6 { (0, 0) } else { (1, 1500) };
    assert_eq!(of(&s, Crossing::Send), (0..10).map(sent).collect::<Vec<_>>());
    assert_eq!(of(&s, Crossing::ToDevice), of(&s, Crossing::Send));
    assert_eq!(s.crossings[&Crossing::ToDevice][0].frames, 2);
    let at = |bin: usize, n: u64| (0..10).map(|i| if i == bin { n } else { 0 }).collect::<Vec<_>>();
    let marks = [
        (Mark::Retransmission, at(3, 2)),
        (Mark::Loss, at(3, 3)),
        (Mark::ZeroWindow, at(7, 1)),
        (Mark::WouldBlock, at(4, 1)),
        (Mark::Failure, at(6, 1)),
    ];
    for (mark, want) in marks {
        assert_eq!(s.marks[&mark], want, "{mark:?}");
    }
    let changes = (0..10).map(|i| u64::from(i == 3 || i == 6)).collect::<Vec<_>>();
    assert_eq!(s.marks[&Mark::Congestion], changes);
    let gaps: Vec<_> = s.gaps.iter().map(|g| (g.from_ns - START, g.to_ns - START, g.lost)).collect();
    assert_eq!(gaps, [(500, 530, 10), (900, 900, 1)]);
    // All sockets in sum.
    let all = asked(&store, None, None, None, 10);
    assert_eq!(of(&all, Crossing::Send)[0], (2, 1564));
    assert_eq!(all.crossings[&Crossing::Send][0].least, 64);
    assert!(all.tcp.is_none());
    assert_eq!(all.marks[&Mark::Retransmission], s.marks[&Mark::Retransmission]);
}

#[test]
fn a_state_is_in_force_until_the_next_one() {
    let log = log("state", &sockets(), &events(), &states());
    let store = Store::open(&log.0).unwrap();
    let s = asked(&store, Some(1), None, None, 10);
    let tcp = s.tcp.as_ref().unwrap();
    let cwnd = tcp.track(Metric::Cwnd);
    assert_eq!(cwnd.last, [10, 40, 40, 20, 20, 20, 22, 22, 23, 23].map(Some));
    assert_eq!(cwnd.low, [10, 40, 40, 20, 20, 20, 22, 22, 23, 23].map(Some));
    assert_eq!(cwnd.high, [10, 40, 40, 40, 20, 20, 22, 22, 23, 23].map(Some));
    assert_eq!(tcp.track(Metric::Ssthresh).low[..4], [None, None, None, Some(20)]);
    assert_eq!(tcp.track(Metric::Unacked).high[0], Some(1000), "sequence numbers wrap");
    assert_eq!(tcp.track(Metric::SndWnd).low[7], Some(0));
    assert_eq!(tcp.held_ns(Held::Application), [100, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(tcp.held_ns(Held::CongestionWindow), [0, 100, 100, 100, 100, 100, 0, 0, 0, 0]);
    assert_eq!(tcp.held_ns(Held::ReceiveWindow), [0, 0, 0, 0, 0, 0, 0, 100, 0, 0]);
    // The last state is in force until the socket's last event, at 910.
    assert_eq!(tcp.held_ns(Held::PacingOrDevice), [0, 0, 0, 0, 0, 0, 100, 0, 100, 10]);
    assert_eq!(tcp.recovery_ns, [0, 0, 0, 50, 100, 100, 0, 0, 0, 0]);
    // A window that no state falls into knows what is in force.
    let inside = asked(&store, Some(1), Some(410), Some(590), 3);
    let tcp = inside.tcp.unwrap();
    assert_eq!(tcp.track(Metric::Cwnd).last, [Some(20); 3]);
    assert_eq!(tcp.held_ns(Held::CongestionWindow), [60, 60, 60]);
    assert!(inside.crossings[&Crossing::Send].iter().all(|c| c.most == 0 || c.most == 1500));
}

/// However it is cut, a series sums up to the figures of the socket as a whole.
#[test]
fn bins_sum_up_to_the_whole() {
    let log = log("sums", &sockets(), &events(), &states());
    let store = Store::open(&log.0).unwrap();
    let whole = traffic(&store, &[1], &mut |_, _| true).unwrap().remove(0);
    let limits = whole.limits.as_ref().unwrap();
    for bins in [1, 2, 3, 7, 64, 999, 5000] {
        let s = asked(&store, Some(1), None, None, bins);
        assert_eq!(s.bins, bins.min(1000));
        for (what, layer) in &whole.layers {
            let sum = of(&s, *what).iter().fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1));
            assert_eq!(sum, (layer.events - layer.errors, layer.bytes), "{what:?} in {bins} bins");
        }
        let tcp = s.tcp.as_ref().unwrap();
        for held in Held::ALL {
            assert_eq!(
                tcp.held_ns(held).iter().sum::<i64>(),
                limits.held_ns(held),
                "{held:?} in {bins} bins"
            );
        }
        assert_eq!(tcp.recovery_ns.iter().sum::<i64>(), limits.recovery_ns);
        assert_eq!((s.edge(0), s.edge(s.bins)), (s.from_ns, s.to_ns));
    }
}

/// The state in force stands row groups before the window, among those of other sockets.
#[test]
fn what_is_in_force_is_found_in_an_earlier_row_group() {
    let mut many = states();
    let template = many[5].clone();
    let others = 2 * TCP_STATE.group_rows as i64 + 100;
    many.extend((0..others).map(|i| TcpStateRow {
        at_ns: START + 800 + i,
        socket_id: 2,
        snd_cwnd: 5,
        ..template.clone()
    }));
    let end = 800 + others;
    let s =
        |socket_id| SocketRow { socket_id, first_ns: START, last_ns: START + end, ..SocketRow::default() };
    let log = log("groups", &[s(1), s(2)], &events(), &many);
    let store = Store::open(&log.0).unwrap();
    let s = asked(&store, Some(1), Some(end - 50), Some(end), 5);
    assert_eq!(s.tcp.unwrap().track(Metric::Cwnd).last, [Some(23); 5]);
    let whole = traffic(&store, &[], &mut |done, all| done < all).unwrap();
    assert_eq!(whole.len(), 2);
}

#[test]
fn what_is_not_there_and_who_does_not_wait() {
    let log = log("none", &sockets(), &events(), &states());
    let store = Store::open(&log.0).unwrap();
    let window = |socket| Window { socket: Some(socket), from_ns: None, to_ns: None, bins: 10 };
    assert!(series(&store, &window(3), &mut |_, _| true).unwrap().is_none());
    let left = series(&store, &window(1), &mut |_, _| false);
    assert!(matches!(left, Err(kpat_query::Error::Abandoned)));
    let s = series(&store, &window(2), &mut |_, _| true).unwrap().unwrap();
    assert!(s.tcp.is_none(), "no state of it was recorded");
}

#[test]
fn a_process_is_called_by_its_last_name_however_the_log_has_them() {
    let log = log("names", &sockets(), &events(), &states());
    let store = Store::open(&log.0).unwrap();
    let called = |at| store.process(77, START + at).map(|p| p.comm.as_str());
    assert_eq!(called(-5), Some("shell"));
    assert_eq!(called(500), Some("<b>writer\u{1b}[31m"));
    assert_eq!(called(-20), Some("shell"), "before the first: that one");
}
