//! What a packet says to its reader beyond addresses and numbers, as one short text: what a name server is asked, what a DHCP
//! server offers, who has an address, which options TCP agrees on.
//!
//! Bytes come from strangers and may end anywhere: a text is made of what is there, and ends with `…` where more was meant. It
//! holds printable ASCII (and that sign) alone, and is bounded by the lengths of the formats.

mod dhcp;
mod dns;
mod options;

use kpat_model::Message;
use std::fmt::Write as _;
use std::net::{Ipv4Addr, Ipv6Addr};

pub(super) use options::of_tcp;

/// Where a text ends because the bytes did.
const CUT: &str = "…";

pub(super) fn mac(mac: &[u8]) -> String {
    mac.iter().enumerate().fold(String::new(), |mut out, (i, b)| {
        // Writing to a string does not fail.
        let _ = write!(out, "{}{b:02x}", if i > 0 { ":" } else { "" });
        out
    })
}

fn array<const N: usize>(data: &[u8], at: usize) -> Option<[u8; N]> {
    data.get(at..)?.first_chunk().copied()
}

fn v4(data: &[u8], at: usize) -> Option<Ipv4Addr> {
    array::<4>(data, at).map(Ipv4Addr::from)
}

fn v6(data: &[u8], at: usize) -> Option<Ipv6Addr> {
    array::<16>(data, at).map(Ipv6Addr::from)
}

/// What stands behind a UDP header, by its ports.
pub(super) fn of_udp(sport: u16, dport: u16, data: &[u8]) -> Option<Message> {
    let either = |port: u16| sport == port || dport == port;
    let text = if either(67) || either(68) {
        dhcp::v4(data)
    } else if either(546) || either(547) {
        dhcp::v6(data)
    } else if either(53) {
        dns::message("DNS", data)
    } else if either(5353) {
        dns::message("mDNS", data)
    } else if either(5355) {
        dns::message("LLMNR", data)
    } else {
        None
    };
    text.map(|text| Message { text: text.into(), behind_headers: true })
}

/// A message for or of a name server that has a segment of its own, behind its length.
pub(super) fn of_tcp_data(sport: u16, dport: u16, data: &[u8], len: u32) -> Option<String> {
    if sport != 53 && dport != 53 {
        return None;
    }
    let stated = u32::from(u16::from_be_bytes(array(data, 0)?));
    if stated + 2 == len { dns::message("DNS", &data[2..]) } else { None }
}

/// ARP and RARP for IPv4 over Ethernet, from the header on.
pub(super) fn of_arp(data: &[u8]) -> Option<Message> {
    let op = u16::from_be_bytes(array(data, 6)?);
    let (sender, target) = (v4(data, 14)?, v4(data, 24)?);
    let (sender_mac, target_mac) = (mac(data.get(8..14)?), mac(data.get(18..24)?));
    let text = match op {
        1 if sender == target => format!("announcement for {target}"),
        1 if sender.is_unspecified() => format!("who has {target}? probe"),
        1 => format!("who has {target}? tell {sender}"),
        2 if sender == target => format!("announcement: {sender} is at {sender_mac}"),
        2 => format!("{sender} is at {sender_mac}"),
        3 => format!("who is {target_mac}? tell {sender_mac}"),
        4 => format!("{target_mac} is at {target}"),
        8 => format!("who is {target_mac}? tell {sender_mac}"),
        9 => format!("{sender_mac} is at {sender}"),
        _ => return None,
    };
    Some(Message { text: text.into(), behind_headers: false })
}

/// A frame of spanning tree, from behind its LLC header: IEEE 802.1D, 9.3, as far as recordings keep it.
pub(super) fn of_spanning_tree(data: &[u8]) -> Option<Message> {
    let [0, 0, _version, kind] = array(data, 0)? else { return None };
    let mut text = match kind {
        0x00 => "configuration",
        0x02 => "rapid configuration",
        0x80 => "topology change notification",
        _ => return None,
    }
    .to_owned();
    let flags = if kind == 0x80 { 0 } else { *data.get(4)? };
    for (bit, meaning) in [(0x01, ", topology change"), (0x80, ", topology change acknowledged")] {
        if flags & bit != 0 {
            text += meaning;
        }
    }
    Some(Message { text: text.into(), behind_headers: false })
}

/// What an ICMP message is about, from its header on.
pub(super) fn of_icmp(kind: u8, code: u8, data: &[u8]) -> Option<Message> {
    let text = match (kind, code) {
        (3, 4) => format!("mtu {}", u16::from_be_bytes(array(data, 6)?)),
        (5, _) => format!("to {}", v4(data, 4)?),
        _ => return None,
    };
    Some(Message { text: text.into(), behind_headers: false })
}

/// The same of ICMPv6; RFC 4861.
pub(super) fn of_icmpv6(kind: u8, data: &[u8]) -> Option<Message> {
    // An option with a link address behind so many bytes.
    let link = |at: usize, kind: u8| {
        let own = |o: &[u8; 8]| o[..2] == [kind, 1];
        array::<8>(data, at).filter(own).map(|o| mac(&o[2..]))
    };
    let text = match kind {
        2 => format!("mtu {}", u32::from_be_bytes(array(data, 4)?)),
        135 => match (v6(data, 8)?, link(24, 1)) {
            (target, Some(from)) => format!("for {target} from {from}"),
            (target, None) => format!("for {target}"),
        },
        136 => match (v6(data, 8)?, link(24, 2)) {
            (target, Some(at)) => format!("{target} is at {at}"),
            (target, None) => target.to_string(),
        },
        137 => format!("to {}", v6(data, 8)?),
        _ => return None,
    };
    Some(Message { text: text.into(), behind_headers: false })
}

#[cfg(test)]
mod tests;
