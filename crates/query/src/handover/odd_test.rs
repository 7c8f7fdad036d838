//! Handovers of the odd kinds: close together, failed, of interfaces that are no station, with addresses that others have. Orders and times as a guest with
//! emulated radios had them, rounded.

use super::tests::{AP1, AP2, at, before, join, of, run};
use super::*;

const MS: i64 = 1_000_000;

fn with(ms: i64, what: What, text: &str) -> Mark {
    Mark { text: Some(text.into()), ..at(ms, what) }
}

fn why(h: &Handover, p: Phase) -> String {
    h.spans.iter().filter(|s| s.phase == p).filter_map(|s| s.why.clone()).collect::<Vec<_>>().join(" | ")
}

fn phases(h: &Handover) -> Vec<(Phase, i64)> {
    h.spans.iter().map(|s| (s.phase, s.dur_ns() / MS)).collect()
}

/// As recorded of a roam on 7.2 without data: the neighbour that is asked for seconds after is of what was sent then, when the access point had gone silent.
#[test]
fn a_neighbour_asked_for_later_is_no_part_of_it() {
    let mut all = vec![of(-3_000, What::PortAuthorised, AP1), of(-68, What::PortClosed, AP1)];
    all.extend(join(0, AP2));
    all.push(at(800, What::ArpRequest { sent: false }));
    let (early, late) =
        (at(460, What::ArpRequest { sent: true }), at(5_910, What::ArpRequest { sent: true }));
    all.extend([late, at(6_933, What::ArpRequest { sent: true }), of(6_934, What::BeaconLoss, AP2)]);
    all.push(at(6_935, What::CarrierOff));
    let run = |marks: &[Mark], without_data: bool| {
        let mut m = Machine::default().without_data(without_data);
        marks.iter().for_each(|x| m.push(x));
        m.finish(7_000 * MS)
    };
    let seen: Vec<_> = run(&all, true).iter().map(|h| (h.begin_ns / MS, h.end_ns / MS, h.ended)).collect();
    assert_eq!(seen, [(-68, 368, Ended::Quiet), (6_934, 7_000, Ended::LogEnd)]);
    // One that was asked for at once is.
    all.push(early);
    all.sort_by_key(|m| m.at_ns);
    assert_eq!(run(&all, true)[0].end_ns / MS, 460);
    // Where data is recorded it is what was missing.
    all.retain(|m| m.at_ns < 6_000 * MS);
    all.extend([at(5_915, What::ArpReply { sent: false }), at(5_920, What::Received)]);
    let h = &run(&all, false)[0];
    assert_eq!((h.end_ns / MS, h.ended), (5_920, Ended::Data));
}

/// The attempt at the other access point failed, and the radio was back on the first one's channel before it asked it again.
#[test]
fn the_channel_is_that_of_the_access_point_joined() {
    let mut all = before(0);
    all.extend([at(-4_000, What::Channel { mhz: 2_412 }), of(10, What::PortClosed, AP1)]);
    all.sort_by_key(|m| m.at_ns);
    all.push(of(20, What::AuthStart { algorithm: 0 }, AP2));
    all.extend([
        at(22, What::CarrierOff),
        at(23, What::Channel { mhz: 2_437 }),
        of(200, What::AuthTimeout, AP2),
    ]);
    all.extend([at(300, What::ScanStart), at(302, What::Channel { mhz: 2_412 })]);
    all.push(at(380, What::ScanDone { aborted: false }));
    all.extend(join(400, AP1));
    all.push(at(900, What::Received));
    let h = &run(&all)[0];
    assert_eq!((h.kind, h.to.bssid, h.to.mhz), (Kind::RoamFailed, Some(AP1), 2_412));
    // To another one on the channel of the first.
    let mut same = vec![at(-4_000, What::Channel { mhz: 2_412 })];
    same.extend(before(0));
    same.push(of(10, What::PortClosed, AP1));
    same.extend(join(20, AP2));
    same.push(at(900, What::Received));
    assert_eq!(run(&same)[0].to.mhz, 2_412);
}

/// Authorised at the second access point, and by the next command at the first again, before any data came.
#[test]
fn handovers_close_together_are_two() {
    let roam = |t: i64, from, to| {
        let mut all = vec![of(t, What::PortClosed, from)];
        all.push(of(t + 20, What::AuthStart { algorithm: 0 }, to));
        all.push(of(t + 21, What::Deauthenticated { own: true, reason: 3 }, from));
        all.push(at(t + 22, What::CarrierOff));
        all.extend(join(t + 20, to).into_iter().skip(1));
        all
    };
    let mut all = before(0);
    all.extend(roam(10, AP1, AP2));
    all.extend(roam(600, AP2, AP1));
    all.push(at(1_100, What::Received));
    let found = run(&all);
    let seen: Vec<_> =
        found.iter().map(|h| (h.kind, h.from.bssid, h.to.bssid, h.ended, h.attempts)).collect();
    assert_eq!(
        seen,
        [
            (Kind::Roam, Some(AP1), Some(AP2), Ended::Quiet, 1),
            (Kind::Roam, Some(AP2), Some(AP1), Ended::Data, 1)
        ]
    );
    assert!(found.iter().all(Handover::tiles));
    assert_eq!(found[0].link_up.as_ref().map(|m| m.at_ns), Some(398 * MS));
    assert_eq!(found[1].stop.as_ref().map(|m| m.at_ns), Some(600 * MS));
    // Sent away as soon as its port was open, it had been joined.
    let mut sent = before(0);
    sent.extend(roam(10, AP1, AP2));
    sent.push(of(500, What::Deauthenticated { own: false, reason: 5 }, AP2));
    sent.push(of(501, What::PortClosed, AP2));
    sent.push(at(502, What::CarrierOff));
    sent.extend(join(900, AP1));
    sent.push(at(1_400, What::Received));
    let two = run(&sent);
    let seen: Vec<_> =
        two.iter().map(|h| (h.kind, h.cause, h.attempts, h.link_ns().map(|n| n / MS))).collect();
    assert_eq!(
        seen,
        [
            (Kind::Roam, Cause::Chosen, 1, Some(366)),
            (Kind::Lost, Cause::SentAway { reason: 5 }, 1, Some(766))
        ]
    );
    // In the handshake it had not.
    sent.retain(|m| m.at_ns < 268 * MS || m.at_ns >= 500 * MS);
    let found = run(&sent);
    assert_eq!(found.len(), 1, "{found:#?}");
    assert_eq!((found[0].kind, found[0].attempts), (Kind::RoamFailed, 2));
    assert_eq!(found[0].refusals, ["deauthentication received, reason 5"]);
}

/// From one to the other and back within half a second, then to the same one again: each had its port open.
#[test]
fn each_open_port_is_a_handover() {
    let mut all = before(0);
    all.push(of(10, What::PortClosed, AP1));
    all.extend(join(11, AP2).into_iter().map(|m| Mark { at_ns: 11 * MS + (m.at_ns - 11 * MS) / 2, ..m }));
    all.push(of(240, What::PortClosed, AP2));
    all.extend(join(241, AP1).into_iter().map(|m| Mark { at_ns: 241 * MS + (m.at_ns - 241 * MS) / 2, ..m }));
    all.push(of(440, What::PortClosed, AP1));
    all.extend(join(441, AP1));
    all.push(at(900, What::Received));
    let found = run(&all);
    let seen: Vec<_> = found.iter().map(|h| (h.kind, h.to.bssid, h.attempts, h.ended)).collect();
    let expected = [
        (Kind::Roam, Some(AP2), 1, Ended::Quiet),
        (Kind::Roam, Some(AP1), 1, Ended::Quiet),
        (Kind::Rejoin, Some(AP1), 1, Ended::Data),
    ];
    assert_eq!(seen, expected);
    assert!(found.iter().all(Handover::tiles));
}

/// Sent away while its address is asked for, and right after it came.
#[test]
fn a_link_that_ends_before_its_address_came_is_over() {
    let mut all = before(0);
    all.push(of(10, What::PortClosed, AP1));
    all.extend(join(100, AP2));
    all.extend([
        at(600, What::Dhcp(Dhcp::Discover)),
        of(900, What::PortClosed, AP2),
        at(901, What::CarrierOff),
        of(903, What::Deauthenticated { own: false, reason: 5 }, AP2),
    ]);
    all.extend(join(1_000, AP1));
    all.extend([
        at(1_500, What::Dhcp(Dhcp::Request)),
        at(1_510, What::Dhcp(Dhcp::Ack)),
        at(1_520, What::AddressAdded { v6: false, tentative: false }),
        of(1_530, What::PortClosed, AP1),
        of(1_532, What::Deauthenticated { own: false, reason: 5 }, AP1),
    ]);
    all.extend(join(1_600, AP2));
    all.push(at(2_100, What::Received));
    let found = run(&all);
    let seen: Vec<_> = found.iter().map(|h| (h.to.bssid, h.ended, h.end_ns / MS, h.cause)).collect();
    let sent = Cause::SentAway { reason: 5 };
    assert_eq!(seen[0], (Some(AP2), Ended::LinkEnd, 900, seen[0].3));
    assert_eq!(seen[1..], [(Some(AP1), Ended::Quiet, 1_520, sent), (Some(AP2), Ended::Data, 2_100, sent)]);
    assert_eq!((found[0].of(Phase::Dhcp), found[1].begin_ns), (300 * MS, 900 * MS));
    assert!(found.iter().all(Handover::tiles));
}

/// What an access point's interface has of its stations, of its own beginning and its end.
#[test]
fn an_access_point_has_no_handovers() {
    let mut all =
        vec![at(0, What::AdminUp), at(1, What::CarrierOff), at(10, What::Serves), at(12, What::CarrierOn)];
    for i in 0..5 {
        let t = 1_000 + i * 2_000;
        all.push(of(t, What::PortAuthorised, AP2));
        // A scan of another interface of that radio.
        all.push(at(t + 500, What::ScanStart));
        all.push(of(t + 900, What::PortClosed, AP2));
        all.push(at(t + 950, What::ScanDone { aborted: false }));
    }
    all.push(at(20_000, What::AdminDown));
    all.push(at(20_001, What::CarrierOff));
    assert!(run(&all).is_empty(), "{:#?}", run(&all));
    // Recorded from its middle: nothing says what it is, but its own carrier did not go.
    let middle: Vec<Mark> =
        all.iter().filter(|m| m.at_ns >= 1_000 * MS && m.at_ns < 20_000 * MS).cloned().collect();
    assert!(run(&middle).is_empty(), "{:#?}", run(&middle));
    // As a station again it has.
    all.push(at(29_000, What::ScanStart));
    all.push(at(29_500, What::ScanDone { aborted: false }));
    all.extend(join(30_000, AP1));
    all.push(at(30_500, What::Received));
    let found = run(&all);
    assert_eq!(found.iter().map(|h| h.to.bssid).collect::<Vec<_>>(), [Some(AP1)]);
}

#[test]
fn an_address_that_another_host_has_is_named() {
    let mut all = before(0);
    all.push(at(20, What::CarrierOff));
    all.extend(join(100, AP2));
    all.extend([
        at(600, What::Dhcp(Dhcp::Discover)),
        at(610, What::Dhcp(Dhcp::Offer)),
        at(620, What::Dhcp(Dhcp::Request)),
        at(630, What::Dhcp(Dhcp::Ack)),
        with(640, What::DuplicateProbe, "10.1.0.50"),
        with(642, What::ArpReply { sent: false }, "10.1.0.50"),
        at(650, What::Dhcp(Dhcp::Decline)),
        at(12_650, What::Dhcp(Dhcp::Discover)),
        at(12_660, What::Dhcp(Dhcp::Offer)),
        at(12_670, What::Dhcp(Dhcp::Request)),
        at(12_680, What::Dhcp(Dhcp::Ack)),
        at(12_700, What::AddressAdded { v6: false, tentative: false }),
        at(12_710, What::Received),
    ]);
    let h = &run(&all)[0];
    assert!(h.tiles());
    let check = why(h, Phase::DuplicateCheck);
    assert!(check.contains("another host has 10.1.0.50"), "{check}");
    assert!(why(h, Phase::Dhcp).contains("DECLINE"), "{}", why(h, Phase::Dhcp));
    assert!(why(h, Phase::Dhcp).contains("the client took 12000 ms"), "{}", why(h, Phase::Dhcp));
}

/// As recorded on 7.2: one request for the old lease, and a server that was stopped meanwhile.
#[test]
fn an_answer_that_came_late_is_named() {
    let mut all = before(0);
    all.push(at(20, What::CarrierOff));
    all.extend(join(100, AP2));
    all.extend([with(600, What::Dhcp(Dhcp::Request), "10.1.0.60"), at(6_163, What::Dhcp(Dhcp::Ack))]);
    all.extend([at(6_700, What::AddressAdded { v6: false, tentative: false }), at(6_800, What::Received)]);
    let h = &run(&all)[0];
    assert_eq!(why(h, Phase::Dhcp), "after DHCP REQUEST 10.1.0.60 the server, or a relay, took 5563 ms");
    // Asked twice, as on 6.1: both answers came when the server went on.
    let mut twice = all.clone();
    twice.push(with(4_289, What::Dhcp(Dhcp::Request), "10.1.0.60"));
    twice.sort_by_key(|m| m.at_ns);
    assert_eq!(
        why(&run(&twice)[0], Phase::Dhcp),
        "DHCP REQUEST 10.1.0.60 had no answer in 3689 ms, after which the client asked again"
    );
    twice.push(at(6_165, What::Dhcp(Dhcp::Ack)));
    twice.sort_by_key(|m| m.at_ns);
    assert_eq!(
        why(&run(&twice)[0], Phase::Dhcp),
        "2 requests, and the answers to all of them came together: the server, or a relay, was late"
    );
    // Without an answer there was none, and what was sent only just then may have one.
    all.truncate(all.len() - 3);
    let until = |ms: i64| {
        let mut m = Machine::default();
        all.iter().for_each(|x| m.push(x));
        why(&m.finish(ms * MS)[0], Phase::Dhcp)
    };
    let ends = "the recording ends here: DHCP REQUEST 10.1.0.60 had no answer in the";
    assert!(until(6_000).starts_with(&format!("{ends} 5400 ms until then")), "{}", until(6_000));
    assert!(until(610).starts_with(&format!("{ends} 10 ms until then")), "{}", until(610));
}

#[test]
fn an_offer_that_is_never_confirmed_is_said() {
    let mut all = before(0);
    all.push(at(20, What::CarrierOff));
    all.extend(join(100, AP2));
    all.extend([
        at(600, What::Dhcp(Dhcp::Discover)),
        at(610, What::Dhcp(Dhcp::Offer)),
        at(620, What::Dhcp(Dhcp::Request)),
        at(3_620, What::Dhcp(Dhcp::Request)),
        at(8_620, What::Dhcp(Dhcp::Request)),
    ]);
    let h = &run(&all)[0];
    assert_eq!(h.ended, Ended::LogEnd);
    assert!(why(h, Phase::Dhcp).contains("no request for it was confirmed"), "{}", why(h, Phase::Dhcp));
    // Confirmed at last: those before are named.
    all.extend([
        at(14_620, What::Dhcp(Dhcp::Request)),
        at(14_640, What::Dhcp(Dhcp::Ack)),
        at(14_700, What::AddressAdded { v6: false, tentative: false }),
        at(14_800, What::Received),
    ]);
    let h = &run(&all)[0];
    assert_eq!(h.ended, Ended::Data);
    let words = why(h, Phase::Dhcp);
    assert!(words.contains("an address was offered, and 3 requests for it had no answer"), "{words}");
    assert!(!words.contains("searched"), "{words}");
    // One that is answered is none of them.
    all.retain(|m| m.at_ns < 620 * MS || m.at_ns > 9_000 * MS);
    let words = why(&run(&all)[0], Phase::Dhcp);
    assert!(!words.contains("offered"), "{words}");
}

/// As an authentication for a fast transition, which comes before anything of the old link ends.
#[test]
fn a_link_that_recording_found_is_no_first_join() {
    let mut all = vec![at(0, What::Found { up: true })];
    all.push(of(1_000, What::AuthStart { algorithm: 2 }, AP2));
    all.push(of(1_001, What::PortClosed, AP1));
    all.push(at(1_002, What::CarrierOff));
    all.extend(join(1_000, AP2).into_iter().skip(1));
    let h = &run(&all)[0];
    assert_eq!((h.kind, h.cause, h.from.bssid), (Kind::FastTransition, Cause::Chosen, Some(AP1)));
    // Found without one, nothing was lost.
    let h = &run(&all[1..])[0];
    assert_eq!(h.kind, Kind::FastTransition, "the old link's end shows that there was one");
}

/// The access point's word comes after the port was closed for it, and the scan, which nobody asked for because of it, goes on.
#[test]
fn a_loss_during_a_scan_is_not_led_to_by_it() {
    let mut all = before(0);
    all.push(at(-1_000, What::ScanStart));
    all.extend((0..20).map(|i| at(-990 + i * 400, What::Channel { mhz: 2_412 + i * 5 })));
    all.push(of(10, What::PortClosed, AP1));
    all.push(at(12, What::CarrierOff));
    all.push(of(13, What::Deauthenticated { own: false, reason: 3 }, AP1));
    all.push(at(7_000, What::ScanDone { aborted: false }));
    all.extend(join(7_050, AP2));
    all.push(at(7_500, What::Received));
    all.sort_by_key(|m| m.at_ns);
    let found = run(&all);
    assert_eq!(found.len(), 1, "{found:#?}");
    let h = &found[0];
    assert!(h.tiles(), "{:#?}", phases(h));
    assert_eq!((h.kind, h.cause), (Kind::Lost, Cause::SentAway { reason: 3 }));
    assert_eq!(h.begin_ns, 0);
    assert_eq!(phases(h)[..3], [(Phase::Detection, 10), (Phase::Probing, 6_990), (Phase::Selection, 50)]);
    // One that was over then is none of its pauses.
    let mut over = all.clone();
    over.iter_mut().filter(|m| matches!(m.what, What::ScanDone { .. })).for_each(|m| m.at_ns = -5 * MS);
    over.retain(|m| !matches!(m.what, What::Channel { .. }) || m.at_ns < 0);
    over.sort_by_key(|m| m.at_ns);
    let h = &run(&over)[0];
    assert!(h.tiles(), "{:#?}", phases(h));
    assert_eq!(phases(h)[..2], [(Phase::Detection, 10), (Phase::Reaction, 7_040)]);
    // Of a roam the scan is part.
    all.retain(|m| !matches!(m.what, What::Deauthenticated { .. }));
    let h = &run(&all)[0];
    assert_eq!(h.begin_ns, -1_000 * MS);
}

/// As recorded with SAE on 7.2, sent away during a scan: the protected frame was not looked at, and what the access point answered to data after it had no protection.
#[test]
fn what_is_not_believed_is_no_reason_until_the_station_asked() {
    let mut all = before(0);
    all.push(at(-1_900, What::ScanStart));
    all.extend((0..15).map(|i| of(246 + i * 80, What::Unprotected { reason: 7 }, AP1)));
    all.extend([at(1_501, What::CarrierOff), of(1_520, What::Deauthenticated { own: true, reason: 2 }, AP1)]);
    all.push(at(6_983, What::ScanDone { aborted: false }));
    all.extend(join(9_124, AP2));
    all.push(at(9_600, What::Received));
    all.sort_by_key(|m| m.at_ns);
    let h = &run(&all)[0];
    assert!(h.tiles());
    assert_eq!((h.kind, h.cause, h.begin_ns), (Kind::Lost, Cause::SentAway { reason: 7 }, 0));
    assert!(why(h, Phase::Detection).contains("SA query"), "{}", why(h, Phase::Detection));
    // The supplicant did not wait for the end of that scan.
    all.insert(all.len() - 13, with(6_980, What::Other, "scan-abort"));
    let words = why(&run(&all)[0], Phase::Probing);
    assert!(words.ends_with("; it was ended by request, before its last channels"), "{words}");
    // Somebody else's, of which nothing came: the station chose another access point later, and data went on until then.
    let mut all = before(3_000);
    all.push(of(500, What::Unprotected { reason: 7 }, AP1));
    all.extend([at(2_000, What::ScanStart), at(2_150, What::ScanDone { aborted: false })]);
    all.extend([of(3_010, What::PortClosed, AP1), of(3_100, What::AuthStart { algorithm: 4 }, AP2)]);
    all.extend([at(3_105, What::CarrierOff), of(3_110, What::Deauthenticated { own: true, reason: 1 }, AP1)]);
    all.extend(join(3_120, AP2).into_iter().skip(1));
    all.push(at(3_600, What::Received));
    all.sort_by_key(|m| m.at_ns);
    let h = &run(&all)[0];
    assert_eq!((h.kind, h.cause, h.begin_ns / MS), (Kind::Roam, Cause::Chosen, 2_000));
    // It ends no handover either that waits for its first data.
    all.pop();
    all.extend([of(5_900, What::Unprotected { reason: 7 }, AP2), at(6_200, What::Received)]);
    let found = run(&all);
    assert_eq!((found.len(), found[0].ended, found[0].end_ns / MS), (1, Ended::Data, 6_200));
}

/// As recorded on 7.2: the access point fell silent while the client waited for an answer.
#[test]
fn a_sign_of_the_next_one_is_none_of_the_last_one() {
    let mut all = vec![of(-3_000, What::PortAuthorised, AP1), at(-10, What::CarrierOff)];
    all.extend(join(0, AP2));
    all.push(at(1_000, What::Dhcp(Dhcp::Request)));
    all.extend([of(6_000, What::BeaconLoss, AP2), at(6_047, What::CarrierOff)]);
    all.extend(join(7_000, AP2));
    all.push(at(7_500, What::Received));
    let found = run(&all);
    let seen: Vec<_> = found.iter().map(|h| (h.begin_ns / MS, h.end_ns / MS, h.ended, h.tiles())).collect();
    assert_eq!(seen, [(-10, 6_000, Ended::LinkEnd, true), (6_000, 7_500, Ended::Data, true)]);
    assert_eq!(found[1].cause, Cause::Silent);
}

/// As recorded on 7.2: message 4 was sent once more, encrypted by the key that the access point had yet to take.
#[test]
fn a_port_that_is_shut_at_the_other_end() {
    let mut all = before(0);
    all.push(at(10, What::CarrierOff));
    all.extend(join(20, AP2));
    all.extend((1..6).flat_map(|i| {
        [at(400 + i * 1_000, What::ArpRequest { sent: true }), at(900 + i * 1_000, What::KeyFrame(3))]
    }));
    all.extend([at(6_990, What::ArpReply { sent: false }), at(7_000, What::Received)]);
    let words = why(&run(&all)[0], Phase::Neighbour);
    assert!(words.contains("sent message 3 of the handshake 5 times more"), "{words}");
}

/// A confirm that does not fit, as hostapd refuses it.
#[test]
fn sae_with_a_wrong_password_says_so() {
    let mut all = before(0);
    all.push(at(20, What::CarrierOff));
    all.extend([of(100, What::AuthStart { algorithm: 4 }, AP2), of(150, What::AuthReply { status: 0 }, AP2)]);
    all.extend([of(160, What::AuthStart { algorithm: 4 }, AP2), of(190, What::AuthReply { status: 1 }, AP2)]);
    all.push(at(900, What::ScanStart));
    let words = why(&run(&all)[0], Phase::Retry);
    assert!(words.contains("status 1 (as with a wrong password)"), "{words}");
}

/// As recorded on 7.2, of a processor that was too slow for the access point's answers.
#[test]
fn each_failed_attempt_has_its_own_reason() {
    let mut all = before(0);
    all.push(at(20, What::CarrierOff));
    all.extend(join(100, AP2).into_iter().take(3));
    all.push(of(500, What::AssocTimeout, AP2));
    all.extend([at(1_300, What::ScanStart), at(5_200, What::ScanDone { aborted: false })]);
    all.extend([of(5_900, What::AuthStart { algorithm: 0 }, AP1), of(5_920, What::AuthTimeout, AP1)]);
    all.extend(join(7_000, AP2));
    all.push(at(7_500, What::Received));
    let h = &run(&all)[0];
    let (first, second) = ("association: no answer", "authentication: no answer");
    assert_eq!(h.refusals, [first, second]);
    let expected = format!("failed attempt 1 of 2: {first} | failed attempt 2 of 2: {second}");
    assert_eq!(why(h, Phase::Retry), expected);
}

/// As recorded on 6.12: the access point's word, a second after the scan began, was looked at 21 s later.
#[test]
fn what_is_said_during_a_scan_waits_for_its_end() {
    let mut all = before(0);
    all.push(at(-1_170, What::ScanStart));
    all.extend((0..38).map(|i| at(-1_160 + i * 540, What::Channel { mhz: 2_412 + i * 5 })));
    all.push(at(20_653, What::ScanDone { aborted: false }));
    all.extend([at(20_667, What::CarrierOff), of(20_708, What::PortClosed, AP1)]);
    all.push(of(20_723, What::Deauthenticated { own: false, reason: 3 }, AP1));
    all.extend(join(21_354, AP2));
    all.push(at(22_928, What::Received));
    all.sort_by_key(|m| m.at_ns);
    let h = &run(&all)[0];
    assert!(h.tiles());
    assert_eq!((phases(h)[0], h.cause), ((Phase::Detection, 20_667), Cause::SentAway { reason: 3 }));
    let words = why(h, Phase::Detection);
    assert!(words.contains("a scan was going on"), "{words}");
    assert!(!why(h, Phase::Probing).contains("by request"));
    // Over long before, it was not what was waited for.
    all.retain(|m| !matches!(m.what, What::Channel { .. }) || m.at_ns < 5_000 * MS);
    all.iter_mut().filter(|m| matches!(m.what, What::ScanDone { .. })).for_each(|m| m.at_ns = 5_000 * MS);
    all.sort_by_key(|m| m.at_ns);
    let words = why(&run(&all)[0], Phase::Detection);
    assert!(words.contains("sent this station away"), "{words}");
}

/// Of two attempts with a wrong passphrase each has its own count.
#[test]
fn each_handshake_is_counted_by_itself() {
    let mut all = before(0);
    all.push(at(20, What::CarrierOff));
    for (t, times) in [(100, 3), (10_000, 5)] {
        all.extend(join(t, AP2).into_iter().take(5));
        all.extend((0..times * 2).map(|i| at(t + 200 + i * 500, What::KeyFrame(1 + i % 2))));
        all.push(of(t + 6_000, What::Deauthenticated { own: true, reason: 3 }, AP2));
    }
    let words = why(&run(&all)[0], Phase::KeyExchange);
    let counts: Vec<&str> = words.split(" | ").map(|w| w.split(" and").next().unwrap_or_default()).collect();
    assert_eq!(counts, ["message 1 came 3 times", "message 1 came 5 times"], "{words}");
}

#[test]
fn messages_that_came_again_are_counted() {
    let mut all = before(0);
    all.push(at(20, What::CarrierOff));
    all.extend(join(100, AP2));
    all.push(at(290, What::KeyFrame(1)));
    all.push(at(300, What::KeyFrame(2)));
    all.push(at(1_000, What::Received));
    all.sort_by_key(|m| m.at_ns);
    let words = why(&run(&all)[0], Phase::KeyExchange);
    assert!(words.starts_with("message 1 came 2 times: the access point repeats"), "{words}");
    all.retain(|m| m.at_ns != 290 * MS);
    assert_eq!(why(&run(&all)[0], Phase::KeyExchange), "");
}

/// Marks that a card has whose firmware does what mac80211 does: cfg80211's scan and connection, carrier and operational state.
#[test]
fn a_card_without_stations_is_up_by_its_state() {
    let mut all = before(0);
    all.retain(|m| m.what == What::Received);
    all.extend([
        at(10, What::CarrierOff),
        at(12, What::OperState(2)),
        at(500, What::ScanStart),
        at(2_500, What::ScanDone { aborted: false }),
        of(2_550, What::AuthStart { algorithm: 0 }, AP2),
        at(2_700, What::CarrierOn),
        at(2_701, What::OperState(5)),
        at(2_720, What::KeyFrame(1)),
        at(2_730, What::KeyFrame(2)),
        at(2_740, What::KeyFrame(3)),
        at(2_750, What::KeyFrame(4)),
        at(2_755, What::KeyAdded { pairwise: true }),
        at(2_760, What::OperState(6)),
        at(2_900, What::Dhcp(Dhcp::Request)),
        at(2_910, What::Dhcp(Dhcp::Ack)),
        at(2_930, What::Received),
    ]);
    let h = &run(&all)[0];
    assert!(h.tiles());
    assert_eq!((h.kind, h.ended), (Kind::Lost, Ended::Data));
    assert_eq!(h.link_up.as_ref().map(|m| m.at_ns), Some(2_760 * MS));
    assert_eq!((h.of(Phase::ClientStart), h.of(Phase::Dhcp)), (140 * MS, 10 * MS));
    // Nothing came after it.
    all.truncate(all.len() - 3);
    let h = &run(&all)[0];
    assert_eq!((h.ended, h.link_up.as_ref().map(|m| m.at_ns)), (Ended::Quiet, Some(2_760 * MS)));
    // With mac80211 it is the port, which comes later, whatever is sent in between: as recorded on 7.2, IPv6 looked for a router and had its own address at once.
    all.push(of(2_800, What::PortAuthorised, AP2));
    assert_eq!(run(&all)[0].link_up.as_ref().map(|m| m.at_ns), Some(2_800 * MS));
    all.extend([at(2_552, What::Station), at(2_770, What::AddressAdded { v6: true, tentative: false })]);
    all.push(at(2_772, What::RouterSolicit));
    all.sort_by_key(|m| m.at_ns);
    assert_eq!(run(&all)[0].link_up.as_ref().map(|m| m.at_ns), Some(2_800 * MS));
}

/// As a guest's 6.1 had it: the access point's frame is reported after the carrier and the port that it ended. The supplicant had been connected.
#[test]
fn the_frame_that_ended_a_link_is_named() {
    let mut all = before(0);
    all.push(of(10, What::PortClosed, AP1));
    all.extend(join(212, AP2));
    all.push(at(1_377, What::CarrierOff));
    all.push(of(1_380, What::PortClosed, AP2));
    all.push(of(1_461, What::Deauthenticated { own: false, reason: 8 }, AP2));
    all.extend(join(2_700, AP1));
    all.push(at(3_300, What::Received));
    let found = run(&all);
    let seen: Vec<_> = found.iter().map(|h| (h.to.bssid, h.cause, h.attempts)).collect();
    assert_eq!(seen[0].0, Some(AP2));
    assert_eq!(seen[1..], [(Some(AP1), Cause::SentAway { reason: 8 }, 1)]);
    // Before its port was open that was an attempt.
    all.retain(|m| m.what != What::PortAuthorised || m.at_ns < 0 || m.at_ns > 2_000 * MS);
    let h = &run(&all)[0];
    assert_eq!(h.refusals, ["deauthentication received, reason 8"]);
    assert_eq!((h.kind, h.attempts), (Kind::RoamFailed, 2));
}

/// Its interface is opened after the recording began, which takes a carrier that it never had.
#[test]
fn an_interface_that_was_down_joins_first() {
    let mut all =
        vec![at(0, What::Found { up: false }), at(485, What::CarrierOff), at(492, What::OperState(6))];
    all.extend([at(7_039, What::ScanStart), at(7_250, What::ScanDone { aborted: false })]);
    all.extend(join(7_909, AP1));
    let found = run(&all);
    assert_eq!(found.iter().map(|h| (h.kind, h.to.bssid)).collect::<Vec<_>>(), [(Kind::Join, Some(AP1))]);
}

/// What the kernel does when it is opened is no loss; neither is its port's first state at a bridge, or that it is closed again without having had a link.
#[test]
fn what_had_no_link_loses_none() {
    let run = |marks: &[Mark]| {
        let mut m = Machine::starting(false);
        marks.iter().for_each(|x| m.push(x));
        m.finish(10_000 * MS)
    };
    let mut all = vec![at(485, What::CarrierOff), at(486, What::AdminUp), at(700, What::AdminDown)];
    all.extend([at(900, What::AdminUp), at(901, What::CarrierOff), at(950, What::BridgePort(0))]);
    assert!(run(&all).is_empty(), "{:#?}", run(&all));
    all.extend(join(1_909, AP1));
    let found = run(&all);
    let seen: Vec<_> = found.iter().map(|h| (h.kind, h.cause, h.from.bssid, h.to.bssid)).collect();
    assert_eq!(seen, [(Kind::Join, Cause::Unknown, None, Some(AP1))]);
    assert_eq!(found[0].begin_ns, 1_909 * MS);
}
