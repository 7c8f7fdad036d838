//! The running kernel's verifier takes the real object with each filter in it. Needs root; without it the test says so.

use kpat_probe::filter;
use kpat_probe::object::{Build, Plan, Side};

const FILTERS: &[&str] = &[
    "",
    "tcp port 80",
    "host 10.7.1.2 and not udp",
    "icmp or icmp6",
    "ip6",
    "vlan 5",
    "vlan 5 and vlan 6 and udp port 53",
    "tcp[tcpflags] & (tcp-syn|tcp-fin) != 0",
    "tcp[((tcp[12:1] & 0xf0) >> 2):4] = 0x47455420",
    "portrange 9000-9100",
    "len > 100",
    "greater 1000",
    "ip[2:2] > 500",
    "net 10.0.0.0/8",
    "ip6 net fe80::/10",
    "src 1.2.3.4 and dst port 53",
    "arp",
    "ether host 02:00:00:00:00:01",
    "ether multicast",
    "ether[300] = 1 or ip6",
    "ip proto 50",
    "not port 22",
    "ip[8] / ip[9] = 64",
    "ip[2:2] % udp[1] > 10",
    "-ip[8] = 0xffffffc0",
    "ip[2:2] << ip[8] = 0 and ip[2:2] >> ip[9] != 0",
    "ip[ip[2:2]] = ether[len - 1]",
    "ip[12:4] = ip[16:4]",
    "mpls and ip",
    "pppoes and tcp",
    "sctp port 80",
    "(tcp or udp) and (port 53 or port 443 or port 500) and not src net 10.0.0.0/8 and ip[1] & 0xfc == 0xb8",
];

fn plan(build: Build, text: &str) -> Plan {
    Plan {
        build,
        ring_bytes: 1 << 16,
        cpus: 1,
        packet_buckets: 64,
        netns: vec![],
        ifindex: vec![],
        filter: filter::compile(text).expect("a good filter"),
        guess_reuse: false,
        own_packets: false,
        within: false,
        by_process: false,
        side: Side::Packets,
        constants: Vec::new(),
        clone_cookies: Vec::new(),
    }
}

fn root() -> bool {
    // SAFETY: takes nothing and cannot fail.
    let root = unsafe { libc::geteuid() } == 0;
    if !root {
        eprintln!("SKIPPED: loading BPF needs root");
    }
    root
}

#[test]
fn the_verifier_accepts_every_filter() {
    if !root() {
        return;
    }
    for text in FILTERS {
        if let Err(e) = plan(Build::ALL[1], text).load(&[("point_1_netif_rx", None)]) {
            panic!("{text}: {e}");
        }
    }
}

#[test]
fn the_largest_filters_are_accepted() {
    if !root() {
        return;
    }
    let fits = |n: usize| {
        let text: Vec<String> = (0..n).map(|i| format!("host 10.{}.{}.7", i % 7, i)).collect();
        filter::compile(&text.join(" or ")).ok().map(|_| text.join(" or "))
    };
    let text = (1..25).rev().map(|n| n * 10).find_map(fits).expect("ten hosts fit");
    assert!(plan(Build::ALL[1], &text).filter.unwrap().link.len() > 800);
    plan(Build::ALL[1], &text).load(&[("point_1_netif_rx", None)]).unwrap_or_else(|e| panic!("{text}: {e}"));
}

#[test]
fn all_builds_have_both_places() {
    for build in Build::ALL {
        let bytes = plan(build, "tcp port 80").bytes().unwrap();
        for marker in [b"knil\0\0\0\0tapk", b"wten\0\0\0\0tapk"] {
            assert!(!bytes.windows(marker.len()).any(|w| w == marker), "{build:?}");
        }
    }
}
