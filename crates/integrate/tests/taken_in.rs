//! Recorded logs of what protocols of the kernel take and free as if it were dropped (`lab/tests/taken_in.py`): spanning tree's frames at a bridge's ports, and before
//! Linux 6.3 what ICMPv6 takes. How many there were is what ping and tcpdump counted. Written anew by `examples/repeat.rs`, which leaves out the machine's name;
//! the one that names no kernel is of Linux 6.18. `others`: what a router's programs send and hear, ten of each: a frame of LLDP, of 802.1X (which a program reads), of
//! IS-IS, and of spanning tree to a device that is no port; VRRP to a group and to the host (read), OSPF (not read).

use crate::world;

use kpat_integrate::{Options, integrate};
use kpat_query::{PacketFilter, PacketSort, Store, verdict};
use kpat_store::tables::PacketRow;
use std::path::Path;
use world::Dir;

const SPANNING_TREE: i32 = 0x42;

fn packets(name: &str) -> Vec<PacketRow> {
    let dir = Dir::new(&format!("taken-{name}"));
    let log = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/recorded_taken/{name}.kbl"));
    let out = dir.path("x.kpat");
    integrate(&log, &[], &out, &Options::default(), &mut |_| ()).unwrap();
    let store = Store::open(&out).unwrap();
    store.packets(&PacketFilter::default(), PacketSort::Time, false, 0).unwrap().rows
}

#[test]
fn a_bridge_takes_spanning_trees_frames_of_its_ports_and_no_other_device_does() {
    // Sent to ports of the two bridges, and to a device that is none.
    for (name, taken, dropped) in [
        ("spanning-tree-points", 5, 5),
        ("spanning-tree-functions-6.1", 5, 5),
        ("spanning-tree-points-6.1", 7, 6),
    ] {
        let of = |code| {
            packets(name).iter().filter(|p| p.ethertype == Some(SPANNING_TREE) && p.verdict == code).count()
        };
        assert_eq!((of(verdict::DELIVERED), of(verdict::DROPPED)), (taken, dropped), "{name}");
    }
}

#[test]
fn before_linux_6_3_icmpv6_frees_all_that_it_takes_as_what_is_dropped() {
    for name in ["icmpv6-functions-6.1", "icmpv6-points-6.1"] {
        let packets = packets(name);
        // Ten echoes and their answers, and once who has the address.
        for (kind, n) in [(128, 10), (129, 10), (135, 1), (136, 1)] {
            let found =
                packets.iter().filter(|p| p.icmp_kind == Some(kind) && p.verdict == verdict::DELIVERED);
            assert_eq!(found.count(), n, "{name}: {kind}");
        }
        assert_eq!(packets.len(), 22, "{name}");
    }
}

/// One of the LLDP frames was freed 3 ms after the kernel had said why it drops it, as the emulated processor stood still: its reason is that one all the same.
#[test]
fn what_nobody_takes_has_its_reason_however_late_it_is_freed() {
    let packets = packets("others-points-6.1");
    let of = |ethertype, proto, code| {
        let fits = |p: &&PacketRow| (p.ethertype, p.proto, p.verdict) == (Some(ethertype), proto, code);
        packets.iter().filter(fits).map(|p| p.drop_reason.is_some()).collect::<Vec<_>>()
    };
    for (ethertype, proto) in [(0x88cc, None), (SPANNING_TREE, None), (0x0004, None), (0x0800, Some(89))] {
        assert_eq!(of(ethertype, proto, verdict::DROPPED), [true; 10], "{ethertype:#x} {proto:?}");
    }
    assert_eq!(of(0x888e, None, verdict::DELIVERED), [false; 10]);
    assert_eq!(of(0x0800, Some(112), verdict::DELIVERED), [false; 20]);
}
