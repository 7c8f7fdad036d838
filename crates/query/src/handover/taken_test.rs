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

/// Who left by the supplicant, or was sent away, and was shut soon after: that came later.
#[test]
fn an_interface_that_is_shut_soon_after_did_not_end_the_link() {
    let mut all = before(0);
    all.push(of(8, What::Leaves, AP1));
    all.extend(shut(10, AP1).into_iter().take(3));
    all.extend([at(850, What::AdminDown), at(1_900, What::AdminUp)]);
    all.extend(joined(3_000, AP1));
    let h = &run(&all)[0];
    let why = |h: &Handover| h.spans[0].why.clone().unwrap_or_default();
    assert_eq!((h.cause, h.spans[0].phase), (Cause::Left { reason: 3 }, Phase::Reaction));
    assert_eq!(why(h), "the interface was shut for 1050 ms of it");
    all.retain(|m| !matches!(m.what, What::AdminDown | What::AdminUp));
    assert!(why(&run(&all)[0]).starts_with("the station had left by its supplicant"));
    let mut all = before(0);
    all.push(of(10, What::Deauthenticated { own: false, reason: 7 }, AP1));
    all.extend([of(11, What::PortClosed, AP1), at(12, What::CarrierOff)]);
    all.extend([at(850, What::AdminDown), at(1_900, What::AdminUp)]);
    all.extend(joined(3_000, AP1));
    assert_eq!(run(&all)[0].cause, Cause::SentAway { reason: 7 });
    // The supplicant had left another access point long before.
    let mut all = vec![of(-9_000, What::Leaves, AP2)];
    all.extend(before(0));
    all.extend(shut(10, AP1));
    all.extend(joined(5_000, AP2));
    assert_eq!(run(&all)[0].cause, Cause::Shut);
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

/// An adapter that is pulled; times as of one that is shut. Its radio has another interface, whose scans are none of it.
#[test]
fn a_handover_ends_with_an_interface_that_does_not_come_again() {
    let gone = |also: &[Mark]| {
        let mut all = before(0);
        all.extend([of(10, What::PortClosed, AP1), at(11, What::CarrierOff)]);
        all.push(of(42, What::Deauthenticated { own: true, reason: 3 }, AP1));
        all.extend([at(89, What::AdminDown), at(95, What::Gone)]);
        all.extend_from_slice(also);
        run(&all)
    };
    let later = [
        at(4_000, What::ScanStart),
        at(4_200, What::Channel { mhz: 2_412 }),
        at(4_400, What::ScanDone { aborted: false }),
        at(60_000, What::CarrierOn),
    ];
    let found = gone(&later);
    let [h] = &found[..] else { panic!("{found:#?}") };
    assert_eq!((h.kind, h.cause, h.ended), (Kind::Gone, Cause::Removed, Ended::Gone));
    assert_eq!((h.begin_ns / MS, h.end_ns / MS, h.link_ns()), (10, 95, None));
    assert_eq!(h.end.words(), "interface removed");
    // Nothing was joined.
    assert_eq!((h.from.bssid, h.to.bssid), (Some(AP1), None));
    assert!(
        h.headline().ends_with("interface gone, interface removed: from 02:00:00:00:00:00"),
        "{}",
        h.headline()
    );
    assert!(h.tiles());
    // What came after it changes nothing of it.
    assert_eq!(format!("{:?}", gone(&[])), format!("{found:?}"));
}

/// Its access point fell silent, and it was removed while it searched: both are said.
#[test]
fn an_interface_that_is_removed_in_a_search_had_lost_its_access_point() {
    let mut all = before(0);
    all.push(of(1_018, What::BeaconLoss, AP1));
    all.push(of(1_020, What::Deauthenticated { own: true, reason: 4 }, AP1));
    all.push(at(1_021, What::CarrierOff));
    all.extend([at(1_448, What::ScanStart), at(12_000, What::AdminDown), at(12_001, What::Gone)]);
    let found = run(&all);
    let [h] = &found[..] else { panic!("{found:#?}") };
    assert_eq!((h.kind, h.cause, h.end_ns / MS), (Kind::Gone, Cause::Silent, 12_001));
    assert_eq!((h.spans.last().map(|s| s.phase), h.tiles()), (Some(Phase::Probing), true));
}

/// Twenty roams of 0.7 s, an adapter that was pulled for good, and a search that goes on when the log ends.
#[test]
fn what_did_not_come_to_an_end_is_no_part_of_the_sums() {
    let mut all = before(0);
    for i in 0..20 {
        let t = 10 + i * 20_000;
        let (from, to) = if i % 2 == 0 { (AP1, AP2) } else { (AP2, AP1) };
        all.push(of(t, What::PortClosed, from));
        all.extend(join(t + 100, to));
        all.extend((0..40).map(|n| at(t + 700 + n * 20, What::Received)));
    }
    let roams = run(&all);
    let alone = Statistics::of(roams.iter());
    assert_eq!((alone.count, alone.words().as_str()), (20, "20 handovers together"));
    all.extend([at(500_000, What::CarrierOff), at(500_100, What::Gone)]);
    let gone = run(&all);
    let mut search = before(0);
    search.extend([
        of(1_020, What::Deauthenticated { own: true, reason: 4 }, AP1),
        at(1_021, What::CarrierOff),
    ]);
    search.push(at(900_000, What::ScanStart));
    let sums = Statistics::of(gone.iter().chain(&run(&search)));
    assert_eq!((sums.count, sums.gone, sums.going_on), (20, 1, 1));
    assert_eq!((sums.phases, sums.whole_ns, sums.outage_ns), (alone.phases, alone.whole_ns, alone.outage_ns));
    let words =
        "20 handovers together, without 1 of an interface that was removed and 1 not over when the log ends";
    assert_eq!(Statistics { phases: Vec::new(), ..sums }.words(), words);
}
