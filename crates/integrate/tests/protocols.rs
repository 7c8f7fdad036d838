//! Every sort of key: ARP, IPv6 without identification, fragments, UDP for segmentation, VLAN, padding.

use crate::judge;
use crate::world;

use judge::*;
use kpat_model::meta::ClockAnchor;
use kpat_model::*;
use kpat_query::match_key;
use kpat_store::tables::{ASSOCIATION, AssociationRow};
use world::*;

const DUT: Mac = [2, 0, 0, 0, 0, 2];
const PEER: Mac = [2, 0, 0, 0, 0, 1];
const SEC: i64 = 1_000_000_000;

fn arp(op: u16, from: Mac, from_ip: [u8; 4], to: Mac, to_ip: [u8; 4]) -> Vec<u8> {
    let mut out = vec![0, 1, 8, 0, 6, 4];
    out.extend_from_slice(&op.to_be_bytes());
    out.extend_from_slice(&from);
    out.extend_from_slice(&from_ip);
    out.extend_from_slice(&to);
    out.extend_from_slice(&to_ip);
    out
}

fn ipv6(src: u8, dst: u8, proto: u8, rest: &[u8]) -> Vec<u8> {
    let mut out = vec![0x60, 0, 0, 0];
    out.extend_from_slice(&(rest.len() as u16).to_be_bytes());
    out.extend_from_slice(&[proto, 64]);
    for host in [src, dst] {
        out.extend_from_slice(&[0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, host]);
    }
    out.extend_from_slice(rest);
    out
}

fn fragment(id: u16, offset: usize, more: bool, len: usize, rest: &[u8]) -> Vec<u8> {
    let mut out = ipv4([10, 0, 0, 2], [10, 0, 0, 1], id, 17, 64, len, rest);
    out[6..8].copy_from_slice(&((offset as u16 / 8) | if more { 0x2000 } else { 0 }).to_be_bytes());
    out
}

struct World {
    log: LogWriter,
    cap: Capture,
    clock: Clock,
    random: Random,
    packet: u64,
}

impl World {
    /// A frame comes in and the kernel knows it; what the kernel logs may lack the padding.
    fn receive(&mut self, at: i64, frame: &[u8], logged: &[u8]) {
        self.packet += 1;
        self.cap.frame(self.clock.wall(at), 0, frame.to_vec(), frame.len() as u32, self.packet);
        let known = at + 9_000 + self.random.below(30_000);
        let a = At { cpu: 0, ctx: Context::Softirq, pid: 0, packet: self.packet };
        self.log.print(a, known + 100, 2, logged, logged.len() as u32, (0, 0));
        self.log.call(a, "napi_gro_receive", known, known + 5_000);
        self.log.free(a, known + 9_000);
    }

    /// The kernel gives a packet to the device, which makes frames of it.
    fn send(&mut self, at: i64, logged: &[u8], len: u32, gso: (u16, u16), frames: &[Vec<u8>]) {
        self.packet += 1;
        let a = At { cpu: 1, ctx: Context::Task, pid: 8, packet: self.packet };
        self.log.print(a, at - 100, 2, logged, len, gso);
        self.log.call(a, "dev_hard_start_xmit", at, at + 3_000);
        self.log.free(a, at + 900_000);
        let mut wire = at + 5_000 + self.random.below(30_000);
        for f in frames {
            self.cap.frame(self.clock.wall(wire), 0, f.clone(), f.len() as u32, self.packet);
            wire += 2_000;
        }
    }
}

#[test]
fn every_sort_of_key() {
    let dir = Dir::new("keys");
    let anchor =
        ClockAnchor { boot: BootNs(9 * SEC), wall: WallNs(1_700_000_009 * SEC), uncertainty_ns: 1000 };
    let functions = ["napi_gro_receive", "dev_hard_start_xmit"];
    let clock = Clock { offset: 1_700_000_000 * SEC + 60_000_000, drift: 8e-6 };
    let log = LogWriter::create(&dir.path("x.kbl"), &functions, &[(2, "eth0", DUT)], anchor);
    let cap = Capture::new(&dir.path("w.pcapng"), &["tap"]);
    let mut w = World { log, cap, clock, random: Random(4), packet: 0 };
    let (me, you) = ([10, 0, 0, 1], [10, 0, 0, 2]);
    for i in 0..60i64 {
        let at = 10 * SEC + i * 20_000_000;
        // ARP, the same question each time; the frame is padded, the kernel's copy is not.
        let question = ether([0xff; 6], PEER, 0x806, &arp(1, PEER, you, [0; 6], me));
        let mut padded = question.clone();
        padded.resize(60, 0);
        w.receive(at, &padded, &question);
        let answer = ether(PEER, DUT, 0x806, &arp(2, DUT, me, PEER, you));
        w.send(at + 100_000, &answer, 42, (0, 0), std::slice::from_ref(&answer));
        // ICMPv6 echo, no identification.
        let ping = ether(DUT, PEER, 0x86dd, &ipv6(2, 1, 58, &icmp(128, 5, i as u16, 0x77)));
        w.receive(at + 1_000_000, &ping, &ping);
        let pong = ether(PEER, DUT, 0x86dd, &ipv6(1, 2, 58, &icmp(129, 5, i as u16, 0x78)));
        w.send(at + 1_100_000, &pong, 62, (0, 0), std::slice::from_ref(&pong));
        // UDP over IPv6: nothing but ports and length tells them apart.
        let plain = ether(DUT, PEER, 0x86dd, &ipv6(2, 1, 17, &udp(9, 10, 0)));
        w.receive(at + 2_000_000, &plain, &plain);
        // A datagram in two fragments.
        let id = i as u16 * 3 + 1;
        let first = ether(DUT, PEER, 0x800, &fragment(id, 0, true, 1480, &udp(7, 8, 2000)));
        let second = ether(DUT, PEER, 0x800, &fragment(id, 1480, false, 528, &[0; 16]));
        w.receive(at + 3_000_000, &first, &first);
        w.receive(at + 3_020_000, &second, &second);
        // UDP for segmentation: 2500 bytes in segments of 1000.
        let seg = |k: u16, len: usize| {
            ether(PEER, DUT, 0x800, &ipv4(me, you, id + k, 17, 64, 8 + len, &udp(53, 54, len)))
        };
        let frames: Vec<Vec<u8>> = vec![seg(0, 1000), seg(1, 1000), seg(2, 500)];
        let whole = ether(PEER, DUT, 0x800, &ipv4(me, you, id, 17, 64, 2508, &udp(53, 54, 2500)));
        w.send(at + 4_000_000, &whole, 2542, (1000, 3), &frames);
        // Tagged.
        let mut tagged = vec![0, 42, 8, 0];
        tagged.extend_from_slice(&ipv4(you, me, id, 6, 64, 20, &tcp(1, 2, i as u32 * 999, 0, 2)));
        let tagged = ether(DUT, PEER, 0x8100, &tagged);
        w.receive(at + 5_000_000, &tagged, &tagged);
        // What is neither IP nor ARP: numbered at its start, and alike (LLDP).
        let numbered = ether(PEER, DUT, 0x88b5, &[&i.to_be_bytes()[..], &[0; 40]].concat());
        w.send(at + 6_000_000, &numbered, 62, (0, 0), std::slice::from_ref(&numbered));
        let alike = ether(DUT, PEER, 0x88cc, &[2, 7, 4, 2, 0, 0, 0, 0, 1, 4, 7, 3, 0]);
        w.receive(at + 6_500_000, &alike, &alike);
    }
    w.log.close();
    let truth = w.cap.close();
    let (report, out) = run(&dir, &["w.pcapng"]);
    let score = score(&out, &[truth]);
    println!("keys: precision {:.4} recall {:.4} of {} frames", score.precision, score.recall, score.frames);
    assert!(score.precision >= 0.999 && score.recall >= 0.999);
    assert_clock(&report, clock);
    let rows: Vec<AssociationRow> = kpat_store::TableFile::open(&out, &ASSOCIATION).unwrap().all().unwrap();
    for key in [match_key::LINK, match_key::ARP, match_key::TRANSPORT, match_key::NETWORK, match_key::FULL] {
        assert!(rows.iter().any(|r| r.key == key), "{}", match_key::name(key));
    }
}

/// Traffic in one direction: the claim is wide and says what it rests on, and the truth is inside.
#[test]
fn one_way() {
    let dir = Dir::new("oneway");
    let anchor =
        ClockAnchor { boot: BootNs(9 * SEC), wall: WallNs(1_700_000_009 * SEC), uncertainty_ns: 1000 };
    let clock = Clock { offset: 1_700_000_000 * SEC + 60_000_000, drift: 8e-6 };
    let log = LogWriter::create(&dir.path("x.kbl"), &["napi_gro_receive"], &[(2, "eth0", DUT)], anchor);
    let cap = Capture::new(&dir.path("w.pcapng"), &["tap"]);
    let mut w = World { log, cap, clock, random: Random(4), packet: 0 };
    for i in 0..500i64 {
        let ip = ipv4([10, 0, 0, 2], [10, 0, 0, 1], i as u16 + 1, 17, 64, 8, &udp(1, 2, 0));
        let frame = ether(DUT, PEER, 0x800, &ip);
        w.receive(10 * SEC + i * 1_000_000, &frame, &frame);
    }
    w.log.close();
    w.cap.close();
    let (report, _) = run(&dir, &["w.pcapng"]);
    assert_eq!(report.clocks[0].method, kpat_query::clock_method::ONE_WAY);
    assert!(report.warnings.iter().any(|w| w.contains("one way")));
    assert_clock(&report, clock);
}
