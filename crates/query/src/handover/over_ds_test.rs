//! Fast transition whose authentication goes by the old access point (802.11r, over the distribution system).

use super::tests::{AP1, AP2, at, before, of, run};
use super::*;

const MS: i64 = 1_000_000;

/// As recorded on 6.12 of `wpa_cli ft_ds`, rounded.
fn transition() -> Vec<Mark> {
    let mut all = before(0);
    all.push(of(0, What::AssocStart { again: true }, AP2));
    all.push(of(8, What::PortClosed, AP1));
    all.push(at(10, What::CarrierOff));
    all.push(of(17, What::Deauthenticated { own: true, reason: 1 }, AP1));
    all.push(of(42, What::AssocReply { status: 0 }, AP2));
    all.push(at(42, What::CarrierOn));
    all.push(at(43, What::KeyAdded { pairwise: true }));
    all.push(of(180, What::PortAuthorised, AP2));
    all.push(at(668, What::Received));
    all
}

#[test]
fn an_association_without_an_authentication_is_one_by_the_old_access_point() {
    let found = run(&transition());
    assert_eq!(found.len(), 1, "{found:#?}");
    let h = &found[0];
    assert!(h.tiles());
    assert_eq!((h.kind, h.cause, h.attempts), (Kind::FastTransition, Cause::Chosen, 1));
    assert_eq!((h.from.bssid, h.to.bssid), (Some(AP1), Some(AP2)));
    assert_eq!(
        (h.of(Phase::Association), h.of(Phase::KeyInstall), h.of(Phase::FirstData)),
        (42 * MS, 138 * MS, 488 * MS)
    );
    let why = |p: Phase| h.spans.iter().find(|s| s.phase == p).and_then(|s| s.why.as_deref()).unwrap_or("");
    assert!(why(Phase::Association).starts_with("no authentication before it: fast transition over"));
    assert_eq!(why(Phase::KeyInstall), "no 4-way handshake: fast transition has the keys already");
}

/// Whose beginning is missing, or who joins the same one, is none.
#[test]
fn where_it_may_be_another_thing_it_is_none() {
    let same: Vec<Mark> =
        transition().into_iter().map(|m| Mark { bssid: m.bssid.map(|_| AP1), ..m }).collect();
    assert_ne!(run(&same)[0].kind, Kind::FastTransition);
    let anew: Vec<Mark> = transition()
        .into_iter()
        .map(|m| match m.what {
            What::AssocStart { .. } => Mark { what: What::AssocStart { again: false }, ..m },
            _ => m,
        })
        .collect();
    assert_ne!(run(&anew)[0].kind, Kind::FastTransition);
}
