//! What kind of handover it was, why, and how it ended.

use super::mark::What;
use super::open::Open;
use super::phase::{Phase, Span};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// There was no link before.
    Join,
    /// To another access point, by the station's own choice while it had a link.
    Roam,
    /// The same by IEEE 802.11r.
    FastTransition,
    /// The station chose another access point, which did not take it, and is where it was.
    RoamFailed,
    /// The link was lost, and the host joined another access point.
    Lost,
    /// The same one again.
    Rejoin,
    /// A wired link went down and came up.
    LinkFlap,
    BridgePort,
    /// Nothing was joined before the log ended.
    NotJoined,
    /// The interface was removed, and did not come again.
    Gone,
}

impl Kind {
    pub const ALL: [Kind; 10] = [
        Kind::Join,
        Kind::Roam,
        Kind::FastTransition,
        Kind::RoamFailed,
        Kind::Lost,
        Kind::Rejoin,
        Kind::LinkFlap,
        Kind::BridgePort,
        Kind::NotJoined,
        Kind::Gone,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Kind::Join => "join",
            Kind::Roam => "roam",
            Kind::FastTransition => "fast-transition",
            Kind::RoamFailed => "roam-failed",
            Kind::Lost => "lost-and-joined",
            Kind::Rejoin => "rejoin",
            Kind::LinkFlap => "link-flap",
            Kind::BridgePort => "bridge-port",
            Kind::NotJoined => "not-joined",
            Kind::Gone => "gone",
        }
    }

    pub fn label(self) -> &'static str {
        match self {
            Kind::Join => "first join",
            Kind::Roam => "roam",
            Kind::FastTransition => "fast transition",
            Kind::RoamFailed => "roam that failed",
            Kind::Lost => "lost and joined another",
            Kind::Rejoin => "lost and joined again",
            Kind::LinkFlap => "link flap",
            Kind::BridgePort => "bridge port",
            Kind::NotJoined => "not joined",
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
            () if f.first_join => Kind::Join,
            () if o.link_up.is_none() && !o.ready => Kind::NotJoined,
            () if f.algorithm == 2 => Kind::FastTransition,
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
    /// The station chose another, or was asked to.
    Chosen,
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
            Cause::Chosen => "chosen",
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
            Cause::Chosen => "own choice".into(),
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
        match f.deauth {
            _ if f.first_join => Cause::Unknown,
            _ if f.taken_away() == Some(true) => Cause::Removed,
            _ if f.taken_away().is_some() => Cause::Shut,
            Some((false, reason)) => Cause::SentAway { reason },
            // 4: the kernel gave up on a silent access point.
            Some((true, 4)) => Cause::Silent,
            // A wire has no access point that falls silent: its carrier is announced up to a second later.
            None if !f.radio && o.from.bssid.is_none() => Cause::Carrier,
            // Who leaves with another reason had not lost its access point, whatever data did: the flow may have ended, or its way beyond the air.
            _ if f.beacon_loss || dark && !f.scan_before_stop && f.deauth.is_none() => Cause::Silent,
            _ if f.signal_low => Cause::SignalLow,
            _ if f.scan_before_stop || f.auth_before_carrier && f.radio => Cause::Chosen,
            Some((true, reason)) => Cause::Left { reason },
            None => Cause::Unknown,
        }
    }
}

/// IEEE 802.11 reason codes that are met most.
fn reason_words(reason: i64) -> &'static str {
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
            Ended::LogEnd => "goes on when the log ends",
        }
    }
}
