//! Interfaces that are shut or removed: as the reason that a link ended, in the middle of an attempt, and later.

use super::tests::{AP1, AP2, at, before, join, of, run};
use super::*;

const MS: i64 = 1_000_000;

/// Carrier, port and farewell of an own ending, and the announcement that the interface is shut; times as recorded on 7.2.
fn shut(t: i64, ap: [u8; 6]) -> Vec<Mark> {
    vec![
        of(t, What::PortClosed, ap),
        at(t + 1, What::CarrierOff),
        of(t + 32, What::Deauthenticated { own: true, reason: 3 }, ap),
        at(t + 79, What::AdminDown),
        at(t + 3_907, What::AdminUp),
    ]
}

/// Where it was searched and joined after that.
fn joined(t: i64, ap: [u8; 6]) -> Vec<Mark> {
    let mut all = vec![at(t, What::ScanStart), at(t + 223, What::ScanDone { aborted: false })];
    all.extend(join(t + 1_019, ap));
    all.push(at(t + 2_000, What::Received));
    all
}

#[test]
fn an_interface_that_is_shut_ended_its_link() {
    let mut all = before(0);
    all.extend(shut(10, AP1));
    all.extend(joined(5_000, AP2));
    let h = &run(&all)[0];
    assert_eq!((h.cause, h.attempts, h.refusals.len()), (Cause::Shut, 1, 0));
    // Removed is shut first.
    all.push(at(120, What::Removed));
    all.sort_by_key(|m| m.at_ns);
    assert_eq!(run(&all)[0].cause, Cause::Removed);
}

/// As recorded with 802.11r on 7.2: the station had left by its own choice, to join the same access point anew, and was shut in that attempt.
#[test]
fn an_interface_that_is_shut_in_an_attempt_did_not_end_the_link() {
    let mut all = before(0);
    all.push(of(10, What::PortClosed, AP1));
    all.push(at(243, What::CarrierOff));
    all.push(of(300, What::Deauthenticated { own: true, reason: 2 }, AP1));
    all.push(of(400, What::AuthStart { algorithm: 2 }, AP1));
    all.push(of(463, What::AuthReply { status: 0 }, AP1));
    all.push(of(1_267, What::AssocStart { again: true }, AP1));
    all.extend([at(1_332, What::CarrierOn), of(1_333, What::AssocReply { status: 0 }, AP1)]);
    all.extend(shut(1_493, AP1).into_iter().skip(1));
    all.extend(joined(6_027, AP2));
    let h = &run(&all)[0];
    assert_eq!((h.kind, h.cause, h.attempts), (Kind::Lost, Cause::Left { reason: 2 }, 2));
    assert_eq!(h.refusals, ["interface shut"]);
    let why: Vec<&str> =
        h.spans.iter().filter(|s| s.phase == Phase::Retry).filter_map(|s| s.why.as_deref()).collect();
    assert_eq!(
        why,
        ["interface shut in the middle of an attempt: nothing can be tried until it is there again"]
    );
    assert!(h.tiles());
}

/// Its access point fell silent, and somebody shut it and opened it again while it searched.
#[test]
fn an_interface_that_is_shut_later_did_not_end_the_link() {
    let mut all = before(0);
    all.push(of(1_018, What::BeaconLoss, AP1));
    all.push(of(1_020, What::Deauthenticated { own: true, reason: 4 }, AP1));
    all.push(at(1_021, What::CarrierOff));
    all.extend([at(1_448, What::ScanStart), at(9_514, What::ScanDone { aborted: false })]);
    all.extend([at(12_000, What::AdminDown), at(13_000, What::AdminUp)]);
    all.extend(joined(14_000, AP2));
    let h = &run(&all)[0];
    assert_eq!((h.cause, h.link_down.as_ref().map(|m| m.at_ns)), (Cause::Silent, Some(1_021 * MS)));
}
