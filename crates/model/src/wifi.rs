//! What a device does to have a network, as records: the radio and its stations (`wifi-event`), carrier and port (`link-event`), and the messages by which
//! addresses are found (`exchange`). And the table of tracepoints ([`BUILT_IN`]) by which the kernel says the first: kernels differ in what their
//! tracepoints have, so a row names fields and not offsets, and the log has each row that was recorded by.

use crate::codes::{Code, code_type};
use crate::ids::{BootNs, FuncId};
use crate::link_address::LinkAddress;
use crate::record::{Context, Timed};

/// The rows that kpat has.
pub const BUILT_IN: &str = include_str!("wifi.txt");

code_type! {
    /// What a radio, its interface or a station of it did.
    WifiWhat {
        ScanStart = 1, "scan-start", "A scan was requested. `a` channels, 0: not in the kernel's event.", "";
        ScanDone = 2, "scan-done", "A scan is over. `a` 1: it was aborted.", "";
        ScanAbort = 3, "scan-abort", "A scan is to be aborted.", "";
        RadioScanStart = 4, "radio-scan-start", "mac80211 begins to scan, or has the driver do it.", "";
        RadioScanDone = 5, "radio-scan-done", "mac80211 is done with it.", "";
        Channel = 6, "channel", "The radio is tuned. `a` the kernel's bits of what is configured, `b` its flags.", "";
        AuthStart = 7, "auth-start", "An authentication begins with the address. `a` its type.", "";
        AuthFrame = 8, "auth-frame", "An authentication frame was received. `a` algorithm, `b` transaction, `c` status.", "";
        AuthTimeout = 9, "auth-timeout", "No answer to the authentication.", "";
        AssocStart = 10, "assoc-start", "An association begins with the address. `c` the BSSID before, as a number, 0: none.", "";
        AssocFrame = 11, "assoc-frame", "The answer to it was received. `c` its status, -1: not in the kernel's event.", "";
        AssocTimeout = 12, "assoc-timeout", "No answer to the association.", "";
        StationState = 13, "station-state", "A station's state. `a` before, `b` after: 0 none, 1 known, 2 authenticated, 3 associated, 4 authorised (the port is open).", "";
        StationChange = 14, "station-change", "User space sets a station's flags. `a` which, `b` their values (bit 1: authorised).", "";
        StationAdded = 15, "station-added", "A station is known.", "";
        StationRemoved = 16, "station-removed", "A station is known no more.", "";
        ConnectStart = 17, "connect-start", "A driver that does it by itself is to connect.", "";
        DisconnectStart = 18, "disconnect-start", "Such a driver is to disconnect. `a` reason.", "";
        DeauthStart = 19, "deauth-start", "User space deauthenticates. `a` reason.", "";
        DisassocStart = 20, "disassoc-start", "User space disassociates. `a` reason.", "";
        DeauthSent = 21, "deauth-sent", "A deauthentication was sent. `a` reason.", "";
        DeauthReceived = 22, "deauth-received", "A deauthentication was received. `a` reason.", "";
        DisassocSent = 23, "disassoc-sent", "A disassociation was sent. `a` reason.", "";
        DisassocReceived = 24, "disassoc-received", "A disassociation was received. `a` reason.", "";
        FrameSent = 25, "frame-sent", "Another management frame was sent. `a` the first byte of its frame control.", "";
        FrameReceived = 26, "frame-received", "Another management frame was received. `a` the first byte of its frame control.", "";
        Rssi = 27, "rssi", "The signal crossed a threshold. `a` 0: it is low, 1: high; `b` its level in dBm, 0: not in the kernel's event.", "";
        BeaconLoss = 28, "beacon-loss", "No beacons came.", "";
        PacketLoss = 29, "packet-loss", "`a` frames in succession were not acknowledged.", "";
        ConnectionLoss = 30, "connection-loss", "The driver lost the connection.", "";
        KeyAdded = 31, "key-added", "A key was added. `a` 1: pairwise, 0: of the group; `b` its index.", "";
        KeyRemoved = 32, "key-removed", "A key was removed. `a` and `b` as of key-added.", "";
        KeyDefault = 33, "key-default", "A key is used by default. `b` its index.", "";
        ControlPortReceived = 34, "control-port-received", "A frame of the control port (EAPOL) was given to user space. `a` EtherType, `b` 1: it was not encrypted.", "";
        ControlPortSent = 35, "control-port-sent", "User space sends such a frame. `a` EtherType, `b` 1: without encryption.", "";
        ControlPortStatus = 36, "control-port-status", "What became of it. `a` 1: it was acknowledged.", "";
        TransmitPrepared = 37, "transmit-prepared", "The driver prepares for a frame of the connection. `a` the first byte of its frame control.", "";
        TransmitComplete = 38, "transmit-complete", "It is done with that. `a` as before, `b` 1: there was an answer.", "";
        BssInfo = 39, "bss-info", "What the driver is to know of the network changed. `a` the kernel's bits of what, `b` 1: associated, `c` association id.", "";
        ChannelSwitch = 40, "channel-switch", "The network changes to another channel.", "";
        OffChannel = 41, "off-channel", "The radio is to stay on another channel. `a` for so many ms.", "";
        OffChannelEnd = 42, "off-channel-end", "It is back.", "";
        FrameRequest = 43, "frame-request", "User space sends a management frame.", "";
        FtUpdate = 44, "ft-update", "User space gives elements for a fast transition (802.11r).", "";
        FtEvent = 45, "ft-event", "A fast transition's answer for user space.", "";
        Suspend = 46, "suspend", "The radio is suspended.", "";
        Resume = 47, "resume", "The radio is resumed. `a` 1: after a sleep, or a restart.", "";
        SchedScanStart = 48, "sched-scan-start", "Scheduled scans begin.", "";
        SchedScanResults = 49, "sched-scan-results", "A scheduled scan found something.", "";
        SchedScanStop = 50, "sched-scan-stop", "Scheduled scans end.", "";
        PowerSave = 51, "power-save", "`a` 1: the radio may sleep.", "";
        ApStart = 52, "ap-start", "The interface becomes an access point.", "";
        ApStop = 53, "ap-stop", "It is one no more.", "";
        MeshStart = 54, "mesh-start", "The interface joins a mesh.", "";
        MeshStop = 55, "mesh-stop", "It leaves it.", "";
        TransitionSent = 56, "bss-transition-sent", "User space sends a frame of BSS transition management (802.11v). `a` which: 6 query, 7 request, 8 response; `b` of a request its mode (bit 0: candidates are named, bit 2: the station will be disassociated), of a response its status (0: accepted), of a query its reason; `c` the BSSID to go to, the first of a request's, as a number, 0: none.", "";
        TransitionReceived = 57, "bss-transition-received", "Such a frame was received, and decrypted. `a`, `b` and `c` as of bss-transition-sent.", "";
        AssocPutOff = 58, "assoc-put-off", "The access point refused the association for now (status 30). `a` after so many TU of 1.024 ms it is asked again.", "";
    }
}

code_type! {
    /// What happened to a link.
    LinkWhat {
        CarrierOn = 1, "carrier-on", "The driver has a carrier.", "";
        CarrierOff = 2, "carrier-off", "The driver has none any more. `a` 1: announced when it was back already, so it was lost somewhen since the announcement before.", "";
        OperState = 3, "operstate", "`a` its state now, `b` before (RFC 2863: 2 down, 3 lower layer down, 5 dormant, 6 up).", "";
        BridgePort = 4, "bridge-port", "A port of a bridge. `a` its state now (0 disabled, 1 listening, 2 learning, 3 forwarding, 4 blocking), `b` before, -1: not known.", "";
    }
}

code_type! {
    /// The protocol of an exchange.
    Exchanged {
        Dhcp4 = 1, "dhcp", "DHCP. Message: 1 discover, 2 offer, 3 request, 4 decline, 5 ack, 6 nak, 7 release, 8 inform. `id`: transaction. `subject`: the client's new address, or the one requested.", "";
        Dhcp6 = 2, "dhcpv6", "DHCPv6. Message: 1 solicit, 2 advertise, 3 request, 4 confirm, 5 renew, 6 rebind, 7 reply ... `id`: transaction.", "";
        Arp = 3, "arp", "ARP. Message: 1 request, 2 reply. `source` and `destination`: sender's and target's protocol addresses.", "";
        Nd = 4, "nd", "Neighbour discovery. Message: ICMPv6 type: 133 router solicitation, 134 router advertisement, 135 neighbour solicitation, 136 neighbour advertisement, 137 redirect. `subject`: target.", "";
        Eapol = 5, "eapol", "EAPOL. Message: of the 4-way handshake 1 to 4, of the group's 5 and 6, 7: EAP (802.1X), 8: its start, 0: another. `id`: replay counter; of EAP code, identifier and method, a byte each.", "";
    }
}

impl Exchanged {
    /// Messages of EAPOL that are no keys.
    pub const EAP: u8 = 7;
    pub const EAPOL_START: u8 = 8;
}

/// Something that a radio, its interface or a station of it did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WifiEvent {
    pub at: BootNs,
    pub ctx: Context,
    /// Thread that was current: on an emulated radio it may be the other end's.
    pub pid: u32,
    /// Which tracepoint: the log's table of functions has the row.
    pub point: FuncId,
    pub what: WifiWhat,
    /// Inode number of the interface's network namespace, 0: not known.
    pub netns: u32,
    /// 0: the event is the radio's, or it is not known which interface's.
    pub ifindex: u32,
    /// MHz, 0: not in the event.
    pub frequency: u32,
    /// Meaning by `what`.
    pub a: i64,
    /// Meaning by `what`.
    pub b: i64,
    /// Meaning by `what`.
    pub c: i64,
    /// The peer's, or the network's (BSSID).
    pub address: Option<LinkAddress>,
    /// Name of the radio, empty: not in the event, and not known.
    pub wiphy: String,
    /// SSID, or what `what` says.
    pub text: String,
}

/// Something that happened to a link, seen at the kernel's function or in its announcement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkEvent {
    pub at: BootNs,
    pub ctx: Context,
    pub pid: u32,
    pub what: LinkWhat,
    /// The kernel: at its function, or its stamp of the announcement.
    pub timed: Timed,
    /// From a probed function; otherwise from rtnetlink, which may be later.
    pub function: bool,
    pub netns: u32,
    pub ifindex: u32,
    /// Meaning by `what`.
    pub a: i64,
    /// Meaning by `what`.
    pub b: i64,
}

/// A message by which addresses are found, ports opened or leases got, as it passed an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exchange {
    pub at: BootNs,
    pub ctx: Context,
    pub pid: u32,
    pub protocol: Exchanged,
    /// Meaning by protocol.
    pub message: u8,
    /// By this interface; otherwise received.
    pub sent: bool,
    pub netns: u32,
    pub ifindex: u32,
    /// Bytes of the frame from its network header on.
    pub length: u32,
    /// Meaning by protocol.
    pub id: u64,
    /// Link-layer source and destination; `None`: the frame had no link header there.
    pub link: Option<[LinkAddress; 2]>,
    /// Network source and destination, each 4 or 16 bytes; empty: none.
    pub network: Vec<u8>,
    /// Meaning by protocol; 4 or 16 bytes, empty: none.
    pub subject: Vec<u8>,
}

/// A value of a record that a row of the table fills.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slot {
    Address,
    Frequency,
    A,
    B,
    C,
    Text,
    /// Bytes of a management frame, which say what the event is.
    Frame,
}

impl Slot {
    const NAMES: [(&'static str, Slot); 7] = [
        ("address", Slot::Address),
        ("frequency", Slot::Frequency),
        ("a", Slot::A),
        ("b", Slot::B),
        ("c", Slot::C),
        ("text", Slot::Text),
        ("frame", Slot::Frame),
    ];
}

/// What a field's name begins with that is not in the tracepoint's event but in what the tracepoint is given.
pub const GIVEN: char = '*';

/// A row of the table of tracepoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WifiPoint {
    pub group: String,
    pub name: String,
    pub what: WifiWhat,
    /// Which fields fill what: of several for one slot the first that this kernel has.
    pub fields: Vec<(Slot, String)>,
    /// As it was written, with single spaces.
    pub line: String,
}

impl WifiPoint {
    /// *Errors*: what is wrong.
    pub fn parse(line: &str) -> Result<WifiPoint, String> {
        let line = line.split_whitespace().collect::<Vec<_>>().join(" ");
        let mut words = line.split(' ');
        let point = words.next().unwrap_or_default();
        let (group, name) =
            point.split_once(':').ok_or_else(|| format!("`{point}` is not GROUP:TRACEPOINT"))?;
        let what = words.next().unwrap_or_default();
        let what = WifiWhat::from_name(what).ok_or_else(|| format!("`{what}` is no event"))?;
        let mut fields = Vec::new();
        for word in words {
            let (slot, from) = word.split_once('=').ok_or_else(|| format!("`{word}` is not VALUE=FIELD"))?;
            let slot = Slot::NAMES.iter().find(|(n, _)| *n == slot);
            let slot = slot.ok_or_else(|| format!("`{word}`: there is no such value"))?.1;
            fields.extend(from.split(',').map(|f| (slot, f.to_owned())));
        }
        let (group, name) = (group.to_owned(), name.to_owned());
        Ok(WifiPoint { group, name, what, fields, line })
    }

    /// All rows of a text.
    ///
    /// *Errors*: the line, and what is wrong with it.
    pub fn parse_all(text: &str) -> Result<Vec<WifiPoint>, String> {
        let rows = text.lines().enumerate().map(|(i, l)| (i, l.trim()));
        let rows = rows.filter(|(_, l)| !l.is_empty() && !l.starts_with('#'));
        rows.map(|(i, l)| WifiPoint::parse(l).map_err(|why| format!("line {}: {why}", i + 1))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_built_in_table_is_read() {
        let rows = WifiPoint::parse_all(BUILT_IN).unwrap_or_else(|why| panic!("{why}"));
        assert!(rows.iter().any(|r| r.what == WifiWhat::ScanStart && r.name == "rdev_scan"));
        for (i, r) in rows.iter().enumerate() {
            assert!(rows[..i].iter().all(|o| (&o.group, &o.name) != (&r.group, &r.name)), "{} twice", r.name);
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (line, why) in [
            ("rdev_scan scan-start", "GROUP:TRACEPOINT"),
            ("g:x scan-strat", "no event"),
            ("g:x scan-start address", "VALUE=FIELD"),
            ("g:x scan-start d=e", "no such value"),
        ] {
            let error = WifiPoint::parse(line).unwrap_err();
            assert!(error.contains(why), "{line}: {error}");
        }
    }
}
