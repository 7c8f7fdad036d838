//! Could a packet match of which some bytes are not known yet? A classic BPF program is run with unknown values: where a jump asks for one, both ways are
//! taken. So the answer is no only if no such packet matches; it may be yes of one that does not exist, as each load of an unknown byte is a new one.

use super::pcap::Instruction;
use std::collections::HashSet;

/// Of linux/filter.h and linux/bpf_common.h.
mod code {
    pub const CLASS: u16 = 0x07;
    pub const LD: u16 = 0x00;
    pub const LDX: u16 = 0x01;
    pub const ST: u16 = 0x02;
    pub const STX: u16 = 0x03;
    pub const ALU: u16 = 0x04;
    pub const JMP: u16 = 0x05;
    pub const RET: u16 = 0x06;
    pub const MODE: u16 = 0xe0;
    pub const IMM: u16 = 0x00;
    pub const ABS: u16 = 0x20;
    pub const IND: u16 = 0x40;
    pub const MEM: u16 = 0x60;
    pub const LEN: u16 = 0x80;
    pub const MSH: u16 = 0xa0;
    pub const SIZE: u16 = 0x18;
    pub const OP: u16 = 0xf0;
    pub const BY_X: u16 = 0x08;
    pub const TXA: u16 = 0x80;
}

const PLACES: usize = 16;

/// `None`: not known.
type Value = Option<u32>;

#[derive(Clone, PartialEq, Eq, Hash)]
struct Machine {
    at: usize,
    a: Value,
    x: Value,
    memory: [Value; PLACES],
}

/// More states than any filter of a user's has: then it could.
const MOST: usize = 1 << 16;

/// `packet[i]` is `None` where a byte is not known.
pub fn could_match(program: &[Instruction], packet: &[Option<u8>]) -> bool {
    let mut todo = vec![Machine { at: 0, a: Some(0), x: Some(0), memory: [Some(0); PLACES] }];
    let mut seen = HashSet::new();
    while let Some(mut m) = todo.pop() {
        let Some(i) = program.get(m.at) else { continue };
        if seen.len() == MOST {
            return true;
        }
        if !seen.insert(m.clone()) {
            continue;
        }
        m.at += 1;
        let other = if i.code & code::BY_X != 0 { m.x } else { Some(i.k) };
        match i.code & code::CLASS {
            code::LD | code::LDX => {
                let Some(value) = loaded(i, &m, packet) else { continue };
                *(if i.code & code::CLASS == code::LD { &mut m.a } else { &mut m.x }) = value;
            }
            code::ST => m.memory[i.k as usize % PLACES] = m.a,
            code::STX => m.memory[i.k as usize % PLACES] = m.x,
            code::ALU => m.a = computed(i.code & code::OP, m.a, other),
            code::JMP => {
                let asked = m.a.zip(other).map(|(a, b)| match i.code & code::OP {
                    0x10 => Some(a == b),
                    0x20 => Some(a > b),
                    0x30 => Some(a >= b),
                    0x40 => Some(a & b != 0),
                    _ => None,
                });
                let to = |by: u32| Machine { at: m.at + by as usize, ..m.clone() };
                match (i.code & code::OP, asked.flatten()) {
                    (0, _) => todo.push(to(i.k)),
                    (_, Some(true)) => todo.push(to(i.jt.into())),
                    (_, Some(false)) => todo.push(to(i.jf.into())),
                    (_, None) => todo.extend([to(i.jt.into()), to(i.jf.into())]),
                }
                continue;
            }
            code::RET => {
                let kept = if i.code & 0x18 == 0x10 { m.a } else { Some(i.k) };
                if kept != Some(0) {
                    return true;
                }
                continue;
            }
            _ if i.code & code::OP == code::TXA => m.a = m.x,
            _ => m.x = m.a,
        }
        todo.push(m);
    }
    false
}

/// `None`: behind the packet, so it does not match.
fn loaded(i: &Instruction, m: &Machine, packet: &[Option<u8>]) -> Option<Value> {
    let bytes = match i.code & code::SIZE {
        0x10 => 1,
        0x08 => 2,
        _ => 4,
    };
    let from = match i.code & code::MODE {
        code::IMM => return Some(Some(i.k)),
        code::LEN => return Some(Some(packet.len() as u32)),
        code::MEM => return Some(m.memory[i.k as usize % PLACES]),
        code::MSH => return packet.get(i.k as usize).map(|b| b.map(|b| u32::from(b & 0xf) * 4)),
        code::ABS => Some(i.k),
        code::IND => m.x.map(|x| x.wrapping_add(i.k)),
        _ => None,
    };
    let Some(from) = from else { return Some(None) };
    let there = packet.get(from as usize..)?.get(..bytes)?;
    Some(there.iter().try_fold(0, |value, b| b.map(|b| value << 8 | u32::from(b))))
}

fn computed(op: u16, a: Value, b: Value) -> Value {
    match (op, a, b) {
        (0x50, Some(0), _) | (0x50, _, Some(0)) => Some(0),
        (0x80, a, _) => a.map(u32::wrapping_neg),
        (op, Some(a), Some(b)) => match op {
            0x00 => Some(a.wrapping_add(b)),
            0x10 => Some(a.wrapping_sub(b)),
            0x20 => Some(a.wrapping_mul(b)),
            0x30 => a.checked_div(b),
            0x40 => Some(a | b),
            0x50 => Some(a & b),
            0x60 => Some(a.checked_shl(b).unwrap_or(0)),
            0x70 => Some(a.checked_shr(b).unwrap_or(0)),
            0x90 => a.checked_rem(b),
            0xa0 => Some(a ^ b),
            _ => None,
        },
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::pcap;
    use super::*;

    /// An IPv4 datagram of UDP from 10.0.0.1 port 7, to somebody.
    fn datagram(to: Option<([u8; 4], u16)>) -> Vec<Option<u8>> {
        let mut out: Vec<Option<u8>> = vec![Some(0); 40];
        for (at, byte) in [(0, 0x45), (3, 40), (8, 64), (9, 17), (12, 10), (15, 1), (21, 7)] {
            out[at] = Some(byte);
        }
        let (addr, port) = (to.map(|t| t.0), to.map(|t| t.1.to_be_bytes()));
        (0..4).for_each(|i| out[16 + i] = addr.map(|a| a[i]));
        (0..2).for_each(|i| out[22 + i] = port.map(|p| p[i]));
        out
    }

    const FILTERS: [&str; 10] = [
        "udp",
        "host 10.0.0.1",
        "host 10.9.0.1",
        "dst net 10.9.0.0/16 and port 53",
        "udp port 53 and host 10.0.0.1",
        "tcp port 53",
        "src port 8",
        "port 7 and not dst host 10.9.0.1",
        "ip6",
        "udp[4:2] = 0 and dst portrange 50-60",
    ];

    #[test]
    fn what_no_peer_makes_match_could_not() {
        let could = |text| could_match(&pcap::compile(text, pcap::RAW_IP).unwrap(), &datagram(None));
        assert_eq!(FILTERS.map(could), [true, true, true, true, true, false, false, true, false, true]);
    }

    /// Judged by libpcap's own machine.
    #[test]
    fn where_all_is_known_it_is_what_matches() {
        for text in FILTERS {
            let program = pcap::compile(text, pcap::RAW_IP).unwrap();
            let mut any = false;
            for to in [([10, 9, 0, 1], 53), ([10, 9, 0, 1], 8), ([10, 9, 3, 1], 53), ([10, 0, 0, 1], 55)] {
                let known = datagram(Some(to));
                let bytes: Vec<u8> = known.iter().flatten().copied().collect();
                let is = pcap::matches(&program, &bytes);
                assert_eq!(could_match(&program, &known), is, "{text} {to:?}");
                any |= is;
            }
            // Whatever matches with some peer could match.
            assert!(!any || could_match(&program, &datagram(None)), "{text}");
        }
    }
}
