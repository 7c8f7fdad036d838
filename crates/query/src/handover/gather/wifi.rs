//! What a radio did, what happened to links, and messages by which addresses are found, as marks.

use super::{Feed, Place, rows};
use crate::error::Result;
use crate::handover::eap;
use crate::handover::mark::{Dhcp, Mark, REFUSED, Source, What};
use crate::store::Store;
use kpat_model::link_address::{parse, text};
use kpat_model::{Exchanged, LinkWhat, WifiWhat};
use kpat_store::tables::{ExchangeRow, LinkEventRow, ProcessRow, WifiEventRow};
use kpat_store::{Row, TableFile};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// IEEE80211_CONF_CHANGE_CHANNEL: drivers are configured for other reasons, too.
const CHANGE_CHANNEL: i64 = 0x40;

/// Of what came without the link's protection the kernel has a tracepoint of its own.
const UNPROTECTED: &str = "cfg80211_rx_unprot_mlme_mgmt";

/// The tracepoint where they are read.
const REQUESTS: &str = "cfg80211:cfg80211_rx_mgmt";
/// Actions of BSS transition management, and the bit of a request that says that the station will be disassociated.
const REQUEST: i64 = 7;
const RESPONSE: i64 = 8;
const WILL_LEAVE: i64 = 4;

/// Stations whose state is kept; an access point has a few hundred.
const MOST_STATES: usize = 16_384;
/// IEEE80211_STA_ASSOC.
const ASSOCIATED: i64 = 3;

/// So much later than at the kernel's function a carrier may be announced (LW_URGENT apart).
const ANNOUNCED_NS: i64 = 1_000_000_000;

/// The table, if the log has it: older ones do not.
fn table<R: Row>(store: &Store) -> Result<Option<Arc<TableFile>>> {
    if !store.dir().join(R::TABLE.file_name()).exists() {
        return Ok(None);
    }
    let table = store.table::<R>()?;
    Ok((table.rows() > 0).then_some(table))
}

pub(super) fn has_radio(store: &Store) -> Result<bool> {
    Ok(table::<WifiEventRow>(store)?.is_some())
}

/// Frames by which an access point asks its stations to go (802.11v) are in the log, if any came.
pub(super) fn has_requests(store: &Store) -> bool {
    let log = &store.manifest.log;
    let name = REQUESTS.rsplit(':').next().unwrap_or_default();
    log.functions.iter().any(|f| f.name == REQUESTS) && !log.left_out.iter().any(|l| l.name.ends_with(name))
}

pub(super) fn has_carriers(store: &Store) -> Result<bool> {
    let of = |kind: &i64| LinkWhat::from_number(*kind as i32).is_some_and(is_carrier);
    let Some(table) = table::<LinkEventRow>(store)? else { return Ok(false) };
    for group in 0..table.groups() {
        if table.ints(group, "event")?.iter().any(of) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn is_carrier(what: LinkWhat) -> bool {
    matches!(what, LinkWhat::CarrierOn | LinkWhat::CarrierOff)
}

pub(super) fn feeds(store: &Store) -> Result<Vec<Box<dyn Feed + '_>>> {
    let mut out: Vec<Box<dyn Feed + '_>> = Vec::new();
    if let Some(table) = table::<WifiEventRow>(store)? {
        let mut radio = Radio::default();
        // Events that are the radio's alone may come before any of its interfaces': a scan is often the first.
        table.each((0..table.groups()).collect(), |row: WifiEventRow| radio.learn(&row))?;
        let processes = store.table::<ProcessRow>()?;
        processes.each((0..processes.groups()).collect(), |row: ProcessRow| {
            if let Some(name) = radio.names.get_mut(&row.pid) {
                *name = row.comm;
            }
        })?;
        radio.names.retain(|_, name| !name.is_empty());
        out.push(rows(table, move |row, number, out| radio.mark(row, number, out)));
    }
    if let Some(table) = table::<LinkEventRow>(store)? {
        let mut functions = false;
        for group in 0..table.groups() {
            functions |= table.ints(group, "function")?.contains(&1);
        }
        out.push(rows(table, move |row, number, out| out.extend(link(row, number, functions))));
    }
    if let Some(table) = table::<ExchangeRow>(store)? {
        out.push(rows(table, |row: &ExchangeRow, number, out| {
            let Some((what, text)) = exchanged(row) else { return };
            let mut mark = Mark::new(row.at_ns, what, Source::Exchange(number));
            mark.text = text.map(Box::from);
            out.push(((row.netns.unwrap_or(0), row.ifindex), mark));
        }));
    }
    Ok(out)
}

/// A link address that the table has as a number.
fn address_of(number: i64) -> [u8; 6] {
    let [_, _, bytes @ ..] = number.to_be_bytes();
    bytes
}

#[derive(Default)]
struct Radio {
    /// Interfaces of a radio, as far as its events named one.
    of_radio: HashMap<String, Vec<Place>>,
    /// Where a radio listens.
    tuned: HashMap<String, i32>,
    /// How far a radio's connection to another is, by its address.
    states: HashMap<(String, String), i64>,
    /// Threads that joined access points, of each radio.
    joins: HashSet<(String, i32)>,
    /// What threads are called that leave access points.
    names: HashMap<i32, String>,
}

impl Radio {
    fn learn(&mut self, row: &WifiEventRow) {
        let Some(radio) = row.wiphy.as_ref().filter(|r| !r.is_empty()) else { return };
        if let (Some(WifiWhat::DeauthStart | WifiWhat::DisassocStart), Some(pid)) =
            (WifiWhat::from_number(row.event), row.pid)
        {
            self.names.entry(pid).or_default();
        }
        // A supplicant that is known only later was the same before.
        if let (Some(WifiWhat::AuthStart | WifiWhat::AssocStart), Some(pid)) =
            (WifiWhat::from_number(row.event), row.pid)
        {
            self.joins.insert((radio.clone(), pid));
        }
        let place = row.ifindex.map(|i| (row.netns.unwrap_or(0), i));
        let known = self.of_radio.entry(radio.clone()).or_default();
        if let Some(place) = place.filter(|p| !known.contains(p)) {
            known.push(place);
        }
    }

    fn mark(&mut self, row: &WifiEventRow, number: i64, out: &mut Vec<(Place, Mark)>) {
        let radio = row.wiphy.clone().unwrap_or_default();
        let place = row.ifindex.map(|i| (row.netns.unwrap_or(0), i));
        let Some(what) = self.what(row, &radio) else { return };
        let mut mark = Mark::new(row.at_ns, what, Source::Wifi(number));
        mark.bssid = row.address.as_deref().and_then(parse);
        mark.text = Some(row.text.as_str()).filter(|t| !t.is_empty()).map(Box::from);
        if let What::AskedToGo { .. } = what {
            mark.text = (row.c != 0).then(|| format!("to {}", text(address_of(row.c))).into());
        }
        if what == What::LeftBy {
            mark.text = self.name(row).map(Box::from);
        }
        if what == What::Other {
            mark.text = WifiWhat::from_number(row.event).map(|w| w.name().into());
        }
        match place {
            Some(place) => out.push((place, mark)),
            None => {
                let all = self.of_radio.get(&radio).map_or(&[][..], Vec::as_slice);
                out.extend(all.iter().map(|p| (*p, mark.clone())));
            }
        }
    }

    /// Who did it.
    fn name(&self, row: &WifiEventRow) -> Option<&str> {
        self.names.get(&row.pid?).map(String::as_str)
    }

    /// The kernel's event of an answer has no status. But mac80211 (net/mac80211/mlme.c, ieee80211_rx_mgmt_assoc_resp) changes its station before that:
    /// to associated if it was accepted, else it is taken away. Drivers that have no such stations give the event for what was accepted.
    fn associated(&self, row: &WifiEventRow, radio: &str) -> i64 {
        let of = row.address.as_ref().and_then(|a| self.states.get(&(radio.to_owned(), a.clone())));
        if of.is_some_and(|state| *state < ASSOCIATED) { REFUSED } else { 0 }
    }

    fn what(&mut self, row: &WifiEventRow, radio: &str) -> Option<What> {
        let kind = WifiWhat::from_number(row.event)?;
        if let (WifiWhat::StationState, Some(address)) = (kind, &row.address) {
            if self.states.len() >= MOST_STATES {
                self.states.clear();
            }
            self.states.insert((radio.to_owned(), address.clone()), row.b);
        }
        Some(match kind {
            // Which of the two a kernel has depends on its driver and version.
            WifiWhat::ScanStart | WifiWhat::RadioScanStart => What::ScanStart,
            WifiWhat::ScanDone | WifiWhat::RadioScanDone => What::ScanDone { aborted: row.a != 0 },
            WifiWhat::Channel => {
                let mhz = row.frequency.filter(|_| row.a & CHANGE_CHANNEL != 0)?;
                // The same channel with other settings is no step.
                if self.tuned.insert(radio.to_owned(), mhz) == Some(mhz) {
                    return None;
                }
                What::Channel { mhz: mhz.into() }
            }
            WifiWhat::AuthStart | WifiWhat::ConnectStart => What::AuthStart { algorithm: row.a },
            WifiWhat::AuthFrame => What::AuthReply { status: row.c },
            WifiWhat::AuthTimeout => What::AuthTimeout,
            WifiWhat::AssocStart => What::AssocStart { again: row.c != 0 },
            WifiWhat::AssocFrame if row.c >= 0 => What::AssocReply { status: row.c },
            WifiWhat::AssocFrame => What::AssocReply { status: self.associated(row, radio) },
            // In units of 1.024 ms.
            WifiWhat::AssocPutOff => What::AssocPutOff { ms: row.a * 128 / 125 },
            WifiWhat::AssocTimeout => What::AssocTimeout,
            WifiWhat::StationState if row.b == 4 => What::PortAuthorised,
            WifiWhat::StationState if row.a == 4 => What::PortClosed,
            WifiWhat::StationState => What::Station,
            WifiWhat::DeauthSent | WifiWhat::DisassocSent => {
                What::Deauthenticated { own: true, reason: row.a }
            }
            WifiWhat::DeauthReceived | WifiWhat::DisassocReceived if row.point.ends_with(UNPROTECTED) => {
                What::Unprotected { reason: row.a }
            }
            WifiWhat::DeauthReceived | WifiWhat::DisassocReceived => {
                What::Deauthenticated { own: false, reason: row.a }
            }
            WifiWhat::TransitionReceived if row.a == REQUEST => {
                What::AskedToGo { leaves: row.b & WILL_LEAVE != 0 }
            }
            WifiWhat::TransitionSent if row.a == RESPONSE => What::AnswersRequest { status: row.b },
            WifiWhat::Rssi if row.a == 0 => What::SignalLow { dbm: row.b },
            WifiWhat::BeaconLoss | WifiWhat::PacketLoss | WifiWhat::ConnectionLoss => What::BeaconLoss,
            WifiWhat::KeyAdded => What::KeyAdded { pairwise: row.a != 0 },
            WifiWhat::ApStart | WifiWhat::MeshStart => What::Serves,
            WifiWhat::DeauthStart | WifiWhat::DisassocStart
                if row.pid.is_some_and(|pid| self.joins.contains(&(radio.to_owned(), pid))) =>
            {
                What::Leaves
            }
            // Of who is known by name.
            WifiWhat::DeauthStart | WifiWhat::DisassocStart if self.name(row).is_some() => What::LeftBy,
            WifiWhat::ScanAbort
            | WifiWhat::StationChange
            | WifiWhat::DeauthStart
            | WifiWhat::DisassocStart
            | WifiWhat::DisconnectStart
            | WifiWhat::ChannelSwitch
            | WifiWhat::TransitionReceived
            | WifiWhat::TransitionSent
            | WifiWhat::FtUpdate
            | WifiWhat::FtEvent
            | WifiWhat::Suspend
            | WifiWhat::Resume => What::Other,
            _ => return None,
        })
    }
}

/// `functions`: carriers are known by the kernel's functions, and what rtnetlink announces of them comes later.
fn link(row: &LinkEventRow, number: i64, functions: bool) -> Option<(Place, Mark)> {
    let kind = LinkWhat::from_number(row.event)?;
    if is_carrier(kind) && functions && row.function == 0 {
        return None;
    }
    let what = match kind {
        LinkWhat::CarrierOn => What::CarrierOn,
        LinkWhat::CarrierOff => What::CarrierOff,
        LinkWhat::OperState => What::OperState(row.a),
        LinkWhat::BridgePort => What::BridgePort(row.a),
    };
    let mut mark = Mark::new(row.at_ns, what, Source::Link(number));
    mark.within_ns = row.after_ns.map_or(0, |after| row.at_ns.saturating_sub(after));
    if is_carrier(kind) && row.function == 0 {
        // The kernel announces one carrier a second at most, but for the first after a quiet time.
        mark.within_ns += ANNOUNCED_NS;
    }
    if kind == LinkWhat::CarrierOff && row.a == 1 {
        mark.text = Some(kpat_model::announced::AFTERWARDS.into());
    }
    Some(((row.netns.unwrap_or(0), row.ifindex), mark))
}

/// A message's name, whoever sent it.
pub(in crate::handover) fn message_of(protocol: Exchanged, message: i32) -> String {
    let number = i64::from(message);
    match protocol {
        Exchanged::Dhcp4 => format!("DHCP {}", Dhcp::of_v4(number).name()),
        Exchanged::Dhcp6 => format!("DHCP {}", Dhcp::of_v6(number).name()),
        Exchanged::Arp => if message == 1 { "ARP request" } else { "ARP reply" }.to_owned(),
        Exchanged::Nd => match message {
            133 => "router solicitation".to_owned(),
            134 => "router advertisement".to_owned(),
            135 => "neighbour solicitation".to_owned(),
            136 => "neighbour advertisement".to_owned(),
            n => format!("ICMPv6 {n}"),
        },
        Exchanged::Eapol if (1..=4).contains(&message) => format!("EAPOL-Key message {message}"),
        Exchanged::Eapol if i64::from(message) == eap::PACKET => "EAP message".to_owned(),
        Exchanged::Eapol if i64::from(message) == eap::START => eap::words(0, 0),
        Exchanged::Eapol => "EAPOL frame".to_owned(),
    }
}

/// A message, and its text.
fn exchanged(row: &ExchangeRow) -> Option<(What, Option<&str>)> {
    let sent = row.sent != 0;
    let message = i64::from(row.message);
    let none = |a: &Option<String>| a.as_deref().is_none_or(|a| a == "0.0.0.0" || a == "::");
    let subject = row.subject.as_deref().filter(|s| *s != "0.0.0.0");
    Some(match Exchanged::from_number(row.protocol)? {
        Exchanged::Dhcp4 => {
            // A server on the same wire, or another client's: only what this one has to do with.
            let dhcp = Dhcp::of_v4(message);
            (dhcp.is_answer() != sent).then_some((What::Dhcp(dhcp), subject))?
        }
        Exchanged::Dhcp6 => {
            let dhcp = Dhcp::of_v6(message);
            (dhcp.is_answer() != sent).then_some((What::Dhcp(dhcp), subject))?
        }
        Exchanged::Arp => match message {
            1 if none(&row.source) && sent => (What::DuplicateProbe, row.destination.as_deref()),
            // An announcement of the own address.
            1 | 2 if row.source == row.destination => (What::Other, Some("address announced")),
            1 => (What::ArpRequest { sent }, row.destination.as_deref()),
            2 => (What::ArpReply { sent }, row.source.as_deref()),
            _ => return None,
        },
        Exchanged::Nd => match message {
            133 if sent => (What::RouterSolicit, None),
            134 if !sent => (What::RouterAdvert, None),
            135 if sent && none(&row.source) => (What::DuplicateProbe, subject),
            135 => (What::ArpRequest { sent }, subject),
            136 => (What::ArpReply { sent }, subject),
            _ => return None,
        },
        Exchanged::Eapol if (0..=4).contains(&message) => {
            let way = if sent { crate::handover::open::SENT } else { "received" };
            (What::KeyFrame(message), Some(way))
        }
        Exchanged::Eapol if matches!(message, eap::PACKET | eap::START) => {
            (eap::what(message, row.id, sent), None)
        }
        Exchanged::Eapol => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(states: &[(i64, i64)]) -> Option<What> {
        let row = |what: WifiWhat, (a, b): (i64, i64), c: i64| WifiEventRow {
            event: what as i32,
            wiphy: Some("phy2".into()),
            ifindex: Some(4),
            address: Some("02:00:00:00:01:00".into()),
            a,
            b,
            c,
            ..WifiEventRow::default()
        };
        let mut radio = Radio::default();
        for state in states {
            radio.what(&row(WifiWhat::StationState, *state, 0), "phy2");
        }
        radio.what(&row(WifiWhat::AssocFrame, (0, 0), -1), "phy2")
    }

    /// As recorded with SAE on 7.2: hostapd answers frames of a station that it sent away.
    #[test]
    fn what_came_without_protection_is_not_believed() {
        let row = |point: &str| WifiEventRow {
            event: WifiWhat::DeauthReceived as i32,
            point: point.into(),
            a: 7,
            ..WifiEventRow::default()
        };
        let what = |point: &str| Radio::default().what(&row(point), "phy2");
        assert_eq!(what("cfg80211:cfg80211_rx_unprot_mlme_mgmt"), Some(What::Unprotected { reason: 7 }));
        let believed = What::Deauthenticated { own: false, reason: 7 };
        assert_eq!(what("cfg80211:cfg80211_rx_mlme_mgmt"), Some(believed));
    }

    /// As recorded on 6.12 of `hostapd_cli bss_tm_req` with one neighbour, and of the answer to it.
    #[test]
    fn a_request_to_go_has_where_to() {
        let row = |what: WifiWhat, a: i64, b: i64, c: i64| WifiEventRow {
            event: what as i32,
            wiphy: Some("phy2".into()),
            netns: Some(7),
            ifindex: Some(4),
            address: Some("02:00:00:00:00:00".into()),
            a,
            b,
            c,
            ..WifiEventRow::default()
        };
        let mark = |row: &WifiEventRow| {
            let mut out = Vec::new();
            Radio::default().mark(row, 0, &mut out);
            out.remove(0).1
        };
        let asked = mark(&row(WifiWhat::TransitionReceived, 7, 3, 0x0200_0000_0100));
        assert_eq!(asked.words(), "asked to go by the access point (802.11v) to 02:00:00:00:01:00");
        assert_eq!(asked.bssid, Some([2, 0, 0, 0, 0, 0]));
        let leaves = mark(&row(WifiWhat::TransitionReceived, 7, 4, 0));
        assert_eq!(leaves.words(), "asked to go by the access point (802.11v), or be sent away");
        assert_eq!(mark(&row(WifiWhat::TransitionSent, 8, 7, 0)).what, What::AnswersRequest { status: 7 });
        // An access point's own, and what a station asks for by itself.
        for other in [
            row(WifiWhat::TransitionSent, 7, 3, 0),
            row(WifiWhat::TransitionReceived, 8, 0, 0),
            row(WifiWhat::TransitionSent, 6, 0, 0),
        ] {
            assert_eq!(mark(&other).what, What::Other);
        }
    }

    /// A kernel that shuts an interface leaves its access point by the same function, in another thread.
    #[test]
    fn the_supplicant_leaves_by_the_thread_that_joins() {
        let row = |what: WifiWhat, pid: i32| WifiEventRow {
            event: what as i32,
            wiphy: Some("phy2".into()),
            pid: Some(pid),
            ..WifiEventRow::default()
        };
        let mut radio = Radio::default();
        radio.learn(&row(WifiWhat::AuthStart, 700));
        assert_eq!(radio.what(&row(WifiWhat::DeauthStart, 700), "phy2"), Some(What::Leaves));
        assert_eq!(radio.what(&row(WifiWhat::DeauthStart, 801), "phy2"), Some(What::Other));
        // As recorded of a supplicant that was killed: the kernel leaves for it.
        radio.names.insert(10, "kworker/0:1".into());
        let mut out = Vec::new();
        radio.learn(&WifiEventRow { netns: Some(7), ifindex: Some(4), ..row(WifiWhat::ScanStart, 700) });
        radio.mark(&row(WifiWhat::DeauthStart, 10), 0, &mut out);
        assert_eq!((out[0].1.what, out[0].1.words()), (What::LeftBy, "left by kworker/0:1".to_owned()));
    }

    /// Both as recorded of one station, 7.2: hostapd refused the first request with status 55 (invalid FTE), and accepted the second.
    #[test]
    fn an_answer_without_a_status_is_known_by_the_station() {
        assert_eq!(answered(&[(0, 1), (1, 2), (2, 1)]), Some(What::AssocReply { status: REFUSED }));
        assert_eq!(answered(&[(0, 1), (1, 2), (2, 3)]), Some(What::AssocReply { status: 0 }));
        // A driver with no stations of mac80211.
        assert_eq!(answered(&[]), Some(What::AssocReply { status: 0 }));
    }
}
