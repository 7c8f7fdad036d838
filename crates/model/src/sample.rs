//! One part of the packets instead of all: which, chosen by a hash of what a packet says of itself (RFC 5475, section 6.2). The kernel
//! side chooses in the same way (bpf/sample.bpf.h), and so does the sniffer of the recording.

use crate::flow::{KEY, mix};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// What is chosen as one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Unit {
    /// Both directions between two ports (or two hosts, of protocols without ports; parts of a datagram have none): all packets or none.
    #[default]
    Flow,
    /// Each packet for itself; where two say the same of themselves (equal datagrams without identification) both or none.
    Packet,
}

impl Unit {
    pub fn noun(self) -> &'static str {
        match self {
            Unit::Flow => "flow",
            Unit::Packet => "packet",
        }
    }
}

/// A recording has about one in `one_in` of what it would have had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sample {
    pub one_in: u32,
    #[serde(default)]
    pub by: Unit,
}

/// More would be no packets at all.
pub const MOST: u32 = 1_000_000;

const TCP: u8 = 6;
const UDP: u8 = 17;

fn has_ports(protocol: u8) -> bool {
    matches!(protocol, TCP | UDP | 33 | 132 | 136)
}

/// Little-endian as the kernel side loads them; bytes behind the end are zero.
fn word<const N: usize>(bytes: &[u8], at: usize) -> u64 {
    let mut w = [0; 8];
    if let Some(b) = bytes.get(at..at + N) {
        w[..N].copy_from_slice(b);
    }
    u64::from_le_bytes(w)
}

/// A fragment, of an IPv4 packet.
fn is_part(network: &[u8]) -> bool {
    network.first().is_some_and(|b| b >> 4 == 4) && word::<2>(network, 6) & 0xff3f != 0
}

impl Sample {
    /// A packet whose hash, of 32 bits, is below is recorded.
    pub fn below(&self) -> u64 {
        (1 << 32) / u64::from(self.one_in.max(1))
    }

    /// Is this packet among the chosen? `network`: its bytes from the IP header on; what is no IP packet is.
    pub fn takes(&self, network: &[u8]) -> bool {
        self.hash(network).is_none_or(|h| h < self.below())
    }

    /// A captured frame has no packet in the recording: it is of a flow that was not chosen. Of fragments, of frames that were cut and where
    /// packets were chosen (which are segmented and merged on their way) that is not known. `network`: from the IP header on.
    pub fn leaves_out(&self, network: &[u8]) -> bool {
        let v4 = network.first().is_some_and(|b| b >> 4 == 4);
        let needed = if v4 { usize::from(network[0] & 15) * 4 + 4 } else { 44 };
        self.by == Unit::Flow && !is_part(network) && network.len() >= needed && !self.takes(network)
    }

    fn hash(&self, net: &[u8]) -> Option<u64> {
        let v4 = match net.first()? >> 4 {
            4 if net.len() >= 20 => true,
            6 if net.len() >= 40 => false,
            _ => return None,
        };
        let (l4, protocol) = if v4 { (usize::from(net[0] & 15) * 4, net[9]) } else { (40, net[6]) };
        let part = is_part(net);
        let behind = net.get(l4..).unwrap_or_default();
        let proto = u64::from(protocol);
        let hash = match self.by {
            Unit::Flow => {
                let v6 = |at| mix(word::<8>(net, at)) ^ word::<8>(net, at + 8);
                let (from, to) = if v4 { (word::<4>(net, 12), word::<4>(net, 16)) } else { (v6(8), v6(24)) };
                let ports = if has_ports(protocol) && !part { word::<4>(behind, 0) } else { 0 };
                let end =
                    |address: u64, port: u64| mix(address.wrapping_add((port & 0xffff).wrapping_mul(KEY)));
                end(from, ports).wrapping_add(end(to, ports >> 16)) ^ proto
            }
            Unit::Packet => {
                let further = if behind.len() >= 16 { word::<8>(behind, 8) } else { 0 };
                let (a, b) = match protocol {
                    _ if part => (0, 0),
                    TCP => (word::<8>(behind, 4), word::<2>(behind, 12)),
                    // a frame's padding is not the datagram's
                    UDP => match word::<2>(behind, 4) {
                        len if (len as u16).swap_bytes() >= 16 => (len, further),
                        len => (len, 0),
                    },
                    _ => (word::<8>(behind, 0) & !0xffff_0000, further),
                };
                mix(mix(a ^ proto << 16).wrapping_add(b)) ^ if v4 { word::<2>(net, 4) } else { 0 }
            }
        };
        Some(mix(hash) >> 32)
    }
}

impl fmt::Display for Sample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.by {
            Unit::Flow => write!(f, "1/{}", self.one_in),
            Unit::Packet => write!(f, "1/{}:packet", self.one_in),
        }
    }
}

impl FromStr for Sample {
    type Err = String;

    /// `1/N`, `1/N:flow`, `1/N:packet`.
    fn from_str(text: &str) -> Result<Sample, String> {
        let (share, by) = match text.split_once(':') {
            None | Some((_, "flow")) => (text.split(':').next().unwrap_or_default(), Unit::Flow),
            Some((share, "packet")) => (share, Unit::Packet),
            Some((_, by)) => return Err(format!("{by:?} is neither flow nor packet")),
        };
        let one_in = share.strip_prefix("1/").and_then(|n| n.parse().ok()).filter(|n| (2..=MOST).contains(n));
        let one_in = one_in.ok_or_else(|| format!("{share:?}: write 1/2 to 1/{MOST}"))?;
        Ok(Sample { one_in, by })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ipv4(protocol: u8, from: u32, to: u32, ports: (u16, u16), id: u16) -> Vec<u8> {
        let mut b = vec![0x45, 0, 0, 60];
        b.extend(id.to_be_bytes());
        b.extend([0x40, 0, 64, protocol, 0, 0]);
        b.extend(from.to_be_bytes());
        b.extend(to.to_be_bytes());
        b.extend(ports.0.to_be_bytes());
        b.extend(ports.1.to_be_bytes());
        b.extend([0; 36]);
        b
    }

    #[test]
    fn what_is_written_is_read() {
        for text in ["1/2", "1/16:packet", "1/1000000"] {
            assert_eq!(text.parse::<Sample>().unwrap().to_string(), text);
        }
        assert_eq!("1/3:flow".parse::<Sample>().unwrap().to_string(), "1/3");
        for text in ["", "16", "1/1", "1/0", "2/3", "1/x", "1/3:host", "1/1000001"] {
            assert!(text.parse::<Sample>().is_err(), "{text}");
        }
    }

    #[test]
    fn both_directions_are_one_flow() {
        let by_flow = Sample { one_in: 2, by: Unit::Flow };
        for n in 0..2000 {
            let there = ipv4(TCP, 0x0a000001, 0x0a000002 + n, (40000, 443), 7);
            let back = ipv4(TCP, 0x0a000002 + n, 0x0a000001, (443, 40000), 1234);
            assert_eq!(by_flow.takes(&there), by_flow.takes(&back));
        }
    }

    /// The share is that of chance: within five standard deviations, whatever counts up from one flow or packet to the next.
    #[test]
    fn the_share_is_what_was_asked_for() {
        const CASES: u32 = 80_000;
        let flows: [fn(u32) -> Vec<u8>; 3] = [
            |n| ipv4(UDP, 0x0a000001, 0x0a000002, (n as u16, (n >> 16) as u16 + 1), 0),
            |n| ipv4(TCP, 0x0a000001, 0x0a000000 + n, (443, 443), 0),
            |n| ipv4(1, 0x0a000000 + n, 0xc0a80001, (0, 0), 0),
        ];
        let packets: [fn(u32) -> Vec<u8>; 2] = [
            |n| ipv4(UDP, 1, 2, (53, 53), n as u16).into_iter().chain((n >> 16).to_le_bytes()).collect(),
            |n| {
                let mut b = ipv4(TCP, 1, 2, (40000, 443), 0);
                b[24..28].copy_from_slice(&(n * 1448).to_be_bytes());
                b
            },
        ];
        let cases = flows.iter().map(|f| (Unit::Flow, f)).chain(packets.iter().map(|f| (Unit::Packet, f)));
        for (place, (by, make)) in cases.enumerate() {
            for one_in in [2u32, 7, 100] {
                let sample = Sample { one_in, by };
                let all = if place == 3 { 60_000 } else { CASES };
                let taken = (0..all).filter(|n| sample.takes(&make(*n))).count() as f64;
                let p = 1.0 / f64::from(one_in);
                let mean = f64::from(all) * p;
                let off = (taken - mean).abs() / (mean * (1.0 - p)).sqrt();
                assert!(off < 5.0, "case {place}, 1/{one_in}: {taken} of {all}, {off:.1} deviations off");
            }
        }
    }

    #[test]
    fn what_is_no_ip_packet_is_taken() {
        let sample = Sample { one_in: MOST, by: Unit::Flow };
        assert!(sample.takes(&[0, 1, 8, 0, 6, 4]));
        assert!(sample.takes(&[]));
    }
}
