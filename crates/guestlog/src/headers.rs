//! What a copied `sk_buff` says of its headers, by the rules of `bpf/footprint.bpf.h`.

use kpat_guest::mailbox::skb::Packet;
use kpat_model::Context;

/// An offset that is not set.
pub const UNSET: u16 = 0xffff;
const ARPHRD_ETHER: u16 = 1;
const ARPHRD_LOOPBACK: u16 = 772;

/// By the kernel's count of contexts (include/linux/preempt.h).
pub fn context(count: u32) -> Context {
    match count {
        c if c & 0x00f0_0000 != 0 => Context::Nmi,
        c if c & 0x000f_0000 != 0 => Context::Hardirq,
        c if c & 0x0000_0100 != 0 => Context::Softirq,
        _ => Context::Task,
    }
}

/// Where the network header is, also where only the driver has seen the packet, or a virtual device has just taken off the header before it: it begins where
/// the data do.
pub fn network(p: &Packet) -> u16 {
    if p.network >= p.mac || p.protocol == 0 || p.mac == UNSET {
        return p.network;
    }
    let (at, mac) = (p.data.wrapping_sub(p.head), u64::from(p.mac));
    let unset = p.network == 0 && (mac + 14..=mac + 64).contains(&at);
    if unset || at == mac + 14 { at as u16 } else { p.network }
}

pub fn link_valid(p: &Packet, link_type: u16) -> bool {
    let (mac, nh) = (u32::from(p.mac), u32::from(network(p)));
    [ARPHRD_ETHER, ARPHRD_LOOPBACK].contains(&link_type)
        && p.mac != UNSET
        && (mac + 14..=mac + 64).contains(&nh)
}

/// The bytes that were copied, from an offset on, as far as the packet's own are there: behind those of the header area may be some of the first page, then
/// another's follow.
pub fn bytes_from(p: &Packet, offset: u16) -> &[u8] {
    let own = p.data.wrapping_sub(p.head).wrapping_add(p.len.wrapping_sub(p.data_len).into());
    let own = own.saturating_add(p.paged.into());
    let to = own.saturating_sub(p.start.into()).min(p.header.len() as u64) as usize;
    let from = usize::from(offset).checked_sub(p.start.into());
    from.and_then(|f| p.header.get(f..to)).unwrap_or(&[])
}

/// Eight bytes, zeros behind what was copied.
pub fn word(p: &Packet, offset: u32) -> u64 {
    let bytes = u16::try_from(offset).map_or(&[][..], |at| bytes_from(p, at));
    let mut all = [0; 8];
    let n = bytes.len().min(8);
    all[..n].copy_from_slice(&bytes[..n]);
    u64::from_le_bytes(all)
}

/// Bytes of the packet from an offset to its end, wherever `skb->data` points at the moment.
pub fn length_from(p: &Packet, start: u16) -> u32 {
    p.len.wrapping_add(p.data.wrapping_sub(p.head.wrapping_add(start.into())) as u32)
}

/// In host order. IPv4 sets `skb->protocol` only in __ip_local_out: before that the version says it.
pub fn ethertype(p: &Packet) -> u16 {
    if p.protocol != 0 {
        return p.protocol.swap_bytes();
    }
    match word(p, network(p).into()) as u8 >> 4 {
        4 => 0x0800,
        6 => 0x86dd,
        _ => 0,
    }
}

/// Changes when the network or transport header does, or a link header is put before them. 0: no network header yet.
pub fn signature(p: &Packet) -> u64 {
    let nh = network(p);
    if nh == 0 || nh == UNSET {
        return 0;
    }
    let at = u32::from(nh);
    (word(p, at + 4) ^ word(p, at + 16).wrapping_mul(131) ^ u64::from(p.mac)) | 1
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A frame of IPv6 of which a driver left all but the link header in a page, from the entry of the first function to what its protocol pulled out of it.
    fn received(linear: u32, paged: u16) -> Packet {
        let header: Vec<u8> = (0..112).map(|n| n + 1).collect();
        let (head, mac) = (0xffff_8880_0000_1000, 64);
        Packet {
            head,
            data: head + u64::from(mac) + 14,
            len: 1_300,
            data_len: 1_300 + 14 - linear,
            protocol: 0xdd86,
            transport: UNSET,
            network: 0,
            mac,
            start: mac,
            paged,
            header,
            ..Packet::default()
        }
    }

    #[test]
    fn the_bytes_of_a_page_follow_those_of_the_header_area() {
        let before = received(14, 0);
        assert_eq!(bytes_from(&before, 64).len(), 14, "as far as they are the packet's own");
        assert_eq!((bytes_from(&before, 78).len(), word(&before, 78 + 40)), (0, 0));
        let with = received(14, 98);
        assert_eq!((bytes_from(&with, 64).len(), bytes_from(&with, 78).len()), (112, 98));
        assert_eq!(word(&with, 78 + 40) as u8, 55, "the header behind the network's");
        assert_eq!((ethertype(&with), length_from(&with, 64)), (0x86dd, 1_314));
        // What is pulled out later changes nothing that is known.
        let pulled = Packet { network: 78, data_len: 1_300 - 40, ..received(54, 58) };
        assert_eq!((signature(&with), bytes_from(&with, 78)), (signature(&pulled), bytes_from(&pulled, 78)));
        assert_ne!(signature(&with), signature(&before));
        // Whatever a guest says.
        let wild = Packet { data: 0, data_len: u32::MAX, paged: u16::MAX, ..received(14, 0) };
        assert!(bytes_from(&wild, 64).len() <= 112);
    }
}
