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

/// The bytes that were copied, from an offset on, as far as the packet's own are there: where pages have the others, another's follow.
pub fn bytes_from(p: &Packet, offset: u16) -> &[u8] {
    let own = p.data.wrapping_sub(p.head).wrapping_add(p.len.wrapping_sub(p.data_len).into());
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
