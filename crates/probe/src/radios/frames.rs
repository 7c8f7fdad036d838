//! The beginning of a frame as an exchange: DHCP, ARP, neighbour discovery, EAPOL. Any bytes may be given.

use crate::wire;
use kpat_model::{BootNs, Context, Exchange, Exchanged};

const IP: u16 = 0x0800;
const ARP: u16 = 0x0806;
const IPV6: u16 = 0x86dd;

fn half(b: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(b.get(at..at + 2)?.try_into().ok()?))
}

/// Protocol, message, id, network addresses, the address that it is about.
type Parts = (Exchanged, u8, u64, Vec<u8>, Vec<u8>);

/// `None`: it is none of these, or cut before it says so.
pub fn exchange(r: &wire::Frame) -> Option<Exchange> {
    let bytes = &r.bytes[..usize::from(r.copied).min(r.bytes.len())];
    let (protocol, message, id, network, subject) = match r.protocol {
        ARP => arp(bytes)?,
        IP => dhcp(bytes)?,
        IPV6 => ipv6(bytes)?,
        _ => eapol(bytes)?,
    };
    let address = |at: usize| r.link[at..at + 6].try_into().unwrap_or_default();
    Some(Exchange {
        at: BootNs(r.h.ts as i64),
        ctx: Context::from_u8(r.ctx),
        pid: r.h.pid,
        protocol,
        message,
        sent: r.sent != 0,
        netns: r.netns,
        ifindex: r.ifindex,
        length: r.len,
        id,
        link: (r.has_link != 0).then(|| [address(6), address(0)]),
        network,
        subject,
    })
}

/// RFC 826, for Ethernet and IPv4.
fn arp(b: &[u8]) -> Option<Parts> {
    let network = [b.get(14..18)?, b.get(24..28)?].concat();
    Some((Exchanged::Arp, half(b, 6)? as u8, 0, network, Vec::new()))
}

/// RFC 2131, with options of RFC 2132: 50 the address requested, 53 the message.
fn dhcp(b: &[u8]) -> Option<Parts> {
    const OPTIONS: usize = 240;
    let header = usize::from(b.first()? & 0xf) * 4;
    let network = b.get(12..20)?.to_vec();
    let body = b.get(header + 8..)?;
    let id = u32::from_be_bytes(body.get(4..8)?.try_into().ok()?);
    let mut subject = body.get(16..20)?.to_vec();
    let (mut message, mut at) = (0, OPTIONS);
    while let Some(option) = body.get(at) {
        if *option == 0 {
            at += 1;
            continue;
        }
        let Some(length) = body.get(at + 1).map(|n| usize::from(*n)).filter(|_| *option != 255) else {
            break;
        };
        let Some(value) = body.get(at + 2..at + 2 + length) else { break };
        match option {
            53 => message = value.first().copied().unwrap_or(0),
            50 if subject == [0; 4] => subject = value.to_vec(),
            _ => {}
        }
        at += 2 + length;
    }
    let subject = if subject == [0; 4] || subject.len() != 4 { Vec::new() } else { subject };
    Some((Exchanged::Dhcp4, message, id.into(), network, subject))
}

/// RFC 4861 and RFC 8415.
fn ipv6(b: &[u8]) -> Option<Parts> {
    const HEADER: usize = 40;
    let (next, network) = (*b.get(6)?, b.get(8..HEADER)?.to_vec());
    let body = b.get(HEADER..)?;
    if next == 58 {
        let message = *body.first()?;
        let target = matches!(message, 135..=137).then(|| body.get(8..24)).flatten();
        return Some((Exchanged::Nd, message, 0, network, target.map(<[u8]>::to_vec).unwrap_or_default()));
    }
    let word = u32::from_be_bytes(body.get(8..12)?.try_into().ok()?);
    Some((Exchanged::Dhcp6, (word >> 24) as u8, u64::from(word & 0xff_ffff), network, Vec::new()))
}

/// IEEE 802.1X and 802.11, 12.7.2: which message of a handshake it is follows from the bits of its key information.
fn eapol(b: &[u8]) -> Option<Parts> {
    const PACKET: u8 = 0;
    const START: u8 = 1;
    const KEY: u8 = 3;
    const PAIRWISE: u16 = 0x0008;
    const ACK: u16 = 0x0080;
    const SECURE: u16 = 0x0200;
    match *b.get(1)? {
        KEY => {}
        // Requests and answers say of which method they are.
        PACKET => {
            let (code, identifier) = (u64::from(*b.get(4)?), u64::from(*b.get(5)?));
            let method = b.get(8).filter(|_| code <= 2).copied().map_or(0, u64::from);
            return Some((
                Exchanged::Eapol,
                Exchanged::EAP,
                code << 16 | identifier << 8 | method,
                Vec::new(),
                Vec::new(),
            ));
        }
        START => return Some((Exchanged::Eapol, Exchanged::EAPOL_START, 0, Vec::new(), Vec::new())),
        _ => return Some((Exchanged::Eapol, 0, 0, Vec::new(), Vec::new())),
    }
    const MIC: u16 = 0x0100;
    let info = half(b, 5)?;
    let replay = u64::from_be_bytes(b.get(9..17)?.try_into().ok()?);
    let message = match (info & PAIRWISE != 0, info & ACK != 0) {
        (true, true) if info & MIC == 0 => 1,
        (true, true) => 3,
        // The fourth has the secure bit and no key data, the second has key data.
        (true, false) if info & SECURE != 0 && half(b, 97).is_none_or(|length| length == 0) => 4,
        (true, false) => 2,
        (false, true) => 5,
        (false, false) => 6,
    };
    Some((Exchanged::Eapol, message, replay, Vec::new(), Vec::new()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Version 2; a request for the identity, an answer by PEAP, success, a start.
    #[test]
    fn what_is_no_key_says_what_it_is() {
        let read = |bytes: &[u8]| eapol(bytes).map(|(_, message, id, ..)| (message, id));
        assert_eq!(read(&[2, 0, 0, 5, 1, 9, 0, 5, 1]), Some((7, 0x01_0901)));
        assert_eq!(read(&[2, 0, 0, 6, 2, 7, 0, 6, 25, 0]), Some((7, 0x02_0719)));
        assert_eq!(read(&[2, 0, 0, 4, 3, 8, 0, 4]), Some((7, 0x03_0800)));
        assert_eq!(read(&[1, 1, 0, 0]), Some((8, 0)));
        assert_eq!(read(&[1, 2, 0, 0]), Some((0, 0)));
        // Cut off.
        assert_eq!(read(&[2, 0, 0, 5, 1]), None);
    }
}
