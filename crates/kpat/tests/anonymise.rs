//! A recording with `--anonymise` is searched, as it lies on the disk and decoded, for everything that was on the wire and
//! on the command line. The same recording without it has all that, so the search can find. Needs root.

#![allow(clippy::unwrap_used, reason = "a test")]

use kpat_store::tables::{ALL, ColType, Identity, identity};
use serde_json::Value;
use std::net::Ipv6Addr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output};
use std::time::{Duration, Instant};

const KPAT: &str = env!("CARGO_BIN_EXE_kpat");
const OWN: &str = "10.213.77.1";
const PEER: &str = "10.213.77.2";
const OWN6: &str = "2001:db8:77::1";
const PEER6: &str = "2001:db8:77::2";
const MAC: &str = "02:5e:c7:e7:00:01";
const PEER_MAC: &str = "02:5e:c7:e7:00:02";
/// Named by the address that it came with, as udev names some.
const DEVICE: &str = "enx025ec7e70077";
/// A thread that works for it, as the kernel cuts such names.
const THREAD: &str = "napi/enx025ec7e";
const ROUTED: &str = "10.214.0.0";
/// In the data of each datagram, and a word of the recorded command.
const PAYLOAD: &str = "host.secret-name.example";
const PASSWORD: &str = "hunter2-of-the-child";

/// Where a library lies that a process has mapped.
const HOME: &str = "alice-secret";

/// Two namespaces and a cable, and a process with a library in somebody's folder; gone with it, and its folder.
struct Net {
    own: String,
    peer: String,
    dir: PathBuf,
    process: Child,
}

/// It sleeps, with the C library of another folder, in a namespace that only a link in that folder names.
fn with_own_library(home: &Path) -> Child {
    std::fs::create_dir_all(home).unwrap();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let libc = maps.lines().filter_map(|l| l.split_whitespace().nth(5)).find(|f| f.ends_with("/libc.so.6"));
    std::fs::copy(libc.unwrap(), home.join("libc.so.6")).unwrap();
    let sleep = ["-n", "sleep", "600"];
    let process = Command::new("unshare").args(sleep).env("LD_LIBRARY_PATH", home).spawn().unwrap();
    let of = |pid: &str| std::fs::metadata(format!("/proc/{pid}/ns/net")).map(|m| m.ino());
    let (id, until) = (process.id().to_string(), Instant::now() + Duration::from_secs(10));
    while of(&id).unwrap() == of("self").unwrap() {
        assert!(Instant::now() < until, "unshare has made no namespace");
        std::thread::sleep(Duration::from_millis(5));
    }
    std::os::unix::fs::symlink(format!("/proc/{id}/ns/net"), home.join("netns")).unwrap();
    process
}

fn run(words: &[&str]) {
    let done = Command::new(words[0]).args(&words[1..]).output().unwrap();
    assert!(done.status.success(), "{words:?}: {}", String::from_utf8_lossy(&done.stderr));
}

impl Net {
    fn new() -> Option<Net> {
        // SAFETY: geteuid has no preconditions.
        if unsafe { libc::geteuid() } != 0 {
            println!("SKIPPED: recording needs root");
            return None;
        }
        let id = std::process::id();
        let dir = std::env::temp_dir().join(format!("kpat-anonymise-{id}"));
        std::fs::create_dir_all(&dir).unwrap();
        let process = with_own_library(&dir.join(HOME));
        let net = Net { own: format!("anon-own-{id}"), peer: format!("anon-peer-{id}"), dir, process };
        let (own, peer) = (net.own.as_str(), net.peer.as_str());
        run(&["ip", "netns", "add", own]);
        run(&["ip", "netns", "add", peer]);
        run(&[
            "ip", "link", "add", DEVICE, "address", MAC, "netns", own, "type", "veth", "peer", "name", "v1",
            "address", PEER_MAC, "netns", peer,
        ]);
        for (netns, device, v4, v6) in [(own, DEVICE, OWN, OWN6), (peer, "v1", PEER, PEER6)] {
            run(&["ip", "-n", netns, "addr", "add", &format!("{v4}/24"), "dev", device]);
            run(&["ip", "-n", netns, "addr", "add", &format!("{v6}/64"), "dev", device, "nodad"]);
            run(&["ip", "-n", netns, "link", "set", device, "up"]);
        }
        Some(net)
    }

    /// Records while datagrams go to the peer and routes, neighbours and addresses change.
    fn record(&self, name: &str, args: &[&str]) -> PathBuf {
        let log = self.dir.join(name);
        let traffic = format!(
            "ip link set {DEVICE} mtu 1400; ip link set {DEVICE} address {MAC}; ip addr add 10.213.78.1/24 dev {DEVICE}
             ip route add {ROUTED}/16 via {PEER}; ip -6 route add 2001:db8:78::/64 via {PEER6}
             ip neigh replace {PEER} lladdr {PEER_MAC} dev {DEVICE}
             ip neigh replace {PEER6} lladdr {PEER_MAC} dev {DEVICE}
             printf {THREAD} > /proc/$$/comm
             for i in 1 2 3; do for to in {PEER} {PEER6}; do
               echo {PAYLOAD} > /dev/udp/$to/5353 || true
             done; done
             ip addr del 10.213.78.1/24 dev {DEVICE}; ip route del {ROUTED}/16; ip -6 route del 2001:db8:78::/64"
        );
        let filter = format!("udp and (host {PEER} or host {PEER6})");
        let done = Command::new(KPAT)
            .args([
                "record",
                "-p",
                "app,programs",
                "--netns",
                &self.own,
                "--netns",
                self.dir.join(HOME).join("netns").to_str().unwrap(),
                "-o",
                log.to_str().unwrap(),
                "-f",
                &filter,
            ])
            .args(args)
            .args(["--", "ip", "netns", "exec", &self.own, "bash", "-c", &traffic, PASSWORD])
            .output()
            .unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        log
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        for n in [&self.own, &self.peer] {
            let _ = Command::new("ip").args(["netns", "del", n]).output();
        }
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

fn kpat(args: &[&str]) -> Output {
    let done = Command::new(KPAT).args(args).output().unwrap();
    assert!(done.status.success(), "{args:?}: {}", String::from_utf8_lossy(&done.stderr));
    done
}

fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap().trim().to_owned()
}

/// Everything that may not be found, as text and as the bytes of a header.
fn secrets() -> Vec<(String, Vec<u8>)> {
    let mut all: Vec<(String, Vec<u8>)> = Vec::new();
    for text in [
        OWN,
        PEER,
        OWN6,
        PEER6,
        "10.213.7",
        "10.214.",
        "2001:db8:7",
        MAC,
        PEER_MAC,
        DEVICE,
        THREAD,
        HOME,
        PAYLOAD,
        PASSWORD,
    ] {
        all.push((text.into(), text.into()));
    }
    let v4 = |a: &str| a.parse::<std::net::Ipv4Addr>().unwrap().octets().to_vec();
    all.extend([OWN, PEER].map(|a| (format!("bytes of {a}"), v4(a))));
    all.extend(
        [OWN6, PEER6].map(|a| (format!("bytes of {a}"), a.parse::<Ipv6Addr>().unwrap().octets().to_vec())),
    );
    let mac = |m: &str| m.split(':').map(|p| u8::from_str_radix(p, 16).unwrap()).collect::<Vec<u8>>();
    all.extend([MAC, PEER_MAC].map(|m| (format!("bytes of {m}"), mac(m))));
    // Link-local addresses are made of link addresses.
    all.push(("fe80::5e:c7ff:fee7".into(), b"fe80::5e:c7ff:fee7".to_vec()));
    all.push((boot_id(), boot_id().into_bytes()));
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    // Written close and wide.
    for space in ["", " "] {
        let host = format!("\"hostname\":{space}\"{}\"", host.trim());
        all.push((host.clone(), host.into_bytes()));
    }
    all
}

/// The log as it lies there; then every table, every answer for people and programs.
fn all_of(log: &Path) -> Vec<(String, Vec<u8>)> {
    let tables = log.with_extension("kpat");
    kpat(&["integrate", log.to_str().unwrap(), "-o", tables.to_str().unwrap()]);
    let dir = tables.to_str().unwrap();
    let mut out = vec![("the log".to_owned(), std::fs::read(log).unwrap())];
    // What it says of itself, which is packed.
    let meta = format!("{:?}", kpat_klog::Log::open(log).unwrap().meta());
    out.push(("what the log says of itself".into(), meta.into_bytes()));
    out.push(("manifest".into(), std::fs::read(tables.join("manifest.json")).unwrap()));
    for table in ALL {
        let name = table.name;
        let rows = kpat(&["sql", dir, &format!("select * from {name}"), "--json"]).stdout;
        out.push((format!("table {name}"), rows));
    }
    for args in
        [&["info", log.to_str().unwrap(), "--json"][..], &["info", dir], &["app", dir], &["events", dir]]
    {
        out.push((args[0].into(), kpat(args).stdout));
    }
    out
}

fn found(log: &Path) -> Vec<String> {
    let all = all_of(log);
    let mut out = Vec::new();
    for (what, bytes) in secrets() {
        for (place, text) in &all {
            if text.windows(bytes.len()).any(|w| w == bytes) {
                out.push(format!("{what} in {place}"));
            }
        }
    }
    out
}

#[test]
fn nothing_that_identifies_stays() {
    let Some(net) = Net::new() else { return };
    let plain = net.record("plain.kbl", &["--keep-command"]);
    let there = found(&plain);
    for what in [
        OWN,
        PEER,
        PEER6,
        MAC,
        PEER_MAC,
        DEVICE,
        THREAD,
        HOME,
        "10.214.",
        &boot_id(),
        "\"hostname\"",
        PASSWORD,
    ] {
        assert!(there.iter().any(|f| f.starts_with(what)), "the search finds {what}: {there:?}");
    }
    // Payload is in no log; the words of the recorded command are where they were asked for alone.
    let without = net.record("without.kbl", &[]);
    assert!(!found(&without).iter().any(|f| f.starts_with(PASSWORD) || f.starts_with(PAYLOAD)));
    for (name, how) in [("hashed.kbl", "--anonymise"), ("dropped.kbl", "--anonymise=drop")] {
        let log = net.record(name, &[how]);
        assert_eq!(found(&log), Vec::<String>::new(), "{how}");
        let dir = log.with_extension("kpat");
        let mut seen = 0;
        for table in ALL {
            for c in table.columns.iter().filter(|c| c.ty == ColType::Text) {
                if identity(table.name, c.name) != Some(Identity::Address) {
                    continue;
                }
                let ask = format!(
                    "select distinct {} as a from {} where a is not null and a <> ''",
                    c.name, table.name
                );
                let rows = kpat(&["sql", dir.to_str().unwrap(), &ask, "--json"]).stdout;
                let rows: Value = serde_json::from_slice(&rows).unwrap();
                let texts = text_of(&rows);
                for text in &texts {
                    let hash = text.strip_prefix("h:").is_some_and(|h| h.len() == 32);
                    assert!(hash || text == "-", "{how}: {}.{}: {text}", table.name, c.name);
                }
                seen += texts.len();
            }
        }
        assert!(seen > usize::from(how == "--anonymise"), "{how}: addresses were recorded and treated");
    }
    // A capture of the wire has them as they are.
    let refused = Command::new(KPAT)
        .args(["record", "-p", "app", "--anonymise", "--sniff", "lo", "-o"])
        .arg(net.dir.join("no.kbl"))
        .output()
        .unwrap();
    assert_eq!(refused.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("--sniff captures addresses"));
}

/// Spins with the frame pointer at these words, as a program that keeps none in it may: the kernel takes the second for an address to return to.
#[cfg(target_arch = "x86_64")]
fn spin_over(words: &[u64; 2], until: Instant) {
    while Instant::now() < until {
        // SAFETY: the register is as before behind it, and nothing in between needs a stack.
        unsafe {
            std::arch::asm!("push rbp", "mov rbp, {words}", "2:", "dec {n}", "jnz 2b", "pop rbp",
                words = in(reg) words.as_ptr(), n = inout(reg) 20_000_000_u64 => _);
        }
    }
}

/// Stacks are words of a program's memory as far as its frame pointer leads there.
#[cfg(target_arch = "x86_64")]
#[test]
fn no_word_of_a_programs_memory_is_in_a_stack() {
    // SAFETY: geteuid has no preconditions.
    if unsafe { libc::geteuid() } != 0 {
        println!("SKIPPED: recording needs root");
        return;
    }
    let dir = std::env::temp_dir().join(format!("kpat-words-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    // Of six characters it may be an address of user space.
    let words = ["hunter2!", "passwd"].map(|w| {
        let mut bytes = [0; 8];
        bytes[..w.len()].copy_from_slice(w.as_bytes());
        u64::from_le_bytes(bytes)
    });
    let ready = dir.join("ready");
    let mut record = Command::new(KPAT)
        .args(["record", "-p", "profile", "--rate", "999", "--for", "3s", "-o"])
        .arg(dir.join("x.kbl"))
        .arg("--ready-file")
        .arg(&ready)
        .spawn()
        .unwrap();
    let until = Instant::now() + Duration::from_secs(60);
    while !ready.exists() {
        assert!(Instant::now() < until && record.try_wait().unwrap().is_none(), "it records");
        std::thread::sleep(Duration::from_millis(20));
    }
    for word in words {
        spin_over(&[0, word], Instant::now() + Duration::from_millis(1000));
    }
    assert!(record.wait().unwrap().success());
    let (mut own, mut found) = (0, Vec::new());
    for (_, r) in kpat_klog::Log::open(&dir.join("x.kbl")).unwrap().all_merged() {
        let kpat_model::Record::Stack(s) = r else { continue };
        own += usize::from(s.process == std::process::id());
        found.extend(s.addresses().filter(|a| words.contains(a)));
    }
    std::fs::remove_dir_all(&dir).unwrap();
    assert!(own > 0, "stacks of this process were recorded");
    assert!(found.is_empty(), "{found:x?}");
}

/// Every string of an answer.
fn text_of(v: &Value) -> Vec<String> {
    match v {
        Value::Array(all) => all.iter().flat_map(text_of).collect(),
        Value::Object(all) => {
            all.iter().filter(|(k, _)| *k != "columns").flat_map(|(_, v)| text_of(v)).collect()
        }
        Value::String(s) => vec![s.clone()],
        _ => Vec::new(),
    }
}
