//! A small log whose truth is known: a router that forwards, with an interrupt within a call, a call on a list, one whose
//! return was not seen, a point, a drop and a loss; and a capture of one of its links.

#![allow(dead_code, clippy::unwrap_used, reason = "each test needs some of it; a test may panic")]

#[path = "../../../integrate/tests/world/mod.rs"]
pub mod world;

use kpat_integrate::{Options, integrate};
use kpat_model::meta::ClockAnchor;
use kpat_model::*;
use kpat_query::Store;
use std::path::{Path, PathBuf};
use world::*;

const SEC: i64 = 1_000_000_000;
pub const PACKETS: u64 = 60;
const FUNCTIONS: [&str; 9] = [
    "napi_gro_receive",
    "ip_rcv",
    "ip_forward",
    "ip_output",
    "__dev_queue_xmit",
    "dev_hard_start_xmit",
    "ip_list_rcv",
    "e1000_intr",
    "kfree_skb",
];

pub struct Small {
    pub dir: Dir,
    pub store: Store,
    /// (frame number, packet) of every frame.
    pub truth: Vec<(i64, u64)>,
}

impl Small {
    pub fn kbl(&self) -> PathBuf {
        self.dir.path("x.kbl")
    }

    pub fn capture(&self) -> PathBuf {
        self.dir.path("w.pcapng")
    }

    pub fn integrated(&self) -> PathBuf {
        self.dir.path("x.kpat")
    }
}

pub fn make(name: &str) -> Small {
    let dir = Dir::new(name);
    let truth = logs(&dir.0);
    let out = dir.path("x.kpat");
    let report =
        integrate(&dir.path("x.kbl"), &[dir.path("w.pcapng")], &out, &Options::default(), &mut |_| ())
            .unwrap();
    assert_eq!(report.matched, 2 * PACKETS);
    let store = Store::open(&out).unwrap();
    Small { dir, store, truth }
}

fn logs(dir: &Path) -> Vec<(i64, u64)> {
    let anchor =
        ClockAnchor { boot: BootNs(9 * SEC), wall: WallNs(1_700_000_009 * SEC), uncertainty_ns: 1000 };
    let r: [Mac; 2] = [[2, 0, 0, 0, 0, 2], [2, 0, 0, 0, 0, 3]];
    let hosts: [Mac; 2] = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 4]];
    let mut log =
        LogWriter::create(&dir.join("x.kbl"), &FUNCTIONS, &[(2, "lan", r[0]), (3, "wan", r[1])], anchor);
    let mut cap = Capture::new(&dir.join("w.pcapng"), &["tap0", "tap1"]);
    let clock = Clock { offset: 1_700_000_000 * SEC + 3_000_000, drift: 30e-6 };
    for packet in 1..=PACKETS {
        let cpu = (packet % 2) as u16;
        let at = 10 * SEC + packet as i64 * 200_000;
        let a = At { cpu, ctx: Context::Softirq, pid: 0, packet };
        let rest = udp(1000 + packet as u16, 53, 100);
        let (src, dst) = ([10, 1, 0, 2], [10, 2, 0, 1]);
        let before = ether(r[0], hosts[0], 0x800, &ipv4(src, dst, packet as u16, 17, 64, 108, &rest));
        let after = ether(hosts[1], r[1], 0x800, &ipv4(src, dst, packet as u16, 17, 63, 108, &rest));
        log.print(a, at + 50, 2, &before, 142, (0, 0));
        log.print(a, at + 17_000, 3, &after, 142, (0, 0));
        log.call(a, "napi_gro_receive", at, at + 30_000 + packet as i64);
        log.call(a, "ip_rcv", at + 1_000, at + 29_000);
        log.call(a, "ip_forward", at + 2_000, at + 28_000);
        log.call(a, "ip_output", at + 9_000, at + 27_000);
        log.call(a, "__dev_queue_xmit", at + 15_000, at + 26_000);
        // Not of this packet, nor of any: cut in.
        let irq = At { ctx: Context::Hardirq, packet: 0, ..a };
        log.call(irq, "e1000_intr", at + 5_000, at + 6_500);
        let send = Call {
            func: log.func("dev_hard_start_xmit"),
            ctx: Context::Softirq,
            flags: if packet % 10 == 0 { Call::NO_RETURN } else { 0 },
            skb_tag: 1,
            pid: 0,
            packet: PacketId(packet),
            entry: BootNs(at + 16_000),
            dur_ns: if packet % 10 == 0 { 0 } else { 5_000 },
        };
        log.push(cpu, Record::Call(send));
        if packet % 15 == 0 {
            // A list with the packet before it.
            let list = Call {
                func: log.func("ip_list_rcv"),
                flags: Call::LIST,
                entry: BootNs(at + 40_000),
                dur_ns: 700,
                ..send
            };
            let member = Member { func: list.func, packet: PacketId(packet - 1), entry: list.entry };
            log.push(cpu, Record::Member(member));
            log.push(cpu, Record::Call(list));
        }
        if packet % 20 == 0 {
            log.event(a, at + 45_000, EventKind::Drop, 2);
        }
        log.free(a, at + 150_000);
        cap.frame(clock.wall(at - 15_000), 0, before, 142, packet);
        cap.frame(clock.wall(at + 30_000), 1, after, 142, packet);
        if packet % 7 == 0 {
            let stranger = ether([255; 6], hosts[0], 0x88cc, &[0; 46]);
            cap.frame(clock.wall(at + 60_000), 0, stranger, 60, 0);
        }
    }
    let (from, to) = (BootNs(10 * SEC), BootNs(10 * SEC + 5_000_000));
    log.push(0, Record::Loss(Loss { cause: LossCause::RingFull, cpu: 0, from, to, count: 17 }));
    log.close();
    cap.close()
}
