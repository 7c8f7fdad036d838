//! The running kernel's verifier takes every point of a recording that has only tracepoints. Needs root; without it the test says so.

use kpat_probe::filter;
use kpat_probe::object::{Build, Plan, Side};

const POINTS: &[&str] = &[
    "point_0_napi_gro_receive_entry",
    "point_1_netif_rx",
    "point_2_netif_receive_skb_entry",
    "point_3_netif_receive_skb",
    "point_4_net_dev_queue",
    "point_5_qdisc_enqueue",
    "point_6_qdisc_dequeue",
    "point_7_net_dev_start_xmit",
    "point_8_net_dev_xmit",
    "point_9_skb_copy_datagram_iovec",
    "point_10_consume_skb",
    "point_12_napi_gro_frags_entry",
    "point_13_netif_receive_skb_list_entry",
    "point_14_netif_rx_entry",
    "point_15_kfree_skb",
    "point_16_neigh_event_send_done",
    "point_17_ovs_dp_upcall",
];

#[test]
fn the_verifier_accepts_every_point_where_frees_are_not_seen() {
    // SAFETY: takes nothing and cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        eprintln!("SKIPPED: loading BPF needs root");
        return;
    }
    // Typed loads and loads by a helper: both have to fit, whichever this kernel would be given; with cards that stamp and without.
    for (build, stamps) in [(1, 0), (1, 1), (3, 0), (3, 1)].map(|(b, s)| (Build::ALL[b], s)) {
        let plan = Plan {
            build,
            ring_bytes: 1 << 16,
            cpus: 1,
            packet_buckets: 64,
            netns: vec![],
            ifindex: vec![],
            filter: filter::compile("udp port 9000").expect("a good filter"),
            guess_reuse: true,
            own_packets: false,
            within: false,
            by_process: false,
            side: Side::Packets,
            constants: vec![("stamp_watch", stamps)],
            clone_cookies: Vec::new(),
        };
        for point in POINTS {
            plan.load(&[(point, None)])
                .unwrap_or_else(|e| panic!("{} of the build {}: {e}", point, build.name()));
        }
    }
}
