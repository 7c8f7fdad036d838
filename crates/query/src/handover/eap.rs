//! 802.1X: station and authentication server prove to each other who they are (EAP), before the access point begins the 4-way handshake. Where both still have
//! the keys of an earlier time (PMKSA caching) there is none of it.

use super::mark::{Mark, What};
use super::open::Open;
use super::phase::{Phase, Span};
use kpat_model::Exchanged;

const MS: i64 = 1_000_000;

/// Codes of EAP (RFC 3748).
const REQUEST: i64 = 1;
const RESPONSE: i64 = 2;
const SUCCESS: i64 = 3;
const FAILURE: i64 = 4;

/// What a message is, by its code and method; code 0: the station asks the access point to begin (EAPOL-Start).
pub(super) fn words(code: i64, method: i64) -> String {
    let with_method = |name: &str| match method_name(method) {
        "" => format!("{name}, method {method}"),
        method => format!("{name}, {method}"),
    };
    match code {
        0 => "EAPOL start".into(),
        REQUEST => with_method("EAP request"),
        RESPONSE => with_method("EAP response"),
        SUCCESS => "EAP success".into(),
        FAILURE => "EAP failure".into(),
        code => format!("EAP message {code}"),
    }
}

fn method_name(method: i64) -> &'static str {
    match method {
        1 => "identity",
        2 => "notification",
        3 => "another method is asked for",
        4 => "MD5",
        6 => "GTC",
        13 => "TLS",
        17 => "LEAP",
        18 => "SIM",
        21 => "TTLS",
        23 => "AKA",
        25 => "PEAP",
        26 => "MSCHAPv2",
        43 => "FAST",
        50 => "AKA'",
        52 => "PWD",
        55 => "TEAP",
        _ => "",
    }
}

impl Open {
    pub(super) fn proves(&mut self, mark: &Mark) -> Option<Phase> {
        let now = self.phase();
        // It is also repeated while data flows, and may come late.
        if self.ready
            || self.stop.is_none() && !self.joined
            || matches!(now, Phase::KeyExchange | Phase::KeyInstall)
        {
            return None;
        }
        if matches!(mark.what, What::Eap { code: FAILURE, .. }) {
            return self.failed(mark);
        }
        self.joined = true;
        if now == Phase::KeyWait {
            self.tiles.rename(Phase::Eap);
        }
        Some(Phase::Eap)
    }
}

/// Who was waited for.
pub(super) fn why(s: &Span) -> Option<String> {
    let spent = |names: [&str; 2]| -> i64 {
        let of = s.steps.iter().filter(|x| names.iter().any(|n| x.words.starts_with(n)));
        of.map(|x| x.to_ns - x.from_ns).sum()
    };
    let station_ns = spent(["EAP request", "EAP success"]);
    let asked = s.steps.iter().filter(|x| x.words.starts_with("EAP request")).count();
    let server_ns = spent(["EAP response", "EAPOL start"]);
    let method = s.steps.iter().rev().find_map(|x| x.words.strip_prefix("EAP request, ")).unwrap_or("EAP");
    let ms = |ns: i64| (ns + MS / 2) / MS;
    (asked > 0 && s.dur_ns() >= 50 * MS).then(|| {
        format!(
            "802.1X with {method}, {asked} request{}: {} ms for the access point and its server, {} ms for this station; with keys that both still have (PMKSA caching) there is none of it",
            if asked == 1 { "" } else { "s" },
            ms(server_ns),
            ms(station_ns)
        )
    })
}

/// Of a recorded message: code, identifier and method are in its number.
pub(super) fn what(message: i64, id: i64, sent: bool) -> What {
    let (code, method) = if message == START { (0, 0) } else { (id >> 16 & 0xff, id & 0xff) };
    What::Eap { sent, code, method }
}

/// EAPOL's messages that are no keys, as recorded.
pub(super) const PACKET: i64 = Exchanged::EAP as i64;
pub(super) const START: i64 = Exchanged::EAPOL_START as i64;

#[cfg(test)]
mod tests {
    use super::super::tests::{AP1, AP2, at, before, join, of, run};
    use super::super::{Cause, Ended, Handover, Kind};
    use super::*;

    /// As recorded on 6.12 of a roam with EAP-PWD, in ms from the port's closing.
    fn roam(said: &[(i64, i64, i64)]) -> Handover {
        let mut all = before(0);
        all.push(of(0, What::PortClosed, AP1));
        all.push(of(49, What::AuthStart { algorithm: 0 }, AP2));
        all.push(at(50, What::CarrierOff));
        all.push(of(80, What::Deauthenticated { own: true, reason: 3 }, AP1));
        all.push(of(93, What::AuthReply { status: 0 }, AP2));
        all.push(of(291, What::AssocStart { again: true }, AP2));
        all.push(at(298, What::CarrierOn));
        all.push(of(299, What::AssocReply { status: 0 }, AP2));
        let eap = |(ms, code, method): &(i64, i64, i64)| {
            at(*ms, What::Eap { sent: *code == RESPONSE, code: *code, method: *method })
        };
        all.extend(said.iter().map(eap));
        let failed = said.iter().any(|s| s.1 == FAILURE);
        if failed {
            all.push(of(600, What::Deauthenticated { own: false, reason: 23 }, AP2));
            all.push(at(601, What::CarrierOff));
            all.extend(join(1_000, AP1));
        } else {
            for (ms, n) in [(1_241, 1), (1_484, 2), (1_491, 3), (1_547, 4)] {
                all.push(at(ms, What::KeyFrame(n)));
            }
            all.push(at(1_580, What::KeyAdded { pairwise: true }));
            all.push(of(1_611, What::PortAuthorised, AP2));
        }
        all.push(at(2_127, What::Received));
        let mut found = run(&all);
        assert_eq!(found.len(), 1, "{found:#?}");
        assert!(found[0].tiles());
        found.remove(0)
    }

    const WHOLE: [(i64, i64, i64); 9] = [
        (374, REQUEST, 1),
        (423, RESPONSE, 1),
        (440, REQUEST, 52),
        (489, RESPONSE, 52),
        (566, REQUEST, 52),
        (1_064, RESPONSE, 52),
        (1_089, REQUEST, 52),
        (1_216, RESPONSE, 52),
        (1_238, SUCCESS, 0),
    ];

    #[test]
    fn who_one_is_is_no_handshake() {
        let h = roam(&WHOLE);
        assert_eq!((h.kind, h.cause, h.ended), (Kind::Roam, Cause::Chosen, Ended::Data));
        // From the association on, and until the first message of the handshake.
        assert_eq!(
            (h.of(Phase::KeyWait), h.of(Phase::Eap) / MS, h.of(Phase::KeyExchange) / MS),
            (0, 943, 306)
        );
        let eap = h.spans.iter().find(|s| s.phase == Phase::Eap).expect("there is one");
        let why = eap.why.as_deref().unwrap_or_default();
        assert!(why.starts_with("802.1X with PWD, 4 requests: 141 ms for the access point and its server, 726 ms for this station"), "{why}");
        assert_eq!(eap.steps[1].words, "EAP request, identity");
        // With keys that both still have.
        let h = roam(&[]);
        assert_eq!((h.of(Phase::Eap), h.of(Phase::KeyWait) / MS), (0, 943));
    }

    #[test]
    fn a_failure_is_an_attempt_that_failed() {
        let mut said = WHOLE[..4].to_vec();
        said.push((590, FAILURE, 0));
        let h = roam(&said);
        assert_eq!((h.kind, h.refusals.as_slice()), (Kind::RoamFailed, &["EAP failure".to_owned()][..]));
        assert_eq!(h.of(Phase::Retry) / MS, 410);
    }

    #[test]
    fn messages_have_names() {
        assert_eq!(what(PACKET, 0x01_07_19, false), What::Eap { sent: false, code: 1, method: 25 });
        assert_eq!(words(1, 25), "EAP request, PEAP");
        assert_eq!(words(2, 254), "EAP response, method 254");
        assert_eq!(what(START, 0, true), What::Eap { sent: true, code: 0, method: 0 });
        assert_eq!((words(0, 0), words(3, 0)), ("EAPOL start".to_owned(), "EAP success".to_owned()));
    }
}
