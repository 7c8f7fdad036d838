//! A mark: one thing that was seen of a network interface, with when and by whom. What is made of marks knows nothing of tables.

/// Where a mark stands in the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// Row of `wifi_event`, from 0.
    Wifi(i64),
    /// Row of `link_event`.
    Link(i64),
    /// Row of `exchange`.
    Exchange(i64),
    /// Row of `event`.
    Event(i64),
    Packet(i64),
    Frame {
        capture: i32,
        number: i64,
    },
    #[default]
    Unknown,
}

impl Source {
    /// As text and JSON have it.
    pub fn table(self) -> &'static str {
        match self {
            Source::Wifi(_) => "wifi_event",
            Source::Link(_) => "link_event",
            Source::Exchange(_) => "exchange",
            Source::Event(_) => "event",
            Source::Packet(_) => "packet",
            Source::Frame { .. } => "frame",
            Source::Unknown => "",
        }
    }

    pub fn number(self) -> Option<i64> {
        match self {
            Source::Wifi(n) | Source::Link(n) | Source::Exchange(n) | Source::Event(n) => Some(n),
            Source::Packet(n) | Source::Frame { number: n, .. } => Some(n),
            Source::Unknown => None,
        }
    }

    /// In words: `frame 12`.
    pub fn words(self) -> String {
        match (self.table(), self.number()) {
            ("", _) | (_, None) => String::new(),
            _ if matches!(self, Source::Frame { capture: 1.., .. }) => match self {
                Source::Frame { capture, number } => format!("frame {number} of capture {capture}"),
                _ => String::new(),
            },
            (table, Some(n)) => format!("{} {n}", table.replace('_', " ")),
        }
    }
}

/// DHCP's messages, with IPv6's under the names of those that do the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Dhcp {
    Discover,
    Offer,
    Request,
    Decline,
    Ack,
    Nak,
    Release,
    Inform,
    Solicit,
    Advertise,
    Request6,
    Renew6,
    Rebind6,
    Confirm6,
    Reply6,
    Information6,
    Other(u8),
}

impl Dhcp {
    /// Of option 53.
    pub fn of_v4(kind: i64) -> Dhcp {
        match kind {
            1 => Dhcp::Discover,
            2 => Dhcp::Offer,
            3 => Dhcp::Request,
            4 => Dhcp::Decline,
            5 => Dhcp::Ack,
            6 => Dhcp::Nak,
            7 => Dhcp::Release,
            8 => Dhcp::Inform,
            k => Dhcp::Other(k as u8),
        }
    }

    /// Of DHCPv6.
    pub fn of_v6(kind: i64) -> Dhcp {
        match kind {
            1 => Dhcp::Solicit,
            2 => Dhcp::Advertise,
            3 => Dhcp::Request6,
            4 => Dhcp::Confirm6,
            5 => Dhcp::Renew6,
            6 => Dhcp::Rebind6,
            7 => Dhcp::Reply6,
            11 => Dhcp::Information6,
            k => Dhcp::Other(k as u8),
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Dhcp::Discover => "DISCOVER",
            Dhcp::Offer => "OFFER",
            Dhcp::Request => "REQUEST",
            Dhcp::Decline => "DECLINE",
            Dhcp::Ack => "ACK",
            Dhcp::Nak => "NAK",
            Dhcp::Release => "RELEASE",
            Dhcp::Inform => "INFORM",
            Dhcp::Solicit => "SOLICIT",
            Dhcp::Advertise => "ADVERTISE",
            Dhcp::Request6 => "REQUEST (v6)",
            Dhcp::Renew6 => "RENEW (v6)",
            Dhcp::Rebind6 => "REBIND (v6)",
            Dhcp::Confirm6 => "CONFIRM (v6)",
            Dhcp::Reply6 => "REPLY (v6)",
            Dhcp::Information6 => "INFORMATION (v6)",
            Dhcp::Other(_) => "other DHCP message",
        }
    }

    /// The server's, or a relay's for it.
    pub fn is_answer(self) -> bool {
        matches!(self, Dhcp::Offer | Dhcp::Ack | Dhcp::Nak | Dhcp::Advertise | Dhcp::Reply6)
    }

    pub fn is_v6(self) -> bool {
        matches!(
            self,
            Dhcp::Solicit
                | Dhcp::Advertise
                | Dhcp::Request6
                | Dhcp::Renew6
                | Dhcp::Rebind6
                | Dhcp::Confirm6
                | Dhcp::Reply6
                | Dhcp::Information6
        )
    }

    /// The client has what it asked for.
    pub fn is_done(self) -> bool {
        matches!(self, Dhcp::Ack | Dhcp::Reply6)
    }

    /// Gives an address back or asks for other things: no part of an exchange for one.
    pub fn is_aside(self) -> bool {
        matches!(self, Dhcp::Release | Dhcp::Inform | Dhcp::Information6 | Dhcp::Other(_))
    }
}

/// A status that is no success, and not known.
pub(in crate::handover) const REFUSED: i64 = -1;

/// What was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum What {
    /// The signal fell below what was asked to be watched.
    SignalLow {
        dbm: i64,
    },
    /// Beacons stayed away, or frames were not acknowledged.
    BeaconLoss,
    /// `own`: this station ended it, also when it gave up an access point that is silent.
    Deauthenticated {
        own: bool,
        reason: i64,
    },
    /// The access point's, without the protection that the link has (802.11w): the station asks (SA query) before it believes it.
    Unprotected {
        reason: i64,
    },
    /// The access point asks the station to go elsewhere (802.11v); `leaves`: it will send it away else. Text: to where.
    AskedToGo {
        leaves: bool,
    },
    /// The station's answer to that; 0: it goes.
    AnswersRequest {
        status: i64,
    },
    /// The supplicant that joined the access point leaves it. When an interface is shut, the kernel leaves by the same function, in the thread that shut it.
    Leaves,
    /// The same in another thread than that of who joined: text: its name.
    LeftBy,
    /// The kernel's word that it is not connected any more.
    Disconnected {
        reason: i64,
    },
    CarrierOff,
    CarrierOn,
    /// The interface itself went: its driver, its card or the other end of a virtual cable.
    Removed,
    /// The same, and it did not come again in the log.
    Gone,
    /// The interface was shut or opened by hand.
    AdminDown,
    AdminUp,
    /// IF_OPER_*: 6 up, 5 dormant.
    OperState(i64),
    ScanStart,
    /// The radio listens on this frequency now.
    Channel {
        mhz: i64,
    },
    /// A probe request was sent.
    ProbeRequest {
        mhz: i64,
    },
    ScanDone {
        aborted: bool,
    },
    /// `algorithm` of the kernel: 2 is fast transition, 4 SAE; -1: not known.
    AuthStart {
        algorithm: i64,
    },
    AuthReply {
        status: i64,
    },
    AuthTimeout,
    AssocStart {
        again: bool,
    },
    /// [`REFUSED`]: with a status that is not in the log.
    AssocReply {
        status: i64,
    },
    AssocTimeout,
    /// The access point refused it for now: the kernel asks again after `ms`.
    AssocPutOff {
        ms: i64,
    },
    /// EAPOL-Key 1 to 4; 0: EAPOL that is none of these.
    KeyFrame(i64),
    /// 802.1X: what EAP says; code 0: EAPOL-Start.
    Eap {
        sent: bool,
        code: i64,
        method: i64,
    },
    KeyAdded {
        pairwise: bool,
    },
    PortAuthorised,
    /// The radio's connection to another changed in another way: it has stations, whose ports say when they are open.
    Station,
    /// The port was closed again, or the station's entry went down from there.
    PortClosed,
    Dhcp(Dhcp),
    /// `tentative`: duplicates are still looked for.
    AddressAdded {
        v6: bool,
        tentative: bool,
    },
    AddressRemoved {
        v6: bool,
    },
    /// It was there when the recording began.
    AddressFound,
    /// Another host has this address.
    Duplicate,
    RouterSolicit,
    RouterAdvert,
    /// IPv6's look for duplicates.
    DuplicateProbe,
    /// `sent` by this host.
    ArpRequest {
        sent: bool,
    },
    ArpReply {
        sent: bool,
    },
    /// BR_STATE_*: 3 forwarding.
    BridgePort(i64),
    /// Whether the link was there when it was first looked at.
    Found {
        up: bool,
    },
    /// The interface becomes an access point or joins a mesh: others come and go at it, it itself joins nothing.
    Serves,
    /// Data of a flow that is none of the above.
    Received,
    /// Data was sent.
    Sent,
    /// What a program said: a line of its log, or a place in it.
    Program,
    /// Seen, and of no meaning here.
    Other,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    pub at_ns: i64,
    /// How long before `at_ns` it may have happened.
    pub within_ns: i64,
    pub what: What,
    /// Access point.
    pub bssid: Option<[u8; 6]>,
    /// SSID, address, or what was seen in words.
    pub text: Option<Box<str>>,
    pub source: Source,
    /// The same by the air: frame and its time by this clock.
    pub frame: Option<(i32, i64, i64)>,
}

impl Mark {
    pub fn new(at_ns: i64, what: What, source: Source) -> Mark {
        Mark { at_ns, within_ns: 0, what, bssid: None, text: None, source, frame: None }
    }

    /// What was seen, in words.
    pub fn words(&self) -> String {
        let with_text = |name: &str| match self.text.as_deref() {
            None | Some("") => name.to_owned(),
            Some(text) => format!("{name} {text}"),
        };
        match self.what {
            What::SignalLow { dbm: 0 } => "signal low".into(),
            What::SignalLow { dbm } => format!("signal low, {dbm} dBm"),
            What::BeaconLoss => "beacons or acknowledgements lost".into(),
            What::Deauthenticated { own, reason } => {
                let by = if own { "deauthentication sent" } else { "deauthentication received" };
                format!("{by}, reason {reason}")
            }
            What::Unprotected { reason } => {
                format!("unprotected deauthentication received and not believed, reason {reason}")
            }
            What::AskedToGo { leaves } => {
                let else_sent = if leaves { ", or be sent away" } else { "" };
                with_text("asked to go by the access point (802.11v)") + else_sent
            }
            What::AnswersRequest { status: 0 } => "request accepted (802.11v)".into(),
            What::AnswersRequest { status } => format!("request refused (802.11v), status {status}"),
            What::Leaves => "the supplicant leaves".into(),
            What::LeftBy => format!("left by {}", self.text.as_deref().unwrap_or("another thread")),
            What::Disconnected { reason } => format!("disconnected, reason {reason}"),
            What::CarrierOff => with_text("carrier off"),
            What::CarrierOn => "carrier on".into(),
            What::Removed | What::Gone => "interface removed".into(),
            What::AdminDown => "interface shut".into(),
            What::AdminUp => "interface opened".into(),
            What::OperState(s) => format!("operational state {}", oper_state(s)),
            What::ScanStart => "scan begins".into(),
            What::Channel { mhz } => format!("listening on {mhz} MHz"),
            What::ProbeRequest { mhz: 0 } => "probe request".into(),
            What::ProbeRequest { mhz } => format!("probe request on {mhz} MHz"),
            What::ScanDone { aborted: false } => "scan done".into(),
            What::ScanDone { aborted: true } => "scan aborted".into(),
            What::AuthStart { algorithm } => match algorithm_name(algorithm) {
                "" => "authentication request".into(),
                name => format!("authentication request ({name})"),
            },
            What::AuthReply { status: 0 } => "authentication accepted".into(),
            What::AuthReply { status } => format!("authentication answered, status {status}"),
            What::AuthTimeout => "authentication: no answer".into(),
            What::AssocStart { again: false } => "association request".into(),
            What::AssocStart { again: true } => "reassociation request".into(),
            What::AssocReply { status: 0 } => "association accepted".into(),
            What::AssocReply { status: REFUSED } => "association refused".into(),
            What::AssocReply { status } => format!("association refused, status {status}"),
            What::AssocTimeout => "association: no answer".into(),
            What::AssocPutOff { ms } => format!("association put off for {ms} ms by the access point"),
            What::KeyFrame(0) => "EAPOL frame".into(),
            What::KeyFrame(n) => format!("EAPOL-Key message {n}"),
            What::Eap { code, method, .. } => super::eap::words(code, method),
            What::KeyAdded { pairwise: true } => "pairwise key installed".into(),
            What::KeyAdded { pairwise: false } => "group key installed".into(),
            What::PortAuthorised => "port authorised".into(),
            What::PortClosed => "port closed".into(),
            What::Station => "station changed".into(),
            What::Dhcp(m) => with_text(&format!("DHCP {}", m.name())),
            What::AddressAdded { tentative: true, .. } => with_text("tentative address"),
            What::AddressAdded { .. } => with_text("address"),
            What::AddressRemoved { .. } => with_text("address removed"),
            What::AddressFound => with_text("address found"),
            What::Duplicate => with_text("duplicate address"),
            What::RouterSolicit => "router solicitation".into(),
            What::RouterAdvert => "router advertisement".into(),
            What::DuplicateProbe => "duplicate address probe".into(),
            What::ArpRequest { sent: true } => with_text("neighbour asked for"),
            What::ArpRequest { .. } => with_text("another host asks for a neighbour"),
            What::ArpReply { sent: false } => with_text("neighbour answered"),
            What::ArpReply { .. } => with_text("answers for its own address"),
            What::BridgePort(s) => format!("bridge port {}", bridge_state(s)),
            What::Found { up: true } => "link found up".into(),
            What::Found { .. } => "link found down".into(),
            What::Serves => "access point or mesh begins".into(),
            What::Received => "data received".into(),
            What::Sent => "data sent".into(),
            What::Program | What::Other => self.text.as_deref().unwrap_or("other").to_owned(),
        }
    }
}

fn oper_state(state: i64) -> &'static str {
    ["unknown", "not present", "down", "lower layer down", "testing", "dormant", "up"]
        .get(usize::try_from(state).unwrap_or(0))
        .copied()
        .unwrap_or("unknown")
}

fn bridge_state(state: i64) -> &'static str {
    ["disabled", "listening", "learning", "forwarding", "blocking"]
        .get(usize::try_from(state).unwrap_or(0))
        .copied()
        .unwrap_or("in an unknown state")
}

/// NL80211_AUTHTYPE_*.
pub fn algorithm_name(algorithm: i64) -> &'static str {
    match algorithm {
        0 => "open",
        1 => "shared key",
        2 => "fast transition",
        3 => "network EAP",
        4 => "SAE",
        5..=7 => "FILS",
        _ => "",
    }
}

/// Of a radio, not of any link.
pub(super) fn is_radio(what: What) -> bool {
    matches!(
        what,
        What::SignalLow { .. }
            | What::BeaconLoss
            | What::Deauthenticated { .. }
            | What::Unprotected { .. }
            | What::AskedToGo { .. }
            | What::AnswersRequest { .. }
            | What::ScanStart
            | What::ScanDone { .. }
            | What::ProbeRequest { .. }
            | What::AuthStart { .. }
            | What::AuthReply { .. }
            | What::AssocStart { .. }
            | What::AssocReply { .. }
            | What::PortClosed
            | What::PortAuthorised
    )
}

/// What may lead to a handover.
pub(super) fn is_sign(what: What) -> bool {
    matches!(
        what,
        What::SignalLow { .. }
            | What::BeaconLoss
            | What::Deauthenticated { .. }
            | What::Unprotected { .. }
            | What::Leaves
            | What::LeftBy
            | What::AskedToGo { .. }
            | What::AnswersRequest { .. }
            | What::ScanStart
            | What::Channel { .. }
            | What::ProbeRequest { .. }
            | What::ScanDone { .. }
    )
}

/// By itself no sign of a loss: what anybody can send, and what ends the link in the same moment.
pub(super) fn is_word(what: What) -> bool {
    matches!(what, What::Unprotected { .. } | What::Leaves | What::LeftBy | What::AnswersRequest { .. })
}

/// What a link does not outlast.
pub(super) fn ends_link(what: What) -> bool {
    matches!(
        what,
        What::CarrierOff
            | What::PortClosed
            | What::Disconnected { .. }
            | What::Deauthenticated { .. }
            | What::AdminDown
            | What::Removed
            | What::AuthStart { .. }
    )
}
