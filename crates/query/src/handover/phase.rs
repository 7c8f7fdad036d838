//! The phases of a handover, and one of them with its time.

use super::mark::Mark;

macro_rules! phases {
    ($($name:ident $id:literal $label:literal $group:ident $meaning:literal;)*) => {
        /// What a host without a network waits for. `name()` is for files, `label()` for people.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Phase { $($name),* }

        impl Phase {
            /// In the order in which a handover as a rule meets them.
            pub const ALL: &[Phase] = &[$(Phase::$name),*];

            pub fn name(self) -> &'static str {
                match self { $(Phase::$name => $id),* }
            }

            pub fn label(self) -> &'static str {
                match self { $(Phase::$name => $label),* }
            }

            pub fn group(self) -> Group {
                match self { $(Phase::$name => Group::$group),* }
            }

            pub fn meaning(self) -> &'static str {
                match self { $(Phase::$name => $meaning),* }
            }
        }
    };
}

/// Where a phase's time goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Group {
    /// Something is noticed, or somebody decides.
    Decision,
    /// Looking for networks.
    Search,
    /// Joining one.
    Join,
    Keys,
    /// Addresses and neighbours.
    Network,
    Unknown,
}

impl Group {
    pub const ALL: [Group; 6] =
        [Group::Decision, Group::Search, Group::Join, Group::Keys, Group::Network, Group::Unknown];

    pub fn name(self) -> &'static str {
        match self {
            Group::Decision => "decision",
            Group::Search => "search",
            Group::Join => "join",
            Group::Keys => "keys",
            Group::Network => "network",
            Group::Unknown => "unknown",
        }
    }
}

phases! {
    Detection "detection" "detection" Decision "from the last data, or the first sign of a loss, to the end of the data path";
    Reaction "reaction" "reaction" Decision "the link is down, and nothing has been done about it yet";
    LinkDown "link-down" "link down" Unknown "a wired link is without carrier";
    Probing "probing" "probing" Search "a scan: the radio goes from channel to channel";
    ProbingPause "probing-pause" "pause between scans" Search "a scan found no network to join; the next one is waited for";
    Selection "selection" "selection" Decision "the scan is over; a network is chosen";
    Authentication "authentication" "authentication" Join "authentication frames go to and fro";
    PreAssociation "pre-association" "before association" Join "authenticated; the request to associate is prepared";
    Association "association" "association" Join "association frames go to and fro";
    KeyWait "key-wait" "4-way wait" Keys "associated; the access point has yet to send the first message of the 4-way handshake";
    Eap "eap" "802.1X" Keys "station and authentication server prove who they are (EAP), before the 4-way handshake";
    KeyExchange "key-exchange" "4-way exchange" Keys "messages 1 to 4 of the handshake";
    KeyInstall "key-install" "4-way keys" Keys "keys are installed and the port is authorised";
    PortOpening "port-opening" "port opening" Keys "associated, and no keys are exchanged; the port is not authorised yet";
    Retry "retry" "failed, wait" Decision "an attempt to join failed; the next step is waited for";
    BridgePort "bridge-port" "bridge port" Network "the bridge does not forward on this port yet";
    ClientStart "client-start" "DHCP client start" Network "the port is open; nobody has asked for an address yet";
    RouterWait "router-wait" "router advertisement" Network "a router was asked for and has not answered";
    Dhcp "dhcp" "DHCP exchange" Network "an address is asked for";
    Address "address" "address" Network "the address is given; it is not on the interface yet";
    DuplicateCheck "duplicate-check" "duplicate detection" Network "the address waits until no other host has answered for it";
    Neighbour "neighbour" "neighbour resolution" Network "the next hop's link address is asked for";
    FirstData "first-data" "first data" Network "everything is there; the first data has yet to come";
    Unknown "unknown" "unknown" Unknown "what was recorded does not say";
}

impl Phase {
    /// The radio works for it, and nothing above.
    pub fn is_radio(self) -> bool {
        matches!(self.group(), Group::Search | Group::Join | Group::Keys)
    }
}

/// Part of a phase: a channel of a scan, a message until the next one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    pub from_ns: i64,
    pub to_ns: i64,
    pub words: String,
}

/// A phase with its time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    pub phase: Phase,
    pub from_ns: i64,
    pub to_ns: i64,
    /// What began it. What began the next one ended it; of the last [`super::Handover::end`].
    pub begin: Mark,
    /// Of it, in order; without gap.
    pub steps: Vec<Step>,
    /// Scans, exchanges or pauses in it: more than one where spans were joined because they were too many.
    pub times: u64,
    /// What made it long, where a rule knows.
    pub why: Option<String>,
}

impl Span {
    pub fn dur_ns(&self) -> i64 {
        self.to_ns - self.from_ns
    }
}
