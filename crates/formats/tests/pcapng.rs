//! The annotated capture: what was there is there byte for byte, and what was added is what the log says, as tshark and
//! capinfos read it.

#![allow(clippy::unwrap_used, reason = "a test")]

mod judge;
mod small;

use kpat_formats::Error;
use kpat_formats::pcapng::{self, Sources, Written, find_source};
use kpat_query::trace::Chosen;
use kpat_query::{PacketFilter, PacketSort, Store};
use kpat_store::SourceFile;
use small::{PACKETS, Small};
use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};

fn sources(small: &Small, capture: &Path) -> Sources {
    Sources {
        capture: Some((capture.to_owned(), 0)),
        log: vec![small.kbl()],
        as_frames: false,
        beside: small.dir.0.clone(),
    }
}

fn export(small: &Small, chosen: &Chosen, sources: &Sources, name: &str) -> (PathBuf, Written) {
    let path = small.dir.path(name);
    let mut out = Vec::new();
    let written = pcapng::write(&small.store, chosen, sources, &mut out, &mut |_, _| true).unwrap();
    std::fs::File::create(&path).unwrap().write_all(&out).unwrap();
    (path, written)
}

/// Kind and body of every block, the order of the bytes little-endian.
fn blocks(bytes: &[u8]) -> Vec<(u32, Vec<u8>)> {
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    let mut out = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let len = word(at + 4) as usize;
        assert_eq!(word(at + len - 4) as usize, len);
        out.push((word(at), bytes[at + 8..at + len - 4].to_vec()));
        at += len;
    }
    out
}

fn tshark(args: &[&str]) -> Option<Vec<Vec<String>>> {
    let mut all = vec!["-n"];
    all.extend(args);
    let text = judge::output("tshark", "--version", &all)?;
    Some(text.lines().map(|l| l.split('\t').map(str::to_owned).collect()).collect())
}

#[test]
fn the_capture_is_kept() {
    let small = small::make("pcapng-kept");
    let sources = sources(&small, &small.capture());
    let (path, written) = export(&small, &Chosen::default(), &sources, "out.pcapng");
    let before = blocks(&std::fs::read(small.capture()).unwrap());
    let after = blocks(&std::fs::read(path).unwrap());
    // Ours have interfaces behind those of the capture.
    let interfaces = before.iter().filter(|b| b.0 == 1).count() as u32;
    let ours = |b: &&(u32, Vec<u8>)| match b.0 {
        6 | 5 => u32::from_le_bytes(b.1[..4].try_into().unwrap()) >= interfaces,
        _ => false,
    };
    let theirs: Vec<_> = after.iter().filter(|b| !ours(b)).collect();
    let mut described = 0;
    let mut kept = theirs.iter().filter(|b| {
        described += u32::from(b.0 == 1);
        b.0 != 1 || described <= interfaces
    });
    for (kind, body) in &before {
        let (found_kind, found) = kept.next().unwrap();
        assert_eq!(kind, found_kind);
        // Options come behind what was there.
        assert_eq!(found[..body.len()], body[..], "{kind}");
    }
    assert!(kept.next().is_none());
    assert_eq!(written.counts.frames, small.truth.len() as u64);
    assert_eq!(written.counts.annotated, 2 * PACKETS);
    assert_eq!(written.counts.sightings, 2 * PACKETS);
    assert!(written.warnings.is_empty());
}

#[test]
fn tshark_reads_what_was_added() {
    let small = small::make("pcapng-tshark");
    let sources = sources(&small, &small.capture());
    let (path, _) = export(&small, &Chosen::default(), &sources, "out.pcapng");
    let file = path.to_str().unwrap();
    let fields = ["frame.packet_id", "frame.interface_name", "frame.time_epoch", "frame.comment"];
    let mut args = vec!["-r", file, "-T", "fields", "-E", "occurrence=a", "-E", "aggregator=/s"];
    fields.iter().for_each(|f| args.extend(["-e", f]));
    let Some(rows) = tshark(&args) else { return };
    let packets: BTreeMap<i64, _> = small
        .store
        .packets(&PacketFilter::default(), PacketSort::Time, false, 0)
        .unwrap()
        .rows
        .into_iter()
        .map(|p| (p.packet_id, p))
        .collect();
    let mut frame = 0;
    let mut last = String::new();
    let mut full = 0;
    for row in &rows {
        assert!(row[2] >= last, "not in order of time: {row:?}");
        last.clone_from(&row[2]);
        let on_wire = row[1].starts_with("tap");
        if on_wire {
            let (_, packet) = small.truth[frame];
            frame += 1;
            assert_eq!(row[0], if packet == 0 { String::new() } else { packet.to_string() });
            if packet == 0 {
                assert_eq!(row[3], "");
                continue;
            }
        } else {
            assert!(row[1].starts_with("kernel lan in") || row[1].starts_with("kernel wan"), "{row:?}");
        }
        let json = &row[3][row[3].find("{\"kpat\":1,").unwrap()..];
        let note: serde_json::Value = serde_json::from_str(json).unwrap();
        let p = &packets[&note["packet"].as_i64().unwrap()];
        assert_eq!(row[0], p.packet_id.to_string());
        assert_eq!(note["seen"], if on_wire { "wire" } else { "kernel" });
        if on_wire {
            full += 1;
            assert_eq!(note["path_ns"], p.path_ns);
            assert_eq!(note["kernel_ns"], p.kernel_ns);
            assert_eq!(
                (note["driver_ns"].as_i64(), note["softirq_ns"].as_i64()),
                (p.driver_ns, p.softirq_ns)
            );
            assert_eq!(note["path"].as_array().unwrap().len() as i32, p.calls + p.points);
            assert_eq!(note["path"][0][0], "napi_gro_receive");
            assert_eq!(note["path"][1][1], 1, "ip_rcv is called by it");
            assert!(row[3].contains("napi_gro_receive > ip_rcv > ip_forward"), "{row:?}");
        }
    }
    assert_eq!((frame, full), (small.truth.len(), 2 * PACKETS as usize));
    assert_eq!(rows.len(), small.truth.len() + 2 * PACKETS as usize);
    let filter = "frame.packet_id == 29";
    assert_eq!(tshark(&["-r", file, "-Y", filter]).unwrap().len(), 4);
    let broken = "_ws.malformed && frame.interface_name contains \"kernel\"";
    assert_eq!(tshark(&["-r", file, "-Y", broken]).unwrap().len(), 0);
    // Addresses stand in the columns, and nothing was taken for a packet on a wire.
    let columns = ["_ws.col.Source", "_ws.col.Destination", "udp.srcport", "exported_pdu.exported_pdu"];
    let mut args = vec!["-r", file, "-Y", "frame.interface_name contains \"kernel\"", "-T", "fields"];
    columns.iter().for_each(|c| args.extend(["-e", c]));
    for row in tshark(&args).unwrap() {
        assert_eq!(row[..3], ["10.1.0.2", "10.2.0.1", ""].map(str::to_owned), "{row:?}");
        // Eight bytes of ours, then the Ethernet header.
        assert!(row[3].starts_with("0200000108000000020000000"), "{row:?}");
    }
    // The header bytes of the kernel are of the same packets, whole as they were, where they are asked for as frames.
    let frames = Sources { as_frames: true, ..sources };
    let (path, _) = export(&small, &Chosen::default(), &frames, "frames.pcapng");
    let file = path.to_str().unwrap();
    let kernel = "frame.interface_name contains \"kernel\" && udp.dstport == 53 && frame.len == 142";
    assert_eq!(tshark(&["-r", file, "-Y", kernel]).unwrap().len(), 2 * PACKETS as usize);
}

#[test]
fn capinfos_reads_the_loss() {
    let small = small::make("pcapng-loss");
    let sources = sources(&small, &small.capture());
    let (path, _) = export(&small, &Chosen::default(), &sources, "out.pcapng");
    let bytes = std::fs::read(&path).unwrap();
    let statistics: Vec<_> = blocks(&bytes).into_iter().filter(|b| b.0 == 5).collect();
    // In at one device, out at the other, and at the other without being seen to leave.
    assert_eq!(statistics.len(), 3);
    // isb_ifdrop, 8 bytes: 17.
    let wanted: Vec<u8> =
        [5u16.to_le_bytes(), 8u16.to_le_bytes()].concat().into_iter().chain(17u64.to_le_bytes()).collect();
    assert!(statistics[0].1.windows(wanted.len()).any(|w| w == wanted));
    let reported = String::from_utf8_lossy(&statistics[0].1);
    assert!(reported.contains("ring-full 17"), "{reported}");
    let Some(text) = judge::output("capinfos", "--version", &[path.to_str().unwrap()]) else { return };
    assert!(text.contains("Number of interfaces in file: 5"), "{text}");
    assert!(text.contains("Strict time order:   True"), "{text}");
}

#[test]
fn chosen_packets_and_their_frames_only() {
    let small = small::make("pcapng-chosen");
    let sources = sources(&small, &small.capture());
    let chosen = Chosen { packet: Some(5), ..Chosen::default() };
    let (_, written) = export(&small, &chosen, &sources, "out.pcapng");
    let c = written.counts;
    assert_eq!((c.packets, c.frames, c.annotated, c.sightings), (1, 2, 2, 2));
    // The notes that waited are gone.
    let left: Vec<_> = std::fs::read_dir(&small.dir.0)
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .filter(|n| n.contains("notes"))
        .collect();
    assert!(left.is_empty(), "{left:?}");
}

/// The same frames as a pcap file, and without any capture.
#[test]
fn a_pcap_file_becomes_pcapng() {
    let small = small::make("pcapng-pcap");
    let mut reader = kpat_capture::Reader::open(&small.capture()).unwrap();
    let mut pcap = Vec::new();
    for v in [0xa1b2_3c4du32, 0x0004_0002, 0, 0, 262_144, 1] {
        pcap.extend_from_slice(&v.to_le_bytes());
    }
    while let Some(f) = reader.next().unwrap() {
        let (s, ns) = (f.at.0 / 1_000_000_000, f.at.0 % 1_000_000_000);
        for v in [s as u32, ns as u32, f.data.len() as u32, f.len_wire] {
            pcap.extend_from_slice(&v.to_le_bytes());
        }
        pcap.extend_from_slice(f.data);
    }
    let path = small.dir.path("w.pcap");
    std::fs::write(&path, pcap).unwrap();
    let (from_pcap, written) = export(&small, &Chosen::default(), &sources(&small, &path), "p.pcapng");
    assert_eq!(written.counts.annotated, 2 * PACKETS);
    let (from_pcapng, _) = export(&small, &Chosen::default(), &sources(&small, &small.capture()), "n.pcapng");
    let read = |p: &Path| {
        tshark(&[
            "-r",
            p.to_str().unwrap(),
            "-T",
            "fields",
            "-e",
            "frame.time_epoch",
            "-e",
            "frame.packet_id",
            "-e",
            "frame.len",
        ])
    };
    assert_eq!(read(&from_pcap), read(&from_pcapng));
    let alone = Sources { capture: None, ..sources(&small, &path) };
    let (_, written) = export(&small, &Chosen::default(), &alone, "k.pcapng");
    assert_eq!((written.counts.frames, written.counts.sightings), (0, 2 * PACKETS));
}

#[test]
fn a_torn_capture_is_used_as_far_as_it_goes() {
    let small = small::make("pcapng-torn");
    let whole = std::fs::read(small.capture()).unwrap();
    let path = small.dir.path("torn.pcapng");
    std::fs::write(&path, &whole[..whole.len() - 50]).unwrap();
    let (_, written) = export(&small, &Chosen::default(), &sources(&small, &path), "t.pcapng");
    assert_eq!(written.counts.frames, small.truth.len() as u64 - 1);
}

#[test]
fn another_file_is_not_taken_for_the_capture() {
    let small = small::make("pcapng-other");
    let source = &small.store.manifest().sources[1];
    assert_eq!(source.role, "capture");
    let dir = small.integrated();
    assert_eq!(
        find_source(source, &dir, &[]).unwrap(),
        std::fs::canonicalize(small.dir.path("w.pcapng")).unwrap()
    );
    let moved = small.dir.path("moved.pcapng");
    std::fs::rename(small.capture(), &moved).unwrap();
    assert!(matches!(find_source(source, &dir, &[]), Err(Error::SourceMissing { .. })));
    assert_eq!(find_source(source, &dir, std::slice::from_ref(&moved)).unwrap(), moved);
    // Where it was, as seen from the log.
    std::fs::create_dir(small.dir.path("caps")).unwrap();
    let there = small.dir.path("caps").join(&source.name);
    std::fs::copy(&moved, &there).unwrap();
    let elsewhere = SourceFile { folder: "../caps".into(), ..source.clone() };
    assert_eq!(find_source(&elsewhere, &dir, &[]).unwrap(), std::fs::canonicalize(&there).unwrap());
    let mut bytes = std::fs::read(&moved).unwrap();
    bytes[100] ^= 1;
    std::fs::write(small.capture(), bytes).unwrap();
    assert!(matches!(find_source(source, &dir, &[]), Err(Error::SourceChanged { .. })));
}

/// A TCP connection through a router, in which one segment is sent twice; the kernel held each packet at two devices.
fn tcp_connection(dir: &small::world::Dir) -> Store {
    use kpat_model::meta::ClockAnchor;
    use kpat_model::{BootNs, Context, WallNs};
    use small::world::*;
    const SEC: i64 = 1_000_000_000;
    let anchor =
        ClockAnchor { boot: BootNs(9 * SEC), wall: WallNs(1_700_000_009 * SEC), uncertainty_ns: 1000 };
    let (lan, wan) = ([2, 0, 0, 0, 0, 2], [2, 0, 0, 0, 0, 3]);
    let mut log =
        LogWriter::create(&dir.path("x.kbl"), &["ip_rcv"], &[(2, "lan", lan), (3, "wan", wan)], anchor);
    let mut cap = Capture::new(&dir.path("w.pcapng"), &["tap0"]);
    let clock = Clock { offset: 1_700_000_000 * SEC, drift: 0.0 };
    let (client, server) = ([10, 1, 0, 2], [10, 2, 0, 1]);
    let mut packet = 0;
    let mut send = |up: bool, seq: u32, ack: u32, flags: u8, payload: usize| {
        packet += 1;
        let at = 10 * SEC + packet as i64 * 1_000_000;
        let a = At { cpu: 0, ctx: Context::Softirq, pid: 0, packet };
        let (src, dst, ports) =
            if up { (client, server, (40_000, 80)) } else { (server, client, (80, 40_000)) };
        let mut rest = tcp(ports.0, ports.1, seq, ack, flags);
        rest.resize(20 + payload, 0x61);
        let ip = ipv4(src, dst, packet as u16, 6, 64, rest.len(), &rest);
        let (before, after) = (ether(lan, [2; 6], 0x800, &ip), ether([4; 6], wan, 0x800, &ip));
        let len = before.len() as u32;
        let (first, second) = if up { (2, 3) } else { (3, 2) };
        log.print(a, at + 50, first, &before, len, (0, 0));
        log.print(a, at + 17_000, second, &after, len, (0, 0));
        log.call(a, "ip_rcv", at + 100, at + 900);
        log.free(a, at + 50_000);
        cap.frame(clock.wall(at), 0, before, len, packet);
    };
    send(true, 1000, 0, 2, 0);
    send(false, 5000, 1001, 0x12, 0);
    send(true, 1001, 5001, 0x10, 0);
    for i in 0..40 {
        // The acknowledgment of the 20th is lost behind the sniffer.
        let seq = 1001 + i * 100;
        send(true, seq, 5001, 0x18, 100);
        if i == 20 {
            send(true, seq, 5001, 0x18, 100);
        }
        send(false, 5001, seq + 100, 0x10, 0);
    }
    log.close();
    cap.close();
    let out = dir.path("x.kpat");
    let options = kpat_integrate::Options::default();
    kpat_integrate::integrate(&dir.path("x.kbl"), &[dir.path("w.pcapng")], &out, &options, &mut |_| ())
        .unwrap();
    Store::open(&out).unwrap()
}

/// What Wireshark finds in connections is what it finds in the capture; by the frames of the kernel it would find more.
#[test]
fn connections_are_analysed_as_in_the_capture() {
    let dir = small::world::Dir::new("pcapng-tcp");
    let store = tcp_connection(&dir);
    let export = |as_frames: bool, name: &str| {
        let sources = Sources {
            capture: Some((dir.path("w.pcapng"), 0)),
            log: vec![dir.path("x.kbl")],
            as_frames,
            beside: dir.0.clone(),
        };
        let mut out = std::fs::File::create(dir.path(name)).unwrap();
        pcapng::write(&store, &Chosen::default(), &sources, &mut out, &mut |_, _| true).unwrap()
    };
    assert_eq!(export(false, "held.pcapng").counts.sightings, 2 * 84);
    export(true, "frames.pcapng");
    // Retransmissions, duplicate ACKs and whatever else it flags; streams; round trips.
    let found = |name: &str| -> Option<Vec<usize>> {
        let path = dir.path(name);
        let count = |filter: &str| Some(tshark(&["-r", path.to_str().unwrap(), "-Y", filter])?.len());
        ["tcp.analysis.retransmission", "tcp.analysis.flags", "tcp.analysis.ack_rtt", "tcp", "ip"]
            .iter()
            .map(|f| count(f))
            .collect()
    };
    let Some(truth) = found("w.pcapng") else { return };
    assert_eq!(truth[0], 1, "{truth:?}");
    assert_eq!(found("held.pcapng").unwrap(), truth);
    let frames = found("frames.pcapng").unwrap();
    assert!(
        frames[1] > truth[1] + 40,
        "as frames they are taken for packets on a wire: {frames:?} {truth:?}"
    );
}
