//! What was asked for and cannot be, a recording that sees packets and takes none, and packets for which there was no place: all are reported, in
//! words and as JSON. Tracepoints only, as every kernel has them. Needs root; the traffic is in a namespace of its own.

use serde_json::Value;
use std::process::{Command, Output};

struct Netns(String);

impl Netns {
    fn new(name: &str) -> Option<Netns> {
        // SAFETY: geteuid has no preconditions.
        if unsafe { libc::geteuid() } != 0 {
            eprintln!("SKIPPED: recording needs root");
            return None;
        }
        let n = Netns(format!("kern-{name}-{}", std::process::id()));
        for words in [&["netns", "add", &n.0][..], &["-n", &n.0, "link", "set", "lo", "up"]] {
            assert!(Command::new("ip").args(words).status().expect("ip runs").success());
        }
        Some(n)
    }

    /// Records while this namespace pings itself five times.
    fn record(&self, args: &[&str]) -> Output {
        self.record_of(args, &["ping", "-q", "-c", "5", "-i", "0.01", "127.0.0.1"])
    }

    fn record_of(&self, args: &[&str], command: &[&str]) -> Output {
        let file = std::env::temp_dir().join(format!("{}.kbl", self.0));
        let out = Command::new(env!("CARGO_BIN_EXE_kpat"))
            .args([
                "record",
                "-o",
                &file.display().to_string(),
                "--netns",
                &self.0,
                "--mechanism",
                "tracepoint",
            ])
            .args(args)
            .args(["--", "ip", "netns", "exec", &self.0])
            .args(command)
            .output()
            .expect("kpat runs");
        let _ = std::fs::remove_file(file);
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        out
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.0]).status();
    }
}

fn words(o: &Output) -> String {
    String::from_utf8_lossy(&o.stderr).into_owned()
}

/// The last line: ping writes before it.
fn json(o: &Output) -> Value {
    let text = String::from_utf8_lossy(&o.stdout).into_owned();
    let at = text.find("\n{").map_or(0, |at| at + 1);
    serde_json::from_str(&text[at..]).unwrap_or_else(|e| panic!("{e}: {text}"))
}

#[test]
fn a_recording_without_a_packet_reports_what_its_probes_saw() {
    let Some(n) = Netns::new("none") else { return };
    let answer = words(&n.record(&["-f", "udp port 9"]));
    assert!(
        answer.contains("no packet was recorded: no packet that was seen matches the filter"),
        "{answer}"
    );
    assert!(!answer.contains("nothing was lost"), "{answer}");
    let v = json(&n.record(&["-f", "udp port 9", "--json"]));
    assert_eq!(v["packets"], 0);
    // ten echo packets pass at least a point each
    assert!(v["refused_hits"].as_u64().is_some_and(|n| n >= 10), "{v}");
    let v = json(&n.record(&["-f", "icmp", "--json"]));
    assert_eq!(v["packets"], 10, "{v}");
    assert!(words(&n.record(&["-f", "icmp"])).contains("nothing was lost"));
}

#[test]
fn what_tracepoints_cannot_give_is_named() {
    let Some(n) = Netns::new("unmet") else { return };
    let asked = ["-f", "icmp", "--add", "ip_forward", "--add", "no_such_thing", "--add", "net_dev_xmit"];
    let answer = words(&n.record(&asked));
    assert!(answer.contains("not recorded: ip_forward: it takes function probes"), "{answer}");
    assert!(
        answer.contains("not recorded: no_such_thing: this kernel has no such function or tracepoint"),
        "{answer}"
    );
    assert!(!answer.contains("not recorded: net_dev_xmit"), "{answer}");
    let v = json(&n.record(&["-f", "icmp", "--profile", "driver:e1000e", "--json"]));
    assert_eq!(v["not_recorded"][0]["name"], "functions of driver:e1000e", "{v}");
    assert!(v["build"].as_str().is_some_and(|b| b.starts_with("direct") || b.starts_with("read")), "{v}");
}

/// 300 datagrams wait at a socket that nobody reads, so none is freed; the table has 64 places.
#[test]
fn a_packet_without_a_place_is_counted_once() {
    const SENT: u64 = 300;
    const SEND: &str = "import socket\n\
        r = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); r.setsockopt(socket.SOL_SOCKET, 33, 4 << 20); r.bind(('127.0.0.1', 9000))\n\
        s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n\
        for i in range(300): s.sendto(bytes(100), ('127.0.0.1', 9000))\n\
        print(open('/proc/net/snmp').read())";
    let Some(n) = Netns::new("full") else { return };
    let out = n.record_of(&["-f", "udp port 9000", "--packets", "64", "--json"], &["python3", "-c", SEND]);
    let v = json(&out);
    let lost = v["losses"].as_array().expect("losses").iter().filter(|l| l["cause"] == "packet-table-full");
    let lost: u64 = lost.filter_map(|l| l["count"].as_u64()).sum();
    let logged = v["packets"].as_u64().expect("packets");
    assert!(logged >= 32, "{v}");
    // each passes at least four points, which would be 900 and more; two buffers that share a slot count again
    assert!((SENT..SENT + 15).contains(&(logged + lost)), "{logged} in the log and {lost} lost of {SENT}");
}
