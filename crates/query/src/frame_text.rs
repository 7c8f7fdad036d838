//! What lists say of a frame: its protocol, its two ends, and what distinguishes it beyond them. One that has no IP has its link's addresses for ends, and one of 802.11 that is
//! no plain data says which kind of frame it is.

use crate::protocol;
use kpat_store::tables::{FrameRow, PacketRow};

/// The frame's protocol, as that of packets is called.
pub fn name(f: &FrameRow) -> String {
    match (f.ethertype, f.wifi_fc, &f.mac_src) {
        (None, Some(_), _) => "802.11".to_owned(),
        (None, None, Some(_)) if f.ip_proto.is_none() => "Ethernet".to_owned(),
        _ => protocol::name(f.ethertype, f.ip_proto),
    }
}

/// Addresses of its link where it has none of IP, which ARP has, too: who sent it and who is to have it. On the air the transmitter and the receiver, unless its addresses beyond
/// the access point are known. An acknowledgement has no transmitter.
pub(crate) fn link_ends(f: &FrameRow) -> Option<[&str; 2]> {
    let known = |ends: &[&Option<String>; 2]| ends.iter().any(|a| a.is_some());
    if known(&[&f.ip_src, &f.ip_dst]) {
        return None;
    }
    let links = [[&f.mac_src, &f.mac_dst], [&f.wifi_ta, &f.wifi_ra]];
    links.into_iter().find(known).map(|ends| ends.map(|a| a.as_deref().unwrap_or_default()))
}

/// Where it came from and where it goes, as far as its headers say it; empty: they do not.
pub fn ends(f: &FrameRow) -> [String; 2] {
    let of_ip =
        || [(&f.ip_src, f.sport), (&f.ip_dst, f.dport)].map(|(a, p)| protocol::endpoint(a.as_deref(), p));
    link_ends(f).map_or_else(of_ip, |ends| ends.map(str::to_owned))
}

/// What it says beyond its fields, a kind of frame among it.
pub(crate) fn message(f: &FrameRow) -> Option<String> {
    let kind = || f.wifi_fc.filter(|_| f.ethertype.is_none()).map(wifi_kind);
    f.message.clone().or_else(kind)
}

/// What distinguishes a frame beyond its addresses.
pub fn summary(f: &FrameRow) -> String {
    protocol::summary(&PacketRow {
        ethertype: f.ethertype,
        proto: f.ip_proto,
        tcp_flags: f.tcp_flags,
        tcp_seq: f.tcp_seq,
        icmp_kind: f.icmp_kind,
        icmp_code: f.icmp_code,
        icmp_id: f.icmp_id,
        icmp_seq: f.icmp_seq,
        arp_op: f.arp_op,
        tcp_tsval: f.tcp_tsval,
        tcp_tsecr: f.tcp_tsecr,
        message: message(f),
        ..PacketRow::default()
    })
}

/// The kind of an 802.11 frame by its frame control, its first byte the lower one (IEEE 802.11-2020, 9.2.4.1), and whether it was sent before or is encrypted.
fn wifi_kind(control: i32) -> String {
    const RETRY: i32 = 0x0800;
    const PROTECTED: i32 = 0x4000;
    let (kind, subtype) = (control >> 2 & 3, control >> 4 & 15);
    let mut text = match (kind, subtype) {
        (0, 0) => "association request",
        (0, 1) => "association response",
        (0, 2) => "reassociation request",
        (0, 3) => "reassociation response",
        (0, 4) => "probe request",
        (0, 5) => "probe response",
        (0, 6) => "timing advertisement",
        (0, 8) => "beacon",
        (0, 9) => "announcement of traffic (ATIM)",
        (0, 10) => "disassociation",
        (0, 11) => "authentication",
        (0, 12) => "deauthentication",
        (0, 13) => "action",
        (0, 14) => "action without acknowledgement",
        (1, 2) => "trigger",
        (1, 4) => "beamforming report poll",
        (1, 5) => "sounding announcement (NDPA)",
        (1, 7) => "control wrapper",
        (1, 8) => "block acknowledgement request",
        (1, 9) => "block acknowledgement",
        (1, 10) => "power save poll",
        (1, 11) => "request to send",
        (1, 12) => "clear to send",
        (1, 13) => "acknowledgement",
        (1, 14) => "end of contention-free period",
        // Bit 2 of data's subtype: without data; bit 3: with a class of traffic.
        (2, 0..=3) => "data",
        (2, 4..=7) => "null data",
        (2, 8..=11) => "QoS data",
        (2, 12..=15) => "QoS null data",
        (kind, subtype) => return format!("kind {kind}.{subtype}"),
    }
    .to_owned();
    for (bit, word) in [(RETRY, ", retry"), (PROTECTED, ", encrypted")] {
        if control & bit != 0 {
            text += word;
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(f: &FrameRow) -> (String, [String; 2], String) {
        (name(f), ends(f), summary(f))
    }

    fn words(name: &str, ends: [&str; 2], summary: &str) -> (String, [String; 2], String) {
        (name.to_owned(), ends.map(str::to_owned), summary.to_owned())
    }

    #[test]
    fn a_frame_without_ip_has_its_links_addresses_and_its_kind() {
        let air = FrameRow {
            wifi_fc: Some(0x0080),
            wifi_ra: Some("ff:ff:ff:ff:ff:ff".into()),
            wifi_ta: Some("02:00:00:00:01:00".into()),
            ..FrameRow::default()
        };
        assert_eq!(of(&air), words("802.11", ["02:00:00:00:01:00", "ff:ff:ff:ff:ff:ff"], "beacon"));
        let ack = FrameRow { wifi_fc: Some(0x00d4), wifi_ta: None, ..air.clone() };
        assert_eq!(of(&ack), words("802.11", ["", "ff:ff:ff:ff:ff:ff"], "acknowledgement"));
        let hidden = FrameRow { wifi_fc: Some(0x4888), ..air.clone() };
        assert_eq!(of(&hidden).2, "QoS data, retry, encrypted");
        let plain = FrameRow {
            ethertype: Some(0x0800),
            ip_proto: Some(17),
            ip_src: Some("10.0.0.1".into()),
            ip_dst: Some("10.0.0.2".into()),
            sport: Some(68),
            ..hidden
        };
        assert_eq!(of(&plain), words("UDP", ["10.0.0.1:68", "10.0.0.2"], ""));
        let [from, to] = ["02:00:00:00:00:01", "01:80:c2:00:00:00"];
        let bridge = FrameRow { mac_src: Some(from.into()), mac_dst: Some(to.into()), ..FrameRow::default() };
        assert_eq!(of(&bridge), words("Ethernet", [from, to], ""));
        let key = FrameRow { ethertype: Some(0x888e), ..bridge };
        assert_eq!(of(&key), words("EAPOL", [from, to], ""));
        assert_eq!(of(&FrameRow::default()), words("?", ["", ""], ""));
    }
}
