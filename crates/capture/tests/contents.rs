//! What packets say, against what tshark says of the same frames, value by value: made frames, and live traffic of a DHCP
//! server and client, a name server and who asks it, in namespaces.
#![allow(clippy::unwrap_used)]

mod generate;
#[allow(dead_code, reason = "only who runs tshark is needed")]
mod judge;
mod netns;

use generate::files::{NANO, Order, pcap};
use generate::frames::*;
use judge::run;
use kpat_capture::{Reader, decode};
use netns::{Cable, cable_command};
use std::collections::{BTreeMap, HashMap};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

const FIELDS: &[&str] = &[
    "_ws.col.Info",
    "tcp.options.mss_val",
    "tcp.options.wscale.shift",
    "tcp.options.sack_perm",
    "tcp.options.sack_le",
    "tcp.options.sack_re",
    "tcp.options.timestamp.tsval",
    "tcp.options.timestamp.tsecr",
    "dns.id",
    "dns.flags.response",
    "dns.flags.opcode",
    "dns.flags.rcode",
    "dns.flags.truncated",
    "dns.count.queries",
    "dns.count.answers",
    "dns.qry.name",
    "dhcp.id",
    "dhcp.type",
    "dhcp.option.dhcp",
    "dhcp.option.requested_ip_address",
    "dhcp.option.dhcp_server_id",
    "dhcp.option.ip_address_lease_time",
    "dhcp.ip.client",
    "dhcp.ip.your",
    "dhcp.hw.mac_addr",
    "dhcpv6.msgtype",
    "dhcpv6.xid",
    "dhcpv6.iaaddr.ip",
    "arp.opcode",
    "arp.src.hw_mac",
    "arp.src.proto_ipv4",
    "arp.dst.hw_mac",
    "arp.dst.proto_ipv4",
    "icmp.mtu",
    "icmp.redir_gw",
    "icmpv6.mtu",
    "icmpv6.nd.ns.target_address",
    "icmpv6.nd.na.target_address",
    "icmpv6.opt.linkaddr",
    "frame.protocols",
];

struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Dir {
        let dir = std::env::temp_dir().join(format!("kpat-contents-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a directory for captures");
        Dir(dir)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

type Row = HashMap<&'static str, String>;

fn by_tshark(path: &Path) -> Vec<Row> {
    let path = path.to_str().unwrap();
    let mut args = vec!["-n", "-o", "tcp.relative_sequence_numbers:FALSE", "-r", path, "-T", "fields"];
    args.extend(["-E", "separator=/t", "-E", "occurrence=a", "-E", "aggregator=,"]);
    args.extend(FIELDS.iter().flat_map(|f| ["-e", *f]));
    run("tshark", &args)
        .lines()
        .map(|line| FIELDS.iter().copied().zip(line.split('\t').map(str::to_owned)).collect())
        .collect()
}

/// The value, if tshark shows the field.
fn value<'a>(row: &'a Row, field: &str) -> Option<&'a str> {
    row.get(field).map(String::as_str).filter(|v| !v.is_empty())
}

fn number(text: &str) -> u64 {
    match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).unwrap(),
        None if text == "True" => 1,
        None if text == "False" => 0,
        None => text.parse().unwrap(),
    }
}

fn first(text: &str) -> &str {
    text.split(',').next().unwrap()
}

/// Our text as tshark's values make it; its kind, for the count.
fn expected(row: &Row) -> Option<(&'static str, String)> {
    let v = |field: &str| value(row, field);
    let n = |field: &str| v(field).map(|v| number(first(v)));
    let info = v("_ws.col.Info").unwrap_or_default();
    if let Some(id) = n("dns.id") {
        let protocols = v("frame.protocols").unwrap();
        let whose = [("mdns", "mDNS"), ("llmnr", "LLMNR"), ("dns", "DNS")];
        let whose = whose.iter().find(|w| protocols.split(':').any(|p| p == w.0)).unwrap().1;
        let answers = n("dns.flags.response") == Some(1);
        let what = match (n("dns.flags.opcode").unwrap(), answers) {
            (0, false) => "query",
            (0, true) => "answer",
            (5, false) => "update",
            other => panic!("{other:?}"),
        };
        let mut out = format!("{whose} {what} {id:#06x}");
        let name = v("dns.qry.name").map(first);
        if let Some(name) = name {
            // The type by its name is in what tshark tells people, before the name.
            let words: Vec<&str> = info.split([' ', ',']).collect();
            let at = words.iter().position(|w| *w == name).unwrap_or_else(|| panic!("{info}: no {name}"));
            let kind = words[..at].iter().rev().find(|w| !w.starts_with('"') && !w.is_empty()).unwrap();
            out += &format!(" {kind} {name}");
        }
        let more = n("dns.count.queries").unwrap();
        if more > 1 {
            out += &format!(" and {} more", more - 1);
        }
        if answers {
            let code = match n("dns.flags.rcode").unwrap() {
                0 => "no error",
                2 => "SERVFAIL",
                3 => "NXDOMAIN",
                5 => "REFUSED",
                other => panic!("{other}"),
            };
            out += &format!(": {code}");
            match n("dns.count.answers").unwrap() {
                0 => {}
                1 => out += ", 1 record",
                n => out += &format!(", {n} records"),
            }
        }
        if n("dns.flags.truncated") == Some(1) {
            out += ", truncated";
        }
        return Some((if protocols_has(row, "tcp") { "dns over tcp" } else { "dns" }, out));
    }
    if let Some(id) = n("dhcp.id") {
        let kind = n("dhcp.option.dhcp");
        let name = match kind {
            // "DHCP Discover - Transaction ID 0x1"
            Some(_) => format!("DHCP {}", info[5..].split(" - ").next().unwrap().trim().to_lowercase()),
            None => format!("BOOTP {}", if n("dhcp.type") == Some(1) { "request" } else { "reply" }),
        };
        let mut out = format!("{name} {id:#010x} client {}", v("dhcp.hw.mac_addr").map(first).unwrap());
        let mut say = |what: &str, field: &str| {
            if let Some(addr) = v(field).map(first).filter(|a| *a != "0.0.0.0") {
                out += &format!(" {what} {addr}");
            }
        };
        say("has", "dhcp.ip.client");
        say("requests", "dhcp.option.requested_ip_address");
        say(if kind == Some(2) { "offers" } else { "gives" }, "dhcp.ip.your");
        say("server", "dhcp.option.dhcp_server_id");
        if let Some(lease) = n("dhcp.option.ip_address_lease_time") {
            out += &if lease == 0xffff_ffff { " for ever".to_owned() } else { format!(" for {lease} s") };
        }
        return Some(("dhcp", out));
    }
    if let Some(kind) = n("dhcpv6.msgtype") {
        let names = ["", "solicit", "advertise", "request", "confirm", "renew", "rebind", "reply"];
        let mut out = format!("DHCPv6 {} {:#08x}", names[kind as usize], n("dhcpv6.xid").unwrap());
        if let Some(addr) = v("dhcpv6.iaaddr.ip") {
            out += &format!(" address {addr}");
        }
        return Some(("dhcpv6", out));
    }
    if let Some(op) = n("arp.opcode") {
        let [sm, si, tm, ti] =
            ["arp.src.hw_mac", "arp.src.proto_ipv4", "arp.dst.hw_mac", "arp.dst.proto_ipv4"]
                .map(|f| v(f).unwrap());
        let out = match op {
            1 if si == ti => format!("announcement for {ti}"),
            1 if si == "0.0.0.0" => format!("who has {ti}? probe"),
            1 => format!("who has {ti}? tell {si}"),
            2 if si == ti => format!("announcement: {si} is at {sm}"),
            2 => format!("{si} is at {sm}"),
            3 => format!("who is {tm}? tell {sm}"),
            4 => format!("{tm} is at {ti}"),
            other => panic!("{other}"),
        };
        // As tshark tells it, where both have words for it.
        let theirs = info.to_lowercase();
        assert!(theirs == out || [si == ti, si == "0.0.0.0"].contains(&true), "{theirs}, {out}");
        return Some((if op > 2 { "rarp" } else { "arp" }, out));
    }
    if let Some(mtu) = n("icmp.mtu").or(n("icmpv6.mtu")) {
        return Some(("mtu", format!("mtu {mtu}")));
    }
    if let Some(gateway) = v("icmp.redir_gw") {
        return Some(("redirect", format!("to {gateway}")));
    }
    let link = v("icmpv6.opt.linkaddr");
    if let Some(target) = v("icmpv6.nd.ns.target_address") {
        return Some(("nd", link.map_or(format!("for {target}"), |l| format!("for {target} from {l}"))));
    }
    if let Some(target) = v("icmpv6.nd.na.target_address") {
        return Some(("nd", link.map_or(target.to_owned(), |l| format!("{target} is at {l}"))));
    }
    let mut words = Vec::new();
    for (field, word) in [("tcp.options.mss_val", "mss"), ("tcp.options.wscale.shift", "wscale")] {
        words.extend(n(field).map(|n| format!("{word} {n}")));
    }
    words.extend(v("tcp.options.sack_perm").map(|_| "sackOK".to_owned()));
    if let (Some(left), Some(right)) = (v("tcp.options.sack_le"), v("tcp.options.sack_re")) {
        let blocks = left.split(',').zip(right.split(',')).map(|(l, r)| format!(" {l}:{r}"));
        words.push("sack".to_owned() + &blocks.collect::<String>());
    }
    (!words.is_empty()).then(|| ("tcp", words.join(" ")))
}

fn protocols_has(row: &Row, protocol: &str) -> bool {
    value(row, "frame.protocols").unwrap().split(':').any(|p| p == protocol)
}

/// Compares; gives how many frames of each kind there were.
fn compare(path: &Path) -> BTreeMap<&'static str, usize> {
    let rows = by_tshark(path);
    let mut reader = Reader::open(path).unwrap();
    let mut counts = BTreeMap::new();
    let mut number_of_frames = 0;
    while let Some(frame) = reader.next().unwrap() {
        let row = &rows[number_of_frames];
        number_of_frames += 1;
        let print = decode::frame(frame.link_type, frame.data, frame.len_wire);
        let ours = print.message.as_ref().map(|m| m.text.to_string());
        let theirs = expected(row);
        // Options may come in any order.
        let sorted = |text: &str| {
            let mut words: Vec<String> = text.split(' ').map(str::to_owned).collect();
            words.sort();
            words
        };
        let about = format!("frame {number_of_frames}: {:?}", value(row, "_ws.col.Info"));
        match &theirs {
            Some(("tcp", text)) => {
                assert_eq!(ours.as_deref().map(sorted), Some(sorted(text)), "{about}");
            }
            Some(("dns over tcp", text)) => {
                assert!(ours.as_deref().unwrap().ends_with(text.as_str()), "{about}")
            }
            theirs => assert_eq!(ours.as_ref(), theirs.as_ref().map(|t| &t.1), "{about}"),
        }
        let stamps =
            ["tcp.options.timestamp.tsval", "tcp.options.timestamp.tsecr"].map(|f| value(row, f).map(number));
        let [Some(value), Some(echo)] = stamps else {
            assert_eq!(print.tcp_stamps, None, "{about}");
            *counts.entry(theirs.map_or("", |t| t.0)).or_default() += 1;
            continue;
        };
        assert_eq!(
            print.tcp_stamps.map(|s| (u64::from(s.0), u64::from(s.1))),
            Some((value, echo)),
            "{about}"
        );
        *counts.entry("stamps").or_default() += 1;
        *counts.entry(theirs.map_or("", |t| t.0)).or_default() += 1;
    }
    assert_eq!(number_of_frames, rows.len());
    counts
}

fn name(text: &str) -> Vec<u8> {
    text.split('.').flat_map(|l| [&[l.len() as u8], l.as_bytes()].concat()).chain([0]).collect()
}

fn dns(id: u16, flags: u16, questions: &[(&str, u16)]) -> Vec<u8> {
    let mut out: Vec<u8> =
        [id, flags, questions.len() as u16, 0, 0, 0].iter().flat_map(|w| w.to_be_bytes()).collect();
    for (text, kind) in questions {
        out.extend([&name(text)[..], &kind.to_be_bytes(), &[0, 1]].concat());
    }
    out
}

fn dhcp(op: u8, client: [u8; 4], your: [u8; 4], options: &[u8]) -> Vec<u8> {
    let mut out = [&[op, 1, 6, 0, 0xde, 0xad, 0xbe, 0xef, 0, 0, 0, 0][..], &client, &your].concat();
    out.resize(28, 0);
    out.extend([2, 0, 0, 0, 0, 0xa1]);
    out.resize(236, 0);
    out.extend([99, 130, 83, 99]);
    out.extend(options);
    out.push(255);
    out.resize(300, 0);
    out
}

fn udp_from(sport: u16, dport: u16, payload: &[u8]) -> Vec<u8> {
    let mut out = udp(dport, payload);
    out[..2].copy_from_slice(&sport.to_be_bytes());
    out
}

fn arp_of(op: u16, sender: [u8; 4], target: [u8; 4]) -> Vec<u8> {
    let mut out = arp(op);
    out[14..18].copy_from_slice(&sender);
    out[24..28].copy_from_slice(&target);
    out
}

#[test]
fn made_frames() {
    let mut all: Vec<Vec<u8>> = Vec::new();
    let mut four = |proto: u8, payload: &[u8]| all.push(eth(0x0800, &ipv4(proto, payload)));
    let known: [(&str, u16); 14] = [
        ("a.example", 1),
        ("b.example", 2),
        ("c.example", 5),
        ("d.example", 6),
        ("e.example", 12),
        ("mail.example", 15),
        ("text.example", 16),
        ("six.example", 28),
        ("_sip._udp.example", 33),
        ("ds.example", 43),
        ("key.example", 48),
        ("tlsa.example", 52),
        ("web.example", 65),
        ("caa.example", 257),
    ];
    for (i, question) in (0..).zip(known) {
        four(17, &udp(53, &dns(i, 0x0100, &[question])));
        four(17, &udp_from(53, 40001, &dns(i, 0x8180 | [0, 2, 3, 5][usize::from(i) % 4], &[question])));
    }
    four(17, &udp(53, &dns(9, 0x0100, &[("one.example", 1), ("two.example", 28)])));
    four(17, &udp_from(53, 40001, &dns(9, 0x8380, &[("one.example", 1)])));
    four(17, &udp_from(5353, 5353, &dns(0, 0, &[("printer.local", 1)])));
    four(17, &udp(5355, &dns(7, 0, &[("neighbour", 28)])));
    let options = |kind: u8, more: &[u8]| [&[53, 1, kind][..], more].concat();
    let requested = [50, 4, 10, 0, 0, 7];
    let server = [54, 4, 10, 0, 0, 1];
    let lease = [51, 4, 0, 0, 14, 16];
    let none = [0; 4];
    for (op, client, your, options) in [
        (1, none, none, options(1, &requested)),
        (2, none, [10, 0, 0, 7], options(2, &[&server[..], &lease].concat())),
        (1, none, none, options(3, &[&requested[..], &server].concat())),
        (1, none, none, options(4, &[&requested[..], &server].concat())),
        (2, none, [10, 0, 0, 7], options(5, &[&server[..], &[51, 4, 255, 255, 255, 255]].concat())),
        (2, none, none, options(6, &server)),
        (1, [10, 0, 0, 7], none, options(7, &server)),
        (1, [10, 0, 0, 7], none, options(8, &[])),
        (1, none, none, vec![]),
        (2, none, [10, 0, 0, 8], vec![]),
    ] {
        let (from, to) = if op == 1 { (68, 67) } else { (67, 68) };
        four(17, &udp_from(from, to, &dhcp(op, client, your, &options)));
    }
    for options in [
        &[1, 1, 5, 10, 0, 0, 1, 0, 0, 0, 2, 0][..],
        &[1, 1, 8, 10, 0, 0, 0, 9, 0, 0, 0, 8, 1, 1, 5, 18, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 4, 0, 0, 0, 5, 0],
        &[2, 4, 5, 0xb4, 4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0, 1, 3, 3, 7],
        &[2, 4, 2, 0x18],
        &TIMESTAMPS,
    ] {
        let mut segment = tcp(77, 2, &[], &[]);
        segment[12] = ((20 + options.len()) * 4) as u8;
        segment.extend(options);
        four(6, &segment);
    }
    four(1, &icmp(3, 4, [0, 0, 5, 0x78], &ipv4(17, &udp(9, &[0; 8]))));
    four(1, &icmp(5, 1, [10, 0, 0, 254], &ipv4(17, &udp(9, &[0; 8]))));
    for (kind, op, sender, target) in [
        (0x0806, 1, [10, 0, 0, 1], [10, 0, 0, 2]),
        (0x0806, 2, [10, 0, 0, 1], [10, 0, 0, 2]),
        (0x0806, 1, [10, 0, 0, 1], [10, 0, 0, 1]),
        (0x0806, 2, [10, 0, 0, 1], [10, 0, 0, 1]),
        (0x0806, 1, [0; 4], [10, 0, 0, 1]),
        (0x8035, 3, [0; 4], [0; 4]),
        (0x8035, 4, [10, 0, 0, 1], [10, 0, 0, 9]),
    ] {
        all.push(eth(kind, &arp_of(op, sender, target)));
    }
    let association =
        [&[0, 3, 0, 40][..], &[0; 12], &[0, 5, 0, 24, 0xfd, 7], &[0; 13], &[9], &[0; 8]].concat();
    for (kind, options) in [(1, vec![]), (2, association.clone()), (3, association), (7, vec![])] {
        let payload = [&[kind, 0xab, 0xcd, 0xef][..], &options].concat();
        all.push(eth(0x86dd, &ipv6(17, &udp_from(546, 547, &payload))));
    }
    let target = [&[0xfe, 0x80][..], &[0; 13], &[7]].concat();
    for (kind, option) in [(135, 1), (136, 2)] {
        let with = [&target[..], &[option, 1, 2, 0, 0, 0, 0, 0xb2]].concat();
        all.push(eth(0x86dd, &ipv6(58, &icmp(kind, 0, [0; 4], &with))));
        all.push(eth(0x86dd, &ipv6(58, &icmp(kind, 0, [0; 4], &target))));
    }
    all.push(eth(0x86dd, &ipv6(58, &icmp(2, 0, [0, 0, 5, 0], &ipv6(17, &udp(9, &[0; 8]))))));

    let dir = Dir::new("made");
    let path = dir.0.join("made.pcap");
    let frames: Vec<_> =
        (1u64..).zip(&all).map(|(i, f)| (i * 1_000_000, f.len() as u32, f.clone())).collect();
    std::fs::write(&path, pcap(Order::Big, NANO, 1, &frames)).unwrap();
    let counts = compare(&path);
    println!("{counts:?}");
    for (kind, least) in [
        ("dns", 32),
        ("dhcp", 10),
        ("dhcpv6", 4),
        ("arp", 5),
        ("rarp", 2),
        ("tcp", 4),
        ("stamps", 3),
        ("mtu", 2),
        ("redirect", 1),
        ("nd", 4),
    ] {
        assert!(counts.get(kind).copied().unwrap_or(0) >= least, "{kind}: {counts:?}");
    }
}

/// A program in a namespace that is ended by a signal.
struct Running(Child);

impl Running {
    /// Returns when it reports this.
    fn start(ns: &str, program: &str, args: &[&str], ready: &str) -> Running {
        let mut child = cable_command(ns, program)
            .args(args)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|e| panic!("cannot run {program}: {e}; run scripts/setup"));
        let mut reported = BufReader::new(child.stderr.take().expect("piped"));
        let mut line = String::new();
        while !line.contains(ready) {
            line.clear();
            assert!(reported.read_line(&mut line).expect("text") > 0, "{program} did not start");
        }
        std::thread::spawn(move || std::io::copy(&mut reported, &mut std::io::sink()));
        Running(child)
    }

    fn end(mut self) {
        // SAFETY: kill takes no memory; the child is ours and not waited for, so its id is not another's.
        unsafe { libc::kill(self.0.id() as i32, libc::SIGINT) };
        self.0.wait().expect("it ends");
    }
}

/// Asks a name server by UDP and by TCP, and a port where nobody listens.
const ASK: &str = r#"
import socket, struct
def message(ident, name, kind):
    labels = b"".join(bytes([len(l)]) + l.encode() for l in name.split("."))
    return struct.pack("!6H", ident, 0x100, 1, 0, 0, 0) + labels + b"\0" + struct.pack("!HH", kind, 1)
server = ("10.7.0.2", 53)
ident = 0
for name, kind in [("known.test", 1), ("known.test", 28), ("unknown.test", 1), ("other.example", 15), ("text.test", 16)]:
    ident += 1
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.settimeout(10)
    s.sendto(message(ident, name, kind), server)
    s.recv(1500)
    ident += 1
    s = socket.create_connection(server, 10)
    m = message(ident, name, kind)
    s.sendall(struct.pack("!H", len(m)) + m)
    # All of it: a server whose client has gone after the length sends no answer.
    s.recv(struct.unpack("!H", s.recv(2, socket.MSG_WAITALL))[0], socket.MSG_WAITALL)
    s.close()
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.connect(("10.7.0.2", 9))
s.send(b"nobody")
try:
    s.settimeout(10)
    s.recv(1)
except ConnectionRefusedError:
    pass
"#;

#[test]
fn live_traffic() {
    let dir = Dir::new("live");
    let cable = Cable::with_addresses();
    let path = dir.0.join("live.pcap");
    let at_once = ["-i", "vb", "-U", "--immediate-mode", "-Z", "root", "-w", path.to_str().unwrap()];
    let capture = Running::start(&cable.b, "tcpdump", &at_once, "listening on");
    let leases = format!("--dhcp-leasefile={}", dir.0.join("leases").display());
    let dnsmasq = [
        "--no-daemon",
        "--log-facility=-",
        "--conf-file=/dev/null",
        "--pid-file=",
        "--user=root",
        "--no-resolv",
        "--no-hosts",
        "--interface=vb",
        "--bind-interfaces",
        "--dhcp-range=10.7.0.100,10.7.0.150,600",
        "--dhcp-authoritative",
        "--no-ping",
        "--local=/test/",
        "--host-record=known.test,10.9.9.9",
        "--txt-record=text.test,words",
        &leases,
    ];
    let server = Running::start(&cable.b, "dnsmasq", &dnsmasq, "DHCP, IP range");
    let command = |program: &str, args: &[&str]| {
        let out = cable_command(&cable.a, program).args(args).output().expect("ip netns exec runs");
        let errors = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(out.status.success(), "{program}: {errors}");
        errors
    };
    let lease = |more: &[&str]| {
        let always = ["udhcpc", "-i", "va", "-n", "-q", "-f", "-s", "/bin/true"];
        command("busybox", &[&always[..], more].concat())
    };
    let got = lease(&["-r", "10.7.0.123", "-R"]);
    assert!(got.contains("lease of 10.7.0.123 obtained"), "{got}");
    command("python3", &["-c", ASK]);
    command("ping", &["-q", "-c", "2", "-i", "0.05", "fd07::2"]);
    // Behind all that was sent before; a tool that is asked to end does not write what it received last.
    let last = cable.send(&[]).pop().unwrap();
    let is_written = |_: &u32| {
        let mut reader = Reader::open(&path).unwrap();
        std::iter::from_fn(|| reader.next().ok().flatten().map(|f| f.data == last)).any(|is_last| is_last)
    };
    let pause = |n: &u32| std::thread::sleep(std::time::Duration::from_millis((*n).min(1) as u64 * 10));
    assert!((0..1000).inspect(pause).any(|n| is_written(&n)), "the last frame is not in the capture");
    server.end();
    capture.end();
    let counts = compare(&path);
    println!("{counts:?}");
    for (kind, least) in
        [("dhcp", 4), ("dns", 10), ("dns over tcp", 10), ("arp", 2), ("tcp", 10), ("stamps", 30), ("nd", 2)]
    {
        assert!(counts.get(kind).copied().unwrap_or(0) >= least, "{kind}: {counts:?}");
    }
}
