//! tshark as judge: field by field, frame by frame.
//!
//! Layers are compared as rows, outermost first: the n-th IPv4 header that tshark shows is the n-th that we decoded.

use std::path::Path;
use std::process::Command;

use kpat_capture::{Reader, decode};
use kpat_model::{Footprint, Network, Transport};

/// Fields of one layer. The last of them in the header is `complete`: a row of ours is there if tshark shows it, and
/// of an uncut frame only then.
struct Layer {
    fields: &'static [&'static str],
    complete: &'static str,
    rows: fn(&Footprint) -> Vec<Vec<String>>,
}

const LAYERS: &[Layer] = &[
    Layer { fields: &["eth.dst", "eth.src"], complete: "eth.src", rows: ethernet },
    // Each tag under its own name; the outer ones come first.
    Layer { fields: &["ieee8021ad.id"], complete: "ieee8021ad.id", rows: |_| vec![] },
    Layer { fields: &["vlan.id"], complete: "vlan.id", rows: vlan },
    Layer {
        fields: &[
            "ip.src",
            "ip.dst",
            "ip.id",
            "ip.proto",
            "ip.ttl",
            "ip.dsfield",
            "ip.frag_offset",
            "ip.flags.mf",
            "ip.flags.df",
            "ip.len",
        ],
        complete: "ip.dst",
        rows: ipv4,
    },
    Layer {
        fields: &["ipv6.src", "ipv6.dst", "ipv6.hlim", "ipv6.tclass", "ipv6.flow", "ipv6.plen"],
        complete: "ipv6.dst",
        rows: ipv6,
    },
    Layer {
        fields: &["ipv6.fraghdr.ident", "ipv6.fraghdr.offset", "ipv6.fraghdr.more"],
        complete: "ipv6.fraghdr.ident",
        rows: fragment6,
    },
    Layer {
        fields: &[
            "arp.opcode",
            "arp.src.hw_mac",
            "arp.src.proto_ipv4",
            "arp.dst.hw_mac",
            "arp.dst.proto_ipv4",
        ],
        complete: "arp.dst.proto_ipv4",
        rows: arp,
    },
    Layer {
        fields: &[
            "tcp.srcport",
            "tcp.dstport",
            "tcp.seq_raw",
            "tcp.ack_raw",
            "tcp.flags",
            "tcp.window_size_value",
            "tcp.checksum",
            "tcp.len",
        ],
        complete: "tcp.checksum",
        rows: tcp,
    },
    Layer {
        fields: &["udp.srcport", "udp.dstport", "udp.length", "udp.checksum"],
        complete: "udp.checksum",
        rows: udp,
    },
    Layer { fields: &["icmp.type", "icmp.code", "icmp.checksum"], complete: "icmp.checksum", rows: icmp },
    Layer { fields: &["icmp.ident", "icmp.seq"], complete: "icmp.seq", rows: echo },
    Layer {
        fields: &["icmpv6.type", "icmpv6.code", "icmpv6.checksum"],
        complete: "icmpv6.checksum",
        rows: icmp6,
    },
    Layer {
        fields: &["icmpv6.echo.identifier", "icmpv6.echo.sequence_number"],
        complete: "icmpv6.echo.sequence_number",
        rows: echo6,
    },
    Layer { fields: &["wlan.fc.type_subtype", "wlan.ra"], complete: "wlan.ra", rows: wifi },
    Layer { fields: &["wlan.ta"], complete: "wlan.ta", rows: wifi_transmitter },
    Layer { fields: &["wlan.seq", "wlan.frag"], complete: "wlan.seq", rows: wifi_sequence },
    Layer { fields: &["sll.src.eth"], complete: "sll.src.eth", rows: |_| Vec::new() },
];

const FRAME: &[&str] = &["frame.number", "frame.time_epoch", "frame.len", "frame.cap_len"];

/// What a comparison covered: so that a test can say that it had something to compare.
#[derive(Debug, Default)]
pub struct Judged {
    pub frames: usize,
    /// Rows of each layer, by its completing field.
    pub rows: std::collections::BTreeMap<&'static str, usize>,
    pub cut: usize,
}

impl Judged {
    pub fn rows_of(&self, complete: &str) -> usize {
        self.rows.get(complete).copied().unwrap_or(0)
    }
}

/// Runs one of Wireshark's tools; missing is a failure with the remedy.
pub fn run(tool: &str, args: &[&str]) -> String {
    let out = match Command::new(tool).args(args).output() {
        Ok(out) => out,
        Err(e) => panic!("cannot run {tool}: {e}; run scripts/setup, which installs it"),
    };
    let reported = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{tool} {args:?}: {}: {reported}", out.status);
    String::from_utf8_lossy(&out.stdout).into_owned()
}

/// Compares all frames of a capture.
pub fn judge(path: &Path) -> Judged {
    let name = path.to_str().expect("a plain name");
    let mut args = vec!["-n", "-r", name, "-T", "fields", "-E", "occurrence=a", "-E", "separator=/t"];
    for preference in [
        "ip.defragment:FALSE",
        "ipv6.defragment:FALSE",
        "tcp.desegment_tcp_streams:FALSE",
        "tcp.relative_sequence_numbers:FALSE",
        "wlan.defragment:FALSE",
    ] {
        args.extend(["-o", preference]);
    }
    args.extend(["-d", "udp.port==8472,vxlan"]);
    for field in FRAME.iter().chain(LAYERS.iter().flat_map(|l| l.fields)) {
        args.extend(["-e", field]);
    }
    let logged = run("tshark", &args);
    let mut judged = Judged::default();
    let mut reader = Reader::open(path).expect("it is a capture");
    let mut lines = logged.lines();
    while let Some(frame) = reader.next().expect("it is readable") {
        let line = lines.next().expect("tshark shows as many frames");
        let columns: Vec<&str> = line.split('\t').collect();
        let ns = frame.at.0;
        let time = format!("{}.{:09}", ns.div_euclid(1_000_000_000), ns.rem_euclid(1_000_000_000));
        let ours = [frame.number.to_string(), time, frame.len_wire.to_string(), frame.data.len().to_string()];
        assert_eq!(columns[..4], ours, "{name}");
        let footprint = decode::frame(frame.link_type, frame.data, frame.len_wire);
        let context = || format!("{name} frame {}\n{columns:?}\n{footprint:#x?}", frame.number);
        judged.frames += 1;
        judged.cut += usize::from(footprint.cut);
        compare(&footprint, frame.link_type, &columns[4..], &mut judged, &context);
    }
    assert_eq!(lines.next(), None, "{name}: tshark shows more frames than {}", judged.frames);
    judged
}

fn compare(
    whole: &Footprint,
    link_type: u16,
    columns: &[&str],
    judged: &mut Judged,
    context: &dyn Fn() -> String,
) {
    let cooked = matches!(link_type, 113 | 276);
    let mut service_tags = Vec::new();
    let mut columns = columns.iter();
    for layer in LAYERS {
        let mut shown: Vec<Vec<String>> =
            layer.fields.iter().map(|_| values(columns.next().copied().unwrap_or(""))).collect();
        match layer.complete {
            "ieee8021ad.id" => service_tags = std::mem::take(&mut shown[0]),
            "vlan.id" => shown[0].splice(0..0, service_tags.drain(..)).for_each(drop),
            _ => {}
        }
        let mut rows = Vec::new();
        let mut next = Some(whole);
        let mut outermost = true;
        while let Some(footprint) = next {
            // The addresses of a cooked header are not Ethernet's for tshark.
            match layer.complete {
                "eth.src" if cooked && outermost => {}
                "sll.src.eth" => {
                    let link = footprint.link.filter(|_| cooked && outermost);
                    // It has no destination, and we say none.
                    assert!(link.is_none_or(|l| l.dst.is_none()), "{}", context());
                    rows.extend(link.and_then(|l| l.src).map(|src| vec![mac(src)]));
                }
                _ => rows.extend((layer.rows)(footprint)),
            }
            outermost = false;
            next = footprint.inner.as_deref();
        }
        let place = layer.fields.iter().position(|f| *f == layer.complete).expect("one of the fields");
        let complete = shown[place].len();
        if whole.cut {
            // tshark wants all options of a header before it shows the end of its fixed part; and an echo without its
            // sequence number is none for us.
            let icmp = layer.complete.starts_with("icmp") && layer.complete.ends_with(".checksum");
            assert!(complete <= rows.len() + usize::from(icmp), "rows of {}: {}", layer.complete, context());
        } else if quotes(whole) {
            // An ICMP error quotes headers, which tshark shows and which are not headers of this packet.
            assert!(complete >= rows.len(), "rows of {}: {}", layer.complete, context());
        } else {
            assert_eq!(complete, rows.len(), "rows of {}: {}", layer.complete, context());
        }
        for (i, row) in rows.iter().enumerate() {
            for ((field, ours), shown) in layer.fields.iter().zip(row).zip(&shown) {
                let shown = shown.get(i);
                if !(whole.cut && i >= complete && shown.is_none()) {
                    assert_eq!(shown, Some(ours), "{field} (row {i}): {}", context());
                }
            }
        }
        *judged.rows.entry(layer.complete).or_default() += rows.len();
    }
}

fn quotes(footprint: &Footprint) -> bool {
    let here = match footprint.transport {
        Some(Transport::Icmp { kind, .. }) => matches!(kind, 3 | 4 | 5 | 11 | 12),
        Some(Transport::Icmpv6 { kind, .. }) => kind < 128,
        _ => false,
    };
    here || footprint.inner.as_deref().is_some_and(quotes)
}

/// Numbers as decimal, whatever base tshark prefers for them.
fn values(column: &str) -> Vec<String> {
    let number = |v: &str| match (v, v.strip_prefix("0x")) {
        ("True", _) => "1".to_string(),
        ("False", _) => "0".to_string(),
        (_, Some(hex)) => u64::from_str_radix(hex, 16).expect("a hexadecimal number").to_string(),
        _ => v.to_string(),
    };
    column.split(',').filter(|v| !v.is_empty()).map(number).collect()
}

fn row<const N: usize>(cells: [&dyn ToString; N]) -> Vec<Vec<String>> {
    vec![cells.iter().map(|c| c.to_string()).collect()]
}

fn mac(m: [u8; 6]) -> String {
    m.map(|b| format!("{b:02x}")).join(":")
}

fn ethernet(f: &Footprint) -> Vec<Vec<String>> {
    f.link.and_then(|l| l.dst.zip(l.src)).map_or(vec![], |(dst, src)| row([&mac(dst), &mac(src)]))
}

fn vlan(f: &Footprint) -> Vec<Vec<String>> {
    let tags = f.link.map_or(vec![], |l| l.vlan.to_vec());
    tags.into_iter().filter(|&v| v != kpat_model::Link::NO_VLAN).flat_map(|v| row([&v])).collect()
}

fn ipv4(f: &Footprint) -> Vec<Vec<String>> {
    let Some(Network::V4 { src, dst, id, proto, ttl, tos, frag_offset, more_frags, dont_frag, total_len }) =
        f.network
    else {
        return vec![];
    };
    let (more, dont) = (u8::from(more_frags), u8::from(dont_frag));
    // tshark 4.0 shows the offset in units of eight bytes.
    let units = frag_offset / 8;
    row([&src, &dst, &id, &proto, &ttl, &tos, &units, &more, &dont, &total_len])
}

fn ipv6(f: &Footprint) -> Vec<Vec<String>> {
    match f.network {
        Some(Network::V6 { src, dst, hop_limit, traffic_class, flow_label, payload_len, .. }) => {
            row([&src, &dst, &hop_limit, &traffic_class, &flow_label, &payload_len])
        }
        _ => vec![],
    }
}

fn fragment6(f: &Footprint) -> Vec<Vec<String>> {
    match f.network {
        Some(Network::V6 { fragment: Some((ident, offset, more)), .. }) => {
            row([&ident, &(offset / 8), &u8::from(more)])
        }
        _ => vec![],
    }
}

fn arp(f: &Footprint) -> Vec<Vec<String>> {
    match f.network {
        Some(Network::Arp { op, sender_mac, sender_ip, target_mac, target_ip }) => {
            row([&op, &mac(sender_mac), &sender_ip, &mac(target_mac), &target_ip])
        }
        _ => vec![],
    }
}

fn tcp(f: &Footprint) -> Vec<Vec<String>> {
    match f.transport {
        Some(Transport::Tcp { sport, dport, seq, ack, flags, window, checksum, payload_len }) => {
            row([&sport, &dport, &seq, &ack, &flags, &window, &checksum, &payload_len])
        }
        _ => vec![],
    }
}

fn udp(f: &Footprint) -> Vec<Vec<String>> {
    match f.transport {
        Some(Transport::Udp { sport, dport, len, checksum }) => row([&sport, &dport, &len, &checksum]),
        _ => vec![],
    }
}

fn icmp(f: &Footprint) -> Vec<Vec<String>> {
    match f.transport {
        Some(Transport::Icmp { kind, code, checksum, .. }) => row([&kind, &code, &checksum]),
        _ => vec![],
    }
}

fn echo(f: &Footprint) -> Vec<Vec<String>> {
    match f.transport {
        Some(Transport::Icmp { kind: 0 | 8, id, seq, .. }) => row([&id, &seq]),
        _ => vec![],
    }
}

fn icmp6(f: &Footprint) -> Vec<Vec<String>> {
    match f.transport {
        Some(Transport::Icmpv6 { kind, code, checksum, .. }) => row([&kind, &code, &checksum]),
        _ => vec![],
    }
}

fn echo6(f: &Footprint) -> Vec<Vec<String>> {
    match f.transport {
        Some(Transport::Icmpv6 { kind: 128 | 129, id, seq, .. }) => row([&id, &seq]),
        _ => vec![],
    }
}

fn wifi(f: &Footprint) -> Vec<Vec<String>> {
    let Some(w) = f.wifi else { return vec![] };
    row([&((w.frame_control >> 2 & 3) << 4 | w.frame_control >> 4 & 15), &mac(w.receiver)])
}

fn wifi_transmitter(f: &Footprint) -> Vec<Vec<String>> {
    f.wifi.filter(|w| w.transmitter != [0; 6]).map_or(vec![], |w| row([&mac(w.transmitter)]))
}

fn wifi_sequence(f: &Footprint) -> Vec<Vec<String>> {
    let has = |w: &kpat_model::Wifi| matches!(w.frame_control >> 2 & 3, 0 | 2);
    let number = |w: kpat_model::Wifi| row([&(w.sequence_control >> 4), &(w.sequence_control & 15)]);
    f.wifi.filter(has).map_or(vec![], number)
}
