//! Networks that are asked for long after the link is there. As recorded on 6.1 of a busy host whose DHCP client was started ten seconds after the port was opened,
//! rounded; the order of what is asked for meanwhile as of a busier one.

use super::tests::{AP1, AP2, at, join, of};
use super::*;

const MS: i64 = 1_000_000;

fn text(ms: i64, message: Dhcp, subject: Option<&str>) -> Mark {
    Mark { text: subject.map(Into::into), ..at(ms, What::Dhcp(message)) }
}

/// The port is open at 1368 ms, and the old network's next hop is asked for in vain.
fn joined() -> Vec<Mark> {
    let mut all = vec![of(-3_000, What::PortAuthorised, AP1), at(0, What::CarrierOff)];
    all.extend(join(1_000, AP2));
    all.extend([1_420, 2_440, 3_460, 7_000, 9_000].map(|ms| at(ms, What::ArpRequest { sent: true })));
    all
}

fn network(t: i64) -> Vec<Mark> {
    vec![
        text(t, Dhcp::Request, Some("10.1.0.60")),
        text(t + 60, Dhcp::Nak, None),
        text(t + 1_900, Dhcp::Discover, None),
        text(t + 2_300, Dhcp::Offer, Some("10.2.0.60")),
        text(t + 2_400, Dhcp::Request, Some("10.2.0.60")),
        text(t + 2_500, Dhcp::Ack, Some("10.2.0.60")),
        at(t + 2_900, What::AddressAdded { v6: false, tentative: false }),
        at(t + 3_000, What::ArpRequest { sent: true }),
        at(t + 3_004, What::ArpReply { sent: false }),
    ]
}

fn found(marks: &[Mark], without_data: bool) -> Vec<Handover> {
    let mut m = Machine::default().without_data(without_data);
    marks.iter().for_each(|x| m.push(x));
    m.finish(marks.iter().map(|m| m.at_ns).max().unwrap_or(0))
}

fn ends(marks: &[Mark], without_data: bool) -> Vec<(i64, Ended)> {
    found(marks, without_data).iter().map(|h| (h.end_ns / MS, h.ended)).collect()
}

#[test]
fn a_client_that_is_started_late_is_part_of_it() {
    for without_data in [true, false] {
        for t in [9_500, 12_081, 40_000, 120_000] {
            let all = [joined(), network(t)].concat();
            let of_it = found(&all, without_data);
            assert_eq!(of_it.len(), 1, "{t}");
            let h = &of_it[0];
            assert!(h.tiles());
            assert_eq!((h.end_ns / MS, h.ended), (t + 3_004, Ended::Quiet), "{t}");
            let of = |phase| h.spans.iter().filter(|s| s.phase == phase).map(Span::dur_ns).sum::<i64>() / MS;
            assert_eq!((of(Phase::ClientStart), of(Phase::Dhcp)), (t - 1_368, 2_500), "{t}");
            assert_eq!(of(Phase::Neighbour), 4, "{t}");
        }
    }
}

#[test]
fn what_is_asked_for_after_it_was_over_is_none_of_it() {
    let quiet = vec![(3_460, Ended::Quiet)];
    // Data came: the old address was good.
    let mut all = joined();
    all.push(at(9_100, What::ArpReply { sent: false }));
    let asked = all.clone();
    all.push(at(9_200, What::Received));
    all.extend(network(30_000));
    assert_eq!(ends(&all, true), quiet);
    // A lease that is prolonged; one that is asked for minutes later.
    let prolonged = [text(60_000, Dhcp::Request, None), text(60_020, Dhcp::Ack, Some("10.1.0.60"))];
    assert_eq!(ends(&[asked.clone(), prolonged.to_vec()].concat(), true), quiet);
    assert_eq!(ends(&[asked.clone(), network(200_000)].concat(), true), quiet);
    // A network that had been asked for already.
    let twice = [joined(), network(9_500), network(40_000)].concat();
    assert_eq!(ends(&twice, true), [(12_504, Ended::Quiet)]);
    // The link was lost before anything was asked for.
    let lost =
        [asked, vec![of(20_000, What::BeaconLoss, AP2), at(20_001, What::CarrierOff)], network(21_000)]
            .concat();
    assert_eq!(ends(&lost, true)[0], (3_460, Ended::Quiet));
    assert_eq!(found(&lost, true)[1].begin_ns / MS, 20_000);
}
