//! The translated filter answers as libpcap's own interpreter does, on real filters and on random programs, for whole,
//! cut and random packets. The eBPF runs in a small interpreter that checks every memory access as the verifier would.

use kpat_probe::filter::{self, Compiled, Error, pcap, translate};
use std::ffi::c_uint;

#[link(name = "pcap")]
unsafe extern "C" {
    fn bpf_filter(program: *const pcap::Instruction, packet: *const u8, len: c_uint, valid: c_uint)
    -> c_uint;
}

fn libpcap(program: &[pcap::Instruction], packet: &[u8], len: u32) -> bool {
    // SAFETY: the program ends in returns on every path and jumps forward inside itself (checked by translate()), and the
    // packet has the length that is given.
    unsafe { bpf_filter(program.as_ptr(), packet.as_ptr(), len, packet.len() as c_uint) != 0 }
}

const BYTES: u64 = 1 << 40;
const STACK: u64 = 2 << 40;

/// Runs code as the placeholder does; panics where the kernel would have refused it.
fn run(code: &[u64], packet: &[u8], len: u32) -> bool {
    let mut area = [0xa5u8; 256];
    area[..packet.len()].copy_from_slice(packet);
    let mut stack = [None::<u8>; 64];
    let mut r: [Option<u64>; 11] = [None; 11];
    (r[1], r[2], r[3], r[10]) = (Some(BYTES), Some(packet.len() as u64), Some(len.into()), Some(STACK + 64));
    let mut pc = 0;
    let mut budget = 5000;
    while pc < code.len() {
        budget -= 1;
        assert!(budget > 0, "does not end");
        let i = code[pc];
        pc += 1;
        let (op, dst, src) = (i as u8, (i >> 8 & 15) as usize, (i >> 12 & 15) as usize);
        assert!(dst <= 5 || dst == 10, "register {dst} is not ours");
        let (off, imm) = ((i >> 16) as i16, (i >> 32) as u32);
        let operand =
            |r: &[Option<u64>; 11]| if op & 8 == 0 { imm as i32 as u64 } else { r[src].expect("set") };
        match op & 7 {
            4 | 7 if op & 0xf0 == 0xd0 => {
                let v = r[dst].expect("set");
                r[dst] = Some(match imm {
                    16 => u64::from((v as u16).swap_bytes()),
                    32 => u64::from((v as u32).swap_bytes()),
                    other => panic!("swap of {other} bits"),
                });
            }
            4 | 7 => {
                let (a, b) = (if op & 0xf0 == 0xb0 { 0 } else { r[dst].expect("set") }, operand(&r));
                let v = if op & 7 == 7 {
                    match op & 0xf0 {
                        0x00 => a.wrapping_add(b),
                        0xb0 => b,
                        other => panic!("64-bit operation {other:#x}"),
                    }
                } else {
                    let (a, b) = (a as u32, b as u32);
                    if matches!(op & 0xf0, 0x60 | 0x70) && op & 8 == 0 {
                        assert!(b < 32, "the verifier refuses such a shift");
                    }
                    u64::from(match op & 0xf0 {
                        0x00 => a.wrapping_add(b),
                        0x10 => a.wrapping_sub(b),
                        0x20 => a.wrapping_mul(b),
                        0x30 => a.checked_div(b).expect("the kernel gives 0, classic BPF no match"),
                        0x40 => a | b,
                        0x50 => a & b,
                        0x60 => a.wrapping_shl(b),
                        0x70 => a.wrapping_shr(b),
                        0x80 => a.wrapping_neg(),
                        0x90 => a.checked_rem(b).expect("as for the division"),
                        0xa0 => a ^ b,
                        0xb0 => b,
                        other => panic!("operation {other:#x}"),
                    })
                };
                assert!(!(1..=3).contains(&dst) && dst != 10, "an input was overwritten");
                r[dst] = Some(v);
            }
            5 | 6 => {
                let (mut a, mut b) = (r[dst].unwrap_or(0), 0);
                if op & 0xf0 != 0 {
                    (a, b) = (r[dst].expect("set"), operand(&r));
                }
                if op & 7 == 6 {
                    (a, b) = (a & 0xffff_ffff, b & 0xffff_ffff);
                }
                let taken = match op & 0xf0 {
                    0x00 => true,
                    0x10 => a == b,
                    0x20 => a > b,
                    0x30 => a >= b,
                    0x40 => a & b != 0,
                    0x50 => a != b,
                    0xa0 => a < b,
                    0xb0 => a <= b,
                    other => panic!("jump {other:#x}"),
                };
                if taken {
                    assert!(off >= 0, "jumps go forward");
                    pc += off as usize;
                }
            }
            1 => {
                let size = [4, 2, 1][(op >> 3 & 3) as usize];
                let at = r[src].expect("set").wrapping_add(off as u64);
                let mut v = [0; 8];
                for (n, byte) in v.iter_mut().enumerate().take(size) {
                    *byte = if at >= STACK {
                        stack[(at - STACK) as usize + n].expect("read before it was written")
                    } else {
                        assert!((at - BYTES) as usize + n < packet.len(), "reads what is not valid");
                        area[(at - BYTES) as usize + n]
                    };
                }
                r[dst] = Some(u64::from_le_bytes(v));
            }
            2 | 3 => {
                assert_eq!(dst, 10);
                let v = if op & 7 == 2 { imm } else { r[src].expect("set") as u32 };
                let at = (64 + i64::from(off)) as usize;
                for (n, byte) in v.to_le_bytes().into_iter().enumerate() {
                    stack[at + n] = Some(byte);
                }
            }
            other => panic!("class {other}"),
        }
    }
    assert_eq!(pc, code.len(), "jumps behind the end");
    r[0].expect("an answer") != 0
}

/// xorshift: the same packets in every run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, n: u64) -> u64 {
        (self.next() >> 11) % n
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }

    fn bytes(&mut self, n: usize) -> Vec<u8> {
        (0..n).map(|_| (self.next() >> 24) as u8).collect()
    }
}

/// From the network header on, with the EtherType: values that filters ask for are frequent, so are wild ones.
fn datagram(r: &mut Random) -> (u16, Vec<u8>) {
    let ports = [22, 53, 80, 443, 500, 9000, 9050, 9100, 9101, 65535];
    let mut transport = Vec::new();
    transport.extend((r.pick(&ports) as u16).to_be_bytes());
    transport.extend((r.pick(&ports) as u16).to_be_bytes());
    let more = r.pick(&[0, 4, 16, 40, 300]);
    transport.extend(r.bytes(more));
    let proto = r.pick(&[1, 2, 6, 6, 6, 17, 17, 47, 50, 51, 58, 132, 200]);
    match r.below(8) {
        0 => (0x0806, [&[0, 1, 8, 0, 6, 4, 0, 1][..], &r.bytes(20)].concat()),
        1 => (r.next() as u16, r.bytes(60)),
        2 | 3 => {
            let mut b = vec![0x60, 0, 0, 0, 0, 0, r.pick(&[proto, 0, 44]), 64];
            let net = r.pick(&[[0xfe, 0x80], [0x20, 0x01], [0xff, 0x02]]);
            for _ in 0..2 {
                b.extend(net);
                b.extend([0; 13]);
                b.push(r.below(3) as u8);
            }
            b.extend(transport);
            (0x86dd, b)
        }
        _ => {
            let words = r.pick(&[5, 5, 5, 6, 15, 3]);
            let hosts = [[10, 7, 1, 2], [10, 7, 1, 1], [1, 2, 3, 4], [192, 168, 0, 1], [224, 0, 0, 251]];
            let fragment = r.pick(&[0u16, 0, 0, 0x4000, 0x2000, 0x00b9]);
            let mut b = vec![0x40 | words as u8, r.pick(&[0, 0xb8])];
            b.extend((r.below(2000) as u16).to_be_bytes());
            b.extend([1, 2]);
            b.extend(fragment.to_be_bytes());
            b.extend([r.pick(&[1, 64, 255]), proto, 0, 0]);
            b.extend(r.pick(&hosts));
            b.extend(r.pick(&hosts));
            b.extend(vec![0; (words * 4_usize).saturating_sub(20)]);
            b.extend(transport);
            (0x0800, b)
        }
    }
}

fn frame(r: &mut Random) -> Vec<u8> {
    let (ethertype, payload) = datagram(r);
    let mut b = r.pick(&[[0xff; 6], [2, 0, 0, 0, 0, 1], [1, 0, 0x5e, 0, 0, 1]]).to_vec();
    b.extend([2, 0, 0, 0, 0, r.below(3) as u8]);
    for _ in 0..r.pick(&[0, 0, 0, 1, 2]) {
        b.extend(r.pick(&[[0x81, 0], [0x88, 0xa8]]));
        b.extend([0, r.pick(&[5, 6])]);
    }
    if r.below(12) == 0 {
        b.extend([0x88, 0x47, 0, 1, 0x01 | (r.below(2) as u8) << 4, 64]);
    } else {
        b.extend(ethertype.to_be_bytes());
    }
    b.extend(payload);
    b
}

/// At most 256 bytes, often cut short, seldom made of nothing but noise.
fn visible(r: &mut Random, whole: Vec<u8>) -> (Vec<u8>, u32) {
    let len = whole.len() as u32 + r.pick(&[0, 0, 40, 900, 60_000]);
    let n = r.below(256) as usize;
    let mut b = if r.below(20) == 0 { r.bytes(n) } else { whole };
    b.truncate(256);
    if r.below(3) == 0 {
        b.truncate(r.below(b.len() as u64 + 1) as usize);
    }
    (b, len)
}

const FILTERS: &[&str] = &[
    "tcp port 80",
    "host 10.7.1.2 and not udp",
    "icmp or icmp6",
    "ip6",
    "ip",
    "vlan 5",
    "vlan and tcp port 80",
    "vlan 5 and vlan 6 and udp",
    "tcp[tcpflags] & (tcp-syn|tcp-fin) != 0",
    "portrange 9000-9100",
    "udp src portrange 50-60 or tcp dst portrange 80-443",
    "len > 100",
    "len < 60 or len = 940",
    "greater 1000",
    "less 100",
    "ip[2:2] > 500",
    "net 10.0.0.0/8",
    "net 10.7.1 or net 192.168",
    "ip6 net fe80::/10",
    "ip6 host 2001::1",
    "src 1.2.3.4 and dst port 53",
    "arp",
    "arp or rarp",
    "arp host 10.7.1.2",
    "arp[6:2] = 1",
    "ip proto 50",
    "proto 132",
    "sctp port 80",
    "not port 22",
    "not (tcp port 22 or tcp port 443) and ip",
    "ether host 02:00:00:00:00:01",
    "ether dst ff:ff:ff:ff:ff:ff",
    "ether broadcast",
    "ether multicast",
    "ether proto 0x88a8",
    "ether[12:4] = 0x08004500",
    "ip multicast",
    "ip6 multicast",
    "multicast",
    "icmp[icmptype] = icmp-echo",
    "icmp6[0] = 128",
    "ip[6:2] & 0x1fff != 0",
    "ip[0] & 0xf != 5",
    "(ip[0] & 0xf) << 2 > 20",
    "ip[8] / ip[9] = 64",
    "ip[8] % ip[9] = 4",
    "ip[2:2] / udp[1] > 10",
    "-ip[8] = 0xffffffc0",
    "ip[2:2] << ip[8] = 0",
    "ip[2:2] >> ip[8] != 0",
    "ip[2:2] * ip[8] - len > 0x80000000",
    "ip[2:2] ^ len | 5 & ip[9] = 7",
    "ip[ip[0] & 0xf] = 0",
    "tcp[((tcp[12:1] & 0xf0) >> 2):4] = 0x47455420",
    "ether[len - 1] = 0",
    "ip[ip[2:2]] = 1",
    "ip[12:4] = ip[16:4]",
    "ip[2:2] > len",
    "ip[2:2] >= len",
    "udp[0:2] = udp[2:2]",
    "tcp[0:2] & udp[2:2] = 0",
    "mpls",
    "mpls 16",
    "mpls and ip",
    "pppoes",
    "ip[255] = 0",
    "ip[236:4] != 0",
    "ether[255] = 0",
    "ether[256] = 0 or ip6",
    "ether[253:4] != 0 or arp",
    "len != 100 and (ether[300] = 1 or len = 54)",
    "host 10.7.1.1 or host 10.7.1.2 or host 1.2.3.4 or host 192.168.0.1 or host 224.0.0.251",
    "(tcp or udp) and (port 53 or port 443 or port 500) and not src net 10.0.0.0/8 and ip[1] & 0xfc == 0xb8",
];

#[test]
fn filters_answer_as_libpcap_does() {
    let mut r = Random(0x6b70_6174_0001);
    let (mut matched, mut asked) = (0, 0);
    for text in FILTERS {
        let compiled =
            filter::compile(text).unwrap_or_else(|e| panic!("{text}: {e}")).expect("not an empty filter");
        let classic = pcap::compile(text, pcap::ETHERNET).unwrap();
        let raw = pcap::compile(text, pcap::RAW_IP).ok();
        assert_eq!(compiled.link_only, raw.is_none(), "{text}");
        let mut hits = 0;
        for _ in 0..3000 {
            let whole = frame(&mut r);
            let (packet, len) = visible(&mut r, whole);
            let want = libpcap(&classic, &packet, len);
            assert_eq!(run(&compiled.link, &packet, len), want, "{text}: {packet:02x?} len {len}");
            let whole = datagram(&mut r).1;
            let (packet, len) = visible(&mut r, whole);
            let want_raw = raw.as_ref().is_some_and(|p| libpcap(p, &packet, len));
            assert_eq!(run(&compiled.network, &packet, len), want_raw, "{text}: raw {packet:02x?} len {len}");
            hits += u32::from(want) + u32::from(want_raw);
        }
        matched += u32::from(hits > 0);
        asked += 1;
    }
    assert!(
        matched * 10 > asked * 8,
        "the packets are too dull: only {matched} of {asked} filters ever match"
    );
}

/// Any program that classic BPF allows, also what libpcap never emits.
fn random_program(r: &mut Random) -> Vec<pcap::Instruction> {
    let n = 3 + r.below(30) as usize;
    let mut p = Vec::new();
    // libpcap's interpreter does not clear M[]
    for slot in 0..4 {
        p.push(pcap::Instruction { code: 0x02, jt: 0, jf: 0, k: slot });
    }
    let first = p.len();
    for at in 0..n {
        let room = (n - at) as u64;
        let code: u16 = if at + 1 == n {
            r.pick(&[0x06, 0x16])
        } else {
            r.pick(&[
                0x00, 0x01, 0x20, 0x28, 0x30, 0x40, 0x48, 0x50, 0x60, 0x61, 0x80, 0x81, 0xb1, 0x02, 0x03,
                0x07, 0x87, 0x84, 0x04, 0x0c, 0x14, 0x1c, 0x24, 0x2c, 0x34, 0x3c, 0x44, 0x4c, 0x54, 0x5c,
                0x64, 0x6c, 0x74, 0x7c, 0x94, 0x9c, 0xa4, 0xac, 0x05, 0x15, 0x1d, 0x25, 0x2d, 0x35, 0x3d,
                0x45, 0x4d, 0x16, 0x06,
            ])
        };
        let (jt, jf) = (r.below(room.min(4)) as u8, r.below(room.min(4)) as u8);
        let k = match code {
            0x02 | 0x03 | 0x60 | 0x61 => r.below(4) as u32,
            0x05 => jt.into(),
            0x64 | 0x74 => r.below(32) as u32,
            0x34 | 0x94 => 1 + r.below(300) as u32,
            0x20..=0x50 | 0xb1 => {
                r.pick(&[0, 1, 12, 14, 23, 250, 252, 253, 254, 255, 256, 1000, 0x7fff_ffff])
            }
            _ => r.pick(&[
                0,
                1,
                2,
                3,
                14,
                31,
                32,
                60,
                64,
                255,
                256,
                0x800,
                0x7fff_ffff,
                0x8000_0000,
                0xffff_fff0,
                u32::MAX,
            ]),
        };
        // the last instruction is a return, so no jump may go over it
        let clamp = |j: u8| j.min((n - at).saturating_sub(2) as u8);
        let k = if code == 0x05 { clamp(jt).into() } else { k };
        p.push(pcap::Instruction { code, jt: clamp(jt), jf: clamp(jf), k });
    }
    assert!(p.len() == first + n);
    p
}

#[test]
fn random_programs_answer_as_libpcap_does() {
    let mut r = Random(0x6b70_6174_0002);
    let mut matched = 0;
    for _ in 0..20_000 {
        let classic = random_program(&mut r);
        let code = translate::translate(&classic).unwrap();
        for _ in 0..6 {
            let whole = frame(&mut r);
            let (packet, len) = visible(&mut r, whole);
            let want = libpcap(&classic, &packet, len);
            assert_eq!(run(&code, &packet, len), want, "{classic:x?} on {packet:02x?} len {len}");
            matched += u32::from(want);
        }
    }
    assert!(matched > 10_000, "{matched}");
}

#[test]
fn empty_text_is_no_filter() {
    assert_eq!(filter::compile(" \n"), Ok(None));
}

#[test]
fn what_only_ethernet_has_does_not_match_from_the_network_header_on() {
    for text in ["ether host 02:00:00:00:00:01", "vlan", "vlan 5 and tcp", "arp"] {
        let c = filter::compile(text).unwrap().unwrap();
        assert!(c.link_only, "{text}");
        assert!(!run(&c.network, &[0x45; 60], 60), "{text}");
    }
    let Compiled { link_only, .. } = filter::compile("tcp or arp").unwrap().unwrap();
    assert!(!link_only);
}

#[test]
fn errors_say_text_and_reason() {
    let say = |text: &str| filter::compile(text).unwrap_err().to_string();
    assert_eq!(
        say("tcp prot 80"),
        "the filter \"tcp prot 80\" is not understood: can't parse filter expression: syntax error"
    );
    assert!(say("ip and arp and tcp").contains("rejects all packets"), "{}", say("ip and arp and tcp"));
    assert!(say("tcp\0port 80").contains("zero byte"));
    assert!(matches!(filter::compile("inbound"), Err(Error::Metadata { .. })));
    assert!(matches!(filter::compile("ifindex 3"), Err(Error::Metadata { .. })));
    assert!(matches!(filter::compile("ip6 protochain 6"), Err(Error::Loop { .. })));
    let many: Vec<String> = (0..700).map(|n| format!("len={n}")).collect();
    let reported = say(&many.join(" or "));
    assert!(
        reported.contains("the limit is 1000")
            && matches!(filter::compile(&many.join(" or ")), Err(Error::TooLong { .. }))
    );
    let endless = vec!["port 1"; 1000].join(" or ");
    assert_eq!(filter::compile(&endless), Err(Error::TooMuchText { length: endless.len() }));
}

#[test]
fn programs_that_are_not_classic_bpf_are_refused() {
    let i = |code, jt, jf, k| pcap::Instruction { code, jt, jf, k };
    assert!(translate::translate(&[]).is_err());
    assert!(translate::translate(&[i(0x20, 0, 0, 0)]).is_err());
    assert!(translate::translate(&[i(0x15, 0, 5, 0), i(6, 0, 0, 0)]).is_err());
    assert!(translate::translate(&[i(0x05, 0, 0, u32::MAX), i(6, 0, 0, 0)]).is_err());
    assert!(translate::translate(&[i(0x05, 0, 0, 7), i(6, 0, 0, 0)]).is_err());
    assert!(translate::translate(&[i(0x60, 0, 0, 16), i(6, 0, 0, 0)]).is_err());
    for code in 0..=u16::MAX {
        let _ = translate::translate(&[i(code, 0, 0, 1), i(6, 0, 0, 0)]);
    }
}
