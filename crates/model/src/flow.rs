//! Keys of flows and of their ends, as the kernel side makes them of headers and sockets (bpf/sample.bpf.h, bpf/whose.bpf.h): hashes of 64 bits.

use std::net::IpAddr;

pub(crate) const KEY: u64 = 0x9e37_79b9_7f4a_7c15;

const END: u64 = 0x656e_6400_0000_0000;
const PORT: u64 = 0x706f_7274_0000_0000;
const LOCAL: u64 = 0x6c6f_6361_6c00_0000;

pub(crate) fn mix(x: u64) -> u64 {
    let x = x.wrapping_mul(KEY);
    let x = (x ^ x >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
    x ^ x >> 29
}

/// An IPv6 address that stands for an IPv4 one is that one.
fn address(ip: IpAddr) -> u64 {
    match ip.to_canonical() {
        IpAddr::V4(a) => u32::from_le_bytes(a.octets()).into(),
        IpAddr::V6(a) => {
            let half = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| a.octets()[at + i]));
            mix(half(0)) ^ half(8)
        }
    }
}

/// As it is loaded from a header.
fn loaded(port: u16) -> u64 {
    u16::from_le_bytes(port.to_be_bytes()).into()
}

/// An address and a port.
fn end((ip, port): (IpAddr, u16)) -> u64 {
    mix(address(ip).wrapping_add(loaded(port).wrapping_mul(KEY)))
}

/// Both directions between two ends are one flow.
pub fn flow_key(a: (IpAddr, u16), b: (IpAddr, u16), protocol: u8) -> u64 {
    mix(end(a).wrapping_add(end(b)) ^ u64::from(protocol))
}

/// Whatever comes to or from this address and port.
pub fn end_key(at: (IpAddr, u16), protocol: u8) -> u64 {
    mix(end(at) ^ u64::from(protocol) ^ END)
}

/// A port at every address of a network namespace.
pub fn port_key(netns: u32, protocol: u8, port: u16) -> u64 {
    mix((u64::from(netns) << 24 | u64::from(protocol) << 16 | loaded(port)) ^ PORT)
}

/// An address of a network namespace, or one that reaches it with others (broadcast).
pub fn local_key(netns: u32, ip: IpAddr) -> u64 {
    mix(mix(address(ip) ^ LOCAL).wrapping_add(netns.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directions_and_ways_to_write_an_address_are_alike_and_all_else_is_not() {
        let ip = |t: &str| t.parse::<IpAddr>().unwrap();
        let (a, b) = ((ip("10.0.0.1"), 80), (ip("10.0.0.2"), 40000));
        assert_eq!(flow_key(a, b, 6), flow_key(b, a, 6));
        assert_eq!(end_key((ip("::ffff:10.0.0.1"), 80), 6), end_key(a, 6));
        let others = [
            flow_key(a, b, 6),
            flow_key(a, b, 17),
            flow_key((a.0, b.1), (b.0, a.1), 6),
            flow_key((ip("fd00::1"), 80), b, 6),
            end_key(a, 6),
            end_key(a, 17),
            end_key(b, 6),
            port_key(1, 6, 80),
            port_key(2, 6, 80),
            port_key(1, 17, 80),
            local_key(1, a.0),
            local_key(2, a.0),
            local_key(1, b.0),
        ];
        assert_eq!(others.iter().collect::<std::collections::BTreeSet<_>>().len(), others.len());
    }
}
