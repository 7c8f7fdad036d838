//! What well-known functions and tracepoints say about a packet's way. Names, because the log has nothing else; an
//! unknown name says nothing, so a kernel that renames a function costs detail, never truth.

/// A set of the constants below.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Roles(pub u32);

/// Came in from a device.
pub const RX: u32 = 1;
/// Given to this host's own protocols.
pub const LOCAL_IN: u32 = 2;
/// Routed or bridged on.
pub const FORWARD: u32 = 4;
/// Made by this host's own protocols.
pub const LOCAL_OUT: u32 = 8;
/// Given to the device; from its entry on the packet may be on the wire.
pub const XMIT: u32 = 16;
/// Given to the queueing layer above the device: as XMIT where that was not recorded.
pub const XMIT_QUEUE: u32 = 32;
/// Put into a socket's queue.
pub const SOCK_QUEUE: u32 = 64;
/// Taken by a reader.
pub const SOCK_READ: u32 = 128;
/// Into the per-CPU backlog.
pub const BACKLOG_IN: u32 = 256;
/// Out of the per-CPU backlog.
pub const BACKLOG_OUT: u32 = 512;
/// Into a queueing discipline.
pub const QDISC_IN: u32 = 1024;
/// Out of a queueing discipline.
pub const QDISC_OUT: u32 = 2048;
/// Receive offload: may wait for more segments.
pub const GRO: u32 = 4096;
/// Retransmission or write queue.
pub const SEND_QUEUE: u32 = 8192;
/// Freeing.
pub const FREE: u32 = 16384;
/// Shown to a sniffer of this host, on its way in or out: says nothing of the way.
pub const TAP: u32 = 32768;
/// The driver has returned.
pub const XMIT_DONE: u32 = 65536;
/// Within a socket of a transport protocol, which no sniffer has.
pub const TRANSPORT: u32 = 131_072;
/// Shows the packet to the device's sniffers, and only then gives it to the driver.
pub const HAND_ON: u32 = 262_144;
/// What was received has its time stamp by now (`net_timestamp_check` of net/core/dev.c comes before, unless
/// net.core.netdev_tstamp_prequeue is off).
pub const STAMPED: u32 = 524_288;

impl Roles {
    pub fn has(self, role: u32) -> bool {
        self.0 & role != 0
    }

    /// By a function's name as in kallsyms, or a tracepoint's as `group:name`.
    pub fn of(name: &str) -> Roles {
        // Compiler clones: `name.isra.0`, `name.constprop.0`, `name.part.0`.
        let name = name.split('.').next().unwrap_or(name);
        Roles(match name {
            "__netif_receive_skb"
            | "__netif_receive_skb_core"
            | "__netif_receive_skb_one_core"
            | "__netif_receive_skb_list_core"
            | "net:netif_receive_skb"
            | "ip_rcv"
            | "ip_rcv_core"
            | "ip_rcv_finish"
            | "ip_list_rcv"
            | "ip_sublist_rcv"
            | "ipv6_rcv"
            | "ip6_rcv_core"
            | "ipv6_list_rcv"
            | "ip6_rcv_finish"
            | "br_handle_frame"
            | "vlan_do_receive" => RX | STAMPED,
            "netif_receive_skb"
            | "netif_receive_skb_internal"
            | "netif_receive_skb_list"
            | "netif_receive_skb_list_internal"
            | "netif_receive_skb_core"
            | "eth_type_trans"
            | "net:netif_receive_skb_entry"
            | "net:netif_receive_skb_list_entry"
            | "ieee80211_rx_list"
            | "ieee80211_rx_napi"
            | "__ieee80211_rx_handle_packet"
            | "napi_skb_finish" => RX,
            "packet_rcv" | "tpacket_rcv" | "packet_rcv_spkt" | "packet_rcv_fanout" => TAP,
            "napi_gro_receive"
            | "napi_gro_frags"
            | "dev_gro_receive"
            | "gro_receive_skb"
            | "inet_gro_receive"
            | "ipv6_gro_receive"
            | "tcp4_gro_receive"
            | "tcp6_gro_receive"
            | "udp4_gro_receive"
            | "udp6_gro_receive"
            | "skb_gro_receive"
            | "tcp_gro_receive"
            | "net:napi_gro_receive_entry"
            | "net:napi_gro_frags_entry" => RX | GRO,
            "netif_rx" | "__netif_rx" | "netif_rx_internal" | "net:netif_rx_entry" => RX | BACKLOG_IN,
            "net:netif_rx" | "enqueue_to_backlog" => RX | BACKLOG_IN | STAMPED,
            "process_backlog" => RX | BACKLOG_OUT,
            "ip_local_deliver"
            | "ip_local_deliver_finish"
            | "ip_protocol_deliver_rcu"
            | "ip6_input"
            | "ip6_input_finish"
            | "ip6_protocol_deliver_rcu"
            | "tcp_v4_rcv"
            | "tcp_v6_rcv"
            | "tcp_v4_do_rcv"
            | "tcp_v6_do_rcv"
            | "tcp_rcv_established"
            | "tcp_rcv_state_process"
            | "udp_rcv"
            | "udpv6_rcv"
            | "__udp4_lib_rcv"
            | "__udp6_lib_rcv"
            | "udp_queue_rcv_skb"
            | "udp_queue_rcv_one_skb"
            | "udp_unicast_rcv_skb"
            | "icmp_rcv"
            | "icmpv6_rcv"
            | "ping_rcv"
            | "raw_local_deliver"
            | "raw_rcv"
            | "arp_rcv"
            | "arp_process"
            | "igmp_rcv"
            | "ndisc_rcv"
            | "icmp_echo"
            | "ip6_mc_input"
            | "raw_v4_input" => LOCAL_IN,
            "sock_queue_rcv_skb"
            | "__sock_queue_rcv_skb"
            | "sock_queue_rcv_skb_reason"
            | "tcp_queue_rcv"
            | "tcp_data_queue"
            | "__udp_enqueue_schedule_skb"
            | "tcp_add_backlog"
            | "ping_queue_rcv_skb"
            | "raw_rcv_skb" => LOCAL_IN | SOCK_QUEUE,
            "tcp_recvmsg"
            | "tcp_recvmsg_locked"
            | "udp_recvmsg"
            | "udpv6_recvmsg"
            | "skb_consume_udp"
            | "__skb_recv_udp"
            | "skb_copy_and_csum_datagram_msg"
            | "tcp_eat_recv_skb" => SOCK_READ | TRANSPORT,
            "skb_copy_datagram_iter"
            | "__skb_datagram_iter"
            | "skb_copy_datagram_msg"
            | "skb_free_datagram"
            | "skb:skb_copy_datagram_iovec"
            | "__skb_try_recv_from_queue"
            | "simple_copy_to_iter" => SOCK_READ,
            "ip_forward"
            | "ip_forward_finish"
            | "ip6_forward"
            | "ip6_forward_finish"
            | "br_forward"
            | "__br_forward"
            | "br_forward_finish"
            | "br_dev_queue_push_xmit"
            | "br_flood" => FORWARD,
            "ip_local_out"
            | "__ip_local_out"
            | "ip_queue_xmit"
            | "__ip_queue_xmit"
            | "ip_send_skb"
            | "udp_send_skb"
            | "udp_v6_send_skb"
            | "ip6_local_out"
            | "__ip6_local_out"
            | "ip6_xmit"
            | "ip6_send_skb"
            | "icmp_push_reply"
            | "arp_xmit"
            | "arp_send_dst"
            | "ndisc_send_skb"
            | "ip_build_and_send_pkt"
            | "igmp_send_report"
            | "icmpv6_push_pending_frames"
            | "packet_snd"
            | "packet_sendmsg" => LOCAL_OUT,
            "__tcp_transmit_skb"
            | "tcp_transmit_skb"
            | "tcp_write_xmit"
            | "__tcp_retransmit_skb"
            | "tcp_retransmit_skb"
            | "tcp_skb_entail"
            | "tcp_event_new_data_sent"
            | "tcp:tcp_retransmit_skb" => LOCAL_OUT | SEND_QUEUE,
            "dev_hard_start_xmit" | "xmit_one" => XMIT | HAND_ON,
            "net:net_dev_start_xmit"
            | "netdev_start_xmit"
            | "veth_xmit"
            | "loopback_xmit"
            | "tun_net_xmit"
            | "start_xmit"
            | "e1000_xmit_frame"
            | "igb_xmit_frame"
            | "igb_xmit_frame_ring"
            | "ixgbe_xmit_frame"
            | "ieee80211_subif_start_xmit"
            | "ieee80211_tx"
            | "__dev_direct_xmit" => XMIT,
            "net:net_dev_xmit" => XMIT_DONE,
            "__dev_queue_xmit" | "dev_queue_xmit" | "net:net_dev_queue" => XMIT_QUEUE | QDISC_IN,
            "dev_qdisc_enqueue"
            | "pfifo_fast_enqueue"
            | "fq_enqueue"
            | "fq_codel_enqueue"
            | "noqueue_enqueue"
            | "qdisc:qdisc_enqueue"
            | "bfifo_enqueue"
            | "pfifo_enqueue"
            | "netem_enqueue"
            | "tbf_enqueue"
            | "htb_enqueue"
            | "cake_enqueue" => QDISC_IN,
            "sch_direct_xmit" | "validate_xmit_skb" | "validate_xmit_skb_list" | "qdisc:qdisc_dequeue" => {
                QDISC_OUT | XMIT_QUEUE
            }
            "kfree_skb"
            | "__kfree_skb"
            | "kfree_skb_reason"
            | "sk_skb_reason_drop"
            | "consume_skb"
            | "napi_consume_skb"
            | "skb_release_data"
            | "skb_release_head_state"
            | "kfree_skbmem"
            | "skb:kfree_skb"
            | "skb:consume_skb"
            | "sock_wfree"
            | "tcp_wfree"
            | "__consume_stateless_skb"
            | "dev_kfree_skb_any_reason"
            | "dev_kfree_skb_irq_reason"
            | "kfree_skb_list_reason" => FREE,
            _ if name.ends_with("_start_xmit") || name.ends_with("_xmit_frame") => XMIT,
            _ => 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compiler_clones_keep_their_role() {
        assert!(Roles::of("__netif_receive_skb_core.constprop.0").has(RX));
        assert!(Roles::of("virtio_net_start_xmit").has(XMIT));
        assert_eq!(Roles::of("some_other_function"), Roles(0));
    }
}
