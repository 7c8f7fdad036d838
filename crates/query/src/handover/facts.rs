//! What was seen of a handover that goes on, whenever it was: what rules and words need beside the phases.

use super::mark::Mark;

/// What rules and words need of all marks.
#[derive(Clone, Debug, Default)]
pub(super) struct Facts {
    pub first_join: bool,
    pub radio: bool,
    pub wired_bridge: bool,
    /// Something was done before the data stopped.
    pub scan_before_stop: bool,
    pub auth_before_carrier: bool,
    pub signal_low: bool,
    pub beacon_loss: bool,
    /// Who joined the access point had it left, before anything else ended the link.
    pub left: bool,
    /// Another thread had: its name.
    pub left_by: Option<Box<str>>,
    /// The interface was taken away, soon after or just when the link ended: shut, or (true) removed.
    pub taken: Option<bool>,
    /// It was removed, then or later.
    pub removed: bool,
    /// And did not come again.
    pub gone: bool,
    /// Data that this host sent since the link is up: the first.
    pub first_sent: Option<i64>,
    /// What a router announced since the link is up, the last time.
    pub advert: Option<Mark>,
    pub solicited: bool,
    /// By whom the old link was ended, if a frame shows it.
    pub deauth: Option<(bool, i64)>,
    /// The access point said so without protection, and with which reason.
    pub unprotected: Option<i64>,
    /// The access point asked the station to go elsewhere (802.11v), which did not refuse.
    pub asked: Option<Mark>,
    /// It said that it goes.
    pub agreed: bool,
    /// Such requests were not recorded.
    pub requests_unknown: bool,
    /// It had begun when the recording began.
    pub underway: bool,
    /// And the station asked whether it was true, and had no answer.
    pub queried: bool,
    pub algorithm: i64,
    /// Associated without an authentication on the air: fast transition over the distribution system.
    pub over_ds: bool,
    pub again: bool,
    pub attempts: u32,
    /// Where the first attempt was made.
    pub tried: Option<[u8; 6]>,
    pub refusals: Vec<String>,
    pub first_auth: Option<Mark>,
    pub dhcp_v4: bool,
    /// Whether the interface had the address that was confirmed last is not known.
    pub unseen: bool,
    /// The address that was last looked for at others, and whether one had it.
    pub probed: Option<Box<str>>,
    pub duplicate: bool,
    /// Sent while the port was shut, so lost; when the first was.
    pub early_arp: Option<i64>,
    pub early_dhcp: u32,
    pub first_key: u32,
    /// This interface itself looked for a network, or lost its carrier: an access point's sees only its stations.
    pub own: bool,
}
