//! kpat within Wireshark: what the dissector shows is what kpat says, read by tshark; what extcap asks is answered; a live
//! stream of real packets has the kernel's path.

#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "../../formats/tests/judge/mod.rs"]
mod judge;
#[path = "../../formats/tests/small/mod.rs"]
mod small;

use kpat_query::{FrameFilter, FrameWithPackets, PacketFilter, PacketSort};
use small::Small;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::{Command, Output, Stdio};

const KPAT: &str = env!("CARGO_BIN_EXE_kpat");

fn kpat(home: &Path, args: &[&str]) -> Output {
    Command::new(KPAT).args(args).current_dir(home).env("HOME", home).output().unwrap()
}

fn words(o: &Output) -> String {
    String::from_utf8_lossy(&o.stderr).into_owned()
}

/// Lines that tshark prints, with the dissector installed in `home`; `None`: no tshark.
fn tshark(home: &Path, args: &[&str]) -> Option<Vec<String>> {
    if Command::new("tshark").arg("--version").output().is_err() {
        println!("skipped: tshark as a judge: it is not installed");
        return None;
    }
    let done = Command::new("tshark").args(args).env("HOME", home).current_dir(home).output().unwrap();
    let text = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(done.status.success() && !text.contains("Lua"), "{args:?}: {text}");
    Some(String::from_utf8_lossy(&done.stdout).lines().map(str::to_owned).collect())
}

fn exported(small: &Small) -> &Path {
    let home = &small.dir.0;
    let done = kpat(home, &["export", "x.kpat", "--to", "pcapng", "-o", "out.pcapng"]);
    assert!(done.status.success(), "{}", words(&done));
    home
}

#[test]
fn the_dissector_says_what_kpat_says() {
    let small = small::make("dissector");
    let home = exported(&small);
    if tshark(home, &["-v"]).is_none() {
        return;
    }
    let installed = kpat(home, &["wireshark", "install"]);
    assert!(installed.status.success(), "{}", words(&installed));
    // Frames of each packet, and packets of each function, as the tables have them.
    let mut frames: BTreeMap<i64, usize> = BTreeMap::new();
    small
        .store
        .each_frame(&FrameFilter::default(), &mut |f: FrameWithPackets| -> Result<bool, kpat_query::Error> {
            f.packets.iter().for_each(|p| *frames.entry(p.association.packet_id).or_default() += 1);
            Ok(true)
        })
        .unwrap();
    let packets = small.store.packets(&PacketFilter::default(), PacketSort::Time, false, 0).unwrap().rows;
    let count = |filter: &str| tshark(home, &["-r", "out.pcapng", "-Y", filter]).unwrap().len();
    let of = |ids: BTreeSet<i64>| ids.iter().map(|id| frames[id]).sum::<usize>();
    for name in ["napi_gro_receive", "ip_forward", "ip_list_rcv", "dev_hard_start_xmit", "ip_rcv"] {
        let ids: BTreeSet<i64> = packets
            .iter()
            .filter(|p| {
                small.store.calls_of(p).unwrap().iter().any(|c| small.store.function_name(c.func_id) == name)
            })
            .map(|p| p.packet_id)
            .collect();
        assert!(!ids.is_empty(), "{name}");
        assert_eq!(count(&format!("kpat.seen == \"wire\" && kpat.func == \"{name}\"")), of(ids), "{name}");
    }
    let longest = |ns: i64| packets.iter().filter(|p| p.path_ns > ns).map(|p| p.packet_id).collect();
    for ns in [0, 30_000, 30_040, 40_000] {
        let seconds = ns as f64 / 1e9;
        assert_eq!(
            count(&format!("kpat.seen == \"wire\" && kpat.path_time > {seconds:.9}")),
            of(longest(ns)),
            "{ns}"
        );
    }
    let dropped = packets.iter().filter(|p| p.verdict == 3).map(|p| p.packet_id).collect();
    assert_eq!(count("kpat.seen == \"wire\" && kpat.drop == \"NOT_SPECIFIED\""), of(dropped));
    assert_eq!(count("kpat.confidence >= 60 && kpat.bound < 0.001"), 2 * small::PACKETS as usize);
    assert_eq!(count("kpat.packet == 29"), 4);
    assert_eq!(count("kpat.seen == \"kernel\" && kpat.device == \"lan\""), small::PACKETS as usize);
    // Their headers by fields of our own, the ones that changed among them.
    for (filter, rows) in [
        ("kpat.held.src == 10.1.0.2 && kpat.held.dport == 53 && kpat.held.proto == 17", 2),
        ("kpat.held.ttl == 64 && kpat.held.eth_dst == 02:00:00:00:00:02", 1),
        ("kpat.held.ttl == 63 && kpat.held.eth_dst == 02:00:00:00:00:04", 1),
        ("kpat.held && (udp || _ws.malformed || _ws.lua.error)", 0),
    ] {
        assert_eq!(count(filter), rows * small::PACKETS as usize, "{filter}");
    }
    // Below the packet, nested.
    let tree = tshark(home, &["-r", "out.pcapng", "-Y", "kpat.packet == 1 && kpat.seen == \"wire\"", "-V"])
        .unwrap()
        .join("\n");
    let at = |what: &str| tree.lines().find(|l| l.contains(what)).unwrap_or_else(|| panic!("{what}: {tree}"));
    let depth = |what: &str| at(what).len() - at(what).trim_start().len();
    assert!(
        depth("[napi_gro_receive") < depth("[ip_rcv") && depth("[ip_rcv") < depth("[ip_forward"),
        "{tree}"
    );
    let columns = [
        "-r",
        "out.pcapng",
        "-2",
        "-R",
        "kpat.packet == 29 && kpat.seen == \"wire\"",
        "-T",
        "fields",
        "-e",
        "kpat.what",
        "-e",
        "kpat.func.time",
    ];
    let row = &tshark(home, &columns).unwrap()[0];
    assert!(row.starts_with("UDP 10.1.0.2:1029 → 10.2.0.1:53\t3.0029e-05,2.8e-05,"), "{row}");
    let removed = kpat(home, &["wireshark", "install", "--remove"]);
    assert!(removed.status.success() && words(&removed).contains("removed"), "{}", words(&removed));
    assert!(
        !Command::new("find").arg(home).args(["-name", "kpat.lua"]).output().unwrap().stdout.contains(&b'k')
    );
}

/// Comments that anybody may have written.
#[test]
fn hostile_comments_are_only_comments() {
    let small = small::make("dissector-hostile");
    let home = exported(&small);
    if tshark(home, &["-v"]).is_none() {
        return;
    }
    assert!(kpat(home, &["wireshark", "install"]).status.success());
    let bytes = std::fs::read(home.join("out.pcapng")).unwrap();
    let good = tshark(home, &["-r", "out.pcapng", "-Y", "kpat.packet"]).unwrap().len();
    // Same length, so that the file stays whole: wrong types, no end, no colon, too deep, numbers out of range.
    let from = b"\"seen\":\"wire\"";
    for to in [
        &b"\"seen\":[[[[[["[..],
        b"\"seen\":1e9999",
        b"\"seen\":{},,,,",
        b"\"seen\" \"wire\"",
        b"\"seen\":\"wire\\",
        b"\"match\":-1e99",
        b"{{{{{{{{{{{{{",
    ] {
        let mut changed = bytes.clone();
        let mut at = 0;
        while let Some(i) = changed[at..].windows(from.len()).position(|w| w == from) {
            changed[at + i..at + i + from.len()].copy_from_slice(&to[..from.len()]);
            at += i + from.len();
        }
        std::fs::write(home.join("odd.pcapng"), changed).unwrap();
        let all = tshark(home, &["-r", "odd.pcapng", "-V"]).unwrap().join("\n");
        assert!(!all.contains("Lua Error") && !all.contains("kpat.lua"), "{}", String::from_utf8_lossy(to));
        let still = tshark(home, &["-r", "odd.pcapng", "-Y", "kpat.packet"]).unwrap().len();
        assert!(still <= good);
    }
}

#[test]
fn extcap_is_answered() {
    let home = std::env::temp_dir();
    let text = |args: &[&str]| {
        let done = kpat(&home, args);
        assert!(done.status.success(), "{args:?}: {}", words(&done));
        String::from_utf8(done.stdout).unwrap()
    };
    let interfaces = text(&["--extcap-interfaces", "--extcap-version=4.0"]);
    for name in ["kpat", "kpat-ssh", "kpat-replay"] {
        assert!(interfaces.contains(&format!("interface {{value={name}}}")), "{interfaces}");
        assert!(text(&["--extcap-dlts", "--extcap-interface", name]).starts_with("dlt {"));
        let options = text(&["--extcap-config", "--extcap-interface", name]);
        assert!(options.starts_with("arg {number=0}"), "{options}");
    }
    assert!(text(&["--extcap-config", "--extcap-interface", "kpat"]).contains("{value=lo}"));
    let none = kpat(&home, &["--extcap-config", "--extcap-interface", "eth0"]);
    assert_eq!(none.status.code(), Some(1));
    let none = kpat(&home, &["--capture", "--extcap-interface", "kpat", "--fifo", "/dev/null"]);
    assert!(words(&none).contains("choose an interface"), "{}", words(&none));
}

/// Two namespaces with a cable between them; they go away.
struct Cable(String);

impl Cable {
    fn new() -> Cable {
        let tag = format!("kw{}", std::process::id());
        let cable = Cable(tag.clone());
        let (a, b) = (format!("{tag}a"), format!("{tag}b"));
        let ip = |args: &[&str]| {
            let done = Command::new("ip").args(args).output().unwrap();
            assert!(done.status.success(), "ip {args:?}: {}", words(&done));
        };
        ip(&["netns", "add", &a]);
        ip(&["netns", "add", &b]);
        ip(&["link", "add", "v0", "netns", &a, "type", "veth", "peer", "name", "v1", "netns", &b]);
        for (netns, device, address) in [(&a, "v0", "10.93.1.1/24"), (&b, "v1", "10.93.1.2/24")] {
            ip(&["-n", netns, "addr", "add", address, "dev", device]);
            ip(&["-n", netns, "link", "set", device, "up"]);
        }
        cable
    }
}

impl Drop for Cable {
    fn drop(&mut self) {
        for end in ["a", "b"] {
            let _ = Command::new("ip").args(["netns", "del", &format!("{}{end}", self.0)]).output();
        }
    }
}

/// Through a pipe, as Wireshark asks for it; the packets are real.
#[test]
fn a_live_stream_has_the_kernels_path() {
    let home = small::world::Dir::new("live");
    let home = &home.0;
    if tshark(home, &["-v"]).is_none() {
        return;
    }
    assert!(kpat(home, &["wireshark", "install"]).status.success());
    let cable = Cable::new();
    let (a, b) = (format!("{}a", cable.0), format!("{}b", cable.0));
    let fifo = home.join("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let mut ping = Command::new("ip")
        .args(["netns", "exec", &a, "ping", "-n", "-i", "0.02", "-w", "20", "10.93.1.2"])
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let capture = Command::new(KPAT)
        .args(["--capture", "--extcap-interface", "kpat", "--fifo", fifo.to_str().unwrap()])
        .args([
            "--interface",
            &format!("{b}:v1"),
            "--mechanism",
            "tracepoint",
            "--filter",
            "icmp",
            "--duration",
            "4s",
        ])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let pid = capture.id();
    // A pipe is read while it is written.
    let stream = std::fs::read(&fifo).unwrap();
    let done = capture.wait_with_output().unwrap();
    let _ = ping.kill();
    let _ = ping.wait();
    assert!(done.status.success(), "{}", words(&done));
    std::fs::write(home.join("live.pcapng"), stream).unwrap();
    let count = |filter: &str| tshark(home, &["-r", "live.pcapng", "-Y", filter]).unwrap().len();
    let echoes = count("icmp && frame.interface_name == \"v1\"");
    assert!(echoes >= 4, "{echoes} echoes: {}", words(&done));
    let logged = count("icmp && frame.interface_name == \"v1\" && kpat.packet && kpat.func contains \"net\"");
    assert_eq!(logged, echoes, "each has its path");
    // Of 50 echoes a second none is missing between the first and the last, and none is there twice.
    let requests = "icmp.type == 8 && frame.interface_name == \"v1\"";
    let seqs =
        tshark(home, &["-r", "live.pcapng", "-Y", requests, "-T", "fields", "-e", "icmp.seq"]).unwrap();
    let seqs: Vec<u32> = seqs.iter().map(|s| s.parse().unwrap()).collect();
    assert!(seqs.len() > 50 && seqs.windows(2).all(|w| w[1] == w[0] + 1), "{seqs:?}");
    assert!(count("kpat.seen == \"kernel\" && kpat.device contains \"v1\"") >= echoes);
    // The rows are in order of time, as far as the sniffer's are: two CPUs stamp a frame and then put it into the ring.
    let times = tshark(home, &["-r", "live.pcapng", "-T", "fields", "-e", "frame.time_epoch"]).unwrap();
    let times: Vec<f64> = times.iter().map(|t| t.parse().unwrap()).collect();
    assert!(times.windows(2).all(|w| w[1] > w[0] - 0.001), "{times:?}");
    let folders = std::fs::read_dir(std::env::temp_dir()).unwrap();
    let ours = format!("kpat-live-{pid}-");
    assert!(
        !folders.flatten().any(|f| f.file_name().to_string_lossy().starts_with(&ours)),
        "its files are gone"
    );
}
