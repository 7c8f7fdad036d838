//! The header fields of a packet or a frame, layer by layer, and which of them made the two one.

use crate::codes::match_key;
use crate::packet::FrameOfPacket;
use crate::protocol;
use kpat_store::tables::{FootprintRow, FrameRow};

/// What a field is called, and its value as text.
#[derive(Clone, Debug, PartialEq)]
pub struct Field {
    /// Column of the tables.
    pub id: &'static str,
    pub label: &'static str,
    pub text: String,
}

/// Fields of one protocol layer.
#[derive(Clone, Debug, PartialEq)]
pub struct Layer {
    pub name: String,
    pub fields: Vec<Field>,
}

/// The flattened layers, which frames and footprints have alike.
macro_rules! layers_of {
    ($name:ident, $row:ty) => {
        pub fn $name(r: &$row) -> Vec<Layer> {
            let mut out = Vec::new();
            let mut layer = |name: String, fields: Vec<(&'static str, &'static str, Option<String>)>| {
                let fields: Vec<Field> = fields
                    .into_iter()
                    .filter_map(|(id, label, text)| text.map(|text| Field { id, label, text }))
                    .collect();
                if !fields.is_empty() {
                    out.push(Layer { name, fields });
                }
            };
            let num = |n: Option<i32>| n.map(|n| n.to_string());
            let hex = |n: Option<i32>| n.map(|n| format!("{n:#06x}"));
            layer(
                "802.11".to_owned(),
                vec![
                    ("wifi_ta", "transmitter", r.wifi_ta.clone()),
                    ("wifi_ra", "receiver", r.wifi_ra.clone()),
                    ("wifi_fc", "frame control", hex(r.wifi_fc)),
                    ("wifi_seq", "sequence", r.wifi_seq.map(|s| format!("{}.{}", s >> 4, s & 15))),
                ],
            );
            layer(
                "link".to_owned(),
                vec![
                    ("mac_src", "from", r.mac_src.clone()),
                    ("mac_dst", "to", r.mac_dst.clone()),
                    ("ethertype", "type", r.ethertype.map(protocol::ethertype)),
                    ("vlan", "VLAN", num(r.vlan)),
                    ("vlan_inner", "inner VLAN", num(r.vlan_inner)),
                ],
            );
            let network = match r.ethertype {
                Some(protocol::ETH_IPV4) => "IPv4",
                Some(protocol::ETH_IPV6) => "IPv6",
                Some(protocol::ETH_ARP) => "ARP",
                _ => match &r.ip_src {
                    Some(a) if a.contains(':') => "IPv6",
                    _ => "network",
                },
            };
            layer(
                network.to_owned(),
                vec![
                    ("arp_op", "", r.arp_op.map(protocol::arp_op)),
                    ("ip_src", "from", r.ip_src.clone()),
                    ("ip_dst", "to", r.ip_dst.clone()),
                    ("ip_id", "id", r.ip_id.map(|i| format!("{i:#06x}"))),
                    ("ttl", if network == "IPv6" { "hops" } else { "TTL" }, num(r.ttl)),
                    ("ip_len", "length", num(r.ip_len)),
                    ("frag_offset", "fragment at", num(r.frag_offset)),
                    ("more_frags", "more fragments", num(r.more_frags)),
                ],
            );
            let mut transport = vec![
                ("sport", "from", num(r.sport)),
                ("dport", "to", num(r.dport)),
                ("tcp_flags", "", r.tcp_flags.map(protocol::tcp_flags)),
                ("tcp_seq", "seq", r.tcp_seq.map(|s| s.to_string())),
                ("tcp_ack", "ack", r.tcp_ack.map(|s| s.to_string())),
                ("tcp_window", "window", num(r.tcp_window)),
                ("payload_bytes", "payload", r.payload_bytes.map(|n| n.to_string())),
            ];
            if r.icmp_kind.is_some() {
                let code = r.icmp_kind.zip(r.icmp_code).and_then(|(kind, code)| {
                    match protocol::icmp_code(r.ip_proto == Some(58), kind, code) {
                        Some(name) => Some(format!("{name} ({code})")),
                        None => (code != 0).then(|| format!("code {code}")),
                    }
                });
                let echo = |n: Option<i32>| num(n.filter(|_| r.icmp_id != Some(0) || r.icmp_seq != Some(0)));
                transport.extend([
                    ("icmp_kind", "", r.icmp_kind.map(|k| protocol::icmp_kind(r.ip_proto == Some(58), k))),
                    ("icmp_code", "", code),
                    ("icmp_id", "id", echo(r.icmp_id)),
                    ("icmp_seq", "seq", echo(r.icmp_seq)),
                ]);
            }
            transport.push(("l4_checksum", "checksum", hex(r.l4_checksum)));
            transport.push(("tcp_tsval", "TS", r.tcp_tsval.map(|n| n.to_string())));
            transport.push(("tcp_tsecr", "ecr", r.tcp_tsecr.map(|n| n.to_string())));
            transport.push(("message", "", r.message.clone()));
            let other = || {
                r.ethertype.filter(|_| r.ip_src.is_none()).map_or("transport".to_owned(), protocol::ethertype)
            };
            layer(r.ip_proto.map_or_else(other, protocol::ip_proto), transport);
            out
        }
    };
}

layers_of!(of_footprint, FootprintRow);
layers_of!(of_frame, FrameRow);

/// Fields that a key compares.
fn of_key(key: i32) -> &'static [&'static str] {
    const TRANSPORT: &[&str] = &[
        "ip_src",
        "ip_dst",
        "sport",
        "dport",
        "tcp_seq",
        "tcp_flags",
        "payload_bytes",
        "l4_checksum",
        "icmp_kind",
        "icmp_id",
        "icmp_seq",
    ];
    const FULL: &[&str] = &[
        "ip_src",
        "ip_dst",
        "ip_id",
        "frag_offset",
        "sport",
        "dport",
        "tcp_seq",
        "tcp_flags",
        "payload_bytes",
        "l4_checksum",
        "icmp_kind",
        "icmp_id",
        "icmp_seq",
    ];
    match key {
        match_key::FULL => FULL,
        match_key::NETWORK => &["ip_src", "ip_dst", "ip_id", "frag_offset"],
        match_key::TRANSPORT => TRANSPORT,
        match_key::TCP_INTERVAL => &["ip_src", "ip_dst", "sport", "dport", "tcp_seq"],
        match_key::ARP => &["arp_op", "ip_src", "ip_dst", "mac_src", "mac_dst"],
        match_key::LINK => &["mac_src", "ethertype"],
        match_key::WIFI => &["wifi_ra", "wifi_ta", "wifi_seq"],
        _ => &[],
    }
}

/// Fields of these layers that were equal in a frame's key.
pub fn matched(layers: &[Layer], frames: &[FrameOfPacket]) -> Vec<&'static str> {
    let mut out = Vec::new();
    for frame in frames {
        let wire = of_frame(&frame.frame);
        let on_wire = |id: &str| wire.iter().flat_map(|l| &l.fields).find(|f| f.id == id).map(|f| &f.text);
        let keys = of_key(frame.association.key);
        out.extend(
            layers
                .iter()
                .flat_map(|l| &l.fields)
                .filter(|f| keys.contains(&f.id) && on_wire(f.id) == Some(&f.text))
                .map(|f| f.id),
        );
    }
    out.sort_unstable();
    out.dedup();
    out
}
