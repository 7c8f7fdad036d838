//! The header fields by which a packet or a frame can be recognised, per layer. One type for both sides: what the
//! kernel held (`klog`) and what was on the wire (`capture`) are decoded into the same value and so can be compared.
//!
//! Ports, lengths and identifications are host order; addresses are bytes in wire order.

use std::net::{Ipv4Addr, Ipv6Addr};

/// Ethernet (or cooked) link layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Link {
    /// `None`: a cooked header, which has none.
    pub dst: Option<[u8; 6]>,
    /// `None`: a cooked header of a device without a hardware address.
    pub src: Option<[u8; 6]>,
    /// EtherType after VLAN tags.
    pub ethertype: u16,
    /// VLAN ids, outer first; 0xffff: none.
    pub vlan: [u16; 2],
}

impl Link {
    pub const NO_VLAN: u16 = 0xffff;
}

/// 802.11 header, IEEE 802.11-2020 section 9.2.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Wifi {
    pub frame_control: u16,
    pub receiver: [u8; 6],
    pub transmitter: [u8; 6],
    /// Sequence number << 4 | fragment number; 0 in control frames, which have none.
    pub sequence_control: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Network {
    /// RFC 791.
    V4 {
        src: Ipv4Addr,
        dst: Ipv4Addr,
        id: u16,
        proto: u8,
        ttl: u8,
        tos: u8,
        /// Offset in bytes.
        frag_offset: u16,
        more_frags: bool,
        dont_frag: bool,
        total_len: u16,
    },
    /// RFC 8200; `proto` is the upper-layer protocol after extension headers.
    V6 {
        src: Ipv6Addr,
        dst: Ipv6Addr,
        proto: u8,
        hop_limit: u8,
        traffic_class: u8,
        flow_label: u32,
        payload_len: u16,
        /// From the fragment header: identification, offset in bytes, more fragments.
        fragment: Option<(u32, u16, bool)>,
    },
    /// RFC 826 for IPv4 over Ethernet.
    Arp { op: u16, sender_mac: [u8; 6], sender_ip: Ipv4Addr, target_mac: [u8; 6], target_ip: Ipv4Addr },
    /// Another EtherType, and the first eight bytes behind the link header, which recordings keep; 0 where they are not there.
    Other(u16, [u8; 8]),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Transport {
    /// RFC 9293. `payload_len` in bytes, from the IP length, not from what was captured; for a GSO or GRO packet it
    /// is that of the whole packet.
    Tcp {
        sport: u16,
        dport: u16,
        seq: u32,
        ack: u32,
        flags: u8,
        window: u16,
        checksum: u16,
        payload_len: u32,
    },
    /// RFC 768.
    Udp { sport: u16, dport: u16, len: u16, checksum: u16 },
    /// RFC 792; `id` and `seq` of echo messages, else 0.
    Icmp { kind: u8, code: u8, id: u16, seq: u16, checksum: u16 },
    /// RFC 4443.
    Icmpv6 { kind: u8, code: u8, id: u16, seq: u16, checksum: u16 },
    /// Another protocol, or a later fragment (`proto` as in the network header).
    Other { proto: u8 },
}

/// What a packet says beyond its fields, for people: a DNS query, a DHCP offer, who has an address, TCP's options.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Message {
    pub text: Box<str>,
    /// Made of data behind the headers, which recordings do not keep and captures have.
    pub behind_headers: bool,
}

/// All layers of one packet or frame; a layer that was not there or not readable is `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Footprint {
    pub link: Option<Link>,
    pub wifi: Option<Wifi>,
    pub network: Option<Network>,
    pub transport: Option<Transport>,
    /// What a tunnel (VXLAN, GRE, IP-in-IP) carries.
    pub inner: Option<Box<Footprint>>,
    pub message: Option<Message>,
    /// Values of TCP's timestamps option: the sender's, and the one that it echoes.
    pub tcp_stamps: Option<(u32, u32)>,
    /// The bytes ended before the headers did.
    pub cut: bool,
}
