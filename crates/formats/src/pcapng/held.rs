//! A packet as the kernel held it, among the frames of a capture: an exported PDU of kpat's own protocol.
//!
//! With the link type of its bytes Wireshark would take it for one more packet on a wire, and find retransmissions,
//! duplicate ACKs and pings that were not sent. Its dissector for our protocol (`kpat.held`, in kpat.lua) reads the header
//! fields and follows no conversations; without it the columns still have addresses and words.

use super::block::BlockWriter;
use kpat_model::{Footprint, FootprintRecord, Network, Transport};
use kpat_query::protocol;

/// LINKTYPE_WIRESHARK_UPPER_PDU.
pub(super) const LINKTYPE: u16 = 252;

/// What Wireshark's exported_pdu_tlvs.h calls them.
mod tag {
    pub const DISSECTOR_NAME: u16 = 12;
    pub const IPV4_SRC: u16 = 20;
    pub const IPV4_DST: u16 = 21;
    pub const IPV6_SRC: u16 = 22;
    pub const IPV6_DST: u16 = 23;
    pub const COL_PROT_TEXT: u16 = 33;
    pub const COL_INFO_TEXT: u16 = 36;
}

/// What stands before the header bytes: tags for Wireshark, then four numbers for our dissector, 8 bytes in all: the layer
/// at which the bytes begin, the IP protocol, ARPHRD_* of the device, the EtherType, and two bytes of zero.
pub(super) fn front(f: &FootprintRecord, place: &str) -> Vec<u8> {
    let decoded = kpat_capture::decode::packet(f);
    let mut w = BlockWriter::options(true);
    let mut text = |tag, text: &str| {
        // Wireshark reads the next tag behind the stated length: that is a multiple of 4.
        let mut value = text.as_bytes().to_vec();
        value.resize(value.len().next_multiple_of(4), 0);
        w.option(tag, &value);
    };
    text(tag::DISSECTOR_NAME, "kpat.held");
    text(tag::COL_PROT_TEXT, "kernel");
    text(tag::COL_INFO_TEXT, &words(f, &decoded, place));
    match decoded.network {
        Some(Network::V4 { src, dst, .. }) => {
            w.option(tag::IPV4_SRC, &src.octets());
            w.option(tag::IPV4_DST, &dst.octets());
        }
        Some(Network::V6 { src, dst, .. }) => {
            w.option(tag::IPV6_SRC, &src.octets());
            w.option(tag::IPV6_DST, &dst.octets());
        }
        _ => {}
    }
    w.end_of_options();
    w.bytes.extend_from_slice(&[f.start_layer, f.ip_proto]);
    w.u16(f.link_type);
    w.u16(f.protocol);
    w.u16(0);
    w.bytes
}

fn words(f: &FootprintRecord, decoded: &Footprint, place: &str) -> String {
    let (ethertype, proto, addresses) = match decoded.network {
        Some(Network::V4 { src, dst, proto, .. }) => (0x0800, Some(proto), Some((src.into(), dst.into()))),
        Some(Network::V6 { src, dst, proto, .. }) => (0x86dd, Some(proto), Some((src.into(), dst.into()))),
        Some(Network::Arp { sender_ip, target_ip, .. }) => {
            (0x0806, None, Some((sender_ip.into(), target_ip.into())))
        }
        _ => (f.protocol, (f.start_layer == 4).then_some(f.ip_proto), None),
    };
    let mut out = protocol::name(Some(i32::from(ethertype)), proto.map(i32::from));
    let ports = match decoded.transport {
        Some(Transport::Tcp { sport, dport, .. } | Transport::Udp { sport, dport, .. }) => {
            Some((sport, dport))
        }
        _ => None,
    };
    let end = |address: Option<std::net::IpAddr>, port: Option<u16>| {
        protocol::endpoint(address.map(|a| a.to_string()).as_deref(), port.map(i32::from))
    };
    let from = end(addresses.map(|a| a.0), ports.map(|p| p.0));
    let to = end(addresses.map(|a| a.1), ports.map(|p| p.1));
    if !from.is_empty() || !to.is_empty() {
        out += &format!(" {from} → {to}");
    }
    if let Some(Transport::Tcp { seq, ack, payload_len, .. }) = decoded.transport {
        out += &format!(" seq {seq} ack {ack} len {payload_len}");
    }
    if !place.is_empty() {
        out += &format!(", held at {place}");
    }
    out
}
