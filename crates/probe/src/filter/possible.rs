//! Could a packet match of which some bytes are not known yet? A classic BPF program is run with unknown values: where a jump asks for one, both ways are
//! taken. So the answer is no only if no such packet matches; it may be yes of one that does not exist, as each load of an unknown byte is a new one.

use super::pcap::Instruction;
use super::steps::*;
use std::collections::HashSet;

/// `None`: not known.
type Value = Option<u32>;

#[derive(Clone, PartialEq, Eq, Hash)]
struct Machine {
    at: usize,
    a: Value,
    x: Value,
    memory: [Value; PLACES],
}

impl Machine {
    fn register(&mut self, r: u8) -> &mut Value {
        if r == X { &mut self.x } else { &mut self.a }
    }

    fn operand(&self, o: Operand) -> Value {
        match o {
            Operand::K(k) => Some(k),
            Operand::X => self.x,
        }
    }
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
        // What has no meaning here could match as well.
        let Ok(step) = decode(m.at, *i) else { return true };
        m.at += 1;
        match step {
            Step::Load { size, at } => {
                let from = match at {
                    Address::Absolute(k) => Some(k as usize),
                    Address::Relative(k) => m.x.map(|x| x as usize + k as usize),
                };
                let Some(value) = from.map_or(Some(None), |from| loaded(packet, from, size)) else {
                    continue;
                };
                m.a = value;
            }
            Step::LoadImmediate { to, k } => *m.register(to) = Some(k),
            Step::LoadMemory { to, slot } => *m.register(to) = m.memory[usize::from(slot)],
            Step::LoadLength { to } => *m.register(to) = Some(packet.len() as u32),
            Step::HeaderLength { k } => {
                let Some(value) = loaded(packet, k as usize, 1) else { continue };
                m.x = value.map(|b| (b & 0xf) * 4);
            }
            Step::Store { from, slot } => m.memory[usize::from(slot)] = *m.register(from),
            Step::Arithmetic { op, operand } => m.a = computed(op, m.a, m.operand(operand)),
            Step::Copy { to, from } => *m.register(to) = *m.register(from),
            Step::Jump { to } => m.at = to,
            Step::Branch { op, operand, yes, no } => {
                let asked = m.a.zip(m.operand(operand)).map(|(a, b)| match op {
                    JEQ => a == b,
                    JGT => a > b,
                    JGE => a >= b,
                    _ => a & b != 0,
                });
                if asked.is_none() {
                    todo.push(Machine { at: no, ..m.clone() });
                }
                m.at = if asked == Some(false) { no } else { yes };
            }
            Step::ReturnConstant { matches: false } | Step::Never => continue,
            Step::ReturnA if m.a == Some(0) => continue,
            Step::ReturnConstant { matches: true } | Step::ReturnA => return true,
        }
        todo.push(m);
    }
    false
}

/// `None`: behind the packet, so it does not match.
fn loaded(packet: &[Option<u8>], from: usize, bytes: u8) -> Option<Value> {
    let there = packet.get(from..)?.get(..bytes.into())?;
    Some(there.iter().try_fold(0, |value, b| b.map(|b| value << 8 | u32::from(b))))
}

fn computed(op: u8, a: Value, b: Value) -> Value {
    match (op, a, b) {
        (AND, Some(0), _) | (AND, _, Some(0)) => Some(0),
        (NEG, a, _) => a.map(u32::wrapping_neg),
        (op, Some(a), Some(b)) => match op {
            ADD => Some(a.wrapping_add(b)),
            SUB => Some(a.wrapping_sub(b)),
            MUL => Some(a.wrapping_mul(b)),
            DIV => a.checked_div(b),
            OR => Some(a | b),
            AND => Some(a & b),
            LSH => Some(a.checked_shl(b).unwrap_or(0)),
            RSH => Some(a.checked_shr(b).unwrap_or(0)),
            MOD => a.checked_rem(b),
            XOR => Some(a ^ b),
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
