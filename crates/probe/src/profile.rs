//! Named selections of functions, as data. A profile is a list of globs over function names (and `module:NAME`); what
//! of it exists and can be probed on a kernel is found out by [`crate::choose`].

mod selection;

pub use selection::{APPLICATIONS, NAMES, Selection, UnknownProfile};

/// Layers of the stack, in the order in which a received packet meets them.
pub const LAYERS: [&str; 5] = ["driver", "link", "network", "transport", "socket"];

/// How much of a packet's way is probed. Each has what those before it have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Detail {
    /// Where a step of the way begins or ends: what phases, verdicts, matching and lineage rest on.
    #[default]
    Steps,
    /// The functions that hand a packet from layer to layer: what fits a mechanism that loads a program per function (fentry).
    Spine,
    /// Every function of the profile.
    Full,
}

impl Detail {
    pub const ALL: [Detail; 3] = [Detail::Steps, Detail::Spine, Detail::Full];

    pub fn name(self) -> &'static str {
        match self {
            Detail::Steps => "steps",
            Detail::Spine => "spine",
            Detail::Full => "full",
        }
    }

    pub fn parse(s: &str) -> Option<Detail> {
        Detail::ALL.into_iter().find(|d| d.name() == s)
    }

    /// What it is, in a few words.
    pub fn about(self) -> &'static str {
        match self {
            Detail::Steps => "A function for each step of a packet's way",
            Detail::Spine => "The functions that hand a packet from layer to layer",
            Detail::Full => "Every function of the profile",
        }
    }

    /// What a profile is recorded with unless somebody says otherwise: the default is cheap, and who names a part of the stack
    /// wants to see it.
    pub fn of_profile(profile: &str) -> Detail {
        if profile == "path" { Detail::Steps } else { Detail::Full }
    }
}

struct Group {
    layer: &'static str,
    /// One function for each step. Which one is told by what is analysed: crates/query/src/phases/boundaries.txt and the
    /// edges of crates/query/src/roles.rs. Functions that only some packets meet (queues, fragments, bridges) cost the others
    /// nothing.
    steps: &'static [&'static str],
    /// Beside the steps.
    spine: &'static [&'static str],
    more: &'static [&'static str],
}

static PATH: &[Group] = &[
    Group {
        layer: "driver",
        steps: &["napi_gro_receive", "gro_receive_skb", "napi_gro_frags"],
        spine: &["veth_xmit", "loopback_xmit", "*_xmit_frame", "*_start_xmit", "start_xmit"],
        more: &[
            "e1000_receive_skb",
            "e1000_tx_map*",
            "e100_rx_indicate",
            "receive_buf",
            "virtnet_receive_done",
            "xmit_skb",
            "veth_forward_skb",
            "dev_gro_receive",
            "napi_gro_complete*",
            "gro_complete",
            "vxlan_xmit",
            "vxlan_xmit_one",
            "vxlan_rcv",
            "ipgre_xmit",
            "gre_tap_xmit",
            "ipip_tunnel_xmit",
            "vlan_dev_hard_start_xmit",
            "br_dev_xmit",
            "tun_net_xmit",
            "macvlan_start_xmit",
            "ipvlan_start_xmit",
            "wg_xmit",
            "dummy_xmit",
            "ip_tunnel_xmit",
            "ip_tunnel_rcv",
            "iptunnel_xmit",
            "udp_tunnel_xmit_skb",
            "udp_tunnel6_xmit_skb",
            "napi_skb_finish",
        ],
    },
    Group {
        layer: "link",
        steps: &[
            "enqueue_to_backlog",
            "__netif_receive_skb_one_core",
            "__netif_receive_skb_list_core",
            "br_handle_frame",
            "__br_forward",
            "__dev_queue_xmit",
            "__dev_direct_xmit",
            "*fifo_enqueue",
            "pfifo_fast_enqueue",
            "fq_codel_enqueue",
            "fq_enqueue",
            "codel_qdisc_enqueue",
            "htb_enqueue",
            "tbf_enqueue",
            "netem_enqueue",
            "cake_enqueue",
            "dev_hard_start_xmit",
            "packet_rcv*",
            "tpacket_rcv",
        ],
        spine: &["netif_rx_internal", "__netif_receive_skb_core*", "netif_receive_skb", "sch_direct_xmit"],
        more: &[
            "netif_rx",
            "__netif_rx",
            "__netif_receive_skb",
            "netif_receive_skb_internal",
            "netif_receive_skb_list_internal",
            "netif_receive_skb_list",
            "__netif_receive_skb_list",
            "eth_type_trans",
            "validate_xmit_skb*",
            "__skb_gso_segment",
            "skb_mac_gso_segment",
            "skb_network_protocol",
            "noqueue_enqueue",
            "dev_qdisc_enqueue",
            "__dev_xmit_skb",
            "dev_forward_skb*",
            "__dev_forward_skb*",
            "____dev_forward_skb",
            "br_handle_frame*",
            "br_forward*",
            "br_flood",
            "br_pass_frame_up",
            "br_netif_receive_skb",
            "br_dev_queue_push_xmit",
            "br_nf_*",
            "vlan_do_receive",
            "skb_vlan_untag",
            "tcf_classify",
            "tc_run",
            "skb_do_redirect",
            "dev_queue_xmit_nit",
            "dev_loopback_xmit",
            "llc_rcv",
            "__skb_get_hash*",
            "skb_checksum_help",
            "__skb_checksum_complete*",
        ],
    },
    Group {
        layer: "network",
        steps: &[
            "ip_rcv",
            "ip_list_rcv",
            "ip_defrag",
            "ip_do_fragment",
            "ip_output",
            "ip_mc_output",
            "__ip_local_out",
            "ipv6_rcv",
            "ipv6_list_rcv",
            "ipv6_frag_rcv",
            "ip6_fragment",
            "ip6_output",
            "__ip6_local_out",
            "icmp_rcv",
            "icmpv6_rcv",
            "igmp_rcv",
            "arp_rcv",
            "arp_xmit",
            "__neigh_event_send",
            "neigh_resolve_output",
            "xfrm_input",
            "xfrm_output",
        ],
        spine: &[
            "ip_rcv_finish",
            "ip_forward",
            "ip_local_deliver",
            "ip_local_deliver_finish",
            "ip_finish_output2",
            "__ip_queue_xmit",
            "ip_send_skb",
            "ip_protocol_deliver_rcu",
            "ip6_forward",
            "ip6_input",
            "ip6_finish_output2",
            "ip6_xmit",
            "icmp_echo",
            "arp_process",
            "nf_hook_slow",
        ],
        more: &[
            "ip_rcv_core*",
            "ip_rcv_finish_core*",
            "ip_list_rcv*",
            "ip_sublist_rcv*",
            "ip_forward_finish",
            "ip_forward_options",
            "ip_finish_output",
            "__ip_finish_output",
            "ip_local_out",
            "ip_queue_xmit",
            "ip_push_pending_frames",
            "ip_fragment*",
            "ip_frag_next",
            "ip_mr_input",
            "ip_route_input_noref",
            "ip_route_input_rcu*",
            "ip_route_me_harder",
            "ip_error",
            "ip_options_compile",
            "ip6_rcv_finish*",
            "ip6_rcv_core*",
            "ip6_list_rcv*",
            "ip6_sublist_rcv*",
            "ip6_input_finish",
            "ip6_protocol_deliver_rcu",
            "ip6_forward_finish",
            "ip6_finish_output",
            "__ip6_finish_output",
            "ip6_local_out",
            "ip6_send_skb",
            "ip6_push_pending_frames",
            "ip6_route_input",
            "ip6_frag_next",
            "ip6_mc_input",
            "ip6_mr_input",
            "ip6_autoflowlabel",
            "icmp_echo*",
            "icmp_reply*",
            "icmp_unreach",
            "icmp_discard",
            "icmp_redirect",
            "icmpv6_echo_reply",
            "ndisc_rcv",
            "ndisc_send_skb",
            "ping_rcv",
            "raw_rcv",
            "raw_local_deliver",
            "rawv6_rcv",
            "raw6_local_deliver",
            "raw_v4_input",
            "arp_xmit*",
            "neigh_connected_output",
            "neigh_direct_output",
            "arp_solicit",
            "nf_conntrack_in",
            "ipv4_conntrack_*",
            "ipv6_conntrack_*",
            "nf_confirm",
            "nf_nat_*fn",
            "nf_nat_inet_fn",
            "nf_nat_packet",
            "nf_nat_manip_pkt",
            "nft_do_chain*",
            "ipt_do_table",
            "ip6t_do_table",
            "nf_reinject",
            "xfrm4_rcv*",
            "xfrm6_rcv*",
            "xfrm_output*",
            "esp_input",
            "esp_output",
            "gre_rcv",
            "ipip_rcv",
            "tunnel4_rcv",
            "inet_gro_receive",
            "ipv6_gro_receive",
            "inet_gro_complete",
            "ipv6_gro_complete",
            "inet_gso_segment",
            "ipv6_gso_segment",
        ],
    },
    Group {
        layer: "transport",
        steps: &[
            "tcp_v4_rcv",
            "tcp_v6_rcv",
            "tcp_data_queue",
            "tcp_queue_rcv",
            "tcp_add_backlog",
            "__tcp_transmit_skb",
            "__tcp_retransmit_skb",
            "udp_rcv",
            "udpv6_rcv",
            "__udp_enqueue_schedule_skb",
            "udp_send_skb*",
            "udp_v6_send_skb*",
            "sctp_rcv",
        ],
        spine: &[
            "tcp_v4_do_rcv",
            "tcp_rcv_established",
            "tcp_rcv_state_process",
            "udp_queue_rcv_one_skb",
            "udpv6_queue_rcv_one_skb",
            "tcp_v6_do_rcv",
        ],
        more: &[
            "tcp_ack",
            "tcp_data_queue_ofo",
            "tcp_filter",
            "tcp_validate_incoming",
            "tcp_child_process",
            "tcp_conn_request",
            "tcp_check_req",
            "tcp_v4_conn_request",
            "tcp_v6_conn_request",
            "tcp_try_coalesce",
            "tcp_event_data_recv",
            "tcp_transmit_skb",
            "tcp_write_xmit",
            "tcp_retransmit_skb",
            "tcp_v4_send_reset",
            "tcp_v6_send_reset",
            "tcp4_gro_receive",
            "tcp6_gro_receive",
            "tcp_gro_receive",
            "tcp4_gro_complete",
            "tcp6_gro_complete",
            "tcp_gro_complete",
            "tcp4_gso_segment",
            "tcp6_gso_segment",
            "tcp_gso_segment",
            "udp4_gro_receive",
            "udp6_gro_receive",
            "udp_gro_receive",
            "udp4_ufo_fragment",
            "udp6_ufo_fragment",
            "__udp_gso_segment",
            "__udp4_lib_rcv",
            "__udp6_lib_rcv",
            "udp_unicast_rcv_skb",
            "udp6_unicast_rcv_skb",
            "udp_queue_rcv_skb",
            "udpv6_queue_rcv_skb",
            "__udp4_lib_mcast_deliver",
            "tcp_v4_early_demux",
            "udp_v4_early_demux",
            "tcp_v4_fill_cb",
        ],
    },
    Group {
        layer: "socket",
        steps: &[
            "__sock_queue_rcv_skb",
            "skb_copy_datagram_iter",
            "skb_copy_and_csum_datagram_msg",
            "skb_splice_bits",
            "skb_consume_udp",
        ],
        spine: &["consume_skb", "__kfree_skb"],
        more: &[
            "sock_queue_rcv_skb_reason",
            "sk_filter_trim_cap",
            "__sk_receive_skb",
            "__skb_datagram_iter",
            "skb_free_datagram",
            "__skb_free_datagram_locked",
            "napi_consume_skb",
            "skb_attempt_defer_free",
            "skb_release_data",
            "skb_release_head_state",
            "sock_def_readable_skb",
            "tcp_recv_skb",
            "tcp_eat_recv_skb",
            "__skb_tstamp_tx",
            "skb_clone_sk",
            "skb_orphan_partial",
            "tcp_wfree",
            "sock_wfree",
            "sock_rfree",
            "sock_efree",
            "tcp_skb_entail",
            "skb_entail",
            "__zerocopy_sg_from_iter",
            "skb_queue_tail",
            "dev_kfree_skb_any_reason",
            "dev_kfree_skb_irq_reason",
            "__dev_kfree_skb_any",
            "__dev_kfree_skb_irq",
        ],
    },
];

/// Layer of a function, by the profile that names it, else by how its name starts.
pub fn layer(name: &str) -> &'static str {
    for g in PATH {
        if g.steps.iter().chain(g.spine).chain(g.more).any(|p| glob(p, name)) {
            return g.layer;
        }
    }
    static STARTS: &[(&str, &[&str])] = &[
        ("transport", &["tcp", "udp", "sctp", "dccp", "mptcp", "__tcp", "__udp"]),
        (
            "network",
            &[
                "ip", "__ip", "icmp", "arp", "neigh", "nf_", "nft_", "__nf", "xfrm", "esp", "ah_", "inet",
                "raw", "ndisc", "igmp", "fib", "mld", "rt6",
            ],
        ),
        (
            "socket",
            &[
                "sock",
                "__sock",
                "sk_",
                "__sk_",
                "skb_",
                "__skb",
                "kfree_skb",
                "consume_skb",
                "unix_",
                "packet_",
                "tpacket",
            ],
        ),
        (
            "link",
            &[
                "dev_",
                "__dev",
                "netif",
                "__netif",
                "br_",
                "__br",
                "qdisc",
                "sch_",
                "eth_",
                "vlan",
                "llc",
                "tcf",
                "napi",
                "gro",
                "ieee80211",
                "cfg80211",
                "bond",
            ],
        ),
    ];
    STARTS.iter().find(|(_, s)| s.iter().any(|p| name.starts_with(p))).map_or("driver", |(l, _)| l)
}

/// Shell-style match with `*` and `?`.
pub fn glob(pattern: &str, name: &str) -> bool {
    let (p, n) = (pattern.as_bytes(), name.as_bytes());
    let (mut i, mut j, mut star, mut mark) = (0, 0, usize::MAX, 0);
    while j < n.len() {
        if i < p.len() && (p[i] == b'?' || p[i] == n[j]) {
            (i, j) = (i + 1, j + 1);
        } else if i < p.len() && p[i] == b'*' {
            (star, mark) = (i, j);
            i += 1;
        } else if star != usize::MAX {
            mark += 1;
            (i, j) = (star + 1, mark);
        } else {
            return false;
        }
    }
    p[i..].iter().all(|c| *c == b'*')
}

/// Is this the module's name? The kernel writes `_` where its file has `-`.
pub fn is_module(name: &str, module: &str) -> bool {
    name == module || name.replace('-', "_") == module
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn globs() {
        for (p, n, want) in [
            ("ip_rcv", "ip_rcv", true),
            ("ip_rcv*", "ip_rcv_finish", true),
            ("*_xmit", "veth_xmit", true),
            ("*_xmit", "veth_xmit_frame", false),
            ("nf_nat_*fn", "nf_nat_ipv4_fn", true),
            ("a?c", "abc", true),
            ("", "x", false),
            ("*", "", true),
        ] {
            assert_eq!(glob(p, n), want, "{p} {n}");
        }
    }

    #[test]
    fn selections() {
        let s = |p: &str| Selection { profile: p.into(), detail: Detail::Full, ..Default::default() };
        let wanted = |name: &str| Detail::ALL.map(|detail| Selection { detail, ..s("path") }.wants(name, ""));
        assert_eq!(wanted("ip_rcv"), [true, true, true]);
        assert_eq!(wanted("ip_forward"), [false, true, true]);
        assert_eq!(wanted("ip_route_input_noref"), [false, false, true]);
        assert_eq!(wanted("ip_make_skb"), [false, false, false]);
        assert!(!s("socket").wants("ip_rcv", ""));
        let driver = Selection { detail: Detail::Steps, ..s("driver:e1000e") };
        assert!(driver.wants("e1000_clean_rx_irq", "e1000e"));
        let mut cut = s("path");
        cut.remove.push("ip_*".into());
        cut.add.push("foo".into());
        assert!(!cut.wants("ip_rcv", "") && cut.wants("foo", ""));
        assert!(
            s("paht").check().is_err() && s("driver:").check().is_err() && s("driver:e100").check().is_ok()
        );
    }

    #[test]
    fn layers() {
        assert_eq!(
            (layer("ip_rcv"), layer("tcp_foo"), layer("veth_xmit"), layer("e100_poll")),
            ("network", "transport", "driver", "driver")
        );
    }
}
