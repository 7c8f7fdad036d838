//! Our footprints against tshark's, on made and on live captures.

mod generate;
mod judge;
mod netns;

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use generate::files::{NANO, Ng, ORDERS, Order, pcap};
use generate::frames;
use judge::{judge, run};
use netns::{Cable, cable_command, ip};

/// A directory that goes away with the test.
struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Dir {
        let dir = std::env::temp_dir().join(format!("kpat-capture-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a directory for captures");
        Dir(dir)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

const START_NS: u64 = 1_700_000_000_987_654_321;

fn ethernet_capture() -> Vec<u8> {
    let stamped = |(i, data): (u64, Vec<u8>)| (START_NS + i * 1_234_567, data.len() as u32, data);
    let frames: Vec<_> = (0u64..).zip(frames::ethernet_corpus()).map(stamped).collect();
    pcap(Order::Big, NANO, 1, &frames)
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a plain name")
}

#[test]
fn ethernet_in_all_formats() {
    let dir = Dir::new("formats");
    let first = dir.file("first.pcap");
    std::fs::write(&first, ethernet_capture()).unwrap();
    let all = judge(&first);
    assert_eq!((all.frames, all.cut), (frames::ethernet_corpus().len(), 0));
    for layer in [
        "eth.src",
        "vlan.id",
        "ip.dst",
        "ipv6.dst",
        "ipv6.fraghdr.ident",
        "arp.dst.proto_ipv4",
        "tcp.checksum",
        "udp.checksum",
        "icmp.seq",
        "icmpv6.echo.sequence_number",
    ] {
        assert!(all.rows_of(layer) > 2, "{layer}: {all:?}");
    }
    for format in ["pcap", "nsecpcap", "modpcap", "pcapng"] {
        let other = dir.file(format);
        run("editcap", &["-F", format, text(&first), text(&other)]);
        assert_eq!(judge(&other).rows, all.rows, "{format}");
        let packed = dir.file(&format!("{format}.gz"));
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(&std::fs::read(&other).unwrap()).unwrap();
        std::fs::write(&packed, gzip.finish().unwrap()).unwrap();
        assert_eq!(judge(&packed).rows, all.rows, "{format}.gz");
    }
}

#[test]
fn snapped_frames() {
    let dir = Dir::new("snapped");
    let first = dir.file("first.pcap");
    std::fs::write(&first, ethernet_capture()).unwrap();
    let mut cut = 0;
    for snap in (15..120).step_by(8) {
        let other = dir.file("snapped.pcapng");
        run("editcap", &["-s", &snap.to_string(), text(&first), text(&other)]);
        cut += judge(&other).cut;
    }
    assert!(cut > 100, "{cut} cut frames");
}

#[test]
fn other_link_types() {
    let dir = Dir::new("links");
    for order in ORDERS {
        let mut ng = Ng::new(order);
        let corpus = frames::other_corpus(order);
        for (link_type, _) in &corpus {
            ng.interface(*link_type, 0, &[(9, &[9])]);
        }
        for (i, (_, data)) in corpus.iter().enumerate() {
            ng.frame(i as u32, START_NS + i as u64, data.len() as u32, data, &[]);
        }
        let path = dir.file("links.pcapng");
        std::fs::write(&path, &ng.out).unwrap();
        let judged = judge(&path);
        assert_eq!((judged.frames, judged.cut), (corpus.len(), 0));
        for layer in ["wlan.ra", "wlan.ta", "wlan.seq", "sll.src.eth", "tcp.checksum", "udp.checksum"] {
            assert!(judged.rows_of(layer) > 2, "{layer}: {judged:?}");
        }
    }
}

/// Frame numbers and times, where blocks that are no packets count, and in every resolution.
#[test]
fn numbers_and_times() {
    let dir = Dir::new("times");
    let frame = &frames::ethernet_corpus()[0];
    let len = frame.len() as u32;
    for order in ORDERS {
        let mut ng = Ng::new(order);
        for (n, tsresol) in [0u8, 3, 6, 9, 12, 0x80 | 10, 0x80 | 20, 0x80 | 32].into_iter().enumerate() {
            if n == 4 {
                ng.section(order);
            }
            let offset = order.u64(1_000_000_000);
            ng.interface(1, 0, &[(9, &[tsresol]), (14, &offset)]);
            // Small fractions: tshark 4.0 overflows on picoseconds beyond 18 ms of a second.
            let scale = match tsresol {
                r if r & 0x80 != 0 => 1u64 << (r & 0x7f),
                r => 10u64.pow(r.into()),
            };
            ng.block(0x7777, &[1; 20], &[]);
            ng.block(if n % 2 == 0 { 0xbad } else { 0x4000_0bad }, &[1; 20], &[]);
            ng.frame(n as u32 % 4, 1_000_000 * scale + scale / 100, len, frame, &[]);
            ng.block(9, b"__REALTIME_TIMESTAMP=1700000000000000\n", &[]);
            ng.old(n as u16 % 4, 1_000_001 * scale + scale / 128, len, frame);
        }
        let path = dir.file("times.pcapng");
        std::fs::write(&path, &ng.out).unwrap();
        let logged = run(
            "tshark",
            &[
                "-n",
                "-r",
                text(&path),
                "-T",
                "fields",
                "-e",
                "frame.number",
                "-e",
                "frame.time_epoch",
                "-Y",
                "eth",
            ],
        );
        let mut reader = kpat_capture::Reader::open(&path).unwrap();
        let mut ours = String::new();
        while let Some(f) = reader.next().unwrap() {
            let ns = f.at.0;
            ours += &format!("{}\t{}.{:09}\n", f.number, ns / 1_000_000_000, ns % 1_000_000_000);
        }
        assert_eq!(ours, logged, "{order:?}");
    }
}

/// A tool in a namespace that is ended by SIGINT.
struct Capture(Child);

impl Capture {
    /// Returns when the tool says that it listens.
    fn start(ns: &str, program: &str, args: &[&str], ready: &str) -> Capture {
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
        Capture(child)
    }

    fn end(mut self) {
        // SAFETY: kill takes no memory; the child is ours and not waited for, so its id is not another's.
        unsafe { libc::kill(self.0.id() as i32, libc::SIGINT) };
        self.0.wait().expect("it ends");
    }
}

fn ok(ns: &str, program: &str, args: &[&str]) {
    let out = cable_command(ns, program).args(args).output().expect("ip netns exec runs");
    let reported = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{program} {args:?}: {reported}");
}

#[test]
fn live_traffic() {
    let dir = Dir::new("live");
    let cable = Cable::with_addresses();
    for (ns, dev, here, there) in [(&cable.a, "va", 1, 2), (&cable.b, "vb", 2, 1)] {
        let remote = format!("10.7.0.{there}");
        ip(&[
            "-n", ns, "link", "add", "vx", "type", "vxlan", "id", "7", "remote", &remote, "dstport", "4789",
            "dev", dev,
        ]);
        ip(&["-n", ns, "addr", "add", &format!("10.8.0.{here}/24"), "dev", "vx"]);
        ip(&["-n", ns, "link", "set", "vx", "up"]);
    }
    let (by_dumpcap, by_tcpdump) = (dir.file("dumpcap.pcapng"), dir.file("tcpdump.pcap"));
    let dumpcap = Capture::start(&cable.b, "dumpcap", &["-q", "-i", "vb", "-w", text(&by_dumpcap)], "File:");
    let nano = [
        "-i",
        "va",
        "-U",
        "--immediate-mode",
        "--time-stamp-precision=nano",
        "-Z",
        "root",
        "-w",
        text(&by_tcpdump),
    ];
    let tcpdump = Capture::start(&cable.a, "tcpdump", &nano, "listening on");
    // First, for a capturing tool that is asked to end may not write what it received last.
    cable.send(&frames::ethernet_corpus());
    ok(&cable.a, "ping", &["-q", "-c", "3", "-i", "0.05", "10.7.0.2"]);
    ok(&cable.a, "ping", &["-q", "-c", "3", "-i", "0.05", "fd07::2"]);
    ok(&cable.a, "ping", &["-q", "-c", "2", "-i", "0.05", "-s", "4000", "10.7.0.2"]);
    ok(&cable.a, "ping", &["-q", "-c", "2", "-i", "0.05", "-s", "4000", "fd07::2"]);
    ok(&cable.a, "ping", &["-q", "-c", "3", "-i", "0.05", "10.8.0.2"]);
    for more in [&["-n", "500K"][..], &["-6", "-n", "300K"], &["-u", "-b", "20M", "-n", "100K"]] {
        let mut server = cable_command(&cable.b, "iperf3")
            .args(["-s", "-1", "--forceflush"])
            .stdout(Stdio::piped())
            .spawn()
            .expect("ip netns exec runs");
        let mut reported = BufReader::new(server.stdout.take().expect("piped")).lines();
        reported
            .find(|l| l.as_ref().is_ok_and(|l| l.contains("listening")))
            .expect("iperf3 listens")
            .expect("text");
        std::thread::spawn(move || reported.for_each(drop));
        let to = if more[0] == "-6" { "fd07::2" } else { "10.7.0.2" };
        ok(&cable.a, "iperf3", &[&["-c", to][..], more].concat());
        server.wait().expect("it ends after one client");
    }
    dumpcap.end();
    tcpdump.end();
    for path in [by_dumpcap, by_tcpdump] {
        let judged = judge(&path);
        assert!(judged.frames > 60, "{judged:?}");
        for (layer, least) in [
            ("ip.dst", 30),
            ("ipv6.dst", 10),
            ("arp.dst.proto_ipv4", 2),
            ("tcp.checksum", 20),
            ("udp.checksum", 10),
            ("icmp.seq", 10),
            ("icmpv6.echo.sequence_number", 5),
            ("vlan.id", 3),
        ] {
            assert!(judged.rows_of(layer) >= least, "{}: {layer}: {judged:?}", path.display());
        }
    }
}

#[test]
fn the_judge_is_there() {
    let version = run("tshark", &["--version"]);
    assert!(version.contains("TShark"), "{version}");
    assert!(
        Command::new("capinfos").arg("--version").output().is_ok(),
        "capinfos is missing: run scripts/setup"
    );
}
