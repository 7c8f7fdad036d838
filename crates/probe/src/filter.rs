//! The user's packet filter as eBPF: libpcap compiles pcap-filter text to classic BPF ([`pcap`]), [`translate`] makes
//! eBPF of it, and [`patch`] writes that over the placeholders of bpf/filter.bpf.h before libbpf sees the object. So the
//! kernel side needs no second filter language, and neither clang nor libpcap has to know of the other.
//!
//! What the filter sees is what the kernel holds when a packet is first met:
//! - at most the first [`VISIBLE`] bytes; a filter that needs a byte behind them, or behind the packet, does not match;
//! - `len` is the length of the data unit in the kernel, which may be several frames (GSO, GRO);
//! - a VLAN tag that the device took out of the frame (hardware offload) is not there, so `vlan` does not match it;
//! - a packet without an Ethernet header (tunnels, locally built packets) is seen from its IP header on.

pub mod pcap;
mod possible;
mod steps;
pub mod translate;

use kpat_model::Sample;
use kpat_model::sample::Unit;
pub use possible::could_match;

/// Bytes of a packet that a filter can look at.
pub const VISIBLE: u32 = 256;

/// Instructions that fit into a placeholder. Two more slots are there, they skip what is left of the room.
pub const ROOM: usize = 1000;

/// Longer text could not become so few instructions, and libpcap would think about it for minutes.
pub const TEXT_BYTES: usize = 8 * 1024;

/// Filter code for packets that start at the link header and at the network header. The code leaves by running to its
/// end, with the answer in r0.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Compiled {
    pub link: Vec<u64>,
    pub network: Vec<u64>,
    /// The filter asks for something that only an Ethernet header has (`ether`, `vlan`, `arp`): packets that start at
    /// the network header never match.
    pub link_only: bool,
    /// It asks of TCP for nothing but addresses and ports, so a connection's socket decides as well as its packets' headers do.
    pub socket_decides: bool,
    /// The same of all packets, with or without Ethernet header: one answer for a flow.
    pub flow_decides: bool,
}

/// A filter that cannot be used.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Error {
    #[error("the filter \"{text}\" is not understood: {why}")]
    Syntax { text: String, why: String },
    #[error(
        "the filter \"{text}\" asks for what a packet in the kernel does not say of itself (inbound, outbound, ifindex); \
         choose interfaces instead"
    )]
    Metadata { text: String },
    #[error(
        "the filter \"{text}\" needs a loop over headers (protochain), which filters in the kernel cannot have; list the protocols instead"
    )]
    Loop { text: String },
    #[error(
        "the filter \"{text}\" needs {needed} instructions, the limit is {ROOM}; use fewer addresses or ports, or net or portrange"
    )]
    TooLong { text: String, needed: usize },
    #[error("the filter has {length} bytes of text, the limit is {TEXT_BYTES}; use net or portrange")]
    TooMuchText { length: usize },
}

/// What a capture beside the log keeps by default: frames that match the recording's filter, and fragments, which do
/// not say whether they would. Classic BPF (code, jumps, constant). A radio's frames all pass: what is in them may be encrypted.
///
/// *Errors*: libpcap's own message.
pub fn for_capture(text: &str, link_type: u16) -> Result<Vec<(u16, u8, u8, u32)>, String> {
    match (text.trim(), link_type) {
        ("", _) => Ok(Vec::new()),
        (text, LINKTYPE_ETHERNET | LINKTYPE_RAW) => {
            classic(&format!("({text}) or (ip[6:2] & 0x1fff != 0) or (ip6[6] == 44)"), link_type)
        }
        _ => Ok(Vec::new()),
    }
}

/// As written, for whatever link type.
///
/// *Errors*: libpcap's own message.
pub fn classic(text: &str, link_type: u16) -> Result<Vec<(u16, u8, u8, u32)>, String> {
    let link_type = if link_type == LINKTYPE_RAW { pcap::RAW_IP } else { link_type.into() };
    Ok(pcap::compile(text, link_type)?.into_iter().map(|i| (i.code, i.jt, i.jf, i.k)).collect())
}

const LINKTYPE_ETHERNET: u16 = 1;
const LINKTYPE_RAW: u16 = 101;

/// Compiles pcap-filter text. `None`: the text is empty, every packet matches.
///
/// A filter that Ethernet has and raw IP has not (`ether host`, `vlan`, `arp`) is no error: see [`Compiled::link_only`].
pub fn compile(text: &str) -> Result<Option<Compiled>, Error> {
    let text = text.trim();
    if text.is_empty() {
        return Ok(None);
    }
    if text.len() > TEXT_BYTES {
        return Err(Error::TooMuchText { length: text.len() });
    }
    let ebpf = |classic: &[pcap::Instruction]| {
        let code = translate::translate(classic).map_err(|e| match e {
            translate::Error::Metadata => Error::Metadata { text: text.to_string() },
            translate::Error::Loop => Error::Loop { text: text.to_string() },
            translate::Error::TooFar(needed) => Error::TooLong { text: text.to_string(), needed },
            other => Error::Syntax { text: text.to_string(), why: other.to_string() },
        })?;
        match code.len() {
            needed if needed > ROOM => Err(Error::TooLong { text: text.to_string(), needed }),
            _ => Ok(code),
        }
    };
    let ethernet =
        pcap::compile(text, pcap::ETHERNET).map_err(|why| Error::Syntax { text: text.to_string(), why })?;
    let link = ebpf(&ethernet)?;
    let raw = pcap::compile(text, pcap::RAW_IP);
    let link_only = raw.is_err();
    let socket_decides = raw.as_ref().is_ok_and(|classic| !text.contains('[') && of_addresses(classic, 0));
    let flow_decides = socket_decides && of_addresses(&ethernet, ETHERNET_BYTES);
    let network = match raw {
        Ok(classic) => ebpf(&classic)?,
        Err(_) => vec![translate::answer(false)],
    };
    Ok(Some(Compiled { link, network, link_only, socket_decides, flow_decides }))
}

/// The filter of a recording that has only a part of what it wants, or only what is of some processes: with an empty text one that wants all, as there is somebody to ask
/// then. Whether a flow is in is known as soon as its addresses are, a packet shows it in its transport header.
pub fn compile_sampled(
    text: &str,
    sample: Option<&Sample>,
    by_process: bool,
) -> Result<Option<Compiled>, Error> {
    let filter = compile(text)?;
    if sample.is_none() && !by_process {
        return Ok(filter);
    }
    let mut filter = filter.unwrap_or_else(|| Compiled {
        link: vec![translate::answer(true)],
        network: vec![translate::answer(true)],
        link_only: false,
        socket_decides: true,
        flow_decides: true,
    });
    if sample.is_some_and(|s| s.by == Unit::Packet) {
        (filter.socket_decides, filter.flow_decides) = (false, false);
    }
    Ok(Some(filter))
}

/// Variables of the kernel side of a packet recording that depend on filter and sample.
pub fn constants(filter: Option<&Compiled>, sample: Option<&Sample>) -> Vec<(&'static str, u64)> {
    // std's random state is the cheapest source of an unpredictable number.
    let random = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), 0u8);
    vec![
        ("socket_decides", u64::from(filter.is_some_and(|f| f.socket_decides))),
        ("flow_decides", u64::from(filter.is_some_and(|f| f.flow_decides))),
        ("refusal_key", random | 1),
        ("sample_below", sample.map_or(0, Sample::below)),
        ("sample_packets", u64::from(sample.is_some_and(|s| s.by == Unit::Packet))),
    ]
}

const ETHERNET_BYTES: u32 = 14;

/// Does this program load nothing but version, header length, protocol, place in a fragmented packet, addresses and ports of a network
/// header at `at`, and the EtherType before it? Of a segment that its socket is about to send all of these are known.
fn of_addresses(classic: &[pcap::Instruction], at: u32) -> bool {
    const LOAD: u16 = 0;
    const LOAD_X: u16 = 1;
    const WORD: u16 = 0;
    const HALF: u16 = 8;
    const BYTE: u16 = 0x10;
    const ABSOLUTE: u16 = 0x20;
    const BEHIND_X: u16 = 0x40;
    const LENGTH: u16 = 0x80;
    classic.iter().all(|i| {
        let (class, size, mode) = (i.code & 7, i.code & 0x18, i.code & 0xe0);
        let of_packet = matches!((class, mode), (LOAD, ABSOLUTE | BEHIND_X));
        let ether_type = (class, mode, size, i.k) == (LOAD, ABSOLUTE, HALF, ETHERNET_BYTES - 2);
        if at > 0 && ether_type {
            return true;
        }
        let Some(k) = i.k.checked_sub(if of_packet { at } else { 0 }) else { return false };
        match (class, mode, size, k) {
            (LOAD, ABSOLUTE, WORD, 8..=36) => true,
            (LOAD, ABSOLUTE, HALF, 6 | 40 | 42) => true,
            (LOAD, ABSOLUTE, BYTE, 0 | 6 | 9 | 40) => true,
            (LOAD, ABSOLUTE, ..) => false,
            (LOAD, BEHIND_X, HALF, 0 | 2) => true,
            (LOAD, BEHIND_X, ..) => false,
            (LOAD | LOAD_X, LENGTH, ..) => false,
            _ => true,
        }
    })
}

const LDIMM64: u8 = 0x18;
const SLOTS: usize = ROOM + 2;

/// The 64-bit constants of bpf/filter.bpf.h.
const LINK_MARKER: u64 = u64::from_be_bytes(*b"kpatlink");
const NETWORK_MARKER: u64 = u64::from_be_bytes(*b"kpatnetw");

/// Writes `filter` (or "match all") over both placeholders in the object's .text.
pub fn patch(text: &mut [u8], filter: Option<&Compiled>) -> Result<(), String> {
    let all = [translate::answer(true)];
    let places =
        [(LINK_MARKER, filter.map(|f| &f.link[..])), (NETWORK_MARKER, filter.map(|f| &f.network[..]))];
    for (marker, code) in places {
        let code = code.unwrap_or(&all);
        if code.len() > ROOM {
            return Err(format!("the filter needs {} instructions, the limit is {ROOM}", code.len()));
        }
        let room = placeholder(text, marker)?;
        // Not a plain jump: the verifier refuses instructions that no path can reach. It can see that this branch is
        // always taken, though, and then removes the rest of the room itself.
        let skip = translate::skip((SLOTS - code.len() - 2) as i16);
        for (slot, instruction) in room.chunks_exact_mut(8).zip(code.iter().chain(&skip)) {
            slot.copy_from_slice(&instruction.to_le_bytes());
        }
    }
    Ok(())
}

/// The one place that loads `marker`, with the room after it.
fn placeholder(text: &mut [u8], marker: u64) -> Result<&mut [u8], String> {
    let mut load = [0u8; 16];
    load[0] = LDIMM64;
    load[4..8].copy_from_slice(&(marker as u32).to_le_bytes());
    load[12..16].copy_from_slice(&((marker >> 32) as u32).to_le_bytes());
    let is_marker = |at: usize| text.get(at..at + 16) == Some(&load[..]);
    let found: Vec<usize> = (0..text.len()).step_by(8).filter(|at| is_marker(*at)).collect();
    let [at] = found[..] else {
        return Err(format!("{} places for the filter {marker:#x}, expected one", found.len()));
    };
    let room = text.get_mut(at..at + SLOTS * 8).ok_or("the place for the filter is cut short")?;
    let nop = translate::NOP.to_le_bytes();
    if room[16..].chunks_exact(8).any(|slot| slot != nop) {
        return Err(format!("the place for the filter {marker:#x} has not {ROOM} empty instructions"));
    }
    Ok(room)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object() -> Vec<u8> {
        let mut words = vec![0xdead];
        for marker in [LINK_MARKER, NETWORK_MARKER] {
            words.push(u64::from(LDIMM64) | marker << 32);
            words.push(marker >> 32 << 32);
            words.extend([translate::NOP; ROOM]);
            words.push(0xbeef);
        }
        words.iter().flat_map(|w| w.to_le_bytes()).collect()
    }

    fn words(b: &[u8]) -> Vec<u64> {
        b.chunks_exact(8).map(|c| u64::from_le_bytes(c.try_into().unwrap())).collect()
    }

    #[test]
    fn both_places_are_filled_and_nothing_else() {
        let mut b = object();
        let filter = Compiled { link: vec![1, 2, 3], network: vec![4; ROOM], ..Compiled::default() };
        patch(&mut b, Some(&filter)).unwrap();
        let w = words(&b);
        assert_eq!(w[0], 0xdead);
        assert_eq!(w[1..4], [1, 2, 3]);
        assert_eq!(w[4..6], translate::skip(997));
        assert_eq!(w[6..1003], [translate::NOP; 997]);
        assert_eq!(w[1003], 0xbeef);
        assert_eq!(w[1004..2004], [4; ROOM]);
        assert_eq!(w[2004..2006], translate::skip(0));
        assert_eq!(w[2006], 0xbeef);
    }

    #[test]
    fn no_filter_matches_all() {
        let mut b = object();
        patch(&mut b, None).unwrap();
        assert_eq!(words(&b)[1], translate::answer(true));
    }

    #[test]
    fn a_socket_decides_where_only_addresses_are_asked_for() {
        let decides = |text: &str| compile(text).unwrap().unwrap().socket_decides;
        for text in [
            "tcp port 80",
            "host 10.7.1.2 and not udp",
            "portrange 9000-9100 or ip6",
            "src net 10.0.0.0/8",
            "not port 22",
            "ip6 host fd07::1",
        ] {
            assert!(decides(text), "{text}");
        }
        for text in [
            "tcp[tcpflags] & tcp-syn != 0",
            "len > 100",
            "less 60",
            "ip[8] = 64",
            "tcp[13] = 2",
            "ip6[7] = 1",
            "arp",
            "ip[6:2] = 0",
        ] {
            assert!(!decides(text), "{text}");
        }
    }

    /// IPv4 and IPv6 segments between few addresses and ports; all else is different in each. With it what origin.bpf.h makes of the socket.
    fn segment(seed: &mut u64) -> (Vec<u8>, Vec<u8>) {
        let mut next = |below: u64| {
            *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (*seed >> 33) % below
        };
        let ports: Vec<u8> = [next(4), next(4)].iter().flat_map(|p| (79 + *p as u16).to_be_bytes()).collect();
        let (v6, from, to) = (next(2) == 1, next(4) as u8, next(4) as u8);
        let mut any = |n: usize| (0..n).map(|_| next(256) as u8).collect::<Vec<u8>>();
        let mut addresses: Vec<u8> =
            if v6 { [[0xfd; 15], [0xfd; 15]].concat() } else { [[10, 7, 1], [10, 7, 1]].concat() };
        let half = addresses.len() / 2;
        addresses.insert(half, from);
        addresses.push(to);
        let (real, made) = if v6 {
            ([vec![0x60], any(5), vec![6, any(1)[0]]].concat(), vec![0x60, 0, 0, 0, 0, 0, 6, 64])
        } else {
            let real = [vec![0x45], any(5), vec![0x40, 0], any(1), vec![6], any(2)].concat();
            (real, vec![0x45, 0, 0, 0, 0, 0, 0, 0, 64, 6, 0, 0])
        };
        let real = [real, addresses.clone(), ports.clone(), any(16)].concat();
        let mut made = [made, addresses, ports].concat();
        made.resize(if v6 { 56 } else { 40 }, 0);
        (real, made)
    }

    /// What bpf/refused.bpf.h hashes of a packet without options, here for IPv4 and IPv6 behind an Ethernet header.
    fn of_flow(frame: &[u8]) -> Vec<u8> {
        let ip = &frame[14..];
        let flow: &[std::ops::Range<usize>] =
            if ip[0] == 0x45 { &[6..8, 9..10, 12..24] } else { &[6..7, 8..44] };
        let mut words = frame[12..14].to_vec();
        words.extend(flow.iter().flat_map(|r| ip[r.clone()].to_vec()));
        if ip[0] == 0x45 {
            words[2] &= 0x1f; // the flags are not part of it
        }
        words
    }

    #[test]
    fn packets_of_a_flow_have_one_answer() {
        let texts = [
            "udp port 79",
            "not port 80",
            "host 10.7.1.2 and not udp",
            "icmp or tcp",
            "src net 10.7.1.2/31 and portrange 79-80",
            "ip6 and dst port 81",
            "ip proto 6 or ip6 proto 17",
        ];
        let mut seed = 11;
        for text in texts {
            let compiled = compile(text).unwrap().unwrap();
            assert!(compiled.flow_decides, "{text}");
            let ethernet = pcap::compile(text, pcap::ETHERNET).unwrap();
            let raw = pcap::compile(text, pcap::RAW_IP).unwrap();
            let mut answers = std::collections::HashMap::new();
            let (mut again, mut yes) = (0, 0);
            for _ in 0..6000 {
                let (mut packet, _) = segment(&mut seed);
                let v6 = packet[0] == 0x60;
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                // another protocol, a fragment behind the first
                packet[if v6 { 6 } else { 9 }] = [1, 6, 17, 44][(seed >> 40) as usize % 4];
                if !v6 {
                    packet[6..8]
                        .copy_from_slice(&[[0x40, 0], [0, 0], [0x20, 0], [0, 9]][(seed >> 50) as usize % 4]);
                }
                let link = [&[2; 12][..], if v6 { &[0x86, 0xdd] } else { &[8, 0] }, &packet].concat();
                let answer = pcap::matches(&ethernet, &link);
                assert_eq!(
                    answer,
                    pcap::matches(&raw, &packet),
                    "{text}: the link header decides {packet:02x?}"
                );
                let before = answers.insert(of_flow(&link), answer);
                assert!(before.is_none_or(|b| b == answer), "{text} {packet:02x?}");
                again += u32::from(before.is_some());
                yes += u32::from(answer);
            }
            assert!(again > 1000 && yes > 0, "{text}: {again} packets of a flow seen before, {yes} matched");
        }
        for text in ["ether host 02:00:00:00:00:01", "vlan and port 80", "len > 100", "udp[8] = 1", "mpls"] {
            assert!(!compile(text).unwrap().unwrap().flow_decides, "{text}");
        }
    }

    #[test]
    fn a_socket_answers_as_its_segments_do() {
        let texts = [
            "tcp port 80",
            "tcp dst port 80 and src host 10.7.1.2",
            "host 10.7.1.2 and not udp",
            "portrange 80-81 or ip6",
            "src net 10.7.1.2/31",
            "not port 80",
            "ip6 host fdfd:fdfd:fdfd:fdfd:fdfd:fdfd:fdfd:fd01",
            "ip and (src port 79 or dst port 82)",
            "sctp or udp",
        ];
        let mut seed = 7;
        for text in texts {
            assert!(compile(text).unwrap().unwrap().socket_decides, "{text}");
            let program = pcap::compile(text, pcap::RAW_IP).unwrap();
            for _ in 0..2000 {
                let (real, made) = segment(&mut seed);
                assert_eq!(
                    pcap::matches(&program, &real),
                    pcap::matches(&program, &made),
                    "{text} {real:02x?}"
                );
            }
        }
    }

    #[test]
    fn damaged_objects_are_refused() {
        assert!(patch(&mut [], None).unwrap_err().starts_with("0 places"));
        let mut twice = [object(), object()].concat();
        assert!(patch(&mut twice, None).unwrap_err().starts_with("2 places"));
        let mut short = object();
        short.truncate(200);
        assert!(patch(&mut short, None).unwrap_err().contains("cut short"));
        let mut other = object();
        other[8 * 500] ^= 1;
        assert!(patch(&mut other, None).unwrap_err().contains("empty instructions"));
        let long = Compiled { link: vec![0; ROOM + 1], ..Compiled::default() };
        assert!(patch(&mut object(), Some(&long)).unwrap_err().contains("1001"));
    }
}
