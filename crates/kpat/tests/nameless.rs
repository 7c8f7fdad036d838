//! Network namespaces that have no name under /run/netns are named, followed and let go. Truth comes from outside: lsns, nsenter's
//! own `ip`, what ping counts, and the far end of a cable, which the kernel takes away once nobody holds its namespace. Needs root.

mod place;

use place::{Place, ip, json, kpat, record, until, words};
use serde_json::Value;
use std::process::{Child, Command, Stdio};

const KPAT: &str = env!("CARGO_BIN_EXE_kpat");

/// A process in a network namespace of its own, ended whatever happens.
struct Unshared(Child);

impl Unshared {
    fn new(script: &str) -> Unshared {
        let mut c = Command::new("unshare");
        let child = c.args(["-n", "sh", "-c", script]).stdin(Stdio::piped()).spawn().expect("unshare runs");
        let u = Unshared(child);
        until("a namespace of its own", || u.inum() != inum("self"));
        u
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }

    fn inum(&self) -> Option<u64> {
        inum(&self.pid().to_string())
    }

    fn comm(&self) -> String {
        std::fs::read_to_string(format!("/proc/{}/comm", self.pid())).expect("it lives").trim().to_owned()
    }

    /// In its namespace, without kpat.
    fn enter(&self, words: &str) -> String {
        let mut c = Command::new("nsenter");
        let out = c.args(["-t", &self.pid().to_string(), "-n"]).args(words.split(' ')).output();
        let out = out.expect("nsenter runs");
        assert!(out.status.success(), "{words}: {}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).expect("text")
    }
}

impl Drop for Unshared {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn inum(pid: &str) -> Option<u64> {
    let link = std::fs::read_link(format!("/proc/{pid}/ns/net")).ok()?.display().to_string();
    link.strip_prefix("net:[")?.strip_suffix(']')?.parse().ok()
}

/// The process that stands for a namespace, as util-linux finds it: that with the lowest number.
fn lsns(inum: u64) -> (u32, String) {
    let out = Command::new("lsns").args(["-t", "net", "-n", "-o", "NS,PID", "-r"]).output().expect("lsns");
    let text = String::from_utf8(out.stdout).expect("text");
    let pid = text.lines().find_map(|l| l.strip_prefix(&format!("{inum} "))).expect("listed");
    let pid = pid.trim().parse().expect("a number");
    (pid, std::fs::read_to_string(format!("/proc/{pid}/comm")).expect("it lives").trim().to_owned())
}

/// Those of the namespace that has this number, and this name: the number may have been another's before, then it has one of its own.
fn devices(info: &Value, netns: u64, name: &str) -> Vec<(u64, String, String)> {
    const FIRST: u64 = 0xe000_0000;
    let is = |d: &&Value| {
        d["netns_name"] == name && (d["netns"] == netns || d["netns"].as_u64().is_some_and(|n| n < FIRST))
    };
    let all = info["devices"].as_array().expect("devices").iter().filter(is);
    let text = |v: &Value| v.as_str().expect("text").to_owned();
    let mut out: Vec<_> = all
        .map(|d| (d["ifindex"].as_u64().expect("a number"), text(&d["name"]), text(&d["netns_name"])))
        .collect();
    out.sort();
    out
}

/// A recorder of all namespaces, which is ready, and its log.
fn recording(p: &Place, filter: &str) -> (String, Unshared) {
    let (file, ready) = (p.path("x.kbl"), p.path("ready"));
    let mut c = Command::new(KPAT);
    c.args(["record", "--mechanism", "tracepoint", "-o", &file, "-f", filter, "--ready-file", &ready]);
    let r = Unshared(c.stderr(Stdio::null()).spawn().expect("kpat runs"));
    until("ready", || std::fs::metadata(&ready).is_ok());
    (file, r)
}

/// Tests run beside each other, and all ping: these are of one alone.
const OWN: &str = "icmp and greater 900";

#[test]
fn namespaces_of_processes_are_named_before_and_while_it_is_recorded() {
    let Some(p) = Place::new("nameless") else { return };
    let there = Unshared::new("ip link set lo up; ip link add c0 type veth peer name c1; read x; exit 0");
    until("its cable", || there.enter("ip -o link").contains(" c0@"));
    let before = there.inum().expect("a namespace");
    let (file, mut r) = recording(&p, OWN);

    // One that comes, and what it does; its packets are what kpat notices it by.
    let mut came = Unshared::new("ip link set lo up; read x; exit 0");
    until("lo", || came.enter("ip -o link").contains("LOWER_UP"));
    let after = came.inum().expect("a namespace");
    assert!(came.enter("ping -qc 3 -i 0.2 -s 900 127.0.0.1").contains("3 received"));
    came.enter("ip link add d0 type veth peer name d1");
    let indexes: Vec<String> = came.enter("ip -o link").lines().map(str::to_owned).collect();
    let (expected, named) = ((there.pid(), there.comm()), (came.pid(), came.comm()));
    assert_eq!((lsns(before), lsns(after)), (expected.clone(), named.clone()));
    // It ends of itself; then a cable into it goes, too, though kpat watched it.
    let far = format!("f{}", p.name.rsplit('-').next().expect("a number"));
    assert!(ip(&format!("link add {far} type veth peer name n{far}")));
    assert!(ip(&format!("link set n{far} netns {}", came.pid())));
    drop(came.0.stdin.take());
    let _ = came.0.wait();
    let sys = format!("/sys/class/net/{far}");
    until("the cable goes with its namespace", || std::fs::metadata(&sys).is_err());
    // SAFETY: a signal to a process that this test started.
    unsafe { libc::kill(r.pid() as libc::pid_t, libc::SIGINT) };
    assert!(r.0.wait().expect("ended").success());

    let info = json(&["info", &file, "--json"]);
    let name = |(pid, comm): &(u32, String)| format!("pid {pid} ({comm})");
    let (name, name_after) = (name(&expected), name(&named));
    let has = |i, n: &str| (i, n.to_owned(), name.clone());
    let found = devices(&info, before, &name);
    let (c0, c1) = (found.iter().find(|d| d.1 == "c0"), found.iter().find(|d| d.1 == "c1"));
    assert!(found.contains(&has(1, "lo")) && c0.is_some() && c1.is_some(), "{found:?}");
    let found = devices(&info, after, &name_after);
    for (ifindex, device, called) in &found {
        let line = format!("{ifindex}: {device}");
        let of_it = device.starts_with('n') || indexes.iter().any(|l| l.starts_with(&line));
        assert!(of_it && *called == name_after, "{found:?} {indexes:?}");
    }
    for device in ["lo", "d0", "d1", &format!("n{far}")] {
        assert!(found.iter().any(|d| d.1 == device), "{device} {found:?}");
    }
    // Other tests' namespaces may have come and gone too fast, and the kernel may have run no programs for some of what they did.
    let mut lost = info["losses"].as_array().expect("losses").iter();
    assert!(lost.all(|l| l["cause"] == "namespace-unread" || l["cause"] == "not-run"), "{info}");

    let log = p.path("x.kpat");
    assert!(kpat(&["integrate", &file, "-o", &log]).status.success());
    let events = String::from_utf8(kpat(&["events", &log, "--limit", "0"]).stdout).expect("text");
    let line = |what: &str| events.lines().any(|l| l.contains(what));
    assert!(line(&format!("namespace          {name_after} (")), "{events}");
    assert!(line(&format!("{name_after} removed")), "{events}");
    // On a busy machine the namespace may be found only when its device is there already.
    assert!(line("d0 down (new)") || line("d0 down (found)"), "{events}");
    let packet = String::from_utf8(kpat(&["packet", &log, "1"]).stdout).expect("text");
    assert!(packet.contains(&name_after), "{packet}");
}

/// The kernel gives a number out again as soon as it is free. Which packet is whose is known by its length.
#[test]
fn a_number_that_was_given_out_again_is_another_namespaces() {
    let Some(p) = Place::new("again") else { return };
    let (file, mut r) = recording(&p, "icmp and greater 1200");
    let mut of_length = std::collections::BTreeMap::new();
    for n in 0..10 {
        let mut one = Unshared::new("ip link set lo up; read x; exit 0");
        until("lo", || one.enter("ip -o link").contains("LOWER_UP"));
        let bytes = 1200 + n;
        assert!(one.enter(&format!("ping -qc 2 -i 0.05 -s {bytes} 127.0.0.1")).contains("2 received"));
        std::thread::sleep(std::time::Duration::from_millis(300));
        of_length.insert(
            bytes + 28,
            (one.inum().expect("a number"), format!("pid {} ({})", one.pid(), one.comm())),
        );
        drop(one.0.stdin.take());
        let _ = one.0.wait();
    }
    // SAFETY: a signal to a process that this test started.
    unsafe { libc::kill(r.pid() as libc::pid_t, libc::SIGINT) };
    assert!(r.0.wait().expect("ended").success());
    let log = p.path("x.kpat");
    assert!(kpat(&["integrate", &file, "-o", &log]).status.success());

    let again =
        of_length.len() - of_length.values().map(|o| o.0).collect::<std::collections::BTreeSet<_>>().len();
    let rows = json(&["packets", &log, "--limit", "0", "--json"]);
    let rows = rows["packets"].as_array().expect("packets");
    let mut named = 0;
    for row in rows {
        let id = row["packet_id"].as_u64().expect("a number").to_string();
        let text = String::from_utf8(kpat(&["packet", &log, &id]).stdout).expect("text");
        let namespace = text.lines().find_map(|l| l.strip_prefix("namespace ")).expect("a namespace").trim();
        let (_, own) = &of_length[&(row["len_bytes"].as_i64().expect("a number"))];
        let others =
            |name: &str| of_length.values().any(|(_, other)| other != own && name.contains(other.as_str()));
        assert!(!others(namespace), "{namespace:?} in place of {own:?}: {of_length:?}");
        named += usize::from(namespace == own);
    }
    eprintln!(
        "{named} of {} packets have their namespace's name; {again} of 10 numbers were given out again",
        rows.len()
    );
    assert_eq!(rows.len(), 40);
    assert!(named >= 20, "{named}");
}

#[test]
fn a_namespace_is_asked_for_by_its_process() {
    let Some(p) = Place::new("bypid") else { return };
    let there = Unshared::new("ip link set lo up; read x; exit 0");
    let other = Unshared::new("ip link set lo up; read x; exit 0");
    for u in [&there, &other] {
        until("lo", || u.enter("ip -o link").contains("LOWER_UP"));
    }
    let (pid, label) = (there.pid().to_string(), format!("pid {} ({})", there.pid(), there.comm()));
    let script = format!(
        "nsenter -t {} -n ping -qc 2 127.0.0.1 & nsenter -t {pid} -n ping -qc 3 -i 0.2 127.0.0.1; wait",
        other.pid()
    );
    for (n, word) in [&pid, &label, &format!("/proc/{pid}/ns/net")].into_iter().enumerate() {
        let file = p.path(&format!("{n}.kbl"));
        let sniffed = format!("{word}:lo");
        let out = record(&[
            "-o", &file, "--netns", word, "--sniff", &sniffed, "-f", "icmp", "--json", "--", "sh", "-c",
            &script,
        ]);
        assert!(out.status.success(), "{word}: {}", words(&out));
        let text = String::from_utf8(out.stdout).expect("text");
        let v: Value = serde_json::from_str(&text[text.find("\n{").expect("JSON")..]).expect("JSON");
        // Three requests and their answers; the other's are its own.
        assert_eq!((v["packets"].as_u64(), v["captures"][0]["frames"].as_u64()), (Some(6), Some(6)), "{v}");
    }
    let refused = |word: &str, text: &str| {
        let out = record(&["-o", &p.path("no.kbl"), "--netns", word, "--for", "1s"]);
        assert!(!out.status.success() && words(&out).contains(text), "{}", words(&out));
    };
    refused(&format!("pid {pid} (nginx)"), &format!("it is {label} by now"));
    refused("/etc/passwd", "there is no network namespace");
    refused("no-such", &label);
    assert!(!p.names().iter().any(|n| n.starts_with("no")), "{:?}", p.names());
}

/// Storms of them, and few descriptors: recorded, and each that is not read is counted or was gone.
#[test]
fn storms_of_them_and_few_descriptors_are_survived() {
    let Some(p) = Place::new("nlstorm") else { return };
    let many: Vec<Unshared> = (0..12).map(|_| Unshared::new("read x; exit 0")).collect();
    let file = p.path("x.kbl");
    let script = "ulimit -n 112; exec \"$0\" record --mechanism tracepoint -o \"$1\" -f icmp -- sh -c \
                  'for i in 1 2 3 4 5 6 7 8 9 10; do unshare -n sh -c \"ip link set lo up; ping -qc 2 -i 0.01 127.0.0.1\"; done'";
    let out = Command::new("bash").args(["-c", script, KPAT, &file]).output().expect("bash runs");
    assert!(out.status.success(), "{}", words(&out));
    let info = json(&["info", &file, "--json"]);
    let unread = info["losses"].as_array().expect("losses").iter().find(|l| l["cause"] == "namespace-unread");
    let unread = unread.and_then(|l| l["count"].as_u64()).unwrap_or(0) as usize;
    let of = |u: &Unshared| {
        let name = format!("pid {} ({})", u.pid(), u.comm());
        devices(&info, u.inum().expect("it lives"), &name)
    };
    let read = many.iter().filter(|u| !of(u).is_empty()).count();
    assert!(read + unread >= many.len(), "{read} {unread} {info}");
    let packets = info["records"]["footprints"].as_u64().or(info["records"]["footprint"].as_u64());
    assert!(packets.is_some_and(|n| n >= 40), "{info}");
}
