//! Names and one-line summaries of protocol fields: one list for everything that shows them.

use kpat_store::tables::PacketRow;

pub const ETH_IPV4: i32 = 0x0800;
pub const ETH_ARP: i32 = 0x0806;
pub const ETH_IPV6: i32 = 0x86dd;

pub fn ethertype(code: i32) -> String {
    match code {
        ETH_IPV4 => "IPv4".to_owned(),
        ETH_ARP => "ARP".to_owned(),
        // What the kernel calls frames with a length in place of a type.
        0x0001 => "802.3".to_owned(),
        0x0004 => "LLC".to_owned(),
        // Its service access point, which a frame without EtherType has.
        0x0042 => "STP".to_owned(),
        0x8035 => "RARP".to_owned(),
        ETH_IPV6 => "IPv6".to_owned(),
        0x8847 | 0x8848 => "MPLS".to_owned(),
        0x8863 | 0x8864 => "PPPoE".to_owned(),
        0x888e => "EAPOL".to_owned(),
        0x88cc => "LLDP".to_owned(),
        0x8100 => "VLAN".to_owned(),
        0x88a8 => "QinQ".to_owned(),
        other => format!("{other:#06x}"),
    }
}

pub fn ip_proto(code: i32) -> String {
    match code {
        1 => "ICMP",
        2 => "IGMP",
        4 => "IPIP",
        6 => "TCP",
        17 => "UDP",
        33 => "DCCP",
        41 => "IPv6-in-IP",
        47 => "GRE",
        50 => "ESP",
        51 => "AH",
        58 => "ICMPv6",
        89 => "OSPF",
        103 => "PIM",
        112 => "VRRP",
        115 => "L2TP",
        132 => "SCTP",
        136 => "UDP-Lite",
        _ => return format!("IP-{code}"),
    }
    .to_owned()
}

/// What a packet is called in lists.
pub fn name(ether: Option<i32>, proto: Option<i32>) -> String {
    match (proto, ether) {
        (Some(p), _) => ip_proto(p),
        (None, Some(e)) => ethertype(e),
        (None, None) => "?".to_owned(),
    }
}

pub fn tcp_flags(flags: i32) -> String {
    const NAMES: [&str; 8] = ["FIN", "SYN", "RST", "PSH", "ACK", "URG", "ECE", "CWR"];
    // SYN first, as everyone reads it.
    const ORDER: [usize; 8] = [1, 0, 2, 3, 4, 5, 6, 7];
    let set: Vec<&str> = ORDER.iter().filter(|&&i| flags & (1 << i) != 0).map(|&i| NAMES[i]).collect();
    if set.is_empty() { "no flags".to_owned() } else { set.join(" ") }
}

pub fn icmp_kind(v6: bool, kind: i32) -> String {
    match (v6, kind) {
        (false, 0) | (true, 129) => "echo reply",
        (false, 8) | (true, 128) => "echo request",
        (false, 3) | (true, 1) => "unreachable",
        (false, 5) | (true, 137) => "redirect",
        (false, 11) | (true, 3) => "time exceeded",
        (false, 4) => "source quench",
        (false, 9) => "router advertisement",
        (false, 10) => "router solicitation",
        (false, 12) | (true, 4) => "parameter problem",
        (false, 13) => "timestamp request",
        (false, 14) => "timestamp reply",
        (false, 15) => "information request",
        (false, 16) => "information reply",
        (false, 17) => "address mask request",
        (false, 18) => "address mask reply",
        (false, 42) | (true, 160) => "extended echo request",
        (false, 43) | (true, 161) => "extended echo reply",
        (true, 2) => "packet too big",
        (true, 130) => "multicast listener query",
        (true, 131) => "multicast listener report (version 1)",
        (true, 132) => "multicast listener done",
        (true, 141) => "inverse neighbour solicitation",
        (true, 142) => "inverse neighbour advertisement",
        (true, 148) => "certification path solicitation",
        (true, 149) => "certification path advertisement",
        (true, 133) => "router solicitation",
        (true, 134) => "router advertisement",
        (true, 135) => "neighbour solicitation",
        (true, 136) => "neighbour advertisement",
        (true, 143) => "multicast listener report",
        _ => return format!("type {kind}"),
    }
    .to_owned()
}

/// What the code of an ICMP or ICMPv6 type means; `None`: nothing, or it is not known.
pub fn icmp_code(v6: bool, kind: i32, code: i32) -> Option<&'static str> {
    const UNREACHABLE: [&str; 16] = [
        "network",
        "host",
        "protocol",
        "port",
        "fragmentation needed",
        "source route failed",
        "network unknown",
        "host unknown",
        "source host isolated",
        "network prohibited",
        "host prohibited",
        "network for this service",
        "host for this service",
        "communication prohibited",
        "host precedence",
        "precedence cutoff",
    ];
    const UNREACHABLE6: [&str; 9] = [
        "no route",
        "prohibited",
        "beyond scope",
        "address",
        "port",
        "source address policy",
        "route rejected",
        "source route error",
        "headers too long",
    ];
    const REDIRECT: [&str; 4] = ["network", "host", "network and service", "host and service"];
    const EXCEEDED: [&str; 2] = ["in transit", "reassembly"];
    const PARAMETER: [&str; 3] = ["pointer", "missing option", "bad length"];
    const PARAMETER6: [&str; 11] = [
        "header field",
        "next header",
        "option",
        "first fragment incomplete",
        "segment routing header",
        "next header at a node between",
        "extension header too long",
        "extension header chain too long",
        "too many extension headers",
        "too many options",
        "option too long",
    ];
    // RFC 8335, section 3.
    const EXTENDED: [&str; 5] =
        ["no error", "malformed query", "no such interface", "no such table entry", "several interfaces"];
    let names: &[&str] = match (v6, kind) {
        (false, 3) => &UNREACHABLE,
        (true, 1) => &UNREACHABLE6,
        (false, 5) => &REDIRECT,
        (false, 11) | (true, 3) => &EXCEEDED,
        (false, 12) => &PARAMETER,
        (true, 4) => &PARAMETER6,
        (false, 43) | (true, 161) => &EXTENDED,
        _ => return None,
    };
    usize::try_from(code).ok().and_then(|c| names.get(c)).copied()
}

/// An ICMP message by its type and code.
pub fn icmp(v6: bool, kind: i32, code: i32) -> String {
    let name = icmp_kind(v6, kind);
    match (icmp_code(v6, kind, code), code) {
        (Some(code), _) => format!("{name}: {code}"),
        (None, 0) => name,
        (None, code) => format!("{name}: code {code}"),
    }
}

pub fn arp_op(op: i32) -> String {
    match op {
        1 => "request".to_owned(),
        2 => "reply".to_owned(),
        3 => "RARP request".to_owned(),
        4 => "RARP reply".to_owned(),
        8 => "InARP request".to_owned(),
        9 => "InARP reply".to_owned(),
        n => format!("operation {n}"),
    }
}

/// Address and port as one word.
pub fn endpoint(addr: Option<&str>, port: Option<i32>) -> String {
    match (addr, port) {
        (Some(a), Some(p)) if a.contains(':') => format!("[{a}]:{p}"),
        (Some(a), Some(p)) => format!("{a}:{p}"),
        (Some(a), None) => a.to_owned(),
        (None, Some(p)) => format!(":{p}"),
        (None, None) => String::new(),
    }
}

/// What distinguishes a packet beyond its addresses.
pub fn summary(p: &PacketRow) -> String {
    // A description of its own, which numbers stand before.
    let mut message = p.message.as_deref();
    let mut text = if let Some(flags) = p.tcp_flags {
        let seq = p.tcp_seq.map(|s| format!(" seq {s}")).unwrap_or_default();
        format!("{}{seq}", tcp_flags(flags))
    } else if let Some(kind) = p.icmp_kind {
        let mut text = icmp(p.proto == Some(58), kind, p.icmp_code.unwrap_or(0));
        if text.starts_with("echo re") {
            text += &format!(" id {} seq {}", p.icmp_id.unwrap_or(0), p.icmp_seq.unwrap_or(0));
        }
        text
    } else {
        match (message.take(), p.arp_op) {
            (Some(message), _) => message.to_owned(),
            (None, Some(op)) => arp_op(op),
            (None, None) => String::new(),
        }
    };
    if let Some(message) = message {
        text += " ";
        text += message;
    }
    if let (Some(value), Some(echo)) = (p.tcp_tsval, p.tcp_tsecr) {
        text += &format!(" TS {value} ecr {echo}");
    }
    if p.message_frame.is_some() {
        text += OF_FRAME;
    }
    text
}

/// Behind what only a packet's frame tells.
const OF_FRAME: &str = " (by its frame)";

/// States of `include/net/tcp_states.h`.
pub fn tcp_state(code: i64) -> String {
    const NAMES: [&str; 14] = [
        "?",
        "ESTABLISHED",
        "SYN_SENT",
        "SYN_RECV",
        "FIN_WAIT1",
        "FIN_WAIT2",
        "TIME_WAIT",
        "CLOSE",
        "CLOSE_WAIT",
        "LAST_ACK",
        "LISTEN",
        "CLOSING",
        "NEW_SYN_RECV",
        "BOUND_INACTIVE",
    ];
    usize::try_from(code)
        .ok()
        .filter(|&c| c > 0)
        .and_then(|c| NAMES.get(c))
        .map_or_else(|| format!("state {code}"), |n| (*n).to_owned())
}

/// States of `include/uapi/linux/neighbour.h`.
pub fn neighbour_state(code: i64) -> String {
    match code {
        0x00 => "none",
        0x01 => "incomplete",
        0x02 => "reachable",
        0x04 => "stale",
        0x08 => "delay",
        0x10 => "probe",
        0x20 => "failed",
        0x40 => "noarp",
        0x80 => "permanent",
        _ => return format!("state {code:#x}"),
    }
    .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summaries() {
        let tcp =
            PacketRow { proto: Some(6), tcp_flags: Some(0x12), tcp_seq: Some(7), ..PacketRow::default() };
        assert_eq!(summary(&tcp), "SYN ACK seq 7");
        let echo = PacketRow {
            proto: Some(58),
            icmp_kind: Some(128),
            icmp_id: Some(3),
            icmp_seq: Some(4),
            ..PacketRow::default()
        };
        assert_eq!(summary(&echo), "echo request id 3 seq 4");
        assert_eq!(summary(&PacketRow { arp_op: Some(2), ..PacketRow::default() }), "reply");
        let syn = PacketRow {
            message: Some("mss 1460 sackOK".into()),
            tcp_tsval: Some(1),
            tcp_tsecr: Some(0),
            ..tcp
        };
        assert_eq!(summary(&syn), "SYN ACK seq 7 mss 1460 sackOK TS 1 ecr 0");
        let asked = PacketRow {
            message: Some("DNS query 0x0001 A a.org".into()),
            message_frame: Some(1),
            ..PacketRow::default()
        };
        assert_eq!(summary(&asked), "DNS query 0x0001 A a.org (by its frame)");
        let refused =
            PacketRow { proto: Some(1), icmp_kind: Some(3), icmp_code: Some(3), ..PacketRow::default() };
        assert_eq!(summary(&refused), "unreachable: port");
        assert_eq!(summary(&PacketRow { icmp_code: Some(77), ..refused }), "unreachable: code 77");
        assert_eq!(endpoint(Some("fe80::1"), Some(53)), "[fe80::1]:53");
        assert_eq!(tcp_state(-1), "state -1");
    }
}
