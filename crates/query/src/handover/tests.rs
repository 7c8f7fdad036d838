//! Handovers whose phases are known, and the same marks shuffled, cut, doubled and thinned out.

use super::*;

pub(super) const AP1: [u8; 6] = [2, 0, 0, 0, 0, 0];
pub(super) const AP2: [u8; 6] = [2, 0, 0, 0, 1, 0];
const MS: i64 = 1_000_000;

pub(super) fn at(ms: i64, what: What) -> Mark {
    Mark::new(ms * MS, what, Source::Wifi(ms))
}

pub(super) fn of(ms: i64, what: What, ap: [u8; 6]) -> Mark {
    Mark { bssid: Some(ap), ..at(ms, what) }
}

fn v4() -> What {
    What::AddressAdded { v6: false, tentative: false }
}

/// A flow of 20 ms and the link that it goes over.
pub(super) fn before(until_ms: i64) -> Vec<Mark> {
    let mut all = vec![of(-3_000, What::PortAuthorised, AP1)];
    all.extend((-100..).map(|i| at(i * 20, What::Received)).take_while(|m| m.at_ns <= until_ms * MS));
    all
}

pub(super) fn join(t: i64, ap: [u8; 6]) -> Vec<Mark> {
    vec![
        of(t, What::AuthStart { algorithm: 0 }, ap),
        of(t + 25, What::AuthReply { status: 0 }, ap),
        of(t + 53, What::AssocStart { again: false }, ap),
        of(t + 66, What::AssocReply { status: 0 }, ap),
        at(t + 66, What::CarrierOn),
        at(t + 173, What::KeyFrame(1)),
        at(t + 206, What::KeyFrame(2)),
        at(t + 226, What::KeyFrame(3)),
        at(t + 248, What::KeyFrame(4)),
        at(t + 300, What::KeyAdded { pairwise: true }),
        of(t + 368, What::PortAuthorised, ap),
    ]
}

fn dhcp_of_other_subnet(t: i64) -> Vec<Mark> {
    vec![
        at(t, What::Dhcp(Dhcp::Request)),
        at(t + 20, What::Dhcp(Dhcp::Nak)),
        at(t + 722, What::Dhcp(Dhcp::Discover)),
        at(t + 734, What::Dhcp(Dhcp::Offer)),
        at(t + 740, What::Dhcp(Dhcp::Request)),
        at(t + 754, What::Dhcp(Dhcp::Ack)),
        at(t + 983, v4()),
    ]
}

/// S1 of the research: the access point goes silent, a full scan, another subnet.
fn silent_loss() -> Vec<Mark> {
    let mut all = before(0);
    all.push(of(1_018, What::BeaconLoss, AP1));
    all.push(of(1_020, What::Deauthenticated { own: true, reason: 4 }, AP1));
    all.push(at(1_021, What::CarrierOff));
    all.push(at(1_022, What::PortClosed));
    all.push(at(1_448, What::ScanStart));
    all.extend((0..38).map(|i| at(1_449 + i * 200, What::Channel { mhz: 2_412 + i * 5 })));
    all.push(at(9_514, What::ScanDone { aborted: false }));
    all.extend(join(9_555, AP2));
    all.extend(dhcp_of_other_subnet(10_674));
    all.push(at(11_670, What::ArpRequest { sent: true }));
    all.push(at(11_672, What::ArpReply { sent: false }));
    all.push(at(11_770, What::Received));
    all
}

fn phases(h: &Handover) -> Vec<(Phase, i64)> {
    h.spans.iter().map(|s| (s.phase, s.dur_ns() / MS)).collect()
}

pub(super) fn run(marks: &[Mark]) -> Vec<Handover> {
    let mut m = Machine::default();
    marks.iter().for_each(|x| m.push(x));
    m.finish(marks.iter().map(|x| x.at_ns).max().unwrap_or(0))
}

#[test]
fn a_silent_loss_has_its_phases() {
    let found = run(&silent_loss());
    assert_eq!(found.len(), 1, "{found:#?}");
    let h = &found[0];
    assert!(h.tiles());
    let expected = [
        (Phase::Detection, 1_021),
        (Phase::Reaction, 427),
        (Phase::Probing, 8_066),
        (Phase::Selection, 41),
        (Phase::Authentication, 25),
        (Phase::PreAssociation, 28),
        (Phase::Association, 13),
        (Phase::KeyWait, 107),
        (Phase::KeyExchange, 75),
        (Phase::KeyInstall, 120),
        (Phase::ClientStart, 751),
        (Phase::Dhcp, 754),
        (Phase::Address, 229),
        (Phase::FirstData, 13),
        (Phase::Neighbour, 2),
        (Phase::FirstData, 98),
    ];
    assert_eq!(phases(h), expected);
    assert_eq!((h.kind, h.cause, h.ended), (Kind::Lost, Cause::Silent, Ended::Data));
    assert_eq!((h.from.bssid, h.to.bssid), (Some(AP1), Some(AP2)));
    assert_eq!(h.link_ns(), Some((9_923 - 1_021) * MS));
    assert_eq!(h.outage_ns(), Some((11_770 - 1_021) * MS));
    assert_eq!(h.search_ns(), Some((9_555 - 1_021) * MS));
    let why =
        |p: Phase| h.spans.iter().find(|s| s.phase == p).and_then(|s| s.why.clone()).unwrap_or_default();
    assert!(why(Phase::Probing).contains("full scan of 38 channels"), "{}", why(Phase::Probing));
    assert!(why(Phase::Dhcp).contains("NAK"), "{}", why(Phase::Dhcp));
    assert!(why(Phase::Dhcp).contains("the client took 702 ms"), "{}", why(Phase::Dhcp));
}

#[test]
fn a_roam_scans_before_its_link_is_down() {
    let mut all = before(-60);
    all.push(at(-50, What::ScanStart));
    all.push(at(-48, What::Received));
    all.push(at(35, What::ScanDone { aborted: false }));
    all.push(at(38, What::Received));
    all.push(of(40, What::PortClosed, AP1));
    all.push(of(57, What::AuthStart { algorithm: 0 }, AP2));
    all.push(of(58, What::Deauthenticated { own: true, reason: 3 }, AP1));
    all.push(at(60, What::CarrierOff));
    all.extend(join(57, AP2).into_iter().skip(1));
    all.push(at(200, What::ArpRequest { sent: true }));
    all.push(at(1_002, What::Received));
    all.sort_by_key(|m| m.at_ns);
    let found = run(&all);
    assert_eq!(found.len(), 1);
    let h = &found[0];
    assert!(h.tiles());
    assert_eq!((h.kind, h.cause), (Kind::Roam, Cause::Chosen));
    let names: Vec<Phase> = h.spans.iter().map(|s| s.phase).collect();
    use Phase::*;
    assert_eq!(
        names,
        [
            Probing,
            Selection,
            Authentication,
            PreAssociation,
            Association,
            KeyWait,
            KeyExchange,
            KeyInstall,
            FirstData
        ]
    );
    assert_eq!(h.stop.as_ref().map(|m| m.at_ns), Some(40 * MS));
    assert_eq!(h.outage_ns(), Some(962 * MS));
    let why = h.spans.last().and_then(|s| s.why.clone()).unwrap_or_default();
    assert!(why.contains("before the port was authorised"), "{why}");
}

#[test]
fn failed_scans_are_pauses_between_scans() {
    let mut all = before(0);
    all.push(at(1_000, What::CarrierOff));
    for i in 0..4 {
        all.push(at(2_000 + i * 13_000, What::ScanStart));
        all.push(at(10_000 + i * 13_000, What::ScanDone { aborted: false }));
    }
    all.extend(join(49_050, AP2));
    all.push(at(49_500, What::Received));
    let h = &run(&all)[0];
    assert!(h.tiles());
    assert_eq!((h.of(Phase::Probing), h.of(Phase::ProbingPause)), (32_000 * MS, 15_000 * MS));
    assert_eq!(h.of(Phase::Selection), 50 * MS);
    assert_eq!(h.cause, Cause::Silent);
}

#[test]
fn a_wrong_passphrase_is_attempts_that_fail() {
    let mut all = before(0);
    all.push(of(10, What::Deauthenticated { own: false, reason: 3 }, AP1));
    all.push(at(11, What::CarrierOff));
    for i in 0..3 {
        let t = 1_000 + i * 10_000;
        all.push(at(t - 500, What::ScanStart));
        all.push(at(t - 100, What::ScanDone { aborted: false }));
        all.extend(join(t, AP2).into_iter().take(5));
        all.extend((0..4).map(|k| at(t + 100 + k * 1_000, What::KeyFrame(1 + k % 2))));
        all.push(of(t + 4_100, What::Deauthenticated { own: false, reason: 15 }, AP2));
        all.push(at(t + 4_101, What::CarrierOff));
    }
    let h = &run(&all)[0];
    assert!(h.tiles());
    assert_eq!((h.kind, h.ended, h.attempts), (Kind::Unfinished, Ended::LogEnd, 3));
    assert_eq!(h.cause, Cause::SentAway { reason: 3 });
    assert_eq!(h.refusals.len(), 3);
    let exchange = h.spans.iter().find(|s| s.phase == Phase::KeyExchange).unwrap();
    assert!(exchange.why.as_deref().unwrap_or_default().contains("passphrase"), "{exchange:?}");
    assert_eq!(h.spans.iter().filter(|s| s.phase == Phase::Retry).count(), 3);
}

#[test]
fn sae_open_and_fast_transition_differ_in_what_is_missing() {
    let link = |algorithm: i64| {
        let mut all = before(0);
        all.push(of(5, What::PortClosed, AP1));
        all.push(of(6, What::AuthStart { algorithm }, AP2));
        all.push(at(7, What::CarrierOff));
        all
    };
    let mut sae = link(4);
    sae.push(of(30, What::AuthReply { status: 126 }, AP2));
    sae.push(of(40, What::AuthStart { algorithm: 4 }, AP2));
    sae.extend(join(30, AP2).into_iter().skip(1));
    sae.push(at(500, What::Received));
    let h = &run(&sae)[0];
    assert_eq!((h.of(Phase::Authentication), h.attempts), (49 * MS, 1));
    let mut ft = link(2);
    ft.extend(join(30, AP2).into_iter().skip(1).filter(|m| !matches!(m.what, What::KeyFrame(_))));
    ft.push(at(500, What::Received));
    let h = &run(&ft)[0];
    assert!(h.tiles());
    assert_eq!((h.kind, h.of(Phase::KeyExchange)), (Kind::FastTransition, 0));
    // Refused there, and back where it came from in the ordinary way.
    let mut back = link(2);
    back.extend(join(30, AP1));
    back.push(at(500, What::Received));
    let h = &run(&back)[0];
    assert_eq!((h.kind, h.attempts), (Kind::RoamFailed, 2));
    assert_eq!(h.first_auth.as_ref().map(|m| m.bssid), h.link_up.as_ref().map(|m| m.bssid));
    let mut open = link(0);
    open.extend(
        join(30, AP2)
            .into_iter()
            .skip(1)
            .filter(|m| !matches!(m.what, What::KeyFrame(_) | What::KeyAdded { .. })),
    );
    open.push(at(500, What::Received));
    let h = &run(&open)[0];
    assert!(h.tiles());
    assert_eq!(
        (h.of(Phase::KeyWait), h.of(Phase::KeyInstall), h.of(Phase::PortOpening)),
        (0, 0, (368 - 66) * MS)
    );
}

#[test]
fn ipv6_waits_for_duplicates_and_a_router() {
    let mut all = before(0);
    all.push(at(20, What::CarrierOff));
    all.extend(join(100, AP2));
    let local = |ms, tentative| Mark {
        text: Some("fe80::1/64".into()),
        ..at(ms, What::AddressAdded { v6: true, tentative })
    };
    let global = |ms, tentative| Mark {
        text: Some("2001:db8::1/64".into()),
        ..at(ms, What::AddressAdded { v6: true, tentative })
    };
    all.push(local(480, true));
    all.push(local(1_500, false));
    all.push(at(1_501, What::RouterSolicit));
    all.push(at(1_700, What::RouterAdvert));
    all.push(global(1_702, true));
    all.push(global(2_760, false));
    all.push(at(2_800, What::Received));
    let h = &run(&all)[0];
    assert!(h.tiles());
    assert_eq!(h.of(Phase::DuplicateCheck), (1_020 + 1_058) * MS);
    // With the time until it was asked: no client was started.
    assert_eq!(h.of(Phase::RouterWait), (12 + 1 + 199) * MS);
    // With DHCPv4 after it that was beside the point.
    let last = all.pop().unwrap();
    all.extend(dhcp_of_other_subnet(3_000));
    all.push(Mark { at_ns: 5_000 * MS, ..last });
    let h = &run(&all)[0];
    assert!(h.tiles());
    assert_eq!((h.of(Phase::DuplicateCheck), h.of(Phase::RouterWait)), (0, 0));
    assert_eq!(h.of(Phase::Dhcp), 754 * MS);
}

#[test]
fn wires_and_bridge_ports_have_no_radio() {
    let mut all: Vec<Mark> = (0..50).map(|i| at(i * 20, What::Received)).collect();
    all.push(at(1_000, What::CarrierOff));
    all.push(at(3_000, What::CarrierOn));
    all.push(at(3_100, What::ArpRequest { sent: true }));
    all.push(at(3_101, What::ArpReply { sent: false }));
    all.push(at(3_120, What::Received));
    let h = &run(&all)[0];
    assert_eq!((h.kind, h.cause), (Kind::LinkFlap, Cause::Carrier));
    assert_eq!(h.spans[1].why, None);
    let mut early = all.clone();
    early.insert(51, at(1_500, What::ArpRequest { sent: true }));
    early.retain(|m| m.at_ns <= 3_000 * MS);
    early.push(at(3_500, What::Received));
    let why = run(&early)[0].spans[1].why.clone().unwrap_or_default();
    assert!(why.contains("before the carrier was back"), "{why}");
    assert_eq!(
        phases(h),
        [(Phase::LinkDown, 2_000), (Phase::FirstData, 100), (Phase::Neighbour, 1), (Phase::FirstData, 19)]
    );
    let states = [(1_000, 1), (16_000, 2), (31_000, 3)];
    let mut all: Vec<Mark> = (0..50).map(|i| at(i * 20, What::Received)).collect();
    all.extend(states.map(|(ms, s)| at(ms, What::BridgePort(s))));
    all.push(at(31_020, What::Received));
    let h = &run(&all)[0];
    assert_eq!(h.kind, Kind::BridgePort);
    assert_eq!(h.of(Phase::BridgePort), 30_000 * MS);
}

#[test]
fn without_data_it_ends_with_what_came_last() {
    let mut all: Vec<Mark> = silent_loss().into_iter().filter(|m| m.what != What::Received).collect();
    all.push(at(19_000, What::ArpRequest { sent: false }));
    let h = &run(&all)[0];
    assert!(h.tiles() && h.marks.iter().all(|m| m.at_ns <= h.end_ns));
    assert_eq!((h.ended, h.end_ns), (Ended::Quiet, 11_672 * MS));
    assert!(h.first_data().is_none());
}

#[test]
fn a_scan_that_leads_to_nothing_is_no_handover() {
    let mut all = before(0);
    for i in 0..20 {
        all.push(at(i * 60_000 + 10, What::ScanStart));
        all.push(at(i * 60_000 + 600, What::ScanDone { aborted: false }));
        all.push(at(i * 60_000 + 700, What::Received));
    }
    assert!(run(&all).is_empty());
}

#[test]
fn a_mark_has_its_frame_and_other_frames_are_marks() {
    use super::gather::air::{Heard, Sort, pair};
    let auth = |ms: i64, number: i64, again: bool| Heard {
        at_ns: ms * MS,
        capture: 1,
        number,
        sort: Sort::Auth { sent: true },
        peer: AP2,
        again,
        sequence: number as i32,
    };
    let mut marks = vec![of(10, What::AuthStart { algorithm: 0 }, AP2), at(40, What::CarrierOn)];
    // Sent twice; to another; too late.
    let other = Heard { peer: AP1, ..auth(10, 2, false) };
    pair(&mut marks, &[other, auth(12, 3, false), auth(13, 4, true), auth(500, 5, false)], 0..=i64::MAX);
    assert_eq!(marks[0].frame, Some((1, 3, 12 * MS)));
    assert_eq!(marks[0].evidence(), "wifi event 10; frame 3 of capture 1, 2.000 ms after");
    let frames: Vec<Option<i64>> =
        marks.iter().filter(|m| Lane::of(m) == Lane::Air).map(|m| m.source.number()).collect();
    assert_eq!(frames, [Some(2), Some(4), Some(5)]);
    assert!(marks.is_sorted_by_key(|m| m.at_ns));
    // Heard by two sniffers, and by one of them twice.
    let by = |capture, ms, sequence| Heard { capture, sequence, ..auth(ms, 9, false) };
    let mut heard = vec![by(0, 10, 7), by(1, 11, 7), by(1, 12, 8), by(1, 13, 8), by(0, 900, 7)];
    super::gather::air::once(&mut heard);
    assert_eq!(heard.iter().map(|f| f.at_ns / MS).collect::<Vec<_>>(), [10, 12, 13, 900]);
}

/// Small and the same everywhere.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, below: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % below.max(1) as u64) as usize
    }
}

fn every_mark(ms: i64, dice: &mut Dice) -> Mark {
    let ap = [AP1, AP2][dice.roll(2)];
    let n = dice.roll(8) as i64;
    let flag = n % 2 == 0;
    let all = [
        What::SignalLow { dbm: -n },
        What::BeaconLoss,
        What::Deauthenticated { own: flag, reason: n },
        What::Disconnected { reason: n },
        What::CarrierOff,
        What::CarrierOn,
        What::AdminDown,
        What::Gone,
        What::AdminUp,
        What::OperState(n),
        What::ScanStart,
        What::Channel { mhz: n },
        What::ProbeRequest { mhz: n },
        What::ScanDone { aborted: flag },
        What::AuthStart { algorithm: n },
        What::AuthReply { status: n },
        What::AuthTimeout,
        What::AssocStart { again: flag },
        What::AssocReply { status: n },
        What::AssocTimeout,
        What::KeyFrame(n),
        What::KeyAdded { pairwise: flag },
        What::PortAuthorised,
        What::PortClosed,
        What::Dhcp(Dhcp::of_v4(n)),
        What::Dhcp(Dhcp::of_v6(n)),
        What::AddressAdded { v6: flag, tentative: n > 3 },
        What::AddressRemoved { v6: flag },
        What::Duplicate,
        What::RouterSolicit,
        What::RouterAdvert,
        What::DuplicateProbe,
        What::ArpRequest { sent: flag },
        What::ArpReply { sent: flag },
        What::BridgePort(n),
        What::Received,
        What::Other,
    ];
    of(ms, all[dice.roll(all.len())], ap)
}

fn check(marks: &[Mark]) {
    for h in run(marks) {
        assert!(h.tiles(), "{:?} {} {} of {marks:#?}", phases(&h), h.begin_ns, h.end_ns);
        assert!(h.marks.len() <= 4_096);
        let _ = (h.outage_ns(), h.link_ns(), h.search_ns(), h.cause.label(), h.kind.label());
        Statistics::of(std::iter::once(&h));
    }
}

#[test]
fn any_order_of_any_marks_tiles() {
    let mut dice = Dice(0x9e37_79b9_7f4a_7c15);
    for _ in 0..3_000 {
        let n = 1 + dice.roll(60);
        // Times may go back, stand still and jump.
        let mut ms = 0;
        let marks: Vec<Mark> = (0..n)
            .map(|_| {
                ms += [0, 1, 30, 900, 20_000, -5][dice.roll(6)];
                every_mark(ms, &mut dice)
            })
            .collect();
        check(&marks);
    }
}

#[test]
fn shuffled_cut_doubled_and_thinned_marks_tile() {
    let whole = silent_loss();
    let mut dice = Dice(77);
    for round in 0..2_000 {
        let mut marks = whole.clone();
        for _ in 0..1 + dice.roll(20) {
            let (a, b) = (dice.roll(marks.len()), dice.roll(marks.len()));
            match round % 4 {
                0 => marks.swap(a, b),
                1 => drop(marks.remove(a)),
                2 => marks.insert(b, marks[a].clone()),
                _ => marks.truncate(marks.len() - 1 - a % 20),
            }
            if marks.len() < 30 {
                break;
            }
        }
        check(&marks);
    }
}

#[test]
fn generated_handovers_give_the_phases_they_were_made_of() {
    let mut dice = Dice(4);
    for _ in 0..300 {
        let (mut all, mut t, mut made) = (before(0), 0, Vec::new());
        let mut wait = |phase: Phase, t: &mut i64, dice: &mut Dice| {
            let ms = 2 + dice.roll(3_000) as i64;
            *t += ms;
            made.push((phase, ms));
        };
        wait(Phase::Detection, &mut t, &mut dice);
        // What is sooner than the flow's pace is none.
        if t <= 20 {
            continue;
        }
        all.push(at(t, What::CarrierOff));
        wait(Phase::Reaction, &mut t, &mut dice);
        let scans = 1 + dice.roll(4);
        for i in 0..scans {
            all.push(at(t, What::ScanStart));
            wait(Phase::Probing, &mut t, &mut dice);
            all.push(at(t, What::ScanDone { aborted: false }));
            wait(if i + 1 < scans { Phase::ProbingPause } else { Phase::Selection }, &mut t, &mut dice);
        }
        for phase in [Phase::Authentication, Phase::PreAssociation, Phase::Association] {
            all.push(of(
                t,
                match phase {
                    Phase::Authentication => What::AuthStart { algorithm: 0 },
                    Phase::PreAssociation => What::AuthReply { status: 0 },
                    _ => What::AssocStart { again: false },
                },
                AP2,
            ));
            wait(phase, &mut t, &mut dice);
        }
        all.push(of(t, What::AssocReply { status: 0 }, AP2));
        wait(Phase::KeyWait, &mut t, &mut dice);
        all.push(at(t, What::KeyFrame(1)));
        wait(Phase::KeyExchange, &mut t, &mut dice);
        all.push(at(t, What::KeyFrame(4)));
        wait(Phase::KeyInstall, &mut t, &mut dice);
        all.push(at(t, What::PortAuthorised));
        if dice.roll(2) == 0 {
            wait(Phase::ClientStart, &mut t, &mut dice);
            all.push(at(t, What::Dhcp(Dhcp::Discover)));
            wait(Phase::Dhcp, &mut t, &mut dice);
            all.push(at(t, What::Dhcp(Dhcp::Ack)));
            wait(Phase::Address, &mut t, &mut dice);
            all.push(at(t, v4()));
        }
        wait(Phase::FirstData, &mut t, &mut dice);
        all.push(at(t, What::Received));
        let found = run(&all);
        assert_eq!(found.len(), 1);
        assert_eq!(phases(&found[0]), made);
    }
}

#[test]
fn a_search_of_days_stays_small() {
    let mut m = Machine::default();
    before(0).iter().for_each(|x| m.push(x));
    m.push(&at(1_000, What::CarrierOff));
    for i in 0..50_000 {
        m.push(&at(2_000 + i * 13_000, What::ScanStart));
        m.push(&at(10_000 + i * 13_000, What::ScanDone { aborted: false }));
    }
    let h = &m.finish(700_000_000 * MS)[0];
    assert!(h.tiles() && h.joined);
    assert!(h.spans.len() <= 2_000 && h.marks.len() <= 4_096);
    assert_eq!(h.spans.iter().map(|s| s.times).sum::<u64>(), 2 + 100_000);
}

/// An access point is left by a user's word, long after the last data came: the link stood, and nothing says that the access point was silent.
#[test]
fn who_leaves_has_not_lost_its_access_point() {
    let leave = |reason| {
        let mut all = before(0);
        all.push(of(40_000, What::Deauthenticated { own: true, reason }, AP1));
        all.push(at(40_001, What::CarrierOff));
        all.extend(join(41_000, AP2));
        all.push(at(41_500, What::Received));
        run(&all).remove(0)
    };
    let h = leave(3);
    assert_eq!((h.cause, h.of(Phase::Detection)), (Cause::Left { reason: 3 }, 40_001 * MS));
    let why = h.spans[0].why.as_deref().unwrap_or_default();
    assert!(why.contains("this station left"), "{why}");
    assert_eq!(leave(4).cause, Cause::Silent);
}

/// Recorded without data: a station that goes there and back within seconds has roamed twice.
#[test]
fn a_link_that_stood_and_is_left_again_is_another_handover() {
    let mut all = vec![of(-3_000, What::PortAuthorised, AP1)];
    for (t, from, to) in [(0, AP1, AP2), (4_000, AP2, AP1)] {
        all.push(at(t - 300, What::ScanStart));
        all.push(at(t - 100, What::ScanDone { aborted: false }));
        all.push(of(t, What::PortClosed, from));
        all.extend(join(t + 10, to));
    }
    let found = run(&all);
    assert_eq!(found.len(), 2, "{found:#?}");
    for (h, (from, to)) in found.iter().zip([(AP1, AP2), (AP2, AP1)]) {
        assert!(h.tiles());
        assert_eq!(
            (h.kind, h.cause, h.from.bssid, h.to.bssid),
            (Kind::Roam, Cause::Chosen, Some(from), Some(to))
        );
        assert_eq!(h.of(Phase::Probing), 200 * MS);
    }
}

/// After a roam into another network no data comes. The next loss begins with its own signs: what came before the roam is none of it.
#[test]
fn handovers_do_not_overlap() {
    let mut all = before(0);
    all.push(of(10, What::PortClosed, AP1));
    all.extend(join(20, AP2));
    all.push(of(42_000, What::Deauthenticated { own: true, reason: 3 }, AP2));
    all.push(at(42_001, What::CarrierOff));
    all.extend(join(43_000, AP1));
    all.push(at(43_500, What::Received));
    let found = run(&all);
    assert_eq!(found.len(), 2, "{found:#?}");
    assert_eq!((found[0].ended, found[0].kind), (Ended::Quiet, Kind::Roam));
    assert_eq!(found[1].begin_ns, 42_000 * MS);
    assert_eq!(found[1].cause, Cause::Left { reason: 3 });
}
