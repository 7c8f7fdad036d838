//! Names of link types, of the list that tcpdump.org keeps (LINKTYPE_*), and which of them are decoded.

/// What a link type is called; `None`: it is not one of the usual ones.
pub fn link_type_name(link_type: u16) -> Option<&'static str> {
    Some(match link_type {
        0 => "BSD loopback",
        1 => "Ethernet",
        3 => "AX.25",
        6 => "Token Ring",
        7 => "ARCNET",
        8 => "SLIP",
        9 => "PPP",
        10 => "FDDI",
        12 | 14 | 101 => "raw IP",
        50 => "PPP in HDLC-like framing",
        51 => "PPPoE",
        100 => "ATM, RFC 1483",
        104 => "Cisco HDLC",
        105 => "802.11",
        107 => "Frame Relay",
        108 => "OpenBSD loopback",
        113 => "Linux cooked",
        114 => "LocalTalk",
        117 => "OpenBSD pflog",
        119 => "802.11 with Prism header",
        122 => "IP over Fibre Channel",
        123 => "SunATM",
        127 => "802.11 with radiotap",
        129 => "ARCNET, Linux",
        130..=138 => "Juniper",
        139 => "MTP2 with pseudo-header",
        140 => "MTP2",
        141 => "MTP3",
        143 => "DOCSIS",
        144 => "Linux IrDA",
        147..=162 => "private",
        163 => "802.11 with AVS header",
        165 => "BACnet MS/TP",
        166 => "PPP of pppd, with direction",
        187 => "Bluetooth HCI H4",
        189 => "Linux USB",
        192 => "Per-Packet Information",
        195 => "IEEE 802.15.4",
        201 => "Bluetooth HCI H4, with direction",
        204 => "PPP with direction",
        215 => "IEEE 802.15.4, non-ASK PHY",
        220 => "Linux USB, padded",
        224 => "Fibre Channel FC-2",
        227 => "CAN with socket header",
        228 => "raw IPv4",
        229 => "raw IPv6",
        230 => "IEEE 802.15.4 without FCS",
        231 => "D-Bus",
        239 => "NFLOG",
        240 => "netANALYZER",
        242 => "IP over InfiniBand",
        247 => "InfiniBand",
        249 => "USBPcap",
        251 => "Bluetooth Low Energy",
        253 => "Linux netlink",
        254 => "Bluetooth of the Linux monitor",
        256 => "Bluetooth Low Energy with header",
        258 => "Apple PKTAP",
        265 => "Zigbee Wireshark",
        271 => "vsock",
        272 => "Nordic Bluetooth Low Energy",
        276 => "Linux cooked v2",
        281 => "DSA tag",
        282 => "EDSA tag",
        283 => "IEEE 802.15.4 with TAP header",
        285 | 286 => "Broadcom tag",
        289 => "USB 2.0",
        _ => return None,
    })
}

/// Are headers behind this link header decoded? Of IEEE 802.15.4 it is IPv6 that is not compressed.
pub fn is_decoded(link_type: u16) -> bool {
    matches!(
        link_type,
        0 | 1
            | 9
            | 12
            | 14
            | 50
            | 51
            | 101
            | 104
            | 105
            | 108
            | 113
            | 119
            | 127
            | 163
            | 166
            | 192
            | 195
            | 204
            | 228
            | 229
            | 230
            | 239
            | 242
            | 276
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_decoded_has_a_name() {
        assert!((0..400).filter(|t| is_decoded(*t)).all(|t| link_type_name(t).is_some()));
    }
}
