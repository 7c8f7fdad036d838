//! What led to a handover, of the signs before it. A supplicant decides when a scan is over: what it scanned before then led to nothing. One that looks around each
//! second, for hours, had its network all that time.

use super::mark::{Mark, What, is_word};

/// As long after a sign of a loss it may be the reason.
pub(super) const SIGN_NS: i64 = 10_000_000_000;
/// A scan led to the handover if the data stopped so soon after it.
const SELECTION_NS: i64 = 2_000_000_000;

fn is_scan(what: What) -> bool {
    matches!(what, What::ScanStart | What::Channel { .. } | What::ProbeRequest { .. } | What::ScanDone { .. })
}

/// When the scan began that came last.
fn last_scan(lead: &[Mark]) -> Option<i64> {
    let start = lead.iter().rposition(|m| m.what == What::ScanStart);
    let last = start.or_else(|| lead.iter().rposition(|m| matches!(m.what, What::ScanDone { .. })))?;
    let before =
        lead[..last].iter().rposition(|m| matches!(m.what, What::ScanDone { .. })).map_or(0, |i| i + 1);
    lead[before..].iter().find(|m| is_scan(m.what)).map(|m| m.at_ns)
}

/// Keeps what led to a handover whose first own mark is of `now_ns`; the whole search for a `first` network led to it. `absent_ns`: since when data is missing. True: the
/// signal had fallen, longer ago than is kept.
pub(super) fn keep(lead: &mut Vec<Mark>, now_ns: i64, first: bool, absent_ns: Option<i64>) -> bool {
    let recent = |m: &Mark, ns: i64| now_ns - m.at_ns <= ns;
    let over = lead.iter().rfind(|m| matches!(m.what, What::ScanStart | What::ScanDone { .. }));
    let scanned = over.is_some_and(|m| m.what == What::ScanStart || recent(m, SELECTION_NS));
    if first || !scanned {
        // A scan that was over long before led to nothing.
        lead.retain(|m| scanned || (first || !is_scan(m.what)) && recent(m, SIGN_NS));
        return false;
    }
    let sign = lead.iter().find(|m| !is_scan(m.what) && !is_word(m.what) && recent(m, SIGN_NS));
    let since =
        [last_scan(lead), sign.map(|m| m.at_ns), absent_ns].into_iter().flatten().min().unwrap_or(now_ns);
    let low = |m: &Mark| m.at_ns < since && matches!(m.what, What::SignalLow { .. });
    let fell = lead.iter().any(low);
    // Its words are kept as long as signs are.
    lead.retain(|m| m.at_ns >= since || !is_scan(m.what) && recent(m, SIGN_NS));
    fell
}

#[cfg(test)]
mod tests {
    use super::super::tests::{AP1, AP2, at, before, join, of, run};
    use super::super::{Cause, Handover, Kind, Phase};
    use super::*;

    const MS: i64 = 1_000_000;

    fn scan(t: i64) -> Vec<Mark> {
        let channel = |ms: i64, mhz: i64| at(ms, What::Channel { mhz });
        let done = What::ScanDone { aborted: false };
        vec![
            at(t, What::ScanStart),
            at(t + 1, What::ScanStart),
            channel(t + 2, 2_412),
            channel(t + 150, 2_437),
            at(t + 350, done),
            at(t + 351, done),
        ]
    }

    /// A scan each 1.2 s while data flows, as with `bgscan="simple:1:-60:1"` on 6.12; `low`: when the signal fell; and a roam at `roam_ms`.
    fn looks_around(roam_ms: i64, low: Option<i64>) -> Handover {
        let mut all = before(roam_ms - 1);
        all.extend((0..).map(|i| i * 1_200).take_while(|t| t + 400 < roam_ms).flat_map(scan));
        all.extend(low.map(|ms| at(ms, What::SignalLow { dbm: -80 })));
        all.push(of(roam_ms, What::PortClosed, AP1));
        all.extend(join(roam_ms + 60, AP2));
        all.push(of(roam_ms + 62, What::Deauthenticated { own: true, reason: 3 }, AP1));
        all.push(at(roam_ms + 63, What::CarrierOff));
        all.push(at(roam_ms + 900, What::Received));
        all.sort_by_key(|m| m.at_ns);
        let mut found = run(&all);
        assert_eq!(found.len(), 1, "{found:#?}");
        assert!(found[0].tiles());
        found.remove(0)
    }

    /// Recorded: 147 s of looking around before a station joined anew were part of it.
    #[test]
    fn only_the_last_scan_led_to_a_roam() {
        let h = looks_around(120_400, None);
        assert_eq!((h.kind, h.cause, h.begin_ns / MS), (Kind::Roam, Cause::Chosen, 118_800));
        assert_eq!(h.spans.iter().filter(|s| s.phase == Phase::Probing).count(), 1);
        // After the signal had fallen it looked for another.
        let h = looks_around(120_400, Some(115_000));
        assert_eq!((h.cause, h.begin_ns / MS), (Cause::SignalLow, 115_000));
        assert_eq!(h.spans.iter().filter(|s| s.phase == Phase::Probing).count(), 4);
        // Long ago: that is still why, and what was looked at since led to nothing.
        let h = looks_around(120_400, Some(60_000));
        assert_eq!((h.cause, h.begin_ns / MS), (Cause::SignalLow, 118_800));
    }
}
