//! Of which connection what programs say is. Truth are the descriptors' own socket numbers (cookies), which the test's programs ask the kernel for beside each
//! call, in the call's own thread. Needs root.

use super::{number, pem, text};
use crate::place::{Place, json, kpat, words};
use serde_json::Value;
use std::collections::BTreeMap;

/// A server thread and a client thread, each with six connections at a time, which it serves in turn, in an order by chance; some reads have their bytes already.
/// What it says: thread, what, bytes, socket.
const TLS: &str = r#"
import random, select, socket, ssl, struct, sys, threading
random.seed(7)
here = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER); here.load_cert_chain(sys.argv[1])
there = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT); there.check_hostname = False; there.verify_mode = ssl.CERT_NONE
listening = socket.create_server(("127.0.0.1", 0))
cookie = lambda s: struct.unpack("Q", s.getsockopt(socket.SOL_SOCKET, 57, 8))[0]
N, out = 6, []
say = lambda what, s, n: out.append((threading.get_native_id(), what, n, cookie(s)))
def read(c):
    try: got = c.recv(100)
    except OSError: got = b""
    say("read", c, len(got)); return got
def write(c):
    try: n = c.send(b"x" * random.randint(1, 900))
    except OSError: n = 0
    say("write", c, n)
def serve():
    all = []
    for _ in range(N):
        c = here.wrap_socket(listening.accept()[0], server_side=True); say("handshake", c, 1); all.append(c)
    left = set(all)
    while left:
        for c in random.sample(sorted(left, key=id), len(left)):
            if not c.pending() and not select.select([c], [], [], 0)[0]: continue
            got = read(c)
            if not got: left.discard(c); continue
            while c.pending(): read(c)
            if random.random() < .5: write(c)
    [c.close() for c in all]
t = threading.Thread(target=serve); t.start()
mine = []
for _ in range(N):
    c = there.wrap_socket(socket.create_connection(listening.getsockname())); say("handshake", c, 1); mine.append(c)
for i in range(200): write(random.choice(mine))
for c in mine: c.close()
t.join()
for o in out: print(*o)
"#;

/// A recording of a command, integrated; what the command printed.
fn recorded(p: &Place, profile: &str, command: &[&str]) -> (String, String) {
    let (file, log) = (p.path("x.kbl"), p.path("x.kpat"));
    let out = kpat(&[&["record", "-p", profile, "-o", &file, "--"], command].concat());
    assert!(out.status.success(), "{}", words(&out));
    let done = kpat(&["integrate", &file, "-o", &log]);
    assert!(done.status.success(), "{}", words(&done));
    (log, String::from_utf8_lossy(&out.stdout).into_owned())
}

fn shown(e: &Value, key: &str) -> String {
    e[key].to_string()
}

fn events(log: &str, more: &[&str]) -> Vec<Value> {
    let all = [&["events", log, "--kind", "program", "--limit", "0", "--json"], more].concat();
    json(&all)["events"].as_array().cloned().expect("events")
}

#[test]
fn calls_of_tls_are_about_their_connection() {
    let Some(p) = Place::new("joined") else { return };
    let (log, out) = recorded(&p, "path,app,programs", &["/usr/bin/python3", "-c", TLS, &pem(&p)]);
    let all = events(&log, &[]);
    let ends = |e: &&Value| e["a"] == 2;
    let mut of_thread: BTreeMap<(String, &str), Vec<&Value>> = BTreeMap::new();
    for e in all.iter().filter(ends) {
        let what = [("TLS handshake", "handshake"), ("TLS read", "read"), ("TLS write", "write")];
        if let Some((_, what)) = what.iter().find(|w| text(e).contains(w.0)) {
            of_thread.entry((e["pid"].to_string(), what)).or_default().push(e);
        }
    }
    // What is said of each call that did something; a handshake of a socket that blocks is one call.
    let mut nth: BTreeMap<(String, &str), usize> = BTreeMap::new();
    let (mut named, mut sockets) = (0, BTreeMap::new());
    for line in out.lines() {
        let w: Vec<&str> = line.split(' ').collect();
        let [thread, what, n, socket] = w[..] else { panic!("{line}") };
        let key = (thread.to_owned(), what);
        let i = nth.entry(key.clone()).or_default();
        let e = of_thread[&key][*i];
        *i += 1;
        if what != "handshake" {
            assert!(text(e).contains(&format!(": {n} of ")), "{line}: {e}");
        }
        assert_eq!(e["socket_id"].to_string(), socket, "{line}: {e}");
        assert!(e["what"].as_str().unwrap().contains(&format!("(socket {socket})")), "{e}");
        named += 1;
        *sockets.entry(socket.to_owned()).or_insert(0) += 1;
    }
    assert!(named > 150 && sockets.len() == 12, "{named} of {sockets:?}");
    // Asked for by socket: these, and nothing of another; likewise beside the socket's own sums.
    let (socket, n) = sockets.iter().next().unwrap();
    let its = events(&log, &["--socket", socket]);
    assert!(its.iter().all(|e| shown(e, "socket_id") == *socket));
    assert!(its.iter().filter(ends).count() >= *n, "{n}: {its:?}");
    let beside = json(&["app", &log, "--socket", socket, "--json"]);
    assert_eq!(beside["programs"].as_array().expect("programs").len(), its.len());
    // A packet has what its own connection's calls did in its life.
    let ports: BTreeMap<String, [i64; 2]> = json(&["app", &log, "--json", "--limit", "0"])["sockets"]
        .as_array()
        .unwrap()
        .iter()
        .map(|s| {
            let port = |k: &str| s[k].as_i64().unwrap();
            (s["socket_id"].to_string(), [port("local_port"), port("peer_port")])
        })
        .collect();
    let packets = json(&["packets", &log, "--limit", "0", "--json"]);
    let (mut with, mut data) = (0, 0);
    for packet in packets["packets"].as_array().unwrap() {
        let (Some(from), Some(to)) = (packet["src_port"].as_i64(), packet["dst_port"].as_i64()) else {
            continue;
        };
        let own = ports.values().any(|p| *p == [from, to]);
        if !own || packet["len_bytes"].as_i64().unwrap() < 90 {
            continue;
        }
        data += 1;
        let whole = json(&["packet", &log, &packet["packet_id"].to_string(), "--json"]);
        let said: Vec<&Value> =
            whole["programs"].as_array().unwrap().iter().filter(|e| !e["socket_id"].is_null()).collect();
        for e in &said {
            let p = ports[&e["socket_id"].to_string()];
            assert!(p == [from, to] || p == [to, from], "{packet}: {e}");
        }
        with += usize::from(!said.is_empty());
    }
    assert!(data > 60 && with * 10 >= data * 9, "{with} of {data} packets with data");
}

/// Connections of which the client does not trust the server: what both libraries say of it, thread and socket.
const REFUSED: &str = r#"
import socket, ssl, struct, sys, threading
here = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER); here.load_cert_chain(sys.argv[1])
there = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
listening = socket.create_server(("127.0.0.1", 0))
cookie = lambda s: struct.unpack("Q", s.getsockopt(socket.SOL_SOCKET, 57, 8))[0]
out = []
def serve():
    for _ in range(4):
        c = listening.accept()[0]; n = cookie(c)
        try: here.wrap_socket(c, server_side=True).recv(1)
        except ssl.SSLError as e: out.append((threading.get_native_id(), n, e.reason))
t = threading.Thread(target=serve); t.start()
for _ in range(4):
    c = socket.create_connection(listening.getsockname()); n = cookie(c)
    try: there.wrap_socket(c, server_hostname="x")
    except ssl.SSLError as e: out.append((threading.get_native_id(), n, e.reason))
t.join()
for o in out: print(*o)
"#;

#[test]
fn what_went_wrong_has_its_name_and_connection() {
    let Some(p) = Place::new("refused") else { return };
    let (log, out) = recorded(&p, "app,programs", &["/usr/bin/python3", "-c", REFUSED, &pem(&p)]);
    let all = events(&log, &[]);
    let (mut alerts, mut unverified) = (0, 0);
    for line in out.lines() {
        let w: Vec<&str> = line.split(' ').collect();
        let [thread, socket, reason] = w[..] else { panic!("{line}") };
        // Python has the library's names: of an alert in capitals, with the oldest version that has it.
        let named = match reason.split_once("_ALERT_") {
            Some((_, alert)) => format!("alert:{}", alert.to_lowercase()),
            None => reason.to_owned(),
        };
        let said = format!("tls: error {named}");
        let its = all
            .iter()
            .filter(|e| shown(e, "pid") == thread && shown(e, "socket_id") == socket && text(e) == said);
        let of_thread: Vec<&Value> =
            all.iter().filter(|e| shown(e, "pid") == thread).map(|e| &e["what"]).collect();
        assert_eq!(its.count(), 1, "{line}: {of_thread:?}");
        alerts += usize::from(named == "alert:unknown_ca");
        unverified += usize::from(named == "CERTIFICATE_VERIFY_FAILED");
    }
    assert_eq!((alerts, unverified), (4, 4), "{out}");
}

/// Two threads look names up at a server of the test's own, which is asked by a socket each time; what the server saw: name, port of who asked.
const NAMES: &str = r#"
import socket, struct, threading
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); server.bind(("127.0.0.53", 53))
def serve():
    while True:
        q, who = server.recvfrom(512)
        if q == b"end": return
        at, labels = 12, []
        while q[at]: labels.append(q[at + 1:at + 1 + q[at]].decode()); at += 1 + q[at]
        kind = struct.unpack(">H", q[at + 1:at + 3])[0]
        print(".".join(labels), who[1], kind, flush=True)
        answer = b"\xc0\x0c" + struct.pack(">HHIH4s", 1, 1, 1, 4, bytes([127, 0, 0, 9])) if kind == 1 else b""
        server.sendto(q[:2] + b"\x81\x80" + q[4:6] + struct.pack(">H", len(answer) > 0) + b"\0\0\0\0" + q[12:at + 5] + answer, who)
t = threading.Thread(target=serve); t.start()
def ask(n):
    for i in range(10): assert socket.getaddrinfo(f"h{n}-{i}.kpat.test", 80, type=socket.SOCK_STREAM)[0][4][0] == "127.0.0.9"
all = [threading.Thread(target=ask, args=(n,)) for n in range(2)]
[a.start() for a in all]; [a.join() for a in all]
server.sendto(b"end", ("127.0.0.53", 53)); t.join()
"#;

#[test]
fn a_look_up_is_about_the_socket_that_asked() {
    let Some(p) = Place::new("names-joined") else { return };
    let (resolv, hosts) = (p.path("resolv.conf"), p.path("nsswitch.conf"));
    std::fs::write(&resolv, "nameserver 127.0.0.53\n").expect("a file");
    std::fs::write(&hosts, "hosts: dns\n").expect("a file");
    // In a network and with files of its own.
    let inside = format!(
        "mount --bind {resolv} /etc/resolv.conf && mount --bind {hosts} /etc/nsswitch.conf && ip link set lo up && exec /usr/bin/python3 -c \"$0\""
    );
    let command = ["unshare", "-m", "-n", "sh", "-c", &inside, NAMES];
    let (log, out) = recorded(&p, "app,programs", &command);
    let all = events(&log, &[]);
    let sockets = json(&["app", &log, "--json", "--limit", "0"]);
    let port = |id: &Value| {
        let of = sockets["sockets"].as_array().unwrap().iter().find(|s| s["socket_id"] == *id);
        of.map_or(-1, |s| number(s, "local_port"))
    };
    let mut seen = 0;
    for line in out.lines() {
        let w: Vec<&str> = line.split(' ').collect();
        let [name, asked_from, _] = w[..] else { panic!("{line}") };
        let ends: Vec<&Value> =
            all.iter().filter(|e| e["a"] == 2 && text(e).contains(&format!("getaddrinfo({name})"))).collect();
        let [end] = ends[..] else { panic!("{line}: {ends:?}") };
        assert_eq!(port(&end["socket_id"]).to_string(), asked_from, "{line}: {end}");
        seen += 1;
    }
    assert!(seen >= 20, "{out}");
}
