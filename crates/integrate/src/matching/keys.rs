//! What makes a frame and a packet recognisable to each other.

use kpat_model::codes::match_key;
use kpat_model::hash::Fold;
use kpat_model::{Footprint, FootprintRecord, Link, Network, Transport};
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

#[derive(Clone, Copy, Debug, Default)]
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
    /// Of all that a segment without data says besides, 0: none, or not known. Nothing between a guest and its host changes it.
    pub mark: u16,
    /// Of a segment that the packet may be cut into.
    pub part: bool,
}

/// All keys of a packet: most have one.
#[derive(Clone, Debug, Default)]
pub(crate) struct KeyList {
    first: Option<Keys>,
    further: Vec<Keys>,
}

impl KeyList {
    #[cfg(test)]
    pub fn of(one: Keys) -> KeyList {
        KeyList { first: Some(one), further: Vec::new() }
    }

    pub fn first(&self) -> Option<&Keys> {
        self.first.as_ref()
    }

    pub fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    pub fn iter(&self) -> impl Iterator<Item = &Keys> {
        self.first.iter().chain(&self.further)
    }
}

fn addr(h: Fold, a: IpAddr) -> Fold {
    match a {
        IpAddr::V4(a) => h.with(u64::from(a.to_bits())),
        IpAddr::V6(a) => {
            let bits = a.to_bits();
            h.with((bits >> 64) as u64).with(bits as u64)
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

/// What an IP header has.
fn network(f: &Footprint) -> Option<Net> {
    let start = Fold::default();
    match f.network.as_ref()? {
        Network::V4 { src, dst, id, proto, ttl, frag_offset, more_frags, total_len, .. } => Some(Net {
            hash: addr(addr(start.with(4), (*src).into()), (*dst).into()).with(u64::from(*proto)),
            ident: u32::from(*id),
            proto: *proto,
            ttl: *ttl,
            len: *total_len,
            fragment: (*more_frags || *frag_offset > 0)
                .then_some(u64::from(*frag_offset) << 1 | u64::from(*more_frags)),
        }),
        Network::V6 { src, dst, proto, hop_limit, payload_len, fragment, .. } => Some(Net {
            hash: addr(addr(start.with(6), (*src).into()), (*dst).into()).with(u64::from(*proto)),
            ident: fragment.map_or(0, |(id, _, _)| id),
            proto: *proto,
            ttl: *hop_limit,
            len: *payload_len,
            fragment: fragment.map(|(_, offset, more)| u64::from(offset) << 1 | u64::from(more)),
        }),
        Network::Arp { .. } | Network::Other(..) => None,
    }
}

fn mac(m: [u8; 6]) -> u64 {
    m.iter().fold(0, |v, b| v << 8 | u64::from(*b))
}

impl Keys {
    /// `None`: nothing in it that could be recognised.
    pub fn of(f: &Footprint) -> Option<Keys> {
        if let Some(net) = network(f) {
            return Some(Self::above(f, &net));
        }
        let start = Fold::default();
        if let Some(Network::Arp { op, sender_mac, sender_ip, target_mac, target_ip }) = &f.network {
            let h = addr(addr(start.with(u64::from(*op)), (*sender_ip).into()), (*target_ip).into());
            let exact = h.with(mac(*sender_mac)).with(mac(*target_mac)).value();
            return Some(Keys { exact, kind: match_key::ARP, ..Keys::default() });
        }
        // Of the link's addresses only the sender's: that is all that a cooked capture has.
        if let (Some(Network::Other(kind, first)), Some(Link { src: Some(src), .. })) = (&f.network, &f.link)
        {
            let h = start.with(u64::from(*kind)).with(mac(*src)).with(u64::from_be_bytes(*first));
            return Some(Keys { exact: h.value(), kind: match_key::LINK, ..Keys::default() });
        }
        // Encrypted or management 802.11: the sequence number is all there is.
        // Control frames have none; of the others 0 is a number like any.
        let w = f.wifi.filter(|w| matches!(w.frame_control >> 2 & 3, 0 | 2))?;
        let h = start.with(mac(w.receiver)).with(mac(w.transmitter)).with(u64::from(w.sequence_control));
        let exact = h.value();
        Some(Keys { exact, kind: match_key::WIFI, ..Keys::default() })
    }

    /// `exact` with all that tells alike packets apart: for what nothing on the way changes.
    pub fn named(&self) -> u64 {
        if self.ident == 0 && self.mark == 0 {
            return self.exact;
        }
        Fold::default().with(self.exact).with(u64::from(self.ident) << 16 | u64::from(self.mark)).value()
    }

    /// They were of two packets, whatever else is equal: for what nothing on the way changes.
    pub fn contradict(&self, other: &Keys) -> bool {
        let differ = |a: u32, b: u32| a != 0 && b != 0 && a != b;
        differ(self.ident, other.ident) || differ(self.mark.into(), other.mark.into())
    }

    fn above(f: &Footprint, net: &Net) -> Keys {
        let mut keys = Keys {
            exact: 0,
            tcp: None,
            kind: match_key::TRANSPORT,
            ident: net.ident,
            checksum: 0,
            ttl: net.ttl,
            mark: 0,
            part: false,
        };
        if net.ident != 0 {
            keys.kind = match_key::FULL;
        }
        let with_ident = net.hash.with(u64::from(net.ident));
        let fragment = net.fragment.map(|x| with_ident.with(x).with(u64::from(net.len)).value());
        if let Some(exact) = fragment {
            return Keys { exact, kind: match_key::NETWORK, ..keys };
        }
        match &f.transport {
            Some(Transport::Tcp { sport, dport, seq, ack, flags, checksum, payload_len, .. }) => {
                let flow = net.hash.with(u64::from(*sport) << 16 | u64::from(*dport));
                // SYN, FIN, RST; the rest changes with segmentation.
                let flags = u64::from(flags & 7);
                let mut h = flow.with(u64::from(*seq) << 32 | u64::from(*payload_len)).with(flags);
                if *payload_len == 0 {
                    h = h.with(u64::from(*ack));
                } else {
                    keys.tcp = Some(Tcp { flow: flow.value(), seq: *seq, len: *payload_len });
                }
                keys.exact = h.value();
                keys.checksum = *checksum;
            }
            Some(Transport::Udp { sport, dport, len, checksum }) => {
                keys.exact = with_ident.with(ports_len(*sport, *dport, *len)).value();
                keys.checksum = *checksum;
            }
            Some(
                Transport::Icmp { kind, code, id, seq, checksum }
                | Transport::Icmpv6 { kind, code, id, seq, checksum },
            ) => {
                let fields =
                    u64::from(*kind) << 40 | u64::from(*code) << 32 | u64::from(*id) << 16 | u64::from(*seq);
                keys.exact = with_ident.with(fields).value();
                keys.checksum = *checksum;
            }
            Some(Transport::Other { .. }) | None => {
                keys.exact = with_ident.with(u64::from(net.proto) << 16 | u64::from(net.len)).value();
                keys.kind = match_key::NETWORK;
            }
        }
        keys
    }

    /// The keys of what a packet may be on the wire: itself, as a virtual link carries a packet for segmentation whole; and the segments of
    /// a UDP one. `cut`: also by the fields of its network header alone, for frames of which no more was captured.
    pub fn on_wire(f: &Footprint, record: &FootprintRecord, cut: bool) -> KeyList {
        let Some(mut own) = Keys::of(f) else { return KeyList::default() };
        own.mark = mark(f, record).unwrap_or(0);
        let mut out = Vec::new();
        if let (Some(Transport::Udp { sport, dport, .. }), Some(net)) = (&f.transport, network(f)) {
            out.extend(segments(f, record, &own).map(|(ident, payload)| {
                let exact =
                    net.hash.with(u64::from(ident)).with(ports_len(*sport, *dport, payload + 8)).value();
                Keys { exact, ident, checksum: 0, part: true, ..own }
            }));
        }
        if cut && f.transport.is_some() {
            out.extend(Self::headers(f, record, &own));
        }
        KeyList { first: Some(own), further: out }
    }

    /// As [`Keys::of`] has them of a frame that ends behind the network header; none of a fragment, whose own key is of that header.
    fn headers(f: &Footprint, record: &FootprintRecord, own: &Keys) -> Vec<Keys> {
        let Some(net) = network(f).filter(|n| n.fragment.is_none()) else { return Vec::new() };
        let key = |ident: u32, len: u16| {
            let exact =
                net.hash.with(u64::from(ident)).with(u64::from(net.proto) << 16 | u64::from(len)).value();
            Keys { exact, kind: match_key::NETWORK, ident, ttl: net.ttl, ..Keys::default() }
        };
        let mut out = vec![key(net.ident, net.len)];
        let payload = payload_of(f, record);
        let headers = payload.and_then(|p| record.len_bytes.checked_sub(p + link_len(f, record)));
        if let Some(headers) = headers {
            // The payload length of IPv6 does not count its header.
            let headers = if matches!(f.network, Some(Network::V6 { .. })) {
                headers.saturating_sub(40)
            } else {
                headers
            };
            out.extend(segments(f, record, own).map(|(ident, payload)| Keys {
                part: true,
                ..key(ident, (headers as u16).wrapping_add(payload))
            }));
        }
        out
    }
}

/// Identification and payload of each segment of a packet for segmentation; none: it is not one.
fn segments(f: &Footprint, record: &FootprintRecord, own: &Keys) -> impl Iterator<Item = (u32, u16)> + use<> {
    let size = u32::from(record.gso_size);
    let payload = if size > 0 { payload_of(f, record).unwrap_or(0) } else { 0 };
    let first = own.ident;
    (0..payload.div_ceil(size.max(1)).min(MAX_SEGMENTS)).map(move |k| {
        let ident = if first == 0 { 0 } else { u32::from((first as u16).wrapping_add(k as u16)) };
        (ident, (payload - k * size).min(size) as u16)
    })
}

/// UDP_MAX_SEGMENTS of include/linux/udp.h.
const MAX_SEGMENTS: u32 = 128;

/// Bytes of the link header that `skb->len` counts.
fn link_len(f: &Footprint, record: &FootprintRecord) -> u32 {
    if record.start_layer != 2 || f.link.is_none() {
        return 0;
    }
    let tags = f.link.iter().flat_map(|l| l.vlan).filter(|v| *v != Link::NO_VLAN).count() as u32;
    14 + 4 * tags
}

/// [`Keys::mark`]: window and options, of a segment that only acknowledges. It is never sent again, and nothing is joined to it.
fn mark(f: &Footprint, record: &FootprintRecord) -> Option<u16> {
    let Some(Transport::Tcp { seq, ack, flags, payload_len: 0, .. }) = f.transport else { return None };
    let bytes = &record.header[..];
    if record.start_layer == 2 && f.link.is_none() {
        return None;
    }
    let network = link_len(f, record) as usize;
    let at = match f.network.as_ref()? {
        Network::V4 { .. } if bytes.get(network)? & 15 == 5 => network + 20,
        Network::V6 { .. } if bytes.get(network + 6) == Some(&6) => network + 40,
        _ => return None,
    };
    // As much as is logged whatever stands before it.
    let end = at + (usize::from(bytes.get(at + 12)? >> 4) * 4).min(50);
    // Not the checksum, which may be left to the device. Ports are the flow's.
    let header = bytes.get(at..end).filter(|h| h.len() >= 20 && flags & 7 == 0)?;
    let start = Fold::default().with(u64::from(seq) << 32 | u64::from(ack));
    let parts = header[12..16].iter().chain(&header[18..]);
    Some((parts.fold(start, |h, b| h.with(u64::from(*b))).value() >> 48) as u16 | 1)
}

/// Payload of a whole TCP or UDP packet, from the length of the skb: the header's field is of one segment, or too small, in some.
fn payload_of(f: &Footprint, record: &FootprintRecord) -> Option<u32> {
    let payload = match &f.transport {
        Some(Transport::Tcp { payload_len, .. }) => return Some(*payload_len),
        Some(Transport::Udp { .. }) => {
            let network = if matches!(f.network, Some(Network::V6 { .. })) { 40 } else { 20 };
            record.len_bytes.checked_sub(link_len(f, record) + network + 8)
        }
        _ => None,
    };
    payload.filter(|n| *n > 0)
}

fn ports_len(sport: u16, dport: u16, len: u16) -> u64 {
    u64::from(sport) << 32 | u64::from(dport) << 16 | u64::from(len)
}
