//! Where a packet ended.

use super::*;

/// A packet sent at 10..20 over a virtual link and received there at 15.
fn hopped(change: impl Fn(&mut Live)) -> i32 {
    let mut p = Live::new(0);
    p.tx_at = 10;
    p.xmits = vec![(10, 20)];
    p.rx_at = 15;
    p.received = vec![(15, 40)];
    change(&mut p);
    p.verdict(i64::MAX, &[6])
}

#[test]
fn the_verdict_is_of_where_the_packet_ended() {
    let to_socket = |p: &mut Live| {
        p.roles |= LOCAL_IN | SOCK_QUEUE;
        (p.local_in_at, p.queued_at) = (28, (28, 28));
    };
    assert_eq!(hopped(|_| {}), verdict::SENT);
    assert_eq!(hopped(|p| p.free_at = 30), verdict::DELIVERED);
    assert_eq!(hopped(|p| p.drop = Some((30, 2))), verdict::DROPPED);
    assert_eq!(hopped(|p| p.drop = Some((5, 2))), verdict::SENT, "a clone, before");
    assert_eq!(hopped(to_socket), verdict::DELIVERED);
    let then = |reason| {
        hopped(|p| {
            to_socket(p);
            p.drop = Some((30, reason));
        })
    };
    assert_eq!(then(2), verdict::DELIVERED, "another clone");
    assert_eq!(then(6), verdict::DROPPED, "refused by the socket");
    let put_together = hopped(|p| {
        to_socket(p);
        p.roles |= SOCK_READ;
        p.whole_again_at = 29;
    });
    assert_eq!(put_together, verdict::TRANSFORMED, "read as a part of the whole");
    let by_sniffer = hopped(|p| (p.taps, p.drop) = (vec![(25, 35)], Some((30, 2))));
    assert_eq!(by_sniffer, verdict::SENT);
}
