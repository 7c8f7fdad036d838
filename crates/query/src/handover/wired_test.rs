//! Handovers of wires: what real links did (veth and bridges in namespaces), with the times rounded.

use super::*;

const MS: i64 = 1_000_000;

fn at(ms: i64, what: What) -> Mark {
    Mark::new(ms * MS, what, Source::Link(ms))
}

fn with(ms: i64, what: What, text: &str) -> Mark {
    Mark { text: Some(text.into()), ..at(ms, what) }
}

fn flow(until_ms: i64) -> Vec<Mark> {
    let mut all = vec![at(-3_000, What::CarrierOn)];
    all.extend((-100..).map(|i| at(i * 20, What::Received)).take_while(|m| m.at_ns <= until_ms * MS));
    all
}

fn run(marks: &[Mark], last_ms: i64) -> Vec<Handover> {
    let mut m = Machine::default();
    marks.iter().for_each(|x| m.push(x));
    m.finish(last_ms * MS)
}

fn phases(h: &Handover) -> Vec<(Phase, i64)> {
    h.spans.iter().map(|s| (s.phase, s.dur_ns() / MS)).collect()
}

fn why(h: &Handover, p: Phase) -> String {
    h.spans.iter().filter(|s| s.phase == p).filter_map(|s| s.why.clone()).collect::<Vec<_>>().join(" | ")
}

#[test]
fn the_answer_that_ends_an_exchange_is_one() {
    let mut all = flow(0);
    all.extend([
        at(10, What::CarrierOff),
        at(560, What::CarrierOn),
        at(670, What::Dhcp(Dhcp::Request)),
        at(3_720, What::Dhcp(Dhcp::Request)),
        with(3_733, What::Dhcp(Dhcp::Ack), "10.1.0.88"),
        with(3_783, What::AddressAdded { v6: false, tentative: false }, "10.1.0.88/24"),
        at(3_800, What::Received),
    ]);
    let h = &run(&all, 4_000)[0];
    let words = why(h, Phase::Dhcp);
    assert!(!words.contains("no server hears"), "{words}");
    assert!(words.contains("had no answer in 3050 ms, after which the client asked again"), "{words}");
}

/// As recorded of a port that went to another bridge, forwarded there, and came back into one with a spanning tree.
#[test]
fn a_port_that_does_not_forward_any_more_has_no_link() {
    let mut all = flow(0);
    all.extend([
        at(20, What::BridgePort(0)),
        at(21, What::BridgePort(3)),
        at(1_360, What::BridgePort(0)),
        at(1_362, What::BridgePort(1)),
        at(3_370, What::BridgePort(2)),
    ]);
    let h = &run(&all, 4_000)[0];
    assert_eq!((h.kind, h.ended), (Kind::BridgePort, Ended::LogEnd));
    assert_eq!((h.link_up.as_ref(), h.link_ns()), (None, None));
    all.push(at(5_380, What::BridgePort(3)));
    all.push(at(5_390, What::Received));
    let h = &run(&all, 6_000)[0];
    assert_eq!((h.ended, h.link_ns()), (Ended::Data, Some(5_360 * MS)));
}

/// What rtnetlink announces of a carrier may come a second later: no access point was silent meanwhile.
#[test]
fn a_wire_has_no_access_point_that_falls_silent() {
    let mut all = flow(0);
    all.extend([at(700, What::CarrierOff), at(2_700, What::CarrierOn), at(2_900, What::Received)]);
    let h = &run(&all, 3_000)[0];
    assert_eq!((h.kind, h.cause), (Kind::LinkFlap, Cause::Carrier));
    assert_eq!(phases(h)[0], (Phase::Detection, 700));
    assert!(why(h, Phase::Detection).contains("had not announced why"), "{}", why(h, Phase::Detection));
}

#[test]
fn an_interface_that_goes_and_comes_is_one_handover() {
    let mut all = flow(0);
    all.extend([
        at(5, What::AdminDown),
        at(6, What::CarrierOff),
        at(7, What::Removed),
        at(1_020, What::AdminDown),
        at(1_021, What::AdminUp),
        at(1_030, What::CarrierOn),
        at(1_046, What::ArpRequest { sent: true }),
        at(1_047, What::ArpReply { sent: false }),
        at(1_050, What::Received),
    ]);
    let found = run(&all, 3_000);
    assert_eq!(found.len(), 1, "{found:#?}");
    let h = &found[0];
    assert_eq!((h.cause, h.kind, h.ended), (Cause::Removed, Kind::LinkFlap, Ended::Data));
    assert_eq!(
        phases(h),
        [(Phase::LinkDown, 1_025), (Phase::FirstData, 16), (Phase::Neighbour, 1), (Phase::FirstData, 3)]
    );
    assert!(why(h, Phase::LinkDown).contains("the interface itself was gone"));
}

/// A container that ends takes its end of the cable with it.
#[test]
fn an_interface_that_goes_for_good_is_no_flap() {
    let mut all = flow(0);
    all.extend([at(5, What::CarrierOff), at(6, What::AdminDown), at(7, What::Gone)]);
    let found = run(&all, 600_000);
    let [h] = &found[..] else { panic!("{found:#?}") };
    assert_eq!((h.kind, h.cause, h.ended), (Kind::Gone, Cause::Removed, Ended::Gone));
    assert_eq!(phases(h), [(Phase::LinkDown, 2)]);
    // Pulled 30 s before: it was there, without a carrier.
    let mut all = flow(0);
    all.extend([at(5, What::CarrierOff), at(30_000, What::Gone)]);
    let h = &run(&all, 600_000)[0];
    assert_eq!((h.kind, h.cause, h.whole_ns() / MS), (Kind::Gone, Cause::Carrier, 29_995));
    assert_eq!(why(h, Phase::LinkDown), "the wire had no carrier");
    // It never had a link.
    let mut m = Machine::starting(false);
    m.push(&at(5, What::Gone));
    assert!(m.finish(600_000 * MS).is_empty());
}

#[test]
fn a_network_that_nobody_uses_is_not_the_routers_fault() {
    let mut all = vec![at(0, What::CarrierOn), at(1_000, What::CarrierOff), at(2_200, What::CarrierOn)];
    all.extend([
        at(3_700, What::RouterSolicit),
        at(5_230, What::ArpRequest { sent: true }),
        at(5_231, What::ArpReply { sent: false }),
        at(5_230, What::Sent),
        at(5_240, What::Received),
    ]);
    let h = &run(&all, 6_000)[0];
    assert_eq!(phases(h)[1], (Phase::FirstData, 3_040));
    assert!(
        why(h, Phase::FirstData).contains("nothing was sent for 3030 ms"),
        "{}",
        why(h, Phase::FirstData)
    );
}

#[test]
fn a_prefix_that_came_unasked_is_what_was_missing() {
    let mut all = flow(0);
    all.extend([
        at(10, What::CarrierOff),
        with(14, What::ArpRequest { sent: true }, "10.1.0.1"),
        at(518, What::CarrierOn),
        with(1_040, What::ArpRequest { sent: true }, "10.1.0.1"),
        with(2_064, What::ArpRequest { sent: true }, "10.1.0.1"),
        at(2_065, What::ArpReply { sent: false }),
        at(8_186, What::RouterAdvert),
        with(8_592, What::DuplicateProbe, "fd07:2::5"),
        with(9_616, What::AddressAdded { v6: true, tentative: false }, "fd07:2::5/64"),
        at(9_700, What::Received),
    ]);
    let h = &run(&all, 10_000)[0];
    let expected = [
        (Phase::LinkDown, 508),
        (Phase::Neighbour, 1_547),
        (Phase::RouterWait, 6_121),
        (Phase::Address, 406),
        (Phase::DuplicateCheck, 1_024),
        (Phase::FirstData, 84),
    ];
    assert_eq!(phases(h), expected);
    assert!(h.tiles());
    assert!(why(h, Phase::RouterWait).contains("nobody asked for a router"));
    assert!(why(h, Phase::Neighbour).contains("asked for 2 times"), "{}", why(h, Phase::Neighbour));
}

/// As recorded on 6.12, in a network with nothing but IPv6, where the kernel looks for no duplicates: the old router is asked for ten times, and the new network's announces itself at last.
#[test]
fn a_prefix_that_came_unasked_and_was_not_probed_for_is_what_was_missing() {
    let mut all = flow(0);
    all.push(at(10, What::CarrierOff));
    all.push(at(2_085, What::CarrierOn));
    all.extend((0..7).map(|i| with(2_194 + i * 1_024, What::ArpRequest { sent: true }, "fe80::2ce4")));
    all.extend([
        at(9_375, What::RouterAdvert),
        with(9_383, What::AddressAdded { v6: true, tentative: false }, "fd07:2::ff:fe00:200/64"),
        at(9_443, What::Received),
    ]);
    let h = &run(&all, 10_000)[0];
    let found = phases(h);
    assert_eq!(
        found[found.len() - 3..],
        [(Phase::RouterWait, 7_181), (Phase::Address, 8), (Phase::FirstData, 60)]
    );
    assert!(h.tiles());
    assert!(why(h, Phase::RouterWait).contains("nobody asked for a router"), "{}", why(h, Phase::RouterWait));
}

#[test]
fn a_flow_that_never_came_again_has_no_short_gap() {
    let times: Vec<i64> = (0..50).map(|i| i * 20 * MS).collect();
    let mut received = super::flow::Received::default();
    received.times = times;
    let gap = received.gap((970 * MS, 6_000 * MS), "a flow".into()).unwrap();
    assert_eq!((gap.last_ns, gap.first_ns, gap.gap_ns()), (980 * MS, None, None));
}

/// As recorded on 6.12: shortly after another handover, when what that had held came at once.
#[test]
fn a_burst_is_no_pace() {
    let mut received = super::flow::Received::default();
    (0..100).for_each(|i| received.earlier((i * 200 - 30_000) * MS));
    received.times.extend([0, 4, 8, 15, 20, 136, 400, 536].map(|ms| ms * MS));
    received.times.push(4_700 * MS);
    received.sort();
    let gap = received.gap((600 * MS, 4_600 * MS), "a flow".into()).unwrap();
    assert_eq!((gap.pace_ns, gap.missing), (200 * MS, 19));
    // Five at once each 100 ms, as a busy host has a flow of 20 ms.
    let mut received = super::flow::Received::default();
    received.times = (0..100).map(|i| (i / 5 * 100 + i % 5 * 2) * MS).chain([4_000 * MS]).collect();
    let gap = received.gap((2_000 * MS, 3_900 * MS), "a flow".into()).unwrap();
    assert!((18 * MS..=22 * MS).contains(&gap.pace_ns), "{gap:?}");
}

#[test]
fn an_early_request_is_no_reason_for_what_comes_seconds_later() {
    let mut all = flow(0);
    all.extend([
        at(240, What::CarrierOff),
        with(250, What::ArpRequest { sent: true }, "10.1.0.1"),
        at(550, What::CarrierOn),
        at(980, What::Dhcp(Dhcp::Solicit)),
        at(2_110, What::Dhcp(Dhcp::Reply6)),
        with(2_150, What::AddressAdded { v6: true, tentative: true }, "fd07:2::155/128"),
        with(4_020, What::AddressAdded { v6: true, tentative: false }, "fd07:2::155/128"),
        at(5_250, What::Received),
    ]);
    let h = &run(&all, 6_000)[0];
    assert!(!why(h, Phase::FirstData).contains("lost"), "{}", why(h, Phase::FirstData));
    assert!(!why(h, Phase::Detection).contains("access point"), "{}", why(h, Phase::Detection));
}

/// As recorded on 7.2: the old address is none of this network, which a reply says as one that gives an address does.
#[test]
fn a_reply_that_refuses_the_old_address_gives_none() {
    let mut all = flow(0);
    all.extend([
        at(30, What::CarrierOff),
        at(1_579, What::CarrierOn),
        at(2_536, What::Dhcp(Dhcp::Confirm6)),
        at(2_617, What::Dhcp(Dhcp::Reply6)),
        at(3_517, What::Dhcp(Dhcp::Solicit)),
        at(3_681, What::Dhcp(Dhcp::Advertise)),
        at(3_708, What::Dhcp(Dhcp::Request6)),
        at(3_833, What::Dhcp(Dhcp::Reply6)),
        with(4_935, What::AddressAdded { v6: true, tentative: true }, "fd07:2::1dd/128"),
        with(4_960, What::AddressAdded { v6: true, tentative: false }, "fd07:2::1dd/128"),
        at(5_000, What::Received),
    ]);
    let h = &run(&all, 6_000)[0];
    let expected = [
        (Phase::Detection, 30),
        (Phase::LinkDown, 1_549),
        (Phase::ClientStart, 957),
        (Phase::Dhcp, 1_297),
        (Phase::Address, 1_102),
        (Phase::DuplicateCheck, 25),
        (Phase::FirstData, 40),
    ];
    assert_eq!(phases(h), expected);
    assert!(h.tiles());
    let words = why(h, Phase::Dhcp);
    assert!(
        words.starts_with("the old address was asked for first (CONFIRM) and is none of this network"),
        "{words}"
    );
    assert!(words.ends_with("after DHCP REPLY (v6) the client took 900 ms"), "{words}");
}

#[test]
fn a_link_that_is_lost_again_while_a_client_asks() {
    let mut all = flow(0);
    all.extend([
        at(10, What::CarrierOff),
        at(330, What::CarrierOn),
        at(370, What::Dhcp(Dhcp::Request)),
        at(1_010, What::CarrierOff),
        at(1_250, What::CarrierOn),
        at(6_010, What::Dhcp(Dhcp::Request)),
        at(6_030, What::Dhcp(Dhcp::Ack)),
        at(6_050, What::Received),
    ]);
    let h = &run(&all, 7_000)[0];
    assert!(h.spans.iter().all(|s| s.phase != Phase::Retry), "{:?}", phases(h));
    assert!(
        why(h, Phase::ClientStart).contains("asks again by its own timer"),
        "{}",
        why(h, Phase::ClientStart)
    );
    assert_eq!(h.refusals, ["carrier off"]);
}

#[test]
fn a_carrier_that_was_back_before_it_was_announced() {
    let mut all = flow(0);
    all.push(with(540, What::CarrierOff, kpat_model::announced::AFTERWARDS));
    all.push(at(540, What::CarrierOn));
    all.push(at(560, What::Received));
    let h = &run(&all, 1_000)[0];
    assert_eq!((h.kind, h.whole_ns() / MS, h.link_ns()), (Kind::LinkFlap, 560, Some(0)));
    assert!(h.stop.as_ref().is_some_and(|m| m.words().contains("announced when it was back")));
}

/// As recorded of a veth on 6.12: its driver says that it has no carrier 1.6 ms before it is announced for the first time.
#[test]
fn what_was_made_without_a_carrier_lost_none() {
    let made = [
        at(0, What::CarrierOff),
        at(2, What::Found { up: false }),
        at(2, What::OperState(2)),
        at(256, What::AdminUp),
        at(383, What::CarrierOn),
        at(455, What::BridgePort(3)),
    ];
    assert!(run(&made, 9_000).is_empty());
    // One that was there is announced by what happened to it.
    assert_eq!(run(&[at(0, What::CarrierOff), at(383, What::CarrierOn)], 9_000).len(), 1);
    // Removed, and made again by the same name.
    let again = [
        at(0, What::CarrierOff),
        at(1, What::Removed),
        at(400, What::Found { up: false }),
        at(900, What::CarrierOn),
    ];
    assert_eq!(run(&again, 9_000).len(), 1);
}

/// As recorded of a bridge on 6.12: nobody answered its solicitation, and it was removed 9 s later.
#[test]
fn a_link_that_no_router_answers_on_was_there() {
    let all = [
        at(-9_000, What::CarrierOn),
        at(0, What::CarrierOff),
        at(2_212, What::CarrierOn),
        at(3_122, What::RouterSolicit),
        at(12_175, What::CarrierOff),
        at(12_275, What::Gone),
    ];
    let seen: Vec<_> = run(&all, 13_000).iter().map(|h| (h.kind, h.begin_ns / MS, h.end_ns / MS)).collect();
    assert_eq!(seen, [(Kind::LinkFlap, 0, 3_122), (Kind::Gone, 12_175, 12_275)]);
}
