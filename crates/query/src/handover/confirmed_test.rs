//! An address that a server confirms, and that the interface has already.

use super::tests::{AP1, at, before, join, of, run};
use super::*;

const MS: i64 = 1_000_000;

fn with(ms: i64, what: What, text: &str) -> Mark {
    Mark { text: Some(text.into()), ..at(ms, what) }
}

/// As recorded on 6.12 of a station that was sent away, whose program was stopped until 5.7 s after the confirmation, rounded; `first`: what happened to its address before.
fn sent_away(first: Vec<Mark>) -> Handover {
    let mut all = first;
    all.extend(before(0));
    all.push(at(0, What::CarrierOff));
    all.push(of(38, What::PortClosed, AP1));
    all.push(of(46, What::Deauthenticated { own: false, reason: 7 }, AP1));
    all.extend(join(1_485, AP1));
    all.push(with(8_158, What::Dhcp(Dhcp::Request), "10.1.0.60"));
    all.push(with(8_268, What::Dhcp(Dhcp::Ack), "10.1.0.60"));
    all.push(at(13_900, What::Sent));
    all.push(with(13_910, What::ArpRequest { sent: true }, "10.1.0.1"));
    all.push(with(13_912, What::ArpReply { sent: false }, "10.1.0.1"));
    all.push(at(13_979, What::Received));
    all.sort_by_key(|m| m.at_ns);
    let mut found = run(&all);
    assert_eq!(found.len(), 1, "{found:#?}");
    assert!(found[0].tiles());
    found.remove(0)
}

fn last(h: &Handover) -> Vec<(Phase, i64)> {
    let from = h.spans.iter().position(|s| s.phase == Phase::Dhcp).unwrap_or(0);
    h.spans[from..].iter().map(|s| (s.phase, s.dur_ns() / MS)).collect()
}

#[test]
fn an_address_that_is_there_is_not_waited_for() {
    let added = What::AddressAdded { v6: false, tentative: false };
    let there =
        [(Phase::Dhcp, 110), (Phase::FirstData, 5_642), (Phase::Neighbour, 2), (Phase::FirstData, 67)];
    let before = [added, What::AddressFound].map(|what| vec![with(-2_500, what, "10.1.0.60/24")]);
    // Data shows that it had been there before the recording.
    for first in before.into_iter().chain([Vec::new(), vec![with(-2_500, added, "10.1.0.6/24")]]) {
        let h = sent_away(first);
        assert_eq!(last(&h), there);
        let why = h.spans.iter().find(|s| s.phase == Phase::FirstData).and_then(|s| s.why.clone());
        assert_eq!(
            why.as_deref(),
            Some("nothing was sent for 5632 ms: the network was there, and nobody asked it for anything")
        );
    }
    // Taken away before: it is waited for, as far as is known.
    let waited = [(Phase::Dhcp, 110), (Phase::Address, 5_711)];
    let removed = with(20, What::AddressRemoved { v6: false }, "10.1.0.60/24");
    assert_eq!(last(&sent_away(vec![with(-2_500, added, "10.1.0.60/24"), removed.clone()])), waited);
    assert_eq!(last(&sent_away(vec![removed])), waited);
}

/// As with `rfkill`: the address stays, and the way to other networks does not.
#[test]
fn what_was_shut_has_lost_its_routes() {
    let added = What::AddressAdded { v6: false, tentative: false };
    let h = sent_away(vec![
        with(-2_500, added, "10.1.0.60/24"),
        at(30, What::AdminDown),
        at(1_000, What::AdminUp),
    ]);
    let why = h.spans.iter().find(|s| s.phase == Phase::FirstData).and_then(|s| s.why.clone());
    assert!(why.is_some_and(|w| w.contains("by which the kernel forgets its routes")));
}
