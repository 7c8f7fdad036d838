//! What kind of handover it was, why, and how it ended.

use super::mark::What;
use super::open::Open;
use super::phase::{Phase, Span};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// There was no link before.
    Join,
    /// There may have been one: it had begun when the recording began.
    Underway,
    /// To another access point, by the station's own choice or asked to, while it had a link.
    Roam,
    /// The same by IEEE 802.11r.
    FastTransition,
    /// The station chose another access point, which did not take it, and is where it was.
    RoamFailed,
    /// The link was lost, and the host joined another access point.
    Lost,
    /// The same one again.
    Rejoin,
    /// The same one, which the station left only to join it anew.
    Anew,
    /// A wired link went down and came up.
    LinkFlap,
    BridgePort,
    /// The log ended in the middle of it, before anything was joined.
    Unfinished,
    /// The interface was removed, and did not come again.
    Gone,
}

impl Kind {
    pub const ALL: [Kind; 12] = [
        Kind::Join,
        Kind::Underway,
        Kind::Roam,
        Kind::FastTransition,
        Kind::RoamFailed,
        Kind::Lost,
        Kind::Rejoin,
        Kind::Anew,
        Kind::LinkFlap,
        Kind::BridgePort,
        Kind::Unfinished,
        Kind::Gone,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Kind::Join => "join",
            Kind::Underway => "under-way",
            Kind::Roam => "roam",
            Kind::FastTransition => "fast-transition",
            Kind::RoamFailed => "roam-failed",
            Kind::Lost => "lost-and-joined",
            Kind::Rejoin => "rejoin",
            Kind::Anew => "joined-anew",
            Kind::LinkFlap => "link-flap",
            Kind::BridgePort => "bridge-port",
            Kind::Unfinished => "unfinished",
            Kind::Gone => "gone",
        }
    }

    pub fn label(self) -> &'static str {
        match self {
            Kind::Join => "first join",
            Kind::Underway => "join under way",
            Kind::Roam => "roam",
            Kind::FastTransition => "fast transition",
            Kind::RoamFailed => "roam that failed",
            Kind::Lost => "lost and joined another",
            Kind::Rejoin => "lost and joined again",
            Kind::Anew => "joined anew",
            Kind::LinkFlap => "link flap",
            Kind::BridgePort => "bridge port",
            Kind::Unfinished => "unfinished",
            Kind::Gone => "interface gone",
        }
    }

    pub(super) fn of(o: &Open) -> Kind {
        let f = &o.facts;
        let own = o.stop.is_some() && (f.scan_before_stop || f.auth_before_carrier) && !f.beacon_loss;
        match () {
            () if f.gone => Kind::Gone,
            () if !f.radio && o.from.bssid.is_none() => {
                if f.wired_bridge {
                    Kind::BridgePort
                } else {
                    Kind::LinkFlap
                }
            }
            () if f.underway => Kind::Underway,
            () if f.first_join => Kind::Join,
            () if o.link_up.is_none() && !o.ready => Kind::Unfinished,
            () if f.algorithm == 2 => Kind::FastTransition,
            () if o.is_anew() => Kind::Anew,
            () if o.from.bssid.is_some() && o.from.bssid == o.to.bssid => {
                let chosen = own && f.deauth.is_none_or(|(by_us, _)| by_us);
                if chosen && f.tried != o.from.bssid { Kind::RoamFailed } else { Kind::Rejoin }
            }
            () if own && f.deauth.is_none_or(|(by_us, _)| by_us) => Kind::Roam,
            () if f.again && f.auth_before_carrier => Kind::Roam,
            () => Kind::Lost,
        }
    }
}

/// Why the data path ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Cause {
    /// The access point went silent.
    Silent,
    /// It sent the station away.
    SentAway {
        reason: i64,
    },
    /// The signal fell, and the station chose another.
    SignalLow,
    /// The access point asked it to go elsewhere (802.11v), and it did.
    Asked,
    /// The station chose another.
    Chosen,
    /// The same, and whether the access point had asked it to is not known: the log cannot have its request, or has it without the station's answer.
    ChosenOrAsked,
    /// The station left by itself.
    Left {
        reason: i64,
    },
    Shut,
    Removed,
    Carrier,
    Unknown,
}

impl Cause {
    pub fn name(self) -> &'static str {
        match self {
            Cause::Silent => "silent-loss",
            Cause::SentAway { .. } => "deauthenticated",
            Cause::SignalLow => "signal-low",
            Cause::Asked => "asked",
            Cause::Chosen => "chosen",
            Cause::ChosenOrAsked => "chosen-or-asked",
            Cause::Left { .. } => "left",
            Cause::Shut => "shut",
            Cause::Removed => "removed",
            Cause::Carrier => "carrier",
            Cause::Unknown => "unknown",
        }
    }

    pub fn label(self) -> String {
        match self {
            Cause::Silent => "silent loss".into(),
            Cause::SentAway { reason } => format!("sent away, reason {reason}{}", reason_words(reason)),
            Cause::SignalLow => "signal low".into(),
            Cause::Asked => "asked by the access point (802.11v)".into(),
            Cause::Chosen => "own choice".into(),
            Cause::ChosenOrAsked => "own choice, or asked".into(),
            Cause::Left { reason } => format!("left, reason {reason}{}", reason_words(reason)),
            Cause::Shut => "interface shut".into(),
            Cause::Removed => "interface removed".into(),
            Cause::Carrier => "carrier lost".into(),
            Cause::Unknown => "unknown".into(),
        }
    }

    pub(super) fn of(o: &Open, spans: &[Span]) -> Cause {
        let f = &o.facts;
        // Data stayed away long before anybody noticed.
        let dark = spans.first().is_some_and(|s| {
            s.phase == Phase::Detection && s.begin.what == What::Received && s.dur_ns() > 500_000_000
        });
        let moved = f.scan_before_stop || f.auth_before_carrier && f.radio;
        match f.deauth {
            _ if f.first_join => Cause::Unknown,
            _ if f.taken_away() == Some(true) => Cause::Removed,
            _ if f.taken_away().is_some() => Cause::Shut,
            _ if o.is_anew() => Cause::Chosen,
            Some((false, reason)) => Cause::SentAway { reason },
            // 4: the kernel gave up on a silent access point.
            Some((true, 4)) => Cause::Silent,
            _ if f.asked.is_some() && f.agreed && moved => Cause::Asked,
            // A wire has no access point that falls silent: its carrier is announced up to a second later.
            None if !f.radio && o.from.bssid.is_none() => Cause::Carrier,
            // Who leaves with another reason had not lost its access point, whatever data did: the flow may have ended, or its way beyond the air.
            _ if f.beacon_loss || dark && !f.scan_before_stop && f.deauth.is_none() => Cause::Silent,
            _ if f.signal_low => Cause::SignalLow,
            _ if moved && (f.requests_unknown || f.asked.is_some()) => Cause::ChosenOrAsked,
            _ if moved => Cause::Chosen,
            Some((true, reason)) => Cause::Left { reason },
            None => Cause::Unknown,
        }
    }
}

/// IEEE 802.11 reason codes that are met most.
pub(super) fn reason_words(reason: i64) -> &'static str {
    match reason {
        1 => " (unspecified)",
        2 => " (previous authentication no longer valid)",
        3 => " (station or access point leaves)",
        4 => " (inactivity)",
        5 => " (access point is full)",
        6 | 7 => " (frame of a station that is not associated)",
        8 => " (leaves for another access point)",
        14 => " (message integrity)",
        15 => " (4-way handshake timeout)",
        16 => " (group key handshake timeout)",
        23 => " (802.1X authentication failed)",
        _ => "",
    }
}

/// IEEE 802.11 status codes with which an access point refuses an authentication or an association.
pub(super) fn status_words(status: i64) -> &'static str {
    match status {
        1 => " (unspecified, as of a station that is not allowed)",
        13 => " (authentication algorithm not supported)",
        15 => " (challenge failed)",
        16 => " (no answer in time)",
        12 => " (denied)",
        14 => " (frames out of order)",
        17 => " (access point is full)",
        18 => " (data rates not supported)",
        27 => " (HT required)",
        28 => " (who holds fast transition's key is out of reach)",
        30 => " (try again later)",
        31 => " (management frame protection required)",
        34 => " (poor channel)",
        37 => " (declined)",
        40 => " (element not valid)",
        43 => " (key management not valid)",
        53 => " (PMKID not valid)",
        54 => " (mobility domain not valid)",
        55 => " (fast transition element not valid)",
        77 => " (group of SAE not supported)",
        _ => "",
    }
}

/// What is known of the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Ended {
    /// Data was received.
    Data,
    /// The link and its addresses were there; the log has no data of it.
    Quiet,
    /// The new link ended before the address that was asked for came.
    LinkEnd,
    /// The interface was removed, and did not come again.
    Gone,
    LogEnd,
}

impl Ended {
    pub fn name(self) -> &'static str {
        match self {
            Ended::Data => "data",
            Ended::Quiet => "quiet",
            Ended::LinkEnd => "link-end",
            Ended::Gone => "gone",
            Ended::LogEnd => "log-end",
        }
    }

    pub fn words(self) -> &'static str {
        match self {
            Ended::Data => "ends with the first data received",
            Ended::Quiet => "ends with the last thing that happened: the log has no data received after it",
            Ended::LinkEnd => "ends with the new link, before the address that was asked for came",
            Ended::Gone => "ends with the interface, which was removed and did not come again",
            Ended::LogEnd => "unfinished: the recording ends in it, and what would have come is not known",
        }
    }
}
