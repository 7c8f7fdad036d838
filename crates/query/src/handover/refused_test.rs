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
    // Of one without a name the number stands alone.
    assert!(of_open(200).contains("status 200: the supplicant"));
    // Only SAE has a password in its authentication.
    assert!(wait(4, 1).contains("status 1 (as with a wrong password)"));
}
