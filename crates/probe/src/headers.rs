//! Where a packet's headers end. The kernel side copies a fixed number of bytes; what follows the headers is somebody's
//! data and does not go into a log.

use std::ops::Range;

/// Deepest nesting of tunnels that is followed.
const DEPTH: u32 = 4;

struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn u8(&self, at: usize) -> Option<u8> {
        self.0.get(at).copied()
    }

    fn u16(&self, at: usize) -> Option<u16> {
        Some(u16::from_be_bytes(self.0.get(at..at + 2)?.try_into().ok()?))
    }

    fn all_zero(&self, r: Range<usize>) -> bool {
        self.0.get(r).is_some_and(|b| b.iter().all(|x| *x == 0))
    }
}

/// Length of the headers at the start of `bytes`, at most all of them. `start_layer`, `protocol` and `ip_proto` as in
/// [`kpat_model::FootprintRecord`].
pub fn len(bytes: &[u8], start_layer: u8, protocol: u16, ip_proto: u8) -> usize {
    let b = Bytes(bytes);
    let end = match start_layer {
        2 => link(&b, 0, DEPTH),
        3 => network(&b, 0, protocol, DEPTH),
        _ => transport(&b, 0, ip_proto, DEPTH),
    };
    // A header that is cut short is kept as far as it goes.
    end.unwrap_or(bytes.len()).min(bytes.len())
}

/// The same of an 802.11 data frame. What is protected is data from the cipher's header on.
pub fn air_len(bytes: &[u8]) -> usize {
    let b = Bytes(bytes);
    let end = || {
        let control = b.u16(0)?;
        let (subtype, flags) = (control >> 12, control & 0xff);
        let fourth_address = if flags & 3 == 3 { 6 } else { 0 };
        let qos = if subtype & 8 == 0 { 0 } else { 2 + if flags & 0x80 == 0 { 0 } else { 4 } };
        let body = 24 + fourth_address + qos;
        if flags & 0x40 != 0 { Some(body) } else { network(&b, body + 8, b.u16(body + 6)?, DEPTH) }
    };
    end().unwrap_or(bytes.len()).min(bytes.len())
}

fn link(b: &Bytes<'_>, at: usize, depth: u32) -> Option<usize> {
    let (mut at, mut kind) = (at + 14, b.u16(at + 12)?);
    // IEEE 802.1Q, 802.1ad
    for _ in 0..2 {
        if kind != 0x8100 && kind != 0x88a8 {
            break;
        }
        kind = b.u16(at + 2)?;
        at += 4;
    }
    network(b, at, kind, depth)
}

fn network(b: &Bytes<'_>, at: usize, kind: u16, depth: u32) -> Option<usize> {
    let depth = depth.checked_sub(1)?;
    match kind {
        0x0800 => {
            let end = at + 4 * usize::from(b.u8(at)? & 15).max(5);
            let later_fragment = b.u16(at + 6)? & 0x1fff != 0;
            if later_fragment { Some(end) } else { transport(b, end, b.u8(at + 9)?, depth) }
        }
        0x86dd => {
            let (mut end, mut next) = (at + 40, b.u8(at + 6)?);
            // RFC 8200, section 4: extension headers
            for _ in 0..8 {
                match next {
                    0 | 43 | 60 => {
                        next = b.u8(end)?;
                        end += 8 * (usize::from(b.u8(end + 1)?) + 1);
                    }
                    44 => {
                        next = b.u8(end)?;
                        let later_fragment = b.u16(end + 2)? & 0xfff8 != 0;
                        end += 8;
                        if later_fragment {
                            return Some(end);
                        }
                    }
                    _ => break,
                }
            }
            transport(b, end, next, depth)
        }
        // PPPoE (RFC 2516): six bytes, then PPP's protocol
        0x8864 => match b.u16(at + 6)? {
            0x0021 => network(b, at + 8, 0x0800, depth),
            0x0057 => network(b, at + 8, 0x86dd, depth),
            _ => Some(at + 8),
        },
        // MPLS (RFC 3032): labels to the one at the bottom
        0x8847 | 0x8848 => {
            let bottom = (0..8).find(|n| b.u8(at + 4 * n + 2).is_none_or(|l| l & 1 != 0))?;
            let end = at + 4 * (bottom + 1);
            match b.u8(end)? >> 4 {
                4 => network(b, end, 0x0800, depth),
                6 => network(b, end, 0x86dd, depth),
                _ => Some(end + 4),
            }
        }
        // ARP and RARP
        0x0806 | 0x8035 => Some(at + 28),
        // Not known: enough to recognise the protocol.
        _ => Some(at + 8),
    }
}

fn transport(b: &Bytes<'_>, at: usize, proto: u8, depth: u32) -> Option<usize> {
    match proto {
        6 => Some(at + 4 * usize::from(b.u8(at + 12)? >> 4).max(5)),
        17 => udp(b, at, depth),
        // RFC 792: an error carries the header that caused it and eight bytes more
        1 if matches!(b.u8(at)?, 3 | 4 | 5 | 11 | 12) => network(b, at + 8, 0x0800, depth),
        // RFC 4443: likewise; RFC 4861: a target and one link-layer address
        58 if b.u8(at)? < 128 => network(b, at + 8, 0x86dd, depth),
        58 if matches!(b.u8(at)?, 133..=137) => Some(at + 32),
        4 => network(b, at, 0x0800, depth),
        41 => network(b, at, 0x86dd, depth),
        47 => {
            // RFC 2784, RFC 2890: checksum, key, sequence
            let flags = b.u16(at)?;
            let inner = at + 4 + 4 * (flags & 0xb000).count_ones() as usize;
            match b.u16(at + 2)? {
                0x6558 => link(b, inner, depth),
                kind => network(b, inner, kind, depth),
            }
        }
        _ => Some(at + 8),
    }
}

fn udp(b: &Bytes<'_>, at: usize, depth: u32) -> Option<usize> {
    let inner = at + 8;
    // RFC 7348: the VNI flag alone, reserved bits zero, on whatever port
    if b.u8(inner) == Some(8) && b.all_zero(inner + 1..inner + 4) && b.u8(inner + 7) == Some(0) {
        return link(b, inner + 8, depth.checked_sub(1)?);
    }
    // RFC 8926: Geneve
    if b.u16(at + 2) == Some(6081) && b.u16(inner + 2) == Some(0x6558) {
        return link(b, inner + 8 + 4 * usize::from(b.u8(inner)? & 0x3f), depth.checked_sub(1)?);
    }
    Some(inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ethernet(kind: u16, rest: &[u8]) -> Vec<u8> {
        [&[2; 12][..], &kind.to_be_bytes(), rest].concat()
    }

    fn ipv4(proto: u8, rest: &[u8]) -> Vec<u8> {
        let mut h = vec![0x45, 0, 0, 84, 0, 1, 0x40, 0, 64, proto, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
        h.extend_from_slice(rest);
        h
    }

    fn udp_to(port: u16, rest: &[u8]) -> Vec<u8> {
        [&[0x30, 0x39][..], &port.to_be_bytes(), &[0, 64, 0, 0], rest].concat()
    }

    #[test]
    fn data_behind_the_headers_is_cut() {
        let secret = [0xaa; 40];
        let dns = ethernet(0x0800, &ipv4(17, &udp_to(53, &secret)));
        assert_eq!(len(&dns, 2, 0x0800, 0), 14 + 20 + 8);
        let mut tcp = vec![0; 20];
        tcp[12] = 0x80;
        tcp.extend_from_slice(&secret);
        assert_eq!(len(&ipv4(6, &tcp), 3, 0x0800, 0), 20 + 32);
        let tagged = ethernet(0x8100, &[&[0, 42, 8, 0][..], &ipv4(1, &[8, 0, 0, 0, 1, 2, 0, 3])].concat());
        assert_eq!(len(&[&tagged[..], &secret].concat(), 2, 0x0800, 0), 18 + 20 + 8);
        let mut later = ipv4(17, &secret);
        later[7] = 185;
        assert_eq!(len(&later, 3, 0x0800, 0), 20);
    }

    #[test]
    fn of_802_11_what_is_protected_is_cut() {
        let header = |control: [u8; 2], len: usize| {
            let mut h = vec![0; len];
            h[..2].copy_from_slice(&control);
            h
        };
        let secret = [0xaa; 40];
        for (control, len) in [([0x08, 0x41], 24), ([0x88, 0x41], 26), ([0x88, 0x43], 32), ([0x88, 0xc1], 30)]
        {
            assert_eq!(air_len(&[&header(control, len)[..], &secret].concat()), len, "{control:02x?}");
        }
        let llc = [0xaa, 0xaa, 3, 0, 0, 0, 8, 0];
        let open = [&header([0x88, 0x01], 26)[..], &llc, &ipv4(17, &udp_to(53, &secret))].concat();
        assert_eq!(air_len(&open), 26 + 8 + 20 + 8);
        assert_eq!((air_len(&[0x88]), air_len(&[])), (1, 0));
    }

    #[test]
    fn headers_inside_tunnels_and_errors_are_kept() {
        let inner = ethernet(0x0800, &ipv4(17, &udp_to(9000, &[7; 30])));
        let inner_headers = 14 + 20 + 8;
        let vxlan = ipv4(17, &udp_to(4789, &[&[8, 0, 0, 0, 0, 0, 42, 0][..], &inner].concat()));
        assert_eq!(len(&vxlan, 3, 0x0800, 0), 20 + 8 + 8 + inner_headers);
        let gre = ipv4(47, &[&[0x20, 0, 0x65, 0x58, 0, 0, 0, 9][..], &inner].concat());
        assert_eq!(len(&gre, 3, 0x0800, 0), 20 + 8 + inner_headers);
        let ipip = ipv4(4, &inner[14..]);
        assert_eq!(len(&ipip, 3, 0x0800, 0), 20 + 28);
        let pppoe = ethernet(0x8864, &[&[0x11, 0, 0, 7, 0, 60, 0, 0x21][..], &inner[14..]].concat());
        assert_eq!(len(&pppoe, 2, 0x8864, 0), 14 + 8 + 28);
        let mpls = ethernet(0x8847, &[&[0, 6, 0x40, 64, 0, 6, 0x51, 64][..], &inner[14..]].concat());
        assert_eq!(len(&mpls, 2, 0x8847, 0), 14 + 8 + 28);
        let unreachable = ipv4(1, &[&[3, 3, 0, 0, 0, 0, 0, 0][..], &inner[14..]].concat());
        assert_eq!(len(&unreachable, 3, 0x0800, 0), 20 + 8 + 28);
    }

    #[test]
    fn what_is_cut_short_or_nested_without_end_is_kept_and_never_read_past() {
        assert_eq!(len(&[], 2, 0x0800, 0), 0);
        assert_eq!(len(&[0x45], 3, 0x0800, 0), 1);
        let endless: Vec<u8> = std::iter::repeat_n(ipv4(4, &[]), 6).flatten().collect();
        assert_eq!(len(&endless, 3, 0x0800, 0), endless.len());
    }
}
