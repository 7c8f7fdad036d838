//! A handover that goes on: which phase each mark begins. Marks are taken as they come; one that does not fit leaves the phase as it is.

use super::facts::Facts;
use super::mark::{Mark, What, is_radio};
use super::phase::{Group, Phase};
use super::tile::Tiles;
use super::why::is_effect;

/// Marks kept for lanes; of longer handovers the first and the last.
const MOST_MARKS: usize = 4_096;

/// With mac80211 a port is opened so soon after the operational state went up (20 to 55 ms were measured).
const OPENED_NS: i64 = 1_000_000_000;

/// A frame's reason comes so soon after what it did (52 to 84 ms were measured).
const SAID_NS: i64 = 500_000_000;

/// A supplicant whose SA query has no answer leaves with this reason, and so does one that asks its access point anew.
pub(super) const NO_LONGER_VALID: i64 = 2;

/// Text of an EAPOL frame whose number is not known.
pub(super) const SENT: &str = "sent";

/// What is known of an access point, or of what a wire leads to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Peer {
    pub bssid: Option<[u8; 6]>,
    pub ssid: Option<Box<str>>,
    pub mhz: i64,
}

#[derive(Clone, Debug)]
pub(super) struct Open {
    pub begin: Mark,
    /// The last data before it, of a flow that was regular.
    pub data: Option<Mark>,
    pub tiles: Tiles,
    pub marks: Vec<Mark>,
    pub marks_left_out: u64,
    pub from: Peer,
    pub to: Peer,
    /// Where the radio listens; 0: not known.
    pub tuned_mhz: i64,
    /// The end of the data path.
    pub stop: Option<Mark>,
    pub link_down: Option<Mark>,
    pub link_up: Option<Mark>,
    /// Carrier of the old link was lost, or it had none.
    carrier_gone: bool,
    /// Associated anew.
    pub joined: bool,
    /// The radio has stations of mac80211, which say when their port is open.
    pub stations: bool,
    /// The operational state went up after that: the port is open, where no station says when.
    up: Option<Mark>,
    /// The last EAPOL frame sent whose number is not known.
    unnumbered: Option<Mark>,
    /// Whether the interface has the address that the mark of now names, if that is known.
    pub confirmed: Option<bool>,
    /// The port is open: what comes may be data.
    pub ready: bool,
    /// Of the last mark that changed anything.
    pub progress: Mark,
    /// What came since it seemed to be over.
    pub rest: Vec<Mark>,
    pub facts: Facts,
}

impl Open {
    pub fn begin(begin: Mark, from: Peer) -> Open {
        let tiles = Tiles::begin(Phase::Detection, begin.at_ns, &begin);
        Open {
            progress: begin.clone(),
            begin,
            data: None,
            tiles,
            marks: Vec::new(),
            rest: Vec::new(),
            marks_left_out: 0,
            from,
            to: Peer::default(),
            tuned_mhz: 0,
            stop: None,
            link_down: None,
            link_up: None,
            carrier_gone: false,
            joined: false,
            stations: false,
            up: None,
            unnumbered: None,
            confirmed: None,
            ready: false,
            facts: Facts { algorithm: -1, ..Facts::default() },
        }
    }

    pub fn phase(&self) -> Phase {
        self.tiles.phase()
    }

    /// A radio that does by itself what mac80211 does for others has no station whose port is opened. There the operational state says so, once something shows that
    /// nothing else will: with mac80211 the port follows it within milliseconds.
    pub fn opened_by_state(&mut self, now_ns: i64, shown: bool) {
        let due = |up: &Mark| !self.stations && (shown || now_ns - up.at_ns >= OPENED_NS);
        if self.up.as_ref().is_some_and(due) {
            self.is_open();
        }
    }

    /// Something shows that the port is open, since the operational state is up.
    pub fn is_open(&mut self) {
        if self.ready || !self.joined {
            return;
        }
        let Some(up) = self.up.take() else { return };
        self.ready = true;
        self.tiles.enter(Phase::ClientStart, &up);
        self.progress = up.clone();
        self.link_up = Some(up);
    }

    fn stops(&mut self, mark: &Mark) {
        if self.stop.is_none() {
            self.stop = Some(mark.clone());
        }
    }

    /// The old link is being taken down; else this is an end of the new one.
    fn of_old_link(&self, mark: &Mark) -> bool {
        !self.joined
            && (!self.carrier_gone
                || (mark.bssid.is_some()
                    && mark.bssid == self.from.bssid
                    && self.to.bssid != self.from.bssid))
    }

    /// The mark names another access point than the new one.
    fn is_of_another(&self, mark: &Mark) -> bool {
        mark.bssid.is_some() && self.to.bssid.is_some() && mark.bssid != self.to.bssid
    }

    /// The new link, whose port was open, is over: what ends links says so of it.
    pub fn is_ended_by(&self, mark: &Mark) -> bool {
        let chooses = matches!(mark.what, What::AuthStart { .. });
        // rtnetlink may announce the old link's carrier only now.
        let late = mark.what == What::CarrierOff && self.link_down.is_none();
        self.facts.radio && self.ready && !late && (chooses || !self.is_of_another(mark))
    }

    pub fn apply(&mut self, mark: &Mark) {
        let shown = matches!(
            mark.what,
            What::Dhcp(_) | What::AddressAdded { .. } | What::RouterSolicit | What::RouterAdvert
        );
        self.opened_by_state(mark.at_ns, shown);
        self.facts.radio |= is_radio(mark.what);
        // A scan is the radio's, which may have an access point and a station.
        self.facts.own |= matches!(
            mark.what,
            What::AuthStart { .. }
                | What::Deauthenticated { .. }
                | What::AssocStart { .. }
                | What::CarrierOff
                | What::AdminDown
                | What::Removed
                | What::Disconnected { .. }
                | What::BridgePort(_)
        );
        self.peers(mark);
        let next = self.next(mark);
        if let Some(phase) = next {
            self.progress = mark.clone();
            if phase != self.phase() {
                self.tiles.enter(phase, mark);
            } else {
                self.tiles.step(mark, mark.words());
            }
        }
        self.keep(mark);
    }

    /// What a mark shows of the old and the new access point beside its meaning.
    fn peers(&mut self, mark: &Mark) {
        // A port that is closed elsewhere had been open: there was a link when the recording began.
        if self.from.bssid.is_none()
            && self.link_up.is_none()
            && mark.what == What::PortClosed
            && mark.bssid.is_some()
            && mark.bssid != self.to.bssid
        {
            self.facts.first_join = false;
            self.from.bssid = mark.bssid;
        }
        let ends = matches!(mark.what, What::PortClosed | What::Deauthenticated { .. } | What::BeaconLoss);
        if ends && self.to.bssid.is_none() && !self.facts.first_join {
            self.from.bssid = self.from.bssid.or(mark.bssid);
        }
        if let What::Channel { mhz } = mark.what {
            self.tuned_mhz = mhz;
        }
        // A radio that is on its channel already is not tuned once more.
        if matches!(self.phase(), Phase::Authentication | Phase::PreAssociation | Phase::Association) {
            self.to.mhz = self.tuned_mhz;
        }
    }

    pub fn keep(&mut self, mark: &Mark) {
        if mark.what == What::Received {
            return;
        }
        if self.marks.len() >= MOST_MARKS {
            // The middle of the search is what can be missed.
            self.marks.drain(MOST_MARKS / 2..MOST_MARKS / 2 + MOST_MARKS / 8);
            self.marks_left_out += MOST_MARKS as u64 / 8;
        }
        self.marks.push(mark.clone());
    }

    /// The phase that the mark begins or belongs to; `None`: it says nothing of phases.
    fn next(&mut self, mark: &Mark) -> Option<Phase> {
        match mark.what {
            What::SignalLow { .. } | What::BeaconLoss | What::Deauthenticated { .. } => self.lost(mark),
            What::Unprotected { reason } => {
                self.facts.unprotected = self.facts.unprotected.or((!self.joined).then_some(reason));
                None
            }
            What::AskedToGo { .. } | What::AnswersRequest { .. } => {
                self.requested(mark);
                None
            }
            What::Leaves => {
                self.facts.left |= self.stop.is_none() && (mark.bssid.is_none() || !self.is_of_another(mark));
                None
            }
            What::LeftBy if self.stop.is_none() => {
                self.facts.left_by = mark.text.clone();
                None
            }
            What::CarrierOff
            | What::PortClosed
            | What::Disconnected { .. }
            | What::AdminDown
            | What::Removed => self.down(mark),
            What::ScanStart | What::Channel { .. } | What::ProbeRequest { .. } | What::ScanDone { .. } => {
                self.scan(mark)
            }
            What::AuthStart { .. } | What::AuthReply { .. } | What::AuthTimeout => self.authenticate(mark),
            What::AssocStart { .. }
            | What::AssocReply { .. }
            | What::AssocTimeout
            | What::AssocPutOff { .. } => self.associate(mark),
            What::CarrierOn | What::KeyFrame(_) | What::KeyAdded { .. } | What::PortAuthorised => {
                self.keys(mark)
            }
            What::OperState(6) => {
                self.up = (self.facts.radio && self.joined && !self.ready).then(|| mark.clone());
                None
            }
            What::Eap { .. } => self.proves(mark),
            What::BridgePort(state) => self.bridge(mark, state),
            What::Dhcp(message) => self.dhcp(message),
            What::AddressAdded { .. } | What::RouterSolicit | What::RouterAdvert => self.address(mark),
            What::DuplicateProbe | What::Duplicate => self.duplicates(mark),
            What::ArpRequest { .. } | What::ArpReply { .. } => self.neighbour(mark),
            _ => None,
        }
    }

    fn lost(&mut self, mark: &Mark) -> Option<Phase> {
        match mark.what {
            What::SignalLow { .. } => self.facts.signal_low |= self.stop.is_none(),
            What::BeaconLoss => self.facts.beacon_loss |= self.stop.is_none(),
            What::Deauthenticated { own, reason } => {
                if self.phase() == Phase::Retry && mark.at_ns - self.tiles.since_ns() <= SAID_NS {
                    // The frame that says why is reported after what it did.
                    if let Some(last) = self.facts.refusals.last_mut().filter(|w| is_effect(w)) {
                        *last = mark.words();
                    }
                } else if self.of_old_link(mark) {
                    // What the other side says comes before what this one answers.
                    self.facts.queried |=
                        own && reason == NO_LONGER_VALID && self.facts.unprotected.is_some();
                    let said = match self.facts.unprotected {
                        Some(reason) if self.facts.queried => (false, reason),
                        _ => (own, reason),
                    };
                    self.facts.deauth = self.facts.deauth.or(Some(said));
                } else if self.is_of_another(mark) {
                    // Of the old link, and late.
                } else if self.ready || self.phase().is_radio() && self.phase().group() != Group::Search {
                    return self.failed(mark);
                }
            }
            _ => {}
        }
        (self.stop.is_none() && self.phase() == Phase::Detection).then_some(Phase::Detection)
    }

    /// It said that it leaves, not that it gives up an access point that is silent (reason 4).
    pub(super) fn left_by_itself(&self) -> bool {
        !self.facts.beacon_loss && matches!(self.facts.deauth, Some((true, reason)) if reason != 4)
    }

    pub(super) fn failed(&mut self, mark: &Mark) -> Option<Phase> {
        if self.phase() != Phase::Retry && self.facts.refusals.len() < 100 {
            self.facts.refusals.push(mark.words());
        }
        (self.joined, self.ready, self.carrier_gone) = (false, false, true);
        (self.link_up, self.up) = (None, None);
        Some(Phase::Retry)
    }

    fn down(&mut self, mark: &Mark) -> Option<Phase> {
        if matches!(mark.what, What::AdminDown | What::Removed) {
            self.taken(mark);
        }
        // What rtnetlink announces may come when the next link is there already.
        if mark.what == What::CarrierOff
            && self.link_down.is_none()
            && self.facts.radio
            && (self.joined || self.ready)
        {
            return None;
        }
        if matches!(mark.what, What::CarrierOff | What::Removed) && self.link_down.is_none() {
            self.link_down = Some(mark.clone());
        }
        let first = self.stop.is_none();
        let old = self.of_old_link(mark) || !self.joined;
        self.stops(mark);
        self.carrier_gone |=
            matches!(mark.what, What::CarrierOff | What::Removed | What::Disconnected { .. });
        if !old || self.ready {
            // A port that is shut while keys are exchanged is as it should be.
            let not_yet = mark.what == What::PortClosed && !self.ready;
            return if not_yet { None } else { self.failed(mark) };
        }
        match self.phase() {
            Phase::Detection => Some(if self.facts.radio || self.from.bssid.is_some() {
                Phase::Reaction
            } else {
                Phase::LinkDown
            }),
            phase => first.then_some(phase),
        }
    }

    fn scan(&mut self, mark: &Mark) -> Option<Phase> {
        self.facts.scan_before_stop |=
            self.stop.is_none() && matches!(mark.what, What::ScanStart | What::ScanDone { .. });
        let now = self.phase();
        if self.ready || (now.group() == Group::Keys) {
            return None;
        }
        match mark.what {
            // The request for it, and the radio's own beginning.
            What::ScanStart if now == Phase::Probing => None,
            What::ScanStart => {
                if now == Phase::Selection {
                    self.tiles.rename(Phase::ProbingPause);
                }
                Some(Phase::Probing)
            }
            What::ScanDone { .. } => {
                if matches!(now, Phase::Reaction | Phase::Detection) {
                    self.tiles.rename(Phase::Probing);
                }
                (now != Phase::Selection && now.group() != Group::Join).then_some(Phase::Selection)
            }
            What::Channel { .. } => (now == Phase::Probing).then_some(Phase::Probing),
            _ => (now.group() != Group::Join).then(|| {
                if now == Phase::Selection {
                    self.tiles.rename(Phase::ProbingPause);
                }
                Phase::Probing
            }),
        }
    }

    fn authenticate(&mut self, mark: &Mark) -> Option<Phase> {
        let now = self.phase();
        if self.joined && self.ready && self.to.bssid == mark.bssid {
            return None;
        }
        match mark.what {
            What::AuthStart { algorithm } => {
                self.facts.auth_before_carrier |= !self.carrier_gone;
                // SAE goes twice; so does a repeated request.
                let on = matches!(now, Phase::PreAssociation | Phase::Authentication);
                if !on || self.to.bssid != mark.bssid {
                    self.facts.attempts += 1;
                    self.facts.tried = self.facts.tried.or(mark.bssid);
                    (self.facts.first_auth, self.facts.algorithm) = (None, algorithm);
                }
                self.facts.algorithm = self.facts.algorithm.max(algorithm);
                if now == Phase::PreAssociation {
                    self.tiles.rename(Phase::Authentication);
                }
                self.to = Peer {
                    bssid: mark.bssid,
                    ssid: mark.text.clone().or(self.to.ssid.take()),
                    mhz: self.to.mhz,
                };
                self.facts.first_auth.get_or_insert_with(|| mark.clone());
                (self.joined, self.ready) = (false, false);
                Some(Phase::Authentication)
            }
            // 126: the password element by hash, 76: a token is asked for; both go on.
            What::AuthReply { status: 0 | 126 | 76 } => {
                let first = matches!(
                    now,
                    Phase::Association | Phase::KeyWait | Phase::KeyExchange | Phase::KeyInstall
                );
                self.facts.first_auth.get_or_insert_with(|| mark.clone());
                (!first && !self.ready).then_some(Phase::PreAssociation)
            }
            _ if self.joined => None,
            _ => self.failed(mark),
        }
    }

    /// Who has a link and asks another access point without an authentication has made that by the old one (802.11r): nothing else may.
    fn over_ds(&mut self, mark: &Mark, again: bool) {
        let (from, f) = (self.from.bssid, &mut self.facts);
        let begins = matches!(self.tiles.phase().group(), Group::Decision | Group::Search) && f.attempts == 0;
        let linked =
            !f.first_join && !f.underway && !self.carrier_gone && from.is_some() && from != mark.bssid;
        if begins && linked && again {
            (f.over_ds, f.auth_before_carrier, f.algorithm, f.attempts) = (true, true, 2, 1);
            f.tried = mark.bssid;
        }
    }

    fn associate(&mut self, mark: &Mark) -> Option<Phase> {
        match mark.what {
            What::AssocStart { again } => {
                self.over_ds(mark, again);
                self.facts.again |= again;
                if mark.bssid.is_some() {
                    self.to.bssid = mark.bssid;
                }
                self.to.ssid = mark.text.clone().or(self.to.ssid.take());
                (self.joined, self.ready) = (false, false);
                Some(Phase::Association)
            }
            What::AssocReply { status: 0 } => {
                self.joined = true;
                self.to.bssid = self.to.bssid.or(mark.bssid);
                (!self.ready && self.phase().group() != Group::Keys).then_some(Phase::KeyWait)
            }
            // The kernel asks again by itself.
            What::AssocPutOff { .. } => (self.phase() == Phase::Association).then_some(Phase::Association),
            _ if self.joined => None,
            _ => self.failed(mark),
        }
    }

    fn keys(&mut self, mark: &Mark) -> Option<Phase> {
        let now = self.phase();
        let joining = matches!(now, Phase::Authentication | Phase::PreAssociation | Phase::Association);
        match mark.what {
            What::CarrierOn if self.facts.radio || self.from.bssid.is_some() => {
                self.joined |= joining;
                joining.then_some(Phase::KeyWait)
            }
            What::CarrierOn => {
                self.ready = true;
                self.link_up = Some(mark.clone());
                Some(if self.facts.wired_bridge { Phase::BridgePort } else { Phase::ClientStart })
            }
            // Keys are made anew while data flows.
            _ if self.ready || self.stop.is_none() && !self.joined => None,
            What::KeyFrame(n) => {
                self.joined = true;
                if n == 0 && mark.text.as_deref() == Some(SENT) {
                    self.unnumbered = Some(mark.clone());
                }
                self.facts.first_key += u32::from(n == 1);
                Some(if n == 4 { Phase::KeyInstall } else { Phase::KeyExchange })
            }
            // With fast transition keys are there at once.
            What::KeyAdded { pairwise }
                if matches!(now, Phase::KeyWait | Phase::KeyExchange | Phase::Unknown) =>
            {
                if let Some(last) = self.unnumbered.take().filter(|_| pairwise && now == Phase::KeyExchange) {
                    // The last one sent before the keys is message 4.
                    self.tiles.enter(Phase::KeyInstall, &Mark { what: What::KeyFrame(4), ..last });
                }
                Some(Phase::KeyInstall)
            }
            What::KeyAdded { .. } => (now == Phase::KeyInstall).then_some(now),
            _ => {
                (self.joined, self.ready) = (true, true);
                self.link_up = Some(mark.clone());
                Some(Phase::ClientStart)
            }
        }
    }

    fn bridge(&mut self, mark: &Mark, state: i64) -> Option<Phase> {
        if self.facts.radio {
            return None;
        }
        self.facts.wired_bridge = true;
        if state == 3 {
            (self.ready, self.link_up) = (true, Some(mark.clone()));
            return Some(Phase::FirstData);
        }
        self.stops(mark);
        (self.ready, self.link_up) = (false, None);
        Some(if state == 0 { Phase::LinkDown } else { Phase::BridgePort })
    }
}
