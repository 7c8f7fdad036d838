//! Attempts that an access point refuses: what its status says.

use super::tests::{AP1, AP2, at, before, join, of, run};
use super::*;

/// A roam to an access point that answers with this status; as recorded on 6.12 of one that takes no more stations, rounded.
fn wait(algorithm: i64, status: i64) -> String {
    let mut all = before(0);
    all.extend([of(10, What::PortClosed, AP1), at(12, What::CarrierOff), at(188, What::ScanStart)]);
    all.push(at(325, What::ScanDone { aborted: false }));
    all.extend([of(496, What::AuthStart { algorithm }, AP2), of(620, What::AuthReply { status }, AP2)]);
    all.extend([at(1_590, What::ScanStart), at(1_792, What::ScanDone { aborted: false })]);
    all.extend(join(2_972, AP1));
    all.push(at(4_000, What::Received));
    let h = &run(&all)[0];
    h.spans.iter().find(|s| s.phase == Phase::Retry).and_then(|s| s.why.clone()).unwrap_or_default()
}

#[test]
fn a_status_says_why_the_access_point_refused() {
    let of_open = |status| wait(0, status);
    assert_eq!(
        of_open(17),
        "authentication answered, status 17 (access point is full): the supplicant waits before it tries again"
    );
    assert!(of_open(1).contains("status 1 (unspecified, as of a station that is not allowed)"));
    assert!(of_open(55).contains("status 55 (fast transition element not valid): the supplicant"));
    // Of one without a name the number stands alone.
    assert!(of_open(200).contains("status 200: the supplicant"));
    // Only SAE has a password in its authentication.
    assert!(wait(4, 1).contains("status 1 (as with a wrong password)"));
}

fn why(h: &Handover, phase: Phase) -> String {
    let s = h.spans.iter().find(|s| s.phase == phase);
    s.and_then(|s| s.why.clone()).unwrap_or_default()
}

/// As recorded on 6.12 of an open access point which says that it has keys: it takes the station, and never begins the handshake.
#[test]
fn who_never_begins_the_handshake_is_named() {
    let mut all = before(0);
    all.push(of(0, What::PortClosed, AP1));
    all.push(of(171, What::AuthStart { algorithm: 0 }, AP2));
    all.push(at(172, What::CarrierOff));
    all.push(of(217, What::Deauthenticated { own: true, reason: 1 }, AP1));
    all.push(of(244, What::AuthReply { status: 0 }, AP2));
    all.push(of(650, What::AssocStart { again: true }, AP2));
    all.push(at(662, What::CarrierOn));
    all.push(of(663, What::AssocReply { status: 0 }, AP2));
    all.extend((0..11).map(|i| at(1_367 + i * 1_000, What::ArpRequest { sent: true })));
    all.push(of(10_964, What::Leaves, AP2));
    all.push(at(10_965, What::CarrierOff));
    all.push(of(11_000, What::Deauthenticated { own: true, reason: 3 }, AP2));
    all.extend(join(11_760, AP1));
    all.push(at(13_252, What::Received));
    all.sort_by_key(|m| m.at_ns);
    let h = &run(&all)[0];
    assert_eq!((h.kind, h.cause), (Kind::RoamFailed, Cause::Chosen));
    assert_eq!(
        why(h, Phase::KeyWait),
        "the access point had taken this station, and sent no first message of the 4-way handshake"
    );
}

/// As recorded with SAE on 6.12: back at an access point that still has the station, which it asks first (802.11w).
#[test]
fn an_association_that_is_put_off_is_no_attempt_that_failed() {
    let mut all = before(0);
    all.push(of(0, What::PortClosed, AP1));
    all.push(of(118, What::AuthStart { algorithm: 0 }, AP2));
    all.push(at(119, What::CarrierOff));
    all.push(of(158, What::AuthReply { status: 0 }, AP2));
    all.push(of(361, What::AssocStart { again: true }, AP2));
    all.push(of(374, What::AssocPutOff { ms: 1_024 }, AP2));
    all.push(at(1_446, What::CarrierOn));
    all.push(of(1_447, What::AssocReply { status: 0 }, AP2));
    all.extend(join(1_300, AP2).into_iter().skip(5).map(|m| Mark { at_ns: m.at_ns + 20_000_000, ..m }));
    all.push(at(2_333, What::Received));
    let h = &run(&all)[0];
    assert_eq!((h.kind, h.refusals.len(), h.attempts), (Kind::Roam, 0, 1));
    assert!(
        why(h, Phase::Association).starts_with("the access point refused the request for now (status 30), ")
    );
    assert_eq!(h.of(Phase::Association), 1_085_000_000);
}

/// As recorded of a supplicant that was killed and started 4 s later.
#[test]
fn who_left_is_named() {
    let mut all = before(-9);
    let by = |name: &str| Mark { text: Some(name.into()), ..of(-8, What::LeftBy, AP1) };
    all.push(by("kworker/0:1"));
    all.push(at(0, What::CarrierOff));
    all.push(of(13, What::PortClosed, AP1));
    all.push(of(14, What::Deauthenticated { own: true, reason: 3 }, AP1));
    all.push(at(5_693, What::ScanStart));
    all.push(at(5_839, What::ScanDone { aborted: false }));
    all.extend(join(6_048, AP1));
    all.push(at(7_552, What::Received));
    let h = &run(&all)[0];
    assert_eq!((h.kind, h.cause), (Kind::Rejoin, Cause::Left { reason: 3 }));
    assert!(why(h, Phase::Reaction).starts_with("the kernel itself left the access point, as when"));
    all.iter_mut().filter(|m| m.what == What::LeftBy).for_each(|m| *m = by("iw"));
    assert!(why(&run(&all)[0], Phase::Reaction).starts_with("iw left the access point, and nobody"));
    // Nobody here did, and the supplicant was stopped.
    all.retain(|m| m.what != What::LeftBy);
    assert!(why(&run(&all)[0], Phase::Reaction).starts_with("nobody looked for a network until then: "));
    // net/wireless/sysfs.c, wiphy_suspend: who asks for it leaves, and the radio is suspended.
    let other = |ms: i64, name: &str| Mark { text: Some(name.into()), ..at(ms, What::Other) };
    all.extend([by("systemd-sleep"), other(20, "suspend"), other(5_520, "resume")]);
    all.sort_by_key(|m| m.at_ns);
    assert_eq!(
        why(&run(&all)[0], Phase::Reaction),
        "the radio was suspended for 5500 ms of it: this host slept"
    );
}

/// As recorded on 6.12 of a wrong password: after the attempt wpa_supplicant leaves the network out for 10 s, which the next scan finds all the same.
#[test]
fn what_failed_is_left_out_for_a_while() {
    let mut all = before(0);
    all.extend([of(0, What::Leaves, AP1), of(1, What::PortClosed, AP1), at(2, What::CarrierOff)]);
    all.push(of(12, What::Deauthenticated { own: true, reason: 3 }, AP1));
    all.extend([at(300, What::ScanStart), at(450, What::ScanDone { aborted: false })]);
    all.extend(join(600, AP1).into_iter().take(6));
    all.push(at(800, What::KeyFrame(2)));
    all.extend((1..11).map(|i| at(773 + i * 1_000, What::KeyFrame(1))));
    all.push(at(11_200, What::CarrierOff));
    all.push(of(11_220, What::Deauthenticated { own: true, reason: 15 }, AP1));
    all.extend([at(11_800, What::ScanStart), at(11_950, What::ScanDone { aborted: false })]);
    all.extend([at(17_000, What::ScanStart), at(17_150, What::ScanDone { aborted: false })]);
    all.extend(join(17_300, AP1));
    all.push(at(18_000, What::Received));
    all.sort_by_key(|m| m.at_ns);
    let found = run(&all);
    assert_eq!(found.len(), 1, "{found:#?}");
    let h = &found[0];
    assert!(why(h, Phase::KeyExchange).ends_with("as with a wrong passphrase"));
    assert_eq!(
        why(h, Phase::Retry),
        "deauthentication sent, reason 15 (4-way handshake timeout): the supplicant waits before it tries again"
    );
    assert!(
        why(h, Phase::ProbingPause)
            .starts_with("nothing was joined: what failed before the supplicant leaves out")
    );
    let scans: Vec<_> = h.spans.iter().filter(|s| s.phase == Phase::Probing).collect();
    assert_eq!(scans.len(), 3);
    assert!(scans.iter().all(|s| !s.why.as_deref().unwrap_or("").contains("nothing to join")));
}
