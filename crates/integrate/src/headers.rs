//! What headers tell that are perhaps not filled in yet: the kernel makes a packet from the inside out.

use kpat_model::{Footprint, FootprintRecord, Network, Transport};

/// A transport header is there, and somebody has written it.
pub(super) fn is_transport_known(f: &Footprint) -> bool {
    match f.transport {
        Some(Transport::Udp { sport, dport, len, .. }) => (sport, dport, len) != (0, 0, 0),
        Some(Transport::Tcp { sport, dport, .. }) => (sport, dport) != (0, 0),
        Some(_) => true,
        None => false,
    }
}

/// Nothing follows that a tunnel's packet could tell more of: ARP, and further fragments.
pub(super) fn has_no_transport(f: &Footprint) -> bool {
    match &f.network {
        Some(Network::Arp { .. }) => true,
        Some(Network::V4 { frag_offset, .. }) => *frag_offset > 0,
        Some(Network::V6 { fragment, .. }) => fragment.is_some_and(|(_, offset, _)| offset > 0),
        Some(Network::Other(..)) | None => false,
    }
}

/// Length from the network header on, and whether header and kernel agree on it. The header alone is not to be believed:
/// its length field is filled in late, and says nothing where segmentation is left to the device.
pub(super) fn network_len(f: &Footprint, record: &FootprintRecord) -> Option<(u32, bool)> {
    let stated = match &f.network {
        Some(Network::V4 { total_len, .. }) => u32::from(*total_len),
        Some(Network::V6 { payload_len, .. }) => u32::from(*payload_len) + 40,
        Some(Network::Arp { .. }) => 28,
        Some(Network::Other(..)) | None => 0,
    };
    let link: u32 = match (record.start_layer, &f.link) {
        (2, Some(_)) if record.link_type == 1 => 14,
        _ => 0,
    };
    let rest = record.len_bytes.saturating_sub(link);
    if rest == 0 {
        return None;
    }
    // Behind a link header padding and tags make it longer; segmentation offload makes the field smaller or 0. Before the link header is there, the field may
    // hold what was in this memory before: `__ip_local_out` fills it in (net/ipv4/ip_output.c), `__ip6_local_out` does.
    let longer = if record.start_layer == 2 { 46 } else { 0 };
    if record.gso_size == 0 && stated >= 20 && (stated..=stated + longer).contains(&rest) {
        return Some((stated, true));
    }
    Some((rest, record.start_layer < 4 && record.gso_size > 0))
}
