//! What particular functions mean for the packets that they handle, by name.

use crate::choose::{Candidate, Found};
use std::collections::HashSet;

/// What a function does to the identity of packets; bits of `KP_ROLE_*` in bpf/include/wire.h.
pub mod role {
    pub const FREE: u16 = 1;
    pub const ALLOC: u16 = 2;
    pub const EXPAND: u16 = 4;
    pub const CLONE: u16 = 8;
    pub const COPY: u16 = 16;
    pub const SEGMENT: u16 = 32;
    pub const GRO: u16 = 64;
    pub const FRAGMENT: u16 = 128;
    pub const LIST: u16 = 256;
    pub const RETURN: u16 = 512;
    pub const LINK: u16 = 1024;
    pub const AIR: u16 = 2048;
    pub const MOVED: u16 = 4096;
    pub const FLOW: u16 = 8192;

    /// Does identity suffer without it, so that it is probed whether its calls are wanted or not?
    pub const fn tracks(roles: u16) -> bool {
        roles & !(LIST | RETURN | LINK | MOVED | FLOW) != 0
    }
}

/// Functions with a role. Those that track are probed whatever is logged. A kernel has some of each row.
const ROLES: &[(u16, &[&str])] = &[
    (role::FREE, &["skb_release_data"]),
    (
        role::ALLOC,
        &[
            "__alloc_skb",
            "__build_skb",
            "build_skb",
            "slab_build_skb",
            "napi_build_skb",
            "napi_alloc_skb",
            "__napi_alloc_skb",
            "__netdev_alloc_skb",
        ],
    ),
    (role::EXPAND, &["pskb_expand_head"]),
    (role::CLONE, &["skb_clone"]),
    (role::COPY, &["skb_copy", "skb_copy_expand", "__pskb_copy_fclone"]),
    (role::SEGMENT, &["skb_segment", "skb_segment_list"]),
    (role::GRO, &["skb_gro_receive", "skb_gro_receive_list"]),
    (role::FRAGMENT, &["ip_frag_next", "ip6_frag_next"]),
    (role::LINK, &["dev_hard_start_xmit"]),
    (role::MOVED, &["skb_headers_offset_update"]),
    (role::FLOW, &["udp_send_skb", "udp_v6_send_skb"]),
    (role::AIR, &["ieee80211_rx_list", "ieee80211_rx_napi"]),
];

/// Functions that need not look whether headers or device have changed, and the functions of which one calls them, directly or by
/// one that leaves the packet alone: if that one is probed it has looked. None: called where a packet ends, when it is too late.
const SETTLED: &[(&str, &[&str])] = &[
    ("__netif_receive_skb_one_core", &["__netif_receive_skb"]),
    ("netif_rx_internal", &["netif_rx", "__netif_rx"]),
    ("enqueue_to_backlog", &["netif_rx_internal"]),
    ("ip_rcv_core", &["ip_rcv"]),
    ("ip_route_input_noref", &["ip_rcv_finish_core", "ip_rcv_finish"]),
    ("udp_v4_early_demux", &["ip_rcv_finish_core", "ip_rcv_finish"]),
    ("ip_forward", &["ip_rcv_finish_core", "ip_rcv_finish"]),
    ("ip_local_deliver", &["ip_rcv_finish_core", "ip_rcv_finish"]),
    ("ip_protocol_deliver_rcu", &["ip_local_deliver_finish"]),
    ("raw_local_deliver", &["ip_protocol_deliver_rcu"]),
    ("udp_rcv", &["ip_protocol_deliver_rcu"]),
    ("tcp_v4_rcv", &["ip_protocol_deliver_rcu"]),
    ("icmp_rcv", &["ip_protocol_deliver_rcu"]),
    ("__udp4_lib_rcv", &["udp_rcv"]),
    ("udp_unicast_rcv_skb", &["__udp4_lib_rcv", "udp_rcv"]),
    ("udp_queue_rcv_skb", &["udp_unicast_rcv_skb"]),
    ("udp_queue_rcv_one_skb", &["udp_queue_rcv_skb"]),
    ("__udp_enqueue_schedule_skb", &["udp_queue_rcv_one_skb"]),
    ("sk_filter_trim_cap", &["udp_queue_rcv_one_skb", "udpv6_queue_rcv_one_skb", "tcp_v4_rcv", "tcp_v6_rcv"]),
    ("tcp_v4_do_rcv", &["tcp_v4_rcv"]),
    ("tcp_rcv_established", &["tcp_v4_do_rcv", "tcp_v6_do_rcv"]),
    ("tcp_data_queue", &["tcp_rcv_established"]),
    ("tcp_queue_rcv", &["tcp_data_queue", "tcp_rcv_established"]),
    ("__ip_local_out", &["ip_local_out"]),
    ("__ip_finish_output", &["ip_finish_output"]),
    ("ip_finish_output2", &["__ip_finish_output"]),
    ("neigh_resolve_output", &["ip_finish_output2", "ip6_finish_output2"]),
    ("__dev_forward_skb", &["veth_xmit"]),
    ("ip6_rcv_core", &["ipv6_rcv"]),
    ("ip6_protocol_deliver_rcu", &["ip6_input_finish"]),
    ("udpv6_rcv", &["ip6_protocol_deliver_rcu"]),
    ("tcp_v6_rcv", &["ip6_protocol_deliver_rcu"]),
    ("icmpv6_rcv", &["ip6_protocol_deliver_rcu"]),
    ("__udp6_lib_rcv", &["udpv6_rcv"]),
    ("udpv6_queue_rcv_skb", &["__udp6_lib_rcv", "udpv6_rcv"]),
    ("udpv6_queue_rcv_one_skb", &["udpv6_queue_rcv_skb"]),
    ("tcp_v6_do_rcv", &["tcp_v6_rcv"]),
    ("__ip6_finish_output", &["ip6_finish_output"]),
    ("__skb_datagram_iter", &["skb_copy_datagram_iter"]),
    ("skb_network_protocol", &["validate_xmit_skb"]),
    ("consume_skb", &[]),
    ("__kfree_skb", &[]),
    ("napi_consume_skb", &[]),
    ("skb_release_head_state", &[]),
    ("skb_attempt_defer_free", &[]),
    ("skb_free_datagram", &[]),
    ("skb_consume_udp", &[]),
    ("sock_wfree", &[]),
    ("tcp_wfree", &[]),
    ("sock_rfree", &[]),
    ("sock_efree", &[]),
];

pub fn role_of(name: &str) -> u16 {
    ROLES.iter().find(|(_, names)| names.contains(&name)).map_or(0, |(r, _)| *r)
}

/// Marks the functions of [`SETTLED`] all of whose callers there, as far as this kernel has them, are probed.
pub fn settle(chosen: &mut [Candidate], found: &Found) {
    let exists: HashSet<&str> = found.candidates.iter().map(|c| c.name.as_str()).collect();
    let probed: HashSet<String> = chosen.iter().map(|c| c.name.clone()).collect();
    for c in chosen {
        let Some((_, callers)) = SETTLED.iter().find(|(name, _)| *name == c.name) else { continue };
        let mut here = callers.iter().filter(|n| exists.contains(**n)).peekable();
        c.settled = callers.is_empty() || here.peek().is_some() && here.all(|n| probed.contains(*n));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::choose::Via;

    fn candidate(name: &str) -> Candidate {
        Candidate {
            name: name.into(),
            module: String::new(),
            btf_id: 0,
            via: Via::Argument(0),
            roles: role_of(name),
            odd_arguments: false,
            settled: false,
        }
    }

    #[test]
    fn a_function_is_settled_only_where_its_caller_looks() {
        let found = Found {
            candidates: ["ip_rcv", "ip_rcv_core", "consume_skb"].map(candidate).into(),
            ..Found::default()
        };
        let settled = |names: &[&str]| {
            let mut chosen: Vec<Candidate> = names.iter().map(|n| candidate(n)).collect();
            settle(&mut chosen, &found);
            chosen.iter().filter(|c| c.settled).map(|c| c.name.clone()).collect::<Vec<_>>()
        };
        assert_eq!(settled(&["ip_rcv", "ip_rcv_core"]), ["ip_rcv_core"]);
        assert!(settled(&["ip_rcv_core"]).is_empty());
        assert_eq!(settled(&["consume_skb"]), ["consume_skb"]);
        // a caller that this kernel does not have cannot have looked
        assert!(settled(&["udp_rcv"]).is_empty());
    }
}
