//! What makes a frame and a packet recognisable to each other.

use crate::hash::Fold;
use crate::query::match_key;
use kpat_model::{Footprint, FootprintRecord, Network, Transport};
use std::net::IpAddr;

/// TCP payload as an interval of sequence numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tcp {
    /// Addresses and ports.
    pub flow: u64,
    pub seq: u32,
    /// Bytes of payload.
    pub len: u32,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Keys {
    /// Equal on both sides when all of the fields in it are.
    pub exact: u64,
    pub tcp: Option<Tcp>,
    /// Code of `association.key`.
    pub kind: i32,
    /// Network identification, 0: none.
    pub ident: u32,
    pub checksum: u16,
    /// 0: none.
    pub ttl: u8,
}

fn addr(h: Fold, a: IpAddr) -> Fold {
    match a {
        IpAddr::V4(a) => h.add(u64::from(a.to_bits())),
        IpAddr::V6(a) => {
            let bits = a.to_bits();
            h.add((bits >> 64) as u64).add(bits as u64)
        }
    }
}

struct Net {
    hash: Fold,
    ident: u32,
    proto: u8,
    ttl: u8,
    len: u16,
    /// Offset and more-fragments flag.
    fragment: Option<u64>,
}

fn mac(m: [u8; 6]) -> u64 {
    m.iter().fold(0, |v, b| v << 8 | u64::from(*b))
}

impl Keys {
    /// `None`: nothing in it that could be recognised.
    pub fn of(f: &Footprint) -> Option<Keys> {
        let start = Fold::default();
        let net = match &f.network {
            Some(Network::V4 { src, dst, id, proto, ttl, frag_offset, more_frags, total_len, .. }) => Net {
                hash: addr(addr(start.add(4), (*src).into()), (*dst).into()).add(u64::from(*proto)),
                ident: u32::from(*id),
                proto: *proto,
                ttl: *ttl,
                len: *total_len,
                fragment: (*more_frags || *frag_offset > 0)
                    .then_some(u64::from(*frag_offset) << 1 | u64::from(*more_frags)),
            },
            Some(Network::V6 { src, dst, proto, hop_limit, payload_len, fragment, .. }) => Net {
                hash: addr(addr(start.add(6), (*src).into()), (*dst).into()).add(u64::from(*proto)),
                ident: fragment.map_or(0, |(id, _, _)| id),
                proto: *proto,
                ttl: *hop_limit,
                len: *payload_len,
                fragment: fragment.map(|(_, offset, more)| u64::from(offset) << 1 | u64::from(more)),
            },
            Some(Network::Arp { op, sender_mac, sender_ip, target_mac, target_ip }) => {
                let h = addr(addr(start.add(u64::from(*op)), (*sender_ip).into()), (*target_ip).into());
                let exact = h.add(mac(*sender_mac)).add(mac(*target_mac)).value();
                return Some(Keys { exact, tcp: None, kind: match_key::ARP, ident: 0, checksum: 0, ttl: 0 });
            }
            Some(Network::Other(_)) | None => {
                // Encrypted or management 802.11: the sequence number is all there is.
                // Control frames have none; of the others 0 is a number like any.
                let w = f.wifi.filter(|w| matches!(w.frame_control >> 2 & 3, 0 | 2))?;
                let h = start.add(mac(w.receiver)).add(mac(w.transmitter)).add(u64::from(w.sequence_control));
                let exact = h.value();
                return Some(Keys { exact, tcp: None, kind: match_key::WIFI, ident: 0, checksum: 0, ttl: 0 });
            }
        };
        Some(Self::above(f, &net))
    }

    fn above(f: &Footprint, net: &Net) -> Keys {
        let mut keys = Keys {
            exact: 0,
            tcp: None,
            kind: match_key::TRANSPORT,
            ident: net.ident,
            checksum: 0,
            ttl: net.ttl,
        };
        if net.ident != 0 {
            keys.kind = match_key::FULL;
        }
        let with_ident = net.hash.add(u64::from(net.ident));
        let fragment = net.fragment.map(|x| with_ident.add(x).add(u64::from(net.len)).value());
        if let Some(exact) = fragment {
            return Keys { exact, kind: match_key::NETWORK, ..keys };
        }
        match &f.transport {
            Some(Transport::Tcp { sport, dport, seq, ack, flags, checksum, payload_len, .. }) => {
                let flow = net.hash.add(u64::from(*sport) << 16 | u64::from(*dport));
                // SYN, FIN, RST; the rest changes with segmentation.
                let flags = u64::from(flags & 7);
                let mut h = flow.add(u64::from(*seq) << 32 | u64::from(*payload_len)).add(flags);
                if *payload_len == 0 {
                    h = h.add(u64::from(*ack));
                } else {
                    keys.tcp = Some(Tcp { flow: flow.value(), seq: *seq, len: *payload_len });
                }
                keys.exact = h.value();
                keys.checksum = *checksum;
            }
            Some(Transport::Udp { sport, dport, len, checksum }) => {
                keys.exact = with_ident.add(ports_len(*sport, *dport, *len)).value();
                keys.checksum = *checksum;
            }
            Some(
                Transport::Icmp { kind, code, id, seq, checksum }
                | Transport::Icmpv6 { kind, code, id, seq, checksum },
            ) => {
                let fields =
                    u64::from(*kind) << 40 | u64::from(*code) << 32 | u64::from(*id) << 16 | u64::from(*seq);
                keys.exact = with_ident.add(fields).value();
                keys.checksum = *checksum;
            }
            Some(Transport::Other { .. }) | None => {
                keys.exact = with_ident.add(u64::from(net.proto) << 16 | u64::from(net.len)).value();
                keys.kind = match_key::NETWORK;
            }
        }
        keys
    }

    /// The keys of what a packet becomes on the wire: itself, or the segments of a UDP packet for segmentation.
    pub fn on_wire(f: &Footprint, record: &FootprintRecord) -> Vec<Keys> {
        let Some(keys) = Keys::of(f) else { return Vec::new() };
        let (Some(Transport::Udp { sport, dport, .. }), true) = (&f.transport, record.gso_size > 0) else {
            return vec![keys];
        };
        let (Some(Network::V4 { src, dst, proto, .. }), Some(payload)) =
            (&f.network, udp_payload(f, record.len_bytes))
        else {
            return vec![keys];
        };
        let hash = addr(addr(Fold::default().add(4), (*src).into()), (*dst).into()).add(u64::from(*proto));
        let size = u32::from(record.gso_size);
        (0..payload.div_ceil(size).min(128))
            .map(|k| {
                let ident =
                    if keys.ident == 0 { 0 } else { u32::from((keys.ident as u16).wrapping_add(k as u16)) };
                let len = (payload - k * size).min(size) as u16 + 8;
                let exact = hash.add(u64::from(ident)).add(ports_len(*sport, *dport, len)).value();
                Keys { exact, ident, checksum: 0, ..keys }
            })
            .collect()
    }
}

fn ports_len(sport: u16, dport: u16, len: u16) -> u64 {
    u64::from(sport) << 32 | u64::from(dport) << 16 | u64::from(len)
}

/// Payload of a whole UDP packet, from the length of the skb where the header's field is of one segment or too small.
fn udp_payload(f: &Footprint, len_bytes: u32) -> Option<u32> {
    let headers = if f.link.is_some() { 14 + 20 + 8 } else { 20 + 8 };
    len_bytes.checked_sub(headers).filter(|n| *n > 0)
}
